// Graphs are grown node by node. Three habits keep them worth running: values that nothing uses yet are
// preferred as operands, operands are mostly brought into the range in which a row is tested, and some
// nodes are repeated or varied, so that there is something to simplify.
#include "random_graph.h"

#include <algorithm>
#include <cmath>

#include "build.h"
#include "error.h"
#include "ops.h"
#include "simplify.h"

namespace flexsn::test {

using namespace ir;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr Type all_types[] = {Type::f32, Type::f64, Type::i32, Type::b1};
constexpr Mem all_memories[] = {Mem::f16, Mem::bf16, Mem::f32, Mem::f64, Mem::i32, Mem::u8, Mem::b8};

/// Each type takes of these what it can hold.
// clang-format off
constexpr double edges[] = {
    0.0, -0.0, 1, -1, 2, 0.5, -0.5, 1.5, 2.5, -2.5,              // zeros, ones, ties of rounding
    0x1.000002p0, 0x1.fffffep-1, 0x1.0000000000001p0, 16777217,  // beside 1; the first integer that f32 lacks
    inf, -inf, nan, 0x1p1000, -0x1p1023,                         // infinite, or huge as f64
    0x1.fep127, 0x1.fffffep127, -0x1.fffffep127, 65504, 65520,   // the ends of bf16, f32 and f16
    0x1p-149, -0x1p-149, 0x1.8p-130, 0x1p-126,                   // subnormal as f32
    0x1p-1074, -0x1.8p-1030, 0x1p-1022,                          // subnormal as f64
    0x1p-24, 0x1.8p-25, 0x1p-14,                                 // subnormal as f16
    31, 32, -128, 255, 256,                                      // shifts, u8
    2147483646, 2147483647, -2147483648.0};                      // the ends of i32
// clang-format on

/// The constants that algebra is about.
constexpr double units[] = {0.0, 0.0, 0.0, 0.0, -0.0, -0.0, -0.0, -0.0, 1, 1, -1, 2, 0.5, -4};

bool is_float(Type type) { return type == Type::f32 || type == Type::f64; }

/// The range of some operand of some row.
Range tested_range(Dice& dice) {
  const TestRange& test = row_of(dice.pick(step_rows())).test;
  const Range ranges[] = {test.first, test.second, test.third};
  return dice.pick(ranges);
}

/// The row that rounds to `mem`; nothing where a value needs no rounding.
std::optional<Op> rounding_to(Mem mem) {
  switch (mem) {
    case Mem::f16:
      return Op::round_f16;
    case Mem::bf16:
      return Op::round_bf16;
    case Mem::u8:
      return Op::round_u8;
    default:
      return {};
  }
}

/// What data hold now and then: a constant of the graph, for it may be a threshold, or a corner.
double special_value(const std::vector<double>& thresholds, Dice& dice) {
  if (!thresholds.empty() && dice.chance(0.3)) return dice.pick(thresholds);
  return dice.chance(0.5) ? dice.pick(units) : dice.pick(edges);
}

class Generator {
 public:
  Generator(std::uint64_t seed, const GraphMix& mix) : dice_(seed), mix_(mix) {}

  Graph graph() {
    choose_habits();
    std::vector<Role> roles;
    for (Role role : {Role::input, Role::state, Role::param})
      roles.insert(roles.end(), dice_.pick(counts), role);
    for (std::size_t i = roles.size(); i > 1; --i)
      std::swap(roles[i - 1], roles[static_cast<std::size_t>(dice_.below(static_cast<int>(i)))]);
    const bool scattered = dice_.chance(0.2);  // arguments need not stand before all ops
    const int ops = mix_.min_ops + dice_.below(mix_.max_ops - mix_.min_ops + 1);
    while (op_count(graph_) < ops || !roles.empty()) {
      if (!roles.empty() && (!scattered || op_count(graph_) >= ops || dice_.chance(0.3))) {
        add_argument_of(roles.back());
        roles.pop_back();
      } else if (dice_.chance(0.12)) {
        add_variation();
      } else {
        add_row();
      }
    }
    add_results();
    decorate();
    return std::move(graph_);
  }

