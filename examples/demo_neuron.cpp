// Runs the neuron of the demo forward and backward on arrays from a file, for comparison with PyTorch.
// usage: demo_neuron FROM TO T BATCH CHANNELS
//   FROM: x [T, BATCH, CHANNELS], cost [CHANNELS], grad_z as x; TO: z as x, v and tired of the last step,
//   then the gradients of x and cost. All are f32, one after the other.
#include "demo_neuron.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

using namespace flexsn;

namespace {

using Floats = std::vector<float>;

Floats read(std::ifstream& file, std::int64_t count) {
  Floats values(static_cast<std::size_t>(count));
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * 4));
  if (!file) throw UserError("demo_neuron: FROM is too short for x, cost and grad_z of these sizes");
  return values;
}

void write(std::ofstream& file, const Floats& values) {
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
}

/// The CPU's kernels where they are built, else the interpreter, which gives the same bits.
std::string target() {
  const std::vector<TargetInfo> targets = target_list();
  const bool kernels = std::ranges::any_of(targets, [](auto& t) { return t.name == "cpu" && t.available; });
  return kernels ? "cpu" : "interpreter";
}

void run_files(const char* from, const char* to, std::int64_t steps, std::int64_t batch,
               std::int64_t channels) {
  const std::int64_t row = batch * channels;
  std::ifstream in(from, std::ios::binary);
  if (!in) throw UserError(std::string("demo_neuron: FROM must be a file, found none called ") + from);
  const Floats x = read(in, steps * row), cost = read(in, channels), grad_z = read(in, steps * row);
  Floats z(x.size()), v(static_cast<std::size_t>(row)), tired(v.size()), grad_x(x.size()),
      grad_cost(cost.size());

  const auto start = std::chrono::steady_clock::now();
  const Kernel kernel = compile(tiring, {.target = target()});
  Run run = kernel.bind({steps, {batch, channels}});
  run.in("x", x).param("cost", cost, {channels}).out("z", z).state("v", v).state("tired", tired);
  std::vector<std::byte> workspace(run.workspace_bytes());
  run.forward(workspace);
  run.backward(workspace, {{"z", grad_z}}, {{"x", grad_x}, {"cost", grad_cost}});
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;

  std::ofstream out(to, std::ios::binary);
  for (const Floats* values : {&z, &v, &tired, &grad_x, &grad_cost}) write(out, *values);
  if (!out.flush()) throw UserError(std::string("demo_neuron: cannot write ") + to);
  std::printf("target %s, %.1f ms from the function to the gradients\n", target().c_str(), took.count());
}

}  // namespace

int main(int count, char** arguments) {
  const std::int64_t steps = count == 6 ? std::atoll(arguments[3]) : 0,
                     batch = count == 6 ? std::atoll(arguments[4]) : 0,
                     channels = count == 6 ? std::atoll(arguments[5]) : 0;
  if (steps < 1 || batch < 1 || channels < 1) {
    std::fprintf(stderr, "usage: demo_neuron FROM TO T BATCH CHANNELS (sizes from 1)\n");
    return 2;
  }
  try {
    run_files(arguments[1], arguments[2], steps, batch, channels);
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
