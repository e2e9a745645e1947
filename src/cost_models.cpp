// What arithmetic costs beside memory on each kind of machine.
#include "error.h"
#include "flexsn/flexsn.h"

namespace flexsn {

CostModel cost_model_named(std::string_view name) {
  const CostModel models[] = {{},
                              // Its room is the registers that a thread has for values at most. As timed
                              // on an H200 with rings of 2 to 16 states, f32 and f64.
                              {.name = "gpu",
                               .op = 0.18,
                               .keep = 0.3,
                               .hidden = 0.9,
                               .room = 960,
                               .registers = true,
                               .smallest = 4,
                               .longest = 8},
                              {.name = "bytes", .op = 0, .keep = 1 / 64.0, .room = 64, .smallest = 1}};
  std::vector<std::string> names;
  for (const CostModel& model : models) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  user_error("there is no cost model '", name, "'", did_you_mean(name, names), "; choose cpu, gpu or bytes");
}

}  // namespace flexsn
