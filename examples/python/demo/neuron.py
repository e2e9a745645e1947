"""The neuron of the demo: it is in no library, and takes ten lines."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Spike(torch.autograd.Function):
    """1 at the threshold and above, else 0; the gradient of an arc tangent, as any user writes it."""

    @staticmethod
    def forward(ctx, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return grad / (1 + (torch.pi * u) ** 2)


# A spike costs energy, and a tired neuron takes in less of its input. The cost is learnt for each channel.
# demo: begin
class Tiring(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.cost = nn.Parameter(torch.full((channels,), 0.3))

    def forward(self, x, v, tired):
        h = v * 0.5 + x * (1 - tired)
        z = Spike.apply(h - 1)
        return z, h * (1 - z), tired * 0.9 + z * self.cost * (1 - tired)


# demo: end


class Eager(nn.Module):
    """The same neuron in plain PyTorch: the loop over time that everybody writes."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor) -> Tensor:
        v = tired = torch.zeros_like(x[0])
        spikes = []
        for step in x:
            z, v, tired = self.core(step, v, tired)
            spikes.append(z)
        self.states = [v, tired]
        return torch.stack(spikes)
