"""Settings of torch around a call, its first one above all: the neuron is the same, and so are its bits."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import flexsn
from cores import soft
from flexsn import FlexSN
from flexsn._trace import TraceError

ops = torch.ops.flexsn


class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leak = nn.Parameter(torch.tensor(0.5))
        self.fire = flexsn.surrogate.ATan()

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * torch.sigmoid(self.leak) + x
        s = self.fire(h - 1.0)
        return s, h * (1.0 - s)


def new_core() -> Callable[..., Any]:
    """A core that nothing has traced yet."""
    number = new_core.calls = getattr(new_core, "calls", 0) + 1
    return lambda x, v: (torch.tanh(v + x) * (1.0 + number / 1024), v * 0.5 + x)


@contextlib.contextmanager
def flushing():
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


AROUND = {
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "anomaly mode": torch.autograd.set_detect_anomaly,
    "subnormals flushed": flushing,
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("make", [new_core, Leaky])
def test_a_first_call_may_be_made_anywhere(around: str, make: Callable[[], Any]) -> None:
    core, x = make(), torch.randn(4, 3)
    given = (True,) if around == "anomaly mode" else ()
    with AROUND[around](*given):
        found = FlexSN(core, num_states=1)(x)
        if around != "anomaly mode":
            flexsn.explain(make(), num_states=1, T=4, shape=(3,))
    assert torch.equal(found, FlexSN(core, num_states=1)(x))
    x.requires_grad_()
    FlexSN(core, num_states=1)(x).sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())


def test_training_goes_on_from_states_and_inputs_of_inference_mode() -> None:
    module, weight = FlexSN(lambda x, v: (torch.tanh(v) * x, v * v + x), 1, 1, 1), nn.Parameter(torch.ones(3))
    with torch.inference_mode():
        x = torch.randn(4, 3)
        module(x)
        kept = [state.clone() for state in module.states]
    module(x + weight).sum().backward()
    found, weight.grad = weight.grad, None
    module.states = [torch.tensor(state.tolist()) for state in kept]
    module(torch.tensor(x.tolist()) + weight).sum().backward()
    assert torch.equal(found, weight.grad)


def test_constants_are_those_of_ieee_where_torch_flushes_subnormals() -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v + x * 7e-42
        return h, h

    with flushing():
        found = FlexSN(core, num_states=1)(torch.ones(3, 4))
        library = flexsn.neurons.LIFNode(v_threshold=1.6e-40, v_reset=None)(torch.full((3, 4), 7e-41))
    expected = FlexSN(core, num_states=1, backend="torch")(torch.ones(3, 4))
    assert found.view(torch.int32)[:, 0].tolist() == [4995, 9990, 14985]
    assert torch.equal(found, expected)
    assert library.sum() == 0


def test_batches_of_gradients_say_what_to_do() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    y = FlexSN(soft, num_states=1)(x)
    with pytest.raises(NotImplementedError, match="flexsn::backward does not run under vmap"):
        torch.autograd.grad(y, x, torch.ones(2, 4, 3), is_grads_batched=True)


def test_a_sparse_gradient_is_refused_with_the_remedy() -> None:
    y = FlexSN(soft, num_states=1)(torch.randn(4, 3, requires_grad=True))
    with pytest.raises(TypeError, match=r"gradient of result 0 must be dense, found Sparse; .*to_dense"):
        y.backward(torch.ones(4, 3).to_sparse())


def test_the_gradient_of_a_state_that_is_left_out_cannot_be_wanted() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    text = flexsn.show(soft, "ir", num_states=1)
    with pytest.raises(ValueError, match="gradient of state 0 is wanted, but no states are given"):
        ops.training(text, [x], [], [], [1])


@pytest.mark.parametrize("name", ["reset_net", "detach_net"])
def test_what_is_no_network_is_named(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}: expected a torch.nn.Module, found int"):
        getattr(flexsn.functional, name)(3)
    with pytest.raises(TypeError, match="set_step_mode: expected a torch.nn.Module, found NoneType"):
        flexsn.functional.set_step_mode(None, "m")
    with pytest.raises(TypeError, match="set_backend: expected a torch.nn.Module, found str"):
        flexsn.functional.set_backend("net", "torch")


@pytest.mark.parametrize("sizes", [{"T": 2.5}, {"T": 2**70}, {"shape": (1.5,)}, {"T": -1}])
def test_sizes_of_an_explanation_are_whole_numbers(sizes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sizes of shape must be whole numbers of at least 0 .* found T="):
        flexsn.explain(soft, num_states=1, **sizes)


class Doubling(Tensor):
    """Tensors whose sums are twice as large."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is Tensor.add else result


