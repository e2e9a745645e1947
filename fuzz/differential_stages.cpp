#include "differential_stages.h"

#include <algorithm>

#include "bind.h"
#include "compile.h"
#include "differential_child.h"
#include "differential_worker.h"
#include "executable.h"
#include "expand.h"
#include "plan_case.h"
#include "simplify.h"
#include "text.h"
#include "train.h"
#include "trial.h"
#include "verify.h"

namespace flexsn::fuzz {

using namespace ir;

namespace {

/// Rows of one array in memory of a target, apart by some padding, with bytes around that nobody may touch.
class Room {
 public:
  Room(const Array& content, std::int64_t rows, std::int64_t padding, bool at_end, bool cuda)
      : array_(content),
        rows_(rows),
        row_(rows > 0 ? content.size() / rows : 0),
        stride_(row_ + padding),
        host_(bytes(), at_end) {
    std::fill_n(host_.data(), bytes(), gap);
    each_row([&](std::byte* in_array, std::byte* in_room, std::size_t size) {
      std::copy(in_array, in_array + size, in_room);
    });
    before_.assign(host_.data(), host_.data() + bytes());
    if (!cuda) return;
    const auto size = static_cast<std::int64_t>(bytes());
    device_ = {cuda_allocate(size + 1, 0, nullptr), [](void* data) { cuda_free(data, 0, nullptr); }};
    cuda_copy(device_.get(), host_.data(), size, 0, nullptr);
  }

  View view() const {
    const View all(device_ ? device_.get() : host_.data(), array_.type,
                   static_cast<std::int64_t>(bytes() / size_of(array_.type)));
    return stride_ == row_ ? all : all.rows_every(stride_);
  }

  /// What was written. Throws where a byte between the rows changed.
  Array written() {
    fetch();
    std::vector<std::byte> between(host_.data(), host_.data() + bytes());
    each_row([&](std::byte* in_array, std::byte* in_room, std::size_t size) {
      std::copy(in_room, in_room + size, in_array);
      std::fill_n(between.begin() + (in_room - host_.data()), size, gap);
    });
    if (std::any_of(between.begin(), between.end(), [](std::byte b) { return b != gap; }))
      throw InternalError("bytes between rows were written");
    return array_;
  }

  void expect_unchanged() {
    fetch();
    if (!std::equal(before_.begin(), before_.end(), host_.data()))
      throw InternalError("an array that is only read was written");
  }

 private:
  static constexpr std::byte gap{0xa5};

  void fetch() {
    if (device_) cuda_copy(host_.data(), device_.get(), static_cast<std::int64_t>(bytes()), 0, nullptr);
  }
  std::size_t bytes() const {
    return rows_ == 0 ? 0 : static_cast<std::size_t>((rows_ - 1) * stride_ + row_) * size_of(array_.type);
  }
  template <class Copy>
  void each_row(const Copy& copy) {
    const std::size_t element = size_of(array_.type), size = static_cast<std::size_t>(row_) * element;
    for (std::int64_t r = 0; r < rows_; ++r)
      copy(array_.bytes.data() + static_cast<std::size_t>(r) * size,
           host_.data() + static_cast<std::size_t>(r * stride_) * element, size);
  }

