#include "partition.h"

#include <algorithm>

#include "cuda_shape.h"
#include "error.h"
#include "expand.h"
#include "mincut.h"
#include "ops.h"

namespace flexsn {

using namespace ir;
using What = Port::What;

namespace {

constexpr double resolution = 1 << 10;   // capacities are whole numbers of this part of a byte
constexpr double largest_weight = 1024;  // of a byte kept beside a byte moved, under a budget

bool is_op(const Node& node) { return node.op != Op::constant && node.op != Op::argument; }

/// Takes nodes of the joint graph into a part: what is given becomes an argument, the rest is copied.
class Extraction {
 public:
  Extraction(const Graph& joint, std::string name) : joint_(joint), given_(joint.nodes.size()) {
    part_.graph.name = std::move(name);
    part_.graph.files = joint.files;
    part_.graph.expanded = joint.expanded;
  }

  /// `value` is an argument of the part; declare in the order in which arguments are to stand.
  void give(Id value, Argument argument, Port port) {
    argument.name = unused(argument.name, part_.graph.arguments);
    given_[value] = add_argument(part_.graph, std::move(argument)).id + 1;
    part_.arguments.push_back(port);
  }

  /// An argument of the part that stands for no value of the joint graph.
  void add_unread(Argument argument, Port port) {
    argument.name = unused(argument.name, part_.graph.arguments);
    add_argument(part_.graph, std::move(argument));
    part_.arguments.push_back(port);
  }

  bool is_given(Id value) const { return given_[value] != 0; }

  /// The nodes that `roots` need and that are not given.
  std::vector<bool> needed(const std::vector<Id>& roots) const {
    std::vector<bool> need(joint_.nodes.size());
    for (Id root : roots) need[root] = given_[root] == 0;
    for (std::size_t id = joint_.nodes.size(); id-- > 0;) {
      if (!need[id]) continue;
      for (Id operand : joint_.nodes[id].operands)
        if (operand != no_id && given_[operand] == 0) need[operand] = true;
    }
    return need;
  }

  /// Copies what `roots` need; afterwards `moved` finds them.
  void copy(const std::vector<Id>& roots) {
    const std::vector<bool> need = needed(roots);
    moved_.assign(joint_.nodes.size(), no_id);
    for (std::size_t id = 0; id < joint_.nodes.size(); ++id) {
      if (given_[id] != 0) moved_[id] = given_[id] - 1;
      if (!need[id]) continue;
      Node node = joint_.nodes[id];
      internal_check(node.op != Op::argument, "a part misses an argument");
      for (Id& operand : node.operands)
        if (operand != no_id) operand = moved_[operand];
      moved_[id] = part_.graph.append(node, joint_.debug[id]);
    }
  }

  Id moved(Id value) const { return moved_[value]; }

  void output(std::string name, Mem mem, Id moved_value, Port port) {
    part_.graph.results.push_back({.gives = Gives::output,
                                   .name = unused(std::move(name), part_.graph.results),
                                   .mem = mem,
                                   .value = moved_value});
    part_.results.push_back(port);
  }

  /// The next value of the part's argument `state`.
  void next(int state, Id moved_value, Port port) {
    part_.graph.results.push_back(
        {.gives = Gives::next, .of = state, .mem = part_.graph.arguments[state].mem, .value = moved_value});
    part_.results.push_back(port);
  }

  Graph& graph() { return part_.graph; }
  Part take() { return std::move(part_); }

 private:
  /// A name that nothing in `list` has.
  template <class List>
  static std::string unused(std::string name, const List& list) {
    while (std::any_of(list.begin(), list.end(), [&](const auto& item) { return item.name == name; }))
      name += "_";
    return name;
  }

