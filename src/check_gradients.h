// The part of check that is about gradients: against differences, and all plans against each other.
#pragma once

#include "ir.h"

namespace flexsn {

std::vector<Check> check_gradients(const Neuron& neuron, Mem type, std::uint64_t seed);

}  // namespace flexsn
