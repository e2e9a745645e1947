// Expansions of the elementary functions into exact ops, for f32 and f64. Each adds straight-line
// code to the operands' graph; docs/ops.md lists how accurate it is.
#pragma once

#include "build.h"

namespace flexsn::math {
using ir::V;

V exp(V x);
V exp2(V x);
V expm1(V x);
V sigmoid(V x);
V tanh(V x);
V sinh(V x);
V cosh(V x);
/// log(1 + e^x)
V softplus(V x);
V log(V x);
V log2(V x);
V log10(V x);
V log1p(V x);
V pow(V x, V y);
V erf(V x);
V sin(V x);
V cos(V x);
V tan(V x);
V asin(V x);
V acos(V x);
V atan(V x);
V atan2(V y, V x);

}  // namespace flexsn::math
