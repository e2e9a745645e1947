#include "backward.h"

#include "environment.h"
#include "grad.h"

namespace flexsn {

using namespace ir;

namespace {

/// A row of values, f32 or f64.
using Row = std::vector<std::byte>;

template <class F>
void add_as(Row& to, const Row& from) {
  F* sums = reinterpret_cast<F*>(to.data());
  const F* values = reinterpret_cast<const F*>(from.data());
  for (std::size_t n = 0; n < to.size() / sizeof(F); ++n) sums[n] += values[n];
}

void add(Type type, Row& to, const Row& from) {
  type == Type::f64 ? add_as<double>(to, from) : add_as<float>(to, from);
}

Row filled(Type type, std::int64_t count, double value) {
  Row row(static_cast<std::size_t>(count) * size_of(natural_memory(type)));
  const std::uint64_t bits = bits_of(type, value);
  for (std::size_t at = 0; at < row.size(); at += size_of(natural_memory(type)))
    std::memcpy(row.data() + at, &bits, size_of(natural_memory(type)));
  return row;
}

class BackwardScanner {
 public:
  BackwardScanner(const Graph& joint, const BackwardScan& scan) : joint_(joint), scan_(scan) {}

  void run() {
    run_forward();
    carries_.resize(joint_.arguments.size());
    for (const Result& result : joint_.results)
      if (is_param(result)) sums_[result.of] = filled(type_of(result), scan_.elements, -0.0);
    for (std::int64_t t = scan_.steps - 1; t >= 0; --t) step(t);
    write_sums();
  }

 private:
  Type type_of(const Result& result) const { return value_type(result.mem); }
  bool is_param(const Result& result) const {
    return result.gives == Gives::grad && joint_.arguments[result.of].role == Role::param &&
           !joint_.arguments[result.of].per_step;
  }

  /// The states before each step, in the states' own memory types.
  void run_forward() {
    const Graph forward = forward_of(joint_);
    Scan scan;
    scan.steps = scan_.steps;
    scan.elements = scan_.elements;
    scan.first_step = scan_.first_step;
    for (std::size_t i = 0; i < forward.arguments.size(); ++i) scan.sources.push_back(scan_.sources[i]);
    for (const Result& result : forward.results) {
      if (result.gives != Gives::next) {
        scan.targets.push_back({});
        continue;
      }
      std::vector<std::byte>& states = states_[result.of];
      states.resize(static_cast<std::size_t>(scan_.steps * scan_.elements) * size_of(result.mem));
      scan.targets.push_back({.sequence = states.data(), .row_stride = scan_.elements});
    }
    interpret(forward, scan);
  }

  /// A row of a source as values.
  Row read(const Source& source, std::int64_t t) const {
    Row row(static_cast<std::size_t>(scan_.elements) * size_of(natural_memory(value_type(source.mem))));
    const auto* from = static_cast<const std::byte*>(source.data) +
                       t * source.row_stride * static_cast<std::int64_t>(size_of(source.mem));
    load(source.mem, from, row.data(), scan_.elements);
    return row;
  }

  /// What arrives at the new state of argument `index` in step t.
  Row& arrived(std::size_t index, std::int64_t t) {
    std::optional<Row>& carry = carries_[index];
    const Type type = value_type(joint_.arguments[index].mem);
    if (t + 1 == scan_.steps && scan_.last[index].data != nullptr) carry = read(scan_.last[index], 0);
    if (scan_.sources[index].data != nullptr) {
      Row sequence = read(scan_.sources[index], t);
      if (carry)
        add(type, *carry, sequence);
      else
        carry = std::move(sequence);
    }
    if (!carry) carry = filled(type, scan_.elements, -0.0);
    return *carry;
  }

