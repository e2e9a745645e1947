// The kernels whose CUDA text is tested: built-in neurons, odd ones, random ones.
#pragma once

#include "emit_cuda.h"

namespace flexsn::test {

struct CudaCase {
  std::string what;
  Plan plan;
  std::vector<bool> present;
  CudaOptions options;

  CudaModule module() const { return emit_cuda(plan, present, options); }
  /// Steps between checkpoints, or those that are loaded at once.
  int segment() const { return plan.segment > 0 ? plan.segment : options.unroll; }
};

/// Built-in neurons (none named: all), each kind, f32; vectors of 1, 2 and 4 elements, segments of 2 to 8
/// steps.
std::vector<CudaCase> neuron_cases(std::vector<std::string> names = {});
/// Other types, and parameters of every map.
std::vector<CudaCase> type_cases();
/// Choices between constants of which one is -0, or becomes it.
Neuron choices();
/// It, a neuron with states of all types, indices, gates for each step, and names that C++ does not take, and
/// one whose steps are rebuilt in pieces.
std::vector<CudaCase> odd_cases();
/// For each type of value a step with all basic rows.
std::vector<CudaCase> row_cases();
std::vector<CudaCase> random_cases(std::uint64_t first_seed, int count);

}  // namespace flexsn::test
