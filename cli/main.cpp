// The program `flexsn`: reads the command line, runs one command, and turns errors into texts and exit codes.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>

#include "cli.h"
#include "error.h"
#include "flexsn/flexsn.h"

namespace {

using cli::Outcome;
using cli::Request;

struct Command {
  const char* name;
  const char* doc;
  const char* needs;  ///< what is missing when its argument is
  const char* example;
  Outcome (*run)(const Request& request);
};

constexpr const char* a_neuron =
    "a neuron: an .fsn file, '-' for standard input, or a built-in name such as lif (`flexsn list neurons`)";

const Command commands[] = {
    {"list", "List the ops, the built-in neurons, the surrogates or the targets",
     "what to list: ops, neurons, surrogates or targets", "flexsn list neurons", cli::list},
    {"show", "Print a neuron as .fsn text, at any stage of the compiler", a_neuron,
     "flexsn show lif:tau=3,v_reset=none --stage expanded", cli::show},
    {"export", "Write a neuron as a file that others read: a Triton module, CUDA C++, .fsn text", a_neuron,
     "flexsn export plif --format triton -o plif_triton.py", cli::export_neuron},
    {"explain", "Say what runs of a neuron will do: ops, kernels, traffic, what is saved and why", a_neuron,
     "flexsn explain plif --T 8 --N 4194304 --budget 5", cli::explain},
    {"simulate", "Run a neuron over time and give every step as a row of CSV", a_neuron,
     "flexsn simulate klif --input ramp:0:3 --param k=2 --T 200 --csv klif.csv", cli::simulate},
    {"check", "Verify neurons, and that the compiler keeps every bit of their results", a_neuron,
     "flexsn check my_neuron.fsn lif --seed 7", cli::check},
    {"bench", "Measure a neuron on this machine, beside a copy of the bytes it must move", a_neuron,
     "flexsn bench lif --T 8 --N 4194304", cli::bench},
    {"cache", "Say what compiled kernels are kept on disk, or remove them", "what to do: info or clear",
     "flexsn cache info", cli::cache},
    {"doctor", "Say what this machine offers and what is missing for the rest", "", "flexsn doctor",
     cli::doctor},
};

/// CLI11 knows the options; the values are read by the commands, whose errors say what was expected.
class Arguments {
 public:
  Arguments() {
    const auto formatter = std::dynamic_pointer_cast<CLI::Formatter>(app.get_formatter());
    formatter->column_width(28);
    formatter->label("SUBCOMMAND", "COMMAND");
    formatter->label("Positionals", "Arguments");
    formatter->label("REQUIRED", "");
    app.set_version_flag("--version", "flexsn " + std::string(flexsn::version()),
                         "Print the version and exit");
    app.require_subcommand(0, 1);
    app.footer(
        "`flexsn COMMAND --help` explains a command.\nExample: flexsn simulate lif --input step:1.5 --T 20");
    for (const Command& command : commands) {
      CLI::App* sub = app.add_subcommand(command.name, command.doc)->group("Commands");
      sub->footer(std::string("Example: ") + command.example);
      add_options(*sub, command.name);
    }
  }

  CLI::App app{"flexsn: a compiler for spiking neurons", "flexsn"};
  Request request;

