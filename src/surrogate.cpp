// Surrogates: the value of a hard threshold with the gradient of something smoother.
#include <cmath>
#include <numbers>

#include "settings.h"
#include "trace.h"

namespace flexsn {

using namespace library;

namespace {

constexpr double pi = std::numbers::pi;

/// A number of a surrogate that is being made.
struct Setting {
  const char* name;
  double number;
  Interval allowed;
  std::string in_words = allowed.text();
};

/// Checks the numbers of a surrogate and writes them down.
Surrogate made(Surrogate surrogate, const std::vector<Setting>& settings) {
  const Owner owner{join("surrogate '", surrogate.name, "': ")};
  for (const Setting& setting : settings) {
    owner.require(setting.name, setting.number, setting.allowed);
    surrogate.settings += join(surrogate.settings.empty() ? "" : ":", setting.name, "=", setting.number);
    surrogate.allowed.push_back(setting.in_words);
  }
  return surrogate;
}

}  // namespace

namespace surrogate {

Surrogate sigmoid(double alpha) {
  return made({"sigmoid",
               [alpha](const Value& u) {
                 const Value s = flexsn::sigmoid(alpha * u);
                 return alpha * ((1.0 - s) * s);
               },
               [alpha](const Value& u) { return flexsn::sigmoid(alpha * u); }},
              {{"alpha", alpha, above(0)}});
}

Surrogate atan(double alpha) {
  const double slope = pi * alpha / 2;
  return made({"atan",
               [alpha, slope](const Value& u) {
                 const Value scaled = slope * u;
                 return (alpha / 2) / (1.0 + scaled * scaled);
               },
               [slope](const Value& u) { return flexsn::atan(slope * u) / pi + 0.5; }},
              {{"alpha", alpha, above(0)}});
}

Surrogate triangle(double alpha) {
  const double square = alpha * alpha;
  return made({"triangle", [=](const Value& u) { return maximum(alpha - square * abs(u), 0.0); },
               [=](const Value& u) {
                 const Value inside = alpha * u + 0.5 - (square / 2) * (u * abs(u));
                 return select(abs(u) <= 1 / alpha, inside, select(u > 0.0, like(u, 1), like(u, 0)));
               }},
              {{"alpha", alpha, above(0)}});
}

Surrogate rectangle(double alpha) {
  return made(
      {"rectangle",
       [alpha](const Value& u) { return select(abs(u) < 1 / (2 * alpha), like(u, alpha), like(u, 0)); },
       [alpha](const Value& u) { return clamp(alpha * u + 0.5, 0.0, 1.0); }},
      {{"alpha", alpha, above(0)}});
}

Surrogate super_spike(double alpha) {
  return made({"super_spike",
               [alpha](const Value& u) {
                 const Value distance = abs(u) + 1.0;
                 return alpha / (distance * distance);
               },
               {}},
              {{"alpha", alpha, above(0)}});
}

Surrogate piecewise_exp(double alpha) {
  return made({"piecewise_exp", [alpha](const Value& u) { return (alpha / 2) * exp(-alpha * abs(u)); },
               [alpha](const Value& u) {
                 const Value tail = exp(-alpha * abs(u)) / 2.0;
                 return select(u >= 0.0, 1.0 - tail, tail);
               }},
              {{"alpha", alpha, above(0)}});
}

Surrogate soft_sign(double alpha) {
  return made({"soft_sign",
               [alpha](const Value& u) {
                 const Value distance = 1 / alpha + abs(u);
                 return 1.0 / ((2 * alpha) * (distance * distance));
               },
               [alpha](const Value& u) {
                 const Value scaled = alpha * u;
                 return (scaled / (abs(scaled) + 1.0) + 1.0) / 2.0;
               }},
              {{"alpha", alpha, above(0)}});
}

Surrogate erf(double alpha) {
  return made({"erf",
               [alpha](const Value& u) {
                 const Value scaled = alpha * u;
                 return (alpha / std::sqrt(pi)) * exp(-(scaled * scaled));
               },
               [alpha](const Value& u) { return (flexsn::erf(alpha * u) + 1.0) / 2.0; }},
              {{"alpha", alpha, above(0)}});
}

Surrogate nonzero_sign_log_abs(double alpha) {
  return made({"nonzero_sign_log_abs", [alpha](const Value& u) { return 1.0 / (1 / alpha + abs(u)); },
               [alpha](const Value& u) {
                 const Value grown = log(alpha * abs(u) + 1.0);
                 return select(u >= 0.0, grown, -grown);
               }},
              {{"alpha", alpha, above(0)}});
}

Surrogate piecewise_leaky_relu(double w, double c) {
  return made({"piecewise_leaky_relu",
               [=](const Value& u) { return select(abs(u) < w, like(u, 1 / (2 * w)), like(u, c)); },
               [=](const Value& u) {
                 const Value outside = select(u > w, c * u + (1 - c * w), c * u + c * w);
                 return select(abs(u) <= w, u / (2 * w) + 0.5, outside);
               }},
              {{"w", w, above(0)}, {"c", c, at_least(0)}});
}

Surrogate squarewave_fourier_series(int n, double T_period) {
  constexpr int most = 64;
  Owner{"surrogate 'squarewave_fourier_series': "}.require_whole("n", n, 2, most);
  // The first n - 1 terms, one of each odd frequency.
  const double frequency = 2 * pi / T_period;
  const auto sum = [n](const std::function<Value(double)>& term) {
    Value total = term(1);
    for (int i = 2; i < n; ++i) total += term(2 * i - 1);
    return total;
  };
  return made({"squarewave_fourier_series",
               [=](const Value& u) {
                 return (4 / T_period) * sum([&](double odd) { return cos((odd * frequency) * u); });
               },
               [=](const Value& u) {
                 return (2 / pi) * sum([&](double odd) { return sin((odd * frequency) * u) / odd; }) + 0.5;
               }},
              {{"n", static_cast<double>(n), {}, whole_number(2, most)}, {"T_period", T_period, above(0)}});
}

Surrogate s2nn(double alpha, double beta) {
  return made({"s2nn",
               [=](const Value& u) {
                 const Value s = flexsn::sigmoid(alpha * u);
                 return select(u < 0.0, alpha * (s * (1.0 - s)), beta / (u + 1.0));
               },
               [=](const Value& u) {
                 return select(u < 0.0, flexsn::sigmoid(alpha * u), beta * log(abs(u + 1.0) + 1e-5) + 0.5);
               }},
              {{"alpha", alpha, above(0)}, {"beta", beta, above(0)}});
}

Surrogate q_pseudo_spike(double alpha) {
  const double slope = 2 / (alpha - 1);
  return made({"q_pseudo_spike", [=](const Value& u) { return pow(slope * abs(u) + 1.0, -alpha); },
               [=](const Value& u) {
                 const Value tail = 0.5 * pow(slope * abs(u) + 1.0, 1 - alpha);
                 return select(u >= 0.0, 1.0 - tail, tail);
               }},
              {{"alpha", alpha, above(1)}});
}

Surrogate leaky_k_relu(double leak, double k) {
  const auto slope = [=](const Value& u) { return select(u >= 0.0, like(u, k), like(u, leak)); };
  return made({"leaky_k_relu", slope, [=](const Value& u) { return slope(u) * u; }},
              {{"leak", leak, {}}, {"k", k, {}}});
}

Surrogate fake_numerical_gradient(double alpha) {
  return made({"fake_numerical_gradient", [=](const Value& u) { return minimum(1.0 / abs(u), alpha); }, {}},
              {{"alpha", alpha, above(0)}});
}

Surrogate log_tailed_relu(double alpha) {
  return made(
      {"log_tailed_relu",
       [=](const Value& u) { return select(u > 1.0, 1.0 / u, select(u > 0.0, like(u, 1), like(u, alpha))); },
       [=](const Value& u) {
         return select(u > 1.0, log(maximum(u, 1.0)) + 1.0, select(u > 0.0, u, alpha * u));
       }},
      {{"alpha", alpha, {}}});
}

Surrogate deterministic_pass() {
  return made(
      {"deterministic_pass", [](const Value& u) { return like(u, 1); }, [](const Value& u) { return u; }},
      {});
}

Surrogate multi_level_spike_count(int max_spike_count, std::optional<double> grad_min,
                                  std::optional<double> grad_max) {
  const Owner owner{"surrogate 'multi_level_spike_count': "};
  constexpr int largest = std::numeric_limits<int>::max();
  owner.require_whole("max_spike_count", max_spike_count, 1, largest);
  const double most = max_spike_count, low = grad_min.value_or(0), high = grad_max.value_or(most);
  Surrogate surrogate =
      made({"multi_level_spike_count",
            [=](const Value& u) { return select((u >= low) & (u <= high), like(u, 1), like(u, 0)); },
            [=](const Value& u) { return clamp(u, 0.0, most); }},
           {{"max_spike_count", most, {}, whole_number(1, largest)},
            {"grad_min", low, {}, "a finite number, or none"},
            {"grad_max", high, at_least(low), "a number of at least grad_min, or none"}});
  surrogate.value = [=](const Value& u) { return round(clamp(u, 0.0, most)); };
  return surrogate;
}

}  // namespace surrogate

// ---- by name ---------------------------------------------------------------------------------------

namespace {

struct Option {
  std::string name, preset;
};

/// The numbers of a surrogate, as they were read.
class Read {
 public:
  Read(Owner owner, std::map<std::string, std::string> values)
      : owner_(std::move(owner)), values_(std::move(values)) {}
  double operator[](const char* name) const { return read_number(owner_, name, values_.at(name)); }
  int whole(const char* name) const { return read_whole(owner_, name, values_.at(name)); }
  std::optional<double> optional(const char* name) const {
    return values_.at(name) == "none" ? std::nullopt : std::optional((*this)[name]);
  }

