#include "neuron.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <shared_mutex>
#include <unordered_map>

#include "error.h"
#include "text.h"

namespace flexsn {

using namespace ir;

namespace {

/// "cpu,budget=8,saving=per_step" as what it asks of training.
void read_plan(const std::string& plan, Training& training) {
  const auto fail = [&](const std::string& part) {
    user_error("the plan '", plan, "' has a part '", part,
               "' that is not known; write cpu or gpu, then budget=BYTES, segment=STEPS and "
               "saving=automatic, everything, per_step or rebuild, with commas between");
  };
  std::size_t start = 0;
  while (start < plan.size()) {
    const std::size_t end = std::min(plan.find(',', start), plan.size());
    const std::string part = plan.substr(start, end - start);
    start = end + 1;
    if (part == "cpu" || part == "gpu") {
      training.costs = cost_model_named(part);
    } else if (part.starts_with("budget=")) {
      double bytes = 0;
      const char* last = part.data() + part.size();
      const auto [stop, wrong] = std::from_chars(part.data() + std::size("budget=") - 1, last, bytes);
      if (wrong != std::errc() || stop != last) fail(part);
      training.budget = bytes;
    } else if (part.starts_with("segment=")) {
      const char* last = part.data() + part.size();
      const auto [stop, wrong] =
          std::from_chars(part.data() + std::size("segment=") - 1, last, training.segment);
      if (wrong != std::errc() || stop != last) fail(part);
    } else {
      const std::map<std::string, Saving> ways = {{"saving=automatic", Saving::automatic},
                                                  {"saving=everything", Saving::everything},
                                                  {"saving=per_step", Saving::per_step},
                                                  {"saving=rebuild", Saving::rebuild}};
      if (!ways.contains(part)) fail(part);
      training.saving = ways.at(part);
    }
  }
}

CompileOptions options_for(const Graph& graph, const Request& request) {
  CompileOptions options;
  options.training.state_sequences = request.sequences;
  read_plan(request.plan, options.training);
  for (int argument : request.wanted) options.training.wanted.push_back(graph.arguments[argument].name);
  if (const char* target = std::getenv("FLEXSN_TARGET")) options.target = target;
  if (options.target != "cpu" && options.target != "interpreter")
    user_error("FLEXSN_TARGET must be cpu, or interpreter for what defines the bits, slowly; found '",
               options.target, "'");
  // Who runs the tasks is said at each call.
  options.parallel_for = [](std::int64_t, const std::function<void(std::int64_t)>&) {};
  return options;
}

}  // namespace

Requested::Requested(const Graph& graph, const Request& request)
    : kernels_(graph, options_for(graph, request)) {
  for (Role role : {Role::state, Role::param})
    for (const Argument& argument : graph.arguments)
      if (argument.role == role) laid_out_.push_back(argument.name);
  if (!kernels_.trainable()) return;
  const Plan forward = kernels_.plan(Kind::forward, {});
  for (const Buffer& buffer : forward.buffers)
    if (buffer.holds == Holds::saved || buffer.holds == Holds::checkpoint) saved_.push_back(buffer);
  segment_ = forward.segment;
  for (const Buffer& buffer : kernels_.plan(Kind::backward, {}).buffers)
    if (!buffer.write) reads_.insert({buffer.holds, buffer.index});
}

std::shared_ptr<const Executable> Requested::executable(Place place, Kind kind, const std::vector<Map>& maps,
                                                        const std::vector<int>& absent) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Executable>& found = known_[{place, kind, maps, absent}];
  if (found) return found;
  Layout layout;
  for (std::size_t i = 0; i < maps.size(); ++i) layout[laid_out_[i]] = maps[i];
  found =
      kernels_.executable_on(place == Place::cuda ? "cuda" : kernels_.options().target, kind, layout, absent);
  return found;
}

bool Requested::is_first(const std::vector<Map>& maps) {
  const std::lock_guard lock(mutex_);
  return seen_.insert(maps).second;
}

TorchNeuron::TorchNeuron(std::string_view text) : text_(text), graph_(Neuron(parse(text, "neuron")).graph()) {
  const auto places = [&](Role role) {
    std::vector<int> found;
    for (std::size_t a = 0; a < graph_.arguments.size(); ++a)
      if (graph_.arguments[a].role == role) found.push_back(static_cast<int>(a));
    return found;
  };
  inputs_ = places(Role::input);
  states_ = places(Role::state);
  params_ = places(Role::param);
  for (const auto* list : {&inputs_, &states_, &params_})
    arguments_.insert(arguments_.end(), list->begin(), list->end());
  for (std::size_t r = 0; r < graph_.results.size(); ++r)
    if (graph_.results[r].gives == Gives::output) outputs_.push_back(static_cast<int>(r));
  for (int state : states_) {
    initial_[state] = std::make_unique<double>();
    const Mem mem = graph_.arguments[state].mem;
    const std::uint64_t bits = bits_of(value_type(mem), graph_.arguments[state].initial);
    store(mem, &bits, initial_[state].get(), 1);
  }
  if (inputs_.empty())
    user_error("the neuron has no input, so the operators cannot know how many steps to run");
  // A text with gradients says what carries them; that of a plain step is differentiated here.
  const Requested& all = requested({});
  if (!all.trainable()) return;
  for (const Argument& argument : all.joint().arguments) {
    if (argument.role == Role::grad_output) outputs_that_carry_.insert(argument.of);
    if (argument.role == Role::grad_next) states_that_carry_.insert(argument.of);
  }
  for (const Result& result : all.joint().results)
    if (result.gives == Gives::grad) differentiable_.insert(result.of);
}

Requested& TorchNeuron::requested(const Request& request) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Requested>& found = requested_[request];
  if (!found) found = std::make_unique<Requested>(graph_, request);
  return *found;
}

const TorchNeuron& neuron_of(std::string_view text) {
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  // Neurons stay until the process ends: operators hold references while they run.
  static std::shared_mutex mutex;
  thread_local const TorchNeuron* last = nullptr;  // most calls are for the same neuron again
  if (last != nullptr && last->text() == text) return *last;
  static auto* known =
      new std::unordered_map<std::string, std::unique_ptr<TorchNeuron>, Hash, std::equal_to<>>;
  {
    const std::shared_lock lock(mutex);
    if (const auto found = known->find(text); found != known->end()) return *(last = found->second.get());
  }
  auto made = std::make_unique<TorchNeuron>(text);
  const std::unique_lock lock(mutex);
  return *known->try_emplace(std::string(text), std::move(made)).first->second;
}

}  // namespace flexsn
