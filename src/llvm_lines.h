// Lines of LLVM IR: one row of the op table, one load or store becomes a few instructions of one width.
#pragma once

#include "emit_llvm.h"
#include "ops.h"

namespace flexsn {

/// Appends instructions to the text of one basic block. An operand is a name such as %v3.0 or a constant.
class LlvmLines {
 public:
  /// `lanes` is 1 for scalars; `names` counts the temporaries of the whole function.
  LlvmLines(std::string& out, int& names, int lanes, Isa isa)
      : out_(out), names_(names), lanes_(lanes), isa_(isa) {}

  /// "float" or "<16 x float>"
  std::string type(Type value) const;
  std::string type(Mem mem) const;
  /// A constant of these bits in every lane.
  std::string constant(Type type, std::uint64_t bits) const;
  /// The result of a basic row on operands of these types.
  std::string apply(ir::Op op, Type result, const Type* types, const std::string* operands);
  /// `a + b` in `type`, which is f32 or f64.
  std::string add(Type type, const std::string& a, const std::string& b);
  /// The value in memory at `pointer`, widened to its value type.
  std::string load(Mem mem, const std::string& pointer);
  /// What is stored was rounded to `mem` before. Past the caches where `streaming`; the pointer must then be
  /// a multiple of the vector's size, or of 32.
  void store(Mem mem, const std::string& value, const std::string& pointer, bool streaming = false);
  /// A scalar in every lane of this width.
  std::string splat(Type type, const std::string& scalar);
  /// `i`, an i32, for the first lane, one more for each next.
  std::string count_from(const std::string& i);

 private:
  /// Appends "%name = parts"; returns %name.
  template <class... Parts>
  std::string line(const Parts&... parts);
  std::string vector(std::string_view element) const;
  std::string all_lanes(std::string_view element_and_value) const;
  std::string suffix(Type type) const;
  std::string convert(std::string_view how, const std::string& from, const std::string& value,
                      const std::string& to);
  std::string integer(Mem mem, std::int64_t value) const;
  std::string i32(std::int32_t value) const { return all_lanes("i32 " + std::to_string(value)); }
  std::string intrinsic(std::string_view name, Type result, const Type* types, const std::string* operands,
                        int arity);
  std::string helper(std::string_view name, Type result, const Type* types, const std::string* operands);
  std::string round_f16(const std::string& x);
  std::string round_bf16(const std::string& x);
  std::string divide(std::string_view how, const std::string& a, const std::string& b);
  std::string extreme(bool largest, Type type, const std::string& a, const std::string& b);
  std::string to_words(const std::string& x, bool high);

  std::string& out_;
  int& names_;
  int lanes_;
  Isa isa_;
};

}  // namespace flexsn
