// The reader of `.fsn`. Statements end with the line or a semicolon, so one pass over the tokens with one
// token of look-ahead is enough; every error names the place, what was found, and what to write instead.
#include <set>

#include "environment.h"
#include "error.h"
#include "lex.h"
#include "literal.h"
#include "ops.h"
#include "text.h"

namespace flexsn {

using namespace ir;

namespace {

/// An operand as written: a value, or a literal whose type may still have to be found.
struct Written {
  Token token;
  Id value = no_id;
  std::string number = {};         ///< a literal's digits, "nan", "nan(0x...)", "true", ...
  std::optional<Type> typed = {};  ///< f32(...) and the like
};

class Parser {
 public:
  Parser(std::string_view text, std::string_view file) : lexer_(text, file) {
    graph_.files.emplace_back(file);
    take();
  }

  Graph graph() {
    skip_ends();
    if (!is_word("neuron"))
      fail(join("expected 'neuron', found ", found(), "; a text starts with: neuron NAME {"));
    take();
    if ((token_.kind == TokenKind::word && token_.text != "expanded") || token_.kind == TokenKind::string)
      graph_.name = take().text;
    if (is_word("expanded")) {
      graph_.expanded = true;
      take();
    }
    expect_symbol("{", "a neuron's statements stand between { and }");
    for (skip_ends(); !is_symbol("}"); skip_ends()) {
      if (token_.kind == TokenKind::text_end) fail("the text ends inside the neuron; close it with }");
      statement();
      if (token_.kind == TokenKind::text_end) fail("the text ends inside the neuron; close it with }");
      if (token_.kind != TokenKind::statement_end && !is_symbol("}"))
        fail(join("expected the end of the line, found ", found(),
                  "; write one statement a line, or ; between them"));
    }
    take();
    skip_ends();
    if (token_.kind != TokenKind::text_end)
      fail(join("expected the end of the text after }, found ", found(), "; a file holds one neuron"));
    resolve_gradients();
    return std::move(graph_);
  }

 private:
  // ---- tokens ----
  Token take() {
    Token old = std::move(token_);
    token_ = lexer_.next();
    return old;
  }
  void skip_ends() {
    while (token_.kind == TokenKind::statement_end) take();
  }
  bool is_symbol(std::string_view text) const {
    return token_.kind == TokenKind::symbol && token_.text == text;
  }
  bool is_word(std::string_view text) const { return token_.kind == TokenKind::word && token_.text == text; }
  std::string found() const {
    const bool is_end = token_.kind == TokenKind::statement_end || token_.kind == TokenKind::text_end;
    if (is_end && token_.text != ";") return "the " + token_.text;
    return "'" + token_.text + "'";
  }
  [[noreturn]] void fail_at(const Token& token, const std::string& message) const {
    lexer_.fail(token.line, token.column, message);
  }
  [[noreturn]] void fail(const std::string& message) const { fail_at(token_, message); }
  void expect_symbol(std::string_view symbol, std::string_view remedy) {
    if (!is_symbol(symbol)) fail(join("expected '", symbol, "', found ", found(), "; ", remedy));
    take();
  }
  std::string name(std::string_view what) {
    if (token_.kind != TokenKind::word && token_.kind != TokenKind::string)
      fail(join("expected the name of ", what, ", found ", found(),
                "; a name is a word, or any text in quotes"));
    return take().text;
  }

  // ---- values ----
  /// `%name` or `%number`.
  std::string value_name() {
    expect_symbol("%", "a value is written %name or %number");
    if (token_.kind != TokenKind::word && token_.kind != TokenKind::string &&
        token_.kind != TokenKind::number)
      fail(join("expected a value's name after %, found ", found(), "; write %name or %number"));
    return take().text;
  }
  Id value_named(const Token& at, const std::string& name) const {
    const auto known = values_.find(name);
    if (known != values_.end()) return known->second;
    std::vector<std::string> names;
    for (const auto& [other, id] : values_) names.push_back(other);
    fail_at(at, join("unknown value %", name, did_you_mean(name, names),
                     "; a value must be defined above its use"));
  }
  void define(const Token& at, const std::string& name, Id id) {
    if (!values_.emplace(name, id).second)
      fail_at(at, join("the name %", name, " is used twice; every value needs a name of its own"));
  }
  Id constant_id(const Token& at, Type type, const std::string& number) {
    return constant_bits(graph_, type, literal_bits(at, type, number)).id;
  }

