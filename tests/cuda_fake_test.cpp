// How CUDA kernels are compiled, kept and launched, on a driver and an NVRTC that are not there; and the
// launches that sum parameter gradients, done on the host.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <thread>

#include "cuda_fake_fixture.h"
#include "cuda_shape.h"
#include "cuda_spread.h"
#include "error.h"
#include "kernels.h"
#include "random_graph.h"
#include "reduce.h"
#include "train.h"

namespace flexsn::test {
namespace {

using fake::Fake;
using fake::Launch;

/// A store that is gone with the test.
class TemporaryStore {
 public:
  TemporaryStore()
      : home_(std::filesystem::temp_directory_path() / join("flexsn_cuda_", getpid())),
        store(home_.string()) {}
  ~TemporaryStore() { std::filesystem::remove_all(home_); }

 private:
  std::filesystem::path home_;

 public:
  const Store store;
};

TEST_F(CudaFake, AMissingDriverOrCompilerIsSaid) {
  const Cuda nothing("libnowhere_cuda.so", library, no_store);
  EXPECT_EQ(error([&] { nothing.driver.functions(); }),
            "there is no CUDA driver (libnowhere_cuda.so: cannot open shared object file: No such file or "
            "directory); install NVIDIA's driver on a machine with a GPU of theirs, or use target \"cpu\"");
  const Cuda other("libm.so.6", "libm.so.6", no_store);
  EXPECT_EQ(
      error([&] { other.driver.functions(); }),
      "there is no CUDA driver ('libm.so.6' has no function cuInit); install NVIDIA's driver on a machine "
      "with a GPU of theirs, or use target \"cpu\"");
  EXPECT_TRUE(
      contains(error([&] { other.nvrtc.version(); }),
               "there is no NVRTC ('libm.so.6' has no function nvrtcVersion); install the CUDA toolkit"));
  const Cuda no_compiler(library, "libnowhere_nvrtc.so", no_store);
  EXPECT_TRUE(
      contains(error([&] { no_compiler.nvrtc.version(); }),
               "there is no NVRTC (libnowhere_nvrtc.so: cannot open shared object file: No such file or "
               "directory); install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, and set "
               "FLEXSN_NVRTC to the path"));
}

TEST_F(CudaFake, AMachineWithoutADeviceOrWithAnOldDriverIsSaid) {
  const Cuda cuda(library, library, no_store);
  fake_->devices.clear();
  EXPECT_EQ(error([&] { cuda.driver.functions(); }),
            "the CUDA driver sees no GPU; is there one, and may this process see it (CUDA_VISIBLE_DEVICES)?");
  fake_->devices = {{}};
  fake_->driver_version = 11010;
  EXPECT_EQ(error([&] { cuda.driver.functions(); }),
            "the CUDA driver is too old: it is for CUDA 11.1; install one for 11.2 or newer");
  fake_->driver_version = 12040;
  fake_->failing = "cuInit";
  fake_->error = 3;
  EXPECT_EQ(
      error([&] { cuda.driver.functions(); }),
      "the CUDA driver could not start: CUDA_ERROR_NOT_INITIALIZED: initialization error; a process that "
      "was forked from one that used CUDA cannot use it: start it with spawn");
  EXPECT_EQ(cuda.driver.version(), 12040);
  EXPECT_EQ(error([&] { cuda.driver.gpu(1); }),
            "there is no CUDA device 1; this process sees 1, counted from 0");
}

TEST_F(CudaFake, AForkedChildIsToldSoBeforeItWaitsForALockThatNobodyReleases) {
  const Cuda cuda(library, library, no_store);
  const Plan plan = lif_plan();
  const CudaKernel kernel(plan, cuda, no_store);
  kernel.run(run_of(plan, 3, 100));  // the other entry is made in a thread that no child has
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    alarm(60);
    _exit(error([&] {
            kernel.run(run_of(plan, 3, 100));
          }) == "the CUDA driver could not use a device: CUDA_ERROR_NOT_INITIALIZED: initialization error; a "
                "process that was forked from one that used CUDA cannot use it: start it with spawn"
              ? 0
              : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(CudaFake, WhateverFailsIsOneErrorAndTheNextCallWorks) {
  const char* const names[] = {
#define FUNCTION(name, ...) #name,
      FLEXSN_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION
          "nvrtcVersion",
      "nvrtcGetNumSupportedArchs",
      "nvrtcGetSupportedArchs",
      "nvrtcCreateProgram",
      "nvrtcCompileProgram",
      "nvrtcGetCUBINSize",
      "nvrtcGetCUBIN"};
  const Plan plan = plan_of(neuron_named("plif").graph(), Kind::backward, {});
  PlanRun run = run_of(plan, 3, 1000);
  ParamGradients gradients{.step = {1000}, .scratch = reinterpret_cast<void*>(0x900000)};
  float gradient = 0;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b)
    if (plan.buffers[b].holds == Holds::grad_param)
      gradients.list.push_back({.buffer = static_cast<int>(b), .to = &gradient});
  ASSERT_EQ(gradients.list.size(), 1u);
  int failures = 0;
  fake_->fails_in = std::this_thread::get_id();
  for (const char* name : names)
    for (int call = 1; call < 20; ++call) {
      const Cuda cuda(library, library, no_store);
      const CudaKernel kernel(plan, cuda, no_store);
      fake_->calls.clear();
      fake_->failing = name;
      fake_->fails_at = call;
      const std::string said = error([&] { kernel.run_backward(run, gradients); });
      const bool failed = fake_->failing.empty();
      fake_->failing.clear();
      if (!failed) {  // it is called less often
        EXPECT_EQ(said, "no error");
        break;
      }
      // What is undone at the end of a scope fails without a word, and a device need not tell its clocks.
      const std::string_view function = name;
      if (function != "cuCtxPopCurrent_v2" && !(function == "cuDeviceGetAttribute" && call > 3)) {
        EXPECT_TRUE(contains(said, "could not")) << name << ": " << said;
        ++failures;
      }
      fake_->launches.clear();
      EXPECT_EQ(error([&] { kernel.run_backward(run, gradients); }), "no error") << "after " << name;
      EXPECT_GE(fake_->launches.size(), 2u);
    }
  EXPECT_GT(failures, 20);
}

TEST_F(CudaFake, ATextThatDoesNotCompileIsLeftForReading) {
  const Cuda cuda(library, library, no_store);
  const CudaCode code(cuda, no_store, "a text that is wrong: #error", {"flexsn_wide"});
  const std::string said = error([&] { code.on(cuda.driver.gpu(0)); });
  EXPECT_TRUE(contains(said,
                       "internal: NVRTC 13.0 could not compile a kernel for sm_90: "
                       "NVRTC_ERROR_COMPILATION; the text is "))
      << said;
  EXPECT_TRUE(contains(said, "\nflexsn.cu: #error")) << said;
  const std::size_t start = said.find("the text is ") + 12;
  const std::filesystem::path path = said.substr(start, said.find('\n', start) - start);
  EXPECT_EQ(std::filesystem::file_size(path), 28u);
  std::filesystem::remove(path);
}

TEST_F(CudaFake, CodeIsKeptOnDiskByCompilerAndArchitecture) {
  TemporaryStore temporary;
  const Plan plan = lif_plan();
  const PlanRun run = run_of(plan, 3, 1000);
  const auto compilations = [&] {
    fake_->compiled.clear();
    const Cuda cuda(library, library, temporary.store);
    CudaKernel(plan, cuda, temporary.store).run(run);
    return fake_->compiled.size();
  };
  EXPECT_EQ(compilations(), 2u);
  EXPECT_EQ(compilations(), 0u);
  fake_->nvrtc_minor = 1;
  EXPECT_EQ(compilations(), 2u);
  fake_->devices[0] = {.major = 8, .minor = 0};
  EXPECT_EQ(compilations(), 2u);
  EXPECT_EQ(compilations(), 0u);
  EXPECT_EQ(temporary.store.info().kinds.at("cubin").entries, 6u);
}

TEST_F(CudaFake, CodeOnDiskThatDoesNotLoadIsMadeAgain) {
  TemporaryStore temporary;
  const Cuda cuda(library, library, temporary.store);
  const std::string text = "flexsn_wide flexsn_narrow";
  const auto load = [&] {
    const CudaCode code(cuda, temporary.store, text, {"flexsn_wide"});
    return code.on(cuda.driver.gpu(0)).size();
  };
  EXPECT_EQ(load(), 1u);
  std::string key = join("flexsn ", version(), ", NVRTC 13.0, sm_90");
  for (const char* option : cuda_compile_options) key += join(" ", option);
  key += "\n" + text;
  const std::optional<std::string> good = temporary.store.load("cubin", key);
  ASSERT_TRUE(good.has_value());
  const TemporaryFolder texts;
  for (const char* bad : {"garbage", "object of something else"}) {
    ASSERT_TRUE(temporary.store.save("cubin", key, bad));
    EXPECT_EQ(load(), 1u);
    EXPECT_EQ(temporary.store.load("cubin", key), good);
  }
  EXPECT_EQ(fake_->compiled.size(), 3u);
  EXPECT_TRUE(std::filesystem::is_empty(texts.path)) << "a text is left for who is told of it";
}

TEST_F(CudaFake, CodeThatADriverRefusesIsLeftForReading) {
  const Cuda cuda(library, library, no_store);
  const TemporaryFolder texts;
  const auto refused = [&](int why) {
    fake_->failing = "cuModuleLoadDataEx";
    fake_->error = why;
    const CudaCode code(cuda, no_store, "flexsn_wide", {"flexsn_wide"});
    return error([&] { code.on(cuda.driver.gpu(0)); });
  };
  EXPECT_EQ(refused(2),
            "the CUDA driver could not load a kernel that NVRTC 13.0 made for sm_90 on Fake 0: "
            "CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  EXPECT_TRUE(std::filesystem::is_empty(texts.path)) << "the text is not to blame";
  const std::string said = refused(3);
  EXPECT_TRUE(contains(said, "; a driver must not be older than NVRTC; the text is ")) << said;
  EXPECT_TRUE(std::filesystem::exists(said.substr(said.rfind(' ') + 1))) << said;
}

TEST_F(CudaFake, ADeviceThatCannotBeOpenedIsStillDescribed) {
  const Cuda cuda(library, library, no_store);
  fake_->failing = "cuDevicePrimaryCtxRetain";
  EXPECT_EQ(cuda.driver.gpu(0).capability, 90);
  EXPECT_EQ(fake_->calls["cuDevicePrimaryCtxRetain"], 0) << "nothing is opened to look at it";
  const CudaKernel kernel(lif_plan(), cuda, no_store);
  const auto run = [&] { return error([&] { kernel.run(run_of(lif_plan(), 3, 100)); }); };
  EXPECT_EQ(run(),
            "the CUDA driver could not open a device's context: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  EXPECT_EQ(run(), "no error") << "it is tried again";
}

TEST_F(CudaFake, ADeviceOfWhichNothingIsToldIsNoError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto listed = [&] {
    setenv("FLEXSN_CUDA_DRIVER", library, 1);
    setenv("FLEXSN_NVRTC", library, 1);
    fake_->failing = "cuDeviceGetName";
    const TargetInfo cuda = target_list().back();
    ExplainOptions options;
    options.training.costs = cost_model_named("gpu");
    fake_->failing = "cuDeviceGetName";
    const std::string text = explain(neuron_named("lif"), options).text;
    std::cerr << cuda.name << ' ' << cuda.available << ": " << cuda.note << "; "
              << text.substr(text.find("what the compiler"));
    std::exit(0);
  };
  EXPECT_EXIT(listed(), testing::ExitedWithCode(0),
              "cuda 0: the CUDA driver could not tell a device's name: .*"
              "what the compiler makes of them is not known here: the CUDA driver could not tell");
}

TEST_F(CudaFake, AnOlderCompilerMakesATextForTheDriver) {
  const Cuda cuda(library, library, no_store);
  fake_->devices[0] = {.major = 12, .minor = 1};
  EXPECT_EQ(cuda.nvrtc.architecture(121), "compute_100");
  CudaKernel(lif_plan(), cuda, no_store).run(run_of(lif_plan(), 3, 1000));
  ASSERT_EQ(fake_->compiled.size(), 2u);
  EXPECT_EQ(fake_->compiled[0],
            "--fmad=false --std=c++17 --prec-div=true --prec-sqrt=true --ftz=false --minimal "
            "--gpu-architecture=compute_100");
  EXPECT_EQ(cuda.nvrtc.architecture(90), "sm_90");
  EXPECT_EQ(cuda.nvrtc.architecture(87), "compute_86");
  EXPECT_EQ(error([&] { cuda.nvrtc.architecture(70); }),
            "NVRTC 13.0 compiles for devices of capability 7.5 and newer, but this one has 7.0; use an older "
            "NVRTC (FLEXSN_NVRTC names its library)");
}

TEST_F(CudaFake, ACompilerIsGivenOnlyOptionsThatItKnows) {
  const auto compiled_by = [&](int major, int minor) {
    fake_->nvrtc_major = major;
    fake_->nvrtc_minor = minor;
    const Cuda cuda(library, library, no_store);
    cuda.nvrtc.compile("flexsn_wide", "sm_90");
    return fake_->compiled.back().find(" --minimal ") != std::string::npos;
  };
  for (const auto& [major, minor] : {std::pair(11, 8), std::pair(12, 3)})
    EXPECT_FALSE(compiled_by(major, minor)) << major << "." << minor;
  for (const auto& [major, minor] : {std::pair(12, 4), std::pair(12, 9), std::pair(13, 0)})
    EXPECT_TRUE(compiled_by(major, minor)) << major << "." << minor;
}

TEST_F(CudaFake, EachDeviceHasItsCodeAndEachArchitectureIsCompiledOnce) {
  fake_->devices = {{}, {}, {.major = 8, .minor = 0}};
  const Cuda cuda(library, library, no_store);
  const Plan plan = lif_plan();
  const CudaKernel kernel(plan, cuda, no_store);
  PlanRun run = run_of(plan, 3, 1000);
  for (int round = 0; round < 2; ++round)
    for (int device : {0, 1, 2}) {
      run.device = device;
      run.stream = reinterpret_cast<void*>(std::uint64_t{7} + static_cast<std::uint64_t>(device));
      kernel.run(run);
      kernel.figures(run);  // waits for the entry that is made in the background
    }
  EXPECT_EQ(fake_->compiled.size(), 4u);
  EXPECT_EQ(fake_->modules, 6);
  ASSERT_EQ(fake_->launches.size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(fake_->launches[static_cast<std::size_t>(i)].device, i % 3);
    EXPECT_EQ(fake_->launches[static_cast<std::size_t>(i)].stream,
              reinterpret_cast<void*>(std::uint64_t{7} + static_cast<std::uint64_t>(i % 3)));
  }
}

TEST_F(CudaFake, ManyThreadsCompileOnce) {
  const Cuda cuda(library, library, no_store);
  const Plan plan = lif_plan();
  const CudaKernel kernel(plan, cuda, no_store);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      PlanRun run = run_of(plan, 3, i % 4 < 2 ? 1000 : 1 << 20);
      run.device = i % 2;
      for (int k = 0; k < 20; ++k) kernel.run(run);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake_->compiled.size(), 2u) << "each entry";
  EXPECT_EQ(fake_->launches.size(), 160u);
}

TEST_F(CudaFake, ACaptureSeesLaunchesAlone) {
  const Cuda cuda(library, library, no_store);
  const Plan plan = lif_plan();
  const CudaKernel kernel(plan, cuda, no_store);
  fake_->capturing = true;  // even the first run is legal
  kernel.run(run_of(plan, 3, 1000));
  fake_->calls.clear();
  kernel.run(run_of(plan, 3, 1000));
  std::vector<std::string> called;
  for (const auto& [name, count] : fake_->calls) called.push_back(name);
  EXPECT_EQ(called, (std::vector<std::string>{"cuCtxGetCurrent", "cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2",
                                              "cuLaunchKernel"}));
  EXPECT_EQ(fake_->launches.size(), 2u);
}

TEST_F(CudaFake, TheWideEntryRunsWhereMemoryLiesForIt) {
  const Cuda cuda(library, library, no_store);
  const Plan plan = lif_plan();
  const CudaOptions options{.vector = 4, .unroll = 8, .threads = 128, .narrow_threads = 64};
  const CudaKernel kernel(plan, cuda, no_store, {.options = options});
  const std::int64_t enough = 4 * 128 * 2 * 4;  // two blocks for each of four multiprocessors
  const PlanRun good = run_of(plan, 3, enough);
  EXPECT_EQ(entry_of(*fake_, kernel, good), "flexsn_wide");
  EXPECT_EQ(fake_->launches[0].blocks, 8u);
  EXPECT_EQ(fake_->launches[0].threads, 128u);
  // Too few elements for the device, and a number that is no multiple.
  EXPECT_EQ(entry_of(*fake_, kernel, run_of(plan, 3, enough - 512)), "flexsn_narrow");
  EXPECT_EQ(fake_->launches[0].blocks, 56u);
  EXPECT_EQ(fake_->launches[0].threads, 64u);
  EXPECT_EQ(entry_of(*fake_, kernel, run_of(plan, 3, enough + 2)), "flexsn_narrow");
  EXPECT_EQ(fake_->launches[0].blocks, 65u);
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].map != Map::element) continue;
    PlanRun odd = good;
    odd.buffers[b].data = static_cast<float*>(odd.buffers[b].data) + 2;
    EXPECT_EQ(entry_of(*fake_, kernel, odd), "flexsn_narrow") << plan.buffers[b].name;
    odd = good;
    odd.buffers[b].row_stride += 2;
    const bool rows = plan.buffers[b].lead == Lead::per_step;
    EXPECT_EQ(entry_of(*fake_, kernel, odd), rows ? "flexsn_narrow" : "flexsn_wide") << plan.buffers[b].name;
    odd.buffers[b].row_stride += 2;
    EXPECT_EQ(entry_of(*fake_, kernel, odd), "flexsn_wide");
    odd.steps = 1;  // then there is no second row
    odd.buffers[b].row_stride = 1;
    EXPECT_EQ(entry_of(*fake_, kernel, odd), "flexsn_wide");
  }
  const CudaKernel always(plan, cuda, no_store, {.options = options, .entry = CudaEntry::wide});
  EXPECT_EQ(entry_of(*fake_, always, run_of(plan, 3, 4)), "flexsn_wide");
  EXPECT_EQ(entry_of(*fake_, always, run_of(plan, 3, 5)), "flexsn_narrow");
  const CudaKernel never(plan, cuda, no_store, {.options = options, .entry = CudaEntry::narrow});
  EXPECT_EQ(entry_of(*fake_, never, good), "flexsn_narrow");
}

TEST_F(CudaFake, APersonMayAskForAnEntry) {
  // In a process of its own: the standard driver is found once in one.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto entries = [&](const char* asked, bool as_many) {
    setenv("FLEXSN_CUDA_DRIVER", library, 1);
    setenv("FLEXSN_NVRTC", library, 1);
    setenv("FLEXSN_CACHE", "0", 1);
    setenv("FLEXSN_CUDA_SHAPE", asked, 1);
    const Plan plan = lif_plan();
    const auto kernel = cuda_executable(plan, as_many);
    for (std::int64_t elements : {16, 17, 1 << 16})
      std::cerr << elements << " " << entry_of(*fake_, *kernel, run_of(plan, 3, elements)) << ";";
    std::exit(0);
  };
  const testing::ExitedWithCode done(0);
  EXPECT_EXIT(entries("", false), done, "16 flexsn_narrow;17 flexsn_narrow;65536 flexsn_wide;");
  EXPECT_EXIT(entries("", true), done, "16 flexsn_wide;17 flexsn_narrow;65536 flexsn_wide;");
  EXPECT_EXIT(entries("entry=wide", false), done, "16 flexsn_wide;17 flexsn_narrow;65536 flexsn_wide;");
  for (bool as_many : {false, true})
    EXPECT_EXIT(entries("entry=narrow", as_many), done,
                "16 flexsn_narrow;17 flexsn_narrow;65536 flexsn_narrow;");
  const auto one_after_another = [&] {
    setenv("FLEXSN_CUDA_DRIVER", library, 1);
    setenv("FLEXSN_NVRTC", library, 1);
    setenv("FLEXSN_CACHE", "0", 1);
    const Kernels kernels[] = {{neuron_named("lif").graph(), {.target = "cuda"}},
                               {neuron_named("lif").graph(), {.target = "cuda"}}};
    std::shared_ptr<const Executable> held[2];
    for (int i : {0, 1}) {
      setenv("FLEXSN_CUDA_SHAPE", i == 0 ? "entry=wide" : "entry=narrow", 1);
      held[i] = kernels[i].executable(Kind::inference_final_state, {});
      std::cerr << entry_of(*fake_, *held[i], run_of(held[i]->plan(), 3, 16)) << ";";
    }
    std::exit(0);
  };
  EXPECT_EXIT(one_after_another(), done, "flexsn_wide;flexsn_narrow;") << "equal plans share no other shape";
}

