"""FlexSN as a module: how it is configured, copied, compiled and used with other parts of torch."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
from flexsn import functional
from flexsn.neuron import FUSED_BACKENDS, FlexSN
from flexsn_cores import Threshold, both_backends, by_hand, lif, smooth, two_in_two_out

import torch
from torch import Tensor, nn

# ---- init_states -------------------------------------------------------------------------------------------


def ones(num_states: int, step_mode: str, *inputs: Tensor) -> list[Tensor]:
    like = inputs[0] if step_mode == "s" else inputs[0][0]
    return [torch.ones_like(like) for _ in range(num_states)]


class StartsAtOne(FlexSN):
    init_states = staticmethod(ones)


def starts_at_one_by_class(**options: Any) -> FlexSN:
    return StartsAtOne(smooth, 1, 1, 1, **options)


def starts_at_one_by_instance(**options: Any) -> FlexSN:
    module = FlexSN(smooth, 1, 1, 1, **options)
    module.init_states = ones
    return module


@both_backends
@pytest.mark.parametrize("make", [starts_at_one_by_class, starts_at_one_by_instance])
def test_init_states_can_be_overridden_in_a_class_and_on_an_instance(backend, make):
    x = torch.randn(4, 3)
    module = make(backend=backend)
    torch.testing.assert_close(module(x), by_hand(smooth, x, torch.ones(3))[0])
    module.reset()
    functional.set_step_mode(module, "s")
    torch.testing.assert_close(module(x[0]), smooth(x[0], torch.ones(3))[0])


def test_default_initial_states_are_zeros_like_a_step():
    x = torch.randn(4, 3, dtype=torch.float64)
    for states in (FlexSN.init_states(2, "m", x), FlexSN.init_states(2, "s", x[0])):
        assert len(states) == 2 and states[0].shape == (3,) and states[0].dtype == torch.float64
        assert not states[0].any()
    assert FlexSN.init_states(1, "m", x[:0])[0].shape == (3,)
    with pytest.raises(ValueError, match='step_mode must be "s" or "m", found \'x\''):
        FlexSN.init_states(1, "x", x)


# ---- static inputs -----------------------------------------------------------------------------------------


def scaled(x: Tensor, v: Tensor, gain: Tensor, bias: Tensor, power: float) -> tuple[Tensor, Tensor]:
    h = v * 0.5 + x * gain + bias
    return h * power, h


@both_backends
def test_static_inputs_are_parameters_buffers_and_numbers(backend):
    gain, bias = nn.Parameter(torch.tensor(2.0)), torch.tensor(0.5)
    module = FlexSN(scaled, num_states=1, static_inputs=(gain, bias, 3.0), backend=backend)
    assert module.num_inputs == 1
    assert [id(p) for p in module.parameters()] == [id(gain)]
    assert [id(b) for b in module.buffers()] == [id(bias)]
    assert module.static_inputs[0] is gain and module.static_inputs[1] is bias
    assert module.static_inputs[2] == 3.0
    x = torch.randn(4, 3)
    out = module(x)
    expected = by_hand(lambda x, v: scaled(x, v, gain, bias, 3.0), x, torch.zeros(3))[0]
    torch.testing.assert_close(out, expected)
    (grad,) = torch.autograd.grad(expected.sum(), gain)
    out.sum().backward()
    torch.testing.assert_close(gain.grad, grad)


def test_static_inputs_follow_single_steps_and_the_state_dict():
    module = FlexSN(
        scaled,
        num_states=1,
        static_inputs=(nn.Parameter(torch.tensor(2.0)), torch.tensor(0.5), 3.0),
        step_mode="s",
        backend="torch",
    )
    x = torch.randn(3)
    torch.testing.assert_close(module(x), (x * 2 + 0.5) * 3)
    assert len(module.state_dict()) == 2
    assert module.double().static_inputs[0].dtype == torch.float64


def test_static_inputs_go_to_the_kernel(recorded):
    module = FlexSN(scaled, num_states=1, static_inputs=(torch.ones(()), torch.ones(()), 3.0))
    module(torch.randn(2, 3))
    assert recorded[-1].calls[0][1] == module.static_inputs


def test_static_inputs_of_another_kind_are_refused():
    with pytest.raises(TypeError, match=r"static_inputs\[0\] must be a tensor.*found str"):
        FlexSN(scaled, num_states=1, static_inputs=("a", 1.0, 1.0), backend="torch")


# ---- cores of any kind -------------------------------------------------------------------------------------


@both_backends
def test_a_module_core_becomes_a_child_and_trains(backend):
    core = Threshold()
    module = FlexSN(core, num_states=1, backend=backend)
    assert dict(module.named_modules())["core"] is core
    assert [name for name, _ in module.named_parameters()] == ["core.level"]
    module(torch.randn(4, 3)).sum().backward()
    assert core.level.grad is not None


class Callable2:
    def __call__(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return smooth(x, v)


@both_backends
@pytest.mark.parametrize(
    "core",
    [smooth, lambda x, v: smooth(x, v), functools.partial(smooth), Callable2(), Callable2().__call__],
    ids=["function", "lambda", "partial", "object", "method"],
)
def test_any_callable_is_a_core(backend, core):
    x = torch.randn(4, 3)
    module = FlexSN(core, num_states=1, backend=backend)
    assert module.num_inputs == 1
    torch.testing.assert_close(module(x), by_hand(smooth, x, torch.zeros(3))[0])


@both_backends
def test_another_core_can_be_assigned(backend):
    x = torch.randn(4, 3)
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    module(x)
    module.reset()
    module.core = lif
    torch.testing.assert_close(module(x), by_hand(lif, x, torch.zeros(3))[0])


@pytest.mark.parametrize(
    "core, name",
    [(smooth, "smooth"), (functools.partial(smooth), "partial(smooth)"), (Callable2(), "Callable2")],
)
def test_extra_repr_names_core_counts_step_mode_and_backend(core, name):
    module = FlexSN(core, 1, 1, 1, backend="torch")
    assert module.extra_repr() == (
        f"core={name}, num_inputs=1, num_states=1, num_outputs=1, step_mode=m, backend=torch"
    )


# ---- backend setter ----------------------------------------------------------------------------------------


def test_supported_backends_follow_the_step_mode():
    module = FlexSN(lif, 1, 1, 1)
    assert module.supported_backends == ("fused", "triton", "inductor", "triton_export", "torch", "hop")
    module.step_mode = "s"
    assert module.supported_backends == ("torch", "hop")


def test_the_backend_can_be_changed(recorded):
    module = FlexSN(smooth, 1, 1, 1, backend="torch")
    x = torch.randn(3, 2)
    expected = module(x)
    for label in FUSED_BACKENDS:
        module.backend = label
        module.reset()
        assert module.backend == label
        torch.testing.assert_close(module(x), expected)
    assert len(recorded) == 1 and len(recorded[0].calls) == 3
    module.backend = "torch"
    module(x)
    assert len(recorded[0].calls) == 3


def test_the_backend_setter_has_the_rules_of_the_constructor():
    module = FlexSN(smooth, 1, 1, 1, step_mode="s", backend="torch")
    with pytest.raises(NotImplementedError, match="found 'cupy'"):
        module.backend = "cupy"
    with pytest.raises(RuntimeError, match='with step_mode="s" use backend="torch"'):
        module.backend = "fused"
    assert module.backend == "torch"


# ---- functional calls --------------------------------------------------------------------------------------


@both_backends
def test_a_functional_call_leaves_the_module_alone(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend, store_state_seqs=True)
    x = torch.randn(3, 2)
    outputs, (states,) = module.functional_forward((x,), (module.states,))
    assert module.states is None and module.state_seqs is None
    assert isinstance(outputs, tuple) and isinstance(states, list)
    torch.testing.assert_close(module(x), outputs[0])
    torch.testing.assert_close(module.states, states)
    outputs, (after,) = module.functional_forward((x,), (states,))
    torch.testing.assert_close(module(x), outputs[0])
    torch.testing.assert_close(module.states, after)


def test_a_functional_single_step_leaves_the_module_alone():
    module = FlexSN(two_in_two_out, 2, 3, 2, step_mode="s", backend="torch")
    x = torch.randn(3)
    outputs, (states,) = module.functional_forward((x, x), (None,))
    assert module.states is None and len(outputs) == 2 and len(states) == 3
    torch.testing.assert_close(module(x, x), outputs)


def test_a_functional_call_takes_all_memories_too():
    module = FlexSN(smooth, 1, 1, 1, backend="torch", store_state_seqs=True)
    _, states = module.functional_forward((torch.randn(3, 2),), tuple(module.memories()))
    assert len(states) == 2 and states[1] is None


def test_a_functional_call_checks_its_arguments():
    module = FlexSN(smooth, 1, 1, 1, backend="torch")
    with pytest.raises(ValueError, match="takes one state, the list of states in a tuple, found 3 values"):
        module.functional_forward((torch.randn(3, 2),), (None, None, None))
    with pytest.raises(TypeError, match=r"takes no keywords, found \['tau'\]"):
        module.functional_forward((torch.randn(3, 2),), (None,), tau=2)
    with pytest.raises(ValueError, match="expected 1 states, found 2"):
        module.functional_forward((torch.randn(3, 2),), ([torch.zeros(2)] * 2,))


# ---- copies ------------------------------------------------------------------------------------------------


copies = pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))], ids=["deepcopy", "pickle"]
)


@both_backends
@copies
def test_a_copy_goes_on_from_the_same_state_on_its_own(backend, copied):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    x = torch.randn(3, 2, requires_grad=True)
    module(x)
    twin = copied(module)
    assert twin.backend == backend
    torch.testing.assert_close(twin(x), module(x))
    twin.reset()
    assert module.states is not None


@copies
def test_a_copy_keeps_the_fused_path(copied, recorded):
    module = FlexSN(smooth, 1, 1, 1)
    twin = copied(module)
    twin(torch.randn(3, 2))
    assert len(recorded) == 2 and len(recorded[1].calls) == 1


def test_a_copy_has_a_core_of_its_own(recorded):
    module = FlexSN(Threshold(), num_states=1)
    twin = copy.deepcopy(module)
    assert twin.core is not module.core
    assert recorded[-1].core is twin.core


def test_nothing_bound_to_the_process_is_pickled(recorded):
    module = FlexSN(smooth, 1, 1, 1)
    module(torch.randn(3, 2))
    assert "Recorded" not in str(pickle.dumps(module))


def test_a_data_parallel_replica_runs_its_own_core(recorded):
    module = FlexSN(Threshold(), num_states=1)
    replica = module._replicate_for_data_parallel()
    replica.core = Threshold()
    replica(torch.randn(3, 2))
    assert recorded[-1].core is replica.core
    assert module.states is None


# ---- the kernel property -----------------------------------------------------------------------------------


@both_backends
def test_the_kernel_takes_inputs_and_states_and_returns_sequences(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    x, v = torch.randn(4, 3), torch.randn(3)
    assert callable(module.kernel)
    result = module.kernel(x, v)
    assert isinstance(result, tuple)
    outputs, states, _ = by_hand(smooth, x, v)
    torch.testing.assert_close(result, (outputs, states))
    assert module.states is None


def test_the_kernel_checks_its_arguments():
    kernel = FlexSN(smooth, 1, 1, 1).kernel
    with pytest.raises(ValueError, match="1 inputs and 1 states, expected 2 tensors, found 1"):
        kernel(torch.randn(4, 3))
    with pytest.raises(TypeError, match="argument 1 of the kernel must be a tensor, found float"):
        kernel(torch.randn(4, 3), 0.0)
    with pytest.raises(RuntimeError, match="on one device: argument 0 is on cpu, argument 1 on meta"):
        kernel(torch.randn(4, 3), torch.zeros(3, device="meta"))


# ---- torch.compile -----------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.neuron = FlexSN(smooth, 1, 1, 1, **options)
        self.after = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.neuron(self.before(x)))


def compiled_and_plain(**options: Any) -> tuple[Any, Net]:
    net = Net(**options)
    return torch.compile(net, fullgraph=True, backend="eager"), copy.deepcopy(net)


@both_backends
def test_a_compiled_network_carries_states_and_is_reset(backend):
    compiled, plain = compiled_and_plain(backend=backend)
    for _ in range(3):
        for _ in range(2):
            x = torch.randn(5, 3, 4)
            torch.testing.assert_close(compiled(x), plain(x))
            torch.testing.assert_close(compiled.neuron.states, plain.neuron.states)
        functional.reset_net(compiled)
        functional.reset_net(plain)
        assert compiled.neuron.states is None


@both_backends
def test_a_compiled_network_trains_over_detached_states(backend):
    compiled, plain = compiled_and_plain(backend=backend)
    for _ in range(3):
        x = torch.randn(5, 3, 4)
        for net in (compiled, plain):
            net(x).sum().backward()
            functional.detach_net(net)
    torch.testing.assert_close(compiled.before.weight.grad, plain.before.weight.grad)


@both_backends
def test_a_compiled_network_stores_state_sequences(backend):
    compiled, plain = compiled_and_plain(backend=backend, store_state_seqs=True)
    x = torch.randn(5, 3, 4)
    torch.testing.assert_close(compiled(x), plain(x))
    torch.testing.assert_close(compiled.neuron.state_seqs, plain.neuron.state_seqs)
    torch.testing.assert_close(compiled.neuron.states, plain.neuron.states)


def test_compiled_single_steps_carry_states():
    compiled, plain = compiled_and_plain(backend="torch", step_mode="s")
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), plain(x))


def test_a_compiled_network_is_compiled_once_for_fresh_and_once_for_carried_states():
    compiled, _ = compiled_and_plain(backend="torch")
    x = torch.randn(5, 3, 4)
    compiled(x), compiled(x)
    functional.reset_net(compiled)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            compiled(x), compiled(x)
            functional.reset_net(compiled)


@pytest.mark.parametrize("make", [starts_at_one_by_class, starts_at_one_by_instance])
def test_an_overridden_init_states_compiles(make):
    module = make(backend="torch")
    x = torch.randn(4, 3)
    out = torch.compile(module, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(out, by_hand(smooth, x, torch.ones(3))[0])


# ---- transforms --------------------------------------------------------------------------------------------


class Adds(torch.nn.Module):
    def forward(self, x, v):
        return x + v, v + x


class Subtracts(torch.nn.Module):
    def forward(self, x, v):
        return x - v, v - x


@pytest.mark.parametrize(
    "replace",
    [
        lambda module: module.add_module("core", Subtracts()),
        lambda module: setattr(copy.copy(module), "core", Subtracts()),  # a copy shares the modules
        lambda module: module.set_submodule("core", Subtracts()),
    ],
    ids=["add_module", "by a copy", "set_submodule"],
)
def test_a_core_that_is_replaced_is_the_one_that_runs(replace):
    module = FlexSN(Adds(), 1, 1, 1)
    x = torch.randn(5, 3)
    module(x)
    module.reset()
    replace(module)
    assert torch.equal(module(x), FlexSN(Subtracts(), 1, 1, 1)(x))
    assert torch.equal(module.kernel(x, torch.zeros(3))[0], FlexSN(Subtracts(), 1, 1, 1)(x))


def test_torch_backend_runs_under_vmap_and_forward_mode():
    module = FlexSN(smooth, 1, 1, 1, backend="torch")

    def run(x: Tensor) -> Tensor:
        return module.functional_forward((x,), (None,))[0][0]

    x = torch.randn(2, 4, 3)
    torch.testing.assert_close(torch.vmap(run)(x), torch.stack([run(x[0]), run(x[1])]))
    _, tangent = torch.func.jvp(run, (x[0],), (torch.ones(4, 3),))
    assert tangent.shape == (4, 3)


def test_torch_backend_has_gradients_of_gradients_through_carried_states():
    module = FlexSN(smooth, 1, 1, 1, backend="torch")

    def run(x: Tensor) -> Tensor:
        module.reset()
        return torch.cat([module(x[:1]), module(x[1:])])

    assert torch.autograd.gradgradcheck(run, torch.randn(2, 2, dtype=torch.float64, requires_grad=True))


def test_two_modules_share_nothing():
    first, second = FlexSN(smooth, 1, 1, 1), FlexSN(smooth, 1, 1, 1)
    first(torch.randn(3, 2))
    assert second.states is None


def test_inference_mode_states_can_be_carried_and_reset():
    module = FlexSN(smooth, 1, 1, 1, backend="torch")
    x = torch.randn(4, 3)
    with torch.inference_mode():
        first = module(x)
        module(x)
    module.reset()
    torch.testing.assert_close(module(x), first)


def test_making_a_module_touches_no_tensor_that_its_core_reaches_and_draws_nothing() -> None:
    count, room = torch.ones(2), torch.zeros(2)

    def core(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count.add_(1)
        torch.add(x, 1, out=room)
        return x + count.sum() + room.sum() + torch.rand_like(x), v

    before = torch.get_rng_state()
    FlexSN(core, num_states=1)
    assert torch.equal(count, torch.ones(2)) and torch.equal(room, torch.zeros(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_call_of_no_steps_leaves_states_that_are_not_the_user_s() -> None:
    module, given = FlexSN(lambda x, v: (x + v, v + x), num_states=1), torch.ones(2)
    module.states = [given]
    module(torch.rand(0, 2))
    module.states[0].zero_()
    assert torch.equal(given, torch.ones(2))
