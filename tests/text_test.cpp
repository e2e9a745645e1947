// The `.fsn` text: what is printed reads back as the same graph, and what a person writes is understood.
#include "text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "build.h"
#include "literal.h"
#include "ops.h"
#include "verify.h"

namespace flexsn {
namespace {

using namespace ir;

constexpr PrintStyle with_locations{.names = true, .locations = true};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Parses and verifies; `text` is shown when that fails.
Graph legal(const std::string& text) {
  SCOPED_TRACE(text);
  try {
    Graph graph = parse(text, "test.fsn");
    verify(graph);
    return graph;
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    return {};
  }
}

/// What is printed reads back as the same graph: same text with and without locations, same identity.
void expect_round_trip(const Graph& graph) {
  const std::string text = print(graph), identity = canonical(graph);
  const Graph again = legal(text);
  EXPECT_EQ(print(again), text);
  EXPECT_EQ(canonical(again), identity) << text;
  EXPECT_EQ(canonical(legal(identity)), identity);
  // Read back, a statement without a location has that of the text, so the comparison starts from there.
  const std::string located = print(again, with_locations);
  EXPECT_EQ(print(legal(located), with_locations), located);
  for (const bool names : {true, false}) {
    const std::string line = print(graph, {.names = names, .lines = false});
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_EQ(names ? print(legal(line)) : canonical(legal(line)), names ? text : identity);
  }
}

std::string neuron_of(const std::string& statements) { return "neuron n {\n" + statements + "\n}\n"; }

const Node& result_node(const Graph& graph, std::size_t index = 0) {
  return graph.at(graph.results[index].value);
}

// ---- constants ----------------------------------------------------------------------------------

struct Constant {
  Type type;
  std::uint64_t bits;
};

std::vector<Constant> interesting_constants() {
  std::vector<Constant> all;
  for (std::uint64_t bits : {0x0ull,        0x80000000ull, 0x1ull,        0x80000001ull, 0x7fffffull,
                             0x800000ull,   0x3dcccccdull, 0x3f800000ull, 0xbf800000ull, 0x4b7fffffull,
                             0x5f000000ull, 0x7f7fffffull, 0xff7fffffull, 0x7f800000ull, 0xff800000ull,
                             0x7fc00000ull, 0xffc00000ull, 0x7fc00001ull, 0x7f800001ull, 0xffffffffull})
    all.push_back({Type::f32, bits});
  for (std::uint64_t bits :
       {0x0ull, 0x8000000000000000ull, 0x1ull, 0x800fffffffffffffull, 0x10000000000000ull,
        0x3fb999999999999aull, 0x3ff0000000000000ull, 0x433fffffffffffffull, 0x44b52d02c7e14af6ull,
        0x7fefffffffffffffull, 0x7ff0000000000000ull, 0xfff0000000000000ull, 0x7ff8000000000000ull,
        0xfff8000000000000ull, 0x7ff8000000000123ull, 0x7ff0000000000001ull, 0xffffffffffffffffull})
    all.push_back({Type::f64, bits});
  for (std::uint32_t bits : {0u, 1u, 0xffffffffu, 0x7fffffffu, 0x80000000u, 123456789u})
    all.push_back({Type::i32, bits});
  all.push_back({Type::b1, 0});
  all.push_back({Type::b1, 1});
  return all;
}

TEST(Text, ConstantsKeepEveryBitAsTypedLiterals) {
  constexpr Mem memory[] = {Mem::f32, Mem::f64, Mem::i32, Mem::b8};
  for (const auto& [type, bits] : interesting_constants()) {
    Graph graph;
    const V value = constant_bits(graph, type, bits);
    graph.results.push_back(
        {.gives = Gives::output, .name = "z", .mem = memory[static_cast<int>(type)], .value = value.id});
    const Graph again = legal(print(graph));
    ASSERT_EQ(again.results.size(), 1u);
    EXPECT_EQ(result_node(again).type, type);
    EXPECT_EQ(result_node(again).immediate, bits) << print(graph);
    expect_round_trip(graph);
  }
}

TEST(Text, ConstantsKeepEveryBitAsBareOperands) {
  for (const auto& [type, bits] : interesting_constants()) {
    Graph graph;
    constexpr Mem memory[] = {Mem::f32, Mem::f64, Mem::i32, Mem::b8};
    const Mem mem = memory[static_cast<int>(type)];
    const V x = add_argument(graph, {.role = Role::input, .name = "x", .mem = mem});
    const V same = eq(x, constant_bits(graph, type, bits));
    graph.results.push_back({.gives = Gives::output, .name = "z", .mem = Mem::b8, .value = same.id});
    const std::string text = print(graph);
    EXPECT_EQ(text.find('(') == std::string::npos, text.find("nan(") == std::string::npos)
        << "bare: " << text;
    const Graph again = legal(text);
    EXPECT_EQ(again.at(result_node(again).operands[1]).immediate, bits) << text;
    expect_round_trip(graph);
  }
}

TEST(Text, EveryFloatPatternOfARandomWalkSurvives) {
  std::uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t mixed = state ^ (state >> 29);
    const Type type = i % 2 ? Type::f32 : Type::f64;
    const std::uint64_t bits = type == Type::f32 ? mixed >> 32 : mixed;
    const std::string number = std::string(name_of(type)) + "(" + literal(type, bits) + ")";
    ASSERT_EQ(result_node(parse("neuron { output = " + number + " }", "t")).immediate, bits) << number;
  }
}

TEST(Text, NumbersAreReadAsWritten) {
  const std::pair<const char*, float> cases[] = {
      {"0.1", 0.1f},
      {".5", 0.5f},
      {"5.", 5.0f},
      {"+3", 3.0f},
      {"-0", -0.0f},
      {"1e-3", 1e-3f},
      {"1E+3", 1e3f},
      {"0x1.8p+1", 3.0f},
      {"0x10", 16.0f},
      {"-0x.8p0", -0.5f},
      {"16777217", 0x1p24f},
      {"1e-45", 0x1p-149f},
      {"inf", INFINITY},
      {"-inf", -INFINITY},
      {"+inf", INFINITY},
      {"0.000000000000000000001e21", 1.0f},
      {"1e-60", 0.0f},
      {"1e-400", 0.0f},
      {"-1e-60", -0.0f},
      {"0e999999", 0.0f},
      {"0.0000000000000000000000000000000000000000000000000000000001e2", 0.0f},
      {"0x1p-200", 0.0f},
      {"0xep-400", 0.0f},
      {"0x0.0001p-149", 0.0f},
      {"3.4028235e38", 0x1.fffffep127f}};
  for (const auto& [number, value] : cases) {
    const Graph graph = legal(neuron_of("output z = f32(" + std::string(number) + ")"));
    ASSERT_EQ(graph.results.size(), 1u) << number;
    EXPECT_EQ(result_node(graph).immediate, std::bit_cast<std::uint32_t>(value)) << number;
  }
}

TEST(Text, NumbersThatAreTooLargeAreNotRead) {
  const std::string many_zeros(60, '0');
  for (const std::string& number :
       {std::string("1e39"), "1" + many_zeros, "1" + many_zeros + "e-1", "1" + many_zeros + ".0",
        std::string("0x1p128"), "0x1" + many_zeros + "p-1", std::string("1e99999999999999999999"),
        "0." + many_zeros + "1e120"})
    EXPECT_EQ(read_literal(Type::f32, number), std::nullopt) << number;
}

// ---- whole graphs -------------------------------------------------------------------------------

TEST(Text, CorpusRoundTrips) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FLEXSN_TESTS_DIR "/corpus")) {
    SCOPED_TRACE(entry.path().filename());
    expect_round_trip(legal(read_file(entry.path())));
    ++count;
  }
  EXPECT_GE(count, 12);
}

