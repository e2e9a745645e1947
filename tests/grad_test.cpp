// Gradients of a step and through time: against formulas, central differences, a naive tape, and themselves.
#include "grad.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>

#include "backward.h"
#include "build.h"
#include "expand.h"
#include "ops.h"
#include "random.h"
#include "random_graph.h"
#include "reduce.h"
#include "simplify.h"
#include "tape.h"
#include "text.h"
#include "trial.h"
#include "verify.h"

namespace flexsn {
namespace {

using namespace ir;
using test::Tape;

/// Two inputs, three states, a parameter for all, one for each channel and one for each step: smooth.
const Neuron smooth = neuron("smooth", [](Step& s) {
  auto x = s.input("x"), y = s.input("y");
  auto a = s.state("a", 0.1), b = s.state("b"), c = s.state("c", -0.2);
  auto tau = s.param("tau", 2), gain = s.param("gain", 1), drive = s.step_param("drive", 1);
  auto h = a + (x * drive - a) / tau;
  auto u = tanh(h * gain + b);
  s.next(a, 0.8 * u + 0.1 * y * c);
  s.next(b, sigmoid(b - u));
  s.next(c, sin(c + x));
  s.output("u", u);
  s.output("v", u * u + b);
});

constexpr std::int64_t steps = 5, channels = 3, elements = 2 * channels;

/// With `edges` every eighth number is a zero, an infinity, NaN, huge or tiny.
Array random_array(std::vector<std::int64_t> shape, Random& random, Mem type, double low = -1,
                   double high = 1, bool edges = false) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr double some[] = {0.0, -0.0, inf, -inf, std::numeric_limits<double>::quiet_NaN(), 3e38, 1e-40, -1};
  Array array(type, std::move(shape));
  for (std::int64_t n = 0; n < array.size(); ++n) {
    const std::uint64_t dice = edges ? random.next() >> 32 : 1;
    array.set(n, dice % 8 == 0 ? some[dice / 8 % std::size(some)] : random.uniform(low, high));
  }
  return array;
}

struct Case {
  Arguments arguments;
  Arriving arriving;
};

Case random_case(Mem type, bool sequences, std::uint64_t seed) {
  Random random(seed);
  Case c;
  c.arguments.type = type;
  c.arguments.state_sequences = sequences;
  for (const char* name : {"x", "y"})
    c.arguments.inputs[name] = random_array({steps, 2, channels}, random, type);
  for (const char* name : {"a", "b", "c"})
    c.arguments.states[name] = random_array({2, channels}, random, type);
  c.arguments.params["tau"] = random_array({}, random, type, 1.5, 2.5);
  c.arguments.params["gain"] = random_array({channels}, random, type);
  c.arguments.params["drive"] = random_array({steps, 2, 1}, random, type);
  for (const char* name : {"u", "v"})
    c.arriving.outputs[name] = random_array({steps, 2, channels}, random, type);
  std::vector<std::int64_t> shape = {2, channels};
  if (sequences) shape.insert(shape.begin(), steps);
  for (const char* name : {"a", "b", "c"}) c.arriving.states[name] = random_array(shape, random, type);
  return c;
}

/// The sum of all results, each weighted by the gradient that arrives at it.
double loss(const Neuron& neuron, const Case& c) {
  const Results results = run(neuron, c.arguments);
  double sum = 0;
  for (const auto& [name, weights] : c.arriving.outputs)
    for (std::int64_t n = 0; n < weights.size(); ++n) sum += weights[n] * results.outputs.at(name)[n];
  for (const auto& [name, weights] : c.arriving.states)
    for (std::int64_t n = 0; n < weights.size(); ++n) sum += weights[n] * results.states.at(name)[n];
  return sum;
}

void expect_differences(const Neuron& neuron, Case c) {
  const Gradients gradients = run_backward(neuron, c.arguments, c.arriving);
  const auto compare = [&](std::map<std::string, Array>& arrays, const std::map<std::string, Array>& found) {
    for (auto& [name, array] : arrays) {
      ASSERT_TRUE(found.contains(name)) << name;
      ASSERT_EQ(found.at(name).shape, array.shape) << name;
      for (std::int64_t n = 0; n < array.size(); ++n) {
        const double value = array[n], step = 1e-6;
        array.set(n, value + step);
        const double above = loss(neuron, c);
        array.set(n, value - step);
        const double below = loss(neuron, c);
        array.set(n, value);
        EXPECT_NEAR(found.at(name)[n], (above - below) / (2 * step), 1e-7) << name << " " << n;
      }
    }
  };
  compare(c.arguments.inputs, gradients.inputs);
  compare(c.arguments.states, gradients.states);
  compare(c.arguments.params, gradients.params);
}

TEST(Grad, AgreesWithCentralDifferencesThroughTime) {
  expect_differences(smooth, random_case(Mem::f64, false, 1));
  expect_differences(smooth, random_case(Mem::f64, true, 2));
}

TEST(Grad, AbsentGradientsAreZeroInEffect) {
  for (const char* only : {"u", "v"}) {
    Case c = random_case(Mem::f64, false, 3);
    const Array kept = c.arriving.outputs.at(only);
    c.arriving = {};
    c.arriving.outputs[only] = kept;
    expect_differences(smooth, c);
  }
  for (const char* only : {"a", "b", "c"}) {
    Case c = random_case(Mem::f64, true, 4);
    const Array kept = c.arriving.states.at(only);
    c.arriving = {};
    c.arriving.states[only] = kept;
    expect_differences(smooth, c);
  }
}

TEST(Grad, LifFollowsTheFormula) {
  // Hard reset, not detached: g_h = (g_s + g_v (v_reset - h)) sigma' + g_v (1 - s).
  Case c;
  c.arguments.type = Mem::f64;
  constexpr int count = 30;
  c.arguments.inputs["x"] = Array(Mem::f64, {count, 1});
  c.arriving.outputs["s"] = Array(Mem::f64, {count, 1});
  Random random(5);
  for (int t = 0; t < count; ++t) {
    c.arguments.inputs["x"].set(t, random.uniform(0, 3));
    c.arriving.outputs["s"].set(t, random.uniform(-1, 1));
  }
  c.arriving.states["v"] = Array(Mem::f64, {1}, 0.7);
  for (const bool detached : {false, true}) {
    const Neuron lif =
        neuron_named(detached ? "lif:tau=3,v_reset=-0.1,detach_reset=true" : "lif:tau=3,v_reset=-0.1");
    const Gradients found = run_backward(lif, c.arguments, c.arriving);
    std::vector<double> h(count), s(count);
    double v = -0.1;
    for (int t = 0; t < count; ++t) {
      h[t] = v + (c.arguments.inputs["x"][t] - (v + 0.1)) / 3;
      s[t] = h[t] >= 1;
      v = s[t] != 0 ? -0.1 : h[t];
    }
    double carry = 0.7;
    for (int t = count - 1; t >= 0; --t) {
      const double sg = 1 / (1 + std::exp(-4 * (h[t] - 1))), slope = 4 * sg * (1 - sg);
      const double through_spike = c.arriving.outputs["s"][t] + (detached ? 0 : carry * (-0.1 - h[t]));
      const double g = through_spike * slope + carry * (1 - s[t]);
      EXPECT_NEAR(found.inputs.at("x")[t], g / 3, 1e-13);
      carry = g * (1 - 1.0 / 3);
    }
    EXPECT_NEAR(found.states.at("v")[0], carry, 1e-13);
  }
}

// ---- a naive tape ------------------------------------------------------------------------------------

/// What a tape is tried on; `zeros`: all gradients that arrive are -0.
enum class Numbers { ordinary, edges, zeros };

/// A case for any neuron, with parameters of all shapes.
Case tape_case(const Graph& step, Mem type, Tape::At at, Numbers numbers, std::uint64_t seed) {
  Random random(seed);
  Case c;
  c.arguments.type = type;
  c.arguments.steps = steps;
  c.arguments.shape = Shape{2, channels};
  c.arguments.state_sequences = at == Tape::At::state_sequences;
  const Shape whole = {steps, 2, channels}, one = {2, channels};
  const Shape rows[] = {{2, 1}, {channels}, {}, {2, channels}};
  std::size_t params = seed;
  const bool edges = numbers == Numbers::edges;
  for (const Argument& argument : step.arguments) {
    if (argument.role == Role::input)
      c.arguments.inputs[argument.name] = random_array(whole, random, argument.mem, -1, 2, edges);
    if (argument.role == Role::state) {
      c.arguments.states[argument.name] = random_array(one, random, argument.mem, -1, 2, edges);
      if (at != Tape::At::no_state && is_float(value_type(argument.mem)))
        c.arriving.states[argument.name] =
            random_array(c.arguments.state_sequences ? whole : one, random, argument.mem, -1, 2, edges);
    }
    if (argument.role != Role::param) continue;
    Shape shape = rows[params++ % std::size(rows)];
    if (argument.per_step) shape.insert(shape.begin(), steps);
    c.arguments.params[argument.name] =
        random_array(shape, random, argument.mem, argument.initial, argument.initial + 0.5);
  }
  for (const Result& result : step.results)
    if (result.gives == Gives::output && is_float(value_type(result.mem)))
      c.arriving.outputs[result.name] = random_array(whole, random, result.mem, -1, 2, edges);
  if (numbers == Numbers::zeros)
    for (auto* arrays : {&c.arriving.outputs, &c.arriving.states})
      for (auto& [name, array] : *arrays) array = Array(array.type, array.shape, -0.0);
  return c;
}

/// Row t of a sequence, [1, 2, channels]; of a parameter what each element sees in step t.
Array row_of_array(const Array& array, std::int64_t t, bool sequence) {
  Shape shape = array.shape;
  if (sequence) shape.erase(shape.begin());
  Array row(array.type, {1, 2, channels});
  for (std::int64_t n = 0; n < elements; ++n) {
    const std::int64_t size = shape.empty() ? 1 : shape.size() == 2 ? shape[0] * shape[1] : shape[0];
    const std::int64_t entry = size == elements   ? n
                               : size == 1        ? 0
                               : size == channels ? n % channels
                                                  : n / channels;
    row.set(n, array[(sequence ? t * size : 0) + entry]);
  }
  return row;
}

/// What a run of the tape gives for `name` in all steps, one row after the other.
Array tape_rows(const Results& tape, const std::string& name) {
  Array all = tape.outputs.at("d_" + name + "_at_0");
  for (std::int64_t t = 1; t < steps; ++t) {
    const Array& row = tape.outputs.at("d_" + name + "_at_" + std::to_string(t));
    all.bytes.insert(all.bytes.end(), row.bytes.begin(), row.bytes.end());
  }
  all.shape = {steps, 2, channels};
  return all;
}

/// The gradient of a parameter from those of all steps and elements: over time from the last step on,
/// starting from -0, then over elements.
template <class F>
Array tape_param(const Array& all, const Array& param, bool per_step) {
  const auto* values = reinterpret_cast<const F*>(all.bytes.data());
  Array out(param.type, param.shape);
  const Shape row(param.shape.begin() + per_step, param.shape.end());
  std::vector<F> sums;
  if (per_step) {
    for (std::int64_t t = 0; t < steps; ++t) {
      const std::vector<F> one =
          reduce(std::vector<F>(values + t * elements, values + (t + 1) * elements), {2, channels}, row);
      sums.insert(sums.end(), one.begin(), one.end());
    }
  } else {
    std::vector<F> over_time(elements, F(-0.0));
    for (std::int64_t t = steps - 1; t >= 0; --t)
      for (std::int64_t n = 0; n < elements; ++n) over_time[n] += values[t * elements + n];
    sums = reduce(over_time, {2, channels}, row);
  }
  std::memcpy(out.bytes.data(), sums.data(), out.bytes.size());
  return out;
}

/// The first difference between run_backward and the tape; "" where all bytes are the same.
std::string tape_difference(const Neuron& neuron, Mem type, Tape::At at, Numbers numbers,
                            std::uint64_t seed) {
  const Graph step = simplify(neuron.graph(type));
  const Case c = tape_case(step, type, at, numbers, seed);
  const Gradients found = run_backward(neuron, c.arguments, c.arriving);
  const Graph tape = Tape(step, steps, at).graph();
  Arguments once{.type = type};
  for (std::int64_t t = 0; t < steps; ++t) {
    const std::string suffix = "_at_" + std::to_string(t);
    for (const auto& [name, array] : c.arguments.inputs)
      once.inputs[name + suffix] = row_of_array(array, t, true);
    for (const Argument& argument : step.arguments)
      if (argument.role == Role::param)
        once.inputs[argument.name + suffix] =
            row_of_array(c.arguments.params.at(argument.name), t, argument.per_step);
    for (const auto& [name, array] : c.arriving.outputs)
      once.inputs["grad_" + name + suffix] = row_of_array(array, t, true);
    for (const auto& [name, array] : c.arriving.states)
      if (at == Tape::At::state_sequences || t + 1 == steps)
        once.inputs["grad_" + name + suffix] = row_of_array(array, t, at == Tape::At::state_sequences);
  }
  for (const auto& [name, array] : c.arguments.states) once.inputs[name] = row_of_array(array, 0, false);
  const Results results = run(Neuron(tape), once);
  Trial::Outcome by_tape, by_scan;
  for (const Argument& argument : step.arguments) {
    const std::string& name = argument.name;
    if (!is_float(value_type(argument.mem))) continue;
    if (argument.role == Role::state) {
      by_tape[name] = results.outputs.at("d_" + name);
      by_scan[name] = found.states.at(name);
      continue;
    }
    by_tape[name] = tape_rows(results, name);
    by_scan[name] = argument.role == Role::input ? found.inputs.at(name) : found.params.at(name);
    if (argument.role != Role::param) continue;
    const Array& param = c.arguments.params.at(name);
    by_tape[name] = param.type == Mem::f64 ? tape_param<double>(by_tape[name], param, argument.per_step)
                                           : tape_param<float>(by_tape[name], param, argument.per_step);
  }
  return difference(by_tape, by_scan);
}

void expect_tape(const Neuron& neuron, const std::string& what) {
  std::uint64_t seed = 6;
  for (const Mem type : {Mem::f32, Mem::f64})
    for (const Tape::At at : {Tape::At::no_state, Tape::At::last_states, Tape::At::state_sequences})
      for (const Numbers numbers : {Numbers::ordinary, Numbers::edges, Numbers::zeros})
        EXPECT_EQ(tape_difference(neuron, type, at, numbers, seed++), "")
            << what << " " << name_of(type) << ", states " << static_cast<int>(at) << ", numbers "
            << static_cast<int>(numbers);
}

TEST(Grad, EqualsATapeOfTheWholeLoopBitForBit) {
  expect_tape(smooth, "smooth");
  for (const SurrogateInfo& info : surrogate_list()) {
    const std::string name = "lif:surrogate=" + info.name;
    expect_tape(neuron_named(name), name);
  }
  for (const NeuronInfo& info : neuron_list())
    for (const std::string option : {"", "v_reset=none", "detach_reset=true"}) {
      // Not every neuron resets, and simple_lif always to a number.
      const bool has =
          ("," + info.options).find("," + option.substr(0, option.find('='))) != std::string::npos;
      if (!has || (info.name == "simple_lif" && option == "v_reset=none")) continue;
      expect_tape(neuron_named(info.name + ":" + option), info.name + ":" + option);
    }
}

TEST(Grad, ANeuronNobodyPlannedForEqualsTheTape) {
  // A node that is two outputs and a new state, a state that is set anew, one that is never read and one
  // that counts, parameters used more than once in a step or not at all, the number of the step.
  const auto odd = [](const Surrogate& shape) {
    return neuron("odd", [shape](Step& s) {
      const auto x = s.input("x"), y = s.input("y");
      const auto u = s.state("u", 0.5), w = s.state("w"), n = s.state("n", 3, Mem::i32), f = s.state("f"),
                 seen = s.state("seen");
      const auto tau = s.param("tau", 2), gain = s.param("gain", 1), low = s.param("low", -1);
      const auto gate = s.step_param("gate", 1);
      s.param("idle", 4);
      const auto h = u + (x - u * gain) / tau + f * gate;
      const auto z = spike(h - w * w * 0.1, shape);
      const auto next = tanh(h) * gate * (1 - z) + maximum(h, low) * gain;
      s.next(u, next);
      s.next(w, w * 0.75 + y * z / tau);
      s.next(n, select(z > 0, n + 1, n));
      s.next(f, cast(n, Type::f32) * 0.125);
      s.next(seen, h);
      s.output("z", z);
      s.output("next", next);
      s.output("again", next);
      s.output("count", n);
      s.output("speed", exp(-u * u) * cast(s.step_index() + n, Type::f32));
    });
  };
  for (const Surrogate& shape : {surrogate::sigmoid(), surrogate::atan(), surrogate::triangle(),
                                 surrogate::rectangle(), surrogate::super_spike()})
    expect_tape(odd(shape), shape.name);
}

Array rows(const Array& array, std::int64_t from, std::int64_t count) {
  std::vector<std::int64_t> shape = array.shape;
  shape[0] = count;
  Array part(array.type, shape);
  const std::size_t row = array.bytes.size() / static_cast<std::size_t>(array.shape[0]);
  std::copy_n(array.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(from) * row),
              part.bytes.size(), part.bytes.begin());
  return part;
}