class Named(Tensor):
    """Tensors of a class of their own that compute like any other."""


@pytest.mark.parametrize("what", ["input 0", "state 0", "captured tensor 0"])
def test_tensors_with_functions_of_their_own_are_refused_with_the_remedy(what: str) -> None:
    odd, plain = torch.ones(2).as_subclass(Doubling), torch.ones(2)
    scale = odd if what == "captured tensor 0" else plain
    module = FlexSN(lambda x, v: (v + x * scale, v + x), num_states=1)
    x = torch.ones(3, 2)
    if what == "state 0":
        module(x)
        module.states = [odd]
    remedy = rf"{what} is a Doubling, .* as \.as_subclass\(torch\.Tensor\), or use backend=\"torch\""
    with pytest.raises(TypeError, match=remedy):
        module(x.as_subclass(Doubling) if what == "input 0" else x)


def test_tensors_of_a_class_without_functions_of_its_own_run() -> None:
    core, x = new_core(), torch.randn(3, 2)
    found = FlexSN(core, num_states=1)(x.as_subclass(Named))
    assert torch.equal(found.as_subclass(Tensor), FlexSN(core, num_states=1)(x))


def test_traces_that_are_refused_leave_nothing_in_torch() -> None:
    module = FlexSN(new_core(), num_states=1)

    def refused() -> tuple[int, int]:
        with pytest.raises(TraceError, match="complex64"):
            module(torch.ones(3, 2, dtype=torch.complex64))
        return len(contextvars.copy_context()), len(torch.fx.graph_module._loader.eval_cache)

    first = [refused() for _ in range(3)][-1]
    assert [refused() for _ in range(3)][-1] == first


def test_a_description_that_is_cut_off_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="names a value, a place or a field that it does not have; take it as"):
        ops.import_graph("core\tc\nstep\t2\nnode\tadd.Tensor")


@pytest.mark.parametrize(
    "core", [lambda p: lambda x, v: (x * p, v), lambda p: lambda x, v: (x * torch.sigmoid(p), v + p)]
)
def test_tangents_of_what_a_core_captures_are_an_error_and_not_lost(core: Callable[..., Any]) -> None:
    x = torch.ones(3, 2)

    def run(p: Tensor) -> Tensor:
        return flexsn.scan(core(p), x, torch.zeros(2))[0][0]

    p = torch.ones(2)
    text = "forward mode .* are not there; use backward, or backend"
    for with_tangents in (
        lambda: torch.func.jvp(run, (p,), (p,)),
        lambda: torch.func.linearize(run, p)[1](p),
    ):
        with pytest.raises(NotImplementedError, match=text):
            with_tangents()
    for around in (contextlib.nullcontext, torch.no_grad):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(p, p)
            with around(), pytest.raises(NotImplementedError, match=text):
                run(dual)
    # Where the tangents are of something else, nothing is lost.
    value, tangent = torch.func.jvp(lambda q: q * run(p), (p,), (p,))
    assert torch.equal(value, tangent) and torch.equal(value, run(p))


def test_a_neuron_inside_a_core_is_an_error_at_its_line() -> None:
    def calls_another(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return flexsn.scan(soft, x.unsqueeze(0), [v])[0][0][0], v

    inner = FlexSN(soft, num_states=1)
    inner(torch.ones(3, 2))  # has its kernel already

    def calls_one_that_is_there(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return inner(x.unsqueeze(0))[0], v

    def calls_itself(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return outer(x.unsqueeze(0))[0], v

    outer = FlexSN(calls_itself, num_inputs=1, num_states=1, num_outputs=1)
    for module, name in (
        (FlexSN(calls_another, num_states=1, num_inputs=1, num_outputs=1), "soft"),
        (FlexSN(calls_one_that_is_there, num_states=1, num_inputs=1, num_outputs=1), "soft"),
        (outer, "calls_itself"),
    ):
        line = f"a core calls {name} \\(.*test_surroundings.py:[0-9]+\\), a neuron with a kernel of its own; call"
        for _ in range(2):
            with pytest.raises(TraceError, match=line):
                module(torch.ones(3, 2))
    # A checkpoint's hooks have the core traced by another thread.
    x = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(TraceError, match="a core calls soft"):
        torch.utils.checkpoint.checkpoint(FlexSN(calls_another, 1, 1, 1), x, use_reentrant=False)
    inner.reset()
    assert inner(torch.ones(3, 2)).shape == (3, 2)
