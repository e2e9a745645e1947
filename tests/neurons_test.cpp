// The built-in neurons against plain loops of their equations, and the promises of check() on each.
#include <gtest/gtest.h>

#include <cmath>

#include "error.h"
#include "flexsn/neurons.h"

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

/// Does a neuron have this option?
bool has(const NeuronInfo& info, const std::string& option) {
  return ("," + info.options).find("," + option + "=") != std::string::npos;
}

TEST(Neurons, EveryOneKeepsThePromises) {
  for (const NeuronInfo& info : neuron_list()) {
    EXPECT_FALSE(info.doc.empty() || info.equations.empty() || info.python.empty()) << info.name;
    // The listed options, given as they stand, are the defaults.
    EXPECT_EQ(show(neuron_named(info.name + ":" + info.options)), show(neuron_named(info.name)));
    std::string other = ":";
    if (has(info, "v_reset") && info.name != "simple_lif") other += "v_reset=none,";
    if (has(info, "detach_reset")) other += "detach_reset=true,";
    if (has(info, "surrogate") && info.name != "ilif") other += "surrogate=rectangle:alpha=0.5,";
    other.pop_back();
    const auto keeps = [&](const std::string& options, Mem type) {
      for (const Check& c : check(neuron_named(info.name + options), type))
        EXPECT_TRUE(c.passed) << info.name << options << " at " << name_of(type) << ": " << c.what << ": "
                              << c.detail;
    };
    keeps("", Mem::f32);
    if (!other.empty()) keeps(other, Mem::f32);
    constexpr Mem others[] = {Mem::f64, Mem::f16,
                              Mem::bf16};  // Cpu.EveryNeuronTypeAndWayOfSaving has them all
    keeps("", others[info.name.size() % 3]);
  }
}

TEST(Neurons, NumbersCanBeLearned) {
  // A learnable number is a parameter of that name, and the neuron computes the same.
  for (const NeuronInfo& info : neuron_list()) {
    std::string rest = info.options;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(','), rest.size());
      const std::string option = rest.substr(0, rest.find('='));
      const std::string value = rest.substr(option.size() + 1, end - option.size() - 1);
      rest.erase(0, end + 1);
      std::optional<Neuron> learned;
      try {
        learned = neuron_named(join(info.name, ":", option, "=learnable:", value));
      } catch (const UserError&) {
        continue;  // not every option is a number that can be learned
      }
      const std::string text = show(*learned);
      EXPECT_NE(text.find("param " + option + " : f32"), std::string::npos) << text;
      if (info.name == "gated_lif") continue;
      const Simulation simulation{.steps = 30, .inputs = {{"", "noise:3"}}};
      EXPECT_EQ(simulate(*learned, simulation), simulate(neuron_named(info.name), simulation))
          << info.name << " " << option;
    }
  }
  const Neuron lif = neuron_named("lif:tau=learnable:3,v_threshold=learnable");
  EXPECT_NE(show(lif).find("param tau : f32 = 3 in [1"), std::string::npos) << show(lif);
  EXPECT_NE(show(lif).find("param v_threshold : f32 = 1\n"), std::string::npos) << show(lif);
}

TEST(Neurons, FunctionsMakeWhatNamesMake) {
  using namespace neurons;
  const std::vector<std::pair<Neuron, std::string>> same = {
      {if_({.v_threshold = 2, .v_reset = std::nullopt}), "if:v_threshold=2,v_reset=none"},
      {simple_if({.v_reset = 0.5}), "simple_if:v_reset=0.5"},
      {half_threshold_if({.v_threshold = 3}), "half_threshold_if:v_threshold=3"},
      {activation_aware_if({.v_offset = learnable(0.25)}), "activation_aware_if:v_offset=learnable:0.25"},
      {stbif({.level = 8, .sym = true}), "stbif:level=8,sym=true"},
      {lif({.tau = 3, .surrogate = surrogate::erf(1)}), "lif:tau=3,surrogate=erf:alpha=1"},
      {simple_lif({.decay_input = false}), "simple_lif:decay_input=false"},
      {plif({.init_tau = 4}), "plif:init_tau=4"},
      {klif({.scale_reset = true}), "klif:scale_reset=true"},
      {liaf({.act = "tanh"}), "liaf:act=tanh"},
      {ilif({.surrogate = surrogate::multi_level_spike_count(8)}),
       "ilif:surrogate=multi_level_spike_count:max_spike_count=8"},
      {ottt_lif({.tau = 4}), "ottt_lif:tau=4"},
      {sltt_lif({.tau = learnable(4)}), "sltt_lif:tau=learnable:4"},
      {cuba_lif({.c_decay = 0.25}), "cuba_lif:c_decay=0.25"},
      {gated_lif({.T = 8}), "gated_lif:T=8"},
      {alif({.beta = 0.5}), "alif:beta=0.5"},
      {clif({.tau = 4}), "clif:tau=4"},
      {qif({.v_c = 0.5}), "qif:v_c=0.5"},
      {eif({.delta_T = 2}), "eif:delta_T=2"},
      {izhikevich({.a = 0.5}), "izhikevich:a=0.5"},
      {adex({.b = 0.5}), "adex:b=0.5"},
      {raf({.omega = 2}), "raf:omega=2"},
      {hodgkin_huxley({.g_k = 30}), "hodgkin_huxley:g_k=30"},
      {non_spiking_if(), "non_spiking_if"},
      {non_spiking_lif({.tau = 4}), "non_spiking_lif:tau=4"},
      {synaptic_li({.c_decay = 0.25}), "synaptic_li:c_decay=0.25"}};
  EXPECT_EQ(same.size(), neuron_list().size());
  for (const auto& [made, name] : same) {
    EXPECT_EQ(show(made), show(neuron_named(name)));
    const bool usual = name == made.name();
    EXPECT_EQ(show(made) == show(neuron_named(made.name())), usual) << name;
  }
}