TEST(Grad, ChunksEqualTheWholeThroughTheCarriedState) {
  for (const Mem type : {Mem::f32, Mem::f64}) {
    const Case c = random_case(type, false, 7);
    const Gradients whole = run_backward(smooth, c.arguments, c.arriving);
    const auto chunk = [&](std::int64_t from, std::int64_t count,
                           const std::map<std::string, Array>& states) {
      Case part = c;
      for (auto& [name, array] : part.arguments.inputs) array = rows(array, from, count);
      for (auto& [name, array] : part.arriving.outputs) array = rows(array, from, count);
      part.arguments.params["drive"] = rows(c.arguments.params.at("drive"), from, count);
      part.arguments.states = states;
      part.arguments.first_step = from;
      return part;
    };
    Case first = chunk(0, 2, c.arguments.states);
    const Case second = chunk(2, 3, run(smooth, first.arguments).states);
    const Gradients late = run_backward(smooth, second.arguments, second.arriving);
    first.arriving.states = late.states;
    const Gradients early = run_backward(smooth, first.arguments, first.arriving);
    for (const char* name : {"a", "b", "c"})
      EXPECT_EQ(early.states.at(name).bytes, whole.states.at(name).bytes);
    for (const char* name : {"x", "y"}) {
      EXPECT_EQ(early.inputs.at(name).bytes, rows(whole.inputs.at(name), 0, 2).bytes);
      EXPECT_EQ(late.inputs.at(name).bytes, rows(whole.inputs.at(name), 2, 3).bytes);
    }
  }
}

