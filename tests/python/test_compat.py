"""flexsn.compat: the seed's names, what kernels say of themselves, builders and wrappers."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import pytest
import torch
from cores import by_loop, soft, two_in_three_states
from flexsn.compat import wrapper
from flexsn.compat.info import FlexSNInfo, extract_info, info_of_names
from flexsn.compat.kernel import (
    build_inference_final_state_kernel,
    build_inference_kernel,
    build_training_kernels,
)
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

SCAN = ["core_fn", "num_inputs", "num_states", "num_outputs", "flat_args", "output_template_specs"]
BUILD = ["core_fn", "num_inputs", "num_states", "num_outputs", "example_inputs"]
SIGNATURES = {
    "info.extract_info": ["fwd_graph", "num_inputs", "num_states", "num_outputs"],
    "kernel.build_inference_kernel": BUILD,
    "kernel.build_inference_final_state_kernel": BUILD,
    "kernel.build_training_kernels": [*BUILD, "requires_grad"],
    "wrapper.flexsn_inference": ["f", "info", "args"],
    "wrapper.flexsn_inference_final_state": ["f", "info", "args"],
    "wrapper.flexsn_forward": ["f", "info", "args"],
    "wrapper.flexsn_backward": ["f", "info", "args", "input_templates", "state_templates"],
    "wrapper.flexsn_backward_ncl_bucket": ["ncl"],
    "custom_ops.FlexSNKernelHandle": [
        "inference_kernel", "inference_info", "inference_final_state_kernel", "inference_final_state_info",
        "forward_kernel", "backward_kernel", "training_info", "owner_refs", "active_refs",
    ],
    "custom_ops.retain_flexsn_kernel_handle": ["handle"],
    "custom_ops.retain_owner_flexsn_kernel_handle": ["handle"],
    "custom_ops.release_flexsn_kernel_handle": ["handle"],
    "custom_ops.release_active_flexsn_kernel_handle": ["handle"],
    "custom_ops.attach_flexsn_handle_finalizer": ["owner", "handle"],
    "custom_ops.flexsn_inductor_inference": ["handle", "flat_args"],
    "custom_ops.flexsn_inductor_inference_final_state": ["handle", "flat_args"],
    "custom_ops.flexsn_inductor_training": ["handle", "flat_args"],
    "custom_ops.flexsn_inductor_training_final_state": ["handle", "flat_args"],
    "custom_ops.flexsn_inductor_backward": ["handle", "grad_outputs", "saved_tensors", "input_templates"],
    "hop.flex_sn_scan": SCAN,
    "hop.eager_scan": SCAN,
    "hop.eager_scan_final_state": SCAN,
    "hop.lowerable_scan": SCAN,
    "hop.lowerable_scan_final_state": SCAN,
    "hop.lowerable_while_loop_scan": SCAN,
    "hop.lowerable_while_loop_scan_final_state": SCAN,
    "hop.dynamo_hop_available": [],
    "hop.lowerable_scan_available": [],
    "hop.lowerable_while_loop_available": [],
}  # fmt: skip


@pytest.mark.parametrize("path", SIGNATURES)
def test_names_and_signatures_are_the_seeds(path: str) -> None:
    module_name, name = path.split(".")
    module = importlib.import_module(f"flexsn.compat.{module_name}")
    assert name in module.__all__
    assert list(inspect.signature(getattr(module, name)).parameters) == SIGNATURES[path]


# ---- info --------------------------------------------------------------------------------------------------


def test_info_has_the_seeds_fields() -> None:
    assert FlexSNInfo._fields == (
        "num_inputs", "num_outputs", "num_states", "fwd_core_args", "fwd_core_returns", "fwd_core_recipients",
        "fwd_kernel_returns", "num_fwd_kernel_returns", "c2k_return_mapping",
    )  # fmt: skip


def graph(function, *arguments: Tensor) -> torch.fx.Graph:
    return make_fx(function)(*arguments).graph


def test_extract_info_tells_residuals_from_results() -> None:
    def forward(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        h = v + x
        y = torch.tanh(h)
        return y, h - y, h, y

    found = extract_info(graph(forward, torch.zeros(1), torch.zeros(1)), 1, 1, 1)
    assert found.fwd_core_args == ["x_1", "v_1"]
    assert found.fwd_core_returns == ["tanh", "sub", "add", "tanh"]
    assert found.fwd_core_recipients == ["s0", "v0", "res0_f", "_"]
    assert found.fwd_kernel_returns == ["s0", "v0", "res0_f"]
    assert found.num_fwd_kernel_returns == 3
    assert found.c2k_return_mapping == [2, 0]


def test_extract_info_defaults_to_one_input_and_one_output() -> None:
    found = extract_info(graph(lambda x: [x * 2], torch.zeros(1)))
    assert (found.num_inputs, found.num_states, found.num_outputs) == (1, 0, 1)
    assert found.fwd_kernel_returns == ["s0"] and found.c2k_return_mapping == []
    assert extract_info(graph(lambda x: x * 2, torch.zeros(1))) == found


def test_a_residual_of_two_results_is_found_at_the_later() -> None:
    found = info_of_names(["x", "v"], ["h", "h", "h"], 1, 1, 1)
    assert found.fwd_kernel_returns == ["s0", "v0"] and found.c2k_return_mapping == [1]


def test_extract_info_counts_arguments_and_returns() -> None:
    step = graph(lambda x, v: (x + v, v * 2), torch.zeros(1), torch.zeros(1))
    with pytest.raises(AssertionError, match="1 inputs and 0 states, found 2 arguments"):
        extract_info(step, 1, 0, 1)
    with pytest.raises(AssertionError, match="2 outputs and 1 states, found 2 values"):
        extract_info(step, 1, 1, 2)


# ---- builders ----------------------------------------------------------------------------------------------


def test_inference_kernels_are_the_loop() -> None:
    inputs, states = [torch.randn(5, 3) for _ in range(2)], [torch.randn(3) for _ in range(3)]
    outputs, sequences, last = by_loop(two_in_three_states, inputs, states)
    kernel, info = build_inference_kernel(two_in_three_states, 2, 3, 2)
    torch.testing.assert_close(kernel(*inputs, *states), (*outputs, *sequences))
    torch.testing.assert_close(
        wrapper.flexsn_inference(kernel, info, *inputs, *states), (*outputs, *sequences)
    )
    assert (info.num_inputs, info.num_states, info.num_outputs) == (2, 3, 2)
    assert info.fwd_kernel_returns == ["s0", "s1", "v0", "v1", "v2"] and info.c2k_return_mapping == []

    kernel, info = build_inference_final_state_kernel(two_in_three_states, 2, 3, 2)
    torch.testing.assert_close(kernel(*inputs, *states), (*outputs, *last))
    torch.testing.assert_close(
        wrapper.flexsn_inference_final_state(kernel, info, *inputs, *states), (*outputs, *last)
    )


def test_training_kernels_have_the_loops_gradients() -> None:
    x, v = torch.randn(5, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    outputs, sequences, _ = by_loop(soft, [x], [v])
    grads = [torch.randn(5, 3), torch.randn(5, 3)]
    expected = torch.autograd.grad([*outputs, *sequences], [x, v], grads)

    forward, backward, info = build_training_kernels(soft, 1, 1, 1)
    with torch.no_grad():
        results = wrapper.flexsn_forward(forward, info, x, v)
        assert len(results) == info.num_fwd_kernel_returns
        saved = [results[place] for place in info.c2k_return_mapping]
        torch.testing.assert_close(results[:2], (*outputs, *sequences))
        torch.testing.assert_close(backward(*grads, *saved, arguments=[x, v]), expected)
        found = wrapper.flexsn_backward(
            backward, info, *grads, *saved, input_templates=[x], state_templates=[v]
        )
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(wrapper.flexsn_backward(backward, info, *grads, *saved), expected)
        torch.testing.assert_close(backward(*grads, *saved), expected)


def test_own_kernels_need_templates_where_the_seeds_do() -> None:
    x, v = torch.randn(5, 3), torch.randn(3)
    forward, backward, info = build_training_kernels(soft, 1, 1, 1)
    results = wrapper.flexsn_forward(forward, info, x)  # states that are left out are zeros
    assert len(results) == info.num_fwd_kernel_returns
    saved = [results[place] for place in info.c2k_return_mapping]

    def gradients(*grads: Tensor | None, **templates) -> tuple[Tensor, ...]:
        return wrapper.flexsn_backward(backward, info, *grads, *saved, **templates)

    with pytest.raises(ValueError, match="input_templates are required where all gradients are None"):
        gradients(None, None)
    with pytest.raises(ValueError, match="input_templates are required where all gradients of outputs"):
        gradients(None, x)
    with pytest.raises(ValueError, match="state_templates are required where one of the states' gradients"):
        gradients(x, None)
    with pytest.raises(ValueError, match="input_templates must hold a tensor for each of 1 inputs, found 2"):
        gradients(x, x, input_templates=[x, x])
    zeros = gradients(None, None, input_templates=[x], state_templates=[v])
    torch.testing.assert_close(zeros, (torch.zeros(5, 3), torch.zeros(3)))
    absent = gradients(x, None, state_templates=[v])
    torch.testing.assert_close(absent, gradients(x, torch.zeros(5, 3)))
    with pytest.raises(ValueError, match="backward takes all that the training kernel returned, found 1"):
        backward(x, x, x)


def test_builders_name_what_they_keep() -> None:
    _, _, info = build_training_kernels(soft, 1, 1, 1)
    assert info.fwd_core_args == ["input0", "state0"]
    assert info.fwd_core_returns[:4] == ["output0", "next0", "output0", "next0"]
    assert info.fwd_core_recipients[:4] == ["s0", "v0", "_", "_"]
    assert all(name == f"res{i}_f" for i, name in enumerate(info.fwd_kernel_returns[2:]))
    assert info.c2k_return_mapping == list(range(info.num_fwd_kernel_returns))


@pytest.mark.parametrize(
    "core", [lambda x, v: (x + v, v * 0.5), functools.partial(lambda k, x, v: (x + v, v * k), 0.5)]
)
def test_builders_take_any_callable(core) -> None:
    x, v = torch.randn(4, 2), torch.randn(2)
    kernel, _ = build_inference_kernel(core, 1, 1, 1)
    outputs, sequences, _ = by_loop(core, [x], [v])
    torch.testing.assert_close(kernel(x, v), (*outputs, *sequences))


BUILDERS = [build_inference_kernel, build_inference_final_state_kernel, build_training_kernels]


@pytest.mark.parametrize("build", BUILDERS)
def test_examples_must_be_as_many_as_arguments(build) -> None:
    with pytest.raises(ValueError, match="1 inputs and 1 states, expected 2, found 1"):
        build(soft, 1, 1, 1, [torch.zeros(1)])


@pytest.mark.parametrize("build", BUILDERS)
def test_the_core_must_return_as_many_as_said(build) -> None:
    with pytest.raises(ValueError, match="soft returned 2 values, expected 2 outputs and 1 new states"):
        build(soft, 1, 1, 2)


def test_training_kernels_reject_requires_grad_of_another_length() -> None:
    with pytest.raises(ValueError, match="requires_grad must have the same length .*expected 2, found 1"):
        build_training_kernels(soft, 1, 1, 1, requires_grad=[True])


def test_training_kernels_need_something_to_differentiate() -> None:
    def counting(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return (x > 0).to(torch.int32), n + 1

    with pytest.raises(ValueError, match="counting has no training kernels"):
        build_training_kernels(counting, 1, 1, 1, [torch.zeros(1), torch.zeros(1, dtype=torch.int32)])


def test_an_input_that_carries_no_gradient_gets_zeros() -> None:
    x, v = torch.randn(4, 3), torch.randn(3)
    forward, backward, _ = build_training_kernels(soft, 1, 1, 1, requires_grad=[False, True])
    with torch.no_grad():
        grad_x, grad_v = backward(x, None, *forward(x, v), arguments=[x, v])
    assert torch.equal(grad_x, torch.zeros(4, 3)) and grad_v.abs().sum() > 0


def test_a_state_whose_gradient_is_not_asked_for_carries_that_of_the_inputs() -> None:
    x, v = torch.randn(4, 3), torch.randn(3)
    grads = []
    for mask in (None, [True, False]):
        forward, backward, _ = build_training_kernels(soft, 1, 1, 1, requires_grad=mask)
        with torch.no_grad():
            grads.append(backward(x, None, *forward(x, v), arguments=[x, v])[0])
    assert torch.equal(grads[0], grads[1]) and grads[0].abs().sum() > 0


# ---- wrappers around kernels that a caller made ------------------------------------------------------------


class Launched:
    """A kernel that writes where it stands into all that it is given from some place on."""

    def __init__(self, reads: int) -> None:
        self.reads = reads
        self.calls: list[dict[str, Any]] = []

    def __getitem__(self, grid):
        def launch(*tensors: Tensor, **sizes: Any) -> None:
            self.calls.append({**sizes, "grid": grid({"BLOCK_NCL": 4}), "shapes": [t.shape for t in tensors]})
            for place, tensor in enumerate(tensors[self.reads :]):
                tensor.fill_(float(place))

        return launch


ONE = info_of_names(["x", "v"], ["y", "n"], 1, 1, 1)
TWO_INPUTS = info_of_names(["a", "b", "v"], ["y", "n"], 2, 1, 1)
STATE_ONLY = info_of_names(["x", "v"], ["n"], 1, 1, 0)
X, V = torch.ones(5, 2, 3), torch.ones(2, 3)


def test_a_launch_says_steps_elements_and_type() -> None:
    kernel = Launched(2)
    outputs, states = wrapper.flexsn_inference(kernel, ONE, X, V)
    [call] = kernel.calls
    assert (call["T"], call["NCL"], call["grid"]) == (5, 6, (2,))
    assert call["dtype"] == wrapper.type_dict.get(torch.float32, torch.float32)
    assert outputs.shape == states.shape == X.shape
    assert outputs.unique() == 0 and states.unique() == 1


def test_last_states_are_like_the_initial_ones() -> None:
    kernel = Launched(2)
    _, last = wrapper.flexsn_inference_final_state(kernel, ONE, X, V.double())
    assert last.dtype is torch.float64 and last.shape == (2, 3)
    kernel = Launched(1)
    _, last = wrapper.flexsn_inference_final_state(kernel, ONE, X)
    assert last.dtype is torch.float32 and last.shape == (2, 3)


def test_a_forward_kernel_writes_each_return_once() -> None:
    info = info_of_names(["x", "v"], ["y", "n", "r", "y"], 1, 1, 1)
    assert len(wrapper.flexsn_forward(Launched(2), info, X, V)) == 3


def test_no_steps_launch_nothing() -> None:
    kernel, empty = Launched(0), torch.ones(0, 2, 3)
    assert [r.shape for r in wrapper.flexsn_inference(kernel, ONE, empty, V)] == [(0, 2, 3)] * 2
    assert [r.shape for r in wrapper.flexsn_forward(kernel, ONE, empty, V)] == [(0, 2, 3)] * 2
    _, last = wrapper.flexsn_inference_final_state(kernel, ONE, empty, V)
    assert torch.equal(last, V) and last.data_ptr() != V.data_ptr()
    _, last = wrapper.flexsn_inference_final_state(kernel, ONE, empty)
    assert torch.equal(last, torch.zeros(2, 3))
    grads = wrapper.flexsn_backward(kernel, ONE, empty, empty, state_templates=[V])
    assert [g.shape for g in grads] == [(0, 2, 3), (2, 3)] and torch.equal(grads[1], torch.zeros(2, 3))
    assert kernel.calls == []


def test_backward_takes_shapes_from_gradients() -> None:
    grad_x, grad_v = wrapper.flexsn_backward(Launched(2), ONE, X, X)
    assert grad_x.shape == X.shape and grad_v.shape == V.shape


def test_backward_fills_absent_gradients_with_zeros() -> None:
    kernel = Launched(3)
    wrapper.flexsn_backward(kernel, ONE, None, X, X, input_templates=[X], state_templates=[V])
    assert kernel.calls[0]["shapes"] == [X.shape, X.shape, X.shape, X.shape, V.shape]


def test_backward_without_gradients_is_zeros() -> None:
    kernel = Launched(0)
    templates = {"input_templates": [X], "state_templates": [V.double()]}
    grads = wrapper.flexsn_backward(kernel, ONE, None, None, **templates)
    assert [g.dtype for g in grads] == [torch.float32, torch.float64]
    assert all(torch.equal(g, torch.zeros_like(g)) for g in grads) and kernel.calls == []


def test_backward_of_a_core_without_outputs_uses_templates() -> None:
    templates = {"input_templates": [X.half()], "state_templates": [V]}
    grads = wrapper.flexsn_backward(Launched(1), STATE_ONLY, X, **templates)
    assert [g.dtype for g in grads] == [torch.float16, torch.float32]


@pytest.mark.parametrize(
    ("info", "grads", "templates", "message"),
    [
        (ONE, (None, None), {}, "input_templates are required where all gradients are None"),
        (TWO_INPUTS, (X, X), {}, "input_templates are required where there is not one input, found 2"),
        (ONE, (None, X), {}, "input_templates are required where all gradients of outputs are None"),
        (ONE, (X, X), {"input_templates": []}, "input_templates must hold .*1 inputs, found 0"),
        (ONE, (X, X), {"state_templates": []}, "state_templates must hold .*1 states, found 0"),
        (ONE, (None, None), {"input_templates": [X]}, "state_templates are required where all"),
        (ONE, (X, None), {}, "state_templates are required where one of the states'"),
    ],
)
def test_backward_says_which_templates_it_needs(info, grads, templates, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrapper.flexsn_backward(Launched(0), info, *grads, **templates)


@pytest.mark.parametrize(
    ("elements", "bucket"),
    [(1, 0), (1 << 12, 0), ((1 << 12) + 1, 1), (1 << 17, 1), (1 << 20, 2), (1 << 23, 3), ((1 << 23) + 1, 4)],
)
def test_backward_buckets(elements: int, bucket: int) -> None:
    assert wrapper.flexsn_backward_ncl_bucket(elements) == bucket


def test_training_kernels_without_a_gradient_to_give_are_refused() -> None:
    with pytest.raises(ValueError, match="has no training kernels"):
        build_training_kernels(soft, 1, 1, 1, requires_grad=(False, False))
