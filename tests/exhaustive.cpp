// Runs f32 functions of one operand through CPU kernels on every one of the 2^32 operands: their largest
// errors against C's functions on doubles, their bits against the interpreter's on a sample, their cost.
//
// C's functions on doubles are good to a few units of a double's last place, less than 1e-8 of an f32's; so
// that they decide nothing, an error within `margin` below a row's limit counts as above it. A row without a
// limit is correctly rounded and must give the reference rounded to f32. Of those rows only sqrt is worth
// running, and there rounding twice is rounding once: a double has more than twice the digits and two more.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "accuracy.h"
#include "cpu_kernel.h"
#include "error.h"
#include "expand.h"
#include "pool.h"
#include "schedule.h"

namespace flexsn::test {
namespace {

using namespace ir;

constexpr double margin = 1e-6;
constexpr std::int64_t all_operands = std::int64_t{1} << 32, piece_size = 1 << 16;

/// What neurons and surrogates use.
constexpr const char* usual_functions[] = {"exp", "tanh",  "sigmoid", "atan",     "erf", "sqrt", "rsqrt",
                                           "log", "log1p", "expm1",   "softplus", "sin", "cos"};

/// What a function may cost, in nanoseconds for one element on one core; 0 where nothing is asked.
double allowed_cost(Op op) {
  return op == Op::exp ? 2.2 : op == Op::tanh ? 4.0 : op == Op::sigmoid ? 2.4 : 0;
}

// ---- which operands ------------------------------------------------------------------------------

/// Operands whose bits are first, first + stride and so on.
struct Piece {
  std::int64_t first = 0, stride = 1, count = piece_size;
  bool interpreted = false;
};

/// Pieces of all operands, by their upper bits: zeros, subnormals, infinities and NaNs; and where one of
/// these, the normal numbers or the numbers above 1 begin or end.
bool is_special(std::int64_t upper_bits) {
  const std::int64_t size = upper_bits & 0x7fff;
  return size < 0x80 || size >= 0x7f80;
}
bool is_border(std::int64_t upper_bits) {
  constexpr std::int64_t borders[] = {0, 0x7f, 0x80, 0x3f7f, 0x3f80, 0x7f7f, 0x7f80, 0x7fc0, 0x7fff};
  return std::ranges::find(borders, upper_bits & 0x7fff) != std::end(borders);
}

/// All operands, or a part of them. The interpreter, a hundred times slower, gets a sample.
std::vector<Piece> pieces_of(bool quick) {
  // Odd numbers, so that no bit of the operands stays the same. 257 divides 2^32 - 1: the last one is met.
  constexpr std::int64_t interpreted_one_in = 61, quick_one_in = 5, quick_stride = 257;
  std::vector<Piece> pieces;
  for (std::int64_t upper = 0; upper < all_operands / piece_size; ++upper)
    if (!quick || is_border(upper))
      pieces.push_back(
          {.first = upper * piece_size,
           .interpreted = is_border(upper) || is_special(upper) || upper % interpreted_one_in == 0});
  if (!quick) return pieces;
  const std::int64_t count = (all_operands - 1) / quick_stride + 1;
  for (std::int64_t first = 0; first < count; first += piece_size)
    pieces.push_back({first * quick_stride, quick_stride, std::min(piece_size, count - first),
                      first / piece_size % quick_one_in == 0});
  return pieces;
}

// ---- what is found -------------------------------------------------------------------------------

/// Results that must not be, and the one with the smallest operand.
struct Wrong {
  std::int64_t count = 0;
  std::uint32_t operand = 0;
  float found = 0;
  double expected = 0;

  void add(const Wrong& other) {
    if (other.count == 0) return;
    const std::int64_t sum = count + other.count;
    if (count == 0 || other.operand < operand) *this = other;
    count = sum;
  }
};

struct Findings {
  std::int64_t operands = 0, interpreted = 0;
  double ulps = -1;
  std::uint32_t worst = 0;
  Wrong kind, bits;                 ///< against the reference, against the interpreter
  std::vector<double> nanoseconds;  ///< for one element, of each piece

