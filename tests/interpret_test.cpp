// Scans over time in the interpreter: shapes, types, states, parameters, chunks.
#include "interpret.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>

#include "text.h"

namespace flexsn {
namespace {

using Values = std::vector<double>;

Array row(std::vector<std::int64_t> shape, const Values& values, Mem type = Mem::f32) {
  return Array(type, std::move(shape), values);
}

const Neuron accumulate = neuron("accumulate", [](Step& s) {
  auto x = s.input("x"), v = s.state("v", 1);
  s.next(v, v + x);
  s.output("before", v);
});

TEST(Interpret, RunsStepByStepFromTheInitialState) {
  Arguments arguments;
  arguments.inputs["x"] = row({3, 2}, {1, 10, 2, 20, 3, 30});
  Results results = run(accumulate, arguments);
  EXPECT_EQ(results.outputs["before"].values(), (Values{1, 1, 2, 11, 4, 31}));
  EXPECT_EQ(results.states["v"].values(), (Values{7, 61}));
  EXPECT_EQ(results.states["v"].shape, (std::vector<std::int64_t>{2}));
  arguments.state_sequences = true;
  EXPECT_EQ(run(accumulate, arguments).states["v"].values(), (Values{2, 11, 4, 31, 7, 61}));
}

TEST(Interpret, NoStepsGiveTheStateBack) {
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {0, 3});
  arguments.states["v"] = row({3}, {5, 6, 7});
  Results results = run(accumulate, arguments);
  EXPECT_EQ(results.outputs["before"].shape, (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(results.states["v"].values(), (Values{5, 6, 7}));
  arguments.states.clear();
  EXPECT_EQ(run(accumulate, arguments).states["v"].values(), (Values{1, 1, 1}));
  arguments.state_sequences = true;
  EXPECT_EQ(run(accumulate, arguments).states["v"].size(), 0);
}

TEST(Interpret, NoElementsGiveEmptyResults) {
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {4, 0, 3});
  Results results = run(accumulate, arguments);
  EXPECT_EQ(results.outputs["before"].shape, (std::vector<std::int64_t>{4, 0, 3}));
  EXPECT_EQ(results.states["v"].shape, (std::vector<std::int64_t>{0, 3}));
}

TEST(Interpret, ScalarStepShape) {
  Arguments arguments;
  arguments.inputs["x"] = row({2}, {1, 2});
  EXPECT_EQ(run(accumulate, arguments).states["v"].values(), (Values{4}));
}

TEST(Interpret, StatesMayBeEachOthersOldOnes) {
  const Neuron swap = neuron("swap", [](Step& s) {
    auto a = s.state("a", 1), b = s.state("b", 2), c = s.state("c", 3);
    s.next(a, b);
    s.next(b, c);
    s.next(c, a);
  });
  Arguments arguments{.steps = 4, .shape = std::vector<std::int64_t>{600}};
  Results results = run(swap, arguments);
  EXPECT_EQ(results.states["a"][599], 2);
  EXPECT_EQ(results.states["b"][0], 3);
  EXPECT_EQ(results.states["c"][599], 1);
}

TEST(Interpret, NoOutputNoStateNoInput) {
  const Neuron nothing = neuron("nothing", [](Step& s) { s.input("x"); });
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {2, 2});
  EXPECT_TRUE(run(nothing, arguments).outputs.empty());

