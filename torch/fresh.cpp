#include "fresh.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include <cstdint>

namespace flexsn {

at::Tensor fresh(at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  constexpr std::uintptr_t page = std::uintptr_t{1} << 21;
  at::Tensor tensor = at::empty(shape, at::dtype(type).device(device));
  if (!device.is_cpu()) return tensor;
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + tensor.nbytes()) / page * page;
  // A hint: where the system has no large pages, nothing changes.
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  return tensor;
}

}  // namespace flexsn
