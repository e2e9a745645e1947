// What a target makes of a plan. Whoever holds one need not know the target.
#pragma once

#include "emit_llvm.h"
#include "execute.h"
#include "pool.h"

namespace flexsn {

class Executable {
 public:
  virtual ~Executable() = default;
  virtual const Plan& plan() const = 0;
  /// Same bits as execute(plan(), run).
  virtual void run(const PlanRun& run, const Threads& threads) const = 0;
};

/// Throws a UserError that names the way out where this build or this machine has no CPU kernels.
std::shared_ptr<const Executable> cpu_executable(Plan plan);

/// Why there are no CPU kernels here; "" where there are. What follows is for where there are.
std::string cpu_absent();
/// "LLVM 19.1.7"
std::string cpu_compiler();
/// The instruction set of this machine.
Isa cpu_isa();
/// A module of emit_llvm as an assembly listing.
std::string cpu_assembly(const std::string& text, Isa isa);

}  // namespace flexsn
