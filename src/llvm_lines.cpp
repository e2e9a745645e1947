#include "llvm_lines.h"

#include <algorithm>

#include "error.h"

namespace flexsn {

using namespace ir;

namespace {

std::string_view element_type(Type type) {
  switch (type) {
    case Type::f32:
      return "float";
    case Type::f64:
      return "double";
    case Type::i32:
      return "i32";
    case Type::b1:
      return "i1";
  }
  internal_error("unknown type", std::source_location::current());
}

std::string_view element_type(Mem mem) {
  switch (mem) {
    case Mem::f16:
      return "half";
    case Mem::bf16:
      return "i16";  // converted by integer arithmetic: processors differ on subnormals and NaN
    case Mem::u8:
    case Mem::b8:
      return "i8";
    default:
      return element_type(value_type(mem));
  }
}

/// The text of a float constant: LLVM writes both sizes as the bits of a double.
std::string hexadecimal(double value) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  std::string digits(16, '0');
  for (int i = 0; i < 16; ++i) digits[15 - i] = "0123456789ABCDEF"[bits >> (4 * i) & 15];
  return "0x" + digits;
}

/// NaN does not count: it needs the care that variables need.
bool is_constant(const std::string& operand) {
  return operand[0] != '%' && operand.find("0x7FF8000000000000") == std::string::npos;
}

/// Is a float constant zero; which sign has it?
bool is_zero(const std::string& constant, bool negative) {
  return constant.find(negative ? "0x8000000000000000" : "0x0000000000000000") != std::string::npos;
}

}  // namespace

std::string LlvmLines::vector(std::string_view element) const {
  return lanes_ == 1 ? std::string(element) : join("<", lanes_, " x ", element, ">");
}

std::string LlvmLines::type(Type value) const { return vector(element_type(value)); }
std::string LlvmLines::type(Mem mem) const { return vector(element_type(mem)); }

std::string LlvmLines::all_lanes(std::string_view element_and_value) const {
  if (lanes_ > 1) return join("splat (", element_and_value, ")");
  return std::string(element_and_value.substr(element_and_value.find(' ') + 1));
}

std::string LlvmLines::constant(Type type, std::uint64_t bits) const {
  const double number = number_of(type, bits);
  std::string value;
  if (type == Type::i32)
    value = std::to_string(static_cast<std::int32_t>(static_cast<std::uint32_t>(bits)));
  else if (type == Type::b1)
    value = bits != 0 ? "true" : "false";
  else
    value = hexadecimal(number != number ? std::numeric_limits<double>::quiet_NaN() : number);
  return all_lanes(join(element_type(type), " ", value));
}

template <class... Parts>
std::string LlvmLines::line(const Parts&... parts) {
  const std::string name = join("%t", names_++);
  out_ += join("  ", name, " = ", parts..., "\n");
  return name;
}

std::string LlvmLines::suffix(Type type) const {
  return lanes_ == 1 ? std::string(name_of(type)) : join("v", lanes_, name_of(type));
}

std::string LlvmLines::integer(Mem mem, std::int64_t value) const {
  return all_lanes(join(mem == Mem::f16 ? "i16" : element_type(mem), " ", value));
}

std::string LlvmLines::convert(std::string_view how, const std::string& from, const std::string& value,
                               const std::string& to) {
  return line(how, " ", from, " ", value, " to ", to);
}

std::string LlvmLines::add(Type value, const std::string& a, const std::string& b) {
  return line("fadd ", type(value), " ", a, ", ", b);
}

std::string LlvmLines::splat(Type value, const std::string& scalar) {
  const std::string first =
      line("insertelement ", type(value), " poison, ", element_type(value), " ", scalar, ", i64 0");
  return line("shufflevector ", type(value), " ", first, ", ", type(value), " poison, <", lanes_,
              " x i32> zeroinitializer");
}

std::string LlvmLines::count_from(const std::string& i) {
  std::string numbers = "<";
  for (int lane = 0; lane < lanes_; ++lane) numbers += join(lane == 0 ? "" : ", ", "i32 ", lane);
  return line("add ", type(Type::i32), " ", splat(Type::i32, i), ", ", numbers, ">");
}

