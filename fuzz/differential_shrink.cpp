#include "differential_shrink.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "broadcast.h"
#include "error.h"
#include "verify.h"

namespace flexsn::fuzz {

using namespace ir;

namespace {

/// All arrays of a case, with what each is: whether its first dimension is time.
template <class Visit>
void each_array(Case& one, const Visit& visit) {
  for (auto& [name, array] : one.arguments.inputs) visit(array, true);
  for (auto& [name, array] : one.arguments.states) visit(array, false);
  for (const Argument& argument : one.graph.arguments)
    if (const auto found = one.arguments.params.find(argument.name); found != one.arguments.params.end())
      visit(found->second, argument.per_step);
  for (auto& [name, array] : one.arriving.outputs) visit(array, true);
  for (auto& [name, array] : one.arriving.states) visit(array, one.arguments.state_sequences);
}

/// Entries `from` to `from + count` along a dimension.
Array slice(const Array& array, std::size_t dim, std::int64_t from, std::int64_t count) {
  Shape shape = array.shape;
  shape[dim] = count;
  std::int64_t inner = 1, outer = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) (d < dim ? outer : inner) *= d == dim ? 1 : shape[d];
  Array out(array.type, shape);
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t n = 0; n < count * inner; ++n)
      out.set(o * count * inner + n, array[(o * array.shape[dim] + from) * inner + n]);
  return out;
}

void erase_name(std::vector<std::string>& names, const std::string& name) { std::erase(names, name); }

/// Takes an argument out that nothing uses but, where it is a state, its own next value.
void drop_argument(Case& one, int index) {
  Graph& graph = one.graph;
  const Argument argument = graph.arguments[static_cast<std::size_t>(index)];
  std::erase_if(graph.results, [&](const Result& r) { return r.gives == Gives::next && r.of == index; });
  for (Result& result : graph.results) result.of -= result.gives == Gives::next && result.of > index;
  graph.arguments.erase(graph.arguments.begin() + index);
  graph.nodes.erase(graph.nodes.begin() + argument.value);
  graph.debug.erase(graph.debug.begin() + argument.value);
  const auto move = [&](Id& id) { id -= id > argument.value; };
  for (Node& node : graph.nodes) {
    for (Id& operand : node.operands) move(operand);
    if (node.op == Op::argument && node.immediate > static_cast<std::uint64_t>(index)) --node.immediate;
  }
  for (Argument& other : graph.arguments) move(other.value);
  for (Result& result : graph.results) move(result.value);
  for (auto* arrays : {&one.arguments.inputs, &one.arguments.states, &one.arguments.params})
    arrays->erase(argument.name);
  one.arriving.states.erase(argument.name);
  erase_name(one.wanted, argument.name);
  erase_name(one.training.wanted, argument.name);
}

bool is_used(const Graph& graph, int index) {
  const Argument& argument = graph.arguments[static_cast<std::size_t>(index)];
  for (const Node& node : graph.nodes)
    if (std::find(node.operands.begin(), node.operands.end(), argument.value) != node.operands.end())
      return true;
  return std::any_of(graph.results.begin(), graph.results.end(), [&](const Result& r) {
    const bool own = r.gives == Gives::next && r.of == index;
    return own != (r.value == argument.value);  // a state that only stays as it is has no use
  });
}

/// Arguments and nodes that nothing uses go.
void sweep(Case& one) {
  for (bool dropped = true; dropped;) {
    one.graph = without_dead_code(one.graph);
    dropped = false;
    for (int i = 0; i < static_cast<int>(one.graph.arguments.size()) && !dropped; ++i) {
      dropped = !is_used(one.graph, i);
      if (dropped) drop_argument(one, i);
    }
  }
}

/// How plain a number is: less is plainer.
int rank(double value) {
  if (value == 0 && !std::signbit(value)) return 0;
  if (value == 1) return 1;
  if (!std::isfinite(value)) return 5;
  if (std::fabs(value) < 1000 && value == std::round(value)) return 2;
  return std::fabs(value) < 1000 && value * 64 == std::round(value * 64) ? 3 : 4;
}

