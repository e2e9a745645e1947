// What CPU kernels must reach: each work beside its alternative, in interleaved rounds of one run, as a
// table.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>

#include "error.h"
#include "executable.h"
#include "flexsn/flexsn.h"
#include "plain_loops.h"
#include "pool.h"
#include "random.h"

namespace flexsn {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Options {
  bool quick = false;
  std::string out;
  int rounds(int usual) const { return quick ? 5 : usual; }
};

// ---- measuring -------------------------------------------------------------------------------------

/// Of many samples the middle, the ends of the middle half, and the one that nothing disturbed.
struct Spread {
  double least = 0, low = 0, median = 0, high = 0;
};

Spread spread_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double part) {
    return samples[static_cast<std::size_t>(std::lround(part * static_cast<double>(samples.size() - 1)))];
  };
  return {at(0), at(0.25), at(0.5), at(0.75)};
}

/// One of the works that are measured together.
struct Contender {
  std::string name;
  std::function<void()> work;
  std::vector<double> seconds = {};
  Spread spread() const { return spread_of(seconds); }
};

/// Runs all of them in turn, again and again, so that whatever else the machine does disturbs all alike.
void race(std::vector<Contender>& contenders, int rounds) {
  constexpr double shortest_sample = 4e-3;
  std::vector<int> repeats;
  for (Contender& contender : contenders) {
    contender.work();
    const Clock::time_point start = Clock::now();
    contender.work();
    repeats.push_back(static_cast<int>(std::clamp(shortest_sample / seconds_since(start), 1.0, 1e6)));
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const Clock::time_point start = Clock::now();
      for (int k = 0; k < repeats[i]; ++k) contenders[i].work();
      contenders[i].seconds.push_back(seconds_since(start) / repeats[i]);
    }
  }
}

/// How many times faster one is than another: of the medians, of the least, and in the middle half of the
/// rounds.
Spread ratio(const Contender& slow, const Contender& fast, double factor = 1) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < slow.seconds.size(); ++i)
    ratios.push_back(factor * slow.seconds[i] / fast.seconds[i]);
  Spread spread = spread_of(ratios);
  spread.median = factor * slow.spread().median / fast.spread().median;
  spread.least = factor * slow.spread().least / fast.spread().least;
  return spread;
}

// ---- the table -------------------------------------------------------------------------------------

enum class Unit { percent, times, milliseconds };

std::string text_of(double value, Unit unit) {
  char text[32];
  if (unit == Unit::percent)
    std::snprintf(text, sizeof text, "%.0f %%", value * 100);
  else if (unit == Unit::times)
    std::snprintf(text, sizeof text, "%.2f x", value);
  else
    std::snprintf(text, sizeof text, "%.1f ms", value * 1e3);
  return text;
}

struct Row {
  std::string work;
  Unit unit;
  Spread found;
  std::optional<double> goal = {};
  bool at_most = false;
  std::vector<Contender> contenders = {};

  std::string goal_text() const { return goal ? join(at_most ? "at most " : "", text_of(*goal, unit)) : ""; }
  std::string verdict() const {
    if (!goal) return "";
    return (at_most ? found.median <= *goal : found.median >= *goal) ? "ok" : "below";
  }
};

class Table {
 public:
  Table() { print_line("work", "goal", "found", "middle half", "undisturbed", ""); }

  void add(Row row) {
    print_line(row.work, row.goal_text(), text_of(row.found.median, row.unit),
               join(text_of(row.found.low, row.unit), " to ", text_of(row.found.high, row.unit)),
               text_of(row.found.least, row.unit), row.verdict());
    for (const Contender& contender : row.contenders)
      std::printf("    %-40s %9.3f ms\n", contender.name.c_str(), contender.spread().median * 1e3);
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }

