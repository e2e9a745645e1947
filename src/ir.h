// The graph of one time step, and of its joint form with gradients: the one structure all stages share.
//
// Nodes stand in the order of evaluation and refer to earlier ones by index. What decides a node's
// value is in Node and compared by ==; names and source lines stand beside it in Debug.
#pragma once

#include <array>

#include "flexsn/flexsn.h"

namespace flexsn::ir {

using Id = std::int32_t;
inline constexpr Id no_id = -1;
inline constexpr int max_arity = 3;

struct Node {
  Op op = Op::constant;
  Type type = Type::f32;
  std::array<Id, max_arity> operands = {no_id, no_id, no_id};
  std::uint64_t immediate = 0;  ///< bits of a constant, or the index of an argument

  bool operator==(const Node&) const = default;
};

/// A line of the user's code; `file` is an index into Graph::files.
struct Location {
  int file = -1;
  int line = 0;
};

struct Debug {
  std::string name;
  Location location;
};

/// What comes into a step: grad_output and grad_next are gradients that arrive at an output or new state.
enum class Role : std::uint8_t { input, state, param, grad_output, grad_next };

struct Argument {
  Role role = Role::input;
  std::string name = {};
  Mem mem = Mem::f32;
  Id value = no_id;          ///< its node
  int of = -1;               ///< grad_output: index among the outputs; grad_next: index of the state argument
  bool per_step = false;     ///< a parameter with an entry for each time step
  bool has_default = false;  ///< a parameter that may be left out
  double initial = 0;        ///< initial value of a state, default of a parameter
  Range range = {};          ///< what a parameter may be
  Location location = {};
};

/// What a step gives: outputs, the next value of each state, gradients of arguments.
enum class Gives : std::uint8_t { output, next, grad };

struct Result {
  Gives gives = Gives::output;
  std::string name = {};  ///< of an output
  int of = -1;            ///< next: index of the state argument; grad: index of the argument
  Mem mem = Mem::f32;
  Id value = no_id;
  Location location = {};
};

struct Graph {
  std::string name;
  std::vector<Argument> arguments;
  std::vector<Result> results;
  std::vector<Node> nodes;
  std::vector<Debug> debug;  ///< one for each node
  std::vector<std::string> files;
  bool expanded = false;  ///< only basic rows are left

  const Node& at(Id id) const { return nodes[id]; }
  const Debug& debug_at(Id id) const { return debug[id]; }
  Id append(const Node& node, Debug info = {});
};

/// A value while a graph is being built.
struct V {
  Graph* graph = nullptr;
  Id id = no_id;
  Type type() const { return graph->at(id).type; }
  bool exists() const { return graph != nullptr; }  // not operator bool: !x builds a bit_not
};

/// The memory type that holds a value as it is.
Mem natural_memory(Type type);
/// Can a value of this type carry a gradient?
inline bool is_float(Type type) { return type == Type::f32 || type == Type::f64; }
/// Adds a constant with these bits.
V constant_bits(Graph& graph, Type type, std::uint64_t bits);
/// Adds a constant, rounded to nearest.
V constant(Graph& graph, Type type, double value);
/// The bits of `value` as a constant of `type`.
std::uint64_t bits_of(Type type, double value);
/// The number that a constant's bits mean.
double number_of(Type type, std::uint64_t bits);
/// Adds a row's node; operand types must fit its signature.
V apply(Op op, const V* operands, int count);
/// Adds the node of a new argument.
V add_argument(Graph& graph, Argument argument);

/// What the gradient of an argument is in memory: that of an input has the input's type, those of states and
/// parameters are carried and summed in the type of the value.
Mem gradient_memory(const Argument& argument);

/// "file.cpp:12", or "" when the location is unknown.
std::string place(const Graph& graph, const Location& location);

/// The order in which a text lists arguments: by role, else as declared.
std::vector<int> argument_order(const Graph& graph);
/// The order in which a text lists results: outputs, next states, gradients.
std::vector<int> result_order(const Graph& graph);
/// All arguments and what the results need, in an order that depends on the graph's structure alone, not on
/// the order in which its nodes were made (C++ leaves open which operand is made first).
std::vector<Id> live_order(const Graph& graph);

/// A graph with the arguments of `graph` and, for its live nodes in that order, what `emit` gives: the node
/// of the new graph that stands for `node`, whose operands are already those of the new graph. Names and
/// locations of `graph` go to what `emit` appended.
using Emit = std::function<Id(Graph& out, const Node& node)>;
Graph rewrite(const Graph& graph, const Emit& emit);

/// The live nodes only, in live order.
Graph without_dead_code(const Graph& graph);

/// For each node: does it depend on nothing but constants and parameters that do not change with time?
std::vector<bool> hoistable(const Graph& graph);

/// Is it a joint graph: do gradients arrive?
bool has_gradients(const Graph& graph);

/// with_grad and detach replaced by their values, which is all that is left of them after differentiation.
Graph values_only(const Graph& graph);

/// The number of nodes that are ops.
int op_count(const Graph& graph);

/// How long exact ops take, in plain ones: a quotient or a root takes about as long as twelve, a remainder of
/// floats as sixty, on processors as on GPUs.
int work_of(const Node& node);
int work_of(const Graph& graph);
/// The same without what depends on parameters alone, which a run computes once.
int ops_a_step(const Graph& graph);
int work_a_step(const Graph& graph);

}  // namespace flexsn::ir
