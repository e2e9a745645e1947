"""The neurons of the library against their equations in plain PyTorch, and what their modules promise."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from neuron_equations import CASES, SHAPE, STEPS, Case, input_of, run_equation, sigmoid, spike
from torch import Tensor, nn

import flexsn
from flexsn import functional, neurons, surrogate
from flexsn._library import ops

every = pytest.mark.parametrize("name", CASES)
#: the other one has a parameter for each step of a sequence
every_in_steps = pytest.mark.parametrize("name", [name for name in CASES if name != "gated_lif"])
both_types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
both_backends = pytest.mark.parametrize("backend", ["fused", "torch"])


def outputs_of(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, list) else [result]


def states_of(module: neurons.LibraryNeuron) -> list[Tensor]:
    return [value for name, value in module.named_memories() if name != "v_seq"]


def weighted(tensors: list[Tensor]) -> Tensor:
    """A loss in which every entry counts differently."""
    generator = torch.Generator().manual_seed(5)
    sums = [
        (t * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)).sum()
        for t in tensors
        if t.requires_grad
    ]
    return torch.stack(sums).sum()


def gradients(loss: Tensor, x: Tensor, module: nn.Module) -> list[Tensor]:
    wanted = [x, *module.parameters()]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found)]


def expect_same(case: Case, found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        if case.exact:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other)


# ---- equations -------------------------------------------------------------------------------------------


def test_every_neuron_of_the_library_has_a_class_and_an_equation():
    names, classes, _ = ops.library_neurons()
    assert {getattr(neurons, kind).name for kind in classes} == set(names)
    assert {case.make().name for case in CASES.values()} == set(names)


@every
@both_types
@both_backends
def test_sequences_and_gradients_are_those_of_the_equation(name, dtype, backend):
    case = CASES[name]
    module = case.make(step_mode="m", backend=backend)
    x = input_of(case, dtype)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    outputs = outputs_of(module(ours))
    wanted, states, _ = run_equation(case, module, theirs)
    expect_same(case, outputs, wanted)
    expect_same(case, states_of(module), list(states))
    rate = outputs[0].detach().double().abs().mean()
    assert 0.02 < rate, "the neuron must answer for the test to mean something"
    mine = gradients(weighted([*outputs, *states_of(module)]), ours, module)
    for one, other in zip(mine, gradients(weighted([*wanted, *states]), theirs, module)):
        torch.testing.assert_close(one, other)


@every_in_steps
@both_backends
def test_steps_one_by_one_are_the_sequence(name, backend):
    case = CASES[name]
    module, single = (case.make(step_mode=mode, backend=backend) for mode in "ms")
    single.load_state_dict(module.state_dict())
    x = input_of(case, torch.float32)
    whole = outputs_of(module(x))
    steps = [outputs_of(single(each)) for each in x]
    expect_same(case, [torch.stack(each) for each in zip(*steps)], whole)
    expect_same(case, states_of(single), states_of(module))


@every_in_steps
def test_chunks_carry_their_states(name):
    case = CASES[name]
    module = case.make(step_mode="m")
    x = input_of(case, torch.float32)
    whole, last = outputs_of(module(x)), states_of(module)
    module.reset()
    first, second = outputs_of(module(x[:5])), outputs_of(module(x[5:]))
    for one, *parts in zip(whole, first, second):
        assert torch.equal(one, torch.cat(parts))
    assert all(torch.equal(a, b) for a, b in zip(states_of(module), last))


class OwnFunction(torch.autograd.Function):
    """A user's surrogate, by chance the derivative of a sigmoid."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return grad * sigmoid(u, 3.0)


OWN = {
    "function": OwnFunction.apply,
    "lambda": lambda u: spike(u, lambda d: sigmoid(d, 3.0)),
    "module": surrogate.Sigmoid(3.0),
    "name": "sigmoid:alpha=3",
}
firing = [
    name
    for name, case in CASES.items()
    if "surrogate_function" in inspect.signature(type(case.make()).__init__).parameters and name != "ilif"
]


