// Parts of Python text for Triton: names, constants, one row of the op table as an expression.
#pragma once

#include <set>

#include "ops.h"

namespace flexsn {

/// Python names, each given once.
class TritonNames {
 public:
  TritonNames();
  /// A legal name that is as much like `wish` as can be.
  std::string take(std::string_view wish);

 private:
  std::set<std::string, std::less<>> taken_;
};

/// "tl.float32"
std::string_view triton_type(Type type);
/// "torch.bfloat16"
std::string_view torch_type(Mem mem);

/// A number in Python that Triton and torch take for the same bits once they know its type; a negative zero
/// is not among those that Triton does.
std::string python_number(Type type, std::uint64_t bits);

/// A block of this shape, every entry the number.
std::string triton_block(const std::string& shape, Type type, std::uint64_t bits);

/// What an operand is: a variable, or a constant that may be written as a number.
struct TritonOperand {
  std::string name;  ///< "" for a constant
  Type type = Type::f32;
  std::uint64_t bits = 0;
};

/// The name of a variable with this constant, for where Triton would guess the type of a number.
using TritonConstant = std::function<std::string(Type type, std::uint64_t bits)>;

/// A basic row on operands, one for each of its arity.
std::string triton_expression(ir::Op op, const std::vector<TritonOperand>& operands,
                              const TritonConstant& constant);

/// `loaded`, an expression of what memory holds, as a value; what to store for a value.
std::string triton_loaded(Mem mem, const std::string& loaded);
std::string triton_stored(Mem mem, const std::string& value);

/// The device functions that `text` calls, before it.
std::string with_triton_helpers(std::string text);

}  // namespace flexsn
