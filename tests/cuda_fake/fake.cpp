#include "fake.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "host_code.h"

namespace flexsn::fake {

namespace {

constexpr int invalid_value = 1, not_initialized = 3, invalid_device = 101, invalid_image = 200,
              invalid_context = 201, invalid_handle = 400, not_found = 500, unsupported_in_capture = 900;
constexpr int relaxed = 2;

struct Module;

struct Function {
  std::string name;
  Module* module = nullptr;
};

struct Module {
  int device;
  HostCode code;
  int held = 0;  ///< its blocks that a multiprocessor is to hold at least
  bool is_early;
  std::map<std::string, Function> functions = {};

  Module(int its_device, const std::string& object)
      : device(its_device), code(object), is_early(object.find(", true>(run)") != object.npos) {
    constexpr std::string_view bounds = "__launch_bounds__(128, ";
    if (const std::size_t at = object.find(bounds); at != object.npos)
      held = std::stoi(object.substr(at + bounds.size()));
  }
};

struct Context {
  int device = 0;
};

struct Program {
  std::string text, log, object;
};

bool started = false;
Context contexts[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
thread_local std::vector<Context*> current;
thread_local int capture_mode = 0;

Fake& fake() { return *flexsn_fake(); }

Context* current_context() { return current.empty() ? nullptr : current.back(); }

/// What loads, allocates or waits is refused in a capture, unless the thread has relaxed it.
bool refused(const char* function) {
  const bool is = fake().capturing && capture_mode != relaxed;
  if (is) fake().wrong(std::string(function) + " in a capture");
  return is;
}

}  // namespace

extern "C" Fake* flexsn_fake() {
  static Fake* const only = new Fake;
  return only;
}

int Fake::entered(const char* function) {
  ++calls[function];
  if (fails_in && *fails_in != std::this_thread::get_id()) return 0;
  if (failing != function || --fails_at > 0) return 0;
  failing.clear();
  return error;
}

}  // namespace flexsn::fake

using namespace flexsn::fake;

#define ENTER(name)                         \
  const std::lock_guard lock(fake().mutex); \
  if (const int error = fake().entered(#name); error != 0) return error

// ---- the driver ------------------------------------------------------------------------------------

extern "C" {

int cuInit(unsigned) {
  ENTER(cuInit);
  started = true;
  return 0;
}

int cuDriverGetVersion(int* version) {
  ENTER(cuDriverGetVersion);
  *version = fake().driver_version;
  return 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : error == 3 ? "CUDA_ERROR_NOT_INITIALIZED" : nullptr;
  return *name == nullptr ? invalid_value : 0;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == 2 ? "out of memory" : error == 3 ? "initialization error" : nullptr;
  return *text == nullptr ? invalid_value : 0;
}

int cuDeviceGetCount(int* count) {
  ENTER(cuDeviceGetCount);
  if (!started) return not_initialized;
  *count = static_cast<int>(fake().devices.size());
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  ENTER(cuDeviceGet);
  if (ordinal < 0 || ordinal >= static_cast<int>(fake().devices.size())) return invalid_device;
  *device = ordinal;
  return 0;
}

int cuDeviceGetName(char* name, int size, int device) {
  ENTER(cuDeviceGetName);
  const std::string text = "Fake " + std::to_string(device);
  std::strncpy(name, text.c_str(), static_cast<std::size_t>(size));
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER(cuDeviceGetAttribute);
  const Device& asked = fake().devices[static_cast<std::size_t>(device)];
  const std::map<int, int> attributes = {
      {13, asked.clock},       {16, asked.multiprocessors}, {36, asked.memory_clock}, {37, asked.memory_bits},
      {38, asked.cache_bytes}, {75, asked.major},           {76, asked.minor}};
  const auto found = attributes.find(attribute);
  if (found == attributes.end()) return invalid_value;
  *value = found->second;
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  ENTER(cuDevicePrimaryCtxRetain);
  if (refused("cuDevicePrimaryCtxRetain")) return unsupported_in_capture;
  *context = &contexts[device];
  return 0;
}

int cuCtxGetCurrent(void** context) {
  ENTER(cuCtxGetCurrent);
  *context = current_context();
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  ENTER(cuCtxPushCurrent_v2);
  current.push_back(static_cast<Context*>(context));
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return invalid_context;
  *context = current.back();
  current.pop_back();  // even where it fails: tests share a thread
  ENTER(cuCtxPopCurrent_v2);
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode != relaxed) {  // what is undone at the end of a scope, where a failure has nobody to be told
    capture_mode = *mode;
    return 0;
  }
  ENTER(cuThreadExchangeStreamCaptureMode);
  std::swap(*mode, capture_mode);
  return 0;
}

int cuModuleLoadDataEx(void** module, const void* image, unsigned count, int* options, void** values) {
  ENTER(cuModuleLoadDataEx);
  if (current_context() == nullptr) return invalid_context;
  if (refused("cuModuleLoadDataEx")) return unsupported_in_capture;
  const std::string object = static_cast<const char*>(image);
  const std::size_t start = object.find(' ') + 1;
  const bool known = object.starts_with("object ") || object.starts_with("ptx ");
  auto made = std::make_unique<Module>(current_context()->device, known ? object.substr(start) : "");
  if (!known) {
    for (unsigned i = 0; i < count; ++i)
      if (options[i] == 5) std::strcpy(static_cast<char*>(values[i]), "no image");
    return invalid_image;
  }
  *module = made.release();
  ++fake().modules;
  return 0;
}

int cuModuleUnload(void* module) {
  ENTER(cuModuleUnload);
  if (refused("cuModuleUnload")) return unsupported_in_capture;
  delete static_cast<Module*>(module);
  --fake().modules;
  return 0;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  ENTER(cuModuleGetFunction);
  auto* holder = static_cast<Module*>(module);
  if (!holder->code.has(name)) return not_found;
  *function = &holder->functions.insert_or_assign(name, Function{name, holder}).first->second;
  return 0;
}

int cuFuncGetAttribute(int* value, int attribute, void* function) {
  ENTER(cuFuncGetAttribute);
  const Module& module = *static_cast<Function*>(function)->module;
  const int local_bytes = module.held > 0   ? fake().held_local_bytes[module.held]
                          : module.is_early ? fake().early_local_bytes
                                            : fake().local_bytes;
  *value = attribute == 4 ? 40 : attribute == 3 ? local_bytes : 1024;
  return 0;
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned, void* stream, void** parameters, void**) {
  ENTER(cuLaunchKernel);
  const auto& called = *static_cast<Function*>(function);
  if (current_context() == nullptr || current_context()->device != called.module->device) {
    fake().wrong("a launch for another device than that of the context");
    return invalid_handle;
  }
  if (grid_x == 0 || grid_x > 0x7fffffff || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024 ||
      block_y != 1 || block_z != 1)
    return invalid_value;
  Launch launch{called.name, called.module->device, grid_x, block_x, stream, {}};
  if (called.name == "flexsn_wide" || called.name == "flexsn_narrow") {
    const auto* record = static_cast<const std::uint64_t*>(parameters[0]);
    launch.record.assign(record, record + fake().record_fields);
  }
  if (called.name.starts_with("flexsn_reduce")) {
    const auto number = [&](int i) { return *static_cast<const std::uint64_t*>(parameters[i]); };
    const std::uint64_t size = called.name.ends_with("64") ? 8 : 4;
    const bool whole = called.name.starts_with("flexsn_reduce_whole");
    const std::uint64_t from = number(0), to = number(1);
    const std::uint64_t entries = whole ? grid_x : number(2) * number(4);
    const std::uint64_t rows = whole ? number(2) * number(4) : number(3);
    const std::uint64_t sums = whole ? 1 : (rows + 1023) / 1024;
    if (from < to + entries * sums * size && to < from + entries * rows * size)
      fake().wrong("a reduction that writes where it reads");
  }
  fake().launches.push_back(launch);
  if (const std::string log =
          called.module->code.run(called.name, grid_x, block_x, parameters, fake().outer_blocks);
      !log.empty()) {
    fake().wrong(log);
    return invalid_image;
  }
  return 0;
}

int cuPointerGetAttribute(void* value, int attribute, std::uint64_t address) {
  ENTER(cuPointerGetAttribute);
  auto above = fake().memory.upper_bound(address);
  if (above == fake().memory.begin()) return invalid_value;
  const auto& [start, room] = *--above;
  if (address >= start + room.bytes) return invalid_value;
  if (attribute != 2 && attribute != 8 && attribute != 9) return invalid_value;
  *static_cast<int*>(value) = attribute == 2   ? (room.managed ? 1 : 2)
                              : attribute == 8 ? room.managed
                                               : room.device;
  return 0;
}

int cuMemAllocAsync(std::uint64_t* address, std::size_t bytes, void*) {
  ENTER(cuMemAllocAsync);
  if (current_context() == nullptr) return invalid_context;
  void* made = std::aligned_alloc(512, (std::max<std::size_t>(bytes, 1) + 511) / 512 * 512);
  if (made == nullptr) return 2;
  *address = reinterpret_cast<std::uint64_t>(made);
  fake().memory[*address] = {std::max<std::size_t>(bytes, 1), current_context()->device};
  return 0;
}

int cuMemAllocManaged(std::uint64_t* address, std::size_t bytes, unsigned) {
  if (const int wrong = cuMemAllocAsync(address, bytes, nullptr); wrong != 0) return wrong;
  const std::lock_guard lock(fake().mutex);
  fake().memory[*address].managed = true;
  return 0;
}

int cuMemFreeAsync(std::uint64_t address, void*) {
  ENTER(cuMemFreeAsync);
  if (fake().memory.erase(address) == 0) return invalid_value;
  std::free(reinterpret_cast<void*>(address));
  return 0;
}

int cuMemFree_v2(std::uint64_t address) { return cuMemFreeAsync(address, nullptr); }

int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void*) {
  ENTER(cuMemcpyDtoDAsync_v2);
  if (bytes > 0) std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}

int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void*) {
  ENTER(cuMemcpyHtoDAsync_v2);
  // It is legal, but a graph would read the host's memory when it is replayed.
  if (refused("cuMemcpyHtoDAsync_v2")) return unsupported_in_capture;
  if (bytes > 0) std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}

int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void*) {
  ENTER(cuMemcpyDtoHAsync_v2);
  if (bytes > 0) std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}

