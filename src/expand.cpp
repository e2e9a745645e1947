#include "expand.h"

#include <mutex>

#include "build.h"
#include "error.h"
#include "interpret.h"
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

int exact_work(const Graph& graph, Id id) {
  const Node& node = graph.at(id);
  const Row& row = row_of(node.op);
  if (!row.is_expanded()) return work_of(node);
  Type types[max_arity] = {};
  for (int i = 0; i < row.arity; ++i) types[i] = graph.at(node.operands[i]).type;
  const std::optional<Type> t = type_variable(row, types);
  internal_check(t.has_value(), "an illegal graph has no work");
  static std::mutex mutex;
  static std::map<std::pair<Op, Type>, int> known;
  {
    const std::lock_guard lock(mutex);
    const auto found = known.find({node.op, *t});
    if (found != known.end()) return found->second;
  }
  const int count = work_of(expand(expansion_of(node.op, *t)));
  const std::lock_guard lock(mutex);
  return known[{node.op, *t}] = count;
}

}  // namespace flexsn
