// What a legal graph is.
#pragma once

#include "ir.h"

namespace flexsn {

/// Throws a UserError that names the neuron, the value and its line when `graph` is not legal:
/// - nodes refer to earlier nodes, with the number and types of operands their row's signature says;
/// - each argument has one node, of the type its memory widens to; names are used once;
/// - each state has one next value of its own type; gradients are of arguments that can carry one;
/// - what goes to f16, bf16 or u8 memory is rounded to it first;
/// - rows that read a NaN's bits stand in expanded graphs only, and those hold no expanded row.
void verify(const ir::Graph& graph);

/// `graph`, checked: a pass that made an illegal one is a defect of ours.
ir::Graph verified(ir::Graph graph, const char* pass);

}  // namespace flexsn
