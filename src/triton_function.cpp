#include "triton_function.h"

#include <algorithm>

#include "compile.h"
#include "environment.h"
#include "error.h"
#include "triton_lines.h"

namespace flexsn {

using namespace ir;

std::string emit_triton_function(const Graph& step, const std::string& name,
                                 const std::vector<std::string>& arguments) {
  const IeeeEnvironment environment;  // constants may be subnormal
  const Graph graph = compile(step, Stage::expanded);
  for (const Argument& argument : graph.arguments)
    if (argument.role != Role::input)
      user_error("'", name, "': a device function takes inputs only; found ", argument.name);
  internal_check(arguments.size() == graph.arguments.size() && !arguments.empty(),
                 "a device function has a name for each argument");
  TritonNames names;
  std::vector<std::string> values(graph.nodes.size());
  std::string head, constants, body;
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    const Argument& argument = graph.arguments[a];
    std::string& value = values[argument.value];
    value = names.take(arguments[a]);
    head += join(a == 0 ? "" : ", ", value);
    body += join("    ", value, " = ", value, ".to(", triton_type(value_type(argument.mem)), ")\n");
  }
  const std::string& first = values[graph.arguments[0].value];
  std::map<std::pair<Type, std::uint64_t>, std::string> known;
  const auto constant = [&](Type type, std::uint64_t bits) {
    std::string& found = known[{type, bits}];
    if (!found.empty()) return found;
    found = names.take(join("c", known.size()));
    constants += join("    ", found, " = ", triton_block(first + ".shape", type, bits), "\n");
    return found;
  };
  for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id) {
    const Node& node = graph.at(id);
    if (node.op == Op::argument || node.op == Op::constant) continue;
    std::vector<TritonOperand> operands;
    for (Id operand : node.operands)
      if (operand != no_id)
        operands.push_back({values[operand], graph.at(operand).type, graph.at(operand).immediate});
    const std::string text = triton_expression(node.op, operands, constant);
    const std::string& wish = graph.debug_at(id).name;
    values[id] = names.take(wish.empty() ? join("t", id) : wish);
    body += join("    ", values[id], " = ", text, "\n");
  }
  std::string results;
  for (const Result& result : graph.results) {
    const Node& node = graph.at(result.value);
    const std::string value =
        node.op == Op::constant ? constant(node.type, node.immediate) : values[result.value];
    results += join(results.empty() ? "" : ", ", value);
  }
  return "import triton\nimport triton.language as tl\n\n\n" +
         with_triton_helpers(join("@triton.jit\ndef ", name, "(", head, "):\n", constants, body,
                                  "    return ", results, "\n"));
}

}  // namespace flexsn
