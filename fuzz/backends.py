"""Runs cases of the differential fuzzer by torch's operators and by Triton's interpreter.

It reads lines "torch FILE" and "triton FILE" and answers each with one line: "same", or what differs. FILE
holds a neuron, its data and the bits that the interpreter gave.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import numpy
import torch
from torch import Tensor

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

from triton_modules import DTYPES, Data, load, module_arguments, neuron_of, ops, same_bits  # noqa: E402

UNTRAINABLE = "can carry a gradient to what is wanted"


def tensor(described: dict[str, Any] | None) -> Tensor | None:
    if described is None:
        return None
    data = bytearray(bytes.fromhex(described["bytes"]))
    dtype = DTYPES[described["type"]]
    if not data:
        return torch.empty(described["shape"], dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).clone().reshape(described["shape"])


class Case:
    """What a file says, as tensors in the order of the neuron's text."""

    def __init__(self, path: str) -> None:
        told = json.loads(pathlib.Path(path).read_text())
        self.text: str = told["neuron"]
        self.sequences: bool = told["sequences"]
        groups = ("inputs", "states", "params")
        self.data = Data(*[[tensor(each) for each in told[group]] for group in groups])
        self.results = [tensor(each) for each in told["results"]]
        self.arriving = [tensor(each) for each in told["arriving"]]
        gradients = [tensor(each) for each in told["gradients"]]
        inputs, states = len(told["inputs"]), len(ops.signature(self.text)[1])
        if not told["states"]:  # they start at their initial values, which have no gradient here
            gradients[inputs : inputs + states] = []
        self.gradients = gradients
        self.states = states

    @property
    def trains(self) -> bool:
        return any(g is not None for g in self.arriving) and any(g is not None for g in self.gradients)


def difference(what: str, expected: Sequence[Tensor | None], found: Sequence[Tensor | None]) -> str:
    """In words; "" where there is none. What is not expected may be anything."""
    for place, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a is None:
            continue
        if b is None:
            if torch.count_nonzero(a):
                return f"{what} {place} is missing"
            continue
        a = a.to(b.dtype) if a.is_floating_point() and b.is_floating_point() else a
        if not same_bits(a, b):
            return f"{what} {place}: expected {a.flatten()[:8].tolist()}, found {b.flatten()[:8].tolist()}"
    return ""


def compared(
    case: Case,
    infer: Callable[[Data], Sequence[Tensor]],
    train: Callable[..., Any] | None,
    absent_is_zero: bool = False,
) -> str:
    """`infer` and `train` give the results for data; those of training carry gradients.

    `absent_is_zero`: a gradient that does not arrive at an output counts as zeros, which a sum can see.
    """
    wrong = difference("inference, result", case.results, infer(case.data))
    if wrong or train is None or not case.trains:
        return wrong
    leaves = [t.clone() for group in case.data for t in group]
    for leaf, gradient in zip(leaves, case.gradients, strict=True):
        leaf.requires_grad_(gradient is not None)
    first, second = len(case.data.inputs), len(case.data.inputs) + len(case.data.states)
    try:
        results = train(Data(leaves[:first], leaves[first:second], leaves[second:]))
    except ValueError as error:
        if UNTRAINABLE in str(error):  # states that are left out may be all that carries one
            return ""
        raise
    wrong = difference("training, result", case.results, results)
    carrying = [(r, g) for r, g in zip(results, case.arriving) if g is not None and r.requires_grad]
    outputs = len(results) - case.states
    at_outputs = zip(results[:outputs], case.arriving)
    if absent_is_zero and any(r.requires_grad and g is None for r, g in at_outputs):
        return wrong
    if wrong or not carrying:
        return wrong
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    arriving = [g.to(r.dtype) for r, g in carrying]
    found = torch.autograd.grad([r for r, _ in carrying], wanted, arriving, allow_unused=True)
    return difference("gradient", [g for g in case.gradients if g is not None], found)


def by_torch(case: Case) -> str:
    suffix = "" if case.sequences else "_final_state"
    infer, train = getattr(ops, "inference" + suffix), getattr(ops, "training" + suffix)
    count = len(case.results)  # what follows is saved for backward
    return compared(
        case, lambda data: infer(case.text, *data), lambda data: train(case.text, *data)[:count]
    )


class Triton:
    """Modules that Triton's interpreter runs; their text must lie in files."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.made = 0

    def __call__(self, case: Case) -> str:
        code = ops.export(case.text, "triton", "", case.sequences)
        self.made += 1
        name = f"neuron_{self.made}"
        module = load(code, pathlib.Path(self.folder.name), name)
        module.BLOCKS = {kind: (8, 4) for kind in module.BLOCKS}
        module.SUM_SIZE, module.SEGMENT = 4, 2
        kind = module.inference if case.sequences else module.inference_final_state
        neuron = getattr(module, neuron_of(code))

        def called(function: Callable[..., Any], data: Data, **options: bool) -> Sequence[Tensor]:
            places, params = module_arguments(module, data, case.states)
            return function(*places, **params, **options)

        train = None
        if hasattr(module, "backward"):
            train = lambda data: called(neuron, data, sequences=case.sequences)  # noqa: E731
        try:
            return compared(case, lambda data: called(kind, data), train, absent_is_zero=True)
        finally:
            os.unlink(module.__file__)


def main() -> None:
    backends: dict[str, Callable[[Case], str]] = {"torch": by_torch}
    try:
        import triton  # noqa: F401

        backends["triton"] = Triton()
    except ImportError:
        pass
    torch.set_num_threads(1)
    print("ready", *backends, flush=True)
    for line in sys.stdin:
        stage, path = line.rstrip("\n").split(" ", 1)
        try:
            with numpy.errstate(all="ignore"):
                wrong = backends[stage](Case(path))
        except Exception as error:  # noqa: BLE001  (whatever it is, it is not the expected bits)
            wrong = f"{type(error).__name__}: {error}"
        print(wrong.replace("\n", " ") or "same", flush=True)


if __name__ == "__main__":
    main()
