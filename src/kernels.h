// A neuron on its way to kernels, for whatever front end runs them: arrays of the caller, tensors of a
// framework.
#pragma once

#include <mutex>
#include <tuple>

#include "executable.h"
#include "schedule.h"

namespace flexsn {

/// What does not depend on a run: the graphs, the partition, and an executable for each form that was asked
/// for. It may be used from several threads at once.
class Kernels {
 public:
  /// `options` must have been checked. Throws a UserError where they ask for gradients that are not there.
  Kernels(ir::Graph step_as_traced, const CompileOptions& options);

  /// The simplified step; a graph that had its gradients already still has them.
  const ir::Graph& step() const { return step_; }
  const CompileOptions& options() const { return options_; }

  bool trainable() const { return untrainable_.empty(); }
  /// Throws a UserError with the reason where the neuron is not trainable.
  void require_training() const;
  /// Of a trainable neuron.
  const ir::Graph& joint() const { return joint_; }
  const Partition& parts() const { return parts_; }

  /// The kernel of a kind. `absent` are arguments of the joint graph: gradients that do not arrive at outputs
  /// of this run of backward. Kinds that give sequences of states have buffers for last states as well.
  std::shared_ptr<const Executable> executable(Kind kind, const Layout& layout,
                                               const std::vector<int>& absent = {}) const {
    return executable_on(options_.target, kind, layout, absent);
  }
  /// The same for another target: what forward saves does not depend on it.
  std::shared_ptr<const Executable> executable_on(const std::string& target, Kind kind, const Layout& layout,
                                                  const std::vector<int>& absent = {}) const;
  Plan plan(Kind kind, const Layout& layout, const std::vector<int>& absent = {}) const;

  /// Where the code of forward is still to be made, makes that of backward beside it. `has` says which of its
  /// buffers backward will likely have.
  void prepare_training(const Layout& layout, const Executable& forward, const PlanRun& run,
                        const std::function<bool(const Buffer&)>& has) const;

  /// Who runs the tasks of an executable.
  Threads threads() const;

 private:
  CompileOptions options_;
  ir::Graph step_, joint_;
  Partition parts_;
  std::string untrainable_;
  std::shared_ptr<Pool> pool_;
  mutable std::mutex mutex_;
  using Form = std::tuple<std::string, Kind, Layout, std::vector<int>>;
  mutable std::map<Form, std::shared_ptr<const Executable>> executables_;
};

}  // namespace flexsn
