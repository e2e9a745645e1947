// What a row of the op table is. ops.def holds the rows; every stage reads them here.
#pragma once

#include <bit>
#include <cmath>

#include "ir.h"

namespace flexsn::ir {

// ---- signatures ----------------------------------------------------------------------------------

/// An operand or result either has the row's type variable T or one fixed type.
enum class SigType : std::uint8_t { T, f32, f64, i32, b1 };

struct TypeSet {
  bool f32 = false, f64 = false, i32 = false, b1 = false;
  constexpr bool has(Type type) const {
    switch (type) {
      case Type::f32:
        return f32;
      case Type::f64:
        return f64;
      case Type::i32:
        return i32;
      case Type::b1:
        return b1;
    }
    return false;
  }
};

/// Which types T may be, and what operands and result are in terms of T.
struct Sig {
  TypeSet types;
  SigType result = SigType::T;
  SigType first = SigType::T;  ///< the first operand; all others are T
};

constexpr Type type_of(SigType slot, Type t) {
  return slot == SigType::T ? t : static_cast<Type>(static_cast<int>(slot) - 1);
}

/// The signatures that rows name.
namespace sig {
inline constexpr TypeSet floats = {true, true, false, false}, numbers = {true, true, true, false},
                         everything = {true, true, true, true}, whole = {false, false, true, true};
inline constexpr Sig real = {floats}, arith = {numbers}, logic = {whole}, any = {everything},
                     integer = {{false, false, true, false}}, single = {{true, false, false, false}},
                     order = {numbers, SigType::b1}, equality = {everything, SigType::b1},
                     classify = {floats, SigType::b1}, choose = {everything, SigType::T, SigType::b1},
                     into_f32 = {everything, SigType::f32}, into_f64 = {everything, SigType::f64},
                     into_i32 = {everything, SigType::i32}, into_bool = {everything, SigType::b1},
                     number_to_i32 = {numbers, SigType::i32},
                     f32_to_i32 = {{true, false, false, false}, SigType::i32},
                     f64_to_i32 = {{false, true, false, false}, SigType::i32},
                     i32_to_f32 = {{false, false, true, false}, SigType::f32},
                     i32_to_f64 = {{false, false, true, false}, SigType::f64};
}  // namespace sig

// ---- meaning -------------------------------------------------------------------------------------

template <Type type>
struct Native;
template <>
struct Native<Type::f32> {
  using type = float;
};
template <>
struct Native<Type::f64> {
  using type = double;
};
template <>
struct Native<Type::i32> {
  using type = std::int32_t;
};
template <>
struct Native<Type::b1> {
  using type = bool;
};
/// The C++ type that holds a value of `type`.
template <Type type>
using native = typename Native<type>::type;

/// Evaluates a row on `count` elements; a stride is 0 (one value for all) or 1.
using Kernel = void (*)(const void* const* operands, const int* strides, void* result, std::int64_t count);
/// Builds a row's expansion in the operands' graph.
using Expand = V (*)(const V* operands);

/// A basic row has a kernel for each type, an expanded row an expansion, a leaf neither.
struct Meaning {
  Sig sig;
  Kernel kernels[4] = {};
  Expand expand = nullptr;
  int arity = -1;  ///< as the function given says; -1: a leaf
  bool is_expanded = false;
};

template <Sig sig, Type t, class F, std::size_t... I>
void run_kernel(const void* const* operands, const int* strides, void* result, std::int64_t count,
                std::index_sequence<I...>) {
  using R = native<type_of(sig.result, t)>;
  R* out = static_cast<R*>(result);
  const bool dense = ((strides[I] == 1) && ...);
  if (dense) {
    for (std::int64_t n = 0; n < count; ++n)
      out[n] =
          F{}(static_cast<const native<type_of(I == 0 ? sig.first : SigType::T, t)>*>(operands[I])[n]...);
  } else {
    for (std::int64_t n = 0; n < count; ++n)
      out[n] = F{}(static_cast<const native<type_of(I == 0 ? sig.first : SigType::T, t)>*>(
          operands[I])[n * strides[I]]...);
  }
}

template <Sig sig, Type t, class F, int arity>
void kernel(const void* const* operands, const int* strides, void* result, std::int64_t count) {
  run_kernel<sig, t, F>(operands, strides, result, count, std::make_index_sequence<arity>{});
}

template <Sig sig, int arity, class F, Type t>
constexpr Kernel kernel_for() {
  if constexpr (sig.types.has(t)) return &kernel<sig, t, F, arity>;
  return nullptr;
}

/// Number of parameters of a captureless lambda whose parameters are all `P` or `auto`.
template <class F, class P, class First = P>
constexpr int arity_of() {
  if constexpr (std::is_invocable_v<F, First>)
    return 1;
  else if constexpr (std::is_invocable_v<F, First, P>)
    return 2;
  else if constexpr (std::is_invocable_v<F, First, P, P>)
    return 3;
  else
    return -1;
}

template <Sig sig>
constexpr Type some_type() {
  for (Type t : {Type::f32, Type::f64, Type::i32})
    if (sig.types.has(t)) return t;
  return Type::b1;
}

/// The meaning of a basic row: `F` computes one element, for every T of the signature.
template <Sig sig, class F>
constexpr Meaning basic(F) {
  using P = native<some_type<sig>()>;
  constexpr int arity = arity_of<F, P, native<type_of(sig.first, some_type<sig>())>>();
  return {sig,
          {kernel_for<sig, arity, F, Type::f32>(), kernel_for<sig, arity, F, Type::f64>(),
           kernel_for<sig, arity, F, Type::i32>(), kernel_for<sig, arity, F, Type::b1>()},
          nullptr,
          arity};
}

/// The meaning of an expanded row: `F` builds it from other rows.
template <Sig sig, class F>
constexpr Meaning expanded(F) {
  constexpr int arity = arity_of<F, V>();
  constexpr Expand expand = [](const V* x) {
    if constexpr (arity == 1)
      return F{}(x[0]);
    else if constexpr (arity == 2)
      return F{}(x[0], x[1]);
    else
      return F{}(x[0], x[1], x[2]);
  };
  return {sig, {}, expand, arity, true};
}

/// The meaning of a leaf: an i32 that whoever runs the step supplies.
inline constexpr Meaning leaf = {.sig = {{}, SigType::i32}};

// ---- derivative ----------------------------------------------------------------------------------

/// Gradients of the operands in order; an empty V means that nothing flows there.
struct Grads {
  V of[max_arity] = {};
};
inline constexpr V none = {};

/// Builds the gradients from the operands, the result y and its gradient g.
struct Vjp {
  Grads (*build)(const V* operands, V y, V g) = nullptr;
  bool zero = false;  ///< the derivative is zero wherever it exists
  int arity = -1;

