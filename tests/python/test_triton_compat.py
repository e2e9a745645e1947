"""The seed's way to Triton: FX graphs of a step, code of them, kernels around it, wrappers around those."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, fx

pytest.importorskip("triton")

from cores import by_loop, soft, two_in_three_states
from flexsn.compat import graph2triton, template, torch2graph, wrapper
from flexsn.compat.graph2triton import compile_triton_code_str, generate_triton_code_str
from flexsn.compat.info import FlexSNInfo, extract_info
from flexsn.compat.torch2graph import (
    generate_forward_and_backward_graph,
    generate_inference_graph,
)
from triton_modules import environment, same_bits


@pytest.fixture(autouse=True)
def in_tritons_interpreter(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("FLEXSN_CACHE_DIR", str(tmp_path))
    with environment(TRITON_INTERPRET="1"), numpy.errstate(all="ignore"):
        yield


def examples(count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.zeros(1, dtype=dtype) for _ in range(count)]


# ---- graphs ------------------------------------------------------------------------------------------------


def test_names_and_signatures_are_the_seeds() -> None:
    expected = {
        (torch2graph, "generate_inference_graph"): ["fn", "example_inputs"],
        (torch2graph, "generate_forward_and_backward_graph"): ["fn", "example_inputs", "requires_grad"],
        (graph2triton, "generate_triton_code_str"): ["graph", "fn_name", "verbose"],
        (graph2triton, "compile_triton_code_str"): ["triton_code", "kernel_name", "verbose", "name_space"],
        **{
            (template, f"get_flexsn_{kind}_kernel"): ["core_str", "core_name", "info", "verbose"]
            for kind in ("inference", "inference_final_state", "forward", "backward")
        },
    }
    for (module, name), parameters in expected.items():
        assert name in module.__all__
        assert list(inspect.signature(getattr(module, name)).parameters) == parameters


def test_an_inference_graph_is_of_aten_functions() -> None:
    graph = generate_inference_graph(soft, examples(2))
    assert isinstance(graph, fx.Graph)
    assert len([node for node in graph.nodes if node.op == "placeholder"]) == 2
    assert {str(node.target) for node in graph.nodes if node.op == "call_function"} <= {
        "aten.mul.Tensor", "aten.add.Tensor", "aten.sub.Tensor", "aten.div.Tensor", "aten.sigmoid.default",
        "aten.tanh.default", "aten.rsub.Scalar",
    }  # fmt: skip


def test_a_core_that_changes_its_arguments_does_not_change_examples() -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, v.add_(1)

    given = examples(2)
    generate_inference_graph(core, given)
    assert all(torch.equal(example, torch.zeros(1)) for example in given)


def test_graphs_of_training_have_residuals_then_gradients() -> None:
    forward, backward = generate_forward_and_backward_graph(soft, examples(2))
    info = extract_info(forward, 1, 1, 1)
    residuals = len(info.fwd_core_returns) - 2
    arguments = [node.name for node in backward.nodes if node.op == "placeholder"]
    assert len(arguments) == residuals + 2
    assert arguments[:residuals] == info.fwd_core_returns[2:]
    [output] = [node for node in backward.nodes if node.op == "output"]
    assert len(output.args[0]) == 2
    for graph in (forward, backward):
        assert not any("detach" in str(node.target) for node in graph.nodes)


def test_a_result_without_gradient_has_an_argument_all_the_same() -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        h = x + v
        return (h > 0).to(torch.int32), h * x, h

    forward, backward = generate_forward_and_backward_graph(core, examples(2))
    residuals = len(extract_info(forward, 1, 1, 2).fwd_core_returns) - 3
    arguments = [node for node in backward.nodes if node.op == "placeholder"]
    assert len(arguments) == residuals + 3
    assert not arguments[residuals].users and arguments[residuals + 1].users


def test_gradients_that_are_not_wanted_are_none() -> None:
    _, backward = generate_forward_and_backward_graph(soft, examples(2), [True, False])
    [output] = [node for node in backward.nodes if node.op == "output"]
    assert [grad is None for grad in output.args[0]] == [False, True]


@pytest.mark.parametrize(
    ("core", "requires_grad", "message"),
    [
        (soft, [True], "requires_grad must have the same length as example_inputs, expected 2, found 1"),
        (soft, [False, False], "none of the results of soft carries a gradient"),
        (
            lambda x, v: ((x > 0).to(torch.int32), v.int()),
            None,
            "none of the results of .*lambda.* carries a gradient",
        ),
        (lambda x, v: None, None, "must return a tensor, or a list or tuple of tensors, found NoneType"),
        (lambda x, v: {"s": x}, None, "must return a tensor, or a list or tuple of tensors, found dict"),
    ],
)
def test_graphs_of_training_are_refused(core, requires_grad, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate_forward_and_backward_graph(core, examples(2), requires_grad)


def test_one_tensor_is_one_result() -> None:
    forward, _ = generate_forward_and_backward_graph(lambda x: x * x, examples(1))
    [output] = [node for node in forward.nodes if node.op == "output"]
    assert isinstance(output.args[0], (list, tuple))


# ---- code --------------------------------------------------------------------------------------------------


def test_code_is_one_function_with_the_graphs_names() -> None:
    code, name = generate_triton_code_str(generate_inference_graph(soft, examples(2)), "my core!")
    assert name.startswith("my_core_") and len(name) == len("my_core_") + 8
    assert f"@triton.jit\ndef {name}(x_1, v_1):" in code
    again, same = generate_triton_code_str(generate_inference_graph(soft, examples(2)), "my core!")
    assert (again, same) == (code, name)
    other = generate_triton_code_str(generate_inference_graph(lambda x, v: (x, v), examples(2)), "my core!")
    assert other[1] != name


@pytest.mark.parametrize(
    ("given", "stem"), [("<lambda>", "lambda_"), ("3d", "core_3d_"), ("", "core_"), ("a.b", "a_b_")]
)
def test_any_name_makes_a_function(given: str, stem: str) -> None:
    _, name = generate_triton_code_str(generate_inference_graph(soft, examples(2)), given)
    assert name.startswith(stem) and name.isidentifier()


def test_code_can_be_compiled_by_itself() -> None:
    code, name = generate_triton_code_str(generate_inference_graph(soft, examples(2)), "soft")
    assert callable(compile_triton_code_str(code, name))


def test_verbose_prints(capsys) -> None:
    code, _ = generate_triton_code_str(generate_inference_graph(soft, examples(2)), "soft", verbose=True)
    assert capsys.readouterr().out == code + "\n"


def test_unknown_functions_are_not_implemented() -> None:
    graph = generate_inference_graph(lambda x: torch.special.bessel_j0(x), examples(1))
    with pytest.raises(NotImplementedError, match="special_bessel_j0"):
        generate_triton_code_str(graph, "core")
    graph = generate_inference_graph(lambda x: x.sum().expand(1), examples(1))
    with pytest.raises(NotImplementedError, match="sum"):
        generate_triton_code_str(graph, "core")


def test_captured_tensors_are_not_implemented() -> None:
    weight = torch.ones(1)
    graph = generate_inference_graph(lambda x: x * weight, examples(1))
    with pytest.raises(NotImplementedError, match="get_attr .*captured tensors"):
        generate_triton_code_str(graph, "core")


def test_a_graph_without_types_is_refused() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.neg.default, (x,)),))
    with pytest.raises(ValueError, match="x of the graph has no type"):
        generate_triton_code_str(graph, "core")


# ---- kernels -----------------------------------------------------------------------------------------------


def kernels_of(
    core: Any, num_inputs: int, num_states: int, num_outputs: int, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Any], FlexSNInfo, FlexSNInfo]:
    """All four kernels of a core, the description of inference and that of training."""
    given = examples(num_inputs + num_states, dtype)
    counts = (num_inputs, num_states, num_outputs)
    inference = generate_inference_graph(core, given)
    forward, backward = generate_forward_and_backward_graph(core, given)
    info, training = extract_info(inference, *counts), extract_info(forward, *counts)
    step = generate_triton_code_str(inference, "core")
    made = {
        "inference": template.get_flexsn_inference_kernel(*step, info),
        "inference_final_state": template.get_flexsn_inference_final_state_kernel(*step, info),
        "forward": template.get_flexsn_forward_kernel(*generate_triton_code_str(forward, "core"), training),
        "backward": template.get_flexsn_backward_kernel(
            *generate_triton_code_str(backward, "core"), training
        ),
    }
    return made, info, training


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return grad / (1 + (torch.pi * u) ** 2)


def lif(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v + (x - v) / 2.0
    s = Spike.apply(h - 1.0)
    return s, h * (1 - s)


CORES = [
    (lif, 1, 1, 1),
    (soft, 1, 1, 1),
    (two_in_three_states, 2, 3, 2),
    (lambda x: torch.tanh(x) * x, 1, 0, 1),
]


@pytest.mark.parametrize("case", CORES, ids=["lif", "soft", "two_in_three_states", "no_state"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_run_a_core_over_time(case, dtype) -> None:
    core, inputs, states, outputs = case
    made, info, training = kernels_of(core, inputs, states, outputs, dtype)

    def step(*arguments: Tensor) -> tuple[Tensor, ...]:
        returned = core(*arguments)
        return returned if isinstance(returned, tuple) else (returned,)

    xs = [torch.randn(5, 3, 2, dtype=dtype).requires_grad_() for _ in range(inputs)]
    vs = [torch.randn(3, 2, dtype=dtype).requires_grad_() for _ in range(states)]
    ys, sequences, last = by_loop(step, xs, vs)
    with torch.no_grad():
        found = wrapper.flexsn_inference(made["inference"], info, *xs, *vs)
        torch.testing.assert_close(found, (*ys, *sequences))
        final = wrapper.flexsn_inference_final_state(made["inference_final_state"], info, *xs, *vs)
        torch.testing.assert_close(final, (*ys, *last))
        results = wrapper.flexsn_forward(made["forward"], training, *xs, *vs)
        assert all(map(same_bits, found, results))
        grads = [torch.randn_like(result) for result in found]
        saved = [results[place] for place in training.c2k_return_mapping]
        gradients = wrapper.flexsn_backward(
            made["backward"], training, *grads, *saved, input_templates=xs, state_templates=vs
        )
    expected = torch.autograd.grad([*ys, *sequences], [*xs, *vs], grads)
    torch.testing.assert_close(gradients, expected)


def test_kernels_keep_half_types() -> None:
    made, info, _ = kernels_of(soft, 1, 1, 1, torch.float16)
    x, v = torch.randn(4, 5, dtype=torch.float16), torch.zeros(5, dtype=torch.float16)
    ys, sequences, _ = by_loop(soft, [x], [v])
    found = wrapper.flexsn_inference(made["inference"], info, x, v)
    assert [result.dtype for result in found] == [torch.float16] * 2
    torch.testing.assert_close(found, (*ys, *sequences), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
def test_what_training_keeps_of_half_types_may_be_bool(dtype) -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.where(x > v, x * 0.5, v * 2.0)  # of which backward needs the choice
        return h, h

    made, info, training = kernels_of(core, 1, 1, 1, dtype)
    x = torch.randn(4, 5, dtype=dtype).requires_grad_()
    v = torch.randn(5, dtype=dtype).requires_grad_()
    ys, sequences, _ = by_loop(core, [x], [v])
    with torch.no_grad():
        results = wrapper.flexsn_forward(made["forward"], training, x, v)
        torch.testing.assert_close(results[:2], (*ys, *sequences))
        grads = [torch.randn_like(ys[0]), torch.zeros_like(ys[0])]
        saved = [results[place] for place in training.c2k_return_mapping]
        found = wrapper.flexsn_backward(
            made["backward"], training, *grads, *saved, input_templates=[x], state_templates=[v]
        )
    expected = torch.autograd.grad([*ys, *sequences], [x, v], grads)
    torch.testing.assert_close(found, expected)


def test_states_that_are_left_out_are_zeros() -> None:
    made, info, training = kernels_of(lif, 1, 1, 1)
    x, v = torch.randn(4, 5), torch.zeros(5)
    for kind, run, described in (
        ("inference", wrapper.flexsn_inference, info),
        ("inference_final_state", wrapper.flexsn_inference_final_state, info),
        ("forward", wrapper.flexsn_forward, training),
    ):
        with_zeros, without = run(made[kind], described, x, v), run(made[kind], described, x)
        assert all(map(same_bits, with_zeros, without))


def test_no_steps_and_no_elements_launch_nothing() -> None:
    made, info, training = kernels_of(lif, 1, 1, 1)
    for shape in ((0, 3), (3, 0), (0, 0)):
        x, v = torch.zeros(shape), torch.zeros(shape[1:])
        assert [r.shape for r in wrapper.flexsn_inference(made["inference"], info, x, v)] == [x.shape] * 2
        results = wrapper.flexsn_forward(made["forward"], training, x, v)
        saved = [results[place] for place in training.c2k_return_mapping]
        grads = wrapper.flexsn_backward(made["backward"], training, x, x, *saved, state_templates=[v])
        assert [grad.shape for grad in grads] == [x.shape, v.shape]


def test_gradients_may_be_absent() -> None:
    made, _, training = kernels_of(soft, 1, 1, 1)
    x, v = torch.randn(4, 3), torch.randn(3)
    results = wrapper.flexsn_forward(made["forward"], training, x, v)
    saved = [results[place] for place in training.c2k_return_mapping]
    templates = {"input_templates": [x], "state_templates": [v]}
    grad = torch.randn(4, 3)
    absent = wrapper.flexsn_backward(made["backward"], training, grad, None, *saved, **templates)
    zeros = wrapper.flexsn_backward(made["backward"], training, grad, torch.zeros(4, 3), *saved, **templates)
    assert all(map(same_bits, absent, zeros))


def test_arguments_need_not_be_dense() -> None:
    made, info, _ = kernels_of(lif, 1, 1, 1)
    x, v = torch.randn(4, 3, 5), torch.randn(3, 5)
    expected = wrapper.flexsn_inference(made["inference"], info, x, v)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert all(map(same_bits, expected, wrapper.flexsn_inference(made["inference"], info, turned, v)))


def test_kernels_are_named_by_their_content_and_shared() -> None:
    made, _, _ = kernels_of(lif, 1, 1, 1)
    again, _, _ = kernels_of(lif, 1, 1, 1)
    for kind, kernel in made.items():
        assert (
            f"_{kind}_" in kernel.name and kernel.name == again[kind].name and kernel.code == again[kind].code
        )
    assert len({kernel.name for kernel in made.values()}) == 4
    assert "BLOCK_NCL" in made["inference"].code and repr(made["inference"]).startswith(
        "GeneratedKernel(core_"
    )


def test_templates_print_where_asked(capsys) -> None:
    graph = generate_inference_graph(lif, examples(2))
    step = generate_triton_code_str(graph, "core")
    kernel = template.get_flexsn_inference_kernel(*step, extract_info(graph, 1, 1, 1), verbose=True)
    assert capsys.readouterr().out == kernel.code + "\n"


@pytest.mark.parametrize("core", [lambda x, v: (x + v, x), lambda x, v: (x * v, v), lambda x, v: (v, x)])
def test_results_that_are_arguments_have_their_gradients_in_the_second_graph(core) -> None:
    example = torch.rand(2, 3)
    _, backward = torch2graph.generate_forward_and_backward_graph(core, [example, example])[:2]
    names = [node.name for node in getattr(backward, "graph", backward).nodes if node.op == "placeholder"]
    assert [name for name in names if name.startswith("tangents")] == ["tangents_1", "tangents_2"]


def lif_in_place(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    v += (x - v) / 2.0
    s = Spike.apply(v - 1.0)
    return s, v * (1 - s)


@pytest.mark.parametrize(
    ("core", "meant"),
    [
        (lif_in_place, lif),
        (lambda x, v: (torch.tanh(x + v), v.mul_(0.5)), lambda x, v: (torch.tanh(x + v), v * 0.5)),
        (lambda x, v: (x * v, v.view_as(x)), lambda x, v: (x * v, v * 1)),
        (lambda x, v: (x.expand_as(v), x * v), lambda x, v: (x * 1, x * v)),
        (
            lambda x, v: ((x * v).view_as(x), torch.tanh(x).reshape(-1)),
            lambda x, v: (x * v, torch.tanh(x).flatten()),
        ),
    ],
)
def test_graphs_of_cores_that_change_arguments_or_return_views_are_right(core, meant) -> None:
    arguments = [torch.randn(2, 3).requires_grad_() for _ in range(2)]
    forward, backward = generate_forward_and_backward_graph(core, [a.detach() for a in arguments])
    copies = [a.detach().clone() for a in arguments]
    first, second, *saved = fx.GraphModule({}, forward)(*copies)
    expected = meant(*arguments)
    torch.testing.assert_close((first, second), expected)
    assert all(map(torch.equal, copies, arguments))
    grads = [torch.randn_like(result) for result in expected]
    found = fx.GraphModule({}, backward)(*saved, *grads)
    torch.testing.assert_close(tuple(found), torch.autograd.grad(expected, arguments, grads))


def test_tensors_that_a_core_captures_are_refused() -> None:
    weight = torch.nn.Parameter(torch.tensor(0.5))
    text = "must compute with its arguments alone, found a captured tensor; pass it in"
    with pytest.raises(ValueError, match=text):
        generate_forward_and_backward_graph(lambda x, v: (x * weight, v), examples(2))


def test_results_that_are_no_tensors_are_refused() -> None:
    text = "must return a tensor, or a list or tuple of tensors, found tuple of Tensor, float"
    with pytest.raises(ValueError, match=text):
        torch2graph.generate_forward_and_backward_graph(lambda x: (x * 2, 3.0), [torch.rand(2)])


@pytest.mark.parametrize("returned", [None, 3, {}, (), (torch.zeros(1), None)], ids=str)
def test_an_inference_graph_is_of_cores_that_return_tensors(returned: Any) -> None:
    with pytest.raises(ValueError, match="must return a tensor, or a list or tuple of tensors, found"):
        torch2graph.generate_inference_graph(lambda x: returned, examples(1))
