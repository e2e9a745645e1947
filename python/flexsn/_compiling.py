"""What Dynamo runs for real while it traces a fused call; imported by traced code only, after Dynamo."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ._reach import Route, describe
from ._torch import comptime, constant_of, guard, modes_off, size_hint
from ._trace import Trace, text_for_compilers
from .fused import Fused, numbered
from .scan import fused_for


@dataclass
class Compiled:
    """A trace, and how the compiled graph reads what it depends on."""

    trace: Trace
    plain: tuple[tuple[Route, Any], ...]
    routes: tuple[Route, ...]


#: arguments of calls that are being traced, by the number of the Fused
_examples: dict[int, list[Any]] = {}


def _record(context: Any) -> None:
    number = context.get_local("number").as_python_constant()
    value = context.get_local("value")
    if issubclass(value.python_type(), Tensor):
        fake = value.as_fake()
        sizes = [size_hint(size) for size in fake.shape]
        example: Any = torch.empty(
            sizes, dtype=fake.dtype, device=fake.device, requires_grad=fake.requires_grad
        )
    else:
        example = constant_of(value)
    _examples.setdefault(number, []).append(example)


def note_argument(number: int, value: Any) -> None:
    """Remembers what the compiler knows of an argument of the call that it traces."""
    comptime(_record)


def _can_be_compared(value: Any) -> bool:
    """Does Dynamo compare such a value? NumPy's scalars are tensors to it, and no NaN is equal."""
    if isinstance(value, float):
        return type(value) is float and value == value
    return value is None or type(value) in (bool, int, str, bytes, torch.dtype)


#: where compiled code finds the cores of scans, by the number of the Fused; None: it makes them itself
scanned: dict[int, Any] = {}


def _guarded(fused: Fused, key: Hashable) -> bool:
    """Lets compiled code be used only while the core reaches the same; False where that cannot be said."""
    words = f"what {describe(fused.core)} reads is as it was when flexsn traced it"
    number = fused._number
    if number not in scanned:

        def holds(_: Any) -> bool:
            now = numbered.get(number)
            return now is not None and now.still_reaches(key)

        return guard(holds, words)
    source, num_states = scanned.pop(number), fused.num_states
    if source is None:
        return guard(lambda _: fused.still_reaches(key), words)
    return guard(lambda core: fused_for(core, num_states).still_reaches(key), words, source)


@torch.compiler.assume_constant_result
def traced(number: int, num_inputs: int, num_states: int | None, num_static: int) -> Compiled:
    """The trace for the arguments that were noted; a constant of the compiled graph."""
    fused: Fused = numbered[number]
    end = num_inputs + (num_states or 0)
    # The last ones: a compilation that was given up may have noted others before.
    noted = _examples.pop(number)
    examples = noted[len(noted) - end - num_static :]
    states = None if num_states is None else examples[num_inputs:end]
    trace = fused.trace_of(examples[:num_inputs], states, examples[end:])
    reach = fused.reach
    for place in reach.tensors:
        if place.route is None:
            raise RuntimeError(
                f"flexsn: {describe(fused.core)} captures a tensor ({place.path}) in a way that "
                "torch.compile cannot follow; make it an attribute of the core, a closure or a global, or "
                "pass it in static_inputs"
            )
    plain: tuple[tuple[Route, Any], ...] = ()
    if not _guarded(fused, reach.key):
        plain = tuple((route, value) for route, value in reach.plain_routes if _can_be_compared(value))
    with modes_off():
        trace = replace(trace, text=text_for_compilers(trace.text))
    return Compiled(trace, plain, tuple(place.route for place in reach.tensors))
