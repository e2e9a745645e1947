// CUDA kernels on a device against the interpreter of plans: the same bits, and not a byte outside the
// arrays. Without a GPU the same runs on the host by a driver that only pretends (cuda_fake), with fewer
// neurons.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cuda_kernel.h"
#include "cuda_modules.h"
#include "gpu_memory.h"
#include "param_sums.h"
#include "plan_case.h"
#include "train.h"

namespace flexsn::test {
namespace {

using namespace ir;

class CudaKernels : public OnGpu {};

/// How a run lies in memory.
struct Lie {
  std::size_t offset = 0;  ///< in entries, of every array
  bool by_value = false;   ///< scalars are in the host's memory
  int device = 0;
  void* stream = nullptr;
};

/// Runs the kernel on the device and compares with the interpreter; "" where all is the same.
std::string broken(const CudaKernel& kernel, const std::vector<bool>& present, const CaseSizes& sizes,
                   std::uint64_t seed, const Lie& lie = {}) {
  const Plan& plan = kernel.plan();
  const PlanCase trial(plan, present, sizes, seed);
  const PlanCase::Bytes expected = trial.by_interpreter();
  std::vector<GpuMemory> rooms;
  PlanCase::Bytes found = trial.before();
  PlanRun run = trial.shape();
  run.device = lie.device;
  run.stream = lie.stream;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    rooms.emplace_back(found[i], lie.offset * size_of(buffer.mem), lie.device);
    if (!present[i]) continue;
    run.buffers[i].data = rooms.back().data();
    if (!lie.by_value || buffer.map != Map::scalar || buffer.lead != Lead::once) continue;
    run.buffers[i].data = found[i].data();
    run.buffers[i].host = true;
  }
  kernel.run(run);
  wait_for(lie.stream, lie.device);
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    found[i] = rooms[i].content();
    if (!rooms[i].is_untouched_around()) return join("bytes around buffer ", i, " were written");
  }
  const std::string difference = trial.difference(expected, found);
  return difference.empty() ? "" : join(difference, "\n", print(plan));
}

std::string broken(const CudaKernel& kernel, const CaseSizes& sizes, std::uint64_t seed,
                   const Lie& lie = {}) {
  Dice dice(seed + 77);
  std::vector<bool> present;
  for (const Buffer& buffer : kernel.plan().buffers) present.push_back(!buffer.optional || !dice.chance(0.3));
  return broken(kernel, present, sizes, seed, lie);
}

/// Both entries, whatever the number of elements; rows at any place.
void expect_bits(const Plan& plan, const std::string& what, std::uint64_t seed) {
  const CudaKernel wide(plan, Cuda::standard(), Store::standard(), {.entry = CudaEntry::wide});
  const CudaKernel narrow(plan, Cuda::standard(), Store::standard(), {.entry = CudaEntry::narrow});
  const std::vector<bool> all(plan.buffers.size(), true);
  const std::int64_t K = plan.segment > 0 ? plan.segment : wide.options().unroll;
  for (const CaseSizes& sizes : {CaseSizes{0, 5},
                                 {1, 1},
                                 {K - 1, 64},
                                 {K, 1003, 1},
                                 {K + 1, 1024, 4},
                                 {3 * K + 2, 516},
                                 {2 * K, 2048, 2}}) {
    ++seed;
    ASSERT_EQ(broken(wide, all, sizes, seed, {.by_value = seed % 2 == 0}), "") << what;
    ASSERT_EQ(broken(narrow, all, sizes, seed, {.offset = 1}), "") << what;
  }
}

/// The neurons of a test: all on a device, some where compiling takes long.
std::vector<std::string> neurons() {
  std::vector<std::string> names;
  if (pretends()) return {"lif"};
  for (const NeuronInfo& info : neuron_list()) names.push_back(info.name);
  return names;
}

// In processes of their own, as ctest runs them: NVRTC compiles one text at a time in each.
constexpr int shards = 16;

class CudaNeurons : public CudaKernels, public testing::WithParamInterface<int> {};

