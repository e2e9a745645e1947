// A step as a Triton device function, for whoever has a kernel of their own around it.
#pragma once

#include "ir.h"

namespace flexsn {

/// `def name(arguments): ... return results`, with the device functions it calls and the imports before it.
/// Arguments are the step's inputs in order, called `arguments`; results are its outputs, one alone without a
/// tuple. Throws a UserError where the step has more than inputs and outputs.
std::string emit_triton_function(const ir::Graph& step, const std::string& name,
                                 const std::vector<std::string>& arguments);

}  // namespace flexsn
