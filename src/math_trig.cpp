// Trigonometric functions and their inverses as straight-line code for f32 and f64.
//
// sin, cos, tan: x = k*pi/2 + r with |r| <= pi/4. Adding a magic number rounds x*2/pi to the integer k and
// leaves k mod 4 in the low bits; three fma steps (Cody-Waite) remove k*pi/2 so that r keeps its relative
// accuracy even next to a multiple of pi/2. sin(r)/r, cos(r) and r/tan(r) are polynomials in s = r^2.
//
// atan, atan2: the ratio t of the smaller to the larger side is in [0, 1]; atan(t) is an odd polynomial, and
// reflections at pi/4, pi/2 and the axes do the rest.
//
// asin, acos: an odd polynomial up to 1/2; above, asin(a) = pi/2 - 2 asin(sqrt((1 - a)/2)).
//
// The polynomials are minimax fits with coefficients rounded to the type. The leading term (1, or the
// argument itself) is kept exact, so that tiny arguments come out exactly and underflow gradually.
#include <cmath>

#include "elementary.h"
#include "horner.h"

namespace flexsn::math {
namespace {

using namespace ir;

constexpr double pi = 0x1.921fb54442d18p1;       // pi, rounded; lit rounds it once more for f32
constexpr double half_pi = 0x1.921fb54442d18p0;  // pi/2, rounded
// pi/2 as a sum: a short head, so chosen that the rest loses next to nothing when rounded to either type.
constexpr double half_pi_head = 1.375;
constexpr double half_pi_rest = 0x1.90fdaa22168c2p-3;

bool is_f32(V x) { return x.type() == Type::f32; }

/// x = k*pi/2 + r.
struct Reduced {
  V r;         // |r| <= pi/4, a little more for large x
  V s;         // r^2
  V quadrant;  // an i32 with k mod 4 in its two low bits
  V odd;       // whether k is odd
};

struct ReductionConstants {
  double limit;        // |x| is clamped to this; up to here k fits into the low bits of the magic number
  double magic;        // 1.5 * 2^(mantissa bits): a sum near it has no fraction bits
  double two_over_pi;  // 2/pi, rounded
  double high;         // pi/2 to the precision of the type, rounded down
  double middle;       // pi/2 - high, rounded to nearest
  double low_ratio;    // (pi/2 - high - middle) / (pi/2), rounded to nearest
};

constexpr ReductionConstants reduction_f32 = {0x1p22,       0x1.8p23,       0x1.45f306p-1,
                                              0x1.921fb4p0, 0x1.4442d2p-24, -0x1.3ab6bp-50};
constexpr ReductionConstants reduction_f64 = {0x1p50,
                                              0x1.8p52,
                                              0x1.45f306dc9c883p-1,
                                              0x1.921fb54442d18p0,
                                              0x1.1a62633145c07p-54,
                                              -0x1.3cc6cdc4b6e2fp-110};

/// The reduction of x. sin, cos and tan build the same nodes here, which merge when they share x.
Reduced reduce(V x) {
  const ReductionConstants& c = is_f32(x) ? reduction_f32 : reduction_f64;
  // The clamp is on x and symmetric, so that odd functions stay odd for every x.
  V clamped = maximum(minimum(x, lit(x, c.limit)), lit(x, -c.limit));
  V shifted = fma(clamped, c.two_over_pi, c.magic);
  V k = shifted - c.magic;
  V r = fma(k, -c.high, clamped);  // exact: the difference has few enough bits
  r = fma(k, -c.middle, r);
  // x/(pi/2) is close enough to k here. The factors of k are negative and this one is positive: that keeps
  // x = -0, where k = +0, a -0.
  r = fma(clamped, -c.low_ratio, r);
  r = fma(x, 0.0, r);  // infinities, which the clamp made finite, become NaN
  V quadrant = is_f32(x) ? raw_bits(shifted) : raw_low(shifted);
  return {r, r * r, quadrant, (quadrant & 1) != 0};
}

/// sin(r), |r| <= pi/4. A product, not r + r*s*p: that sum would turn -0 into +0.
V sin_reduced(V r, V s) {
  V factor = is_f32(s)
                 ? horner(s, {-1.95094166e-4, 8.33211374e-3, -0.166666538, 1.0})
                 : horner(s, {1.5894031654828258e-10, -2.5050709955101977e-8, 2.7557313379632063e-6,
                              -1.9841269828886263e-4, 8.3333333333212179e-3, -0.16666666666666627, 1.0});
  return r * factor;
}

/// cos(r) from s = r^2, |r| <= pi/4. The f32 fit is closest near pi/4, where most rounding errors add up.
V cos_reduced(V s) {
  return is_f32(s) ? horner(s, {-1.35766203e-3, 4.16544192e-2, -0.499998569, 1.0})
                   : horner(s, {2.0630365007903980e-9, -2.7555241270671677e-7, 2.4801578666970212e-5,
                                -1.3888888870720671e-3, 4.1666666666490486e-2, -0.49999999999999428, 1.0});
}

/// r / tan(r) from s = r^2, |r| <= pi/4: smoother than tan(r)/r, and it leaves r itself unrounded.
V tan_divisor(V s) {
  return is_f32(s) ? horner(s, {-2.48272001e-4, -2.09621433e-3, -2.22265497e-2, -0.333333045, 1.0})
                   : horner(s, {-3.1144300534373548e-9, -2.0996306601856345e-8, -2.2018165243103602e-7,
                                -2.1639881541050172e-6, -2.1377914343947448e-5, -2.1164019240298618e-4,
                                -2.1164021182218020e-3, -2.2222222222137513e-2, -0.33333333333333470, 1.0});
}

/// Changes the sign of value in the two quadrants that have bit 1 set.
V negate_in_quadrants_2_3(V quadrant, V value) { return select((quadrant & 2) != 0, -value, value); }

/// (atan(t) - t) / t^3 as a polynomial in s = t^2, |t| <= 1. The f32 fit is of atan(t) + 2.1e-8 t^5, which
/// takes back half of the rounding error of pi/2 where the callers subtract a t near 1 from it.
V atan_tail(V s) {
  return is_f32(s) ? horner(s, {2.90183979e-3, -1.62906889e-2, 4.30827625e-2, -7.54091963e-2, 0.106604956,
                                -0.142095864, 0.199935824, -0.333331436})
                   : horner(s, {-2.0191403783105784e-5, 2.2237590004679011e-4, -1.1612020350492086e-3,
                                3.8481867822625550e-3, -9.1701105481100369e-3, 1.6958626516843843e-2,
                                -2.5807288547339349e-2, 3.4052861098128044e-2, -4.0917561975279973e-2,
                                4.6735478441165636e-2, -5.2390921593138198e-2, 5.8772701156406294e-2,
                                -6.6658528041384252e-2, 7.6922118181283639e-2, -9.0909011195400277e-2,
                                0.11111110670649529, -0.14285714270985125, 0.19999999999746973,
                                -0.33333333333331788});
}

/// (asin(y) - y) / y^3 as a polynomial in s = y^2, |y| <= 1/2.
V asin_tail(V s) {
  return is_f32(s) ? horner(s, {4.22271341e-2, 2.41404697e-2, 4.54792455e-2, 7.49521479e-2, 0.166667551})
                   : horner(s, {3.1954761518215358e-2, -1.6287972455017782e-2, 1.9570216041059279e-2,
                                6.5120402763782339e-3, 1.2173071001986176e-2, 1.3884613869549379e-2,
                                1.7359772127007188e-2, 2.2371753191836243e-2, 3.0381959362210501e-2,
                                4.4642856822064043e-2, 7.5000000003461464e-2, 0.16666666666665358});
}

/// What asin(x) and acos(x) have in common: asin(y) = y + y*factor, where y = |x| up to |x| = 1/2 and
/// y = root above it.
struct ArcParts {
  V size;    // |x|
  V above;   // |x| > 1/2
  V root;    // sqrt((1 - |x|)/2), which makes the NaN of arguments outside [-1, 1]
  V factor;  // asin(y)/y - 1
};

ArcParts arc_parts(V x) {
  V size = abs(x);
  V above = size > 0.5;
  V half_rest = fma(size, -0.5, 0.5);           // exact where it is used
  V s = select(above, half_rest, size * size);  // y^2
  return {size, above, sqrt(half_rest), s * asin_tail(s)};
}

}  // namespace

V sin(V x) {
  Reduced a = reduce(x);
  return negate_in_quadrants_2_3(a.quadrant, select(a.odd, cos_reduced(a.s), sin_reduced(a.r, a.s)));
}

V cos(V x) {
  Reduced a = reduce(x);
  V size = select(a.odd, sin_reduced(a.r, a.s), cos_reduced(a.s));
  return negate_in_quadrants_2_3(a.quadrant + 1, size);  // cos is sin one quadrant further
}

V tan(V x) {
  Reduced a = reduce(x);
  // tan(r) = r / q; next to an odd multiple of pi/2 it is -1/tan(r), still one division.
  V q = tan_divisor(a.s);
  return select(a.odd, -q, a.r) / select(a.odd, a.r, q);
}

V asin(V x) {
  ArcParts a = arc_parts(x);
  V low = fma(a.size, a.factor, a.size);
  // pi/2 - 2*root - 2*root*factor, the head of pi/2 last: smaller terms lose less in rounding.
  V high = fma(a.root * -2.0, a.factor, fma(a.root, -2.0, half_pi_rest)) + half_pi_head;
  return raw_copysign(select(a.above, high, low), x);
}

V acos(V x) {
  ArcParts a = arc_parts(x);
  V y = select(a.above, a.root, a.size);
  V angle = raw_copysign(fma(y, a.factor, y), x);
  // pi/2 - asin(x) in the middle; 2*angle at the right end, pi - 2*|angle| at the left end.
  V base = select(a.above, select(x < 0.0, lit(x, pi), 0.0), half_pi);
  return fma(angle, select(a.above, lit(x, 2.0), -1.0), base);
}

V atan(V x) {
  V size = abs(x);
  V steep = size > 1.0;  // then atan(a) = pi/2 + atan(-1/a)
  V t = select(steep, -1.0 / size, size);
  V base = select(steep, lit(x, half_pi), 0.0);
  V s = t * t;
  return raw_copysign(fma(t * s, atan_tail(s), base + t), x);
}

V atan2(V y, V x) {
  V width = abs(x);
  V height = abs(y);
  // The smallest subnormal in the place of 0 makes 0/0 zero and changes no other quotient.
  V longer = maximum(maximum(width, height), lit(x, is_f32(x) ? 0x1p-149 : 0x1p-1074));
  V shorter = minimum(width, height);
  V t = select(shorter == lit(x, HUGE_VAL), 1.0, shorter / longer);  // inf/inf counts as 1
  V s = t * t;
  V angle = fma(t * s, atan_tail(s), t);
  angle = select(height > width, half_pi - angle, angle);
  V left = raw_copysign(lit(x, 1.0), x) < 0.0;  // by the sign bit: -0 lies to the left
  angle = select(left, pi - angle, angle);
  return raw_copysign(angle, y);
}

}  // namespace flexsn::math
