// CPU kernels against the interpreter of plans: the same bits, and not a byte outside the arrays.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "compile.h"
#include "cpu_kernel.h"
#include "error.h"
#include "ops.h"
#include "param_sums.h"
#include "plan_case.h"
#include "random_graph.h"
#include "reduce.h"
#include "train.h"

namespace flexsn::test {
namespace {

using namespace ir;

struct Sizes {
  std::int64_t steps = 1, elements = 1;
  std::int64_t padding = 0;  ///< elements between the rows of a sequence
  double absent = 0.3;       ///< how often an optional buffer is left out
  bool no_edges = false;
};

/// A run of a plan on random data, which repeats after `drawn` elements.
class Case {
 public:
  static constexpr std::int64_t drawn = 1999;

  Case(const Plan& plan, const Sizes& sizes, std::uint64_t seed) : plan_(plan), sizes_(sizes) {
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
      const bool frozen = !buffer.write && buffer.lead == Lead::per_step && dice.chance(0.05);
      if (frozen) bound.row_stride = 0;
      const std::int64_t size = rows == 0 ? 0 : (rows - 1) * bound.row_stride + row;
      Array values(buffer.mem, {size});
      for (std::int64_t n = 0; n < std::min(size, drawn); ++n)
        values.set(n, sizes.no_edges ? dice.uniform(0, 2) : draw_entry(dice, buffer.mem));
      for (std::size_t n = drawn * size_of(buffer.mem); n < values.bytes.size(); ++n)
        values.bytes[n] = values.bytes[n - drawn * size_of(buffer.mem)];
      const bool given = !buffer.optional || !dice.chance(sizes.absent);
      run_.buffers.push_back(bound);
      data_.push_back(std::move(values));
      given_.push_back(given);
    }
  }

  const PlanRun& sizes() const { return run_; }

  using Bytes = std::vector<std::vector<std::byte>>;
  template <class Runner>
  Bytes run(bool at_end, Runner runner) const {
    std::vector<Guarded> rooms;
    PlanRun run = run_;
    for (std::size_t i = 0; i < data_.size(); ++i) {
      rooms.emplace_back(data_[i].bytes.size(), at_end);
      std::copy(data_[i].bytes.begin(), data_[i].bytes.end(), rooms.back().data());
      run.buffers[i].data = given_[i] ? rooms.back().data() : nullptr;
    }
    runner(run);
    Bytes results;
    for (const Guarded& room : rooms) results.emplace_back(room.data(), room.data() + room.size());
    return results;
  }

  Bytes by_interpreter() const {
    return run(false, [&](const PlanRun& run) { execute(plan_, run); });
  }

  /// The first difference in words; "" when there is none. Of f32 and f64 a NaN equals every NaN.
  std::string difference(const Bytes& a, const Bytes& b) const {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i]) continue;
      const Mem mem = plan_.buffers[i].mem;
      const std::size_t size = size_of(mem);
      for (std::size_t n = 0; n * size < a[i].size(); ++n) {
        if (std::equal(&a[i][n * size], &a[i][n * size] + size, &b[i][n * size])) continue;
        double x = 0, y = 0;
        if (mem == Mem::f32 || mem == Mem::f64) {
          x = number(mem, &a[i][n * size]);
          y = number(mem, &b[i][n * size]);
          if (x != x && y != y) continue;
        }
        return join("buffer ", i, " '", plan_.buffers[i].name, "' (", name_of(mem), ") differs at ", n,
                    " of ", a[i].size() / size, ": ", x, " by the interpreter, ", y,
                    " by the kernel; T = ", run_.steps, ", N = ", run_.elements, "\n", print(plan_));
      }
    }
    return "";
  }

 private:
  static double number(Mem mem, const std::byte* from) {
    if (mem == Mem::f64) {
      double x = 0;
      std::memcpy(&x, from, sizeof x);
      return x;
    }
    float x = 0;
    std::memcpy(&x, from, sizeof x);
    return x;
  }

  const Plan& plan_;
  const Sizes sizes_;
  PlanRun run_;
  std::vector<Array> data_;
  std::vector<bool> given_;
};

const Store no_store("");

/// All threads of a pool, however little there is to do.
Threads all_of(Pool& pool) {
  Threads threads = pool.as_threads();
  threads.grain = 1;
  return threads;
}

