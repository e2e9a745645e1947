// Parameter gradients: sums of rows over elements, in the order of src/reduce.h, fast.
#pragma once

#include "bind.h"
#include "pool.h"

namespace flexsn {

/// For each of `rows` rows of values (f32 or f64), one for each element of a step of shape `step`: their sums
/// in the shape `param`, one row after another. Same bits as reduce(), for any number of threads.
template <class F>
void param_sums(const F* values, std::int64_t row_stride, std::int64_t rows, const Shape& step,
                const Shape& param, F* sums, const Threads& threads = {});

}  // namespace flexsn
