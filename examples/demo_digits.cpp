// Trains the network of the demo with libtorch, from the same weights and on the same digits as in Python.
// usage: demo_digits DIGITS START TRAINED EPOCHS T
//   DIGITS and START are written by torch.save in Python, TRAINED can be read by torch.load.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "demo_neuron.h"
#include "flexsn/torch.h"

using namespace flexsn;

namespace {

constexpr std::int64_t batch = 64;

nn::FlexSN neurons(std::int64_t channels) {
  return nn::FlexSN(
      tiring, nn::FlexSNOptions{.params = {{"cost", torch::full({channels}, 0.3)}}, .learnable = {"cost"}});
}

/// Firing rates of the output neurons while the pixels are held as currents for some steps.
torch::Tensor rates(torch::nn::Sequential& net, const torch::Tensor& pixels, std::int64_t steps) {
  nn::reset_net(*net);
  return net->forward(pixels.expand({steps, -1, -1})).mean(0);
}

double accuracy(torch::nn::Sequential& net, const torch::Tensor& x, const torch::Tensor& y,
                std::int64_t steps) {
  const torch::NoGradGuard no_gradients;
  return rates(net, x, steps).argmax(1).eq(y).to(torch::kDouble).mean().item<double>();
}

void train(char** arguments, std::int64_t epochs, std::int64_t steps) {
  const nn::StateDict digits = nn::read_state_dict(arguments[1]), start = nn::read_state_dict(arguments[2]);
  const torch::Tensor x = digits["train_x"], y = digits["train_y"];
  const std::int64_t hidden = start["0.weight"].size(0), classes = start["2.weight"].size(0);
  torch::nn::Sequential net(torch::nn::Linear(x.size(1), hidden), neurons(hidden),
                            torch::nn::Linear(hidden, classes), neurons(classes));
  nn::load_state_dict(*net, start);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));

  double first_epoch = 0;
  const auto began = std::chrono::steady_clock::now();
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    torch::manual_seed(static_cast<std::uint64_t>(epoch));  // the order that Python takes them in
    const std::vector<torch::Tensor> batches = torch::randperm(x.size(0)).split(batch);
    for (const torch::Tensor& which : batches) {
      const torch::Tensor loss =
          torch::cross_entropy_loss(10 * rates(net, x.index({which}), steps), y.index({which}));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      if (epoch == 0) first_epoch += loss.item<double>() / static_cast<double>(batches.size());
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  nn::write_state_dict(nn::state_dict(*net), arguments[3]);
  std::printf("first epoch %.6f, accuracy %.6f, %.2f s\n", first_epoch,
              accuracy(net, digits["test_x"], digits["test_y"], steps), took.count());
}

}  // namespace

int main(int count, char** arguments) {
  const std::int64_t epochs = count == 6 ? std::atoll(arguments[4]) : 0,
                     steps = count == 6 ? std::atoll(arguments[5]) : 0;
  if (epochs < 1 || steps < 1) {
    std::fprintf(stderr, "usage: demo_digits DIGITS START TRAINED EPOCHS T (both from 1)\n");
    return 2;
  }
  try {
    train(arguments, epochs, steps);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
