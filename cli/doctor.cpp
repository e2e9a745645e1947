// flexsn doctor: what this machine offers. It asks each target, looks at files, and asks python3 for
// versions.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "cli.h"
#include "flexsn/flexsn.h"

extern char** environ;

namespace cli {

namespace {

namespace fs = std::filesystem;

/// Something that a part of flexsn uses, or would.
struct Need {
  std::string part, needs;
  bool found = false;
  std::string detail;  ///< where it is, or how to get it
};

/// The rest of the first line of `path` that starts with `key`, without blanks, '=', ':' and quotes around
/// it.
std::string value_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t first = line.find_first_not_of(" \t=:\"", key.size());
    if (first == std::string::npos) return "";
    return line.substr(first, line.find_last_not_of(" \t\"") - first + 1);
  }
  return "";
}

std::string system_text() {
  utsname names{};
  if (uname(&names) != 0) return "unknown";
  const std::string distribution = value_in("/etc/os-release", "PRETTY_NAME");
  return (distribution.empty() ? "" : distribution + ", ") + names.sysname + " " + names.release + ", " +
         names.machine;
}

std::string processor_text() {
  std::string name = value_in("/proc/cpuinfo", "model name");
  if (name.empty()) name = "unknown model";
#if defined(__x86_64__)
  const bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  name += wide ? ", with AVX2 and FMA" : ", without AVX2 and FMA";
#elif defined(__aarch64__)
  name += ", with NEON";
#endif
  return name;
}

std::string compiler_text() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#elif defined(__GNUC__)
  return "GCC " __VERSION__;
#else
  return "unknown";
#endif
}

/// Where the system's loader looks for libraries, and where the toolkits put theirs.
std::vector<fs::path> library_directories() {
  std::vector<fs::path> directories;
  if (const char* listed = std::getenv("LD_LIBRARY_PATH")) {
    std::istringstream parts(listed);
    for (std::string part; std::getline(parts, part, ':');)
      if (!part.empty()) directories.emplace_back(part);
  }
  std::error_code error;
  for (fs::directory_iterator entry("/etc/ld.so.conf.d", error), end; !error && entry != end;
       entry.increment(error)) {
    std::ifstream file(entry->path());
    for (std::string line; std::getline(file, line);)
      if (line.starts_with('/')) directories.emplace_back(line);
  }
  for (const char* directory :
       {"/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu", "/usr/lib/llvm-19/lib", "/usr/local/cuda/lib64", "/usr/lib/wsl/lib"})
    directories.emplace_back(directory);
  return directories;
}

/// The first file in those directories whose name is one of `names`, or starts with it where it ends in a
/// dot.
std::string library_found(const std::vector<std::string>& names) {
  for (const fs::path& directory : library_directories()) {
    std::error_code error;
    std::vector<std::string> found;
    for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string file = entry->path().filename().string();
      const bool wanted = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return name.ends_with('.') ? file.starts_with(name) : file == name;
      });
      if (wanted) found.push_back(entry->path().string());
    }
    if (!found.empty()) return *std::min_element(found.begin(), found.end());
  }
  return "";
}

/// `chosen` is the environment variable that names another file; `function`: one that the library has.
Need library(std::string part, std::string needs, const char* chosen, const std::vector<std::string>& names,
             const char* function, const std::string& advice) {
  const char* given = std::getenv(chosen);
  const std::string file = given != nullptr ? given : "";
  if (!file.empty()) {
    std::error_code error;
    std::string problem;
    void* const handle = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);  // never closed: a driver has threads
    if (handle == nullptr && file.find('/') != file.npos && !fs::exists(file, error))
      problem = "which is not there";
    else if (handle == nullptr)
      problem = std::string("which cannot be loaded: ") + dlerror();
    else if (dlsym(handle, function) == nullptr)
      problem = std::string("which has no function ") + function;
    return {std::move(part), std::move(needs), problem.empty(),
            problem.empty() ? file : std::string(chosen) + " names " + file + ", " + problem};
  }
  const std::string path = library_found(names);
  return {std::move(part), std::move(needs), !path.empty(), path.empty() ? "not found; " + advice : path};
}

