// How far expanded rows are from the exact functions. The references of ops.def are written over any number
// type: here over Libm, double with C's functions, exact enough to judge f32, and over Precise, which judges
// f64. measure() runs a row in the interpreter on a fixed set of operands and compares.
#include "accuracy.h"

#include <algorithm>
#include <array>

#include "build.h"
#include "elementary.h"
#include "error.h"
#include "expand.h"
#include "interpret.h"
#include "literal.h"
#include "simplify.h"

#ifdef FLEXSN_HAVE_MPFR
#include <mpfr.h>
#endif

namespace flexsn::test {

using namespace ir;
using namespace ir::sig;

namespace {

// ---- number types --------------------------------------------------------------------------------

// The functions that references call; a row with another one needs its name here.
#define FUNCTIONS_OF_ONE(F) \
  F(exp)                    \
  F(exp2)                   \
  F(expm1)                  \
  F(log)                    \
  F(log2)                   \
  F(log10) F(log1p) F(sqrt) F(erf) F(sin) F(cos) F(tan) F(asin) F(acos) F(atan) F(sinh) F(cosh) F(tanh)
#define FUNCTIONS_OF_TWO(F) F(pow) F(atan2) F(fmod)

/// A double; its functions are those of C.
struct Libm {
  double value;

  Libm(double number = 0) : value(number) {}
  static Libm power_of_two(int exponent) { return std::ldexp(1.0, exponent); }
  double to_double() const { return value; }

  friend Libm operator+(Libm a, Libm b) { return a.value + b.value; }
  friend Libm operator-(Libm a, Libm b) { return a.value - b.value; }
  friend Libm operator/(Libm a, Libm b) { return a.value / b.value; }
  friend Libm operator-(Libm x) { return -x.value; }
  friend bool operator==(Libm a, Libm b) { return a.value == b.value; }
  friend auto operator<=>(Libm a, Libm b) { return a.value <=> b.value; }

  friend bool isinf(Libm x) { return std::isinf(x.value); }
  friend bool signbit(Libm x) { return std::signbit(x.value); }
  /// e where 2^(e-1) <= |x| < 2^e.
  friend int exponent_of(Libm x) { return std::ilogb(x.value) + 1; }
#define FUNCTION(name) \
  friend Libm name(Libm x) { return std::name(x.value); }
  FUNCTIONS_OF_ONE(FUNCTION)
#undef FUNCTION
#define FUNCTION(name) \
  friend Libm name(Libm a, Libm b) { return std::name(a.value, b.value); }
  FUNCTIONS_OF_TWO(FUNCTION)
#undef FUNCTION
};

#ifdef FLEXSN_HAVE_MPFR
/// A number with 192 bits and exponents without bounds that matter here.
class Precise {
 public:
  Precise(double number = 0) : Precise(Empty{}) { mpfr_set_d(value_, number, MPFR_RNDN); }
  Precise(const Precise& other) : Precise(Empty{}) { mpfr_set(value_, other.value_, MPFR_RNDN); }
  Precise& operator=(const Precise& other) {
    mpfr_set(value_, other.value_, MPFR_RNDN);
    return *this;
  }
  ~Precise() { mpfr_clear(value_); }
  static Precise power_of_two(int exponent) {
    Precise result;
    mpfr_set_ui_2exp(result.value_, 1, exponent, MPFR_RNDN);
    return result;
  }
  double to_double() const { return mpfr_get_d(value_, MPFR_RNDN); }

