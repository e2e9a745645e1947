// The list of passes in order.
#pragma once

#include "ir.h"

namespace flexsn {

/// The step graph taken to `stage`: simplified or expanded.
ir::Graph compile(const ir::Graph& step, Stage stage);

}  // namespace flexsn
