// The floating-point environment in which everything is computed, whatever the caller's is.
#pragma once

#include <cfenv>

namespace flexsn {

/// IEEE defaults (round to nearest, subnormals kept) while alive; then the caller's environment again.
class IeeeEnvironment {
 public:
  IeeeEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~IeeeEnvironment() { std::fesetenv(&saved_); }
  IeeeEnvironment(const IeeeEnvironment&) = delete;
  IeeeEnvironment& operator=(const IeeeEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace flexsn
