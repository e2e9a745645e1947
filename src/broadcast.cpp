#include "broadcast.h"

#include <algorithm>

#include "reduce.h"

namespace flexsn {

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::int64_t elements_of(const Shape& shape) {
  std::int64_t size = 1;
  for (std::int64_t dim : shape) size *= dim;
  return size;
}

std::optional<Broadcast> broadcast(const Shape& step, const Shape& param) {
  if (param.size() > step.size()) return {};
  for (std::size_t i = 1; i <= param.size(); ++i)
    if (param[param.size() - i] != 1 && param[param.size() - i] != step[step.size() - i]) return {};
  const std::vector<Dimension> dimensions = merged_dimensions(step, param);
  const auto is_kept = [](const Dimension& dimension) { return dimension.kept; };
  const auto kept = std::count_if(dimensions.begin(), dimensions.end(), is_kept);
  if (kept == 0) return Broadcast{.map = Map::scalar};
  if (kept > 1) return Broadcast{.map = Map::element, .spread = true};
  if (dimensions.size() == 1) return Broadcast{.map = Map::element};
  const auto place = std::find_if(dimensions.begin(), dimensions.end(), is_kept);
  return Broadcast{.map = Map::indexed,
                   .inner = place + 1 == dimensions.end() ? 1 : (place + 1)->size,
                   .count = place->size};
}

void spread_out(const Shape& step, const Shape& param, std::size_t bytes, std::int64_t rows, const void* from,
                void* to) {
  const std::int64_t elements = elements_of(step), entries = elements_of(param);
  if (elements == 0) return;
  std::vector<Dimension> outer = merged_dimensions(step, param);
  Dimension inner{1, true};  // a run of elements that are side by side in memory, or all the same
  if (!outer.empty()) {
    inner = outer.back();
    outer.pop_back();
  }
  auto* out = static_cast<std::byte*>(to);
  for (std::int64_t run = 0; run < rows * elements / inner.size; ++run) {
    const std::int64_t row = run / (elements / inner.size);
    std::int64_t rest = run % (elements / inner.size), entry = 0, stride = inner.kept ? inner.size : 1;
    for (std::size_t d = outer.size(); d-- > 0;) {
      if (outer[d].kept) {
        entry += rest % outer[d].size * stride;
        stride *= outer[d].size;
      }
      rest /= outer[d].size;
    }
    const std::byte* in =
        static_cast<const std::byte*>(from) + static_cast<std::size_t>(row * entries + entry) * bytes;
    const std::int64_t copies = inner.kept ? 1 : inner.size;
    const std::size_t length = bytes * static_cast<std::size_t>(inner.kept ? inner.size : 1);
    for (std::int64_t copy = 0; copy < copies; ++copy, out += length) std::memcpy(out, in, length);
  }
}

}  // namespace flexsn
