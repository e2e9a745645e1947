"""Runs kernels as the seed's wrappers do: those of flexsn are called, others are launched with empty results.

A kernel that a caller or `template` made is launched as `kernel[grid](*tensors, T=, NCL=, dtype=)`; it gets
what it reads, then what it writes, all dense. All sequences it writes are like the first argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .info import FlexSNInfo
from .kernel import NeuronKernel
from .template import GeneratedKernel

__all__ = [
    "flexsn_backward", "flexsn_backward_ncl_bucket", "flexsn_forward", "flexsn_inference",
    "flexsn_inference_final_state",
]  # fmt: skip


def _triton_types() -> dict[torch.dtype, Any]:
    """Triton's types by torch's; empty where there is no Triton, and kernels get torch's."""
    try:
        import triton.language as tl
    except ImportError:
        return {}
    names = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16", "bool": "int1"}
    names |= {"float64": "float64", "int32": "int32", "uint8": "uint8"}
    return {getattr(torch, name): getattr(tl, in_triton) for name, in_triton in names.items()}


type_dict = _triton_types()


def flexsn_backward_ncl_bucket(ncl: int) -> int:
    """A class of sizes of one step, 0 for the smallest to 4."""
    for bucket, most in enumerate((1 << 12, 1 << 17, 1 << 20, 1 << 23)):
        if ncl <= most:
            return bucket
    return 4


def flexsn_inference(f: Any, info: FlexSNInfo, *args: Tensor) -> tuple[Tensor, ...]:
    """Output sequences and state sequences."""
    if isinstance(f, NeuronKernel):
        return tuple(f.forward("inference", args))
    args = _complete(f, info, args)
    results = [like(args[0]) for _ in range(info.num_outputs + info.num_states)]
    _launch(f, args, results, args[0])
    return tuple(results)


def flexsn_inference_final_state(f: Any, info: FlexSNInfo, *args: Tensor) -> tuple[Tensor, ...]:
    """Output sequences and last states, which are like the initial ones or like a step of input 0."""
    if isinstance(f, NeuronKernel):
        return tuple(f.forward("inference_final_state", args))
    args = _complete(f, info, args)
    first = args[0]
    initial = list(args[info.num_inputs : info.num_inputs + info.num_states])
    outputs = [like(first) for _ in range(info.num_outputs)]
    missing = info.num_states - len(initial)
    if first.shape[0] == 0:
        zeros = [first.new_zeros(first.shape[1:]) for _ in range(missing)]
        return (*outputs, *[state.clone() for state in initial], *zeros)
    last = [state.new_empty(state.shape) for state in initial]
    last += [first.new_empty(first.shape[1:]) for _ in range(missing)]
    _launch(f, args, [*outputs, *last], first)
    return (*outputs, *last)


def flexsn_forward(f: Any, info: FlexSNInfo, *args: Tensor) -> tuple[Tensor, ...]:
    """All that the forward kernel of training returns: outputs, states, what backward reads."""
    if isinstance(f, NeuronKernel):
        return tuple(f.forward("training", args))
    args = _complete(f, info, args)
    results = [like(args[0]) for _ in range(info.num_fwd_kernel_returns)]
    _launch(f, args, results, args[0])
    return tuple(results)


def flexsn_backward(
    f: Any,
    info: FlexSNInfo,
    *args: Tensor | None,
    input_templates: Sequence[Tensor] | None = None,
    state_templates: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of inputs and initial states from those of output and state sequences, then saved tensors.

    A gradient may be None. Templates give results their shapes and types.
    """
    count = info.num_outputs + info.num_states
    grads, saved = args[:count], args[count:]
    input_templates = _input_templates(info, grads, input_templates)
    if state_templates is not None and len(state_templates) != info.num_states:
        raise ValueError(
            f"state_templates must hold a tensor for each of {info.num_states} states, found "
            f"{len(state_templates)}"
        )
    present = [grad for grad in grads if grad is not None]
    if state_templates is None and any([grad is None for grad in grads[info.num_outputs :]]):
        which = "one of the states'" if present else "all"
        raise ValueError(f"state_templates are required where {which} gradients are None")
    if state_templates is None:
        state_templates = [grad.new_empty(()).expand(grad.shape[1:]) for grad in grads[info.num_outputs :]]
    templates = [*input_templates, *state_templates]
    if not present or present[0].shape[0] == 0:
        dense_format = torch.contiguous_format
        return tuple([torch.zeros_like(template, memory_format=dense_format) for template in templates])
    if isinstance(f, NeuronKernel):
        return tuple(f.backward(grads, saved, templates))
    results = [like(template) for template in templates]
    dense = [torch.zeros_like(present[0]) if grad is None else grad for grad in grads]
    _launch(f, [*dense, *saved], results, present[0])
    return tuple(results)


def _input_templates(
    info: FlexSNInfo, grads: Sequence[Tensor | None], templates: Sequence[Tensor] | None
) -> Sequence[Tensor]:
    """Templates of the input gradients: those given, or a gradient of an output where it must be alike."""
    if templates is None:
        of_outputs = [grad for grad in grads[: info.num_outputs] if grad is not None]
        if all([grad is None for grad in grads]):
            raise ValueError("input_templates are required where all gradients are None")
        if info.num_inputs != 1:
            raise ValueError(
                f"input_templates are required where there is not one input, found {info.num_inputs}"
            )
        if not of_outputs:
            raise ValueError("input_templates are required where all gradients of outputs are None")
        return of_outputs[:1]
    if len(templates) != info.num_inputs:
        raise ValueError(
            f"input_templates must hold a tensor for each of {info.num_inputs} inputs, found {len(templates)}"
        )
    return templates


def like(tensor: Tensor) -> Tensor:
    """A dense tensor to write to, with the shape and type of another."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _complete(f: Any, info: FlexSNInfo, args: Sequence[Tensor]) -> Sequence[Tensor]:
    """The arguments; a kernel of `template` gets zeros for states that are left out."""
    missing = info.num_inputs + info.num_states - len(args)
    if not isinstance(f, GeneratedKernel) or missing <= 0:
        return args
    return [*args, *[args[0].new_zeros(args[0].shape[1:]) for _ in range(missing)]]


def _launch(f: Any, read: Sequence[Any], written: Sequence[Tensor], like: Tensor) -> None:
    """Launches a kernel over the elements of a step; nothing is launched for no steps or no elements."""
    if like.shape[0] == 0:
        return
    elements = like[0].numel()
    if elements == 0:
        return
    read = [each.contiguous() if isinstance(each, Tensor) else each for each in read]
    with torch.cuda.device_of(like):
        f[_grid(elements)](
            *read, *written, T=like.shape[0], NCL=elements, dtype=type_dict.get(like.dtype, like.dtype)
        )


def _grid(elements: int) -> Callable[[dict[str, int]], tuple[int]]:
    return lambda meta: (-(-elements // meta["BLOCK_NCL"]),)
