"""Every function that a step may use: fused against eager torch, values and gradients, odd values too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch.nn.functional as F
import flexsn
from flexsn.fused import Fused

import torch
from torch import Tensor

floats = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
INF = math.inf
ODD = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0, 0.1, 7.0, -20.5, 100.0, 1e-3, -1e-30, 1e30, 1e-42,
    -1e-310, INF, -INF, math.nan,
)  # fmt: skip


def operands(
    count: int, dtype: torch.dtype, low: float, high: float, odd: Sequence[float] = ODD
) -> list[Tensor]:
    """Odd values in all combinations (pairs at most), then random ones; 37 more than any vector holds."""
    few = torch.tensor(odd, dtype=dtype)
    grids = [few] if count == 1 else [g.flatten() for g in torch.meshgrid(few, few, indexing="ij")]
    made = []
    for i in range(count):
        numbers = torch.rand(grids[0].numel() + 37, dtype=dtype) * (high - low) + low
        made.append(torch.cat([grids[i] if i < 2 else grids[0].roll(5), numbers]))
    return made


def fused(core: Callable[..., Any], *inputs: Tensor, states: Sequence[Tensor] = ()) -> list[Tensor]:
    """Outputs and last states of one step."""
    run = Fused(core, len(inputs), len(states), None)
    outputs, last = run([x.unsqueeze(0) for x in inputs], list(states) if states else None)
    return [*(y.squeeze(0) for y in outputs), *last]


def assert_close(
    found: Tensor, expected: Tensor, ulps: float, absolute: float, what: str, *inputs: Tensor
) -> None:
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} for {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: {found.shape} for {expected.shape}"
    same = (found == expected) | (found.isnan() & expected.isnan())
    if expected.is_floating_point():
        small = torch.finfo(expected.dtype)
        room = ulps * small.eps * expected.abs() + (ulps > 0) * (absolute * small.eps + small.tiny)
        same |= (found - expected).abs() <= room
    wrong = torch.nonzero(~same).flatten()
    if len(wrong):
        at = int(wrong[0])
        raise AssertionError(
            f"{what}: {len(wrong)} of {len(same)} differ; at {[float(x[at]) for x in inputs]} torch gives "
            f"{expected[at].item()!r}, flexsn {found[at].item()!r}"
        )


@dataclass(frozen=True)
class Case:
    """A function of tensors; `ulps` 0 means bit for bit."""

    name: str
    function: Callable[..., Any]
    count: int = 1
    ulps: float = 0
    f64_ulps: float = 0
    low: float = -4.0
    high: float = 4.0
    #: how far a result may be off that is small beside the operands, in units of eps
    absolute: float = 0
    gradient_ulps: float = 8
    #: odd values to try; some functions of torch are wrong or unpromised for some
    odd: tuple[float, ...] = ODD
    gradient_odd: tuple[float, ...] | None = None
    #: torch has no derivative
    flat: bool = False


def exact(name: str, function: Callable[..., Any], count: int = 1, **more: Any) -> Case:
    return Case(name, function, count, **more)


def near(name: str, function: Callable[..., Any], count: int = 1, **more: Any) -> Case:
    return Case(name, function, count, **{"ulps": 4, "absolute": 4, "gradient_ulps": 32, **more})


FINITE = tuple(x for x in ODD if math.isfinite(x))
MODEST = tuple(x for x in FINITE if abs(x) <= 100)
# Eager's own fmod is NaN where the quotient overflows.
NORMAL = tuple(x for x in ODD if not 0 < abs(x) < 1e-3 and abs(x) != 1e30)
# Eager's square roots of f64 come from MKL on some machines, which is one unit off now and then.
MKL = {"f64_ulps": 1}


def _assigned(a: Tensor) -> Tensor:
    b = a * 2
    b[a > 0.5] = -1.0
    b[b.isnan()] = 0.25
    return b * a


ARITHMETIC = [
    exact("add", lambda a, b: a + b, 2),
    exact("sub", lambda a, b: a - b, 2),
    exact("mul", lambda a, b: a * b, 2),
    exact("div", lambda a, b: a / b, 2),
    exact("add scalar", lambda a: a + 0.1),
    exact("scalar minus", lambda a: 0.1 - a),
    exact("scalar over", lambda a: 1.7 / a),
    exact("mul scalar", lambda a: a * 0.3),
    exact("div scalar", lambda a: a / 3),
    exact("add alpha", lambda a, b: torch.add(a, b, alpha=0.3), 2),
    exact("sub alpha", lambda a, b: torch.sub(a, b, alpha=0.3), 2),
    exact("rsub alpha", lambda a, b: torch.rsub(a, b, alpha=0.3), 2),
    exact("rsub scalar", lambda a: torch.rsub(a, 1.3)),
    exact("rsub scalar alpha", lambda a: torch.rsub(a, 1.3, alpha=0.7)),
    exact("neg", lambda a: -a),
    exact("positive", lambda a: +a),
    exact("abs", torch.abs),
    exact("square", torch.square),
    exact("sqrt", torch.sqrt, **MKL),
    exact("reciprocal", torch.reciprocal),
    exact("rsqrt", torch.rsqrt, ulps=1),
    exact("lerp low", lambda a, b: torch.lerp(a, b, 0.3), 2),
    exact("lerp high", lambda a, b: torch.lerp(a, b, 0.7), 2),
    exact("lerp beyond", lambda a, b: torch.lerp(a, b, -1.5), 2),
    exact("lerp tensor", torch.lerp, 3),
    exact("addcmul", torch.addcmul, 3),
    exact("addcmul value", lambda a, b, c: torch.addcmul(a, b, c, value=0.3), 3),
    exact("addcdiv", torch.addcdiv, 3),
    exact("addcdiv value", lambda a, b, c: torch.addcdiv(a, b, c, value=0.3), 3),
    exact("true_divide", torch.true_divide, 2),
    exact("div trunc", lambda a, b: torch.div(a, b, rounding_mode="trunc"), 2),
    exact("div floor", lambda a, b: torch.div(a, b, rounding_mode="floor"), 2, odd=NORMAL),
    exact("div floor scalar", lambda a: torch.div(a, 0.3, rounding_mode="floor")),
    exact("div trunc scalar", lambda a: torch.div(a, 0.3, rounding_mode="trunc")),
    exact("floor_divide", lambda a, b: a // b, 2, odd=NORMAL, flat=True),
    exact("floor_divide scalar", lambda a: a // 0.3, flat=True),
    exact("remainder", lambda a, b: a % b, 2, odd=NORMAL),
    exact("remainder scalar", lambda a: a % 0.3),
    exact("remainder of a scalar", lambda a: torch.remainder(2.5, a), odd=NORMAL, flat=True),
    exact("fmod", torch.fmod, 2, odd=NORMAL),
    exact("fmod scalar", lambda a: torch.fmod(a, -0.3)),
    exact("floor", torch.floor),
    exact("ceil", torch.ceil),
    exact("trunc", torch.trunc),
    exact("round", torch.round),
    exact("round to tenths", lambda a: torch.round(a, decimals=1)),
    exact("round to tens", lambda a: torch.round(a, decimals=-1)),
    exact("frac", torch.frac),
    exact("sign", torch.sign),
    exact("sgn", torch.sgn),
    exact("copysign", torch.copysign, 2),
    exact("copysign scalar", lambda a: torch.copysign(a, -2.0)),
    exact("minimum", torch.minimum, 2),
    exact("maximum", torch.maximum, 2),
    exact("fmin", torch.fmin, 2),
    exact("fmax", torch.fmax, 2),
    exact("clamp", lambda a: a.clamp(-0.7, 1.3)),
    exact("clamp low", lambda a: a.clamp(min=-0.7)),
    exact("clamp high", lambda a: a.clamp(max=1.3)),
    exact("clamp_min", lambda a: torch.clamp_min(a, 0.2)),
    exact("clamp_max", lambda a: torch.clamp_max(a, 0.2)),
    exact("clamp tensors", lambda a, b, c: torch.clamp(a, b, c), 3),
    exact("clamp tensor low", lambda a, b: torch.clamp(a, min=b), 2),
    exact("clip", lambda a: torch.clip(a, -1, 1)),
    exact("relu", torch.relu),
    exact("relu6", F.relu6),
    exact("leaky_relu", lambda a: F.leaky_relu(a, 0.1)),
    exact("threshold", lambda a: F.threshold(a, 0.5, -1.0)),
    exact("hardtanh", lambda a: F.hardtanh(a, -0.7, 1.3)),
    exact("hardsigmoid", F.hardsigmoid, ulps=2, absolute=1),
    exact("hardswish", F.hardswish, ulps=2, absolute=1),
    exact("hardshrink", lambda a: F.hardshrink(a, 0.6)),
    exact("softshrink", lambda a: F.softshrink(a, 0.6)),
    exact("softsign", F.softsign),
    exact("heaviside", torch.heaviside, 2, flat=True),
    exact("nan_to_num", torch.nan_to_num),
    exact("nan_to_num given", lambda a: torch.nan_to_num(a, 1.0, 2.0, -3.0)),
    exact("pow 2", lambda a: a**2),
    exact("pow 3", lambda a: a**3),
    exact("pow 1", lambda a: a**1),
    exact("pow 0", lambda a: a**0),
    exact("pow half", lambda a: a**0.5, **MKL),
    exact("pow -1", lambda a: a**-1),
    exact("pow -2", lambda a: a**-2),
    exact("pow -half", lambda a: a**-0.5, ulps=1),
    exact("deg2rad", torch.deg2rad, ulps=1),
    exact("rad2deg", torch.rad2deg, ulps=1),
    exact("fill", lambda a: a * torch.full_like(a, 0.3)),
    exact("masked_fill", lambda a: a.masked_fill(a > 0.5, -1.0)),
    exact("masked_fill tensor", lambda a: a.masked_fill(a > 0.5, torch.tensor(-1.0, dtype=a.dtype))),
    exact("where", lambda a, b: torch.where(a > b, a, b * 2), 2),
    exact("where scalar", lambda a: torch.where(a > 0, a, 0.25)),
    exact("where scalar first", lambda a: torch.where(a > 0, 0.25, a)),
    exact("where both scalars", lambda a: a * torch.where(a > 0, 1.0, 0.25).to(a.dtype)),
    exact("threshold_ in place", lambda a: (a * 1.0).clamp_(-1, 1).mul_(2).add_(a, alpha=0.3)),
    exact("in-place copy", lambda a, b: a.copy_(b) + a, 2),
    exact("zero_", lambda a: a + (a * 2).zero_()),
    exact("masked_fill_", lambda a: (a * 1.0).masked_fill_(a < 0, 3.0)),
    exact("assignment by mask", lambda a: _assigned(a)),
    exact("all of it", lambda a: a[:] * a[..., :] + a[...]),
    exact("zeros_like", lambda a: a + torch.zeros_like(a)),
    exact("ones_like", lambda a: a * torch.ones_like(a)),
    exact("new_zeros", lambda a: a + a.new_zeros(a.shape)),
    exact("new_ones", lambda a: a + a.new_ones(())),
    exact("new_full", lambda a: a + a.new_full((), 0.3)),
    exact("new_tensor", lambda a: a + a.new_tensor(0.3)),
    exact("tensor of a number", lambda a: a * torch.tensor(0.3, dtype=a.dtype)),
    exact("double number beside", lambda a: a * torch.tensor(0.3, dtype=torch.float64)),
    exact("integer number beside", lambda a: a * torch.tensor(3)),
    exact("clone", lambda a: a.clone() * 2),
    exact("contiguous", lambda a: a.contiguous() * 2),
    exact("detach", lambda a: a * a.detach()),
    exact("expand_as", lambda a: a * torch.ones((), dtype=a.dtype).expand_as(a)),
    exact("dropout at rest", lambda a: F.dropout(a, 0.5, training=False) * 2),
    exact("identity", lambda a: torch.nn.Identity()(a)),
    exact("float_power", lambda a: torch.float_power(a, 2).to(a.dtype)),
    exact("ldexp", lambda a: torch.ldexp(a, torch.tensor(3)), gradient_odd=MODEST),
]

SMOOTH = [
    near("exp", torch.exp),
    near("exp2", torch.exp2),
    near("expm1", torch.expm1),
    near("log", torch.log),
    near("log2", torch.log2),
    near("log10", torch.log10),
    near("log1p", torch.log1p),
    near("sin", torch.sin, odd=MODEST),
    near("cos", torch.cos, odd=MODEST),
    near("tan", torch.tan, odd=MODEST),
    near("asin", torch.asin, low=-1, high=1),
    near("acos", torch.acos, low=-1, high=1),
    near("atan", torch.atan),
    near("atan2", torch.atan2, 2),
    near("sinh", torch.sinh),
    near("cosh", torch.cosh),
    near("tanh", torch.tanh),
    near("asinh", torch.asinh),
    near("acosh", torch.acosh, low=1, high=4),
    near("atanh", torch.atanh, low=-1, high=1),
    near("erf", torch.erf),
    near("erfc", torch.erfc, absolute=0, high=9),
    near("sinc", torch.sinc, odd=MODEST, gradient_odd=(0.0, 0.5, 1.0, 7.0)),
    near("hypot", torch.hypot, 2),
    near("logaddexp", torch.logaddexp, 2),
    near("logaddexp2", torch.logaddexp2, 2),
    near("xlogy", torch.xlogy, 2),
    near("xlog1py", torch.special.xlog1py, 2),
    near("logit", lambda a: torch.logit(a, 1e-3), gradient_odd=FINITE),
    near("logit plain", torch.logit, low=0, high=1),
    near("expit", torch.special.expit),
    near("entr", torch.special.entr),
    near("pow", torch.pow, 2, ulps=8),
    near("pow 1.7", lambda a: a**1.7, ulps=8),
    near("pow 4", lambda a: a**4, ulps=8),
    near("scalar to the power", lambda a: 1.7**a, ulps=8),
    near("2 to the power", lambda a: 2**a, ulps=8),
    near("sigmoid", torch.sigmoid),
    near("silu", F.silu),
    near("mish", F.mish),
    near("gelu", F.gelu, absolute=8, odd=FINITE),
    near("gelu tanh", lambda a: F.gelu(a, approximate="tanh")),
    near("elu", lambda a: F.elu(a, 0.7)),
    near("celu", lambda a: F.celu(a, 0.7)),
    near("selu", F.selu),
    near("softplus", F.softplus),
    near("softplus given", lambda a: F.softplus(a, 2.0, 5.0)),
    near("logsigmoid", F.logsigmoid),
    near("tanhshrink", F.tanhshrink),
    near("rsqrt product", lambda a, b: a * torch.rsqrt(b * b + 1), 2),
    near("atan surrogate", lambda a: torch.atan(a * (math.pi / 2)) / math.pi + 0.5),
]
CASES = [*ARITHMETIC, *SMOOTH]


def named(cases: Sequence[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[case.name.replace(" ", "_") for case in cases])


@floats
@named(CASES)
def test_function_and_gradient_are_those_of_eager(case: Case, dtype: torch.dtype) -> None:
    inputs = operands(case.count, dtype, case.low, case.high, case.odd)
    (found,) = fused(lambda *a: (case.function(*a),), *inputs)
    expected = case.function(*[x.clone() for x in inputs])
    ulps = max(case.ulps, case.f64_ulps) if dtype == torch.float64 else case.ulps
    assert_close(found, expected, ulps, case.absolute, case.name, *inputs)
    if not case.flat:
        check_gradient(case, dtype)


def check_gradient(case: Case, dtype: torch.dtype) -> None:
    odd = case.odd if case.gradient_odd is None else case.gradient_odd
    values = operands(case.count, dtype, case.low, case.high, odd)
    inputs, copies = ([x.clone().requires_grad_() for x in values] for _ in range(2))
    expected = case.function(*[x * 1.0 for x in copies])
    weight = torch.rand_like(expected) + 0.5
    wanted = torch.autograd.grad(expected, copies, weight, allow_unused=True)
    (found,) = fused(lambda *a: (case.function(*a),), *inputs)
    gradients = torch.autograd.grad(found, inputs, weight, allow_unused=True)
    for place, (gradient, want) in enumerate(zip(gradients, wanted)):
        want = torch.zeros_like(copies[place]) if want is None else want
        gradient = torch.zeros_like(copies[place]) if gradient is None else gradient
        assert_close(gradient, want, case.gradient_ulps, 32, f"gradient {place} of {case.name}", *values)


@named([case for case in CASES if case.flat])
def test_function_without_derivative_runs_and_says_so_when_it_is_trained(case: Case) -> None:
    inputs = operands(case.count, torch.float32, case.low, case.high)
    assert len(fused(lambda *a: (case.function(*a),), *inputs)) == 1
    with pytest.raises(
        RuntimeError, match=r"derivative for aten::\w+ is not implemented; run it under torch.no_grad"
    ):
        fused(lambda *a: (case.function(*a),), *[x.requires_grad_() for x in inputs])


# ---- integers, bools and what gives them -------------------------------------------------------------------


WHOLE = torch.tensor(
    [0, 1, -1, 2, 3, -3, 7, -8, 31, 32, 40, -40, 100, 2**31 - 1, -(2**31)], dtype=torch.int32
)
INTEGER_FUNCTIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "true division": lambda a, b: a / b,
    "floor division": lambda a, b: a // torch.where(b == 0, 3, b),
    "floor division by a number": lambda a, b: a // 3 + b // -3,
    "remainder": lambda a, b: a % torch.where(b == 0, 3, b),
    "remainder by a number": lambda a, b: a % 5 + b % -5,
    "fmod": lambda a, b: torch.fmod(a, 5) + torch.fmod(b, -5),
    "division trunc": lambda a, b: torch.div(a, 3, rounding_mode="trunc"),
    "negation": lambda a, b: -a,
    "abs": lambda a, b: (a * 1).clamp(min=-5).abs(),
    "sign": lambda a, b: a.sign() * b,
    "sgn": lambda a, b: a.sgn() * b,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "fmax": torch.fmax,
    "clamp": lambda a, b: a.clamp(-2, 5) + b.clamp(min=0),
    "clamp tensor": lambda a, b: torch.clamp(a, min=b),
    "relu": lambda a, b: torch.relu(a) + b,
    "square": lambda a, b: a.square() + b**2,
    "cube": lambda a, b: a**3,
    "bits": lambda a, b: (a & b) | (a ^ ~b),
    "bits of numbers": lambda a, b: (a & 6) | (b ^ 5) | (3 & a),
    "left shift": lambda a, b: a << b.clamp(0, 40),
    "right shift": lambda a, b: a >> b.clamp(0, 40),
    "shift by numbers": lambda a, b: (a << 3) + (b >> 2),
    "floor": lambda a, b: a.floor() + b.ceil() + a.trunc() + b.round(),
    "where": lambda a, b: torch.where(a > b, a, b),
    "where number": lambda a, b: torch.where(a > b, a, 0),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 9),
    "alpha": lambda a, b: torch.add(a, b, alpha=3) - torch.sub(a, b, alpha=2),
    "addcmul": lambda a, b: torch.addcmul(a, b, b, value=2),
    "in place": lambda a, b: (a + 1).mul_(b).sub_(2),
    "heaviside": torch.heaviside,
    "comparison": lambda a, b: (a > b) & (a != 3) | (b <= -1),
    "comparison with a fraction": lambda a, b: (a > 2.5) | (b == 0.5),
    "logical": lambda a, b: torch.logical_and(a, b) ^ torch.logical_or(a, b) | torch.logical_not(a),
    "logical xor": torch.logical_xor,
    "isnan": lambda a, b: torch.isnan(a) | torch.isfinite(b) | torch.isinf(a),
    "signbit": lambda a, b: torch.signbit(a),
    "to float": lambda a, b: a.float() * 0.5 + b,
    "to double": lambda a, b: a.double() * 0.1,
    "to bool": lambda a, b: a.bool(),
    "mixed with a fraction": lambda a, b: a * 0.5 + b,
    "exp": lambda a, b: torch.exp(a.clamp(-5, 5)),
    "sqrt": lambda a, b: torch.sqrt(a.clamp(min=0)),
    "bool sum": lambda a, b: (a > 0) + (b > 0),
    "bool product": lambda a, b: (a > 0) * (b > 0),
    "bool minimum": lambda a, b: torch.minimum(a > 0, b > 0) | torch.maximum(a > 3, b > 5),
    "bool times int": lambda a, b: (a > 0) * b,
    "bool times float": lambda a, b: (a > 0) * 0.5,
    "bool equality": lambda a, b: (a > 0) == (b > 0),
    "bool order": lambda a, b: (a > 0) < (b > 0),
    "bool not": lambda a, b: ~(a > 0),
    "bool where": lambda a, b: torch.where(a > 0, b > 0, a > 5),
    "to int from float": lambda a, b: (a.clamp(-50, 50) * 0.7).int() + b,
    "type_as": lambda a, b: (a * 0.5).type_as(b),
    "zeros_like": lambda a, b: a + torch.zeros_like(b) - torch.ones_like(b),
    "full_like": lambda a, b: a + torch.full_like(b, 7),
    "new_full": lambda a, b: a + a.new_full((), 7),
    "uint8": lambda a, b: a.clamp(0, 100).to(torch.uint8) + b.clamp(0, 255).to(torch.uint8),
}


@pytest.mark.parametrize("name", INTEGER_FUNCTIONS)
def test_integer_function_gives_what_eager_gives(name: str) -> None:
    function = INTEGER_FUNCTIONS[name]
    a, b = (grid.flatten() for grid in torch.meshgrid(WHOLE, WHOLE, indexing="ij"))
    (found,) = fused(lambda a, b: (function(a, b),), a, b)
    expected = function(a.clone(), b.clone())
    assert_close(found, expected, 4 if expected.is_floating_point() else 0, 0, name, a, b)


MIXED_FUNCTIONS = {
    "float and int": lambda x, i: x * i,
    "compare float and int": lambda x, i: (x > i).to(x.dtype),
    "compare half float": lambda x, i: (x.half() > i).to(x.dtype),
    "where of types": lambda x, i: torch.where(x > 0, x, i),
    "float and bool": lambda x, i: x * (i > 1),
    "isclose": lambda x, i: torch.isclose(x, i.to(x.dtype), atol=0.5).to(x.dtype),
    "isposinf": lambda x, i: (torch.isposinf(x) | torch.isneginf(x) | torch.signbit(x)) * i,
    "logical of floats": lambda x, i: torch.logical_and(x, i) | torch.logical_not(x),
    "half and back": lambda x, i: x.half().to(x.dtype),
    "bfloat16 and back": lambda x, i: x.bfloat16().to(x.dtype),
    "double and back": lambda x, i: (x.double() * 0.1).to(x.dtype),
    "bool of a float": lambda x, i: x.bool() ^ i.bool(),
    "finite halves": lambda x, i: x.half().nan_to_num().double() + x.bfloat16().nan_to_num(),
    "int of a float": lambda x, i: x.nan_to_num(0, 9, -9).clamp(-99, 99).int() * i,
    "to another": lambda x, i: i.to(x),
    "float() of a bool": lambda x, i: (x > 0).float() + (i > 0).double(),
    "numbers of types": lambda x, i: x + torch.tensor(True) + torch.tensor(2, dtype=torch.int32),
}


@floats
@pytest.mark.parametrize("name", MIXED_FUNCTIONS)
def test_types_mix_as_in_eager(name: str, dtype: torch.dtype) -> None:
    function = MIXED_FUNCTIONS[name]
    x = torch.tensor(ODD, dtype=dtype)
    i = torch.arange(len(ODD), dtype=torch.int32) % 5 - 2
    (found,) = fused(lambda x, i: (function(x, i),), x, i)
    assert_close(found, function(x.clone(), i.clone()), 0, 0, name, x, i)


# ---- functions with weights, views, tensors made inside ----------------------------------------------------


@floats
def test_prelu_with_a_weight_for_each_channel(dtype: torch.dtype) -> None:
    weight = torch.linspace(-0.5, 0.5, 3, dtype=dtype, requires_grad=True)
    x = torch.randn(4, 3, 5, dtype=dtype, requires_grad=True)
    (found,) = fused(lambda x: (F.prelu(x, weight),), x)
    expected = F.prelu(x, weight)
    assert torch.equal(found, expected)
    g = torch.randn_like(found)
    gradients = torch.autograd.grad(found, (x, weight), g)
    for one, other in zip(gradients, torch.autograd.grad(expected, (x, weight), g)):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (1, 2, 3)], ids=str)
@pytest.mark.parametrize(
    "core",
    [
        lambda x: torch.zeros(x.shape, dtype=x.dtype) + x,
        lambda x: x + x.new_zeros(x.size()),
        lambda x: x * torch.full(x.shape, 0.5, dtype=x.dtype),
        lambda x: x.view(x.shape) + x.reshape(x.shape),
        lambda x: x.unsqueeze(0).squeeze(0) + x.expand(x.shape),
        lambda x: torch.empty_like(x).fill_(2.0) * x,
        lambda x: x.reshape_as(x) + x.view_as(x) + torch.ones((), dtype=x.dtype).expand_as(x),
        lambda x: torch.zeros(x.shape),
        lambda x: torch.where(torch.ones(x.shape, dtype=torch.bool), x, 0.0),
    ],
)
def test_shape_that_is_read_to_make_tensors_stays_free(
    core: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    assert torch.equal(fused(lambda x: (core(x),), x)[0], core(x))
    run = Fused(lambda x: (core(x),), 1, 0, 1)
    traced = []
    for size in (2, 3, 5):
        x = torch.randn(size, *shape)
        assert torch.equal(run([x.unsqueeze(0)])[0][0].squeeze(0), core(x))
        traced.append(run.trace_of([x.unsqueeze(0)], None, ()))
    assert traced[0] is traced[1] is traced[2]


@pytest.mark.parametrize("size", [1, 3, 16, 17, 37, 100])
@pytest.mark.parametrize(
    "name", ["add alpha", "addcmul", "addcmul value", "lerp low", "lerp high", "lerp tensor"]
)
def test_products_and_sums_round_once_at_every_size_as_eager_does(name: str, size: int) -> None:
    case = next(case for case in CASES if case.name == name)
    inputs = [torch.randn(size) for _ in range(case.count)]
    (found,) = fused(lambda *a: (case.function(*a),), *inputs)
    assert torch.equal(found, case.function(*inputs))


SPECIAL = torch.tensor([-1e20, -1e19, -1e5, -3000.0, -1, 0, 0.5, 1, 2, 1e20, float("nan"), float("inf"), -float("inf")])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_acosh_of_what_has_none_is_nan(dtype: torch.dtype) -> None:
    x = SPECIAL.to(dtype).view(1, -1)
    found = flexsn.scan(lambda x: (torch.acosh(x),), x, [])[0][0]
    torch.testing.assert_close(found, torch.acosh(x), equal_nan=True)


def test_a_power_of_two_has_the_type_of_its_exponent() -> None:
    x = torch.tensor([[0.0, 2.0**-100, 1.0]], dtype=torch.float64)
    y = torch.tensor([[200.0, 200.0, 130.0]])
    found = flexsn.scan(lambda x, y: (torch.ldexp(x, y),), [x, y], [])[0][0]
    torch.testing.assert_close(found, torch.ldexp(x, y), equal_nan=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.add(a, b, alpha=2),
        lambda a, b: torch.add(a, b, alpha=0),
        lambda a, b: torch.clamp(a, min=b),
        lambda a, b: torch.clamp(a, max=b),
    ],
)
def test_arithmetic_of_bools(function: Callable[..., Any]) -> None:
    x = torch.tensor([[False, False, True, True]]), torch.tensor([[False, True, False, True]])
    assert torch.equal(flexsn.scan(lambda a, b: (function(a, b),), x, [])[0][0], function(*x))


def test_what_bools_cannot_do_names_the_line() -> None:
    with pytest.raises(ValueError, match=r"torch.addcmul \(.*test_import.py:[0-9]+\) does not take bools; make them"):
        flexsn.scan(lambda x: (torch.addcmul(x > 0, x > 1, x > 0),), torch.ones(2, 3), [])


@pytest.mark.parametrize("number", [-1, 256, -3])
@pytest.mark.parametrize("function", [torch.gt, torch.eq, torch.maximum, torch.remainder])
def test_a_tensor_without_dimensions_must_fit_the_bytes_that_it_meets(
    function: Callable[..., Any], number: int
) -> None:
    x, captured = torch.tensor([[0, 1, 127, 255]], dtype=torch.uint8), torch.tensor(number, dtype=torch.int32)
    with pytest.raises(ValueError, match=rf"the number {number} meets uint8, which ends at 0 and 255"):
        flexsn.scan(lambda x: (function(x, torch.tensor(number)),), x, [])
    with pytest.raises(ValueError, match="int32 tensor without dimensions meets uint8, .* make it uint8 outside"):
        flexsn.scan(lambda x: (function(x, captured),), x, [])
    fits = flexsn.scan(lambda x: (function(x, torch.tensor(3)),), x, [])[0][0]
    assert torch.equal(fits, function(x, torch.tensor(3)))
