#include "cuda_choices.h"

#include <algorithm>
#include <cmath>

#include "environment.h"
#include "interpret.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr std::size_t most_outcomes = 16;

class Choices {
 public:
  explicit Choices(const CudaBodyTask& task)
      : graph_(task.body->graph),
        outcomes_(graph_.nodes.size()),
        seen_(graph_.nodes.size()),
        hidden_(graph_.nodes.size()) {
    const IeeeEnvironment environment;
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
      const Id value = graph_.arguments[i].value;
      const Type type = graph_.at(value).type;
      if (!task.given[i]) outcomes_[at(value)] = {bits_of(type, -0.0)};
    }
    for (Id id = 0; id < static_cast<Id>(graph_.nodes.size()); ++id) visit(id);
    // Other bodies and other steps see what is kept and carried.
    for (std::size_t i = 0; i < graph_.results.size(); ++i) {
      const Slot::Kind kind = task.body->results[i].kind;
      if (task.wanted[i] && (kind == Slot::Kind::carry || kind == Slot::Kind::keep))
        hide(graph_.results[i].value);
    }
  }

  const std::vector<bool>& hidden() const { return hidden_; }

 private:
  using Outcomes = std::vector<std::uint64_t>;  ///< bits; none where they are not known

  static std::size_t at(Id id) { return static_cast<std::size_t>(id); }

  void visit(Id id) {
    const Node& node = graph_.at(id);
    Outcomes& outcomes = outcomes_[at(id)];
    if (node.type == Type::b1 || node.op == Op::argument) return;
    if (node.op == Op::constant)
      outcomes = {node.immediate};
    else if (node.op == Op::select)
      outcomes = either(arm(node, 1), arm(node, 2));
    else if (is_truth_value(node))
      outcomes = {bits_of(node.type, 0), bits_of(node.type, 1)};
    else if (!row_of(node.op).is_leaf())
      outcomes = computed(node);
    if (outcomes.size() > most_outcomes) {
      hide(id);
      outcomes.clear();
    }
    if (is_mistaken(node.type, outcomes)) hide(id);
  }

  bool is_truth_value(const Node& node) const {
    const bool converts = node.op == Op::to_f32 || node.op == Op::to_f64 || node.op == Op::to_i32;
    return converts && graph_.at(node.operands[0]).type == Type::b1;
  }

  /// What a select may give by its operand `index`. Where it asks whether that operand equals a constant, the
  /// compiler takes the constant for it.
  Outcomes arm(const Node& select, int index) const {
    const Id value = select.operands[index];
    const Node& question = graph_.at(select.operands[0]);
    if (question.op == Op::eq || question.op == Op::ne)
      for (int i : {0, 1})
        if (question.operands[i] == value && graph_.at(question.operands[1 - i]).op == Op::constant)
          return {graph_.at(question.operands[1 - i]).immediate};
    return outcomes_[at(value)];
  }

  static Outcomes either(Outcomes a, const Outcomes& b) {
    if (a.empty() || b.empty()) return {};
    for (std::uint64_t bits : b) add(a, bits);
    return a;
  }

  static void add(Outcomes& outcomes, std::uint64_t bits) {
    if (std::find(outcomes.begin(), outcomes.end(), bits) == outcomes.end()) outcomes.push_back(bits);
  }

  /// The row's results on all outcomes of its operands.
  Outcomes computed(const Node& node) {
    const Row& row = row_of(node.op);
    Type types[max_arity] = {};
    std::size_t count = 1;
    for (int i = 0; i < row.arity; ++i) {
      types[i] = graph_.at(node.operands[i]).type;
      count *= outcomes_[at(node.operands[i])].size();
    }
    if (count > most_outcomes)
      for (int i = 0; i < row.arity; ++i) hide(node.operands[i]);
    if (count == 0 || count > most_outcomes) return {};
    Outcomes results;
    for (std::size_t one = 0; one < count; ++one) {
      std::uint64_t bits[max_arity] = {};
      std::size_t rest = one;
      for (int i = 0; i < row.arity; ++i) {
        const Outcomes& from = outcomes_[at(node.operands[i])];
        bits[i] = from[rest % from.size()];
        rest /= from.size();
        if (row.raw && is_float(types[i]) && std::isnan(number_of(types[i], bits[i]))) return {};
      }
      add(results, evaluate(node.op, types, bits));
    }
    return results;
  }

  static bool is_mistaken(Type type, const Outcomes& outcomes) {
    if (type != Type::f32) return false;
    const auto has = [&](double value) {
      return std::find(outcomes.begin(), outcomes.end(), bits_of(type, value)) != outcomes.end();
    };
    return has(-0.0) && (has(1) || has(-1));
  }

  /// Hides the choices that the value is made of.
  void hide(Id id) {
    const Node& node = graph_.at(id);
    if (outcomes_[at(id)].size() < 2 || seen_[at(id)]) return;
    seen_[at(id)] = true;
    hidden_[at(id)] = node.op == Op::select || is_truth_value(node);
    for (Id operand : node.operands)
      if (operand != no_id) hide(operand);
  }

  const Graph& graph_;
  std::vector<Outcomes> outcomes_;
  std::vector<bool> seen_, hidden_;
};

}  // namespace

std::vector<bool> hidden_choices(const CudaBodyTask& task) { return Choices(task).hidden(); }

}  // namespace flexsn
