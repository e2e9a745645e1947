// A run on a device with arrays of the host, for checks: they are copied there, and back.
#include <algorithm>
#include <utility>

#include "cuda_code.h"
#include "error.h"
#include "executable.h"

namespace flexsn {

namespace {

/// Memory of a device until the end of the scope.
class Copy {
 public:
  Copy(const Driver& driver, std::size_t bytes) : driver_(driver) {
    driver_.check(driver_.functions().cuMemAllocAsync(&address_, bytes, nullptr), "allocate memory");
  }
  Copy(Copy&& other) noexcept : driver_(other.driver_), address_(std::exchange(other.address_, 0)) {}
  Copy& operator=(Copy&&) = delete;
  ~Copy() {
    if (address_ != 0) driver_.functions().cuMemFreeAsync(address_, nullptr);
  }

  DeviceAddress address() const { return address_; }
  void* data() const { return reinterpret_cast<void*>(address_); }

 private:
  const Driver& driver_;
  DeviceAddress address_ = 0;
};

/// From the first entry of a buffer to its last.
std::size_t bytes_in(const Plan& plan, const Buffer& buffer, const Bound& bound, const PlanRun& run) {
  const std::int64_t rows = rows_of(plan, buffer, run.steps);
  const std::int64_t row = buffer.map == Map::scalar    ? 1
                           : buffer.map == Map::indexed ? bound.count
                                                        : run.elements;
  if (rows == 0 || row == 0) return 0;
  return static_cast<std::size_t>((rows - 1) * bound.row_stride + row) * size_of(buffer.mem);
}

}  // namespace

void cuda_run_on_copies(const Executable& executable, PlanRun run) {
  const Driver& driver = Cuda::standard().driver;
  const CurrentGpu current(driver, driver.gpu(run.device));
  const Plan& plan = executable.plan();
  const std::vector<Bound> host = run.buffers;
  std::vector<Copy> copies;
  copies.reserve(host.size());
  for (std::size_t i = 0; i < host.size(); ++i) {
    const std::size_t bytes = host[i].data == nullptr ? 0 : bytes_in(plan, plan.buffers[i], host[i], run);
    copies.emplace_back(driver, std::max<std::size_t>(bytes, 1));
    if (host[i].data == nullptr) continue;
    run.buffers[i].data = copies[i].data();
    driver.check(
        driver.functions().cuMemcpyHtoDAsync_v2(copies[i].address(), host[i].data, bytes, run.stream),
        "copy to the device");
  }
  executable.run(run, {});
  for (std::size_t i = 0; i < host.size(); ++i)
    if (plan.buffers[i].write && host[i].data != nullptr)
      driver.check(
          driver.functions().cuMemcpyDtoHAsync_v2(host[i].data, copies[i].address(),
                                                  bytes_in(plan, plan.buffers[i], host[i], run), run.stream),
          "copy from the device");
  driver.check(driver.functions().cuStreamSynchronize(run.stream), "run a kernel");
}

}  // namespace flexsn