TEST(Grad, NoStepsPassTheLastStatesGradientOn) {
  Case c = random_case(Mem::f32, false, 8);
  for (auto& [name, array] : c.arguments.inputs) array = Array(Mem::f32, {0, 2, channels});
  for (auto& [name, array] : c.arriving.outputs) array = Array(Mem::f32, {0, 2, channels});
  c.arguments.params["drive"] = Array(Mem::f32, {0});
  const Gradients gradients = run_backward(smooth, c.arguments, c.arriving);
  for (const char* name : {"a", "b", "c"})
    EXPECT_EQ(gradients.states.at(name).bytes, c.arriving.states.at(name).bytes);
  EXPECT_EQ(gradients.inputs.at("x").size(), 0);
  EXPECT_EQ(gradients.params.at("gain").values(), (std::vector<double>{0, 0, 0}));
  EXPECT_FALSE(std::signbit(gradients.params.at("tau")[0]));
}

TEST(Grad, AStateThatIsSetAnewPassesOnItsFirstValueOnly) {
  const Neuron fresh = neuron("fresh", [](Step& s) {
    const auto x = s.input("x"), v = s.state("v"), n = s.state("n", 0, Mem::i32);
    s.output("y", v * 3 + x);
    s.next(v, cast(n, Type::f32));
    s.next(n, n + 1);
  });
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {2, 1});
  Arriving arriving;
  arriving.outputs["y"] = Array(Mem::f32, {2, 1}, {5, 7});
  EXPECT_EQ(run_backward(fresh, arguments, arriving).states.at("v")[0], 15);
  arguments.inputs["x"] = Array(Mem::f32, {0, 1});
  arriving.outputs["y"] = Array(Mem::f32, {0, 1});
  arriving.states["v"] = Array(Mem::f32, {1}, {2});
  EXPECT_EQ(run_backward(fresh, arguments, arriving).states.at("v")[0], 2);
  arriving.states["n"] = Array(Mem::i32, {1});
  try {
    run_backward(fresh, arguments, arriving);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              "neuron 'fresh': state 'n' is i32 and carries no gradient; leave its gradient out");
  }
}

