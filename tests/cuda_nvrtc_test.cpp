// The CUDA text through NVRTC, which needs no GPU: every kernel compiles for every architecture.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "cuda_modules.h"
#include "cuda_shape.h"
#include "cuda_spread.h"
#include "error.h"
#include "train.h"

namespace flexsn::test {
namespace {

/// What a compilation gave.
struct Compiled {
  bool fine = false;
  std::string log, ptx;
};

/// NVRTC of the environment variable FLEXSN_NVRTC, else the one that CMake found.
class Nvrtc {
 public:
  Nvrtc() {
    const char* wanted = std::getenv("FLEXSN_NVRTC");
    path_ = wanted != nullptr && *wanted != 0 ? wanted : FLEXSN_NVRTC_LIBRARY;
    if (path_.empty()) return;
    handle_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  bool is_there() const { return handle_ != nullptr; }
  std::string why_not() const {
    return path_.empty() ? "NVRTC was not found; tools/venv.sh installs it, or FLEXSN_NVRTC names it"
                         : join(path_, " cannot be loaded");
  }

  Compiled compile(const std::string& text, const std::string& architecture, bool verbose = false) const {
    void* program = nullptr;
    Compiled result;
    if (function<int(void**, const char*, const char*, int, const char* const*, const char* const*)>(
            "nvrtcCreateProgram")(&program, text.c_str(), "kernel.cu", 0, nullptr, nullptr) != 0)
      return {false, "no program", ""};
    const std::string arch = "--gpu-architecture=" + architecture;
    int major = 0, minor = 0;
    function<int(int*, int*)>("nvrtcVersion")(&major, &minor);
    std::vector<const char*> options = cuda_compile_options_of(major, minor);
    options.push_back(arch.c_str());
    if (verbose) options.push_back("--ptxas-options=-v");
    result.fine = function<int(void*, int, const char* const*)>("nvrtcCompileProgram")(
                      program, static_cast<int>(options.size()), options.data()) == 0;
    std::size_t size = 0;
    function<int(void*, std::size_t*)>("nvrtcGetProgramLogSize")(program, &size);
    result.log.resize(size);
    if (size > 0) function<int(void*, char*)>("nvrtcGetProgramLog")(program, result.log.data());
    if (result.fine) {
      function<int(void*, std::size_t*)>("nvrtcGetPTXSize")(program, &size);
      result.ptx.resize(size);
      function<int(void*, char*)>("nvrtcGetPTX")(program, result.ptx.data());
    }
    function<int(void**)>("nvrtcDestroyProgram")(&program);
    return result;
  }

 private:
  template <class Signature>
  Signature* function(const char* name) const {
    void* found = dlsym(handle_, name);
    if (found == nullptr) throw std::runtime_error(join("NVRTC has no ", name));
    return reinterpret_cast<Signature*>(found);
  }

  std::string path_;
  void* handle_ = nullptr;
};

const Nvrtc& nvrtc() {
  static const Nvrtc library;
  return library;
}

constexpr const char* architectures[] = {"sm_75", "sm_80", "sm_90", "sm_100"};

/// The first choice between the constants 1 or -1 and -0, for which the assembler gives 0 instead of -0; ""
/// where there is none.
std::string choice_of_negative_zero(const std::string& ptx) {
  static const std::regex choice(
      "selp\\.f32[^,]*,\\s*(0f[3B]F800000,\\s*0f80000000|0f80000000,\\s*0f[3B]F800000),[^;]*;");
  std::smatch found;
  return std::regex_search(ptx, found, choice) ? found.str() : "";
}

void expect_compiled(const std::string& what, const std::string& text, const char* architecture) {
  const Compiled compiled = nvrtc().compile(text, architecture);
  ASSERT_TRUE(compiled.fine) << what << "\n" << compiled.log << "\n" << text;
  EXPECT_EQ(compiled.log.find("warning"), std::string::npos) << what << "\n" << compiled.log;
  EXPECT_EQ(choice_of_negative_zero(compiled.ptx), "") << what << "\n" << text;
}

class CudaNvrtc : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!nvrtc().is_there()) GTEST_SKIP() << nvrtc().why_not();
  }
  const char* architecture() const { return architectures[GetParam()]; }
  /// An entry of every kernel in turn, each as it is compiled for a run: object code for one architecture,
  /// PTX, which takes half the time, for the others; with FLEXSN_ALL_ARCHITECTURES in the environment object
  /// code of both for all.
  void compile(const std::vector<CudaCase>& cases) const {
    const bool all = std::getenv("FLEXSN_ALL_ARCHITECTURES") != nullptr;
    const std::string ptx = "compute" + std::string(architecture()).substr(2);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::size_t turn = i + static_cast<std::size_t>(GetParam()),
                        rounds = i / std::size(architectures);
      const CudaModule module = cases[i].module();
      for (const bool wide : {true, false}) {
        if (!all && wide != ((turn + rounds) % 2 == 0)) continue;
        const bool object = all || turn % std::size(architectures) == 0;
        expect_compiled(cases[i].what, module.text((wide ? module.wide : module.narrow).front()),
                        object ? architecture() : ptx.c_str());
      }
    }
  }
};

