#include "cuda_kernel.h"

#include <algorithm>
#include <array>
#include <deque>
#include <future>

#include "background.h"
#include "error.h"

namespace flexsn {

/// The code for one set of buffers that are present.
struct CudaKernel::Variant {
  /// One entry. Where it spills it is compiled in other ways, and the one that spills least runs.
  class Entry {
   public:
    struct Way {
      Way(const Cuda& cuda, const Store& store, const std::string& text, const char* name,
          const std::string& is_different)
          : code(cuda, store, text, {name}), how(is_different) {}
      CudaCode code;
      std::string how;
    };

    Entry(const Cuda& cuda, const Store& store, const CudaModule& module, bool wide) {
      for (const CudaWay& way : wide ? module.wide : module.narrow)
        ways_.emplace_back(cuda, store, module.text(way), name_of(wide), way.how);
    }
    static const char* name_of(bool wide) { return wide ? cuda_wide : cuda_narrow; }

    bool is_on(const Gpu& gpu) const {
      for (const Way& way : ways_) {
        if (!way.code.is_on(gpu)) return false;
        if (spilled(way, gpu) == 0) return true;
      }
      return true;
    }
    /// What runs on a device; those before it have to be compiled to tell.
    const Way& on(const Gpu& gpu) const {
      const Way* best = &ways_.front();
      for (const Way& way : ways_) {
        if (spilled(*best, gpu) == 0) break;
        if (spilled(way, gpu) < spilled(*best, gpu)) best = &way;
      }
      return *best;
    }

   private:
    static int spilled(const Way& way, const Gpu& gpu) { return way.code.on(gpu).front().local_bytes; }

    std::deque<Way> ways_;
  };

  std::vector<CudaField> fields;
  Entry wide, narrow;

  Variant(const Cuda& cuda, const Store& store, const CudaModule& module)
      : fields(module.fields), wide(cuda, store, module, true), narrow(cuda, store, module, false) {}