 private:
  Owner owner_;
  std::map<std::string, std::string> values_;
};

struct Entry {
  std::string name;
  std::vector<Option> options;
  std::string derivative, smooth;
  Surrogate (*make)(const Read& read);
};

const std::vector<Entry>& entries() {
  using namespace surrogate;
  static const std::vector<Entry> all = {
      {"sigmoid",
       {{"alpha", "4"}},
       "alpha s (1 - s), s = sigmoid(alpha u)",
       "sigmoid(alpha u)",
       [](const Read& o) { return sigmoid(o["alpha"]); }},
      {"atan",
       {{"alpha", "2"}},
       "(alpha / 2) / (1 + (pi alpha u / 2)^2)",
       "atan(pi alpha u / 2) / pi + 1/2",
       [](const Read& o) { return atan(o["alpha"]); }},
      {"triangle",
       {{"alpha", "1"}},
       "max(alpha - alpha^2 |u|, 0)",
       "1/2 + alpha u - alpha^2 u |u| / 2 for |u| <= 1 / alpha, else 0 or 1",
       [](const Read& o) { return triangle(o["alpha"]); }},
      {"rectangle",
       {{"alpha", "1"}},
       "alpha for |u| < 1 / (2 alpha), else 0",
       "clamp(alpha u + 1/2, 0, 1)",
       [](const Read& o) { return rectangle(o["alpha"]); }},
      {"super_spike",
       {{"alpha", "1"}},
       "alpha / (|u| + 1)^2",
       "",
       [](const Read& o) { return super_spike(o["alpha"]); }},
      {"piecewise_exp",
       {{"alpha", "1"}},
       "(alpha / 2) exp(-alpha |u|)",
       "1 - exp(-alpha u) / 2 for u >= 0, else exp(alpha u) / 2",
       [](const Read& o) { return piecewise_exp(o["alpha"]); }},
      {"soft_sign",
       {{"alpha", "2"}},
       "1 / (2 alpha (1 / alpha + |u|)^2)",
       "(alpha u / (1 + |alpha u|) + 1) / 2",
       [](const Read& o) { return soft_sign(o["alpha"]); }},
      {"erf",
       {{"alpha", "2"}},
       "alpha / sqrt(pi) exp(-(alpha u)^2)",
       "(1 + erf(alpha u)) / 2",
       [](const Read& o) { return erf(o["alpha"]); }},
      {"nonzero_sign_log_abs",
       {{"alpha", "1"}},
       "1 / (1 / alpha + |u|)",
       "log(alpha |u| + 1), negative for u < 0",
       [](const Read& o) { return nonzero_sign_log_abs(o["alpha"]); }},
      {"piecewise_leaky_relu",
       {{"w", "1"}, {"c", "0.01"}},
       "1 / (2 w) for |u| < w, else c",
       "u / (2 w) + 1/2 for |u| <= w, with slope c beyond",
       [](const Read& o) { return piecewise_leaky_relu(o["w"], o["c"]); }},
      {"squarewave_fourier_series",
       {{"n", "2"}, {"T_period", "8"}},
       "(4 / T_period) times the sum of cos((2i - 1) 2 pi u / T_period), i from 1 to n - 1",
       "1/2 + (2 / pi) times the sum of sin((2i - 1) 2 pi u / T_period) / (2i - 1)",
       [](const Read& o) { return squarewave_fourier_series(o.whole("n"), o["T_period"]); }},
      {"s2nn",
       {{"alpha", "4"}, {"beta", "1"}},
       "alpha s (1 - s), s = sigmoid(alpha u), for u < 0, else beta / (u + 1)",
       "sigmoid(alpha u) for u < 0, else beta log(|u + 1| + 1e-5) + 1/2",
       [](const Read& o) { return s2nn(o["alpha"], o["beta"]); }},
      {"q_pseudo_spike",
       {{"alpha", "2"}},
       "(1 + 2 |u| / (alpha - 1))^-alpha",
       "1 - t for u >= 0, else t, t = (1 + 2 |u| / (alpha - 1))^(1 - alpha) / 2",
       [](const Read& o) { return q_pseudo_spike(o["alpha"]); }},
      {"leaky_k_relu",
       {{"leak", "0"}, {"k", "1"}},
       "k for u >= 0, else leak",
       "k u for u >= 0, else leak u",
       [](const Read& o) { return leaky_k_relu(o["leak"], o["k"]); }},
      {"fake_numerical_gradient",
       {{"alpha", "0.3"}},
       "min(1 / |u|, alpha)",
       "",
       [](const Read& o) { return fake_numerical_gradient(o["alpha"]); }},
      {"log_tailed_relu",
       {{"alpha", "0"}},
       "alpha for u <= 0, 1 for u <= 1, else 1 / u",
       "alpha u for u <= 0, u for u <= 1, else log(u) + 1",
       [](const Read& o) { return log_tailed_relu(o["alpha"]); }},
      {"deterministic_pass", {}, "1", "u", [](const Read&) { return deterministic_pass(); }},
      {"multi_level_spike_count",
       {{"max_spike_count", "4"}, {"grad_min", "none"}, {"grad_max", "none"}},
       "1 for grad_min <= u <= grad_max, else 0",
       "clamp(u, 0, max_spike_count)",
       [](const Read& o) {
         return multi_level_spike_count(o.whole("max_spike_count"), o.optional("grad_min"),
                                        o.optional("grad_max"));
       }},
  };
  return all;
}

}  // namespace

Surrogate surrogate_named(std::string_view name_and_options) {
  const std::size_t colon = std::min(name_and_options.find(':'), name_and_options.size());
  const std::string name(name_and_options.substr(0, colon));
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.push_back(entry.name);
  for (const Entry& entry : entries()) {
    if (entry.name != name) continue;
    const std::string what = join("surrogate '", name, "'");
    std::vector<std::string> known;
    for (const Option& option : entry.options) known.push_back(option.name);
    known.emplace_back("spiking");
    std::map<std::string, std::string> values = read_assignments(
        what, name_and_options.substr(std::min(colon + 1, name_and_options.size())), ':', known);
    for (const Option& option : entry.options) values.emplace(option.name, option.preset);
    values.emplace("spiking", "true");
    const Owner owner{what + ": option ", true};
    Surrogate surrogate = entry.make({owner, values});
    surrogate.spiking = read_truth(owner, "spiking", values.at("spiking"));
    if (!surrogate.spiking && !surrogate.smooth)
      owner.fail("spiking", "true, since it has no smooth function", "false");
    return surrogate;
  }
  if (is_random_surrogate(name))
    user_error(
        "there is no surrogate '", name,
        "': its spikes are random, and a step draws no random numbers; draw them outside and pass them "
        "in as a second input, or use deterministic_pass, which has the same gradient");
  user_error("a surrogate must be ", either(names), ", found '", name, "'", did_you_mean(name, names));
}

std::vector<SurrogateInfo> surrogate_list() {
  std::vector<SurrogateInfo> list;
  for (const Entry& entry : entries()) {
    std::string options;
    for (const Option& option : entry.options)
      options += join(options.empty() ? "" : ":", option.name, "=", option.preset);
    list.push_back(
        {entry.name, options, entry.derivative, entry.smooth, surrogate_named(entry.name).allowed});
  }
  return list;
}

Value spike(const Operand& u, const Surrogate& surrogate) {
  const Trace::Lines lines(u);
  const Value& distance = Trace::value_of(u);
  if (!surrogate.spiking && !surrogate.smooth)
    user_error("surrogate '", surrogate.name,
               "' has no smooth function, so its spikes cannot be smooth; set spiking to true");
  if ((!surrogate.spiking || Trace::is_smooth(distance)) && surrogate.smooth)
    return surrogate.smooth(distance);
  if (!surrogate.derivative)
    user_error("surrogate '", surrogate.name, "' has no derivative; set it to a function of u");
  const Value fired = surrogate.value ? surrogate.value(distance)
                                      : select(distance >= 0.0, like(distance, 1), like(distance, 0));
  // The derivative of u * constant is that constant, so any derivative can be given as a formula.
  return with_grad(fired, distance * detach(surrogate.derivative(distance)));
}

}  // namespace flexsn
