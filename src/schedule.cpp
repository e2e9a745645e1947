#include "schedule.h"

#include <algorithm>

#include "error.h"
#include "expand.h"
#include "simplify.h"
#include "verify.h"

namespace flexsn {

using namespace ir;
using What = Port::What;

namespace {

/// The graph in exact ops; arguments and results keep their places.
Graph exact(const Graph& graph) {
  const Graph simple = verified(simplify(verified(graph, "partition")), "simplify");
  return verified(simplify(verified(expand(simple), "expand")), "simplify");
}

class Scheduler {
 public:
  Scheduler(const Graph& whole, Kind kind, const Layout& layout) : whole_(whole), layout_(layout) {
    plan_.kind = kind;
    plan_.neuron = whole.name;
    plan_.reverse = kind == Kind::backward;
    for (const auto& [name, map] : layout)
      internal_check(std::any_of(whole.arguments.begin(), whole.arguments.end(),
                                 [&](const Argument& a) { return a.name == name; }),
                     "a layout names an argument that is not there");
  }

  void forward(const Part& part, const Partition* training, bool sequences) {
    if (training != nullptr) plan_.segment = training->segment;
    std::map<int, int> carries;
    for (std::size_t i = 0; i < part.arguments.size(); ++i) {
      const Port port = part.arguments[i];
      if (port.what != What::state) {
        plan_.step.arguments.push_back(read(port, part.graph.arguments[i]));
        continue;
      }
      const Argument& state = whole_.arguments[port.index];
      Carry carry{.type = value_type(state.mem), .first = first_state(port.index)};
      if (sequences)
        carry.sequence = buffer({.holds = Holds::state_sequence,
                                 .index = port.index,
                                 .name = state.name,
                                 .mem = state.mem,
                                 .lead = Lead::per_step,
                                 .write = true});
      else
        carry.last = buffer({.holds = Holds::last_state,
                             .index = port.index,
                             .name = state.name,
                             .mem = state.mem,
                             .write = true});
      if (training != nullptr && std::find(training->rebuilt.begin(), training->rebuilt.end(), port.index) !=
                                     training->rebuilt.end())
        carry.checkpoint = checkpoint(port.index, true);
      plan_.step.arguments.push_back(carried(carries, port.index, plan_.carries, carry));
    }
    for (std::size_t i = 0; i < part.results.size(); ++i) {
      const Port port = part.results[i];
      const Result& result = part.graph.results[i];
      if (port.what == What::state)
        plan_.step.results.push_back({Slot::Kind::carry, carries.at(port.index)});
      else
        plan_.step.results.push_back(
            {Slot::Kind::store, buffer({.holds = port.what == What::output ? Holds::output : Holds::saved,
                                        .index = port.index,
                                        .name = result.name,
                                        .mem = result.mem,
                                        .lead = Lead::per_step,
                                        .write = true})});
    }
    plan_.step.graph = exact(part.graph);
  }

  void backward(const Partition& parts, const Training& training) {
    plan_.segment = parts.segment;
    if (parts.rebuild) rebuild(parts);
    const Part& part = parts.backward;
    std::map<int, int> carries;
    for (std::size_t i = 0; i < part.arguments.size(); ++i) {
      const Port port = part.arguments[i];
      if (port.what == What::grad_state)
        plan_.step.arguments.push_back(
            carried(carries, port.index, plan_.carries, gradient_carry(port.index, training)));
      else
        plan_.step.arguments.push_back(read(port, part.graph.arguments[i]));
    }
    for (std::size_t i = 0; i < part.results.size(); ++i) {
      const Port port = part.results[i];
      plan_.step.results.push_back(port.what == What::grad_state
                                       ? Slot{Slot::Kind::carry, carries.at(port.index)}
                                       : gradient(port.index, part.graph.results[i].mem));
    }
    plan_.step.graph = exact(part.graph);
  }

  Plan take() {
    verify(plan_);
    return std::move(plan_);
  }

 private:
  int buffer(Buffer wanted) {
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i)
      if (plan_.buffers[i].holds == wanted.holds && plan_.buffers[i].index == wanted.index)
        return static_cast<int>(i);
    plan_.buffers.push_back(std::move(wanted));
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  static Slot carried(std::map<int, int>& places, int state, std::vector<Carry>& list, const Carry& carry) {
    places[state] = static_cast<int>(list.size());
    list.push_back(carry);
    return {Slot::Kind::carry, places[state]};
  }

  Map map_of(const Argument& argument, Map otherwise) const {
    const auto found = layout_.find(argument.name);
    return found == layout_.end() ? otherwise : found->second;
  }

  int first_state(int state) {
    const Argument& argument = whole_.arguments[state];
    return buffer({.holds = Holds::first_state,
                   .index = state,
                   .name = argument.name,
                   .mem = argument.mem,
                   .map = map_of(argument, Map::element)});
  }

  int checkpoint(int state, bool write) {
    const Argument& argument = whole_.arguments[state];
    return buffer({.holds = Holds::checkpoint,
                   .index = state,
                   .name = argument.name,
                   .mem = argument.mem,
                   .lead = Lead::per_segment,
                   .write = write});
  }

