// The C++ front end: what step functions become, and what wrong ones are told.
#include "trace.h"

#include <gtest/gtest.h>

#include <cfenv>

#include <algorithm>
#include <cmath>

#include "error.h"
#include "ops.h"
#include "text.h"
#include "verify.h"

namespace flexsn {
namespace {

using ir::Gives;
using ir::Graph;
using ir::Op;

using StepFunction = std::function<void(Step&)>;

Graph traced(StepFunction step, Mem type = Mem::f32) {
  Graph graph = neuron("cell", std::move(step)).graph(type);
  verify(graph);
  return graph;
}

std::string text_of(StepFunction step, Mem type = Mem::f32) { return print(traced(std::move(step), type)); }

const ir::Result& output_of(const Graph& graph, std::string_view name) {
  const auto found = std::find_if(graph.results.begin(), graph.results.end(), [&](const ir::Result& result) {
    return result.gives == Gives::output && result.name == name;
  });
  EXPECT_NE(found, graph.results.end()) << "no output " << name;
  return *found;
}
Mem output_type(const Graph& graph, std::string_view name = "z") { return output_of(graph, name).mem; }
Op output_op(const Graph& graph, std::string_view name = "z") {
  return graph.at(output_of(graph, name).value).op;
}

Mem argument_type(const Graph& graph, std::string_view name) {
  for (const ir::Argument& argument : graph.arguments)
    if (argument.name == name) return argument.mem;
  ADD_FAILURE() << "no argument " << name;
  return Mem::f32;
}

int count_of(const Graph& graph, Op op) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                        [&](const ir::Node& node) { return node.op == op; }));
}

std::string here(int offset = 0, std::source_location where = std::source_location::current()) {
  return "(trace_test.cpp:" + std::to_string(static_cast<int>(where.line()) + offset) + ")";
}

/// Tracing fails with a UserError that has these parts.
void expect_error(StepFunction step, const std::vector<std::string>& parts) {
  std::string error;
  try {
    neuron("cell", std::move(step)).graph();
    ADD_FAILURE() << "the neuron was traced; lacks: " << parts[0];
    return;
  } catch (const UserError& caught) {
    error = caught.what();
  } catch (const std::exception& caught) {
    ADD_FAILURE() << "not a UserError: " << caught.what();
  }
  EXPECT_TRUE(error.starts_with("neuron 'cell': ")) << error;
  for (const std::string& part : parts)
    EXPECT_NE(error.find(part), std::string::npos) << "lacks: " << part << "\n" << error;
}

// ---- what a step may be -------------------------------------------------------------------------

void leaky(Step& s) {
  Value x = s.input("x"), v = s.state("v", -0.5), tau = s.param("tau", 2, {1, 100});
  Value h = (v + (x - v) / tau).named("h");
  Value fired = h >= 1.0;
  s.output("z", select(fired, 1.0, 0.0));
  s.next(v, select(fired, 0.0, h));
}

TEST(Trace, AStepBecomesAGraph) {
  EXPECT_EQ(text_of(leaky), R"(neuron cell {
  input x : f32
  state v : f32 = -0.5
  param tau : f32 = 2 in [1, 100]
  %3 = sub %x, %v : f32
  %4 = div %3, %tau : f32
  %h = add %v, %4 : f32
  %6 = ge %h, 1 : bool
  %7 = select %6, f32(1), f32(0) : f32
  %8 = select %6, 0, %h : f32
  output z = %7 : f32
  next v = %8
}
)");
}

TEST(Trace, TracingAgainGivesTheSameNeuron) {
  const Neuron cell = neuron("cell", leaky), other = neuron("other", leaky);
  for (Mem type : {Mem::f16, Mem::bf16, Mem::f32, Mem::f64}) {
    EXPECT_EQ(canonical(cell.graph(type)), canonical(cell.graph(type)));
    EXPECT_EQ(canonical(cell.graph(type)), canonical(other.graph(type)));
    EXPECT_EQ(canonical(parse(print(cell.graph(type)), "again")), canonical(cell.graph(type)));
  }
  EXPECT_NE(canonical(cell.graph(Mem::f32)), canonical(cell.graph(Mem::f64)));
}

