#include "check_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "backward.h"
#include "compile.h"
#include "error.h"
#include "executable.h"
#include "ops.h"
#include "store.h"
#include "text.h"
#include "trial.h"
#include "verify.h"
#include "widen.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr std::int64_t steps = 5, elements = 64;
constexpr double tolerance = 1e-5;  // of a gradient against differences, relative to 1 + its size

/// with_grad becomes what its gradient is that of.
Graph with_smooth_values(const Graph& graph) {
  return without_dead_code(rewrite(graph, [](Graph& out, const Node& node) {
    return node.op == Op::with_grad ? node.operands[1] : out.append(node);
  }));
}

bool is_detached(const Node& node) { return node.op == Op::detach && is_float(node.type); }

/// A value that jumps where its operands hardly change.
bool jumps(const Node& node) {
  if (node.op == Op::constant || node.op == Op::argument || row_of(node.op).is_leaf()) return false;
  return !is_float(node.type) || (row_of(node.op).vjp.zero && node.op != Op::detach);
}

/// The step with each detached value given from outside: what is detached does not move with its operand.
struct Frozen {
  Graph graph;
  std::vector<Id> detached;  ///< of the original graph, in the order of the arguments added
};

Frozen frozen(const Graph& graph) {
  Frozen out;
  Graph with_inputs = graph;
  for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id) {
    if (!is_detached(graph.at(id))) continue;
    const Id given =
        add_argument(with_inputs,
                     {.role = Role::input, .name = join("detached ", out.detached.size()), .mem = Mem::f64})
            .id;
    for (Id user = 0; user < static_cast<Id>(graph.nodes.size()); ++user)
      for (Id& operand : with_inputs.nodes[user].operands)
        if (operand == id) operand = given;
    for (Result& result : with_inputs.results)
      if (result.value == id) result.value = given;
    out.detached.push_back(id);
  }
  // Arguments now stand behind their users; a sweep in order of need puts them right.
  out.graph = without_dead_code(with_inputs);
  return out;
}

/// `graph` with `values` as outputs beside its own.
Graph watching(Graph graph, const std::vector<Id>& values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    graph.results.push_back({.gives = Gives::output,
                             .name = join("watched ", i),
                             .mem = natural_memory(graph.at(values[i]).type),
                             .value = values[i]});
  return graph;
}

/// Rows of every argument, and rows of every result that a run gave.
using Rows = std::vector<Array>;

bool has_rows(const Argument& argument) {
  return argument.role != Role::state && (argument.role != Role::param || argument.per_step);
}

Rows run_steps(const Graph& graph, const Rows& arguments) {
  Scan scan;
  scan.steps = steps;
  scan.elements = elements;
  for (std::size_t i = 0; i < graph.arguments.size(); ++i)
    scan.sources.push_back({.mem = graph.arguments[i].mem,
                            .data = arguments[i].bytes.data(),
                            .row_stride = has_rows(graph.arguments[i]) ? elements : 0});
  Rows results;
  for (const Result& result : graph.results)
    results.emplace_back(result.mem, std::vector<std::int64_t>{steps * elements});
  for (Array& array : results)
    scan.targets.push_back({.sequence = array.bytes.data(), .row_stride = elements});
  interpret(graph, scan);
  return results;
}

class Differences {
 public:
  Differences(const Graph& step, std::uint64_t seed)
      : step_(step), joint_(verified(grad(step), "grad")), frozen_(frozen(step)), random_(seed) {
    for (const Argument& argument : step_.arguments) arguments_.push_back(draw(argument));
    for (const Argument& argument : joint_.arguments) {
      if (argument.role == Role::grad_output || argument.role == Role::grad_next)
        arriving_.push_back(uniform(argument.role == Role::grad_output ? steps : 1, -1, 1));
    }
    find_base();
  }

  Check run() {
    const Rows gradients = backward();
    for (std::size_t r = 0, g = 0; r < joint_.results.size(); ++r) {
      if (joint_.results[r].gives != Gives::grad) continue;
      const int of = joint_.results[r].of;
      const bool rows = has_rows(step_.arguments[of]);
      for (std::int64_t t = 0; t < (rows ? steps : 1); ++t) compare(of, t, gradients[g]);
      ++g;
    }
    if (compared_ == 0)
      return {"gradients agree with differences", true,
              join("not compared: all ", left_out_, " values lie near a jump or are too steep")};
    char off[64];
    std::snprintf(off, sizeof off, "%.1e", worst_);
    Check check{
        "gradients agree with differences", worst_ <= tolerance,
        join("off by ", off, " at most; ", compared_, " compared, ", left_out_, " near a jump left out")};
    if (!check.passed) check.detail = join(worst_at_, " (", check.detail, ")");
    return check;
  }

