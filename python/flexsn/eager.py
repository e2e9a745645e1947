"""The eager loop: a core called step by step in plain PyTorch, which is backend "torch"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._reach import describe, source_of
from ._torch import has_saved_tensors_hooks, is_view, was_freed


def sequence_length(inputs: Sequence[Any], num_inputs: int | None) -> int:
    """T of a call, after a check that the inputs are sequences of one length."""
    if not inputs:
        raise ValueError(
            "flexsn: a multi-step call needs at least one input: the number of steps is its leading "
            'dimension. A core without inputs runs step by step: step_mode="s" with backend="torch"'
        )
    if num_inputs is not None and len(inputs) != num_inputs:
        raise ValueError(
            f"flexsn: expected {num_inputs} inputs, found {len(inputs)}; give one sequence [T, ...] for each "
            "input of the core"
        )
    if len(inputs) == 1 and isinstance(inputs[0], Tensor) and inputs[0].dim() > 0 and not inputs[0].is_nested:
        return inputs[0].shape[0]
    for place, value in enumerate(inputs):
        if isinstance(value, Tensor) and value.is_nested:  # it has no sizes to ask for
            raise TypeError(
                f"flexsn: input {place} must be dense, found a nested tensor; pad it, for example with "
                "torch.nested.to_padded_tensor"
            )
        if not isinstance(value, Tensor):
            raise TypeError(
                f"flexsn: input {place} must be a tensor, found {type(value).__name__}; give each input as "
                "an argument of its own, made by torch.as_tensor"
            )
        if value.dim() == 0:
            raise ValueError(
                f"flexsn: input {place} must have time as its first dimension, found a scalar; one step of "
                "it is x.unsqueeze(0)"
            )
    length = inputs[0].shape[0]
    for place in range(1, len(inputs)):
        if inputs[place].shape[0] != length:
            raise ValueError(
                f"flexsn: all inputs must have the same leading dim (time): input 0 has {length} steps, "
                f"input {place} has {inputs[place].shape[0]}"
            )
    return length


def call_core(
    core: Callable[..., Any],
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    static: Sequence[Any],
    num_outputs: int | None,
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """One step: outputs and new states, after a check of their count."""
    return checked_results(core, core(*inputs, *states, *static), len(states), num_outputs)


def checked_results(
    core: Callable[..., Any], results: Any, num_states: int, num_outputs: int | None
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """What a core returned as outputs and new states, after a check of their count."""
    if isinstance(results, Tensor):
        results = (results,)
    elif not isinstance(results, (tuple, list)):
        raise TypeError(
            "flexsn: the core must return a tensor, or a tuple or list of tensors, found "
            f"{type(results).__name__} from {in_words(core)}; return (*outputs, *new_states)"
        )
    for place, result in enumerate(results):
        if not isinstance(result, Tensor):
            raise TypeError(
                f"flexsn: result {place} of the core must be a tensor, found {type(result).__name__} from "
                f"{in_words(core)}; return (*outputs, *new_states), all of them tensors"
            )
    found = len(results) - num_states
    if found < 0 or (num_outputs is not None and found != num_outputs):
        outputs = "" if num_outputs is None else f"{num_outputs} outputs and "
        raise ValueError(
            f"flexsn: the core must return {outputs}{num_states} states, found {len(results)} values from "
            f"{in_words(core)}; return (*outputs, *new_states), or change the counts"
        )
    return tuple(results[:found]), list(results[found:])


def in_words(core: Callable[..., Any]) -> str:
    """What a core is called, and the line where it starts."""
    source = source_of(core)
    return describe(core) if source is None else f"{describe(core)} ({source[0]}:{source[1]})"


def run_steps(
    core: Callable[..., Any],
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    static: Sequence[Any],
    num_outputs: int | None,
    sequences: bool,
) -> tuple[list[Tensor], list[Tensor], list[Tensor] | None]:
    """A sequence of at least one step: output sequences, last states and, if asked for, state sequences."""
    states = list(states)
    steps: list[list[Tensor]] = []
    state_steps: list[list[Tensor]] = []
    for t in range(inputs[0].shape[0]):
        given = states
        outputs, states = call_core(core, [x[t] for x in inputs], given, static, num_outputs)
        steps.append(_apart(outputs, given))
        if sequences:
            state_steps.append(_apart(states, given))
    # A core may hand on a slice of an input; a state must not change with it, nor keep it alive.
    states = [state.clone() if is_view(state) else state for state in states]
    output_seqs = [torch.stack([step[i] for step in steps]) for i in range(len(steps[0]))]
    if not sequences:
        return output_seqs, states, None
    state_seqs = [torch.stack([step[i] for step in state_steps]) for i in range(len(states))]
    return output_seqs, states, state_seqs


def _apart(results: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """The results of a step; one that is a state which the core was given may be written to by the next step."""
    return [result.clone() if any([result is state for state in given]) else result for result in results]


# ---- a state whose graph is gone ---------------------------------------------------------------------------
# A state that is carried from batch to batch keeps the graph of the batch before, which the first backward
# frees. PyTorch then says "trying to backward through the graph a second time", which names no cause. Marks
# on the results of a call and a node on the states that enter the next one let us say what to do.


GRAPH_IS_GONE = (
    "backward has come to a state that was carried over from an earlier call, whose graph was freed by an "
    "earlier backward: detach or reset between batches (functional.detach_net or functional.reset_net), or "
    "keep the graph with retain_graph=True"
)


class Visit:
    """Whether backward has come to the results of one call."""

    def __init__(self) -> None:
        self.seen = False
        # A checkpoint hands out what it saved once: to look whether it is freed would take it away.
        self.saved_by_others = has_saved_tensors_hooks()

    def mark(self, _grad: Tensor) -> None:
        self.seen = True


def watched(results: Sequence[Tensor]) -> Visit:
    """Marks the results of a call, so that a later backward through its states can tell what is wrong."""
    visit = Visit()
    for result in results:
        if result.grad_fn is not None:
            result.register_hook(visit.mark)
    return visit


class Carried(torch.autograd.Function):
    """A state as it is; its gradient goes on only into a graph that is still there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(state: Tensor, visit: Visit) -> Tensor:
        return state.clone()  # a core may write to it, which torch allows in no view that a function made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Visit], output: Tensor) -> None:
        ctx.visit = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        visit = ctx.visit
        if visit.seen and not visit.saved_by_others and was_freed(ctx.next_functions[0][0], type(ctx)):
            raise RuntimeError(GRAPH_IS_GONE)
        return grad, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _visit: None) -> Tensor:
        return tangent.clone()
