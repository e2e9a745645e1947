"""The network of examples/train_libtorch.cpp from Python beside the C++ program: training steps per second."""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import time

import torch
from torch import nn

import flexsn

FEATURES, CLASSES, WARM_UP = 64, 10, 5


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad / (1 + (torch.pi * u) ** 2)


class Core(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(channels))

    def forward(self, x, v):
        h = v + (x - v) * torch.sigmoid(self.w)
        s = Spike.apply(h - 1.0)
        return s, torch.where(s > 0, 0.0, h)


def train(steps: int, length: int, batch: int, hidden: int) -> float:
    """Steps per second."""
    net = nn.Sequential(
        nn.Linear(FEATURES, hidden),
        flexsn.FlexSN(Core(hidden), num_states=1),
        nn.Linear(hidden, CLASSES),
        flexsn.FlexSN(Core(CLASSES), num_states=1),
    )
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    patterns = torch.rand(CLASSES, FEATURES) * 2
    start = 0.0
    for step in range(steps):
        if step == WARM_UP:
            start = time.perf_counter()
        labels = torch.randint(CLASSES, (batch,))
        x = patterns[labels] + torch.randn(length, batch, FEATURES)
        flexsn.functional.reset_net(net)
        loss = nn.functional.cross_entropy(10 * net(x).mean(0), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    return (steps - WARM_UP) / (time.perf_counter() - start)


def train_in_cpp(program: str, *sizes: int) -> float:
    done = subprocess.run([program, *map(str, sizes)], capture_output=True, text=True)
    found = re.search(r"([\d.]+) steps per second", done.stdout)
    if found is None:
        raise SystemExit(f"{program} did not run: {done.stdout}{done.stderr}")
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="build/flexsn_train_libtorch")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    print(f"{'T x batch x hidden':22}{'Python':>10}{'C++':>10}   steps per second, median of {options.repeat}")
    for sizes in [(16, 64, 128), (8, 16, 32), (32, 128, 512)]:
        steps = max(options.steps * 16 * 64 * 128 // (sizes[0] * sizes[1] * sizes[2]), 20)
        steps = min(steps, 5 * options.steps)
        python, cpp = [], []
        for _ in range(options.repeat):  # in turns, so that a busy machine slows both
            python.append(train(steps, *sizes))
            cpp.append(train_in_cpp(options.program, steps, *sizes))
        ratio = statistics.median(cpp) / statistics.median(python)
        print(
            f"{' x '.join(map(str, sizes)):22}{statistics.median(python):10.1f}{statistics.median(cpp):10.1f}"
            f"   C++ is {ratio:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
