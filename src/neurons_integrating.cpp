// Neurons without a leak: what comes in stays until a spike.
#include <cmath>

#include "library.h"

namespace flexsn {

namespace library {

namespace {

using namespace neurons;

Definition<If> if_definition() {
  return {.name = "if",
          .python = "IFNode",
          .doc = "integrate and fire",
          .equations = "h = v + x",
          .fields = with_firing<If>({}),
          .step =
              [](const Scope& s, const If& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0));
                fire_and_reset(s, o, v, v + x);
              },
          .check = soft_threshold<If>};
}

Definition<If> simple_if_definition() {
  return {.name = "simple_if",
          .python = "SimpleIFNode",
          .doc = "integrate and fire that starts at 0 whatever it resets to",
          .equations = "h = v + x",
          .fields = with_firing<If>({}),
          .step =
              [](const Scope& s, const If& o) {
                const Value x = s->input("x"), v = s->state("v");
                fire_and_reset(s, o, v, v + x);
              },
          .check = soft_threshold<If>};
}

Definition<HalfThresholdIf> half_threshold_if_definition() {
  return {.name = "half_threshold_if",
          .python = "HalfThresholdIFNode",
          .doc = "integrate and fire with a soft reset that starts at half its threshold",
          .equations = "h = v + x",
          .fields = {{"v_threshold", &HalfThresholdIf::v_threshold, above(0)},
                     {"detach_reset", &HalfThresholdIf::detach_reset},
                     {"surrogate", &HalfThresholdIf::surrogate}},
          .step = [](const Scope& s, const HalfThresholdIf& o) {
            const Value x = s->input("x"), v = s->state("v", o.v_threshold / 2);
            fire_and_reset(s, If{o.v_threshold, std::nullopt, o.detach_reset, o.surrogate}, v, v + x);
          }};
}

Definition<ActivationAwareIf> activation_aware_if_definition() {
  return {.name = "activation_aware_if",
          .python = "ActivationAwareIFNode",
          .doc = "integrate and fire with an offset of its threshold",
          .equations = "h = v + x\ns = Theta(h + v_offset - v_threshold)",
          .fields = {{"v_threshold", &ActivationAwareIf::v_threshold, above(0)},
                     {"v_offset", &ActivationAwareIf::v_offset},
                     {"v_reset", &ActivationAwareIf::v_reset},
                     {"detach_reset", &ActivationAwareIf::detach_reset},
                     {"surrogate", &ActivationAwareIf::surrogate}},
          .step = [](const Scope& s, const ActivationAwareIf& o) {
            const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0));
            const Factor threshold = s.number("v_threshold", o.v_threshold),
                         offset = s.number("v_offset", o.v_offset);
            const Value h = (v + x).named("h");
            const Value z = s.spike(h + offset - threshold, o.surrogate);
            s->next(v, s.reset(h, z, threshold, o.v_reset, o.detach_reset, o.surrogate));
            s->output("s", z);
          }};
}

/// The largest and the least sum of spikes.
double most_of(const Stbif& o) {
  return o.pos_max.value_or(o.sym ? std::floor(o.level / 2.0) - 1 : o.level - 1);
}
double least_of(const Stbif& o) { return o.neg_min.value_or(o.sym ? std::floor(-o.level / 2.0) : 0); }

Definition<Stbif> stbif_definition() {
  return {.name = "stbif",
          .python = "STBIFNeuron",
          .doc = "a quantizer that gives signed spikes, whose sum is the quantized sum of its input",
          .equations =
              "q' = q + x / q_threshold\n"
              "z = 1 if q' >= 1 and acc_q < pos_max; -1 if q' < 0 and acc_q > neg_min; else 0\n"
              "s = z q_threshold,  q = q' - z,  acc_q = acc_q + z;  q starts at 1/2",
          .fields = {{"q_threshold", &Stbif::q_threshold, above(0)},
                     {"level", &Stbif::level, at_least(2)},
                     {"sym", &Stbif::sym},
                     {"pos_max", &Stbif::pos_max},
                     {"neg_min", &Stbif::neg_min}},
          .step =
              [](const Scope& s, const Stbif& o) {
                const Value x = s->input("x"), q = s->state("q", 0.5), before = s->state("acc_q");
                const Factor threshold = s.number("q_threshold", o.q_threshold);
                const Value filled = (q + x / threshold).named("filled"), sum = round(before);
                const Value up = (filled >= 1.0) & (sum < most_of(o)),
                            down = (filled < 0.0) & (sum > least_of(o));
                const Value z = select(up, like(x, 1), select(down, like(x, -1), like(x, 0))).named("sign");
                s->next(q, filled - z);
                s->next(before, sum + z);
                s->output("s", z * threshold);
              },
          .check =
              [](const Limits& limits, const Stbif& o) {
                if (least_of(o) > most_of(o))
                  limits.owner.fail("pos_max", join("a number of at least neg_min, which is ", least_of(o)),
                                    join(most_of(o)));
              }};
}

}  // namespace

std::vector<Entry> integrating_neurons() {
  return {entry(if_definition()), entry(simple_if_definition()), entry(half_threshold_if_definition()),
          entry(activation_aware_if_definition()), entry(stbif_definition())};
}

}  // namespace library

namespace neurons {

using namespace library;

Neuron if_(const If& options) { return made_in_code(if_definition(), options); }
Neuron simple_if(const If& options) { return made_in_code(simple_if_definition(), options); }
Neuron half_threshold_if(const HalfThresholdIf& options) {
  return made_in_code(half_threshold_if_definition(), options);
}
Neuron activation_aware_if(const ActivationAwareIf& options) {
  return made_in_code(activation_aware_if_definition(), options);
}
Neuron stbif(const Stbif& options) { return made_in_code(stbif_definition(), options); }

}  // namespace neurons

}  // namespace flexsn
