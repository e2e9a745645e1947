#include "trace.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "build.h"
#include "environment.h"
#include "error.h"
#include "lex.h"
#include "literal.h"
#include "ops.h"
#include "verify.h"

namespace flexsn {

using namespace ir;

Mem promote(Mem a, Mem b) {
  if (a == b) return a;
  const auto rank = [](Mem mem) {
    constexpr int ranks[] = {3, 3, 4, 5, 2, 1, 0};  // f16 bf16 f32 f64 i32 u8 bool
    return ranks[static_cast<int>(mem)];
  };
  if (rank(a) == rank(b)) return Mem::f32;  // f16 and bf16
  return rank(a) > rank(b) ? a : b;
}

namespace {

bool is_float(Mem mem) { return ir::is_float(value_type(mem)); }

/// How a user converts a value to memory type `mem`.
std::string conversion_to(Mem mem) {
  switch (mem) {
    case Mem::f16:
      return "round_f16(value)";
    case Mem::bf16:
      return "round_bf16(value)";
    case Mem::u8:
      return "round_u8(value)";
    case Mem::b8:
      return "cast(value, Type::b1)";
    default:
      return join("cast(value, Type::", name_of(mem), ")");
  }
}

std::string base_name(std::string_view path) {
  return std::string(path.substr(path.find_last_of("/\\") + 1));
}

std::string place(const std::source_location& where) {
  return join(base_name(where.file_name()), ":", where.line());
}

}  // namespace

Trace::Trace(std::string neuron, Mem type, std::map<std::string, Mem> state_types, bool smooth)
    : neuron_(std::move(neuron)), type_(type), state_types_(std::move(state_types)), smooth_(smooth) {
  graph_.name = neuron_;
}

void Trace::fail(const std::string& message, const std::source_location& where) const {
  user_error("neuron '", neuron_, "': ", message, " (", place(lines_ ? *lines_ : where), ")");
}

void Trace::require_active(Id id, const std::source_location& where) const {
  if (!active_)
    fail(join("value ", called(id),
              " is used after the step function that made it has ended; "
              "make values inside the step function"),
         where);
}

void Trace::require_name(std::string_view name, const char* what, const std::source_location& where) const {
  if (name.empty()) fail(join(what, " needs a name"), where);
  if (first_non_utf8(name) != std::string_view::npos)
    fail(join("the name of ", what, " is not UTF-8; rename it"), where);
}

/// A number becomes an integer only where that changes nothing.
void Trace::require_fits(const Operand& number, Mem mem, const std::source_location& where) const {
  if (value_type(mem) != Type::i32) return;
  const double low = mem == Mem::u8 ? 0 : -2147483648.0, high = mem == Mem::u8 ? 255 : 2147483647;
  if (number.number_ >= low && number.number_ <= high && number.number_ == std::trunc(number.number_)) return;
  fail(join("the number ", literal(Type::f64, bits_of(Type::f64, number.number_)), " does not fit ",
            flexsn::name_of(mem), "; write a whole number from ",
            low == 0 ? "0 to 255" : "-2147483648 to 2147483647", " or convert with cast"),
       where);
}

ir::Graph Trace::run(const std::function<void(Step&)>& step) {
  active_ = true;
  struct Ended {
    bool& active;
    ~Ended() { active = false; }
  } ended{active_};
  Step s(shared_from_this());
  step(s);
  finish_states();
  if (widened_.empty()) verify(graph_);
  return graph_;
}

// ---- bookkeeping ---------------------------------------------------------------------------------

ir::Location Trace::location(const std::source_location& where) {
  const std::source_location& line = lines_ ? *lines_ : where;
  const std::string file = base_name(line.file_name());
  const auto known = std::find(graph_.files.begin(), graph_.files.end(), file);
  const int index = static_cast<int>(known - graph_.files.begin());
  if (known == graph_.files.end()) graph_.files.push_back(file);
  return {index, static_cast<int>(line.line())};
}

std::string Trace::called(Id id) const {
  const std::string& name = graph_.debug_at(id).name;
  return name.empty() ? "an unnamed value" : join("'", name, "'");
}

Id Trace::own(const Value& value, const std::source_location& where) const {
  if (value.trace_.get() == this) return value.id_;
  fail(join("value ", value.trace_->called(value.id_), " belongs to neuron '", value.trace_->neuron_, "'",
            value.trace_->neuron_ == neuron_ ? " as it was traced another time" : "",
            "; use only values made in this step function"),
       where);
}

void Trace::note_memory() {
  while (memory_.size() < graph_.nodes.size())
    memory_.push_back(natural_memory(graph_.nodes[memory_.size()].type));
}

Value Trace::add(V node, Mem mem, const ir::Location& location) {
  note_memory();
  memory_[node.id] = mem;
  graph_.debug[node.id].location = location;
  return Value(shared_from_this(), node.id);
}

Mem Trace::float_type() const { return is_float(type_) ? type_ : Mem::f32; }

Trace::Lines::Lines(const Operand& operand)
    : trace_(Trace::value_of(operand).trace_), saved_(trace_->lines_) {
  if (!trace_->lines_) trace_->lines_ = operand.where_;
}
Trace::Lines::~Lines() { trace_->lines_ = saved_; }

const Value& Trace::value_of(const Operand& operand) {
  if (operand.value_ == nullptr)
    user_error("expected a Value, found the number ", operand.number_, " (", place(operand.where_),
               "); make one from an input, state or param");
  return *operand.value_;
}

Value Trace::like(const Operand& operand, double number) {
  const Value& value = value_of(operand);
  Trace& trace = *value.trace_;
  trace.require_active(value.id_, operand.where_);
  const Mem mem = trace.memory_[value.id_];
  return trace.add(constant(trace.graph_, value_type(mem), number), mem, trace.location(operand.where_));
}

Type Trace::type_of(const Value& value) { return value.trace_->graph_.at(value.id_).type; }

Value Trace::named(const Value& value, std::string_view name, const std::source_location& where) {
  Trace& trace = *value.trace_;
  trace.require_active(value.id_, where);
  trace.require_name(name, "a value", where);
  if (trace.graph_.at(value.id_).op == Op::argument)
    trace.fail(
        join(trace.called(value.id_), " is an argument and keeps its name; name what is computed from it"),
        where);
  trace.graph_.debug[value.id_].name = name;
  return value;
}

// ---- arguments and results -------------------------------------------------------------------------

Value Trace::argument(Argument argument, std::optional<Mem> type, const std::source_location& where) {
  if (!active_) fail("the step function has ended; declare arguments inside it", where);
  require_name(argument.name, "an argument", where);
  for (const Argument& other : graph_.arguments)
    if (other.name == argument.name)
      fail(join("the name '", argument.name, "' is used twice, first at ", ir::place(graph_, other.location),
                "; every argument needs a name of its own"),
           where);
  argument.mem = type.value_or(type_);
  if (argument.role == Role::state && !type)
    if (const auto known = state_types_.find(argument.name); known != state_types_.end())
      argument.mem = known->second;
  if (!(argument.range.low <= argument.range.high))
    fail(join("the range [", argument.range.low, ", ", argument.range.high, "] of param '", argument.name,
              "' is empty; write the lower end first"),
         where);
  if (argument.role == Role::param &&
      !(argument.initial >= argument.range.low && argument.initial <= argument.range.high))
    fail(join("the default ", argument.initial, " of param '", argument.name, "' is outside its range [",
              argument.range.low, ", ", argument.range.high, "]; change the one or the other"),
         where);
  argument.location = location(where);
  const Mem mem = argument.mem;
  const bool is_state = argument.role == Role::state;
  const V node = add_argument(graph_, std::move(argument));
  if (is_state) state_is_typed_[node.id] = type.has_value();
  return add(node, mem, graph_.debug_at(node.id).location);
}

Value Trace::leaf(Op op, const std::source_location& where) {
  if (!active_) fail("the step function has ended; ask for the index inside it", where);
  const Id id = graph_.append({.op = op, .type = Type::i32});
  return add({&graph_, id}, Mem::i32, location(where));
}

void Trace::next(const Value& state, const Operand& value) {
  if (!active_) fail("the step function has ended; update states inside it", value.where_);
  const Id id = own(state, value.where_);
  const bool is_state =
      graph_.at(id).op == Op::argument && graph_.arguments[graph_.at(id).immediate].role == Role::state;
  if (!is_state)
    fail(join(called(id), " is not a state, so it has no next value; declare it with state(\"...\")"),
         value.where_);
  for (const Update& update : updates_)
    if (update.state == id)
      fail(join("state ", called(id), " is updated twice, first at ", ir::place(graph_, update.location),
                "; give it one next value"),
           value.where_);
  if (!value.value_) require_fits(value, graph_.arguments[graph_.at(id).immediate].mem, value.where_);
  const Id updated = value.value_ ? own(*value.value_, value.where_) : no_id;
  updates_.push_back({id, updated, value.number_, location(value.where_)});
}

void Trace::output(std::string_view name, const Operand& value) {
  if (!active_) fail("the step function has ended; give outputs inside it", value.where_);
  require_name(name, "an output", value.where_);
  for (const Result& result : graph_.results)
    if (result.name == name)
      fail(join("output '", name, "' is given twice, first at ", ir::place(graph_, result.location),
                "; every output needs a name of its own"),
           value.where_);
  const ir::Location line = location(value.where_);
  Id id = value.value_ ? own(*value.value_, value.where_) : no_id;
  const Mem mem = id != no_id       ? memory_[id]
                  : value.boolean_  ? Mem::b8
                  : value.integral_ ? Mem::i32
                                    : float_type();
  if (id == no_id) require_fits(value, mem, value.where_);
  if (id == no_id) id = add(constant(graph_, value_type(mem), value.number_), mem, line).id_;
  graph_.results.push_back({.gives = Gives::output,
                            .name = std::string(name),
                            .mem = mem,
                            .value = rounded(id, mem, line),
                            .location = line});
}

/// Each state's next value, in the state's own type; a wider update widens a state that names no type.
void Trace::finish_states() {
  for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
    const Argument argument = graph_.arguments[i];
    if (argument.role != Role::state) continue;
    const auto update = std::find_if(updates_.begin(), updates_.end(),
                                     [&](const Update& u) { return u.state == argument.value; });
    if (update == updates_.end())
      user_error("neuron '", neuron_, "': state '", argument.name, "' is never updated; call next(",
                 argument.name, ", ...) in the step function (", ir::place(graph_, argument.location), ")");
    Id value = update->value;
    if (value == no_id)
      value =
          add(constant(graph_, value_type(argument.mem), update->number), argument.mem, update->location).id_;
    const Mem found = memory_[value];
    const bool same_family =
        is_float(found) == is_float(argument.mem) && (found == Mem::b8) == (argument.mem == Mem::b8);
    const Mem needed = promote(argument.mem, found);
    if (!same_family || (needed != argument.mem && state_is_typed_[argument.value]))
      user_error("neuron '", neuron_, "': state '", argument.name, "' is ", name_of(argument.mem),
                 " but its update has type ", name_of(found), "; convert the update with ",
                 conversion_to(argument.mem), " or declare the state with another type (",
                 ir::place(graph_, update->location), ")");
    if (needed != argument.mem) widened_[argument.name] = needed;
    const Id fitting =
        rounded(converted(value, argument.mem, update->location), argument.mem, update->location);
    graph_.results.push_back({.gives = Gives::next,
                              .of = static_cast<int>(i),
                              .mem = argument.mem,
                              .value = fitting,
                              .location = update->location});
  }
}

