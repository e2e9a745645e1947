"""Scans as torch's own loops, whose compiled code does not grow with the number of steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._scan_operator import Call, Core, OutputTemplateSpecs, scan
from ._torch import promise, torch_scan, torch_while_loop
from .eager import run_steps

Results = tuple[list[Tensor], list[Tensor], list[Tensor] | None]


def scan_available() -> bool:
    """Is there a scan in this torch?"""
    return torch_scan is not None


def while_loop_available() -> bool:
    """Is there a while_loop in this torch that stacks what it carries?"""
    return torch_while_loop is not None


def by_scan(call: Call, sequences: bool) -> Results:
    """Outputs, last states and, if asked for, state sequences, by torch's scan."""
    if torch_scan is None:
        raise RuntimeError("torch's scan is not available in this torch; use eager_scan")
    num_states = len(call.states)
    # torch wants something to carry, whose layout stays as it is, and some result.
    carried = [state.contiguous() for state in call.states] or [call.inputs[0].new_zeros(())]

    def combine(states: list[Tensor], inputs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        outputs, new_states = call.step(inputs, states[:num_states])
        rows = [state.clone() for state in new_states] if sequences else []
        carry = [state.contiguous() for state in new_states] or [states[0].clone()]
        return carry, [*outputs, *rows, inputs[0].new_zeros(())]

    last, rows = torch_scan(combine, carried, call.inputs)
    num_outputs = len(rows) - 1 - (num_states if sequences else 0)
    state_seqs = list(rows[num_outputs:-1]) if sequences else None
    return list(rows[:num_outputs]), list(last[:num_states]), state_seqs


def by_while_loop(call: Call, sequences: bool) -> Results:
    """The same by torch's while_loop, which copies each row once or twice."""
    if torch_while_loop is None:
        raise RuntimeError("torch's while_loop is not available in this torch; use eager_scan")
    length = call.length
    # What is carried has shapes from the start, so a first step is done beside the loop; compilers drop it.
    # Steps get copies, which they may write to.
    first = [x[0].clone() for x in call.inputs]
    outputs, new_states = call.step(first, [state.clone() for state in call.states])
    if any([result.requires_grad for result in (*outputs, *new_states)]):
        raise RuntimeError(
            "a scan by torch's while_loop has no gradients; run it under torch.no_grad(), or use flex_sn_scan"
        )
    num_outputs = len(outputs)
    states = [state.contiguous().clone() for state in call.states]

    def more(t: Tensor, *_: Tensor) -> Tensor:
        return t < length

    def body(t: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
        at = t.reshape(1)
        inputs = [x.index_select(0, at).squeeze(0) for x in call.inputs]
        outputs, new_states = call.step(inputs, [state.clone() for state in carried[num_outputs:]])
        return (t + 1, *[result.contiguous() for result in (*outputs, *new_states)])

    start = torch.zeros((), dtype=torch.int64, device=call.inputs[0].device)
    empty = [torch.empty_like(output, memory_format=torch.contiguous_format) for output in outputs]
    _, *stacked = torch_while_loop(more, body, (start, *empty, *states), ())
    rows = []
    for result in stacked:
        promise(result.shape[0] == length)  # which a compiler does not know
        rows.append(result.view(length, *result.shape[1:]))
    last = [sequence[-1].clone() for sequence in rows[num_outputs:]]
    return rows[:num_outputs], last, rows[num_outputs:] if sequences else None


def lowered(name: str, run: Callable[[Call, bool], Results], sequences: bool) -> Callable[..., Any]:
    """A scan of the seed's signature that runs as one of torch's loops."""

    def explained(call: Call, sequences: bool) -> Results:
        try:
            return run(call, sequences)
        except RuntimeError:
            # torch hides what a core raises; a plain step raises it again.
            call.step([x[0].clone() for x in call.inputs], [state.clone() for state in call.states])
            raise

    def lowered_scan(
        core_fn: Core,
        num_inputs: int,
        num_states: int,
        num_outputs: int,
        *flat_args: Tensor,
        output_template_specs: OutputTemplateSpecs | None = None,
    ) -> tuple[Tensor, ...]:
        call = Call.of(name, core_fn, num_inputs, num_states, num_outputs, flat_args)
        if call.length == 0:
            states = call.empty_sequences() if sequences else [state.clone() for state in call.states]
            return (*call.empty_outputs(output_template_specs), *states)
        runs = run if torch.compiler.is_dynamo_compiling() else explained
        outputs, last, state_seqs = runs(call, sequences)
        return (*outputs, *(state_seqs if sequences else last))

    lowered_scan.__name__ = lowered_scan.__qualname__ = name
    return lowered_scan


# ---- the backend "hop" -------------------------------------------------------------------------------------

#: set to 1, these run compiled scans without gradients as torch's own loops; they are read at each call
WHILE_LOOP_SWITCH = "SJ_ENABLE_EXPERIMENTAL_LOWERABLE_WHILE_LOOP"
SCAN_SWITCH = "SJ_ENABLE_EXPERIMENTAL_LOWERABLE_SCAN"


def run_scan(call: Call, sequences: bool) -> Results:
    """Outputs, last states and, if asked for, state sequences of at least one step, as the switches say."""
    if torch.compiler.is_dynamo_compiling() and not torch.is_grad_enabled():
        if os.environ.get(WHILE_LOOP_SWITCH) == "1" and while_loop_available():
            return by_while_loop(call, sequences)
        if os.environ.get(SCAN_SWITCH) == "1" and scan_available():
            return by_scan(call, sequences)
    if not sequences:
        return run_steps(call.core, call.inputs, call.states, call.lifted, call.num_outputs, False)
    outputs, state_seqs = scan(call)
    # The states must not keep the sequences alive, nor change with them.
    return outputs, [sequence[-1].clone() for sequence in state_seqs], state_seqs
