#include "pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "error.h"

namespace flexsn {

namespace {

thread_local bool inside_task = false;

/// Tasks that run in the calling thread are no one's to steal, and no task may wait for a pool.
struct InsideTask {
  bool before = inside_task;
  InsideTask() { inside_task = true; }
  ~InsideTask() { inside_task = before; }
};

void run_here(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  std::exception_ptr first;
  for (std::int64_t i = 0; i < count; ++i) {
    try {
      task(i);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace

void Threads::run(std::int64_t tasks, const std::function<void(std::int64_t)>& task) const {
  if (!parallel_for || tasks <= 1) return run_here(tasks, task);
  // It is the caller's: what it does wrong must neither leave results unwritten nor reach beyond them.
  std::vector<std::atomic<bool>> begun(static_cast<std::size_t>(tasks));
  std::atomic<std::int64_t> wrong = -1;
  std::atomic<bool> is_wrong = false;
  parallel_for(tasks, [&](std::int64_t i) {
    if (i >= 0 && i < tasks && !begun[static_cast<std::size_t>(i)].exchange(true)) return task(i);
    wrong = i;
    is_wrong = true;
  });
  constexpr const char* rule = "; it must call its function once for each number below its count";
  if (is_wrong)
    user_error("parallel_for was given ", tasks, " tasks and ran task ", wrong.load(),
               wrong < 0 || wrong >= tasks ? "" : " twice", rule);
  for (std::int64_t i = 0; i < tasks; ++i)
    if (!begun[static_cast<std::size_t>(i)])
      user_error("parallel_for was given ", tasks, " tasks and returned without running task ", i, rule);
}

/// What the pool's threads share. One job at a time: `turn` orders the callers.
struct Pool::Shared {
  std::mutex turn;
  std::mutex mutex;
  std::condition_variable work, done;
  const std::function<void(std::int64_t)>* task = nullptr;
  std::int64_t next = 0, count = 0, ended = 0;
  std::exception_ptr problem;
  bool stop = false;
  const pid_t process = getpid();
  std::vector<std::thread> threads;

  /// Takes tasks of the job until none is left; `lock` is held on entry and on return.
  void work_on(std::unique_lock<std::mutex>& lock) {
    while (next < count) {
      const std::int64_t mine = next++;
      const std::function<void(std::int64_t)>& job = *task;
      lock.unlock();
      std::exception_ptr caught;
      try {
        const InsideTask inside;
        job(mine);
      } catch (...) {
        caught = std::current_exception();
      }
      lock.lock();
      if (caught && !problem) problem = caught;
      if (++ended == count) done.notify_all();
    }
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (!stop) {
      work_on(lock);
      work.wait(lock, [&] { return stop || next < count; });
    }
  }
};

Pool::Pool(int threads) : shared_(std::make_shared<Shared>()) {
  try {
    for (int i = 1; i < threads; ++i)
      shared_->threads.emplace_back([shared = shared_.get()] { shared->serve(); });
  } catch (const std::system_error&) {
    // The system gives no more: those that are there do the work.
  }
}

Pool::~Pool() {
  if (shared_->process != getpid()) {
    // The threads did not come along, so there is nothing to wait for; their handles must not be destroyed.
    new std::shared_ptr<Shared>(std::move(shared_));
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->work.notify_all();
  for (std::thread& thread : shared_->threads) thread.join();
}

int Pool::threads() const { return static_cast<int>(shared_->threads.size()) + 1; }

void Pool::run(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  Shared& shared = *shared_;
  if (inside_task || count <= 1 || shared.threads.empty() || shared.process != getpid())
    return run_here(count, task);
  const std::lock_guard turn(shared.turn);
  std::unique_lock lock(shared.mutex);
  shared.task = &task;
  shared.next = shared.ended = 0;
  shared.count = count;
  shared.problem = nullptr;
  shared.work.notify_all();
  shared.work_on(lock);
  shared.done.wait(lock, [&] { return shared.ended == shared.count; });
  shared.next = shared.count = 0;
  if (shared.problem) std::rethrow_exception(std::exchange(shared.problem, nullptr));
}

Threads Pool::as_threads() {
  return {threads(),
          [this](std::int64_t count, const std::function<void(std::int64_t)>& task) { run(count, task); }};
}

ThreadCount thread_count(const char* asked, int processors) {
  if (asked == nullptr || *asked == '\0') return {processors, ""};
  const std::string_view text = asked;
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && end == text.data() + text.size() && count >= 1 && count <= most_threads)
    return {count, ""};
  return {processors,
          shortened(join("FLEXSN_THREADS is '", text, "', but must be a number from 1 to ", most_threads,
                         "; ", processors, processors == 1 ? " thread is" : " threads are",
                         " used, as many as there are processors"))};
}

int default_thread_count() {
  cpu_set_t allowed;
  const int processors = sched_getaffinity(0, sizeof allowed, &allowed) == 0
                             ? CPU_COUNT(&allowed)
                             : static_cast<int>(std::thread::hardware_concurrency());
  const ThreadCount found =
      thread_count(std::getenv("FLEXSN_THREADS"), std::clamp(processors, 1, most_threads));
  static std::once_flag once;
  if (!found.warning.empty())
    std::call_once(once, [&] { std::fputs(join("flexsn: warning: ", found.warning, "\n").c_str(), stderr); });
  return found.count;
}

}  // namespace flexsn