  constexpr Vjp() = default;
  constexpr explicit Vjp(bool is_zero) : zero(is_zero) {}
  template <class F>
    requires std::is_empty_v<F>
  constexpr Vjp(F) {
    if constexpr (std::is_invocable_v<F, V, V, V>) {
      arity = 1;
      build = [](const V* x, V y, V g) -> Grads { return F{}(x[0], y, g); };
    } else if constexpr (std::is_invocable_v<F, V, V, V, V>) {
      arity = 2;
      build = [](const V* x, V y, V g) -> Grads { return F{}(x[0], x[1], y, g); };
    } else {
      arity = 3;
      build = [](const V* x, V y, V g) -> Grads { return F{}(x[0], x[1], x[2], y, g); };
    }
  }
};
inline constexpr Vjp flat{true};

// ---- the row -------------------------------------------------------------------------------------

/// How a backend writes a basic row when T is a float, i32 or bool. $0 $1 $2 are the operands, $f is
/// "f" for f32 and nothing for f64.
struct Spelling {
  const char* of_float = "";
  const char* of_i32 = "";
  const char* of_bool = "";
};

/// Where tests draw operands from, and how far from the reference a result may be.
struct TestRange {
  Range first = {-8, 8};
  Range second = {-8, 8};
  Range third = {-8, 8};
  double ulps_f32 = 0, ulps_f64 = 0;                        ///< 0: equal
  double domain = std::numeric_limits<double>::infinity();  ///< arguments up to this size are promised
};

/// The exact function behind an expanded row, over any number type; only the tests use it.
struct Reference {
  bool given = false;
  constexpr Reference() = default;
  template <class F>
  constexpr Reference(F) : given(true) {}
};

struct Row {
  const char* name = nullptr;
  int arity = 0;
  bool raw = false;  ///< reads the bits of a NaN: legal in expansions only
  const char* doc = nullptr;
  Meaning meaning;
  bool commutes = false;
  Vjp vjp;
  Spelling llvm = {}, cuda = {}, triton = {};
  const char* aten = "";
  Reference reference = {};
  TestRange test = {};

