"""Kernels by number, as the seed keeps them: a registry that counts references, and calls by handle.

C++ gives the numbers and counts the references; this side holds the kernel objects of each number. Kernels of
flexsn run as torch operators that name the neuron by its text, so a compiled graph holds no handle. Kernel
objects that a caller made are launched as `wrapper` describes; in a compiled graph they are operators that
name their handle, which must outlive the graph.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._library import ops
from .info import FlexSNInfo
from .kernel import NeuronKernel
from .wrapper import flexsn_backward, flexsn_forward, flexsn_inference, flexsn_inference_final_state, like

__all__ = [
    "FlexSNKernelHandle", "attach_flexsn_handle_finalizer", "flexsn_inductor_backward",
    "flexsn_inductor_inference", "flexsn_inductor_inference_final_state", "flexsn_inductor_training",
    "flexsn_inductor_training_final_state", "flexsn_kernel_registry_info", "register_flexsn_kernel_handle",
    "release_active_flexsn_kernel_handle", "release_flexsn_kernel_handle",
    "retain_flexsn_kernel_handle", "retain_owner_flexsn_kernel_handle",
]  # fmt: skip


@dataclass(eq=False)
class FlexSNKernelHandle:
    """The kernels that a number stands for; any may be None. The counts are those that it starts with."""

    inference_kernel: Any
    inference_info: FlexSNInfo | None
    inference_final_state_kernel: Any
    inference_final_state_info: FlexSNInfo | None
    forward_kernel: Any
    backward_kernel: Any
    training_info: FlexSNInfo | None
    owner_refs: int = 1
    active_refs: int = 0

    def kernels(self) -> list[Any]:
        """The kernels that are there, each once."""
        found = (
            self.inference_kernel,
            self.inference_final_state_kernel,
            self.forward_kernel,
            self.backward_kernel,
        )
        return list({id(kernel): kernel for kernel in found if kernel is not None}.values())


_bundles: dict[int, FlexSNKernelHandle] = {}


# ---- the registry ------------------------------------------------------------------------------------------


def register_flexsn_kernel_handle(
    *,
    inference_kernel: Any,
    inference_info: FlexSNInfo | None,
    inference_final_state_kernel: Any,
    inference_final_state_info: FlexSNInfo | None,
    forward_kernel: Any,
    backward_kernel: Any,
    training_info: FlexSNInfo | None,
) -> int:
    """A new handle with one owner. Kernels that are None have their own error when they are called."""
    bundle = FlexSNKernelHandle(
        inference_kernel,
        inference_info,
        inference_final_state_kernel,
        inference_final_state_info,
        forward_kernel,
        backward_kernel,
        training_info,
    )
    texts = [kernel.text for kernel in bundle.kernels() if isinstance(kernel, NeuronKernel)]
    handle = ops.register_handle(texts[0] if texts else "")
    _bundles[handle] = bundle
    return handle


def retain_owner_flexsn_kernel_handle(handle: Any) -> None:
    """One more owner."""
    ops.retain_handle(_number(handle), True)


def retain_flexsn_kernel_handle(handle: Any) -> None:
    """One more call that uses the kernels."""
    ops.retain_handle(_number(handle), False)


def release_flexsn_kernel_handle(handle: Any) -> None:
    """One owner less; kernels are closed with the last reference."""
    _release(_number(handle), True)


def release_active_flexsn_kernel_handle(handle: Any) -> None:
    """One call less; kernels are closed with the last reference."""
    _release(_number(handle), False)


def attach_flexsn_handle_finalizer(owner: Any, handle: Any) -> weakref.finalize:
    """Releases the handle when `owner` is gone, or when what this returns is called; once."""
    return weakref.finalize(owner, _release, _number(handle), True)


def flexsn_kernel_registry_info() -> dict[str, int]:
    """How many handles there are, and how many references of each kind they have in all."""
    return dict(zip(("entries", "owner_refs", "active_refs"), ops.registry_info()))


def _number(handle: Any) -> int:
    """The number of a handle, which may come as a tensor of one element or as what int() takes."""
    if type(handle) is int:
        return handle
    if isinstance(handle, Tensor):
        if handle.numel() != 1:
            raise TypeError(
                f"a kernel handle must be one number, found a tensor of {handle.numel()} elements"
            )
        return int(handle.item())
    try:
        return int(handle)
    except (TypeError, ValueError) as error:
        raise TypeError(f"a kernel handle must be an int, found {handle!r}") from error


def _release(number: int, owner: bool) -> None:
    if not ops.release_handle(number, owner):
        return
    bundle = _bundles.pop(number, None)
    if bundle is None:  # it was registered in C++
        return
    with contextlib.ExitStack() as stack:  # each is closed, though another one fails
        for kernel in reversed(bundle.kernels()):
            if hasattr(kernel, "close"):
                stack.callback(kernel.close)


def _kernel(handle: Any, purpose: str, kernel: str, info: str) -> tuple[int, Any, FlexSNInfo]:
    """Number, kernel and info of a handle for a purpose, by the names of the fields of its bundle."""
    number = _number(handle)
    bundle = _bundles.get(number)
    if bundle is None:
        raise RuntimeError(
            f"there is no FlexSN kernel handle {number}; it was never registered, or its last reference was "
            "released"
        )
    found, described = getattr(bundle, kernel), getattr(bundle, info)
    if found is None or described is None:
        missing = kernel if found is None else info
        raise RuntimeError(
            f"the {purpose} kernel of FlexSN handle {number} is not available: it was registered with "
            f"{missing}=None"
        )
    return number, found, described


# ---- calls -------------------------------------------------------------------------------------------------


def flexsn_inductor_inference(handle: Any, flat_args: Sequence[Tensor]) -> list[Tensor]:
    """Output sequences and state sequences. `flat_args`: input sequences, then states; none: zeros."""
    number, kernel, info = _kernel(handle, "inference", "inference_kernel", "inference_info")
    if isinstance(kernel, NeuronKernel):
        return kernel.forward("inference", flat_args)
    if torch.compiler.is_compiling():
        return torch.ops.flexsn_compat.launched(number, True, [a.detach() for a in flat_args])
    return _launched(flexsn_inference, kernel, info, flat_args)


def flexsn_inductor_inference_final_state(handle: Any, flat_args: Sequence[Tensor]) -> list[Tensor]:
    """Output sequences and last states."""
    number, kernel, info = _kernel(
        handle, "inference-final-state", "inference_final_state_kernel", "inference_final_state_info"
    )
    if isinstance(kernel, NeuronKernel):
        return kernel.forward("inference_final_state", flat_args)
    if torch.compiler.is_compiling():
        return torch.ops.flexsn_compat.launched(number, False, [a.detach() for a in flat_args])
    return _launched(flexsn_inference_final_state, kernel, info, flat_args)


def flexsn_inductor_training(handle: Any, flat_args: Sequence[Tensor]) -> list[Tensor]:
    """Output sequences, state sequences and what backward reads; the first two know how to go backward."""
    number, kernel, info = _kernel(handle, "training", "forward_kernel", "training_info")
    if isinstance(kernel, NeuronKernel):
        return kernel.forward("training", flat_args)
    if torch.compiler.is_compiling():
        return torch.ops.flexsn_compat.trained(number, True, flat_args)
    return list(_Trained.apply(number, info, True, *flat_args))


def flexsn_inductor_training_final_state(handle: Any, flat_args: Sequence[Tensor]) -> list[Tensor]:
    """Output sequences, last states and what backward reads; the first two know how to go backward."""
    number, kernel, info = _kernel(handle, "training", "forward_kernel", "training_info")
    if isinstance(kernel, NeuronKernel):
        return kernel.forward("training_final_state", flat_args)
    if torch.compiler.is_compiling():
        return torch.ops.flexsn_compat.trained(number, False, flat_args)
    return list(_Trained.apply(number, info, False, *flat_args))


def flexsn_inductor_backward(
    handle: Any,
    grad_outputs: Sequence[Tensor | None],
    saved_tensors: Sequence[Tensor],
    input_templates: Sequence[Tensor],
) -> list[Tensor]:
    """Gradients of what `input_templates` is like, in its order: inputs, then states where they are given.

    saved_tensors: what the training call returned, in the order of the info's c2k_return_mapping. For kernels
    of flexsn that is all of it.
    """
    number, kernel, _ = _kernel(handle, "backward", "backward_kernel", "training_info")
    if isinstance(kernel, NeuronKernel):
        return kernel.backward(grad_outputs, saved_tensors, input_templates)
    go_back = torch.ops.flexsn_compat.gone_back if torch.compiler.is_compiling() else _gone_back
    return list(go_back(number, grad_outputs, saved_tensors, input_templates, True))


# ---- kernels that a caller made ----------------------------------------------------------------------------


def _complete(info: FlexSNInfo, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Inputs and states; states that are left out are zeros like a step of input 0."""
    if info.num_inputs == 0:
        raise ValueError(
            "a FlexSN kernel needs an input, whose leading dimension is time, found info.num_inputs=0"
        )
    if len(tensors) not in (info.num_inputs, info.num_inputs + info.num_states):
        raise ValueError(
            f"the FlexSN kernel takes {info.num_inputs} input sequences and {info.num_states} initial "
            f"states, or the inputs alone, found {len(tensors)} tensors"
        )
    missing = info.num_inputs + info.num_states - len(tensors)
    return [*tensors, *[tensors[0].new_zeros(tensors[0].shape[1:]) for _ in range(missing)]]


