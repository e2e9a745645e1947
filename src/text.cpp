#include "text.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "environment.h"
#include "error.h"
#include "lex.h"
#include "literal.h"
#include "ops.h"

namespace flexsn {

using namespace ir;

namespace {

bool plain_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || !letter(name[0]) || name == "expanded" || name == "of") return false;
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.'; });
}

std::string quoted(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (byte < 0x20 || byte == 0x7f)
      out += "\\x", out += digits[byte >> 4], out += digits[byte & 15];
    else
      out += c;
  }
  return out + '"';
}

std::string name_text(std::string_view name) { return plain_name(name) ? std::string(name) : quoted(name); }

constexpr std::string_view role_words[] = {"input", "state", "param", "grad", "grad"};

class Printer {
 public:
  Printer(const Graph& graph, PrintStyle style) : graph_(graph), style_(style), names_(graph.nodes.size()) {
    // With names the text follows the writer; without, it shows what is computed and nothing else.
    std::vector<Id> all(graph.nodes.size());
    std::iota(all.begin(), all.end(), 0);
    for (Id id : style.names ? all : live_order(graph))
      if (graph.at(id).op != Op::constant && graph.at(id).op != Op::argument) ops_.push_back(id);
    choose_names();
    int number = 0;
    for (const Result& result : graph.results)
      output_numbers_.push_back(result.gives == Gives::output ? number++ : -1);
  }

  std::string text() {
    out_.imbue(std::locale::classic());
    out_.exceptions(std::ios::badbit);  // or a text would be cut off where memory ends
    out_ << "neuron";
    if (style_.names && !graph_.name.empty()) out_ << ' ' << name_text(graph_.name);
    if (graph_.expanded) out_ << " expanded";
    out_ << (style_.lines ? " {\n" : " { ");
    for (int index : argument_order(graph_)) print_argument(graph_.arguments[index]);
    const std::vector<bool> once = hoistable(graph_);
    for (Id id : ops_) print_node(id, once[id]);
    for (int index : result_order(graph_)) print_result(graph_.results[index]);
    out_ << (style_.lines ? "}\n" : "}");
    return out_.str();
  }

 private:
  // A value is called by its own name where it has one that nothing else has, else by its number.
  void choose_names() {
    std::set<std::string> taken;
    int number = 0;
    const auto choose = [&](Id id, const std::string& wanted) {
      std::string& name = names_[id];
      // A number would be taken for the value with that number, and other bytes cannot be read back.
      const bool usable = style_.names && !wanted.empty() &&
                          wanted.find_first_not_of("0123456789") != std::string::npos &&
                          first_non_utf8(wanted) == std::string::npos;
      name = usable && taken.insert(wanted).second ? name_text(wanted) : std::to_string(number);
      ++number;
    };
    for (int index : argument_order(graph_))
      choose(graph_.arguments[index].value, graph_.arguments[index].name);
    for (Id id : ops_) choose(id, graph_.debug_at(id).name);
  }

  std::string indent() const { return style_.names && style_.lines ? "  " : ""; }
  void end_statement() { out_ << (style_.lines ? "\n" : "; "); }

  std::string value_text(Id id) const {
    const Node& node = graph_.at(id);
    if (node.op == Op::constant)
      return join(name_of(node.type), "(", literal(node.type, node.immediate), ")");
    return "%" + names_[id];
  }

  void print_location(const Location& location) {
    if (style_.locations && style_.names && location.file >= 0)
      out_ << " @ " << quoted(graph_.files[location.file]) << ':' << location.line;
  }

  void print_argument(const Argument& argument) {
    out_ << indent() << role_words[static_cast<int>(argument.role)];
    if (style_.names && !argument.name.empty()) out_ << ' ' << name_text(argument.name);
    out_ << " : " << name_of(argument.mem);
    if (argument.per_step) out_ << " per_step";
    if (argument.role == Role::grad_output) out_ << " of output " << output_text(argument.of);
    if (argument.role == Role::grad_next) out_ << " of next " << argument_text(argument.of);
    if (style_.names) {
      const bool state = argument.role == Role::state, param = argument.role == Role::param;
      if (argument.has_default || (state && (argument.initial != 0 || std::signbit(argument.initial))))
        out_ << " = " << literal(Type::f64, bits_of(Type::f64, argument.initial));
      if (param && (argument.range.low != Range().low || argument.range.high != Range().high))
        out_ << " in [" << literal(Type::f64, bits_of(Type::f64, argument.range.low)) << ", "
             << literal(Type::f64, bits_of(Type::f64, argument.range.high)) << ']';
    }
    print_location(argument.location);
    end_statement();
  }

  std::string output_text(int index) const {
    const std::string& name = graph_.results[index].name;
    if (style_.names && !name.empty()) return name_text(name);
    return std::to_string(output_numbers_[index]);
  }

  std::string argument_text(int index) const {
    const Argument& argument = graph_.arguments[index];
    return style_.names && !argument.name.empty() ? name_text(argument.name) : "%" + names_[argument.value];
  }

  void print_node(Id id, bool once) {
    const Node& node = graph_.nodes[id];
    const Row& row = row_of(node.op);
    bool shown = false;  // does an operand other than a constant show T?
    for (int i = row.meaning.sig.first == SigType::T ? 0 : 1; i < row.arity; ++i)
      shown |= graph_.at(node.operands[i]).op != Op::constant;
    out_ << indent() << '%' << names_[id] << " = " << row.name;
    for (int i = 0; i < row.arity; ++i) {
      const Node& operand = graph_.at(node.operands[i]);
      const bool fixed = i == 0 && row.meaning.sig.first != SigType::T;
      out_ << (i ? ", " : " ");
      if (operand.op == Op::constant && (fixed || shown))
        out_ << literal(operand.type, operand.immediate);
      else
        out_ << value_text(node.operands[i]);
    }
    if (style_.names) out_ << " : " << name_of(node.type);
    print_location(graph_.debug[id].location);
    if (style_.names && style_.lines && once) out_ << "  # once a call";
    end_statement();
  }

  void print_result(const Result& result) {
    out_ << indent();
    if (result.gives == Gives::output) {
      out_ << "output";
      if (style_.names && !result.name.empty()) out_ << ' ' << name_text(result.name);
    } else {
      out_ << (result.gives == Gives::next ? "next " : "grad of ") << argument_text(result.of);
    }
    out_ << " = " << value_text(result.value);
    if (result.gives == Gives::output) out_ << " : " << name_of(result.mem);
    print_location(result.location);
    end_statement();
  }

  const Graph& graph_;
  const PrintStyle style_;
  std::vector<Id> ops_;
  std::vector<int> output_numbers_;  ///< for each result: its number among the outputs
  std::vector<std::string> names_;
  std::ostringstream out_;
};

}  // namespace

std::string print(const Graph& graph, PrintStyle style) {
  const IeeeEnvironment environment;  // constants may be subnormal
  return Printer(graph, style).text();
}

std::string canonical(const Graph& graph) { return print(graph, {.names = false}); }

}  // namespace flexsn
