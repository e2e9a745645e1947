// The neurons of the library: for each its options, with their defaults, and the function that makes it.
//
//   flexsn::Neuron lif = flexsn::neurons::lif({.tau = 3, .v_reset = std::nullopt});
//
// docs/neurons.md has the equations, and neuron_named("lif:tau=3,v_reset=none") makes the same one from a
// text. An option outside what its equation allows is a UserError that names it.
#pragma once

#include "flexsn/flexsn.h"

namespace flexsn::neurons {

/// A number of a neuron: fixed, or, with learnable(2), a parameter of the neuron that has the option's name,
/// any shape that broadcasts to a step's, and 2 where a run gives none.
struct Number {
  Number(double fixed) : value(fixed) {}

  double value;
  bool learnable = false;
};
inline Number learnable(double value) {
  Number number = value;
  number.learnable = true;
  return number;
}

// Most neurons charge to a potential h, fire where h reaches v_threshold, and reset: hard, to v_reset, or,
// where that is std::nullopt, soft, by v_threshold. With detach_reset no gradient goes through the spike of
// the reset. With decay_input the time constant divides the input too.

/// Integrate and fire.
struct If {
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron if_(const If& options = {});

/// The same, starting at 0 whatever it resets to.
Neuron simple_if(const If& options = {});

/// Integrate and fire with a soft reset, starting at half its threshold.
struct HalfThresholdIf {
  double v_threshold = 1;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron half_threshold_if(const HalfThresholdIf& options = {});

/// Integrate and fire with an offset of the threshold.
struct ActivationAwareIf {
  Number v_threshold = 1;
  Number v_offset = 0;
  std::optional<double> v_reset = {};
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron activation_aware_if(const ActivationAwareIf& options = {});

/// Leaky integrate and fire.
struct Lif {
  Number tau = 2;
  bool decay_input = true;
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron lif(const Lif& options = {});

/// The same with a hard reset, starting at 0 whatever it resets to.
struct SimpleLif {
  Number tau = 2;
  bool decay_input = true;
  Number v_threshold = 1;
  double v_reset = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron simple_lif(const SimpleLif& options = {});

/// LIF with a learnable time constant: 1 / tau = sigmoid(w).
struct Plif {
  double init_tau = 2;
  bool decay_input = true;
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron plif(const Plif& options = {});

/// LIF with a learnable factor k inside a relu.
struct Klif {
  bool scale_reset = false;
  double k = 1;
  Number tau = 2;
  bool decay_input = true;
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron klif(const Klif& options = {});

/// LIF driven by a current that decays.
struct CubaLif {
  Number c_decay = 0.5;
  Number v_decay = 0.75;
  Number v_threshold = 0.5;
  std::optional<double> v_reset = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::rectangle();
};
Neuron cuba_lif(const CubaLif& options = {});

/// LIF that gives an activation of its potential; the spike only resets.
struct Liaf {
  std::string act = "relu";  ///< relu, sigmoid, tanh or none
  bool threshold_related = false;
  Number tau = 2;
  bool decay_input = true;
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron liaf(const Liaf& options = {});

/// LIF with learnable gates between ways to leak, take input and reset. Its parameters are what a sigmoid
/// makes them of; conduct has one entry for each step.
struct GatedLif {
  int T = 4;  ///< steps of a sequence; only init_linear_decay depends on it
  double init_tau = 0.25;
  double init_v_threshold = 0.5;
  double init_conduct = 0.5;
  std::optional<double> init_linear_decay = {};  ///< nothing: init_v_threshold / (2 T)
  std::optional<double> init_v_subreset = {};    ///< nothing: init_v_threshold
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron gated_lif(const GatedLif& options = {});

/// LIF that counts: up to some spikes a step.
struct Ilif {
  Number tau = 4.0 / 3;
  Number v_threshold = 1;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::multi_level_spike_count();
};
Neuron ilif(const Ilif& options = {});

/// LIF whose gradient does not go through time, with a trace of its spikes.
struct OtttLif {
  double tau = 2;
  bool decay_input = false;
  Number v_threshold = 1;
  std::optional<double> v_reset = {};
  bool detach_reset = true;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron ottt_lif(const OtttLif& options = {});

/// LIF whose gradient does not go through time.
struct SlttLif {
  Number tau = 2;
  bool decay_input = true;
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  bool detach_reset = true;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron sltt_lif(const SlttLif& options = {});

/// LIF whose threshold rises with each spike.
struct Alif {
  double tau = 2;  ///< where the learnable one starts: 1 / tau = sigmoid(w)
  Number beta = 0.2;
  Number rho = 0.9;
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::atan();
};
Neuron alif(const Alif& options = {});

/// LIF with a complementary potential that makes each reset deeper.
struct Clif {
  Number tau = 2;
  Number v_threshold = 1;
  Surrogate surrogate = surrogate::rectangle();
};
Neuron clif(const Clif& options = {});

/// Quadratic integrate and fire.
struct Qif {
  Number tau = 2;
  Number v_c = 0.8;
  Number a0 = 1;
  Number v_threshold = 1;
  Number v_rest = 0;
  std::optional<double> v_reset = -0.1;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron qif(const Qif& options = {});

/// Exponential integrate and fire.
struct Eif {
  Number tau = 2;
  Number delta_T = 1;
  Number theta_rh = 0.8;
  Number v_threshold = 1;
  Number v_rest = 0;
  std::optional<double> v_reset = -0.1;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron eif(const Eif& options = {});

/// A quadratic membrane with a recovery variable w.
struct Izhikevich {
  Number tau = 2;
  Number v_c = 0.8;
  Number a0 = 1;
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  Number v_rest = -0.1;
  double w_rest = 0;
  Number tau_w = 2;
  Number a = 0;
  Number b = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron izhikevich(const Izhikevich& options = {});

/// An exponential membrane with an adaptation w.
struct Adex {
  Number tau = 2;
  Number delta_T = 0.5;
  Number theta_rh = 0.8;
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  Number v_rest = 0;
  Number tau_w = 20;
  Number a = 0.1;
  Number b = 0.2;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron adex(const Adex& options = {});

/// Resonate and fire: a damped oscillation (u, v) that fires where v reaches the threshold.
struct Raf {
  double b = -0.2;
  double omega = 1;
  double dt = 1;
  Number v_threshold = 1;
  std::optional<double> v_reset = 0;
  bool detach_reset = false;
  Surrogate surrogate = surrogate::sigmoid();
};
Neuron raf(const Raf& options = {});

/// Four coupled currents of a squid's axon, in ms, mV, mS and uF; it fires where v crosses the threshold
/// upward.
struct HodgkinHuxley {
  double dt = 0.05;
  Number c_m = 1;
  Number g_na = 120;
  Number g_k = 36;
  Number g_l = 0.3;
  Number e_na = 50;
  Number e_k = -77;
  Number e_l = -54.387;
  Number v_threshold = 0;
  Surrogate surrogate = surrogate::sigmoid(0.25);
};
Neuron hodgkin_huxley(const HodgkinHuxley& options = {});

/// Integrates and never fires.
struct NonSpikingIf {};
Neuron non_spiking_if(const NonSpikingIf& options = {});

/// Integrates with a leak and never fires.
struct NonSpikingLif {
  Number tau = 2;
};
Neuron non_spiking_lif(const NonSpikingLif& options = {});

/// The same behind a synapse of two states, whose answer to a spike rises and falls.
struct SynapticLi {
  Number c_decay = 0.5;
  Number tau = 2;
};
Neuron synaptic_li(const SynapticLi& options = {});

/// A quantizer that gives signed spikes: their sum is the quantized sum of its input.
struct Stbif {
  Number q_threshold = 1;
  int level = 16;
  bool sym = false;
  std::optional<double> pos_max = {};  ///< nothing: level - 1; level / 2 - 1 with sym
  std::optional<double> neg_min = {};  ///< nothing: 0; -level / 2 with sym
};
Neuron stbif(const Stbif& options = {});

}  // namespace flexsn::neurons
