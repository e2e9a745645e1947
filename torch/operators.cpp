// The operators of namespace flexsn: schemas, kernels for CPU, CUDA and Meta tensors, autograd.
#include "operators.h"

#include <ATen/FuncTorchTLS.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include "call.h"
#include "error.h"
#include "guarded.h"

namespace flexsn {

namespace {

using at::Tensor;
using at::TensorList;
using Text = c10::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Places in the list of inputs, states and parameters as arguments of the graph; none: all that carry one.
Request request_of(const TorchNeuron& neuron, at::IntArrayRef wanted, bool sequences, Text plan) {
  Request request{.wanted = {}, .sequences = sequences, .plan = std::string(plan)};
  for (std::int64_t place : wanted) {
    if (place < 0 || static_cast<std::size_t>(place) >= neuron.arguments().size())
      user_error("flexsn: there is no argument ", place, " to take a gradient of; there are ",
                 neuron.arguments().size());
    request.wanted.push_back(neuron.arguments()[place]);
  }
  return request;
}

// ---- kernels for CPU and CUDA ----------------------------------------------------------------------------

template <bool sequences>
std::vector<Tensor> inference(Text text, TensorList inputs, TensorList states, TensorList params) {
  return guarded([&] {
    const NeuronHandle held = neuron_of(text);
    const TorchNeuron& neuron = *held;
    return run_forward(neuron, inputs, states, params, {.sequences = sequences}, false);
  });
}

template <bool sequences>
std::vector<Tensor> training(Text text, TensorList inputs, TensorList states, TensorList params,
                             at::IntArrayRef wanted, Text plan) {
  return guarded([&] {
    const NeuronHandle held = neuron_of(text);
    const TorchNeuron& neuron = *held;
    return run_forward(neuron, inputs, states, params, request_of(neuron, wanted, sequences, plan), true);
  });
}

std::vector<Tensor> backward(Text text, const OptionalTensors& grads, const OptionalTensors& inputs,
                             const OptionalTensors& states, TensorList params, const OptionalTensors& results,
                             at::IntArrayRef shape, at::IntArrayRef wanted, at::IntArrayRef now,
                             bool sequences, Text plan) {
  return guarded([&] {
    const NeuronHandle held = neuron_of(text);
    const TorchNeuron& neuron = *held;
    return run_backward(neuron, {grads, inputs, states, params, results, shape, now},
                        request_of(neuron, wanted, sequences, plan));
  });
}

void add_kernels(torch::Library& library) {
  library.impl("inference", inference<true>);
  library.impl("inference_final_state", inference<false>);
  library.impl("training", training<true>);
  library.impl("training_final_state", training<false>);
  library.impl("backward", backward);
}

// ---- Meta: shapes and types, symbolic where torch traces ----------------------------------------------

Tensor made(c10::SymIntArrayRef shape, Mem mem) {
  return at::empty_symint(shape, at::TensorOptions().dtype(scalar_type(mem)).device(at::kMeta));
}

/// Without data all tensors must be, or what is computed on the others would be lost.
void require_meta(const char* what, std::size_t place, const Tensor& tensor) {
  if (!tensor.is_meta())
    user_error("flexsn: ", what, " ", place, " is on ", tensor.device().str(),
               ", but other tensors of the call are on meta; move it");
}

void require_meta(const char* what, const OptionalTensors& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (const std::optional<Tensor> tensor = tensors.get(i); tensor && tensor->defined())
      require_meta(what, i, *tensor);
}

void require_type(const char* what, std::size_t place, const Tensor& tensor, Mem mem) {
  require_meta(what, place, tensor);
  if (tensor.scalar_type() != scalar_type(mem))
    user_error("flexsn: ", what, " ", place, " must be ", c10::toString(scalar_type(mem)), ", found ",
               c10::toString(tensor.scalar_type()));
}

/// Where sizes are symbols, this becomes a guard of what a compiler makes.
void require_shape(const char* what, std::size_t place, const Tensor& tensor, c10::SymIntArrayRef shape) {
  bool same = tensor.dim() == static_cast<std::int64_t>(shape.size());
  for (std::size_t d = 0; same && d < shape.size(); ++d)
    same = tensor.sym_size(static_cast<std::int64_t>(d)).sym_eq(shape[d]).expect_true(__FILE__, __LINE__);
  if (!same)
    user_error("flexsn: ", what, " ", place, " must have shape ", shape, ", found ", tensor.sym_sizes());
}

void require_count(const char* what, std::size_t expected, std::size_t found) {
  if (expected != found) user_error("flexsn: expected ", expected, " ", what, ", found ", found);
}

std::vector<Tensor> results_of(Text text, TensorList inputs, TensorList states, TensorList params,
                               bool sequences, const Request* trained) {
  const NeuronHandle held = neuron_of(text);
  const TorchNeuron& neuron = *held;
  const auto memory = [&](int argument) { return neuron.graph().arguments[argument].mem; };
  require_count("inputs", neuron.inputs().size(), inputs.size());
  if (!states.empty()) require_count("states", neuron.states().size(), states.size());
  require_count("parameters", neuron.params().size(), params.size());
  if (inputs[0].dim() == 0)
    user_error("flexsn: input 0 must have time as its first dimension, found a scalar");
  const c10::SymDimVector whole(inputs[0].sym_sizes());
  const c10::SymIntArrayRef step(whole.data() + 1, whole.size() - 1);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_type("input", i, inputs[i], memory(neuron.inputs()[i]));
    require_shape("input", i, inputs[i], whole);
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    require_type("state", i, states[i], memory(neuron.states()[i]));
    require_shape("state", i, states[i], step);
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    require_parameter_on(at::kMeta, neuron, i, params[i]);
    require_type("parameter", i, params[i], memory(neuron.params()[i]));
  }
  std::vector<Tensor> results;
  for (int index : neuron.outputs()) results.push_back(made(whole, neuron.graph().results[index].mem));
  for (int index : neuron.states())
    results.push_back(made(sequences ? c10::SymIntArrayRef(whole) : step, memory(index)));
  if (trained == nullptr) return results;
  const Requested& requested = neuron.requested(*trained);
  requested.require_training();
  for (const Buffer& buffer : requested.saved()) {
    c10::SymDimVector shape = whole;
    if (buffer.lead == Lead::per_segment) {
      c10::SymInt elements = (whole[0] - 1).max(c10::SymInt(0)) / c10::SymInt(requested.segment());
      for (const c10::SymInt& dim : step) elements = elements * dim;
      shape = {elements + checkpoint_pad};
    }
    results.push_back(made(shape, buffer.mem));
  }
  return results;
}

template <bool sequences>
std::vector<Tensor> inference_meta(Text text, TensorList inputs, TensorList states, TensorList params) {
  return guarded([&] { return results_of(text, inputs, states, params, sequences, nullptr); });
}

template <bool sequences>
std::vector<Tensor> training_meta(Text text, TensorList inputs, TensorList states, TensorList params,
                                  at::IntArrayRef wanted, Text plan) {
  return guarded([&] {
    const Request request = request_of(*neuron_of(text), wanted, sequences, plan);
    return results_of(text, inputs, states, params, sequences, &request);
  });
}

std::vector<Tensor> backward_meta(Text text, const OptionalTensors& grads, const OptionalTensors& inputs,
                                  const OptionalTensors& states, TensorList params,
                                  const OptionalTensors& results, c10::SymIntArrayRef shape,
                                  at::IntArrayRef wanted, at::IntArrayRef now, bool sequences, Text plan) {
  return guarded([&] {
    const NeuronHandle held = neuron_of(text);
    const TorchNeuron& neuron = *held;
    if (shape.empty()) user_error("flexsn: the shape must be [T, step shape], found []");
    require_count("parameters", neuron.params().size(), params.size());
    require_meta("gradient", grads);
    require_meta("input", inputs);
    require_meta("state", states);
    require_meta("result", results);
    for (std::size_t i = 0; i < params.size(); ++i) require_parameter_on(at::kMeta, neuron, i, params[i]);
    places_now(neuron, request_of(neuron, wanted, sequences, plan), now);
    const std::size_t first_param = neuron.inputs().size() + neuron.states().size();
    std::vector<Tensor> gradients;
    for (std::int64_t place : now) {
      const ir::Argument& argument = neuron.graph().arguments[neuron.arguments()[place]];
      const auto at = static_cast<std::size_t>(place);
      const c10::SymIntArrayRef sizes = at >= first_param             ? params[at - first_param].sym_sizes()
                                        : at < neuron.inputs().size() ? shape
                                                                      : shape.slice(1);
      gradients.push_back(made(sizes, argument.mem));
    }
    return gradients;
  });
}

// ---- autograd ---------------------------------------------------------------------------------------------

using BackwardOp = std::vector<Tensor>(Text, const OptionalTensors&, const OptionalTensors&,
                                       const OptionalTensors&, TensorList, const OptionalTensors&,
                                       c10::SymIntArrayRef, at::IntArrayRef, at::IntArrayRef, bool, Text);

/// Dual tensors would lose their tangents without a word.
void no_forward_mode(std::initializer_list<TensorList> lists) {
  for (const TensorList& list : lists)
    for (const Tensor& tensor : list)
      if (tensor._fw_grad(0).defined())
        C10_THROW_ERROR(
            NotImplementedError,
            "flexsn: derivatives in forward mode (jvp, dual tensors) are not there; use backward, "
            "or backend=\"torch\" where they are needed");
}

/// What inference gives carries no gradient.
template <bool sequences>
std::vector<Tensor> inference_autograd(c10::DispatchKeySet keys, Text text, TensorList inputs,
                                       TensorList states, TensorList params) {
  no_forward_mode({inputs, states, params});
  return inference_op<sequences>().redispatch(keys & c10::after_autograd_keyset, text, inputs, states,
                                              params);
}

template <bool sequences>
std::vector<Tensor> training_below(Text text, TensorList inputs, TensorList states, TensorList params,
                                   at::IntArrayRef wanted, Text plan) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return training_op<sequences>().call(text, inputs, states, params, wanted, plan);
}

