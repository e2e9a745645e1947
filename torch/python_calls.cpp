// The Python module flexsn._calls: a call that is like one before it goes from Python's objects straight to
// the operator. What Python code would ask and hand on takes longer than a small neuron runs.
#define PY_SSIZE_T_CLEAN
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "operators.h"
#include "python_guards.h"

namespace flexsn {

namespace {

using at::Tensor;
using at::TensorList;
using Types = std::vector<at::ScalarType>;

/// A kind of call: the neuron, and the arguments it was found for. The operator checks all the rest.
struct Call {
  static constexpr const char* name = "flexsn call";

  std::string neuron;
  bool trainable = false;
  std::size_t outputs = 0, states = 0;
  std::int64_t dim = 0;
  at::Device device = at::kCPU;  ///< of the first input
  Types input_types;
  std::optional<Types> state_types;  ///< none: no states are given
};

template <bool sequences>
std::vector<Tensor> run(const Call& call, TensorList inputs, TensorList states, TensorList params,
                        bool trained) {
  const auto& inference = inference_op<sequences>();
  const auto& training = training_op<sequences>();
  const pybind11::gil_scoped_release others_may_run;
  return trained ? training.call(call.neuron, inputs, states, params, {}, "")
                 : inference.call(call.neuron, inputs, states, params);
}

/// The tensors of a tuple or a list, unless something in it only behaves like one; null stands for any types.
bool take(PyObject* from, const Types* types, std::vector<Tensor>& to) {
  if (!PyTuple_CheckExact(from) && !PyList_CheckExact(from)) return false;
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(from));
  if (types != nullptr && count != types->size()) return false;
  PyObject** objects = PySequence_Fast_ITEMS(from);
  to.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!THPVariable_CheckExact(objects[i])) return false;
    const Tensor& tensor = THPVariable_Unpack(objects[i]);
    if (!tensor.defined() || (types != nullptr && tensor.scalar_type() != (*types)[i])) return false;
    to.push_back(tensor);
  }
  return true;
}

bool any_requires_grad(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors)
    if (tensor.requires_grad()) return true;
  return false;
}

PyObject* list_of(const std::vector<Tensor>& tensors, std::size_t first, std::size_t count) {
  THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list) throw python_error();
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* tensor = THPVariable_Wrap(tensors[first + i]);
    if (tensor == nullptr) throw python_error();
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), tensor);
  }
  return list.release();
}

const Call* call_in(PyObject* capsule) {
  return static_cast<const Call*>(PyCapsule_GetPointer(capsule, Call::name));
}

bool under_transform() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

/// Are these sequences of one length that is not 0? (Empty ones run no kernel.)
bool are_sequences(const std::vector<Tensor>& inputs, std::int64_t dim) {
  if (inputs[0].dim() != dim) return false;
  for (const Tensor& input : inputs)
    if (input.is_nested() || input.dim() == 0 || input.size(0) == 0 || input.size(0) != inputs[0].size(0))
      return false;
  return true;
}

/// Does a mode want to see what torch is asked for? One that says on which device new tensors are does not.
bool modes_look_on() {
  if (!at::impl::torch_function_mode_enabled()) return false;
  using Modes = at::impl::PythonTorchFunctionTLS;
  static const PyObject* const device_context = [] {
    // flexsn itself has loaded it, so no other thread comes in between.
    THPObjectPtr module(PyImport_ImportModule("torch.utils._device"));
    PyObject* type = module ? PyObject_GetAttrString(module.get(), "DeviceContext") : nullptr;
    if (type == nullptr) throw python_error();
    return type;
  }();
  for (std::int64_t i = 0; i < Modes::stack_len(); ++i)
    if (reinterpret_cast<PyObject*>(Py_TYPE(Modes::get_stack_at(i)->ptr(getPyInterpreter()))) !=
        device_context)
      return true;
  return false;
}

/// Are these arguments of this kind of call, and does no mode of torch want to see them first?
bool take_arguments(const Call& call, PyObject* given, PyObject* given_states, std::vector<Tensor>& inputs,
                    std::vector<Tensor>& states) {
  const bool has_states = given_states != Py_None;
  return !modes_look_on() && has_states == call.state_types.has_value() &&
         take(given, &call.input_types, inputs) && inputs[0].device() == call.device &&
         are_sequences(inputs, call.dim) && (!has_states || take(given_states, &*call.state_types, states));
}

