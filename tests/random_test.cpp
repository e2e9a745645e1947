// What must hold for every graph, tried on random ones; and broken passes, which must not go unnoticed.
//
// FLEXSN_RANDOM_GRAPHS says how many graphs are tried, FLEXSN_RANDOM_SEED runs the one with that seed alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <regex>
#include <set>

#include "build.h"
#include "error.h"
#include "expand.h"
#include "ops.h"
#include "random_graph.h"
#include "simplify.h"
#include "text.h"
#include "verify.h"

namespace flexsn::test {
namespace {

using namespace ir;

bool is_op(const Node& node) { return node.op != Op::constant && node.op != Op::argument; }
bool is_float(Type type) { return type == Type::f32 || type == Type::f64; }

// ---- the properties ------------------------------------------------------------------------------

/// What is put to the test: the core, or something broken in its place.
struct Passes {
  std::function<Graph(const Graph&)> simplify = flexsn::simplify;
  std::function<Graph(const Graph&)> expand = flexsn::expand;
  std::function<std::string(const Graph&, PrintStyle)> print = flexsn::print;
  std::function<Graph(const std::string&)> parse = [](const std::string& text) {
    return flexsn::parse(text, "text");
  };
};

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

/// Are these the same neuron, going by the graphs and not by their texts? Constants may be shared or not,
/// nodes may stand in any order; source lines, names of values and what no result needs do not count.
class SameNeuron {
 public:
  SameNeuron(const Graph& a, const Graph& b, bool names) : a_(a), b_(b), names_(names) {}

  bool operator()() {
    const std::vector<int> arguments_a = argument_order(a_), arguments_b = argument_order(b_);
    const std::vector<int> results_a = result_order(a_), results_b = result_order(b_);
    if (arguments_a.size() != arguments_b.size() || results_a.size() != results_b.size()) return false;
    if (a_.expanded != b_.expanded || (names_ && a_.name != b_.name)) return false;
    for (std::size_t i = 0; i < arguments_a.size(); ++i)
      if (!same_argument(a_.arguments[arguments_a[i]], b_.arguments[arguments_b[i]])) return false;
    for (std::size_t i = 0; i < results_a.size(); ++i)
      if (!same_result(a_.results[results_a[i]], b_.results[results_b[i]])) return false;
    return true;
  }

 private:
  bool same_argument(const Argument& x, const Argument& y) {
    same_.emplace(x.value, y.value);
    if (x.role != y.role || x.mem != y.mem || x.per_step != y.per_step) return false;
    return !names_ ||
           (x.name == y.name && x.has_default == y.has_default && same_bits(x.initial, y.initial) &&
            same_bits(x.range.low, y.range.low) && same_bits(x.range.high, y.range.high));
  }
  static bool same_bits(double x, double y) { return bits_of(Type::f64, x) == bits_of(Type::f64, y); }

  bool same_result(const Result& x, const Result& y) {
    if (x.gives != y.gives || x.mem != y.mem || (names_ && x.name != y.name)) return false;
    if (x.gives == Gives::next && !same_value(a_.arguments[x.of].value, b_.arguments[y.of].value))
      return false;
    return same_value(x.value, y.value);
  }

  bool same_value(Id x, Id y) {
    if (x == no_id || y == no_id) return x == y;
    if (same_.contains({x, y})) return true;
    const Node &from = a_.at(x), &to = b_.at(y);
    if (from.op != to.op || from.type != to.type || from.op == Op::argument) return false;
    if (from.immediate != to.immediate) return false;
    for (int i = 0; i < max_arity; ++i)
      if (!same_value(from.operands[i], to.operands[i])) return false;
    same_.emplace(x, y);
    return true;
  }