TEST(Trace, AnyNumberOfArgumentsAndResults) {
  EXPECT_NO_THROW(traced([](Step&) {}));
  EXPECT_EQ(traced([](Step& s) { s.output("z", 0.5); }).results.size(), 1u);
  EXPECT_EQ(traced([](Step& s) { s.input("x"); }).arguments.size(), 1u);
  const Graph many = traced([](Step& s) {
    const Value a = s.input("a"), b = s.input("b"), v = s.state("v"), w = s.state("w");
    s.output("sum", a + b);
    s.next(w, v);
    s.output("a", a);
    s.next(v, w);
  });
  EXPECT_EQ(many.arguments.size(), 4u);
  EXPECT_EQ(many.results.size(), 4u);
  EXPECT_EQ(many.at(output_of(many, "a").value).op, Op::argument);
  const Graph indices = traced([](Step& s) { s.output("z", s.step_index() * 1000 + s.element_index()); });
  EXPECT_EQ(output_type(indices), Mem::i32);
  EXPECT_EQ(count_of(indices, Op::step_index), 1);
  EXPECT_EQ(count_of(indices, Op::element_index), 1);
}

TEST(Trace, ArgumentsKeepWhatTheyWereGiven) {
  const Graph graph = traced([](Step& s) {
    s.input("flag", Mem::b8);
    s.param("gain", 3, {.low = 0}, Mem::f64);
    s.step_param("mask", 1, {0, 1});
  });
  EXPECT_EQ(graph.arguments[0].mem, Mem::b8);
  EXPECT_EQ(graph.arguments[1].mem, Mem::f64);
  EXPECT_EQ(graph.arguments[1].initial, 3);
  EXPECT_EQ(graph.arguments[1].range.low, 0);
  EXPECT_EQ(graph.arguments[1].range.high, INFINITY);
  EXPECT_TRUE(graph.arguments[2].per_step);
}

TEST(Trace, OperatorsAreRows) {
  const auto op = [](std::function<Value(Value, Value)> apply, Mem type) {
    return output_op(traced([&](Step& s) {
      const Value a = s.input("a", type), b = s.input("b", type);
      s.output("z", apply(a, b));
    }));
  };
  EXPECT_EQ(op([](Value a, Value b) { return a + b; }, Mem::f32), Op::add);
  EXPECT_EQ(op([](Value a, Value b) { return a - b; }, Mem::f32), Op::sub);
  EXPECT_EQ(op([](Value a, Value b) { return a * b; }, Mem::f32), Op::mul);
  EXPECT_EQ(op([](Value a, Value b) { return a / b; }, Mem::f32), Op::div);
  EXPECT_EQ(op([](Value a, Value) { return -a; }, Mem::f32), Op::neg);
  EXPECT_EQ(op([](Value a, Value b) { return a == b; }, Mem::f32), Op::eq);
  EXPECT_EQ(op([](Value a, Value b) { return a != b; }, Mem::f32), Op::ne);
  EXPECT_EQ(op([](Value a, Value b) { return a < b; }, Mem::f32), Op::lt);
  EXPECT_EQ(op([](Value a, Value b) { return a <= b; }, Mem::f32), Op::le);
  EXPECT_EQ(op([](Value a, Value b) { return a > b; }, Mem::f32), Op::gt);
  EXPECT_EQ(op([](Value a, Value b) { return a >= b; }, Mem::f32), Op::ge);
  EXPECT_EQ(op([](Value a, Value b) { return a & b; }, Mem::i32), Op::bit_and);
  EXPECT_EQ(op([](Value a, Value b) { return a && b; }, Mem::b8), Op::bit_and);
  EXPECT_EQ(op([](Value a, Value b) { return a | b; }, Mem::i32), Op::bit_or);
  EXPECT_EQ(op([](Value a, Value b) { return a || b; }, Mem::b8), Op::bit_or);
  EXPECT_EQ(op([](Value a, Value b) { return a ^ b; }, Mem::i32), Op::bit_xor);
  EXPECT_EQ(op([](Value a, Value) { return ~a; }, Mem::i32), Op::bit_not);
  EXPECT_EQ(op([](Value a, Value) { return !a; }, Mem::b8), Op::bit_not);
  EXPECT_EQ(op([](Value a, Value b) { return a << b; }, Mem::i32), Op::shift_left);
  EXPECT_EQ(op([](Value a, Value b) { return a >> b; }, Mem::i32), Op::shift_right);
  EXPECT_EQ(op([](Value a, Value b) { return a += b; }, Mem::f32), Op::add);
  EXPECT_EQ(op([](Value a, Value b) { return a -= b; }, Mem::f32), Op::sub);
  EXPECT_EQ(op([](Value a, Value b) { return a *= b; }, Mem::f32), Op::mul);
  EXPECT_EQ(op([](Value a, Value b) { return a /= b; }, Mem::f32), Op::div);
}

