"""The scan operator: a core called step by step over sequences, as one node of a compiled graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ._reach import describe
from ._torch import ScanOperator, dynamo_takes_scans, is_view
from .eager import call_core, run_steps, sequence_length

Core = Callable[..., Any]
#: shape and type of an output of one step, and where it is not that of input 0 the device
OutputTemplateSpec = tuple[tuple[int, ...], torch.dtype] | tuple[tuple[int, ...], torch.dtype, torch.device]
OutputTemplateSpecs = tuple[OutputTemplateSpec, ...]


#: what a compiled call of `flex_sn_scan` becomes
_operator = ScanOperator("flex_sn_scan")


class FlexSNScan:
    """The scan, of which there is one: `flex_sn_scan`."""

    __name__ = "flex_sn_scan"

    def __call__(
        self,
        core_fn: Core,
        num_inputs: int,
        num_states: int,
        num_outputs: int,
        *flat_args: Tensor,
        output_template_specs: OutputTemplateSpecs | None = None,
    ) -> tuple[Tensor, ...]:
        """Runs `core_fn(*inputs, *states, *lifted) -> (*outputs, *states)` over time.

        flat_args: input sequences [T, ...], initial states, then tensors that every step gets as they are.
        Returns output sequences and state sequences. In a graph of Dynamo it is one node with the step as its
        body; make_fx and what follows Dynamo see T steps. No steps give outputs as `output_template_specs`
        says; a compiled call can do without, as its core is traced.
        """
        call = Call.of("flex_sn_scan", core_fn, num_inputs, num_states, num_outputs, flat_args)
        outputs, sequences = scan(call, output_template_specs)
        return (*outputs, *sequences)


flex_sn_scan = FlexSNScan()


def eager_scan(
    core_fn: Core,
    num_inputs: int,
    num_states: int,
    num_outputs: int,
    *flat_args: Tensor,
    output_template_specs: OutputTemplateSpecs | None = None,
) -> tuple[Tensor, ...]:
    """What `flex_sn_scan` computes, as a plain loop everywhere."""
    call = Call.of("eager_scan", core_fn, num_inputs, num_states, num_outputs, flat_args)
    if call.length == 0:
        return (*call.empty_outputs(output_template_specs), *call.empty_sequences())
    outputs, _, sequences = run_steps(core_fn, call.inputs, call.states, call.lifted, num_outputs, True)
    return (*outputs, *sequences)


def eager_scan_final_state(
    core_fn: Core,
    num_inputs: int,
    num_states: int,
    num_outputs: int,
    *flat_args: Tensor,
    output_template_specs: OutputTemplateSpecs | None = None,
) -> tuple[Tensor, ...]:
    """Like `eager_scan`, with the last states in place of state sequences."""
    call = Call.of("eager_scan_final_state", core_fn, num_inputs, num_states, num_outputs, flat_args)
    if call.length == 0:
        return (*call.empty_outputs(output_template_specs), *[state.clone() for state in call.states])
    outputs, last, _ = run_steps(core_fn, call.inputs, call.states, call.lifted, num_outputs, False)
    return (*outputs, *last)


class Call:
    """The arguments of a scan, checked and told apart."""

    def __init__(
        self,
        core: Core,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        lifted: Sequence[Any],
        num_outputs: int | None,
    ) -> None:
        self.core = core
        self.inputs, self.states, self.lifted = list(inputs), list(states), list(lifted)
        self.num_outputs = num_outputs
        self.length = sequence_length(self.inputs, None)

    @staticmethod
    def of(
        name: str, core: Core, num_inputs: int, num_states: int, num_outputs: int, flat_args: Sequence[Tensor]
    ) -> Call:
        count = num_inputs + num_states
        if num_inputs == 0:
            raise ValueError(f"{name}: there must be an input, whose leading dimension is time")
        if len(flat_args) < count:
            raise ValueError(
                f"{name}: expected at least {count} tensors, {num_inputs} input sequences and {num_states} "
                f"states, found {len(flat_args)}"
            )
        call = Call(core, flat_args[:num_inputs], flat_args[num_inputs:count], flat_args[count:], num_outputs)
        empty_graph = call.length == 0 and isinstance(core, torch.fx.GraphModule)
        if not torch.compiler.is_dynamo_compiling() and not empty_graph:
            _check_arity(name, core, len(flat_args), count)
        return call

    def step(self, inputs: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs and new states of one step."""
        return one_step(self.core, inputs, states, self.lifted, self.num_outputs)

    def empty_outputs(self, specs: OutputTemplateSpecs | None) -> list[Tensor]:
        """What no steps give. The core is not called, but a compiler may trace it."""
        if self.num_outputs == 0:
            return []
        if specs is None and torch.compiler.is_dynamo_compiling():
            # The shapes of a step that is traced and never run.
            steps = [x.new_empty(x.shape[1:]) for x in self.inputs]
            outputs, _ = call_core(self.core, steps, self.states, self.lifted, self.num_outputs)
            return [output.new_empty((0, *output.shape)) for output in outputs]
        if specs is None:
            raise ValueError(
                "a scan of no steps (T == 0) needs output_template_specs, a (shape, dtype) of one step for "
                "each output, as the core is not called"
            )
        if self.num_outputs is not None and len(specs) != self.num_outputs:
            raise ValueError(
                f"expected {self.num_outputs} output template specs, one for each output, found {len(specs)}"
            )
        first = self.inputs[0]
        return [
            first.new_empty(
                (0, *spec[0]), dtype=spec[1], device=spec[2] if len(spec) == 3 else first.device
            )
            for spec in specs
        ]

    def empty_sequences(self) -> list[Tensor]:
        return [state.new_empty((0, *state.shape)) for state in self.states]