  const Entry& entry(bool is_wide) const { return is_wide ? wide : narrow; }
  /// The code of the entry that runs, which has been made. Where both can run, the other one is made in the
  /// background, once: no other size or alignment compiles again.
  const CudaCode& code_to_run(const Gpu& gpu, bool is_wide, bool both_can_run) const {
    const CudaCode& code = entry(is_wide).on(gpu).code;
    const Entry& other = entry(!is_wide);
    if (!both_can_run || other.is_on(gpu)) return code;
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Background>& making = others_[gpu.number];
    if (!making) making = std::make_unique<Background>([&other, &gpu] { other.on(gpu); });
    return code;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::map<int, std::unique_ptr<Background>> others_;  ///< by device
};

namespace {

std::vector<bool> present_in(const PlanRun& run) {
  std::vector<bool> present;
  present.reserve(run.buffers.size());
  for (const Bound& bound : run.buffers) present.push_back(bound.data != nullptr);
  return present;
}

/// The bytes of a scalar.
std::uint64_t scalar_bits(const Buffer& buffer, const Bound& bound) {
  internal_check(buffer.map == Map::scalar && buffer.lead == Lead::once,
                 "only a single value can lie in the host's memory");
  std::uint64_t bits = 0;
  std::memcpy(&bits, bound.data, size_of(buffer.mem));
  return bits;
}

/// Do the rows of a run fill the L2 cache of a device several times?
bool is_beyond_cache(const Plan& plan, const PlanRun& run, const Gpu& gpu) {
  constexpr double times = 3;  // between 2, where outputs were found there, and 4, where they were not
  double bytes = 0;            // of an element and step
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    const Bound& bound = run.buffers[b];
    if (bound.data != nullptr && bound.row_stride != 0 && buffer.lead == Lead::per_step &&
        buffer.map == Map::element)
      bytes += static_cast<double>(size_of(buffer.mem));
  }
  return bytes * static_cast<double>(run.steps) * static_cast<double>(run.elements) > times * gpu.cache_bytes;
}

std::uint64_t field_of(const CudaField& field, const Plan& plan, const PlanRun& run, const Gpu& gpu,
                       bool partial_sums) {
  using What = CudaField::What;
  const auto bits = [](std::int64_t number) { return static_cast<std::uint64_t>(number); };
  switch (field.what) {
    case What::steps:
      return bits(run.steps);
    case What::elements:
      return bits(run.elements);
    case What::first_step:
      return bits(run.first_step);
    case What::beyond_cache:
      return is_beyond_cache(plan, run, gpu) ? 1 : 0;
    case What::partial_sums:
      return partial_sums ? 1 : 0;
    default:
      break;
  }
  const Buffer& buffer = plan.buffers[field.buffer];
  const Bound& bound = run.buffers[field.buffer];
  switch (field.what) {
    case What::data:
      return bound.host ? 0 : reinterpret_cast<std::uint64_t>(bound.data);
    case What::value:
      return bound.host && bound.data != nullptr ? scalar_bits(buffer, bound) : 0;
    case What::row_stride:
      return bits(bound.row_stride);
    case What::inner:
      return bits(bound.inner);
    default:
      internal_check(field.what == What::count, "a field that the launcher does not know");
      return bits(bound.count);
  }
}

}  // namespace

CudaKernel::CudaKernel(Plan plan, const Cuda& cuda, Store store, const CudaChoice& choice)
    : plan_(std::move(plan)),
      cuda_(cuda),
      store_(std::move(store)),
      options_(choice.options ? *choice.options : cuda_shape(plan_).options),
      entry_(choice.entry),
      is_sum_(plan_.buffers.size()) {
  verify(plan_);
  for (const Sum& sum : plan_.sums)
    if (sum.buffer != no_buffer) is_sum_[static_cast<std::size_t>(sum.buffer)] = true;
}

CudaKernel::~CudaKernel() = default;

const CudaKernel::Variant& CudaKernel::variant(const PlanRun& run) const {
  const std::vector<bool> present = present_in(run);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Variant>& found = variants_[present];
  if (found) return *found;
  const CudaModule module = emit_cuda(plan_, present, options_);
  internal_check(module.options.vector == options_.vector && module.options.threads == options_.threads &&
                     module.options.narrow_threads == options_.narrow_threads,
                 "a module's blocks are those that were asked for");
  if (const std::string why = cuda_too_many_fields(plan_, module); !why.empty())
    user_error("neuron '", plan_.neuron, "': ", why);
  found = std::make_unique<Variant>(cuda_, store_, module);
  return *found;
}

std::int64_t CudaKernel::block(bool wide) const {
  return wide ? std::int64_t{options_.vector} * options_.threads : options_.narrow_threads;
}

bool CudaKernel::can_be_wide(const PlanRun& run, const Gpu& gpu, bool by_block) const {
  if (entry_ == CudaEntry::narrow || run.elements % options_.vector != 0) return false;
  if (entry_ == CudaEntry::automatic && !fills_device(options_, run.elements, gpu.multiprocessors))
    return false;
  for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
    const Buffer& buffer = plan_.buffers[b];
    const Bound& bound = run.buffers[b];
    if (bound.data == nullptr || buffer.map != Map::element || (by_block && is_sum_[b])) continue;
    const std::uint64_t bytes = static_cast<std::uint64_t>(options_.vector) * size_of(buffer.mem);
    if (reinterpret_cast<std::uint64_t>(bound.data) % bytes != 0) return false;
    if (rows_of(plan_, buffer, run.steps) > 1 && bound.row_stride % options_.vector != 0) return false;
  }
  return true;
}

void CudaKernel::launch(const PlanRun& run, const Gpu& gpu, bool wide, bool partial_sums) const {
  check_buffers(plan_, run);
  if (run.elements == 0) return;
  const Variant& found = variant(run);
  std::array<std::uint64_t, cuda_most_fields> record;
  for (std::size_t i = 0; i < found.fields.size(); ++i)
    record[i] = field_of(found.fields[i], plan_, run, gpu, partial_sums);
  void* parameters[] = {record.data()};
  const CudaCode& code = found.code_to_run(gpu, wide, entry_ != CudaEntry::narrow);
  code.launch(gpu, 0, (run.elements + block(wide) - 1) / block(wide),
              wide ? options_.threads : options_.narrow_threads, run.stream, parameters, plan_.neuron);
}

void CudaKernel::run(const PlanRun& run, const Threads&) const {
  const Gpu& gpu = cuda_.driver.gpu(run.device);
  launch(run, gpu, can_be_wide(run, gpu, false), false);
}

bool CudaKernel::gives_param_gradients() const {
  return std::any_of(plan_.buffers.begin(), plan_.buffers.end(),
                     [](const Buffer& buffer) { return buffer.holds == Holds::grad_param; });
}

void CudaKernel::prepare(const PlanRun& run) const {
  const Gpu& gpu = cuda_.driver.gpu(run.device);
  std::future<void> sums;  // beside the kernel itself
  if (gives_param_gradients()) sums = std::async([&] { cuda_.sums().on(gpu); });
  variant(run).entry(can_be_wide(run, gpu, false)).on(gpu);
  if (sums.valid()) sums.get();
}

