#include "triton_lines.h"

#include <algorithm>
#include <charconv>

#include "error.h"
#include "literal.h"

namespace flexsn {

using namespace ir;

namespace {

/// What a kernel and the code around it use, and Python's own words.
constexpr std::string_view reserved[] = {"False",
                                         "None",
                                         "True",
                                         "and",
                                         "as",
                                         "assert",
                                         "async",
                                         "await",
                                         "break",
                                         "class",
                                         "continue",
                                         "def",
                                         "del",
                                         "elif",
                                         "else",
                                         "except",
                                         "finally",
                                         "for",
                                         "from",
                                         "global",
                                         "if",
                                         "import",
                                         "in",
                                         "is",
                                         "lambda",
                                         "nonlocal",
                                         "not",
                                         "or",
                                         "pass",
                                         "raise",
                                         "return",
                                         "try",
                                         "while",
                                         "with",
                                         "yield",
                                         "match",
                                         "case",
                                         "bool",
                                         "classmethod",
                                         "dict",
                                         "enumerate",
                                         "float",
                                         "int",
                                         "isinstance",
                                         "len",
                                         "list",
                                         "max",
                                         "min",
                                         "print",
                                         "range",
                                         "reversed",
                                         "self",
                                         "set",
                                         "staticmethod",
                                         "str",
                                         "tuple",
                                         "type",
                                         "zip",
                                         "torch",
                                         "tl",
                                         "triton",
                                         "ctx",
                                         "math",
                                         "T",
                                         "N",
                                         "K",
                                         "BLOCK",
                                         "LEVELS",
                                         "SEGMENT",
                                         "BLOCKS",
                                         "backward",
                                         "device",
                                         "element",
                                         "first_step",
                                         "forward",
                                         "grads",
                                         "inference",
                                         "inference_final_state",
                                         "k",
                                         "live",
                                         "mask",
                                         "place",
                                         "program",
                                         "row",
                                         "saved",
                                         "segment",
                                         "segments",
                                         "sequences",
                                         "start",
                                         "step",
                                         "t",
                                         "wanted",
                                         "NamedTuple",
                                         "Parameter",
                                         "SUM_SIZE",
                                         "all",
                                         "any",
                                         "arguments",
                                         "as_parameter",
                                         "as_rows",
                                         "as_state",
                                         "checked",
                                         "contextlib",
                                         "dimensions_of",
                                         "each",
                                         "gradients",
                                         "later",
                                         "next",
                                         "on_device",
                                         "results",
                                         "run_inference",
                                         "shape",
                                         "sum_gradient",
                                         "sum_kernel",
                                         "sum_neighbours",
                                         "tensor",
                                         "trained",
                                         "warps"};

bool is_zero(const TritonOperand& x, bool negative) {
  return x.name.empty() && is_float(x.type) && x.bits == bits_of(x.type, negative ? -0.0 : 0.0);
}

/// Does Triton take the number for an f32 (or i32, or bool) where nothing beside it says so?
bool is_typed_by_itself(const TritonOperand& x) {
  if (x.type == Type::i32 || x.type == Type::b1) return true;
  if (x.type != Type::f32 || is_zero(x, true)) return false;
  const double size = std::fabs(number_of(x.type, x.bits));
  return size == 0 || !(size < 0x1p-126);
}

std::string_view spelling_of(Op op, Type t) {
  const Spelling& spelling = row_of(op).triton;
  // Triton has the correctly rounded functions of f32 under names of their own.
  if (t == Type::f64 && op == Op::div) return "$0 / $1";
  if (t == Type::f64 && op == Op::sqrt) return "tl.sqrt($0)";
  return is_float(t) ? spelling.of_float : t == Type::i32 ? spelling.of_i32 : spelling.of_bool;
}

/// "a if a is larger (smaller), else b" is the whole of it where a is a constant: a NaN and, of two zeros,
/// the second come through.
std::optional<std::string> extreme_of_constant(bool largest, const TritonOperand& a, const TritonOperand& b) {
  if (!a.name.empty() && b.name.empty()) return extreme_of_constant(largest, b, a);
  if (!a.name.empty() || b.name.empty() || !is_float(a.type) || is_zero(a, true)) return {};
  const std::string number = python_number(a.type, a.bits);
  const std::string chosen =
      join("tl.where(", b.name, largest ? " < " : " > ", number, ", ", number, ", ", b.name, ")");
  return largest && is_zero(a, false) ? chosen + " + 0.0" : chosen;
}

}  // namespace

TritonNames::TritonNames() : taken_(std::begin(reserved), std::end(reserved)) {}

std::string TritonNames::take(std::string_view wish) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  std::string name;
  for (char c : wish) name += is_letter(c) ? c : '_';
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) name = "v" + name;
  if (name.starts_with("flexsn_") || name.starts_with("_")) name = "v_" + name;
  if (taken_.contains(name)) name += '_';  // as Python's own style has it
  std::string unique = name;
  for (int number = 2; !taken_.insert(unique).second; ++number) unique = join(name, number);
  return unique;
}

