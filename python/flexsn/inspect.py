"""What flexsn does with a core: explain says what will run, show gives every stage of it, check tries it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ._compare import Comparison, compare
from ._library import ops
from ._locals import random_values
from ._subject import Parameter, Subject, Traced, subject_of
from ._torch import address_of

STAGES = ("ir", "joint", "forward", "backward", "expanded", "plan", "llvm", "asm", "torch")
KINDS = ("inference", "inference_final_state", "forward", "backward")
DTYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64,
    "i32": torch.int32, "int32": torch.int32, "u8": torch.uint8, "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
#: one type for all inputs, or a list with one for each
Types = torch.dtype | str | Sequence[torch.dtype | str]


def dtype_named(dtype: torch.dtype | str, asker: str) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{asker}: dtype must be one of {', '.join(DTYPES)}, found {dtype!r}")
    return DTYPES[dtype]


def _dtypes_of_inputs(subject: Subject, dtype: Types | None, asker: str) -> list[torch.dtype]:
    """The types of a call's inputs: as the caller says, as the module's examples have them, or f32."""
    if dtype is None:
        dtype = [kind for _, kind in subject.examples] if subject.examples else torch.float32
    if isinstance(dtype, (str, torch.dtype)):
        return [dtype_named(dtype, asker)] * subject.num_inputs
    if len(dtype) != subject.num_inputs:
        raise ValueError(
            f"{asker}: dtype must be one type, or a list of one for each of {subject.num_inputs} inputs, found "
            f"{len(dtype)}"
        )
    return [dtype_named(each, asker) for each in dtype]


def _example_arguments(
    subject: Subject,
    T: int | None,
    shape: Sequence[int] | None,
    dtype: Types | None,
    inputs: Sequence[Tensor] | Tensor | None,
    states: Sequence[Tensor] | None,
    usual: tuple[int, tuple[int, ...]],
    asker: str,
    device: torch.device | str | None = None,
) -> tuple[list[Tensor], list[Tensor] | None, int, bool]:
    """Inputs to trace with, states, T, and whether the inputs are the caller's.

    device: where the inputs are to be, by default where the tensors of the subject are.
    """
    if inputs is not None:
        if device is not None:
            raise ValueError(f"{asker}: inputs are on a device already; leave device out")
        if T is not None or shape is not None or dtype is not None:
            raise ValueError(f"{asker}: inputs have T, shape and dtype in them; leave those out")
        inputs = subject.completed([inputs] if isinstance(inputs, Tensor) else inputs)
        if len(inputs) != subject.num_inputs:
            raise ValueError(f"{asker}: expected {subject.num_inputs} inputs, found {len(inputs)}")
        return inputs, None if states is None else list(states), inputs[0].shape[0], True
    if T is None:
        T = usual[0] if subject.steps is None else subject.steps
    shape = usual[1] if shape is None else tuple(shape)
    sizes = (T, *shape)
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or math.prod(sizes) >= 2**63:
        raise ValueError(
            f"{asker}: T and the sizes of shape must be whole numbers of at least 0 and less than 2^63 all "
            f"together, found T={T} and shape={tuple(shape)}"
        )
    # No memory is needed to know what would run.
    if device is None:
        device = states[0].device if states else subject.device()
    dtypes = _dtypes_of_inputs(subject, dtype, asker)
    rows = [torch.zeros((), dtype=d, device=device).expand(T, *shape) for d in dtypes]
    return rows, None if states is None else list(states), T, False


def _traced(
    subject: Subject, inputs: list[Tensor], states: list[Tensor] | None, chosen: bool, asker: str
) -> Traced:
    try:
        return subject.traced(inputs, states)
    except (RuntimeError, ValueError) as error:
        if chosen or not re.search("shape|size|broadcast|channels", str(error)):
            raise
        raise ValueError(
            f"{asker}: {error}; no shape was given, so steps of shape {tuple(inputs[0].shape[1:])} were "
            "tried: give the shape of one step, if the core needs another"
        ) from error


def traced_alone(
    subject: Subject,
    shape: Sequence[int] | None,
    dtype: Types | None,
    inputs: Sequence[Tensor] | Tensor | None,
    states: Sequence[Tensor] | None,
    asker: str,
) -> Traced:
    """The neuron for such arguments, of which there need be none."""
    usual = tuple(subject.examples[0][0]) if subject.examples else (8,)
    examples, states, _, given = _example_arguments(
        subject, None, shape, dtype, inputs, states, (1, usual), asker
    )
    return _traced(subject, examples, states, given or shape is not None, asker)


# ---- explain -----------------------------------------------------------------------------------------------


@dataclass
class Explanation:
    """What calls of a neuron will do; print it, or read its fields."""

    neuron: str
    T: int
    shape: tuple[int, ...]
    operators: dict[str, tuple[str, ...]]
    """By "inference" and "training": the operators of one call."""
    parameters: list[Parameter]
    outside: list[str]
    """Torch code that makes parameters of the kernel, once a call."""
    copies: list[str]
    """What is copied before the kernel runs, of the examples and the parameters."""
    untrainable: str
    """Why there is no training; "" where there is."""
    refused: bool
    """Is a call that wants gradients an error? Else it runs without them."""
    numbers: dict[str, float]
    """Figures of the text by name; for "cuda" also how each kernel is cut and what limits it."""
    saved: list[str]
    recomputed: list[str]
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


def explain(
    neuron: Any,
    T: int | None = None,
    shape: Sequence[int] | None = None,
    dtype: Types | None = None,
    *,
    num_states: int | None = None,
    num_inputs: int | None = None,
    params: Sequence[Any] = (),
    inputs: Sequence[Tensor] | Tensor | None = None,
    states: Sequence[Tensor] | None = None,
    device: torch.device | str | None = None,
) -> Explanation:
    """Says what a call of a neuron does: operators, launches, bytes, copies, what is saved and recomputed.

    neuron: a FlexSN, a FlexSNKernel, a neuron of the library, or a core with `num_states` (and `params`, what
    it takes after the states). T, shape, dtype: of a call, by default 16 steps of 1048576 elements in f32 (a
    list of types has one for each input); or `inputs`, example sequences, of which it then says which are
    copied. states: initial ones; None: those it starts from, which are not read. device: "cpu" or "cuda", whose
    kernels are meant; by default that of the inputs. There need be no GPU to ask about one.
    """
    asker = "flexsn.explain"
    meant = device_meant(device, asker)
    subject = subject_of(neuron, num_inputs, num_states, params, asker)
    usual = (16, (1 << 20,))
    examples, states, T, given = _example_arguments(subject, T, shape, dtype, inputs, states, usual, asker)
    step = tuple(examples[0].shape[1:])
    held = subject.held_states()
    if states is None and held is not None and all(state.shape == step for state in held):
        states = held
    traced = _traced(subject, examples, states, given or shape is not None, asker)
    sequences = subject.keeps_sequences
    wanted = [i for i, x in enumerate(examples) if not given or x.requires_grad]
    first = subject.num_inputs + subject.num_states
    wanted += [first + k for k, parameter in enumerate(traced.parameters) if parameter.gradient]
    if states is not None:
        wanted += [subject.num_inputs + i for i, state in enumerate(states) if state.requires_grad]
    shapes = [list(parameter.shape) for parameter in traced.parameters]
    gpu = _gpu_meant(meant, traced.device)
    text, untrainable, numbers, saved, recomputed = ops.explain(
        traced.text, T, list(step), shapes, states is not None or subject.is_kernel, sequences, sorted(wanted),
        gpu, _entries_at_once(traced, examples if given else [], states, step) if gpu >= 0 else [],
    )  # fmt: skip
    suffix = "" if sequences else "_final_state"
    operators = {"inference": (f"flexsn::inference{suffix}",)}
    if not untrainable:
        operators["training"] = (f"flexsn::training{suffix}", "flexsn::backward")
    found = Explanation(
        subject.name, T, step, operators, traced.parameters, traced.outside,
        _copies(traced, examples if given else [], states), traced.trace.untrainable or untrainable,
        bool(traced.trace.untrainable), numbers, saved, recomputed, text,
    )  # fmt: skip
    found.text = text + "\n" + _in_pytorch(found, subject, given)
    return found


def device_meant(device: torch.device | str | None, asker: str) -> torch.device | None:
    """Whose kernels are meant; None: those of where the inputs are."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):  # a number stands for a GPU, where torch sees one
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f'{asker}: device must be "cpu" or "cuda", found {device}')
    return found