  friend bool operator==(const Precise& a, const Precise& b) { return mpfr_equal_p(a.value_, b.value_) != 0; }
  friend std::partial_ordering operator<=>(const Precise& a, const Precise& b) {
    if (mpfr_unordered_p(a.value_, b.value_) != 0) return std::partial_ordering::unordered;
    return mpfr_cmp(a.value_, b.value_) <=> 0;
  }
  friend bool isinf(const Precise& x) { return mpfr_inf_p(x.value_) != 0; }
  friend bool signbit(const Precise& x) { return mpfr_signbit(x.value_) != 0; }
  friend int exponent_of(const Precise& x) {
    return static_cast<int>(std::clamp<long>(mpfr_get_exp(x.value_), -9999, 9999));
  }
#define FUNCTION(name)                               \
  friend Precise name(const Precise& x) {            \
    Precise result;                                  \
    mpfr_##name(result.value_, x.value_, MPFR_RNDN); \
    return result;                                   \
  }
  FUNCTIONS_OF_ONE(FUNCTION)
#undef FUNCTION
#define FUNCTION_OF_TWO(name, mpfr_function)                     \
  friend Precise name(const Precise& a, const Precise& b) {      \
    Precise result;                                              \
    mpfr_function(result.value_, a.value_, b.value_, MPFR_RNDN); \
    return result;                                               \
  }
#define FUNCTION(name) FUNCTION_OF_TWO(name, mpfr_##name)
  FUNCTIONS_OF_TWO(FUNCTION)
#undef FUNCTION
  FUNCTION_OF_TWO(operator+, mpfr_add)
  FUNCTION_OF_TWO(operator-, mpfr_sub)
  FUNCTION_OF_TWO(operator/, mpfr_div)
#undef FUNCTION_OF_TWO
  friend Precise operator-(const Precise& x) {
    Precise result;
    mpfr_neg(result.value_, x.value_, MPFR_RNDN);
    return result;
  }

