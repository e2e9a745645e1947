"""Steps that several test files run, what an eager loop makes of them, and a view of what torch calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flexsn.fused import Fused

Core = Callable[..., tuple[Tensor, ...]]


def soft(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A leaky neuron whose spikes are soft: smooth everywhere."""
    h = v + (x - v) * 0.5
    y = torch.sigmoid(4.0 * (h - 1.0))
    return y, h * (1.0 - y)


def hard(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Arithmetic only, so equal to the eager loop in every bit."""
    h = v * 0.5 + x
    s = (h >= 1.0).to(h.dtype)
    return s, h - s


def square(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Backward reads the input."""
    h = v * 0.5 + x * x
    return h * x, h


def two_in_three_states(
    a: Tensor, b: Tensor, u: Tensor, v: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    u = u * 0.5 + a
    v = torch.tanh(v * 0.25 + b)
    w = w * 0.5 + u * v
    return u * w, torch.sin(w - v), u, v, w


def with_counter(x: Tensor, v: Tensor, rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Silent for two steps after a spike; the counter is int32."""
    h = v * 0.5 + torch.where(rest > 0, torch.zeros_like(x), x)
    s = (h >= 1.0).to(h.dtype)
    return s * h, h - s, torch.where(s > 0, torch.full_like(rest, 2), (rest - 1).clamp(min=0))


def with_params(leak: Tensor, level: Tensor) -> Core:
    """A core that captures two tensors, of any shapes that broadcast."""

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * leak + x
        y = torch.sigmoid(h - level)
        return y, h - y * level

    return core


def by_loop(
    core: Core, inputs: Sequence[Tensor], states: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Output sequences, state sequences and last states, step by step."""
    rows, state_rows = [], []
    for step in zip(*inputs):
        returned = core(*step, *states)
        states = returned[len(returned) - len(states) :]
        rows.append(returned[: len(returned) - len(states)])
        state_rows.append(states)
    stacked = [torch.stack(column) for column in zip(*rows)]
    return stacked, [torch.stack(column) for column in zip(*state_rows)], list(states)


class Calls(TorchDispatchMode):
    """Notes the operators that torch is asked for below autograd, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((str(func).removesuffix(".default"), args))
        return func(*args, **(kwargs or {}))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]

    def only(self, name: str) -> tuple[Any, ...]:
        """The arguments of the one call of this operator."""
        [arguments] = [arguments for seen, arguments in self.seen if seen == name]
        return arguments


def neuron_of(
    core: Core, inputs: Sequence[Tensor], states: Sequence[Tensor] | int
) -> tuple[str, list[Tensor]]:
    """The text of a core for such tensors (or so many states) and its parameters, as a call passes them."""
    counted = isinstance(states, int)
    fused = Fused(core, len(inputs), states if counted else len(states), None)
    with Calls() as calls:
        fused(list(inputs), None if counted else list(states))
    [arguments] = [arguments for name, arguments in calls.seen if name.endswith("_final_state")]
    return arguments[0], arguments[3]