  const Graph& joint_;
  Part part_;
  std::vector<Id> given_;  ///< for each value: its argument's node plus one; 0 where it is not given
  std::vector<Id> moved_;
};

Argument read(const std::string& name, Mem mem) { return {.role = Role::input, .name = name, .mem = mem}; }

/// Gives the inputs, parameters and arriving gradients that `roots` need.
void give_arguments(const Graph& joint, Extraction& part, const std::vector<Id>& roots) {
  const std::vector<bool> need = part.needed(roots);
  for (std::size_t a = 0; a < joint.arguments.size(); ++a) {
    const Argument& argument = joint.arguments[a];
    const int index = static_cast<int>(a);
    if (!need[argument.value]) continue;
    if (argument.role == Role::input) part.give(argument.value, argument, {What::input, index});
    if (argument.role == Role::param) part.give(argument.value, argument, {What::param, index});
    if (argument.role == Role::grad_output)
      part.give(argument.value, read(argument.name, argument.mem), {What::grad_output, index});
  }
}

/// What a step of one kernel takes: bytes moved and exact ops, slow ones counted for more.
struct Taken {
  double bytes = 0, work = 0;
};

/// A way to hand values over, before the parts are built.
struct Choice {
  int segment = 0;
  std::vector<Id> handed;  ///< read from memory by each step of backward
  std::vector<Id> kept;
  double bytes_kept = 0, cost = 0;
};

class Partitioner {
 public:
  Partitioner(const Graph& joint, const Training& training)
      : joint_(joint), training_(training), hoisted_(hoistable(joint)) {
    find_sides();
    find_states();
  }

  Partition run() {
    const Choice choice = best();
    Partition out;
    out.segment = choice.segment;
    out.kept = choice.kept;
    out.bytes_kept = choice.bytes_kept;
    out.cost = choice.cost;
    out.floor = floor();
    for (Id id : choice.handed)
      if (!is_param(id)) out.handed.push_back(handed(id, out.handed));  // backward reads those by itself
    build_backward(out);
    if (choice.segment > 0) build_rebuild(out);
    out.forward = forward_part(joint_, out.handed);
    std::erase_if(out.recomputed, [&](Id id) { return !in_forward_[id]; });
    std::sort(out.recomputed.begin(), out.recomputed.end());
    out.recomputed.erase(std::unique(out.recomputed.begin(), out.recomputed.end()), out.recomputed.end());
    return out;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    user_error("neuron '", joint_.name, "': ", parts...);
  }

  // ---- what there is -------------------------------------------------------------------------------

  void find_sides() {
    const std::size_t count = joint_.nodes.size();
    backward_.resize(count);
    for (std::size_t id = 0; id < count; ++id) {
      const Node& node = joint_.nodes[id];
      if (node.op == Op::argument) {
        const Role role = joint_.arguments[node.immediate].role;
        backward_[id] = role == Role::grad_output || role == Role::grad_next;
      }
      for (Id operand : node.operands)
        if (operand != no_id && backward_[operand]) backward_[id] = true;
    }
    std::vector<bool> live(count);  // for backward
    for (const Result& result : joint_.results) {
      if (result.gives == Gives::grad) live[result.value] = true;
      if (result.gives == Gives::grad || !backward_[result.value]) continue;
      fail(result.gives == Gives::output
               ? join("output '", result.name, "'")
               : join("the update of state '", joint_.arguments[result.of].name, "'"),
           " depends on a gradient that arrives, but forward runs before any gradient is there; compute it "
           "from inputs, states and parameters");
    }
    needed_.assign(count, false);
    for (std::size_t id = count; id-- > 0;) {
      if (!live[id]) continue;
      for (Id operand : joint_.nodes[id].operands)
        if (operand != no_id) live[operand] = true;
    }
    for (std::size_t id = 0; id < count; ++id) {
      if (!live[id] || !backward_[id]) continue;
      gradients_.push_back(static_cast<Id>(id));
      for (Id operand : joint_.nodes[id].operands)
        if (operand != no_id && must_be_handed(operand)) needed_[operand] = true;
    }
    for (const Result& result : joint_.results)
      if (result.gives == Gives::grad && must_be_handed(result.value)) needed_[result.value] = true;
    relevant_ = needed_;
    for (std::size_t id = count; id-- > 0;) {
      if (!relevant_[id]) continue;
      for (Id operand : joint_.nodes[id].operands)
        if (operand != no_id && must_be_handed(operand)) relevant_[operand] = true;
    }
  }

  /// A value of forward that is not there for backward anyhow, as constants, parameters (but for full ones),
  /// step and element numbers and what depends on them only are.
  bool must_be_handed(Id id) const {
    const Node& node = joint_.at(id);
    if (backward_[id] || hoisted_[id]) return false;
    if (node.op == Op::argument) return !is_param(id) || is_input(id);
    return is_op(node) && !row_of(node.op).is_leaf();
  }