TEST(Trace, CompoundOperatorsChangeTheVariableOnly) {
  const Graph graph = traced([](Step& s) {
    Value x = s.input("x");
    const Value before = x;
    x *= 2.0;
    s.output("before", before);
    s.output("z", x);
  });
  EXPECT_EQ(output_op(graph, "before"), Op::argument);
  EXPECT_EQ(output_op(graph), Op::mul);
}

TEST(Trace, MovedValuesStayUsable) {
  const Graph graph = traced([](Step& s) {
    Value x = s.input("x");
    const Value y = std::move(x);
    s.output("z", x + y);  // NOLINT(bugprone-use-after-move)
  });
  EXPECT_EQ(output_op(graph), Op::add);
}

// ---- types --------------------------------------------------------------------------------------

TEST(Trace, NumbersTakeTheTypeBesideThem) {
  for (Mem type : {Mem::f32, Mem::f64, Mem::i32, Mem::f16, Mem::bf16, Mem::u8})
    EXPECT_EQ(output_type(traced([&](Step& s) { s.output("z", 2 * s.input("x", type) + 1); })), type)
        << name_of(type);
  for (Mem type : {Mem::f32, Mem::f64, Mem::f16, Mem::bf16})
    EXPECT_EQ(output_type(traced([&](Step& s) { s.output("z", 0.1 * s.input("x", type)); })), type)
        << name_of(type);
  // A fraction makes a float of an integer, in the type the neuron is traced for.
  for (Mem type : {Mem::i32, Mem::u8, Mem::b8}) {
    EXPECT_EQ(output_type(traced([&](Step& s) { s.output("z", s.input("x", type) * 0.5); })), Mem::f32);
    EXPECT_EQ(output_type(traced([&](Step& s) { s.output("z", s.input("x", type) * 0.5); }, Mem::f64)),
              Mem::f64);
  }
  EXPECT_EQ(output_type(traced([](Step& s) { s.output("z", 1); })), Mem::i32);
  EXPECT_EQ(output_type(traced([](Step& s) { s.output("z", 1.0); }, Mem::f64)), Mem::f64);
}

TEST(Trace, TypesMeetInTheWiderOne) {
  const auto sum = [](Mem a, Mem b) {
    return output_type(traced([&](Step& s) { s.output("z", s.input("a", a) + s.input("b", b)); }));
  };
  const std::tuple<Mem, Mem, Mem> cases[] = {
      {Mem::f32, Mem::f64, Mem::f64},  {Mem::f16, Mem::f32, Mem::f32}, {Mem::bf16, Mem::f32, Mem::f32},
      {Mem::f16, Mem::bf16, Mem::f32}, {Mem::f16, Mem::f16, Mem::f16}, {Mem::bf16, Mem::bf16, Mem::bf16},
      {Mem::f16, Mem::f64, Mem::f64},  {Mem::i32, Mem::f32, Mem::f32}, {Mem::i32, Mem::f16, Mem::f16},
      {Mem::u8, Mem::i32, Mem::i32},   {Mem::u8, Mem::u8, Mem::u8},    {Mem::u8, Mem::bf16, Mem::bf16},
      {Mem::b8, Mem::b8, Mem::i32},    {Mem::b8, Mem::i32, Mem::i32},  {Mem::b8, Mem::u8, Mem::u8},
      {Mem::b8, Mem::f64, Mem::f64},   {Mem::b8, Mem::f16, Mem::f16}};
  for (const auto& [a, b, expected] : cases) {
    EXPECT_EQ(sum(a, b), expected) << name_of(a) << " + " << name_of(b);
    EXPECT_EQ(sum(b, a), expected) << name_of(b) << " + " << name_of(a);
  }
}