 private:
  struct Empty {};
  explicit Precise(Empty) { mpfr_init2(value_, 192); }
  mpfr_t value_;
};
#endif

template <class N>
concept Number = requires(N x) { N::power_of_two(0); };

// What C leaves open, as the rows' doc lines say.
template <Number N>
bool isnan(const N& x) {
  return x != x;
}
template <Number N>
bool isfinite(const N& x) {
  return !isnan(x) && !isinf(x);
}
template <Number N>
bool below(const N& a, const N& b) {
  return a < b || (a == b && signbit(a));
}
template <Number N>
N minimum(const N& a, const N& b) {
  return isnan(a) || (!isnan(b) && below(a, b)) ? a : b;
}
template <Number N>
N maximum(const N& a, const N& b) {
  return isnan(a) || (!isnan(b) && below(b, a)) ? a : b;
}
template <Number N>
N fmin(const N& a, const N& b) {
  return isnan(b) || (!isnan(a) && below(a, b)) ? a : b;
}
template <Number N>
N fmax(const N& a, const N& b) {
  return isnan(b) || (!isnan(a) && below(b, a)) ? a : b;
}
template <Number N>
N copysign(const N& a, const N& b) {
  return signbit(a) == (!isnan(b) && signbit(b)) ? a : -a;
}
template <Number N>
std::int32_t bits(const N& x) {
  return isnan(x) ? 0x7fc00000 : std::bit_cast<std::int32_t>(static_cast<float>(x.to_double()));
}

// ---- the references of ops.def -------------------------------------------------------------------

/// Takes the place of a field that is not looked at.
struct Anything {
  template <class... Parts>
  constexpr Anything(Parts&&...) {}
};
template <Sig>
constexpr Anything basic(Anything) {
  return {};
}
template <Sig>
constexpr Anything expanded(Anything) {
  return {};
}

template <Number N, int arity, class F>
N call(const N* x) {
  if constexpr (arity == 1)
    return F{}(x[0]);
  else if constexpr (arity == 2)
    return F{}(x[0], x[1]);
  else
    return F{}(x[0], x[1], x[2]);
}

/// A row's reference for each number type; empty for a basic row.
struct References {
  Libm (*libm)(const Libm* operands) = nullptr;
#ifdef FLEXSN_HAVE_MPFR
  Precise (*precise)(const Precise* operands) = nullptr;
#endif
};

template <int arity>
struct ReferenceRow {
  struct Field : References {
    constexpr Field() = default;
    template <class F>
    constexpr Field(F) {
      libm = &call<Libm, arity, F>;
#ifdef FLEXSN_HAVE_MPFR
      precise = &call<Precise, arity, F>;
#endif
    }
  };
  Anything doc, meaning, commutes = {}, vjp, llvm = {}, cuda = {}, triton = {}, aten = {};
  Field reference = {};
  TestRange test = {};
};

constexpr References references[] = {
#define OP0(name, ...) ReferenceRow<0>{__VA_ARGS__}.reference,
#define OP1(name, ...) ReferenceRow<1>{__VA_ARGS__}.reference,
#define OP2(name, ...) ReferenceRow<2>{__VA_ARGS__}.reference,
#define OP3(name, ...) ReferenceRow<3>{__VA_ARGS__}.reference,
#define RAW1 OP1
#define RAW2 OP2
#include "flexsn/ops.def"
};

const References& references_of(Op op) {
  internal_check(row_of(op).is_expanded(), "only an expanded row has a reference");
  return references[static_cast<int>(op) - static_cast<int>(Op::argument) - 1];
}

}  // namespace

double reference(Op op, const double* operands) {
  Libm numbers[max_arity];
  std::copy_n(operands, row_of(op).arity, numbers);
  return references_of(op).libm(numbers).value;
}

// ---- running graphs on columns of values ---------------------------------------------------------

std::ostream& operator<<(std::ostream& out, const RowCase& row_case) {
  return out << row_case.row().name << '_' << name_of(row_case.t);
}

std::vector<RowCase> row_cases(const std::function<bool(const RowCase&)>& wanted) {
  std::vector<RowCase> cases;
  for (Op op : all_ops())
    for (Type t : {Type::f32, Type::f64, Type::i32, Type::b1}) {
      const Row& row = row_of(op);
      if ((row.is_leaf() ? t == Type::i32 : row.meaning.sig.types.has(t)) && wanted({op, t}))
        cases.push_back({op, t});
    }
  return cases;
}

Mem memory_of(Type type) {
  constexpr Mem memory[] = {Mem::f32, Mem::f64, Mem::i32, Mem::b8};
  return memory[static_cast<int>(type)];
}

std::string operand_name(const Row& row, int index) {
  return row.arity == 1 ? "x" : std::string(1, "abc"[index]);
}

namespace {

/// Adds the inputs that `op` takes and `op` itself; a leaf has no inputs.
V add_op(Graph& graph, Op op, Type t, V* operands) {
  const Row& row = row_of(op);
  graph.expanded = row.raw;
  for (int i = 0; i < row.arity; ++i)
    operands[i] =
        add_argument(graph, {.name = operand_name(row, i), .mem = memory_of(operand_type(row, i, t))});
  if (row.is_leaf()) return {&graph, graph.append({.op = op, .type = Type::i32})};
  return apply(op, operands, row.arity);
}

void add_output(Graph& graph, const std::string& name, V value) {
  graph.results.push_back({.name = name, .mem = memory_of(value.type()), .value = value.id});
}

}  // namespace

Graph graph_of(Op op, Type t) {
  Graph graph;
  graph.name = row_of(op).name;
  V operands[max_arity];
  add_output(graph, "y", add_op(graph, op, t, operands));
  return graph;
}

Graph gradient_of(Op op, Type t) {
  const Row& row = row_of(op);
  Graph graph;
  graph.name = row.name;
  V operands[max_arity];
  const V y = add_op(graph, op, t, operands);
  const V g = add_argument(graph, {.name = "g", .mem = memory_of(y.type())});
  if (row.vjp.zero) return graph;
  const Grads grads = row.vjp.build(operands, y, g);
  for (int i = 0; i < row.arity; ++i)
    if (grads.of[i].exists()) add_output(graph, operand_name(row, i), grads.of[i]);
  return graph;
}

std::vector<Values> run_columns(const Graph& graph, const std::vector<Values>& inputs, std::int64_t count) {
  Scan scan{.steps = 1, .elements = count, .sources = {}, .targets = {}};
  std::vector<std::vector<std::byte>> memory;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Mem mem = graph.arguments[i].mem;
    const std::size_t size = size_of(mem);
    std::vector<std::byte>& bytes = memory.emplace_back(inputs[i].size() * size);
    for (std::size_t n = 0; n < inputs[i].size(); ++n) std::memcpy(&bytes[n * size], &inputs[i][n], size);
    scan.sources.push_back(
        {.mem = mem, .data = bytes.data(), .map = inputs[i].size() == 1 ? Map::scalar : Map::element});
  }
  std::vector<std::vector<std::byte>> outcome;
  for (const Result& result : graph.results)
    scan.targets.push_back({.sequence = outcome.emplace_back(count * size_of(result.mem)).data()});
  interpret(graph, scan);

