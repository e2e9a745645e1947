#include "expand.h"

#include "build.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

bool has_expanded_row(const Graph& graph) {
  for (const Node& node : graph.nodes)
    if (node.op != Op::constant && node.op != Op::argument && row_of(node.op).is_expanded()) return true;
  return false;
}

Id expand_node(Graph& out, const Node& node) {
  if (node.op == Op::constant || node.op == Op::argument) return out.append(node);
  const Row& row = row_of(node.op);
  if (!row.is_expanded()) return out.append(node);
  V operands[max_arity];
  for (int i = 0; i < row.arity; ++i) operands[i] = {&out, node.operands[i]};
  return row.meaning.expand(operands).id;
}

}  // namespace

Graph expand(const Graph& graph) {
  // An expansion may be written with rows that expand in turn.
  Graph current = values_only(graph);
  do {
    current = rewrite(current, [](Graph& out, const Node& node) { return expand_node(out, node); });
  } while (has_expanded_row(current));
  current.expanded = true;
  return without_dead_code(current);
}

}  // namespace flexsn
