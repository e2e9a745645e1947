"""What a core depends on besides its arguments is seen, or refused: nothing is baked in silently."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

import flexsn
from flexsn import FlexSN

NAN = float("nan")
DECAY = np.exp(-1 / 20.0)


class Scaled(nn.Module):
    scale = 0.5

    def forward(self, x, v):
        return x * self.scale, v + x


def compiled(module: FlexSN):
    return torch.compile(module, fullgraph=True, backend="eager")


def test_an_attribute_that_hides_that_of_the_class_is_seen_under_compile() -> None:
    core = Scaled()
    module = FlexSN(core, 1, 1, 1)
    call = compiled(module)
    assert call(torch.ones(2, 3))[0, 0] == 0.5
    core.scale = 2.0
    module.reset()
    assert call(torch.ones(2, 3))[0, 0] == 2.0


def test_a_changed_attribute_of_the_class_is_seen_under_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FlexSN(Scaled(), 1, 1, 1)
    call = compiled(module)
    assert call(torch.ones(2, 3))[0, 0] == 0.5
    monkeypatch.setattr(Scaled, "scale", 4.0)
    module.reset()
    assert call(torch.ones(2, 3))[0, 0] == 4.0


def test_numpy_scalars_and_nan_may_be_read_under_compile() -> None:
    y = compiled(FlexSN(lambda x, v: (x, v * DECAY + x), 1, 1, 1))(torch.ones(4, 3))
    assert y.shape == (4, 3)
    assert compiled(FlexSN(lambda x, v: (x * NAN, v + x), 1, 1, 1))(torch.ones(4, 3)).isnan().all()


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["random", "numpy"])
def test_random_numbers_from_elsewhere_are_refused(draw) -> None:
    with pytest.raises(ValueError, match='draws random numbers .*pass them in, or use backend="torch"'):
        FlexSN(lambda x, v: (x * draw(), v), 1, 1, 1)(torch.ones(4, 3))


@pytest.mark.parametrize(
    "core",
    [lambda x, v: (x[x > 0], v), lambda x, v: (x.masked_select(x > 0), v)],
    ids=["bool index", "masked_select"],
)
def test_a_shape_that_depends_on_data_is_refused_with_its_line(core) -> None:
    with pytest.raises(
        ValueError, match=r"test_guards.py:\d+\): torch.\w+ gives a shape that depends on the data"
    ):
        flexsn.scan(core, [torch.ones(2, 2)], [torch.ones(2)])


def test_a_hook_that_is_added_later_is_seen() -> None:
    core = Scaled()
    module = FlexSN(core, 1, 1, 1)
    assert module(torch.ones(1, 1)).item() == 0.5
    module.reset()
    core.register_forward_hook(lambda _, __, results: (results[0] * 10, results[1]))
    assert module(torch.ones(1, 1)).item() == 5.0


def test_a_branch_on_a_size_far_from_the_first_is_refused() -> None:
    module = FlexSN(lambda x, v: (x * (2.0 if x.shape[-1] > 100 else 1.0), v), 1, 1, 1)
    assert module(torch.ones(1, 3)).sum() == 3
    module.reset()
    with pytest.raises(
        ValueError, match=r"reads the shape of a tensor .* at \[128\] than at the first shape"
    ):
        module(torch.ones(1, 128))
    module.reset()
    assert module(torch.ones(1, 7)).sum() == 7


@pytest.mark.parametrize("states", [[None], [0.0]], ids=str)
def test_states_that_are_no_tensors_are_named(states) -> None:
    module = FlexSN(lambda x, v: (x, v + x), 1, 1, 1)
    module.states = states
    with pytest.raises(TypeError, match="state 0 must be a tensor, found"):
        module(torch.ones(2, 3))


# ---- errors that name the line and the way out -------------------------------------------------------------


@pytest.mark.parametrize(
    "core, text",
    [
        (lambda x, v: (x, v.unsqueeze(0)), r"test_guards.py:\d+\): new state 0 has shape \[1, 3\]"),
        (lambda x, v: (x.unsqueeze(0), v), r"test_guards.py:\d+\): output 0 has shape \[1, 3\]"),
        (lambda x, v: (torch.tensor(1.0), v + x), r"test_guards.py:\d+\): output 0 has shape \[\]"),
        (lambda x, v: (x.long(), v), r"test_guards.py:\d+\) gives int64; integers of a step are int32"),
        (lambda x, v: (x.to(torch.int8), v), r"test_guards.py:\d+\) gives int8; a step works with"),
        (lambda x, v: (x.data, v), r"test_guards.py:\d+\): .data goes past autograd; write .detach\(\)"),
    ],
    ids=["state", "output", "scalar", "int64", "int8", "data"],
)
def test_what_cannot_be_fused_is_said_with_its_line_and_the_way_out(core, text: str) -> None:
    with pytest.raises(ValueError, match=rf'{text}.*otherwise use backend="torch"$'):
        FlexSN(core, 1, 1, 1)(torch.ones(2, 3))


def test_an_input_of_another_type_is_said_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r'input 0 is int64; .*\.int\(\); otherwise use backend="torch"$'):
        FlexSN(lambda x, v: (x, v + x), 1, 1, 1)(torch.ones(2, 3, dtype=torch.int64))


def test_assigned_states_of_another_shape_name_the_way_out() -> None:
    module = FlexSN(lambda x, v: (x, v + x), 1, 1, 1)
    module.states = [torch.ones(1)]
    with pytest.raises(ValueError, match=r'state 0 must have shape \[3\].*use backend="torch", which takes'):
        module(torch.ones(2, 3))


def test_a_function_without_a_derivative_is_named_with_its_line() -> None:
    module = FlexSN(lambda x, v: (torch.heaviside(x, v) * 2.0, v + x), 1, 1, 1)
    assert module(torch.ones(2, 3)).shape == (2, 3)
    with pytest.raises(
        RuntimeError, match=r'test_guards.py:\d+\): derivative for aten::heaviside .*use backend="torch"'
    ):
        module(torch.ones(2, 3, requires_grad=True))


def test_a_core_of_torchs_own_modules_names_the_line_of_the_module() -> None:
    with pytest.raises(ValueError, match=r"torch.addmm \(torch.nn.modules.linear.py:\d+\) multiplies"):
        FlexSN(nn.Sequential(nn.Linear(3, 3)), 1, 0, 1)(torch.ones(2, 3))


def test_a_kernel_says_nothing_of_a_reset_that_it_has_not() -> None:
    kernel = flexsn.FlexSNKernel(lambda x, v: (x, v + x), 1, 1, 1)
    with pytest.raises(ValueError, match=r"shape of one step, \[3\], found \[4\] for state 0; expand it$"):
        kernel(torch.ones(2, 3), torch.ones(4))


# ---- torch.func, torch.jit, backward functions that raise --------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
@pytest.mark.parametrize("transform", ["grad", "vmap of grad", "vjp"])
def test_gradients_of_torch_func_are_refused_with_the_remedy(transform: str, first: bool) -> None:
    module = FlexSN(lambda x, v: (torch.sigmoid(x + v), v * 0.5 + x), 1, 1, 1)
    x, number = torch.ones(4, 3), float(len(transform) + first)  # its own trace

    def run(x):
        core = lambda x, v: (torch.sigmoid(x * number + v), v + x)  # noqa: E731
        return flexsn.scan(core, x, torch.zeros(3))[0][0].sum() + module(x).sum()

    if not first:
        run(torch.ones(4, 3, requires_grad=True)).backward()
        module.reset()
    calls = {
        "grad": lambda: torch.func.grad(run)(x),
        "vmap of grad": lambda: torch.func.vmap(torch.func.grad(run))(torch.ones(2, 4, 3)),
        "vjp": lambda: torch.func.vjp(run, x),
    }
    for _ in range(2):
        with pytest.raises(
            NotImplementedError, match='under torch.func.grad .*use torch.autograd.grad .*backend="torch"'
        ):
            calls[transform]()


def test_a_neuron_that_a_transform_does_not_touch_runs_beside_it() -> None:
    spikes = torch.ones(4, 3)

    def run(w):
        return (w * flexsn.scan(lambda x, v: (x * 7.5 + v, v + x), spikes, torch.zeros(3))[0][0]).sum()

    assert torch.func.grad(run)(torch.tensor(2.0)).item() == 4 * 3 * 7.5 + 3 * (0 + 1 + 2 + 3)


@pytest.mark.parametrize("inside", [False, True], ids=["the core", "module.part"])
def test_a_scripted_module_is_refused_with_the_remedy(inside: bool) -> None:
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.jit.script(nn.PReLU())

        def forward(self, x):
            return self.part(x)

    core = Around() if inside else torch.jit.script(nn.ReLU())
    where = r"module.part \(PReLU\)" if inside else r"the core \(ReLU\)"
    with pytest.raises(ValueError, match=rf'{where} is compiled by torch.jit.*module.*backend="torch"'):
        FlexSN(core, num_inputs=1, num_states=0)(torch.ones(4, 3))


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x >= 0).to(x)

    @staticmethod
    def backward(ctx, grad):
        raise KeyError("not there")


def test_a_backward_that_raises_is_named_with_its_line_and_inference_runs() -> None:
    module = FlexSN(lambda x, v: (Raises.apply(x + v), v + x), 1, 1, 1)
    assert module(torch.ones(4, 3)).sum() == 12
    module.reset()
    line = Raises.backward.__code__.co_firstlineno + 2
    with pytest.raises(RuntimeError, match=rf"<lambda> \(.*guards.py:{line}\): .* KeyError: 'not there'"):
        module(torch.ones(4, 3, requires_grad=True))


# ---- tensors with no memory of their own -------------------------------------------------------------------


def freed() -> torch.Tensor:
    tensor = torch.ones(4, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


ODD = {
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(4, 3)] * 2), "a nested tensor; pad it"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(4, 3)] * 2, layout=torch.jagged),
        "a nested tensor; pad it",
    ),
    "masked": (
        lambda: torch.masked.masked_tensor(torch.ones(4, 3), torch.ones(4, 3) > 0),
        "a masked tensor; fill it",
    ),
    "freed": (freed, "memory was freed .*; make it anew"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
@pytest.mark.parametrize("kind", ODD)
def test_an_input_that_is_not_dense_is_named(kind: str, first: bool) -> None:
    make, text = ODD[kind]

    def core(x, v):
        return x + v, v * 0.5

    if not first:
        flexsn.scan(core, torch.ones(4, 3), torch.zeros(3))
    with pytest.raises(TypeError, match=f"input 0 must be dense, found .*{text}"):
        flexsn.scan(core, make(), torch.zeros(3))


def test_a_state_whose_memory_was_freed_is_named() -> None:
    def core(x, v):
        return x + v, v * 0.25

    for _ in range(2):
        with pytest.raises(TypeError, match="state 0 must be dense, found .*freed"):
            flexsn.scan(core, torch.ones(2, 4, 3), freed())
        flexsn.scan(core, torch.ones(2, 4, 3), torch.zeros(4, 3))


def test_a_parameter_whose_memory_was_freed_is_named() -> None:
    weight = freed()
    with pytest.raises(TypeError, match="parameter 0 must be dense, found .*freed"):
        flexsn.scan(lambda x, v: (x * weight + v, v * 0.125), torch.ones(2, 4, 3), torch.zeros(4, 3))
