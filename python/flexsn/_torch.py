"""Every use of torch's private interface and why it is there; "(2.13)" is the newest torch where that is so.

Each could go with the first version that offers the same by a public name. What torch calls by such a name
stands with the class: `_apply` and `_replicate_for_data_parallel` of modules in base.py and surrogate.py. The
names under which a module keeps its hooks are watched in _reach.py.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx.traceback as node_notes
from torch import Tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, make_fx
from torch.nn.utils import parametrize

# dispatch_functionalize turns in-place ops into ordinary ones without functorch, whose own functionalize
# refuses autograd functions that keep their context in forward. There is no public spelling of it (2.13).
from torch._subclasses.functional_tensor import FunctionalTensor, dispatch_functionalize

# torch.autograd.grad without its torch function, which hides what is called inside; see `gradients`.
from torch.autograd.graph import _engine_run_backward

# Tracing must not see what is active around it: the modes of a compiler or a user, and the sizes and fake
# tensors of a trace that a compiler is making. Nothing public turns them off (2.13).
from torch._guards import tracing
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as modes_off

# A recorded graph is read, never run: without this torch makes a Python function of each one, and keeps its
# source for good. There is no public spelling of it (2.13).
from torch.fx._lazy_graph_module import _use_lazy_graph_module

# Flattens nested arguments as torch does; it has no public name (2.13).
from torch.utils import _pytree as pytree

# What an operator that takes functions is made of; ScanOperator below says why.
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

__all__ = ["modes_off", "promise", "pytree"]

# Tells a compiler what is so; torch documents it, underscore and all.
promise = torch._check


def address_of(tensor: Tensor) -> int:
    """Where its first element is. A copy that torch has put off, which `data_ptr()` would make, stays put off."""
    return torch._C._data_address(tensor) + tensor.storage_offset() * tensor.element_size()


def is_view(tensor: Tensor) -> bool:
    """Whether a tensor is a part of another one, which it keeps alive. Nothing public tells (2.13)."""
    return tensor._base is not None


def has_own_functions(kind: type) -> bool:
    """Does this class of tensors change what functions on it give? (Parameters, for one, do not.)"""
    function = kind.__torch_function__
    if function is torch._C._disabled_torch_function_impl:
        return False
    return getattr(function, "__func__", None) is not Tensor.__torch_function__.__func__


def has_memory(tensor: Tensor) -> bool:
    """Whether there is storage behind a tensor.

    One that a transform wraps has none to be asked for, which only a private name tells (2.13).
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or not tensor.numel():
        return True
    return tensor.untyped_storage().size() != 0


def was_freed(node: Any, border: type | tuple[()] = (), limit: int = 256) -> bool:
    """Whether a node near this one in the graph, on this side of nodes of a kind, has lost what it saved for backward.

    Reading what was saved fails then; nodes show it by private names only (2.13).
    """
    waiting, known = deque([node]), {node}
    while waiting and len(known) < limit:
        node = waiting.popleft()
        saved = [name for name in dir(node) if name.startswith("_saved_") or name == "_raw_saved_tensors"]
        try:
            for name in saved:
                getattr(node, name)
        except RuntimeError:
            return True
        for before, _ in node.next_functions:
            if before is not None and before not in known and not isinstance(before, border):
                known.add(before)
                waiting.append(before)
    return False


#: The number of the backward that this thread runs, in which checkpoints run networks again and which tells it
#: from others over the same graph; -1 where there is none. No public name (2.13).
backward_number = torch._C._current_graph_task_id


def has_saved_tensors_hooks() -> bool:
    """Whether somebody around is asked about tensors that autograd saves. Nothing public tells (2.13)."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


#: The innermost transform of torch.func (grad, vmap, ...) around this, or None. Nothing public tells (2.13).
transform_around = torch._C._functorch.peek_interpreter_stack

#: Does vmap run this tensor as a batch of several? Nothing public tells (2.13).
is_batched = torch._C._functorch.is_batchedtensor


def is_exporting() -> bool:
    """torch.compiler.is_exporting(), which in code that Dynamo compiles is always true (2.11)."""
    return torch.compiler._is_exporting_flag


def in_dispatch_mode() -> bool:
    """Whether a mode, as of an export or of fake tensors, sees the operators that run. Nothing public tells (2.13)."""
    return torch._C._len_torch_dispatch_stack() != 0


def in_forward_mode() -> bool:
    """Whether tensors may be dual ones. Nothing public tells (2.13)."""
    return torch.autograd.forward_ad._current_level >= 0


def has_tangent(tensor: Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None


def under_grad_transform() -> bool:
    """Whether the innermost transform around this is torch.func.grad, or one that is made of it."""
    transform = transform_around()
    return transform is not None and transform.key() == torch._C._functorch.TransformType.Grad


def direct(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """An operator without the Python function around it, which a compiler wants to see (2.13)."""
    return op._op


def reads_a_number(func: torch._ops.OpOverload) -> bool:
    """Is this what torch calls where a function that takes a number is given a tensor?"""
    return func is torch.ops.aten._local_scalar_dense.default


def written_by(func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors among its arguments, also in lists, that an operator writes to."""
    written: list[Tensor] = []
    if func._schema.is_mutable:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[place] if place < len(args) else kwargs.get(argument.name)
                written += [t for t in pytree.tree_leaves(given) if isinstance(t, Tensor)]
    return written


