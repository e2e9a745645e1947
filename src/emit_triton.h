// A neuron as one Python module of Triton kernels that runs and trains it without flexsn.
//
// The module needs torch and triton. It holds kernels for inference, forward and backward, a launch function
// for each kind, an autograd function, and a function with the neuron's name. Time is a run-time number,
// parameters have any shape that broadcasts to the step's, gradients are summed in the one order. Kernels are
// to be compiled without contraction, which the launch functions see to: then all bits are the interpreter's.
#pragma once

#include "ir.h"

namespace flexsn {

/// `step` as it was traced or read. Throws a UserError where the neuron has no input, whose length is that of
/// time. Where nothing carries a gradient, the module runs and does not train.
std::string emit_triton(const ir::Graph& step, const Training& training);

/// The same of a neuron. Costs of arithmetic that nobody chose should be those of a GPU.
std::string triton_module(const Neuron& neuron, const Training& training);

}  // namespace flexsn
