#include "cuda_sums.h"

#include "emit_cuda.h"
#include "error.h"
#include "reduce.h"

namespace flexsn {

namespace {

constexpr std::int64_t alignment = 256;

// Places in sum_entries().
std::size_t reduce_entry(Mem mem, bool whole) { return (mem == Mem::f64 ? 1u : 0u) + (whole ? 2u : 0u); }

std::size_t store_entry(Mem mem) {
  switch (mem) {
    case Mem::f32:
      return 4;
    case Mem::f64:
      return 5;
    case Mem::f16:
      return 6;
    default:
      internal_check(mem == Mem::bf16, "only floats have gradients");
      return 7;
  }
}

std::int64_t blocks_for(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

std::int64_t bytes_of(Mem mem) { return static_cast<std::int64_t>(size_of(mem)); }

std::byte* at(void* start, std::int64_t bytes) { return static_cast<std::byte*>(start) + bytes; }

/// Is the gradient one row after another, or a single row?
bool is_dense(const SumPlan& plan, const ParamGradient& gradient) {
  return plan.rows == 1 || gradient.row_stride == elements_of(gradient.shape);
}

/// Does the last launch write the gradient itself?
bool ends_there(const SumPlan& plan, const Buffer& buffer, const ParamGradient& gradient) {
  return gradient.mem == buffer.mem && is_dense(plan, gradient);
}

}  // namespace

std::vector<std::string> sum_entries() {
  return {"flexsn_reduce_f32", "flexsn_reduce_f64", "flexsn_reduce_whole_f32", "flexsn_reduce_whole_f64",
          "flexsn_store_f32",  "flexsn_store_f64",  "flexsn_store_f16",        "flexsn_store_bf16"};
}

std::int64_t ReduceLaunch::left() const { return whole ? 1 : blocks_for(n, cuda_reduce_block); }

bool sums_by_blocks(const Shape& step, const Shape& param, std::int64_t block) {
  const std::vector<Dimension> dimensions = merged_dimensions(step, param);
  if (dimensions.empty() || dimensions.back().kept) return false;
  return dimensions.size() == 1 || dimensions.back().size % block == 0;
}

SumPlan sum_plan(const Buffer& buffer, const ParamGradient& gradient, const Shape& step, std::int64_t steps,
                 std::int64_t block) {
  SumPlan plan;
  if (buffer.lead == Lead::per_step) {
    plan.rows = steps;
    block = 1;
  }
  std::vector<Dimension> dimensions = merged_dimensions(step, gradient.shape);
  if (block > 1) dimensions.back().size = blocks_for(dimensions.back().size, block);
  for (const Dimension& dimension : dimensions) plan.row *= dimension.size;
  std::int64_t inner = 1, outer = plan.rows * plan.row;
  for (std::size_t d = dimensions.size(); d-- > 0;) {
    if (outer > 0) outer /= dimensions[d].size;
    if (dimensions[d].kept) {
      inner *= dimensions[d].size;
      continue;
    }
    const std::int64_t size = dimensions[d].size;
    // Kept and summed dimensions take turns, so two sums are often those around channels.
    if (d >= 2 && inner == 1 && cuda_reduces_whole(dimensions[d - 2].size, dimensions[d - 1].size, size)) {
      inner = dimensions[d - 1].size;
      if (outer > 0) outer /= inner * dimensions[d - 2].size;
      plan.launches.push_back({outer, dimensions[d - 2].size, inner, size, true});
      d -= 2;
      continue;
    }
    for (std::int64_t n = size; n > 1; n = plan.launches.back().left()) {
      const bool whole = n > cuda_reduce_block && inner == 1 && cuda_reduces_whole(n, inner, 1);
      plan.launches.push_back({.outer = outer, .n = n, .inner = inner, .whole = whole});
    }
  }
  plan.direct = plan.launches.empty() && gradient.mem == buffer.mem;
  if (plan.direct) return plan;
  plan.results_at = aligned(plan.rows * plan.row * bytes_of(buffer.mem));
  plan.bytes = plan.results_at;
  if (!plan.launches.empty()) plan.bytes += aligned(plan.launches.front().results() * bytes_of(buffer.mem));
  return plan;
}

CudaSums sums_of(const SumPlan& plan, const Buffer& buffer, const ParamGradient& gradient) {
  const std::int64_t size = bytes_of(buffer.mem);
  CudaSums sums{.left = plan.rows * plan.row * size};
  if (plan.direct) return sums;
  sums.launches = static_cast<int>(plan.launches.size());
  for (const ReduceLaunch& launch : plan.launches) {
    sums.read += launch.outer * launch.n * launch.inner * launch.tail * size;
    sums.written += launch.results() * size;
  }
  if (ends_there(plan, buffer, gradient) && !plan.launches.empty()) return sums;
  const std::int64_t count = plan.rows * elements_of(gradient.shape);
  sums.launches += static_cast<int>(is_dense(plan, gradient) ? 1 : plan.rows);
  sums.read += count * size;
  sums.written += count * bytes_of(gradient.mem);
  return sums;
}

void finish_sums(const Cuda& cuda, const Gpu& gpu, void* stream, const Buffer& buffer, const SumPlan& plan,
                 const ParamGradient& gradient, void* scratch) {
  if (plan.direct) return;
  // Each launch reads what the one before wrote; the two places take turns.
  void* from = scratch;
  void* other = at(scratch, plan.results_at);
  for (std::size_t i = 0; i < plan.launches.size(); ++i) {
    ReduceLaunch launch = plan.launches[i];
    const bool last = i + 1 == plan.launches.size();
    void* to = last && ends_there(plan, buffer, gradient) ? gradient.to : other;
    const std::size_t entry = reduce_entry(buffer.mem, launch.whole);
    if (launch.whole) {
      void* parameters[] = {&from, &to, &launch.n, &launch.inner, &launch.tail};
      cuda.sums().launch(gpu, entry, launch.outer * launch.inner, cuda_reduce_whole_threads, stream,
                         parameters);
    } else {
      void* parameters[] = {&from, &to, &launch.outer, &launch.n, &launch.inner};
      cuda.sums().launch(gpu, entry, cuda_reduce_blocks(launch.outer, launch.n, launch.inner),
                         cuda_reduce_threads, stream, parameters);
    }
    other = from;
    from = to;
  }
  if (ends_there(plan, buffer, gradient) && !plan.launches.empty()) return;
  std::int64_t count = elements_of(gradient.shape), rows = plan.rows;
  if (is_dense(plan, gradient)) {
    count *= rows;
    rows = 1;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    void* values = at(from, r * count * bytes_of(buffer.mem));
    void* to = at(gradient.to, r * gradient.row_stride * bytes_of(gradient.mem));
    void* parameters[] = {&values, &to, &count};
    cuda.sums().launch(gpu, store_entry(gradient.mem), blocks_for(count, cuda_reduce_threads),
                       cuda_reduce_threads, stream, parameters);
  }
}

void zero_gradient(const Cuda& cuda, const Gpu& gpu, void* stream, const Buffer& buffer, std::int64_t steps,
                   const ParamGradient& gradient) {
  std::int64_t rows = buffer.lead == Lead::per_step ? steps : 1;
  const std::int64_t bytes = bytes_of(gradient.mem);
  std::int64_t width = elements_of(gradient.shape) * bytes;
  if (gradient.row_stride * bytes == width) {  // one row right behind the other
    width *= rows;
    rows = 1;
  }
  if (width == 0) return;
  const CurrentGpu current(cuda.driver, gpu);
  for (std::int64_t r = 0; r < rows; ++r)
    cuda.driver.check(cuda.driver.functions().cuMemsetD8Async(
                          reinterpret_cast<DeviceAddress>(at(gradient.to, r * gradient.row_stride * bytes)),
                          0, static_cast<std::size_t>(width), stream),
                      "write zeros");
}

}  // namespace flexsn
