#include "trial.h"

#include <algorithm>

#include "backward.h"
#include "environment.h"
#include "error.h"

namespace flexsn {

using namespace ir;

namespace {

bool is_rows(const Argument& argument) {
  return argument.role == Role::input || argument.role == Role::grad_output || argument.per_step;
}

template <class List>
auto pick(Random& random, const List& list) {
  return list[random.next() % std::size(list)];
}

bool chance(Random& random, double probability) { return random.uniform(0, 1) < probability; }

/// Mostly ordinary numbers; zeros, halves, huge and tiny ones, infinities and NaN now and then.
double draw_number(Random& random, const Range& range, double edge_share) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr double edges[] = {0.0,   -0.0, 1,   -1,   0.5,
                              1e-40, 3e38, inf, -inf, std::numeric_limits<double>::quiet_NaN()};
  const double number = chance(random, edge_share) ? pick(random, edges) : random.uniform(-2, 2);
  return number == number ? std::clamp(number, range.low, range.high) : number;
}

std::string key(const char* what, const std::string& name) { return join(what, " ", name); }

}  // namespace

Trial::Trial(const Graph& joint, const Training& training, std::uint64_t seed,
             std::optional<std::int64_t> steps, std::optional<std::int64_t> elements, double edge_share)
    : joint_(joint), sequences_(training.state_sequences), edge_share_(edge_share), wanted_(training.wanted) {
  Random random(seed);
  constexpr std::int64_t some_steps[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 12};
  constexpr std::int64_t some_elements[] = {0, 1, 2, 3, 6, 17, 24};
  steps_ = steps ? *steps : pick(random, some_steps);
  elements_ = elements ? *elements : chance(random, 0.02) ? 513 : pick(random, some_elements);
  first_step_ = static_cast<int>(random.next() % 5);
  // Maps come first: the same seed gives the same layout for every size.
  std::vector<Map> maps;
  for (const Argument& argument : joint.arguments) {
    Map map = Map::element;
    if (argument.role == Role::param) map = static_cast<Map>(random.next() % 3);
    if (argument.role == Role::state && chance(random, 0.3)) map = Map::scalar;
    if (map != Map::element || argument.role == Role::param) layout_[argument.name] = map;
    maps.push_back(map);
  }
  for (std::size_t i = 0; i < joint.arguments.size(); ++i) {
    const Argument& argument = joint.arguments[i];
    // Where the gradient of a state arrives: at each state of the sequence, at the last one, or not at all.
    const bool arrives = argument.role == Role::grad_next;
    const bool given = !arrives || chance(random, 0.7);
    const Mem mem = arrives && sequences_ ? joint.arguments[argument.of].mem : argument.mem;
    data_.push_back(draw(mem, is_rows(argument) || (arrives && sequences_), maps[i], argument.range, random));
    data_.back().given = given;
  }
}

Trial::Data Trial::draw(Mem mem, bool rows, Map map, const Range& range, Random& random) const {
  Data data;
  data.map = map;
  std::int64_t row = map == Map::scalar ? 1 : elements_;
  if (map == Map::indexed) {
    constexpr std::int64_t some[] = {1, 2, 3};
    data.inner = pick(random, some);
    row = data.count = pick(random, some);
    for (std::int64_t n = 0; n < elements_; ++n) data.indices.push_back(n / data.inner % data.count);
  }
  data.row_stride = rows ? row : 0;
  const std::int64_t count = (rows ? steps_ : 1) * row;
  data.values = Array(mem, {count});
  const IeeeEnvironment environment;  // once, not for each number
  for (std::int64_t n = 0; n < count; ++n) data.values.set(n, draw_number(random, range, edge_share_));
  return data;
}

Source Trial::source(const Data& data) const {
  if (!data.given) return {};
  return {.mem = data.values.type,
          .data = data.values.bytes.data(),
          .row_stride = data.row_stride,
          .map = data.map,
          .indices = data.indices.data()};
}

Trial::Outcome Trial::room() const {
  Outcome out;
  for (const Result& result : joint_.results) {
    const bool grad = result.gives == Gives::grad;
    if (result.gives == Gives::output) {
      out[key("output", result.name)] = Array(result.mem, {steps_ * elements_});
      continue;
    }
    const Argument& argument = joint_.arguments[result.of];
    const bool wanted = wanted_.empty() || argument.role != Role::state ||
                        std::find(wanted_.begin(), wanted_.end(), argument.name) != wanted_.end();
    const bool rows = grad ? argument.role == Role::input || argument.per_step : sequences_;
    if (!grad || wanted)
      out[key(grad ? "gradient" : "state", argument.name)] =
          Array(result.mem, {(rows ? steps_ : 1) * elements_});
  }
  return out;
}

