#include "export.h"

#include <algorithm>

#include "cuda_shape.h"
#include "emit_triton.h"
#include "error.h"
#include "train.h"

namespace flexsn {

const std::vector<std::string>& export_formats() {
  static const std::vector<std::string> formats = {"triton", "cuda", "fsn"};
  return formats;
}

std::string exported(const Neuron& neuron, const std::string& format, std::optional<Kind> kind,
                     const Training& training) {
  const std::vector<std::string>& formats = export_formats();
  if (std::find(formats.begin(), formats.end(), format) == formats.end())
    user_error("there is no format '", format, "' to export a neuron in; there are triton, cuda and fsn",
               did_you_mean(format, formats));
  if (kind && format != "cuda")
    user_error("a kind of kernel is for the format cuda, which is one kernel; ",
               format == "triton" ? "a Triton module holds them all" : "an .fsn text is the neuron itself");
  if (format == "triton") return triton_module(neuron, training);
  if (format == "fsn") return show(neuron, {.type = training.type});
  const Plan plan =
      plan_of(neuron.graph(training.type), kind.value_or(Kind::inference_final_state), training);
  return emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), cuda_shape(plan).options).text();
}

}  // namespace flexsn
