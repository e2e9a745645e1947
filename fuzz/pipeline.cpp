// Fuzzes the passes: every stage of a legal graph, and every plan of its training, computes the same bits in
// the interpreter (NaN equals NaN).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "compile.h"
#include "expand.h"
#include "ops.h"
#include "simplify.h"
#include "text.h"
#include "trial.h"
#include "verify.h"

using namespace flexsn;

namespace {

constexpr std::int64_t steps = 3, elements = 24;
constexpr int most_ops = 24;
constexpr std::size_t most_arguments = 12, most_results = 12;

using Bytes = std::vector<std::byte>;

[[noreturn]] void stop(const char* stage, const std::string& detail) {
  std::fprintf(stderr, "stage '%s' differs\n%s\n", stage, detail.c_str());
  std::abort();
}

/// Small enough to run often, and free of rows that see a NaN's bits, which passes may change.
bool in_scope(const ir::Graph& graph) {
  if (ir::op_count(graph) > most_ops || graph.arguments.size() > most_arguments ||
      graph.results.size() > most_results)
    return false;
  return std::none_of(graph.nodes.begin(), graph.nodes.end(), [](const ir::Node& node) {
    return node.op != ir::Op::constant && node.op != ir::Op::argument && ir::row_of(node.op).raw;
  });
}

/// What an argument is given: a row for each step.
struct Given {
  Bytes bytes;
  bool scalar;  ///< a parameter that is one number for all elements
};

std::uint64_t bits_in(Mem mem, double value) {
  switch (mem) {
    case Mem::f16:
      return ir::exact::to_f16(static_cast<float>(value));
    case Mem::bf16:
      return ir::exact::to_bf16(static_cast<float>(value));
    case Mem::b8:
      return value != 0;
    default:
      return ir::bits_of(value_type(mem), value);
  }
}

/// Every edge case and as many random patterns, in an order that depends on `seed`.
Bytes argument_data(Mem mem, std::uint64_t seed) {
  constexpr double edges[] = {0,   -0.0, 1,    -1,    0.5, -0.5, 2,        1.5,       255,    256,   1e30,
                              -7,  3,    1e-7, 65504, 100, -100, INFINITY, -INFINITY, NAN,    1e-40, 88.5,
                              0.1, 30,   31,   32,    -32, 1e5,  1e300,    5e-324,    1e-310, 2.5,   -2.5};
  constexpr std::size_t strides[] = {1, 2, 4,  5,
                                     7, 8, 10, 13};  // none shares a factor with the number of edges
  static_assert(std::size(edges) == 33 && 2 * std::size(edges) <= steps * elements);
  const std::size_t size = size_of(mem), stride = strides[seed % std::size(strides)], start = seed / 8 % 33;
  Bytes bytes(static_cast<std::size_t>(steps * elements) * size);
  for (std::size_t n = 0; n < bytes.size() / size; ++n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    std::uint64_t bits = n % 2 ? seed ^ (seed >> 31) : bits_in(mem, edges[(start + n / 2 * stride) % 33]);
    if (mem == Mem::b8) bits &= 1;
    for (std::size_t k = 0; k < size; ++k) bytes[n * size + k] = static_cast<std::byte>(bits >> (8 * k));
  }
  return bytes;
}

bool is_nan(Mem mem, const std::byte* at) {
  std::uint64_t bits = 0;
  for (std::size_t k = size_of(mem); k-- > 0;) bits = bits << 8 | std::to_integer<std::uint64_t>(at[k]);
  switch (mem) {
    case Mem::f16:
      return (bits & 0x7fff) > 0x7c00;
    case Mem::bf16:
      return (bits & 0x7fff) > 0x7f80;
    case Mem::f32:
      return (bits & 0x7fffffff) > 0x7f800000;
    case Mem::f64:
      return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000;
    default:
      return false;
  }
}

/// All results of a run, in the order of the graph's results; `data` is in the order of its arguments.
std::vector<Bytes> results_of(const ir::Graph& graph, const std::vector<const Given*>& data) {
  Scan scan;
  scan.steps = steps;
  scan.elements = elements;
  for (std::size_t i = 0; i < graph.arguments.size(); ++i) {
    const ir::Argument& argument = graph.arguments[i];
    const bool steady =
        argument.role == ir::Role::state || (argument.role == ir::Role::param && !argument.per_step);
    Source source;
    source.mem = argument.mem;
    source.data = data[i]->bytes.data();
    source.row_stride = steady ? 0 : elements;
    source.map = data[i]->scalar ? Map::scalar : Map::element;
    scan.sources.push_back(source);
  }
  std::vector<Bytes> results;
  for (const ir::Result& result : graph.results)
    results.emplace_back(static_cast<std::size_t>(steps * elements) * size_of(result.mem));
  for (Bytes& bytes : results) {
    Target target;
    target.sequence = bytes.data();
    target.row_stride = elements;
    scan.targets.push_back(target);
  }
  interpret(graph, scan);
  return results;
}

void compare(const char* stage, const ir::Graph& graph, const std::vector<Bytes>& expected,
             const ir::Graph& other, const std::vector<Bytes>& found) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Mem mem = graph.results[i].mem;
    const std::size_t size = size_of(mem);
    for (std::size_t at = 0; at < expected[i].size(); at += size) {
      const std::byte *a = &expected[i][at], *b = &found[i][at];
      if (!std::equal(a, a + size, b) && !(is_nan(mem, a) && is_nan(mem, b)))
        stop(stage, ir::name_of(graph.at(graph.results[i].value).op).data() +
                        (" in result " + std::to_string(i)) + " element " + std::to_string(at / size) + "\n" +
                        print(graph) + print(other));
    }
  }
}

