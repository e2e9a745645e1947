// Differential fuzzing: random neurons on random data through every stage and backend, bit for bit.
//
//   flexsn_differential [--seed S] [--first K] [--count N] [--seconds N] [--stages LIST] [--out FOLDER]
//                       [--python PROGRAM] [--most-tries N] [--children 1]
//
// A stage of the list may be followed by /N: it takes every Nth case, as in "passes,cpu,cuda/50". What
// differs is made as small as it can be, printed, and written to FOLDER as an .fsn file.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "differential_shrink.h"
#include "differential_stages.h"
#include "error.h"

namespace flexsn::fuzz {
namespace {

constexpr const char* usage =
    "usage: flexsn_differential [--seed S] [--first K] [--count N] [--seconds N] [--stages LIST]\n"
    "                           [--out FOLDER] [--python PROGRAM] [--most-tries N]\n"
    "                           [--children 1]\n"
    "stages: text, passes, plans, chunks, cpu, cuda, triton, torch; /N behind one takes every Nth case\n";

struct Chosen {
  Stage stage;
  std::uint64_t every = 1;
};

struct Options {
  std::uint64_t seed = 1, first = 0, count = 0;  ///< a count of 0: until the time is over
  double seconds = 0;                            ///< 0: until the count is reached
  std::vector<Chosen> stages = {};
  std::string out = "differential";
  std::string python = FLEXSN_PYTHON;
  int most_tries = 2000;
  bool children = false;
};

[[noreturn]] void refuse(const std::string& text) {
  std::cerr << text << '\n' << usage;
  std::exit(2);
}

double number_in(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || !(number >= 0))
    refuse(join(name, " must be a number that is not negative, found '", text, "'"));
  return number;
}

std::vector<Chosen> stages_in(const std::string& list) {
  std::vector<Chosen> chosen;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const std::size_t slash = word.find('/');
    const std::string name = word.substr(0, slash);
    const auto found = std::find_if(all_stages.begin(), all_stages.end(),
                                    [&](Stage stage) { return name == name_of(stage); });
    if (found == all_stages.end()) refuse(join("there is no stage '", name, "'"));
    const double every = slash == word.npos ? 1 : number_in("the N of STAGE/N", word.substr(slash + 1));
    if (every < 1) refuse("the N of STAGE/N must be at least 1");
    chosen.push_back({*found, static_cast<std::uint64_t>(every)});
  }
  return chosen;
}

Options options_of(int count, char** words) {
  Options options;
  std::string stages = "text,passes,plans,chunks,cpu";
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i];
    if (i + 1 == count) refuse(join("'", name, "' needs a value"));
    const std::string value = words[i + 1];
    const auto whole = [&] { return static_cast<std::uint64_t>(number_in(name, value)); };
    if (name == "--seed")
      options.seed = whole();
    else if (name == "--first")
      options.first = whole();
    else if (name == "--count")
      options.count = whole();
    else if (name == "--seconds")
      options.seconds = number_in(name, value);
    else if (name == "--stages")
      stages = value;
    else if (name == "--out")
      options.out = value;
    else if (name == "--python")
      options.python = value;
    else if (name == "--children")
      options.children = whole() != 0;
    else if (name == "--most-tries")
      options.most_tries = static_cast<int>(whole());
    else
      refuse(join("there is no option '", name, "'"));
  }
  options.stages = stages_in(stages);
  if (options.count == 0 && options.seconds == 0) options.count = 1000;
  return options;
}

/// The command that repeats what is running, for when it crashes.
char running[256];

void tell_crash(int signal) {
  const std::string_view told = "\nit crashed; repeat: ";
  const bool written = write(2, told.data(), told.size()) > 0 &&
                       write(2, running, std::strlen(running)) > 0 && write(2, "\n", 1) > 0;
  _exit(written ? 128 + signal : 255);
}

class Fuzzing {
 public:
  explicit Fuzzing(Options options)
      : options_(std::move(options)), stages_(options_.python, FLEXSN_BACKENDS_SCRIPT) {
    stages_.in_children = options_.children;
  }

  int run() {
    std::erase_if(options_.stages, [&](const Chosen& chosen) {
      const std::string why = stages_.absent(chosen.stage);
      if (!why.empty()) std::cout << "left out: the stage " << name_of(chosen.stage) << " (" << why << ")\n";
      return !why.empty();
    });
    figures_.resize(options_.stages.size());
    double shown = 0;
    for (std::uint64_t k = 0; options_.count == 0 || k < options_.count; ++k) {
      if (options_.seconds > 0 && elapsed() > options_.seconds) break;
      try_case(options_.first + k);
      constexpr double progress_every = 10;
      if (elapsed() - shown < progress_every) continue;
      shown = elapsed();
      std::printf("%llu neurons, %.0f s, %.1f a second, %d differences\n",
                  static_cast<unsigned long long>(neurons_), shown, static_cast<double>(neurons_) / shown,
                  differences_);
      std::fflush(stdout);
    }
    report();
    return differences_ > 0 ? 1 : 0;
  }

