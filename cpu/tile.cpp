// A tile whose length is a multiple of a block is run where it lies. What is left at the end, less than a
// block, is copied into padded rows, a few steps at a time, and back; so are rows that must be spread out
// (one entry for many elements). Time can be cut anywhere, since all that goes from step to step is in memory
// between calls.
#include "tile.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "environment.h"
#include "error.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr std::int64_t alignment = 64;

std::int64_t bytes_of(Mem mem) { return static_cast<std::int64_t>(size_of(mem)); }

/// A word again and again. Every tile starts with rows of them, so it goes at the speed of memory: zeros need
/// not even be read into a cache before, and other words are copied in lines.
template <class Word>
void repeat(Word* to, std::int64_t count, Word word) {
  const bool short_run = count < 64;
  if (word == 0 && !short_run) {
    std::memset(to, 0, static_cast<std::size_t>(count) * sizeof(Word));
    return;
  }
  const std::int64_t first = short_run ? count : std::min<std::int64_t>(count, 4096 / sizeof(Word));
  std::fill_n(to, first, word);
  for (std::int64_t done = first; done < count; done += first)
    std::memcpy(to + done, to, static_cast<std::size_t>(std::min(first, count - done)) * sizeof(Word));
}

void fill(Type type, std::byte* to, double value, std::int64_t count) {
  if (type == Type::f64)
    repeat(reinterpret_cast<std::uint64_t*>(to), count, std::bit_cast<std::uint64_t>(value));
  else
    repeat(reinterpret_cast<std::uint32_t*>(to), count,
           std::bit_cast<std::uint32_t>(static_cast<float>(value)));
}

template <class Word>
void spread_words(const std::byte* from, std::byte* to, const Bound& bound, std::int64_t first,
                  std::int64_t count) {
  const Word* entries = reinterpret_cast<const Word*>(from);
  Word* out = reinterpret_cast<Word*>(to);
  std::int64_t entry = first / bound.inner % bound.count, within = first % bound.inner;
  for (std::int64_t n = 0; n < count;) {
    const std::int64_t same = std::min(bound.inner - within, count - n);
    repeat(out + n, same, entries[entry]);
    n += same;
    within = 0;
    if (++entry == bound.count) entry = 0;
  }
}

class Piece {
 public:
  Piece(const Plan& plan, const LlvmModule& module, const LlvmCalls& calls, const PlanRun& run, Arena& arena)
      : plan_(plan), module_(module), calls_(calls), run_(run), arena_(arena) {}

  /// Runs `count` elements from `first` on: a multiple of a block, or less than one.
  void tile(std::int64_t first, std::int64_t count) {
    arena_.reset();
    first_ = first;
    count_ = count;
    padded_ = (count + module_.block - 1) / module_.block * module_.block;
    is_tail_ = padded_ != count;
    start();
    const std::int64_t length = plan_.segment > 0 ? plan_.segment : std::max<std::int64_t>(run_.steps, 1);
    const std::int64_t segments = (run_.steps + length - 1) / length;
    for (std::int64_t i = 0; i < segments; ++i) {
      const std::int64_t segment = plan_.reverse ? segments - 1 - i : i;
      begin_ = segment * length;
      const std::int64_t steps = std::min(length, run_.steps - begin_);
      if (plan_.rebuild) rebuild(segment, steps);
      call(step_, steps);
      if (!plan_.reverse && segment + 1 < segments) write_checkpoints(segment);
    }
    finish();
  }

 private:
  /// A carry between two calls.
  struct Live {
    std::byte* in = nullptr;   ///< its value
    std::byte* row = nullptr;  ///< where steps write it, unless to its sequence
  };
  /// A function and what its streams need that does not change within a tile.
  struct Routine {
    const LlvmFunction* function = nullptr;
    LlvmCall call = nullptr;
    bool reverse = false;
    const std::vector<Carry>* carries = nullptr;
    std::vector<Live> live = {};
    std::vector<std::byte*> hoisted = {};
    std::vector<StreamPointer> table = {};
    std::vector<std::byte*> staged = {};  ///< for each stream that is copied: room for `chunk` rows
    std::int64_t chunk = 0;               ///< steps of one call; 0: any number
  };

