// Arrays: dense memory of one type, read and written through doubles.
#include "environment.h"
#include "error.h"
#include "interpret.h"

namespace flexsn {

namespace {

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (std::int64_t dim : shape) {
    if (dim < 0) user_error("an array's shape must not be negative, found ", dim);
    if (__builtin_mul_overflow(count, dim, &count))
      user_error("an array's shape has more elements than memory can address");
  }
  return count;
}

void check_bytes(const Array& array) {
  const std::size_t needed = static_cast<std::size_t>(array.size()) * size_of(array.type);
  if (array.bytes.size() != needed)
    user_error("an array of ", array.size(), " elements has ", array.bytes.size(), " bytes, but needs ",
               needed, "; set shape and bytes together");
}

void check_index(const Array& array, std::int64_t index) {
  if (index < 0 || index >= array.size())
    user_error("index ", index, " is outside an array of ", array.size(), " elements");
  check_bytes(array);
}

}  // namespace

Array::Array(Mem element_type, std::vector<std::int64_t> dims, double value)
    : type(element_type), shape(std::move(dims)) {
  const std::int64_t count = element_count(shape);
  bytes.resize(static_cast<std::size_t>(count) * size_of(type));
  if (count == 0) return;
  set(0, value);
  const std::size_t size = size_of(type);
  for (std::int64_t n = 1; n < count; ++n)
    std::memcpy(bytes.data() + static_cast<std::size_t>(n) * size, bytes.data(), size);
}

Array::Array(Mem element_type, std::vector<std::int64_t> dims, const std::vector<double>& values)
    : type(element_type), shape(std::move(dims)) {
  const std::int64_t count = element_count(shape);
  if (count != static_cast<std::int64_t>(values.size()))
    user_error("an array of ", count, " elements was given ", values.size(), " values");
  bytes.resize(static_cast<std::size_t>(count) * size_of(type));
  for (std::int64_t n = 0; n < count; ++n) set(n, values[static_cast<std::size_t>(n)]);
}

std::int64_t Array::size() const { return element_count(shape); }

View::View(Array& array) : View(array.bytes.data(), array.type, array.size()) { check_bytes(array); }

View::View(const Array& array)
    : View(static_cast<const void*>(array.bytes.data()), array.type, array.size()) {
  check_bytes(array);
}

double Array::operator[](std::int64_t index) const {
  check_index(*this, index);
  std::uint64_t bits = 0;
  load(type, bytes.data() + static_cast<std::size_t>(index) * size_of(type), &bits, 1);
  return ir::number_of(value_type(type), bits);
}

void Array::set(std::int64_t index, double value) {
  check_index(*this, index);
  const IeeeEnvironment environment;
  const double fitting = type != Mem::u8 || value != value ? value : std::min(std::max(value, 0.0), 255.0);
  const std::uint64_t bits = ir::bits_of(value_type(type), fitting);
  store(type, &bits, bytes.data() + static_cast<std::size_t>(index) * size_of(type), 1);
}

std::vector<double> Array::values() const {
  std::vector<double> all(static_cast<std::size_t>(size()));
  for (std::size_t n = 0; n < all.size(); ++n) all[n] = (*this)[static_cast<std::int64_t>(n)];
  return all;
}

}  // namespace flexsn
