#include "neuron.h"

#include <algorithm>
#include <atomic>
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

bool Requested::is_on_gpu() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(known_.begin(), known_.end(),
                     [](const auto& kernel) { return std::get<Place>(kernel.first) == Place::cuda; });
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

bool TorchNeuron::is_on_gpu() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(requested_.begin(), requested_.end(),
                     [](const auto& request) { return request.second && request.second->is_on_gpu(); });
}

namespace {

/// The neurons that were used last. Never destroyed: calls may come until the very end of the process.
class Remembered {
 public:
  NeuronHandle find(std::string_view text) {
    const std::shared_lock lock(mutex_);
    const auto found = known_.find(text);
    if (found == known_.end()) return nullptr;
    found->second.used = ++uses_;
    return found->second.neuron;
  }

  NeuronHandle add(std::string_view text, NeuronHandle neuron) {
    std::vector<NeuronHandle> forgotten;  // they go when nothing is locked
    const std::unique_lock lock(mutex_);
    const auto [place, fresh] = known_.try_emplace(std::string(text), std::move(neuron));
    place->second.used = ++uses_;
    if (known_.size() > neurons_remembered) forget(forgotten);
    return place->second.neuron;
  }

 private:
  struct Entry {
    explicit Entry(NeuronHandle handle) : neuron(std::move(handle)) {}
    NeuronHandle neuron;
    std::atomic<std::uint64_t> used = 0;
  };
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  /// The eighth that has not been used for longest.
  void forget(std::vector<NeuronHandle>& forgotten) {
    std::vector<std::uint64_t> uses;
    for (const auto& [text, entry] : known_) uses.push_back(entry.used);
    const auto limit = uses.begin() + static_cast<std::ptrdiff_t>(uses.size() / 8);
    std::nth_element(uses.begin(), limit, uses.end());
    for (auto place = known_.begin(); place != known_.end();) {
      const bool goes = place->second.used < *limit && !place->second.neuron->is_on_gpu();
      if (goes) forgotten.push_back(std::move(place->second.neuron));
      place = goes ? known_.erase(place) : std::next(place);
    }
  }

  std::shared_mutex mutex_;
  std::atomic<std::uint64_t> uses_ = 0;
  std::unordered_map<std::string, Entry, Hash, std::equal_to<>> known_;
};

}  // namespace

NeuronHandle neuron_of(std::string_view text) {
  thread_local NeuronHandle last;  // most calls are for the same neuron again
  if (last != nullptr && last->text() == text) return last;
  static Remembered& remembered = *new Remembered;
  NeuronHandle found = remembered.find(text);
  if (found == nullptr) found = remembered.add(text, std::make_shared<const TorchNeuron>(text));
  return last = std::move(found);
}

}  // namespace flexsn
