// The program flexsn as its users meet it: standard output, standard error and exit code of whole calls.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "executable.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

const std::string examples = FLEXSN_TESTS_DIR "/../examples/";
const std::string corpus = FLEXSN_TESTS_DIR "/corpus/";

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void save(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

struct Finished {
  int code;  ///< -1 when a signal ended the program
  std::string out, err;
};

/// Runs the program in a directory of its own, which is empty at first.
class Cli : public ::testing::Test {
 protected:
  Cli() {
    std::string name = (fs::temp_directory_path() / "flexsn_cli_XXXXXX").string();
    home_ = mkdtemp(name.data());
    fs::create_directory(directory());
    setenv("FLEXSN_CACHE_DIR", (home_ / "kernels").c_str(), 1);  // the user's own stay as they are
  }
  ~Cli() override { fs::remove_all(home_); }

  fs::path directory() const { return home_ / "directory"; }

  Finished run(const Words& words, const std::string& input = "") const {
    return run_in_child(words, input, [] {});
  }

  /// `prepare` runs in the child, before the program starts.
  template <class Prepare>
  Finished run_in_child(const Words& words, const std::string& input, Prepare prepare) const {
    save(home_ / "in", input);
    const pid_t child = fork();
    if (child == 0) {
      redirect(0, "in", O_RDONLY);
      redirect(1, "out", O_WRONLY | O_CREAT | O_TRUNC);
      redirect(2, "err", O_WRONLY | O_CREAT | O_TRUNC);
      if (chdir(directory().c_str()) != 0) _exit(126);
      prepare();
      Words all = words;
      all.insert(all.begin(), FLEXSN_CLI_PATH);
      std::vector<char*> arguments;
      for (std::string& word : all) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(home_ / "out"), content(home_ / "err")};
  }

  /// The output of a call that must succeed without a word on standard error.
  std::string output(const Words& words, const std::string& input = "") const {
    const Finished finished = run(words, input);
    EXPECT_EQ(finished.code, 0) << ::testing::PrintToString(words) << finished.err;
    EXPECT_EQ(finished.err, "") << ::testing::PrintToString(words);
    return finished.out;
  }

  json parsed(const Words& words, const std::string& input = "") const {
    return json::parse(output(words, input));
  }

  /// A call that must fail: nothing on standard output, one text that holds `part` on standard error.
  void expect_error(int code, const Words& words, const std::string& part,
                    const std::string& input = "") const {
    SCOPED_TRACE(::testing::PrintToString(words));
    const Finished finished = run(words, input);
    EXPECT_EQ(finished.code, code);
    EXPECT_EQ(finished.out, "");
    EXPECT_EQ(finished.err.find("flexsn: "), 0u) << finished.err;
    EXPECT_EQ(finished.err.find('\n'), finished.err.size() - 1) << finished.err;
    EXPECT_NE(finished.err.find(part), std::string::npos) << finished.err;
  }

 private:
  void redirect(int handle, const char* name, int flags) const {
    const int file = open((home_ / name).c_str(), flags, 0600);
    if (file < 0 || dup2(file, handle) < 0) _exit(126);
  }

  fs::path home_;
};

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The cells below the header of a CSV text.
std::vector<std::vector<float>> cells_of(const std::string& csv) {
  std::vector<std::vector<float>> rows;
  const Words lines = lines_of(csv);
  for (std::size_t i = 1; i < lines.size(); ++i) {
    std::istringstream stream(lines[i]);
    rows.emplace_back();
    for (std::string cell; std::getline(stream, cell, ',');) rows.back().push_back(std::stof(cell));
  }
  return rows;
}

TEST_F(Cli, VersionAndHelp) {
  EXPECT_EQ(output({"--version"}).find("flexsn "), 0u);
  const std::string help = output({"--help"});
  for (const char* command : {"list", "show", "explain", "simulate", "check", "bench", "cache", "doctor"}) {
    EXPECT_NE(help.find(std::string("\n  ") + command + " "), std::string::npos) << command;
    const std::string own = output({command, "--help"});
    EXPECT_NE(own.find(std::string("Usage: flexsn ") + command), std::string::npos) << own;
    EXPECT_NE(own.find(std::string("Example: flexsn ") + command), std::string::npos) << own;
    for (const std::string& line : lines_of(own)) EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST_F(Cli, ExamplesOfTheHelpRun) {
  save(directory() / "my_neuron.fsn", content(examples + "lif.fsn"));
  for (const char* command : {"list", "show", "explain", "simulate", "check", "bench", "cache", "doctor"}) {
    const std::string help = output({command, "--help"});
    std::istringstream example(help.substr(help.find("Example: flexsn ") + 16));
    Words words;
    for (std::string word; example >> word;) words.push_back(word);
    if (words[0] == "bench") words = {"bench", "lif", "--N", "1000"};
    if (words[0] == "bench" && !parsed({"list", "targets", "--json"}).at(1).at("available")) continue;
    EXPECT_NE(output(words), "");
  }
  EXPECT_EQ(lines_of(content(directory() / "klif.csv")).size(), 201u);
}

TEST_F(Cli, ListsFitTheScreenAndAgreeWithTheirJson) {
  const std::pair<const char*, const char*> lists[] = {
      {"ops", "with_grad"}, {"neurons", "lif"}, {"surrogates", "s2nn"}, {"targets", "interpreter"}};
  for (const auto& [what, member] : lists) {
    const std::string text = output({"list", what});
    for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 100u) << line;
    bool found = false;
    for (const json& entry : parsed({"list", what, "--json"})) {
      const std::string name = entry.at("name");
      EXPECT_NE(text.find("\n" + name + " "), std::string::npos) << name;
      found |= name == member;
    }
    EXPECT_TRUE(found) << member;
  }
  EXPECT_NE(output({"list", "neurons"}).find("v_threshold=1, v_reset=0"), std::string::npos);
  const std::string surrogates = output({"list", "surrogates"});
  for (const char* part :
       {"beta=1: a number above 0", "n=2: a whole number from 2 to 64", "c=0.01: a number of at least 0",
        "grad_max=none: a number of at least grad_min, or none", "(alpha / 2) / (1 + (pi alpha u / 2)^2)",
        "smooth: sigmoid(alpha u)", "no smooth function", "no options"})
    EXPECT_NE(surrogates.find(part), std::string::npos) << part;
}

TEST_F(Cli, ShowReadsBackWhatItPrints) {
  Words neurons = {"if", "lif", "lif:tau=3,v_reset=none", "plif", "alif", "izhikevich", "adex"};
  for (const std::string& folder : {examples, corpus})
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".fsn") neurons.push_back(entry.path().string());
  ASSERT_GT(neurons.size(), 10u);
  for (const std::string& neuron : neurons) {
    const bool in_corpus = neuron.starts_with(corpus);  // where some carry no gradient
    for (const char* stage : {"step", "simplified", "expanded", "joint"}) {
      if (in_corpus && std::string_view(stage) == "joint") continue;
      const std::string text = output({"show", neuron, "--stage", stage});
      const std::string canonical = output({"show", neuron, "--stage", stage, "--canonical"});
      EXPECT_EQ(output({"show", "-", "--canonical"}, text), canonical) << neuron << " " << stage;
      EXPECT_EQ(output({"show", "-", "--canonical"}, canonical), canonical) << neuron << " " << stage;
      EXPECT_EQ(output({"show", "-"}, text), text) << neuron << " " << stage;
      if (std::string_view(stage) == "simplified") {
        EXPECT_NE(output({"check", "-"}, text).find(": all passed"), std::string::npos) << neuron;
      }
    }
  }
}

TEST_F(Cli, ShowFollowsItsOptions) {
  EXPECT_NE(output({"show", "lif", "--stage", "joint"}).find("grad of x = "), std::string::npos);
  expect_error(1, {"show", corpus + "/integers.fsn", "--stage", "joint"}, "can carry a gradient");
  EXPECT_NE(output({"show", "lif", "--dtype", "f64"}).find("input x : f64"), std::string::npos);
  EXPECT_NE(output({"show", "lif", "--dtype=bf16"}).find("round_bf16"), std::string::npos);
  EXPECT_NE(output({"show", "lif", "--stage", "expanded"}).find("neuron lif expanded {"), std::string::npos);
  EXPECT_EQ(output({"show", "lif", "--canonical"}).find("neuron {"), 0u);
  EXPECT_NE(output({"show", examples + "lif.fsn", "--locations"}).find("lif.fsn\":12\n"), std::string::npos);
  EXPECT_NE(output({"show", "lif:tau=3"}), output({"show", "lif"}));
  const json shown = parsed({"show", "lif", "--stage", "simplified", "--json"});
  EXPECT_EQ(shown.at("neuron"), "lif");
  EXPECT_EQ(shown.at("stage"), "simplified");
  EXPECT_EQ(shown.at("text"), output({"show", "lif", "--stage", "simplified"}));
}

TEST_F(Cli, FilesAreToldFromNames) {
  const std::string mine = content(examples + "plateau.fsn");
  save(directory() / "lif",
       mine);  // a built-in neuron comes before a file of that name, unless it has a slash
  EXPECT_EQ(output({"show", "lif"}).find("neuron lif {"), 0u);
  EXPECT_EQ(output({"show", "./lif"}).find("neuron plateau {"), 0u);
  save(directory() / "mine", mine);
  EXPECT_EQ(output({"show", "mine"}).find("neuron plateau {"), 0u);
  fs::create_directory(directory() / "plif");
  EXPECT_EQ(output({"show", "plif"}).find("neuron plif {"), 0u);
  EXPECT_EQ(output({"show", "-"}, mine), output({"show", "./lif"}));
}

TEST_F(Cli, Explain) {
  EXPECT_EQ(output({"explain", examples + "plateau.fsn"}).find("neuron plateau\n"), 0u);
  const json explained = parsed({"explain", "plif", "--dtype", "f16", "--json"});
  EXPECT_EQ(explained.at("neuron"), "plif");
  EXPECT_EQ(explained.at("inference").at("kernels").at(0).at("read_per_step"), 2);
  EXPECT_GT(explained.at("hoisted_ops"), 0);
  EXPECT_EQ(explained.at("text"), output({"explain", "plif", "--dtype", "f16"}));
  const json training = parsed({"explain", "lif", "--T", "8", "--N", "4194304", "--json"}).at("training");
  EXPECT_LE(training.at("passes"), 5.3);
  EXPECT_EQ(training.at("launches"), 2);
  EXPECT_EQ(training.at("checkpoints"), json::array({"v"}));
  EXPECT_GE(training.at("ratio"), 1.0);
  const json tight = parsed({"explain", "lif", "--budget", "4", "--json"}).at("training");
  EXPECT_EQ(tight.at("saved").at(0).at("name"), "saved_h");
  EXPECT_EQ(tight.at("kept_alive_per_step"), 4);
  EXPECT_NE(output({"explain", "lif", "--costs", "gpu"})
                .find("on a GPU\n  inference_final_state: 2 elements a thread, 8 steps loaded at once"),
            std::string::npos);
  // Memory is the limit of a simple neuron, arithmetic that of one with many exponentials.
  const auto limit_of_backward = [&](const std::string& neuron) {
    const std::string text = output({"explain", neuron, "--costs", "gpu"}), before = "bytes: ";
    const std::size_t at = text.find(before, text.rfind("  backward: ")) + before.size();
    return text.substr(at, text.find(" is the limit where an H200 has time for", at) - at);
  };
  EXPECT_EQ(limit_of_backward("lif"), "memory");
  EXPECT_EQ(limit_of_backward("hodgkin_huxley"), "arithmetic");
  const auto on_gpu = [&](const std::string& elements) {
    return output({"explain", "lif", "--costs", "gpu", "--N", elements});
  };
  EXPECT_NE(on_gpu("1000001").find("backward: 1 element a thread (1000001 is not a multiple of 2), 16 steps "
                                   "loaded at once and later ones early, 128 threads a block, "),
            std::string::npos);
  EXPECT_NE(on_gpu("256").find("backward: 1 element a thread (there would be few blocks), "),
            std::string::npos);
  const json gpu = parsed({"explain", "lif", "--costs", "gpu", "--json"}).at("gpu");
  ASSERT_EQ(gpu.size(), 3u);
  EXPECT_EQ(gpu.at(2).at("kernel"), "backward");
  EXPECT_EQ(gpu.at(2).at("steps_at_once"), 8);
  EXPECT_LT(gpu.at(2).at("instructions"), gpu.at(2).at("most_instructions"));
  const Finished asked = run_in_child({"explain", "lif", "--costs", "gpu"}, "",
                                      [] { setenv("FLEXSN_CUDA_SHAPE", "unroll=4,threads=64", 1); });
  EXPECT_NE(asked.out.find("inference_final_state: 2 elements a thread, 4 steps loaded at once, 64 threads"),
            std::string::npos);
  EXPECT_NE(asked.out.find("4 steps loaded at once, 64 threads a block with 8192 bytes of shared memory for"),
            std::string::npos);
  EXPECT_NE(
      asked.out.find("cut as FLEXSN_CUDA_SHAPE asks: unroll=4,threads=64; steps between checkpoints stay"),
      std::string::npos);
  EXPECT_TRUE(parsed({"explain", corpus + "/integers.fsn", "--json"}).contains("untrainable"));
  expect_error(1, {"explain", "lif", "--budget", "1"}, "at least 4 bytes must stay");
  for (const char* n : {"1", "3"}) expect_error(1, {"explain", "lif", "--segment", n}, "2 to 1024");
  expect_error(1, {"explain", "lif", "--wanted", "xx"}, "no argument 'xx'");
  expect_error(1, {"show", "lif", "--stage", "joint", "--arriving", "z"}, "no output 'z'");
  expect_error(2, {"explain", "lif", "--budget", "much"}, "--budget must be a number of bytes");
  expect_error(2, {"explain", "lif", "--costs", "tpu"}, "--costs must be cpu, gpu or bytes, found 'tpu'");
  expect_error(2, {"explain", "lif", "--save", "all"}, "--save must be automatic, everything");
  expect_error(2, {"explain", "lif", "--T", "-1"}, "--T must be a whole number from 0");
}

TEST_F(Cli, ExplainWithShapes) {
  const json channels =
      parsed({"explain", "plif", "--shape", "64,32,8", "--param-shape", "w=32,1", "--json"});
  EXPECT_EQ(channels.at("elements"), 64 * 32 * 8);
  EXPECT_EQ(channels.at("shape"), json({64, 32, 8}));
  EXPECT_EQ(channels.at("params").at(0).at("name"), "w");
  EXPECT_EQ(channels.at("params").at(0).at("shape"), json({32, 1}));
  EXPECT_EQ(channels.at("params").at(0).at("bytes"), 32 * 4);
  EXPECT_EQ(channels.at("params").at(0).at("expanded"), 0);
  const json spread = parsed({"explain", "plif", "--shape", "4,2,3", "--param-shape", "w=4,1,3", "--json"});
  EXPECT_EQ(spread.at("params").at(0).at("expanded"), 24 * 4);
  EXPECT_EQ(spread.at("inference").at("kernels").at(0).at("kernel"), "expand w");
  EXPECT_EQ(spread.at("inference").at("kernels").at(0).at("written"), 24 * 4);
  EXPECT_EQ(parsed({"explain", "lif", "--N", "6", "--shape", "2,3", "--json"}).at("elements"), 6);
  EXPECT_EQ(parsed({"explain", "lif", "--json"}).at("shape"), json({1048576}));
  expect_error(1, {"explain", "lif", "--N", "5", "--shape", "2,3"},
               "5 elements are asked for, but the step's shape [2, 3] has 6; give one of the two");
  expect_error(1, {"explain", "plif", "--shape", "2,3", "--param-shape", "w=2"}, "does not broadcast");
  expect_error(1, {"explain", "plif", "--param-shape", "v=3"}, "there is no param 'v'");
  expect_error(2, {"explain", "lif", "--shape", "2,-3"}, "--shape must be whole numbers from 0");
  expect_error(2, {"explain", "lif", "--shape", "2,,3"}, "with commas between them, found '2,,3'");
  expect_error(2, {"explain", "plif", "--param-shape", "w"}, "--param-shape must be NAME=DIMS");
  expect_error(2, {"explain", "plif", "--param-shape", "w=x"},
               "the shape in --param-shape w=x must be whole numbers");
  expect_error(2, {"explain", "plif", "--param-shape", "w=1", "--param-shape", "w=1"}, "given twice for 'w'");
}

TEST_F(Cli, CheckComparesGradientsAndPlans) {
  const json checked =
      parsed({"check", "lif", "lif:surrogate=super_spike", corpus + "/integers.fsn", "--json"});
  for (const int neuron : {0, 1}) {
    std::map<std::string, std::string> details;
    for (const json& check : checked.at(neuron).at("checks")) details[check.at("what")] = check.at("detail");
    EXPECT_NE(details.at("gradients agree with differences").find("384 compared"), std::string::npos)
        << details.at("gradients agree with differences");
    EXPECT_EQ(details.at("plan 'rebuilt' keeps every bit, segments of 2"), "off by 0; 1, 7, 16 steps");
    EXPECT_EQ(details.at("plan 'everything saved' keeps every bit"), "off by 0; 1, 7, 16 steps");
  }
  std::string all;
  for (const json& check : checked.at(2).at("checks")) all += check.at("detail").get<std::string>() + "\n";
  EXPECT_NE(all.find("none: "), std::string::npos) << all;
  const std::string digest = output({"check", "lif", "--digest"});
  EXPECT_EQ(digest, output({"check", "lif", "--digest"}));
  EXPECT_EQ(nlohmann::json::parse(output({"check", "lif", "--digest", "--json"}))[0]["digest"],
            digest.substr(0, 64));
  EXPECT_EQ(digest.size(), 64 + std::string("  lif\n").size());
  EXPECT_NE(digest.substr(0, 64), output({"check", "lif:tau=3", "--digest"}).substr(0, 64));
  // The same on every machine: emulated aarch64 and x86-64 agree on it.
  EXPECT_EQ(digest.substr(0, 64), "183f45e9a2fa310e2d93d4638ab18aa2d891c3501e31b83fd0184e00d44619d0");
}

TEST_F(Cli, ShowsCode) {
  EXPECT_NE(output({"show", "lif", "--emit", "llvm", "--kind", "backward"}).find("define "),
            std::string::npos);
  EXPECT_NE(output({"show", "lif", "--emit", "cuda", "--kind", "backward"}).find("void lif_backward("),
            std::string::npos);
  const json targets = parsed({"list", "targets", "--json"});
  EXPECT_EQ(targets.at(1).at("name"), "cpu");
  if (targets.at(1).at("available")) {
    EXPECT_NE(output({"show", "lif", "--emit", "asm"}).find("flexsn_step"), std::string::npos);
  }
  expect_error(2, {"show", "lif", "--emit", "ir"},
               "--emit must be llvm, asm, ptx, cuda or triton, found 'ir'");
  expect_error(2, {"show", "lif", "--emit", "llvm", "--stage", "plan"},
               "--stage and --emit cannot be joined");
  expect_error(2, {"show", "lif", "--emit", "llvm", "--canonical"}, "they have no meaning with --emit");
}

TEST_F(Cli, ShowsPtxWhereThereIsNvrtc) {
  const Words words = {"show", "lif", "--emit", "ptx", "--kind", "forward"};
  const auto with = [&](const std::string& nvrtc) {
    return run_in_child(words, "", [&] { setenv("FLEXSN_NVRTC", nvrtc.c_str(), 1); });
  };
  const Finished none = with("/nowhere/libnvrtc.so");
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("there is no NVRTC"), std::string::npos) << none.err;
  const std::string nvrtc = FLEXSN_NVRTC_LIBRARY;
  if (nvrtc.empty()) GTEST_SKIP() << "NVRTC was not found; tools/venv.sh installs it";
  const Finished made = with(nvrtc);
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.out.find(".visible .entry flexsn_wide"), std::string::npos) << made.out;
  EXPECT_EQ(made.out.find('\0'), std::string::npos);
  // Tests on the host run integers in place of these instructions.
  for (const auto& [type, instructions] : {std::pair{"f16", Words{"cvt.f32.f16 ", "cvt.rn.f16.f32 "}},
                                           std::pair{"bf16", Words{"cvt.rn.bf16.f32 "}}}) {
    const Finished half = run_in_child({"show", "lif", "--emit", "ptx", "--kind", "forward", "--dtype", type},
                                       "", [&] { setenv("FLEXSN_NVRTC", nvrtc.c_str(), 1); });
    for (const std::string& instruction : instructions)
      EXPECT_NE(half.out.find(instruction), std::string::npos)
          << type << " without " << instruction << half.err;
  }
}

