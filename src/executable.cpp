// Parameter gradients by targets that work in the host's memory: rows of each element first, then their sums.
#include "executable.h"

#include <future>

#include "error.h"
#include "param_sums.h"

namespace flexsn {

namespace {

constexpr std::int64_t alignment = 64;

std::int64_t rows_bytes(const Buffer& buffer, std::int64_t steps, std::int64_t elements) {
  const std::int64_t rows = buffer.lead == Lead::per_step ? steps : 1;
  const std::int64_t bytes = rows * elements * static_cast<std::int64_t>(size_of(buffer.mem));
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

std::string too_many_ops(const Plan& plan, bool gpu) {
  // Compilers take time that grows with the square of a kernel's length: seconds for this many operations on
  // a CPU, half a minute on a GPU.
  constexpr std::size_t most_on_cpu = 50000, most_on_gpu = 20000;
  const std::size_t most = gpu ? most_on_gpu : most_on_cpu;
  const std::size_t ops =
      plan.step.graph.nodes.size() + (plan.rebuild ? plan.rebuild->graph.nodes.size() : 0);
  if (ops <= most) return "";
  return join("a kernel of it has ", ops, " operations, but one that is compiled for a ", gpu ? "GPU" : "CPU",
              " has ", most,
              " at most; split the step into neurons that follow each other, or use the target ",
              gpu && ops <= most_on_cpu ? "\"cpu\"" : "\"interpreter\"");
}

std::int64_t Executable::scratch_bytes(std::int64_t steps, const ParamGradients& gradients, Scratch) const {
  std::int64_t bytes = 0;
  for (const ParamGradient& gradient : gradients.list)
    bytes += rows_bytes(plan().buffers[gradient.buffer], steps, elements_of(gradients.step));
  return bytes;
}

void Executable::run_backward(PlanRun run, const ParamGradients& gradients, const Threads& threads) const {
  auto* rows = static_cast<std::byte*>(gradients.scratch);
  for (const ParamGradient& gradient : gradients.list) {
    run.buffers[gradient.buffer] = {.data = rows, .row_stride = run.elements};
    rows += rows_bytes(plan().buffers[gradient.buffer], run.steps, run.elements);
  }
  this->run(run, threads);
  for (const ParamGradient& gradient : gradients.list) {
    const bool per_step = plan().buffers[gradient.buffer].lead == Lead::per_step;
    const ir::Argument argument{.role = ir::Role::param, .mem = gradient.mem, .per_step = per_step};
    store_param_gradient(argument, run.buffers[gradient.buffer].data, run.elements, run.steps, gradients.step,
                         gradient.shape, gradient.to, gradient.row_stride, threads);
  }
}

Bound to_come() {
  alignas(64) static std::byte somewhere[1];  // as the widest loads of a GPU need it
  return {.data = somewhere};
}

void prepare_both(const Executable& forward, const PlanRun& run, const Executable& backward,
                  const std::function<bool(const Buffer&)>& has) {
  PlanRun later{.steps = run.steps, .elements = run.elements, .buffers = {}, .device = run.device};
  const std::vector<Buffer>& present = forward.plan().buffers;
  for (const Buffer& buffer : backward.plan().buffers) {
    // What forward has as well lies as it does there; the rest, memory that is still to be had, as it should.
    Bound bound = has(buffer) ? to_come() : Bound{};
    for (std::size_t b = 0; b < present.size(); ++b)
      if (bound.data != nullptr && run.buffers[b].data != nullptr && present[b].holds == buffer.holds &&
          present[b].index == buffer.index)
        bound = run.buffers[b];
    later.buffers.push_back(bound);
  }
  std::future<void> beside = std::async([&] { backward.prepare(later); });
  forward.prepare(run);
  try {
    beside.get();
  } catch (const std::exception&) {
  }
}

}  // namespace flexsn
