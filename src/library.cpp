#include "library.h"

#include "trace.h"

namespace flexsn::library {

// ---- inside a step ---------------------------------------------------------------------------------

Factor Scope::number(const char* option, const Number& number) const {
  if (!number.learnable) return Factor(number.value);
  return Factor(param(option, number.value));
}

Value Scope::param(const char* option, double initial) const {
  return step_.param(option, initial, allowed_.at(option).range());
}

Value Scope::spike(const Value& distance, const Surrogate& surrogate) const {
  if (!open_) return flexsn::spike(distance, surrogate).named("spike");
  step_.output("distance", distance);
  return step_.input("spike");
}

Value Scope::reset(const Value& h, const Value& spike, const Factor& threshold,
                   const std::optional<double>& v_reset, bool detach_reset,
                   const Surrogate& surrogate) const {
  const Value z = detach_reset ? detach(spike) : spike;
  if (!v_reset) return h - threshold * z;
  const Value kept = (1.0 - z) * h;
  const Value formula = *v_reset == 0 ? kept : *v_reset * z + kept;
  // Where a spike is 0 or 1, the value is chosen, which no infinity can spoil.
  const bool binary = !open_ && surrogate.spiking && !surrogate.value;
  return binary ? with_grad(select(spike > 0.0, like(h, *v_reset), h), formula) : formula;
}

Value leaked(const Value& x, const Value& v, double rest, bool decay_input,
             const std::function<Value(const Value&)>& leak) {
  const Value from_rest = rest == 0 ? v : v - rest;
  return decay_input ? v + leak(x - from_rest) : v - leak(from_rest) + x;
}

// ---- options ---------------------------------------------------------------------------------------

namespace {

constexpr std::string_view learnable_mark = "learnable:";

}  // namespace

std::string text_of(const Number& value) { return join(value.learnable ? learnable_mark : "", value.value); }
std::string text_of(double value) { return join(value); }
std::string text_of(const std::optional<double>& value) { return value ? join(*value) : "none"; }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int value) { return join(value); }
std::string text_of(const std::string& value) { return value; }
std::string text_of(const Surrogate& value) {
  const bool usual = value.settings == surrogate_named(value.name).settings;
  return usual ? value.name : join(value.name, ":", value.settings);
}

namespace {

/// The whole numbers of what is allowed.
int least_whole(const Interval& numbers) { return static_cast<int>(numbers.low); }

}  // namespace

std::string Allowed::text(int) const {
  return whole_number(least_whole(numbers), std::numeric_limits<int>::max());
}

void require(const Owner& owner, const std::string& option, const Number& value, const Allowed& allowed) {
  owner.require(option, value.value, allowed.numbers);
}
void require(const Owner& owner, const std::string& option, double value, const Allowed& allowed) {
  owner.require(option, value, allowed.numbers);
}
void require(const Owner& owner, const std::string& option, const std::optional<double>& value,
             const Allowed& allowed) {
  if (value && !allowed.numbers.has(*value)) owner.fail(option, allowed.text(value), join(*value));
}
void require(const Owner&, const std::string&, bool, const Allowed&) {}
void require(const Owner& owner, const std::string& option, int value, const Allowed& allowed) {
  owner.require_whole(option, value, least_whole(allowed.numbers), std::numeric_limits<int>::max());
}
void require(const Owner& owner, const std::string& option, const std::string& value,
             const Allowed& allowed) {
  if (std::find(allowed.words.begin(), allowed.words.end(), value) == allowed.words.end())
    owner.fail(option, either(allowed.words), value);
}
void require(const Owner&, const std::string&, const Surrogate&, const Allowed&) {}

void read(const Owner& owner, const std::string& option, const std::string& text, Number& value) {
  const bool learnable = text.starts_with(learnable_mark);
  const std::string_view number = std::string_view(text).substr(learnable ? learnable_mark.size() : 0);
  if (text + ":" != learnable_mark) value = read_number(owner, option, number);
  value.learnable = learnable || text + ":" == learnable_mark;
}
void read(const Owner& owner, const std::string& option, const std::string& text, double& value) {
  if (text.starts_with("learnable")) owner.fail(option, "a number, without learnable", text);
  value = read_number(owner, option, text);
}
void read(const Owner& owner, const std::string& option, const std::string& text,
          std::optional<double>& value) {
  value = text == "none" ? std::nullopt : std::optional(read_number(owner, option, text));
}
void read(const Owner& owner, const std::string& option, const std::string& text, bool& value) {
  value = read_truth(owner, option, text);
}
void read(const Owner& owner, const std::string& option, const std::string& text, int& value) {
  value = read_whole(owner, option, text);
}
void read(const Owner&, const std::string&, const std::string& text, std::string& value) { value = text; }
void read(const Owner& owner, const std::string& option, const std::string& text, Surrogate& value) {
  std::vector<std::string> names;
  for (const SurrogateInfo& info : surrogate_list()) names.push_back(info.name);
  const std::string name = text.substr(0, text.find(':'));
  if (std::find(names.begin(), names.end(), name) == names.end() && !is_random_surrogate(name))
    owner.fail(option, either(names), name);
  value = surrogate_named(text);
}

void Limits::require(const std::string& option, const Number& value, const Interval& numbers,
                     const std::string& expected) const {
  if (!numbers.has(value.value)) owner.fail(option, expected, text_of(value.value));
  allowed[option] = numbers;
}

void require_threshold(const Limits& limits, const Number& v_threshold,
                       const std::optional<double>& v_reset) {
  if (!v_reset)
    limits.require("v_threshold", v_threshold, above(0),
                   "a number above 0, since the soft reset takes it away");
}

}  // namespace flexsn::library
