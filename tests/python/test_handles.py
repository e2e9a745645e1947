"""Kernels by handle: the registry's counts, kernels of flexsn, and kernel objects that a caller made."""

from __future__ import annotations

import copy
import gc
import threading
from typing import Any

import pytest
import torch
from cores import by_loop, soft, two_in_three_states, with_params
from flexsn.compat import custom_ops, kernel
from flexsn.compat.custom_ops import (
    FlexSNKernelHandle,
    attach_flexsn_handle_finalizer,
    flexsn_inductor_backward,
    flexsn_inductor_inference,
    flexsn_inductor_inference_final_state,
    flexsn_inductor_training,
    flexsn_inductor_training_final_state,
    flexsn_kernel_registry_info,
    register_flexsn_kernel_handle,
    release_active_flexsn_kernel_handle,
    release_flexsn_kernel_handle,
    retain_flexsn_kernel_handle,
    retain_owner_flexsn_kernel_handle,
)
from flexsn.compat.info import info_of_names
from torch import Tensor

NOTHING: dict[str, Any] = dict.fromkeys(
    [
        "inference_kernel", "inference_info", "inference_final_state_kernel", "inference_final_state_info",
        "forward_kernel", "backward_kernel", "training_info",
    ]
)  # fmt: skip


def register(**kernels: Any) -> int:
    """A handle with these kernels and no others."""
    return register_flexsn_kernel_handle(**{**NOTHING, **kernels})


def counts() -> tuple[int, int, int]:
    return tuple(flexsn_kernel_registry_info().values())


