"""FlexSN as a module: how it is made and called, and what it checks."""

from __future__ import annotations

import pytest
from flexsn import functional
from flexsn.neuron import BACKENDS, FUSED_BACKENDS, FlexSN
from flexsn_cores import (
    both_backends,
    by_hand,
    fused_labels,
    lif,
    must_not_run,
    no_states,
    smooth,
    state_only,
    two_in_two_out,
)

import torch
from torch import Tensor

# ---- constructor: counts -----------------------------------------------------------------------------------


def test_num_states_is_required_and_the_error_says_why():
    with pytest.raises(TypeError, match="num_states is required. It cannot be told from the core"):
        FlexSN(lif)


def test_the_core_must_be_callable():
    with pytest.raises(TypeError, match="core must be callable, found int"):
        FlexSN(3, num_states=1)


@pytest.mark.parametrize(
    "counts, error, text",
    [
        ({"num_states": -1}, ValueError, "num_states must not be negative, found -1"),
        ({"num_states": 1, "num_inputs": 1.0}, TypeError, "num_inputs must be an int, found float"),
        ({"num_states": 3}, ValueError, "must take 3 states and 0 static inputs.*found 2 arguments"),
    ],
)
def test_counts_are_checked(counts, error, text):
    with pytest.raises(error, match=text):
        FlexSN(lif, backend="torch", **counts)


def test_num_inputs_comes_from_the_signature_and_num_outputs_from_a_step():
    module = FlexSN(two_in_two_out, num_states=3)
    assert (module.num_inputs, module.num_states, module.num_outputs) == (2, 3, 2)


def test_counts_come_from_the_first_call_where_the_signature_is_open():
    def core(*args: Tensor) -> tuple[Tensor, ...]:
        return two_in_two_out(*args)

    module = FlexSN(core, num_states=3, backend="torch")
    assert (module.num_inputs, module.num_outputs) == (None, None)
    module(torch.randn(4, 3), torch.randn(4, 3))
    assert (module.num_inputs, module.num_outputs) == (2, 2)
    with pytest.raises(ValueError, match="expected 2 inputs, found 1"):
        module(torch.randn(4, 3))


def test_arguments_with_defaults_leave_the_number_of_inputs_open():
    def core(x: Tensor, v: Tensor, tau: float = 2.0) -> tuple[Tensor, Tensor]:
        return x, v / tau

    assert FlexSN(core, num_states=1, backend="torch").num_inputs is None


def test_num_outputs_comes_from_the_templates_where_nothing_else_tells():
    assert FlexSN(lif, num_states=1, backend="torch", example_outputs=(torch.zeros(3),)).num_outputs == 1


def test_the_seeds_positional_order_holds():
    module = FlexSN(two_in_two_out, 2, 3, 2, None, None, "m", "torch", True, None)
    assert (module.num_inputs, module.num_states, module.num_outputs) == (2, 3, 2)
    assert module.store_state_seqs and module.backend == "torch"


# ---- constructor: step mode and backend --------------------------------------------------------------------


def test_the_step_mode_is_checked():
    with pytest.raises(ValueError, match="step_mode must be one of"):
        FlexSN(lif, 1, 1, 1, step_mode="x")


def test_an_unknown_backend_is_not_implemented():
    with pytest.raises(NotImplementedError, match="backend must be one of .*found 'cupy'"):
        FlexSN(lif, 1, 1, 1, backend="cupy")


def test_the_step_mode_is_looked_at_before_the_backend():
    with pytest.raises(ValueError, match="step_mode"):
        FlexSN(lif, 1, 1, 1, step_mode="x", backend="cupy")


@fused_labels
def test_fused_backends_refuse_single_steps(backend):
    with pytest.raises(RuntimeError, match='with step_mode="s" use backend="torch"'):
        FlexSN(lif, 1, 1, 1, step_mode="s", backend=backend)


