#include "simplify.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "build.h"
#include "environment.h"
#include "error.h"
#include "interpret.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

bool is_op(V x, Op op) { return x.graph->at(x.id).op == op; }
V inside(V x, int index) { return {x.graph, x.graph->at(x.id).operands[index]}; }
bool is_bool(V x) { return x.type() == Type::b1; }
bool is_float(V x) { return ir::is_float(x.type()); }
bool same(V a, V b) { return a.id == b.id; }

/// Is x the constant `value`, the sign of a zero included?
bool is_number(V x, double value) {
  const Node& node = x.graph->at(x.id);
  return node.op == Op::constant && node.immediate == bits_of(node.type, value);
}

/// The reciprocal of a constant power of two where both are normal numbers; nothing otherwise.
std::optional<double> exact_reciprocal(V x) {
  if (!is_op(x, Op::constant) || !is_float(x)) return {};
  const double value = number_of(x.type(), x.graph->at(x.id).immediate);
  int exponent = 0;
  const int limit = x.type() == Type::f32 ? 126 : 1022;
  if (!std::isfinite(value) || std::fabs(std::frexp(value, &exponent)) != 0.5 ||
      std::abs(exponent - 1) > limit)
    return {};
  return 1 / value;
}

const V no = {};

/// The other operand, where one of the two is the constant `value`.
V beside(double value, V a, V b) { return is_number(b, value) ? a : is_number(a, value) ? b : no; }

/// Is x select(c, k, l) with constants k and l?
bool chooses_constants(V x) {
  return is_op(x, Op::select) && is_op(inside(x, 1), Op::constant) && is_op(inside(x, 2), Op::constant);
}

/// A comparison of select(c, k, l) with a constant, k and l constants too: a choice that was made before.
V compare_choice(Op op, V a, V b) {
  for (const bool first : {true, false}) {
    const V choice = first ? a : b, other = first ? b : a;
    if (!chooses_constants(choice) || !is_op(other, Op::constant)) continue;
    const V sides[] = {inside(choice, 1), inside(choice, 2)};
    V results[2];
    for (const int side : {0, 1}) {
      const Type types[] = {choice.type(), choice.type()};
      const std::uint64_t chosen = a.graph->at(sides[side].id).immediate,
                          fixed = a.graph->at(other.id).immediate;
      const std::uint64_t bits[] = {first ? chosen : fixed, first ? fixed : chosen};
      results[side] = constant_bits(*a.graph, Type::b1, evaluate(op, types, bits));
    }
    return select(inside(choice, 0), results[0], results[1]);
  }
  return no;
}

/// A comparison of x - k with 0: the difference of two numbers is 0 only where they are equal, and has the
/// right sign everywhere else, rounded or not. An infinite k is none of x's distance.
template <Op op>
V distance(V a, V b, V) {
  if (!is_float(a) || !is_op(a, Op::sub) || !is_op(inside(a, 1), Op::constant)) return no;
  const double limit = number_of(a.type(), a.graph->at(inside(a, 1).id).immediate);
  if (!std::isfinite(limit) || !(is_number(b, 0) || is_number(b, -0.0))) return no;
  const V operands[] = {inside(a, 0), inside(a, 1)};
  return apply(op, operands, 2);
}

/// Applying the op to its own result changes nothing.
template <Op op>
V once(V a, V, V) {
  return is_op(a, op) ? a : no;
}

/// Constants that a select chooses from are rounded before.
template <Op rounding>
V rounded_choice(V a, V, V) {
  if (!chooses_constants(a)) return no;
  const Type type = a.type(), result = type_of(row_of(rounding).meaning.sig.result, type);
  const auto rounded = [&](V side) {
    return constant_bits(*a.graph, result, evaluate(rounding, &type, &a.graph->at(side.id).immediate));
  };
  const V one = rounded(inside(a, 1)), other = rounded(inside(a, 2));
  return select(inside(a, 0), one, other);
}

/// 0 and 1 are held by every type.
template <Op conversion>
V truth_value(V a, V, V) {
  return is_op(a, conversion) && is_bool(inside(a, 0)) ? a : no;
}

template <Op op>
V choice(V a, V b, V) {
  return compare_choice(op, a, b);
}

}  // namespace

