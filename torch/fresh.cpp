#include "fresh.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "error.h"
#include "kept_memory.h"

namespace flexsn {

namespace {

/// Never destroyed: tensors may outlive everything else of the process.
KeptMemory& kept_memory() {
  static KeptMemory& memory = *new KeptMemory(kept_memory_limit(
      std::getenv("FLEXSN_KEPT_MEMORY"), static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                                             static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))));
  return memory;
}

void give_back(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  c10::profiledCPUMemoryReporter().Delete(block->start);
  kept_memory().give_back(*block);
}

class LargeTensors final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto block = std::make_unique<Block>();
    const std::optional<Block> found = kept_memory().take(bytes);
    // Torch's own allocator promises on some machines what they do not have.
    if (!found)
      C10_THROW_ERROR(Error, join("flexsn: there is not enough memory for a result of ", bytes,
                                  " bytes; use fewer steps or smaller ones at a time"));
    *block = *found;
    void* start = block->start;
    c10::profiledCPUMemoryReporter().New(start, bytes);
    return {start, block.release(), &give_back, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

at::Tensor fresh(at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  static LargeTensors& large_tensors = *new LargeTensors;
  // Straight from its allocator: a kernel waits for its results, and at::empty takes twice as long.
  if (device.is_cuda() && c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice() == device)
    return at::Tensor(at::detail::empty_generic(shape, at::detail::getCUDAHooks().getCUDADeviceAllocator(),
                                                c10::DispatchKeySet(c10::DispatchKey::CUDA), type,
                                                std::nullopt));
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(shape)) * c10::elementSize(type);
  if (!device.is_cpu() || bytes < 2 * KeptMemory::page ||
      c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator())
    return at::empty(shape, at::dtype(type).device(device));
  return at::Tensor(at::detail::empty_generic(
      shape, &large_tensors, c10::DispatchKeySet(c10::DispatchKey::CPU), type, std::nullopt));
}

}  // namespace flexsn
