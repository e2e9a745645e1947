// Shapes, and how a parameter's shape meets that of the step.
#pragma once

#include "interpret.h"

namespace flexsn {

using Shape = std::vector<std::int64_t>;

/// "[2, 3]"
std::string text_of(const Shape& shape);

/// The number of elements; the shape must have passed as one that memory can hold.
std::int64_t elements_of(const Shape& shape);

/// How the elements of a step find theirs in one row of a parameter.
struct Broadcast {
  Map map = Map::scalar;
  std::int64_t inner = 1, count = 1;  ///< of an indexed one: element n finds entry (n / inner) % count
  bool spread = false;  ///< no map fits: the row must be spread out to the step's shape, then it is `element`
};

/// Nothing where `param` does not broadcast: each dimension, counted from the right, must be 1 or that of the
/// step, and there may be no more of them.
std::optional<Broadcast> broadcast(const Shape& step, const Shape& param);

/// Writes `rows` rows of a parameter, whose shape broadcasts to the step's, out to rows of the step's shape;
/// an entry has `bytes` bytes.
void spread_out(const Shape& step, const Shape& param, std::size_t bytes, std::int64_t rows, const void* from,
                void* to);

}  // namespace flexsn