TEST_F(Cli, EveryTargetHasTheSameDigest) {
  const auto on_gpu = [&](const Words& words) {
    return run_in_child(words, "", [] {
      setenv("FLEXSN_CUDA_DRIVER", FLEXSN_FAKE_CUDA, 1);
      setenv("FLEXSN_NVRTC", FLEXSN_FAKE_CUDA, 1);
      setenv("FLEXSN_FAKE_RUNS", "1", 1);
    });
  };
  const std::string law = output({"check", "plif", "--digest", "--target", "interpreter"});
  EXPECT_EQ(law, output({"check", "plif", "--digest"}));
  const Finished found = on_gpu({"check", "plif", "--digest", "--target", "cuda"});
  EXPECT_EQ(found.out, law) << found.err;
  const Finished checked = on_gpu({"check", "plif"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_NE(checked.out.find("cuda training has the interpreter's bits"), std::string::npos) << checked.out;
  expect_error(1, {"check", "lif", "--digest", "--target", "gpu"},
               "there is no target 'gpu'; there are interpreter, cpu and cuda");
  expect_error(2, {"check", "lif", "--target", "cuda"},
               "--target is for --digest: without it every target that is here is checked");
}

TEST_F(Cli, ExportWritesEveryFormat) {
  const std::string triton = output({"export", "lif", "--format", "triton"});
  EXPECT_NE(triton.find("@triton.jit"), std::string::npos);
  EXPECT_NE(triton.find("class "), std::string::npos);
  EXPECT_NE(triton.find("\n# Planned with --costs gpu.\n"), std::string::npos);
  const std::string planned = output({"show", "plif", "--emit", "triton", "--costs", "bytes", "--budget", "5",
                                      "--save", "rebuild", "--segment", "4", "--sequences", "--wanted", "w"});
  EXPECT_NE(planned.find("\n# Planned with --costs bytes --budget 5 --save rebuild --segment 4 --sequences "
                         "--wanted w.\n"),
            std::string::npos);
  EXPECT_EQ(output({"export", "lif", "-o", "lif.py"}), "");
  EXPECT_EQ(content(directory() / "lif.py"), triton) << "the name of the file says which format";
  EXPECT_NE(output({"export", "lif", "--format", "cuda", "--kind", "backward"}).find("void lif_backward("),
            std::string::npos);
  const std::string text = output({"export", "plif", "--format", "fsn"});
  EXPECT_EQ(output({"show", "-", "--canonical"}, text).find("neuron {"), 0u);
  for (const auto& [format, head] : {std::pair{"triton", "# lif:tau=3\n"}, {"cuda", "// lif:tau=3\n"}})
    EXPECT_EQ(output({"export", "lif:tau=3", "--format", format}).find(head), 0u) << "which lif it is";
}

TEST_F(Cli, WrongExports) {
  for (const Words& words : {Words{"export", "lif"}, {"export", "lif", "-o", "lif.txt"}})
    expect_error(2, words,
                 "--format is missing: triton, cuda or fsn; it can be left out where -o names a file that "
                 "ends in .py, .cu or .fsn");
  expect_error(2, {"export", "lif", "--format", "tritn"},
               "--format must be triton, cuda or fsn, found 'tritn' (did you mean 'triton'?)");
  for (const char* format : {"triton", "fsn"})
    expect_error(2, {"export", "lif", "--format", format, "--kind", "forward"},
                 "--kind is for --format cuda, which is one kernel; leave it out");
  expect_error(2, {"export", "lif", "--format", "cuda", "--kind", "forwards"},
               "--kind must be inference, inference_final_state, forward or backward, found 'forwards'");
  expect_error(2, {"show", "lif", "--emit", "triton", "--kind", "forward"},
               "--kind has no meaning with --emit triton: the module holds all kinds");
  expect_error(2, {"export", "lfi", "--format", "fsn"}, "there is no built-in neuron 'lfi'");
  expect_error(1, {"export", "lif", "--format", "fsn", "-o", "nowhere/lif.fsn"}, "cannot be written");
}

TEST_F(Cli, BenchMeasuresTraining) {
  if (!parsed({"list", "targets", "--json"}).at(1).at("available")) GTEST_SKIP() << "no CPU kernels here";
  const json measured = parsed({"bench", "plif", "--T", "3", "--N", "100", "--json"});
  ASSERT_EQ(measured.at("work").size(), 3u);
  for (const json& work : measured.at("work")) EXPECT_GT(work.at("ms"), 0);
  EXPECT_EQ(parsed({"bench", corpus + "/integers.fsn", "--N", "10", "--json"}).at("work").size(), 1u);
  EXPECT_NE(output({"bench", "lif", "--N", "10", "--dtype", "f16"}).find("of the copy's speed"),
            std::string::npos);
}

TEST_F(Cli, KernelsCanBeHadWithoutOptimization) {
  if (!parsed({"list", "targets", "--json"}).at(1).at("available")) GTEST_SKIP() << "no CPU kernels here";
  const auto kept_after = [&](const char* optimize) {
    const Words words = {"bench", "lif", "--T", "2", "--N", "100"};
    const Finished finished = run_in_child(words, "", [&] { setenv("FLEXSN_OPTIMIZE", optimize, 1); });
    EXPECT_EQ(finished.code, 0) << finished.err;
    return parsed({"cache", "info", "--json"}).at("entries").get<int>();
  };
  const int kernels = kept_after("1");
  EXPECT_EQ(kept_after(""), kernels) << "an empty variable is none";
  EXPECT_EQ(kept_after("0"), 2 * kernels) << "other code, other entries";
  const Finished refused = run_in_child({"bench", "lif"}, "", [] { setenv("FLEXSN_OPTIMIZE", "fast", 1); });
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("FLEXSN_OPTIMIZE must be 0 or 1, found 'fast'"), std::string::npos)
      << refused.err;
}

TEST_F(Cli, CacheSaysWhatIsKeptAndRemovesIt) {
  if (!parsed({"list", "targets", "--json"}).at(1).at("available")) GTEST_SKIP() << "no CPU kernels here";
  output({"check", "if"});
  const json info = parsed({"cache", "info", "--json"});
  EXPECT_EQ(info.at("usable"), true);
  EXPECT_GT(info.at("entries"), 0);
  EXPECT_NE(output({"cache", "info"}).find(info.at("directory").get<std::string>()), std::string::npos);
  EXPECT_EQ(output({"cache", "clear"}).find("removed "), 0u);
  EXPECT_EQ(parsed({"cache", "info", "--json"}).at("entries"), 0);
  expect_error(2, {"cache", "empty"}, "what to do must be info or clear, found 'empty'");
  expect_error(2, {"cache"}, "`flexsn cache` needs what to do: info or clear");
}

TEST_F(Cli, ShowsTheHalvesAndThePlans) {
  const std::string forward = output({"show", "plif", "--stage", "forward", "--save", "everything"});
  EXPECT_EQ(output({"show", "-"}, forward), forward);
  EXPECT_NE(forward.find("output saved_"), std::string::npos);
  const std::string backward = output({"show", "plif", "--stage", "backward", "--save", "everything"});
  EXPECT_EQ(output({"show", "-"}, backward), backward);
  EXPECT_NE(output({"show", "lif", "--stage", "backward"}).find("neuron lif_rebuild {"), std::string::npos);
  const std::string plans = output({"show", "lif", "--stage", "plan"});
  EXPECT_EQ(plans, output({"show", "lif", "--stage", "plan", "--kind", "forward"}) +
                       output({"show", "lif", "--stage", "plan", "--kind", "backward"}));
  for (const char* kind : {"inference", "inference_final_state"})
    EXPECT_EQ(output({"show", corpus + "/integers.fsn", "--stage", "plan", "--kind", kind})
                  .find(std::string("plan ") + kind),
              0u);
  expect_error(2, {"show", "lif", "--budget", "4"}, "they have no meaning for --stage step");
  expect_error(2, {"show", "lif", "--stage", "plan", "--kind", "inference", "--wanted", "x"},
               "they have no meaning for --kind inference");
  expect_error(1, {"explain", "lif", "--save", "per_step", "--segment", "8"}, "there are no checkpoints");
  expect_error(2, {"show", "lif", "--kind", "forward"}, "give --stage plan with it");
  expect_error(2, {"show", "lif", "--stage", "plan", "--kind", "train"}, "--kind must be inference");
}

TEST_F(Cli, SimulateGivesTheSpikesOfAPlainLoop) {
  for (const std::string& neuron : {std::string("lif"), examples + "lif.fsn"}) {
    const std::string csv = output({"simulate", neuron, "--input", "step:1.5", "--T", "50"});
    EXPECT_EQ(csv.substr(0, 8), "t,x,s,v\n");
    const auto rows = cells_of(csv);
    ASSERT_EQ(rows.size(), 50u);
    int spikes = 0;
    float v = 0;
    for (int t = 0; t < 50; ++t) {
      const float h = v + (1.5f - v) / 2, s = h >= 1;
      v = s ? 0 : h;
      spikes += s == 1;
      EXPECT_EQ(rows[t], (std::vector<float>{float(t), 1.5f, s, v})) << neuron;
    }
    EXPECT_EQ(spikes, 25) << neuron;
    EXPECT_EQ(output({"simulate", neuron, "--T", "50"}), csv) << "the default input is step:1.5";
  }
}

TEST_F(Cli, SimulateDrivesInputsByName) {
  const auto rows = cells_of(output({"simulate", examples + "plateau.fsn", "--input", "drive=step:0.375",
                                     "--input", "context=step:1:20", "--param", "fade=0.5", "--T", "60"}));
  ASSERT_EQ(rows.size(), 60u);
  float v = 0, plateau = 0, spikes = 0;
  int resting = 0;
  for (int t = 0; t < 60; ++t) {
    const float context = t >= 20;
    plateau = context > 0.5f ? 1 : plateau * 0.5f;
    const float current = resting > 0 ? 0 : 0.375f * std::fma(plateau, 2.0f, 1.0f);
    const float h = std::fma(v, 0.8f, current), spike = h - 1 >= 0;
    v = spike == 1 ? 0 : h;
    resting = spike == 1 ? 3 : std::max(resting - 1, 0);
    spikes += spike;
    EXPECT_EQ(rows[t],
              (std::vector<float>{float(t), 0.375f, context, spike, plateau, v, plateau, float(resting)}));
  }
  EXPECT_GT(spikes, 10);
  EXPECT_LT(spikes, 20);
}

TEST_F(Cli, SimulateReadsSignalsFromFiles) {
  save(directory() / "current.csv", "x,other\n0.5,9\n1.5,9\n2,9\n");
  const auto rows = cells_of(output({"simulate", "if", "--input", "current.csv", "--T", "3", "--N", "2"}));
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[1], (std::vector<float>{0, 1, 0.5f, 0, 0.5f}));
  EXPECT_EQ(rows[4], (std::vector<float>{2, 0, 2, 1, 0}));
  EXPECT_EQ(output({"simulate", "if", "--T", "0"}), "t,x,s,v\n");
}