class _RealTensorsKept(TorchDispatchMode):
    """Refuses what would write to a tensor that has data; a fake mode alone runs it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(not isinstance(written, FakeTensor) for written in written_by(func, args, kwargs)):
            raise RuntimeError(f"{func} would write to a tensor of the caller's")
        return func(*args, **kwargs)


def assigned_by(func: Any) -> str | None:
    """The property of a tensor that this function assigns; none for other functions, and for requires_grad,
    which tensors made in a step may have."""
    if getattr(func, "__name__", "") not in ("__set__", "__delete__"):
        return None
    name = getattr(getattr(func, "__self__", None), "__name__", "")
    return None if name == "requires_grad" else name


class _NothingAssigned(TorchFunctionMode):
    """Refuses `tensor.data = ...` and the like, which no operator shows."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if (name := assigned_by(func)) is not None:
            raise RuntimeError(f".{name} of a tensor would be assigned")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def function_modes_off():
    """Inside, no mode of a user's decides what torch's functions give. One that says on which device new
    tensors are stays."""
    taken = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    for mode in reversed(taken):
        if isinstance(mode, DeviceContext):
            torch._C._push_on_torch_function_stack(mode)
    try:
        yield
    finally:
        for _ in range(torch._C._len_torch_function_stack()):
            torch._C._pop_torch_function_stack()
        for mode in reversed(taken):
            torch._C._push_on_torch_function_stack(mode)


def run_without_data(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], others: Sequence[Any]
) -> Any:
    """What `function` returns for tensors like these, as to shapes and types; no number is drawn. It fails
    where it writes to other tensors, which stay as they are."""
    with modes_off(), function_modes_off(), _quiet(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(tensor) for tensor in tensors]
        try:
            with _RealTensorsKept(), _NothingAssigned():
                return function(*fakes, *others)
        finally:
            _forget_tensors(mode)


def _forget_tensors(mode: FakeTensorMode) -> None:
    """Drops the weak references to real tensors that a mode of fake ones keeps: a cycle keeps the mode itself,
    and torch.utils.swap_tensors takes no tensor that has one. Nothing public does it (2.13)."""
    describer = mode.fake_tensor_converter.meta_converter.describer
    describer.lookup_tensor.clear()
    describer.lookup_storage.clear()


_is_fork = False


def _note_fork() -> None:
    global _is_fork
    _is_fork = True


os.register_at_fork(after_in_child=_note_fork)


def _renew_threads() -> None:
    """In a child of a fork, makes torch's pool of threads anew.

    Autograd's threads would all do so when backward starts them for fake tensors, at the same time, by which a
    build with CUDA ends the process (2.11).
    """
    global _is_fork
    if _is_fork:
        torch.set_num_threads(torch.get_num_threads())
        _is_fork = False