  static std::string untyped(const std::string& number) {
    const char* type = read_literal(Type::b1, number) ? "bool" : "f32";
    return join("cannot tell the type of '", number, "'; write ", type, "(", number, ")");
  }

  std::uint64_t literal_bits(const Token& at, Type type, const std::string& number) const {
    if (const std::optional<std::uint64_t> bits = read_literal(type, number)) return *bits;
    fail_at(at, join("'", number, "' does not fit ", name_of(type), "; write ",
                     type == Type::b1    ? "true or false"
                     : type == Type::i32 ? "a whole number from -2147483648 to 2147483647"
                                         : "a number like 0.5, 1e-3, 0x1.8p+1, inf, -inf or nan"));
  }

  /// A literal's digits; `nan(0x...)` is several tokens.
  std::string number_text() {
    std::string number = take().text;
    if (number == "nan" && is_symbol("(")) {
      take();
      number += "(" + take().text + ")";
      expect_symbol(")", "the bits of a NaN are written nan(0x7fc00001)");
    }
    return number;
  }
  bool at_literal() const {
    return token_.kind == TokenKind::number || is_word("nan") || is_word("inf") || is_word("true") ||
           is_word("false");
  }

  Written operand() {
    Written written{.token = token_};
    if (is_symbol("%")) {
      const Token at = token_;
      written.value = value_named(at, value_name());
    } else if (at_literal()) {
      written.number = number_text();
    } else if (token_.kind == TokenKind::word && mem_named(token_.text) && value_type_named(token_.text)) {
      written.typed = *value_type_named(take().text);
      expect_symbol("(", "a typed literal is written f32(0.5)");
      if (!at_literal())
        fail(join("expected a number, found ", found(), "; a typed literal is written f32(0.5)"));
      written.number = number_text();
      expect_symbol(")", "a typed literal is written f32(0.5)");
    } else {
      fail(join("expected a value or a number, found ", found(), "; write %name, 0.5 or f32(0.5)"));
    }
    return written;
  }
  static std::optional<Type> value_type_named(std::string_view name) {
    for (Type type : {Type::f32, Type::f64, Type::i32, Type::b1})
      if (name_of(type) == name) return type;
    return {};
  }

  Mem memory_type() {
    if (token_.kind != TokenKind::word)
      fail(join("expected a type, found ", found(), "; the types are f16, bf16, f32, f64, i32, u8 and bool"));
    if (token_.text == "i64" || token_.text == "int64")
      fail(join("there is no type '", token_.text, "'; use i32"));
    const std::optional<Mem> mem = mem_named(token_.text);
    if (!mem)
      fail(join("unknown type '", token_.text, "'",
                did_you_mean(token_.text, {"f16", "bf16", "f32", "f64", "i32", "u8", "bool"}),
                "; the types are f16, bf16, f32, f64, i32, u8 and bool"));
    take();
    return *mem;
  }

  Location location_of(const Token& at) { return {0, at.line}; }

  /// ` @ "file":line`, which replaces the line of this text.
  void optional_location(Location& location) {
    if (!is_symbol("@")) return;
    take();
    if (token_.kind != TokenKind::string)
      fail(join("expected a file name in quotes, found ", found(),
                "; a location is written @ \"file.cpp\":12"));
    const std::string file = take().text;
    expect_symbol(":", "a location is written @ \"file.cpp\":12");
    const std::optional<std::uint64_t> line = read_literal(Type::i32, token_.text);
    if (token_.kind != TokenKind::number || !line || number_of(Type::i32, *line) < 0)
      fail(join("expected a line number, found ", found(), "; a location is written @ \"file.cpp\":12"));
    take();
    auto known = files_.find(file);
    if (known == files_.end()) {
      known = files_.emplace(file, static_cast<int>(graph_.files.size())).first;
      graph_.files.push_back(file);
    }
    location = {known->second, static_cast<int>(*line)};
  }

