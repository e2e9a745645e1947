#include "bind.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace flexsn {

using namespace ir;

namespace {

std::string_view word_of(Role role) {
  return role == Role::input ? "input" : role == Role::state ? "state" : "param";
}

std::string called(const Argument& argument) {
  return join(word_of(argument.role), " '", argument.name, "'");
}

}  // namespace

std::string out_of_range(const Argument& argument, const void* data, std::int64_t count) {
  const Range& range = argument.range;
  if (range.low == Range().low && range.high == Range().high) return "";
  // The limits as a float has them, so that a limit itself is inside; -1 as a bool would be true. The number
  // next to one that a float has says that all beyond that one are meant, as in "above 1".
  const auto limit = [&](double value, double beyond) {
    if (!is_float(value_type(argument.mem))) return value;
    const double rounded = Array(argument.mem, {1}, value)[0];
    return std::nextafter(rounded, beyond) == value ? value : rounded;
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double low = limit(range.low, infinity), high = limit(range.high, -infinity);
  const auto size = static_cast<std::int64_t>(size_of(argument.mem));
  const auto wrong = [&]<class T>(T) -> std::string {
    constexpr std::int64_t block = 256;
    T values[block];
    for (std::int64_t first = 0; first < count; first += block) {
      const std::int64_t some = std::min(block, count - first);
      load(argument.mem, static_cast<const std::byte*>(data) + first * size, values, some);
      for (std::int64_t n = 0; n < some; ++n) {
        const auto value = static_cast<double>(values[n]);
        if (!(value >= low && value <= high))
          return join("param '", argument.name, "' has the value ", value, " at place ", first + n,
                      ", which is outside its range [", range.low, ", ", range.high,
                      "]; change the value, or the range where the parameter is declared");
      }
    }
    return "";
  };
  switch (value_type(argument.mem)) {
    case Type::f32:
      return wrong(float());
    case Type::f64:
      return wrong(double());
    case Type::i32:
      return wrong(std::int32_t());
    case Type::b1:
      return wrong(bool());
  }
  return "";
}

std::string wrong_first_step(const Graph& graph, std::int64_t first, std::int64_t steps) {
  if (first < 0) return join("first_step must be at least 0, found ", first);
  constexpr std::int64_t numbers = std::int64_t{1} << 31;
  if (first <= numbers - std::min(steps, numbers)) return "";
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(),
                   [](const Node& node) { return node.op == Op::step_index; }))
    return "";
  return join("it reads the number of the step, an i32, so first_step + T must be at most ", numbers,
              ", found ", first, " + ", steps, "; start again from 0, or count in a state");
}

Binding::Binding(const Graph& graph, const Arguments& arguments) : graph_(graph), arguments_(arguments) {
  for (Role role : {Role::input, Role::state, Role::param}) check_names(role);
  find_shape();
  if (const std::string wrong = wrong_first_step(graph, arguments.first_step, steps_); !wrong.empty())
    fail(wrong);
}

const std::map<std::string, Array>& Binding::arrays(Role role) const {
  return role == Role::input   ? arguments_.inputs
         : role == Role::state ? arguments_.states
                               : arguments_.params;
}

void Binding::check_names(Role role) const {
  std::vector<std::string> names;
  for (const Argument& argument : graph_.arguments)
    if (argument.role == role) names.push_back(argument.name);
  for (const auto& [name, array] : arrays(role))
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail("there is no ", word_of(role), " '", name, "'", which_there_are(name, names),
           names.empty() ? join("; the neuron has no ", word_of(role)) : "");
}

void Binding::check_array(const std::string& what, Mem mem, const Array& array) const {
  if (array.type != mem)
    fail(what, " must be ", name_of(mem), ", found ", name_of(array.type),
         "; convert the array, or trace the neuron for another type");
  if (array.bytes.size() != static_cast<std::size_t>(array.size()) * size_of(array.type))
    fail(what, " has ", array.bytes.size(), " bytes, but its shape ", text_of(array.shape), " needs ",
         static_cast<std::size_t>(array.size()) * size_of(array.type));
}