TEST_F(CudaFake, ARecordHasWhatItsFieldsSay) {
  const Cuda cuda(library, library, no_store);
  const Neuron gated = neuron("gated", [](Step& s) {
    auto x = s.input("x"), v = s.state("v");
    auto gate = s.step_param("gate", 0.5), bias = s.param("bias", 0.1),
         gain = s.param("gain", 1, {}, Mem::f16);
    s.next(v, v * bias + gate * x * gain);
    s.output("y", v);
  });
  const Plan plan = plan_of(gated.graph(), Kind::inference_final_state, {},
                            {{"gate", Map::indexed}, {"bias", Map::scalar}, {"gain", Map::scalar}});
  const CudaKernel kernel(plan, cuda, no_store, {.entry = CudaEntry::narrow});
  PlanRun run = run_of(plan, 5, std::int64_t{3} << 32);  // more than 2^31 elements
  run.first_step = 17;
  const float bias = 0.25f;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    Bound& bound = run.buffers[b];
    bound.row_stride = (std::int64_t{3} << 32) + static_cast<std::int64_t>(b);
    if (plan.buffers[b].map == Map::indexed) {
      bound.inner = std::int64_t{1} << 31;
      bound.count = 6;
    }
    if (plan.buffers[b].name == "bias") bound.data = const_cast<float*>(&bias);
    if (plan.buffers[b].name == "gain") bound = {.data = reinterpret_cast<void*>(0x777000), .host = false};
  }
  const CudaModule module = emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), kernel.options());
  fake_->record_fields = module.fields.size();
  kernel.run(run);
  ASSERT_EQ(fake_->launches.size(), 1u);
  const Launch& launch = fake_->launches[0];
  EXPECT_EQ(launch.blocks, (3ull << 32) / static_cast<unsigned>(kernel.options().narrow_threads));
  using What = CudaField::What;
  const auto expected = [&](const CudaField& field) -> std::uint64_t {
    const auto number = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
    if (field.what == What::steps) return 5;
    if (field.what == What::elements) return 3ull << 32;
    if (field.what == What::first_step) return 17;
    if (field.what == What::beyond_cache) return 1;
    if (field.what == What::partial_sums) return 0;
    const Bound& bound = run.buffers[static_cast<std::size_t>(field.buffer)];
    if (field.what == What::data) return bound.host ? 0 : reinterpret_cast<std::uint64_t>(bound.data);
    if (field.what == What::value && !bound.host) return 0;
    if (field.what == What::value) return bound.data == &bias ? 0x3e800000 : 0;
    if (field.what == What::row_stride) return number(bound.row_stride);
    return number(field.what == What::inner ? bound.inner : bound.count);
  };
  int values = 0;
  for (std::size_t i = 0; i < module.fields.size(); ++i) {
    EXPECT_EQ(launch.record[i], expected(module.fields[i])) << "field " << i;
    values += module.fields[i].what == What::value && launch.record[i] != 0;
  }
  EXPECT_EQ(values, 1);
}