  std::byte* row(Mem mem, std::int64_t rows = 1) { return arena_.take(rows * padded_ * bytes_of(mem)); }
  bool has(int buffer) const { return buffer != no_buffer && run_.buffers[buffer].data != nullptr; }
  const Buffer& buffer(int index) const { return plan_.buffers[index]; }

  /// Row `r` of a buffer; for one with an entry for each element, from this tile's first element on.
  std::byte* place(int index, std::int64_t r) const {
    const Bound& bound = run_.buffers[index];
    const std::int64_t element = buffer(index).map == Map::element ? first_ : 0;
    return static_cast<std::byte*>(bound.data) +
           (r * bound.row_stride + element) * bytes_of(buffer(index).mem);
  }

  /// Copies row `r` of a buffer, an entry for each element of the tile.
  void copy_in(int index, std::int64_t r, std::byte* to) const {
    const Mem mem = buffer(index).mem;
    const std::byte* from = place(index, r);
    if (buffer(index).map == Map::element) {
      std::memcpy(to, from, static_cast<std::size_t>(count_ * bytes_of(mem)));
      return;
    }
    Bound bound = run_.buffers[index];
    if (buffer(index).map == Map::scalar) bound.inner = first_ + count_, bound.count = 1;
    switch (bytes_of(mem)) {
      case 1:
        return spread_words<std::uint8_t>(from, to, bound, first_, count_);
      case 2:
        return spread_words<std::uint16_t>(from, to, bound, first_, count_);
      case 4:
        return spread_words<std::uint32_t>(from, to, bound, first_, count_);
      default:
        return spread_words<std::uint64_t>(from, to, bound, first_, count_);
    }
  }

  /// Row `r` of a buffer as values of `type`: where it is, or in `room`.
  std::byte* values(int index, std::int64_t r, Type type, std::byte* room) {
    const Mem mem = buffer(index).mem;
    const bool as_it_is = mem == natural_memory(type) && mem != Mem::b8;  // any byte but 0 is true in memory
    if (as_it_is && buffer(index).map == Map::element && !is_tail_) return place(index, r);
    const std::byte* from = place(index, r);
    if (is_tail_ || buffer(index).map != Map::element) {
      copy_in(index, r, as_it_is ? room : raw_);
      from = raw_;
    }
    if (as_it_is) return room;
    if (const auto found = calls_.load.find(mem); found != calls_.load.end())
      convert(found->second, from, room);
    else
      load(mem, from, room, count_);
    return room;
  }

  /// Writes values of the tile to row `r` of a buffer.
  void write_values(int index, std::int64_t r, std::byte* from) const {
    const Mem mem = buffer(index).mem;
    std::byte* to = place(index, r);
    if (from == to) return;
    const auto found = calls_.store.find(mem);
    if (found == calls_.store.end()) return store(mem, from, to, count_);
    convert(found->second, from, is_tail_ ? raw_ : to);
    if (is_tail_) std::memcpy(to, raw_, static_cast<std::size_t>(count_ * bytes_of(mem)));
  }

  /// Runs a conversion on padded rows.
  void convert(LlvmCall call_of, const std::byte* from, std::byte* to) const {
    const StreamPointer table[] = {{const_cast<std::byte*>(from), 0}, {to, 0}};
    call_of(table, 1, padded_ / module_.block, 0, first_);
  }

  // ---- before and after time -------------------------------------------------------------------------