TEST_P(CudaNeurons, HaveTheInterpretersBits) {
  const std::vector<std::string> names = neurons();
  for (auto n = static_cast<std::size_t>(GetParam()); n < names.size(); n += shards) {
    std::uint64_t seed = 100 * n;
    for (Saving saving : {Saving::rebuild, Saving::per_step}) {
      const Graph step = neuron_named(names[n]).graph();
      const Training training{.state_sequences = saving == Saving::per_step,
                              .saving = saving,
                              .segment = saving == Saving::rebuild ? 4 : 0};
      std::vector<Plan> plans;
      if (saving == Saving::rebuild)
        plans = {plan_of(step, Kind::inference, {}), plan_of(step, Kind::inference_final_state, {})};
      else if (pretends())
        continue;
      try {
        Lowered lowered = lower(step, training);
        plans.push_back(std::move(lowered.plans.forward));
        plans.push_back(std::move(lowered.plans.backward));
      } catch (const UserError&) {  // nothing in it carries a gradient
      }
      for (const Plan& plan : plans) expect_bits(plan, names[n], seed += 10);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, CudaNeurons, testing::Range(0, shards));

TEST_F(CudaKernels, EveryTypeAndMapHasTheInterpretersBits) {
  std::uint64_t seed = 0;
  for (Mem type : {Mem::f16, Mem::f64, Mem::bf16, Mem::f32})
    for (Map map : {Map::indexed, Map::element, Map::scalar}) {
      if (pretends() && (type != Mem::f16 || map != Map::indexed)) continue;
      const Graph step = neuron_named("plif").graph(type);
      Layout layout;
      for (const Argument& argument : step.arguments)
        if (argument.role != Role::input) layout[argument.name] = map;
      const Lowered lowered = lower(step, {.type = type}, layout);
      expect_bits(lowered.plans.forward, join("plif ", name_of(type)), seed += 10);
      expect_bits(lowered.plans.backward, join("plif ", name_of(type)), seed += 10);
    }
}

// The assembler gives 0 for -0 in them unless the text prevents it.
TEST_F(CudaKernels, ChoicesKeepTheSignOfZero) {
  expect_bits(plan_of(choices().graph(), Kind::inference, {}), "choices", 1);
  const Lowered lowered = lower(choices().graph(), {});
  expect_bits(lowered.plans.forward, "choices, forward", 20);
  expect_bits(lowered.plans.backward, "choices, backward", 40);
}

TEST_F(CudaKernels, AbsentGradientsTakePartInNothing) {
  const CudaKernel kernel(lower(neuron_named("lif").graph(), {}).plans.backward);
  for (std::uint64_t seed = 0; seed < (pretends() ? 4 : 20); ++seed)
    ASSERT_EQ(broken(kernel, {.steps = 9, .elements = 100}, seed), "");
}

TEST_F(CudaKernels, ManyElementsAreRunWide) {
  const std::int64_t elements = pretends() ? 5000 : 3000001;
  const CudaKernel kernel(lower(neuron_named("lif").graph(), {}).plans.forward);
  const std::vector<bool> all(kernel.plan().buffers.size(), true);
  for (std::int64_t n : {elements, elements / 8 * 8})
    ASSERT_EQ(broken(kernel, all, {.steps = 3, .elements = n}, 1), "");
}

TEST_F(CudaKernels, SeveralThreadsAndDevicesAtOnce) {
  const CudaKernel kernel(lower(neuron_named("lif").graph(), {}).plans.backward);
  const std::vector<bool> all(kernel.plan().buffers.size(), true);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int k = 0; k < 5; ++k)
        wrong += !broken(kernel, all, {.steps = 9, .elements = 100 + i},
                         static_cast<std::uint64_t>(10 * i + k), {.device = i % cuda_device_count()})
                      .empty();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

class CudaRandomGraphs : public CudaKernels, public testing::WithParamInterface<int> {};

// FLEXSN_RANDOM_GRAPHS says how many graphs are tried.
TEST_P(CudaRandomGraphs, HaveTheInterpretersBits) {
  const char* wanted = std::getenv("FLEXSN_RANDOM_GRAPHS");
  const std::uint64_t count = wanted ? std::strtoull(wanted, nullptr, 10) : pretends() ? shards : 2000;
  int tried = 0, trained = 0;
  for (auto seed = static_cast<std::uint64_t>(GetParam()); seed < count; seed += shards) {
    ++tried;
    const Graph graph = random_graph(seed);
    Dice dice(seed + 1000);
    const std::vector<Plan> plans = random_plans(graph, dice);
    trained += plans.size() > 1;
    for (const Plan& plan : plans) {
      const CudaKernel kernel(plan, Cuda::standard(), Store(""),
                              {.entry = dice.chance(0.5) ? CudaEntry::wide : CudaEntry::narrow});
      constexpr std::int64_t some_steps[] = {1, 2, 7, 9, 17, 30}, some_elements[] = {1, 16, 33, 100, 1024};
      const std::int64_t steps = dice.pick(some_steps);
      const std::int64_t elements = dice.pick(some_elements);
      std::string problem;
      try {
        problem = broken(kernel, {.steps = steps, .elements = elements}, seed);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      EXPECT_EQ(problem, "") << "seed " << seed;
    }
  }
  if (tried > 100) {
    EXPECT_GT(trained, tried / 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, CudaRandomGraphs, testing::Range(0, shards));

// ---- parameter gradients ---------------------------------------------------------------------------

struct SumCase {
  Shape step, param;
  std::int64_t steps = 5;
};

/// A run of backward with sums, by the interpreter and on the device.
void expect_gradients(const CudaKernel& kernel, Mem mem, const SumCase& sizes, std::uint64_t seed) {
  const Plan& plan = kernel.plan();
  const std::vector<bool> all(plan.buffers.size(), true);
  const std::int64_t elements = elements_of(sizes.step), entries = elements_of(sizes.param);
  const PlanCase trial(plan, all, {.steps = sizes.steps, .elements = elements}, seed);
  const std::optional<Broadcast> how = broadcast(sizes.step, sizes.param);
  PlanRun run = trial.shape();
  std::vector<GpuMemory> rooms;
  ParamGradients gradients{.step = sizes.step};
  std::vector<GpuMemory> given;
  std::vector<std::vector<std::byte>> expected;
  PlanCase::Bytes rows = trial.after(false, [&](PlanRun host) {
    for (std::size_t i = 0; i < plan.buffers.size(); ++i)
      if (plan.buffers[i].holds == Holds::param && plan.buffers[i].map == Map::indexed) {
        host.buffers[i].inner = run.buffers[i].inner = how->inner;
        host.buffers[i].count = run.buffers[i].count = how->count;
      }
    execute(plan, host);
  });
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    rooms.emplace_back(trial.before()[i]);
    run.buffers[i].data = rooms.back().data();
    if (buffer.holds != Holds::grad_param) continue;
    const bool per_step = buffer.lead == Lead::per_step;
    const std::int64_t stride = entries + 3, count = per_step ? sizes.steps : 1;
    const auto bytes =
        static_cast<std::size_t>((count > 0 ? (count - 1) * stride + entries : 0)) * size_of(mem);
    expected.emplace_back(bytes, std::byte{0xa5});
    given.emplace_back(expected.back());
    const Argument argument{.role = Role::param, .mem = mem, .per_step = per_step};
    store_param_gradient(argument, rows[i].data(), trial.shape().buffers[i].row_stride, sizes.steps,
                         sizes.step, sizes.param, expected.back().data(), stride, {});
    gradients.list.push_back({.buffer = static_cast<int>(i),
                              .mem = mem,
                              .shape = sizes.param,
                              .to = given.back().data(),
                              .row_stride = stride});
  }
  ASSERT_FALSE(gradients.list.empty());
  const GpuMemory scratch(static_cast<std::size_t>(kernel.scratch_bytes(sizes.steps, gradients)));
  EXPECT_LE(kernel.scratch_bytes(sizes.steps, gradients),
            kernel.scratch_bytes(sizes.steps, gradients, Scratch::any_plan));
  gradients.scratch = scratch.data();
  kernel.run_backward(run, gradients);
  wait_for(nullptr);
  EXPECT_TRUE(scratch.is_untouched_around());
  for (std::size_t i = 0; i < given.size(); ++i) {
    EXPECT_TRUE(given[i].is_untouched_around());
    const std::vector<std::byte> found = given[i].content();
    const auto is_nan_in = [&](const std::vector<std::byte>& from, std::size_t at) {
      Array one(mem, {1});
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), size_of(mem), one.bytes.begin());
      return one[0] != one[0];
    };
    for (std::size_t at = 0; at < found.size(); at += size_of(mem))
      if (!is_nan_in(expected[i], at) || !is_nan_in(found, at)) {
        ASSERT_TRUE(std::equal(&found[at], &found[at] + size_of(mem), &expected[i][at]))
            << "entry " << at / size_of(mem) << ", step " << text_of(sizes.step) << ", param "
            << text_of(sizes.param) << ", " << name_of(mem) << ", T = " << sizes.steps;
      }
  }
}

TEST_F(CudaKernels, ParameterGradientsHaveTheOneOrder) {
  const std::vector<SumCase> cases = {{{1}, {}},
                                      {{7, 100}, {}},
                                      {{3000}, {}},
                                      {{4096}, {1}},
                                      {{3, 4, 512}, {4, 1}},
                                      {{3, 5, 100}, {5, 1}},
                                      {{5, 1, 40}, {40}},
                                      {{2, 3, 5, 7}, {3, 1, 7}},
                                      {{6, 7}, {6, 7}},
                                      {{200, 30}, {30}},
                                      {{0, 3}, {3}},
                                      {{40}, {}, 0},
                                      {{3, 40}, {40}, 0}};
  for (Mem type : {Mem::f16, Mem::f32, Mem::f64, Mem::bf16}) {
    if (pretends() && type != Mem::f16) continue;
    const Graph step = neuron_named("plif").graph(type);
    for (Map map : {Map::scalar, Map::indexed, Map::element}) {
      std::string param;
      for (const Argument& argument : step.arguments)
        if (argument.role == Role::param) param = argument.name;
      const Plan plan =
          lower(step, {.type = type, .saving = Saving::rebuild, .segment = 4}, {{param, map}}).plans.backward;
      for (CudaEntry entry : {CudaEntry::wide, CudaEntry::narrow}) {
        const CudaKernel kernel(
            plan, Cuda::standard(), Store::standard(),
            {.options = CudaOptions{.vector = 2, .unroll = 4, .threads = 128, .narrow_threads = 64},
             .entry = entry});
        std::uint64_t seed = 0;
        for (const SumCase& one : cases) {
          const std::optional<Broadcast> how = broadcast(one.step, one.param);
          if ((how->spread ? Map::element : how->map) == map) expect_gradients(kernel, type, one, ++seed);
        }
      }
    }
  }
}

TEST_F(CudaKernels, GradientsOfParametersThatChangeWithTime) {
  const Neuron gated = neuron("gated", [](Step& s) {
    auto x = s.input("x"), v = s.state("v");
    auto gate = s.step_param("gate", 0.5);
    auto h = v + gate * x;
    s.next(v, h * 0.5);
    s.output("h", h);
  });
  for (Map map : {Map::scalar, Map::indexed, Map::element}) {
    if (pretends() && map == Map::scalar) continue;
    const CudaKernel kernel(lower(gated.graph(), {}, {{"gate", map}}).plans.backward);
    std::uint64_t seed = 0;
    for (const SumCase& one :
         {SumCase{{700}, {}}, {{3, 4, 512}, {4, 1}}, {{6, 7}, {6, 7}}, {{0, 3}, {3}}, {{3, 40}, {40}, 0}}) {
      const std::optional<Broadcast> how = broadcast(one.step, one.param);
      if ((how->spread ? Map::element : how->map) == map) expect_gradients(kernel, Mem::f32, one, ++seed);
    }
  }
}

// ---- graphs ----------------------------------------------------------------------------------------

TEST_F(CudaKernels, ACapturedRunIsRepeated) {
  const CudaKernel kernel(plan_of(neuron_named("lif").graph(), Kind::inference_final_state, {}),
                          Cuda::standard(), Store(""));
  const std::vector<bool> all(kernel.plan().buffers.size(), true);
  const PlanCase trial(kernel.plan(), all, {.steps = 9, .elements = 1000}, 3);
  std::vector<GpuMemory> rooms;
  for (const std::vector<std::byte>& content : trial.before()) rooms.emplace_back(content);
  // The first run of all is captured: it compiles and loads in the middle of the capture.
  const Captured captured([&](void* stream) {
    PlanRun run = trial.shape();
    run.stream = stream;
    for (std::size_t i = 0; i < rooms.size(); ++i) run.buffers[i].data = rooms[i].data();
    kernel.run(run);
  });
  const PlanCase::Bytes expected = trial.by_interpreter();
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < rooms.size(); ++i) rooms[i].fill(trial.before()[i]);
    captured.run();
    PlanCase::Bytes found;
    for (const GpuMemory& room : rooms) found.push_back(room.content());
    EXPECT_EQ(trial.difference(expected, found), "");
  }
}

}  // namespace
}  // namespace flexsn::test