const std::vector<Identity>& identities() {
  static const std::vector<Identity> rules = {
      {"x + -0 -> x", Op::add, [](V a, V b, V) { return is_float(a) ? beside(-0.0, a, b) : no; }},
      {"x + 0 -> x (i32)", Op::add, [](V a, V b, V) { return is_float(a) ? no : beside(0, a, b); }},
      {"x + -y -> x - y", Op::add, [](V a, V b, V) { return is_op(b, Op::neg) ? a - inside(b, 0) : no; }},
      {"-x + y -> y - x", Op::add, [](V a, V b, V) { return is_op(a, Op::neg) ? b - inside(a, 0) : no; }},
      {"x - 0 -> x", Op::sub, [](V a, V b, V) { return is_number(b, 0) ? a : no; }},
      {"x - -y -> x + y", Op::sub, [](V a, V b, V) { return is_op(b, Op::neg) ? a + inside(b, 0) : no; }},
      {"x - x -> 0 (i32)", Op::sub, [](V a, V b, V) { return !is_float(a) && same(a, b) ? lit(a, 0) : no; }},
      {"x * 1 -> x", Op::mul, [](V a, V b, V) { return beside(1, a, b); }},
      {"x * -1 -> -x", Op::mul,
       [](V a, V b, V) {
         const V x = beside(-1, a, b);
         return x.exists() ? -x : no;
       }},
      {"x * 0 -> 0 (i32)", Op::mul,
       [](V a, V b, V) { return !is_float(a) && beside(0, a, b).exists() ? lit(a, 0) : no; }},
      {"-x * -y -> x * y", Op::mul,
       [](V a, V b, V) { return is_op(a, Op::neg) && is_op(b, Op::neg) ? inside(a, 0) * inside(b, 0) : no; }},
      {"x / 1 -> x", Op::div, [](V a, V b, V) { return is_number(b, 1) ? a : no; }},
      {"x / 2^k -> x * 2^-k", Op::div,
       [](V a, V b, V) {
         const std::optional<double> reciprocal = exact_reciprocal(b);
         return reciprocal ? a * *reciprocal : no;
       }},
      {"-x / -y -> x / y", Op::div,
       [](V a, V b, V) {
         return is_float(a) && is_op(a, Op::neg) && is_op(b, Op::neg) ? inside(a, 0) / inside(b, 0) : no;
       }},
      {"-(-x) -> x", Op::neg, [](V a, V, V) { return is_op(a, Op::neg) ? inside(a, 0) : no; }},
      {"|-x| -> |x|", Op::abs, [](V a, V, V) { return is_op(a, Op::neg) ? abs(inside(a, 0)) : no; }},
      {"fma(x, 1, y) -> x + y", Op::fma,
       [](V a, V b, V c) {
         const V x = beside(1, a, b);
         return x.exists() ? x + c : no;
       }},
      {"fma(x, y, -0) -> x * y", Op::fma, [](V a, V b, V c) { return is_number(c, -0.0) ? a * b : no; }},
      {"select(true, x, y) -> x", Op::select, [](V a, V b, V) { return is_number(a, 1) ? b : no; }},
      {"select(false, x, y) -> y", Op::select, [](V a, V, V c) { return is_number(a, 0) ? c : no; }},
      {"select(c, x, x) -> x", Op::select, [](V, V b, V c) { return same(b, c) ? b : no; }},
      {"select(!c, x, y) -> select(c, y, x)", Op::select,
       [](V a, V b, V c) { return is_op(a, Op::bit_not) ? select(inside(a, 0), c, b) : no; }},
      {"select(c, true, false) -> c", Op::select,
       [](V a, V b, V c) { return is_bool(b) && is_number(b, 1) && is_number(c, 0) ? a : no; }},
      {"select(c, false, true) -> !c", Op::select,
       [](V a, V b, V c) { return is_bool(b) && is_number(b, 0) && is_number(c, 1) ? !a : no; }},
      {"!!x -> x", Op::bit_not, [](V a, V, V) { return is_op(a, Op::bit_not) ? inside(a, 0) : no; }},
      {"x & x -> x", Op::bit_and, [](V a, V b, V) { return same(a, b) ? a : no; }},
      {"x | x -> x", Op::bit_or, [](V a, V b, V) { return same(a, b) ? a : no; }},
      {"x ^ x -> 0", Op::bit_xor, [](V a, V b, V) { return same(a, b) ? lit(a, 0) : no; }},
      {"x & true -> x", Op::bit_and, [](V a, V b, V) { return is_bool(a) ? beside(1, a, b) : no; }},
      {"x & 0 -> 0", Op::bit_and, [](V a, V b, V) { return beside(0, a, b).exists() ? lit(a, 0) : no; }},
      {"x | 0 -> x", Op::bit_or, [](V a, V b, V) { return beside(0, a, b); }},
      {"x | true -> true", Op::bit_or,
       [](V a, V b, V) { return is_bool(a) && beside(1, a, b).exists() ? lit(a, 1) : no; }},
      {"x ^ 0 -> x", Op::bit_xor, [](V a, V b, V) { return beside(0, a, b); }},
      {"x ^ true -> !x", Op::bit_xor,
       [](V a, V b, V) {
         const V x = is_bool(a) ? beside(1, a, b) : no;
         return x.exists() ? !x : no;
       }},
      {"x << 0 -> x", Op::shift_left, [](V a, V b, V) { return is_number(b, 0) ? a : no; }},
      {"x >> 0 -> x", Op::shift_right, [](V a, V b, V) { return is_number(b, 0) ? a : no; }},
      {"x >>> 0 -> x", Op::shift_right_logical, [](V a, V b, V) { return is_number(b, 0) ? a : no; }},
      {"to_f32(x) -> x (f32)", Op::to_f32, [](V a, V, V) { return a.type() == Type::f32 ? a : no; }},
      {"to_f64(x) -> x (f64)", Op::to_f64, [](V a, V, V) { return a.type() == Type::f64 ? a : no; }},
      {"to_i32(x) -> x (i32)", Op::to_i32, [](V a, V, V) { return a.type() == Type::i32 ? a : no; }},
      {"to_bool(x) -> x (bool)", Op::to_bool, [](V a, V, V) { return is_bool(a) ? a : no; }},
      {"to_f32(to_f64(x)) -> x (f32)", Op::to_f32,
       [](V a, V, V) {
         return is_op(a, Op::to_f64) && inside(a, 0).type() == Type::f32 ? inside(a, 0) : no;
       }},
      {"to_bool(to_f32(x)) -> x (bool)", Op::to_bool,
       [](V a, V, V) { return is_op(a, Op::to_f32) && is_bool(inside(a, 0)) ? inside(a, 0) : no; }},
      {"select(c, k, l) == m -> c, !c, true or false", Op::eq, choice<Op::eq>},
      {"select(c, k, l) != m -> c, !c, true or false", Op::ne, choice<Op::ne>},
      {"select(c, k, l) < m -> c, !c, true or false", Op::lt, choice<Op::lt>},
      {"select(c, k, l) <= m -> c, !c, true or false", Op::le, choice<Op::le>},
      {"select(c, k, l) > m -> c, !c, true or false", Op::gt, choice<Op::gt>},
      {"select(c, k, l) >= m -> c, !c, true or false", Op::ge, choice<Op::ge>},
      {"x - k == 0 -> x == k", Op::eq, distance<Op::eq>},
      {"x - k != 0 -> x != k", Op::ne, distance<Op::ne>},
      {"x - k < 0 -> x < k", Op::lt, distance<Op::lt>},
      {"x - k <= 0 -> x <= k", Op::le, distance<Op::le>},
      {"x - k > 0 -> x > k", Op::gt, distance<Op::gt>},
      {"x - k >= 0 -> x >= k", Op::ge, distance<Op::ge>},
      {"abs(abs(x)) -> abs(x)", Op::abs, once<Op::abs>},
      {"floor(floor(x)) -> floor(x)", Op::floor, once<Op::floor>},
      {"ceil(ceil(x)) -> ceil(x)", Op::ceil, once<Op::ceil>},
      {"trunc(trunc(x)) -> trunc(x)", Op::trunc, once<Op::trunc>},
      {"round(round(x)) -> round(x)", Op::round, once<Op::round>},
      {"sign(sign(x)) -> sign(x)", Op::sign, once<Op::sign>},
      {"relu(relu(x)) -> relu(x)", Op::relu, once<Op::relu>},
      {"round_f16(round_f16(x)) -> round_f16(x)", Op::round_f16, once<Op::round_f16>},
      {"round_bf16(round_bf16(x)) -> round_bf16(x)", Op::round_bf16, once<Op::round_bf16>},
      {"round_u8(round_u8(x)) -> round_u8(x)", Op::round_u8, once<Op::round_u8>},
      {"round_f16(select(c, k, l)) -> select(c, round_f16(k), round_f16(l))", Op::round_f16,
       rounded_choice<Op::round_f16>},
      {"round_bf16(select(c, k, l)) -> select(c, round_bf16(k), round_bf16(l))", Op::round_bf16,
       rounded_choice<Op::round_bf16>},
      {"round_u8(select(c, k, l)) -> select(c, round_u8(k), round_u8(l))", Op::round_u8,
       rounded_choice<Op::round_u8>},
      {"round_f16(to_f32(x)) -> to_f32(x) (bool)", Op::round_f16, truth_value<Op::to_f32>},
      {"round_bf16(to_f32(x)) -> to_f32(x) (bool)", Op::round_bf16, truth_value<Op::to_f32>},
      {"round_u8(to_i32(x)) -> to_i32(x) (bool)", Op::round_u8, truth_value<Op::to_i32>},
      {"detach(detach(x)) -> detach(x)", Op::detach, once<Op::detach>},
  };
  return rules;
}