std::string_view triton_type(Type type) {
  switch (type) {
    case Type::f32:
      return "tl.float32";
    case Type::f64:
      return "tl.float64";
    case Type::i32:
      return "tl.int32";
    case Type::b1:
      return "tl.int1";
  }
  internal_error("unknown type", std::source_location::current());
}

std::string_view torch_type(Mem mem) {
  switch (mem) {
    case Mem::f16:
      return "torch.float16";
    case Mem::bf16:
      return "torch.bfloat16";
    case Mem::f32:
      return "torch.float32";
    case Mem::f64:
      return "torch.float64";
    case Mem::i32:
      return "torch.int32";
    case Mem::u8:
      return "torch.uint8";
    case Mem::b8:
      return "torch.bool";
  }
  internal_error("unknown type", std::source_location::current());
}

std::string python_number(Type type, std::uint64_t bits) {
  if (type == Type::b1) return bits != 0 ? "True" : "False";
  if (type == Type::i32) return literal(type, bits);
  const double value = number_of(type, bits);
  if (value != value) return "float(\"nan\")";
  if (std::fabs(value) == std::numeric_limits<double>::infinity())
    return value > 0 ? "float(\"inf\")" : "float(\"-inf\")";
  std::string text = literal(type, bits);
  // Python reads a double, which is then rounded.
  double read = 0;
  std::from_chars(text.data(), text.data() + text.size(), read);
  if (bits_of(type, read) != bits) text = literal(Type::f64, bits_of(Type::f64, value));
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string triton_block(const std::string& shape, Type type, std::uint64_t bits) {
  // Triton would forget the sign of a zero.
  if (is_float(type) && bits == bits_of(type, -0.0))
    return join("tl.full(", shape, ", ",
                type == Type::f64 ? "-0x8000000000000000, tl.int64" : "-0x80000000, tl.int32", ").to(",
                triton_type(type), ", bitcast=True)");
  return join("tl.full(", shape, ", ", python_number(type, bits), ", ", triton_type(type), ")");
}

std::string triton_expression(Op op, const std::vector<TritonOperand>& x, const TritonConstant& constant) {
  const Row& row = row_of(op);
  std::vector<Type> types;
  for (const TritonOperand& operand : x) types.push_back(operand.type);
  const std::optional<Type> t = type_variable(row, types.data());
  internal_check(t.has_value() && !row.is_expanded(), "the Triton emitter got a graph that is not expanded");
  if (op == Op::maximum || op == Op::minimum)
    if (const std::optional<std::string> found = extreme_of_constant(op == Op::maximum, x[0], x[1]))
      return *found;
  const std::string_view how = spelling_of(op, *t);
  // Operators and the values of tl.where give a number the type of the variable beside it.
  const std::size_t first = op == Op::select ? 1 : 0;
  const bool is_infix = how.starts_with("$0 ") || op == Op::select;
  const auto values = x.begin() + static_cast<std::ptrdiff_t>(first);
  const bool beside_variable =
      is_infix && std::any_of(values, x.end(), [](const TritonOperand& o) { return !o.name.empty(); });
  const bool is_call = !how.starts_with("$0 ") && !how.starts_with("flexsn_");
  const bool all_typed = is_call && std::all_of(values, x.end(), [](const TritonOperand& o) {
                           return !o.name.empty() || is_typed_by_itself(o);
                         });
  const auto written = [&](std::size_t i) {
    if (!x[i].name.empty()) return x[i].name;
    const bool is_object = how.find(join("$", i, ".")) != std::string_view::npos;
    const bool is_number = i >= first && !is_object && !is_zero(x[i], true) && (beside_variable || all_typed);
    return is_number ? python_number(x[i].type, x[i].bits) : constant(x[i].type, x[i].bits);
  };
  std::string text;
  constexpr std::string_view count = "($1 & 31)";  // of a shift, known where it is a constant
  for (std::size_t i = 0; i < how.size(); ++i) {
    if (how.substr(i).starts_with(count) && x[1].name.empty()) {
      text += std::to_string(x[1].bits & 31);
      i += count.size() - 1;
    } else if (how[i] == '$')
      text += written(static_cast<std::size_t>(how[++i] - '0'));
    else
      text += how[i];
  }
  return text;
}

std::string triton_loaded(Mem mem, const std::string& loaded) {
  switch (mem) {
    case Mem::f16:
      return loaded + ".to(tl.float32)";
    case Mem::bf16:
      return join("flexsn_from_bf16(", loaded, ")");
    case Mem::u8:
      return loaded + ".to(tl.int32)";
    default:
      return loaded;
  }
}

std::string triton_stored(Mem mem, const std::string& value) {
  return mem == Mem::bf16 ? join("flexsn_to_bf16(", value, ")") : value;  // others are converted by tl.store
}

}  // namespace flexsn