TEST_F(CudaFake, AKernelIsToldWhetherItsRowsAreBeyondTheCache) {
  fake_->devices[0].cache_bytes = 8000;
  const Cuda cuda(library, library, no_store);
  const Neuron held = neuron("held", [](Step& s) {
    auto x = s.input("x"), bias = s.input("bias"), v = s.state("v");
    s.next(v, v * 0.5 + x);
    s.output("y", v + bias);
  });
  const Plan plan = plan_of(held.graph(), Kind::inference_final_state, {});
  const CudaKernel kernel(plan, cuda, no_store);
  const CudaModule module = emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), kernel.options());
  fake_->record_fields = module.fields.size();
  const auto told = [&](std::int64_t steps, std::int64_t elements, bool constant_bias) {
    PlanRun run = run_of(plan, steps, elements);
    for (std::size_t b = 0; b < plan.buffers.size(); ++b)
      if (constant_bias && plan.buffers[b].name == "bias") run.buffers[b].row_stride = 0;
    kernel.run(run);
    for (std::size_t i = 0; i < module.fields.size(); ++i)
      if (module.fields[i].what == CudaField::What::beyond_cache)
        return static_cast<int>(fake_->launches.back().record[i]);
    return -1;
  };
  EXPECT_EQ(told(20, 100, false), 0);  // 12 bytes of an element and step: three times the cache
  EXPECT_EQ(told(20, 101, false), 1);
  EXPECT_EQ(told(21, 100, false), 1);
  EXPECT_EQ(told(20, 101, true), 0);  // one row of it is read again and again
  EXPECT_EQ(told(30, 101, true), 1);
  const Plan backward = plan_of(held.graph(), Kind::backward, {});
  for (const CudaField& field :
       emit_cuda(backward, std::vector<bool>(backward.buffers.size(), true), {}).fields)
    EXPECT_NE(field.what, CudaField::What::beyond_cache);
}

