// explain: what runs of a neuron will do, in numbers and in words.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "compile.h"
#include "cuda_shape.h"
#include "error.h"
#include "executable.h"
#include "expand.h"
#include "ops.h"
#include "reduce.h"
#include "train.h"

namespace flexsn {

using namespace ir;

namespace {

std::string counted(std::int64_t count, std::string_view what) {
  return join(count, " ", what, count == 1 ? "" : what.ends_with("ch") ? "es" : "s");
}

std::string words_of(const Graph& graph, Role role) {
  std::string text;
  for (const Argument& argument : graph.arguments)
    if (argument.role == role)
      text += join(text.empty() ? "" : ", ", argument.name, " (", name_of(argument.mem),
                   argument.per_step ? ", one a step" : "", ")");
  return text.empty() ? "none" : text;
}

/// A number with two decimals, of bytes in the unit that keeps it short.
std::string decimal(double number) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", number);
  return text;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::string_view units[] = {"B", "kB", "MB", "GB", "TB"};
  double number = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (number >= 1000 && unit + 1 < std::size(units)) number /= 1000, ++unit;
  return unit == 0 ? join(bytes, " B") : join(decimal(number), " ", units[unit]);
}

/// How a parameter lies in memory.
struct Place {
  Shape row = {};         ///< its shape, without the time of a per-step one
  bool given = false;     ///< else it is its default: one entry for all
  bool expanded = false;  ///< no map fits: each call spreads it out to the step's shape
};

/// Values that only go from forward to backward, and what is read again for them.
bool hands_over(const Plan& plan, const Buffer& buffer) {
  switch (buffer.holds) {
    case Holds::saved:
    case Holds::checkpoint:
      return true;
    case Holds::input:
    case Holds::output:
    case Holds::state_sequence:
    case Holds::first_state:
    case Holds::param:
      return plan.reverse;
    default:
      return false;
  }
}

class Explainer {
 public:
  Explainer(const Neuron& neuron, const ExplainOptions& options)
      : options_(options),
        step_(neuron.graph(options.training.type)),
        no_device_(for_gpu() ? why_no_device() : "") {
    out_.neuron = neuron.name();
    find_shape();
    places_.resize(step_.arguments.size());
    for (const auto& [name, shape] : options.param_shapes) place_param(name, shape);
    for (const auto& [name, entries] : options.entries_at_once) check_entries(name, entries);
    if (!options.given_states)
      for (const Argument& argument : step_.arguments)
        if (argument.role == Role::state) layout_[argument.name] = Map::scalar;
  }

