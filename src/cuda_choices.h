// Choices between constants that NVIDIA's assembler gets wrong: it gives 0 for -0 where it chooses between
// the constants -0 and 1 or -1. The compiler before it makes such a choice of others, by moving what is done
// with the chosen value into the choice: the negation of a choice between 1 and 0 is one.
#pragma once

#include "cuda_body.h"

namespace flexsn {

/// For each node of the body: is it a choice, or a truth value as a number, whose outcomes the compiler must
/// not know?
std::vector<bool> hidden_choices(const CudaBodyTask& task);

}  // namespace flexsn
