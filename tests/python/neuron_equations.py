"""The equations of the library's neurons once more, in plain PyTorch: what tests hold the library against."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flexsn import neurons

States = tuple[Tensor, ...]
#: step(x, states, module, t) -> outputs, new states
Step = Callable[[Tensor, States, Any, int], tuple[tuple[Tensor, ...], States]]


class Spike(torch.autograd.Function):
    """A spike whose derivative is any function, as users write it."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, derivative: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(u)
        ctx.derivative = derivative
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (u,) = ctx.saved_tensors
        return grad * ctx.derivative(u), None


def spike(u: Tensor, derivative: Callable[[Tensor], Tensor]) -> Tensor:
    """1 where u >= 0, with this derivative."""
    return Spike.apply(u, derivative)


def sigmoid(u: Tensor, alpha: float = 4.0) -> Tensor:
    s = torch.sigmoid(alpha * u)
    return alpha * s * (1 - s)


def atan(u: Tensor) -> Tensor:
    return 1 / (1 + (math.pi * u) ** 2)


def rect(u: Tensor) -> Tensor:
    return (u.abs() < 0.5).to(u)


def fire(u: Tensor) -> Tensor:
    return spike(u, sigmoid)


def hard(h: Tensor, s: Tensor, v_reset: float = 0.0) -> Tensor:
    return v_reset * s + (1 - s) * h


def if_soft(x: Tensor, states: States, module: Any, t: int) -> Any:
    h = states[0] + x
    s = fire(h - 1.5)
    return (s,), (h - 1.5 * s,)


def if_hard(x: Tensor, states: States, module: Any, t: int) -> Any:
    h = states[0] + x
    s = fire(h - 1.0)
    return (s,), (hard(h, s.detach(), 0.25),)


def half_threshold_if(x: Tensor, states: States, module: Any, t: int) -> Any:
    h = states[0] + x
    s = fire(h - 1.2)
    return (s,), (h - 1.2 * s,)


def activation_aware_if(x: Tensor, states: States, module: Any, t: int) -> Any:
    threshold, offset = module.v_threshold.to(x), module.v_offset.to(x)
    h = states[0] + x
    s = fire(h + offset - threshold)
    return (s,), (h - threshold * s,)


def stbif(x: Tensor, states: States, module: Any, t: int) -> Any:
    q, acc = states
    q = q + x / 0.7
    up, down = (q >= 1) & (acc < 3), (q < 0) & (acc > -4)
    z = up.to(x) - down.to(x)
    return (z * 0.7,), (q - z, acc + z)