TEST_F(Cli, SimulateWritesWholeFiles) {
  const std::string csv = output({"simulate", "lif", "--T", "1"});
  EXPECT_EQ(output({"simulate", "lif", "--T", "1", "--csv", "a.csv"}), "wrote 1 row to a.csv\n");
  EXPECT_EQ(content(directory() / "a.csv"), csv);
  EXPECT_EQ(output({"simulate", "lif", "--T", "1", "--csv", "-"}), csv);

  fs::permissions(directory() / "a.csv", fs::perms(0640));
  fs::create_symlink("a.csv", directory() / "link.csv");
  EXPECT_EQ(output({"simulate", "lif", "--T", "3", "--N", "2", "--csv", "link.csv"}),
            "wrote 6 rows to link.csv\n");
  EXPECT_TRUE(fs::is_symlink(directory() / "link.csv"));
  EXPECT_EQ(lines_of(content(directory() / "a.csv")).size(), 7u);
  EXPECT_EQ(fs::status(directory() / "a.csv").permissions(), fs::perms(0640));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory()), {}), 2);
}

// A pipe stands for all that cannot be replaced: no test may put a real device at risk.
TEST_F(Cli, SimulateWritesIntoAPipeRatherThanReplacingIt) {
  const fs::path path = directory() / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDWR | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_EQ(output({"simulate", "lif", "--T", "1", "--csv", "pipe"}), "wrote 1 row to pipe\n");
  char buffer[100] = {};
  EXPECT_GT(read(reader, buffer, sizeof buffer - 1), 0);
  close(reader);
  EXPECT_EQ(std::string(buffer), "t,x,s,v\n0,1.5,0,0.75\n");
  EXPECT_TRUE(fs::is_fifo(path));
}

