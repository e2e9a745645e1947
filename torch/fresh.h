// New tensors that a kernel is about to fill.
#pragma once

#include <ATen/core/Tensor.h>

namespace flexsn {

/// An uninitialised tensor. A large one on the CPU asks the system for large pages: most of the time of its
/// first writing goes into page faults otherwise.
at::Tensor fresh(at::IntArrayRef shape, at::ScalarType type, at::Device device);

}  // namespace flexsn
