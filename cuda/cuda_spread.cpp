#include "cuda_spread.h"

#include <algorithm>

#include "error.h"
#include "reduce.h"

namespace flexsn {

namespace {

constexpr std::size_t most_dimensions = 64;  // that are larger than 1
constexpr int threads = 256;                 // of a block, in the text as well
constexpr std::int64_t blocks_of_a_multiprocessor = 16;

/// What the kernel gets; the text declares the same.
struct Spread {
  DeviceAddress from = 0, to = 0;
  std::int64_t count = 0;     ///< of elements, in all rows
  std::int64_t elements = 0;  ///< of a row of `to`
  std::int64_t entries = 0;   ///< of a row of `from`
  std::int64_t threads = 0;   ///< in all blocks
  std::int64_t dimensions = 0;
  std::int64_t size[most_dimensions] = {}, stride[most_dimensions] = {};  ///< the innermost first
};

}  // namespace

std::string spread_text() {
  return R"(// Writes rows of a parameter out to rows of the step's shape.
struct Spread {
  const void* from;
  void* to;
  long long count, elements, entries, threads, dimensions, size[64], stride[64];
};

template <class T>
__device__ void spread(const Spread& s) {
  for (long long n = blockIdx.x * 256ll + threadIdx.x; n < s.count; n += s.threads) {
    long long rest = n % s.elements, entry = n / s.elements * s.entries;
#pragma unroll 1
    for (int d = 0; d < s.dimensions; ++d) {
      entry += rest % s.size[d] * s.stride[d];
      rest /= s.size[d];
    }
    ((T*)s.to)[n] = ((const T*)s.from)[entry];
  }
}

extern "C" __global__ void flexsn_spread_1(Spread s) { spread<unsigned char>(s); }
extern "C" __global__ void flexsn_spread_2(Spread s) { spread<unsigned short>(s); }
extern "C" __global__ void flexsn_spread_4(Spread s) { spread<unsigned int>(s); }
extern "C" __global__ void flexsn_spread_8(Spread s) { spread<unsigned long long>(s); }
)";
}

std::vector<std::string> spread_entries() {
  return {"flexsn_spread_1", "flexsn_spread_2", "flexsn_spread_4", "flexsn_spread_8"};
}

void spread_on(const Cuda& cuda, const Gpu& gpu, void* stream, const Shape& step, const Shape& param,
               std::size_t bytes, std::int64_t rows, const void* from, void* to) {
  const std::vector<Dimension> dimensions = merged_dimensions(step, param);
  internal_check(dimensions.size() <= most_dimensions, "a step has more elements than can be counted");
  Spread spread{.from = reinterpret_cast<DeviceAddress>(from),
                .to = reinterpret_cast<DeviceAddress>(to),
                .count = rows * elements_of(step),
                .elements = elements_of(step),
                .entries = elements_of(param),
                .dimensions = static_cast<std::int64_t>(dimensions.size())};
  std::int64_t stride = 1;
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    const Dimension& dimension = dimensions[dimensions.size() - 1 - d];
    spread.size[d] = dimension.size;
    spread.stride[d] = dimension.kept ? stride : 0;
    if (dimension.kept) stride *= dimension.size;
  }
  const std::int64_t blocks =
      std::min((spread.count + threads - 1) / threads, gpu.multiprocessors * blocks_of_a_multiprocessor);
  spread.threads = blocks * threads;
  const std::size_t entry = bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3;
  void* parameters[] = {&spread};
  cuda.spread().launch(gpu, entry, blocks, threads, stream, parameters);
}

}  // namespace flexsn
