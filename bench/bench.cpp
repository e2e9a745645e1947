// Benchmarks of the core: the way from a step function to exact ops, and the interpreter beside a plain loop.
#include <benchmark/benchmark.h>

#include <cmath>

#include "compile.h"
#include "interpret.h"
#include "text.h"
#include "train.h"

namespace flexsn {
namespace {

void trace(benchmark::State& state, const char* name) {
  const Neuron neuron = neuron_named(name);
  for (auto _ : state) benchmark::DoNotOptimize(neuron.graph());
}
BENCHMARK_CAPTURE(trace, lif, "lif");
BENCHMARK_CAPTURE(trace, adex, "adex");

void passes(benchmark::State& state, const char* name) {
  const ir::Graph graph = neuron_named(name).graph();
  for (auto _ : state) benchmark::DoNotOptimize(compile(graph, Stage::expanded));
}
BENCHMARK_CAPTURE(passes, lif, "lif");
BENCHMARK_CAPTURE(passes, adex, "adex");

/// From a traced step to the plans of its training.
void planning(benchmark::State& state, const ir::Graph& graph) {
  for (auto _ : state) benchmark::DoNotOptimize(lower(graph, {}));
  state.counters["ops"] = ir::op_count(graph);
}
BENCHMARK_CAPTURE(planning, lif, neuron_named("lif").graph())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(planning, adex, neuron_named("adex").graph())->Unit(benchmark::kMillisecond);

/// A neuron of 200 ops: five states that drive each other.
ir::Graph large_step() {
  return neuron("large",
                [](Step& s) {
                  constexpr int count = 5;
                  const Value x = s.input("x");
                  std::vector<Value> states;
                  for (int i = 0; i < count; ++i) states.push_back(s.state("v" + std::to_string(i)));
                  Value total = x;
                  for (int i = 0; i < count; ++i) {
                    Value h = states[i];
                    for (int k = 0; k < 6; ++k)
                      h = h + 0.1 * tanh(states[(i + k) % count] * h - 0.5 * x) * (1.0 - h);
                    const Value z = spike(h - 1.0);
                    s.next(states[i], h * (1.0 - z));
                    total = total + z;
                  }
                  s.output("y", total);
                })
      .graph();
}
BENCHMARK_CAPTURE(planning, large, large_step())->Unit(benchmark::kMillisecond);

/// The minimum cut and the comparison of plans alone.
void partitioning(benchmark::State& state, const ir::Graph& graph) {
  const Training training;
  const ir::Graph joint = joint_of(compile(graph, Stage::simplified), training);
  for (auto _ : state) benchmark::DoNotOptimize(partition(joint, training));
}
BENCHMARK_CAPTURE(partitioning, lif, neuron_named("lif").graph())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(partitioning, large, large_step())->Unit(benchmark::kMillisecond);

void text_round_trip(benchmark::State& state) {
  const ir::Graph graph = compile(neuron_named("adex").graph(), Stage::expanded);
  for (auto _ : state) benchmark::DoNotOptimize(parse(print(graph), "bench"));
}
BENCHMARK(text_round_trip);

constexpr std::int64_t steps = 16, elements = 65536;

void interpreter(benchmark::State& state, const char* name) {
  const Neuron neuron = neuron_named(name);
  Arguments arguments;
  arguments.inputs["x"] = Array(Mem::f32, {steps, elements}, 1.5);
  for (auto _ : state) benchmark::DoNotOptimize(run(neuron, arguments));
  state.SetItemsProcessed(state.iterations() * steps * elements);
}
BENCHMARK_CAPTURE(interpreter, lif, "lif")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(interpreter, adex, "adex")->Unit(benchmark::kMillisecond);

/// The same LIF as a loop over time and elements, as one would write it by hand.
void plain_loop_lif(benchmark::State& state) {
  const std::vector<float> x(steps * elements, 1.5f);
  std::vector<float> s(steps * elements), v(elements);
  for (auto _ : state) {
    std::fill(v.begin(), v.end(), 0.0f);
    for (std::int64_t t = 0; t < steps; ++t) {
      for (std::int64_t n = 0; n < elements; ++n) {
        const float h = v[n] + (x[t * elements + n] - v[n]) * 0.5f;
        s[t * elements + n] = h >= 1 ? 1.0f : 0.0f;
        v[n] = h >= 1 ? 0.0f : h;
      }
    }
    benchmark::DoNotOptimize(s.data());
  }
  state.SetItemsProcessed(state.iterations() * steps * elements);
}
BENCHMARK(plain_loop_lif)->Unit(benchmark::kMillisecond);

/// One elementary function, expanded, over f32 in the interpreter; its libm counterpart stands below.
void expanded_function(benchmark::State& state, ir::Op op) {
  const ir::Graph& graph = expansion_of(op, Type::f32);
  std::vector<float> x(elements), y(elements);
  for (std::int64_t n = 0; n < elements; ++n) x[n] = static_cast<float>(n % 1000) * 0.01f - 5;
  Scan scan;
  scan.steps = 1;
  scan.elements = elements;
  scan.sources = {{.mem = Mem::f32, .data = x.data()}};
  scan.targets = {{.sequence = y.data()}};
  for (auto _ : state) interpret(graph, scan);
  state.SetItemsProcessed(state.iterations() * elements);
}
BENCHMARK_CAPTURE(expanded_function, exp, ir::Op::exp);
BENCHMARK_CAPTURE(expanded_function, tanh, ir::Op::tanh);
BENCHMARK_CAPTURE(expanded_function, sigmoid, ir::Op::sigmoid);

void libm_function(benchmark::State& state, float (*function)(float)) {
  std::vector<float> x(elements), y(elements);
  for (std::int64_t n = 0; n < elements; ++n) x[n] = static_cast<float>(n % 1000) * 0.01f - 5;
  for (auto _ : state) {
    for (std::int64_t n = 0; n < elements; ++n) y[n] = function(x[n]);
    benchmark::DoNotOptimize(y.data());
  }
  state.SetItemsProcessed(state.iterations() * elements);
}
BENCHMARK_CAPTURE(libm_function, exp, [](float x) { return std::exp(x); });
BENCHMARK_CAPTURE(libm_function, tanh, [](float x) { return std::tanh(x); });
BENCHMARK_CAPTURE(libm_function, sigmoid, [](float x) { return 1 / (1 + std::exp(-x)); });

}  // namespace
}  // namespace flexsn
