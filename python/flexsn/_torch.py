"""Uses of torch's private interface, each with its reason; those that import Dynamo stand in `_compiling*`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx.traceback as node_notes
from torch import Tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, make_fx

# dispatch_functionalize turns in-place ops into ordinary ones without functorch, whose own functionalize
# refuses autograd functions that keep their context in forward. There is no public spelling of it.
from torch._subclasses.functional_tensor import FunctionalTensor, dispatch_functionalize

from torch.autograd.graph import _engine_run_backward

# Tracing must not see what is active around it: the modes of a compiler or a user, and the sizes and fake
# tensors of a trace that a compiler is making.
from torch._guards import tracing
from torch.utils._python_dispatch import _disable_current_modes as modes_off

# What an operator that takes functions is made of; ScanOperator below says why.
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode


def record(function: Callable[..., Any], arguments: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The ATen graph of `function`, in-place ops made functional, on fake tensors: no data is touched."""
    with tracing(None), modes_off(), node_notes.preserve_node_meta(), _quiet():
        # Captured tensors are real beside fake arguments; make_fx allows it by this argument only.
        tracer = make_fx(dispatch_functionalize(function), tracing_mode="fake", _allow_non_fake_inputs=True)
        return tracer(*arguments)


@contextlib.contextmanager
def _quiet():
    """Keeps torch from printing a traceback of its own for what is then raised anyway."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def written_at(place: str):
    """Nodes that are recorded inside carry `place` as their stack trace."""
    before = node_notes.current_meta.get("stack_trace", "")
    node_notes.current_meta["stack_trace"] = place
    try:
        yield
    finally:
        node_notes.current_meta["stack_trace"] = before


def gradients(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """torch.autograd.grad, which itself would hide from an active mode what backward functions call."""
    return _engine_run_backward(
        tuple(outputs),
        tuple(tangents),
        False,
        False,
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )


def is_functional(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FunctionalTensor)


def user_backward(grad_fn: Any) -> bool:
    """Is this node of autograd's graph the backward of a user's autograd.Function?"""
    return isinstance(grad_fn, torch.autograd.function.BackwardCFunction)


# ---- operators that take functions -------------------------------------------------------------------------
# A scan that stays one node of a compiled graph, with the step as a graph of its own, is a higher-order
# operator. torch (2.13) has no public way to make one; Dynamo takes any BaseHOP, with no table or class of
# its own changed. All behaviour is registered here, so nothing else of BaseHOP is relied on, whose authors
# reserve it for torch. It could go when torch lets packages tell Dynamo about operators of theirs; without
# it (torch before 2.7) a compiled scan is the loop, written out.
try:
    from torch._higher_order_ops.base_hop import BaseHOP
except ImportError:
    BaseHOP = HigherOrderOperator
dynamo_takes_scans = BaseHOP is not HigherOrderOperator


class ScanOperator(BaseHOP):
    """A loop over time around a step's graph. Tracers and autograd see the loop itself, written out.

    Called as `operator(body, *operands, inputs=, steps=, states=)`: sequences, and of the operands, which the
    body takes, those that stand for a step of them and those that are states. (Dynamo orders operands by
    their use, adds captured tensors and sizes, and leaves out what is not used.) The body returns results
    with a leading dimension in which they are repeated, as that is where Dynamo reads their shapes.
    """

    def __init__(self, name: str) -> None:
        HigherOrderOperator.__init__(self, name)  # not BaseHOP's, which would register a single call
        for key in (DispatchKey.CompositeExplicitAutograd, DispatchKey.Autograd):
            self.py_impl(key)(_written_out)
        self.py_impl(FakeTensorMode)(_written_out_under)
        self.py_impl(ProxyTorchDispatchMode)(_written_out_under)
        self.py_functionalize_impl(_written_out_functional)

    def __call__(
        self,
        body: Any,
        *operands: Any,
        inputs: Sequence[Tensor],
        steps: Sequence[Tensor],
        states: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        return HigherOrderOperator.__call__(self, body, *operands, inputs=inputs, steps=steps, states=states)


def _written_out(
    body: Any, *operands: Any, inputs: Sequence[Tensor], steps: Sequence[Tensor], states: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    places = {id(operand): place for place, operand in enumerate(operands)}
    changing = [places.get(id(tensor)) for tensor in (*steps, *states)]  # None: the body does not read it
    rows = []
    for t in range(inputs[0].shape[0]):
        arguments = list(operands)
        for place, tensor in zip(changing, [*[x[t] for x in inputs], *states]):
            if place is not None:
                arguments[place] = tensor
        results = [result[0] for result in body(*arguments)]
        states = results[len(results) - len(states) :]
        rows.append(results)
    return tuple([torch.stack(column) for column in zip(*rows)])


def _written_out_under(mode: Any, *arguments: Any, **tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A mode is off while it handles an operator; the operators of the loop are for it again."""
    with mode:
        return _written_out(*arguments, **tensors)


def _written_out_functional(
    context: Any, body: Any, *operands: Any, **tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    # One object for each tensor, wherever it stands.
    every = [*operands, *[tensor for group in tensors.values() for tensor in group]]
    plain = {id(tensor): context.unwrap_tensors(tensor) for tensor in every}
    with context.redispatch_to_next():
        results = _written_out(
            context.functionalize(body),
            *[plain[id(operand)] for operand in operands],
            **{name: [plain[id(tensor)] for tensor in group] for name, group in tensors.items()},
        )
    return context.wrap_tensors(results)


# torch's own loops are prototypes (2.13), not exported; they could become torch.scan and torch.while_loop.
# The while_loop here is the one that stacks what it carries: what a body of the other writes into tensors
# around it is lost by Inductor (2.13) without a word, and carrying whole sequences copies them every step.
try:
    from torch._higher_order_ops.scan import scan as torch_scan
except ImportError:
    torch_scan = None
try:
    from torch._higher_order_ops.while_loop import while_loop_stack_output_op as torch_while_loop
except ImportError:
    torch_while_loop = None
