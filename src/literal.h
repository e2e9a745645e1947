// Constants as text: what is printed reads back to the same bits.
#pragma once

#include "ir.h"

namespace flexsn {

/// The shortest text that gives these bits when read as this type.
std::string literal(Type type, std::uint64_t bits);

/// The bits of a number written as 0.5, 1e-3, 0x1.8p+1, inf, -inf, nan, nan(0x7fc00001), true or false;
/// nothing when it is no number of this type.
std::optional<std::uint64_t> read_literal(Type type, std::string_view text);

}  // namespace flexsn
