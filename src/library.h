// How the neurons of the library are described: options, what they may be, and a step that is built from
// them.
#pragma once

#include <variant>

#include "flexsn/neurons.h"
#include "settings.h"

namespace flexsn::library {

using neurons::Number;

/// A number inside a step: fixed, or a parameter. It stands beside values like any operand.
class Factor {
 public:
  explicit Factor(double number) : number_(number) {}
  explicit Factor(Value parameter) : parameter_(std::move(parameter)) {}
  operator Operand() const { return parameter_ ? Operand(*parameter_) : Operand(number_); }
  /// 1 less this.
  Factor complement() const { return parameter_ ? Factor(1.0 - *parameter_) : Factor(1 - number_); }

 private:
  double number_ = 0;
  std::optional<Value> parameter_ = {};
};

/// A step of a library neuron while it is traced.
class Scope {
 public:
  /// With `open`, the spike comes from outside: its distance to threshold is the output "distance", and what
  /// it is the input "spike".
  Scope(Step& step, const std::map<std::string, Interval>& allowed, bool open)
      : step_(step), allowed_(allowed), open_(open) {}

  Step& operator*() const { return step_; }
  Step* operator->() const { return &step_; }

  Factor number(const char* option, const Number& number) const;
  /// A parameter that may be what the option of its name may be.
  Value param(const char* option, double initial) const;
  Value spike(const Value& distance, const Surrogate& surrogate) const;
  /// The potential after a spike: v_reset, or less by `threshold` where there is none.
  Value reset(const Value& h, const Value& spike, const Factor& threshold,
              const std::optional<double>& v_reset, bool detach_reset, const Surrogate& surrogate) const;

 private:
  Step& step_;
  const std::map<std::string, Interval>& allowed_;
  bool open_;
};

template <class Options>
using Member = std::variant<Number Options::*, double Options::*, std::optional<double> Options::*,
                            bool Options::*, int Options::*, std::string Options::*, Surrogate Options::*>;

/// One option: where it stands, and what it may be. A whole number counts from `low` of what is allowed.
template <class Options>
struct Field {
  const char* name;
  Member<Options> member;
  Interval allowed = {};
  std::vector<std::string> words = {};  ///< of a text, or names of surrogates where not all will do
};

/// What options may be beside others. A learned one is held to it at each run.
struct Limits {
  const Owner& owner;
  std::map<std::string, Interval>& allowed;  ///< by option

  /// For an option that may be any number by itself; `expected` says `numbers` in words.
  void require(const std::string& option, const Number& value, const Interval& numbers,
               const std::string& expected) const;
};

/// One neuron of the library.
template <class Options>
struct Definition {
  const char* name;
  const char* python;  ///< its class there
  const char* doc;
  const char* equations;  ///< a line each
  std::vector<Field<Options>> fields;
  void (*step)(const Scope& s, const Options& o);
  /// What must hold between options.
  void (*check)(const Limits& limits, const Options& o) = [](const Limits&, const Options&) {};
};

/// Calls `body(field, member)` for each option, with the type that its member has.
template <class Options, class Body>
void for_each(const Definition<Options>& definition, const Body& body) {
  if constexpr (!std::is_empty_v<Options>)
    for (const Field<Options>& field : definition.fields)
      std::visit([&](auto member) { body(field, member); }, field.member);
}

// An option by its type: its text, whether it may be so, and how it is read.
std::string text_of(const Number& value);
std::string text_of(double value);
std::string text_of(const std::optional<double>& value);
std::string text_of(bool value);
std::string text_of(int value);
std::string text_of(const std::string& value);
std::string text_of(const Surrogate& value);

/// What an option of this type may be.
struct Allowed {
  Interval numbers;
  std::vector<std::string> words;

