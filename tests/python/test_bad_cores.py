"""Cores that nobody planned for: refused with the line at fault and a way out, or run with a right result."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import os
import random
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
import torch.nn.functional as F
from cores import by_loop

import flexsn
import torch
from flexsn import FlexSN
from flexsn._trace import TraceError
from torch import Tensor, nn

X, V = torch.linspace(-1.0, 2.0, 12).view(4, 3), torch.linspace(0.0, 0.5, 3)
WAY_OUT = 'backend="torch"'
RETURN = "return (*outputs, *new_states)"
HERE = f"{os.path.basename(__file__)}:"


class Row(NamedTuple):
    core: Callable[..., Any]
    error: type[Exception]
    parts: tuple[str, ...]


REFUSED: list[Any] = []
ALLOWED: list[Any] = []


def refused(error: type[Exception], *parts: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a core to those that are refused; the line that is marked in it must be named."""

    def add(core: Callable[..., Any]) -> Callable[..., Any]:
        REFUSED.append(pytest.param(Row(core, error, parts), id=core.__name__.replace("_", " ")))
        return core

    return add


def allowed(core: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a core to those that run."""
    ALLOWED.append(pytest.param(core, id=core.__name__.replace("_", " ")))
    return core


def marked_line(core: Callable[..., Any]) -> int | None:
    lines, first = inspect.getsourcelines(core)
    return next((first + i for i, line in enumerate(lines) if "# here" in line), None)


# ---- what the core does with data --------------------------------------------------------------------------


@refused(ValueError, "reads the value of a tensor", "torch.where", WAY_OUT)
def branches_on_data(x: Tensor, v: Tensor) -> Any:
    if x.max() > 0:  # here
        return x, v
    return -x, v


@refused(ValueError, "reads the value of a tensor", "torch.where")
def loops_on_data(x: Tensor, v: Tensor) -> Any:
    while (v > 1).any():  # here
        v = v * 0.5
    return x, v


@refused(ValueError, "reads the value of a tensor", "torch.where")
def takes_an_item(x: Tensor, v: Tensor) -> Any:
    return x * v[0].item(), v  # here


@refused(ValueError, "reads the value of a tensor", "torch.where")
def makes_a_float(x: Tensor, v: Tensor) -> Any:
    return x * float(v.sum()), v  # here


@refused(ValueError, "reads the value of a tensor", "torch.where")
def asserts_on_data(x: Tensor, v: Tensor) -> Any:
    assert (x < 100).all()  # here
    return x, v


@refused(ValueError, "leaves torch", "torch functions", WAY_OUT)
def uses_numpy(x: Tensor, v: Tensor) -> Any:
    return torch.as_tensor(numpy.tanh(x.detach().numpy())), v  # here


@refused(ValueError, "leaves torch", WAY_OUT)
def hands_a_tensor_to_numpy(x: Tensor, v: Tensor) -> Any:
    return torch.as_tensor(numpy.maximum(x, 0.0)), v  # here


@refused(ValueError, "reads the value of a tensor")
def makes_a_list(x: Tensor, v: Tensor) -> Any:
    return torch.tensor(x.tolist()), v  # here


@refused(ValueError, ".data goes past autograd", ".detach()")
def uses_data(x: Tensor, v: Tensor) -> Any:
    return x.data * 2, v  # here


@refused(ValueError, "sum", "each element alone", WAY_OUT)
def sums(x: Tensor, v: Tensor) -> Any:
    return x / x.sum(), v  # here


@refused(ValueError, "mean", "each element alone", WAY_OUT)
def subtracts_the_mean(x: Tensor, v: Tensor) -> Any:
    return x - x.mean(-1, keepdim=True), v  # here


@refused(ValueError, "softmax", WAY_OUT)
def competes(x: Tensor, v: Tensor) -> Any:
    return torch.softmax(x, -1), v  # here


@refused(ValueError, "sort", WAY_OUT)
def sorts(x: Tensor, v: Tensor) -> Any:
    return x.sort().values, v  # here


@refused(ValueError, WAY_OUT)
def shifts_along_neurons(x: Tensor, v: Tensor) -> Any:
    return torch.roll(x, 1, -1), v  # here


@refused(ValueError, WAY_OUT)
def takes_a_slice(x: Tensor, v: Tensor) -> Any:
    return x, v[:1].expand_as(v)  # here


@refused(ValueError, WAY_OUT)
def writes_into_a_slice(x: Tensor, v: Tensor) -> Any:
    h = x * 2
    h[0] = 0  # here
    return h, v


WEIGHTS = torch.randn(3, 3)


@refused(ValueError, "outside", WAY_OUT)
def has_synapses(x: Tensor, v: Tensor) -> Any:
    return x @ WEIGHTS, v  # here


@refused(ValueError, "outside", WAY_OUT)
def convolves(x: Tensor, v: Tensor) -> Any:
    return F.conv1d(x.view(1, 1, -1), torch.ones(1, 1, 1)).view_as(x), v  # here


@refused(ValueError, "computes something else at shape", "from outside", WAY_OUT)
def divides_by_its_size(x: Tensor, v: Tensor) -> Any:
    return x / x.numel(), v  # here


@refused(ValueError, "not the same in every call", WAY_OUT)
def asks_how_it_lies_in_memory(x: Tensor, v: Tensor) -> Any:
    return (x if x.is_contiguous() else -x), v  # here


@refused(ValueError, "reads .dim_order of a tensor", WAY_OUT)
def asks_for_the_order_in_memory(x: Tensor, v: Tensor) -> Any:
    return (x if x.dim_order() == (0,) else -x), v  # here


@refused(ValueError, "changes a tensor by set_", WAY_OUT)
def takes_the_memory_of_another(x: Tensor, v: Tensor) -> Any:
    x.set_(v)  # here
    return x, v


@refused(ValueError, "gives a tensor on meta", "stays where its inputs are", WAY_OUT)
def goes_to_another_device(x: Tensor, v: Tensor) -> Any:
    return (x * 2).to("meta"), v  # here


@refused(ValueError, "reads the value of a tensor", WAY_OUT)
def asserts_later(x: Tensor, v: Tensor) -> Any:
    torch._assert_async((x < 0).all(), "positive")  # here
    return x, v


HOOKED = nn.Parameter(torch.tensor(0.5))


@refused(ValueError, "register_hook of a parameter", "outside the core", WAY_OUT)
def hooks_what_is_made_of_a_parameter(x: Tensor, v: Tensor) -> Any:
    decay = torch.sigmoid(HOOKED)
    decay.register_hook(lambda grad: 0 * grad)  # here
    return x, v * decay


@refused(ValueError, "get_gradient_edge of a parameter", "outside the core", WAY_OUT)
def hooks_a_node_of_autograd(x: Tensor, v: Tensor) -> Any:
    edge = torch.autograd.graph.get_gradient_edge(torch.sigmoid(HOOKED))  # here
    edge.node.register_prehook(lambda grads: (grads[0] * 0,))
    return x, v * HOOKED


@refused(ValueError, "or a hook, raises ZeroDivisionError: division by zero", WAY_OUT)
def has_a_hook_that_raises(x: Tensor, v: Tensor) -> Any:
    h = v * 0.5 + x
    h.register_hook(lambda grad: 1 / 0)  # here
    return h, h


# ---- what changes from call to call ------------------------------------------------------------------------


@refused(ValueError, "random", "outside the core", WAY_OUT)
def draws_like_a_tensor(x: Tensor, v: Tensor) -> Any:
    return x + torch.rand_like(x), v  # here


@refused(ValueError, "random", WAY_OUT)
def drops_out(x: Tensor, v: Tensor) -> Any:
    return F.dropout(x, 0.5), v  # here


@refused(ValueError, "random", WAY_OUT)
def draws_in_place(x: Tensor, v: Tensor) -> Any:
    return x + torch.empty_like(x).normal_(), v  # here


@refused(ValueError, "draws_by_python draws random numbers", "outside the core", WAY_OUT)
def draws_by_python(x: Tensor, v: Tensor) -> Any:
    return x * random.random(), v


@refused(ValueError, "draws_by_numpy draws random numbers", "outside the core", WAY_OUT)
def draws_by_numpy(x: Tensor, v: Tensor) -> Any:
    return x * float(numpy.random.rand()), v


@refused(ValueError, "time", "outside the core", WAY_OUT)
def reads_the_clock(x: Tensor, v: Tensor) -> Any:
    return x * time.time(), v  # here


@refused(ValueError, "torch.is_warn_always_enabled", "outside the core", WAY_OUT)
def asks_whether_torch_warns(x: Tensor, v: Tensor) -> Any:
    return x * (2.0 if torch.is_warn_always_enabled() else 3.0), v  # here


@refused(ValueError, "open()", "outside the core", WAY_OUT)
def reads_a_file(x: Tensor, v: Tensor) -> Any:
    return x * len(open(__file__).read()), v  # here  # noqa: SIM115


@refused(ValueError, "eval()", WAY_OUT)
def evaluates_text(x: Tensor, v: Tensor) -> Any:
    return x * eval("2.0"), v  # here


@refused(ValueError, "id()", WAY_OUT)
def asks_for_an_id(x: Tensor, v: Tensor) -> Any:
    return x * (id(x) % 7), v  # here


@refused(ValueError, "hash() of a tensor", WAY_OUT)
def hashes_a_tensor(x: Tensor, v: Tensor) -> Any:
    return x * (hash((x, 1)) % 7), v  # here


CALLS: list[int] = []
COUNT = {"calls": 0}
BUFFER = torch.zeros(3)
SCALE = torch.tensor(2.0)


@refused(ValueError, "changes what it does not return", "return it as a new state", WAY_OUT)
def grows_a_list(x: Tensor, v: Tensor) -> Any:
    CALLS.append(1)
    return x, v


@refused(ValueError, "changes what it does not return", WAY_OUT)
def counts_its_calls(x: Tensor, v: Tensor) -> Any:
    COUNT["calls"] += 1
    return x, v


@refused(ValueError, "copy_ changes a tensor that is neither an input nor a state", "return it", WAY_OUT)
def writes_into_a_buffer(x: Tensor, v: Tensor) -> Any:
    BUFFER.copy_(x)  # here
    return x, v


@refused(ValueError, "changes a tensor that is neither an input nor a state", WAY_OUT)
def writes_by_out(x: Tensor, v: Tensor) -> Any:
    torch.add(x, v, out=BUFFER)  # here
    return x, v


@refused(ValueError, "mul_ changes a tensor", "make a new tensor", WAY_OUT)
def scales_what_it_captured(x: Tensor, v: Tensor) -> Any:
    return x * SCALE.mul_(2.0), v  # here


# ---- what it raises and returns ----------------------------------------------------------------------------


class Mine(Exception):
    """An error of the user's own."""


@refused(Mine, "not today")
def raises(x: Tensor, v: Tensor) -> Any:
    raise Mine("not today")


@refused(ZeroDivisionError, "division by zero")
def divides_by_zero(x: Tensor, v: Tensor) -> Any:
    return x * (1 / 0), v


@refused(RecursionError, "recursion")
def never_ends(x: Tensor, v: Tensor) -> Any:
    return never_ends(x, v)


@refused(NameError, "undefined_name")
def misspells(x: Tensor, v: Tensor) -> Any:
    return undefined_name * x, v  # noqa: F821


@refused(ValueError, "no attribute 'sigmid'", "mend it")
def misspells_torch(x: Tensor, v: Tensor) -> Any:
    return torch.sigmid(x), v  # here


@refused(ValueError, "cannot be traced", "mend it", WAY_OUT)
def adds_what_does_not_fit(x: Tensor, v: Tensor) -> Any:
    return x + torch.ones(7), v  # here


@refused(TypeError, "returns_nothing", HERE, "must return a tensor", "NoneType", RETURN)
def returns_nothing(x: Tensor, v: Tensor) -> None:
    x * v


@refused(TypeError, "returns_a_number", HERE, "result 0", "found float", RETURN)
def returns_a_number(x: Tensor, v: Tensor) -> Any:
    return 1.0, v


@refused(TypeError, "returns_a_dict", HERE, "must return a tensor", "found dict", RETURN)
def returns_a_dict(x: Tensor, v: Tensor) -> Any:
    return {"y": x, "v": v}


@refused(TypeError, "returns_pairs", HERE, "result 1", "found tuple", RETURN)
def returns_pairs(x: Tensor, v: Tensor) -> Any:
    return x, (v,)


@refused(TypeError, "yields", HERE, "must return a tensor", "found generator", RETURN)
def yields(x: Tensor, v: Tensor) -> Any:
    yield x


@refused(ValueError, "returns_too_little", HERE, "must return 1 states, found 0", RETURN)
def returns_too_little(x: Tensor, v: Tensor) -> Any:
    return ()


@refused(ValueError, "shape", WAY_OUT)
def returns_a_sum(x: Tensor, v: Tensor) -> Any:
    return x, v.new_zeros(5)  # here


@refused(ValueError, "int64", ".int()")
def returns_int64(x: Tensor, v: Tensor) -> Any:
    return x.long(), v  # here


@refused(ValueError, "complex", WAY_OUT)
def goes_complex(x: Tensor, v: Tensor) -> Any:
    return torch.complex(x, v).abs(), v  # here


@refused(ValueError, "device", WAY_OUT)
def changes_device(x: Tensor, v: Tensor) -> Any:
    return x.to("meta") + v, v  # here


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def good_neuron_is_right() -> None:
    neuron = FlexSN(lambda x, v: (v * 0.5 + x, v * 0.5 + x), num_states=1)
    assert neuron(torch.ones(3, 2)).tolist() == [[1.0, 1.0], [1.5, 1.5], [1.75, 1.75]]


@pytest.mark.parametrize("case", REFUSED)
def test_a_core_that_cannot_be_fused_is_refused_at_its_line(case: Row) -> None:
    watched = [X, V]
    before = [tensor.clone() for tensor in watched]
    with pytest.raises(case.error) as caught:
        neuron = FlexSN(case.core, num_inputs=1, num_states=1)  # runs the core once, as it is
        watched += [BUFFER, SCALE]
        before += [BUFFER.clone(), SCALE.clone()]
        neuron(X)
    message = str(caught.value)
    assert [part for part in case.parts if part not in message] == [], message
    line = marked_line(case.core)
    if line is not None:
        assert f"{HERE}{line}" in message, message
    elif case.error not in (ValueError, TypeError):  # an error of the core's own comes with its traceback
        assert any(entry.name == case.core.__name__ for entry in caught.traceback)
    for now, then in zip(watched, before, strict=True):
        assert torch.equal(now, then)
    good_neuron_is_right()


# ---- what is allowed ---------------------------------------------------------------------------------------


@allowed
def prints(x: Tensor, v: Tensor) -> Any:
    print("a step of shape", "?")
    return x + v, v + x


@allowed
def logs_and_warns(x: Tensor, v: Tensor) -> Any:
    logging.getLogger("of a test").debug("a step")
    warnings.warn("a step", stacklevel=1)
    return x + v, v + x


@allowed
def changes_its_input(x: Tensor, v: Tensor) -> Any:
    x.mul_(2.0)
    return x + v, v + x


@allowed
def changes_its_state(x: Tensor, v: Tensor) -> Any:
    v += x
    return v * 2.0, v


@allowed
def changes_a_copy(x: Tensor, v: Tensor) -> Any:
    h = v.clone()
    h.mul_(0.5).add_(x)
    return h.clamp_(min=0.0), v + x


@allowed
def changes_after_use(x: Tensor, v: Tensor) -> Any:
    h = v + x
    y = h * 2.0
    h.zero_()
    return y, h + x


@allowed
def returns_a_list(x: Tensor, v: Tensor) -> Any:
    return [x + v, v * x]


@allowed
def returns_views(x: Tensor, v: Tensor) -> Any:
    h = v * 0.5 + x
    return h.view(h.shape), h.unsqueeze(0).squeeze(0)


@allowed
def returns_one_tensor_twice(x: Tensor, v: Tensor) -> Any:
    h = v * 0.5 + x
    return h, h


@allowed
def returns_its_arguments(x: Tensor, v: Tensor) -> Any:
    return v, x


@allowed
def ignores_its_input(x: Tensor, v: Tensor) -> Any:
    return v * 1.0, v * 0.5 + 1.0


@allowed
def ignores_its_state(x: Tensor, v: Tensor) -> Any:
    return x * 2.0, x


@allowed
def has_only_a_state(x: Tensor, v: Tensor) -> Any:
    return (v * 0.5 + x,)


@allowed
def returns_a_bare_state(x: Tensor, v: Tensor) -> Any:
    return v * 0.5 + x


@allowed
def has_a_python_loop(x: Tensor, v: Tensor) -> Any:
    for i in range(3):
        v = v * 0.5 + x * i
    return v, v


@allowed
def catches_its_own_error(x: Tensor, v: Tensor) -> Any:
    try:
        raise Mine
    except Mine:
        return x + v, v * 0.5


@allowed
def recurses(x: Tensor, v: Tensor, depth: int = 3) -> Any:
    return (x + v, v * 0.5) if depth == 0 else recurses(x + 1.0, v, depth - 1)


@allowed
def makes_nan_and_infinity(x: Tensor, v: Tensor) -> Any:
    return torch.log(x), v + x * math.inf


@allowed
def divides_integers(x: Tensor, v: Tensor) -> Any:
    i = (x * 8).int()
    return torch.where(i == 0, v, v / i), v


@allowed
def has_a_slot_for_rank(x: Tensor, v: Tensor) -> Any:
    assert x.dim() >= 0 and x.shape == v.shape
    return x + v, v


@allowed
def captures_a_number_of_numpy(x: Tensor, v: Tensor) -> Any:
    return x * float(numpy.float32(0.1)) + v, v * 0.5


@pytest.mark.parametrize("steps", [4, 1])
@pytest.mark.parametrize("core", ALLOWED)
def test_an_odd_core_gives_what_the_loop_gives(core: Callable[..., Any], steps: int) -> None:
    ours, law = ([X[:steps].clone(), V.clone()] for _ in range(2))
    neuron = FlexSN(core, num_inputs=1, num_states=1)
    neuron.states = [ours[1]]
    outputs = neuron.multi_step_forward(ours[0])
    # The eager loop hands the core slices of the input, which it may change.
    expected, _, last = by_loop(
        lambda x, v: (lambda r: r if isinstance(r, (tuple, list)) else (r,))(core(x, v)),
        [law[0].clone()],
        [law[1].clone()],
    )
    for found, right in zip([*outputs, *neuron.states], [*expected, *last], strict=True):
        torch.testing.assert_close(found, right, equal_nan=True)
    assert torch.equal(ours[0], X[:steps]) and torch.equal(ours[1], V)  # what the core changes is its own


OVERLAPPING = {
    "one element for all": lambda: torch.tensor(0.7).expand(4, 3),
    "one step for all": lambda: V.expand(4, 3),
    "steps that overlap": lambda: torch.arange(6.0).unfold(0, 3, 1),
    "neurons that overlap": lambda: torch.as_strided(torch.arange(12.0), (4, 3), (1, 2)),
    "backwards": lambda: X.flip(0),
    "transposed": lambda: torch.arange(12.0).view(3, 4).T,
    "every other": lambda: torch.arange(48.0).view(8, 6)[::2, ::2],
    "with an offset": lambda: torch.arange(13.0)[1:].view(4, 3),
    "a real part": lambda: torch.complex(X, X + 1).real,
    "an imaginary part": lambda: torch.complex(X, X + 1).conj().imag,
}


@pytest.mark.parametrize("layout", OVERLAPPING)
def test_memory_that_overlaps_or_has_gaps_is_read_right(layout: str) -> None:
    x = OVERLAPPING[layout]()
    neuron = FlexSN(changes_its_input, num_inputs=1, num_states=1)
    neuron.states = [x[0]]  # a view of the input
    y = neuron(x)
    [expected], _, [last] = by_loop(returns_doubled, [x.clone()], [x[0].clone()])
    assert torch.equal(y, expected) and torch.equal(neuron.states[0], last)
    assert torch.equal(x, OVERLAPPING[layout]())


def returns_doubled(x: Tensor, v: Tensor) -> Any:
    return x * 2.0 + v, v + x * 2.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 3e38])
