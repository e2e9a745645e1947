"""Operators that run the kernels of a neuron's exported Triton module: backend "triton_export"."""

from __future__ import annotations

import importlib.util
import inspect
import math
import os
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._checks import check_step_shape
from ._graph import DTYPES
from ._library import ops
from ._torch import modes_off

Operator = Callable[..., list[Tensor]]


class Operators(NamedTuple):
    """What runs sequences: functions of a neuron's text, inputs, states and parameters."""

    inference: Operator
    inference_final_state: Operator
    training: Operator
    training_final_state: Operator


_TYPES = {**DTYPES, "u8": torch.uint8}
_NAME = 'backend "triton_export"'


def require_triton() -> None:
    """Says so where Triton is not installed; it is not imported."""
    if importlib.util.find_spec("triton") is None:
        raise ImportError(
            f'flexsn: {_NAME} needs Triton, which is not installed; install the package triton, or use '
            'backend="fused"'
        )


# ---- exported modules --------------------------------------------------------------------------------------


class _Read(NamedTuple):
    """What backward reads: an argument of forward or a result of it, by its place."""

    of_results: bool
    place: int


class _Made(NamedTuple):
    """What forward makes for backward alone."""

    dtype: torch.dtype
    per_segment: bool  #: states before each segment of time but the first; otherwise a value of each step