TEST(Trace, IntegersEnterRealFunctionsAsFloats) {
  for (Mem type : {Mem::i32, Mem::u8, Mem::b8})
    EXPECT_EQ(output_type(traced([&](Step& s) { s.output("z", exp(s.input("x", type))); })), Mem::f32);
  EXPECT_EQ(output_type(traced([](Step& s) { s.output("z", sqrt(s.input("n", Mem::i32))); }, Mem::f64)),
            Mem::f64);
}

TEST(Trace, CastsSayTheType) {
  const auto to = [](Type type) {
    return output_type(traced([&](Step& s) { s.output("z", cast(s.input("x"), type)); }));
  };
  EXPECT_EQ(to(Type::f32), Mem::f32);
  EXPECT_EQ(to(Type::f64), Mem::f64);
  EXPECT_EQ(to(Type::i32), Mem::i32);
  EXPECT_EQ(to(Type::b1), Mem::b8);
  const Graph graph = traced([](Step& s) {
    const Value x = s.input("x");
    EXPECT_EQ(x.type(), Type::f32);
    EXPECT_EQ((x > 0).type(), Type::b1);
    EXPECT_EQ(cast(x, Type::i32).type(), Type::i32);
    s.output("z", like(x, 2));
  });
  EXPECT_EQ(output_type(graph), Mem::f32);
}

TEST(Trace, HalfTypesAreRoundedWhereTheyGoToMemory) {
  for (const auto& [type, rounding] :
       {std::pair(Mem::f16, Op::round_f16), std::pair(Mem::bf16, Op::round_bf16)}) {
    const Graph graph = traced(
        [](Step& s) {
          const Value x = s.input("x"), v = s.state("v");
          const Value h = x * 0.5 + v;
          s.output("z", h);
          s.output("same", x);
          s.next(v, h);
        },
        type);
    EXPECT_EQ(output_op(graph), rounding);
    EXPECT_EQ(output_op(graph, "same"), Op::argument);
    EXPECT_EQ(argument_type(graph, "v"), type);
    for (const ir::Result& result : graph.results) {
      if (result.gives != Gives::next) continue;
      EXPECT_EQ(graph.at(result.value).op, rounding);
    }
    // In between, values are f32: one rounding for each of the two that are stored.
    EXPECT_EQ(count_of(graph, rounding), 2);
  }
  const Graph bytes = traced([](Step& s) { s.output("z", s.input("n", Mem::u8) + 1); });
  EXPECT_EQ(output_op(bytes), Op::round_u8);
  EXPECT_EQ(output_type(bytes), Mem::u8);
}

TEST(Trace, StatesWidenToTheirUpdate) {
  const auto filter = [](Step& s) {
    const Value x = s.input("x"), v = s.state("v", 0.1), decay = s.param("decay", 0.5, {}, Mem::f32);
    s.next(v, v * decay + x);
    s.output("z", v);
  };
  EXPECT_EQ(argument_type(traced(filter, Mem::bf16), "v"), Mem::f32);
  EXPECT_EQ(argument_type(traced(filter, Mem::bf16), "x"), Mem::bf16);
  EXPECT_EQ(output_type(traced(filter, Mem::bf16)), Mem::f32);
  EXPECT_EQ(argument_type(traced(filter, Mem::f16), "v"), Mem::f32);
  EXPECT_EQ(argument_type(traced(filter, Mem::f64), "v"), Mem::f64);
}

TEST(Trace, OneWidenedStateWidensTheNext) {
  // c sees the wide parameter, b sees c, a sees b: three rounds until nothing grows.
  const Graph graph = traced(
      [](Step& s) {
        const Value a = s.state("a"), b = s.state("b"), c = s.state("c"), d = s.state("d");
        const Value wide = s.param("wide", 1, {}, Mem::f64);
        s.next(a, a + b);
        s.next(b, b + c);
        s.next(c, c + wide);
        s.next(d, d + 1);
      },
      Mem::f16);
  EXPECT_EQ(argument_type(graph, "a"), Mem::f64);
  EXPECT_EQ(argument_type(graph, "b"), Mem::f64);
  EXPECT_EQ(argument_type(graph, "c"), Mem::f64);
  EXPECT_EQ(argument_type(graph, "d"), Mem::f16);
  // f16 and bf16 meet in f32.
  EXPECT_EQ(argument_type(traced(
                              [](Step& s) {
                                const Value v = s.state("v");
                                s.next(v, v + s.input("x", Mem::bf16));
                              },
                              Mem::f16),
                          "v"),
            Mem::f32);
}

