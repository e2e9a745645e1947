// The built-in neurons against plain loops of their equations, and the promises of check() on each.
#include <gtest/gtest.h>

#include <cmath>

#include "flexsn/flexsn.h"

namespace flexsn {
namespace {

constexpr int steps = 40;

double drive(int t) { return 1.2 + 0.9 * std::sin(0.7 * t) + (t % 7 == 0 ? 1.5 : 0); }

/// The spikes of `name` and its state `state` after the last step, at f64.
std::pair<std::vector<double>, double> run_f64(const std::string& name, const std::string& state) {
  Arguments arguments{.type = Mem::f64};
  arguments.inputs["x"] = Array(Mem::f64, {steps, 1});
  for (int t = 0; t < steps; ++t) arguments.inputs["x"].set(t, drive(t));
  Results results = run(neuron_named(name), arguments);
  return {results.outputs["s"].values(), results.states[state][0]};
}

/// A plain loop: `step(x, spikes)` gives the spike.
template <class StepFunction>
std::vector<double> loop(StepFunction step) {
  std::vector<double> spikes;
  for (int t = 0; t < steps; ++t) spikes.push_back(step(drive(t)));
  return spikes;
}

void expect_near_run(const std::string& name, const std::string& state, const std::vector<double>& spikes,
                     double last) {
  const auto [found, value] = run_f64(name, state);
  EXPECT_EQ(found, spikes) << name;
  EXPECT_NEAR(value, last, 1e-12 * (1 + std::fabs(last))) << name;
  double count = 0;
  for (double s : spikes) count += s;
  EXPECT_GT(count, 2) << name << " must fire for the test to mean something";
  EXPECT_LT(count, steps) << name;
}

TEST(Neurons, If) {
  double v = 0;
  auto spikes = loop([&](double x) {
    const double h = v + x, s = h >= 1;
    v = s ? 0 : h;
    return s;
  });
  expect_near_run("if", "v", spikes, v);
  v = 0.25;
  spikes = loop([&](double x) {
    const double h = v + x, s = h >= 2.5;
    v = s ? 0.25 : h;
    return s;
  });
  expect_near_run("if:v_threshold=2.5,v_reset=0.25", "v", spikes, v);
  v = 0;
  spikes = loop([&](double x) {
    const double h = v + x, s = h >= 2.5;
    v = h - 2.5 * s;
    return s;
  });
  expect_near_run("if:v_threshold=2.5,v_reset=none", "v", spikes, v);
}

TEST(Neurons, Lif) {
  double v = 0;
  auto spikes = loop([&](double x) {
    const double h = v + (x - v) / 3, s = h >= 1;
    v = s ? 0 : h;
    return s;
  });
  expect_near_run("lif:tau=3", "v", spikes, v);
  v = -0.2;
  spikes = loop([&](double x) {
    const double h = v - (v + 0.2) / 3 + x, s = h >= 1;
    v = s ? -0.2 : h;
    return s;
  });
  expect_near_run("lif:tau=3,decay_input=false,v_reset=-0.2", "v", spikes, v);
  v = 0;
  spikes = loop([&](double x) {
    const double h = v - v / 3 + x, s = h >= 2;
    v = h - 2 * s;
    return s;
  });
  expect_near_run("lif:tau=3,decay_input=false,v_reset=none,v_threshold=2,detach_reset=true", "v", spikes, v);
}

TEST(Neurons, ParametricLif) {
  double v = 0;
  const double rate = 1 / (1 + std::exp(std::log(1.5)));
  const auto spikes = loop([&](double x) {
    const double h = v + (x - v) * rate, s = h >= 1;
    v = s ? 0 : h;
    return s;
  });
  expect_near_run("plif:init_tau=2.5", "v", spikes, v);
}

TEST(Neurons, AdaptiveLif) {
  double v = 0, a = 0;
  const auto spikes = loop([&](double x) {
    const double h = v + (x - v) / 1.5, s = h - 1 - 0.3 * a >= 0;
    v = s ? 0 : h;
    a = 0.8 * a + s;
    return s;
  });
  expect_near_run("alif:tau=1.5,beta=0.3,rho=0.8", "a", spikes, a);
}

TEST(Neurons, Izhikevich) {
  double v = 0, w = 0.1;
  const auto spikes = loop([&](double x) {
    const double h = v + (x + 1 * (v + 0.1) * (v - 0.8) - w) / 2;
    const double recovered = w + (0.2 * (h + 0.1) - w) / 4;
    const double s = h >= 1;
    v = s ? 0 : h;
    w = recovered + 0.3 * s;
    return s;
  });
  expect_near_run("izhikevich:a=0.2,b=0.3,tau_w=4,w_rest=0.1", "w", spikes, w);
}

TEST(Neurons, AdaptiveExponential) {
  double v = 0, w = 0;
  const auto spikes = loop([&](double x) {
    const double h = v + (x - v + 0.5 * std::exp((v - 0.8) / 0.5) - w) / 2, s = h >= 1;
    w = w + (0.1 * v - w) / 20 + 0.2 * s;
    v = s ? 0 : h;
    return s;
  });
  expect_near_run("adex", "w", spikes, w);
}

TEST(Neurons, EveryOneKeepsThePromises) {
  for (const NeuronInfo& info : neuron_list()) {
    EXPECT_FALSE(info.doc.empty());
    // The listed options, given as they stand, are the defaults.
    EXPECT_EQ(show(neuron_named(info.name + ":" + info.options)), show(neuron_named(info.name)));
    for (Mem type : {Mem::f32, Mem::f64, Mem::f16, Mem::bf16})
      for (const char* options : {"", ":v_reset=none", ":detach_reset=true", ":surrogate=triangle",
                                  ":surrogate=rectangle,alpha=0.5", ":surrogate=super_spike"})
        for (const Check& c : type == Mem::f32 || *options == 0
                                  ? check(neuron_named(info.name + options), type)
                                  : std::vector<Check>())
          EXPECT_TRUE(c.passed) << info.name << options << " at " << name_of(type) << ": " << c.what << ": "
                                << c.detail;
  }
}

TEST(Explain, CountsAndWords) {
  const Explanation lif = explain(neuron_named("lif"));
  ASSERT_EQ(lif.inference.size(), 1u);
  EXPECT_EQ(lif.inference[0].read_per_step, 4);
  EXPECT_EQ(lif.inference[0].written_per_step, 4);
  EXPECT_EQ(lif.hoisted_ops, 0);
  EXPECT_EQ(lif.expanded_ops, 7) << show(neuron_named("lif"), {.stage = Stage::expanded});
  const Explanation plif = explain(neuron_named("plif"), {.training = {.type = Mem::f64}});
  EXPECT_GT(plif.hoisted_ops, 10);
  EXPECT_EQ(plif.inference.at(0).read_per_step, 8);
  EXPECT_NE(plif.text.find("once a call"), std::string::npos);
}

TEST(Surrogates, DerivativesAreTheirFormulas) {
  // spike = with_grad(step, u * detach(d(u))): the formula stands in the graph as it is.
  const auto derivative_at = [](const Surrogate& s, double u) {
    const Neuron n = neuron("d", [&s](Step& step) { step.output("d", s.derivative(step.input("u"))); });
    Arguments arguments{.type = Mem::f64};
    arguments.inputs["u"] = Array(Mem::f64, {1, 1}, u);
    return run(n, arguments).outputs["d"][0];
  };
  const auto smooth_at = [](const Surrogate& s, double u) {
    const Neuron n = neuron("d", [&s](Step& step) { step.output("y", s.smooth(step.input("u"))); });
    Arguments arguments{.type = Mem::f64};
    arguments.inputs["u"] = Array(Mem::f64, {1, 1}, u);
    return run(n, arguments).outputs["y"][0];
  };
  for (double u : {-2.0, -0.7, -0.3, -0.1, 0.0, 0.2, 0.45, 0.9, 3.0}) {
    const double sg = 1 / (1 + std::exp(-4 * u));
    EXPECT_NEAR(derivative_at(surrogate::sigmoid(), u), 4 * sg * (1 - sg), 1e-14);
    EXPECT_NEAR(derivative_at(surrogate::atan(), u), 1 / (1 + std::pow(M_PI * u, 2)), 1e-14);
    EXPECT_NEAR(derivative_at(surrogate::triangle(), u), std::fabs(u) <= 1 ? 1 - std::fabs(u) : 0, 1e-14);
    EXPECT_NEAR(derivative_at(surrogate::rectangle(), u), std::fabs(u) < 0.5 ? 1 : 0, 1e-14);
    EXPECT_NEAR(derivative_at(surrogate::super_spike(), u), 1 / std::pow(std::fabs(u) + 1, 2), 1e-14);
    for (const Surrogate& s :
         {surrogate::sigmoid(3), surrogate::atan(1.5), surrogate::triangle(0.8), surrogate::rectangle(0.7)}) {
      const double step = 1e-5, difference = (smooth_at(s, u + step) - smooth_at(s, u - step)) / (2 * step);
      EXPECT_NEAR(derivative_at(s, u), difference, 2e-5) << s.name << " at " << u;
    }
  }
  EXPECT_FALSE(surrogate::super_spike().smooth);
}

}  // namespace
}  // namespace flexsn
