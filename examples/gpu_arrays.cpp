// A neuron of one's own on arrays in the memory of an NVIDIA GPU, forward and backward, queued on a stream.
// CUDA's runtime is used for memory alone; kernels are made and queued by flexsn.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "flexsn/flexsn.h"

using namespace flexsn;

namespace {

void check(cudaError_t result) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(result));
  std::exit(1);
}

/// An array on the device.
class Floats {
 public:
  explicit Floats(const std::vector<float>& values) : count_(static_cast<std::int64_t>(values.size())) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()));
    check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());  // the copy may be on its way still, which other streams do not wait for
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { cudaFree(data_); }

  View view() const { return View(data_, count_); }
  std::vector<float> values() const {
    std::vector<float> values(static_cast<std::size_t>(count_));
    check(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(float); }
  float* data_ = nullptr;
  std::int64_t count_;
};

std::vector<float> ramp(std::int64_t count, float scale) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * static_cast<float>(i % 97) / 97;
  return values;
}

bool same(const std::vector<float>& a, const Array& b) {
  return a.size() * sizeof(float) == b.bytes.size() &&
         std::memcmp(a.data(), b.bytes.data(), b.bytes.size()) == 0;
}

}  // namespace

int main() try {
  const Neuron leaky = neuron("leaky", [](Step& s) {
    auto x = s.input("x"), v = s.state("v");
    auto leak = s.param("leak", 0.5);
    auto h = leak * v + x;
    auto z = spike(h - 1.0, surrogate::atan(2.0));
    s.next(v, h - z);
    s.output("z", z);
  });
  const Kernel kernel = compile(leaky, {.target = "cuda"});

  constexpr std::int64_t T = 50, B = 16, C = 4;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const Floats x(ramp(T * B * C, 2)), leak(ramp(C, 1)), v(ramp(B * C, 0)), z(ramp(T * B * C, 0));
  const Floats grad_z(ramp(T * B * C, 1)), grad_x(ramp(T * B * C, 0)), grad_leak(ramp(C, 0));
  Run run = kernel.bind({T, {B, C}})
                .in("x", x.view())
                .param("leak", leak.view(), {C})
                .state("v", v.view())
                .out("z", z.view())
                .stream(stream);

  void* memory = nullptr;
  check(cudaMalloc(&memory, run.workspace_bytes()));
  const View workspace(static_cast<std::byte*>(memory), static_cast<std::int64_t>(run.workspace_bytes()));
  run.forward(workspace);  // this and backward are queued on the stream, and return at once
  run.backward(workspace, {{"z", grad_z.view()}}, {{"x", grad_x.view()}, {"leak", grad_leak.view()}});
  check(cudaStreamSynchronize(stream));

  // The interpreter, which defines the bits, has the same.
  const auto array = [](const std::vector<float>& values, std::vector<std::int64_t> shape) {
    Array made(Mem::f32, std::move(shape));
    std::memcpy(made.bytes.data(), values.data(), made.bytes.size());
    return made;
  };
  const Arguments arguments{.inputs = {{"x", array(ramp(T * B * C, 2), {T, B, C})}},
                            .states = {{"v", array(ramp(B * C, 0), {B, C})}},
                            .params = {{"leak", array(ramp(C, 1), {C})}}};
  const Results results = flexsn::run(leaky, arguments);
  const Gradients gradients =
      run_backward(leaky, arguments, {.outputs = {{"z", array(ramp(T * B * C, 1), {T, B, C})}}});
  const bool right = same(z.values(), results.outputs.at("z")) &&
                     same(grad_x.values(), gradients.inputs.at("x")) &&
                     same(grad_leak.values(), gradients.params.at("leak"));
  std::printf("%s the interpreter's bits; gradient of each leak:", right ? "" : "not");
  for (const float each : grad_leak.values()) std::printf(" %.6g", each);
  std::printf("\n");
  check(cudaFree(memory));
  check(cudaStreamDestroy(stream));
  return right ? 0 : 1;
} catch (const UserError& error) {  // without a GPU it says what is missing
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
