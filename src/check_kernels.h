// The part of check that is about gradients, plans and kernels.
#pragma once

#include "ir.h"

namespace flexsn {

/// Gradients against differences, all plans against each other, kernels against the interpreter.
std::vector<Check> check_kernels(const Neuron& neuron, Mem type, std::uint64_t seed);

}  // namespace flexsn