int cuStreamSynchronize(void*) {
  ENTER(cuStreamSynchronize);
  return refused("cuStreamSynchronize") ? unsupported_in_capture : 0;
}

int cuMemsetD8Async(std::uint64_t to, unsigned char value, std::size_t bytes, void*) {
  ENTER(cuMemsetD8Async);
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return 0;
}

// ---- NVRTC -----------------------------------------------------------------------------------------

const char* nvrtcGetErrorString(int error) {
  return error == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_OUT_OF_MEMORY";
}

int nvrtcVersion(int* major, int* minor) {
  ENTER(nvrtcVersion);
  *major = fake().nvrtc_major;
  *minor = fake().nvrtc_minor;
  return 0;
}

int nvrtcGetNumSupportedArchs(int* count) {
  ENTER(nvrtcGetNumSupportedArchs);
  *count = static_cast<int>(fake().architectures.size());
  return 0;
}

int nvrtcGetSupportedArchs(int* capabilities) {
  ENTER(nvrtcGetSupportedArchs);
  std::copy(fake().architectures.begin(), fake().architectures.end(), capabilities);
  return 0;
}

int nvrtcCreateProgram(void** program, const char* text, const char*, int, const char* const*,
                       const char* const*) {
  ENTER(nvrtcCreateProgram);
  *program = new Program{text, "", ""};
  ++fake().programs;
  return 0;
}