 private:
  struct Figures {
    std::uint64_t neurons = 0, comparisons = 0;
    int differences = 0;
    double seconds = 0;
  };

  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  void try_case(std::uint64_t number) {
    const Case one = draw_case(options_.seed, number);
    ++neurons_;
    trained_ += one.trains();
    Outcome expected;
    try {
      expected = law(one);
    } catch (const std::exception& error) {
      ++differences_;
      std::cout << "case " << number << " is refused by the interpreter: " << error.what() << "\n"
                << as_text(one) << std::endl;
      return;
    }
    for (std::size_t i = 0; i < options_.stages.size(); ++i) {
      const auto [stage, every] = options_.stages[i];
      if (number % every != 0) continue;
      const double before = elapsed();
      std::snprintf(running, sizeof running, "%s", command(number, stage).c_str());
      const Stages::Verdict verdict = stages_.run(stage, one, expected);
      figures_[i].neurons += verdict.comparisons > 0;
      figures_[i].comparisons += static_cast<std::uint64_t>(verdict.comparisons);
      if (!verdict.difference.empty()) {
        ++differences_;
        ++figures_[i].differences;
        tell(number, stage, one, verdict.difference);
      }
      figures_[i].seconds += elapsed() - before;
    }
  }

  std::string command(std::uint64_t number, Stage stage) const {
    return join("flexsn_differential --seed ", options_.seed, " --first ", number, " --count 1 --stages ",
                name_of(stage));
  }

  void tell(std::uint64_t number, Stage stage, const Case& one, const std::string& difference) {
    const auto verdict_of = [&](const Case& tried) {
      try {
        return stages_.run(stage, tried, law(tried)).difference;
      } catch (const UserError&) {
        return std::string();  // what is left is no case
      }
    };
    const Shrunk shrunk =
        shrink(one, [&](const Case& tried) { return !verdict_of(tried).empty(); }, options_.most_tries);
    const std::string text = join("# stage ", name_of(stage), ": ", verdict_of(shrunk.smallest), "\n",
                                  as_text(shrunk.smallest), "# repeat: ", command(number, stage), "\n");
    std::filesystem::create_directories(options_.out);
    const std::filesystem::path path = std::filesystem::path(options_.out) /
                                       join("seed", options_.seed, "_", number, "_", name_of(stage), ".fsn");
    std::ofstream(path) << text;
    std::cout << "\ncase " << number << " differs in stage " << name_of(stage) << ": " << difference
              << "\nmade smaller in " << shrunk.tries << " tries, from " << ir::op_count(one.graph) << " to "
              << ir::op_count(shrunk.smallest.graph) << " ops, and written to " << path.string() << "\n"
              << text << std::endl;
  }

  void report() const {
    const double seconds = elapsed();
    std::printf(
        "\nseed %llu, cases %llu to %llu: %llu neurons, %llu of them trained, %.1f a second\n",
        static_cast<unsigned long long>(options_.seed), static_cast<unsigned long long>(options_.first),
        static_cast<unsigned long long>(options_.first + neurons_), static_cast<unsigned long long>(neurons_),
        static_cast<unsigned long long>(trained_), static_cast<double>(neurons_) / seconds);
    std::printf("%-8s %10s %12s %12s %9s\n", "stage", "neurons", "comparisons", "differences", "seconds");
    for (std::size_t i = 0; i < figures_.size(); ++i)
      std::printf("%-8s %10llu %12llu %12d %9.0f\n", name_of(options_.stages[i].stage),
                  static_cast<unsigned long long>(figures_[i].neurons),
                  static_cast<unsigned long long>(figures_[i].comparisons), figures_[i].differences,
                  figures_[i].seconds);
  }

  Options options_;
  Stages stages_;
  std::vector<Figures> figures_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::uint64_t neurons_ = 0, trained_ = 0;
  int differences_ = 0;
};

}  // namespace
}  // namespace flexsn::fuzz

int main(int count, char** words) {
  // Kernels are not kept, and CUDA is a driver that compiles and runs its text on the host: even numbers of
  // elements by the code for many, odd ones by that for few.
  setenv("FLEXSN_CACHE", "0", 1);
  setenv("FLEXSN_CUDA_DRIVER", FLEXSN_FAKE_CUDA, 1);
  setenv("FLEXSN_NVRTC", FLEXSN_FAKE_CUDA, 1);
  setenv("FLEXSN_FAKE_RUNS", "1", 1);
  setenv("FLEXSN_CUDA_SHAPE", "entry=wide", 1);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(signal, flexsn::fuzz::tell_crash);
  return flexsn::fuzz::Fuzzing(flexsn::fuzz::options_of(count, words)).run();
}
