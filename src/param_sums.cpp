// Any aligned block of 2^m neighbours is a complete subtree, so a sum is made in two passes: blocks, which
// are tasks for threads, then the tree over the blocks' sums. Sums over the innermost dimension add
// neighbours within vectors; all others add whole rows, a tile of columns at a time.
#include "param_sums.h"

#include <algorithm>

#include "environment.h"
#include "reduce.h"

namespace flexsn {

namespace {

constexpr std::int64_t block_size = 1024;    // elements of a block of one contiguous sum
constexpr std::int64_t columns = 256;        // of a tile of rows
constexpr std::int64_t most_rows = 1 << 16;  // of a block of them

template <class F>
struct VectorOf {
  using type __attribute__((vector_size(16))) = F;
};
template <class F>
using Vector = typename VectorOf<F>::type;
template <class F>
constexpr std::int64_t lanes = 16 / sizeof(F);

template <class F>
Vector<F> load_vector(const F* from) {
  Vector<F> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

/// out[i] = in[2i] + in[2i + 1]; `out` may be `in`.
template <class F>
void add_pairs(const F* in, F* out, std::int64_t pairs) {
  std::int64_t i = 0;
  for (; i + lanes<F> <= pairs; i += lanes<F>) {
    const Vector<F> a = load_vector(in + 2 * i), b = load_vector(in + 2 * i + lanes<F>);
    Vector<F> sum;
    if constexpr (sizeof(F) == 4)
      sum = __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
    else
      sum = __builtin_shufflevector(a, b, 0, 2) + __builtin_shufflevector(a, b, 1, 3);
    std::memcpy(out + i, &sum, sizeof sum);
  }
  for (; i < pairs; ++i) out[i] = in[2 * i] + in[2 * i + 1];
}

/// The tree over at most block_size neighbours.
template <class F>
F block_sum(const F* in, std::int64_t count) {
  F room[(block_size + 1) / 2];
  const F* from = in;
  while (count > 1) {
    add_pairs(from, room, count / 2);
    if (count % 2 != 0) room[count / 2] = from[count - 1];
    count = (count + 1) / 2;
    from = room;
  }
  return *from;
}

/// to[n] = a[n] + b[n]
template <class F>
void add_rows(const F* a, const F* b, F* to, std::int64_t count) {
  std::int64_t n = 0;
  for (; n + lanes<F> <= count; n += lanes<F>) {
    const Vector<F> sum = load_vector(a + n) + load_vector(b + n);
    std::memcpy(to + n, &sum, sizeof sum);
  }
  for (; n < count; ++n) to[n] = a[n] + b[n];
}

/// The tree over four neighbouring rows at once.
template <class F>
void add_four_rows(const F* rows, std::int64_t stride, F* to, std::int64_t count) {
  const F *a = rows, *b = a + stride, *c = b + stride, *d = c + stride;
  std::int64_t n = 0;
  for (; n + lanes<F> <= count; n += lanes<F>) {
    const Vector<F> sum =
        (load_vector(a + n) + load_vector(b + n)) + (load_vector(c + n) + load_vector(d + n));
    std::memcpy(to + n, &sum, sizeof sum);
  }
  for (; n < count; ++n) to[n] = (a[n] + b[n]) + (c[n] + d[n]);
}

/// The tree over `size` rows of at most `columns` columns. Complete subtrees wait on a stack, the largest
/// first, until a neighbour of the same size comes; at the end the smaller is always the right neighbour.
template <class F>
void column_sums(const F* rows, std::int64_t stride, std::int64_t size, std::int64_t count, F* to) {
  constexpr int most = 20;  // for 2^16 rows: 14 subtrees of 4 and more, the last few rows, one that is new
  F room[most][columns];
  std::int64_t sizes[most];
  int top = 0;
  for (std::int64_t r = 0; r < size;) {
    const bool four = r + 4 <= size;
    if (four)
      add_four_rows(rows + r * stride, stride, room[top], count);
    else
      std::copy_n(rows + r * stride, count, room[top]);
    sizes[top++] = four ? 4 : 1;
    r += four ? 4 : 1;
    for (; top > 1 && sizes[top - 2] == sizes[top - 1]; --top) {
      add_rows(room[top - 2], room[top - 1], room[top - 2], count);
      sizes[top - 2] *= 2;
    }
  }
  for (; top > 1; --top) add_rows(room[top - 2], room[top - 1], room[top - 2], count);
  std::copy_n(room[0], count, to);
}

/// Runs work(first, last) on pieces of [0, count), which are `additions` in all.
void share(const Threads& threads, std::int64_t count, std::int64_t additions,
           const std::function<void(std::int64_t, std::int64_t)>& work) {
  constexpr std::int64_t loads = 8;  // in additions
  const std::int64_t pieces = std::clamp<std::int64_t>(std::min(additions * loads / threads.grain, count), 1,
                                                       std::max(threads.count, 1));
  threads.run(pieces, [&](std::int64_t i) {
    const IeeeEnvironment environment;
    work(count * i / pieces, count * (i + 1) / pieces);
  });
}

/// Sums the middle one of the dimensions [outer, size, inner], all of them dense but for the stride of outer.
template <class F>
void tree(const F* in, std::int64_t outer_stride, std::int64_t outer, std::int64_t size, std::int64_t inner,
          F* out, const Threads& threads) {
  // Rows of a block: all of them where there are enough columns to share out.
  const std::int64_t tiles = (inner + columns - 1) / columns;
  std::int64_t block = block_size;
  if (inner > 1)
    while (block < std::min(size, most_rows) && outer * tiles >= 4 * threads.count) block *= 2;
  const std::int64_t blocks = (size + block - 1) / block;
  std::vector<F> partial;
  if (blocks > 1) partial.resize(static_cast<std::size_t>(outer * blocks * inner));
  F* sums = blocks > 1 ? partial.data() : out;
  share(threads, outer * blocks * tiles, outer * size * inner, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      const std::int64_t column = task % tiles * columns, b = task / tiles % blocks,
                         o = task / tiles / blocks;
      const std::int64_t rows = std::min(block, size - b * block);
      const F* from = in + o * outer_stride + b * block * inner + column;
      F* to = sums + (o * blocks + b) * inner + column;
      if (inner == 1)
        *to = block_sum(from, rows);
      else
        column_sums(from, inner, rows, std::min(columns, inner - column), to);
    }
  });
  if (blocks > 1) tree(sums, blocks * inner, outer, blocks, inner, out, threads);
}

}  // namespace

