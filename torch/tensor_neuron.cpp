#include "tensor_neuron.h"

#include <algorithm>

#include "call.h"
#include "error.h"
#include "operators.h"
#include "text.h"
#include "verify.h"

namespace flexsn::nn::detail {

using at::TensorList;

namespace {

template <bool sequences>
Tensors call(std::string_view text, TensorList inputs, TensorList states, TensorList params, bool training) {
  try {
    return training ? training_op<sequences>().call(text, inputs, states, params, {}, "")
                    : inference_op<sequences>().call(text, inputs, states, params);
  } catch (const c10::ValueError& error) {
    throw UserError(error.what_without_backtrace());
  }
}

std::optional<Mem> memory_of(at::ScalarType type) {
  for (Mem mem : {Mem::f16, Mem::bf16, Mem::f32, Mem::f64, Mem::i32, Mem::u8, Mem::b8})
    if (scalar_type(mem) == type) return mem;
  return {};
}

/// The tensor in this type; autograd follows.
Tensor in_type(const Tensor& tensor, Mem mem) {
  return tensor.scalar_type() == scalar_type(mem) ? tensor : tensor.to(scalar_type(mem));
}

}  // namespace

TensorNeuron::TensorNeuron(NeuronText source) : source_(std::move(source)) {
  const ir::Graph graph = parse(source_.text(Mem::f32), source_.name);
  // Its values have the same types, so what can be traced for one can be traced for the other.
  const ir::Graph other = parse(source_.text(Mem::f16), source_.name);
  for (std::size_t a = 0; a < graph.arguments.size(); ++a) {
    const ir::Argument& argument = graph.arguments[a];
    if (argument.role == ir::Role::input) {
      if (!follows_ && argument.mem != other.arguments[a].mem) follows_ = counts_.inputs;
      input_names_.push_back(argument.name);
      ++counts_.inputs;
    } else if (argument.role == ir::Role::state) {
      ++counts_.states;
    } else if (argument.role == ir::Role::param) {
      const std::optional<double> value =
          argument.has_default ? std::optional(argument.initial) : std::nullopt;
      params_.push_back({argument.name, argument.mem, value, argument.per_step});
    }
  }
  for (const ir::Result& result : graph.results) counts_.outputs += result.gives == ir::Gives::output;
  for (const ir::Node& node : graph.nodes) counts_steps_ |= node.op == ir::Op::step_index;
  Types types = {Mem::f32, {}};
  for (const Param& param : params_) types.second.push_back(param.type);
  traced(types);
}

// ---- parameters ------------------------------------------------------------------------------------------

std::size_t TensorNeuron::param_place(const std::string& name) const {
  std::vector<std::string> names;
  for (const Param& param : params_) names.push_back(param.name);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    user_error("neuron '", source_.name, "': there is no parameter '", name, "'", did_you_mean(name, names));
  return static_cast<std::size_t>(found - names.begin());
}

Tensors TensorNeuron::param_values(const std::map<std::string, Tensor>& given) const {
  for (const auto& [name, value] : given)
    if (param_place(name); !value.defined() || !memory_of(value.scalar_type()))
      user_error("neuron '", source_.name, "': parameter '", name,
                 "' must be a tensor of a type that a step ", "can have, found ",
                 value.defined() ? c10::toString(value.scalar_type()) : "none");
  Tensors values;
  for (const Param& param : params_) {
    if (const auto found = given.find(param.name); found != given.end())
      values.push_back(found->second);
    else if (param.value)
      values.push_back(at::full({}, *param.value, at::dtype(scalar_type(param.type))));
    else
      user_error("neuron '", source_.name, "': parameter '", param.name, "' has no default; give its value");
  }
  return values;
}

Tensors TensorNeuron::params_at(TensorList params, std::int64_t t) const {
  Tensors now(params.begin(), params.end());
  for (std::size_t i = 0; i < now.size(); ++i)
    if (params_[i].per_step && now[i].dim() > 0) now[i] = now[i].narrow(0, t, 1);
  return now;
}

// ---- types: a trace for each
// --------------------------------------------------------------------------------

const TorchNeuron& TensorNeuron::typed(TensorList inputs, TensorList params) const {
  Types types = {Mem::f32, {}};
  if (follows_) {
    const at::ScalarType type = inputs[*follows_].scalar_type();
    if (!at::isFloatingType(type) || !memory_of(type))
      user_error("neuron '", source_.name, "': input '", input_names_[*follows_],
                 "' has no type of its own, so it must be Half, BFloat16, Float or Double, found ",
                 c10::toString(type), "; convert it, or declare the type of the input in the step");
    types.first = *memory_of(type);
  }
  types.second.reserve(params.size());
  for (std::size_t i = 0; i < params.size(); ++i)
    types.second.push_back(memory_of(params[i].scalar_type()).value_or(params_[i].type));
  return traced(types);
}

const TorchNeuron& TensorNeuron::traced(const Types& types) const {
  const std::lock_guard lock(mutex_);
  NeuronHandle& found = known_[types];
  if (found != nullptr) return *found;
  ir::Graph graph = parse(source_.text(types.first), source_.name);
  // A parameter may be kept wider or narrower than the input, where both mean the same type inside the step.
  std::size_t place = 0;
  for (ir::Argument& argument : graph.arguments)
    if (argument.role == ir::Role::param)
      if (const Mem mem = types.second[place++]; value_type(mem) == value_type(argument.mem))
        argument.mem = mem;
  found = neuron_of(print(verified(std::move(graph), "typed")));
  return *found;
}

// ---- calls
// ----------------------------------------------------------------------------------------------------

void TensorNeuron::check_count(TensorList inputs) const {
  if (inputs.size() != counts_.inputs)
    user_error("neuron '", source_.name, "': expected ", counts_.inputs, " inputs, found ", inputs.size());
}

std::int64_t TensorNeuron::steps_of(TensorList inputs) const {
  check_count(inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dim() == 0)
      user_error("neuron '", source_.name, "': input ", i, " must have time as its first dimension, found a ",
                 "scalar");
    if (inputs[i].size(0) != inputs[0].size(0))
      user_error("neuron '", source_.name, "': all inputs must have the same number of steps: input 0 has ",
                 inputs[0].size(0), ", input ", i, " has ", inputs[i].size(0));
  }
  return inputs[0].size(0);
}

