// Work beside the program, and the end of the program.
#include "background.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <thread>

namespace flexsn::test {
namespace {

TEST(Background, ATaskRunsInAThreadThatIsWaitedFor) {
  std::thread::id its;
  {
    const Background task([&] { its = std::this_thread::get_id(); });
  }
  EXPECT_NE(its, std::thread::id());
  EXPECT_NE(its, std::this_thread::get_id());
  const Background failing([] { throw std::runtime_error("lost"); });
}

TEST(BackgroundDeathTest, TheProcessWaitsForItsTasks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave_at_once = [] {
    new Background([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      std::fputs("done", stderr);
    });
    std::exit(0);
  };
  EXPECT_EXIT(leave_at_once(), testing::ExitedWithCode(0), "done");
}

TEST(BackgroundDeathTest, AForkedChildDoesNotWaitForTheTasksOfItsParent) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "what a child gives up, with the threads that it does not have, is taken for leaks";
#endif
  GTEST_FLAG_SET(death_test_style, "fast");
  std::promise<void> end;
  auto task = std::make_unique<Background>([&] { end.get_future().wait(); });
  const auto leave = [&] {
    task.reset();
    std::exit(3);
  };
  EXPECT_EXIT(leave(), testing::ExitedWithCode(3), "");
  end.set_value();
}

}  // namespace
}  // namespace flexsn::test
