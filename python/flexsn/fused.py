"""A core on the fused path: traced once for each kind of argument, run as one operator."""

from __future__ import annotations

import collections
import itertools
import logging
import operator
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function

from ._checks import check_dense, check_plain, check_step_shape
from ._connections import Connections, connected
from ._differences import changed_values
from ._interrupts import interrupts_held
from ._library import calls, ops
from ._reach import Reach, describe, follow
from ._recording import in_line_of_user
from ._torch import (
    constant_result, direct, has_saved_tensors_hooks, has_tangent, in_forward_mode, is_batched, is_exporting,
    modes_off, size_hint, transform_around, under_grad_transform,
)  # fmt: skip
from ._trace import Like, Trace, TraceError, run_program, trace
from ._triton import TRITON_OPERATORS, Operator, Operators
from ._values import plain_value

_log = logging.getLogger("flexsn")
_lock = threading.Lock()
_keeping = threading.Lock()


def _renew_locks() -> None:
    """A process forked while another thread traces never sees the lock released."""
    global _lock, _keeping
    _lock, _keeping = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


class _Tracing(threading.local):
    """Whether this thread traces a core."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: Any) -> None:
        self.depth -= 1


_tracing = _Tracing()

#: traces by what they depend on: fifty layers of one neuron have one; a trace lives while a Fused holds it
_traces: weakref.WeakValueDictionary[Hashable, Trace] = weakref.WeakValueDictionary()
#: those that were looked for last, for cores that are made and dropped in a loop
_recent: collections.OrderedDict[int, Trace] = collections.OrderedDict()
_MOST_RECENT = 64
#: traces of one Fused, which may be called with several kinds of arguments in turn
_MOST_OWN = 16
_MOST_SHAPES = 1024
_made = 0

_OPERATORS = Operators(
    inference=ops.inference.default,
    inference_final_state=ops.inference_final_state.default,
    training=ops.training.default,
    training_final_state=ops.training_final_state.default,
)
#: the same for calls that no compiler looks at
_DIRECT = Operators(*map(direct, _OPERATORS))


#: Fused objects by number, which is how code under a compiler names them
_numbers = itertools.count()
numbered: weakref.WeakValueDictionary[int, Fused] = weakref.WeakValueDictionary()


def trace_count() -> int:
    """How many traces this process has made."""
    return _made


def _keep(found: Trace, kept: collections.OrderedDict[int, Trace], most: int) -> None:
    """Keeps what was used last. (The number of a kept object is given to no other.)"""
    with _keeping:
        kept[id(found)] = found
        kept.move_to_end(id(found))
        if len(kept) > most:
            kept.popitem(last=False)


def _step_shape(tensor: Tensor, first: int) -> tuple[int, ...]:
    return tuple(size_hint(size) for size in tensor.shape[first:])


_dtype = operator.attrgetter("dtype")


def _facts(static: Sequence[Any], own: dict[int, int]) -> tuple[Hashable, ...]:
    """What a trace depends on of static inputs. Which of them are one tensor, or one of the core's own, whose
    places are given by id, belongs to it."""
    if not static:
        return ()
    places = dict(own)
    return tuple([
        (value.dtype, value.shape, value.requires_grad, places.setdefault(id(value), len(places)))
        if isinstance(value, Tensor)
        else plain_value(value) or (type(value), value)
        for value in static
    ])  # fmt: skip


class _Held(NamedTuple):
    """A trace, and what must be so for it to hold."""

    dtypes: tuple[torch.dtype, ...]
    state_dtypes: tuple[torch.dtype, ...] | None
    dim: int
    device: torch.device
    static: tuple[Hashable, ...]
    reach: Reach
    trace: Trace
    captured: list[Any]  #: tensors of the core that the kernel needs, None for static ones
    own: dict[int, int]  #: places of all captured tensors that are the core's, by id
    shape: tuple[int, ...] | None  #: of a step, where the core reads it
    call: Any  #: for `calls.again`, which asks what `fits` asks; None where there is more to ask or to do

    def fits(self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, static: Sequence[Any]) -> bool:
        """Are these arguments like those of the last call? The operator checks shapes, and that devices agree."""
        return (
            tuple(map(_dtype, inputs)) == self.dtypes
            and inputs[0].dim() == self.dim
            and inputs[0].device == self.device
            and (None if states is None else tuple(map(_dtype, states))) == self.state_dtypes
            and (self.shape is None or _step_shape(inputs[0], 1) == self.shape)
            and _facts(static, self.own) == self.static
        )

    def with_static(self, static: Sequence[Any]) -> list[Tensor]:
        """The captured tensors, static inputs among them."""
        tensors = [value for value in static if isinstance(value, Tensor)]
        return [
            tensors[place - len(self.own)] if own is None else own
            for own, place in zip(self.captured, self.trace.captured)
        ]


def _source(held: _Held, place: int) -> str:
    """Where a core has a parameter of its kernel from, in words."""
    captured, program = held.trace.captured, held.trace.prepare
    made = place if program is None else program.results[place]
    if made >= len(captured):
        return "a tensor that it computes with"
    own = captured[made] < len(held.own)
    return held.reach.tensors[captured[made]].path if own else "a static input"


class Fused:
    """One core with its counts. It holds nothing of this process that could not be made again."""

    triton = False
    _operators = _OPERATORS
    _direct = _DIRECT

    def __init__(
        self,
        core: Callable[..., Any],
        num_inputs: int | None,
        num_states: int,
        num_outputs: int | None,
        requires_grad: Sequence[bool] | None = None,
        triton: bool = False,
    ) -> None:
        """triton: sequences are run by the kernels of exported Triton modules."""
        self.core = core
        self.num_inputs = num_inputs
        self.num_states = num_states
        self.num_outputs = num_outputs
        self.requires_grad = None if requires_grad is None else tuple(requires_grad)
        self.triton = triton
        self._forget()

    def _forget(self) -> None:
        self._held: _Held | None = None
        self._own: collections.OrderedDict[int, Trace] = collections.OrderedDict()
        self._compiled_for: Reach | None = None
        self._retraced = 0
        if self.triton:
            self._operators = self._direct = TRITON_OPERATORS
        self._number = next(_numbers)
        numbered[self._number] = self

    def __getstate__(self) -> dict[str, Any]:
        kept = ("core", "num_inputs", "num_states", "num_outputs", "requires_grad", "triton")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # ---- traces ----------------------------------------------------------------------------------------

    @property
    def reach(self) -> Reach:
        """What the core could reach when the last trace was looked for."""
        return self._held.reach

    def still_reaches(self, key: Hashable) -> bool:
        """Whether the core reaches what it did when its reach had this key. Compiled code asks each time."""
        reach = self._compiled_for
        if reach is None or not reach.current():
            reach = self._compiled_for = Reach(self.core)
        if reach.key is not key:
            if reach.key != key:
                return False
            reach.key = key  # so that the next look is a short one
        return True

    def trace_of(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, static: Sequence[Any]
    ) -> Trace:
        """The trace for such arguments; it is made where there is none that still holds."""
        return self._hold(inputs, states, static).trace

    def _hold(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, static: Sequence[Any]
    ) -> _Held:
        held = self._held
        try:
            if held is not None and held.fits(inputs, states, static) and held.reach.current():
                return held
        except AttributeError:  # of what is no tensor
            self._check(inputs, states)
            raise
        return self._find(inputs, states, static)

    def _find(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, static: Sequence[Any]
    ) -> _Held:
        global _made
        if torch.jit.is_tracing():
            raise NotImplementedError(
                f"flexsn: torch.jit.trace cannot record {describe(self.core)}; use torch.export, or torch.compile"
            )
        self._check(inputs, states)
        dtypes = tuple([t.dtype for t in inputs])
        state_dtypes = None if states is None else tuple([t.dtype for t in states])
        reach = Reach(self.core)
        own = [place.get() for place in reach.tensors]
        own_places = {id(tensor): place for place, tensor in enumerate(own)}
        facts = _facts(static, own_places)
        captured = own + [value for value in static if isinstance(value, Tensor)]
        check_plain("captured tensor", captured)
        _refuse_tangents(captured)
        _refuse_batches(captured)
        if _any_requires_grad(inputs, states or (), captured):
            _refuse_grad_transform()
        dim, device = inputs[0].dim(), inputs[0].device
        whole = (
            reach.key, facts, self.num_states, self.requires_grad, dtypes, state_dtypes, dim, device
        )  # fmt: skip
        shape = _step_shape(inputs[0], 1)
        found = _traces.get(whole)
        if found is None:
            self._warn_of_retracing(reach)
            # Tracing runs the user's core; one at a time keeps it to what one thread may expect.
            with _lock:
                found = _traces.get(whole)
                if found is None:
                    found = _traces[whole] = self._make(inputs, states, captured, static)
                    found.shapes.add(shape)
                    _made += 1
        _keep(found, _recent, _MOST_RECENT)
        _keep(found, self._own, _MOST_OWN)
        if not found.reads_size_at:
            shape = None
        elif shape not in found.shapes:
            if self._make(inputs, states, captured, static).text != found.text:
                raise TraceError(
                    f"{describe(self.core)} ({found.reads_size_at}) reads the shape of a tensor and computes "
                    f"something else at {list(shape)} than at the first shape it saw; pass such a number in "
                    'from outside, or use backend="torch"'
                )
            if len(found.shapes) > _MOST_SHAPES:
                found.shapes.clear()
            found.shapes.add(shape)
        if self.num_outputs is not None and found.num_outputs != self.num_outputs:
            raise ValueError(
                f"{describe(self.core)} returned {found.num_outputs + found.num_states} values, expected "
                f"{self.num_outputs} outputs and {self.num_states} new states"
            )
        # Tensors of the caller are not kept: they hold their own past.
        kept = [own[i] if i < len(own) else None for i in found.captured]
        # Another thread sees the old one or the new one, never half of each.
        self._held = _Held(
            dtypes, state_dtypes, dim, device, facts, reach, found, kept, own_places, shape,
            self._call_of(found, dtypes, state_dtypes, dim, device) if shape is None and not static else None,
        )  # fmt: skip
        return self._held

    def _call_of(
        self,
        found: Trace,
        dtypes: tuple[torch.dtype, ...],
        state_dtypes: tuple[torch.dtype, ...] | None,
        dim: int,
        device: torch.device,
    ) -> Any:
        """What `calls.again` takes; None where a call is more than the operator, or there is no such way."""
        if calls is None or self.triton or state_dtypes not in (None, found.state_dtypes):
            return None
        trainable = found.trainable and found.reaches is None
        if found.prepare is not None and not trainable:
            return None
        return calls.like(
            found.text, trainable, found.num_outputs, self.num_states, dim, device, dtypes, state_dtypes
        )

    def _make(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor] | None,
        captured: Sequence[Tensor],
        static: Sequence[Any],
    ) -> Trace:
        shape = _step_shape(inputs[0], 1)
        like_inputs = [Like(t.dtype, t.device, _step_shape(t, 1)) for t in inputs]
        if states is None:
            like_states = [Like(inputs[0].dtype, inputs[0].device, shape)] * self.num_states
        else:
            like_states = [Like(t.dtype, t.device, _step_shape(t, 0)) for t in states]

        def make() -> Trace:
            # Tracing is no part of what a mode around the call records.
            with interrupts_held(), modes_off(), _tracing:
                return trace(self.core, like_inputs, like_states, captured, static, self.requires_grad)

        if not (is_exporting() or has_saved_tensors_hooks() or transform_around()):
            return make()
        # torch.export also records grad modes and autocast, a checkpoint's hooks would run the network again
        # for what tracing saves, and torch.func would transform it; all are of their own thread only.
        with ThreadPoolExecutor(max_workers=1) as elsewhere:
            return elsewhere.submit(make).result()

    def _warn_of_retracing(self, reach: Reach) -> None:
        changes = "" if self._held is None else changed_values(self._held.reach, reach)
        if not changes:
            return
        self._retraced += 1
        if self._retraced == 3:
            _log.warning(
                "%s is traced again and again because a value that it reads changes (%s); make it a tensor, "
                "which may change without a new trace",
                describe(self.core),
                changes,
            )

    # ---- calls -----------------------------------------------------------------------------------------

    def _check(self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None) -> None:
        """What tracing must be able to rely on; operators check the rest, and all of it at each call."""
        if not inputs:
            raise ValueError("flexsn: a fused call needs an input, whose first dimension is time")
        if self.num_inputs is not None and len(inputs) != self.num_inputs:
            raise ValueError(f"flexsn: expected {self.num_inputs} inputs, found {len(inputs)}")
        if states is not None and len(states) != self.num_states:
            raise ValueError(
                f"flexsn: expected {self.num_states} states, found {len(states)}; give one for each, or call reset()"
            )
        for place, state in enumerate(states or ()):
            if not isinstance(state, Tensor):
                raise TypeError(
                    f"flexsn: state {place} must be a tensor, found {type(state).__name__}; give it one, or call "
                    "reset()"
                )
        check_dense("input", inputs)
        check_dense("state", states or ())
        device, shape = inputs[0].device, inputs[0].shape
        if len(shape) == 0:
            raise ValueError("flexsn: input 0 must have time as its first dimension, found a scalar")
        if device.type not in ("cpu", "cuda", "meta"):
            raise RuntimeError(
                f"flexsn: there are no kernels for {device.type} tensors; move them to the CPU or to an NVIDIA "
                'GPU, or use backend="torch"'
            )
        for what, tensors in (("input", inputs), ("state", states or ())):
            for place, tensor in enumerate(tensors):
                if tensor.device != device:
                    raise RuntimeError(
                        f"flexsn: {what} {place} is on {tensor.device}, but input 0 is on {device}; move inputs, "
                        "states and the module to one device"
                    )
        for place, tensor in enumerate(inputs):
            if tensor.shape != shape:
                raise ValueError(
                    f"flexsn: input {place} must have shape {list(shape)} like input 0, found "
                    f"{list(tensor.shape)}"
                )
        check_step_shape(states or (), shape[1:])

    def ready(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, static: Sequence[Any] = ()
    ) -> tuple[Trace, Sequence[Tensor], Sequence[Tensor]]:
        """What an operator takes: the neuron for such tensors, states of its types, and its parameters."""
        if is_dynamo_compiling():
            found, captured = self._under_a_compiler(inputs, states, static)
            fitting = False
        else:
            if _tracing.depth:
                raise TraceError(
                    f"a core calls {describe(self.core)}{in_line_of_user()}, a neuron with a kernel of its own; "
                    "call the function of its step there, or run it before or after the core's neuron"
                )
            if has_torch_function(inputs) or (states and has_torch_function(states)):
                for role, tensors in (("input", inputs), ("state", states or ())):
                    check_dense(role, tensors)
                    check_plain(role, tensors)
            held = self._hold(inputs, states, static)
            found = held.trace
            captured = held.captured if not static else held.with_static(static)
            fitting = held.state_dtypes == found.state_dtypes
            if found.prepare is not None and torch.is_grad_enabled() and _any_requires_grad(captured):
                _refuse_grad_transform()  # in which what is prepared would seem to need no gradient
        params = captured if found.prepare is None else _prepared(found, captured)
        if states is None:
            states = []
        elif not fitting:
            states = [s if s.dtype == d else s.to(d) for s, d in zip(states, found.state_dtypes)]
        return found, states, params

    def again(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, sequences: bool = False
    ) -> tuple[list[Tensor], list[Tensor]] | None:
        """The results of a call that is like the one before it; None where it is not. Not for compilers to see."""
        held = self._held
        if held is None or held.call is None:
            return None
        found, guards, params = held.trace, held.reach.guards, held.captured
        if found.prepare is not None:
            if not calls.fits(held.call, guards, inputs, states):  # else they would be prepared twice
                return None
            params = _prepared(found, params)
        try:
            return calls.again(held.call, guards, inputs, states, params, sequences)
        except (RuntimeError, TypeError, ValueError):
            self._say_more(inputs, states, params)
            raise

    def __call__(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor] | None = None,
        static: Sequence[Any] = (),
        sequences: bool = False,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs [T, ...], then last states, or with `sequences` all states [T, ...]. No states: zeros."""
        if not static and not is_dynamo_compiling():
            results = self.again(inputs, states, sequences)
            if results is not None:
                return results
        found, ready_states, params = self.ready(inputs, states, static)
        trained = torch.is_grad_enabled() and _any_requires_grad(inputs, ready_states, params)
        if trained and not found.trainable:
            self._no_gradient(found)
            trained = False
        place = 2 * trained + (not sequences)
        if torch.compiler.is_compiling():  # a compiler is to see the plain calls
            op = self._operators[place]
            results = self._under_compilation(op, found, inputs, ready_states, params, trained)
        else:
            if trained and transform_around() is not None:
                _refuse_grad_transform()
            op = self._direct[place]
            try:
                if trained and found.reaches is not None:
                    results = self._partly_connected(op, found, inputs, ready_states, params)
                else:
                    results = op(found.text, inputs, ready_states, params)
            except (RuntimeError, TypeError, ValueError):
                self._say_more(inputs, states, params)
                raise
        outputs = found.num_outputs
        return results[:outputs], results[outputs : outputs + self.num_states]

    def _say_more(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, params: Sequence[Tensor]
    ) -> None:
        """Raises an error of more words than the operator's, for arguments that are like none of those before."""
        self._check(inputs, states)
        check_dense("parameter", params)
        device, held = inputs[0].device, self._held
        for place, param in enumerate(() if held is None else params):
            if param.device != device:
                raise RuntimeError(
                    f"{describe(self.core)}: {_source(held, place)} is on {param.device}, but input 0 is on "
                    f"{device}; move it: module.to({str(device)!r}) moves a module"
                )

    def _under_compilation(
        self,
        op: Operator,
        found: Trace,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        params: Sequence[Tensor],
        trained: bool,
    ) -> list[Tensor]:
        """What the operator gives, outputs and states, where a compiler or an export looks on."""
        if trained and not self.triton and is_exporting():
            # An exported graph may run where others require gradients; it must save what it was traced with.
            return op(found.text, inputs, states, params, self._wanted(found.text, inputs, states, params))
        results = op(found.text, inputs, states, params)
        if not trained or found.reaches is None:
            return results
        # A compiler makes one function of the whole, which has its own rules for absent gradients.
        return connected(results, found.reaches, self._needed(inputs, states, params))

    def _partly_connected(
        self,
        op: Operator,
        found: Trace,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        params: Sequence[Tensor],
    ) -> list[Tensor]:
        """Results of a training operator where some depend on some arguments only."""
        needed, count = self._needed(inputs, states, params), found.num_inputs
        call = Connections(found.reaches)
        results = op(
            found.text,
            call.entering(inputs, 0),
            call.entering(states, count),
            call.entering(params, count + found.num_states),
        )
        results = connected(results, found.reaches, needed)
        call.watch(results)
        return results

    def _needed(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor]
    ) -> list[bool]:
        """Which arguments require a gradient; states have places also where they are left out."""
        needed = [tensor.requires_grad for tensor in inputs]
        needed += [tensor.requires_grad for tensor in states] or [False] * self.num_states
        return needed + [tensor.requires_grad for tensor in params]

    def _wanted(
        self, text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor]
    ) -> list[int]:
        """Places of arguments whose gradients are wanted."""
        needed = self._needed(inputs, states, params)
        return [place for place in differentiable(text) if needed[place]]

    def _no_gradient(self, found: Trace) -> None:
        if found.untrainable:
            raise RuntimeError(
                f"flexsn: {found.untrainable}; run it under torch.no_grad(), write the core without that "
                'function (a surrogate, an autograd.Function, has a derivative), or use backend="torch" where '
                "no gradient goes through it"
            )

    def _under_a_compiler(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, static: Sequence[Any]
    ) -> tuple[Trace, list[Tensor]]:
        """The trace as a constant of the compiled graph, and captured tensors as inputs of it.

        Dynamo sees each captured tensor and each plain value being read from where it is, so that it compiles
        again when one of them changes.
        """
        from ._compiling import note_argument, traced

        for value in (*inputs, *(states or ()), *static):
            note_argument(self._number, value)
        compiled = traced(self._number, len(inputs), None if states is None else len(states), len(static))
        for route, value in compiled.plain:
            if follow(self.core, route) != value:
                raise AssertionError("a value changed while it was compiled")
        tensors = [follow(self.core, route) for route in compiled.routes]
        tensors += [s for s in static if isinstance(s, Tensor)]
        return compiled.trace, [tensors[i] for i in compiled.trace.captured]


