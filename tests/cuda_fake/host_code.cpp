#include "host_code.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace flexsn::fake {

namespace {

bool runs() { return std::getenv("FLEXSN_FAKE_RUNS") != nullptr; }

/// A folder for this process, gone with it.
const std::filesystem::path& home() {
  struct Folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("flexsn_fake_" + std::to_string(getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      std::error_code error;
      std::filesystem::remove_all(path, error);
    }
  };
  static const Folder folder;
  return folder.path;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Calls any entry with parameters as a launch gives them.
constexpr const char* caller = R"(
#include <utility>
template <class... A, std::size_t... i>
void call_with(void (*entry)(A...), void* const* given, std::index_sequence<i...>) {
  entry(*static_cast<std::remove_const_t<A>*>(given[i])...);
}
template <class... A>
void call(void (*entry)(A...), void* const* given) { call_with(entry, given, std::index_sequence_for<A...>()); }
)";

/// A function that launches an entry.
std::string launcher(const std::string& entry, const std::string& waits) {
  return "extern \"C\" __attribute__((visibility(\"default\"))) void launch_" + entry +
         "(long long blocks, unsigned threads, void** given, bool outer) {\n  cuda_host::launch(blocks, "
         "threads, " +
         waits + ", [](const void* all) { call(&" + entry +
         ", static_cast<void* const*>(all)); }, given, outer);\n}\n";
}

/// The text as a library; null with a log where it does not compile.
void* compiled(const std::string& text, std::string& log) {
  static std::atomic<int> count = 0;
  const std::string base = (home() / std::to_string(count++)).string();
  std::string unit = "#include \"" FLEXSN_TESTS_DIR "/cuda_host.h\"\n" + text + caller;
  for (const char* entry :
       {"flexsn_wide", "flexsn_narrow", "flexsn_reduce_f32", "flexsn_reduce_f64", "flexsn_reduce_whole_f32",
        "flexsn_reduce_whole_f64", "flexsn_store_f32", "flexsn_store_f64", "flexsn_store_f16",
        "flexsn_store_bf16", "flexsn_spread_1", "flexsn_spread_2", "flexsn_spread_4", "flexsn_spread_8"}) {
    const std::string name = entry;
    if (text.find(" " + name + "(") == text.npos) continue;
    const bool sums = text.find("long long partial_sums;") != text.npos;
    unit += launcher(name, name.starts_with("flexsn_reduce") ? "true"
                           : sums ? "static_cast<const Run*>(given[0])->partial_sums != 0"
                                  : "false");
  }
  std::ofstream(base + ".cpp") << unit;
  const std::string command = "\"" FLEXSN_CXX
                              "\" -std=c++17 -O0 -w -ffp-contract=off -fPIC -shared "
                              "-fvisibility=hidden \"" +
                              base + ".cpp\" -o \"" + base + ".so\" 2> \"" + base + ".log\"";
  void* library = nullptr;
  if (std::system(command.c_str()) == 0) library = dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) log = content_of(base + ".log") + " could not be compiled for the host";
  return library;
}

}  // namespace

HostCode::~HostCode() {
  if (library_ != nullptr) dlclose(library_);
}

bool HostCode::has(const std::string& function) const { return text_.find(function) != text_.npos; }

std::string HostCode::run(const std::string& function, unsigned blocks, unsigned threads, void** parameters,
                          bool outer) {
  if (!runs()) return "";
  {
    const std::lock_guard lock(mutex_);
    std::string log;
    if (library_ == nullptr) library_ = compiled(text_, log);
    if (library_ == nullptr) return log;
  }
  using Launch = void(long long blocks, unsigned threads, void** parameters, bool outer);
  reinterpret_cast<Launch*>(dlsym(library_, ("launch_" + function).c_str()))(blocks, threads, parameters,
                                                                             outer);
  return "";
}

}  // namespace flexsn::fake