int nvrtcDestroyProgram(void** program) {
  ENTER(nvrtcDestroyProgram);
  delete static_cast<Program*>(*program);
  *program = nullptr;
  --fake().programs;
  return 0;
}

int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  auto& compiled = *static_cast<Program*>(program);
  std::string all;
  {
    ENTER(nvrtcCompileProgram);
    for (int i = 0; i < count; ++i) all += (i ? " " : "") + std::string(options[i]);
    fake().compiled.push_back(all);
  }
  if (compiled.text.find("#error") != std::string::npos) compiled.log = "flexsn.cu: #error";
  compiled.object = (all.find("=sm_") != all.npos ? "object " : "ptx ") + compiled.text;
  return compiled.log.empty() ? 0 : 6;
}

int nvrtcGetProgramLogSize(void* program, std::size_t* size) {
  ENTER(nvrtcGetProgramLogSize);
  *size = static_cast<Program*>(program)->log.size() + 1;
  return 0;
}

int nvrtcGetProgramLog(void* program, char* log) {
  ENTER(nvrtcGetProgramLog);
  std::strcpy(log, static_cast<Program*>(program)->log.c_str());
  return 0;
}

int nvrtcGetCUBINSize(void* program, std::size_t* size) {
  ENTER(nvrtcGetCUBINSize);
  *size = static_cast<Program*>(program)->object.size();
  return 0;
}

int nvrtcGetCUBIN(void* program, char* object) {
  ENTER(nvrtcGetCUBIN);
  std::memcpy(object, static_cast<Program*>(program)->object.data(),
              static_cast<Program*>(program)->object.size());
  return 0;
}

int nvrtcGetPTXSize(void* program, std::size_t* size) {
  ENTER(nvrtcGetPTXSize);
  *size = static_cast<Program*>(program)->object.size();
  return 0;
}

int nvrtcGetPTX(void* program, char* text) {
  ENTER(nvrtcGetPTX);
  std::memcpy(text, static_cast<Program*>(program)->object.data(),
              static_cast<Program*>(program)->object.size());
  return 0;
}

}  // extern "C"
