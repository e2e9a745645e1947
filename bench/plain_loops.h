// A LIF neuron (tau = 2, threshold 1, reset to 0) as plain loops, time outside and elements inside: what one
// would write by hand, for kernels to be measured against.
#pragma once

#include <cstdint>

namespace flexsn::plain {

/// A part [first, last) of the elements of sequences [steps, elements].
struct Part {
  std::int64_t steps, elements, first, last;
};

/// Spikes `s` of inputs `x`; `v` is the state before and after.
void lif(const float* x, float* s, float* v, Part part);

/// The same from v = 0, with the potentials `h` that backward needs; `v` is room for a row.
void lif_forward(const float* x, float* s, float* h, float* v, Part part);

/// The gradient `gx` of the inputs from the one of the spikes, with the triangle surrogate; `gv` is room for
/// a row.
void lif_backward(const float* h, const float* gs, float* gx, float* gv, Part part);

}  // namespace flexsn::plain
