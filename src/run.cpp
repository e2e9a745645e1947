// run: arrays in, arrays out.
#include "bind.h"
#include "compile.h"
#include "grad.h"

namespace flexsn {

using namespace ir;

namespace {

/// Room in `results` for one result of a run, and the target that fills it.
Target target(const Graph& graph, const Result& result, const Binding& binding, bool state_sequences,
              Results& results) {
  const bool output = result.gives == Gives::output, sequence = output || state_sequences;
  Shape shape = binding.shape();
  if (sequence) shape.insert(shape.begin(), binding.steps());
  Array& array = output ? results.outputs[result.name] : results.states[graph.arguments[result.of].name];
  array = Array(result.mem, std::move(shape));
  if (sequence) return {.sequence = array.bytes.data(), .row_stride = binding.elements()};
  return {.last = array.bytes.data()};
}

}  // namespace

Results run(const Neuron& neuron, const Arguments& arguments) {
  // The passes keep every bit, and what only gradients need is gone.
  const Graph step = neuron.graph(arguments.type);
  const Graph graph = compile(has_gradients(step) ? forward_of(step) : step, Stage::expanded);
  Binding binding(graph, arguments);
  Scan scan;
  scan.steps = binding.steps();
  scan.elements = binding.elements();
  scan.first_step = arguments.first_step;
  for (const Argument& argument : graph.arguments) scan.sources.push_back(binding.source(argument));
  Results results;
  for (const Result& result : graph.results)
    scan.targets.push_back(target(graph, result, binding, arguments.state_sequences, results));
  interpret(graph, scan);
  return results;
}

}  // namespace flexsn