 private:
  static constexpr int counts[] = {0, 1, 1, 1, 2, 2, 3};

  /// Some graphs know all rows. Some have a few favourites, which then meet each other. And half are made of
  /// what the identities of simplify look at.
  void choose_habits() {
    rows_ = mix_.rows;
    const int kind = dice_.pick(std::array{0, 1, 2, 2});
    if (kind == 1) {
      rows_.clear();
      const int favourites = 3 + dice_.below(10);
      for (int i = 0; i < favourites; ++i) rows_.push_back(dice_.pick(mix_.rows));
    } else if (kind == 2) {
      std::vector<Op> ruled;  // a row as often as there are identities for it
      for (const Identity& rule : identities())
        if (std::find(rows_.begin(), rows_.end(), rule.op) != rows_.end()) ruled.push_back(rule.op);
      if (!ruled.empty()) rows_ = ruled;
      unit_share_ = 0.9;
      again_ = 0.3;
    }
    for (double& weight : type_weights_) weight = dice_.uniform(0.05, 0.5);
    type_weights_[dice_.pick(std::array{0, 0, 0, 0, 1, 1, 2, 3})] += 3;
    constant_share_ = kind == 2 ? 0.4 : dice_.uniform(0.02, 0.2);
  }

  template <class Allowed>
  Type pick_type(const Allowed& allowed) {
    double total = 0;
    for (Type type : all_types) total += allowed(type) ? weight(type) : 0;
    double left = dice_.uniform(0, total);
    Type chosen = Type::f32;
    for (Type type : all_types) {
      if (!allowed(type)) continue;
      chosen = type;
      left -= weight(type);
      if (left < 0) break;
    }
    return chosen;
  }
  double weight(Type type) const { return type_weights_[static_cast<std::size_t>(type)]; }
  std::vector<Id>& known(Type type) { return known_[static_cast<std::size_t>(type)]; }

  V noted(V value) {
    known(value.type()).push_back(value.id);
    return value;
  }

  // ---- operands ----
  V random_constant(Type type) {
    const double kind = dice_.chance(unit_share_) ? 1 : dice_.uniform(0, 1);
    std::uint64_t bits = bits_of(type, dice_.pick(units));
    if (kind < 0.8) {
      const Range range = tested_range(dice_);
      const double number = dice_.uniform(range.low, range.high);
      bits = bits_of(type, dice_.chance(0.3) ? std::round(number * 4) / 4 : number);
    } else if (kind < 0.96) {
      bits = bits_of(type, dice_.pick(edges));
    } else if (kind < 1) {
      bits = dice_.next();  // any bits at all: NaNs with a message, for example
      if (type != Type::f64) bits &= type == Type::b1 ? 1 : 0xffffffff;
    }
    const V made = constant_bits(graph_, type, bits);
    return dice_.chance(0.2) ? noted(made) : made;
  }

  /// A value that is already there, sooner one that changes with time and that nothing uses.
  V existing(Type type) {
    std::vector<Id> fresh;
    const std::vector<bool> unvarying = hoistable(graph_);
    for (Id id : known(type))
      if (!unvarying[id] && !is_used(id)) fresh.push_back(id);
    return {&graph_, dice_.pick(fresh.empty() || dice_.chance(0.3) ? known(type) : fresh)};
  }
  bool is_used(Id id) const {
    for (const Node& node : graph_.nodes)
      if (std::find(node.operands.begin(), node.operands.end(), id) != node.operands.end()) return true;
    return false;
  }

  V operand(Type type) {
    if (dice_.chance(constant_share_)) return random_constant(type);
    if (!known(type).empty() && dice_.chance(0.95)) return existing(type);
    const Type other = pick_type([&](Type t) { return !known(t).empty(); });
    return known(other).empty() ? random_constant(type) : noted(convert(existing(other), type));
  }