  Array array_;
  std::int64_t rows_, row_, stride_;
  test::Guarded host_;
  std::vector<std::byte> before_;
  std::shared_ptr<void> device_;
};

std::string key(const char* what, const std::string& name) { return join(what, " ", name); }

// ---- runs by the interpreter of graphs -------------------------------------------------------------------

/// The values of any form of the step: raw, simplified, expanded.
Outcome values_of(const Graph& graph, const Case& one) {
  Binding binding(graph, one.arguments);
  Scan scan{.steps = binding.steps(),
            .elements = binding.elements(),
            .first_step = one.arguments.first_step,
            .sources = {},
            .targets = {}};
  for (const Argument& argument : graph.arguments) scan.sources.push_back(binding.source(argument));
  Outcome outcome;
  for (const Result& result : graph.results) {
    const bool output = result.gives == Gives::output, rows = output || one.arguments.state_sequences;
    Shape shape = one.shape();
    if (rows) shape.insert(shape.begin(), one.steps());
    Array& array =
        outcome[output ? key("output", result.name) : key("state", graph.arguments[result.of].name)];
    array = Array(result.mem, shape);
    scan.targets.push_back(rows ? Target{.sequence = array.bytes.data(), .row_stride = binding.elements()}
                                : Target{.last = array.bytes.data()});
  }
  interpret(graph, scan);
  return outcome;
}

/// Of all arguments that carry one, wanted or not.
Outcome gradients_of(const Case& one) {
  Gradients gradients = run_backward(Neuron(one.graph), one.arguments, one.arriving);
  Outcome outcome;
  for (auto* group : {&gradients.inputs, &gradients.states, &gradients.params})
    for (auto& [name, array] : *group) outcome[key("gradient", name)] = std::move(array);
  return outcome;
}

/// Those of `outcome` that `found` has: "" where all of them have the same bits.
std::string difference_in(const Outcome& expected, const Outcome& found) {
  Outcome chosen;
  for (const auto& [name, array] : found)
    if (const auto at = expected.find(name); at != expected.end()) chosen.insert(*at);
  return flexsn::difference(chosen, found);
}

// ---- runs by kernels -------------------------------------------------------------------

/// One call of a kernel on arrays of a case.
class KernelCall {
 public:
  KernelCall(const Case& one, const Graph& graph, const CompileOptions& options)
      : case_(one),
        graph_(graph),
        options_(options),
        cuda_(options.target == "cuda"),
        kernel_(compile(Neuron(graph), options)) {}

  Outcome inference() {
    Run run = bound();
    run.inference();
    return results();
  }

  Outcome training() {
    const Graph joint = joint_of(compile(graph_, flexsn::Stage::simplified), options_.training);
    Run run = bound();
    Room workspace(Array(Mem::u8, {static_cast<std::int64_t>(run.workspace_bytes())}), 1, 0, true, cuda_);
    run.forward(workspace.view());
    Outcome outcome = results();
    Views arriving, wanted;
    for (const Argument& argument : joint.arguments) {
      if (argument.role == Role::grad_output)
        arrive(joint.results[argument.of].name, case_.arriving.outputs, true, arriving);
      if (argument.role == Role::grad_next)
        arrive(joint.arguments[argument.of].name, case_.arriving.states, case_.training.state_sequences,
               arriving);
    }
    if (arriving.empty()) return outcome;  // what was compiled for has no part in what arrives
    for (const Result& result : joint.results)
      if (result.gives == Gives::grad) want(joint.arguments[result.of], result.mem, wanted);
    run.backward(workspace.view(), arriving, wanted);
    for (auto& [name, room] : gradients_) outcome[key("gradient", name)] = room.written();
    for (Room& room : read_) room.expect_unchanged();
    return outcome;
  }

 private:
  View read(const Array& array, bool rows, bool may_be_apart = true) {
    read_.emplace_back(array, rows ? case_.steps() : 1, rows && may_be_apart ? case_.padding : 0, !at_end_,
                       cuda_);
    at_end_ = !at_end_;
    return read_.back().view();
  }

  Run bound() {
    Run run = kernel_.bind({case_.steps(), case_.shape()});
    run.first_step(case_.arguments.first_step);
    const Arguments& given = case_.arguments;
    for (const auto& [name, array] : given.inputs) run.in(name, read(array, true));
    for (const auto& [name, array] : given.states) run.first_state(name, read(array, false));
    for (const auto& [name, array] : given.params) run.param(name, read(array, false), array.shape);
    for (const Result& result : graph_.results) {
      const bool output = result.gives == Gives::output, rows = output || given.state_sequences;
      const std::string& name = output ? result.name : graph_.arguments[result.of].name;
      Room& room = results_
                       .try_emplace(key(output ? "output" : "state", name), empty(result.mem, rows),
                                    rows ? case_.steps() : 1, rows ? case_.padding : 0, at_end_, cuda_)
                       .first->second;
      if (output)
        run.out(name, room.view());
      else if (rows)
        run.state_sequence(name, room.view());
      else
        run.last_state(name, room.view());
    }
    return run;
  }

