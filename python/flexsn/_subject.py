"""What is looked at: a core with its counts, as a module, a kernel or a caller brings it, and its trace."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ._library import ops
from ._locals import names_of_values
from ._reach import describe, device_of
from ._trace import Trace, run_program
from .fused import Fused
from .neuron import FlexSN, FlexSNKernel
from .neurons.described import param_dtype
from .neurons.library import Described, LibraryNeuron, known, per_step


@dataclass
class Subject:
    """A core with its counts."""

    core: Callable[..., Any]
    num_inputs: int
    num_states: int
    static: tuple[Any, ...]
    names: list[str]
    """Of inputs, states and static inputs."""
    module: FlexSN | None = None
    steps: int | None = None
    """The only number of steps that it runs."""
    examples: tuple[tuple[torch.Size, torch.dtype], ...] | None = None
    """Shapes and types of inputs of one step, where its module was made with examples."""
    is_kernel: bool = False
    """Do its calls take all states and give those of every step?"""

    @property
    def name(self) -> str:
        return describe(self.core)

    @property
    def options(self) -> str:
        """A neuron of the library as it was made; "" for others."""
        return ""

    @property
    def backend(self) -> str:
        """What its module runs."""
        return "fused" if self.module is None else self.module.backend

    @property
    def keeps_sequences(self) -> bool:
        """Does a call keep the states of all steps?"""
        return self.is_kernel or (self.module is not None and self.module.store_state_seqs)

    def device(self) -> torch.device:
        """Where its tensors are, and so its inputs."""
        return device_of(self.core, (*(self.held_states() or ()), *self.static))

    def held_states(self) -> list[Tensor] | None:
        """The states that its module carries from call to call."""
        if self.module is None or self.module.states is None:
            return None
        return list(self.module.states)

    def fused(self) -> Callable[..., Any]:
        return Fused(self.core, self.num_inputs, self.num_states, None)

    def traced(self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None) -> Traced:
        fused = Fused(self.core, self.num_inputs, self.num_states, None)
        return Traced(self, fused.trace_of(list(inputs), states, self.static), self._tensors(fused), inputs)

    def comparable(self) -> Subject:
        """The same with a core that can be called for each step."""
        return self

    def completed(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The sequences that the core takes, where a call takes these."""
        return list(inputs)

    def _tensors(self, fused: Fused) -> list[tuple[str, Tensor]]:
        """What the core captures, then static tensors, and where they are from."""
        found = [(place.path, place.get()) for place in fused.reach.tensors]
        for value, name in zip(self.static, self.names[self.num_inputs + self.num_states :]):
            if isinstance(value, Tensor):
                found.append((self._static_source(name), value))
        return found

    def _static_source(self, name: str) -> str:
        return f"argument {name}"


