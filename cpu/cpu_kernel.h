// A plan as a CPU kernel: compiled when first run, walked over tiles of elements by plain C++.
#pragma once

#include <map>
#include <mutex>

#include "executable.h"
#include "jit.h"
#include "store.h"

namespace flexsn {

/// One kernel may run from several threads at once; each variant of it is compiled once.
class CpuKernel : public Executable {
 public:
  /// Object code is looked for and left in `store`. What has more instructions than `optimized_up_to` is
  /// compiled without optimization.
  explicit CpuKernel(Plan plan, Store store = Store::standard(),
                     unsigned optimized_up_to = largest_optimized);
  ~CpuKernel() override;

  const Plan& plan() const override { return plan_; }
  /// Same bits as execute(plan(), run), for any number of threads. Not a byte outside the buffers is touched.
  void run(const PlanRun& run, const Threads& threads = {}) const override;
  /// Compiles what `run` needs, which need not have its data yet: any pointer says that a buffer is there.
  void prepare(const PlanRun& run) const override;

 private:
  struct Variant;
  class Arenas;
  /// What is compiled: which buffers are present, and whether rows are written past the caches.
  using Form = std::pair<std::vector<bool>, bool>;
  /// What fails is tried again by the next call.
  const Variant& variant(const Form& form) const;
  void make(Variant& variant, const Form& form) const;

  Plan plan_;
  Store store_;
  unsigned optimized_up_to_;
  mutable std::mutex mutex_;
  mutable std::map<Form, std::shared_ptr<Variant>> variants_;
  std::unique_ptr<Arenas> arenas_;
};

}  // namespace flexsn
