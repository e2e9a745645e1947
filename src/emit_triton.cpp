#include "emit_triton.h"

#include <algorithm>

#include "compile.h"
#include "environment.h"
#include "error.h"
#include "text.h"
#include "train.h"
#include "triton_kernel.h"
#include "triton_runtime.h"

namespace flexsn {

using namespace ir;
using What = TritonArgument::What;

namespace {

std::string name_of_neuron(const Graph& step) {
  return TritonNames().take(step.name.empty() ? "neuron" : step.name);
}

/// Names that are legal in Python, and so that none of the names made of them is that of another.
Graph with_python_names(Graph graph) {
  TritonNames names;
  const std::string neuron = name_of_neuron(graph);
  std::set<std::string> taken = {neuron, neuron + "_training", neuron + "_inference_kernel",
                                 neuron + "_forward_kernel", neuron + "_backward_kernel"};
  const auto name = [&](std::string& given, const char* kind, std::size_t number) {
    std::string wish = given.empty() ? join(kind, number) : given;
    for (const char* prefix : {"out_", "grad_", "saved_", "all_"})
      if (wish.starts_with(prefix)) wish = "v_" + wish;
    for (int again = 0;; ++again) {
      const std::string found = names.take(again == 0 ? wish : join(wish, "_", again + 1));
      std::vector<std::string> made = {found};
      for (const char* suffix : {"_first", "_last", "_sequence", "_checkpoints"})
        made.push_back(found + suffix);
      if (std::any_of(made.begin(), made.end(),
                      [&](const std::string& each) { return taken.contains(each); }))
        continue;
      taken.insert(made.begin(), made.end());
      given = found;
      return;
    }
  };
  for (std::size_t i = 0; i < graph.arguments.size(); ++i) {
    Argument& argument = graph.arguments[i];
    const char* kinds[] = {"input", "state", "param", "grad_output", "grad_next"};
    name(argument.name, kinds[static_cast<int>(argument.role)], i);
  }
  for (std::size_t i = 0; i < graph.results.size(); ++i)
    if (graph.results[i].gives == Gives::output) name(graph.results[i].name, "output", i);
  return graph;
}

/// The initial value of a state, or the default of a parameter, as its memory has it.
double stored(const Argument& argument) { return Array(argument.mem, {1}, argument.initial)[0]; }

/// "(512, 4)": a kernel's elements of a program, and its warps.
std::string block_of(const Plan& plan) {
  constexpr int long_body = 150;
  const int warps = plan.rebuild ? 2 : 4;
  int bytes = 8;
  for (const Buffer& buffer : plan.buffers)
    if (buffer.lead == Lead::per_step) bytes = std::min(bytes, static_cast<int>(size_of(buffer.mem)));
  const int ops = op_count(plan.step.graph) + (plan.rebuild ? op_count(plan.rebuild->graph) : 0);
  // Threads load 16 bytes at once, 8 where they keep the values of several steps.
  const int each = std::clamp((plan.rebuild ? 8 : 16) / bytes, 1, 8);
  return join("(", 32 * warps * (ops > long_body ? std::min(each, 2) : each), ", ", warps, ")");
}

class ModuleEmitter {
 public:
  ModuleEmitter(const Graph& step, const Training& training)
      : step_(with_python_names(step)), training_(training) {
    for (const Argument& argument : step_.arguments) {
      if (argument.role == Role::input) inputs_.push_back(argument);
      if (argument.role == Role::state) states_.push_back(argument);
      if (argument.role == Role::param) params_.push_back(argument);
      if (argument.role == Role::state) initial_[argument.name] = stored(argument);
    }
    for (const Result& result : step_.results)
      if (result.gives == Gives::output) outputs_.push_back(result);
    if (inputs_.empty())
      user_error("neuron '", step.name,
                 "': it has no input, and the length of time is that of an input; give it one");
    name_ = name_of_neuron(step);
    for (const std::vector<Argument>* list : {&inputs_, &states_, &params_})
      for (const Argument& argument : *list) arguments_.push_back(argument);
    make_plans();
  }