TEST(Grad, TheCallersFloatModeChangesNoSum) {
  const Case c = random_case(Mem::f32, true, 12);
  const Gradients expected = run_backward(smooth, c.arguments, c.arriving);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const Gradients upward = run_backward(smooth, c.arguments, c.arriving);
  std::fesetround(FE_TONEAREST);
  for (const auto& [name, array] : expected.params)
    EXPECT_EQ(upward.params.at(name).bytes, array.bytes) << name;
  for (const auto& [name, array] : expected.states)
    EXPECT_EQ(upward.states.at(name).bytes, array.bytes) << name;
}

TEST(Grad, OnlyWhatIsWantedIsComputed) {
  const Graph step = simplify(smooth.graph());
  const auto wanting = [&](const std::string& name) {
    GradRequest request;
    request.arguments.emplace();
    for (const Argument& argument : step.arguments) request.arguments->push_back(argument.name == name);
    return simplify(grad(step, request));
  };
  const Graph all = simplify(grad(step)), tau = wanting("tau");
  EXPECT_LT(op_count(tau), op_count(all));
  // c depends on neither tau nor a state that does, so no gradient is carried for it.
  for (const Argument& argument : tau.arguments) EXPECT_NE(argument.name, "grad_next_c");
  const Case c = random_case(Mem::f32, false, 9);
  const Gradients some = run_backward(smooth, c.arguments, c.arriving, {"tau", "gain"});
  const Gradients full = run_backward(smooth, c.arguments, c.arriving);
  EXPECT_TRUE(some.inputs.empty());
  EXPECT_TRUE(some.states.empty());
  EXPECT_EQ(some.params.at("tau").bytes, full.params.at("tau").bytes);
  EXPECT_EQ(some.params.at("gain").bytes, full.params.at("gain").bytes);
  EXPECT_EQ(some.params.size(), 2u);
}