// ---- ops ---------------------------------------------------------------------------------------------

/// The node in the value type of `mem`.
Id Trace::converted(Id id, Mem mem, const ir::Location& line) {
  const V value{&graph_, id};
  return value.type() == value_type(mem) ? id : add(convert(value, value_type(mem)), mem, line).id_;
}

/// The node, rounded to what `mem` can hold.
Id Trace::rounded(Id id, Mem mem, const ir::Location& line) {
  const V value{&graph_, id};
  if (graph_.at(id).op == Op::argument && graph_.arguments[graph_.at(id).immediate].mem == mem) return id;
  if (mem == Mem::f16 && graph_.at(id).op != Op::round_f16) return add(round_f16(value), mem, line).id_;
  if (mem == Mem::bf16 && graph_.at(id).op != Op::round_bf16) return add(round_bf16(value), mem, line).id_;
  if (mem == Mem::u8 && graph_.at(id).op != Op::round_u8) return add(round_u8(value), mem, line).id_;
  return id;
}

/// The type in which operands `first` and later meet; numbers give way to values.
Mem Trace::common_type(Op op, const Operand* operands, int first, int count,
                       const std::source_location& where) const {
  std::optional<Mem> mem;
  bool fraction = false, whole = false;
  for (int i = first; i < count; ++i) {
    std::optional<Mem> own_mem;
    if (operands[i].value_)
      own_mem = memory_[own(*operands[i].value_, where)];
    else if (operands[i].boolean_)
      own_mem = Mem::b8;
    else
      (operands[i].integral_ ? whole : fraction) = true;
    if (own_mem) mem = mem ? promote(*mem, *own_mem) : *own_mem;
  }
  if (!mem) return fraction ? float_type() : Mem::i32;
  if (fraction && !is_float(*mem)) mem = float_type();
  if (whole && *mem == Mem::b8) mem = Mem::i32;
  const TypeSet& types = row_of(op).meaning.sig.types;
  if (types.has(value_type(*mem))) return *mem;
  // Integers enter functions of real numbers as floats, bools enter arithmetic as integers.
  if (types.has(value_type(float_type())) && !types.i32 && !is_float(*mem)) return float_type();
  if (*mem == Mem::b8 && types.i32) return Mem::i32;
  if (*mem == Mem::f64 && (op == Op::round_f16 || op == Op::round_bf16)) return Mem::f32;
  fail(join("'", row_of(op).name, "' takes ", names_of(types), ", found ", name_of(*mem),
            "; convert it with cast"),
       where);
}

