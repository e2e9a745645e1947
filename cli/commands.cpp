// The commands that work on neurons, each from a request to what it prints.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli.h"
#include "error.h"
#include "export.h"
#include "flexsn/flexsn.h"

namespace cli {

namespace {

using Json = nlohmann::ordered_json;  // keys stay in the order in which they are written here

/// Names of files may hold bytes that are not UTF-8; JSON may not.
std::string dumped(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

constexpr std::string_view type_note = ", T: ";  // in OpInfo::operands, before the types that T may be
constexpr std::int64_t most_rows = 1'000'000'000;

/// The place of `word` among `words`.
std::size_t choice(const std::string& option, const std::string& word,
                   const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] == word) return i;
  throw WrongUse(option + " must be " + list_of(words, "or") + ", found '" + word + "'" +
                 flexsn::did_you_mean(word, words));
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::int64_t whole_number(const std::string& option, const std::string& text, std::int64_t least,
                          std::int64_t preset, std::int64_t most = most_rows) {
  if (text.empty()) return preset;
  const std::optional<std::int64_t> value = number<std::int64_t>(text);
  if (!value || *value < least || *value > most)
    throw WrongUse(option + " must be a whole number from " + std::to_string(least) + " to " +
                   std::to_string(most) + ", found '" + text + "'");
  return *value;
}

bool is_file(const std::string& argument) {
  if (argument == "-" || argument.ends_with(".fsn") || argument.find('/') != std::string::npos) return true;
  // A file that has the name of a built-in neuron is meant only when it is written with a slash.
  for (const flexsn::NeuronInfo& info : flexsn::neuron_list())
    if (argument.substr(0, argument.find(':')) == info.name) return false;
  std::error_code error;
  const auto status = std::filesystem::status(argument, error);
  return std::filesystem::exists(status) && !std::filesystem::is_directory(status);
}

/// The steps of a call. Where a neuron is made for sequences of one length, its option T and --T must agree,
/// and each says what the other is where that is left out.
std::int64_t take_steps(Request& request, std::int64_t least, std::int64_t preset) {
  std::int64_t steps = whole_number("--T", request.steps, least, preset);
  std::string& neuron = request.neurons.at(0);
  if (is_file(neuron)) return steps;
  const std::size_t colon = std::min(neuron.find(':'), neuron.size());
  const std::string name = neuron.substr(0, colon), marked = neuron.substr(colon) + ",";
  const std::vector<flexsn::NeuronInfo> all = flexsn::neuron_list();
  if (std::none_of(all.begin(), all.end(), [&](const flexsn::NeuronInfo& info) {
        return info.name == name && ("," + info.options).find(",T=") != std::string::npos;
      }))
    return steps;
  const std::size_t at = std::min(marked.find(":T="), marked.find(",T="));
  if (at == std::string::npos) {
    if (steps > 0) neuron += (colon == neuron.size() ? ":T=" : ",T=") + std::to_string(steps);
    return steps;
  }
  const std::string word = marked.substr(at + 3, marked.find(',', at + 3) - at - 3);
  const std::optional<std::int64_t> length = number<std::int64_t>(word);
  if (length && request.steps.empty() && *length >= least) return *length;
  if (length && *length != steps)
    throw WrongUse("neuron '" + name + "': option T must be the number of steps, which --T says is " +
                   std::to_string(steps) + ", found '" + word + "'");
  return steps;
}

flexsn::Mem type_of(const Request& request) {
  if (request.dtype.empty()) return flexsn::Mem::f32;
  const std::vector<std::string> names = {"f32", "f64", "f16", "bf16"};
  return *flexsn::mem_named(names[choice("--dtype", request.dtype, names)]);
}

/// A text has its types in it, so an option that cannot act is refused rather than ignored.
void refuse_type_for_text(const Request& request, const std::string& argument) {
  if (!request.dtype.empty())
    throw WrongUse("--dtype " + request.dtype + " cannot apply to '" + argument +
                   "': a text names the types of its arguments; change them there and leave out --dtype");
}

flexsn::Neuron built_in(const std::string& name, flexsn::Mem type) {
  try {
    flexsn::Neuron neuron = flexsn::neuron_named(name);
    flexsn::show(neuron, {.type = type});  // options may have values that only the trace finds wrong
    return neuron;
  } catch (const flexsn::UserError& error) {
    throw WrongUse(error.what());
  }
}

/// The options of training.
flexsn::Training training_of(const Request& request) {
  flexsn::Training training;
  training.type = type_of(request);
  training.wanted = request.wanted;
  if (!request.arriving.empty()) training.arriving = request.arriving;
  training.state_sequences = request.sequences;
  if (!request.budget.empty()) {
    training.budget = number<double>(request.budget);
    if (!training.budget || !(*training.budget >= 0))
      throw WrongUse("--budget must be a number of bytes of at least 0, found '" + request.budget + "'");
  }
  if (!request.costs.empty()) {
    const std::vector<std::string> models = {"cpu", "gpu", "bytes"};
    training.costs = flexsn::cost_model_named(models[choice("--costs", request.costs, models)]);
  }
  if (!request.save.empty())
    training.saving = static_cast<flexsn::Saving>(
        choice("--save", request.save, {"automatic", "everything", "per_step", "rebuild"}));
  training.segment = static_cast<int>(whole_number("--segment", request.segment, 0, 0));
  return training;
}

flexsn::Neuron parsed(const std::string& argument, const std::string& text) {
  return flexsn::parse_neuron(text, argument == "-" ? "<stdin>" : argument);
}

/// The only neuron of a request, verified.
flexsn::Neuron neuron_of(const Request& request) {
  const std::string& argument = request.neurons.at(0);
  if (!is_file(argument)) return built_in(argument, type_of(request));
  refuse_type_for_text(request, argument);
  flexsn::Neuron neuron = parsed(argument, read_text(argument));
  flexsn::show(neuron);
  return neuron;
}

/// "NAME=VALUE" in two; nothing where there is no '='.
std::optional<std::pair<std::string, std::string>> assignment(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return {};
  return std::pair(text.substr(0, equals), text.substr(equals + 1));
}

void read_inputs(const std::vector<std::string>& texts, flexsn::Simulation& simulation) {
  for (const std::string& text : texts) {
    const auto [name, spec] = assignment(text).value_or(std::pair("", text));
    if (name.empty() && text.starts_with('='))
      throw WrongUse("--input must be SPEC or NAME=SPEC, found '" + text + "'");
    if (!simulation.inputs.emplace(name, spec).second)
      throw WrongUse("--input is given twice for " + (name.empty() ? "all inputs" : "'" + name + "'") +
                     "; give it once, or name the inputs: --input NAME=SPEC");
  }
  if (texts.empty()) simulation.inputs[""] = "step:1.5";
}

void read_params(const std::vector<std::string>& texts, flexsn::Simulation& simulation) {
  for (const std::string& text : texts) {
    const auto pair = assignment(text);
    const std::optional<double> value = pair ? number<double>(pair->second) : std::nullopt;
    if (!value) throw WrongUse("--param must be NAME=VALUE with a number as value, found '" + text + "'");
    if (!simulation.params.emplace(pair->first, *value).second)
      throw WrongUse("--param is given twice for '" + pair->first + "'; give it once");
  }
}

/// "64,32,32" as a shape; `option` is what it was given for.
std::vector<std::int64_t> shape_of(const std::string& option, const std::string& text) {
  std::vector<std::int64_t> shape;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::optional<std::int64_t> dim = number<std::int64_t>(text.substr(at, end - at));
    if (!dim || *dim < 0 || *dim > most_rows)
      throw WrongUse(option + " must be whole numbers from 0 to " + std::to_string(most_rows) +
                     " with commas between them, found '" + text + "'");
    shape.push_back(*dim);
    at = end + 1;
  }
  return shape;
}

void read_shapes(const Request& request, flexsn::ExplainOptions& options) {
  if (!request.shape.empty()) options.shape = shape_of("--shape", request.shape);
  for (const std::string& text : request.param_shapes) {
    const auto pair = assignment(text);
    if (!pair) throw WrongUse("--param-shape must be NAME=DIMS such as tau=32,1, found '" + text + "'");
    if (!options.param_shapes
             .emplace(pair->first, shape_of("the shape in --param-shape " + text, pair->second))
             .second)
      throw WrongUse("--param-shape is given twice for '" + pair->first + "'; give it once");
  }
}

/// What the call got wrong shows in one step with every file left unread; later errors are not the call's.
void try_one_step(const flexsn::Neuron& neuron, flexsn::Simulation simulation) {
  simulation.steps = simulation.elements = 1;
  for (auto& [name, spec] : simulation.inputs)
    if (spec.ends_with(".csv")) spec = "step:0";
  try {
    flexsn::simulate(neuron, simulation);
  } catch (const flexsn::UserError& error) {
    throw WrongUse(error.what());
  }
}

std::vector<flexsn::Check> checks_of(const std::string& argument, const std::string& text, flexsn::Mem type,
                                     std::uint64_t seed) {
  try {
    return flexsn::check(is_file(argument) ? parsed(argument, text) : flexsn::neuron_named(argument), type,
                         seed);
  } catch (const flexsn::UserError& error) {
    return {{"legal", false, error.what()}};
  }
}

std::string counted(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

Outcome list(const Request& request) {
  const std::size_t what = choice("what to list", request.what, {"ops", "neurons", "surrogates", "targets"});
  Json json = Json::array();
  std::vector<std::vector<std::string>> rows;
  if (what == 0) {
    rows.push_back({"op", "operands", "T is", "meaning"});
    for (const flexsn::OpInfo& op : flexsn::op_list()) {
      json.push_back({{"name", op.name}, {"operands", op.operands}, {"kind", op.kind}, {"doc", op.doc}});
      const std::size_t types = op.operands.find(type_note);
      const bool typed = types != std::string::npos;
      rows.push_back({op.name, op.operands.substr(0, types),
                      typed ? op.operands.substr(types + type_note.size()) : "",
                      op.kind == "basic" ? op.doc : op.doc + " (" + op.kind + ")"});
    }
  } else if (what == 1) {
    rows.push_back({"neuron", "meaning, and options with their defaults"});
    for (const flexsn::NeuronInfo& neuron : flexsn::neuron_list()) {
      json.push_back({{"name", neuron.name}, {"options", neuron.options}, {"doc", neuron.doc}});
      rows.push_back({neuron.name, neuron.doc});
      std::string options;
      for (char c : neuron.options) options += c == ',' ? ", " : std::string(1, c);
      rows.push_back({"", options.empty() ? "no options" : options});
    }
  } else if (what == 2) {
    rows.push_back(
        {"surrogate", "gradient, smooth function, and options with their defaults and what they may be"});
    for (const flexsn::SurrogateInfo& surrogate : flexsn::surrogate_list()) {
      json.push_back({{"name", surrogate.name},
                      {"options", surrogate.options},
                      {"allowed", surrogate.allowed},
                      {"gradient", surrogate.derivative},
                      {"smooth", surrogate.smooth}});
      rows.push_back({surrogate.name, surrogate.derivative});
      rows.push_back({"", surrogate.smooth.empty() ? "no smooth function" : "smooth: " + surrogate.smooth});
      if (surrogate.options.empty()) rows.push_back({"", "no options"});
      for (std::size_t i = 0, start = 0; i < surrogate.allowed.size(); ++i) {
        const std::size_t end = std::min(surrogate.options.find(':', start), surrogate.options.size());
        rows.push_back({"", surrogate.options.substr(start, end - start) + ": " + surrogate.allowed[i]});
        start = end + 1;
      }
    }
  } else {
    rows.push_back({"target", "here", "note"});
    for (const flexsn::TargetInfo& target : flexsn::target_list()) {
      json.push_back({{"name", target.name}, {"available", target.available}, {"note", target.note}});
      rows.push_back({target.name, target.available ? "yes" : "no", target.note});
    }
  }
  return {request.json ? dumped(json) : table(rows)};
}

namespace {

const std::vector<std::string> kinds = {"inference", "inference_final_state", "forward", "backward"};

/// The options of training, with the costs of a GPU where none are chosen.
flexsn::Training gpu_training_of(const Request& request) {
  flexsn::Training training = training_of(request);
  if (request.costs.empty()) training.costs = flexsn::cost_model_named("gpu");
  return training;
}

/// The code of one kernel, or a module of all.
Outcome emitted(const Request& request) {
  if (!request.stage.empty())
    throw WrongUse("--stage and --emit cannot be joined: code is what comes after the last stage; give one");
  if (request.canonical || request.locations)
    throw WrongUse("--canonical and --locations are about graphs; they have no meaning with --emit");
  const std::size_t what = choice("--emit", request.emit, {"llvm", "asm", "ptx", "cuda", "triton"});
  const flexsn::Neuron neuron = neuron_of(request);
  if (request.emit == "triton") {
    if (!request.kind.empty())
      throw WrongUse("--kind has no meaning with --emit triton: the module holds all kinds");
    const std::string text = flexsn::exported(neuron, "triton", {}, gpu_training_of(request));
    return {request.json ? dumped({{"neuron", neuron.name()}, {"code", request.emit}, {"text", text}})
                         : text};
  }
  const std::size_t place = request.kind.empty() ? 1 : choice("--kind", request.kind, kinds);
  const auto kind = static_cast<flexsn::Kind>(place);
  const std::string text =
      request.emit == "cuda"
          ? flexsn::exported(neuron, "cuda", kind, gpu_training_of(request))
          : flexsn::emit(neuron, kind, static_cast<flexsn::Listing>(what),
                         request.emit == "ptx" ? gpu_training_of(request) : training_of(request));
  if (!request.json) return {text};
  return {
      dumped({{"neuron", neuron.name()}, {"kind", kinds[place]}, {"code", request.emit}, {"text", text}})};
}

}  // namespace

Outcome show(const Request& request) {
  if (!request.emit.empty()) return emitted(request);
  const std::vector<std::string> stages = {"step",    "simplified", "expanded", "joint",
                                           "forward", "backward",   "plan"};
  const std::size_t stage = request.stage.empty() ? 0 : choice("--stage", request.stage, stages);
  if (request.canonical && request.locations)
    throw WrongUse(
        "--canonical and --locations cannot be joined: the canonical text has no locations; give one");
  flexsn::ShowOptions options{.stage = static_cast<flexsn::Stage>(stage),
                              .type = type_of(request),
                              .canonical = request.canonical,
                              .locations = request.locations,
                              .training = training_of(request)};
  const bool inference = request.kind.starts_with("inference");
  const bool training = !request.wanted.empty() || !request.arriving.empty() || !request.budget.empty() ||
                        !request.costs.empty() || !request.save.empty() || !request.segment.empty() ||
                        request.sequences;
  if (training && (options.stage < flexsn::Stage::joint || inference))
    throw WrongUse(
        "--wanted, --arriving, --budget, --costs, --save, --segment and --sequences are about training; "
        "they have no meaning for " +
        (inference ? "--kind " + request.kind : "--stage " + stages[stage]));
  if (!request.kind.empty()) {
    options.kind = static_cast<flexsn::Kind>(
        choice("--kind", request.kind, {"inference", "inference_final_state", "forward", "backward"}));
    if (options.stage != flexsn::Stage::plan)
      throw WrongUse("--kind chooses among plans; give --stage plan with it");
  }
  const flexsn::Neuron neuron = neuron_of(request);
  const std::string text = flexsn::show(neuron, options);
  if (!request.json) return {text};
  return {dumped({{"neuron", neuron.name()},
                  {"stage", stages[stage]},
                  {"canonical", request.canonical},
                  {"text", text}})};
}

Outcome export_neuron(const Request& request) {
  const std::map<std::string, std::string> endings = {{".py", "triton"}, {".cu", "cuda"}, {".fsn", "fsn"}};
  std::string format = request.format;
  if (format.empty()) {
    const auto found = endings.find(std::filesystem::path(request.output).extension().string());
    if (found == endings.end())
      throw WrongUse(
          "--format is missing: triton, cuda or fsn; it can be left out where -o names a file that "
          "ends in .py, .cu or .fsn");
    format = found->second;
  }
  choice("--format", format, flexsn::export_formats());
  std::optional<flexsn::Kind> kind;
  if (!request.kind.empty()) {
    kind = static_cast<flexsn::Kind>(choice("--kind", request.kind, kinds));
    if (format != "cuda") throw WrongUse("--kind is for --format cuda, which is one kernel; leave it out");
  }
  std::string text = flexsn::exported(neuron_of(request), format, kind, gpu_training_of(request));
  // The text names the neuron; which one of its kind it is, only the options say.
  const std::string& argument = request.neurons.at(0);
  if (!is_file(argument) && argument.find(':') != std::string::npos)
    text.insert(0, (format == "cuda" ? "// " : "# ") + argument + "\n");
  if (request.output.empty()) return {text};
  write_text(request.output, text);
  return {""};
}

Outcome explain(const Request& given) {
  Request request = given;
  flexsn::ExplainOptions options;
  options.steps = take_steps(request, 0, options.steps);
  // Nothing is run, so it may be more than any memory holds.
  if (!request.elements.empty())
    options.elements = whole_number("--N", request.elements, 0, 0, std::int64_t{1'000'000} * most_rows);
  read_shapes(request, options);
  options.given_states = request.given_states;
  options.training = training_of(request);
  const flexsn::Explanation explanation = flexsn::explain(neuron_of(request), options);
  if (!request.json) return {explanation.text};
  const auto kernels = [](const std::vector<flexsn::Traffic>& list) {
    Json json = Json::array();
    for (const flexsn::Traffic& kernel : list)
      json.push_back({{"kernel", kernel.kernel},
                      {"read_per_step", kernel.read_per_step},
                      {"written_per_step", kernel.written_per_step},
                      {"read", kernel.read},
                      {"written", kernel.written},
                      {"launches", kernel.launches}});
    return json;
  };
  Json params = Json::array();
  for (const flexsn::ParamTraffic& param : explanation.params)
    params.push_back({{"name", param.name},
                      {"type", flexsn::name_of(param.type)},
                      {"shape", param.shape},
                      {"bytes", param.bytes},
                      {"expanded", param.expanded}});
  Json saved = Json::array();
  for (const flexsn::SavedValue& value : explanation.saved)
    saved.push_back({{"name", value.name}, {"type", flexsn::name_of(value.type)}, {"reason", value.reason}});
  Json json = {
      {"neuron", explanation.neuron},
      {"steps", options.steps},
      {"elements", explanation.elements},
      {"shape", explanation.shape},
      {"params", params},
      {"step_ops", explanation.step_ops},
      {"simplified_ops", explanation.simplified_ops},
      {"expanded_ops", explanation.expanded_ops},
      {"hoisted_ops", explanation.hoisted_ops},
      {"inference", {{"passes", explanation.inference_passes}, {"kernels", kernels(explanation.inference)}}}};
  if (explanation.untrainable.empty())
    json["training"] = {{"passes", explanation.training_passes},
                        {"floor", explanation.floor},
                        {"ratio", explanation.ratio},
                        {"launches", explanation.training.size()},
                        {"kernels", kernels(explanation.training)},
                        {"forward_ops", explanation.forward_ops},
                        {"backward_ops", explanation.backward_ops},
                        {"saved", saved},
                        {"recomputed", explanation.recomputed},
                        {"checkpoints", explanation.checkpoints},
                        {"segment", explanation.segment},
                        {"checkpoint_rows", explanation.checkpoint_rows},
                        {"kept_alive", explanation.kept_alive},
                        {"kept_alive_per_step", explanation.kept_alive_per_step}};
  else
    json["untrainable"] = explanation.untrainable;
  for (const flexsn::GpuKernel& kernel : explanation.gpu) {
    nlohmann::json compiled = nlohmann::json::array();
    for (const flexsn::GpuEntry& entry : kernel.compiled)
      compiled.push_back({{"entry", entry.entry},
                          {"registers", entry.registers},
                          {"local_bytes", entry.local_bytes},
                          {"again", entry.again}});
    json["gpu"].push_back({{"kernel", kernel.kernel},
                           {"elements_a_thread", kernel.elements_a_thread},
                           {"threads_a_block", kernel.threads_a_block},
                           {"steps_at_once", kernel.steps_at_once},
                           {"registers", kernel.registers},
                           {"ops", kernel.ops},
                           {"instructions", kernel.instructions},
                           {"bytes", kernel.bytes},
                           {"most_instructions", kernel.most_instructions},
                           {"compiled", compiled},
                           {"refused", kernel.refused}});
  }
  json["text"] = explanation.text;
  return {dumped(json)};
}

Outcome simulate(const Request& given) {
  Request request = given;
  flexsn::Simulation simulation;
  simulation.type = type_of(request);
  simulation.steps = take_steps(request, 0, simulation.steps);
  simulation.elements = whole_number("--N", request.elements, 1, simulation.elements);
  if (simulation.steps > most_rows / simulation.elements)
    throw WrongUse("--T times --N is the number of rows, at most " + std::to_string(most_rows) + ", found " +
                   request.steps + " times " + request.elements + "; choose fewer steps or elements");
  read_inputs(request.inputs, simulation);
  read_params(request.params, simulation);
  const flexsn::Neuron neuron = neuron_of(request);
  try_one_step(neuron, simulation);
  const std::string csv = flexsn::simulate(neuron, simulation);
  if (request.csv.empty() || request.csv == "-") return {csv};
  write_text(request.csv, csv);
  const auto rows = static_cast<std::size_t>(simulation.steps * simulation.elements);
  return {"wrote " + counted(rows, "row") + " to " + request.csv + "\n"};
}

Outcome bench(const Request& given) {
  Request request = given;
  const std::int64_t steps = take_steps(request, 1, 8);
  const std::int64_t elements = whole_number("--N", request.elements, 1, 1 << 20);
  return bench_of(neuron_of(request), training_of(request), steps, elements, request.json);
}

Outcome cache(const Request& request) {
  if (choice("what to do", request.what, {"info", "clear"}) == 1) {
    const flexsn::CacheInfo info = flexsn::cache_info();
    if (!info.usable) return {"nothing to remove: " + info.problem + "\n"};
    return {"removed " + counted(static_cast<std::size_t>(flexsn::cache_clear()), "file") + " from " +
            info.directory + "\n"};
  }
  const flexsn::CacheInfo info = flexsn::cache_info();
  if (request.json)
    return {dumped({{"directory", info.directory},
                    {"usable", info.usable},
                    {"problem", info.problem},
                    {"entries", info.entries},
                    {"bytes", info.bytes}})};
  std::vector<std::vector<std::string>> rows = {
      {"directory", info.directory.empty() ? "none" : info.directory},
      {"in use", info.usable ? "yes" : "no"},
      {"kernels", std::to_string(info.entries) + ", " + std::to_string(info.bytes) + " bytes"}};
  if (!info.problem.empty()) rows.push_back({"problem", info.problem});
  return {table(rows)};
}

Outcome check(const Request& request) {
  const flexsn::Mem type = type_of(request);
  const std::optional<std::uint64_t> seed =
      request.seed.empty() ? std::optional<std::uint64_t>(0) : number<std::uint64_t>(request.seed);
  if (!seed) throw WrongUse("--seed must be a whole number of at least 0, found '" + request.seed + "'");
  std::vector<std::string> texts;  // all are read first: a file that is not there stops the call at once
  bool standard_input_read = false;
  for (const std::string& argument : request.neurons) {
    const bool file = is_file(argument);
    if (file) refuse_type_for_text(request, argument);
    if (argument == "-" && standard_input_read)
      throw WrongUse("'-' is given twice; standard input is read once");
    standard_input_read |= argument == "-";
    if (!file) built_in(argument, type);
    texts.push_back(file ? read_text(argument) : "");
  }
  if (!request.target.empty() && !request.digest)
    throw WrongUse("--target is for --digest: without it every target that is here is checked");
  if (request.digest) {
    Json json = Json::array();
    std::string lines;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string& argument = request.neurons[i];
      const flexsn::Neuron neuron =
          is_file(argument) ? parsed(argument, texts[i]) : flexsn::neuron_named(argument);
      const std::string digest = flexsn::digest(neuron, type, *seed, request.target);
      json.push_back({{"neuron", argument}, {"digest", digest}});
      lines += digest + "  " + argument + "\n";
    }
    return {request.json ? dumped(json) : lines};
  }
  Json json = Json::array();
  std::string text, complaint;
  std::size_t total = 0, failed = 0, left_out = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string& argument = request.neurons[i];
    std::vector<std::vector<std::string>> rows = {{"check", "result", "detail"}};
    Json list = Json::array();
    bool all_passed = true;
    for (const flexsn::Check& check : checks_of(argument, texts[i], type, *seed)) {
      const char* result = check.left_out ? "left out" : check.passed ? "passed" : "FAILED";
      rows.push_back({check.what, result, check.detail});
      list.push_back({{"what", check.what},
                      {"passed", check.passed},
                      {"left_out", check.left_out},
                      {"detail", check.detail}});
      left_out += check.left_out;
      all_passed &= check.passed;
      failed += !check.passed;
      if (!check.passed) complaint += "\n  " + argument + ": " + check.what + ": " + check.detail;
      ++total;
    }
    json.push_back({{"neuron", argument}, {"passed", all_passed}, {"checks", list}});
    text += argument + "\n" + table(rows, "  ") + "\n";
  }
  text += counted(total, "check") + " of " + counted(texts.size(), "neuron") + ": " +
          (failed ? std::to_string(failed) + " failed" : "all passed") +
          (left_out ? ", " + std::to_string(left_out) + " left out" : "") + "\n";
  Outcome outcome{request.json ? dumped(json) : text};
  if (failed)
    outcome.code = 1,
    outcome.complaint = std::to_string(failed) + " of " + counted(total, "check") + " failed" + complaint;
  return outcome;
}

}  // namespace cli
