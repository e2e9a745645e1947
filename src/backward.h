// The scan backward through time in the interpreter: what every training kernel must compute.
#pragma once

#include "interpret.h"

namespace flexsn {

/// One backward run of a joint graph; everything stands in the order of its arguments or results.
struct BackwardScan {
  std::int64_t steps = 0;
  std::int64_t elements = 0;
  std::int64_t first_step = 0;
  /// Inputs, first states, parameters, gradients of outputs (a row a step); for the gradient of a new state
  /// the gradients that arrive at the sequence of states, where there are any (data is null otherwise).
  std::vector<Source> sources;
  /// For the gradient of a new state: the gradient that arrives at the last state, where there is one.
  std::vector<Source> last;
  /// Where a gradient goes, null where it is not wanted: of an input a row a step, of a state the gradient of
  /// the first state, of a parameter the sum over time for each element, of a per-step one a row a step.
  std::vector<void*> gradients;
};

/// Runs `joint` from the last step to the first. The gradient of a state starts as what arrives at the last
/// state (assigned), and what arrives at step t is added to it; an absent gradient takes part in no sum, and
/// where nothing has arrived yet it is -0, which no sum can see. Sums over time start at -0 as well.
void interpret_backward(const ir::Graph& joint, const BackwardScan& scan);

}  // namespace flexsn
