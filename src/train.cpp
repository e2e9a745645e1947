#include "train.h"

#include <algorithm>

#include "absent.h"
#include "compile.h"
#include "error.h"
#include "simplify.h"
#include "verify.h"

namespace flexsn {

using namespace ir;

namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The neuron's own arguments and outputs, and what forward and backward hand each other.
void describe_neuron(const Graph& graph, KernelInfo& info) {
  for (const Argument& argument : graph.arguments) {
    if (argument.role == Role::input) info.inputs.push_back({argument.name, argument.mem});
    if (argument.role == Role::state) info.states.push_back({argument.name, argument.mem});
    if (argument.role == Role::param) info.params.push_back({argument.name, argument.mem});
  }
  for (const Result& result : graph.results)
    if (result.gives == Gives::output) info.outputs.push_back({result.name, result.mem});
  info.returns = info.outputs;
  info.returns.insert(info.returns.end(), info.states.begin(), info.states.end());
}

void describe_training(const Lowered& lowered, KernelInfo& info) {
  const auto place = [](const std::vector<Named>& list, const std::string& name) {
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].name == name) return static_cast<int>(i);
    return -1;
  };
  const Graph& joint = lowered.joint;
  info.segment = lowered.parts.segment;
  for (int state : lowered.parts.rebuilt) info.checkpoints.push_back(joint.arguments[state].name);
  std::vector<Port> reads;  // each once: an input may be read by the rebuild and by a step
  const auto note = [&](const Part& part) {
    for (std::size_t i = 0; i < part.arguments.size(); ++i) {
      const Port port = part.arguments[i];
      if (std::find(reads.begin(), reads.end(), port) != reads.end()) continue;
      reads.push_back(port);
      Residual residual{part.graph.arguments[i].name, part.graph.arguments[i].mem};
      const int outputs = static_cast<int>(info.outputs.size());
      if (port.what == Port::What::input) {
        residual.name = joint.arguments[port.index].name;
        residual.input = place(info.inputs, residual.name);
      } else if (port.what == Port::What::output) {
        residual.name = joint.results[port.index].name;
        residual.returned = place(info.outputs, residual.name);
      } else if (port.what == Port::What::sequence) {
        residual.name = joint.arguments[port.index].name;
        residual.returned = outputs + place(info.states, residual.name);
      } else if (port.what == Port::What::saved) {
        residual.returned = static_cast<int>(info.returns.size());
        info.returns.push_back({residual.name, residual.type});
      } else {
        continue;
      }
      info.residuals.push_back(residual);
    }
  };
  if (lowered.parts.rebuild) note(*lowered.parts.rebuild);
  note(lowered.parts.backward);
}

void describe_buffers(const Plan& plan, KernelInfo& info) {
  for (const Buffer& buffer : plan.buffers) {
    const bool gradient = buffer.holds >= Holds::grad_output;
    (buffer.write ? info.writes : info.reads)
        .push_back({(gradient ? "grad_" : "") + buffer.name, buffer.mem});
  }
}

}  // namespace

GradRequest request_of(const Graph& step, const Training& training) {
  const auto fail = [&](const auto&... parts) { user_error("neuron '", step.name, "': ", parts...); };
  GradRequest request;
  request.arguments.emplace();
  std::vector<std::string> names, outputs;
  for (const Argument& argument : step.arguments) {
    names.push_back(argument.name);
    request.arguments->push_back(training.wanted.empty() ? is_float(value_type(argument.mem))
                                                         : contains(training.wanted, argument.name));
  }
  for (const std::string& name : training.wanted)
    if (!contains(names, name))
      fail("there is no argument '", name, "' to take a gradient of", did_you_mean(name, names));
  if (!training.arriving) return request;
  request.results.emplace();
  for (const Result& result : step.results) {
    const bool arrives = result.gives == Gives::output && contains(*training.arriving, result.name);
    if (arrives && !is_float(value_type(result.mem)))
      fail("output '", result.name, "' is ", name_of(result.mem),
           " and carries no gradient; leave its gradient out");
    request.results->push_back(arrives);
    if (result.gives == Gives::output) outputs.push_back(result.name);
  }
  for (const std::string& name : *training.arriving)
    if (!contains(outputs, name))
      fail("there is no output '", name, "' for a gradient to arrive at", did_you_mean(name, outputs));
  return request;
}

