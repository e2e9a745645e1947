// Neurons that never fire: their potential is their output.
#include "library.h"

namespace flexsn {

namespace library {

namespace {

using namespace neurons;

Definition<NonSpikingIf> non_spiking_if_definition() {
  return {.name = "non_spiking_if",
          .python = "NonSpikingIFNode",
          .doc = "a sum of its input",
          .equations = "v = v + x;  v is the output",
          .fields = {},
          .step = [](const Scope& s, const NonSpikingIf&) {
            const Value x = s->input("x"), v = s->state("v"), next = v + x;
            s->next(v, next);
            s->output("y", next);
          }};
}

Definition<NonSpikingLif> non_spiking_lif_definition() {
  return {.name = "non_spiking_lif",
          .python = "NonSpikingLIFNode",
          .doc = "a leaky mean of its input",
          .equations = "v = v + (x - v) / tau;  v is the output",
          .fields = {{"tau", &NonSpikingLif::tau, above(1)}},
          .step = [](const Scope& s, const NonSpikingLif& o) {
            const Value x = s->input("x"), v = s->state("v"), next = v + (x - v) / s.number("tau", o.tau);
            s->next(v, next);
            s->output("y", next);
          }};
}

Definition<SynapticLi> synaptic_li_definition() {
  return {.name = "synaptic_li",
          .python = "SynapticLINode",
          .doc = "a leaky integrator behind an alpha synapse, whose answer to a spike rises and falls",
          .equations =
              "r = c_decay r + x\n"
              "c = c_decay c + (1 - c_decay) r\n"
              "v = v + (c - v) / tau;  v is the output",
          .fields = {{"c_decay", &SynapticLi::c_decay, from_to(0, 1)}, {"tau", &SynapticLi::tau, above(1)}},
          .step = [](const Scope& s, const SynapticLi& o) {
            const Value x = s->input("x"), v = s->state("v"), r = s->state("r"), c = s->state("c");
            const Factor decay = s.number("c_decay", o.c_decay), tau = s.number("tau", o.tau);
            const Value risen = (decay * r + x).named("risen");
            const Value current = (decay * c + decay.complement() * risen).named("current");
            const Value next = v + (current - v) / tau;
            s->next(r, risen);
            s->next(c, current);
            s->next(v, next);
            s->output("y", next);
          }};
}

}  // namespace

std::vector<Entry> silent_neurons() {
  return {entry(non_spiking_if_definition()), entry(non_spiking_lif_definition()),
          entry(synaptic_li_definition())};
}

}  // namespace library

namespace neurons {

using namespace library;

Neuron non_spiking_if(const NonSpikingIf& options) {
  return made_in_code(non_spiking_if_definition(), options);
}
Neuron non_spiking_lif(const NonSpikingLif& options) {
  return made_in_code(non_spiking_lif_definition(), options);
}
Neuron synaptic_li(const SynapticLi& options) { return made_in_code(synaptic_li_definition(), options); }

}  // namespace neurons

}  // namespace flexsn