  std::vector<Values> columns;
  for (std::size_t i = 0; i < outcome.size(); ++i) {
    const Mem mem = graph.results[i].mem;
    const Type type = value_type(mem);
    const std::uint64_t nan = bits_of(type, std::numeric_limits<double>::quiet_NaN());
    Values& column = columns.emplace_back(count);
    for (std::int64_t n = 0; n < count; ++n) {
      std::memcpy(&column[n], &outcome[i][n * size_of(mem)], size_of(mem));
      if (std::isnan(number_of(type, column[n]))) column[n] = nan;
    }
  }
  return columns;
}

// ---- operands to try -----------------------------------------------------------------------------

namespace {

Values float_edges(Type type) {
  const bool single = type == Type::f32;
  const double smallest = single ? 0x1p-149 : 0x1p-1074, normal = single ? 0x1p-126 : 0x1p-1022;
  const double largest = single ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
  const double infinity = std::numeric_limits<double>::infinity();
  const std::uint64_t nan = bits_of(type, std::numeric_limits<double>::quiet_NaN());
  const std::uint64_t negative_nan = nan | nan << 1 | 1;
  Values edges = {nan};
  for (double x : {0.0, -0.0, 1.0, -1.0, infinity, -infinity, smallest, -largest, 0.5, 2.5, -1.5, 3.0,
                   // less telling from here on
                   -smallest, largest, normal, -normal, normal - smallest, -0.5, 1.5, -2.0, -2.5, 2.0, 0.1,
                   -3.7, 255.5, 256.0, 2147483647.5, 0x1p31, -0x1p31, 0x1p33, -0x1p33})
    edges.push_back(bits_of(type, x));
  edges.push_back(negative_nan & (single ? 0xffffffffu : ~std::uint64_t{0}));
  return edges;
}

Values whole_edges() {
  Values edges;
  for (std::uint32_t x :
       {0u,          1u,          ~0u,         0x80000000u, 0x7fffffffu, 2u,         ~1u, 31u,
        32u,         33u,         0x80000001u, 255u,        256u,        ~255u,      3u,  7u,
        0x3f800000u, 0x7fc00000u, 0xffc00001u, 0x7ff00000u, 0x01000001u, 0xdeadbeefu})
    edges.push_back(x);
  return edges;
}

constexpr std::size_t telling_edges = 14;

}  // namespace

const Values& edge_values(Type type) {
  static const Values edges[] = {float_edges(Type::f32), float_edges(Type::f64), whole_edges(), {0, 1}};
  return edges[static_cast<int>(type)];
}

std::vector<Values> edge_operands(Op op, Type t) {
  const Row& row = row_of(op);
  std::vector<Values> columns(row.arity);
  std::array<std::size_t, max_arity> size = {1, 1, 1};
  for (int i = 0; i < row.arity; ++i) {
    size[i] = edge_values(operand_type(row, i, t)).size();
    if (row.arity == 3) size[i] = std::min(size[i], telling_edges);
  }
  for (std::size_t n = 0; n < size[0] * size[1] * size[2]; ++n) {
    const std::size_t choice[] = {n % size[0], n / size[0] % size[1], n / size[0] / size[1]};
    for (int i = 0; i < row.arity; ++i) columns[i].push_back(edge_values(operand_type(row, i, t))[choice[i]]);
  }
  return columns;
}