 private:
  Array uniform(std::int64_t rows, double low, double high) {
    Array array(Mem::f64, {rows * elements});
    for (std::int64_t n = 0; n < array.size(); ++n) array.set(n, random_.uniform(low, high));
    return array;
  }

  /// Ordinary values: parameters near their defaults, states near their first values.
  Array draw(const Argument& argument) {
    const std::int64_t rows = has_rows(argument) ? steps : 1;
    Array array(argument.mem, {rows * elements});
    for (std::int64_t n = 0; n < array.size(); ++n) {
      double value = random_.uniform(-1.5, 2.5);
      if (argument.role == Role::state) value = argument.initial + random_.uniform(-0.5, 0.5);
      if (argument.role == Role::param)
        value = argument.has_default ? argument.initial * random_.uniform(0.9, 1.1) : random_.uniform(0.5, 2);
      if (argument.role == Role::param) value = std::clamp(value, argument.range.low, argument.range.high);
      array.set(n, value);
    }
    return array;
  }

  /// Values that were detached, as the run without any difference has them.
  void find_base() {
    std::vector<Id> inside;
    for (Id id : frozen_.detached) inside.push_back(step_.at(id).operands[0]);
    const Graph watched = watching(step_, inside);
    const Rows results = run_steps(watched, arguments_);
    for (std::size_t i = step_.results.size(); i < results.size(); ++i) arguments_.push_back(results[i]);
    std::vector<Id> jumping;
    for (std::size_t id = 0; id < frozen_.graph.nodes.size(); ++id)
      if (jumps(frozen_.graph.nodes[id])) jumping.push_back(static_cast<Id>(id));
    moved_ = watching(frozen_.graph, jumping);
  }

  /// The sum of all results, weighted by the gradients that arrive, for each element; and how large its terms
  /// are, which says what of it is rounding.
  struct Loss {
    std::vector<double> sums = std::vector<double>(elements), sizes = std::vector<double>(elements);
  };
  Loss loss(const Rows& results) const {
    Loss loss;
    std::size_t arriving = 0;
    for (const Argument& argument : joint_.arguments) {
      if (argument.role != Role::grad_output && argument.role != Role::grad_next) continue;
      const Array& weight = arriving_[arriving++];
      for (std::size_t r = 0; r < step_.results.size(); ++r) {
        const Result& result = step_.results[r];
        const bool output = argument.role == Role::grad_output && argument.of == static_cast<int>(r);
        const bool state =
            argument.role == Role::grad_next && result.gives == Gives::next && result.of == argument.of;
        for (std::int64_t n = 0; n < elements && (output || state); ++n)
          for (std::int64_t t = output ? 0 : steps - 1; t < steps; ++t) {
            const double term = weight[(output ? t : 0) * elements + n] * results[r][t * elements + n];
            loss.sums[n] += term;
            loss.sizes[n] += std::fabs(term);
          }
      }
    }
    return loss;
  }

  Rows backward() {
    BackwardScan scan;
    scan.steps = steps;
    scan.elements = elements;
    std::size_t arriving = 0;
    for (std::size_t i = 0; i < joint_.arguments.size(); ++i) {
      const Argument& argument = joint_.arguments[i];
      const bool at_output = argument.role == Role::grad_output, at_state = argument.role == Role::grad_next;
      const Array& array = at_output || at_state ? arriving_[arriving++] : arguments_[i];
      const Source source{.mem = argument.mem,
                          .data = array.bytes.data(),
                          .row_stride = !at_state && has_rows(argument) ? elements : 0};
      scan.sources.push_back(at_state ? Source{} : source);
      scan.last.push_back(at_state ? source : Source{});
    }
    Rows gradients;
    for (const Result& result : joint_.results)
      if (result.gives == Gives::grad)
        gradients.emplace_back(
            result.mem,
            std::vector<std::int64_t>{(has_rows(step_.arguments[result.of]) ? steps : 1) * elements});
    std::size_t next = 0;
    for (const Result& result : joint_.results)
      scan.gradients.push_back(result.gives == Gives::grad ? gradients[next++].bytes.data() : nullptr);
    interpret_backward(joint_, scan);
    return gradients;
  }