def test_the_default_is_fused_multi_step():
    module = FlexSN(lif, 1, 1, 1)
    assert module.backend == "fused" and module.step_mode == "m" and not module.store_state_seqs


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_core_without_inputs_is_refused_in_multi_step_mode(backend):
    with pytest.raises(ValueError, match='step_mode="m" needs at least one input'):
        FlexSN(lambda v: (v, v), 0, 1, 1, backend=backend)


def test_a_core_without_inputs_runs_single_steps():
    module = FlexSN(lambda v: (v, v + 1), 0, 1, 1, step_mode="s", backend="torch")
    with pytest.raises(ValueError, match="no input to take the shape of states from"):
        module()
    module.states = [torch.zeros(2)]
    assert module().tolist() == [0, 0]
    assert module().tolist() == [1, 1]
    module.step_mode = "m"
    with pytest.raises(ValueError, match="needs at least one input"):
        module()


# ---- constructor: examples ---------------------------------------------------------------------------------


def test_torch_backend_does_not_probe_the_core():
    FlexSN(must_not_run, 1, 1, 1, backend="torch", example_inputs=(torch.zeros(2), torch.zeros(3)))


def test_examples_must_be_as_many_as_inputs_and_states():
    with pytest.raises(ValueError, match="one tensor for each input and state, expected 2, found 1"):
        FlexSN(lif, 1, 1, 1, example_inputs=(torch.zeros(3),))


def test_examples_must_be_tensors():
    with pytest.raises(TypeError, match=r"example_inputs\[1\] must be a tensor, found float"):
        FlexSN(lif, 1, 1, 1, example_inputs=(torch.zeros(3), 0.0))


@fused_labels
def test_examples_must_have_the_same_number_of_elements(backend):
    with pytest.raises(ValueError, match="same number of elements: tensor 0 has 6, tensor 1 has 5"):
        FlexSN(lif, 1, 1, 1, backend=backend, example_inputs=(torch.zeros(2, 3), torch.zeros(5)))


def test_examples_must_be_on_one_device():
    with pytest.raises(ValueError, match="on one device: tensor 0 is on cpu, tensor 1 on meta"):
        FlexSN(lif, 1, 1, 1, example_inputs=(torch.zeros(3), torch.zeros(3, device="meta")))


def test_examples_of_several_types_are_fine():
    def core(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        return x * (count == 0), count + 1

    FlexSN(core, 1, 1, 1, example_inputs=(torch.zeros(3), torch.zeros(3, dtype=torch.int32)))


@pytest.mark.parametrize("examples", [None, (torch.zeros(3), torch.zeros(3))], ids=["left out", "given"])
def test_the_core_must_return_outputs_and_states(examples):
    with pytest.raises(ValueError, match="must return 2 outputs and 1 states, found 2 values"):
        FlexSN(lif, 1, 1, 2, example_inputs=examples)
    with pytest.raises(TypeError, match="result 1 of the core must be a tensor, found float"):
        FlexSN(lambda x, v: (x, 0.0), 1, 1, 1, example_inputs=examples)
    with pytest.raises(TypeError, match="found NoneType"):
        FlexSN(lambda x, v: None, 1, 1, 1, example_inputs=examples)


def test_the_core_must_keep_the_shape_of_the_examples():
    with pytest.raises(ValueError, match=r"result 1 .* expected \(3,\), found \(1, 3\)"):
        FlexSN(lambda x, v: (x, v[None]), 1, 1, 1, example_inputs=(torch.zeros(3), torch.zeros(3)))


def test_the_core_must_keep_the_device_of_the_examples():
    with pytest.raises(ValueError, match="result 0 .* expected cpu, found meta"):
        FlexSN(lambda x, v: (x.to("meta"), v), 1, 1, 1, example_inputs=(torch.zeros(3), torch.zeros(3)))


def test_an_error_of_the_core_on_given_examples_comes_through():
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        raise LookupError("from the core")

    with pytest.raises(LookupError, match="from the core"):
        FlexSN(core, 1, 1, 1, example_inputs=(torch.zeros(3), torch.zeros(3)))


def test_a_core_that_cannot_take_invented_examples_is_made_all_the_same():
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x.reshape(2, 3), v

    FlexSN(core, 1, 1, 1)


def test_a_parameter_per_channel_needs_no_examples():
    level = torch.ones(8, 1)
    FlexSN(lambda x, v: (x - level, v + level), 1, 1, 1)


def test_examples_are_left_alone_by_a_core_that_works_in_place():
    examples = (torch.ones(3), torch.ones(3))

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x.mul_(2), v.add_(1)

    FlexSN(core, 1, 1, 1, example_inputs=examples)
    assert all(torch.equal(example, torch.ones(3)) for example in examples)


def test_requires_grad_has_one_entry_for_each_input_and_state():
    with pytest.raises(ValueError, match="requires_grad must have the same length .* expected 2, found 1"):
        FlexSN(lif, 1, 1, 1, requires_grad=(True,))


@pytest.mark.parametrize("mask", [[True, False], [False, True], (False, False), None], ids=str)
def test_requires_grad_cuts_no_gradient_with_any_backend(mask):
    gradients = []
    for backend in ("fused", "torch", "hop"):
        module = FlexSN(smooth, 1, 1, 1, requires_grad=mask, backend=backend)
        x, v = torch.ones(3, 2, requires_grad=True), torch.ones(2, requires_grad=True)
        module.states = [v]
        gradients.append(torch.autograd.grad(module(x).sum() + module.states[0].sum(), [x, v]))
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[2], gradients[1])


