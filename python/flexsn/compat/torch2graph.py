"""The seed's tracing: a step as an FX graph of ATen functions, alone or with the graph of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from .._reach import describe
from .._torch import is_view

__all__ = ["generate_forward_and_backward_graph", "generate_inference_graph"]

Core = Callable[..., Any]


def generate_inference_graph(fn: Core, example_inputs: Sequence[Tensor]) -> fx.Graph:
    """One step as a graph `(*inputs) -> results`, traced on examples, which it does not change."""
    with torch.no_grad():
        graph = make_fx(fn)(*[example.detach().clone() for example in example_inputs]).graph
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    _results(fn, returned, fx.Node)
    return graph


def generate_forward_and_backward_graph(
    fn: Core, example_inputs: Sequence[Tensor], requires_grad: Sequence[bool] | None = None
) -> tuple[fx.Graph, fx.Graph]:
    """Two graphs: `(*inputs) -> (*results, *residuals)` and `(*residuals, *arriving gradients) -> gradients`.

    requires_grad: for each input, whether its gradient is wanted; None: of all floats. The second graph has
    an argument for the gradient of every result, unused where a result carries none, and gives None for an
    input whose gradient is not wanted.
    """
    if requires_grad is not None and len(requires_grad) != len(example_inputs):
        raise ValueError(
            "requires_grad must have the same length as example_inputs, expected "
            f"{len(example_inputs)}, found {len(requires_grad)}"
        )
    wanted = [True] * len(example_inputs) if requires_grad is None else list(requires_grad)
    arguments = [
        example.detach().clone().requires_grad_(flag and example.is_floating_point())
        for example, flag in zip(example_inputs, wanted)
    ]
    graphs, results = _both_graphs(fn, arguments)
    for name in ("forward", "backward"):
        if name not in graphs:
            raise ValueError(f"the {name} graph of {describe(fn)} was not captured")
    forward = _without_copies(graphs["forward"], len(results))
    backward = _without_copies(graphs["backward"], len(arguments))
    _take_every_gradient(backward, [result.requires_grad for result in results])
    return forward, backward


def _results(fn: Core, returned: Any, kind: type = Tensor) -> Sequence[Any]:
    """What a core returned, as a row of tensors, or of what stands for them."""
    results = (returned,) if isinstance(returned, kind) else returned
    kinds = [_kind(result) for result in results] if isinstance(results, (list, tuple)) else []
    if not kinds or not all(isinstance(result, kind) for result in results):
        found = f"{type(returned).__name__} of {', '.join(kinds)}" if kinds else type(returned).__name__
        raise ValueError(f"{describe(fn)} must return a tensor, or a list or tuple of tensors, found {found}")
    return results


def _both_graphs(fn: Core, arguments: Sequence[Tensor]) -> tuple[dict[str, fx.Graph], Sequence[Tensor]]:
    from functorch.compile import aot_function, make_boxed_func, min_cut_rematerialization_partition

    graphs: dict[str, fx.Graph] = {}

    def keep(name: str) -> Callable[..., Any]:
        def compiler(module: fx.GraphModule, _: Sequence[Any]) -> Any:
            graphs[name] = module.graph
            return make_boxed_func(module)

        return compiler

    def flat(*given: Tensor) -> tuple[Tensor, ...]:
        copies = [argument.clone() for argument in given]  # which the core may change
        returned = fn(*copies)
        results = _results(fn, returned)
        # One that is an argument, or shares its memory, would have no gradient of its own in the other graph.
        return tuple([r.clone() if is_view(r) or any(r is c for c in copies) else r for r in results])

    traced = aot_function(
        flat, keep("forward"), keep("backward"), partition_fn=min_cut_rematerialization_partition
    )
    with torch.enable_grad():
        try:
            results = traced(*arguments)
        except AssertionError as error:
            if "FakeTensor" not in str(error):
                raise
            raise ValueError(
                f"{describe(fn)} must compute with its arguments alone, found a captured tensor; pass it in"
            ) from error
    carrying = [result for result in results if result.requires_grad]
    if not carrying:
        raise ValueError(
            f"none of the results of {describe(fn)} carries a gradient to an input whose gradient is wanted"
        )
    torch.autograd.backward(carrying, [torch.ones_like(result) for result in carrying])
    return graphs, results


def _kind(value: Any) -> str:
    return "Tensor" if isinstance(value, (Tensor, fx.Node)) else type(value).__name__


def _without_copies(graph: fx.Graph, results: int) -> fx.Graph:
    """Values in place of their copies, which no function of the graph changes; results stay what they are."""
    copies = (torch.ops.aten.detach.default, torch.ops.aten.clone.default)
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in copies:
            continue
        for user in list(node.users):
            if user.op != "output":
                user.replace_input_with(node, node.args[0])
                continue
            kept = results if node.target is copies[1] else 0
            returned = [
                node.args[0] if value is node and place >= kept else value
                for place, value in enumerate(user.args[0])
            ]
            user.args = (type(user.args[0])(returned),)
        if not node.users:
            graph.erase_node(node)
    graph.lint()
    return graph


def _take_every_gradient(graph: fx.Graph, carries: Sequence[bool]) -> None:
    """Adds arguments for the gradients that torch knows will not be used."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    tangents = iter(placeholders[len(placeholders) - sum(carries) :])
    last = placeholders[len(placeholders) - sum(carries) - 1] if len(placeholders) > sum(carries) else None
    like = placeholders[-1]
    for place, carried in enumerate(carries):
        if carried:
            last = next(tangents)
            continue
        before = graph.inserting_after(last) if last is not None else graph.inserting_before(placeholders[0])
        with before:
            last = graph.placeholder(f"unused_tangent_{place}")
        last.meta = dict(like.meta)
