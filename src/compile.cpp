#include "compile.h"

#include "error.h"
#include "expand.h"
#include "simplify.h"
#include "text.h"
#include "train.h"
#include "verify.h"

namespace flexsn {

ir::Graph compile(const ir::Graph& step, Stage stage) {
  internal_check(stage < Stage::joint, "gradients need to know what is wanted");
  verify(step);
  if (stage == Stage::step) return step;
  ir::Graph graph = verified(simplify(step), "simplify");
  if (stage == Stage::simplified) return graph;
  graph = verified(expand(graph), "expand");
  return verified(simplify(graph), "simplify");  // what met inside the expansions
}

std::string show(const Neuron& neuron, const ShowOptions& options) {
  const PrintStyle style{.names = !options.canonical, .locations = options.locations};
  const ir::Graph step = neuron.graph(options.type);
  if (options.stage < Stage::joint) return print(compile(step, options.stage), style);
  if (options.stage == Stage::plan && options.kind)
    return print(plan_of(step, *options.kind, options.training), style.names);
  if (options.stage == Stage::joint)
    return print(joint_of(compile(step, Stage::simplified), options.training), style);
  const Lowered lowered = lower(step, options.training);
  if (options.stage == Stage::forward) return print(lowered.parts.forward.graph, style);
  if (options.stage == Stage::plan)
    return print(lowered.plans.forward, style.names) + print(lowered.plans.backward, style.names);
  const auto& rebuild = lowered.parts.rebuild;
  return (rebuild ? print(rebuild->graph, style) : "") + print(lowered.parts.backward.graph, style);
}

}  // namespace flexsn