std::vector<double> plainer_than(double value) {
  std::vector<double> some;
  for (double plain : {0.0, 1.0, std::round(value), std::round(value * 4) / 4})
    if (std::isfinite(plain) && rank(plain) < rank(value)) some.push_back(plain);
  return some;
}

class Shrinking {
 public:
  Shrinking(Case failing, const std::function<bool(const Case&)>& fails, int most_tries)
      : best_(std::move(failing)), fails_(fails), left_(most_tries) {}

  Shrunk run() {
    const int most = left_;
    // What takes away most comes first; what is smaller may let more be taken away.
    while (left_ > 0) {
      const bool smaller = sizes() | results() | nodes() | options() | constants() | values();
      if (!smaller) break;
    }
    return {std::move(best_), most - left_};
  }

 private:
  /// Keeps the edited case where it is legal and still fails.
  template <class Edit>
  bool keeps(const Edit& edit) {
    if (left_ <= 0) return false;
    Case tried = best_;
    if (!edit(tried)) return false;
    try {
      verify(tried.graph);
    } catch (const UserError&) {
      return false;
    }
    --left_;
    if (!fails_(tried)) return false;
    best_ = std::move(tried);
    return true;
  }

  bool results() {
    bool any = false;
    for (std::size_t r = best_.graph.results.size(); r-- > 0;) {
      if (r >= best_.graph.results.size()) continue;
      any |= keeps([&](Case& one) {
        const Result result = one.graph.results[r];
        if (result.gives != Gives::output) return false;
        one.graph.results.erase(one.graph.results.begin() + static_cast<std::ptrdiff_t>(r));
        one.arriving.outputs.erase(result.name);
        if (one.training.arriving) erase_name(*one.training.arriving, result.name);
        sweep(one);
        return true;
      });
      // A state that stays as it is, or of which nothing comes from before.
      any |= keeps([&](Case& one) {
        if (r >= one.graph.results.size()) return false;
        Result& result = one.graph.results[r];
        if (result.gives != Gives::next) return false;
        const Id same = one.graph.arguments[static_cast<std::size_t>(result.of)].value;
        if (result.value == same) return false;
        result.value = same;
        sweep(one);
        return true;
      });
    }
    return any;
  }

  /// Each value becomes one of its operands, a constant, or an argument that stands before it.
  bool nodes() {
    bool any = false;
    for (Id id = static_cast<Id>(best_.graph.nodes.size()); id-- > 0;) {
      if (id >= static_cast<Id>(best_.graph.nodes.size())) continue;
      const Node node = best_.graph.at(id);
      if (node.op == Op::constant) continue;
      std::vector<Id> instead;
      for (Id operand : node.operands)
        if (operand != no_id) instead.push_back(operand);
      for (Id other = 0; other < id; ++other)
        if (best_.graph.at(other).op == Op::argument) instead.push_back(other);
      bool replaced = false;
      for (double value : {0.0, 1.0})
        replaced = replaced || keeps([&](Case& one) { return replace_by_constant(one, id, value); });
      for (Id other : instead)
        if (!replaced && best_.graph.at(other).type == node.type)
          replaced = keeps([&](Case& one) { return replace(one, id, other); });
      any |= replaced;
    }
    return any;
  }

  /// The constant stands before all other nodes, which therefore move by one.
  static bool replace_by_constant(Case& one, Id id, double value) {
    Graph& graph = one.graph;
    const Node node{.op = Op::constant,
                    .type = graph.at(id).type,
                    .operands = {no_id, no_id, no_id},
                    .immediate = bits_of(graph.at(id).type, value)};
    graph.nodes.insert(graph.nodes.begin(), node);
    graph.debug.insert(graph.debug.begin(), Debug{});
    for (std::size_t n = 1; n < graph.nodes.size(); ++n)
      for (Id& operand : graph.nodes[n].operands)
        if (operand != no_id) ++operand;
    for (Argument& argument : graph.arguments) ++argument.value;
    for (Result& result : graph.results) ++result.value;
    return replace(one, id + 1, 0);
  }

