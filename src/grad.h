// grad: reverse mode of one step. Every derivative comes from the op table.
#pragma once

#include "ir.h"

namespace flexsn {

/// What takes part in differentiation; by default everything that can carry a gradient.
struct GradRequest {
  std::optional<std::vector<bool>> arguments;  ///< for each argument: is its gradient wanted?
  std::optional<std::vector<bool>> results;    ///< for each output: does a gradient arrive there?
};

/// The joint graph: the step's results, and from the gradients that arrive at outputs and new states the
/// gradients of inputs, old states and parameters. A state that only depends on something wanted carries a
/// gradient as well, since it flows through time; what nothing wanted depends on is left out. with_grad and
/// detach have done their work and are gone.
/// Throws a UserError where no output and no state can carry a gradient to anything wanted.
ir::Graph grad(const ir::Graph& step, const GradRequest& request = {});

/// The joint graph without gradients: outputs and new states from inputs, states and parameters.
ir::Graph forward_of(const ir::Graph& joint);

}  // namespace flexsn
