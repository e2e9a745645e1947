// Gradients and plans of random graphs; and broken ones, which must not go unnoticed.
//
// FLEXSN_RANDOM_GRAPHS says how many graphs are tried, FLEXSN_RANDOM_SEED runs the one with that seed alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "absent.h"
#include "build.h"
#include "compile.h"
#include "error.h"
#include "ops.h"
#include "random_graph.h"
#include "simplify.h"
#include "text.h"
#include "trial.h"
#include "verify.h"
#include "widen.h"

namespace flexsn::test {
namespace {

using namespace ir;

/// Rows whose values stay small where their operands do.
std::vector<Op> tame_rows() {
  return {Op::add,       Op::sub,    Op::mul,  Op::neg,  Op::fma,     Op::sigmoid, Op::tanh,
          Op::sin,       Op::cos,    Op::atan, Op::relu, Op::maximum, Op::minimum, Op::abs,
          Op::with_grad, Op::detach, Op::lt,   Op::ge,   Op::select};
}

/// A layout goes by names, so all arguments and outputs need one.
Graph named(Graph graph) {
  for (std::size_t i = 0; i < graph.arguments.size(); ++i)
    if (graph.arguments[i].name.empty()) graph.arguments[i].name = join("argument ", i);
  for (std::size_t i = 0; i < graph.results.size(); ++i)
    if (graph.results[i].gives == Gives::output && graph.results[i].name.empty())
      graph.results[i].name = join("output ", i);
  return graph;
}

Graph tame_graph(std::uint64_t seed) {
  return named(random_graph(seed, {.min_ops = 3, .max_ops = 15, .rows = tame_rows()}));
}

// ---- plans -----------------------------------------------------------------------------------------

/// What is done to the joint graph before it is planned, and to the plans before they run: by default
/// nothing.
struct Faults {
  std::function<void(Graph&)> joint = [](Graph&) {};
  std::function<void(TrainingPlans&)> plans = [](TrainingPlans&) {};
};

/// What training the graph with this seed is to mean.
Training random_training(const Graph& step, Dice& dice) {
  Training training;
  training.state_sequences = dice.chance(0.5);
  training.costs = cost_model_named(dice.pick(std::vector<const char*>{"cpu", "gpu", "bytes"}));
  if (dice.chance(0.5))
    for (const Argument& argument : step.arguments)
      if (is_float(value_type(argument.mem)) && dice.chance(0.5)) training.wanted.push_back(argument.name);
  if (dice.chance(0.3)) {
    training.arriving.emplace();
    for (const Result& result : step.results)
      if (result.gives == Gives::output && is_float(value_type(result.mem)) && dice.chance(0.6))
        training.arriving->push_back(result.name);
  }
  return training;
}

/// All plans of the graph with this seed against the law; says what differs, "" where nothing does. `trained`
/// says whether there was anything to train.
std::string broken_plan(std::uint64_t seed, const Faults& faults, bool* trained = nullptr) {
  Dice dice(seed);
  const Graph step = simplify(named(random_graph(seed)));
  Training training = random_training(step, dice);
  Graph joint;
  try {
    joint = joint_of(step, training);
  } catch (const UserError&) {
    return "";  // no gradient flows to what is wanted
  }
  if (trained) *trained = true;
  const Trial run(joint, training, seed);
  const Trial::Outcome law = run.by_law();
  Graph planned = joint;
  faults.joint(planned);
  constexpr int segments[] = {2, 4, 8};
  const int segment = dice.pick(segments);
  for (Saving saving : {Saving::automatic, Saving::everything, Saving::per_step, Saving::rebuild}) {
    training.saving = saving;
    training.segment = saving == Saving::rebuild ? segment : 0;
    const Partition parts = partition(planned, training);
    TrainingPlans plans = schedule_training(planned, parts, training, run.layout());
    faults.plans(plans);
    const std::string found = difference(law, run.by_plans(plans));
    if (!found.empty()) return join("saving ", static_cast<int>(saving), ": ", found);
  }
  return "";
}

constexpr int shards = 8;  // which ctest can run side by side

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

class RandomPlans : public testing::TestWithParam<int> {};

TEST_P(RandomPlans, GiveTheBitsOfTheLaw) {
  const auto shard = static_cast<std::uint64_t>(GetParam());
  const bool one = std::getenv("FLEXSN_RANDOM_SEED") != nullptr;
  const std::uint64_t only = number("FLEXSN_RANDOM_SEED", 0), count = number("FLEXSN_RANDOM_GRAPHS", 10000);
  int trained = 0, tried = 0;
  for (std::uint64_t seed = shard; seed < std::max(count, only + 1); seed += shards) {
    if (one && seed != only) continue;
    bool has_gradient = false;
    ASSERT_EQ(broken_plan(seed, {}, &has_gradient), "")
        << "run it again with FLEXSN_RANDOM_SEED=" << seed << "\n"
        << print(random_graph(seed));
    trained += has_gradient;
    ++tried;
  }
  if (tried > 500) {
    EXPECT_GT(trained, tried / 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, RandomPlans, testing::Range(0, shards));

/// Gradients that turn out to be absent after forward has run, against the law that never knew of them.
std::string broken_absence(std::uint64_t seed, int* compared) {
  Dice dice(seed);
  const Graph step = simplify(named(random_graph(seed)));
  Training all, fewer;
  fewer.arriving.emplace();
  for (const Result& result : step.results)
    if (result.gives == Gives::output && is_float(value_type(result.mem)) && dice.chance(0.5))
      fewer.arriving->push_back(result.name);
  Graph joint, pruned;
  try {
    joint = joint_of(step, all);
    pruned = joint_of(step, fewer);
  } catch (const UserError&) {
    return "";
  }
  std::vector<int> absent;
  for (std::size_t a = 0; a < joint.arguments.size(); ++a) {
    const Argument& argument = joint.arguments[a];
    if (argument.role != Role::grad_output) continue;
    const std::string& output = joint.results[argument.of].name;
    if (std::find(fewer.arriving->begin(), fewer.arriving->end(), output) == fewer.arriving->end())
      absent.push_back(static_cast<int>(a));
  }
  const Trial trial(pruned, fewer, seed);
  Partition parts = partition(joint, all);
  parts.backward = without_arriving(parts.backward, absent);
  const TrainingPlans plans = schedule_training(joint, parts, all, trial.layout());
  *compared += !absent.empty();
  return difference(trial.by_law(), trial.by_plans(plans));
}

TEST(RandomPlans, GradientsThatAreAbsentAfterAllTakePartInNoArithmetic) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed)
    ASSERT_EQ(broken_absence(seed, &compared), "") << seed << "\n" << print(random_graph(seed));
  EXPECT_GT(compared, 100);
}

// ---- gradients -----------------------------------------------------------------------------------------

/// How far two gradients may be apart: simplifying regroups sums.
constexpr double tolerance = 1e-6;

/// The gradient of the simplified graph against that of the graph as it is, in f64; says where they are
/// further apart than rounding explains.
std::string broken_gradient(std::uint64_t seed, const Faults& faults, int* compared = nullptr) {
  const std::optional<Graph> plain = widened(tame_graph(seed));
  if (!plain) return "";
  Graph joint, simple;
  try {
    joint = grad(*plain);
    simple = simplify(grad(simplify(*plain)));
  } catch (const UserError&) {
    return "";
  }
  // Where a simpler step carries fewer gradients, runs of the two take other arguments.
  if (joint.arguments.size() != simple.arguments.size()) return "";
  faults.joint(simple);
  const Trial::Outcome a = Trial(joint, {}, seed, 4, 12, 0).by_law(),
                       b = Trial(simple, {}, seed, 4, 12, 0).by_law();
  for (const auto& [name, x] : a) {
    const auto found = b.find(name);
    if (found == b.end()) continue;  // a gradient that simplifying showed to be zero
    for (std::int64_t n = 0; n < x.size(); ++n) {
      const double expected = x[n], got = found->second[n];
      if (!(std::fabs(expected) < 1e6) || !(std::fabs(got) < 1e6)) continue;
      if (std::fabs(expected - got) > tolerance * (1 + std::fabs(expected)))
        return join(name, " at ", n, ": ", expected, " and ", got);
      if (compared) *compared += expected != 0;
    }
  }
  return "";
}

TEST(RandomGradients, SimplifyingChangesThemByRoundingOnly) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 10000; ++seed)
    ASSERT_EQ(broken_gradient(seed, {}, &compared), "") << seed << "\n" << print(tame_graph(seed));
  EXPECT_GT(compared, 100000);
}