TEST(Trace, StatesWithATypeKeepIt) {
  const Graph graph = traced([](Step& s) {
    const Value x = s.input("x", Mem::f16), n = s.state("n", 7, Mem::i32), on = s.state("on", 1, Mem::b8);
    const Value sum = s.state("sum", 0, Mem::f32), k = s.state("k", 0, Mem::u8), reset = s.state("reset");
    s.next(n, n + s.input("small", Mem::u8));
    s.next(on, !on);
    s.next(sum, sum + x);
    s.next(k, 3);
    s.next(reset, 0.25);
  });
  EXPECT_EQ(argument_type(graph, "n"), Mem::i32);
  EXPECT_EQ(argument_type(graph, "on"), Mem::b8);
  EXPECT_EQ(argument_type(graph, "sum"), Mem::f32);
  EXPECT_EQ(argument_type(graph, "k"), Mem::u8);
  EXPECT_EQ(argument_type(graph, "reset"), Mem::f32);
}

// ---- lines and names ----------------------------------------------------------------------------

TEST(Trace, LinesAreThoseOfTheUsersCode) {
  int first = 0;
  const Graph graph = traced([&](Step& s) {
    first = static_cast<int>(std::source_location::current().line());
    Value x = s.input("x");
    Value v = s.state("v");
    Value h = x + v;
    h *= 2.0;
    h = fma(h, 3, x);
    Value fired = spike(h - 1.0);
    Value c = cast(h, Type::f64);
    s.output("h", h);
    s.output("fired", fired);
    s.output("c", c);
    s.output("t", s.step_index());
    s.next(v, h);
  });
  const auto line_of = [&](const ir::Location& location) {
    EXPECT_EQ(location.file < 0 ? "none" : graph.files[location.file], "trace_test.cpp");
    return location.line - first;
  };
  EXPECT_EQ(graph.files.size(), 1u) << "only the user's file";
  EXPECT_EQ(line_of(graph.arguments[0].location), 1);
  EXPECT_EQ(line_of(graph.arguments[1].location), 2);
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    const int line = line_of(graph.debug[id].location);
    switch (graph.nodes[id].op) {
      case Op::add:
        EXPECT_EQ(line, 3);
        break;
      case Op::fma:
        EXPECT_EQ(line, 5);
        break;
      case Op::ge:
      case Op::with_grad:
      case Op::sigmoid:
      case Op::detach:
        EXPECT_EQ(line, 6) << ir::name_of(graph.nodes[id].op);
        break;
      case Op::to_f64:
        EXPECT_EQ(line, 7);
        break;
      case Op::step_index:
        EXPECT_EQ(line, 11);
        break;
      default:
        break;
    }
  }
  const ir::Node& fma_node = graph.at(output_of(graph, "h").value);
  EXPECT_EQ(line_of(graph.debug_at(fma_node.operands[0]).location), 4) << "h *= 2.0";
  EXPECT_EQ(line_of(output_of(graph, "h").location), 8);
  EXPECT_EQ(line_of(output_of(graph, "t").location), 11);
  EXPECT_EQ(line_of(graph.results.back().location), 12);
}

TEST(Trace, LinesGoOnAfterALibraryFunction) {
  int line = 0;
  const Graph graph = traced([&](Step& s) {
    const Value x = s.input("x");
    const Value z = spike(x, surrogate::atan(3));
    line = static_cast<int>(std::source_location::current().line()) + 1;
    s.output("z", z * x);
  });
  EXPECT_EQ(graph.debug_at(output_of(graph, "z").value).location.line, line);
}

TEST(Trace, NamesAreForListings) {
  const std::string text = text_of([](Step& s) {
    const Value x = s.input("x");
    const Value a = (x + 1.0).named("h"), b = (a * 2.0).named("h"), c = (b * 2.0).named("x");
    s.output("a name", c.named("not plain"));
  });
  EXPECT_NE(text.find("%h = add %x, 1"), std::string::npos) << text;
  EXPECT_NE(text.find("output \"a name\" = "), std::string::npos) << text;
  EXPECT_EQ(print(parse(text, "again")), text);
}

