// Memory that is kept: of large tensors for the next ones, and of neurons that were used.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "flexsn/flexsn.h"
#include "kept_memory.h"
#include "neuron.h"

namespace flexsn {
namespace {

constexpr std::size_t page = KeptMemory::page;

TEST(KeptMemory, ABlockThatWasGivenBackIsTakenAgainWhereItFits) {
  KeptMemory memory(100 * page);
  const Block block = memory.take(9 * page - 5).value();
  EXPECT_EQ(block.bytes, 9 * page);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.start) % page, 0u);
  std::memset(block.start, 1, block.bytes);
  memory.give_back(block);
  EXPECT_EQ(memory.kept(), 9 * page);
  const Block larger = memory.take(10 * page).value(), small = memory.take(4 * page).value();
  EXPECT_EQ(memory.kept(), 9 * page) << "for neither of these";
  const Block again = memory.take(8 * page + 1).value();
  EXPECT_EQ(again.start, block.start);
  EXPECT_EQ(again.bytes, block.bytes);
  EXPECT_EQ(memory.kept(), 0u);
  for (const Block& one : {larger, small, again}) memory.give_back(one);
}

TEST(KeptMemory, OfBlocksThatFitTheSmallestAndThenTheLastUsedIsTaken) {
  KeptMemory memory(100 * page);
  const Block first = memory.take(8 * page).value(), large = memory.take(9 * page).value(),
              last = memory.take(8 * page).value();
  for (const Block& block : {first, large, last}) memory.give_back(block);
  EXPECT_EQ(memory.take(8 * page)->start, last.start);
  EXPECT_EQ(memory.take(8 * page)->start, first.start);
  EXPECT_EQ(memory.take(8 * page)->start, large.start);
  for (const Block& block : {first, large, last}) memory.give_back(block);
}

TEST(KeptMemory, NoMoreIsKeptThanTheLimitAndTheOldestGoesFirst) {
  KeptMemory memory(20 * page);
  const Block first = memory.take(8 * page).value(), second = memory.take(8 * page).value(),
              third = memory.take(8 * page).value(), large = memory.take(21 * page).value();
  for (const Block& block : {first, second, third, large}) memory.give_back(block);
  EXPECT_EQ(memory.kept(), 16 * page);
  EXPECT_EQ(memory.take(8 * page)->start, third.start);
  EXPECT_EQ(memory.take(8 * page)->start, second.start);
  EXPECT_EQ(memory.kept(), 0u);
  for (const Block& block : {second, third}) memory.give_back(block);
  KeptMemory none(0);
  none.give_back(none.take(page).value());
  EXPECT_EQ(none.kept(), 0u);
}

TEST(KeptMemory, WhatNoSystemHasIsNotGiven) {
  KeptMemory memory(20 * page);
  memory.give_back(memory.take(8 * page).value());
  EXPECT_FALSE(memory.take(std::size_t{1} << 61).has_value());
  EXPECT_FALSE(memory.take(~std::size_t{0}).has_value());
  EXPECT_EQ(memory.kept(), 0u) << "what is kept goes before memory is refused";
}

TEST(KeptMemory, ThreadsNeverGetOneBlockTwice) {
  KeptMemory memory(64 * page);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number)
    threads.emplace_back([&, number] {
      for (int turn = 0; turn < 300; ++turn) {
        const Block block = memory.take((2 + turn % 3) * page).value();
        auto* word = static_cast<volatile int*>(block.start);
        *word = number;
        std::this_thread::yield();
        if (*word != number) ++wrong;
        memory.give_back(block);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(memory.kept(), 64 * page);
}

TEST(KeptMemory, TheLimitIsAShareOfTheMachineOrWhatTheEnvironmentSays) {
  constexpr std::size_t mebi = std::size_t{1} << 20;
  EXPECT_EQ(kept_memory_limit(nullptr, 1600 * mebi), 100 * mebi);
  EXPECT_EQ(kept_memory_limit("", 64000 * mebi), 1024 * mebi);
  EXPECT_EQ(kept_memory_limit("0", 1600 * mebi), 0u);
  EXPECT_EQ(kept_memory_limit("3000", 1600 * mebi), 3000 * mebi);
  for (const char* wrong : {"-1", "1.5", "many", "12 ", "99999999999999"}) {
    try {
      kept_memory_limit(wrong, mebi);
      ADD_FAILURE() << wrong;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()),
                std::string("FLEXSN_KEPT_MEMORY must be a whole number of MiB, found '") + wrong + "'");
    }
  }
}

TEST(Remembered, NeuronsThatWereNotUsedForLongAreForgottenAndMadeAgain) {
  const auto text = [](std::size_t number) {
    return "neuron n {\n  input x : f32\n  %a = mul %x, " + std::to_string(number) + "\n  output z = %a\n}\n";
  };
  const std::weak_ptr<const TorchNeuron> first = neuron_of(text(1));
  const NeuronHandle held = neuron_of(text(2));
  const TorchNeuron* used = neuron_of(text(3)).get();
  EXPECT_EQ(first.lock(), neuron_of(text(1)));
  for (std::size_t number = 4; number < 3 * neurons_remembered; ++number) {
    neuron_of(text(number));
    if (number % 100 == 0) {
      EXPECT_EQ(neuron_of(text(3)).get(), used) << number;
    }
  }
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(held->text(), text(2));
  EXPECT_EQ(held.use_count(), 1) << "only we have it";
  EXPECT_EQ(neuron_of(text(1))->text(), text(1));
}

}  // namespace
}  // namespace flexsn