// ---- seeded faults -------------------------------------------------------------------------------------

/// An edit of all nodes of the joint graph that depend on gradients.
Faults in_gradients(Id (*change)(Graph& out, const Node& node)) {
  return {.joint = [change](Graph& joint) {
    std::vector<bool> of_gradients;
    joint = rewrite(joint, [&](Graph& out, const Node& node) {
      bool depends = node.op == Op::argument && out.arguments[node.immediate].role >= Role::grad_output;
      for (Id operand : node.operands) depends |= operand != no_id && of_gradients[operand];
      const Id id = depends && node.op != Op::argument ? change(out, node) : out.append(node);
      of_gradients.resize(out.nodes.size());
      of_gradients[id] = depends;
      return id;
    });
  }};
}

Faults in_plans(void (*change)(TrainingPlans&)) { return {.plans = change}; }

template <class Found>
void swap_slots(std::vector<Slot>& slots, const Graph& graph, const Found& found) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (found(slots[i])) places.push_back(i);
  for (std::size_t i = 1; i < places.size(); ++i)
    if (graph.arguments[places[i]].mem == graph.arguments[places[i - 1]].mem) {
      std::swap(slots[places[i]], slots[places[i - 1]]);
      return;
    }
}

void negate_constants(Graph& graph) {
  for (Node& node : graph.nodes)
    if (node.op == Op::constant && is_float(node.type) && node.immediate == bits_of(node.type, -0.0))
      node.immediate = 0;
}