TEST(Trace, NamesThatCannotBeGivenAreErrors) {
  expect_error([](Step& s) { s.output("z", s.input("x").named("y")); },
               {"'x' is an argument and keeps its name", "name what is computed from it"});
  expect_error([](Step& s) { s.output("z", (s.input("x") + 1.0).named("")); }, {"a value needs a name"});
}

TEST(Trace, TruthValuesAreBools) {
  const Graph graph = traced([](Step& s) {
    const Value on = s.input("on", Mem::b8);
    s.output("both", on & true);
    s.output("chosen", select(on, true, false));
    s.output("constant", true);
    s.output("number", on + true);
  });
  for (const char* name : {"both", "chosen", "constant"})
    EXPECT_EQ(output_of(graph, name).mem, Mem::b8) << name;
  EXPECT_EQ(output_of(graph, "number").mem, Mem::i32);
}

TEST(Trace, WhatDependsOnParametersOnlyIsHoisted) {
  const Graph graph = traced([](Step& s) {
    const Value x = s.input("x"), v = s.state("v"), tau = s.param("tau", 2), gain = s.step_param("gain", 1);
    s.output("once", exp(-1.0 / tau));
    s.output("step", tau * gain);
    s.output("x", tau * x);
    s.output("v", tau * v);
    s.output("t", tau * s.step_index());
    s.output("n", tau * s.element_index());
    s.next(v, 0.0);
  });
  const std::vector<bool> hoisted = ir::hoistable(graph);
  for (const char* name : {"once", "step", "x", "v", "t", "n"})
    EXPECT_EQ(hoisted[output_of(graph, name).value], std::string_view(name) == "once") << name;
}

// ---- wrong uses ---------------------------------------------------------------------------------

TEST(TraceErrors, States) {
  expect_error([](Step& s) { s.state("v"); }, {"state 'v' is never updated", "call next(v, ...)", here()});
  expect_error(
      [](Step& s) {
        const Value v = s.state("v");
        s.next(v, v);
        s.next(v, 0);
      },
      {"state 'v' is updated twice", "first at trace_test.cpp:", "one next value", here(-2)});
  expect_error([](Step& s) { s.next(s.input("x"), 1); },
               {"'x' is not a state", "declare it with state(", here(-1)});
  expect_error([](Step& s) { s.next(s.param("p", 1), 1); }, {"'p' is not a state", here()});
  expect_error([](Step& s) { s.next(s.state("v") + 1, 1); }, {"an unnamed value is not a state", here()});
  expect_error([](Step& s) { s.next((s.state("v") + 1).named("w"), 1); }, {"'w' is not a state", here()});
}

TEST(TraceErrors, TypesOfUpdates) {
  const auto update = [](Mem state, Mem with) {
    return [=](Step& s) { s.next(s.state("v", 0, state), s.input("x", with)); };
  };
  const std::pair<Mem, Mem> cases[] = {{Mem::f32, Mem::b8},  {Mem::f32, Mem::i32}, {Mem::f32, Mem::f64},
                                       {Mem::f32, Mem::u8},  {Mem::f16, Mem::f32}, {Mem::bf16, Mem::f16},
                                       {Mem::i32, Mem::f32}, {Mem::i32, Mem::b8},  {Mem::b8, Mem::i32},
                                       {Mem::b8, Mem::f32},  {Mem::u8, Mem::i32}};
  for (const auto& [state, with] : cases)
    expect_error(update(state, with),
                 {join("state 'v' is ", name_of(state), " but its update has type ", name_of(with)),
                  "convert the update with ", "(trace_test.cpp:"});
  expect_error([](Step& s) { s.next(s.state("v"), s.input("x") > 0); },
               {"is f32 but its update has type bool", here(-1)});
  // A fraction is not an i32, and nothing is rounded behind the user's back.
  expect_error([](Step& s) { s.next(s.state("n", 0, Mem::i32), 0.5); },
               {"number 0.5 does not fit i32", here(-1)});
  expect_error([](Step& s) { s.next(s.state("n", 0, Mem::i32), 3000000000u); },
               {"number 3e+09 does not fit i32", here(-1)});
  expect_error([](Step& s) { s.next(s.state("n", 0, Mem::u8), 256); },
               {"number 256 does not fit u8", here(-1)});
}

