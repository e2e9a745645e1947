// What Python asks about neurons: import, explain, show, check, as operators on text.
#include <torch/library.h>

#include <algorithm>

#include "build.h"
#include "error.h"
#include "export.h"
#include "grad.h"
#include "guarded.h"
#include "import.h"
#include "interpret.h"
#include "neuron.h"
#include "ops.h"
#include "text.h"
#include "triton_function.h"
#include "verify.h"

namespace flexsn {

using namespace ir;

namespace {

using Strings = std::vector<std::string>;
using Numbers = c10::Dict<std::string, double>;

std::string import_graph(const std::string& listing) {
  return guarded([&] { return import_listing(listing); });
}

/// What a text takes and gives: types of inputs, states, parameters and outputs.
std::tuple<Strings, Strings, Strings, Strings> signature(const std::string& text) {
  return guarded([&] {
    const NeuronHandle held = neuron_of(text);
    const TorchNeuron& neuron = *held;
    const auto types = [&](const std::vector<int>& places) {
      Strings out;
      for (int place : places) out.emplace_back(name_of(neuron.graph().arguments[place].mem));
      return out;
    };
    Strings outputs;
    for (int place : neuron.outputs()) outputs.emplace_back(name_of(neuron.graph().results[place].mem));
    return std::make_tuple(types(neuron.inputs()), types(neuron.states()), types(neuron.params()), outputs);
  });
}

/// The text with names for people: of the neuron, of its inputs, states and parameters, of its outputs, and
/// of the nodes at some places.
std::string named(const std::string& text, const std::string& name, const Strings& arguments,
                  const Strings& outputs, const std::vector<std::int64_t>& places, const Strings& locals) {
  return guarded([&] {
    Graph graph = parse(text, "neuron");
    graph.name = name;
    const auto next = [](const Strings& names, std::size_t& used) -> const std::string& {
      if (used == names.size()) user_error("flexsn: there are only ", names.size(), " names for a neuron");
      return names[used++];
    };
    std::size_t used = 0;
    for (Role role : {Role::input, Role::state, Role::param})
      for (Argument& argument : graph.arguments)
        if (argument.role == role) argument.name = next(arguments, used);
    used = 0;
    for (Result& result : graph.results)
      if (result.gives == Gives::output) result.name = next(outputs, used);
    for (std::size_t i = 0; i < places.size(); ++i) graph.debug.at(places[i]).name = locals.at(i);
    // A core may have an argument that is called like a gradient.
    std::set<std::string> taken(arguments.begin(), arguments.end());
    const auto gradient_of = [&](const std::string& of) {
      std::string gradient = "grad_" + of;
      while (!taken.insert(gradient).second) gradient += '_';
      return gradient;
    };
    for (Argument& argument : graph.arguments)
      if (argument.role == Role::grad_output)
        argument.name = gradient_of(graph.results[argument.of].name);
      else if (argument.role == Role::grad_next)
        argument.name = gradient_of(graph.arguments[argument.of].name);
    return print(verified(std::move(graph), "named"));
  });
}

Neuron read_neuron(const std::string& text) { return Neuron(parse(text, "neuron")); }

template <class Choice>
Choice choice(const char* what, const std::string& word, const std::map<std::string, Choice>& words) {
  if (const auto found = words.find(word); found != words.end()) return found->second;
  Strings known;
  for (const auto& [name, value] : words) known.push_back(name);
  user_error("flexsn: there is no ", what, " '", word, "'", did_you_mean(word, known));
}

Kind kind_named(const std::string& kind) {
  return choice<Kind>("kind of kernel", kind,
                      {{"inference", Kind::inference},
                       {"inference_final_state", Kind::inference_final_state},
                       {"forward", Kind::forward},
                       {"backward", Kind::backward}});
}

/// A stage of the pipeline, or the code of a kernel. No kind: the plans of training. `gpu`: as a GPU runs it.
std::string show_text(const std::string& text, const std::string& stage, const std::string& kind, bool gpu) {
  return guarded([&] {
    const Neuron neuron = read_neuron(text);
    if (stage == "llvm") return emit(neuron, kind_named(kind), Listing::llvm);
    if (stage == "asm") return emit(neuron, kind_named(kind), Listing::assembly);
    ShowOptions options;
    options.stage = choice<Stage>("stage", stage,
                                  {{"step", Stage::step},
                                   {"expanded", Stage::expanded},
                                   {"joint", Stage::joint},
                                   {"forward", Stage::forward},
                                   {"backward", Stage::backward},
                                   {"plan", Stage::plan}});
    if (!kind.empty()) options.kind = kind_named(kind);
    if (gpu) options.training.costs = cost_model_named("gpu");
    if (options.stage >= Stage::joint) return show(neuron, options);
    // What torch traced has its gradients in the same graph.
    return show(Neuron(forward_of(neuron.graph())), options);
  });
}

/// The neuron in a format that others read; no kind: that of inference, or all.
std::string export_text(const std::string& text, const std::string& format, const std::string& kind,
                        bool sequences, bool defaults) {
  return guarded([&] {
    Training training;
    training.state_sequences = sequences;
    training.costs = cost_model_named("gpu");
    const std::optional<Kind> chosen = kind.empty() ? std::nullopt : std::optional(kind_named(kind));
    Graph graph = parse(text, "neuron");
    for (Argument& argument : graph.arguments)
      if (argument.role == Role::param && !defaults) argument.has_default = false;
    return exported(Neuron(std::move(graph)), format, chosen, training);
  });
}

/// A step without states as a Triton device function.
std::string triton_function(const std::string& text, const std::string& name, const Strings& arguments) {
  return guarded([&] { return emit_triton_function(parse(text, "graph"), name, arguments); });
}

/// The text of an explanation, why there is no training, figures by name, what is saved, what runs again.
/// `gpu`: the number of the one that is meant; negative: none.
std::tuple<std::string, std::string, Numbers, Strings, Strings> explain_text(
    const std::string& text, std::int64_t steps, const std::vector<std::int64_t>& shape,
    const std::vector<std::vector<std::int64_t>>& param_shapes, bool given_states, bool sequences,
    const std::vector<std::int64_t>& wanted, std::int64_t gpu,
    const std::vector<std::int64_t>& entries_at_once) {
  return guarded([&] {
    const NeuronHandle held = neuron_of(text);
    const TorchNeuron& known = *held;
    ExplainOptions options;
    if (gpu >= 0) {
      options.training.costs = cost_model_named("gpu");
      options.device = static_cast<int>(gpu);
    }
    options.steps = steps;
    options.shape = shape;
    options.given_states = given_states;
    options.training.state_sequences = sequences;
    if (param_shapes.size() != known.params().size())
      user_error("flexsn: expected ", known.params().size(), " shapes of parameters, found ",
                 param_shapes.size());
    for (std::size_t i = 0; i < param_shapes.size(); ++i)
      options.param_shapes[known.graph().arguments[known.params()[i]].name] = param_shapes[i];
    if (entries_at_once.size() > known.arguments().size())
      user_error("flexsn: expected how ", known.arguments().size(), " arguments lie at most, found ",
                 entries_at_once.size());
    for (std::size_t i = 0; i < entries_at_once.size(); ++i) {
      const int argument = known.arguments()[i];
      options.entries_at_once[known.graph().arguments[argument].name] = static_cast<int>(entries_at_once[i]);
    }
    for (std::int64_t place : wanted) {
      if (place < 0 || static_cast<std::size_t>(place) >= known.arguments().size())
        user_error("flexsn: there is no argument ", place, " to take a gradient of; there are ",
                   known.arguments().size());
      if (const int argument = known.arguments()[place]; known.differentiable(argument))
        options.training.wanted.push_back(known.graph().arguments[argument].name);
    }

    const Explanation found = explain(read_neuron(text), options);
    Numbers numbers;
    const auto note = [&](const std::string& name, auto value) {
      numbers.insert(name, static_cast<double>(value));
    };
    const auto note_kernels = [&](const std::vector<Traffic>& kernels) {
      for (const Traffic& kernel : kernels) {
        note("bytes_read_by_" + kernel.kernel, kernel.read);
        note("bytes_written_by_" + kernel.kernel, kernel.written);
      }
    };
    note_kernels(found.inference);
    note("inference_passes", found.inference_passes);
    if (found.untrainable.empty()) {
      note_kernels(found.training);
      note("training_passes", found.training_passes);
      note("training_floor_bytes", found.floor);
      note("training_to_floor", found.ratio);
      note("forward_ops", found.forward_ops);
      note("backward_ops", found.backward_ops);
      note("steps_between_checkpoints", found.segment);
      note("bytes_kept_alive", found.kept_alive);
    }
    for (const GpuKernel& kernel : found.gpu) {
      note("elements_a_thread_of_" + kernel.kernel, kernel.elements_a_thread);
      note("threads_a_block_of_" + kernel.kernel, kernel.threads_a_block);
      note("steps_at_once_of_" + kernel.kernel, kernel.steps_at_once);
      note("bytes_for_each_step_of_" + kernel.kernel, kernel.bytes);
      note("instructions_of_" + kernel.kernel, kernel.instructions);
      note("most_instructions_of_" + kernel.kernel, kernel.most_instructions);
      for (const GpuEntry& entry : kernel.compiled) {
        note(join("registers_of_", kernel.kernel, "_in_", entry.entry), entry.registers);
        note(join("local_bytes_of_", kernel.kernel, "_in_", entry.entry), entry.local_bytes);
      }
    }
    Strings saved;
    for (const SavedValue& value : found.saved) saved.push_back(join(value.name, ": ", value.reason));
    return std::make_tuple(found.text, found.untrainable, numbers, saved, found.recomputed);
  });
}

/// What `flexsn check` finds: names, whether they passed, details, whether they were left out.
std::tuple<Strings, c10::List<bool>, Strings, c10::List<bool>> check_text(const std::string& text,
                                                                          std::int64_t seed) {
  return guarded([&] {
    Strings what, detail;
    c10::List<bool> passed, left_out;
    for (const Check& found : check(read_neuron(text), Mem::f32, static_cast<std::uint64_t>(seed))) {
      what.push_back(found.what);
      passed.push_back(found.passed);
      detail.push_back(found.detail);
      left_out.push_back(found.left_out);
    }
    return std::make_tuple(what, passed, detail, left_out);
  });
}

bool compares_floats(const Graph& graph, const Node& node) {
  constexpr Op comparisons[] = {Op::lt, Op::le, Op::gt, Op::ge, Op::eq, Op::ne};
  return std::find(std::begin(comparisons), std::end(comparisons), node.op) != std::end(comparisons) &&
         is_float(graph.at(node.operands[0]).type);
}

/// The results of one step of one element. `values` are those of inputs, states and parameters; gradients
/// that arrive are zeros.
std::vector<double> on_one_element(const Graph& graph, const std::vector<double>& values) {
  std::vector<Array> memory(graph.arguments.size()), found;
  std::size_t next = 0;
  for (Role role : {Role::input, Role::state, Role::param, Role::grad_output, Role::grad_next})
    for (std::size_t a = 0; a < memory.size(); ++a)
      if (graph.arguments[a].role == role) {
        const bool arrives = role == Role::grad_output || role == Role::grad_next;
        if (!arrives && next == values.size())
          user_error("flexsn: there are more arguments than the ", values.size(), " values of one element");
        memory[a] = Array(graph.arguments[a].mem, {1}, arrives ? 0 : values[next++]);
      }
  if (next != values.size())
    user_error("flexsn: expected ", next, " values of one element, found ", values.size());
  Scan scan;
  scan.steps = scan.elements = 1;
  for (const Array& array : memory) scan.sources.push_back({.mem = array.type, .data = array.bytes.data()});
  for (const Result& result : graph.results) found.emplace_back(result.mem, std::vector<std::int64_t>{1});
  for (Array& array : found) scan.targets.push_back({.sequence = array.bytes.data()});
  interpret(graph, scan);
  std::vector<double> results;
  for (const Array& array : found) results.push_back(array[0]);
  return results;
}

/// The comparisons of one step on one element: which they are, and their two sides.
std::tuple<Strings, std::vector<double>, std::vector<double>> comparisons(const std::string& text,
                                                                          const std::vector<double>& values) {
  return guarded([&] {
    Graph sides = forward_of(Neuron(parse(text, "neuron")).graph());
    sides.results.clear();
    Strings names;
    for (const Node& node : sides.nodes) {
      if (!compares_floats(sides, node)) continue;
      names.emplace_back(name_of(node.op));
      for (Id side : {node.operands[0], node.operands[1]})
        sides.results.push_back({.mem = natural_memory(sides.at(side).type), .value = side});
    }
    const std::vector<double> found = on_one_element(sides, values);
    std::vector<double> left, right;
    for (std::size_t i = 0; i < found.size(); i += 2) {
      left.push_back(found[i]);
      right.push_back(found[i + 1]);
    }
    return std::make_tuple(names, left, right);
  });
}

/// What the operations of a step come to on one element: the places of their nodes, types and values.
std::tuple<std::vector<std::int64_t>, Strings, std::vector<double>> step_values(
    const std::string& text, const std::vector<double>& values) {
  return guarded([&] {
    Graph all = parse(text, "neuron");
    all.results.clear();
    std::vector<bool> of_gradients(all.nodes.size());
    for (const Argument& argument : all.arguments)
      of_gradients[argument.value] = argument.role == Role::grad_output || argument.role == Role::grad_next;
    std::vector<std::int64_t> places;
    Strings types;
    for (Id id = 0; id < static_cast<Id>(all.nodes.size()); ++id) {
      const Node& node = all.at(id);
      for (Id operand : node.operands)
        if (operand != no_id && of_gradients[operand]) of_gradients[id] = true;
      if (node.operands[0] == no_id || of_gradients[id]) continue;
      places.push_back(id);
      types.emplace_back(name_of(node.type));
      all.results.push_back({.mem = natural_memory(node.type), .value = id});
    }
    return std::make_tuple(places, types, on_one_element(all, values));
  });
}

}  // namespace

}  // namespace flexsn

