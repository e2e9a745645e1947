// explain: what a run of a neuron will do, in numbers and in words. And the lists of what there is.
#include <algorithm>

#include "compile.h"
#include "error.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

std::string counted(int count, std::string_view what) {
  return join(count, " ", what, count == 1 ? "" : "s");
}

std::string words_of(const Graph& graph, Role role) {
  std::string text;
  for (const Argument& argument : graph.arguments)
    if (argument.role == role)
      text += join(text.empty() ? "" : ", ", argument.name, " (", name_of(argument.mem),
                   argument.per_step ? ", one a step" : "", ")");
  return text.empty() ? "none" : text;
}

std::string operands_of(const Row& row) {
  const Sig& sig = row.meaning.sig;
  if (row.is_leaf()) return "() -> i32";
  std::string text = "(";
  for (int i = 0; i < row.arity; ++i) {
    const Slot slot = i == 0 ? sig.first : Slot::T;
    text += join(i ? ", " : "", slot == Slot::T ? "T" : name_of(type_of(slot, Type::f32)));
  }
  return join(text, ") -> ", sig.result == Slot::T ? "T" : name_of(type_of(sig.result, Type::f32)),
              ", T: ", names_of(sig.types));
}

}  // namespace

Explanation explain(const Neuron& neuron, Mem type) {
  const Graph step = neuron.graph(type);
  const Graph simplified = compile(step, Stage::simplified), expanded = compile(step, Stage::expanded);
  Explanation out;
  out.neuron = neuron.name();
  out.step_ops = op_count(step);
  out.simplified_ops = op_count(simplified);
  const std::vector<bool> once = hoistable(expanded);
  for (std::size_t id = 0; id < expanded.nodes.size(); ++id) {
    const Op op = expanded.nodes[id].op;
    if (op != Op::constant && op != Op::argument) (once[id] ? out.hoisted_ops : out.expanded_ops) += 1;
  }
  for (const Argument& argument : step.arguments) {
    if (argument.role == Role::input) out.bytes_read += static_cast<int>(size_of(argument.mem));
    if (argument.role == Role::state) out.state_bytes += static_cast<int>(size_of(argument.mem));
  }
  std::string outputs;
  for (const Result& result : step.results) {
    if (result.gives != Gives::output) continue;
    out.bytes_written += static_cast<int>(size_of(result.mem));
    outputs += join(outputs.empty() ? "" : ", ", result.name, " (", name_of(result.mem), ")");
  }
  out.text = join("neuron ", out.neuron, "\n  inputs   ", words_of(step, Role::input), "\n  states   ",
                  words_of(step, Role::state), "\n  params   ", words_of(step, Role::param), "\n  outputs  ",
                  outputs.empty() ? "none" : outputs, "\n  one step is ", counted(out.step_ops, "op"),
                  " as written, ", out.simplified_ops, " simplified, ", counted(out.expanded_ops, "exact op"),
                  " in all for each element and step\n  ", counted(out.hoisted_ops, "exact op"),
                  " depend on parameters only and run once a call\n  inference reads ",
                  counted(out.bytes_read, "byte"), " and writes ", counted(out.bytes_written, "byte"),
                  " for each element and step;\n  states take ", counted(out.state_bytes, "byte"),
                  " for each element\n  runs on the interpreter\n");
  return out;
}

std::vector<OpInfo> op_list() {
  std::vector<OpInfo> list;
  for (Op op : all_ops()) {
    const Row& row = row_of(op);
    list.push_back({row.name, operands_of(row),
                    row.is_leaf()       ? "leaf"
                    : row.is_expanded() ? "expanded"
                    : row.raw           ? "basic, in expansions only"
                                        : "basic",
                    row.doc});
  }
  return list;
}

std::vector<TargetInfo> target_list() {
  return {{"interpreter", true, "defines what every op and every backend computes; runs anywhere"}};
}

std::string_view version() { return FLEXSN_VERSION; }

}  // namespace flexsn
