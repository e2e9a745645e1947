"""Cores that cannot be fused: each error says what, at which line of the user's code, and what to do."""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch.nn.functional as F
from flexsn import FlexSN
from flexsn._trace import TraceError
from flexsn.fused import Fused

import torch
from torch import Tensor, nn

W = torch.randn(4, 4)
ROWS = torch.arange(4)
LAYER = nn.Linear(4, 4)


def run(
    core: Callable[..., Any], *shape: int, num_states: int = 0, dtype: torch.dtype = torch.float32
) -> None:
    x = torch.rand(2, *(shape or (3, 4))).to(dtype)
    Fused(core, 1, num_states, None)([x])


def line_of(core: Callable[..., Any]) -> int:
    """The line that is marked in the source of the core."""
    lines, first = inspect.getsourcelines(core)
    return first + next(i for i, line in enumerate(lines) if "# here" in line)


def place_of(core: Callable[..., Any]) -> str:
    return re.escape(f"test_import_errors.py:{line_of(core)}")


# ---- what is not pointwise ---------------------------------------------------------------------------------


def sums(x: Tensor) -> Tensor:
    y = x * 2
    total = y.sum()  # here
    return y / total


def means(x: Tensor) -> Tensor:
    return x - x.mean(0)  # here


def takes_maximum(x: Tensor) -> Tensor:
    y = x * 2
    return y - y.max()  # here


def normalises(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])  # here


def softmaxes(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)  # here


def is_all(x: Tensor) -> Tensor:
    return torch.where((x > 0).all(), x, -x)  # here


def multiplies_matrices(x: Tensor) -> Tensor:
    y = x + 1
    return y @ W  # here


def is_linear(x: Tensor) -> Tensor:
    return F.linear(x, W)  # here


def indexes(x: Tensor) -> Tensor:
    return x[0] + x  # here


def slices(x: Tensor) -> Tensor:
    return x[:, :2].repeat(1, 2)  # here


def picks(x: Tensor) -> Tensor:
    return x[:, ROWS]  # here


def assigns_a_slice(x: Tensor) -> Tensor:
    y = x * 1
    y[0] = 0  # here
    return y


def assigns_where_indexed(x: Tensor) -> Tensor:
    y = x * 1
    y[ROWS[:3]] = 0.0  # here
    return y


def is_a_layer(x: Tensor) -> Tensor:
    return LAYER(x)  # here


def transposes(x: Tensor) -> Tensor:
    return x * 2 + x.flip(0)  # here


def rolls(x: Tensor) -> Tensor:
    return torch.roll(x, 1)  # here


def concatenates(x: Tensor) -> Tensor:
    return torch.cat([x, x])  # here


def accumulates(x: Tensor) -> Tensor:
    return x.cumsum(0)  # here


def reshapes(x: Tensor) -> Tensor:
    return x.reshape(4, 3).reshape(3, 4) + x.flatten().view(3, 4)  # here


