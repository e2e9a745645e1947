#include "absent.h"

#include <algorithm>

#include "build.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

class Removal {
 public:
  Removal(const Part& part, const std::vector<int>& absent) : part_(part) {
    const Graph& graph = part.graph;
    out_.graph.name = graph.name;
    out_.graph.files = graph.files;
    out_.graph.expanded = graph.expanded;
    moved_.assign(graph.nodes.size(), no_id);
    absent_.resize(graph.nodes.size());
    arriving_.resize(graph.nodes.size());
    place_.assign(graph.arguments.size(), -1);
    for (std::size_t a = 0; a < graph.arguments.size(); ++a) {
      const Port port = part.arguments[a];
      const Id value = graph.arguments[a].value;
      const bool output = port.what == Port::What::grad_output;
      arriving_[value] = output || port.what == Port::What::grad_state;
      absent_[value] = output && std::find(absent.begin(), absent.end(), port.index) != absent.end();
      if (absent_[value]) continue;
      place_[a] = static_cast<int>(out_.arguments.size());
      moved_[value] = add_argument(out_.graph, graph.arguments[a]).id;
      out_.arguments.push_back(port);
    }
  }

  Part run() {
    const Graph& graph = part_.graph;
    for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id)
      if (graph.at(id).op != Op::argument) move(id);
    for (std::size_t r = 0; r < graph.results.size(); ++r) {
      Result result = graph.results[r];
      // A state that nothing arrives at passes on the zero that no sum can see.
      const double nothing = result.gives == Gives::next ? -0.0 : 0.0;
      result.value = absent_[result.value] ? constant(out_.graph, graph.at(result.value).type, nothing).id
                                           : moved_[result.value];
      if (result.gives == Gives::next) result.of = place_[result.of];
      out_.graph.results.push_back(std::move(result));
    }
    out_.results = part_.results;
    out_.graph = without_dead_code(out_.graph);
    return std::move(out_);
  }

 private:
  void move(Id id) {
    Node node = part_.graph.at(id);
    int present = 0, missing = 0;
    for (Id operand : node.operands) {
      if (operand == no_id || !arriving_[operand]) continue;
      arriving_[id] = true;
      (absent_[operand] ? missing : present) += 1;
    }
    if (missing > 0 && present == 0) {
      absent_[id] = true;
      return;
    }
    const Id first = node.operands[0], second = node.operands[1];
    if (missing > 0 && (node.op == Op::add || node.op == Op::sub)) {
      const V other{&out_.graph, moved_[absent_[first] ? second : first]};
      moved_[id] = node.op == Op::sub && absent_[first] ? (-other).id : other.id;
      return;
    }
    for (Id& operand : node.operands) {
      if (operand == no_id) continue;
      // A gradient that meets another one in no sum: the neutral element stands for it.
      operand =
          absent_[operand] ? constant(out_.graph, part_.graph.at(operand).type, -0.0).id : moved_[operand];
    }
    moved_[id] = out_.graph.append(node, part_.graph.debug_at(id));
  }

  const Part& part_;
  Part out_;
  std::vector<Id> moved_;
  std::vector<bool> absent_, arriving_;  ///< arriving: depends on a gradient that arrives
  std::vector<int> place_;               ///< of an argument among those that are left
};

}  // namespace

Part without_arriving(const Part& backward, const std::vector<int>& absent) {
  return absent.empty() ? backward : Removal(backward, absent).run();
}

}  // namespace flexsn
