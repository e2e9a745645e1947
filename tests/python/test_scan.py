"""flexsn.scan: a core over sequences, with no state of its own."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import flexsn
from flexsn.fused import trace_count


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        s = torch.sigmoid(4 * u)
        return grad * 4 * s * (1 - s)


class Lif(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, v: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        v = v + (x - v) * self.w.sigmoid()
        s = Spike.apply(v - threshold)
        return s, v * (1 - s)

    def step(self, x: Tensor, v: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        return self(x, v, threshold)


def loop(core, x: Tensor, v: Tensor, *params) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(x.shape[0]):
        output, v = core(x[t], v, *params)
        outputs.append(output)
    return torch.stack(outputs), v


def cores(lif: Lif) -> dict:
    def function(x: Tensor, v: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        return lif(x, v, threshold)

    return {"function": function, "module": lif, "method": lif.step, "partial": functools.partial(lif.step)}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["function", "module", "method", "partial"])
def test_scan_is_the_loop_with_all_its_gradients(kind: str, compiled: bool) -> None:
    lif = Lif()
    core = cores(lif)[kind]
    x = torch.randn(6, 3, 5, requires_grad=True)
    v = torch.randn(3, 5, requires_grad=True)
    threshold = torch.rand(3, 1, requires_grad=True)

    def run(x: Tensor, v: Tensor, threshold: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return flexsn.scan(core, [x], [v], [threshold])

    if compiled:
        run = torch.compile(run, fullgraph=True, backend="aot_eager")
    outputs, states = run(x, v, threshold)
    assert len(outputs) == 1 and len(states) == 1
    expected = loop(core, x, v, threshold)
    assert torch.equal(outputs[0], expected[0])
    torch.testing.assert_close(states[0], expected[1])
    leaves = [x, v, threshold, lif.w]
    weights = torch.randn(3, 5)
    found = torch.autograd.grad(outputs[0].sum() + (states[0] * weights).sum(), leaves)
    wanted = torch.autograd.grad(expected[0].sum() + (expected[1] * weights).sum(), leaves)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_single_tensor_stands_for_a_list_of_one() -> None:
    x, v = torch.randn(4, 3), torch.randn(3)
    outputs, states = flexsn.scan(lambda x, v, p: (x * p + v, x), x, v, torch.tensor(2.0))
    listed = flexsn.scan(lambda x, v, p: (x * p + v, x), [x], [v], [torch.tensor(2.0)])
    assert torch.equal(outputs[0], listed[0][0]) and torch.equal(states[0], listed[1][0])


def test_no_states_and_several_outputs() -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    outputs, states = flexsn.scan(lambda x, y: (x + y, x * y), [x, y], [])
    assert states == [] and torch.equal(outputs[0], x + y) and torch.equal(outputs[1], x * y)


def test_an_empty_sequence_gives_empty_outputs_and_copies_of_the_states() -> None:
    v = torch.randn(3, requires_grad=True)
    outputs, states = flexsn.scan(lambda x, v: ((x + v) > 0, x * v), torch.randn(0, 3), v)
    assert outputs[0].shape == (0, 3) and outputs[0].dtype == torch.bool
    assert torch.equal(states[0], v) and states[0].data_ptr() != v.data_ptr()
    states[0].sum().backward()
    assert torch.equal(v.grad, torch.ones(3))


def test_a_loop_of_calls_neither_traces_nor_walks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    import flexsn.fused as fused

    walks = []
    real = fused.Reach
    monkeypatch.setattr(fused, "Reach", lambda core: walks.append(core) or real(core))
    lif, x, v, threshold = Lif(), torch.randn(4, 3), torch.zeros(3), torch.rand(3)
    for core in cores(lif).values():
        walks.clear()
        flexsn.scan(core, x, v, [threshold])
        traces = trace_count()
        for _ in range(3):
            again = lif.step if core == lif.step else core  # a method is a new object each time
            flexsn.scan(again, x, v, [threshold])
        assert len(walks) == 1 and trace_count() == traces


def test_a_changed_number_and_a_replaced_tensor_are_seen() -> None:
    class Scale:
        def __init__(self) -> None:
            self.a, self.b = 2.0, torch.tensor(3.0)

        def __call__(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return x * self.a + self.b, v

    core, x, v = Scale(), torch.ones(2, 3), torch.zeros(3)
    for a, b in ((2.0, 3.0), (5.0, 3.0), (5.0, 4.0)):
        core.a, core.b = a, torch.tensor(b)
        assert torch.equal(flexsn.scan(core, x, v)[0][0], x * a + b)


def test_what_is_kept_for_a_function_goes_away_with_it() -> None:
    held = torch.randn(3)

    def make():
        captured = held.clone()
        return (lambda x, v: (x * captured, v)), weakref.ref(captured)

    core, captured = make()
    flexsn.scan(core, torch.randn(2, 3), torch.zeros(3))
    del core
    gc.collect()
    assert captured() is None


def test_a_wrapped_function_is_not_taken_for_what_it_wraps() -> None:
    def inner(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, v

    x, v = torch.ones(2, 3), torch.zeros(3)
    flexsn.scan(inner, x, v)

    @functools.wraps(inner)
    def outer(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return inner(x, v)[0] + 1, v

    assert torch.equal(flexsn.scan(outer, x, v)[0][0], x * 2 + 1)
    assert torch.equal(flexsn.scan(inner, x, v)[0][0], x * 2)


def test_compiled_code_sees_another_core_and_a_changed_number() -> None:
    def make(a: float):
        return lambda x, v: (x * a, v + x)

    @torch.compile(fullgraph=True, backend="eager")
    def run(core, x: Tensor, v: Tensor) -> Tensor:
        return flexsn.scan(core, x, v)[0][0]

    x, v = torch.ones(2, 3), torch.zeros(3)
    two, three = make(2.0), make(3.0)
    assert [float(run(core, x, v)[0, 0]) for core in (two, three, two)] == [2.0, 3.0, 2.0]


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_code_takes_numbers_that_change(dynamic: bool | None) -> None:
    def core(x: Tensor, v: Tensor, q: float) -> tuple[Tensor, Tensor]:
        v = 0.5 * v + x * q
        return v, v

    torch._dynamo.reset()
    x, v = torch.randn(4, 3), torch.zeros(3)
    run = torch.compile(
        lambda x, v, q: flexsn.scan(core, x, v, [q])[0][0], fullgraph=True, backend="eager", dynamic=dynamic
    )
    for number in (0.3, 0.4, 2, 3, 0.3):
        assert torch.equal(run(x, v, number), flexsn.scan(core, x, v, [number])[0][0])


def test_compiled_code_serves_every_length_with_one_graph() -> None:
    graphs = []

    def backend(module, examples):
        graphs.append(module)
        return module.forward

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * v, v + x

    run = torch.compile(
        lambda x, v: flexsn.scan(core, x, v)[1][0], fullgraph=True, dynamic=True, backend=backend
    )
    v = torch.zeros(7)
    for length in (3, 4, 6, 9):
        torch.testing.assert_close(run(torch.ones(length, 7), v), torch.full((7,), float(length)))
    assert len(graphs) == 1


def test_a_core_made_inside_compiled_code_that_captures_nothing_runs() -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def run(x: Tensor, v: Tensor) -> Tensor:
        def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return x * 3, v

        return flexsn.scan(core, x, v)[0][0]

    assert torch.equal(run(torch.ones(2, 3), torch.zeros(3)), torch.full((2, 3), 3.0))


def test_a_core_made_inside_compiled_code_that_captures_is_an_error() -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def run(x: Tensor, v: Tensor, k: float) -> Tensor:
        return flexsn.scan(lambda x, v: (x * k, v), x, v)[0][0]

    with pytest.raises(Exception, match="made inside a function under torch.compile and captures something"):
        run(torch.ones(2, 3), torch.zeros(3), 2.0)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((3, torch.ones(2), torch.ones(())), TypeError, "core must be callable, found int"),
        ((max, [], []), ValueError, "there must be an input, whose leading dimension is time"),
        ((max, 3, []), TypeError, "inputs must be a list of tensors, found int"),
        ((max, [3], []), TypeError, "input 0 must be a tensor, found int"),
        ((max, torch.ones(()), []), ValueError, "input 0 must have time as its first dimension"),
        ((max, [torch.ones(2), torch.ones(3)], []), ValueError, "input 0 has 2 steps, input 1 has 3"),
        ((max, torch.ones(2), None), TypeError, "states must be a list of tensors, found NoneType"),
        ((max, torch.ones(2), [None]), TypeError, "state 0 must be a tensor, found NoneType"),
        ((max, torch.ones(2), [], ["a"]), TypeError, r"params\[0\] must be a tensor or a number, found str"),
        (
            (lambda x, v: (x, v), torch.ones(2, 3), torch.ones(4)),
            ValueError,
            r"^flexsn.scan: state 0 must have the shape of one step, \[3\], found \[4\]; expand it$",
        ),
        (
            (lambda x, v, u: x, torch.ones(2, 3), [torch.ones(3), torch.ones(3)]),
            ValueError,
            "returned 1 values, but num_states=2 of them must be new states",
        ),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_was_expected(arguments, error, text: str) -> None:
    with pytest.raises(error, match=text):
        flexsn.scan(*arguments)
