"""How long the same training takes in eager PyTorch, with torch.compile and with flexsn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import flexsn
from neuron import Eager, Tiring

CHANNELS, ROWS = 1024, 64


def _training(layer: nn.Module, x: Tensor, grad: Tensor) -> float:
    """Seconds of a pass forward and backward."""
    start = time.perf_counter()
    x.grad = None
    if isinstance(layer, flexsn.FlexSN):
        layer.reset()
    layer(x).backward(grad)
    return time.perf_counter() - start


def measure(
    steps: int, with_compile: bool, seconds: float, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """For each way the seconds that its first pass takes more than others, and the milliseconds of a pass."""
    core = Tiring(CHANNELS)
    ways: dict[str, nn.Module] = {"eager PyTorch": Eager(core)}
    if with_compile:
        ways["torch.compile"] = torch.compile(Eager(core))
    ways["flexsn"] = flexsn.FlexSN(core, num_states=2)
    x = torch.randn(steps, ROWS, CHANNELS, requires_grad=True)
    grad = torch.randn(steps, ROWS, CHANNELS)
    first: dict[str, float] = {}
    _training(ways["eager PyTorch"], x, grad)  # torch's own first call
    for name, layer in list(ways.items()):
        say(f"{name}: first pass ...")
        try:
            first[name] = _training(layer, x, grad)
        except Exception as error:  # torch.compile needs a C++ compiler, which a machine may lack
            if name != "torch.compile":
                raise
            say("")
            print(f"     left out: torch.compile ({str(error).strip().splitlines()[0]})")
            del ways[name]
    times: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["flexsn"]) < 3:  # in turns: a busy machine slows all of them
        for name, layer in ways.items():
            times[name].append(_training(layer, x, grad))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {name: [max(first[name] - medians[name], 0.0), 1e3 * medians[name]] for name in ways}