class _Exported:
    """The module of a neuron, loaded, for calls that return all states (`sequences`) or the last ones."""

    def __init__(self, text: str, sequences: bool) -> None:
        require_triton()
        self.sequences = sequences
        groups = ops.signature(text)
        self.dtypes = [_TYPES[name] for group in groups[:3] for name in group]
        self.num_inputs, self.num_states, self.num_params, self.num_outputs = map(len, groups)
        self.module = _module_of(ops.export(text, "triton", "", sequences))
        #: or are its kernels run by Triton's interpreter, as the environment said when it was loaded?
        self.compiled = _is_compiled(self.module)
        names = inspect.signature(self.module.inference).parameters
        self.param_names = list(names)[self.num_inputs + self.num_states :][: self.num_params]
        self.differentiable = tuple(ops.differentiable(text))
        self.carries: list[bool] = []  #: for outputs and states: does a gradient go through it?
        self.reads: list[_Read] = []
        self.made: list[_Made] = []
        if hasattr(self.module, "forward"):
            self._note_training(text)

    def _note_training(self, text: str) -> None:
        """Reads from a call without any element, which launches no kernel, what a training call gives."""
        inputs, states = self.num_inputs, self.num_states
        shapes = [(0, 0, 2)] * inputs + [(0, 2)] * states + [(0, 1)] * self.num_params
        with torch.inference_mode(False), torch.enable_grad():
            arguments = [
                torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)
                for shape, dtype in zip(shapes, self.dtypes)
            ]
            ends = inputs, inputs + states
            groups = arguments[: ends[0]], arguments[ends[0] : ends[1]], arguments[ends[1] :]
            trained = ops.training(text, *groups)
        self.carries = [result.requires_grad for result in trained[: self.num_results]]
        results, saved = self.forward(*groups)
        places = {id(each): _Read(False, place) for place, each in enumerate(arguments)}
        places |= {id(each): _Read(True, place) for place, each in enumerate(results)}
        for tensor in saved:
            read = places.get(id(tensor))
            if read is None:
                read = _Read(True, self.num_results + len(self.made))
                self.made.append(_Made(tensor.dtype, tensor.dim() == 2))
            self.reads.append(read)

    @property
    def num_results(self) -> int:
        return self.num_outputs + self.num_states

    def _arguments(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor]
    ) -> tuple[list[Tensor | None], dict[str, Tensor]]:
        return [*inputs, *(states or [None] * self.num_states)], dict(zip(self.param_names, params))

    def inference(self, *groups: Sequence[Tensor]) -> list[Tensor]:
        places, params = self._arguments(*groups)
        module = self.module
        run = module.inference if self.sequences else module.inference_final_state
        return list(run(*places, **params))

    def forward(self, *groups: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
        places, params = self._arguments(*groups)
        return self.module.forward(*places, **params, sequences=self.sequences)

    def backward(
        self,
        grads: Sequence[Tensor],
        arriving: Sequence[int],
        saved: Sequence[Tensor],
        shape: Sequence[int],
        wanted: Sequence[int],
    ) -> list[Tensor]:
        arrived: list[Tensor | None] = [None] * self.num_results
        for place, grad in zip(arriving, grads):
            arrived[place] = grad
        given = iter(saved)
        complete = len(saved) == len(self.reads)
        kept = [next(given) if complete or not self.is_state(read) else None for read in self.reads]
        flags = [place in wanted for place in range(len(self.dtypes))]
        gradients = self.module.backward(arrived, kept, shape, self.sequences, flags)
        return [gradients[place] for place in wanted]

    def is_state(self, read: _Read) -> bool:
        """Is this an initial state, of which there may be none?"""
        return not read.of_results and 0 <= read.place - self.num_inputs < self.num_states


def _module_of(code: str) -> types.ModuleType:
    from .compat import code_cache

    module = types.ModuleType("flexsn_exported")
    module.__file__ = str(code_cache.run("exported", code, module.__dict__))
    return module


def _is_compiled(module: types.ModuleType) -> bool:
    import triton

    return any(isinstance(each, triton.JITFunction) for each in vars(module).values())


_lock = threading.Lock()
#: by text, whether calls keep all states, and what says whether Triton interprets
_modules: dict[tuple[str, bool, str | None], _Exported] = {}


def _exported(text: str, sequences: bool) -> _Exported:
    key = text, sequences, os.environ.get("TRITON_INTERPRET")
    found = _modules.get(key)
    if found is None:
        with _lock, modes_off():
            found = _modules.get(key)
            if found is None:
                found = _modules[key] = _Exported(text, sequences)
    return found


def _ready(text: str, sequences: bool, tensors: Sequence[Tensor]) -> _Exported:
    """The module for such tensors, which must lie where its kernels run."""
    exported = _exported(text, sequences)
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise ValueError(
                f"flexsn: tensors are on several devices: {device} and {tensor.device}; move them to one"
            )
    if device.type == "cpu" and exported.compiled:
        raise RuntimeError(
            f"flexsn: {_NAME} runs on tensors of a GPU that Triton serves, found tensors on the CPU; move "
            'them there, use backend="fused", or set TRITON_INTERPRET=1 in the environment for Triton\'s '
            "interpreter, which is slow"
        )
    return exported


# ---- operators ---------------------------------------------------------------------------------------------

_library = torch.library.Library("flexsn", "FRAGMENT")
_ARGUMENTS = "(str neuron, Tensor[] inputs, Tensor[] states, Tensor[] params, bool sequences) -> Tensor[]"
for _schema in (
    f"triton_inference{_ARGUMENTS}",
    f"triton_training{_ARGUMENTS}",
    "triton_backward(str neuron, Tensor[] grads, int[] arriving, Tensor[] saved, SymInt[] shape, "
    "int[] wanted, bool sequences) -> Tensor[]",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
_INFERENCE, _TRAINING, _BACKWARD = (
    f"flexsn::triton_{name}" for name in ("inference", "training", "backward")
)


def _checked(
    text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor], sequences: bool
) -> _Exported:
    exported = _ready(text, sequences, [*inputs, *states, *params])
    check_step_shape(states, inputs[0].shape[1:])
    return exported


@torch.library.impl(_INFERENCE, "default", lib=_library)
def _inference(
    text: str, inputs: list[Tensor], states: list[Tensor], params: list[Tensor], sequences: bool
) -> list[Tensor]:
    return _checked(text, inputs, states, params, sequences).inference(inputs, states, params)


@torch.library.register_fake(_INFERENCE, lib=_library)
def _inference_like(
    text: str, inputs: list[Tensor], states: list[Tensor], params: list[Tensor], sequences: bool
) -> list[Tensor]:
    op = ops.inference if sequences else ops.inference_final_state
    return list(op(text, inputs, states, params))


@torch.library.impl(_TRAINING, "default", lib=_library)
def _training(
    text: str, inputs: list[Tensor], states: list[Tensor], params: list[Tensor], sequences: bool
) -> list[Tensor]:
    """Outputs and states, then what backward alone reads."""
    exported = _checked(text, inputs, states, params, sequences)
    results, saved = exported.forward(inputs, states, params)
    results = list(results)
    for tensor, read in zip(saved, exported.reads):
        if read.of_results and read.place >= exported.num_results:
            made = exported.made[read.place - exported.num_results]
            results.append(_flat(tensor) if made.per_segment else tensor)
    return results


def _flat(rows: Tensor) -> Tensor:
    """Rows in one dimension, one where there are none: torch's compilers compile anew for sizes 0 and 1."""
    return rows.view(-1) if len(rows) else rows.new_empty(rows.shape[1])


@torch.library.register_fake(_TRAINING, lib=_library)
def _training_like(
    text: str, inputs: list[Tensor], states: list[Tensor], params: list[Tensor], sequences: bool
) -> list[Tensor]:
    exported = _exported(text, sequences)
    results = _inference_like(text, inputs, states, params, sequences)
    steps, *step = inputs[0].shape
    for made in exported.made:
        shape: Sequence[Any] = inputs[0].shape
        if made.per_segment:
            rows = torch.sym_max((steps - 1) // exported.module.SEGMENT, 1)
            shape = (rows * math.prod(step),)
        results.append(inputs[0].new_empty(shape, dtype=made.dtype))
    return results


@torch.library.impl(_BACKWARD, "default", lib=_library)
def _backward(
    text: str,
    grads: list[Tensor],
    arriving: list[int],
    saved: list[Tensor],
    shape: list[int],
    wanted: list[int],
    sequences: bool,
) -> list[Tensor]:
    """Gradients of the arguments at the places `wanted`."""
    exported = _ready(text, sequences, [*grads, *saved])
    return exported.backward(grads, arriving, saved, shape, wanted)


@torch.library.register_fake(_BACKWARD, lib=_library)
def _backward_like(
    text: str,
    grads: list[Tensor],
    arriving: list[int],
    saved: list[Tensor],
    shape: list[int],
    wanted: list[int],
    sequences: bool,
) -> list[Tensor]:
    exported = _exported(text, sequences)
    first_param = exported.num_inputs + exported.num_states
    params = saved[len(saved) - exported.num_params :]
    gradients = []
    for place in wanted:
        if place >= first_param:
            sizes: Sequence[Any] = params[place - first_param].shape
        else:
            sizes = shape if place < exported.num_inputs else shape[1:]
        gradients.append(grads[0].new_empty(sizes, dtype=exported.dtypes[place]))
    return gradients


# ---- gradients ---------------------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Keeps of a training call what its backward reads."""
    text, given, states, params, sequences = inputs
    exported = _exported(text, sequences)
    arguments = [*given, *(states or [None] * exported.num_states), *params]
    needed = [arguments[place] for place in exported.differentiable]
    trained = any(tensor is not None and tensor.requires_grad for tensor in needed)
    # What forward made for backward stays differentiable, so that gradients of gradients depend on it.
    still = [result for result, carries in zip(output, exported.carries) if not carries]
    ctx.mark_non_differentiable(*(still if trained else output))
    ctx.set_materialize_grads(False)
    kept = [output[read.place] if read.of_results else arguments[read.place] for read in exported.reads]
    ctx.save_for_backward(*[tensor for tensor in kept if tensor is not None])
    ctx.call = text, given[0].shape, sequences


def _go_back(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    text, shape, sequences = ctx.call
    exported = _exported(text, sequences)
    inputs, states, params = ctx.needs_input_grad[1:4]
    # An argument's place is the same where states are left out.
    needs = [*inputs, *(states or [False] * exported.num_states), *params]
    wanted = [place for place in exported.differentiable if needs[place]]
    arriving = [place for place, grad in enumerate(grads[: exported.num_results]) if grad is not None]
    gradients: list[Tensor | None] = [None] * len(needs)
    if arriving and wanted:
        arrived = [grads[place] for place in arriving]
        found = ops.triton_backward(text, arrived, arriving, _saved(ctx), shape, wanted, sequences)
        for place, gradient in zip(wanted, found):
            gradients[place] = gradient
    first_param = exported.num_inputs + exported.num_states
    of_states = gradients[exported.num_inputs : first_param] if states else []
    return None, gradients[: exported.num_inputs], of_states, gradients[first_param:], None


def _saved(ctx: Any) -> list[Tensor]:
    try:
        return list(ctx.saved_tensors)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise RuntimeError(
            "flexsn: backward has come to a call whose graph was freed by an earlier backward. A state that "
            "is carried from batch to batch does that: detach or reset between batches "
            "(functional.detach_net or functional.reset_net), or keep the graph with retain_graph=True"
        ) from None


def _not_twice(ctx: Any, grads: Sequence[Tensor | None]) -> None:
    raise NotImplementedError(
        'flexsn: gradients of gradients are not there (double backward); use backend="torch" where '
        "create_graph=True is needed"
    )


torch.library.register_autograd(_TRAINING, _go_back, setup_context=_keep, lib=_library)
torch.library.register_autograd(_BACKWARD, _not_twice, lib=_library)


# ---- what is not there, and the operators as calls take them ----------------------------------------------


def _refuse_vmap(info: Any, in_dims: Any, *arguments: Any) -> None:
    raise NotImplementedError(
        f"flexsn: {_NAME} does not run under vmap; a step works on elements one by one, so give the whole "
        "batch as dimensions of the step instead"
    )


for _name in (_INFERENCE, _TRAINING, _BACKWARD):
    torch.library.register_vmap(_name, _refuse_vmap, lib=_library)


def _operator(name: str, sequences: bool) -> Operator:
    op = getattr(ops, name).default

    def run(
        text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor]
    ) -> list[Tensor]:
        if not torch.compiler.is_compiling():
            _no_forward_mode((*inputs, *states, *params))
        return op(text, inputs, states, params, sequences)

    return run


def _no_forward_mode(tensors: Sequence[Tensor]) -> None:
    """Dual tensors would lose their tangents without a word."""
    if any([forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors]):
        raise NotImplementedError(
            "flexsn: derivatives in forward mode (jvp, dual tensors) are not there; use backward, or "
            'backend="torch" where they are needed'
        )


TRITON_OPERATORS = Operators(
    inference=_operator("triton_inference", True),
    inference_final_state=_operator("triton_inference", False),
    training=_operator("triton_training", True),
    training_final_state=_operator("triton_training", False),
)