def test_the_number_of_example_outputs_is_checked():
    with pytest.raises(ValueError, match="expected 1 example output tensors"):
        FlexSN(lif, 1, 1, 1, backend="torch", example_outputs=())


def test_example_outputs_must_be_tensors():
    with pytest.raises(TypeError, match=r"example_outputs\[0\] must be a tensor, found int"):
        FlexSN(lif, 1, 1, 1, backend="torch", example_outputs=(3,))


@fused_labels
@pytest.mark.parametrize("examples", [None, (torch.zeros(3), torch.zeros(3))], ids=["left out", "given"])
@pytest.mark.parametrize("template", [torch.zeros(4), torch.zeros(3, dtype=torch.float64)])
def test_example_outputs_must_be_like_the_outputs_of_a_step(backend, examples, template):
    with pytest.raises(ValueError, match=r"example_outputs\[0\] must be like output 0"):
        FlexSN(lif, 1, 1, 1, backend=backend, example_inputs=examples, example_outputs=(template,))


# ---- what a call returns and keeps -------------------------------------------------------------------------


@both_backends
@pytest.mark.parametrize("steps", [1, 4, 16])
@pytest.mark.parametrize("shape", [(8,), (4, 8)])
def test_a_call_equals_the_loop_by_hand(backend, steps, shape):
    x = torch.randn(steps, *shape)
    module = FlexSN(lif, 1, 1, 1, backend=backend, store_state_seqs=True)
    out = module(x)
    outputs, states, last = by_hand(lif, x, torch.zeros(shape))
    torch.testing.assert_close(out, outputs)
    torch.testing.assert_close(module.states[0], last)
    torch.testing.assert_close(module.state_seqs[0], states)


