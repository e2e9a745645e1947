// A program of its own that uses an installed flexsn: one neuron, run for three steps.
#include <cstdio>

#include "flexsn/flexsn.h"

int main() {
  using namespace flexsn;
  const Neuron counter = neuron("counter", [](Step& s) {
    auto x = s.input("x"), v = s.state("v");
    s.next(v, v + exp(x));
    s.output("sum", v + 1.0);
  });
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {3, 2}, 0.0);
  const Results results = run(counter, arguments);
  const double last = results.states.at("v")[1], sum = results.outputs.at("sum")[4];
  std::printf("flexsn %s: last state %g, last output %g\n", std::string(version()).c_str(), last, sum);
  return last == 3 && sum == 3 ? 0 : 1;
}