  /// The same whatever the order is in which findings come.
  void error(double found, std::uint32_t operand) {
    if (found < ulps || (found == ulps && operand >= worst)) return;
    ulps = found;
    worst = operand;
  }
  void add(const Findings& other) {
    operands += other.operands;
    interpreted += other.interpreted;
    error(other.ulps, other.worst);
    kind.add(other.kind);
    bits.add(other.bits);
    nanoseconds.insert(nanoseconds.end(), other.nanoseconds.begin(), other.nanoseconds.end());
  }
  /// The median: what else the machine does now and then is not in it.
  double cost() const {
    std::vector<double> sorted = nanoseconds;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }
};

/// How far `result` is from `exact` in units of the last place of an f32; nothing when it is of another kind.
/// An infinite result stands where the number after the largest would.
std::optional<double> ulps_between(float result, double exact) {
  if (std::isnan(exact) || std::isnan(result))
    return std::isnan(exact) && std::isnan(result) ? std::optional(0.0) : std::nullopt;
  if ((exact == 0 || result == 0 || std::isinf(result)) && std::signbit(result) != std::signbit(exact))
    return {};
  if (exact == 0 || std::isinf(exact)) return result == exact ? std::optional(0.0) : std::nullopt;
  constexpr int bias = 1023, digits_after_point = 23;
  const int exponent = static_cast<int>(std::bit_cast<std::uint64_t>(exact) >> 52 & 0x7ff) - bias;
  const int unit = std::clamp(exponent, -126, 127) - digits_after_point;
  const double per_unit = std::bit_cast<double>(static_cast<std::uint64_t>(bias - unit) << 52);
  const double found = std::isinf(result) ? std::copysign(0x1p128, exact) : result;
  return std::fabs(found - std::clamp(exact, -0x1p128, 0x1p128)) * per_unit;
}

// ---- one function --------------------------------------------------------------------------------

class Function {
 public:
  explicit Function(Op op)
      : op_(op),
        test_(row_of(op).test),
        expansion_(expand(graph_of(op, Type::f32))),
        kernel_(schedule_inference(graph_of(op, Type::f32), Kind::inference), Store("")) {}

  Findings run(const std::vector<Piece>& pieces) const {
    Pool pool(default_thread_count());
    std::vector<Findings> found(static_cast<std::size_t>(pool.threads()));
    std::atomic<std::size_t> next = 0;
    pool.run(pool.threads(), [&](std::int64_t worker) {
      std::vector<float> x(piece_size), y(piece_size), interpreted(piece_size);
      for (std::size_t i = next++; i < pieces.size(); i = next++)
        run_piece(pieces[i], x.data(), y.data(), interpreted.data(), found[static_cast<std::size_t>(worker)]);
    });
    Findings all;
    for (const Findings& part : found) all.add(part);
    return all;
  }

 private:
  void run_piece(const Piece& piece, float* x, float* y, float* interpreted, Findings& found) const {
    for (std::int64_t n = 0; n < piece.count; ++n)
      x[n] = std::bit_cast<float>(static_cast<std::uint32_t>(piece.first + n * piece.stride));
    PlanRun run{.steps = 1, .elements = piece.count, .buffers = {}};
    for (const Buffer& buffer : kernel_.plan().buffers)
      run.buffers.push_back({.data = buffer.write ? y : x, .row_stride = piece.count});
    const auto start = std::chrono::steady_clock::now();
    kernel_.run(run);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    found.nanoseconds.push_back(spent.count() / static_cast<double>(piece.count));
    found.operands += piece.count;
    compare_with_reference(piece, x, y, found);
    if (piece.interpreted) compare_with_interpreter(piece, x, y, interpreted, found);
  }

