"""A kernel whose results do not all depend on all arguments, with the gradients that an eager loop has."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._torch import backward_number


class Reaches(NamedTuple):
    """Where the gradients of a neuron's results go: places in the list of inputs, states and parameters."""

    of_results: tuple[frozenset[int], ...]
    partly: frozenset[int]
    """The places that the gradients of some results go to and those of others do not."""


def connected(results: Sequence[Tensor], reaches: Reaches, needed: Sequence[bool]) -> list[Tensor]:
    """The results; one that depends on nothing that requires a gradient requires none."""
    wanted = {place for place, needs in enumerate(needed) if needs}
    return [
        result if not wanted.isdisjoint(reached) else result.detach()
        for result, reached in zip(results, reaches.of_results)
    ]


class Connections:
    """One call. Its kernel gives every argument a gradient, zeros also where none of those that arrive goes
    to it; those are taken out again, so that the argument gets none."""

    def __init__(self, reaches: Reaches) -> None:
        self.reaches = reaches
        self._backward = -1
        self._arrived: set[int] = set()

    def entering(self, arguments: Sequence[Tensor], first: int) -> list[Tensor]:
        """Arguments as the kernel takes them; `first` is the place of the first of them."""
        return [
            _Entering.apply(argument, self, place)
            if place in self.reaches.partly and argument.requires_grad
            else argument
            for place, argument in enumerate(arguments, first)
        ]

    def watch(self, results: Sequence[Tensor]) -> None:
        """Notes at which results gradients arrive."""
        for number, result in enumerate(results):
            if result.requires_grad:
                result.register_hook(functools.partial(self._note, number))

    def _note(self, number: int, grad: Tensor | None) -> None:
        if grad is None:  # one arrives at another result of the call
            return
        running = backward_number()
        if running != self._backward:
            self._backward, self._arrived = running, set()
        self._arrived.add(number)

    def go_to(self, place: int) -> bool:
        """Do gradients that have arrived go to this argument?"""
        return any([place in self.reaches.of_results[number] for number in self._arrived])


class _Entering(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, argument: Tensor, connections: Connections, place: int) -> Tensor:
        ctx.connections, ctx.place = connections, place
        return argument.view_as(argument)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        return grad if ctx.connections.go_to(ctx.place) else None, None, None
