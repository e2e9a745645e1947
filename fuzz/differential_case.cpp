#include "differential_case.h"

#include <algorithm>

#include "bind.h"
#include "compile.h"
#include "error.h"
#include "ops.h"
#include "random_graph.h"
#include "text.h"
#include "train.h"

namespace flexsn::fuzz {

using namespace ir;
using test::Dice;

namespace {

/// Kernels and calls go by names, and a gradient by the name of an output or a state.
void make_names_unique(Graph& graph) {
  std::vector<std::string> taken;
  const auto settle = [&](std::string& name, const char* otherwise) {
    if (name.empty()) name = otherwise;
    while (std::find(taken.begin(), taken.end(), name) != taken.end()) name += "_";
    taken.push_back(name);
  };
  for (Argument& argument : graph.arguments) {
    settle(argument.name, argument.role == Role::input ? "x" : argument.role == Role::state ? "v" : "p");
    graph.debug[argument.value].name = argument.name;
  }
  for (Result& result : graph.results)
    if (result.gives == Gives::output) settle(result.name, "y");
}

class Drawing {
 public:
  explicit Drawing(std::uint64_t seed) : dice_(seed) {
    test::GraphMix mix{.min_ops = 1, .max_ops = 5};
    if (dice_.chance(0.2)) mix.max_ops = 14;
    if (dice_.chance(0.01)) mix.max_ops = 40;
    // Rows of many exact ops take long to compile.
    if (dice_.chance(0.6)) std::erase_if(mix.rows, [](Op op) { return row_of(op).is_expanded(); });
    case_.graph = test::random_graph(dice_.next(), mix);
    make_names_unique(case_.graph);
  }

  Case drawn() {
    draw_sizes();
    for (Argument& argument : case_.graph.arguments) draw_argument(argument);
    draw_training();
    return std::move(case_);
  }

 private:
  void draw_sizes() {
    std::int64_t steps = dice_.below(10);
    if (dice_.chance(0.03)) steps = 30 + dice_.below(100);
    constexpr std::int64_t some[] = {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 65, 100};
    std::vector<std::int64_t> shape;
    const int dims = dice_.pick(std::array{0, 1, 1, 1, 2, 2, 3, 4});
    for (int i = 0; i < dims; ++i) {
      const std::int64_t size = dims == 1 ? dice_.pick(some) : 1 + dice_.below(dims == 2 ? 9 : 4);
      shape.push_back(dice_.chance(0.02) ? 0 : size);
    }
    if (dims == 1 && dice_.chance(0.01)) shape[0] = 1020 + dice_.below(40);  // around a block of sums
    case_.arguments.steps = steps;
    case_.arguments.shape = shape;
    case_.arguments.first_step = dice_.pick(std::array<std::int64_t, 6>{0, 0, 0, 0, 1000, 2147483000});
    case_.arguments.state_sequences = dice_.chance(0.5);
    case_.padding = dice_.chance(0.3) ? 1 + dice_.below(5) : 0;
    case_.infers = dice_.chance(0.1);
    case_.cut = dice_.below(static_cast<int>(steps) + 1);
    // A chunk without steps gives zeros where the whole sequence knows that nothing arrives.
    if (case_.cut == steps && steps > 0) --case_.cut;
    edge_share_ = dice_.chance(0.3) ? 0 : dice_.uniform(0, 0.6);
  }

  Array drawn_array(std::vector<std::int64_t> shape, bool in_time, const Argument& argument) {
    if (in_time) shape.insert(shape.begin(), case_.steps());
    Array array(argument.mem, std::move(shape));
    test::draw_values(array, case_.graph, argument, edge_share_, dice_);
    return array;
  }

  void draw_argument(Argument& argument) {
    Arguments& given = case_.arguments;
    if (argument.role == Role::input) {
      given.inputs[argument.name] = drawn_array(case_.shape(), true, argument);
    } else if (argument.role == Role::state) {
      if (dice_.chance(0.6)) given.states[argument.name] = drawn_array(case_.shape(), false, argument);
    } else if (!argument.has_default || dice_.chance(0.8)) {
      const Array& array = given.params[argument.name] =
          drawn_array(param_shape(), argument.per_step, argument);
      // Rounding or a NaN may lead out of the range.
      if (!out_of_range(argument, array.bytes.data(), array.size()).empty()) argument.range = {};
    }
  }

  /// One number for all, or any shape that broadcasts to the step's.
  std::vector<std::int64_t> param_shape() {
    std::vector<std::int64_t> shape;
    if (dice_.chance(0.3)) return shape;
    for (std::int64_t size : case_.shape()) shape.push_back(dice_.chance(0.5) ? size : 1);
    while (!shape.empty() && shape[0] == 1 && dice_.chance(0.5)) shape.erase(shape.begin());
    return shape;
  }