def device_there(device: torch.device | str | None, asker: str) -> torch.device | None:
    """The same of one that tensors are to be on."""
    found = device_meant(device, asker)
    if found is not None and (why := why_not_there(found)):
        raise ValueError(f"{asker}: {why}; leave out device")
    return found


def why_not_there(device: torch.device) -> str:
    """Why no tensor can be on this device; "" where it is there."""
    count = torch.cuda.device_count()
    if device.type != "cuda" or (device.index or 0) < count:
        return ""
    return f"there is no {device} that torch can see, of {count} GPUs"


def _gpu_meant(meant: torch.device | None, inputs: torch.device) -> int:
    """The number of the GPU whose kernels are meant; -1: those of a CPU are."""
    device = meant or inputs
    if device.type != "cuda":
        return -1
    if device.index is None and torch.cuda.is_initialized():  # which asking about a GPU is not to change
        return torch.cuda.current_device()
    return device.index or 0


def _entries_at_once(
    traced: Traced, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, step: tuple[int, ...]
) -> list[int]:
    """How many entries of each argument a GPU can load at once where its rows start: 1, 2 or 4. What there is no
    example of, and what is copied, lies well."""
    first_state = traced.subject.num_inputs
    found = [4] * (first_state + traced.subject.num_states)
    for place, tensor in enumerate(inputs[:first_state]):
        if tensor.numel() != 0 and not _is_input_copied(tensor):
            found[place] = _multiple(tensor, tensor.stride(0) if tensor.shape[0] > 1 else 0)
    for place, (tensor, dtype) in enumerate(zip(states or (), traced.trace.state_dtypes), first_state):
        if not _is_state_copied(tensor, dtype):
            found[place] = _multiple(tensor, 0)
    for tensor in traced.values:
        has_entries = tuple(tensor.shape[tensor.dim() - len(step) :]) == step  # one for each element
        found.append(_multiple(tensor, 0) if has_entries and tensor.is_contiguous() else 4)
    return found


