// What a caller can get wrong when running, simulating or naming a neuron, and what the error says.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "flexsn/flexsn.h"

namespace flexsn {
namespace {

const Neuron gated = neuron("gated", [](Step& s) {
  auto x = s.input("x"), gate = s.input("gate"), v = s.state("v");
  auto tau = s.param("tau", 2, {.low = 1});
  auto drive = s.step_param("drive", 1);
  s.next(v, v + (x * gate * drive - v) / tau);
  s.output("v", v);
});

Arguments good() {
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {4, 2, 3}, 1);
  arguments.inputs["gate"] = Array(Mem::f32, {4, 2, 3}, 1);
  return arguments;
}

/// The call throws a UserError whose text holds every part.
template <class Call>
void expect_error(Call call, const std::vector<std::string>& parts) {
  try {
    call();
    FAIL() << "no error; expected one with '" << parts[0] << "'";
  } catch (const UserError& error) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << "\nlacks: " << part;
  }
}

struct Wrong {
  const char* name;
  std::function<void(Arguments&)> spoil;
  std::vector<std::string> parts;
};

TEST(Run, GoodArgumentsRun) {
  EXPECT_EQ(run(gated, good()).outputs["v"].shape, (std::vector<std::int64_t>{4, 2, 3}));
}

TEST(Run, WrongArgumentsAreNamed) {
  const std::vector<Wrong> cases = {
      {"missing input",
       [](Arguments& a) { a.inputs.erase("gate"); },
       {"neuron 'gated'", "input 'gate' is missing", "[T, step shape]"}},
      {"unknown input",
       [](Arguments& a) { a.inputs["gaet"] = a.inputs["x"]; },
       {"no input 'gaet'", "did you mean 'gate'"}},
      {"unknown state", [](Arguments& a) { a.states["u"] = a.inputs["x"]; }, {"no state 'u'"}},
      {"unknown param",
       [](Arguments& a) { a.params["tua"] = a.inputs["x"]; },
       {"no param 'tua'", "did you mean 'tau'"}},
      {"input of another type",
       [](Arguments& a) { a.inputs["x"] = Array(Mem::f64, {4, 2, 3}); },
       {"input 'x' must be f32, found f64", "convert"}},
      {"another T",
       [](Arguments& a) { a.inputs["gate"] = Array(Mem::f32, {5, 2, 3}); },
       {"'gate'", "has 5 steps", "4 are expected"}},
      {"another T than said", [](Arguments& a) { a.steps = 9; }, {"has 4 steps", "9 are expected"}},
      {"another shape",
       [](Arguments& a) { a.inputs["gate"] = Array(Mem::f32, {4, 3, 2}); },
       {"step shape", "[2, 3]", "[3, 2]"}},
      {"no time dimension",
       [](Arguments& a) { a.inputs["x"] = Array(Mem::f32, {}); },
       {"input 'x' has no time dimension"}},
      {"state of an old shape",
       [](Arguments& a) { a.states["v"] = Array(Mem::f32, {7}); },
       {"state 'v' has shape [7]", "[2, 3]", "reset"}},
      {"state of another type",
       [](Arguments& a) { a.states["v"] = Array(Mem::f16, {2, 3}); },
       {"state 'v' must be f32, found f16"}},
      {"param that does not broadcast",
       [](Arguments& a) { a.params["tau"] = Array(Mem::f32, {2}, 2); },
       {"param 'tau' has shape [2]", "[2, 3]", "1 or equal"}},
      {"param with too many dims",
       [](Arguments& a) { a.params["tau"] = Array(Mem::f32, {1, 1, 1}, 2); },
       {"param 'tau'", "does not broadcast"}},
      {"param out of range",
       [](Arguments& a) { a.params["tau"] = Array(Mem::f32, {3}, {2, 0.5, 2}); },
       {"param 'tau' has the value 0.5", "[1, inf]"}},
      {"step param without T",
       [](Arguments& a) { a.params["drive"] = Array(Mem::f32, {3}); },
       {"param 'drive' changes with time", "T = 4", "[3]"}},
      {"negative steps", [](Arguments& a) { a.steps = -1; }, {"must not be negative", "-1"}},
      {"array with lost bytes",
       [](Arguments& a) { a.inputs["x"].bytes.pop_back(); },
       {"input 'x' has 95 bytes", "needs 96"}},
  };
  for (const Wrong& wrong : cases) {
    SCOPED_TRACE(wrong.name);
    Arguments arguments = good();
    wrong.spoil(arguments);
    expect_error([&] { run(gated, arguments); }, wrong.parts);
  }
}