TEST_F(CudaFake, ALaunchThatFailsNamesTheNeuronAndWhatToDo) {
  const Cuda cuda(library, library, no_store);
  const CudaKernel kernel(lif_plan(), cuda, no_store);
  const auto said_of = [&](int result) {
    fake_->failing = "cuLaunchKernel";
    fake_->error = result;
    return error([&] { kernel.run(run_of(lif_plan(), 1, 100)); });
  };
  EXPECT_EQ(
      said_of(2),
      "neuron 'lif': the CUDA driver could not queue a kernel: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  EXPECT_EQ(
      said_of(400),
      "neuron 'lif': the CUDA driver could not queue a kernel: an unknown error: 400; the stream must be "
      "one of the device that the run is on");
  EXPECT_EQ(
      said_of(700),
      "neuron 'lif': the CUDA driver could not queue a kernel: an unknown error: 700; a kernel that ran "
      "before, maybe none of these, failed, and this process cannot use the device any more");
}

TEST_F(CudaFake, MoreBlocksOrBuffersThanThereCanBeAreRefused) {
  const Cuda cuda(library, library, no_store);
  const CudaKernel kernel(lif_plan(), cuda, no_store, {.options = CudaOptions{}, .entry = CudaEntry::narrow});
  EXPECT_EQ(
      error([&] { kernel.run(run_of(lif_plan(), 1, std::int64_t{1} << 41)); }),
      "neuron 'lif': a CUDA kernel can have 2147483647 blocks at most, but this run needs 17179869184; run "
      "fewer elements at once");
  const Neuron many = neuron("many", [](Step& s) {
    auto sum = s.input("x0");
    for (int i = 1; i < 300; ++i) sum = sum + s.input(join("x", i));
    s.output("y", sum);
  });
  const Plan plan = plan_of(many.graph(), Kind::inference, {});
  const CudaKernel large(plan, cuda, no_store);
  const std::string said = error([&] { large.run(run_of(plan, 1, 100)); });
  EXPECT_TRUE(contains(said, "neuron 'many': a CUDA kernel takes 512 numbers at most, but this one needs 60"))
      << said;
  EXPECT_TRUE(contains(said, "to find its 301 arrays, which are inputs, states, outputs, parameters,"))
      << said;
}

