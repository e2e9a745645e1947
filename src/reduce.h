// The one order in which the gradient of a parameter is summed; it depends on the shapes alone.
#pragma once

#include "bind.h"

namespace flexsn {

/// One dimension of a step, seen from a parameter: kept where the parameter has it, else summed away.
struct Dimension {
  std::int64_t size;
  bool kept;
};

/// The step's dimensions with those of size 1 dropped and neighbours of one kind merged, outermost first.
std::vector<Dimension> merged_dimensions(const Shape& step, const Shape& param);

/// Sums `values` (f32 or f64, one for each element of a step of shape `step`, row-major) down to the shape
/// `param`, which broadcasts to it from the right. Dimensions of size 1 count for nothing; each of the others
/// is kept or reduced; neighbours of one kind are merged; each reduced one, the innermost first, is summed by
/// a tree over neighbouring pairs: a[i] = a[2i] + a[2i+1], an odd last one is copied. Any aligned block of
/// 2^m elements is then a complete subtree, so tiles, vectors, blocks and threads of any size give the same
/// bits. With no elements the sum is +0.
template <class F>
std::vector<F> reduce(std::vector<F> values, const Shape& step, const Shape& param);

}  // namespace flexsn
