// The ways of running a case that must give the same bits, each beside the interpreter.
#pragma once

#include <array>
#include <functional>

#include "differential_case.h"

namespace flexsn::fuzz {

/// text: printed and read back; passes: every pass alone and in a row; plans: every way of saving, run by the
/// interpreter; chunks: the sequence in two calls; cpu: machine code; cuda: the CUDA text compiled for the
/// host; triton and torch: a Python process that reads the case.
enum class Stage : std::uint8_t { text, passes, plans, chunks, cpu, cuda, triton, torch };
inline constexpr std::array all_stages = {Stage::text, Stage::passes, Stage::plans,  Stage::chunks,
                                          Stage::cpu,  Stage::cuda,   Stage::triton, Stage::torch};
const char* name_of(Stage stage);

/// Something broken on purpose, to see that it is found: what is done to a graph after simplify in the stage
/// of passes, and before kernels are made of it.
struct Faults {
  using Change = std::function<ir::Graph(const ir::Graph&)>;
  Change simplified = [](const ir::Graph& graph) { return graph; };
  Change kernel = [](const ir::Graph& graph) { return graph; };
};

/// What a run gave, by name: "output y", "state v", "gradient x".
using Outcome = std::map<std::string, Array>;

/// What the interpreter gives: the law. Throws where the case is not legal.
Outcome law(const Case& one);

class PythonWorker;

/// Runs stages; it holds the Python process that some need, once one was asked for.
class Stages {
 public:
  /// `python` runs `script`, for the stages triton and torch.
  Stages(std::string python, std::string script, Faults faults = {});
  ~Stages();

  /// Why this machine cannot run a stage; "" where it can.
  std::string absent(Stage stage);

  struct Verdict {
    std::string difference = "";  ///< in words; "" where there is none
    int comparisons = 0;          ///< ways of running that were compared
  };
  /// Whatever a stage throws is a difference: the law took the case.
  Verdict run(Stage stage, const Case& one, const Outcome& expected);

  bool in_children = false;  ///< every stage in a process of its own: slower, but a crash is a difference

 private:
  Verdict run_here(Stage stage, const Case& one, const Outcome& expected) const;

  PythonWorker& worker();

  std::string python_, script_;
  Faults faults_;
  std::unique_ptr<PythonWorker> worker_;
};

}  // namespace flexsn::fuzz
