"""How long a neuron takes beside its alternatives: the eager loop, torch.compile of that, SpikingJelly."""

from __future__ import annotations

import copy
import inspect
import json
import math
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ._subject import LibrarySubject, Subject, subject_of
from .eager import call_core
from .inspect import device_there, dtype_named
from .neuron import FlexSN
from .neurons import LibraryNeuron
from .neurons.library import per_step

OURS = "flexsn"
OTHERS = ("eager", "compile", "spikingjelly")
#: beside a value of 1, what the steps of a sequence may make of rounding
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
#: the part of all values that rounding may have put on the other side of a threshold
_MOST_FLIPPED = 1e-3

#: input sequences -> output sequences and last states
Way = Callable[[Sequence[Tensor]], tuple[list[Tensor], list[Tensor]]]


class Unlike(ValueError):
    """Two ways of doing the same gave different results."""


@dataclass
class BenchReport:
    """Medians in milliseconds; print it, or read its fields."""

    neuron: str
    T: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    milliseconds: dict[str, dict[str, float]]
    """By "inference" and "training": of each way."""
    left_out: dict[str, str]
    """Why a way, or a kind of work, was not measured."""
    threads: int
    text: str = field(repr=False, default="")

    def __str__(self) -> str:
        return self.text

    def write(self, path: str | os.PathLike[str]) -> None:
        """The fields, with the machine, as JSON."""
        machine = {"machine": platform.machine(), "torch": torch.__version__}
        fields = {name: value for name, value in vars(self).items() if name != "text"}
        pathlib.Path(path).write_text(json.dumps({**machine, **fields}, indent=1) + "\n")

    def plot(self, path: str | os.PathLike[str]) -> None:
        """The medians as bars."""
        from matplotlib.figure import Figure

        from .plot import bench_bars

        figure = Figure(layout="constrained")
        bench_bars(self.milliseconds, ax=figure.subplots())
        figure.suptitle(f"{self.neuron}, T = {self.T}, steps of shape {list(self.shape)}, {self.dtype}")
        figure.savefig(path)