TEST_P(CudaNvrtc, TakesEveryNeuron) { compile(neuron_cases()); }
TEST_P(CudaNvrtc, TakesEveryTypeAndMap) { compile(type_cases()); }
TEST_P(CudaNvrtc, TakesOddNeurons) { compile(odd_cases()); }
TEST_P(CudaNvrtc, TakesEveryRow) { compile(row_cases()); }
TEST_P(CudaNvrtc, TakesRandomGraphs) { compile(random_cases(0, 20)); }
TEST_P(CudaNvrtc, TakesTheSumsAndCopies) {
  for (const std::string& text : {emit_cuda_reduce(), spread_text()}) {
    const Compiled compiled = nvrtc().compile(text, architecture());
    EXPECT_TRUE(compiled.fine) << compiled.log;
  }
}

INSTANTIATE_TEST_SUITE_P(Architecture, CudaNvrtc, testing::Range(0, 4),
                         [](const auto& one) { return std::string(architectures[one.param]); });

/// What the compiler says that an entry spilled.
std::string spilled(const std::string& log, const char* entry) {
  const std::size_t at = log.find(join("Function properties for ", entry));
  if (at == log.npos) return "no such entry: " + log;
  const std::size_t line = log.find('\n', at) + 1;
  const std::string found = log.substr(line, log.find('\n', line) - line);
  const bool none =
      found.find("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") != found.npos;
  return none ? "" : found;
}

TEST(CudaNvrtcRegisters, WhatTakesThePlaceOfAnEntryThatSpillsDoesNot) {
  if (!nvrtc().is_there()) GTEST_SKIP() << nvrtc().why_not();
  const auto module_of = [](const char* name, Mem type, int segment) {
    const Plan plan = plan_of(neuron_named(name).graph(type), Kind::backward,
                              {.state_sequences = true, .segment = segment});
    return emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), cuda_shape(plan).options);
  };
  const auto spilled_by = [](const std::string& text, const char* entry) {
    return spilled(nvrtc().compile(text, "sm_100", true).log, entry);
  };
  const CudaModule alif = module_of("alif", Mem::f32, 4);
  EXPECT_NE(spilled_by(alif.text(alif.wide[0]), cuda_wide), "") << "no case of it any more: find another";
  EXPECT_EQ(spilled_by(alif.text(alif.wide[1]), cuda_wide), "");
  const CudaModule raf = module_of("raf", Mem::f64, 8);
  ASSERT_EQ(raf.narrow[1].how, "no early rows, at most 255 registers");
  EXPECT_EQ(spilled_by(raf.text(raf.narrow[1]), cuda_narrow), "");
}

