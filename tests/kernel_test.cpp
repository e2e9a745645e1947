// Kernels on the caller's arrays: the bits of run and run_backward, whatever the target; and what is refused.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <span>
#include <thread>

#include "bind.h"
#include "kernels.h"
#include "random.h"
#include "user_error.h"

namespace flexsn {
namespace {

// Made before main: nothing of the library may wait for the initialisers of its own files.
const Kernel early = compile(neuron_named("lif:surrogate=atan"), {.target = "interpreter", .threads = 1});
const std::string early_problem = [] {
  try {
    parse_neuron("neuron n { inptu x : f32 }");
  } catch (const UserError& error) {
    return std::string(error.what());
  }
  return std::string();
}();

/// The text of the UserError that `call` throws.
std::vector<std::string> targets() {
  std::vector<std::string> names = {"interpreter"};
  if (cpu_absent().empty()) names.push_back("cpu");
  return names;
}

constexpr std::int64_t steps = 9, batch = 5, channels = 3, pixels = 4, elements = batch * channels * pixels;
const std::vector<std::int64_t> shape = {batch, channels, pixels},
                                sequence = {steps, batch, channels, pixels};

/// Two inputs, three states, parameters of every kind of shape.
const Neuron odd = neuron("odd", [](Step& s) {
  const auto x = s.input("x"), y = s.input("y", Mem::f16);
  const auto u = s.state("u", 0.5), w = s.state("w", 0, Mem::bf16), n = s.state("n", 3, Mem::i32);
  const auto tau = s.param("tau", 2, {1, 10}), gain = s.param("gain", 1), bias = s.param("bias", 0);
  const auto gate = s.step_param("gate", 1), half = s.param("half", 1, {}, Mem::f16);
  const auto h = u + (x - u) / tau + bias;
  const auto z = spike(h - w * w * 0.1, surrogate::atan());
  s.next(u, tanh(h) * gate * (1 - z));
  s.next(w, round_bf16(w * 0.75 + y * z * half));
  s.next(n, select(z > 0, n + 1, n));
  s.output("z", z * gain);
  s.output("count", n);
  s.output("speed", exp(-u * u) * cast(n, Type::f32));
});

Array filled(Mem type, std::vector<std::int64_t> dims, Random& random, double low = -1, double high = 2) {
  Array array(type, std::move(dims));
  for (std::int64_t n = 0; n < array.size(); ++n) array.set(n, random.uniform(low, high));
  return array;
}

/// Arguments and gradients for the odd neuron.
struct Case {
  Arguments arguments;
  Arriving arriving;

  explicit Case(std::uint64_t seed, bool sequences = false) {
    Random random(seed);
    arguments.state_sequences = sequences;
    arguments.first_step = 4;
    arguments.inputs["x"] = filled(Mem::f32, sequence, random);
    arguments.inputs["y"] = filled(Mem::f16, sequence, random);
    arguments.states["u"] = filled(Mem::f32, shape, random);
    arguments.states["w"] = filled(Mem::bf16, shape, random);
    arguments.states["n"] = filled(Mem::i32, shape, random, 0, 9);
    arguments.params["tau"] = filled(Mem::f32, {channels, 1}, random, 1.5, 3);
    arguments.params["gain"] = filled(Mem::f32, shape, random);
    arguments.params["bias"] = filled(Mem::f32, {batch, 1, pixels}, random);  // no map fits: spread out
    arguments.params["gate"] = filled(Mem::f32, {steps, channels, 1}, random);
    arguments.params["half"] = filled(Mem::f16, {pixels}, random);
    arriving.outputs["z"] = filled(Mem::f32, sequence, random);
    arriving.outputs["speed"] = filled(Mem::f32, sequence, random);
    arriving.states["u"] = filled(Mem::f32, sequences ? sequence : shape, random);
    arriving.states["w"] = filled(sequences ? Mem::bf16 : Mem::f32, sequences ? sequence : shape, random);
  }