 private:
  void add_options(CLI::App& sub, std::string_view name) {
    if (name == "list")
      sub.add_option("WHAT", request.what, "ops, neurons, surrogates or targets")->required();
    if (name == "cache") sub.add_option("WHAT", request.what, "info or clear")->required();
    if (name == "check") neuron(sub.add_option("FILE|NAME", request.neurons));
    if (name == "show" || name == "export" || name == "explain" || name == "simulate" || name == "bench")
      neuron(sub.add_option_function<std::string>(
          "FILE|NAME", [this](const std::string& word) { request.neurons = {word}; }));
    if (name == "show" || name == "export" || name == "explain" || name == "simulate" || name == "check" ||
        name == "bench")
      text(sub, "--dtype", request.dtype, "TYPE",
           "Type a built-in neuron is traced for: f32 (default), f64, f16, bf16");
    if (name == "show") {
      text(sub, "--stage", request.stage, "STAGE",
           "step (default), simplified, expanded, joint (with gradients),\n"
           "forward, backward (its halves), or plan (of its kernels)");
      text(sub, "--kind", request.kind, "KIND",
           "With --stage plan or --emit: inference, inference_final_state,\n"
           "forward or backward; by default the two of training, or inference");
      text(sub, "--emit", request.emit, "CODE",
           "The code instead: llvm, asm, ptx or cuda (a kernel), triton (a module)");
      sub.add_flag("--canonical", request.canonical, "Without names: equal texts mean the same neuron");
      sub.add_flag("--locations", request.locations, "With the line each op was written on");
    }
    if (name == "export") {
      text(
          sub, "--format", request.format, "FORMAT",
          "triton (a Python module), cuda (C++ of one kernel) or fsn;\nby default what the file's name says");
      text(sub, "-o,--output", request.output, "FILE", "Write there instead of standard output");
      text(sub, "--kind", request.kind, "KIND",
           "With --format cuda: inference, inference_final_state (default),\nforward or backward");
    }
    if (name == "simulate") {
      many(sub, "--input", request.inputs, "[NAME=]SPEC",
           "Signal of one input, or of all that are not named:\n"
           "step:LEVEL[:START], ramp:FROM:TO, noise:SEED[:LOW:HIGH] or FILE.csv;\n"
           "step:1.5 where the option is not given");
      many(sub, "--param", request.params, "NAME=VALUE", "Value of a parameter");
      text(sub, "--T", request.steps, "STEPS", "Number of time steps: 100 by default");
      text(sub, "--N", request.elements, "ELEMENTS", "Number of neurons: 1 by default");
      text(sub, "--csv", request.csv, "FILE", "Write there instead of standard output");
    }
    if (name == "bench") {
      text(sub, "--T", request.steps, "STEPS", "Number of time steps: 8 by default");
      text(sub, "--N", request.elements, "ELEMENTS", "Number of neurons: 1048576 by default");
    }
    if (name == "explain") {
      text(sub, "--T", request.steps, "STEPS", "Number of time steps: 16 by default");
      text(sub, "--N", request.elements, "ELEMENTS", "Number of neurons: 1048576 by default");
      text(sub, "--shape", request.shape, "DIMS",
           "Shape of a step instead of its number of neurons: 64,32,32");
      many(sub, "--param-shape", request.param_shapes, "NAME=DIMS",
           "Shape of a parameter, tau=32,1; one that changes with time\nhas T in front");
      sub.add_flag("--given-states", request.given_states,
                   "States come from memory and their gradients are wanted");
    }
    if (name == "show" || name == "export" || name == "explain" || name == "bench") {
      many(sub, "--wanted", request.wanted, "NAME", "Argument whose gradient is wanted; by default all");
      many(sub, "--arriving", request.arriving, "NAME", "Output that has a gradient; by default all");
      text(sub, "--budget", request.budget, "BYTES",
           "Most bytes kept from forward to backward per element and\nstep, inputs that are read again "
           "included");
      text(sub, "--costs", request.costs, "MODEL",
           "What arithmetic costs beside memory: cpu (default; of code for a\nGPU gpu), gpu or bytes "
           "(nothing)");
      text(sub, "--save", request.save, "HOW", "automatic (default), everything, per_step or rebuild");
      text(sub, "--segment", request.segment, "STEPS", "Steps between checkpoints, a power of two");
      sub.add_flag("--sequences", request.sequences, "Calls give every state, not only the last");
    }
    if (name == "check")
      sub.add_flag("--digest", request.digest, "Print one line that is the same on every machine");
    if (name == "check")
      text(sub, "--target", request.target, "TARGET",
           "With --digest: interpreter, cpu or cuda; by default cpu\nwhere it is there");
    if (name == "check") text(sub, "--seed", request.seed, "NUMBER", "Seed of the random data: 0 by default");
    if (name != "simulate" && name != "export") sub.add_flag("--json", request.json, "Print one JSON value");
  }

  /// An empty value would read as "not given", and none of these options has a use for one.
  static std::string not_empty(const std::string& value) { return value.empty() ? "the value is empty" : ""; }