def _contiguous(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [tensor if tensor is None else tensor.contiguous() for tensor in tensors]


def _launched(run: Any, kernel: Any, info: FlexSNInfo, flat_args: Sequence[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return list(run(kernel, info, *_contiguous(_complete(info, flat_args))))


def _trained(
    number: int, info: FlexSNInfo, flat_args: Sequence[Tensor], sequences: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """What a training call returns, and what its backward reads."""
    arguments = _contiguous(_complete(info, flat_args))
    results = list(flexsn_forward(_bundles[number].forward_kernel, info, *arguments))
    outputs, plain = info.num_outputs, info.num_outputs + info.num_states
    read = [results[place] for place in info.c2k_return_mapping]
    if sequences:
        return results, read
    last = [
        sequence[-1].clone() if sequence.shape[0] else state.clone()
        for sequence, state in zip(results[outputs:plain], arguments[info.num_inputs :])
    ]
    return [*results[:outputs], *last, *[results[place] for place in _hidden(info)]], read


def _hidden(info: FlexSNInfo) -> list[int]:
    """What backward reads of a training call's sequences, where the call returns last states."""
    return list(dict.fromkeys(place for place in info.c2k_return_mapping if place >= info.num_outputs))


def _gone_back(
    number: int,
    grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    templates: Sequence[Tensor],
    sequences: bool,
) -> list[Tensor]:
    """Gradients of what the templates are like, from those of outputs and state sequences or last states."""
    _, kernel, info = _kernel(number, "backward", "backward_kernel", "training_info")
    given, length = len(templates), templates[0].shape[0]
    templates = _complete(info, templates)
    outputs, plain = info.num_outputs, info.num_outputs + info.num_states
    of_states = list(grads[outputs:plain])
    rows = of_states if sequences else [_in_last_row(grad, length) for grad in of_states]
    results = list(
        flexsn_backward(
            kernel,
            info,
            *_contiguous([*grads[:outputs], *rows]),
            *_contiguous(saved),
            input_templates=templates[: info.num_inputs],
            state_templates=templates[info.num_inputs :],
        )
    )
    if length == 0 and not sequences:
        # With no step between them, a last state is the initial one.
        for place, grad in enumerate(of_states, info.num_inputs):
            results[place] = results[place] if grad is None else results[place] + grad
    return results[:given]


class _InUse:
    """A call's reference to a handle, given back when it is released or gone, whichever is first."""

    def __init__(self, number: int) -> None:
        retain_flexsn_kernel_handle(number)
        self.release = weakref.finalize(self, _release, number, False)


class _Trained(torch.autograd.Function):
    """A training call of kernels that a caller made. The graph holds a reference until it has gone back."""

    @staticmethod
    def forward(
        ctx: Any, number: int, info: FlexSNInfo, sequences: bool, *flat_args: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.in_use = _InUse(number)
        returned, read = _trained(number, info, flat_args, sequences)
        ctx.mark_non_differentiable(*returned[info.num_outputs + info.num_states :])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*read)
        ctx.number, ctx.sequences = number, sequences
        ctx.likes = [(argument.shape, argument.dtype, argument.device) for argument in flat_args]
        return tuple(returned)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # A graph that is kept may come here again, with nothing in use any more.
        in_use = ctx.in_use if ctx.in_use is not None else _InUse(ctx.number)
        ctx.in_use = None
        try:
            templates = [
                torch.empty((), dtype=dtype, device=device).expand(shape)
                for shape, dtype, device in ctx.likes
            ]
            results = _gone_back(ctx.number, grads, ctx.saved_tensors, templates, ctx.sequences)
            return (None, None, None, *results)
        finally:
            in_use.release()


def _in_last_row(grad: Tensor | None, length: int) -> Tensor | None:
    """A last state's gradient as that of the state sequence."""
    if grad is None:
        return None
    rows = grad.new_zeros((length, *grad.shape))
    if length:
        rows[-1] = grad
    return rows


# ---- the same in a compiled graph --------------------------------------------------------------------------


@torch.library.custom_op(
    "flexsn_compat::launched",
    mutates_args=(),
    schema="(int handle, bool sequences, Tensor[] flat_args) -> Tensor[]",
)
def _launched_op(handle: int, sequences: bool, flat_args: list[Tensor]) -> list[Tensor]:
    call = flexsn_inductor_inference if sequences else flexsn_inductor_inference_final_state
    return call(handle, flat_args)


@_launched_op.register_fake
def _(handle: int, sequences: bool, flat_args: list[Tensor]) -> list[Tensor]:
    bundle = _bundles[handle]
    info = bundle.inference_info if sequences else bundle.inference_final_state_info
    return _alike(info, sequences, flat_args)


@torch.library.custom_op(
    "flexsn_compat::trained",
    mutates_args=(),
    schema="(int handle, bool sequences, Tensor[] flat_args) -> Tensor[]",
)
def _trained_op(handle: int, sequences: bool, flat_args: list[Tensor]) -> list[Tensor]:
    return _trained(handle, _bundles[handle].training_info, flat_args, sequences)[0]


@_trained_op.register_fake
def _(handle: int, sequences: bool, flat_args: list[Tensor]) -> list[Tensor]:
    info = _bundles[handle].training_info
    plain = info.num_outputs + info.num_states
    rest = info.num_fwd_kernel_returns - plain if sequences else len(_hidden(info))
    return _alike(info, sequences, flat_args) + [like(flat_args[0]) for _ in range(rest)]


@torch.library.custom_op(
    "flexsn_compat::gone_back",
    mutates_args=(),
    schema="(int handle, Tensor?[] grads, Tensor[] saved, Tensor[] templates, bool sequences) -> Tensor[]",
)
def _gone_back_op(
    handle: int, grads: list[Tensor | None], saved: list[Tensor], templates: list[Tensor], sequences: bool
) -> list[Tensor]:
    return _gone_back(handle, grads, saved, templates, sequences)


@_gone_back_op.register_fake
def _(
    handle: int, grads: list[Tensor | None], saved: list[Tensor], templates: list[Tensor], sequences: bool
) -> list[Tensor]:
    return [like(template) for template in templates]


def _alike(info: FlexSNInfo, sequences: bool, flat_args: list[Tensor]) -> list[Tensor]:
    """Outputs and states as a call returns them, without their values."""
    first, states = flat_args[0], flat_args[info.num_inputs :]
    found = [like(first) for _ in range(info.num_outputs)]
    if sequences:
        return found + [like(first) for _ in range(info.num_states)]
    if states:
        return found + [like(state) for state in states]
    return found + [first.new_empty(first.shape[1:]) for _ in range(info.num_states)]


def _keep(ctx: Any, inputs: tuple[int, bool, list[Tensor]], output: list[Tensor]) -> None:
    ctx.handle, ctx.sequences, flat_args = inputs
    info = _bundles[ctx.handle].training_info
    places = {place: place for place in range(info.num_fwd_kernel_returns)}
    if not ctx.sequences:
        after = enumerate(_hidden(info), info.num_outputs + info.num_states)
        places |= {place: returned for returned, place in after}
    ctx.count = len(flat_args)
    ctx.save_for_backward(*flat_args, *[output[places[place]] for place in info.c2k_return_mapping])
    ctx.set_materialize_grads(False)


def _go_back(ctx: Any, grads: list[Tensor | None]) -> tuple[None, None, list[Tensor]]:
    flat_args, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    info = _bundles[ctx.handle].training_info
    arriving = list(grads[: info.num_outputs + info.num_states])
    found = torch.ops.flexsn_compat.gone_back(ctx.handle, arriving, saved, flat_args, ctx.sequences)
    return None, None, found


_trained_op.register_autograd(_go_back, setup_context=_keep)
