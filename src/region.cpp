#include "region.h"

namespace flexsn {

Region region(const char* word, const std::string* name, const View& view, std::int64_t rows,
              std::int64_t row_elements, bool written, int state) {
  const auto size = static_cast<std::int64_t>(size_of(view.type()));
  Region made{.word = word,
              .name = name,
              .start = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data())),
              .rows = rows,
              .row = row_elements * size,
              .stride = view.row_stride().value_or(row_elements) * size,
              .written = written,
              .state = state};
  if (made.rows > 1 && made.stride <= made.row) {  // without gaps it is one row
    made.row = made.end() - made.start;
    made.rows = 1;
  }
  return made;
}

bool share_a_byte(const Region& a, const Region& b) {
  if (a.rows == 0 || b.rows == 0 || a.row == 0 || b.row == 0) return false;
  if (a.end() <= b.start || b.end() <= a.start) return false;
  if (a.rows > b.rows) return share_a_byte(b, a);
  if (b.rows == 1) return true;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    // The first row of b that ends after this one starts.
    const std::int64_t from = a.start + i * a.stride, before = from - b.start - b.row;
    const std::int64_t j = before < 0 ? 0 : before / b.stride + 1;
    if (j < b.rows && b.start + j * b.stride < from + a.row) return true;
  }
  return false;
}

}  // namespace flexsn
