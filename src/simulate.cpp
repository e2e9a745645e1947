// simulate: a neuron driven by a simple input, every step as a line of CSV.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>

#include "error.h"
#include "literal.h"
#include "random.h"
#include "text.h"

namespace flexsn {

using namespace ir;

namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(blanks);
  return first == std::string_view::npos
             ? ""
             : std::string(text.substr(first, text.find_last_not_of(blanks) - first + 1));
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// What an input does over time: a value for each step and element.
using Signal = std::function<double(std::int64_t t)>;

class Source {
 public:
  Source(std::string input, const std::string& spec, std::int64_t steps)
      : input_(std::move(input)), spec_(spec), steps_(steps) {}

  Signal signal() const {
    const std::vector<std::string> parts = split(spec_, ':');
    if (parts[0] == "step") return step(numbers(parts, 1, 2));
    if (parts[0] == "ramp") return ramp(numbers(parts, 2, 2));
    if (parts[0] == "noise") return noise(parts, numbers(parts, 1, 3));
    if (spec_.ends_with(".csv")) return column(spec_);
    fail("expected step:LEVEL[:START], ramp:FROM:TO, noise:SEED[:LOW:HIGH] or a .csv file");
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    user_error("input '", input_, "' = '", spec_, "': ", message);
  }

  std::vector<double> numbers(const std::vector<std::string>& parts, std::size_t least,
                              std::size_t most) const {
    std::vector<double> values;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const std::optional<double> value = number(parts[i]);
      if (!value) fail(join("'", parts[i], "' is not a number"));
      values.push_back(*value);
    }
    if (values.size() < least || values.size() > most)
      fail(join("expected ", least, least == most ? "" : join(" to ", most),
                most == 1 ? " number" : " numbers", " after '", parts[0], ":', found ", values.size()));
    return values;
  }

  static Signal step(std::vector<double> v) {
    const double start = v.size() > 1 ? v[1] : 0;
    return [level = v[0], start](std::int64_t t) { return static_cast<double>(t) >= start ? level : 0; };
  }

  Signal ramp(std::vector<double> v) const {
    const double last = steps_ > 1 ? static_cast<double>(steps_ - 1) : 1;
    return [from = v[0], to = v[1], last](std::int64_t t) {
      return from + (to - from) * (static_cast<double>(t) / last);
    };
  }

  Signal noise(const std::vector<std::string>& parts, std::vector<double> v) const {
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(parts[1].data(), parts[1].data() + parts[1].size(), seed);
    if (error != std::errc() || end != parts[1].data() + parts[1].size())
      fail(join("the seed '", parts[1], "' is not a whole number of at least 0"));
    if (v.size() == 2) fail("noise takes a seed, or a seed and both limits: noise:SEED:LOW:HIGH");
    const double low = v.size() > 2 ? v[1] : 0, high = v.size() > 2 ? v[2] : 2;
    return [random = Random(seed), low, high](std::int64_t) mutable { return random.uniform(low, high); };
  }

  Signal column(const std::string& path) const {
    std::ifstream file(path);
    if (!file) fail("the file cannot be read");
    std::vector<std::vector<std::string>> rows;
    for (std::string line; std::getline(file, line);)
      if (!trimmed(line).empty()) rows.push_back(split(trimmed(line), ','));
    if (rows.empty()) fail("the file is empty");
    std::size_t index = 0;
    const bool header = !number(trimmed(rows[0][0]));
    if (header) {
      for (index = 0; index < rows[0].size() && trimmed(rows[0][index]) != input_; ++index) {
      }
      if (index == rows[0].size() && rows[0].size() == 1) index = 0;
      if (index == rows[0].size())
        fail(join("the file has no column '", input_, "'; name it in the first line"));
    } else if (rows[0].size() != 1) {
      fail(join("the file has ", rows[0].size(), " columns and no names; name them in the first line"));
    }
    std::vector<double> values;
    for (std::size_t i = header; i < rows.size(); ++i) {
      const std::optional<double> value =
          index < rows[i].size() ? number(trimmed(rows[i][index])) : std::nullopt;
      if (!value) fail(join("row ", i + 1, " has no number in column ", index + 1));
      values.push_back(*value);
    }
    if (static_cast<std::int64_t>(values.size()) < steps_)
      fail(join("the file has ", values.size(), " rows of numbers, but ", steps_,
                " steps are asked for; ask for at most ", values.size()));
    return [values](std::int64_t t) { return values[static_cast<std::size_t>(t)]; };
  }

  std::string input_, spec_;
  std::int64_t steps_;
};

std::string cell(const Array& array, std::int64_t index) {
  const Type type = value_type(array.type);
  if (type == Type::b1) return array[index] != 0 ? "1" : "0";
  return literal(type, bits_of(type, array[index]));
}