Trial::Outcome Trial::by_law() const {
  Outcome out = room();
  const Graph forward = forward_of(joint_);
  Scan scan;
  scan.steps = steps_;
  scan.elements = elements_;
  scan.first_step = first_step_;
  for (std::size_t i = 0; i < forward.arguments.size(); ++i) scan.sources.push_back(source(data_[i]));
  for (const Result& result : forward.results) {
    if (result.gives == Gives::output) {
      scan.targets.push_back(
          {.sequence = out.at(key("output", result.name)).bytes.data(), .row_stride = elements_});
      continue;
    }
    void* to = out.at(key("state", forward.arguments[result.of].name)).bytes.data();
    scan.targets.push_back(sequences_ ? Target{.sequence = to, .row_stride = elements_} : Target{.last = to});
  }
  interpret(forward, scan);
  if (!has_gradients(joint_)) return out;

  BackwardScan backward;
  backward.steps = steps_;
  backward.elements = elements_;
  backward.first_step = first_step_;
  for (std::size_t i = 0; i < joint_.arguments.size(); ++i) {
    const bool arrives = joint_.arguments[i].role == Role::grad_next;
    backward.sources.push_back(arrives && !sequences_ ? Source{} : source(data_[i]));
    backward.last.push_back(arrives && !sequences_ ? source(data_[i]) : Source{});
  }
  for (const Result& result : joint_.results) {
    const auto found =
        result.gives == Gives::grad ? out.find(key("gradient", joint_.arguments[result.of].name)) : out.end();
    backward.gradients.push_back(found == out.end() ? nullptr : found->second.bytes.data());
  }
  interpret_backward(joint_, backward);
  // With no steps a sum over time is +0, which the law leaves to whoever sums over elements.
  for (const Result& result : joint_.results) {
    if (result.gives != Gives::grad || steps_ > 0) continue;
    const Argument& argument = joint_.arguments[result.of];
    if (argument.role == Role::param)
      out[key("gradient", argument.name)] = Array(result.mem, {argument.per_step ? 0 : elements_});
  }
  return out;
}

Trial::Outcome Trial::by_plans(const std::vector<const Plan*>& plans, const Runner& runner) const {
  Outcome out = room();
  std::map<std::pair<Holds, int>, Array> between;  // what forward leaves for backward
  for (const Plan* plan : plans) {
    PlanRun run{.steps = steps_, .elements = elements_, .first_step = first_step_, .buffers = {}};
    for (const Buffer& buffer : plan->buffers) {
      Bound bound;
      const auto given = [&](const Data& data) {
        if (!data.given) return Bound{};
        return Bound{.data = const_cast<std::byte*>(data.values.bytes.data()),
                     .row_stride = data.row_stride,
                     .inner = data.inner,
                     .count = data.count};
      };
      const auto taken = [&](const std::string& name) {
        return Bound{.data = out.at(name).bytes.data(),
                     .row_stride = buffer.lead == Lead::per_step ? elements_ : 0};
      };
      switch (buffer.holds) {
        case Holds::input:
        case Holds::first_state:
        case Holds::param:
          bound = given(data_[buffer.index]);
          break;
        case Holds::grad_output:
          for (std::size_t i = 0; i < joint_.arguments.size(); ++i)
            if (joint_.arguments[i].role == Role::grad_output &&
                joint_.results[joint_.arguments[i].of].name == buffer.name)
              bound = given(data_[i]);
          break;
        case Holds::grad_last_state:
        case Holds::grad_state_sequence:
          for (std::size_t i = 0; i < joint_.arguments.size(); ++i)
            if (joint_.arguments[i].role == Role::grad_next && joint_.arguments[i].of == buffer.index)
              bound = given(data_[i]);
          break;
        case Holds::output:
          bound = taken(key("output", buffer.name));
          break;
        case Holds::state_sequence:
        case Holds::last_state:
          bound = taken(key("state", joint_.arguments[buffer.index].name));
          break;
        case Holds::grad_input:
        case Holds::grad_first_state:
        case Holds::grad_param:
          bound = taken(key("gradient", buffer.name));
          break;
        case Holds::saved:
        case Holds::checkpoint: {
          Array& array = between[{buffer.holds, buffer.index}];
          if (buffer.write) array = Array(buffer.mem, {rows_of(*plan, buffer, steps_) * elements_});
          bound = {.data = array.bytes.data(), .row_stride = elements_};
        }
      }
      run.buffers.push_back(bound);
    }
    runner(*plan, run);
  }
  return out;
}

std::string difference(const Trial::Outcome& a, const Trial::Outcome& b) {
  if (a.size() != b.size()) return join(a.size(), " and ", b.size(), " results");
  for (const auto& [name, x] : a) {
    const auto found = b.find(name);
    if (found == b.end()) return join(name, " is missing");
    const Array& y = found->second;
    if (x.type != y.type || x.size() != y.size()) return join(name, " has another type or size");
    const std::size_t size = size_of(x.type);
    for (std::int64_t n = 0; n < x.size(); ++n) {
      const std::size_t at = static_cast<std::size_t>(n) * size;
      if (std::memcmp(x.bytes.data() + at, y.bytes.data() + at, size) == 0) continue;
      if (x[n] != x[n] && y[n] != y[n]) continue;
      return join(name, " differs at ", n, ": ", x[n], " and ", y[n]);
    }
  }
  return "";
}

}  // namespace flexsn
