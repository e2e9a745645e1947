// How CUDA kernels are cut.
#include "cuda_shape.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "error.h"
#include "train.h"

namespace flexsn::test {
namespace {

CudaShape shape_of(const std::string& neuron, Kind kind, Mem type = Mem::f32) {
  const Training training{.type = type, .costs = cost_model_named("gpu")};
  return cuda_shape(plan_of(neuron_named(neuron).graph(type), kind, training));
}

TEST(CudaShape, AThreadLoadsEightBytesOfTheNarrowestRow) {
  EXPECT_EQ(shape_of("lif", Kind::backward).options.vector, 2);
  EXPECT_EQ(shape_of("lif", Kind::inference, Mem::f16).options.vector, 4);
  EXPECT_EQ(shape_of("lif", Kind::backward, Mem::f64).options.vector, 1);
}

TEST(CudaShape, TheStepsOfAPlanWithCheckpointsAreItsOwn) {
  const Training training{.costs = cost_model_named("gpu"), .segment = 4};
  const Plan plan = plan_of(neuron_named("lif").graph(Mem::f32), Kind::backward, training);
  EXPECT_EQ(cuda_shape(plan).options.unroll, 4);
  EXPECT_EQ(shape_of("lif", Kind::inference).options.unroll, 8);
  // More than are loaded at once are rebuilt in pieces, unless a block has no room for what they keep.
  for (const auto& [segment, steps, threads] :
       {std::tuple(16, 8, 128), {32, 8, 128}, {64, 8, 64}, {128, 8, 32}, {1024, 1024, 128}}) {
    const Plan long_plan = plan_of(neuron_named("lif").graph(Mem::f32), Kind::backward,
                                   {.saving = Saving::rebuild, .segment = segment});
    const CudaShape shape = cuda_shape(long_plan);
    EXPECT_EQ(shape.options.unroll, steps) << segment;
    EXPECT_EQ(shape.options.threads, threads) << segment;
    EXPECT_EQ(shape.options.narrow_threads, std::min(128, 2 * threads)) << segment;
    EXPECT_EQ(shape.registers() == 32, steps == 8) << segment;
  }
  const Training long_one{.saving = Saving::rebuild, .segment = 64};
  const Plan keeps_more = plan_of(neuron_named("alif").graph(Mem::f32), Kind::backward, long_one);
  EXPECT_EQ(cuda_shape(keeps_more).options.vector, 1) << "so that three values find room";
  EXPECT_EQ(cuda_shape(keeps_more).options.unroll, 8);
  // Forward leaves them, however far apart, and has no use for so many rows.
  for (const auto& [segment, steps] : {std::pair(4, 4), {8, 8}, {1024, 8}})
    EXPECT_EQ(cuda_shape(plan_of(neuron_named("lif").graph(Mem::f32), Kind::forward,
                                 {.saving = Saving::rebuild, .segment = segment}))
                  .options.unroll,
              steps);
}

TEST(CudaShape, CheckpointsLieAsFarApartAsRegistersAllow) {
  const auto ring = [](int states) {
    return neuron("ring", [states](Step& s) {
      std::vector<Value> all;
      for (int i = 0; i < states; ++i) all.push_back(s.state(join("v", i)));
      const auto x = s.input("x");
      for (int i = 0; i < states; ++i) s.next(all[i], all[i] * all[(i + 1) % states] + x);
      s.output("y", all[0]);
    });
  };
  const auto steps_of = [](const Neuron& neuron, std::optional<double> budget = {}, Mem type = Mem::f32) {
    const Training training{.type = type, .budget = budget, .costs = cost_model_named("gpu")};
    return plan_of(neuron.graph(type), Kind::backward, training).segment;
  };
  for (const auto& [states, steps] : {std::pair{4, 8}, {16, 8}, {24, 4}, {64, 2}})
    EXPECT_EQ(steps_of(ring(states)), steps) << states;
  for (const auto& [states, steps] : {std::pair{4, 8}, {8, 8}, {16, 4}, {24, 2}})
    EXPECT_EQ(steps_of(ring(states), {}, Mem::f64), steps) << states;
  // Parameters, whose sums and products stand beside the rows, leave less room.
  const auto scaled = [](int params) {
    return neuron("scaled", [params](Step& s) {
      const auto v = s.state("v"), u = s.state("u");
      auto h = v * u + s.input("x");
      for (int i = 0; i < params; ++i) h = h * s.param(join("p", i), 1);
      s.next(v, h);
      s.next(u, v * h);
      s.output("y", h);
    });
  };
  for (const auto& [params, steps] : {std::pair{4, 8}, {40, 0}})
    EXPECT_EQ(steps_of(scaled(params)), steps) << params;
  // With few states fewer steps do as well, and leave registers to other threads.
  const auto weighted = [](int inputs) {
    return neuron("weighted", [inputs](Step& s) {
      const auto v = s.state("v");
      auto h = v * 0.5;
      for (int i = 0; i < inputs; ++i) h = h + s.input(join("x", i)) * s.input(join("w", i));
      s.next(v, h);
      s.output("y", spike(h - 1.0));
    });
  };
  for (const auto& [inputs, steps] : {std::pair{1, 8}, {3, 4}, {8, 0}})
    EXPECT_EQ(steps_of(weighted(inputs)), steps) << inputs;
  // Rows that a step reads are held as well, and code that is too long holds none.
  const Neuron many = neuron("many", [](Step& s) {
    const auto v = s.state("v"), h = v * 0.5 + s.input("x");
    s.next(v, h);
    for (int i = 0; i < 24; ++i) s.output(join("y", i), exp(h * (1.0 + i)));
  });
  EXPECT_EQ(steps_of(many), 0);
  EXPECT_EQ(steps_of(neuron_named("hodgkin_huxley")), 0);
  EXPECT_EQ(steps_of(neuron_named("hodgkin_huxley"), 8.0), 4);
  const Training longer{.segment = 64};
  for (const auto& [name, again] : {std::pair("lif", true), {"hodgkin_huxley", false}}) {
    const Plan plan = plan_of(neuron_named(name).graph(Mem::f32), Kind::backward, longer);
    EXPECT_EQ(cuda_shape(plan).options.again_if_spilled, again) << name;
  }
}

TEST(CudaShape, SixteenStepsWhereLittleIsKeptAndMemoryIsTheLimit) {
  const auto steps_of = [](const Neuron& neuron, Mem type, std::optional<double> budget = {}) {
    const Training training{.type = type, .budget = budget, .costs = cost_model_named("gpu")};
    return plan_of(neuron.graph(type), Kind::backward, training).segment;
  };
  for (const char* name : {"if", "lif", "simple_lif", "half_threshold_if", "cuba_lif"})
    EXPECT_EQ(steps_of(neuron_named(name), Mem::f32), 16) << name;
  // Several values are kept of a step, or its arithmetic takes nearly as long as its memory.
  for (const char* name : {"plif", "qif", "izhikevich", "adex", "alif", "clif", "klif", "raf"})
    EXPECT_EQ(steps_of(neuron_named(name), Mem::f32), 8) << name;
  for (Mem type : {Mem::f64, Mem::f16}) EXPECT_EQ(steps_of(neuron_named("lif"), type), 8) << name_of(type);
  EXPECT_EQ(steps_of(neuron_named("qif"), Mem::f32, 4.25), 16) << "8 would keep 4.5 bytes";
  CudaShape shape =
      cuda_shape(plan_of(neuron_named("lif").graph(), Kind::backward, {.costs = cost_model_named("gpu")}));
  EXPECT_EQ(shape.options, (CudaOptions{.resident_threads = 1024, .narrow_resident_threads = 512}));
  EXPECT_EQ(shape.narrow_steps, 16);
}

TEST(CudaShape, ALongBodyGetsFewerStepsAndElements) {
  const auto many = [](int terms) {
    const Neuron long_one = neuron("long", [&](Step& s) {
      auto x = s.input("x");
      auto y = x;
      for (int i = 0; i < terms; ++i) y = y * x + 0.5;
      s.output("y", y);
    });
    return cuda_shape(plan_of(long_one.graph(Mem::f32), Kind::inference, {})).options;
  };
  EXPECT_EQ(many(10), (CudaOptions{.vector = 2, .unroll = 8, .resident_threads = 1024}));
  EXPECT_EQ(many(250).unroll, 4);
  EXPECT_EQ(many(2000), (CudaOptions{.vector = 1, .unroll = 1}));
  // Compiled in three ways one after another 10,000 operations took the first call of training 51 s.
  EXPECT_EQ(many(3000), (CudaOptions{.vector = 1,
                                     .unroll = 1,
                                     .resident_threads = 256,
                                     .narrow_resident_threads = 256,
                                     .again_if_spilled = false}));
}

TEST(CudaShape, QuotientsAndRemaindersAreLongCode) {
  // 60 quotients took NVRTC nine seconds with 8 steps of 2 elements, 120 remainders minutes.
  const auto copies = [](int length, Value (*op)(const Value&, const Value&)) {
    const Neuron chain = neuron("chain", [&](Step& s) {
      const Value x = s.input("x");
      Value y = x;
      for (int i = 0; i < length; ++i) y = op(y, x);
      s.output("y", y);
    });
    const CudaOptions cut = cuda_shape(plan_of(chain.graph(Mem::f32), Kind::inference, {})).options;
    return cut.unroll * cut.vector;
  };
  const auto times = [](const Value& a, const Value& b) { return a * b; };
  const auto quotient = [](const Value& a, const Value& b) { return a / b; };
  const auto rest = [](const Value& a, const Value& b) { return fmod(a, b); };
  EXPECT_EQ(copies(60, times), 16);
  EXPECT_EQ(copies(10, quotient), 16);
  EXPECT_EQ(copies(60, quotient), 4);
  EXPECT_EQ(copies(500, quotient), 1);
  EXPECT_EQ(copies(20, rest), 2);
  EXPECT_EQ(copies(120, rest), 1);
}

TEST(CudaShape, ABodyOfManyStatesMayTakeMoreRegisters) {
  const auto of = [](int states) {
    const Neuron wide = neuron("wide", [&](Step& s) {
      auto sum = s.input("x");
      for (int i = 0; i < states; ++i) {
        auto v = s.state(join("v", i));
        s.next(v, v * 0.5 + sum);
        sum = sum + v;
      }
      s.output("y", sum);
    });
    return cuda_shape(plan_of(wide.graph(Mem::f32), Kind::inference, {})).options.resident_threads;
  };
  EXPECT_EQ(of(1), 1024);
  EXPECT_EQ(of(20), 512);
  EXPECT_EQ(of(200), 0);
}

TEST(CudaShape, RowsAreLoadedEarlyWhereTheyFit) {
  const Neuron gated = neuron("gated", [](Step& s) {
    auto x = s.input("x"), in = s.input("in"), out = s.input("out"), v = s.state("v"), u = s.state("u");
    s.next(v, v * in + x);
    s.next(u, u * out + v * x);
    s.output("y", v * out + u * in);
  });
  const auto of = [&](Mem type) {
    return cuda_shape(plan_of(gated.graph(type), Kind::backward,
                              {.state_sequences = true, .saving = Saving::rebuild, .segment = 8}));
  };
  EXPECT_TRUE(of(Mem::f32).options.early);
  const CudaShape wide = of(Mem::f64);
  EXPECT_FALSE(wide.options.early);
  EXPECT_EQ(wide.narrow_registers(), wide.registers()) << "one set of rows, one element";
}

TEST(CudaShape, OpsOfParametersAloneAreNoneOfAStep) {
  const auto of = [](bool scaled) {
    const Neuron one = neuron("one", [&](Step& s) {
      auto x = s.input("x");
      auto w = s.param("w", 0.5);
      s.output("y", x * (scaled ? exp(w) / 3.0 : w));
    });
    const CudaShape shape = cuda_shape(plan_of(one.graph(Mem::f32), Kind::inference, {}));
    return std::pair(shape.ops, shape.instructions);
  };
  EXPECT_EQ(of(true), of(false));
}

TEST(CudaShape, WhatTheEnvironmentAsksForIsWhatIsExplained) {
  const auto explained = [](const char* asked, std::int64_t elements) {
    setenv("FLEXSN_CUDA_SHAPE", asked, 1);
    ExplainOptions options{.elements = elements};
    options.training.costs = cost_model_named("gpu");
    const std::string text = explain(neuron_named("lif"), options).text;
    unsetenv("FLEXSN_CUDA_SHAPE");
    const std::size_t at = text.find("inference_final_state: ", text.find("on a GPU"));
    return text.substr(at, text.find(" at once", at) - at);
  };
  EXPECT_EQ(explained("vector=4,unroll=4", 1 << 20),
            "inference_final_state: 4 elements a thread, 4 steps loaded");
  EXPECT_EQ(explained("entry=wide", 256), "inference_final_state: 2 elements a thread, 8 steps loaded");
  EXPECT_EQ(explained("entry=wide", 257),
            "inference_final_state: 1 element a thread (257 is not a multiple of 2), 8 steps loaded");
  EXPECT_EQ(explained("entry=narrow", 1 << 20),
            "inference_final_state: 1 element a thread (the narrow entry is asked for), 8 steps loaded");
}

TEST(CudaExplained, RowsThatAreLoadedEarlyNeedRegisters) {
  const Plan plan =
      plan_of(neuron_named("lif").graph(), Kind::backward, {.saving = Saving::rebuild, .segment = 8});
  const CudaShape shape = cuda_shape(plan);
  EXPECT_EQ(shape.loaded_a_step, 2);     // x and the gradient of s
  EXPECT_EQ(shape.registers_a_step, 3);  // and h
  ExplainOptions options{.elements = 256};
  options.training = {.costs = cost_model_named("gpu"), .saving = Saving::rebuild, .segment = 8};
  const std::vector<GpuKernel> kernels = explain(neuron_named("lif"), options).gpu;
  EXPECT_EQ(kernels.back().registers, shape.registers() / 2 + 8 * 2);
  const CudaShape brief = cuda_shape(plan_of(neuron_named("lif").graph(), Kind::inference_final_state, {}));
  EXPECT_EQ(brief.narrow_registers(), brief.registers() / 2 + 8) << "two sets of rows";
  // Few elements run by the narrow entry, also where a thread of the wide one has one element.
  ExplainOptions of_doubles{.elements = 256};
  of_doubles.training = options.training;
  of_doubles.training.type = Mem::f64;
  const Explanation doubles = explain(neuron_named("lif"), of_doubles);
  const CudaShape one = cuda_shape(plan_of(neuron_named("lif").graph(Mem::f64), Kind::backward,
                                           {.saving = Saving::rebuild, .segment = 8}));
  EXPECT_EQ(one.options.vector, 1);
  EXPECT_EQ(doubles.gpu.back().registers, one.narrow_registers());
  EXPECT_GT(one.narrow_registers(), one.registers());
}

TEST(CudaExplained, FewElementsWait) {
  const auto limit = [](std::int64_t elements) {
    ExplainOptions options{.elements = elements};
    options.training.costs = cost_model_named("gpu");
    const std::string text = explain(neuron_named("lif"), options).text;
    const std::size_t end = text.find(" is the limit where ");
    return end == text.npos ? "none"
                            : text.substr(text.rfind(' ', end - 1) + 1, end - text.rfind(' ', end - 1) - 1);
  };
  EXPECT_EQ(limit(0), "none");
  EXPECT_EQ(limit(1000), "waiting");
  EXPECT_EQ(limit(1 << 20), "memory");
}

TEST(CudaExplained, SumsOfGradientsAreThoseOfAGpu) {
  ExplainOptions options{.steps = 8, .elements = 1 << 22};
  options.training.costs = cost_model_named("gpu");
  const Explanation many = explain(neuron_named("plif"), options);
  ASSERT_EQ(many.training.size(), 3u);
  constexpr std::int64_t row = 4 << 22, sums = row / (2 * 128);  // one of each block of the wide entry
  EXPECT_EQ(many.training[1].written, 8 * row + sums);
  EXPECT_EQ(many.training[2].kernel, "reduce w");
  EXPECT_EQ(many.training[2].read, sums);
  EXPECT_EQ(many.training[2].written, 4);
  EXPECT_NE(many.text.find("training: 3 launches"), std::string::npos) << many.text;

  options.elements = 0;
  const Explanation none = explain(neuron_named("plif"), options);
  EXPECT_NE(none.text.find("inference: 0 launches"), std::string::npos) << none.text;
  EXPECT_NE(none.text.find("training: 1 launch,"), std::string::npos) << none.text;
  EXPECT_EQ(none.training.back().kernel, "zero w");
  EXPECT_EQ(none.training.back().written, 4);

  // An entry for each element: backward writes the gradient itself.
  options.elements = 1000;
  options.param_shapes = {{"w", {1000}}};
  const Explanation full = explain(neuron_named("plif"), options);
  ASSERT_EQ(full.training.size(), 2u);
  EXPECT_EQ(full.training[1].written, 8 * 4000 + 4000);
}

TEST(CudaExplained, RowsThatLieOddlyAreLoadedOneByOne) {
  const auto first_line = [](std::map<std::string, int> entries, Mem type = Mem::f32) {
    ExplainOptions options{.elements = 1 << 20, .entries_at_once = std::move(entries), .given_states = true};
    options.training.costs = cost_model_named("gpu");
    options.training.type = type;
    const std::string text = explain(neuron_named("lif"), options).text;
    const std::size_t at = text.find("inference_final_state: ", text.find("on a GPU")) + 23;
    return text.substr(at, text.find(", 8 steps", at) - at);
  };
  EXPECT_EQ(first_line({}), "2 elements a thread");
  EXPECT_EQ(first_line({{"x", 2}}), "2 elements a thread");
  EXPECT_EQ(first_line({{"x", 1}}), "1 element a thread (rows of x start where no 2 can be loaded at once)");
  EXPECT_EQ(first_line({{"v", 1}}), "1 element a thread (rows of v start where no 2 can be loaded at once)");
  EXPECT_EQ(first_line({{"x", 2}}, Mem::f16),
            "1 element a thread (rows of x start where no 4 can be loaded at once)");
  for (const auto& [entries, why] :
       {std::pair(std::map<std::string, int>{{"y", 1}}, "there is no input, state or param 'y'"),
        {std::map<std::string, int>{{"x", 3}}, "1, 2 or 4 entries of 'x' can be loaded at once, found 3"}}) {
    try {
      first_line(entries);
      ADD_FAILURE() << why;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }
}

TEST(CudaExplained, AKernelOfTooManyBuffersIsSaidToBeRefused) {
  const Neuron many = neuron("many", [](Step& s) {
    auto sum = s.input("x");
    for (int i = 0; i < 300; ++i) sum = sum + s.input(join("x", i));
    s.output("y", sum);
  });
  ExplainOptions options;
  options.training.costs = cost_model_named("gpu");
  const Explanation found = explain(many, options);
  ASSERT_FALSE(found.gpu.empty());
  EXPECT_EQ(found.gpu[0].refused.find("a CUDA kernel takes 512 numbers at most, but this one needs 60"), 0u)
      << found.gpu[0].refused;
  EXPECT_NE(found.text.find("inference_final_state: cannot run: a CUDA kernel takes"), std::string::npos);
  EXPECT_EQ(explain(neuron_named("lif"), options).gpu[0].refused, "");
  // Gradients that arrive at last states are buffers that few runs have.
  const Neuron nearly = neuron("nearly", [](Step& s) {
    auto sum = s.input("x");
    for (int i = 0; i < 120; ++i) sum = sum + s.input(join("x", i));
    for (int i = 0; i < 60; ++i) {
      const auto v = s.state(join("v", i));
      s.next(v, v * 0.5 + sum);
      sum = sum + v;
    }
    s.output("y", sum);
  });
  const std::vector<GpuKernel> kernels = explain(nearly, options).gpu;
  EXPECT_EQ(kernels.back().kernel, "backward");
  EXPECT_EQ(kernels.back().refused, "");
}

TEST(CudaExplained, HowManyArraysAndLearnableValuesAKernelTakesIsWhatThePageOfTestsSays) {
  ExplainOptions options;
  options.training.costs = cost_model_named("gpu");
  const auto refuses = [&](const Neuron& neuron, std::string_view kernel) {
    for (const GpuKernel& found : explain(neuron, options).gpu)
      if (found.kernel == kernel) return !found.refused.empty();
    ADD_FAILURE() << "no " << kernel;
    return false;
  };
  const auto of_inputs = [](int inputs) {
    return neuron("inputs", [inputs](Step& s) {
      auto sum = s.input("x");
      for (int i = 1; i < inputs; ++i) sum = sum + s.input(join("x", i));
      s.output("y", sum);
    });
  };
  for (const char* kernel : {"inference_final_state", "forward", "backward"}) {
    EXPECT_FALSE(refuses(of_inputs(250), kernel)) << kernel;
    EXPECT_TRUE(refuses(of_inputs(260), kernel)) << kernel;
  }
  const auto of_values = [](int values) {
    return neuron("values", [values](Step& s) {
      auto sum = s.input("x");
      for (int i = 0; i < values; ++i) sum = sum * s.param(join("p", i), 1);
      s.output("y", sum);
    });
  };
  EXPECT_FALSE(refuses(of_values(165), "backward"));
  EXPECT_TRUE(refuses(of_values(175), "backward"));
  EXPECT_FALSE(refuses(of_values(175), "forward"));
}

TEST(CudaExplained, StepsRebuiltInPiecesAreSaidToTakeSharedMemory) {
  ExplainOptions options;
  options.training.costs = cost_model_named("gpu");
  options.training.segment = 32;
  const Explanation found = explain(neuron_named("lif"), options);
  EXPECT_NE(
      found.text.find("backward: 2 elements a thread, 8 steps loaded at once, 128 threads a block with "
                      "32768 bytes of shared memory for what 32 steps keep, about 32 registers for values"),
      std::string::npos)
      << found.text;
  EXPECT_EQ(found.text.find("forward: 2 elements a thread, 8 steps loaded at once, 128 threads a block with"),
            std::string::npos);
}

TEST(CudaExplained, StepsInALoopAreSaidToBeInLocalMemory) {
  ExplainOptions options;
  options.training.costs = cost_model_named("gpu");
  options.training.saving = Saving::rebuild;
  for (const auto& [segment, loops] : {std::pair(8, false), std::pair(1024, true)}) {
    options.training.segment = segment;
    const Explanation found = explain(neuron_named("lif"), options);
    EXPECT_EQ(found.text.find("its steps run in a loop, so their rows and values lie in local memory") !=
                  std::string::npos,
              loops);
    EXPECT_LT(found.gpu.back().registers, 255);
  }
}

TEST(CudaShape, APersonMayAskForAnother) {
  const auto asked = [](std::string_view text) { return cuda_shape_asked(text, {}); };
  EXPECT_EQ(asked("").options, CudaOptions{});
  EXPECT_EQ(asked("").entry, CudaEntry::automatic);
  EXPECT_EQ(asked("vector=4,unroll=16,threads=64,narrow_threads=32,resident_threads=256").options,
            (CudaOptions{.vector = 4,
                         .unroll = 16,
                         .threads = 64,
                         .narrow_threads = 32,
                         .resident_threads = 256,
                         .again_if_spilled = false}));
  EXPECT_EQ(asked("resident_threads=0").options.resident_threads, 0);
  EXPECT_EQ(asked("entry=narrow").entry, CudaEntry::narrow);
  EXPECT_EQ(asked("entry=wide").options, CudaOptions{}) << "what spills is compiled in other ways";
  EXPECT_EQ(asked("entry=wide,unroll=2").entry, CudaEntry::wide);
  EXPECT_EQ(asked("entry=wide,unroll=2").options.unroll, 2);
  for (const char* twice : {"entry=wide,entry=narrow", "threads=64,vector=2,threads=128"}) {
    try {
      asked(twice);
      ADD_FAILURE() << twice << " was taken";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("FLEXSN_CUDA_SHAPE says twice what '"), std::string::npos);
    }
  }
  for (const char* wrong :
       {"vector=3", "vector=8", "threads=16", "unroll=128", "width=2", "vector=", "vector", "vector=2x", ",",
        "unroll=-1", "vector=2,", "threads=0", "resident_threads=", "entry=automatic", "entry="}) {
    try {
      asked(wrong);
      ADD_FAILURE() << wrong << " was taken";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("FLEXSN_CUDA_SHAPE has a part '"), std::string::npos) << wrong;
      EXPECT_NE(std::string(error.what()).find("that is not known; write entry=wide or narrow, vector="),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace flexsn::test
