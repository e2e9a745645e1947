// Generated CUDA C++ on the host: included before the text, it makes a grid a loop over blocks and threads.
// Where threads of a block wait for each other they are fibers, which run one after another up to the place
// where they wait; else each runs to its end.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__ static
#define __shared__ static  // blocks run one after another

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct Place {
  unsigned x;
};
inline Place threadIdx, blockIdx, gridDim;

// ---- intrinsics --------------------------------------------------------------------------------------

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __int_as_float(int x) { return bits_as<float>(x); }
inline int __float_as_int(float x) { return bits_as<int>(x); }
inline double __longlong_as_double(long long x) { return bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return bits_as<long long>(x); }
inline double __hiloint2double(int high, int low) {
  return bits_as<double>(static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32 |
                         static_cast<unsigned>(low));
}
inline int __double2hiint(double x) { return static_cast<int>(bits_as<unsigned long long>(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(bits_as<unsigned long long>(x)); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

/// A word of memory must lie where the GPU could load it from.
inline void check_alignment(const void* address, std::size_t size) {
  if (bits_as<std::size_t>(address) % size != 0) std::abort();
}
template <class T>
inline T __ldcs(const T* from) {
  check_alignment(from, sizeof(T));
  return *from;
}
template <class T>
inline T __ldcg(const T* from) {
  return __ldcs(from);
}
template <class T>
inline void __stcs(T* to, T value) {
  check_alignment(to, sizeof(T));
  *to = value;
}

// ---- threads that wait for each other ------------------------------------------------------------------

namespace cuda_host {

enum class Wait { none, warp, block, done };

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(256 << 10);
  Wait wait = Wait::none;
  unsigned char offered[8] = {};  ///< what it gives to others of its warp
};

class Block {
 public:
  using Kernel = void (*)(const void* arguments);

  void run(unsigned threads, Kernel kernel, const void* arguments) {
    kernel_ = kernel;
    arguments_ = arguments;
    if (fibers_.size() < threads) fibers_.resize(threads);
    threads_ = threads;
    for (unsigned i = 0; i < threads; ++i) {
      Fiber& fiber = fibers_[i];
      fiber.wait = Wait::none;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, &Block::start, 0);
    }
    while (advance()) {
    }
  }

  void wait(Wait what) {
    Fiber& fiber = current();
    fiber.wait = what;
    swapcontext(&fiber.context, &scheduler_);
  }

  Fiber& current() { return fibers_[threadIdx.x]; }
  Fiber& neighbour(unsigned distance) {
    // Beyond the warp a thread finds its own value, as on the GPU.
    const unsigned other = threadIdx.x + distance;
    return other / 32 == threadIdx.x / 32 && other < threads_ ? fibers_[other] : current();
  }

  static Block& only() {
    static Block block;
    return block;
  }

 private:
  static void start() {
    only().kernel_(only().arguments_);
    only().current().wait = Wait::done;
  }

  /// Runs what can run, then lets go those who all wait for the same; false where all are done.
  bool advance() {
    bool ran = false;
    for (unsigned i = 0; i < threads_; ++i) {
      if (fibers_[i].wait != Wait::none) continue;
      threadIdx.x = i;
      swapcontext(&scheduler_, &fibers_[i].context);
      ran = true;
    }
    unsigned done = 0, at_block = 0;
    for (unsigned i = 0; i < threads_; ++i) {
      done += fibers_[i].wait == Wait::done;
      at_block += fibers_[i].wait == Wait::block;
    }
    if (done == threads_) return false;
    bool released = at_block == threads_;
    if (released)
      for (unsigned i = 0; i < threads_; ++i) fibers_[i].wait = Wait::none;
    for (unsigned first = 0; first < threads_ && at_block != threads_; first += 32) {
      const unsigned end = first + 32 < threads_ ? first + 32 : threads_;
      bool all = true;
      for (unsigned i = first; i < end; ++i) all = all && fibers_[i].wait == Wait::warp;
      if (!all) continue;
      for (unsigned i = first; i < end; ++i) fibers_[i].wait = Wait::none;
      released = true;
    }
    if (!ran && !released) std::abort();  // a thread waits for one that will not come
    return true;
  }

  std::vector<Fiber> fibers_;
  ucontext_t scheduler_;
  unsigned threads_ = 0;
  Kernel kernel_ = nullptr;
  const void* arguments_ = nullptr;
};

/// Runs a grid, or of it the first and the last block (`outer`). `waits`: do threads of a block wait for each
/// other?
inline void launch(long long blocks, unsigned threads, bool waits, Block::Kernel kernel,
                   const void* arguments, bool outer = false) {
  gridDim.x = static_cast<unsigned>(blocks);
  for (long long block = 0; block < blocks; block += outer && block < blocks - 1 ? blocks - 1 : 1) {
    blockIdx.x = static_cast<unsigned>(block);
    if (waits) {
      Block::only().run(threads, kernel, arguments);
      continue;
    }
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kernel(arguments);
  }
}

}  // namespace cuda_host

inline void __syncthreads() { cuda_host::Block::only().wait(cuda_host::Wait::block); }

template <class T>
inline T __shfl_down_sync(unsigned, T value, unsigned distance) {
  cuda_host::Block& block = cuda_host::Block::only();
  std::memcpy(block.current().offered, &value, sizeof value);
  block.wait(cuda_host::Wait::warp);
  std::memcpy(&value, block.neighbour(distance).offered, sizeof value);
  block.wait(cuda_host::Wait::warp);  // nobody offers anew before all have read
  return value;
}
