// expand: every expanded row becomes basic ones, so that all backends run the same exact ops.
#pragma once

#include "ir.h"

namespace flexsn {

/// The graph in basic rows only, same bits. with_grad and detach, which only matter to gradients, are gone.
ir::Graph expand(const ir::Graph& graph);

/// How long node `id` takes: itself, or its expansion.
int exact_work(const ir::Graph& graph, ir::Id id);

}  // namespace flexsn
