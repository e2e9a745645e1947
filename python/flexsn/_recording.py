"""Records one step and its gradients as a graph of ATen functions, each with the line of the user's code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import _torch
from ._torch import pytree

_TORCH = os.path.dirname(torch.__file__) + os.sep
_METHODS = {os.path.join(_TORCH, name) for name in ("_tensor.py", "overrides.py")}
_EDGES = os.path.join(_TORCH, "autograd", "graph.py")
_MODULES = os.path.join(_TORCH, "nn", "modules") + os.sep
_CONTAINERS = ("module.py", "container.py")
_OWN = os.path.dirname(__file__) + os.sep


READS_A_VALUE = (
    "reads the value of a tensor (if, while, float(), .item()); a step is traced once for all data: choose "
    'with torch.where, or use backend="torch"'
)


SHAPE_OF_DATA = (
    "gives a shape that depends on the data, but a step works on each element alone; choose with torch.where, "
    'or use backend="torch"'
)
_WAY_OUT = 'use backend="torch"'


class TraceError(ValueError):
    """The core cannot be fused; the text says why, where, and what to do, at the least what runs any core."""

    def __init__(self, text: str) -> None:
        super().__init__(text if _WAY_OUT in text else f"{text}; otherwise {_WAY_OUT}")


class OtherDevice(TraceError):
    """A core works with a tensor that is not where its inputs are. Whoever knows its tensors says which one."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


class NoDerivative(ValueError):
    """A function of the core has no derivative in torch, so the core can be run but not trained."""


@dataclass(frozen=True)
class Like:
    """What is known of an argument before it is there: type, device, shape of one step."""

    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]


#: a tensor that may be a parameter: its node, that of its gradient, and the tensor
Candidate = tuple[torch.fx.Node, torch.fx.Node | None, torch.Tensor]


@dataclass
class Recorded:
    """One recording: the graph, and which nodes of it are what."""

    module: torch.fx.GraphModule
    returned: int
    results: list[torch.fx.Node]
    tangents: dict[int, torch.fx.Node]
    primal_grads: list[torch.fx.Node | None]
    candidates: list[Candidate]
    #: where the core reads the size of a tensor first; None where it does not
    reads_size_at: str | None
    #: for each result the arguments, then candidates (numbered on), that its gradient goes to in torch
    reaches: list[frozenset[int]]


def user_frame(frame: Any) -> str:
    """The innermost line of the user's code, "file:line"; "" for what autograd does by itself."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_OWN):
            return ""
        if not name.startswith((_TORCH, "<frozen")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def in_line_of_user() -> str:
    """ " (file:line)" of the user's code that called flexsn."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OWN, _TORCH)):
        frame = frame.f_back
    return "" if frame is None else f" ({frame.f_code.co_filename}:{frame.f_lineno})"


def module_frame(frame: Any) -> str:
    """The innermost line of torch's modules, "torch/nn/modules/...:line", for a core that is one of them."""
    while frame is not None and not frame.f_code.co_filename.startswith(_OWN):
        name = frame.f_code.co_filename
        if name.startswith(_MODULES) and not name.endswith(_CONTAINERS):
            return f"torch{os.sep}{name.removeprefix(_TORCH)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _asked_by_user(frame: Any) -> bool:
    """Does the user's code itself call this function of a tensor, not one of torch's around it?"""
    while frame is not None and frame.f_code.co_filename in _METHODS:
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith((_TORCH, _OWN))


#: functions that change their first argument and are spelled without a trailing underscore
_CHANGING = {"__setitem__", "__delitem__"} | {
    f"__i{op}__" for op in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()
}
_HARMLESS = {"requires_grad_", "share_memory_"}
_SIZES = {"shape", "size", "numel", "nelement", "__len__", "nbytes", "__iter__", "sym_size", "sym_numel"} | {
    name for name in dir(torch.Tensor) if name.endswith(("split", "chunk", "unbind"))
}
#: what a kernel cannot know of tensors: how they came to be and how they lie in memory
_OF_THE_CALL = {
    "requires_grad", "is_leaf", "grad_fn", "grad", "retains_grad", "is_inference", "is_contiguous", "stride",
    "storage_offset", "storage", "untyped_storage", "data_ptr", "is_set_to", "is_shared", "is_pinned",
    "dim_order", "is_neg", "_version", "_base", "_is_view",
}  # fmt: skip
#: functions that read nothing but the shape or type of other arguments than the first
_LIKE_ANOTHER = {"expand_as", "view_as", "reshape_as", "type_as", "to"}
_VALUES = {
    "item", "tolist", "is_nonzero", "equal", "allclose", "__bool__", "__float__", "__int__", "__index__", "__complex__",
    "_assert_async",
}  # fmt: skip
_PAST_TORCH = {"numpy", "__array__", "__dlpack__"}
_HOOKS = {"register_hook", "register_post_accumulate_grad_hook", "get_gradient_edge"}
#: functions that copy the numbers of tensors in a list, which no recording shows
_FROM_LISTS = {"tensor", "as_tensor", "asarray", "new_tensor", "new"}