TEST(Neurons, WhatOptionsCannotBe) {
  using namespace neurons;
  const auto expect_error = [](const auto& make, const std::string& text) {
    try {
      make();
      ADD_FAILURE() << "nothing thrown, expected " << text;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  const auto named = [](const char* name) { return [name] { neuron_named(name); }; };
  expect_error([] { lif({.tau = 1}); }, "neurons::lif: tau must be a number above 1, found 1");
  expect_error([] { lif({.tau = learnable(0.5)}); }, "neurons::lif: tau must be a number above 1, found 0.5");
  expect_error([] { lif({.v_threshold = -1, .v_reset = std::nullopt}); },
               "v_threshold must be a number above 0, since the soft reset takes it away, found -1");
  expect_error([] { lif({.v_reset = std::nan("")}); }, "v_reset must be a finite number, or none, found nan");
  expect_error([] { lif({.surrogate = surrogate::sigmoid(-1)}); },
               "surrogate 'sigmoid': alpha must be a number above 0, found -1");
  expect_error([] { alif({.tau = 1}); }, "neurons::alif: tau must be a number above 1, found 1");
  expect_error(named("alif:tau=learnable:3"), "tau must be a number, without learnable");
  expect_error([] { gated_lif({.T = 0}); },
               "neurons::gated_lif: T must be a whole number of at least 1, found 0");
  expect_error([] { liaf({.act = "gelu"}); }, "act must be relu, sigmoid, tanh or none, found gelu");
  expect_error([] { ilif({.surrogate = surrogate::atan()}); },
               "surrogate must be multi_level_spike_count, and spiking, found atan");
  expect_error(named("lif:tau=1"), "neuron 'lif': option tau must be a number above 1, found '1'");
  expect_error(named("qif:v_reset=2"), "v_threshold must be a number above v_reset, which is 2, found '1'");
  expect_error(named("eif:v_rest=-1"), "v_rest must be a number of at least v_reset, which is -0.1");
  expect_error(named("raf:b=0"), "b must be a number below 0, found '0'");
  expect_error(named("raf:b=learnable:-1"), "b must be a number, without learnable, found 'learnable:-1'");
  expect_error(named("gated_lif:init_tau=1"), "init_tau must be a number above 0 and below 1, found '1'");
  expect_error(named("stbif:level=x"), "level must be a whole number, found 'x'");
  expect_error(named("stbif:neg_min=20"), "pos_max must be a number of at least neg_min, which is 20");
  expect_error(named("lif:surrogate=atan:beta=1"), "surrogate 'atan': there is no option 'beta'");
  expect_error(named("lif:surrogate=super_spike:spiking=false"), "it has no smooth function");
  expect_error(
      [] { show(neurons::lif({.surrogate = Surrogate{.name = "mine", .derivative = {}, .smooth = {}}})); },
      "surrogate 'mine' has no derivative; set it to a function of u");
}

TEST(Neurons, WhatIsLearnedStaysInTheRangeOfItsOption) {
  const auto error_of = [](const std::string& neuron, Mem type, const std::string& param, double value) {
    Arguments arguments;
    arguments.inputs["x"] = Array(type, {3, 2});
    arguments.params[param] = Array(type, {}, value);
    arguments.type = type;
    try {
      run(neuron_named(neuron), arguments);
      return std::string("none");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
  };
  for (Mem type : {Mem::f32, Mem::f64, Mem::f16, Mem::bf16}) {
    EXPECT_NE(
        error_of("lif:tau=learnable", type, "tau", 1).find("has the value 1 at place 0, which is outside"),
        std::string::npos)
        << name_of(type);
    EXPECT_EQ(error_of("lif:tau=learnable", type, "tau", 1.0 + 1.0 / 64), "none") << name_of(type);
    EXPECT_NE(error_of("klif", type, "k", 0).find("param 'k' has the value 0"), std::string::npos);
    EXPECT_NE(error_of("klif", type, "k", NAN).find("param 'k' has the value nan"), std::string::npos);
    EXPECT_EQ(error_of("klif", type, "k", 0.5), "none");
  }
}

TEST(Explain, CountsAndWords) {
  const Explanation lif = explain(neuron_named("lif"));
  ASSERT_EQ(lif.inference.size(), 1u);
  EXPECT_EQ(lif.inference[0].read_per_step, 4);
  EXPECT_EQ(lif.inference[0].written_per_step, 4);
  EXPECT_EQ(lif.hoisted_ops, 0);
  EXPECT_EQ(lif.expanded_ops, 6) << show(neuron_named("lif"), {.stage = Stage::expanded});
  const Explanation plif = explain(neuron_named("plif"), {.training = {.type = Mem::f64}});
  EXPECT_GT(plif.hoisted_ops, 10);
  EXPECT_EQ(plif.inference.at(0).read_per_step, 8);
  EXPECT_NE(plif.text.find("once a call"), std::string::npos);
}

}  // namespace
}  // namespace flexsn