  /// For each state argument its new value, and what the states that backward needs are made of.
  void find_states() {
    next_.assign(joint_.arguments.size(), no_id);
    for (const Result& result : joint_.results)
      if (result.gives == Gives::next) next_[result.of] = result.value;
    std::vector<Id> roots;
    for (std::size_t id = 0; id < joint_.nodes.size(); ++id)
      if (needed_[id]) roots.push_back(static_cast<Id>(id));
    recurrent_ = closure(roots, true);
    for (const Result& result : joint_.results)
      if (result.gives != Gives::grad) given_.push_back(result.value);
    in_forward_ = ancestors(given_);
  }

  /// What `roots` are made of, through time; without_roots: only what their states' updates are made of.
  std::vector<bool> closure(const std::vector<Id>& roots, bool without_roots) const {
    std::vector<bool> all = ancestors(roots);
    std::vector<Id> updates;
    for (;;) {
      updates.clear();
      for (std::size_t a = 0; a < joint_.arguments.size(); ++a)
        if (joint_.arguments[a].role == Role::state && all[joint_.arguments[a].value])
          updates.push_back(next_[a]);
      std::vector<Id> more = roots;
      more.insert(more.end(), updates.begin(), updates.end());
      std::vector<bool> grown = ancestors(more);
      if (grown == all) break;
      all = std::move(grown);
    }
    return without_roots ? ancestors(updates) : all;
  }

  std::vector<bool> ancestors(const std::vector<Id>& roots) const {
    std::vector<bool> marked(joint_.nodes.size());
    for (Id root : roots) marked[root] = true;
    for (std::size_t id = joint_.nodes.size(); id-- > 0;) {
      if (!marked[id]) continue;
      for (Id operand : joint_.nodes[id].operands)
        if (operand != no_id) marked[operand] = true;
    }
    return marked;
  }

  bool has_role(Id id, Role role) const {
    const Node& node = joint_.at(id);
    return node.op == Op::argument && joint_.arguments[node.immediate].role == role;
  }

  bool is_param(Id id) const { return has_role(id, Role::param); }

  /// An input, or a parameter that is as large.
  bool is_input(Id id) const {
    if (!is_param(id)) return has_role(id, Role::input);
    const std::vector<std::string>& full = training_.full_step_params;
    return std::find(full.begin(), full.end(), joint_.arguments[joint_.at(id).immediate].name) != full.end();
  }

  double bytes_of(Id id) const { return static_cast<double>(size_of(memory_of(joint_, id))); }

  /// Exact ops of one node, slow ones for more; none where it runs once a call.
  double work_of(Id id) const { return is_op(joint_.at(id)) && !hoisted_[id] ? exact_work(joint_, id) : 0; }

  /// Where a value is in memory without being saved: its result, if it is one that forward writes.
  std::optional<Port> written(Id id) const {
    for (std::size_t r = 0; r < joint_.results.size(); ++r) {
      const Result& result = joint_.results[r];
      if (result.value != id) continue;
      // What is wider than the value itself is no home for it: saving it costs no more.
      if (size_of(result.mem) > size_of(memory_of(joint_, id))) continue;
      if (result.gives == Gives::output) return Port{What::output, static_cast<int>(r)};
      if (result.gives == Gives::next && training_.state_sequences) return Port{What::sequence, result.of};
    }
    return {};
  }

  bool is_free_to_write(Id id) const { return is_input(id) || written(id).has_value(); }

  // ---- the two families ------------------------------------------------------------------------------

  /// The cheapest set of values that backward can do with: each costs `hand(id)`, and computing one again
  /// `compute(id)`, negative where it cannot be.
  template <class Hand, class Compute>
  std::vector<Id> cut(const Hand& hand, const Compute& compute) const {
    const int count = static_cast<int>(joint_.nodes.size()), source = 2 * count, sink = source + 1;
    const auto whole = [](double bytes) {
      return static_cast<std::int64_t>(std::llround(bytes * resolution));
    };
    Network network(2 * count + 2);
    for (Id id = 0; id < count; ++id) {
      if (!relevant_[id]) continue;
      network.connect(2 * id, 2 * id + 1, whole(hand(id)));
      const double again = compute(id);
      if (again != 0) network.connect(source, 2 * id, again < 0 ? Network::unlimited : whole(again));
      if (needed_[id]) network.connect(2 * id + 1, sink, Network::unlimited);
      for (Id operand : joint_.at(id).operands)
        if (operand != no_id && relevant_[operand])
          network.connect(2 * operand + 1, 2 * id, Network::unlimited);
    }
    const std::vector<bool> side = network.sink_side(source, sink);
    std::vector<Id> chosen;
    for (Id id = 0; id < count; ++id)
      if (relevant_[id] && !side[2 * id] && side[2 * id + 1]) chosen.push_back(id);
    return chosen;
  }

