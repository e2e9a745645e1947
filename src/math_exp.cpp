// The exponential family: exp, exp2, expm1, sigmoid, tanh, sinh, cosh and softplus, for f32 and f64.
//
// All start alike. Clamp x to where the result still changes (so nothing below sees an infinity), then
// split x = k * (step * ln 2) + r with k the nearest integer: adding a "magic" number 1.5 * 2^(precision - 1)
// leaves k in the low bits of the sum. The magic number also holds the exponent bias, so that shifting those
// bits into the exponent field gives 2^k at once. e^r is a polynomial.
//
// One 2^k cannot reach both ends of the range; there are three ways round, with no further rounding but of
// subnormal results of sigmoid:
//  - exp and exp2 take steps of 2 ln 2, so that e^x = (p * 2^h) * 2^h, with a polynomial on twice the range;
//  - sigmoid and softplus have no large powers: they use 2^(k + 64) and polynomials scaled by 2^+-64;
//  - expm1, sinh and cosh have no tiny powers: they use 2^(k - 1) or 2^(k - 2) and scale back at the end.
// A NaN passes the clamps and reaches every result through r, whatever the bits of its sum are.
//
// Coefficients: minimax fits (Sollya fpminimax; exp2 by a Remez fit exact at -1 and 1), lowest degree first.
#include <cmath>

#include "elementary.h"