@constant_result
def differentiable(text: str) -> tuple[int, ...]:
    """Places, among inputs, states and parameters, of which a gradient can be had."""
    with modes_off():
        return tuple(ops.differentiable(text))


def _refuse_grad_transform() -> None:
    if under_grad_transform():
        raise NotImplementedError(
            "flexsn: kernels do not run under torch.func.grad (nor vjp, jacrev, ...); use "
            'torch.autograd.grad or .backward(), or backend="torch"'
        )


def _refuse_batches(tensors: Sequence[Tensor]) -> None:
    """As the operators do, before tracing, which would meet the batch as well."""
    if transform_around() is not None and any(map(is_batched, tensors)):
        raise NotImplementedError(
            "flexsn: kernels do not run under vmap over a parameter; a step works on elements one by one, so "
            'give the parameter the dimensions of the step instead, or use backend="torch"'
        )


def _refuse_tangents(tensors: Sequence[Tensor]) -> None:
    """As the operators do, for what they do not see."""
    if in_forward_mode() and any(has_tangent(tensor) for tensor in tensors):
        raise NotImplementedError(
            "flexsn: derivatives in forward mode (jvp, dual tensors) are not there; use backward, or "
            'backend="torch" where they are needed'
        )


def _any_requires_grad(*groups: Sequence[Tensor]) -> bool:
    for group in groups:
        for tensor in group:
            if tensor.requires_grad:
                return True
    return False


def _prepared(found: Trace, captured: Sequence[Tensor]) -> list[Tensor]:
    """The parameters of the kernel: what depends on captured tensors alone is torch code outside of it."""
    params = run_program(found.prepare, captured)
    _refuse_tangents(params)  # which those lose that are detached
    for place in found.detached:
        params[place] = params[place].detach()
    return params