  void draw_training() {
    const Graph step = compile(case_.graph, Stage::simplified);
    Training some;
    some.arriving.emplace();
    const double share = dice_.chance(0.5) ? 1 : 0.6;
    for (const Result& result : step.results)
      if (result.gives == Gives::output && is_float(value_type(result.mem)) && dice_.chance(share))
        some.arriving->push_back(result.name);
    Graph joint;
    try {
      joint = joint_of(step, some);
    } catch (const UserError&) {
      return;  // nothing carries a gradient
    }
    const bool sequences = case_.arguments.state_sequences;
    for (const Argument& argument : joint.arguments) {
      const bool at_output = argument.role == Role::grad_output, at_state = argument.role == Role::grad_next;
      if ((!at_output && !at_state) || (at_state && !dice_.chance(0.7))) continue;
      Argument arriving{.mem = argument.mem};
      const Argument* state = at_state ? &joint.arguments[argument.of] : nullptr;
      if (at_state) arriving.mem = state->mem;
      Array array = drawn_array(case_.shape(), at_output || sequences, arriving);
      if (at_state && !sequences) array = Array(argument.mem, array.shape, array.values());
      if (at_output)
        case_.arriving.outputs[joint.results[argument.of].name] = std::move(array);
      else
        case_.arriving.states[state->name] = std::move(array);
    }
    for (const Result& result : joint.results)
      if (result.gives == Gives::grad && dice_.chance(0.8))
        case_.wanted.push_back(joint.arguments[result.of].name);
    if (case_.wanted.empty()) case_.arriving = {};
    draw_plan();
  }

  void draw_plan() {
    Training& training = case_.training;
    training.state_sequences = case_.arguments.state_sequences;
    training.saving = static_cast<Saving>(dice_.below(4));
    if (training.saving == Saving::rebuild) training.segment = 2 << dice_.below(4);
    training.costs = cost_model_named(dice_.pick(std::array{"cpu", "gpu", "bytes"}));
    if (dice_.chance(0.3)) training.wanted = case_.wanted;
    if (!dice_.chance(0.3)) return;
    training.arriving.emplace();
    for (const auto& [name, array] : case_.arriving.outputs) training.arriving->push_back(name);
  }

  Dice dice_;
  Case case_;
  double edge_share_ = 0;
};

/// The array as numbers that read back to the same bits, so long as it is short.
std::string numbers_of(const Array& array) {
  constexpr std::int64_t most = 64;
  std::string text = join(name_of(array.type), " ", text_of(array.shape), " = [");
  for (std::int64_t n = 0; n < std::min(array.size(), most); ++n) text += join(n > 0 ? ", " : "", array[n]);
  return text + (array.size() > most ? ", ...]" : "]");
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += join(text.empty() ? "" : ", ", "'", name, "'");
  return text.empty() ? "none" : text;
}

}  // namespace

Case draw_case(std::uint64_t seed, std::uint64_t number) {
  Random random(seed);
  const std::uint64_t start = random.next();
  return Drawing(Random(start + number).next()).drawn();
}

Array array_of(const Case& one, const Argument& argument) {
  const Arguments& given = one.arguments;
  const auto& arrays = argument.role == Role::input   ? given.inputs
                       : argument.role == Role::state ? given.states
                                                      : given.params;
  const auto found = arrays.find(argument.name);
  if (found != arrays.end()) return found->second;
  std::vector<std::int64_t> shape;
  if (argument.role == Role::state) shape = one.shape();
  if (argument.role == Role::param && argument.per_step) shape = {one.steps()};
  return Array(argument.mem, shape, argument.initial);
}

std::string as_text(const Case& one) {
  constexpr const char* savings[] = {"automatic", "everything", "per_step", "rebuild"};
  const Training& training = one.training;
  std::string text = print(one.graph);
  const auto line = [&](const auto&... parts) { text += join("# ", parts..., "\n"); };
  line("T = ", one.steps(), ", step shape ", text_of(one.shape()), ", first step ", one.arguments.first_step,
       ", rows ", one.padding, " apart, ", one.arguments.state_sequences ? "all states" : "last states",
       ", cut at ", one.cut);
  const auto arrays = [&](const char* what, const std::map<std::string, Array>& list) {
    for (const auto& [name, array] : list) line(what, " '", name, "' : ", numbers_of(array));
  };
  arrays("input", one.arguments.inputs);
  arrays("state", one.arguments.states);
  arrays("param", one.arguments.params);
  if (!one.trains()) return text;
  arrays("gradient of output", one.arriving.outputs);
  arrays("gradient of state", one.arriving.states);
  line("wanted: ", list_of(one.wanted));
  line("plan: saving ", savings[static_cast<int>(training.saving)], ", segment ", training.segment,
       ", costs of ", training.costs.name, ", compiled for ",
       training.wanted.empty() ? "all" : list_of(training.wanted), ", arriving ",
       training.arriving ? list_of(*training.arriving) : "all");
  return text;
}

}  // namespace flexsn::fuzz
