// What the steps of a segment cost where they are kept in registers, in bytes as CostModel has it.
#pragma once

#include "flexsn/flexsn.h"

namespace flexsn {

/// What it costs that each step of a segment holds so many bytes in registers, beside those that are held all
/// the time. Fewer threads run where the steps take more than a quarter of the room; what is over the room
/// goes to memory and back, all but one step's where there is none, as where the steps are too much code to
/// stand one after another.
double register_cost(const CostModel& costs, int segment, double held, double carried, double work);

/// What it costs to rebuild a segment in pieces of fewer steps, each of which keeps and loads so many bytes,
/// where backward moves so many bytes a step: nothing where what they keep leaves room for threads enough,
/// arithmetic leaves them time to wait for what is loaded in turn, and where there are few threads registers
/// hold three times what a segment loads: what is computed, what is on its way, and about as much for where
/// it lies; else as much as if it went to memory and back. With 16 instead of 8 steps an H200 took 0.98 of
/// the time for IF and LIF neurons, but 1.03 for QIF, which keeps two values, and 1.02 for KLIF, which
/// computes more.
double pieces_cost(const CostModel& costs, int segment, double kept, double loaded, double bytes,
                   double work);

}  // namespace flexsn
