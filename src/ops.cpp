#include "ops.h"

#include "build.h"
#include "elementary.h"
#include "error.h"

namespace flexsn::ir {

namespace {

using namespace sig;

constexpr Row table[] = {
#define OP0(row, ...) Row{.name = #row, .arity = 0, __VA_ARGS__},
#define OP1(row, ...) Row{.name = #row, .arity = 1, __VA_ARGS__},
#define OP2(row, ...) Row{.name = #row, .arity = 2, __VA_ARGS__},
#define OP3(row, ...) Row{.name = #row, .arity = 3, __VA_ARGS__},
#define RAW1(row, ...) Row{.name = #row, .arity = 1, .raw = true, __VA_ARGS__},
#define RAW2(row, ...) Row{.name = #row, .arity = 2, .raw = true, __VA_ARGS__},
#include "flexsn/ops.def"
};

constexpr int first_row = static_cast<int>(Op::argument) + 1;

// One assertion for each row, so that the compiler's message names the row that lacks a part.
#define OP0(row, ...) \
  static_assert(complete(table[static_cast<int>(Op::row) - first_row]), "row '" #row "' lacks a part");
#define OP1 OP0
#define OP2 OP0
#define OP3 OP0
#define RAW1 OP0
#define RAW2 OP0
#include "flexsn/ops.def"

}  // namespace

const Row& row_of(Op op) {
  internal_check(static_cast<int>(op) >= first_row && op < Op::count, "this node has no row");
  return table[static_cast<int>(op) - first_row];
}

std::vector<Op> all_ops() {
  std::vector<Op> ops;
  for (int i = first_row; i < static_cast<int>(Op::count); ++i) ops.push_back(static_cast<Op>(i));
  return ops;
}

const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Row& row : table) all.emplace_back(row.name);
    return all;
  }();
  return names;
}

std::optional<Op> op_named(std::string_view name) {
  static const std::map<std::string_view, Op> by_name = [] {
    std::map<std::string_view, Op> all;
    for (Op op : all_ops()) all[row_of(op).name] = op;
    return all;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? std::nullopt : std::optional<Op>(found->second);
}

std::string_view name_of(Op op) {
  if (op == Op::constant) return "constant";
  if (op == Op::argument) return "argument";
  return row_of(op).name;
}

Type operand_type(const Row& row, int index, Type t) {
  return type_of(index == 0 ? row.meaning.sig.first : SigType::T, t);
}

std::optional<Type> type_variable(const Row& row, const Type* operand_types) {
  if (row.is_leaf()) return Type::i32;
  // Where the first operand has a fixed type, the second one shows T.
  const Type t = operand_types[row.meaning.sig.first == SigType::T ? 0 : 1];
  if (!row.meaning.sig.types.has(t)) return {};
  for (int i = 0; i < row.arity; ++i)
    if (operand_types[i] != operand_type(row, i, t)) return {};
  return t;
}

std::optional<Type> result_type(const Row& row, const Type* operand_types) {
  const std::optional<Type> t = type_variable(row, operand_types);
  return t ? std::optional<Type>(type_of(row.meaning.sig.result, *t)) : std::nullopt;
}

std::string names_of(const TypeSet& types) {
  std::vector<std::string_view> names;
  for (Type t : {Type::f32, Type::f64, Type::i32, Type::b1})
    if (types.has(t)) names.push_back(name_of(t));
  std::string text(names[0]);
  for (std::size_t i = 1; i < names.size(); ++i)
    text += join(i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

std::string type_mismatch(const Row& row, const Type* operand_types) {
  const Sig& sig = row.meaning.sig;
  const int first_variable = sig.first == SigType::T ? 0 : 1;
  if (first_variable == 1 && operand_types[0] != type_of(sig.first, Type::f32))
    return join("operand 1 of '", row.name, "' must be ", name_of(type_of(sig.first, Type::f32)), ", found ",
                name_of(operand_types[0]), "; make one with a comparison, such as %x > 0 written gt %x, 0");
  const Type t = operand_types[first_variable];
  if (!sig.types.has(t))
    return join("'", row.name, "' takes ", names_of(sig.types), ", found ", name_of(t),
                "; convert it with to_f32, to_f64, to_i32 or to_bool");
  for (int i = first_variable + 1; i < row.arity; ++i)
    if (operand_types[i] != t)
      return join("operands ", first_variable + 1, " and ", i + 1, " of '", row.name,
                  "' must have one type, found ", name_of(t), " and ", name_of(operand_types[i]),
                  "; convert one with to_", t == Type::b1 ? "bool" : name_of(t));
  internal_error("operand types fit after all", std::source_location::current());
}

V convert(V x, Type type) {
  if (x.type() == type) return x;
  switch (type) {
    case Type::f32:
      return to_f32(x);
    case Type::f64:
      return to_f64(x);
    case Type::i32:
      return to_i32(x);
    case Type::b1:
      return to_bool(x);
  }
  internal_error("unknown type", std::source_location::current());
}

namespace exact {

float from_f16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00)  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x0400)  // normal: the exponent's bias grows by 112
    return std::bit_cast<float>(sign | ((magnitude + (112u << 10)) << 13));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

std::uint16_t to_f16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000u) return 0x7e00;
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00);  // rounds to 2^16 or more
  if (magnitude <
      0x38800000u) {  // subnormal in f16: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

float from_bf16(std::uint16_t half) { return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16); }

std::uint16_t to_bf16(float x) {
  if (x != x) return 0x7fc0;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace exact
}  // namespace flexsn::ir
