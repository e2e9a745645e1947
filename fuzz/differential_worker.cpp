#include "differential_worker.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "error.h"
#include "text.h"

namespace flexsn::fuzz {

using namespace ir;

namespace {

/// JSON, since Python reads it; only digits, type names and the neuron's text go into it.
class Json {
 public:
  static std::string text(const std::string& value) {
    std::string out = "\"";
    for (char c : value) {
      constexpr char digits[] = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\' || byte < 0x20)
        out += join("\\u00", digits[byte >> 4], digits[byte & 15]);
      else
        out += c;
    }
    return out + "\"";
  }
  static std::string array(const Array& array) {
    std::string bytes;
    for (std::byte byte : array.bytes) {
      constexpr char digits[] = "0123456789abcdef";
      bytes += digits[std::to_integer<int>(byte) >> 4];
      bytes += digits[std::to_integer<int>(byte) & 15];
    }
    std::vector<std::string> shape;
    for (std::int64_t size : array.shape) shape.push_back(std::to_string(size));
    return join("{\"type\": \"", flexsn::name_of(array.type), "\", \"shape\": ", list(shape),
                ", \"bytes\": \"", bytes, "\"}");
  }
  static std::string list(const std::vector<std::string>& items) {
    std::string out;
    for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
    return "[" + out + "]";
  }
};

/// Everything in the order of the text; null for what does not arrive or is not expected.
std::string as_json(const Case& one, const Outcome& expected) {
  const Graph& graph = one.graph;
  std::vector<std::string> groups[3], results, arriving, gradients;
  const auto array_in = [](const auto& arrays, const std::string& name) {
    const auto found = arrays.find(name);
    return found == arrays.end() ? std::string("null") : Json::array(found->second);
  };
  for (int index : argument_order(graph)) {
    const Argument& argument = graph.arguments[static_cast<std::size_t>(index)];
    groups[static_cast<std::size_t>(argument.role)].push_back(Json::array(array_of(one, argument)));
    gradients.push_back(array_in(expected, join("gradient ", argument.name)));
  }
  for (int index : result_order(graph)) {
    const Result& result = graph.results[static_cast<std::size_t>(index)];
    const bool output = result.gives == Gives::output;
    const std::string& name =
        output ? result.name : graph.arguments[static_cast<std::size_t>(result.of)].name;
    results.push_back(array_in(expected, join(output ? "output " : "state ", name)));
    arriving.push_back(array_in(output ? one.arriving.outputs : one.arriving.states, name));
  }
  const bool elided = one.arguments.states.empty();
  return join("{\"neuron\": ", Json::text(print(graph)), ",\n\"inputs\": ", Json::list(groups[0]),
              ",\n\"states\": ", Json::list(elided ? std::vector<std::string>{} : groups[1]),
              ",\n\"params\": ", Json::list(groups[2]),
              ",\n\"sequences\": ", one.arguments.state_sequences ? "true" : "false",
              ",\n\"results\": ", Json::list(results), ",\n\"arriving\": ", Json::list(arriving),
              ",\n\"gradients\": ", Json::list(gradients), "}\n");
}

}  // namespace

PythonWorker::PythonWorker(const std::string& python, const std::string& script) {
  int to[2], from[2];
  if (pipe(to) != 0 || pipe(from) != 0) throw std::runtime_error("no pipe to a Python process");
  std::signal(SIGPIPE, SIG_IGN);
  child_ = fork();
  if (child_ == 0) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    for (int end : {to[0], to[1], from[0], from[1]}) close(end);
    execlp(python.c_str(), python.c_str(), script.c_str(), nullptr);
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  to_ = fdopen(to[1], "w");
  from_ = fdopen(from[0], "r");
  folder_ = std::filesystem::temp_directory_path() / join("flexsn_differential_", getpid());
  std::filesystem::create_directories(folder_);
  std::istringstream ready(answer());  // "ready torch triton"
  std::string word;
  ready >> word;
  if (word != "ready") problem_ = join("'", python, " ", script, "' did not start");
  while (ready >> word) stages_.insert(word);
}

PythonWorker::~PythonWorker() {
  std::fclose(to_);
  std::fclose(from_);
  waitpid(child_, nullptr, 0);
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

std::string PythonWorker::absent(const std::string& stage) const {
  if (!problem_.empty()) return problem_;
  return stages_.contains(stage) ? "" : join("this Python has no ", stage);
}

std::string PythonWorker::answer() {
  std::string line;
  for (int c = std::fgetc(from_); c != '\n'; c = std::fgetc(from_)) {
    if (c == EOF) return "the Python process ended";
    line += static_cast<char>(c);
  }
  return line;
}

std::optional<std::string> PythonWorker::difference(const std::string& stage, const Case& one,
                                                    const Outcome& expected) {
  // The operators take T and the shape from an input, and count steps from 0.
  if (one.arguments.inputs.empty() || one.arguments.first_step != 0) return {};
  const std::string path = (folder_ / "case.json").string();
  std::ofstream(path) << as_json(one, expected);
  std::fprintf(to_, "%s %s\n", stage.c_str(), path.c_str());
  std::fflush(to_);
  const std::string found = answer();
  return found == "same" ? "" : found;
}

}  // namespace flexsn::fuzz