TEST_F(Cli, AFileThatCannotBeWrittenStaysAsItWas) {
  save(directory() / "a.csv", "old");
  const Finished finished = run_in_child({"simulate", "lif", "--T", "2000", "--csv", "a.csv"}, "", [] {
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
  });
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.out, "");
  EXPECT_EQ(finished.err.find("flexsn: the file 'a.csv' cannot be written: "), 0u) << finished.err;
  EXPECT_EQ(content(directory() / "a.csv"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory()), {}), 1);
}

TEST_F(Cli, CheckReportsEveryNeuron) {
  const std::string text = output({"check", "lif", examples + "plateau.fsn", "--seed", "5"});
  EXPECT_NE(text.find("seed 5"), std::string::npos);
  EXPECT_NE(text.find(" of 2 neurons: all passed"), std::string::npos) << text;
  const json checked = parsed({"check", "lif", "plif", "--dtype", "f16", "--json"});
  ASSERT_EQ(checked.size(), 2u);
  EXPECT_EQ(checked[1].at("neuron"), "plif");
  EXPECT_EQ(checked[1].at("passed"), true);
  EXPECT_GE(checked[1].at("checks").size(), 5u);
  EXPECT_EQ(checked[1].at("checks")[0].at("what"), "legal");
  // What cannot be run here is not said to have passed.
  std::size_t left_out = 0;
  for (const json& check : checked[1].at("checks")) {
    left_out += check.at("left_out").get<bool>() ? 1 : 0;
    if (check.at("left_out")) {
      EXPECT_NE(check.at("what").get<std::string>().find("cuda"), std::string::npos);
    }
  }
  EXPECT_EQ(left_out, flexsn::cuda_absent().empty() ? 0u : 1u);
  const bool said = text.find(", 2 left out\n") != std::string::npos;
  EXPECT_EQ(said, left_out == 1) << text;
}

