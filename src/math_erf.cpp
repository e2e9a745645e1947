// erf, in two pieces.
//
// For small |x|, erf(x) / x is a polynomial in x^2. Above, erf(x) = 1 - erfc(x), where the 8th (f32) or 16th
// (f64) root of erfc(x) is smooth enough to be a short polynomial in |x|, and squarings stand in for an exp.
// They multiply the rounding errors by 8 or 16, but only errors of erfc(x), which is below 0.1 there.
#include <cmath>

#include "elementary.h"
#include "horner.h"

namespace flexsn::math {
namespace {
using namespace ir;

/// From here on the piece for large |x| holds.
double large_from(V x) { return x.type() == Type::f32 ? 1.1875 : 1.4375; }

/// erf(x) / x - 1 for |x| < large_from, in s = x^2.
V small_ratio(V s) {
  if (s.type() == Type::f32) {
    // error of erf 2^-26.1
    return horner(
        s, {6.6059255914296955e-5, -7.5930956518277526e-4, 5.1357839256525040e-3, -2.6823149994015694e-2,
            0.11282771080732346, -0.37612545490264893, 0.12837915122509003});
  }
  // error of erf 2^-54.5
  return horner(
      s, {-2.5926791377346298e-12, 7.1757354752530138e-11, -1.1503088676316728e-9, 1.4619873669287218e-8,
          -1.6334646071436807e-7, 1.6458425690258336e-6, -1.4925340741421280e-5, 1.2055314765797235e-4,
          -8.5483262925134854e-4, 5.2239776063580570e-3, -2.6866170642133667e-2, 0.11283791670930447,
          -0.37612638903182949, 0.12837916709551253});
}

/// erfc(t)^(1/8) in f32.
V erfc_root_f32(V t) {
  // error of erf 2^-27.8
  return horner(t,
                {1.6756272816564888e-4, -2.6633797679096460e-3, 1.3789897784590721e-2, -1.3388869352638721e-2,
                 -5.8832801878452301e-2, -0.14680811762809753, 1.0013167858123779});
}

/// erfc(t)^(1/16) in f64.
V erfc_root_f64(V t) {
  // error of erf about 2^-56
  return horner(
      t, {-7.8750804231388830e-12, 3.3436666344970827e-10, -6.6792307180755893e-9, 8.3017339787997722e-8,
          -7.1054911987828020e-7, 4.3674879587502542e-6, -1.9876418416289664e-5, 7.1579660483377274e-5,
          -2.0707050278003688e-4, 1.6600351139909640e-4, 2.3027627639109374e-3, -3.6536379412777384e-3,
          -3.7310361167576196e-2, -7.0521753733074941e-2, 0.99999979809300066});
}

/// erf(t) for t >= large_from.
V erf_large(V t) {
  bool single = t.type() == Type::f32;
  t = minimum(t, lit(t, single ? 3.921875 : 5.9375));  // where erf is 1 to the precision of the type
  V power = single ? erfc_root_f32(t) : erfc_root_f64(t);
  for (int squarings = single ? 3 : 4; squarings > 0; --squarings) power = power * power;
  return 1.0 - power;
}
}  // namespace

V erf(V x) {
  V t = abs(x);
  V small = fma(x, small_ratio(x * x), x);
  return select(t >= large_from(x), raw_copysign(erf_large(t), x), small);
}
}  // namespace flexsn::math
