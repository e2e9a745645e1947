"""What the user calls the values of a step: names of the core's own variables, found by their values."""

from __future__ import annotations

import functools
import math
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ._library import ops

#: elements on which a variable and a node must agree, and how far they may be apart: torch's exp is not ours
_SAMPLES, _ROUNDING = 96, 1e-6
_TYPES = {torch.bool: "bool", torch.int32: "i32", torch.uint8: "i32", torch.float64: "f64"}  # else f32


def names_of_values(
    core: Callable[..., Any],
    text: str,
    inputs: Sequence[Tensor],
    state_dtypes: Sequence[torch.dtype],
    params: Sequence[Tensor],
    static: Sequence[Any],
    taken: Sequence[str],
) -> tuple[list[int], list[str]]:
    """Places of nodes of the neuron's text, and the variable of the core that has each one's value.

    The core is called on random steps. What cannot be found has no name; nothing depends on names.
    """
    code = _code_of(core)
    step, device = inputs[0].shape[1:], inputs[0].device
    if code is None or 0 in step:
        return [], []
    generator = torch.Generator().manual_seed(0)
    dtypes = [*(x.dtype for x in inputs), *state_dtypes]
    values: dict[tuple[str, str], list[float]] = {}  # by name and type
    found: dict[tuple[int, str], list[float]] = {}  # by place and type
    rounds = -(-_SAMPLES // min(_SAMPLES, math.prod(step)))
    try:
        rows = [value.detach().to("cpu").expand(step).reshape(-1) for value in params]
        for _ in range(rounds):
            given = [_spread(random_values(step, dtype, generator), generator) for dtype in dtypes]
            with torch.no_grad():
                variables = _variables(core, code, [*(each.to(device) for each in given), *static], step)
            if values and variables.keys() != values.keys():
                return [], []
            arguments = [*(each.reshape(-1) for each in given), *rows]
            for element in range(min(_SAMPLES, math.prod(step))):
                computed = ops.step_values(text, [float(row[element]) for row in arguments])
                for place, kind, result in zip(*computed):
                    found.setdefault((place, kind), []).append(result)
                for key, variable in variables.items():
                    values.setdefault(key, []).append(float(variable.reshape(-1)[element]))
    except Exception:  # a core may not take these numbers; tracing has said what is wrong with it, if anything
        return [], []
    named: dict[int, str] = {}
    for (name, kind), samples in values.items():
        alike = [place for (place, of), results in found.items() if of == kind and _agree(samples, results)]
        if len(alike) == 1 and alike[0] not in named and name not in taken:
            named[alike[0]] = name
    return list(named), list(named.values())


def random_values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Values that a step may meet: numbers around zero, small counts, both truths. They are on the CPU."""
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator, device="cpu") < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 4, shape, generator=generator, dtype=torch.int64, device="cpu").to(dtype)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return (drawn * math.sqrt(2)).to(dtype)


def _spread(values: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers of many sizes, so that what differs only beyond a limit does so here."""
    if not values.dtype.is_floating_point:
        return values
    drawn = torch.rand(values.shape, generator=generator, device="cpu")
    return values * (10.0 ** (drawn * 5 - 2)).to(values.dtype)


def _code_of(core: Callable[..., Any]) -> types.CodeType | None:
    while isinstance(core, functools.partial):
        core = core.func
    function = core.forward if isinstance(core, nn.Module) else core
    return getattr(getattr(function, "__func__", function), "__code__", None)


def _variables(
    core: Callable[..., Any], code: types.CodeType, arguments: Sequence[Any], step: torch.Size
) -> dict[tuple[str, str], Tensor]:
    """The tensors of a step's shape that the core's variables hold when it returns, by name and type."""
    last: dict[str, Any] = {}

    def watch(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is code:
            last.update(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        core(*arguments)
    finally:
        sys.setprofile(before)
    return {
        (name, _TYPES.get(value.dtype, "f32")): value.detach().cpu()
        for name, value in last.items()
        if isinstance(value, Tensor) and value.shape == step and name.isascii() and not name.startswith("_")
    }


def _agree(these: Sequence[float], those: Sequence[float]) -> bool:
    return all(
        a == b or (a != a and b != b) or (math.isfinite(a) and abs(a - b) <= _ROUNDING * abs(a))
        for a, b in zip(these, those)
    )