  /// x, or what brings it into a range that is not the usual one.
  V fitted(V x, const Range& range) {
    const Range usual = TestRange().first;
    const bool special = range.low != usual.low || range.high != usual.high;
    if (!is_float(x.type()) || graph_.at(x.id).op == Op::constant || !dice_.chance(special ? 0.8 : 0.05))
      return x;
    if (dice_.chance(0.5)) {
      const V low = constant(graph_, x.type(), range.low);
      const V high = constant(graph_, x.type(), range.high);
      return noted(clamp(x, low, high));
    }
    // Bends the whole line into the range: half the width times x / (1 + |x|), plus the middle.
    const V bent = x / (abs(x) + 1.0);
    const V half_width = constant(graph_, x.type(), (range.high - range.low) / 2);
    const V middle = constant(graph_, x.type(), (range.high + range.low) / 2);
    return noted(fma(bent, half_width, middle));
  }

  // ---- ops ----
  void add_row() {
    const Op op = dice_.pick(rows_);
    const Row& row = row_of(op);
    if (row.is_leaf()) {
      noted({&graph_, graph_.append({.op = op, .type = type_of(row.meaning.sig.result, Type::i32)})});
      return;
    }
    const Type t = pick_type([&](Type type) { return row.meaning.sig.types.has(type); });
    const Range ranges[] = {row.test.first, row.test.second, row.test.third};
    V operands[max_arity];
    for (int i = 0; i < row.arity; ++i) {
      const Type type = operand_type(row, i, t);
      const bool again = i > 0 && operands[i - 1].type() == type && dice_.chance(again_);
      operands[i] = again ? operands[i - 1] : fitted(operand(type), ranges[i]);
    }
    noted(apply(op, operands, row.arity));
  }

  /// A node once more: as it is, with its operands swapped, applied to its own result, or with another row.
  void add_variation() {
    std::vector<Id> ops;
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id)
      if (graph_.at(id).op != Op::constant && graph_.at(id).op != Op::argument &&
          row_of(graph_.at(id).op).arity > 0)
        ops.push_back(id);
    if (ops.empty()) return add_row();
    const V old = {&graph_, dice_.pick(ops)};
    const Node node = graph_.at(old.id);
    Op op = node.op;
    const int arity = row_of(op).arity;
    V operands[max_arity];
    for (int i = 0; i < arity; ++i) operands[i] = {&graph_, node.operands[i]};
    switch (dice_.below(4)) {
      case 0:
        break;
      case 1:
        std::reverse(operands, operands + arity);
        break;
      case 2:
        operands[0] = old;
        break;
      default:
        op = dice_.pick(rows_);
    }
    Type types[max_arity] = {};
    for (int i = 0; i < arity; ++i) types[i] = operands[i].type();
    if (row_of(op).arity == arity && result_type(row_of(op), types)) noted(apply(op, operands, arity));
  }

  // ---- arguments and results ----
  void add_argument_of(Role role) {
    Argument argument{.role = role, .mem = pick_memory(pick_type([](Type) { return true; }))};
    const bool is_float = value_type(argument.mem) == Type::f32 || argument.mem == Mem::f64;
    // What an integer or a bool starts with is one; a float may be rounded, but not to infinity.
    const auto fitting = [&](double value) {
      const double stored = Array(argument.mem, {1}, value)[0];
      return is_float && (!std::isfinite(value) || std::isfinite(stored)) ? value
             : std::isfinite(stored)                                      ? stored
                                                                          : 0;
    };
    const double middle = fitting(dice_.chance(0.5) ? dice_.uniform(-4, 4) : 0);
    if (role == Role::state) argument.initial = dice_.chance(0.2) ? fitting(dice_.pick(edges)) : middle;
    if (role == Role::param) {
      argument.per_step = dice_.chance(0.3);
      argument.has_default = dice_.chance(0.6);
      if (argument.has_default) argument.initial = middle;
      if (dice_.chance(0.3)) argument.range.low = middle - dice_.below(3);
      if (dice_.chance(0.3)) argument.range.high = middle + dice_.below(3);
    }
    noted(add_argument(graph_, argument));
  }

  Mem pick_memory(Type type) {
    Mem mem = dice_.pick(all_memories);
    while (value_type(mem) != type) mem = dice_.pick(all_memories);
    return mem;
  }