TEST_F(Cli, CheckGoesOnPastAnIllegalNeuron) {
  save(directory() / "bad.fsn", "neuron bad {\n  state v : f32\n}\n");
  const Finished text = run({"check", "bad.fsn", "lif"});
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.out.find("FAILED  neuron 'bad': state 'v' is never updated"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("\nlif\n"), std::string::npos);
  EXPECT_NE(text.out.find(": 1 failed"), std::string::npos);
  EXPECT_NE(text.err.find("flexsn: 1 of "), std::string::npos) << text.err;
  const Finished finished = run({"check", "-", "--json"}, "neuron {");
  EXPECT_EQ(finished.code, 1);
  const json checked = json::parse(finished.out);
  EXPECT_EQ(checked[0].at("passed"), false);
  EXPECT_EQ(checked[0].at("checks")[0].at("detail"),
            "<stdin>:1:9: the text ends inside the neuron; close it with }");
}

TEST_F(Cli, DoctorLooksWithoutFailing) {
  const json report = parsed({"doctor", "--json"});
  EXPECT_EQ("flexsn " + report.at("version").get<std::string>() + "\n", output({"--version"}));
  for (const char* key : {"system", "processor", "compiler"})
    EXPECT_FALSE(report.at(key).get<std::string>().empty()) << key;
  EXPECT_EQ(report.at("targets")[0].at("name"), "interpreter");
  EXPECT_EQ(report.at("targets")[2].at("name"), "cuda");
  if (!report.at("targets")[2].at("available")) {
    EXPECT_EQ(report.at("targets")[2].at("note").get<std::string>().find("there are no CUDA kernels: "), 0u);
  }
  ASSERT_GE(report.at("needs").size(), 3u);
  const Finished bare = run_in_child({"doctor"}, "", [] { setenv("PATH", "/nowhere", 1); });
  EXPECT_EQ(bare.code, 0);
  EXPECT_EQ(bare.err, "");
  EXPECT_NE(bare.out.find("not found; install Python 3"), std::string::npos) << bare.out;
  const auto with_nvrtc = [&](const std::string& path) {
    return run_in_child({"doctor", "--json"}, "", [&] { setenv("FLEXSN_NVRTC", path.c_str(), 1); }).out;
  };
  for (const std::string said : {"/nowhere/nvrtc, which is not there", "/dev/null, which cannot be loaded: ",
                                 "libm.so.6, which has no function nvrtcVersion"})
    EXPECT_NE(with_nvrtc(said.substr(0, said.find(','))).find("names " + said), std::string::npos) << said;
}

