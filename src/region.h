// Memory that a call reads or writes, in bytes: what may overlap.
#pragma once

#include <string>

#include "error.h"
#include "flexsn/flexsn.h"

namespace flexsn {

/// Rows that are some distance apart.
struct Region {
  const char* word = "";
  const std::string* name = nullptr;
  std::int64_t start = 0, rows = 0, row = 0, stride = 0;
  bool written = false;
  int state = -1;  ///< one that may be written exactly where it is read

  std::string what() const { return name == nullptr ? word : join(word, " '", *name, "'"); }
  std::int64_t end() const { return start + (rows - 1) * stride + row; }
  bool is_same(const Region& other) const {
    return start == other.start && rows == 1 && other.rows == 1 && row == other.row;
  }
};

/// `rows` rows of `row_elements` elements of a view, side by side where it says nothing else.
Region region(const char* word, const std::string* name, const View& view, std::int64_t rows,
              std::int64_t row_elements, bool written, int state = -1);

bool share_a_byte(const Region& a, const Region& b);

}  // namespace flexsn
