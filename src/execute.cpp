// Each block of elements goes through all of time on its own.
#include "execute.h"

#include <algorithm>

#include "environment.h"
#include "error.h"
#include "frame.h"

namespace flexsn {

using namespace ir;

namespace {

/// The values of one block.
using Room = std::vector<std::byte>;

Room room_for(std::int64_t rows = 1) {
  return Room(static_cast<std::size_t>(rows * block_size) * value_bytes);
}

template <class F>
void add_as(void* to, const void* from, std::int64_t count) {
  F* sums = static_cast<F*>(to);
  const F* values = static_cast<const F*>(from);
  for (std::int64_t n = 0; n < count; ++n) sums[n] += values[n];
}

void add(Type type, void* to, const void* from, std::int64_t count) {
  type == Type::f64 ? add_as<double>(to, from, count) : add_as<float>(to, from, count);
}

void fill(Type type, void* to, double value, std::int64_t count) {
  const std::uint64_t bits = bits_of(type, value);
  for (std::int64_t n = 0; n < count; ++n)
    std::memcpy(static_cast<std::byte*>(to) + static_cast<std::size_t>(n) * size_of(type), &bits,
                size_of(type));
}

class Executor {
 public:
  Executor(const Plan& plan, const PlanRun& run) : plan_(plan), run_(run), step_(plan.step, block(run)) {
    if (plan.rebuild) rebuild_.emplace(*plan.rebuild, block(run));
    const std::int64_t longest = plan.segment > 0 ? std::min<std::int64_t>(plan.segment, run.steps) : 0;
    for (std::size_t i = 0; i < plan.carries.size(); ++i) carries_.push_back(room_for());
    for (std::size_t i = 0; i < plan.rebuilt.size(); ++i) rebuilt_.push_back(room_for());
    for (std::size_t i = 0; i < plan.kept.size(); ++i)
      kept_.push_back(room_for(std::max<std::int64_t>(longest, 1)));
    for (std::size_t i = 0; i < plan.sums.size(); ++i) sums_.push_back(room_for());
  }

  void run() {
    for (first_ = 0; first_ < run_.elements; first_ += block_size) {
      count_ = std::min(block_size, run_.elements - first_);
      start();
      const std::int64_t length = plan_.segment > 0 ? plan_.segment : std::max<std::int64_t>(run_.steps, 1);
      const std::int64_t segments = (run_.steps + length - 1) / length;
      for (std::int64_t i = 0; i < segments; ++i) {
        const std::int64_t segment = plan_.reverse ? segments - 1 - i : i;
        const std::int64_t begin = segment * length, end = std::min(run_.steps, begin + length);
        if (plan_.rebuild) rebuild(segment, begin, end);
        for (std::int64_t k = 0; k < end - begin; ++k) {
          const std::int64_t t = plan_.reverse ? end - 1 - k : begin + k;
          step(t, t - begin);
        }
        if (!plan_.reverse && segment + 1 < segments)
          for (std::size_t c = 0; c < plan_.carries.size(); ++c)
            write(plan_.carries[c].checkpoint, segment, {carries_[c].data(), 1});
      }
      finish();
    }
  }

 private:
  /// A body, its frame, and room for new values of its carries.
  struct Bench {
    Bench(const Body& its_body, std::int64_t block_elements)
        : body(its_body), frame(body.graph, block_elements) {
      for (std::size_t i = 0; i < body.results.size(); ++i) next.push_back(room_for());
    }
    const Body& body;
    Frame frame;
    std::vector<Room> next;
  };

  static std::int64_t block(const PlanRun& run) {
    return std::clamp<std::int64_t>(run.elements, 1, block_size);
  }