  std::string emit() {
    const std::string kernels = kernels_text();
    std::string text = header();
    text +=
        "import contextlib\nimport math\nfrom typing import NamedTuple\n\nimport torch\nimport "
        "triton\nimport triton.language as tl\n\n";
    text +=
        "# Elements of a program of each kernel, and its warps: powers of two, which no result depends on.\n";
    text += join("BLOCKS = {\"inference\": ", block_of(inference_));
    if (lowered_)
      text += join(", \"forward\": ", block_of(lowered_->plans.forward),
                   ", \"backward\": ", block_of(lowered_->plans.backward));
    text += "}\n";
    const bool sums = lowered_ && has_sums();
    if (sums) text += "SUM_SIZE = 1024\n";
    if (lowered_ && lowered_->plans.forward.segment > 0)
      text += join("SEGMENT = ", lowered_->plans.forward.segment, "\n");
    std::string rest = join(kernels, triton_runtime(), "\n\n");
    if (sums) rest += join(triton_training_runtime(), "\n\n");
    text += "\n\n" + with_triton_helpers(std::move(rest));
    text += inference_text();
    if (lowered_) text += forward_text() + backward_text() + autograd_text();
    return text + neuron_text();
  }

 private:
  // ---- plans --------------------------------------------------------------------------------------------

  void make_plans() {
    const Graph simple = compile(step_, Stage::simplified);
    inference_ = with_both_states(
        schedule_inference(has_gradients(simple) ? forward_of(simple) : simple, Kind::inference));
    Graph joint;
    try {
      joint = joint_of(simple, training_);
    } catch (const UserError&) {
      // That nothing carries a gradient is a fact about the neuron; what is asked for is the caller's.
      if (!training_.wanted.empty() || training_.arriving) throw;
      return;
    }
    lowered_.emplace();
    lowered_->joint = std::move(joint);
    lowered_->parts = partition(lowered_->joint, training_);
    lowered_->plans = schedule_training(lowered_->joint, lowered_->parts, training_);
    lowered_->plans.forward = with_both_states(std::move(lowered_->plans.forward));
    lowered_->plans.backward = with_both_gradients(std::move(lowered_->plans.backward));
    for (Plan* plan : {&lowered_->plans.forward, &lowered_->plans.backward})
      for (Buffer& buffer : plan->buffers)
        if (buffer.holds == Holds::saved) buffer.name = TritonNames().take(buffer.name);
  }

  static int add_buffer(Plan& plan, Buffer buffer) {
    plan.buffers.push_back(std::move(buffer));
    return static_cast<int>(plan.buffers.size()) - 1;
  }

  /// A run has the sequences of states or the last ones.
  static Plan with_both_states(Plan plan) {
    for (Carry& carry : plan.carries) {
      Buffer other = plan.buffers[carry.sequence != no_buffer ? carry.sequence : carry.last];
      if (carry.sequence == no_buffer) {
        other.holds = Holds::state_sequence;
        other.lead = Lead::per_step;
        carry.sequence = add_buffer(plan, other);
      } else {
        other.holds = Holds::last_state;
        other.lead = Lead::once;
        carry.last = add_buffer(plan, other);
      }
    }
    return plan;
  }

  /// And gradients arrive at one or the other, in the state's own type.
  Plan with_both_gradients(Plan plan) const {
    for (Carry& carry : plan.carries) {
      Buffer other = plan.buffers[carry.first != no_buffer ? carry.first : carry.add_sequence];
      other.mem = lowered_->joint.arguments[other.index].mem;
      if (carry.first == no_buffer) {
        other.holds = Holds::grad_last_state;
        other.lead = Lead::once;
        carry.first = add_buffer(plan, other);
      } else {
        plan.buffers[carry.first].mem = other.mem;
        other.holds = Holds::grad_state_sequence;
        other.lead = Lead::per_step;
        carry.add_sequence = add_buffer(plan, other);
      }
    }
    return plan;
  }

  bool has_sums() const {
    return std::any_of(lowered_->plans.backward.buffers.begin(), lowered_->plans.backward.buffers.end(),
                       [](const Buffer& buffer) { return buffer.holds == Holds::grad_param; });
  }

  bool uses_step_index() const {
    const auto uses = [](const TritonKernel& kernel) {
      return std::any_of(kernel.arguments.begin(), kernel.arguments.end(),
                         [](const TritonArgument& a) { return a.what == What::first_step; });
    };
    return uses(inference_kernel_) || uses(forward_kernel_) || uses(backward_kernel_);
  }