TEST(Grad, JointGraphsAreLegalAndKeepTheForwardBits) {
  for (const NeuronInfo& info : neuron_list()) {
    for (const Mem type : {Mem::f32, Mem::f64, Mem::f16, Mem::bf16}) {
      const Graph step = simplify(neuron_named(info.name).graph(type));
      const Graph joint = grad(step);
      EXPECT_NO_THROW(verify(joint)) << print(joint);
      EXPECT_EQ(canonical(forward_of(joint)), canonical(values_only(step)));
      const Graph again = parse(print(joint), "joint");
      EXPECT_EQ(canonical(again), canonical(joint));
      EXPECT_NO_THROW(verify(simplify(joint)));
    }
  }
}

TEST(Grad, CornersOfAStep) {
  // An output that is an input unchanged, one given twice, a state that does not feed back, an unused input.
  const Neuron odd = neuron("odd", [](Step& s) {
    auto x = s.input("x"), unused = s.input("unused"), v = s.state("v"),
         count = s.state("count", 0, Mem::i32);
    s.output("same", x);
    auto y = x * x;
    s.output("first", y);
    s.output("second", y);
    s.next(v, x + 1.0);
    s.next(count, count + 1);
  });
  Case c;
  c.arguments.inputs["x"] = Array(Mem::f32, {2, 1}, {3, 5});
  c.arguments.inputs["unused"] = Array(Mem::f32, {2, 1});
  for (const char* name : {"same", "first", "second"}) c.arriving.outputs[name] = Array(Mem::f32, {2, 1}, 1);
  c.arriving.states["v"] = Array(Mem::f32, {1}, 10);
  const Gradients gradients = run_backward(odd, c.arguments, c.arriving);
  EXPECT_EQ(gradients.inputs.at("x").values(), (std::vector<double>{1 + 2 * 6, 1 + 2 * 10 + 10}));
  EXPECT_EQ(gradients.inputs.at("unused").values(), (std::vector<double>{0, 0}));
  EXPECT_EQ(gradients.states.at("v").values(), (std::vector<double>{0}));
  EXPECT_FALSE(gradients.states.contains("count"));
}