TEST(CudaNvrtcRegisters, LongSegmentsInPiecesSpillNone) {
  if (!nvrtc().is_there()) GTEST_SKIP() << nvrtc().why_not();
  const auto expect_none = [](const Neuron& neuron, const Training& training, bool spills_on_sm_80 = false) {
    const Plan plan = plan_of(neuron.graph(Mem::f32), Kind::backward, training);
    SCOPED_TRACE(join(plan.neuron, ", ", plan.segment, " steps"));
    const CudaOptions options = cuda_shape(plan).options;
    ASSERT_TRUE(in_pieces(plan, options));
    const CudaModule module = emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), options);
    const auto spilled_by = [&](const CudaWay& way, const char* entry, const char* architecture) {
      return spilled(nvrtc().compile(module.text(way), architecture, true).log, entry);
    };
    for (const char* architecture : {"sm_90", "sm_100"}) {
      EXPECT_EQ(spilled_by(module.narrow[0], cuda_narrow, architecture), "") << architecture;
      EXPECT_EQ(spilled_by(module.wide[0], cuda_wide, architecture), "") << architecture;
    }
    if (spills_on_sm_80) return;
    EXPECT_EQ(spilled_by(module.wide[0], cuda_wide, "sm_80"), "");
  };
  for (const char* name : {"lif", "cuba_lif", "izhikevich"})
    for (int segment : {16, 32})
      expect_none(neuron_named(name), {.saving = Saving::rebuild, .segment = segment});
  const auto reset_by_product = [](bool learns) {
    return neuron(learns ? "learns" : "lif", [learns](Step& s) {
      const auto v = s.state("v"), h = v + (s.input("x") - v) * 0.5;
      const auto fired = spike(learns ? h - s.param("threshold", 1) : h - 1.0);
      s.output("s", fired);
      s.next(v, h * (1.0 - fired));
    });
  };
  const Training chosen{.costs = cost_model_named("gpu")};
  for (const char* name : {"if", "simple_lif", "liaf", "ottt_lif"}) expect_none(neuron_named(name), chosen);
  expect_none(neuron_named("cuba_lif:surrogate=atan"), chosen);
  // A reset by subtraction has a few values more, for which sm_80 lacks registers.
  expect_none(neuron_named("if:v_reset=none"), chosen, true);
  Training with_sequences = chosen;
  with_sequences.state_sequences = true;
  expect_none(neuron_named("if:v_reset=none"), with_sequences, true);
  for (bool learns : {false, true}) expect_none(reset_by_product(learns), chosen);
}

TEST(CudaNvrtcRegisters, FewerRegistersMaySpillLess) {
  if (!nvrtc().is_there()) GTEST_SKIP() << nvrtc().why_not();
  const Neuron many = neuron("many", [](Step& s) {
    const auto v = s.state("v");
    Value h = v * 0.5;
    for (int i = 0; i < 32; ++i) h = h + s.input(join("x", i)) * h;
    s.next(v, h);
    s.output("y", h);
  });
  const Plan plan = plan_of(many.graph(Mem::f32), Kind::backward,
                            {.state_sequences = true, .costs = cost_model_named("gpu")});
  const CudaModule module =
      emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), cuda_shape(plan).options);
  ASSERT_EQ(module.wide.size(), 3u);
  ASSERT_EQ(module.narrow.size(), 3u);
  const auto spilled_by = [&](const CudaWay& way, const char* entry) {
    return spilled(nvrtc().compile(module.text(way), "sm_90", true).log, entry);
  };
  EXPECT_NE(spilled_by(module.wide[0], cuda_wide), "") << "no case of it any more: find another";
  EXPECT_EQ(spilled_by(module.wide[2], cuda_wide), "") << module.wide[2].how;
  EXPECT_NE(spilled_by(module.narrow[0], cuda_narrow), "") << "no case of it any more: find another";
  EXPECT_EQ(spilled_by(module.narrow[2], cuda_narrow), "") << module.narrow[2].how;
}

TEST(CudaNvrtcRegisters, ALeakyNeuronSpillsNone) {
  if (!nvrtc().is_there()) GTEST_SKIP() << nvrtc().why_not();
  const Training training{.saving = Saving::rebuild, .segment = 8};
  for (Mem type : {Mem::f32, Mem::f16, Mem::bf16})
    for (Kind kind : {Kind::inference, Kind::forward, Kind::backward}) {
      SCOPED_TRACE(join(name_of(type), ", kind ", static_cast<int>(kind)));
      const Plan plan = plan_of(neuron_named("lif").graph(type), kind, training);
      const CudaModule module =
          emit_cuda(plan, std::vector<bool>(plan.buffers.size(), true), cuda_shape(plan).options);
      const Compiled compiled = nvrtc().compile(module.text(), "sm_90", true);
      ASSERT_TRUE(compiled.fine) << compiled.log;
      for (const char* entry : {"flexsn_wide", "flexsn_narrow"}) {
        // Single elements of 16 bits are no work for which a few bytes matter.
        if (type != Mem::f32 && entry == std::string("flexsn_narrow")) continue;
        EXPECT_EQ(spilled(compiled.log, entry), "") << entry;
      }
    }
}

}  // namespace
}  // namespace flexsn::test