TEST(Run, LimitsBelongToARangeAndNaNDoesNot) {
  const Neuron scale = parse_neuron(
      "neuron n {\ninput x : f32\nparam k : f32 = 0.3 in [0.1, 0.3]\n%y = mul %x, %k\noutput y = %y\n}");
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {1, 1}, 1);
  for (double limit : {0.1, 0.3}) {
    arguments.params["k"] = Array(Mem::f32, {}, limit);
    EXPECT_NO_THROW(run(scale, arguments)) << limit;
  }
  arguments.params["k"] = Array(Mem::f32, {2}, {0.2, std::nan("")});
  arguments.inputs["x"] = Array(Mem::f32, {1, 2}, 1);
  expect_error([&] { run(scale, arguments); },
               {"param 'k' has the value nan at place 1", "[0.1, 0.3]", "change the value"});
}

TEST(Run, ManyExpandedOpsTakeLittleMemory) {
  std::string text = "neuron many {\ninput x : f64\n%0 = pow %x, %x\n";
  constexpr int count = 20000;
  for (int i = 1; i < count; ++i)
    text += "%" + std::to_string(i) + " = pow %x, %" + std::to_string(i - 1) + "\n";
  const Neuron many = parse_neuron(text + "output y = %" + std::to_string(count - 1) + "\n}");
  Arguments arguments{.type = Mem::f64};
  arguments.inputs["x"] = Array(Mem::f64, {1, 1}, 1);
  EXPECT_EQ(run(many, arguments).outputs["y"][0], 1);
}

TEST(Run, WithoutInputsTAndShapeMustBeGiven) {
  const Neuron clock = neuron("clock", [](Step& s) { s.output("t", s.step_index()); });
  expect_error([&] { run(clock, {}); }, {"neuron 'clock'", "no input", "Arguments::steps"});
  expect_error([&] { run(clock, {.steps = 3}); }, {"no input", "Arguments::shape"});
  expect_error([&] { run(clock, {.steps = 3, .shape = std::vector<std::int64_t>{-2}}); },
               {"[-2]", "negative"});
}

TEST(Run, TheNumberOfAStepIsOneThatANeuronCanRead) {
  const Neuron clock = neuron("clock", [](Step& s) { s.output("t", s.step_index()); });
  const Neuron other = neuron("other", [](Step& s) { s.output("y", s.input("x")); });
  const auto from = [](std::int64_t first) {
    return Arguments{.inputs = {}, .steps = 4, .shape = std::vector<std::int64_t>{1}, .first_step = first};
  };
  EXPECT_EQ(run(clock, from(2147483644)).outputs["t"].values(),
            (std::vector<double>{2147483644, 2147483645, 2147483646, 2147483647}));
  expect_error([&] { run(clock, from(2147483645)); },
               {"neuron 'clock': it reads the number of the step, an i32, so first_step + T must be at most "
                "2147483648, found 2147483645 + 4; start again from 0, or count in a state"});
  expect_error([&] { run(clock, from(-1)); }, {"neuron 'clock': first_step must be at least 0, found -1"});
  Arguments late = from(std::int64_t{1} << 40);
  late.inputs["x"] = Array(Mem::f32, {4, 1}, 3);
  EXPECT_EQ(run(other, late).outputs["y"][3], 3) << "who does not read it may count on";
}