  // ---- statements ----
  void statement() {
    if (is_symbol("%")) return op_statement();
    if (token_.kind != TokenKind::word)
      fail(join("expected a statement, found ", found(),
                "; it starts with input, state, param, output, next or %name ="));
    const std::string word = token_.text;
    if (word == "input") return argument_statement(Role::input);
    if (word == "state") return argument_statement(Role::state);
    if (word == "param") return argument_statement(Role::param);
    if (word == "output") return output_statement();
    if (word == "next") return of_statement(Gives::next);
    if (word == "grad") return grad_statement();
    fail(join("unknown statement '", word, "'",
              did_you_mean(word, {"input", "state", "param", "grad", "output", "next"}),
              "; it starts with input, state, param, output, next or %name ="));
  }

  void argument_statement(Role role) {
    const Token at = take();
    argument(at, role);
  }

  /// `grad of %x = ...` is a result, `grad [name] : f32 of ...` an argument.
  void grad_statement() {
    const Token at = take();
    if (is_word("of")) return result_of(at, Gives::grad);
    argument(at, Role::grad_output);
  }

  void argument(const Token& at, Role role) {
    Argument argument;
    argument.role = role;
    argument.location = location_of(at);
    const Token named = token_;
    if (!is_symbol(":")) argument.name = name("an argument");
    expect_symbol(":", "an argument is declared like: input x : f32");
    argument.mem = memory_type();
    if (is_word("per_step")) {
      if (role != Role::param)
        fail("only a param can be per_step: inputs always change with time, states never come from outside");
      argument.per_step = true;
      take();
    }
    if (role == Role::grad_output) gradient_of(argument);
    while (is_symbol("=") || is_word("in")) {
      if (is_word("in"))
        range(argument);
      else
        initial(argument);
    }
    optional_location(argument.location);
    if (!argument.name.empty() && !argument_names_.insert(argument.name).second)
      fail_at(named,
              join("the name '", argument.name, "' is used twice; every argument needs a name of its own"));
    const std::string value = argument.name.empty() ? std::to_string(next_number_) : argument.name;
    ++next_number_;
    const V node = add_argument(graph_, std::move(argument));
    define(named, value, node.id);
  }

  /// true and false are 1 and 0 to a bool.
  double plain_number(Mem mem = Mem::f64) {
    if (!at_literal()) fail(join("expected a number, found ", found(), "; write it like 0.5, 1e-3 or inf"));
    const Token at = token_;
    const std::string number = number_text();
    const Type type = mem == Mem::b8 && read_literal(Type::b1, number) ? Type::b1 : Type::f64;
    return number_of(type, literal_bits(at, type, number));
  }

  void initial(Argument& argument) {
    if (argument.role != Role::state && argument.role != Role::param)
      fail("only a state (initial value) or a param (default) can have '='");
    if (argument.has_default || argument.initial != 0) fail("a value is given twice; write one '='");
    const Token at = take();
    argument.initial = plain_number(argument.mem);
    argument.has_default = argument.role == Role::param;
    check_default(at, argument);
  }

  void range(Argument& argument) {
    if (argument.role != Role::param) fail("only a param can have a range");
    if (argument.range.low != Range().low || argument.range.high != Range().high)
      fail("a range is given twice; write one 'in'");
    const Token at = take();
    expect_symbol("[", "a range is written in [0, 1]");
    argument.range.low = plain_number();
    expect_symbol(",", "a range is written in [0, 1]");
    argument.range.high = plain_number();
    expect_symbol("]", "a range is written in [0, 1]");
    if (!(argument.range.low <= argument.range.high))
      fail_at(at, "the range is empty; write the lower end first");
    check_default(at, argument);
  }

