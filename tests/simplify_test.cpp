// simplify makes graphs smaller and changes no bit. Every identity is tried on all rows and edge values that
// it could look for, so a new one is tested without a new test.
#include "simplify.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "accuracy.h"
#include "build.h"
#include "expand.h"
#include "text.h"
#include "verify.h"

namespace flexsn::test {
namespace {

using namespace ir;

constexpr Type types[] = {Type::f32, Type::f64, Type::i32, Type::b1};

bool is_constant(const Graph& graph, Id id) { return graph.at(id).op == Op::constant; }
bool is_argument(const Graph& graph, Id id) { return graph.at(id).op == Op::argument; }

/// All combinations of edge values of the arguments that are used (few each, where those are many).
std::vector<Values> edge_inputs(const Graph& graph) {
  std::vector<bool> used(graph.nodes.size());
  for (const Node& node : graph.nodes)
    for (Id operand : node.operands)
      if (operand != no_id) used[operand] = true;
  for (const Result& result : graph.results) used[result.value] = true;
  const auto count_used = std::count_if(graph.arguments.begin(), graph.arguments.end(),
                                        [&](const Argument& argument) { return used[argument.value]; });
  std::vector<Values> inputs(graph.arguments.size());
  std::size_t count = 1;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Values values = edge_values(value_type(graph.arguments[i].mem));
    if (!used[graph.arguments[i].value]) values.resize(1);
    if (count_used > 2) values.resize(std::min<std::size_t>(values.size(), count_used > 3 ? 6 : 14));
    // Each value of this argument beside each combination of those before it.
    for (std::size_t k = 0; k < i; ++k) {
      const Values block = inputs[k];
      for (std::size_t repeat = 1; repeat < values.size(); ++repeat)
        inputs[k].insert(inputs[k].end(), block.begin(), block.end());
    }
    for (std::uint64_t value : values) inputs[i].insert(inputs[i].end(), count, value);
    count *= values.size();
  }
  return inputs;
}

std::vector<Values> run_on(const std::vector<Values>& inputs, const Graph& graph) {
  return run_columns(graph, inputs, inputs.empty() ? 1 : static_cast<std::int64_t>(inputs[0].size()));
}

// ---- identities ----------------------------------------------------------------------------------

/// A graph with everything an identity could find in an operand: two arguments of each type, edge constants,
/// and each row on arguments and on constants.
class Pool {
 public:
  Pool() {
    for (Type type : types)
      for (const char* name : {"x", "y"}) {
        const std::string full_name = name + std::string(name_of(type));
        values_[static_cast<int>(type)].push_back(
            add_argument(graph_, {.name = full_name, .mem = memory_of(type)}).id);
      }
    const std::vector<Id> arguments[] = {values_[0], values_[1], values_[2], values_[3]};
    for (Type type : types)
      for (std::uint64_t bits : edge_values(type)) add(constant_bits(graph_, type, bits));
    for (const RowCase& inner :
         row_cases([](const RowCase& c) { return !c.row().raw && !c.row().is_leaf(); })) {
      const auto apply_to = [&](const auto& operand) {
        V operands[max_arity];
        for (int i = 0; i < inner.row().arity; ++i)
          operands[i] = operand(i, operand_type(inner.row(), i, inner.t));
        add(apply(inner.op, operands, inner.row().arity));
      };
      for (int first : {0, 1})
        apply_to(
            [&](int i, Type type) { return V{&graph_, arguments[static_cast<int>(type)][(i + first) % 2]}; });
      if (inner.row().arity == 1) continue;
      for (double constant_value : {0.0, 1.0})
        apply_to([&](int i, Type type) {
          return i == 0 ? V{&graph_, arguments[static_cast<int>(type)][0]}
                        : constant(graph_, type, i == 1 ? constant_value : 1 - constant_value);
        });
    }
  }

  Graph& graph() { return graph_; }
  const std::vector<Id>& values(Type type) const { return values_[static_cast<int>(type)]; }
  bool is_plain(Id id) const { return is_constant(graph_, id) || is_argument(graph_, id); }
  /// Removes what was added after the first `size` nodes.
  void shrink(std::size_t size) {
    graph_.nodes.resize(size);
    graph_.debug.resize(size);
    graph_.results.clear();
  }

