// Threads: kernels ask for tasks to be run; whoever calls them says by whom. The default is a small pool.
#pragma once

#include "flexsn/flexsn.h"

namespace flexsn {

/// Who runs a kernel's tasks, and how many there should be. Results do not depend on it.
struct Threads {
  int count = 1;
  ParallelFor parallel_for = {};               ///< empty: the calling thread, one after another
  std::int64_t grain = std::int64_t{1} << 21;  ///< ops on single elements that are worth waking a thread

  void run(std::int64_t tasks, const std::function<void(std::int64_t)>& task) const;
};

/// Threads that wait for tasks. It may be used from several threads at once (one after another is served),
/// and from within a task (which is then run by the calling thread). A child process after a fork has none of
/// the threads: there the caller runs everything.
class Pool {
 public:
  /// `threads` counts the calling one.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const;
  /// The first exception of a task is thrown again here, after all tasks have ended.
  void run(std::int64_t count, const std::function<void(std::int64_t)>& task);
  /// This pool as a kernel takes it; the pool must outlive it.
  Threads as_threads();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

inline constexpr int most_threads = 1024;

/// How many threads there are by default, and what is wrong with what was asked for.
struct ThreadCount {
  int count = 1;
  std::string warning;
};
/// `asked` is the text of $FLEXSN_THREADS, null or empty where it is not set: from 1 to `most_threads`.
ThreadCount thread_count(const char* asked, int processors);

/// As many threads as the process may use processors, unless $FLEXSN_THREADS says otherwise; what cannot be
/// used of that is one warning on standard error in a process.
int default_thread_count();

}  // namespace flexsn
