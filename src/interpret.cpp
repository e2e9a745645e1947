// A scan takes each block through all of time, so that its values stay in the processor's cache.
#include "interpret.h"

#include <algorithm>
#include <mutex>

#include "build.h"
#include "environment.h"
#include "error.h"
#include "frame.h"

namespace flexsn {

using namespace ir;

namespace {

template <class From, class To, class Convert>
void convert_all(const void* from, void* to, std::int64_t count, Convert convert) {
  const From* source = static_cast<const From*>(from);
  To* target = static_cast<To*>(to);
  for (std::int64_t n = 0; n < count; ++n) target[n] = convert(source[n]);
}

/// One scan of one graph: what its loops share.
class Scanner {
 public:
  Scanner(const Graph& graph, const Scan& scan)
      : graph_(graph), scan_(scan), frame_(graph, std::clamp<std::int64_t>(scan.elements, 1, block_size)) {
    for (const Result& result : graph.results)
      next_rooms_.emplace_back(result.gives == Gives::next ? block_size * value_bytes : 0);
  }

  void run() {
    for (first_ = 0; first_ < scan_.elements; first_ += block_size) {
      count_ = std::min(block_size, scan_.elements - first_);
      start_block();
      for (std::int64_t t = 0; t < scan_.steps; ++t) step(t);
    }
  }

 private:
  void load_argument(std::size_t index, std::int64_t t) {
    const Argument& argument = graph_.arguments[index];
    const Source& source = scan_.sources[index];
    void* room = frame_.room(argument.value);
    const std::byte* row = element(source.data, source.mem, t * source.row_stride);
    if (source.map == Map::scalar) {
      load(source.mem, row, room, 1);
    } else if (source.map == Map::element) {
      load(source.mem, element(row, source.mem, first_), room, count_);
    } else {
      const std::size_t size = size_of(value_type(source.mem));
      for (std::int64_t n = 0; n < count_; ++n)
        load(source.mem, element(row, source.mem, source.indices[first_ + n]),
             static_cast<std::byte*>(room) + static_cast<std::size_t>(n) * size, 1);
    }
    frame_.slice(argument.value) = {room, source.map == Map::scalar ? 0 : 1};
  }

  /// What does not change with time: parameters, what depends on them only, and the first states.
  void start_block() {
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
      const Argument& argument = graph_.arguments[i];
      if (argument.role == Role::state || (argument.role == Role::param && !argument.per_step))
        load_argument(i, 0);
    }
    frame_.run_once(first_, count_);
    if (scan_.steps > 0) return;
    for (std::size_t i = 0; i < graph_.results.size(); ++i) {
      const Result& result = graph_.results[i];
      if (result.gives == Gives::next)
        write(i, scan_.targets[i].last, 0, frame_.slice(graph_.arguments[result.of].value));
    }
  }

  void step(std::int64_t t) {
    for (std::size_t i = 0; i < graph_.arguments.size(); ++i) {
      const Argument& argument = graph_.arguments[i];
      if (argument.role != Role::state && (argument.role != Role::param || argument.per_step))
        load_argument(i, t);
    }
    frame_.run_step(scan_.first_step + t, count_);
    for (std::size_t i = 0; i < graph_.results.size(); ++i) {
      const Target& target = scan_.targets[i];
      const Slice& value = frame_.slice(graph_.results[i].value);
      write(i, target.sequence, t * target.row_stride, value);
      if (t + 1 == scan_.steps) write(i, target.last, 0, value);
    }
    carry_states();
  }

  void write(std::size_t result, void* base, std::int64_t offset, const Slice& value) {
    if (base == nullptr) return;
    const Mem mem = graph_.results[result].mem;
    auto* to = const_cast<std::byte*>(element(base, mem, offset + first_));
    if (value.stride == 1) return store(mem, value.data, to, count_);
    for (std::int64_t n = 0; n < count_; ++n)
      store(mem, value.data, to + n * static_cast<std::int64_t>(flexsn::size_of(mem)), 1);
  }

