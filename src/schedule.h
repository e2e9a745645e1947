// schedule: parts become plans, one for each kind of kernel.
#pragma once

#include "partition.h"
#include "plan.h"

namespace flexsn {

/// How parameters and first states lie in memory, by name. What is not named is a scalar (parameters) or has
/// an entry for each element (states).
using Layout = std::map<std::string, Map>;

/// The plan of an inference kind for a simplified step.
Plan schedule_inference(const ir::Graph& step, Kind kind, const Layout& layout = {});

/// The plans of training, forward and backward. `joint` is what was partitioned.
struct TrainingPlans {
  Plan forward, backward;
};
TrainingPlans schedule_training(const ir::Graph& joint, const Partition& parts, const Training& training,
                                const Layout& layout = {});

}  // namespace flexsn
