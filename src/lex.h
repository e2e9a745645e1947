// The words of `.fsn`: what the parser reads one by one.
#pragma once

#include "error.h"

namespace flexsn {

enum class TokenKind { word, number, string, symbol, statement_end, text_end };

struct Token {
  TokenKind kind = TokenKind::text_end;
  std::string text;
  int line = 1, column = 1;
};

/// The position of the first byte that is not UTF-8, or npos.
std::size_t first_non_utf8(std::string_view text);

/// Cuts a text into tokens; `file` names it in errors.
class Lexer {
 public:
  Lexer(std::string_view text, std::string_view file);

  /// Throws a UserError at this place.
  [[noreturn]] void fail(int line, int column, const std::string& message) const {
    user_error(file_, ":", line, ":", column, ": ", message);
  }
  /// The next token; at the end of the text again and again TokenKind::text_end.
  Token next();

 private:
  char peek() const { return text_[position_]; }
  void step();
  Token string_token(Token token);

  std::string_view text_, file_;
  std::size_t position_ = 0;
  int line_ = 1, column_ = 1;
};

}  // namespace flexsn