@pytest.mark.parametrize("name", firing)
@pytest.mark.parametrize("kind", ["function", "lambda"])
@both_backends
def test_a_user_s_surrogate_gives_the_gradients_of_ours(name, kind, backend):
    case = CASES[name]
    module = case.make(step_mode="m", backend=backend)
    module.surrogate_function = OWN[kind]
    ours = copy.deepcopy(module)
    ours.surrogate_function = "sigmoid:alpha=3"
    ours.backend = "fused"
    x = input_of(case, torch.float64)
    results = []
    for each in (module, ours):
        leaf = x.clone().requires_grad_()
        outputs = outputs_of(each(leaf))
        results.append((outputs, gradients(weighted([*outputs, *states_of(each)]), leaf, each)))
    for one, other in zip(results[0][0], results[1][0]):
        torch.testing.assert_close(one, other)
    for one, other in zip(results[0][1], results[1][1]):
        torch.testing.assert_close(one, other)


def test_smooth_surrogates_make_smooth_neurons():
    module = neurons.LIFNode(surrogate_function=surrogate.Sigmoid(spiking=False), step_mode="m")
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    v, outputs = torch.zeros(4, dtype=torch.float64), []
    for each in x:
        h = v + (each - v) / 2
        s = torch.sigmoid(4 * (h - 1))
        v = (1 - s) * h
        outputs.append(s)
    torch.testing.assert_close(module(x), torch.stack(outputs))
    other = torch.autograd.grad(torch.stack(outputs).sum(), x)[0]
    module.reset()
    torch.testing.assert_close(torch.autograd.grad(module(x).sum(), x)[0], other)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", ["lif hard", "plif", "alif", "gated_lif"])
def test_half_types_compute_a_step_in_single(name, kind):
    case = CASES[name]
    module = case.make(step_mode="m")
    eager = copy.deepcopy(module)
    eager.backend = "torch"
    x = input_of(case, kind)
    s = module(x)
    assert s.dtype == kind and module.v.dtype == kind
    assert torch.equal(s, eager(x))


# ---- memories --------------------------------------------------------------------------------------------


@both_backends
def test_store_v_seq_keeps_the_potentials(backend):
    for name in ("lif hard", "izhikevich", "cuba_lif"):
        case = CASES[name]
        module = case.make(step_mode="m", backend=backend)
        module.store_v_seq = True
        x = input_of(case, torch.float32)
        module(x)
        assert torch.equal(module.v_seq, torch.stack(run_equation(case, module, x)[2]))
        assert torch.equal(module.v, module.v_seq[-1]) and module.v.data_ptr() != module.v_seq[-1].data_ptr()
        module.store_v_seq = False
        assert module.v_seq is None
    module.store_v_seq = True
    module(x)
    module.reset()
    assert module.v_seq is None


@both_backends
def test_states_are_numbers_before_the_first_call_and_after_a_reset(backend):
    module = neurons.IzhikevichNode(v_reset=-0.5, w_rest=0.25, step_mode="m", backend=backend)
    assert (module.v, module.w) == (-0.5, 0.25)
    module(torch.zeros(3, 2))
    assert module.v.shape == module.w.shape == (2,)
    functional.reset_net(nn.Sequential(module))
    assert (module.v, module.w) == (-0.5, 0.25)


@both_backends
def test_a_state_can_be_assigned(backend):
    x = torch.full((1, 3), 0.25)
    module = neurons.IFNode(v_threshold=10.0, step_mode="m", backend=backend)
    module.v = 2.0
    module(x)
    assert torch.equal(module.v, torch.full((3,), 2.25))
    module.v = torch.tensor([1.0, 2.0, 3.0])
    module(x)
    assert torch.equal(module.v, torch.tensor([1.25, 2.25, 3.25]))


@both_backends
def test_a_reset_value_goes_where_the_input_is(backend):
    module = neurons.LIFNode(step_mode="m", backend=backend)
    module.set_reset_value("v", torch.full((3,), 0.1))
    for device in (None, "meta"):
        module.reset()
        x = torch.zeros(4, 3, device=device)
        assert module(x).device == x.device


@both_backends
def test_another_shape_without_a_reset_is_an_error(backend):
    module = neurons.LIFNode(step_mode="m", backend=backend)
    module(torch.zeros(4, 2, 3))
    wrong = r"LIFNode: the state v is that of steps of shape \(2, 3\).*\(1, 3\).*reset"
    with pytest.raises(ValueError, match=wrong):
        module(torch.zeros(4, 1, 3))
    module.reset()
    assert module(torch.zeros(4, 1, 3)).shape == (4, 1, 3)


