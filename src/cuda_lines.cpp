#include "cuda_lines.h"

#include <charconv>
#include <cmath>

#include "literal.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr std::size_t widest_line = 108;

/// May compilers read `text` through a wider type than f32 and still get `value`? They do unless the text
/// lies so close to the middle between two f32 that the wider type has only the middle itself.
bool reads_back(const std::string& text, float value) {
  double wide = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), wide);
  if (error != std::errc() || end != text.data() + text.size() || static_cast<float>(wide) != value)
    return false;
  const double above = std::nextafter(value, std::numeric_limits<float>::infinity());
  const double below = std::nextafter(value, -std::numeric_limits<float>::infinity());
  return wide != (static_cast<double>(value) + above) / 2 && wide != (static_cast<double>(value) + below) / 2;
}

/// Are few digits of a decimal text exactly the value?
bool is_short(double value) {
  const double scaled = value * 64;
  return std::fabs(value) < 1048576 && scaled == std::trunc(scaled);
}

std::string hexadecimal(double value) {
  char digits[40];
  const auto [end, error] =
      std::to_chars(digits, digits + sizeof digits, std::fabs(value), std::chars_format::hex);
  internal_check(error == std::errc(), "a constant has too many digits");
  return join(std::signbit(value) ? "-" : "", "0x", std::string(digits, end));
}

std::string float_constant(Type type, std::uint64_t bits) {
  const double value = number_of(type, bits);
  const bool is_f32 = type == Type::f32;
  if (!std::isfinite(value)) {
    const bool negative = std::signbit(value) && !std::isnan(value);
    const std::string_view high = std::isnan(value) ? "7ff80000" : negative ? "fff00000" : "7ff00000";
    const std::string_view word = std::isnan(value) ? "7fc00000" : negative ? "ff800000" : "7f800000";
    return is_f32 ? join("__int_as_float(int(0x", word, "u))")
                  : join("__hiloint2double(int(0x", high, "u), 0)");
  }
  std::string text = literal(type, bits);
  const bool decimal = is_f32 ? reads_back(text, static_cast<float>(value)) : is_short(value);
  if (!decimal) text = hexadecimal(value);
  if (text.find_first_of(".ep") == std::string::npos) text += ".0";
  if (is_f32) text += "f";
  return text;
}

/// A constant operand of minimum or maximum, for which one comparison is enough: neither NaN nor the zero
/// that another zero gives way to.
bool settles(const Node& node, bool largest) {
  if (node.op != Op::constant) return false;
  const double value = number_of(node.type, node.immediate);
  return value == value && (value != 0 || std::signbit(value) == largest);
}

std::string minus(const std::string& value) { return value[0] == '-' ? value.substr(1) : "-" + value; }

/// The spelling with its operands in place.
std::string filled_in(std::string_view spelling, const std::string* operands, bool is_f32) {
  std::string out;
  for (std::size_t i = 0; i < spelling.size(); ++i) {
    if (spelling[i] != '$') {
      out += spelling[i];
    } else if (spelling[++i] == 'f') {
      out += is_f32 ? "f" : "";
    } else {
      const std::string& operand = operands[spelling[i] - '0'];
      const bool minus = operand[0] == '-' && (out.ends_with("-") || out.ends_with("- "));
      out += minus ? "(" + operand + ")" : operand;
    }
  }
  return out;
}

}  // namespace

void CudaLines::list(const std::string& head, const std::vector<std::string>& items,
                     const std::string& tail) {
  std::string now = head;
  bool first = true;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string item = items[i] + (i + 1 < items.size() ? "," : tail);
    if (!first && indent_ + now.size() + 1 + item.size() > widest_line) {
      line(now);
      now = "    " + item;
    } else {
      now += (first ? "" : " ") + item;
    }
    first = false;
  }
  line(items.empty() ? now + tail : now);
}

std::string_view cuda_type(Type type) {
  switch (type) {
    case Type::f32:
      return "float";
    case Type::f64:
      return "double";
    case Type::i32:
      return "int";
    case Type::b1:
      return "bool";
  }
  internal_error("unknown type", std::source_location::current());
}

std::string_view cuda_type(Mem mem) {
  switch (mem) {
    case Mem::f16:
    case Mem::bf16:
      return "unsigned short";
    case Mem::u8:
    case Mem::b8:
      return "unsigned char";
    default:
      return cuda_type(value_type(mem));
  }
}

std::string cuda_constant(Type type, std::uint64_t bits) {
  if (type == Type::b1) return bits != 0 ? "true" : "false";
  if (is_float(type)) return float_constant(type, bits);
  const auto value = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits));
  if (value == std::numeric_limits<std::int32_t>::min()) return "int(0x80000000u)";
  return join(value);
}

std::string cuda_loaded(Mem mem, const std::string& entry) {
  switch (mem) {
    case Mem::f16:
    case Mem::bf16:
      return join("flexsn_from_", name_of(mem), "(", entry, ")");
    case Mem::u8:
      return join("int(", entry, ")");
    case Mem::b8:
      return join(entry, " != 0");
    default:
      return entry;
  }
}

std::string cuda_stored(Mem mem, const std::string& value) {
  switch (mem) {
    case Mem::f16:
    case Mem::bf16:
      return join("flexsn_to_", name_of(mem), "(", value, ")");
    case Mem::u8:
    case Mem::b8:
      return join("static_cast<unsigned char>(", value, ")");
    default:
      return value;
  }
}

std::string cuda_expression(const Graph& graph, const Node& node, const std::string* operands) {
  const Row& row = row_of(node.op);
  Type types[max_arity] = {};
  for (int i = 0; i < row.arity; ++i) types[i] = graph.at(node.operands[i]).type;
  const std::optional<Type> t = type_variable(row, types);
  internal_check(t.has_value() && !row.is_expanded(), "the CUDA emitter got a graph that is not expanded");
  if (is_float(*t) && (node.op == Op::maximum || node.op == Op::minimum)) {
    const bool largest = node.op == Op::maximum;
    const std::string_view how = largest ? "flexsn_at_least(" : "flexsn_at_most(";
    const bool first = settles(graph.at(node.operands[0]), largest);
    if (first || settles(graph.at(node.operands[1]), largest))
      return join(how, operands[first ? 1 : 0], ", ", operands[first ? 0 : 1], ")");
  }
  const std::string_view spelling = is_float(*t)      ? row.cuda.of_float
                                    : *t == Type::i32 ? row.cuda.of_i32
                                                      : row.cuda.of_bool;
  return filled_in(spelling, operands, *t == Type::f32);
}

std::string cuda_hidden(const Graph& graph, const Node& node, const std::string* operands) {
  // Even the choice itself is not safe beside -0, that of the opposite numbers is.
  if (node.op == Op::select && is_float(node.type)) {
    const std::string zero = cuda_constant(node.type, bits_of(node.type, -0.0));
    if (operands[1] == zero || operands[2] == zero) {
      const std::string opposite[] = {operands[0], minus(operands[1]), minus(operands[2])};
      return join("-flexsn_hidden(", cuda_expression(graph, node, opposite), ")");
    }
  }
  return join("flexsn_hidden(", cuda_expression(graph, node, operands), ")");
}

}  // namespace flexsn
