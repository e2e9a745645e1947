// A shared library that compiles and runs a neuron on the CPU, for loading beside other copies of LLVM.
#include <algorithm>
#include <cstdio>
#include <exception>

#include "flexsn/flexsn.h"

namespace flexsn {
namespace {

constexpr std::int64_t steps = 9, batch = 5, channels = 7;  // no multiple of a vector's width
const std::vector<std::int64_t> shape = {batch, channels}, sequence = {steps, batch, channels};

/// Another constant in the graph for each round, so that no round finds the code of an earlier one.
Neuron neuron_of(int round) {
  return neuron("beside", [round](Step& s) {
    const auto x = s.input("x"), v = s.state("v"), a = s.state("a");
    const auto tau = s.param("tau", 2);
    const auto h = v + (tanh(x) - v) / tau;
    const auto z = spike(h - (0.25 + 0.0078125 * round) - 0.2 * a, surrogate::atan());
    s.next(v, select(z > 0, 0.0, h));
    s.next(a, exp(-0.1 - a * a) + z);
    s.output("z", z);
  });
}

Array spread_between(double low, double high, std::vector<std::int64_t> dims) {
  Array array(Mem::f32, std::move(dims));
  for (std::int64_t n = 0; n < array.size(); ++n)
    array.set(n, low + (high - low) * static_cast<double>(n * 7919 % 1009) / 1009);
  return array;
}

bool same(const char* what, const Array& expected, const Array& found) {
  if (expected.type == found.type && expected.bytes == found.bytes) return true;
  for (std::int64_t n = 0; n < std::min(expected.size(), found.size()); ++n)
    if (expected[n] != found[n])
      std::printf("%s[%lld]: the interpreter gives %.17g, the kernel %.17g\n", what,
                  static_cast<long long>(n), expected[n], found[n]);
  std::printf("%s differs\n", what);
  return false;
}

bool compare_with_interpreter(int round) {
  const Neuron beside = neuron_of(round);
  Arguments arguments;
  arguments.inputs["x"] = spread_between(-1, 3, sequence);
  arguments.states["v"] = spread_between(-1, 1, shape);
  arguments.states["a"] = spread_between(0, 1, shape);
  arguments.params["tau"] = spread_between(1.5, 4, {channels});
  Arriving arriving;
  arriving.outputs["z"] = spread_between(-1, 1, sequence);
  const Results results = run(beside, arguments);
  const Gradients gradients = run_backward(beside, arguments, arriving);

  Array z(Mem::f32, sequence), v(Mem::f32, shape), a(Mem::f32, shape);
  Array grad_x(Mem::f32, sequence), grad_v(Mem::f32, shape), grad_tau(Mem::f32, {channels});
  const Kernel kernel = compile(beside, {.target = "cpu"});
  Run r = kernel.bind({steps, shape});
  r.in("x", arguments.inputs.at("x")).param("tau", arguments.params.at("tau"), {channels}).out("z", z);
  r.first_state("v", arguments.states.at("v")).first_state("a", arguments.states.at("a"));
  r.last_state("v", v).last_state("a", a);
  std::vector<std::byte> workspace(r.workspace_bytes());
  r.forward(workspace);
  r.backward(workspace, {{"z", arriving.outputs.at("z")}}, {{"x", grad_x}, {"v", grad_v}, {"tau", grad_tau}});

  bool all = same("z", results.outputs.at("z"), z);
  all &= same("v", results.states.at("v"), v);
  all &= same("a", results.states.at("a"), a);
  all &= same("the gradient of x", gradients.inputs.at("x"), grad_x);
  all &= same("the gradient of v", gradients.states.at("v"), grad_v);
  all &= same("the gradient of tau", gradients.params.at("tau"), grad_tau);
  return all;
}

}  // namespace
}  // namespace flexsn

/// 0 when a kernel made just now gives the interpreter's bits, forward and backward; else says what differs.
extern "C" __attribute__((visibility("default"))) int flexsn_beside(int round) try {
  int status = 1;
  if (flexsn::cache_info().usable)
    std::printf("kernels could come from disk, without LLVM; set FLEXSN_CACHE=0\n");
  else
    status = flexsn::compare_with_interpreter(round) ? 0 : 1;
  std::fflush(stdout);
  return status;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  std::fflush(stdout);
  return 1;
}