template <class F>
void param_sums(const F* values, std::int64_t row_stride, std::int64_t rows, const Shape& step,
                const Shape& param, F* sums, const Threads& threads) {
  const std::vector<Dimension> dimensions = merged_dimensions(step, param);
  std::int64_t elements = 1, kept = 1;
  int left = 0;  // dimensions still to be summed
  for (const Dimension& dimension : dimensions) {
    elements *= dimension.size;
    if (dimension.kept)
      kept *= dimension.size;
    else
      ++left;
  }
  if (elements == 0) {
    std::fill_n(sums, rows * kept, F(0));
    return;
  }
  if (left == 0) {
    for (std::int64_t r = 0; r < rows; ++r)
      std::copy_n(values + r * row_stride, elements, sums + r * elements);
    return;
  }
  std::vector<F> rooms[2];
  const F* from = values;
  std::int64_t from_stride = row_stride, inner = 1, remaining = elements;
  for (std::size_t d = dimensions.size(); d-- > 0;) {
    if (dimensions[d].kept) {
      inner *= dimensions[d].size;
      continue;
    }
    const std::int64_t size = dimensions[d].size, outer = remaining / size / inner;
    remaining /= size;
    --left;
    std::vector<F>& room = rooms[left % 2];
    if (left > 0) room.resize(static_cast<std::size_t>(rows * remaining));
    F* to = left > 0 ? room.data() : sums;
    if (from_stride == size * inner * outer || rows == 1)
      tree(from, size * inner, rows * outer, size, inner, to, threads);
    else
      for (std::int64_t r = 0; r < rows; ++r)
        tree(from + r * from_stride, size * inner, outer, size, inner, to + r * remaining, threads);
    from = to;
    from_stride = remaining;
  }
}

template void param_sums(const float*, std::int64_t, std::int64_t, const Shape&, const Shape&, float*,
                         const Threads&);
template void param_sums(const double*, std::int64_t, std::int64_t, const Shape&, const Shape&, double*,
                         const Threads&);

namespace {

template <class F>
void store_gradient(const ir::Argument& argument, const void* values, std::int64_t row_stride,
                    std::int64_t steps, const Shape& step, const Shape& param, void* to,
                    std::int64_t to_stride, const Threads& threads) {
  const std::int64_t size = elements_of(param), rows = argument.per_step ? steps : 1;
  std::vector<F> sums(static_cast<std::size_t>(rows * size), F(0));
  if (steps > 0 && elements_of(step) > 0)
    param_sums(static_cast<const F*>(values), row_stride, rows, step, param, sums.data(), threads);
  const auto bytes = static_cast<std::int64_t>(size_of(argument.mem));
  for (std::int64_t r = 0; r < rows; ++r)
    store(argument.mem, sums.data() + r * size, static_cast<std::byte*>(to) + r * to_stride * bytes, size);
}

}  // namespace

void store_param_gradient(const ir::Argument& argument, const void* values, std::int64_t row_stride,
                          std::int64_t steps, const Shape& step, const Shape& param, void* to,
                          std::int64_t to_stride, const Threads& threads) {
  const auto store_as =
      value_type(argument.mem) == Type::f64 ? store_gradient<double> : store_gradient<float>;
  store_as(argument, values, row_stride, steps, step, param, to, to_stride, threads);
}

}  // namespace flexsn
