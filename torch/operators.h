// The operators of operators.cpp, for those who call them through torch's dispatcher.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace flexsn {

template <class Signature>
c10::TypedOperatorHandle<Signature> operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// Neuron, inputs, states, params.
using InferenceOp = std::vector<at::Tensor>(c10::string_view, at::TensorList, at::TensorList, at::TensorList);
/// The same, the arguments whose gradients are wanted (none: all that carry one), plan.
using TrainingOp = std::vector<at::Tensor>(c10::string_view, at::TensorList, at::TensorList, at::TensorList,
                                           at::IntArrayRef, c10::string_view);

template <bool sequences>
const c10::TypedOperatorHandle<InferenceOp>& inference_op() {
  static const auto op =
      operator_named<InferenceOp>(sequences ? "flexsn::inference" : "flexsn::inference_final_state");
  return op;
}

template <bool sequences>
const c10::TypedOperatorHandle<TrainingOp>& training_op() {
  static const auto op =
      operator_named<TrainingOp>(sequences ? "flexsn::training" : "flexsn::training_final_state");
  return op;
}

}  // namespace flexsn
