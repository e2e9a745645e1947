// explain: what runs of a neuron will do, in numbers and in words.
#include <algorithm>
#include <cstdio>

#include "compile.h"
#include "error.h"
#include "execute.h"
#include "expand.h"
#include "ops.h"
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

int running_ops(const Graph& graph) {
  const std::vector<bool> once = hoistable(graph);
  int count = 0;
  for (std::size_t id = 0; id < graph.nodes.size(); ++id)
    count += graph.nodes[id].op != Op::constant && graph.nodes[id].op != Op::argument && !once[id];
  return count;
}

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
      return plan.reverse;
    default:
      return false;
  }
}

class Explainer {
 public:
  Explainer(const Neuron& neuron, const ExplainOptions& options)
      : options_(options), step_(neuron.graph(options.training.type)) {
    out_.neuron = neuron.name();
    check_size();
    if (!options.given_states)
      for (const Argument& argument : step_.arguments)
        if (argument.role == Role::state) layout_[argument.name] = Map::scalar;
  }

  Explanation run() {
    explain_ops();
    const Plan inference = plan_of(step_, Kind::inference_final_state, options_.training, layout_);
    out_.inference.push_back(traffic("inference_final_state", inference));
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
  void check_size() const {
    const auto fail = [&](const auto&... parts) { user_error("neuron '", step_.name, "': ", parts...); };
    if (options_.steps < 0) fail("the number of steps must not be negative, found ", options_.steps);
    if (options_.elements < 0) fail("the number of elements must not be negative, found ", options_.elements);
    std::int64_t bytes = 0;
    constexpr std::int64_t widest = 8 * 1024;  // an argument of 8 bytes, a thousand of them
    if (__builtin_mul_overflow(options_.steps, options_.elements, &bytes) ||
        __builtin_mul_overflow(bytes, widest, &bytes))
      fail(options_.steps, " steps of ", options_.elements, " elements are too many to count their bytes");
  }

  void explain_ops() {
    const Graph simplified = compile(step_, Stage::simplified), expanded = compile(step_, Stage::expanded);
    out_.step_ops = op_count(step_);
    out_.simplified_ops = op_count(simplified);
    out_.expanded_ops = running_ops(expanded);
    out_.hoisted_ops = op_count(expanded) - out_.expanded_ops;
  }

  /// By default gradients of inputs and parameters; of states too where they are given.
  Training training() const {
    Training training = options_.training;
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

  std::int64_t bytes_of(const Plan& plan, const Buffer& buffer) const {
    if (buffer.optional && !options_.given_states) return 0;
    const std::int64_t row = buffer.map == Map::element ? options_.elements : 1;
    return rows_of(plan, buffer, options_.steps) * row * static_cast<std::int64_t>(size_of(buffer.mem));
  }

  static double bytes_per_step(const Plan& plan, const Buffer& buffer) {
    if (buffer.map != Map::element || buffer.lead == Lead::once || buffer.optional) return 0;
    return static_cast<double>(size_of(buffer.mem)) / (buffer.lead == Lead::per_segment ? plan.segment : 1);
  }

  Traffic traffic(std::string kernel, const Plan& plan) const {
    Traffic out{.kernel = std::move(kernel)};
    for (const Buffer& buffer : plan.buffers) {
      (buffer.write ? out.written : out.read) += bytes_of(plan, buffer);
      (buffer.write ? out.written_per_step : out.read_per_step) += bytes_per_step(plan, buffer);
    }
    return out;
  }

  /// Sums over elements of what backward wrote for each of them.
  void add_reductions(const Plan& backward) {
    for (const Buffer& buffer : backward.buffers)
      if (buffer.holds == Holds::grad_param)
        out_.training.push_back({.kernel = "reduce " + buffer.name,
                                 .read_per_step = bytes_per_step(backward, buffer),
                                 .read = bytes_of(backward, buffer),
                                 .written = static_cast<std::int64_t>(size_of(buffer.mem)) *
                                            (buffer.lead == Lead::per_step ? options_.steps : 1)});
  }

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
    return options_.steps * options_.elements * static_cast<std::int64_t>(size_of(mem));
  }

  static std::int64_t total(const std::vector<Traffic>& kernels) {
    std::int64_t bytes = 0;
    for (const Traffic& kernel : kernels) bytes += kernel.read + kernel.written;
    return bytes;
  }

  double passes(const std::vector<Traffic>& kernels) const {
    return pass() == 0 ? 0 : static_cast<double>(total(kernels)) / static_cast<double>(pass());
  }

  void explain_training(const Lowered& lowered) {
    const Plan &forward = lowered.plans.forward, &backward = lowered.plans.backward;
    const Partition& parts = lowered.parts;
    out_.training = {traffic("forward", forward), traffic("backward", backward)};
    std::int64_t bare = total(out_.training);
    for (const Plan* plan : {&forward, &backward})
      for (const Buffer& buffer : plan->buffers)
        if (hands_over(*plan, buffer) || buffer.holds == Holds::grad_param) bare -= bytes_of(*plan, buffer);
    out_.floor = bare + static_cast<std::int64_t>(parts.floor *
                                                  static_cast<double>(options_.steps * options_.elements));
    add_reductions(backward);
    out_.training_passes = passes(out_.training);
    out_.ratio = out_.floor == 0 || pass() == 0
                     ? 1
                     : static_cast<double>(total(out_.training)) / static_cast<double>(out_.floor);
    out_.forward_ops = running_ops(forward.step.graph);
    out_.backward_ops =
        running_ops(backward.step.graph) + (backward.rebuild ? running_ops(backward.rebuild->graph) : 0);
    out_.segment = parts.segment;
    for (const Buffer& buffer : forward.buffers)
      if (buffer.holds == Holds::checkpoint) {
        out_.checkpoints.push_back(buffer.name);
        out_.checkpoint_rows = rows_of(forward, buffer, options_.steps);
      }
    for (const Buffer& buffer : backward.buffers)
      if (!buffer.write && hands_over(backward, buffer)) out_.kept_alive += bytes_of(backward, buffer);
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
             out_.hoisted_ops == 1 ? " depends" : " depend",
             " on parameters only and run once a call\n\nT = ", options_.steps, ", N = ", options_.elements,
             "; a pass is ", bytes_text(pass()), "; states ",
             options_.given_states ? "are given" : "start at their initial values",
             "\n\ninference: ", counted(static_cast<std::int64_t>(out_.inference.size()), "launch"), ", ",
             decimal(out_.inference_passes), " passes\n", table(out_.inference));
    return text +
           (out_.untrainable.empty() ? training_text() : "\ntraining: none. " + out_.untrainable + "\n");
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
        join("\ntraining: ", counted(static_cast<std::int64_t>(out_.training.size()), "launch"), ", ",
             decimal(out_.training_passes), " passes, ", decimal(out_.ratio), " times the floor of ",
             bytes_text(out_.floor), "\n", table(out_.training), "  forward runs ",
             counted(out_.forward_ops, "exact op"), " for each element and step, backward ",
             out_.backward_ops, "\n  backward gets\n");
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
                       ", inputs included; ", decimal(out_.kept_alive_per_step),
                       " bytes per element and step of a long run\n  planned for the costs of '",
                       options_.training.costs.name, "'\n");
  }

  const ExplainOptions& options_;
  const Graph step_;
  Layout layout_;
  Explanation out_;
};

}  // namespace

Explanation explain(const Neuron& neuron, const ExplainOptions& options) {
  return Explainer(neuron, options).run();
}

}  // namespace flexsn
