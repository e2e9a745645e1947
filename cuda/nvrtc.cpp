#include "nvrtc.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "emit_cuda.h"
#include "error.h"

namespace flexsn {

// All but nvrtcGetErrorString return 0 where they worked; a program is a pointer to what only NVRTC knows.
#define FLEXSN_NVRTC_FUNCTIONS(FUNCTION)                                                        \
  FUNCTION(nvrtcVersion, int* major, int* minor)                                                \
  FUNCTION(nvrtcGetNumSupportedArchs, int* count)                                               \
  FUNCTION(nvrtcGetSupportedArchs, int* capabilities)                                           \
  FUNCTION(nvrtcCreateProgram, void** program, const char* text, const char* name, int headers, \
           const char* const* header_texts, const char* const* header_names)                    \
  FUNCTION(nvrtcDestroyProgram, void** program)                                                 \
  FUNCTION(nvrtcCompileProgram, void* program, int count, const char* const* options)           \
  FUNCTION(nvrtcGetProgramLogSize, void* program, std::size_t* size)                            \
  FUNCTION(nvrtcGetProgramLog, void* program, char* log)                                        \
  FUNCTION(nvrtcGetCUBINSize, void* program, std::size_t* size)                                 \
  FUNCTION(nvrtcGetCUBIN, void* program, char* object)                                          \
  FUNCTION(nvrtcGetPTXSize, void* program, std::size_t* size)                                   \
  FUNCTION(nvrtcGetPTX, void* program, char* text)

struct Nvrtc::Opened {
#define FUNCTION(name, ...) int (*name)(__VA_ARGS__) = nullptr;
  FLEXSN_NVRTC_FUNCTIONS(FUNCTION)
#undef FUNCTION
  const char* (*nvrtcGetErrorString)(int error) = nullptr;
  std::string version;
  std::vector<int> capabilities;     ///< that it makes code for, ascending
  std::vector<const char*> options;  ///< of every compilation

  void check(int result, const char* what) const {
    if (result != 0) user_error(version, " could not ", what, ": ", nvrtcGetErrorString(result));
  }
};

namespace {

constexpr int error_compilation = 6;
constexpr const char* names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};
constexpr const char* advice =
    "; install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, and set FLEXSN_NVRTC to the path of "
    "libnvrtc.so where the system does not find it";

/// Folders where a Python package of the process would have NVRTC: beside the other libraries of CUDA.
std::vector<std::filesystem::path> neighbouring_folders() {
  std::vector<std::filesystem::path> folders;
  const auto look = [](dl_phdr_info* library, std::size_t, void* found) {
    const std::filesystem::path path = library->dlpi_name == nullptr ? "" : library->dlpi_name;
    const std::string file = path.filename().string();
    if (!file.starts_with("libcudart") && !file.starts_with("libcublas")) return 0;
    auto& list = *static_cast<std::vector<std::filesystem::path>*>(found);
    list.push_back(path.parent_path());
    list.push_back(path.parent_path().parent_path().parent_path() / "cuda_nvrtc" / "lib");
    return 0;
  };
  dl_iterate_phdr(look, &folders);
  folders.emplace_back("/usr/local/cuda/lib64");
  return folders;
}

/// The library's handle; null with `problem` where there is none.
void* open_library(const std::string& chosen, std::string& problem) {
  const auto open = [&](const std::string& name, int flags) {
    void* handle = dlopen(name.c_str(), flags);
    if (handle != nullptr && dlsym(handle, "nvrtcVersion") != nullptr) return handle;
    if (problem.empty() && (flags & RTLD_NOLOAD) == 0)
      problem = handle == nullptr ? dlerror() : join("'", name, "' has no function nvrtcVersion");
    return static_cast<void*>(nullptr);
  };
  if (!chosen.empty()) return open(chosen, RTLD_NOW | RTLD_LOCAL);
  for (const int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL})
    for (const char* name : names)
      if (void* handle = open(name, flags)) return handle;
  for (const std::filesystem::path& folder : neighbouring_folders())
    for (const char* name : names)
      if (void* handle = open((folder / name).string(), RTLD_NOW | RTLD_LOCAL)) return handle;
  return nullptr;
}

/// "9.0"
std::string capability_text(int capability) { return join(capability / 10, ".", capability % 10); }

/// The beginning of a compiler's log, which may be of any length.
std::string first_lines(std::string log) {
  constexpr std::size_t most = 2000;
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  if (log.size() > most) log = log.substr(0, log.rfind('\n', most)) + "\n...";
  return log;
}

}  // namespace

std::string left_for_reading(const std::string& text) {
  std::error_code error;
  const std::filesystem::path chosen = std::filesystem::temp_directory_path(error);
  std::string path = ((error ? "/tmp" : chosen) / "flexsn-XXXXXX.cu").string();
  const int file = mkstemps(path.data(), 3);
  if (file < 0) return "(it could not be written to a temporary file)";
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(file, text.data() + written, text.size() - written);
    if (count <= 0) break;
    written += static_cast<std::size_t>(count);
  }
  close(file);
  return path;
}

