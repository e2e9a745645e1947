// Neurons with a membrane that bends, swings or has channels.
#include <cmath>

#include "library.h"

namespace flexsn {

namespace library {

namespace {

using namespace neurons;

/// A membrane that a reset could leave above its threshold, or away from its rest, would never be quiet.
template <class Options>
void require_order(const Limits& limits, const Options& o) {
  require_threshold(limits, o.v_threshold, o.v_reset);
  if (!o.v_reset) return;
  limits.require("v_threshold", o.v_threshold, above(*o.v_reset),
                 join("a number above v_reset, which is ", *o.v_reset));
  limits.require("v_rest", o.v_rest, at_least(*o.v_reset),
                 join("a number of at least v_reset, which is ", *o.v_reset));
}

Definition<Qif> qif_definition() {
  return {.name = "qif",
          .python = "QIFNode",
          .doc = "quadratic integrate and fire",
          .equations =
              "h = v + (x + a0 (v - v_rest) (v - v_c)) / tau\n"
              "with v_reset, v_threshold > v_reset and v_rest >= v_reset",
          .fields = with_firing<Qif>({{"tau", &Qif::tau, above(1)},
                                      {"v_c", &Qif::v_c},
                                      {"a0", &Qif::a0, above(0)},
                                      {"v_rest", &Qif::v_rest}}),
          .step =
              [](const Scope& s, const Qif& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0));
                const Factor tau = s.number("tau", o.tau), v_c = s.number("v_c", o.v_c),
                             a0 = s.number("a0", o.a0), v_rest = s.number("v_rest", o.v_rest);
                fire_and_reset(s, o, v, v + (x + a0 * (v - v_rest) * (v - v_c)) / tau);
              },
          .check = require_order<Qif>};
}

Definition<Eif> eif_definition() {
  return {.name = "eif",
          .python = "EIFNode",
          .doc = "exponential integrate and fire",
          .equations =
              "h = v + (x + v_rest - v + delta_T exp((v - theta_rh) / delta_T)) / tau\n"
              "with v_reset, v_threshold > v_reset and v_rest >= v_reset",
          .fields = with_firing<Eif>({{"tau", &Eif::tau, above(1)},
                                      {"delta_T", &Eif::delta_T, above(0)},
                                      {"theta_rh", &Eif::theta_rh},
                                      {"v_rest", &Eif::v_rest}}),
          .step =
              [](const Scope& s, const Eif& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0));
                const Factor tau = s.number("tau", o.tau), delta_T = s.number("delta_T", o.delta_T),
                             theta = s.number("theta_rh", o.theta_rh), v_rest = s.number("v_rest", o.v_rest);
                const Value upswing = (delta_T * exp((v - theta) / delta_T)).named("upswing");
                fire_and_reset(s, o, v, v + (x + v_rest - v + upswing) / tau);
              },
          .check = require_order<Eif>};
}

Definition<Izhikevich> izhikevich_definition() {
  return {.name = "izhikevich",
          .python = "IzhikevichNode",
          .doc = "quadratic membrane with a recovery variable w",
          .equations =
              "h = v + (x + a0 (v - v_rest) (v - v_c) - w) / tau\n"
              "w = w + (a (h - v_rest) - w) / tau_w + b s;  w starts at w_rest",
          .fields = with_firing<Izhikevich>({{"tau", &Izhikevich::tau, above(1)},
                                             {"v_c", &Izhikevich::v_c},
                                             {"a0", &Izhikevich::a0, above(0)},
                                             {"v_rest", &Izhikevich::v_rest},
                                             {"w_rest", &Izhikevich::w_rest},
                                             {"tau_w", &Izhikevich::tau_w, above(0)},
                                             {"a", &Izhikevich::a},
                                             {"b", &Izhikevich::b}}),
          .step =
              [](const Scope& s, const Izhikevich& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0)),
                            w = s->state("w", o.w_rest);
                const Factor tau = s.number("tau", o.tau), v_c = s.number("v_c", o.v_c),
                             a0 = s.number("a0", o.a0), v_rest = s.number("v_rest", o.v_rest),
                             tau_w = s.number("tau_w", o.tau_w), a = s.number("a", o.a),
                             b = s.number("b", o.b), threshold = s.number("v_threshold", o.v_threshold);
                const Value h = (v + (x + a0 * (v - v_rest) * (v - v_c) - w) / tau).named("h");
                const Value recovered = w + (a * (h - v_rest) - w) / tau_w;
                const Value z = s.spike(h - threshold, o.surrogate);
                s->next(v, s.reset(h, z, threshold, o.v_reset, o.detach_reset, o.surrogate));
                s->next(w, recovered + b * z);
                s->output("s", z);
              },
          .check = soft_threshold<Izhikevich>};
}