@both_backends
def test_backward_equals_the_loop_by_hand(backend):
    x, v = torch.randn(5, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    module.states = [v]
    (module(x).sum() + module.states[0].square().sum()).backward()
    x2, v2 = (tensor.detach().clone().requires_grad_() for tensor in (x, v))
    outputs, _, last = by_hand(smooth, x2, v2)
    (outputs.sum() + last.square().sum()).backward()
    torch.testing.assert_close(x.grad, x2.grad)
    torch.testing.assert_close(v.grad, v2.grad)


@both_backends
def test_one_output_comes_bare_and_several_in_a_list(backend):
    x = torch.randn(3, 4)
    assert isinstance(FlexSN(lif, 1, 1, 1, backend=backend)(x), Tensor)
    outputs = FlexSN(two_in_two_out, 2, 3, 2, backend=backend)(x, x)
    assert isinstance(outputs, list) and [tuple(y.shape) for y in outputs] == [(3, 4), (3, 4)]
    assert FlexSN(state_only, 1, 1, 0, backend=backend)(x) == []


def test_single_steps_give_one_output_bare_and_several_in_a_tuple():
    x = torch.randn(4)
    assert isinstance(FlexSN(lif, 1, 1, 1, step_mode="s", backend="torch")(x), Tensor)
    assert isinstance(FlexSN(two_in_two_out, 2, 3, 2, step_mode="s", backend="torch")(x, x), tuple)
    assert FlexSN(state_only, 1, 1, 0, step_mode="s", backend="torch")(x) == ()


@both_backends
def test_multi_step_forward_returns_a_list_and_starts_the_states(backend):
    module = FlexSN(lif, 1, 1, 1, backend=backend)
    outputs = module.multi_step_forward(torch.randn(2, 3))
    assert isinstance(outputs, list) and outputs[0].shape == (2, 3)
    assert isinstance(module.states, list) and module.states[0].shape == (3,)


@pytest.mark.parametrize("backend", ["torch", *FUSED_BACKENDS])
def test_single_step_forward_returns_a_tuple_and_starts_the_states(backend):
    module = FlexSN(lif, 1, 1, 1, backend=backend)
    outputs = module.single_step_forward(torch.randn(3))
    assert isinstance(outputs, tuple) and outputs[0].shape == (3,)
    assert isinstance(module.states, list) and module.states[0].shape == (3,)


def test_single_steps_equal_a_sequence():
    x = torch.randn(5, 3)
    multi, single = FlexSN(lif, 1, 1, 1, backend="torch"), FlexSN(lif, 1, 1, 1)
    functional.set_step_mode(single, "s")
    outputs = torch.stack([single(x[t]) for t in range(5)])
    assert torch.equal(outputs, multi(x))
    assert torch.equal(single.states[0], multi.states[0])


@both_backends
def test_states_are_carried_until_reset(backend):
    x = torch.randn(10, 3)
    whole, parts = FlexSN(smooth, 1, 1, 1, backend=backend), FlexSN(smooth, 1, 1, 1, backend=backend)
    expected = whole(x)
    torch.testing.assert_close(torch.cat([parts(x[:3]), parts(x[3:])]), expected, rtol=0, atol=0)
    torch.testing.assert_close(parts.states, whole.states, rtol=0, atol=0)
    parts.reset()
    assert parts.states is None and parts.state_seqs is None
    torch.testing.assert_close(parts(x), expected, rtol=0, atol=0)


@both_backends
def test_state_seqs_are_kept_only_when_asked_for(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    x = torch.randn(4, 3)
    module(x)
    assert module.state_seqs is None
    module.store_state_seqs = True
    module(x)
    assert isinstance(module.state_seqs, list) and module.state_seqs[0].shape == (4, 3)
    module.store_state_seqs = False
    assert module.state_seqs is None
    module.store_state_seqs = True
    module(x)
    module.reset()
    assert module.state_seqs is None


@both_backends
def test_states_are_no_views_of_the_state_sequences(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend, store_state_seqs=True)
    module(torch.randn(4, 3))
    before = module.states[0].clone()
    assert module.states[0]._base is None
    module.state_seqs[0].fill_(7)
    assert torch.equal(module.states[0], before)


@both_backends
def test_states_are_no_views_of_the_inputs(backend):
    module = FlexSN(lambda x, v: (v, x), 1, 1, 1, backend=backend)
    x = torch.ones(4, 3)
    module(x)
    x.zero_()
    assert torch.equal(module.states[0], torch.ones(3))


@both_backends
def test_states_and_state_seqs_are_memories(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend, store_state_seqs=True)
    assert dict(module.named_memories()) == {"states": None, "state_seqs": None}
    module(torch.randn(4, 3))
    states, state_seqs = module.memories()
    assert states is module.states and state_seqs is module.state_seqs


@both_backends
def test_states_move_with_the_module(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend, store_state_seqs=True)
    module(torch.randn(4, 3))
    module.double()
    assert module.states[0].dtype == module.state_seqs[0].dtype == torch.float64
    assert module(torch.randn(4, 3, dtype=torch.float64)).dtype == torch.float64


@both_backends
def test_detached_states_carry_no_graph(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    module(torch.randn(4, 3, requires_grad=True))
    assert module.states[0].requires_grad
    functional.detach_net(module)
    assert not module.states[0].requires_grad


@both_backends
def test_a_neuron_without_states_runs(backend):
    module = FlexSN(no_states, 1, 0, 1, backend=backend, store_state_seqs=True)
    x = torch.randn(3, 2)
    torch.testing.assert_close(module(x), x * 2)
    assert module.states == [] and module.state_seqs == []


def test_a_core_without_states_may_return_a_bare_tensor():
    x = torch.randn(3, 2)
    module = FlexSN(lambda x: x * 2, 1, 0, 1, backend="torch")
    assert torch.equal(module(x), x * 2)
    module.step_mode = "s"
    assert torch.equal(module(x[0]), x[0] * 2)


@both_backends
def test_train_and_eval_make_no_difference(backend):
    x = torch.randn(4, 3)
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    trained = module.train()(x)
    module.reset()
    assert torch.equal(module.eval()(x), trained)


@both_backends
def test_initial_states_may_be_assigned_as_a_list_or_a_tuple(backend):
    x = torch.randn(4, 3)
    first = torch.randn(3)
    expected, _, _ = by_hand(smooth, x, first)
    for states in ([first], (first,)):
        module = FlexSN(smooth, 1, 1, 1, backend=backend)
        module.states = states
        torch.testing.assert_close(module(x), expected)


# ---- run-time checks ---------------------------------------------------------------------------------------


@both_backends
def test_the_number_of_inputs_is_checked(backend):
    module = FlexSN(two_in_two_out, 2, 3, 2, backend=backend)
    with pytest.raises(ValueError, match="expected 2 inputs, found 1"):
        module(torch.randn(3, 4))
    module.step_mode = "s"
    with pytest.raises(ValueError, match="expected 2 inputs, found 3"):
        module(torch.randn(4), torch.randn(4), torch.randn(4))


@both_backends
def test_inputs_must_be_tensors_with_time(backend):
    module = FlexSN(lif, 1, 1, 1, backend=backend)
    with pytest.raises(TypeError, match="input 0 must be a tensor, found list"):
        module([1.0])
    with pytest.raises(ValueError, match="input 0 must have time as its first dimension, found a scalar"):
        module(torch.tensor(1.0))
    module.step_mode = "s"
    with pytest.raises(TypeError, match="input 0 must be a tensor, found float"):
        module(1.0)


@both_backends
def test_all_inputs_have_the_same_number_of_steps(backend):
    module = FlexSN(two_in_two_out, 2, 3, 2, backend=backend)
    with pytest.raises(ValueError, match="same leading dim .* input 0 has 3 steps, input 1 has 4"):
        module(torch.randn(3, 4), torch.randn(4, 4))


@both_backends
@pytest.mark.parametrize("first, then", [((3, 4), (5, 4)), ((1, 4), (5, 4)), ((5, 4), (1, 4))])
def test_another_shape_without_reset_is_an_error_that_says_so(backend, first, then):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    module(torch.randn(2, *first))
    with pytest.raises(ValueError, match=r"reset\(\)"):
        module(torch.randn(2, *then))
    module.reset()
    assert module(torch.randn(2, *then)).shape == (2, *then)


def test_another_shape_without_reset_is_an_error_for_single_steps():
    module = FlexSN(smooth, 1, 1, 1, step_mode="s", backend="torch")
    module(torch.randn(1, 4))
    with pytest.raises(ValueError, match=r"steps of shape \(1, 4\), .* shape \(3, 4\): call reset\(\)"):
        module(torch.randn(3, 4))


SWITCHES = {
    "fused to torch": dict(start=dict(backend="fused"), then=dict(backend="torch")),
    "fused to hop": dict(start=dict(backend="fused"), then=dict(backend="hop")),
    "torch to fused": dict(start=dict(backend="torch"), then=dict(backend="fused")),
    "torch to hop": dict(start=dict(backend="torch"), then=dict(backend="hop")),
    "stored sequences to torch": dict(
        start=dict(backend="fused", store_state_seqs=True), then=dict(backend="torch")
    ),
    "sequences to single steps": dict(start=dict(backend="fused"), then=dict(step_mode="s")),
    "single steps to sequences": dict(
        start=dict(backend="torch", step_mode="s"), then=dict(step_mode="m", backend="fused")
    ),
}


@pytest.mark.parametrize("assigned", [False, True], ids=["", "from assigned states"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_another_shape_is_an_error_after_a_switch_of_backend_or_step_mode(switch, assigned):
    module = FlexSN(smooth, 1, 1, 1, **SWITCHES[switch]["start"])
    if assigned:
        module.states = [torch.ones(3)]
    module(torch.randn(3) if module.step_mode == "s" else torch.randn(2, 3))
    for name, value in SWITCHES[switch]["then"].items():
        setattr(module, name, value)
    single = module.step_mode == "s"
    with pytest.raises(ValueError, match=r"call reset\(\) before a batch of another shape"):
        module(torch.randn(1) if single else torch.randn(2, 1))
    assert module(torch.randn(3) if single else torch.randn(2, 3)).shape[-1] == 3
    module.reset()
    assert module(torch.randn(1) if single else torch.randn(2, 1)).shape[-1] == 1


@pytest.mark.parametrize("backend", ["torch", "hop", "fused"])
def test_an_empty_sequence_of_another_shape_without_reset_is_an_error(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend, example_outputs=[torch.zeros(1)])
    module(torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"call reset\(\) before a batch of another shape"):
        module(torch.randn(0, 1))
    module.reset()
    module(torch.randn(0, 1))
    with pytest.raises(ValueError, match=r"call reset\(\) before a batch of another shape"):
        module(torch.randn(2, 3))


@both_backends
def test_a_reset_value_of_its_own_shape_is_the_users(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    module.set_reset_value("states", [torch.ones(3)])
    for steps in (2, 4):
        module.reset()
        assert module(torch.randn(steps, 3)).shape == (steps, 3)


def test_torch_backend_takes_assigned_states_of_their_own_shape():
    module = FlexSN(lambda x, v: (x + v.sum(), v * 2), 1, 1, 1, backend="torch")
    module.states = [torch.ones(3)]
    assert module(torch.zeros(2, 5)).tolist() == [[3] * 5, [6] * 5]
    module(torch.zeros(2, 5))
    module.states = [torch.ones(4)]
    assert module(torch.zeros(2, 7)).shape == (2, 7)


@both_backends
def test_the_number_of_states_is_checked(backend):
    module = FlexSN(lif, 1, 1, 1, backend=backend)
    module(torch.randn(2, 3, requires_grad=True))
    module.states = [torch.zeros(3), torch.zeros(3)]
    with pytest.raises(ValueError, match="expected 1 states, found 2"):
        module(torch.randn(2, 3))
    module.states = torch.zeros(3)
    with pytest.raises(TypeError, match="states must be a list of tensors, found Tensor"):
        module(torch.randn(2, 3))


def test_torch_backend_checks_what_the_core_returns():
    module = FlexSN(lambda x, v: (x, x, v), 1, 1, 1, backend="torch")
    with pytest.raises(ValueError, match="must return 1 outputs and 1 states, found 3 values"):
        module(torch.randn(2, 3))
    module = FlexSN(lambda x, v: (), num_states=1, backend="torch")
    with pytest.raises(ValueError, match="must return 1 states, found 0 values"):
        module(torch.randn(2, 3))


# ---- a state whose graph is gone ---------------------------------------------------------------------------

detach_or_reset = "detach or reset between batches"


@both_backends
def test_a_state_whose_graph_was_freed_says_what_to_do(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    x = torch.randn(4, 3, requires_grad=True)
    module(x).sum().backward()
    out = module(x)
    with pytest.raises(RuntimeError, match=detach_or_reset):
        out.sum().backward()


def test_an_empty_sequence_leaves_the_mark_of_a_freed_graph():
    module = FlexSN(smooth, 1, 1, 1, backend="torch", example_outputs=[torch.zeros(3)])
    x = torch.randn(4, 3, requires_grad=True)
    module(x).sum().backward()
    module(x[:0])
    with pytest.raises(RuntimeError, match=detach_or_reset):
        module(x).sum().backward()


@both_backends
@pytest.mark.parametrize("cut", [functional.detach_net, functional.reset_net])
def test_detached_and_reset_states_train_on(backend, cut):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    x = torch.randn(4, 3, requires_grad=True)
    for _ in range(3):
        module(x).sum().backward()
        cut(module)


@both_backends
def test_a_graph_that_was_kept_is_used_again(backend):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    x = torch.randn(4, 3, requires_grad=True)
    module(x).sum().backward(retain_graph=True)
    module(x).sum().backward()
    assert x.grad is not None


@both_backends
def test_gradients_flow_through_carried_states(backend):
    x = torch.randn(6, 3, requires_grad=True)
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    torch.cat([module(x[:2]), module(x[2:])]).sum().backward()
    y = x.detach().clone().requires_grad_()
    by_hand(smooth, y, torch.zeros(3))[0].sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_single_steps_with_a_freed_graph_say_what_to_do():
    module = FlexSN(smooth, 1, 1, 1, step_mode="s", backend="torch")
    x = torch.randn(3, requires_grad=True)
    (module(x) + module(x)).sum().backward()
    out = module(x)
    with pytest.raises(RuntimeError, match=detach_or_reset):
        out.sum().backward()


def test_a_freed_graph_found_only_after_the_second_call_says_what_to_do():
    module = FlexSN(smooth, 1, 1, 1, backend="torch")
    x = torch.randn(4, 3, requires_grad=True)
    first, second = module(x), module(x)
    first.sum().backward()
    with pytest.raises(RuntimeError, match=detach_or_reset):
        second.sum().backward()


def test_a_call_without_backward_may_use_a_state_whose_graph_was_freed():
    module = FlexSN(smooth, 1, 1, 1, backend="torch")
    x = torch.randn(4, 3, requires_grad=True)
    module(x).sum().backward()
    module(x)


# ---- empty sequences ---------------------------------------------------------------------------------------


def test_torch_backend_empty_sequence_does_not_call_the_core():
    module = FlexSN(must_not_run, 1, 1, 1, backend="torch", example_outputs=(torch.zeros(3),))
    out = module(torch.empty(0, 3))
    assert out.shape == (0, 3)
    assert torch.equal(module.states[0], torch.zeros(3))


@pytest.mark.parametrize("examples", [None, (torch.zeros(4), torch.zeros(3))])
def test_torch_backend_empty_sequence_requires_example_outputs(examples):
    module = FlexSN(must_not_run, 1, 1, 1, backend="torch", example_inputs=examples)
    module.states = [torch.zeros(3)]
    with pytest.raises(ValueError, match="requires example_outputs"):
        module(torch.empty(0, 4))


def test_torch_backend_empty_sequence_uses_the_shapes_and_types_of_example_outputs():
    module = FlexSN(
        must_not_run, 1, 1, 1, backend="torch", example_outputs=(torch.zeros(4, dtype=torch.float64),)
    )
    module.states = [torch.zeros(3)]
    out = module.multi_step_forward(torch.empty(0, 2))[0]
    assert out.shape == (0, 4) and out.dtype == torch.float64
    assert module.states[0].shape == (3,)


def test_empty_outputs_are_on_the_device_of_the_input():
    module = FlexSN(must_not_run, 1, 1, 1, backend="torch", example_outputs=(torch.empty(4, device="meta"),))
    assert module(torch.empty(0, 2)).device.type == "cpu"


def test_empty_sequence_of_a_core_without_outputs_needs_no_example_outputs():
    module = FlexSN(must_not_run, 1, 1, 0, backend="torch")
    module.states = [torch.ones(3)]
    assert module.multi_step_forward(torch.empty(0, 3)) == []
    assert torch.equal(module.states[0], torch.ones(3))


@pytest.mark.parametrize(
    "backend, examples", [("fused", None), ("torch", [torch.zeros(4)]), ("torch", [torch.zeros(4).double()])]
)
def test_a_loss_over_no_steps_has_a_gradient(backend, examples):
    module = FlexSN(lif, 1, 1, 1, backend=backend, example_outputs=examples)
    x = torch.empty(0, 2, requires_grad=True)
    module(x).sum().backward()
    assert x.grad.shape == (0, 2)
    assert not module(x.detach()).requires_grad


def test_a_loss_over_no_steps_reaches_every_input_and_parameter():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, n, x, v):
            h = v * self.w + x * n
            return h, h

    module = FlexSN(Two(), num_states=1)
    n, x = torch.empty(0, 2, dtype=torch.float64), torch.empty(0, 2, requires_grad=True)
    module(n, x).sum().backward()
    assert x.grad.shape == (0, 2) and torch.equal(module.core.w.grad, torch.tensor(0.0))


@both_backends
def test_empty_sequence_stores_empty_state_sequences(backend):
    module = FlexSN(
        lif,
        1,
        1,
        1,
        backend=backend,
        store_state_seqs=True,
        example_inputs=(torch.zeros(3), torch.zeros(3)),
        example_outputs=(torch.zeros(3),),
    )
    module(torch.empty(0, 3))
    assert module.state_seqs[0].shape == (0, 3)
    assert torch.equal(module.states[0], torch.zeros(3))


@fused_labels
def test_fused_empty_sequence_runs_no_kernel_and_needs_no_example_outputs(backend, recorded):
    module = FlexSN(two_in_two_out, 2, 3, 2, backend=backend)
    outputs = module(torch.empty(0, 5), torch.empty(0, 5))
    assert [tuple(y.shape) for y in outputs] == [(0, 5), (0, 5)]
    assert [tuple(v.shape) for v in module.states] == [(5,)] * 3
    assert recorded[-1].calls == []


# ---- the fused path is called as it should -----------------------------------------------------------------


@fused_labels
def test_all_fused_labels_take_the_same_path(backend, recorded):
    module = FlexSN(smooth, 1, 1, 1, backend=backend)
    module(torch.randn(3, 2))
    assert module.backend == backend
    assert len(recorded[-1].calls) == 1
    assert recorded[-1].counts == (1, 1, 1)


def test_torch_backend_makes_no_kernel(recorded):
    FlexSN(smooth, 1, 1, 1, backend="torch")(torch.randn(3, 2))
    assert recorded == []


@pytest.mark.parametrize("grad", [False, True])
def test_initial_zeros_are_left_out_in_inference_and_training(recorded, grad):
    module = FlexSN(smooth, 1, 1, 1)
    module(torch.randn(3, 2, requires_grad=grad))
    module(torch.randn(3, 2))
    first, second = recorded[-1].calls
    assert first[0] is None
    assert torch.is_tensor(second[0][0])


def test_states_that_are_given_go_to_the_kernel(recorded):
    module = FlexSN(smooth, 1, 1, 1)
    given = torch.randn(2)
    module.states = [given]
    module(torch.randn(3, 2))
    assert recorded[-1].calls[0][0][0] is given


def test_a_reset_value_goes_to_the_kernel(recorded):
    module = FlexSN(smooth, 1, 1, 1)
    module.set_reset_value("states", [torch.full((2,), 3.0)])
    module.reset()
    module(torch.randn(3, 2))
    assert recorded[-1].calls[0][0][0].tolist() == [3, 3]


def test_state_sequences_are_asked_for_only_when_stored(recorded):
    module = FlexSN(smooth, 1, 1, 1)
    module(torch.randn(3, 2))
    module.store_state_seqs = True
    module(torch.randn(3, 2))
    assert [sequences for _, _, sequences in recorded[-1].calls] == [False, True]
