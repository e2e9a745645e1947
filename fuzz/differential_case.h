// One case of differential fuzzing: a neuron, its data, and how it is to be run and trained.
#pragma once

#include "ir.h"

namespace flexsn::fuzz {

/// Case `number` of a seed is the same on every machine.
struct Case {
  ir::Graph graph;  ///< a legal step; every argument and output has a name that nothing else has
  /// A half-typed last state's gradient arrives with values that the state's own type holds.
  Arguments arguments = {};
  Arriving arriving = {};                ///< empty: there is nothing to train
  std::vector<std::string> wanted = {};  ///< the gradients that a run of backward is to give
  Training training = {};                ///< the plan that kernels are compiled with
  std::int64_t padding = 0;              ///< elements between the rows of a sequence
  bool infers = false;                   ///< kernels for inference are made although it trains
  std::int64_t cut = 0;                  ///< where the sequence is run in two chunks

  std::int64_t steps() const { return *arguments.steps; }
  const std::vector<std::int64_t>& shape() const { return *arguments.shape; }
  bool trains() const { return !arriving.outputs.empty() || !arriving.states.empty(); }
};

Case draw_case(std::uint64_t seed, std::uint64_t number);

/// The array of an argument: what was given, else one number for its default or initial value.
Array array_of(const Case& one, const ir::Argument& argument);

/// The neuron as `.fsn`, with the data and the way of running in comments.
std::string as_text(const Case& one);

}  // namespace flexsn::fuzz
