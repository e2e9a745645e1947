// From a step to the plans of its training, and to the plan of any kind.
#pragma once

#include "grad.h"
#include "schedule.h"

namespace flexsn {

/// What `training` asks of grad; names that the step does not have are errors.
GradRequest request_of(const ir::Graph& step, const Training& training);

/// The joint graph of a simplified step, simplified in turn. Of a graph that has its gradients already, those
/// that `training` asks for: the gradients of states stay, an output's that does not arrive takes part in no
/// sum.
ir::Graph joint_of(const ir::Graph& step, const Training& training);

struct Lowered {
  ir::Graph joint;
  Partition parts;
  TrainingPlans plans;
};
/// All of it for a step as it was traced or read.
Lowered lower(const ir::Graph& step, const Training& training, const Layout& layout = {});

/// The plan of a kind.
Plan plan_of(const ir::Graph& step, Kind kind, const Training& training, const Layout& layout = {});

}  // namespace flexsn