  Explanation run() {
    explain_ops();
    const bool sequences = options_.training.state_sequences;
    const Plan inference =
        plan_of(step_, sequences ? Kind::inference : Kind::inference_final_state, options_.training, layout_);
    add_kernel(out_.inference, sequences ? "inference" : "inference_final_state", inference);
    add_gpu_shape(out_.inference.back(), inference);
    out_.inference_passes = passes(out_.inference);
    try {
      joint_of(compile(step_, Stage::simplified), training());
    } catch (const UserError& error) {
      // What is asked for is the caller's; that nothing carries a gradient is a fact about the neuron.
      if (!options_.training.wanted.empty() || options_.training.arriving) throw;
      out_.untrainable = error.what();
    }
    if (out_.untrainable.empty()) explain_training(lower(step_, training(), layout_));
    out_.text = text();
    return std::move(out_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    user_error("neuron '", step_.name, "': ", parts...);
  }

  void find_shape() {
    if (options_.steps < 0) fail("the number of steps must not be negative, found ", options_.steps);
    if (options_.elements && *options_.elements < 0)
      fail("the number of elements must not be negative, found ", *options_.elements);
    constexpr std::int64_t usual_elements = 1 << 20;
    out_.shape = options_.shape.value_or(Shape{options_.elements.value_or(usual_elements)});
    out_.elements = 1;
    for (std::int64_t dim : out_.shape) {
      if (dim < 0) fail("the step's shape ", text_of(out_.shape), " must not be negative");
      if (__builtin_mul_overflow(out_.elements, dim, &out_.elements))
        fail("the step's shape ", text_of(out_.shape), " has too many elements");
    }
    if (options_.elements && *options_.elements != out_.elements)
      fail(*options_.elements, " elements are asked for, but the step's shape ", text_of(out_.shape), " has ",
           out_.elements, "; give one of the two");
    std::int64_t bytes = 0;
    constexpr std::int64_t widest = 8 * 1024;  // an argument of 8 bytes, a thousand of them
    if (__builtin_mul_overflow(options_.steps, out_.elements, &bytes) ||
        __builtin_mul_overflow(bytes, widest, &bytes))
      fail(options_.steps, " steps of ", out_.elements, " elements are too many to count their bytes");
  }

  void check_entries(const std::string& name, int entries) const {
    std::vector<std::string> names;
    for (const Argument& argument : step_.arguments)
      if (argument.role == Role::input || argument.role == Role::state || argument.role == Role::param)
        names.push_back(argument.name);
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail("there is no input, state or param '", name, "' whose entries are loaded",
           which_there_are(name, names));
    if (entries != 1 && entries != 2 && entries != 4)
      fail("1, 2 or 4 entries of '", name, "' can be loaded at once, found ", entries);
  }

  void place_param(const std::string& name, const Shape& given) {
    std::vector<std::string> names;
    int index = -1;
    for (std::size_t a = 0; a < step_.arguments.size(); ++a) {
      if (step_.arguments[a].role != Role::param) continue;
      names.push_back(step_.arguments[a].name);
      if (names.back() == name) index = static_cast<int>(a);
    }
    if (index < 0)
      fail("there is no param '", name, "' to have a shape", which_there_are(name, names),
           names.empty() ? "; the neuron has no param" : "");
    const Argument& argument = step_.arguments[index];
    for (std::int64_t dim : given)
      if (dim < 0) fail("param '", name, "' has shape ", text_of(given), ", which must not be negative");
    Shape row = given;
    if (argument.per_step) {
      if (row.empty() || row[0] != options_.steps)
        fail("param '", name, "' changes with time, so its shape must start with T = ", options_.steps,
             ", found ", text_of(given));
      row.erase(row.begin());
    }
    const std::optional<Broadcast> found = broadcast(out_.shape, row);
    if (!found)
      fail("param '", name, "' has shape ", text_of(row), ", which does not broadcast to the step's shape ",
           text_of(out_.shape),
           "; each dimension, counted from the right, must be 1 or equal, and there may be no more of them");
    places_[index] = {.row = row, .given = true, .expanded = found->spread};
    layout_[name] = found->map;
    if (found->map == Map::element && argument.per_step) full_.push_back(name);
    out_.params.push_back({.name = name,
                           .type = argument.mem,
                           .shape = given,
                           .bytes = param_bytes(index),
                           .expanded = found->spread ? expanded_bytes(index) : 0});
  }

  void explain_ops() {
    const Graph step = has_gradients(step_) ? forward_of(step_) : step_;
    const Graph simplified = compile(step, Stage::simplified), expanded = compile(step, Stage::expanded);
    out_.step_ops = op_count(step);
    out_.simplified_ops = op_count(simplified);
    out_.expanded_ops = ops_a_step(expanded);
    out_.hoisted_ops = op_count(expanded) - out_.expanded_ops;
  }

  /// By default gradients of inputs and parameters; of states too where they are given.
  Training training() const {
    Training training = options_.training;
    training.full_step_params.insert(training.full_step_params.end(), full_.begin(), full_.end());
    if (!training.wanted.empty() || options_.given_states || has_gradients(step_)) return training;
    for (const Argument& argument : step_.arguments)
      if (argument.role != Role::state && is_float(value_type(argument.mem)))
        training.wanted.push_back(argument.name);
    if (training.wanted.empty())
      user_error(
          "neuron '", step_.name,
          "': it has no input and no parameter to take a gradient of; give its states (given_states) to see "
          "their gradients");
    return training;
  }

  std::int64_t rows_of_param(int index) const { return step_.arguments[index].per_step ? options_.steps : 1; }

  /// The parameter as it lies in the caller's memory.
  std::int64_t param_bytes(int index) const {
    const Place& place = places_[index];
    return (place.given ? rows_of_param(index) * elements_of(place.row) : 1) *
           static_cast<std::int64_t>(size_of(step_.arguments[index].mem));
  }

  std::int64_t gradient_bytes(int index) const {
    return rows_of_param(index) * elements_of(places_[index].row) *
           static_cast<std::int64_t>(size_of(step_.arguments[index].mem));
  }

  std::int64_t expanded_bytes(int index) const {
    return rows_of_param(index) * out_.elements *
           static_cast<std::int64_t>(size_of(step_.arguments[index].mem));
  }

  std::int64_t bytes_of(const Plan& plan, const Buffer& buffer) const {
    if (buffer.optional && !options_.given_states) return 0;
    if (buffer.holds == Holds::param)
      return places_[buffer.index].expanded ? expanded_bytes(buffer.index) : param_bytes(buffer.index);
    const std::int64_t row = buffer.map == Map::element ? out_.elements : 1;
    return rows_of(plan, buffer, options_.steps) * row * static_cast<std::int64_t>(size_of(buffer.mem));
  }

  double bytes_per_step(const Plan& plan, const Buffer& buffer) const {
    if (buffer.lead == Lead::once || buffer.optional) return 0;
    const double size = static_cast<double>(size_of(buffer.mem));
    if (buffer.map == Map::element) return size / (buffer.lead == Lead::per_segment ? plan.segment : 1);
    return places_[buffer.index].given ? per_step(bytes_of(plan, buffer)) : 0;
  }

  /// Bytes of all steps and elements for one of them.
  double per_step(std::int64_t bytes) const {
    const std::int64_t all = options_.steps * out_.elements;
    return all == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(all);
  }

  Traffic traffic(std::string kernel, const Plan& plan) const {
    Traffic out{.kernel = std::move(kernel), .launches = out_.elements == 0 ? 0 : 1};
    for (const Buffer& buffer : plan.buffers) {
      (buffer.write ? out.written : out.read) += bytes_of(plan, buffer);
      (buffer.write ? out.written_per_step : out.read_per_step) += bytes_per_step(plan, buffer);
    }
    return out;
  }

  /// A kernel, behind the parameters that are expanded for it.
  void add_kernel(std::vector<Traffic>& kernels, std::string kernel, const Plan& plan) {
    if (!for_gpu())
      if (const std::string why = too_many_ops(plan, false); !why.empty())
        refused_ += join("\n", kernel, " cannot run: ", why, "\n");
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.holds != Holds::param || !places_[buffer.index].expanded) continue;
      add_pass(kernels, "expand " + step_.arguments[buffer.index].name, buffer.index,
               param_bytes(buffer.index), expanded_bytes(buffer.index));
    }
    kernels.push_back(traffic(std::move(kernel), plan));
  }