  void check_default(const Token& at, const Argument& argument) const {
    if (argument.has_default &&
        !(argument.initial >= argument.range.low && argument.initial <= argument.range.high))
      fail_at(at,
              join("the default ", argument.initial, " of param '", argument.name, "' is outside its range [",
                   argument.range.low, ", ", argument.range.high, "]; change the one or the other"));
  }

  /// ` of output NAME|NUMBER` or ` of next %state`; outputs stand below, so they are looked up at the end.
  void gradient_of(Argument& argument) {
    if (!is_word("of"))
      fail(join("expected 'of', found ", found(), "; a gradient is declared like: grad g : f32 of output z"));
    take();
    if (is_word("next")) {
      take();
      argument.role = Role::grad_next;
      argument.of = state_reference();
      return;
    }
    if (!is_word("output"))
      fail(join("expected 'output' or 'next', found ", found(),
                "; a gradient is declared like: grad g : f32 of output z"));
    take();
    if (token_.kind != TokenKind::word && token_.kind != TokenKind::string &&
        token_.kind != TokenKind::number)
      fail(join("expected an output's name or number, found ", found(), "; write: of output z"));
    pending_outputs_.push_back({graph_.arguments.size(), take()});
  }

  /// The argument that `%name` (or a bare name) means; for a next value it must be a state.
  int argument_reference(std::string_view what, bool state_only) {
    const Token at = token_;
    const std::string wanted = is_symbol("%") ? value_name() : name(what);
    const Node& node = graph_.at(value_named(at, wanted));
    if (node.op != Op::argument)
      fail_at(at, join("'", wanted, "' is not ", what, "; name one that is declared above"));
    if (state_only && graph_.arguments[node.immediate].role != Role::state)
      fail_at(at, join("'", wanted, "' is not a state; only a state has a next value"));
    return static_cast<int>(node.immediate);
  }
  int state_reference() { return argument_reference("a state", true); }

  void of_statement(Gives gives) {
    const Token at = take();
    Result result{.gives = gives, .location = location_of(at)};
    result.of = state_reference();
    finish_result(std::move(result));
  }

  void result_of(const Token& at, Gives gives) {
    take();
    Result result{.gives = gives, .location = location_of(at)};
    result.of = argument_reference("an argument", false);
    finish_result(std::move(result));
  }

  void output_statement() {
    const Token at = take();
    Result result{.gives = Gives::output, .location = location_of(at)};
    if (!is_symbol("=")) result.name = name("an output");
    finish_result(std::move(result));
  }

  void finish_result(Result result) {
    expect_symbol("=", "a result is written like: output z = %s");
    const Written written = operand();
    std::optional<Type> known;
    if (result.gives != Gives::output) {
      const Argument& of = graph_.arguments[result.of];
      result.mem = result.gives == Gives::grad ? gradient_memory(of) : of.mem;
      known = value_type(result.mem);
    }
    if (written.value != no_id)
      known = graph_.at(written.value).type;
    else if (written.typed)
      known = written.typed;
    if (!known) fail_at(written.token, untyped(written.number));
    result.value =
        written.value != no_id ? written.value : constant_id(written.token, *known, written.number);
    if (result.gives == Gives::output) {
      result.mem = natural_memory(*known);
      if (is_symbol(":")) {
        take();
        result.mem = memory_type();
      }
    }
    optional_location(result.location);
    graph_.results.push_back(std::move(result));
  }

