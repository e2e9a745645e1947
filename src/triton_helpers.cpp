// Device functions that stand before the kernels of a Triton module: rows whose meaning is more than Triton's
// function of that name, and the tree of parameter gradients.
#include "triton_lines.h"

namespace flexsn {

namespace {

struct Helper {
  std::string_view name;
  std::string_view text;
};

// A helper may call those before it.
constexpr Helper helpers[] = {
    {"flexsn_from_bf16", R"(@triton.jit
def flexsn_from_bf16(x):
    return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
)"},
    {"flexsn_to_bf16", R"(@triton.jit
def flexsn_to_bf16(x):
    # What is stored was rounded before.
    return (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
)"},
    {"flexsn_round_bf16", R"(@triton.jit
def flexsn_round_bf16(x):
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & -0x10000
    return tl.where(x != x, 0x7FC00000, rounded).to(tl.float32, bitcast=True)
)"},
    {"flexsn_copysign", R"(@triton.jit
def flexsn_copysign(a, b):
    if a.dtype == tl.float64:
        size = a.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
        sign = b.to(tl.int64, bitcast=True) & -0x8000000000000000
        return (size | sign).to(tl.float64, bitcast=True)
    else:
        size = a.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        sign = b.to(tl.int32, bitcast=True) & -0x80000000
        return (size | sign).to(tl.float32, bitcast=True)
)"},
    {"flexsn_min", R"(@triton.jit
def flexsn_min(a, b):
    # NaN wins, -0 is less than +0.
    equal = tl.where((a == b) & (a != 0), a, (a * -1.0 - b) * -1.0)
    return tl.where(a < b, a, tl.where(b < a, b, equal))
)"},
    {"flexsn_max", R"(@triton.jit
def flexsn_max(a, b):
    # NaN wins, +0 is more than -0.
    equal = tl.where((a == b) & (a != 0), a, a + b)
    return tl.where(a > b, a, tl.where(b > a, b, equal))
)"},
    {"flexsn_rint", R"(@triton.jit
def flexsn_rint(x):
    # Halves go to even: beside 2^23 (2^52) there is no room for bits below one.
    most = 4503599627370496.0 if x.dtype == tl.float64 else 8388608.0
    size = tl.abs(x)
    return flexsn_copysign(tl.where(size < most, (size + most) - most, size), x)
)"},
    {"flexsn_floor", R"(@triton.jit
def flexsn_floor(x):
    # Triton's own takes subnormals for zero.
    near = flexsn_rint(x)
    return flexsn_copysign(tl.where(near > x, near - 1.0, near), x)
)"},
    {"flexsn_ceil", R"(@triton.jit
def flexsn_ceil(x):
    near = flexsn_rint(x)
    return flexsn_copysign(tl.where(near < x, near + 1.0, near), x)
)"},
    {"flexsn_trunc", R"(@triton.jit
def flexsn_trunc(x):
    size = tl.abs(x)
    near = flexsn_rint(size)
    return flexsn_copysign(tl.where(near > size, near - 1.0, near), x)
)"},
    {"flexsn_fmod", R"(@triton.jit
def flexsn_fmod(a, b):
    # Exact: each pass takes off a multiple of |b| * 2^k, which leaves 50 bits less and loses none.
    x = tl.abs(a).to(tl.float64)
    y = tl.abs(b).to(tl.float64)
    small = y < 2.2250738585072014e-308
    low = tl.where(small, y * 18014398509481984.0, y).to(tl.int64, bitcast=True) >> 52
    low = low - tl.where(small, 54, 0)
    for _ in range(42 if a.dtype == tl.float64 else 6):
        small = x < 2.2250738585072014e-308
        high = tl.where(small, x * 18014398509481984.0, x).to(tl.int64, bitcast=True) >> 52
        apart = high - tl.where(small, 54, 0) - low
        k = tl.where(apart > 50, apart - 50, 0)
        # 2^k is more than a float64 holds: in three parts.
        one = tl.where(k > 1000, 1000, k)
        two = tl.where(k - one > 1000, 1000, k - one)
        unit = y * ((one + 1023) << 52).to(tl.float64, bitcast=True)
        unit = unit * ((two + 1023) << 52).to(tl.float64, bitcast=True)
        unit = unit * ((k - one - two + 1023) << 52).to(tl.float64, bitcast=True)
        left = tl.fma(tl.floor(x / unit) * -1.0, unit, x)
        x = tl.where(left < 0, left + unit, left)
    wrong = (a != a) | (b != b) | (b == 0) | (tl.abs(a) == float("inf"))
    whole = tl.where(tl.abs(b) == float("inf"), a, flexsn_copysign(x.to(a.dtype), a))
    return tl.where(wrong, float("nan"), whole)
)"},
    {"flexsn_sdiv", R"(@triton.jit
def flexsn_sdiv(a, b):
    # Truncates; x / 0 is 0, the one overflow wraps.
    safe = tl.where((b == 0) | (b == -1), 1, b)
    return tl.where(b == 0, 0, tl.where(b == -1, 0 - a, a // safe))
)"},
    {"flexsn_srem", R"(@triton.jit
def flexsn_srem(a, b):
    # x % 0 is 0.
    return a % tl.where((b == 0) | (b == -1), 1, b)
)"},
    {"flexsn_to_int", R"(@triton.jit
def flexsn_to_int(x):
    # Truncates and saturates; NaN gives 0.
    whole = tl.where(tl.abs(x) < 2147483648.0, x, 0.0).to(tl.int32)
    return tl.where(x >= 2147483648.0, 2147483647, tl.where(x <= -2147483648.0, -2147483648, whole))
)"},
    {"flexsn_tree", R"(@triton.jit
def flexsn_tree(values, COLUMNS: tl.constexpr, COUNT: tl.constexpr, LEVELS: tl.constexpr):
    # Sums over neighbouring pairs, then over pairs of these: [COLUMNS * COUNT] to [COLUMNS]. tl.sum promises
    # no order.
    for level in tl.static_range(LEVELS):
        left, right = tl.split(tl.reshape(values, (COLUMNS, COUNT >> (level + 1), 2)))
        values = left + right
    return tl.reshape(values, (COLUMNS,))
)"},
};

}  // namespace

std::string with_triton_helpers(std::string text) {
  constexpr std::size_t count = std::size(helpers);
  std::string before;
  for (std::size_t i = count; i-- > 0;) {
    const std::string call = std::string(helpers[i].name) + "(";
    if (text.find(call) == std::string::npos && before.find(call) == std::string::npos) continue;
    before = std::string(helpers[i].text) + "\n\n" + before;
  }
  return before + text;
}

}  // namespace flexsn
