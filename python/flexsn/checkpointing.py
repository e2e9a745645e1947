"""Activation checkpointing of networks with states: what runs again starts from where it had started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.utils.checkpoint
from torch import nn

from .base import has_memories

_Memories = list[tuple[nn.Module, dict[str, Any]]]


def checkpoint(module: nn.Module, *inputs: Any, **options: Any) -> Any:
    """`module(*inputs)` that keeps no activations and runs again when backward comes to it.

    torch's own function would let neurons go on from the states that the first run left, and so give wrong
    gradients. The options are those of `torch.utils.checkpoint.checkpoint`.
    """
    at_start = _memories(module)
    return torch.utils.checkpoint.checkpoint(
        module,
        *inputs,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), _memories_set(module, at_start)),
        **options,
    )


def _memories(module: nn.Module) -> _Memories:
    return [(part, dict(part._memories)) for part in module.modules() if has_memories(part)]


@contextlib.contextmanager
def _memories_set(module: nn.Module, values: _Memories) -> Iterator[None]:
    """Inside, the memories are what they were; after it, what they were before it."""
    now = _memories(module)
    _set(values)
    try:
        yield
    finally:
        _set(now)


def _set(values: _Memories) -> None:
    for part, memories in values:
        part._memories.update(memories)