  void op_statement() {
    const Token at = token_;
    const std::string name = value_name();
    expect_symbol("=", "an op is written like: %h = add %x, %v");
    if (token_.kind != TokenKind::word)
      fail(join("expected an op, found ", found(), "; an op is written like: %h = add %x, %v"));
    const Token op_token = take();
    const std::optional<Op> op = op_named(op_token.text);
    if (!op)
      fail_at(op_token, join("unknown op '", op_token.text, "'", did_you_mean(op_token.text, op_names()),
                             "; `flexsn list ops` shows all"));
    const Row& row = row_of(*op);
    std::vector<Written> operands;
    if (token_.kind != TokenKind::statement_end && token_.kind != TokenKind::text_end && !is_symbol(":") &&
        !is_symbol("@") && !is_symbol("}")) {
      operands.push_back(operand());
      while (is_symbol(",")) {
        take();
        operands.push_back(operand());
      }
    }
    if (static_cast<int>(operands.size()) != row.arity)
      fail_at(op_token,
              join("'", row.name, "' takes ", row.arity, row.arity == 1 ? " operand" : " operands",
                   ", found ", operands.size(), "; write: ", row.name,
                   std::string_view(" %a, %b, %c").substr(0, row.arity == 0 ? 0 : row.arity * 4u - 1)));
    std::optional<Type> annotation;
    if (is_symbol(":")) {
      take();
      const Token type_token = token_;
      annotation = value_type_named(name_of(memory_type()));
      if (!annotation)
        fail_at(type_token, join("a value cannot be ", type_token.text,
                                 ", which exists in memory only; values are f32, f64, i32 or bool"));
    }
    Location location = location_of(at);
    optional_location(location);
    const Id id = add_op(op_token, *op, operands, annotation);
    const bool is_number = name.find_first_not_of("0123456789") == std::string::npos;
    graph_.debug[id] = {is_number ? "" : name, location};
    define(at, name, id);
    ++next_number_;
  }

  Id add_op(const Token& at, Op op, const std::vector<Written>& operands, std::optional<Type> annotation) {
    const Row& row = row_of(op);
    const Sig& sig = row.meaning.sig;
    const int first_variable = sig.first == SigType::T ? 0 : 1;
    // T is what the operands that have a type say, else what the annotation says.
    std::optional<Type> t;
    for (int i = first_variable; i < row.arity && !t; ++i)
      t = operands[i].value != no_id ? graph_.at(operands[i].value).type : operands[i].typed;
    if (!t && sig.result == SigType::T) t = annotation;
    Node node{.op = op};
    Type types[max_arity] = {};
    for (int i = 0; i < row.arity; ++i) {
      const Written& written = operands[i];
      if (written.value == no_id) {
        const std::optional<Type> type = written.typed        ? written.typed
                                         : i < first_variable ? type_of(sig.first, Type::f32)
                                                              : t;
        if (!type) fail_at(written.token, untyped(written.number));
        node.operands[i] = constant_id(written.token, *type, written.number);
      } else {
        node.operands[i] = written.value;
      }
      types[i] = graph_.at(node.operands[i]).type;
    }
    const std::optional<Type> type = result_type(row, types);
    if (!type) fail_at(at, type_mismatch(row, types));
    if (annotation && *annotation != *type)
      fail_at(at, join("the result of '", row.name, "' is ", name_of(*type), ", but ", name_of(*annotation),
                       " is written; change the type or add a conversion"));
    node.type = *type;
    return graph_.append(node);
  }

  void resolve_gradients() {
    if (pending_outputs_.empty()) return;
    std::vector<std::string> names;
    std::map<std::string, int> by_number, by_name;
    for (std::size_t i = 0; i < graph_.results.size(); ++i) {
      const Result& result = graph_.results[i];
      if (result.gives != Gives::output) continue;
      by_number.emplace(std::to_string(names.size()), static_cast<int>(i));
      by_name.emplace(result.name, static_cast<int>(i));
      names.push_back(result.name);
    }
    for (const auto& [argument, token] : pending_outputs_) {
      const auto& outputs = token.kind == TokenKind::number ? by_number : by_name;
      const auto known = outputs.find(token.text);
      if (known == outputs.end())
        fail_at(token, join("there is no output '", token.text, "'", did_you_mean(token.text, names),
                            "; name one of the outputs below"));
      graph_.arguments[argument].of = known->second;
    }
  }

  Lexer lexer_;
  Token token_;
  Graph graph_;
  std::map<std::string, Id> values_;
  std::map<std::string, int> files_;
  std::set<std::string> argument_names_;
  std::vector<std::pair<std::size_t, Token>> pending_outputs_;
  int next_number_ = 0;
};

}  // namespace

Graph parse(std::string_view text, std::string_view file) {
  const IeeeEnvironment environment;
  return Parser(text, file).graph();
}

}  // namespace flexsn