  /// What is best given away: ops without a use whose values are finite and vary when tried on some data.
  void find_ripe() {
    constexpr Mem natural[] = {Mem::f32, Mem::f64, Mem::i32, Mem::b8};
    Graph trial = graph_;
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
      const Argument& argument = graph_.arguments[i];
      if (argument.role == Role::state)
        trial.results.push_back(
            {.gives = Gives::next, .of = static_cast<int>(i), .mem = argument.mem, .value = argument.value});
    }
    std::vector<Id> unused;
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id) {
      const Node& node = graph_.at(id);
      if (node.op == Op::constant || node.op == Op::argument || is_used(id)) continue;
      unused.push_back(id);
      trial.results.push_back(
          {.gives = Gives::output, .mem = natural[static_cast<std::size_t>(node.type)], .value = id});
    }
    RandomRun data(trial, dice_.next());
    while (data.steps() * data.elements() < 16) data = RandomRun(trial, dice_.next());
    const Outcome outcome = data.run(trial);  // outputs come first
    for (std::size_t i = 0; i < unused.size(); ++i)
      if (is_alive(outcome[i].sequence)) ripe(graph_.at(unused[i]).type).push_back(unused[i]);
  }
  std::vector<Id>& ripe(Type type) { return ripe_[static_cast<std::size_t>(type)]; }

  V harvest(Type type) {
    if (dice_.chance(0.1) || known(type).empty()) return operand(type);
    if (ripe(type).empty()) return existing(type);
    const Id chosen = dice_.pick(ripe(type));
    std::erase(ripe(type), chosen);
    return {&graph_, chosen};
  }

  V stored_as(Mem mem) {
    const std::optional<Op> rounding = rounding_to(mem);
    const Type type = value_type(mem);
    if (!rounding) return harvest(type);
    for (const Argument& argument : graph_.arguments)  // memory of the same type holds what came from it
      if (argument.mem == mem && dice_.chance(0.05)) return {&graph_, argument.value};
    const V value = harvest(mem == Mem::u8 && dice_.chance(0.5) ? Type::f32 : type);
    return noted(apply(*rounding, &value, 1));
  }

  void add_results() {
    find_ripe();
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
      const Argument argument = graph_.arguments[i];
      if (argument.role != Role::state) continue;
      const V next = stored_as(argument.mem);
      graph_.results.push_back(
          {.gives = Gives::next, .of = static_cast<int>(i), .mem = argument.mem, .value = next.id});
    }
    const int outputs = dice_.pick(std::array{0, 1, 2, 2, 3, 3, 3, 4, 4, 4});
    for (int i = 0; i < outputs; ++i) {
      const bool any_ripe =
          std::any_of(ripe_.begin(), ripe_.end(), [](const auto& ids) { return !ids.empty(); });
      const Mem mem =
          pick_memory(pick_type([&](Type type) { return !(any_ripe ? ripe(type) : known(type)).empty(); }));
      const V value = stored_as(mem);
      const Result output{.gives = Gives::output, .mem = mem, .value = value.id};
      graph_.results.insert(graph_.results.begin() + dice_.below(static_cast<int>(graph_.results.size()) + 1),
                            output);
    }
  }

  // ---- names and lines ----
  std::string random_name() {
    constexpr std::string_view odd[] = {"expanded", "of",        "nan",       "f32",         "input",
                                        "a b",      "say \"x\"", "v\xc3\xa9", "back\\slash", "tab\t",
                                        "x.y",      "_",         "3d",        "%0"};
    if (dice_.chance(0.2)) return std::string(dice_.pick(odd));
    const char letter = dice_.pick(std::string_view("hvxz"));
    return join(letter, dice_.below(40));
  }

  Location random_line() {
    if (!dice_.chance(located_)) return {};
    const int file = dice_.below(static_cast<int>(graph_.files.size()));
    return {file, dice_.below(500)};
  }

  /// Values may have any names, arguments and outputs those that no other has.
  void decorate() {
    graph_.files = {"step.cpp", "dir with space/lif \"2\".h"};
    located_ = dice_.pick(std::array{0.0, 0.5, 1.0});
    const double named = dice_.pick(std::array{0.0, 0.5, 1.0});
    if (dice_.chance(named)) graph_.name = random_name();
    std::vector<std::string> taken;
    const auto unique_name = [&](std::string& name) {
      const std::string wanted = dice_.chance(named) ? random_name() : "";
      if (std::find(taken.begin(), taken.end(), wanted) != taken.end()) return;
      name = wanted;
      taken.push_back(wanted);
    };
    for (Debug& debug : graph_.debug) {
      if (dice_.chance(named)) debug.name = random_name();
      debug.location = random_line();
    }
    for (Argument& argument : graph_.arguments) {
      unique_name(argument.name);
      argument.location = random_line();
      graph_.debug[argument.value] = {argument.name, argument.location};
    }
    taken.clear();
    for (Result& result : graph_.results) {
      if (result.gives == Gives::output) unique_name(result.name);
      result.location = random_line();
    }
  }

  Dice dice_;
  const GraphMix& mix_;
  Graph graph_;
  std::vector<Op> rows_;
  std::array<double, 4> type_weights_ = {};
  double unit_share_ = 0.4, again_ = 0.08;  ///< of constants; of operands that repeat the one before
  double constant_share_ = 0, located_ = 0;
  std::array<std::vector<Id>, 4> known_;  ///< for each type: the values to choose operands from
  std::array<std::vector<Id>, 4> ripe_;   ///< for each type: the values to choose results from
};

}  // namespace