/// Every name given must be one of the neuron's; "" stands for all that are not named.
template <class Given>
void check_names(const Graph& graph, Role role, std::string_view word,
                 const std::map<std::string, Given>& given) {
  std::vector<std::string> known;
  std::string all;
  for (const Argument& argument : graph.arguments) {
    if (argument.role != role) continue;
    known.push_back(argument.name);
    all += join(all.empty() ? "" : ", ", argument.name);
  }
  for (const auto& [name, value] : given)
    if (!name.empty() && std::find(known.begin(), known.end(), name) == known.end())
      user_error("neuron '", graph.name, "': there is no ", word, " '", name, "'", did_you_mean(name, known),
                 "; it has ", known.empty() ? join("no ", word) : all,
                 role == Role::param
                     ? " (what is fixed in the definition is an option of its name, as in lif:tau=3)"
                     : "");
}

/// A name as a CSV header cell.
std::string header_cell(const std::string& name) {
  if (name.find_first_of(",\"\r\n") == std::string::npos) return name;
  std::string quoted = "\"";
  for (char c : name) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

}  // namespace

std::string simulate(const Neuron& neuron, const Simulation& simulation) {
  if (simulation.steps < 0 || simulation.elements < 1)
    user_error("a simulation needs at least 0 steps and 1 element, found ", simulation.steps, " and ",
               simulation.elements);
  const Graph graph = neuron.graph(simulation.type);
  Arguments arguments;
  arguments.type = simulation.type;
  arguments.steps = simulation.steps;
  arguments.shape = {simulation.elements};
  arguments.state_sequences = true;
  check_names(graph, Role::input, "input", simulation.inputs);
  check_names(graph, Role::param, "param", simulation.params);
  std::vector<std::string> names;
  for (const Argument& argument : graph.arguments) {
    if (argument.role == Role::param) {
      const auto value = simulation.params.find(argument.name);
      if (value == simulation.params.end()) continue;
      const std::vector<std::int64_t> shape =
          argument.per_step ? std::vector<std::int64_t>{simulation.steps} : std::vector<std::int64_t>{};
      arguments.params[argument.name] = Array(argument.mem, shape, value->second);
    }
    if (argument.role != Role::input) continue;
    names.push_back(argument.name);
    auto spec = simulation.inputs.find(argument.name);
    if (spec == simulation.inputs.end()) spec = simulation.inputs.find("");
    if (spec == simulation.inputs.end())
      user_error("neuron '", neuron.name(), "': input '", argument.name,
                 "' has no signal; give one, such as step:1.5");
    Array array(argument.mem, {simulation.steps, simulation.elements});
    const Signal signal = Source(argument.name, spec->second, simulation.steps).signal();
    const bool varied = spec->second.starts_with("noise");
    for (std::int64_t t = 0; t < simulation.steps; ++t) {
      double value = 0;
      for (std::int64_t n = 0; n < simulation.elements; ++n) {
        if (n == 0 || varied) value = signal(t);
        array.set(t * simulation.elements + n, value);
      }
    }
    arguments.inputs[argument.name] = std::move(array);
  }
  const Results results = run(neuron, arguments);

  // Columns: inputs, outputs, states, each in the neuron's order; a name that is taken says what it is.
  std::vector<std::pair<std::string, const Array*>> columns;
  std::set<std::string> taken = {"t", "n"};
  const auto add_column = [&](const std::string& name, const char* suffix, const Array& array) {
    std::string unique = name;
    while (!taken.insert(unique).second) unique += suffix;
    columns.emplace_back(header_cell(unique), &array);
  };
  for (const std::string& name : names) add_column(name, "_input", arguments.inputs.at(name));
  for (const Result& result : graph.results)
    if (result.gives == Gives::output) add_column(result.name, "_output", results.outputs.at(result.name));
  for (const Argument& argument : graph.arguments)
    if (argument.role == Role::state) add_column(argument.name, "_state", results.states.at(argument.name));
  std::string csv = simulation.elements == 1 ? "t" : "t,n";
  for (const auto& [name, array] : columns) csv += "," + name;
  csv += '\n';
  for (std::int64_t i = 0; i < simulation.steps * simulation.elements; ++i) {
    csv += std::to_string(i / simulation.elements);
    if (simulation.elements != 1) csv += "," + std::to_string(i % simulation.elements);
    for (const auto& [name, array] : columns) csv += "," + cell(*array, i);
    csv += '\n';
  }
  return csv;
}

Neuron parse_neuron(std::string_view text, std::string_view file) { return Neuron(parse(text, file)); }

Neuron load_neuron(const std::string& path) {
  constexpr std::size_t longest = std::size_t{64} << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) user_error("the file '", path, "' cannot be read; give the path of an .fsn file");
  std::string text;
  for (std::vector<char> part(1 << 16); file;) {
    file.read(part.data(), static_cast<std::streamsize>(part.size()));
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > longest)
      user_error("the file '", path,
                 "' holds more than 64 MiB, which no text of a neuron does; give an .fsn file");
  }
  if (file.bad()) user_error("the file '", path, "' cannot be read to its end");
  return parse_neuron(text, path.substr(path.find_last_of('/') + 1));
}

}  // namespace flexsn
