"""Surrogates: a spike is 1 where its argument is not negative, else 0, with a gradient of something smoother.

Each is defined once, in C++; on tensors it runs op by op, and in a neuron it is part of the kernel.
PoissonPass, whose spikes are random, is not here: a step draws no random numbers.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ._graph import TYPE_NAMES, Graph, read_graph, run_graph
from ._library import ops
from ._torch import constant_result, modes_off

_graphs: dict[tuple[str, str, torch.dtype], Graph] = {}


@constant_result
def _graph_of(spec: str, what: str, dtype: torch.dtype) -> Graph:
    """What a surrogate computes: its "value", "derivative" or "smooth" function."""
    key = spec, what, dtype
    if key not in _graphs:
        if dtype not in TYPE_NAMES or not dtype.is_floating_point:
            raise TypeError(f"flexsn: a surrogate takes floats, found {dtype}; convert it with .float()")
        with modes_off():
            _graphs[key] = read_graph(ops.surrogate_step(spec, what, TYPE_NAMES[dtype]))
    return _graphs[key]


class _Spike(torch.autograd.Function):
    """The value of one graph with another one for its derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, value: Graph, derivative: Graph) -> Tensor:
        return run_graph(value, [x])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Graph, Graph], output: Tensor) -> None:
        x, _, ctx.derivative = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grad * run_graph(ctx.derivative, [x])[0], None, None


class Surrogate(nn.Module):
    """What all surrogates have: numbers as attributes, and `spiking`, False for the smooth function."""

    # A slot, since a trace of a core that captures this looks at those; the text says all that it computes.
    __slots__ = ("spec",)

    name: ClassVar[str]  #: in C++ and on the command line
    spec: str
    _numbers: tuple[str, ...] = ()
    _optional: tuple[str, ...] = ()  #: numbers that may be None

    def __init__(self, spiking: bool = True, **numbers: float | None) -> None:
        super().__init__()
        self.__dict__["_numbers"] = tuple(numbers)
        for name, value in {**numbers, "spiking": spiking}.items():
            nn.Module.__setattr__(self, name, value)
        self._write_down()

    def set_spiking_mode(self, spiking: bool) -> None:
        """Spikes (True) or the smooth function (False)."""
        self.spiking = spiking

    def __setattr__(self, name: str, value: Any) -> None:
        known = name in self._numbers or name == "spiking"
        before = getattr(self, name) if known else None
        super().__setattr__(name, value)
        if not known:
            return
        try:
            self._write_down()
        except (TypeError, ValueError):
            super().__setattr__(name, before)
            raise

    def _write_down(self) -> None:
        """The text that stands for this surrogate; what it cannot be is an error."""
        shown = type(self).__name__
        parts = [self.name]
        for name in self._numbers:
            value = getattr(self, name)
            absent = value is None and name in self._optional
            if isinstance(value, bool) or not (absent or isinstance(value, numbers.Real)):
                raise TypeError(f"{shown}: {name} must be a number, found {type(value).__name__}")
            if value is not None:
                number = int(value) if isinstance(value, numbers.Integral) else float(value)
                parts.append(f"{name}={number!r}")
        if not isinstance(self.spiking, bool):
            raise TypeError(f"{shown}: spiking must be True or False, found {self.spiking!r}")
        spec = ":".join([*parts, f"spiking={str(self.spiking).lower()}"])
        _graph_of(spec, "value", torch.float32)
        object.__setattr__(self, "spec", spec)

    def _replicate_for_data_parallel(self) -> Surrogate:
        replica = super()._replicate_for_data_parallel()
        object.__setattr__(replica, "spec", self.spec)
        return replica

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._write_down()

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            shown = type(self).__name__
            raise TypeError(f"{shown}: x must be a tensor of floats, found {type(x).__name__}")
        if not self.spiking:
            return run_graph(_graph_of(self.spec, "smooth", x.dtype), [x])[0]
        value = _graph_of(self.spec, "value", x.dtype)
        return _Spike.apply(x, value, _graph_of(self.spec, "derivative", x.dtype))

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in (*self._numbers, "spiking"))


def heaviside(x: Tensor) -> Tensor:
    """1 where x >= 0, else 0; without a gradient."""
    return (x >= 0).to(x)


