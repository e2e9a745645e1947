"""What Dynamo runs for real while it traces a scan. It is imported by traced code only, after Dynamo."""

from __future__ import annotations

from typing import Any

import torch

from ._compiling import scanned
from ._torch import comptime, is_made_inside, object_of, source_of
from .fused import Fused
from .scan import fused_for

#: the kernels of the call that is being traced; a core that compiled code makes has no other owner
_noted: list[Fused] = []
_MADE_INSIDE = (
    "flexsn.scan: the core is made inside a function under torch.compile and captures something there, which "
    "cannot be followed; make it outside of that function, or hand what it captures over in params"
)


def _record(context: Any) -> None:
    core = context.get_local("core")
    num_states = context.get_local("num_states").as_python_constant()
    try:
        real = object_of(core)
    except Exception as error:
        raise RuntimeError(_MADE_INSIDE) from error
    if is_made_inside(core) and real.__closure__:
        raise RuntimeError(_MADE_INSIDE)
    fused = fused_for(real, num_states)
    _noted[:] = [fused]
    scanned[fused._number] = source_of(core)


def note_core(core: Any, num_states: int) -> None:
    """Finds the kernels of the core of the call that is being traced."""
    comptime(_record)


@torch.compiler.assume_constant_result
def noted_core() -> int:
    """The number of the kernels that were found; a constant of the compiled graph."""
    return _noted[0]._number
