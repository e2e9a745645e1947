"""Makes a kernel's parameters from captured tensors: torch code that runs before the kernel, as data."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ._listing import Listing
from ._torch import in_dispatch_mode, schema_of

#: instead of the place of an earlier value: a constant, or a list of arguments
_CONSTANT, _LIST = -1, -2


@dataclass(frozen=True)
class Step:
    """One call of a program: of a function of torch ("aten::add"), of "tensor" or of "getitem".

    An argument is (place, constant): the place of an earlier value, or what stands for it.
    """

    function: str
    overload: str
    arguments: tuple[tuple[int, Any], ...]
    keywords: tuple[tuple[str, tuple[int, Any]], ...] = ()


@dataclass(frozen=True)
class Program:
    """Steps in order. They are data, since a compiler cannot trace a function that it meets as a constant."""

    steps: tuple[Step, ...]
    results: tuple[int, ...]
    #: tensors of numbers, by step, once they are made
    numbers: dict[int, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)


def _read(argument: tuple[int, Any], values: list[Any]) -> Any:
    place, constant = argument
    if place >= 0:
        return values[place]
    return [_read(each, values) for each in constant] if place == _LIST else constant


def run_program(program: Program, captured: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Autocast does not change what a step computes, and this is a part of it."""
    if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
        return _run(program, captured)
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        return _run(program, captured)


def _run(program: Program, captured: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    values: list[Any] = list(captured)
    for place, step in enumerate(program.steps):
        arguments = [_read(argument, values) for argument in step.arguments]
        keywords = {name: _read(argument, values) for name, argument in step.keywords}
        if step.function == "getitem":
            values.append(arguments[0][arguments[1]])
        elif step.function == "tensor":
            values.append(_numbers(program, place, arguments[0], keywords))
        else:
            namespace, _, name = step.function.partition("::")
            function = getattr(getattr(getattr(torch.ops, namespace), name), step.overload)
            values.append(function(*arguments, **keywords))
    return [values[place] for place in program.results]


def _numbers(program: Program, place: int, numbers: Any, keywords: dict[str, Any]) -> torch.Tensor:
    """Made once: who copies numbers to a GPU waits for it, and cannot while a stream is captured."""
    if is_dynamo_compiling() or in_dispatch_mode():  # which want a tensor of their own kind
        return torch.tensor(numbers, **keywords)
    made = program.numbers.get(place)
    if made is None:
        with torch.inference_mode(False):  # it is for calls that train as well
            made = program.numbers[place] = torch.tensor(numbers, **keywords)
    return made


def program_of(listing: Listing) -> tuple[tuple[int, ...], Program | None]:
    """Which captured tensors are needed, and what makes parameters from them; None where they are those."""
    captured: list[int] = []
    steps: list[Step] = []
    places: dict[torch.fx.Node, int] = {}

    def source(node: torch.fx.Node) -> int | None:
        tensor = listing.attribute(node)
        return next((i for i, known in enumerate(listing.captured) if known is tensor), None)

    def argument(given: Any) -> tuple[int, Any]:
        if isinstance(given, torch.fx.Node):
            return places[listing.same(given)], None
        if isinstance(given, (list, tuple)) and any(isinstance(each, torch.fx.Node) for each in given):
            return _LIST, tuple(argument(each) for each in given)
        return _CONSTANT, given

    needed = {listing.same(n) for param in listing.params for n in listing.ancestors(param)}
    order = [node for node in listing.module.graph.nodes if node in needed]
    for node in order:
        if node.op == "get_attr" and source(node) is not None:
            places[node] = len(captured)
            captured.append(source(node))
    for node in order:
        if node in places:
            continue
        if node.op == "get_attr":
            listing.check_constant(node)
            tensor = listing.attribute(node)
            kind = (("dtype", (_CONSTANT, tensor.dtype)), ("device", (_CONSTANT, tensor.device)))
            step = Step("tensor", "", ((_CONSTANT, tensor.tolist()),), kind)
        elif node.target is operator.getitem:
            step = Step("getitem", "", tuple(argument(value) for value in node.args))
        else:
            listing.not_random(node)
            schema = schema_of(node.target)
            keywords = tuple((name, argument(value)) for name, value in node.kwargs.items())
            step = Step(
                schema.name,
                schema.overload_name or "default",
                tuple(argument(value) for value in node.args),
                keywords,
            )
        places[node] = len(captured) + len(steps)
        steps.append(step)
    results = tuple(places[node] for node in listing.params)
    if not steps and results == tuple(range(len(captured))):
        return tuple(captured), None
    return tuple(captured), Program(tuple(steps), results)