std::uint64_t random_value(Random& random, const Range& range, Type type) {
  if (type == Type::b1) return random.next() & 1;
  return bits_of(type, random.uniform(range.low, range.high));
}

const Range& range_of(const Row& row, int index) {
  return index == 0 ? row.test.first : index == 1 ? row.test.second : row.test.third;
}

std::vector<Values> operands_to_try(const RowCase& row_case) {
  std::vector<Values> columns = edge_operands(row_case.op, row_case.t);
  Random random(7);
  for (int n = 0; n < 200; ++n)
    for (int i = 0; i < row_case.row().arity; ++i)
      columns[i].push_back(
          random_value(random, range_of(row_case.row(), i), operand_type(row_case.row(), i, row_case.t)));
  return columns;
}

// ---- accuracy ------------------------------------------------------------------------------------

namespace {

/// Appends operands to columns, one set at a time.
class Samples {
 public:
  Samples(Op op, Type t)
      : row_(row_of(op)), type_(t), random_(static_cast<std::uint64_t>(t)), columns_(row_.arity) {
    const int count = t == Type::f32 ? 1 << 19 : 1 << 15;
    const std::vector<Values> edges = edge_operands(op, t);
    for (std::size_t n = 0; n < edges[0].size(); ++n) add([&](int i) { return edges[i][n]; });
    if (row_.arity == 1) add_anchors();
    add_small_steps();
    for (int n = 0; n < count; ++n)
      add([&](int i) { return any_exponent(i == 0 ? n : static_cast<int>(random_.next() >> 40)); });
    for (int n = 0; n < count; ++n) add([&](int i) { return in_range(i, n, count); });
    if (row_.arity == 2) add_powers(count / 8);
    if (std::isfinite(row_.test.domain)) add_quarter_turns();
  }

  std::vector<Values> columns() { return std::move(columns_); }

 private:
  template <class Operand>
  void add(Operand operand) {
    std::uint64_t bits[max_arity] = {};
    for (int i = 0; i < row_.arity; ++i) bits[i] = operand(i);
    const double first = number_of(type_, bits[0]);
    if (std::isfinite(first) && std::fabs(first) > row_.test.domain) return;
    for (int i = 0; i < row_.arity; ++i) columns_[i].push_back(bits[i]);
  }

  /// Number n of a sequence that takes every sign and exponent in turn, with random and extreme fractions.
  std::uint64_t any_exponent(int n) {
    const int fraction_bits = type_ == Type::f32 ? 23 : 52, exponent_bits = type_ == Type::f32 ? 8 : 11;
    const std::uint64_t sign_and_exponent = static_cast<std::uint64_t>(n) % (2u << exponent_bits);
    const std::uint64_t ones = (std::uint64_t{1} << fraction_bits) - 1, random = random_.next();
    const std::uint64_t fraction = random >> 61 == 0 ? 0 : random >> 61 == 1 ? ones : random & ones;
    return sign_and_exponent << fraction_bits | fraction;
  }

  /// One operand from its range: the first in even steps, the others at random.
  std::uint64_t in_range(int operand, int n, int count) {
    const Range& range = range_of(row_, operand);
    if (operand > 0) return random_value(random_, range, type_);
    return bits_of(type_, range.low + (range.high - range.low) * (n + random_.uniform(0, 1)) / count);
  }

  /// The neighbours of numbers at which some function overflows, underflows or changes its form.
  void add_anchors() {
    for (double anchor :
         {0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 9.0, 17.0, 18.0, 20.0, 36.0, 37.0, 38.0,
          0x1.62e42fefa39efp-1 /* log 2 */, 0x1.6a09e667f3bcdp-1 /* sqrt 1/2 */, 0x1.6a09e667f3bcdp+0,
          // exp, exp2 and sinh: largest, smallest normal, smallest; of f32, then of f64
          88.72283905206835, 89.41598629223294, 87.33654475055310, 103.97207708399179, 128.0, 126.0, 149.0,
          150.0, 709.78271289338397, 710.4758600739439, 708.39641853226408, 745.13321910194122, 1024.0,
          1022.0, 1074.0, 1075.0})
      for (double sign : {-1.0, 1.0})
        for (int step = -32; step <= 32; ++step)
          add([&](int) {
            return bits_of(type_, sign * anchor) +
                   static_cast<std::uint64_t>(static_cast<std::int64_t>(step));
          });
  }

