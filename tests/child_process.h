// Tests that need a process of their own: one that is killed, forked, or given away to another user.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace flexsn::test {

/// Starts a process that ends with what `work` returns, or with 99; a hanging one is ended by the clock.
inline pid_t start(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(120);
  int code = 99;
  try {
    code = work();
  } catch (...) {
  }
  _exit(code);
}

/// The exit code, or 1000 and the signal.
inline int finish(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

inline int in_child(const std::function<int()>& work) { return finish(start(work)); }

}  // namespace flexsn::test
