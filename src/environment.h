// The floating-point environment in which everything is computed, whatever the caller's is.
#pragma once

#include <cfenv>

namespace flexsn {

/// IEEE defaults (round to nearest, subnormals kept) while alive; then the caller's environment again. Inside
/// another one there is nothing to do.
class IeeeEnvironment {
 public:
  IeeeEnvironment() : outermost_(!inside_) {
    if (!outermost_) return;
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
    inside_ = true;
  }
  ~IeeeEnvironment() {
    if (!outermost_) return;
    std::fesetenv(&saved_);
    inside_ = false;
  }
  IeeeEnvironment(const IeeeEnvironment&) = delete;
  IeeeEnvironment& operator=(const IeeeEnvironment&) = delete;

 private:
  static inline thread_local bool inside_ = false;
  const bool outermost_;
  std::fenv_t saved_;
};

}  // namespace flexsn