  /// Whole numbers and halves, in all combinations for two operands.
  void add_small_steps() {
    const int limit = row_.arity == 1 ? 2200 : row_.arity == 2 ? 60 : 0;
    for (int a = -limit; a <= limit; ++a)
      for (int b = row_.arity == 2 ? -limit : 0; b <= (row_.arity == 2 ? limit : 0); ++b)
        add([&](int i) { return bits_of(type_, (i == 0 ? a : b) * 0.5); });
  }

  /// Pairs whose power neither overflows nor is nearly 1: an exponent of any size, a base that goes with it.
  void add_powers(int count) {
    for (int n = 0; n < count; ++n) {
      const double power = std::exp2(random_.uniform(-6, 14)) * (n % 2 ? 1 : -1);
      const double result = random_.uniform(-1, 1) * (type_ == Type::f32 ? 149 : 1074);
      const double base = std::exp2(result / power);
      add([&](int i) { return bits_of(type_, i == 0 ? base : power); });
    }
  }

  /// The numbers around the zeros and extremes of sine and cosine.
  void add_quarter_turns() {
    for (int n = 1; n * 1.5707963267948966 < row_.test.domain; ++n)
      for (int sign : {-1, 1}) add([&](int) { return bits_of(type_, sign * n * 1.5707963267948966); });
  }

  const Row& row_;
  const Type type_;
  Random random_;
  std::vector<Values> columns_;
};

/// A float format: bits of the significand, exponents of the smallest normal and of the largest number.
struct Format {
  int digits, smallest, largest;
};

/// Of whole numbers the unit is 1.
Format format_of(Type type) {
  if (type == Type::f32) return {24, -125, 128};
  if (type == Type::f64) return {53, -1021, 1024};
  return {32, 32, 32};
}

/// How far `result` is from `exact` in units of the last place; nothing when it is of another kind.
template <Number N>
std::optional<double> ulps_between(double result, const N& exact, const Format& format) {
  if (isnan(exact) || std::isnan(result))
    return isnan(exact) && std::isnan(result) ? std::optional(0.0) : std::nullopt;
  const bool must_be_zero = exact == 0, near_zero = result == 0;
  if ((must_be_zero || near_zero) && std::signbit(result) != signbit(exact)) return {};
  if (must_be_zero) return near_zero ? std::optional(0.0) : std::nullopt;
  if (isinf(exact)) return N(result) == exact ? std::optional(0.0) : std::nullopt;
  // An infinite result stands where the number after the largest would.
  const N limit = copysign(N::power_of_two(format.largest), exact);
  const N bounded = signbit(exact) ? maximum(exact, limit) : minimum(exact, limit);
  if (std::isinf(result) && std::signbit(result) != signbit(exact)) return {};
  const N distance = std::isinf(result) ? limit - bounded : N(result) - bounded;
  const int unit = std::clamp(exponent_of(exact), format.smallest, format.largest) - format.digits;
  return std::fabs((distance / N::power_of_two(unit)).to_double());
}

template <Number N>
Accuracy compare(Op op, Type t, N (*exact_of)(const N*)) {
  const Row& row = row_of(op);
  const std::vector<Values> operands = Samples(op, t).columns();
  const std::size_t count = operands[0].size();
  const Graph graph = graph_of(op, t);
  const Type result_type = value_type(graph.results[0].mem);
  const Values results = run_columns(graph, operands, static_cast<std::int64_t>(count))[0];
  const Format format = format_of(result_type);
  Accuracy accuracy;
  for (std::size_t n = 0; n < count; ++n) {
    N x[max_arity];
    for (int i = 0; i < row.arity; ++i) x[i] = number_of(t, operands[i][n]);
    const N exact = exact_of(x);
    const double result = number_of(result_type, results[n]);
    const std::optional<double> ulps = ulps_between(result, exact, format);
    if (ulps ? *ulps <= accuracy.ulps : !accuracy.violation.empty()) continue;
    char text[200];
    int length = 0;
    for (int i = 0; i < row.arity; ++i)
      length += std::snprintf(text + length, sizeof text - length, "%s%.17g", i == 0 ? "(" : ", ",
                              number_of(t, operands[i][n]));
    std::snprintf(text + length, sizeof text - length, ") = %.17g, exactly %.17g", result, exact.to_double());
    (ulps ? accuracy.worst : accuracy.violation) = join(row.name, text);
    if (ulps) accuracy.ulps = *ulps;
  }
  return accuracy;
}

}  // namespace