class Closing:
    """A kernel object that remembers how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


# ---- the registry ------------------------------------------------------------------------------------------


def test_handles_grow_and_are_never_used_again() -> None:
    first = register()
    release_flexsn_kernel_handle(first)
    second = register()
    release_flexsn_kernel_handle(second)
    assert 1 <= first < second
    with pytest.raises(RuntimeError, match=f"no kernel handle {first}"):
        retain_flexsn_kernel_handle(first)


def test_an_entry_goes_with_the_last_of_owners_and_calls() -> None:
    before = counts()
    object_ = Closing()
    handle = register(inference_kernel=object_)
    retain_owner_flexsn_kernel_handle(handle)
    retain_flexsn_kernel_handle(handle)
    assert counts() == (before[0] + 1, before[1] + 2, before[2] + 1)
    release_flexsn_kernel_handle(handle)
    release_flexsn_kernel_handle(handle)
    assert object_.closed == 0
    release_active_flexsn_kernel_handle(handle)
    assert object_.closed == 1
    assert counts() == before


def test_counts_stop_at_zero() -> None:
    object_ = Closing()
    handle = register(inference_kernel=object_)
    release_active_flexsn_kernel_handle(handle)
    release_active_flexsn_kernel_handle(handle)
    retain_flexsn_kernel_handle(handle)
    release_flexsn_kernel_handle(handle)
    release_flexsn_kernel_handle(handle)
    assert object_.closed == 0
    release_active_flexsn_kernel_handle(handle)
    assert object_.closed == 1


def test_releasing_what_is_not_there_does_nothing() -> None:
    before = counts()
    release_flexsn_kernel_handle(10**12)
    release_active_flexsn_kernel_handle(10**12)
    assert counts() == before


@pytest.mark.parametrize("retain", [retain_flexsn_kernel_handle, retain_owner_flexsn_kernel_handle])
def test_retaining_what_is_not_there_is_an_error(retain) -> None:
    with pytest.raises(RuntimeError, match="no kernel handle 1000000000000; it was never registered"):
        retain(10**12)


def test_each_kernel_is_closed_once_though_another_fails() -> None:
    class Failing(Closing):
        def close(self) -> None:
            super().close()
            raise OSError("cannot close")

    shared, failing, last = Closing(), Failing(), Closing()
    handle = register(
        inference_kernel=failing,
        inference_final_state_kernel=shared,
        forward_kernel=shared,
        backward_kernel=last,
    )
    with pytest.raises(OSError, match="cannot close"):
        release_flexsn_kernel_handle(handle)
    assert (failing.closed, shared.closed, last.closed) == (1, 1, 1)


def test_kernels_without_close_are_let_go() -> None:
    handle = register(inference_kernel=object())
    release_flexsn_kernel_handle(handle)
    with pytest.raises(RuntimeError, match=f"no FlexSN kernel handle {handle}"):
        flexsn_inductor_inference(handle, [torch.zeros(1, 1)])


def test_a_finalizer_releases_once() -> None:
    class Owner:
        pass

    object_, owner = Closing(), Owner()
    handle = register(inference_kernel=object_)
    finalizer = attach_flexsn_handle_finalizer(owner, handle)
    assert finalizer.alive and object_.closed == 0
    del owner
    gc.collect()
    assert object_.closed == 1 and not finalizer.alive

    owner = Owner()
    handle = register(inference_kernel=object_)
    retain_owner_flexsn_kernel_handle(handle)
    finalizer = attach_flexsn_handle_finalizer(owner, handle)
    finalizer()
    del owner
    gc.collect()
    assert object_.closed == 1
    release_flexsn_kernel_handle(handle)
    assert object_.closed == 2


def test_threads_agree_on_counts() -> None:
    before = counts()
    object_ = Closing()
    handle = register(inference_kernel=object_)
    made: list[int] = []

    def work() -> None:
        for _ in range(200):
            retain_flexsn_kernel_handle(handle)
            retain_owner_flexsn_kernel_handle(handle)
            other = register()
            made.append(other)
            release_flexsn_kernel_handle(other)
            release_active_flexsn_kernel_handle(handle)
            release_flexsn_kernel_handle(handle)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert object_.closed == 0 and len(set(made)) == 800
    release_flexsn_kernel_handle(handle)
    assert object_.closed == 1 and counts() == before


def test_threads_close_once() -> None:
    object_ = Closing()
    handle = register(inference_kernel=object_)
    for _ in range(7):
        retain_owner_flexsn_kernel_handle(handle)
    threads = [threading.Thread(target=release_flexsn_kernel_handle, args=(handle,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert object_.closed == 1


class IntLike:
    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value


@pytest.mark.parametrize("form", [int, torch.tensor, lambda n: torch.tensor([[n]]), float, str, IntLike])
def test_a_handle_may_be_all_that_is_one_int(form) -> None:
    object_ = Closing()
    handle = register(inference_kernel=object_)
    release_flexsn_kernel_handle(form(handle))
    assert object_.closed == 1


@pytest.mark.parametrize(
    ("handle", "found"),
    [(torch.tensor([1, 2]), "a tensor of 2 elements"), (None, "None"), ("one", "'one'"), ([1], "\\[1\\]")],
)
def test_a_handle_that_is_not_one_int_is_a_type_error(handle: Any, found: str) -> None:
    with pytest.raises(TypeError, match=f"a kernel handle must be .*found {found}"):
        flexsn_inductor_inference(handle, [torch.zeros(1, 1)])


def test_the_record_of_a_bundle_starts_with_one_owner() -> None:
    bundle = FlexSNKernelHandle(*[None] * 7)
    assert (bundle.owner_refs, bundle.active_refs) == (1, 0)


# ---- missing kernels ---------------------------------------------------------------------------------------

INFO = info_of_names(["x", "v"], ["y", "n"], 1, 1, 1)
X, V = torch.zeros(2, 3), torch.zeros(3)
CALLS = {
    "inference": lambda h: flexsn_inductor_inference(h, [X, V]),
    "inference-final-state": lambda h: flexsn_inductor_inference_final_state(h, [X, V]),
    "training": lambda h: flexsn_inductor_training(h, [X, V]),
    "backward": lambda h: flexsn_inductor_backward(h, [X, X], [X, X], [X, V]),
}


@pytest.mark.parametrize("purpose", CALLS)
def test_each_missing_kernel_has_its_own_error(purpose: str) -> None:
    handle = register()
    with pytest.raises(RuntimeError, match=f"the {purpose} kernel of .*handle {handle} is not available"):
        CALLS[purpose](handle)
    release_flexsn_kernel_handle(handle)


@pytest.mark.parametrize("purpose", CALLS)
def test_a_kernel_without_info_is_missing(purpose: str) -> None:
    kernels = {name: object() for name in NOTHING if name.endswith("kernel")}
    handle = register(**kernels)
    with pytest.raises(RuntimeError, match=f"the {purpose} kernel .*_info=None"):
        CALLS[purpose](handle)
    release_flexsn_kernel_handle(handle)


def test_a_partial_bundle_runs_what_it_has() -> None:
    built, info = kernel.build_inference_kernel(soft, 1, 1, 1)
    handle = register(inference_kernel=built, inference_info=info)
    x, v = torch.randn(4, 3), torch.randn(3)
    outputs, sequences, _ = by_loop(soft, [x], [v])
    torch.testing.assert_close(flexsn_inductor_inference(handle, [x, v]), [*outputs, *sequences])
    with pytest.raises(RuntimeError, match="training kernel .*forward_kernel=None"):
        flexsn_inductor_training_final_state(handle, [x, v])
    release_flexsn_kernel_handle(handle)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_unknown_handle_is_named(call) -> None:
    with pytest.raises(RuntimeError, match="no FlexSN kernel handle 999999999"):
        call(999999999)


# ---- kernels of flexsn -------------------------------------------------------------------------------------


def whole(core, inputs: int, states: int, outputs: int, examples: list[Tensor] | None = None) -> int:
    """A handle with all kernels of a core."""
    inference, inference_info = kernel.build_inference_kernel(core, inputs, states, outputs, examples)
    final, final_info = kernel.build_inference_final_state_kernel(core, inputs, states, outputs, examples)
    forward, backward, info = kernel.build_training_kernels(core, inputs, states, outputs, examples)
    return register(
        inference_kernel=inference,
        inference_info=inference_info,
        inference_final_state_kernel=final,
        inference_final_state_info=final_info,
        forward_kernel=forward,
        backward_kernel=backward,
        training_info=info,
    )


def two_by_three() -> tuple[list[Tensor], list[Tensor]]:
    inputs = [torch.randn(5, 2, 3, requires_grad=True) for _ in range(2)]
    states = [torch.randn(2, 3, requires_grad=True) for _ in range(3)]
    return inputs, states


def test_own_kernels_are_the_loop() -> None:
    handle = whole(two_in_three_states, 2, 3, 2)
    inputs, states = two_by_three()
    outputs, sequences, last = by_loop(two_in_three_states, inputs, states)
    arguments = [*inputs, *states]
    inference = flexsn_inductor_inference(handle, arguments)
    torch.testing.assert_close(inference, [*outputs, *sequences])
    assert not inference[0].requires_grad
    torch.testing.assert_close(flexsn_inductor_inference_final_state(handle, arguments), [*outputs, *last])
    torch.testing.assert_close(flexsn_inductor_training(handle, arguments)[:5], [*outputs, *sequences])
    torch.testing.assert_close(flexsn_inductor_training_final_state(handle, arguments)[:5], [*outputs, *last])
    release_flexsn_kernel_handle(handle)


@pytest.mark.parametrize("sequences", [True, False])
def test_own_training_kernels_have_the_loops_gradients(sequences: bool) -> None:
    handle = whole(two_in_three_states, 2, 3, 2)
    inputs, states = two_by_three()
    arguments = [*inputs, *states]
    outputs, seqs, last = by_loop(two_in_three_states, inputs, states)
    expected = [*outputs, *(seqs if sequences else last)]
    grads = [torch.randn_like(result) for result in expected]
    by_hand = torch.autograd.grad(expected, arguments, grads)

    op = flexsn_inductor_training if sequences else flexsn_inductor_training_final_state
    results = op(handle, arguments)
    torch.testing.assert_close(torch.autograd.grad(results[:5], arguments, grads), by_hand)

    # The same by hand: what training returned and what it was given, to backward.
    with torch.no_grad():
        results = op(handle, arguments)
        found = flexsn_inductor_backward(handle, grads, results, arguments)
    torch.testing.assert_close(found, list(by_hand))
    release_flexsn_kernel_handle(handle)


def test_own_backward_takes_absent_gradients() -> None:
    handle = whole(soft, 1, 1, 1)
    x, v = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    outputs, _, _ = by_loop(soft, [x], [v])
    grad = torch.randn(4, 3)
    expected = torch.autograd.grad(outputs, [x, v], [grad])
    with torch.no_grad():
        results = flexsn_inductor_training(handle, [x, v])
        found = flexsn_inductor_backward(handle, [grad, None], results, [x, v])
        torch.testing.assert_close(found, list(expected))
        nothing = flexsn_inductor_backward(handle, [None, None], results, [x, v])
    assert all(torch.equal(zero, torch.zeros_like(zero)) for zero in nothing)
    assert [zero.shape for zero in nothing] == [x.shape, v.shape]
    release_flexsn_kernel_handle(handle)


def test_own_kernels_start_from_zeros_where_states_are_left_out() -> None:
    handle = whole(soft, 1, 1, 1)
    x = torch.randn(4, 3, requires_grad=True)
    outputs, sequences, last = by_loop(soft, [x], [torch.zeros(3)])
    torch.testing.assert_close(flexsn_inductor_inference(handle, [x]), [*outputs, *sequences])
    torch.testing.assert_close(flexsn_inductor_inference_final_state(handle, [x]), [*outputs, *last])
    results = flexsn_inductor_training_final_state(handle, [x])
    expected = torch.autograd.grad(outputs[0].sum() + last[0].sum(), x)
    torch.testing.assert_close(torch.autograd.grad(results[0].sum() + results[1].sum(), x), expected)
    with torch.no_grad():
        results = flexsn_inductor_training_final_state(handle, [x])
        grads = [torch.ones(4, 3), torch.ones(3)]
        torch.testing.assert_close(flexsn_inductor_backward(handle, grads, results, [x]), list(expected))
    release_flexsn_kernel_handle(handle)


def test_own_kernels_take_no_steps() -> None:
    handle = whole(soft, 1, 1, 1)
    x, v = torch.randn(0, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    assert [r.shape for r in flexsn_inductor_inference(handle, [x, v])] == [(0, 3), (0, 3)]
    results = flexsn_inductor_training_final_state(handle, [x, v])
    assert torch.equal(results[1], v) and results[1] is not v
    grad = torch.randn(3)
    torch.testing.assert_close(torch.autograd.grad(results[1], [x, v], grad)[1], grad)
    release_flexsn_kernel_handle(handle)


def test_own_kernels_give_captured_tensors_their_gradients() -> None:
    leak, level = torch.tensor(0.7, requires_grad=True), torch.rand(3, requires_grad=True)
    core = with_params(leak, level)
    handle = whole(core, 1, 1, 1, [torch.zeros(2, 3), torch.zeros(2, 3)])
    x, v = torch.randn(4, 2, 3), torch.randn(2, 3)
    outputs, _, last = by_loop(core, [x], [v])
    expected = torch.autograd.grad(outputs[0].sum() + last[0].sum(), [leak, level])
    results = flexsn_inductor_training_final_state(handle, [x, v])
    found = torch.autograd.grad(results[0].sum() + results[1].sum(), [leak, level])
    torch.testing.assert_close(found, expected)
    release_flexsn_kernel_handle(handle)


def test_own_kernels_take_other_types_than_the_examples() -> None:
    handle = whole(soft, 1, 1, 1)
    x, v = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    outputs, sequences, _ = by_loop(soft, [x], [v])
    torch.testing.assert_close(flexsn_inductor_inference(handle, [x, v]), [*outputs, *sequences])
    release_flexsn_kernel_handle(handle)


def test_own_kernels_need_all_arguments_or_the_inputs_alone() -> None:
    handle = whole(two_in_three_states, 2, 3, 2)
    with pytest.raises(ValueError, match="2 input sequences and 3 initial states, or .*found 3"):
        flexsn_inductor_inference(handle, [torch.zeros(1, 1)] * 3)
    release_flexsn_kernel_handle(handle)


def test_a_compiled_call_names_the_neuron_by_its_text() -> None:
    handle = whole(soft, 1, 1, 1)
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def run(x: Tensor, v: Tensor) -> list[Tensor]:
        return flexsn_inductor_training_final_state(handle, [x, v])[:2]

    x, v = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    compiled = torch.compile(run, fullgraph=True, backend=keep)
    torch.testing.assert_close(compiled(x, v), run(x, v))
    [node] = [n for n in graphs[0].graph.nodes if "flexsn" in str(n.target)]
    assert str(node.target) == "flexsn.training_final_state.default"
    text, comment = node.args[0].split(" # ")
    assert text == torch.ops.flexsn.handle_text(handle) and "saves" in comment
    release_flexsn_kernel_handle(handle)


def test_own_kernels_outlive_their_handle() -> None:
    """A graph holds the neuron itself, so nothing has to be kept in use for it."""
    handle = whole(soft, 1, 1, 1)
    x = torch.randn(4, 3, requires_grad=True)
    results = flexsn_inductor_training(handle, [x, torch.zeros(3)])
    release_flexsn_kernel_handle(handle)
    results[0].sum().backward()
    assert x.grad is not None


def test_a_copy_of_an_own_kernel_is_itself() -> None:
    built, _ = kernel.build_inference_kernel(soft, 1, 1, 1)
    assert copy.deepcopy(built) is built
    assert repr(built) == "NeuronKernel(inference of soft)"


# ---- kernels that a caller made ----------------------------------------------------------------------------


class Kernel(Closing):
    """`y = 2 x + n`, `n' = n + x` in the form of the seed's kernels: launched, it writes its results."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.launches = 0

    def __getitem__(self, grid):
        assert grid({"BLOCK_NCL": 4}) == (1,)
        return self.launch

    def launch(self, *tensors: Tensor, T: int, NCL: int, dtype: Any) -> None:
        self.launches += 1
        assert all(tensor.is_contiguous() for tensor in tensors)
        assert NCL == 3
        if self.kind == "backward":
            grad_y, grad_n, _, grad_x, grad_v = tensors
            carry = torch.zeros(NCL)
            for t in reversed(range(T)):
                carry = carry + grad_n[t]
                grad_x[t] = 2 * grad_y[t] + carry
                carry = carry + grad_y[t]
            grad_v.copy_(carry)
            return
        x, n, y, states, *residual = tensors
        n = n.clone()
        for t in range(T):
            y[t] = 2 * x[t] + n
            n = n + x[t]
            if self.kind != "final":
                states[t] = n
        if self.kind == "final":
            states.copy_(n)
        for rows in residual:
            rows.copy_(x)


