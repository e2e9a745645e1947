#pragma once

#include <torch/csrc/python_headers.h>

namespace flexsn {

/// Is everything as the guards of a `Reach` have it? 1: yes, 0: no, -1: a Python error is set. The same as
/// `unchanged` in _guards.py, which says what each guard asks.
int unchanged(PyObject* guards);

}  // namespace flexsn