TEST(Grad, WrongRequestsAreNamed) {
  const Case c = random_case(Mem::f32, false, 10);
  const auto error = [&](auto call) {
    try {
      call();
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto expect = [&](const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
  };
  expect(error([&] { run_backward(smooth, c.arguments, {}); }), {"neuron 'smooth'", "no gradient arrives"});
  expect(error([&] { run_backward(smooth, c.arguments, c.arriving, {"tua"}); }),
         {"no argument 'tua'", "did you mean 'tau'"});
  Arriving wrong = c.arriving;
  wrong.outputs["w"] = wrong.outputs["u"];
  expect(error([&] { run_backward(smooth, c.arguments, wrong); }), {"no output 'w'"});
  wrong = c.arriving;
  wrong.states["d"] = wrong.states["a"];
  expect(error([&] { run_backward(smooth, c.arguments, wrong); }), {"no state 'd'"});
  wrong = c.arriving;
  wrong.outputs["u"] = Array(Mem::f32, {steps, 2});
  expect(error([&] { run_backward(smooth, c.arguments, wrong); }),
         {"gradient of output 'u'", "[5, 2]", "[5, 2, 3]"});
  wrong = c.arriving;
  wrong.states["a"] = Array(Mem::f64, {2, channels});
  expect(error([&] { run_backward(smooth, c.arguments, wrong); }),
         {"gradient of state 'a'", "must be f32, found f64"});
  const Neuron hard = neuron("hard", [](Step& s) { s.output("z", cast(s.input("x") > 0, Type::f32)); });
  expect(error([&] { grad(hard.graph()); }),
         {"neuron 'hard'", "no output and no state can carry a gradient", "with_grad or spike"});
  const Neuron flag = neuron("flag", [](Step& s) { s.output("z", s.input("x") > 0); });
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {1, 1});
  Arriving at_flag;
  at_flag.outputs["z"] = Array(Mem::b8, {1, 1});
  expect(error([&] { run_backward(flag, arguments, at_flag); }),
         {"output 'z' is bool", "carries no gradient"});
  GradRequest request;
  request.arguments = {true};
  expect(error([&] { grad(smooth.graph(), request); }), {"one flag for each of its 8 arguments, found 1"});
  const Graph joint = grad(simplify(smooth.graph()));
  expect(error([&] { grad(joint); }), {"already has gradients"});
}

// ---- random graphs -----------------------------------------------------------------------------------

/// The joint graph of a random step, or nothing where it carries no gradient.
std::optional<Graph> joint_of(const Graph& step, const GradRequest& request = {}) {
  try {
    return grad(step, request);
  } catch (const UserError&) {
    return {};
  }
}

/// What a run gave for the gradient of argument `of`.
const test::Column& gradient_column(const Graph& joint, const test::Outcome& outcome, int of) {
  std::size_t place = 0;
  for (int index : result_order(joint)) {
    if (joint.results[index].gives == Gives::grad && joint.results[index].of == of) break;
    ++place;
  }
  return outcome.at(place);
}

TEST(Grad, RandomJointGraphsKeepEveryBitThroughTextAndPasses) {
  int differentiated = 0;
  for (std::uint64_t seed = 0; seed < 10000; ++seed) {
    const Graph step = simplify(test::random_graph(seed));
    const std::optional<Graph> joint = joint_of(step);
    if (!joint) continue;
    ++differentiated;
    ASSERT_NO_THROW(verify(*joint)) << seed << "\n" << print(*joint);
    ASSERT_EQ(canonical(parse(print(*joint), "joint")), canonical(*joint)) << seed;
    ASSERT_EQ(canonical(forward_of(*joint)), canonical(values_only(step))) << seed;
    const test::RandomRun data(*joint, seed);
    const test::Outcome law = data.run(*joint);
    ASSERT_EQ(test::difference(law, data.run(verified(simplify(*joint), "simplify"))), "") << seed << "\n"
                                                                                           << print(*joint);
    ASSERT_EQ(test::difference(law, data.run(verified(expand(*joint), "expand"))), "") << seed << "\n"
                                                                                       << print(*joint);
  }
  EXPECT_GT(differentiated, 1000);
}

TEST(Grad, RandomGraphsGiveTheSameGradientsWhenOthersAreNotWanted) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 10000; ++seed) {
    const Graph step = simplify(test::random_graph(seed));
    const std::optional<Graph> all = joint_of(step);
    if (!all) continue;
    const test::RandomRun data(*all, seed);
    const test::Outcome full = data.run(*all);
    for (std::size_t i = 0; i < step.arguments.size(); ++i) {
      GradRequest request;
      request.arguments.emplace(step.arguments.size(), false);
      (*request.arguments)[i] = true;
      const Type type = value_type(step.arguments[i].mem);
      const std::optional<Graph> one =
          type == Type::f32 || type == Type::f64 ? joint_of(step, request) : std::nullopt;
      // Where fewer gradients arrive, an absent one takes part in no sum, and bits may differ.
      if (!one || one->arguments.size() != all->arguments.size()) continue;
      const int of = static_cast<int>(i);
      const test::Outcome found = data.run(*one);
      ASSERT_EQ(test::difference({gradient_column(*all, full, of)}, {gradient_column(*one, found, of)}), "")
          << seed;
      ++compared;
    }
  }
  EXPECT_GT(compared, 300);
}