  void start() {
    const double nothing = run_.steps > 0 ? -0.0 : 0.0;
    raw_ = row(Mem::f64);
    step_ = routine(module_.step, calls_.step, plan_.reverse, plan_.carries);
    for (std::size_t i = 0; i < plan_.carries.size(); ++i) {
      const Carry& carry = plan_.carries[i];
      Live& live = step_.live[i];
      const bool in_last =
          has(carry.last) && buffer(carry.last).mem == natural_memory(carry.type) && !is_tail_;
      live.row = in_last ? place(carry.last, 0) : row(natural_memory(carry.type));
      live.in = live.row;
      if (has(carry.first))
        live.in = values(carry.first, 0, carry.type, live.row);
      else
        fill(carry.type, live.row, nothing, count_);
    }
    sums_.assign(plan_.sums.size(), nullptr);
    for (std::size_t i = 0; i < plan_.sums.size(); ++i) {
      const Sum& sum = plan_.sums[i];
      if (!has(sum.buffer)) continue;
      const bool in_place = buffer(sum.buffer).mem == natural_memory(sum.type) && !is_tail_;
      sums_[i] = in_place ? place(sum.buffer, 0) : row(natural_memory(sum.type));
      fill(sum.type, sums_[i], nothing, count_);
    }
    spread_.assign(plan_.buffers.size(), nullptr);
    if (run_.steps == 0) return;
    hoist(step_, module_.step_hoist, calls_.step_hoist, module_.step_rows);
    kept_.clear();
    if (!plan_.rebuild) return;
    rebuild_ = routine(*module_.rebuild, calls_.rebuild, false, plan_.rebuilt);
    for (std::size_t i = 0; i < plan_.rebuilt.size(); ++i)
      rebuild_.live[i].row = row(natural_memory(plan_.rebuilt[i].type));
    hoist(rebuild_, module_.rebuild_hoist, calls_.rebuild_hoist, module_.rebuild_rows);
    const std::int64_t longest = std::min<std::int64_t>(plan_.segment, run_.steps);
    for (Type type : plan_.kept) kept_.push_back(row(natural_memory(type), longest));
  }

  Routine routine(const LlvmFunction& function, LlvmCall its_call, bool reverse,
                  const std::vector<Carry>& carries) {
    Routine made{&function, its_call, reverse, &carries};
    made.live.resize(carries.size());
    made.table.resize(function.streams.size());
    made.staged.assign(function.streams.size(), nullptr);
    for (std::size_t s = 0; s < function.streams.size(); ++s)
      if (is_staged(made, function.streams[s])) made.chunk = std::max<std::int64_t>(16384 / padded_, 1);
    made.chunk = std::min<std::int64_t>(made.chunk, 64);
    for (std::size_t s = 0; s < function.streams.size(); ++s)
      if (is_staged(made, function.streams[s])) made.staged[s] = row(function.streams[s].mem, made.chunk);
    return made;
  }

  /// The buffer behind a stream, where there is one.
  int buffer_of(const Routine& routine, const Stream& stream) const {
    switch (stream.use) {
      case Stream::Use::read:
      case Stream::Use::write:
      case Stream::Use::add:
        return stream.index;
      case Stream::Use::carry:
        return stream.lead == Lead::per_step ? (*routine.carries)[stream.index].sequence : no_buffer;
      default:
        return no_buffer;
    }
  }

  bool is_staged(const Routine& routine, const Stream& stream) const {
    const int index = buffer_of(routine, stream);
    if (index == no_buffer || stream.lead == Lead::once || stream.map == Map::scalar) return false;
    return is_tail_ || buffer(index).map == Map::indexed;
  }

  void hoist(Routine& routine, const std::optional<LlvmFunction>& function, LlvmCall its_call,
             const std::vector<Type>& rows) {
    if (!function) return;
    for (Type type : rows) routine.hoisted.push_back(row(natural_memory(type)));
    std::vector<StreamPointer> table;
    for (const Stream& stream : function->streams)
      table.push_back(
          {stream.use == Stream::Use::hoisted ? routine.hoisted[stream.index] : still(stream), 0});
    its_call(table.data(), 1, padded_ / module_.block, 0, first_);
  }

  /// Where a stream that does not move with time points.
  std::byte* still(const Stream& stream) {
    const int index = stream.index;
    if (stream.map == Map::scalar || (buffer(index).map == Map::element && !is_tail_)) return place(index, 0);
    if (spread_[index] == nullptr) {
      spread_[index] = row(buffer(index).mem);
      copy_in(index, 0, spread_[index]);
    }
    return spread_[index];
  }

  void finish() {
    for (std::size_t i = 0; i < plan_.carries.size(); ++i)
      if (has(plan_.carries[i].last)) write_values(plan_.carries[i].last, 0, step_.live[i].in);
    for (std::size_t i = 0; i < plan_.sums.size(); ++i)
      if (has(plan_.sums[i].buffer)) write_values(plan_.sums[i].buffer, 0, sums_[i]);
  }

