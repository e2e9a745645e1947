// check: the promises that hold for every neuron, tried on one of them.
#include <algorithm>

#include "check_kernels.h"
#include "compile.h"
#include "error.h"
#include "expand.h"
#include "interpret.h"
#include "random.h"
#include "simplify.h"
#include "text.h"
#include "verify.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr std::int64_t steps = 16, elements = 600;  // more than one block of the interpreter

double draw(Random& random) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr double edges[] = {0.0,  -0.0,  1,     -1,     0.5,
                              1.5,  2.5,   1e-40, -1e-40, 1e-310,
                              3e38, -3e38, inf,   -inf,   std::numeric_limits<double>::quiet_NaN()};
  const std::uint64_t kind = random.next() % 64;
  return kind < std::size(edges) ? edges[kind] : random.uniform(-3, 3);
}

/// The results of a run, one array each, in the order of the graph's results.
std::vector<Array> run_on(const Graph& graph, const std::vector<Array>& arrays, std::int64_t from,
                          std::int64_t count, const std::vector<Array>& states) {
  Scan scan;
  scan.steps = count;
  scan.elements = elements;
  scan.first_step = from;
  std::size_t next_state = 0;
  for (std::size_t i = 0; i < graph.arguments.size(); ++i) {
    const Argument& argument = graph.arguments[i];
    const bool rows = argument.role != Role::state && (argument.role != Role::param || argument.per_step);
    const Array& array = argument.role == Role::state && !states.empty() ? states[next_state++] : arrays[i];
    const std::int64_t offset = rows ? from * elements * static_cast<std::int64_t>(size_of(argument.mem)) : 0;
    scan.sources.push_back(
        {.mem = argument.mem, .data = array.bytes.data() + offset, .row_stride = rows ? elements : 0});
  }
  std::vector<Array> results;
  for (const Result& result : graph.results)
    results.emplace_back(result.mem, std::vector<std::int64_t>{count, elements});
  for (Array& array : results)
    scan.targets.push_back({.sequence = array.bytes.data(), .row_stride = elements});
  interpret(graph, scan);
  return results;
}

/// Where two runs differ, "" when nowhere; a NaN equals a NaN.
std::string difference(const Graph& graph, const std::vector<Array>& a, const std::vector<Array>& b,
                       std::int64_t first_row = 0) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    const std::int64_t skip = first_row * elements;
    for (std::int64_t n = 0; n < b[i].size(); ++n) {
      const double x = a[i][skip + n], y = b[i][n];
      const std::size_t size = size_of(a[i].type);
      const bool same = std::memcmp(a[i].bytes.data() + static_cast<std::size_t>(skip + n) * size,
                                    b[i].bytes.data() + static_cast<std::size_t>(n) * size, size) == 0;
      if (same || (x != x && y != y)) continue;
      const Result& result = graph.results[i];
      const std::string& name = result.gives == Gives::output ? result.name : graph.arguments[result.of].name;
      return join("'", name, "' differs at step ", first_row + n / elements, ", element ", n % elements, ": ",
                  x, " and ", y);
    }
  }
  return "";
}

std::vector<Array> last_states(const Graph& graph, const std::vector<Array>& results, std::int64_t count) {
  std::vector<Array> states;
  for (std::size_t a = 0; a < graph.arguments.size(); ++a) {
    for (std::size_t i = 0; i < graph.results.size(); ++i) {
      if (graph.results[i].gives != Gives::next || graph.results[i].of != static_cast<int>(a)) continue;
      Array state(graph.results[i].mem, {elements});
      std::copy_n(results[i].bytes.end() - static_cast<std::ptrdiff_t>(state.bytes.size()),
                  count > 0 ? state.bytes.size() : 0, state.bytes.begin());
      states.push_back(std::move(state));
    }
  }
  return states;
}

}  // namespace

std::vector<Check> check(const Neuron& neuron, Mem type, std::uint64_t seed) {
  const Graph graph = neuron.graph(type);
  std::vector<Check> checks;
  const auto note = [&](std::string what, const std::string& difference, std::string detail) {
    checks.push_back(
        {std::move(what), difference.empty(), difference.empty() ? std::move(detail) : difference});
  };
  verify(graph);
  note("legal", "", join(graph.nodes.size(), " nodes verified"));
  const std::string identity = canonical(graph);
  note("canonical text round trip",
       canonical(parse(identity, "canonical")) == identity ? "" : "the text read back prints differently",
       join(identity.size(), " bytes"));
  const std::string named = print(graph);
  note("named text round trip",
       canonical(parse(named, "named")) == identity ? "" : "the text read back is another neuron",
       join(named.size(), " bytes"));

  Random random(seed);
  std::vector<Array> arrays;
  for (const Argument& argument : graph.arguments) {
    Array array(argument.mem, {steps, elements});
    const bool limited = argument.role == Role::param;
    for (std::int64_t n = 0; n < array.size(); ++n) {
      const double value = draw(random);
      array.set(n, limited ? std::clamp(value == value ? value : argument.initial, argument.range.low,
                                        argument.range.high)
                           : value);
    }
    arrays.push_back(std::move(array));
  }
  const std::string data = join(steps, " steps, ", elements, " elements, seed ", seed);
  const std::vector<Array> law = run_on(graph, arrays, 0, steps, {});
  const auto compare = [&](const char* what, const Graph& other) {
    note(what, difference(graph, law, run_on(other, arrays, 0, steps, {})), data);
  };
  compare("simplify keeps every bit", verified(simplify(graph), "simplify"));
  compare("expand keeps every bit", verified(expand(graph), "expand"));
  compare("all passes keep every bit", compile(graph, Stage::expanded));
  const std::vector<Array> first = run_on(graph, arrays, 0, 3, {});
  std::string chunks = difference(graph, law, first);
  if (chunks.empty())
    chunks = difference(graph, law, run_on(graph, arrays, 3, steps - 3, last_states(graph, first, 3)), 3);
  note("chunks equal the whole", chunks, "3 + 13 steps against 16");
  for (Check& found : check_kernels(neuron, type, seed)) checks.push_back(std::move(found));
  return checks;
}

}  // namespace flexsn
