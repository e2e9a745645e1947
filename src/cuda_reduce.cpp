// The kernels that finish parameter gradients: sums over the middle dimension by the tree of reduce.h.
#include <algorithm>
#include <bit>

#include "cuda_lines.h"
#include "cuda_prelude.h"
#include "emit_cuda.h"

namespace flexsn {

namespace {

// A block of threads is `outers` x `groups` x `tile`: a tile of neighbouring columns, groups of rows of the
// middle dimension, and several of the outer one where the middle one is short. A thread adds its own rows,
// four at a time, by the tree; the sums of groups meet in shared memory.
constexpr std::string_view text = R"(
__device__ __forceinline__ int flexsn_power_of_two(long long atleast, int most) {
  int power = 1;
  while (power < most && power < atleast) power *= 2;
  return power;
}

template <class T>
__device__ __forceinline__ void flexsn_reduce(
    const T* from, T* to, long long outer, long long n, long long inner) {
  const int tile = flexsn_power_of_two(inner, 32);           // columns
  const int span = flexsn_power_of_two(n, BLOCK);            // rows of a block
  const int rows = span < 4 * tile ? span : 4 * tile;        // of a thread
  const int groups = span / rows, outers = THREADS / (tile * groups);
  const int column = threadIdx.x % tile, group = threadIdx.x / tile % groups;
  const long long tiles = (inner + tile - 1) / tile, spans = (n + span - 1) / span;
  const long long c = blockIdx.x % tiles * tile + column;
  const long long s = blockIdx.x / tiles % spans;
  const long long o = blockIdx.x / tiles / spans * outers + threadIdx.x / (tile * groups);
  const bool mine = c < inner && o < outer;
  const long long first = s * span + group * rows;
  T sum = T(-0.0);
  T parts[6];  // sums of 4, 8, 16 ... rows that wait for their neighbours
  for (int leaf = 0; leaf * 4 < rows; ++leaf) {
    T values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const long long row = first + leaf * 4 + i;
      values[i] = mine && leaf * 4 + i < rows && row < n ? from[(o * n + row) * inner + c] : T(-0.0);
    }
    sum = flexsn_tree(values);
    bool waits = false;
#pragma unroll
    for (int level = 0; level < 6; ++level) {
      if (waits) continue;
      waits = (leaf >> level & 1) == 0;
      if (waits)
        parts[level] = sum;
      else
        sum = parts[level] + sum;
    }
  }
  __shared__ T sums[THREADS];
  sums[threadIdx.x] = sum;
  for (int distance = 1; distance < groups; distance *= 2) {
    __syncthreads();
    if (group % (2 * distance) == 0)
      sums[threadIdx.x] = sums[threadIdx.x] + sums[threadIdx.x + distance * tile];
  }
  if (mine && group == 0) to[(o * spans + s) * inner + c] = sums[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(THREADS) flexsn_reduce_f32(
    const float* from, float* to, long long outer, long long n, long long inner) {
  flexsn_reduce(from, to, outer, n, inner);
}
extern "C" __global__ void __launch_bounds__(THREADS) flexsn_reduce_f64(
    const double* from, double* to, long long outer, long long n, long long inner) {
  flexsn_reduce(from, to, outer, n, inner);
}

// A block adds all that one result needs: leaves of four, then sums over the threads. A tail that is no power of
// two is filled with -0, so that the tree over n x tail is that over each tail, then over n.
template <class T>
__device__ __forceinline__ void flexsn_reduce_whole(
    const T* from, T* to, long long n, long long inner, long long tail) {
  const long long outer = blockIdx.x / inner, column = blockIdx.x % inner;
  int bits = 0;  // of a place in a filled tail
  while ((1 << bits) < tail) ++bits;
  const auto leaf = [&](int number) {
    T values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (number * WHOLE_THREADS + threadIdx.x) * 4 + i;
      const int row = at >> bits, end = at - (row << bits);
      values[i] = row < n && end < tail ? from[((outer * n + row) * inner + column) * tail + end] : T(-0.0);
    }
    return flexsn_tree(values);
  };
  const T leaves[] = {leaf(0), leaf(1), leaf(2), leaf(3)};
  const T sums[] = {
      flexsn_block_sum<WHOLE_THREADS, 0>(leaves[0]), flexsn_block_sum<WHOLE_THREADS, 1>(leaves[1]),
      flexsn_block_sum<WHOLE_THREADS, 2>(leaves[2]), flexsn_block_sum<WHOLE_THREADS, 3>(leaves[3])};
  if (threadIdx.x == 0) to[blockIdx.x] = flexsn_tree(sums);
}

extern "C" __global__ void __launch_bounds__(WHOLE_THREADS) flexsn_reduce_whole_f32(
    const float* from, float* to, long long n, long long inner, long long tail) {
  flexsn_reduce_whole(from, to, n, inner, tail);
}
extern "C" __global__ void __launch_bounds__(WHOLE_THREADS) flexsn_reduce_whole_f64(
    const double* from, double* to, long long n, long long inner, long long tail) {
  flexsn_reduce_whole(from, to, n, inner, tail);
}

extern "C" __global__ void __launch_bounds__(THREADS) flexsn_store_f32(
    const float* from, float* to, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < count) to[i] = from[i];
}
extern "C" __global__ void __launch_bounds__(THREADS) flexsn_store_f64(
    const double* from, double* to, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < count) to[i] = from[i];
}
extern "C" __global__ void __launch_bounds__(THREADS) flexsn_store_f16(
    const float* from, unsigned short* to, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < count) to[i] = flexsn_to_f16(from[i]);
}
extern "C" __global__ void __launch_bounds__(THREADS) flexsn_store_bf16(
    const float* from, unsigned short* to, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < count) to[i] = flexsn_to_bf16(from[i]);
}
)";

constexpr std::int64_t most_in_whole = 4 * 4 * cuda_reduce_whole_threads;  // a power of two

std::int64_t power_of_two(std::int64_t at_least, std::int64_t most) {
  return std::min(most, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(at_least))));
}

}  // namespace

std::string emit_cuda_reduce() {
  const std::string body(text);
  return join("// Sums of parameter gradients, written by flexsn.\n\n", cuda_prelude(body),
              "constexpr int THREADS = ", cuda_reduce_threads, ", BLOCK = ", cuda_reduce_block,
              ", WHOLE_THREADS = ", cuda_reduce_whole_threads, ";\n", body);
}

bool cuda_reduces_whole(std::int64_t n, std::int64_t inner, std::int64_t tail) {
  // Columns are read by single entries, which is no way to read much.
  return n <= most_in_whole && tail <= most_in_whole &&
         n * power_of_two(tail, most_in_whole) <= most_in_whole &&
         (inner == 1 || n * inner * tail <= 4 * most_in_whole);
}

std::int64_t cuda_reduce_blocks(std::int64_t outer, std::int64_t n, std::int64_t inner) {
  const std::int64_t tile = power_of_two(inner, 32), span = power_of_two(n, cuda_reduce_block);
  const std::int64_t groups = span / std::min(span, 4 * tile);
  const std::int64_t outers = cuda_reduce_threads / (tile * groups);
  const auto parts = [](std::int64_t size, std::int64_t part) { return (size + part - 1) / part; };
  return parts(inner, tile) * parts(n, span) * parts(outer, outers);
}

}  // namespace flexsn