  Array empty(Mem mem, bool rows) const {
    Shape shape = case_.shape();
    if (rows) shape.insert(shape.begin(), case_.steps());
    return Array(mem, shape);
  }

  Outcome results() {
    Outcome outcome;
    for (auto& [name, room] : results_) outcome[name] = room.written();
    for (Room& room : read_) room.expect_unchanged();
    return outcome;
  }

  void arrive(const std::string& name, const std::map<std::string, Array>& given, bool rows, Views& views) {
    const auto found = given.find(name);
    if (found != given.end()) views.insert({name, read(found->second, rows)});
  }

  void want(const Argument& argument, Mem mem, Views& views) {
    if (std::find(case_.wanted.begin(), case_.wanted.end(), argument.name) == case_.wanted.end()) return;
    const bool param = argument.role == Role::param, rows = argument.role == Role::input || argument.per_step;
    Array room = empty(mem, rows);
    if (param) {
      const auto given = case_.arguments.params.find(argument.name);
      Shape shape = given == case_.arguments.params.end() ? Shape{} : given->second.shape;
      if (given == case_.arguments.params.end() && argument.per_step) shape = {case_.steps()};
      room = Array(argument.mem, shape);
    }
    Room& made = gradients_
                     .try_emplace(argument.name, room, rows ? case_.steps() : 1, rows ? case_.padding : 0,
                                  at_end_, cuda_)
                     .first->second;
    views.insert({argument.name, made.view()});
  }

  const Case& case_;
  const Graph graph_;
  const CompileOptions options_;
  const bool cuda_;
  bool at_end_ = false;
  Kernel kernel_;
  std::vector<Room> read_;
  std::map<std::string, Room> results_, gradients_;
};

/// Tasks in reverse order: no result may depend on it.
void last_first(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  while (count-- > 0) task(count);
}

// ---- stages -------------------------------------------------------------------

class OneStage {
 public:
  OneStage(const Case& one, const Outcome& expected, const Faults& faults)
      : case_(one), expected_(expected), faults_(faults) {}

  Stages::Verdict verdict() { return std::move(verdict_); }

  void text() {
    const Graph& graph = case_.graph;
    const std::string identity = canonical(graph);
    for (const PrintStyle& style : {PrintStyle{}, PrintStyle{.names = true, .locations = true}}) {
      const Graph again = parse(print(graph, style), "printed");
      verify(again);
      if (canonical(again) != identity) return note("printed", "the text means another neuron");
      compare("printed", values_of(again, case_));
    }
    Graph again = parse(identity, "canonical");
    if (canonical(again) != identity) return note("canonical", "the text means another neuron");
    const std::vector<int> arguments = argument_order(graph), results = result_order(graph);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const Argument& from = graph.arguments[static_cast<std::size_t>(arguments[i])];
      Argument& to = again.arguments[i];
      to.name = from.name;
      to.initial = from.initial;
      to.has_default = from.has_default;
    }
    for (std::size_t i = 0; i < results.size(); ++i)
      again.results[i].name = graph.results[static_cast<std::size_t>(results[i])].name;
    compare("canonical", values_of(again, case_));
  }

  void passes() {
    const Graph& graph = case_.graph;
    const Graph simple = faults_.simplified(simplify(graph)), basic = expand(simple);
    const std::pair<const char*, Graph> forms[] = {{"simplify", simple},
                                                   {"expand", expand(graph)},
                                                   {"simplify, expand", basic},
                                                   {"simplify, expand, simplify", simplify(basic)},
                                                   {"values_only", values_only(graph)},
                                                   {"without_dead_code", without_dead_code(graph)},
                                                   {"compile", compile(graph, flexsn::Stage::expanded)}};
    for (const auto& [what, form] : forms) {
      verify(form);
      compare(what, values_of(form, case_));
    }
    if (simplify(simple).nodes != simple.nodes) note("simplify, simplify", "something is left to simplify");
  }

  void plans() {
    CompileOptions options{.training = case_.training, .target = "interpreter"};
    kernel("inference", options, false);
    if (!case_.trains()) return;
    for (Saving saving : {Saving::automatic, Saving::everything, Saving::per_step, Saving::rebuild})
      for (int segment : {2, 4}) {
        if (saving != Saving::rebuild && segment != 2) continue;
        options.training.saving = saving;
        options.training.segment = saving == Saving::rebuild ? segment : 0;
        kernel(join("saving ", static_cast<int>(saving)).c_str(), options, true);
      }
    options.training = case_.training;
    kernel("the drawn plan", options, true);
  }

