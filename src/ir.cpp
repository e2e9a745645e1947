#include "ir.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>

#include "environment.h"
#include "error.h"
#include "ops.h"

namespace flexsn {

Type value_type(Mem mem) {
  switch (mem) {
    case Mem::f16:
    case Mem::bf16:
    case Mem::f32:
      return Type::f32;
    case Mem::f64:
      return Type::f64;
    case Mem::i32:
    case Mem::u8:
      return Type::i32;
    case Mem::b8:
      return Type::b1;
  }
  internal_error("unknown memory type", std::source_location::current());
}

std::size_t size_of(Mem mem) {
  switch (mem) {
    case Mem::u8:
    case Mem::b8:
      return 1;
    case Mem::f16:
    case Mem::bf16:
      return 2;
    case Mem::f32:
    case Mem::i32:
      return 4;
    case Mem::f64:
      return 8;
  }
  internal_error("unknown memory type", std::source_location::current());
}

namespace {
constexpr std::string_view type_names[] = {"f32", "f64", "i32", "bool"};
constexpr std::string_view mem_names[] = {"f16", "bf16", "f32", "f64", "i32", "u8", "bool"};
}  // namespace

std::string_view name_of(Type type) { return type_names[static_cast<int>(type)]; }
std::string_view name_of(Mem mem) { return mem_names[static_cast<int>(mem)]; }

std::optional<Mem> mem_named(std::string_view name) {
  for (int i = 0; i < static_cast<int>(std::size(mem_names)); ++i)
    if (mem_names[i] == name) return static_cast<Mem>(i);
  return {};
}

namespace ir {

Id Graph::append(const Node& node, Debug info) {
  nodes.push_back(node);
  debug.push_back(std::move(info));
  return static_cast<Id>(nodes.size()) - 1;
}

Mem natural_memory(Type type) {
  constexpr Mem natural[] = {Mem::f32, Mem::f64, Mem::i32, Mem::b8};
  return natural[static_cast<int>(type)];
}

V constant_bits(Graph& graph, Type type, std::uint64_t bits) {
  return {&graph, graph.append({.op = Op::constant, .type = type, .immediate = bits})};
}

V constant(Graph& graph, Type type, double value) { return constant_bits(graph, type, bits_of(type, value)); }

std::uint64_t bits_of(Type type, double value) {
  const IeeeEnvironment environment;
  switch (type) {
    case Type::f32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case Type::f64:
      return std::bit_cast<std::uint64_t>(value);
    case Type::i32:
      return static_cast<std::uint32_t>(exact::to_i32(value));
    case Type::b1:
      return value != 0;
  }
  internal_error("unknown type", std::source_location::current());
}

double number_of(Type type, std::uint64_t bits) {
  switch (type) {
    case Type::f32:
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    case Type::f64:
      return std::bit_cast<double>(bits);
    case Type::i32:
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(bits));
    case Type::b1:
      return bits != 0;
  }
  internal_error("unknown type", std::source_location::current());
}

V apply(Op op, const V* operands, int count) {
  const Row& row = row_of(op);
  internal_check(count == row.arity && count > 0, "a row got the wrong number of operands");
  Node node{.op = op};
  Type operand_types[max_arity] = {};
  for (int i = 0; i < count; ++i) {
    internal_check(operands[i].graph == operands[0].graph, "operands of two graphs met in one node");
    node.operands[i] = operands[i].id;
    operand_types[i] = operands[i].type();
  }
  const std::optional<Type> type = result_type(row, operand_types);
  if (!type)
    internal_error(join("operands of '", row.name, "' have types it does not take"),
                   std::source_location::current());
  node.type = *type;
  Graph& graph = *operands[0].graph;
  return {&graph, graph.append(node)};
}

V add_argument(Graph& graph, Argument argument) {
  const Node node{.op = Op::argument, .type = value_type(argument.mem), .immediate = graph.arguments.size()};
  argument.value = graph.append(node, {argument.name, argument.location});
  graph.arguments.push_back(std::move(argument));
  return {&graph, graph.arguments.back().value};
}

Mem gradient_memory(const Argument& argument) {
  if (argument.role == Role::input) return argument.mem;
  return value_type(argument.mem) == Type::f64 ? Mem::f64 : Mem::f32;
}

std::string place(const Graph& graph, const Location& location) {
  if (location.file < 0) return "";
  return join(graph.files[location.file], ":", location.line);
}

std::vector<int> argument_order(const Graph& graph) {
  std::vector<int> sorted(graph.arguments.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  const auto key = [&](int index) { return std::pair(graph.arguments[index].role, index); };
  std::sort(sorted.begin(), sorted.end(), [&](int a, int b) { return key(a) < key(b); });
  return sorted;
}

std::vector<int> result_order(const Graph& graph) {
  std::vector<int> rank(graph.arguments.size());
  const std::vector<int> arguments = argument_order(graph);
  for (std::size_t i = 0; i < arguments.size(); ++i) rank[arguments[i]] = static_cast<int>(i);
  std::vector<int> sorted(graph.results.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  const auto key = [&](int index) {
    const Result& result = graph.results[index];
    return std::tuple(result.gives, result.gives == Gives::output ? 0 : rank[result.of], index);
  };
  std::sort(sorted.begin(), sorted.end(), [&](int a, int b) { return key(a) < key(b); });
  return sorted;
}

std::vector<Id> live_order(const Graph& graph) {
  std::vector<Id> sorted;
  std::vector<bool> visited(graph.nodes.size());
  std::vector<std::pair<Id, int>> path;  // a node and how many of its operands are done
  const auto visit = [&](Id root) {
    if (visited[root]) return;
    visited[root] = true;
    path.emplace_back(root, 0);
    while (!path.empty()) {
      auto& [id, done] = path.back();
      const Id operand = done < max_arity ? graph.at(id).operands[done] : no_id;
      if (operand == no_id) {
        sorted.push_back(id);
        path.pop_back();
        continue;
      }
      ++done;
      if (!visited[operand]) {
        visited[operand] = true;
        path.emplace_back(operand, 0);
      }
    }
  };
  for (int index : argument_order(graph)) visit(graph.arguments[index].value);
  for (int index : result_order(graph)) visit(graph.results[index].value);
  return sorted;
}

Graph rewrite(const Graph& graph, const Emit& emit) {
  Graph out;
  out.name = graph.name;
  out.files = graph.files;
  out.arguments = graph.arguments;
  out.expanded = graph.expanded;
  std::vector<Id> moved(graph.nodes.size(), no_id);
  for (Id old : live_order(graph)) {
    Node node = graph.at(old);
    for (Id& operand : node.operands)
      if (operand != no_id) operand = moved[operand];
    const Id before = static_cast<Id>(out.nodes.size());
    const Id id = emit(out, node);
    moved[old] = id;
    const Debug& info = graph.debug_at(old);
    for (Id added = before; added < static_cast<Id>(out.nodes.size()); ++added)
      out.debug[added].location = info.location;
    if (id >= before) out.debug[id].name = info.name;
  }
  for (Argument& argument : out.arguments) argument.value = moved[argument.value];
  for (Result result : graph.results) {
    result.value = moved[result.value];
    out.results.push_back(std::move(result));
  }
  return out;
}

Graph without_dead_code(const Graph& graph) {
  return rewrite(graph, [](Graph& out, const Node& node) { return out.append(node); });
}

std::vector<bool> hoistable(const Graph& graph) {
  std::vector<bool> hoisted(graph.nodes.size());
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    const Node& node = graph.nodes[id];
    if (node.op == Op::argument) {
      const Argument& argument = graph.arguments[node.immediate];
      hoisted[id] = argument.role == Role::param && !argument.per_step;
      continue;
    }
    hoisted[id] = node.op == Op::constant || row_of(node.op).arity > 0;
    for (Id operand : node.operands)
      if (operand != no_id && !hoisted[operand]) hoisted[id] = false;
  }
  return hoisted;
}

bool has_gradients(const Graph& graph) {
  return std::any_of(graph.arguments.begin(), graph.arguments.end(), [](const Argument& argument) {
    return argument.role == Role::grad_output || argument.role == Role::grad_next;
  });
}

Graph values_only(const Graph& graph) {
  const Graph values = rewrite(graph, [](Graph& out, const Node& node) {
    return node.op == Op::with_grad || node.op == Op::detach ? node.operands[0] : out.append(node);
  });
  return without_dead_code(values);
}

namespace {

int is_op(const Node& node) { return node.op != Op::constant && node.op != Op::argument; }

/// Of the nodes that are not hoisted.
int sum_a_step(const Graph& graph, int (*of)(const Node&)) {
  const std::vector<bool> hoisted = hoistable(graph);
  int sum = 0;
  for (std::size_t id = 0; id < hoisted.size(); ++id)
    if (!hoisted[id]) sum += of(graph.nodes[id]);
  return sum;
}

}  // namespace

int op_count(const Graph& graph) {
  int count = 0;
  for (const Node& node : graph.nodes) count += is_op(node);
  return count;
}

int ops_a_step(const Graph& graph) { return sum_a_step(graph, is_op); }

int work_a_step(const Graph& graph) { return sum_a_step(graph, work_of); }

int work_of(const Node& node) {
  if (node.op == Op::constant || node.op == Op::argument) return 0;
  if (node.op == Op::fmod) return is_float(node.type) ? 60 : 12;
  return node.op == Op::div || node.op == Op::sqrt ? 12 : 1;
}

int work_of(const Graph& graph) {
  int work = 0;
  for (const Node& node : graph.nodes) work += work_of(node);
  return work;
}

}  // namespace ir
}  // namespace flexsn
