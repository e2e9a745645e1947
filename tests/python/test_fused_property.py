"""Random cores on random arguments: fused against a loop over time, outputs equal, gradients to rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flexsn.fused import Fused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch
from torch import Tensor


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return g / (1 + u.abs()).square()


#: functions made of + - * /, comparisons and selects, whose results stay of modest size
ARITHMETIC: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b * 0.5,
    lambda a, b: a / (b.abs() + 1),
    lambda a, b: a * 0.75 + b * 0.25,
    lambda a, b: torch.where(a > b, a, b * 0.5),
    lambda a, b: torch.where(a.detach() >= 0.25, a, 0.5 - b),
    lambda a, b: a.clamp(-1.5, 1.5) - b,
    lambda a, b: torch.maximum(a, b) - torch.minimum(a, b),
    lambda a, b: torch.relu(a) - b.abs(),
    lambda a, b: Spike.apply(a - 0.5) + b,
    lambda a, b: a * (1 - Spike.apply(b)),
    lambda a, b: torch.add(a, b, alpha=0.3),
    lambda a, b: torch.lerp(a, b, 0.4),
    lambda a, b: torch.addcmul(a, a, b, value=0.1),
    lambda a, b: (a * 1.0).add_(b).mul_(0.5),
    lambda a, b: -a.detach() + b,
)
#: what parameters alone may not go through: a user's autograd function, a change in place
LIVE_ONLY = (ARITHMETIC[10], ARITHMETIC[11], ARITHMETIC[15])
SMOOTH: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda a, b: torch.tanh(a) * b,
    lambda a, b: torch.sigmoid(a - b),
    lambda a, b: torch.exp(-a.abs()) + b,
    lambda a, b: torch.nn.functional.softplus(a) - b,
    lambda a, b: torch.sin(a) * torch.atan(b),
    lambda a, b: torch.sqrt(a * a + b * b + 1),
)


@dataclass(frozen=True)
class Plan:
    """A core as data: each call names a function and two earlier values; arguments come first."""

    inputs: int
    states: int
    params: tuple[tuple[int, ...], ...]
    calls: tuple[tuple[int, int, int], ...]
    results: tuple[int, ...]
    functions: tuple[Callable[[Tensor, Tensor], Tensor], ...]

    def core(self, params: Sequence[Tensor]) -> Callable[..., Any]:
        def core(*arguments: Tensor) -> tuple[Tensor, ...]:
            values = [*arguments, *params]
            for function, first, second in self.calls:
                values.append(self.functions[function](values[first], values[second]))
            # A result has the step's shape, which a parameter alone need not have.
            return tuple(values[result] + arguments[0] * 0.5 for result in self.results)

        return core


@dataclass(frozen=True)
class Arguments:
    steps: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    zero_states: bool
    needed: tuple[bool, ...]


def sequence(steps: int, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
    if layout == "sliced":
        return torch.randn(steps * 2, *shape, dtype=dtype)[::2]
    if layout == "inner":
        return torch.randn(steps, *shape, 2, dtype=dtype)[..., 1]
    if layout == "transposed":
        return torch.randn(*shape, steps, dtype=dtype).movedim(-1, 0)
    if layout == "expanded":
        return torch.randn(1, *shape, dtype=dtype).expand(steps, *shape)
    return torch.randn(steps, *shape, dtype=dtype)


@st.composite
def plans(
    draw: st.DrawFn, functions: tuple[Callable[[Tensor, Tensor], Tensor], ...]
) -> tuple[Plan, Arguments]:
    inputs, states = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    outputs = draw(st.integers(0 if states else 1, 3))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 19]), max_size=3)))
    params = []
    for _ in range(draw(st.integers(0, 3))):
        rank = draw(st.integers(0, len(shape)))
        kept = shape[len(shape) - rank :]
        params.append(tuple(dim if draw(st.booleans()) else 1 for dim in kept))
    count = inputs + states + len(params)
    calls = []
    live = [True] * (inputs + states) + [False] * len(params)
    for _ in range(draw(st.integers(1, 8))):
        operands = st.integers(0, count - 1)
        function, first, second = draw(st.integers(0, len(functions) - 1)), draw(operands), draw(operands)
        if functions[function] in LIVE_ONLY and not (live[first] and live[second]):
            first, second = 0, 0
        calls.append((function, first, second))
        live.append(live[first] or live[second])
        count += 1
    results = tuple(draw(st.integers(0, count - 1)) for _ in range(outputs + states))
    plan = Plan(inputs, states, tuple(params), tuple(calls), results, functions)
    needed = tuple(draw(st.booleans()) for _ in range(inputs + states + len(params)))
    layout = draw(st.sampled_from(["dense", "sliced", "inner", "transposed", "expanded"]))
    arguments = Arguments(
        draw(st.integers(1, 4)), shape, draw(st.sampled_from([torch.float32, torch.float64])), layout,
        draw(st.booleans()), needed,
    )  # fmt: skip
    return plan, arguments


def by_loop(
    core: Callable[..., Any], inputs: Sequence[Tensor], states: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    rows = []
    for t in range(inputs[0].shape[0]):
        results = core(*[x[t] for x in inputs], *states)
        rows.append(results[: len(results) - len(states)])
        states = results[len(results) - len(states) :]
    return [torch.stack(column) for column in zip(*rows)], list(states)


def assert_same(found: Tensor, expected: Tensor, exact: bool, what: str) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape, what
    if exact:
        same = (found == expected) | (found.isnan() & expected.isnan())
        assert bool(same.all()), f"{what}: {found[~same][:3]} for {expected[~same][:3]}"
    elif found.numel():
        room = 3e3 * torch.finfo(found.dtype).eps
        largest = float(expected.detach().abs().nan_to_num(0, 0, 0).max())
        torch.testing.assert_close(found, expected, rtol=room, atol=room * max(largest, 1e-3), equal_nan=True)


def check(plan: Plan, given_arguments: Arguments, exact: bool) -> None:
    torch.manual_seed(7)
    steps, shape, dtype = given_arguments.steps, given_arguments.shape, given_arguments.dtype
    inputs = [sequence(steps, shape, dtype, given_arguments.layout) for _ in range(plan.inputs)]
    states = [
        torch.zeros(shape, dtype=dtype) if given_arguments.zero_states else torch.randn(shape, dtype=dtype)
        for _ in range(plan.states)
    ]
    params = [torch.randn(shape, dtype=dtype) for shape in plan.params]
    leaves = [tensor.detach() for tensor in (*inputs, *states, *params)]
    for tensor, needed in zip(leaves, given_arguments.needed):
        tensor.requires_grad_(needed)
    inputs, states = leaves[: plan.inputs], leaves[plan.inputs : plan.inputs + plan.states]
    core = plan.core(leaves[plan.inputs + plan.states :])
    outputs, last = Fused(core, plan.inputs, plan.states, None)(inputs, states)
    expected, eager_last = by_loop(core, inputs, states)
    assert len(outputs) == len(expected) and len(last) == len(eager_last)
    for place, (one, other) in enumerate(zip([*outputs, *last], [*expected, *eager_last])):
        assert_same(one, other, exact, f"result {place}")
    wanted = [tensor for tensor in leaves if tensor.requires_grad]
    eager = [tensor for tensor in (*expected, *eager_last) if tensor.requires_grad]
    if not wanted or not eager:
        return
    carrying = [
        tensor for tensor, other in zip([*outputs, *last], [*expected, *eager_last]) if other.requires_grad
    ]
    assert all(tensor.requires_grad for tensor in carrying)
    weights = [torch.rand_like(tensor) for tensor in eager]
    found = torch.autograd.grad(carrying, wanted, weights, allow_unused=True)
    truth = torch.autograd.grad(eager, wanted, weights, allow_unused=True)
    for place, (tensor, one, other) in enumerate(zip(wanted, found, truth)):
        zero = torch.zeros_like(tensor)
        assert_same(
            zero if one is None else one, zero if other is None else other, False, f"gradient {place}"
        )


short = settings(max_examples=60, derandomize=True, deadline=None, database=None,
                 suppress_health_check=list(HealthCheck))  # fmt: skip


@short
@given(plans(ARITHMETIC))
def test_arithmetic_core_gives_the_same_bits_as_a_loop(case: tuple[Plan, Arguments]) -> None:
    check(*case, exact=True)


@settings(short, max_examples=30)
@given(plans(ARITHMETIC[:4] + SMOOTH))
def test_smooth_core_is_near_a_loop(case: tuple[Plan, Arguments]) -> None:
    check(*case, exact=False)
