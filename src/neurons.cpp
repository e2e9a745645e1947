// The neurons of the library by name, and the list of them.
#include "library.h"

namespace flexsn {

namespace library {

const std::vector<Entry>& all_neurons() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> list;
    for (auto chapter :
         {integrating_neurons, leaky_neurons, leaky_variants, nonlinear_neurons, silent_neurons}) {
      std::vector<Entry> some = chapter();
      std::move(some.begin(), some.end(), std::back_inserter(list));
    }
    return list;
  }();
  return all;
}

const Entry& neuron_entry(const std::string& name) {
  std::vector<std::string> names;
  for (const Entry& entry : all_neurons()) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  std::string all;
  for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
  user_error("there is no built-in neuron '", name, "'", did_you_mean(name, names), "; there are ", all,
             ", or give the path of an .fsn file");
}

}  // namespace library

Neuron neuron_named(std::string_view name_and_options) {
  const std::size_t colon = std::min(name_and_options.find(':'), name_and_options.size());
  const std::string name(name_and_options.substr(0, colon));
  const library::Entry& entry = library::neuron_entry(name);
  const std::string_view text = name_and_options.substr(std::min(colon + 1, name_and_options.size()));
  const std::string what = join("neuron '", entry.name, "'");
  std::vector<std::string> known;
  for (const library::OptionText& option : entry.options) known.push_back(option.name);
  return entry.make(library::read_assignments(what, text, ',', known), {what + ": option ", true}, false);
}

std::vector<NeuronInfo> neuron_list() {
  std::vector<NeuronInfo> list;
  for (const library::Entry& entry : library::all_neurons()) {
    std::string options;
    std::vector<std::string> allowed;
    for (const library::OptionText& option : entry.options) {
      options += join(options.empty() ? "" : ",", option.name, "=", option.preset);
      allowed.push_back(option.allowed);
    }
    list.push_back({entry.name, options, entry.doc, entry.equations, entry.python, allowed});
  }
  return list;
}

}  // namespace flexsn
