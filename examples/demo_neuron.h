// The neuron of the demo in C++: the step of examples/python/demo/neuron.py, so it gives the same bits.
#pragma once

#include "flexsn/flexsn.h"

/// A spike costs energy, and a tired neuron takes in less of its input.
inline const flexsn::Neuron tiring = flexsn::neuron("tiring", [](flexsn::Step& s) {
  auto x = s.input("x"), v = s.state("v"), tired = s.state("tired");
  auto cost = s.param("cost", 0.3);  // of a spike: one for all, or one for each channel
  auto h = v * 0.5 + x * (1.0 - tired);
  auto z = spike(h - 1.0, flexsn::surrogate::atan(2.0));
  s.next(v, h * (1.0 - z));
  s.next(tired, tired * 0.9 + z * cost * (1.0 - tired));
  s.output("z", z);
});
