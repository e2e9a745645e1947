// flexsn for libtorch: neurons of the C++ front end as torch modules, with the operators that Python uses.
//
// This header is the whole interface of the library flexsn::torch; flexsn/flexsn.h is how neurons are
// written. What the caller can mend is a flexsn::UserError.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/version.h>

#include "flexsn/flexsn.h"

#if defined(FLEXSN_BUILT_FOR_TORCH) && \
    FLEXSN_BUILT_FOR_TORCH != TORCH_VERSION_MAJOR * 1000 + TORCH_VERSION_MINOR
#error \
    "flexsn::torch was built for another version of torch: build flexsn anew with the torch of this program"
#endif

#define FLEXSN_TORCH_API __attribute__((visibility("default")))

namespace flexsn::nn {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

// ---- memories and step modes -----------------------------------------------------------------------

/// What a module keeps from call to call: tensors, or nothing yet.
using Memory = std::optional<Tensors>;

/// A module with named memories that live until `reset`, and with a step mode: an input is one time step
/// ("s"), or a sequence with time as dimension 0 ("m"). Memories move with `to()` and are no part of what is
/// saved.
class FLEXSN_TORCH_API MemoryModule : public torch::nn::Module {
 public:
  explicit MemoryModule(std::string name);

  const std::string& step_mode() const { return step_mode_; }
  void set_step_mode(const std::string& step_mode);
  virtual std::vector<std::string> supported_step_modes() const;

  /// The label of what runs a call.
  const std::string& backend() const { return backend_; }
  void set_backend(const std::string& backend);
  virtual std::vector<std::string> supported_backends() const;

  /// For one input and one output: what Sequential calls.
  Tensor forward(const Tensor& input);
  /// All outputs for all inputs.
  Tensors forward_all(at::TensorList inputs);
  /// One time step. A module of your own defines this one, and the next one where it can do better.
  virtual Tensors single_step_forward(at::TensorList inputs);
  /// A sequence: single steps, stacked.
  virtual Tensors multi_step_forward(at::TensorList inputs);

  /// Adds a memory; `value` is also what `reset` brings back.
  void register_memory(const std::string& name, Memory value);
  const Memory& memory(const std::string& name) const;
  void set_memory(const std::string& name, Memory value);
  const Memory& reset_value(const std::string& name) const;
  void set_reset_value(const std::string& name, const Memory& value);
  torch::OrderedDict<std::string, Memory> named_memories() const;

  /// Brings all memories back to their reset values.
  virtual void reset();
  /// Cuts the memories from the graphs that made them.
  virtual void detach();

  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  void pretty_print(std::ostream& stream) const override;

 protected:
  /// For a module that was copied from another one: memories of its own, cut from any graph.
  void own_memories(const std::optional<torch::Device>& device);

 private:
  struct Kept {
    Memory value, reset_value;
  };
  template <class Change>
  void change_memories(const Change& change);

  std::string step_mode_ = "s", backend_ = "torch";
  torch::OrderedDict<std::string, Kept> memories_{"Memory"};
};

// For all memory modules of a network, itself included.

FLEXSN_TORCH_API void reset_net(torch::nn::Module& net);
/// Cuts all states from the graphs of earlier calls (truncated backpropagation).
FLEXSN_TORCH_API void detach_net(torch::nn::Module& net);
FLEXSN_TORCH_API void set_step_mode(torch::nn::Module& net, const std::string& step_mode);
/// Modules that do not support the backend stay as they are and are named in a warning. `which` chooses
/// modules; without it, all.
FLEXSN_TORCH_API void set_backend(torch::nn::Module& net, const std::string& backend,
                                  const std::function<bool(const torch::nn::Module&)>& which = {});

// ---- neurons ---------------------------------------------------------------------------------------

namespace detail {
/// A neuron as a program hands it to this library: both have copies of flexsn's core of their own, and
/// nothing but text goes between them.
struct NeuronText {
  std::string name;
  std::function<std::string(Mem type)> text;  ///< of the step, traced for a type
};
inline NeuronText text_of(const Neuron& neuron) {
  return {neuron.name(), [neuron](Mem type) { return show(neuron, {.type = type}); }};
}
class TensorNeuron;
class NeuronParams;
}  // namespace detail

/// How many tensors of each kind a step has.
struct ScanCounts {
  std::size_t inputs = 0, states = 0, outputs = 0;

  bool operator==(const ScanCounts&) const = default;
};

struct FlexSNOptions {
  /// Values of parameters by name, of any shape that broadcasts to the step's; a parameter of each step has T
  /// in front. The module gets copies. Those that are not named have their defaults.
  std::map<std::string, Tensor> params = {};
  /// Parameters of the neuron that are parameters of the module; the others are buffers.
  std::vector<std::string> learnable = {};
  std::string step_mode = "m";
  /// "fused" ("triton" and "inductor" mean the same): a sequence is one kernel, a step is one too. "torch"
  /// and "hop": step by step, each step a kernel of its own that autograd sees. A neuron of C++ has no code
  /// of torch inside its step, so both give the same bits.
  std::string backend = "fused";
  /// Keep all states of the last call in `state_seqs`.
  bool store_state_seqs = false;
  /// States to start from, for the inputs of a call; without it those that the neuron says.
  std::function<Tensors(const std::string& step_mode, at::TensorList inputs)> init_states = {};
};

/// Spiking neurons: a call takes sequences [T, ...] (or single steps) and keeps the last states until
/// `reset`. What has no type of its own in the step has that of the input. Parameters are named as those of
/// Python's `FlexSN(core)` with a module as core: "core.tau".
class FLEXSN_TORCH_API FlexSNImpl : public MemoryModule {
 public:
  explicit FlexSNImpl(const Neuron& neuron, FlexSNOptions options = {})
      : FlexSNImpl(detail::text_of(neuron), std::move(options)) {}
  FlexSNImpl(detail::NeuronText neuron, FlexSNOptions options);

