// FlexSN and FlexSNKernel for libtorch: neurons with states, and the bare kernel.
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <typeinfo>

#include "error.h"
#include "tensor_neuron.h"

namespace flexsn::nn {

using at::TensorList;

namespace detail {

/// The parameters of a neuron as a module of their own, so that their names are those that a module as core
/// gives them in Python.
class NeuronParams : public torch::nn::Module {
 public:
  /// Takes copies of `values`, one for each parameter.
  NeuronParams(const TensorNeuron& neuron, const Tensors& values, const std::vector<std::string>& learnable)
      : torch::nn::Module(neuron.name()) {
    for (const std::string& name : learnable) neuron.param_place(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string& name = neuron.params()[i].name;
      if (name.find('.') != std::string::npos)
        user_error("neuron '", neuron.name(), "': parameter '", name,
                   "' has a dot in its name, which torch does not allow; give it another name");
      const Tensor value = values[i].detach().clone();
      if (std::find(learnable.begin(), learnable.end(), name) == learnable.end()) {
        values_.push_back(register_buffer(name, value));
        continue;
      }
      if (!value.is_floating_point())
        user_error("neuron '", neuron.name(), "': parameter '", name, "' is ",
                   c10::toString(value.scalar_type()), ", so it cannot be learnable; give it as floats");
      values_.push_back(register_parameter(name, value));
    }
  }

  const Tensors& values() const { return values_; }

  std::shared_ptr<NeuronParams> copy(const TensorNeuron& neuron, const std::vector<std::string>& learnable,
                                     const std::optional<torch::Device>& device) const {
    Tensors moved;
    for (const Tensor& value : values_) moved.push_back(device ? value.detach().to(*device) : value);
    auto twin = std::make_shared<NeuronParams>(neuron, moved, learnable);
    for (std::size_t i = 0; i < values_.size(); ++i)
      twin->values_[i].set_requires_grad(values_[i].requires_grad());
    twin->train(is_training());
    return twin;
  }

  void pretty_print(std::ostream& stream) const override {
    stream << name() << '(';
    bool first = true;
    const auto list = [&](const torch::OrderedDict<std::string, Tensor>& tensors, const char* what) {
      for (const auto& item : tensors) {
        stream << (first ? "" : ", ") << item.key() << ' ' << item.value().sizes() << what;
        first = false;
      }
    };
    list(named_parameters(), " learnable");
    list(named_buffers(), "");
    stream << ')';
  }