Definition<Adex> adex_definition() {
  return {.name = "adex",
          .python = "AdExNode",
          .doc = "adaptive exponential integrate and fire",
          .equations =
              "h = v + (x - (v - v_rest) + delta_T exp((v - theta_rh) / delta_T) - w) / tau\n"
              "w = w + (a (v - v_rest) - w) / tau_w + b s",
          .fields = with_firing<Adex>({{"tau", &Adex::tau, above(0)},
                                       {"delta_T", &Adex::delta_T, above(0)},
                                       {"theta_rh", &Adex::theta_rh},
                                       {"v_rest", &Adex::v_rest},
                                       {"tau_w", &Adex::tau_w, above(0)},
                                       {"a", &Adex::a},
                                       {"b", &Adex::b}}),
          .step =
              [](const Scope& s, const Adex& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0)), w = s->state("w");
                const Factor tau = s.number("tau", o.tau), delta_T = s.number("delta_T", o.delta_T),
                             theta = s.number("theta_rh", o.theta_rh), v_rest = s.number("v_rest", o.v_rest),
                             tau_w = s.number("tau_w", o.tau_w), a = s.number("a", o.a),
                             b = s.number("b", o.b), threshold = s.number("v_threshold", o.v_threshold);
                const Value upswing = (delta_T * exp((v - theta) / delta_T)).named("upswing");
                const Value h = (v + (x - (v - v_rest) + upswing - w) / tau).named("h");
                const Value z = s.spike(h - threshold, o.surrogate);
                s->next(v, s.reset(h, z, threshold, o.v_reset, o.detach_reset, o.surrogate));
                s->next(w, w + (a * (v - v_rest) - w) / tau_w + b * z);
                s->output("s", z);
              },
          .check = soft_threshold<Adex>};
}

Definition<Raf> raf_definition() {
  return {.name = "raf",
          .python = "RAFNode",
          .doc = "resonate and fire: a damped oscillation that answers to its own frequency",
          .equations =
              "d = exp(b dt)\n"
              "u' = d (u cos(omega dt) - v sin(omega dt)) + x\n"
              "h = d (u sin(omega dt) + v cos(omega dt));  u = u'",
          .fields = with_firing<Raf>(
              {{"b", &Raf::b, below(0)}, {"omega", &Raf::omega, above(0)}, {"dt", &Raf::dt, above(0)}}),
          .step =
              [](const Scope& s, const Raf& o) {
                const Value x = s->input("x"), v = s->state("v", o.v_reset.value_or(0)), u = s->state("u");
                const double damping = std::exp(o.b * o.dt), cosine = std::cos(o.omega * o.dt),
                             sine = std::sin(o.omega * o.dt);
                s->next(u, damping * (u * cosine - v * sine) + x);
                fire_and_reset(s, o, v, damping * (u * sine + v * cosine));
              },
          .check = soft_threshold<Raf>};
}

/// y / (1 - exp(-y)), which is 1 at 0.
Value ratio(const Value& y) {
  const Value near = abs(y) < 1e-4;
  const Value far = select(near, like(y, 1), y);  // no gradient of 0 / 0 either
  return select(near, y / 2.0 + 1.0, far / -expm1(-far));
}