def test_a_parameter_of_any_value_gives_what_the_loop_gives(value: float) -> None:
    weight = nn.Parameter(torch.tensor([value, 1.0, value]))

    def core(x: Tensor, v: Tensor) -> Any:
        h = v * weight + x
        s = (h >= 1.0).to(h)
        return s * h, h - s

    found, law = [], []
    for backend, results in (("fused", found), ("torch", law)):
        neuron = FlexSN(core, num_inputs=1, num_states=1, backend=backend)
        x = X.clone().requires_grad_()
        y = neuron(x)
        results += [y, *neuron.states, *torch.autograd.grad(y.sum(), [x, weight])]
    for ours, right in zip(found, law, strict=True):
        torch.testing.assert_close(ours, right, equal_nan=True)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 0), (0, 3), (1, 1), (1,), (2, 1, 3, 1)])
def test_odd_shapes_give_what_the_loop_gives(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    y = FlexSN(returns_doubled, num_inputs=1, num_states=1, num_outputs=1)(x)
    assert y.shape == shape
    if shape[0]:
        [expected], _, _ = by_loop(returns_doubled, [x], [torch.zeros(shape[1:])])
        assert torch.equal(y, expected)


def test_a_decorator_that_takes_fewer_arguments_than_it_wraps_runs_with_counts() -> None:
    def weighted(x: Tensor, v: Tensor, w: float) -> Any:
        return x * w + v, v

    @functools.wraps(weighted)
    def core(x: Tensor, v: Tensor) -> Any:
        return weighted(x, v, 2.0)

    assert torch.equal(FlexSN(core, num_inputs=1, num_states=1)(X), X * 2.0)


def test_states_of_other_types_are_converted_and_not_misread() -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool):
        state = torch.tensor([0, 1, 1]).to(dtype)
        results = []
        for backend in ("fused", "torch"):
            neuron = FlexSN(returns_doubled, num_inputs=1, num_states=1, backend=backend)
            neuron.states = [state]
            results.append(neuron(X))
        torch.testing.assert_close(*results)