/// What a program prints, or nothing when it cannot be run or takes longer than `seconds`.
std::string output_of(std::vector<const char*> command, int seconds) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  std::vector<char*> arguments;
  for (const char* word : command) arguments.push_back(const_cast<char*>(word));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const bool started = posix_spawnp(&child, command[0], &actions, nullptr, arguments.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (started) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{ends[0], POLLIN, 0};
    char buffer[256];
    if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) <= 0) {
      kill(child, SIGKILL);
      text.clear();
      break;
    }
    const ssize_t count = read(ends[0], buffer, sizeof buffer);
    if (count <= 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  close(ends[0]);
  if (started) waitpid(child, nullptr, 0);
  return text;
}

Need python() {
  // Asks for the version that is installed; importing torch would take seconds.
  const char* question =
      "import sys, importlib.metadata as m\n"
      "print(sys.version.split()[0], flush=True)\n"
      "print(m.version('torch'))";
  std::istringstream answer(output_of({"python3", "-c", question}, 10));
  std::string version, torch;
  answer >> version >> torch;
  Need need{"Python and PyTorch", "python3 with torch", !torch.empty(), ""};
  if (version.empty())
    need.detail = "not found; install Python 3, then: python3 -m pip install torch";
  else if (torch.empty())
    need.detail = "Python " + version + " without torch; python3 -m pip install torch";
  else
    need.detail = "Python " + version + ", torch " + torch;
  return need;
}

}  // namespace

Outcome doctor(const Request& request) {
  const std::vector<Need> needs = {
      library("code for NVIDIA GPUs", "CUDA driver, libcuda.so.1", "FLEXSN_CUDA_DRIVER", {"libcuda.so.1"},
              "cuInit", "it comes with the NVIDIA driver and needs a GPU of theirs"),
      library("code for NVIDIA GPUs", "NVRTC, libnvrtc.so", "FLEXSN_NVRTC", {"libnvrtc.so", "libnvrtc.so."},
              "nvrtcVersion",
              "it comes with the CUDA toolkit, or: python3 -m pip install nvidia-cuda-nvrtc, and set "
              "FLEXSN_NVRTC to its library"),
      python(),
  };
  const std::string version(flexsn::version());
  const unsigned threads = std::thread::hardware_concurrency();
  if (request.json) {
    nlohmann::ordered_json json = {{"version", version},
                                   {"system", system_text()},
                                   {"processor", processor_text()},
                                   {"threads", threads},
                                   {"compiler", compiler_text()},
                                   {"targets", nlohmann::ordered_json::array()},
                                   {"needs", nlohmann::ordered_json::array()}};
    for (const flexsn::TargetInfo& target : flexsn::target_list())
      json["targets"].push_back(
          {{"name", target.name}, {"available", target.available}, {"note", target.note}});
    for (const Need& need : needs)
      json["needs"].push_back(
          {{"part", need.part}, {"needs", need.needs}, {"found", need.found}, {"detail", need.detail}});
    return {json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"};
  }
  std::string text = table({{"flexsn", version},
                            {"system", system_text()},
                            {"processor", processor_text()},
                            {"threads", std::to_string(threads)},
                            {"compiler", compiler_text()}});
  std::vector<std::vector<std::string>> rows = {{"target", "here", "note"}};
  for (const flexsn::TargetInfo& target : flexsn::target_list())
    rows.push_back({target.name, target.available ? "yes" : "no", target.note});
  text += "\n" + table(rows) + "\n";
  rows = {{"part", "uses", "here", "detail"}};
  for (const Need& need : needs)
    rows.push_back({need.part, need.needs, need.found ? "yes" : "no", need.detail});
  return {text + table(rows)};
}

}  // namespace cli
