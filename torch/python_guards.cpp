#include "python_guards.h"

#include <c10/core/DefaultDtype.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

namespace flexsn {

namespace {

PyObject* part(PyObject* entry, Py_ssize_t index) { return PyTuple_GET_ITEM(entry, index); }

/// Is this new reference, or null with an error, the object that was there?
int is_object(PyObject* found, PyObject* before) {
  if (found == nullptr) return -1;
  Py_DECREF(found);
  return found == before;
}

int is_attribute(PyObject* thing, PyObject* name, PyObject* before) {
  return is_object(PyObject_GetAttr(thing, name), before);
}

int equals_attribute(PyObject* thing, PyObject* name, PyObject* before) {
  THPObjectPtr found(PyObject_GetAttr(thing, name));
  return found ? PyObject_RichCompareBool(found.get(), before, Py_EQ) : -1;
}

PyObject* name_of(const char* text) { return PyUnicode_InternFromString(text); }

int still_held(PyObject* entry) {
  PyObject *holder = part(entry, 0), *name = part(entry, 1), *before = part(entry, 2);
  if (!PyDict_CheckExact(holder)) return is_object(PyObject_GetItem(holder, name), before);
  PyObject* found = PyDict_GetItemWithError(holder, name);
  if (found == nullptr && PyErr_Occurred() != nullptr) return -1;
  return found == before;
}

int still_in_cell(PyObject* entry) { return PyCell_GET(part(entry, 0)) == part(entry, 1); }

int same_function(PyObject* entry) {
  PyObject* function = part(entry, 0);
  const auto or_none = [](PyObject* value) { return value == nullptr ? Py_None : value; };
  return PyFunction_GET_CODE(function) == part(entry, 1) &&
         or_none(PyFunction_GET_DEFAULTS(function)) == part(entry, 2) &&
         or_none(PyFunction_GET_KW_DEFAULTS(function)) == part(entry, 3);
}

int still_absent(PyObject* entry) {
  PyObject* holder = part(entry, 0);
  const int there = PyDict_CheckExact(holder) ? PyDict_Contains(holder, part(entry, 1))
                                              : PySequence_Contains(holder, part(entry, 1));
  return there < 0 ? -1 : !there;
}

int same_length(PyObject* entry) {
  const Py_ssize_t length = PyObject_Size(part(entry, 0));
  return length < 0 ? -1 : length == PyLong_AsSsize_t(part(entry, 1));
}

int same_object(PyObject* entry) {
  static PyObject *const class_name = name_of("__class__"), *const dict_name = name_of("__dict__");
  const int same = is_attribute(part(entry, 0), class_name, part(entry, 1));
  return same != 1 ? same : is_attribute(part(entry, 0), dict_name, part(entry, 2));
}

bool same_sizes(const at::Tensor& tensor, PyObject* shape) {
  if (PyTuple_GET_SIZE(shape) != tensor.dim()) return false;
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    if (PyLong_AsLongLong(part(shape, i)) != tensor.size(i)) return false;
  return true;
}

int same_tensor(PyObject* entry) {
  PyObject *object = part(entry, 0), *dtype = part(entry, 1), *shape = part(entry, 2);
  PyObject *requires_grad = part(entry, 3), *device = part(entry, 4);
  if (THPVariable_CheckExact(object)) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (!tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !tensor.is_nested())
      return tensor.scalar_type() == reinterpret_cast<THPDtype*>(dtype)->scalar_type &&
             tensor.requires_grad() == (requires_grad == Py_True) && same_sizes(tensor, shape) &&
             tensor.device() == reinterpret_cast<THPDevice*>(device)->device;
  }
  static PyObject *const dtype_name = name_of("dtype"), *const shape_name = name_of("shape"),
                         *const requires_grad_name = name_of("requires_grad"),
                         *const device_name = name_of("device");
  int same = is_attribute(object, dtype_name, dtype);
  if (same == 1) same = is_attribute(object, requires_grad_name, requires_grad);
  if (same == 1) same = equals_attribute(object, shape_name, shape);
  return same != 1 ? same : equals_attribute(object, device_name, device);
}

int same_content(PyObject* asks) {
  THPObjectPtr says(PyObject_CallNoArgs(asks));
  return says ? PyObject_IsTrue(says.get()) : -1;
}

int all_are(int (*same)(PyObject*), PyObject* entries) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); ++i)
    if (const int is = same(part(entries, i)); is != 1) return is;
  return 1;
}

}  // namespace

int unchanged(PyObject* guards) {
  constexpr int (*kinds[])(PyObject*) = {still_held,  still_in_cell, same_function, still_absent,
                                         same_length, same_object,   same_tensor,   same_content};
  constexpr Py_ssize_t count = std::size(kinds);
  if (!PyTuple_Check(guards) || PyTuple_GET_SIZE(guards) != count + 1) {
    PyErr_SetString(PyExc_TypeError, "expected the guards of a Reach");
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    const int same = all_are(kinds[i], part(guards, i));
    if (same == 1) continue;
    // A name, the value of a cell or a `__dict__` is gone.
    const bool gone = same < 0 && (PyErr_ExceptionMatches(PyExc_KeyError) != 0 ||
                                   PyErr_ExceptionMatches(PyExc_ValueError) != 0 ||
                                   PyErr_ExceptionMatches(PyExc_AttributeError) != 0);
    if (gone) PyErr_Clear();
    return gone ? 0 : same;
  }
  return reinterpret_cast<THPDtype*>(part(guards, count))->scalar_type ==
         c10::get_default_dtype_as_scalartype();
}

}  // namespace flexsn
