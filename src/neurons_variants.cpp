// Leaky neurons with more than a membrane: a current, gates, a threshold or a reset with a memory.
#include <cmath>

#include "library.h"

namespace flexsn {

namespace library {

namespace {

using namespace neurons;

Definition<CubaLif> cuba_lif_definition() {
  return {.name = "cuba_lif",
          .python = "CUBALIFNode",
          .doc = "LIF driven by a current that decays",
          .equations = "c = c_decay c + x\nh = v_decay v + c",
          .fields = with_firing<CubaLif>(
              {{"c_decay", &CubaLif::c_decay, from_to(0, 1)}, {"v_decay", &CubaLif::v_decay, from_to(0, 1)}}),
          .step =
              [](const Scope& s, const CubaLif& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0)), c = s->state("c");
                const Factor c_decay = s.number("c_decay", o.c_decay),
                             v_decay = s.number("v_decay", o.v_decay);
                const Value current = (c * c_decay + x).named("current");
                s->next(c, current);
                fire_and_reset(s, o, v, v * v_decay + current);
              },
          .check = soft_threshold<CubaLif>};
}

/// What a sigmoid makes this number of.
double before_sigmoid(double number) { return -std::log(1 / number - 1); }

Definition<GatedLif> gated_lif_definition() {
  return {.name = "gated_lif",
          .python = "GatedLIFNode",
          .doc = "LIF with learnable gates between two ways to leak, to take input and to reset",
          .equations =
              "A, B, G, tau, theta, l, r, g = sigmoid of alpha, beta, gamma, tau, v_threshold, "
              "linear_decay, v_subreset and, one a step, conduct\n"
              "I = x (1 - B (1 - g))\n"
              "u = (1 - A (1 - tau)) v - (1 - A) l + I\n"
              "v = u - (1 - A (1 - tau)) v G s - (1 - G) r s\n"
              "s = Theta(v - theta)",
          .fields = {{"T", &GatedLif::T, at_least(1)},
                     {"init_tau", &GatedLif::init_tau, between(0, 1)},
                     {"init_v_threshold", &GatedLif::init_v_threshold, between(0, 1)},
                     {"init_conduct", &GatedLif::init_conduct, between(0, 1)},
                     {"init_linear_decay", &GatedLif::init_linear_decay, between(0, 1)},
                     {"init_v_subreset", &GatedLif::init_v_subreset, between(0, 1)},
                     {"surrogate", &GatedLif::surrogate}},
          .step = [](const Scope& s, const GatedLif& o) {
            const Value x = s->input("x"), v = s->state("v"), before = s->state("spiked");
            const auto gate = [&](const char* name, double initial) {
              return sigmoid(s->param(name, before_sigmoid(initial)));
            };
            const Value alpha = gate("alpha", 0.5), beta = gate("beta", 0.5), gamma = gate("gamma", 0.5),
                        tau = gate("tau", o.init_tau), threshold = gate("v_threshold", o.init_v_threshold),
                        decay = gate("linear_decay",
                                     o.init_linear_decay.value_or(o.init_v_threshold / (2 * o.T))),
                        subreset = gate("v_subreset", o.init_v_subreset.value_or(o.init_v_threshold));
            const Value conduct = sigmoid(s->step_param("conduct", before_sigmoid(o.init_conduct)));
            const Value current = x * (1.0 - beta * (1.0 - conduct));
            const Value kept = (1.0 - alpha * (1.0 - tau)) * v;
            const Value charged = kept - (1.0 - alpha) * decay + current;
            const Value u = (charged - kept * gamma * before - (1.0 - gamma) * subreset * before).named("u");
            const Value z = s.spike(u - threshold, o.surrogate);
            s->next(v, u);
            s->next(before, z);
            s->output("s", z);
          }};
}

Definition<Alif> alif_definition() {
  return {.name = "alif",
          .python = "AdaptiveLIFNode",
          .doc = "LIF whose threshold rises with each spike and falls back",
          .equations =
              "h = v + (x - v) / tau,  1 / tau = sigmoid(w);  w starts at -log(tau - 1)\n"
              "s = Theta(h - v_threshold - beta a)\n"
              "a = rho a + s",
          .fields = with_firing<Alif>(
              {{"tau", &Alif::tau, above(1)}, {"beta", &Alif::beta}, {"rho", &Alif::rho, from_to(0, 1)}}),
          .step =
              [](const Scope& s, const Alif& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0)), a = s->state("a");
                // What is learned is w, so that no step of an optimizer takes tau to 1 or below.
                const Value w = s->param("w", -std::log(o.tau - 1)), rate = sigmoid(w).named("rate");
                const Factor beta = s.number("beta", o.beta), rho = s.number("rho", o.rho),
                             threshold = s.number("v_threshold", o.v_threshold);
                const Value h = (v + (x - v) * rate).named("h");
                const Value z = s.spike(h - threshold - beta * a, o.surrogate);
                s->next(v, s.reset(h, z, threshold, o.v_reset, o.detach_reset, o.surrogate));
                s->next(a, rho * a + z);
                s->output("s", z);
              },
          .check = soft_threshold<Alif>};
}

Definition<Clif> clif_definition() {
  return {.name = "clif",
          .python = "ComplementaryLIFNode",
          .doc = "LIF with a complementary potential, which makes each reset deeper",
          .equations =
              "h = v - v / tau + x\n"
              "m = m sigmoid(h / tau) + s\n"
              "v = h - s (v_threshold + sigmoid(m))",
          .fields = {{"tau", &Clif::tau, above(1)},
                     {"v_threshold", &Clif::v_threshold, above(0)},
                     {"surrogate", &Clif::surrogate}},
          .step = [](const Scope& s, const Clif& o) {
            const Value x = s->input("x"), v = s->state("v"), m = s->state("m");
            const Factor tau = s.number("tau", o.tau), threshold = s.number("v_threshold", o.v_threshold);
            const Value h = (v - v / tau + x).named("h");
            const Value z = s.spike(h - threshold, o.surrogate);
            const Value complement = (m * sigmoid(h / tau) + z).named("complement");
            s->next(v, h - z * (threshold + sigmoid(complement)));
            s->next(m, complement);
            s->output("s", z);
          }};
}

}  // namespace

std::vector<Entry> leaky_variants() {
  return {entry(cuba_lif_definition()), entry(gated_lif_definition()), entry(alif_definition()),
          entry(clif_definition())};
}

}  // namespace library

namespace neurons {

using namespace library;

Neuron cuba_lif(const CubaLif& options) { return made_in_code(cuba_lif_definition(), options); }
Neuron gated_lif(const GatedLif& options) { return made_in_code(gated_lif_definition(), options); }
Neuron alif(const Alif& options) { return made_in_code(alif_definition(), options); }
Neuron clif(const Clif& options) { return made_in_code(clif_definition(), options); }

}  // namespace neurons

}  // namespace flexsn
