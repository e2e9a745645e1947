#include "cpu_kernel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>

#include "error.h"
#include "tile.h"

namespace flexsn {

/// The machine code for one form, made by the first who needs it.
struct CpuKernel::Variant {
  std::once_flag once;
  std::atomic<bool> made = false;
  std::exception_ptr problem;  ///< why it could not be made
  LlvmModule module;
  std::optional<Code> code;
  LlvmCalls calls;

  /// `object` must hold the functions of `its_module`; throws an InternalError where it does not.
  void link(const std::string& object, const LlvmModule& its_module) {
    Code linked(object);
    const auto function = [&](const std::optional<LlvmFunction>& wanted) {
      return wanted ? linked.function(wanted->name) : nullptr;
    };
    calls = {linked.function(its_module.step.name), function(its_module.rebuild),
             function(its_module.step_hoist), function(its_module.rebuild_hoist)};
    for (const LlvmConversion& conversion : its_module.conversions) {
      calls.load[conversion.mem] = linked.function(conversion.load);
      calls.store[conversion.mem] = linked.function(conversion.store);
    }
    code = std::move(linked);
  }
};

/// Arenas that are not in use: memory once touched is worth keeping.
class CpuKernel::Arenas {
 public:
  std::unique_ptr<Arena> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Arena>();
    std::unique_ptr<Arena> arena = std::move(free_.back());
    free_.pop_back();
    return arena;
  }
  void give_back(std::unique_ptr<Arena> arena) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(arena));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Arena>> free_;
};

namespace {

/// Elements: whole cache lines of every buffer.
constexpr std::int64_t smallest_piece = 64;

/// How many pieces a run is worth.
std::int64_t pieces_of(const Plan& plan, const PlanRun& run, const Threads& threads) {
  constexpr std::int64_t loads_and_stores = 8;  // in ops
  const std::int64_t ops = loads_and_stores + ir::op_count(plan.step.graph) +
                           (plan.rebuild ? ir::op_count(plan.rebuild->graph) : 0);
  const std::int64_t work = run.elements * std::max<std::int64_t>(run.steps, 1) * ops;
  const std::int64_t most =
      std::min(work / threads.grain, (run.elements + smallest_piece - 1) / smallest_piece);
  return std::clamp<std::int64_t>(most, 1, std::max(threads.count, 1));
}

std::vector<bool> present_in(const PlanRun& run) {
  std::vector<bool> present;
  for (const Bound& bound : run.buffers) present.push_back(bound.data != nullptr);
  return present;
}

/// How elements are dealt out: after `before` of them, what is written is aligned.
struct Cut {
  std::int64_t before = 0;
  bool streaming = false;  ///< too much is written for the caches to be of use to whoever reads it
};

Cut cut_of(const Plan& plan, const PlanRun& run) {
  constexpr std::int64_t few_elements = 2048, much = std::int64_t{32} << 20;
  std::int64_t written = 0;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].write && plan.buffers[i].lead == Lead::per_step && run.buffers[i].data != nullptr)
      written += run.steps * run.elements * static_cast<std::int64_t>(size_of(plan.buffers[i].mem));
  const std::optional<std::int64_t> before = elements_to_alignment(plan, run);
  if (!before || run.elements < few_elements) return {};
  return {*before, written >= much && is_x86(host_isa())};
}

}  // namespace

CpuKernel::CpuKernel(Plan plan, Store store, unsigned optimized_up_to)
    : plan_(std::move(plan)),
      store_(std::move(store)),
      optimized_up_to_(optimized_up_to),
      arenas_(std::make_unique<Arenas>()) {
  verify(plan_);
}

CpuKernel::~CpuKernel() = default;

const CpuKernel::Variant& CpuKernel::variant(const Form& form) const {
  std::shared_ptr<Variant> found;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Variant>& place = variants_[form];
    if (place && place->made) return *place;
    if (!place) place = std::make_shared<Variant>();
    found = place;
  }
  // Nothing is thrown out of call_once: there are C libraries in which all who come later then wait for ever.
  std::call_once(found->once, [&] {
    try {
      make(*found, form);
      found->made = true;
    } catch (...) {
      found->problem = std::current_exception();
    }
  });
  if (found->made) return *found;
  {
    const std::lock_guard lock(mutex_);  // the next call tries again
    if (const auto place = variants_.find(form); place != variants_.end() && place->second == found)
      variants_.erase(place);
  }
  std::rethrow_exception(found->problem);
}

void CpuKernel::make(Variant& variant, const Form& form) const {
  const Isa isa = host_isa();
  LlvmModule module = emit_llvm(plan_, form.first, {isa, form.second});
  const std::string key = join("flexsn ", version(), ", ", compiler_version(), ", ", name_of(isa),
                               ", optimized up to ", optimized_up_to_, "\n", module.text);
  // What comes from the disk is what was saved, but it may have been saved by a defect.
  if (const std::optional<std::string> object = store_.load("cpu", key)) {
    try {
      variant.link(*object, module);
    } catch (const InternalError&) {
    }
  }
  if (!variant.code) {
    const std::string object = compile_object(module.text, isa, optimized_up_to_);
    variant.link(object, module);
    store_.save("cpu", key, object);
  }
  module.text.clear();
  variant.module = std::move(module);
}

void CpuKernel::prepare(const PlanRun& run) const {
  variant({present_in(run), cut_of(plan_, run).streaming});
}

void CpuKernel::run(const PlanRun& run, const Threads& threads) const {
  check_buffers(plan_, run);
  if (run.elements == 0) return;
  const Cut cut = cut_of(plan_, run);
  const Variant& code = variant({present_in(run), cut.streaming});
  const std::int64_t pieces = pieces_of(plan_, run, threads);
  const auto bound = [&](std::int64_t i) {
    if (i == 0 || i == pieces) return i == 0 ? 0 : run.elements;
    return cut.before + (run.elements - cut.before) * i / pieces / smallest_piece * smallest_piece;
  };
  threads.run(pieces, [&](std::int64_t i) {
    std::unique_ptr<Arena> arena = arenas_->take();
    std::int64_t first = bound(i);
    if (i == 0 && cut.before > 0) {
      run_piece(plan_, code.module, code.calls, run, 0, cut.before, *arena);
      first = cut.before;
    }
    run_piece(plan_, code.module, code.calls, run, first, bound(i + 1), *arena);
    arenas_->give_back(std::move(arena));
  });
}

std::shared_ptr<const Executable> cpu_executable(Plan plan) {
  host_isa();  // an older processor is refused before anything is made for it
  const char* set = std::getenv("FLEXSN_OPTIMIZE");
  const std::string wanted = set == nullptr || *set == '\0' ? "1" : set;
  if (wanted != "0" && wanted != "1") user_error("FLEXSN_OPTIMIZE must be 0 or 1, found '", wanted, "'");
  return std::make_shared<CpuKernel>(std::move(plan), Store::standard(),
                                     wanted == "1" ? largest_optimized : 0);
}

std::string cpu_absent() {
  try {
    host_isa();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::string cpu_compiler() { return compiler_version(); }

Isa cpu_isa() { return host_isa(); }

std::string cpu_assembly(const std::string& text, Isa isa) { return compile_assembly(text, isa); }

}  // namespace flexsn