namespace flexsn::math {
namespace {
using namespace ir;

struct Poly {
  int size;
  double c[14];
};

/// What differs between the two types.
struct Format {
  int exponent_bias;
  int exponent_shift;         // position of the exponent in the word that holds it
  double magic;               // 1.5 * 2^(precision - 1)
  double ln2, ln2_rest;       // ln 2 rounded, and what the rounding left
  double exp_min, exp_max;    // e^x rounds to 0 below, overflows above
  double exp2_min, exp2_max;  // the same for 2^x
  double expm1_min;           // e^x - 1 rounds to -1 below
  double sigmoid_max;         // sigmoid rounds to 1 above
  double cosh_max;            // cosh and sinh overflow here, and k is still small enough for 2^(k - 2)
  Poly exp_wide;              // e^r, |r| <= ln 2
  Poly exp2_wide;             // 2^r, |r| <= 1; evaluates exactly to 1/2, 1 and 2 at -1, 0 and 1
  Poly exp_near;              // e^r, |r| <= ln 2 / 2; good for e^r - 1 too
  Poly cosh_near, sinh_near;  // cosh r and (sinh r) / r as polynomials in r^2, |r| <= ln 2 / 2
  Poly atanh_tail;            // (2 atanh z - 2 z) / z^3 as polynomial in z^2, 0 <= z <= 1/3
};

constexpr Format f32_format = {
    .exponent_bias = 127,
    .exponent_shift = 23,
    .magic = 0x1.8p23,
    .ln2 = 0x1.62e43p-1,
    .ln2_rest = -0x1.05c61p-29,
    .exp_min = -104,
    .exp_max = 89,
    .exp2_min = -151,
    .exp2_max = 129,
    .expm1_min = -18,
    .sigmoid_max = 20,
    .cosh_max = 89.5,
    .exp_wide = {8,
                 {1, 1, 0x1.00000cp-1, 0x1.555512p-3, 0x1.5549ep-5, 0x1.11273p-7, 0x1.71c384p-10,
                  0x1.9ba8ap-13}},
    .exp2_wide = {8,
                  {1, 0x1.62e438p-1, 0x1.ebfbf6p-3, 0x1.c6ac96p-5, 0x1.3b2002p-7, 0x1.5e788ep-10,
                   0x1.4826b6p-13, 0x1.c241a6p-17}},
    .exp_near = {7, {1, 1, 0x1.fffffep-2, 0x1.5554bp-3, 0x1.555716p-5, 0x1.1227a2p-7, 0x1.6b737cp-10}},
    .cosh_near = {4, {1, 0.5, 0x1.5554e4p-5, 0x1.6d5156p-10}},
    .sinh_near = {3, {1, 0x1.5554bp-3, 0x1.1227a6p-7}},
    .atanh_tail = {4, {0x1.5555p-1, 0x1.99d29p-2, 0x1.1eb4e2p-2, 0x1.1efea8p-2}},
};

constexpr Format f64_format = {
    .exponent_bias = 1023,
    .exponent_shift = 20,
    .magic = 0x1.8p52,
    .ln2 = 0x1.62e42fefa39efp-1,
    .ln2_rest = 0x1.abc9e3b39803fp-56,
    .exp_min = -746,
    .exp_max = 710,
    .exp2_min = -1076,
    .exp2_max = 1025,
    .expm1_min = -38,
    .sigmoid_max = 40,
    .cosh_max = 710.5,
    .exp_wide = {14,
                 {1, 1, 0x1.ffffffffffff3p-2, 0x1.55555555555b7p-3, 0x1.5555555556951p-5,
                  0x1.11111111081d2p-7, 0x1.6c16c169bf797p-10, 0x1.a01a01b245678p-13, 0x1.a01a0582e319p-16,
                  0x1.71de29f6aa401p-19, 0x1.27e1c96aa0fb9p-22, 0x1.ae7138cba477bp-26, 0x1.217ae0e0fd59ep-29,
                  0x1.5e6c88541df62p-33}},
    .exp2_wide = {14,
                  {1, 0x1.62e42fefa39ecp-1, 0x1.ebfbdff82c586p-3, 0x1.c6b08d704a60bp-5, 0x1.3b2ab6fba5cd2p-7,
                   0x1.5d87fe7851b6fp-10, 0x1.430912f6a4a97p-13, 0x1.ffcbfce8ea03bp-17, 0x1.62c0254056c58p-20,
                   0x1.b524c6843513ep-24, 0x1.e4ca55751e1e3p-28, 0x1.e9274791bfc4cp-32, 0x1.c7ad6e8145ef7p-36,
                   0x1.66ea65d33a485p-40}},
    .exp_near = {12,
                 {1, 1, 0x1.0000000000005p-1, 0x1.555555555553bp-3, 0x1.55555555520fbp-5,
                  0x1.1111111118834p-7, 0x1.6c16c17f35c04p-10, 0x1.a01a0177f597dp-13, 0x1.a019a688b52abp-16,
                  0x1.71de80ef4971ep-19, 0x1.28a2ab6e221a2p-22, 0x1.ae77c9dd89894p-26}},
    .cosh_near = {6,
                  {1, 0x1.000000000000bp-1, 0x1.5555555550252p-5, 0x1.6c16c18544a26p-10,
                   0x1.a0199778eb27fp-16, 0x1.28af8fc15f43cp-22}},
    .sinh_near = {6,
                  {1, 0x1.5555555555559p-3, 0x1.111111110f65p-7, 0x1.a01a01b006a69p-13, 0x1.71ddf80534f88p-19,
                   0x1.af5f412d57d97p-26}},
    .atanh_tail = {10,
                   {0x1.5555555555535p-1, 0x1.99999999a0775p-2, 0x1.249249208a7c1p-2, 0x1.c71c741d9dde2p-3,
                    0x1.745cb3cfb5957p-3, 0x1.3b1ddffa59451p-3, 0x1.106783cd9178ap-3, 0x1.efdca6e51daf3p-4,
                    0x1.559cba2ba0e5p-4, 0x1.5c8cdce13ef01p-3}},
};

// Only the f32 tanh uses these: tanh a = a + a^3 * tanh_tail(a^2) up to tanh_split, where tanh = 1/2;
// e^(2 r) for |r| <= ln 2 / 4 needs fewer terms than exp_near, as 1 - 2 / (e + 1) damps its error.
constexpr double tanh_split = 0.5493;
constexpr Poly tanh_tail = {4, {-0x1.555452p-2, 0x1.10cefcp-3, -0x1.af7d38p-5, 0x1.0d5184p-6}};
constexpr Poly exp_of_twice = {
    6, {0x1.000002p0, 0x1.fffff8p0, 0x1.fffcacp0, 0x1.5558c4p0, 0x1.577672p-1, 0x1.107918p-2}};

const Format& format_of(V x) { return x.type() == Type::f32 ? f32_format : f64_format; }

/// scale * (c[first] + c[first + 1] * y + ...) with y = x_scale * x. The scales go into the constants.
V polynomial(V x, const Poly& p, int first = 0, double scale = 1, double x_scale = 1) {
  double c[14];
  for (int i = first; i < p.size; ++i, scale *= x_scale) c[i] = scale * p.c[i];
  V y = lit(x, c[p.size - 1]);
  for (int i = p.size - 2; i >= first; --i) y = fma(y, x, c[i]);
  return y;
}

V clamp(V x, double low, double high) { return minimum(maximum(x, lit(x, low)), lit(x, high)); }

/// |x|, at most `high`.
V clamped_abs(V x, double high) { return minimum(abs(x), lit(x, high)); }

/// An integer k as a number, and the sum whose low bits are the biased exponent of 2^(k + offset).
struct Rounded {
  V k, sum;
};

Rounded round_multiple(V x, double factor, int offset) {
  const Format& f = format_of(x);
  double magic = f.magic + f.exponent_bias + offset;
  V sum = fma(x, factor, lit(x, magic));
  return {sum - magic, sum};
}

/// The word with the exponent field of 2^(k + offset).
V exponent_word(V sum) {
  V low = sum.type() == Type::f32 ? raw_bits(sum) : raw_low(sum);
  return shift_left(low, lit_i32(sum, uint32_t(format_of(sum).exponent_shift)));
}

V from_exponent_word(V like, V word) {
  return like.type() == Type::f32 ? from_bits(word) : from_words(word, lit_i32(like, 0));
}

/// x = k * step * ln 2 + r, and power = 2^(k + offset).
struct Reduced {
  V k, r, word, power;
};

/// r lacks the rest of ln 2, k * step * 2^-29 (f32) or 2^-56 (f64): enough while k is small.
Reduced reduce_roughly(V x, double step, int offset) {
  constexpr double log2_e = 0x1.71547652b82fep0;
  auto [k, sum] = round_multiple(x, log2_e / step, offset);
  V word = exponent_word(sum);
  return {k, fma(k, -step * format_of(x).ln2, x), word, from_exponent_word(x, word)};
}

/// The first fma is exact (x and the product are multiples of a bit that r has room for): one rounding.
Reduced reduce(V x, double step, int offset) {
  Reduced d = reduce_roughly(x, step, offset);
  d.r = fma(d.k, -step * format_of(x).ln2_rest, d.r);
  return d;
}

/// (e^(step * r) - 1) / step without cancellation.
V expm1_near(V r, double step) { return fma(r * r, polynomial(r, format_of(r).exp_near, 2, step, step), r); }

// sigmoid and softplus work with 2^(k + lift) = lift_scale * 2^k, which is normal wherever they need it.
constexpr int lift = 64;
constexpr double lift_scale = 0x1p64, lowering = 0x1p-64;

/// log(1 + e) for 0 <= e <= 1: with z = e / (2 + e) it is 2 atanh z = e - z * (e - z^2 * tail).
V log1p_unit(V e) {
  V minus_z = e / (-2 - e);
  V z2 = minus_z * minus_z;
  return fma(minus_z, fma(z2, polynomial(z2, format_of(e).atanh_tail, 0, -1), e), e);
}

/// 1 - 2 / (e^2a + 1) loses nothing from tanh = 1/2 on; below, an odd polynomial.
V tanh_f32(V x) {
  V a = clamped_abs(x, 9.2);  // from 9.02 on, tanh rounds to 1
  Reduced d = reduce_roughly(a, 0.5, 0);
  V large = 1 - 2 / fma(polynomial(d.r, exp_of_twice), d.power, 1);
  V a2 = a * a;
  V small = fma(a * a2, polynomial(a2, tanh_tail), a);
  return raw_copysign(select(a < tanh_split, small, large), x);
}

/// With h = (e^2a - 1) / 2: h / (h + 1), or 1 - 1 / (h + 1) once tanh reaches 1/2 (that keeps it monotone).
/// Fewer ops than a polynomial long enough for f64, and up to 2.6 ulp for small a.
V tanh_f64(V x) {
  Reduced d = reduce_roughly(clamped_abs(x, 20), 0.5, 0);  // from 19.07 on, tanh rounds to 1
  V h = fma(d.power, expm1_near(d.r, 2), fma(d.power, 0.5, -0.5));
  V small = h < 1;
  V quotient = select(small, h, lit(h, -1)) / (h + 1);
  return raw_copysign(quotient + select(small, lit(h, 0), lit(h, 1)), x);
}

}  // namespace

V exp(V x) {
  const Format& f = format_of(x);
  Reduced d = reduce(clamp(x, f.exp_min, f.exp_max), 2, 0);
  return polynomial(d.r, f.exp_wide) * d.power * d.power;
}

V exp2(V x) {
  const Format& f = format_of(x);
  x = clamp(x, f.exp2_min, f.exp2_max);
  auto [h, sum] = round_multiple(x, 0.5, 0);
  V power = from_exponent_word(x, exponent_word(sum));
  return polynomial(fma(h, -2, x), f.exp2_wide) * power * power;
}

/// 2 * (2^(k-1) * (e^r - 1) + (2^(k-1) - 1/2)); the sum loses the sign of -0, so that is put back.
V expm1(V x) {
  const Format& f = format_of(x);
  Reduced d = reduce(clamp(x, f.expm1_min, f.exp_max), 1, -1);
  return raw_copysign(fma(d.power, expm1_near(d.r, 1), d.power - 0.5) * 2, x);
}

/// 2^k / (e^-r + 2^k), where e^-r is summed as (e^-r - 1 + 2^k) + 1, so that a small 2^k is not lost. The
/// dividend is lifted and the quotient lowered: one that is subnormal takes a GPU longer than all the rest.
V sigmoid(V x) {
  const Format& f = format_of(x);
  Reduced d = reduce(clamp(x, f.exp_min, f.sigmoid_max), 1, lift);
  V slope = polynomial(d.r, f.exp_near, 1, -lift_scale, -1);
  return d.power / fma(fma(d.r, slope, d.power), lowering, 1) * lowering;
}

V tanh(V x) { return x.type() == Type::f32 ? tanh_f32(x) : tanh_f64(x); }

/// cosh r * sinh(k ln 2) + sinh r * cosh(k ln 2). With 2^(k-2) and doubled polynomials, and the product that
/// may overflow inside the fma, every result in range comes out finite.
V sinh(V x) {
  const Format& f = format_of(x);
  Reduced d = reduce(clamped_abs(x, f.cosh_max), 1, -2);
  // 2^(lift - k), by subtracting exponents; lifted because 2^-k may be subnormal.
  uint32_t exponent_sum = uint32_t(2 * f.exponent_bias - 2 + lift) << f.exponent_shift;
  V inverse = from_exponent_word(x, lit_i32(x, exponent_sum) - d.word);
  constexpr double quarter = 0.25 * lowering;
  V cosh_k = fma(inverse, quarter, d.power), sinh_k = fma(inverse, -quarter, d.power);
  V r2 = d.r * d.r;
  V cosh_r = polynomial(r2, f.cosh_near, 0, 2), sinh_r = d.r * polynomial(r2, f.sinh_near, 0, 2);
  return raw_copysign(fma(cosh_r, sinh_k, sinh_r * cosh_k), x);
}

/// With q = e^|x| / 4: 2 q + 1 / (8 q).
V cosh(V x) {
  const Format& f = format_of(x);
  Reduced d = reduce(clamped_abs(x, f.cosh_max), 1, -2);
  V q = polynomial(d.r, f.exp_near) * d.power;
  return fma(q, 2, 0.125 / q);
}

/// max(x, 0) + log(1 + e^-|x|); the lifted power times the lowered polynomial rounds e^-|x| once.
V softplus(V x) {
  const Format& f = format_of(x);
  Reduced d = reduce(clamped_abs(x, -f.exp_min), -1, lift);
  V e = polynomial(d.r, f.exp_near, 0, lowering, -1) * d.power;
  return maximum(x, lit(x, 0)) + log1p_unit(e);
}

}  // namespace flexsn::math