OptionalTensors optional(std::size_t first, std::size_t last, const variable_list& from) {
  OptionalTensors list;
  list.reserve(last - first);
  for (std::size_t i = first; i < last; ++i)
    list.push_back(from[i].defined() ? std::optional<Tensor>(from[i]) : std::nullopt);
  return list;
}

/// Gradients of gradients are not there; whoever asks for them is told so.
class Once : public torch::autograd::Function<Once> {
 public:
  static variable_list forward(AutogradContext*, TensorList gradients, TensorList) {
    variable_list copies;
    for (const Tensor& gradient : gradients) copies.push_back(gradient.detach());
    return copies;
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    C10_THROW_ERROR(NotImplementedError,
                    "flexsn: gradients of gradients are not there (double backward); use backend=\"torch\" "
                    "where create_graph=True is needed");
  }
};

/// A call of a training operator in autograd's graph: what its backward needs. Hand-written, since a
/// torch::autograd::Function makes training a tiny neuron an eighth slower.
class Trained : public torch::autograd::Node {
 public:
  NeuronHandle neuron;
  std::size_t inputs, states;  ///< how many of the tensors are such
  bool sequences;
  std::vector<std::int64_t> wanted;
  std::string plan;
  std::vector<c10::SymInt> shape;  ///< under a compiler sizes are symbols

