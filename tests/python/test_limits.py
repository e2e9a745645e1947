"""Sizes and counts far beyond common use: each works with a right result, or is refused with a reason.

FLEXSN_LONG_TESTS=1 adds those that take longer than some seconds.
"""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable
from typing import Any

import pytest
from cores import by_loop

import torch
from flexsn import FlexSN, fused, neurons, surrogate
from torch import Tensor, nn

ops = torch.ops.flexsn

long = pytest.mark.skipif(
    os.environ.get("FLEXSN_LONG_TESTS") != "1", reason="takes long; FLEXSN_LONG_TESTS=1 runs it"
)


def alike(core: Callable[..., Any], x: Tensor, num_states: int) -> None:
    """A traced core gives what the eager loop gives, gradient of the input included."""
    found, law = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = FlexSN(core, num_inputs=1, num_states=num_states)(found)
    [expected], _, _ = by_loop(core, [law], [torch.zeros_like(x[0]) for _ in range(num_states)])
    assert torch.equal(y, expected)
    y.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(found.grad, law.grad)


# ---- graphs ------------------------------------------------------------------------------------------------


def mixed(count: int) -> Callable[..., Any]:
    """A core of so many operations, each on the result of the one before."""

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = half = x + v
        for i in range(count):
            h = h + x if i % 2 else h * v
            half = h if i == count // 2 else half
        return h, half

    return core


def mixed_text(count: int) -> str:
    """The same as a neuron's text."""
    lines = ["neuron mixed {", "input x : f32", "state v : f32", "%n0 = add %x, %v"]
    lines += [f"%n{i + 1} = " + (f"add %n{i}, %x" if i % 2 else f"mul %n{i}, %v") for i in range(count)]
    return "\n".join([*lines, f"output y = %n{count}", f"next v = %n{count // 2 + 1}", "}"])


def test_a_neuron_of_10000_operations_runs_and_trains() -> None:
    x, v = torch.rand(3, 5) * 0.5, torch.rand(5) * 0.5
    ours = [t.clone().requires_grad_() for t in (x, v)]
    law = [t.clone().requires_grad_() for t in (x, v)]
    y, last = ops.training_final_state(mixed_text(10_000), [ours[0]], [ours[1]], [])[:2]
    [expected], _, [expected_last] = by_loop(mixed(10_000), [law[0]], [law[1]])
    assert torch.equal(y, expected) and torch.equal(last, expected_last)
    gradients = torch.autograd.grad(y.sum(), ours)
    for found, right in zip(gradients, torch.autograd.grad(expected.sum(), law), strict=True):
        torch.testing.assert_close(found, right)


def test_a_core_of_300_operations_is_traced() -> None:
    alike(mixed(300), torch.rand(3, 5) * 0.5, 1)


@long
def test_a_core_of_10000_operations_is_traced() -> None:
    alike(mixed(10_000), torch.rand(2, 5) * 0.5, 1)


@pytest.mark.parametrize("count", [64, pytest.param(512, marks=long)])
def test_many_states_run_and_train(count: int) -> None:
    def core(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        after = [state * 0.5 + x * i for i, state in enumerate(states)]
        return sum(after), *after

    alike(core, torch.randn(3, 4), count)


def test_many_inputs_and_outputs_run() -> None:
    inputs = [torch.randn(2, 3) for _ in range(64)]
    outputs = FlexSN(lambda *xs: tuple(x * 2.0 for x in xs), num_inputs=64, num_states=0)(*inputs)
    assert all(torch.equal(y, x * 2.0) for x, y in zip(inputs, outputs, strict=True))
    lines = [f"%h{i} = add %x, {i}\noutput y{i} = %h{i}" for i in range(500)]
    text = "\n".join(["neuron many {", "input x : f32", *lines, "}"])
    results = ops.inference(text, [inputs[0]], [], [])
    assert all(torch.equal(y, inputs[0] + i) for i, y in enumerate(results)) and len(results) == 500


def weighted_text(count: int) -> str:
    """x times the sum of so many parameters."""
    lines = ["neuron weighted {", "input x : f32", *[f"param p{i} : f32" for i in range(count)]]
    lines += ["%h0 = sub %x, %x", *[f"%h{i + 1} = add %h{i}, %p{i}" for i in range(count)]]
    return "\n".join([*lines, f"%y = mul %x, %h{count}", "output y = %y", "}"])


def test_1000_parameters_each_get_their_gradient() -> None:
    x = torch.ones(2, 3)
    params = [torch.tensor(1.0, requires_grad=True) for _ in range(500)]
    params += [torch.ones(3, requires_grad=True) for _ in range(500)]
    y = ops.training(weighted_text(1000), [x], [], params)[0]
    assert torch.equal(y, x * 1000.0)
    gradients = torch.autograd.grad(y.sum(), params)
    assert {gradient.item() for gradient in gradients[:500]} == {6.0}
    assert {tuple(gradient.tolist()) for gradient in gradients[500:]} == {(2.0, 2.0, 2.0)}


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=long)])
def test_many_captured_parameters_are_traced(count: int) -> None:
    weights = [nn.Parameter(torch.tensor(1.0)) for _ in range(count)]

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for weight in weights:
            v = v + x * weight
        return v, v

    FlexSN(core, num_states=1)(torch.ones(2, 3)).sum().backward()
    assert {weight.grad.item() for weight in weights} == {9.0}