/// Runs the kernel with the guards on both sides and compares with the interpreter.
std::string broken(const CpuKernel& kernel, const Sizes& sizes, std::uint64_t seed,
                   const Threads& threads = {}) {
  const Case one(kernel.plan(), sizes, seed);
  const Case::Bytes expected = one.by_interpreter();
  for (bool at_end : {false, true}) {
    const std::string difference =
        one.difference(expected, one.run(at_end, [&](const PlanRun& run) { kernel.run(run, threads); }));
    if (!difference.empty()) return difference;
  }
  return "";
}

TEST(Cpu, MuchIsWrittenPastTheCaches) {
  Pool pool(2);
  for (Kind kind : {Kind::inference, Kind::inference_final_state}) {
    const CpuKernel kernel(plan_of(neuron_named("lif").graph(), kind, {}), no_store);
    for (std::int64_t padding : {13, 12})  // rows at multiples of 64 bytes, and not
      EXPECT_EQ(broken(kernel, {.steps = 9, .elements = 1000003, .padding = padding}, 4, all_of(pool)), "");
  }
}

/// A step that applies one row to its inputs.
Graph step_of_row(Op op, Type t) {
  const Row& row = row_of(op);
  Graph graph;
  graph.name = row.name;
  V operands[max_arity];
  for (int i = 0; i < row.arity; ++i)
    operands[i] = add_argument(
        graph, {.role = Role::input, .name = join("x", i), .mem = natural_memory(operand_type(row, i, t))});
  const V result = apply(op, operands, row.arity);
  graph.results.push_back(
      {.gives = Gives::output, .name = "y", .mem = natural_memory(result.type()), .value = result.id});
  return graph;
}

TEST(Cpu, EveryRowHasTheInterpretersBits) {
  for (Op op : all_ops()) {
    const Row& row = row_of(op);
    if (row.is_leaf() || row.raw) continue;
    for (Type t : {Type::f32, Type::f64, Type::i32, Type::b1}) {
      if (!row.meaning.sig.types.has(t)) continue;
      const CpuKernel kernel(schedule_inference(step_of_row(op, t), Kind::inference), no_store);
      EXPECT_EQ(broken(kernel, {.steps = 5, .elements = 500}, 1), "") << row.name << " " << name_of(t);
    }
  }
}

TEST(Cpu, ExtremesWithConstantsOfEitherSign) {
  for (const char* row : {"maximum", "minimum"})
    for (const char* type : {"f32", "f64"})
      for (const char* constant : {"0", "-0", "1", "-2.5", "nan", "inf", "-inf"})
        for (bool swapped : {false, true}) {
          const std::string operands = swapped ? join(constant, ", %x") : join("%x, ", constant);
          const Neuron neuron = parse_neuron(join("neuron one {\n  input x : ", type, "\n  %y = ", row, " ",
                                                  operands, "\n  output y = %y\n}\n"));
          const CpuKernel kernel(
              schedule_inference(compile(neuron.graph(), Stage::simplified), Kind::inference), no_store);
          EXPECT_EQ(broken(kernel, {.steps = 3, .elements = 300}, 2), "") << row << " " << operands;
        }
}

const char* const neurons[] = {"if", "lif", "lif:v_reset=none", "plif", "alif", "izhikevich", "adex"};

std::vector<Plan> plans_of(const std::string& name, Mem type, Saving saving, bool sequences,
                           const Layout& layout = {}) {
  const Training training{.type = type,
                          .state_sequences = sequences,
                          .saving = saving,
                          .segment = saving == Saving::rebuild ? 4 : 0};
  Lowered lowered = lower(neuron_named(name).graph(type), training, layout);
  return {std::move(lowered.plans.forward), std::move(lowered.plans.backward)};
}

TEST(Cpu, EveryNeuronTypeAndWayOfSaving) {
  for (const char* name : neurons)
    for (Mem type : {Mem::f32, Mem::f64, Mem::f16, Mem::bf16})
      for (Saving saving : {Saving::everything, Saving::per_step, Saving::rebuild})
        for (const Plan& plan : plans_of(name, type, saving, saving != Saving::per_step)) {
          const CpuKernel kernel(plan, no_store);
          for (std::uint64_t seed = 0; seed < 3; ++seed)
            EXPECT_EQ(broken(kernel, {.steps = 9, .elements = 70, .padding = 3}, seed), "") << name;
        }
}

