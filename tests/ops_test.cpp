// Every row of the op table has every property that a row must have; a new row is tested without a new test.
#include <gtest/gtest.h>

#include "accuracy.h"
#include "expand.h"
#include "interpret.h"
#include "literal.h"
#include "text.h"
#include "verify.h"

namespace flexsn::test {
namespace {

using namespace ir;

bool is_float(Type type) { return type == Type::f32 || type == Type::f64; }
Type result_of(const RowCase& row_case) { return type_of(row_case.row().meaning.sig.result, row_case.t); }

/// The first `count` elements, from the start again where there are fewer.
std::vector<Values> first(const std::vector<Values>& columns, std::size_t count) {
  std::vector<Values> result(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i)
    for (std::size_t n = 0; n < count; ++n) result[i].push_back(columns[i][n % columns[i].size()]);
  return result;
}

std::vector<Values> element(const std::vector<Values>& columns, std::size_t n) {
  std::vector<Values> result;
  for (const Values& column : columns) result.push_back({column[n]});
  return result;
}

/// The operands of element n, for messages.
std::string shown(const RowCase& row_case, const std::vector<Values>& columns, std::size_t n) {
  std::string text = row_case.row().name;
  for (std::size_t i = 0; i < columns.size(); ++i)
    text += " " + literal(operand_type(row_case.row(), static_cast<int>(i), row_case.t), columns[i][n]);
  return text;
}

Values run_row(const Graph& graph, const std::vector<Values>& columns) {
  return run_columns(graph, columns, static_cast<std::int64_t>(columns[0].size()))[0];
}

// ---- text and interpreter --------------------------------------------------------------------------

class EveryRow : public testing::TestWithParam<RowCase> {};

TEST_P(EveryRow, TextRoundTrip) {
  const Graph graph = graph_of(GetParam().op, GetParam().t);
  verify(graph);
  for (const PrintStyle style : {PrintStyle{}, PrintStyle{.names = false}}) {
    const Graph again = parse(print(graph, style), "text");
    verify(again);
    EXPECT_EQ(again.nodes, graph.nodes);
    EXPECT_EQ(print(again, style), print(graph, style));
    EXPECT_EQ(canonical(again), canonical(graph));
  }
}

TEST_P(EveryRow, BlocksOfElementsAreIndependent) {
  const Graph graph = graph_of(GetParam().op, GetParam().t);
  if (GetParam().row().is_leaf()) {
    for (std::int64_t count : {1, 513, 1025}) {
      const Values values = run_columns(graph, {}, count)[0];
      for (std::int64_t n = 0; n < count; ++n)
        ASSERT_EQ(values[n], GetParam().op == Op::element_index ? n : 0);
    }
    return;
  }
  const std::vector<Values> columns = first(operands_to_try(GetParam()), 1025);
  Values alone;
  for (std::size_t n = 0; n < 1025; ++n) alone.push_back(run_columns(graph, element(columns, n), 1)[0][0]);
  for (std::size_t count : {1, 513, 1025}) {
    const Values together = run_row(graph, first(columns, count));
    for (std::size_t n = 0; n < count; ++n) ASSERT_EQ(together[n], alone[n]) << shown(GetParam(), columns, n);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, EveryRow, testing::ValuesIn(row_cases([](const RowCase&) { return true; })),
                         testing::PrintToStringParamName());

// ---- rows with operands ----------------------------------------------------------------------------

class RowWithOperands : public testing::TestWithParam<RowCase> {};

TEST_P(RowWithOperands, OneValueForAllElementsIsThatValueInEach) {
  const Graph graph = graph_of(GetParam().op, GetParam().t);
  const int arity = GetParam().row().arity;
  const std::vector<Values> columns = first(operands_to_try(GetParam()), 513);
  for (int uniform = 1; uniform < 1 << arity; ++uniform)
    for (std::size_t chosen : {3, 200, 400}) {
      std::vector<Values> one = columns, each = columns;
      for (int i = 0; i < arity; ++i)
        if (uniform >> i & 1) one[i] = {columns[i][chosen]}, each[i] = Values(513, columns[i][chosen]);
      EXPECT_EQ(run_columns(graph, one, 513), run_columns(graph, each, 513))
          << "uniform operands " << uniform;
    }
}

TEST_P(RowWithOperands, FoldingIsTheInterpreter) {
  const auto [op, t] = GetParam();
  const Graph graph = graph_of(op, t);
  const std::vector<Values> columns = operands_to_try(GetParam());
  const Values results = run_row(graph, columns);
  Type types[max_arity];
  for (int i = 0; i < GetParam().row().arity; ++i) types[i] = operand_type(GetParam().row(), i, t);
  for (std::size_t n = 0; n < results.size(); ++n) {
    std::uint64_t bits[max_arity] = {};
    for (std::size_t i = 0; i < columns.size(); ++i) bits[i] = columns[i][n];
    ASSERT_EQ(evaluate(op, types, bits), results[n]) << shown(GetParam(), columns, n);
  }
}

TEST_P(RowWithOperands, ExpansionKeepsEveryBit) {
  const Graph graph = graph_of(GetParam().op, GetParam().t);
  const Graph basic = expand(graph);
  verify(basic);
  EXPECT_TRUE(basic.expanded);
  for (const Node& node : basic.nodes)
    EXPECT_TRUE(node.op == Op::constant || node.op == Op::argument || !row_of(node.op).is_expanded());
  const std::vector<Values> columns = operands_to_try(GetParam());
  const Values direct = run_row(graph, columns), expanded = run_row(basic, columns);
  for (std::size_t n = 0; n < direct.size(); ++n)
    ASSERT_EQ(direct[n], expanded[n]) << shown(GetParam(), columns, n);
}

INSTANTIATE_TEST_SUITE_P(Rows, RowWithOperands,
                         testing::ValuesIn(row_cases([](const RowCase& c) { return !c.row().is_leaf(); })),
                         testing::PrintToStringParamName());

class CommutingRow : public testing::TestWithParam<RowCase> {};

TEST_P(CommutingRow, OperandsMayBeSwapped) {
  const Graph graph = graph_of(GetParam().op, GetParam().t);
  std::vector<Values> columns = operands_to_try(GetParam());
  const Values straight = run_row(graph, columns);
  std::swap(columns[0], columns[1]);
  const Values swapped = run_row(graph, columns);
  for (std::size_t n = 0; n < straight.size(); ++n)
    ASSERT_EQ(straight[n], swapped[n]) << shown(GetParam(), columns, n);
}

INSTANTIATE_TEST_SUITE_P(Rows, CommutingRow,
                         testing::ValuesIn(row_cases([](const RowCase& c) { return c.row().commutes; })),
                         testing::PrintToStringParamName());

// ---- expanded rows against their reference -----------------------------------------------------------

class ExpandedRow : public testing::TestWithParam<RowCase> {};

// accuracy_test measures how near the others are; this holds without MPFR and for i32 too.
TEST_P(ExpandedRow, SpecialValuesAreThoseOfTheReference) {
  const auto [op, t] = GetParam();
  const Type result_type = result_of(GetParam());
  const TestRange& test = GetParam().row().test;
  const bool exact = !is_float(result_type) || (t == Type::f32 ? test.ulps_f32 : test.ulps_f64) == 0;
  const std::vector<Values> columns = operands_to_try(GetParam());
  const Values results = run_row(graph_of(op, t), columns);
  for (std::size_t n = 0; n < results.size(); ++n) {
    double operands[max_arity] = {};
    for (std::size_t i = 0; i < columns.size(); ++i) operands[i] = number_of(t, columns[i][n]);
    // Through the result's type: too large becomes infinite or the nearest integer.
    const double wanted = number_of(result_type, bits_of(result_type, reference(op, operands)));
    const double found = number_of(result_type, results[n]);
    const bool same = std::isnan(wanted) || std::isnan(found) ? std::isnan(wanted) && std::isnan(found)
                      : exact || std::isinf(wanted) || std::isinf(found) ? wanted == found
                                                                         : wanted != 0 || found == 0;
    const bool same_zero = wanted != 0 || found != 0 || std::signbit(wanted) == std::signbit(found);
    ASSERT_TRUE(same && same_zero) << shown(GetParam(), columns, n) << " gives " << found << ", not "
                                   << wanted;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, ExpandedRow,
                         testing::ValuesIn(row_cases([](const RowCase& c) { return c.row().is_expanded(); })),
                         testing::PrintToStringParamName());

// ---- derivatives -------------------------------------------------------------------------------------

/// Rows whose gradient is, as their doc line says, not the derivative of their value.
constexpr Op not_derivatives[] = {
    Op::with_grad,  // has the gradient of its second operand
    Op::detach,     // has none
};

class DifferentiableRow : public testing::TestWithParam<RowCase> {};

TEST_P(DifferentiableRow, GradientGraphIsLegal) {
  const auto [op, t] = GetParam();
  const Graph graph = gradient_of(op, t);
  verify(graph);
  verify(expand(graph));
  const Row& row = row_of(op);
  for (const Result& result : graph.results)
    for (int i = 0; i < row.arity; ++i)
      if (result.name == operand_name(row, i)) {
        EXPECT_EQ(value_type(result.mem), operand_type(row, i, t)) << result.name;
      }
}

bool can_carry_gradient(const RowCase& row_case) {
  return is_float(row_case.t) && is_float(result_of(row_case)) && !row_case.row().raw;
}
INSTANTIATE_TEST_SUITE_P(Rows, DifferentiableRow, testing::ValuesIn(row_cases(can_carry_gradient)),
                         testing::PrintToStringParamName());

class DerivativeInF64 : public testing::TestWithParam<RowCase> {};

/// The slopes of a row at points x along one operand: to the left, to the right, and a five-point estimate.
struct Slopes {
  std::vector<double> left, right, central;
};

Slopes slopes(const RowCase& row_case, const std::vector<Values>& points, int operand, double step) {
  const Graph graph = graph_of(row_case.op, row_case.t);
  const Type result = result_of(row_case);
  const std::size_t count = points[0].size();
  std::vector<double> widths(count), values[5];
  for (int offset = -2; offset <= 2; ++offset) {
    std::vector<Values> moved = points;
    for (std::size_t n = 0; n < count; ++n) {
      const double x = number_of(row_case.t, points[operand][n]);
      widths[n] = step * (1 + std::fabs(x));
      moved[operand][n] = bits_of(row_case.t, x + offset * widths[n]);
    }
    for (std::uint64_t bits : run_row(graph, moved)) values[offset + 2].push_back(number_of(result, bits));
  }
  Slopes found;
  for (std::size_t n = 0; n < count; ++n) {
    found.left.push_back((values[2][n] - values[0][n]) / (2 * widths[n]));
    found.right.push_back((values[4][n] - values[2][n]) / (2 * widths[n]));
    found.central.push_back((values[0][n] - 8 * values[1][n] + 8 * values[3][n] - values[4][n]) /
                            (12 * widths[n]));
  }
  return found;
}

TEST_P(DerivativeInF64, IsThatOfTheValue) {
  const auto [op, t] = GetParam();
  const Row& row = row_of(op);
  constexpr std::size_t count = 1000;
  // A result that is rounded to f32 needs steps that are far larger than its last place.
  const bool coarse = result_of(GetParam()) == Type::f32;
  const double step = coarse ? 0.05 : 2e-5, tolerance = coarse ? 1e-4 : 2e-6;
  Random random(11);
  std::vector<Values> points(row.arity);
  for (std::size_t n = 0; n < count; ++n)
    for (int i = 0; i < row.arity; ++i)
      points[i].push_back(random_value(random, range_of(row, i), operand_type(row, i, t)));

  std::map<std::string, Values> gradients;
  const Graph graph = gradient_of(op, t);
  std::vector<Values> inputs = points;
  inputs.push_back({bits_of(result_of(GetParam()), 1)});
  const std::vector<Values> outputs = run_columns(graph, inputs, count);
  for (std::size_t i = 0; i < outputs.size(); ++i) gradients[graph.results[i].name] = outputs[i];

  for (int i = 0; i < row.arity; ++i) {
    if (operand_type(row, i, t) != t) continue;
    const Slopes numeric = slopes(GetParam(), points, i, step);
    const auto found = gradients.find(operand_name(row, i));
    std::size_t smooth = 0;
    for (std::size_t n = 0; n < count; ++n) {
      // Around a jump or a kink there is no derivative to compare with.
      if (!(std::fabs(numeric.left[n] - numeric.right[n]) <= 0.02 * (1 + std::fabs(numeric.central[n]))))
        continue;
      ++smooth;
      const double gradient = found == gradients.end() ? 0 : number_of(t, found->second[n]);
      ASSERT_NEAR(gradient, numeric.central[n], tolerance * (1 + std::fabs(gradient)))
          << "of operand " << operand_name(row, i) << " at " << shown(GetParam(), points, n);
    }
    EXPECT_GE(smooth, count * 95 / 100) << "too few points have a derivative; look at the row's test range";
  }
}

bool has_derivative(const RowCase& row_case) {
  return row_case.t == Type::f64 && !row_case.row().raw &&
         std::find(std::begin(not_derivatives), std::end(not_derivatives), row_case.op) ==
             std::end(not_derivatives);
}
INSTANTIATE_TEST_SUITE_P(Rows, DerivativeInF64, testing::ValuesIn(row_cases(has_derivative)),
                         testing::PrintToStringParamName());

// ---- corner values -----------------------------------------------------------------------------------

constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();
constexpr double i32_min = -2147483648.0, i32_max = 2147483647.0;

struct Corner {
  Op op;
  std::vector<Type> types;  ///< T
  std::vector<double> operands;
  double result;
};

const std::vector<Type> f32 = {Type::f32}, f64 = {Type::f64}, i32 = {Type::i32}, b1 = {Type::b1};
const std::vector<Type> reals = {Type::f32, Type::f64}, all = {Type::f32, Type::f64, Type::i32};

const Corner corners[] = {
    // minimum and maximum: NaN wins and zeros are ordered
    {Op::minimum, reals, {nan, 1}, nan},
    {Op::minimum, reals, {-inf, nan}, nan},
    {Op::minimum, reals, {0, -0.0}, -0.0},
    {Op::minimum, reals, {-0.0, 0}, -0.0},
    {Op::minimum, reals, {0, 0}, 0},
    {Op::maximum, reals, {nan, 1}, nan},
    {Op::maximum, reals, {inf, nan}, nan},
    {Op::maximum, reals, {0, -0.0}, 0},
    {Op::maximum, reals, {-0.0, 0}, 0},
    {Op::maximum, reals, {-0.0, -0.0}, -0.0},
    {Op::fmin, reals, {nan, 1}, 1},
    {Op::fmin, reals, {1, nan}, 1},
    {Op::fmin, reals, {nan, nan}, nan},
    {Op::fmin, reals, {0, -0.0}, -0.0},
    {Op::fmax, reals, {nan, -inf}, -inf},
    {Op::fmax, reals, {-0.0, 0}, 0},
    // signs and pieces
    {Op::copysign, reals, {-1, nan}, 1},
    {Op::copysign, reals, {1, -0.0}, -1},
    {Op::copysign, reals, {nan, -1}, nan},
    {Op::sign, reals, {-0.0}, 0},
    {Op::sign, reals, {nan}, 0},
    {Op::sign, all, {-3}, -1},
    {Op::heaviside, reals, {nan, 0.5}, 0},
    {Op::heaviside, reals, {-0.0, 0.5}, 0.5},
    {Op::relu, reals, {nan}, nan},
    {Op::relu, reals, {-0.0}, 0},
    {Op::relu, i32, {-5}, 0},
    {Op::clamp, all, {5, 3, 1}, 1},
    {Op::clamp, reals, {nan, 0, 1}, nan},
    {Op::clamp, reals, {0, nan, 1}, nan},
    {Op::clamp, reals, {0, -1, nan}, nan},
    {Op::round, reals, {0.5}, 0},
    {Op::round, reals, {1.5}, 2},
    {Op::round, reals, {2.5}, 2},
    {Op::round, reals, {-0.5}, -0.0},
    {Op::round, reals, {-1.5}, -2},
    {Op::round, reals, {-2.5}, -2},
    {Op::trunc, reals, {-0.9}, -0.0},
    {Op::floor, reals, {-0.1}, -1},
    {Op::ceil, reals, {-0.1}, -0.0},
    // arithmetic on floats
    {Op::div, reals, {1, 0}, inf},
    {Op::div, reals, {1, -0.0}, -inf},
    {Op::div, reals, {0, 0}, nan},
    {Op::sqrt, reals, {-1}, nan},
    {Op::sqrt, reals, {-0.0}, -0.0},
    {Op::fmod, reals, {-6, 3}, -0.0},
    {Op::fmod, reals, {1, 0}, nan},
    {Op::remainder, reals, {-7, 3}, 2},
    {Op::remainder, reals, {7, -3}, -2},
    {Op::fma, f32, {1 + 0x1p-12, 1 + 0x1p-12, -1}, 0x1p-11 + 0x1p-24},
    {Op::pow, reals, {nan, 0}, 1},
    {Op::pow, reals, {1, nan}, 1},
    {Op::pow, reals, {-2, 3}, -8},
    {Op::pow, reals, {-2, 0.5}, nan},
    {Op::pow, reals, {-0.0, -1}, -inf},
    {Op::pow, reals, {0, -2}, inf},
    {Op::pow, reals, {-1, inf}, 1},
    {Op::pow, reals, {0.5, inf}, 0},
    {Op::pow, reals, {2, -inf}, 0},
    {Op::pow, reals, {-inf, 3}, -inf},
    {Op::pow, reals, {-inf, -3}, -0.0},
    {Op::pow, reals, {-8, 1 / 3.0}, nan},
    // integers wrap; division by zero gives zero; shift counts are taken mod 32
    {Op::add, i32, {i32_max, 1}, i32_min},
    {Op::sub, i32, {i32_min, 1}, i32_max},
    {Op::mul, i32, {65536, 65536}, 0},
    {Op::mul, i32, {i32_max, 2}, -2},
    {Op::neg, i32, {i32_min}, i32_min},
    {Op::abs, i32, {i32_min}, i32_min},
    {Op::div, i32, {7, 0}, 0},
    {Op::div, i32, {i32_min, -1}, i32_min},
    {Op::div, i32, {-7, 2}, -3},
    {Op::fmod, i32, {7, 0}, 0},
    {Op::fmod, i32, {i32_min, -1}, 0},
    {Op::fmod, i32, {-7, 3}, -1},
    {Op::remainder, i32, {-7, 3}, 2},
    {Op::remainder, i32, {7, -3}, -2},
    {Op::remainder, i32, {7, 0}, 0},
    {Op::shift_left, i32, {1, 33}, 2},
    {Op::shift_left, i32, {1, -1}, i32_min},
    {Op::shift_left, i32, {3, 31}, i32_min},
    {Op::shift_right, i32, {-8, 33}, -4},
    {Op::shift_right, i32, {i32_min, 31}, -1},
    {Op::shift_right_logical, i32, {-1, 31}, 1},
    {Op::shift_right_logical, i32, {-1, 32}, -1},
    // conversions
    {Op::to_i32, reals, {2.9}, 2},
    {Op::to_i32, reals, {-2.9}, -2},
    {Op::to_i32, reals, {nan}, 0},
    {Op::to_i32, reals, {inf}, i32_max},
    {Op::to_i32, reals, {-inf}, i32_min},
    {Op::to_i32, reals, {3e9}, i32_max},
    {Op::to_i32, reals, {0x1p31}, i32_max},
    {Op::to_i32, f64, {2147483647.9}, i32_max},
    {Op::to_i32, f64, {-2147483648.9}, i32_min},
    {Op::round_u8, reals, {255.9}, 255},
    {Op::round_u8, reals, {256}, 255},
    {Op::round_u8, reals, {-1}, 0},
    {Op::round_u8, reals, {nan}, 0},
    {Op::round_u8, reals, {inf}, 255},
    {Op::round_u8, i32, {256}, 0},
    {Op::round_u8, i32, {-1}, 255},
    {Op::to_bool, reals, {nan}, 1},
    {Op::to_bool, reals, {-0.0}, 0},
    {Op::to_bool, reals, {0.1}, 1},
    {Op::to_f32, f64, {1 + 0x1p-24}, 1},
    {Op::to_f32, f64, {1 + 0x3p-24}, 1 + 0x1p-22},
    {Op::to_f32, f64, {1e300}, inf},
    {Op::to_f32, i32, {16777217}, 16777216},
    {Op::to_f64, i32, {16777217}, 16777217},
    {Op::to_f32, b1, {1}, 1},
    {Op::bits, f32, {nan}, 0x7fc00000},
    {Op::bits, f32, {-0.0}, i32_min},
    {Op::from_bits, i32, {0x3f800000}, 1},
    {Op::from_words, i32, {0x3ff00000, 0}, 1},
    {Op::from_words, i32, {0, 1}, 0x1p-1074},
    // comparisons and logic
    {Op::eq, reals, {nan, nan}, 0},
    {Op::ne, reals, {nan, nan}, 1},
    {Op::eq, reals, {0, -0.0}, 1},
    {Op::lt, reals, {nan, 1}, 0},
    {Op::ge, reals, {nan, 1}, 0},
    {Op::le, reals, {1, nan}, 0},
    {Op::gt, reals, {1, nan}, 0},
    {Op::bit_not, b1, {1}, 0},
    {Op::bit_not, i32, {0}, -1},
    {Op::bit_xor, b1, {1, 1}, 0},
    {Op::select, reals, {1, -0.0, nan}, -0.0},
    {Op::select, all, {0, 1, 2}, 2},
    {Op::isinf, reals, {-inf}, 1},
    {Op::isfinite, reals, {nan}, 0},
};

TEST(Ops, CornerValues) {
  for (const Corner& corner : corners)
    for (Type t : corner.types) {
      const RowCase row_case{corner.op, t};
      Type types[max_arity];
      std::vector<Values> operands;
      std::uint64_t bits[max_arity];
      for (std::size_t i = 0; i < corner.operands.size(); ++i) {
        types[i] = operand_type(row_case.row(), static_cast<int>(i), t);
        bits[i] = operands.emplace_back(1, bits_of(types[i], corner.operands[i]))[0];
      }
      const Type result = result_of(row_case);
      EXPECT_EQ(literal(result, evaluate(corner.op, types, bits)),
                literal(result, bits_of(result, corner.result)))
          << shown(row_case, operands, 0) << " : " << name_of(t);
    }
}

// The sign of a NaN is not defined, so it must not be seen.
TEST(Ops, TheSignOfANanIsPositive) {
  for (Type t : reals) {
    const std::uint64_t negative_nan = edge_values(t).back();
    ASSERT_TRUE(std::isnan(number_of(t, negative_nan)) && std::signbit(number_of(t, negative_nan)));
    EXPECT_EQ(run_row(graph_of(Op::copysign, t), {{bits_of(t, -1)}, {negative_nan}})[0], bits_of(t, 1));
  }
  EXPECT_EQ(run_row(graph_of(Op::bits, Type::f32), {{edge_values(Type::f32).back()}})[0], 0x7fc00000u);
}

TEST(Ops, PowersOfTwoAreExact) {
  for (Type t : reals) {
    Values exponents, powers;
    for (int e = t == Type::f32 ? -149 : -1074; e < (t == Type::f32 ? 128 : 1024); ++e) {
      exponents.push_back(bits_of(t, e));
      powers.push_back(bits_of(t, std::ldexp(1.0, e)));
    }
    EXPECT_EQ(run_row(graph_of(Op::exp2, t), {exponents}), powers);
    EXPECT_EQ(run_row(graph_of(Op::log2, t), {powers}), exponents);
  }
}

// ---- halves ------------------------------------------------------------------------------------------

struct HalfFormat {
  Op rounding;
  int fraction_bits, bias;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);

  std::uint32_t infinity() const { return 0x7fffu >> fraction_bits << fraction_bits; }
  /// What these bits without a sign mean; infinity's mean the number that would follow the largest.
  double value(std::uint32_t half) const {
    const int exponent = static_cast<int>(half >> fraction_bits),
              fraction = half & ((1 << fraction_bits) - 1);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                         : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  }
};

class Halves : public testing::TestWithParam<HalfFormat> {};

TEST_P(Halves, EveryOneIsItselfAndWhatLiesBetweenGoesToTheNearest) {
  const HalfFormat& format = GetParam();
  Values inputs, wanted;
  const auto expect = [&](double x, std::uint32_t half) {
    for (std::uint32_t sign : {0u, 0x8000u}) {
      const double signed_x = sign != 0 ? -x : x;
      const auto bits = static_cast<std::uint16_t>(half | sign);
      ASSERT_EQ(format.narrow(static_cast<float>(signed_x)), bits) << signed_x;
      inputs.push_back(bits_of(Type::f32, signed_x));
      wanted.push_back(std::bit_cast<std::uint32_t>(format.widen(bits)));
    }
  };
  for (std::uint32_t half = 0; half < format.infinity(); ++half) {
    const double x = format.value(half), next = format.value(half + 1);
    ASSERT_EQ(format.widen(static_cast<std::uint16_t>(half)), x);
    const float middle = static_cast<float>((x + next) / 2);
    expect(x, half);
    expect(middle, half + (half & 1));
    expect(std::nextafter(middle, 0.0f), half);
    expect(std::nextafter(middle, std::numeric_limits<float>::infinity()), half + 1);
  }
  expect(inf, format.infinity());
  EXPECT_EQ(run_row(graph_of(format.rounding, Type::f32), {inputs}), wanted);
}

TEST_P(Halves, EveryNanBecomesTheCanonicalOne) {
  const HalfFormat& format = GetParam();
  const std::uint32_t canonical_half = format.infinity() | 1u << (format.fraction_bits - 1);
  for (std::uint32_t half = format.infinity() + 1; half < 0x8000; ++half)
    for (std::uint32_t sign : {0u, 0x8000u}) {
      const float x = format.widen(static_cast<std::uint16_t>(half | sign));
      ASSERT_TRUE(std::isnan(x));
      ASSERT_EQ(format.narrow(x), canonical_half);
    }
  EXPECT_EQ(run_row(graph_of(format.rounding, Type::f32), {{edge_values(Type::f32).back()}})[0], 0x7fc00000u);
}

INSTANTIATE_TEST_SUITE_P(Formats, Halves,
                         testing::Values(HalfFormat{Op::round_f16, 10, 15, exact::from_f16, exact::to_f16},
                                         HalfFormat{Op::round_bf16, 7, 127, exact::from_bf16,
                                                    exact::to_bf16}),
                         [](const auto& format) { return std::string(row_of(format.param.rounding).name); });

// ---- a row must be complete --------------------------------------------------------------------------

// ops.cpp asserts complete() for each row when it is compiled, so it is enough that complete() sees what
// lacks.
TEST(OpTable, ARowThatLacksAPartIsNotComplete) {
  static constexpr Row basic_row = {.name = "twice",
                                    .arity = 1,
                                    .doc = "x + x",
                                    .meaning = basic<sig::arith>([](auto x) { return x + x; }),
                                    .vjp = [](V, V, V g) { return Grads{{g}}; },
                                    .llvm = {"a", "b"},
                                    .cuda = {"a", "b"},
                                    .triton = {"a", "b"}};
  static constexpr Row expanded_row = {.name = "same",
                                       .arity = 1,
                                       .doc = "x",
                                       .meaning = expanded<sig::real>([](V x) { return x; }),
                                       .vjp = flat,
                                       .reference = [](auto x) { return x; }};
  static_assert(complete(basic_row) && complete(expanded_row));
  struct Removal {
    const char* part;
    void (*remove)(Row&);
  };
  const Removal of_both[] = {
      {"doc", [](Row& row) { row.doc = nullptr; }},
      {"doc is empty", [](Row& row) { row.doc = ""; }},
      {"vjp", [](Row& row) { row.vjp = Vjp(); }},
      {"vjp of another arity", [](Row& row) { row.vjp = [](V, V, V, V g) { return Grads{{g, g}}; }; }},
      {"meaning", [](Row& row) { row.meaning = Meaning(); }},
      {"meaning of another arity", [](Row& row) { row.arity = 2; }},
  };
  const Removal of_basic[] = {
      {"llvm", [](Row& row) { row.llvm.of_i32 = ""; }},
      {"cuda", [](Row& row) { row.cuda.of_float = ""; }},
      {"triton", [](Row& row) { row.triton = {}; }},
  };
  const Removal of_expanded[] = {
      {"reference", [](Row& row) { row.reference = {}; }},
      {"one meaning only (llvm)", [](Row& row) { row.llvm.of_float = "a"; }},
      {"one meaning only (triton)", [](Row& row) { row.triton.of_bool = "a"; }},
  };
  const auto expect_incomplete = [](Row row, const Removal& removal) {
    removal.remove(row);
    EXPECT_FALSE(complete(row)) << "'" << row.name << "' lacks: " << removal.part;
  };
  for (const Removal& removal : of_both)
    expect_incomplete(basic_row, removal), expect_incomplete(expanded_row, removal);
  for (const Removal& removal : of_basic) expect_incomplete(basic_row, removal);
  for (const Removal& removal : of_expanded) expect_incomplete(expanded_row, removal);
}

}  // namespace
}  // namespace flexsn::test