  static void neuron(CLI::Option* option) {
    option->required()->type_name("")->description(
        "An .fsn file, - for standard input, or a built-in neuron");
  }
  static void text(CLI::App& sub, const char* name, std::string& value, const char* kind, const char* doc) {
    sub.add_option(name, value, doc)->type_name(kind)->check(not_empty);
  }
  static void many(CLI::App& sub, const char* name, std::vector<std::string>& values, const char* kind,
                   const char* doc) {
    sub.add_option(name, values, doc)->type_name(kind)->allow_extra_args(false)->check(not_empty);
  }
};

const Command* chosen(const CLI::App& app) {
  for (const Command& command : commands)
    if (app.got_subcommand(command.name)) return &command;
  return nullptr;
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands) names.emplace_back(command.name);
  return names;
}

/// What nobody asked for, an unknown option before anything else; "" when all was understood.
std::string left_over(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  for (const std::string& word : words)
    if (word.starts_with('-')) return word;
  return words.empty() ? "" : words.front();
}

std::string unknown_option(const std::string& call, const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    if (option->nonpositional()) names.push_back(option->get_name());
  const std::string name = word.substr(0, word.find('='));
  return "`" + call + "` has no option '" + name + "' (`" + call + " --help` lists them)" +
         flexsn::did_you_mean(name, names);
}

/// The text for a command line that CLI11 refuses.
std::string explained(const CLI::App& app, const CLI::ParseError& error) {
  const Command* command = chosen(app);
  const std::string before = left_over(app);
  if (before.starts_with('-'))
    return unknown_option("flexsn", app, before) + (command ? "; options of a command follow it" : "");
  if (!command && !before.empty())
    return "there is no command '" + before + "'; the commands are " + cli::list_of(command_names(), "and") +
           flexsn::did_you_mean(before, command_names());
  if (!command) return error.what();
  const CLI::App& sub = *app.get_subcommand(command->name);
  const std::string call = std::string("flexsn ") + command->name, extra = left_over(sub),
                    what = error.what();
  if (extra.starts_with('-')) return unknown_option(call, sub, extra);
  if (!extra.empty())
    return "`" + call + "` has no use for '" + extra + "'; leave it out (`" + call + " --help`)";
  if (dynamic_cast<const CLI::RequiredError*>(&error)) return "`" + call + "` needs " + command->needs;
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    const bool missing = what.find("missing") != std::string::npos;
    return "`" + call + "`: " + what.substr(0, what.find(':')) +
           (missing ? " needs a value after it" : " is given more than once; give it once") + " (`" + call +
           " --help`)";
  }
  return "`" + call + "`: " + what + " (`" + call + " --help`)";
}

Outcome run(int argc, char** argv) {
  Arguments arguments;
  try {
    arguments.app.parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    return {std::string(version.what()) + "\n"};
  } catch (const CLI::CallForHelp&) {
    return {arguments.app.help()};
  } catch (const CLI::ParseError& error) {
    throw cli::WrongUse(explained(arguments.app, error));
  }
  const Command* command = chosen(arguments.app);
  if (!command)
    throw cli::WrongUse("a command is missing: " + cli::list_of(command_names(), "or") +
                        "; `flexsn --help` explains them");
  return command->run(arguments.request);
}

Outcome complaint(int code, const std::string& text) { return {.text = "", .complaint = text, .code = code}; }

Outcome outcome_of(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const cli::WrongUse& error) {
    return complaint(2, error.what());
  } catch (const std::bad_alloc&) {
    return complaint(1,
                     "the memory of this machine does not suffice for this; ask for fewer steps or elements");
  } catch (const std::exception& error) {
    return complaint(1, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that has seen enough is no error: see EPIPE below
  Outcome outcome = outcome_of(argc, argv);
  const std::string& text = outcome.text;
  if ((std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) &&
      errno != EPIPE)
    outcome = complaint(1, std::string("standard output cannot be written: ") + std::strerror(errno));
  if (!outcome.complaint.empty()) std::fprintf(stderr, "flexsn: %s\n", outcome.complaint.c_str());
  return outcome.code;
}