  /// What only gradients need runs once in any case, in forward or in backward.
  double again_cost(Id id) const { return in_forward_[id] ? work_of(id) * training_.costs.op : 0; }
  double compute_cost(Id id, double busy = 1) const {
    return is_op(joint_.at(id)) ? busy * again_cost(id) : -1;
  }

  /// Forward where it saves these values for each step.
  Taken forward_that_saves(const std::vector<Id>& saved) const {
    std::vector<Id> roots = given_;
    roots.insert(roots.end(), saved.begin(), saved.end());
    const std::vector<bool> runs = ancestors(roots);
    Taken taken;
    for (Id id : saved) taken.bytes += bytes_of(id);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Id id = static_cast<Id>(i);
      if (!runs[i]) continue;
      if (is_input(id)) taken.bytes += bytes_of(id);
      taken.work += work_of(id);
    }
    for (const Result& result : joint_.results)
      if (result.gives == Gives::output || (result.gives == Gives::next && training_.state_sequences))
        taken.bytes += static_cast<double>(size_of(result.mem));
    return taken;
  }

  /// Backward where all that it needs of forward is at hand.
  Taken gradients_alone() const {
    Taken taken;
    for (Id id : gradients_) {
      if (has_role(id, Role::grad_output)) taken.bytes += bytes_of(id);
      taken.work += work_of(id);
    }
    for (const Result& result : joint_.results)
      if (result.gives == Gives::grad && is_input(joint_.arguments[result.of].value))
        taken.bytes += static_cast<double>(size_of(result.mem));
    return taken;
  }

  double cost_of(const Taken& kernel) const {
    const double arithmetic = kernel.work * training_.costs.op;
    return kernel.bytes + arithmetic - training_.costs.hidden * std::min(kernel.bytes, arithmetic);
  }

  /// Values saved for each step; `weight` is what a byte kept alive costs beside the traffic. It differs a
  /// little from value to value, so that of several alike some can be saved and some not. `busy` is the share
  /// of arithmetic that counts.
  Choice saved_per_step(double weight, double busy = 1) const {
    const double slope = weight / (8.0 * static_cast<double>(joint_.nodes.size()));
    return priced(
        cut([&](Id id) { return bytes_of(id) * ((is_free_to_write(id) ? 1 : 2) + weight + slope * id); },
            [&](Id id) { return compute_cost(id, busy); }));
  }

  Choice everything() const {
    std::vector<Id> all;
    for (std::size_t id = 0; id < joint_.nodes.size(); ++id)
      if (needed_[id]) all.push_back(static_cast<Id>(id));
    return priced(std::move(all));
  }

  Choice priced(std::vector<Id> handed) const {
    Choice choice;
    choice.handed = std::move(handed);
    Taken backward = gradients_alone();
    std::vector<Id> saved;
    for (Id id : choice.handed) {
      choice.bytes_kept += bytes_of(id);
      if (!is_free_to_write(id)) saved.push_back(id);
    }
    backward.bytes += choice.bytes_kept;
    for (Id id : computed_again(choice.handed)) backward.work += work_of(id);
    choice.cost = cost_of(forward_that_saves(saved)) + cost_of(backward);
    return choice;
  }

  /// The ops that run in a step of backward where these values are given and that need no gradient.
  std::vector<Id> computed_again(const std::vector<Id>& given) const {
    std::vector<bool> is_given(joint_.nodes.size()), again = needed_;
    for (Id id : given) is_given[id] = true;
    std::vector<Id> ids;
    for (std::size_t id = joint_.nodes.size(); id-- > 0;) {
      if (!again[id] || is_given[id]) continue;
      if (is_op(joint_.nodes[id])) ids.push_back(static_cast<Id>(id));
      for (Id operand : joint_.nodes[id].operands)
        if (operand != no_id && relevant_[operand]) again[operand] = true;
    }
    return ids;
  }