@both_backends
def test_states_follow_the_type_of_the_input(backend):
    module = neurons.IFNode(v_threshold=10.0, step_mode="m", backend=backend)
    module(torch.full((1, 2), 0.5))
    module(torch.full((1, 2), 0.25, dtype=torch.float64))
    assert torch.equal(module.v, torch.full((2,), 0.75, dtype=torch.float64))


@both_backends
def test_a_sequence_of_no_steps_leaves_the_states_where_they_start(backend):
    module = neurons.LIFNode(v_reset=-0.5, step_mode="m", backend=backend, store_v_seq=True)
    assert module(torch.zeros(0, 2, 3)).shape == (0, 2, 3)
    assert torch.equal(module.v, torch.full((2, 3), -0.5))
    assert module.v_seq.shape == (0, 2, 3)


@both_backends
def test_truncated_backpropagation_by_detaching(backend):
    module = neurons.LIFNode(step_mode="m", backend=backend)
    for _ in range(2):
        x = torch.randn(3, 4, requires_grad=True)
        module(x).sum().backward()
        functional.detach_net(module)
    module(torch.randn(3, 4, requires_grad=True)).sum().backward()
    with pytest.raises(RuntimeError, match="detach or reset between batches"):
        module(torch.randn(3, 4, requires_grad=True)).sum().backward()


def test_explicit_states_leave_the_module_alone():
    module = neurons.IFNode(v_threshold=10.0, step_mode="m")
    (s,), (v,) = module.functional_forward((torch.ones(2, 3),), (torch.full((3,), 0.5),))
    assert torch.equal(v, torch.full((3,), 2.5)) and s.sum() == 0
    assert module.v == 0.0


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))], ids=["copy", "pickle"]
)
@every
def test_copies_run_the_same(name, twin):
    case = CASES[name]
    module = case.make(step_mode="m")
    other = twin(module)
    x = input_of(case, torch.float32)
    for one, two in zip(outputs_of(module(x)), outputs_of(other(x))):
        assert torch.equal(one, two)


def test_parameters_are_in_the_state_dict():
    assert list(neurons.ParametricLIFNode().state_dict()) == ["w"]
    assert list(neurons.KLIFNode().state_dict()) == ["k"]
    assert list(neurons.AdaptiveLIFNode().state_dict()) == ["w"]
    assert list(neurons.LIFNode(tau=nn.Parameter(torch.tensor(2.0))).state_dict()) == ["tau"]
    assert neurons.GatedLIFNode(4, 3).conduct.shape == (4, 3)


# ---- options ---------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_c_plus_plus_library():
    names, classes, options = ops.library_neurons()
    for name, kind, text in zip(names, classes, options):
        signature = inspect.signature(getattr(neurons, kind).__init__).parameters
        for option in filter(None, text.split(",")):
            key, _, value = option.partition("=")
            key = {"surrogate": "surrogate_function"}.get(key, key)
            if key not in signature or signature[key].default is inspect.Parameter.empty:
                assert (name, key) in {
                    ("klif", "k"), ("liaf", "act"), ("liaf", "threshold_related"), ("simple_lif", "tau"),
                    ("simple_lif", "decay_input"), ("gated_lif", "T"), ("stbif", "q_threshold"),
                    ("stbif", "level"),
                }  # fmt: skip
                continue
            default = signature[key].default
            if default is None or isinstance(default, bool | str):
                assert str(default).lower() == value, (name, key)
            else:
                assert default == float(value), (name, key)


