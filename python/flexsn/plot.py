"""Pictures of spikes, states, surrogates and timings, on matplotlib.

Every function draws on the Axes `ax`, or on the current ones where none are given, and returns them; further
keywords go to the matplotlib function that draws. Data are tensors, arrays or lists.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .base import MemoryModule
from .eager import call_core
from .neuron import FlexSN
from .surrogate import SurrogateLike, named

try:
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError(
        f"flexsn.plot draws with matplotlib, which cannot be imported ({error}); install it: pip install "
        "matplotlib"
    ) from error

__all__ = ["bench_bars", "phase_plane", "raster", "surrogate", "traces"]

_LOG_FROM = 30  # bars that differ by more are drawn on a logarithmic scale


def _axes(ax: Axes | None, asker: str) -> Axes:
    """The Axes to draw on."""
    if ax is None:
        from matplotlib import pyplot

        return pyplot.gca()
    if not isinstance(ax, Axes):
        raise TypeError(
            f"flexsn.plot.{asker}: ax must be one Axes of matplotlib, found {type(ax).__name__}; "
            "with subplots, pick one of them"
        )
    return ax


def _sequence(values: Any, what: str, asker: str) -> np.ndarray:
    """Data [T, ...] as real numbers [T, N], on the host."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise TypeError(f"flexsn.plot.{asker}: {what} must be real numbers, found {values.dtype}")
        values = values.detach().to("cpu", torch.float64).numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"flexsn.plot.{asker}: {what} must be one array [T, ...]: {error}") from None
    if array.dtype.kind not in "bfiu":
        found = array.dtype if array.dtype != object else type(values).__name__
        raise TypeError(f"flexsn.plot.{asker}: {what} must be real numbers, found {found}")
    if array.ndim == 0:
        raise ValueError(
            f"flexsn.plot.{asker}: {what} must have time as its first dimension, found a scalar; "
            "a sequence is [T] or [T, ...]"
        )
    neurons = math.prod(array.shape[1:])
    return array.reshape(array.shape[0], neurons).astype(np.float64)


def _time_axis(ax: Axes) -> None:
    ax.set_xlabel("time step")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def raster(spikes: Any, *, ax: Axes | None = None, **style: Any) -> Axes:
    """A mark at each step in which a neuron fires: `spikes` [T, ...], 0 where there is none.

    Neurons are numbered in the order of memory. `style` goes to Axes.scatter.
    """
    ax = _axes(ax, "raster")
    array = _sequence(spikes, "spikes", "raster")
    if np.isnan(array).any():
        step = int(np.argwhere(np.isnan(array))[0, 0])
        raise ValueError(f"flexsn.plot.raster: spikes must be numbers, found NaN at step {step}")
    times, which = np.nonzero(array)
    # A mark is as high as a row where rows are wide enough, so that a column of spikes is a line.
    height = ax.get_window_extent().height * 72 / ax.figure.dpi / max(array.shape[1], 1)
    drawn = {"marker": "|", "s": min(max(0.8 * height, 2.0), 12.0) ** 2, "color": "black", "linewidths": 1.0}
    if "c" in style:
        del drawn["color"]
    # Silent steps and silent neurons are in sight, and so is what was drawn before.
    kept = (ax.get_xlim(), ax.get_ylim()) if ax.has_data() else ((-0.5, 0.5), (-0.5, 0.5))
    ax.scatter(times, which, **{**drawn, **style})
    ax.set_xlim(min(kept[0][0], -0.5), max(kept[0][1], array.shape[0] - 0.5))
    ax.set_ylim(min(kept[1][0], -0.5), max(kept[1][1], array.shape[1] - 0.5))
    _time_axis(ax)
    ax.set_ylabel("neuron")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def traces(
    values: Any,
    *,
    ax: Axes | None = None,
    labels: str | Sequence[str] | None = None,
    threshold: float | None = None,
    **style: Any,
) -> Axes:
    """One line over time for each neuron of `values` [T, ...], or a dict of such, by name.

    labels: names of the lines for the legend, which a dict has already. threshold: a dashed line at that
    height. `style` goes to Axes.plot.
    """
    ax = _axes(ax, "traces")
    _refuse_label(style, "traces", "labels= names the lines")
    groups = values if isinstance(values, Mapping) else {None: values}
    if isinstance(values, Mapping) and labels is not None:
        raise ValueError("flexsn.plot.traces: a dict has its own labels; leave out labels")
    columns = {
        name: _sequence(group, "values" if name is None else f"values[{name!r}]", "traces")
        for name, group in groups.items()
    }
    lines = [(name, column) for name, array in columns.items() for column in array.T]
    names: list[str | None]
    if labels is not None:
        names = [labels] if isinstance(labels, str) else list(labels)
        if len(names) != len(lines):
            raise ValueError(
                f"flexsn.plot.traces: labels must name the {len(lines)} lines of values, found {len(names)}"
            )
    else:
        names = []
        for name, array in columns.items():
            several = name is not None and array.shape[1] > 1
            names += [f"{name}[{i}]" if several else name for i in range(array.shape[1])]
    for name, (_, column) in zip(names, lines):
        ax.plot(np.arange(len(column)), column, label=name, **style)
    if threshold is not None:
        ax.axhline(_number(threshold, "threshold", "traces"), color="gray", linestyle="--", linewidth=1.0)
    _time_axis(ax)
    if any(name is not None for name in names):
        ax.legend()
    return ax