  void compare_with_reference(const Piece& piece, const float* x, const float* y, Findings& found) const {
    const bool bounded = op_ == Op::sin || op_ == Op::cos;
    for (std::int64_t n = 0; n < piece.count; ++n) {
      const auto operand = static_cast<std::uint32_t>(piece.first + n * piece.stride);
      if (std::isfinite(x[n]) && std::fabs(x[n]) > test_.domain) {
        if (bounded && !(std::fabs(y[n]) <= 1)) found.kind.add({1, operand, y[n], std::copysign(1, y[n])});
        continue;
      }
      const double argument = x[n], exact = op_ == Op::sqrt ? std::sqrt(argument) : reference(op_, &argument);
      const std::optional<double> ulps = ulps_between(y[n], exact);
      const bool is_rounded =
          test_.ulps_f32 > 0 || !ulps || std::isnan(exact) || y[n] == static_cast<float>(exact);
      if (ulps) found.error(*ulps, operand);
      if (!ulps || !is_rounded) found.kind.add({1, operand, y[n], exact});
    }
  }

  /// A NaN equals a NaN.
  void compare_with_interpreter(const Piece& piece, const float* x, const float* y, float* interpreted,
                                Findings& found) const {
    interpret(expansion_, {.steps = 1,
                           .elements = piece.count,
                           .sources = {{.mem = Mem::f32, .data = x}},
                           .targets = {{.sequence = interpreted}}});
    found.interpreted += piece.count;
    for (std::int64_t n = 0; n < piece.count; ++n)
      if (std::bit_cast<std::uint32_t>(y[n]) != std::bit_cast<std::uint32_t>(interpreted[n]) &&
          !(std::isnan(y[n]) && std::isnan(interpreted[n])))
        found.bits.add({1, static_cast<std::uint32_t>(piece.first + n * piece.stride), y[n], interpreted[n]});
  }