// ---- memory ----------------------------------------------------------------------------------------

std::string LlvmLines::load(Mem mem, const std::string& pointer) {
  const std::string word = line("load ", type(mem), ", ptr ", pointer, ", align 1");
  switch (mem) {
    case Mem::f16:
      return convert("fpext", type(mem), word, type(Type::f32));
    case Mem::bf16: {
      const std::string wide = convert("zext", type(mem), word, type(Type::i32));
      const std::string bits = line("shl ", type(Type::i32), " ", wide, ", ", i32(16));
      return convert("bitcast", type(Type::i32), bits, type(Type::f32));
    }
    case Mem::u8:
      return convert("zext", type(mem), word, type(Type::i32));
    case Mem::b8:
      return line("icmp ne ", type(mem), " ", word, ", ", integer(mem, 0));
    default:
      return word;
  }
}

void LlvmLines::store(Mem mem, const std::string& value, const std::string& pointer, bool streaming) {
  const std::string f32 = type(Type::f32), i32_type = type(Type::i32), words = vector("i16");
  const auto canonical = [&](std::int64_t nan, const std::string& bits) {
    const std::string is_nan = line("fcmp uno ", f32, " ", value, ", ", value);
    return line("select ", type(Type::b1), " ", is_nan, ", ", words, " ", integer(mem, nan), ", ", words, " ",
                bits);
  };
  std::string stored_type = type(mem), stored = value;
  if (mem == Mem::f16) {
    const std::string half = convert("fptrunc", f32, value, type(mem));
    stored = canonical(0x7e00, convert("bitcast", type(mem), half, words));
    stored_type = words;
  } else if (mem == Mem::bf16) {
    const std::string bits = convert("bitcast", f32, value, i32_type);
    const std::string high = line("lshr ", i32_type, " ", bits, ", ", i32(16));
    stored = canonical(0x7fc0, convert("trunc", i32_type, high, words));
  } else if (mem == Mem::u8) {
    stored = convert("trunc", i32_type, value, type(mem));
  } else if (mem == Mem::b8) {
    stored = convert("zext", type(Type::b1), value, type(mem));
  }
  const std::size_t vector_size = static_cast<std::size_t>(lanes_) * size_of(mem);
  const std::string how = streaming ? join(std::min<std::size_t>(vector_size, 64), ", !nontemporal !0") : "1";
  out_ += join("  store ", stored_type, " ", stored, ", ptr ", pointer, ", align ", how, "\n");
}

// ---- rows ------------------------------------------------------------------------------------------

std::string LlvmLines::apply(Op op, Type result, const Type* types, const std::string* x) {
  const Row& row = row_of(op);
  const std::optional<Type> t = type_variable(row, types);
  internal_check(t.has_value() && !row.is_expanded(), "the LLVM emitter got a graph that is not expanded");
  const std::string_view how = is_float(*t)      ? row.llvm.of_float
                               : *t == Type::i32 ? row.llvm.of_i32
                                                 : row.llvm.of_bool;
  const std::string T = type(types[0]);
  if (how == "copy") return x[0];
  if (how == "fneg") return line("fneg ", T, " ", x[0]);
  if (how == "neg") return line("sub ", T, " zeroinitializer, ", x[0]);
  if (how == "not") return line("xor ", T, " ", x[0], ", ", constant(*t, *t == Type::b1 ? 1 : 0xffffffff));
  if (how == "fcmp uno") return line("fcmp uno ", T, " ", x[0], ", ", x[0]);
  if (how == "select")
    return line("select ", T, " ", x[0], ", ", type(types[1]), " ", x[1], ", ", type(types[2]), " ", x[2]);
  if (how.starts_with("llvm.")) return intrinsic(how, result, types, x, row.arity);
  if (how.starts_with("flexsn.")) return helper(how.substr(7), result, types, x);
  if (row.arity == 1) return convert(how, T, x[0], type(result));
  return line(how, " ", T, " ", x[0], ", ", x[1]);
}

