#include "emit_llvm.h"

#include <algorithm>

#include "environment.h"
#include "error.h"
#include "llvm_function.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

/// What depends on parameters and the element's number only, is used by what changes with time, and costs
/// more than a load: values to compute once a tile.
std::vector<Id> hoisted_nodes(const LlvmTask& task) {
  constexpr int cost_of_load = 3;
  const Graph& graph = *task.graph;
  const std::vector<Level> levels = levels_of(task);
  const std::vector<bool> needed = needed_nodes(task);
  std::vector<bool> still(graph.nodes.size());
  std::vector<int> cost(graph.nodes.size());  // an upper bound: what two operands share counts twice
  std::vector<bool> moving_use(graph.nodes.size());
  for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id) {
    const Node& node = graph.at(id);
    if (const Reading* reading = task.reading_of(id)) {
      if (reading->stream < 0) continue;
      const Stream& stream = task.streams[reading->stream];
      still[id] = stream.use == Stream::Use::read && stream.lead == Lead::once;
      continue;
    }
    still[id] = node.op != Op::step_index && node.op != Op::argument;
    if (!is_op(node)) continue;
    const bool slow = node.op == Op::div || node.op == Op::sqrt || node.op == Op::fmod;
    cost[id] = levels[id] != Level::element ? 0 : slow ? 8 : 1;
    for (Id operand : node.operands) {
      if (operand == no_id) continue;
      still[id] = still[id] && still[operand];
      cost[id] = std::min(cost[id] + cost[operand], 1000);
    }
    if (still[id] || !needed[id]) continue;
    for (Id operand : node.operands)
      if (operand != no_id) moving_use[operand] = true;
  }
  for (const Writing& writing : task.writings) moving_use[writing.value] = true;
  std::vector<Id> nodes;
  for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id)
    if (needed[id] && still[id] && moving_use[id] && levels[id] == Level::element && cost[id] > cost_of_load)
      nodes.push_back(id);
  return nodes;
}

/// The number of vector instructions of a body, roughly.
int work_of(const LlvmTask& task) {
  const std::vector<bool> needed = needed_nodes(task);
  const std::vector<Level> levels = levels_of(task);
  int work = 0;
  for (Id id = 0; id < static_cast<Id>(needed.size()); ++id)
    work += needed[id] && levels[id] == Level::element && task.reading_of(id) == nullptr &&
            is_op(task.graph->at(id));
  return work;
}

bool has_f64(const LlvmTask& task) {
  const std::vector<bool> needed = needed_nodes(task);
  for (std::size_t id = 0; id < needed.size(); ++id)
    if (needed[id] && task.graph->nodes[id].type == Type::f64) return true;
  return false;
}

/// One plan with what is present in a run of it.
class ModuleEmitter {
 public:
  ModuleEmitter(const Plan& plan, const std::vector<bool>& present, const LlvmOptions& options)
      : plan_(plan), present_(present), options_(options) {}

  LlvmModule emit() {
    LlvmModule module;
    LlvmTask step = task_of("flexsn_step", plan_.step, plan_.carries, plan_.reverse);
    std::vector<LlvmTask> tasks;
    if (std::optional<LlvmTask> hoist = hoist_out(step, module.step_rows)) {
      module.step_hoist = {hoist->name, hoist->streams};
      tasks.push_back(*std::move(hoist));
    }
    module.step = {step.name, step.streams};
    tasks.push_back(std::move(step));
    if (plan_.rebuild) {
      LlvmTask rebuild = task_of("flexsn_rebuild", *plan_.rebuild, plan_.rebuilt, false);
      if (std::optional<LlvmTask> hoist = hoist_out(rebuild, module.rebuild_rows)) {
        module.rebuild_hoist = {hoist->name, hoist->streams};
        tasks.push_back(*std::move(hoist));
      }
      module.rebuild = {rebuild.name, rebuild.streams};
      tasks.push_back(std::move(rebuild));
    }
    std::vector<Graph> identities;
    identities.reserve(4);  // tasks point to them
    for (Mem mem : {Mem::f16, Mem::bf16}) {
      if (!is_carried_in(mem)) continue;
      const std::string name(name_of(mem));
      module.conversions.push_back({mem, "flexsn_load_" + name, "flexsn_store_" + name});
      tasks.push_back(copying(module.conversions.back().load, mem, Mem::f32, identities));
      tasks.push_back(copying(module.conversions.back().store, Mem::f32, mem, identities));
    }
    const Width width = width_for(tasks);
    module.block = width.lanes * width.vectors;
    module.text = "%stream = type { ptr, i64 }\n";
    for (const LlvmTask& task : tasks) module.text += emit_function(task, width, options_);
    // Without being told, LLVM prefers to halve the vectors of x86-64-v4.
    const char* wide = options_.isa == Isa::x86_64_v4
                           ? " \"prefer-vector-width\"=\"512\" \"min-legal-vector-width\"=\"512\""
                           : "";
    module.text += join("attributes #0 = { nounwind", wide, " }\n!0 = !{i32 1}\n");
    return module;
  }