def _changes_its_argument(name: str, keywords: dict[str, Any]) -> bool:
    if keywords.get("inplace") is True or name in _CHANGING:
        return True
    return name.endswith("_") and not name.endswith("__") and name not in _HARMLESS


#: stands in place of a line at a node that only cuts a parameter off
CUT = "flexsn: cut"


_CHANGES_ANOTHER = (
    "changes a tensor that is neither an input nor a state nor made from one; a step may change nothing but "
    "its states: return it as one, or make a new tensor (y = y * 2 instead of y *= 2)"
)
_READS_NUMBERS = "reads the number that a tensor holds now, which a kernel would keep"


def _in_lists(args: Sequence[Any]) -> list[Any]:
    """What stands in lists and tuples among arguments, at any depth."""
    return [leaf for value in args if isinstance(value, (list, tuple)) for leaf in pytree.tree_leaves(value)]


class _Watch(TorchFunctionMode):
    """Sees every torch function of a core: notes its line, and finds the tensors that are parameters.

    Live is what depends on an input or a state. Where another tensor with a gradient meets a live one, it
    enters the step: there a leaf stands in for it, whose gradient is that of this entry alone and not also
    that of what is made from the tensor elsewhere.
    """

    def __init__(self, core_name: str, plain: dict[int, torch.Tensor]) -> None:
        """`plain`: what stands for tensors of other classes, by their ids."""
        super().__init__()
        self.core_name = core_name
        self.plain = plain
        self.seen: dict[int, torch.Tensor] = {}
        self.live: dict[int, torch.Tensor] = {}
        self.leaves: dict[int, torch.Tensor] = {}
        self.entries: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.reads_size_at: str | None = None
        #: of inputs and states
        self.device_type = ""
        #: the line of the function that runs
        self.place = ""
        #: what was refused first, which a core may catch
        self.refused: TraceError | None = None
        #: where a function was called first that has no derivative
        self.no_derivative_at = ""
        #: whether the step itself is through, and gradients are asked for
        self.backward = False

    def note(self, value: Any) -> None:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            self.seen[id(value)] = value

    def start(self, primals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of the arguments: the core may change them, which autograd would not allow for leaves."""
        self.device_type = primals[0].device.type
        copies = [primal.clone() for primal in primals]
        self.live.update((id(copy), copy) for copy in copies)
        return copies

    def as_plain(self, value: Any) -> Any:
        return self.plain.get(id(value), value)

    def leaf_for(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.requires_grad or id(value) in self.live:
            return value
        if id(value) not in self.leaves:
            with _torch.functions_unseen(), _torch.written_at(CUT):
                leaf = value.detach()
                # What can be changed in place would change the leaf with it.
                leaf = (leaf.clone() if _torch.is_functional(leaf) else _torch.functional(leaf)).requires_grad_()
            self.leaves[id(value)] = leaf
            self.entries.append((value, leaf))
        return self.leaves[id(value)]

    def changed(self, first: tuple[Any, ...]) -> tuple[Any, ...]:
        """A tensor that is changed stays the object that it is; its history becomes that of the leaf."""
        for value in first:
            leaf = self.leaf_for(value)
            if leaf is not value:
                with _torch.written_at(CUT):
                    value.copy_(leaf)
        return first

    def function(self, run: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """A call of an autograd.Function, inside of which gradients are its own: parameters enter it as a whole."""
        if self.plain:
            args, keywords = pytree.tree_map(self.as_plain, (args, keywords))
        live = any(id(value) in self.live for value in (*args, *keywords.values()))
        if live and torch.is_grad_enabled():
            args = tuple(self.leaf_for(value) for value in args)
        result = run(*args, **keywords)
        if live:
            for value in pytree.tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    self.live[id(value)] = value
        return result

    def refuse(self, place: str, text: str, kind: type[TraceError] = TraceError) -> None:
        where = f" ({place})" if place else ""
        error = kind(f"{self.core_name}{where}: {text}")
        self.refused = self.refused or error
        raise error

    def raise_refused(self) -> None:
        """Raises what was refused, though the core has caught it."""
        if self.refused is not None:
            raise self.refused

    def check(self, name: str, place: str, args: Sequence[Any], keywords: dict[str, Any]) -> None:
        """Refuses what a recording could not show."""
        if name == "data":
            self.refuse(place, ".data goes past autograd; write .detach() instead")
        if name in _PAST_TORCH:
            self.refuse(
                place,
                "a tensor leaves torch (NumPy, another library), where a step cannot be "
                'followed; write it with torch functions, or use backend="torch"',
            )
        if name in _VALUES:
            self.refuse(place, READS_A_VALUE)
        if name in _HOOKS and id(args[0]) not in self.live:
            self.refuse(
                place,
                f"{name} of a parameter, or of what is made from parameters alone, whose gradient is that of a "
                "whole sequence and passes no step; put the hook on a parameter outside the core",
            )
        listed = _in_lists((*args, *keywords.values())) if name in _FROM_LISTS else ()
        if any(isinstance(value, torch.Tensor) for value in listed):
            self.refuse(place, f"{name} {_READS_NUMBERS}; write torch.stack, or use tensors as they are")
        if name in ("__imul__", "mul_", "multiply_"):  # torch's own check is left out where it runs without data
            given = torch.result_type(args[0], args[1] if len(args) > 1 else keywords["other"])
            if not torch.can_cast(given, args[0].dtype):
                was, now = (str(dtype).removeprefix("torch.") for dtype in (args[0].dtype, given))
                self.refuse(place, f"{name} gives {now}, which a tensor of {was} cannot hold; make a new tensor")
        changed = [keywords["out"]] if isinstance(keywords.get("out"), torch.Tensor) else []
        if args and _changes_its_argument(name, keywords):
            changed.append(args[0])
        leaves = {id(leaf) for _, leaf in self.entries}  # inside an autograd.Function they stand for parameters
        for tensor in changed:
            if isinstance(tensor, torch.Tensor) and (not _torch.is_functional(tensor) or id(tensor) in leaves):
                self.refuse(place, f"{name} {_CHANGES_ANOTHER}")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        keywords = kwargs or {}
        if self.plain:
            args, keywords = pytree.tree_map(self.as_plain, (args, keywords))
        place = user_frame(sys._getframe(1))
        name = getattr(func, "__name__", "").partition(".")[0]  # without the overload of torch.ops
        if name == "__get__":  # of a property
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        elif (assigned := _torch.assigned_by(func)) is not None:
            what = f"assigns .{assigned} of a tensor"
            if assigned == "_backward_hooks":  # which torch does inside of these
                what = "changes a tensor by set_, or in an autograd.Function that says mark_dirty"
            self.refuse(
                place,
                f"{what}; a step may change nothing but its states: make a new tensor",
            )
        if name == "grad_fn" and sys._getframe(1).f_code.co_filename == _EDGES:
            name = "get_gradient_edge"  # whose node takes hooks as well
        if place:
            self.check(name, place, args, keywords)
            known = name == "requires_grad" and id(args[0]) not in self.live  # guarded with the trace
            if name in _OF_THE_CALL and not known and _asked_by_user(sys._getframe(1)):
                self.refuse(
                    place,
                    f"reads .{name} of a tensor, which is not the same in every call, but a step is traced "
                    'once for all of them; choose outside the core, or use backend="torch"',
                )
            if name in _SIZES and self.reads_size_at is None:
                self.reads_size_at = place
        given = pytree.tree_leaves((args, keywords))
        if args and _changes_its_argument(name, keywords):
            self.leaves.pop(id(args[0]), None)
        live = any(id(value) in self.live for value in (args[:1] if name in _LIKE_ANOTHER else given))
        if live and torch.is_grad_enabled():
            first = self.changed(args[:1]) if _changes_its_argument(name, keywords) else args[:0]
            rest, keywords = pytree.tree_map(self.leaf_for, (args[len(first) :], keywords))
            args = (*first, *rest)
        with _torch.written_at(place or module_frame(sys._getframe(1))):
            self.place = place
            try:
                result = func(*args, **keywords)
            except Exception as error:  # traced functions fail where others do not, and at sizes of their own
                self.refused = self.refused or TraceError(
                    f"{self.core_name}{f' ({place})' if place else ''} catches an error of torch.{name} "
                    f"({type(error).__name__}), which depends on data or shapes; look at them outside the core"
                )
                raise
        for value in given:
            self.note(value)
        for value in pytree.tree_leaves(result):
            if not isinstance(value, torch.Tensor):
                continue
            self.note(value)
            if not all(isinstance(size, int) for size in value.shape):
                self.refuse(place, f"torch.{name} {SHAPE_OF_DATA}")
            if not self.no_derivative_at and type(value.grad_fn).__name__ == "NotImplemented":
                self.no_derivative_at = place
            if live:
                if value.device.type != self.device_type and self.backward:
                    # What carries a gradient is elsewhere: a single number, with which torch itself goes on.
                    self.refuse("", _on_two_devices(self.device_type, value.device), OtherDevice)
                if value.device.type != self.device_type:
                    self.refuse(
                        place, f"torch.{name} gives a tensor on {value.device}; a step stays where its inputs are"
                    )
                self.live[id(value)] = value
                self.leaves.pop(id(value), None)
        return result


class _Numbers(_torch.TorchDispatchMode):
    """Sees what torch does by itself with tensors that are no part of the recording, and refuses it."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if _torch.reads_a_number(func):
            self.watch.refuse(
                self.watch.place,
                f"a function that takes a number {_READS_NUMBERS}; use one that takes tensors, such as "
                "torch.where, or make it a number of Python",
            )
        for tensor in _torch.written_by(func, args, kwargs or {}):
            if not _torch.is_functional(tensor):
                name = func._schema.name.removeprefix("aten::")
                self.watch.refuse(self.watch.place, f"{name} {_CHANGES_ANOTHER}")
        return func(*args, **(kwargs or {}))


def _as_tuple(returned: Any, core_name: str) -> tuple[torch.Tensor, ...]:
    values = (returned,) if isinstance(returned, torch.Tensor) else returned
    if not isinstance(values, (tuple, list)):
        raise TypeError(
            f"{core_name} must return tensors (outputs, then new states), found {type(returned).__name__}"
        )
    for place, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{core_name} must return tensors (outputs, then new states), but value {place} is "
                f"{type(value).__name__}"
            )
    return tuple(values)