def test_meta_tensors_give_meta_tensors() -> None:
    y = FlexSN(returns_doubled, num_states=1)(X.to("meta"))
    assert y.is_meta and y.shape == X.shape and y.dtype == X.dtype


# ---- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returned, name",
    [(lambda x: x > 1, "bool"), (lambda x: (5 * x).int(), "int32"), (lambda x: x.half(), "float16")],
)
def test_a_state_that_comes_back_in_a_narrower_type_is_refused(returned, name: str) -> None:
    core = lambda x, v, w: (x + v + w, v + x, returned(x))  # noqa: E731
    message = rf"takes state 1 as float32 and returns it as {name}, .*\.to\(torch\.float32\), or start it as {name}"
    with pytest.raises(TypeError, match=message):
        FlexSN(core, num_states=2)(torch.ones(4, 3))
    with pytest.raises(TypeError, match=message):
        flexsn.scan(core, torch.ones(4, 3), [torch.zeros(3)] * 2)


def test_a_state_of_truth_values_stays_one() -> None:
    def core(x, last, before):
        return x + 0.5 * (last + before), x > 1, last

    x, nothing = torch.full((4, 1), 2.0), torch.zeros(1, dtype=torch.bool)
    results = []
    for backend in ("torch", "fused"):
        module = FlexSN(core, num_states=2, backend=backend)
        module.states = [nothing, nothing]
        results.append(module(x))
    assert torch.equal(*results) and results[0].flatten().tolist() == [2.0, 2.5, 2.5, 2.5]


