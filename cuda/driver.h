// The CUDA driver, opened when it is first needed. No CUDA header is used: the few types and functions that
// kernels need are declared here as the driver has them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace flexsn {

/// An address in a device's memory.
using DeviceAddress = std::uint64_t;

// All return 0 where they worked. Handles (context, module, function, stream) are pointers to what only the
// driver knows.
#define FLEXSN_DRIVER_FUNCTIONS(FUNCTION)                                                               \
  FUNCTION(cuInit, unsigned flags)                                                                      \
  FUNCTION(cuDriverGetVersion, int* version)                                                            \
  FUNCTION(cuGetErrorName, int error, const char** name)                                                \
  FUNCTION(cuGetErrorString, int error, const char** text)                                              \
  FUNCTION(cuDeviceGetCount, int* count)                                                                \
  FUNCTION(cuDeviceGet, int* device, int ordinal)                                                       \
  FUNCTION(cuDeviceGetName, char* name, int size, int device)                                           \
  FUNCTION(cuDeviceGetAttribute, int* value, int attribute, int device)                                 \
  FUNCTION(cuDevicePrimaryCtxRetain, void** context, int device)                                        \
  FUNCTION(cuCtxGetCurrent, void** context)                                                             \
  FUNCTION(cuCtxPushCurrent_v2, void* context)                                                          \
  FUNCTION(cuCtxPopCurrent_v2, void** context)                                                          \
  FUNCTION(cuThreadExchangeStreamCaptureMode, int* mode)                                                \
  FUNCTION(cuModuleLoadDataEx, void** module, const void* image, unsigned count, int* options,          \
           void** values)                                                                               \
  FUNCTION(cuModuleUnload, void* module)                                                                \
  FUNCTION(cuModuleGetFunction, void** function, void* module, const char* name)                        \
  FUNCTION(cuFuncGetAttribute, int* value, int attribute, void* function)                               \
  FUNCTION(cuLaunchKernel, void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,           \
           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,   \
           void** parameters, void** extra)                                                             \
  FUNCTION(cuPointerGetAttribute, void* value, int attribute, DeviceAddress address)                    \
  FUNCTION(cuMemAllocAsync, DeviceAddress* address, std::size_t bytes, void* stream)                    \
  FUNCTION(cuMemFreeAsync, DeviceAddress address, void* stream)                                         \
  FUNCTION(cuMemcpyDtoDAsync_v2, DeviceAddress to, DeviceAddress from, std::size_t bytes, void* stream) \
  FUNCTION(cuMemcpyHtoDAsync_v2, DeviceAddress to, const void* from, std::size_t bytes, void* stream)   \
  FUNCTION(cuMemcpyDtoHAsync_v2, void* to, DeviceAddress from, std::size_t bytes, void* stream)         \
  FUNCTION(cuStreamSynchronize, void* stream)                                                           \
  FUNCTION(cuMemsetD8Async, DeviceAddress to, unsigned char value, std::size_t bytes, void* stream)

/// The driver's functions by their own names.
struct DriverFunctions {
#define FUNCTION(name, ...) int (*name)(__VA_ARGS__) = nullptr;
  FLEXSN_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

/// One GPU. Its primary context, which is that of the CUDA runtime and of torch, is opened by the first who
/// runs something there and kept to the end of the process.
struct Gpu {
  int number = 0;
  int handle = 0;  ///< the driver's
  std::string name;
  int capability = 0;  ///< 90 for 9.0
  int multiprocessors = 0;
  int cache_bytes = 0;             ///< of its L2 cache; 0: unknown
  double instructions_a_byte = 0;  ///< that it starts in the time its memory moves a byte; 0: unknown
  mutable std::atomic<void*> context = nullptr;
  pid_t process = 0;  ///< that asked for it; a child of a fork cannot use it
};

/// May be used from several threads at once. What fails is tried again by the next call.
class Driver {
 public:
  /// "": $FLEXSN_CUDA_DRIVER, else libcuda.so.1.
  explicit Driver(std::string library = "");
  ~Driver();

  /// Throws a UserError where there is no driver, or none that works, and says what to do.
  const DriverFunctions& functions() const;
  /// 13000 for 13.0
  int version() const;
  int device_count() const;
  /// Throws a UserError where there is no such device.
  const Gpu& gpu(int number) const;
  /// Throws a UserError where it cannot be opened.
  void* context(const Gpu& gpu) const;

  /// Throws a UserError where `result` is an error; `what` was being done: "queue a kernel".
  void check(int result, const char* what) const;
  /// "CUDA_ERROR_OUT_OF_MEMORY: out of memory"
  std::string error_text(int result) const;

 private:
  struct Opened;
  const Opened& opened() const;

  std::string library_;
  mutable std::mutex opening_, finding_;
  mutable std::atomic<const Opened*> opened_ =
      nullptr;  ///< for good: whoever runs kernels asks again and again
  mutable std::map<int, std::unique_ptr<Gpu>> gpus_;
};

/// Makes a GPU's context that of the calling thread while alive.
class CurrentGpu {
 public:
  CurrentGpu(const Driver& driver, const Gpu& gpu);
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

/// While alive, the calling thread may load and unload code though a stream is being captured.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED, then what it was before
};

}  // namespace flexsn