TEST(Text, PrintedFormIsTheOneWeShow) {
  const Graph graph = legal(neuron_of(
      "param tau:f32=2 in[1,inf]\nstate v : f32=-0.5\ninput x:f32\n%d=reciprocal %tau\n%h=fma %x,%d,%v\n"
      "next v=%h\noutput z=%h"));
  EXPECT_EQ(print(graph), R"(neuron n {
  input x : f32
  state v : f32 = -0.5
  param tau : f32 = 2 in [1, inf]
  %d = reciprocal %tau : f32  # once a call
  %h = fma %x, %d, %v : f32
  output z = %h : f32
  next v = %h
}
)");
  EXPECT_EQ(canonical(graph), R"(neuron {
input : f32
state : f32
param : f32
%3 = reciprocal %2
%4 = fma %0, %3, %1
output = %4 : f32
next %1 = %4
}
)");
}

TEST(Text, ArgumentsKeepWhatTheySay) {
  const Graph graph = legal(print(legal(neuron_of(
      "input a : u8\nstate s : f64 = 0x1.8p-3\nstate t : f32 = -0\nparam p : f32 per_step = "
      "0.1 in [-inf, 2]\n"
      "param q : i32 = -3 in [-4, inf]\nparam r : f32 = inf in [inf, inf]\nparam no_default : f32 in [4, 8]\n"
      "state n : f32 = nan(0x7ff8000000000005)\nnext s = %s\nnext t = 1\nnext n = %n"))));
  ASSERT_EQ(graph.arguments.size(), 8u);
  const auto named = [&](std::string_view name) {
    return *std::find_if(graph.arguments.begin(), graph.arguments.end(),
                         [&](const Argument& argument) { return argument.name == name; });
  };
  EXPECT_EQ(named("a").mem, Mem::u8);
  EXPECT_EQ(named("s").initial, 0.1875);
  EXPECT_TRUE(std::signbit(named("t").initial));
  EXPECT_TRUE(named("p").per_step);
  EXPECT_TRUE(named("p").has_default);
  EXPECT_FALSE(named("no_default").has_default);
  EXPECT_EQ(named("no_default").range.high, 8);
  EXPECT_FALSE(named("s").has_default);
  EXPECT_EQ(named("p").initial, 0.1);
  EXPECT_EQ(named("p").range.low, -INFINITY);
  EXPECT_EQ(named("p").range.high, 2);
  EXPECT_FALSE(named("q").per_step);
  EXPECT_EQ(named("q").range.low, -4);
  EXPECT_EQ(named("r").range.low, INFINITY);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(named("n").initial), 0x7ff8000000000005u);
}

