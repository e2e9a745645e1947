// A neuron of the C++ front end on tensors: a text for each set of types, and calls of the operators with it.
#pragma once

#include "flexsn/torch.h"
#include "neuron.h"

namespace flexsn::nn::detail {

/// It may be used from several threads at once.
class TensorNeuron {
 public:
  struct Param {
    std::string name;
    Mem type;
    std::optional<double> value;  ///< its default
    bool per_step;
  };
  struct Results {
    Tensors outputs, states;
  };

  explicit TensorNeuron(NeuronText source);

  const std::string& name() const { return source_.name; }
  const ScanCounts& counts() const { return counts_; }
  const std::vector<Param>& params() const { return params_; }
  /// Does a step depend on its number? The operators number the steps of each call from 0 on.
  bool counts_steps() const { return counts_steps_; }

  /// A tensor for each parameter: those that are given, else defaults.
  Tensors param_values(const std::map<std::string, Tensor>& given) const;
  /// The place of a parameter; throws where there is none of that name.
  std::size_t param_place(const std::string& name) const;
  /// Parameters for step `t` alone, a sequence of one.
  Tensors params_at(at::TensorList params, std::int64_t t) const;

  /// T of a call with sequences, after a check of what comes in.
  std::int64_t steps_of(at::TensorList inputs) const;
  void check_count(at::TensorList inputs) const;
  void check_states(at::TensorList states, at::IntArrayRef step) const;

  /// Outputs, and last states or, with `sequences`, all states. No states: those that the neuron starts with.
  Results run(at::TensorList inputs, at::TensorList states, at::TensorList params, bool sequences) const;
  /// What the neuron starts with, for inputs like these, whose steps have this shape.
  Tensors initial_states(at::TensorList inputs, at::TensorList params, at::IntArrayRef step) const;
  /// Outputs of a sequence of no steps.
  Tensors no_outputs(at::TensorList inputs, at::TensorList params) const;

 private:
  using Types = std::pair<Mem, std::vector<Mem>>;  ///< that the step is traced for, those of parameters

  const TorchNeuron& typed(at::TensorList inputs, at::TensorList params) const;
  const TorchNeuron& traced(const Types& types) const;

  NeuronText source_;
  ScanCounts counts_;
  std::vector<Param> params_;
  std::vector<std::string> input_names_;
  std::optional<std::size_t> follows_;  ///< the input whose type is that of arguments that name none
  bool counts_steps_ = false;
  mutable std::mutex mutex_;
  mutable std::map<Types, NeuronHandle> known_;
};

}  // namespace flexsn::nn::detail
