// simplify: constant folding, exact identities, common subexpressions, dead code.
#pragma once

#include "ir.h"

namespace flexsn {

/// A graph that computes the same bits with fewer nodes (NaNs stay NaNs). Only rewrites that hold for every
/// value are made, signed zeros, infinities and NaN included; gradients are kept too.
ir::Graph simplify(const ir::Graph& graph);

/// An exact identity: from the operands of a node, the simpler value; nothing where it does not apply.
struct Identity {
  const char* text;  ///< what it does, as in "x * 1 -> x"
  ir::Op op;         ///< the op of the nodes it looks at
  ir::V (*apply)(ir::V a, ir::V b, ir::V c);
};
const std::vector<Identity>& identities();

}  // namespace flexsn
