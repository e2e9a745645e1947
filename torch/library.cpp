// The neurons and surrogates of the library for Python: as text for the operators, and op by op.
#include <torch/library.h>

#include "environment.h"
#include "guarded.h"
#include "library.h"
#include "ops.h"
#include "simplify.h"
#include "text.h"
#include "train.h"

namespace flexsn {

using namespace ir;

namespace {

using Strings = std::vector<std::string>;
using Reals = std::vector<double>;

Mem memory_named(const std::string& type) {
  if (const std::optional<Mem> mem = mem_named(type)) return *mem;
  user_error("flexsn: there is no type '", type, "'");
}

/// The neuron with these options, OPTION=VALUE each; `shown` is what errors call it.
Neuron library_neuron(const std::string& shown, const std::string& name, const Strings& options, bool open) {
  std::map<std::string, std::string> values;
  for (const std::string& option : options) {
    const std::size_t equals = option.find('=');
    values[option.substr(0, equals)] = option.substr(equals + 1);
  }
  return library::neuron_entry(name).make(values, {shown + ": "}, open);
}

/// The step, with its gradients where some arguments have none: an operator must not be asked for those.
Graph with_gradients(const Graph& step) {
  const auto names = [](const Graph& joint, bool constant) {
    Strings found;
    for (const Result& result : joint.results)
      if (result.gives == Gives::grad && (joint.at(result.value).op == Op::constant) == constant)
        found.push_back(joint.arguments[result.of].name);
    return found;
  };
  const Graph simple = simplify(step), joint = joint_of(simple, {});
  return names(joint, true).empty() ? step : joint_of(simple, {.wanted = names(joint, false)});
}

/// Its text for operators; then names of states with initial values, of parameters with defaults, the least
/// and the greatest that they may be and whether they have an entry for each step, and of outputs.
std::tuple<std::string, Strings, Reals, Strings, Reals, Reals, Reals, c10::List<bool>, Strings> neuron_text(
    const std::string& shown, const std::string& name, const Strings& options, const std::string& type,
    const std::string& param_type) {
  return guarded([&] {
    const IeeeEnvironment environment;  // options may be subnormal
    const Graph graph = library_neuron(shown, name, options, false).graph(memory_named(type));
    Strings states, params, outputs;
    Reals initial, defaults, least, greatest;
    c10::List<bool> per_step;
    for (const Argument& argument : graph.arguments) {
      if (argument.role == Role::state) {
        states.push_back(argument.name);
        initial.push_back(argument.initial);
      } else if (argument.role == Role::param) {
        params.push_back(argument.name);
        defaults.push_back(argument.initial);
        least.push_back(argument.range.low);
        greatest.push_back(argument.range.high);
        per_step.push_back(argument.per_step);
      }
    }
    for (const Result& result : graph.results)
      if (result.gives == Gives::output) outputs.push_back(result.name);
    Graph whole = with_gradients(graph);
    for (Argument& argument : whole.arguments)
      if (argument.role == Role::param) argument.mem = memory_named(param_type);
    return std::make_tuple(print(whole, {.lines = false}), states, initial, params, defaults, least, greatest,
                           per_step, outputs);
  });
}

/// A graph op by op, a line each: "input NAME TYPE", "state NAME TYPE", "param NAME TYPE", "constant VALUE
/// TYPE", "OP PLACE PLACE TYPE"; then its results, "output NAME PLACE TYPE" and "next STATE PLACE TYPE".
Strings listed(const Graph& graph) {
  Strings lines;
  for (const Node& node : graph.nodes) {
    if (node.op == Op::argument) {
      const Argument& argument = graph.arguments[node.immediate];
      const char* role = argument.role == Role::input   ? "input"
                         : argument.role == Role::state ? "state"
                         : argument.per_step            ? "step_param"
                                                        : "param";
      lines.push_back(join(role, " ", argument.name, " ", name_of(argument.mem)));
    } else if (node.op == Op::constant) {
      lines.push_back(join("constant ", number_of(node.type, node.immediate), " ", name_of(node.type)));
    } else {
      std::string line = std::string(name_of(node.op));
      for (Id operand : node.operands)
        if (operand != no_id) line += join(" ", operand);
      lines.push_back(join(line, " ", name_of(node.type)));
    }
  }
  for (const Result& result : graph.results)
    lines.push_back(join(result.gives == Gives::output ? "output " : "next ",
                         result.gives == Gives::output ? result.name : graph.arguments[result.of].name, " ",
                         result.value, " ", name_of(result.mem)));
  return lines;
}

/// The step of a neuron whose spike comes from outside: it has the input "spike" and the output "distance".
Strings open_step(const std::string& shown, const std::string& name, const Strings& options,
                  const std::string& type) {
  return guarded([&] {
    const IeeeEnvironment environment;
    return listed(simplify(library_neuron(shown, name, options, true).graph(memory_named(type))));
  });
}

/// What a surrogate computes of the distance u: "value", "derivative" or "smooth".
Strings surrogate_step(const std::string& surrogate, const std::string& what, const std::string& type) {
  return guarded([&] {
    const IeeeEnvironment environment;
    const Surrogate found = surrogate_named(surrogate);
    const auto step = [&](Step& s) {
      const Value u = s.input("u");
      if (what == "derivative") return s.output("y", found.derivative(u));
      if (what == "value") return s.output("y", detach(spike(u, found)));
      if (!found.smooth)
        user_error("surrogate '", found.name, "' has no smooth function; use it with spiking=True");
      s.output("y", found.smooth(u));
    };
    return listed(simplify(values_only(neuron(found.name, step).graph(memory_named(type)))));
  });
}

std::tuple<Strings, Strings, Strings> neurons_there_are() {
  Strings names, classes, options;
  for (const NeuronInfo& info : neuron_list()) {
    names.push_back(info.name);
    classes.push_back(info.python);
    options.push_back(info.options);
  }
  return {names, classes, options};
}

std::tuple<Strings, Strings> surrogates_there_are() {
  Strings names, options;
  for (const SurrogateInfo& info : surrogate_list()) {
    names.push_back(info.name);
    options.push_back(info.options);
  }
  return {names, options};
}

}  // namespace

}  // namespace flexsn

TORCH_LIBRARY_FRAGMENT(flexsn, m) {
  m.def(
      "library_neuron(str shown, str name, str[] options, str type, str param_type) -> "
      "(str, str[], float[], str[], float[], float[], float[], bool[], str[])",
      &flexsn::neuron_text);
  m.def("library_step(str shown, str name, str[] options, str type) -> str[]", &flexsn::open_step);
  m.def("surrogate_step(str surrogate, str what, str type) -> str[]", &flexsn::surrogate_step);
  m.def("library_neurons() -> (str[], str[], str[])", &flexsn::neurons_there_are);
  m.def("library_surrogates() -> (str[], str[])", &flexsn::surrogates_there_are);
}