  std::string kernels_text() {
    inference_kernel_ = emit_triton_kernel(inference_, name_ + "_inference_kernel", initial_);
    std::string text = inference_kernel_.text + "\n\n";
    if (!lowered_) return text;
    forward_kernel_ = emit_triton_kernel(lowered_->plans.forward, name_ + "_forward_kernel", initial_);
    backward_kernel_ = emit_triton_kernel(lowered_->plans.backward, name_ + "_backward_kernel", initial_);
    return text + forward_kernel_.text + "\n\n" + backward_kernel_.text + "\n\n";
  }

  // ---- words --------------------------------------------------------------------------------------------

  template <class List>
  static std::string listed(const List& list) {
    std::string text;
    for (const auto& each : list) text += join(text.empty() ? "" : ", ", each.name);
    return text;
  }

  std::string header() const {
    std::string text =
        join("\"\"\"Neuron ", name_, " as Triton kernels, made by flexsn ", version(),
             ".\n\nIt needs torch and triton alone: ", name_, signature("sequences=False"), "\n\"\"\"\n#\n");
    text += join("# Inputs are [T, ...]: ", typed(inputs_),
                 ". States are of one step, None for their initial values: ",
                 states_.empty() ? "none" : typed(states_), ".\n");
    std::string per_step;
    for (const Argument& param : params_)
      if (param.per_step) per_step += join(per_step.empty() ? "; T rows of that: " : ", ", param.name);
    if (!params_.empty())
      text += join("# Parameters are numbers or tensors that broadcast to a step: ", typed(params_), per_step,
                   ".\n");
    text +=
        "# Returned are outputs, [T, ...], then the last states, or with sequences=True all states, [T, "
        "...].\n";
    text += training_words();
    text += "#\n# The step:\n#\n";
    const Graph simple = compile(step_, Stage::step);
    const std::string shown = print(has_gradients(simple) ? forward_of(simple) : simple);
    std::string line;
    for (char c : shown) {
      if (c != '\n') {
        line += c;
        continue;
      }
      text += "#     " + line + "\n";
      line.clear();
    }
    return text + "\n";
  }

  template <class List>
  static std::string typed(const List& list) {
    std::string text;
    for (const auto& each : list)
      text +=
          join(text.empty() ? "" : ", ", each.name, " (", std::string(torch_type(each.mem)).substr(6), ")");
    return text;
  }

  std::string training_words() const {
    if (!lowered_) return "# Nothing in it carries a gradient, so there is no training.\n";
    std::string gradients;
    for (const Argument& argument : arguments_)
      if (has_gradient(argument.name)) gradients += join(gradients.empty() ? "" : ", ", argument.name);
    const Partition& parts = lowered_->parts;
    std::string saved;
    for (const Handed& handed : parts.handed)
      if (handed.from.what == Port::What::saved)
        saved += join(saved.empty() ? "" : ", ", TritonNames().take(handed.name));
    return join("# Training gives gradients of ", gradients, ". Backward ",
                parts.segment > 0
                    ? join("runs forward again from checkpoints, one every ", parts.segment, " steps")
                : saved.empty() ? "needs nothing that is not in memory anyhow"
                                : join("reads of each step: ", saved),
                ".\n# Planned with ", options_words(),
                ".\n# A gradient that does not arrive takes part in no sum.\n");
  }

  /// The options of training, as they are written on the command line.
  std::string options_words() const {
    constexpr const char* savings[] = {"automatic", "everything", "per_step", "rebuild"};
    std::string text = join("--costs ", training_.costs.name);
    if (training_.budget) text += join(" --budget ", *training_.budget);
    if (training_.saving != Saving::automatic)
      text += join(" --save ", savings[static_cast<int>(training_.saving)]);
    if (training_.segment > 0) text += join(" --segment ", training_.segment);
    if (training_.state_sequences) text += " --sequences";
    for (const std::string& name : training_.wanted) text += join(" --wanted ", name);
    if (training_.arriving)
      for (const std::string& name : *training_.arriving) text += join(" --arriving ", name);
    return text;
  }

