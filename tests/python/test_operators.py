"""The operators torch.ops.flexsn.*: what torch asks of them, what they check, what they never do."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cores import (
    Calls,
    by_loop,
    hard,
    neuron_of,
    soft,
    square,
    two_in_three_states,
    with_counter,
    with_params,
)

ops = torch.ops.flexsn
FORWARD = ("inference", "inference_final_state", "training", "training_final_state")


class Case:
    """A neuron with arguments: text, inputs, states, parameters."""

    def __init__(self, core: Any, inputs: list[Tensor], states: list[Tensor], elided: bool = False) -> None:
        self.core, self.inputs = core, inputs
        self.text, self.params = neuron_of(core, inputs, states)
        self.states = [] if elided else states
        self.full_states = states
        for tensor in (*inputs, *self.states):
            if tensor.is_floating_point():
                tensor.requires_grad_()

    @property
    def arguments(self) -> tuple[str, list[Tensor], list[Tensor], list[Tensor]]:
        return self.text, self.inputs, self.states, self.params

    def backward_arguments(self, sequences: bool) -> tuple[Any, ...]:
        """What autograd hands to flexsn::backward, all gradients arriving."""
        op = ops.training if sequences else ops.training_final_state
        calls = Calls()
        with calls:
            results = op(*self.arguments)
            carrying = [r for r in results if r.requires_grad]
            torch.autograd.backward(carrying, [torch.randn_like(r) for r in carrying], retain_graph=True)
        return calls.only("flexsn.backward")


def two_in_three_states_case() -> Case:
    inputs, states = [torch.randn(4, 3) for _ in range(2)], [torch.randn(3) for _ in range(3)]
    return Case(two_in_three_states, inputs, states)


def params_case() -> Case:
    leak, level = torch.tensor(0.7, requires_grad=True), torch.randn(2, 1, requires_grad=True)
    return Case(with_params(leak, level), [torch.randn(4, 2, 3)], [torch.zeros(2, 3)], elided=True)


def counter_case() -> Case:
    return Case(with_counter, [torch.randn(4, 3)], [torch.randn(3), torch.ones(3, dtype=torch.int32)])


def double_case() -> Case:
    return Case(soft, [torch.randn(20, 2, 3, dtype=torch.float64)], [torch.randn(2, 3, dtype=torch.float64)])


def bfloat_case() -> Case:
    x = torch.randn(4, 3, dtype=torch.bfloat16)
    return Case(soft, [x], [torch.zeros(3, dtype=torch.bfloat16)], elided=True)


def bfloat_with_f32_parameter_case() -> Case:
    x, leak = torch.randn(4, 3, dtype=torch.bfloat16), torch.rand(3, requires_grad=True)
    return Case(with_params(leak, torch.ones(3)), [x], [torch.zeros(3)])


CASES: list[Callable[[], Case]] = [
    two_in_three_states_case,
    params_case,
    counter_case,
    double_case,
    bfloat_case,
    bfloat_with_f32_parameter_case,
]
each_case = pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__.removesuffix("_case"))


# ---- torch's own check -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORWARD)
@each_case
def test_opcheck_passes_forward(make, name):
    torch.library.opcheck(getattr(ops, name).default, make().arguments)


@pytest.mark.parametrize("sequences", [True, False])
@each_case
def test_opcheck_passes_backward(make, sequences):
    arguments = make().backward_arguments(sequences)
    detached = torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, arguments)
    torch.library.opcheck(ops.backward.default, detached)


@each_case
def test_operators_equal_the_eager_loop(make):
    case = make()
    outputs, sequences, last = by_loop(case.core, case.inputs, case.full_states)
    for name in FORWARD:
        results = getattr(ops, name)(*case.arguments)
        expected = outputs + (last if name.endswith("final_state") else sequences)
        for result, wanted in zip(results, expected):
            torch.testing.assert_close(result, wanted)


@each_case
def test_meta_kernels_foresee_shapes_and_types(make):
    case = make()
    meta = [[t.to("meta") for t in group] for group in case.arguments[1:]]
    for name in FORWARD:
        op = getattr(ops, name)
        real, foreseen = op(*case.arguments), op(case.text, *meta)
        assert [(r.shape, r.dtype) for r in real] == [(f.shape, f.dtype) for f in foreseen]


# ---- gradients ---------------------------------------------------------------------------------------------


def test_gradcheck_of_inputs_states_and_parameters():
    leak = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    level = torch.randn(2, 1, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    text, params = neuron_of(with_params(leak, level), [x], [v])
    assert {id(p) for p in params} == {id(leak), id(level)}
    for op in (ops.training, ops.training_final_state):
        assert torch.autograd.gradcheck(
            lambda x, v, *params, op=op: tuple(op(text, [x], [v], list(params))[:2]), (x, v, *params)
        )


def test_gradcheck_of_two_inputs_and_three_states():
    tensors = [torch.randn(3, 2, dtype=torch.float64) for _ in range(2)]
    tensors += [torch.randn(2, dtype=torch.float64) for _ in range(3)]
    text, _ = neuron_of(two_in_three_states, tensors[:2], tensors[2:])
    for tensor in tensors:
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *t: tuple(ops.training_final_state(text, list(t[:2]), list(t[2:]), [])[:5]), tensors
    )


def test_only_gradients_of_arguments_that_require_one_are_planned():
    case = two_in_three_states_case()
    case.inputs[1].requires_grad_(False)
    case.states[2].requires_grad_(False)
    with Calls() as calls:
        ops.training(*case.arguments)[0].sum().backward()
    assert calls.only("flexsn.backward")[7] == [0, 2, 3]
    assert case.inputs[1].grad is None and case.states[2].grad is None


def test_only_gradients_that_are_asked_for_are_computed():
    case = two_in_three_states_case()
    outputs, _, _ = by_loop(case.core, case.inputs, case.states)
    expected = torch.autograd.grad(outputs[0].sum(), case.inputs[1])[0]
    result = ops.training(*case.arguments)[0]
    with Calls() as calls:
        [found] = torch.autograd.grad(result.sum(), [case.inputs[1]])
    assert calls.only("flexsn.backward")[8] == [1]
    torch.testing.assert_close(found, expected)


def test_a_gradient_of_a_parameter_alone_computes_nothing_else():
    case = params_case()
    case.inputs[0].requires_grad_(False)
    with Calls() as calls:
        torch.autograd.grad(ops.training_final_state(*case.arguments)[0].sum(), case.params)
    # The state's place is 1, though none was given.
    assert calls.only("flexsn.backward")[8] == [2, 3]


def test_absent_gradients_are_not_made():
    case = two_in_three_states_case()
    result = ops.training(*case.arguments)[1]
    with Calls() as calls:
        result.backward(torch.ones_like(result))
    grads = calls.only("flexsn.backward")[1]
    assert [g is None for g in grads] == [True, False, True, True, True]
    assert not {"aten.zeros", "aten.zeros_like", "aten.new_zeros"} & set(calls.names)


def test_results_that_nobody_differentiates_cost_no_backward():
    case = two_in_three_states_case()
    results = ops.training(*case.arguments)
    with Calls() as calls:
        (case.inputs[0].sum() + results[0].detach().sum()).backward()
    assert "flexsn.backward" not in calls.names


@pytest.mark.parametrize("name", FORWARD)
def test_initial_zeros_are_no_tensors(name):
    x = torch.randn(4, 3, requires_grad=True)
    text, _ = neuron_of(soft, [x], 1)
    with Calls() as calls:
        results = getattr(ops, name)(text, [x], [], [])
        if name.startswith("training"):
            results[0].backward(torch.ones_like(results[0]))
    assert [n for n in calls.names if n not in ("aten.detach", "aten.ones_like")] == [
        f"flexsn.{name}",
        *(["flexsn.backward"] if name.startswith("training") else []),
    ]
    assert calls.only(f"flexsn.{name}")[2] == []


def test_gradients_of_given_states_and_of_left_out_ones_agree():
    x, v = torch.randn(5, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    text, _ = neuron_of(soft, [x], [v])
    [given, _] = torch.autograd.grad(ops.training(text, [x], [v], [])[0].sum(), [x, v])
    [left_out] = torch.autograd.grad(ops.training(text, [x], [], [])[0].sum(), [x])
    assert torch.equal(given, left_out)


def test_inference_gives_no_gradient_and_training_without_need_neither():
    x = torch.randn(4, 3)
    text, _ = neuron_of(soft, [x], 1)
    assert not any(r.requires_grad for r in ops.inference(text, [x.clone().requires_grad_()], [], []))
    assert not any(r.requires_grad for r in ops.training(text, [x], [], []))
    with torch.no_grad():
        assert not any(r.requires_grad for r in ops.training(text, [x.clone().requires_grad_()], [], []))


def test_only_float_results_require_a_gradient():
    case = counter_case()
    results = ops.training(*case.arguments)
    assert [r.requires_grad for r in results[:3]] == [True, True, False]


def test_retain_graph_gives_the_same_gradients_twice():
    case = params_case()
    outputs = ops.training_final_state(*case.arguments)[:2]
    sources = [*case.inputs, *case.params]
    grads = [torch.randn_like(output) for output in outputs]
    first = torch.autograd.grad(outputs, sources, grads, retain_graph=True)
    second = torch.autograd.grad(outputs, sources, grads)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_a_second_backward_without_retain_graph_says_what_to_do():
    case = double_case()
    loss = ops.training_final_state(*case.arguments)[0].sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="detach or reset between batches|retain_graph=True"):
        loss.backward()


def test_double_backward_says_that_it_is_not_there():
    case = double_case()
    result = ops.training(*case.arguments)[0]
    [grad] = torch.autograd.grad(result.sum(), case.inputs, create_graph=True)
    [plain] = torch.autograd.grad(ops.training(*case.arguments)[0].sum(), case.inputs)
    assert torch.equal(grad, plain)
    with pytest.raises(NotImplementedError, match=r'gradients of gradients.*backend="torch"'):
        grad.sum().backward()


@each_case
def test_double_backward_is_never_silently_left_out(make):
    # Backward may read nothing that requires a gradient; what it gives depends on the inputs all the same.
    case = make()
    sources = [t for t in (*case.inputs, *case.states, *case.params) if t.requires_grad]
    for source in sources:
        result = ops.training_final_state(*case.arguments)[0]
        [grad] = torch.autograd.grad(result.sum(), [source], create_graph=True)
        for other in sources:
            with pytest.raises(NotImplementedError, match="gradients of gradients"):
                torch.autograd.grad(grad.sum(), [other], allow_unused=True, retain_graph=True)


def test_gradients_survive_checkpointing():
    case = double_case()

    def run(x: Tensor, v: Tensor) -> Tensor:
        return ops.training_final_state(case.text, [x], [v], [])[0]

    tensors = [*case.inputs, *case.states]
    plain = torch.autograd.grad(run(*tensors).sum(), tensors)
    again = torch.autograd.grad(checkpoint(run, *tensors, use_reentrant=False).sum(), tensors)
    assert all(torch.equal(a, b) for a, b in zip(plain, again))


@pytest.mark.parametrize("of", ["input", "state", "parameter"])
def test_an_in_place_edit_before_backward_is_noticed(of):
    leak = torch.rand(3, requires_grad=True)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * v * leak + x * x
        return h * x, h

    x, v = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    text, params = neuron_of(core, [x], [v])
    result = ops.training(text, [x], [v], params)[0]
    with torch.no_grad():
        {"input": x, "state": v, "parameter": leak}[of].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@each_case
def test_an_in_place_edit_of_a_result_is_noticed_or_harmless(make):
    case = make()
    sources = [t for t in (*case.inputs, *case.states, *case.params) if t.requires_grad]
    results = ops.training(*case.arguments)
    carrying = [i for i, r in enumerate(results) if r.requires_grad]
    expected = torch.autograd.grad([results[i].sum() for i in carrying], sources, allow_unused=True)
    for edited in range(len(results)):
        results = ops.training(*case.arguments)
        losses = [results[i].sum() for i in carrying]
        with torch.no_grad():
            results[edited].logical_not_() if results[edited].dtype == torch.bool else results[edited].add_(1)
        try:
            found = torch.autograd.grad(losses, sources, allow_unused=True)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            assert all(torch.equal(a, b) for a, b in zip(expected, found) if a is not None)


# ---- what is not there says so -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORWARD)
def test_vmap_says_what_to_do(name):
    x = torch.randn(2, 4, 3)
    text, _ = neuron_of(soft, [x[0]], 1)
    with pytest.raises(NotImplementedError, match=f"flexsn::{name} does not run under vmap; .* whole batch"):
        torch.vmap(lambda x: getattr(ops, name)(text, [x], [], [])[0])(x)


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_an_error_and_not_a_zero(name):
    x = torch.randn(4, 3)
    text, _ = neuron_of(soft, [x], 1)
    with forward_mode.dual_level(), pytest.raises(NotImplementedError, match="forward mode .* are not there"):
        getattr(ops, name)(text, [forward_mode.make_dual(x, torch.ones_like(x))], [], [])
    with pytest.raises(NotImplementedError, match="forward mode .* are not there"):
        torch.func.jvp(lambda x: getattr(ops, name)(text, [x], [], [])[0], (x,), (torch.ones_like(x),))


def test_gradients_by_torch_func_are_an_error():
    x = torch.randn(4, 3)
    text, _ = neuron_of(soft, [x], 1)
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda x: ops.training(text, [x], [], [])[0].sum())(x)


def test_compiled_autograd_takes_what_was_compiled_and_says_so():
    x = torch.randn(4, 3, requires_grad=True)
    text, _ = neuron_of(soft, [x], 1)

    def run(x):
        return ops.training(text, [x], [], [])[0].sum()

    run(x).backward()
    expected, x.grad = x.grad, None
    loss = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    assert torch.equal(x.grad, expected)
    with (
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")),
        pytest.raises(NotImplementedError, match="compile the forward as well .torch.compile."),
    ):
        run(x).backward()


def test_hooks_of_the_graph_see_gradients_and_what_is_kept():
    x = torch.randn(4, 3, requires_grad=True)
    text, _ = neuron_of(soft, [x], 1)
    packed, seen = [], []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: packed.append(tensor.shape) or tensor.clone(), lambda tensor: tensor
    ):
        y = ops.training(text, [x], [], [])[0]
    y.retain_grad()
    y.register_hook(lambda grad: grad * 2)
    y.grad_fn.register_hook(lambda outs, ins: seen.append(outs[0]))
    y.sum().backward()
    assert packed and torch.equal(y.grad, torch.full_like(y, 2)) and seen[0] is not None
    hooked, x.grad = x.grad, None
    (ops.training(text, [x], [], [])[0].sum() * 2).backward()
    assert torch.equal(x.grad, hooked)


def test_a_graph_that_is_dropped_gives_its_tensors_back():
    x = torch.randn(4, 3, requires_grad=True)
    text, _ = neuron_of(soft, [x], 1)
    results = ops.training(text, [x], [], [])
    gone = [weakref.ref(tensor) for tensor in results]
    del results
    assert all(reference() is None for reference in gone)


# ---- memory layouts ----------------------------------------------------------------------------------------


def copies(run: Callable[[], Any]) -> list[str]:
    """Copies that torch makes inside a call, seen by its profiler, which looks into operators."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return [event.name for event in profile.events() if event.name in ("aten::copy_", "aten::clone")]


