#include "widen.h"

#include "build.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

Mem wide(Mem mem) { return is_float(value_type(mem)) ? Mem::f64 : mem; }

bool reads_bits(Op op) {
  return op == Op::bits || op == Op::from_bits || op == Op::from_words || op == Op::raw_bits ||
         op == Op::raw_high || op == Op::raw_low || op == Op::raw_copysign;
}

Id widened_node(Graph& out, Node node) {
  if (node.op == Op::constant && node.type == Type::f32)
    return constant(out, Type::f64, number_of(node.type, node.immediate)).id;
  if (node.op == Op::argument) node.type = value_type(out.arguments[node.immediate].mem);
  if (node.op == Op::constant || node.op == Op::argument) return out.append(node);
  const bool from_float = node.operands[0] != no_id && is_float(out.at(node.operands[0]).type);
  const bool rounds = node.op == Op::round_f16 || node.op == Op::round_bf16;
  const bool converts = node.op == Op::to_f32 || node.op == Op::to_f64;
  if (rounds || (converts && from_float)) return node.operands[0];
  if (converts) node.op = Op::to_f64;
  const Row& row = row_of(node.op);
  if (row.is_leaf()) return out.append(node);
  V operands[max_arity];
  for (int i = 0; i < row.arity; ++i) operands[i] = {&out, node.operands[i]};
  return apply(node.op, operands, row.arity).id;
}

}  // namespace

std::optional<Graph> widened(const Graph& graph) {
  Graph wide_arguments = graph;
  for (const Node& node : graph.nodes)
    if (reads_bits(node.op)) return {};
  for (Argument& argument : wide_arguments.arguments) argument.mem = wide(argument.mem);
  for (Result& result : wide_arguments.results) result.mem = wide(result.mem);
  return without_dead_code(
      rewrite(wide_arguments, [](Graph& out, const Node& node) { return widened_node(out, node); }));
}

}  // namespace flexsn