  std::string json() const {
    std::string text;
    for (const Row& row : rows_) {
      text += join(text.empty() ? "" : ",\n", "    {\"work\": \"", row.work,
                   "\", \"goal\": ", row.goal ? join(*row.goal) : "null", ", \"goal_is\": \"",
                   row.at_most ? "at most" : "at least", "\", \"unit\": \"",
                   row.unit == Unit::milliseconds ? "seconds" : "ratio", "\", ", json_of(row.found),
                   ", \"verdict\": \"", row.verdict(), "\", \"seconds\": {");
      for (std::size_t i = 0; i < row.contenders.size(); ++i)
        text += join(i == 0 ? "" : ", ", "\"", row.contenders[i].name, "\": {",
                     json_of(row.contenders[i].spread()), "}");
      text += "}}";
    }
    return text;
  }

 private:
  static void print_line(const std::string& work, const std::string& goal, const std::string& found,
                         const std::string& spread, const std::string& least, const std::string& verdict) {
    std::printf("%-65s %-15s %-9s %-18s %-12s %s\n", work.c_str(), goal.c_str(), found.c_str(),
                spread.c_str(), least.c_str(), verdict.c_str());
  }
  static std::string json_of(const Spread& spread) {
    return join("\"median\": ", spread.median, ", \"low\": ", spread.low, ", \"high\": ", spread.high,
                ", \"least\": ", spread.least);
  }
  std::vector<Row> rows_;
};

// ---- what runs -------------------------------------------------------------------------------------

/// An array of numbers from [0, 2), aligned as tensors are.
class Data {
 public:
  Data(Mem type, std::int64_t count) : type_(type), count_(count) {
    constexpr std::size_t alignment = 64;
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type);
    bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment)));
    if (!bytes_) user_error("the benchmark needs ", bytes, " bytes that are not there; use --quick");
    Array some(type, {997});
    Random random(1);
    for (std::int64_t i = 0; i < some.size(); ++i) some.set(i, random.uniform(0, 2));
    for (std::size_t at = 0; at < bytes; at += some.bytes.size())
      std::memcpy(bytes_.get() + at, some.bytes.data(), std::min(some.bytes.size(), bytes - at));
  }

  View view() const { return View(static_cast<void*>(bytes_.get()), type_, count_); }
  /// The first `count` elements.
  View view(std::int64_t count) const { return View(static_cast<void*>(bytes_.get()), type_, count); }
  float* floats() const { return reinterpret_cast<float*>(bytes_.get()); }
  std::byte* bytes() const { return bytes_.get(); }
  std::size_t size() const { return static_cast<std::size_t>(count_) * size_of(type_); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  Mem type_;
  std::int64_t count_;
  std::unique_ptr<std::byte, Free> bytes_;
};

/// Calls body(first, last) for `pieces` parts of [0, count), each a multiple of 64 but the last.
template <class Body>
void split(Pool& pool, int pieces, std::int64_t count, const Body& body) {
  const auto bound = [&](std::int64_t i) { return i == pieces ? count : count * i / pieces / 64 * 64; };
  pool.run(pieces, [&](std::int64_t i) { body(bound(i), bound(i + 1)); });
}

