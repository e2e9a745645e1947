// What the pages say is true: their examples are the ones that run.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "flexsn/flexsn.h"

namespace flexsn {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(std::string(FLEXSN_TESTS_DIR) + "/../" + path);
  EXPECT_TRUE(file.good()) << path;
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

/// The text between `begin` and `end`, without `indent` at the start of its lines.
std::string between(const std::string& text, const std::string& begin, const std::string& end,
                    const std::string& indent = "") {
  const std::size_t from = text.find(begin);
  EXPECT_NE(from, std::string::npos) << begin;
  const std::size_t to = text.find(end, from + begin.size());
  std::string part = text.substr(from + begin.size(), to - from - begin.size()), out;
  for (std::size_t line = 0; line < part.size();) {
    const std::size_t stop = std::min(part.find('\n', line), part.size() - 1) + 1;
    const std::string one = part.substr(line, stop - line);
    out += one.starts_with(indent) ? one.substr(indent.size()) : one;
    line = stop;
  }
  return out;
}

TEST(Pages, ReadmeExampleIsTheOneThatRuns) {
  const std::string shown = between(read("README.md"), "```cpp\n", "```");
  EXPECT_EQ(shown, between(read("examples/readme.cpp"), "// README: begin\n", "  // README: end", "  "));
}

TEST(Pages, ReadmeNeuronIsLif) {
  const std::string text = between(read("README.md"), "```\nneuron", "```");
  const Neuron lif = parse_neuron("neuron" + text, "README.md");
  for (const Check& c : check(lif)) EXPECT_TRUE(c.passed) << c.what << c.detail;
  const Simulation simulation{.steps = 50, .inputs = {{"", "noise:1"}}};
  EXPECT_EQ(simulate(lif, simulation), simulate(neuron_named("lif"), simulation));
}

TEST(Pages, LanguageExampleIsLegal) {
  const std::string text = between(read("docs/fsn.md"), "```\nneuron", "```");
  for (const Check& c : check(parse_neuron("neuron" + text, "fsn.md")))
    EXPECT_TRUE(c.passed) << c.what << c.detail;
}

TEST(Pages, ContributingShowsTheRealRow) {
  const std::string row = between(read("CONTRIBUTING.md"), "```cpp\n", "```");
  EXPECT_NE(read("include/flexsn/ops.def").find(row), std::string::npos) << row;
}

TEST(Pages, ReadmeErrorIsTheRealOne) {
  try {
    show(neuron("alif", [](Step& s) {
      auto v = s.state("v");
      s.next(v, v > 0);
    }));
    FAIL();
  } catch (const UserError& error) {
    std::string shown = between(read("README.md"), "    neuron 'alif'", " (alif.cpp", "    ");
    for (char& c : shown) c = c == '\n' ? ' ' : c;
    EXPECT_NE(std::string(error.what()).find(shown), std::string::npos) << error.what() << "\n" << shown;
  }
}

}  // namespace
}  // namespace flexsn