// ---- the order of sums -------------------------------------------------------------------------------

/// The same tree, made from blocks of `block` elements whose sums are combined afterwards.
float blocked_sum(const std::vector<float>& values, std::size_t block) {
  std::vector<float> sums = values;
  const auto halve = [](std::vector<float> a) {
    std::vector<float> half((a.size() + 1) / 2);
    for (std::size_t i = 0; i < half.size(); ++i)
      half[i] = 2 * i + 1 < a.size() ? a[2 * i] + a[2 * i + 1] : a[2 * i];
    return half;
  };
  std::vector<float> partial;
  for (std::size_t start = 0; start < sums.size(); start += block) {
    // A short last block is padded with -0, which no sum can see.
    std::vector<float> part(block, -0.0f);
    std::copy_n(sums.begin() + static_cast<std::ptrdiff_t>(start), std::min(block, sums.size() - start),
                part.begin());
    while (part.size() > 1) part = halve(std::move(part));
    partial.push_back(part[0]);
  }
  while (partial.size() > 1) partial = halve(std::move(partial));
  return partial[0];
}

TEST(Reduce, BlocksOfAnySizeGiveTheSameBits) {
  Random random(11);
  for (const std::int64_t count : {1, 2, 3, 7, 64, 1000, 1023, 4097, 1000003}) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(random.uniform(-1, 1));
    const float sum = reduce(values, {count}, {})[0];
    for (const std::size_t block : {1, 2, 16, 512, 16384})
      EXPECT_EQ(sum, blocked_sum(values, block)) << count << " by " << block;
  }
}

