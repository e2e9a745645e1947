// flexsn bench: how long a neuron takes on this machine, beside a plain copy of the bytes it must move.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli.h"
#include "flexsn/flexsn.h"
#include "pool.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& work) {
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The median of `rounds` runs of each work, taken in turns, so that a noisy moment meets all of them.
std::vector<double> medians(const std::vector<std::function<void()>>& works, int rounds) {
  std::vector<std::vector<double>> times(works.size());
  for (const auto& work : works) work();  // compiles, and touches all memory
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < works.size(); ++i) times[i].push_back(seconds_of(works[i]));
  std::vector<double> middle;
  for (std::vector<double>& list : times) {
    std::nth_element(list.begin(), list.begin() + rounds / 2, list.end());
    middle.push_back(list[static_cast<std::size_t>(rounds / 2)]);
  }
  return middle;
}

/// Arrays for every input, output and gradient of a neuron, bound to a run of it.
class Bench {
 public:
  Bench(const flexsn::Kernel& kernel, std::int64_t steps, std::int64_t elements)
      : info_(kernel.info(flexsn::Kind::inference)), run_(kernel.bind({steps, {elements}})) {
    const std::vector<std::int64_t> sequence = {steps, elements}, row = {elements};
    for (const flexsn::Named& input : info_.inputs) run_.in(input.name, add(input, sequence, 1.25));
    for (const flexsn::Named& output : info_.outputs) run_.out(output.name, add(output, sequence, 0));
    for (const flexsn::Named& state : info_.states) run_.last_state(state.name, add(state, row, 0));
  }

  void inference() { run_.inference(); }

  /// What training needs, on top of the above.
  void prepare_training(std::int64_t steps, std::int64_t elements) {
    workspace_.resize(run_.workspace_bytes());
    for (const flexsn::Named& output : info_.outputs)
      if (is_float(output.type)) arriving_.insert_or_assign(output.name, add(output, {steps, elements}, 0.5));
    for (const flexsn::Named& input : info_.inputs)
      if (is_float(input.type)) wanted_.insert_or_assign(input.name, add(input, {steps, elements}, 0));
    for (const flexsn::Named& param : info_.params)
      if (is_float(param.type)) wanted_.insert_or_assign(param.name, add(param, {}, 0));
  }
  void forward() { run_.forward(workspace_); }
  void backward() { run_.backward(workspace_, arriving_, wanted_); }

 private:
  static bool is_float(flexsn::Mem mem) {
    return flexsn::value_type(mem) == flexsn::Type::f32 || flexsn::value_type(mem) == flexsn::Type::f64;
  }
  flexsn::Array& add(const flexsn::Named& named, std::vector<std::int64_t> shape, double value) {
    return *arrays_.emplace_back(std::make_unique<flexsn::Array>(named.type, std::move(shape), value));
  }

  flexsn::KernelInfo info_;
  flexsn::Run run_;
  std::vector<std::unique_ptr<flexsn::Array>> arrays_;
  std::vector<std::byte> workspace_;
  flexsn::Views arriving_, wanted_;
};

/// `bytes` read and written, by all threads together.
std::function<void()> copy_of(std::int64_t bytes) {
  const auto half = static_cast<std::size_t>(bytes / 2);
  const auto from = std::make_shared<std::vector<char>>(half, 'x'),
             to = std::make_shared<std::vector<char>>(half);
  return [=] {
    const auto threads = static_cast<std::size_t>(flexsn::default_thread_count());
    std::vector<std::thread> pool;
    for (std::size_t i = 0; i < threads; ++i)
      pool.emplace_back([=] {
        const std::size_t begin = half * i / threads, end = half * (i + 1) / threads;
        std::memcpy(to->data() + begin, from->data() + begin, end - begin);
      });
    for (std::thread& thread : pool) thread.join();
  };
}

std::string fixed(const char* format, double number) {
  char text[64];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

}  // namespace

Outcome bench_of(const flexsn::Neuron& neuron, const flexsn::Training& training, std::int64_t steps,
                 std::int64_t elements, bool as_json) {
  const flexsn::Explanation explained =
      flexsn::explain(neuron, {.steps = steps, .elements = elements, .training = training});
  const flexsn::Kernel kernel = flexsn::compile(neuron, {.training = training});
  const double first = seconds_of([&] { Bench(kernel, 1, 64).inference(); });
  std::optional<Bench> bench(std::in_place, kernel, steps, elements);
  const auto bytes_of = [](const std::vector<flexsn::Traffic>& kernels, std::size_t from, std::size_t to) {
    std::int64_t bytes = 0;
    for (std::size_t i = from; i < std::min(to, kernels.size()); ++i)
      bytes += kernels[i].read + kernels[i].written;
    return bytes;
  };
  std::vector<std::string> names = {"inference"};
  std::vector<std::int64_t> bytes = {bytes_of(explained.inference, 0, 1)};
  std::vector<std::function<void()>> works = {[&] { bench->inference(); }};
  if (explained.untrainable.empty()) {
    bench->prepare_training(steps, elements);
    names.insert(names.end(), {"forward", "backward"});
    bytes.insert(bytes.end(), {bytes_of(explained.training, 0, 1), bytes_of(explained.training, 1, 99)});
    works.push_back([&] { bench->forward(); });
    works.push_back([&] { bench->backward(); });
  }
  const std::size_t count = works.size();
  for (std::size_t i = 0; i < count; ++i) works.push_back(copy_of(bytes[i]));
  const std::vector<double> times = medians(works, 7);
  nlohmann::ordered_json json = {{"neuron", neuron.name()},
                                 {"steps", steps},
                                 {"elements", elements},
                                 {"first_result_ms", first * 1e3},
                                 {"work", nlohmann::ordered_json::array()}};
  std::vector<std::vector<std::string>> rows = {
      {"work", "ms", "GB/s", "copy of the same bytes, ms", "of the copy's speed"}};
  for (std::size_t i = 0; i < count; ++i) {
    const double rate = static_cast<double>(bytes[i]) / times[i] * 1e-9, share = times[count + i] / times[i];
    rows.push_back({names[i], fixed("%.3f", times[i] * 1e3), fixed("%.2f", rate),
                    fixed("%.3f", times[count + i] * 1e3), fixed("%.0f %%", share * 100)});
    json["work"].push_back({{"name", names[i]},
                            {"ms", times[i] * 1e3},
                            {"bytes", bytes[i]},
                            {"copy_ms", times[count + i] * 1e3}});
  }
  if (as_json) return {json.dump(2) + "\n"};
  return {neuron.name() + ", T = " + std::to_string(steps) + ", N = " + std::to_string(elements) +
          ", medians of 7; first result after " + fixed("%.1f", first * 1e3) + " ms\n" + table(rows)};
}

}  // namespace cli
