// The interpreter of plans: what a plan means, run, so that a plan is tested before any backend exists.
#pragma once

#include "plan.h"

namespace flexsn {

/// What a run gives a buffer; data is null where an optional one, or one that nobody wants written, is left
/// out.
struct Bound {
  void* data = nullptr;
  std::int64_t row_stride = 0;        ///< in elements; 0 repeats one row
  std::int64_t inner = 1, count = 1;  ///< of an indexed one: element n finds entry (n / inner) % count
  bool host = false;  ///< of a run on a GPU: one value in the memory of the host, which is read at once
};

/// One run of a plan.
struct PlanRun {
  std::int64_t steps = 0;
  std::int64_t elements = 0;
  std::int64_t first_step = 0;
  std::vector<Bound> buffers;  ///< one for each of the plan's
  int device = 0;              ///< of a GPU: in whose memory the buffers lie
  void* stream = nullptr;      ///< of that GPU: where the run is queued; null: its default stream
};

/// How many rows a buffer has in a run.
std::int64_t rows_of(const Plan& plan, const Buffer& buffer, std::int64_t steps);

/// Throws an InternalError where the run lacks a buffer that the plan reads.
void check_buffers(const Plan& plan, const PlanRun& run);

void execute(const Plan& plan, const PlanRun& run);

}  // namespace flexsn
