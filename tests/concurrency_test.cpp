// Several threads at once on everything that is shared in a process: handles, neurons, the store, kernels
// that are compiled, run and dropped, the pool, and the CUDA driver's loader. `make test-tsan` runs it under
// the thread sanitizer.
//
// LLVM and the machine code that it makes are not instrumented: what the sanitizer sees of them is their
// locks and our calls. That kernels write nothing but their own buffers is the business of cpu_kernel_test.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <latch>
#include <set>
#include <thread>

#include "cuda_fake/fake.h"
#include "cuda_kernel.h"
#include "error.h"
#include "kernels.h"
#include "neuron.h"
#include "registry.h"
#include "train.h"

namespace flexsn::test {
namespace {

constexpr int thread_count = 4;

/// Runs `work` in threads that start together. What one throws fails the test.
template <class Work>
void together(const Work& work) {
  std::latch start(thread_count);
  std::vector<std::string> problems(thread_count);
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      try {
        work(i);
      } catch (const std::exception& error) {
        problems[static_cast<std::size_t>(i)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

/// A store that is empty at first and gone with the test, and that of the whole process.
class Concurrency : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = (std::filesystem::temp_directory_path() / "flexsn_concurrency_XXXXXX").string();
    home_ = mkdtemp(name.data());
    setenv("FLEXSN_CACHE_DIR", (home_ / "standard").c_str(), 1);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(home_); }

  static Store store(const std::string& name) { return Store((home_ / name).string()); }

 private:
  inline static std::filesystem::path home_;
};

/// A neuron that nobody else has: its leak makes it so.
Neuron leaky(int number) {
  return neuron(join("leaky", number), [number](Step& s) {
    const auto x = s.input("x"), v = s.state("v");
    const auto gain = s.param("gain", 1.5);
    const auto h = v * (0.25 + number / 64.0) + x * gain;
    const auto z = spike(h - 1.0, surrogate::atan());
    s.next(v, h * (1 - z));
    s.output("z", z);
    s.output("h", h);
  });
}

constexpr std::int64_t steps = 5;

/// Arrays of a run of the leaky neuron, and what the interpreter makes of them.
struct Case {
  std::vector<std::int64_t> shape;
  Array x, gain;
  Results expected;
  Gradients gradients;

  Case(const Neuron& neuron, std::int64_t elements)
      : shape{elements}, x(Mem::f32, {steps, elements}), gain(Mem::f32, {}, 1.25) {
    for (std::int64_t n = 0; n < x.size(); ++n) x.set(n, 0.01 * static_cast<double>(n % 300) - 0.5);
    const Arguments arguments{.inputs = {{"x", x}}, .params = {{"gain", gain}}};
    expected = run(neuron, arguments);
    gradients = run_backward(neuron, arguments, {.outputs = {{"z", x}, {"h", x}}});
  }

  /// Whether a run of the kernel, forward and backward, has the interpreter's bits.
  bool holds(const Kernel& kernel) const {
    Array z(Mem::f32, x.shape), h(Mem::f32, x.shape), v(Mem::f32, shape);
    flexsn::Run run = kernel.bind({steps, shape});
    run.in("x", x).param("gain", gain).out("z", z).out("h", h).last_state("v", v);
    run.inference();
    if (z.bytes != expected.outputs.at("z").bytes || v.bytes != expected.states.at("v").bytes) return false;
    std::vector<std::byte> workspace(run.workspace_bytes());
    Array grad_x(Mem::f32, x.shape), grad_gain(Mem::f32, {});
    run.forward(workspace);
    run.backward(workspace, {{"z", x}, {"h", x}}, {{"x", grad_x}, {"gain", grad_gain}});
    return h.bytes == expected.outputs.at("h").bytes && grad_x.bytes == gradients.inputs.at("x").bytes &&
           grad_gain.bytes == gradients.params.at("gain").bytes;
  }
};

// ---- handles and neurons ----------------------------------------------------------------------------

TEST_F(Concurrency, HandlesAreCountedClosedOnceAndNeverGivenOutAgain) {
  constexpr int rounds = 500;
  Registry handles;
  std::atomic<int> closed = 0;
  std::vector<std::set<std::int64_t>> numbers(thread_count);
  std::atomic<std::int64_t> shared = handles.add("shared");
  together([&](int me) {
    for (int i = 0; i < rounds; ++i) {
      const std::int64_t number = handles.add("text", [&] {
        ++closed;
        handles.info();  // a close may come back to the registry
      });
      numbers[static_cast<std::size_t>(me)].insert(number);
      handles.retain(number, Holder::active);
      handles.retain(shared, Holder::owner);
      EXPECT_EQ(handles.text(shared), "shared");
      EXPECT_FALSE(handles.release(number, Holder::owner));
      EXPECT_TRUE(handles.release(number, Holder::active));
      EXPECT_FALSE(handles.release(number, Holder::active));
      EXPECT_FALSE(handles.release(shared, Holder::owner));
    }
  });
  std::set<std::int64_t> all;
  for (const std::set<std::int64_t>& some : numbers) all.insert(some.begin(), some.end());
  EXPECT_EQ(all.size(), std::size_t{thread_count * rounds});
  EXPECT_EQ(closed, thread_count * rounds);
  EXPECT_TRUE(handles.release(shared, Holder::owner));
  EXPECT_EQ(handles.info().entries, 0);
}

TEST_F(Concurrency, CopiesOfAHandleGoInAnyThread) {
  std::atomic<int> closed = 0;
  {
    const Handle first("text", [&] { ++closed; });
    together([&](int) {
      for (int i = 0; i < 500; ++i) {
        Handle copy = first, other(first.number(), Holder::active);
        copy = std::move(other);
        EXPECT_EQ(copy.text(), "text");
      }
    });
    EXPECT_EQ(closed, 0);
  }
  EXPECT_EQ(closed, 1);
  EXPECT_EQ(registry().info().entries, 0);
}

TEST_F(Concurrency, EqualTextsAreOneNeuronAndOneKernel) {
  constexpr int texts = 3;
  std::vector<std::string> written;
  for (int i = 0; i < texts; ++i) written.push_back(show(leaky(40 + i)));
  std::vector<std::vector<const void*>> found(thread_count);
  together([&](int me) {
    for (int round = 0; round < 3; ++round)
      for (int i = 0; i < texts; ++i) {
        const NeuronHandle neuron = neuron_of(written[static_cast<std::size_t>((i + me) % texts)]);
        Requested& requested = neuron->requested({.wanted = {round % 2}, .sequences = round == 2});
        const auto kernel = requested.executable(Place::cpu, Kind::forward, {Map::element, Map::scalar}, {});
        // A run that wants all, which compiles.
        PlanRun run{.buffers = {}};
        run.buffers.assign(kernel->plan().buffers.size(), to_come());
        kernel->prepare(run);
        if (me == 0 || i == 0) found[static_cast<std::size_t>(me)].push_back(neuron_of(written[0]).get());
      }
  });
  for (const auto& list : found)
    for (const void* one : list) EXPECT_EQ(one, neuron_of(written[0]).get());
}

// ---- the store --------------------------------------------------------------------------------------

TEST_F(Concurrency, TheStoreGivesWholeEntriesWhileItIsCleared) {
  const Store shared = store("shared");
  std::atomic<int> wrong = 0, seen = 0;
  together([&](int me) {
    for (int i = 0; i < 100; ++i) {
      shared.save("cpu", "key", std::string(5000, static_cast<char>('a' + me)));
      if (const std::optional<std::string> content = shared.load("cpu", "key")) {
        ++seen;
        wrong += *content != std::string(5000, content->front());
      }
      if (me == 0 && i % 10 == 9) shared.clear();
      Store::standard().info();
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(seen, 0);
}

// ---- kernels ----------------------------------------------------------------------------------------

TEST_F(Concurrency, NoLengthCompilesAgain) {
  const Kernel kernel = compile(leaky(61), {.target = "cpu"});
  const std::vector<float> x(6, 1);
  std::vector<float> z(6), h(6), v(2);
  const auto run = [&](std::int64_t length, const float* in, float* out) {
    kernel.bind({length, {2}})
        .in("x", View(in, length * 2))
        .out("z", View(out, length * 2))
        .out("h", View(out == nullptr ? out : h.data(), length * 2))
        .state("v", View(v.data(), 2))
        .inference();
    return Store::standard().info().entries;
  };
  const std::uint64_t entries = run(3, x.data(), z.data());
  EXPECT_GT(entries, 0u);
  EXPECT_EQ(run(1, x.data(), z.data()), entries);
  const std::vector<float> before = v;
  EXPECT_EQ(run(0, x.data(), z.data()), entries);
  EXPECT_EQ(run(0, nullptr, nullptr), entries) << "nothing has a pointer of its own";
  EXPECT_EQ(v, before);
}

TEST_F(Concurrency, OneNeuronIsCompiledAndRunByAll) {
  const Neuron one = leaky(1);
  const Case c(one, 37);
  const Kernel shared = compile(one);
  together([&](int) {
    EXPECT_TRUE(c.holds(shared));
    EXPECT_TRUE(c.holds(compile(one)));  // an equal one, which has its machine code from the first
  });
}

TEST_F(Concurrency, EachThreadCompilesNeuronsOfItsOwn) {
  std::vector<Case> cases;
  for (int i = 0; i < thread_count; ++i) cases.emplace_back(leaky(10 + i), 37);
  together([&](int me) { EXPECT_TRUE(cases[static_cast<std::size_t>(me)].holds(compile(leaky(10 + me)))); });
}

TEST_F(Concurrency, RunsGoOnWhileOthersCompileAndTheStoreIsCleared) {
  const Neuron one = leaky(2);
  const Case c(one, 37);
  const Kernel shared = compile(one);
  ASSERT_TRUE(c.holds(shared));
  std::atomic<int> compiling = thread_count / 2;
  together([&](int me) {
    if (me % 2 == 0) {
      for (int i = 0; i < 3; ++i) {
        const Neuron mine = leaky(20 + 10 * me + i);
        EXPECT_TRUE(Case(mine, 11).holds(compile(mine)));
        Store::standard().clear();
      }
      --compiling;
    } else {
      do EXPECT_TRUE(c.holds(shared));
      while (compiling > 0);
    }
  });
}

TEST_F(Concurrency, KernelsAreDroppedWhileOthersRunThem) {
  const Neuron one = leaky(3);
  const Case c(one, 37);
  std::vector<Kernel> kernels(thread_count, compile(one));
  together([&](int me) {
    for (int i = 0; i < 10; ++i) {
      Kernel mine = kernels[static_cast<std::size_t>(me)];
      EXPECT_TRUE(c.holds(mine));
      // The last one that lets go of the old kernel may be in the middle of its last run.
      kernels[static_cast<std::size_t>(me)] = compile(one);
    }
  });
}

TEST_F(Concurrency, ThePoolServesRunsOfSeveralThreads) {
  const Neuron one = leaky(4);
  const Case c(one, 150000);  // worth more than one task
  const Kernel first = compile(one, {.threads = 3});
  ASSERT_TRUE(c.holds(first));
  together([&](int me) {
    EXPECT_TRUE(c.holds(first));
    EXPECT_TRUE(c.holds(compile(one, {.threads = 2 + me % 2})));
  });
}

// ---- the CUDA loader --------------------------------------------------------------------------------

class CudaConcurrency : public Concurrency {
 protected:
  void SetUp() override {
    void* handle = dlopen(FLEXSN_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << dlerror();
    fake_ = reinterpret_cast<fake::Fake* (*)()>(dlsym(handle, "flexsn_fake"))();
  }
  void TearDown() override {
    EXPECT_EQ(fake_->misuse, "");
    EXPECT_EQ(fake_->modules, 0);
    EXPECT_EQ(fake_->programs, 0);
    fake_->launches.clear();
    fake_->compiled.clear();
  }
  void fail(const std::string& function) {
    const std::lock_guard lock(fake_->mutex);
    fake_->calls.clear();
    fake_->failing = function;
    fake_->fails_at = 1;
  }

  /// A run whose buffers lie wherever the fake does not look.
  static PlanRun run_of(const Plan& plan, int device, std::int64_t elements = 1000) {
    PlanRun run{.steps = 3, .elements = elements, .buffers = {}, .device = device};
    static const float one = 1;
    for (const Buffer& buffer : plan.buffers) {
      Bound bound{.data = reinterpret_cast<void*>(std::uint64_t{0x10000} * (1 + run.buffers.size())),
                  .row_stride = elements};
      if (buffer.map == Map::scalar) bound = {.data = const_cast<float*>(&one), .host = true};
      run.buffers.push_back(bound);
    }
    return run;
  }

  fake::Fake* fake_ = nullptr;
};

TEST_F(CudaConcurrency, TheDriverIsOpenedAndCodeIsLoadedOnceForAll) {
  const Store kept = store("cuda");
  const Plan plan = plan_of(leaky(5).graph(), Kind::inference_final_state, {}, {{"gain", Map::scalar}});
  const Cuda cuda(FLEXSN_FAKE_CUDA, FLEXSN_FAKE_CUDA, kept);
  const CudaKernel kernel(plan, cuda, kept);
  together([&](int me) {
    for (int i = 0; i < 20; ++i) {
      const PlanRun run = run_of(plan, (me + i) % 2, i % 3 == 0 ? 1 << 20 : 1000);
      kernel.is_ready(run);
      kernel.run(run);
      EXPECT_TRUE(kernel.is_ready(run));
    }
  });
  EXPECT_EQ(fake_->compiled.size(), 2u) << "the wide and the narrow entry";
  EXPECT_EQ(fake_->launches.size(), std::size_t{20 * thread_count});
}

TEST_F(CudaConcurrency, KernelsOfTheirOwnAreLoadedAndDropped) {
  const Store kept = store("cuda_own");
  const Cuda cuda(FLEXSN_FAKE_CUDA, FLEXSN_FAKE_CUDA, kept);
  together([&](int me) {
    for (int i = 0; i < 5; ++i) {
      const Plan plan =
          plan_of(leaky(5 + (me + i) % 3).graph(), Kind::inference_final_state, {}, {{"gain", Map::scalar}});
      CudaKernel(plan, cuda, kept).run(run_of(plan, i % 2));
    }
  });
  EXPECT_EQ(fake_->launches.size(), std::size_t{5 * thread_count});
}

TEST_F(CudaConcurrency, WhatFailsInOneThreadWorksInTheNextCallOfAny) {
  const Store nothing("");
  const Plan plan = plan_of(leaky(6).graph(), Kind::inference_final_state, {}, {{"gain", Map::scalar}});
  for (const char* function : {"cuInit", "nvrtcVersion", "nvrtcCompileProgram", "cuModuleLoadDataEx",
                               "cuModuleGetFunction", "cuLaunchKernel"}) {
    const Cuda cuda(FLEXSN_FAKE_CUDA, FLEXSN_FAKE_CUDA, nothing);
    const CudaKernel kernel(plan, cuda, nothing);
    fail(function);
    std::atomic<int> failed = 0;
    together([&](int) {
      try {
        kernel.run(run_of(plan, 0));
      } catch (const UserError& error) {
        ++failed;
        EXPECT_NE(std::string(error.what()).find("could not"), std::string::npos) << error.what();
      }
      kernel.run(run_of(plan, 0));
    });
    EXPECT_GE(failed, 1) << function;
  }
}

}  // namespace
}  // namespace flexsn::test
