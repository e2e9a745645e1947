// From a step that torch traced to a graph: ATen's functions become rows of the op table.
#pragma once

#include <string>
#include <string_view>

namespace flexsn {

/// The canonical text of the neuron that `listing` describes. A listing has a line for each value, in order,
/// with fields between tabs; values are numbered from 0 on.
///   core    name
///   step    shape of the step, "3,4"
///   value   input | state | param | grad_output:K | grad_state:K, name, type, shape
///   node    function, type, type that operands are converted to, shape, file, line, name, arguments...
///   result  output | next:K | grad_input:K | grad_state:K | grad_param:K, argument
/// An argument is %N (a value), f: i: b: (a number), t: (a type), l: (integers), n (none), s: (a word); a
/// name and = before it make it one that was given by name. Types are torch's: float32, bfloat16, ... Throws
/// a UserError that names the function, the user's line and a way out where something is not pointwise.
std::string import_listing(std::string_view listing);

}  // namespace flexsn