TEST_F(CudaFake, SumsAreTheLaunchesThatFollowBackward) {
  const Cuda cuda(library, library, no_store);
  const Plan plan = plan_of(neuron_named("plif").graph(), Kind::backward, {});
  const CudaKernel kernel(plan, cuda, no_store, {.entry = CudaEntry::narrow});
  std::vector<double> to(64 * 32 * 128);
  ParamGradients gradients{.step = {64, 32, 128}, .scratch = reinterpret_cast<void*>(0x90000000)};
  for (std::size_t b = 0; b < plan.buffers.size(); ++b)
    if (plan.buffers[b].holds == Holds::grad_param)
      gradients.list = {{.buffer = static_cast<int>(b), .to = to.data()}};
  const std::size_t most_launches = 4;
  for (const Shape& shape : {Shape{}, {32, 1}, {128}, {64, 1, 1}, {64, 32, 128}, {64, 1, 128}})
    for (Mem mem : {Mem::f32, Mem::f16}) {
      gradients.list[0].shape = shape;
      gradients.list[0].mem = mem;
      fake_->launches.clear();
      kernel.run_backward(run_of(plan, 3, 64 * 32 * 128), gradients);
      const CudaSums sums = kernel.sums(gradients, 3, false).at(0);
      EXPECT_EQ(fake_->launches.size(), 1u + static_cast<std::size_t>(sums.launches)) << text_of(shape);
      EXPECT_LE(fake_->launches.size(), most_launches);
      const bool direct = shape.size() == 3 && shape[1] == 32 && mem == Mem::f32;
      EXPECT_EQ(sums.launches == 0, direct) << text_of(shape);
      EXPECT_EQ(sums.read == 0, direct);
    }
}