  static bool replace(Case& one, Id id, Id by) {
    bool replaced = false;
    const auto settle = [&](Id& use) {
      if (use != id) return;
      use = by;
      replaced = true;
    };
    for (Node& node : one.graph.nodes) std::for_each(node.operands.begin(), node.operands.end(), settle);
    for (Result& result : one.graph.results) settle(result.value);
    sweep(one);
    return replaced;
  }

  bool constants() {
    bool any = false;
    for (std::size_t n = 0; n < best_.graph.nodes.size(); ++n) {
      const Node node = best_.graph.nodes[n];
      if (node.op != Op::constant) continue;
      for (double plain : plainer_than(number_of(node.type, node.immediate)))
        if (keeps([&](Case& one) {
              one.graph.nodes[n].immediate = bits_of(node.type, plain);
              return true;
            })) {
          any = true;
          break;
        }
    }
    return any;
  }

  // ---- sizes -----------------------------------------------------------------------------------------

  bool sizes() {
    bool any = false;
    for (std::int64_t fewer : {best_.steps() / 4, best_.steps() / 2, best_.steps() - 1})
      for (bool last : {false, true}) any |= keeps([&](Case& one) { return with_steps(one, fewer, last); });
    for (std::size_t d = 0; d < best_.shape().size(); ++d) {
      const std::int64_t size = best_.shape()[d];
      for (std::int64_t fewer : {std::int64_t{1}, size / 4, size / 2, size - 1})
        for (bool last : {false, true})
          any |= keeps([&](Case& one) { return with_size(one, d, fewer, last); });
    }
    for (std::size_t d = best_.shape().size(); d-- > 0;)
      any |= keeps([&](Case& one) { return without_dimension(one, d); });
    return any;
  }

  static bool with_steps(Case& one, std::int64_t fewer, bool last) {
    const std::int64_t steps = one.steps();
    if (fewer < 0 || fewer >= steps) return false;
    each_array(one, [&](Array& array, bool in_time) {
      if (in_time) array = slice(array, 0, last ? steps - fewer : 0, fewer);
    });
    one.arguments.steps = fewer;
    one.cut = std::max<std::int64_t>(0, std::min(one.cut, fewer - 1));
    return true;
  }

  /// Which dimension of an array is `dim` of the step; none where it has fewer, or one entry there.
  static std::optional<std::size_t> found_in(const Array& array, bool in_time, const Shape& step,
                                             std::size_t dim) {
    const std::size_t own = array.shape.size() - (in_time ? 1 : 0), from_right = step.size() - dim;
    if (own < from_right) return {};
    return array.shape.size() - from_right;
  }

  static bool with_size(Case& one, std::size_t dim, std::int64_t fewer, bool last) {
    const Shape step = one.shape();
    if (fewer < 0 || fewer >= step[dim]) return false;
    each_array(one, [&](Array& array, bool in_time) {
      const std::optional<std::size_t> at = found_in(array, in_time, step, dim);
      if (at && array.shape[*at] == step[dim]) array = slice(array, *at, last ? step[dim] - fewer : 0, fewer);
    });
    (*one.arguments.shape)[dim] = fewer;
    return true;
  }

  static bool without_dimension(Case& one, std::size_t dim) {
    const Shape step = one.shape();
    if (dim >= step.size() || step[dim] != 1) return false;
    each_array(one, [&](Array& array, bool in_time) {
      if (const std::optional<std::size_t> at = found_in(array, in_time, step, dim))
        array.shape.erase(array.shape.begin() + static_cast<std::ptrdiff_t>(*at));
    });
    one.arguments.shape->erase(one.arguments.shape->begin() + static_cast<std::ptrdiff_t>(dim));
    return true;
  }

  // ---- the way of running ----------------------------------------------------------------------------

  /// Sets a field to what is plain, where it is not.
  template <class Field, class Value>
  bool plain(Field Case::* field, Value value) {
    return keeps([&](Case& one) { return std::exchange(one.*field, value) != value; });
  }

