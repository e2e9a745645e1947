// Scans in plain torch, and handles of the operators' registry.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>

#include "flexsn/torch.h"
#include "registry.h"
#include "user_error.h"

namespace flexsn {
namespace {

using nn::eager_scan;
using nn::eager_scan_final_state;
using nn::OutputTemplate;
using nn::Tensors;
using nn::TensorStep;

/// One input, one state, a lifted factor; one output.
const TensorStep leaky_step = [](at::TensorList arguments) {
  const at::Tensor h = arguments[1] * 0.5 + arguments[0] * arguments[2], y = at::sigmoid(h);
  return Tensors{y, h - y};
};

struct Scan : ::testing::Test {
  at::Tensor x = at::randn({5, 3}).requires_grad_(), v = at::randn({3}).requires_grad_(),
             w = at::randn({}).requires_grad_();
};

TEST_F(Scan, AStepMayWriteToItsState) {
  const TensorStep counting = [](at::TensorList arguments) {
    at::Tensor state = arguments[1];
    state.add_(1);
    return Tensors{state, state};
  };
  const Tensors found = eager_scan(counting, {1, 1, 1}, {at::zeros({3, 1}), at::zeros({1})});
  for (const at::Tensor& sequence : found) EXPECT_TRUE(at::equal(sequence.flatten(), at::arange(1.f, 4.f)));
}

TEST_F(Scan, SequencesAndLastStatesAreThoseOfALoop) {
  Tensors outputs, states;
  at::Tensor state = v;
  for (std::int64_t t = 0; t < 5; ++t) {
    const Tensors now = leaky_step({x[t], state, w});
    outputs.push_back(now[0]);
    states.push_back(state = now[1]);
  }
  const Tensors sequences = eager_scan(leaky_step, {1, 1, 1}, {x, v, w}),
                last = eager_scan_final_state(leaky_step, {1, 1, 1}, {x, v, w});
  ASSERT_EQ(sequences.size(), 2u);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_TRUE(sequences[0].equal(at::stack(outputs)));
  EXPECT_TRUE(sequences[1].equal(at::stack(states)));
  EXPECT_TRUE(last[0].equal(sequences[0]));
  EXPECT_TRUE(last[1].equal(state));

  const Tensors expected = torch::autograd::grad({at::stack(outputs).sum() + state.sum()}, {x, v, w});
  const Tensors found = torch::autograd::grad({last[0].sum() + last[1].sum()}, {x, v, w});
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(found[i], expected[i])) << i;
}

TEST_F(Scan, WithoutStepsTheStepIsNotCalled) {
  const TensorStep never = [](at::TensorList) -> Tensors { throw std::runtime_error("called"); };
  const at::Tensor none = at::empty({0, 3});
  const std::vector<OutputTemplate> like = {{.shape = {7}, .type = at::kInt}};
  const Tensors sequences = eager_scan(never, {1, 1, 1}, {none, v}, like);
  EXPECT_EQ(sequences[0].sizes(), (std::vector<std::int64_t>{0, 7}));
  EXPECT_EQ(sequences[0].scalar_type(), at::kInt);
  EXPECT_EQ(sequences[1].sizes(), (std::vector<std::int64_t>{0, 3}));
  const Tensors last = eager_scan_final_state(never, {1, 1, 0}, {none, v});
  ASSERT_EQ(last.size(), 1u);
  EXPECT_TRUE(last[0].equal(v));
  EXPECT_NE(last[0].data_ptr(), v.data_ptr());
  EXPECT_EQ(
      error([&] { eager_scan(never, {1, 1, 1}, {none, v}); }),
      "eager_scan: a scan of no steps (T == 0) needs a template for each of 1 outputs, as the step is not "
      "called");
  EXPECT_EQ(error([&] { eager_scan(never, {1, 1, 2}, {none, v}, like); }),
            "eager_scan: expected 2 output templates, found 1");
}

TEST_F(Scan, AStateThatIsARowOfAnInputIsACopy) {
  const TensorStep row = [](at::TensorList arguments) { return Tensors{arguments[0], arguments[0]}; };
  at::Tensor input = at::randn({5, 3});
  const Tensors last = eager_scan_final_state(row, {1, 1, 1}, {input, v});
  const at::Tensor before = last[1].clone();
  input.zero_();
  EXPECT_TRUE(last[1].equal(before));
}

TEST_F(Scan, ErrorsSayWhatWasExpectedAndFound) {
  EXPECT_EQ(error([&] { eager_scan(leaky_step, {1, 1, 1}, {x}); }),
            "eager_scan: expected at least 2 tensors, 1 input sequences and 1 states, found 1");
  EXPECT_EQ(error([&] { eager_scan(leaky_step, {0, 1, 0}, {x}); }),
            "eager_scan: there must be an input, whose leading dimension is time");
  EXPECT_EQ(error([&] { eager_scan(leaky_step, {2, 0, 1}, {x, v}); }),
            "eager_scan: all inputs must have the same number of steps: input 0 has 5, input 1 has 3");
  EXPECT_EQ(error([&] { eager_scan(leaky_step, {1, 0, 1}, {w}); }),
            "eager_scan: input 0 must have time as its first dimension, found a scalar");
  EXPECT_EQ(error([&] { eager_scan(leaky_step, {1, 1, 2}, {x, v, w}); }),
            "eager_scan: the step must return 2 outputs and 1 states, found 2 tensors");
}

// ---- handles
// -----------------------------------------------------------------------------------------------

TEST(TorchHandle, AnEntryGoesWithItsLastReference) {
  const Registry::Info before = registry().info();
  int closed = 0;
  std::int64_t number = 0;
  {
    Handle first("text", [&] { ++closed; });
    number = first.number();
    EXPECT_EQ(first.text(), "text");
    Handle copy = first;
    EXPECT_EQ(registry().info().owners, before.owners + 2);
    const Handle active(number, Holder::active);
    EXPECT_EQ(registry().info().active, before.active + 1);
    Handle moved = std::move(copy);
    copy = moved;
    first = std::move(moved);
    EXPECT_EQ(registry().info().owners, before.owners + 2);
    EXPECT_EQ(registry().info().entries, before.entries + 1);
    EXPECT_EQ(closed, 0);
  }
  EXPECT_EQ(closed, 1);
  EXPECT_EQ(registry().info().entries, before.entries);
  EXPECT_GT(Handle("another").number(), number) << "numbers are not used again";
  const std::string unknown = error([&] { Handle(number, Holder::owner); });
  EXPECT_EQ(unknown, "flexsn: there is no kernel handle " + std::to_string(number) +
                         "; it was never registered, or its last reference was released");
}

TEST(TorchHandle, ActiveReferencesOutliveOwners) {
  int closed = 0;
  std::optional<Handle> owner(std::in_place, "text", [&] { ++closed; });
  {
    const Handle active(owner->number(), Holder::active);
    owner.reset();
    EXPECT_EQ(closed, 0);
    EXPECT_EQ(active.text(), "text");
  }
  EXPECT_EQ(closed, 1);
}

TEST(TorchHandle, ReferencesAreCountedUnderThreads) {
  std::atomic<int> closed = 0;
  const Registry::Info before = registry().info();
  {
    const Handle shared("text", [&] { ++closed; });
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        for (int k = 0; k < 1000; ++k) {
          const Handle copy = shared, active(shared.number(), Holder::active);
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(closed, 0);
    EXPECT_EQ(registry().info().owners, before.owners + 1);
    EXPECT_EQ(registry().info().active, before.active);
  }
  EXPECT_EQ(closed, 1);
}

}  // namespace
}  // namespace flexsn