TEST_F(CudaFake, FiguresAreThoseOfTheDriver) {
  const Cuda cuda(library, library, no_store);
  const CudaKernel kernel(lif_plan(), cuda, no_store);
  const std::vector<CudaFigures> figures = kernel.figures(run_of(lif_plan(), 1, 1));
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].entry, "flexsn_wide");
  EXPECT_EQ(figures[1].entry, "flexsn_narrow");
  EXPECT_EQ(fake_->compiled.size(), 2u);
  EXPECT_EQ(figures[0].registers, 40);
  EXPECT_EQ(figures[0].local_bytes, 0);
  EXPECT_EQ(figures[1].local_bytes, 0);
  EXPECT_EQ(figures[0].shared_bytes, 1024);
}

TEST_F(CudaFake, OfWhatSpillsTheLeastRuns) {
  fake_->held_local_bytes = {{4, 40}, {2, 16}};
  fake_->early_local_bytes = 24;
  const Cuda cuda(library, library, no_store);
  const Plan plan = lif_plan();
  const PlanRun many = run_of(plan, 3, 1 << 20);
  const auto prepared = [&](const CudaOptions& options) {
    fake_->compiled.clear();
    auto made = std::make_unique<CudaKernel>(plan, cuda, no_store, CudaChoice{.options = options});
    EXPECT_FALSE(made->is_ready(many));
    made->prepare(many);
    EXPECT_TRUE(made->is_ready(many));
    return made;
  };
  const auto found = [&](const CudaOptions& options) {
    std::string text;
    for (const CudaFigures& figures : prepared(options)->figures(many))
      text += join(figures.entry, " ", figures.local_bytes, " ", figures.again, "\n");
    return text;
  };
  const auto kernel = prepared({});
  EXPECT_EQ(entry_of(*fake_, *kernel, many), "flexsn_wide");
  EXPECT_EQ(entry_of(*fake_, *kernel, run_of(plan, 3, 101)), "flexsn_narrow");
  EXPECT_EQ(fake_->compiled.size(), 5u) << "each way once";
  EXPECT_EQ(found({}),
            "flexsn_wide 16 at most 255 registers\n"
            "flexsn_narrow 16 no early rows, at most 255 registers\n");
  EXPECT_EQ(fake_->compiled.size(), 5u);

  fake_->held_local_bytes = {{8, 20}, {2, 20}, {4, 12}};
  EXPECT_EQ(found({.resident_threads = 1024}),
            "flexsn_wide 12 at most 128 registers\n"
            "flexsn_narrow 12 no early rows, at most 128 registers\n");
  fake_->held_local_bytes = {{8, 20}, {2, 28}, {4, 32}};
  EXPECT_EQ(found({.resident_threads = 1024}), "flexsn_wide 20 \nflexsn_narrow 24 \n") << "none is better";
  fake_->held_local_bytes = {{8, 20}, {2, 0}, {4, 0}};
  EXPECT_EQ(found({.resident_threads = 1024}),
            "flexsn_wide 0 at most 255 registers\nflexsn_narrow 0 no early rows, at most 255 registers\n");
  EXPECT_EQ(fake_->compiled.size(), 4u) << "what does not spill is not compiled in other ways";

  fake_->held_local_bytes = {{8, 20}, {2, 4}};
  EXPECT_EQ(found(cuda_shape_asked("resident_threads=1024", {}).options),
            "flexsn_wide 20 \nflexsn_narrow 24 \n")
      << "what a person asks for stays";
  EXPECT_EQ(fake_->compiled.size(), 2u);
}

