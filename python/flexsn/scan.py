"""One function of everything: a core run over sequences from given states, with no state of its own."""

from __future__ import annotations

import collections
import numbers
import threading
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .eager import sequence_length
from .fused import Fused


def scan(
    core: Callable[..., Any],
    inputs: Sequence[Tensor] | Tensor,
    states: Sequence[Tensor] | Tensor,
    params: Sequence[Any] | Tensor = (),
) -> tuple[list[Tensor], list[Tensor]]:
    """Runs `core(*inputs, *states, *params) -> (*outputs, *new_states)` over time as one kernel.

    inputs: sequences [T, ...]. states: those before the first step, shaped like one step. params: tensors
    that broadcast to a step, and numbers; the same at every step. A single tensor stands for a list of one.
    Returns the output sequences and the last states. Gradients flow to inputs, states, params and to the
    tensors that the core captures.
    """
    if not callable(core):
        raise TypeError(f"flexsn.scan: core must be callable, found {type(core).__name__}")
    inputs, states, params = _listed("inputs", inputs), _listed("states", states), _listed("params", params)
    if not inputs:
        raise ValueError("flexsn.scan: there must be an input, whose leading dimension is time")
    sequence_length(inputs, None)
    for place, state in enumerate(states):
        if not isinstance(state, Tensor):
            raise TypeError(f"flexsn.scan: state {place} must be a tensor, found {type(state).__name__}")
        if state.shape != inputs[0].shape[1:]:
            raise ValueError(
                f"flexsn.scan: state {place} must have the shape of one step, "
                f"{list(inputs[0].shape[1:])}, found {list(state.shape)}; expand it"
            )
    for place, value in enumerate(params):
        if not isinstance(value, (Tensor, numbers.Number)):
            raise TypeError(
                f"flexsn.scan: params[{place}] must be a tensor or a number, found {type(value).__name__}"
            )
    if torch.compiler.is_dynamo_compiling():
        from ._compiling_scan import note_core, noted_core

        note_core(core, len(states))
        fused: Fused = _InCompiledCode(core, noted_core(), len(states))
    else:
        fused = fused_for(core, len(states))
    return fused(inputs, states, tuple(params))


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return list(values)
    raise TypeError(f"flexsn.scan: {name} must be a list of tensors, found {type(values).__name__}")


# ---- kernels that are kept ---------------------------------------------------------------------------------
# What a core was traced to is kept, so that a call in a loop does not look through the core anew. It holds
# the core and what the core captures. A function carries its own, which goes away with it; other callables (a
# method is a new object each time) share a table of those that were used last.


class _Own(NamedTuple):
    core: Callable[..., Any]
    by_states: dict[int, Fused]


_ATTRIBUTE = "__flexsn_scan__"
_MOST_KEPT = 32
_kept: collections.OrderedDict[Hashable, Fused] = collections.OrderedDict()
_lock = threading.Lock()


def fused_for(core: Callable[..., Any], num_states: int) -> Fused:
    """The kernels of a core: the same object at each call, while it is kept."""
    if type(core) is types.FunctionType:
        own = core.__dict__.get(_ATTRIBUTE)
        if own is None or own.core is not core:  # functools.wraps copies attributes to another function
            own = core.__dict__[_ATTRIBUTE] = _Own(core, {})
        found = own.by_states.get(num_states)
        return found or own.by_states.setdefault(num_states, Fused(core, None, num_states, None))
    parts = (core.__self__, core.__func__) if isinstance(core, types.MethodType) else (core,)
    # The table holds the core, so that these numbers are not given to another object.
    key = (*[id(part) for part in parts], num_states)
    with _lock:
        found = _kept.get(key)
        if found is None:
            found = _kept[key] = Fused(core, None, num_states, None)
            if len(_kept) > _MOST_KEPT:
                _kept.popitem(last=False)
        else:
            _kept.move_to_end(key)
    return found


class _InCompiledCode(Fused):
    """A Fused as compiled code sees it: the core as the compiler knows it, and the number of the real one."""

    def __init__(self, core: Callable[..., Any], number: int, num_states: int) -> None:
        self.core = core
        self.num_states = num_states
        self._number = number
