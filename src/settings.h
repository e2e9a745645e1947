// Options of neurons and surrogates of the library: what they may be, how they are read from a text, and what
// is said where they are wrong.
#pragma once

#include "error.h"

namespace flexsn::library {

/// The numbers that an option may be; they are finite, and the ends belong to them where it says so.
struct Interval {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool with_low = false, with_high = false;

  bool has(double number) const;
  /// "a number above 1".
  std::string text() const;
  /// The same for a parameter, whose ends always belong to its range.
  Range range() const;
};
Interval above(double low);
Interval at_least(double low);
Interval below(double high);
/// Without its ends.
Interval between(double low, double high);
/// With its ends.
Interval from_to(double low, double high);

/// Whose options they are, for errors: "neuron 'lif': option " from a text, "neurons::lif: " in code.
struct Owner {
  std::string prefix;
  bool quotes = false;  ///< values were words of a text

  [[noreturn]] void fail(const std::string& option, const std::string& expected,
                         const std::string& found) const;
  void require(const std::string& option, double number, const Interval& allowed) const;
  void require_whole(const std::string& option, int number, int least, int most) const;
};

/// "least to most" in words.
std::string whole_number(int least, int most);

/// OPTION=VALUE, OPTION=VALUE, ... with `separator` between them; `what` is whose they are, `known` are the
/// options there are.
std::map<std::string, std::string> read_assignments(const std::string& what, std::string_view text,
                                                    char separator, const std::vector<std::string>& known);

double read_number(const Owner& owner, const std::string& option, std::string_view text);
int read_whole(const Owner& owner, const std::string& option, std::string_view text);
bool read_truth(const Owner& owner, const std::string& option, std::string_view text);

/// A surrogate that people know by these names and that cannot be here.
bool is_random_surrogate(std::string_view name);

/// "a, b or c".
std::string either(const std::vector<std::string>& words);

}  // namespace flexsn::library