namespace {

struct NodeHash {
  std::size_t operator()(const Node& node) const {
    std::size_t hash = std::hash<std::uint64_t>()(node.immediate) + static_cast<std::size_t>(node.op) * 31 +
                       static_cast<std::size_t>(node.type);
    for (Id operand : node.operands)
      hash = hash * 0x9e3779b97f4a7c15u + static_cast<std::size_t>(operand + 1);
    return hash;
  }
};

/// Builds the simplified nodes of one graph: every node goes through `place`, new ones of identities too.
class Simplifier {
 public:
  explicit Simplifier(Graph& out) : out_(out) {}

  Id place(Node node) {
    const bool has_row = node.op != Op::constant && node.op != Op::argument;
    if (has_row && row_of(node.op).commutes && node.operands[0] > node.operands[1])
      std::swap(node.operands[0], node.operands[1]);
    if (const auto known = known_.find(node); known != known_.end()) return known->second;
    const Id id = has_row ? simpler(node) : no_id;
    const Id placed = id != no_id ? id : out_.append(node);
    known_.emplace(node, placed);
    return placed;
  }

 private:
  /// A node that is already placed and has the value of `node`, or nothing.
  Id simpler(const Node& node) {
    if (const std::optional<std::uint64_t> bits = folded(node))
      return place({.op = Op::constant, .type = node.type, .immediate = *bits});
    for (const Identity& rule : identities()) {
      if (rule.op != node.op) continue;
      // The rule builds in a side room at the end of the graph; what it built is then placed properly.
      const std::size_t before = out_.nodes.size();
      const V result =
          rule.apply({&out_, node.operands[0]}, {&out_, node.operands[1]}, {&out_, node.operands[2]});
      if (!result.exists()) {
        internal_check(out_.nodes.size() == before, "an identity that does not apply must add nothing");
        continue;
      }
      const std::vector<Node> built(out_.nodes.begin() + static_cast<std::ptrdiff_t>(before),
                                    out_.nodes.end());
      out_.nodes.resize(before);
      out_.debug.resize(before);
      std::vector<Id> placed(built.size());
      const auto moved = [&](Id id) {
        return id >= static_cast<Id>(before) ? placed[id - static_cast<Id>(before)] : id;
      };
      for (std::size_t i = 0; i < built.size(); ++i) {
        Node copy = built[i];
        for (Id& id : copy.operands) id = moved(id);
        placed[i] = place(copy);
      }
      return moved(result.id);
    }
    return no_id;
  }

  std::optional<std::uint64_t> folded(const Node& node) const {
    const Row& row = row_of(node.op);
    if (row.is_leaf()) return {};
    Type types[max_arity] = {};
    std::uint64_t bits[max_arity] = {};
    for (int i = 0; i < row.arity; ++i) {
      const Node& from = out_.at(node.operands[i]);
      if (from.op != Op::constant) return {};
      if (row.raw && std::isnan(number_of(from.type, from.immediate))) return {};
      types[i] = from.type;
      bits[i] = from.immediate;
    }
    return evaluate(node.op, types, bits);
  }

  Graph& out_;
  std::unordered_map<Node, Id, NodeHash> known_;
};

}  // namespace

Graph simplify(const Graph& graph) {
  const IeeeEnvironment environment;  // for what is folded
  Graph current = graph;
  for (;;) {
    std::optional<Simplifier> simplifier;
    Graph next = rewrite(current, [&](Graph& out, const Node& node) {
      if (!simplifier) simplifier.emplace(out);
      return simplifier->place(node);
    });
    next = without_dead_code(next);
    if (next.nodes == current.nodes) return next;
    current = std::move(next);
  }
}

}  // namespace flexsn