TEST(Text, JointGraphsKeepTheirGradients) {
  const Graph graph = legal(read_file(FLEXSN_TESTS_DIR "/corpus/joint.fsn"));
  for (const std::string& text : {print(graph), canonical(graph)}) {
    const Graph again = legal(text);
    ASSERT_EQ(again.arguments.size(), 6u);
    EXPECT_EQ(again.arguments[3].role, Role::grad_output);
    EXPECT_EQ(again.results[again.arguments[3].of].gives, Gives::output);
    EXPECT_EQ(again.arguments[3].of, 0);
    EXPECT_EQ(again.arguments[4].of, 1);
    EXPECT_EQ(again.arguments[5].role, Role::grad_next);
    EXPECT_EQ(again.arguments[again.arguments[5].of].role, Role::state);
    std::vector<int> gradients;
    for (const Result& result : again.results)
      if (result.gives == Gives::grad) gradients.push_back(result.of);
    EXPECT_EQ(gradients, (std::vector<int>{0, 1, 2}));
  }
}

TEST(Text, ExpandedMarkSurvives) {
  EXPECT_TRUE(legal("neuron expanded { }").expanded);
  EXPECT_TRUE(legal("neuron expanded { }").name.empty());
  EXPECT_TRUE(legal("neuron x expanded { }").expanded);
  EXPECT_EQ(legal("neuron \"expanded\" { }").name, "expanded");
  EXPECT_FALSE(legal("neuron \"expanded\" { }").expanded);
  EXPECT_EQ(print(legal("neuron \"expanded\" expanded { }")), "neuron \"expanded\" expanded {\n}\n");
  EXPECT_NE(canonical(legal("neuron expanded { }")), canonical(legal("neuron { }")));
}

