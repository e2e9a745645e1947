#include "verify.h"

#include <set>

#include "error.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph) {}

  void run() {
    if (graph_.debug.size() != graph_.nodes.size()) fail("names and nodes differ in number", {});
    for (std::size_t id = 0; id < graph_.nodes.size(); ++id) check_node(static_cast<Id>(id));
    check_arguments();
    check_results();
  }

 private:
  [[noreturn]] void fail(const std::string& message, const Location& location) const {
    const std::string where =
        location.file < static_cast<int>(graph_.files.size()) ? place(graph_, location) : "";
    user_error("neuron '", graph_.name, "': ", message, where.empty() ? "" : join(" (", where, ")"));
  }

  std::string called(Id id) const {
    const std::string& name = graph_.debug_at(id).name;
    return name.empty() ? join("value ", id) : join("value '", name, "'");
  }

  void check_node(Id id) const {
    const Node& node = graph_.at(id);
    const Location& location = graph_.debug_at(id).location;
    if (node.op >= Op::count) fail(join(called(id), " has an unknown op"), location);
    const int arity = node.op == Op::constant || node.op == Op::argument ? 0 : row_of(node.op).arity;
    for (int i = 0; i < max_arity; ++i) {
      const Id operand = node.operands[i];
      if (i >= arity ? operand != no_id : operand < 0 || operand >= id)
        fail(join(called(id), ": operand ", i + 1, " of '", name_of(node.op), "' is not an earlier value"),
             location);
    }
    if (node.op == Op::constant) return check_constant(id);
    if (node.op == Op::argument) {
      if (node.immediate >= graph_.arguments.size())
        fail(join(called(id), " is an argument that does not exist"), location);
      return;
    }
    check_row(id);
  }

  void check_row(Id id) const {
    const Node& node = graph_.at(id);
    const Row& row = row_of(node.op);
    const Location& location = graph_.debug_at(id).location;
    Type types[max_arity] = {};
    for (int i = 0; i < row.arity; ++i) types[i] = graph_.at(node.operands[i]).type;
    const std::optional<Type> type = result_type(row, types);
    if (!type) fail(join(called(id), ": ", type_mismatch(row, types)), location);
    if (*type != node.type)
      fail(join(called(id), ": the result of '", row.name, "' is ", name_of(*type), ", not ",
                name_of(node.type)),
           location);
    if (node.immediate != 0)
      fail(join(called(id), ": '", row.name, "' carries data it cannot have"), location);
    if (row.raw && !graph_.expanded)
      fail(join(called(id), ": '", row.name,
                "' reads the bits of a NaN, which differ between machines; use 'bits' or 'copysign'"),
           location);
    if (row.is_expanded() && graph_.expanded)
      fail(join(called(id), ": '", row.name,
                "' is not a basic op, but the graph is marked expanded; remove the mark"),
           location);
  }

  void check_constant(Id id) const {
    const Node& node = graph_.at(id);
    const bool fits =
        node.type == Type::f64 || (node.type == Type::b1 ? node.immediate <= 1 : node.immediate >> 32 == 0);
    if (!fits)
      fail(join(called(id), ": a constant has more bits than ", name_of(node.type)),
           graph_.debug_at(id).location);
  }

  void check_arguments() const {
    std::set<std::string> names;
    std::set<std::pair<Role, int>> gradients;
    std::size_t argument_nodes = 0;
    for (const Node& node : graph_.nodes) argument_nodes += node.op == Op::argument;
    if (argument_nodes != graph_.arguments.size())
      fail("the number of arguments differs from the number of their nodes", {});
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
      const Argument& argument = graph_.arguments[i];
      if (!argument.name.empty() && argument.name.find_first_not_of("0123456789") == std::string::npos)
        fail(join("the name '", argument.name,
                  "' is a number, which is how values without a name are called; "
                  "choose another"),
             argument.location);
      if (!argument.name.empty() && !names.insert(argument.name).second)
        fail(join("the name '", argument.name, "' is used twice; every argument needs a name of its own"),
             argument.location);
      const bool has_node = argument.value >= 0 && argument.value < static_cast<Id>(graph_.nodes.size()) &&
                            graph_.at(argument.value).op == Op::argument &&
                            graph_.at(argument.value).immediate == i;
      if (!has_node) fail(join("argument '", argument.name, "' has no node"), argument.location);
      if (graph_.at(argument.value).type != value_type(argument.mem))
        fail(join("argument '", argument.name, "' is ", name_of(argument.mem), " in memory but its value is ",
                  name_of(graph_.at(argument.value).type)),
             argument.location);
      if (argument.per_step && argument.role != Role::param)
        fail(join("'", argument.name, "' is per_step but not a param"), argument.location);
      if (argument.has_default &&
          !(argument.initial >= argument.range.low && argument.initial <= argument.range.high))
        fail(join("the default ", argument.initial, " of param '", argument.name, "' is outside its range [",
                  argument.range.low, ", ", argument.range.high, "]; change the one or the other"),
             argument.location);
      if (!fits(argument.initial, argument.mem))
        fail(join(argument.role == Role::state ? "the initial value " : "the default ", argument.initial,
                  " of '", argument.name, "' does not fit ", name_of(argument.mem),
                  "; write one that does, or change the type"),
             argument.location);
      check_gradient_argument(argument);
      if (argument.of >= 0 && !gradients.emplace(argument.role, argument.of).second)
        fail(join("gradient '", argument.name, "' is of what another gradient is of already; remove one"),
             argument.location);
    }
  }

  /// May memory of this type start with this number? Floats are rounded, but not to infinity; the rest is
  /// exact.
  static bool fits(double value, Mem mem) {
    if (value != value || std::isinf(value)) return value_type(mem) == Type::f32 || mem == Mem::f64;
    const double stored = Array(mem, {1}, value)[0];
    return value_type(mem) == Type::f32 || mem == Mem::f64 ? std::isfinite(stored) : stored == value;
  }

  void check_gradient_argument(const Argument& argument) const {
    if (argument.role != Role::grad_output && argument.role != Role::grad_next) return;
    const bool of_output = argument.role == Role::grad_output;
    const std::size_t count = of_output ? graph_.results.size() : graph_.arguments.size();
    const bool exists = argument.of >= 0 && static_cast<std::size_t>(argument.of) < count &&
                        (of_output ? graph_.results[argument.of].gives == Gives::output
                                   : graph_.arguments[argument.of].role == Role::state);
    if (!exists)
      fail(join("gradient '", argument.name, "' is of ", of_output ? "an output" : "a state",
                " that does not exist"),
           argument.location);
    const std::string what =
        join(of_output ? "output '" : "state '",
             of_output ? graph_.results[argument.of].name : graph_.arguments[argument.of].name, "'");
    const Mem mem = of_output ? graph_.results[argument.of].mem : graph_.arguments[argument.of].mem;
    check_carries_gradient(what, mem, argument.location);
    const Mem carried = of_output ? mem : gradient_memory(graph_.arguments[argument.of]);
    if (!of_output && argument.mem != carried)
      fail(join("gradient '", argument.name, "' is ", name_of(argument.mem), " but gradients of ", what,
                ", which is ", name_of(mem), ", are carried in ", name_of(carried), "; declare it so"),
           argument.location);
    if (value_type(argument.mem) != value_type(mem))
      fail(join("gradient '", argument.name, "' is ", name_of(argument.mem), " but ", what, " is ",
                name_of(mem), "; a gradient has the type of what it is of"),
           argument.location);
  }

  void check_carries_gradient(const std::string& what, Mem mem, const Location& location) const {
    const Type type = value_type(mem);
    if (type != Type::f32 && type != Type::f64)
      fail(join(what, " is ", name_of(mem), ", which carries no gradient; remove the gradient"), location);
  }

  void check_results() const {
    std::set<std::string> names;
    std::set<std::pair<Gives, int>> given;
    for (const Result& result : graph_.results) {
      if (result.value < 0 || result.value >= static_cast<Id>(graph_.nodes.size()))
        fail("a result has no value", result.location);
      if (result.gives == Gives::output) {
        if (!result.name.empty() && !names.insert(result.name).second)
          fail(join("output '", result.name, "' is given twice; every output needs a name of its own"),
               result.location);
      } else {
        check_result_of(result);
        if (!given.emplace(result.gives, result.of).second)
          fail(join(result.gives == Gives::next ? "state '" : "the gradient of '",
                    graph_.arguments[result.of].name,
                    result.gives == Gives::next ? "' is updated twice; give one next value"
                                                : "' is given twice"),
               result.location);
      }
      check_memory(result);
    }
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
      const Argument& argument = graph_.arguments[i];
      if (argument.role == Role::state && !given.contains({Gives::next, static_cast<int>(i)}))
        fail(join("state '", argument.name, "' is never updated; give it a next value"), argument.location);
    }
  }

  void check_result_of(const Result& result) const {
    if (result.of < 0 || static_cast<std::size_t>(result.of) >= graph_.arguments.size())
      fail("a result is of an argument that does not exist", result.location);
    const Argument& argument = graph_.arguments[result.of];
    if (result.gives == Gives::next && argument.role != Role::state)
      fail(join("'", argument.name, "' is not a state; only a state has a next value"), result.location);
    if (result.gives == Gives::next && result.mem != argument.mem)
      fail(join("the next value of '", argument.name, "' has another memory type than the state"),
           result.location);
    if (result.gives == Gives::grad) {
      if (argument.role == Role::grad_output || argument.role == Role::grad_next)
        fail("a gradient of a gradient is not supported", result.location);
      check_carries_gradient(join("'", argument.name, "'"), argument.mem, result.location);
      if (result.mem != gradient_memory(argument))
        fail(join("the gradient of '", argument.name, "' must be ", name_of(gradient_memory(argument)),
                  ", found ", name_of(result.mem)),
             result.location);
    }
  }

  /// The value's type fits its memory, and what memory cannot hold exactly was rounded before.
  void check_memory(const Result& result) const {
    const std::string what = result.gives == Gives::output ? join("output '", result.name, "'")
                             : result.gives == Gives::next
                                 ? join("state '", graph_.arguments[result.of].name, "'")
                                 : join("the gradient of '", graph_.arguments[result.of].name, "'");
    const Node& node = graph_.at(result.value);
    if (node.type != value_type(result.mem))
      fail(join(what, " is ", name_of(result.mem), " but its ",
                result.gives == Gives::next ? "update" : "value", " has type ", name_of(node.type),
                "; convert the value or change the type"),
           result.location);
    if (holds(node, result.mem)) return;
    fail(join(what, " is ", name_of(result.mem),
              " in memory but its value is not rounded to it; end it with round_", name_of(result.mem)),
         result.location);
  }

  bool holds(const Node& node, Mem mem) const {
    if (mem != Mem::f16 && mem != Mem::bf16 && mem != Mem::u8) return true;
    if (node.op == Op::argument) return graph_.arguments[node.immediate].mem == mem;
    if (node.op == Op::select) {
      const Node &one = graph_.at(node.operands[1]), &other = graph_.at(node.operands[2]);
      return one.op == Op::constant && other.op == Op::constant && holds(one, mem) && holds(other, mem);
    }
    const Op rounding = mem == Mem::f16 ? Op::round_f16 : mem == Mem::bf16 ? Op::round_bf16 : Op::round_u8;
    if (node.op == Op::to_f32 || node.op == Op::to_i32) return graph_.at(node.operands[0]).type == Type::b1;
    if (node.op != Op::constant) return node.op == rounding;
    const double value = number_of(node.type, node.immediate);
    if (value != value) return true;
    if (mem == Mem::u8) return value >= 0 && value <= 255;
    const float f = static_cast<float>(value);
    return (mem == Mem::f16 ? exact::from_f16(exact::to_f16(f)) : exact::from_bf16(exact::to_bf16(f))) == f;
  }

  const Graph& graph_;
};

/// The nodes as they stand; unlike print, this holds for any graph.
std::string dump(const Graph& graph) {
  std::string text;
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    const Node& node = graph.nodes[id];
    text +=
        join(id, " = ", node.op < Op::count ? name_of(node.op) : "?", " ", node.operands[0], " ",
             node.operands[1], " ", node.operands[2], " #", node.immediate, " : ", name_of(node.type), "\n");
  }
  return text;
}

}  // namespace

void verify(const Graph& graph) { Verifier(graph).run(); }

Graph verified(Graph graph, const char* pass) {
  try {
    verify(graph);
  } catch (const UserError& error) {
    internal_error(join("the pass '", pass, "' made an illegal graph: ", error.what(), "\n", dump(graph)),
                   std::source_location::current());
  }
  return graph;
}

}  // namespace flexsn