def _refuse_label(style: Mapping[str, Any], asker: str, instead: str) -> None:
    """What is drawn has one label for each of several things."""
    if "label" in style:
        raise TypeError(f"flexsn.plot.{asker}: {instead}; leave out label, found {style['label']!r}")


def _listed(values: Any) -> Any:
    """A tensor or an array as numbers and lists of them; anything else as it is."""
    if isinstance(values, Tensor):
        return values.detach().tolist()
    return values.tolist() if isinstance(values, np.ndarray | np.generic) else values


def _number(value: Any, what: str, asker: str) -> float:
    value = _listed(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise TypeError(f"flexsn.plot.{asker}: {what} must be a finite number, found {value!r}")
    return float(value)


def _range(limits: Any, what: str, asker: str) -> tuple[float, float]:
    """Two numbers, the lower one first."""
    limits = _listed(limits)
    if not isinstance(limits, Sequence) or isinstance(limits, str) or len(limits) != 2:
        raise TypeError(f"flexsn.plot.{asker}: {what} must be two numbers (low, high), found {limits!r}")
    low, high = (_number(limit, what, asker) for limit in limits)
    if low >= high:
        raise ValueError(f"flexsn.plot.{asker}: {what} must be (low, high) with low < high, found {limits!r}")
    return low, high


def surrogate(
    surrogates: SurrogateLike | Sequence[SurrogateLike] | Mapping[str, SurrogateLike],
    *,
    ax: Axes | None = None,
    u: tuple[float, float] = (-2.0, 2.0),
    points: int = 401,
    **style: Any,
) -> Axes:
    """The gradient of one or more surrogates by the distance `u` to threshold.

    A surrogate is one of flexsn.surrogate, its text ("atan:alpha=3"), or any function of a tensor, such as
    the `apply` of an autograd function; a dict gives the names for the legend. `style` goes to Axes.plot.
    """
    ax = _axes(ax, "surrogate")
    _refuse_label(style, "surrogate", "a dict {name: surrogate} names the lines")
    if isinstance(surrogates, Mapping):
        shown = dict(surrogates)
    else:
        several = isinstance(surrogates, Sequence) and not isinstance(surrogates, str)
        # Pairs, for the same one may come twice.
        shown = {(i, _shown_name(one)): one for i, one in enumerate(surrogates if several else [surrogates])}
    low, high = _range(u, "u", "surrogate")
    if not isinstance(points, int) or points < 2:
        raise ValueError(f"flexsn.plot.surrogate: points must be at least 2, found {points!r}")
    for name, function in shown.items():
        if isinstance(function, str):
            function = named(function)
        elif not callable(function):
            raise TypeError(
                "flexsn.plot.surrogate: a surrogate is one of flexsn.surrogate, its name, or a function of a "
                f"tensor, found {type(function).__name__}"
            )
        label = name[1] if isinstance(name, tuple) else name
        at = torch.linspace(low, high, points, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            spikes = function(at)
            if not isinstance(spikes, Tensor) or not spikes.requires_grad:
                raise ValueError(f"flexsn.plot.surrogate: {label} gives nothing that has a gradient")
            (gradient,) = torch.autograd.grad(spikes.sum(), at)
        ax.plot(at.detach().numpy(), gradient.numpy(), label=label, **style)
    ax.set_xlim(low, high)
    ax.set_xlabel("distance to threshold")
    ax.set_ylabel("gradient")
    if shown:
        ax.legend()
    return ax


def _shown_name(function: Any) -> str:
    """What a surrogate is called in a legend."""
    if isinstance(function, str):
        return function
    if isinstance(function, nn.Module):
        settings = function.extra_repr().replace(", spiking=True", "").replace("spiking=True", "")
        return f"{type(function).__name__}({settings})"
    owner = getattr(function, "__self__", None)  # the autograd function of an `apply`
    return owner.__name__ if isinstance(owner, type) else getattr(function, "__name__", repr(function))


# ---- phase plane -------------------------------------------------------------------------------------------

_Step = Callable[[Tensor, Tensor], tuple[Sequence[Tensor], Sequence[Tensor]]]
_Flow = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def _one_step(neuron: Any, inputs: Any) -> tuple[_Step, tuple[str, ...], Tensor]:
    """A step of two states under constant inputs, the names of the states, and an example of their type."""
    asker = "flexsn.plot.phase_plane"
    inputs = _listed(inputs)
    currents = list(inputs) if isinstance(inputs, Sequence) else [inputs]
    constants = [_number(current, "inputs", "phase_plane") for current in currents]
    names: tuple[str, ...] = ("state 0", "state 1")
    example = torch.zeros(())
    if isinstance(neuron, nn.Module):
        floats = [p for p in (*neuron.parameters(), *neuron.buffers()) if p.is_floating_point()]
        example = torch.zeros((), dtype=floats[0].dtype, device=floats[0].device) if floats else example
    if isinstance(neuron, MemoryModule):
        listed = isinstance(neuron, FlexSN)  # its states are one memory, a list
        if not listed:
            names = tuple(n for n, _ in neuron.named_memories() if n not in neuron.memory_caches)
        found = neuron.num_states if listed else len(names)
        if found != 2:
            raise ValueError(
                f"{asker}: a phase plane is of two states, found {found} ({type(neuron).__name__})"
            )
        if not listed:
            _require_inputs(neuron.multi_step_forward, len(constants), 0)

        def step(first: Tensor, second: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            whole = neuron.step_mode == "m"
            currents = tuple(torch.full_like(first, value) for value in constants)
            given = tuple(current[None] for current in currents) if whole else currents
            outputs, states = neuron.functional_forward(
                given, ([first, second],) if listed else (first, second)
            )
            states = states[0] if listed else states
            return [output[0] for output in outputs] if whole else outputs, states

    elif callable(neuron):
        _require_inputs(neuron.forward if isinstance(neuron, nn.Module) else neuron, len(constants), 2)

        def step(first: Tensor, second: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            currents = [torch.full_like(first, value) for value in constants]
            return call_core(neuron, currents, [first, second], (), None)

    else:
        raise TypeError(
            f"{asker} takes a core, a FlexSN or a neuron of flexsn.neurons, found {type(neuron).__name__}"
        )
    return step, names, example


def _require_inputs(function: Callable[..., Any], inputs: int, states: int) -> None:
    """Whether a function that shows its arguments takes this many inputs."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * (inputs + states))
    except TypeError as error:
        behind = f" before {states} states" if states else ""
        raise ValueError(
            "flexsn.plot.phase_plane: inputs must be a number for each input of the neuron, found "
            f"{inputs}{behind}, which it does not take: {error}"
        ) from None


def _on_points(step: _Step, example: Tensor, shape: tuple[int, ...], element: int) -> _Flow:
    """The step as a function of points: the states after it, and where the neuron fired."""

    def stepped(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        states = [
            torch.as_tensor(part.reshape(-1, *[1] * len(shape))).to(example).expand(-1, *shape).contiguous()
            for part in (x, y)
        ]
        try:
            with torch.no_grad():
                outputs, new = step(*states)
        except RuntimeError as error:
            raise ValueError(
                f"flexsn.plot.phase_plane: a step on states of shape {tuple(states[0].shape)} failed: {error}"
                "; where a parameter has a shape, say shape=, that of one step, and element="
            ) from error

        def picked(part: Tensor) -> np.ndarray:
            return part.reshape(x.size, -1)[:, element].to("cpu", torch.float64).numpy().reshape(x.shape)

        fired = np.zeros(x.shape, bool)
        for part in map(picked, outputs):
            if np.isin(part, (0, 1)).all():
                fired |= part == 1
        return picked(new[0]), picked(new[1]), fired

    return stepped


def _draw_walks(ax: Axes, stepped: _Flow, starts: Sequence[tuple[float, float]], steps: int) -> None:
    """Where the neuron goes from each start."""
    path = [np.array(starts)]
    for _ in range(steps):
        path.append(np.stack(stepped(path[-1][:, 0], path[-1][:, 1])[:2], axis=1))
    for place in range(len(starts)):
        walked = np.array([points[place] for points in path])
        (line,) = ax.plot(walked[:, 0], walked[:, 1], linewidth=1.0, marker=".", markersize=3)
        ax.plot(*walked[0], marker="o", color=line.get_color())


def phase_plane(
    neuron: Any,
    inputs: float | Sequence[float],
    first: tuple[float, float],
    second: tuple[float, float],
    *,
    ax: Axes | None = None,
    names: Sequence[str] | None = None,
    points: int = 21,
    starts: Sequence[tuple[float, float]] = (),
    steps: int = 100,
    shape: Sequence[int] = (),
    element: int = 0,
    **style: Any,
) -> Axes:
    """Where a neuron of two states goes in one step from each point of a grid, under constant inputs.

    Arrows show the direction of the change, dashed lines where a state stays as it is (its nullcline), and a
    gray area where the neuron fires: there, an output that is 0 or 1 is 1.

    neuron: a core `core(*inputs, state, state)`, a FlexSN or a neuron of flexsn.neurons. inputs: a number for
    each input. first, second: (low, high) of the states. names: what the axes are called. points: of the grid
    on a side. starts: points from which `steps` steps are drawn as a line. shape, element: where a parameter
    has a shape, the shape of one step, and which of its elements is drawn. `style` goes to Axes.quiver.
    """
    asker = "flexsn.plot.phase_plane"
    ax = _axes(ax, "phase_plane")
    step, found_names, example = _one_step(neuron, inputs)
    x_range, y_range = _range(first, "first", "phase_plane"), _range(second, "second", "phase_plane")
    if not isinstance(points, int) or points < 2:
        raise ValueError(f"{asker}: points must be at least 2, found {points!r}")
    names = found_names if names is None else tuple(names)
    if len(names) != 2:
        raise ValueError(f"{asker}: names must be those of two states, found {len(names)}")
    shape = tuple(shape)
    if not 0 <= element < math.prod(shape):
        raise ValueError(f"{asker}: element must be from 0 to {math.prod(shape) - 1}, found {element}")
    walks = []
    listed = _listed(starts)
    for start in map(_listed, listed if isinstance(listed, Sequence) else [listed]):
        if not isinstance(start, Sequence) or isinstance(start, str) or len(start) != 2:
            raise ValueError(f"{asker}: a start must be two numbers, one for each state, found {start!r}")
        walks.append(tuple(_number(number, "starts", "phase_plane") for number in start))
    if not isinstance(steps, numbers.Integral) or isinstance(steps, bool) or steps < 0:
        raise ValueError(f"{asker}: steps must be a whole number of at least 0, found {steps!r}")

    stepped = _on_points(step, example, shape, element)
    x, y = np.meshgrid(np.linspace(*x_range, points), np.linspace(*y_range, points))
    new_x, new_y, fired = stepped(x, y)
    width, height = x_range[1] - x_range[0], y_range[1] - y_range[0]
    dx, dy = (new_x - x) / width, (new_y - y) / height
    length = np.hypot(dx, dy)
    moves = (length > 0) & ~fired  # what stays has no direction, and a reset is no flow
    dx, dy = dx[moves] / length[moves] * width, dy[moves] / length[moves] * height
    drawn = {"angles": "xy", "pivot": "mid", "color": "0.45", "width": 0.0025, **style}
    ax.quiver(x[moves], y[moves], dx, dy, **drawn)

    fine = 8 * points
    x, y = np.meshgrid(np.linspace(*x_range, fine), np.linspace(*y_range, fine))
    new_x, new_y, fired = stepped(x, y)
    if fired.any():
        ax.contourf(x, y, fired.astype(float), levels=[0.5, 1.5], colors=["0.9"], zorder=0)
    for change, name, color in ((new_x - x, names[0], "tab:blue"), (new_y - y, names[1], "tab:orange")):
        change = np.where(fired, np.nan, change)
        if np.nanmin(change, initial=np.inf) < 0 < np.nanmax(change, initial=-np.inf):
            ax.contour(x, y, change, levels=[0.0], colors=[color], linestyles="--", linewidths=1.2)
            ax.plot([], [], color=color, linestyle="--", linewidth=1.2, label=f"{name} stays")

    if walks:
        _draw_walks(ax, stepped, walks, steps)
    ax.set_xlim(*x_range)
    ax.set_ylim(*y_range)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    if ax.get_legend_handles_labels()[0]:
        ax.legend()
    return ax


# ---- timings -----------------------------------------------------------------------------------------------


def bench_bars(
    rows: Mapping[str, Mapping[str, float | None]],
    *,
    ax: Axes | None = None,
    log: bool | None = None,
    **style: Any,
) -> Axes:
    """Milliseconds as horizontal bars: `rows` is {work: {label: milliseconds}}.

    A label is what did the work, and has one colour in all rows; None, or a label that is not there, is no
    bar. log: a logarithmic scale; by default where bars differ by a factor of more than 30. `style` goes to
    Axes.barh.
    """
    ax = _axes(ax, "bench_bars")
    _refuse_label(style, "bench_bars", "rows has the labels")
    if not isinstance(rows, Mapping) or not all(isinstance(row, Mapping) for row in rows.values()):
        raise TypeError("flexsn.plot.bench_bars: rows must be {work: {label: milliseconds}}")
    for work, row in rows.items():
        for label, time in row.items():
            if time is not None and _number(time, f"rows[{work!r}][{label!r}]", "bench_bars") <= 0:
                raise ValueError(
                    f"flexsn.plot.bench_bars: rows[{work!r}][{label!r}] must be more than 0 ms, found "
                    f"{time!r}"
                )
    labels = list(dict.fromkeys(label for row in rows.values() for label in row))
    times = [time for row in rows.values() for time in row.values() if time is not None]
    height = 0.8 / max(len(labels), 1)
    for place, label in enumerate(labels):
        there = [(i, row[label]) for i, row in enumerate(rows.values()) if row.get(label) is not None]
        middles = [i + (place - (len(labels) - 1) / 2) * height for i, _ in there]
        bars = ax.barh(middles, [time for _, time in there], height, label=label, **style)
        ax.bar_label(bars, [f"{time:.3g}" for _, time in there], padding=2, fontsize="small")
    if times and (log if log is not None else max(times) > _LOG_FROM * min(times)):
        ax.set_xscale("log")
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5 if rows else 0.5, -0.5)  # the first work on top
    ax.margins(x=0.12)  # room for the figures beside the bars
    ax.set_xlabel("milliseconds")
    if labels:
        ax.legend()
    return ax
