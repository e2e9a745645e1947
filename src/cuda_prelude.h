// The functions that generated CUDA C++ calls: arithmetic that C++ leaves open, half types, rows, sums.
#pragma once

#include <string>

namespace flexsn {

/// The definitions of what `text` uses of them, and of what those use.
std::string cuda_prelude(const std::string& text);

}  // namespace flexsn
