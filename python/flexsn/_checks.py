"""What is checked when a neuron is made: its counts, its examples, and one step of its core."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._reach import device_of
from ._torch import has_memory, has_own_functions, run_without_data
from ._unchanged import Unchanged
from .eager import checked_results, in_words


class Counts(NamedTuple):
    """How many inputs, states and outputs a core has; None: not known yet."""

    inputs: int | None
    states: int
    outputs: int | None

    @staticmethod
    def of(
        owner: str,
        core: Any,
        num_inputs: int | None,
        num_states: int | None,
        num_outputs: int | None,
        example_inputs: Sequence[Tensor] | None,
        num_static: int,
    ) -> Counts:
        if not callable(core):
            raise TypeError(
                f"{owner}: core must be callable, found {type(core).__name__}; give a function or a module"
            )
        if isinstance(core, type) and issubclass(core, nn.Module):
            raise TypeError(
                f"{owner}: core must be callable on tensors, found the class {core.__name__}; give a "
                f"module, {core.__name__}(...)"
            )
        if num_states is None:
            raise TypeError(
                f"{owner}: num_states is required. It cannot be told from the core: with three arguments and "
                "three results there may be one, two or three states; say for example num_states=1"
            )
        given = {"num_inputs": num_inputs, "num_states": num_states, "num_outputs": num_outputs}
        for name, count in given.items():
            if count is None:
                continue
            if not isinstance(count, int) or isinstance(count, bool):
                raise TypeError(f"{owner}: {name} must be an int, found {type(count).__name__}")
            if count < 0:
                raise ValueError(f"{owner}: {name} must not be negative, found {count}")
        # A decorator may take other arguments than what it wraps: then the counts that are given stand.
        taken = _arguments_by_signature(core, follow_wrapped=num_inputs is None)
        if num_inputs is None:
            if taken is not None:
                num_inputs = taken - num_states - num_static
            elif example_inputs is not None:
                num_inputs = len(example_inputs) - num_states
            if num_inputs is not None and num_inputs < 0:
                raise ValueError(
                    f"{owner}: the core {in_words(core)} must take {num_states} states and {num_static} "
                    "static inputs beside its inputs, found "
                    f"{num_inputs + num_states + num_static} arguments; change num_states or the core"
                )
        elif taken is not None and taken != num_inputs + num_states + num_static:
            raise ValueError(
                f"{owner}: the core {in_words(core)} must take {num_inputs} inputs, {num_states} states and "
                f"{num_static} static inputs, found {taken} arguments; change the counts or the core"
            )
        return Counts(num_inputs, num_states, num_outputs)


def _arguments_by_signature(core: Callable[..., Any], follow_wrapped: bool) -> int | None:
    """How many arguments a core takes, where its signature leaves no choice."""
    try:
        parameters = inspect.signature(
            core.forward if isinstance(core, nn.Module) else core, follow_wrapped=follow_wrapped
        ).parameters.values()
    except (TypeError, ValueError):
        return None
    count = 0
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            if parameter.default is not parameter.empty:
                return None
            count += 1
        elif parameter.kind is parameter.VAR_POSITIONAL:
            return None
    return count


def check_requires_grad(owner: str, requires_grad: Sequence[bool] | None, counts: Counts) -> None:
    if requires_grad is None or counts.inputs is None:
        return
    if len(requires_grad) != counts.inputs + counts.states:
        raise ValueError(
            f"{owner}: requires_grad must have the same length as inputs and states together, expected "
            f"{counts.inputs + counts.states}, found {len(requires_grad)}; or leave it out"
        )


def output_templates(
    example_outputs: Sequence[Tensor] | None, num_outputs: int | None
) -> tuple[tuple[torch.Size, torch.dtype], ...] | None:
    """Shapes and types of one step of the outputs; the device is that of a call's inputs."""
    if example_outputs is None:
        return None
    if num_outputs is not None and len(example_outputs) != num_outputs:
        raise ValueError(
            f"FlexSN: expected {num_outputs} example output tensors in example_outputs, found "
            f"{len(example_outputs)}"
        )
    for place, example in enumerate(example_outputs):
        if not isinstance(example, Tensor):
            found = type(example).__name__
            raise TypeError(f"FlexSN: example_outputs[{place}] must be a tensor, found {found}")
    return tuple([(example.shape, example.dtype) for example in example_outputs])


def check_scan(
    owner: str,
    core: Callable[..., Any],
    counts: Counts,
    example_inputs: Sequence[Tensor] | None,
    static: Sequence[Any],
    example_outputs: Sequence[Tensor] | None,
) -> Counts:
    """Checks that a core can run as one kernel, by one step on examples; counts with what that step told."""
    if counts.inputs is None:
        return counts
    if counts.inputs == 0:
        raise ValueError(f"{owner}: a fused sequence needs at least one input, whose leading dim is time")
    expected = counts.inputs + counts.states
    if example_inputs is None:
        examples = [torch.zeros(1, device=device_of(core, static)) for _ in range(expected)]
    else:
        examples = _checked_examples(owner, example_inputs, expected)
    results = _one_step(owner, core, counts, examples, static, invented=example_inputs is None)
    if results is not None and counts.outputs is None:
        counts = counts._replace(outputs=len(results) - counts.states)
    for place, template in enumerate(example_outputs or ()):
        like = examples[0] if results is None else results[place]
        if template.shape != like.shape or template.dtype != like.dtype:
            raise ValueError(
                f"{owner}: example_outputs[{place}] must be like output {place} of one step on the "
                "example_inputs (float32 of shape (1,) where those are left out), expected "
                f"{_in_words(like)}, found {_in_words(template)}"
            )
    return counts