def test_a_number_may_be_made_of_others_in_60_steps_that_each_use_the_last_one_twice() -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        number = torch.full((), 2.0**-60)
        for _ in range(60):
            number = number + number
        return x * number, v

    x = torch.rand(2, 3)
    assert torch.equal(FlexSN(core, num_states=1)(x), x)


# ---- sequences ---------------------------------------------------------------------------------------------


def counts(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return v + x, v + x


def test_a_million_steps_of_one_neuron_run_and_train() -> None:
    x = torch.ones(1_000_000, 1, requires_grad=True)
    neuron = FlexSN(counts, num_states=1)
    y = neuron(x)
    assert neuron.states[0].item() == 1_000_000
    assert torch.equal(y.detach().view(-1), torch.arange(1.0, 1_000_001.0))
    neuron.states[0].sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_a_million_steps_in_pieces_have_the_same_bits() -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * 0.9 + x
        s = (h >= 1.0).to(h)
        return s, h - s

    x = torch.rand(1_000_000, 1)
    whole, pieces = FlexSN(core, num_states=1), FlexSN(core, num_states=1)
    y = whole(x)
    assert torch.equal(y, torch.cat([pieces(piece) for piece in x.split([1, 999_000, 999])]))
    assert torch.equal(whole.states[0], pieces.states[0])


@long
def test_more_than_two_to_the_31_steps_are_all_run() -> None:
    steps = 2**31 + 8
    neuron = FlexSN(lambda x, v: (v + x,), num_inputs=1, num_states=1)
    neuron(torch.ones((), dtype=torch.float64).expand(steps, 1))
    assert neuron.states[0].item() == steps


def test_rows_that_lie_more_than_two_to_the_31_elements_apart_are_found() -> None:
    distance = 2**31 + 32
    memory = torch.empty(distance + 16, dtype=torch.uint8)  # two pages of it are touched
    memory[:16], memory[distance:] = 3, 7
    x = memory.as_strided((2, 16), (distance, 1))
    y = FlexSN(lambda x: x + 1, num_inputs=1, num_states=0)(x)
    assert y.tolist() == [[4] * 16, [8] * 16]


def test_more_elements_than_can_be_counted_are_refused() -> None:
    x = torch.zeros(()).expand(2**40, 2**20)
    with pytest.raises(RuntimeError, match="a result of 4611686018427387904 bytes"):
        FlexSN(counts, num_states=1)(x)


def test_sixty_four_dimensions_are_fine() -> None:
    x = torch.ones([2] + [1] * 63)
    assert FlexSN(counts, num_states=1)(x).flatten().tolist() == [1.0, 2.0]


def test_a_gate_for_each_of_100000_steps_runs() -> None:
    neuron = neurons.GatedLIFNode(T=100_000, step_mode="m")
    assert neuron(torch.ones(100_000, 2)).shape == (100_000, 2)


# ---- nesting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, message",
    [
        ("(" * 1_000_000, r"neuron:1:1: expected 'neuron', found '\('"),
        ("neuron a {" * 100_000, "neuron:1:11: unknown statement 'neuron'"),
        ("neuron a {\nparam p : f32 = " + "-" * 1_000_000 + "1\n}", "neuron:2:17: .* write a number like"),
        ("#" * 1_000_000, "neuron:1:1000001: expected 'neuron', found the end of text"),
        ('neuron "' + "a" * 1_000_000, "neuron:1:8: this string is not closed"),
        ("neuron a {\n" * 2 + "}\n" * 100_000, "neuron:2:1: unknown statement 'neuron'"),
    ],
    ids=["brackets", "neurons", "signs", "comment", "string", "braces"],
)
def test_a_text_of_a_million_of_one_thing_is_refused_at_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.inference(text, [torch.ones(2, 3)], [], [])


