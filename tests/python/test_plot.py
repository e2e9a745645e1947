"""flexsn.plot: what is drawn, on which Axes, and what is refused."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch

import flexsn

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from flexsn import plot  # noqa: E402


@pytest.fixture
def ax() -> Axes:
    figure, made = pyplot.subplots()
    yield made
    pyplot.close(figure)


def offsets(ax: Axes) -> list[tuple[float, float]]:
    return sorted(tuple(point) for marks in ax.collections for point in marks.get_offsets())


def legend(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    package = str(pathlib.Path(flexsn.__file__).parents[1])
    around = {**os.environ, "PYTHONPATH": package}
    return subprocess.run(
        [sys.executable, "-c", code], env=around, capture_output=True, text=True, timeout=120
    )


# ---- the module


def test_plot_is_an_attribute_of_flexsn_that_loads_matplotlib_when_it_is_asked_for() -> None:
    code = (
        "import flexsn, sys; assert 'plot' in dir(flexsn); print('matplotlib' in sys.modules); "
        "print(flexsn.plot.raster.__name__)"
    )
    assert run_python(code).stdout == "False\nraster\n"
    with pytest.raises(AttributeError, match="module 'flexsn' has no attribute 'plots'"):
        flexsn.plots


def test_without_matplotlib_the_error_says_what_to_install() -> None:
    done = run_python("import sys; sys.modules['matplotlib'] = None; import flexsn.plot")
    assert "flexsn.plot draws with matplotlib, which cannot be imported" in done.stderr
    assert "pip install matplotlib" in done.stderr


def test_a_given_ax_needs_no_pyplot() -> None:
    code = """
