// A plan as the text of one Triton kernel: a program owns a block of elements for all of time.
#pragma once

#include "plan.h"
#include "triton_lines.h"

namespace flexsn {

/// One argument of a kernel, in order; a run that has no buffer for an optional one gives None.
struct TritonArgument {
  enum class What : std::uint8_t {
    pointer,
    row_stride,  ///< in elements
    inner,
    count,       ///< of a parameter: element n finds entry (n // inner) % count
    is_scalar,   ///< constexpr: has the parameter one entry for all elements?
    steps,       ///< T
    elements,    ///< N
    first_step,  ///< the number of step 0
    block,       ///< constexpr BLOCK: elements of a program, a power of two
    levels,      ///< constexpr LEVELS: the power
    segment,     ///< constexpr SEGMENT: steps between checkpoints
  };
  What what = What::pointer;
  int buffer = no_buffer;
};

struct TritonKernel {
  std::string text;
  std::vector<TritonArgument> arguments;
};

/// Names of the plan's buffers must be Python names already. Gradients, first and last states and sequences
/// of states may be None: a gradient that does not arrive takes part in no arithmetic. The gradient of a
/// parameter is written for each element, or, where the parameter is one entry, as a sum for each program.
TritonKernel emit_triton_kernel(const Plan& plan, const std::string& name,
                                const std::map<std::string, double>& initial_states);

/// What a buffer is called in Python: "x", "v_last", "grad_tau".
std::string python_name(const Buffer& buffer);

}  // namespace flexsn