 private:
  /// Two vectors and two steps at a time are worth their code in short bodies; long ones would run out of
  /// registers.
  static Width width_for(const std::vector<LlvmTask>& tasks) {
    constexpr int long_body = 80, short_body = 16;
    int work = 0;
    bool wide = false;
    for (const LlvmTask& task : tasks) {
      work = std::max(work, work_of(task));
      wide = wide || has_f64(task);
    }
    return {
        .lanes = wide ? 8 : 16, .vectors = work <= long_body ? 2 : 1, .steps = work <= short_body ? 2 : 1};
  }

  bool has(int buffer) const { return buffer != no_buffer && present_[static_cast<std::size_t>(buffer)]; }

  Stream stream_of(Stream::Use use, int buffer) const {
    const Buffer& b = plan_.buffers[static_cast<std::size_t>(buffer)];
    return {use, buffer, b.mem, b.lead, b.map == Map::scalar ? Map::scalar : Map::element};
  }

  /// May the rows of this carry be those of its sequence, so that it needs no row of its own?
  bool carried_in_sequence(const Carry& carry) const {
    return has(carry.sequence) && !options_.streaming &&
           plan_.buffers[static_cast<std::size_t>(carry.sequence)].mem == natural_memory(carry.type);
  }

  LlvmTask task_of(std::string name, const Body& body, const std::vector<Carry>& carries,
                   bool reverse) const {
    LlvmTask task{.graph = &body.graph, .name = std::move(name), .reverse = reverse};
    internal_check(body.arguments.size() == body.graph.arguments.size() &&
                       body.results.size() == body.graph.results.size(),
                   "the slots of a body are those of its graph");
    for (std::size_t i = 0; i < body.arguments.size(); ++i) {
      const Id value = body.graph.arguments[i].value;
      const Slot& slot = body.arguments[i];
      if (slot.kind == Slot::Kind::carry)
        task.readings.push_back(carry_reading(task, value, slot.index, carries[slot.index]));
      else if (slot.kind == Slot::Kind::keep)
        task.readings.push_back({value, task.stream(keep_stream(slot.index))});
      else if (!has(slot.index))
        task.readings.push_back({value});
      else
        task.readings.push_back({value, task.stream(stream_of(Stream::Use::read, slot.index))});
    }
    for (std::size_t i = 0; i < body.results.size(); ++i)
      add_writings(task, body.graph.results[i].value, body.results[i], carries);
    return task;
  }

  Stream keep_stream(int index) const {
    return {Stream::Use::keep, index, natural_memory(plan_.kept[static_cast<std::size_t>(index)]),
            Lead::per_step};
  }
  Stream carry_stream(int index, const Carry& carry) const {
    return {Stream::Use::carry, index, natural_memory(carry.type),
            carried_in_sequence(carry) ? Lead::per_step : Lead::once};
  }

