// ATen's functions that are built from several rows. Where torch rounds in a way of its own (a product and a
// sum in one rounding, a constant in single precision), so does the composite: the numbers are eager's.
#include <cmath>
#include <limits>
#include <numbers>

#include "aten_call.h"
#include "horner.h"

namespace flexsn {

using namespace ir;

namespace {

constexpr double sqrt_half = 0.70710678118654752440, two_over_sqrt_pi = 1.12837916709551257390,
                 sqrt_two_over_pi = 0.79788456080286535588,
                 infinity = std::numeric_limits<double>::infinity();

V silu(V x) { return x * sigmoid(x); }

V square_of(V x) { return x * x; }

/// torch treats some exponents on their own.
V power(V x, double exponent) {
  if (exponent == 0.5) return sqrt(x);
  if (exponent == 2) return square_of(x);
  if (exponent == 3) return x * x * x;
  if (exponent == -0.5) return rsqrt(x);
  if (exponent == -1) return reciprocal(x);
  if (exponent == -2) return reciprocal(square_of(x));
  if (exponent == 1) return x;
  if (exponent == 0) return lit(x, 1);
  return pow(x, lit(x, exponent));
}

V integer_power(V x, double exponent) {
  V out = lit(x, 1);
  for (int i = 0; i < static_cast<int>(exponent); ++i) out = out * x;
  return out;
}

V raised(AtenCall& n) {
  const std::optional<double> exponent = n.literal(1);
  if (!exponent) return pow(n.at(0), n.at(1));
  const bool whole = *exponent >= 0 && *exponent <= 64 && *exponent == static_cast<int>(*exponent);
  if (!is_float(n.type()) && whole) return integer_power(n.at(0), *exponent);
  if (!is_float(n.type())) n.fail("raises an integer to ", *exponent, "; make it a float first");
  return power(n.at(0), *exponent);
}

/// a + alpha * b, as torch computes it: in one rounding.
V add_scaled(AtenCall& n, V a, V b, double alpha) {
  if (n.type() == Type::b1) return alpha == 0 ? a : a | b;
  if (alpha == 1) return a + b;
  if (alpha == -1) return a - b;
  return is_float(n.type()) ? fma(b, lit(b, alpha), a) : a + b * alpha;
}

V scaled(V x, double factor) { return factor == 1 ? x : x * factor; }

V added_product(AtenCall& n) {
  if (n.type() == Type::b1) n.fail("does not take bools; make them floats or integers first");
  const V a = n.at(0), b = scaled(n.at(1), n.scalar(3, "value", 1)), c = n.at(2);
  return is_float(n.type()) ? fma(b, c, a) : a + b * c;
}

V lerp_number(AtenCall& n) {
  const double w = n.scalar(2, "weight", 0);
  const V a = n.at(0), b = n.at(1);
  // The weight is rounded to the type before 1 - w is.
  return std::abs(w) < 0.5 ? fma(b - a, w, a) : fma(-(b - a), 1.0 - lit(a, w), b);
}

V lerp_tensor(AtenCall& n) {
  const V a = n.at(0), b = n.at(1), w = n.at(2);
  return select(abs(w) < 0.5, fma(w, b - a, a), fma(-(b - a), 1.0 - w, b));
}

V clamped(V x, AtenCall& n) {
  const bool bits = n.type() == Type::b1;
  if (n.has(1)) x = bits ? x | n.at(1) : maximum(x, n.at(1));
  if (n.has(2)) x = bits ? x & n.at(2) : minimum(x, n.at(2));
  return x;
}

V filled(AtenCall& n) { return n.number(n.scalar(1, "fill_value", 0)); }
V zeros(AtenCall& n) { return n.number(0); }
V ones(AtenCall& n) { return n.number(1); }

V gelu(AtenCall& n) {
  const V x = n.at(0);
  if (n.word(1, "approximate") != "tanh") return x * 0.5 * (erf(x * sqrt_half) + 1.0);
  const V inner = (x + x * x * x * 0.044715) * sqrt_two_over_pi;
  return x * 0.5 * (tanh(inner) + 1.0);
}

V gelu_backward(AtenCall& n) {
  const V g = n.at(0), x = n.at(1);
  if (n.word(2, "approximate") != "tanh") {
    const V cdf = (erf(x * sqrt_half) + 1.0) * 0.5;
    const V pdf = exp(x * x * -0.5) * (two_over_sqrt_pi * sqrt_half * 0.5);
    return g * (cdf + x * pdf);
  }
  const V inner = (x + x * x * x * 0.044715) * sqrt_two_over_pi, t = tanh(inner);
  const V slope = (x * x * (3 * 0.044715) + 1.0) * sqrt_two_over_pi;
  return g * ((t + 1.0) * 0.5 + x * 0.5 * (1.0 - t * t) * slope);
}

V elu(AtenCall& n) {
  const V x = n.at(0);
  const double alpha = n.scalar(1, "alpha", 1), scale = n.scalar(2, "scale", 1),
               input = n.scalar(3, "input_scale", 1);
  return select(x > 0.0, x * scale, expm1(x * input) * (alpha * scale));
}

V elu_backward(AtenCall& n) {
  const V g = n.at(0), x = n.at(5);
  const double alpha = n.scalar(1, "alpha", 1), scale = n.scalar(2, "scale", 1),
               input = n.scalar(3, "input_scale", 1);
  if (n.scalar(4, "is_result", 0) != 0) return select(x > 0.0, g * scale, g * input * (x + alpha * scale));
  return select(x > 0.0, g * scale, g * input * (alpha * scale) * exp(x * input));
}

V softplus_backward(AtenCall& n) {
  const V g = n.at(0), x = n.at(1);
  const double beta = n.scalar(2, "beta", 1), threshold = n.scalar(3, "threshold", 20);
  return select(x * beta > threshold, g, g * sigmoid(x * beta));
}

V softplus_of(V x, double beta, double threshold) {
  return select(x * beta > threshold, x, log1p(exp(x * beta)) / beta);
}

/// a / b rounded down, as torch does it: the remainder decides, since a / b may round up to a whole number.
V floored(V a, V b) {
  if (!is_float(a.type())) {
    const V quotient = a / b, rest = a - quotient * b;
    return select((rest != 0) & ((rest < 0) ^ (b < 0)), quotient - 1, quotient);
  }
  const V mod = fmod(a, b);
  const V quotient = (a - mod) / b;
  const V lower = select((mod != 0.0) & ((b < 0.0) ^ (mod < 0.0)), quotient - 1.0, quotient);
  const V down = floor(lower);
  const V near = select(lower - down > 0.5, down + 1.0, down);
  const V whole = select(lower != 0.0, near, copysign(lit(a, 0), a / b));
  return select(b == 0.0, a / b, whole);
}

V divided(AtenCall& n) {
  const std::string_view mode = n.word(2, "rounding_mode");
  const V a = n.at(0), b = n.at(1);
  if (mode == "trunc") return is_float(n.type()) ? trunc(a / b) : a / b;
  return mode == "floor" ? floored(a, b) : a / b;
}

V floor_divided(AtenCall& n) { return floored(n.at(0), n.at(1)); }

/// Counts that are no shift of 32 bits leave nothing, or the sign.
V shifted(AtenCall& n, bool left) {
  const V x = n.at(0), count = n.at(1);
  const V beyond = (count < 0) | (count > 31);
  return left ? select(beyond, lit(x, 0), shift_left(x, count))
              : shift_right(x, select(beyond, lit(x, 31), count));
}

V shifted_left(AtenCall& n) { return shifted(n, true); }
V shifted_right(AtenCall& n) { return shifted(n, false); }

V rounded_at(AtenCall& n) {
  const V x = n.at(0);
  const double decimals = n.scalar(1, "decimals", 0), factor = std::pow(10.0, std::abs(decimals));
  if (!is_float(n.type()) || decimals == 0) return is_float(n.type()) ? round(x) : x;
  return decimals > 0 ? round(x * factor) / factor : round(x / factor) * factor;
}

// ---- elementary functions without a row ------------------------------------------------------------------

V hypot(V a, V b) {
  if (a.type() == Type::f32) {  // the squares and their sum fit f64
    const V x = to_f64(a), y = to_f64(b);
    const V infinite = (abs(a) == infinity) | (abs(b) == infinity);
    return select(infinite, lit(a, infinity), to_f32(sqrt(x * x + y * y)));
  }
  const V x = abs(a), y = abs(b), large = maximum(x, y), ratio = minimum(x, y) / large;
  const V length = select(large == 0.0, large, large * sqrt(ratio * ratio + 1.0));
  return select((x == infinity) | (y == infinity), lit(a, infinity), length);
}

/// erfc(x) = t exp(p(t) - x^2) with t = 2 / (2 + x), where p is smooth; relative error below 3 ulp of f64.
V erfc_f64(V x) {
  const V size = minimum(abs(x), lit(x, 30)), t = 2.0 / (size + 2.0);
  const V high = to_f64(to_f32(size));  // its square is exact
  const V p = math::horner(
      t * 2.0 - 1.0,
      {-1.5867042924138042e-09, -1.2776086554968677e-08, 3.972203547273795e-08,   7.745572408758512e-08,
       -3.168341367694147e-07,  -4.146853754663641e-08,  1.3267813608518889e-06,  -1.409445991433531e-06,
       -3.007645434410669e-06,  8.662535397475538e-06,   1.699233231227702e-07,   -3.023784054007137e-05,
       3.173310599377061e-05,   7.141810433422301e-05,   -0.00017429984933155644, -9.373894767667295e-05,
       0.0006736782697069831,   -0.00014624628742128406, -0.002345812444802156,   0.0017589335074028032,
       0.008824938553738764,    -0.009872689364099222,   -0.046895610231083025,   0.047343306841863525,
       0.672643223977656,       -0.6717940840566922});
  const V tail = t * exp(-(high * high)) * exp(p - (size - high) * (size + high));
  return select(isnan(x), x, select(x < 0.0, 2.0 - tail, tail));
}

V erfc(V x) { return x.type() == Type::f32 ? to_f32(erfc_f64(to_f64(x))) : erfc_f64(x); }

/// Where squares overflow, log(2 x) is meant.
V log_of_large(V x) { return log(x) + std::numbers::ln2; }
double square_root_of_largest(V x) { return x.type() == Type::f32 ? 1e18 : 1e150; }

V asinh(V x) {
  const V size = abs(x), s = size * size;
  const V near = log1p(size + s / (sqrt(s + 1.0) + 1.0));
  return copysign(select(size > square_root_of_largest(x), log_of_large(size), near), x);
}

V acosh(V x) {
  const V above = x - 1.0;
  const V near = log1p(above + sqrt(above * 2.0 + above * above));
  const V nan = lit(x, std::numeric_limits<double>::quiet_NaN());
  return select(x > square_root_of_largest(x), log_of_large(x), select(x >= 1.0, near, nan));
}

V atanh(V x) {
  const V size = abs(x), twice = size * 2.0, rest = 1.0 - size;
  const V inner = select(size < 0.5, twice + twice * size / rest, twice / rest);
  return copysign(log1p(inner) * 0.5, x);
}

/// The power has the type of its exponent, f32 for integers.
V scaled_by_power(AtenCall& n) {
  const V exponent = n.raw(1);
  return n.at(0) * convert(exp2(is_float(exponent.type()) ? exponent : to_f32(exponent)), n.type());
}

V sinc(V x) {
  const V angle = x * std::numbers::pi;
  return select(x == 0.0, lit(x, 1), sin(angle) / angle);
}

/// log(exp(a) + exp(b)) where `from` is exp or exp2 and `unit` makes natural logarithms those of its base.
template <V from(V)>
V log_of_sum(V a, V b, double unit) {
  const V sum = maximum(a, b) + scaled(log1p(from(-abs(a - b))), unit);
  return select((a == b) & (abs(a) == infinity), a, sum);
}

V entropy(V x) {
  return select(x > 0.0, -x * log(x), select(x == 0.0, lit(x, 0), select(isnan(x), x, lit(x, -infinity))));
}

V times_log(V x, V y, V log_of_y) { return select(isnan(y), y, select(x == 0.0, lit(x, 0), x * log_of_y)); }
V x_log_y(AtenCall& n) { return times_log(n.at(0), n.at(1), log(n.at(1))); }

/// The largest finite number that a type holds in memory.
double largest_of(Mem mem) {
  switch (mem) {
    case Mem::f64:
      return std::numeric_limits<double>::max();
    case Mem::f16:
      return 65504;
    case Mem::bf16:
      return 0x1.fep127;
    default:
      return static_cast<double>(std::numeric_limits<float>::max());
  }
}

V finite(AtenCall& n) {
  const V x = n.at(0);
  if (!is_float(n.type())) return x;
  const double most = largest_of(n.result_memory());
  const V above = select(x == infinity, lit(x, n.scalar(2, "posinf", most)), x);
  const V below = select(x == -infinity, lit(x, n.scalar(3, "neginf", -most)), above);
  return select(isnan(x), lit(x, n.scalar(1, "nan", 0)), below);
}

/// Of integers and bools.
V larger(AtenCall& n) { return n.type() == Type::b1 ? n.at(0) | n.at(1) : maximum(n.at(0), n.at(1)); }
V smaller(AtenCall& n) { return n.type() == Type::b1 ? n.at(0) & n.at(1) : minimum(n.at(0), n.at(1)); }

V sign_bit(AtenCall& n) {
  const V x = n.raw(0);
  if (x.type() == Type::b1) return n.number(0);
  return is_float(x.type()) ? copysign(lit(x, 1), x) < 0.0 : x < 0;
}

V equals_infinity(AtenCall& n, double which) {
  const V x = n.raw(0);
  return is_float(x.type()) ? x == which : n.number(0);
}

/// x[mask] = value
V assigned(AtenCall& n) {
  const Item *whole = n.tensor(0), *mask = n.tensor(1), *value = n.tensor(2);
  const bool is_mask = mask != nullptr && mask->type == "bool" && mask->shape == whole->shape;
  if (!is_mask || value == nullptr || !value->shape.empty() || n.scalar(3, "accumulate", 0) != 0)
    n.fail(
        "moves or picks elements, but a step works on each element alone; choose with torch.where, or use "
        "backend=\"torch\"");
  return select(n.truth(1), n.at(2), n.at(0));
}

// ---- activations
// -------------------------------------------------------------------------------------------

V within(V x, double low, double high) { return (x >= low) & (x <= high); }

V hard_shrunk(V x, double lambda) { return select(within(x, -lambda, lambda), lit(x, 0), x); }

V shrunk_slope(AtenCall& n) {
  const V g = n.at(0), x = n.at(1);
  const double lambda = n.scalar(2, "lambd", 0.5);
  return select((x > lambda) | (x < -lambda), g, lit(g, 0));
}

V soft_shrunk(V x, double lambda) {
  const V outside = select(x > lambda, x - lambda, select(x < -lambda, x + lambda, x));
  return select(within(x, -lambda, lambda), lit(x, 0), outside);
}

V sigmoid_slope(V g, V y) { return g * ((1.0 - y) * y); }

}  // namespace

const std::map<std::string, Composite, std::less<>>& composites() {
  static const std::map<std::string, Composite, std::less<>> known = {
      {"add.Tensor", [](AtenCall& n) { return add_scaled(n, n.at(0), n.at(1), n.scalar(2, "alpha", 1)); }},
      {"add.Scalar", [](AtenCall& n) { return add_scaled(n, n.at(0), n.at(1), n.scalar(2, "alpha", 1)); }},
      {"sub.Tensor", [](AtenCall& n) { return add_scaled(n, n.at(0), n.at(1), -n.scalar(2, "alpha", 1)); }},
      {"sub.Scalar", [](AtenCall& n) { return add_scaled(n, n.at(0), n.at(1), -n.scalar(2, "alpha", 1)); }},
      {"rsub.Scalar", [](AtenCall& n) { return add_scaled(n, n.at(1), n.at(0), -n.scalar(2, "alpha", 1)); }},
      {"rsub.Tensor", [](AtenCall& n) { return add_scaled(n, n.at(1), n.at(0), -n.scalar(2, "alpha", 1)); }},
      {"div.Tensor_mode", divided},
      {"div.Scalar_mode", divided},
      {"floor_divide.default", floor_divided},
      {"floor_divide.Scalar", floor_divided},
      {"square.default", [](AtenCall& n) { return square_of(n.at(0)); }},
      {"pow.Tensor_Scalar", raised},
      {"float_power.Tensor_Scalar", raised},
      {"frac.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         return x - trunc(x);
       }},
      {"lerp.Scalar", lerp_number},
      {"lerp.Tensor", lerp_tensor},
      {"addcmul.default", added_product},
      {"addcdiv.default",
       [](AtenCall& n) { return n.at(0) + scaled(n.at(1), n.scalar(3, "value", 1)) / n.at(2); }},
      {"xlogy.Tensor", x_log_y},
      {"xlogy.Scalar_Self", x_log_y},
      {"xlogy.Scalar_Other", x_log_y},
      {"special_xlog1py.default", [](AtenCall& n) { return times_log(n.at(0), n.at(1), log1p(n.at(1))); }},
      {"hypot.default", [](AtenCall& n) { return hypot(n.at(0), n.at(1)); }},
      {"erfc.default", [](AtenCall& n) { return erfc(n.at(0)); }},
      {"asinh.default", [](AtenCall& n) { return asinh(n.at(0)); }},
      {"acosh.default", [](AtenCall& n) { return acosh(n.at(0)); }},
      {"atanh.default", [](AtenCall& n) { return atanh(n.at(0)); }},
      {"sinc.default", [](AtenCall& n) { return sinc(n.at(0)); }},
      {"logaddexp.default", [](AtenCall& n) { return log_of_sum<exp>(n.at(0), n.at(1), 1); }},
      {"logaddexp2.default",
       [](AtenCall& n) { return log_of_sum<exp2>(n.at(0), n.at(1), std::numbers::log2e); }},
      {"special_entr.default", [](AtenCall& n) { return entropy(n.at(0)); }},
      {"deg2rad.default", [](AtenCall& n) { return n.at(0) * (std::numbers::pi / 180); }},
      {"rad2deg.default", [](AtenCall& n) { return n.at(0) * (180 / std::numbers::pi); }},
      {"ldexp.Tensor", scaled_by_power},
      {"round.decimals", rounded_at},
      {"remainder.Scalar_Tensor", [](AtenCall& n) { return remainder(n.at(0), n.at(1)); }},
      {"fmax.default", [](AtenCall& n) { return is_float(n.type()) ? fmax(n.at(0), n.at(1)) : larger(n); }},
      {"fmin.default", [](AtenCall& n) { return is_float(n.type()) ? fmin(n.at(0), n.at(1)) : smaller(n); }},
      {"heaviside.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         if (is_float(n.type())) return heaviside(x, n.at(1));
         if (n.type() == Type::b1) return x | n.at(1);
         return select(x == 0, n.at(1), convert(x > 0, n.type()));
       }},
      {"signbit.default", sign_bit},
      {"isposinf.default", [](AtenCall& n) { return equals_infinity(n, infinity); }},
      {"isneginf.default", [](AtenCall& n) { return equals_infinity(n, -infinity); }},
      {"bitwise_and.Scalar_Tensor", [](AtenCall& n) { return n.at(0) & n.at(1); }},
      {"bitwise_or.Scalar_Tensor", [](AtenCall& n) { return n.at(0) | n.at(1); }},
      {"bitwise_xor.Scalar_Tensor", [](AtenCall& n) { return n.at(0) ^ n.at(1); }},
      {"__lshift__.Tensor", shifted_left},
      {"__lshift__.Scalar", shifted_left},
      {"bitwise_left_shift.Tensor", shifted_left},
      {"bitwise_left_shift.Tensor_Scalar", shifted_left},
      {"bitwise_left_shift.Scalar_Tensor", shifted_left},
      {"__rshift__.Tensor", shifted_right},
      {"__rshift__.Scalar", shifted_right},
      {"bitwise_right_shift.Tensor", shifted_right},
      {"bitwise_right_shift.Tensor_Scalar", shifted_right},
      {"bitwise_right_shift.Scalar_Tensor", shifted_right},
      {"logit.default",
       [](AtenCall& n) {
         V x = n.at(0);
         const double eps = n.scalar(1, "eps", -1);
         if (eps >= 0) x = minimum(maximum(x, lit(x, eps)), lit(x, 1 - eps));
         return log(x / (1.0 - x));
       }},
      {"logit_backward.default",
       [](AtenCall& n) {
         const V g = n.at(0), x = n.at(1), slope = g / (x * (1.0 - x));
         const double eps = n.scalar(2, "eps", -1);
         const V outside = eps < 0 ? lit(x, std::numeric_limits<double>::quiet_NaN()) : lit(x, 0);
         const double low = eps < 0 ? 0 : eps;
         return select((x >= low) & (x <= 1.0 - lit(x, low)), slope, outside);
       }},
      {"nan_to_num.default", finite},
      {"abs.default", [](AtenCall& n) { return n.type() == Type::b1 ? n.at(0) : abs(n.at(0)); }},
      {"sigmoid_backward.default", [](AtenCall& n) { return sigmoid_slope(n.at(0), n.at(1)); }},
      {"tanh_backward.default",
       [](AtenCall& n) {
         const V y = n.at(1);
         return n.at(0) * (1.0 - y * y);
       }},
      {"threshold_backward.default",
       [](AtenCall& n) {
         const V x = n.at(1);
         return select(x <= n.scalar(2, "threshold", 0), lit(x, 0), n.at(0));
       }},
      {"threshold.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         return select(x <= n.scalar(1, "threshold", 0), lit(x, n.scalar(2, "value", 0)), x);
       }},
      {"silu.default", [](AtenCall& n) { return silu(n.at(0)); }},
      {"silu_backward.default",
       [](AtenCall& n) {
         const V x = n.at(1), s = sigmoid(x);
         return n.at(0) * s * (x * (1.0 - s) + 1.0);
       }},
      {"mish.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         return x * tanh(log1p(exp(x)));
       }},
      {"mish_backward.default",
       [](AtenCall& n) {
         const V x = n.at(1), s = sigmoid(x), t = tanh(softplus_of(x, 1, 20));
         return n.at(0) * (t + x * s * (1.0 - t * t));
       }},
      {"gelu.default", gelu},
      {"gelu_backward.default", gelu_backward},
      {"elu.default", elu},
      {"elu_backward.default", elu_backward},
      {"celu.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         const double alpha = n.scalar(1, "alpha", 1);
         return select(x > 0.0, x, expm1(x / alpha) * alpha);
       }},
      {"leaky_relu.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         return select(x > 0.0, x, x * n.scalar(1, "negative_slope", 0.01));
       }},
      {"leaky_relu_backward.default",
       [](AtenCall& n) {
         const V g = n.at(0), x = n.at(1);
         return select(x > 0.0, g, g * n.scalar(2, "negative_slope", 0.01));
       }},
      {"_prelu_kernel.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         return select(x > 0.0, x, x * n.at(1));
       }},
      {"_prelu_kernel_backward.default#0",
       [](AtenCall& n) {
         const V g = n.at(0);
         return select(n.at(1) > 0.0, g, n.at(2) * g);
       }},
      {"_prelu_kernel_backward.default#1",
       [](AtenCall& n) {
         const V g = n.at(0), x = n.at(1);
         return select(x > 0.0, lit(g, 0), x * g);
       }},
      {"hardshrink.default", [](AtenCall& n) { return hard_shrunk(n.at(0), n.scalar(1, "lambd", 0.5)); }},
      {"hardshrink_backward.default", shrunk_slope},
      {"softshrink.default", [](AtenCall& n) { return soft_shrunk(n.at(0), n.scalar(1, "lambd", 0.5)); }},
      {"softshrink_backward.default", shrunk_slope},
      {"hardtanh.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         return minimum(maximum(x, lit(x, n.scalar(1, "min_val", -1))), lit(x, n.scalar(2, "max_val", 1)));
       }},
      {"hardtanh_backward.default",
       [](AtenCall& n) {
         const V g = n.at(0), x = n.at(1);
         const V inside = (x > n.scalar(2, "min_val", -1)) & (x < n.scalar(3, "max_val", 1));
         return select(inside, g, lit(g, 0));
       }},
      {"hardsigmoid.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         return minimum(maximum(x + 3.0, lit(x, 0)), lit(x, 6)) / 6.0;
       }},
      {"hardsigmoid_backward.default",
       [](AtenCall& n) {
         const V g = n.at(0), x = n.at(1);
         return select((x > -3.0) & (x < 3.0), g * static_cast<double>(1.0F / 6.0F), lit(g, 0));
       }},
      {"hardswish.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         return x * minimum(maximum(x + 3.0, lit(x, 0)), lit(x, 6)) / 6.0;
       }},
      {"hardswish_backward.default",
       [](AtenCall& n) {
         const V g = n.at(0), x = n.at(1);
         return select(x <= -3.0, lit(g, 0), select(x >= 3.0, g, g * (x / 3.0 + 0.5)));
       }},
      {"softplus.default",
       [](AtenCall& n) {
         return softplus_of(n.at(0), n.scalar(1, "beta", 1), n.scalar(2, "threshold", 20));
       }},
      {"softplus_backward.default", softplus_backward},
      {"softsign.default",
       [](AtenCall& n) {
         const V x = n.at(0);
         return x / (abs(x) + 1.0);
       }},
      {"log_sigmoid_forward.default#0",
       [](AtenCall& n) {
         const V x = n.at(0);
         return minimum(x, lit(x, 0)) - log1p(exp(-abs(x)));
       }},
      {"log_sigmoid_forward.default#1", [](AtenCall& n) { return exp(-abs(n.at(0))); }},
      {"log_sigmoid_backward.default", [](AtenCall& n) { return n.at(0) * sigmoid(-n.at(1)); }},
      {"clamp.default", [](AtenCall& n) { return clamped(n.at(0), n); }},
      {"clamp.Tensor", [](AtenCall& n) { return clamped(n.at(0), n); }},
      {"masked_fill.Scalar", [](AtenCall& n) { return select(n.truth(1), n.at(2), n.at(0)); }},
      {"masked_fill.Tensor", [](AtenCall& n) { return select(n.truth(1), n.at(2), n.at(0)); }},
      {"_to_copy.default", [](AtenCall& n) { return n.stored(n.raw(0)); }},
      {"to.dtype", [](AtenCall& n) { return n.stored(n.raw(0)); }},
      {"scalar_tensor.default", [](AtenCall& n) { return n.at(0); }},
      {"full.default", filled},
      {"full_like.default", filled},
      {"new_full.default", [](AtenCall& n) { return n.number(n.scalar(2, "fill_value", 0)); }},
      {"zeros.default", zeros},
      {"zeros_like.default", zeros},
      {"new_zeros.default", zeros},
      {"ones.default", ones},
      {"ones_like.default", ones},
      {"new_ones.default", ones},
      // What an empty tensor holds is whatever is written next.
      {"empty.memory_format", zeros},
      {"empty_like.default", zeros},
      {"empty_strided.default", zeros},
      {"new_empty.default", zeros},
      {"new_empty_strided.default", zeros},
      {"zero.default", zeros},
      {"fill.Scalar", filled},
      {"fill.Tensor", [](AtenCall& n) { return n.at(1); }},
      {"index_put.default", assigned},
      {"copy.default", [](AtenCall& n) { return n.stored(n.raw(1)); }},
      {"logical_not.default", [](AtenCall& n) { return !n.truth(0); }},
  };
  return known;
}

}  // namespace flexsn