/// Everything is run by one pool, kernels and their alternatives.
class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)), pool_(default_thread_count()) {}

  int threads() const { return pool_.threads(); }
  std::string json() const { return table_.json(); }

  void memory_bound() {
    const std::int64_t steps = 8, elements = large();
    const std::string size = join(steps, " x ", elements);
    const Data x(Mem::f32, steps * elements), s(Mem::f32, steps * elements), v(Mem::f32, elements);
    Run run = kernel("lif").bind({steps, {elements}});
    run.in("x", x.view()).out("s", s.view()).state("v", v.view());
    Run alone = kernel("lif", {}, 1).bind({steps, {elements}});
    alone.in("x", x.view()).out("s", s.view()).state("v", v.view());
    check_inference(x, s, v, run, steps, elements);
    std::vector<Contender> all = {{"flexsn", [&] { run.inference(); }},
                                  copy("memcpy", x, s),
                                  plain("plain loop", threads(), x, s, v, steps, elements),
                                  {"flexsn, 1 thread", [&] { alone.inference(); }},
                                  copy("memcpy, 1 thread", x, s, 1)};
    race(all, options_.rounds(41));
    table_.add({join("lif inference, ", size, ", against memcpy of its bytes"), Unit::percent,
                ratio(all[1], all[0]), 0.5, false, all});
    table_.add(
        {join("lif inference, ", size, ", against the plain loop"), Unit::times, ratio(all[2], all[0]), 1.3});
    if (threads() == 1) return;
    table_.add({join("lif inference, ", size, ", ", threads(), " threads against 1"), Unit::times,
                ratio(all[3], all[0])});
    table_.add(
        {join("lif inference, ", size, ", 1 thread against memcpy"), Unit::percent, ratio(all[4], all[3])});
  }

  void training() {
    const std::int64_t steps = 8, elements = large();
    const Data x(Mem::f32, steps * elements), s(Mem::f32, steps * elements), gs(Mem::f32, steps * elements),
        gx(Mem::f32, steps * elements), h(Mem::f32, steps * elements), row(Mem::f32, elements);
    Learning sigmoid(kernel("lif"), {steps, {elements}}, x, s, gs, gx);
    Learning triangle(kernel("lif:surrogate=triangle"), {steps, {elements}}, x, s, gs, gx);
    Learning plif(kernel("plif"), {steps, {elements}}, x, s, gs, gx, {"w"});
    const auto plain_training = [&] {
      split(pool_, threads(), elements, [&](std::int64_t first, std::int64_t last) {
        const plain::Part part{steps, elements, first, last};
        plain::lif_forward(x.floats(), s.floats(), h.floats(), row.floats(), part);
        plain::lif_backward(h.floats(), gs.floats(), gx.floats(), row.floats(), part);
      });
    };
    check_training(gx, steps * elements, [&] { triangle.run(); }, plain_training);
    std::vector<Contender> all = {copy("memcpy, 2 passes", x, s),
                                  {"sigmoid", [&] { sigmoid.run(); }},
                                  {"sigmoid, forward alone", [&] { sigmoid.forward(); }},
                                  {"triangle", [&] { triangle.run(); }},
                                  {"triangle, forward alone", [&] { triangle.forward(); }},
                                  {"plif with the gradient of w", [&] { plif.run(); }},
                                  {"plain loops, triangle, h saved", plain_training}};
    race(all, options_.rounds(21));
    const std::string size = join("training, ", steps, " x ", elements);
    constexpr double passes = 2.5;  // a copy is two of the five
    table_.add({join("lif ", size, ", sigmoid, against memcpy of 5 passes"), Unit::percent,
                ratio(all[0], all[1], passes), 0.14, false, all});
    table_.add({join("lif ", size, ", triangle, against memcpy of 5 passes"), Unit::percent,
                ratio(all[0], all[3], passes), 0.28});
    table_.add({join("lif ", size, ", triangle, against plain loops"), Unit::times, ratio(all[6], all[3])});
    table_.add({join("plif ", size, ", gradient of w, against 5 passes"), Unit::percent,
                ratio(all[0], all[5], passes)});
  }

  void little_parallelism() {
    const std::int64_t steps = 1000, elements = 256;
    const Data x(Mem::f32, steps * elements), s(Mem::f32, steps * elements), v(Mem::f32, elements);
    Run run = kernel("lif").bind({steps, {elements}});
    run.in("x", x.view()).out("s", s.view()).state("v", v.view());
    std::vector<Contender> all = {{"flexsn", [&] { run.inference(); }},
                                  plain("plain loop", threads(), x, s, v, steps, elements),
                                  plain("plain loop, 1 thread", 1, x, s, v, steps, elements)};
    race(all, options_.rounds(41));
    const Contender& faster = all[1].spread().median < all[2].spread().median ? all[1] : all[2];
    table_.add({join("lif inference, T = ", steps, ", N = ", elements, ", against the faster plain loop"),
                Unit::times, ratio(faster, all[0]), 1.2, false, all});
  }

  /// The same number of element-steps in every shape.
  void shapes(std::int64_t work, std::optional<double> goal) {
    const Data x(Mem::f32, work), s(Mem::f32, work), v(Mem::f32, work / 4);
    std::vector<Contender> all;
    for (std::int64_t steps = 4; steps <= 4096; steps *= 2) {
      auto run = std::make_shared<Run>(kernel("lif").bind({steps, {work / steps}}));
      run->in("x", x.view()).out("s", s.view()).state("v", v.view(work / steps));
      all.push_back({join("T = ", steps, ", N = ", work / steps), [run] { run->inference(); }});
    }
    race(all, options_.rounds(41));
    const auto by_median = [](const Contender& a, const Contender& b) {
      return a.spread().median < b.spread().median;
    };
    const auto [best, worst] = std::minmax_element(all.begin(), all.end(), by_median);
    table_.add({join("lif inference, T * N = ", work, ", T from 4 to 4096, worst to best"), Unit::times,
                ratio(*worst, *best), goal, true, all});
  }

  void other_neurons_and_types() {
    struct Other {
      const char* name;
      Mem type;
      std::int64_t elements;
    };
    const std::int64_t steps = 8;
    for (const Other& other : {Other{"adex", Mem::f32, large()}, Other{"lif", Mem::f16, large()},
                               Other{"lif", Mem::bf16, large()}, Other{"lif", Mem::f64, large() / 2}}) {
      const Data x(other.type, steps * other.elements), s(other.type, steps * other.elements);
      Run run = kernel(other.name, {.type = other.type}).bind({steps, {other.elements}});
      run.in("x", x.view()).out("s", s.view());
      std::vector<Contender> all = {{"flexsn", [&] { run.inference(); }}, copy("memcpy", x, s)};
      race(all, options_.rounds(15));
      table_.add({join(other.name, " inference, ", name_of(other.type), ", ", steps, " x ", other.elements,
                       ", against memcpy"),
                  Unit::percent,
                  ratio(all[1], all[0]),
                  {},
                  false,
                  all});
    }
  }

  void first_results();

 private:
  /// Training with gradients of the inputs and of some parameters.
  class Learning {
   public:
    Learning(const Kernel& kernel, Extent extent, const Data& x, const Data& s, const Data& gs,
             const Data& gx, const std::vector<std::string>& params = {})
        : run_(kernel.bind(std::move(extent))), param_grads_(params.size()) {
      run_.in("x", x.view()).out("s", s.view());
      arriving_.emplace("s", gs.view());
      wanted_.emplace("x", gx.view());
      for (std::size_t i = 0; i < params.size(); ++i) wanted_.emplace(params[i], View(&param_grads_[i], 1));
      workspace_.resize(run_.workspace_bytes());
    }
    void forward() { run_.forward(workspace_); }
    void run() {
      forward();
      run_.backward(workspace_, arriving_, wanted_);
    }

   private:
    Run run_;
    std::vector<float> param_grads_;
    std::vector<std::byte> workspace_;
    Views arriving_, wanted_;
  };

  std::int64_t large() const { return options_.quick ? 1 << 20 : 4194304; }

  Kernel kernel(const char* name, const Training& training = {}, int count = 0) {
    Training wanted = training;
    if (wanted.wanted.empty()) wanted.wanted = {"x"};
    if (std::string_view(name) == "plif") wanted.wanted.emplace_back("w");
    return compile(
        neuron_named(name),
        {.training = wanted,
         .threads = count > 0 ? count : threads(),
         .parallel_for = [this](std::int64_t tasks, const std::function<void(std::int64_t)>& task) {
           pool_.run(tasks, task);
         }});
  }

  Contender copy(std::string name, const Data& from, const Data& to, int pieces = 0) {
    return {std::move(name), [this, &from, &to, pieces] {
              split(pool_, pieces > 0 ? pieces : threads(), static_cast<std::int64_t>(from.size()),
                    [&](std::int64_t first, std::int64_t last) {
                      std::memcpy(to.bytes() + first, from.bytes() + first,
                                  static_cast<std::size_t>(last - first));
                    });
            }};
  }

  Contender plain(std::string name, int pieces, const Data& x, const Data& s, const Data& v,
                  std::int64_t steps, std::int64_t elements) {
    return {std::move(name), [this, pieces, &x, &s, &v, steps, elements] {
              split(pool_, pieces, elements, [&](std::int64_t first, std::int64_t last) {
                plain::lif(x.floats(), s.floats(), v.floats(), {steps, elements, first, last});
              });
            }};
  }

  /// What is compared must compute the same.
  void check_inference(const Data& x, const Data& s, const Data& v, Run& run, std::int64_t steps,
                       std::int64_t elements) {
    std::fill_n(v.floats(), elements, 0.0f);
    plain("", threads(), x, s, v, steps, elements).work();
    const std::vector<float> spikes(s.floats(), s.floats() + steps * elements);
    std::fill_n(v.floats(), elements, 0.0f);
    run.inference();
    if (std::memcmp(spikes.data(), s.bytes(), s.size()) != 0)
      user_error("the kernel and the plain loop give different spikes; run flexsn check lif");
  }

  static void check_training(const Data& gx, std::int64_t count, const std::function<void()>& ours,
                             const std::function<void()>& theirs) {
    theirs();
    const std::vector<float> expected(gx.floats(), gx.floats() + count);
    ours();
    for (std::int64_t i = 0; i < count; ++i)
      if (std::fabs(gx.floats()[i] - expected[static_cast<std::size_t>(i)]) > 1e-4)
        user_error("the kernel and the plain loops give different gradients; run flexsn check lif");
  }

  const Options options_;
  Pool pool_;
  Table table_;
};