class Sigmoid(Surrogate):
    """The derivative of sigmoid(alpha u)."""

    name = "sigmoid"

    def __init__(self, alpha: float = 4.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class ATan(Surrogate):
    """(alpha / 2) / (1 + (pi alpha u / 2)^2)."""

    name = "atan"

    def __init__(self, alpha: float = 2.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class PiecewiseQuadratic(Surrogate):
    """A triangle: alpha - alpha^2 |u|, not below 0."""

    name = "triangle"

    def __init__(self, alpha: float = 1.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class Rect(Surrogate):
    """A rectangle: alpha where |u| < 1 / (2 alpha), else 0."""

    name = "rectangle"

    def __init__(self, alpha: float = 1.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class SuperSpike(Surrogate):
    """alpha / (|u| + 1)^2; there is no smooth function."""

    name = "super_spike"

    def __init__(self, alpha: float = 1.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class PiecewiseExp(Surrogate):
    """(alpha / 2) exp(-alpha |u|)."""

    name = "piecewise_exp"

    def __init__(self, alpha: float = 1.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class SoftSign(Surrogate):
    """1 / (2 alpha (1 / alpha + |u|)^2)."""

    name = "soft_sign"

    def __init__(self, alpha: float = 2.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class Erf(Surrogate):
    """(alpha / sqrt(pi)) exp(-(alpha u)^2)."""

    name = "erf"

    def __init__(self, alpha: float = 2.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class NonzeroSignLogAbs(Surrogate):
    """1 / (1 / alpha + |u|)."""

    name = "nonzero_sign_log_abs"

    def __init__(self, alpha: float = 1.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class PiecewiseLeakyReLU(Surrogate):
    """1 / (2 w) where |u| < w, else c."""

    name = "piecewise_leaky_relu"

    def __init__(self, w: float = 1.0, c: float = 0.01, spiking: bool = True) -> None:
        super().__init__(spiking, w=w, c=c)


class SquarewaveFourierSeries(Surrogate):
    """The derivative of the first n - 1 terms of a square wave's Fourier series."""

    name = "squarewave_fourier_series"

    def __init__(self, n: int = 2, T_period: float = 8.0, spiking: bool = True) -> None:
        super().__init__(spiking, n=n, T_period=T_period)


class S2NN(Surrogate):
    """The derivative of sigmoid(alpha u) below 0, beta / (u + 1) above."""

    name = "s2nn"

    def __init__(self, alpha: float = 4.0, beta: float = 1.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha, beta=beta)


class QPseudoSpike(Surrogate):
    """(1 + 2 |u| / (alpha - 1))^-alpha."""

    name = "q_pseudo_spike"

    def __init__(self, alpha: float = 2.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class LeakyKReLU(Surrogate):
    """k where u >= 0, else leak."""

    name = "leaky_k_relu"

    def __init__(self, leak: float = 0.0, k: float = 1.0, spiking: bool = True) -> None:
        super().__init__(spiking, leak=leak, k=k)


class FakeNumericalGradient(Surrogate):
    """1 / |u|, at most alpha; there is no smooth function."""

    name = "fake_numerical_gradient"

    def __init__(self, alpha: float = 0.3) -> None:
        super().__init__(alpha=alpha)


class LogTailedReLU(Surrogate):
    """alpha where u <= 0, 1 up to u = 1, then 1 / u."""

    name = "log_tailed_relu"

    def __init__(self, alpha: float = 0.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)


class DeterministicPass(Surrogate):
    """1 everywhere."""

    name = "deterministic_pass"

    def __init__(self, spiking: bool = True) -> None:
        super().__init__(spiking)


class MultiLevelSpikeCount(Surrogate):
    """Counts: round(clamp(u, 0, max_spike_count)), with gradient 1 in `grad_window`, by default all of it."""

    name = "multi_level_spike_count"
    _optional = ("grad_min", "grad_max")

    def __init__(
        self, max_spike_count: int, spiking: bool = True, grad_window: tuple[float, float] | None = None
    ) -> None:
        if grad_window is not None and (not isinstance(grad_window, tuple | list) or len(grad_window) != 2):
            raise TypeError(
                "MultiLevelSpikeCount: grad_window must be two numbers (low, high), or None for all of the "
                f"counts, found {grad_window!r}"
            )
        low, high = (None, None) if grad_window is None else grad_window
        super().__init__(spiking, max_spike_count=max_spike_count, grad_min=low, grad_max=high)


def __getattr__(name: str) -> Any:
    if name == "PoissonPass":
        raise AttributeError(
            "flexsn.surrogate has no PoissonPass: its spikes are random, and a step draws no random numbers; "
            "draw them outside and pass them in as a second input, or use DeterministicPass, which has its "
            "gradient"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_CLASSES = {
    kind.name: kind
    for kind in (
        Sigmoid, ATan, PiecewiseQuadratic, Rect, SuperSpike, PiecewiseExp, SoftSign, Erf, NonzeroSignLogAbs,
        PiecewiseLeakyReLU, SquarewaveFourierSeries, S2NN, QPseudoSpike, LeakyKReLU, FakeNumericalGradient,
        LogTailedReLU, DeterministicPass, MultiLevelSpikeCount,
    )
}  # fmt: skip


def _numbers_of(text: str) -> dict[str, float | None]:
    """ "alpha=4:beta=none" as a dict."""
    whole = ("n", "max_spike_count")
    values: dict[str, float | None] = {}
    for name, _, value in (part.partition("=") for part in text.split(":") if part):
        values[name] = None if value == "none" else int(value) if name in whole else float(value)
    return values


def named(text: str) -> Surrogate:
    """The surrogate of a text as on the command line: "atan", "s2nn:alpha=4:beta=1"."""
    if not isinstance(text, str):
        raise TypeError(
            'flexsn.surrogate.named takes the text of a surrogate, such as "atan:alpha=3", found '
            f"{type(text).__name__}"
        )
    _graph_of(text, "value", torch.float32)  # says what is wrong with the text
    name, *settings = text.split(":")
    spiking = "spiking=false" not in settings
    numbers = ":".join(setting for setting in settings if not setting.startswith("spiking="))
    preset = dict(zip(*ops.library_surrogates()))[name]
    surrogate = _CLASSES[name].__new__(_CLASSES[name])
    Surrogate.__init__(surrogate, spiking, **{**_numbers_of(preset), **_numbers_of(numbers)})
    return surrogate


#: what neurons take for a surrogate: one of ours, its name, or any function of a tensor
SurrogateLike = Surrogate | str | Callable[[Tensor], Tensor]
