// The built-in neurons, each a step function with the options that the command line offers.
#include <charconv>
#include <cmath>
#include <set>

#include "error.h"

namespace flexsn {

namespace {

struct Option {
  std::string name;
  std::string value;  ///< the default, as a person writes it
};

/// The options of one neuron: defaults, then what was asked for.
class Options {
 public:
  Options(std::string neuron, const std::vector<Option>& known, std::string_view text)
      : neuron_(std::move(neuron)) {
    for (const Option& option : known) values_[option.name] = option.value;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(','), text.size());
      set(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  double number(const std::string& name) const {
    const std::string& text = values_.at(name);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail(name, "a number");
    return value;
  }
  /// "none" gives nothing.
  std::optional<double> optional_number(const std::string& name) const {
    return values_.at(name) == "none" ? std::nullopt : std::optional(number(name));
  }
  bool truth(const std::string& name) const {
    const std::string& text = values_.at(name);
    if (text != "true" && text != "false") fail(name, "true or false");
    return text == "true";
  }
  Surrogate surrogate() const {
    const std::string& name = values_.at("surrogate");
    const std::optional<double> alpha = optional_number("alpha");
    using Make = Surrogate (*)(double);
    const std::map<std::string, std::pair<Make, double>> known = {
        {"sigmoid", {surrogate::sigmoid, 4}},
        {"atan", {surrogate::atan, 2}},
        {"triangle", {surrogate::triangle, 1}},
        {"rectangle", {surrogate::rectangle, 1}},
        {"super_spike", {surrogate::super_spike, 1}}};
    const auto found = known.find(name);
    if (found == known.end()) fail("surrogate", "sigmoid, atan, triangle, rectangle or super_spike");
    return found->second.first(alpha.value_or(found->second.second));
  }
  double positive(const std::string& name, double above = 0) const {
    const double value = number(name);
    if (!(value > above) || !std::isfinite(value)) fail(name, join("a number above ", above));
    return value;
  }

 private:
  void set(std::string_view assignment) {
    const std::size_t equals = assignment.find('=');
    const std::string name(assignment.substr(0, equals));
    std::vector<std::string> names;
    for (const auto& [known, value] : values_) names.push_back(known);
    if (equals == std::string_view::npos)
      user_error("neuron '", neuron_, "': expected OPTION=VALUE, found '", assignment, "'");
    if (!values_.contains(name)) {
      std::string all;
      for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
      user_error("neuron '", neuron_, "': there is no option '", name, "'", did_you_mean(name, names),
                 "; the options are ", all.empty() ? "none" : all);
    }
    if (!given_.insert(name).second)
      user_error("neuron '", neuron_, "': option ", name, " is given twice; give it once");
    values_[name] = assignment.substr(equals + 1);
  }
  [[noreturn]] void fail(const std::string& name, const std::string& expected) const {
    user_error("neuron '", neuron_, "': option ", name, " must be ", expected, ", found '", values_.at(name),
               "'");
  }

  std::string neuron_;
  std::map<std::string, std::string> values_;
  std::set<std::string> given_;
};

/// Fire at `v_threshold`, then reset: hard to `v_reset`, or soft (by subtraction) where there is none.
struct Firing {
  double v_threshold;
  std::optional<double> v_reset;
  bool detach_reset;
  Surrogate surrogate;

  explicit Firing(const Options& options)
      : v_threshold(options.number("v_threshold")),
        v_reset(options.optional_number("v_reset")),
        detach_reset(options.truth("detach_reset")),
        surrogate(options.surrogate()) {}

