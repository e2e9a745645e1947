"""Cores and fixtures that the tests of FlexSN share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flexsn.eager import run_steps
from flexsn.neuron import FUSED_BACKENDS

import torch
from torch import Tensor, nn

both_backends = pytest.mark.parametrize("backend", ["torch", "fused"])
fused_labels = pytest.mark.parametrize("backend", FUSED_BACKENDS)


def lif(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v + (x - v) / 2.0
    s = (h >= 1.0).to(h.dtype)
    return s, h * (1.0 - s)


def smooth(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v + (x - v) * 0.5
    y = torch.tanh(h)
    return y, h - y


def two_in_two_out(a: Tensor, b: Tensor, u: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    u = u * 0.5 + a
    v = v * 0.25 + b
    w = w + u * v
    return u + v, w - u, u, v, w


def state_only(x: Tensor, v: Tensor) -> tuple[Tensor]:
    return (v * 0.5 + x,)


def no_states(x: Tensor) -> tuple[Tensor]:
    return (x * 2.0,)


def must_not_run(*_: Tensor) -> tuple[Tensor, ...]:
    raise AssertionError("the core must not be called")


class Threshold(nn.Module):
    """A core with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * 0.5 + x
        return torch.sigmoid(h - self.level), h


def by_hand(core: Callable[..., Any], x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, all states and the last of a core with one of each."""
    outputs, states = [], []
    for t in range(x.shape[0]):
        y, v = core(x[t], v)
        outputs.append(y)
        states.append(v)
    return torch.stack(outputs), torch.stack(states), v


class Recorded:
    """Stands in for the fused path: runs the eager loop and remembers how it was called."""

    made: list[Recorded] = []

    def __init__(self, core, num_inputs, num_states, num_outputs, requires_grad=None) -> None:
        self.core, self.counts = core, (num_inputs, num_states, num_outputs)
        self.requires_grad = requires_grad
        self.calls: list[tuple[list[Tensor] | None, tuple[Any, ...], bool]] = []
        Recorded.made.append(self)

    def again(self, inputs, states, sequences=False):
        return None

    def __call__(self, inputs, states, static=(), sequences=False):
        self.calls.append((states, static, sequences))
        if states is None:
            states = [torch.zeros_like(inputs[0][0]) for _ in range(self.counts[1])]
        outputs, last, seqs = run_steps(self.core, inputs, states, static, self.counts[2], sequences)
        return outputs, (seqs if sequences else last)
