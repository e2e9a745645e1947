// A plan as a CUDA kernel: compiled when first run, queued on the caller's stream.
#pragma once

#include "cuda_code.h"
#include "cuda_shape.h"
#include "cuda_sums.h"

namespace flexsn {

/// How code is cut and chosen, where not by the rule of cuda_shape.h.
struct CudaChoice {
  std::optional<CudaOptions> options = {};
  CudaEntry entry = CudaEntry::automatic;
};

/// One kernel may run from several threads and on several devices at once; each variant of it is compiled
/// once: the entry that a run needs before it, the other one beside what follows. Runs are queued, nothing is
/// waited for; a run is legal while its stream is captured, and a captured run may be repeated while the
/// kernel lives.
class CudaKernel : public Executable {
 public:
  /// Object code is looked for and left in `store`. `cuda` must outlive this.
  explicit CudaKernel(Plan plan, const Cuda& cuda = Cuda::standard(), Store store = Store::standard(),
                      const CudaChoice& choice = {});
  ~CudaKernel() override;

  const Plan& plan() const override { return plan_; }
  const CudaOptions& options() const { return options_; }
  void run(const PlanRun& run, const Threads& threads = {}) const override;
  void prepare(const PlanRun& run) const override;
  bool is_ready(const PlanRun& run) const override;
  void run_backward(PlanRun run, const ParamGradients& gradients, const Threads& threads = {}) const override;
  std::int64_t scratch_bytes(std::int64_t steps, const ParamGradients& gradients,
                             Scratch whose = Scratch::this_plan) const override;
  std::vector<CudaSums> sums(const ParamGradients& gradients, std::int64_t steps, bool wide) const;
  /// What the compiler made of the entries that runs with these buffers use.
  std::vector<CudaFigures> figures(const PlanRun& run) const;

 private:
  struct Variant;
  const Variant& variant(const PlanRun& run) const;
  bool gives_param_gradients() const;
  /// `by_block`: sums are written for each block of elements, so how their memory lies does not matter.
  bool can_be_wide(const PlanRun& run, const Gpu& gpu, bool by_block) const;
  /// Elements of a block of an entry's threads.
  std::int64_t block(bool wide) const;
  /// Of how many elements backward leaves one sum: those of a block, where that suits all of them, else 1.
  std::int64_t elements_of_sums(const ParamGradients& gradients, bool wide) const;
  void launch(const PlanRun& run, const Gpu& gpu, bool wide, bool partial_sums) const;

  Plan plan_;
  const Cuda& cuda_;
  Store store_;
  CudaOptions options_;
  CudaEntry entry_;
  std::vector<bool> is_sum_;  ///< for each buffer
  mutable std::mutex mutex_;
  mutable std::map<std::vector<bool>, std::unique_ptr<Variant>> variants_;
};

}  // namespace flexsn
