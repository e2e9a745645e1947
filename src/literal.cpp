#include "literal.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "error.h"

namespace flexsn {

namespace {

constexpr std::uint64_t canonical_nan_f32 = 0x7fc00000u;
constexpr std::uint64_t canonical_nan_f64 = 0x7ff8000000000000u;

template <class F>
std::string shortest(F value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

std::string hex(std::uint64_t bits) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, bits, 16).ptr;
  return "0x" + std::string(buffer, end);
}

template <class Number, class... Format>
std::errc read_all(std::string_view text, Number& value, Format... format) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, format...);
  return end == text.data() + text.size() ? error : std::errc::invalid_argument;
}

/// A number too small for its type rounds to zero like any other; one too large has no meaning. This says
/// which of the two a number is that is out of range: where its first digit other than 0 stands after the
/// exponent.
bool too_small(std::string_view digits, bool hexadecimal) {
  const std::size_t mark = std::min(digits.find_first_of(hexadecimal ? "pP" : "eE"), digits.size());
  const std::size_t point = std::min(digits.find('.'), mark);
  const std::size_t leading = digits.find_first_not_of("0.");
  const std::int64_t places = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(leading);
  std::string_view power = digits.substr(std::min(mark + 1, digits.size()));
  const bool negative = power.starts_with('-');
  if (power.starts_with('+')) power.remove_prefix(1);
  std::int64_t exponent = 0;
  if (read_all(power, exponent) == std::errc::result_out_of_range) return negative;
  return exponent + places * (hexadecimal ? 4 : 1) < 0;
}

template <class F, class Bits>
std::optional<std::uint64_t> float_bits(std::string_view text) {
  if (text.starts_with("nan(0x") && text.ends_with(")")) {
    Bits bits = 0;
    const std::errc error = read_all(text.substr(6, text.size() - 7), bits, 16);
    const F value = std::bit_cast<F>(bits);
    return error == std::errc() && value != value ? std::optional<std::uint64_t>(bits) : std::nullopt;
  }
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  F value = 0;
  if (text == "nan") {
    value = std::numeric_limits<F>::quiet_NaN();
  } else if (text == "inf") {
    value = std::numeric_limits<F>::infinity();
  } else {
    const bool hexadecimal = text.starts_with("0x");
    if (hexadecimal) text.remove_prefix(2);
    // from_chars would take a second sign, and words such as "infinity".
    const std::string_view first = hexadecimal ? "0123456789abcdefABCDEF." : "0123456789.";
    if (text.empty() || first.find(text[0]) == std::string_view::npos) return {};
    const std::errc error =
        read_all(text, value, hexadecimal ? std::chars_format::hex : std::chars_format::general);
    if (error == std::errc::result_out_of_range && too_small(text, hexadecimal))
      value = 0;
    else if (error != std::errc())
      return {};
  }
  return std::bit_cast<Bits>(negative ? -value : value);
}

}  // namespace

std::string literal(Type type, std::uint64_t bits) {
  switch (type) {
    case Type::b1:
      return bits ? "true" : "false";
    case Type::i32:
      return std::to_string(static_cast<std::int32_t>(static_cast<std::uint32_t>(bits)));
    case Type::f32: {
      const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      if (value == value) return shortest(value);
      return bits == canonical_nan_f32 ? "nan" : join("nan(", hex(bits), ")");
    }
    case Type::f64: {
      const double value = std::bit_cast<double>(bits);
      if (value == value) return shortest(value);
      return bits == canonical_nan_f64 ? "nan" : join("nan(", hex(bits), ")");
    }
  }
  internal_error("unknown type", std::source_location::current());
}

std::optional<std::uint64_t> read_literal(Type type, std::string_view text) {
  if (type == Type::f32) return float_bits<float, std::uint32_t>(text);
  if (type == Type::f64) return float_bits<double, std::uint64_t>(text);
  if (type == Type::b1) {
    if (text == "true" || text == "false") return text == "true";
    return {};
  }
  if (text.starts_with("+") && !text.starts_with("+-")) text.remove_prefix(1);
  std::int32_t value = 0;
  if (read_all(text, value) != std::errc()) return {};
  return static_cast<std::uint32_t>(value);
}

}  // namespace flexsn
