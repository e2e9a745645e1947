"""What Dynamo runs for real while it traces a scan. It is imported by traced code only, after Dynamo."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

# Only comptime lets a function see the callable that a compiler has; there is no other spelling of it.
from torch._dynamo.comptime import ComptimeContext, comptime

from .fused import Fused
from .scan import fused_for

#: the kernels of the call that is being traced; a core that compiled code makes has no other owner
_noted: list[Fused] = []
_MADE_INSIDE = (
    "flexsn.scan: the core is made inside a function under torch.compile and captures something there, which "
    "cannot be followed; make it outside of that function, or hand what it captures over in params"
)


def _real(variable: Any) -> Any:
    """The object that a variable of Dynamo stands for."""
    variable = variable.realize()
    name = type(variable).__name__
    if name == "UserMethodVariable":
        return types.MethodType(variable.fn, _real(variable.obj))
    if name.startswith("FunctoolsPartial"):
        keywords = {key: _real(value) for key, value in variable.keywords.items()}
        return functools.partial(_real(variable.func), *[_real(value) for value in variable.args], **keywords)
    if hasattr(variable, "value"):
        return variable.value
    return variable.as_python_constant()


def _record(context: ComptimeContext) -> None:
    core = context.get_local("core")._i_will_not_complain_if_bc_breaks_VariableTracker()
    num_states = context.get_local("num_states").as_python_constant()
    try:
        real = _real(core)
    except Exception as error:
        raise RuntimeError(_MADE_INSIDE) from error
    if type(core.realize()).__name__.startswith("Nested") and real.__closure__:
        raise RuntimeError(_MADE_INSIDE)
    _noted[:] = [fused_for(real, num_states)]


def note_core(core: Any, num_states: int) -> None:
    """Finds the kernels of the core of the call that is being traced."""
    comptime(_record)


@torch.compiler.assume_constant_result
def noted_core() -> int:
    """The number of the kernels that were found; a constant of the compiled graph."""
    return _noted[0]._number
