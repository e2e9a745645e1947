// The pieces that CUDA C++ text is made of: indented lines, types, constants, one op.
#pragma once

#include "error.h"
#include "ir.h"

namespace flexsn {

/// Text that grows by lines; what stands between open and close is indented.
class CudaLines {
 public:
  /// A directive of the preprocessor is not indented.
  template <class... Parts>
  void line(const Parts&... parts) {
    const std::string text = join(parts...);
    if (text[0] != '#') text_.append(indent_, ' ');
    text_ += text + '\n';
  }
  void gap() { text_ += '\n'; }
  /// `head` ends with what opens the block.
  template <class... Parts>
  void open(const Parts&... head) {
    line(head...);
    indent_ += 2;
  }
  void close(std::string_view tail = "}") {
    dedent();
    line(tail);
  }
  /// Ends a block of one statement, which has no braces.
  void dedent() { indent_ -= 2; }
  /// head(item, item, ...)tail over as many lines as it takes.
  void list(const std::string& head, const std::vector<std::string>& items, const std::string& tail);
  /// The same with a block after it.
  void open_list(const std::string& head, const std::vector<std::string>& items, const std::string& tail) {
    list(head, items, tail);
    indent_ += 2;
  }
  /// Lines that were made elsewhere.
  void append(const std::string& lines) { text_ += lines; }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::size_t indent_ = 0;
};

/// The type of a value, and that of an entry in memory.
std::string_view cuda_type(Type type);
std::string_view cuda_type(Mem mem);

/// A constant that every compiler reads back to the same bits.
std::string cuda_constant(Type type, std::uint64_t bits);

/// An entry of memory as a value, and back.
std::string cuda_loaded(Mem mem, const std::string& entry);
std::string cuda_stored(Mem mem, const std::string& value);
/// Is an entry of this memory its value as it stands?
inline bool is_natural(Mem mem) { return ir::natural_memory(value_type(mem)) == mem && mem != Mem::b8; }

/// An op of `graph` on operands as they stand in the text.
std::string cuda_expression(const ir::Graph& graph, const ir::Node& node, const std::string* operands);
/// The same, and the compiler does not see what it is: a choice, or a truth value as a number (cuda_choices).
std::string cuda_hidden(const ir::Graph& graph, const ir::Node& node, const std::string* operands);

}  // namespace flexsn
