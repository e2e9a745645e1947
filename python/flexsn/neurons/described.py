"""A neuron of the library as C++ describes it: what runs it, and what its parameters may be."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._graph import DTYPES, TYPE_NAMES, Graph, read_graph, run_graph
from .._library import ops
from .._torch import constant_result, modes_off
from .._trace import Trace, text_for_compilers
from ..fused import Fused

FLOATS = tuple(dtype for dtype in DTYPES.values() if dtype.is_floating_point)


class Described(NamedTuple):
    """A neuron for one type of input: its kernel, and what its states and parameters are."""

    trace: Trace
    states: tuple[str, ...]
    initial: tuple[float, ...]
    params: tuple[str, ...]
    defaults: tuple[float, ...]
    per_step: tuple[bool, ...]
    outputs: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]  #: what each parameter may be
    param_dtype: torch.dtype


_described: dict[tuple[str, str, tuple[str, ...], torch.dtype, bool], Described] = {}
_graphs: dict[tuple[str, tuple[str, ...]], dict[torch.dtype, Graph]] = {}


def param_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of parameters beside inputs of this one: where inputs are halves, a step computes in float32,
    and so parameters are read, and their gradients summed, in float32."""
    return torch.float32 if dtype.itemsize == 2 else dtype


@constant_result
def describe(
    shown: str, name: str, options: tuple[str, ...], dtype: torch.dtype, compiling: bool = False
) -> Described:
    """The neuron `name` of C++, for a compiler where one asks; what is wrong with its options is an error that
    calls it `shown`."""
    key = shown, name, options, dtype, compiling
    if key not in _described:
        wide = param_dtype(dtype)
        with modes_off():
            text, states, initial, params, defaults, least, greatest, per_step, outputs = ops.library_neuron(
                shown, name, options, TYPE_NAMES[dtype], TYPE_NAMES[wide]
            )
            if compiling:
                text = text_for_compilers(text)
        trace = Trace(
            text=text,
            num_inputs=1,
            num_states=len(states),
            num_outputs=len(outputs),
            state_dtypes=(dtype,) * len(states),
            output_dtypes=(dtype,) * len(outputs),
            trainable=True,
        )
        facts = (states, initial, params, defaults, per_step, outputs, zip(least, greatest))
        _described[key] = Described(trace, *(tuple(fact) for fact in facts), wide)
    return _described[key]


def graphs_of(name: str, options: tuple[str, ...]) -> dict[torch.dtype, Graph]:
    """The same neuron op by op for each type of input, with its spike left to a function of Python."""
    key = name, options
    if key not in _graphs:
        with modes_off():
            _graphs[key] = {
                dtype: read_graph(ops.library_step(name, name, options, TYPE_NAMES[dtype]))
                for dtype in FLOATS
            }
    return _graphs[key]


def run_step(
    graphs: dict[torch.dtype, Graph], fire: Callable[[Tensor], Tensor] | None, *arguments: Tensor
) -> tuple[Tensor, ...]:
    """A step as a core in Python, of inputs and parameters of single steps, states, parameters."""
    spikes = None if fire is None else functools.partial(_spikes, fire)
    return tuple(run_graph(graphs[arguments[0].dtype], arguments, spikes))


def _spikes(fire: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """What a surrogate makes of the distance to threshold."""
    spikes = fire(u)
    if isinstance(spikes, Tensor):
        if spikes.is_floating_point() and spikes.shape == u.shape:
            return spikes if spikes.dtype == u.dtype else spikes.to(u.dtype)
        found = f"{spikes.dtype} of shape {list(spikes.shape)}"
    else:
        found = type(spikes).__name__
    raise TypeError(
        f"flexsn: surrogate_function must return floats of the shape of its argument, {list(u.shape)}, found "
        f"{found}; it works on elements one by one, and spikes are (u >= 0).to(u), not u >= 0"
    )


class Known(Fused):
    """The fused path of a neuron whose text is there without a trace: the first of the static arguments."""

    def ready(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, static: Sequence[Any] = ()
    ) -> tuple[Trace, Sequence[Tensor], Sequence[Tensor]]:
        return static[0], states or [], static[1:]


#: by whether exported Triton modules are to run it, then by the number of states
_known = tuple(tuple(Known(None, 1, n, None, triton=triton) for n in range(8)) for triton in (False, True))


def known(described: Described, triton: bool = False) -> Known:
    """What runs such a neuron."""
    return _known[int(triton)][len(described.states)]  # torch 2.11 compiles no index that is a bool


def require_params(described: Described, params: Sequence[Tensor], x_seq: Tensor) -> None:
    """Refuses what the kernel of a neuron would refuse of its parameters, for what runs without that kernel.

    Values are looked at on the CPU only, as there: a GPU would have to be waited for.
    """
    for param, limits, each in zip(params, described.ranges, described.per_step):
        shape = param.shape[1:] if each else param.shape
        if not _spreads(shape, x_seq.shape[1:]) or not _within(param, limits):
            break
    else:
        return
    # The kernel says what is wrong; of a sequence without steps it computes nothing.
    with torch.no_grad():
        whole = x_seq if any(described.per_step) else x_seq[:0]
        known(described)([whole], None, (described.trace, *params))


def _spreads(shape: Sequence[int], step: Sequence[int]) -> bool:
    """Whether a parameter of this shape broadcasts to a step's."""
    fits = [size in (1, whole) for size, whole in zip(reversed(shape), reversed(step))]
    return len(shape) <= len(step) and all(fits)


def _within(param: Tensor, limits: tuple[float, float]) -> bool:
    """Whether all entries that can be seen are within the limits."""
    low, high = limits
    # Subclasses are those of compilers, which have no values.
    seen = type(param) in (Tensor, nn.Parameter) and param.device.type == "cpu"
    if not seen or torch.compiler.is_compiling() or (low, high) == (-math.inf, math.inf):
        return True
    try:
        least, most = (param, param) if param.dim() == 0 else torch.aminmax(param.detach())
        return low <= least.item() and most.item() <= high
    except RuntimeError:  # torch.func.vmap shows no values
        return True


def per_step(param: Tensor, x_seq: Tensor) -> Tensor:
    """A parameter with an entry for each step as a sequence like the input."""
    if param.shape[0] != x_seq.shape[0]:
        raise ValueError(
            f"a parameter has entries for {param.shape[0]} steps, the sequence has {x_seq.shape[0]}"
        )
    missing = x_seq.dim() - param.dim()
    return param.view(param.shape[0], *[1] * missing, *param.shape[1:]).expand_as(x_seq)