bool can_measure([[maybe_unused]] Type type) {
#ifdef FLEXSN_HAVE_MPFR
  return true;
#else
  return type == Type::f32;
#endif
}

Accuracy measure(Op op, Type t) {
  internal_check(can_measure(t) && (t == Type::f32 || t == Type::f64),
                 "the accuracy of this type cannot be measured");
  static std::map<std::pair<Op, Type>, Accuracy> known;
  const auto [found, is_new] = known.try_emplace({op, t});
  if (!is_new) return found->second;
#ifdef FLEXSN_HAVE_MPFR
  if (t == Type::f64) return found->second = compare(op, t, references_of(op).precise);
#endif
  return found->second = compare(op, t, references_of(op).libm);
}

double error_at(Op op, std::uint32_t operand) {
  const std::uint64_t result = run_columns(graph_of(op, Type::f32), {{operand}}, 1)[0][0];
  const Libm x = number_of(Type::f32, operand);
  return ulps_between(number_of(Type::f32, result), references_of(op).libm(&x), format_of(Type::f32))
      .value_or(std::numeric_limits<double>::quiet_NaN());
}

// ---- docs/ops.md ---------------------------------------------------------------------------------

namespace {

/// A value as nested calls of ops, in terms of the arguments and y.
std::string expression(const Graph& graph, Id id, Id y) {
  const Node& node = graph.at(id);
  if (id == y) return "y";
  if (node.op == Op::argument) return graph.arguments[node.immediate].name;
  if (node.op == Op::constant) return literal(node.type, node.immediate);
  std::string text = join(name_of(node.op), "(");
  for (int i = 0; i < row_of(node.op).arity; ++i)
    text += join(i == 0 ? "" : ", ", expression(graph, node.operands[i], y));
  return text + ")";
}

/// The first of f64, f32, i32 that the row takes.
Type widest_type(const Row& row) {
  for (Type t : {Type::f64, Type::f32})
    if (row.meaning.sig.types.has(t)) return t;
  return Type::i32;
}

std::string gradient_text(Op op) {
  const Row& row = row_of(op);
  if (row.vjp.zero) return "none";
  const Graph graph = gradient_of(op, widest_type(row));
  const Id y = row.arity;  // it follows the arguments
  std::string text;
  for (const Result& result : graph.results)
    text += join(text.empty() ? "" : "<br>", result.name, ": `", expression(graph, result.value, y), "`");
  return text;
}

std::string call_text(const Row& row) {
  std::string text = join(row.name, "(");
  for (int i = 0; i < row.arity; ++i) text += join(i == 0 ? "" : ", ", operand_name(row, i));
  return text + ")";
}

std::string types_text(const Row& row) {
  const Sig& sig = row.meaning.sig;
  if (row.is_leaf()) return "gives i32";
  std::string text = names_of(sig.types);
  if (sig.first != SigType::T) text = join("a: ", name_of(type_of(sig.first, Type::f32)), "; b, c: ", text);
  if (sig.result != SigType::T) text += join("; gives ", name_of(type_of(sig.result, Type::f32)));
  return text;
}

/// "basic", or how many exact ops the row becomes for each of its types.
std::string kind_text(Op op) {
  const Row& row = row_of(op);
  if (row.is_leaf()) return "leaf";
  if (!row.is_expanded()) return "basic";
  std::string text;
  for (Type t : {Type::f32, Type::f64, Type::i32})
    if (row.meaning.sig.types.has(t))
      text +=
          join(text.empty() ? "" : ", ", op_count(simplify(expand(graph_of(op, t)))), " (", name_of(t), ")");
  return text;
}

std::string ulps_text(double ulps) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", ulps);
  return text;
}

