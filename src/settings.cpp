#include "settings.h"

#include <charconv>
#include <cmath>
#include <set>

namespace flexsn::library {

bool is_random_surrogate(std::string_view name) { return name == "poisson_pass" || name == "PoissonPass"; }

bool Interval::has(double number) const {
  if (!std::isfinite(number)) return false;
  return (with_low ? number >= low : number > low) && (with_high ? number <= high : number < high);
}

std::string Interval::text() const {
  const bool has_low = std::isfinite(low), has_high = std::isfinite(high);
  const std::string lower = join(with_low ? "of at least " : "above ", low),
                    upper = join(with_high ? "of at most " : "below ", high);
  if (!has_low && !has_high) return "a finite number";
  return "a number " + (has_low ? lower : "") + (has_low && has_high ? " and " : "") +
         (has_high ? upper : "");
}

Range Interval::range() const {
  constexpr double inf = std::numeric_limits<double>::infinity();
  return {.low = with_low || low == -inf ? low : std::nextafter(low, inf),
          .high = with_high || high == inf ? high : std::nextafter(high, -inf)};
}

Interval above(double low) { return {.low = low}; }
Interval at_least(double low) { return {.low = low, .with_low = true}; }
Interval below(double high) { return {.high = high}; }
Interval between(double low, double high) { return {.low = low, .high = high}; }
Interval from_to(double low, double high) {
  return {.low = low, .high = high, .with_low = true, .with_high = true};
}

void Owner::fail(const std::string& option, const std::string& expected, const std::string& found) const {
  const char* quote = quotes ? "'" : "";
  user_error(prefix, option, " must be ", expected, ", found ", quote, found, quote);
}

void Owner::require(const std::string& option, double number, const Interval& allowed) const {
  if (!allowed.has(number)) fail(option, allowed.text(), join(number));
}

void Owner::require_whole(const std::string& option, int number, int least, int most) const {
  if (number < least || number > most) fail(option, whole_number(least, most), join(number));
}

std::string whole_number(int least, int most) {
  return most == std::numeric_limits<int>::max() ? join("a whole number of at least ", least)
                                                 : join("a whole number from ", least, " to ", most);
}

std::map<std::string, std::string> read_assignments(const std::string& what, std::string_view text,
                                                    char separator, const std::vector<std::string>& known) {
  std::map<std::string, std::string> values;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    const std::string_view assignment = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t equals = assignment.find('=');
    const std::string name(assignment.substr(0, equals));
    if (equals == std::string_view::npos)
      user_error(what, ": expected OPTION=VALUE, found '", assignment, "'");
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string all;
      for (const std::string& option : known) all += (all.empty() ? "" : ", ") + option;
      user_error(what, ": there is no option '", name, "'", did_you_mean(name, known), "; the options are ",
                 all.empty() ? "none" : all);
    }
    if (!values.emplace(name, assignment.substr(equals + 1)).second)
      user_error(what, ": option ", name, " is given twice; give it once");
  }
  return values;
}

namespace {

template <class Number>
std::optional<Number> parsed(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

}  // namespace

double read_number(const Owner& owner, const std::string& option, std::string_view text) {
  if (const auto number = parsed<double>(text)) return *number;
  owner.fail(option, "a number", std::string(text));
}

int read_whole(const Owner& owner, const std::string& option, std::string_view text) {
  if (const auto number = parsed<int>(text)) return *number;
  owner.fail(option, "a whole number", std::string(text));
}

bool read_truth(const Owner& owner, const std::string& option, std::string_view text) {
  if (text != "true" && text != "false") owner.fail(option, "true or false", std::string(text));
  return text == "true";
}

std::string either(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

}  // namespace flexsn::library