@pytest.mark.parametrize(
    ("core", "text"),
    [
        (
            sums,
            "torch.div .* uses a sum over elements .*, but a step works on each element alone.*outside",
        ),
        (means, "torch.mean .* reduces over elements"),
        (takes_maximum, "torch.max .* reduces over elements"),
        (normalises, "torch.native_layer_norm .* reduces over elements"),
        (softmaxes, "torch._softmax .* reduces over elements"),
        (is_all, "torch.all .* reduces over elements"),
        (multiplies_matrices, "torch.mm .* multiplies matrices"),
        (is_a_layer, "torch.(mm|addmm|linear) .* multiplies matrices"),
        (is_linear, "torch.(mm|addmm|linear) .* multiplies matrices"),
        (indexes, "torch.select .* moves or picks elements"),
        (slices, "torch.slice .* moves or picks elements"),
        (picks, "torch.index .* moves or picks elements"),
        (assigns_where_indexed, "torch.index_put .* moves or picks elements"),
        (assigns_a_slice, "torch.select .* moves or picks elements"),
        (transposes, "torch.flip .* moves or picks elements"),
        (rolls, "torch.roll .* moves or picks elements"),
        (concatenates, "torch.cat .* moves or picks elements"),
        (accumulates, "torch.cumsum .* moves or picks elements"),
        (reshapes, r"torch.view .* turns shape \[3, 4\] into \[4, 3\]|torch.view .* gives shape \[4, 3\]"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_function_that_is_not_pointwise_is_refused_with_its_line(core: Callable[..., Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"{core.__name__}: {text}") as failure:
        run(core)
    assert re.search(place_of(core), str(failure.value)), failure.value
    assert (
        'backend="torch"' in str(failure.value)
        or "broadcast to the step" in str(failure.value)
        or "stay where they are" in str(failure.value)
    )


def calls_a_helper(x: Tensor) -> Tensor:
    return _helper(x) + 1


def _helper(x: Tensor) -> Tensor:
    return x.mean()  # here


def test_error_names_the_innermost_line_of_the_user() -> None:
    with pytest.raises(ValueError, match=place_of(_helper)):
        run(calls_a_helper)


def is_unknown(x: Tensor) -> Tensor:
    return torch.lgamma(x)  # here


def test_function_that_is_not_known_is_named() -> None:
    with pytest.raises(
        ValueError, match=rf"torch.lgamma \(.*{place_of(is_unknown)}\) is not among the functions"
    ):
        run(is_unknown)


def test_grown_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"gives shape \[4, 3, 4\], but the step's shape is \[3, 4\]"):
        run(lambda x: x + torch.ones(4, 1, 1))


def test_output_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"output 0 has shape \[1, 3, 4\], but the step's shape is \[3, 4\]"):
        run(lambda x: (x.unsqueeze(0),))


def test_state_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"new state 0 has shape \[\], but the step's shape is \[3, 4\]"):
        run(lambda x, v: (x + v, torch.zeros(())), num_states=1)


# ---- values, branches, randomness --------------------------------------------------------------------------


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        return x
    return -x


def loops(x: Tensor) -> Tensor:
    while (x > 1).any():  # here
        x = x / 2
    return x


def reads_item(x: Tensor) -> Tensor:
    return x * x.max().item()  # here


def makes_a_float(x: Tensor) -> Tensor:
    return x * float(x.flatten()[0])  # here


def makes_a_list(x: Tensor) -> Tensor:
    return x * x.tolist()[0][0]  # here


LEVEL = torch.tensor(0.5)


def reads_a_captured_value(x: Tensor) -> Tensor:
    return x * LEVEL.item()  # here


def branches_on_a_captured_value(x: Tensor) -> Tensor:
    return x * 2 if LEVEL > 0 else x  # here


VALUE_READERS = [
    branches, loops, reads_item, makes_a_float, makes_a_list, reads_a_captured_value,
    branches_on_a_captured_value,
]  # fmt: skip


@pytest.mark.parametrize("core", VALUE_READERS, ids=lambda core: core.__name__)
def test_reading_a_value_is_refused_with_its_line(core: Callable[..., Any]) -> None:
    with pytest.raises(
        TraceError, match=rf"{core.__name__} \(.*{place_of(core)}\): reads the value of a tensor.*torch.where"
    ):
        run(core)


def uses_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(numpy.tanh(x.detach().numpy()))  # here


def uses_a_numpy_function(x: Tensor) -> Tensor:
    return torch.as_tensor(numpy.tanh(x))  # here


@pytest.mark.parametrize("core", [uses_numpy, uses_a_numpy_function], ids=lambda core: core.__name__)
def test_leaving_torch_is_refused_with_its_line(core: Callable[..., Any]) -> None:
    with pytest.raises(TraceError, match=rf"{core.__name__} \(.*{place_of(core)}\): a tensor leaves torch"):
        run(core)


def draws_like(x: Tensor) -> Tensor:
    return x * torch.rand_like(x)  # here


def draws(x: Tensor) -> Tensor:
    return x * torch.randn(4)  # here


def draws_a_number(x: Tensor) -> Tensor:
    return x * torch.rand(())  # here


def drops(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5)  # here


def draws_spikes(x: Tensor) -> Tensor:
    return torch.bernoulli(x)  # here


def draws_in_place(x: Tensor) -> Tensor:
    return x * torch.empty_like(x).uniform_()  # here


def draws_for_a_parameter(x: Tensor) -> Tensor:
    noisy = torch.normal(W, 1.0)  # here
    return x * noisy[0]


@pytest.mark.parametrize(
    "core",
    [draws_like, draws, draws_a_number, drops, draws_spikes, draws_in_place, draws_for_a_parameter],
    ids=lambda core: core.__name__,
)
def test_randomness_is_refused_with_its_line(core: Callable[..., Any]) -> None:
    with pytest.raises(
        ValueError, match="draws random numbers, which a step cannot.*outside the core"
    ) as failure:
        run(core)
    assert re.search(place_of(core), str(failure.value)), failure.value


def divides_by_a_size(x: Tensor) -> Tensor:
    y = x * 2
    return y / x.shape[-1]  # here


def counts_elements(x: Tensor) -> Tensor:
    n = x.numel()
    return x * n  # here


def branches_on_a_size(x: Tensor) -> Tensor:
    if x.size(0) == 3:  # here
        return x * 2
    return torch.exp(x)


class DividesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g / g.numel()  # here


@pytest.mark.parametrize(
    "core", [divides_by_a_size, counts_elements, branches_on_a_size], ids=lambda c: c.__name__
)
def test_shape_read_into_arithmetic_is_refused_with_its_line(core: Callable[..., Any]) -> None:
    with pytest.raises(
        TraceError, match=rf"{core.__name__} \(.*{place_of(core)}\) computes something else at shape \[4, 5\]"
    ):
        run(core)


def picks_a_number_by_size(x: Tensor) -> Tensor:
    return x * (0.1, 0.2, 0.3, 0.4, 0.5)[x.shape[-1]]  # here


def test_core_that_fails_at_other_shapes_because_it_reads_them_is_refused() -> None:
    text = rf"{place_of(picks_a_number_by_size)}\) reads the shape of a tensor and fails at other shapes"
    with pytest.raises(TraceError, match=text):
        run(picks_a_number_by_size)


def test_shape_read_into_a_gradient_is_refused_with_its_line() -> None:
    with pytest.raises(TraceError, match=place_of(DividesInBackward)):
        run(lambda x: DividesInBackward.apply(x))


# ---- types -------------------------------------------------------------------------------------------------


def makes_int64(x: Tensor) -> Tensor:
    return x * (x > 0).long()  # here


def makes_complex(x: Tensor) -> Tensor:
    return (x * 1j).abs()  # here


def test_int64_is_refused_and_int32_is_named() -> None:
    with pytest.raises(
        ValueError, match=rf"{place_of(makes_int64)}\) gives int64; integers of a step are int32"
    ):
        run(makes_int64)


def test_complex_is_refused_with_its_line() -> None:
    with pytest.raises(
        ValueError, match=rf"{place_of(makes_complex)}\) gives complex64; a step works with float32"
    ):
        run(makes_complex)


def test_int64_input_is_refused() -> None:
    with pytest.raises((ValueError, TypeError), match="input 0 is int64; integers of a step are int32"):
        run(lambda x: x + 1, dtype=torch.int64)


def uses_int64_tensor(x: Tensor) -> Tensor:
    return x * ROWS  # here


def test_captured_int64_tensor_is_refused_with_the_line_that_reads_it() -> None:
    with pytest.raises(
        TraceError, match=rf"{place_of(uses_int64_tensor)}\): a captured tensor .* int64.*\.int\(\)"
    ):
        run(uses_int64_tensor)


# ---- what a core returns and raises ------------------------------------------------------------------------


def test_error_of_the_core_itself_passes_unchanged() -> None:
    class Mine(Exception):
        pass

    def raises(x: Tensor) -> Tensor:
        raise Mine("my words")

    with pytest.raises(Mine, match="^my words$"):
        run(raises)


def mismatches(x: Tensor) -> Tensor:
    return x + torch.ones(5)  # here


def test_error_of_torch_inside_the_core_gets_its_line() -> None:
    with pytest.raises(
        TraceError, match=rf"mismatches \(.*{place_of(mismatches)}\) cannot be traced: .*broadcast"
    ):
        run(mismatches)


def test_core_may_print(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(x: Tensor) -> Tensor:
        print("in the step", x.dtype)
        return x + 1

    run(prints)
    assert "in the step torch.float32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "must return tensors .*, found NoneType"),
        ({"y": 1}, "must return tensors .*, found dict"),
        (1.0, "must return tensors .*, found float"),
        ((1.0,), "value 0 is float"),
    ],
)
def test_core_that_does_not_return_tensors_is_refused(value: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        run(lambda x: value)


def test_core_that_forgets_a_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="value 1 is NoneType"):
        run(lambda x, v: (x, None), num_states=1)


