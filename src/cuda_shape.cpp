#include "cuda_shape.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <set>

#include "error.h"

namespace flexsn {

using namespace ir;

namespace {

int registers_of(Type type) { return type == Type::f64 ? 2 : 1; }

/// The same of all values but constants.
int alive_at_once(const Graph& graph) {
  std::vector<bool> counted(graph.nodes.size());
  for (std::size_t id = 0; id < counted.size(); ++id) counted[id] = graph.nodes[id].op != Op::constant;
  return flexsn::alive_at_once(graph, counted);
}

/// Registers for what is loaded in each step: by the rebuild, and what else a step reads.
std::pair<int, int> loaded_each_step(const Plan& plan) {
  std::vector<bool> loaded(plan.buffers.size());
  const auto load = [&](int buffer) {
    const Buffer& b = plan.buffers[static_cast<std::size_t>(buffer)];
    std::vector<bool>::reference found = loaded[static_cast<std::size_t>(buffer)];
    const int registers = found || b.map == Map::scalar ? 0 : registers_of(value_type(b.mem));
    found = true;
    return registers;
  };
  const auto load_for = [&](const Body& body) {
    int registers = 0;
    for (const Slot& slot : body.arguments)
      if (slot.kind == Slot::Kind::load) registers += load(slot.index);
    return registers;
  };
  const int before = plan.rebuild ? load_for(*plan.rebuild) : 0;
  int later = load_for(plan.step);
  for (const Carry& carry : plan.carries)
    if (carry.add_sequence != no_buffer) later += load(carry.add_sequence);
  return {before, later};
}

constexpr int longest = 8;

/// Steps that are loaded at once, and elements and threads with which what the steps of a longer segment keep
/// finds room; where none do, all of them are.
void cut_time(const Plan& plan, CudaOptions& options) {
  options.unroll = longest;
  if (plan.rebuild && plan.segment > longest)
    for (CudaOptions cut = options; cut.vector > 0; cut.vector /= 2)
      for (cut.threads = options.threads; cut.threads >= 32; cut.threads /= 2) {
        cut.narrow_threads = std::min(options.threads, cut.vector * cut.threads);
        if (in_pieces(plan, cut)) {
          options = cut;
          return;
        }
      }
  options.unroll = steps_at_once(plan, options);
}

/// How many rows each step reads or writes.
int rows_each_step(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.buffers.begin(), plan.buffers.end(), [](const Buffer& buffer) {
    return buffer.lead == Lead::per_step && buffer.map != Map::scalar;
  }));
}

/// The bytes of an entry of the narrowest row that each step reads or writes.
int narrowest_row(const Plan& plan) {
  int bytes = 8;
  for (const Buffer& buffer : plan.buffers)
    if (buffer.lead == Lead::per_step && buffer.map == Map::element)
      bytes = std::min(bytes, static_cast<int>(size_of(buffer.mem)));
  return bytes;
}

}  // namespace

int alive_at_once(const Graph& graph, const std::vector<bool>& counted) {
  std::vector<Id> last_use(graph.nodes.size(), no_id);
  for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id)
    for (Id operand : graph.at(id).operands)
      if (operand != no_id) last_use[operand] = id;
  for (const Result& result : graph.results) last_use[result.value] = static_cast<Id>(graph.nodes.size());
  int alive = 0, most = 0;
  std::vector<int> ends(graph.nodes.size() + 1);
  for (Id id = 0; id < static_cast<Id>(graph.nodes.size()); ++id) {
    if (last_use[id] == no_id || !counted[id]) {
      alive -= ends[id];
      continue;
    }
    alive += registers_of(graph.at(id).type);
    ends[last_use[id]] += registers_of(graph.at(id).type);
    most = std::max(most, alive);
    alive -= ends[id];
  }
  return most;
}

void count_registers(const Plan& plan, CudaShape& shape) {
  const auto [before, later] = loaded_each_step(plan);
  const bool pieces = in_pieces(plan, shape.options);
  shape.loaded_a_step = before + later;
  int whole = shape.loaded_a_step;
  for (Type type : plan.kept) whole += registers_of(type);
  shape.registers_a_step = pieces ? std::max(before, later) : whole;
  shape.narrow_steps = narrow_steps_at_once(plan, shape.options);
  shape.narrow_registers_a_step = shape.narrow_steps > shape.options.unroll ? whole : shape.registers_a_step;
}