  /// Reads row `row` of a buffer as values; gives where they are.
  Slice read(int index, std::int64_t row, void* room) const {
    const Buffer& buffer = plan_.buffers[index];
    const Bound& bound = run_.buffers[index];
    const std::byte* from = element(bound.data, buffer.mem, row * bound.row_stride);
    if (buffer.map == Map::scalar) {
      load(buffer.mem, from, room, 1);
      return {room, 0};
    }
    if (buffer.map == Map::element) {
      load(buffer.mem, element(from, buffer.mem, first_), room, count_);
      return {room, 1};
    }
    const std::size_t size = size_of(value_type(buffer.mem));
    for (std::int64_t n = 0; n < count_; ++n)
      load(buffer.mem, element(from, buffer.mem, (first_ + n) / bound.inner % bound.count),
           static_cast<std::byte*>(room) + static_cast<std::size_t>(n) * size, 1);
    return {room, 1};
  }

  void write(int index, std::int64_t row, const Slice& value) {
    if (index == no_buffer || run_.buffers[index].data == nullptr) return;
    const Mem mem = plan_.buffers[index].mem;
    const Bound& bound = run_.buffers[index];
    auto* to = const_cast<std::byte*>(element(bound.data, mem, row * bound.row_stride + first_));
    if (value.stride == 1) return store(mem, value.data, to, count_);
    for (std::int64_t n = 0; n < count_; ++n)
      store(mem, value.data, to + n * static_cast<std::int64_t>(size_of(mem)), 1);
  }

  /// `value` in full, one for each element.
  void spread(const Slice& value, Type type, void* room) const {
    const std::size_t size = size_of(type);
    if (value.stride == 1) {
      if (value.data != room) std::memmove(room, value.data, static_cast<std::size_t>(count_) * size);
      return;
    }
    std::uint64_t bits = 0;
    std::memcpy(&bits, value.data, size);
    for (std::int64_t n = 0; n < count_; ++n)
      std::memcpy(static_cast<std::byte*>(room) + static_cast<std::size_t>(n) * size, &bits, size);
  }

  void start() {
    for (std::size_t i = 0; i < plan_.carries.size(); ++i) {
      const Carry& carry = plan_.carries[i];
      if (carry.first != no_buffer && run_.buffers[carry.first].data != nullptr)
        spread(read(carry.first, 0, carries_[i].data()), carry.type, carries_[i].data());
      else
        fill(carry.type, carries_[i].data(), run_.steps > 0 ? -0.0 : 0.0, count_);
    }
    for (std::size_t i = 0; i < plan_.sums.size(); ++i)
      fill(plan_.sums[i].type, sums_[i].data(), run_.steps > 0 ? -0.0 : 0.0, count_);
    for (Bench* bench : {rebuild_ ? &*rebuild_ : nullptr, &step_}) {
      if (bench == nullptr) continue;
      for (std::size_t i = 0; i < bench->body.arguments.size(); ++i) {
        const Slot slot = bench->body.arguments[i];
        const Id value = bench->body.graph.arguments[i].value;
        if (slot.kind == Slot::Kind::param)
          bench->frame.slice(value) = read(slot.index, 0, bench->frame.room(value));
      }
      bench->frame.run_once(first_, count_);
    }
  }

  void rebuild(std::int64_t segment, std::int64_t begin, std::int64_t end) {
    for (std::size_t i = 0; i < plan_.rebuilt.size(); ++i) {
      const Carry& carry = plan_.rebuilt[i];
      const Slice from = segment == 0 ? read(carry.first, 0, rebuilt_[i].data())
                                      : read(carry.checkpoint, segment - 1, rebuilt_[i].data());
      spread(from, carry.type, rebuilt_[i].data());
    }
    for (std::int64_t t = begin; t < end; ++t) run_body(*rebuild_, rebuilt_, t, t - begin);
  }