  void step(std::int64_t t) {
    Scan one;
    one.steps = 1;
    one.elements = scan_.elements;
    one.first_step = scan_.first_step + t;
    for (std::size_t i = 0; i < joint_.arguments.size(); ++i) one.sources.push_back(source_at(i, t));
    std::map<int, Row> given;  // gradients of states and parameters in this step
    for (std::size_t i = 0; i < joint_.results.size(); ++i) one.targets.push_back(target_at(i, t, given));
    interpret(joint_, one);
    for (auto& [of, row] : given) {
      const Argument& argument = joint_.arguments[of];
      if (argument.role == Role::param) add(value_type(gradient_memory(argument)), sums_[of], row);
    }
    for (std::size_t i = 0; i < joint_.arguments.size(); ++i) {
      if (joint_.arguments[i].role != Role::grad_next) continue;
      // A state whose old value nothing depends on passes nothing on.
      const auto carried = given.find(joint_.arguments[i].of);
      carries_[i].reset();
      if (carried == given.end()) continue;
      carries_[i] = std::move(carried->second);
      given.erase(carried);
    }
    passed_on_ = std::move(given);
  }

  Source source_at(std::size_t index, std::int64_t t) {
    const Argument& argument = joint_.arguments[index];
    Source source = scan_.sources[index];
    if (argument.role == Role::grad_next) {
      const Mem mem = value_type(argument.mem) == Type::f64 ? Mem::f64 : Mem::f32;
      return {.mem = mem, .data = arrived(index, t).data()};
    }
    if (argument.role == Role::state) {
      if (t == 0) return source;
      const std::size_t row = static_cast<std::size_t>(scan_.elements) * size_of(argument.mem);
      return {.mem = argument.mem,
              .data = states_.at(static_cast<int>(index)).data() + static_cast<std::size_t>(t - 1) * row};
    }
    const bool moves = argument.role != Role::param || argument.per_step;
    if (moves)
      source.data = static_cast<const std::byte*>(source.data) +
                    t * source.row_stride * static_cast<std::int64_t>(size_of(source.mem));
    return source;
  }

  Target target_at(std::size_t index, std::int64_t t, std::map<int, Row>& given) {
    const Result& result = joint_.results[index];
    if (result.gives != Gives::grad) return {};
    const Argument& argument = joint_.arguments[result.of];
    if (argument.role == Role::input || argument.per_step) {
      auto* to = static_cast<std::byte*>(scan_.gradients[index]);
      return {.last = to == nullptr
                          ? nullptr
                          : to + t * scan_.elements * static_cast<std::int64_t>(size_of(result.mem))};
    }
    Row& row = given[result.of];
    row.resize(static_cast<std::size_t>(scan_.elements) * size_of(result.mem));
    return {.last = row.data()};
  }

  void write_sums() {
    for (std::size_t i = 0; i < joint_.results.size(); ++i) {
      const Result& result = joint_.results[i];
      if (result.gives != Gives::grad || scan_.gradients[i] == nullptr) continue;
      if (is_param(result)) copy(sums_[result.of], scan_.gradients[i]);
      if (joint_.arguments[result.of].role != Role::state) continue;
      // Nothing arrives at its new value: what the first step gave is all there is.
      if (const auto found = passed_on_.find(result.of); found != passed_on_.end())
        copy(found->second, scan_.gradients[i]);
      for (std::size_t a = 0; a < joint_.arguments.size(); ++a) {
        if (joint_.arguments[a].role != Role::grad_next || joint_.arguments[a].of != result.of) continue;
        // With no steps the first state is the last.
        if (scan_.steps == 0 && scan_.last[a].data != nullptr) carries_[a] = read(scan_.last[a], 0);
        copy(carries_[a] ? *carries_[a] : filled(type_of(result), scan_.elements, 0), scan_.gradients[i]);
      }
    }
  }

  static void copy(const Row& row, void* to) {
    if (!row.empty()) std::memcpy(to, row.data(), row.size());
  }

  const Graph& joint_;
  const BackwardScan& scan_;
  std::map<int, std::vector<std::byte>> states_;  ///< for each state argument: its value after each step
  std::vector<std::optional<Row>> carries_;       ///< for each argument that is a gradient of a new state
  std::map<int, Row> passed_on_;                  ///< gradients of states at whose new values none arrives
  std::map<int, Row> sums_;                       ///< for each parameter: its gradient, summed over time
};

}  // namespace

void interpret_backward(const Graph& joint, const BackwardScan& scan) {
  const IeeeEnvironment environment;  // for the sums over time; each step sets its own
  BackwardScanner(joint, scan).run();
}

}  // namespace flexsn