CudaShape cuda_shape(const Plan& plan) {
  constexpr int most_registers = 96, most_narrow_registers = 192, row_bytes = 8;
  constexpr int few_registers = 64, few_registers_in_pieces = 32, few_narrow_registers = 112;
  CudaShape shape;
  for (const std::vector<Carry>* carries : {&plan.carries, &plan.rebuilt})
    for (const Carry& carry : *carries) shape.registers_at_once += registers_of(carry.type);
  for (const Sum& sum : plan.sums) shape.registers_at_once += registers_of(sum.type);
  const int rebuilding = plan.rebuild ? alive_at_once(plan.rebuild->graph) : 0;
  shape.registers_at_once += std::max(alive_at_once(plan.step.graph), rebuilding);
  shape.ops = ops_a_step(plan.step.graph) + (plan.rebuild ? ops_a_step(plan.rebuild->graph) : 0);
  shape.work = work_a_step(plan.step.graph) + (plan.rebuild ? work_a_step(plan.rebuild->graph) : 0);
  // As counted on an H200: loads, stores and addresses are a fifth on top.
  shape.instructions = shape.work * 6 / 5;

  CudaOptions& options = shape.options;
  options.vector = std::clamp(row_bytes / narrowest_row(plan), 1, 4);
  cut_time(plan, options);
  count_registers(plan, shape);
  const bool pieces = in_pieces(plan, options);
  const int few = pieces ? few_registers_in_pieces : few_registers;
  const auto is_too_much = [&] {
    return shape.registers() > most_registers || is_too_long(shape.work, options.unroll, options.vector);
  };
  while (!plan.rebuild && options.unroll > 1 && is_too_much()) options.unroll /= 2;
  while (options.vector > 1 && is_too_much()) options.vector /= 2;
  if (shape.registers() > most_registers)
    options.resident_threads = 0;
  else if (shape.registers() <= few && shape.ops <= 64 && options.vector == 2 && rows_each_step(plan) <= 4 &&
           !(pieces && !plan.sums.empty()))
    options.resident_threads = 1024;
  count_registers(plan, shape);
  options.early = shape.narrow_registers() <= most_narrow_registers &&
                  !(pieces && is_too_long(shape.work, shape.narrow_steps, 1));
  count_registers(plan, shape);
  if (pieces && options.early && shape.narrow_registers() <= few_narrow_registers)
    options.narrow_resident_threads = 512;
  // The rows and values of steps that run in a loop are in memory by intention. One step that is too long
  // spills whatever is tried: it is compiled once, in the way that spilled least and took least time.
  options.again_if_spilled = !is_too_long(shape.work, options.unroll, 1);
  if (is_too_long(shape.work, 1, 1)) options.resident_threads = options.narrow_resident_threads = 256;
  return shape;
}

CudaShape cuda_shape_to_run(const Plan& plan) {
  CudaShape shape = cuda_shape(plan);
  if (const char* asked = std::getenv("FLEXSN_CUDA_SHAPE"); asked != nullptr)
    shape = cuda_shape_asked(asked, std::move(shape));
  shape.options.unroll = steps_at_once(plan, shape.options);
  count_registers(plan, shape);
  return shape;
}

bool fills_device(const CudaOptions& options, std::int64_t elements, int multiprocessors) {
  // With fewer wide blocks than this for each multiprocessor a device waits for memory more than it loads.
  constexpr std::int64_t blocks_of_a_multiprocessor = 2;
  // Smaller blocks, as those that keep much in shared memory, count for less.
  const std::int64_t block = std::int64_t{options.vector} * std::max(options.threads, CudaOptions().threads);
  return (elements + block - 1) / block >= blocks_of_a_multiprocessor * multiprocessors;
}

CudaShape cuda_shape_asked(std::string_view asked, CudaShape rule) {
  const auto fail = [&](std::string_view part) {
    user_error("FLEXSN_CUDA_SHAPE has a part '", part,
               "' that is not known; write entry=wide or narrow, vector=1, 2 or 4, unroll=1 to 64, threads=, "
               "narrow_threads= and resident_threads=32 to 1024, powers of two (resident_threads=0: the "
               "compiler's choice), with commas between");
  };
  if (asked.ends_with(',')) fail("");
  CudaOptions& options = rule.options;
  std::set<std::string_view> names;
  while (!asked.empty()) {
    const std::string_view part = asked.substr(0, asked.find(','));
    asked.remove_prefix(std::min(asked.size(), part.size() + 1));
    if (!names.insert(part.substr(0, part.find('='))).second)
      user_error("FLEXSN_CUDA_SHAPE says twice what '", part, "' says; write it once");
    if (part == "entry=wide" || part == "entry=narrow") {
      rule.entry = part == "entry=wide" ? CudaEntry::wide : CudaEntry::narrow;
      continue;
    }
    const std::size_t sign = part.find('=');
    const std::string_view name = part.substr(0, sign);
    int number = 0;
    if (sign != part.npos) std::from_chars(part.data() + sign + 1, part.data() + part.size(), number);
    int* place = name == "vector"             ? &options.vector
                 : name == "unroll"           ? &options.unroll
                 : name == "threads"          ? &options.threads
                 : name == "narrow_threads"   ? &options.narrow_threads
                 : name == "resident_threads" ? &options.resident_threads
                                              : nullptr;
    const int least = name.ends_with("threads") ? 32 : 1;
    const int most = name == "vector" ? 4 : name == "unroll" ? 64 : 1024;
    const bool is_size = number >= least && number <= most && std::has_single_bit(unsigned(number));
    const bool is_left_open = name == "resident_threads" && number == 0;
    if (place == nullptr || !(is_size || is_left_open) || join(name, "=", number) != part) fail(part);
    *place = number;
    options.again_if_spilled = false;
  }
  return rule;
}

}  // namespace flexsn