def _reaches(
    results: Sequence[torch.Tensor], primals: Sequence[torch.Tensor], candidates: Sequence[torch.Tensor]
) -> list[frozenset[int]]:
    """Which of the arguments and candidates autograd comes to from each result."""
    ends: dict[Any, set[int]] = {}
    for place, tensor in enumerate((*primals, *candidates)):
        # A view that is made without gradients of what has one has neither a function nor a place for it.
        if tensor.requires_grad and (tensor.grad_fn is not None or not _torch.is_view(tensor)):
            ends.setdefault(torch.autograd.graph.get_gradient_edge(tensor).node, set()).add(place)
    found = []
    for result in results:
        waiting = [torch.autograd.graph.get_gradient_edge(result).node] if result.requires_grad else []
        known = set(waiting)
        while waiting:
            for node, _ in waiting.pop().next_functions:
                if node is not None and node not in known:
                    known.add(node)
                    waiting.append(node)
        found.append(frozenset(place for node in known for place in ends.get(node, ())))
    return found


def record(
    core: Callable,
    likes: Sequence[Like],
    captured: Sequence[torch.Tensor],
    static: Sequence[Any],
    carry: Sequence[bool] | None,
    name: str,
    plain: dict[int, torch.Tensor] | None = None,
) -> Recorded:
    """`carry` says which arguments carry a gradient; None: there are to be no gradients at all."""
    counts: dict[str, Any] = {}
    watch = _Watch(name, plain or {})

    def joint(*primals: torch.Tensor) -> list[torch.Tensor]:
        with watch, _Numbers(watch), _torch.autograd_functions_seen_by(watch.function):
            for tensor in captured:
                watch.note(tensor)
            returned = core(*watch.start(primals), *map(watch.as_plain, static))
            watch.raise_refused()
            returned = tuple(watch.leaf_for(watch.as_plain(value)) for value in _as_tuple(returned, name))
            carrying = [i for i, value in enumerate(returned) if value.requires_grad]
            tangents = [torch.empty_like(returned[i]) for i in carrying]
            wanted = [p for p in primals if p.requires_grad]
            known = watch.live.keys() | {id(value) for value in (*primals, *returned)}
            known |= {id(leaf) for _, leaf in watch.entries}
            seen = [tensor for key, tensor in watch.seen.items() if key not in known]
            sources = seen + [source for source, _ in watch.entries]
            candidates = seen + [leaf for _, leaf in watch.entries]
            grads: Sequence[torch.Tensor | None] = [None] * (len(wanted) + len(candidates))
            if carrying and (wanted or candidates):
                watch.backward = True
                grads = _torch.gradients([returned[i] for i in carrying], wanted + candidates, tangents)
                watch.raise_refused()
        counts.update(
            returned=len(returned),
            carrying=carrying,
            wanted=[p.requires_grad for p in primals],
            grads=[g is not None for g in grads],
            sources=sources,
            reaches=_reaches(returned, primals, candidates),
            reads_size_at=watch.reads_size_at,
        )
        return [*returned, *tangents, *(g for g in grads if g is not None), *candidates]

    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(carry is not None),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        torch.autograd.set_detect_anomaly(False),  # which would look for NaN where there is no data
    ):
        primals = [
            torch.empty(
                like.shape,
                dtype=like.dtype,
                device=like.device,
                requires_grad=like.dtype.is_floating_point and carries,
            )
            for like, carries in zip(likes, carry or [False] * len(likes))
        ]
        try:
            module = _torch.record(joint, primals)
        except Exception as error:
            _explain_failure(error, name, len(likes) + len(static), watch)
            raise
    outputs = list(pytree.tree_leaves(next(iter(reversed(module.graph.nodes))).args[0]))
    place = 0

    def take(count: int) -> list[torch.fx.Node]:
        nonlocal place
        place += count
        return outputs[place - count : place]

    results = take(counts["returned"])
    tangents = dict(zip(counts["carrying"], take(len(counts["carrying"]))))
    present = iter(take(sum(counts["grads"])))
    grads = [next(present) if there else None for there in counts["grads"]]
    wanted = sum(counts["wanted"])
    primal_grads = iter(grads[:wanted])
    candidates = list(zip(take(len(counts["sources"])), grads[wanted:], counts["sources"]))
    return Recorded(
        module,
        counts["returned"],
        results,
        tangents,
        [next(primal_grads) if carries else None for carries in counts["wanted"]],
        candidates,
        counts["reads_size_at"],
        counts["reaches"],
    )