const std::vector<Op>& step_rows() {
  static const std::vector<Op> rows = [] {
    std::vector<Op> all = all_ops();
    std::erase_if(all, [](Op op) { return row_of(op).raw; });
    return all;
  }();
  return rows;
}

Graph random_graph(std::uint64_t seed, const GraphMix& mix) { return Generator(seed, mix).graph(); }

bool is_alive(const Array& array) {
  std::vector<double> values = array.values();
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  const bool varies =
      std::any_of(values.begin(), values.end(), [&](double value) { return value != values[0]; });
  return varies && 4 * static_cast<std::int64_t>(values.size()) >= 3 * array.size();
}

std::string difference(const Outcome& a, const Outcome& b) {
  if (a.size() != b.size()) return join(a.size(), " results and ", b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (const auto part : {&Column::sequence, &Column::last}) {
      const Array &x = a[i].*part, &y = b[i].*part;
      if (x.bytes == y.bytes) continue;
      const std::size_t size = size_of(x.type);
      for (std::int64_t n = 0; n < x.size(); ++n) {
        const bool same = std::equal(&x.bytes[static_cast<std::size_t>(n) * size],
                                     &x.bytes[static_cast<std::size_t>(n) * size] + size,
                                     &y.bytes[static_cast<std::size_t>(n) * size]);
        if (same || (std::isnan(x[n]) && std::isnan(y[n]))) continue;
        return join(a[i].what, part == &Column::last ? " (last)" : "", " differs at place ", n, ": ", x[n],
                    " and ", y[n]);
      }
    }
  }
  return "";
}

// ---- data ----------------------------------------------------------------------------------------

void draw_values(Array& values, const Graph& graph, const Argument& argument, double edge_share, Dice& dice) {
  std::vector<double> thresholds;
  for (const Node& node : graph.nodes)
    if (node.op == Op::constant && node.type == value_type(argument.mem))
      thresholds.push_back(number_of(node.type, node.immediate));
  const Range range = tested_range(dice);
  for (std::int64_t n = 0; n < values.size(); ++n) {
    double value = dice.uniform(range.low, range.high);
    if (argument.mem == Mem::b8) value = dice.below(2);
    if (dice.chance(edge_share)) value = special_value(thresholds, dice);
    if (argument.role == Role::param && !std::isnan(value))
      value = std::clamp(value, argument.range.low, argument.range.high);
    values.set(n, value);
  }
}

