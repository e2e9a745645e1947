// New tensors that a kernel is about to fill.
#pragma once

#include <ATen/core/Tensor.h>

namespace flexsn {

/// An uninitialised tensor. A large one on the CPU lies on large pages, and where tensors of its size are
/// gone on theirs: most of the time of its first writing would go into page faults otherwise.
at::Tensor fresh(at::IntArrayRef shape, at::ScalarType type, at::Device device);

}  // namespace flexsn