def lif_hard(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v + (x - (v - -0.2)) / 3.0
    s = fire(h - 0.4)
    return (s,), (hard(h, s, -0.2),)


def lif_soft(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v - v / 3.0 + x
    s = spike(h - 1.0, atan)
    return (s,), (h - s.detach(),)


def lif_learnable(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    tau, threshold = module.tau.to(x), module.v_threshold.to(x)
    h = v + (x - v) / tau
    s = fire(h - threshold)
    return (s,), (h - threshold * s,)


def simple_lif(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v + (0.1 - v + x) / 2.5
    s = fire(h - 0.6)
    return (s,), (hard(h, s, 0.1),)


def simple_lif_whole_input(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v + (0.1 - v) / 2.5 + x
    s = fire(h - 0.6)
    return (s,), (hard(h, s, 0.1),)


def plif(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v + (x - v) * torch.sigmoid(module.w.to(x))
    s = fire(h - 0.5)
    return (s,), (hard(h, s),)


def plif_whole_input(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v - v * torch.sigmoid(module.w.to(x)) + x
    s = fire(h - 1.0)
    return (s,), (h - s,)


def klif(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, k = states[0], module.k.to(x)
    h = torch.relu(k * (v + (x - v) / 2.0))
    s = fire(h - 0.5)
    return (s,), (hard(h, s),)


def klif_scaled(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, k = states[0], module.k.to(x)
    h = torch.relu(k * (v + (x - v) / 2.0))
    s = fire(h - 0.5)
    return (s,), (h / k - 0.5 / k * s,)


def liaf(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v + (x - v) / 2.0
    s = fire(h - 0.5)
    return (torch.relu(h - 0.5),), (hard(h, s),)


def ilif(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v - v / (4 / 3) + x
    u = h / 0.8
    count = torch.round(torch.clamp(u, 0, 4)).detach()
    line = u * ((u >= 0) & (u <= 4)).to(u).detach()
    s = count + (line - line.detach())
    return (s,), (h - s * 0.8,)


def ottt(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, trace = states[0].detach(), states[1]
    h = v - v / 3.0 + x
    s = fire(h - 1.0)
    trace = trace * (1 - 1 / 3.0) + s.detach()
    return (s, trace), (h - s.detach(), trace)


def sltt(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0].detach()
    h = v + (x - v) / 3.0
    s = fire(h - 0.5)
    return (s,), (hard(h, s.detach()),)


def cuba(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, c = states
    c = c * 0.5 + x
    h = v * 0.75 + c
    s = spike(h - 0.5, rect)
    return (s,), (hard(h, s), c)


def gated(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, before = states
    a, b, g, tau, theta, decay, subreset = (
        torch.sigmoid(getattr(module, name).to(x))
        for name in ("alpha", "beta", "gamma", "tau", "v_threshold", "linear_decay", "v_subreset")
    )
    conduct = torch.sigmoid(module.conduct[t].to(x))
    current = x * (1 - b * (1 - conduct))
    u = (1 - a * (1 - tau)) * v - (1 - a) * decay + current
    v = u - (1 - a * (1 - tau)) * v * g * before - (1 - g) * subreset * before
    s = fire(v - theta)
    return (s,), (v, s)


def alif(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, a = states
    h = v + (x - v) * torch.sigmoid(module.w.to(x))
    s = spike(h - 0.5 - 0.3 * a, atan)
    return (s,), (hard(h, s), 0.8 * a + s)


def clif(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, m = states
    h = v - v / 2.0 + x
    s = spike(h - 1.0, rect)
    m = m * torch.sigmoid(h / 2.0) + s
    return (s,), (h - s * (1.0 + torch.sigmoid(m)), m)


def qif(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v + (x + 1.1 * (v - 0.05) * (v - 0.8)) / 2.0
    s = fire(h - 1.0)
    return (s,), (hard(h, s, -0.1),)


def eif(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0]
    h = v + (x + 0.1 - v + 0.9 * torch.exp((v - 0.8) / 0.9)) / 2.0
    s = fire(h - 1.0)
    return (s,), (hard(h, s, -0.1),)


def izhikevich(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, w = states
    h = v + (x + 1.0 * (v - -0.1) * (v - 0.8) - w) / 2.0
    s = fire(h - 1.0)
    w = w + (0.2 * (h - -0.1) - w) / 4.0 + 0.3 * s
    return (s,), (hard(h, s), w)


def adex(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, w = states
    h = v + (x - (v - 0.0) + 0.5 * torch.exp((v - 0.8) / 0.5) - w) / 2.0
    s = fire(h - 1.0)
    return (s,), (hard(h, s), w + (0.1 * (v - 0.0) - w) / 20.0 + 0.2 * s)


def raf(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, u = states
    damping, cosine, sine = math.exp(-0.1 * 0.5), math.cos(1.5 * 0.5), math.sin(1.5 * 0.5)
    h = damping * (u * sine + v * cosine)
    u = damping * (u * cosine - v * sine) + x
    s = fire(h - 1.0)
    return (s,), (hard(h, s), u)


def hodgkin_huxley(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, m, h, n = states

    def gate(p: Tensor, opening: Tensor, closing: Tensor) -> Tensor:
        rest = opening / (opening + closing)
        return rest + (p - rest) * torch.exp(-0.05 * (opening + closing))

    m = gate(m, 0.1 * (v + 40) / (1 - torch.exp(-(v + 40) / 10)), 4 * torch.exp(-(v + 65) / 18))
    h = gate(h, 0.07 * torch.exp(-(v + 65) / 20), 1 / (1 + torch.exp(-(v + 35) / 10)))
    n = gate(n, 0.01 * (v + 55) / (1 - torch.exp(-(v + 55) / 10)), 0.125 * torch.exp(-(v + 65) / 80))
    sodium, potassium = 120.0 * m**3 * h, 36.0 * n**4
    total = sodium + potassium + 0.3
    rest = (sodium * 50.0 + potassium * -77.0 + 0.3 * -54.387 + x) / total
    new = rest + (v - rest) * torch.exp(-0.05 * total)
    s = spike(new - 0.0, lambda u: sigmoid(u, 0.25))
    return (torch.where(v < 0.0, s, torch.zeros_like(s)),), (new, m, h, n)


def non_spiking_if(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0] + x
    return (v,), (v,)


def non_spiking_lif(x: Tensor, states: States, module: Any, t: int) -> Any:
    v = states[0] + (x - states[0]) / 2.5
    return (v,), (v,)


def synaptic_li(x: Tensor, states: States, module: Any, t: int) -> Any:
    v, r, c = states
    r = 0.6 * r + x
    c = 0.6 * c + (1 - 0.6) * r
    v = v + (c - v) / 2.5
    return (v,), (v, r, c)


class Case(NamedTuple):
    """A neuron of the library, its equation, and what its states are before the first step."""

    make: Callable[..., neurons.LibraryNeuron]
    step: Step
    initial: tuple[float, ...] = (0.0,)
    exact: bool = True  #: nothing but arithmetic
    shift: float = 0.4  #: of the input, so that it fires now and then
    scale: float = 1.0


def learnable(value: float) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.full((3, 1), value) + torch.tensor([[0.0], [0.1], [0.2]]))


CASES: dict[str, Case] = {
    "if hard": Case(lambda **k: neurons.IFNode(1.0, 0.25, detach_reset=True, **k), if_hard, (0.25,)),
    "if soft": Case(lambda **k: neurons.IFNode(1.5, None, **k), if_soft),
    "simple_if": Case(lambda **k: neurons.SimpleIFNode(1.0, 0.25, detach_reset=True, **k), if_hard),
    "half_threshold_if": Case(lambda **k: neurons.HalfThresholdIFNode(1.2, **k), half_threshold_if, (0.6,)),
    "activation_aware_if": Case(
        lambda **k: neurons.ActivationAwareIFNode(1.3, torch.linspace(-0.2, 0.3, 5), **k), activation_aware_if
    ),
    "stbif": Case(lambda **k: neurons.STBIFNeuron(0.7, 8, sym=True, **k), stbif, (0.5, 0.0), shift=0.1),
    "lif hard": Case(lambda **k: neurons.LIFNode(3.0, True, 0.4, -0.2, **k), lif_hard, (-0.2,)),
    "lif soft": Case(lambda **k: neurons.LIFNode(3.0, False, 1.0, None, "atan", True, **k), lif_soft),
    "lif learnable": Case(
        lambda **k: neurons.LIFNode(learnable(2.0), v_threshold=learnable(0.5), v_reset=None, **k),
        lif_learnable,
    ),
    "simple_lif": Case(lambda **k: neurons.SimpleLIFNode(2.5, True, 0.6, 0.1, **k), simple_lif),
    "simple_lif whole input": Case(
        lambda **k: neurons.SimpleLIFNode(2.5, False, 0.6, 0.1, **k), simple_lif_whole_input
    ),
    "plif": Case(lambda **k: neurons.ParametricLIFNode(2.5, v_threshold=0.5, **k), plif, exact=False),
    "plif whole input": Case(
        lambda **k: neurons.ParametricLIFNode(2.5, False, 1.0, None, **k), plif_whole_input, exact=False
    ),
    "klif": Case(lambda **k: neurons.KLIFNode(v_threshold=0.5, **k), klif),
    "klif scaled": Case(lambda **k: neurons.KLIFNode(True, v_threshold=0.5, v_reset=None, **k), klif_scaled),
    "liaf": Case(lambda **k: neurons.LIAFNode(torch.relu, True, v_threshold=0.5, **k), liaf),
    "liaf in the kernel": Case(lambda **k: neurons.LIAFNode("relu", True, v_threshold=0.5, **k), liaf),
    "ilif": Case(lambda **k: neurons.ILIFNode(v_threshold=0.8, **k), ilif, scale=2.0),
    "ottt_lif": Case(lambda **k: neurons.OTTTLIFNode(3.0, **k), ottt, (0.0, 0.0)),
    "sltt_lif": Case(lambda **k: neurons.SLTTLIFNode(3.0, v_threshold=0.5, **k), sltt),
    "cuba_lif": Case(lambda **k: neurons.CUBALIFNode(**k), cuba, (0.0, 0.0), shift=0.0),
    "gated_lif": Case(lambda **k: neurons.GatedLIFNode(12, **k), gated, (0.0, 0.0), exact=False),
    "alif": Case(
        lambda **k: neurons.AdaptiveLIFNode(1.5, 0.3, 0.8, v_threshold=0.5, **k),
        alif,
        (0.0, 0.0),
        exact=False,
    ),
    "clif": Case(lambda **k: neurons.ComplementaryLIFNode(**k), clif, (0.0, 0.0), exact=False),
    "qif": Case(lambda **k: neurons.QIFNode(a0=1.1, v_rest=0.05, **k), qif, (-0.1,), shift=0.8),
    "eif": Case(lambda **k: neurons.EIFNode(delta_T=0.9, v_rest=0.1, **k), eif, (-0.1,), exact=False),
    "izhikevich": Case(
        lambda **k: neurons.IzhikevichNode(w_rest=0.1, tau_w=4.0, a=0.2, b=0.3, **k),
        izhikevich,
        (0.0, 0.1),
        shift=1.0,
    ),
    "adex": Case(lambda **k: neurons.AdExNode(**k), adex, (0.0, 0.0), exact=False, shift=0.8),
    "raf": Case(lambda **k: neurons.RAFNode(-0.1, 1.5, 0.5, **k), raf, (0.0, 0.0)),
    "hodgkin_huxley": Case(
        lambda **k: neurons.HodgkinHuxleyNode(**k),
        hodgkin_huxley,
        (-65.0, 0.0529, 0.5961, 0.3177),
        exact=False,
        shift=300.0,
        scale=200.0,
    ),
    "non_spiking_if": Case(lambda **k: neurons.NonSpikingIFNode(**k), non_spiking_if),
    "non_spiking_lif": Case(lambda **k: neurons.NonSpikingLIFNode(2.5, **k), non_spiking_lif),
    "synaptic_li": Case(lambda **k: neurons.SynapticLINode(0.6, 2.5, **k), synaptic_li, (0.0, 0.0, 0.0)),
}

STEPS, SHAPE = 12, (2, 3, 5)


def input_of(case: Case, dtype: torch.dtype) -> Tensor:
    return (torch.randn(STEPS, *SHAPE, dtype=torch.float64) * case.scale + case.shift).to(dtype)


def run_equation(
    case: Case, module: Any, x_seq: Tensor
) -> tuple[list[Tensor], tuple[Tensor, ...], list[Tensor]]:
    """Output sequences, last states and the sequence of first states of the equation."""
    states = tuple(x_seq.new_full(x_seq.shape[1:], value) for value in case.initial)
    outputs, potentials = [], []
    for t, x in enumerate(x_seq):
        given, states = case.step(x, states, module, t)
        outputs.append(given)
        potentials.append(states[0])
    return [torch.stack(each) for each in zip(*outputs)], states, potentials
