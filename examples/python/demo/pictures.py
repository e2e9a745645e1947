"""The pictures of the demo."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

import flexsn
from digits import STEPS
from neuron import Spike, Tiring


def _layers(net: nn.Sequential, pixels: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Spikes of the hidden and the output layer for one digit, and all states of the hidden one."""
    for layer in net:
        if isinstance(layer, flexsn.FlexSN):
            layer.store_state_seqs = True
    flexsn.functional.reset_net(net)
    with torch.no_grad():
        hidden = net[1](net[0](pixels.expand(STEPS, 1, -1)))
        spikes = net[3](net[2](hidden))
    return [hidden[:, 0], spikes[:, 0]], [states[:, 0] for states in net[1].state_seqs]


def draw(
    net: nn.Sequential,
    digits: dict[str, Tensor],
    curve: list[tuple[float, float]],
    timings: dict[str, list[float]],
    out: pathlib.Path,
) -> list[pathlib.Path]:
    """Writes all pictures; their files."""
    from matplotlib.figure import Figure

    from flexsn import plot

    pixels, label = digits["test_x"][0], int(digits["test_y"][0])
    (hidden, classes), (v, tired) = _layers(net, pixels)
    written: list[pathlib.Path] = []

    def picture(name: str, columns: int, paint: Callable) -> None:
        figure = Figure(figsize=(5 * columns, 3.6), layout="constrained")
        paint(*figure.subplots(1, columns, squeeze=False)[0])
        written.append(out / f"{name}.png")
        figure.savefig(written[-1], dpi=110)

    def spikes(image, first, second) -> None:
        image.imshow(pixels.reshape(8, 8), cmap="gray_r")
        image.set(title=f"a held-out {label}", xticks=[], yticks=[])
        plot.raster(hidden, ax=first).set_title("hidden neurons")
        plot.raster(classes, ax=second).set(title="output neurons: one for each class", yticks=range(10))

    def states(first, second) -> None:
        # Such that fire now and then: one that fires in each step has its membrane at 0 after each.
        shown = (hidden.sum(0) - STEPS / 4).abs().argsort()[:3]
        names = [f"neuron {int(place)}" for place in shown]
        plot.traces(v[:, shown], ax=first, threshold=1.0).set(title="membrane", ylabel="potential")
        plot.traces(tired[:, shown], ax=second, labels=names).set(title="tiredness", ylabel="tiredness")
        second.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))  # for both, and over none of their lines

    def plane(ax) -> None:
        plot.phase_plane(
            Tiring(1), 0.8, (-0.2, 2.0), (0, 1), ax=ax, names=("membrane", "tiredness"), shape=(1,),
            starts=[(0.0, 0.0), (0.2, 0.9)], steps=40,
        )  # fmt: skip
        ax.set_title("one neuron under a constant current of 0.8")

    def surrogates(ax) -> None:
        shown = {"this neuron": Spike.apply, "sigmoid": "sigmoid", "triangle": "triangle", "erf": "erf"}
        plot.surrogate(shown, ax=ax).set_title("gradients that stand in for a spike's")

    def learning(loss, right) -> None:
        epochs = range(1, len(curve) + 1)
        loss.plot(epochs, [point[0] for point in curve], marker=".")
        loss.set(title="loss", xlabel="epoch", ylabel="cross entropy", yscale="log")
        right.plot(epochs, [100 * point[1] for point in curve], marker=".")
        right.set(title="held-out digits that are right", xlabel="epoch", ylabel="right, %")

    def bars(ax) -> None:
        plot.bench_bars({"training": {name: times[1] for name, times in timings.items()}}, ax=ax)

    picture("spikes", 3, spikes)
    picture("states", 2, states)
    picture("phase_plane", 1, plane)
    picture("surrogates", 1, surrogates)
    picture("learning", 2, learning)
    picture("timings", 1, bars)
    return written
