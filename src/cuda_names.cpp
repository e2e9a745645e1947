#include "cuda_names.h"

#include <algorithm>

namespace flexsn {

namespace {

/// Words of the language, functions that spellings of rows call, macros of headers that a host has, and what
/// all texts have at their top.
constexpr std::string_view reserved[] = {"alignas",
                                         "alignof",
                                         "and",
                                         "and_eq",
                                         "asm",
                                         "assert",
                                         "auto",
                                         "bitand",
                                         "bitor",
                                         "blockDim",
                                         "blockIdx",
                                         "bool",
                                         "break",
                                         "case",
                                         "catch",
                                         "ceil",
                                         "ceilf",
                                         "char",
                                         "char16_t",
                                         "char32_t",
                                         "char8_t",
                                         "class",
                                         "compl",
                                         "const",
                                         "constexpr",
                                         "const_cast",
                                         "continue",
                                         "copysign",
                                         "copysignf",
                                         "decltype",
                                         "default",
                                         "delete",
                                         "do",
                                         "double",
                                         "dynamic_cast",
                                         "else",
                                         "enum",
                                         "errno",
                                         "explicit",
                                         "export",
                                         "extern",
                                         "fabs",
                                         "fabsf",
                                         "false",
                                         "float",
                                         "floor",
                                         "floorf",
                                         "fma",
                                         "fmaf",
                                         "fmod",
                                         "fmodf",
                                         "for",
                                         "friend",
                                         "goto",
                                         "gridDim",
                                         "if",
                                         "inline",
                                         "int",
                                         "linux",
                                         "long",
                                         "major",
                                         "makedev",
                                         "max",
                                         "memcpy",
                                         "min",
                                         "minor",
                                         "mutable",
                                         "namespace",
                                         "new",
                                         "noexcept",
                                         "not",
                                         "not_eq",
                                         "nullptr",
                                         "operator",
                                         "or",
                                         "or_eq",
                                         "private",
                                         "protected",
                                         "public",
                                         "register",
                                         "reinterpret_cast",
                                         "return",
                                         "rint",
                                         "rintf",
                                         "short",
                                         "signed",
                                         "signgam",
                                         "sizeof",
                                         "sqrt",
                                         "sqrtf",
                                         "static",
                                         "static_assert",
                                         "static_cast",
                                         "stderr",
                                         "stdin",
                                         "stdout",
                                         "struct",
                                         "switch",
                                         "template",
                                         "this",
                                         "thread_local",
                                         "threadIdx",
                                         "throw",
                                         "true",
                                         "trunc",
                                         "truncf",
                                         "try",
                                         "typedef",
                                         "typeid",
                                         "typename",
                                         "uint2",
                                         "uint4",
                                         "union",
                                         "unix",
                                         "unsigned",
                                         "using",
                                         "virtual",
                                         "void",
                                         "volatile",
                                         "wchar_t",
                                         "while",
                                         "xor",
                                         "xor_eq",
                                         "Carried",
                                         "G",
                                         "K",
                                         "Kept",
                                         "L",
                                         "P",
                                         "Rest",
                                         "Rows",
                                         "Run",
                                         "States",
                                         "Sums",
                                         "Thread",
                                         "V"};

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string legal(std::string_view wanted) {
  constexpr std::size_t longest = 40;
  std::string name;
  for (char c : wanted) {
    if (name.size() == longest) break;
    const bool fits = is_lower(c) || is_upper(c) || is_digit(c);
    // Names with a leading or a double underscore belong to compilers.
    if (fits)
      name += c;
    else if (!name.empty() && name.back() != '_')
      name += '_';
  }
  while (!name.empty() && name.back() == '_') name.pop_back();
  if (name.empty() || is_digit(name[0])) name = "v" + name;
  if (name.starts_with("flexsn")) name = "v_" + name;
  // A name in capitals may be a macro.
  const bool capitals = std::none_of(name.begin(), name.end(), is_lower);
  if ((capitals && name.size() > 1) ||
      std::find(std::begin(reserved), std::end(reserved), name) != std::end(reserved))
    name += "_";
  return name;
}

}  // namespace

CudaNames::CudaNames(std::initializer_list<std::string_view> taken) : taken_(taken.begin(), taken.end()) {}

std::string CudaNames::add(std::string_view wanted) {
  const std::string name = legal(wanted);
  std::string found = name;
  for (int number = 2; !taken_.insert(found).second; ++number)
    found = name + (name.back() == '_' ? "" : "_") + std::to_string(number);
  return found;
}

}  // namespace flexsn
