"""Kernels against the eager loop: where they differ first, and how close to a threshold that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._library import ops
from .eager import call_core, run_steps

if TYPE_CHECKING:
    from .inspect import Traced

#: What rounding may do to one step, beside a value of 1, and how near to a threshold it may decide; that of
#: the coarsest type of a step counts. Eager half types round after every op, kernels at outputs and states.
_ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
_MOST_LOOKED_AT = 64


@dataclass
class Comparison:
    """One thing that was tried."""

    what: str
    passed: bool
    detail: str
    left_out: bool = False  #: it needs what this machine has not


@dataclass
class _Place:
    """A result that differs: its name, the step (None: it is in the element), element, both values."""

    name: str
    step: int | None
    element: tuple[int, ...]
    fused: float
    eager: float

    def __str__(self) -> str:
        at = f"element {list(self.element)}"
        if self.step is not None:
            at = f"step {self.step}, {at}"
        return f"{self.name} at {at} is {self.fused:.9g} in the kernel and {self.eager:.9g} in the eager loop"


def compare(
    traced: Traced, inputs: Sequence[Tensor], states: Sequence[Tensor], generator: torch.Generator
) -> list[Comparison]:
    """The kernels against the eager loop: the whole run, every step from the eager states, gradients."""
    return _Trial(traced, inputs, states, generator).run()


class _Trial:
    def __init__(
        self, traced: Traced, inputs: Sequence[Tensor], states: Sequence[Tensor], generator: torch.Generator
    ) -> None:
        self.traced, self.subject = traced, traced.subject
        self.fused = traced.subject.fused()
        self.inputs = [x.detach() for x in inputs]
        self.states = [
            state.detach().to(dtype) for state, dtype in zip(states, traced.trace.state_dtypes, strict=True)
        ]
        self.generator = generator
        dtypes = {tensor.dtype for tensor in (*self.inputs, *self.states, *traced.values)}
        dtypes |= set(traced.trace.output_dtypes)
        self.rounding = max([_ROUNDING.get(dtype, 0.0) for dtype in dtypes])

    def run(self) -> list[Comparison]:
        if self.inputs[0].numel() == 0:
            return [Comparison("the kernel gives what the eager loop gives", True, "there are no elements")]
        with torch.no_grad():
            before = self._eager_states()
            whole = self._whole()
            flipped, steps = self._steps(before)
        checks = [self._judged(whole, before, steps.passed), steps]
        if self.traced.trace.trainable:
            checks.append(self._gradients(before, flipped, follow_time=whole is None))
        return checks

    # ---- forward -------------------------------------------------------------------------------------------

    def _eager_states(self) -> list[list[Tensor]]:
        """The states before each step of the eager loop, and after the last."""
        found = [self.states]
        for t in range(self.inputs[0].shape[0]):
            given = [x[t].clone() for x in self.inputs]
            core, static = self.subject.core, self.subject.static
            _, after = call_core(core, given, [s.clone() for s in found[-1]], static, None)
            found.append([s.to(dtype) for s, dtype in zip(after, self.traced.trace.state_dtypes)])
        return found

    def _eager(self, inputs: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
        """Output sequences and state sequences; a core may change what it gets, so that is a copy."""
        given, first = [x.clone() for x in inputs], [s.clone() for s in states]
        outputs, _, sequences = run_steps(self.subject.core, given, first, self.subject.static, None, True)
        return [*outputs, *(sequences or ())]

    def _kernel(self, inputs: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
        outputs, sequences = self.fused(list(inputs), list(states), self.subject.static, True)
        return [*outputs, *sequences]

    def _whole(self) -> _Place | None:
        """The first place at which the whole runs differ by more than rounding."""
        fused, eager = self._kernel(self.inputs, self.states), self._eager(self.inputs, self.states)
        self.largest = _largest_difference(fused, eager)
        for t in range(self.inputs[0].shape[0]):
            for name, a, b in zip(self.traced.result_names, fused, eager):
                differs = _differs(a[t], b[t], self.rounding)
                if differs.any():
                    return _place(name, t, a[t], b[t], differs)
        return None

    def _judged(self, whole: _Place | None, before: list[list[Tensor]], steps_agree: bool) -> Comparison:
        what = "the kernel gives what the eager loop gives"
        if whole is None:
            exact = "equal in every value" if self.largest == 0 else f"off by {self.largest:.2g} at most"
            return Comparison(what, True, f"{exact}; {self.inputs[0].shape[0]} steps")
        detail = f"{whole}\n{self._around(whole, before)}"
        if steps_agree:
            detail += (
                "\nevery step agrees when it starts from the eager loop's states, so this is rounding, which "
                "the steps in between made larger"
            )
        return Comparison(what, steps_agree, detail)

    def _steps(self, before: list[list[Tensor]]) -> tuple[list[Tensor], Comparison]:
        """Each step from the eager states: which elements rounding decided, and what came out."""
        what = "each step agrees from the eager loop's states"
        flipped, near = [], 0
        for t in range(self.inputs[0].shape[0]):
            row = [x[t : t + 1] for x in self.inputs]
            fused, eager = self._kernel(row, before[t]), self._eager(row, before[t])
            wrong = [_differs(a[0], b[0], self.rounding) for a, b in zip(fused, eager)]
            nowhere = torch.zeros_like(row[0][0], dtype=torch.bool)
            flipped.append(torch.stack([nowhere, *wrong]).any(0))
            for place in flipped[t].nonzero()[:_MOST_LOOKED_AT].tolist():
                distance = self._nearest(t, tuple(place), before)
                if distance is None or distance > self.rounding:
                    index = next(i for i, mask in enumerate(wrong) if mask[tuple(place)])
                    name, only = self.traced.result_names[index], torch.zeros_like(wrong[index])
                    only[tuple(place)] = True
                    found = _place(name, t, fused[index][0], eager[index][0], only)
                    return flipped, Comparison(what, False, f"{found}\n{self._around(found, before)}")
            near += int(flipped[t].sum())
        note = f"; {near} values within {self.rounding:g} of a threshold left out" if near else ""
        return flipped, Comparison(what, True, f"{self.inputs[0].shape[0]} steps{note}")

    # ---- the neighbourhood of a difference -----------------------------------------------------------------

    def _values(self, step: int, element: tuple[int, ...], before: list[list[Tensor]]) -> list[float]:
        """Inputs, states and parameters of one element."""
        shape = self.inputs[0].shape[1:]
        rows = [x[step] for x in self.inputs] + before[step]
        rows += [value.detach().expand(shape) for value in self.traced.values]
        return [float(row[element]) for row in rows]

    def _comparisons(
        self, step: int, element: tuple[int, ...], before: list[list[Tensor]]
    ) -> list[tuple[str, float, float]]:
        return list(zip(*ops.comparisons(self.traced.text, self._values(step, element, before))))

    def _nearest(self, step: int, element: tuple[int, ...], before: list[list[Tensor]]) -> float | None:
        """How far the closest comparison of a step is from going the other way, beside values of 1."""
        return min(
            [abs(a - b) / max(1.0, abs(a), abs(b)) for _, a, b in self._comparisons(step, element, before)],
            default=None,
        )

    def _around(self, place: _Place, before: list[list[Tensor]]) -> str:
        assert place.step is not None
        values = self._values(place.step, place.element, before)
        lines = ["there " + ", ".join(f"{n} = {v:.9g}" for n, v in zip(self.traced.names, values))]
        for op, a, b in self._comparisons(place.step, place.element, before):
            lines.append(f"it compares {a:.9g} {_SIGNS[op]} {b:.9g}, {abs(a - b):.3g} from the threshold")
        return "\n".join(lines)

    # ---- gradients -----------------------------------------------------------------------------------------

    def _gradients(self, before: list[list[Tensor]], flipped: list[Tensor], follow_time: bool) -> Comparison:
        """Through all steps where the runs agree; else step by step, without the elements that differ."""
        what = "gradients agree with the eager loop's"
        if follow_time:
            runs = [(slice(None), self.states, torch.zeros_like(flipped[0]))]
        else:
            runs = [(slice(t, t + 1), before[t], flipped[t]) for t in range(len(flipped))]
        largest, names = 0.0, self._sources()[1]
        for rows, states, left_out in runs:
            weights: dict[int, Tensor] = {}
            inputs = [x[rows] for x in self.inputs]
            fused = self._gradients_of(self._kernel, inputs, states, left_out, weights)
            eager = self._gradients_of(self._eager, inputs, states, left_out, weights)
            for name, a, b in zip(names, fused, eager):
                if b.numel() == 0:
                    continue
                largest = max(largest, _largest_difference([a], [b]))
                # Sums of many terms: what rounding does is measured beside the largest of them.
                differs = _differs(a, b, 10 * self.rounding * max(1.0, float(b.abs().max())))
                if differs.any():
                    return Comparison(what, False, f"the gradient of {_place(name, None, a, b, differs)}")
        how = "through all steps" if follow_time else "step by step, as the whole runs differ"
        return Comparison(what, True, f"off by {largest:.2g} at most, {how}: {', '.join(names)}")

    def _sources(self) -> tuple[list[Tensor], list[str]]:
        """What gradients are taken of beside inputs and states, and the names of all."""
        first = self.subject.num_inputs + self.subject.num_states
        own = zip(self.subject.names[:first], (*self.inputs, *self.states))
        names = [name for name, tensor in own if tensor.is_floating_point()]
        captured = [(t, s) for t, s in zip(self.traced.captured, self.traced.sources) if t.requires_grad]
        return [tensor for tensor, _ in captured], names + [source for _, source in captured]

    def _gradients_of(
        self,
        function: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]],
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        left_out: Tensor,
        weights: dict[int, Tensor],
    ) -> list[Tensor]:
        """Of the results, weighted at random and alike for both functions, without elements that differ."""
        given = [t.detach().clone() for t in (*inputs, *states)]
        leaves = [t.requires_grad_() for t in given if t.is_floating_point()]
        with torch.enable_grad():
            results = function(given[: len(inputs)], given[len(inputs) :])
            total = torch.zeros((), dtype=torch.float64, device=left_out.device)
            for place, result in enumerate(results):
                if result.grad_fn is None:
                    continue
                if place not in weights:
                    drawn = torch.randn(
                        result.shape, generator=self.generator, dtype=torch.float64, device="cpu"
                    )
                    weights[place] = drawn.to(left_out.device).masked_fill(left_out, 0.0)
                total = total + (result.double() * weights[place]).sum()
            wanted = leaves + self._sources()[0]
            if total.grad_fn is None:
                return [torch.zeros_like(t) for t in wanted]
            found = torch.autograd.grad(total, wanted, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found)]


_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def _differs(a: Tensor, b: Tensor, rounding: float) -> Tensor:
    """Where two results differ by more than rounding, which is measured beside a value of 1."""
    if not (a.is_floating_point() and b.is_floating_point()):
        return a != b
    allowed = rounding * b.abs().clamp(min=1.0)
    return ~(((a - b).abs() <= allowed) | (a == b) | (a.isnan() & b.isnan()))


def _largest_difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    largest = 0.0
    for one, other in zip(a, b):
        distance = (one.double() - other.double()).abs()
        distance = distance[~((one == other) | (one.isnan() & other.isnan()))]
        if distance.numel():
            largest = max(largest, float(distance.max()))
    return largest


def _place(name: str, step: int | None, fused: Tensor, eager: Tensor, differs: Tensor) -> _Place:
    element = tuple(differs.nonzero()[0].tolist())
    return _Place(name, step, element, float(fused[element]), float(eager[element]))