/// [outer, size, inner] summed over the middle by `threads` threads: each takes some aligned blocks of
/// `block` entries, and the sums of blocks are combined when all are done, in whatever order they came.
std::vector<float> threaded_sum(const std::vector<float>& values, std::size_t outer, std::size_t size,
                                std::size_t inner, std::size_t block, std::size_t threads) {
  std::vector<float> sums(outer * inner);
  for (std::size_t o = 0; o < outer; ++o)
    for (std::size_t n = 0; n < inner; ++n) {
      std::vector<float> partial((size + block - 1) / block);
      for (std::size_t thread = threads; thread-- > 0;)
        for (std::size_t b = thread; b < partial.size(); b += threads) {
          std::vector<float> part;
          for (std::size_t i = b * block; i < std::min(size, (b + 1) * block); ++i)
            part.push_back(values[(o * size + i) * inner + n]);
          partial[b] = blocked_sum(part, block);
        }
      sums[o * inner + n] = blocked_sum(partial, 1);
    }
  return sums;
}

TEST(Reduce, ThreadsAndBlocksGiveTheSameBitsForEveryShapeOfParameter) {
  Random random(12);
  const std::int64_t batch = 37, planes = 5, pixels = 19;
  std::vector<float> values(static_cast<std::size_t>(batch * planes * pixels));
  for (float& value : values)
    value = static_cast<float>(random.uniform(-1, 1) * std::exp(random.uniform(-9, 9)));
  for (std::size_t block : {1, 2, 8, 16, 64, 1024})
    for (std::size_t threads : {1, 2, 3, 7}) {
      const Shape step = {batch, planes, pixels};
      // One for all, one for each channel, one for each element of a sample, the full shape.
      EXPECT_EQ(reduce(values, step, {}), threaded_sum(values, 1, values.size(), 1, block, threads));
      const std::vector<float> inner = threaded_sum(values, static_cast<std::size_t>(batch * planes),
                                                    static_cast<std::size_t>(pixels), 1, block, threads);
      EXPECT_EQ(reduce(values, step, {planes, 1}),
                threaded_sum(inner, 1, static_cast<std::size_t>(batch), static_cast<std::size_t>(planes),
                             block, threads));
      EXPECT_EQ(reduce(values, step, {planes, pixels}),
                threaded_sum(values, 1, static_cast<std::size_t>(batch),
                             static_cast<std::size_t>(planes * pixels), block, threads));
      EXPECT_EQ(reduce(values, step, step), values);
    }
}

TEST(Reduce, ShapesDecideWhatIsSummed) {
  std::vector<double> values(24);
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = static_cast<double>(n);
  const Shape step = {2, 3, 4};
  EXPECT_EQ(reduce(values, step, {}), (std::vector<double>{276}));
  EXPECT_EQ(reduce(values, step, {2, 3, 4}), values);
  EXPECT_EQ(reduce(values, step, {4}), (std::vector<double>{60, 66, 72, 78}));
  EXPECT_EQ(reduce(values, step, {3, 1}), (std::vector<double>{60, 92, 124}));
  EXPECT_EQ(reduce(values, step, {2, 1, 4}), (std::vector<double>{12, 15, 18, 21, 48, 51, 54, 57}));
  EXPECT_EQ(reduce(values, step, {1, 1, 1}), (std::vector<double>{276}));
  EXPECT_EQ(reduce(std::vector<double>{}, {0, 3}, {3}), (std::vector<double>{0, 0, 0}));
  // A dimension of size 1 is neither kept nor summed: [2, 1, 12] is one run of 24.
  EXPECT_EQ(reduce(values, {2, 1, 12}, {}), reduce(values, {24}, {}));
}

}  // namespace
}  // namespace flexsn