bool CudaKernel::is_ready(const PlanRun& run) const {
  if (run.elements == 0) return true;
  const Gpu& gpu = cuda_.driver.gpu(run.device);
  return variant(run).entry(can_be_wide(run, gpu, false)).is_on(gpu) &&
         (!gives_param_gradients() || cuda_.sums().is_on(gpu));
}

std::int64_t CudaKernel::elements_of_sums(const ParamGradients& gradients, bool wide) const {
  const bool suits =
      std::all_of(gradients.list.begin(), gradients.list.end(), [&](const ParamGradient& gradient) {
        return !is_sum_[static_cast<std::size_t>(gradient.buffer)] ||
               sums_by_blocks(gradients.step, gradient.shape, block(wide));
      });
  return suits ? block(wide) : 1;
}

std::int64_t CudaKernel::scratch_bytes(std::int64_t steps, const ParamGradients& gradients,
                                       Scratch whose) const {
  std::int64_t most = 0;
  for (bool wide : {false, true}) {
    const std::int64_t elements = whose == Scratch::any_plan ? 1 : elements_of_sums(gradients, wide);
    std::int64_t bytes = 0;
    for (const ParamGradient& gradient : gradients.list)
      bytes += sum_plan(plan_.buffers[gradient.buffer], gradient, gradients.step, steps, elements).bytes;
    most = std::max(most, bytes);
  }
  return most;
}

std::vector<CudaSums> CudaKernel::sums(const ParamGradients& gradients, std::int64_t steps, bool wide) const {
  const std::int64_t elements = elements_of_sums(gradients, wide);
  std::vector<CudaSums> list;
  for (const ParamGradient& gradient : gradients.list) {
    const Buffer& buffer = plan_.buffers[gradient.buffer];
    list.push_back(sums_of(sum_plan(buffer, gradient, gradients.step, steps, elements), buffer, gradient));
  }
  return list;
}

void CudaKernel::run_backward(PlanRun run, const ParamGradients& gradients, const Threads&) const {
  const Gpu& gpu = cuda_.driver.gpu(run.device);
  // What is written for each element takes part in the choice of the entry, which says how large a block is.
  const auto bind = [&](std::int64_t elements) {
    auto* scratch = static_cast<std::byte*>(gradients.scratch);
    std::vector<SumPlan> plans;
    for (const ParamGradient& gradient : gradients.list) {
      const SumPlan& plan = plans.emplace_back(
          sum_plan(plan_.buffers[gradient.buffer], gradient, gradients.step, run.steps, elements));
      run.buffers[gradient.buffer] = plan.direct
                                         ? Bound{.data = gradient.to, .row_stride = gradient.row_stride}
                                         : Bound{.data = scratch, .row_stride = plan.row};
      scratch += plan.bytes;
    }
    return plans;
  };
  bool wide = true;
  std::int64_t elements = elements_of_sums(gradients, wide);
  std::vector<SumPlan> plans = bind(elements);
  if (!can_be_wide(run, gpu, elements > 1)) {
    wide = false;
    elements = elements_of_sums(gradients, wide);
    plans = bind(elements);
  }
  launch(run, gpu, wide, elements > 1);
  const bool empty = run.steps == 0 || run.elements == 0;
  std::byte* scratch = static_cast<std::byte*>(gradients.scratch);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const ParamGradient& gradient = gradients.list[i];
    const Buffer& buffer = plan_.buffers[gradient.buffer];
    if (empty)
      zero_gradient(cuda_, gpu, run.stream, buffer, run.steps, gradient);
    else
      finish_sums(cuda_, gpu, run.stream, buffer, plans[i], gradient, scratch);
    scratch += plans[i].bytes;
  }
}

std::vector<CudaFigures> CudaKernel::figures(const PlanRun& run) const {
  const Variant& found = variant(run);
  const Gpu& gpu = cuda_.driver.gpu(run.device);
  const auto figures_of = [&](bool wide) {
    const Variant::Entry::Way& way = found.entry(wide).on(gpu);
    const CudaFunction& function = way.code.on(gpu).front();
    return CudaFigures{.entry = Variant::Entry::name_of(wide),
                       .threads = wide ? options_.threads : options_.narrow_threads,
                       .registers = function.registers,
                       .local_bytes = function.local_bytes,
                       .shared_bytes = function.shared_bytes,
                       .again = way.how};
  };
  std::future<CudaFigures> narrow = std::async([&] { return figures_of(false); });
  const CudaFigures wide = figures_of(true);
  return {wide, narrow.get()};
}

}  // namespace flexsn