TORCH_LIBRARY_FRAGMENT(flexsn, m) {
  m.def("import_graph(str listing) -> str", &flexsn::import_graph);
  m.def("signature(str neuron) -> (str[], str[], str[], str[])", &flexsn::signature);
  m.def("named(str neuron, str name, str[] arguments, str[] outputs, int[] places, str[] locals) -> str",
        &flexsn::named);
  m.def("show(str neuron, str stage, str kind, bool gpu=False) -> str", &flexsn::show_text);
  m.def("triton_function(str neuron, str name, str[] arguments) -> str", &flexsn::triton_function);
  m.def("export(str neuron, str format, str kind, bool sequences, bool defaults=True) -> str",
        &flexsn::export_text);
  m.def(
      "explain(str neuron, int steps, int[] shape, int[][] param_shapes, bool given_states, bool sequences, "
      "int[] wanted, int gpu=-1, int[] entries_at_once=[]) -> (str, str, Dict(str, float), str[], str[])",
      &flexsn::explain_text);
  m.def("check(str neuron, int seed) -> (str[], bool[], str[], bool[])", &flexsn::check_text);
  m.def("comparisons(str neuron, float[] values) -> (str[], float[], float[])", &flexsn::comparisons);
  m.def("step_values(str neuron, float[] values) -> (int[], str[], float[])", &flexsn::step_values);
  m.def("version() -> str", [] { return std::string(flexsn::version()); });
}