Id Trace::operand(const Operand& operand, Mem mem, const std::source_location& where) {
  if (operand.value_) return converted(own(*operand.value_, where), mem, location(where));
  const Type type = value_type(mem);
  require_fits(operand, mem == Mem::u8 ? Mem::i32 : mem, where);
  return add(constant(graph_, type, operand.number_), mem, location(where)).id_;
}

Value Trace::apply_here(Op op, const Operand* operands, int count, const std::source_location& where) {
  for (int i = 0; i < count; ++i)
    if (operands[i].value_ && operands[i].value_->trace_.get() == this)
      require_active(operands[i].value_->id_, where);
  const Row& row = row_of(op);
  const Sig& sig = row.meaning.sig;
  const int first = sig.first == SigType::T ? 0 : 1;
  V nodes[max_arity];
  if (first == 1) {
    const bool is_bool = operands[0].value_ && memory_[own(*operands[0].value_, where)] == Mem::b8;
    if (!is_bool)
      fail(join("the condition of '", row.name, "' must be a bool value, found ",
                operands[0].value_ ? name_of(memory_[operands[0].value_->id_]) : "a number",
                "; compare it, as in z > 0"),
           where);
    nodes[0] = {&graph_, operands[0].value_->id_};
  }
  const Mem mem = common_type(op, operands, first, count, where);
  for (int i = first; i < count; ++i) nodes[i] = {&graph_, operand(operands[i], mem, where)};
  const V result = ir::apply(op, nodes, count);
  Mem result_mem = sig.result == SigType::T ? mem : natural_memory(result.type());
  if (op == Op::round_f16) result_mem = Mem::f16;
  if (op == Op::round_bf16) result_mem = Mem::bf16;
  if (op == Op::round_u8) result_mem = Mem::u8;
  return add(result, result_mem, location(where));
}

