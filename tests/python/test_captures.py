"""Tensors and numbers that a core captures: every route, every shape, gradients, sharing, changes."""

from __future__ import annotations

import copy
import functools
import gc
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from both_ways import both_ways, leaf
from flexsn import FlexSN, _program, _torch
from flexsn.fused import Fused, trace_count


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return g / (1 + u.abs()).square()


def lif(x: Tensor, v: Tensor, tau: Any, level: Any) -> tuple[Tensor, Tensor]:
    h = v + (x - v) / tau
    s = Spike.apply(h - level)
    return s, h * (1 - s)


GLOBAL_LEVEL = leaf()


def with_global(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return lif(x, v, 2.0, GLOBAL_LEVEL)


class Cell(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.rand(shape, dtype=torch.float64) + 1.5)
        self.register_buffer("level", torch.rand(shape, dtype=torch.float64) + 0.5)
        self.alpha = 1.0

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return lif(x * self.alpha, v, self.tau, self.level)

    def step(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return lif(x, v, self.tau * 2, self.level)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([Cell(3), Cell(2, 1)])
        self.gain = nn.ParameterDict({"x": torch.rand(3, dtype=torch.float64)})

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s, v = self.cells[0](x * self.gain["x"], v)
        return s, v * self.cells[1].tau


class Callable_:
    def __init__(self, level: Tensor) -> None:
        self.level = level

    def __call__(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return lif(x, v, 2.0, self.level)


# ---- routes ------------------------------------------------------------------------------------------------


def test_closure() -> None:
    level = leaf(3)
    both_ways(lambda x, v: lif(x, v, 2.0, level), [level])


def test_global() -> None:
    both_ways(with_global, [GLOBAL_LEVEL])


def test_default_argument() -> None:
    level = leaf(3)

    def core(x: Tensor, v: Tensor, *, level: Tensor = level) -> tuple[Tensor, Tensor]:
        return lif(x, v, 2.0, level)

    both_ways(core, [level])


def test_module_with_parameter_and_buffer() -> None:
    cell = Cell(3)
    both_ways(cell, [cell.tau])


def test_nested_modules() -> None:
    outer = Outer()
    both_ways(outer, list(outer.parameters()))


def test_bound_method() -> None:
    cell = Cell(2, 1)
    both_ways(cell.step, [cell.tau])


def test_partial() -> None:
    tau, level = leaf(low=1.5), leaf(3)
    both_ways(functools.partial(lif, tau=tau, level=level), [tau, level])


def test_callable_object() -> None:
    level = leaf(2, 3)
    both_ways(Callable_(level), [level])


def test_dict_and_list_in_a_closure() -> None:
    parts = {"levels": [leaf(), leaf(3)]}
    both_ways(lambda x, v: lif(x, v, 2.0, parts["levels"][0] + parts["levels"][1]), parts["levels"])


def test_static_inputs() -> None:
    tau = nn.Parameter(torch.tensor(2.5, dtype=torch.float64))
    level = torch.rand(3, dtype=torch.float64) + 0.5
    both_ways(lif, [tau], static=(tau, level))
    both_ways(lif, [tau], static=(tau, 0.75))


def test_one_tensor_by_two_routes_has_one_gradient() -> None:
    level = leaf(3)
    both_ways(
        functools.partial(lambda x, v, a: (lif(x, v, 2.0, level)[0] * a, v * level + x * a), a=level), [level]
    )


# ---- shapes and work before the step -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(), (1,), (4,), (3, 1), (3, 4), (1, 4), (2, 1, 1), (2, 3, 4), (1, 1, 1)], ids=str
)
def test_every_shape_that_broadcasts(shape: tuple[int, ...]) -> None:
    level = leaf(*shape)
    both_ways(lambda x, v: lif(x, v, 2.0, level), [level], shape=(2, 3, 4))


def test_work_on_parameters_runs_outside_the_step() -> None:
    tau, level, matrix = leaf(), leaf(3), leaf(3, 3)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        threshold = F.softplus(level).view(1, -1, 1)
        weight = torch.softmax(matrix, 0).sum(1)[:, None] + torch.stack([level, level * 2]).mean(0)[:, None]
        both = torch.cat([level, level])
        first, second = both.chunk(2)
        s, h = lif(x * weight, v, 1 + torch.sigmoid(tau), threshold)
        return s, h + (first * second)[:, None] * matrix.max(0).values[:, None]

    both_ways(core, [tau, level, matrix], shape=(2, 3, 4))
    fused = Fused(core, 1, 1, 1)
    text = fused.trace_of([torch.zeros(1, 2, 3, 4, dtype=torch.float64)], None, ()).text
    assert "log1p" not in text and "softplus" not in text and "sigmoid" not in text


def test_parameter_expanded_to_the_shape_of_the_input_follows_it() -> None:
    level = leaf(3)
    core = lambda x, v: lif(x, v, 2.0, level.expand_as(x))  # noqa: E731
    run = Fused(core, 1, 1, 1)
    before = trace_count()
    for batch in (2, 5, 1):
        x = torch.rand(4, batch, 3, dtype=torch.float64)
        outputs, states = run([x])
        v, s = torch.zeros(batch, 3, dtype=torch.float64), None
        for t in range(4):
            s, v = core(x[t], v)
        assert torch.equal(outputs[0][-1], s) and torch.equal(states[0], v)
    assert trace_count() == before + 1
    both_ways(core, [level])


def test_core_that_checks_the_shape_its_parameters_fix_is_served() -> None:
    level = leaf(3)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if x.shape[-1] != 3:
            raise ValueError("three channels, please")
        return lif(x, v, 2.0, level)

    both_ways(core, [level])


def test_parameter_used_as_it_is_and_through_functions_gets_the_whole_gradient() -> None:
    level = leaf(3)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s, h = lif(x, v, 2.0, level)
        return s, h * torch.sigmoid(level) + level.detach() * x - level.view(1, 3)

    both_ways(core, [level])


def test_tensor_made_of_numbers_inside_the_core() -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return lif(x, v, 2.0, torch.tensor([0.5, 0.75, 1.0], dtype=x.dtype))

    both_ways(core, [])


def test_frozen_parameter_gets_no_gradient_until_it_is_released() -> None:
    cell = Cell(3)
    module = FlexSN(cell, 1, 1, 1)
    x = torch.rand(4, 2, 3, dtype=torch.float64, requires_grad=True)
    for needed in (True, False, True):
        cell.tau.requires_grad_(needed)
        cell.tau.grad = None
        module.reset()
        module(x).sum().backward()
        assert (cell.tau.grad is not None) == needed
    both_ways(cell, [cell.tau])


def test_parameters_alone_are_trained_where_the_input_needs_no_gradient() -> None:
    cell = Cell(3)
    x = torch.rand(4, 2, 3, dtype=torch.float64)
    gradients = []
    for backend in ("fused", "torch"):
        y = FlexSN(cell, 1, 1, 1, backend=backend)(x)
        gradients.append(torch.autograd.grad(y.sum(), cell.tau)[0])
    torch.testing.assert_close(*gradients)


# ---- what is seen, what is shared --------------------------------------------------------------------------


def test_fifty_layers_of_one_neuron_trace_once() -> None:
    x = torch.rand(3, 2, 3, dtype=torch.float64)
    FlexSN(Cell(3), 1, 1, 1)(x)
    before = trace_count()
    for _ in range(50):
        FlexSN(Cell(3), 1, 1, 1)(x)
    assert trace_count() == before


def test_changed_number_is_seen() -> None:
    cell = Cell(3)
    module = FlexSN(cell, 1, 1, 1)
    x = torch.rand(4, 2, 3, dtype=torch.float64)
    for alpha in (1.0, 3.0, 0.25, 1.0):
        cell.alpha = alpha
        module.reset()
        found = module(x)
        assert torch.equal(found, FlexSN(cell, 1, 1, 1, backend="torch")(x))


def test_changed_content_of_a_tensor_is_seen_without_a_new_trace() -> None:
    cell = Cell(3)
    module = FlexSN(cell, 1, 1, 1)
    x = torch.rand(4, 2, 3, dtype=torch.float64)
    module(x)
    before = trace_count()
    with torch.no_grad():
        cell.level.fill_(0.1)
        cell.tau.mul_(2)
    module.reset()
    assert torch.equal(module(x), FlexSN(cell, 1, 1, 1, backend="torch")(x))
    assert trace_count() == before


def test_two_lambdas_of_one_line_are_two_neurons() -> None:
    first, second = (lambda x, v: (x + v, v * 0.5), lambda x, v: (x - v, v * 0.5 + x))
    x = torch.rand(4, 3)
    a, b = FlexSN(first, 1, 1, 1)(x), FlexSN(second, 1, 1, 1)(x)
    assert torch.equal(a, FlexSN(first, 1, 1, 1, backend="torch")(x))
    assert torch.equal(b, FlexSN(second, 1, 1, 1, backend="torch")(x))


def test_lambdas_of_a_loop_have_their_own_numbers() -> None:
    x = torch.rand(4, 3)
    modules = [FlexSN(lambda x, v, k=k: (x * k, v + x), 1, 1, 1) for k in (1.0, 2.0, 3.0)]
    for k, module in zip((1.0, 2.0, 3.0), modules):
        assert torch.equal(module(x), x * k)


def test_parameters_replaced_by_load_state_dict_are_used() -> None:
    module = FlexSN(Cell(3), 1, 1, 1)
    x = torch.rand(4, 2, 3, dtype=torch.float64)
    module(x)
    other = {name: value + 0.5 for name, value in module.state_dict().items()}
    module.load_state_dict(other, assign=True)
    module.reset()
    found = module(x)
    assert torch.equal(found, FlexSN(module.core, 1, 1, 1, backend="torch")(x))
    tau = module.core.tau.requires_grad_()
    module.reset()
    module(x).sum().backward()
    assert tau.grad is not None


def test_module_moved_to_another_type_is_followed() -> None:
    module = FlexSN(Cell(3), 1, 1, 1)
    module(torch.rand(4, 2, 3, dtype=torch.float64))
    module.reset()
    module.to(torch.float32)
    x = torch.rand(4, 2, 3)
    assert torch.equal(module(x), FlexSN(module.core, 1, 1, 1, backend="torch")(x))


def test_replaced_tensor_of_another_shape_is_followed() -> None:
    cell = Cell(3)
    module = FlexSN(cell, 1, 1, 1)
    x = torch.rand(4, 2, 3, dtype=torch.float64)
    module(x)
    cell.level = torch.rand(2, 1, dtype=torch.float64)
    module.reset()
    assert torch.equal(module(x), FlexSN(cell, 1, 1, 1, backend="torch")(x))


def test_copy_of_a_module_has_parameters_of_its_own() -> None:
    module = FlexSN(Cell(3), 1, 1, 1)
    x = torch.rand(4, 2, 3, dtype=torch.float64)
    module(x)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.core.level.fill_(0.01)
    module.reset(), twin.reset()
    assert torch.equal(twin(x), FlexSN(twin.core, 1, 1, 1, backend="torch")(x))
    assert not torch.equal(twin(x), module(x))


def test_third_retrace_for_a_changed_number_suggests_a_tensor(caplog: pytest.LogCaptureFixture) -> None:
    cell = Cell(3)
    module = FlexSN(cell, 1, 1, 1)
    x = torch.rand(2, 2, 3, dtype=torch.float64)
    with caplog.at_level(logging.WARNING, logger="flexsn"):
        for step in range(3):
            cell.alpha = 10.0 + step
            module(x)
        assert not caplog.records
        cell.alpha = 13.0
        module(x)
        module(x)
    (record,) = caplog.records
    assert "alpha was 12.0 and is 13.0" in record.getMessage() and "make it a tensor" in record.getMessage()


def test_training_flag_is_seen() -> None:
    class Switch(nn.Module):
        def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return (x * 2 if self.training else x * 3), v

    module = FlexSN(Switch(), 1, 1, 1)
    x = torch.rand(2, 3)
    assert torch.equal(module(x), x * 2)
    assert torch.equal(module.eval()(x), x * 3)
    assert torch.equal(module.train()(x), x * 2)


# ---- types -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
def test_half_types_are_near_the_same_step_in_single_precision(dtype: torch.dtype) -> None:
    def smooth(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * 0.5 + x
        return torch.tanh(h), h

    x = torch.randn(6, 20).to(dtype).requires_grad_()
    module = FlexSN(smooth, 1, 1, 1)
    y = module(x)
    assert y.dtype == dtype and module.states[0].dtype == dtype
    wide = x.detach().float().requires_grad_()
    expected = FlexSN(smooth, 1, 1, 1, backend="torch")(wide)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.float(), expected, rtol=4 * eps, atol=4 * eps)
    y.float().sum().backward()
    expected.sum().backward()
    assert x.grad.dtype == dtype
    torch.testing.assert_close(x.grad.float(), wide.grad, rtol=16 * eps, atol=16 * eps)


def test_bf16_input_with_f32_parameters_has_an_f32_state() -> None:
    tau = nn.Parameter(torch.rand(4) + 1.5)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v + (x - v) / tau
        return torch.sigmoid(h), h

    x = torch.rand(5, 3, 4).bfloat16().requires_grad_()
    module = FlexSN(core, 1, 1, 1)
    y = module(x)
    assert y.dtype == torch.float32 and module.states[0].dtype == torch.float32
    v, outputs = torch.zeros(3, 4), []
    wide = x.detach().float().requires_grad_()
    for t in range(5):
        s, v = core(wide[t], v)
        outputs.append(s)
    expected = torch.stack(outputs)
    torch.testing.assert_close(y, expected)
    assert torch.equal(module.states[0], v)
    found = torch.autograd.grad(y.sum(), (x, tau))
    wanted = torch.autograd.grad(expected.sum(), (wide, tau))
    torch.testing.assert_close(found[0].float(), wanted[0], rtol=0.01, atol=0.01)
    torch.testing.assert_close(found[1], wanted[1])


def refractory(x: Tensor, v: Tensor, rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    awake = rest == 0
    h = torch.where(awake, v * 0.5 + x, v)
    s = Spike.apply(h - 1.0) * awake
    fired = s > 0
    return s, torch.where(fired, torch.zeros_like(h), h), torch.where(fired, 3, (rest - 1).clamp(min=0))


def test_refractory_counter_in_int32() -> None:
    x = (torch.rand(20, 2, 5) * 2).requires_grad_()
    states = [torch.zeros(2, 5), torch.zeros(2, 5, dtype=torch.int32)]
    outputs, last = Fused(refractory, 1, 2, 1)([x], states)
    expected, eager_states = run_loop(refractory, [x], states)
    assert torch.equal(outputs[0], expected[0]) and last[1].dtype == torch.int32
    assert all(torch.equal(a, b) for a, b in zip(last, eager_states))
    g = torch.rand_like(outputs[0])
    torch.testing.assert_close(torch.autograd.grad(outputs[0], x, g), torch.autograd.grad(expected[0], x, g))


def run_loop(
    core: Callable[..., Any], inputs: Sequence[Tensor], states: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    rows = []
    for t in range(inputs[0].shape[0]):
        results = core(*[x[t] for x in inputs], *states)
        rows.append(results[: len(results) - len(states)])
        states = results[len(results) - len(states) :]
    return [torch.stack(column) for column in zip(*rows)], list(states)


def test_bool_state() -> None:
    def toggles(x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        crossed = x > 0.5
        return torch.where(up, x, -x), up ^ crossed

    x = torch.rand(9, 4)
    states = [torch.zeros(4, dtype=torch.bool)]
    outputs, last = Fused(toggles, 1, 1, 1)([x], states)
    expected, eager = run_loop(toggles, [x], states)
    assert torch.equal(outputs[0], expected[0])
    assert last[0].dtype == torch.bool and torch.equal(last[0], eager[0])


def test_bool_and_integer_outputs_keep_their_types() -> None:
    core = lambda x, v: (x > v, (x * 4).int(), v + x)  # noqa: E731
    x = torch.rand(4, 6)
    outputs, _ = Fused(core, 1, 1, 2)([x])
    expected, _ = run_loop(core, [x], [torch.zeros(6)])
    assert [y.dtype for y in outputs] == [torch.bool, torch.int32]
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected))


def test_autocast_does_not_change_what_a_step_computes() -> None:
    weight = torch.rand(3, requires_grad=True)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addcmul(v, x, weight), v * 0.5 + torch.exp(x)

    x = torch.rand(4, 2, 3)
    expected = Fused(core, 1, 1, 1)([x])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Fused(lambda x, v: core(x, v), 1, 1, 1)([x])
    assert found[0][0].dtype == torch.float32
    assert torch.equal(found[0][0], expected[0][0]) and torch.equal(found[1][0], expected[1][0])


class Prepared(nn.Module):
    """Its parameters are made by what autocast computes in another type."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(1, 5)), nn.Parameter(torch.rand(5, 3))
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * (self.a @ self.b) + v, v * self.linear(self.a) + x


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_does_not_change_how_parameters_are_made(compiled: bool) -> None:
    core = Prepared()
    module = FlexSN(core, 1, 1, 1)
    call = torch.compile(module, fullgraph=True, backend="eager") if compiled else module

    def run(autocast: bool) -> list[Tensor]:
        module.reset()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = call(torch.linspace(-1, 1, 24).view(4, 2, 3))
        return [out, *torch.autograd.grad(out.sum(), list(core.parameters()))]

    expected = run(False)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(run(True), expected))


def test_no_kind_of_autocast_is_on_while_a_core_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, record = ("cpu", "cuda"), _torch.record
    seen: list[bool] = []

    def watched(*arguments: Any) -> Any:
        seen.extend(map(torch.is_autocast_enabled, kinds))
        return record(*arguments)

    monkeypatch.setattr(_torch, "record", watched)
    try:
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)
        Fused(lambda x, v: (x * 0.28125, v), 1, 1, 1)([torch.rand(4, 3)])
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, False)
    assert seen and not any(seen)


def test_a_table_of_numbers_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = nn.Parameter(torch.rand(3))

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * (weight * torch.tensor([0.5, 1.0, 2.0], device=x.device)) + v, v * 0.5 + x

    x, module = torch.rand(4, 2, 3), FlexSN(core, 1, 1, 1)
    with torch.inference_mode():
        module(x)
        expected = module(x)
    exported = torch.export.export(FlexSN(core, 1, 1, 1), (x,), strict=False).module()

    class WithoutTables:
        def __getattr__(self, name: str) -> Any:
            assert name != "tensor", "it was made again"
            return getattr(torch, name)

    monkeypatch.setattr(_program, "torch", WithoutTables())
    module.reset()
    module(x)
    found = module(x)
    assert torch.equal(found, expected)
    found.sum().backward()
    assert weight.grad is not None
    monkeypatch.undo()
    module.reset()
    assert torch.equal(exported(x), module(x))


def _changed_between(made: Tensor, x: Tensor) -> Tensor:
    first = x + made
    made.mul_(2)
    second = x - made
    made.sub_(x)
    return first * second + made


@pytest.mark.parametrize(
    "use",
    [
        lambda w, x: x * w + x * (w * 2),
        lambda w, x: x * w.expand(2, 3) + w,
        lambda w, x: x * w.expand(x.shape),
        lambda w, x: x * (w * 2).expand_as(x) + w.expand_as(x),
        lambda w, x: x * w.type_as(x) + w.to(x),
        lambda w, x: x * w.float().to(x) + w.double(),
        lambda w, x: x.abs() ** w + w ** x.abs(),
        lambda w, x: x * w.clone().detach() + w.clone(),
        lambda w, x: torch.addcmul(x, w, x) + torch.lerp(x, w, 0.3) + torch.where(x > w, w, x),
        lambda w, x: (torch.ones((2, 3), dtype=w.dtype) * w).add_(x).mul_(w) * x,
        lambda w, x: _changed_between(torch.ones((2, 3), dtype=w.dtype) * w, x),
        lambda w, x: x.clone().add_(w).mul_(w).copy_(w * x).sub_(w, alpha=0.5),
        lambda w, x: x * w * w * torch.sigmoid(w) + torch.sigmoid(torch.sigmoid(w)),
        lambda w, x: torch.maximum(x, w) - torch.clamp(x, max=w) + torch.atan2(w, x),
    ],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1)], ids=str)
def test_every_way_into_the_step_gets_its_gradient(
    use: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    weight = leaf(*shape)
    x = torch.rand(4, 2, 3, dtype=torch.float64, requires_grad=True)
    (found,), _ = Fused(lambda x: use(weight, x), 1, 0, 1)([x])
    expected = torch.stack([use(weight, x[t]) for t in range(4)])
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    g = torch.rand_like(found)
    for one, other in zip(
        torch.autograd.grad(found, (x, weight), g), torch.autograd.grad(expected, (x, weight), g)
    ):
        torch.testing.assert_close(one, other)


def test_parameter_under_no_grad_gets_no_gradient() -> None:
    weight = leaf(3)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            scale = weight * 2
        return x * scale, v + weight * x

    both_ways(core, [weight])


def test_parameter_given_a_shape_and_then_changed_is_an_error() -> None:
    weight = leaf(3)
    with pytest.raises(ValueError, match="given the shape of an input and then changed; let it broadcast"):
        Fused(lambda x: x * (weight.expand_as(x) * 2).exp(), 1, 0, 1)(
            [torch.rand(2, 2, 3, dtype=torch.float64)]
        )


# ---- parametrized modules ----------------------------------------------------------------------------------


class Positive(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return nn.functional.softplus(weight)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * 0.5 + x * self.weight
        return torch.tanh(h), h


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = Weighted()

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.inside(x, v)


@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("around", [False, True], ids=["", "inside"])
@pytest.mark.parametrize("by", ["softplus", "weight norm"])
def test_a_parametrized_module_is_a_core(by: str, around: bool, compiled: bool) -> None:
    core = Around() if around else Weighted()
    owner = core.inside if around else core
    if by == "softplus":
        parametrize.register_parametrization(owner, "weight", Positive())
    else:
        parametrizations.weight_norm(owner, "weight", dim=None)
    results = []
    for backend in ("fused", "torch"):
        module = FlexSN(core, 1, 1, 1, backend=backend)
        run = torch.compile(module, fullgraph=True, backend="eager") if compiled else module
        outputs = []
        for _ in range(2):  # an optimiser changes the original in between
            y = run(torch.ones(2, 3))
            outputs += [y.detach(), *torch.autograd.grad(y.sum(), list(module.parameters()))]
            module.reset()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.add_(0.5)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.sub_(1.0)
        results.append(outputs)
    torch.testing.assert_close(results[0], results[1])


def test_a_cached_parametrization_keeps_nothing_of_a_trace() -> None:
    core = Weighted()
    parametrize.register_parametrization(core, "weight", Positive())
    module = FlexSN(core, 1, 1, 1)
    with parametrize.cached():
        module(torch.ones(2, 3))
        assert torch.equal(core.weight, nn.functional.softplus(core.parametrizations.weight.original))


def test_a_parametrization_that_is_removed_is_seen() -> None:
    core = Weighted()
    parametrize.register_parametrization(core, "weight", Positive())
    module = FlexSN(core, 1, 1, 1)
    module(torch.ones(2, 3))
    parametrize.remove_parametrizations(core, "weight", leave_parametrized=False)
    module.reset()
    torch.testing.assert_close(module(torch.ones(1, 3))[0], torch.tanh(core.weight))


def test_other_types_and_shapes_of_parameters_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    core = Weighted()
    module = FlexSN(core, 1, 1, 1)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16) * 2:
        module.to(dtype)
        module.reset()
        module(torch.ones(2, 3, dtype=dtype))
    for size in (1, 3, 1, 3):
        core.weight = nn.Parameter(torch.ones(size))
        module.reset()
        module(torch.ones(2, 3))
    assert "again and again" not in caplog.text


def test_torch_may_swap_the_tensors_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.utils.swap_tensors takes no tensor that somebody has a weak reference to."""
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    core = nn.Module()
    core.w = nn.Parameter(torch.linspace(-0.5, 0.5, 4))
    core.forward = lambda x, v: (x * core.w + v, v)
    gc.collect()
    gc.disable()
    try:
        module = FlexSN(core, 1, 1, 1)
        module(torch.ones(2, 4, requires_grad=True)).sum().backward()
        core.w.grad = None
        module.load_state_dict({"core.w": torch.full((4,), 3.0)})
        module.reset()
        assert torch.equal(module(torch.ones(1, 4)), torch.full((1, 4), 3.0))
        module.reset()
        assert module.double()(torch.ones(1, 4).double()).dtype == torch.float64
    finally:
        gc.enable()