TEST_F(Cli, AClosedPipeIsNoError) {
  const Finished finished = run_in_child({"list", "ops"}, "", [] {
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], 1) < 0) _exit(126);
    close(ends[0]);
    close(ends[1]);
  });
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.err, "");
}

TEST_F(Cli, AFullDiskIsAnError) {
  const Finished finished = run_in_child({"list", "ops"}, "", [] {
    if (dup2(open("/dev/full", O_WRONLY), 1) < 0) _exit(126);
  });
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.err.find("flexsn: standard output cannot be written: "), 0u) << finished.err;
}

TEST_F(Cli, WrongCommandsAndOptions) {
  expect_error(2, {},
               "a command is missing: list, show, export, explain, simulate, check, bench, cache or doctor");
  expect_error(2, {"shwo", "lif"}, "there is no command 'shwo'");
  expect_error(2, {"shwo", "lif"}, "did you mean 'show'?");
  expect_error(
      2, {"lif"},
      "there is no command 'lif'; the commands are list, show, export, explain, simulate, check, bench, "
      "cache and doctor");
  expect_error(2, {"--jsn"}, "`flexsn` has no option '--jsn'");
  expect_error(2, {"--json", "list", "ops"}, "options of a command follow it");
  expect_error(2, {"show", "lif", "--stge", "step"}, "`flexsn show` has no option '--stge'");
  expect_error(2, {"show", "--stge=step", "lif"}, "did you mean '--stage'?");
  expect_error(2, {"list", "--jsn"}, "did you mean '--json'?");
  expect_error(2, {"simulate", "lif", "--json"}, "`flexsn simulate` has no option '--json'");
  expect_error(2, {"list"}, "`flexsn list` needs what to list: ops, neurons, surrogates or targets");
  for (const char* command : {"show", "explain", "simulate", "check"})
    expect_error(2, {command}, std::string("`flexsn ") + command + "` needs a neuron: an .fsn file, '-'");
  expect_error(2, {"show", "lif", "if"}, "`flexsn show` has no use for 'if'");
  expect_error(2, {"doctor", "lif"}, "`flexsn doctor` has no use for 'lif'");
  expect_error(2, {"show", "lif", "--stage"}, "--stage needs a value after it");
  expect_error(2, {"show", "lif", "--stage", ""}, "--stage: the value is empty");
  expect_error(2, {"check", "lif", "--seed", "1", "--seed", "2"}, "--seed is given more than once");
  expect_error(2, {"check", "-", "-"}, "'-' is given twice; standard input is read once");
}

