// Runs of a plan on random data between pages that nobody may touch.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "error.h"
#include "execute.h"
#include "random_graph.h"
#include "train.h"

namespace flexsn::test {

/// An array with a page on each side that no one may touch; it begins or ends at one of them.
class Guarded {
 public:
  Guarded(std::size_t bytes, bool at_end) : size_(bytes) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inside = (size_ + page - 1) / page * page;
    length_ = inside + 2 * page;
    void* memory = mmap(nullptr, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
    if (inside > 0) mprotect(memory_ + page, inside, PROT_READ | PROT_WRITE);
    data_ = memory_ + page + (at_end ? inside - size_ : 0);
  }
  Guarded(Guarded&& other) noexcept
      : size_(other.size_), length_(other.length_), memory_(other.memory_), data_(other.data_) {
    other.memory_ = nullptr;
  }
  Guarded& operator=(Guarded&&) = delete;
  ~Guarded() {
    if (memory_ != nullptr) munmap(memory_, length_);
  }
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_, length_ = 0;
  std::byte* memory_ = nullptr;
  std::byte* data_ = nullptr;
};

/// Ordinary numbers mostly, edges now and then.
inline double draw_entry(Dice& dice, Mem mem) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr double edges[] = {
      0.0,  -0.0,  1,     -1,         0.5,         255,  256,
      1e-5, 1e-40, 3e-45, 2147483648, -2147483648, 3e38, -0x1.fffffep127,
      inf,  -inf,  1e9,   65520,      6e-8,        33,   std::numeric_limits<double>::quiet_NaN()};
  if (mem == Mem::i32 && dice.chance(0.3)) return static_cast<std::int32_t>(dice.next());
  return dice.chance(0.1) ? dice.pick(edges) : dice.uniform(-3, 3);
}

struct CaseSizes {
  std::int64_t steps = 1, elements = 1;
  std::int64_t padding = 0;  ///< entries between the rows of a sequence
};

/// A run of a plan; `present` says which buffers it has.
class PlanCase {
 public:
  using Bytes = std::vector<std::vector<std::byte>>;

  PlanCase(const Plan& plan, const std::vector<bool>& present, const CaseSizes& sizes, std::uint64_t seed)
      : plan_(plan), present_(present) {
    Dice dice(seed);
    run_.steps = sizes.steps;
    run_.elements = sizes.elements;
    run_.first_step = dice.chance(0.2) ? 0x7ffffffe : dice.below(5);
    for (const Buffer& buffer : plan.buffers) {
      Bound bound;
      std::int64_t row = sizes.elements;
      if (buffer.map == Map::scalar) row = 1;
      if (buffer.map == Map::indexed) {
        constexpr std::int64_t some[] = {1, 2, 3, 20, 1000};
        bound.inner = dice.pick(some);
        row = bound.count = dice.pick(some);
      }
      const std::int64_t rows = rows_of(plan, buffer, sizes.steps);
      bound.row_stride = buffer.lead == Lead::once ? 0 : row + sizes.padding;
      if (!buffer.write && buffer.lead == Lead::per_step && dice.chance(0.05)) bound.row_stride = 0;
      Array values(buffer.mem, {rows == 0 ? 0 : (rows - 1) * bound.row_stride + row});
      for (std::int64_t n = 0; n < values.size(); ++n) values.set(n, draw_entry(dice, buffer.mem));
      run_.buffers.push_back(bound);
      before_.push_back(std::move(values.bytes));
    }
  }

  const PlanRun& shape() const { return run_; }
  const Bytes& before() const { return before_; }

  /// What is in the buffers after `runner` ran; they begin or end at a page that must not be touched.
  template <class Runner>
  Bytes after(bool at_end, Runner runner) const {
    std::vector<Guarded> rooms;
    PlanRun run = run_;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      rooms.emplace_back(before_[i].size(), at_end);
      std::copy(before_[i].begin(), before_[i].end(), rooms.back().data());
      run.buffers[i].data = present_[i] ? rooms.back().data() : nullptr;
    }
    runner(run);
    Bytes results;
    for (const Guarded& room : rooms) results.emplace_back(room.data(), room.data() + room.size());
    return results;
  }

  Bytes by_interpreter() const {
    return after(false, [&](const PlanRun& run) { execute(plan_, run); });
  }

  /// The first difference in words; "" when there is none. Of f32 and f64 a NaN equals every NaN.
  std::string difference(const Bytes& expected, const Bytes& found) const {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == found[i]) continue;
      const Mem mem = plan_.buffers[i].mem;
      const std::size_t size = size_of(mem);
      for (std::size_t n = 0; n * size < expected[i].size(); ++n) {
        const std::byte *a = &expected[i][n * size], *b = &found[i][n * size];
        if (std::equal(a, a + size, b)) continue;
        const double x = number(mem, a), y = number(mem, b);
        if ((mem == Mem::f32 || mem == Mem::f64) && x != x && y != y) continue;
        return join("buffer ", i, " '", plan_.buffers[i].name, "' (", name_of(mem), ") differs at ", n,
                    " of ", expected[i].size() / size, ": ", x, " by the interpreter, ", y,
                    " by the kernel; T = ", run_.steps, ", N = ", run_.elements);
      }
    }
    return "";
  }

 private:
  static double number(Mem mem, const std::byte* from) {
    Array one(mem, {1});
    std::copy(from, from + size_of(mem), one.bytes.begin());
    return one[0];
  }

  const Plan& plan_;
  const std::vector<bool>& present_;
  PlanRun run_;
  Bytes before_;
};

/// Plans of a graph with parameters laid out at random: of inference, and of training where anything in it
/// carries a gradient.
inline std::vector<Plan> random_plans(const ir::Graph& graph, Dice& dice) {
  Layout layout;
  for (const ir::Argument& argument : graph.arguments)
    if (argument.role == ir::Role::param) layout[argument.name] = static_cast<Map>(dice.below(3));
  std::vector<Plan> plans = {
      plan_of(graph, dice.chance(0.5) ? Kind::inference : Kind::inference_final_state, {}, layout)};
  try {
    const Training training{.state_sequences = dice.chance(0.5),
                            .saving = static_cast<Saving>(dice.below(4))};
    Lowered lowered = lower(graph, training, layout);
    plans.push_back(std::move(lowered.plans.forward));
    plans.push_back(std::move(lowered.plans.backward));
  } catch (const UserError&) {  // nothing in it carries a gradient
  }
  return plans;
}

}  // namespace flexsn::test