  const std::string& neuron() const;
  ScanCounts counts() const;
  std::vector<std::string> supported_backends() const override;

  /// Here as well, since containers of torch ask the class itself: `net->ptr<FlexSNImpl>(1)`. A module of
  /// your own needs such a line too where it is asked for by its class.
  Tensor forward(const Tensor& input) { return MemoryModule::forward(input); }
  Tensors single_step_forward(at::TensorList inputs) override;
  Tensors multi_step_forward(at::TensorList inputs) override;
  /// A call with explicit states, which leaves the module as it is: outputs, and states after the last step.
  std::pair<Tensors, Tensors> functional_forward(at::TensorList inputs, const Memory& states) const;

  /// The states after the last call, in the order of the neuron; nothing: initial states come next.
  const Memory& states() const;
  void set_states(Memory states);
  /// Of the last call, [T, ...] each; nothing without `store_state_seqs` and after `reset`.
  const Memory& state_seqs() const;
  bool store_state_seqs() const { return options_.store_state_seqs; }
  void set_store_state_seqs(bool on);

  /// A parameter of the neuron, learnable or not.
  Tensor param(const std::string& name) const;

  /// A copy with parameters and states of its own. A class derived from this one must have its own.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  friend class FlexSNKernel;
  struct Ran {
    Tensors outputs, states;
    Memory sequences = {};
  };
  Ran run_steps(at::TensorList inputs, const Memory& states, bool store) const;
  Ran run_step(at::TensorList inputs, const Memory& states) const;
  Ran run_one_by_one(at::TensorList inputs, const Memory& first, bool store) const;
  Memory first_states(at::TensorList inputs, const Memory& carried) const;
  Tensors params() const;
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;

  std::shared_ptr<const detail::TensorNeuron> neuron_;
  std::shared_ptr<detail::NeuronParams> core_;  ///< null where the neuron has no parameters
  FlexSNOptions options_;                       ///< without the values of parameters
};
TORCH_MODULE(FlexSN);

/// The fused kernel of a neuron: a function of input sequences and initial states that gives output sequences
/// and state sequences. It keeps no states; copies share the kernels.
class FLEXSN_TORCH_API FlexSNKernel {
 public:
  /// Parameters that are not named have their defaults.
  explicit FlexSNKernel(const Neuron& neuron, const std::map<std::string, Tensor>& params = {})
      : FlexSNKernel(detail::text_of(neuron), params) {}
  FlexSNKernel(detail::NeuronText neuron, const std::map<std::string, Tensor>& params);
  /// The kernel of a module, with its parameters.
  explicit FlexSNKernel(const FlexSNImpl& module);

  ScanCounts info() const;
  /// Input sequences, then states; gives outputs, then states of all steps.
  Tensors operator()(at::TensorList arguments) const;
  /// The inference kernel: nothing is kept for backward.
  Tensors f_inf(at::TensorList arguments) const;
  /// The training kernel: results that know how to go backward.
  Tensors f_fwd(at::TensorList arguments) const;
  /// Gradients of `arguments` from those of what `f_fwd` gave for them; an undefined tensor stands for no
  /// gradient, arriving or resulting.
  Tensors f_bwd(at::TensorList results, at::TensorList arguments, at::TensorList grads) const;

 private:
  std::shared_ptr<const detail::TensorNeuron> neuron_;
  Tensors params_;
};

// ---- scans in plain torch ----------------------------------------------------------------------------

/// One step: inputs, states and lifted tensors in, outputs and new states out.
using TensorStep = std::function<Tensors(at::TensorList)>;

/// What an output of one step is like; no device: that of input 0.
struct OutputTemplate {
  std::vector<std::int64_t> shape = {};
  at::ScalarType type = at::kFloat;
  std::optional<at::Device> device = {};
};
using OutputTemplates = std::optional<std::vector<OutputTemplate>>;

/// Output sequences, then state sequences. `arguments`: input sequences [T, ...], states, then tensors that
/// every step gets as they are. Autograd follows the steps. For T == 0 the step is not called and outputs are
/// what `templates` say.
FLEXSN_TORCH_API Tensors eager_scan(const TensorStep& step, const ScanCounts& counts,
                                    at::TensorList arguments, const OutputTemplates& templates = {});
/// The same with the last states in place of state sequences.
FLEXSN_TORCH_API Tensors eager_scan_final_state(const TensorStep& step, const ScanCounts& counts,
                                                at::TensorList arguments,
                                                const OutputTemplates& templates = {});

// ---- state dicts: parameters and buffers by name, as Python has them -----------------------------------

using StateDict = torch::OrderedDict<std::string, Tensor>;

/// Parameters and buffers of a network, in its own memory.
FLEXSN_TORCH_API StateDict state_dict(const torch::nn::Module& net);
/// Copies values into a network. With `strict` both must have the same names.
FLEXSN_TORCH_API void load_state_dict(torch::nn::Module& net, const StateDict& values, bool strict = true);
/// What `torch.save(net.state_dict(), path)` of Python wrote.
FLEXSN_TORCH_API StateDict read_state_dict(const std::string& path);
/// For `net.load_state_dict(torch.load(path))` in Python.
FLEXSN_TORCH_API void write_state_dict(const StateDict& values, const std::string& path);

}  // namespace flexsn::nn