def test_options_can_be_assigned():
    module = neurons.LIFNode(step_mode="m")
    x = torch.randn(5, 4) + 1
    before = module(x)
    module.reset()
    module.tau, module.v_threshold, module.detach_reset = 4.0, 0.25, True
    assert not torch.equal(module(x), before)
    twin = neurons.LIFNode(4.0, v_threshold=0.25, detach_reset=True, step_mode="m")
    module.reset()
    assert torch.equal(module(x), twin(x))
    with pytest.raises(ValueError, match="LIFNode: tau must be a number above 1, found 0.5"):
        module.tau = 0.5
    assert module.tau == 4.0
    module.surrogate_function.alpha = 2.0
    twin.surrogate_function = "sigmoid:alpha=2"
    for each in (module, twin):
        each.reset()
    leaf = x.clone().requires_grad_()
    found = [torch.autograd.grad(each(leaf).sum(), leaf)[0] for each in (module, twin)]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("make", "option", "value", "state", "start"),
    [
        (neurons.LIFNode, "v_reset", -0.5, "v", -0.5),
        (lambda: neurons.LIFNode(v_reset=0.5), "v_reset", None, "v", 0.0),
        (neurons.HalfThresholdIFNode, "v_threshold", 3.0, "v", 1.5),
        (neurons.IzhikevichNode, "w_rest", 0.25, "w", 0.25),
    ],
)
def test_an_option_that_is_where_a_state_starts_moves_the_start(make, option, value, state, start):
    fresh, used, own = make(), make(), make()
    setattr(fresh, option, value)
    assert getattr(fresh, state) == start
    used(torch.ones(3))
    kept = getattr(used, state)
    setattr(used, option, value)
    assert getattr(used, state) is kept
    used.reset()
    assert getattr(used, state) == start
    own.set_reset_value(state, 0.125)  # a user's own stays
    setattr(own, option, value)
    own.reset()
    assert getattr(own, state) == 0.125


def test_a_number_can_become_a_parameter():
    module = neurons.LIFNode(step_mode="m")
    module.tau = nn.Parameter(torch.full((3, 1), 2.5))
    x = torch.randn(4, 2, 3, 5)
    module(x).sum().backward()
    assert module.tau.grad.shape == (3, 1) and module.tau.grad.abs().sum() > 0
    module.tau = 2.5
    assert list(module.parameters()) == []


def test_a_parameter_of_any_shape_that_broadcasts():
    module = neurons.ParametricLIFNode(step_mode="m")
    module.w = nn.Parameter(torch.randn(3, 1, 1))
    x = torch.randn(4, 2, 3, 5, 5, requires_grad=True)
    module(x).sum().backward()
    assert module.w.grad.shape == (3, 1, 1)


@pytest.mark.parametrize(
    ("kind", "start"), [(neurons.ParametricLIFNode, "init_tau"), (neurons.AdaptiveLIFNode, "tau")]
)
def test_a_time_constant_for_each_channel(kind, start):
    taus = torch.tensor([1.25, 2.0, 8.0])
    module = kind(**{start: taus.view(3, 1, 1)}, step_mode="m")
    assert module.w.shape == (3, 1, 1) and isinstance(module.w, nn.Parameter)
    torch.testing.assert_close(module.tau.flatten(), taus)
    x = torch.randn(6, 2, 3, 4, 4) + 1
    found = module(x)
    for channel, tau in enumerate(taus.tolist()):
        torch.testing.assert_close(found[:, :, channel], kind(tau, step_mode="m")(x[:, :, channel]))
    # Training: each channel has a gradient of its own, and no step takes a time constant to 1.
    optimizer = torch.optim.SGD(module.parameters(), lr=100.0)
    for step in range(3):
        functional.reset_net(module)
        optimizer.zero_grad()
        module(x).sum().neg().backward()
        assert module.w.grad.shape == (3, 1, 1)
        assert step > 0 or module.w.grad.count_nonzero() == 3
        optimizer.step()
    assert bool((module.tau >= 1).all()) and not torch.allclose(module.tau.flatten(), taus)
    twin = copy.deepcopy(module)
    loaded = kind(**{start: torch.full((3, 1, 1), 2.0)}, step_mode="m")
    loaded.load_state_dict(module.state_dict())
    for each in (module, twin, loaded):
        each.reset()
    found = module(x)
    assert torch.equal(twin(x), found) and torch.equal(loaded(x), found)


def test_channels_of_a_gated_lif():
    module = neurons.GatedLIFNode(4, 3)
    x = torch.randn(4, 2, 3, 5, 5) + 0.5
    found = module(x)
    for channel in range(3):
        one = neurons.GatedLIFNode(4)
        one.load_state_dict({
            key: value[:, channel] if key == "conduct" else value[channel]
            for key, value in module.state_dict().items()
        })
        torch.testing.assert_close(found[:, :, channel], one(x[:, :, channel]))
    with pytest.raises(ValueError, match="GatedLIFNode: T is 4, found a sequence of 5 steps"):
        module(torch.zeros(5, 2, 3, 5, 5))
    with pytest.raises(ValueError, match="GatedLIFNode: inplane is 3, the channels of"):
        module(torch.zeros(4, 2, 4, 5, 5))


