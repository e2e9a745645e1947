"""Runs a core fused and step by step, and compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flexsn import FlexSN


def both_ways(
    core: Callable[..., Any],
    leaves: Sequence[Tensor],
    shape: tuple[int, ...] = (2, 3),
    dtype: torch.dtype = torch.float64,
    num_states: int = 1,
    static: Sequence[Any] = (),
) -> None:
    """Fused against the eager loop: outputs and states equal, gradients of input and leaves to rounding."""
    x = (torch.rand(5, *shape, dtype=dtype) * 2).requires_grad_()
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    results = []
    for backend in ("fused", "torch"):
        module = FlexSN(core, 1, num_states, 1, backend=backend, static_inputs=static)
        y = module(x)
        loss = (y * torch.arange(1, y.numel() + 1, dtype=dtype).view_as(y)).sum()
        loss = loss + sum((state * 0.5).sum() for state in module.states)
        gradients = torch.autograd.grad(loss, [x, *leaves], allow_unused=True)
        results.append((y, module.states, gradients))
    (found, states, gradients), (expected, eager_states, eager_gradients) = results
    assert torch.equal(found, expected)
    for one, other in zip(states, eager_states):
        assert torch.equal(one, other)
    for one, other in zip(gradients, eager_gradients):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def leaf(*shape: int, low: float = 0.5) -> Tensor:
    return (torch.rand(shape, dtype=torch.float64) + low).requires_grad_()
