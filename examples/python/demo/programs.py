"""The C++ programs beside the demo: the same neuron on plain arrays, and the same network with libtorch."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class Failed(Exception):
    """What the demo promises did not hold; the text says what."""


def _run(program: pathlib.Path, *arguments: object) -> str:
    try:
        done = subprocess.run(
            [program, *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise Failed(f"{program} cannot be run ({error.strerror}); make demo builds it") from error
    if done.returncode != 0:
        raise Failed(f"{program.name} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Arrays(NamedTuple):
    """What a run of the neuron gives."""

    spikes: Tensor
    v: Tensor
    tired: Tensor
    grad_x: Tensor
    grad_cost: Tensor


def run_neuron(folder: pathlib.Path, out: pathlib.Path, x: Tensor, cost: Tensor, grad: Tensor) -> Arrays:
    """Forward and backward in C++."""
    given, taken = out / "neuron.in", out / "neuron.out"
    given.write_bytes(b"".join(part.detach().numpy().tobytes() for part in (x, cost, grad)))
    _run(folder / "flexsn_demo_neuron", given, taken, *x.shape)
    shapes = x.shape, x.shape[1:], x.shape[1:], x.shape, cost.shape
    values = torch.from_numpy(np.fromfile(taken, np.float32))
    sizes = [shape.numel() for shape in shapes]
    if len(values) != sum(sizes):
        raise Failed(f"flexsn_demo_neuron wrote {len(values)} numbers, {sum(sizes)} were expected")
    return Arrays(*(part.reshape(shape) for part, shape in zip(values.split(sizes), shapes)))


class Trained(NamedTuple):
    first_loss: float  #: the mean of the first epoch
    accuracy: float
    seconds: float


def train(
    folder: pathlib.Path,
    out: pathlib.Path,
    digits: dict[str, Tensor],
    net: nn.Module,
    epochs: int,
    steps: int,
) -> Trained:
    """Trains with libtorch from the weights of `net`, which gets the trained ones."""
    paths = [out / name for name in ("digits.pt", "start.pt", "trained.pt")]
    torch.save(digits, paths[0])
    torch.save(net.state_dict(), paths[1])
    printed = _run(folder / "flexsn_demo_digits", *paths, epochs, steps)
    found = re.search(r"first epoch (\S+), accuracy (\S+), (\S+) s", printed)
    if found is None:
        raise Failed(f"flexsn_demo_digits printed no result: {printed.strip()}")
    net.load_state_dict(torch.load(paths[2]))
    return Trained(*map(float, found.groups()))