  Run bind(const Kernel& kernel) {
    Run run = kernel.bind({steps, shape});
    for (auto& [name, array] : arguments.inputs) run.in(name, array);
    for (auto& [name, array] : arguments.params) run.param(name, array, array.shape);
    return run.first_step(arguments.first_step);
  }
};

void expect_same(const Array& expected, const Array& found, const std::string& what) {
  ASSERT_EQ(expected.type, found.type) << what;
  ASSERT_EQ(expected.size(), found.size()) << what;
  const std::size_t size = size_of(expected.type);
  for (std::int64_t n = 0; n < expected.size(); ++n) {
    const std::size_t at = static_cast<std::size_t>(n) * size;
    const bool same = std::memcmp(expected.bytes.data() + at, found.bytes.data() + at, size) == 0;
    ASSERT_TRUE(same || (expected[n] != expected[n] && found[n] != found[n]))
        << what << " at " << n << ": " << expected[n] << " and " << found[n];
  }
}

TEST(Kernel, InferenceHasTheBitsOfRun) {
  for (const std::string& target : targets())
    for (bool sequences : {false, true}) {
      Case c(1, sequences);
      const Results expected = run(odd, c.arguments);
      const Kernel kernel = compile(odd, {.target = target, .threads = 2});
      flexsn::Run r = c.bind(kernel);
      std::map<std::string, Array> outputs, states = c.arguments.states, found;
      for (const auto& [name, array] : expected.outputs)
        r.out(name, outputs[name] = Array(array.type, sequence));
      for (const auto& [name, array] : expected.states) {
        r.state(name, states.at(name));
        if (sequences) r.state_sequence(name, found[name] = Array(array.type, sequence));
      }
      r.inference();
      for (const auto& [name, array] : expected.outputs)
        expect_same(array, outputs.at(name), target + " " + name);
      for (const auto& [name, array] : expected.states)
        expect_same(array, sequences ? found.at(name) : states.at(name), target + " " + name);
      if (sequences) {  // and the last states, in place
        c.arguments.state_sequences = false;
        for (const auto& [name, array] : run(odd, c.arguments).states)
          expect_same(array, states.at(name), name);
      }
    }
}

TEST(Kernel, TrainingHasTheBitsOfRunBackward) {
  for (const std::string& target : targets())
    for (bool sequences : {false, true})
      for (Saving saving : {Saving::automatic, Saving::everything, Saving::per_step, Saving::rebuild}) {
        Case c(2, sequences);
        const Results results = run(odd, c.arguments);
        const Gradients expected = run_backward(odd, c.arguments, c.arriving);
        const Kernel kernel = compile(odd, {.training = {.state_sequences = sequences,
                                                         .saving = saving,
                                                         .segment = saving == Saving::rebuild ? 4 : 0},
                                            .target = target});
        flexsn::Run r = c.bind(kernel);
        std::map<std::string, Array> outputs, states = c.arguments.states, found, gradients;
        for (const auto& [name, array] : results.outputs)
          r.out(name, outputs[name] = Array(array.type, sequence));
        for (const auto& [name, array] : results.states) {
          if (!sequences)
            r.state(name, states.at(name));  // in place: backward must not miss the first states
          if (sequences) r.first_state(name, states.at(name));
          if (sequences) r.state_sequence(name, found[name] = Array(array.type, sequence));
        }
        std::vector<std::byte> workspace(r.workspace_bytes());
        r.forward(workspace);
        for (const auto& [name, array] : results.outputs) expect_same(array, outputs.at(name), name);
        for (const auto& [name, array] : results.states)
          expect_same(array, sequences ? found.at(name) : states.at(name), name);
        Views arriving, wanted;
        for (const auto* group : {&c.arriving.outputs, &c.arriving.states})
          for (const auto& [name, array] : *group) arriving.insert_or_assign(name, View(array));
        for (const auto* group : {&expected.inputs, &expected.states, &expected.params})
          for (const auto& [name, array] : *group)
            wanted.insert_or_assign(name, gradients[name] = Array(array.type, array.shape, 777));
        for (int again : {0, 1}) {  // twice: backward leaves the workspace as it needs it
          r.backward(workspace, arriving, wanted);
          for (const auto* group : {&expected.inputs, &expected.states, &expected.params})
            for (const auto& [name, array] : *group)
              expect_same(array, gradients.at(name), join(target, " gradient of ", name, " run ", again));
        }
      }
}

TEST(Kernel, AbsentGradientsAndUnwantedOnes) {
  for (const std::string& target : targets()) {
    const Kernel kernel = compile(odd, {.target = target});
    for (const std::vector<std::string>& arrives :
         {std::vector<std::string>{"speed"}, {"z"}, {"u"}, {"w", "speed"}, {"z", "w"}}) {
      Case c(3);
      Arriving fewer;
      for (const std::string& name : arrives) {
        if (c.arriving.outputs.contains(name)) fewer.outputs[name] = c.arriving.outputs.at(name);
        if (c.arriving.states.contains(name)) fewer.states[name] = c.arriving.states.at(name);
      }
      const Gradients expected = run_backward(odd, c.arguments, fewer);
      flexsn::Run r = c.bind(kernel);
      std::map<std::string, Array> outputs, states = c.arguments.states;
      for (const char* name : {"z", "speed"}) r.out(name, outputs[name] = Array(Mem::f32, sequence));
      for (auto& [name, array] : states) r.first_state(name, array);
      std::vector<std::byte> workspace(r.workspace_bytes());
      r.forward(workspace);
      Views arriving;
      for (const auto* group : {&fewer.outputs, &fewer.states})
        for (const auto& [name, array] : *group) arriving.insert_or_assign(name, View(array));
      Array x(Mem::f32, sequence), tau(Mem::f32, {channels, 1}), w(Mem::f32, shape);
      r.backward(workspace, arriving, {{"x", x}, {"tau", tau}, {"w", w}});
      expect_same(expected.inputs.at("x"), x, target + " x " + arrives[0]);
      expect_same(expected.params.at("tau"), tau, target + " tau " + arrives[0]);
      expect_same(expected.states.at("w"), w, target + " w " + arrives[0]);
    }
  }
}

TEST(Kernel, StatesAndParametersThatAreNotBoundHaveTheirDefaults) {
  for (const std::string& target : targets()) {
    Arguments arguments;
    Random random(4);
    arguments.inputs["x"] = filled(Mem::f32, {steps, 7}, random);
    const Neuron plif = neuron_named("plif");
    const Results expected = run(plif, arguments);
    std::vector<float> s(steps * 7), v(7), gx(steps * 7), gs(steps * 7, 1.0f), gw(1);
    const Kernel kernel = compile(plif, {.target = target});
    flexsn::Run r = kernel.bind({steps, {7}});
    r.in("x", arguments.inputs.at("x")).out("s", s).last_state("v", v);
    std::vector<std::byte> workspace(r.workspace_bytes());
    r.forward(workspace);
    for (std::size_t n = 0; n < s.size(); ++n)
      EXPECT_EQ(s[n], expected.outputs.at("s")[static_cast<std::int64_t>(n)]);
    for (std::size_t n = 0; n < v.size(); ++n)
      EXPECT_EQ(v[n], expected.states.at("v")[static_cast<std::int64_t>(n)]);
    const std::string param = kernel.info(Kind::inference).params.at(0).name;
    r.backward(workspace, {{"s", gs}}, {{"x", gx}, {param, gw}});
    Arriving arriving;
    arriving.outputs["s"] = Array(Mem::f32, {steps, 7}, 1);
    const Gradients gradients = run_backward(plif, arguments, arriving);
    EXPECT_EQ(gw[0], gradients.params.at(param)[0]);
    for (std::size_t n = 0; n < gx.size(); ++n)
      EXPECT_EQ(gx[n], gradients.inputs.at("x")[static_cast<std::int64_t>(n)]);
  }
}

TEST(Kernel, RowsMayStandApartAndThereMayBeNone) {
  for (const std::string& target : targets()) {
    const Kernel kernel = compile(neuron_named("lif"), {.target = target});
    constexpr std::int64_t apart = 11, few = 5;
    std::vector<float> x(steps * apart, 1.5f), s(steps * apart, 7), v(few);
    kernel.bind({steps, {few}})
        .in("x", View(x).rows_every(apart))
        .out("s", View(s).rows_every(apart))
        .state("v", v)
        .inference();
    for (std::int64_t t = 0; t < steps; ++t)
      for (std::int64_t n = 0; n < apart; ++n)
        EXPECT_TRUE(n < few ? s[t * apart + n] == 0 || s[t * apart + n] == 1 : s[t * apart + n] == 7);
    // One row for all of time.
    std::vector<float> constant(few, 1.5f), same(few);
    kernel.bind({steps, {few}}).in("x", View(constant).rows_every(0)).last_state("v", same).inference();
    EXPECT_EQ(same, v);
    // No steps, no elements.
    std::vector<float> none, first(few, 0.25f), gradient(few, 9), last_gradient(few, 2);
    flexsn::Run r = kernel.bind({0, {few}});
    r.in("x", none).out("s", none).state("v", first);
    std::vector<std::byte> workspace(r.workspace_bytes());
    r.forward(workspace);
    EXPECT_EQ(first, std::vector<float>(few, 0.25f));
    r.backward(workspace, {{"v", last_gradient}}, {{"v", gradient}});
    EXPECT_EQ(gradient, last_gradient);
    kernel.bind({steps, {0}}).in("x", none).out("s", none).inference();
  }
}

TEST(Kernel, StatesAreWantedLastAsSequencesOrBoth) {
  for (const std::string& target : targets())
    for (std::int64_t length : {steps, std::int64_t{0}})
      for (bool training : {false, true}) {
        Case c(7, true);
        const std::vector<std::int64_t> whole = {length, batch, channels, pixels};
        for (auto* arrays : {&c.arguments.inputs, &c.arguments.params})
          for (auto& [name, array] : *arrays)
            if (array.shape[0] == steps) {
              array.shape[0] = length;
              array.bytes.resize(static_cast<std::size_t>(array.size()) * size_of(array.type));
            }
        const Results all = run(odd, c.arguments);
        c.arguments.state_sequences = false;
        const Results last = run(odd, c.arguments);
        const Kernel kernel = compile(odd, {.training = {.state_sequences = true}, .target = target});
        flexsn::Run r = kernel.bind({length, shape}).first_step(c.arguments.first_step);
        for (auto& [name, array] : c.arguments.inputs) r.in(name, array);
        for (auto& [name, array] : c.arguments.params) r.param(name, array, array.shape);
        std::map<std::string, Array> states = c.arguments.states;
        Array u(Mem::f32, whole), n(Mem::i32, whole), last_n(Mem::i32, shape);
        r.first_state("u", states.at("u")).state_sequence("u", u);
        r.state("w", states.at("w"));
        r.first_state("n", states.at("n")).last_state("n", last_n).state_sequence("n", n);
        std::vector<std::byte> workspace(r.workspace_bytes());
        training ? r.forward(workspace) : r.inference();
        expect_same(all.states.at("u"), u, target + " u");
        expect_same(all.states.at("n"), n, target + " n");
        expect_same(last.states.at("n"), last_n, target + " last n");
        expect_same(last.states.at("w"), states.at("w"), target + " last w");
        expect_same(c.arguments.states.at("u"), states.at("u"), target + " first u");
      }
}

TEST(Kernel, WithoutStepsALastStateIsStillOfItsType) {
  const Neuron latch = neuron("latch", [](Step& s) {
    const auto on = s.state("on", 0, Mem::b8), x = s.state("x");
    s.next(on, on | (s.input("i") > 0));
    s.next(x, x * 0.5);
  });
  for (const std::string& target : targets())
    for (bool sequences : {false, true}) {
      std::vector<std::uint8_t> bytes = {0, 1, 2, 255}, last(4, 77);
      std::vector<float> none;
      flexsn::Run r = compile(latch, {.target = target}).bind({0, {4}});
      r.in("i", none).first_state("on", View(bytes.data(), Mem::b8, 4));
      r.last_state("on", View(last.data(), Mem::b8, 4));
      if (sequences) r.state_sequence("x", none);
      r.inference();
      EXPECT_EQ(last, (std::vector<std::uint8_t>{0, 1, 1, 1})) << target << sequences;
    }
}

TEST(Kernel, NeuronsThatShareAKernelKeepTheirNames) {
  const auto square = [](const char* in, const char* out) {
    return neuron("square", [=](Step& s) {
      const auto a = s.input(in), k = s.param(std::string("k") + in, 2);
      s.output(out, a * a * k);
    });
  };
  for (const std::string& target : targets()) {
    std::vector<Kernel> kernels;  // alive together, so that they share
    for (const auto& [in, out] : {std::pair("a", "b"), std::pair("c", "d")}) {
      kernels.push_back(compile(square(in, out), {.target = target}));
      std::vector<float> x = {3}, y(1), gy = {1}, gx(1), gk(1);
      flexsn::Run r = kernels.back().bind({1, {1}}).in(in, x).out(out, y);
      std::vector<std::byte> workspace(r.workspace_bytes());
      r.forward(workspace);
      r.backward(workspace, {{out, gy}}, {{in, gx}, {std::string("k") + in, gk}});
      EXPECT_EQ(y[0], 18) << in;
      EXPECT_EQ(gx[0], 12) << in;
      EXPECT_EQ(gk[0], 9) << in;
    }
  }
}

// The part of backward has an argument of its own called grad_v, so it must call the parameter otherwise.
TEST(Kernel, AParameterMayBeCalledLikeAGradient) {
  const Neuron awkward = neuron("awkward", [](Step& s) {
    const auto x = s.input("x"), v = s.state("v"), gain = s.param("grad_v", 1);
    s.output("y", v * gain);
    s.next(v, v * gain + x);
  });
  for (const std::string& target : targets()) {
    const Kernel kernel = compile(awkward, {.training = {.saving = Saving::per_step}, .target = target});
    const std::vector<float> x(6, 1.f), gain = {2, 3}, ones(6, 1.f);
    std::vector<float> y(6), grad(6);
    flexsn::Run bound = kernel.bind({3, {2}});
    bound.in("x", x).param("grad_v", gain, {2}).out("y", y);
    std::vector<std::byte> workspace(bound.workspace_bytes());
    bound.forward(workspace);
    bound.backward(workspace, {{"y", ones}}, {{"x", grad}});
    EXPECT_EQ(grad, (std::vector<float>{6, 12, 2, 3, 0, 0})) << target;
  }
}

TEST(Kernel, OneKernelServesManyThreads) {
  for (const std::string& target : targets()) {
    Case c(5);
    const Results expected = run(odd, c.arguments);
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    const Kernel kernel = compile(odd, {.target = target});
    for (int i = 0; i < 6; ++i)
      threads.emplace_back([&] {
        const Kernel same = compile(odd, {.target = target, .threads = 3});
        for (const Kernel& k : {kernel, same}) {
          Case mine(5);
          flexsn::Run r = mine.bind(k);
          Array z(Mem::f32, sequence);
          r.out("z", z);
          for (auto& [name, array] : mine.arguments.states) r.state(name, array);
          r.inference();
          wrong += z.bytes != expected.outputs.at("z").bytes;
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Kernel, DescribesItself) {
  const Training training{.wanted = {"x", "tau"}};
  const Kernel kernel = compile(odd, {.training = training, .target = "interpreter"});
  for (Kind kind : {Kind::inference, Kind::inference_final_state, Kind::forward, Kind::backward}) {
    const KernelInfo expected = kernel_info(odd, kind, training);
    EXPECT_EQ(kernel.info(kind).reads, expected.reads);
    EXPECT_EQ(kernel.info(kind).writes, expected.writes);
    EXPECT_EQ(&kernel.info(kind), &kernel.info(kind));
  }
  EXPECT_EQ(early.info(Kind::inference).neuron, "lif");
  EXPECT_NE(early_problem.find("unknown statement 'inptu' (did you mean 'input'?)"), std::string::npos)
      << early_problem;
}

TEST(Kernel, WhatIsWrittenOverlapsNothingElse) {
  const std::string own = "what is written must overlap nothing else, so give it memory of its own";
  const auto said = [&](const char* a, const char* b) {
    return join("neuron 'lif': ", a, " and ", b, " share memory; ", own);
  };
  const Kernel kernel = compile(neuron_named("lif"), {.target = "interpreter"});
  constexpr std::int64_t T = 3, N = 4;
  std::vector<float> x(T * N, 1), s(T * N), v(N), w(N), all(24 * T * N);
  const auto fresh = [&] {
    flexsn::Run r = kernel.bind({T, {N}});
    r.in("x", x).out("s", s).state("v", v);
    return r;
  };
  EXPECT_EQ(error([&] { fresh().inference(); }), "no error");
  EXPECT_EQ(error([&] { fresh().out("s", x).inference(); }), said("input 'x'", "output 's'"));
  EXPECT_EQ(error([&] {
              fresh().in("x", View(all.data(), T * N)).out("s", View(&all[T * N - 1], T * N)).inference();
            }),
            said("input 'x'", "output 's'"));
  EXPECT_EQ(
      error([&] { fresh().in("x", View(all.data(), T * N)).out("s", View(&all[T * N], T * N)).inference(); }),
      "no error");
  EXPECT_EQ(error([&] { fresh().last_state("v", View(&s[N], N)).inference(); }),
            said("the last state 'v'", "output 's'"));
  EXPECT_EQ(error([&] { fresh().state_sequence("v", s).inference(); }),
            said("the sequence of state 'v'", "output 's'"));
  EXPECT_EQ(error([&] {
              fresh().first_state("v", View(&all[1], N)).last_state("v", View(&all[0], N)).inference();
            }),
            "neuron 'lif': state 'v' and the last state 'v' share memory; a state may be written where it is "
            "read, but then at exactly the same place");
  EXPECT_EQ(error([&] { fresh().first_state("v", w).last_state("v", v).inference(); }), "no error");

  // Rows of one array beside each other, and rows that only seem to be.
  const auto rows = [&](std::int64_t from, std::int64_t stride) {
    return View(&all[static_cast<std::size_t>(from)], (T - 1) * stride + N).rows_every(stride);
  };
  EXPECT_EQ(error([&] { fresh().in("x", rows(0, 2 * N)).out("s", rows(N, 2 * N)).inference(); }), "no error");
  EXPECT_EQ(error([&] { fresh().in("x", rows(0, 2 * N)).out("s", rows(N - 1, 2 * N)).inference(); }),
            said("input 'x'", "output 's'"));
  EXPECT_EQ(error([&] { fresh().in("x", rows(0, 2 * N)).out("s", rows(N + 1, 2 * N)).inference(); }),
            said("input 'x'", "output 's'"));
  EXPECT_EQ(error([&] { fresh().in("x", rows(0, 4 * N)).out("s", rows(2 * N, 3 * N)).inference(); }),
            said("input 'x'", "output 's'"));
  EXPECT_EQ(error([&] { fresh().in("x", rows(0, 4 * N)).out("s", rows(N, 2 * N)).inference(); }), "no error");
  EXPECT_EQ(error([&] { fresh().in("x", rows(0, 2 * N)).last_state("v", View(&all[N], N)).inference(); }),
            "no error");
  EXPECT_EQ(error([&] { fresh().in("x", rows(0, 0)).out("s", rows(N, N)).inference(); }), "no error");
  EXPECT_EQ(error([&] { fresh().in("x", rows(0, 0)).out("s", rows(N - 1, N)).inference(); }),
            said("input 'x'", "output 's'"));

  flexsn::Run r = fresh();
  std::vector<std::byte> workspace(r.workspace_bytes());
  EXPECT_EQ(error([&] {
              r.forward(std::span(reinterpret_cast<std::byte*>(all.data()), sizeof(float) * all.size()));
            }),
            "no error");
  EXPECT_EQ(error([&] {
              fresh()
                  .in("x", View(&all[5], T * N))
                  .forward(std::span(reinterpret_cast<std::byte*>(all.data()), sizeof(float) * all.size()));
            }),
            said("input 'x'", "the workspace"));
  r.forward(workspace);
  std::vector<float> gs(T * N, 1), gx(T * N), gv(N, 1);
  EXPECT_EQ(error([&] { r.backward(workspace, {{"s", gs}}, {{"x", gs}}); }),
            said("the gradient of output 's'", "the gradient of 'x'"));
  EXPECT_EQ(error([&] { r.backward(workspace, {{"s", gs}}, {{"x", x}}); }),
            said("the gradient of 'x'", "input 'x'"));
  EXPECT_EQ(error([&] { r.backward(workspace, {{"s", gs}}, {{"x", gx}, {"v", View(gx.data(), N)}}); }),
            said("the gradient of 'v'", "the gradient of 'x'"));
  EXPECT_EQ(error([&] { r.backward(workspace, {{"s", gs}, {"v", gv}}, {{"x", gx}, {"v", gv}}); }),
            "no error");
  std::vector<float> in_place = gv, elsewhere(N), arrives(N, 1);
  r.backward(workspace, {{"s", gs}, {"v", arrives}}, {{"v", elsewhere}});
  EXPECT_EQ(in_place, elsewhere);
}

TEST(Kernel, AWorkspaceBelongsToTheLastForward) {
  for (const std::string& target : targets()) {
    const Kernel kernel = compile(neuron_named("lif"), {.target = target});
    std::vector<float> x(12, 1), g(12, 1), gx(12);
    flexsn::Run a = kernel.bind({3, {4}}).in("x", x), b = kernel.bind({3, {4}}).in("x", x);
    std::vector<std::byte> workspace(a.workspace_bytes());
    a.forward(workspace);
    a.backward(workspace, {{"s", g}}, {{"x", gx}});
    a.backward(workspace, {{"s", g}}, {{"x", gx}});
    b.forward(workspace);
    EXPECT_EQ(error([&] { a.backward(workspace, {{"s", g}}, {{"x", gx}}); }),
              "neuron 'lif': another forward has used this workspace since, or something else has written to "
              "it; give each run a workspace of its own, and run forward again");
    b.backward(workspace, {{"s", g}}, {{"x", gx}});
    a.forward(workspace);
    a.backward(workspace, {{"s", g}}, {{"x", gx}});
  }
}

TEST(Kernel, NothingIsCopiedBeforeAllInputsAreBound) {
  const Kernel kernel = compile(odd, {.training = {.saving = Saving::rebuild}, .target = "interpreter"});
  Array u(Mem::f32, shape, 3);
  flexsn::Run r = kernel.bind({steps, shape}).first_state("u", u);
  std::vector<std::byte> workspace(r.workspace_bytes(), std::byte{7});
  const std::vector<std::byte> before = workspace;
  EXPECT_EQ(error([&] { r.forward(workspace); }),
            "neuron 'odd': input 'x' is not bound; give it with in(\"x\", ...)");
  EXPECT_EQ(workspace, before);
}

TEST(Kernel, RangesHoldAtEachRun) {
  const std::string wrong =
      "neuron 'odd': param 'tau' has the value 11 at place 300, which is outside its range [1, 10]; change "
      "the "
      "value, or the range where the parameter is declared";
  const std::int64_t many = 600;
  Array x(Mem::f32, {1, many}), y(Mem::f16, {1, many}), tau(Mem::f32, {many}, 2), z(Mem::f32, {1, many}),
      g(Mem::f32, {1, many}, 1), gx(Mem::f32, {1, many});
  flexsn::Run r = compile(odd, {.target = "interpreter"}).bind({1, {many}});
  r.in("x", x).in("y", y).param("tau", tau, {many}).out("z", z);
  std::vector<std::byte> workspace(r.workspace_bytes());
  r.forward(workspace);
  tau.set(300, 11);
  EXPECT_EQ(error([&] { r.inference(); }), wrong);
  EXPECT_EQ(error([&] { r.backward(workspace, {{"z", g}}, {{"x", gx}}); }), wrong);
  EXPECT_EQ(error([&] { r.forward(workspace); }), wrong);
  tau.set(300, 10);
  r.backward(workspace, {{"z", g}}, {{"x", gx}});
}

TEST(Kernel, WhatWasMovedAwaySaysSo) {
  Kernel kernel = compile(neuron_named("lif"), {.target = "interpreter"});
  flexsn::Run a = kernel.bind({0, {1}});
  const flexsn::Run b = std::move(a);
  EXPECT_EQ(error([&] { a.inference(); }),
            "this run was moved to another; use that one, or bind the kernel again");
  EXPECT_EQ(error([&] { a.first_step(1); }),
            "this run was moved to another; use that one, or bind the kernel again");
  const Kernel other = std::move(kernel);
  EXPECT_EQ(error([&] { kernel.bind({0, {1}}); }),
            "this kernel was moved to another; use that one, or compile the neuron again");
  Neuron neuron = flexsn::neuron("copy", [](Step& step) { step.output("y", step.input("x")); });
  const Neuron moved = std::move(neuron);
  EXPECT_EQ(error([&] { compile(neuron, {.target = "interpreter"}); }),
            "this neuron was moved to another object, which has it now; use that one");
}

TEST(View, IsOfWhatOutlivesTheCall) {
  using Floats = std::vector<float>;
  EXPECT_TRUE((std::is_constructible_v<View, Floats&> && std::is_constructible_v<View, const Floats&>));
  EXPECT_TRUE((std::is_constructible_v<View, std::span<float>> &&
               std::is_constructible_v<View, std::span<const double>> &&
               std::is_constructible_v<View, float(&)[3]> && std::is_constructible_v<View, Array&> &&
               std::is_constructible_v<View, const Array&> && std::is_constructible_v<View, View>));
  EXPECT_FALSE((std::is_constructible_v<View, Floats> || std::is_constructible_v<View, const Floats> ||
                std::is_constructible_v<View, std::array<float, 3>> || std::is_constructible_v<View, Array> ||
                std::is_constructible_v<View, const Array>));
  EXPECT_FALSE(View(std::span<const float>()).writable());
}

TEST(Threads, AreAsManyAsAskedFor) {
  const auto text = [](const char* asked) {
    return join(
        "FLEXSN_THREADS is '", asked,
        "', but must be a number from 1 to 1024; 6 threads are used, as many as there are processors");
  };
  for (const char* asked :
       {"abc", "0", "-1", "9999999", "99999999999999999999", "3 ", " 3", "3x", "1025", "+3"}) {
    EXPECT_EQ(thread_count(asked, 6).count, 6) << asked;
    EXPECT_EQ(thread_count(asked, 6).warning, text(asked));
  }
  for (const char* asked : {"1", "3", "1024"}) {
    EXPECT_EQ(thread_count(asked, 6).count, std::stoi(asked));
    EXPECT_EQ(thread_count(asked, 6).warning, "");
  }
  EXPECT_EQ(thread_count(nullptr, 6).count, 6);
  EXPECT_EQ(thread_count("", 6).warning, "");
}

TEST(Threads, WarnOnceInAProcess) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    setenv("FLEXSN_THREADS", "many", 1);
    const bool same = default_thread_count() == default_thread_count();
    _exit(same ? 0 : 1);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  std::size_t filled = 0;
  for (ssize_t got = 1; got > 0; filled += static_cast<std::size_t>(got))
    got = read(ends[0], text.data() + filled, text.size() - filled);
  close(ends[0]);
  text.resize(filled);
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(text.starts_with("flexsn: warning: FLEXSN_THREADS is 'many', but must be")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(Broadcast, FindsTheEntryOfEachElement) {
  Random random(3);
  int maps[4] = {};
  for (int trial = 0; trial < 3000; ++trial) {
    Shape step, param;
    for (std::uint64_t left = random.next() % 5; left > 0; --left)
      step.push_back(static_cast<std::int64_t>(random.next() % (left == 2 ? 2 : 4)) + (left != 2));
    const std::size_t skipped = random.next() % (step.size() + 1);
    for (std::size_t i = skipped; i < step.size(); ++i) param.push_back(random.next() % 2 ? step[i] : 1);
    const std::optional<Broadcast> found = broadcast(step, param);
    ASSERT_TRUE(found) << text_of(step) << text_of(param);
    ++maps[found->spread ? 3 : static_cast<int>(found->map)];
    const std::int64_t entries = elements_of(param), elements_of_step = elements_of(step), rows = 2;
    std::vector<std::int32_t> from(static_cast<std::size_t>(rows * entries)),
        to(static_cast<std::size_t>(rows * elements_of_step), -1);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::int32_t>(i);
    spread_out(step, param, sizeof from[0], rows, from.data(), to.data());
    for (std::int64_t n = 0; n < rows * elements_of_step; ++n) {
      std::int64_t rest = n % elements_of_step, entry = 0, stride = 1;
      for (std::size_t i = 1; i <= param.size(); ++i) {
        const std::int64_t dim = param[param.size() - i], whole = step[step.size() - i];
        entry += dim == 1 ? 0 : rest % whole * stride;
        rest /= whole;
        stride *= dim;
      }
      ASSERT_EQ(to[static_cast<std::size_t>(n)], n / elements_of_step * entries + entry)
          << text_of(step) << text_of(param) << n;
      const std::int64_t place = n % elements_of_step;
      if (found->spread) continue;
      const std::int64_t mapped = found->map == Map::scalar    ? 0
                                  : found->map == Map::element ? place
                                                               : place / found->inner % found->count;
      ASSERT_EQ(entry, mapped) << text_of(step) << text_of(param);
    }
  }
  for (int count : maps) EXPECT_GT(count, 20);
  EXPECT_FALSE(broadcast({2, 3}, {2}));
  EXPECT_FALSE(broadcast({3}, {1, 3}));
  EXPECT_FALSE(broadcast({1}, {3}));
  EXPECT_FALSE(broadcast({3}, {0}));
}

TEST(Kernel, WhatIsWrongIsRefusedBeforeAByteIsTouched) {
  const Kernel kernel = compile(odd, {.target = "interpreter"});
  Case c(6);
  flexsn::Run r = c.bind(kernel);
  std::vector<float> f(elements * steps), few(3);
  std::vector<double> d(elements * steps);
  const std::vector<float> fixed(elements * steps);
  EXPECT_EQ(error([&] { compile(odd, {.target = "cup"}); }),
            "there is no target 'cup' (did you mean 'cpu'?); choose cpu, cuda or interpreter");
  EXPECT_EQ(error([&] { compile(odd, {.target = "gpu"}); }),
            "there is no target 'gpu' (did you mean 'cuda'?); choose cpu, cuda or interpreter");
  EXPECT_EQ(
      error([&] { compile(odd, {.target = "interpreter", .device = 1}); }),
      "device 1 is asked for, but target 'interpreter' has none; choose target cuda, or leave the device "
      "at 0");
  std::vector<float> one_more(elements * steps + 1);
  auto* const between = reinterpret_cast<float*>(reinterpret_cast<char*>(one_more.data()) + 2);
  EXPECT_EQ(
      error([&] { r.in("x", View(between, elements * steps)); }),
      "neuron 'odd': input 'x' starts 2 bytes past a multiple of 4, the size of f32; an array must start at "
      "a multiple");
  EXPECT_EQ(error([&] { compile(odd, {.target = "interpreter", .threads = -1}); }),
            "the number of threads must be from 0 to 1024, found -1");
  EXPECT_EQ(error([&] { compile(odd, {.training = {.wanted = {"t"}}, .target = "interpreter"}); }),
            "neuron 'odd': there is no argument 't' to take a gradient of (did you mean 'x'?)");
  EXPECT_EQ(error([&] { kernel.bind({-1, {2}}); }),
            "neuron 'odd': the number of steps must not be negative, found -1");
  EXPECT_EQ(error([&] { kernel.bind({1, {2, -2}}); }),
            "neuron 'odd': the step's shape [2, -2] must not be negative");
  EXPECT_EQ(error([&] { kernel.bind({1, {std::int64_t{1} << 40, std::int64_t{1} << 40}}); }),
            "neuron 'odd': the step's shape [1099511627776, 1099511627776] has too many elements");
  EXPECT_EQ(error([&] { r.in("X", f); }), "neuron 'odd': there is no input 'X' (did you mean 'x'?)");
  EXPECT_EQ(
      error([&] { r.in("x", d); }),
      "neuron 'odd': input 'x' must be f32, found f64; convert it, or trace the neuron for another type");
  EXPECT_EQ(error([&] { r.in("x", few); }),
            "neuron 'odd': input 'x' must have 540 elements (T = 9, step shape [5, 3, 4]), found 3");
  Array torn(Mem::f32, {1, 4});
  torn.shape = {9, 60};
  EXPECT_EQ(error([&] { r.in("x", torn); }),
            "an array of 540 elements has 16 bytes, but needs 2160; set shape and bytes together");
  EXPECT_EQ(error([&] { r.in("x", View(f).rows_every(61)); }),
            "neuron 'odd': input 'x' must have 548 elements (T = 9, step shape [5, 3, 4]), found 540");
  EXPECT_EQ(error([&] { r.in("x", View(static_cast<float*>(nullptr), 540)); }),
            "neuron 'odd': input 'x' has no memory: its pointer is null");
  EXPECT_EQ(error([&] { r.out("z", fixed); }),
            "neuron 'odd': output 'z' is written, but its memory is constant");
  EXPECT_EQ(error([&] { r.out("z", View(f).rows_every(0)); }),
            "neuron 'odd': output 'z' has rows every 0 elements, but each has 60; rows that are written must "
            "not overlap");
  EXPECT_EQ(error([&] { r.in("x", View(f).rows_every(-60)); }),
            "neuron 'odd': input 'x' has rows every -60 elements; the distance must not be negative");
  EXPECT_EQ(error([&] { r.in("x", View(f).rows_every(std::int64_t{1} << 61)); }),
            "neuron 'odd': input 'x' has rows every 2305843009213693952 elements, which is more than memory "
            "can have");
  EXPECT_EQ(error([&] { r.out("zz", f); }), "neuron 'odd': there is no output 'zz' (did you mean 'z'?)");
  EXPECT_EQ(error([&] { r.state("v", f); }), "neuron 'odd': there is no state 'v' (did you mean 'u'?)");
  EXPECT_EQ(
      error([&] { r.param("tau", few, {2}); }),
      "neuron 'odd': param 'tau' has shape [2], which does not broadcast to the step's shape [5, 3, 4]; each "
      "dimension, counted from the right, must be 1 or equal, and there may be no more of them");
  EXPECT_EQ(
      error([&] { r.param("tau", few); }),
      "neuron 'odd': param 'tau' of shape [] must have 1 elements (T = 9, step shape [5, 3, 4]), found 3");
  EXPECT_EQ(error([&] { r.param("tau", few, {3, 1}); }),
            "neuron 'odd': param 'tau' has the value 0 at place 0, which is outside its range [1, 10]; "
            "change the value, "
            "or the range where the parameter is declared");
  EXPECT_EQ(error([&] { r.param("gate", few, {3}); }),
            "neuron 'odd': param 'gate' changes with time, so its shape must start with T = 9, found [3]");
  EXPECT_EQ(error([&] { kernel.bind({steps, shape}).inference(); }),
            "neuron 'odd': input 'x' is not bound; give it with in(\"x\", ...)");
  std::vector<std::byte> workspace(r.workspace_bytes()), small(10);
  EXPECT_NE(error([&] {
              r.forward(small);
            }).find("bytes (T = 9, step shape [5, 3, 4]), found 10; ask workspace_bytes()"),
            std::string::npos);
  EXPECT_EQ(error([&] { r.backward(workspace, {{"z", f}}, {}); }),
            "neuron 'odd': backward needs what forward left in this workspace; run forward on it first");
  Array z(Mem::f32, sequence), speed(Mem::f32, sequence);
  r.out("z", z).out("speed", speed);
  r.forward(workspace);
  r.param("gain", c.arguments.params.at("gain"), shape);
  EXPECT_EQ(error([&] { r.backward(workspace, {{"z", f}}, {}); }),
            "neuron 'odd': backward needs what forward left in this workspace; run forward on it first");
  r.forward(workspace);
  EXPECT_EQ(error([&] { r.backward(workspace, {}, {}); }),
            "neuron 'odd': no gradient arrives; give one of an output or of a state");
  EXPECT_EQ(error([&] { r.backward(workspace, {{"spped", f}}, {}); }),
            "neuron 'odd': there is no output or state 'spped' for a gradient to arrive at (did you mean "
            "'speed'?)");
  EXPECT_EQ(error([&] { r.backward(workspace, {{"count", f}}, {}); }),
            "neuron 'odd': no gradient can arrive at 'count': it carries none, or the kernel was compiled "
            "for others "
            "(training.arriving)");
  EXPECT_EQ(error([&] { r.backward(workspace, {{"z", few}}, {}); }),
            "neuron 'odd': the gradient of output 'z' must have 540 elements (T = 9, step shape [5, 3, 4]), "
            "found 3");
  EXPECT_EQ(error([&] { r.backward(workspace, {{"z", f}}, {{"n", f}}); }),
            "neuron 'odd': the gradient of 'n' is not there: it is i32 and carries none");
  EXPECT_EQ(
      error([&] { r.backward(workspace, {{"z", f}}, {{"tau", f}}); }),
      "neuron 'odd': the gradient of 'tau' must have 3 elements (T = 9, step shape [5, 3, 4]), found 540");
  EXPECT_EQ(error([&] { r.backward(workspace, {{"z", f}}, {{"x", fixed}}); }),
            "neuron 'odd': the gradient of 'x' is written, but its memory is constant");
  const Neuron twin = neuron("twin", [](Step& s) {
    const auto v = s.state("v");
    s.next(v, v * 0.5 + s.input("x"));
    s.output("v", v * 2.0);
  });
  std::vector<float> one(1);
  flexsn::Run t = compile(twin, {.target = "interpreter"}).bind({1, {1}}).in("x", one);
  std::vector<std::byte> room(t.workspace_bytes());
  t.forward(room);
  EXPECT_EQ(error([&] { t.backward(room, {{"v", one}}, {{"x", one}}); }),
            "neuron 'twin': 'v' is an output and a state, so it does not say where the gradient arrives; "
            "rename one of "
            "them");
  const Neuron of_x =
      parse_neuron(show(neuron_named("plif"), {.stage = Stage::joint, .training = {.wanted = {"x"}}}));
  flexsn::Run p = compile(of_x, {.target = "interpreter"}).bind({1, {1}}).in("x", one);
  std::vector<float> gradient(1), arrives(1);
  room.resize(p.workspace_bytes());
  p.forward(room);
  EXPECT_EQ(error([&] { p.backward(room, {{"s", arrives}}, {{"x", gradient}}); }), "no error");
  EXPECT_EQ(
      error([&] { p.backward(room, {{"s", arrives}}, {{"w", gradient}}); }),
      "neuron 'plif': the gradient of 'w' is not there: the graph, which has its gradients already, does "
      "not give it");
  const Neuron hard = neuron("hard", [](Step& s) { s.output("z", s.input("x") > 0); });
  EXPECT_NE(error([&] {
              compile(hard, {.target = "interpreter"}).bind({1, {1}}).workspace_bytes();
            }).find("no output and no state can carry a gradient"),
            std::string::npos);
}

// Backward read the f32 sequence of `last` as f16.
TEST(Kernel, ASequenceThatHoldsAValueOfANarrowerTypeIsReadAsWhatItIs) {
  const Neuron delayed = parse_neuron(
      "neuron delayed {\n  state v : f32\n  state last : f32\n  state half : f16 = 3.740234375\n"
      "  %h = mul %half, %v\n  next v = %h\n  next last = %half\n  next half = %half\n}\n");
  for (Saving saving : {Saving::automatic, Saving::everything, Saving::per_step, Saving::rebuild}) {
    const Training training{.state_sequences = true, .saving = saving};
    const Kernel kernel = compile(delayed, {.training = training, .target = "interpreter"});
    flexsn::Run r = kernel.bind({1, {1}});
    Array v(Mem::f32, {1, 1}), last(Mem::f32, {1, 1}), half(Mem::f16, {1, 1});
    r.state_sequence("v", v).state_sequence("last", last).state_sequence("half", half);
    std::vector<std::uint8_t> workspace(r.workspace_bytes());
    r.forward(workspace);
    const Array arriving(Mem::f32, {1, 1}, 1);
    Array gradient(Mem::f32, {1});
    r.backward(workspace, {{"v", arriving}}, {{"v", gradient}});
    EXPECT_EQ(gradient[0], 3.740234375) << static_cast<int>(saving);
  }
}

}  // namespace
}  // namespace flexsn