  /// New states may be each other's old ones, so all are copied out before any is replaced.
  void carry_states() {
    for (int phase : {0, 1}) {
      for (std::size_t i = 0; i < graph_.results.size(); ++i) {
        const Result& result = graph_.results[i];
        if (result.gives != Gives::next) continue;
        const Id state = graph_.arguments[result.of].value;
        const Slice from = frame_.slice(result.value);
        const std::size_t size = size_of(value_type(result.mem));
        if (phase == 0 && from.stride == 1) {
          std::memcpy(next_rooms_[i].data(), from.data, static_cast<std::size_t>(count_) * size);
        } else if (phase == 0) {
          for (std::int64_t n = 0; n < count_; ++n)
            std::memcpy(next_rooms_[i].data() + static_cast<std::size_t>(n) * size, from.data, size);
        } else {
          std::memcpy(frame_.room(state), next_rooms_[i].data(), static_cast<std::size_t>(count_) * size);
          frame_.slice(state) = {frame_.room(state), 1};
        }
      }
    }
  }

  const Graph& graph_;
  const Scan& scan_;
  Frame frame_;
  std::vector<std::vector<std::byte>> next_rooms_;
  std::int64_t first_ = 0, count_ = 0;
};

}  // namespace

void load(Mem mem, const void* from, void* to, std::int64_t count) {
  if (count == 0) return;  // there may be no memory
  switch (mem) {
    case Mem::f16:
      return convert_all<std::uint16_t, float>(from, to, count, exact::from_f16);
    case Mem::bf16:
      return convert_all<std::uint16_t, float>(from, to, count, exact::from_bf16);
    case Mem::f32:
    case Mem::i32:
      std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
      return;
    case Mem::f64:
      std::memcpy(to, from, static_cast<std::size_t>(count) * 8);
      return;
    case Mem::u8:
      return convert_all<std::uint8_t, std::int32_t>(from, to, count,
                                                     [](std::uint8_t x) { return std::int32_t{x}; });
    case Mem::b8:
      return convert_all<std::uint8_t, bool>(from, to, count, [](std::uint8_t x) { return x != 0; });
  }
}

void store(Mem mem, const void* from, void* to, std::int64_t count) {
  if (count == 0) return;  // there may be no memory
  switch (mem) {
    case Mem::f16:
      return convert_all<float, std::uint16_t>(from, to, count, exact::to_f16);
    case Mem::bf16:
      return convert_all<float, std::uint16_t>(from, to, count, exact::to_bf16);
    case Mem::f32:
    case Mem::i32:
      std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
      return;
    case Mem::f64:
      std::memcpy(to, from, static_cast<std::size_t>(count) * 8);
      return;
    case Mem::u8:
      return convert_all<std::int32_t, std::uint8_t>(
          from, to, count, [](std::int32_t x) { return static_cast<std::uint8_t>(x); });
    case Mem::b8:
      return convert_all<bool, std::uint8_t>(from, to, count, [](bool x) { return std::uint8_t{x}; });
  }
}

void interpret(const Graph& graph, const Scan& scan) {
  internal_check(scan.sources.size() == graph.arguments.size() && scan.targets.size() == graph.results.size(),
                 "a scan's sources and targets must be those of the graph");
  const IeeeEnvironment environment;
  Scanner(graph, scan).run();
}

std::uint64_t evaluate(Op op, const Type* types, const std::uint64_t* bits) {
  const IeeeEnvironment environment;
  Graph graph;
  V operands[max_arity];
  const int arity = row_of(op).arity;
  for (int i = 0; i < arity; ++i) operands[i] = constant_bits(graph, types[i], bits[i]);
  const V result = apply(op, operands, arity);
  Frame frame(graph, 1);
  frame.run(result.id, 1);
  std::uint64_t out = 0;
  std::memcpy(&out, frame.slice(result.id).data, size_of(result.type()));
  // A NaN that arithmetic makes differs between processors; a constant must not.
  const double number = number_of(result.type(), out);
  return number != number ? bits_of(result.type(), std::numeric_limits<double>::quiet_NaN()) : out;
}

const Graph& expansion_of(Op op, Type t) {
  static std::mutex mutex;
  static std::map<std::pair<Op, Type>, std::unique_ptr<const Graph>> known;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const Graph>& found = known[{op, t}];
  if (!found) {
    const Row& row = row_of(op);
    auto graph = std::make_unique<Graph>();
    graph->name = row.name;
    V operands[max_arity];
    for (int i = 0; i < row.arity; ++i)
      operands[i] = add_argument(
          *graph,
          {.role = Role::input, .name = join("x", i), .mem = natural_memory(operand_type(row, i, t))});
    const V result = row.meaning.expand(operands);
    graph->results.push_back(
        {.gives = Gives::output, .name = "y", .mem = natural_memory(result.type()), .value = result.id});
    found = std::move(graph);
  }
  return *found;
}

}  // namespace flexsn