def laid_out(kind: str) -> Tensor:
    """A tensor [6, 4, 5, 3] of which each step is, or is not, an array without gaps."""
    shape = (6, 4, 5, 3)
    made = {
        "every second step": lambda: torch.randn(12, 4, 5, 3)[::2],
        "a part of wider rows": lambda: torch.randn(6, 9, 5, 3)[:, 2:6],
        "the same step again": lambda: torch.randn(4, 5, 3).expand(shape),
        "overlapping steps": lambda: torch.randn(200).as_strided(shape, (7, 15, 3, 1)),
        "channels last": lambda: torch.randn(shape).contiguous(memory_format=torch.channels_last),
        "transposed": lambda: torch.randn(6, 4, 3, 5).transpose(2, 3),
        "time inside": lambda: torch.randn(4, 5, 3, 6).movedim(-1, 0),
        "time turned inside": lambda: torch.randn(4, 5, 6, 3).movedim(2, 0),
        "one number": lambda: torch.randn(()).expand(shape),
        "a row again": lambda: torch.randn(6, 4, 1, 3).expand(shape),
    }[kind]()
    assert made.shape == shape
    return made


IN_PLACE = ("every second step", "a part of wider rows", "the same step again", "overlapping steps")
COPIED = ("channels last", "transposed", "time inside", "one number", "a row again")


