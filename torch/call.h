// One call of an operator: its tensors, checked against the neuron and each other, and run where they are.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include "broadcast.h"
#include "neuron.h"

namespace flexsn {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

at::ScalarType scalar_type(Mem mem);

/// Checkpoints are one row after another with these elements behind them: torch's compilers compile anew for
/// sizes 0 and 1, which a number of checkpoints may be and this cannot.
inline constexpr std::int64_t checkpoint_pad = 2;

/// Says of a parameter that is not on the device of the call what it is called and what to do.
void require_parameter_on(at::Device device, const TorchNeuron& neuron, std::size_t place,
                          const at::Tensor& tensor);

/// Outputs and states, then, where `training`, what backward needs.
std::vector<at::Tensor> run_forward(const TorchNeuron& neuron, at::TensorList inputs, at::TensorList states,
                                    at::TensorList params, const Request& request, bool training);

/// The arguments at these places, whose gradients are wanted now: some of those that the request names.
std::vector<int> places_now(const TorchNeuron& neuron, const Request& request, at::IntArrayRef now);

/// What backward gets.
struct BackwardCall {
  const OptionalTensors& grads;   ///< of outputs and states
  const OptionalTensors& inputs;  ///< those that it reads
  const OptionalTensors& states;  ///< none: all started at their initial values
  at::TensorList params;
  const OptionalTensors& results;  ///< of forward: outputs, states, saved; those that it reads
  at::IntArrayRef shape;           ///< T and the step's shape
  at::IntArrayRef now;             ///< which of request.wanted are wanted now
};
/// The gradients that are wanted now, in their order.
std::vector<at::Tensor> run_backward(const TorchNeuron& neuron, const BackwardCall& call,
                                     const Request& request);

}  // namespace flexsn
