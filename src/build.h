// Builders: one function for each row of the op table, and operators, on values of a graph being built.
// Types are strict here; only a plain number takes the type of the value beside it.
#pragma once

#include "ir.h"

namespace flexsn::ir {

#define OP0(name, ...)
#define OP1(name, ...) \
  inline V name(V a) { return apply(Op::name, &a, 1); }
#define OP2(name, ...)            \
  inline V name(V a, V b) {       \
    const V x[] = {a, b};         \
    return apply(Op::name, x, 2); \
  }
#define OP3(name, ...)            \
  inline V name(V a, V b, V c) {  \
    const V x[] = {a, b, c};      \
    return apply(Op::name, x, 3); \
  }
#define RAW1 OP1
#define RAW2 OP2
#include "flexsn/ops.def"

/// A constant of the same type as `like`, rounded to nearest.
inline V lit(V like, double value) { return constant(*like.graph, like.type(), value); }
/// An i32 constant in the graph of `like`.
inline V lit_i32(V like, std::uint32_t bits) { return constant_bits(*like.graph, Type::i32, bits); }

#define FLEXSN_OPERATOR(symbol, name)                                    \
  inline V operator symbol(V a, V b) { return name(a, b); }              \
  inline V operator symbol(V a, double b) { return name(a, lit(a, b)); } \
  inline V operator symbol(double a, V b) { return name(lit(b, a), b); }
FLEXSN_OPERATOR(+, add)
FLEXSN_OPERATOR(-, sub)
FLEXSN_OPERATOR(*, mul)
FLEXSN_OPERATOR(/, div)
FLEXSN_OPERATOR(==, eq)
FLEXSN_OPERATOR(!=, ne)
FLEXSN_OPERATOR(<, lt)
FLEXSN_OPERATOR(<=, le)
FLEXSN_OPERATOR(>, gt)
FLEXSN_OPERATOR(>=, ge)
FLEXSN_OPERATOR(&, bit_and)
FLEXSN_OPERATOR(|, bit_or)
FLEXSN_OPERATOR(^, bit_xor)
#undef FLEXSN_OPERATOR

inline V operator-(V a) { return neg(a); }
inline V operator!(V a) { return bit_not(a); }
inline V fma(V a, double b, V c) { return fma(a, lit(a, b), c); }
inline V fma(V a, double b, double c) { return fma(a, lit(a, b), lit(a, c)); }
inline V fma(V a, V b, double c) { return fma(a, b, lit(a, c)); }
inline V select(V c, double a, V b) { return select(c, lit(b, a), b); }
inline V select(V c, V a, double b) { return select(c, a, lit(a, b)); }

/// `x` converted to `type`; nothing is added when it has it already.
V convert(V x, Type type);

}  // namespace flexsn::ir
