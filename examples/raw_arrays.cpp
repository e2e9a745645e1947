// A neuron of one's own on plain arrays: compiled once, run forward and backward, its leaks learnt by hand.
// usage: raw_arrays [ROUNDS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "flexsn/flexsn.h"

using namespace flexsn;

int main(int count, char** words) {
  const int rounds = count > 1 ? std::atoi(words[1]) : 20;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: raw_arrays [ROUNDS (at least 1)]\n");
    return 2;
  }

  const Neuron gated = neuron("gated", [](Step& s) {
    auto x = s.input("x"), gate = s.input("gate"), v = s.state("v");
    auto leak = s.param("leak", 0.5, {.low = 0.0, .high = 1.0});
    auto h = leak * v + sigmoid(gate) * x;
    auto z = spike(h - 1.0, surrogate::atan(2.0));
    s.next(v, h - z);  // soft reset
    s.output("z", z);
  });
  const Kernel kernel = compile(gated);  // machine code is made in the first run, for all T and shapes

  constexpr std::int64_t T = 50, B = 16, C = 4;
  std::vector<float> x(T * B * C, 0.3F), gate(T * B * C, 1.0F);  // sequences: time first, then the step
  std::vector<float> leak(C, 0.5F), v(B * C), z(T * B * C);
  Run run = kernel.bind({T, {B, C}})
                .in("x", x)
                .in("gate", gate)
                .param("leak", leak, {C})  // one for each channel; a shape that broadcasts to the step's
                .state("v", v)             // read before the first step, written after the last
                .out("z", z);

  std::vector<std::byte> workspace(run.workspace_bytes());
  std::vector<float> grad_z(T * B * C), grad_leak(C);
  run.forward(workspace);
  // ... fill grad_z, the gradient that arrives at the output
  run.backward(workspace, {{"z", grad_z}}, {{"leak", grad_leak}});

  // Gradient descent on noise: channel c is to fire in c + 1 of 20 steps.
  std::minstd_rand noise(1);
  for (float& each : x) each = static_cast<float>(noise() % 1000) * 0.001F;
  double first = 0, last = 0;
  for (int round = 0; round < rounds; ++round) {
    std::fill(v.begin(), v.end(), 0.0F);  // from rest
    run.forward(workspace);
    std::vector<float> rate(C);
    for (std::size_t i = 0; i < z.size(); ++i) rate[i % C] += z[i] / (T * B);
    last = 0;
    for (std::size_t c = 0; c < C; ++c) {
      const float off = rate[c] - static_cast<float>(c + 1) / 20;
      last += off * off;
      for (std::size_t i = c; i < z.size(); i += C) grad_z[i] = 2 * off / (T * B);
    }
    run.backward(workspace, {{"z", grad_z}}, {{"leak", grad_leak}});
    for (std::size_t c = 0; c < C; ++c) leak[c] = std::clamp(leak[c] - grad_leak[c], 0.0F, 1.0F);
    if (round == 0) first = last;
    if (round % 5 == 0) std::printf("round %2d  loss %.5f\n", round, last);
  }
  std::printf("loss %.5f -> %.5f; leaks", first, last);
  for (const float each : leak) std::printf(" %.3f", each);
  std::printf("\n");
  return last < 0.5 * first ? 0 : 1;
}
