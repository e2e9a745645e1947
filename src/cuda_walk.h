// A thread's way through time as CUDA C++.
#pragma once

#include "cuda_scope.h"

namespace flexsn {

/// The functions load, run_steps and walk, those between them, and the structs they share.
std::string cuda_walk(const CudaScope& scope);

}  // namespace flexsn