namespace {

/// A joint graph without the gradients that arrive at outputs other than `arriving`.
Graph with_arriving(const Graph& joint, const std::vector<std::string>& arriving) {
  std::vector<int> absent;
  Part whole{.graph = joint, .arguments = {}, .results = std::vector<Port>(joint.results.size())};
  for (const Argument& argument : joint.arguments) {
    const int index = static_cast<int>(whole.arguments.size());
    const bool at_output = argument.role == Role::grad_output;
    if (at_output && !contains(arriving, joint.results[argument.of].name)) absent.push_back(index);
    whole.arguments.push_back({at_output                          ? Port::What::grad_output
                               : argument.role == Role::grad_next ? Port::What::grad_state
                                                                  : Port::What::input,
                               index});
  }
  Graph out = without_arriving(whole, absent).graph;
  // A state that nothing arrives at passes on the zero that no sum can see.
  for (std::size_t i = 0; i < out.results.size(); ++i) {
    Result& result = out.results[i];
    const bool of_state = result.gives == Gives::grad && out.arguments[result.of].role == Role::state;
    if (of_state && out.at(result.value).op == Op::constant &&
        joint.at(joint.results[i].value).op != Op::constant)
      result.value = constant(out, value_type(result.mem), -0.0).id;
  }
  return out;
}

/// What `training` asks for of a graph that has its gradients already.
Graph chosen_gradients(const Graph& joint, const Training& training) {
  const auto fail = [&](const auto&... parts) { user_error("neuron '", joint.name, "': ", parts...); };
  request_of(joint, training);  // for the names that are not there
  Graph out = training.arriving ? with_arriving(joint, *training.arriving) : joint;
  if (!has_gradients(out))
    fail("no gradient arrives at an output or a state of it; name an output that has one in the graph");
  for (const std::string& name : training.wanted)
    if (std::none_of(out.results.begin(), out.results.end(), [&](const Result& result) {
          return result.gives == Gives::grad && out.arguments[result.of].name == name;
        }))
      fail("it has its gradients already, and that of '", name,
           "' is not among them; leave it out of what is wanted, or give the step it was made from");
  // Gradients of states stay, wanted or not: they carry the others through time.
  std::erase_if(out.results, [&](const Result& result) {
    return result.gives == Gives::grad && out.arguments[result.of].role != Role::state &&
           !training.wanted.empty() && !contains(training.wanted, out.arguments[result.of].name);
  });
  return verified(simplify(verified(std::move(out), "joint_of")), "simplify");
}

}  // namespace

Graph joint_of(const Graph& step, const Training& training) {
  if (!has_gradients(step))
    return verified(simplify(verified(grad(step, request_of(step, training)), "grad")), "simplify");
  return training.wanted.empty() && !training.arriving ? step : chosen_gradients(step, training);
}

Lowered lower(const Graph& step, const Training& training, const Layout& layout) {
  Lowered out;
  out.joint = joint_of(compile(step, Stage::simplified), training);
  out.parts = partition(out.joint, training);
  out.plans = schedule_training(out.joint, out.parts, training, layout);
  return out;
}

Plan plan_of(const Graph& step, Kind kind, const Training& training, const Layout& layout) {
  if (kind == Kind::forward) return lower(step, training, layout).plans.forward;
  if (kind == Kind::backward) return lower(step, training, layout).plans.backward;
  Graph simple = compile(step, Stage::simplified);
  if (has_gradients(simple)) simple = forward_of(simple);
  return schedule_inference(simple, kind, layout);
}

KernelInfo kernel_info(const Neuron& neuron, Kind kind, const Training& training) {
  const Graph step = neuron.graph(training.type);
  KernelInfo info;
  info.neuron = neuron.name();
  info.kind = kind;
  describe_neuron(step, info);
  if (kind == Kind::inference || kind == Kind::inference_final_state) {
    describe_buffers(plan_of(step, kind, training), info);
    return info;
  }
  const Lowered lowered = lower(step, training);
  describe_training(lowered, info);
  describe_buffers(kind == Kind::forward ? lowered.plans.forward : lowered.plans.backward, info);
  return info;
}

}  // namespace flexsn
