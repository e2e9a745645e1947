// The public API with target "cuda": arrays on a device, the bits of run and run_backward, and what is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "cuda_code.h"
#include "emit_cuda.h"
#include "executable.h"
#include "gpu_memory.h"
#include "random.h"
#include "user_error.h"

namespace flexsn::test {
namespace {

class CudaRuns : public OnGpu {};

constexpr std::int64_t steps = 9, batch = 5, channels = 3, pixels = 4;
const std::vector<std::int64_t> shape = {batch, channels, pixels},
                                sequence = {steps, batch, channels, pixels};

/// Two inputs, three states, parameters of every kind of shape.
const Neuron odd = neuron("odd", [](Step& s) {
  const auto x = s.input("x"), y = s.input("y", Mem::f16);
  const auto u = s.state("u", 0.5), w = s.state("w", 0, Mem::bf16), n = s.state("n", 3, Mem::i32);
  const auto tau = s.param("tau", 2, {1, 10}), gain = s.param("gain", 1), bias = s.param("bias", 0);
  const auto gate = s.step_param("gate", 1), half = s.param("half", 1, {}, Mem::f16);
  const auto slope = s.param("slope", 0.1), scale = s.param("scale", 0.75);
  const auto h = u + (x - u) / tau + bias;
  const auto z = spike(h - w * w * slope, surrogate::atan());
  s.next(u, tanh(h) * gate * (1 - z));
  s.next(w, round_bf16(w * scale + y * z * half));
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

/// Arguments and gradients for the odd neuron, on the host and on the device.
struct Case {
  Arguments arguments;
  Arriving arriving;
  std::map<std::string, GpuArray> inputs, states, params, gradients;
  const Array slope = Array(Mem::f32, {1}, 0.3);  ///< a single value that stays on the host

  explicit Case(std::uint64_t seed) {
    Random random(seed);
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
    arguments.params["scale"] = filled(Mem::f32, {1}, random);  // a single value on the device
    arriving.outputs["z"] = filled(Mem::f32, sequence, random);
    arriving.outputs["speed"] = filled(Mem::f32, sequence, random);
    arriving.states["u"] = filled(Mem::f32, shape, random);
    arriving.states["w"] = filled(Mem::f32, shape, random);
    for (const auto& [name, array] : arguments.inputs) inputs.emplace(name, array);
    for (const auto& [name, array] : arguments.states) states.emplace(name, array);
    for (const auto& [name, array] : arguments.params) params.emplace(name, array);
    for (const auto* group : {&arriving.outputs, &arriving.states})
      for (const auto& [name, array] : *group) gradients.emplace(name, array);
    arguments.params["slope"] = slope;
  }

  Run bind(const Kernel& kernel) const {
    Run run = kernel.bind({steps, shape});
    for (const auto& [name, array] : inputs) run.in(name, array.view());
    for (const auto& [name, array] : states) run.state(name, array.view());
    for (const auto& [name, array] : params) run.param(name, array.view(), arguments.params.at(name).shape);
    return run.param("slope", slope).first_step(arguments.first_step);
  }
};

void expect_same(const Array& expected, const Array& found, const std::string& what) {
  ASSERT_EQ(expected.size(), found.size()) << what;
  const std::size_t size = size_of(expected.type);
  for (std::int64_t n = 0; n < expected.size(); ++n) {
    const std::size_t at = static_cast<std::size_t>(n) * size;
    const bool same = std::memcmp(expected.bytes.data() + at, found.bytes.data() + at, size) == 0;
    ASSERT_TRUE(same || (expected[n] != expected[n] && found[n] != found[n]))
        << what << " at " << n << ": " << expected[n] << " and " << found[n];
  }
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST_F(CudaRuns, InferenceAndTrainingHaveTheBitsOfRunAndRunBackward) {
  const Kernel kernel = compile(odd, {.target = "cuda"});
  const Case given(1);
  const Results expected = run(odd, given.arguments);
  const Gradients gradients = run_backward(odd, given.arguments, given.arriving);
  for (bool training : {false, true}) {
    const Case c(1);
    flexsn::Run r = c.bind(kernel);
    std::map<std::string, GpuArray> outputs, found;
    for (const auto& [name, array] : expected.outputs)
      r.out(name, outputs.emplace(name, Array(array.type, sequence)).first->second.view());
    const GpuMemory workspace(training ? r.workspace_bytes() : 0);
    const View room(workspace.data(), Mem::u8, static_cast<std::int64_t>(workspace.size()));
    training ? r.forward(room) : r.inference();
    wait_for(nullptr);
    for (const auto& [name, array] : expected.outputs) expect_same(array, outputs.at(name).array(), name);
    for (const auto& [name, array] : expected.states) expect_same(array, c.states.at(name).array(), name);
    if (!training) continue;
    Views arriving, wanted;
    for (const auto& [name, array] : c.gradients) arriving.insert_or_assign(name, array.view());
    for (const auto* group : {&gradients.inputs, &gradients.states, &gradients.params})
      for (const auto& [name, array] : *group)
        wanted.insert_or_assign(
            name, found.emplace(name, Array(array.type, array.shape, 777)).first->second.view());
    for (int again : {0, 1}) {  // twice: backward leaves the workspace as it needs it
      r.backward(room, arriving, wanted);
      wait_for(nullptr);
      for (const auto* group : {&gradients.inputs, &gradients.states, &gradients.params})
        for (const auto& [name, array] : *group)
          expect_same(array, found.at(name).array(), join("gradient of ", name, ", run ", again));
    }
    EXPECT_TRUE(workspace.is_untouched_around());
  }
}

TEST_F(CudaRuns, AChunkEqualsTheWhole) {
  const Kernel kernel = compile(neuron_named("lif"), {.target = "cuda"});
  Random random(3);
  Arguments arguments;
  arguments.inputs["x"] = filled(Mem::f32, {10, 33}, random);
  const Results expected = run(neuron_named("lif"), arguments);
  const GpuArray x(arguments.inputs["x"], 4), s(Array(Mem::f32, {10, 33}), 8), v(Array(Mem::f32, {33}, 0));
  const auto rows = [](const GpuArray& array, std::int64_t first, std::int64_t count) {
    return View(static_cast<float*>(array.view().data()) + first * 33, count * 33);
  };
  kernel.bind({3, {33}}).in("x", rows(x, 0, 3)).out("s", rows(s, 0, 3)).state("v", v.view()).inference();
  kernel.bind({7, {33}}).in("x", rows(x, 3, 7)).out("s", rows(s, 3, 7)).state("v", v.view()).inference();
  wait_for(nullptr);
  expect_same(expected.outputs.at("s"), s.array(), "s");
  expect_same(expected.states.at("v"), v.array(), "v");
}

TEST_F(CudaRuns, WhatLiesInTheWrongPlaceIsRefused) {
  const Kernel kernel = compile(neuron_named("plif"), {.target = "cuda"});
  std::vector<float> host(30);
  const GpuArray x(Array(Mem::f32, {30}));
  const std::string param = kernel.info(Kind::inference).params.at(0).name;
  flexsn::Run r = kernel.bind({3, {10}});
  EXPECT_EQ(
      error([&] { r.in("x", host); }),
      "neuron 'plif': input 'x' lies in the host's memory, but the kernel runs on CUDA device 0; copy it "
      "there");
  EXPECT_TRUE(
      contains(error([&] { r.param(param, View(host.data(), 10), {10}); }), "lies in the host's memory"));
  EXPECT_EQ(error([&] { r.param(param, View(host.data(), 1)); }), "no error");
  EXPECT_EQ(error([&] { r.param(param, View(x.view().data(), Mem::f32, 1)); }), "no error");
  r.in("x", x.view());
  std::vector<std::byte> workspace(r.workspace_bytes());
  EXPECT_EQ(
      error([&] { r.forward(workspace); }),
      "neuron 'plif': the workspace lies in the host's memory, but the kernel runs on CUDA device 0; give "
      "it memory there");
  EXPECT_EQ(
      error([&] { r.out("s", host); }),
      "neuron 'plif': output 's' lies in the host's memory, but the kernel runs on CUDA device 0; give it "
      "memory there");
  if (cuda_device_count() > 1) {
    const GpuMemory elsewhere(120, 0, 1);
    EXPECT_EQ(
        error([&] { r.in("x", View(elsewhere.data(), Mem::f32, 30)); }),
        "neuron 'plif': input 'x' lies on CUDA device 1, but the kernel runs on device 0; copy it there, or "
        "compile with options.device = 1");
  }
  EXPECT_TRUE(contains(error([&] { compile(neuron_named("lif"), {.target = "cuda", .device = 1000}); }),
                       "there is no CUDA device 1000; this process sees "));
  EXPECT_EQ(
      error([&] { compile(neuron_named("lif"), {.target = "interpreter"}).bind({1, {1}}).stream(nullptr); }),
      "neuron 'lif': a stream was given, but the target is interpreter; compile with target \"cuda\"");
}

TEST_F(CudaRuns, ASingleValueOfTheHostMustBeInItsRange) {
  const Kernel kernel = compile(odd, {.target = "cuda"});
  const float tau = 0.5f;
  EXPECT_TRUE(contains(error([&] { kernel.bind({1, {1}}).param("tau", View(&tau, 1)); }), "'tau'"));
}

/// The entries of plans that `call` ran, one letter each; "" where there is a real driver, which does not
/// tell.
std::string entries_of(const std::function<void()>& call) {
  if (!pretends()) return call(), "";
  fake_driver()->launches.clear();
  call();
  std::string letters;
  for (const fake::Launch& launch : fake_driver()->launches)
    letters += launch.function == cuda_wide ? "w" : launch.function == cuda_narrow ? "n" : "";
  return letters;
}

TEST_F(CudaRuns, ADigestIsOfBothEntries) {
  const Neuron integrating = neuron_named("if");
  std::string found;
  const std::string entries = entries_of([&] { found = digest(integrating, Mem::f32, 0, "cuda"); });
  EXPECT_EQ(found, digest(integrating, Mem::f32, 0, "interpreter"));
  if (!pretends()) return;
  EXPECT_GE(std::count(entries.begin(), entries.end(), 'w'), 4) << entries;
  EXPECT_GE(std::count(entries.begin(), entries.end(), 'n'), 6) << entries;
}

TEST_F(CudaRuns, TheBackwardThatIsPreparedIsTheOneThatRuns) {
  const auto compilations = [] {
    if (!pretends()) return std::size_t{0};
    const std::lock_guard lock(fake_driver()->mutex);
    return fake_driver()->compiled.size();
  };
  const std::size_t before = compilations();
  {
    const Neuron leaky = neuron("leaky", [](Step& s) {
      const auto x = s.input("x"), v = s.state("v");
      const auto h = v * 0.9375 + x * 0.28125;
      s.next(v, h);
      s.output("y", h * h);
    });
    const Kernel kernel = compile(leaky, {.target = "cuda"});
    const GpuArray x(Array(Mem::f32, {3, 5}, 2)), v(Array(Mem::f32, {5})), y(Array(Mem::f32, {3, 5})),
        gradient(Array(Mem::f32, {3, 5}));
    flexsn::Run r = kernel.bind({3, {5}});
    r.in("x", x.view()).state("v", v.view()).out("y", y.view());
    GpuMemory workspace(r.workspace_bytes());
    const View space(workspace.data(), Mem::u8, static_cast<std::int64_t>(workspace.size()));
    r.forward(space);
    r.backward(space, {{"y", x.view()}}, {{"x", gradient.view()}});
    wait_for(nullptr);
  }  // by now the background has ended
  EXPECT_EQ(compilations() - before, pretends() ? 4 : 0) << "two entries of forward and two of backward";
}

TEST(CudaAbsent, IsSaidWithTheWayOut) {
  const std::string why = cuda_absent();
  if (why.empty()) GTEST_SKIP() << "CUDA is here: " << cuda_description();
  EXPECT_TRUE(why.starts_with("there are no CUDA kernels: ")) << why;
  EXPECT_EQ(error([] { compile(neuron_named("lif"), {.target = "cuda"}); }), why);
}

TEST_F(CudaRuns, ACapturedTrainingIsRepeated) {
  const Kernel kernel = compile(odd, {.target = "cuda"});
  Case c(3);
  c.params.erase("gate");  // for each step, at its default; bias is spread out, slope is the host's
  c.arguments.params.erase("gate");
  const Results expected = run(odd, c.arguments);
  const Gradients gradients = run_backward(odd, c.arguments, c.arriving);
  std::map<std::string, GpuArray> outputs, found;
  for (const auto& [name, array] : expected.outputs) outputs.emplace(name, Array(array.type, sequence));
  Views arriving, wanted;
  for (const auto& [name, array] : c.gradients) arriving.insert_or_assign(name, array.view());
  for (const auto* group : {&gradients.inputs, &gradients.params})
    for (const auto& [name, array] : *group)
      if (name != "gate")
        wanted.insert_or_assign(name,
                                found.emplace(name, Array(array.type, array.shape)).first->second.view());
  flexsn::Run bound = c.bind(kernel);
  for (const auto& [name, array] : outputs) bound.out(name, array.view());
  const GpuMemory workspace(bound.workspace_bytes());
  const View room(workspace.data(), Mem::u8, static_cast<std::int64_t>(workspace.size()));
  const Captured captured([&](void* stream) {
    bound.stream(stream).forward(room);
    bound.backward(room, arriving, wanted);
  });
  for (int round = 0; round < 3; ++round) {
    for (auto& [name, array] : c.states) array.fill(c.arguments.states.at(name));
    for (auto& [name, array] : outputs) array.fill(Array(expected.outputs.at(name).type, sequence));
    for (auto& [name, array] : found) array.fill(Array(array.array().type, array.array().shape));
    captured.run();
    for (const auto& [name, array] : expected.outputs) expect_same(array, outputs.at(name).array(), name);
    for (const auto& [name, array] : expected.states) expect_same(array, c.states.at(name).array(), name);
    for (const auto* group : {&gradients.inputs, &gradients.params})
      for (const auto& [name, array] : *group)
        if (name != "gate") expect_same(array, found.at(name).array(), "the gradient of " + name);
  }
}

TEST_F(CudaRuns, ManagedMemoryIsOfTheDevice) {
  auto* make = driver_function<int(DeviceAddress*, std::size_t, unsigned)>("cuMemAllocManaged");
  const Driver& driver = Cuda::standard().driver;
  const CurrentGpu current(driver, driver.gpu(0));
  DeviceAddress managed = 0;
  constexpr unsigned attached_to_all = 1;
  driver.check(make(&managed, 40, attached_to_all), "allocate");
  for (int device = 0; device < std::min(cuda_device_count(), 2); ++device) {
    flexsn::Run r = compile(neuron_named("lif"), {.target = "cuda", .device = device}).bind({1, {10}});
    EXPECT_EQ(error([&] { r.in("x", View(reinterpret_cast<void*>(managed), Mem::f32, 10)); }), "no error");
  }
  wait_for(nullptr);
  driver_function<int(DeviceAddress)>("cuMemFree_v2")(managed);
}

TEST_F(CudaRuns, WhereAnArrayLiesMustBeKnown) {
  if (!pretends()) GTEST_SKIP() << "a real driver knows";
  flexsn::Run r = compile(neuron_named("plif"), {.target = "cuda"}).bind({3, {10}});
  const GpuArray x(Array(Mem::f32, {30}));
  fake_driver()->failing = "cuPointerGetAttribute";
  EXPECT_EQ(error([&] { r.in("x", x.view()); }),
            "the CUDA driver could not tell where an array lies: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  fake_driver()->failing = "cuPointerGetAttribute";
  EXPECT_TRUE(
      contains(error([&] { r.param("w", View(x.view().data(), Mem::f32, 1)); }), "could not tell where"));
  EXPECT_EQ(error([&] { r.in("x", x.view()); }), "no error");
}

TEST_F(CudaRuns, AParameterMayHaveEveryOtherDimensionOfAStep) {
  const Neuron biased = neuron("biased", [](Step& s) { s.output("y", s.input("x") + s.param("bias", 0)); });
  const std::vector<std::int64_t> step(13, 2);
  std::vector<std::int64_t> dims(13, 2), whole = step;
  for (std::size_t d = 0; d < dims.size(); d += 2) dims[d] = 1;
  whole.insert(whole.begin(), 1);
  Random random(5);
  Arguments arguments;
  arguments.inputs["x"] = filled(Mem::f32, whole, random);
  arguments.params["bias"] = filled(Mem::f32, dims, random);
  const GpuArray x(arguments.inputs["x"]), bias(arguments.params["bias"]), y(Array(Mem::f32, whole));
  flexsn::Run r = compile(biased, {.target = "cuda"}).bind({1, step});
  r.in("x", x.view()).out("y", y.view()).param("bias", bias.view(), dims).inference();
  wait_for(nullptr);
  expect_same(run(biased, arguments).outputs.at("y"), y.array(), "y");
}

TEST_F(CudaRuns, AParameterForEachStepThatIsNotBoundHasItsDefault) {
  const Neuron gated = neuron("gated", [](Step& s) {
    const auto gate = s.step_param("gate", 0.75);
    s.output("y", s.input("x") * gate);
  });
  const Kernel kernel = compile(gated, {.target = "cuda"});
  const GpuArray x(Array(Mem::f32, {3, 5}, 2)), y(Array(Mem::f32, {3, 5})), gradient(Array(Mem::f32, {3, 5}));
  for (bool training : {false, true}) {
    flexsn::Run r = kernel.bind({3, {5}});
    r.in("x", x.view()).out("y", y.view());
    if (!training) {
      r.inference();
    } else {
      GpuMemory workspace(r.workspace_bytes());
      const View space(workspace.data(), Mem::u8, static_cast<std::int64_t>(workspace.size()));
      r.forward(space);
      r.backward(space, {{"y", x.view()}}, {{"x", gradient.view()}});
      wait_for(nullptr);
      expect_same(Array(Mem::f32, {3, 5}, 1.5), gradient.array(), "the gradient of x");
    }
    wait_for(nullptr);
    expect_same(Array(Mem::f32, {3, 5}, 1.5), y.array(), "y");
  }
}

}  // namespace
}  // namespace flexsn::test