  /// Of a value that is kept for the steps of a segment.
  double kept_bytes(Id id) const {
    const int bytes = static_cast<int>(size_of(natural_memory(joint_.at(id).type)));
    return std::max(bytes, training_.costs.smallest);
  }

  /// Values rebuilt from a checkpoint of the states, for each number of steps between two; none where
  /// backward needs no state.
  std::vector<Choice> rebuilt(const std::vector<int>& segments) const {
    const std::vector<Id> crossing =
        cut([&](Id id) { return kept_bytes(id) * training_.costs.keep + 1 / resolution; },
            [&](Id id) {
              // What the states' updates need runs in the rebuild anyhow; the rest runs once, here or there.
              const double again = compute_cost(id);
              return again < 0 || recurrent_[id] ? again : 0;
            });
    const std::vector<bool> runs = closure(without_inputs(crossing), false);
    const std::vector<int> states = states_in(runs);
    if (states.empty()) return {};
    Choice choice;
    for (Id id : crossing) (is_input(id) && !runs[id] ? choice.handed : choice.kept).push_back(id);
    const Taken forward = forward_that_saves({});
    Taken backward = gradients_alone();
    std::vector<Id> inputs = choice.handed;
    double kept = 0, checkpoint = 0, read = 0;
    for (Id id : choice.kept) kept += kept_bytes(id);
    for (int state : states) checkpoint += static_cast<double>(size_of(joint_.arguments[state].mem));
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Id id = static_cast<Id>(i);
      if (runs[i] && is_input(id)) inputs.push_back(id);
      if (runs[i]) backward.work += work_of(id);
    }
    for (Id id : inputs) read += bytes_of(id);
    std::vector<bool> computed(joint_.nodes.size());
    for (Id id : computed_again(crossing)) {
      backward.work += work_of(id);
      computed[id] = true;
    }
    for (Id id : gradients_) computed[id] = is_op(joint_.at(id));
    // States and what a step computes; a parameter, its sum, what it is multiplied with and the product.
    double carried = 4.0 * alive_at_once(joint_, computed) + 4 * summed();
    for (int state : states) carried += kept_bytes(joint_.arguments[state].value);
    std::vector<Choice> list;
    for (int segment : segments) {
      Choice& one = list.emplace_back(choice);
      Taken saving = forward, reading = backward;
      saving.bytes += checkpoint / segment;
      reading.bytes += read + checkpoint / segment;
      one.segment = segment;
      one.bytes_kept = read + checkpoint / segment;
      one.cost =
          cost_of(saving) + cost_of(reading) + kept * training_.costs.keep * (1 - training_.costs.hidden);
      if (training_.costs.registers && segment > training_.costs.at_once)
        one.cost +=
            register_cost(training_.costs, training_.costs.at_once, loaded(inputs), carried, backward.work) +
            pieces_cost(training_.costs, segment, kept, loaded(inputs), reading.bytes, reading.work);
      else if (training_.costs.registers)
        one.cost += register_cost(training_.costs, segment, kept + loaded(inputs), carried, backward.work);
      else if (segment * kept > training_.costs.room)
        one.cost += 2 * kept;
    }
    return list;
  }

  /// Bytes of rows that each step of backward loads, these inputs among them, as they are kept.
  double loaded(const std::vector<Id>& inputs) const {
    double bytes = 0;
    for (Id id : inputs) bytes += kept_bytes(id);
    for (Id id : gradients_)
      if (has_role(id, Role::grad_output) || (training_.state_sequences && has_role(id, Role::grad_next)))
        bytes += kept_bytes(id);
    return bytes;
  }

  /// Bytes of the sums of parameters' gradients.
  double summed() const {
    double bytes = 0;
    for (const Result& result : joint_.results) {
      if (result.gives != Gives::grad) continue;
      const Argument& argument = joint_.arguments[result.of];
      if (argument.role == Role::param && !argument.per_step) bytes += kept_bytes(argument.value);
    }
    return bytes;
  }