 private:
  Tensors values_;  ///< in the order of the neuron
};

}  // namespace detail

namespace {

Tensors stepped(TensorList sequences) {
  Tensors rows;
  for (const Tensor& sequence : sequences) rows.push_back(sequence.select(0, 0));
  return rows;
}

Tensors as_sequences(TensorList rows) {
  Tensors sequences;
  for (const Tensor& row : rows) sequences.push_back(row.unsqueeze(0));
  return sequences;
}

}  // namespace

// ---- FlexSN ---------------------------------------------------------------------------------------------

FlexSNImpl::FlexSNImpl(detail::NeuronText neuron, FlexSNOptions options)
    : MemoryModule("FlexSN"),
      neuron_(std::make_shared<const detail::TensorNeuron>(std::move(neuron))),
      options_(std::move(options)) {
  set_step_mode(options_.step_mode);
  set_backend(options_.backend);
  const auto core = std::make_shared<detail::NeuronParams>(*neuron_, neuron_->param_values(options_.params),
                                                           options_.learnable);
  if (!neuron_->params().empty()) core_ = register_module("core", core);
  options_.params.clear();
  register_memory("states", {});
  register_memory("state_seqs", {});
}

const std::string& FlexSNImpl::neuron() const { return neuron_->name(); }

ScanCounts FlexSNImpl::counts() const { return neuron_->counts(); }

std::vector<std::string> FlexSNImpl::supported_backends() const {
  return {"fused", "triton", "inductor", "torch", "hop"};
}

Tensors FlexSNImpl::params() const { return core_ ? core_->values() : Tensors(); }

Tensor FlexSNImpl::param(const std::string& name) const { return params().at(neuron_->param_place(name)); }

const Memory& FlexSNImpl::states() const { return memory("states"); }

const Memory& FlexSNImpl::state_seqs() const { return memory("state_seqs"); }

void FlexSNImpl::set_states(Memory states) {
  if (states && states->size() != neuron_->counts().states)
    user_error("FlexSN: expected ", neuron_->counts().states, " states, found ", states->size());
  set_memory("states", std::move(states));
}

void FlexSNImpl::set_store_state_seqs(bool on) {
  options_.store_state_seqs = on;
  set_memory("state_seqs", {});
}

Tensors FlexSNImpl::multi_step_forward(TensorList inputs) {
  Ran ran = run_steps(inputs, states(), options_.store_state_seqs);
  set_memory("states", std::move(ran.states));
  if (ran.sequences) set_memory("state_seqs", std::move(ran.sequences));
  return std::move(ran.outputs);
}

Tensors FlexSNImpl::single_step_forward(TensorList inputs) {
  Ran ran = run_step(inputs, states());
  set_memory("states", std::move(ran.states));
  return std::move(ran.outputs);
}

std::pair<Tensors, Tensors> FlexSNImpl::functional_forward(TensorList inputs, const Memory& states) const {
  Ran ran = step_mode() == "s" ? run_step(inputs, states) : run_steps(inputs, states, false);
  return {std::move(ran.outputs), std::move(ran.states)};
}

/// States to start from; nothing: the kernel starts from those that the neuron says, and reads none.
Memory FlexSNImpl::first_states(TensorList inputs, const Memory& carried) const {
  if (carried && neuron_->counts_steps())
    user_error("FlexSN: neuron '", neuron(),
               "' reads the number of a step, which starts at 0 in each call, so ",
               "states cannot be carried on: call reset() before each call, or count in a state");
  Memory first = carried;
  if (!first && options_.init_states) first = options_.init_states(step_mode(), inputs);
  if (first) {
    const at::IntArrayRef shape = inputs[0].sizes();
    neuron_->check_states(*first, step_mode() == "s" ? shape : shape.slice(1));
  }
  return first;
}

FlexSNImpl::Ran FlexSNImpl::run_steps(TensorList inputs, const Memory& states, bool store) const {
  const std::int64_t steps = neuron_->steps_of(inputs);
  Memory first = first_states(inputs, states);
  if (steps == 0) {
    if (!first) first = neuron_->initial_states(inputs, params(), inputs[0].sizes().slice(1));
    Ran none = {.outputs = neuron_->no_outputs(inputs, params()), .states = *first};
    if (store) {
      none.sequences.emplace();
      for (const Tensor& state : *first)
        none.sequences->push_back(at::empty(inputs[0].sizes(), state.options().requires_grad(false)));
    }
    return none;
  }
  if (backend() == "torch" || backend() == "hop") return run_one_by_one(inputs, first, store);
  auto [outputs, last] = neuron_->run(inputs, first.value_or(Tensors()), params(), store);
  if (!store) return {.outputs = std::move(outputs), .states = std::move(last)};
  Ran ran = {.outputs = std::move(outputs), .states = {}, .sequences = std::move(last)};
  // The states must not keep the sequences alive, nor change with them.
  for (const Tensor& sequence : *ran.sequences) ran.states.push_back(sequence.select(0, -1).clone());
  return ran;
}

FlexSNImpl::Ran FlexSNImpl::run_one_by_one(TensorList inputs, const Memory& first, bool store) const {
  if (neuron_->counts_steps())
    user_error("FlexSN: neuron '", neuron(),
               "' reads the number of a step, so it runs whole sequences only: ",
               "use step_mode \"m\" with backend \"fused\"");
  const ScanCounts& counts = neuron_->counts();
  const Tensors all = params();
  std::int64_t t = 0;
  const auto step = [&](TensorList arguments) {
    auto [outputs, states] =
        neuron_->run(as_sequences(arguments.slice(0, counts.inputs)), arguments.slice(counts.inputs),
                     neuron_->params_at(all, t++), false);
    Tensors results = stepped(outputs);
    results.insert(results.end(), states.begin(), states.end());
    return results;
  };
  Tensors arguments = inputs.vec();
  const Tensors start = first ? *first : neuron_->initial_states(inputs, all, inputs[0].sizes().slice(1));
  arguments.insert(arguments.end(), start.begin(), start.end());
  const Tensors results =
      store ? eager_scan(step, counts, arguments) : eager_scan_final_state(step, counts, arguments);
  const auto first_state = results.begin() + static_cast<std::ptrdiff_t>(counts.outputs);
  Ran ran = {.outputs = Tensors(results.begin(), first_state), .states = Tensors(first_state, results.end())};
  if (store) {
    ran.sequences = ran.states;
    for (Tensor& state : ran.states) state = state.select(0, -1).clone();
  }
  return ran;
}

FlexSNImpl::Ran FlexSNImpl::run_step(TensorList inputs, const Memory& states) const {
  neuron_->check_count(inputs);
  if (neuron_->counts_steps())
    user_error("FlexSN: neuron '", neuron(),
               "' reads the number of a step, so it runs whole sequences only: ",
               "use step_mode \"m\" with backend \"fused\"");
  const Tensors all = params();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (neuron_->params()[i].per_step && all[i].dim() > 0)
      user_error("FlexSN: parameter '", neuron_->params()[i].name,
                 "' has a value for each step, and a single ",
                 "step does not know its number: use step_mode \"m\"");
  const Memory first = first_states(inputs, states);
  auto [outputs, last] = neuron_->run(as_sequences(inputs), first.value_or(Tensors()), all, false);
  return {.outputs = stepped(outputs), .states = std::move(last)};
}

std::shared_ptr<torch::nn::Module> FlexSNImpl::clone(const std::optional<torch::Device>& device) const {
  if (typeid(*this) != typeid(FlexSNImpl))
    user_error("FlexSN: a class derived from FlexSNImpl must override clone()");
  const torch::NoGradGuard no_grad;
  auto twin = std::make_shared<FlexSNImpl>(*this);
  twin->own_memories(device);
  if (core_) {
    twin->unregister_module("core");
    twin->core_ = twin->register_module("core", core_->copy(*neuron_, options_.learnable, device));
  }
  return twin;
}

/// What clone() of a module around this one calls to make this one, freshly made, a copy of `other`.
void FlexSNImpl::clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) {
  const auto twin = std::dynamic_pointer_cast<FlexSNImpl>(other.clone(device));
  internal_check(twin != nullptr, "a module is cloned into one of another type");
  *this = *twin;
}