TEST(Text, QuotedNamesSurvive) {
  for (const std::string name : {"a b", "of", "expanded", "%", "\"", "\\", "\\x41", "µV", "a\nb", "nan", "-1",
                                 "0x1", "input", "#", "\x7f", "per_step", "in", "1e5", "1.5"}) {
    Graph graph;
    graph.name = name;
    const V x = add_argument(graph, {.role = Role::input, .name = name.empty() ? "x" : name});
    const V y = add_argument(graph, {.role = Role::state, .name = name + "'", .mem = Mem::f32});
    const V sum = x + y;
    graph.results.push_back({.gives = Gives::output, .name = name, .value = sum.id});
    graph.results.push_back({.gives = Gives::next, .of = 1, .value = (sum * 2.0).id});
    const Graph again = legal(print(graph));
    ASSERT_EQ(again.arguments.size(), 2u);
    EXPECT_EQ(again.name, name);
    EXPECT_EQ(again.arguments[0].name, graph.arguments[0].name);
    EXPECT_EQ(again.arguments[1].name, graph.arguments[1].name);
    EXPECT_EQ(again.results[0].name, name);
    expect_round_trip(graph);
  }
}

TEST(Text, AValuesNameMayBeTakenByAnother) {
  // Names of ops are for people: two ops, or an op and an argument, may want the same one.
  Graph graph;
  const V x = add_argument(graph, {.role = Role::input, .name = "x"});
  const V a = x + x, b = a * a;
  for (V value : {a, b}) graph.debug[value.id].name = "h";
  const V c = b + a;
  graph.debug[c.id].name = "x";
  graph.results.push_back({.gives = Gives::output, .name = "z", .value = c.id});
  expect_round_trip(graph);
  // An argument goes by its own name even where its node was given another.
  graph.debug[x.id].name = "y";
  expect_round_trip(graph);
}

TEST(Text, LocationsSurvive) {
  const Graph graph = legal(read_file(FLEXSN_TESTS_DIR "/corpus/locations.fsn"));
  const Graph again = legal(print(graph, with_locations));
  EXPECT_EQ(place(again, again.arguments[0].location), "lif.cpp:12");
  EXPECT_EQ(place(again, again.arguments[2].location), "dir/other file.py:4");
  EXPECT_EQ(place(again, again.results[0].location), "lif.cpp:15");
  EXPECT_EQ(place(again, again.debug_at(again.results[0].value).location), "dir/other file.py:2147483647");
  // Without its own location, a statement has the line of the text.
  const Graph plain = parse("\nneuron {\ninput x : f32\n# no\n%h = add %x, 1\noutput z = %h\n}", "plain.fsn");
  EXPECT_EQ(place(plain, plain.arguments[0].location), "plain.fsn:3");
  EXPECT_EQ(place(plain, plain.debug_at(plain.results[0].value).location), "plain.fsn:5");
  EXPECT_EQ(place(plain, plain.results[0].location), "plain.fsn:6");
}

// ---- identity -----------------------------------------------------------------------------------

