// The same step in f64, for comparisons with differences.
#pragma once

#include "ir.h"

namespace flexsn {

/// `graph` with every float an f64 and no rounding to narrower ones; nothing where it reads the bits of a
/// float.
std::optional<ir::Graph> widened(const ir::Graph& graph);

}  // namespace flexsn