  bool options() {
    bool any = keeps([](Case& one) {
      const bool trained = one.trains();
      one.arriving = {};
      one.wanted = {};
      one.training = {.state_sequences = one.arguments.state_sequences};
      return trained;
    });
    any |= plain(&Case::padding, 0) | plain(&Case::cut, 0) | plain(&Case::infers, false);
    any |= keeps([](Case& one) { return std::exchange(one.arguments.first_step, 0) != 0; });
    any |= keeps([](Case& one) { return std::exchange(one.graph.name, "n") != "n"; });
    any |= keeps([](Case& one) {
      const bool sequences = one.arguments.state_sequences && one.arriving.states.empty();
      if (sequences) one.arguments.state_sequences = one.training.state_sequences = false;
      return sequences;
    });
    any |= keeps([](Case& one) {
      const Training usual{.state_sequences = one.arguments.state_sequences};
      const bool special = one.training.saving != usual.saving || one.training.costs.name != "cpu" ||
                           !one.training.wanted.empty() || one.training.arriving;
      one.training = usual;
      return special;
    });
    any |= each_name(best_.arriving.outputs, [](Case& one, const std::string& name) {
      one.arriving.outputs.erase(name);
      if (one.training.arriving) erase_name(*one.training.arriving, name);
    });
    any |= each_name(best_.arriving.states,
                     [](Case& one, const std::string& name) { one.arriving.states.erase(name); });
    any |= each_name(best_.arguments.states,
                     [](Case& one, const std::string& name) { one.arguments.states.erase(name); });
    for (const std::string& name : std::vector(best_.wanted))
      any |= keeps([&](Case& one) {
        erase_name(one.wanted, name);
        return !one.wanted.empty();
      });
    for (std::size_t i = 0; i < best_.graph.arguments.size(); ++i) {
      any |= keeps([&](Case& one) { return std::exchange(one.graph.arguments[i].initial, 0) != 0; });
      any |= keeps([&](Case& one) {
        const Range old = std::exchange(one.graph.arguments[i].range, Range());
        return old.low != Range().low || old.high != Range().high;
      });
    }
    return any;
  }

  template <class Arrays, class Edit>
  bool each_name(const Arrays& arrays, const Edit& edit) {
    std::vector<std::string> names;
    for (const auto& [name, array] : arrays) names.push_back(name);
    bool any = false;
    for (const std::string& name : names)
      any |= keeps([&](Case& one) {
        const bool trained = one.trains();
        edit(one, name);
        return trained == one.trains();
      });
    return any;
  }

  // ---- values ----------------------------------------------------------------------------------------

  bool values() {
    std::size_t arrays = 0;
    each_array(best_, [&](Array&, bool) { ++arrays; });
    bool any = false;
    for (std::size_t i = 0; i < arrays; ++i) any |= values_of_array(i);
    return any;
  }

  static Array& nth(Case& one, std::size_t wanted) {
    Array* found = nullptr;
    std::size_t number = 0;
    each_array(one, [&](Array& array, bool) {
      if (number++ == wanted) found = &array;
    });
    return *found;
  }

  bool values_of_array(std::size_t i) {
    const Array array = nth(best_, i);
    const std::vector<double> values = array.values();
    const int worst =
        values.empty() ? 0 : rank(*std::max_element(values.begin(), values.end(), [](double a, double b) {
          return rank(a) < rank(b);
        }));
    for (double plain_value : {0.0, 1.0})
      if (rank(plain_value) < worst && keeps([&](Case& one) {
            nth(one, i) = Array(array.type, array.shape, plain_value);
            return true;
          }))
        return true;
    constexpr std::int64_t most = 32;
    bool any = false;
    for (std::int64_t n = 0; n < array.size() && array.size() <= most; ++n)
      for (double plain_value : plainer_than(array[n]))
        if (keeps([&](Case& one) {
              nth(one, i).set(n, plain_value);
              return true;
            })) {
          any = true;
          break;
        }
    return any;
  }

  Case best_;
  const std::function<bool(const Case&)>& fails_;
  int left_;
};

}  // namespace

Shrunk shrink(Case failing, const std::function<bool(const Case&)>& fails, int most_tries) {
  return Shrinking(std::move(failing), fails, most_tries).run();
}

}  // namespace flexsn::fuzz