def check_dense(role: str, tensors: Sequence[Tensor]) -> None:
    """Kernels read numbers that lie in memory, all of a tensor's size."""
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            continue  # said elsewhere
        kind = _not_dense(tensor)
        if kind is not None:
            found, remedy = kind
            raise TypeError(f"flexsn: {role} {place} must be dense, found a {found}; {remedy}")


def _not_dense(tensor: Tensor) -> tuple[str, str] | None:
    if tensor.is_nested:
        return "nested tensor", "pad it, for example with torch.nested.to_padded_tensor"
    if type(tensor).__name__ == "MaskedTensor":
        return "masked tensor", "fill it, for example with .to_tensor(0.0)"
    if tensor.is_quantized:
        return "quantized tensor", "use .dequantize()"
    if tensor.layout != torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} tensor", "use .to_dense()"
    if type(tensor) in (Tensor, nn.Parameter) and not has_memory(tensor):
        return "tensor whose memory was freed (its storage is of size 0)", "make it anew"
    return None


def check_plain(role: str, tensors: Sequence[Tensor]) -> None:
    """Kernels compute what functions on plain tensors give, also where a class of tensors says otherwise."""
    for place, tensor in enumerate(tensors):
        if has_own_functions(type(tensor)):
            kind = type(tensor).__name__
            raise TypeError(
                f"flexsn: {role} {place} is a {kind}, whose __torch_function__ decides what functions on it "
                "give, which a kernel does not ask; give its plain numbers as "
                '.as_subclass(torch.Tensor), or use backend="torch"'
            )


def check_step_shape(states: Sequence[Tensor], shape: Sequence[int]) -> None:
    """States that a kernel is to go on from have the shape of one step."""
    for place, state in enumerate(states):
        if state.shape != shape:
            raise ValueError(
                f"flexsn: state {place} must have shape {list(shape)}, that of one step of the inputs, found "
                f"{list(state.shape)}; call reset() before a batch of another shape, or use "
                'backend="torch", which takes states of other shapes'
            )


def _checked_examples(owner: str, example_inputs: Sequence[Tensor], expected: int) -> list[Tensor]:
    """Copies of the examples, so that a core that works in place leaves the user's alone."""
    if len(example_inputs) != expected:
        raise ValueError(
            f"{owner}: example_inputs must hold one tensor for each input and state, expected {expected}, "
            f"found {len(example_inputs)}"
        )
    for place, example in enumerate(example_inputs):
        if not isinstance(example, Tensor):
            found = type(example).__name__
            raise TypeError(f"{owner}: example_inputs[{place}] must be a tensor, found {found}")
        first = example_inputs[0]
        if example.numel() != first.numel():
            raise ValueError(
                f"{owner}: example_inputs must all have the same number of elements: tensor 0 has "
                f"{first.numel()}, tensor {place} has {example.numel()}"
            )
        if example.device != first.device:
            raise ValueError(
                f"{owner}: example_inputs must all be on one device: tensor 0 is on {first.device}, "
                f"tensor {place} on {example.device}"
            )
    return [example.detach().clone() for example in example_inputs]


def _step_that_nobody_asked_for(
    core: Callable[..., Any], examples: Sequence[Tensor], static: Sequence[Any]
) -> Any:
    """What the core returns, and nothing of it is left behind in what it reaches."""
    before = Unchanged(core)
    try:
        return run_without_data(core, examples, static)
    finally:
        before.restore()


def _one_step(
    owner: str,
    core: Callable[..., Any],
    counts: Counts,
    examples: list[Tensor],
    static: Sequence[Any],
    invented: bool,
) -> list[Tensor] | None:
    """What the core returns for the examples, checked; None where it does not run on invented ones."""
    shape, device = examples[0].shape, examples[0].device
    with torch.no_grad():
        try:
            if invented:
                returned = _step_that_nobody_asked_for(core, examples, static)
            else:
                returned = core(*examples, *static)
        except Exception:
            # Nobody promised that the core takes one float32 element; the first call will tell.
            if invented:
                return None
            raise
    outputs, new_states = checked_results(core, returned, counts.states, counts.outputs)
    results = [*outputs, *new_states]
    if invented:
        return results
    for place, result in enumerate(results):
        if result.shape != shape:
            raise ValueError(
                f"{owner}: result {place} of the core must have the shape of the example inputs, expected "
                f"{tuple(shape)}, found {tuple(result.shape)}"
            )
        if result.device != device:
            raise ValueError(
                f"{owner}: result {place} of the core must be on the device of the example inputs, expected "
                f"{device}, found {result.device}"
            )
    return results


def _in_words(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
