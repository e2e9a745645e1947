// A neuron as a file that others can read: .fsn text, CUDA C++, or a Triton module that runs by itself.
#pragma once

#include "flexsn/flexsn.h"

namespace flexsn {

/// "triton", "cuda" and "fsn".
const std::vector<std::string>& export_formats();

/// The text of a format. `kind` is for "cuda", one kernel: inference_final_state where none is given; a
/// Triton module holds them all. Costs of arithmetic should be those of a GPU where nobody chose. Throws a
/// UserError where there is no such format, or a kind is given that cannot act.
std::string exported(const Neuron& neuron, const std::string& format, std::optional<Kind> kind,
                     const Training& training);

}  // namespace flexsn