TEST(RandomFaults, InPlansAndGradientsAreCaught) {
  const std::pair<const char*, Faults> faults[] = {
      {"a sum of gradients loses its second part", in_gradients([](Graph& out, const Node& node) {
         return node.op == Op::add ? node.operands[0] : out.append(node);
       })},
      {"a gradient's sign is lost", in_gradients([](Graph& out, const Node& node) {
         return node.op == Op::neg ? node.operands[0] : out.append(node);
       })},
      {"a difference of gradients is turned round", in_gradients([](Graph& out, const Node& node) {
         Node turned = node;
         if (node.op == Op::sub) std::swap(turned.operands[0], turned.operands[1]);
         return out.append(turned);
       })},
      {"a product is taken for its factor", in_gradients([](Graph& out, const Node& node) {
         return node.op == Op::mul ? node.operands[0] : out.append(node);
       })},
      {"the choice of a gradient is turned round", in_gradients([](Graph& out, const Node& node) {
         Node turned = node;
         if (node.op == Op::select) std::swap(turned.operands[1], turned.operands[2]);
         return out.append(turned);
       })},
      {"backward runs forward in time", in_plans([](TrainingPlans& plans) {
         if (!plans.backward.rebuild) plans.backward.reverse = false;
       })},
      {"a checkpoint is one segment late", in_plans([](TrainingPlans& plans) {
         for (Carry& carry : plans.backward.rebuilt) carry.checkpoint = carry.first;
       })},
      {"what arrives at states of a sequence is left out", in_plans([](TrainingPlans& plans) {
         for (Carry& carry : plans.backward.carries) carry.add_sequence = no_buffer;
       })},
      {"what arrives at the last state is left out", in_plans([](TrainingPlans& plans) {
         for (Carry& carry : plans.backward.carries) carry.first = no_buffer;
       })},
      {"two loads are exchanged", in_plans([](TrainingPlans& plans) {
         swap_slots(plans.backward.step.arguments, plans.backward.step.graph,
                    [](const Slot& slot) { return slot.kind == Slot::Kind::load; });
       })},
      {"two kept values are exchanged", in_plans([](TrainingPlans& plans) {
         swap_slots(plans.backward.step.arguments, plans.backward.step.graph,
                    [](const Slot& slot) { return slot.kind == Slot::Kind::keep; });
       })},
      {"segments of another length", in_plans([](TrainingPlans& plans) {
         if (plans.backward.segment > 0) plans.backward.segment *= 2;
       })},
      {"a state is not carried", in_plans([](TrainingPlans& plans) {
         for (Result& result : plans.forward.step.graph.results)
           if (result.gives == Gives::next)
             result.value = plans.forward.step.graph.arguments[result.of].value;
       })},
      {"+0 for -0", in_plans([](TrainingPlans& plans) { negate_constants(plans.backward.step.graph); })},
      {"a saved value is another one", in_plans([](TrainingPlans& plans) {
         Graph& graph = plans.forward.step.graph;
         for (std::size_t i = 0; i < graph.results.size(); ++i) {
           const Slot slot = plans.forward.step.results[i];
           if (slot.kind != Slot::Kind::store || plans.forward.buffers[slot.index].holds != Holds::saved)
             continue;
           for (const Result& other : graph.results)
             if (graph.at(other.value).type == graph.at(graph.results[i].value).type)
               graph.results[i].value = other.value;
         }
       })},
  };
  constexpr std::uint64_t limit = 3000;
  for (const auto& [fault, made] : faults) {
    std::string broken;
    std::uint64_t tried = 0;
    while (tried < limit && broken.empty()) broken = broken_plan(tried++, made);
    EXPECT_NE(broken, "") << fault << " went unnoticed in " << limit << " graphs";
    std::cout << fault << ": caught after " << tried << " graphs: " << broken << '\n';
  }
  // The same faults in the gradient of the simplified graph are further off than rounding.
  for (std::size_t i = 0; i < 5; ++i) {
    std::string broken;
    std::uint64_t tried = 0;
    while (tried < limit && broken.empty()) broken = broken_gradient(tried++, faults[i].second);
    EXPECT_NE(broken, "") << faults[i].first << " went unnoticed in " << limit << " gradients";
  }
}

}  // namespace
}  // namespace flexsn::test