  void step(std::int64_t t, std::int64_t k) {
    for (std::size_t i = 0; i < plan_.carries.size(); ++i) {
      const Carry& carry = plan_.carries[i];
      if (carry.add_sequence == no_buffer || run_.buffers[carry.add_sequence].data == nullptr) continue;
      Room arrived = room_for();
      read(carry.add_sequence, t, arrived.data());
      add(carry.type, carries_[i].data(), arrived.data(), count_);
    }
    run_body(step_, carries_, t, k);
    for (std::size_t i = 0; i < plan_.carries.size(); ++i)
      write(plan_.carries[i].sequence, t, {carries_[i].data(), 1});
  }

  void* kept(int index, std::int64_t k) {
    return kept_[index].data() + static_cast<std::size_t>(k * block_size) * value_bytes;
  }

  void run_body(Bench& bench, std::vector<Room>& carries, std::int64_t t, std::int64_t k) {
    const Body& body = bench.body;
    for (std::size_t i = 0; i < body.arguments.size(); ++i) {
      const Slot slot = body.arguments[i];
      const Id value = body.graph.arguments[i].value;
      if (slot.kind == Slot::Kind::load)
        bench.frame.slice(value) = read(slot.index, t, bench.frame.room(value));
      else if (slot.kind == Slot::Kind::carry)
        bench.frame.slice(value) = {carries[slot.index].data(), 1};
      else if (slot.kind == Slot::Kind::keep)
        bench.frame.slice(value) = {kept(slot.index, k), 1};
    }
    bench.frame.run_step(run_.first_step + t, count_);
    for (std::size_t i = 0; i < body.results.size(); ++i) {
      const Slot slot = body.results[i];
      const Result& result = body.graph.results[i];
      const Slice& value = bench.frame.slice(result.value);
      const Type type = value_type(result.mem);
      if (slot.kind == Slot::Kind::store) write(slot.index, t, value);
      if (slot.kind == Slot::Kind::keep) spread(value, type, kept(slot.index, k));
      if (slot.kind == Slot::Kind::carry || slot.kind == Slot::Kind::sum)
        spread(value, type, bench.next[i].data());
      if (slot.kind == Slot::Kind::sum) add(type, sums_[slot.index].data(), bench.next[i].data(), count_);
    }
    // New values may be each other's old ones, so none is replaced before all are there.
    for (std::size_t i = 0; i < body.results.size(); ++i)
      if (body.results[i].kind == Slot::Kind::carry) carries[body.results[i].index] = bench.next[i];
  }

  void finish() {
    for (std::size_t i = 0; i < plan_.carries.size(); ++i)
      write(plan_.carries[i].last, 0, {carries_[i].data(), 1});
    for (std::size_t i = 0; i < plan_.sums.size(); ++i) write(plan_.sums[i].buffer, 0, {sums_[i].data(), 1});
  }

  const Plan& plan_;
  const PlanRun& run_;
  Bench step_;
  std::optional<Bench> rebuild_;
  std::vector<Room> carries_, rebuilt_, sums_;
  std::vector<Room> kept_;  ///< for each kept value, a block for each step of a segment
  std::int64_t first_ = 0, count_ = 0;
};

}  // namespace

std::int64_t rows_of(const Plan& plan, const Buffer& buffer, std::int64_t steps) {
  if (buffer.lead == Lead::once) return 1;
  if (buffer.lead == Lead::per_step) return steps;
  return steps > 0 ? (steps + plan.segment - 1) / plan.segment - 1 : 0;
}

void check_buffers(const Plan& plan, const PlanRun& run) {
  internal_check(run.buffers.size() == plan.buffers.size(), "a run must give each of the plan's buffers");
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    internal_check(run.buffers[i].data != nullptr || plan.buffers[i].optional || plan.buffers[i].write ||
                       run.elements == 0 || rows_of(plan, plan.buffers[i], run.steps) == 0,
                   "a buffer that is read is missing");
}

void execute(const Plan& plan, const PlanRun& run) {
  check_buffers(plan, run);
  const IeeeEnvironment environment;
  Executor(plan, run).run();
}

}  // namespace flexsn