  /// "(x, v=None, *, w=None, first_step=0)"
  std::string signature(std::string_view last) const {
    std::string text = "(" + listed(inputs_);
    for (const Argument& state : states_) text += join(", ", state.name, "=None");
    const bool step_number = uses_step_index();
    if (!params_.empty() || step_number || !last.empty()) text += ", *";
    for (const Argument& param : params_)
      text += join(
          ", ", param.name,
          param.has_default ? join("=", python_number(Type::f64, bits_of(Type::f64, stored(param)))) : "");
    if (step_number) text += ", first_step=0";
    if (!last.empty()) text += join(", ", last);
    return text + ")";
  }

  /// All arguments by place, for the functions inside.
  std::string plain_arguments() const {
    return listed(arguments_) + (uses_step_index() ? ", first_step" : "");
  }
  std::string passed_on() const {
    std::string text = listed(inputs_);
    for (const Argument& state : states_) text += ", " + state.name;
    for (const Argument& param : params_) text += join(", ", param.name, "=", param.name);
    if (uses_step_index()) text += ", first_step=first_step";
    return text;
  }

  bool has_gradient(const std::string& argument) const {
    const std::vector<Buffer>& buffers = lowered_->plans.backward.buffers;
    return std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& buffer) {
      return buffer.name == argument &&
             (buffer.holds == Holds::grad_input || buffer.holds == Holds::grad_param ||
              buffer.holds == Holds::grad_first_state);
    });
  }

  // ---- launches -----------------------------------------------------------------------------------------

  std::string made(const Buffer& buffer, std::string_view shape) const {
    return join("torch.empty(", shape, ", dtype=", torch_type(buffer.mem), ", device=device)");
  }

  /// The launch of a kernel on variables with the names of its buffers.
  static std::string launch(const Plan& plan, const TritonKernel& kernel, const std::string& name,
                            const std::string& kind) {
    std::string text =
        join("        BLOCK, warps = BLOCKS[\"", kind, "\"]\n        with on_device(device):\n            ",
             name, "[(triton.cdiv(N, BLOCK),)](\n");
    std::string line;
    int buffer = no_buffer;
    const auto end = [&] {
      if (!line.empty()) text += join("                ", line, ",\n");
      line.clear();
    };
    for (const TritonArgument& argument : kernel.arguments) {
      if (argument.buffer != buffer || argument.what == What::steps || argument.what == What::block) end();
      buffer = argument.buffer;
      line += (line.empty() ? "" : ", ") + passed(plan, argument);
    }
    end();
    return text + "                num_warps=warps, enable_fp_fusion=False,\n            )\n";
  }

  static std::string passed(const Plan& plan, const TritonArgument& argument) {
    const auto name = [&] { return python_name(plan.buffers[argument.buffer]); };
    const bool is_param = argument.buffer != no_buffer && plan.buffers[argument.buffer].holds == Holds::param;
    switch (argument.what) {
      case What::pointer:
        return is_param ? name() + ".values" : name();
      case What::row_stride:
        if (is_param) return name() + ".stride";
        return plan.buffers[argument.buffer].holds >= Holds::grad_output
                   ? join("0 if ", name(), " is None else ", name(), ".stride(0)")
                   : name() + ".stride(0)";
      case What::inner:
        return name() + ".inner";
      case What::count:
        return name() + ".count";
      case What::is_scalar:
        return plan.buffers[argument.buffer].name + ".count == 1";
      case What::steps:
        return "T";
      case What::elements:
        return "N";
      case What::first_step:
        return "first_step";
      case What::block:
        return "BLOCK";
      case What::levels:
        return "BLOCK.bit_length() - 1";
      case What::segment:
        return "SEGMENT";
    }
    internal_error("unknown argument", std::source_location::current());
  }

  static std::string sizes() { return "    T, *step = shape\n    N = math.prod(step)\n"; }

  /// Lines that check the arguments and give them the names of buffers.
  std::string prepared_arguments() const {
    std::string text =
        join("    shape, device = ", inputs_[0].name, ".shape, ", inputs_[0].name, ".device\n") + sizes();
    for (const Argument& input : inputs_)
      text += join("    ", input.name, " = as_rows(\"", input.name, "\", ", input.name, ", ",
                   torch_type(input.mem), ", shape)\n");
    for (const Argument& state : states_)
      text += join("    ", state.name, "_first = as_state(\"", state.name, "\", ", state.name, ", ",
                   torch_type(state.mem), ", step)\n");
    for (const Argument& param : params_) text += prepared_param(param);
    return text;
  }

