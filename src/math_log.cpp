// Logarithms and pow.
//
// Each logarithm splits x = 2^e (1 + f) with 1 + f in [0.707, 1.414) by integer arithmetic on the exponent
// field; then log_b(x) = e log_b(2) + log_b(1 + f). In f32, log_b(1 + f) is f times a polynomial in f. In f64
// it is odd in s = f / (1 + f/2), as log(1 + f) = 2 atanh(s / 2): a third of the terms, for one division.
//
// pow(x, y) = 2^(y log2|x|), with the sign put back at the end. In f32 this runs in f64, where neither
// subnormals nor the final rounding need care. In f64, log2|x| is a sum of two doubles, good to 62 bits.
#include <cmath>

#include "elementary.h"
#include "horner.h"

namespace flexsn::math {
namespace {
using namespace ir;

constexpr double kInf = HUGE_VAL;
constexpr double kNan = NAN;
constexpr double kLn2 = 0.69314718055994531;       // log(2)
constexpr double kLog10Of2 = 0.30102999566398120;  // log10(2)

constexpr uint32_t kExponentMaskF32 = 0xff800000u;  // sign and exponent field of an f32
constexpr uint32_t kExponentMaskF64 = 0xfff00000u;  // the same in the high word of an f64
constexpr uint32_t kSqrtHalfF32 = 0x3f3504f3u;      // bits of sqrt(1/2): 1 + f lies in [0.707, 1.414)
constexpr uint32_t kSqrtHalfF64 = 0x3fe6a09eu;      // high word of sqrt(1/2)

/// x = 2^e m with m in [low, 2 low).
struct Split {
  V step;  // e, shifted to the exponent field: i32
  V m;
};

/// Split of a normal f32; low is given by its bits.
Split split_f32(V x, uint32_t low) {
  V bits = raw_bits(x);
  V step = (bits - lit_i32(x, low)) & lit_i32(x, kExponentMaskF32);
  return {step, from_bits(bits - step)};
}

/// Split of a normal f64; low is given by its high word.
Split split_f64(V x, uint32_t low) {
  V high = raw_high(x);
  V step = (high - lit_i32(x, low)) & lit_i32(x, kExponentMaskF64);
  return {step, from_words(high - step, raw_low(x))};
}

/// The same with e as a floating-point number.
struct FloatSplit {
  V e, m;
};

/// Split of any positive finite x: subnormals are first scaled into the normal range. For other x the parts
/// have no meaning.
FloatSplit split_any(V x, uint32_t low) {
  bool single = x.type() == Type::f32;
  double bits = single ? 23 : 54;  // enough to make the smallest subnormal normal
  V tiny = x < (single ? 0x1p-126 : 0x1p-1022);
  V normal = select(tiny, x * std::exp2(bits), x);
  V shift = select(tiny, lit(x, -bits), 0.0);
  if (single) {
    Split p = split_f32(normal, low);
    return {fma(to_f32(p.step), 0x1p-23, shift), p.m};
  }
  Split p = split_f64(normal, low);
  return {fma(to_f64(p.step), 0x1p-20, shift), p.m};
}

uint32_t sqrt_half(V x) { return x.type() == Type::f32 ? kSqrtHalfF32 : kSqrtHalfF64; }

/// The logarithm r, replaced where x has no finite one: -inf at the pole (0, for log1p -1), NaN below it, and
/// x itself for inf and NaN.
V log_specials(V x, double pole, V r) {
  V at_or_below = select(x == pole, lit(x, -kInf), kNan);
  return select(x < kInf, select(x > pole, r, at_or_below), x);
}

/// s = f / (1 + f/2): log(1 + f) is an odd function of s.
V atanh_argument(V f) { return f / fma(f, 0.5, 1.0); }

/// log(1 + f) for f32.
V log_near_one_f32(V f) {
  // (log(1 + f) / f - 1) / f, error of the logarithm 2^-24.8
  V r = horner(f, {8.7491795420646667e-2, -0.14323489367961884, 0.14918592572212219, -0.1656753271818161,
                   0.19961757957935333, -0.250019371509552, 0.3333396315574646, -0.49999988079071045});
  return fma(f * f, r, f);
}

/// log(1 + f) for f64.
V log_near_one_f64(V f) {
  V s = atanh_argument(f);
  V z = s * s;
  // (log(1 + f) / s - 1) / s^2, error of the logarithm 2^-59.4
  V r = horner(z, {4.5158108539270372e-6, 1.8693715028275489e-5, 8.8786968840083707e-5, 4.3402731295608821e-4,
                   2.2321428706316049e-3, 1.2499999999814193e-2, 8.3333333333334203e-2});
  return fma(s * z, r, s);
}

V log_near_one(V f) { return f.type() == Type::f32 ? log_near_one_f32(f) : log_near_one_f64(f); }

/// e + log2(1 + f).
V log2_of_parts(V e, V f) {
  if (f.type() == Type::f32) {
    // log2(1 + f) / f, error 2^-25.0
    V ratio = horner(f, {0.12621109187602997, -0.20706726610660553, 0.21545328199863434, -0.23896284401416779,
                         0.28795173764228821, -0.36070370674133301, 0.4809090793132782, -0.72134733200073242,
                         1.4426950216293335});
    return fma(f, ratio, e);
  }
  V s = atanh_argument(f);
  // log2(1 + f) / s in s^2, error 2^-56.0
  V ratio = horner(
      s * s, {6.5862589617976641e-6, 2.6937849507362163e-5, 1.2809807730230493e-4, 6.2616855239439441e-4,
              3.2203014740655755e-3, 1.8033688010249849e-2, 1.2022458674075467e-1, 1.4426950408889634});
  return fma(s, ratio, e);
}

/// log10(1 + f).
V log10_near_one(V f) {
  if (f.type() == Type::f32) {
    constexpr double first = 0.43429446220397949;   // 1 / log(10), the first coefficient, as an f32
    constexpr double rest = 8.5294438179062126e-9;  // what is left of it
    // log10(1 + f) / f - first, error of the logarithm 2^-25.2
    V r = horner(
        f, {3.7908066064119339e-2, -6.2407109886407852e-2, 6.4931869506835938e-2, -7.1927182376384735e-2,
            8.6671739816665649e-2, -0.1085827648639679, 0.14476852118968964, -0.21714718639850616, rest});
    return fma(f, first, f * r);
  }
  V s = atanh_argument(f);
  // log10(1 + f) / s in s^2, error 2^-55.1
  return s * horner(s * s, {1.9996333388901269e-6, 8.1016089714430348e-6, 3.8562686395656338e-5,
                            1.8849539768653974e-4, 9.6940734450034788e-4, 5.4286810233896126e-3,
                            3.6191206825274852e-2, 0.43429448190325182});
}

/// log2(x) in f64 for pow in f32: x was an f32, so it is normal in f64. y log2(x) is below 2^8 where it
/// matters, and costs the result 2^-24 at most.
V log2_for_pow_f32(V x) {
  Split p = split_f64(x, kSqrtHalfF64);
  V f = p.m - 1.0;
  // log2(1 + f) / f, error 2^-30.5
  V ratio = horner(f, {9.7033897326927937e-2, -0.16906339654860125, 0.17205684488165834, -0.17890870197190992,
                       0.20504348951261064, -0.24046720912760064, 0.28857617342272252, -0.36067414930534664,
                       0.48089788920889814, -0.72134751566014033, 1.4426950417996438});
  return fma(f, ratio, to_f64(p.step) * 0x1p-20);
}

/// |x|^y for f32; finite is |x| < inf.
V pow_magnitude_f32(V ax, V y, V finite) {
  V x = to_f64(ax);
  V l = select(ax == 0.0, -kInf, log2_for_pow_f32(x));
  V t = to_f64(y) * select(finite, l, x);
  t = maximum(minimum(t, lit(t, 200)), lit(t, -200));  // beyond all f32, well inside f64
  V n = round(t);
  // 2^r for |r| <= 1/2, error 2^-28.8
  V p = horner(t - n, {1.5376675930297101e-4, 1.3399918104570934e-3, 9.6183525327529287e-3,
                       5.5503288178399300e-2, 0.24022648621803899, 0.69314720571185706, 1.0});
  V scale = from_words(shift_left(to_i32(n), lit_i32(n, 20)) + 0x3ff00000, lit_i32(n, 0));
  return to_f32(p * scale);
}

/// hi + lo, with hi also negated: products with their exact error need both signs.
struct DoubleSum {
  V hi, minus_hi, lo;
};

/// log2(x) of an f64 x > 0 to about 62 bits. With m c = (1 + s) / (1 - s),
/// log2(x) = e - log2(c) + (2 / ln 2) s + s^3 R(s^2); c makes |s| < 0.073, so that only the first three terms
/// need more than double precision.
DoubleSum log2_for_pow_f64(V x) {
  constexpr uint32_t nine_13ths = 0x3fe62762u;  // high word of 9/13: for m < 18/13 the f below is exact
  FloatSplit p = split_any(x, nine_13ths);
  // c is 5/4 below sqrt(4/5), 13/16 above sqrt(16/13), else 1; -log2(c) is a multiple of 2^-40 plus a rest.
  V below = p.m < 0.8944, above = p.m > 1.1094;
  V c = select(below, 1.25, select(above, 0.8125, lit(x, 1.0)));
  V log_c_hi = select(below, -0.32192809488697094, select(above, 0.29956028185915784, lit(x, 0.0)));
  V log_c_lo = select(below, -3.9140875562960251e-13, select(above, -2.5000018679926468e-13, lit(x, 0.0)));
  V f = fma(p.m, c, -1.0);
  // s = f / (2 + f) as s + s_lo; d + d_lo = -(2 + f) exactly.
  V d = -2.0 - f;
  V d_lo = (-2.0 - d) - f;
  V inverse = -1.0 / d;
  V s = f * inverse;
  V s_lo = fma(s, d_lo, fma(s, d, f)) * inverse;
  constexpr double k = 2.8853900817779268;           // 2 / ln 2
  constexpr double k_rest = 4.0710547481862066e-17;  // 2 / ln 2 - k
  V z = s * s;
  // R, error of the logarithm 2^-67; the last coefficient turns z R into z R + k_rest.
  V q = horner(z, {0.22614187259711951, 0.26227372879232486, 0.32059903323370748, 0.41219858285297717,
                   0.57707801635579781, 0.96179669392597555, k_rest});
  V minus_ks = s * -k;
  V tail = fma(s, k, minus_ks);                  // rounding error of k s
  tail = fma(s_lo, fma(z, k, lit(z, k)), tail);  // the series has the derivative k (1 + z + ...)
  tail = fma(s, q, tail);
  V head = p.e + log_c_hi;  // exact
  V hi = head - minus_ks;
  V lo = (head - hi) - minus_ks;  // rounding error of hi: |head| > |k s| or head = 0
  return {hi, -hi, lo + (tail + log_c_lo)};
}

/// 2^(tail - minus_head) for minus_head in [-1080, 1150] and |tail| up to about 1.
V exp2_of_sum(V minus_head, V tail) {
  V n = round(tail - minus_head);
  V r = tail - (minus_head + n);
  // 2^r for |r| <= 1/2, error 2^-57.3
  V p =
      horner(r, {4.4502865911801080e-10, 7.0738274691139236e-9, 1.0178084635189649e-7, 1.3215434993444437e-6,
                 1.5252733810369278e-5, 1.5403530457778098e-4, 1.3333558146376150e-3, 9.6181291075934910e-3,
                 5.5504108664822277e-2, 0.24022650695910133, 0.69314718055994529, 1.0});
  // 2^n in two factors, the second fixed, so that both are normal and only the last product rounds.
  V small = minus_head > 0.0;
  V bias = select(small, lit_i32(n, (1023 + 128) << 20), lit_i32(n, (1023 - 64) << 20));
  V scale = from_words(shift_left(to_i32(n), lit_i32(n, 20)) + bias, lit_i32(n, 0));
  return p * scale * select(small, 0x1p-128, lit(p, 0x1p64));
}

/// |x|^y for f64; finite is |x| < inf.
V pow_magnitude_f64(V ax, V y, V finite) {
  DoubleSum l = log2_for_pow_f64(ax);
  V minus_log = select(finite, select(ax == 0.0, kInf, l.minus_hi), -ax);
  V minus_head = y * minus_log;
  V tail = fma(y, l.lo, fma(y, l.hi, minus_head));
  V clamped = maximum(minimum(minus_head, lit(y, 1150)), lit(y, -1080));  // beyond all f64 results
  return exp2_of_sum(clamped, select(clamped == minus_head, tail, 0.0));
}
}  // namespace

V log(V x) {
  FloatSplit p = split_any(x, sqrt_half(x));
  return log_specials(x, 0, fma(p.e, kLn2, log_near_one(p.m - 1.0)));
}

V log2(V x) {
  FloatSplit p = split_any(x, sqrt_half(x));
  return log_specials(x, 0, log2_of_parts(p.e, p.m - 1.0));
}

V log10(V x) {
  FloatSplit p = split_any(x, sqrt_half(x));
  return log_specials(x, 0, fma(p.e, kLog10Of2, log10_near_one(p.m - 1.0)));
}

V log1p(V x) {
  // 1 + x = 2^e (1 + f): e comes from the rounded sum, but f = x 2^-e - (1 - 2^-e) from x itself: it is x
  // for e = 0. step is that of -e: for x = -0 the result is then 0 (-ln 2) + -0 = -0.
  V sum = x + 1.0;
  if (x.type() == Type::f32) {
    V step = (lit_i32(x, kSqrtHalfF32 + 0x7fffff) - raw_bits(sum)) & lit_i32(x, kExponentMaskF32);
    V twice_scale = from_bits(step + 0x40000000);  // 2 2^-e; 2^-e itself has no bits for e = 128
    V f = from_bits(raw_bits(x) + step) - fma(twice_scale, -0.5, 1.0);
    return log_specials(x, -1, fma(to_f32(step), -0x1p-23 * kLn2, log_near_one(f)));
  }
  V step = (lit_i32(x, kSqrtHalfF64 + 0xfffff) - raw_high(sum)) & lit_i32(x, kExponentMaskF64);
  V twice_scale = from_words(step + 0x40000000, lit_i32(x, 0));
  V f = from_words(raw_high(x) + step, raw_low(x)) - fma(twice_scale, -0.5, 1.0);
  return log_specials(x, -1, fma(to_f64(step), -0x1p-20 * kLn2, log_near_one(f)));
}

V pow(V x, V y) {
  V ax = abs(x);
  V finite = ax < kInf;
  V r = x.type() == Type::f32 ? pow_magnitude_f32(ax, y, finite) : pow_magnitude_f64(ax, y, finite);
  r = select((ax == 1.0) | (y == 0.0), 1.0, r);  // whatever the other argument, NaN included
  // An odd y keeps the sign of x. A fractional y has no value for x < 0, apart from -inf; a NaN counts as
  // fractional, which makes pow(-1, NaN) NaN again.
  V half = y * 0.5;
  V with_sign = select(half != trunc(half), raw_copysign(r, x), r);
  V fractional = select((x < 0.0) & finite, kNan, r);
  return select(y != trunc(y), fractional, with_sign);
}
}  // namespace flexsn::math
