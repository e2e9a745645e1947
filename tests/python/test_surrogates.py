"""Surrogates against the formulas of their table, written here again, and against SpikingJelly's own."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flexsn import FlexSN, surrogate
from flexsn._library import ops

Function = Callable[[Tensor], Tensor]


def triangle_smooth(u: Tensor, a: float) -> Tensor:
    inside = -(a**2) / 2 * u * u.abs() + a * u + 0.5
    return torch.where(u.abs() <= 1 / a, inside, (u > 0).to(u))


def two_sided(u: Tensor, tail: Tensor) -> Tensor:
    return torch.where(u >= 0, 1 - tail, tail)


def ramp(u: Tensor, w: float, c: float) -> Tensor:
    outside = torch.where(u > w, c * u - c * w + 1, c * u + c * w)
    return torch.where(u.abs() <= w, u / (2 * w) + 0.5, outside)


def odd(n: int) -> list[int]:
    return [2 * i - 1 for i in range(1, n)]


#: the surrogate, its derivative, its smooth function (None where there is none)
TABLE: dict[str, tuple[surrogate.Surrogate, Function, Function | None]] = {
    "sigmoid": (
        surrogate.Sigmoid(3.0),
        lambda u: 3 * torch.sigmoid(3 * u) * (1 - torch.sigmoid(3 * u)),
        lambda u: torch.sigmoid(3 * u),
    ),
    "atan": (
        surrogate.ATan(1.5),
        lambda u: 0.75 / (1 + (math.pi * 0.75 * u) ** 2),
        lambda u: torch.atan(math.pi * 0.75 * u) / math.pi + 0.5,
    ),
    "triangle": (
        surrogate.PiecewiseQuadratic(0.8),
        lambda u: torch.where(u.abs() <= 1.25, 0.8 - 0.64 * u.abs(), 0 * u),
        lambda u: triangle_smooth(u, 0.8),
    ),
    "rectangle": (
        surrogate.Rect(0.7),
        lambda u: torch.where(u.abs() < 0.5 / 0.7, 0.7, 0.0).to(u),
        lambda u: torch.clamp(0.7 * u + 0.5, 0, 1),
    ),
    "super_spike": (surrogate.SuperSpike(2.0), lambda u: 2 / (u.abs() + 1) ** 2, None),
    "piecewise_exp": (
        surrogate.PiecewiseExp(1.5),
        lambda u: 0.75 * torch.exp(-1.5 * u.abs()),
        lambda u: two_sided(u, torch.exp(-1.5 * u.abs()) / 2),
    ),
    "soft_sign": (
        surrogate.SoftSign(1.5),
        lambda u: 1 / (2 * 1.5 * (1 / 1.5 + u.abs()) ** 2),
        lambda u: (torch.nn.functional.softsign(1.5 * u) + 1) / 2,
    ),
    "erf": (
        surrogate.Erf(1.5),
        lambda u: 1.5 / math.sqrt(math.pi) * torch.exp(-((1.5 * u) ** 2)),
        lambda u: torch.erfc(-1.5 * u) / 2,
    ),
    "nonzero_sign_log_abs": (
        surrogate.NonzeroSignLogAbs(2.0),
        lambda u: 1 / (1 / 2 + u.abs()),
        lambda u: torch.where(u >= 0, 1.0, -1.0).to(u) * torch.log(2 * u.abs() + 1),
    ),
    "piecewise_leaky_relu": (
        surrogate.PiecewiseLeakyReLU(0.75, 0.02),
        lambda u: torch.where(u.abs() < 0.75, 1 / 1.5, 0.02).to(u),
        lambda u: ramp(u, 0.75, 0.02),
    ),
    "squarewave_fourier_series": (
        surrogate.SquarewaveFourierSeries(4, 6.0),
        lambda u: 4 / 6 * sum(torch.cos(k * 2 * math.pi * u / 6) for k in odd(4)),
        lambda u: 0.5 + 2 / math.pi * sum(torch.sin(k * 2 * math.pi * u / 6) / k for k in odd(4)),
    ),
    "s2nn": (
        surrogate.S2NN(3.0, 0.5),
        lambda u: torch.where(u < 0, 3 * torch.sigmoid(3 * u) * (1 - torch.sigmoid(3 * u)), 0.5 / (u + 1)),
        lambda u: torch.where(u < 0, torch.sigmoid(3 * u), 0.5 * torch.log((u + 1).abs() + 1e-5) + 0.5),
    ),
    "q_pseudo_spike": (
        surrogate.QPseudoSpike(2.5),
        lambda u: (1 + 2 * u.abs() / 1.5) ** -2.5,
        lambda u: two_sided(u, 0.5 * (1 + 2 * u.abs() / 1.5) ** -1.5),
    ),
    "leaky_k_relu": (
        surrogate.LeakyKReLU(0.1, 0.9),
        lambda u: torch.where(u >= 0, 0.9, 0.1).to(u),
        lambda u: torch.where(u >= 0, 0.9 * u, 0.1 * u),
    ),
    "fake_numerical_gradient": (
        surrogate.FakeNumericalGradient(0.4),
        lambda u: torch.clamp_max(1 / u.abs(), 0.4),
        None,
    ),
    "log_tailed_relu": (
        surrogate.LogTailedReLU(0.2),
        lambda u: torch.where(u <= 0, 0.2 + 0 * u, torch.where(u <= 1, 1 + 0 * u, 1 / u)),
        lambda u: torch.where(u <= 0, 0.2 * u, torch.where(u <= 1, u, torch.log(u.clamp_min(1)) + 1)),
    ),
    "deterministic_pass": (surrogate.DeterministicPass(), lambda u: torch.ones_like(u), lambda u: u),
    "multi_level_spike_count": (
        surrogate.MultiLevelSpikeCount(3, grad_window=(-0.5, 2.5)),
        lambda u: ((u >= -0.5) & (u <= 2.5)).to(u),
        lambda u: torch.clamp(u, 0, 3),
    ),
}
every = pytest.mark.parametrize("name", TABLE)
both_types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])

twins = pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"]
)

#: around all the corners of the table, and on some
POINTS = torch.cat([torch.linspace(-4, 4, 401), torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 1.25, 0.75])])


def gradient(function: Function, u: Tensor) -> Tensor:
    leaf = u.clone().requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf)[0]


def spike_of(name: str, u: Tensor) -> Tensor:
    if name == "multi_level_spike_count":
        return torch.round(torch.clamp(u, 0, 3))
    return (u >= 0).to(u)


def test_the_table_has_every_surrogate_of_the_library():
    assert list(TABLE) == ops.library_surrogates()[0]
    assert all(kind.name == name for name, (kind, _, _) in TABLE.items())


@every
@both_types
def test_spikes_and_gradients_are_those_of_the_table(name, dtype):
    function, derivative, _ = TABLE[name]
    u = POINTS.to(dtype)
    assert torch.equal(function(u), spike_of(name, u))
    torch.testing.assert_close(gradient(function, u), derivative(u))


@every
@both_types
def test_the_smooth_form_is_that_of_the_table(name, dtype):
    function, _, smooth = TABLE[name]
    function = copy.deepcopy(function)
    u = POINTS.to(dtype)
    if smooth is None:
        with pytest.raises(ValueError, match="spiking must be true, since it has no smooth function"):
            function.set_spiking_mode(False)
        assert function.spiking is True
        return
    function.set_spiking_mode(False)
    torch.testing.assert_close(function(u), smooth(u))
    away = u[((u.abs() - 1 / 0.8).abs() > 1e-3) & (u.abs() > 1e-3) & ((u.abs() - 0.75).abs() > 1e-3)]
    away = away[((away - 1).abs() > 1e-3) & ((away.abs() - 0.5 / 0.7).abs() > 1e-3) & (away < 2.99)]
    torch.testing.assert_close(gradient(function, away), gradient(smooth, away))


@every
@both_types
def test_in_a_neuron_gradients_are_the_same(name, dtype):
    function, derivative, _ = TABLE[name]
    u = POINTS.to(dtype).view(1, -1)
    fused = FlexSN(lambda x: (function(x),), 1, 0, 1)
    torch.testing.assert_close(gradient(lambda x: fused(x), u), derivative(u))
    assert torch.equal(fused(u), spike_of(name, u))


def test_cores_that_capture_other_numbers_are_other_neurons():
    def neuron_with(function: surrogate.Surrogate) -> FlexSN:
        return FlexSN(lambda x: (function(x),), 1, 0, 1)

    one, four = surrogate.Sigmoid(1.0), surrogate.Sigmoid(4.0)
    modules = neuron_with(one), neuron_with(four)
    zero = torch.zeros(1, 1)
    assert [float(gradient(module, zero)) for module in modules] == [0.25, 1.0]
    one.alpha = 2.0
    assert float(gradient(modules[0], zero)) == 0.5
    four.set_spiking_mode(False)
    assert modules[1](zero) == 0.5


@every
def test_spikingjelly_has_the_same(name):
    sj = pytest.importorskip(
        "spikingjelly.activation_based.surrogate", reason="spikingjelly is not installed"
    )
    function = TABLE[name][0]
    numbers = [getattr(function, number) for number in function._numbers]
    if name == "multi_level_spike_count":
        theirs = sj.MultiLevelSpikeCount(3, grad_window=(-0.5, 2.5))
    else:
        theirs = getattr(sj, type(function).__name__)(*numbers)
    u = POINTS.double()
    u = u[~torch.signbit(u) | (u != 0)] if name == "fake_numerical_gradient" else u
    assert torch.equal(function(u), theirs(u))
    torch.testing.assert_close(gradient(function, u), gradient(theirs, u))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
def test_half_types_come_out_as_they_came_in(kind):
    u = torch.tensor([-1.0, 0.0, 0.5], dtype=kind)
    assert surrogate.ATan()(u).dtype == kind
    assert gradient(surrogate.ATan(), u).dtype == kind


def test_gradients_in_a_compiled_function_are_the_same():
    function = surrogate.SoftSign()
    compiled = torch.compile(lambda x: function(x * 2).sum(), fullgraph=True, backend="aot_eager")
    u = POINTS.clone().requires_grad_()
    compiled(u).backward()
    torch.testing.assert_close(u.grad, 2 * gradient(function, 2 * POINTS))


def test_numbers_can_be_assigned_and_are_checked():
    function = surrogate.ATan()
    function.alpha = 3.0
    assert gradient(function, torch.zeros(1)) == 1.5
    with pytest.raises(ValueError, match="surrogate 'atan': .*alpha must be a number above 0, found -1"):
        function.alpha = -1.0
    assert function.alpha == 3.0
    assert repr(function) == "ATan(alpha=3.0, spiking=True)"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: surrogate.Sigmoid(0.0), ValueError, "alpha must be a number above 0, found 0"),
        (lambda: surrogate.Sigmoid(math.inf), ValueError, "alpha must be a number above 0, found inf"),
        (lambda: surrogate.Sigmoid("4"), TypeError, "Sigmoid: alpha must be a number, found str"),
        (lambda: surrogate.Sigmoid(spiking=1), TypeError, "Sigmoid: spiking must be True or False, found 1"),
        (lambda: surrogate.QPseudoSpike(1.0), ValueError, "alpha must be a number above 1, found 1"),
        (lambda: surrogate.PiecewiseLeakyReLU(0.0), ValueError, "w must be a number above 0, found 0"),
        (
            lambda: surrogate.PiecewiseLeakyReLU(c=-1.0),
            ValueError,
            "c must be a number of at least 0, found -1",
        ),
        (
            lambda: surrogate.SquarewaveFourierSeries(1),
            ValueError,
            "n must be a whole number from 2 to 64, found 1",
        ),
        (lambda: surrogate.SquarewaveFourierSeries(2.5), ValueError, "n must be a whole number, found '2.5'"),
        (lambda: surrogate.SquarewaveFourierSeries(2, 0.0), ValueError, "T_period must be a number above 0"),
        (
            lambda: surrogate.MultiLevelSpikeCount(0),
            ValueError,
            "max_spike_count must be a whole number of at least 1",
        ),
        (
            lambda: surrogate.MultiLevelSpikeCount(2, grad_window=(1.0, 0.0)),
            ValueError,
            "grad_max must be a number of at least 1, found 0",
        ),
        (lambda: surrogate.SuperSpike(spiking=False), ValueError, "no smooth function"),
        (lambda: surrogate.named("atn"), ValueError, "a surrogate must be sigmoid, .*did you mean 'atan'"),
        (
            lambda: surrogate.named("atan:beta=1"),
            ValueError,
            "there is no option 'beta'; the options are alpha",
        ),
        (lambda: surrogate.Sigmoid(None), TypeError, "Sigmoid: alpha must be a number, found NoneType"),
        (
            lambda: surrogate.MultiLevelSpikeCount(4, grad_window=(3,)),
            TypeError,
            r"MultiLevelSpikeCount: grad_window must be two numbers \(low, high\), or None .*, found \(3,\)",
        ),
        (
            lambda: surrogate.MultiLevelSpikeCount(4, grad_window=2.0),
            TypeError,
            r"MultiLevelSpikeCount: grad_window must be two numbers .*, found 2\.0",
        ),
        (
            lambda: surrogate.named(None),
            TypeError,
            'flexsn.surrogate.named takes the text of a surrogate, such as "atan:alpha=3", found NoneType',
        ),
        (
            lambda: surrogate.ATan()(torch.ones(2, dtype=torch.int32)),
            TypeError,
            "takes floats, found torch.int32",
        ),
    ],
)  # fmt: skip
def test_what_a_surrogate_cannot_be(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_names_make_the_same_objects():
    named = surrogate.named("s2nn:alpha=3:spiking=false")
    assert isinstance(named, surrogate.S2NN)
    assert (named.alpha, named.beta, named.spiking) == (3.0, 1.0, False)
    for name, (kind, _, _) in TABLE.items():
        assert type(surrogate.named(name)) is type(kind)


@twins
def test_copies_compute_the_same(twin):
    function = twin(surrogate.S2NN(2.0, 0.5))
    torch.testing.assert_close(gradient(function, POINTS), gradient(surrogate.S2NN(2.0, 0.5), POINTS))


def test_a_random_surrogate_is_refused_with_the_reason():
    reason = "its spikes are random, and a step draws no random numbers"
    with pytest.raises(AttributeError, match=f"flexsn.surrogate has no PoissonPass: {reason}"):
        surrogate.PoissonPass  # noqa: B018
    for name in ("poisson_pass", "PoissonPass"):
        with pytest.raises(ValueError, match=f"there is no surrogate '{name}': {reason}"):
            surrogate.named(name)