import sys, torch, flexsn.plot
from matplotlib.figure import Figure
ax = Figure().subplots()
assert flexsn.plot.raster(torch.eye(3), ax=ax) is ax
print('matplotlib.pyplot' in sys.modules)"""
    done = run_python(code)
    assert done.stdout == "False\n", done.stderr


CALLS = {
    "raster": lambda **more: plot.raster(torch.eye(3), **more),
    "traces": lambda **more: plot.traces(torch.eye(3), **more),
    "surrogate": lambda **more: plot.surrogate("atan", **more),
    "phase_plane": lambda **more: plot.phase_plane(decaying, 0.5, (0, 1), (0, 1), points=3, **more),
    "bench_bars": lambda **more: plot.bench_bars({"work": {"eager": 1.0}}, **more),
}


def decaying(x, v, w):
    return x * 0.5, v * 0.5 + x, w * 0.5


@pytest.mark.parametrize("name", CALLS)
def test_it_draws_on_the_given_axes_or_the_current_ones_and_returns_them(name: str, ax: Axes) -> None:
    others = ax.figure.add_subplot()  # these are the current ones
    assert CALLS[name](ax=ax) is ax and ax.has_data() and not others.has_data()
    assert CALLS[name]() is others and others.has_data()


@pytest.mark.parametrize("name", CALLS)
def test_an_ax_that_is_none_is_refused(name: str) -> None:
    message = (
        rf"flexsn.plot.{name}: ax must be one Axes of matplotlib, found ndarray; with subplots, pick one"
    )
    with pytest.raises(TypeError, match=message):
        CALLS[name](ax=np.array([1, 2]))


def test_style_goes_to_matplotlib(ax: Axes) -> None:
    (line,) = plot.traces(torch.arange(3), ax=ax, color="red", linewidth=3).lines
    assert (line.get_color(), line.get_linewidth()) == ("red", 3)
    plot.raster(torch.eye(2), ax=ax, c="blue", marker="o")
    assert ax.collections[0].get_facecolor()[0].tolist() == [0, 0, 1, 1]


# ---- raster


def test_a_raster_has_one_mark_for_each_spike(ax: Axes) -> None:
    spikes = torch.zeros(6, 2, 2)
    spikes[1, 0, 1] = spikes[1, 1, 1] = spikes[4, 1, 0] = 1
    plot.raster(spikes, ax=ax)
    assert offsets(ax) == [(1, 1), (1, 3), (4, 2)]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time step", "neuron")
    assert (ax.get_xlim(), ax.get_ylim()) == ((-0.5, 5.5), (-0.5, 3.5))


@pytest.mark.parametrize(
    "spikes",
    [
        torch.tensor([0, 1, 1], dtype=torch.bfloat16),
        torch.tensor([0.0, 1, 1], requires_grad=True) * 1,
        torch.tensor([False, True, True]),
        np.array([0, 1, 2]),
        [0, 1, 1],
    ],
)
def test_a_raster_takes_any_real_sequence(spikes, ax: Axes) -> None:
    assert offsets(plot.raster(spikes, ax=ax)) == [(1, 0), (2, 0)]


@pytest.mark.parametrize("shape", [(0,), (0, 5), (4, 0), (1, 1)])
def test_a_raster_of_nothing_is_an_empty_picture(shape: tuple[int, ...], ax: Axes) -> None:
    assert offsets(plot.raster(torch.zeros(shape), ax=ax)) == []
    ax.figure.canvas.draw()


def test_a_second_raster_keeps_the_first_in_sight(ax: Axes) -> None:
    plot.raster(torch.ones(10, 8), ax=ax)
    plot.raster(torch.ones(2, 12), ax=ax)
    assert (ax.get_xlim(), ax.get_ylim()) == ((-0.5, 9.5), (-0.5, 11.5))


def test_a_raster_refuses_what_is_no_sequence_of_numbers(ax: Axes) -> None:
    with pytest.raises(
        ValueError, match=r"raster: spikes must have time as its first dimension, found a scalar"
    ):
        plot.raster(torch.tensor(1.0), ax=ax)
    with pytest.raises(TypeError, match="raster: spikes must be real numbers, found torch.complex64"):
        plot.raster(torch.zeros(3, dtype=torch.complex64), ax=ax)
    with pytest.raises(TypeError, match="raster: spikes must be real numbers, found <U1"):
        plot.raster(["a", "b"], ax=ax)
    with pytest.raises(ValueError, match=r"raster: spikes must be one array \[T, ...\]"):
        plot.raster([[1, 2], [1]], ax=ax)
    with pytest.raises(ValueError, match="raster: spikes must be numbers, found NaN at step 2"):
        plot.raster([0, 1, float("nan")], ax=ax)
    assert not ax.has_data()


# ---- traces


def test_traces_are_one_line_for_each_neuron(ax: Axes) -> None:
    values = torch.arange(12.0).reshape(4, 3)
    plot.traces(values, ax=ax, labels=["a", "b", "c"], threshold=1.5)
    lines = ax.lines[:3]
    assert [line.get_ydata().tolist() for line in lines] == values.T.tolist()
    assert all(line.get_xdata().tolist() == [0, 1, 2, 3] for line in lines)
    assert list(ax.lines[3].get_ydata()) == [1.5, 1.5]
    assert legend(ax) == ["a", "b", "c"] and ax.get_xlabel() == "time step"


def test_traces_of_a_dict_have_its_names(ax: Axes) -> None:
    plot.traces({"v": torch.zeros(5), "w": torch.ones(3, 2)}, ax=ax)
    assert legend(ax) == ["v", "w[0]", "w[1]"]
    assert [len(line.get_xdata()) for line in ax.lines] == [5, 3, 3]


def test_traces_without_names_have_no_legend(ax: Axes) -> None:
    assert plot.traces(torch.zeros(0, 2), ax=ax).get_legend() is None
    assert len(ax.lines) == 2


def test_traces_refuse_labels_that_do_not_fit(ax: Axes) -> None:
    with pytest.raises(ValueError, match="traces: labels must name the 3 lines of values, found 1"):
        plot.traces(torch.zeros(4, 3), ax=ax, labels="v")
    with pytest.raises(ValueError, match="traces: a dict has its own labels; leave out labels"):
        plot.traces({"v": [1, 2]}, ax=ax, labels=["v"])
    with pytest.raises(TypeError, match="traces: threshold must be a finite number, found 'high'"):
        plot.traces([1, 2], ax=ax, threshold="high")
    with pytest.raises(ValueError, match=r"traces: values\['v'\] must have time as its first dimension"):
        plot.traces({"v": 1.0}, ax=ax)


def test_what_has_labels_of_its_own_refuses_another(ax: Axes) -> None:
    with pytest.raises(TypeError, match="traces: labels= names the lines; leave out label, found 'x'"):
        plot.traces([1, 2], ax=ax, label="x")
    with pytest.raises(TypeError, match="surrogate: a dict .* names the lines; leave out label, found 'x'"):
        plot.surrogate("atan", ax=ax, label="x")
    with pytest.raises(TypeError, match="bench_bars: rows has the labels; leave out label, found 'x'"):
        plot.bench_bars({"a": {"b": 1.0}}, ax=ax, label="x")


# ---- surrogate


class Mine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad * (u.abs() < 0.5)


def test_a_surrogate_is_drawn_as_its_gradient(ax: Axes) -> None:
    plot.surrogate(["triangle", flexsn.surrogate.ATan(3.0), Mine.apply], ax=ax, u=(-1, 1), points=5)
    assert [line.get_xdata().tolist() for line in ax.lines] == [[-1, -0.5, 0, 0.5, 1]] * 3
    assert ax.lines[0].get_ydata().tolist() == [0, 0.5, 1, 0.5, 0]
    assert ax.lines[1].get_ydata()[2] == 1.5
    assert ax.lines[2].get_ydata().tolist() == [0, 0, 1, 0, 0]
    assert legend(ax) == ["triangle", "ATan(alpha=3.0)", "Mine"]
    assert (ax.get_xlim(), ax.get_xlabel(), ax.get_ylabel()) == ((-1, 1), "distance to threshold", "gradient")


def test_surrogates_of_a_dict_have_its_names_and_gradients_may_be_off(ax: Axes) -> None:
    with torch.no_grad():
        plot.surrogate({"ours": "atan", "mine": Mine.apply}, ax=ax)
    assert legend(ax) == ["ours", "mine"]


def test_a_surrogate_that_is_none_is_refused(ax: Axes) -> None:
    with pytest.raises(TypeError, match="surrogate: a surrogate is one of flexsn.surrogate, .*found int"):
        plot.surrogate(3, ax=ax)
    with pytest.raises(ValueError, match="surrogate: heaviside gives nothing that has a gradient"):
        plot.surrogate(flexsn.surrogate.heaviside, ax=ax)
    with pytest.raises(Exception, match="sawtooth"):
        plot.surrogate("sawtooth", ax=ax)
    with pytest.raises(
        ValueError, match=r"surrogate: u must be \(low, high\) with low < high, found \(1, 1\)"
    ):
        plot.surrogate("atan", ax=ax, u=(1, 1))
    with pytest.raises(TypeError, match=r"surrogate: u must be two numbers \(low, high\), found 2"):
        plot.surrogate("atan", ax=ax, u=2)
    with pytest.raises(ValueError, match="surrogate: points must be at least 2, found 1"):
        plot.surrogate("atan", ax=ax, points=1)


# ---- phase plane


def tiring(x, v, tired):
    h = v * 0.5 + x * (1 - tired)
    s = (h >= 1).to(h)
    return s, h * (1 - s), tired * 0.9 + s * 0.3 * (1 - tired)


def arrows(ax: Axes):
    from matplotlib.quiver import Quiver

    (found,) = [drawn for drawn in ax.collections if isinstance(drawn, Quiver)]
    return found


def test_a_phase_plane_has_arrows_to_where_one_step_goes(ax: Axes) -> None:
    plot.phase_plane(decaying, 0.5, (0, 2), (-1, 1), ax=ax, names=("v", "w"), points=5)
    drawn = arrows(ax)
    assert drawn.N == 24  # one point of the grid is where both stay
    # v goes to v / 2 + 0.5, w to w / 2: both ranges are 2 wide.
    dx, dy = 0.5 - 0.5 * drawn.X, -0.5 * drawn.Y
    length = np.hypot(dx, dy)
    np.testing.assert_allclose(drawn.U, 2 * dx / length, atol=1e-6)
    np.testing.assert_allclose(drawn.V, 2 * dy / length, atol=1e-6)
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, 2), (-1, 1))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("v", "w")
    assert legend(ax) == ["v stays", "w stays"]


def test_nullclines_lie_where_a_state_stays(ax: Axes) -> None:
    from matplotlib.contour import ContourSet

    plot.phase_plane(decaying, 0.5, (0, 2), (-1, 1), ax=ax, points=5)
    lines = [drawn for drawn in ax.collections if isinstance(drawn, ContourSet)]
    assert len(lines) == 2
    np.testing.assert_allclose(lines[0].get_paths()[0].vertices[:, 0], 1.0, atol=1e-6)
    np.testing.assert_allclose(lines[1].get_paths()[0].vertices[:, 1], 0.0, atol=1e-6)


def test_where_a_neuron_fires_there_is_an_area_and_no_arrow(ax: Axes) -> None:
    from matplotlib.contour import ContourSet

    plot.phase_plane(tiring, 0.8, (0, 3), (0, 1), ax=ax, points=7)
    x, y = np.meshgrid(np.linspace(0, 3, 7), np.linspace(0, 1, 7))
    silent = x * 0.5 + 0.8 * (1 - y) < 1
    assert 0 < silent.sum() < 49
    assert arrows(ax).get_offsets().tolist() == np.stack([x[silent], y[silent]], axis=1).tolist()
    assert any(isinstance(c, ContourSet) and c.filled for c in ax.collections)


def test_trajectories_are_steps_of_the_neuron(ax: Axes) -> None:
    plot.phase_plane(tiring, 0.8, (0, 3), (0, 1), ax=ax, points=3, starts=[(0, 0), (2.5, 1)], steps=4)
    walks = [line for line in ax.lines if len(line.get_xdata()) == 5]
    assert len(walks) == 2
    v, tired = torch.tensor([0.0, 2.5]), torch.tensor([0.0, 1.0])
    for t in range(1, 5):
        _, v, tired = tiring(torch.tensor(0.8), v, tired)
        for i, walk in enumerate(walks):
            assert (walk.get_xdata()[t], walk.get_ydata()[t]) == (v[i], tired[i])


def test_a_phase_plane_takes_modules_and_leaves_their_states(ax: Axes) -> None:
    whole = flexsn.FlexSN(tiring, num_states=2)
    single = flexsn.FlexSN(tiring, num_states=2, step_mode="s", backend="torch")
    whole(torch.ones(2, 3))
    before = [state.clone() for state in whole.states]
    plot.phase_plane(tiring, 0.8, (0, 3), (0, 1), ax=ax, points=4)
    for neuron in (whole, single):
        other = pyplot.figure().subplots()
        plot.phase_plane(neuron, 0.8, (0, 3), (0, 1), ax=other, points=4)
        np.testing.assert_array_equal(arrows(other).U, arrows(ax).U)
        pyplot.close(other.figure)
    assert all(torch.equal(a, b) for a, b in zip(before, whole.states)) and single.states is None


def test_a_neuron_of_the_library_has_the_names_of_its_states(ax: Axes) -> None:
    plot.phase_plane(flexsn.neurons.IzhikevichNode(), 0.3, (-1, 2), (-1, 2), ax=ax, points=4)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("v", "w")


def test_one_channel_is_drawn_where_a_parameter_has_one_for_each(ax: Axes) -> None:
    decay = torch.tensor([0.25, 0.5, 0.75])

    def core(x, y, v, w):
        return v * decay + x, w * decay + y

    plot.phase_plane(
        core, (0, 0), (1, 2), (1, 2), ax=ax, points=2, shape=(3,), element=2, starts=[(1, 1)], steps=1
    )
    walk = next(line for line in ax.lines if len(line.get_xdata()) == 2)
    assert (walk.get_xdata()[1], walk.get_ydata()[1]) == (0.75, 0.75)
    with pytest.raises(
        ValueError, match=r"a step on states of shape \(4,\) failed: .*say shape=, that of one"
    ):
        plot.phase_plane(core, (0, 0), (1, 2), (1, 2), ax=ax, points=2)


def test_a_phase_plane_refuses_what_has_no_plane(ax: Axes) -> None:
    plane = (0, 1), (0, 1)
    with pytest.raises(ValueError, match=r"a phase plane is of two states, found 1 \(LIFNode\)"):
        plot.phase_plane(flexsn.neurons.LIFNode(), 0.5, *plane, ax=ax)
    with pytest.raises(ValueError, match=r"a phase plane is of two states, found 3 \(FlexSN\)"):
        plot.phase_plane(flexsn.FlexSN(lambda x, a, b, c: (a, b, c), num_states=3), 0.5, *plane, ax=ax)
    with pytest.raises(TypeError, match="phase_plane takes a core, a FlexSN or a neuron .*, found str"):
        plot.phase_plane("lif", 0.5, *plane, ax=ax)
    with pytest.raises(ValueError, match="the core must return 2 states, found 1"):
        plot.phase_plane(lambda x, v, w: v, 0.5, *plane, ax=ax)
    with pytest.raises(TypeError, match="inputs must be a finite number, found 'x'"):
        plot.phase_plane(decaying, ["x"], *plane, ax=ax)
    with pytest.raises(ValueError, match="element must be from 0 to 2, found 3"):
        plot.phase_plane(decaying, 0.5, *plane, ax=ax, shape=(3,), element=3)
    with pytest.raises(
        ValueError, match=r"a start must be two numbers, one for each state, found \(1, 2, 3\)"
    ):
        plot.phase_plane(decaying, 0.5, *plane, ax=ax, starts=[(1, 2, 3)])
    with pytest.raises(ValueError, match="names must be those of two states, found 1"):
        plot.phase_plane(decaying, 0.5, *plane, ax=ax, names=["v"])
    for steps in (1.5, -1, True):
        with pytest.raises(ValueError, match=f"steps must be a whole number of at least 0, found {steps}"):
            plot.phase_plane(decaying, 0.5, *plane, ax=ax, starts=[(0, 0)], steps=steps)
    with pytest.raises(ValueError, match="inputs must be a number for each input of the neuron, found 2 "):
        plot.phase_plane(decaying, (0.5, 1.0), *plane, ax=ax)
    with pytest.raises(ValueError, match="inputs must be a number for each input of the neuron, found 2,"):
        plot.phase_plane(flexsn.neurons.CUBALIFNode(), (0.5, 1.0), *plane, ax=ax)


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_a_phase_plane_takes_tensors_arrays_and_lists(kind, ax: Axes) -> None:
    plot.phase_plane(
        decaying, kind([0.5]), kind([0.0, 1.0]), kind([0.0, 2.0]), ax=ax, points=3, steps=2,
        starts=kind([[0.0, 0.0], [1.0, 2.0], [0.5, 0.5]]),
    )  # fmt: skip
    assert len([line for line in ax.lines if len(line.get_xdata()) == 3]) == 3
    assert ax.get_ylim() == (0, 2)


# ---- timings


def test_bars_are_as_long_as_the_times(ax: Axes) -> None:
    plot.bench_bars({"net": {"eager": 20, "flexsn": 4.0}, "cell": {"eager": None, "flexsn": 2.5}}, ax=ax)
    assert [[bar.get_width() for bar in bars] for bars in ax.containers] == [[20], [4.0, 2.5]]
    assert legend(ax) == ["eager", "flexsn"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["net", "cell"]
    assert ax.get_xlabel() == "milliseconds" and ax.get_xscale() == "linear"
    bottom, top = ax.get_ylim()
    assert bottom > top  # the first work is on top


def test_bars_that_differ_much_are_on_a_logarithmic_scale(ax: Axes) -> None:
    rows = {"net": {"eager": 100.0, "flexsn": 1.0}}
    assert plot.bench_bars(rows, ax=ax).get_xscale() == "log"
    other = ax.figure.add_subplot()
    assert plot.bench_bars(rows, ax=other, log=False).get_xscale() == "linear"


def test_no_timings_are_an_empty_picture(ax: Axes) -> None:
    assert plot.bench_bars({}, ax=ax).get_legend() is None
    ax.figure.canvas.draw()


def test_times_that_are_none_are_refused(ax: Axes) -> None:
    with pytest.raises(ValueError, match=r"rows\['net'\]\['eager'\] must be more than 0 ms, found 0"):
        plot.bench_bars({"net": {"eager": 0}}, ax=ax)
    with pytest.raises(TypeError, match=r"rows\['net'\]\['eager'\] must be a finite number, found nan"):
        plot.bench_bars({"net": {"eager": float("nan")}}, ax=ax)
    with pytest.raises(TypeError, match=r"rows must be \{work: \{label: milliseconds\}\}"):
        plot.bench_bars({"eager": 3.0}, ax=ax)
