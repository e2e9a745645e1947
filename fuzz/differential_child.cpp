#include "differential_child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace flexsn::fuzz {

ChildAnswer in_child(const std::function<std::string()>& work) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe to a child process");
  std::fflush(nullptr);
  // Its files go with it, also where it crashes.
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("flexsn_child_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no child process could be started");
  if (child == 0) {
    close(ends[0]);
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(signal, SIG_DFL);
    setenv("TMPDIR", folder.c_str(), 1);
    const std::string text = work();
    const char* from = text.data();
    for (std::size_t left = text.size(); left > 0;) {
      const ssize_t written = write(ends[1], from, left);
      if (written <= 0) _exit(1);
      from += written;
      left -= static_cast<std::size_t>(written);
    }
    _exit(0);
  }
  close(ends[1]);
  ChildAnswer answer;
  char part[4096];
  for (ssize_t size = 0; (size = read(ends[0], part, sizeof part)) > 0;)
    answer.text.append(part, static_cast<std::size_t>(size));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (WIFSIGNALED(status)) answer.signal = WTERMSIG(status);
  return answer;
}

}  // namespace flexsn::fuzz