def _is_input_copied(sequence: Tensor) -> bool:
    return sequence.numel() != 0 and not sequence[0].is_contiguous()


def _is_state_copied(state: Tensor, dtype: torch.dtype) -> bool:
    return state.dtype != dtype or not state.is_contiguous()


def _multiple(tensor: Tensor, stride: int) -> int:
    """Of how many entries, up to 4, the places are multiples where rows that are so far apart start."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):  # such as those of compilers, which are nowhere
        return 4
    address, size = address_of(tensor), tensor.element_size()
    return math.gcd(address // size, stride, 4) if address % size == 0 else 1


def _copies(traced: Traced, inputs: Sequence[Tensor], states: Sequence[Tensor] | None) -> list[str]:
    """Which examples and parameters cannot be read where they are."""
    copies, names = [], traced.names
    for name, tensor in zip(names, inputs):
        if _is_input_copied(tensor):
            one = tensor.stride(0) == 0
            size, strides = _bytes(tensor[0] if one else tensor), tensor.stride()[1:]
            copies.append(f"{name}: {size}, as one step of it is not contiguous (strides {strides})")
    for name, tensor, dtype in zip(names[len(inputs) :], states or (), traced.trace.state_dtypes):
        if tensor.dtype != dtype:
            copies.append(f"{name}: converted from {tensor.dtype} to {dtype}, the type that its updates have")
        elif _is_state_copied(tensor, dtype):
            copies.append(f"{name}: {_bytes(tensor)}, as it is not contiguous (strides {tensor.stride()})")
    for parameter, tensor in zip(traced.parameters, traced.values):
        if not tensor.is_contiguous():
            copies.append(
                f"{parameter.name}: {_bytes(tensor)}, again before backward, as it is not contiguous (strides "
                f"{tensor.stride()})"
            )
    return copies


def _bytes(tensor: Tensor) -> str:
    return f"{tensor.numel() * tensor.element_size()} bytes"


#: what calls do where they do not run these kernels, by backend
_INSTEAD = {
    "torch": "calls the core step by step",
    "hop": "calls the core step by step, under torch.compile as one operator",
    "triton_export": "runs the kernels of the Triton module that flexsn.export writes",
}


def _in_pytorch(found: Explanation, subject: Subject, given: bool) -> str:
    lines = ["in PyTorch"]
    if (instead := _INSTEAD.get(subject.backend)) is not None:
        lines.append(f'  it has backend "{subject.backend}", which {instead}; "fused" would run')
    lines.append(f"  without gradients: {', '.join(found.operators['inference'])}")
    if "training" not in found.operators:
        outcome = "an error" if found.refused else "the same"
        lines.append(f"  with gradients: {outcome}, as {found.untrainable}")
    else:
        lines.append(f"  with gradients: {', then '.join(found.operators['training'])}")
    if found.copies:
        lines += ["  copied before the kernel runs", *(f"    {copy}" for copy in found.copies)]
    elif given:
        lines.append("  no input, state or parameter is copied")
    if not given:
        lines.append(
            "  inputs whose steps are contiguous are read where they are, at any distance; others are copied"
        )
    if found.parameters:
        lines.append("  parameters of the kernel")
        for p in found.parameters:
            kind = f"{str(p.dtype).removeprefix('torch.')} {list(p.shape)}"
            gradient = ", with its gradient" if p.gradient else ""
            lines.append(f"    {p.name}: {kind}, from {p.source}{gradient}")
    if found.outside:
        lines.append("  outside the kernel, once a call, as torch code")
        lines += [f"    {line}" for line in found.outside]
    return "\n".join(lines) + "\n"


# ---- show --------------------------------------------------------------------------------------------------


def show(
    neuron: Any,
    what: str = "ir",
    *,
    kind: str | None = None,
    shape: Sequence[int] | None = None,
    dtype: Types | None = None,
    num_states: int | None = None,
    num_inputs: int | None = None,
    params: Sequence[Any] = (),
    inputs: Sequence[Tensor] | Tensor | None = None,
    states: Sequence[Tensor] | None = None,
    device: torch.device | str | None = None,
) -> str:
    """The text of one stage: "torch" (what was traced), "ir" (the step), "joint" (with its gradients),
    "forward" and "backward" (its halves), "expanded" (in exact ops), "plan", "llvm" or "asm".

    kind: of which kernel, for "plan" (by default both of training), "llvm" and "asm" (by default
    "inference_final_state"); one of inference, inference_final_state, forward, backward. What else is given is
    as for `explain`; what training saves, and so "forward", "backward" and "plan", depends on the device.
    """
    asker = "flexsn.show"
    if what not in STAGES:
        raise ValueError(f"{asker}: what must be one of {', '.join(STAGES)}, found {what!r}")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"{asker}: kind must be one of {', '.join(KINDS)}, found {kind!r}")
    if kind is not None and what not in ("plan", "llvm", "asm"):
        raise ValueError(
            f"{asker}: kind chooses a kernel, for plan, llvm and asm; it means nothing for {what!r}"
        )
    meant = device_meant(device, asker)
    if meant is not None and meant.type == "cuda" and what in ("llvm", "asm"):
        raise ValueError(
            f'{asker}: {what} is code for the CPU; for a GPU, flexsn.export(neuron, "cuda") gives the text'
        )
    subject = subject_of(neuron, num_inputs, num_states, params, asker)
    traced = traced_alone(subject, shape, dtype, inputs, states, asker)
    if what == "torch":
        if not traced.trace.listing:
            raise ValueError(
                f"{asker}: {subject.name} is a neuron of the library, whose step is not traced from torch; "
                "'ir' is its first stage"
            )
        return _listing_in_words(traced.trace.listing)
    if what in ("llvm", "asm") or (what == "plan" and not traced.trace.trainable):
        kind = kind or "inference_final_state"
    gpu = (meant or traced.device).type == "cuda"
    return ops.show(traced.text, "step" if what == "ir" else what, kind or "", gpu)


def _listing_in_words(listing: str) -> str:
    """The traced ATen functions, one a line, with the user's line behind."""
    out, count = [], 0
    for line in listing.splitlines():
        word, *fields = line.split("\t")
        if word == "core":
            out.append(f"core {fields[0]}")
        elif word == "value":
            role, name, dtype, shape = fields
            out.append(f"  %{count} = {name} : {dtype}[{shape}]")
            count += 1
        elif word == "node":
            function, dtype, _, shape, file, number, _, *arguments = fields
            given = ", ".join(_argument_in_words(argument) for argument in arguments)
            place = f"  # {file}:{number}" if file else ""
            out.append(f"  %{count} = {function}({given}) : {dtype}[{shape}]{place}")
            count += 1
        elif word == "result":
            out.append(f"  {fields[0]} = {fields[1]}")
    return "\n".join(out) + "\n"