  /// Central differences in row `t` of argument `of`, for all elements at once; nothing where a value jumped
  /// or all is rounding.
  std::vector<std::optional<double>> difference(int of, std::int64_t t, double width) {
    Rows up = arguments_, down = arguments_;
    std::vector<double> widths(elements);
    for (std::int64_t n = 0; n < elements; ++n) {
      const double x = arguments_[of][t * elements + n], h = width * std::max(1.0, std::fabs(x));
      up[of].set(t * elements + n, x + h);
      down[of].set(t * elements + n, x - h);
      widths[n] = (x + h) - (x - h);
    }
    const Rows above = run_steps(moved_, up), below = run_steps(moved_, down);
    const Loss high = loss(above), low = loss(below);
    std::vector<std::optional<double>> found(elements);
    for (std::int64_t n = 0; n < elements; ++n) {
      bool jumped = false;
      for (std::size_t r = step_.results.size(); r < above.size(); ++r)
        for (std::int64_t s = 0; s < steps; ++s)
          jumped |= above[r][s * elements + n] != below[r][s * elements + n];
      const bool drowned = !(high.sizes[n] * 1e-15 / widths[n] < tolerance / 10);
      if (!jumped && !drowned) found[n] = (high.sums[n] - low.sums[n]) / widths[n];
    }
    return found;
  }

  void compare(int of, std::int64_t t, const Array& gradients) {
    constexpr double width = 1e-4;
    const auto wide = difference(of, t, width), narrow = difference(of, t, width / 2);
    for (std::int64_t n = 0; n < elements; ++n) {
      const double gradient = gradients[t * elements + n];
      // Two widths that disagree tell nothing: a kink lies between, or the function is too steep.
      const bool reliable =
          wide[n] && narrow[n] && std::fabs(*wide[n] - *narrow[n]) <= tolerance * (1 + std::fabs(*narrow[n]));
      if (!reliable) {
        ++left_out_;
        continue;
      }
      ++compared_;
      const double expected = (4 * *narrow[n] - *wide[n]) / 3;
      double off = std::fabs(expected - gradient) / (1 + std::fabs(gradient));
      if (!std::isfinite(gradient)) off = std::numeric_limits<double>::infinity();
      if (off <= worst_) continue;
      worst_ = off;
      worst_at_ = join("the gradient of '", step_.arguments[of].name, "' at step ", t, ", element ", n,
                       " is ", gradient, ", by differences ", expected);
    }
  }

  const Graph step_;
  const Graph joint_;
  const Frozen frozen_;
  Graph moved_;  ///< the frozen step, with everything that may jump as an output
  Random random_;
  Rows arguments_;  ///< of the step, then what was detached
  Rows arriving_;
  int compared_ = 0, left_out_ = 0;
  double worst_ = 0;
  std::string worst_at_;
};

Check against_differences(const Neuron& neuron, std::uint64_t seed) {
  const std::optional<Graph> wide = widened(neuron.graph(Mem::f64, true));
  if (!wide)
    return {"gradients agree with differences", true, "not compared: the step reads the bits of a float"};
  return Differences(with_smooth_values(*wide), seed).run();
}

Check plans_agree(const Graph& joint, Saving saving, int segment, std::uint64_t seed) {
  constexpr std::string_view words[] = {"automatic", "everything saved", "saved per step", "rebuilt"};
  const Training training{.saving = saving, .segment = segment};
  std::string difference;
  for (std::int64_t some_steps : {1, 7, 16})
    for (std::int64_t some_elements : {1, 33}) {
      if (!difference.empty()) break;
      const Trial trial(joint, training, seed, some_steps, some_elements);
      const TrainingPlans plans =
          schedule_training(joint, partition(joint, training), training, trial.layout());
      difference = flexsn::difference(trial.by_law(), trial.by_plans(plans));
    }
  return {join("plan '", words[static_cast<int>(saving)], "' keeps every bit",
               segment > 0 ? join(", segments of ", segment) : ""),
          difference.empty(), difference.empty() ? "off by 0; 1, 7, 16 steps" : difference};
}

/// Sizes at which kernels have gone wrong: around vectors and blocks, around the tile, none at all.
struct Size {
  std::int64_t steps, elements;
};
constexpr Size sizes[] = {{0, 5},  {1, 1},  {2, 15}, {7, 16},  {8, 17},    {9, 31},
                          {64, 1}, {3, 33}, {33, 0}, {5, 100}, {2, 16385}, {17, 1025}};

/// The kernels of inference, or of training where `graph` has gradients.
std::vector<Plan> plans_for(const Graph& graph, const Training& training, const Layout& layout) {
  if (has_gradients(graph)) {
    TrainingPlans both = schedule_training(graph, partition(graph, training), training, layout);
    return {std::move(both.forward), std::move(both.backward)};
  }
  const Kind kind = training.state_sequences ? Kind::inference : Kind::inference_final_state;
  return {schedule_inference(graph, kind, layout)};
}

/// Runs plans by machine code of a target, each compiled once. On a GPU even numbers of elements run by the
/// code for many, odd ones by that for few.
class KernelRunner {
 public:
  explicit KernelRunner(bool cuda) : cuda_(cuda) {}

