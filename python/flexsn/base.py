"""What modules with memories and step modes have in common, and how a network's memories are reached."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from ._torch import backward_number, is_view

States = tuple[Any, ...]
#: `depth` is above 0 on a thread where flexsn.checkpoint runs a network again
running_again = threading.local()


class StepModule:
    """A module that runs one time step ("s") or a whole sequence ("m") a call."""

    def supported_step_mode(self) -> tuple[str, ...]:
        """The step modes this module can be set to."""
        return ("s", "m")

    @property
    def step_mode(self) -> str:
        """ "s": an input is one time step; "m": an input is a sequence with time as dimension 0."""
        return self._step_mode

    @step_mode.setter
    def step_mode(self, value: str) -> None:
        supported = self.supported_step_mode()
        if value not in supported:
            raise ValueError(f"{type(self).__name__}: step_mode must be one of {supported}, found {value!r}")
        self._step_mode = value


class MemoryModule(StepModule, nn.Module):
    """A module with named memories: values that live from call to call until `reset`.

    A memory is anything; tensors, and tensors in lists, tuples and dicts, move with `.to()` and are cut from
    their graph by `detach`. Read and write a memory as an attribute.
    """

    # Names of memories that show what the last run did; explicit states (functional calls) leave them out.
    memory_caches: tuple[str, ...] = ()
    # Whether a call has gone on from states.
    _went_on = False

    def __init__(self) -> None:
        _join_spikingjelly()
        nn.Module.__init__(self)
        self._memories: dict[str, Any] = {}
        self._memories_rv: dict[str, Any] = {}
        self._step_mode = "s"
        self._backend = "torch"

    # ---- running ------------------------------------------------------------------------------------------

    @property
    def supported_backends(self) -> tuple[str, ...]:
        """The backends this module can be set to as it stands."""
        return ("torch",)

    @property
    def backend(self) -> str:
        """The label of what runs a call."""
        return self._backend

    @backend.setter
    def backend(self, value: str) -> None:
        if value not in self.supported_backends:
            raise NotImplementedError(
                f"{type(self).__name__}: backend must be one of {self.supported_backends}, found {value!r}"
            )
        self._backend = value

    def single_step_forward(self, *args: Any, **kwargs: Any) -> Any:
        """One time step."""
        raise NotImplementedError(f"{type(self).__name__} does not define single_step_forward")

    def multi_step_forward(self, x_seq: Tensor, *args: Any, **kwargs: Any) -> Any:
        """A sequence: single steps of `x_seq`, stacked."""
        return torch.stack([self.single_step_forward(x, *args, **kwargs) for x in x_seq.unbind(0)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """One step or a sequence, as the step mode says."""
        if self._step_mode == "s":
            return self.single_step_forward(*args, **kwargs)
        return self.multi_step_forward(*args, **kwargs)

    def functional_forward(
        self, inputs: tuple[Any, ...], states: States, **kwargs: Any
    ) -> tuple[tuple[Any, ...], States]:
        """A call with explicit states, which leaves the module's own memories as they were."""
        return _run_with_states(self, self.forward, inputs, states, kwargs)

    def extra_repr(self) -> str:
        return f"step_mode={self._step_mode}, backend={self._backend}"

    # ---- memories -----------------------------------------------------------------------------------------

    def register_memory(self, name: str, value: Any) -> None:
        """Adds a memory; a copy of `value` is what `reset` brings back."""
        if hasattr(self, name):
            raise AssertionError(
                f"{type(self).__name__}: cannot register the memory {name!r}, an attribute has that name"
            )
        self._memories[name] = value
        self.set_reset_value(name, value)

    def _check_running_again(self, goes_on: bool) -> None:
        """For each call, which goes on from states or not: in backward it must start as the first run did."""
        if backward_number() == -1:
            if goes_on and not self._went_on:
                self.__dict__["_went_on"] = True
        elif (goes_on or self._went_on) and not getattr(running_again, "depth", 0):
            wrong = (
                "would go on from the states that the first run left"
                if goes_on
                else "starts anew, where the first run may have gone on from states, as calls before have"
            )
            raise RuntimeError(
                f"{type(self).__name__}: this call is part of a backward, as torch.utils.checkpoint makes them, "
                f"and {wrong}, so that gradients were wrong; use flexsn.checkpoint(module, *inputs), which runs "
                "it again from where it had started"
            )

    def reset(self) -> None:
        """Brings all memories back to their reset values."""
        memories, values = self._memories, self._memories_rv
        for name, value in values.items():
            memories[name] = None if value is None else _reset_to(memories[name], value)

    def set_reset_value(self, name: str, value: Any) -> None:
        """Sets what `reset` brings back for a memory."""
        self._memories_rv[name] = copy.deepcopy(_without_history(value))

    def get_reset_value(self, name: str) -> Any:
        """What `reset` brings back for a memory."""
        if name not in self._memories:
            raise KeyError(f"{type(self).__name__} has no memory {name!r}; it has {list(self._memories)}")
        return self._memories_rv[name]

    def memories(self) -> Iterator[Any]:
        """The values of this module's own memories."""
        yield from self._memories.values()

    def named_memories(self) -> Iterator[tuple[str, Any]]:
        """Names and values of this module's own memories."""
        yield from self._memories.items()

    def detach(self) -> None:
        """Cuts the memories from the graph that made them; those made in inference mode become ordinary tensors."""
        for name, value in self._memories.items():
            self._memories[name] = map_tensors(_detached, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MemoryModule:
        for values in (self._memories, self._memories_rv):
            for name, value in values.items():
                values[name] = map_tensors(fn, value)
        return nn.Module._apply(self, fn, recurse)

    def _replicate_for_data_parallel(self) -> MemoryModule:
        replica = nn.Module._replicate_for_data_parallel(self)
        replica.__dict__["_memories"] = self._memories.copy()
        return replica

    # ---- memories as attributes; copies -----------------------------------------------------------------
    # The base class is named, not super(): see _join_spikingjelly.

    def __getattr__(self, name: str) -> Any:
        memories = self.__dict__.get("_memories")
        if memories is not None and name in memories:
            return memories[name]
        return nn.Module.__getattr__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        memories = self.__dict__.get("_memories")
        if memories is not None and name in memories:
            memories[name] = value
        else:
            nn.Module.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._memories:
            del self._memories[name], self._memories_rv[name]
        else:
            nn.Module.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*nn.Module.__dir__(self), *self._memories})

    def __getstate__(self) -> dict[str, Any]:
        # A copy, in this process or another, has the values and no part of the graph that made them.
        return {**self.__dict__, "_memories": _without_history(self._memories)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _join_spikingjelly()
        nn.Module.__setstate__(self, state)


def _join_spikingjelly() -> None:
    """Makes MemoryModule a subclass of SpikingJelly's, once that package is loaded.

    Its functions ask `isinstance(module, MemoryModule)`, to warn or to find memories, and its class is no ABC
    that one could register with. Everything here that theirs defines too is defined in our own class, so the
    base class adds a name and no behaviour.
    """
    theirs = getattr(sys.modules.get("spikingjelly.activation_based.base"), "MemoryModule", None)
    if theirs is None or issubclass(MemoryModule, theirs):
        return
    try:
        MemoryModule.__bases__ = (StepModule, theirs)
    except TypeError:
        # A class that derives from theirs first and ours second leaves no order for this one.
        return


def _detached(tensor: Tensor) -> Tensor:
    # Compilers cannot ask, and what they save for backward must not be of inference mode.
    if not is_dynamo_compiling() and tensor.is_inference() and not torch.is_inference_mode_enabled():
        return tensor.clone()
    return tensor.detach()


def map_tensors(fn: Callable[[Tensor], Tensor], value: Any) -> Any:
    """`value` with `fn` applied to its tensors, also those in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, dict):
        return {key: map_tensors(fn, item) for key, item in value.items()}
    if isinstance(value, list):
        return [map_tensors(fn, item) for item in value]
    if isinstance(value, tuple):
        items = [map_tensors(fn, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _without_history(value: Any) -> Any:
    """`value` with tensors that have a graph replaced by such that have none; torch copies no others."""
    return map_tensors(lambda tensor: tensor if tensor.is_leaf else tensor.detach(), value)


def _reset_to(current: Any, reset_value: Any) -> Any:
    """The value of a memory after a reset: written in place where both are tensors that allow it."""
    if reset_value is None or isinstance(reset_value, (int, float)):
        return reset_value  # torch 2.11 compiles no copy.deepcopy()
    if not isinstance(current, Tensor) or not isinstance(reset_value, Tensor):
        return copy.deepcopy(reset_value)
    alike = (
        current.shape == reset_value.shape
        and current.dtype == reset_value.dtype
        and current.device == reset_value.device
    )
    if not alike or is_view(current) or current.is_inference() or reset_value.is_inference():
        return reset_value.detach().clone()
    return current.detach_().copy_(reset_value.detach())


# ---- memories of a whole network ---------------------------------------------------------------------------


def has_memories(module: nn.Module) -> bool:
    """Whether a module keeps memories in the way of MemoryModule, ours or another library's."""
    return "_memories" in vars(module) and hasattr(type(module), "named_memories")


def named_memories(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names ("layer.0.states") and values of all memories in a network."""
    for path, owner in module.named_modules(prefix=prefix):
        if has_memories(owner):
            for name, value in owner.named_memories():
                yield f"{path}.{name}" if path else name, value


def memories(module: nn.Module) -> Iterator[Any]:
    """The values of all memories in a network."""
    for _, value in named_memories(module):
        yield value


def _explicit_states(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Owners and names of the memories that make up a network's state."""
    return [
        (owner, name)
        for owner in module.modules()
        if has_memories(owner)
        for name in owner._memories
        if name not in getattr(owner, "memory_caches", ())
    ]


def extract_memories(module: nn.Module) -> list[Any]:
    """The state of a network: the values of its memories, without what only shows the last run."""
    return [owner._memories[name] for owner, name in _explicit_states(module)]


def load_memories(module: nn.Module, memory_list: Sequence[Any]) -> None:
    """Sets the state of a network to what `extract_memories` gave."""
    places = _explicit_states(module)
    if not isinstance(memory_list, Sequence):
        raise TypeError(
            f"{type(module).__name__} has {len(places)} memories to load and takes a list of as many values, "
            f"found {type(memory_list).__name__}; extract_memories gives one"
        )
    if len(places) != len(memory_list):
        raise ValueError(
            f"{type(module).__name__} has {len(places)} memories to load, found {len(memory_list)} values"
        )
    for (owner, name), value in zip(places, memory_list):
        setattr(owner, name, value)


def to_functional_forward(
    module: nn.Module, fn: Callable[..., Any] | None = None
) -> Callable[..., tuple[tuple[Any, ...], States]]:
    """The network as a function `(inputs, states, **kwargs) -> (outputs, new_states)`.

    Inputs, states and outputs are tuples, states in the order of `extract_memories`; the memories of the
    network are the same after a call as before it. `fn` stands for `module.forward` where given.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"to_functional_forward: expected a module, found {type(module).__name__}")
    places = _explicit_states(module)
    alone = all(owner is module for owner, _ in places)
    if fn is None and alone and isinstance(module, MemoryModule):
        return module.functional_forward
    forward = module.forward if fn is None else fn

    def functional_forward(
        inputs: tuple[Any, ...], states: States, **kwargs: Any
    ) -> tuple[tuple[Any, ...], States]:
        return _run_with_states(module, forward, inputs, states, kwargs)

    return functional_forward


def _run_with_states(
    module: nn.Module,
    forward: Callable[..., Any],
    inputs: tuple[Any, ...],
    states: States,
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], States]:
    """Runs with other states than the network's own, which are put back afterwards."""
    owners = [owner for owner in module.modules() if has_memories(owner)]
    own = [dict(owner._memories) for owner in owners]
    load_memories(module, states)
    try:
        outputs = forward(*inputs, **kwargs)
        new_states = tuple(extract_memories(module))
    finally:
        for owner, values in zip(owners, own):
            for name, value in values.items():
                setattr(owner, name, value)
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,), new_states


_join_spikingjelly()