template <class Item>
std::vector<Item> reordered(const std::vector<Item>& items, const std::vector<int>& order) {
  std::vector<Item> out;
  for (int index : order) out.push_back(items[static_cast<std::size_t>(index)]);
  return out;
}

/// What is asked of training, chosen by `seed`.
Training some_training(const ir::Graph& graph, std::uint64_t seed) {
  constexpr Saving savings[] = {Saving::automatic, Saving::everything, Saving::per_step, Saving::rebuild};
  constexpr int segments[] = {0, 2, 4, 16};
  constexpr const char* models[] = {"cpu", "gpu", "bytes"};
  Training training{.state_sequences = (seed & 1) != 0,
                    .costs = cost_model_named(models[seed / 2 % 3]),
                    .saving = savings[seed / 8 % 4]};
  if (training.saving == Saving::rebuild) training.segment = segments[seed / 32 % 4];
  if (seed / 128 % 4 == 0) training.budget = static_cast<double>(seed / 512 % 32);
  for (const ir::Argument& argument : graph.arguments) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    if (argument.role == ir::Role::param && argument.per_step && seed >> 63)
      training.full_step_params.push_back(argument.name);
    if (ir::is_float(value_type(argument.mem)) && seed >> 62 == 0 && !ir::has_gradients(graph))
      training.wanted.push_back(argument.name);
  }
  return training;
}

/// `graph` is a copy: a trial knows arguments and outputs by name, and here all get one.
void try_training(ir::Graph graph, std::uint64_t seed) {
  for (std::size_t i = 0; i < graph.arguments.size(); ++i)
    if (graph.arguments[i].name.empty()) graph.arguments[i].name = "argument " + std::to_string(i);
  for (std::size_t i = 0; i < graph.results.size(); ++i)
    if (graph.results[i].name.empty()) graph.results[i].name = "result " + std::to_string(i);
  const Training training = some_training(graph, seed);
  try {
    const ir::Graph joint = joint_of(compile(graph, Stage::simplified), training);
    verify(joint);
    const Trial trial(joint, training, seed);
    const Lowered lowered = lower(graph, training, trial.layout());
    verify(lowered.plans.forward);
    verify(lowered.plans.backward);
    const std::string found = difference(trial.by_law(), trial.by_plans(lowered.plans));
    if (!found.empty())
      stop("training",
           found + "\n" + print(graph) + print(lowered.plans.forward) + print(lowered.plans.backward));
  } catch (const UserError&) {
    return;  // nothing carries a gradient, or no plan keeps within the budget
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* text, std::size_t size) {
  ir::Graph graph;
  try {
    graph = parse({reinterpret_cast<const char*>(text), size}, "fuzz");
    verify(graph);
  } catch (const UserError&) {
    return 0;
  }
  if (!in_scope(graph)) return 0;

  std::uint64_t seed = size;
  for (std::size_t i = 0; i < size; ++i) seed = (seed ^ text[i]) * 0x100000001b3u;
  std::vector<Given> given;
  for (const ir::Argument& argument : graph.arguments) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const bool scalar = argument.role == ir::Role::param && seed >> 63;
    given.push_back({argument_data(argument.mem, seed >> 20), scalar});
  }
  std::vector<const Given*> data;
  for (const Given& one : given) data.push_back(&one);
  const std::vector<Bytes> expected = results_of(graph, data);

  const auto expect_same = [&](const char* stage, const ir::Graph& other) {
    try {
      verify(other);
    } catch (const UserError& error) {
      stop(stage, error.what() + ("\n" + print(graph)) + print(other));
    }
    compare(stage, graph, expected, other, results_of(other, data));
  };
  const ir::Graph simple = simplify(graph);
  expect_same("simplify", simple);
  expect_same("expand", expand(graph));
  const ir::Graph basic = expand(simple);
  expect_same("simplify, expand", basic);
  expect_same("simplify, expand, simplify", simplify(basic));
  if (simplify(simple).nodes != simple.nodes) stop("simplify, simplify", print(graph) + print(simple));

  // A text lists arguments and results by role.
  const ir::Graph again = parse(canonical(graph), "canonical");
  const std::vector<int> results = ir::result_order(graph);
  ir::Graph sorted = graph;
  sorted.results = reordered(graph.results, results);
  compare("print, parse", sorted, reordered(expected, results), again,
          results_of(again, reordered(data, ir::argument_order(graph))));
  try_training(graph, seed);
  return 0;
}
