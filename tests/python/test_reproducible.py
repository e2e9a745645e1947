"""A training run gives the same bits twice, on any number of threads, target and set of instructions."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

import flexsn
from neuron_equations import spike

#: of a run by `trained`; it holds for every machine, as each of its operations is rounded correctly
DIGEST = "7db87410bee6e043421b0cf49f2022ff0d09ccd2252100c4a248d13b63b8018a"


def triangle(u: Tensor) -> Tensor:
    return torch.clamp(1.0 - u.abs(), min=0.0)


class Adapting(nn.Module):
    """Two states, a parameter for each channel and a scalar one: sums over elements in both ways."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.arange(channels).reshape(channels, 1) / (2 * channels))
        self.threshold = nn.Parameter(torch.tensor(0.75))

    def forward(self, x: Tensor, v: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = v * self.decay + x * torch.sigmoid(v)
        s = spike(h - self.threshold - 0.25 * a, triangle)
        return s, h - s * self.threshold, 0.5 * a + s


def values(*shape: int, seed: int) -> Tensor:
    """Numbers from -2 to 2 that need no random generator."""
    count = int(torch.tensor(shape).prod())
    return ((torch.arange(count) * 7919 + seed * 104729) % 4001 / 1000 - 2).reshape(shape)


def trained(steps: int = 4) -> str:
    """A digest of all that a small training run computes."""
    channels, width = 6, 501
    core = Adapting(channels)
    module = flexsn.FlexSN(core, num_states=2)
    weight = values(11, channels, width, seed=1).requires_grad_()
    seen = hashlib.sha256()
    for step in range(steps):
        module.reset()
        output = module(weight * 0.75)
        grads = torch.autograd.grad(output, [weight, *core.parameters()], values(*output.shape, seed=step))
        with torch.no_grad():
            for tensor, grad in zip((weight, *core.parameters()), grads):
                tensor.sub_(grad * 0.001953125)
        for tensor in (output, weight, *module.states, *core.parameters()):
            seen.update(tensor.detach().numpy().tobytes())
    return seen.hexdigest()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_training_run_has_the_committed_bits_on_any_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert [trained(), trained()] == [DIGEST, DIGEST]
    finally:
        torch.set_num_threads(before)


def sets_of_instructions() -> list[str]:
    return ["x86-64-v3"] if platform.machine() == "x86_64" else []


@pytest.mark.parametrize(
    "setting", ["FLEXSN_TARGET=interpreter", *[f"FLEXSN_ISA={name}" for name in sets_of_instructions()]]
)
def test_a_training_run_has_the_committed_bits_with(setting: str) -> None:
    name, _, value = setting.partition("=")
    done = subprocess.run(
        [sys.executable, __file__], env={**os.environ, name: value}, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == (DIGEST + "\n", 0), done.stderr


if __name__ == "__main__":
    print(trained())