// ---- a cold process ----------------------------------------------------------------------------------

constexpr const char* child_option = "--first-result";

/// What the child does: a small LIF inference, and the time since main was entered on its standard output.
void first_result(Clock::time_point entered) {
  const std::int64_t steps = 8, elements = 1024;
  const std::vector<float> x(static_cast<std::size_t>(steps * elements), 1.5f);
  std::vector<float> s(x.size());
  compile(neuron_named("lif")).bind({steps, {elements}}).in("x", x).out("s", s).inference();
  std::printf("%.9f %g\n", seconds_since(entered), static_cast<double>(s[0]));
}

struct ChildTimes {
  double inside = 0, whole = 0;
};

ChildTimes run_child() {
  int ends[2];
  if (pipe(ends) != 0) user_error("the benchmark cannot make a pipe: ", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  char program[] = "flexsn_cpu_bench";
  std::string option = child_option;
  char* const arguments[] = {program, option.data(), nullptr};
  const Clock::time_point start = Clock::now();
  pid_t child = 0;
  const int failed = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments, environ);
  close(ends[1]);
  posix_spawn_file_actions_destroy(&actions);
  char text[64] = {};
  std::size_t length = 0;
  for (ssize_t got; failed == 0 && length + 1 < sizeof text &&
                    (got = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
    length += static_cast<std::size_t>(got);
  close(ends[0]);
  int status = 0;
  if (failed != 0 || waitpid(child, &status, 0) != child || status != 0)
    user_error("the benchmark cannot run itself for a first result: ", std::strerror(failed));
  return {std::strtod(text, nullptr), seconds_since(start)};
}

void Bench::first_results() {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / join("flexsn_cpu_bench.", getpid());
  setenv("FLEXSN_CACHE_DIR", directory.c_str(), 1);
  struct Way {
    std::string name;
    std::optional<double> goal;
    Contender inside{"in main", {}}, whole{"the process", {}};
  };
  Way without{"no cache", 0.040}, empty{"empty disk cache", {}}, warm{"warm disk cache", 0.010};
  for (int round = 0; round < options_.rounds(21); ++round) {
    for (Way* way : {&without, &empty, &warm}) {
      setenv("FLEXSN_CACHE", way == &without ? "0" : "1", 1);
      if (way == &empty) std::filesystem::remove_all(directory);
      const ChildTimes times = run_child();
      way->inside.seconds.push_back(times.inside);
      way->whole.seconds.push_back(times.whole);
    }
  }
  std::filesystem::remove_all(directory);
  setenv("FLEXSN_CACHE", "0", 1);  // nothing of this process is kept
  for (const Way& way : {without, empty, warm})
    table_.add({join("graph to first result, cold process, ", way.name),
                Unit::milliseconds,
                way.inside.spread(),
                way.goal,
                true,
                {way.inside, way.whole}});
}

// ---- the machine and main ----------------------------------------------------------------------------

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string name, line;
  while (std::getline(info, line)) {
    for (const char* key : {"model name", "CPU implementer", "CPU part"})
      if (line.starts_with(key) && name.find(key) == std::string::npos)
        name += join(name.empty() ? "" : ", ", line.starts_with("model") ? "" : join(key, " "),
                     line.substr(std::min(line.find(':') + 2, line.size())));
    if (line.empty() && !name.empty()) break;
  }
  return name.empty() ? "unknown processor" : name;
}

#ifdef __clang__
constexpr const char* compiler = __VERSION__;
#else
constexpr const char* compiler = "GCC " __VERSION__;
#endif

Options parse(std::span<char*> words) {
  Options options;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--quick")
      options.quick = true;
    else if (word == "--out" && i + 1 < words.size())
      options.out = words[++i];
    else
      user_error("usage: flexsn_cpu_bench [--quick] [--out FILE.json], found '", word, "'");
  }
  return options;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) user_error("the benchmark cannot write ", path, "; give another path with --out");
}