def test_a_core_that_calls_itself_500_times_is_traced() -> None:
    def core(x: Tensor, v: Tensor, depth: int = 500) -> tuple[Tensor, Tensor]:
        return (x + v, v + x) if depth == 0 else core(x * 0.999, v, depth - 1)

    alike(core, torch.rand(2, 3), 1)


def test_a_core_of_modules_100_deep_trains() -> None:
    class Nested(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.inner = Nested(depth - 1) if depth else None
            self.weight = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            x = x * self.weight
            return (x + v, v) if self.inner is None else self.inner(x, v)

    core = Nested(100)
    FlexSN(core, num_states=1)(torch.ones(2, 3)).sum().backward()
    assert {weight.grad.item() for weight in core.parameters()} == {6.0}


def test_values_nested_too_deep_are_refused_and_a_ring_is_not() -> None:
    deep: list[Any] = [2.0]
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match=r'nested too deep, from closure deep\[0\].*or use backend="torch"'):
        FlexSN(lambda x, v: (x * len(deep), v), num_states=1)(torch.ones(2, 3))
    ring: list[Any] = [2.0]
    ring.append(ring)
    y = FlexSN(lambda x, v: (x * ring[1][1][0], v), num_states=1)(torch.ones(2, 3))
    assert torch.equal(y, torch.full((2, 3), 2.0))


@pytest.mark.parametrize("terms", [65, 10**9])
def test_a_surrogate_of_too_many_terms_is_refused(terms: int) -> None:
    with pytest.raises(ValueError, match=f"n must be a whole number from 2 to 64, found {terms}"):
        surrogate.SquarewaveFourierSeries(n=terms)


# ---- what a process keeps ----------------------------------------------------------------------------------


def leaving(factor: float) -> Callable[..., Any]:
    return lambda x, v: (x + v * factor, v * factor + x)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The table of traces, where making one costs nothing: none of what is counted is in it."""
    made = fused.Fused(leaving(0.5), 1, 1, 1).trace_of([torch.ones(2, 3)], None, ())
    monkeypatch.setattr(fused, "trace", lambda *arguments: dataclasses.replace(made, shapes=set()))
    gc.collect()
    return fused._traces


def test_a_thousand_cores_made_and_dropped_leave_a_bounded_table(traces: Any) -> None:
    x = torch.ones(2, 3)
    for number in range(1000):
        fused.Fused(leaving(1.0 + number), 1, 1, 1).trace_of([x], None, ())
    gc.collect()
    assert len(fused._recent) == 64
    assert len(traces) < 64 + 300  # those of other tests that are still held


def test_a_thousand_changed_numbers_leave_a_bounded_table(traces: Any) -> None:
    class Leak(torch.nn.Module):
        def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return x + v * self.factor, v

    core, x = Leak(), torch.ones(2, 3)
    neuron = fused.Fused(core, 1, 1, 1)
    before = len(traces)
    for number in range(1000):
        core.factor = 2000.0 + number
        neuron.trace_of([x], None, ())
    gc.collect()
    assert len(neuron._own) == 16 and len(traces) <= before + 64 + 16


def test_more_living_neurons_than_are_kept_are_traced_once_each(traces: Any) -> None:
    neurons, x = [fused.Fused(leaving(5000.0 + i), 1, 1, 1) for i in range(100)], torch.ones(2, 3)
    before = fused.trace_count()
    for _ in range(3):
        for neuron in neurons:
            neuron.trace_of([x], None, ())  # the first call after a reset
            neuron.trace_of([x], [torch.zeros(3)], ())
    assert fused.trace_count() == before + 200