TEST_F(CudaFake, ExplainSpeaksOfTheDevice) {
  // In a process of its own: the standard driver is found once in one.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto explained = [&](const char* asked, std::int64_t elements) {
    setenv("FLEXSN_CUDA_DRIVER", library, 1);
    setenv("FLEXSN_NVRTC", library, 1);
    setenv("FLEXSN_CACHE", "0", 1);
    if (asked != nullptr) setenv("FLEXSN_CUDA_SHAPE", asked, 1);
    fake_->held_local_bytes = {{8, 40}, {4, 40}, {2, 0}};
    fake_->early_local_bytes = 24;
    fake_->local_bytes = 0;
    ExplainOptions options{.elements = elements};
    options.training.costs = cost_model_named("gpu");
    const Explanation found = explain(neuron_named("lif"), options);
    const GpuEntry& wide = found.gpu.at(0).compiled.at(0);
    std::cerr << wide.entry << " " << wide.local_bytes << " " << wide.again.empty() << "\n" << found.text;
    std::exit(0);
  };
  const testing::ExitedWithCode done(0);
  EXPECT_EXIT(
      explained(nullptr, 1000), done,
      "flexsn_wide 0 0\n(.|\n)*8 steps loaded at once, 128 threads(.|\n)*"
      "; flexsn_wide .compiled once more: at most 255 registers. has 40 registers and 0 bytes that did not "
      "fit; flexsn_narrow .compiled once more: no early rows, at most 255 registers. has 40 registers and 0");
  EXPECT_EXIT(explained("resident_threads=1024", 1000), done,
              "flexsn_wide 40 1\n(.|\n)*8 steps loaded at once and later ones early(.|\n)*"
              "; flexsn_wide has 40 registers and 40 bytes that did not fit; flexsn_narrow has 40 registers");
  EXPECT_EXIT(explained(nullptr, 65536), done,
              "memory is the limit where the device has time for 3.00 a byte");
  // A device that does not tell its clocks runs kernels all the same.
  fake_->devices[0].memory_clock = 0;
  EXPECT_EXIT(explained(nullptr, 65536), done, "memory is the limit where an H200 has time for 5.20 a byte");
  fake_->failing = "cuDeviceGetAttribute";
  fake_->fails_at = 4;
  EXPECT_EXIT(explained(nullptr, 65536), done, "memory is the limit where an H200 has time for 5.20 a byte");
}

// ---- sums of parameter gradients -------------------------------------------------------------------

/// What the reduce kernels promise: the tail, then parts of the dimension before the inner one, by the tree.
template <class F>
std::vector<F> launched(const std::vector<F>& from, const ReduceLaunch& launch) {
  const std::int64_t rows = launch.outer * launch.n * launch.inner;
  const std::vector<F> tails = reduce(from, {rows, launch.tail}, {rows, 1});
  const std::int64_t part = launch.whole ? launch.n : cuda_reduce_block;
  std::vector<F> to;
  for (std::int64_t o = 0; o < launch.outer; ++o)
    for (std::int64_t first = 0; first < launch.n; first += part)
      for (std::int64_t i = 0; i < launch.inner; ++i) {
        std::vector<F> column;
        for (std::int64_t n = first; n < std::min(launch.n, first + part); ++n)
          column.push_back(tails[static_cast<std::size_t>((o * launch.n + n) * launch.inner + i)]);
        to.push_back(reduce(column, {static_cast<std::int64_t>(column.size())}, {})[0]);
      }
  EXPECT_EQ(static_cast<std::int64_t>(to.size()), launch.results());
  return to;
}

