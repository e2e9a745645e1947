"""Exported Triton modules beside the interpreter: loads them, makes data for a neuron, compares all bits."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

import flexsn  # noqa: F401  (loads the operators)

ops = torch.ops.flexsn
DTYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), float("-inf"), float("nan"), 1e-40, -3e-45, 1e30, 65504.0)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def load(code: str, folder: pathlib.Path, name: str, *, interpret: bool = True) -> types.ModuleType:
    """The module of a text; Triton reads the source of kernels from a file."""
    path = folder / f"{name}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    with environment(TRITON_INTERPRET="1" if interpret else "0"):
        spec.loader.exec_module(module)
    return module


def texts_of(*words: str) -> list[tuple[str, str]]:
    """What flexsn_neuron_texts prints: names and texts."""
    program = os.environ.get("FLEXSN_NEURON_TEXTS")
    if not program:
        return []
    printed = subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout
    # Limits of parameters are not the kernels' business.
    printed = re.sub(r"^(  param .*) in \[.*\]$", r"\1", printed, flags=re.MULTILINE)
    parts = re.split(r"^== (.*)\n", printed, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2]))


# ---- data --------------------------------------------------------------------------------------------------


class Param(NamedTuple):
    """What a text says of a parameter."""

    dtype: torch.dtype
    per_step: bool


def params_of(text: str) -> list[Param]:
    found = []
    for line in text.splitlines():
        if line.split()[:1] != ["param"]:
            continue
        type_name, rest = re.search(r": (\w+)(.*)$", line).groups()
        found.append(Param(DTYPES[type_name], "per_step" in rest))
    return found


def random_tensor(
    shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator, edges: float = 0.15
) -> Tensor:
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    chosen = torch.tensor(EDGES, dtype=torch.float64)[
        torch.randint(len(EDGES), tuple(shape), generator=generator)
    ]
    values = torch.where(torch.rand(shape, generator=generator) < edges, chosen, values)
    if dtype.is_floating_point:
        return values.to(dtype)
    whole = (values * 20).nan_to_num(0, 2e9, -2e9).clamp(-(2**31), 2**31 - 1).to(torch.int64)
    return whole.to(dtype) if dtype is torch.int32 else (whole & 255).to(dtype)


def random_param(
    param: Param, T: int, step: Sequence[int], generator: torch.Generator, edges: float
) -> Tensor:
    """One of the shapes that broadcast to the step."""
    keep = torch.rand(len(step), generator=generator) < 0.5
    shape = [size if kept else 1 for size, kept in zip(step, keep)]
    drop = int(torch.randint(len(step) + 1, (), generator=generator))
    while drop and shape and shape[0] == 1:
        shape, drop = shape[1:], drop - 1
    shape = [T, *shape] if param.per_step else shape
    return random_tensor(shape, param.dtype, generator, edges)


class Data(NamedTuple):
    inputs: list[Tensor]
    states: list[Tensor]  #: empty: initial values
    params: list[Tensor]


def data_of(
    text: str,
    T: int,
    step: Sequence[int],
    generator: torch.Generator,
    edges: float = 0.15,
    elided: bool = False,
) -> Data:
    inputs, states, _, _ = ops.signature(text)
    return Data(
        [random_tensor((T, *step), DTYPES[name], generator, edges) for name in inputs],
        [] if elided else [random_tensor(step, DTYPES[name], generator, edges) for name in states],
        [random_param(param, T, step, generator, edges) for param in params_of(text)],
    )


# ---- comparison --------------------------------------------------------------------------------------------

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """A NaN equals every NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
    if a.dtype.is_floating_point:
        nan = a.isnan()
        if not torch.equal(nan, b.isnan()):
            return False
        a, b = a.masked_fill(nan, 0.0), b.masked_fill(nan, 0.0)
    bits = _BITS[a.element_size()]
    return torch.equal(a.view(bits), b.view(bits))


def module_arguments(module: Any, data: Data, states: int) -> tuple[list[Any], dict[str, Tensor]]:
    """How the functions of a module take them: parameters by name."""
    import inspect

    names = list(inspect.signature(module.inference).parameters)[len(data.inputs) + states :]
    by_name = dict(zip([name for name in names if name != "first_step"], data.params))
    return [*data.inputs, *(data.states or [None] * states)], by_name