  // ---- through time ----------------------------------------------------------------------------------

  void rebuild(std::int64_t segment, std::int64_t steps) {
    for (std::size_t i = 0; i < plan_.rebuilt.size(); ++i) {
      const Carry& carry = plan_.rebuilt[i];
      Live& live = rebuild_.live[i];
      live.in = segment == 0 ? values(carry.first, 0, carry.type, live.row)
                             : values(carry.checkpoint, segment - 1, carry.type, live.row);
    }
    call(rebuild_, steps);
  }

  void write_checkpoints(std::int64_t segment) {
    for (std::size_t i = 0; i < plan_.carries.size(); ++i)
      if (has(plan_.carries[i].checkpoint))
        write_values(plan_.carries[i].checkpoint, segment, step_.live[i].in);
  }

  /// Runs `steps` steps from begin_ on, from the last to the first where the routine is reversed.
  void call(Routine& routine, std::int64_t steps) {
    const std::int64_t chunk = routine.chunk > 0 ? routine.chunk : steps;
    for (std::int64_t done = 0; done < steps; done += chunk) {
      const std::int64_t now = std::min(chunk, steps - done);
      const std::int64_t t = routine.reverse ? begin_ + steps - 1 - done : begin_ + done;
      point(routine, t);
      copy_staged(routine, t, now, false);
      routine.call(routine.table.data(), now, padded_ / module_.block, run_.first_step + t, first_);
      copy_staged(routine, t, now, true);
      advance(routine, now);
    }
  }

  /// Fills the table for calls that start with step `t`.
  void point(Routine& routine, std::int64_t t) {
    const std::int64_t direction = routine.reverse ? -1 : 1;
    for (std::size_t s = 0; s < routine.table.size(); ++s) {
      const Stream& stream = routine.function->streams[s];
      const std::int64_t row_bytes = padded_ * bytes_of(stream.mem);
      StreamPointer& pointer = routine.table[s];
      const int index = buffer_of(routine, stream);
      if (routine.staged[s] != nullptr)
        pointer = {routine.staged[s], row_bytes};
      else if (index != no_buffer && stream.lead == Lead::once)
        pointer = {still(stream), 0};
      else if (index != no_buffer)
        pointer = {place(index, t), direction * run_.buffers[index].row_stride * bytes_of(stream.mem)};
      else if (stream.use == Stream::Use::carry_in)
        pointer = {routine.live[stream.index].in, 0};
      else if (stream.use == Stream::Use::carry)
        pointer = {routine.live[stream.index].row, 0};
      else if (stream.use == Stream::Use::keep)
        pointer = {kept_[stream.index] + (t - begin_) * row_bytes, direction * row_bytes};
      else if (stream.use == Stream::Use::sum)
        pointer = {sums_[stream.index], 0};
      else
        pointer = {routine.hoisted[stream.index], 0};
    }
  }

  /// Copies `steps` rows of what is staged, before a call what is read, after it what was written.
  void copy_staged(const Routine& routine, std::int64_t t, std::int64_t steps, bool out) {
    for (std::size_t s = 0; s < routine.staged.size(); ++s) {
      const Stream& stream = routine.function->streams[s];
      const bool written = stream.use == Stream::Use::write || stream.use == Stream::Use::carry;
      if (routine.staged[s] == nullptr || written != out) continue;
      const int index = buffer_of(routine, stream);
      for (std::int64_t k = 0; k < steps; ++k) {
        const std::int64_t r = routine.reverse ? t - k : t + k;
        std::byte* here = routine.staged[s] + k * padded_ * bytes_of(stream.mem);
        if (out)
          std::memcpy(place(index, r), here, static_cast<std::size_t>(count_ * bytes_of(stream.mem)));
        else
          copy_in(index, r, here);
      }
    }
  }