TEST(Cpu, EveryLength) {
  Pool pools[] = {Pool(1), Pool(2), Pool(3), Pool(7)};
  std::vector<Plan> plans = plans_of("lif", Mem::f32, Saving::rebuild, false);
  for (Plan& plan : plans_of("alif", Mem::f32, Saving::per_step, true)) plans.push_back(std::move(plan));
  for (Kind kind : {Kind::inference, Kind::inference_final_state})
    plans.push_back(plan_of(neuron_named("plif").graph(), kind, {}));
  for (const Plan& plan : plans) {
    const CpuKernel kernel(plan, no_store);
    std::uint64_t seed = 0;
    for (std::int64_t elements : {0, 1, 15, 16, 17, 31, 33, 64, 65})
      for (std::int64_t steps : {0, 1, 2, 7, 8, 9, 64, 150}) {
        const Threads threads = all_of(pools[++seed % 4]);
        EXPECT_EQ(
            broken(kernel, {.steps = steps, .elements = elements, .padding = elements % 2}, seed, threads),
            "");
      }
    for (Pool& pool : pools)
      EXPECT_EQ(broken(kernel, {.steps = 9, .elements = 16385}, ++seed, all_of(pool)), "");
    for (std::int64_t elements : {16384, 50001})
      EXPECT_EQ(broken(kernel, {.steps = 2, .elements = elements}, ++seed, all_of(pools[2])), "");
  }
}

TEST(Cpu, ParametersOfAnyMap) {
  for (Map map : {Map::scalar, Map::element, Map::indexed})
    for (const char* name : {"plif", "adex"}) {
      Layout layout;
      const Graph step = neuron_named(name).graph();
      for (const Argument& argument : step.arguments)
        if (argument.role != Role::input) layout[argument.name] = map;
      std::vector<Plan> plans = plans_of(name, Mem::f32, Saving::rebuild, false, layout);
      plans.push_back(plan_of(step, Kind::inference, {}, layout));
      for (const Plan& plan : plans) {
        const CpuKernel kernel(plan, no_store);
        for (std::int64_t elements : {1, 33, 1000, 20000})
          EXPECT_EQ(broken(kernel, {.steps = 6, .elements = elements}, 5), "") << name;
      }
    }
}

TEST(Cpu, ParametersThatChangeWithTime) {
  const Neuron gated = neuron("gated", [](Step& s) {
    auto x = s.input("x"), v = s.state("v");
    auto gate = s.step_param("gate", 0.5);
    auto bias = s.param("bias", 0.1);
    auto index = cast(s.step_index() * 3 + s.element_index(), Type::f32);
    auto h = v + sigmoid(gate * x) * exp(bias) + sin(index);
    s.next(v, h);
    s.output("h", h);
  });
  for (Map map : {Map::scalar, Map::element, Map::indexed})
    for (Map bias : {Map::scalar, Map::element, Map::indexed}) {
      const Layout layout = {{"gate", map}, {"bias", bias}};
      const Graph step = gated.graph();
      Lowered lowered = lower(step, {}, layout);
      std::vector<Plan> plans = {lowered.plans.forward, lowered.plans.backward,
                                 plan_of(step, Kind::inference_final_state, {}, layout)};
      for (const Plan& plan : plans) {
        const CpuKernel kernel(plan, no_store);
        for (std::int64_t elements : {1, 40, 20000})
          for (std::int64_t steps : {1, 5, 70})
            EXPECT_EQ(broken(kernel, {.steps = elements > 40 ? 5 : steps, .elements = elements}, 6), "");
      }
    }
}

// LLVM moved the conversion behind the select, and took the wrong zero there.
TEST(Cpu, TheSignOfAZeroOutlivesAConversionAndAnExtreme) {
  Training training{.state_sequences = true};
  training.saving = Saving::everything;
  training.costs = cost_model_named("bytes");
  for (const std::string type : {"bf16", "f16"})
    for (const std::string op : {"minimum", "maximum"})
      for (const std::string zero : {"0", "-0"}) {
        const Graph graph =
            parse_neuron(join("neuron n {\n  state v : ", type, "\n  %a = to_f64 %v\n  %b = ", op, " %a, ",
                              zero, "\n  output y = %b : f64\n  next v = %v\n}\n"))
                .graph(Mem::f32);
        const Lowered lowered = lower(graph, training, {});
        const CpuKernel kernel(lowered.plans.forward, no_store);
        for (std::uint64_t seed = 0; seed < 4; ++seed)
          EXPECT_EQ(broken(kernel, {.steps = 3, .elements = 200}, seed), "") << type << op << zero;
      }
}