  const Graph &a_, &b_;
  const bool names_;
  std::set<std::pair<Id, Id>> same_;
};

/// Does every line that a text prints have a place in the user's code?
bool fully_located(const Graph& graph) {
  for (const Argument& argument : graph.arguments)
    if (argument.location.file < 0) return false;
  for (std::size_t id = 0; id < graph.nodes.size(); ++id)
    if (is_op(graph.nodes[id]) && graph.debug[id].location.file < 0) return false;
  for (const Result& result : graph.results)
    if (result.location.file < 0) return false;
  return true;
}

Graph without_names(Graph graph) {
  graph.name = "other";
  graph.debug.assign(graph.nodes.size(), {});
  for (Argument& argument : graph.arguments) argument.name = "", argument.location = {};
  for (Result& result : graph.results) result.name = "", result.location = {};
  return graph;
}

/// The same graph with its nodes in another order; operands still come first.
Graph reordered(const Graph& graph, std::uint64_t seed) {
  Dice dice(seed);
  Graph out = graph;
  out.nodes.clear();
  out.debug.clear();
  std::vector<Id> moved(graph.nodes.size(), no_id);
  const auto ready = [&](Id operand) { return operand == no_id || moved[operand] != no_id; };
  while (out.nodes.size() < graph.nodes.size()) {
    const Id id = dice.below(static_cast<int>(graph.nodes.size()));
    Node node = graph.at(id);
    if (moved[id] != no_id || !std::all_of(node.operands.begin(), node.operands.end(), ready)) continue;
    for (Id& operand : node.operands) operand = operand == no_id ? no_id : moved[operand];
    moved[id] = out.append(node, graph.debug_at(id));
  }
  for (Argument& argument : out.arguments) argument.value = moved[argument.value];
  for (Result& result : out.results) result.value = moved[result.value];
  return out;
}

void expect_text_round_trip(const Graph& graph, const Passes& passes) {
  constexpr PrintStyle named, located{.locations = true}, nameless{.names = false};
  const std::string identity = passes.print(graph, nameless);
  expect(identity == canonical(graph), "print without names is not the canonical form");
  for (PrintStyle style : {named, located, nameless}) {
    const Graph read = passes.parse(passes.print(graph, style));
    verify(read);
    expect(SameNeuron(graph, read, style.names)(), "a text read back is another neuron");
    expect(canonical(read) == identity, "a text read back has another canonical form");
    if (style.names)
      expect(passes.print(read, named) == passes.print(graph, named), "a text read back prints differently");
    if (!style.locations) continue;
    // Lines without a place get that in the text, so the second text has all of them.
    const std::string with_lines = passes.print(read, located);
    expect(passes.print(passes.parse(with_lines), located) == with_lines,
           "a text with locations read back prints differently");
    if (fully_located(graph)) expect(with_lines == passes.print(graph, located), "locations are not kept");
  }
}

void expect_same_bits(const Graph& graph, std::uint64_t seed, const Passes& passes) {
  const Graph simple = passes.simplify(graph);
  verify(simple);
  const Graph expanded = passes.expand(graph);
  verify(expanded);
  const Graph whole_pipeline = passes.simplify(passes.expand(simple));
  verify(whole_pipeline);

  const RandomRun data(graph, seed);
  const Outcome law = data.run(graph);
  const auto expect_law = [&](const Outcome& outcome, const char* what) {
    const std::string found = difference(law, outcome);
    expect(found.empty(), join(what, ": ", found));
  };
  expect_law(data.run(simple), "simplify");
  expect_law(data.run(expanded), "expand");
  expect_law(data.run(whole_pipeline), "simplify, expand, simplify");
  expect_law(data.run_in_chunks(graph), "two chunks");
}

/// What a graph is does not depend on names, lines or the order in which its nodes were made.
void expect_stable(const Graph& graph, std::uint64_t seed) {
  const Graph simple = simplify(graph);
  expect(simplify(simple).nodes == simple.nodes, "simplify is not idempotent");
  const Graph other = without_names(reordered(graph, seed));
  verify(other);
  expect(canonical(other) == canonical(graph),
         "names, lines or the order of nodes are part of the canonical form");
  expect(canonical(simplify(other)) == canonical(simple), "simplify depends on names or the order of nodes");
  const Graph expanded = expand(simple);
  expect(SameNeuron(expanded, parse(canonical(expanded), "text"), false)(),
         "an expanded text is another neuron");
}

/// Everything that must hold for the graph with this seed; says what does not, "" when all does.
std::string broken_property(std::uint64_t seed, const Passes& passes) {
  try {
    const Graph graph = random_graph(seed);
    verify(graph);
    expect_text_round_trip(graph, passes);
    expect_same_bits(graph, seed, passes);
    expect_stable(graph, seed);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

constexpr int shards = 8;  // which ctest can run side by side

class RandomProperties : public testing::TestWithParam<int> {
 protected:
  std::vector<std::uint64_t> seeds() const {
    const auto shard = static_cast<std::uint64_t>(GetParam());
    if (std::getenv("FLEXSN_RANDOM_SEED")) {
      const std::uint64_t seed = number("FLEXSN_RANDOM_SEED", 0);
      return seed % shards == shard ? std::vector{seed} : std::vector<std::uint64_t>{};
    }
    std::vector<std::uint64_t> mine;
    for (std::uint64_t seed = shard; seed < number("FLEXSN_RANDOM_GRAPHS", 20000); seed += shards)
      mine.push_back(seed);
    return mine;
  }

 private:
  static std::uint64_t number(const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
  }
};

TEST_P(RandomProperties, Hold) {
  for (std::uint64_t seed : seeds()) {
    const std::string broken = broken_property(seed, {});
    ASSERT_EQ(broken, "") << "run it again with FLEXSN_RANDOM_SEED=" << seed << "\n"
                          << print(random_graph(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, RandomProperties, testing::Range(0, shards));

// ---- the generator -------------------------------------------------------------------------------

constexpr std::uint64_t sample = 2000;

TEST(RandomGraph, IsDecidedByItsSeed) {
  EXPECT_EQ(print(random_graph(7), {.locations = true}), print(random_graph(7), {.locations = true}));
  EXPECT_NE(canonical(random_graph(7)), canonical(random_graph(8)));
}

TEST(RandomGraph, DrawsEverythingThereIs) {
  std::set<Op> rows;
  std::set<std::pair<Op, Type>> typed_rows;
  std::set<Type> types;
  std::set<std::pair<Role, Mem>> arguments;
  std::set<std::pair<Gives, Mem>> results;
  std::set<std::size_t> argument_counts, result_counts;
  bool per_step = false, no_steps = false, no_elements = false, several_blocks = false;
  for (std::uint64_t seed = 0; seed < sample; ++seed) {
    const Graph graph = random_graph(seed);
    for (const Node& node : graph.nodes) {
      rows.insert(node.op);
      types.insert(node.type);
    }
    for (const Argument& argument : graph.arguments) {
      arguments.emplace(argument.role, argument.mem);
      per_step |= argument.per_step;
    }
    for (const Result& result : graph.results) results.emplace(result.gives, result.mem);
    argument_counts.insert(graph.arguments.size());
    result_counts.insert(graph.results.size());
    const RandomRun data(graph, seed);
    no_steps |= data.steps() == 0;
    no_elements |= data.elements() == 0;
    several_blocks |= data.elements() > 512;
  }
  for (Op op : step_rows()) EXPECT_TRUE(rows.contains(op)) << name_of(op);
  EXPECT_EQ(rows.size(), step_rows().size() + 2);  // and constants and arguments
  EXPECT_EQ(types.size(), 4u);
  EXPECT_EQ(arguments.size(), 3u * 7u);
  EXPECT_EQ(results.size(), 2u * 7u);
  EXPECT_EQ(argument_counts.size(), 10u);  // 0 to 9
  EXPECT_GE(result_counts.size(), 7u);
  EXPECT_TRUE(per_step && no_steps && no_elements && several_blocks);
}

TEST(RandomGraph, MostFloatOutputsAreFiniteAndVary) {
  int alive = 0, total = 0;
  for (std::uint64_t seed = 0; seed < sample; ++seed) {
    const Graph graph = random_graph(seed);
    const RandomRun data(graph, seed);
    if (data.steps() * data.elements() < 4) continue;
    for (const Column& column : data.run(graph)) {
      if (!column.what.starts_with("output") || !is_float(value_type(column.sequence.type))) continue;
      ++total;
      alive += is_alive(column.sequence);
    }
  }
  std::cout << alive << " of " << total << " float outputs are finite and vary\n";
  EXPECT_GE(alive, total * 6 / 10);
}

// ---- seeded faults -------------------------------------------------------------------------------

using Pass = std::function<Graph(const Graph&)>;

/// The pass, after every node went through `edit`.
Pass after(const Emit& edit, const Pass& pass) {
  return [=](const Graph& graph) { return pass(rewrite(graph, edit)); };
}

Passes simplify_after(const Emit& edit) { return {.simplify = after(edit, flexsn::simplify)}; }

/// An edit of the nodes that are `op` on floats: `change` gives what stands for the node, no_id leaves it.
Passes float_rule(Op op, Id (*change)(Graph& out, const Node& node)) {
  return simplify_after([=](Graph& out, const Node& node) {
    const Id changed = node.op == op && is_float(node.type) ? change(out, node) : no_id;
    return changed != no_id ? changed : out.append(node);
  });
}

bool is_zero(const Graph& graph, Id id) {
  return graph.at(id).op == Op::constant && graph.at(id).immediate == 0;
}

Passes swapped_operands(Op op, int first) {
  return simplify_after([=](Graph& out, Node node) {
    if (node.op == op) std::swap(node.operands[first], node.operands[first + 1]);
    return out.append(node);
  });
}

Passes wrong_fold() {
  return simplify_after([](Graph& out, const Node& node) {
    const int arity = is_op(node) ? row_of(node.op).arity : 0;
    Type types[max_arity] = {};
    std::uint64_t bits[max_arity] = {};
    bool constants = arity > 0;
    for (int i = 0; i < arity; ++i) {
      const Node& operand = out.at(node.operands[i]);
      constants &= operand.op == Op::constant;
      types[i] = operand.type;
      bits[i] = operand.immediate;
    }
    if (!constants || !is_float(node.type)) return out.append(node);
    return constant_bits(out, node.type, evaluate(node.op, types, bits) + 1).id;
  });
}

/// The last op that another one uses and whose first operand has its type; that operand stands in for it.
Passes dropped_node() {
  return {.simplify = [](Graph graph) {
    Id dropped = no_id;
    for (const Node& user : graph.nodes)
      for (Id id : user.operands) {
        const Id inner = id == no_id ? no_id : graph.at(id).operands[0];
        if (inner != no_id && graph.at(inner).type == graph.at(id).type) dropped = std::max(dropped, id);
      }
    for (Node& user : graph.nodes)
      for (Id& id : user.operands)
        if (id == dropped && id != no_id) id = graph.at(dropped).operands[0];
    return flexsn::simplify(graph);
  }};
}

/// Common subexpressions, found by what `blind` leaves of a node.
Passes blind_cse(Node (*blind)(Node node)) {
  return {.simplify = [=](const Graph& graph) {
    std::vector<std::pair<Node, Id>> known;
    return flexsn::simplify(rewrite(graph, [&](Graph& out, const Node& node) {
      const Node key = blind(node);
      for (const auto& [other, id] : known)
        if (other == key) return id;
      const Id id = out.append(node);
      known.emplace_back(key, id);
      return id;
    }));
  }};
}

/// The first constant that the expansion brought in is one ulp off.
Passes wrong_expansion_constant() {
  return {.expand = [](const Graph& graph) {
    Graph expanded = flexsn::expand(graph);
    for (Node& node : expanded.nodes) {
      if (node.op != Op::constant || !is_float(node.type)) continue;
      if (std::find(graph.nodes.begin(), graph.nodes.end(), node) != graph.nodes.end()) continue;
      ++node.immediate;
      break;
    }
    return expanded;
  }};
}

/// The last state's update is computed from the first state's new value.
Passes updated_state_read() {
  return {.simplify = [](const Graph& graph) {
    std::vector<std::size_t> updates;
    for (std::size_t i = 0; i < graph.results.size(); ++i)
      if (graph.results[i].gives == Gives::next) updates.push_back(i);
    if (updates.size() < 2) return flexsn::simplify(graph);
    const Result &first = graph.results[updates.front()], &last = graph.results[updates.back()];
    const Id first_state = graph.arguments[first.of].value;
    Graph out = graph;
    std::vector<Id> moved;  // all nodes once more, with the new value in the place of the old
    for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id) {
      Node node = graph.at(id);
      for (Id& operand : node.operands)
        if (operand != no_id) operand = moved[operand];
      if (node.op == Op::argument)
        moved.push_back(id == first_state ? first.value : id);
      else
        moved.push_back(out.append(node));
    }
    out.results[updates.back()].value = moved[last.value];
    return flexsn::simplify(out);
  }};
}

Passes lost_rounding() {
  const Emit edit = [](Graph& out, const Node& node) {
    return node.op == Op::round_f16 || node.op == Op::round_bf16 ? node.operands[0] : out.append(node);
  };
  return {.expand = after(edit, flexsn::expand)};
}

Passes too_few_digits() {
  return {.print = [](const Graph& graph, PrintStyle style) {
    static const std::regex long_number("(\\d\\.\\d{5})\\d+");
    return std::regex_replace(flexsn::print(graph, style), long_number, "$1");
  }};
}

Passes unsigned_zero() {
  return {.parse = [](const std::string& text) {
    static const std::regex negative_zero("-0([,)\\s])");
    return flexsn::parse(std::regex_replace(text, negative_zero, "0$1"), "text");
  }};
}

TEST(RandomFaults, AreCaught) {
  const std::pair<const char*, Passes> faults[] = {
      {"constants folded one ulp off", wrong_fold()},
      {"sub with its operands swapped", swapped_operands(Op::sub, 0)},
      {"div with its operands swapped", swapped_operands(Op::div, 0)},
      {"lt with its operands swapped", swapped_operands(Op::lt, 0)},
      {"select with its branches swapped", swapped_operands(Op::select, 1)},
      {"a node dropped", dropped_node()},
      {"x + 0 -> x on floats", float_rule(Op::add,
                                          [](Graph& out, const Node& node) {
                                            return is_zero(out, node.operands[1])   ? node.operands[0]
                                                   : is_zero(out, node.operands[0]) ? node.operands[1]
                                                                                    : no_id;
                                          })},
      {"x * 0 -> 0 on floats", float_rule(Op::mul,
                                          [](Graph& out, const Node& node) {
                                            return is_zero(out, node.operands[1])   ? node.operands[1]
                                                   : is_zero(out, node.operands[0]) ? node.operands[0]
                                                                                    : no_id;
                                          })},
      {"x - x -> 0 on floats", float_rule(Op::sub,
                                          [](Graph& out, const Node& node) {
                                            return node.operands[0] == node.operands[1]
                                                       ? constant(out, node.type, 0).id
                                                       : no_id;
                                          })},
      {"CSE that ignores the immediate", blind_cse([](Node node) {
         if (node.op == Op::constant) node.immediate = 0;
         return node;
       })},
      {"CSE that ignores types", blind_cse([](Node node) {
         node.type = Type::f32;
         return node;
       })},
      {"CSE that takes maximum for minimum", blind_cse([](Node node) {
         if (node.op == Op::maximum) node.op = Op::minimum;
         return node;
       })},
      {"an expansion's constant one ulp off", wrong_expansion_constant()},
      {"an update that reads an updated state", updated_state_read()},
      {"roundings lost in expand", lost_rounding()},
      {"constants printed with six digits", too_few_digits()},
      {"-0 read as 0", unsigned_zero()},
  };
  constexpr std::uint64_t limit = 3000;
  for (const auto& [fault, passes] : faults) {
    std::string broken;
    std::uint64_t tried = 0;
    while (tried < limit && broken.empty()) broken = broken_property(tried++, passes);
    EXPECT_NE(broken, "") << fault << " went unnoticed in " << limit << " graphs";
    EXPECT_EQ(broken_property(tried - 1, {}), "") << fault << " is not what was noticed";
    std::cout << fault << ": caught after " << tried << " graphs: " << broken.substr(0, broken.find('\n'))
              << '\n';
  }
}

}  // namespace
}  // namespace flexsn::test
