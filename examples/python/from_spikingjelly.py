"""A SpikingJelly model migrated by one import: the same weights give the same spikes and gradients, sooner.

usage: python from_spikingjelly.py [--steps N] [--length T] [--batch B] [--width W]
"""

from __future__ import annotations

import argparse
import sys
import time
from types import ModuleType

import torch
from torch import Tensor, nn

try:
    from spikingjelly.activation_based import functional, layer
    from spikingjelly.activation_based import neuron as theirs
except ImportError as error:
    print(f"from_spikingjelly: skipped, since spikingjelly cannot be imported ({error})")
    sys.exit(0)

# The one line that changes. It was: from spikingjelly.activation_based import neuron
from flexsn import neurons as ours


def network(neuron: ModuleType, width: int) -> nn.Module:
    """The model as it was; everything but `neuron` is still SpikingJelly's and torch's."""
    net = nn.Sequential(
        layer.Conv2d(2, width, 3, padding=1, bias=False),
        neuron.LIFNode(tau=2.0, detach_reset=True),
        layer.Conv2d(width, width, 3, padding=1, bias=False),
        neuron.ParametricLIFNode(init_tau=1.5),
        layer.AdaptiveAvgPool2d(1),
        layer.Flatten(),
        layer.Linear(width, 10),
        neuron.IFNode(),
    )
    functional.set_step_mode(net, "m")
    return net


def run(net: nn.Module, x: Tensor, steps: int) -> tuple[Tensor, list[Tensor], float]:
    """Spikes, gradients of all parameters, and the seconds that a training step takes."""
    times = []
    for _ in range(steps + 1):  # the first one makes kernels
        start = time.perf_counter()
        functional.reset_net(net)  # finds the neurons of both
        net.zero_grad()
        spikes = net(x)
        spikes.mean().backward()
        times.append(time.perf_counter() - start)
    gradients = [parameter.grad for parameter in net.parameters()]
    return spikes.detach(), gradients, sorted(times[1:])[steps // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in {"steps": 5, "length": 16, "batch": 8, "width": 32}.items():
        parser.add_argument(f"--{name}", type=int, default=number, help=f"by default {number}")
    given = parser.parse_args()
    if min(vars(given).values()) < 1:
        parser.error("sizes and steps must be at least 1")
    torch.manual_seed(1)
    before, after = network(theirs, given.width), network(ours, given.width)
    after.load_state_dict(before.state_dict())  # the same names
    x = 3.0 * torch.rand(given.length, given.batch, 2, 16, 16)
    spikes, gradients, seconds = run(before, x, given.steps)
    new_spikes, new_gradients, new_seconds = run(after, x, given.steps)

    differing = int((spikes != new_spikes).sum())
    furthest = max((a - b).abs().max() / b.abs().max() for a, b in zip(new_gradients, gradients))
    print(f"{int(spikes.sum())} spikes of {spikes.numel()}, {differing} of them differ")
    print(f"gradients differ by at most {furthest:.1e} of the largest")
    print(f"a training step: spikingjelly {seconds * 1e3:.1f} ms, flexsn {new_seconds * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