TEST(TraceErrors, Names) {
  expect_error(
      [](Step& s) {
        s.input("x");
        s.param("x", 1);
      },
      {"the name 'x' is used twice", "first at trace_test.cpp:", "a name of its own", here(-2)});
  expect_error(
      [](Step& s) {
        s.output("z", 1);
        s.output("z", 2);
      },
      {"output 'z' is given twice", "first at trace_test.cpp:", "a name of its own", here(-2)});
  expect_error([](Step& s) { s.input(""); }, {"an argument needs a name", here()});
  expect_error([](Step& s) { s.state(""); }, {"an argument needs a name", here()});
  expect_error([](Step& s) { s.output("", 1); }, {"an output needs a name", here()});
  expect_error([](Step& s) { s.input("\xff"); }, {"UTF-8", here()});
  expect_error([](Step& s) { s.output("\xff", 1); }, {"UTF-8", here()});
}

TEST(TraceErrors, Ranges) {
  expect_error([](Step& s) { s.param("tau", 0.5, {1, 2}); },
               {"default 0.5 of param 'tau'", "[1, 2]", "change", here(-1)});
  expect_error([](Step& s) { s.step_param("tau", NAN); }, {"default nan of param 'tau'", here()});
  expect_error([](Step& s) { s.param("tau", 1, {2, 0}); }, {"param 'tau'", "[2, 0]", here()});
}

TEST(TraceErrors, TypesOfOperands) {
  expect_error(
      [](Step& s) { s.output("z", select(s.input("x"), 1, 0)); },
      {"the condition of 'select' must be a bool value, found f32", "compare it, as in z > 0", here(-1)});
  expect_error([](Step& s) { s.output("z", select(true, s.input("x"), 0)); },
               {"condition", "found a number", here(-1)});
  expect_error([](Step& s) { s.output("z", s.input("x") && s.input("y")); },
               {"'bit_and' takes i32 or bool, found f32", "cast", here(-1)});
  expect_error([](Step& s) { s.output("z", !s.input("x", Mem::bf16)); },
               {"'bit_not'", "found bf16", "cast", here(-1)});
  expect_error([](Step& s) { s.output("z", s.input("x") << 1); },
               {"'shift_left' takes i32, found f32", "cast", here(-1)});
  expect_error([](Step& s) { s.output("z", s.input("n", Mem::i32) << 0.5); },
               {"'shift_left'", "cast", here(-1)});
  expect_error([](Step& s) { s.output("z", bits(s.input("x", Mem::f64))); },
               {"'bits' takes f32, found f64", here(-1)});
  expect_error([](Step& s) { s.output("z", s.input("n", Mem::i32) + 3000000000u); },
               {"3e+09", "i32", here(-1)});
}

TEST(TraceErrors, TheRemedyForAnUpdateOfAnotherTypeWorks) {
  EXPECT_NO_THROW(traced([](Step& s) {
    s.next(s.state("h", 0, Mem::f16), round_f16(s.input("a", Mem::f64)));
    s.next(s.state("b", 0, Mem::bf16), round_bf16(s.input("c", Mem::f16)));
    s.next(s.state("u", 0, Mem::u8), round_u8(s.input("d", Mem::i32)));
    s.next(s.state("t", 0, Mem::b8), cast(s.input("e"), Type::b1));
    s.next(s.state("i", 0, Mem::i32), cast(s.input("f"), Type::i32));
  }));
}

TEST(TraceErrors, InitialValuesAndDefaultsMustFit) {
  expect_error([](Step& s) { s.next(s.state("k", 0.5, Mem::i32), 1); },
               {"initial value 0.5 of 'k' does not fit i32"});
  expect_error([](Step& s) { s.next(s.state("k", 300, Mem::u8), 1); },
               {"initial value 300 of 'k' does not fit u8"});
  expect_error([](Step& s) { s.output("z", s.param("k", 2, {}, Mem::b8)); },
               {"default 2 of 'k' does not fit bool"});
  expect_error([](Step& s) { s.output("z", s.param("k", 1e39)); }, {"default 1e+39 of 'k' does not fit f32"});
  expect_error([](Step& s) { s.param("k", 1, {.low = 2, .high = 1}); },
               {"range [2, 1] of param 'k' is empty"});
}

TEST(Trace, TheCallersFloatModeChangesNothing) {
  const auto text = [] {
    return show(neuron("n", [](Step& s) { s.output("z", s.input("x") * 1e-40 + 0.1); }));
  };
  const std::string expected = text();
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const std::string upward = text();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(upward, expected);
}