  Op op_;
  TestRange test_;
  Graph expansion_;
  CpuKernel kernel_;
};

// ---- what is said --------------------------------------------------------------------------------

/// Prints the function's line of the table and what is wrong with it; true where nothing is.
bool report(Op op, const Findings& found, double seconds) {
  const Row& row = row_of(op);
  const bool is_correctly_rounded = row.test.ulps_f32 == 0;
  const double limit = is_correctly_rounded ? 0.5 : row.test.ulps_f32;
  std::printf("%-10s %10lld %10lld %9.6f %5.2f  0x%08x %-15.9g %5.2f", row.name,
              static_cast<long long>(found.operands), static_cast<long long>(found.interpreted), found.ulps,
              limit, found.worst, static_cast<double>(std::bit_cast<float>(found.worst)), found.cost());
  if (allowed_cost(op) > 0)
    std::printf(" %7.1f", allowed_cost(op));
  else
    std::printf(" %7s", "");
  std::printf(" %7.1f\n", seconds);

  const bool is_above = !is_correctly_rounded && found.ulps > limit - margin;
  if (is_above) std::printf("  WRONG: the largest error is above the limit of %g ulps\n", limit);
  const auto say = [](const Wrong& wrong, const char* what) {
    if (wrong.count == 0) return;
    std::printf("  WRONG: %lld results %s; the first one is for 0x%08x (%.9g): %.9g instead of %.17g\n",
                static_cast<long long>(wrong.count), what, wrong.operand,
                static_cast<double>(std::bit_cast<float>(wrong.operand)), static_cast<double>(wrong.found),
                wrong.expected);
  };
  say(found.kind, is_correctly_rounded
                      ? "are not correctly rounded"
                      : "are NaN, infinite, zero, negative or beyond 1 where they must not be");
  say(found.bits, "have other bits than the interpreter's");
  std::fflush(stdout);
  return !is_above && found.kind.count == 0 && found.bits.count == 0;
}

/// Puts the function's line into the file that docs/ops.md takes its figures from; the others stay.
void record(const std::string& path, Op op, const Findings& found) {
  std::map<Op, std::string> lines;
  std::ifstream old(path);
  for (std::string line; std::getline(old, line);)
    if (const std::optional<Op> named = op_named(line.substr(0, line.find(' ')))) lines[*named] = line;
  char text[80];
  std::snprintf(text, sizeof text, "%s %.6f 0x%08x", row_of(op).name, found.ulps, found.worst);
  lines[op] = text;
  std::ofstream file(path);
  file << "# The largest errors of f32 functions on all 2^32 operands, in units of the result's last place, "
          "and\n"
          "# the bits of the first operand that has it. Written by make test-exhaustive.\n";
  for (const auto& [named, line] : lines) file << line << '\n';
  if (!file.flush().good()) user_error("the record '", path, "' could not be written as a whole");
}

// ---- the command line ----------------------------------------------------------------------------

constexpr const char* usage =
    "usage: flexsn_exhaustive [--quick] [--record FILE] [FUNCTION...]\n"
    "Runs f32 functions of one operand on all 2^32 operands through CPU kernels.\n"
    "  --quick        every 257th operand, and all near zeros, infinities and 1\n"
    "  --record FILE  puts the largest errors into FILE\n"
    "  FUNCTION       names of ops; by default those that neurons and surrogates use\n";

struct Request {
  bool quick = false, help = false;
  std::string record = {};
  std::vector<Op> functions = {};
};

Op function_named(const std::string& name) {
  const std::optional<Op> op = op_named(name);
  if (!op)
    user_error("there is no op '", name, "'", did_you_mean(name, op_names()), "; give names of docs/ops.md");
  const Row& row = row_of(*op);
  const Type type = Type::f32;
  const bool has_reference = row.is_expanded() || *op == Op::sqrt;
  if (row.arity != 1 || !has_reference || result_type(row, &type) != Type::f32)
    user_error("op '", name,
               "' cannot be run on all operands: expected a function from one f32 to an f32 that ",
               "has a reference, such as exp");
  return *op;
}

Request request_of(const std::vector<std::string>& words) {
  Request request;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--quick") {
      request.quick = true;
    } else if (word == "--help" || word == "-h") {
      request.help = true;
    } else if (word == "--record") {
      if (++i == words.size()) user_error("--record needs the name of a file");
      request.record = words[i];
    } else if (word.starts_with("-")) {
      user_error("there is no option '", word, "'; expected --quick, --record FILE or names of functions");
    } else {
      request.functions.push_back(function_named(word));
    }
  }
  if (request.quick && !request.record.empty())
    user_error("--record is for runs on all operands; leave out --quick");
  // Asked before the run, which is long.
  if (!request.record.empty() && !std::ofstream(request.record, std::ios::app).good())
    user_error("cannot write the record '", request.record, "'; give a file that can be written");
  if (request.functions.empty())
    for (const char* name : usual_functions) request.functions.push_back(function_named(name));
  return request;
}

int run(const Request& request) {
  if (request.help) {
    std::fputs(usage, stdout);
    return 0;
  }
  const std::vector<Piece> pieces = pieces_of(request.quick);
  std::printf(
      "%d threads; compared: with the interpreter, bit by bit; ns: for one element on one core, the median\n",
      default_thread_count());
  std::printf("%-10s %10s %10s %9s %5s  %-26s %5s %7s %7s\n", "function", "operands", "compared", "ulps",
              "limit", "first operand with it", "ns", "at most", "seconds");
  int failed = 0;
  for (Op op : request.functions) {
    const auto start = std::chrono::steady_clock::now();
    const Findings found = Function(op).run(pieces);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    const bool holds = report(op, found, spent.count());
    failed += holds ? 0 : 1;
    if (holds && !request.record.empty()) record(request.record, op, found);
  }
  if (failed > 0) std::printf("%d of %zu functions are WRONG\n", failed, request.functions.size());
  return failed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace flexsn::test

int main(int count, char** words) {
  try {
    return flexsn::test::run(flexsn::test::request_of({words + 1, words + count}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flexsn_exhaustive: %s\n", error.what());
    return 2;
  }
}
