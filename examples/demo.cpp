// The demo: a neuron that is in no library, written in ten lines, taken through every stage, then run.
#include <cstdio>
#include <string>

#include "flexsn/flexsn.h"

using namespace flexsn;

namespace {

/// A leaky neuron whose threshold rises with each spike; a second input can silence it.
const Neuron gated = neuron("gated_alif", [](Step& s) {
  auto x = s.input("x"), gate = s.input("gate"), v = s.state("v"), a = s.state("a");
  auto tau = s.param("tau", 2.0, {.low = 1.0});  // scalar, per channel, any broadcast shape
  auto open = sigmoid(4.0 * gate);
  auto h = (v + (x * open - v) / tau).named("h");
  auto z = spike(h - 1.0 - 0.2 * a, surrogate::atan(2.0)).named("z");
  s.next(v, select(z > 0, 0.0, h));
  s.next(a, 0.9 * a + z);
  s.output("z", z);
});

void print_stage(const char* title, Stage stage) {
  std::printf("---- %s\n%s\n", title, show(gated, {.stage = stage}).c_str());
}

/// One character a step: how high the value is between 0 and `top`.
std::string sparkline(const Array& values, double top) {
  const std::string levels = " .:-=+*#";
  std::string line;
  for (std::int64_t t = 0; t < values.size(); ++t) {
    const double level = values[t] / top * static_cast<double>(levels.size());
    const double highest = static_cast<double>(levels.size() - 1);
    line += levels[static_cast<std::size_t>(level < 0 ? 0 : level > highest ? highest : level)];
  }
  return line;
}

std::string raster(const Array& spikes) {
  std::string line;
  for (std::int64_t t = 0; t < spikes.size(); ++t) line += spikes[t] > 0 ? '|' : '.';
  return line;
}

void run_it() {
  constexpr std::int64_t steps = 72;
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {steps, 1}, 2.2);
  arguments.inputs["gate"] = Array(Mem::f32, {steps, 1}, 1.0);
  for (std::int64_t t = 0; t < 8; ++t) arguments.inputs["x"].set(t, 0);
  for (std::int64_t t = 40; t < 56; ++t) arguments.inputs["gate"].set(t, -1.0);
  arguments.state_sequences = true;
  const Results results = run(gated, arguments);
  std::printf("---- %lld steps; the gate is shut in steps 40 to 55\n", static_cast<long long>(steps));
  std::printf("input     %s\n", sparkline(arguments.inputs["x"], 3).c_str());
  std::printf("membrane  %s\n", sparkline(results.states.at("v"), 1.5).c_str());
  std::printf("threshold %s\n", sparkline(results.states.at("a"), 4).c_str());
  std::printf("spikes    %s\n", raster(results.outputs.at("z")).c_str());
}

}  // namespace

int main() {
  print_stage("the step as traced", Stage::step);
  print_stage("simplified", Stage::simplified);
  print_stage("expanded into exact ops, as every backend runs it", Stage::expanded);
  std::printf("---- what will run\n%s\n", explain(gated).text.c_str());
  std::printf("---- what was checked\n");
  for (const Check& c : check(gated))
    std::printf("%-6s %-28s %s\n", c.passed ? "ok" : "FAILED", c.what.c_str(), c.detail.c_str());
  std::printf("\n");
  run_it();
}