class LibrarySubject(Subject):
    """A neuron of the library. Its step is known without a trace, unless its surrogate is a user's own.

    sliced: parameters with an entry for each step are sequences beside the input, as the core takes them.
    """

    def __init__(self, neuron: LibraryNeuron, sliced: bool = False) -> None:
        described = neuron._described(torch.float32)
        self.neuron = neuron
        self.is_known = neuron._fused is None
        self.sliced = sliced or not self.is_known
        self.step_params = [name for name, each in zip(described.params, described.per_step) if each]
        inputs = ["x", *self.step_params] if self.sliced else ["x"]
        params = [name for name in described.params if name not in inputs]
        super().__init__(
            neuron._core,
            len(inputs),
            len(described.states),
            (),
            [*inputs, *described.states, *params],
            steps=getattr(neuron, self.step_params[0]).shape[0] if self.step_params else None,
        )

    @property
    def name(self) -> str:
        return self.neuron.name

    @property
    def options(self) -> str:
        text = f"{type(self.neuron).__name__}({self.neuron.options_text()})"
        return " ".join(text.split())  # one line, whatever a surrogate says of itself

    @property
    def backend(self) -> str:
        return self.neuron.backend

    @property
    def keeps_sequences(self) -> bool:
        return self.neuron.store_v_seq

    def device(self) -> torch.device:
        return device_of(self.core, (*(self.held_states() or ()), *self.neuron.parameters()))

    def held_states(self) -> list[Tensor] | None:
        names = self.names[self.num_inputs : self.num_inputs + self.num_states]
        held = [self.neuron._memories[name] for name in names]
        return held if held and all(isinstance(state, Tensor) for state in held) else None

    def comparable(self) -> Subject:
        return LibrarySubject(self.neuron, sliced=True)

    def completed(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        if len(inputs) != 1 or not self.sliced:
            return list(inputs)
        x = inputs[0]
        params = [self.neuron._argument(name, x) for name in self.step_params]
        return [x, *(per_step(param, x).to(param_dtype(x.dtype)) for param in params)]

    def fused(self) -> Callable[..., Any]:
        return self._kernel if self.is_known else super().fused()

    def _kernel(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], static: Sequence[Tensor], sequences: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The kernel that calls of the neuron run, with parameters where the core takes them."""
        described = self.neuron._described(inputs[0].dtype)
        rest, sliced = iter(static), iter(inputs[1:])
        params = [next(sliced if each and self.sliced else rest) for each in described.per_step]
        return known(described)(list(inputs[:1]), states, (described.trace, *params), sequences)

    def traced(self, inputs: Sequence[Tensor], states: Sequence[Tensor] | None) -> Traced:
        described, params = self.neuron._prepared(inputs[0])
        named = list(zip(described.params, params))
        self.static = tuple(p for name, p in named if not (self.sliced and name in self.step_params))
        if not self.is_known or (self.sliced and self.step_params):
            return super().traced(inputs, states)
        tensors = [(f"module.{name}", p) for name, p in named]
        return Traced(self, described.trace, tensors, inputs, described)

    def _static_source(self, name: str) -> str:
        return f"module.{name}"


#: what knows how many inputs and states it has
OWN_COUNTS = (FlexSN, FlexSNKernel, LibraryNeuron)


def subject_of(
    neuron: Any, num_inputs: int | None, num_states: int | None, params: Sequence[Any], asker: str
) -> Subject:
    """Reads a FlexSN, a FlexSNKernel, a neuron of the library or any callable."""
    if isinstance(neuron, OWN_COUNTS):
        if num_inputs is not None or num_states is not None or len(params):
            raise ValueError(
                f"{asker}: a {type(neuron).__name__} has its own counts and static inputs; leave out "
                "num_inputs, num_states and params"
            )
        if isinstance(neuron, LibraryNeuron):
            return LibrarySubject(neuron)
        own = neuron if isinstance(neuron, FlexSN) else neuron.info
        static = neuron.static_inputs if isinstance(neuron, FlexSN) else ()
        module = neuron if isinstance(neuron, FlexSN) else None
        core, num_inputs, num_states = neuron.core, own.num_inputs, own.num_states
        examples = neuron.input_examples
    else:
        if not callable(neuron):
            raise TypeError(
                f"{asker} takes a core, a FlexSN or a FlexSNKernel, found {type(neuron).__name__}; a neuron "
                "of the library is an object such as flexsn.neurons.LIFNode()"
            )
        _refuse_network(neuron, asker)
        core, static, module, examples = neuron, tuple(params), None, None
    if num_states is None:
        raise TypeError(
            f"{asker}: num_states is required for a core. It cannot be told from the core: with three "
            "arguments and three results there may be one, two or three states; say for example num_states=1"
        )
    for name, count in (("num_inputs", num_inputs), ("num_states", num_states)):
        if count is not None and count < 0:
            raise ValueError(f"{asker}: {name} must not be negative, found {count}")
    names, required = argument_names(core)
    if num_inputs is None:
        num_inputs = required - num_states - len(static)
        if num_inputs < 1:
            raise ValueError(
                f"{asker}: {describe(core)} shows {required} arguments, which must be its inputs (at least "
                f"one), {num_states} states and {len(static)} params; give num_inputs if it takes more than "
                "it shows"
            )
    total = num_inputs + num_states + len(static)
    if len(names) < total:
        names = [f"input{i}" for i in range(num_inputs)]
        names += [f"state{i}" for i in range(num_states)] + [f"param{i}" for i in range(len(static))]
    return Subject(
        core, num_inputs, num_states, static, names[:total], module,
        examples=examples, is_kernel=isinstance(neuron, FlexSNKernel),
    )  # fmt: skip


def _refuse_network(neuron: Any, asker: str) -> None:
    if isinstance(neuron, nn.Module):
        kinds = (FlexSN, LibraryNeuron)
        inside = [name for name, part in neuron.named_modules() if isinstance(part, kinds)]
        if inside:
            raise ValueError(
                f"{asker}: {type(neuron).__name__} is a network with neurons in it; give one of them: "
                + ", ".join(f'get_submodule("{name}")' for name in inside[:4])
                + (" ..." if len(inside) > 4 else "")
            )


def argument_names(core: Callable[..., Any]) -> tuple[list[str], int]:
    """The names of a core's arguments, and how many of them must be given."""
    try:
        signature = inspect.signature(core.forward if isinstance(core, nn.Module) else core)
    except (TypeError, ValueError):
        return [], 0
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [parameter for parameter in signature.parameters.values() if parameter.kind in by_place]
    return [p.name for p in named], sum(p.default is p.empty for p in named)


def told_states(
    core: Callable[..., Any], num_inputs: int | None, params: Sequence[Any], shape: Sequence[int] | None
) -> tuple[int | None, str]:
    """How many states a core has, where arguments and results leave one choice, and what they say.

    It has an input, a state and an output at least, and as many states come out as go in.
    """
    _, taken = argument_names(core)
    taken -= len(params)
    results, told = 0, f"{taken} arguments"
    if taken > 1:
        try:
            with torch.no_grad():
                sizes, device = tuple(shape or (1,)), device_of(core, params)
                found = core(*[torch.zeros(sizes, device=device) for _ in range(taken)], *params)
            results = len(found) if isinstance(found, (tuple, list)) else 1
            told += f" and {results} result{'s' if results > 1 else ''}"
        except Exception as error:
            told += f"; called on zeros, it raised {type(error).__name__}: {error}"
    if num_inputs is not None and 0 < num_inputs < taken and results > taken - num_inputs:
        return taken - num_inputs, told
    return (1 if num_inputs is None and min(taken, results) == 2 else None), told


_LONGEST_NAME = 40


@dataclass
class Parameter:
    """A parameter of the kernel."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    source: str
    """The tensor it is, or how it is made from such."""
    gradient: bool
    """Is its gradient wanted?"""


class Traced:
    """A subject, traced for one kind of arguments, with names for people.

    device: of the inputs. captured, sources: the tensors that parameters are made from, and where the core finds them. values,
    parameters: the tensors that the kernel gets, and what is known of them. outside: how those are made.
    """

    def __init__(
        self,
        subject: Subject,
        trace: Trace,
        tensors: Sequence[tuple[str, Tensor]],
        inputs: Sequence[Tensor],
        described: Described | None = None,
    ) -> None:
        """`tensors`: those that there are, of which the trace takes some; all that a known neuron has."""
        self.subject = subject
        self.trace = trace
        self.device = inputs[0].device
        taken = range(len(tensors)) if described is not None else trace.captured
        self.sources = [tensors[i][0] for i in taken]
        self.captured = [tensors[i][1] for i in taken]
        self.parameters, self.outside = self._parameters()
        first_static = subject.num_inputs + subject.num_states
        self.names = [*subject.names[:first_static], *(parameter.name for parameter in self.parameters)]
        if described is not None:
            outputs, self.text = list(described.outputs), trace.text
        else:
            outputs = _output_names(subject.core, trace.num_outputs, self.names)
            places, local_names = names_of_values(
                subject.core, trace.text, inputs, trace.state_dtypes, self.values, subject.static, self.names
            )
            self.text = ops.named(trace.text, subject.name, self.names, outputs, places, local_names)
        self.result_names = [*outputs, *subject.names[subject.num_inputs : first_static]]

    def _parameters(self) -> tuple[list[Parameter], list[str]]:
        """The parameters of the kernel, and the lines of torch code that make some of them."""
        program, captured = self.trace.prepare, self.captured
        if program is None:
            self.values, places, words, lines = captured, range(len(captured)), self.sources, []
        else:
            self.values, places = run_program(program, captured), program.results
            words, lines = _program_lines(program, self.sources)
        parameters = []
        taken = set(self.subject.names[: self.subject.num_inputs + self.subject.num_states])
        for k, (tensor, place) in enumerate(zip(self.values, places)):
            made = place >= len(captured)
            name = _made_name(program, place, self.sources) if made else _short_name(words[place])
            if name is None or name in taken:
                name = f"param{k}"
            while name in taken:
                name += "_"
            taken.add(name)
            gradient = tensor.requires_grad and k not in self.trace.detached
            parameters.append(Parameter(name, tensor.dtype, tuple(tensor.shape), words[place], gradient))
        return parameters, lines


def _short_name(source: str) -> str | None:
    """ "w" of "global w of f" or "self.w"; None where that is no name."""
    word = re.sub(r"^(?:global|closure|default|argument) (\S+).*|^(?:self|module)\.", r"\1", source)
    return word if re.fullmatch(r"[A-Za-z_][\w.]*", word, re.ASCII) else None


def _made_name(program: Any, place: int, sources: Sequence[str]) -> str | None:
    """ "sigmoid_w" of what torch makes from w alone."""
    if place < len(sources):
        return _short_name(sources[place])
    step = program.steps[place - len(sources)]
    given = [where for where, _ in (*step.arguments, *(each for _, each in step.keywords)) if where >= 0]
    from_one = _made_name(program, given[0], sources) if len(set(given)) == 1 else None
    function = step.function.rpartition("::")[2].partition(".")[0]
    name = f"{function}_{from_one}" if from_one and function else None
    return name if name and len(name) <= _LONGEST_NAME else None


def _output_names(core: Callable[..., Any], count: int, taken: Sequence[str]) -> list[str]:
    """What the core's own text calls its outputs, where one line returns all; else output0 and so on."""
    usual = [f"output{i}" for i in range(count)]
    try:
        function = core.forward if isinstance(core, nn.Module) else core
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, TypeError, ValueError):
        return usual
    returns = _returns(definition) if isinstance(definition, ast.FunctionDef) else []
    if len(returns) != 1:
        return usual
    value = returns[0].value
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
    names: list[str] = []
    for place, other in enumerate(usual):
        part = parts[place] if place < len(parts) else None
        if isinstance(part, ast.Starred):
            parts = []  # from here on the places are unknown
        name = part.id if isinstance(part, ast.Name) and part.id.isascii() else other
        names.append(other if name in taken or name in names or name in usual else name)
    return names


def _returns(node: ast.AST) -> list[ast.Return]:
    """The return statements of a function, without those of functions inside it."""
    inside = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    found: list[ast.Return] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            found.append(child)
        elif not isinstance(child, inside):
            found += _returns(child)
    return found


def _program_lines(program: Any, sources: Sequence[str]) -> tuple[list[str], list[str]]:
    """What each value of a parameter program is, and the program as lines of text."""
    words, lines = list(sources), []

    def argument(place: int, other: Any) -> str:
        """A value that was named before, a list of arguments, or a constant."""
        if place >= 0:
            return words[place]
        return f"[{', '.join(argument(*each) for each in other)}]" if place == -2 else str(other)

    for step in program.steps:
        parts = [argument(*each) for each in step.arguments]
        parts += [f"{name}={argument(*each)}" for name, each in step.keywords]
        name = f"value{len(lines)}"
        function = step.function.rpartition("::")[2] or "tensor"
        lines.append(f"{name} = {function}({', '.join(parts)})")
        words.append(name)
    return words, lines