/// fits(call, guards, inputs, states) -> whether again() would run, whatever the parameters
PyObject* fits(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 4) return PyErr_Format(PyExc_TypeError, "fits() takes 4 arguments, found %zd", count);
  const Call* call = call_in(arguments[0]);
  if (call == nullptr) return nullptr;
  std::vector<Tensor> inputs, states;
  if (!call->trainable || under_transform() ||
      !take_arguments(*call, arguments[2], arguments[3], inputs, states))
    Py_RETURN_FALSE;
  const int does = unchanged(arguments[1]);
  return does < 0 ? nullptr : PyBool_FromLong(does);
  END_HANDLE_TH_ERRORS
}

/// again(call, guards, inputs, states, params, sequences) -> (outputs, states); None where it is another kind
/// of call, one that torch wants to see, or the guards say that something changed.
PyObject* again(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 6) return PyErr_Format(PyExc_TypeError, "again() takes 6 arguments, found %zd", count);
  const Call* call = call_in(arguments[0]);
  if (call == nullptr) return nullptr;
  std::vector<Tensor> inputs, states, params;
  if (!take_arguments(*call, arguments[2], arguments[3], inputs, states) ||
      !take(arguments[4], nullptr, params))
    Py_RETURN_NONE;
  if (const int same = unchanged(arguments[1]); same < 0)
    return nullptr;
  else if (same == 0)
    Py_RETURN_NONE;
  const bool trained = at::GradMode::is_enabled() &&
                       (any_requires_grad(inputs) || any_requires_grad(states) || any_requires_grad(params));
  if (trained && (!call->trainable || under_transform())) Py_RETURN_NONE;
  const std::vector<Tensor> results =
      (arguments[5] == Py_True ? run<true> : run<false>)(*call, inputs, states, params, trained);
  const THPObjectPtr outputs(list_of(results, 0, call->outputs));
  const THPObjectPtr left(list_of(results, call->outputs, call->states));
  return PyTuple_Pack(2, outputs.get(), left.get());
  END_HANDLE_TH_ERRORS
}

/// unchanged(guards) -> whether all is as they have it
PyObject* unchanged_of(PyObject*, PyObject* guards) {
  HANDLE_TH_ERRORS
  const int same = unchanged(guards);
  return same < 0 ? nullptr : PyBool_FromLong(same);
  END_HANDLE_TH_ERRORS
}

Types types_of(PyObject* dtypes) {
  Types types;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dtypes); ++i) {
    PyObject* dtype = PyTuple_GET_ITEM(dtypes, i);
    TORCH_CHECK_TYPE(THPDtype_Check(dtype), "expected a torch.dtype");
    types.push_back(reinterpret_cast<THPDtype*>(dtype)->scalar_type);
  }
  return types;
}

/// like(neuron, trainable, outputs, states, dim, device, input dtypes, state dtypes or None) -> call
PyObject* like(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char* neuron = nullptr;
  Py_ssize_t length = 0, outputs = 0, states = 0, dim = 0;
  int trainable = 0;
  PyObject *device = nullptr, *inputs = nullptr, *state_types = nullptr;
  if (!PyArg_ParseTuple(arguments, "s#pnnnOO!O", &neuron, &length, &trainable, &outputs, &states, &dim,
                        &device, &PyTuple_Type, &inputs, &state_types))
    return nullptr;
  auto call = std::make_unique<Call>();
  call->neuron.assign(neuron, static_cast<std::size_t>(length));
  call->trainable = trainable != 0;
  call->outputs = static_cast<std::size_t>(outputs);
  call->states = static_cast<std::size_t>(states);
  call->dim = dim;
  TORCH_CHECK_TYPE(THPDevice_Check(device), "expected a torch.device");
  call->device = reinterpret_cast<THPDevice*>(device)->device;
  call->input_types = types_of(inputs);
  TORCH_CHECK_VALUE(!call->input_types.empty(), "a call has an input");
  if (state_types != Py_None) call->state_types = types_of(state_types);
  PyObject* capsule = PyCapsule_New(call.get(), Call::name, [](PyObject* it) {
    delete static_cast<Call*>(PyCapsule_GetPointer(it, Call::name));
  });
  if (capsule != nullptr) static_cast<void>(call.release());
  return capsule;
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"again", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(again)), METH_FASTCALL, nullptr},
    {"fits", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fits)), METH_FASTCALL, nullptr},
    {"like", like, METH_VARARGS, nullptr},
    {"unchanged", unchanged_of, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_calls", nullptr, 0, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

}  // namespace flexsn

PyMODINIT_FUNC PyInit__calls() { return PyModule_Create(&flexsn::module); }
