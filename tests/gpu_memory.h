// Arrays in a GPU's memory, for tests: filled from the host, read back, with bytes around them that nobody
// may touch.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "cuda_code.h"
#include "cuda_fake/fake.h"
#include "error.h"
#include "executable.h"
#include "flexsn/flexsn.h"

namespace flexsn::test {

/// A function of the driver by its name; null where it has none.
template <class Function>
Function* driver_function(const char* name) {
  const char* chosen = std::getenv("FLEXSN_CUDA_DRIVER");
  static void* const driver = dlopen(chosen != nullptr ? chosen : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(driver, name));
}

/// The driver's state where it only pretends; else null.
inline fake::Fake* fake_driver() {
  auto* const find = driver_function<fake::Fake*()>("flexsn_fake");
  return find == nullptr ? nullptr : find();
}
inline bool pretends() { return fake_driver() != nullptr; }

/// What a test should not have left, or done, as far as the driver tells; "" where all is well.
inline std::string left_behind() {
  if (!pretends()) return "";
  if (!fake_driver()->memory.empty()) return "memory of a device is still held";
  return fake_driver()->misuse;
}

/// A test that needs a GPU, or a driver that pretends; it is to leave nothing on the device.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_absent(); !why.empty()) GTEST_SKIP() << why;
  }
  void TearDown() override { EXPECT_EQ(left_behind(), ""); }
};

inline void wait_for(void* stream, int device = 0) {
  const Driver& driver = Cuda::standard().driver;
  const CurrentGpu current(driver, driver.gpu(device));
  driver.check(driver.functions().cuStreamSynchronize(stream), "wait for a stream");
}

/// What a call queues on a stream, as a graph that can be run again. A driver that pretends calls it each
/// time, and knows what is not legal in a capture.
class Captured {
 public:
  explicit Captured(std::function<void(void* stream)> call) : call_(std::move(call)) {
    if (pretends()) return;
    const Driver& driver = Cuda::standard().driver;
    const CurrentGpu current(driver, driver.gpu(0));
    driver.check(driver_function<int(void**, unsigned)>("cuStreamCreate")(&stream_, 1), "make a stream");
    driver.check(driver_function<int(void*, int)>("cuStreamBeginCapture_v2")(stream_, 0), "begin a capture");
    call_(stream_);
    driver.check(driver_function<int(void*, void**)>("cuStreamEndCapture")(stream_, &graph_),
                 "end a capture");
    auto* ready = driver_function<int(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags");
    driver.check(ready(&executable_, graph_, 0), "make a graph ready");
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    if (executable_ != nullptr) driver_function<int(void*)>("cuGraphExecDestroy")(executable_);
    if (graph_ != nullptr) driver_function<int(void*)>("cuGraphDestroy")(graph_);
    if (stream_ != nullptr) driver_function<int(void*)>("cuStreamDestroy_v2")(stream_);
  }

  void run() const {
    if (pretends()) {
      struct Capturing {
        Capturing() { fake_driver()->capturing = true; }
        ~Capturing() { fake_driver()->capturing = false; }
      } const capturing;
      return call_(nullptr);
    }
    const Driver& driver = Cuda::standard().driver;
    const CurrentGpu current(driver, driver.gpu(0));
    driver.check(driver_function<int(void*, void*)>("cuGraphLaunch")(executable_, stream_), "run a graph");
    wait_for(stream_);
  }

 private:
  std::function<void(void* stream)> call_;
  void *stream_ = nullptr, *graph_ = nullptr, *executable_ = nullptr;
};

/// `bytes` that start `offset` bytes after a multiple of 256.
class GpuMemory {
 public:
  explicit GpuMemory(std::size_t bytes, std::size_t offset = 0, int device = 0)
      : size_(bytes), offset_(guard + offset), device_(device) {
    const Driver& driver = Cuda::standard().driver;
    const CurrentGpu current(driver, driver.gpu(device_));
    driver.check(driver.functions().cuMemAllocAsync(&start_, offset_ + size_ + guard, nullptr), "allocate");
    driver.check(driver.functions().cuMemsetD8Async(start_, pattern, offset_ + size_ + guard, nullptr),
                 "fill");
    wait_for(nullptr, device_);
  }
  explicit GpuMemory(const std::vector<std::byte>& content, std::size_t offset = 0, int device = 0)
      : GpuMemory(content.size(), offset, device) {
    fill(content);
  }
  GpuMemory(GpuMemory&& other) noexcept
      : start_(std::exchange(other.start_, 0)),
        size_(other.size_),
        offset_(other.offset_),
        device_(other.device_) {}
  GpuMemory& operator=(GpuMemory&&) = delete;
  ~GpuMemory() {
    if (start_ == 0) return;
    const Driver& driver = Cuda::standard().driver;
    const CurrentGpu current(driver, driver.gpu(device_));
    driver.functions().cuMemFreeAsync(start_, nullptr);
  }

  void* data() const { return reinterpret_cast<void*>(start_ + offset_); }
  std::size_t size() const { return size_; }

  void fill(const std::vector<std::byte>& content) {
    const Driver& driver = Cuda::standard().driver;
    const CurrentGpu current(driver, driver.gpu(device_));
    driver.check(
        driver.functions().cuMemcpyHtoDAsync_v2(start_ + offset_, content.data(), content.size(), nullptr),
        "copy to the device");
    wait_for(nullptr, device_);
  }

  /// `count` bytes from `first` on. Wait for what writes them first.
  std::vector<std::byte> part(std::size_t first, std::size_t count) const {
    return bytes_at(start_ + offset_ + first, count);
  }
  std::vector<std::byte> content() const { return part(0, size_); }

  /// Are the bytes before and after as they were?
  bool is_untouched_around() const {
    for (const std::vector<std::byte>& side :
         {bytes_at(start_, offset_), bytes_at(start_ + offset_ + size_, guard)})
      if (!std::all_of(side.begin(), side.end(), [](std::byte b) { return b == std::byte{pattern}; }))
        return false;
    return true;
  }

 private:
  static constexpr std::size_t guard = 256;
  static constexpr unsigned char pattern = 0xa5;

  std::vector<std::byte> bytes_at(DeviceAddress address, std::size_t count) const {
    const Driver& driver = Cuda::standard().driver;
    const CurrentGpu current(driver, driver.gpu(device_));
    std::vector<std::byte> bytes(count);
    driver.check(driver.functions().cuMemcpyDtoHAsync_v2(bytes.data(), address, count, nullptr),
                 "copy from the device");
    wait_for(nullptr, device_);
    return bytes;
  }

  DeviceAddress start_ = 0;
  std::size_t size_, offset_;
  int device_;
};

/// An array of the host on the device.
class GpuArray {
 public:
  explicit GpuArray(const Array& array, std::size_t offset = 0)
      : type_(array.type), shape_(array.shape), memory_(array.bytes, offset) {}

  View view() const {
    return View(memory_.data(), type_, static_cast<std::int64_t>(memory_.size() / size_of(type_)));
  }
  void fill(const Array& array) { memory_.fill(array.bytes); }
  Array array() const {
    Array found(type_, shape_);
    found.bytes = memory_.content();
    EXPECT_TRUE(memory_.is_untouched_around());
    return found;
  }

 private:
  Mem type_;
  std::vector<std::int64_t> shape_;
  GpuMemory memory_;
};

}  // namespace flexsn::test
