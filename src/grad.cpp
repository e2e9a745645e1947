#include "grad.h"

#include "build.h"
#include "error.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

class Differentiator {
 public:
  Differentiator(const Graph& step, const GradRequest& request)
      : step_(step), request_(request), out_(without_dead_code(step)) {
    if (has_gradients(step)) fail("it already has gradients; differentiate the step it was made from");
    if (step.expanded) fail("it is expanded to exact ops; differentiate the step it was made from");
    check_request();
    find_active();
  }

  Graph run() {
    const Id forward_nodes = static_cast<Id>(out_.nodes.size());
    gradients_.resize(out_.nodes.size());
    seed();
    for (Id id = forward_nodes - 1; id >= 0; --id)
      if (gradients_[id].exists()) propagate(id);
    give_results();
    return values_only(out_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    user_error("neuron '", step_.name, "': ", parts...);
  }

  void check_request() const {
    if (request_.arguments && request_.arguments->size() != step_.arguments.size())
      fail("expected one flag for each of its ", step_.arguments.size(), " arguments, found ",
           request_.arguments->size());
    if (request_.results && request_.results->size() != step_.results.size())
      fail("expected one flag for each of its ", step_.results.size(), " results, found ",
           request_.results->size());
    for (std::size_t i = 0; request_.arguments && i < step_.arguments.size(); ++i) {
      const Argument& argument = step_.arguments[i];
      if ((*request_.arguments)[i] && !is_float(value_type(argument.mem)))
        fail("'", argument.name, "' is ", name_of(argument.mem),
             " and carries no gradient; ask only for float arguments");
    }
  }

  bool wanted(std::size_t argument) const {
    return is_float(value_type(step_.arguments[argument].mem)) &&
           (!request_.arguments || (*request_.arguments)[argument]);
  }

  /// Marks the nodes that a wanted argument flows into, through time as well.
  void find_active() {
    active_argument_.resize(out_.arguments.size());
    for (std::size_t i = 0; i < out_.arguments.size(); ++i) active_argument_[i] = wanted(i);
    for (bool changed = true; changed;) {
      changed = false;
      mark_active_nodes();
      for (const Result& result : out_.results) {
        if (result.gives != Gives::next || active_argument_[result.of] || !active_[result.value]) continue;
        active_argument_[result.of] = true;
        changed = true;
      }
    }
  }

  void mark_active_nodes() {
    active_.assign(out_.nodes.size(), false);
    for (std::size_t id = 0; id < out_.nodes.size(); ++id) {
      const Node& node = out_.nodes[id];
      if (node.op == Op::argument) active_[id] = active_argument_[node.immediate];
      if (node.op == Op::argument || node.op == Op::constant || !is_float(node.type) ||
          row_of(node.op).vjp.zero)
        continue;
      // with_grad passes gradients to its second operand only.
      const int first = node.op == Op::with_grad ? 1 : 0;
      for (int i = first; i < row_of(node.op).arity; ++i)
        if (active_[node.operands[i]] && is_float(out_.at(node.operands[i]).type)) active_[id] = true;
    }
  }

  /// Gradients arrive: at outputs in order, then at new states.
  void seed() {
    bool any = false;
    for (int index : result_order(out_)) {
      const Result& result = out_.results[index];
      const bool output = result.gives == Gives::output;
      const bool arrives =
          output ? !request_.results || (*request_.results)[index] : active_argument_[result.of];
      // The gradient of a state arrives even where its update takes none: with no steps the last state is the
      // first.
      if (!arrives || (output && !active_[result.value])) continue;
      any |= active_[result.value];
      const std::string name = output ? result.name : out_.arguments[result.of].name;
      const V arrived =
          add_argument(out_, {.role = output ? Role::grad_output : Role::grad_next,
                              .name = unused_name(join(output ? "grad_" : "grad_next_", name)),
                              .mem = output ? result.mem : gradient_memory(out_.arguments[result.of]),
                              .of = output ? index : result.of,
                              .location = result.location});
      if (active_[result.value]) add(result.value, arrived);
    }
    if (!any)
      fail(
          "no output and no state can carry a gradient to what is wanted; run it for inference, or use "
          "with_grad or spike where it branches");
  }

  std::string unused_name(std::string name) const {
    for (const Argument& argument : out_.arguments)
      if (argument.name == name) return unused_name(name + "_");
    return name;
  }

  void add(Id id, V gradient) {
    gradients_[id] = gradients_[id].exists() ? gradients_[id] + gradient : gradient;
  }

  void propagate(Id id) {
    const Node node = out_.at(id);
    if (node.op == Op::argument || node.op == Op::constant) return;
    const Row& row = row_of(node.op);
    if (row.vjp.zero || !active_[id]) return;
    internal_check(row.vjp.build != nullptr, "a row has no derivative");
    V operands[max_arity];
    for (int i = 0; i < row.arity; ++i) operands[i] = {&out_, node.operands[i]};
    const std::size_t before = out_.nodes.size();
    const Grads grads = row.vjp.build(operands, {&out_, id}, gradients_[id]);
    for (std::size_t added = before; added < out_.nodes.size(); ++added)
      out_.debug[added].location = out_.debug[id].location;
    for (int i = 0; i < row.arity; ++i)
      if (grads.of[i].exists() && active_[node.operands[i]]) add(node.operands[i], grads.of[i]);
  }

  void give_results() {
    const std::size_t count = active_argument_.size();  // not the gradients that arrive
    for (std::size_t i = 0; i < count; ++i) {
      if (!active_argument_[i]) continue;
      const Argument& argument = out_.arguments[i];
      const Mem mem = gradient_memory(argument);
      V gradient = gradients_[argument.value];
      // Wanted, but nothing depends on it: its gradient is zero, for a state the zero that no sum can see.
      if (!gradient.exists())
        gradient = constant(out_, value_type(mem), argument.role == Role::state ? -0.0 : 0.0);
      if (mem == Mem::f16) gradient = round_f16(gradient);
      if (mem == Mem::bf16) gradient = round_bf16(gradient);
      out_.results.push_back({.gives = Gives::grad,
                              .of = static_cast<int>(i),
                              .mem = mem,
                              .value = gradient.id,
                              .location = argument.location});
    }
  }

  const Graph& step_;
  const GradRequest& request_;
  Graph out_;
  std::vector<bool> active_argument_, active_;
  std::vector<V> gradients_;  ///< for each node of the step, once one arrived
};

}  // namespace

Graph grad(const Graph& step, const GradRequest& request) { return Differentiator(step, request).run(); }

Graph forward_of(const Graph& joint) {
  Graph forward = joint;
  std::erase_if(forward.results, [](const Result& result) { return result.gives == Gives::grad; });
  // Gradients that arrive stand behind the step's own arguments, so no other index moves.
  const auto arrives = [](const Argument& argument) {
    return argument.role == Role::grad_output || argument.role == Role::grad_next;
  };
  std::erase_if(forward.arguments, arrives);
  for (std::size_t i = 0; i < forward.arguments.size(); ++i)
    internal_check(!arrives(joint.arguments[i]), "a gradient stands before an argument of the step");
  return without_dead_code(forward);
}

}  // namespace flexsn