def made_by_caller() -> tuple[int, list[Kernel]]:
    kernels = [Kernel(kind) for kind in ("inference", "final", "forward", "backward")]
    training = info_of_names(["x", "v"], ["y", "n", "saved"], 1, 1, 1)
    handle = register(
        inference_kernel=kernels[0],
        inference_info=INFO,
        inference_final_state_kernel=kernels[1],
        inference_final_state_info=INFO,
        forward_kernel=kernels[2],
        backward_kernel=kernels[3],
        training_info=training,
    )
    return handle, kernels


def callers_core(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    return 2 * x + n, n + x


def test_callers_kernels_are_launched() -> None:
    handle, kernels = made_by_caller()
    x, v = torch.randn(3, 4).t(), torch.randn(3)
    assert not x.is_contiguous()
    outputs, sequences, last = by_loop(callers_core, [x], [v])
    torch.testing.assert_close(flexsn_inductor_inference(handle, [x, v]), [*outputs, *sequences])
    torch.testing.assert_close(flexsn_inductor_inference_final_state(handle, [x, v]), [*outputs, *last])
    torch.testing.assert_close(flexsn_inductor_training(handle, [x, v]), [*outputs, *sequences, x])
    release_flexsn_kernel_handle(handle)
    assert [k.closed for k in kernels] == [1, 1, 1, 1]


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("sequences", [True, False])
def test_callers_training_kernels_have_gradients(sequences: bool, states: bool) -> None:
    handle, _ = made_by_caller()
    x, v = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    if not states:
        v = torch.zeros(3)
    arguments = [x, v] if states else [x]
    outputs, seqs, last = by_loop(callers_core, [x], [v])
    op = flexsn_inductor_training if sequences else flexsn_inductor_training_final_state
    results = op(handle, arguments)
    assert results[0].requires_grad and results[1].requires_grad and not results[2].requires_grad
    for given in ([0], [1], [0, 1]):
        expected = [[*outputs, *(seqs if sequences else last)][i] for i in given]
        grads = [torch.randn_like(e) for e in expected]
        by_hand = torch.autograd.grad(expected, arguments, grads, retain_graph=True)
        found = torch.autograd.grad([results[i] for i in given], arguments, grads, retain_graph=True)
        torch.testing.assert_close(found, by_hand)
    release_flexsn_kernel_handle(handle)


def test_callers_kernels_are_not_launched_for_no_steps() -> None:
    handle, kernels = made_by_caller()
    x, v = torch.randn(0, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    assert [r.shape for r in flexsn_inductor_inference(handle, [x, v])] == [(0, 3), (0, 3)]
    final = flexsn_inductor_inference_final_state(handle, [x, v])
    assert torch.equal(final[1], v) and final[1].data_ptr() != v.data_ptr()
    results = flexsn_inductor_training_final_state(handle, [x, v])
    assert torch.equal(results[1], v) and results[1].data_ptr() != v.data_ptr()
    grad = torch.randn(3)
    torch.testing.assert_close(torch.autograd.grad(results[1], [x, v], grad)[1], grad)
    assert not any(k.launches for k in kernels)
    release_flexsn_kernel_handle(handle)


def test_a_training_call_is_in_use_until_it_has_gone_back() -> None:
    before = counts()
    handle, kernels = made_by_caller()
    x = torch.randn(4, 3, requires_grad=True)
    results = flexsn_inductor_training(handle, [x])
    assert counts()[2] == before[2] + 1
    release_flexsn_kernel_handle(handle)
    assert not any(k.closed for k in kernels)
    results[0].sum().backward()
    assert [k.closed for k in kernels] == [1, 1, 1, 1]
    assert counts() == before


def test_a_graph_that_is_kept_goes_back_again_without_others_references() -> None:
    before = counts()
    handle, kernels = made_by_caller()
    x = torch.randn(4, 3, requires_grad=True)
    first, second = (flexsn_inductor_training(handle, [x]) for _ in range(2))
    for _ in range(3):
        first[0].sum().backward(retain_graph=True)
    assert counts()[2] == before[2] + 1
    release_flexsn_kernel_handle(handle)
    assert not any(k.closed for k in kernels)
    second[0].sum().backward()
    assert [k.closed for k in kernels] == [1, 1, 1, 1]
    with pytest.raises(RuntimeError, match="no kernel handle"):
        first[0].sum().backward()


def test_a_training_call_that_is_dropped_is_not_in_use() -> None:
    before = counts()
    handle, _ = made_by_caller()
    results = flexsn_inductor_training(handle, [torch.randn(4, 3, requires_grad=True)])
    del results
    gc.collect()
    assert counts()[2] == before[2]
    release_flexsn_kernel_handle(handle)


def test_callers_kernels_need_an_input() -> None:
    handle = register(inference_kernel=Kernel("inference"), inference_info=info_of_names([], [], 0, 0, 0))
    with pytest.raises(ValueError, match="needs an input"):
        flexsn_inductor_inference(handle, [])
    release_flexsn_kernel_handle(handle)


@pytest.mark.parametrize("call", [flexsn_inductor_inference, flexsn_inductor_inference_final_state])
@pytest.mark.parametrize("steps", [0, 4])
def test_callers_kernels_are_nodes_of_compiled_graphs(call, steps: int) -> None:
    handle, kernels = made_by_caller()
    x, v = torch.randn(steps, 3), torch.randn(3)
    turned = torch.randn(3, steps).t().requires_grad_()
    for arguments in ([x, v], [x], [turned, v]):
        compiled = torch.compile(lambda *given: call(handle, given), fullgraph=True)
        found = compiled(*arguments)
        torch.testing.assert_close(found, call(handle, arguments))
        assert not any(result.requires_grad for result in found)
    assert bool(kernels[0].launches or kernels[1].launches) is (steps > 0)
    release_flexsn_kernel_handle(handle)


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("call", [flexsn_inductor_training, flexsn_inductor_training_final_state])
def test_callers_kernels_train_in_compiled_graphs(call, steps: int) -> None:
    handle, kernels = made_by_caller()

    def loss(x: Tensor, v: Tensor) -> Tensor:
        y, state, _ = call(handle, [x * 1.5, v])
        return (y * y).sum() + (state * 3).sum()

    found = []
    for run in (loss, torch.compile(loss, fullgraph=True)):
        torch.manual_seed(3)
        x, v = torch.randn(3, steps).t().requires_grad_(), torch.randn(3, requires_grad=True)
        run(x, v).backward()
        found.append([x.grad, v.grad])
    torch.testing.assert_close(found[1], found[0])
    assert kernels[3].launches == (2 if steps else 0)
    release_flexsn_kernel_handle(handle)


def test_operators_of_callers_kernels_are_well_made() -> None:
    handle, _ = made_by_caller()
    x, v = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    ops = torch.ops.flexsn_compat
    for sequences in (True, False):
        torch.library.opcheck(ops.launched, (handle, sequences, [x.detach(), v.detach()]))
        torch.library.opcheck(ops.trained, (handle, sequences, [x, v]))
    grads, saved, templates = [torch.ones(4, 3), None], [x.detach()], [x.detach(), v.detach()]
    torch.library.opcheck(ops.gone_back, (handle, grads, saved, templates, True))
    release_flexsn_kernel_handle(handle)



def test_every_name_of_the_seed_is_there() -> None:
    assert set(custom_ops.__all__) == {
        "FlexSNKernelHandle", "attach_flexsn_handle_finalizer", "flexsn_inductor_backward",
        "flexsn_inductor_inference", "flexsn_inductor_inference_final_state", "flexsn_inductor_training",
        "flexsn_inductor_training_final_state", "flexsn_kernel_registry_info",
        "register_flexsn_kernel_handle", "release_active_flexsn_kernel_handle",
        "release_flexsn_kernel_handle", "retain_flexsn_kernel_handle", "retain_owner_flexsn_kernel_handle",
    }  # fmt: skip
    assert all(hasattr(custom_ops, name) for name in custom_ops.__all__)
