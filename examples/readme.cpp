// The example of the README, as it stands there.
#include <cstdio>

#include "flexsn/flexsn.h"

using namespace flexsn;

int main() {
  // README: begin
  auto alif = neuron("alif", [](Step& s) {
    auto x = s.input("x"), v = s.state("v"), a = s.state("a");
    auto tau = s.param("tau", 2.0);  // scalar, per channel, any broadcast shape: chosen at run time
    auto h = v + (x - v) / tau;
    auto z = spike(h - 1.0 - 0.2 * a, surrogate::atan(2.0));
    s.next(v, select(z > 0, 0.0, h));
    s.next(a, 0.9 * a + z);
    s.output("z", z);
  });

  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {100, 32, 8}, 1.8);                  // 100 steps, 32 x 8 neurons
  arguments.params["tau"] = Array(Mem::f32, {8}, {1.5, 2, 3, 4, 5, 6, 7, 8});  // one for each channel
  Results results = run(alif, arguments);  // outputs["z"] is [100, 32, 8], states["v"] is [32, 8]
  // README: end
  double spikes = 0;
  for (double z : results.outputs["z"].values()) spikes += z;
  std::printf("%g spikes of %lld neurons in 100 steps\n", spikes,
              static_cast<long long>(results.states["v"].size()));
}
