// The time-scan plan: what one kernel loads, computes, carries and stores. All emitters read it and nothing
// else; execute.h runs it in the interpreter. T, N and row strides are not in it: they come with each run.
//
//   c = the carries' first values
//   for each segment of K steps (all of time where K is 0), from the last to the first where reverse:
//     where there is a rebuild: v = the checkpoint before the segment, for the first one the first states;
//       for k in the segment, forward: (kept[k], v) = rebuild(loads of step k, v)
//     for each step k of the segment, from the last to the first where reverse:
//       where a carry has add_sequence: c = c + add_sequence[k]
//       (stores, c, sums) = step(loads of step k, kept[k], c)
//     where a carry has a checkpoint and more segments follow: checkpoint[segment] = c
//   the carries' last values and the sums are stored
#pragma once

#include "interpret.h"

namespace flexsn {

/// How many rows a buffer has: one, T, or one for each segment but the last.
enum class Lead : std::uint8_t { once, per_step, per_segment };

/// What a buffer holds.
enum class Holds : std::uint8_t {
  input,
  first_state,
  param,
  output,
  state_sequence,
  last_state,
  saved,       ///< a value of each step, from forward to backward
  checkpoint,  ///< a state after each segment but the last
  grad_output,
  grad_last_state,
  grad_state_sequence,
  grad_input,
  grad_first_state,
  grad_param,
};

/// Memory that a run hands to a kernel: a pointer and a row stride in elements.
struct Buffer {
  Holds holds = Holds::input;
  int index = 0;  ///< which one: of an argument or result of the joint graph, or a number of its own (saved)
  std::string name = {};
  Mem mem = Mem::f32;
  Lead lead = Lead::once;
  Map map = Map::element;  ///< indexed: element n finds entry (n / inner) % count of a row
  bool write = false;
  bool optional = false;  ///< a run may leave it out: then it is not written, or what absence means is read
};

inline constexpr int no_buffer = -1;

/// A value that goes from step to step, kept in `type`.
struct Carry {
  Type type = Type::f32;
  int first = no_buffer;  ///< optional for gradients only: absent means -0, and 0 where there are no steps
  int last = no_buffer;   ///< its value after the last step that ran
  int sequence = no_buffer;
  int add_sequence = no_buffer;  ///< what arrives at each step and is added before it runs
  int checkpoint = no_buffer;    ///< read by the carries of a rebuild, written by all others
};

/// Where an argument of a body comes from, or a result goes.
struct Slot {
  enum class Kind : std::uint8_t { load, param, carry, keep, store, sum };
  Kind kind = Kind::load;
  int index = 0;  ///< of a buffer (load, param, store), carry, kept value or sum

  bool operator==(const Slot&) const = default;
};

/// One step as a graph of exact ops. What is loaded or kept is an input of it, what is carried a state.
struct Body {
  ir::Graph graph;
  std::vector<Slot> arguments, results;
};

/// A sum over time for each element, from -0 on, in the order in which the steps run.
struct Sum {
  Type type = Type::f32;
  int buffer = no_buffer;
};

struct Plan {
  Kind kind = Kind::inference;
  std::string neuron = {};
  bool reverse = false;
  int segment = 0;  ///< K, a power of two; 0 where time is not cut
  std::vector<Buffer> buffers = {};
  std::vector<Carry> carries = {};
  std::vector<Carry> rebuilt = {};
  std::vector<Type> kept = {};
  std::optional<Body> rebuild = {};
  Body step = {};
  std::vector<Sum> sums = {};
};

/// The plan in words; without names it is the identity of a kernel.
std::string print(const Plan& plan, bool names = true);

/// Throws an InternalError where the plan's parts do not fit together.
void verify(const Plan& plan);

}  // namespace flexsn