void TensorNeuron::check_states(TensorList states, at::IntArrayRef step) const {
  if (states.size() != counts_.states)
    user_error("neuron '", source_.name, "': expected ", counts_.states, " states, found ", states.size());
  for (std::size_t i = 0; i < states.size(); ++i)
    if (states[i].sizes() != step)
      user_error("neuron '", source_.name, "': state ", i, " must have shape ", step,
                 ", that of one step of the inputs, found ", states[i].sizes(),
                 "; call reset() before a batch of another shape");
}

TensorNeuron::Results TensorNeuron::run(TensorList inputs, TensorList states, TensorList params,
                                        bool sequences) const {
  const std::int64_t steps = steps_of(inputs);
  const TorchNeuron& neuron = typed(inputs, params);
  const auto memory = [&](int argument) { return neuron.graph().arguments[argument].mem; };
  Tensors own_states(states.begin(), states.end()), own_params(params.begin(), params.end());
  for (std::size_t i = 0; i < own_states.size(); ++i)
    own_states[i] = in_type(own_states[i], memory(neuron.states()[i]));
  for (std::size_t i = 0; i < own_params.size(); ++i) {
    own_params[i] = in_type(own_params[i], memory(neuron.params()[i]));
    if (params_[i].per_step && own_params[i].dim() == 0) own_params[i] = own_params[i].expand({steps});
  }

  bool training = false;
  if (at::GradMode::is_enabled()) {
    const auto any = [&](TensorList tensors, const std::vector<int>& places) {
      for (std::size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i].requires_grad() && neuron.differentiable(places[i])) return true;
      return false;
    };
    training =
        any(inputs, neuron.inputs()) || any(own_states, neuron.states()) || any(own_params, neuron.params());
  }
  Tensors results = sequences ? call<true>(neuron.text(), inputs, own_states, own_params, training)
                              : call<false>(neuron.text(), inputs, own_states, own_params, training);
  const auto first_state = results.begin() + static_cast<std::ptrdiff_t>(counts_.outputs);
  return {.outputs = Tensors(results.begin(), first_state),
          .states = Tensors(first_state, first_state + static_cast<std::ptrdiff_t>(counts_.states))};
}

Tensors TensorNeuron::initial_states(TensorList inputs, TensorList params, at::IntArrayRef step) const {
  const TorchNeuron& neuron = typed(inputs, params);
  Tensors states;
  for (int index : neuron.states()) {
    const at::ScalarType type = scalar_type(neuron.graph().arguments[index].mem);
    const Tensor value = at::from_blob(neuron.initial(index), {}, at::dtype(type));
    states.push_back(value.to(inputs[0].device()).expand(step).clone(at::MemoryFormat::Contiguous));
  }
  return states;
}

Tensors TensorNeuron::no_outputs(TensorList inputs, TensorList params) const {
  const TorchNeuron& neuron = typed(inputs, params);
  Tensors outputs;
  for (int index : neuron.outputs())
    outputs.push_back(at::empty(inputs[0].sizes(),
                                inputs[0].options().dtype(scalar_type(neuron.graph().results[index].mem))));
  return outputs;
}

}  // namespace flexsn::nn::detail