  /// After a call of `steps` steps: where the carries are now.
  void advance(Routine& routine, std::int64_t steps) {
    for (std::size_t s = 0; s < routine.table.size(); ++s) {
      const Stream& stream = routine.function->streams[s];
      if (stream.use != Stream::Use::carry) continue;
      Live& live = routine.live[stream.index];
      std::byte* last =
          static_cast<std::byte*>(routine.table[s].data) + (steps - 1) * routine.table[s].stride;
      live.in = last;
      if (routine.staged[s] == nullptr) continue;
      // The next call writes over what is staged.
      std::memcpy(live.row, last, static_cast<std::size_t>(padded_ * bytes_of(stream.mem)));
      live.in = live.row;
    }
  }

  const Plan& plan_;
  const LlvmModule& module_;
  const LlvmCalls& calls_;
  const PlanRun& run_;
  Arena& arena_;
  std::int64_t first_ = 0, count_ = 0, padded_ = 0, begin_ = 0;
  bool is_tail_ = false;
  std::byte* raw_ = nullptr;  ///< room for a row in any memory type
  Routine step_, rebuild_;
  std::vector<std::byte*> sums_, kept_, spread_;
};

}  // namespace

std::byte* Arena::take(std::int64_t bytes) {
  const std::size_t size = (static_cast<std::size_t>(bytes) + alignment - 1) / alignment * alignment;
  if (blocks_.empty() || blocks_.back().used + size > blocks_.back().size) {
    const std::size_t room = std::max<std::size_t>(size, std::size_t{1} << 16);
    blocks_.push_back({std::make_unique<std::byte[]>(room + alignment), room, 0});
  }
  Block& block = blocks_.back();
  const auto address = reinterpret_cast<std::uintptr_t>(block.memory.get());
  std::byte* start = block.memory.get() + (alignment - address % alignment) % alignment + block.used;
  block.used += size;
  return start;
}

void Arena::reset() {
  std::size_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  if (blocks_.size() > 1) {
    blocks_.clear();
    blocks_.push_back({std::make_unique<std::byte[]>(total + alignment), total, 0});
  }
  for (Block& block : blocks_) block.used = 0;
}

std::int64_t tile_elements(const Plan& plan, const LlvmModule& module, std::int64_t steps) {
  constexpr std::int64_t largest = 16384, smallest = 1024, cache = 512 << 10;
  std::int64_t bytes = 0;
  const auto count = [&](Type type, std::int64_t rows = 1) {
    bytes += bytes_of(natural_memory(type)) * rows;
  };
  for (const Carry& carry : plan.carries) count(carry.type);
  for (const Carry& carry : plan.rebuilt) count(carry.type);
  for (Type type : plan.kept) count(type, std::min<std::int64_t>(plan.segment, steps));
  for (const Sum& sum : plan.sums) count(sum.type);
  for (Type type : module.step_rows) count(type);
  for (Type type : module.rebuild_rows) count(type);
  std::int64_t elements = largest;
  while (elements > smallest && elements * bytes > cache) elements /= 2;
  return elements;
}

std::optional<std::int64_t> elements_to_alignment(const Plan& plan, const PlanRun& run) {
  const auto aligned_after = [&](std::int64_t elements) {
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      const Buffer& buffer = plan.buffers[i];
      if (!buffer.write || buffer.lead != Lead::per_step || run.buffers[i].data == nullptr) continue;
      const std::int64_t size = bytes_of(buffer.mem);
      const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(run.buffers[i].data));
      if ((address + elements * size) % alignment != 0) return false;
      if (run.steps > 1 && run.buffers[i].row_stride * size % alignment != 0) return false;
    }
    return true;
  };
  for (std::int64_t elements = 0; elements < alignment; ++elements)
    if (aligned_after(elements)) return elements;
  return {};
}

void run_piece(const Plan& plan, const LlvmModule& module, const LlvmCalls& calls, const PlanRun& run,
               std::int64_t first, std::int64_t last, Arena& arena) {
  const IeeeEnvironment environment;
  Piece piece(plan, module, calls, run, arena);
  const std::int64_t longest = tile_elements(plan, module, run.steps);
  while (first < last) {
    const std::int64_t blocks = std::min(longest, last - first) / module.block;
    const std::int64_t count = blocks > 0 ? blocks * module.block : last - first;
    piece.tile(first, count);
    first += count;
  }
}

}  // namespace flexsn
