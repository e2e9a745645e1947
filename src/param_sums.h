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

/// The gradient of a parameter of shape `param` from that of each element (f32 or f64 as the parameter's
/// value type), written in the parameter's own type; `to_stride` is in elements. Zero where there are no
/// `steps` or elements.
void store_param_gradient(const ir::Argument& argument, const void* values, std::int64_t row_stride,
                          std::int64_t steps, const Shape& step, const Shape& param, void* to,
                          std::int64_t to_stride, const Threads& threads);

}  // namespace flexsn
