// docs/neurons.md and its pictures, written from the library itself; FLEXSN_UPDATE_DOCS=1 writes them anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "error.h"
#include "ir.h"

namespace flexsn {
namespace {

const std::string docs = FLEXSN_TESTS_DIR "/../docs/";

// ---- pictures --------------------------------------------------------------------------------------

/// What a picture shows: how many steps, and the input from a tenth of them on.
struct Shown {
  std::int64_t steps;
  double level;
};

Shown shown(const std::string& neuron) {
  const std::map<std::string, Shown> special = {{"if", {60, 0.3}},
                                                {"simple_if", {60, 0.3}},
                                                {"half_threshold_if", {60, 0.3}},
                                                {"activation_aware_if", {60, 0.3}},
                                                {"stbif", {60, 0.3}},
                                                {"ilif", {60, 2.3}},
                                                {"ottt_lif", {60, 0.7}},
                                                {"clif", {60, 0.8}},
                                                {"cuba_lif", {60, 0.09}},
                                                {"gated_lif", {60, 0.5}},
                                                {"qif", {60, 0.5}},
                                                {"eif", {60, 0.3}},
                                                {"izhikevich", {60, 0.8}},
                                                {"adex", {60, 1.3}},
                                                {"raf", {60, 0.75}},
                                                {"hodgkin_huxley", {1000, 10}},
                                                {"alif", {60, 1.6}}};
  const auto found = special.find(neuron);
  return found == special.end() ? Shown{60, 1.05} : found->second;
}

std::string decimal(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", number == 0 ? 0.0 : number);
  return text;
}

/// A line through `values`, in a band of the picture.
std::string line(const std::vector<double>& values, double top, double height, const char* color) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double span = *high > *low ? *high - *low : 1;
  std::string points;
  for (std::size_t t = 0; t < values.size(); ++t)
    points += join(t == 0 ? "" : " ",
                   decimal(60 + 560.0 * static_cast<double>(t) / static_cast<double>(values.size())), ",",
                   decimal(top + height * (1 - (values[t] - *low) / span)));
  return join("  <polyline fill=\"none\" stroke=\"", color, "\" stroke-width=\"1.5\" points=\"", points,
              "\"/>\n");
}

std::string label(const std::string& name, double y) {
  return join("  <text x=\"50\" y=\"", decimal(y), "\" text-anchor=\"end\">", name, "</text>\n");
}

/// The answer of a neuron to an input that is switched on: the input, its first state, its output.
std::string picture(const std::string& name) {
  const auto [steps, level] = shown(name);
  const Neuron neuron = neuron_named(name);
  Arguments arguments;
  arguments.state_sequences = true;
  std::vector<double> x(static_cast<std::size_t>(steps), 0);
  std::fill(x.begin() + steps / 10, x.end(), level);
  arguments.inputs["x"] = Array(Mem::f32, {steps, 1}, x);
  const Results results = run(neuron, arguments);
  const ir::Graph graph = neuron.graph();
  std::string state, output;
  for (auto argument = graph.arguments.rbegin(); argument != graph.arguments.rend(); ++argument)
    if (argument->role == ir::Role::state) state = argument->name;
  for (auto result = graph.results.rbegin(); result != graph.results.rend(); ++result)
    if (result->gives == ir::Gives::output) output = result->name;
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 190\" font-family=\"sans-serif\" "
      "font-size=\"14\" fill=\"#555\">\n";
  svg += label("x", 30) + line(x, 15, 25, "#999");
  svg += label(state, 100) + line(results.states.at(state).values(), 55, 70, "#1565c0");
  svg += label(output, 165) + line(results.outputs.at(output).values(), 140, 35, "#c62828");
  return svg + "</svg>\n";
}

// ---- the page ----------------------------------------------------------------------------------------

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(separator, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

bool can_be_learned(const std::string& neuron, const std::string& option, const std::string& preset) {
  try {
    neuron_named(join(neuron, ":", option, "=learnable:", preset));
    return true;
  } catch (const UserError&) {
    return false;
  }
}

std::string names_of(const ir::Graph& graph, ir::Role role) {
  std::string names;
  for (const ir::Argument& argument : graph.arguments)
    if (argument.role == role)
      names += join(
          names.empty() ? "" : ", ", "`", argument.name, "`",
          argument.initial != 0 && role == ir::Role::state ? join(" (starts at ", argument.initial, ")") : "",
          argument.per_step ? " (one a step)" : "");
  return names;
}

std::string section(const NeuronInfo& info) {
  const ir::Graph graph = neuron_named(info.name).graph();
  std::string doc = info.doc;
  doc[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(doc[0])));
  const std::string function = info.name == "if" ? "if_" : info.name;  // which is a word of C++ itself
  std::string text =
      join("## ", info.python, "\n\n", doc, ". In C++ `neurons::", function, "`, on the command line `",
           info.name, "`.\n\n![the answer to a step](neurons/", info.name, ".svg)\n\n```\n", info.equations,
           "\n```\n\nStates: ", names_of(graph, ir::Role::state), ".");
  if (const std::string params = names_of(graph, ir::Role::param); !params.empty())
    text += join(" Parameters: ", params, ".");
  text += "\n";
  const std::vector<std::string> options = split(info.options, ',');
  if (!options.empty()) text += "\n| option | default | may be | learnable |\n|---|---|---|---|\n";
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::size_t equals = options[i].find('=');
    const std::string name = options[i].substr(0, equals), preset = options[i].substr(equals + 1);
    text += join("| `", name, "` | ", preset, " | ", info.allowed[i], " | ",
                 can_be_learned(info.name, name, preset) ? "yes" : "", " |\n");
  }
  return text + "\n";
}