  void kernels(const char* target) {
    const CompileOptions options{.training = case_.training, .target = target, .parallel_for = last_first};
    // Compiling takes long, and what forward runs is much of what inference runs.
    if (!case_.trains() || case_.infers) kernel("inference", options, false);
    if (case_.trains()) kernel("training", options, true);
  }

  /// The second call starts with the states that the first ends with.
  void chunks() {
    auto [first, second] = cut_in_two();
    Outcome early = values_of(case_.graph, first);
    for (const Argument& argument : case_.graph.arguments)
      if (argument.role == Role::state)
        second.arguments.states[argument.name] = early.at(key("state", argument.name));
    Outcome late = values_of(case_.graph, second);
    if (case_.arguments.state_sequences) {
      compare("two chunks", joined(early, late));
      return;
    }
    if (case_.trains()) {
      late.merge(gradients_of(second));
      for (const Argument& argument : case_.graph.arguments)
        if (const auto found = late.find(key("gradient", argument.name));
            found != late.end() && argument.role == Role::state)
          first.arriving.states[argument.name] = found->second;
      early.merge(gradients_of(first));
    }
    compare("two chunks", joined(early, late));
  }

 private:
  void note(const std::string& what, const std::string& difference) {
    if (verdict_.difference.empty()) verdict_.difference = join(what, ": ", difference);
  }

  void compare(const std::string& what, const Outcome& found) {
    ++verdict_.comparisons;
    if (const std::string difference = difference_in(expected_, found); !difference.empty())
      note(what, difference);
  }

  void kernel(const char* what, CompileOptions options, bool training) {
    const Graph graph = faults_.kernel(case_.graph);
    if (!training) options.training = {.state_sequences = case_.arguments.state_sequences};
    try {
      KernelCall call(case_, graph, options);
      compare(what, training ? call.training() : call.inference());
    } catch (const std::exception& error) {
      // What is wanted may carry nothing of what it is compiled for.
      const bool nothing = std::string_view(error.what()).find("can carry a gradient to what is wanted") !=
                           std::string_view::npos;
      if (!nothing) note(what, error.what());
    }
  }

  /// Only last states are asked for; the gradients that arrive at them go to the second chunk.
  std::pair<Case, Case> cut_in_two() const {
    Case first = case_, second = case_;
    const std::int64_t cut = case_.cut, left = case_.steps() - cut;
    first.arguments.steps = cut;
    second.arguments.steps = left;
    second.arguments.first_step += cut;
    first.arguments.state_sequences = second.arguments.state_sequences = false;
    const auto divide = [&](const auto& whole, const std::string& name, auto& early, auto& late) {
      const auto found = whole.find(name);
      if (found == whole.end()) return;
      early[name] = rows_of(found->second, 0, cut);
      late[name] = rows_of(found->second, cut, left);
    };
    for (const Argument& argument : case_.graph.arguments) {
      const std::string& name = argument.name;
      divide(case_.arguments.inputs, name, first.arguments.inputs, second.arguments.inputs);
      if (argument.per_step)
        divide(case_.arguments.params, name, first.arguments.params, second.arguments.params);
    }
    for (const auto& [name, array] : case_.arriving.outputs)
      divide(case_.arriving.outputs, name, first.arriving.outputs, second.arriving.outputs);
    first.arriving.states = {};
    return {std::move(first), std::move(second)};
  }

