// Surrogates against the formulas of their table, and against differences of their smooth functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "flexsn/flexsn.h"

namespace flexsn {
namespace {

double value_at(const std::function<Value(const Value&)>& function, double u) {
  const Neuron n = neuron("y", [&](Step& step) { step.output("y", function(step.input("u"))); });
  Arguments arguments{.type = Mem::f64};
  arguments.inputs["u"] = Array(Mem::f64, {1, 1}, u);
  return run(n, arguments).outputs["y"][0];
}

double sg(double x) { return 1 / (1 + std::exp(-x)); }

struct Row {
  Surrogate surrogate;
  std::function<double(double)> derivative;
};

std::vector<Row> table() {
  using namespace surrogate;
  return {
      {sigmoid(3), [](double u) { return 3 * sg(3 * u) * (1 - sg(3 * u)); }},
      {surrogate::atan(1.5), [](double u) { return 0.75 / (1 + std::pow(M_PI * 0.75 * u, 2)); }},
      {triangle(0.8), [](double u) { return std::fabs(u) <= 1.25 ? 0.8 - 0.64 * std::fabs(u) : 0; }},
      {rectangle(0.7), [](double u) { return std::fabs(u) < 0.5 / 0.7 ? 0.7 : 0; }},
      {super_spike(2), [](double u) { return 2 / std::pow(std::fabs(u) + 1, 2); }},
      {piecewise_exp(1.5), [](double u) { return 0.75 * std::exp(-1.5 * std::fabs(u)); }},
      {soft_sign(1.5), [](double u) { return 1 / (3 * std::pow(1 / 1.5 + std::fabs(u), 2)); }},
      {surrogate::erf(1.5), [](double u) { return 1.5 / std::sqrt(M_PI) * std::exp(-2.25 * u * u); }},
      {nonzero_sign_log_abs(2), [](double u) { return 1 / (0.5 + std::fabs(u)); }},
      {piecewise_leaky_relu(0.75, 0.02), [](double u) { return std::fabs(u) < 0.75 ? 1 / 1.5 : 0.02; }},
      {squarewave_fourier_series(4, 6),
       [](double u) {
         const double w = 2 * M_PI * u / 6;
         return 4.0 / 6 * (std::cos(w) + std::cos(3 * w) + std::cos(5 * w));
       }},
      {s2nn(3, 0.5), [](double u) { return u < 0 ? 3 * sg(3 * u) * (1 - sg(3 * u)) : 0.5 / (u + 1); }},
      {q_pseudo_spike(2.5), [](double u) { return std::pow(1 + 2 * std::fabs(u) / 1.5, -2.5); }},
      {leaky_k_relu(0.1, 0.9), [](double u) { return u >= 0 ? 0.9 : 0.1; }},
      {fake_numerical_gradient(0.4), [](double u) { return std::min(1 / std::fabs(u), 0.4); }},
      {log_tailed_relu(0.2), [](double u) { return u <= 0   ? 0.2
                                                   : u <= 1 ? 1
                                                            : 1 / u; }},
      {deterministic_pass(), [](double) { return 1; }},
      {multi_level_spike_count(3), [](double u) { return u >= 0 && u <= 3 ? 1 : 0; }},
  };
}

constexpr double points[] = {-2.0, -0.7, -0.3, -0.1, 0.0, 0.2, 0.45, 0.9, 1.7, 3.0, 4.0};

TEST(Surrogates, DerivativesAreTheirFormulas) {
  ASSERT_EQ(table().size(), surrogate_list().size());
  for (std::size_t i = 0; i < table().size(); ++i) {
    const auto [surrogate, derivative] = table()[i];
    EXPECT_EQ(surrogate.name, surrogate_list()[i].name);
    for (double u : points)
      EXPECT_NEAR(value_at(surrogate.derivative, u), derivative(u), 1e-12) << surrogate.name << " at " << u;
  }
}

TEST(Surrogates, SmoothFunctionsHaveTheseDerivatives) {
  for (const auto& [surrogate, derivative] : table()) {
    EXPECT_EQ(static_cast<bool>(surrogate.smooth),
              surrogate.name != "super_spike" && surrogate.name != "fake_numerical_gradient");
    if (!surrogate.smooth) continue;
    for (double u : {-2.0, -0.6, -0.3, -0.1, 0.2, 0.45, 0.9, 1.7, 2.5}) {
      const double step = 1e-5, difference = (value_at(surrogate.smooth, u + step) -
                                              value_at(surrogate.smooth, u - step)) /
                                             (2 * step);
      EXPECT_NEAR(difference, derivative(u), 2e-5) << surrogate.name << " at " << u;
    }
  }
}

TEST(Surrogates, ASpikeIsAStepUnlessItIsSmoothOrCounts) {
  for (const auto& [hard, derivative] : table()) {
    const auto spikes = [&](const Surrogate& surrogate, double u) {
      return value_at([&](const Value& distance) { return spike(distance, surrogate); }, u);
    };
    Surrogate soft = hard;
    soft.spiking = false;
    for (double u : points) {
      const double step = u >= 0 ? 1 : 0, count = std::nearbyint(std::clamp(u, 0.0, 3.0));
      EXPECT_EQ(spikes(hard, u), hard.name == "multi_level_spike_count" ? count : step)
          << hard.name << " " << u;
      if (!hard.smooth) {
        EXPECT_THROW(spikes(soft, u), UserError);
        continue;
      }
      EXPECT_EQ(spikes(soft, u), value_at(hard.smooth, u)) << hard.name;
    }
  }
}

TEST(Surrogates, EachNumberSaysWhatItMayBe) {
  for (const SurrogateInfo& info : surrogate_list())
    EXPECT_EQ(info.allowed.size(),
              static_cast<std::size_t>(std::count(info.options.begin(), info.options.end(), '=')))
        << info.name;
  EXPECT_EQ(surrogate_list()[0].allowed, std::vector<std::string>{"a number above 0"});
}

TEST(Surrogates, RandomOnesAreRefusedWithTheReason) {
  for (const char* name : {"poisson_pass", "PoissonPass"}) {
    try {
      surrogate_named(name);
      FAIL() << name;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("its spikes are random, and a step draws no random numbers"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(Surrogates, NamesMakeWhatFunctionsMake) {
  for (const SurrogateInfo& info : surrogate_list()) {
    const Surrogate plain = surrogate_named(info.name),
                    full = surrogate_named(info.name + ":" + info.options);
    EXPECT_EQ(plain.settings, full.settings) << info.name;
    EXPECT_EQ(value_at(plain.derivative, 0.3), value_at(full.derivative, 0.3)) << info.name;
  }
  for (const auto& [made, derivative] : table()) {
    const Surrogate named = surrogate_named(made.name + (made.settings.empty() ? "" : ":" + made.settings));
    EXPECT_EQ(value_at(named.derivative, 0.3), value_at(made.derivative, 0.3)) << made.name;
  }
  EXPECT_FALSE(surrogate_named("sigmoid:spiking=false").spiking);
}

TEST(Surrogates, InANeuronTheyKeepThePromises) {
  for (const SurrogateInfo& info : surrogate_list())
    for (const Check& c : check(neuron_named("lif:surrogate=" + info.name)))
      EXPECT_TRUE(c.passed) << info.name << ": " << c.what << ": " << c.detail;
  for (const Check& c : check(neuron_named("lif:v_reset=-0.5,surrogate=atan:spiking=false")))
    EXPECT_TRUE(c.passed) << c.what << ": " << c.detail;
}

TEST(Surrogates, WhatNumbersCannotBe) {
  const auto expect_error = [](const char* name, const std::string& text) {
    try {
      surrogate_named(name);
      ADD_FAILURE() << "nothing thrown, expected " << text;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  expect_error("atn", "a surrogate must be sigmoid, atan, triangle");
  expect_error("atn", "found 'atn' (did you mean 'atan'?)");
  expect_error("atan:alpha=0", "surrogate 'atan': alpha must be a number above 0, found 0");
  expect_error("atan:alpha=x", "surrogate 'atan': option alpha must be a number, found 'x'");
  expect_error("atan:alpha", "surrogate 'atan': expected OPTION=VALUE, found 'alpha'");
  expect_error("atan:spiking=1", "option spiking must be true or false, found '1'");
  expect_error("super_spike:spiking=false", "spiking must be true, since it has no smooth function");
  expect_error("q_pseudo_spike:alpha=1", "alpha must be a number above 1, found 1");
  expect_error("squarewave_fourier_series:n=1", "n must be a whole number from 2 to 64, found 1");
  expect_error("squarewave_fourier_series:n=2.5", "n must be a whole number, found '2.5'");
  expect_error("multi_level_spike_count:max_spike_count=0",
               "max_spike_count must be a whole number of at least 1, found 0");
  expect_error("multi_level_spike_count:grad_min=2:grad_max=1",
               "grad_max must be a number of at least 2, found 1");
}

}  // namespace
}  // namespace flexsn