@pytest.mark.parametrize("kind", IN_PLACE)
def test_rows_with_any_distance_between_them_are_read_where_they_are(kind):
    x = laid_out(kind)
    text, _ = neuron_of(hard, [x], 1)
    ops.inference(text, [x], [], [])
    assert copies(lambda: ops.inference(text, [x], [], [])) == []


@pytest.mark.parametrize("kind", COPIED)
def test_other_layouts_are_copied(kind):
    x = laid_out(kind)
    text, _ = neuron_of(hard, [x], 1)
    assert copies(lambda: ops.inference(text, [x], [], [])) != []


@pytest.mark.parametrize("kind", [*IN_PLACE, *COPIED, "time turned inside"])
def test_inputs_states_and_gradients_of_any_layout_are_right(kind):
    x, grad = laid_out(kind), laid_out(kind)
    v = laid_out(kind)[0]
    text, _ = neuron_of(square, [x], [v])
    plain = [t.clone(memory_format=torch.contiguous_format).requires_grad_() for t in (x, v)]
    given = [t.detach().requires_grad_() for t in (x, v)]
    assert given[0].stride() == x.stride()
    results = ops.training(text, [given[0]], [given[1]], [])[:2]
    expected = ops.training(text, [plain[0]], [plain[1]], [])[:2]
    assert all(torch.equal(a, b) for a, b in zip(results, expected))
    found = torch.autograd.grad(results, given, [grad, grad])
    wanted = torch.autograd.grad(expected, plain, [grad.contiguous(), grad.contiguous()])
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))