Value Trace::apply(Op op, const Operand* operands, int count) {
  // A value of another trace is an error of the step function that is running, so its trace comes first.
  const Operand* first = nullptr;
  for (int i = 0; i < count; ++i) {
    if (!operands[i].value_) continue;
    if (!first || (operands[i].value_->trace_->active_ && !first->value_->trace_->active_))
      first = &operands[i];
  }
  if (first) return first->value_->trace_->apply_here(op, operands, count, first->where_);
  user_error("'", row_of(op).name, "' got numbers only (", place(operands[0].where_),
             "); use the standard library for numbers");
}

// ---- the public face ---------------------------------------------------------------------------------

Value detail::apply(Op op, const Operand* operands, int count) { return Trace::apply(op, operands, count); }

Type Value::type() const { return Trace::type_of(*this); }
Value Value::named(std::string_view name, std::source_location where) const {
  return Trace::named(*this, name, where);
}

Value like(const Operand& x, double number) { return Trace::like(x, number); }

Value cast(const Operand& x, Type type) {
  constexpr Op to[] = {Op::to_f32, Op::to_f64, Op::to_i32, Op::to_bool};
  return Trace::apply(to[static_cast<int>(type)], &x, 1);
}

Value Step::input(std::string_view name, std::optional<Mem> type, Where where) {
  return trace_->argument({.role = Role::input, .name = std::string(name)}, type, where);
}
Value Step::state(std::string_view name, double initial, std::optional<Mem> type, Where where) {
  return trace_->argument({.role = Role::state, .name = std::string(name), .initial = initial}, type, where);
}
Value Step::param(std::string_view name, double value, Range range, std::optional<Mem> type, Where where) {
  return trace_->argument(
      {.role = Role::param, .name = std::string(name), .has_default = true, .initial = value, .range = range},
      type, where);
}
Value Step::step_param(std::string_view name, double value, Range range, std::optional<Mem> type,
                       Where where) {
  return trace_->argument({.role = Role::param,
                           .name = std::string(name),
                           .per_step = true,
                           .has_default = true,
                           .initial = value,
                           .range = range},
                          type, where);
}
Value Step::step_index(Where where) { return trace_->leaf(Op::step_index, where); }
Value Step::element_index(Where where) { return trace_->leaf(Op::element_index, where); }
void Step::next(const Value& state, const Operand& value) { trace_->next(state, value); }
void Step::output(std::string_view name, const Operand& value) { trace_->output(name, value); }

