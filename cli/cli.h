// The command-line program in parts: errors and their exit codes, the commands, tables, files.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "flexsn/flexsn.h"

namespace cli {

/// The program was called in a way that has no meaning: exit code 2.
class WrongUse : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The call was right, but the work could not be done: exit code 1.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What was asked for, as written on the command line; "" is an option that was not given.
struct Request {
  std::string what;                  ///< list: ops, neurons, surrogates or targets; cache: info or clear
  std::vector<std::string> neurons;  ///< a file, "-", or a built-in name with options
  std::string stage, kind, emit, dtype, steps, elements, shape, seed, csv;
  std::string format, output;                ///< of export
  std::string target;                        ///< of check --digest
  std::string budget, costs, save, segment;  ///< of training
  std::vector<std::string> inputs, params, param_shapes, wanted, arriving;
  bool canonical = false, locations = false, json = false, sequences = false, given_states = false,
       digest = false;
};

/// What a command gives: text for standard output, one for standard error, the exit code.
struct Outcome {
  std::string text;
  std::string complaint = {};
  int code = 0;
};

Outcome list(const Request& request);
Outcome show(const Request& request);
Outcome export_neuron(const Request& request);
Outcome explain(const Request& request);
Outcome simulate(const Request& request);
Outcome check(const Request& request);
Outcome doctor(const Request& request);
Outcome cache(const Request& request);
Outcome bench(const Request& request);
/// What `bench` prints for one neuron.
Outcome bench_of(const flexsn::Neuron& neuron, const flexsn::Training& training, std::int64_t steps,
                 std::int64_t elements, bool as_json);

/// Rows of cells as aligned columns; the last column is wrapped so that lines stay within 100 columns.
std::string table(const std::vector<std::vector<std::string>>& rows, std::string_view indent = "");

/// "a, b or c", with any word for the "or".
std::string list_of(const std::vector<std::string>& names, std::string_view conjunction);

/// The whole of a text file; "-" is standard input.
std::string read_text(const std::string& path);

/// The file holds `text` when this returns, and is as it was before when this throws.
void write_text(const std::string& path, const std::string& text);

}  // namespace cli