TEST(CudaSums, LaunchesHaveTheOrderOfReduce) {
  struct Sum {
    Shape step, param;
  };
  const Sum sums[] = {{{5}, {}},
                      {{1}, {}},
                      {{1, 1}, {1}},
                      {{1024}, {}},
                      {{1025}, {}},
                      {{16384}, {}},
                      {{30003}, {}},
                      {{2, 3, 5, 7}, {3, 1, 7}},
                      {{33, 9}, {9}},
                      {{3000, 20}, {20}},
                      {{4, 512}, {4, 1}},
                      {{4, 500}, {4, 1}},
                      {{3, 4, 16, 32}, {4, 1, 1}},
                      {{64, 30, 49}, {30, 1}},
                      {{2, 4, 2, 256}, {1, 4, 1, 256}},
                      {{20, 8}, {20, 8}},
                      {{4, 1, 6}, {4, 1, 1}}};
  Dice dice(4);
  int by_blocks = 0;
  for (const Sum& sum : sums)
    for (std::int64_t rows : {1, 3})
      for (std::int64_t block : {1, 64, 512}) {
        if (block > 1 && (rows > 1 || !sums_by_blocks(sum.step, sum.param, block))) continue;
        by_blocks += block > 1;
        const std::int64_t elements = elements_of(sum.step);
        std::vector<float> expected, values;
        for (std::int64_t r = 0; r < rows; ++r) {
          std::vector<float> row(static_cast<std::size_t>(elements));
          for (float& value : row) value = static_cast<float>(dice.uniform(-1, 1));
          for (float one : reduce(row, sum.step, sum.param)) expected.push_back(one);
          for (std::int64_t first = 0; first < elements; first += block) {
            const auto start = row.begin() + first, end = row.begin() + std::min(elements, first + block);
            values.push_back(reduce(std::vector<float>(start, end), {end - start}, {})[0]);
          }
        }
        const Buffer buffer{.holds = Holds::grad_param, .lead = rows > 1 ? Lead::per_step : Lead::once};
        const ParamGradient gradient{.shape = sum.param};
        const SumPlan plan = sum_plan(buffer, gradient, sum.step, rows, block);
        EXPECT_EQ(plan.rows * plan.row, static_cast<std::int64_t>(values.size()));
        std::size_t most = 0;
        for (const ReduceLaunch& launch : plan.launches) {
          values = launched(values, launch);
          most = std::max(most, values.size());
        }
        EXPECT_EQ(values, expected) << text_of(sum.step) << " to " << text_of(sum.param) << " by " << block;
        EXPECT_EQ(plan.direct, plan.launches.empty());
        EXPECT_GE(plan.bytes - plan.results_at, static_cast<std::int64_t>(most * sizeof(float)));
      }
  EXPECT_EQ(by_blocks, 14);
}

TEST(CudaSums, BlocksMustBePartsOfTheTree) {
  EXPECT_TRUE(sums_by_blocks({1000}, {}, 512));  // the last block may be short
  EXPECT_TRUE(sums_by_blocks({8, 125}, {1}, 512));
  EXPECT_TRUE(sums_by_blocks({64, 64, 32, 32}, {64, 1, 1}, 512));
  EXPECT_TRUE(sums_by_blocks({64, 512}, {64, 1}, 512));
  EXPECT_FALSE(sums_by_blocks({64, 500}, {64, 1}, 512));
  EXPECT_FALSE(sums_by_blocks({512, 64}, {64}, 512));
  EXPECT_FALSE(sums_by_blocks({1}, {}, 512));
  EXPECT_FALSE(sums_by_blocks({64, 512}, {64, 512}, 512));
}

TEST(CudaSums, OneSmallLaunchFollowsBackward) {
  const Buffer buffer{.holds = Holds::grad_param};
  const auto launches = [&](const Shape& step, const Shape& param, std::int64_t block) {
    return sum_plan(buffer, {.shape = param}, step, 8, block).launches;
  };
  EXPECT_EQ(launches({512 * 1024}, {}, 512), (std::vector<ReduceLaunch>{{1, 1024, 1}}));
  EXPECT_EQ(launches({256 * 16384}, {}, 256), (std::vector<ReduceLaunch>{{1, 16384, 1, 1, true}}));
  EXPECT_EQ(launches({64, 64, 32, 32}, {64, 1, 1}, 256), (std::vector<ReduceLaunch>{{1, 64, 64, 4, true}}));
  EXPECT_EQ(launches({64, 64, 49}, {64, 1}, 1).size(),
            2u);                                         // too much for blocks of threads that read columns
  EXPECT_EQ(launches({0, 4, 6}, {4, 1}, 1).size(), 1u);  // of nothing
  EXPECT_EQ(sum_plan(buffer, {}, {512 * 1024}, 8, 512).row, 1024);
}

}  // namespace
}  // namespace flexsn::test
