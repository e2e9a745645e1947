// Expanded rows are as accurate as their rows promise, and docs/ops.md says how accurate that is.
#include "accuracy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace flexsn::test {
namespace {

using namespace ir;

class Accurate : public testing::TestWithParam<RowCase> {};

TEST_P(Accurate, WithinTheRowsLimit) {
  const auto [op, t] = GetParam();
  if (!can_measure(t))
    GTEST_SKIP() << "the exact values for " << name_of(t) << " need MPFR, which this build lacks";
  const TestRange& test = row_of(op).test;
  const Accuracy accuracy = measure(op, t);
  EXPECT_LE(accuracy.ulps, t == Type::f32 ? test.ulps_f32 : test.ulps_f64) << accuracy.worst;
  EXPECT_EQ(accuracy.violation, "");
}

bool is_measured(const RowCase& row_case) {
  return row_case.row().is_expanded() && (row_case.t == Type::f32 || row_case.t == Type::f64);
}
INSTANTIATE_TEST_SUITE_P(Rows, Accurate, testing::ValuesIn(row_cases(is_measured)),
                         testing::PrintToStringParamName());

/// A line of docs/exhaustive.txt.
struct Exhausted {
  Op op = Op::constant;
  double ulps = 0;
  std::uint32_t operand = 0;  ///< the first one with this error
};

std::vector<Exhausted> exhausted() {
  std::vector<Exhausted> lines;
  std::ifstream file(FLEXSN_TESTS_DIR "/../docs/exhaustive.txt");
  EXPECT_TRUE(file.good()) << "docs/exhaustive.txt is missing; make test-exhaustive writes it";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string name;
    Exhausted read;
    words >> name >> read.ulps >> std::hex >> read.operand;
    EXPECT_TRUE(words && op_named(name)) << line;
    read.op = op_named(name).value_or(Op::exp);
    lines.push_back(read);
  }
  return lines;
}

// An expansion that was changed has another error at that operand.
TEST(Accuracy, ExhaustiveFiguresAreThoseOfTheseRows) {
  const std::vector<Exhausted> lines = exhausted();
  EXPECT_FALSE(lines.empty());
  for (const auto& [op, ulps, operand] : lines) {
    const TestRange& test = row_of(op).test;
    EXPECT_LE(ulps, test.ulps_f32 == 0 ? 0.5 : test.ulps_f32) << name_of(op);
    if (!row_of(op).is_expanded()) continue;
    EXPECT_NEAR(error_at(op, operand), ulps, 1e-6)
        << "docs/exhaustive.txt is out of date for " << name_of(op) << "; run make test-exhaustive";
    EXPECT_GE(ulps, measure(op, Type::f32).ulps - 1e-6)
        << "the sample found more than docs/exhaustive.txt says; run make test-exhaustive";
  }
}

// Beyond the size up to which sine and cosine are accurate they still are numbers from -1 to 1.
TEST(Accuracy, SineAndCosineStayInBoundsBeyondTheirDomain) {
  for (Op op : {Op::sin, Op::cos})
    for (Type t : {Type::f32, Type::f64}) {
      Values operands;
      Random random(1);
      const int exponents = t == Type::f32 ? 128 : 1024;
      for (int exponent = 16; exponent < exponents; ++exponent)
        for (int n = 0; n < 64; ++n)
          operands.push_back(bits_of(t, std::ldexp(random.uniform(1, 2), exponent) * (n % 2 == 0 ? 1 : -1)));
      const auto count = static_cast<std::int64_t>(operands.size());
      const Values results = run_columns(graph_of(op, t), {operands}, count)[0];
      for (std::int64_t n = 0; n < count; ++n)
        ASSERT_LE(std::fabs(number_of(t, results[n])), 1)
            << name_of(op) << " of " << number_of(t, operands[n]);
    }
}

TEST(Accuracy, DocsSayWhatWasMeasured) {
  if (!can_measure(Type::f64))
    GTEST_SKIP() << "docs/ops.md holds f64 figures, which need MPFR; this build lacks it";
  const std::string path = FLEXSN_TESTS_DIR "/../docs/ops.md";
  std::map<Op, double> known;
  for (const Exhausted& line : exhausted()) known[line.op] = line.ulps;
  const std::string page = ops_page(known);
  if (std::getenv("FLEXSN_UPDATE_DOCS") != nullptr) {
    std::ofstream file(path);
    file << page;
    ASSERT_TRUE(file.flush().good()) << "cannot write " << path;
  }
  std::ifstream file(path);
  std::istringstream expected(page);
  for (std::string line, wanted; std::getline(expected, wanted);)
    ASSERT_TRUE(std::getline(file, line) && line == wanted)
        << "docs/ops.md is out of date; run this test with FLEXSN_UPDATE_DOCS=1 to rewrite it. It should "
           "say\n"
        << wanted << "\nwhere it says\n"
        << line;
  EXPECT_EQ(file.peek(), std::ifstream::traits_type::eof()) << "docs/ops.md goes on after its end";
}

}  // namespace
}  // namespace flexsn::test