TEST(Run, ArraysCheckTheirUse) {
  expect_error([] { Array(Mem::f32, {2, -1}); }, {"must not be negative", "-1"});
  expect_error([] { Array(Mem::f32, {1LL << 40, 1LL << 40}); }, {"more elements than memory"});
  expect_error([] { Array(Mem::f32, {2}, std::vector<double>{1}); }, {"2 elements", "1 values"});
  expect_error([] { Array(Mem::f32, {2})[2]; }, {"index 2", "2 elements"});
  expect_error([] { Array(Mem::f32, {2}).set(-1, 0); }, {"index -1"});
  EXPECT_TRUE(Array().values().empty());
  Results results = run(gated, good());
  EXPECT_TRUE(results.outputs["no such output"].values().empty());
  Array torn(Mem::f32, {2});
  torn.shape = {3};
  expect_error([&] { torn[2]; }, {"3 elements has 8 bytes, but needs 12"});
  EXPECT_EQ(Array(Mem::u8, {3}, std::vector<double>{-5, 300, 2.9}).values(),
            (std::vector<double>{0, 255, 2}));
  EXPECT_EQ(Array(Mem::b8, {2}, std::vector<double>{0, 7}).values(), (std::vector<double>{0, 1}));
}

TEST(Run, TypesThatANeuronCannotBeTracedFor) {
  expect_error([] { show(gated, {.type = Mem::i32}); },
               {"neuron 'gated'", "f16, bf16, f32 or f64", "found i32"});
}

TEST(Neurons, NamesAndOptionsAreChecked) {
  expect_error([] { neuron_named("lfi"); },
               {"no built-in neuron 'lfi'", "did you mean 'lif'", "izhikevich", ".fsn"});
  expect_error([] { neuron_named("lif:tao=3"); }, {"neuron 'lif'", "no option 'tao'", "did you mean 'tau'"});
  expect_error([] { neuron_named("lif:tau=3,tau=4"); }, {"option tau is given twice"});
  expect_error([] { neuron_named("lif:tau"); }, {"OPTION=VALUE", "'tau'"});
  expect_error([] { neuron_named("lif:tau=x"); }, {"option tau must be a number, found 'x'"});
  expect_error([] { neuron_named("lif:tau=0"); }, {"option tau must be a number above 1, found '0'"});
  expect_error([] { neuron_named("plif:init_tau=1"); }, {"init_tau", "above 1"});
  expect_error([] { neuron_named("lif:decay_input=yes"); },
               {"decay_input must be true or false, found 'yes'"});
  expect_error([] { neuron_named("lif:surrogate=step"); }, {"surrogate must be sigmoid, atan", "'step'"});
}

TEST(Simulate, InputsAreChecked) {
  const Neuron lif = neuron_named("lif");
  const auto with = [&](const char* spec) {
    return [&lif, spec] { simulate(lif, {.steps = 4, .inputs = {{"", spec}}}); };
  };
  expect_error(with("stp:1"), {"input 'x' = 'stp:1'", "step:LEVEL", "noise:SEED"});
  expect_error(with("step"), {"expected 1 to 2 numbers", "found 0"});
  expect_error(with("step:a"), {"'a' is not a number"});
  expect_error(with("ramp:1"), {"expected 2 numbers", "found 1"});
  expect_error(with("noise:-1"), {"seed '-1'"});
  expect_error(with("noise:1:2"), {"noise:SEED:LOW:HIGH"});
  expect_error(with("absent.csv"), {"absent.csv", "cannot be read"});
  expect_error([&] { simulate(lif, {}); }, {"input 'x' has no signal", "step:1.5"});
  expect_error([&] { simulate(lif, {.inputs = {{"", "step:1"}, {"y", "step:1"}}}); }, {"no input 'y'"});
  expect_error([&] { simulate(lif, {.inputs = {{"", "step:1"}}, .params = {{"tau", 2}}}); },
               {"no param 'tau'"});
  expect_error([&] { simulate(lif, {.steps = -1, .inputs = {{"", "step:1"}}}); }, {"-1"});
}

