"""What the neurons of the library have in common: options, memories, and how a call runs."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from .. import surrogate
from .._triton import require_triton
from ..base import MemoryModule
from ..eager import Carried, Visit, run_steps, watched
from ..fused import Fused
from ..surrogate import Surrogate, SurrogateLike
from .described import FLOATS, Described, describe, graphs_of, known, per_step, require_params, run_step

#: all mean the same
FUSED_BACKENDS = ("fused", "triton", "inductor", "cupy")
BACKENDS = (*FUSED_BACKENDS, "triton_export", "torch")

#: a number of a neuron: fixed, or a tensor of any shape that broadcasts to a step's; a parameter is learned
Number = float | Tensor

_NUMBER = "Number"
#: what an option may be, by the annotation of its argument
_IN_WORDS = {
    "bool": "True or False",
    "int": "a whole number",
    "float": "a number",
    "float | None": "a number or None",
    _NUMBER: "a number or a tensor of floats",
}


@functools.cache
def _annotation(kind: type, name: str) -> str | None:
    """The annotation of an argument of the library's class that this one is or derives from."""
    for each in kind.__mro__:
        if each.__module__.startswith(__package__) and each is not LibraryNeuron:
            argument = inspect.signature(each.__init__).parameters.get(name)
            if argument is not None:
                return argument.annotation
    return None


