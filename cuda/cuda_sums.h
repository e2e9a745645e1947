// Parameter gradients on a GPU: which launches of the reduce kernel finish what backward has left, in the one
// order of reduce.h.
#pragma once

#include "cuda_code.h"
#include "executable.h"

namespace flexsn {

/// Of emit_cuda_reduce.
std::vector<std::string> sum_entries();

/// One launch: [outer, n, inner, tail] becomes [outer, inner] where it is whole, else the tail is 1 and
/// [outer, n, inner] becomes [outer, ceil(n / cuda_reduce_block), inner].
struct ReduceLaunch {
  std::int64_t outer = 1, n = 1, inner = 1, tail = 1;
  bool whole = false;

  std::int64_t left() const;  ///< of n
  std::int64_t results() const { return outer * left() * inner; }
  bool operator==(const ReduceLaunch&) const = default;
};

/// May backward leave one sum for each `block` elements, whose tree is a part of that of the parameter?
bool sums_by_blocks(const Shape& step, const Shape& param, std::int64_t block);

/// How the gradient of one parameter is made.
struct SumPlan {
  std::vector<ReduceLaunch> launches;
  std::int64_t rows = 1;        ///< T where the parameter changes with time
  std::int64_t row = 1;         ///< entries of a row that backward writes
  bool direct = false;          ///< backward writes the gradient itself
  std::int64_t bytes = 0;       ///< of scratch: what backward writes, then what the first launch makes of it
  std::int64_t results_at = 0;  ///< where in it that starts
};
/// `block`: elements of which backward leaves one sum; 1: it leaves values of each element.
SumPlan sum_plan(const Buffer& buffer, const ParamGradient& gradient, const Shape& step, std::int64_t steps,
                 std::int64_t block);

/// The same in bytes and launches.
CudaSums sums_of(const SumPlan& plan, const Buffer& buffer, const ParamGradient& gradient);

/// Queues what comes after backward.
void finish_sums(const Cuda& cuda, const Gpu& gpu, void* stream, const Buffer& buffer, const SumPlan& plan,
                 const ParamGradient& gradient, void* scratch);

/// Queues the gradient of a run without steps or elements: zeros.
void zero_gradient(const Cuda& cuda, const Gpu& gpu, void* stream, const Buffer& buffer, std::int64_t steps,
                   const ParamGradient& gradient);

}  // namespace flexsn