def test_core_may_return_a_list_or_a_view() -> None:
    x = torch.randn(2, 3)
    outputs, states = Fused(lambda x, v: [x.view(3), v.view(-1) + x], 1, 1, None)([x])
    assert torch.equal(outputs[0], x) and torch.allclose(states[0], x.sum(0))


def test_too_few_results_are_refused_with_counts() -> None:
    with pytest.raises(ValueError, match="returned 1 values, but num_states=2 of them must be new states"):
        run(lambda x, u, v: x, num_states=2)


def test_other_count_of_outputs_is_refused_with_counts() -> None:
    with pytest.raises(ValueError, match="returned 3 values, expected 1 outputs and 1 new states"):
        Fused(lambda x, v: (x, x, v), 1, 1, 1)([torch.zeros(2, 3)])


# ---- what a core changes -----------------------------------------------------------------------------------


def test_changed_arguments_are_the_cores_own() -> None:
    def in_place(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        v += x
        s = v >= 1
        v[:] = v - 0.5
        v.masked_fill_(s, 0.0)
        return s.to(v.dtype), v

    x = torch.rand(5, 7, requires_grad=True)
    kept = x.detach().clone()
    outputs, states = Fused(in_place, 1, 1, 1)([x])
    v = torch.zeros(7)
    for t in range(5):
        s, v = in_place(kept[t].clone(), v.clone())
        assert torch.equal(outputs[0][t], s)
    assert torch.equal(states[0], v) and torch.equal(x.detach(), kept)


BUFFER = torch.zeros(4)


def adds_to_a_captured_tensor(x: Tensor) -> Tensor:
    BUFFER.add_(x.mean())  # here
    return x + BUFFER


def assigns_into_a_captured_tensor(x: Tensor) -> Tensor:
    BUFFER[0] = 1.0  # here
    return x + BUFFER


def adds_with_an_operator(x: Tensor) -> Tensor:
    buffer = BUFFER
    buffer += 1  # here
    return x + buffer


def writes_out(x: Tensor) -> Tensor:
    torch.add(x, 1, out=BUFFER)  # here
    return x + BUFFER


def works_in_place_on_a_captured_tensor(x: Tensor) -> Tensor:
    F.relu(BUFFER, inplace=True)  # here
    return x + BUFFER


@pytest.mark.parametrize(
    "core",
    [adds_to_a_captured_tensor, assigns_into_a_captured_tensor, adds_with_an_operator, writes_out,
     works_in_place_on_a_captured_tensor],
    ids=lambda core: core.__name__,
)  # fmt: skip
def test_changing_a_captured_tensor_is_refused_with_its_line(core: Callable[..., Any]) -> None:
    with pytest.raises(
        TraceError, match=rf"{place_of(core)}\): \w+ changes a tensor that is neither an input nor a state"
    ):
        run(core)
    assert torch.equal(BUFFER, torch.zeros(4))


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.v = torch.zeros(4)
        self.calls = 0


class KeepsState(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.v = self.v * 0.5 + x
        return self.v


class KeepsWithoutReading(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2
        return self.last


class Counts(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


class KeepsABuffer(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.level = self.level + x
        return self.level


class HoldsANeuron(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.neuron = FlexSN(lambda x, v: (x + v, v + x), 1, 1, 1, step_mode="s", backend="torch")

    def forward(self, x: Tensor) -> Tensor:
        return self.neuron(x)


@pytest.mark.parametrize(
    ("kind", "what"),
    [(KeepsState, "v"), (KeepsWithoutReading, "last"), (Counts, "calls"), (KeepsABuffer, "level"),
     (HoldsANeuron, "states")],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_assigning_to_self_is_refused_and_undone(kind: type[nn.Module], what: str) -> None:
    core = kind()
    before = {name: value for name, value in core.__dict__.items()}
    with pytest.raises(
        TraceError, match=rf"changes what it does not return .*{what}.*return it as a new state"
    ):
        run(core)
    assert core.__dict__ == before
    assert all(type(value) is Tensor for value in core.buffers())


def test_growing_a_captured_list_is_refused() -> None:
    log: list[Tensor] = []

    def logs(x: Tensor) -> Tensor:
        log.append(x)
        return x * 2

    with pytest.raises(TraceError, match="changes what it does not return .*log"):
        run(logs)


# ---- parameters that cannot be followed --------------------------------------------------------------------


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 3


SCALE = nn.Parameter(torch.tensor(2.0))


def test_parameter_through_a_user_function_before_it_meets_an_input_is_refused() -> None:
    with pytest.raises(
        TraceError, match="a parameter goes through Doubles.*, an autograd.Function, before it meets an input"
    ):
        run(lambda x: x * Doubles.apply(SCALE))


def test_parameter_beside_an_input_in_a_user_function_is_served() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return g * w, (g * x).sum() * 0.5

    x = torch.randn(2, 3, requires_grad=True)
    outputs, _ = Fused(lambda x: Scaled.apply(x, SCALE), 1, 0, 1)([x])
    found = torch.autograd.grad(outputs[0].sum(), (x, SCALE))
    torch.testing.assert_close(found[0], torch.full_like(x, 2.0))
    torch.testing.assert_close(found[1], x.detach().sum() * 0.5)


class SumsTooMuch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return g, (g * x).sum().expand(3)  # here


PER_CHANNEL = nn.Parameter(torch.rand(3))


def test_gradient_that_is_summed_over_the_parameters_own_axes_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{place_of(SumsTooMuch)}.* uses a sum over elements"):
        run(lambda x: SumsTooMuch.apply(x, PER_CHANNEL), 5, 3)


def test_gradient_that_adds_to_a_sum_is_refused() -> None:
    class Decays(SumsTooMuch):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            (x,) = ctx.saved_tensors
            return g, (g * x).sum(0) + 0.1

    with pytest.raises(ValueError, match="torch.add .* uses a sum over elements"):
        run(lambda x: Decays.apply(x, PER_CHANNEL), 5, 3)


def test_gradient_summed_over_another_axis_is_refused() -> None:
    class Crossed(SumsTooMuch):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            (x,) = ctx.saved_tensors
            return g, (g * x).sum(1)

    with pytest.raises(ValueError, match="the gradient of a parameter is summed over other axes"):
        run(lambda x: Crossed.apply(x, PER_CHANNEL), 3, 3)


def test_data_of_a_tensor_is_refused() -> None:
    with pytest.raises(TraceError, match=r"\.data goes past autograd; write \.detach\(\)"):
        run(lambda x: x * x.data)


def test_tensor_that_cannot_be_followed_is_refused() -> None:
    box = iter(deque([torch.full((4,), 3.0)] * 100))

    def reaches(x: Tensor) -> Tensor:
        return x * next(box)

    with pytest.raises(
        TraceError, match="reaches a tensor in a way that flexsn cannot follow; capture it as an attribute"
    ):
        run(reaches)


def test_sparse_tensor_is_refused() -> None:
    sparse = torch.eye(4).to_sparse()
    with pytest.raises((TraceError, ValueError, RuntimeError), match="(?i)sparse"):
        run(lambda x: x * sparse, 4, 4)
