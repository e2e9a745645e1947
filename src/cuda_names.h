// Names of the user as identifiers of C++: legal, each used once, none with a meaning of its own.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace flexsn {

/// The identifiers of one scope.
class CudaNames {
 public:
  CudaNames() = default;
  /// `taken` are the scope's own.
  CudaNames(std::initializer_list<std::string_view> taken);

  /// An identifier like `wanted` that nothing else in the scope is called by.
  std::string add(std::string_view wanted);

 private:
  std::set<std::string, std::less<>> taken_;
};

}  // namespace flexsn