// ---- neurons -----------------------------------------------------------------------------------------

Neuron::Neuron(std::string name, std::function<void(Step&)> step)
    : name_(std::move(name)), step_(std::move(step)) {
  if (name_.empty()) user_error("a neuron needs a name, found \"\"; write neuron(\"name\", step)");
  if (!step_)
    user_error("neuron '", name_, "': the step function is empty; give a callable that takes Step&");
}

Neuron::Neuron(ir::Graph graph) : name_(graph.name) {
  verify(graph);
  // A canonical text has no names; arguments and outputs are then called by their place.
  std::map<std::string, int> count;
  for (Argument& argument : graph.arguments) {
    const std::string role = argument.role == Role::input   ? "input"
                             : argument.role == Role::state ? "state"
                             : argument.role == Role::param ? "param"
                                                            : "grad";
    const int index = count[role]++;
    if (argument.name.empty()) graph.debug[argument.value].name = argument.name = join(role, index);
  }
  for (Result& result : graph.results) {
    const int index = count["output"] += result.gives == Gives::output;
    if (result.gives == Gives::output && result.name.empty()) result.name = join("output", index - 1);
  }
  fixed_ = std::make_shared<const ir::Graph>(std::move(graph));
}

ir::Graph Neuron::graph(Mem type, bool smooth) const {
  const IeeeEnvironment environment;  // constants may be subnormal
  if (fixed_) return *fixed_;
  if (!step_) user_error("this neuron was moved to another object, which has it now; use that one");
  if (!is_float(type))
    user_error("neuron '", name_, "': a neuron is traced for f16, bf16, f32 or f64, found ",
               flexsn::name_of(type), "; give single arguments another type in the step function");
  // Widening a state can widen the update of another one; types only grow, so this ends.
  std::map<std::string, Mem> state_types;
  for (std::size_t round = 0;; ++round) {
    const auto trace = std::make_shared<Trace>(name_, type, state_types, smooth);
    ir::Graph graph = trace->run(step_);
    if (trace->widened().empty()) return graph;
    // A state widens twice at most: f16, f32, f64.
    if (round > 2 * graph.arguments.size())
      user_error(
          "neuron '", name_,
          "': the step function declares other states each time it runs; let it do the same each time");
    for (const auto& [name, mem] : trace->widened()) state_types[name] = mem;
  }
}

Neuron neuron(std::string name, std::function<void(Step&)> step) {
  return Neuron(std::move(name), std::move(step));
}

}  // namespace flexsn
