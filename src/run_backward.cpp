// run_backward: arrays in, gradients out.
#include <algorithm>

#include "backward.h"
#include "bind.h"
#include "grad.h"
#include "reduce.h"
#include "simplify.h"
#include "train.h"
#include "verify.h"

namespace flexsn {

using namespace ir;

namespace {

/// What the call asks for, as training.
Training training_for(const Graph& step, const Arguments& arguments, const Arriving& arriving,
                      const std::vector<std::string>& wanted) {
  if (arriving.outputs.empty() && arriving.states.empty())
    user_error("neuron '", step.name, "': no gradient arrives; give one of an output or of a state");
  Training training{.type = arguments.type, .wanted = wanted, .state_sequences = arguments.state_sequences};
  training.arriving.emplace();
  for (const auto& [name, array] : arriving.outputs) training.arriving->push_back(name);
  std::vector<std::string> states;
  for (const Argument& argument : step.arguments)
    if (argument.role == Role::state) states.push_back(argument.name);
  for (const auto& [name, array] : arriving.states) {
    const auto found = std::find_if(step.arguments.begin(), step.arguments.end(), [&](const Argument& a) {
      return a.role == Role::state && a.name == name;
    });
    if (found == step.arguments.end())
      user_error("neuron '", step.name, "': there is no state '", name, "' for a gradient to arrive at",
                 did_you_mean(name, states));
    if (!is_float(value_type(found->mem)))
      user_error("neuron '", step.name, "': state '", name, "' is ", name_of(found->mem),
                 " and carries no gradient; leave its gradient out");
  }
  return training;
}

/// A graph that has its gradients already needs all of those that arrive at outputs.
Graph with_all_gradients(const Graph& joint, const Training& training) {
  for (const Argument& argument : joint.arguments) {
    if (argument.role != Role::grad_output) continue;
    const std::string& output = joint.results[argument.of].name;
    if (std::find(training.arriving->begin(), training.arriving->end(), output) == training.arriving->end())
      user_error("neuron '", joint.name, "': it has its gradients already, so the gradient of output '",
                 output, "' must be given");
  }
  return joint_of(joint, {.type = training.type, .wanted = training.wanted});
}

class BackwardRun {
 public:
  BackwardRun(const Graph& step, const Graph& joint, const Arguments& arguments, const Arriving& arriving)
      : joint_(joint), arguments_(arguments), arriving_(arriving), binding_(step, arguments) {}

  Gradients run() {
    scan_.steps = binding_.steps();
    scan_.elements = binding_.elements();
    scan_.first_step = arguments_.first_step;
    check_arriving();
    for (const Argument& argument : joint_.arguments) bind(argument);
    rooms_.resize(joint_.results.size());
    for (std::size_t i = 0; i < joint_.results.size(); ++i) scan_.gradients.push_back(room(i));
    interpret_backward(joint_, scan_);
    Gradients gradients;
    for (std::size_t i = 0; i < joint_.results.size(); ++i)
      if (joint_.results[i].gives == Gives::grad) give(i, gradients);
    return gradients;
  }

 private:
  /// All that is given is checked, whether it reaches what is wanted or not.
  void check_arriving() const {
    for (const Result& result : joint_.results)
      if (const auto found = arriving_.outputs.find(result.name);
          result.gives == Gives::output && found != arriving_.outputs.end())
        binding_.given(join("the gradient of output '", result.name, "'"), result.mem, found->second, true);
    for (const Argument& argument : joint_.arguments) {
      const auto found = arriving_.states.find(argument.name);
      if (argument.role != Role::state || found == arriving_.states.end()) continue;
      const bool sequences = arguments_.state_sequences;
      binding_.given(join("the gradient of state '", argument.name, "'"),
                     sequences ? argument.mem : gradient_memory(argument), found->second, sequences);
    }
  }

