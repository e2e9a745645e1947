"""A neuron of one's own with a learnable threshold for each channel: channels learn to fire at given rates.

usage: python channel_threshold.py [--steps N] [--length T] [--batch B] [--channels C] [--device cuda]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import flexsn


class TiringNeuron(nn.Module):
    """One time step: a leaky potential, and a fatigue that spikes add to, which makes the next one harder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fire = flexsn.surrogate.ATan()
        self.threshold = nn.Parameter(torch.ones(channels, 1))  # a step is [batch, channels, cells]

    def forward(self, x: Tensor, v: Tensor, fatigue: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = v + (x - v) / 2.0
        s = self.fire(h - self.threshold - fatigue)
        return s, torch.where(s > 0, 0.0, h), 0.9 * fatigue + 0.1 * s


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = {"steps": 150, "length": 64, "batch": 16, "channels": 4, "cells": 32}
    for name, number in usual.items():
        parser.add_argument(f"--{name}", type=int, default=number, help=f"by default {number}")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if min(getattr(given, name) for name in usual) < 1:
        parser.error("sizes and steps must be at least 1")
    return given


def main() -> None:
    given = arguments()
    torch.manual_seed(1)
    neurons = flexsn.FlexSN(TiringNeuron(given.channels), num_states=2).to(given.device)
    wanted = torch.linspace(0.02, 0.3, given.channels, device=given.device)
    optimizer = torch.optim.Adam(neurons.parameters(), lr=0.03)
    losses = []
    for step in range(given.steps):
        shape = (given.length, given.batch, given.channels, given.cells)
        currents = 2.0 * torch.rand(shape, device=given.device)
        neurons.reset()  # each batch starts from rest
        rates = neurons(currents).mean(dim=(0, 1, 3))
        loss = (rates - wanted).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 25 == 0:
            print(f"step {step:4}  loss {losses[-1]:.6f}")

    print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    print("channel  threshold  wanted rate    rate")
    for channel, threshold in enumerate(neurons.core.threshold.flatten().tolist()):
        print(f"{channel:7}  {threshold:9.4f}  {wanted[channel]:11.4f}  {rates[channel]:.4f}")


if __name__ == "__main__":
    main()