def test_the_expanded_gradient_of_a_sum_is_right():
    x = torch.randn(5, 3, requires_grad=True)
    text, _ = neuron_of(soft, [x], 1)
    [expanded] = torch.autograd.grad(ops.training(text, [x], [], [])[0].sum(), [x])
    result = ops.training(text, [x], [], [])[0]
    [dense] = torch.autograd.grad(result, [x], torch.ones_like(result))
    assert torch.equal(expanded, dense)


def test_a_gradient_whose_sign_torch_has_put_off_is_right():
    # The imaginary part of a conjugate is a view with a minus sign that every reader must apply.
    x = torch.randn(5, 1, requires_grad=True)
    late = torch.randn(5, 1, dtype=torch.complex64).conj().imag
    assert late.is_neg()
    text, _ = neuron_of(square, [x], 1)
    result = ops.training(text, [x], [], [])[0]
    [found] = torch.autograd.grad(result, [x], late, retain_graph=True)
    [expected] = torch.autograd.grad(result, [x], late.resolve_neg())
    assert torch.equal(found, expected)
    y = late.detach().requires_grad_()
    [found] = torch.autograd.grad(ops.training(text, [y], [], [])[0].sum(), [y])
    y = late.resolve_neg().requires_grad_()
    [expected] = torch.autograd.grad(ops.training(text, [y], [], [])[0].sum(), [y])
    assert torch.equal(found, expected)


