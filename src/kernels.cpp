#include "kernels.h"

#include <cstdlib>

#include "absent.h"
#include "compile.h"
#include "error.h"
#include "train.h"

namespace flexsn {

using namespace ir;

namespace {

class Interpreted : public Executable {
 public:
  explicit Interpreted(Plan plan) : plan_(std::move(plan)) {}
  const Plan& plan() const override { return plan_; }
  void run(const PlanRun& run, const Threads&) const override { execute(plan_, run); }

 private:
  Plan plan_;
};

/// Kernels of equal plans are one, as long as anyone holds it.
std::shared_ptr<const Executable> shared_executable(Plan plan, const std::string& target) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const Executable>> known;
  if (target != "interpreter")
    if (const std::string why = too_many_ops(plan, target == "cuda"); !why.empty())
      user_error("neuron '", plan.neuron, "': ", why);
  const char* shape = target == "cuda" ? std::getenv("FLEXSN_CUDA_SHAPE") : nullptr;
  const std::string key = join(target, " ", shape == nullptr ? "" : shape, "\n", print(plan, false));
  const std::lock_guard lock(mutex);
  if (std::shared_ptr<const Executable> found = known[key].lock()) return found;
  std::erase_if(known, [](const auto& item) { return item.second.expired(); });
  std::shared_ptr<const Executable> made = target == "cpu" ? cpu_executable(std::move(plan))
                                           : target == "cuda"
                                               ? cuda_executable(std::move(plan))
                                               : std::make_shared<Interpreted>(std::move(plan));
  known[key] = made;
  return made;
}

/// The default pool of this number of threads, which lives as long as a kernel uses it.
std::shared_ptr<Pool> shared_pool(int threads) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Pool>> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Pool> pool = known[threads].lock();
  if (!pool) known[threads] = pool = std::make_shared<Pool>(threads);
  return pool;
}

/// Who wants the last value of a state need not bind its sequence.
Plan with_last_states(Plan plan) {
  for (Carry& carry : plan.carries) {
    if (carry.sequence == no_buffer) continue;
    Buffer last = plan.buffers[carry.sequence];
    last.holds = Holds::last_state;
    last.lead = Lead::once;
    carry.last = static_cast<int>(plan.buffers.size());
    plan.buffers.push_back(std::move(last));
  }
  verify(plan);
  return plan;
}

}  // namespace

Kernels::Kernels(Graph step_as_traced, const CompileOptions& options)
    : options_(options), step_(compile(step_as_traced, Stage::simplified)) {
  if (!options.parallel_for && options.target != "cuda")
    pool_ = shared_pool(options.threads > 0 ? options.threads : default_thread_count());
  try {
    joint_ = joint_of(step_, options.training);
  } catch (const UserError& error) {
    // What is asked for is the caller's; that nothing carries a gradient is a fact about the neuron.
    if (!options.training.wanted.empty() || options.training.arriving) throw;
    untrainable_ = error.what();
    return;
  }
  parts_ = partition(joint_, options.training);
}

void Kernels::require_training() const {
  if (!trainable()) throw UserError(untrainable_);
}

std::shared_ptr<const Executable> Kernels::executable_on(const std::string& target, Kind kind,
                                                         const Layout& layout,
                                                         const std::vector<int>& absent) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Executable>& found = executables_[{target, kind, layout, absent}];
  if (!found) found = shared_executable(plan(kind, layout, absent), target);
  return found;
}

Plan Kernels::plan(Kind kind, const Layout& layout, const std::vector<int>& absent) const {
  if (kind == Kind::inference || kind == Kind::inference_final_state)
    return with_last_states(
        schedule_inference(has_gradients(step_) ? forward_of(step_) : step_, kind, layout));
  require_training();
  if (kind == Kind::forward)
    return with_last_states(schedule_training(joint_, parts_, options_.training, layout).forward);
  if (absent.empty()) return schedule_training(joint_, parts_, options_.training, layout).backward;
  Partition fewer = parts_;
  fewer.backward = without_arriving(parts_.backward, absent);
  return schedule_training(joint_, fewer, options_.training, layout).backward;
}

void Kernels::prepare_training(const Layout& layout, const Executable& forward, const PlanRun& run,
                               const std::function<bool(const Buffer&)>& has) const {
  if (!forward.is_ready(run)) prepare_both(forward, run, *executable(Kind::backward, layout), has);
}

Threads Kernels::threads() const {
  if (options_.target == "cuda") return {};
  if (pool_) return pool_->as_threads();
  return {options_.threads > 0 ? options_.threads : default_thread_count(), options_.parallel_for};
}

}  // namespace flexsn