  /// The fewest bytes that get backward its values, were arithmetic and checkpoints free: the smallest cut,
  /// or the inputs that the values are made of.
  double floor() const {
    double saved = 0, inputs = 0;
    for (Id id : cut([&](Id value) { return bytes_of(value) * (is_free_to_write(value) ? 1 : 2); },
                     [&](Id value) { return is_op(joint_.at(value)) ? 0.0 : -1.0; }))
      saved += bytes_of(id) * (is_free_to_write(id) ? 1 : 2);
    std::vector<Id> roots;
    for (std::size_t id = 0; id < joint_.nodes.size(); ++id)
      if (needed_[id]) roots.push_back(static_cast<Id>(id));
    const std::vector<bool> made_of = closure(roots, false);
    for (std::size_t id = 0; id < made_of.size(); ++id)
      if (made_of[id] && is_input(static_cast<Id>(id))) inputs += bytes_of(static_cast<Id>(id));
    return std::min(saved, inputs);
  }

  std::vector<Id> without_inputs(std::vector<Id> ids) const {
    std::erase_if(ids, [&](Id id) { return is_input(id); });
    return ids;
  }

  std::vector<int> states_in(const std::vector<bool>& runs) const {
    std::vector<int> states;
    for (std::size_t a = 0; a < joint_.arguments.size(); ++a)
      if (joint_.arguments[a].role == Role::state && runs[joint_.arguments[a].value])
        states.push_back(static_cast<int>(a));
    return states;
  }

  /// Ever dearer bytes until the budget is kept, then as cheap ones as just keep it; and the fewest bytes
  /// there can be, whatever they cost.
  void save_within_budget(std::vector<Choice>& list) const {
    double cheap = 0, dear = 1.0 / 16;
    for (; dear <= largest_weight; cheap = dear, dear *= 4) {
      list.push_back(saved_per_step(dear));
      if (list.back().bytes_kept <= *training_.budget) break;
    }
    for (int round = 0; round < 12 && dear <= largest_weight; ++round) {
      const double weight = (cheap + dear) / 2;
      list.push_back(saved_per_step(weight));
      (list.back().bytes_kept <= *training_.budget ? dear : cheap) = weight;
    }
    list.push_back(
        priced(cut([&](Id id) { return bytes_of(id) + (is_free_to_write(id) ? 1 : 2) / resolution; },
                   [&](Id id) { return is_op(joint_.at(id)) ? 0.0 : -1.0; })));
  }

  std::vector<Choice> candidates() const {
    std::vector<Choice> list;
    // A number of steps between checkpoints asks for checkpoints.
    const bool rebuild = training_.saving == Saving::rebuild || training_.segment != 0;
    const bool any = training_.saving == Saving::automatic && !rebuild;
    if (training_.saving == Saving::everything) list.push_back(everything());
    if (any || rebuild) {
      std::vector<int> segments;
      for (int k = 2; k <= training_.costs.longest; k *= 2) segments.push_back(k);
      if (training_.segment != 0) segments = {training_.segment};
      list = rebuilt(segments);
    }
    if (any || training_.saving == Saving::per_step || list.empty()) {
      if (training_.costs.hidden > 0) list.push_back(saved_per_step(0, 1 - training_.costs.hidden));
      list.push_back(saved_per_step(0));
      if (training_.budget && list.back().bytes_kept > *training_.budget) save_within_budget(list);
    }
    return list;
  }

  Choice best() const {
    const std::vector<Choice> list = candidates();
    const Choice* best = nullptr;
    double least = list.front().bytes_kept;
    for (const Choice& choice : list) {
      least = std::min(least, choice.bytes_kept);
      if (training_.budget && choice.bytes_kept > *training_.budget) continue;
      if (best == nullptr || choice.cost < best->cost) best = &choice;
    }
    if (best == nullptr)
      fail("training within a budget of ", *training_.budget,
           " bytes kept per element and step is not possible",
           training_.saving == Saving::automatic ? "" : " with the way of saving that is asked for",
           "; at least ", least,
           " bytes must stay, inputs that are read again included. Raise the budget, or ask for fewer "
           "gradients");
    return *best;
  }

  // ---- the parts -----------------------------------------------------------------------------------

  std::string name_of_value(Id id, const char* prefix, std::size_t number) const {
    const std::string& name = joint_.debug_at(id).name;
    return name.empty() ? join(prefix, number) : join(prefix, name);
  }