TEST_F(Cli, WrongValues) {
  expect_error(2, {"list", "op"},
               "must be ops, neurons, surrogates or targets, found 'op' (did you mean 'ops'?)");
  expect_error(2, {"show", "lif", "--stage", "expnded"},
               "--stage must be step, simplified, expanded, joint, forward, backward or plan, found "
               "'expnded' (did you "
               "mean 'expanded'?)");
  expect_error(2, {"show", "lif", "--dtype", "fp16"},
               "--dtype must be f32, f64, f16 or bf16, found 'fp16' (did you mean 'f16'?)");
  expect_error(2, {"explain", "lif", "--dtype", "i32"}, "--dtype must be f32, f64, f16 or bf16, found 'i32'");
  expect_error(2, {"show", "lif", "--canonical", "--locations"}, "the canonical text has no locations");
  expect_error(2, {"show", "izhikevic"},
               "there is no built-in neuron 'izhikevic' (did you mean 'izhikevich'?)");
  expect_error(2, {"check", "lif", "nothing"}, "there is no built-in neuron 'nothing'");
  expect_error(2, {"explain", "lif:taus=3"}, "there is no option 'taus' (did you mean 'tau'?)");
  expect_error(2, {"show", "lif:tau=-1"}, "option tau must be a number above 1, found '-1'");
  expect_error(2, {"show", "alif:tau=1"}, "option tau must be a number above 1, found '1'");
  expect_error(2, {"check", "lif", "--seed", "-1"},
               "--seed must be a whole number of at least 0, found '-1'");
  expect_error(
      2, {"show", "lif:surrogate=poisson_pass"},
      "there is no surrogate 'poisson_pass': its spikes are random, and a step draws no random numbers");
  for (const char* command : {"show", "explain", "simulate", "check"})
    expect_error(2, {command, examples + "lif.fsn", "--dtype", "f64"},
                 "a text names the types of its arguments");
}

