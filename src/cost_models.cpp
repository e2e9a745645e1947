// What arithmetic costs beside memory on each kind of machine.
#include "cost_models.h"

#include <algorithm>
#include <cmath>

#include "cuda_shape.h"
#include "error.h"

namespace flexsn {

CostModel cost_model_named(std::string_view name) {
  const CostModel models[] = {{},
                              // Its room is the registers that a thread has for values at most, and its
                              // shared memory what a multiprocessor has for 1024 threads of two elements.
                              // As timed on an H200 with rings of 2 to 16 states, f32 and f64.
                              {.name = "gpu",
                               .op = 0.18,
                               .keep = 0.3,
                               .hidden = 0.9,
                               .room = 960,
                               .registers = true,
                               .smallest = 4,
                               .longest = 16,
                               .at_once = 8,
                               .shared = 112},
                              {.name = "bytes", .op = 0, .keep = 1 / 64.0, .room = 64, .smallest = 1}};
  std::vector<std::string> names;
  for (const CostModel& model : models) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  user_error("there is no cost model '", name, "'", did_you_mean(name, names), "; choose cpu, gpu or bytes");
}

double register_cost(const CostModel& costs, int segment, double held, double carried, double work) {
  const bool fit = !is_too_long(std::llround(work), segment, 1);
  const double room = fit ? std::max(0.0, costs.room - carried) : 0;
  return 0.2 * std::max(0.0, held - room / 4 / segment) +
         2 * std::max(0.0, held - std::max(room, held) / segment);
}

double pieces_cost(const CostModel& costs, int segment, double kept, double loaded, double bytes,
                   double work) {
  const bool has_room = segment * kept <= costs.shared;
  const bool has_time = work * costs.op <= 0.8 * bytes;
  const bool has_registers = segment * (kept + 3 * loaded) <= 0.75 * costs.room;
  return has_room && has_time && has_registers ? 0 : 2 * kept;
}

}  // namespace flexsn