  Handed handed(Id id, const std::vector<Handed>& before) const {
    Handed out{.value = id, .mem = memory_of(joint_, id)};
    if (is_input(id)) {
      out.from = {What::input, static_cast<int>(joint_.at(id).immediate)};
      out.name = joint_.arguments[out.from.index].name;
      return out;
    }
    if (const std::optional<Port> result = written(id)) {
      out.from = *result;
      const bool output = result->what == What::output;
      out.name = output ? joint_.results[result->index].name : joint_.arguments[result->index].name;
      out.mem = output ? joint_.results[result->index].mem : joint_.arguments[result->index].mem;
      return out;
    }
    int number = 0;
    for (const Handed& other : before) number += other.from.what == What::saved;
    out.from = {What::saved, number};
    out.name = name_of_value(id, "saved_", static_cast<std::size_t>(number));
    return out;
  }

  void build_rebuild(Partition& out) const {
    Extraction part(joint_, joint_.name + "_rebuild");
    const std::vector<bool> runs = closure(out.kept, false);
    out.rebuilt = states_in(runs);
    std::vector<Id> roots = out.kept;
    std::vector<int> place;
    for (int state : out.rebuilt) {
      const Argument& argument = joint_.arguments[state];
      place.push_back(static_cast<int>(part.graph().arguments.size()));
      part.give(argument.value, argument, {What::state, state});
      roots.push_back(next_[state]);
    }
    give_arguments(joint_, part, roots);
    part.copy(roots);
    for (std::size_t i = 0; i < out.kept.size(); ++i) {
      const Id id = out.kept[i];
      part.output(name_of_value(id, "kept_", i), memory_of(joint_, id), part.moved(id),
                  {What::kept, static_cast<int>(i)});
    }
    for (std::size_t i = 0; i < out.rebuilt.size(); ++i)
      part.next(place[i], part.moved(next_[out.rebuilt[i]]), {What::state, out.rebuilt[i]});
    out.rebuild = part.take();
    for (std::size_t id = 0; id < runs.size(); ++id)
      if (runs[id] && work_of(static_cast<Id>(id)) > 0) out.recomputed.push_back(static_cast<Id>(id));
  }

  void build_backward(Partition& out) const {
    Extraction part(joint_, joint_.name + "_backward");
    std::vector<Id> roots, crossing = out.kept;
    for (const Result& result : joint_.results)
      if (result.gives == Gives::grad) roots.push_back(result.value);
    // Gradients of states first: each goes from step to step, whether a step reads it or not.
    std::map<int, int> place;  // of a state's gradient among the part's arguments
    for (const Argument& argument : joint_.arguments)
      if (argument.role == Role::grad_next) {
        place[argument.of] = static_cast<int>(part.graph().arguments.size());
        part.give(argument.value, carried(argument.of), {What::grad_state, argument.of});
      }
    for (const Handed& value : out.handed) {
      crossing.push_back(value.value);
      part.give(value.value, read(value.name, value.mem), value.from);
    }
    for (std::size_t i = 0; i < out.kept.size(); ++i) {
      const Id id = out.kept[i];
      part.give(id, read(name_of_value(id, "kept_", i), memory_of(joint_, id)),
                {What::kept, static_cast<int>(i)});
    }
    give_arguments(joint_, part, roots);
    part.copy(roots);
    for (const Result& result : joint_.results) {
      if (result.gives != Gives::grad) continue;
      const Argument& argument = joint_.arguments[result.of];
      const Id value = part.moved(result.value);
      if (argument.role != Role::state) {
        part.output("grad_" + argument.name, result.mem, value, {What::grad, result.of});
        continue;
      }
      if (!place.contains(result.of)) {  // nothing arrives at it: what goes on is what this step gives
        place[result.of] = static_cast<int>(part.graph().arguments.size());
        part.add_unread(carried(result.of), {What::grad_state, result.of});
      }
      part.next(place[result.of], value, {What::grad_state, result.of});
      place[result.of] = -1 - place[result.of];
    }
    // A state whose old value nothing depends on passes nothing on.
    for (const auto& [state, argument] : place)
      if (argument >= 0) {
        const Type type = value_type(gradient_memory(joint_.arguments[state]));
        part.next(argument, constant(part.graph(), type, -0.0).id, {What::grad_state, state});
      }
    out.backward = part.take();
    out.recomputed = computed_again(crossing);
  }

  Argument carried(int state) const {
    const Argument& argument = joint_.arguments[state];
    return {.role = Role::state,
            .name = "grad_" + argument.name,
            .mem = gradient_memory(argument),
            .initial = -0.0};
  }