def one_step(
    core: Core,
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    lifted: Sequence[Any],
    num_outputs: int | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and new states. None is an argument, a view or there twice, as torch's loops want it."""
    outputs, new_states = call_core(core, inputs, states, lifted, num_outputs)
    results: list[Tensor] = []
    for result in (*outputs, *new_states):
        others = (*inputs, *states, *lifted, *results)
        if is_view(result) or any([result is other for other in others]):
            result = result.clone()
        results.append(result)
    return results[: len(outputs)], results[len(outputs) :]


def scan(call: Call, specs: OutputTemplateSpecs | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Output sequences and state sequences of a call; one node where Dynamo traces."""
    if call.length == 0:
        return call.empty_outputs(specs), call.empty_sequences()
    if not torch.compiler.is_dynamo_compiling() or not dynamo_takes_scans:
        outputs, _, sequences = run_steps(
            call.core, call.inputs, call.states, call.lifted, call.num_outputs, True
        )
        return outputs, sequences
    num_inputs, num_states = len(call.inputs), len(call.states)
    # Copies, which nothing else is or shares memory with: a tensor may be given twice, or captured too.
    steps = [x[0].clone() for x in call.inputs]
    states = [state.clone() for state in call.states]

    def body(*operands: Tensor) -> tuple[Tensor, ...]:
        steps, states = operands[:num_inputs], operands[num_inputs : num_inputs + num_states]
        lifted = operands[num_inputs + num_states :]
        outputs, new_states = one_step(call.core, steps, states, lifted, call.num_outputs)
        return tuple([result.expand((call.length, *result.shape)) for result in (*outputs, *new_states)])

    results = _operator(
        body, *steps, *states, *call.lifted, inputs=call.inputs, steps=steps, states=states
    )
    # They are, but the compiler has seen the body's.
    results = [result.contiguous() for result in results]
    return results[: len(results) - num_states], results[len(results) - num_states :]


def _check_arity(name: str, core: Core, found: int, count: int) -> None:
    """Can the core be called with so many tensors? One whose signature is not known is taken at its word."""
    try:
        signature = inspect.signature(core.forward if isinstance(core, nn.Module) else core)
    except (TypeError, ValueError):
        return
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    unlimited = any([p.kind is p.VAR_POSITIONAL for p in parameters])
    if keywords:
        raise ValueError(
            f"{name}: {describe(core)} must take tensors by position, found a required keyword {keywords[0]}"
        )
    if found < len(needed) or (found > len(positional) and not unlimited):
        takes = f"at least {len(needed)}" if unlimited else f"{len(positional)}"
        raise ValueError(
            f"{name}: expected {count} tensors and those that the core takes beside them; {describe(core)} "
            f"takes {takes}, found {found}"
        )