# ---- sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps, shape", [(1, (3,)), (1, (1,)), (3, ()), (3, (1,)), (2, (1000003,)), (40, (2, 3))]
)
def test_sizes_equal_the_eager_loop(steps, shape):
    x = torch.randn(steps, *shape, requires_grad=True)
    v = torch.randn(shape, requires_grad=True)
    text, _ = neuron_of(hard, [x], [v])
    outputs, sequences, last = by_loop(hard, [x], [v])
    for name in FORWARD:
        results = getattr(ops, name)(text, [x], [v], [])
        assert torch.equal(results[0], outputs[0])
        assert torch.equal(results[1], (last if name.endswith("final_state") else sequences)[0])
    expected = torch.autograd.grad(last[0].sum(), [x, v])
    found = torch.autograd.grad(ops.training_final_state(text, [x], [v], [])[1].sum(), [x, v])
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


def test_no_steps_leave_states_as_they_were_and_pass_their_gradient():
    x, v = torch.randn(0, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    text, _ = neuron_of(soft, [x], [v])
    outputs, last = ops.training_final_state(text, [x], [v], [])[:2]
    assert outputs.shape == (0, 3) and torch.equal(last, v) and last.data_ptr() != v.data_ptr()
    grad = torch.randn(3)
    gradients = torch.autograd.grad(last, [x, v], grad)
    assert gradients[0].shape == (0, 3) and torch.equal(gradients[1], grad)
    assert gradients[1].data_ptr() != grad.data_ptr()
    assert [r.shape for r in ops.inference(text, [x], [], [])] == [(0, 3), (0, 3)]
    assert torch.equal(ops.inference_final_state(text, [x], [], [])[1], torch.zeros(3))


def test_no_steps_give_parameters_a_zero_gradient():
    leak, level = torch.tensor(0.7, requires_grad=True), torch.randn(2, 1, requires_grad=True)
    x = torch.randn(0, 2, 3)
    text, params = neuron_of(with_params(leak, level), [torch.randn(1, 2, 3)], 1)
    last = ops.training_final_state(text, [x], [], params)[1]
    assert all(torch.equal(g, torch.zeros_like(g)) for g in torch.autograd.grad(last.sum(), params))


@pytest.mark.parametrize("shape", [(4, 0), (4, 2, 0, 3), (0, 0)])
def test_no_elements_are_fine(shape):
    leak = torch.tensor(0.7, requires_grad=True)
    x = torch.randn(shape, requires_grad=True)
    example = torch.randn(1, *[2] * (len(shape) - 1))
    text, params = neuron_of(with_params(leak, torch.tensor(1.0)), [example], 1)
    results = ops.training(text, [x], [], params)
    assert results[0].shape == shape
    grads = torch.autograd.grad(results[0].sum(), [x, leak])
    assert grads[0].shape == shape and grads[1] == 0.0


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("name", FORWARD)
def test_results_are_never_an_alias(name, steps):
    def passes(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, v, v

    x, v = torch.randn(steps, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    text, _ = neuron_of(passes, [torch.randn(1, 3)], [v])
    results = getattr(ops, name)(text, [x], [v], [])
    memory = [t.untyped_storage().data_ptr() for t in (x, v, *results) if t.numel()]
    assert len(set(memory)) == len(memory)
    if name.startswith("training"):
        grads = [torch.randn_like(r) for r in results[:3]]
        gradients = torch.autograd.grad(results[:3], [x, v], grads, allow_unused=True)
        there = [t for t in (*grads, *gradients) if t is not None and t.numel()]
        memory += [t.untyped_storage().data_ptr() for t in there]
        assert len(set(memory)) == len(memory)


# ---- every argument is checked -----------------------------------------------------------------------------


def wrong_calls() -> list[Any]:
    x, v = torch.randn(4, 3), torch.randn(3)
    p, q = torch.tensor(0.5), torch.ones(3)
    return [
        pytest.param([], [], [p, q], "expected 1 inputs, found 0", id="no input"),
        pytest.param([x, x], [], [p, q], "expected 1 inputs, found 2", id="inputs"),
        pytest.param([x], [v, v], [p, q], "expected 1 states.*found 2", id="states"),
        pytest.param([x], [v], [p], "expected 2 parameters, found 1", id="parameters"),
        pytest.param([torch.tensor(1.0)], [], [p, q], "input 0 must have time.*found a scalar", id="scalar"),
        pytest.param([x], [x], [p, q], r"state 0 must have shape \[3\], found \[4, 3\]", id="with time"),
        pytest.param([x], [v[:2]], [p, q], r"state 0 must have shape \[3\], found \[2\]", id="short state"),
        pytest.param([x.double()], [], [p, q], "input 0 must be Float, found Double", id="double"),
        pytest.param([x.long()], [], [p, q], "input 0 must be Float, found Long", id="int64"),
        pytest.param([x], [v.int()], [p, q], "state 0 must be Float, found Int", id="int state"),
        pytest.param([x], [v], [p.double(), q], "parameter . must be Float, found Double", id="param"),
    ]


def params_text() -> str:
    return neuron_of(with_params(torch.tensor(0.5), torch.ones(3)), [torch.randn(4, 3)], 1)[0]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("inputs, states, params, text", wrong_calls())
def test_wrong_arguments_are_named(inputs, states, params, text, name, device):
    moved = [[t.to(device) for t in group] for group in (inputs, states, params)]
    with pytest.raises(ValueError, match=text):
        getattr(ops, name)(params_text(), *moved)


def shrunk(tensor: Tensor, by: int = 1) -> Tensor:
    """The same tensor with less memory than its shape needs."""
    tensor = tensor.detach().clone()
    tensor.untyped_storage().resize_(max(0, tensor.untyped_storage().nbytes() - by))
    return tensor


@pytest.mark.parametrize("by", [1, 10**6], ids=["a byte", "all"])
@pytest.mark.parametrize("place, what", [(0, "input"), (1, "state"), (2, "parameter")])
@pytest.mark.parametrize("name", FORWARD)
def test_a_tensor_with_too_little_memory_is_refused(name, place, what, by):
    groups = [[torch.randn(4, 3)], [torch.randn(3)], [torch.tensor(0.5), torch.ones(3)]]
    full = groups[place][-1].untyped_storage().nbytes()
    groups[place][-1] = shrunk(groups[place][-1], by)
    found = max(0, full - by)
    text = rf"{what} \d is a tensor whose memory was freed: it needs .* {full} bytes, found {found}; make it"
    with pytest.raises(TypeError, match=text):
        getattr(ops, name)(params_text(), *groups)


def test_views_need_the_memory_they_reach():
    x = torch.randn(4, 8)
    args = params_text(), [x[:, 2:5]], [], [torch.tensor(0.5), torch.ones(3)]
    ops.inference(*args)
    x.untyped_storage().resize_((3 * 8 + 5) * 4)  # to the last entry that the view has
    ops.inference(*args)
    x.untyped_storage().resize_((3 * 8 + 5) * 4 - 1)
    with pytest.raises(TypeError, match="input 0 is a tensor whose memory was freed"):
        ops.inference(*args)


@pytest.mark.parametrize("name", FORWARD)
def test_a_parameter_must_broadcast_to_a_step(name):
    x, p = torch.randn(4, 3), torch.tensor(0.5)
    for wrong in (torch.ones(2), torch.ones(2, 3), torch.ones(4, 3)):
        with pytest.raises(ValueError, match=r"parameter .* has shape .* does not broadcast to .* \[3\]"):
            getattr(ops, name)(params_text(), [x], [], [p, wrong])


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("b", [(3, 3), (5, 3), (4, 2), (4, 3, 1), (4,)])
def test_a_second_input_of_another_shape_is_refused(b, name):
    a = torch.randn(4, 3)
    text, _ = neuron_of(two_in_three_states, [a, a], 3)
    with pytest.raises(ValueError, match=r"input 1 must have shape \[4, 3\], found \["):
        getattr(ops, name)(text, [a, torch.randn(b)], [], [])
    with pytest.raises(ValueError, match=r"input 1 must have shape \[4, 3\], found \["):
        getattr(ops, name)(text, [a.to("meta"), torch.randn(b, device="meta")], [], [])


@pytest.mark.parametrize("name", FORWARD)
def test_int64_names_int32(name):
    x, v, rest = torch.randn(4, 3), torch.randn(3), torch.ones(3, dtype=torch.int32)
    text, _ = neuron_of(with_counter, [x], [v, rest])
    with pytest.raises(ValueError, match=r"state 1 must be Int, found Long \(integers of a step are int32"):
        getattr(ops, name)(text, [x], [v, rest.long()], [])


@pytest.mark.parametrize("name", FORWARD)
def test_tensors_on_several_devices_are_refused(name):
    x, v = torch.randn(4, 3), torch.randn(3)
    text, _ = neuron_of(soft, [x], [v])
    op = getattr(ops, name)
    with pytest.raises(ValueError, match="input 0 is on cpu, but other tensors of the call are on meta"):
        op(text, [x], [v.to("meta")], [])
    with pytest.raises(ValueError, match="state 0 is on cpu, but other tensors of the call are on meta"):
        op(text, [x.to("meta")], [v], [])
    text, (leak, level) = neuron_of(with_params(torch.rand(3), torch.ones(3)), [x], [v])
    said = "parameter '.*' is on cpu, but other tensors of the call are on meta; move it, or the module that it is of"
    with pytest.raises(ValueError, match=said):
        op(text, [x.to("meta")], [v.to("meta")], [leak.to("meta"), level])


@pytest.mark.parametrize("text", ["", "nonsense", "neuron {"])
def test_a_text_that_is_no_neuron_is_refused(text):
    with pytest.raises(ValueError, match="neuron"):
        ops.inference(text, [torch.randn(4, 3)], [], [])


def test_a_plan_that_is_not_known_is_refused():
    x = torch.randn(4, 3)
    with pytest.raises(ValueError, match="'foo' that is not known; write cpu or gpu"):
        ops.training(neuron_of(soft, [x], 1)[0], [x], [], [], [], "foo")


@pytest.mark.parametrize("wanted", [[2], [-1]])
def test_a_wanted_gradient_must_be_that_of_an_argument(wanted):
    x = torch.randn(4, 3)
    with pytest.raises(ValueError, match=f"no argument {wanted[0]} to take a gradient of; there are 2"):
        ops.training(neuron_of(soft, [x], 1)[0], [x], [], [], wanted)


def test_an_integer_has_no_gradient_to_be_wanted():
    case = counter_case()
    with pytest.raises(ValueError, match="gradients already, and that of 'state1' is not among them"):
        ops.training(*case.arguments, [2])


# Arguments of backward by place; the text comes first, `sequences` and the plan last.
GRADS, INPUTS, STATES, PARAMS, RESULTS, SHAPE, WANTED, NOW = range(1, 9)


def backward_of_square() -> list[Any]:
    """Arguments of a backward that reads an input, a saved value and gradients of output and state."""
    case = Case(square, [torch.randn(20, 3)], [torch.randn(3)])
    arguments = list(case.backward_arguments(sequences=True))
    return [a if isinstance(a, (str, bool)) else list(a) for a in arguments]


@pytest.mark.parametrize(
    "place, value, error, text",
    [
        (GRADS, lambda a: [], ValueError, "expected 2 gradients, found 0"),
        (GRADS, lambda a: [a[0][:-1], a[1]], ValueError, r"output 0 must have shape \[20, 3\], found \[19"),
        (GRADS, lambda a: [a[0].double(), a[1]], ValueError, "output 0 must be Float, found Double"),
        (GRADS, lambda a: [a[0], a[1][0]], ValueError, r"state 0 must have shape \[20, 3\], found \[3\]"),
        (GRADS, lambda a: [a[0].to("meta"), a[1]], ValueError, "is on cpu, but other tensors .* on meta"),
        (INPUTS, lambda a: [], ValueError, "expected 1 inputs, found 0"),
        (INPUTS, lambda a: [None], ValueError, "backward reads input 0, which is missing"),
        (INPUTS, lambda a: [a[0][:5]], ValueError, r"input 0 must have shape \[20, 3\], found \[5, 3\]"),
        (STATES, lambda a: [None, None], ValueError, "expected 1 states.*found 2"),
        (PARAMS, lambda a: [torch.ones(3)], ValueError, "expected 0 parameters, found 1"),
        (RESULTS, lambda a: a[:-1], ValueError, "results of forward, found"),
        (RESULTS, lambda a: [None] * len(a), ValueError, "backward reads result ., which is missing"),
        (RESULTS, lambda a: [r if r is None else r[:1] for r in a], ValueError, r"have shape \[.*found \[1"),
        (RESULTS, lambda a: [r if r is None else r.double() for r in a], ValueError, "Float, found Double"),
        (RESULTS, lambda a: [r if r is None else shrunk(r) for r in a], TypeError, "memory was freed"),
        (SHAPE, lambda a: [], ValueError, r"the shape must be \[T, step shape\], found \[\]"),
        (SHAPE, lambda a: [21, 3], ValueError, r"must have shape \[21, 3\]"),
        (SHAPE, lambda a: [20, 4], ValueError, r"must have shape \[20, 4\]|\[4\]"),
        (SHAPE, lambda a: [-20, 3], RuntimeError, "negative dimension"),
        (SHAPE, lambda a: [2**40, 2**40], RuntimeError, "overflow"),
        (WANTED, lambda a: [7], ValueError, "there is no argument 7 to take a gradient of; there are 2"),
        (NOW, lambda a: [7], ValueError, "there is no argument 7 to take a gradient of; there are 2"),
        (NOW, lambda a: [-1], ValueError, "there is no argument -1 to take a gradient of"),
        (NOW, lambda a: [0, 0], ValueError, "the gradient of argument 0 is wanted now twice"),
    ],
)
def test_backward_checks_what_it_is_given(place, value, error, text):
    arguments = backward_of_square()
    arguments[place] = value(arguments[place])
    with pytest.raises(error, match=text):
        ops.backward(*arguments)


def test_backward_gives_no_gradient_that_was_not_planned():
    arguments = backward_of_square()
    arguments[WANTED], arguments[NOW] = [0], [1]
    with pytest.raises(ValueError, match="gradient of argument 1, which is not among those that are wanted"):
        ops.backward(*arguments)


def test_backward_of_meta_tensors_checks_counts_and_places():
    arguments = torch.utils._pytree.tree_map_only(Tensor, lambda t: t.to("meta"), backward_of_square())
    assert [g.shape for g in ops.backward(*arguments)] == [(20, 3), (3,)]
    for place, value, text in [
        (NOW, [7], "there is no argument 7"),
        (SHAPE, [], "the shape must be"),
        (PARAMS, [torch.ones(3, device="meta")], "expected 0 parameters, found 1"),
    ]:
        wrong = list(arguments)
        wrong[place] = value
        with pytest.raises(ValueError, match=text):
            ops.backward(*wrong)


def test_sparse_tensors_are_refused():
    x = torch.randn(4, 3)
    text, _ = neuron_of(soft, [x], 1)
    with pytest.raises((NotImplementedError, ValueError), match="Sparse|dense"):
        ops.inference(text, [x.to_sparse()], [], [])