  void bind(const Argument& argument) {
    Source source, last;
    if (argument.role == Role::grad_output) {
      const Result& output = joint_.results[argument.of];
      source = binding_.given(join("the gradient of output '", output.name, "'"), argument.mem,
                              arriving_.outputs.at(output.name), true);
    } else if (argument.role == Role::grad_next) {
      const Argument& state = joint_.arguments[argument.of];
      const auto found = arriving_.states.find(state.name);
      if (found != arriving_.states.end()) {
        const std::string what = join("the gradient of state '", state.name, "'");
        // At a sequence of states gradients have the state's own type, at the last state the type they are
        // carried in.
        const Mem mem = arguments_.state_sequences ? state.mem : argument.mem;
        (arguments_.state_sequences ? source : last) =
            binding_.given(what, mem, found->second, arguments_.state_sequences);
      }
    } else {
      source = binding_.source(argument);
    }
    scan_.sources.push_back(source);
    scan_.last.push_back(last);
  }

  void* room(std::size_t index) {
    const Result& result = joint_.results[index];
    if (result.gives != Gives::grad) return nullptr;
    const Argument& argument = joint_.arguments[result.of];
    Shape shape = binding_.shape();
    if (argument.role == Role::input || argument.per_step) shape.insert(shape.begin(), binding_.steps());
    rooms_[index] = Array(result.mem, shape);
    return rooms_[index].bytes.data();
  }

  void give(std::size_t index, Gradients& gradients) {
    const Argument& argument = joint_.arguments[joint_.results[index].of];
    if (argument.role == Role::input) gradients.inputs[argument.name] = std::move(rooms_[index]);
    if (argument.role == Role::state) gradients.states[argument.name] = std::move(rooms_[index]);
    if (argument.role != Role::param) return;
    gradients.params[argument.name] = value_type(argument.mem) == Type::f64
                                          ? reduced<double>(rooms_[index], argument)
                                          : reduced<float>(rooms_[index], argument);
  }

  /// The gradient of a parameter in the parameter's own shape and type.
  template <class F>
  Array reduced(const Array& array, const Argument& argument) const {
    const Shape shape = binding_.param_shape(argument);
    Shape given = shape;
    if (argument.per_step) given.insert(given.begin(), binding_.steps());
    Array out(argument.mem, given);
    const std::int64_t rows = argument.per_step ? binding_.steps() : 1;
    const std::int64_t row_size = rows > 0 ? out.size() / rows : 0;
    const bool empty = binding_.steps() == 0 || binding_.elements() == 0;
    for (std::int64_t row = 0; row < rows && !empty; ++row) {
      std::vector<F> values(static_cast<std::size_t>(binding_.elements()));
      std::memcpy(values.data(),
                  array.bytes.data() + static_cast<std::size_t>(row) * values.size() * sizeof(F),
                  values.size() * sizeof(F));
      const std::vector<F> sums = reduce(std::move(values), binding_.shape(), shape);
      store(argument.mem, sums.data(),
            out.bytes.data() + static_cast<std::size_t>(row * row_size) * size_of(argument.mem), row_size);
    }
    return out;
  }

  const Graph& joint_;
  const Arguments& arguments_;
  const Arriving& arriving_;
  Binding binding_;
  BackwardScan scan_;
  std::vector<Array> rooms_;
};

}  // namespace

Gradients run_backward(const Neuron& neuron, const Arguments& arguments, const Arriving& arriving,
                       const std::vector<std::string>& wanted) {
  const Graph step = verified(simplify(neuron.graph(arguments.type)), "simplify");
  const Training training = training_for(step, arguments, arriving, wanted);
  const Graph joint = has_gradients(step) ? with_all_gradients(step, training)
                                          : verified(grad(step, request_of(step, training)), "grad");
  Gradients gradients = BackwardRun(step, joint, arguments, arriving).run();
  if (wanted.empty()) return gradients;
  // States that only pass gradients on were computed too, but not asked for.
  std::erase_if(gradients.states, [&](const auto& item) {
    return std::find(wanted.begin(), wanted.end(), item.first) == wanted.end();
  });
  return gradients;
}

}  // namespace flexsn