def neuron_of(code: str) -> str:
    """The name of a module's own function, which is the last."""
    return re.findall(r"^def (\w+)", code, flags=re.MULTILINE)[-1]


class Comparison:
    """A module beside the interpreter on the same data; `wrong` says what has other bits."""

    def __init__(self, text: str, module: Any, neuron: str, data: Data, device: str = "cpu") -> None:
        self.text, self.module, self.data, self.device = text, module, data, device
        self.neuron = getattr(module, neuron)
        inputs, states, params, outputs = ops.signature(text)
        self.states, self.results = len(states), len(outputs) + len(states)
        places = [
            *range(len(inputs)),
            *(range(len(inputs), len(inputs) + len(states)) if data.states else ()),
        ]
        places += range(len(inputs) + len(states), len(inputs) + len(states) + len(params))
        self.differentiable = set(ops.differentiable(text)) & set(places)
        self.wrong: list[str] = []

    def run(self, sequences: bool, generator: torch.Generator) -> list[str]:
        self.infer(sequences)
        if self.differentiable and hasattr(self.module, "backward"):
            self.train(sequences, generator)
        return self.wrong

    def note(self, what: str, expected: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        for place, (a, b) in enumerate(zip(expected, found, strict=True)):
            if not same_bits(a, b):
                a, b = a.detach().flatten()[:8], b.detach().flatten()[:8]
                self.wrong.append(f"{what} {place}: expected {a}, found {b}")

    def infer(self, sequences: bool) -> None:
        kind = "inference" if sequences else "inference_final_state"
        expected = getattr(ops, kind)(self.text, *self.data)
        moved = Data(*[[tensor.to(self.device) for tensor in group] for group in self.data])
        places, params = module_arguments(self.module, moved, self.states)
        self.note(kind, expected, getattr(self.module, kind)(*places, **params))

    def train(self, sequences: bool, generator: torch.Generator) -> None:
        ours, theirs = (
            Data(
                *[
                    [t.detach().to(at).requires_grad_(t.is_floating_point()) for t in group]
                    for group in self.data
                ]
            )
            for at in ("cpu", self.device)
        )
        op = ops.training if sequences else ops.training_final_state
        try:
            expected = op(self.text, *ours)[: self.results]
        except ValueError as error:
            assert "no output and no state can carry a gradient to what is wanted" in str(error)
            return  # states that are left out may be all that carries one
        places, params = module_arguments(self.module, theirs, self.states)
        found = self.neuron(*places, **params, sequences=sequences)
        self.note(f"training, sequences={sequences},", expected, found)
        carrying = [i for i, result in enumerate(expected) if result.requires_grad]
        if [i for i, result in enumerate(found) if result.requires_grad] != carrying:
            self.wrong.append(f"other results carry gradients than {carrying}")
            return
        if float(torch.rand((), generator=generator)) < 1 / 3:  # some gradients do not arrive
            there = torch.rand(len(carrying), generator=generator) < 0.5
            carrying = [i for i, each in zip(carrying, there.tolist()) if each] or carrying[:1]
        grads = [random_tensor(expected[i].shape, expected[i].dtype, generator, 0.05) for i in carrying]
        gradients = []
        for side, results in ((ours, expected), (theirs, found)):
            leaves = [t for group in side for t in group if t.requires_grad]
            results, arriving = [results[i] for i in carrying], [g.to(leaves[0].device) for g in grads]
            gradients.append(torch.autograd.grad(results, leaves, arriving, allow_unused=True))
        for place, (a, b) in enumerate(zip(*gradients, strict=True)):
            if (a is None) != (b is None):
                self.wrong.append(f"gradient {place}: expected {a}, found {b}")
            elif a is not None:
                self.note(f"gradient, sequences={sequences}, of {place}:", [a], [b])


def without_flexsn(script: str, *arguments: Any, **variables: str) -> str:
    """What a Python prints that cannot import flexsn."""
    blocked = "import sys; sys.modules['flexsn'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + script, *map(str, arguments)],
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