std::string page() {
  std::string text =
      "# Neurons and surrogates\n\n"
      "The tests write this page and its pictures from the library; run them with `FLEXSN_UPDATE_DOCS=1` to\n"
      "write them anew.\n\n"
      "Each neuron is defined once and offered three times:\n\n"
      "```\n"
      "flexsn.neurons.LIFNode(tau=3.0, v_reset=None, surrogate_function=flexsn.surrogate.ATan())   # Python\n"
      "flexsn::neurons::lif({.tau = 3, .v_reset = std::nullopt, .surrogate = surrogate::atan()})   // C++\n"
      "flexsn show lif:tau=3,v_reset=none,surrogate=atan                                           # command "
      "line\n"
      "```\n\n"
      "x is the input, h the potential that x has charged, s the spike, v the potential after it. Where an\n"
      "equation does not say otherwise,\n\n"
      "```\n"
      "s = Theta(h - v_threshold)         Theta(u) is 1 where u >= 0, else 0; its gradient is the "
      "surrogate's\n"
      "v = h - v_threshold s              with v_reset none, the soft reset; v_threshold > 0\n"
      "v = v_reset s + (1 - s) h          with a number, the hard reset; v starts there, else at 0\n"
      "```\n\n"
      "With `detach_reset` no gradient goes through the s of the reset. In Python an option is an argument "
      "of the\n"
      "same name, `None` stands for none, and `surrogate` is `surrogate_function`, which may be any function "
      "of a\n"
      "tensor. An option that is learnable may be a tensor or a parameter in Python, a scalar or of any "
      "shape\n"
      "that broadcasts to a step's, as (C, 1, 1) for one of each channel; in C++ it is `learnable(2)`, on "
      "the\n"
      "command line `tau=learnable:2`. Neurons that are not here, and why, are in [scope.md](scope.md).\n\n"
      "A picture shows the input, the first state and the output.\n\n";
  for (const NeuronInfo& info : neuron_list()) text += section(info);
  text +=
      "# Surrogates\n\n"
      "u is the distance to threshold. The smooth function is what a spike is with `spiking=False`\n"
      "(`surrogate=sigmoid:spiking=false`). A spike of multi_level_spike_count is round(clamp(u, 0,\n"
      "max_spike_count)), of all others Theta(u). In Python they are classes of `flexsn.surrogate`: Sigmoid, "
      "ATan,\n"
      "PiecewiseQuadratic (triangle), Rect (rectangle), SuperSpike, ...\n\n"
      "| surrogate | options | gradient | smooth function |\n|---|---|---|---|\n";
  for (const SurrogateInfo& info : surrogate_list()) {
    const auto cell = [](std::string formula) {
      for (std::size_t bar = 0; (bar = formula.find('|', bar)) != std::string::npos; bar += 2)
        formula.replace(bar, 1, "\\|");
      return formula.empty() ? "none" : formula;
    };
    text += join("| `", info.name, "` | ", info.options, " | ", cell(info.derivative), " | ",
                 cell(info.smooth), " |\n");
  }
  return text;
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

TEST(Pages, NeuronsAndTheirPicturesAreUpToDate) {
  std::map<std::string, std::string> files = {{"neurons.md", page()}};
  for (const NeuronInfo& info : neuron_list()) files["neurons/" + info.name + ".svg"] = picture(info.name);
  if (std::getenv("FLEXSN_UPDATE_DOCS")) {
    std::filesystem::remove_all(docs + "neurons");
    std::filesystem::create_directories(docs + "neurons");
    for (const auto& [path, text] : files) std::ofstream(docs + path) << text;
  }
  for (const auto& [path, text] : files)
    EXPECT_EQ(read(docs + path), text) << path << ": run this test with FLEXSN_UPDATE_DOCS=1";
  std::size_t pictures = 0;
  for (const auto& entry : std::filesystem::directory_iterator(docs + "neurons"))
    pictures += entry.is_regular_file();
  EXPECT_EQ(pictures, neuron_list().size()) << "a picture of no neuron";
}

}  // namespace
}  // namespace flexsn