TEST(Text, CanonicalFormIgnoresNamesPlacesDefaultsAndOrderOfRoles) {
  const std::string one =
      canonical(legal("neuron a {\ninput x : f32 @ \"f\":1\nparam p : f32 = 2 in [0, 4]\nstate v : f32 = 3\n"
                      "%s = add %x, %v @ \"g\":7\n%t = mul %s, %p\noutput z = %t\nnext v = %s\n}"));
  const std::string two = canonical(legal(
      "# other\nneuron b {\n state w:f32\n\n param q:f32 = 1\n input i:f32\n%0=add %i,%w\n%1=mul %0,%q:f32\n"
      "next w=%0\noutput=%1\n}"));
  EXPECT_EQ(one, two);
  EXPECT_EQ(one.find_first_of("@\"#"), std::string::npos) << one;
}

TEST(Text, CanonicalFormIgnoresDeadNodesAndTheOrderInWhichNodesWereMade) {
  const std::string one = canonical(
      legal(neuron_of("input x : f32\n%a = add %x, 1\n%b = mul %x, 2\n%c = sub %a, %b\noutput z = %c")));
  const std::string two = canonical(legal(neuron_of(
      "input x : f32\n%b = mul %x, 2\n%dead = exp %b\n%a = add %x, 1\n%c = sub %a, %b\noutput z = %c")));
  EXPECT_EQ(one, two);
  EXPECT_EQ(one.find("exp"), std::string::npos);
}

TEST(Text, CanonicalFormTellsDifferentNeuronsApart) {
  const std::vector<std::string> texts = {
      "input x : f32\noutput z = %x",
      "input x : f64\noutput z = %x",
      "param x : f32\noutput z = %x",
      "param x : f32 per_step\noutput z = %x",
      "input x : f32\noutput z = %x\noutput y = %x",
      "input x : f32\ninput y : f32\noutput z = %x",
      "input x : f32\ninput y : f32\noutput z = %y",
      "input x : f32\n%y = add %x, 0\noutput z = %y",
      "input x : f32\n%y = add %x, -0\noutput z = %y",
      "input x : f32\n%y = add 0, %x\noutput z = %y",
      "input x : f32\n%y = sub %x, 0\noutput z = %y",
      "input x : f32\n%y = add %x, nan\noutput z = %y",
      "input x : f32\n%y = add %x, nan(0x7fc00001)\noutput z = %y",
      "input x : f16\noutput z = %x : f16",
      "input x : f16\noutput z = %x : f32",
      "output z = f32(1)",
      "output z = f64(1)",
      "output z = i32(1)",
      "input x : f32\n%a = neg %x\n%b = abs %x\n%y = sub %a, %b\noutput z = %y",
      "input x : f32\n%a = neg %x\n%b = abs %x\n%y = sub %b, %a\noutput z = %y",
      "state v : f32\nnext v = 1",
      "state v : f32\nnext v = %v"};
  std::map<std::string, std::string> seen;
  for (const std::string& text : texts) {
    const auto [known, fresh] = seen.emplace(canonical(legal(neuron_of(text))), text);
    EXPECT_TRUE(fresh) << text << "\nand\n" << known->second;
  }
}

// ---- what a person writes -----------------------------------------------------------------------

TEST(Text, HandWritingIsUnderstood) {
  const std::string plain =
      neuron_of("input x : f32\nstate v : f32\n%h = add %x, %v\noutput z = %h\nnext %v = %h");
  const std::string expected = canonical(legal(plain));
  std::string crlf, tabs, old_blanks, one_line;
  for (char c : plain) {
    crlf += c == '\n' ? "\r\n" : std::string(1, c);
    tabs += c == ' ' ? "\t " : std::string(1, c);
    one_line += c == '\n' ? ';' : c;
    old_blanks += c == '\n' ? "  # comment with { } % \" \\ µ\n\n   \n" : std::string(1, c);
  }
  const std::vector<std::string> ways = {
      crlf,
      tabs,
      old_blanks,
      one_line,
      "neuron n {;; input x : f32;state v : f32 ;\n; %h = add %x, %v; output z = %h; next v = %h } # ; }",
      "\xef\xbb\xbf" + plain,
      plain.substr(0, plain.size() - 1),
      "neuron n{ input x:f32\nstate v:f32\n%h=add %x,%v\noutput z=%h\nnext v=%h}",
      "neuron n {\ninput x : f32\nstate v : f32\n%h = add %x, %v : f32\noutput z = %h : f32\nnext v = %h }# "
      "end",
      "neuron {\ninput \"x\" : f32\nstate v : f32 = 0.0\n%\"h\" = add %\"x\", %v\noutput = %h\nnext \"v\" = "
      "%h\n}\n\n"};
  for (const std::string& text : ways) EXPECT_EQ(canonical(legal(text)), expected) << text;
}