Nvrtc::Nvrtc(std::string library) : library_(std::move(library)) {
  if (const char* chosen = std::getenv("FLEXSN_NVRTC"); library_.empty() && chosen != nullptr)
    library_ = chosen;
}

Nvrtc::~Nvrtc() { delete opened_.load(); }

const Nvrtc::Opened& Nvrtc::opened() const {
  if (const Opened* present = opened_.load()) return *present;
  const std::lock_guard lock(opening_);
  if (const Opened* present = opened_.load()) return *present;
  std::string problem;
  void* handle = open_library(library_, problem);
  if (handle == nullptr) user_error("there is no NVRTC (", problem, ")", advice);
  auto made = std::make_unique<Opened>();
  made->version = "NVRTC";
  const auto too_old = [](const char* name) {
    user_error("NVRTC is too old: it has no function ", name, advice);
  };
#define FUNCTION(name, ...)                                                  \
  made->name = reinterpret_cast<decltype(made->name)>(dlsym(handle, #name)); \
  if (made->name == nullptr) too_old(#name);
  FLEXSN_NVRTC_FUNCTIONS(FUNCTION)
  FUNCTION(nvrtcGetErrorString)
#undef FUNCTION
  int major = 0, minor = 0, count = 0;
  made->check(made->nvrtcVersion(&major, &minor), "tell its version");
  made->version = join("NVRTC ", major, ".", minor);
  made->options = cuda_compile_options_of(major, minor);
  made->check(made->nvrtcGetNumSupportedArchs(&count), "tell what it compiles for");
  made->capabilities.resize(static_cast<std::size_t>(count));
  made->check(made->nvrtcGetSupportedArchs(made->capabilities.data()), "tell what it compiles for");
  std::sort(made->capabilities.begin(), made->capabilities.end());
  if (count == 0) user_error(made->version, " compiles for no device at all", advice);
  opened_ = made.get();
  return *made.release();
}

const std::string& Nvrtc::version() const { return opened().version; }

std::string Nvrtc::architecture(int capability) const {
  const std::vector<int>& known = opened().capabilities;
  const auto above = std::upper_bound(known.begin(), known.end(), capability);
  if (above == known.begin())
    user_error(opened().version, " compiles for devices of capability ", capability_text(known.front()),
               " and newer, but this one has ", capability_text(capability),
               "; use an older NVRTC (FLEXSN_NVRTC names its library)");
  const int nearest = *(above - 1);
  return join(nearest == capability ? "sm_" : "compute_", nearest);
}

std::string Nvrtc::compile(const std::string& text, const std::string& architecture) const {
  const Opened& nvrtc = opened();
  struct Program {
    const Opened& nvrtc;
    void* handle = nullptr;
    ~Program() {
      if (handle != nullptr) nvrtc.nvrtcDestroyProgram(&handle);
    }
  } program{nvrtc};
  nvrtc.check(nvrtc.nvrtcCreateProgram(&program.handle, text.c_str(), "flexsn.cu", 0, nullptr, nullptr),
              "take a text");
  const std::string wanted = "--gpu-architecture=" + architecture;
  std::vector<const char*> options = nvrtc.options;
  options.push_back(wanted.c_str());
  const int result =
      nvrtc.nvrtcCompileProgram(program.handle, static_cast<int>(options.size()), options.data());
  if (result != 0) {
    std::size_t size = 0;
    std::string log;
    if (nvrtc.nvrtcGetProgramLogSize(program.handle, &size) == 0) log.resize(size);
    if (!log.empty() && nvrtc.nvrtcGetProgramLog(program.handle, log.data()) != 0) log.clear();
    const std::string what = join(nvrtc.version, " could not compile a kernel for ", architecture, ": ",
                                  nvrtc.nvrtcGetErrorString(result), "; the text is ", left_for_reading(text),
                                  "\n", first_lines(log));
    // What it says of the text is for us to mend; what else goes wrong (memory, its own files) is not.
    if (result == error_compilation) throw InternalError(what);
    throw UserError(what);
  }
  const bool object = architecture.starts_with("sm_");
  std::size_t size = 0;
  nvrtc.check(
      object ? nvrtc.nvrtcGetCUBINSize(program.handle, &size) : nvrtc.nvrtcGetPTXSize(program.handle, &size),
      "give what it compiled");
  std::string made(size, '\0');
  nvrtc.check(object ? nvrtc.nvrtcGetCUBIN(program.handle, made.data())
                     : nvrtc.nvrtcGetPTX(program.handle, made.data()),
              "give what it compiled");
  return made;
}

}  // namespace flexsn