  /// Work on one parameter alone.
  void add_pass(std::vector<Traffic>& kernels, std::string kernel, int param, std::int64_t read,
                std::int64_t written, int launches = 1) const {
    const bool rows = step_.arguments[param].per_step;
    kernels.push_back({.kernel = std::move(kernel),
                       .read_per_step = rows ? per_step(read) : 0,
                       .written_per_step = rows ? per_step(written) : 0,
                       .read = read,
                       .written = written,
                       .launches = written == 0 ? 0 : launches});
  }

  /// Sums over elements of what backward wrote for each of them: one reduced dimension after the other, then
  /// a copy in the parameter's own type.
  void add_reductions(const Plan& backward) {
    if (for_gpu()) return add_sums_of_gpu(backward);
    for (const Buffer& buffer : backward.buffers) {
      if (buffer.holds != Holds::grad_param) continue;
      if (is_empty()) {
        add_zeros(buffer);
        continue;
      }
      const Shape& row = places_[buffer.index].row;
      std::int64_t left = out_.elements, between = 0;
      const std::vector<Dimension> dimensions = merged_dimensions(out_.shape, row);
      for (auto dimension = dimensions.rbegin(); dimension != dimensions.rend(); ++dimension)
        if (!dimension->kept && dimension->size > 0) between += left /= dimension->size;
      if (between == 0) between = elements_of(row);
      between *= rows_of_param(buffer.index) * static_cast<std::int64_t>(size_of(buffer.mem));
      add_pass(out_.training, "reduce " + buffer.name, buffer.index, bytes_of(backward, buffer) + between,
               between + gradient_bytes(buffer.index));
    }
  }