  static std::string prepared_param(const Argument& param) {
    return join("    ", param.name, " = as_parameter(\"", param.name, "\", ", param.name, ", ",
                torch_type(param.mem), ", device, step", param.per_step ? ", T" : "", ")\n");
  }

  /// Lines that make room for outputs and states, and fill in the states where there are no steps.
  std::string made_results(const Plan& plan, const std::set<std::string>& sequences_needed) const {
    std::string text;
    for (const Buffer& buffer : plan.buffers) {
      const std::string name = python_name(buffer);
      if (buffer.holds == Holds::output && buffer.write)
        text += join("    ", name, " = ", made(buffer, "shape"), "\n");
      if (buffer.holds == Holds::state_sequence)
        text += join("    ", name, " = ", made(buffer, "shape"),
                     sequences_needed.contains(buffer.name) ? "" : " if sequences else None", "\n");
      if (buffer.holds == Holds::last_state) {
        const Argument& state = argument_named(buffer.name);
        const std::string initial =
            python_number(value_type(state.mem), bits_of(value_type(state.mem), stored(state)));
        text += join("    ", name, " = None if sequences else ", made(buffer, "step"), "\n    if T == 0 and ",
                     name, " is not None:\n        ", name, ".copy_(", state.name, "_first) if ", state.name,
                     "_first is not None else ", name, ".fill_(", initial, ")\n");
      }
    }
    return text;
  }

  const Argument& argument_named(const std::string& name) const {
    return *std::find_if(arguments_.begin(), arguments_.end(),
                         [&](const Argument& a) { return a.name == name; });
  }

  /// "(out_s, v_sequence if sequences else v_last)"
  std::string results() const {
    std::string text;
    for (const Result& output : outputs_) text += join("out_", output.name, ", ");
    for (const Argument& state : states_)
      text += join(state.name, "_sequence if sequences else ", state.name, "_last, ");
    return "(" + text + ")";
  }

  std::string inference_text() const {
    std::string text;
    for (const bool sequences : {true, false})
      text +=
          join("def inference", sequences ? "" : "_final_state", signature(""), ":\n    \"\"\"Outputs and ",
               sequences ? "all states, [T, ...]" : "the last states", ".\"\"\"\n    return run_inference(",
               plain_arguments(), ", ", sequences ? "True" : "False", ")\n\n\n");
    return join(text, "def run_inference(", plain_arguments(), ", sequences):\n", prepared_arguments(),
                made_results(inference_, {}), "    if T > 0 and N > 0:\n",
                launch(inference_, inference_kernel_, name_ + "_inference_kernel", "inference"),
                "    return ", results(), "\n\n\n");
  }

  // ---- training -----------------------------------------------------------------------------------------

  /// What backward reads of forward, in order: beside parameters, which it gets all.
  std::vector<Buffer> read_by_backward() const {
    std::vector<Buffer> reads;
    for (const Buffer& buffer : lowered_->plans.backward.buffers)
      if (!buffer.write && buffer.holds != Holds::param && buffer.holds < Holds::grad_output)
        reads.push_back(buffer);
    return reads;
  }

  std::set<std::string> sequences_needed() const {
    std::set<std::string> names;
    for (const Buffer& buffer : read_by_backward())
      if (buffer.holds == Holds::state_sequence) names.insert(buffer.name);
    return names;
  }

