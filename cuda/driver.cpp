#include "driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

#include "error.h"

namespace flexsn {

namespace {

constexpr int error_not_initialized = 3, error_no_device = 100;
constexpr int attribute_clock = 13, attribute_multiprocessors = 16, attribute_memory_clock = 36,
              attribute_memory_width = 37, attribute_cache = 38, attribute_major = 75, attribute_minor = 76;
constexpr int oldest_version = 11020;  // memory in the order of a stream

constexpr const char* visible_hint = "; is there one, and may this process see it (CUDA_VISIBLE_DEVICES)?";

/// An illegal address and the like: every call says so from then on.
bool is_lasting(int result) { return result == 700 || result == 702 || (result >= 714 && result <= 719); }

/// "CUDA_ERROR_OUT_OF_MEMORY: out of memory"
std::string text_of_error(const DriverFunctions& cuda, int result) {
  const char *name = nullptr, *text = nullptr;
  cuda.cuGetErrorName(result, &name);
  cuda.cuGetErrorString(result, &text);
  return join(name ? name : "an unknown error", ": ", text ? text : std::to_string(result),
              result == error_not_initialized ? "; a process that was forked from one that used CUDA cannot "
                                                "use it: start it with spawn"
              : result == error_no_device     ? visible_hint
              : is_lasting(result)
                  ? "; a kernel that ran before, maybe none of these, failed, and this process "
                    "cannot use the device any more"
                  : "");
}

std::string version_text(int version) { return join(version / 1000, ".", version % 1000 / 10); }

}  // namespace

struct Driver::Opened {
  DriverFunctions functions;
  int version = 0, devices = 0;
};

Driver::Driver(std::string library) : library_(std::move(library)) {
  if (!library_.empty()) return;
  const char* chosen = std::getenv("FLEXSN_CUDA_DRIVER");
  library_ = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
}

Driver::~Driver() { delete opened_.load(); }

const Driver::Opened& Driver::opened() const {
  if (const Opened* present = opened_.load()) return *present;
  const std::lock_guard lock(opening_);
  if (const Opened* present = opened_.load()) return *present;
  // Never closed: threads of the driver outlive any of us.
  void* handle = dlopen(library_.c_str(), RTLD_NOW | RTLD_LOCAL);
  const bool is_one = handle != nullptr && dlsym(handle, "cuInit") != nullptr;
  if (!is_one)
    user_error("there is no CUDA driver (",
               handle == nullptr ? dlerror() : join("'", library_, "' has no function cuInit"),
               "); install NVIDIA's driver on a machine with a GPU of theirs, or use target \"cpu\"");
  auto made = std::make_unique<Opened>();
  DriverFunctions& cuda = made->functions;
#define FUNCTION(name, ...)                                                                       \
  cuda.name = reinterpret_cast<int (*)(__VA_ARGS__)>(dlsym(handle, #name));                       \
  if (cuda.name == nullptr)                                                                       \
    user_error("the CUDA driver is too old: it has no function " #name "; install one for CUDA ", \
               version_text(oldest_version), " or newer");
  FLEXSN_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION
  const auto check = [&](int result, const char* what) {
    if (result != 0) user_error("the CUDA driver could not ", what, ": ", text_of_error(cuda, result));
  };
  check(cuda.cuInit(0), "start");
  check(cuda.cuDriverGetVersion(&made->version), "tell its version");
  if (made->version < oldest_version)
    user_error("the CUDA driver is too old: it is for CUDA ", version_text(made->version),
               "; install one for ", version_text(oldest_version), " or newer");
  check(cuda.cuDeviceGetCount(&made->devices), "count its devices");
  if (made->devices == 0) user_error("the CUDA driver sees no GPU", visible_hint);
  opened_ = made.get();
  return *made.release();
}

const DriverFunctions& Driver::functions() const { return opened().functions; }

int Driver::version() const { return opened().version; }

int Driver::device_count() const { return opened().devices; }

const Gpu& Driver::gpu(int number) const {
  const DriverFunctions& cuda = functions();
  if (number < 0 || number >= device_count())
    user_error("there is no CUDA device ", number, "; this process sees ", device_count(),
               ", counted from 0");
  const std::lock_guard lock(finding_);
  std::unique_ptr<Gpu>& found = gpus_[number];
  if (found) {
    // Before any lock that another thread may have held at the fork: the driver's own refusal comes too late.
    if (found->process != getpid()) check(error_not_initialized, "use a device");
    return *found;
  }
  auto made = std::make_unique<Gpu>();
  made->number = number;
  made->process = getpid();
  char name[256] = {};
  check(cuda.cuDeviceGet(&made->handle, number), "open a device");
  const int device = made->handle;
  check(cuda.cuDeviceGetName(name, static_cast<int>(sizeof name) - 1, device), "tell a device's name");
  const auto asked = [&](int attribute) {
    int value = 0;
    check(cuda.cuDeviceGetAttribute(&value, attribute, device), "tell what a device can do");
    return value;
  };
  const int major = asked(attribute_major), minor = asked(attribute_minor);
  made->multiprocessors = asked(attribute_multiprocessors);
  // Kilohertz and bits; a device that is shared or has no memory of its own may not tell. Memory moves twice
  // in a cycle; a multiprocessor could start 4 warps of 32 threads at once, of which kernels with the most
  // arithmetic were seen to start three quarters.
  const auto told = [&](int attribute) {
    int value = 0;
    return cuda.cuDeviceGetAttribute(&value, attribute, device) == 0 ? value : 0;
  };
  const double bytes = told(attribute_memory_clock) * 2.0 * told(attribute_memory_width) / 8;
  if (bytes > 0) made->instructions_a_byte = made->multiprocessors * 96.0 * told(attribute_clock) / bytes;
  made->cache_bytes = told(attribute_cache);
  made->name = name;
  made->capability = 10 * major + minor;
  found = std::move(made);
  return *found;
}

void* Driver::context(const Gpu& gpu) const {
  if (void* present = gpu.context.load()) return present;
  const std::lock_guard lock(finding_);
  if (void* present = gpu.context.load()) return present;
  void* made = nullptr;
  const RelaxedCapture relaxed(*this);
  check(functions().cuDevicePrimaryCtxRetain(&made, gpu.handle), "open a device's context");
  gpu.context = made;
  return made;
}

std::string Driver::error_text(int result) const { return text_of_error(functions(), result); }

void Driver::check(int result, const char* what) const {
  if (result != 0) user_error("the CUDA driver could not ", what, ": ", error_text(result));
}

CurrentGpu::CurrentGpu(const Driver& driver, const Gpu& gpu) : driver_(driver) {
  void* current = nullptr;
  void* const wanted = driver.context(gpu);
  driver.check(driver.functions().cuCtxGetCurrent(&current), "tell the current context");
  if (current == wanted) return;
  driver.check(driver.functions().cuCtxPushCurrent_v2(wanted), "change to a device");
  pushed_ = true;
}

CurrentGpu::~CurrentGpu() {
  void* popped = nullptr;
  if (pushed_) driver_.functions().cuCtxPopCurrent_v2(&popped);
}

RelaxedCapture::RelaxedCapture(const Driver& driver) : driver_(driver) {
  driver.check(driver.functions().cuThreadExchangeStreamCaptureMode(&mode_), "allow loading in a capture");
}

RelaxedCapture::~RelaxedCapture() { driver_.functions().cuThreadExchangeStreamCaptureMode(&mode_); }

}  // namespace flexsn