@pytest.mark.parametrize("kind", [torch.int32, torch.bool])
def test_a_product_in_place_that_does_not_fit_is_refused(kind: torch.dtype) -> None:
    def core(x, v):
        n = x.to(kind)
        n *= 0.5
        return n, v + x

    name = str(kind).removeprefix("torch.")
    with pytest.raises(TraceError, match=rf"mul_ gives float32, which a tensor of {name} cannot hold; make a new"):
        FlexSN(core, num_states=1)(torch.ones(1, 2))


@pytest.mark.parametrize(
    "function, what",
    [
        (lambda x: torch.bitwise_or(x, x), "bitwise_or .* 'bit_or' takes i32 or bool, found f32"),
        (lambda x: (x ^ (x > 0)) * x, "bitwise_xor .* 'bit_xor' takes i32 or bool, found f32"),
        (lambda x: torch.relu(x > 1), "relu .* 'relu' takes f32, f64 or i32, found bool"),
    ],
)
def test_functions_of_types_that_they_do_not_take_are_refused_by_name(function, what: str) -> None:
    with torch.no_grad(), pytest.raises(TraceError, match=rf"torch\.{what}"):
        FlexSN(lambda x, v: (x, function(x) + v), num_states=1)(torch.ones(1, 2))


def test_the_sign_of_a_truth_value_is_itself() -> None:
    found = FlexSN(lambda x, v: (torch.sign(x > 1), v + x), num_states=1)(torch.tensor([[0.5, 2.0]]))
    assert found.dtype is torch.bool and found.tolist() == [[False, True]]


