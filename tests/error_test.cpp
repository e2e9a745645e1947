// What a wrong `.fsn` text leads to: one UserError that names the place, the culprit and the remedy, and
// never a crash or a hang, whatever the bytes are.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "error.h"
#include "text.h"
#include "verify.h"

namespace flexsn {
namespace {

/// The text of the UserError that parsing and verifying gives; "" when the text is legal.
std::string error_of(std::string_view text) {
  try {
    verify(parse(text, "bad.fsn"));
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

struct Bad {
  const char* text;  ///< `|` stands for the end of a line
  const char* place;
  std::vector<const char*> parts;
};

/// Every case stands alone, so a case shows all that a user would have typed.
const std::vector<Bad>& bad_texts() {
  static const std::vector<Bad> all = {
      // The frame.
      {"", "bad.fsn:1:1: ", {"expected 'neuron'", "the end of text", "neuron NAME {"}},
      {"# only a comment", "bad.fsn:1:17: ", {"expected 'neuron'"}},
      {"nuron lif {|}", "bad.fsn:1:1: ", {"'nuron'", "neuron NAME {"}},
      {"input x : f32", "bad.fsn:1:1: ", {"expected 'neuron', found 'input'"}},
      {"neuron lif|{|}", "bad.fsn:1:11: ", {"expected '{'", "the end of line", "between { and }"}},
      {"neuron lif {", "bad.fsn:1:13: ", {"ends inside the neuron", "close it with }"}},
      {"neuron lif {|input x : f32", "bad.fsn:2:14: ", {"ends inside the neuron", "close it with }"}},
      {"neuron {|%i = step_index", "bad.fsn:2:16: ", {"ends inside the neuron", "close it with }"}},
      {"neuron a b {|}", "bad.fsn:1:10: ", {"expected '{', found 'b'"}},
      {"neuron 3 {|}", "bad.fsn:1:8: ", {"expected '{', found '3'"}},
      {"neuron a {|}|neuron b {|}", "bad.fsn:3:1: ", {"'neuron'", "a file holds one neuron"}},
      {"neuron a {|}}", "bad.fsn:2:2: ", {"'}'", "a file holds one neuron"}},
      {"neuron a {|input x : f32 input y : f32|}", "bad.fsn:2:15: ", {"'input'", "one statement a line"}},
      {"neuron a {|42|}", "bad.fsn:2:1: ", {"expected a statement, found '42'", "input, state, param"}},
      {"neuron a {|inptu x : f32|}", "bad.fsn:2:1: ", {"unknown statement 'inptu'", "did you mean 'input'?"}},
      {"neuron a {|x = add 1, 2|}", "bad.fsn:2:1: ", {"unknown statement 'x'", "%name ="}},
      {"neuron a {|input x! f32|}", "bad.fsn:2:8: ", {"unexpected character '!'"}},
      {"neuron a {|input x; f32|}", "bad.fsn:2:8: ", {"expected ':', found ';'", "input x : f32"}},
      {"neuron a {|input x : f32 output = %x; }", "bad.fsn:2:15: ", {"found 'output'", "; between them"}},
      {"neuron a {|input x : f32\x01|}", "bad.fsn:2:14: ", {"unexpected character", "byte 1"}},
      {"neuron a {|input x : f32 µ|}", "bad.fsn:2:15: ", {"'µ'"}},
      {"neuron a {|input µµµ : f33|}", "bad.fsn:2:13: ", {"'f33'"}},
      {"neuron a {|input \xff : f32|}", "bad.fsn:2:7: ", {"not UTF-8", "save the file as UTF-8"}},
      {"neuron a {|input \xed\xa0\x80 : f32|}", "bad.fsn:2:7: ", {"not UTF-8"}},

      // Strings.
      {"neuron \"a {|}", "bad.fsn:1:8: ", {"not closed", "add a \""}},
      {"neuron \"a\\n\" {|}", "bad.fsn:1:11: ", {"unknown escape", "\\x and two hex digits"}},
      {"neuron \"a\\x4\" {|}", "bad.fsn:1:11: ", {"unknown escape"}},
      {"neuron \"a\\xff\" {|}", "bad.fsn:1:8: ", {"not UTF-8", "\\x escapes"}},

      // Arguments.
      {"neuron a {|input x|}", "bad.fsn:2:8: ", {"expected ':', found the end of line", "input x : f32"}},
      {"neuron a {|input 5 : f32|}", "bad.fsn:2:7: ", {"name of an argument", "found '5'", "in quotes"}},
      {"neuron a {|input %x : f32|}", "bad.fsn:2:7: ", {"name of an argument", "found '%'"}},
      {"neuron a {|input x :|}",
       "bad.fsn:2:10: ",
       {"expected a type, found the end of line", "f16, bf16, f32"}},
      {"neuron a {|input x : float|}", "bad.fsn:2:11: ", {"unknown type 'float'", "f16, bf16, f32, f64"}},
      {"neuron a {|input x : b16|}", "bad.fsn:2:11: ", {"unknown type 'b16'", "did you mean"}},
      {"neuron a {|input x : i64|}", "bad.fsn:2:11: ", {"no type 'i64'", "use i32"}},
      {"neuron a {|input x : f32|state x : f32|}",
       "bad.fsn:3:7: ",
       {"'x' is used twice", "a name of its own"}},
      {"neuron a {|input x : f32 = 1|}", "bad.fsn:2:15: ", {"only a state", "a param", "'='"}},
      {"neuron a {|input x : f32 per_step|}", "bad.fsn:2:15: ", {"only a param can be per_step"}},
      {"neuron a {|state v : f32 per_step|}", "bad.fsn:2:15: ", {"only a param can be per_step"}},
      {"neuron a {|state v : f32 in [0, 1]|}", "bad.fsn:2:15: ", {"only a param can have a range"}},
      {"neuron a {|state v : f32 = x|}",
       "bad.fsn:2:17: ",
       {"expected a number, found 'x'", "write it like 0.5"}},
      {"neuron a {|state v : f32 = 1..2|}",
       "bad.fsn:2:17: ",
       {"'1..2' does not fit f64", "a number like 0.5"}},
      {"neuron a {|state v : f32 = --2|}", "bad.fsn:2:17: ", {"'-'", "does not fit f64"}},
      {"neuron a {|state v : f32 = 1e999|}", "bad.fsn:2:17: ", {"'1e999'", "fit f64"}},
      {"neuron a {|state v : f32 = true|}",
       "bad.fsn:2:17: ",
       {"'true' does not fit f64", "a number like 0.5"}},
      {"neuron a {|param p : f32 = 3 in [0, 1]|}", "bad.fsn:2:19: ", {"default 3", "outside its range"}},
      {"neuron a {|param p : f32 = 1 in [2, 0]|}", "bad.fsn:2:19: ", {"range is empty", "lower end first"}},
      {"neuron a {|param p : f32 = 1 in 0, 2|}", "bad.fsn:2:22: ", {"expected '[', found '0'", "in [0, 1]"}},
      {"neuron a {|param p : f32 = 1 in [0 2]|}", "bad.fsn:2:25: ", {"expected ',', found '2'", "in [0, 1]"}},
      {"neuron a {|param p : f32 = 1 in [0, 2|}", "bad.fsn:2:27: ", {"expected ']'", "in [0, 1]"}},
      {"neuron a {|param p : f32 = nan|}", "bad.fsn:2:15: ", {"param 'p'", "nan", "[-inf, inf]"}},
      {"neuron a {|param p : f32 = 1 = 2|}", "bad.fsn:2:19: ", {"given twice", "one '='"}},
      {"neuron a {|param p : f32 in [0, 1] in [0, 2]|}", "bad.fsn:2:25: ", {"given twice", "one 'in'"}},
      {"neuron a {|state v : i32 = 0.5|next v = 1|}",
       "(bad.fsn:2)",
       {"initial value 0.5 of 'v' does not fit i32"}},
      {"neuron a {|param p : f32 in [0, 1] = 2|}", "bad.fsn:2:25: ", {"default 2 of param 'p'", "[0, 1]"}},

      // Ops.
      {"neuron a {|%h|}", "bad.fsn:2:3: ", {"expected '='", "%h = add %x, %v"}},
      {"neuron a {|% = add 1, 2|}", "bad.fsn:2:3: ", {"value's name after %", "found '='"}},
      {"neuron a {|%h = 5|}", "bad.fsn:2:6: ", {"expected an op, found '5'"}},
      {"neuron a {|%h = ad f32(1), 2|}",
       "bad.fsn:2:6: ",
       {"unknown op 'ad'", "did you mean 'add'?", "flexsn list ops"}},
      {"neuron a {|input x : f32|%h = add %x|}",
       "bad.fsn:3:6: ",
       {"'add' takes 2 operands, found 1", "add %a, %b"}},
      {"neuron a {|input x : f32|%h = exp %x, %x|}", "bad.fsn:3:6: ", {"'exp' takes 1 operand, found 2"}},
      {"neuron a {|input x : f32|%h = add %x %x|}",
       "bad.fsn:3:6: ",
       {"'add' takes 2 operands, found 1", "add %a, %b"}},
      {"neuron a {|input x : f32|%h = add %x,|}",
       "bad.fsn:3:13: ",
       {"expected a value or a number", "%name, 0.5"}},
      {"neuron a {|input x : f32|%h = add %y, %x|}", "bad.fsn:3:10: ", {"unknown value %y", "above its use"}},
      {"neuron a {|input drive : f32|%h = neg %drvie|}",
       "bad.fsn:3:10: ",
       {"%drvie", "did you mean 'drive'?"}},
      {"neuron a {|%h = neg %h|}", "bad.fsn:2:10: ", {"unknown value %h", "above its use"}},
      {"neuron a {|input x : f32|%x = neg %x|}", "bad.fsn:3:1: ", {"%x is used twice", "a name of its own"}},
      {"neuron a {|input x : f32|%h = neg x|}", "bad.fsn:3:10: ", {"found 'x'", "write %name"}},
      {"neuron a {|%h = add 1, 2|}", "bad.fsn:2:10: ", {"cannot tell the type of '1'", "write f32(1)"}},
      {"neuron a {|%h = lt 1, 2 : bool|}", "bad.fsn:2:9: ", {"cannot tell the type of '1'", "write f32(1)"}},
      {"neuron a {|input x : f32|input y : f64|%h = add %x, %y|}",
       "bad.fsn:4:6: ",
       {"operands 1 and 2 of 'add'", "f32 and f64", "convert one with to_f32"}},
      {"neuron a {|input c : bool|%h = neg %c|}",
       "bad.fsn:3:6: ",
       {"'neg' takes", "found bool", "convert it with to_f32"}},
      {"neuron a {|input x : f32|%h = bit_and %x, %x|}",
       "bad.fsn:3:6: ",
       {"'bit_and' takes i32 or bool", "found f32"}},
      {"neuron a {|input x : f32|%h = select %x, %x, 0|}",
       "bad.fsn:3:6: ",
       {"operand 1 of 'select' must be bool, found f32", "comparison"}},
      {"neuron a {|input x : f32|%h = select %x, 1, 0|}", "bad.fsn:3:17: ", {"cannot tell the type of '1'"}},
      {"neuron a {|input x : f32|%h = neg %x : f64|}", "bad.fsn:3:6: ", {"'neg' is f32, but f64 is written"}},
      {"neuron a {|input x : f32|%h = neg %x : f16|}",
       "bad.fsn:3:15: ",
       {"cannot be f16", "f32, f64, i32 or bool"}},
      {"neuron a {|input n : i32|%h = add %n, 0.5|}",
       "bad.fsn:3:14: ",
       {"'0.5' does not fit i32", "a whole number"}},
      {"neuron a {|input n : i32|%h = add %n, 2147483648|}",
       "bad.fsn:3:14: ",
       {"'2147483648' does not fit i32", "to 2147483647"}},
      {"neuron a {|input c : bool|%h = eq %c, 1|}",
       "bad.fsn:3:13: ",
       {"'1' does not fit bool", "true or false"}},
      {"neuron a {|input x : f32|%h = eq %x, true|}", "bad.fsn:3:13: ", {"'true' does not fit f32"}},
      {"neuron a {|input x : f32|%h = add %x, 1e39|}", "bad.fsn:3:14: ", {"'1e39' does not fit f32"}},
      {"neuron a {|input x : f32|%h = add %x, 0xinf|}", "bad.fsn:3:14: ", {"'0xinf' does not fit f32"}},
      {"neuron a {|input x : f32|%h = add %x, 1.5f|}", "bad.fsn:3:14: ", {"'1.5f' does not fit f32"}},
      {"neuron a {|input x : f32|%h = add %x, nan(1)|}", "bad.fsn:3:14: ", {"'nan(1)' does not fit f32"}},
      {"neuron a {|input x : f32|%h = add %x, nan(0x1)|}", "bad.fsn:3:14: ", {"'nan(0x1)' does not fit f32"}},
      {"neuron a {|input x : f32|%h = add %x, nan(0x7fc00001|}",
       "bad.fsn:3:28: ",
       {"expected ')'", "nan(0x7fc00001)"}},
      {"neuron a {|input x : f32|%h = add %x, f32 1|}", "bad.fsn:3:18: ", {"expected '('", "f32(0.5)"}},
      {"neuron a {|input x : f32|%h = add %x, f32(|}", "bad.fsn:3:18: ", {"expected a number", "f32(0.5)"}},
      {"neuron a {|input x : f32|%h = add %x, f16(1)|}", "bad.fsn:3:14: ", {"'f16'"}},
      {"neuron a {|input x : f32|%h = add %x, f64(1)|}", "bad.fsn:3:6: ", {"f32 and f64"}},
      {"neuron a {|input x : f32|%h = raw_bits %x|}",
       "(bad.fsn:3)",
       {"neuron 'a'", "'h'", "'raw_bits'", "use 'bits'"}},
      {"neuron a expanded {|input x : f32|%h = exp %x|}", "(bad.fsn:3)", {"'h'", "'exp'", "remove the mark"}},

      // Results.
      {"neuron a {|output z|}", "bad.fsn:2:9: ", {"expected '='", "output z = %s"}},
      {"neuron a {|output z = 1|}", "bad.fsn:2:12: ", {"cannot tell the type of '1'", "write f32(1)"}},
      {"neuron a {|output z = true|}",
       "bad.fsn:2:12: ",
       {"cannot tell the type of 'true'", "write bool(true)"}},
      {"neuron a {|state v : f32 = true|}", "bad.fsn:2:17: ", {"'true' does not fit f64"}},
      {"neuron a {|output z = %h|}", "bad.fsn:2:12: ", {"unknown value %h"}},
      {"neuron a {|output z = f32(1) : f64|}",
       "(bad.fsn:2)",
       {"neuron 'a'", "output 'z' is f64", "type f32", "convert"}},
      {"neuron a {|output z = f32(0.1) : f16|}",
       "(bad.fsn:2)",
       {"output 'z' is f16", "end it with round_f16"}},
      {"neuron a {|output z = f32(1)|output z = f32(2)|}", "(bad.fsn:3)", {"output 'z' is given twice"}},
      {"neuron a {|state v : f32|}",
       "(bad.fsn:2)",
       {"neuron 'a'", "state 'v' is never updated", "give it a next value"}},
      {"neuron a {|state v : f32|next v = 1|next v = 2|}", "(bad.fsn:4)", {"'v' is updated twice"}},
      {"neuron a {|input x : f32|next x = %x|}", "bad.fsn:3:6: ", {"'x' is not a state"}},
      {"neuron a {|input : f32|next %0 = %0|}", "bad.fsn:3:6: ", {"'0' is not a state"}},
      {"neuron a {|input x : f32|%h = neg %x|next h = %x|}", "bad.fsn:4:6: ", {"'h' is not a state"}},
      {"neuron a {|next v = 1|}", "bad.fsn:2:6: ", {"unknown value %v"}},
      {"neuron a {|state v : f32|next = %v|}", "bad.fsn:3:6: ", {"name of a state", "found '='"}},
      {"neuron a {|state v : f32|next v = true|}", "bad.fsn:3:10: ", {"'true' does not fit f32"}},
      {"neuron a {|state v : f32|%c = gt %v, 0|next v = %c|}",
       "(bad.fsn:4)",
       {"state 'v' is f32", "type bool", "convert"}},
      {"neuron a {|state v : u8|next v = 256|}", "(bad.fsn:3)", {"state 'v' is u8", "round_u8"}},
      {"neuron a {|state v : f32|next v = 1 : f32|}", "bad.fsn:3:12: ", {"found ':'"}},

      // Gradients.
      {"neuron a {|grad g : f32|}", "bad.fsn:2:13: ", {"expected 'of'", "grad g : f32 of output z"}},
      {"neuron a {|grad g : f32 of z|}", "bad.fsn:2:17: ", {"'output' or 'next', found 'z'"}},
      {"neuron a {|grad g : f32 of output|}", "bad.fsn:2:23: ", {"output's name or number"}},
      {"neuron a {|grad g : f32 of output spik|output spike = f32(1)|}",
       "bad.fsn:2:24: ",
       {"no output 'spik'", "'spike'"}},
      {"neuron a {|grad g : f32 of output 1|output spike = f32(1)|}", "bad.fsn:2:24: ", {"no output '1'"}},
      {"neuron a {|input x : f32|grad g : f32 of next %x|}", "bad.fsn:3:22: ", {"'x' is not a state"}},
      {"neuron a {|grad g : f32 of output z|output z = i32(1)|}",
       "(bad.fsn:2)",
       {"neuron 'a'", "'z'", "i32", "no gradient"}},
      {"neuron a {|input c : bool|grad of c = true|}",
       "(bad.fsn:3)",
       {"neuron 'a'", "'c'", "bool", "no gradient"}},
      {"neuron a {|input x : f32|grad of x = 1|grad of x = 2|}",
       "(bad.fsn:4)",
       {"gradient of 'x' is given twice"}},
      {"neuron a {|grad of x = 1|}", "bad.fsn:2:9: ", {"unknown value %x"}},

      // Locations.
      {"neuron a {|input x : f32 @ f:1|}",
       "bad.fsn:2:17: ",
       {"file name in quotes, found 'f'", "@ \"file.cpp\":12"}},
      {"neuron a {|input x : f32 @ \"f\"|}", "bad.fsn:2:20: ", {"expected ':'", "@ \"file.cpp\":12"}},
      {"neuron a {|input x : f32 @ \"f\":x|}", "bad.fsn:2:21: ", {"line number, found 'x'"}},
      {"neuron a {|input x : f32 @ \"f\":-1|}", "bad.fsn:2:21: ", {"line number, found '-1'"}},
      {"neuron a {|state v : f32 @ \"lif.py\":7|}", "(lif.py:7)", {"state 'v' is never updated"}},
  };
  return all;
}

TEST(Error, EveryBadTextSaysWhatWhereAndWhatToDo) {
  EXPECT_GE(bad_texts().size(), 60u);
  for (const Bad& bad : bad_texts()) {
    std::string text = bad.text;
    std::replace(text.begin(), text.end(), '|', '\n');
    std::string error;
    EXPECT_NO_THROW(error = error_of(text)) << text;
    if (bad.place[0] == '(')
      EXPECT_TRUE(error.ends_with(bad.place)) << text << "\n" << bad.place << "\n" << error;
    else
      EXPECT_TRUE(error.starts_with(bad.place)) << text << "\n" << bad.place << "\n" << error;
    for (const char* part : bad.parts)
      EXPECT_NE(error.find(part), std::string::npos) << text << "\nlacks: " << part << "\n" << error;
    EXPECT_LT(error.size(), 400u) << error;
  }
}

// ---- whatever the bytes are ---------------------------------------------------------------------

/// Runs `work`, which must end soon; the limit is far above what it needs and far below anything quadratic.
template <class Work>
void expect_quick(const char* what, Work work) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NO_THROW(work()) << what;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
  constexpr double limit = 120;
#else
  constexpr double limit = 3;
#endif
  EXPECT_LT(seconds, limit) << what;
}

std::string repeated(std::string_view part, std::size_t count) {
  std::string text;
  text.reserve(part.size() * count);
  for (std::size_t i = 0; i < count; ++i) text += part;
  return text;
}

TEST(Error, HugeTextsAreReadInTimeThatGrowsWithTheirSize) {
  const std::string open = "neuron n {\n", close = "}\n";
  expect_quick("a comment of 20 MB",
               [&] { EXPECT_EQ(error_of("#" + std::string(20'000'000, 'x') + "\n" + open + close), ""); });
  expect_quick("20 MB of blank lines",
               [&] { EXPECT_EQ(error_of(open + std::string(20'000'000, '\n') + close), ""); });
  expect_quick("a name of 1 MB",
               [&] { EXPECT_EQ(error_of("neuron " + std::string(1'000'000, 'n') + " {\n" + close), ""); });
  expect_quick("an unknown value of 1 MB", [&] {
    const std::string text = open + "input x : f32\n%h = neg %" + std::string(1'000'000, 'n') + "\n" + close;
    EXPECT_TRUE(error_of(text).starts_with("bad.fsn:3:10: ")) << error_of(text).substr(0, 100);
    EXPECT_LT(error_of(text).size(), 2000u) << "an error is for people";
  });
  expect_quick("numbers of 1 MB", [&] {
    const std::string digits(1'000'000, '1');
    EXPECT_EQ(error_of(open + "output z = f32(0." + digits + ")\n" + close), "");
    EXPECT_EQ(error_of(open + "output z = f64(0x." + digits + ")\n" + close), "");
    for (const std::string& number :
         {digits, "-" + digits, "0x" + digits, "1e" + digits, "nan(0x" + digits + ")"})
      EXPECT_TRUE(error_of(open + "output z = f32(" + number + ")\n" + close).starts_with("bad.fsn:2:"));
    EXPECT_EQ(error_of(open + "output z = f32(1e-" + digits + ")\n" + close), "");
  });
  expect_quick("200000 statements", [&] {
    std::string text = open + "input v0 : f32\n";
    for (int i = 1; i <= 200'000; ++i)
      text += "%v" + std::to_string(i) + " = add %v" + std::to_string(i - 1) + ", 1\n";
    EXPECT_EQ(error_of(text + "output z = %v200000\n" + close), "");
    EXPECT_NE(error_of(text + "output z = %w200000\n" + close).find("did you mean 'v200000'?"),
              std::string::npos);
  });
  expect_quick("50000 arguments of every kind", [&] {
    std::string arguments, results;
    for (int i = 0; i < 50'000; ++i) {
      const std::string n = std::to_string(i);
      arguments += "input x" + n + " : f32\nstate s" + n + " : f32\n";
      arguments += "grad g" + n + " : f32 of output z" + n + "\ngrad : f32 of output " + n + "\n";
      results += "next s" + n + " = %x" + n + "\noutput z" + n + " = %x" + n + "\n";
    }
    const std::string text = open + arguments + results + close;
    EXPECT_EQ(canonical(parse(text, "t")).empty(), false);
  });
}

TEST(Error, DeepNestingIsAnOrdinaryError) {
  for (std::string_view part : {"{",        "}",       "(", ")",        "[",    "nan(", "f32(",
                                "neuron {", "neuron ", "%", "%h = ",    "@",    "-",    "\"",
                                "\\",       "#",       ":", "grad of ", "in [", "0x",   "\xc3"})
    expect_quick("nesting", [&] {
      EXPECT_NE(error_of(repeated(part, 100'000)), "");
      EXPECT_NE(error_of("neuron n {\n" + repeated(part, 100'000)), "");
      EXPECT_NE(error_of("neuron n {\ninput x : f32\n%h = add %x, " + repeated(part, 100'000)), "");
    });
}

const std::string good_text = R"(# good
neuron "l\x69f" {
  input x : f32 @ "lif.cpp":3
  input n : i32
  state v : f32 = -0.5
  param tau : f32 per_step = 2 in [1, inf]
  grad gz : f32 of output z
  grad : f32 of next %v
  %h = div %x, %tau : f32
  %"w 1" = select true, %h, nan(0x7fc00001)  # half
  %b = add %n, i32(-2147483648)
  output z = %"w 1" : f32
  next v = 0x1.8p-3
  grad of %x = %gz
}
)";

/// Reads `text`: a graph or a UserError, and a legal graph prints as text that means the same.
void expect_defined(std::string_view text) {
  try {
    const ir::Graph graph = parse(text, "bad.fsn");
    verify(graph);
    ASSERT_EQ(canonical(parse(print(graph), "again")), canonical(graph)) << text;
  } catch (const UserError&) {
  } catch (const std::exception& error) {
    FAIL() << error.what() << "\n" << text;
  }
}

TEST(Error, EveryTruncationIsDefined) {
  ASSERT_EQ(error_of(good_text), "");
  for (std::size_t size = 0; size < good_text.size(); ++size) expect_defined(good_text.substr(0, size));
  // All that stands before the last brace is needed.
  for (std::size_t size = 0; size < good_text.rfind('}'); ++size)
    EXPECT_NE(error_of(good_text.substr(0, size)), "");
}

TEST(Error, EveryReplacedInsertedOrRemovedByteIsDefined) {
  constexpr char bytes[] = "\0\x01\n\r\t \"#%(),-.0:=@[\\]aefnx{}\x7f\x80\xc3\xff";
  const std::string_view values(bytes, sizeof bytes - 1);  // the first one is a NUL
  for (std::size_t at = 0; at < good_text.size(); ++at) {
    expect_defined(std::string(good_text).erase(at, 1));
    for (char value : values) {
      std::string text = good_text;
      text[at] = value;
      expect_defined(text);
      expect_defined(std::string(good_text).insert(at, 1, value));
    }
  }
}

TEST(Error, RandomBytesAndRandomPiecesAreDefined) {
  std::mt19937 random(20240607);
  const std::vector<std::string> pieces = {"neuron",     "expanded",
                                           "{",          "}",
                                           "\n",         "\n",
                                           "input",      "state",
                                           "param",      "grad",
                                           "of",         "output",
                                           "next",       "x",
                                           "y",          "%x",
                                           "%y",         "%",
                                           "=",          ":",
                                           "f32",        "f16",
                                           "i32",        "bool",
                                           "add",        "select",
                                           "step_index", "round_f16",
                                           ",",          "0",
                                           "1.5",        "-inf",
                                           "nan",        "nan(0x7fc00001)",
                                           "f32(1)",     "true",
                                           "[",          "]",
                                           "in",         "per_step",
                                           "@",          "\"a\"",
                                           ":3",         "# c\n"};
  for (int round = 0; round < 3000; ++round) {
    std::string bytes(random() % 60, '\0'), words = "neuron n {\n";
    for (char& c : bytes) c = static_cast<char>(random());
    for (unsigned count = random() % 40; count > 0; --count) words += pieces[random() % pieces.size()] + " ";
    expect_defined(bytes);
    expect_defined("neuron n {\n" + bytes + "\n}");
    expect_defined(words);
    expect_defined(words + "\n}");
  }
}

}  // namespace
}  // namespace flexsn
