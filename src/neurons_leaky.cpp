// Leaky integrate and fire, and neurons that differ from it in one thing.
#include <cmath>

#include "library.h"

namespace flexsn {

namespace library {

namespace {

using namespace neurons;

constexpr const char* lif_equations =
    "h = v + (x - (v - v_reset)) / tau,  without decay_input h = v - (v - v_reset) / tau + x";

/// The options that LIF has beside those of every neuron that fires.
template <class Options>
std::vector<Field<Options>> with_leak(std::vector<Field<Options>> own = {}) {
  own.push_back({"tau", &Options::tau, above(1)});
  own.push_back({"decay_input", &Options::decay_input});
  return with_firing<Options>(std::move(own));
}

/// The charge of LIF.
template <class Options>
Value leaky(const Scope& s, const Options& o, const Value& x, const Value& v) {
  const Factor tau = s.number("tau", o.tau);
  return leaked(x, v, o.v_reset.value_or(0), o.decay_input, [&](const Value& y) { return y / tau; });
}

Definition<Lif> lif_definition() {
  return {.name = "lif",
          .python = "LIFNode",
          .doc = "leaky integrate and fire",
          .equations = lif_equations,
          .fields = with_leak<Lif>(),
          .step =
              [](const Scope& s, const Lif& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0));
                fire_and_reset(s, o, v, leaky(s, o, x, v));
              },
          .check = soft_threshold<Lif>};
}

Definition<SimpleLif> simple_lif_definition() {
  return {
      .name = "simple_lif",
      .python = "SimpleLIFNode",
      .doc = "LIF with a hard reset that starts at 0 whatever it resets to",
      .equations = "h = v + (v_reset - v + x) / tau,  without decay_input h = v + (v_reset - v) / tau + x",
      .fields = {{"tau", &SimpleLif::tau, above(1)},
                 {"decay_input", &SimpleLif::decay_input},
                 {"v_threshold", &SimpleLif::v_threshold},
                 {"v_reset", &SimpleLif::v_reset},
                 {"detach_reset", &SimpleLif::detach_reset},
                 {"surrogate", &SimpleLif::surrogate}},
      .step = [](const Scope& s, const SimpleLif& o) {
        const Value x = s->input("x"), v = s->state("v");
        const Factor tau = s.number("tau", o.tau);
        const Value pull = o.v_reset - v;
        const Value h = o.decay_input ? v + (pull + x) / tau : v + pull / tau + x;
        fire_and_reset(s, If{o.v_threshold, o.v_reset, o.detach_reset, o.surrogate}, v, h);
      }};
}

Definition<Plif> plif_definition() {
  return {.name = "plif",
          .python = "ParametricLIFNode",
          .doc = "LIF with a learnable time constant",
          .equations = "LIF with 1 / tau = sigmoid(w);  w starts at -log(init_tau - 1)",
          .fields = with_firing<Plif>(
              {{"init_tau", &Plif::init_tau, above(1)}, {"decay_input", &Plif::decay_input}}),
          .step =
              [](const Scope& s, const Plif& o) {
                const double rest = o.v_reset.value_or(0);
                const Value x = s->input("x"), v = s->state("v", rest),
                            w = s->param("w", -std::log(o.init_tau - 1));
                const Value rate = sigmoid(w).named("rate");
                fire_and_reset(s, o, v,
                               leaked(x, v, rest, o.decay_input, [&](const Value& y) { return y * rate; }));
              },
          .check = soft_threshold<Plif>};
}

Definition<Klif> klif_definition() {
  return {.name = "klif",
          .python = "KLIFNode",
          .doc = "LIF whose potential goes through relu with a learnable factor",
          .equations =
              "h = relu(k h_LIF)\n"
              "with scale_reset, the reset works on h / k and v_threshold / k",
          .fields = with_leak<Klif>({{"scale_reset", &Klif::scale_reset}, {"k", &Klif::k, above(0)}}),
          .step =
              [](const Scope& s, const Klif& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0)),
                            k = s.param("k", o.k);
                const Factor threshold = s.number("v_threshold", o.v_threshold);
                const Value h = relu(k * leaky(s, o, x, v)).named("h");
                const Value z = s.spike(h - threshold, o.surrogate);
                const Value left =
                    o.scale_reset
                        ? s.reset(h / k, z, Factor(threshold / k), o.v_reset, o.detach_reset, o.surrogate)
                        : s.reset(h, z, threshold, o.v_reset, o.detach_reset, o.surrogate);
                s->next(v, left);
                s->output("s", z);
              },
          .check = soft_threshold<Klif>};
}