/// T and the step's shape come from the inputs, else from what the caller says.
void Binding::find_shape() {
  std::optional<std::int64_t> steps = arguments_.steps;
  std::optional<Shape> shape = arguments_.shape;
  if (steps && *steps < 0) fail("the number of steps must not be negative, found ", *steps);
  for (const Argument& argument : graph_.arguments) {
    if (argument.role != Role::input) continue;
    const auto found = arguments_.inputs.find(argument.name);
    if (found == arguments_.inputs.end())
      fail("input '", argument.name, "' is missing; give an array of shape [T, step shape]");
    const Array& array = found->second;
    check_array(called(argument), argument.mem, array);
    if (array.shape.empty())
      fail("input '", argument.name, "' has no time dimension; its shape must be [T, step shape]");
    const Shape step(array.shape.begin() + 1, array.shape.end());
    if (steps && *steps != array.shape[0])
      fail("input '", argument.name, "' has ", array.shape[0], " steps, but ", *steps,
           " are expected; all sequences of a run have one length");
    if (shape && *shape != step)
      fail("input '", argument.name, "' has the step shape ", text_of(step), ", but ", text_of(*shape),
           " is expected; all inputs of a run have one shape");
    steps = array.shape[0];
    shape = step;
  }
  if (!steps) fail("it has no input, so the number of steps must be given (Arguments::steps)");
  if (!shape && !arguments_.states.empty()) shape = arguments_.states.begin()->second.shape;
  if (!shape) fail("it has no input, so the step's shape must be given (Arguments::shape)");
  steps_ = *steps;
  shape_ = *shape;
  elements_ = 1;
  for (std::int64_t dim : shape_) {
    if (dim < 0) fail("the step's shape ", text_of(shape_), " must not be negative");
    if (__builtin_mul_overflow(elements_, dim, &elements_))
      fail("the step's shape ", text_of(shape_), " has too many elements");
  }
}

Source Binding::source(const Argument& argument) {
  const auto& given_arrays = arrays(argument.role);
  const auto found = given_arrays.find(argument.name);
  if (found == given_arrays.end() && argument.role == Role::param && !argument.has_default)
    fail("param '", argument.name,
         "' is missing and has no default; give an array that broadcasts to the step's shape");
  if (found == given_arrays.end()) {
    const Array& standing =
        *defaults_.emplace_back(std::make_unique<Array>(argument.mem, Shape{1}, argument.initial));
    return {.mem = argument.mem, .data = standing.bytes.data(), .map = Map::scalar};
  }
  const Array& array = found->second;
  check_array(called(argument), argument.mem, array);
  if (argument.role == Role::input)
    return {.mem = argument.mem, .data = array.bytes.data(), .row_stride = elements_};
  if (argument.role == Role::state) {
    if (array.shape != shape_)
      fail("state '", argument.name, "' has shape ", text_of(array.shape), ", but the step's shape is ",
           text_of(shape_), "; reset the state (leave it out to start from its initial value)");
    return {.mem = argument.mem, .data = array.bytes.data()};
  }
  if (const std::string wrong = out_of_range(argument, array.bytes.data(), array.size()); !wrong.empty())
    fail(wrong);
  return param_source(argument, array);
}

Source Binding::given(const std::string& what, Mem mem, const Array& array, bool sequence) const {
  check_array(what, mem, array);
  Shape expected = shape_;
  if (sequence) expected.insert(expected.begin(), steps_);
  if (array.shape != expected)
    fail(what, " has shape ", text_of(array.shape), ", but ", text_of(expected), " is expected");
  return {.mem = mem, .data = array.bytes.data(), .row_stride = sequence ? elements_ : 0};
}

Shape Binding::param_shape(const Argument& argument) const {
  const auto found = arguments_.params.find(argument.name);
  if (found == arguments_.params.end()) return {};
  return Shape(found->second.shape.begin() + argument.per_step, found->second.shape.end());
}

/// A parameter broadcasts to the step's shape from the right; a per-step one has T in front.
Source Binding::param_source(const Argument& argument, const Array& array) {
  Shape shape = array.shape;
  if (argument.per_step) {
    if (shape.empty() || shape[0] != steps_)
      fail("param '", argument.name, "' changes with time, so its shape must start with T = ", steps_,
           ", found ", text_of(shape));
    shape.erase(shape.begin());
  }
  const std::optional<Broadcast> found = broadcast(shape_, shape);
  if (!found)
    fail("param '", argument.name, "' has shape ", text_of(shape),
         ", which does not broadcast to the step's shape ", text_of(shape_),
         "; each dimension, counted from the right, must be 1 or equal, and there may be no more of them");
  Source source{.mem = argument.mem,
                .data = array.bytes.data(),
                .row_stride = argument.per_step ? elements_of(shape) : 0,
                .map = found->spread ? Map::indexed : found->map};
  if (source.map == Map::indexed) source.indices = indices(shape).data();
  return source;
}

/// Where each element of the step finds its entry in a parameter of this shape.
const std::vector<std::int64_t>& Binding::indices(const Shape& shape) {
  std::vector<std::int64_t> entries(static_cast<std::size_t>(elements_of(shape)));
  std::iota(entries.begin(), entries.end(), 0);
  std::vector<std::int64_t>& table = *indices_.emplace_back(
      std::make_unique<std::vector<std::int64_t>>(static_cast<std::size_t>(elements_)));
  spread_out(shape_, shape, sizeof(std::int64_t), 1, entries.data(), table.data());
  return table;
}

}  // namespace flexsn