def bench(
    neuron: Any,
    vs: Sequence[str] = ("eager", "compile"),
    T: int = 8,
    shape: Sequence[int] = (32768,),
    dtype: torch.dtype | str = "f32",
    *,
    num_states: int | None = None,
    num_inputs: int | None = None,
    params: Sequence[Any] = (),
    device: torch.device | str | None = None,
    seconds: float = 1.0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> BenchReport:
    """Times inference and training of a neuron, ours beside others that do the same work.

    neuron, device and what belongs to them: as for `flexsn.check`. vs: of eager, compile and spikingjelly. seconds: of
    measuring for each way and kind of work, in turns. Nothing is timed before all ways gave results that are
    equal to rounding; where they are not, an error says where they differ.
    """
    asker = "flexsn.bench"
    for name in vs:
        if name not in OTHERS:
            raise ValueError(f"{asker}: vs must be of {', '.join(OTHERS)}, found {name!r}")
    meant = device_there(device, asker)
    if isinstance(neuron, LibraryNeuron):
        neuron = copy.deepcopy(neuron).train()
        neuron.store_v_seq, neuron.step_mode, neuron.backend = False, "m", "fused"
    subject = subject_of(neuron, num_inputs, num_states, params, asker)
    dtype = dtype_named(dtype, asker)
    if T < 1 or any(size < 1 for size in shape):
        raise ValueError(f"{asker}: T and shape must be at least 1, found T={T} and shape={tuple(shape)}")
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{asker}: seconds must be a finite number of at least 0, found {seconds}")
    race = _Race(neuron, subject, [name for name in OTHERS if name in vs], meant or subject.device(), progress)
    return race.run(T, tuple(shape), dtype, seconds, seed)


class _Race:
    """The ways that are measured together."""

    def __init__(
        self,
        neuron: Any,
        subject: Subject,
        others: Sequence[str],
        device: torch.device,
        progress: Callable[[str], None],
    ) -> None:
        self.neuron, self.subject, self.device, self.progress = neuron, subject, device, progress
        self.left_out: dict[str, str] = {}
        self.ways: dict[str, Way] = {OURS: self._fused(), "eager": self._loop}
        if "compile" in others:
            self.ways["compile"] = self._compiled()
        if "spikingjelly" in others:
            theirs = self._spikingjelly()
            if theirs is not None:
                self.ways["spikingjelly"] = theirs
        self.measured = [OURS, *(name for name in others if name in self.ways)]

    # ---- the ways ------------------------------------------------------------------------------------------

    def _fused(self) -> Way:
        module, subject = self.neuron, self.subject
        if not isinstance(module, LibraryNeuron):
            module = FlexSN(
                subject.core, subject.num_inputs, subject.num_states, static_inputs=subject.static
            )
            if subject.module is not None:
                module.init_states = subject.module.init_states

        def call(inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            module.reset()
            outputs = _as_list(module(*inputs))
            if isinstance(module, FlexSN):
                return outputs, list(module.states)
            return outputs, [s for s in module.memories() if isinstance(s, Tensor)]

        return call

    def _loop(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The core called step by step, as one would write it."""
        states, static = self._start(inputs)
        inputs = self._sequences(inputs)
        steps: list[tuple[Tensor, ...]] = []
        for t in range(inputs[0].shape[0]):
            outputs, states = call_core(self.subject.core, [x[t] for x in inputs], states, static, None)
            steps.append(outputs)
        sequences = [torch.stack(each) for each in zip(*steps)]
        if isinstance(self.neuron, LibraryNeuron):
            sequences = _as_list(self.neuron._returned(sequences))
        return sequences, list(states)

    def _start(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Sequence[Any]]:
        """The states that a sequence starts from, and what the core takes after them."""
        neuron, count = self.neuron, self.subject.num_states
        if isinstance(neuron, LibraryNeuron):
            described, params = neuron._prepared(inputs[0])
            states = [inputs[0].new_full(inputs[0].shape[1:], value) for value in described.initial]
            return states, [p for p, each in zip(params, described.per_step) if not each]
        if isinstance(neuron, FlexSN):
            return list(neuron.init_states(count, "m", *inputs)), self.subject.static
        return [torch.zeros_like(inputs[0][0]) for _ in range(count)], self.subject.static

    def _sequences(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """With the parameters that have an entry for each step, which the core takes as inputs."""
        if not isinstance(self.neuron, LibraryNeuron):
            return inputs
        described, params = self.neuron._prepared(inputs[0])
        sliced = [per_step(p, inputs[0]) for p, each in zip(params, described.per_step) if each]
        return [*inputs, *sliced]

    def _compiled(self) -> Way:
        torch.compiler.reset()
        return torch.compile(self._loop, dynamic=False)

    def _spikingjelly(self) -> Way | None:
        try:
            from spikingjelly.activation_based import functional
            from spikingjelly.activation_based import neuron as theirs
            from spikingjelly.activation_based import surrogate
        except ImportError as error:
            return self._leave_out("spikingjelly", f"SpikingJelly cannot be imported ({error})")
        try:
            if isinstance(self.neuron, LibraryNeuron):
                module = _their_neuron(self.neuron, theirs, surrogate)
            else:
                static = self.subject.static
                if not all(isinstance(value, Tensor) for value in static):
                    raise ValueError("its static_inputs must be tensors, and these are numbers")
                module = theirs.FlexSN(
                    self.subject.core, num_states=self.subject.num_states, static_inputs=tuple(static),
                    step_mode="m",
                )  # fmt: skip
        except Exception as error:  # whatever another library says
            said = str(error) or type(error).__name__
            return self._leave_out("spikingjelly", f"SpikingJelly cannot make it ({said})")

        def call(inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            functional.reset_net(module)
            return _as_list(module(*inputs)), []

        return call

    def _leave_out(self, what: str, why: str) -> None:
        self.left_out[what] = why.splitlines()[0]

    # ---- running -------------------------------------------------------------------------------------------

    def run(
        self, T: int, shape: tuple[int, ...], dtype: torch.dtype, seconds: float, seed: int
    ) -> BenchReport:
        generator = torch.Generator().manual_seed(seed)
        count = 1 if isinstance(self.subject, LibrarySubject) else self.subject.num_inputs
        drawn = [torch.randn(T, *shape, generator=generator, device="cpu") + 0.5 for _ in range(count)]
        inputs = [x.to(self.device) for x in drawn]
        # A half type is rounded after each op by some ways only, so there single precision is compared.
        exact = dtype if dtype in _ROUNDING else torch.float32
        traced = self.subject.traced(self.subject.completed([x.to(exact) for x in inputs]), None)
        self.parameters = [p for p in self._parameters(traced.captured) if p.requires_grad]
        kinds = ["inference"]
        if traced.trace.trainable:
            kinds.append("training")
        else:
            why = traced.trace.untrainable or "no input, state or parameter can carry a gradient"
            self._leave_out("training", why)
        self._compare([x.to(exact) for x in inputs], kinds, _ROUNDING[exact])
        inputs = [x.to(dtype) for x in inputs]
        found = {kind: self._measure(kind, inputs, seconds) for kind in kinds}
        threads = torch.get_num_threads()
        name = str(dtype).removeprefix("torch.")
        report = BenchReport(
            self.subject.name, T, shape, name, str(self.device), found, self.left_out, threads
        )
        report.text = _table(report)
        return report

    def _parameters(self, captured: Sequence[Tensor]) -> list[Tensor]:
        own = list(self.neuron.parameters()) if isinstance(self.neuron, nn.Module) else []
        known = {id(p) for p in own}
        return own + [t for t in captured if t.is_leaf and id(t) not in known]

    def _once(self, way: Way, kind: str, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Results, and the gradients that training gives."""
        if kind == "inference":
            with torch.no_grad():
                outputs, states = way(inputs)
            return [*outputs, *states], []
        leaves = [x.detach().requires_grad_() for x in inputs]
        for p in self.parameters:
            p.grad = None
        outputs, states = way(leaves)
        results = _with_graph(outputs) or _with_graph(states)
        if not results:
            raise Unlike("it gives nothing that a gradient could come back to")
        torch.autograd.backward(results, self._arriving(results))
        return [*outputs, *states], [t.grad for t in (*leaves, *self.parameters)]

    def _arriving(self, results: Sequence[Tensor]) -> list[Tensor]:
        """The gradients that come in, the same ones for each way."""
        key = tuple((r.shape, r.dtype) for r in results)
        if getattr(self, "_arriving_for", None) != key:
            generator = torch.Generator().manual_seed(1)
            self._gradients = [torch.randn(r.shape, generator=generator, device="cpu").to(r) for r in results]
            self._arriving_for = key
        return self._gradients

    def _compare(self, inputs: Sequence[Tensor], kinds: Sequence[str], rounding: float) -> None:
        """All ways against the eager loop, which is also their first call."""
        for kind in kinds:
            self.progress(f"{kind}: eager, what others must give")
            results, gradients = self._once(self.ways["eager"], kind, inputs)
            for name in self.measured:
                if name == "eager" or name in self.left_out:
                    continue
                first = ", whose first call is long" if name == "compile" else ""
                self.progress(f"{kind}: {name}, compared{first}")
                try:
                    found, grads = self._once(self.ways[name], kind, inputs)
                    _require_equal(name, kind, (found, grads), (results, gradients), rounding)
                except Unlike as error:
                    # Another library's neuron of the same name may be another neuron.
                    if name != "spikingjelly" or not isinstance(self.neuron, LibraryNeuron):
                        raise
                    self._leave_out(name, str(error))
                except (ImportError, NotImplementedError, RuntimeError) as error:
                    if name == OURS:
                        raise
                    self._leave_out(name, f"{name} does not run it ({type(error).__name__}: {error})")
        self.measured = [name for name in self.measured if name not in self.left_out]

    def _measure(self, kind: str, inputs: Sequence[Tensor], seconds: float) -> dict[str, float]:
        """Medians in milliseconds; the ways take turns, so that a busy machine slows all of them."""
        times: dict[str, list[float]] = {name: [] for name in self.measured}
        for name in self.measured:
            self.progress(f"{kind}: {name}, warming up")
            for _ in range(2):
                self._timed(name, kind, inputs)
        self.progress(f"{kind}: measuring")
        end = time.perf_counter() + seconds * len(self.measured)
        while time.perf_counter() < end or len(times[OURS]) < 3:
            for name in self.measured:
                times[name].append(self._timed(name, kind, inputs))
        return {name: statistics.median(values) * 1e3 for name, values in times.items()}

    def _timed(self, name: str, kind: str, inputs: Sequence[Tensor]) -> float:
        """Seconds of one call, to the end of what it queued on a GPU."""
        start = time.perf_counter()
        self._once(self.ways[name], kind, inputs)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start


def _as_list(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def _with_graph(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.grad_fn is not None]


def _their_neuron(neuron: LibraryNeuron, theirs: Any, surrogates: Any) -> nn.Module:
    """SpikingJelly's neuron of the same name with the same options."""
    kind = getattr(theirs, type(neuron).__name__, None)
    if kind is None:
        raise ValueError(f"it has no {type(neuron).__name__}")
    taken = inspect.signature(kind).parameters
    values = {name: getattr(neuron, name) for name in neuron._option_names if name in taken}
    counts = {name: vars(neuron)[name] for name in ("T", "inplane") if name in vars(neuron)}
    values |= {name: count for name, count in counts.items() if name in taken}
    own = neuron.surrogate_function
    if own is not None and "surrogate_function" in taken:
        numbers = {name: getattr(own, name) for name in getattr(own, "_numbers", ())}
        same = getattr(surrogates, type(own).__name__, None)
        values["surrogate_function"] = own if same is None else same(**numbers)
    if "step_mode" in taken:
        values["step_mode"] = "m"
    made = kind(**values)
    for name, parameter in neuron.named_parameters():
        if name in dict(made.named_parameters()):
            made.register_parameter(name, parameter)  # so that both give it their gradient
    return made


# ---- what is equal -----------------------------------------------------------------------------------------


def _require_equal(
    name: str,
    kind: str,
    found: tuple[Sequence[Tensor], Sequence[Tensor | None]],
    wanted: tuple[Sequence[Tensor], Sequence[Tensor | None]],
    rounding: float,
) -> None:
    flipped = False
    for place, (one, other) in enumerate(zip(found[0], wanted[0])):
        what = f"result {place} of {kind}"
        if one.shape != other.shape:
            raise Unlike(
                f"{name} and eager do not do the same work: {what} has shape {list(one.shape)} and "
                f"{list(other.shape)}"
            )
        differs = _differs(one.detach(), other.detach(), rounding)
        if int(differs.sum()) > _MOST_FLIPPED * differs.numel():
            raise Unlike(_difference(name, what, one, other, differs))
        flipped |= bool(differs.any())
    if flipped:
        return  # where a spike came at another step, gradients are not those of the same sequence
    for place, (one, other) in enumerate(zip(found[1], wanted[1])):
        a = torch.zeros(()) if one is None else one
        b = torch.zeros(()) if other is None else other
        largest = max(1.0, float(b.abs().max()))
        differs = _differs(a, b.expand_as(a) if other is None else b, rounding * largest)
        if differs.any():
            raise Unlike(_difference(name, f"gradient {place}", a.expand_as(differs), b, differs))


def _differs(a: Tensor, b: Tensor, rounding: float) -> Tensor:
    allowed = rounding * b.abs().clamp(min=1.0) if b.is_floating_point() else 0
    return ~(((a - b).abs() <= allowed) | (a == b) | ((a != a) & (b != b)))


def _difference(name: str, what: str, one: Tensor, other: Tensor, differs: Tensor) -> str:
    at = tuple(differs.nonzero()[0].tolist())
    values = f"{float(one[at]):.9g} and {float(other.expand_as(differs)[at]):.9g}"
    return (
        f"{name} and eager do not do the same work: {what} at {list(at)} is {values}, and differs in "
        f"{int(differs.sum())} of {differs.numel()} places; python -m flexsn check says more"
    )


# ---- the table ---------------------------------------------------------------------------------------------


def side_by_side(rows: dict[str, dict[str, float]], labels: Sequence[str], of: str = OURS) -> str:
    """Milliseconds of each work by label, with how many times as long as `of` each took."""
    cells = [["work", *labels]]
    for work, times in rows.items():
        row = [work]
        for label in labels:
            if label not in times:
                row.append("-")
            elif label == of or of not in times:
                row.append(f"{times[label]:.3f} ms")
            else:
                row.append(f"{times[label]:.3f} ms  {times[label] / times[of]:6.2f} x")
        cells.append(row)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        parts = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("   ".join(parts).rstrip())
    return "\n".join(lines) + "\n"


def _table(report: BenchReport) -> str:
    labels = list(next(iter(report.milliseconds.values())))
    where = f"{report.threads} threads of torch" if report.device == "cpu" else f"on {report.device}"
    head = f"{report.neuron}, T = {report.T}, steps of shape {list(report.shape)}, {report.dtype}, {where}\n"
    notes = "".join(f"left out: {what}: {why}\n" for what, why in report.left_out.items())
    foot = f"medians; x: times as long as {OURS}\n" if len(labels) > 1 else "medians\n"
    return head + side_by_side(report.milliseconds, labels) + foot + notes