  std::string text(const Number&) const { return numbers.text(); }
  std::string text(double) const { return numbers.text(); }
  std::string text(const std::optional<double>&) const { return numbers.text() + ", or none"; }
  std::string text(bool) const { return "true or false"; }
  std::string text(int) const;
  std::string text(const std::string&) const { return either(words); }
  std::string text(const Surrogate&) const { return words.empty() ? "a surrogate" : either(words); }
};

void require(const Owner& owner, const std::string& option, const Number& value, const Allowed& allowed);
void require(const Owner& owner, const std::string& option, double value, const Allowed& allowed);
void require(const Owner& owner, const std::string& option, const std::optional<double>& value,
             const Allowed& allowed);
void require(const Owner& owner, const std::string& option, bool value, const Allowed& allowed);
void require(const Owner& owner, const std::string& option, int value, const Allowed& allowed);
void require(const Owner& owner, const std::string& option, const std::string& value, const Allowed& allowed);
void require(const Owner& owner, const std::string& option, const Surrogate& value, const Allowed& allowed);

void read(const Owner& owner, const std::string& option, const std::string& text, Number& value);
void read(const Owner& owner, const std::string& option, const std::string& text, double& value);
void read(const Owner& owner, const std::string& option, const std::string& text,
          std::optional<double>& value);
void read(const Owner& owner, const std::string& option, const std::string& text, bool& value);
void read(const Owner& owner, const std::string& option, const std::string& text, int& value);
void read(const Owner& owner, const std::string& option, const std::string& text, std::string& value);
void read(const Owner& owner, const std::string& option, const std::string& text, Surrogate& value);

template <class Options>
Neuron made(const Definition<Options>& definition, const Options& options, const Owner& owner,
            bool open = false) {
  std::map<std::string, Interval> allowed;
  for_each(definition, [&](const Field<Options>& field, auto member) {
    require(owner, field.name, options.*member, {field.allowed, field.words});
    allowed[field.name] = field.allowed;
  });
  definition.check({owner, allowed}, options);
  return Neuron(definition.name, [step = definition.step, options, allowed, open](Step& s) {
    step(Scope(s, allowed, open), options);
  });
}

/// A neuron as a function of the public header makes it.
template <class Options>
Neuron made_in_code(const Definition<Options>& definition, const Options& options) {
  return made(definition, options, {join("neurons::", definition.name, ": ")});
}

/// One option in words.
struct OptionText {
  std::string name, preset, allowed;
};

/// A definition without the type of its options.
struct Entry {
  std::string name, python, doc, equations;
  std::vector<OptionText> options;
  std::function<Neuron(const std::map<std::string, std::string>& values, const Owner& owner, bool open)> make;
};

template <class Options>
Entry entry(const Definition<Options>& definition) {
  Entry out{definition.name, definition.python, definition.doc, definition.equations, {}, {}};
  for_each(definition, [&, preset = Options()](const Field<Options>& field, auto member) {
    const Allowed allowed{field.allowed, field.words};
    out.options.push_back({field.name, text_of(preset.*member), allowed.text(preset.*member)});
  });
  out.make = [definition](const std::map<std::string, std::string>& values, const Owner& owner, bool open) {
    Options options;
    for_each(definition, [&](const Field<Options>& field, auto member) {
      if (const auto given = values.find(field.name); given != values.end())
        read(owner, field.name, given->second, options.*member);
    });
    return made(definition, options, owner, open);
  };
  return out;
}

// The chapters of the library.
std::vector<Entry> integrating_neurons();
std::vector<Entry> leaky_neurons();
std::vector<Entry> leaky_variants();
std::vector<Entry> nonlinear_neurons();
std::vector<Entry> silent_neurons();

/// All of them, in the order of the lists that people see.
const std::vector<Entry>& all_neurons();
/// The one of this name; an error that names the others where there is none.
const Entry& neuron_entry(const std::string& name);

/// What is the same for neurons that fire and reset.
template <class Options>
std::vector<Field<Options>> with_firing(std::vector<Field<Options>> own) {
  own.push_back({"v_threshold", &Options::v_threshold});
  own.push_back({"v_reset", &Options::v_reset});
  own.push_back({"detach_reset", &Options::detach_reset});
  own.push_back({"surrogate", &Options::surrogate});
  return own;
}

/// A soft reset takes the threshold away, which must make the potential less.
void require_threshold(const Limits& limits, const Number& v_threshold, const std::optional<double>& v_reset);
template <class Options>
void soft_threshold(const Limits& limits, const Options& o) {
  require_threshold(limits, o.v_threshold, o.v_reset);
}

/// Ends a step that has charged to h: spike, reset, output.
template <class Options>
void fire_and_reset(const Scope& s, const Options& o, const Value& v, const Value& h) {
  const Factor threshold = s.number("v_threshold", o.v_threshold);
  const Value z = s.spike(h.named("h") - threshold, o.surrogate);
  s->next(v, s.reset(h, z, threshold, o.v_reset, o.detach_reset, o.surrogate));
  s->output("s", z);
}

/// A membrane that leaks by `leak(y)`, which is y / tau; the input too where it decays.
Value leaked(const Value& x, const Value& v, double rest, bool decay_input,
             const std::function<Value(const Value&)>& leak);

}  // namespace flexsn::library
