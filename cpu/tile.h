// One piece of a run's elements, tile by tile: where each stream of a kernel function points, and when.
#pragma once

#include "emit_llvm.h"
#include "execute.h"

namespace flexsn {

/// Memory for the rows of one tile, given back all at once and used again for the next.
class Arena {
 public:
  /// At an address that is a multiple of 64.
  std::byte* take(std::int64_t bytes);
  void reset();

 private:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::size_t size = 0, used = 0;
  };
  std::vector<Block> blocks_;
};

/// The functions of a module.
struct LlvmCalls {
  LlvmCall step = nullptr, rebuild = nullptr, step_hoist = nullptr, rebuild_hoist = nullptr;
  std::map<Mem, LlvmCall> load = {}, store = {};  ///< the conversions of carries
};

/// The largest number of elements that one tile of a run should have.
std::int64_t tile_elements(const Plan& plan, const LlvmModule& module, std::int64_t steps);

/// How many elements before the first one at which what a run writes lies at a multiple of 64 bytes in every
/// row; nothing where there is none for all of it.
std::optional<std::int64_t> elements_to_alignment(const Plan& plan, const PlanRun& run);

/// Runs elements [first, last) through all of time.
void run_piece(const Plan& plan, const LlvmModule& module, const LlvmCalls& calls, const PlanRun& run,
               std::int64_t first, std::int64_t last, Arena& arena);

}  // namespace flexsn
