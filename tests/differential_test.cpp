// The differential fuzzer: passes and kernels that are broken on purpose are found, and the case that shows
// it is made small.
#include "differential_stages.h"

#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "differential_shrink.h"
#include "ops.h"
#include "random_graph.h"

namespace flexsn::fuzz {
namespace {

using namespace ir;

/// A change of the nodes of one row.
Faults::Change in_rows(Op op, std::function<Id(Graph&, const Node&)> change) {
  return [op, change = std::move(change)](const Graph& graph) {
    return rewrite(graph, [&](Graph& out, const Node& node) {
      return node.op == op ? change(out, node) : out.append(node);
    });
  };
}

Id with_operands_swapped(Graph& out, const Node& node) {
  Node turned = node;
  std::swap(turned.operands[0], turned.operands[1]);
  return out.append(turned);
}

/// What fails first, and what is left of it.
struct Found {
  std::uint64_t number = 0;
  std::string difference;
  Shrunk shrunk;
};

Found found_with(const Faults& faults, Stage stage) {
  constexpr std::uint64_t most_cases = 3000;
  constexpr int most_tries = 2000;
  Stages stages("", "", faults);
  for (std::uint64_t number = 0; number < most_cases; ++number) {
    const Case one = draw_case(1, number);
    const std::string difference = stages.run(stage, one, law(one)).difference;
    if (difference.empty()) continue;
    const auto fails = [&](const Case& tried) {
      try {
        return !stages.run(stage, tried, law(tried)).difference.empty();
      } catch (const UserError&) {
        return false;
      }
    };
    return {number, difference, shrink(one, fails, most_tries)};
  }
  ADD_FAILURE() << "went unnoticed in " << most_cases << " neurons";
  return {};
}

/// A value and what rounds it to its memory.
constexpr int most_ops = 2;

void expect_small(const Found& found) {
  const Case& smallest = found.shrunk.smallest;
  EXPECT_LE(op_count(smallest.graph), most_ops) << as_text(smallest);
  std::int64_t elements = 1;
  for (std::int64_t size : smallest.shape()) elements *= size;
  EXPECT_LE(smallest.steps() * elements, 2) << as_text(smallest);
  std::cout << "case " << found.number << ", " << found.difference << ", " << found.shrunk.tries
            << " tries:\n"
            << as_text(smallest);
}

TEST(Differential, ABrokenPassIsFoundAndMadeSmall) {
  expect_small(found_with({.simplified = in_rows(Op::sub, with_operands_swapped)}, Stage::passes));
  expect_small(found_with({.simplified = in_rows(Op::constant,
                                                 [](Graph& out, const Node& node) {
                                                   Node changed = node;
                                                   if (node.immediate == bits_of(node.type, -0.0) &&
                                                       is_float(node.type))
                                                     changed.immediate = 0;
                                                   return out.append(changed);
                                                 })},
                          Stage::passes));
}

TEST(Differential, ABrokenPlanIsFoundAndMadeSmall) {
  // A gradient that flows through what is detached shows in training only.
  const Found found =
      found_with({.kernel = in_rows(Op::detach, [](Graph&, const Node& node) { return node.operands[0]; })},
                 Stage::plans);
  expect_small(found);
  EXPECT_TRUE(found.shrunk.smallest.trains());
}

TEST(Differential, ABrokenKernelIsFoundAndMadeSmall) {
  const std::string absent = Stages("", "").absent(Stage::cpu);
  if (!absent.empty()) GTEST_SKIP() << absent;
  expect_small(found_with({.kernel = in_rows(Op::sub, with_operands_swapped)}, Stage::cpu));
}

TEST(Differential, ACaseIsTheSameForTheSameSeed) {
  for (std::uint64_t number : {0, 7, 1000})
    EXPECT_EQ(as_text(draw_case(3, number)), as_text(draw_case(3, number)));
  EXPECT_NE(as_text(draw_case(3, 0)), as_text(draw_case(3, 1)));
  EXPECT_NE(as_text(draw_case(3, 0)), as_text(draw_case(4, 0)));
}

TEST(Differential, EveryRowTypeAndRoleOccurs) {
  std::set<Op> rows;
  std::set<std::pair<Role, Mem>> arguments;
  for (std::uint64_t number = 0; number < 1500; ++number) {
    const Case one = draw_case(1, number);
    for (const Node& node : one.graph.nodes) rows.insert(node.op);
    for (const Argument& argument : one.graph.arguments) arguments.insert({argument.role, argument.mem});
  }
  EXPECT_EQ(arguments.size(), 3u * 7);
  for (Op op : test::step_rows()) EXPECT_TRUE(rows.contains(op)) << ir::name_of(op);
}

}  // namespace
}  // namespace flexsn::fuzz