RandomRun::RandomRun(const Graph& graph, std::uint64_t seed) {
  Dice dice(~seed);  // not the numbers that made the graph
  constexpr std::int64_t several_blocks = 513;
  steps_ = dice.chance(0.05) ? 0 : 1 + dice.below(dice.chance(0.1) ? 20 : 5);
  elements_ = dice.chance(0.03) ? 0 : 1 + dice.below(dice.chance(0.5) ? 70 : 9);
  if (dice.chance(0.01)) elements_ = several_blocks + dice.below(100);
  first_step_ = dice.pick(std::array<std::int64_t, 5>{0, 0, 1, 1000, 2147483645});
  cut_ = dice.below(static_cast<int>(steps_) + 1);
  const double edge_share = dice.chance(0.4) ? 0 : dice.uniform(0, 0.6);
  for (int index : argument_order(graph))
    data_.push_back(random_data(graph, graph.arguments[index], edge_share, dice));
}

RandomRun::Data RandomRun::random_data(const Graph& graph, const Argument& argument, double edge_share,
                                       Dice& dice) const {
  const bool in_time = argument.role == Role::input || argument.per_step;
  Data data;
  std::int64_t row = elements_;
  if (argument.role != Role::input && dice.chance(0.4)) {
    data.map = Map::scalar;
    row = 1;
  } else if (argument.role == Role::param && dice.chance(0.5)) {
    data.map = Map::indexed;
    row = 1 + dice.below(7);
    for (std::int64_t n = 0; n < elements_; ++n) data.indices.push_back(dice.below(static_cast<int>(row)));
  }
  data.row_stride = in_time ? row + dice.below(3) : 0;
  data.values = Array(argument.mem, {steps_ * data.row_stride + row});
  draw_values(data.values, graph, argument, edge_share, dice);
  return data;
}

Outcome RandomRun::room_for(const Graph& graph) const {
  Outcome outcome;
  for (int index : result_order(graph)) {
    const Result& result = graph.results[index];
    const std::string what = result.gives == Gives::output ? join("output ", outcome.size())
                                                           : join("next of argument ", result.of);
    outcome.push_back({what, Array(result.mem, {steps_, elements_}), Array(result.mem, {elements_})});
  }
  return outcome;
}

void RandomRun::run_steps(const Graph& graph, const std::vector<Data>& data, std::int64_t from,
                          std::int64_t to, Outcome& outcome) const {
  Scan scan{.steps = to - from,
            .elements = elements_,
            .first_step = first_step_ + from,
            .sources = {},
            .targets = {}};
  scan.sources.resize(graph.arguments.size());
  scan.targets.resize(graph.results.size());
  const std::vector<int> arguments = argument_order(graph), results = result_order(graph);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Data& of = data[i];
    const auto skipped = static_cast<std::size_t>(from * of.row_stride) * size_of(of.values.type);
    scan.sources[static_cast<std::size_t>(arguments[i])] = {.mem = of.values.type,
                                                            .data = of.values.bytes.data() + skipped,
                                                            .row_stride = of.row_stride,
                                                            .map = of.map,
                                                            .indices = of.indices.data()};
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    Column& column = outcome[i];
    const auto skipped = static_cast<std::size_t>(from * elements_) * size_of(column.sequence.type);
    scan.targets[static_cast<std::size_t>(results[i])] = {.sequence = column.sequence.bytes.data() + skipped,
                                                          .row_stride = elements_,
                                                          .last = column.last.bytes.data()};
  }
  interpret(graph, scan);
}

Outcome RandomRun::run(const Graph& graph) const {
  Outcome outcome = room_for(graph);
  run_steps(graph, data_, 0, steps_, outcome);
  return outcome;
}

Outcome RandomRun::run_in_chunks(const Graph& graph) const {
  Outcome outcome = room_for(graph);
  run_steps(graph, data_, 0, cut_, outcome);
  std::vector<Data> carried = data_;
  const std::vector<int> arguments = argument_order(graph), results = result_order(graph);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& result = graph.results[static_cast<std::size_t>(results[i])];
    if (result.gives != Gives::next) continue;
    const auto at = std::find(arguments.begin(), arguments.end(), result.of) - arguments.begin();
    carried[static_cast<std::size_t>(at)] = {.values = outcome[i].last};
  }
  run_steps(graph, carried, cut_, steps_, outcome);
  return outcome;
}

}  // namespace flexsn::test