def record(function: Callable[..., Any], arguments: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The ATen graph of `function`, in-place ops made functional, on fake tensors: no data is touched."""
    _renew_threads()
    with (
        tracing(None), modes_off(), function_modes_off(), node_notes.preserve_node_meta(), _quiet(),
        _parametrized_anew(),
    ):  # fmt: skip
        # Captured tensors are real beside fake arguments; make_fx allows it by this argument only.
        tracer = make_fx(dispatch_functionalize(function), tracing_mode="fake", _allow_non_fake_inputs=True)
        with _use_lazy_graph_module(True):
            module = tracer(*arguments)
        values = [node.meta.get("val") for node in module.graph.nodes]
        for mode in {value.fake_mode for value in values if isinstance(value, FakeTensor)}:
            _forget_tensors(mode)
        return module


@contextlib.contextmanager
def _parametrized_anew():
    """Inside, `parametrize.cached()` keeps nothing: what is made while tracing are no tensors for others.

    Nothing public ends it for a while (2.13).
    """
    before, parametrize._cache_enabled = parametrize._cache_enabled, 0
    try:
        yield
    finally:
        parametrize._cache_enabled = before


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


def schema_of(function: Any) -> Any:
    """The schema of a function of ATen that a graph calls; public would be a string of it to parse (2.13)."""
    return function._schema


def size_hint(size: Any) -> int:
    """A size; where a compiler has a symbol for it, the size that it saw, which is not public (2.13)."""
    node = getattr(size, "node", None)
    if node is None:
        return size
    return node.hint if node.hint is not None else 2


def nodes_to_come() -> list[Any]:
    """Nodes of autograd's graph that the backward that runs now comes to after this one.

    Nothing public tells an operator which node it runs for, nor what the engine will do (2.13).
    """
    node = torch._C._current_autograd_node()
    following = [] if node is None else [after for after, _ in node.next_functions if after is not None]
    # Nothing comes after a leaf, of which the engine does not tell.
    return [
        after for after in following if after.next_functions and torch._C._will_engine_execute_node(after)
    ]


def is_functional(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FunctionalTensor)


#: What runs in it is seen by no mode of torch functions. Modes have no public switch (2.13).
functions_unseen = torch._C.DisableTorchFunction


def functional(tensor: Tensor) -> Tensor:
    """A tensor of the recording, of which torch itself may make new ones and fill them."""
    return FunctionalTensor.to_functional(tensor)


class _Handlers(threading.local):
    """What sees the autograd.Functions that this thread calls."""

    call: Callable[..., Any] | None = None


_handlers = _Handlers()
_handling = threading.Lock()
_handled = 0
os.register_at_fork(before=_handling.acquire, after_in_parent=_handling.release, after_in_child=_handling.release)
_apply = torch.autograd.Function.__dict__["apply"]


@classmethod
def _handed_on(cls: type, *args: Any, **kwargs: Any) -> Any:
    run = functools.partial(_apply.__func__, cls)
    return run(*args, **kwargs) if _handlers.call is None else _handlers.call(run, args, kwargs)


@contextlib.contextmanager
def autograd_functions_seen_by(call: Callable[..., Any]) -> Iterator[None]:
    """Hands calls of autograd.Functions by this thread to `call(run, args, kwargs)`; no mode sees them (2.13)."""
    global _handled
    before, _handlers.call = _handlers.call, call
    with _handling:
        _handled += 1
        torch.autograd.Function.apply = _handed_on
    try:
        yield
    finally:
        _handlers.call = before
        with _handling:
            _handled -= 1
            if _handled == 0:
                torch.autograd.Function.apply = _apply


def user_backward(grad_fn: Any) -> bool:
    """Is this node of autograd's graph the backward of a user's autograd.Function?"""
    return isinstance(grad_fn, torch.autograd.function.BackwardCFunction)


# ---- Dynamo ------------------------------------------------------------------------------------------------
# Importing Dynamo takes a second, so only what Dynamo itself runs imports it.


def __getattr__(name: str) -> Any:
    """`comptime`: only by it a function sees what a compiler knows of its arguments (2.13)."""
    if name == "comptime":
        from torch._dynamo.comptime import comptime

        return comptime
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def constant_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compiler.assume_constant_result, which would import Dynamo (2.13) when a module is loaded."""
    function._dynamo_marked_constant = True
    return function


def constant_of(variable: Any) -> Any:
    """The number, or other constant, that a variable of comptime stands for.

    A number that changed is a symbol to the compiler; here it is fixed, and guarded, which no public name does
    (2.13).
    """
    tracker = variable._i_will_not_complain_if_bc_breaks_VariableTracker().realize()
    return tracker.evaluate_expr() if hasattr(tracker, "evaluate_expr") else variable.as_python_constant()


def object_of(variable: Any) -> Any:
    """The callable that a variable of comptime stands for; its public interface gives constants (2.13)."""
    tracker = variable._i_will_not_complain_if_bc_breaks_VariableTracker().realize()
    return _object_of(tracker)


def is_made_inside(variable: Any) -> bool:
    """Is this a function that compiled code itself makes?"""
    tracker = variable._i_will_not_complain_if_bc_breaks_VariableTracker().realize()
    return type(tracker).__name__.startswith("Nested")


def _object_of(tracker: Any) -> Any:
    tracker = tracker.realize()
    name = type(tracker).__name__
    if name == "UserMethodVariable":
        return types.MethodType(tracker.fn, _object_of(tracker.obj))
    if name.startswith("FunctoolsPartial"):
        keywords = {key: _object_of(value) for key, value in tracker.keywords.items()}
        arguments = [_object_of(value) for value in tracker.args]
        return functools.partial(_object_of(tracker.func), *arguments, **keywords)
    if hasattr(tracker, "value"):
        return tracker.value
    return tracker.as_python_constant()


def source_of(variable: Any) -> Any:
    """Where compiled code finds what a variable of comptime stands for; None for what it makes itself."""
    return variable._i_will_not_complain_if_bc_breaks_VariableTracker().realize().source


def guard(holds: Callable[[Any], bool], words: str, source: Any = None) -> bool:
    """Lets what Dynamo compiles now be used only where `holds(what is at the source)`.

    False where this torch cannot be told so. Dynamo guards what it sees being read, but a core is traced past
    it. Dynamo's source names guards of other packages as an interface still to be made (2.13).
    """
    try:
        from torch._dynamo.guards import install_guard
        from torch._dynamo.source import GlobalStateSource
    except ImportError:
        return False

    def add(builder: Any, made: Any) -> None:
        manager = builder.guard_manager.root if source is None else builder.get_guard_manager(made)
        try:
            manager.add_lambda_guard(holds, [words], None)
        except TypeError:  # older versions take no stack
            manager.add_lambda_guard(holds, [words])

    install_guard((source or GlobalStateSource()).make_guard(add))
    return True


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