  void operator()(const Plan& plan, const PlanRun& run) {
    std::shared_ptr<const Executable>& executable = known_[print(plan, false)];
    if (!executable) executable = cuda_ ? cuda_executable(plan, true) : cpu_executable(plan);
    if (cuda_)
      cuda_run_on_copies(*executable, run);
    else
      executable->run(run, pool_->as_threads());
  }

 private:
  bool cuda_;
  std::map<std::string, std::shared_ptr<const Executable>> known_;
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>(2);
};

/// What runs the kernels of a target. Throws a UserError where it is not known, or not there.
Trial::Runner runner_of(std::string_view target) {
  if (target == "interpreter") return execute;
  if (target != "cpu" && target != "cuda")
    user_error("there is no target '", target, "'; there are interpreter, cpu and cuda");
  if (const std::string absent = target == "cpu" ? cpu_absent() : cuda_absent(); !absent.empty())
    user_error(absent);
  return KernelRunner(target == "cuda");
}

Trial::Outcome outcome_of(const Graph& graph, const Training& training, const Trial& trial,
                          const Trial::Runner& runner) {
  const std::vector<Plan> plans = plans_for(graph, training, trial.layout());
  std::vector<const Plan*> pointers;
  for (const Plan& plan : plans) pointers.push_back(&plan);
  return trial.by_plans(pointers, runner);
}

Check kernels_agree(const std::string& target, const char* what, const Graph& graph, std::uint64_t seed) {
  std::string difference;
  try {
    Trial::Runner runner = runner_of(target);
    for (bool sequences : {false, true})
      for (const Size& size : sizes) {
        if (!difference.empty()) break;
        Training training{.state_sequences = sequences};
        if (target == "cuda") training.costs = cost_model_named("gpu");
        const Trial trial(graph, training, seed, size.steps, size.elements);
        difference = flexsn::difference(trial.by_law(), outcome_of(graph, training, trial, std::ref(runner)));
      }
  } catch (const UserError& error) {  // of a device that cannot be used now
    difference = error.what();
  }
  return {join(target, " ", what, " has the interpreter's bits"), difference.empty(),
          difference.empty() ? join("off by 0; ", std::size(sizes), " sizes, last states and sequences")
                             : difference};
}

}  // namespace

std::vector<Check> check_kernels(const Neuron& neuron, Mem type, std::uint64_t seed) {
  const Graph step = compile(neuron.graph(type), Stage::simplified);
  const Graph forward = values_only(has_gradients(step) ? forward_of(step) : step);
  Graph joint;
  std::string untrainable;
  try {
    joint = joint_of(step, {});
  } catch (const UserError& error) {
    untrainable = error.what();
  }
  std::vector<Check> checks;
  if (!untrainable.empty()) {
    checks.push_back({"gradients", true, join("none: ", untrainable)});
  } else {
    if (has_gradients(step))
      checks.push_back(
          {"gradients agree with differences", true, "not compared: the text has its own gradients"});
    else
      checks.push_back(against_differences(neuron, seed));
    for (Saving saving : {Saving::automatic, Saving::everything, Saving::per_step})
      checks.push_back(plans_agree(joint, saving, 0, seed));
    for (int segment : {2, 8}) checks.push_back(plans_agree(joint, Saving::rebuild, segment, seed));
  }
  for (const char* target : {"cpu", "cuda"}) {
    const std::string absent = target == std::string_view("cpu") ? cpu_absent() : cuda_absent();
    if (!absent.empty()) {
      checks.push_back({join(target, " has the interpreter's bits"), true, absent, true});
      continue;
    }
    checks.push_back(kernels_agree(target, "inference", forward, seed));
    if (untrainable.empty()) checks.push_back(kernels_agree(target, "training", joint, seed));
  }
  return checks;
}

std::string digest(const Neuron& neuron, Mem type, std::uint64_t seed, std::string_view target) {
  const Trial::Runner runner = runner_of(!target.empty()        ? target
                                         : cpu_absent().empty() ? "cpu"
                                                                : "interpreter");
  const Graph step = compile(neuron.graph(type), Stage::simplified);
  Graph graph = values_only(has_gradients(step) ? forward_of(step) : step);
  try {
    graph = joint_of(step, {});
  } catch (const UserError&) {  // no gradient: the digest is that of inference
  }
  std::string bytes = canonical(graph);
  for (const Size& size : sizes) {
    const Trial trial(graph, {}, seed, size.steps, size.elements);
    const Trial::Outcome outcome = outcome_of(graph, {}, trial, runner);
    for (const auto& [name, array] : outcome)
      for (std::int64_t n = 0; n < array.size(); ++n) {
        // Which NaN it is differs between machines.
        const double value = array[n];
        bytes += value == value ? digits_of(value) : "nan";
        bytes += std::signbit(value) && value == 0 ? "-," : ",";
      }
  }
  return sha256(bytes);
}

}  // namespace flexsn
