// Prints neurons as texts, for tests in other languages: one of each row and type, built-in ones, random
// ones.
//
//   flexsn_neuron_texts rows | built_in | random COUNT
//
// Before each text stands a line "== NAME".
#include <cstdlib>
#include <iostream>

#include "error.h"
#include "ops.h"
#include "random_graph.h"
#include "text.h"

namespace flexsn::test {
namespace {

using namespace ir;

void show_text(const std::string& name, const Graph& graph) {
  std::cout << "== " << name << '\n' << print(graph);
}

/// A step that is one row, with a state that sums it up where that is a number.
Graph one_row(Op op, Type t) {
  const Row& row = row_of(op);
  Graph graph;
  graph.name = row.name;
  V operands[max_arity];
  for (int i = 0; i < row.arity; ++i) {
    Argument argument{
        .role = Role::input, .name = join("x", i), .mem = natural_memory(operand_type(row, i, t))};
    operands[i] = add_argument(graph, argument);
  }
  V result;
  if (row.is_leaf()) {
    add_argument(graph, {.role = Role::input, .name = "x"});
    result = {&graph, graph.append({.op = op, .type = Type::i32})};
  } else {
    result = apply(op, operands, row.arity);
  }
  graph.results.push_back({.name = "y", .mem = natural_memory(result.type()), .value = result.id});
  return graph;
}

void rows() {
  for (Op op : all_ops()) {
    const Row& row = row_of(op);
    if (row.raw) continue;
    if (row.is_leaf()) show_text(row.name, one_row(op, Type::i32));
    for (Type t : {Type::f32, Type::f64, Type::i32, Type::b1})
      if (!row.is_leaf() && row.meaning.sig.types.has(t))
        show_text(join(row.name, " ", name_of(t)), one_row(op, t));
  }
}

void built_in() {
  for (const NeuronInfo& info : neuron_list())
    for (Mem type : {Mem::f32, Mem::f64, Mem::f16, Mem::bf16})
      show_text(join(info.name, " ", name_of(type)), neuron_named(info.name).graph(type));
}

void random(std::uint64_t count) {
  for (std::uint64_t seed = 0; count > 0; ++seed) {
    const Graph graph = random_graph(seed);
    bool has_input = false;
    for (const Argument& argument : graph.arguments) has_input |= argument.role == Role::input;
    if (!has_input) continue;
    show_text(join("seed ", seed), graph);
    --count;
  }
}

}  // namespace
}  // namespace flexsn::test

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  if (what == "rows") flexsn::test::rows();
  if (what == "built_in") flexsn::test::built_in();
  if (what == "random") flexsn::test::random(count > 2 ? std::strtoull(words[2], nullptr, 10) : 0);
  return std::cout.good() ? 0 : 1;
}