  const Graph& joint_;
  const Training& training_;
  const std::vector<bool> hoisted_;
  std::vector<bool> backward_;    ///< depends on a gradient that arrives
  std::vector<bool> needed_;      ///< a value of forward that an op of backward uses
  std::vector<bool> relevant_;    ///< needed, or what a needed one is made of
  std::vector<bool> recurrent_;   ///< what the updates of the states are made of that backward needs
  std::vector<bool> in_forward_;  ///< what outputs and new states are made of
  std::vector<Id> given_;         ///< outputs and new states
  std::vector<Id> gradients_;     ///< what backward computes of gradients that arrive, these included
  std::vector<Id> next_;          ///< for each state argument
};

void check(const Graph& joint, const Training& training) {
  const auto fail = [&](const auto&... parts) { user_error("neuron '", joint.name, "': ", parts...); };
  const int k = training.segment;
  if (k != 0 && (k < 2 || k > 1024 || (k & (k - 1)) != 0))
    fail(
        "the number of steps between checkpoints must be a power of two from 2 to 1024, or 0 to leave it to "
        "the "
        "planner, found ",
        k);
  if (k != 0 && (training.saving == Saving::everything || training.saving == Saving::per_step))
    fail("values are saved for each step, so there are no checkpoints for a segment of ", k,
         " steps; leave the segment out, or let values be rebuilt");
  if (training.budget && !(*training.budget >= 0))
    fail("the budget must be a number of bytes of at least 0, found ", *training.budget);
  std::vector<std::string> names;
  for (const Argument& argument : joint.arguments)
    if (argument.role == Role::param && argument.per_step) names.push_back(argument.name);
  for (const std::string& name : training.full_step_params)
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail("there is no parameter '", name, "' that changes with time", did_you_mean(name, names),
           "; full_step_params may name no others");
  for (double cost : {training.costs.op, training.costs.keep, training.costs.room})
    if (!(cost >= 0) || cost > 1e6)
      fail("the costs of model '", training.costs.name, "' must be numbers from 0 to 1000000, found ", cost);
  if (training.costs.longest < 2 || training.costs.smallest < 1)
    fail("the costs of model '", training.costs.name,
         "' must allow segments of at least 2 steps and values of at least 1 byte, found ",
         training.costs.longest, " and ", training.costs.smallest);
}

}  // namespace

Mem memory_of(const Graph& graph, Id id) {
  const Node& node = graph.at(id);
  if (node.op == Op::argument) return graph.arguments[node.immediate].mem;
  if (node.op == Op::round_f16) return Mem::f16;
  if (node.op == Op::round_bf16) return Mem::bf16;
  if (node.op == Op::round_u8) return Mem::u8;
  return natural_memory(node.type);
}

Part forward_part(const Graph& graph, const std::vector<Handed>& handed) {
  Extraction part(graph, graph.name);
  std::vector<Id> roots;
  for (const Result& result : graph.results)
    if (result.gives != Gives::grad) roots.push_back(result.value);
  for (const Handed& value : handed)
    if (value.from.what == What::saved) roots.push_back(value.value);
  std::vector<int> place(graph.arguments.size());  // of a state among the part's arguments
  for (std::size_t a = 0; a < graph.arguments.size(); ++a) {
    const Argument& argument = graph.arguments[a];
    if (argument.role != Role::state) continue;
    place[a] = static_cast<int>(part.graph().arguments.size());
    part.give(argument.value, argument, {What::state, static_cast<int>(a)});
  }
  give_arguments(graph, part, roots);
  part.copy(roots);
  for (std::size_t r = 0; r < graph.results.size(); ++r) {
    const Result& result = graph.results[r];
    const Id value = result.gives == Gives::grad ? no_id : part.moved(result.value);
    if (result.gives == Gives::output)
      part.output(result.name, result.mem, value, {What::output, static_cast<int>(r)});
    if (result.gives == Gives::next) part.next(place[result.of], value, {What::state, result.of});
  }
  for (const Handed& value : handed)
    if (value.from.what == What::saved)
      part.output(value.name, value.mem, part.moved(value.value), value.from);
  return part.take();
}

Partition partition(const Graph& joint, const Training& training) {
  check(joint, training);
  return Partitioner(joint, training).run();
}

}  // namespace flexsn
