#include "compile.h"

#include "error.h"
#include "expand.h"
#include "grad.h"
#include "simplify.h"
#include "text.h"
#include "verify.h"

namespace flexsn {

ir::Graph compile(const ir::Graph& step, Stage stage) {
  verify(step);
  if (stage == Stage::step) return step;
  ir::Graph graph = verified(simplify(step), "simplify");
  if (stage == Stage::simplified) return graph;
  if (stage == Stage::joint) {
    if (has_gradients(graph)) return graph;
    return verified(simplify(verified(grad(graph), "grad")), "simplify");
  }
  graph = verified(expand(graph), "expand");
  return verified(simplify(graph), "simplify");  // what met inside the expansions
}

std::string show(const Neuron& neuron, const ShowOptions& options) {
  const ir::Graph graph = compile(neuron.graph(options.type), options.stage);
  return print(graph, {.names = !options.canonical, .locations = options.locations});
}

}  // namespace flexsn