std::string LlvmLines::intrinsic(std::string_view name, Type result, const Type* types,
                                 const std::string* operands, int arity) {
  const bool largest = name == "llvm.maximum";
  if ((largest || name == "llvm.minimum") && is_x86(isa_))
    return extreme(largest, result, operands[0], operands[1]);
  std::string arguments;
  for (int i = 0; i < arity; ++i) arguments += join(i == 0 ? "" : ", ", type(types[i]), " ", operands[i]);
  if (name == "llvm.abs") arguments += ", i1 false";
  const std::string types_in_name =
      name == "llvm.fptosi.sat" ? join(suffix(result), ".", suffix(types[0])) : suffix(result);
  const std::string value = line("call ", type(result), " @", name, ".", types_in_name, "(", arguments, ")");
  // AArch64 has a scalar instruction for -a * b - c, which LLVM 19 takes for -(a * b + c): the other zero.
  if (name != "llvm.fma" || lanes_ > 1 || is_x86(isa_)) return value;
  return line("call ", type(result), " @llvm.arithmetic.fence.", suffix(result), "(", type(result), " ",
              value, ")");
}

std::string LlvmLines::divide(std::string_view how, const std::string& a, const std::string& b) {
  const std::string T = type(Type::i32), mask = type(Type::b1);
  const std::string zero = line("icmp eq ", T, " ", b, ", ", i32(0));
  const std::string minus = line("icmp eq ", T, " ", b, ", ", i32(-1));
  const std::string either = line("or ", mask, " ", zero, ", ", minus);
  const std::string safe = line("select ", mask, " ", either, ", ", T, " ", i32(1), ", ", T, " ", b);
  const std::string result = line(how, " ", T, " ", a, ", ", safe);
  if (how == "srem") return result;  // x % 1 is 0, which is also what is wanted for 0 and -1
  const std::string negated = line("sub ", T, " zeroinitializer, ", a);
  const std::string quotient = line("select ", mask, " ", minus, ", ", T, " ", negated, ", ", T, " ", result);
  return line("select ", mask, " ", zero, ", ", T, " ", i32(0), ", ", T, " ", quotient);
}

/// x86 has "a > b ? a : b" as one instruction; LLVM makes it of this select. Both orders differ for zeros and
/// NaN only: the zeros are settled by the bits, a NaN by the comparison's own mask, which is one.
std::string LlvmLines::extreme(bool largest, Type t, const std::string& a, const std::string& b) {
  const std::string T = type(t), mask = type(Type::b1), bits = vector(t == Type::f64 ? "i64" : "i32");
  const auto chosen = [&](const std::string& x, const std::string& y) {
    const std::string first = line("fcmp ", largest ? "ogt " : "olt ", T, " ", x, ", ", y);
    return line("select ", mask, " ", first, ", ", T, " ", x, ", ", T, " ", y);
  };
  if (is_constant(b) && !is_constant(a)) return extreme(largest, t, b, a);
  if (is_constant(a) && !is_constant(b) && is_zero(a, largest)) {
    // The other zero and NaN come through. Without "or equal" LLVM 19 forgets, when it moves a conversion of
    // b behind the select, which of two zeros was asked for.
    const std::string kept = line("fcmp ", largest ? "uge " : "ule ", T, " ", b, ", ", a);
    return line("select ", mask, " ", kept, ", ", T, " ", b, ", ", T, " ", a);
  }
  // With any other constant first, a NaN comes through.
  if (is_constant(a) && !is_constant(b) && !is_zero(a, !largest)) return chosen(a, b);
  const std::string positive_zero = constant(t, 0);
  if (is_constant(a) && !is_constant(b) && largest) return add(t, chosen(a, b), positive_zero);
  const std::string one = convert("bitcast", T, chosen(a, b), bits);
  const std::string other = convert("bitcast", T, chosen(b, a), bits);
  const std::string both = line(largest ? "and " : "or ", bits, " ", one, ", ", other);
  const std::string unordered = line("fcmp uno ", T, " ", a, ", ", b);
  const std::string nan = convert("sext", mask, unordered, bits);
  return convert("bitcast", bits, line("or ", bits, " ", both, ", ", nan), T);
}

