"""Truncated backpropagation through time: a stream in chunks; states are carried on, gradients are cut.

The network says the moving average of a noisy stream, which needs what it saw in earlier chunks.
usage: python truncated_bptt.py [--steps N] [--chunk T] [--batch B] [--hidden H]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import flexsn
from flexsn import functional, neurons


class LeakyNeuron(nn.Module):
    """One time step of spiking neurons, each of which learns how slowly it forgets."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.fire = flexsn.surrogate.ATan()
        self.slowness = nn.Parameter(torch.linspace(1.0, 5.0, count))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.sigmoid(self.slowness) * v + x
        s = self.fire(h - 1.0)
        return s, h - s


def chunks(count: int, length: int, batch: int) -> list[tuple[Tensor, Tensor]]:
    """A stream of noise and its moving average over some 20 steps, cut into chunks."""
    average, stream = torch.zeros(batch, 1), torch.randn(count, length, batch, 1)
    averages = []
    for x in stream.flatten(0, 1):
        average = 0.95 * average + 0.05 * x
        averages.append(3.0 * average)
    return list(zip(stream, torch.stack(averages).view_as(stream)))


@torch.no_grad()
def error(net: nn.Module, stream: list[tuple[Tensor, Tensor]], carry: bool) -> float:
    functional.reset_net(net)
    total = 0.0
    for x, wanted in stream:
        total += nn.functional.mse_loss(net(x), wanted).item()
        if not carry:
            functional.reset_net(net)
    return total / len(stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in {"steps": 300, "chunk": 10, "batch": 32, "hidden": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=number, help=f"by default {number}")
    given = parser.parse_args()
    if min(vars(given).values()) < 1:
        parser.error("sizes and steps must be at least 1")

    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Linear(1, given.hidden), flexsn.FlexSN(LeakyNeuron(given.hidden), num_states=1),
        nn.Linear(given.hidden, 1), neurons.NonSpikingLIFNode(tau=4.0, step_mode="m"),
    )  # fmt: skip
    test = chunks(20, given.chunk, given.batch)
    before = error(net, test, carry=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    functional.reset_net(net)  # once: the stream has one beginning
    for step, (x, wanted) in enumerate(chunks(given.steps, given.chunk, given.batch)):
        loss = nn.functional.mse_loss(net(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        functional.detach_net(net)  # the next chunk goes on from these states; its gradients stop here
        if step % 50 == 0:
            print(f"chunk {step:4}  loss {loss.item():.4f}")
    print(f"error {before:.4f} -> {error(net, test, carry=True):.4f}")
    print(f"with states that are lost after each chunk: {error(net, test, carry=False):.4f}")

    layer, currents = net[1], torch.randn(3 * given.chunk, given.batch, given.hidden)
    with torch.no_grad():
        layer.reset()
        whole = layer(currents)
        layer.reset()
        pieces = torch.cat([layer(part) for part in currents.split(given.chunk)])
    print("a layer run whole and in chunks: " + ("same bits" if torch.equal(whole, pieces) else "DIFFERENT"))


if __name__ == "__main__":
    main()