def test_channels_of_an_activation_aware_if():
    module = neurons.ActivationAwareIFNode(torch.tensor([0.5, 1.0]), 0.1, channel_dim=1, step_mode="m")
    x = torch.randn(4, 3, 2, 5)
    found = module(x)
    for channel, threshold in enumerate([0.5, 1.0]):
        one = neurons.ActivationAwareIFNode(threshold, 0.1, step_mode="m")
        assert torch.equal(found[:, :, channel], one(x[:, :, channel]))
    wrong = "v_threshold has 2 entries, but a step has 4 channels at channel_dim=1"
    with pytest.raises(ValueError, match=wrong):
        module(torch.zeros(4, 3, 4, 5))
    module.channel_dim = 5
    with pytest.raises(ValueError, match="channel_dim must be a dimension of a step, from -3 to 2, found 5"):
        module(torch.zeros(4, 3, 2, 5))


@pytest.mark.parametrize(
    ("decode", "expected"),
    [
        (None, lambda v: v),
        ("max-mem", lambda v: v.amax(0)),
        ("mean-mem", lambda v: v.mean(0)),
        ("last_mem", lambda v: v[-1]),
        ("max-abs-mem", lambda v: torch.gather(v, 0, v.abs().argmax(0, keepdim=True))[0]),
    ],
)
def test_decoders_of_neurons_that_never_fire(decode, expected):
    x = torch.randn(6, 4)
    potentials = neurons.NonSpikingLIFNode(3.0)(x)
    assert torch.equal(neurons.NonSpikingLIFNode(3.0, decode)(x), expected(potentials))


@pytest.mark.parametrize("decode", ["max-mem", "max-abs-mem", "mean-mem", "last_mem"])
def test_nothing_can_be_decoded_of_a_sequence_without_steps(decode):
    module = neurons.NonSpikingLIFNode(decode=decode)
    text = f"NonSpikingLIFNode: decode='{decode}' needs a sequence of at least one step, found one of shape"
    with pytest.raises(ValueError, match=rf"{text} \(0, 3\); with decode=None a call gives an empty"):
        module(torch.zeros(0, 3))
    module.decode = None
    assert module(torch.zeros(0, 3)).shape == (0, 3)


def test_the_trace_comes_out_in_training_only():
    module = neurons.OTTTLIFNode()
    spikes, trace = module(torch.ones(3))
    assert torch.equal(trace, spikes) and torch.equal(module.trace, trace)
    assert isinstance(module.eval()(torch.ones(3)), Tensor)


def test_the_sum_of_a_quantizer():
    module = neurons.STBIFNeuron(0.5, 16, step_mode="m")
    with pytest.raises(RuntimeError, match="there is no sum before the first call"):
        module.accumulated
    x = torch.rand(20, 7)
    assert torch.equal(module(x).sum(0), module.accumulated)


def test_a_neuron_shows_its_options():
    module = neurons.LIFNode(tau=nn.Parameter(torch.full((3, 1), 2.0)))
    assert "tau=(3, 1), decay_input=True, v_threshold=1.0" in repr(module)
    assert "(surrogate_function): Sigmoid(alpha=4.0, spiking=True)" in repr(module)


# ---- together with the rest --------------------------------------------------------------------------------


@both_backends
def test_ten_layers_have_one_text(backend):
    net = nn.Sequential(*[neurons.LIFNode(step_mode="m", backend=backend) for _ in range(10)])
    x = torch.randn(4, 2, 3, requires_grad=True)
    net(x).sum().backward()
    keys = {neurons.library.describe("LIFNode", "lif", layer._options, x.dtype).trace.text for layer in net}
    assert len(keys) == 1


COMPILED = [("fused", name) for name in ("lif hard", "plif", "alif", "gated_lif", "ottt_lif", "liaf")]
COMPILED += [("torch", name) for name in ("plif", "alif")]  # every step of a loop takes long


