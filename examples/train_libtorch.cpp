// Trains a network of two layers of spiking neurons with libtorch, on made-up data.
// usage: train_libtorch [STEPS [T [BATCH [HIDDEN]]]]
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "flexsn/torch.h"

using namespace flexsn;

namespace {

constexpr std::int64_t features = 64, classes = 10;

/// A leaky neuron whose time constant is learnt, one for each channel.
const Neuron plif = neuron("plif", [](Step& s) {
  auto x = s.input("x"), v = s.state("v"), w = s.param("w", 0.0);
  auto h = v + (x - v) * sigmoid(w);
  auto z = spike(h - 1.0, surrogate::atan(2.0));
  s.next(v, select(z > 0, 0.0, h));
  s.output("z", z);
});

nn::FlexSN neurons(std::int64_t channels) {
  return nn::FlexSN(plif, nn::FlexSNOptions{.params = {{"w", torch::zeros({channels})}}, .learnable = {"w"}});
}

/// Each class is a pattern of currents; a sample is its pattern with noise at every time step.
struct Data {
  torch::Tensor patterns = torch::rand({classes, features}) * 2;
  std::int64_t steps, batch;

  std::pair<torch::Tensor, torch::Tensor> sample() const {
    torch::Tensor labels = torch::randint(classes, {batch}, torch::kLong);
    torch::Tensor noise = torch::randn({steps, batch, features});
    return {patterns.index_select(0, labels) + noise, labels};
  }
};

}  // namespace

int main(int count, char** arguments) {
  const auto option = [&](int place, std::int64_t otherwise) {
    return place < count ? std::atoll(arguments[place]) : otherwise;
  };
  const std::int64_t steps = option(1, 60), length = option(2, 16), batch = option(3, 64),
                     hidden = option(4, 128);
  constexpr std::int64_t warm_up = 5;  // kernels are made in the first steps
  if (steps <= warm_up || length < 1 || batch < 1 || hidden < 1) {
    std::fprintf(stderr, "usage: train_libtorch [STEPS (more than 5) [T [BATCH [HIDDEN]]]]\n");
    return 2;
  }
  torch::manual_seed(1);
  const Data data{.steps = length, .batch = batch};
  torch::nn::Sequential net(torch::nn::Linear(features, hidden), neurons(hidden),
                            torch::nn::Linear(hidden, classes), neurons(classes));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));

  double first = 0, last = 0;
  auto start = std::chrono::steady_clock::now();
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step == warm_up) start = std::chrono::steady_clock::now();
    const auto [x, labels] = data.sample();
    nn::reset_net(*net);
    const torch::Tensor rates = net->forward(x).mean(0);  // [batch, classes]
    const torch::Tensor loss = torch::cross_entropy_loss(10 * rates, labels);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
    if (step % 10 == 0) std::printf("step %3lld  loss %.4f\n", static_cast<long long>(step), last);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("loss %.4f -> %.4f, %.1f steps per second\n", first, last,
              static_cast<double>(steps - warm_up) / took.count());
  return last < 0.5 * first ? 0 : 1;
}