  /// Makes the results a part of the graph: `all` are inputs, states and parameters.
  void connect(TensorList all, const variable_list& results) {
    const Requested& requested = neuron->requested(request_of(*neuron, wanted, sequences, plan));
    // Only what backward reads is kept, through torch, which notices if somebody changes it in between.
    // What was made in inference mode, which torch does not keep, is copied.
    const auto keep = [this](const Tensor& tensor, bool read, bool is_result) {
      kept_.emplace_back(!read ? Tensor() : tensor.is_inference() ? tensor.clone() : tensor, is_result);
    };
    const std::size_t outputs = neuron->outputs().size(), plain = outputs + neuron->states().size();
    kept_.reserve(all.size() + results.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      keep(all[i],
           i < inputs            ? requested.reads(Holds::input, neuron->inputs()[i])
           : i < inputs + states ? requested.reads(Holds::first_state, neuron->states()[i - inputs])
                                 : true,
           false);
    for (std::size_t r = 0; r < results.size(); ++r) {
      const bool carries = r < outputs ? neuron->output_carries(neuron->outputs()[r])
                                       : r < plain && neuron->state_carries(neuron->states()[r - outputs]);
      torch::autograd::set_history(carries ? results[r] : Tensor(), getptr());
      keep(results[r],
           r < outputs ? requested.reads(Holds::output, neuron->outputs()[r])
           : r < plain ? requested.reads(Holds::state_sequence, neuron->states()[r - outputs])
                       : true,
           true);
    }
  }

  std::string name() const override { return "flexsn::Trained"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {
    C10_THROW_ERROR(NotImplementedError,
                    "flexsn: compiled autograd cannot take the backward of a call that was not compiled; "
                    "compile the forward as well (torch.compile), or leave compiled autograd out");
  }

 protected:
  variable_list apply(variable_list&& grads) override {
    static const auto op = operator_named<BackwardOp>("flexsn::backward");
    const std::lock_guard lock(mutex_);
    const std::size_t all = num_outputs(), plain = neuron->outputs().size() + neuron->states().size();
    variable_list out(all);
    std::vector<std::int64_t> now;
    for (std::int64_t place : wanted)
      if (task_should_compute_output(slot(place))) now.push_back(place);
    bool arrives = false;
    for (std::size_t i = 0; i < plain; ++i) {
      arrives = arrives || grads[i].defined();
      if (grads[i].defined() && grads[i].layout() != at::kStrided)
        C10_THROW_ERROR(TypeError, join("flexsn: the gradient of result ", i, " must be dense, found ",
                                        c10::str(grads[i].layout()), "; give it as gradient.to_dense()"));
    }
    if (!arrives || now.empty()) return out;

    const variable_list kept = unpacked();
    const TensorList params = TensorList(kept).slice(inputs + states, all - inputs - states);
    const bool again = at::GradMode::is_enabled();
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;  // autograd has nothing to add
    if (!again) below.emplace();
    variable_list gradients = op.call(neuron->text(), optional(0, plain, grads), optional(0, inputs, kept),
                                      optional(inputs, inputs + states, kept), params,
                                      optional(all, kept.size(), kept), shape, wanted, now, sequences, plan);
    if (again) gradients = Once::apply(TensorList(gradients), TensorList(ends()));
    for (std::size_t i = 0; i < now.size(); ++i) out[slot(now[i])] = std::move(gradients[i]);
    return out;
  }

 private:
  /// Where an argument stands in the list of tensors, which is shorter where states were left out.
  std::size_t slot(std::int64_t place) const {
    const auto at = static_cast<std::size_t>(place);
    return at < inputs ? at : at - (neuron->states().size() - states);
  }

  /// Tensors that stand where those of the forward call stood in autograd's graph: gradients depend on all of
  /// them, though backward may read none.
  variable_list ends() const {
    variable_list list;
    for (const torch::autograd::Edge& edge : next_edges()) {
      if (!edge.is_valid()) continue;
      list.push_back(at::empty({0}));
      torch::autograd::impl::set_gradient_edge(list.back(), edge);
    }
    return list;
  }

  variable_list unpacked() {
    if (kept_.empty())
      C10_THROW_ERROR(
          Error,
          "flexsn: backward has come to a call whose graph was freed by an earlier backward. A state that is "
          "carried from batch to batch does that: detach or reset between batches (functional.detach_net or "
          "functional.reset_net), or keep the graph with retain_graph=True");
    variable_list tensors;
    tensors.reserve(kept_.size());
    for (const torch::autograd::SavedVariable& saved : kept_) tensors.push_back(saved.unpack(getptr()));
    return tensors;
  }

  std::vector<torch::autograd::SavedVariable> kept_;  ///< arguments, then results; none: freed
};

/// Nodes are counted by std::shared_ptr up to torch 2.12, by themselves since.
template <class Pointer = decltype(std::declval<torch::autograd::Node&>().getptr())>
auto new_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::shared_ptr<Trained>(new Trained, [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<Trained>();
}

template <bool sequences>
std::vector<Tensor> training_autograd(Text text, TensorList inputs, TensorList states, TensorList params,
                                      at::IntArrayRef wanted, Text plan) {
  return guarded([&] {
    no_forward_mode({inputs, states, params});
    const NeuronHandle held = neuron_of(text);
    const TorchNeuron& neuron = *held;
    variable_list all(inputs.begin(), inputs.end());
    all.insert(all.end(), states.begin(), states.end());
    all.insert(all.end(), params.begin(), params.end());
    // With other counts the operator itself says what is wrong.
    const bool complete = inputs.size() == neuron.inputs().size() &&
                          params.size() == neuron.params().size() &&
                          (states.empty() || states.size() == neuron.states().size());
    std::vector<std::int64_t> asked(wanted.begin(), wanted.end());
    const auto first_state = static_cast<std::int64_t>(neuron.inputs().size());
    for (std::int64_t place : wanted)
      if (states.empty() && place >= first_state &&
          place < first_state + static_cast<std::int64_t>(neuron.states().size()))
        user_error("flexsn: the gradient of state ", place - first_state,
                   " is wanted, but no states are given; give them, or leave it out of wanted");
    const std::size_t left_out = neuron.states().size() - states.size();
    bool any = false;
    for (std::size_t i = 0; complete && i < all.size(); ++i) {
      const std::size_t place = i < inputs.size() ? i : i + left_out;
      const bool needs = at::GradMode::is_enabled() && all[i].requires_grad();
      any = any || needs;
      if (wanted.empty() && needs && neuron.differentiable(neuron.arguments()[place]))
        asked.push_back(static_cast<std::int64_t>(place));
    }
    if (!any || asked.empty()) return training_below<sequences>(text, inputs, states, params, wanted, plan);
    // torch.func keeps gradients of several levels apart, which this node does not.
    if (const auto& transforms = at::functorch::functorchTLSAccessor())
      transforms->checkSupportsCppAutogradFunction();
    // Said in words, since what comes after this may be traced on tensors that have no place.
    const Text said = plan.empty() && inputs[0].is_cuda() ? Text("gpu") : plan;
    const std::vector<Tensor> results = training_below<sequences>(text, inputs, states, params, asked, said);
    const auto node = new_node();  // while a GPU runs
    node->set_next_edges(torch::autograd::collect_next_edges(all));
    node->neuron = held;
    node->inputs = inputs.size();
    node->states = states.size();
    node->sequences = sequences;
    node->wanted = std::move(asked);
    node->plan = std::string(said);
    node->shape = inputs[0].sym_sizes().vec();
    node->connect(all, results);
    return results;
  });
}

std::vector<Tensor> backward_autograd(Text text, const OptionalTensors& grads, const OptionalTensors& inputs,
                                      const OptionalTensors& states, TensorList params,
                                      const OptionalTensors& results, c10::SymIntArrayRef shape,
                                      at::IntArrayRef wanted, at::IntArrayRef now, bool sequences,
                                      Text plan) {
  static const auto op = operator_named<BackwardOp>("flexsn::backward");
  variable_list gradients;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    gradients = op.call(text, grads, inputs, states, params, results, shape, wanted, now, sequences, plan);
  }
  if (!at::GradMode::is_enabled()) return gradients;
  variable_list sources(params.begin(), params.end());
  for (const OptionalTensors* list : {&grads, &inputs, &states, &results})
    for (const std::optional<Tensor>& tensor : *list)
      if (tensor && tensor->defined()) sources.push_back(*tensor);
  const bool any =
      std::any_of(sources.begin(), sources.end(), [](const Tensor& t) { return t.requires_grad(); });
  return any ? Once::apply(TensorList(gradients), TensorList(sources)) : gradients;
}

/// Places, in the list of inputs, states and parameters, of which a gradient can be had.
std::vector<std::int64_t> differentiable(const std::string& text) {
  return guarded([&] {
    const NeuronHandle held = neuron_of(text);
    const TorchNeuron& neuron = *held;
    std::vector<std::int64_t> places;
    for (std::size_t i = 0; i < neuron.arguments().size(); ++i)
      if (neuron.differentiable(neuron.arguments()[i])) places.push_back(static_cast<std::int64_t>(i));
    return places;
  });
}

/// What training leaves for backward, where all gradients are wanted: "f32 each 16 steps; with sequences
/// none; on a GPU f32 each 8 steps; with sequences none".
std::string saved(const std::string& text) {
  return guarded([&] {
    const NeuronHandle held = neuron_of(text);
    std::string out;
    for (const std::string plan : {"", "gpu"})  // as calls ask for them
      for (bool sequences : {false, true}) {
        const Requested& requested = held->requested({.sequences = sequences, .plan = plan});
        out += sequences ? "; with sequences" : !plan.empty() ? "; on a GPU" : "";
        if (!requested.trainable() || requested.saved().empty()) out += " none";
        if (!requested.trainable()) continue;
        for (const Buffer& buffer : requested.saved()) {
          const bool checkpoint = buffer.lead == Lead::per_segment;
          out += join(" ", name_of(buffer.mem),
                      checkpoint ? join(" each ", requested.segment(), " steps") : " each step");
        }
      }
    return out.substr(1);
  });
}

/// vmap would have to move a dimension into every row.
void no_vmap(const c10::OperatorHandle& op, torch::jit::Stack*) {
  C10_THROW_ERROR(
      NotImplementedError,
      join("flexsn: ", op.schema().name(),
           " does not run under vmap; a step works on elements one by one, so give the whole batch "
           "as dimensions of the step instead"));
}

void refuse_vmap(torch::Library& library) {
  for (const char* name :
       {"inference", "inference_final_state", "training", "training_final_state", "backward"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&no_vmap>());
}

}  // namespace

}  // namespace flexsn

TORCH_LIBRARY(flexsn, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  const char* arguments = "(str neuron, Tensor[] inputs, Tensor[] states, Tensor[] params";
  for (const char* name : {"inference", "inference_final_state"})
    m.def(flexsn::join(name, arguments, ") -> Tensor[]").c_str(), tags);
  for (const char* name : {"training", "training_final_state"})
    m.def(flexsn::join(name, arguments, ", int[] wanted=[], str plan=\"\") -> Tensor[]").c_str(), tags);
  m.def(
      "backward(str neuron, Tensor?[] grads, Tensor?[] inputs, Tensor?[] states, Tensor[] params, "
      "Tensor?[] results, SymInt[] shape, int[] wanted, int[] now, bool sequences, str plan) -> Tensor[]",
      tags);
  m.def("differentiable(str neuron) -> int[]", &flexsn::differentiable);
  m.def("saved(str neuron) -> str", &flexsn::saved);
}

TORCH_LIBRARY_IMPL(flexsn, CPU, m) { flexsn::add_kernels(m); }
TORCH_LIBRARY_IMPL(flexsn, CUDA, m) { flexsn::add_kernels(m); }

TORCH_LIBRARY_IMPL(flexsn, Meta, m) {
  m.impl("inference", flexsn::inference_meta<true>);
  m.impl("inference_final_state", flexsn::inference_meta<false>);
  m.impl("training", flexsn::training_meta<true>);
  m.impl("training_final_state", flexsn::training_meta<false>);
  m.impl("backward", flexsn::backward_meta);
}

TORCH_LIBRARY_IMPL(flexsn, Autograd, m) {
  m.impl("inference", flexsn::inference_autograd<true>);
  m.impl("inference_final_state", flexsn::inference_autograd<false>);
  m.impl("training", flexsn::training_autograd<true>);
  m.impl("training_final_state", flexsn::training_autograd<false>);
  m.impl("backward", flexsn::backward_autograd);
}

TORCH_LIBRARY_IMPL(flexsn, FuncTorchBatched, m) { flexsn::refuse_vmap(m); }
TORCH_LIBRARY_IMPL(flexsn, Batched, m) { flexsn::refuse_vmap(m); }  // of is_grads_batched=True