  Slot read(Port port, const Argument& argument) {
    const auto row = [&](Holds holds) {
      return Slot{Slot::Kind::load, buffer({.holds = holds,
                                            .index = port.index,
                                            .name = argument.name,
                                            .mem = argument.mem,
                                            .lead = Lead::per_step})};
    };
    switch (port.what) {
      case What::input:
        return row(Holds::input);
      case What::output:
        return row(Holds::output);
      case What::sequence:
        return row(Holds::state_sequence);
      case What::saved:
        return row(Holds::saved);
      case What::grad_output: {
        const std::string& output = whole_.results[whole_.arguments[port.index].of].name;
        return {Slot::Kind::load, buffer({.holds = Holds::grad_output,
                                          .index = port.index,
                                          .name = output,
                                          .mem = argument.mem,
                                          .lead = Lead::per_step})};
      }
      case What::kept:
        return {Slot::Kind::keep, port.index};
      case What::param: {
        const bool rows = argument.per_step;
        return {rows ? Slot::Kind::load : Slot::Kind::param,
                buffer({.holds = Holds::param,
                        .index = port.index,
                        .name = whole_.arguments[port.index].name,  // a part may have to call it otherwise
                        .mem = argument.mem,
                        .lead = rows ? Lead::per_step : Lead::once,
                        .map = map_of(whole_.arguments[port.index], Map::scalar)})};
      }
      case What::state:
      case What::grad_state:
      case What::grad:
        break;
    }
    internal_error("a part's argument is none", std::source_location::current());
  }

  void rebuild(const Partition& parts) {
    const Part& part = *parts.rebuild;
    Body body;
    std::map<int, int> carries;
    for (std::size_t i = 0; i < part.arguments.size(); ++i) {
      const Port port = part.arguments[i];
      if (port.what != What::state) {
        body.arguments.push_back(read(port, part.graph.arguments[i]));
        continue;
      }
      const Carry carry{.type = value_type(whole_.arguments[port.index].mem),
                        .first = first_state(port.index),
                        .checkpoint = checkpoint(port.index, false)};
      body.arguments.push_back(carried(carries, port.index, plan_.rebuilt, carry));
    }
    for (const Port& port : part.results)
      body.results.push_back(port.what == What::state ? Slot{Slot::Kind::carry, carries.at(port.index)}
                                                      : Slot{Slot::Kind::keep, port.index});
    body.graph = exact(part.graph);
    for (std::size_t i = 0; i < parts.kept.size(); ++i) plan_.kept.push_back(whole_.at(parts.kept[i]).type);
    plan_.rebuild = std::move(body);
  }

  Carry gradient_carry(int state, const Training& training) {
    const Argument& argument = whole_.arguments[state];
    const Mem mem = gradient_memory(argument);
    Carry carry{.type = value_type(mem)};
    // At a sequence of states gradients have the state's own type, at the last one that they are carried in.
    if (training.state_sequences)
      carry.add_sequence = buffer({.holds = Holds::grad_state_sequence,
                                   .index = state,
                                   .name = argument.name,
                                   .mem = argument.mem,
                                   .lead = Lead::per_step,
                                   .optional = true});
    else
      carry.first = buffer({.holds = Holds::grad_last_state,
                            .index = state,
                            .name = argument.name,
                            .mem = mem,
                            .optional = true});
    const std::vector<std::string>& wanted = training.wanted;
    const bool given = std::any_of(whole_.results.begin(), whole_.results.end(), [&](const Result& result) {
      return result.gives == Gives::grad && result.of == state;
    });
    if (given && (wanted.empty() || std::find(wanted.begin(), wanted.end(), argument.name) != wanted.end()))
      carry.last = buffer({.holds = Holds::grad_first_state,
                           .index = state,
                           .name = argument.name,
                           .mem = mem,
                           .write = true});
    return carry;
  }

  Slot gradient(int index, Mem mem) {
    const Argument& argument = whole_.arguments[index];
    const bool input = argument.role == Role::input, rows = input || argument.per_step;
    const int to = buffer({.holds = input ? Holds::grad_input : Holds::grad_param,
                           .index = index,
                           .name = argument.name,
                           .mem = mem,
                           .lead = rows ? Lead::per_step : Lead::once,
                           .write = true});
    if (rows) return {Slot::Kind::store, to};
    plan_.sums.push_back({.type = value_type(mem), .buffer = to});
    return {Slot::Kind::sum, static_cast<int>(plan_.sums.size()) - 1};
  }

  const Graph& whole_;
  const Layout& layout_;
  Plan plan_;
};

}  // namespace

Plan schedule_inference(const Graph& step, Kind kind, const Layout& layout) {
  internal_check(kind == Kind::inference || kind == Kind::inference_final_state, "not an inference kind");
  Scheduler scheduler(step, kind, layout);
  scheduler.forward(forward_part(values_only(step), {}), nullptr, kind == Kind::inference);
  return scheduler.take();
}

TrainingPlans schedule_training(const Graph& joint, const Partition& parts, const Training& training,
                                const Layout& layout) {
  Scheduler forward(joint, Kind::forward, layout), backward(joint, Kind::backward, layout);
  forward.forward(parts.forward, &parts, training.state_sequences);
  backward.backward(parts, training);
  return {forward.take(), backward.take()};
}

}  // namespace flexsn
