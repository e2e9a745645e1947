// Work beside the program.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <thread>

namespace flexsn {

/// A task in a thread of its own. What it throws is lost, and where no thread can be had it does not run. Its
/// end is waited for when this goes, and at the latest before the process ends: the compiler and the driver
/// that it uses must not be torn down under it.
class Background {
 public:
  explicit Background(std::function<void()> task);
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

 private:
  std::unique_ptr<std::thread> thread_;
  pid_t process_;  ///< a forked child has none of the threads
};

}  // namespace flexsn
