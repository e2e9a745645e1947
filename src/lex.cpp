#include "lex.h"

#include <charconv>

namespace flexsn {

namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string shown(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? join("byte ", static_cast<int>(c))
                                                           : std::string(1, c);
}

}  // namespace

std::size_t first_non_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80                   ? 1
                               : lead >= 0xc2 && lead < 0xe0 ? 2
                               : (lead & 0xf0) == 0xe0       ? 3
                               : lead >= 0xf0 && lead < 0xf5 ? 4
                                                             : 0;
    if (length == 0 || i + length > text.size()) return i;
    std::uint32_t code = length == 1 ? lead : lead & (0xffu >> (length + 1));
    for (std::size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if ((byte & 0xc0) != 0x80) return i;
      code = code << 6 | (byte & 0x3f);
    }
    // Too long a form, half of a surrogate pair, beyond the last character.
    constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < least[length] || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return i;
    i += length;
  }
  return std::string_view::npos;
}

Lexer::Lexer(std::string_view text, std::string_view file) : text_(text), file_(file) {
  if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // the mark some editors put in front
  const std::size_t bad = first_non_utf8(text_);
  if (bad == std::string_view::npos) return;
  while (position_ < bad) step();
  fail(line_, column_, "the text is not UTF-8 here; save the file as UTF-8 text");
}

void Lexer::step() {
  const char c = text_[position_++];
  if (c == '\n')
    ++line_, column_ = 1;
  else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80)
    ++column_;  // columns count characters
}

Token Lexer::next() {
  while (position_ < text_.size() && (peek() == ' ' || peek() == '\t' || peek() == '\r')) step();
  if (position_ < text_.size() && peek() == '#')
    while (position_ < text_.size() && peek() != '\n') step();
  Token token{TokenKind::text_end, "end of text", line_, column_};
  if (position_ >= text_.size()) return token;
  const char c = peek();
  const std::size_t start = position_;
  if (c == '\n' || c == ';') {
    step();
    return {TokenKind::statement_end, c == '\n' ? "end of line" : ";", token.line, token.column};
  }
  if (c == '"') return string_token(token);
  if (is_letter(c)) {
    while (position_ < text_.size() && (is_letter(peek()) || is_digit(peek()) || peek() == '.')) step();
    token.kind = TokenKind::word;
  } else if (is_digit(c) || c == '-' || c == '+' || c == '.') {
    step();
    // An exponent's sign belongs to the number: 1e-5, 0x1p+3.
    while (position_ < text_.size() &&
           (is_letter(peek()) || is_digit(peek()) || peek() == '.' ||
            ((peek() == '-' || peek() == '+') &&
             std::string_view("eEpP").find(text_[position_ - 1]) != std::string_view::npos)))
      step();
    token.kind = TokenKind::number;
  } else if (std::string_view("%:=,()[]{}@").find(c) != std::string_view::npos) {
    step();
    token.kind = TokenKind::symbol;
  } else {
    fail(line_, column_,
         join("unexpected character '", shown(c),
              "'; a statement is made of words, numbers, %values and : = , ( ) [ ] { } @, and ends with its "
              "line or a ;"));
  }
  token.text = text_.substr(start, position_ - start);
  return token;
}

Token Lexer::string_token(Token token) {
  token.kind = TokenKind::string;
  token.text.clear();
  step();
  while (position_ < text_.size() && peek() != '"' && peek() != '\n') {
    char c = peek();
    step();
    if (c == '\\') {
      const std::string_view rest = text_.substr(position_, 3);
      unsigned code = 0;
      if (!rest.empty() && (rest[0] == '"' || rest[0] == '\\')) {
        c = rest[0];
        step();
      } else if (rest.size() == 3 && rest[0] == 'x' &&
                 std::from_chars(rest.data() + 1, rest.data() + 3, code, 16).ptr == rest.data() + 3) {
        c = static_cast<char>(code);
        step(), step(), step();
      } else {
        fail(line_, column_, "unknown escape in a string; write \\\", \\\\ or \\x and two hex digits");
      }
    }
    token.text += c;
  }
  if (position_ >= text_.size() || peek() == '\n')
    fail(token.line, token.column, "this string is not closed on its line; add a \"");
  step();
  if (first_non_utf8(token.text) != std::string_view::npos)
    fail(token.line, token.column, "this string is not UTF-8; mend its \\x escapes");
  return token;
}

}  // namespace flexsn