  Value fire(const Value& h) const { return spike(h - v_threshold, surrogate).named("spike"); }
  Value reset(const Value& h, const Value& s) const {
    const Value z = detach_reset ? detach(s) : s;
    if (!v_reset) return h - v_threshold * z;
    // The value is chosen, which no infinity can spoil; the gradient is that of the usual formula.
    const Value kept = (1.0 - z) * h;
    return with_grad(select(s > 0.0, like(h, *v_reset), h), *v_reset == 0 ? kept : *v_reset * z + kept);
  }
};

std::vector<Option> with_firing(std::vector<Option> own, std::optional<Option> replaced = {}) {
  for (const Option& option :
       {Option{"v_threshold", "1"}, Option{"v_reset", "0"}, Option{"detach_reset", "false"},
        Option{"surrogate", "sigmoid"}, Option{"alpha", "none"}})
    own.push_back(replaced && replaced->name == option.name ? *replaced : option);
  return own;
}

/// Ends a step that has charged to h: spike, reset, output.
void fire_and_reset(Step& step, const Firing& firing, const Value& v, const Value& h) {
  const Value s = firing.fire(h.named("h"));
  step.next(v, firing.reset(h, s));
  step.output("s", s);
}

/// The membrane with leak rate 1/tau given by `leak(y)`, which divides or multiplies.
Value charge(const Value& x, const Value& v, double rest, bool decay_input,
             const std::function<Value(const Value&)>& leak) {
  const Value from_rest = rest == 0 ? v : v - rest;
  return decay_input ? v + leak(x - from_rest) : v - leak(from_rest) + x;
}

struct Entry {
  const char* name;
  const char* doc;
  std::vector<Option> options;
  std::function<void(Step&)> (*make)(const Options& options);
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {"if", "integrate and fire: h = v + x", with_firing({}),
       [](const Options& o) -> std::function<void(Step&)> {
         return [firing = Firing(o)](Step& s) {
           const Value x = s.input("x"), v = s.state("v", firing.v_reset.value_or(0));
           fire_and_reset(s, firing, v, v + x);
         };
       }},
      {"lif", "leaky integrate and fire: h = v + (x - (v - v_reset)) / tau",
       with_firing({{"tau", "2"}, {"decay_input", "true"}}),
       [](const Options& o) -> std::function<void(Step&)> {
         return [firing = Firing(o), tau = o.positive("tau"), decay = o.truth("decay_input")](Step& s) {
           const Value x = s.input("x"), v = s.state("v", firing.v_reset.value_or(0));
           fire_and_reset(
               s, firing, v,
               charge(x, v, firing.v_reset.value_or(0), decay, [tau](const Value& y) { return y / tau; }));
         };
       }},
      {"plif", "LIF with a learnable time constant: 1 / tau = sigmoid(w)",
       with_firing({{"init_tau", "2"}, {"decay_input", "true"}}),
       [](const Options& o) -> std::function<void(Step&)> {
         return [firing = Firing(o), init_tau = o.positive("init_tau", 1),
                 decay = o.truth("decay_input")](Step& s) {
           const Value x = s.input("x"), v = s.state("v", firing.v_reset.value_or(0)),
                       w = s.param("w", -std::log(init_tau - 1));
           const Value rate = sigmoid(w).named("rate");
           fire_and_reset(s, firing, v, charge(x, v, firing.v_reset.value_or(0), decay, [&](const Value& y) {
                            return y * rate;
                          }));
         };
       }},
      {"alif", "adaptive LIF: the threshold rises with each spike by beta and decays at rate rho",
       with_firing({{"tau", "2"}, {"beta", "0.2"}, {"rho", "0.9"}}, Option{"surrogate", "atan"}),
       [](const Options& o) -> std::function<void(Step&)> {
         return [firing = Firing(o), tau = o.positive("tau"), beta = o.number("beta"),
                 rho = o.number("rho")](Step& s) {
           const Value x = s.input("x"), v = s.state("v", firing.v_reset.value_or(0)), a = s.state("a");
           const Value time_constant = s.param("tau", tau, {.low = 1e-6});
           const Value h = (v + (x - v) / time_constant).named("h");
           const Value z = spike(h - firing.v_threshold - beta * a, firing.surrogate).named("spike");
           s.next(v, firing.reset(h, z));
           s.next(a, rho * a + z);
           s.output("s", z);
         };
       }},
      {"izhikevich", "quadratic membrane with a recovery variable w",
       with_firing({{"tau", "2"},
                    {"v_c", "0.8"},
                    {"a0", "1"},
                    {"v_rest", "-0.1"},
                    {"w_rest", "0"},
                    {"tau_w", "2"},
                    {"a", "0"},
                    {"b", "0"}}),
       [](const Options& o) -> std::function<void(Step&)> {
         return [firing = Firing(o), tau = o.positive("tau"), v_c = o.number("v_c"), a0 = o.number("a0"),
                 v_rest = o.number("v_rest"), w_rest = o.number("w_rest"), tau_w = o.positive("tau_w"),
                 a = o.number("a"), b = o.number("b")](Step& s) {
           const Value x = s.input("x"), v = s.state("v", firing.v_reset.value_or(0)),
                       w = s.state("w", w_rest);
           const Value h = (v + (x + a0 * (v - v_rest) * (v - v_c) - w) / tau).named("h");
           const Value recovered = w + (a * (h - v_rest) - w) / tau_w;
           const Value z = firing.fire(h);
           s.next(v, firing.reset(h, z));
           s.next(w, recovered + b * z);
           s.output("s", z);
         };
       }},
      {"adex",
       "adaptive exponential: h = v + (x - (v - v_rest) + delta_t exp((v - v_rh) / delta_t) - w) / tau",
       with_firing({{"tau", "2"},
                    {"delta_t", "0.5"},
                    {"v_rh", "0.8"},
                    {"v_rest", "0"},
                    {"tau_w", "20"},
                    {"a", "0.1"},
                    {"b", "0.2"}}),
       [](const Options& o) -> std::function<void(Step&)> {
         return [firing = Firing(o), tau = o.positive("tau"), delta_t = o.positive("delta_t"),
                 v_rh = o.number("v_rh"), v_rest = o.number("v_rest"), tau_w = o.positive("tau_w"),
                 a = o.number("a"), b = o.number("b")](Step& s) {
           const Value x = s.input("x"), v = s.state("v", firing.v_reset.value_or(0)), w = s.state("w");
           const Value upswing = (delta_t * exp((v - v_rh) / delta_t)).named("upswing");
           const Value h = (v + (x - (v - v_rest) + upswing - w) / tau).named("h");
           const Value z = firing.fire(h);
           s.next(v, firing.reset(h, z));
           s.next(w, w + (a * (v - v_rest) - w) / tau_w + b * z);
           s.output("s", z);
         };
       }},
  };
  return all;
}

}  // namespace

Neuron neuron_named(std::string_view name_and_options) {
  const std::size_t colon = std::min(name_and_options.find(':'), name_and_options.size());
  const std::string name(name_and_options.substr(0, colon));
  std::vector<std::string> names;
  for (const Entry& entry : entries()) {
    names.emplace_back(entry.name);
    if (name != entry.name) continue;
    const std::string_view text = name_and_options.substr(std::min(colon + 1, name_and_options.size()));
    return Neuron(name, entry.make(Options(name, entry.options, text)));
  }
  std::string all;
  for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
  user_error("there is no built-in neuron '", name, "'", did_you_mean(name, names), "; there are ", all,
             ", or give the path of an .fsn file");
}

std::vector<NeuronInfo> neuron_list() {
  std::vector<NeuronInfo> list;
  for (const Entry& entry : entries()) {
    std::string options;
    for (const Option& option : entry.options)
      options += join(options.empty() ? "" : ",", option.name, "=", option.value);
    list.push_back({entry.name, options, entry.doc});
  }
  return list;
}

}  // namespace flexsn