TEST(TraceErrors, ValuesOfOtherTraces) {
  std::optional<Value> kept;
  std::optional<Step> kept_step;
  neuron("first", [&](Step& s) { kept = s.input("old"), kept_step = s; }).graph();
  const auto message = [](const std::function<void()>& use) -> std::string {
    try {
      use();
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message([&] { *kept + 1.0; }).find("neuron 'first': value 'old' is used after the step function"),
            std::string::npos);
  EXPECT_NE(message([&] { spike(*kept); }).find(here()), std::string::npos);
  EXPECT_NE(message([&] { kept_step->input("late"); }).find("declare arguments inside it " + here()),
            std::string::npos);
  EXPECT_NE(message([&] { kept_step->output("late", 1); }).find("give outputs inside it " + here()),
            std::string::npos);
  EXPECT_NE(message([&] { kept_step->next(*kept, 1); }).find("update states inside it " + here()),
            std::string::npos);
  EXPECT_NE(message([&] { kept_step->step_index(); }).find("ask for the index inside it " + here()),
            std::string::npos);
  expect_error(
      [&](Step& s) { s.output("z", s.input("x") + *kept); },
      {"value 'old' belongs to neuron 'first'", "use only values made in this step function", here(-1)});
  expect_error([&](Step& s) { s.output("z", *kept); }, {"'old' belongs to neuron 'first'", here()});
  expect_error([&](Step& s) { s.next(s.state("v"), *kept); }, {"'old' belongs to neuron 'first'", here()});
  expect_error([&](Step& s) { s.next(*kept, s.input("x")); }, {"'old' belongs to neuron 'first'", here()});
  expect_error([&](Step& s) { s.output("z", *kept + s.input("x")); },
               {"neuron 'cell'", "value 'old' belongs to neuron 'first'", here(-1)});
  neuron("cell", [&](Step& s) { kept = s.input("old"); }).graph();
  expect_error([&](Step& s) { s.output("z", s.input("x") * *kept); },
               {"as it was traced another time", here(-1)});
}

TEST(TraceErrors, NumbersOnly) {
  try {
    exp(Operand(1.0));
    FAIL() << "there is no trace to add to";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'exp' got numbers only"), std::string::npos) << text;
    EXPECT_NE(text.find("standard library"), std::string::npos) << text;
    EXPECT_NE(text.find(here(-6)), std::string::npos) << text;
  }
  EXPECT_THROW(spike(Operand(1.0)), UserError);
  EXPECT_THROW(cast(Operand(1), Type::f64), UserError);
}

TEST(TraceErrors, Neurons) {
  EXPECT_THROW(neuron("", leaky), UserError);
  EXPECT_THROW(neuron("cell", nullptr), UserError);
  EXPECT_THROW(neuron("cell", StepFunction()), UserError);
  for (Mem type : {Mem::i32, Mem::u8, Mem::b8}) EXPECT_THROW(neuron("cell", leaky).graph(type), UserError);
}

TEST(TraceErrors, ExceptionsOfTheUserPassThrough) {
  struct Mine {
    int number;
  };
  bool fail = true;
  const Neuron cell = neuron("cell", [&](Step& s) {
    const Value z = spike(s.input("x"), {"mine",
                                         [&](const Value& u) -> Value {
                                           if (fail) throw Mine{42};
                                           return u;
                                         },
                                         {}});
    s.output("z", z);
  });
  try {
    cell.graph();
    FAIL() << "the exception was lost";
  } catch (const Mine& mine) {
    EXPECT_EQ(mine.number, 42);
  }
  fail = false;
  EXPECT_EQ(cell.graph().results.size(), 1u);
  EXPECT_NO_THROW(traced(leaky));
}

TEST(TraceErrors, AStepThatNeverSettlesEnds) {
  // A step function must do the same each time; one that does not gets an error, not a hang.
  int round = 0;
  const Neuron cell = neuron("cell", [&](Step& s) {
    const Value v = s.state("v" + std::to_string(++round));
    s.next(v, v + s.param("wide", 1, {}, Mem::f64));
    if (round > 10000) throw std::runtime_error("traced 10000 times");
  });
  EXPECT_THROW(cell.graph(), UserError);
}

}  // namespace
}  // namespace flexsn