  Reading carry_reading(LlvmTask& task, Id value, int index, const Carry& carry) const {
    Reading reading{value};
    reading.stream = task.stream({Stream::Use::carry_in, index, natural_memory(carry.type)});
    reading.carry = task.stream(carry_stream(index, carry));
    if (has(carry.add_sequence)) reading.add = task.stream(stream_of(Stream::Use::add, carry.add_sequence));
    return reading;
  }

  void add_writings(LlvmTask& task, Id value, const Slot& slot, const std::vector<Carry>& carries) const {
    if (slot.kind == Slot::Kind::carry) {
      const Carry& carry = carries[static_cast<std::size_t>(slot.index)];
      task.writings.push_back({value, task.stream(carry_stream(slot.index, carry))});
      if (has(carry.sequence) && !carried_in_sequence(carry))
        task.writings.push_back({value, task.stream(stream_of(Stream::Use::write, carry.sequence))});
    } else if (slot.kind == Slot::Kind::keep) {
      task.writings.push_back({value, task.stream(keep_stream(slot.index))});
    } else if (slot.kind == Slot::Kind::store) {
      if (has(slot.index))
        task.writings.push_back({value, task.stream(stream_of(Stream::Use::write, slot.index))});
    } else {
      internal_check(slot.kind == Slot::Kind::sum, "a result of a body is stored, carried, kept or summed");
      const Sum& sum = plan_.sums[static_cast<std::size_t>(slot.index)];
      if (has(sum.buffer))
        task.writings.push_back(
            {value, task.stream({Stream::Use::sum, slot.index, natural_memory(sum.type)}), true});
    }
  }

  /// Does a carry start, end or stop on its way in memory of this type?
  bool is_carried_in(Mem mem) const {
    for (const std::vector<Carry>* carries : {&plan_.carries, &plan_.rebuilt})
      for (const Carry& carry : *carries)
        for (int buffer : {carry.first, carry.last, carry.checkpoint})
          if (has(buffer) && plan_.buffers[static_cast<std::size_t>(buffer)].mem == mem) return true;
    return false;
  }

  /// A task that copies a row and changes its memory type.
  static LlvmTask copying(const std::string& name, Mem from, Mem to, std::vector<Graph>& graphs) {
    Graph& graph = graphs.emplace_back();
    const V value = add_argument(graph, {.role = Role::input, .name = "x", .mem = from});
    LlvmTask task{.graph = &graph, .name = name};
    task.readings.push_back({value.id, task.stream({Stream::Use::hoisted, 0, from})});
    task.writings.push_back({value.id, task.stream({Stream::Use::hoisted, 1, to})});
    return task;
  }

  /// Moves what can be computed once a tile into a task of its own; `rows` are the types of its results.
  static std::optional<LlvmTask> hoist_out(LlvmTask& task, std::vector<Type>& rows) {
    const std::vector<Id> nodes = hoisted_nodes(task);
    if (nodes.empty()) return {};
    LlvmTask hoist{.graph = task.graph, .name = task.name + "_hoist"};
    for (const Reading& reading : task.readings) {
      if (reading.stream < 0) continue;
      const Stream& stream = task.streams[reading.stream];
      if (stream.use == Stream::Use::read && stream.lead == Lead::once)
        hoist.readings.push_back({reading.value, hoist.stream(stream)});
    }
    for (Id id : nodes) {
      const Type type = task.graph->at(id).type;
      const Stream row{Stream::Use::hoisted, static_cast<int>(rows.size()), natural_memory(type)};
      rows.push_back(type);
      hoist.writings.push_back({id, hoist.stream(row)});
      task.readings.push_back({id, task.stream(row)});
    }
    return hoist;
  }

  const Plan& plan_;
  const std::vector<bool>& present_;
  const LlvmOptions options_;
};

}  // namespace

LlvmModule emit_llvm(const Plan& plan, const std::vector<bool>& present, const LlvmOptions& options) {
  internal_check(present.size() == plan.buffers.size(), "presence is said for each buffer");
  internal_check(!options.streaming || is_x86(options.isa), "only x86 has streaming stores");
  const IeeeEnvironment environment;  // constants may be subnormal
  return ModuleEmitter(plan, present, options).emit();
}

}  // namespace flexsn