TEST(Text, LeavesMayEndTheirLineInAnyWay) {
  const std::vector<Node> expected = legal("neuron {\n%i = step_index\n}").nodes;
  ASSERT_EQ(expected.size(), 1u);
  for (const char* text : {"neuron {\n%i = step_index }", "neuron { %i = step_index : i32 }",
                           "neuron { %i = step_index # c\n}", "neuron { %i = step_index @ \"f\":1 }"})
    EXPECT_EQ(legal(text).nodes, expected) << text;
}

TEST(Text, LiteralsTakeTheTypeBesideThem) {
  const std::tuple<const char*, Type, std::uint64_t> cases[] = {
      {"%y = add %a, 1", Type::f32, 0x3f800000},
      {"%y = add %b, 1", Type::f64, 0x3ff0000000000000},
      {"%y = add %c, 1", Type::i32, 1},
      {"%y = eq %d, true", Type::b1, 1},
      {"%y = add %a, f32(1)", Type::f32, 0x3f800000},
      {"%y = select %d, %b, 1", Type::f64, 0x3ff0000000000000},
  };
  for (const auto& [statement, type, bits] : cases) {
    const Graph graph = legal(
        neuron_of(std::string("input a : f32\ninput b : f64\ninput c : i32\ninput d : bool\n") + statement));
    const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                    [](const Node& node) { return node.op == Op::constant; });
    ASSERT_NE(found, graph.nodes.end()) << statement;
    EXPECT_EQ(found->type, type) << statement;
    EXPECT_EQ(found->immediate, bits) << statement;
  }
}

TEST(Text, ABoolStateMayStartAtAWord) {
  for (const auto& [start, value] : {std::pair("true", 1.0), {"false", 0.0}, {"1", 1.0}}) {
    const std::string text = std::string("state s : bool = ") + start + "\nnext s = %s";
    EXPECT_EQ(legal(neuron_of(text)).arguments[0].initial, value) << start;
  }
}

TEST(Text, EveryRowHasAText) {
  constexpr Mem memory[] = {Mem::f32, Mem::f64, Mem::i32, Mem::b8};
  for (Op op : all_ops()) {
    const Row& row = row_of(op);
    for (Type t : {Type::f32, Type::f64, Type::i32, Type::b1}) {
      if (!row.is_leaf() && !row.meaning.sig.types.has(t)) continue;
      Graph graph;
      graph.expanded = row.raw;
      Node node{.op = op, .type = type_of(row.meaning.sig.result, t)};
      for (int i = 0; i < row.arity; ++i) {
        const Mem mem = memory[static_cast<int>(operand_type(row, i, t))];
        node.operands[i] =
            add_argument(graph, {.role = Role::input, .name = "x" + std::to_string(i), .mem = mem}).id;
      }
      const Id id = graph.append(node);
      graph.results.push_back(
          {.gives = Gives::output, .name = "y", .mem = memory[static_cast<int>(node.type)], .value = id});
      SCOPED_TRACE(row.name);
      EXPECT_EQ(legal(print(graph)).nodes, graph.nodes);
      expect_round_trip(graph);
    }
  }
}

}  // namespace
}  // namespace flexsn
