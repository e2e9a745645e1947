#include "cuda_scope.h"

#include <algorithm>

#include "cuda_lines.h"
#include "cuda_names.h"
#include "cuda_shape.h"

namespace flexsn {

namespace {

/// A buffer's name in the text.
std::string wanted_name(const Buffer& buffer) {
  switch (buffer.holds) {
    case Holds::input:
    case Holds::param:
    case Holds::output:
    case Holds::saved:
      return buffer.name;
    case Holds::first_state:
      return "first_" + buffer.name;
    case Holds::state_sequence:
      return buffer.name + "_sequence";
    case Holds::last_state:
      return "last_" + buffer.name;
    case Holds::checkpoint:
      return "checkpoint_" + buffer.name;
    case Holds::grad_output:
    case Holds::grad_input:
    case Holds::grad_param:
      return "grad_" + buffer.name;
    case Holds::grad_last_state:
      return "grad_last_" + buffer.name;
    case Holds::grad_state_sequence:
      return "grad_" + buffer.name + "_sequence";
    case Holds::grad_first_state:
      return "grad_first_" + buffer.name;
  }
  internal_error("unknown buffer", std::source_location::current());
}

}  // namespace

CudaScope::CudaScope(const Plan& its_plan, const std::vector<bool>& present_buffers, const CudaOptions& with)
    : plan(its_plan),
      present(present_buffers),
      options(with),
      piece(steps_at_once(plan, options)),
      segment(plan.rebuild ? plan.segment : piece),
      neuron(CudaNames().add(plan.neuron)) {
  step = plan.reverse
             ? body_of(plan.step, "_backward",
                       "A step of backward for one element: gradients after it, gradients before it.")
             : body_of(plan.step, "_step", "A step for one element.");
  if (plan.rebuild)
    rebuild = body_of(*plan.rebuild, "_rebuild",
                      "A step forward for one element: what backward needs of it, and the next states.");
  name_values();
}

CudaBody CudaScope::body_of(const Body& body, std::string_view suffix, std::string_view comment) const {
  CudaBodyTask task{.body = &body, .name = join(neuron, suffix), .comment = std::string(comment)};
  for (const Slot& slot : body.arguments)
    task.given.push_back(slot.kind == Slot::Kind::carry || slot.kind == Slot::Kind::keep || has(slot.index));
  for (const Slot& slot : body.results)
    task.wanted.push_back(slot.kind == Slot::Kind::store ? has(slot.index)
                          : slot.kind == Slot::Kind::sum ? has(plan.sums[at(slot.index)].buffer)
                                                         : true);
  return cuda_body(task);
}

std::vector<bool> CudaScope::find_touched() const {
  std::vector<bool> found(plan.buffers.size());
  const auto touch = [&](int index) {
    if (has(index)) found[at(index)] = true;
  };
  for (const auto& [cuda, body] : bodies()) {
    for (const std::vector<int>* reads : {&cuda->once_reads, &cuda->reads})
      for (int argument : *reads) {
        const Slot& slot = body->arguments[at(argument)];
        if (slot.kind == Slot::Kind::load || slot.kind == Slot::Kind::param) touch(slot.index);
      }
    for (int result : cuda->gives)
      if (body->results[at(result)].kind == Slot::Kind::store) touch(body->results[at(result)].index);
  }
  for (const std::vector<Carry>* list : {&plan.carries, &plan.rebuilt})
    for (const Carry& carry : *list)
      for (int index : {carry.first, carry.last, carry.sequence, carry.add_sequence, carry.checkpoint})
        touch(index);
  for (const Sum& sum : plan.sums) touch(sum.buffer);
  return found;
}

void CudaScope::name_values() {
  CudaNames record{"steps", "elements", "first_step", "beyond_cache", "partial_sums"};
  const std::vector<bool> is_touched = find_touched();
  fields.resize(plan.buffers.size());
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (is_touched[i]) fields[i] = record.add(wanted_name(plan.buffers[i]));
  const auto named = [](const Body& body, Slot::Kind kind, std::size_t count, CudaNames& scope) {
    std::vector<std::string> found(count);
    for (std::size_t i = 0; i < body.arguments.size(); ++i)
      if (body.arguments[i].kind == kind)
        found[at(body.arguments[i].index)] = scope.add(body.graph.arguments[i].name);
    for (std::string& one : found)
      if (one.empty()) one = scope.add("value");
    return found;
  };
  CudaNames carried;
  carries = named(plan.step, Slot::Kind::carry, plan.carries.size(), carried);
  CudaNames states, keeps;
  if (plan.rebuild) rebuilt = named(*plan.rebuild, Slot::Kind::carry, plan.rebuilt.size(), states);
  // Names of variables in the function that takes steps, and in pieces in that which rebuilds them.
  CudaNames locals{"run",   "thread", "begin",  "rows",  "kept",     "carried",        "sums",
                   "place", "lane",   "states", "count", "from",     "carried_before", "sums_before",
                   "k",     "i",      "group",  "end",   "is_there", "together",       step.step};
  if (rebuild) locals.add(rebuild->step);
  kept = named(plan.step, Slot::Kind::keep, plan.kept.size(), in_pieces() ? locals : keeps);
  kept_rows.resize(plan.buffers.size());
  if (in_pieces()) {
    const std::vector<int> later = rows_read_by(step, plan.step);
    for (int i : rows_read_by(*rebuild, *plan.rebuild))
      if (buffer(i).map != Map::scalar && std::find(later.begin(), later.end(), i) != later.end())
        kept_rows[at(i)] = locals.add("kept_" + name(i));
  }
  pointers.resize(plan.buffers.size());
  for (std::size_t i = 0; i < pointers.size(); ++i)
    if (!fields[i].empty() && plan.buffers[i].lead == Lead::per_step)
      pointers[i] = locals.add(fields[i] + "_row");
  rows.resize(plan.buffers.size());
  unrounded.resize(plan.buffers.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (fields[i].empty() || !plan.buffers[i].write || plan.buffers[i].lead != Lead::per_step) continue;
    rows[i] = locals.add(fields[i]);
    if (!is_natural(plan.buffers[i].mem)) unrounded[i] = locals.add(fields[i] + "_value");
  }
  for (const Sum& sum : plan.sums) {
    sums.push_back(has(sum.buffer) ? name(sum.buffer) : "");
    parts.push_back(has(sum.buffer) ? locals.add(name(sum.buffer) + "_part") : "");
  }
}

bool CudaScope::has_sums() const {
  return std::any_of(sums.begin(), sums.end(), [](const std::string& one) { return !one.empty(); });
}

std::vector<int> CudaScope::touched() const {
  std::vector<int> list;
  for (int i = 0; i < static_cast<int>(fields.size()); ++i)
    if (!name(i).empty()) list.push_back(i);
  return list;
}

std::vector<int> CudaScope::rows_read() const {
  std::vector<int> list = touched();
  std::erase_if(list, [&](int i) { return buffer(i).write || buffer(i).lead != Lead::per_step; });
  return list;
}

std::vector<int> CudaScope::rows_written() const {
  std::vector<int> list = touched();
  std::erase_if(list, [&](int i) { return !buffer(i).write || buffer(i).lead != Lead::per_step; });
  return list;
}

std::vector<int> CudaScope::rows_read_by(const CudaBody& cuda, const Body& body) const {
  std::vector<int> list = rows_read();
  std::erase_if(list, [&](int i) {
    return std::none_of(cuda.reads.begin(), cuda.reads.end(), [&](int argument) {
      return body.arguments[at(argument)] == Slot{Slot::Kind::load, i};
    });
  });
  return list;
}

std::vector<std::pair<const CudaBody*, const Body*>> CudaScope::bodies() const {
  std::vector<std::pair<const CudaBody*, const Body*>> list = {{&step, &plan.step}};
  if (rebuild) list.push_back({&*rebuild, &*plan.rebuild});
  return list;
}

std::string CudaScope::row_type(Mem mem) const { return join("flexsn_row<", cuda_type(mem), ", V>"); }

std::string CudaScope::only_row(int index) const {
  const Buffer& b = buffer(index);
  const std::string_view type = cuda_type(b.mem);
  if (b.map == Map::scalar) return join("flexsn_same<", type, ", V>(run.", name(index), ".get())");
  if (b.map == Map::indexed)
    return join("flexsn_gather<", type, ", V>(run.", name(index), ".data, thread.", name(index), "_places)");
  return join("flexsn_load<", type, ", V>(run.", name(index), " + thread.first)");
}

std::string_view CudaScope::unrolling() const {
  return is_too_long(work(), piece, options.vector) ? "#pragma unroll 1" : "#pragma unroll";
}

}  // namespace flexsn
