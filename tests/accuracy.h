// What the tests of ops share: graphs of one op, operands to try them on, exact values to compare with,
// the measured accuracy of expanded rows and the page docs/ops.md.
#pragma once

#include <map>
#include <ostream>

#include "ops.h"
#include "random.h"

namespace flexsn::test {

/// A row for one of the types that its T may be.
struct RowCase {
  ir::Op op;
  Type t;
  const ir::Row& row() const { return ir::row_of(op); }
};
/// "exp_f32"; googletest prints cases with it and names tests by it.
std::ostream& operator<<(std::ostream& out, const RowCase& row_case);
/// Every row with every type that satisfies `wanted`; a leaf counts as one of i32.
std::vector<RowCase> row_cases(const std::function<bool(const RowCase&)>& wanted);

// ---- running graphs on columns of values ---------------------------------------------------------

/// Values as bits, like constants of a graph.
using Values = std::vector<std::uint64_t>;

/// The memory type that holds a value of `type` as it is.
Mem memory_of(Type type);
/// The name that tests and docs give operand `index`: x alone, else a, b, c.
std::string operand_name(const ir::Row& row, int index);
/// A graph whose output y is `op`, for T = `t`, of inputs with the names above.
ir::Graph graph_of(ir::Op op, Type t);
/// A graph with one more input, g, and an output for each operand that gets a gradient, named like it.
ir::Graph gradient_of(ir::Op op, Type t);
/// One column for each result over `count` elements; an input column of one value stands for all elements.
/// NaNs come out canonical.
std::vector<Values> run_columns(const ir::Graph& graph, const std::vector<Values>& inputs,
                                std::int64_t count);

// ---- operands to try -----------------------------------------------------------------------------

/// Zeros, ties, units, infinities, NaNs, subnormals, extremes; the most telling ones come first.
const Values& edge_values(Type type);
/// All combinations of edge values for the operands of `op`; of three operands only the most telling ones.
std::vector<Values> edge_operands(ir::Op op, Type t);
/// Edge operands, then random ones from the row's range.
std::vector<Values> operands_to_try(const RowCase& row_case);

/// A value of `type` from `range`.
std::uint64_t random_value(Random& random, const Range& range, Type type);
/// The range that the row gives for operand `index`.
const Range& range_of(const ir::Row& row, int index);

// ---- accuracy of expanded rows ---------------------------------------------------------------------

/// The row's reference on these operands, computed by C's functions on doubles.
double reference(ir::Op op, const double* operands);

/// Can the accuracy for `type` be measured here? f64 needs MPFR.
bool can_measure(Type type);

struct Accuracy {
  double ulps = 0;        ///< largest distance from the exact value, in units of the result's last place
  std::string worst;      ///< where that was
  std::string violation;  ///< a result of another kind than the exact one (NaN, infinity, zero, sign), or ""
};
/// The accuracy of expanded row `op` for T = `t`, which is a float type, over a fixed set of operands.
Accuracy measure(ir::Op op, Type t);

/// How far expanded row `op` of one f32 is from the exact value there; NaN when it is of another kind.
double error_at(ir::Op op, std::uint32_t operand);

/// What docs/ops.md must say; `exhausted` holds the largest errors over all f32 operands, where they are
/// known.
std::string ops_page(const std::map<ir::Op, double>& exhausted);

}  // namespace flexsn::test
