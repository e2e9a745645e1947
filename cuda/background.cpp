#include "background.h"

#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>

namespace flexsn {

namespace {

/// The tasks of a process.
struct Running {
  std::mutex mutex;
  std::condition_variable ended;
  int tasks = 0;
  const pid_t process = getpid();
};

Running& running() {
  static Running* const shared = new Running;  // to the end: tasks may end after static objects
  return *shared;
}

void wait_for_all() {
  Running& all = running();
  if (all.process != getpid()) return;
  std::unique_lock lock(all.mutex);
  all.ended.wait(lock, [&] { return all.tasks == 0; });
}

void begin() {
  const std::lock_guard lock(running().mutex);
  // Registered after the libraries that tasks use were opened, so it runs before they end.
  [[maybe_unused]] static const int registered = std::atexit(wait_for_all);
  ++running().tasks;
}

void end() {
  const std::lock_guard lock(running().mutex);
  --running().tasks;
  running().ended.notify_all();
}

}  // namespace

Background::Background(std::function<void()> task) : process_(getpid()) {
  begin();
  try {
    thread_ = std::make_unique<std::thread>([task = std::move(task)] {
      try {
        task();
      } catch (...) {  // whoever needs what it makes will try again, and say what is wrong
      }
      end();
    });
  } catch (const std::system_error&) {
    end();
  }
}

Background::~Background() {
  if (!thread_) return;
  if (process_ == getpid())
    thread_->join();
  else
    static_cast<void>(thread_.release());
}

}  // namespace flexsn