  /// On a GPU backward leaves sums of blocks of elements where shapes allow it, and few launches finish them.
  void add_sums_of_gpu(const Plan& backward) {
    ParamGradients gradients{.step = out_.shape};
    for (std::size_t b = 0; b < backward.buffers.size(); ++b) {
      const Buffer& buffer = backward.buffers[b];
      if (buffer.holds != Holds::grad_param) continue;
      const Shape& row = places_[buffer.index].row;
      gradients.list.push_back({.buffer = static_cast<int>(b),
                                .mem = step_.arguments[buffer.index].mem,
                                .shape = row,
                                .row_stride = elements_of(row)});
    }
    const bool wide = why_narrow(cuda_shape_to_run(backward), backward).empty();
    const std::vector<CudaSums> sums = cuda_sums(backward, gradients, options_.steps, wide);
    Traffic& kernel = out_.training.back();
    for (std::size_t i = 0; i < sums.size(); ++i)
      kernel.written += sums[i].left - bytes_of(backward, backward.buffers[gradients.list[i].buffer]);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const Buffer& buffer = backward.buffers[gradients.list[i].buffer];
      if (is_empty())
        add_zeros(buffer);
      else if (sums[i].launches > 0)
        add_pass(out_.training, "reduce " + buffer.name, buffer.index, sums[i].read, sums[i].written,
                 sums[i].launches);
    }
  }

  /// Where there is nothing to add up.
  void add_zeros(const Buffer& gradient) {
    add_pass(out_.training, "zero " + gradient.name, gradient.index, 0, gradient_bytes(gradient.index));
  }

  bool for_gpu() const { return options_.training.costs.name == "gpu"; }
  bool is_empty() const { return out_.elements == 0 || options_.steps == 0; }

  std::int64_t pass() const {
    Mem mem = options_.training.type;
    for (const Result& result : step_.results)
      if (result.gives == Gives::output) {
        mem = result.mem;
        break;
      }
    for (const Argument& argument : step_.arguments)
      if (argument.role == Role::input) {
        mem = argument.mem;
        break;
      }
    return options_.steps * out_.elements * static_cast<std::int64_t>(size_of(mem));
  }

  static std::int64_t total(const std::vector<Traffic>& kernels) {
    std::int64_t bytes = 0;
    for (const Traffic& kernel : kernels) bytes += kernel.read + kernel.written;
    return bytes;
  }

  double passes(const std::vector<Traffic>& kernels) const {
    return pass() == 0 ? 0 : static_cast<double>(total(kernels)) / static_cast<double>(pass());
  }

  /// Inputs, parameters, outputs and gradients once, and the fewest bytes that get backward its values.
  std::int64_t floor_of(const Lowered& lowered) const {
    std::int64_t bytes = 0;
    for (const Plan* plan : {&lowered.plans.forward, &lowered.plans.backward})
      for (const Buffer& buffer : plan->buffers)
        if (!hands_over(*plan, buffer))
          bytes += buffer.holds == Holds::param        ? param_bytes(buffer.index)
                   : buffer.holds == Holds::grad_param ? gradient_bytes(buffer.index)
                                                       : bytes_of(*plan, buffer);
    // What is expanded need not be: its own bytes are few.
    Training unexpanded = training();
    std::erase_if(unexpanded.full_step_params, [&](const std::string& name) {
      return std::any_of(out_.params.begin(), out_.params.end(),
                         [&](const ParamTraffic& param) { return param.name == name && param.expanded > 0; });
    });
    return bytes + static_cast<std::int64_t>(partition(lowered.joint, unexpanded).floor *
                                             static_cast<double>(options_.steps * out_.elements));
  }

  void explain_training(const Lowered& lowered) {
    const Plan &forward = lowered.plans.forward, &backward = lowered.plans.backward;
    const Partition& parts = lowered.parts;
    add_kernel(out_.training, "forward", forward);
    add_gpu_shape(out_.training.back(), forward);
    add_kernel(out_.training, "backward", backward);
    add_gpu_shape(out_.training.back(), backward);
    out_.floor = floor_of(lowered);
    add_reductions(backward);
    out_.training_passes = passes(out_.training);
    out_.ratio = out_.floor == 0 || pass() == 0
                     ? 1
                     : static_cast<double>(total(out_.training)) / static_cast<double>(out_.floor);
    out_.forward_ops = ops_a_step(forward.step.graph);
    out_.backward_ops =
        ops_a_step(backward.step.graph) + (backward.rebuild ? ops_a_step(backward.rebuild->graph) : 0);
    out_.segment = parts.segment;
    for (const Buffer& buffer : forward.buffers)
      if (buffer.holds == Holds::checkpoint) {
        out_.checkpoints.push_back(buffer.name);
        out_.checkpoint_rows = rows_of(forward, buffer, options_.steps);
      }
    for (const Buffer& buffer : backward.buffers)
      if (!buffer.write && hands_over(backward, buffer))
        out_.kept_alive +=
            buffer.holds == Holds::param ? param_bytes(buffer.index) : bytes_of(backward, buffer);
    out_.kept_alive_per_step = parts.bytes_kept;
    name_saved(lowered);
    for (Id id : parts.recomputed) {
      const std::string& name = lowered.joint.debug_at(id).name;
      out_.recomputed.push_back(name.empty() ? std::string(name_of(lowered.joint.at(id).op))
                                             : join(name_of(lowered.joint.at(id).op), " (", name, ")"));
    }
  }

  void name_saved(const Lowered& lowered) {
    const Partition& parts = lowered.parts;
    const std::string states = list_of(out_.checkpoints);
    if (parts.rebuild)
      for (std::size_t i = 0; i < parts.rebuild->arguments.size(); ++i)
        if (parts.rebuild->arguments[i].what == Port::What::input)
          out_.saved.push_back({parts.rebuild->graph.arguments[i].name, parts.rebuild->graph.arguments[i].mem,
                                "an input, read again to rebuild the values of a segment"});
    for (const Buffer& buffer : lowered.plans.backward.buffers)
      if (buffer.holds == Holds::param && buffer.map == Map::element)
        out_.saved.push_back({step_.arguments[buffer.index].name, buffer.mem,
                              join("a parameter with an entry for each element",
                                   buffer.lead == Lead::per_step ? " and step" : "",
                                   places_[buffer.index].expanded ? ", expanded again" : ", read again")});
    for (const Handed& value : parts.handed) {
      std::string reason = join("saved for each step, made from ", needs_of(lowered.joint, value.value), ": ",
                                options_.training.saving == Saving::everything ? "all values are saved"
                                : options_.training.saving == Saving::per_step
                                    ? "the cheapest cut of the step"
                                    : "cheaper than building it again, or within the budget");
      if (value.from.what == Port::What::input) reason = "an input, read again";
      if (value.from.what == Port::What::output) reason = "an output, in memory already";
      if (value.from.what == Port::What::sequence) reason = "a sequence of states, in memory already";
      out_.saved.push_back({value.name, value.mem, std::move(reason)});
    }
    for (std::size_t i = 0; i < parts.kept.size(); ++i)
      out_.saved.push_back({parts.rebuild->graph.results[i].name, parts.rebuild->graph.results[i].mem,
                            "rebuilt from the checkpoints of " + states + ", kept near the processor"});
  }

  static std::string list_of(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
  }

  /// The inputs and states that a value is made of.
  static std::string needs_of(const Graph& graph, Id value) {
    std::vector<bool> marked(graph.nodes.size());
    marked[value] = true;
    std::vector<std::string> names;
    for (std::size_t id = graph.nodes.size(); id-- > 0;)
      if (marked[id])
        for (Id operand : graph.nodes[id].operands)
          if (operand != no_id) marked[operand] = true;
    for (const Argument& argument : graph.arguments)
      if (marked[argument.value] && argument.role != Role::param)
        names.push_back(join(argument.role == Role::state ? "state " : "input ", argument.name));
    return names.empty() ? "step and element numbers" : list_of(names);
  }

  /// How a kernel is cut for a GPU, what the compiler makes of it where there is one, and what limits it.
  void add_gpu_shape(const Traffic& kernel, const Plan& plan) {
    if (!for_gpu()) return;
    const bool present = no_device_.empty();
    const double bytes = kernel.read_per_step + kernel.written_per_step;
    const bool known = present && device().instructions_a_byte > 0;
    const double instructions_a_byte = known ? device().instructions_a_byte : h200.instructions_a_byte;
    CudaShape shape = cuda_shape_to_run(plan);
    CudaOptions& cut = shape.options;
    const std::string narrow = why_narrow(shape, plan);
    const bool loops = cut.unroll > 1 && is_too_long(shape.work, cut.unroll, cut.vector);
    if (!narrow.empty()) {
      cut.vector = 1;
      cut.threads = cut.narrow_threads;
    }
    std::vector<bool> usual;  // buffers of a run to which nothing optional is given
    for (const Buffer& buffer : plan.buffers) usual.push_back(!buffer.optional);
    const std::string too_long = too_many_ops(plan, true);
    const std::string refused =
        !too_long.empty() ? too_long : cuda_too_many_fields(plan, emit_cuda(plan, usual, cut));
    const bool is_compiled = present && refused.empty();
    const std::vector<GpuEntry> compiled = is_compiled ? compiled_entries(plan) : std::vector<GpuEntry>{};
    for (const GpuEntry& entry : compiled)
      if (entry.entry == cuda_narrow && entry.again.starts_with("no early rows")) cut.early = false;
    count_registers(plan, shape);
    const GpuKernel gpu{.kernel = kernel.kernel,
                        .elements_a_thread = cut.vector,
                        .threads_a_block = cut.threads,
                        .steps_at_once = narrow.empty() ? cut.unroll : narrow_steps_at_once(plan, cut),
                        .registers = loops            ? cut.vector * shape.registers_at_once
                                     : narrow.empty() ? shape.registers()
                                                      : shape.narrow_registers(),
                        .ops = shape.ops,
                        .instructions = shape.instructions,
                        .bytes = bytes,
                        .most_instructions = instructions_a_byte * bytes,
                        .compiled = compiled,
                        .refused = refused};
    const std::string shared = in_pieces(plan, cut) && gpu.steps_at_once < plan.segment
                                   ? join(" with ", cuda_kept_bytes(plan, cut),
                                          " bytes of shared memory for what ", plan.segment, " steps keep")
                                   : "";
    out_.gpu.push_back(gpu);
    if (!refused.empty()) {
      gpu_ += join("  ", gpu.kernel, ": cannot run: ", refused, "\n");
      return;
    }
    gpu_ += join("  ", gpu.kernel, ": ", counted(gpu.elements_a_thread, "element"), " a thread",
                 narrow.empty() ? "" : join(" (", narrow, ")"), ", ", counted(gpu.steps_at_once, "step"),
                 " loaded at once", narrow.empty() || !cut.early ? "" : " and later ones early", ", ",
                 gpu.threads_a_block, " threads a block", shared, ", about ", gpu.registers,
                 " registers for values, ", counted(gpu.ops, "exact op"), " a step",
                 loops ? join("; its steps run in a loop, so their rows", shared.empty() ? " and values" : "",
                              " lie in local memory, which is not counted")
                       : "");
    for (const GpuEntry& entry : compiled)
      gpu_ +=
          join("; ", entry.entry, entry.again.empty() ? "" : join(" (compiled once more: ", entry.again, ")"),
               " has ", entry.registers, " registers and ", entry.local_bytes, " bytes that did not fit");
    if (gpu.bytes > 0 && out_.elements > 0) {
      // A warp for each of a multiprocessor's four schedulers waits more than it computes or loads.
      const std::int64_t few = std::int64_t{128} * device().multiprocessors;
      gpu_ += join("\n    about ", gpu.instructions, " instructions for ", decimal(gpu.bytes), " bytes: ");
      gpu_ += out_.elements < few ? join("waiting is the limit where ", present ? "the device" : "an H200",
                                         " has time for ", few, " elements at once")
                                  : join(gpu.instructions > gpu.most_instructions ? "arithmetic" : "memory",
                                         " is the limit where ", known ? "the device" : "an H200",
                                         " has time for ", decimal(instructions_a_byte), " a byte");
    }
    gpu_ += "\n";
  }

  std::vector<GpuEntry> compiled_entries(const Plan& plan) {
    std::vector<GpuEntry> entries;
    try {
      for (const CudaFigures& found : cuda_figures(plan, options_.device))
        entries.push_back({found.entry, found.registers, found.local_bytes, found.again});
    } catch (const UserError& error) {
      unknown_ = error.what();
    }
    return entries;
  }

  static constexpr CudaDevice h200{.multiprocessors = 132, .instructions_a_byte = 5.2};
  CudaDevice device() const { return no_device_.empty() ? cuda_device(options_.device) : h200; }
  /// Why there is no device to go by; "" where there is one.
  std::string why_no_device() const {
    std::string why = cuda_absent();
    try {
      if (why.empty()) static_cast<void>(cuda_device(options_.device));
    } catch (const UserError& error) {  // a process that was forked from one that used it
      why = error.what();
    }
    return why;
  }

  /// Why the narrow entry runs; "" where the wide one does.
  std::string why_narrow(const CudaShape& shape, const Plan& plan) const {
    const CudaOptions& cut = shape.options;
    if (shape.entry == CudaEntry::narrow) return "the narrow entry is asked for";
    if (cut.vector > 1 && out_.elements % cut.vector != 0)
      return join(out_.elements, " is not a multiple of ", cut.vector);
    const bool by_size = shape.entry == CudaEntry::automatic;
    if (by_size && !fills_device(cut, out_.elements, device().multiprocessors))
      return "there would be few blocks";
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.map != Map::element) continue;
      if (buffer.holds != Holds::input && buffer.holds != Holds::first_state && buffer.holds != Holds::param)
        continue;
      const std::string& name = step_.arguments[buffer.index].name;
      const auto found = options_.entries_at_once.find(name);
      if (found != options_.entries_at_once.end() && found->second < cut.vector)
        return join("rows of ", name, " start where no ", cut.vector, " can be loaded at once");
    }
    return "";
  }

  /// What holds for all kernels there.
  std::string gpu_text() const {
    std::string text = gpu_;
    if (const char* asked = std::getenv("FLEXSN_CUDA_SHAPE"); asked != nullptr && *asked != 0)
      text += join("  cut as FLEXSN_CUDA_SHAPE asks: ", asked, "; steps between checkpoints stay\n");
    if (const std::string& why = no_device_.empty() ? unknown_ : no_device_; !why.empty())
      text += join("  what the compiler makes of them is not known here: ", why, "\n");
    return text;
  }

  // ---- in words ------------------------------------------------------------------------------------

  std::string text() const {
    std::string outputs;
    for (const Result& result : step_.results)
      if (result.gives == Gives::output)
        outputs += join(outputs.empty() ? "" : ", ", result.name, " (", name_of(result.mem), ")");
    std::string text =
        join("neuron ", out_.neuron, "\n  inputs   ", words_of(step_, Role::input), "\n  states   ",
             words_of(step_, Role::state), "\n  params   ", words_of(step_, Role::param), "\n  outputs  ",
             outputs.empty() ? "none" : outputs, "\n  one step is ", counted(out_.step_ops, "op"),
             " as written, ", out_.simplified_ops, " simplified, ", counted(out_.expanded_ops, "exact op"),
             " for each element and step;\n  ", counted(out_.hoisted_ops, "exact op"),
             out_.hoisted_ops == 1 ? " depends" : " depend", " on parameters only and ",
             out_.hoisted_ops == 1 ? "runs" : "run", " once a call\n\nT = ", options_.steps,
             ", N = ", out_.elements, out_.shape.size() == 1 ? "" : " of shape " + text_of(out_.shape),
             "; a pass is ", bytes_text(pass()), "; states ",
             options_.given_states ? "are given" : "start at their initial values", "\n", params_text(),
             "\ninference: ", counted(launches(out_.inference), "launch"), ", ",
             decimal(out_.inference_passes), " passes\n", table(out_.inference));
    text += out_.untrainable.empty() ? training_text() : "\ntraining: none. " + out_.untrainable + "\n";
    text += refused_;
    return gpu_.empty()
               ? text
               : join(text, "\non a GPU", options_.device == 0 ? "" : join(", device ", options_.device),
                      "\n", gpu_text());
  }

  std::string params_text() const {
    std::string text;
    for (const ParamTraffic& param : out_.params)
      text += join("param '", param.name, "' of shape ", text_of(param.shape),
                   param.expanded == 0 ? ": " + bytes_text(param.bytes)
                                       : join(" is expanded to ", text_of(out_.shape),
                                              param.shape.size() > out_.shape.size() ? " for each step" : "",
                                              ": ", bytes_text(param.expanded), " written once a call"),
                   "\n");
    return text;
  }

  static std::int64_t launches(const std::vector<Traffic>& kernels) {
    std::int64_t count = 0;
    for (const Traffic& kernel : kernels) count += kernel.launches;
    return count;
  }

  static std::string table(const std::vector<Traffic>& kernels) {
    std::vector<std::vector<std::string>> rows = {
        {"kernel", "read a step", "written a step", "read in all", "written in all"}};
    for (const Traffic& kernel : kernels)
      rows.push_back({kernel.kernel, decimal(kernel.read_per_step) + " B",
                      decimal(kernel.written_per_step) + " B", bytes_text(kernel.read),
                      bytes_text(kernel.written)});
    std::vector<std::size_t> widths(rows[0].size());
    for (const auto& row : rows)
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::string text;
    for (const auto& row : rows) {
      text += "  " + row[0] + std::string(widths[0] - row[0].size(), ' ');
      for (std::size_t i = 1; i < row.size(); ++i)
        text += "  " + std::string(widths[i] - row[i].size(), ' ') + row[i];
      text += "\n";
    }
    return text;
  }

  std::string training_text() const {
    std::string text =
        join("\ntraining: ", counted(launches(out_.training), "launch"), ", ", decimal(out_.training_passes),
             " passes, ", decimal(out_.ratio), " times the floor of ", bytes_text(out_.floor), "\n",
             table(out_.training), "  forward runs ", counted(out_.forward_ops, "exact op"),
             " for each element and step, backward ", out_.backward_ops, "\n  backward gets\n");
    for (const SavedValue& value : out_.saved)
      text += join("    ", value.name, " (", name_of(value.type), "): ", value.reason, "\n");
    if (out_.saved.empty()) text += "    nothing but gradients\n";
    text += out_.segment == 0 ? "  no checkpoints\n"
                              : join("  a checkpoint of ", list_of(out_.checkpoints), " every ", out_.segment,
                                     " steps, ", counted(out_.checkpoint_rows, "row"), " in this run\n");
    if (!out_.recomputed.empty()) {
      constexpr std::size_t most = 40;
      const std::vector<std::string> some(
          out_.recomputed.begin(),
          out_.recomputed.begin() + static_cast<std::ptrdiff_t>(std::min(most, out_.recomputed.size())));
      text += join(
          "  runs again: ", list_of(some),
          some.size() < out_.recomputed.size() ? join(" and ", out_.recomputed.size() - most, " more") : "",
          "\n");
    }
    return text + join("  kept alive from forward to backward: ", bytes_text(out_.kept_alive),
                       ", inputs and parameters included; ", decimal(out_.kept_alive_per_step),
                       " bytes per element and step of a long run\n  planned for the costs of '",
                       options_.training.costs.name, "'",
                       full_.empty() ? "" : " and, like inputs, the full size of " + list_of(full_), "\n");
  }

  const ExplainOptions& options_;
  const Graph step_;
  Layout layout_;
  std::vector<Place> places_;      ///< for each argument of the step; of parameters only
  std::vector<std::string> full_;  ///< per-step parameters that are read like inputs
  Explanation out_;
  std::string refused_;    ///< kernels that a CPU's compiler is not given, in words
  std::string gpu_;        ///< how kernels are cut for a GPU, in words
  std::string no_device_;  ///< why there is no GPU to go by; "" where there is one, and where none is meant
  std::string unknown_;    ///< why it is not known what a compiler makes of kernels there
};

}  // namespace

Explanation explain(const Neuron& neuron, const ExplainOptions& options) {
  return Explainer(neuron, options).run();
}

}  // namespace flexsn
