#include "reduce.h"

#include "environment.h"

namespace flexsn {

namespace {

/// Sums the middle one of the dimensions [outer, size, inner]; the result is [outer, inner].
template <class F>
std::vector<F> tree(std::vector<F> a, std::int64_t outer, std::int64_t size, std::int64_t inner) {
  const auto at = [&](std::int64_t o, std::int64_t i, std::int64_t n) -> F& {
    return a[(o * size + i) * inner + n];
  };
  for (std::int64_t left = size; left > 1; left = (left + 1) / 2)
    for (std::int64_t o = 0; o < outer; ++o)
      for (std::int64_t i = 0; i < (left + 1) / 2; ++i)
        for (std::int64_t n = 0; n < inner; ++n)
          at(o, i, n) = 2 * i + 1 < left ? at(o, 2 * i, n) + at(o, 2 * i + 1, n) : at(o, 2 * i, n);
  std::vector<F> sums(outer * inner);
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t n = 0; n < inner; ++n) sums[o * inner + n] = size > 0 ? at(o, 0, n) : F(0);
  return sums;
}

}  // namespace

std::vector<Dimension> merged_dimensions(const Shape& step, const Shape& param) {
  std::vector<Dimension> merged;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const std::size_t from_right = step.size() - i;
    if (step[i] == 1) continue;
    const bool kept = from_right <= param.size() && param[param.size() - from_right] == step[i];
    if (!merged.empty() && merged.back().kept == kept)
      merged.back().size *= step[i];
    else
      merged.push_back({step[i], kept});
  }
  return merged;
}

template <class F>
std::vector<F> reduce(std::vector<F> values, const Shape& step, const Shape& param) {
  const IeeeEnvironment environment;
  const std::vector<Dimension> dimensions = merged_dimensions(step, param);
  std::int64_t inner = 1;
  for (std::size_t d = dimensions.size(); d-- > 0;) {
    if (dimensions[d].kept) {
      inner *= dimensions[d].size;
      continue;
    }
    std::int64_t outer = 1;
    for (std::size_t e = 0; e < d; ++e) outer *= dimensions[e].size;
    values = tree(std::move(values), outer, dimensions[d].size, inner);
  }
  return values;
}

template std::vector<float> reduce(std::vector<float>, const Shape&, const Shape&);
template std::vector<double> reduce(std::vector<double>, const Shape&, const Shape&);

}  // namespace flexsn