def _argument_in_words(argument: str) -> str:
    name, equals, value = argument.rpartition("=")
    kind, _, rest = value.partition(":")
    words = {"f": lambda: str(float.fromhex(rest)), "b": lambda: str(rest == "1"), "l": lambda: f"[{rest}]"}
    return name + equals + (words.get(kind, lambda: rest)() if rest or kind == "l" else value)


# ---- check -------------------------------------------------------------------------------------------------


@dataclass
class CheckReport:
    """What was tried and what came out; print it, or read its fields."""

    neuron: str
    passed: bool
    checks: list[Comparison]
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


def check(
    neuron: Any,
    T: int | None = None,
    shape: Sequence[int] | None = None,
    dtype: Types | None = None,
    *,
    num_states: int | None = None,
    num_inputs: int | None = None,
    params: Sequence[Any] = (),
    inputs: Sequence[Tensor] | Tensor | None = None,
    states: Sequence[Tensor] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> CheckReport:
    """Tries a neuron: the kernels against the eager loop on random data (or on `inputs` and `states`),
    forward and gradients, and the kernels against the interpreter, bit for bit. device: where the data is, by
    default where the neuron's tensors are.

    Where kernels and eager loop differ, the report names the first step and element, both values, the states
    there, and how far the values that are compared are from their thresholds.
    """
    asker = "flexsn.check"
    device = device_there(device, asker)
    subject = subject_of(neuron, num_inputs, num_states, params, asker)
    usual = (8, (4, 16))
    examples, states, T, given = _example_arguments(
        subject, T, shape, dtype, inputs, states, usual, asker, device
    )
    traced = _traced(subject, examples, states, given or shape is not None, asker)
    generator = torch.Generator().manual_seed(seed)
    if not given:
        examples = [random_values(x.shape, x.dtype, generator).to(x.device) for x in examples]
    if states is None:
        first = examples[0]
        dtypes = traced.trace.state_dtypes
        states = [random_values(first.shape[1:], dtype, generator).to(first.device) for dtype in dtypes]
    beside = subject.comparable()
    if beside is not subject:
        examples = beside.completed(examples)
    checks = compare(beside.traced(examples, states), examples, states, generator)
    for what, passed, detail, left_out in zip(*ops.check(traced.text, seed)):
        checks.append(Comparison(what, passed, detail, left_out))
    passed = all(each.passed for each in checks)
    absent = sum(each.left_out for each in checks)
    wrong = sum(not each.passed for each in checks)
    width = max(len(each.what) for each in checks)
    lines = [f"{subject.name}, T = {T}, steps of shape {list(examples[0].shape[1:])}, seed {seed}"]
    for each in checks:
        detail = each.detail.replace("\n", "\n" + " " * 4)
        result = "left out" if each.left_out else "passed" if each.passed else "FAILED"
        lines.append(f"  {each.what:{width}}  {result}  {detail}")
    summary = f"{len(checks)} checks: " + ("all passed" if passed else f"{wrong} failed")
    lines.append(summary + (f", {absent} left out" if absent else ""))
    return CheckReport(subject.name, passed, checks, "\n".join(lines) + "\n")
