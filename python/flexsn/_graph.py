"""Steps of C++ op by op in PyTorch: what runs without a kernel, and what a user's surrogate is put into."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i32": torch.int32,
    "bool": torch.bool,
}
TYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}



def _full(like: Tensor, number: float, dtype: torch.dtype) -> Tensor:
    return torch.full_like(like, number, dtype=dtype)


#: ops that torch has under another name, or that also take numbers as operators
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_not": torch.bitwise_not,
    "select": torch.where,
    "full": _full,
    "to": Tensor.to,
}

#: (place, number): the place of an earlier value, or -1 and a number
Operand = tuple[int, Any]


class Graph(NamedTuple):
    """A step as data: its arguments by name, calls in order, and which values are its results.

    The first values are the inputs, then parameters of single steps, states and parameters; each call adds
    one. The call "fire" is the spike, which comes from outside.
    """

    inputs: tuple[str, ...]
    step_params: tuple[str, ...]
    states: tuple[str, ...]
    params: tuple[str, ...]
    calls: tuple[tuple[str, tuple[Operand, ...]], ...]
    outputs: tuple[str, ...]
    results: tuple[int, ...]


def run_graph(
    graph: Graph, arguments: Sequence[Tensor], fire: Callable[[Tensor], Tensor] | None = None
) -> list[Tensor]:
    """Outputs, then new states."""
    values: list[Any] = list(arguments)
    for name, operands in graph.calls:
        given = [values[place] if place >= 0 else number for place, number in operands]
        if name == "fire":
            assert fire is not None
            values.append(fire(*given))
        elif name in _FUNCTIONS:
            values.append(_FUNCTIONS[name](*given))
        else:
            values.append(getattr(torch, name)(*given))
    return [values[place] for place in graph.results]


class _Reader:
    """Lines of a graph, as C++ lists them."""

    _ROLES = ("input", "step_param", "state", "param")
    _RESULTS = ("output", "next")

    def __init__(self, lines: Sequence[str]) -> None:
        split = [line.split() for line in lines]
        self.nodes = [words for words in split if words[0] not in self._RESULTS]
        self.gives = {kind: [words for words in split if words[0] == kind] for kind in self._RESULTS}
        self.calls: list[tuple[str, tuple[Operand, ...]]] = []
        self.operands: dict[int, Operand] = {}  # of nodes that are known so far
        self.names: dict[str, list[str]] = {role: [] for role in self._ROLES}
        for words in self.nodes:
            if words[0] in self._ROLES and words[1] != "spike":
                self.names[words[0]].append(words[1])
        self.num_arguments = sum(map(len, self.names.values()))

    def read(self) -> Graph:
        self._arguments()
        outputs = {words[1]: int(words[2]) for words in self.gives["output"]}
        if "distance" in outputs:
            before = self._needed_for(outputs["distance"])
            self._ops(before)
            spike = next(i for i, words in enumerate(self.nodes) if words[:2] == ["input", "spike"])
            self.operands[spike] = self._call("fire", self.operands[outputs["distance"]])
        self._ops(range(len(self.nodes)))
        results = [words for kind in self._RESULTS for words in self.gives[kind] if words[1] != "distance"]
        return Graph(
            *(tuple(self.names[role]) for role in self._ROLES),
            outputs=tuple(words[1] for words in self.gives["output"] if words[1] != "distance"),
            results=tuple(self._stored(int(words[2]), words[3]) for words in results),
            calls=tuple(self.calls),
        )

    def _call(self, name: str, *operands: Operand) -> Operand:
        self.calls.append((name, operands))
        return self.num_arguments + len(self.calls) - 1, None

    def _arguments(self) -> None:
        order = [(role, name) for role in self._ROLES for name in self.names[role]]
        for node, words in enumerate(self.nodes):
            if words[0] in self._ROLES and words[1] != "spike":
                place: Operand = order.index((words[0], words[1])), None
                half = words[2] in ("f16", "bf16")
                self.operands[node] = self._call("to", place, (-1, torch.float32)) if half else place
            elif words[0] == "constant":
                self.operands[node] = -1, bool(float(words[1])) if words[2] == "bool" else float(words[1])

    def _needed_for(self, node: int) -> list[int]:
        needed = {node}
        for place in range(node, -1, -1):
            if place in needed and place not in self.operands:
                needed.update(int(word) for word in self.nodes[place][1:-1])
        return sorted(needed)

    def _ops(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            if node in self.operands:
                continue
            name, *places, kind = self.nodes[node]
            self.operands[node] = self._op(name, [self.operands[int(place)] for place in places], kind)

    def _op(self, name: str, operands: list[Operand], kind: str) -> Operand:
        if name in ("to_f32", "to_f64", "to_i32", "to_bool"):
            return self._call("to", operands[0], (-1, DTYPES[kind]))
        if name in ("round_f16", "round_bf16"):
            rounded = self._call("to", operands[0], (-1, DTYPES[name.removeprefix("round_")]))
            return self._call("to", rounded, (-1, DTYPES[kind]))
        # Where torch's function takes a tensor alone, or would divide by multiplying, a number becomes one.
        numbers = [i for i, (place, _) in enumerate(operands) if place < 0]
        if name in ("maximum", "minimum") or (name == "div" and 0 in numbers) or numbers == [1, 2]:
            for i in numbers if name != "select" else numbers[:1]:
                operands[i] = self._call("full", (0, None), operands[i], (-1, DTYPES[kind]))
        return self._call(name, *operands)

    def _stored(self, node: int, memory: str) -> int:
        place, number = self.operands[node]
        if place < 0:
            return self._call("full", (0, None), (place, number), (-1, DTYPES[memory]))[0]
        half = memory in ("f16", "bf16")
        return self._call("to", (place, None), (-1, DTYPES[memory]))[0] if half else place


def read_graph(lines: Sequence[str]) -> Graph:
    """The graph that C++ lists."""
    return _Reader(lines).read()