@pytest.mark.parametrize(("backend", "name"), COMPILED)
def test_compiled_modules_give_the_same(name, backend):
    case = CASES[name]
    module = case.make(step_mode="m", backend=backend)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    x = input_of(case, torch.float32)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted, found = outputs_of(module(theirs)), outputs_of(compiled(ours))
    expect_same(case, found, wanted)
    gradient = torch.autograd.grad(wanted[0].sum(), theirs)[0]
    torch.testing.assert_close(torch.autograd.grad(found[0].sum(), ours)[0], gradient)
    # States that the first call left go into the second.
    expect_same(case, outputs_of(compiled(x)), outputs_of(module(x)))


def test_a_compiled_module_with_a_user_s_surrogate():
    module = neurons.LIFNode(surrogate_function=OwnFunction.apply, step_mode="m")
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 4, requires_grad=True)
    found = [torch.autograd.grad(each(x).sum(), x)[0] for each in (module, compiled)]
    assert torch.equal(*found)


@both_backends
def test_a_compiled_module_follows_its_options(backend):
    module = neurons.IFNode(0.5, step_mode="m", backend=backend)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.zeros(1, 3, requires_grad=True)

    def gradient(function: Any) -> float:
        module.reset()
        return float(torch.autograd.grad(function(x).sum(), x)[0][0, 0])

    seen = {gradient(compiled)}
    for change in (
        lambda: setattr(module.surrogate_function, "alpha", 1.0),
        lambda: setattr(module, "v_threshold", 2.0),
        lambda: setattr(module, "surrogate_function", "atan"),
    ):
        change()
        assert gradient(compiled) == gradient(module)
        seen.add(gradient(compiled))
    assert len(seen) == 4


def test_an_exported_module_gives_the_same():
    module = neurons.LIFNode(v_reset=-0.25, step_mode="m")
    x = torch.randn(5, 4)
    exported = torch.export.export(copy.deepcopy(module), (x,)).module()
    assert torch.equal(exported(x), module(x))


def test_functions_of_the_package_find_them():
    net = nn.Sequential(nn.Linear(3, 3), neurons.LIFNode())
    functional.set_step_mode(net, "m")
    functional.set_backend(net, "torch")
    assert (net[1].step_mode, net[1].backend) == ("m", "torch")
    assert net(torch.randn(*SHAPE[:2], 3)).shape == (*SHAPE[:2], 3)
    assert STEPS > 1


@pytest.mark.parametrize("act", [torch.relu, nn.functional.relu, nn.ReLU(), "relu"])
def test_an_activation_that_kernels_have_is_part_of_them(act):
    neuron = neurons.LIAFNode(act, True, step_mode="m")
    assert neuron.act == "relu" and neuron.act_function is None
    assert " = relu %" in flexsn.show(neuron)


ACTIVATIONS = {"name": "relu", "known": torch.tanh, "module": nn.GELU(), "function": lambda u: 3 * u}


@pytest.mark.parametrize("before", ACTIVATIONS)
@pytest.mark.parametrize("after", ACTIVATIONS)
def test_an_activation_can_be_assigned(before, after):
    x = torch.randn(4, 3)
    wanted = neurons.LIAFNode(ACTIVATIONS[after], True, step_mode="m")(x)
    neuron = neurons.LIAFNode(ACTIVATIONS[before], True, step_mode="m")
    neuron.act = ACTIVATIONS[after]
    assert torch.equal(neuron(x), wanted)
    with pytest.raises(ValueError, match="LIAFNode: act must be relu, sigmoid, tanh or none, found gelu"):
        neuron.act = "gelu"
    with pytest.raises(TypeError, match="LIAFNode: act must be a name or a function of a tensor, found int"):
        neuron.act = 3
    neuron.reset()
    assert torch.equal(neuron(x), wanted)


def test_another_activation_is_called_once_on_the_sequence():
    seen = []

    def act(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return x * 2

    neuron = neurons.LIAFNode(act, False, step_mode="m")
    plain = neurons.LIAFNode("none", False, step_mode="m")
    x = torch.randn(4, 3)
    assert torch.equal(neuron(x), 2 * plain(x)) and seen == [(4, 3)]
