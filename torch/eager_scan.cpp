// Scans over tensors in plain torch: a step in C++ is called for one row of the sequences after another.
#include <algorithm>

#include "error.h"
#include "flexsn/torch.h"

namespace flexsn::nn {

using at::TensorList;

namespace {

void check(const ScanCounts& counts, TensorList arguments) {
  if (counts.inputs == 0) user_error("eager_scan: there must be an input, whose leading dimension is time");
  if (arguments.size() < counts.inputs + counts.states)
    user_error("eager_scan: expected at least ", counts.inputs + counts.states, " tensors, ", counts.inputs,
               " input sequences and ", counts.states, " states, found ", arguments.size());
  for (std::size_t i = 0; i < counts.inputs; ++i) {
    if (arguments[i].dim() == 0)
      user_error("eager_scan: input ", i, " must have time as its first dimension, found a scalar");
    if (arguments[i].size(0) != arguments[0].size(0))
      user_error("eager_scan: all inputs must have the same number of steps: input 0 has ",
                 arguments[0].size(0), ", input ", i, " has ", arguments[i].size(0));
  }
}

Tensors empty_outputs(const ScanCounts& counts, const Tensor& first, const OutputTemplates& templates) {
  if (counts.outputs == 0) return {};
  if (!templates)
    user_error("eager_scan: a scan of no steps (T == 0) needs a template for each of ", counts.outputs,
               " outputs, as the step is not called");
  if (templates->size() != counts.outputs)
    user_error("eager_scan: expected ", counts.outputs, " output templates, found ", templates->size());
  Tensors outputs;
  for (const OutputTemplate& like : *templates) {
    std::vector<std::int64_t> shape = {0};
    shape.insert(shape.end(), like.shape.begin(), like.shape.end());
    const at::Device device = like.device.value_or(first.device());
    outputs.push_back(at::empty(shape, first.options().dtype(like.type).device(device)));
  }
  return outputs;
}

Tensors scan(const TensorStep& step, const ScanCounts& counts, TensorList arguments,
             const OutputTemplates& templates, bool sequences) {
  check(counts, arguments);
  const std::int64_t steps = arguments[0].size(0);
  if (steps == 0) {
    Tensors all = empty_outputs(counts, arguments[0], templates);
    for (const Tensor& state : arguments.slice(counts.inputs, counts.states))
      all.push_back(sequences ? state.unsqueeze(0).narrow(0, 0, 0).clone() : state.clone());
    return all;
  }
  const std::size_t results = counts.outputs + counts.states;
  std::vector<Tensors> rows(sequences ? results : counts.outputs);
  Tensors now(arguments.begin(), arguments.end());
  for (std::int64_t t = 0; t < steps; ++t) {
    for (std::size_t i = 0; i < counts.inputs; ++i) now[i] = arguments[i].select(0, t);
    const Tensors returned = step(now);
    if (returned.size() != results)
      user_error("eager_scan: the step must return ", counts.outputs, " outputs and ", counts.states,
                 " states, found ", returned.size(), " tensors");
    // A result that is a state which the step was given may be written to by the next one.
    const auto is_given = [&](const Tensor& result) {
      return std::any_of(now.begin(), now.end(), [&](const Tensor& one) { return one.is_same(result); });
    };
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i].push_back(is_given(returned[i]) ? returned[i].clone() : returned[i]);
    for (std::size_t i = 0; i < counts.states; ++i) now[counts.inputs + i] = returned[counts.outputs + i];
  }
  Tensors all;
  for (const Tensors& row : rows) all.push_back(at::stack(row));
  for (std::size_t i = 0; !sequences && i < counts.states; ++i) {
    // A step may hand on a row of an input; a state must not change with it, nor keep it alive.
    const Tensor& state = now[counts.inputs + i];
    all.push_back(state.is_view() ? state.clone() : state);
  }
  return all;
}

}  // namespace

Tensors eager_scan(const TensorStep& step, const ScanCounts& counts, TensorList arguments,
                   const OutputTemplates& templates) {
  return scan(step, counts, arguments, templates, true);
}

Tensors eager_scan_final_state(const TensorStep& step, const ScanCounts& counts, TensorList arguments,
                               const OutputTemplates& templates) {
  return scan(step, counts, arguments, templates, false);
}

}  // namespace flexsn::nn
