"""The seed's builders: kernels of a core as objects that can be called, registered and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._library import ops
from .._reach import describe
from .._trace import Trace
from ..fused import Fused, differentiable
from .info import FlexSNInfo, info_of_names

__all__ = ["build_inference_final_state_kernel", "build_inference_kernel", "build_training_kernels"]

Core = Callable[..., Any]


class NeuronKernel:
    """A kernel of one kind. It runs as one torch operator that names the neuron by its text.

    "inference", "inference_final_state" and "training" take input sequences, then initial states, which may
    be left out together and are zeros then. "training" returns outputs, states, then what backward reads, its
    own arguments last. "backward" takes gradients of outputs and states (None: there is none) and all that
    "training" returned; it returns gradients of inputs and states, or of as many as `arguments` are.
    """

    def __init__(self, kind: str, fused: Fused, text: str) -> None:
        self.kind = kind
        #: the neuron for tensors like the examples; for others it is found when they come
        self.text = text
        self._fused = fused

    def __repr__(self) -> str:
        return f"NeuronKernel({self.kind} of {describe(self._fused.core)})"

    def __call__(
        self, *tensors: Tensor | None, arguments: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, ...]:
        if self.kind == "backward":
            count = self._fused.num_outputs + self._fused.num_states
            return tuple(self.backward(tensors[:count], tensors[count:], arguments))
        return tuple(self.forward(self.kind, tensors))

    def __deepcopy__(self, memo: dict[int, Any]) -> NeuronKernel:
        """Itself: it holds the core and nothing that a call changes."""
        return self

    def forward(self, operator: str, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Runs an operator on input sequences and initial states."""
        inputs, given = self._split(arguments)
        trained = operator.startswith("training")
        if trained and not given:  # what backward reads has a place for them
            given = [inputs[0].new_zeros(inputs[0].shape[1:]) for _ in range(self._fused.num_states)]
        found, states, params = self._fused.ready(inputs, given or None)
        run = getattr(ops, operator).default
        if not trained:
            return run(found.text, inputs, states, params)
        results = run(found.text, inputs, states, params, differentiable(found.text))
        return [*results, *[argument.detach() for argument in (*inputs, *given)]]

    def backward(
        self,
        grads: Sequence[Tensor | None],
        results: Sequence[Tensor],
        templates: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Gradients of inputs and states, or of as many as there are templates; zeros of those without."""
        count = self._fused.num_inputs + self._fused.num_states
        if len(results) < count:
            raise ValueError(
                f"flexsn: backward takes all that the training kernel returned, found {len(results)} tensors"
            )
        read = results[len(results) - count :]
        inputs, given = self._split(read)
        found, states, params = self._fused.ready(inputs, given or None)
        if templates is None:
            templates = read
        wanted = differentiable(found.text)
        now = [place for place in wanted if place < len(templates)]
        gradients: list[Tensor] = []
        if now and any([grad is not None for grad in grads]):
            shape = list(inputs[0].shape)
            # Last states have the shape of a step.
            first = results[found.num_outputs] if found.num_states else inputs[0]
            sequences = first.dim() == len(shape)
            own = list(results[: len(results) - count])
            gradients = ops.backward.default(
                found.text, list(grads), inputs, states, params, own, shape, wanted, now, sequences, ""
            )
        by_place = dict(zip(now, gradients))
        return [
            by_place[place].to(template.dtype) if place in by_place else torch.zeros_like(template)
            for place, template in enumerate(templates)
        ]

    def _split(self, arguments: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        inputs, states = self._fused.num_inputs, self._fused.num_states
        if len(arguments) not in (inputs, inputs + states):
            raise ValueError(
                f"flexsn: the kernel takes {inputs} input sequences and {states} initial states, or the "
                f"inputs alone, found {len(arguments)} tensors"
            )
        return list(arguments[:inputs]), list(arguments[inputs:])


def build_inference_kernel(
    core_fn: Core,
    num_inputs: int,
    num_states: int,
    num_outputs: int,
    example_inputs: Sequence[Tensor] | None = None,
) -> tuple[NeuronKernel, FlexSNInfo]:
    """The kernel that returns output sequences and state sequences.

    `example_inputs` are tensors of one step, inputs then states; None: float32 tensors of one element.
    """
    return _inference("inference", core_fn, num_inputs, num_states, num_outputs, example_inputs)


def build_inference_final_state_kernel(
    core_fn: Core,
    num_inputs: int,
    num_states: int,
    num_outputs: int,
    example_inputs: Sequence[Tensor] | None = None,
) -> tuple[NeuronKernel, FlexSNInfo]:
    """The kernel that returns output sequences and the last states."""
    return _inference("inference_final_state", core_fn, num_inputs, num_states, num_outputs, example_inputs)


def build_training_kernels(
    core_fn: Core,
    num_inputs: int,
    num_states: int,
    num_outputs: int,
    example_inputs: Sequence[Tensor] | None = None,
    requires_grad: Sequence[bool] | None = None,
) -> tuple[NeuronKernel, NeuronKernel, FlexSNInfo]:
    """The forward and the backward kernel of training.

    requires_grad: for each input and state, whether a gradient may be asked for; None: all that can have one.
    """
    fused, found, examples = _traced(
        core_fn, num_inputs, num_states, num_outputs, example_inputs, requires_grad
    )
    learns = requires_grad is None or any(requires_grad) or bool(found.captured)
    if not found.trainable or not learns:
        reason = f": {found.untrainable}" if found.untrainable else ""
        raise ValueError(
            f"{describe(core_fn)} has no training kernels, as none of its outputs and new states carries a "
            f"gradient to its inputs, states or parameters{reason}"
        )
    forward = NeuronKernel("training", fused, found.text)
    with torch.no_grad():
        returned = len(forward(*[torch.zeros_like(example) for example in examples]))
    names = _returns(found)
    arguments = _arguments(found)
    saved = [f"saved{i}" for i in range(returned - len(names) - len(arguments))]
    info = info_of_names(arguments, [*names, *names, *saved, *arguments], num_inputs, num_states, num_outputs)
    return forward, NeuronKernel("backward", fused, found.text), info


def _inference(kind: str, core_fn: Core, *counts_and_examples: Any) -> tuple[NeuronKernel, FlexSNInfo]:
    fused, found, _ = _traced(core_fn, *counts_and_examples)
    info = info_of_names(
        _arguments(found), _returns(found), found.num_inputs, found.num_states, found.num_outputs
    )
    return NeuronKernel(kind, fused, found.text), info


def _traced(
    core_fn: Core,
    num_inputs: int,
    num_states: int,
    num_outputs: int,
    example_inputs: Sequence[Tensor] | None,
    requires_grad: Sequence[bool] | None = None,
) -> tuple[Fused, Trace, list[Tensor]]:
    """The core traced on examples, and those as a call takes them."""
    count = num_inputs + num_states
    examples = [torch.zeros(1) for _ in range(count)] if example_inputs is None else list(example_inputs)
    if len(examples) != count:
        raise ValueError(
            f"example_inputs must hold one tensor for each of {num_inputs} inputs and {num_states} states, "
            f"expected {count}, found {len(examples)}"
        )
    if requires_grad is not None and len(requires_grad) != count:
        raise ValueError(
            "requires_grad must have the same length as inputs and states together, expected "
            f"{count}, found {len(requires_grad)}"
        )
    arguments = [example.detach() for example in examples]
    arguments[:num_inputs] = [example.unsqueeze(0) for example in arguments[:num_inputs]]
    fused = Fused(core_fn, num_inputs, num_states, num_outputs, requires_grad)
    found = fused.trace_of(arguments[:num_inputs], arguments[num_inputs:], ())
    return fused, found, arguments


def _arguments(found: Trace) -> list[str]:
    return [f"input{i}" for i in range(found.num_inputs)] + [f"state{i}" for i in range(found.num_states)]


def _returns(found: Trace) -> list[str]:
    return [f"output{i}" for i in range(found.num_outputs)] + [f"next{i}" for i in range(found.num_states)]