Definition<HodgkinHuxley> hodgkin_huxley_definition() {
  return {
      .name = "hodgkin_huxley",
      .python = "HodgkinHuxleyNode",
      .doc = "the currents of a squid's axon, in ms, mV, mS and uF; v is the potential, m, h and n are gates",
      .equations =
          "a_m = r((v + 40) / 10),  a_h = 0.07 exp(-(v + 65) / 20),  a_n = 0.1 r((v + 55) / 10),  "
          "r(y) = y / (1 - exp(-y))\n"
          "b_m = 4 exp(-(v + 65) / 18),  b_h = sigmoid((v + 35) / 10),  b_n = 0.125 exp(-(v + 65) / 80)\n"
          "each gate p goes to a_p / (a_p + b_p) by the factor exp(-dt (a_p + b_p))\n"
          "G = g_na m^3 h + g_k n^4 + g_l,  E = (g_na m^3 h e_na + g_k n^4 e_k + g_l e_l + x) / G\n"
          "v' = E + (v - E) exp(-dt G / c_m)\n"
          "s = Theta(v' - v_threshold) where v < v_threshold, else 0;  there is no reset",
      .fields = {{"dt", &HodgkinHuxley::dt, above(0)},
                 {"c_m", &HodgkinHuxley::c_m, above(0)},
                 {"g_na", &HodgkinHuxley::g_na, at_least(0)},
                 {"g_k", &HodgkinHuxley::g_k, at_least(0)},
                 {"g_l", &HodgkinHuxley::g_l, above(0)},
                 {"e_na", &HodgkinHuxley::e_na},
                 {"e_k", &HodgkinHuxley::e_k},
                 {"e_l", &HodgkinHuxley::e_l},
                 {"v_threshold", &HodgkinHuxley::v_threshold},
                 {"surrogate", &HodgkinHuxley::surrogate}},
      .step = [](const Scope& s, const HodgkinHuxley& o) {
        // The gates start where they rest at -65 mV.
        const Value x = s->input("x"), v = s->state("v", -65), m = s->state("m", 0.0529),
                    h = s->state("h", 0.5961), n = s->state("n", 0.3177);
        const Factor c_m = s.number("c_m", o.c_m), g_na = s.number("g_na", o.g_na),
                     g_k = s.number("g_k", o.g_k), g_l = s.number("g_l", o.g_l),
                     e_na = s.number("e_na", o.e_na), e_k = s.number("e_k", o.e_k),
                     e_l = s.number("e_l", o.e_l), threshold = s.number("v_threshold", o.v_threshold);
        const auto gate = [&](const Value& before, const Value& opening, const Value& closing) {
          const Value speed = opening + closing, rest = opening / speed;
          return rest + (before - rest) * exp(-o.dt * speed);
        };
        const Value from_rest = v + 65.0;
        const Value m1 = gate(m, ratio((v + 40.0) / 10.0), 4.0 * exp(from_rest / -18.0)).named("m1"),
                    h1 = gate(h, 0.07 * exp(from_rest / -20.0), sigmoid((v + 35.0) / 10.0)).named("h1"),
                    n1 = gate(n, 0.1 * ratio((v + 55.0) / 10.0), 0.125 * exp(from_rest / -80.0)).named("n1");
        const Value sodium = g_na * (m1 * m1 * m1 * h1), potassium = g_k * (n1 * n1 * (n1 * n1));
        const Value leak = like(v, 1) * g_l;
        const Value total = sodium + potassium + leak;
        const Value pull = (sodium * e_na + potassium * e_k + leak * e_l + x) / total;
        const Value next = (pull + (v - pull) * exp(-o.dt * (total / c_m))).named("next_v");
        const Value z = s.spike(next - threshold, o.surrogate);
        s->next(v, next);
        s->next(m, m1);
        s->next(h, h1);
        s->next(n, n1);
        s->output("s", select(v < threshold, z, like(z, 0)));
      }};
}

}  // namespace

std::vector<Entry> nonlinear_neurons() {
  return {entry(qif_definition()),  entry(eif_definition()), entry(izhikevich_definition()),
          entry(adex_definition()), entry(raf_definition()), entry(hodgkin_huxley_definition())};
}

}  // namespace library

namespace neurons {

using namespace library;

Neuron qif(const Qif& options) { return made_in_code(qif_definition(), options); }
Neuron eif(const Eif& options) { return made_in_code(eif_definition(), options); }
Neuron izhikevich(const Izhikevich& options) { return made_in_code(izhikevich_definition(), options); }
Neuron adex(const Adex& options) { return made_in_code(adex_definition(), options); }
Neuron raf(const Raf& options) { return made_in_code(raf_definition(), options); }
Neuron hodgkin_huxley(const HodgkinHuxley& options) {
  return made_in_code(hodgkin_huxley_definition(), options);
}

}  // namespace neurons

}  // namespace flexsn
