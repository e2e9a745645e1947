// CUDA kernels on more elements, and on rows that lie farther apart, than 32 bits count.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "cuda_kernel.h"
#include "cuda_spread.h"
#include "cuda_sums.h"
#include "gpu_memory.h"
#include "plan_case.h"
#include "train.h"

namespace flexsn::test {
namespace {

using namespace ir;

class CudaSizes : public OnGpu {
 protected:
  /// Runs a test, unless the system does not even give the addresses of so much memory.
  static void run(const std::function<void()>& test) {
    try {
      test();
    } catch (const std::bad_alloc&) {
      GTEST_SKIP() << "there are not enough addresses for so much memory (ulimit -v, vm.overcommit_memory)";
    }
  }
};

constexpr std::int64_t more_than_int = 239 * std::int64_t{9'000'000},
                       more_than_unsigned = 239 * std::int64_t{18'000'000};
static_assert(more_than_int > std::int64_t{1} << 31 && more_than_unsigned > std::int64_t{1} << 32);

/// The last elements are drawn, the others are what the memory was filled with. Places of indexed parameters
/// are the same from the first of them on as from the first element on.
constexpr std::int64_t drawn = 64;
/// As many as a device has memory for, or as a driver that pretends takes addresses for.
std::int64_t others() { return pretends() ? more_than_unsigned : more_than_int; }

/// Memory of a device. Where the driver pretends, it is the host's, of which only what is touched is taken.
class Room {
 public:
  explicit Room(std::size_t bytes) : bytes_(bytes) {
    if (!pretends()) {
      device_.emplace(bytes);
      return;
    }
    constexpr int what = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    host_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, what, -1, 0);
    if (host_ == MAP_FAILED) throw std::bad_alloc();
  }
  Room(Room&& other) noexcept
      : bytes_(other.bytes_), device_(std::move(other.device_)), host_(std::exchange(other.host_, nullptr)) {}
  Room& operator=(Room&&) = delete;
  ~Room() {
    if (host_ != nullptr) munmap(host_, bytes_);
  }

  void* data() const { return device_ ? device_->data() : host_; }
  DeviceAddress at(std::size_t byte) const { return reinterpret_cast<DeviceAddress>(data()) + byte; }

 private:
  std::size_t bytes_;
  std::optional<GpuMemory> device_;
  void* host_ = nullptr;
};

/// A driver that pretends runs the first and the last block alone, until the end of the scope.
struct OuterBlocks {
  OuterBlocks() { set(true); }
  ~OuterBlocks() { set(false); }
  static void set(bool outer) {
    if (pretends()) fake_driver()->outer_blocks = outer;
  }
};

/// `far`: entries between the rows of what has no entry for each element; 0: side by side.
void expect_bits(const Plan& plan, std::int64_t steps, CudaEntry entry, std::int64_t far = 0) {
  const Driver& driver = Cuda::standard().driver;
  const CurrentGpu current(driver, driver.gpu(0));
  const OuterBlocks outer;
  const CudaKernel kernel(plan, Cuda::standard(), Store::standard(), {.entry = entry});
  const std::vector<bool> all(plan.buffers.size(), true);
  const PlanCase trial(plan, all, {.steps = steps, .elements = drawn}, 5);
  const PlanCase::Bytes expected = trial.by_interpreter();
  const PlanRun& few = trial.shape();
  PlanRun run = few;
  run.elements = others() + drawn;
  std::vector<Room> rooms;
  struct Row {
    std::size_t buffer, from, at, bytes;
  };
  std::vector<Row> rows;  // where each lies among the few and among the many
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    Bound& bound = run.buffers[b];
    const bool each = buffer.map == Map::element;
    const std::int64_t row = each ? drawn : buffer.map == Map::indexed ? bound.count : 1;
    if (bound.row_stride != 0) bound.row_stride = each ? run.elements : std::max(row, far);
    const std::int64_t count = rows_of(plan, buffer, steps),
                       size = static_cast<std::int64_t>(size_of(buffer.mem));
    for (std::int64_t r = 0; r < count; ++r)
      rows.push_back({b, static_cast<std::size_t>(r * few.buffers[b].row_stride * size),
                      static_cast<std::size_t>((r * bound.row_stride + (each ? others() : 0)) * size),
                      static_cast<std::size_t>(row * size)});
    const std::int64_t whole = each ? run.elements : row;
    rooms.emplace_back(
        static_cast<std::size_t>(((std::max<std::int64_t>(count, 1) - 1) * bound.row_stride + whole) * size));
    bound.data = rooms.back().data();
  }
  for (const Row& row : rows)
    driver.check(
        driver.functions().cuMemcpyHtoDAsync_v2(
            rooms[row.buffer].at(row.at), trial.before()[row.buffer].data() + row.from, row.bytes, nullptr),
        "copy to the device");
  wait_for(nullptr);
  kernel.run(run);
  PlanCase::Bytes found = trial.before();
  for (const Row& row : rows)
    driver.check(driver.functions().cuMemcpyDtoHAsync_v2(found[row.buffer].data() + row.from,
                                                         rooms[row.buffer].at(row.at), row.bytes, nullptr),
                 "copy from the device");
  wait_for(nullptr);
  EXPECT_EQ(trial.difference(expected, found), "");
}

