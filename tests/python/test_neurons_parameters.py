"""Parameters of the library's neurons on every path: type beside halves, shape and range; spikes of users."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flexsn
from flexsn import neurons

HALVES = pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])


def own(u: Tensor) -> Tensor:
    """A surrogate that C++ does not know."""
    smooth = torch.sigmoid(u)
    return (u >= 0).to(u) + (smooth - smooth.detach())


PATHS = {
    "fused": {"backend": "fused"},
    "fused, own surrogate": {"backend": "fused", "surrogate_function": own},
    "torch": {"backend": "torch"},
    "torch, own surrogate": {"backend": "torch", "surrogate_function": own},
}
every_path = pytest.mark.parametrize("path", PATHS)


def made(kind: Callable[..., neurons.LibraryNeuron], path: str, **options: Any) -> neurons.LibraryNeuron:
    return kind(**options, step_mode="m", **PATHS[path])


def learned(kind: Callable[..., neurons.LibraryNeuron], path: str, name: str, value: float) -> Tensor:
    """A call after training has brought a parameter there."""
    neuron = made(kind, path)
    getattr(neuron, name).data.fill_(value)
    return neuron(torch.ones(3, 2))


def test_a_parameter_starts_where_its_class_would_not_let_a_number_be() -> None:
    x = torch.rand(5, 4) * 4
    options = {"v_reset": 2.0, "v_rest": 2.5, "step_mode": "m"}  # v_threshold is 1 by default
    wanted = neurons.QIFNode(v_threshold=3.0, **options)(x)
    for backend in ("fused", "torch"):
        neuron = neurons.QIFNode(v_threshold=nn.Parameter(torch.tensor(3.0)), backend=backend, **options)
        assert torch.equal(neuron(x), wanted)


# ---- halves ------------------------------------------------------------------------------------------------


@HALVES
@every_path
def test_a_number_and_a_parameter_of_that_value_give_the_same_bits(kind: torch.dtype, path: str) -> None:
    x = torch.rand(8, 500, generator=torch.Generator().manual_seed(3)).mul(2).to(kind)
    fixed = made(neurons.LIFNode, path, tau=1.51, v_threshold=5.0)
    learnable = made(neurons.LIFNode, path, tau=nn.Parameter(torch.tensor(1.51)), v_threshold=5.0)
    assert torch.equal(fixed(x), learnable(x)) and torch.equal(fixed.v, learnable.v)
    assert learnable.v.dtype == kind


class Leak(nn.Module):
    """The step of NonSpikingLIFNode as a core."""

    def __init__(self) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v + (x - v) / self.tau
        return h, h


@HALVES
@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_a_gradient_of_a_parameter_is_summed_in_single(kind: torch.dtype, backend: str) -> None:
    x = torch.rand(4, 2**17, generator=torch.Generator().manual_seed(3)).to(kind)
    ours, by_hand = neurons.NonSpikingLIFNode(nn.Parameter(torch.tensor(2.0)), backend=backend), Leak()
    (8 * ours(x).float()).sum().backward()
    (8 * flexsn.FlexSN(by_hand, num_states=1)(x).float()).sum().backward()
    assert by_hand.tau.grad.abs() > torch.finfo(torch.float16).max  # what a half could not hold
    torch.testing.assert_close(ours.tau.grad, by_hand.tau.grad)


@HALVES
@every_path
def test_parameters_of_single_steps_stay_in_single(kind: torch.dtype, path: str) -> None:
    torch.manual_seed(2)
    neuron = made(neurons.GatedLIFNode, path, T=4, inplane=3)
    x = torch.rand(4, 2, 3, 200).to(kind)
    potentials = []
    for start in (2.0, 2.0 + torch.finfo(kind).eps / 2):  # a half would not tell them apart
        neuron.conduct.data.fill_(start)
        neuron.reset()
        neuron(x)
        potentials.append(neuron.v)
    assert neuron.v.dtype == kind and not torch.equal(*potentials)


# ---- shapes ------------------------------------------------------------------------------------------------


@every_path
@pytest.mark.parametrize("shape", [(3,), (5, 2, 4), (1, 2, 4), (2, 3)])
def test_a_shape_that_does_not_broadcast_is_refused(shape: tuple[int, ...], path: str) -> None:
    neuron = made(neurons.LIFNode, path, tau=nn.Parameter(torch.full(shape, 2.0)))
    text = f"neuron 'lif': parameter 'tau' has shape {list(shape)}, which does not broadcast to the step's "
    with pytest.raises(ValueError, match=re.escape(text + "shape [2, 4]; each dimension, counted from")):
        neuron(torch.ones(5, 2, 4))


@every_path
def test_shapes_that_broadcast_are_taken(path: str) -> None:
    x = torch.rand(5, 2, 4) * 2
    wanted = made(neurons.LIFNode, path)(x)
    for shape in [(), (1,), (4,), (2, 1), (2, 4)]:
        assert torch.equal(made(neurons.LIFNode, path, tau=nn.Parameter(torch.full(shape, 2.0)))(x), wanted)


# ---- ranges ------------------------------------------------------------------------------------------------


def learns_tau(**options: Any) -> neurons.LIFNode:
    return neurons.LIFNode(tau=nn.Parameter(torch.tensor([2.0, 2.0])), **options)


@every_path
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, float("nan"), float("-inf")])
def test_what_is_learned_stays_in_its_range(value: float, path: str) -> None:
    text = f"neuron 'lif': param 'tau' has the value {value:g} at place 0, which is outside its range"
    with pytest.raises(ValueError, match=text):
        learned(learns_tau, path, "tau", value)


@every_path
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_factor_of_klif_stays_above_0(value: float, path: str) -> None:
    text = f"neuron 'klif': param 'k' has the value {value:g} at place 0, which is outside its range"
    with pytest.raises(ValueError, match=text):
        learned(neurons.KLIFNode, path, "k", value)


@every_path
@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        (
            lambda **k: neurons.LIFNode(v_threshold=nn.Parameter(torch.ones(2)), v_reset=None, **k),
            "v_threshold",
            -1.0,
        ),
        (lambda **k: neurons.QIFNode(v_threshold=nn.Parameter(torch.ones(2)), **k), "v_threshold", -0.5),
        (lambda **k: neurons.EIFNode(v_rest=nn.Parameter(torch.zeros(2)), **k), "v_rest", -1.0),
    ],
)
def test_what_is_learned_stays_in_what_other_options_leave(
    kind: Callable[..., neurons.LibraryNeuron], option: str, value: float, path: str
) -> None:
    text = f"param '{option}' has the value {value:g} at place 0, which is outside its range"
    with pytest.raises(ValueError, match=text):
        learned(kind, path, option, value)


@pytest.mark.parametrize("path", [path for path in PATHS if path.startswith("torch")])
def test_an_ensemble_of_parameters_shows_no_values(path: str) -> None:
    neuron = made(learns_tau, path)
    x = torch.rand(5, 3, 2) * 2

    def outputs(tau: Tensor) -> Tensor:
        neuron.reset()
        return torch.func.functional_call(neuron, {"tau": tau}, (x,))

    taus = torch.tensor([[1.5, 2.0], [2.0, 4.0]])
    together = torch.func.vmap(outputs)(taus)
    assert torch.equal(together, torch.stack([outputs(tau) for tau in taus]))


# ---- what a user's surrogate may return --------------------------------------------------------------------


class TrueOrFalse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        return u >= 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@pytest.mark.parametrize("backend", ["fused", "torch"])
@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda u: u.sum(), r"torch.float32 of shape \[\]"),
        (lambda u: u[None], r"torch.float32 of shape \[1, 2, 4\]"),
        (TrueOrFalse.apply, r"torch.bool of shape \[2, 4\]"),
        (lambda u: [u], "list"),
        (lambda u: None, "NoneType"),
    ],
)
def test_a_surrogate_returns_floats_of_the_shape_of_its_argument(
    function: Callable[[Tensor], Any], found: str, backend: str
) -> None:
    neuron = neurons.LIFNode(surrogate_function=function, step_mode="m", backend=backend)
    text = r"surrogate_function must return floats of the shape of its argument, \[2, 4\], found " + found
    with pytest.raises(TypeError, match=text + r"; it works on elements one by one"):
        neuron(torch.rand(3, 2, 4))


@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_floats_of_another_type_become_those_of_the_step(backend: str) -> None:
    x = (torch.rand(5, 2, 4) * 2).requires_grad_()
    plain = neurons.LIFNode(surrogate_function=own, step_mode="m", backend=backend)
    wide = neurons.LIFNode(surrogate_function=lambda u: own(u).double(), step_mode="m", backend=backend)
    outputs = plain(x), wide(x)
    assert outputs[1].dtype == wide.v.dtype == torch.float32
    assert torch.equal(*outputs)
    torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in outputs])