  /// What the two chunks say of the whole: rows one after the other, the last states of the second, gradients
  /// of the first states of the first. Sums over time are not among it.
  Outcome joined(const Outcome& early, const Outcome& late) const {
    Outcome whole;
    const auto with_rows = [&](const std::string& name) {
      const auto a = early.find(name), b = late.find(name);
      if (a == early.end() || b == late.end()) return;
      Array& rows = whole[name] = a->second;
      rows.shape[0] += b->second.shape[0];
      rows.bytes.insert(rows.bytes.end(), b->second.bytes.begin(), b->second.bytes.end());
    };
    for (const Result& result : case_.graph.results)
      if (result.gives == Gives::output) with_rows(key("output", result.name));
    for (const Argument& argument : case_.graph.arguments) {
      const std::string gradient = key("gradient", argument.name);
      if (argument.role == Role::input || argument.per_step) with_rows(gradient);
      if (argument.role != Role::state) continue;
      if (const auto found = early.find(gradient); found != early.end()) whole.insert(*found);
      if (!case_.arguments.state_sequences) whole.insert(*late.find(key("state", argument.name)));
    }
    std::erase_if(whole, [&](const auto& item) { return !expected_.contains(item.first); });
    return whole;
  }

  static Array rows_of(const Array& array, std::int64_t from, std::int64_t count) {
    Shape shape = array.shape;
    const std::size_t row = array.shape[0] == 0 ? 0 : array.bytes.size() / static_cast<std::size_t>(shape[0]);
    shape[0] = count;
    Array part(array.type, shape);
    const auto start =
        array.bytes.begin() + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(from));
    std::copy(start, start + static_cast<std::ptrdiff_t>(part.bytes.size()), part.bytes.begin());
    return part;
  }

  const Case& case_;
  const Outcome& expected_;
  const Faults& faults_;
  Stages::Verdict verdict_;
};

}  // namespace

const char* name_of(Stage stage) {
  constexpr const char* names[] = {"text", "passes", "plans", "chunks", "cpu", "cuda", "triton", "torch"};
  return names[static_cast<std::size_t>(stage)];
}

Outcome law(const Case& one) {
  verify(one.graph);
  Outcome outcome = values_of(one.graph, one);
  if (!one.trains()) return outcome;
  Outcome gradients = gradients_of(one);
  for (const std::string& name : one.wanted)
    if (auto found = gradients.extract(key("gradient", name))) outcome.insert(std::move(found));
  return outcome;
}

Stages::Stages(std::string python, std::string script, Faults faults)
    : python_(std::move(python)), script_(std::move(script)), faults_(std::move(faults)) {}
Stages::~Stages() = default;

PythonWorker& Stages::worker() {
  if (!worker_) worker_ = std::make_unique<PythonWorker>(python_, script_);
  return *worker_;
}

std::string Stages::absent(Stage stage) {
  if (stage == Stage::cpu) return cpu_absent();
  if (stage == Stage::cuda) return cuda_absent();
  if (stage != Stage::triton && stage != Stage::torch) return "";
  return worker().absent(name_of(stage));
}

Stages::Verdict Stages::run(Stage stage, const Case& one, const Outcome& expected) {
  if (stage == Stage::triton || stage == Stage::torch) {
    const std::optional<std::string> answer = worker().difference(name_of(stage), one, expected);
    return {answer.value_or(""), answer ? 1 : 0};
  }
  // Compiling for the host takes so long that a process does not matter, and a crash is then a difference.
  if (stage != Stage::cuda && !in_children) return run_here(stage, one, expected);
  const ChildAnswer answer = in_child([&] {
    const Verdict verdict = run_here(stage, one, expected);
    return join(verdict.comparisons, " ", verdict.difference);
  });
  if (answer.signal != 0) return {join("it crashed with signal ", answer.signal), 1};
  Verdict verdict;
  std::istringstream words(answer.text);
  words >> verdict.comparisons;
  words.get();
  std::getline(words, verdict.difference, '\0');
  return verdict;
}

Stages::Verdict Stages::run_here(Stage stage, const Case& one, const Outcome& expected) const {
  OneStage all(one, expected, faults_);
  try {
    switch (stage) {
      case Stage::text:
        all.text();
        break;
      case Stage::passes:
        all.passes();
        break;
      case Stage::plans:
        all.plans();
        break;
      case Stage::chunks:
        all.chunks();
        break;
      case Stage::cpu:
      case Stage::cuda:
        all.kernels(name_of(stage));
        break;
      case Stage::triton:
      case Stage::torch:
        break;
    }
  } catch (const std::exception& error) {
    return {error.what(), 1};
  }
  return all.verdict();
}

}  // namespace flexsn::fuzz