void FlexSNImpl::pretty_print(std::ostream& stream) const {
  const ScanCounts& counts = neuron_->counts();
  stream << "FlexSN(core=" << neuron() << ", num_inputs=" << counts.inputs << ", num_states=" << counts.states
         << ", num_outputs=" << counts.outputs << ", step_mode=" << step_mode() << ", backend=" << backend()
         << ")";
}

// ---- FlexSNKernel ---------------------------------------------------------------------------------------

FlexSNKernel::FlexSNKernel(detail::NeuronText neuron, const std::map<std::string, Tensor>& params)
    : neuron_(std::make_shared<const detail::TensorNeuron>(std::move(neuron))),
      params_(neuron_->param_values(params)) {}

FlexSNKernel::FlexSNKernel(const FlexSNImpl& module) : neuron_(module.neuron_), params_(module.params()) {}

ScanCounts FlexSNKernel::info() const { return neuron_->counts(); }

Tensors FlexSNKernel::operator()(TensorList arguments) const {
  const ScanCounts& counts = neuron_->counts();
  if (arguments.size() != counts.inputs + counts.states)
    user_error("the kernel takes ", counts.inputs, " inputs and ", counts.states, " states, expected ",
               counts.inputs + counts.states, " tensors, found ", arguments.size());
  if (!arguments.empty() && !arguments[0].defined())
    user_error("the kernel: argument 0 must be a tensor, found none");
  for (std::size_t i = 1; i < arguments.size(); ++i)
    if (!arguments[i].defined() || arguments[i].device() != arguments[0].device())
      user_error("the kernel: argument ", i, " must be a tensor on ", arguments[0].device().str(),
                 " like argument 0, found ",
                 arguments[i].defined() ? "one on " + arguments[i].device().str() : "none");
  auto [results, sequences] =
      neuron_->run(arguments.slice(0, counts.inputs), arguments.slice(counts.inputs), params_, true);
  results.insert(results.end(), sequences.begin(), sequences.end());
  return std::move(results);
}

Tensors FlexSNKernel::f_inf(TensorList arguments) const {
  const torch::NoGradGuard no_grad;
  return (*this)(arguments);
}

Tensors FlexSNKernel::f_fwd(TensorList arguments) const {
  const torch::AutoGradMode grad(true);
  return (*this)(arguments);
}

Tensors FlexSNKernel::f_bwd(TensorList results, TensorList arguments, TensorList grads) const {
  if (results.size() != grads.size())
    user_error("f_bwd: expected a gradient for each of ", results.size(), " results, found ", grads.size());
  Tensors arriving_at, arriving;
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) {
      arriving_at.push_back(results[i]);
      arriving.push_back(grads[i]);
    }
  Tensors learning, all(arguments.size());
  for (const Tensor& argument : arguments)
    if (argument.requires_grad()) learning.push_back(argument);
  const auto knows_way = [](const Tensor& result) { return result.requires_grad(); };
  if (learning.empty() || std::none_of(arriving_at.begin(), arriving_at.end(), knows_way)) return all;
  const Tensors found = torch::autograd::grad(arriving_at, learning, arriving, /*retain_graph=*/true,
                                              /*create_graph=*/false, /*allow_unused=*/true);
  std::size_t next = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].requires_grad()) all[i] = found[next++];
  return all;
}

}  // namespace flexsn::nn