Definition<Liaf> liaf_definition() {
  return {.name = "liaf",
          .python = "LIAFNode",
          .doc = "LIF that gives an activation of its potential; its spike only resets",
          .equations = "h as LIF;  y = act(h), with threshold_related y = act(h - v_threshold)",
          .fields = with_leak<Liaf>({{"act", &Liaf::act, {}, {"relu", "sigmoid", "tanh", "none"}},
                                     {"threshold_related", &Liaf::threshold_related}}),
          .step =
              [](const Scope& s, const Liaf& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0));
                const Factor threshold = s.number("v_threshold", o.v_threshold);
                const Value h = leaky(s, o, x, v).named("h"), distance = h - threshold;
                const Value z = s.spike(distance, o.surrogate);
                const Value& seen = o.threshold_related ? distance : h;
                s->next(v, s.reset(h, z, threshold, o.v_reset, o.detach_reset, o.surrogate));
                s->output("y", o.act == "relu"      ? relu(seen)
                               : o.act == "sigmoid" ? sigmoid(seen)
                               : o.act == "tanh"    ? tanh(seen)
                                                    : seen);
              },
          .check = soft_threshold<Liaf>};
}

Definition<Ilif> ilif_definition() {
  return {.name = "ilif",
          .python = "ILIFNode",
          .doc = "LIF that counts: several spikes a step",
          .equations =
              "h = v - v / tau + x\n"
              "s = round(clamp(h / v_threshold, 0, max_spike_count)),  v = h - s v_threshold",
          .fields = {{"tau", &Ilif::tau, above(1)},
                     {"v_threshold", &Ilif::v_threshold, above(0)},
                     {"detach_reset", &Ilif::detach_reset},
                     {"surrogate", &Ilif::surrogate, {}, {surrogate::multi_level_spike_count().name}}},
          .step =
              [](const Scope& s, const Ilif& o) {
                const Value x = s->input("x"), v = s->state("v");
                const Factor tau = s.number("tau", o.tau), threshold = s.number("v_threshold", o.v_threshold);
                const Value h = (v - v / tau + x).named("h");
                const Value z = s.spike(h / threshold, o.surrogate);
                s->next(v, s.reset(h, z, threshold, {}, o.detach_reset, o.surrogate));
                s->output("s", z);
              },
          .check =
              [](const Limits& limits, const Ilif& o) {
                // Any other would take h / v_threshold for the distance to a threshold.
                if (o.surrogate.name != surrogate::multi_level_spike_count().name || !o.surrogate.spiking)
                  limits.owner.fail("surrogate", "multi_level_spike_count, and spiking", o.surrogate.name);
              }};
}

Definition<OtttLif> ottt_lif_definition() {
  return {
      .name = "ottt_lif",
      .python = "OTTTLIFNode",
      .doc = "LIF for online training: no gradient goes through time, and a trace of the spikes comes out",
      .equations = "h as LIF, with v detached\ntrace = (1 - 1 / tau) trace + s",
      .fields = with_leak<OtttLif>(),
      .step =
          [](const Scope& s, const OtttLif& o) {
            const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0)),
                        trace = s->state("trace");
            const Factor threshold = s.number("v_threshold", o.v_threshold);
            const Value h = leaky(s, o, x, detach(v)).named("h");
            const Value z = s.spike(h - threshold, o.surrogate);
            const Value traced = (detach(trace) * (1 - 1 / o.tau) + detach(z)).named("traced");
            s->next(v, s.reset(h, z, threshold, o.v_reset, o.detach_reset, o.surrogate));
            s->next(trace, traced);
            s->output("s", z);
            s->output("traced", traced);
          },
      .check = soft_threshold<OtttLif>};
}

Definition<SlttLif> sltt_lif_definition() {
  return {.name = "sltt_lif",
          .python = "SLTTLIFNode",
          .doc = "LIF for online training: no gradient goes through time",
          .equations = "h as LIF, with v detached",
          .fields = with_leak<SlttLif>(),
          .step =
              [](const Scope& s, const SlttLif& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0));
                fire_and_reset(s, o, v, leaky(s, o, x, detach(v)));
              },
          .check = soft_threshold<SlttLif>};
}

}  // namespace

std::vector<Entry> leaky_neurons() {
  return {entry(lif_definition()),      entry(simple_lif_definition()), entry(plif_definition()),
          entry(klif_definition()),     entry(liaf_definition()),       entry(ilif_definition()),
          entry(ottt_lif_definition()), entry(sltt_lif_definition())};
}

}  // namespace library

namespace neurons {

using namespace library;

Neuron lif(const Lif& options) { return made_in_code(lif_definition(), options); }
Neuron simple_lif(const SimpleLif& options) { return made_in_code(simple_lif_definition(), options); }
Neuron plif(const Plif& options) { return made_in_code(plif_definition(), options); }
Neuron klif(const Klif& options) { return made_in_code(klif_definition(), options); }
Neuron liaf(const Liaf& options) { return made_in_code(liaf_definition(), options); }
Neuron ilif(const Ilif& options) { return made_in_code(ilif_definition(), options); }
Neuron ottt_lif(const OtttLif& options) { return made_in_code(ottt_lif_definition(), options); }
Neuron sltt_lif(const SlttLif& options) { return made_in_code(sltt_lif_definition(), options); }

}  // namespace neurons

}  // namespace flexsn
