#include "cuda_prelude.h"

#include <iterator>
#include <string_view>
#include <vector>

namespace flexsn {

namespace {

struct Helper {
  std::string_view name;
  std::string_view text;
};

/// A helper stands after those it uses. Their meaning is that of src/ops.h and src/reduce.h.
constexpr Helper helpers[] = {
    {"flexsn_div", R"(
// Quotients and roots are rounded correctly, whatever the compiler's options.
__device__ __forceinline__ float flexsn_div(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double flexsn_div(double a, double b) { return __ddiv_rn(a, b); }
)"},
    {"flexsn_sqrt", R"(
__device__ __forceinline__ float flexsn_sqrt(float x) { return __fsqrt_rn(x); }
__device__ __forceinline__ double flexsn_sqrt(double x) { return __dsqrt_rn(x); }
)"},
    {"flexsn_hidden", R"(
// A value of which the compiler knows nothing: NVIDIA's assembler gives 0 for -0 where it chooses between the
// constants -0 and 1 or -1, and where it negates a choice between 0 and those.
__constant__ int flexsn_zero = 0;
__device__ __forceinline__ int flexsn_hidden(int x) { return x ^ flexsn_zero; }
__device__ __forceinline__ float flexsn_hidden(float x) {
  return __int_as_float(flexsn_hidden(__float_as_int(x)));
}
__device__ __forceinline__ double flexsn_hidden(double x) {
  return __hiloint2double(flexsn_hidden(__double2hiint(x)), __double2loint(x));
}
)"},
    {"flexsn_hold", R"(
// The compiler is to hold this value in a register, not the ones that it was made of: it held both.
template <class T>
__device__ __forceinline__ void flexsn_hold(T& x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == sizeof(double)) asm("" : "+d"(x));
  else if constexpr (T(0.5) != T(0)) asm("" : "+f"(x));
  else asm("" : "+r"(x));
#endif
}
)"},
    {"flexsn_abs", R"(
__device__ __forceinline__ int flexsn_abs(int x) { return x < 0 ? int(0u - unsigned(x)) : x; }
)"},
    {"flexsn_sdiv", R"(
// The quotient, towards zero; x / 0 is 0, the one overflow wraps.
__device__ __forceinline__ int flexsn_sdiv(int a, int b) {
  return b == 0 ? 0 : b == -1 ? int(0u - unsigned(a)) : a / b;
}
)"},
    {"flexsn_srem", R"(
__device__ __forceinline__ int flexsn_srem(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
)"},
    {"flexsn_fmod", R"(
// A function that is called: a copy of its loops in each place would take the compiler minutes.
template <class T>
__device__ __noinline__ T flexsn_fmod(T a, T b) {
  if constexpr (sizeof(T) == sizeof(float)) return fmodf(a, b);
  else return fmod(a, b);
}
)"},
    {"flexsn_to_int", R"(
// Towards zero; what is too large or too small gives the last int, NaN gives 0.
template <class T>
__device__ __forceinline__ int flexsn_to_int(T x) {
  if (x != x) return 0;
  if (x >= T(2147483648.0)) return 2147483647;
  if (x <= T(-2147483648.0)) return int(0x80000000u);
  return int(x);
}
)"},
    {"flexsn_to_u8", R"(
template <class T>
__device__ __forceinline__ int flexsn_to_u8(T x) {
  return x >= T(255) ? 255 : x > T(0) ? int(x) : 0;
}
)"},
    {"flexsn_both_bits", R"(
__device__ __forceinline__ float flexsn_both_bits(float a, float b) {
  return __int_as_float(__float_as_int(a) & __float_as_int(b));
}
__device__ __forceinline__ double flexsn_both_bits(double a, double b) {
  return __longlong_as_double(__double_as_longlong(a) & __double_as_longlong(b));
}
)"},
    {"flexsn_either_bits", R"(
__device__ __forceinline__ float flexsn_either_bits(float a, float b) {
  return __int_as_float(__float_as_int(a) | __float_as_int(b));
}
__device__ __forceinline__ double flexsn_either_bits(double a, double b) {
  return __longlong_as_double(__double_as_longlong(a) | __double_as_longlong(b));
}
)"},
    {"flexsn_max", R"(
// The larger one; NaN wins, +0 is more than -0.
template <class T>
__device__ __forceinline__ T flexsn_max(T a, T b) {
  if (a != a || b != b) return a + b;
  return a == b ? flexsn_both_bits(a, b) : a > b ? a : b;
}
)"},
    {"flexsn_min", R"(
// The smaller one; NaN wins, -0 is less than +0.
template <class T>
__device__ __forceinline__ T flexsn_min(T a, T b) {
  if (a != a || b != b) return a + b;
  return a == b ? flexsn_either_bits(a, b) : a < b ? a : b;
}
)"},
    {"flexsn_at_least", R"(
// The larger one where `least` is a number that no zero could be mistaken for; NaN stays.
template <class T>
__device__ __forceinline__ T flexsn_at_least(T x, T least) {
  return least > x ? least : x;
}
)"},
    {"flexsn_at_most", R"(
// The smaller one where `most` is a number that no zero could be mistaken for; NaN stays.
template <class T>
__device__ __forceinline__ T flexsn_at_most(T x, T most) {
  return most < x ? most : x;
}
)"},
    {"flexsn_from_f16", R"(
__device__ __forceinline__ float flexsn_from_f16(unsigned short half) {
#ifdef __CUDA_ARCH__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
#else  // the same without a GPU
  const unsigned sign = unsigned(half & 0x8000) << 16;
  const unsigned magnitude = half & 0x7fff;
  const unsigned subnormal = unsigned(__float_as_int(float(magnitude) * 0x1p-24f));
  const unsigned normal = (magnitude + (112u << 10)) << 13;
  const unsigned special = 0x7f800000u | (magnitude & 0x3ff) << 13;  // infinity or NaN
  const unsigned bits = magnitude >= 0x7c00 ? special : magnitude >= 0x0400 ? normal : subnormal;
  return __int_as_float(int(sign | bits));
#endif
}
)"},
    {"flexsn_to_f16", R"(
// To nearest, ties to even; a NaN is canonical.
__device__ __forceinline__ unsigned short flexsn_to_f16(float x) {
#ifdef __CUDA_ARCH__
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return x != x ? static_cast<unsigned short>(0x7e00) : half;
#else  // the same without a GPU
  const unsigned bits = unsigned(__float_as_int(x));
  const unsigned sign = bits >> 16 & 0x8000;
  const unsigned magnitude = bits & 0x7fffffff;
  // Below the normal numbers of f16: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
  const unsigned subnormal = unsigned(__float_as_int(__int_as_float(int(magnitude)) + 0.5f)) - 0x3f000000u;
  const unsigned normal = ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112u << 10);
  const unsigned finite = magnitude < 0x38800000u ? subnormal : magnitude >= 0x477ff000u ? 0x7c00 : normal;
  return static_cast<unsigned short>(magnitude > 0x7f800000u ? 0x7e00 : sign | finite);
#endif
}
)"},
    {"flexsn_round_f16", R"(
__device__ __forceinline__ float flexsn_round_f16(float x) { return flexsn_from_f16(flexsn_to_f16(x)); }
)"},
    {"flexsn_from_bf16", R"(
__device__ __forceinline__ float flexsn_from_bf16(unsigned short half) {
  return __int_as_float(int(unsigned(half) << 16));
}
)"},
    {"flexsn_to_bf16", R"(
// To nearest, ties to even; a NaN is canonical.
__device__ __forceinline__ unsigned short flexsn_to_bf16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned short half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return x != x ? static_cast<unsigned short>(0x7fc0) : half;
#else  // the same without the instruction
  const unsigned bits = unsigned(__float_as_int(x));
  return static_cast<unsigned short>(x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}
)"},
    {"flexsn_round_bf16", R"(
__device__ __forceinline__ float flexsn_round_bf16(float x) { return flexsn_from_bf16(flexsn_to_bf16(x)); }
)"},
    {"flexsn_scalar", R"(
// One entry for all elements, by its address or, where that is null, by its bytes.
template <class T>
struct flexsn_scalar {
  const T* data;
  unsigned long long bytes;
  __device__ __forceinline__ T get() const {
    if (data != nullptr) return *data;
    T entry;
    memcpy(&entry, &bytes, sizeof entry);
    return entry;
  }
};
)"},
    {"flexsn_rows", R"(
// A row for each step or segment.
template <class T>
struct flexsn_rows {
  T* data;
  long long stride;
  __device__ __forceinline__ T* row(long long index) const { return data + index * stride; }
};
)"},
    {"flexsn_indexed", R"(
// A row in which element n has entry (n / inner) % count.
template <class T>
struct flexsn_indexed {
  T* data;
  long long inner, count;
};
)"},
    {"flexsn_indexed_rows", R"(
// Such a row for each step.
template <class T>
struct flexsn_indexed_rows {
  T* data;
  long long stride, inner, count;
  __device__ __forceinline__ T* row(long long index) const { return data + index * stride; }
};
)"},
    {"flexsn_nothing", R"(
// What no sum can see; where there are no steps the sum of nothing.
template <class T>
__device__ __forceinline__ T flexsn_nothing(long long steps) {
  return steps > 0 ? T(-0.0) : T(0.0);
}
)"},
    {"flexsn_row", R"(
// Neighbouring entries of a buffer, which are loaded and stored together.
template <class T, int V>
struct alignas(sizeof(T) * V) flexsn_row {
  T of[V];
};
)"},
    {"flexsn_word", R"(
template <int bytes>
struct flexsn_word {
  typedef uint4 type;
};
template <>
struct flexsn_word<1> {
  typedef unsigned char type;
};
template <>
struct flexsn_word<2> {
  typedef unsigned short type;
};
template <>
struct flexsn_word<4> {
  typedef unsigned int type;
};
template <>
struct flexsn_word<8> {
  typedef uint2 type;
};
)"},
    {"flexsn_load", R"(
template <class T, int V>
__device__ __forceinline__ flexsn_row<T, V> flexsn_load(const T* from) {
  return *reinterpret_cast<const flexsn_row<T, V>*>(from);
}
)"},
    {"flexsn_load_past_l1", R"(
// A row, past the L1 cache.
template <class T, int V>
__device__ __forceinline__ flexsn_row<T, V> flexsn_load_past_l1(const T* from) {
  typedef typename flexsn_word<sizeof(T) * V>::type word;
  constexpr int count = sizeof(T) * V / sizeof(word);
  word words[count];
#pragma unroll
  for (int w = 0; w < count; ++w) words[w] = __ldcg(reinterpret_cast<const word*>(from) + w);
  flexsn_row<T, V> row;
  memcpy(&row, words, sizeof row);
  return row;
}
)"},
    {"flexsn_store", R"(
// A row that the L2 cache lets go of before others.
template <class T, int V>
__device__ __forceinline__ void flexsn_store(T* to, const flexsn_row<T, V>& row) {
  typedef typename flexsn_word<sizeof(T) * V>::type word;
  constexpr int count = sizeof(T) * V / sizeof(word);
  word words[count];
  memcpy(words, &row, sizeof row);
#pragma unroll
  for (int w = 0; w < count; ++w) __stcs(reinterpret_cast<word*>(to) + w, words[w]);
}
)"},
    {"flexsn_policy", R"(
// When the L2 cache lets go of a row: as of any other, before others, or not changed by this.
enum flexsn_letting_go { flexsn_usual, flexsn_first, flexsn_unchanged };
template <flexsn_letting_go when>
__device__ __forceinline__ unsigned long long flexsn_policy() {
  unsigned long long policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (when == flexsn_first)
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else if constexpr (when == flexsn_unchanged)
    asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(policy));
  else
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
)"},
    {"flexsn_load_word", R"(
template <class W>
__device__ __forceinline__ W flexsn_load_word(const W* from, unsigned long long policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  W x;
  if constexpr (sizeof(W) == 16)
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from), "l"(policy)
                 : "memory");
  else if constexpr (sizeof(W) == 8)
    asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                 : "=r"(x.x), "=r"(x.y)
                 : "l"(from), "l"(policy)
                 : "memory");
  else if constexpr (sizeof(W) == 4)
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(x) : "l"(from), "l"(policy) : "memory");
  else if constexpr (sizeof(W) == 2)
    asm volatile("ld.global.L2::cache_hint.u16 %0, [%1], %2;" : "=h"(x) : "l"(from), "l"(policy) : "memory");
  else {
    unsigned short wide;  // no register is smaller
    asm volatile("ld.global.L2::cache_hint.u8 %0, [%1], %2;" : "=h"(wide) : "l"(from), "l"(policy) : "memory");
    x = W(wide);
  }
  return x;
#else
  return __ldcs(from);
#endif
}
)"},
    {"flexsn_store_word", R"(
template <class W>
__device__ __forceinline__ void flexsn_store_word(W* to, W x, unsigned long long policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (sizeof(W) == 16)
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;"
                 :
                 : "l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "l"(policy)
                 : "memory");
  else if constexpr (sizeof(W) == 8)
    asm volatile("st.global.L2::cache_hint.v2.u32 [%0], {%1, %2}, %3;"
                 :
                 : "l"(to), "r"(x.x), "r"(x.y), "l"(policy)
                 : "memory");
  else if constexpr (sizeof(W) == 4)
    asm volatile("st.global.L2::cache_hint.u32 [%0], %1, %2;" : : "l"(to), "r"(x), "l"(policy) : "memory");
  else if constexpr (sizeof(W) == 2)
    asm volatile("st.global.L2::cache_hint.u16 [%0], %1, %2;" : : "l"(to), "h"(x), "l"(policy) : "memory");
  else
    asm volatile("st.global.L2::cache_hint.u8 [%0], %1, %2;"
                 :
                 : "l"(to), "h"(static_cast<unsigned short>(x)), "l"(policy)
                 : "memory");
#else
  __stcs(to, x);
#endif
}
)"},
    {"flexsn_load_with", R"(
template <class T, int V>
__device__ __forceinline__ flexsn_row<T, V> flexsn_load_with(const T* from, unsigned long long policy) {
  typedef typename flexsn_word<sizeof(T) * V>::type word;
  constexpr int count = sizeof(T) * V / sizeof(word);
  word words[count];
#pragma unroll
  for (int w = 0; w < count; ++w)
    words[w] = flexsn_load_word(reinterpret_cast<const word*>(from) + w, policy);
  flexsn_row<T, V> row;
  memcpy(&row, words, sizeof row);
  return row;
}
)"},
    {"flexsn_store_with", R"(
template <class T, int V>
__device__ __forceinline__ void flexsn_store_with(T* to, const flexsn_row<T, V>& row,
                                                 unsigned long long policy) {
  typedef typename flexsn_word<sizeof(T) * V>::type word;
  constexpr int count = sizeof(T) * V / sizeof(word);
  word words[count];
  memcpy(words, &row, sizeof row);
#pragma unroll
  for (int w = 0; w < count; ++w)
    flexsn_store_word(reinterpret_cast<word*>(to) + w, words[w], policy);
}
)"},
    {"flexsn_same", R"(
template <class T, int V>
__device__ __forceinline__ flexsn_row<T, V> flexsn_same(T entry) {
  flexsn_row<T, V> row;
#pragma unroll
  for (int i = 0; i < V; ++i) row.of[i] = entry;
  return row;
}
)"},
    {"flexsn_places", R"(
// Where the entries of a thread's elements stand in a row that has one for each (n / inner) % count.
template <int V>
struct flexsn_places {
  long long of[V];
};
template <int V>
__device__ __forceinline__ flexsn_places<V> flexsn_find(long long first, long long inner, long long count) {
  long long place, within;
  if ((static_cast<unsigned long long>(first | inner | count) >> 32) == 0) {  // 64-bit division is slow
    const unsigned quotient = unsigned(first) / unsigned(inner);
    within = unsigned(first) - quotient * unsigned(inner);
    place = quotient % unsigned(count);
  } else {
    const long long quotient = first / inner;
    within = first - quotient * inner;
    place = quotient % count;
  }
  flexsn_places<V> places;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    places.of[i] = place;
    if (++within == inner) {
      within = 0;
      if (++place == count) place = 0;
    }
  }
  return places;
}
)"},
    {"flexsn_gather", R"(
template <class T, int V>
__device__ __forceinline__ flexsn_row<T, V> flexsn_gather(const T* from, const flexsn_places<V>& places) {
  flexsn_row<T, V> row;
#pragma unroll
  for (int i = 0; i < V; ++i) row.of[i] = from[places.of[i]];
  return row;
}
)"},
    {"flexsn_tree", R"(
// The sum of V values: neighbours first, then neighbours of those.
template <class T, int V>
__device__ __forceinline__ T flexsn_tree(const T (&values)[V]) {
  T sums[V];
#pragma unroll
  for (int i = 0; i < V; ++i) sums[i] = values[i];
#pragma unroll
  for (int distance = 1; distance < V; distance *= 2)
#pragma unroll
    for (int i = 0; i < V; i += 2 * distance) sums[i] = sums[i] + sums[i + distance];
  return sums[0];
}
)"},
    {"flexsn_block_sum", R"(
// The same over the threads of a block, of which there are a power of two; thread 0 gets it. Each place has room
// of its own, so that no warp waits for the first one's sum.
template <int threads, int place, class T>
__device__ __forceinline__ T flexsn_block_sum(T x) {
  constexpr int lanes = threads < 32 ? threads : 32, warps = threads / lanes;
  constexpr unsigned all = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
  __shared__ T sums[warps];
#pragma unroll
  for (int distance = 1; distance < lanes; distance *= 2) x = x + __shfl_down_sync(all, x, distance);
  if (warps == 1) return x;
  if (threadIdx.x % lanes == 0) sums[threadIdx.x / lanes] = x;
  __syncthreads();
  if (threadIdx.x < lanes) {
    x = threadIdx.x < warps ? sums[threadIdx.x] : T(-0.0);
#pragma unroll
    for (int distance = 1; distance < warps; distance *= 2) x = x + __shfl_down_sync(all, x, distance);
  }
  return x;
}
)"},
};

bool mentions(std::string_view text, std::string_view name) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (std::size_t i = text.find(name); i != std::string_view::npos; i = text.find(name, i + 1)) {
    const bool starts = i == 0 || !is_word(text[i - 1]);
    const bool ends = i + name.size() == text.size() || !is_word(text[i + name.size()]);
    if (starts && ends) return true;
  }
  return false;
}

}  // namespace

std::string cuda_prelude(const std::string& text) {
  std::vector<std::string_view> found;  // the last one first
  for (auto helper = std::rbegin(helpers); helper != std::rend(helpers); ++helper) {
    bool used = mentions(text, helper->name);
    for (std::string_view other : found) used = used || mentions(other, helper->name);
    if (used) found.push_back(helper->text);
  }
  std::string out;
  for (auto one = found.rbegin(); one != found.rend(); ++one) out += one->substr(1);
  return out;
}

}  // namespace flexsn
