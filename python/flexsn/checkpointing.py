"""Activation checkpointing of networks with states: what runs again starts from where it had started."""

from __future__ import annotations

import contextlib
from typing import Any

import torch.utils.checkpoint
from torch import Tensor, nn

from .base import has_memories, map_tensors, running_again

_Memories = list[tuple[nn.Module, dict[str, Any]]]


def checkpoint(module: nn.Module, *inputs: Any, **options: Any) -> Any:
    """`module(*inputs)` that keeps no activations and runs again when backward comes to it.

    torch's own function would let neurons go on from the states that the first run left, which they refuse.
    The options are those of `torch.utils.checkpoint.checkpoint`; there is no `use_reentrant=True`. Compilers
    leave it as it is.
    """
    if torch.compiler.is_dynamo_compiling():  # which runs what raises as it is, but for whole graphs
        raise RuntimeError(
            "flexsn.checkpoint: a compiler cannot look into it; leave fullgraph=True out, or compile the module "
            "inside"
        )
    if not isinstance(module, nn.Module):
        raise TypeError(
            "flexsn.checkpoint: expected a module, whose states are looked up, found "
            f"{type(module).__name__}; make a module of it"
        )
    if options.pop("use_reentrant", False):
        raise ValueError(
            "flexsn.checkpoint: use_reentrant must be False, found True: that way nobody is told when the "
            "network runs again; leave it out"
        )
    users = options.pop("context_fn", None)
    at_start = _copies(_memories(module))

    def contexts() -> tuple[Any, Any]:
        first, again = (contextlib.nullcontext(), contextlib.nullcontext()) if users is None else users()
        return first, _FromTheStart(module, at_start, again)

    return torch.utils.checkpoint.checkpoint(
        module, *inputs, use_reentrant=False, context_fn=contexts, **options
    )


class _FromTheStart:
    """Inside, the memories are what they were; after it, what they were before it. Each backward enters it."""

    def __init__(self, module: nn.Module, values: _Memories, inner: Any) -> None:
        self._module, self._values, self._inner = module, values, inner
        self._before: list[_Memories] = []

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._before.append(_memories(self._module))
        running_again.depth = getattr(running_again, "depth", 0) + 1
        _set(_copies(self._values))

    def __exit__(self, *error: Any) -> Any:
        running_again.depth -= 1
        _set(self._before.pop())
        return self._inner.__exit__(*error)


def _memories(module: nn.Module) -> _Memories:
    return [(part, dict(part._memories)) for part in module.modules() if has_memories(part)]


def _copies(values: _Memories) -> _Memories:
    """The same for a module that writes to its memories in place."""
    return [(part, map_tensors(_copy, memories)) for part, memories in values]


def _copy(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return copy.requires_grad_(tensor.requires_grad)


def _set(values: _Memories) -> None:
    for part, memories in values:
        part._memories.update(memories)