  const Neuron clock = neuron("clock", [](Step& s) {
    s.output("t", s.step_index());
    s.output("n", s.element_index());
    s.output("one", 1.0);
  });
  Arguments timed{.steps = 3, .shape = std::vector<std::int64_t>{1, 2}, .first_step = 40};
  Results results = run(clock, timed);
  EXPECT_EQ(results.outputs["t"].values(), (Values{40, 40, 41, 41, 42, 42}));
  EXPECT_EQ(results.outputs["n"].values(), (Values{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(results.outputs["one"].values(), (Values{1, 1, 1, 1, 1, 1}));
}

TEST(Interpret, ParametersBroadcastFromTheRight) {
  const Neuron scale = neuron("scale", [](Step& s) { s.output("y", s.input("x") * s.param("p", 3)); });
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {1, 2, 3}, 1);
  const auto scaled = [&](std::vector<std::int64_t> shape, const Values& values) {
    arguments.params["p"] = row(std::move(shape), values);
    return run(scale, arguments).outputs["y"].values();
  };
  EXPECT_EQ(run(scale, arguments).outputs["y"].values(), (Values{3, 3, 3, 3, 3, 3}));
  EXPECT_EQ(scaled({}, {2}), (Values{2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(scaled({3}, {1, 2, 3}), (Values{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(scaled({2, 1}, {4, 5}), (Values{4, 4, 4, 5, 5, 5}));
  EXPECT_EQ(scaled({1, 3}, {1, 2, 3}), (Values{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(scaled({2, 3}, {1, 2, 3, 4, 5, 6}), (Values{1, 2, 3, 4, 5, 6}));
}

TEST(Interpret, StepParametersChangeWithTime) {
  const Neuron scale = neuron("scale", [](Step& s) { s.output("y", s.input("x") * s.step_param("g", 1)); });
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {2, 3}, 1);
  arguments.params["g"] = row({2}, {5, 7});
  EXPECT_EQ(run(scale, arguments).outputs["y"].values(), (Values{5, 5, 5, 7, 7, 7}));
  arguments.params["g"] = row({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(run(scale, arguments).outputs["y"].values(), (Values{1, 2, 3, 4, 5, 6}));
  arguments.params["g"] = row({2, 1}, {8, 9});
  EXPECT_EQ(run(scale, arguments).outputs["y"].values(), (Values{8, 8, 8, 9, 9, 9}));
}

TEST(Interpret, HalfTypesAreRoundedAtEveryStep) {
  // 1 + 2^-11 is half-way between two f16 numbers: the state falls back to 1 at every step.
  const Neuron creep = neuron("creep", [](Step& s) {
    auto v = s.state("v", 1);
    s.next(v, v + s.param("d", 0x1p-11));
  });
  Arguments arguments{.steps = 50, .shape = std::vector<std::int64_t>{1}, .type = Mem::f16};
  EXPECT_EQ(run(creep, arguments).states["v"][0], 1);
  arguments.type = Mem::bf16;
  EXPECT_EQ(run(creep, arguments).states["v"][0], 1);
  arguments.type = Mem::f32;
  EXPECT_EQ(run(creep, arguments).states["v"][0], 1 + 50 * 0x1p-11);
  EXPECT_EQ(run(creep, arguments).states["v"].type, Mem::f32);
}

TEST(Interpret, MixedTypesMeetInTheWiderOne) {
  const Neuron mixed = neuron("mixed", [](Step& s) {
    auto spikes = s.input("spikes", Mem::u8), on = s.input("on", Mem::b8), x = s.input("x", Mem::f64);
    auto count = s.state("count", 0, Mem::i32), v = s.state("v");
    s.next(count, count + spikes);
    s.next(v, v + x * spikes);
    s.output("any", (spikes > 0) & on);
    s.output("byte", spikes * 2);
  });
  Arguments arguments;
  arguments.inputs["spikes"] = row({2, 2}, {1, 200, 3, 4}, Mem::u8);
  arguments.inputs["on"] = row({2, 2}, {1, 0, 0, 1}, Mem::b8);
  arguments.inputs["x"] = row({2, 2}, {0.1, 0.2, 0.3, 0.4}, Mem::f64);
  Results results = run(mixed, arguments);
  EXPECT_EQ(results.states["count"].values(), (Values{4, 204}));
  EXPECT_EQ(results.states["v"].type, Mem::f64);
  EXPECT_EQ(results.states["v"].values(), (Values{0.1 + 0.3 * 3, 0.2 * 200 + 0.4 * 4}));
  EXPECT_EQ(results.outputs["any"].values(), (Values{1, 0, 0, 1}));
  EXPECT_EQ(results.outputs["byte"].values(), (Values{2, 400 - 256, 6, 8}));
}

TEST(Interpret, ChunksEqualTheWhole) {
  const Neuron adex = neuron_named("adex");
  Arguments whole;
  whole.inputs["x"] = Array(Mem::f32, {10, 700});
  for (std::int64_t n = 0; n < 7000; ++n) whole.inputs["x"].set(n, std::sin(static_cast<double>(n)) + 1);
  const Results expected = run(adex, whole);
  const auto part = [&](std::int64_t from, std::int64_t count) {
    Array array(Mem::f32, {count, 700});
    std::copy_n(whole.inputs["x"].bytes.begin() + from * 700 * 4, array.bytes.size(), array.bytes.begin());
    return array;
  };
  Arguments chunk;
  chunk.inputs["x"] = part(0, 3);
  Results first = run(adex, chunk);
  chunk.inputs["x"] = part(3, 7);
  chunk.states = first.states;
  chunk.first_step = 3;
  Results second = run(adex, chunk);
  std::vector<std::byte> joined = first.outputs["s"].bytes;
  joined.insert(joined.end(), second.outputs["s"].bytes.begin(), second.outputs["s"].bytes.end());
  EXPECT_EQ(joined, expected.outputs.at("s").bytes);
  EXPECT_EQ(second.states["v"].bytes, expected.states.at("v").bytes);
  EXPECT_EQ(second.states["w"].bytes, expected.states.at("w").bytes);
}

TEST(Interpret, LargeScanIsAffordable) {
  constexpr std::int64_t steps = 64, elements = 1000003;
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {steps, elements}, 1.5);
  const Results results = run(neuron_named("lif"), arguments);
  float v = 0;
  for (std::int64_t t = 0; t < steps; ++t) {
    const float h = v + (1.5f - v) * 0.5f;
    const bool fired = h >= 1;
    ASSERT_EQ(results.outputs.at("s")[t * elements + elements - 1], fired) << t;
    v = fired ? 0 : h;
  }
  EXPECT_EQ(results.states.at("v")[0], v);
}

TEST(Interpret, FloatingPointEnvironmentIsSetAndRestored) {
  const Neuron third = neuron("third", [](Step& s) { s.output("y", s.input("x") / 3.0); });
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {1, 1}, 1);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const double y = run(third, arguments).outputs["y"][0];
  const int mode = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(y, 1.0f / 3.0f);
  EXPECT_EQ(mode, FE_UPWARD);
}

TEST(Interpret, SourcesMayHaveAnyTimeStride) {
  const ir::Graph graph = accumulate.graph();
  const float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
  const float v = 0;
  float out[2] = {}, last[1] = {};
  Scan scan;
  scan.steps = 2;
  scan.elements = 1;
  scan.sources = {{.mem = Mem::f32, .data = x + 1, .row_stride = 4}, {.mem = Mem::f32, .data = &v}};
  scan.targets = {{.sequence = out, .row_stride = 1}, {.last = last}};
  interpret(graph, scan);
  EXPECT_EQ(last[0], 2 + 6);
  EXPECT_EQ(out[1], 2);
  scan.sources[0].row_stride = 0;
  interpret(graph, scan);
  EXPECT_EQ(last[0], 2 + 2);
}

}  // namespace
}  // namespace flexsn