 private:
  void add(V value) { values_[static_cast<int>(value.type())].push_back(value.id); }

  Graph graph_;
  std::vector<Id> values_[4];
};

/// The operands worth trying together: rows beside arguments and constants, or one row in several places; of
/// three operands one is an argument.
bool worth_trying(Pool& pool, const Node& node, int arity) {
  Op inner = Op::constant;
  int arguments = 0;
  for (int i = 0; i < arity; ++i) {
    const Node& operand = pool.graph().at(node.operands[i]);
    arguments += operand.op == Op::argument;
    if (pool.is_plain(node.operands[i])) continue;
    if (inner != Op::constant && inner != operand.op) return false;
    inner = operand.op;
  }
  return arity < 3 || arguments > 0;
}

/// Calls `visit` with every node of `op` for T = `t` that is worth trying.
template <class Visit>
void for_each_node(Pool& pool, const RowCase& row_case, const Visit& visit) {
  const Row& row = row_case.row();
  Node node{.op = row_case.op, .type = type_of(row.meaning.sig.result, row_case.t)};
  const auto choose = [&](const auto& self, int index) -> void {
    if (index == row.arity) {
      if (worth_trying(pool, node, row.arity)) visit(node);
      return;
    }
    for (Id id : pool.values(operand_type(row, index, row_case.t))) {
      node.operands[index] = id;
      self(self, index + 1);
    }
  };
  choose(choose, 0);
}

class EveryIdentity : public testing::TestWithParam<std::size_t> {};

TEST_P(EveryIdentity, AppliesSomewhereAndChangesNoBit) {
  const Identity& identity = identities()[GetParam()];
  Pool pool;
  Graph& graph = pool.graph();
  const std::size_t size = graph.nodes.size();
  int applied = 0;
  for (const RowCase& row_case : row_cases([&](const RowCase& c) { return c.op == identity.op; }))
    for_each_node(pool, row_case, [&](const Node& node) {
      V operands[max_arity];
      for (int i = 0; i < row_case.row().arity; ++i) operands[i] = {&graph, node.operands[i]};
      const V result = identity.apply(operands[0], operands[1], operands[2]);
      if (!result.exists()) return;
      ++applied;
      ASSERT_EQ(result.type(), node.type) << identity.text;
      const Id original = graph.append(node);
      for (Id id : {original, result.id})
        graph.results.push_back(
            {.name = id == original ? "before" : "after", .mem = memory_of(node.type), .value = id});
      const Graph both = without_dead_code(graph);
      verify(both);
      const std::vector<Values> values = run_on(edge_inputs(both), both);
      if (values[0] != values[1]) ADD_FAILURE() << identity.text << " changes bits in\n" << print(both);
      pool.shrink(size);
    });
  EXPECT_GT(applied, 0) << identity.text << " never applied: teach Pool what it looks for";
}

INSTANTIATE_TEST_SUITE_P(Identities, EveryIdentity, testing::Range(std::size_t{0}, identities().size()),
                         [](const auto& index) {
                           return std::string(row_of(identities()[index.param].op).name) + "_" +
                                  std::to_string(index.param);
                         });

// ---- whole graphs ----------------------------------------------------------------------------------

/// simplify(graph), after checking that it is legal, gives the same bits and cannot be simplified further.
Graph simplified(const Graph& graph) {
  const Graph result = simplify(graph);
  verify(result);
  const std::vector<Values> inputs = edge_inputs(graph);
  EXPECT_TRUE(run_on(inputs, result) == run_on(inputs, graph)) << "bits change from\n"
                                                               << print(graph) << print(result);
  EXPECT_EQ(simplify(result).nodes, result.nodes) << "simplified twice\n" << print(result);
  EXPECT_LE(op_count(result), op_count(graph));
  return result;
}

Graph simplified_text(const std::string& statements) {
  const Graph graph = parse("neuron n {\n" + statements + "\n}\n", "test");
  verify(graph);
  return simplified(graph);
}

class SimplifiedRow : public testing::TestWithParam<RowCase> {};

TEST_P(SimplifiedRow, KeepsEveryBitOfItsExpansionAndGradient) {
  const auto [op, t] = GetParam();
  simplified(graph_of(op, t));
  simplified(expand(graph_of(op, t)));
  if (t != Type::f32 && t != Type::f64) return;
  if (GetParam().row().raw || GetParam().row().vjp.zero) return;
  simplified(gradient_of(op, t));
  simplified(expand(gradient_of(op, t)));
}

INSTANTIATE_TEST_SUITE_P(Rows, SimplifiedRow,
                         testing::ValuesIn(row_cases([](const RowCase&) { return true; })),
                         testing::PrintToStringParamName());

TEST(Simplify, FoldsConstants) {
  const Graph graph = simplified_text(
      "%a = add f32(1), f32(2)\n%b = exp f32(0)\n%c = mul %a, %b\n%d = to_i32 %c\n"
      "output y = %c : f32\noutput z = %d : i32");
  EXPECT_EQ(op_count(graph), 0);
  EXPECT_EQ(graph.at(graph.results[0].value).immediate, bits_of(Type::f32, 3));
  EXPECT_EQ(graph.at(graph.results[1].value).immediate, 3u);
}

TEST(Simplify, FoldsNoLeaf) {
  EXPECT_EQ(
      op_count(simplified_text("%a = step_index\n%b = element_index\n%c = add %a, %b\noutput y = %c : i32")),
      3);
}

// The bits of a NaN are the machine's own, so a row that reads them must see the machine's.
TEST(Simplify, FoldsNoBitsOfANan) {
  Graph graph;
  graph.expanded = true;
  for (double x : {1.0, std::numeric_limits<double>::quiet_NaN()})
    graph.results.push_back(
        {.name = x == 1 ? "y" : "z", .mem = Mem::i32, .value = raw_bits(constant(graph, Type::f32, x)).id});
  const Graph result = simplify(graph);
  EXPECT_TRUE(is_constant(result, result.results[0].value));
  EXPECT_EQ(result.at(result.results[1].value).op, Op::raw_bits);
}

TEST(Simplify, MergesWhatIsComputedTwice) {
  const std::string inputs = "input x : f32\ninput y : f32\n";
  const auto ops_of = [&](const std::string& first, const std::string& second) {
    const auto graph = simplified_text(inputs + "%a = " + first + "\n%b = " + second +
                                       "\noutput p = %a : f32\noutput q = %b : f32");
    return op_count(graph);
  };
  EXPECT_EQ(ops_of("sub %x, %y", "sub %x, %y"), 1);
  EXPECT_EQ(ops_of("add %x, %y", "add %y, %x"), 1);
  EXPECT_EQ(ops_of("minimum %x, %y", "minimum %y, %x"), 1);
  EXPECT_EQ(ops_of("add %x, 3", "add 3, %x"), 1);
  EXPECT_EQ(ops_of("sub %x, %y", "sub %y, %x"), 2);
  EXPECT_EQ(ops_of("minimum %x, %y", "maximum %x, %y"), 2);
  EXPECT_EQ(ops_of("add %x, 3", "add %x, 4"), 2);
  EXPECT_EQ(ops_of("maximum %x, 0", "maximum %x, -0"), 2);
  const Graph chain = simplified_text(inputs +
                                      "%a = mul %x, %y\n%b = sqrt %a\n%c = mul %y, %x\n%d = sqrt %c\n"
                                      "%e = sub %b, %d\noutput z = %e : f32");
  EXPECT_EQ(op_count(chain), 3);
}

TEST(Simplify, MergesNoConstantsOfDifferentTypes) {
  const Graph graph = simplified_text("input x : i32\noutput a = i32(0) : i32\noutput b = f32(0) : f32");
  EXPECT_NE(graph.results[0].value, graph.results[1].value);
  EXPECT_EQ(op_count(simplified_text("input x : i32\n%a = to_f32 %x\n%b = to_f64 %x\n"
                                     "output a = %a : f32\noutput b = %b : f64")),
            2);
}

TEST(Simplify, DropsDeadCodeAndKeepsArguments) {
  const Graph graph = simplified_text(
      "input x : f32\ninput unused : f64\nparam p : i32 = 1\n%a = exp %x\n"
      "%b = neg %x\noutput y = %b : f32");
  EXPECT_EQ(op_count(graph), 1);
  ASSERT_EQ(graph.arguments.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(is_argument(graph, graph.arguments[i].value));
}

TEST(Simplify, KeepsWhatDecidesGradients) {
  EXPECT_EQ(op_count(simplified_text("input x : f32\n%a = detach %x\n%b = mul %a, %x\noutput y = %b : f32")),
            2);
  EXPECT_EQ(op_count(simplified_text("input x : f32\n%a = with_grad 1, %x\noutput y = %a : f32")), 1);
  EXPECT_EQ(op_count(simplified_text("input x : f32\n%a = with_grad %x, %x\noutput y = %a : f32")), 1);
  EXPECT_EQ(
      op_count(simplified_text("input x : f32\n%a = detach %x\n%b = with_grad %x, %a\noutput y = %b : f32")),
      2);
}

TEST(Simplify, KeepsStates) {
  const Graph graph =
      parse("neuron n {\nstate v : f32 = 1\nstate w : f32\n%a = mul %v, 1\nnext %v = %w\nnext %w = %a\n}\n",
            "test");
  const Graph result = simplify(graph);
  verify(result);
  EXPECT_EQ(op_count(result), 0);
  ASSERT_EQ(result.results.size(), 2u);
  for (const Result& next : result.results)
    EXPECT_EQ(next.value, result.arguments[1 - next.of].value) << "the states change places";
  EXPECT_EQ(result.arguments[0].initial, 1);
}

TEST(Simplify, KeepsNamesAndLocations) {
  const Graph graph = simplified_text(
      "input x : f32 @ \"core.py\":1\n"
      "%half = div %x, 2 @ \"core.py\":2\n%again = div %x, 2 @ \"core.py\":3\n%one = mul %half, 1 @ "
      "\"core.py\":4\n"
      "%total = add %one, %again @ \"core.py\":5\noutput y = %total : f32 @ \"core.py\":6");
  ASSERT_EQ(op_count(graph), 2);
  const Id total = graph.results[0].value, half = graph.at(total).operands[0];
  EXPECT_EQ(graph.at(half).op, Op::mul) << "x / 2 is x * 0.5";
  EXPECT_EQ(graph.debug_at(total).name, "total");
  EXPECT_EQ(place(graph, graph.debug_at(total).location), "core.py:5");
  EXPECT_EQ(graph.debug_at(half).name, "half");
  EXPECT_EQ(place(graph, graph.debug_at(half).location), "core.py:2");
  EXPECT_EQ(graph.arguments[0].name, "x");
  EXPECT_EQ(place(graph, graph.arguments[0].location), "core.py:1");
  EXPECT_EQ(place(graph, graph.results[0].location), "core.py:6");
  EXPECT_EQ(graph.name, "n");
}

/// The simplified quotient x / divisor as canonical text.
std::string quotient_by(double divisor, Type type) {
  Graph graph;
  const V x = add_argument(graph, {.name = "x", .mem = memory_of(type)});
  const V y = x / divisor;
  graph.results.push_back({.name = "y", .mem = memory_of(type), .value = y.id});
  return canonical(simplify(graph));
}

TEST(Simplify, DividesByMultiplyingOnlyWhereTheReciprocalIsExactAndNormal) {
  for (double divisor : {0x1p-126, -0x1p126, 0x1p-1, 4.0})
    EXPECT_NE(quotient_by(divisor, Type::f32).find("mul"), std::string::npos) << divisor;
  for (double divisor : {0x1p-127, 0x1p-149, 0x1p127, 3.0, 0.0, 1.5})
    EXPECT_NE(quotient_by(divisor, Type::f32).find("div"), std::string::npos) << divisor;
  EXPECT_NE(quotient_by(0x1p1022, Type::f64).find("mul"), std::string::npos);
  for (double divisor : {0x1p1023, 0x1p-1023, 0x1p-1074})
    EXPECT_NE(quotient_by(divisor, Type::f64).find("div"), std::string::npos) << divisor;
}

}  // namespace
}  // namespace flexsn::test