class LibraryNeuron(MemoryModule):
    """A neuron of the library; docs/neurons.md has its equations.

    Its step is defined once, in C++. With backend "fused" ("triton", "inductor" and "cupy" mean the same) a
    sequence, or a single step, is one kernel; with "triton_export" one of Triton's, as for `FlexSN`; with
    "torch" it runs op by op. States are memories: numbers
    until the first call, then tensors like a step of the input, until `reset()`, which a batch of another
    shape needs before it. Options are attributes and may be assigned. With `store_v_seq` the potentials of
    all steps of the last sequence are in `v_seq`.
    """

    name: ClassVar[str]  #: in C++ and on the command line
    memory_caches = ("v_seq",)
    _option_names: tuple[str, ...] = ()
    _words: tuple[str, ...] = ()  #: options that are a word

    def __init__(
        self,
        options: dict[str, Any],
        surrogate_function: SurrogateLike | None = None,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
        initial: dict[str, Any] | None = None,
    ) -> None:
        """`options` stay until they are assigned; `initial` are those that parameters start from."""
        super().__init__()
        self._visit: Visit | None = None
        self._core: Callable[..., tuple[Tensor, ...]] | None = None
        self._fused: Fused | None = None
        self.step_mode = step_mode
        self.backend = backend
        self.surrogate_function = surrogate_function
        for name, value in options.items():
            self._put_option(name, value)
        self._option_names = tuple(options)
        described = self._checked(initial or {})
        for state, value in zip(described.states, described.initial):
            self.register_memory(state, value)
        for name, value in zip(described.params, described.defaults):
            if name not in options:
                self._add_parameter(name, value, initial or {})
        self.register_memory("v_seq", None)
        self.store_v_seq = store_v_seq
        self._options_changed()

    # ---- options ------------------------------------------------------------------------------------------

    def _add_parameter(self, name: str, value: float, initial: dict[str, Any]) -> None:
        """A learnable parameter that starts at `value`, which C++ made of what `initial` says."""
        self.register_parameter(name, nn.Parameter(torch.tensor(value)))

    def _put_option(self, name: str, value: Any) -> None:
        """Stores an option; a tensor becomes a parameter or a buffer."""
        if hasattr(self, name):
            delattr(self, name)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_buffer(name, value)
        else:
            MemoryModule.__setattr__(self, name, value)

    def _option_text(self, name: str, value: Any, example: Callable[[Tensor], Tensor] | None = None) -> str:
        """An option for C++. Of a tensor only that it is one, or an `example` of its entries to check."""
        if value is None:
            return f"{name}=none"
        if isinstance(value, bool):
            return f"{name}={str(value).lower()}"
        if isinstance(value, str) and name in self._words:
            return f"{name}={value}"
        if isinstance(value, numbers.Integral):
            return f"{name}={int(value)}"
        if isinstance(value, numbers.Real):
            return f"{name}={float(value)!r}"
        self._require_number(name, value)
        if example is None or value.is_meta:
            return f"{name}=learnable"
        return f"{name}=learnable:{float(example(value.detach()))!r}"

    def _option_texts(self, example: Callable[[Tensor], Tensor] | None = None) -> tuple[str, ...]:
        """All options for C++."""
        return tuple(self._option_text(name, getattr(self, name), example) for name in self._option_names)

    def _require_number(self, name: str, value: Any) -> None:
        """A tensor, where the option may be one; what is no number at all comes here too."""
        kind = _annotation(type(self), name)
        if isinstance(value, Tensor):
            if kind == _NUMBER and value.is_floating_point() and value.numel() != 0:
                return
            found = "a tensor without entries" if value.numel() == 0 else f"a tensor of {value.dtype}"
        else:
            found = repr(value) if isinstance(value, str) else type(value).__name__
        raise TypeError(f"{type(self).__name__}: {name} must be {_IN_WORDS[kind]}, found {found}")

    def _start_text(self, name: str, value: Any, example: Callable[[Tensor], Tensor]) -> str:
        """What a parameter starts from, for C++."""
        if not isinstance(value, Tensor):
            return self._option_text(name, value)
        self._require_number(name, value)
        return f"{name}={2.0 if value.is_meta else float(example(value.detach()))!r}"

    def _surrogate_text(self) -> tuple[str, ...]:
        function = self.surrogate_function
        return (f"surrogate={function.spec}",) if isinstance(function, Surrogate) else ()

    def _checked(self, initial: dict[str, Any]) -> Described:
        """What C++ says of the options; of a tensor the largest and the least entry are tried."""
        for example in (torch.max, torch.min):
            starts = [self._start_text(name, value, example) for name, value in initial.items()]
            options = (*self._option_texts(example), *starts, *self._surrogate_text())
            described = describe(type(self).__name__, self.name, options, torch.float32)
        return described

    def _options_changed(self) -> None:
        """Makes what calls need of the options."""
        options = self._option_texts()
        try:
            graphs = graphs_of(self.name, options)
        except ValueError:
            # Without a value C++ takes that of the class, which need not go with the other options.
            options = self._option_texts(torch.min)
            graphs = graphs_of(self.name, options)
        graph = graphs[torch.float32]
        self._options = options
        # Not an object of ours: of those, what a trace depends on would stay unseen.
        self._core = functools.partial(run_step, graphs, self.surrogate_function)
        self._fused = None
        if not isinstance(self.surrogate_function, Surrogate | None):
            counts = 1 + len(graph.step_params), len(graph.states), len(graph.outputs)
            self._fused = Fused(self._core, *counts, triton=self._backend == "triton_export")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "surrogate_function":
            value = self._as_surrogate(value)
        elif name not in self._option_names:
            super().__setattr__(name, value)
            return
        if self.__dict__.get("_core") is None:  # while this is made
            super().__setattr__(name, value)
            return
        before, started = getattr(self, name), self._described(torch.float32).initial
        self._put_option(name, value)
        try:
            described = self._checked({})
        except (TypeError, ValueError):
            self._put_option(name, before)
            raise
        self._options_changed()
        for state, old, new in zip(described.states, started, described.initial):
            # What a user has set stays.
            for values in (self._memories, self._memories_rv):
                if isinstance(values[state], numbers.Real) and values[state] == old:
                    values[state] = new

    def _as_surrogate(self, function: Any) -> Any:
        shown = type(self).__name__
        if isinstance(function, str):
            try:
                return surrogate.named(function)
            except ValueError as error:
                raise ValueError(f"{shown}: surrogate_function: {error}") from None
        if function is None and _annotation(type(self), "surrogate_function") is None:
            return None
        found = type(function).__name__
        if isinstance(function, type):
            given = ".apply" if issubclass(function, torch.autograd.Function) else "()"
            found = f"the class {function.__name__}; give {function.__name__}{given}"
        elif callable(function):
            return function
        raise TypeError(
            f"{shown}: surrogate_function must be a surrogate, the name of one or a function of a tensor, "
            f"found {found}"
        )

    @property
    def supported_backends(self) -> tuple[str, ...]:
        return BACKENDS

    @property
    def backend(self) -> str:
        return self._backend

    @backend.setter
    def backend(self, value: str) -> None:
        if value == "triton_export":
            require_triton()
        before = self._backend
        MemoryModule.backend.fset(self, value)
        if self._fused is not None and "triton_export" in (before, value):
            self._options_changed()

    @property
    def store_v_seq(self) -> bool:
        """Whether the potentials of a sequence are kept in `v_seq`."""
        return self._store_v_seq

    @store_v_seq.setter
    def store_v_seq(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"{type(self).__name__}: store_v_seq must be True or False, found {value!r}")
        self._store_v_seq = value
        self.v_seq = None

    def options_text(self) -> str:
        """The options and what they are; shapes of those that are tensors."""
        values = {name: getattr(self, name) for name in self._option_names}
        return ", ".join(f"{k}={tuple(v.shape) if isinstance(v, Tensor) else v}" for k, v in values.items())

    def extra_repr(self) -> str:
        options = self.options_text()
        return f"{options}{', ' if options else ''}step_mode={self._step_mode}, backend={self._backend}"

    # ---- running ------------------------------------------------------------------------------------------

    def multi_step_forward(self, x_seq: Tensor) -> Any:
        """A sequence [T, ...]."""
        self._require_floats(x_seq)
        if x_seq.dim() == 0:
            raise ValueError(
                f"{type(self).__name__}: a sequence must have time as its first dimension, found a scalar"
            )
        return self._returned(self._run(x_seq, self._store_v_seq))

    def single_step_forward(self, x: Tensor) -> Any:
        """One step."""
        self._require_floats(x)
        return self._returned([output[0] for output in self._run(x.unsqueeze(0), False)])

    def _require_floats(self, x: Any) -> None:
        if isinstance(x, Tensor) and x.dtype in FLOATS:
            return
        found = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(
            f"{type(self).__name__}: the input must be a tensor of float16, bfloat16, float32 or float64, "
            f"found {found}"
        )

    def _returned(self, outputs: list[Tensor]) -> Any:
        """What a call gives of the outputs of the step."""
        return outputs[0]

    def _argument(self, name: str, x_seq: Tensor) -> Tensor:
        """A parameter of the step, in a shape that broadcasts to a step's; T in front where it has steps."""
        return getattr(self, name)

    def _described(self, dtype: torch.dtype) -> Described:
        """What this neuron is now, for inputs of this type."""
        options = (*self._options, *self._surrogate_text())
        return describe(type(self).__name__, self.name, options, dtype, is_dynamo_compiling())

    def _prepared(self, x_seq: Tensor) -> tuple[Described, list[Tensor]]:
        """The neuron for such a sequence, and its parameters."""
        described = self._described(x_seq.dtype)
        params = []
        for name in described.params:
            param = self._argument(name, x_seq)
            params.append(param if param.dtype == described.param_dtype else param.to(described.param_dtype))
        return described, params

    def _run(self, x_seq: Tensor, store: bool) -> list[Tensor]:
        described, params = self._prepared(x_seq)
        store_now = store and x_seq.shape[0] != 0
        if self._backend == "torch" or self._fused is not None:
            outputs, last, sequences = self._run_core(described, x_seq, params, store_now)
        else:
            states = self._states(described, x_seq, False)
            kernel = known(described, self._backend == "triton_export")
            outputs, last = kernel([x_seq], states, (described.trace, *params), store_now)
            sequences = last if store_now else None
            if store_now:
                # The states must not keep the sequences alive, nor change with them.
                last = [sequence[-1].clone() for sequence in last]
        for name, state in zip(described.states, last):
            self._memories[name] = state
        if store:
            self._memories["v_seq"] = sequences[0] if sequences else last[0].new_empty(x_seq.shape)
        return outputs

    def _states(self, described: Described, x_seq: Tensor, made: bool) -> list[Tensor] | None:
        """The states as tensors; None where they are what the kernel starts from, unless `made`."""
        values = [self._memories[name] for name in described.states]
        if not torch.compiler.is_compiling():
            self._check_running_again(any([isinstance(value, Tensor) for value in values]))
        if not made and all([not isinstance(value, Tensor) for value in values]):
            if tuple(values) == described.initial:
                return None
        states = []
        for name, value in zip(described.states, values):
            if isinstance(value, numbers.Number):
                value = x_seq.new_full(x_seq.shape[1:], value)
            elif not isinstance(value, Tensor):
                raise TypeError(
                    f"{type(self).__name__}: the state {name} must be a number or a tensor, found "
                    f"{type(value).__name__}"
                )
            elif value.shape != x_seq.shape[1:]:
                raise ValueError(
                    f"{type(self).__name__}: the state {name} is that of steps of shape "
                    f"{tuple(value.shape)}, the input now has steps of shape {tuple(x_seq.shape[1:])}: call "
                    "reset() before a batch of another shape"
                )
            elif value.device != x_seq.device and not self._is_reset_on(name, value.device):
                raise RuntimeError(
                    f"{type(self).__name__}: the state {name} is on {value.device}, the input is on "
                    f"{x_seq.device}: move the module there, which takes its states along, or a state that it was "
                    "given, or call reset()"
                )
            elif value.dtype != x_seq.dtype or value.device != x_seq.device:
                value = value.to(x_seq)
            states.append(value)
        return states

    def _is_reset_on(self, name: str, device: torch.device) -> bool:
        """Whether a reset value lies there: it is of the module's making and goes where the input is."""
        value = self._memories_rv[name]
        return isinstance(value, Tensor) and value.device == device

    def _run_core(
        self, described: Described, x_seq: Tensor, params: Sequence[Tensor], store: bool
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor] | None]:
        """With a user's surrogate, or op by op."""
        require_params(described, params, x_seq)
        states = self._states(described, x_seq, True)
        inputs, static = [x_seq], []
        for param, sliced in zip(params, described.per_step):
            if sliced:
                inputs.append(per_step(param, x_seq))
            else:
                static.append(param)
        if x_seq.shape[0] == 0:
            outputs = [torch.empty_like(x_seq) for _ in range(described.trace.num_outputs)]
            return outputs, list(states), None
        if self._backend != "torch":
            outputs, last = self._fused(inputs, states, static, store)
            return outputs, [s[-1].clone() for s in last] if store else last, last if store else None
        compiling = torch.compiler.is_compiling()
        if self._visit is not None and not compiling:
            states = [Carried.apply(s, self._visit) if s.grad_fn is not None else s for s in states]
        outputs, last, sequences = run_steps(self._core, inputs, states, static, None, store)
        if not compiling:
            carried = any([state.grad_fn is not None for state in last])
            self._visit = watched([*outputs, *last]) if carried else None
        return outputs, last, sequences

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_visit": None}