#: how torch says that tensors of two devices meet
_DEVICES = re.compile(
    r"two (?:different )?devices,? ([\w:]+)(?: and|,) ([\w:]+)"
    r"|is on ([\w:]+), different from other tensors on ([\w:]+)"
    r"|Tensor on device ([\w:]+) is not on the expected device ([\w:]+)!"
)


def _on_two_devices(one: Any, other: Any) -> str:
    return f"it works with tensors of two devices, {one} and {other}"


def _explain_failure(error: Exception, name: str, arguments: int, watch: _Watch) -> None:
    """Says where torch failed and what to do. What the core itself raises stays as it is."""
    if isinstance(error, SystemError):  # which hides what C code was told
        watch.raise_refused()
    trace, place, inside = error.__traceback__, "", False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        inside = file.startswith((_TORCH, _OWN))
        if trace.tb_frame.f_code.co_name == "joint" and file.startswith(_OWN):
            place = ""  # what called flexsn is not the core
        elif not inside:
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    if not place and isinstance(error, TypeError) and "positional argument" in str(error):
        raise TypeError(
            f"{name} is called with {arguments} arguments, one for each input, state and static input: "
            f"{error}; change the core, or what it is called with"
        ) from error
    if watch.backward and not inside and place:
        what = f"{type(error).__name__}: {error}"
        raise NoDerivative(
            f"{name} ({place}): the backward of an autograd.Function, or a hook, raises {what}"
        ) from error
    if isinstance(error, TraceError) or not inside or not place and isinstance(error, TypeError):
        return
    if isinstance(error, SystemError) and error.__cause__ is not None:  # which hides what C code raised
        error = error.__cause__
    text = str(error)
    where = f" ({place})" if place else ""
    if (
        "_local_scalar_dense" in text
        or "data-dependent" in text.lower()
        or "item()" in text
        or "DataDependent" in type(error).__name__
    ):
        raise TraceError(f"{name}{where}: {READS_A_VALUE}") from error
    if "derivative for" in text and "is not implemented" in text:
        where = f" ({watch.no_derivative_at})" if watch.no_derivative_at else ""
        raise NoDerivative(f"{name}{where}: {text.splitlines()[0]}") from error
    if sparse := re.search(r"Could not run '(\S+)' with arguments from the 'Sparse", text):
        raise TraceError(
            f"{name}{where}: {sparse[1]} takes a sparse tensor that the core captures; make it a plain one with "
            ".to_dense()"
        ) from error
    if several := _DEVICES.search(text):
        devices = [each for each in several.groups() if each is not None]
        raise OtherDevice(f"{name}{where}: {_on_two_devices(*devices)}") from error
    raise TraceError(
        f"{name}{where} cannot be traced: {text.splitlines()[0] if text else type(error).__name__}; "
        f'mend it, or use backend="torch"'
    ) from error