TEST(Simulate, SignalsAndColumns) {
  const Neuron copy = neuron("copy", [](Step& s) {
    auto x = s.input("x"), v = s.state("x_before");
    s.next(v, x);
    s.output("y", x);
  });
  EXPECT_EQ(simulate(copy, {.steps = 3, .inputs = {{"x", "step:2:1"}}}),
            "t,x,y,x_before\n0,0,0,0\n1,2,2,2\n2,2,2,2\n");
  EXPECT_EQ(simulate(copy, {.steps = 3, .inputs = {{"x", "ramp:0:1"}}}),
            "t,x,y,x_before\n0,0,0,0\n1,0.5,0.5,0.5\n2,1,1,1\n");
  EXPECT_EQ(simulate(copy, {.steps = 0, .inputs = {{"x", "ramp:0:1"}}}), "t,x,y,x_before\n");
  EXPECT_EQ(simulate(copy, {.steps = 1, .elements = 2, .inputs = {{"x", "step:0.1"}}}),
            "t,n,x,y,x_before\n0,0,0.1,0.1,0.1\n0,1,0.1,0.1,0.1\n");
  const std::string noise = simulate(copy, {.steps = 50, .inputs = {{"x", "noise:7"}}});
  EXPECT_EQ(noise, simulate(copy, {.steps = 50, .inputs = {{"x", "noise:7"}}}));
  EXPECT_NE(noise, simulate(copy, {.steps = 50, .inputs = {{"x", "noise:8"}}}));
  EXPECT_EQ(noise.substr(0, noise.find('\n', 16)), "t,x,y,x_before\n0,0.7796595,0.7796595,0.7796595")
      << "the generator must not change";
}

TEST(Simulate, ReadsColumnsOfAFile) {
  const std::string path = testing::TempDir() + "flexsn_columns.csv";
  std::ofstream(path) << "t, gate, x\n0, 5, 1.5\n1, 6, -2\n";
  const Neuron copy = neuron("copy", [](Step& s) { s.output("y", s.input("x")); });
  EXPECT_EQ(simulate(copy, {.steps = 2, .inputs = {{"", path}}}), "t,x,y\n0,1.5,1.5\n1,-2,-2\n");
  expect_error([&] { simulate(copy, {.steps = 3, .inputs = {{"", path}}}); }, {"has 2 rows", "3 steps"});
  std::ofstream(path) << "1\n2\n";
  EXPECT_EQ(simulate(copy, {.steps = 2, .inputs = {{"", path}}}), "t,x,y\n0,1,1\n1,2,2\n");
  std::ofstream(path) << "a,b\n1,2\n";
  expect_error([&] { simulate(copy, {.steps = 1, .inputs = {{"", path}}}); }, {"no column 'x'"});
  std::ofstream(path) << "x\none\n";
  expect_error([&] { simulate(copy, {.steps = 1, .inputs = {{"", path}}}); }, {"row 2 has no number"});
  std::ofstream(path) << "\n";
  expect_error([&] { simulate(copy, {.steps = 1, .inputs = {{"", path}}}); }, {"is empty"});
  expect_error([&] { load_neuron(path + ".fsn"); }, {"cannot be read", ".fsn"});
  expect_error([&] { load_neuron("/dev/zero"); }, {"'/dev/zero'", "more than 64 MiB", "give an .fsn file"});
  expect_error([&] { load_neuron("/"); }, {"'/'", "cannot be read"});
  std::remove(path.c_str());
}

TEST(Run, LimitsOfABoolAndAnIntegerAreNumbers) {
  const Neuron odd = parse_neuron(
      "neuron odd {\n  input x : f32\n  param p : bool = 0 in [-1, 1]\n  param n : i32 = 1 in [0.5, 3]\n"
      "  %a = to_i32 %p\n  %b = add %a, %n\n  output y = %b : i32\n}\n");
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {1, 1});
  arguments.params["p"] = Array(Mem::b8, {1}, 0);
  EXPECT_EQ(run(odd, arguments).outputs.at("y")[0], 1);
  arguments.params["n"] = Array(Mem::i32, {1}, 0);
  EXPECT_THROW(run(odd, arguments), UserError);
}

}  // namespace
}  // namespace flexsn