TEST(Cpu, TheSignOfAZeroOutlivesWhatComesAfterAProductAndSum) {
  for (const std::string type : {"f32", "f64"})
    for (const std::string then : {"neg %b", "mul %b, -1", "sub -0, %b"}) {
      const Graph graph = parse_neuron(join("neuron n {\n  input x : ", type, "\n  param p : ", type,
                                            " per_step = 1\n  %b = fma %p, 8, 0\n  %c = ", then,
                                            "\n  %d = copysign 1, %c\n  output y = %d : ", type, "\n}\n"))
                              .graph(Mem::f32);
      const CpuKernel kernel(plan_of(graph, Kind::inference, {}, {{"p", Map::scalar}}), no_store);
      for (std::uint64_t seed = 0; seed < 8; ++seed)
        EXPECT_EQ(broken(kernel, {.steps = 40, .elements = 3}, seed), "") << type << " " << then;
    }
}

constexpr int shards = 8;  // which ctest can run side by side

class CpuRandomGraphs : public testing::TestWithParam<int> {};

// FLEXSN_RANDOM_GRAPHS says how many graphs are tried. Eleven in twelve are compiled as very large ones
// are, without optimization, which takes a quarter of the time.
TEST_P(CpuRandomGraphs, HaveTheInterpretersBits) {
  const char* wanted = std::getenv("FLEXSN_RANDOM_GRAPHS");
  const std::uint64_t count = wanted ? std::strtoull(wanted, nullptr, 10) : 5000;
  int trained = 0, tried = 0;
  for (auto seed = static_cast<std::uint64_t>(GetParam()); seed < count; seed += shards) {
    ++tried;
    const Graph graph = random_graph(seed);
    Dice dice(seed + 1000);
    const std::vector<Plan> plans = random_plans(graph, dice);
    trained += plans.size() > 1;
    const unsigned optimized_up_to = tried % 12 == 0 ? largest_optimized : 0;
    for (const Plan& plan : plans) {
      const CpuKernel kernel(plan, no_store, optimized_up_to);
      constexpr std::int64_t some_steps[] = {1, 2, 9, 17}, some_elements[] = {1, 16, 33, 100};
      const std::int64_t steps = dice.pick(some_steps);
      const std::int64_t elements = dice.pick(some_elements);
      EXPECT_EQ(broken(kernel, {.steps = steps, .elements = elements, .padding = 1}, seed), "")
          << "seed " << seed;
    }
  }
  if (tried > 100) {
    EXPECT_GT(trained, tried / 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, CpuRandomGraphs, testing::Range(0, shards));

#if defined(__x86_64__) || defined(__aarch64__)
/// Flushes subnormals to zero while alive.
class FlushToZero {
 public:
#if defined(__x86_64__)
  FlushToZero() { _mm_setcsr(saved_ | 0x8040); }
  ~FlushToZero() { _mm_setcsr(saved_); }
  static bool is_on() { return (_mm_getcsr() & 0x8040) == 0x8040; }

 private:
  unsigned saved_ = _mm_getcsr();
#else
  FlushToZero() { set(saved_ | 1u << 24); }
  ~FlushToZero() { set(saved_); }
  static bool is_on() { return (get() & 1u << 24) != 0; }

 private:
  static std::uint64_t get() {
    std::uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
  std::uint64_t saved_ = get();
#endif
};

TEST(Cpu, TheCallersFloatingPointEnvironmentDoesNotMatter) {
  const Neuron halving = neuron("halving", [](Step& s) {
    auto x = s.input("x"), v = s.state("v");
    s.next(v, v * 0.5);
    s.output("y", v * 0.5 + x * 1e-40);
  });
  const CpuKernel kernel(plan_of(halving.graph(), Kind::inference, {}), no_store);
  Pool pool(3);
  const Case one(kernel.plan(), {.steps = 140, .elements = 5000, .no_edges = true}, 3);
  const Case::Bytes expected = one.by_interpreter();
  const Case::Bytes found = one.run(false, [&](const PlanRun& run) {
    const FlushToZero flush;
    kernel.run(run, all_of(pool));
    EXPECT_TRUE(FlushToZero::is_on());
  });
  EXPECT_EQ(one.difference(expected, found), "");
}
#endif

TEST(Cpu, KernelsOnDiskAreUsedAndBadOnesReplaced) {
  const std::filesystem::path home =
      std::filesystem::temp_directory_path() / join("flexsn_kernels_", getpid());
  const Store store((home / "store").string());
  std::filesystem::create_directory(home);
  const Plan plan = plan_of(neuron_named("lif").graph(), Kind::inference_final_state, {});
  const auto entries = [&] {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(home / "store"))
      files.push_back(entry.path());
    return files;
  };
  const auto works = [&] { return broken(CpuKernel(plan, store), {.steps = 3, .elements = 20}, 1); };
  EXPECT_EQ(works(), "");
  ASSERT_EQ(entries().size(), 1u);
  const std::filesystem::path file = entries()[0];
  const auto content = [&] {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string good = content();
  for (const std::string& bad : {std::string(), std::string("garbage"), good.substr(0, good.size() / 2),
                                 good.substr(0, good.size() - 1) + "x", good + "more"}) {
    std::ofstream(file, std::ios::binary) << bad;
    EXPECT_EQ(works(), "");
    EXPECT_EQ(content(), good);
  }
  // Intact, but not what links: no object, one with nothing in it, one that needs what is not there.
  const std::size_t kind = good.find("\ncpu\n") + 5;
  std::size_t digits = 0;
  const std::size_t length = std::stoul(good.substr(kind), &digits);
  const std::string key = good.substr(kind + digits + 1, length);
  ASSERT_TRUE(store.load("cpu", key).has_value());
  const std::string called =
      "define void @flexsn_step(ptr %s, i64 %t, i64 %b, i64 %f, i64 %e) {\n  call void @nowhere()\n  ret "
      "void\n}\ndeclare void @nowhere()\n";
  for (const std::string& bad :
       {std::string("garbage"), compile_object("", host_isa()), compile_object(called, host_isa())}) {
    ASSERT_TRUE(store.save("cpu", key, bad));
    testing::internal::CaptureStderr();
    EXPECT_EQ(works(), "");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(content(), good);
  }
  // A disk that cannot be written costs the keeping, not the run.
  EXPECT_EQ(broken(CpuKernel(plan, Store("/proc/nowhere")), {.steps = 3, .elements = 20}, 1), "");
  std::filesystem::remove_all(home);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Cpu, AnOlderProcessorIsRefused) {
  std::vector<std::string> features = {"avx",  "avx2",  "fma",   "f16c",  "bmi",
                                       "bmi2", "lzcnt", "movbe", "sse4.2"};
  EXPECT_EQ(isa_with(features, ""), Isa::x86_64_v3);
  std::erase(features, "movbe");
  std::erase(features, "avx2");
  for (const char* asked : {"", "x86-64-v3"})
    EXPECT_EQ(error_of([&] { isa_with(features, asked); }),
              "CPU kernels need an x86-64-v3 processor, but this one lacks avx2, movbe; use the interpreter "
              "(target \"interpreter\"), which gives the same bits");
}

TEST(Cpu, TheWidestInstructionSetIsTakenOrTheOneThatIsAskedFor) {
  std::vector<std::string> features = {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"};
  EXPECT_EQ(error_of([&] { isa_with(features, "x86-64-v4"); }),
            "FLEXSN_ISA asks for x86-64-v4, but this processor lacks avx512f, avx512bw, avx512cd, avx512dq, "
            "avx512vl; leave it away");
  features.insert(features.end(), {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"});
  EXPECT_EQ(isa_with(features, ""), Isa::x86_64_v4);
  EXPECT_EQ(isa_with(features, "x86-64-v4"), Isa::x86_64_v4);
  EXPECT_EQ(isa_with(features, "x86-64-v3"), Isa::x86_64_v3);
  EXPECT_EQ(error_of([&] { isa_with(features, "avx"); }),
            "FLEXSN_ISA must be x86-64-v3 or x86-64-v4 on this machine, found 'avx'");
}

TEST(Cpu, OneKernelRunsFromSeveralThreadsAtOnce) {
  const CpuKernel kernel(plans_of("alif", Mem::f32, Saving::rebuild, true)[1], no_store);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (std::uint64_t k = 0; k < 5; ++k)
        wrong +=
            !broken(kernel, {.steps = 9, .elements = 100 + static_cast<std::int64_t>(i)}, 10 * i + k).empty();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ParamSums, AreThoseOfReduce) {
  struct Sum {
    Shape step, param;
  };
  const Sum sums[] = {{{5}, {}},
                      {{1}, {}},
                      {{0, 3}, {3}},
                      {{1023}, {1}},
                      {{1024}, {}},
                      {{1025}, {}},
                      {{100003}, {}},
                      {{2, 3, 5, 7}, {3, 1, 7}},
                      {{33, 9}, {9}},
                      {{3000, 300}, {300}},
                      {{40, 300}, {40, 1}},
                      {{7, 64, 31, 33}, {64, 1, 1}},
                      {{140000, 2}, {2}},
                      {{20, 8}, {20, 8}},
                      {{4, 1, 6}, {4, 5, 1}}};
  Pool pools[] = {Pool(1), Pool(3)};
  Dice dice(9);
  const auto compare = [&]<class F>(const Sum& sum, F) {
    std::int64_t elements = 1, kept = 1;
    for (std::int64_t size : sum.step) elements *= size;
    constexpr std::int64_t rows = 3;
    const std::int64_t stride = elements + 2;
    std::vector<F> values(static_cast<std::size_t>(rows * stride));
    for (F& value : values) value = static_cast<F>(dice.uniform(-1, 1) * (dice.chance(0.01) ? 1e6 : 1));
    std::vector<F> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto first = values.begin() + r * stride;
      const std::vector<F> row = reduce(std::vector<F>(first, first + elements), sum.step, sum.param);
      kept = static_cast<std::int64_t>(row.size());
      expected.insert(expected.end(), row.begin(), row.end());
    }
    for (Pool& pool : pools) {
      std::vector<F> found(expected.size() + 1, F(77));
      param_sums(values.data(), stride, rows, sum.step, sum.param, found.data(), all_of(pool));
      EXPECT_EQ(found.back(), F(77));
      found.pop_back();
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(F)), 0)
          << text_of(sum.step) << " to " << text_of(sum.param) << ", " << kept << " kept";
    }
  };
  for (const Sum& sum : sums) {
    compare(sum, float());
    compare(sum, double());
  }
}

TEST(Pool, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 5}) {
    Pool pool(threads);
    for (std::int64_t count : {0, 1, 2, 100, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      pool.run(count, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
      for (const std::atomic<int>& times : runs) EXPECT_EQ(times, 1);
    }
  }
}

TEST(Pool, UsesItsThreads) {
  Pool pool(2);
  std::atomic<int> waiting = 0;
  pool.run(2, [&](std::int64_t) {
    ++waiting;
    while (waiting < 2) std::this_thread::yield();  // ends only if both run at the same time
  });
  EXPECT_EQ(waiting, 2);
}

TEST(Pool, TasksMayUseIt) {
  Pool pool(3);
  std::atomic<int> runs = 0;
  pool.run(4, [&](std::int64_t) { pool.run(5, [&](std::int64_t) { ++runs; }); });
  EXPECT_EQ(runs, 20);
}

TEST(Pool, ThrowsWhatATaskThrowsWhenAllHaveEnded) {
  Pool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> runs = 0;
    EXPECT_THROW(pool.run(10,
                          [&](std::int64_t i) {
                            ++runs;
                            if (i == 3) throw UserError("three");
                          }),
                 UserError);
    EXPECT_EQ(runs, 10);
  }
}

TEST(Pool, SeveralCallersAreServed) {
  Pool pool(3);
  std::atomic<int> runs = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int k = 0; k < 50; ++k) pool.run(7, [&](std::int64_t) { ++runs; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(runs, 4 * 50 * 7);
}

TEST(Pool, AForkedChildRunsItsTasksItself) {
  auto pool = std::make_unique<Pool>(3);
  pool->run(6, [](std::int64_t) {});
  const pid_t child = fork();
  if (child == 0) {
    int runs = 0;
    pool->run(6, [&](std::int64_t) { ++runs; });
    pool.reset();
    _exit(runs == 6 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace flexsn::test
