// partition: the joint graph in two, what forward computes and what backward computes, and how values get
// from one to the other. Two families are compared: values saved for each step by a minimum cut inside the
// step, and values rebuilt from a checkpoint of the states every K steps. Whichever is taken, the bits are
// the same.
#pragma once

#include "ir.h"

namespace flexsn {

/// What an argument or result of a part is, seen from the joint graph.
struct Port {
  enum class What : std::uint8_t {
    input,        ///< argument `index`
    state,        ///< the old value of state argument `index`, or its new one among the results
    param,        ///< argument `index`
    output,       ///< result `index`: given by forward, or read again by backward
    sequence,     ///< the sequence of new values of state argument `index`, read by backward
    saved,        ///< number `index` of the values that forward saves for each step
    kept,         ///< number `index` of the values that a rebuild keeps for the steps of its segment
    grad_output,  ///< argument `index`: the gradient that arrives at an output
    grad_state,   ///< the gradient of state argument `index`, which goes from step to step
    grad,         ///< the gradient of argument `index`, an input or a parameter
  };
  What what = What::input;
  int index = 0;

  bool operator==(const Port&) const = default;
};

/// A step graph: what is read each step is an input of it, what goes from step to step a state.
struct Part {
  ir::Graph graph;
  std::vector<Port> arguments, results;
};

/// A value of forward that backward reads from memory each step.
struct Handed {
  ir::Id value = ir::no_id;  ///< in the joint graph
  Port from = {};            ///< input, output, sequence or saved
  Mem mem = Mem::f32;
  std::string name = {};
};

struct Partition {
  int segment = 0;           ///< K; 0 where nothing is rebuilt
  std::vector<int> rebuilt;  ///< state arguments of which there are checkpoints
  std::vector<Handed> handed;
  std::vector<ir::Id> kept;        ///< values of the joint graph that a rebuild hands to the steps
  std::vector<ir::Id> recomputed;  ///< ops of forward that run again for backward
  Part forward, backward;
  std::optional<Part> rebuild;
  double bytes_kept = 0;  ///< alive between forward and backward per element and step, inputs included
  double cost = 0;        ///< of forward and backward, in bytes per element and step
  double floor = 0;       ///< bytes per element and step that any partition moves to hand values over
};

/// `joint` must be a verified joint graph. Throws a UserError where a result of forward needs a gradient, or
/// no partition keeps within the budget.
Partition partition(const ir::Graph& joint, const Training& training);

/// Forward alone: outputs and new states of `graph` and the saved ones of `handed`. Inputs and parameters
/// that nothing needs are left out.
Part forward_part(const ir::Graph& graph, const std::vector<Handed>& handed);

/// The memory type that holds a node's value as it is.
Mem memory_of(const ir::Graph& graph, ir::Id id);

}  // namespace flexsn