std::string LlvmLines::to_words(const std::string& x, bool high) {
  const std::string wide = vector("i64");
  std::string bits = convert("bitcast", type(Type::f64), x, wide);
  if (high) bits = line("lshr ", wide, " ", bits, ", ", all_lanes("i64 32"));
  return convert("trunc", wide, bits, type(Type::i32));
}

std::string LlvmLines::round_f16(const std::string& x) {
  const std::string half = convert("fptrunc", type(Type::f32), x, type(Mem::f16));
  return convert("fpext", type(Mem::f16), half, type(Type::f32));
}

std::string LlvmLines::round_bf16(const std::string& x) {
  const std::string words = type(Type::i32);
  const std::string bits = convert("bitcast", type(Type::f32), x, words);
  const std::string high = line("lshr ", words, " ", bits, ", ", i32(16));
  const std::string odd = line("and ", words, " ", high, ", ", i32(1));
  const std::string half_way = line("add ", words, " ", bits, ", ", i32(0x7fff));
  const std::string sum = line("add ", words, " ", half_way, ", ", odd);
  return convert("bitcast", words, line("and ", words, " ", sum, ", ", i32(-0x10000)), type(Type::f32));
}

std::string LlvmLines::helper(std::string_view name, Type result, const Type* types, const std::string* x) {
  const std::string T = type(types[0]), R = type(result), i32_type = type(Type::i32);
  if (name == "sdiv" || name == "srem") return divide(name, x[0], x[1]);
  if (name == "shl" || name == "ashr" || name == "lshr")
    return line(name, " ", T, " ", x[0], ", ", line("and ", T, " ", x[1], ", ", i32(31)));
  if (name == "to_float") {
    if (types[0] == result) return x[0];
    return convert(result == Type::f64 ? "fpext" : "fptrunc", T, x[0], R);
  }
  if (name == "from_bool")  // "uitofp" would go through integers
    return line("select ", T, " ", x[0], ", ", R, " ", constant(result, bits_of(result, 1.0)), ", ", R,
                " zeroinitializer");
  if (name == "nonzero")
    return line(is_float(types[0]) ? "fcmp une " : "icmp ne ", T, " ", x[0], ", zeroinitializer");
  if (name == "round_f16" || name == "round_bf16") {
    const std::string rounded = name == "round_f16" ? round_f16(x[0]) : round_bf16(x[0]);
    const std::string is_nan = line("fcmp uno ", T, " ", x[0], ", ", x[0]);
    const std::string nan = constant(Type::f32, bits_of(Type::f32, std::numeric_limits<double>::quiet_NaN()));
    return line("select ", type(Type::b1), " ", is_nan, ", ", T, " ", nan, ", ", T, " ", rounded);
  }
  if (name == "to_u8") {
    if (types[0] == Type::i32) return line("and ", T, " ", x[0], ", ", i32(255));
    const std::string whole = intrinsic("llvm.fptosi.sat", Type::i32, types, x, 1);
    const std::string ends[] = {i32(0), i32(255)};
    const Type both[] = {Type::i32, Type::i32};
    const std::string low[] = {whole, ends[0]};
    const std::string high[] = {intrinsic("llvm.smax", Type::i32, both, low, 2), ends[1]};
    return intrinsic("llvm.smin", Type::i32, both, high, 2);
  }
  if (name == "high_word") return to_words(x[0], true);
  if (name == "low_word") return to_words(x[0], false);
  internal_check(name == "from_words", "a row has an LLVM spelling that the emitter does not know");
  const std::string wide = vector("i64");
  const std::string high = convert("zext", i32_type, x[0], wide);
  const std::string moved = line("shl ", wide, " ", high, ", ", all_lanes("i64 32"));
  const std::string low = convert("zext", i32_type, x[1], wide);
  return convert("bitcast", wide, line("or ", wide, " ", moved, ", ", low), R);
}

}  // namespace flexsn