int bench(std::span<char*> words, Clock::time_point entered) {
  if (words.size() == 2 && std::string_view(words[1]) == child_option) {
    first_result(entered);
    return 0;
  }
  const Options options = parse(words);
  if (const std::string why = cpu_absent(); !why.empty()) user_error(why);
  std::printf(
      "%s, %d cores, %s, %s%s\nfound: from medians of interleaved rounds; undisturbed: from the least "
      "times\n\n",
      processor_name().c_str(), default_thread_count(), compiler, cpu_compiler().c_str(),
      options.quick ? ", quick: small arrays, few rounds" : "");
  Bench bench(options);
  bench.first_results();
  bench.memory_bound();
  bench.training();
  bench.little_parallelism();
  bench.shapes(options.quick ? 1 << 23 : 1 << 25, 1.6);
  bench.shapes(1 << 20, {});
  bench.other_neurons_and_types();
  if (!options.out.empty())
    write_file(options.out, join("{\n  \"processor\": \"", processor_name(), "\",\n  \"cores\": ",
                                 bench.threads(), ",\n  \"compiler\": \"", compiler, "\",\n  \"llvm\": \"",
                                 cpu_compiler(), "\",\n  \"quick\": ", options.quick ? "true" : "false",
                                 ",\n  \"rows\": [\n", bench.json(), "\n  ]\n}\n"));
  return 0;
}

}  // namespace
}  // namespace flexsn

int main(int argc, char** argv) {
  const auto entered = flexsn::Clock::now();
  try {
    return flexsn::bench(std::span(argv, static_cast<std::size_t>(argc)), entered);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flexsn_cpu_bench: %s\n", error.what());
    return 1;
  }
}
