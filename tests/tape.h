// A naive tape: the whole loop over time differentiated op by op, to hold the gradients of a scan to.
#pragma once

#include "build.h"
#include "ops.h"

namespace flexsn::test {

using namespace ir;

/// A plain tape: every op of the whole loop is recorded, one entry each, and played back once from the end.
/// It knows ops and who uses whom, and nothing of steps that are differentiated once and run many times.
class Tape {
 public:
  /// Which of its gradients arrive beside those of the outputs.
  enum class At { no_state, last_states, state_sequences };

  Tape(const Graph& step, std::int64_t count, At at) : step_(step), at_(at) {
    graph_.name = "tape";
    for (std::size_t a = 0; a < step.arguments.size(); ++a)
      if (step.arguments[a].role == Role::state) states_[static_cast<int>(a)] = leaf(static_cast<int>(a), "");
    for (std::int64_t t = 0; t < count; ++t) record(t, t + 1 == count);
    play_back();
  }

  /// Reads x_at_0, grad_s_at_0, ...; gives d_x_at_0, d_v, ...
  const Graph& graph() const { return graph_; }

 private:
  struct Entry {
    Id value;                   ///< in graph_
    std::vector<int> operands;  ///< entries that it uses
    enum class Kind { leaf, op, output, state } kind = Kind::op;
    V gradient = {}, arriving = {};
  };

  int add(Entry entry) {
    entries_.push_back(std::move(entry));
    return static_cast<int>(entries_.size()) - 1;
  }

  int leaf(int argument, const std::string& suffix) {
    const Argument& a = step_.arguments[argument];
    const std::string name = a.name + suffix;
    const V value = add_argument(graph_, {.role = Role::input, .name = name, .mem = a.mem});
    const int entry = add({.value = value.id, .operands = {}, .kind = Entry::Kind::leaf});
    if (is_float(value_type(a.mem))) wanted_.push_back({"d_" + name, entry, a.role});
    return entry;
  }

  void record(std::int64_t t, bool last) {
    const std::string suffix = "_at_" + std::to_string(t);
    std::vector<int> places(step_.nodes.size());
    for (std::size_t id = 0; id < step_.nodes.size(); ++id) {
      Node node = step_.nodes[id];
      if (node.op == Op::argument) {
        const int argument = static_cast<int>(node.immediate);
        const bool state = step_.arguments[argument].role == Role::state;
        places[id] = state ? states_.at(argument) : leaf(argument, suffix);
        continue;
      }
      std::vector<int> operands;
      for (Id& operand : node.operands) {
        if (operand == no_id) continue;
        operands.push_back(places[operand]);
        operand = entries_[places[operand]].value;
      }
      if (node.op == Op::step_index)
        node = {.op = Op::constant, .type = node.type, .immediate = static_cast<std::uint64_t>(t)};
      places[id] = add({.value = graph_.append(node), .operands = std::move(operands)});
    }
    // Played back, outputs come first, in their order, then new states.
    const std::vector<int> order = result_order(step_);
    for (auto index = order.rbegin(); index != order.rend(); ++index) {
      const Result& result = step_.results[*index];
      const int from = places[result.value];
      const bool output = result.gives == Gives::output;
      if (!output) states_[result.of] = from;
      if (!is_float(value_type(result.mem))) continue;
      Entry entry{.value = entries_[from].value, .operands = {from}};
      entry.kind = output ? Entry::Kind::output : Entry::Kind::state;
      if (output || at_ == At::state_sequences || (last && at_ == At::last_states))
        entry.arriving = add_argument(
            graph_, {.role = Role::input,
                     .name = "grad_" + (output ? result.name : step_.arguments[result.of].name) + suffix,
                     .mem = result.mem});
      const int place = add(std::move(entry));
      if (!output) states_[result.of] = place;
    }
  }

  void give(int entry, V gradient) {
    V& sum = entries_[entry].gradient;
    sum = sum.exists() ? sum + gradient : gradient;
  }

  void play_back() {
    for (int place = static_cast<int>(entries_.size()) - 1; place >= 0; --place) {
      if (entries_[place].arriving.exists()) give(place, entries_[place].arriving);
      const Entry entry = entries_[place];
      const V value{&graph_, entry.value};
      if (entry.kind == Entry::Kind::output) give(entry.operands[0], entry.gradient);
      // A state that nothing has arrived at passes on the zero that no sum can see.
      if (entry.kind == Entry::Kind::state)
        give(entry.operands[0], entry.gradient.exists() ? entry.gradient : lit(value, -0.0));
      if (entry.kind == Entry::Kind::op && entry.gradient.exists()) differentiate(entry, value);
    }
    for (const Wanted& wanted : wanted_) {
      const V value{&graph_, entries_[wanted.entry].value};
      V gradient = entries_[wanted.entry].gradient;
      if (!gradient.exists()) gradient = lit(value, wanted.role == Role::state ? -0.0 : 0.0);
      graph_.results.push_back(
          {.name = wanted.name, .mem = natural_memory(value.type()), .value = gradient.id});
    }
  }

  void differentiate(const Entry& entry, V value) {
    const Node node = graph_.at(entry.value);
    if (node.op == Op::constant || row_of(node.op).vjp.zero) return;
    V operands[max_arity];
    for (int i = 0; i < row_of(node.op).arity; ++i) operands[i] = {&graph_, node.operands[i]};
    const Grads grads = row_of(node.op).vjp.build(operands, value, entry.gradient);
    for (int i = 0; i < row_of(node.op).arity; ++i)
      if (grads.of[i].exists() && is_float(operands[i].type())) give(entry.operands[i], grads.of[i]);
  }

  struct Wanted {
    std::string name;
    int entry;
    Role role;
  };
  const Graph& step_;
  const At at_;
  Graph graph_;
  std::vector<Entry> entries_;
  std::map<int, int> states_;  ///< for each state argument the entry of its value now
  std::vector<Wanted> wanted_;
};

}  // namespace flexsn::test