  std::string forward_text() const {
    const Plan& plan = lowered_->plans.forward;
    std::string text =
        join("def forward", signature("sequences=False"),
             ":\n    \"\"\"Outputs and states as of inference, and what backward reads.\"\"\"\n",
             prepared_arguments(), made_results(plan, sequences_needed()));
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.holds == Holds::saved)
        text += join("    ", python_name(buffer), " = ", made(buffer, "shape"), "\n");
      if (buffer.holds == Holds::checkpoint)
        text += join("    ", python_name(buffer), " = ", made(buffer, "(max(T - 1, 0) // SEGMENT, N)"), "\n");
    }
    text += "    if T > 0 and N > 0:\n" + launch(plan, forward_kernel_, name_ + "_forward_kernel", "forward");
    std::string saved;
    for (const Buffer& buffer : read_by_backward()) saved += python_name(buffer) + ", ";
    for (const Argument& param : params_) saved += param.name + ".given, ";
    return text + "    return " + results() + ", (" + saved + ")\n\n\n";
  }

  std::string backward_text() const {
    const Plan& plan = lowered_->plans.backward;
    std::string grads, names;
    for (const Result& output : outputs_) grads += join("grad_out_", output.name, ", ");
    for (const Argument& state : states_) grads += join("grad_", state.name, ", ");
    for (const Buffer& buffer : read_by_backward()) names += python_name(buffer) + ", ";
    for (const Argument& param : params_) names += param.name + ", ";
    std::string text = join(
        "def backward(grads, saved, shape, sequences=False, wanted=None",
        uses_step_index() ? ", first_step=0" : "",
        "):\n    \"\"\"Gradients of all arguments in order, None where one is not wanted or not there.\n\n"
        "    grads: of outputs, then of states, as forward returned them; any may be None.\n    \"\"\"\n",
        sizes(), "    wanted = (True,) * ", arguments_.size(), " if wanted is None else wanted\n");
    text += "    device = next(tensor.device for tensor in (*grads, *saved) if tensor is not None)\n";
    text += join("    ", grads, "= grads\n");
    if (!names.empty()) text += join("    ", names, "= saved\n");
    for (const Buffer& buffer : plan.buffers) {
      const std::string name = python_name(buffer);
      const auto checked = [&](const std::string& from) {
        return join("as_rows(\"", name, "\", ", from, ", ", torch_type(buffer.mem), ", shape)");
      };
      const auto grad = join("grad_", buffer.name);
      if (buffer.holds == Holds::output || buffer.holds == Holds::state_sequence ||
          buffer.holds == Holds::input)
        text += join("    ", name, " = ", checked(name), "\n");
      if (buffer.holds == Holds::grad_output)
        text += join("    ", name, " = None if ", name, " is None else ", checked(name), "\n");
      if (buffer.holds == Holds::grad_state_sequence)
        text +=
            join("    ", name, " = ", checked(grad), " if sequences and ", grad, " is not None else None\n");
      if (buffer.holds == Holds::grad_last_state)
        text += join("    ", name, " = None if sequences else as_state(\"", name, "\", ", grad, ", ",
                     torch_type(buffer.mem), ", step)\n");
      if (buffer.holds == Holds::saved || buffer.holds == Holds::checkpoint)
        text += join("    ", name, " = ", name, ".contiguous()\n");
    }
    for (const Argument& param : params_) text += prepared_param(param);
    std::string zeros, returned, sums;
    const std::string block = "BLOCKS[\"backward\"][0]";
    for (std::size_t a = 0; a < arguments_.size(); ++a) {
      const Argument& argument = arguments_[a];
      if (!has_gradient(argument.name)) {
        returned += "None, ";
        continue;
      }
      const bool is_param = argument.role == Role::param;
      const std::string name = join("grad_", argument.name, argument.role == Role::state ? "_first" : "");
      const Mem mem = gradient_memory(argument);
      const std::string size =
          argument.role == Role::input   ? "shape"
          : argument.role == Role::state ? "step"
          : argument.per_step            ? "(T, N)"
                              : join("triton.cdiv(N, ", block, ") if ", argument.name, ".count == 1 else N");
      text += join("    ", name, " = torch.empty(", size, ", dtype=", torch_type(mem),
                   ", device=device) if wanted[", a, "] else None\n");
      if (argument.role == Role::state)
        zeros += join("        if ", name, " is not None:\n            ", name, ".zero_() if grad_",
                      argument.name, "_last is None else ", name, ".copy_(grad_", argument.name, "_last)\n");
      if (!is_param) {
        returned += mem == argument.mem ? name + ", "
                                        : join("None if ", name, " is None else ", name, ".to(",
                                               torch_type(argument.mem), "), ");
        continue;
      }
      const std::string shape =
          join(argument.per_step ? "(T, *" : "", argument.name, ".shape", argument.per_step ? ")" : "");
      zeros += join("        if ", name, " is not None:\n            ", name, " = torch.zeros(", shape,
                    ", dtype=", torch_type(argument.mem), ", device=device)\n");
      sums += join("        if ", name, " is not None:\n            ", name, " = sum_gradient(", name, ", ",
                   argument.per_step ? "T" : "1", ", ", argument.name, ").view(", shape, ").to(",
                   torch_type(argument.mem), ")\n");
      returned += name + ", ";
    }
    text += "    if T > 0 and N > 0:\n" +
            launch(plan, backward_kernel_, name_ + "_backward_kernel", "backward") + sums;
    if (!zeros.empty()) text += "    else:\n" + zeros;
    return text + "    return (" + returned + ")\n\n\n";
  }

  std::string autograd_text() const {
    const bool step_number = uses_step_index();
    std::string still;
    std::size_t place = 0;
    const auto note = [&](bool carries) {
      if (!carries) still += join(still.empty() ? "" : ", ", "results[", place, "]");
      ++place;
    };
    for (const Result& output : outputs_)
      note(std::any_of(
          lowered_->joint.arguments.begin(), lowered_->joint.arguments.end(), [&](const Argument& a) {
            return a.role == Role::grad_output && lowered_->joint.results[a.of].name == output.name;
          }));
    for (const Argument& state : states_)
      note(std::any_of(
          lowered_->joint.arguments.begin(), lowered_->joint.arguments.end(), [&](const Argument& a) {
            return a.role == Role::grad_next && lowered_->joint.arguments[a.of].name == state.name;
          }));
    const std::string number = step_number ? ", first_step" : "";
    return join("class ", name_,
                "_training(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, sequences",
                number, ", ", listed(arguments_), "):\n        results, saved = forward(", passed_on(),
                ", sequences=sequences)\n        ctx.save_for_backward(*saved)\n        ctx.call = (",
                inputs_[0].name, ".shape, sequences", step_number ? ", first_step" : "", ")\n",
                still.empty() ? "" : join("        ctx.mark_non_differentiable(", still, ")\n"),
                "        ctx.set_materialize_grads(False)\n        return results\n\n"
                "    @staticmethod\n    @torch.autograd.function.once_differentiable\n    def backward(ctx, "
                "*grads):\n"
                "        shape, sequences",
                step_number ? ", first_step" : "",
                " = ctx.call\n"
                "        wanted = ctx.needs_input_grad[",
                step_number ? 2 : 1,
                ":]\n        gradients = backward(grads, ctx.saved_tensors, shape, sequences, wanted",
                step_number ? ", first_step" : "", ")\n        return (None, ", step_number ? "None, " : "",
                "*gradients)\n\n\n");
  }

  std::string neuron_text() const {
    std::string text = join("def ", name_, signature("sequences=False"), ":\n    \"\"\"Outputs, then ",
                            "the last states, or all of them with sequences=True.\"\"\"\n");
    const std::string number = uses_step_index() ? ", first_step" : "";
    if (lowered_)
      text += join(
          "    arguments = (", listed(arguments_), arguments_.size() == 1 ? ",)" : ")",
          "\n    trained = any(isinstance(each, torch.Tensor) and each.requires_grad for each in arguments)\n"
          "    if trained and torch.is_grad_enabled():\n        return ",
          name_, "_training.apply(sequences", number, ", *arguments)\n");
    return join(text, "    return run_inference(", plain_arguments(), ", sequences)\n");
  }

  const Graph step_;
  const Training training_;
  std::string name_;
  std::vector<Argument> inputs_, states_, params_, arguments_;
  std::vector<Result> outputs_;
  std::map<std::string, double> initial_;
  Plan inference_;
  std::optional<Lowered> lowered_;
  TritonKernel inference_kernel_, forward_kernel_, backward_kernel_;
};

}  // namespace

std::string emit_triton(const Graph& step, const Training& training) {
  Training chosen = training;
  // A module's kernels hold all steps of a segment in registers: with 16 of them an H200 took 1.6 times as
  // long for a LIF neuron, 8 x 4194304.
  if (chosen.costs.registers && !chosen.budget)
    chosen.costs.longest = std::min(chosen.costs.longest, chosen.costs.at_once);
  const IeeeEnvironment environment;  // constants may be subnormal
  return ModuleEmitter(step, chosen).emit();
}

std::string triton_module(const Neuron& neuron, const Training& training) {
  return emit_triton(neuron.graph(training.type), training);
}

}  // namespace flexsn
