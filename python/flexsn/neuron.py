"""FlexSN, spiking neurons made from one time step written in Python, and FlexSNKernel, the bare kernel."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from ._checks import Counts, check_requires_grad, check_scan, check_step_shape, output_templates
from ._lowering import run_scan
from ._reach import describe
from ._scan_operator import Call
from ._torch import backward_number, is_exporting
from ._triton import require_triton
from .base import MemoryModule, States
from .eager import Carried, Visit, call_core, run_steps, sequence_length, watched
from .fused import Fused

#: all mean the same
FUSED_BACKENDS = ("fused", "triton", "inductor")
#: what runs a sequence as one kernel
KERNEL_BACKENDS = (*FUSED_BACKENDS, "triton_export")
BACKENDS = (*KERNEL_BACKENDS, "torch", "hop")


def zero_states(num_states: int, step_mode: str, *inputs: Tensor) -> list[Tensor]:
    """Zeros like one step of input 0."""
    if step_mode not in ("s", "m"):
        raise ValueError(f'step_mode must be "s" or "m", found {step_mode!r}')
    if num_states == 0:
        return []
    if not inputs:
        raise ValueError(
            "there is no input to take the shape of states from: assign `states` or override `init_states`"
        )
    first = inputs[0]
    if step_mode == "s":
        return [torch.zeros_like(first) for _ in range(num_states)]
    if first.shape[0] == 0:
        return [first.new_zeros(first.shape[1:]) for _ in range(num_states)]
    return [torch.zeros_like(first[0]) for _ in range(num_states)]


class FlexSN(MemoryModule):
    """Spiking neurons defined by one time step, `core(*inputs, *states, *static) -> (*outputs, *new_states)`.

    A call takes sequences [T, ...] (step mode "m") or single steps (step mode "s") and returns the output, or
    a list (a tuple for single steps) where there is not exactly one. The states stay in `states`, a list,
    until `reset()`.

    core: any callable. An nn.Module becomes a child module; tensors it captures get gradients.
    num_inputs, num_outputs: taken from the core's signature, the examples or the first call when left out.
    num_states: how many states there are.
    example_inputs: tensors of one step, inputs then states; checked against the core when this is made.
    requires_grad: for each input and state. Only its length is looked at: gradients are those that the
        tensors of a call ask for, with every backend.
    step_mode: "m" or "s". A single step calls the core itself, whatever the backend.
    backend: "fused" ("triton" and "inductor" mean the same) runs a sequence as one kernel on whatever device
        the tensors are; what cannot be fused is an error. "triton_export" gives the same results by the
        kernels of the Triton module that `flexsn.export` writes, on any GPU that Triton serves. "torch" calls
        the core step by step; so does "hop", where torch.compile sees a call that keeps all states as one
        operator with the step as its body.
    store_state_seqs: keep all states of the last call in `state_seqs`, a list of [T, ...].
    example_outputs: tensors of one step; what an empty sequence gives has their shapes and types.
    static_inputs: passed to the core after the states, the same at every step. Parameters and tensors become
        parameters and buffers of this module.
    """

    memory_caches = ("state_seqs",)

    def __init__(
        self,
        core: Callable[..., Any],
        num_inputs: int | None = None,
        num_states: int | None = None,
        num_outputs: int | None = None,
        example_inputs: Sequence[Tensor] | None = None,
        requires_grad: Sequence[bool] | None = None,
        step_mode: str = "m",
        backend: str = "fused",
        store_state_seqs: bool = False,
        example_outputs: Sequence[Tensor] | None = None,
        static_inputs: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        if not isinstance(static_inputs, Sequence):
            raise TypeError(
                "FlexSN: static_inputs must be a list of tensors and numbers, found "
                f"{type(static_inputs).__name__}"
            )
        static_inputs = tuple(static_inputs)
        counts = Counts.of(
            "FlexSN", core, num_inputs, num_states, num_outputs, example_inputs, len(static_inputs)
        )
        self.step_mode = step_mode
        self._require_backend(backend)
        if step_mode == "m" and counts.inputs == 0:
            raise ValueError(
                'FlexSN: step_mode="m" needs at least one input, whose leading dimension is time; a core '
                'without inputs runs with step_mode="s" and backend="torch"'
            )
        if backend == "hop" and counts.inputs == 0:
            raise ValueError('FlexSN: backend "hop" needs at least one input, whose leading dim is time')
        templates = output_templates(example_outputs, counts.outputs)
        if templates is not None and counts.outputs is None:
            counts = counts._replace(outputs=len(templates))
        if backend in KERNEL_BACKENDS:
            counts = check_scan("FlexSN", core, counts, example_inputs, static_inputs, example_outputs)
        check_requires_grad("FlexSN", requires_grad, counts)

        self.core = core
        self.num_inputs, self.num_states, self.num_outputs = counts
        self._has_counts = None not in counts
        self._static_places = tuple(
            self._add_static(place, value) for place, value in enumerate(static_inputs)
        )
        self._templates = templates
        #: of the examples, where there were some
        self.input_examples = _input_examples(example_inputs, counts)
        self._store_state_seqs = bool(store_state_seqs)
        self._step_shape: torch.Size | None = None
        self._visit: Visit | None = None
        self._assigned = False  # the states are the user's, and not checked yet
        self._fused: Fused | None = None
        self.register_memory("states", None)
        self.register_memory("state_seqs", None)
        self.backend = backend

    # ---- configuration ------------------------------------------------------------------------------------

    @property
    def supported_backends(self) -> tuple[str, ...]:
        return BACKENDS if self._step_mode == "m" else ("torch", "hop")

    @property
    def backend(self) -> str:
        return self._backend

    @backend.setter
    def backend(self, value: str) -> None:
        self._require_backend(value)
        exported = value == "triton_export"
        if exported:
            require_triton()
        if exported is not (self._backend == "triton_export"):
            self._fused = None
        self._backend = value
        self._eager = value not in KERNEL_BACKENDS
        if not self._eager and self._fused is None:
            self._fused = self._make_fused()

    def _require_backend(self, backend: str) -> None:
        if backend not in BACKENDS:
            raise NotImplementedError(f"FlexSN: backend must be one of {BACKENDS}, found {backend!r}")
        if backend in KERNEL_BACKENDS and self._step_mode == "s":
            raise RuntimeError(
                f'FlexSN: backend {backend!r} runs whole sequences, step_mode="m"; with step_mode="s" use '
                'backend="torch"'
            )

    @property
    def store_state_seqs(self) -> bool:
        """Whether calls keep their states of all steps in `state_seqs`."""
        return self._store_state_seqs

    @store_state_seqs.setter
    def store_state_seqs(self, value: bool) -> None:
        self._store_state_seqs = bool(value)
        self.state_seqs = None

    @property
    def static_inputs(self) -> tuple[Any, ...]:
        """What the core gets after the states."""
        places = self._static_places
        return tuple([getattr(self, place) if isinstance(place, str) else place for place in places])

    def _add_static(self, place: int, value: Any) -> Any:
        """Where a static input is found: the name it is registered under, or the number itself."""
        name = f"_static_input_{place}"
        if isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
            return name
        if isinstance(value, Tensor):
            self.register_buffer(name, value)
            return name
        if isinstance(value, numbers.Number):
            return value
        raise TypeError(
            f"FlexSN: static_inputs[{place}] must be a tensor, a parameter or a number, found "
            f"{type(value).__name__}"
        )

    # Overridable, in a class or on one module; while it is this one, states that are None stay None for a
    # kernel, which then starts from zeros without reading any.
    init_states = staticmethod(zero_states)

    def extra_repr(self) -> str:
        return (
            f"core={describe(self.core)}, num_inputs={self.num_inputs}, num_states={self.num_states}, "
            f"num_outputs={self.num_outputs}, step_mode={self._step_mode}, backend={self._backend}"
        )

    def _make_fused(self) -> Fused:
        counts = self.num_inputs, self.num_states, self.num_outputs
        if self._backend == "triton_export":
            return Fused(self.core, *counts, triton=True)
        return Fused(self.core, *counts)

    def _kernels(self) -> Fused:
        """Those of the core as it is: add_module, and a copy that shares modules, change it past __setattr__."""
        fused, core = self._fused, self._modules.get("core")
        if fused is None or (core is not None and core is not fused.core):
            fused = self._fused = self._make_fused()
        return fused

    # ---- running ------------------------------------------------------------------------------------------

    def forward(self, *inputs: Tensor) -> Any:
        if self._step_mode == "m":
            outputs: Sequence[Tensor] = self.multi_step_forward(*inputs)
        else:
            outputs = self.single_step_forward(*inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def multi_step_forward(self, *inputs: Tensor) -> list[Tensor]:
        """Runs sequences [T, ...]; all outputs as a list."""
        memories = self._memories
        states = memories["states"]
        kernel_alone = not self._eager and not self._store_state_seqs and self._has_counts
        if (
            kernel_alone
            and not is_dynamo_compiling()
            and not self._static_places
            and backward_number() == -1
            and (self.init_states is zero_states if states is None else self._went_on and not self._assigned)
        ):
            results = self._kernels().again(inputs, states)
            if results is not None:
                outputs, memories["states"] = results
                return outputs
        length = sequence_length(inputs, self.num_inputs)
        if kernel_alone and length != 0:
            # The common call, with nothing around the kernel that it can do without.
            if not is_dynamo_compiling():
                self._check_running_again(states is not None)
            if states is None:
                if self.init_states is not zero_states:
                    states = self._initial_states("m", inputs)
                    self._check_states(states)
            else:
                if self._assigned:
                    self._check_states(states)
                    self._assigned = False
                if is_dynamo_compiling():
                    states = self._continued(states)
            outputs, memories["states"] = self._kernels()(
                inputs, states, self.static_inputs if self._static_places else ()
            )
            return outputs
        if not torch.compiler.is_compiling():
            self._check_running_again(states is not None)
        if self._eager:
            self._check_shape(states, inputs[0].shape[1:])
        if length != 0 and (self._eager or is_dynamo_compiling()):
            states = self._continued(states)
        outputs, states, sequences = self._run(inputs, states, length, self._store_state_seqs)
        if self._eager:
            self._note_shape(inputs[0].shape[1:])
            if length != 0:
                self._note_visit(outputs, states)
        elif self._assigned:
            self._assigned = False
        memories["states"] = states
        if sequences is not None:
            memories["state_seqs"] = sequences
        return outputs

    def single_step_forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs one step by calling the core; all outputs as a tuple."""
        self._check_step(inputs)
        shape = inputs[0].shape if inputs else None
        if not torch.compiler.is_compiling():
            self._check_running_again(self._memories["states"] is not None)
        self._check_shape(self._memories["states"], shape)
        outputs, states = self._run_step(inputs, self._continued(self._memories["states"]))
        self._note_shape(shape)
        self._note_visit(outputs, states)
        self._memories["states"] = states
        return outputs

    def functional_forward(
        self, inputs: tuple[Tensor, ...], states: States, **kwargs: Any
    ) -> tuple[tuple[Tensor, ...], States]:
        """A call with explicit states, `(inputs, (states,)) -> (outputs, (new_states,))`.

        `states` and `new_states` are lists as in the attribute of that name, None for initial states. The
        module stays as it is and no state sequences are kept. Given all memories, `(states, state_seqs)`, it
        returns as many, the second as it came.
        """
        if kwargs:
            raise TypeError(f"FlexSN: the core takes no keywords, found {sorted(kwargs)}")
        for name, values in (("inputs", inputs), ("states", states)):
            if not isinstance(values, (tuple, list)):
                found = type(values).__name__
                raise TypeError(f"FlexSN: {name} of functional_forward must be a tuple, found {found}")
        if len(states) not in (1, 2):
            raise ValueError(
                "FlexSN: functional_forward takes one state, the list of states in a tuple, found "
                f"{len(states)} values"
            )
        if self._step_mode == "m":
            length = sequence_length(inputs, self.num_inputs)
            outputs, new_states, _ = self._run(inputs, states[0], length, False)
            return tuple(outputs), (new_states, *states[1:])
        self._check_step(inputs)
        step_outputs, new_states = self._run_step(inputs, states[0])
        return step_outputs, (new_states, *states[1:])

    def _run(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None, length: int, store: bool
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor] | None]:
        """Outputs, last states and, if stored, state sequences of a multi-step call."""
        if states is None:
            if self._eager or length == 0 or self.init_states is not zero_states:
                states = self._initial_states("m", inputs)
        if states is not None:
            self._check_states(states)
        if length == 0:
            assert states is not None
            if not self._eager:
                check_step_shape(states, inputs[0].shape[1:])
            sequences = [state.new_empty((0, *state.shape)) for state in states] if store else None
            last = [state.clone() for state in states]  # new tensors, as those of any other call
            return self._connected(self._empty_outputs(inputs[0]), inputs), last, sequences
        static = self.static_inputs if self._static_places else ()
        if self._eager:
            assert states is not None
            if self._backend == "hop":
                core = (lambda *arguments: self.core(*arguments, *static)) if static else self.core
                call = Call(core, inputs, states, (), self.num_outputs)
                outputs, last, sequences = run_scan(call, store)
            else:
                outputs, last, sequences = run_steps(
                    self.core, inputs, states, static, self.num_outputs, store
                )
        else:
            outputs, last = self._kernels()(list(inputs), states, static, store)
            sequences = None
            if store:
                # The states must not keep the sequences alive, nor change with them.
                sequences, last = last, [sequence[-1].clone() for sequence in last]
        if self.num_outputs is None or self.num_inputs is None:
            self._note_counts(len(inputs), len(outputs))
        return outputs, last, sequences

    def _run_step(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        if states is None:
            states = self._initial_states("s", inputs)
        self._check_states(states)
        static = self.static_inputs if self._static_places else ()
        outputs, new_states = call_core(self.core, inputs, states, static, self.num_outputs)
        if self.num_outputs is None or self.num_inputs is None:
            self._note_counts(len(inputs), len(outputs))
        return outputs, new_states

    def _initial_states(self, step_mode: str, inputs: Sequence[Tensor]) -> list[Tensor]:
        states = self.init_states(self.num_states, step_mode, *inputs)
        if states is None or isinstance(states, Tensor):
            raise TypeError(
                f"FlexSN: init_states must return a list of {self.num_states} tensors, found "
                f"{type(states).__name__}"
            )
        return list(states)

    def _note_counts(self, inputs: int, outputs: int) -> None:
        # A compiled call must leave alone what it was compiled for, or the next one compiles again.
        if not torch.compiler.is_compiling():
            self.num_inputs, self.num_outputs = inputs, outputs
            self._has_counts = True

    def _empty_outputs(self, first_input: Tensor) -> list[Tensor]:
        """What a sequence of no steps gives; the core is not called."""
        if self._templates is not None:
            return [first_input.new_empty((0, *shape), dtype=dtype) for shape, dtype in self._templates]
        if self.num_outputs == 0:
            return []
        if self.num_outputs is None or self._eager:
            raise ValueError(
                f"FlexSN: an empty sequence (T == 0) requires example_outputs with backend {self._backend!r}"
                ", as there is no step whose outputs have shapes to take"
            )
        return [torch.empty_like(first_input) for _ in range(self.num_outputs)]

    def _connected(self, outputs: list[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Empty outputs whose loss has a gradient, zeros, for all that has one where there are steps."""
        if not torch.is_grad_enabled():
            return outputs
        sources = [tensor for tensor in (*inputs, *self.parameters()) if tensor.requires_grad]
        nothing = [tensor.reshape(-1)[:0].sum() for tensor in sources]
        return [
            functools.reduce(lambda sum, zero: sum + zero.to(sum.dtype), nothing, output)
            if output.is_floating_point()
            else output
            for output in outputs
        ]

    def _check_step(self, inputs: Sequence[Any]) -> None:
        if self.num_inputs is not None and len(inputs) != self.num_inputs:
            raise ValueError(
                f"FlexSN: expected {self.num_inputs} inputs, found {len(inputs)}; give one step of each input"
            )
        for place, value in enumerate(inputs):
            if not isinstance(value, Tensor):
                raise TypeError(f"FlexSN: input {place} must be a tensor, found {type(value).__name__}")

    def _check_states(self, states: Any) -> None:
        if not isinstance(states, (list, tuple)):
            raise TypeError(f"FlexSN: states must be a list of tensors, found {type(states).__name__}")
        if len(states) != self.num_states:
            raise ValueError(
                f"FlexSN: expected {self.num_states} states, found {len(states)}; give one for each, or call reset()"
            )
        for place, state in enumerate(states):
            if not isinstance(state, Tensor):
                raise TypeError(f"FlexSN: state {place} must be a tensor, found {type(state).__name__}")

    def _check_shape(self, states: Any, shape: torch.Size | None) -> None:
        """States that a call left are for steps of the same shape."""
        if states is None:
            return
        before = self._step_shape
        if before is None and not self._assigned and states:
            before = states[0].shape  # a kernel left them, all of the shape of a step
        if before is not None and shape is not None and shape != before:
            raise ValueError(
                f"FlexSN: the states are those of steps of shape {tuple(before)}, the input now "
                f"has steps of shape {tuple(shape)}: call reset() before a batch of another shape"
            )

    def _note_shape(self, shape: torch.Size | None) -> None:
        self._step_shape = shape
        if self._assigned:
            self._assigned = False

    def _continued(self, states: Any) -> Any:
        """States that an eager or a compiled call left, as the next one takes them."""
        if states is None:
            return None
        if is_dynamo_compiling():
            return _carried_into_compiled_code(states)
        if self._visit is None or torch.compiler.is_compiling():
            return states
        visit = self._visit
        return [Carried.apply(state, visit) if state.grad_fn is not None else state for state in states]

    def _note_visit(self, outputs: Sequence[Tensor], states: Sequence[Tensor]) -> None:
        """Remembers of an eager call what `_continued` needs."""
        if torch.compiler.is_compiling():
            return
        if any([state.grad_fn is not None for state in states]):
            self._visit = watched([*outputs, *states])
        else:
            self._visit = None

    def reset(self) -> None:
        """Brings the states back to their reset value, None unless set otherwise; drops state sequences."""
        super().reset()
        memories = self._memories
        memories["state_seqs"] = None
        if self._assigned is not (memories["states"] is not None):
            self._assigned = not self._assigned  # a reset value is the user's
        if self._step_shape is not None or self._visit is not None:
            self._step_shape = None
            self._visit = None

    # ---- the kernel ---------------------------------------------------------------------------------------

    @property
    def kernel(self) -> Callable[..., tuple[Tensor, ...]]:
        """The fused kernel: a function of all input sequences and initial states that returns all output and
        state sequences as a tuple. It is there with any backend and knows nothing of this module's states."""
        return self._call_kernel

    def _call_kernel(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        return _run_kernel(self._kernels(), self.num_inputs, self.num_states, arguments, self.static_inputs)

    # ---- attributes and copies ----------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "states":
            # These are not what the last call left.
            self.__dict__.update(_step_shape=None, _visit=None, _assigned=True)
        elif name in ("core", "num_inputs", "num_states", "num_outputs") and self.__dict__.get("_fused") is not None:
            self.__dict__["_fused"] = self._make_fused()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_fused": None, "_visit": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not self._eager:
            self._fused = self._make_fused()


def _input_examples(
    example_inputs: Sequence[Tensor] | None, counts: Counts
) -> tuple[tuple[torch.Size, torch.dtype], ...] | None:
    """Shapes and types of the examples of inputs."""
    if example_inputs is None or counts.inputs is None:
        return None
    return tuple((example.shape, example.dtype) for example in example_inputs[: counts.inputs])


def _carried_into_compiled_code(states: Sequence[Tensor]) -> Sequence[Tensor]:
    needed = torch.is_grad_enabled() and any([state.requires_grad for state in states])
    if not needed or is_exporting():
        return states
    from ._compiling_state import carried

    return [carried(state) if state.requires_grad else state for state in states]


class KernelInfo(NamedTuple):
    """The counts of a kernel; None where they are known only after the first call."""

    num_inputs: int | None
    num_outputs: int | None
    num_states: int


class FlexSNKernel:
    """The fused kernel of a core: `kernel(*input_seqs, *initial_states) -> (*output_seqs, *state_seqs)`.

    It keeps no states. A copy shares the core and its kernels. Of `requires_grad` only the length is looked
    at: gradients are those that the tensors of a call ask for.
    """

    def __init__(
        self,
        core: Callable[..., Any],
        num_inputs: int | None = None,
        num_states: int | None = None,
        num_outputs: int | None = None,
        example_inputs: Sequence[Tensor] | None = None,
        requires_grad: Sequence[bool] | None = None,
    ) -> None:
        counts = Counts.of("FlexSNKernel", core, num_inputs, num_states, num_outputs, example_inputs, 0)
        counts = check_scan("FlexSNKernel", core, counts, example_inputs, (), None)
        check_requires_grad("FlexSNKernel", requires_grad, counts)
        self.core = core
        self.info = KernelInfo(counts.inputs, counts.outputs, counts.states)
        self.input_examples = _input_examples(example_inputs, counts)
        self._fused = self._make_fused()

    def _make_fused(self) -> Fused:
        info = self.info
        return Fused(self.core, info.num_inputs, info.num_states, info.num_outputs)

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        return _run_kernel(self._fused, self.info.num_inputs, self.info.num_states, arguments, ())

    def f_inf(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """The inference kernel: nothing is kept for backward."""
        with torch.no_grad():
            return self(*arguments)

    def f_fwd(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """The training kernel: results that know how to go backward."""
        with torch.enable_grad():
            return self(*arguments)

    def f_bwd(
        self, results: Sequence[Tensor], arguments: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """The backward kernel: gradients of arguments from those of what `f_fwd` returned for them.

        None stands for no gradient, arriving or resulting.
        """
        if len(results) != len(grads):
            raise ValueError(
                f"FlexSNKernel: f_bwd takes a gradient, or None, for each of {len(results)} results, found "
                f"{len(grads)}"
            )
        arriving = [(result, grad) for result, grad in zip(results, grads) if grad is not None]
        if not arriving:
            return tuple([None] * len(arguments))
        results, grads = zip(*arriving)
        learning = [argument for argument in arguments if argument.requires_grad]
        if not learning or not any(result.requires_grad for result in results):
            return tuple([None] * len(arguments))
        found = iter(torch.autograd.grad(results, learning, grads, retain_graph=True, allow_unused=True))
        return tuple([next(found) if argument.requires_grad else None for argument in arguments])

    def __deepcopy__(self, memo: dict[int, Any]) -> FlexSNKernel:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fused": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fused = self._make_fused()


def _run_kernel(
    fused: Fused, num_inputs: int | None, num_states: int, arguments: Sequence[Any], static: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """A call with input sequences and initial states in one row, checked here as they come from users."""
    if num_inputs is None:
        num_inputs = max(len(arguments) - num_states, 1)
    if len(arguments) != num_inputs + num_states:
        raise ValueError(
            f"the kernel takes {num_inputs} inputs and {num_states} states, expected "
            f"{num_inputs + num_states} tensors, found {len(arguments)}"
        )
    for place, argument in enumerate(arguments):
        if not isinstance(argument, Tensor):
            found = type(argument).__name__
            raise TypeError(f"argument {place} of the kernel must be a tensor, found {found}")
        if argument.device != arguments[0].device:
            raise RuntimeError(
                "all arguments of the kernel must be on one device: argument 0 is on "
                f"{arguments[0].device}, argument {place} on {argument.device}"
            )
    inputs, states = list(arguments[:num_inputs]), list(arguments[num_inputs:])
    for place, state in enumerate(states):
        if state.shape != inputs[0].shape[1:]:
            raise ValueError(
                f"the kernel takes states of the shape of one step, {list(inputs[0].shape[1:])}, found "
                f"{list(state.shape)} for state {place}; expand it"
            )
    outputs, sequences = fused(inputs, states, static, True)
    return (*outputs, *sequences)