  constexpr bool is_expanded() const { return meaning.is_expanded; }
  constexpr bool is_leaf() const { return arity == 0; }
};

constexpr bool filled(const char* text) { return text != nullptr && *text != 0; }

/// Is there a spelling for each of the types?
constexpr bool spelled(const Spelling& spelling, const TypeSet& types) {
  return (!(types.f32 || types.f64) || filled(spelling.of_float)) &&
         (!types.i32 || filled(spelling.of_i32)) && (!types.b1 || filled(spelling.of_bool));
}

constexpr bool unspelled(const Spelling& spelling) {
  return !filled(spelling.of_float) && !filled(spelling.of_i32) && !filled(spelling.of_bool);
}

/// Has the row all its parts? ops.cpp asserts it for each row. (Function pointers are not compared: gcc 12
/// cannot do so in a constant expression under its undefined-behavior sanitizer.)
constexpr bool complete(const Row& row) {
  const bool has_rule = row.vjp.arity >= 0;
  if (!filled(row.doc) || has_rule == row.vjp.zero) return false;
  if (has_rule && row.vjp.arity != row.arity) return false;
  if (row.is_leaf()) return row.vjp.zero;
  if (row.meaning.arity != row.arity) return false;
  if (row.is_expanded())
    return row.reference.given && unspelled(row.llvm) && unspelled(row.cuda) && unspelled(row.triton);
  const TypeSet& types = row.meaning.sig.types;
  return spelled(row.llvm, types) && spelled(row.cuda, types) && spelled(row.triton, types);
}

/// The row of `op`, which must not be a constant or an argument.
const Row& row_of(Op op);
/// The op called `name`; nothing when there is none.
std::optional<Op> op_named(std::string_view name);
/// All ops that have rows, in table order.
std::vector<Op> all_ops();
/// All row names, in table order.
const std::vector<std::string>& op_names();
/// "constant", "argument" or the row's name.
std::string_view name_of(Op op);
/// The type of operand `index` when the row's T is `t`.
Type operand_type(const Row& row, int index, Type t);
/// T for these operand types; nothing when they do not fit.
std::optional<Type> type_variable(const Row& row, const Type* operand_types);
/// The result type for these operand types; nothing when they do not fit.
std::optional<Type> result_type(const Row& row, const Type* operand_types);
/// What is wrong with these operand types, and what to do.
std::string type_mismatch(const Row& row, const Type* operand_types);
/// "f32, f64 or i32"
std::string names_of(const TypeSet& types);

// ---- arithmetic that C++ leaves open ---------------------------------------------------------------

namespace exact {

/// Integers wrap: compute on these, then convert back.
inline std::uint32_t bits(std::int32_t x) { return static_cast<std::uint32_t>(x); }
inline float bits(float x) { return x; }
inline double bits(double x) { return x; }

template <class F>
std::int32_t to_i32(F x) {
  if constexpr (std::is_floating_point_v<F>) {
    if (x != x) return 0;
    if (x >= F(2147483648.0)) return std::numeric_limits<std::int32_t>::max();
    if (x <= F(-2147483648.0)) return std::numeric_limits<std::int32_t>::min();
  }
  return static_cast<std::int32_t>(x);
}

/// Zero for a zero divisor; the one overflow wraps.
inline std::int32_t divide(std::int32_t a, std::int32_t b) {
  if (b == 0) return 0;
  return b == -1 ? static_cast<std::int32_t>(0u - bits(a)) : a / b;
}
inline float divide(float a, float b) { return a / b; }
inline double divide(double a, double b) { return a / b; }

inline std::int32_t modulo(std::int32_t a, std::int32_t b) { return b == 0 || b == -1 ? 0 : a % b; }
inline float modulo(float a, float b) { return std::fmod(a, b); }
inline double modulo(double a, double b) { return std::fmod(a, b); }

/// NaN wins; of two zeros the positive one is larger.
template <class T>
T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a != a || b != b) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a > b ? a : b;
}
template <class T>
T smaller(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a != a || b != b) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) ? a : b;
  }
  return a < b ? a : b;
}

/// Conversions between f16 or bf16 bits and f32; rounding is to nearest, ties to even, a NaN is canonical.
float from_f16(std::uint16_t half);
std::uint16_t to_f16(float x);
float from_bf16(std::uint16_t half);
std::uint16_t to_bf16(float x);
/// u8: floats truncate and saturate (NaN gives 0), integers wrap.
template <class T>
std::int32_t to_u8(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return x >= T(255) ? 255 : x > T(0) ? static_cast<std::int32_t>(x) : 0;
  else
    return x & 255;
}

}  // namespace exact
}  // namespace flexsn::ir