TEST_F(Cli, ANeuronOfSequencesOfOneLengthRunsSo) {
  const auto rows = [&](const Words& words) { return lines_of(output(words)).size() - 1; };
  EXPECT_EQ(rows({"simulate", "gated_lif:init_tau=0.5,T=4"}), 4u);
  EXPECT_EQ(rows({"simulate", "gated_lif:T=20", "--T", "20"}), 20u);
  EXPECT_EQ(rows({"simulate", "gated_lif"}), 100u);
  // Where its linear decay starts follows from T.
  EXPECT_EQ(output({"simulate", "gated_lif", "--T", "9"}), output({"simulate", "gated_lif:T=9", "--T", "9"}));
  EXPECT_EQ(parsed({"explain", "gated_lif:T=5", "--json"}).at("steps"), 5);
  expect_error(2, {"explain", "gated_lif:T=4", "--T", "20"}, "which --T says is 20, found '4'");
  expect_error(2, {"bench", "gated_lif:T=4", "--T", "20"}, "which --T says is 20, found '4'");
}

TEST_F(Cli, WrongSimulations) {
  const auto wrong = [&](int code, Words words, const std::string& part) {
    words.insert(words.begin(), "simulate");
    expect_error(code, words, part);
  };
  const char* const learnable = "lif:tau=learnable:2";
  wrong(2, {"lif", "--T", "ten"}, "--T must be a whole number from 0 to 1000000000, found 'ten'");
  wrong(2, {"lif", "--T", "-5"}, "found '-5'");
  wrong(2, {"lif", "--N", "0"}, "--N must be a whole number from 1 to");
  wrong(2, {"lif", "--N", "1.5"}, "found '1.5'");
  wrong(2, {"lif", "--T", "1000000", "--N", "1000000"}, "--T times --N is the number of rows");
  wrong(2, {"gated_lif:T=4", "--T", "20"},
        "neuron 'gated_lif': option T must be the number of steps, which --T says is 20, found '4'");
  wrong(2, {"gated_lif:init_tau=0.5,T=0"}, "option T must be a whole number of at least 1, found '0'");
  wrong(2, {"lif", "--input", "sine:3"}, "expected step:LEVEL[:START]");
  wrong(2, {"lif", "--input", "step:high"}, "'high' is not a number");
  wrong(2, {"lif", "--input", "step:1", "--input", "y=step:1"}, "there is no input 'y'");
  wrong(2, {"lif", "--input", "=step:1"}, "--input must be SPEC or NAME=SPEC, found '=step:1'");
  wrong(2, {"lif", "--input", "step:1", "--input", "step:2"}, "--input is given twice for all inputs");
  wrong(2, {"lif", "--input", "x=step:1", "--input", "x=step:2"}, "--input is given twice for 'x'");
  wrong(2, {examples + "plateau.fsn", "--input", "drive=step:1"}, "input 'context' has no signal");
  wrong(2, {learnable, "--param", "tau"}, "--param must be NAME=VALUE with a number as value, found 'tau'");
  wrong(2, {learnable, "--param", "tau=fast"}, "found 'tau=fast'");
  wrong(2, {learnable, "--param", "beta=3"}, "there is no param 'beta'");
  wrong(2, {learnable, "--param", "tau=-1"}, "outside its range");
  wrong(2, {learnable, "--param", "tau=2", "--param", "tau=3"}, "--param is given twice for 'tau'");
  wrong(1, {"lif", "--input", "nowhere.csv"}, "nowhere.csv': the file cannot be read");
  save(directory() / "short.csv", "1\n2\n");
  wrong(1, {"lif", "--input", "short.csv", "--T", "3"},
        "the file has 2 rows of numbers, but 3 steps are asked for");
  wrong(1, {"lif", "--csv", "nowhere/a.csv"},
        "the file 'nowhere/a.csv' cannot be written: No such file or directory");
  wrong(1, {"lif", "--csv", "."}, "cannot be written: it is a directory");
}

TEST_F(Cli, WrongFiles) {
  fs::create_directory(directory() / "folder.fsn");
  save(directory() / "binary.fsn", "neuron \xff {}");
  save(directory() / "typo.fsn", "neuron n {\n  input x : f32\n  %y = aad %x, 1\n  output y = %y\n}\n");
  for (const char* command : {"show", "explain", "simulate", "check"}) {
    expect_error(1, {command, "nowhere.fsn"},
                 "the file 'nowhere.fsn' cannot be read: No such file or directory");
    expect_error(1, {command, "folder.fsn"}, "the file 'folder.fsn' cannot be read: Is a directory");
  }
  expect_error(1, {"check", "lif", "no/where"}, "the file 'no/where' cannot be read");
  expect_error(1, {"show", "/dev/zero"}, "holds more than 64 MiB");
  for (const char* command : {"show", "explain", "simulate"}) {
    expect_error(1, {command, "binary.fsn"}, "binary.fsn:1:8: the text is not UTF-8");
    expect_error(1, {command, "typo.fsn"}, "typo.fsn:3:8: unknown op 'aad' (did you mean 'add'?)");
    expect_error(1, {command, "-"}, "<stdin>:1:1: expected 'neuron'", "");
    expect_error(1, {command, "-"}, "state 'v' is never updated", "neuron bad {\n  state v : f32\n}\n");
  }
}

}  // namespace
