// A polynomial as a chain of fma, which the elementary functions share.
#pragma once

#include "build.h"

namespace flexsn::math {

/// The polynomial at x with these coefficients, the highest power first.
template <int N>
ir::V horner(ir::V x, const double (&coefficients)[N]) {
  ir::V sum = ir::lit(x, coefficients[0]);
  for (int i = 1; i < N; ++i) sum = ir::fma(sum, x, coefficients[i]);
  return sum;
}

}  // namespace flexsn::math