def test_a_buffer_that_a_core_assigns_is_named() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x, v):
            self.count = self.count + 1
            return v + x * self.count, v

    core = Counting()
    with pytest.raises(TraceError, match=r"changes what it does not return \(Counting\.count was assigned\)"):
        FlexSN(core, num_states=1)(torch.ones(1, 2))
    assert core.count.item() == 0


def test_a_state_that_is_no_tensor_is_named() -> None:
    module, x = FlexSN(lambda x, v: (x + v, v + x), num_states=1), torch.ones(4, 3)
    module(x)
    module.states[0] = None
    with pytest.raises(TypeError, match=r"state 0 must be a tensor, found NoneType; .* reset\(\)"):
        module(x)


def test_torch_prints_nothing_of_its_own_beside_an_error(capfd, caplog) -> None:
    weight = torch.rand(3, 3)
    with pytest.raises(TraceError, match="multiplies matrices"):
        FlexSN(lambda x, v: (x, v @ weight), num_states=1)(torch.rand(4, 2, 3))
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert capfd.readouterr().err == ""


def test_constants_of_a_step_on_the_meta_device() -> None:
    core = lambda x, v: (x + v, torch.where(x > 0, 0.0, v) + torch.full_like(x, 2.0))  # noqa: E731
    found = FlexSN(core, num_states=1)(torch.rand(6, 3, device="meta"))
    assert found.device.type == "meta" and found.shape == (6, 3)
