"""A network of two layers of spiking neurons, and how it learns handwritten digits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import flexsn
from neuron import Tiring

STEPS, HIDDEN, BATCH, CLASSES = 16, 128, 64, 10


def load_digits() -> dict[str, Tensor]:
    """The 1797 digits of scikit-learn, 8 x 8 pixels as currents up to 4; a quarter of them is held out."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    found = load()
    parts = train_test_split(
        found.data / 4, found.target, test_size=0.25, random_state=0, stratify=found.target
    )
    train_x, test_x, train_y, test_y = map(torch.as_tensor, parts)
    return {
        "train_x": train_x.float(), "train_y": train_y.long(),
        "test_x": test_x.float(), "test_y": test_y.long(),
    }  # fmt: skip


def network() -> nn.Sequential:
    """From 64 pixels to 10 classes."""
    return nn.Sequential(
        nn.Linear(64, HIDDEN),
        flexsn.FlexSN(Tiring(HIDDEN), num_states=2),
        nn.Linear(HIDDEN, CLASSES),
        flexsn.FlexSN(Tiring(CLASSES), num_states=2),
    )


def rates(net: nn.Module, pixels: Tensor) -> Tensor:
    """Firing rates of the output neurons while the pixels are held as currents for some steps."""
    flexsn.functional.reset_net(net)
    return net(pixels.expand(STEPS, -1, -1)).mean(0)


@torch.no_grad()
def accuracy(net: nn.Module, digits: dict[str, Tensor]) -> float:
    """The part of the held-out digits whose class fires most."""
    return (rates(net, digits["test_x"]).argmax(1) == digits["test_y"]).double().mean().item()


def train(
    net: nn.Module,
    digits: dict[str, Tensor],
    epochs: int,
    report: Callable[[float, float, float], None],
) -> list[tuple[float, float]]:
    """The mean loss and the accuracy of each epoch; `report` gets the part done and the latest of both."""
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    x, y = digits["train_x"], digits["train_y"]
    curve: list[tuple[float, float]] = []
    reached = 0.0
    for epoch in range(epochs):
        torch.manual_seed(epoch)  # the order that the C++ program takes them in
        batches = torch.randperm(len(x)).split(BATCH)
        losses = []
        for place, which in enumerate(batches, 1):
            loss = nn.functional.cross_entropy(10 * rates(net, x[which]), y[which])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            report((epoch + place / len(batches)) / epochs, losses[-1], reached)
        reached = accuracy(net, digits)
        curve.append((sum(losses) / len(losses), reached))
    return curve