TEST_F(CudaSizes, MoreElementsThanThirtyTwoBitsCount) {
  using Info = int(std::size_t* free, std::size_t* total);
  std::size_t free = 0, total = 0;
  const Driver& driver = Cuda::standard().driver;
  {
    const CurrentGpu current(driver, driver.gpu(0));
    if (auto* memory = driver_function<Info>("cuMemGetInfo_v2")) memory(&free, &total);
  }
  if (!pretends() && free < std::size_t{60} << 30) GTEST_SKIP() << "there is no device with 60 GiB to spare";
  const Plan plan = plan_of(neuron_named("lif").graph(), Kind::inference_final_state, {});
  run([&] {
    for (CudaEntry entry : {CudaEntry::wide, CudaEntry::narrow}) expect_bits(plan, 2, entry);
  });
}

TEST_F(CudaSizes, RowsOfEveryKindMoreThanTwoToThe32EntriesApart) {
  if (!pretends()) GTEST_SKIP() << "it would take more memory than a device has";
  const Neuron far = neuron("far", [](Step& s) {
    const auto x = s.input("x"), v = s.state("v"), gate = s.step_param("gate", 0.5), tau = s.param("tau", 2),
               bias = s.param("bias", 0.1), each = s.step_param("each", 1);
    const auto h = v * each + (x * gate - v) / tau + bias;
    s.next(v, tanh(h));
    s.output("h", h * h);
  });
  const Layout layout = {
      {"gate", Map::indexed}, {"tau", Map::indexed}, {"bias", Map::element}, {"each", Map::scalar}};
  constexpr std::int64_t apart = (std::int64_t{1} << 32) + 12;
  run([&] {
    for (Saving saving : {Saving::rebuild, Saving::per_step}) {
      const Training training{.saving = saving, .segment = saving == Saving::rebuild ? 2 : 0};
      const auto plans = lower(far.graph(), training, layout).plans;
      for (CudaEntry entry : {CudaEntry::wide, CudaEntry::narrow}) {
        expect_bits(plans.forward, 5, entry, apart);
        expect_bits(plans.backward, 5, entry, apart);
      }
    }
    expect_bits(plan_of(far.graph(), Kind::inference, {}, layout), 5, CudaEntry::wide, apart);
  });
}

TEST_F(CudaSizes, SumsOfMoreElementsThanThirtyTwoBitsCount) {
  if (!pretends()) GTEST_SKIP() << "test_cuda.py sums as many by operators";
  const Cuda& cuda = Cuda::standard();
  const Buffer buffer{.holds = Holds::grad_param, .mem = Mem::f32, .write = true};
  const auto sum = [&](const Shape& step, const Shape& param) {
    const std::int64_t count = elements_of(step), entries = elements_of(param);
    std::vector<float> found(static_cast<std::size_t>(entries), -1);
    const Room gradient(found.size() * sizeof(float));
    const ParamGradient wanted{.mem = Mem::f32, .shape = param, .to = gradient.data(), .row_stride = entries};
    const SumPlan plan = sum_plan(buffer, wanted, step, 1, 1);
    const Room scratch(static_cast<std::size_t>(plan.bytes));
    auto* const values = static_cast<float*>(scratch.data());  // zeros, which the blocks left out would sum
    values[0] = 3;
    values[count - 1] = 5;
    const OuterBlocks outer;
    finish_sums(cuda, cuda.driver.gpu(0), nullptr, buffer, plan, wanted, scratch.data());
    wait_for(nullptr);
    std::memcpy(found.data(), gradient.data(), found.size() * sizeof(float));
    return found;
  };
  run([&] {
    EXPECT_EQ(sum({more_than_unsigned}, {}), std::vector<float>{8});
    EXPECT_EQ(sum({more_than_unsigned / 3, 3}, {3}), (std::vector<float>{3, 0, 5}));
  });
}

TEST_F(CudaSizes, AParameterSpreadOutToMoreElementsThanThirtyTwoBitsCount) {
  if (!pretends()) GTEST_SKIP() << "it would take longer than the others";
  // So many blocks that a thread writes few elements.
  int& multiprocessors = fake_driver()->devices[0].multiprocessors;
  const int usual = std::exchange(multiprocessors, 4096);
  const Cuda cuda;
  const Gpu& gpu = cuda.driver.gpu(0);
  multiprocessors = usual;
  constexpr std::int64_t middle = more_than_unsigned / 6, inner = 3, threads = 256;
  const Shape step = {2, middle, inner}, param = {2, 1, inner};
  run([&] {
    const std::int64_t count = elements_of(step);
    const Room from(6), to(static_cast<std::size_t>(count));
    for (int i = 0; i < 6; ++i)
      static_cast<unsigned char*>(from.data())[i] = static_cast<unsigned char>(i + 1);
    const OuterBlocks outer;
    spread_on(cuda, gpu, nullptr, step, param, 1, 1, from.data(), to.data());
    wait_for(nullptr);
    const auto* const found = static_cast<const unsigned char*>(to.data());
    const std::int64_t blocks = fake_driver()->launches.back().blocks;
    std::int64_t looked_at = 0;
    for (std::int64_t n = count - 2 * blocks * threads; n < count; ++n) {
      const std::int64_t block = n / threads % blocks;
      if (block != 0 && block != blocks - 1) continue;
      ASSERT_EQ(found[n], n / (middle * inner) * inner + n % inner + 1) << n;
      ++looked_at;
    }
    EXPECT_GT(looked_at, threads);
  });
}

}  // namespace
}  // namespace flexsn::test
