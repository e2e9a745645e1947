// What verify refuses: every rule broken once, in graphs built by hand; the error names neuron, value and
// line.
#include "verify.h"

#include <gtest/gtest.h>

#include <cmath>

#include "build.h"
#include "error.h"

namespace flexsn {
namespace {

using namespace ir;

constexpr Location line(int number) { return {0, number}; }

/// input x (line 1), state v (line 2), h = x + v (line 3), output z = h (line 4), next v = h (line 5)
Graph legal_graph() {
  Graph graph;
  graph.name = "cell";
  graph.files = {"cell.cpp"};
  const V x = add_argument(graph, {.role = Role::input, .name = "x", .location = line(1)});
  const V v = add_argument(graph, {.role = Role::state, .name = "v", .location = line(2)});
  const V h = x + v;
  graph.debug[h.id] = {"h", line(3)};
  graph.results.push_back({.gives = Gives::output, .name = "z", .value = h.id, .location = line(4)});
  graph.results.push_back({.gives = Gives::next, .of = 1, .value = h.id, .location = line(5)});
  return graph;
}
constexpr Id x_id = 0, h_id = 2;

/// The error's text; anything but a UserError, or no error at all, is a failure.
std::string error_of(const Graph& graph) {
  try {
    verify(graph);
    ADD_FAILURE() << "the graph was taken as legal";
  } catch (const UserError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a UserError: " << error.what();
  }
  return "";
}

void expect_error(const Graph& graph, const std::vector<std::string>& parts) {
  const std::string error = error_of(graph);
  EXPECT_TRUE(error.starts_with("neuron 'cell': ")) << error;
  for (const std::string& part : parts)
    EXPECT_NE(error.find(part), std::string::npos) << "lacks: " << part << "\n" << error;
}

/// A graph with one output of memory type `mem`, given by `build` from an f32 input x.
template <class Build>
Graph one_output(Mem mem, Build build) {
  Graph graph;
  graph.name = "cell";
  graph.files = {"cell.cpp"};
  const V x = add_argument(graph, {.role = Role::input, .name = "x", .location = line(1)});
  const V z = build(x);
  graph.debug[z.id] = {"h", line(3)};
  graph.results.push_back(
      {.gives = Gives::output, .name = "z", .mem = mem, .value = z.id, .location = line(4)});
  return graph;
}

TEST(Verify, TakesLegalGraphs) {
  EXPECT_NO_THROW(verify(legal_graph()));
  EXPECT_NO_THROW(verify(Graph{}));
}

// ---- nodes --------------------------------------------------------------------------------------

TEST(Verify, OperandsAreEarlierNodes) {
  for (Id bad : {Id{h_id}, Id{h_id + 1}, Id{1000000}, Id{-1}, Id{-2}, std::numeric_limits<Id>::min()}) {
    Graph graph = legal_graph();
    graph.nodes[h_id].operands[1] = bad;
    expect_error(graph, {"value 'h'", "operand 2 of 'add'", "not an earlier value", "(cell.cpp:3)"});
  }
}

TEST(Verify, OperandsAreAsManyAsTheRowSays) {
  Graph graph = legal_graph();
  graph.nodes[h_id].operands[2] = x_id;
  expect_error(graph, {"value 'h'", "operand 3 of 'add'", "(cell.cpp:3)"});
  graph = legal_graph();
  graph.nodes[h_id].op = Op::fma;
  expect_error(graph, {"value 'h'", "operand 3 of 'fma'"});
  graph = legal_graph();
  graph.nodes[x_id].operands[0] = 0;
  expect_error(graph, {"value 'x'", "operand 1 of 'argument'"});
}

TEST(Verify, OperandTypesFitTheRow) {
  Graph graph = legal_graph();
  graph.nodes[h_id].op = Op::bit_and;
  expect_error(graph, {"value 'h'", "'bit_and' takes i32 or bool, found f32", "convert", "(cell.cpp:3)"});

  graph = one_output(Mem::f32, [](V x) { return x + x; });
  const Id wide = constant(graph, Type::f64, 1).id;
  const Id bad =
      graph.append({.op = Op::mul, .type = Type::f32, .operands = {x_id, wide, no_id}}, {"bad", line(9)});
  graph.results[0].value = bad;
  expect_error(graph, {"value 'bad'", "operands 1 and 2 of 'mul'", "f32 and f64", "(cell.cpp:9)"});

  graph.nodes[bad] = {.op = Op::select, .type = Type::f32, .operands = {x_id, x_id, x_id}};
  expect_error(graph, {"value 'bad'", "operand 1 of 'select' must be bool, found f32"});
}

TEST(Verify, ResultTypesFitTheRow) {
  Graph graph = legal_graph();
  graph.nodes[h_id].type = Type::f64;
  expect_error(graph, {"value 'h'", "the result of 'add' is f32, not f64", "(cell.cpp:3)"});
  graph = one_output(Mem::b8, [](V x) { return x > 0; });
  graph.nodes[graph.results[0].value].type = Type::f32;
  expect_error(graph, {"the result of 'gt' is bool, not f32"});
}

TEST(Verify, NodesCarryNothingElse) {
  Graph graph = legal_graph();
  graph.nodes[h_id].immediate = 7;
  expect_error(graph, {"value 'h'", "'add' carries data", "(cell.cpp:3)"});
  graph = legal_graph();
  graph.nodes[h_id].op = Op::count;
  expect_error(graph, {"value 'h'", "unknown op"});
  graph = legal_graph();
  graph.debug.pop_back();
  expect_error(graph, {"names and nodes differ"});
}

TEST(Verify, UnnamedValuesGoByTheirNumber) {
  Graph graph = legal_graph();
  graph.debug[h_id].name.clear();
  graph.nodes[h_id].immediate = 7;
  expect_error(graph, {"value 2", "(cell.cpp:3)"});
  graph.debug[h_id].location = {};
  EXPECT_EQ(error_of(graph).find('('), std::string::npos);
  graph.debug[h_id].location = {.file = 12, .line = 1};  // a file that the graph does not have
  expect_error(graph, {"value 2"});
}

TEST(Verify, ConstantsFitTheirType) {
  const std::tuple<Type, Mem, std::uint64_t> cases[] = {
      {Type::f32, Mem::f32, 1ull << 32}, {Type::i32, Mem::i32, 1ull << 32}, {Type::b1, Mem::b8, 2}};
  for (const auto& [type, mem, too_many_bits] : cases) {
    Graph graph = one_output(mem, [&](V x) { return constant_bits(*x.graph, type, too_many_bits); });
    expect_error(graph, {"value 'h'", "more bits than " + std::string(name_of(type)), "(cell.cpp:3)"});
    graph.nodes[graph.results[0].value].immediate = 1;
    EXPECT_NO_THROW(verify(graph));
  }
  EXPECT_NO_THROW(
      verify(one_output(Mem::f64, [](V x) { return constant_bits(*x.graph, Type::f64, ~0ull); })));
}

TEST(Verify, RawRowsStandInExpandedGraphsOnly) {
  Graph graph = one_output(Mem::i32, [](V x) { return raw_bits(x); });
  expect_error(graph, {"value 'h'", "'raw_bits'", "use 'bits' or 'copysign'", "(cell.cpp:3)"});
  graph.expanded = true;
  EXPECT_NO_THROW(verify(graph));
}

TEST(Verify, ExpandedRowsStandInOtherGraphsOnly) {
  Graph graph = one_output(Mem::f32, [](V x) { return sign(x); });
  EXPECT_NO_THROW(verify(graph));
  graph.expanded = true;
  expect_error(graph, {"value 'h'", "'sign' is not a basic op", "remove the mark", "(cell.cpp:3)"});
}

// ---- arguments ----------------------------------------------------------------------------------

TEST(Verify, EveryArgumentHasOneNode) {
  Graph graph = legal_graph();
  graph.arguments[0].value = h_id;
  expect_error(graph, {"argument 'x' has no node", "(cell.cpp:1)"});
  graph = legal_graph();
  graph.arguments[0].value = no_id;
  expect_error(graph, {"argument 'x' has no node"});
  graph = legal_graph();
  graph.arguments[1].value = 99;
  expect_error(graph, {"argument 'v' has no node", "(cell.cpp:2)"});
  graph = legal_graph();
  graph.nodes[1].immediate = 0;
  expect_error(graph, {"argument 'v' has no node"});
  graph = legal_graph();
  graph.nodes[1].immediate = 5;
  expect_error(graph, {"value 'v' is an argument that does not exist", "(cell.cpp:2)"});
  graph = legal_graph();
  graph.append({.op = Op::argument, .type = Type::f32});
  expect_error(graph, {"number of arguments"});
}

TEST(Verify, ArgumentsHaveTheTypeTheirMemoryWidensTo) {
  Graph graph = legal_graph();
  graph.arguments[0].mem = Mem::f64;
  expect_error(graph, {"argument 'x' is f64 in memory but its value is f32", "(cell.cpp:1)"});
  graph.arguments[0].mem = Mem::bf16;
  EXPECT_NO_THROW(verify(graph));
}

TEST(Verify, ArgumentNamesAreUsedOnce) {
  Graph graph = legal_graph();
  graph.arguments[1].name = "x";
  expect_error(graph, {"the name 'x' is used twice", "a name of its own", "(cell.cpp:2)"});
}

TEST(Verify, ArgumentNamesAreNotNumbers) {
  for (const char* number : {"0", "1", "007"}) {
    Graph graph = legal_graph();
    graph.arguments[0].name = number;
    expect_error(graph,
                 {"the name '" + std::string(number) + "' is a number", "choose another", "(cell.cpp:1)"});
  }
}

TEST(Verify, OnlyParamsArePerStep) {
  for (int index : {0, 1}) {
    Graph graph = legal_graph();
    graph.arguments[index].per_step = true;
    expect_error(graph, {"'" + graph.arguments[index].name + "' is per_step but not a param"});
  }
}

TEST(Verify, DefaultsLieInTheirRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [value, range] :
       {std::pair(2.0, Range{0, 1}), std::pair(-0.5, Range{0, 1}), std::pair(nan, Range{}),
        std::pair(1.0, Range{2, 0}), std::pair(0.0, Range{nan, nan})}) {
    Graph graph = legal_graph();
    add_argument(graph, {.role = Role::param,
                         .name = "p",
                         .has_default = true,
                         .initial = value,
                         .range = range,
                         .location = line(6)});
    expect_error(graph, {"param 'p'", "outside its range", "change the one or the other", "(cell.cpp:6)"});
  }
}

// ---- results ------------------------------------------------------------------------------------

TEST(Verify, ResultsHaveValues) {
  for (Id bad : {Id{no_id}, Id{99}}) {
    Graph graph = legal_graph();
    graph.results[0].value = bad;
    expect_error(graph, {"a result has no value", "(cell.cpp:4)"});
  }
}

TEST(Verify, OutputNamesAreUsedOnce) {
  Graph graph = legal_graph();
  graph.results.push_back(graph.results[0]);
  expect_error(graph, {"output 'z' is given twice", "a name of its own", "(cell.cpp:4)"});
  graph.results[0].name = graph.results[2].name = "";
  EXPECT_NO_THROW(verify(graph));
}

TEST(Verify, EveryStateHasOneNextValue) {
  Graph graph = legal_graph();
  graph.results.pop_back();
  expect_error(graph, {"state 'v' is never updated", "give it a next value", "(cell.cpp:2)"});
  graph = legal_graph();
  graph.results.push_back(graph.results[1]);
  graph.results[2].location = line(7);
  expect_error(graph, {"state 'v' is updated twice", "(cell.cpp:7)"});
  graph = legal_graph();
  graph.results[1].of = 0;
  expect_error(graph, {"'x' is not a state", "(cell.cpp:5)"});
  for (int bad : {-1, 2, 1000}) {
    graph = legal_graph();
    graph.results[1].of = bad;
    expect_error(graph, {"of an argument that does not exist", "(cell.cpp:5)"});
  }
}

TEST(Verify, NextValuesHaveTheStatesType) {
  Graph graph = legal_graph();
  graph.results[1].mem = Mem::f64;
  expect_error(graph, {"next value of 'v'", "another memory type", "(cell.cpp:5)"});
  graph = legal_graph();
  graph.results[1].value = (V{&graph, h_id} > 0).id;
  expect_error(graph, {"state 'v' is f32 but its update has type bool", "convert", "(cell.cpp:5)"});
}

TEST(Verify, WhatGoesToNarrowMemoryIsRoundedFirst) {
  const auto number = [](V x, Type type, double value) { return constant(*x.graph, type, value); };
  expect_error(one_output(Mem::f16, [](V x) { return x + x; }),
               {"output 'z' is f16", "not rounded", "round_f16", "(cell.cpp:4)"});
  expect_error(one_output(Mem::f16, [](V x) { return round_bf16(x); }), {"end it with round_f16"});
  expect_error(one_output(Mem::bf16, [](V x) { return round_f16(x); }), {"end it with round_bf16"});
  expect_error(one_output(Mem::u8, [](V x) { return to_i32(x); }),
               {"output 'z' is u8", "end it with round_u8"});
  expect_error(one_output(Mem::f16, [&](V x) { return number(x, Type::f32, 0.1); }), {"round_f16"});
  expect_error(one_output(Mem::f16, [&](V x) { return number(x, Type::f32, 65520); }), {"round_f16"});
  expect_error(one_output(Mem::bf16, [&](V x) { return number(x, Type::f32, 0.1); }), {"round_bf16"});
  expect_error(one_output(Mem::u8, [&](V x) { return number(x, Type::i32, 256); }), {"round_u8"});
  expect_error(one_output(Mem::u8, [&](V x) { return number(x, Type::i32, -1); }), {"round_u8"});
  expect_error(one_output(Mem::u8, [](V x) { return x; }), {"output 'z' is u8 but its value has type f32"});

  expect_error(one_output(Mem::f16, [&](V x) { return select(x > 0, number(x, Type::f32, 0.1), 1); }),
               {"round_f16"});
  expect_error(one_output(Mem::f16, [&](V x) { return select(x > 0, x, number(x, Type::f32, 1)); }),
               {"round_f16"});
  expect_error(one_output(Mem::u8, [&](V x) { return select(x > 0, number(x, Type::i32, 256), 1); }),
               {"round_u8"});

  Graph expanded = one_output(Mem::bf16, [](V x) { return x + x; });
  expanded.expanded = true;
  expect_error(expanded, {"output 'z' is bf16", "end it with round_bf16"});

  for (Mem mem : {Mem::f16, Mem::bf16}) {
    EXPECT_NO_THROW(verify(one_output(mem, [](V x) { return to_f32(x > 0); })));
    EXPECT_NO_THROW(
        verify(one_output(mem, [&](V x) { return select(x > 0, number(x, Type::f32, 0.5), 1); })));
  }
  EXPECT_NO_THROW(verify(one_output(Mem::u8, [](V x) { return to_i32(x > 0); })));
  EXPECT_NO_THROW(
      verify(one_output(Mem::u8, [&](V x) { return select(x > 0, number(x, Type::i32, 255), 1); })));
  EXPECT_NO_THROW(verify(one_output(Mem::f16, [](V x) { return round_f16(x); })));
  EXPECT_NO_THROW(verify(one_output(Mem::bf16, [](V x) { return round_bf16(x); })));
  EXPECT_NO_THROW(verify(one_output(Mem::u8, [](V x) { return round_u8(x); })));
  EXPECT_NO_THROW(verify(one_output(Mem::f16, [&](V x) { return number(x, Type::f32, 65504); })));
  EXPECT_NO_THROW(verify(one_output(Mem::bf16, [&](V x) { return number(x, Type::f32, -INFINITY); })));
  EXPECT_NO_THROW(verify(one_output(Mem::f16, [&](V x) { return number(x, Type::f32, NAN); })));
  EXPECT_NO_THROW(verify(one_output(Mem::u8, [&](V x) { return number(x, Type::i32, 255); })));

  // An argument of the same memory type is rounded already; one of another type is not.
  Graph graph = one_output(Mem::f16, [](V x) { return x; });
  expect_error(graph, {"output 'z' is f16"});
  graph.arguments[0].mem = Mem::f16;
  EXPECT_NO_THROW(verify(graph));
}

// ---- gradients ----------------------------------------------------------------------------------

TEST(Verify, GradientArgumentsAreOfOutputsAndStates) {
  Graph graph = legal_graph();
  add_argument(graph, {.role = Role::grad_output, .name = "g", .of = 0, .location = line(8)});
  add_argument(graph, {.role = Role::grad_next, .name = "k", .of = 1, .location = line(9)});
  EXPECT_NO_THROW(verify(graph));
  for (int bad : {-1, 1, 2, 1000}) {
    Graph wrong = graph;
    wrong.arguments[2].of = bad;
    expect_error(wrong, {"gradient 'g' is of an output that does not exist", "(cell.cpp:8)"});
  }
  for (int bad : {-1, 0, 3, 1000}) {
    Graph wrong = graph;
    wrong.arguments[3].of = bad;
    expect_error(wrong, {"gradient 'k' is of a state that does not exist", "(cell.cpp:9)"});
  }
}

TEST(Verify, GradientsHaveTheTypeOfWhatTheyAreOf) {
  Graph graph = legal_graph();
  add_argument(graph,
               {.role = Role::grad_output, .name = "g", .mem = Mem::f64, .of = 0, .location = line(8)});
  expect_error(graph, {"gradient 'g' is f64", "output 'z' is f32", "(cell.cpp:8)"});
  graph = legal_graph();
  add_argument(graph, {.role = Role::grad_next, .name = "g", .mem = Mem::b8, .of = 1, .location = line(8)});
  expect_error(graph,
               {"gradient 'g' is bool", "state 'v', which is f32, are carried in f32", "(cell.cpp:8)"});
  graph = legal_graph();
  const Id wide = to_f64(V{&graph, x_id}).id;
  graph.results.push_back(
      {.gives = Gives::grad, .of = 0, .mem = Mem::f64, .value = wide, .location = line(8)});
  expect_error(graph, {"the gradient of 'x'", "f32", "f64", "(cell.cpp:8)"});
}

TEST(Verify, GradientsAreGivenOnce) {
  Graph graph = legal_graph();
  add_argument(graph, {.role = Role::grad_output, .name = "g", .of = 0});
  add_argument(graph, {.role = Role::grad_output, .name = "k", .of = 0, .location = line(9)});
  expect_error(graph, {"gradient 'k'", "another gradient", "(cell.cpp:9)"});
  graph = legal_graph();
  for (int number : {8, 9})
    graph.results.push_back({.gives = Gives::grad, .of = 0, .value = h_id, .location = line(number)});
  expect_error(graph, {"the gradient of 'x' is given twice", "(cell.cpp:9)"});
}

TEST(Verify, OnlyFloatsCarryGradients) {
  for (Mem mem : {Mem::b8, Mem::i32, Mem::u8}) {
    Graph graph;
    graph.name = "cell";
    graph.files = {"cell.cpp"};
    const V c = add_argument(graph, {.role = Role::input, .name = "c", .mem = mem});
    graph.results.push_back({.gives = Gives::output, .name = "z", .mem = mem, .value = c.id});
    Graph of_argument = graph, of_output = graph;
    of_argument.results.push_back(
        {.gives = Gives::grad, .of = 0, .mem = mem, .value = c.id, .location = line(8)});
    add_argument(of_output, {.role = Role::grad_output, .name = "g", .of = 0, .location = line(9)});
    expect_error(of_argument, {"'c' is " + std::string(name_of(mem)), "no gradient", "(cell.cpp:8)"});
    expect_error(of_output, {"output 'z' is " + std::string(name_of(mem)), "no gradient", "(cell.cpp:9)"});
  }
}

TEST(Verify, NoGradientOfAGradient) {
  Graph graph = legal_graph();
  add_argument(graph, {.role = Role::grad_output, .name = "g", .of = 0});
  graph.results.push_back({.gives = Gives::grad, .of = 2, .value = h_id, .location = line(8)});
  expect_error(graph, {"gradient of a gradient", "(cell.cpp:8)"});
}

TEST(Verify, AnIllegalGraphFromAPassIsOurDefect) {
  Graph graph = legal_graph();
  EXPECT_EQ(verified(graph, "none").nodes, graph.nodes);
  graph.nodes[h_id].operands = {h_id, 99, -7};
  try {
    verified(graph, "imaginary");
    FAIL() << "the graph was taken as legal";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("the pass 'imaginary'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace flexsn