std::string error_text(Op op, Type t) {
  return row_of(op).meaning.sig.types.has(t) ? ulps_text(measure(op, t).ulps) : "";
}

std::string names_text(std::string_view names) {
  std::string text = names.empty() ? "" : "`";
  for (char c : names) text += c == ' ' ? std::string("` `") : std::string(1, c);
  return names.empty() ? text : text + "`";
}

}  // namespace

std::string ops_page(const std::map<Op, double>& exhausted) {
  std::string page =
      "# Ops\n\n"
      "The tests write this page from the op table (`include/flexsn/ops.def`) and from what they measure; "
      "run\n"
      "them with `FLEXSN_UPDATE_DOCS=1` to write it anew.\n\n"
      "An op is a function of the same name in C++ and a word of the text form. Its operands are x, or a, b "
      "and\n"
      "c; where one line of types stands, all operands have one type of it, and so has the result unless "
      "the\n"
      "line says what it gives. A basic op has a spelling in every backend; any other becomes the number of\n"
      "basic ops that its column says, so that all backends compute the same bits.\n\n"
      "| op | types | what it is | basic ops | PyTorch |\n|---|---|---|---|---|\n";
  for (Op op : all_ops()) {
    const Row& row = row_of(op);
    if (row.raw) continue;
    page += join("| `", call_text(row), "` | ", types_text(row), " | ", row.doc, " | ", kind_text(op), " | ",
                 names_text(row.aten), " |\n");
  }
  page +=
      "\n## Accuracy\n\n"
      "The largest error found, in units of the result's last place (0.50: correctly rounded). *Every f32*\n"
      "is of all 2^32 operands in machine code (`make test-exhaustive`, kept in `docs/exhaustive.txt`). The\n"
      "other two are of a fixed sample: all exponents of both signs, special values, the neighbours of\n"
      "points where functions overflow or change, and a dense sample of the usual range; where they stand\n"
      "alone, there may be a little more. f32 was compared with C's functions on doubles, f64 with MPFR at\n"
      "192 bits. Ops that are not listed are exact or correctly rounded.\n\n"
      "| op | every f32 | f32 | f64 | operands |\n|---|---|---|---|---|\n";
  for (Op op : all_ops()) {
    const Row& row = row_of(op);
    if (!row.is_expanded() || (row.test.ulps_f32 == 0 && row.test.ulps_f64 == 0)) continue;
    const auto known = exhausted.find(op);
    page += join("| `", row.name, "` | ", known == exhausted.end() ? "" : ulps_text(known->second), " | ",
                 error_text(op, Type::f32), " | ", error_text(op, Type::f64), " | ",
                 std::isinf(row.test.domain) ? "all" : join("up to ", row.test.domain, " in size"), " |\n");
  }
  page +=
      "\n## Gradients\n\n"
      "What each operand gets, from the operands, the result y and its gradient g. Ops that are not listed "
      "give\n"
      "none: they are flat, or their result carries no gradient.\n\n"
      "| op | gradients |\n|---|---|\n";
  for (Op op : all_ops())
    if (!row_of(op).vjp.zero) page += join("| `", call_text(row_of(op)), "` | ", gradient_text(op), " |\n");
  return page;
}

}  // namespace flexsn::test
