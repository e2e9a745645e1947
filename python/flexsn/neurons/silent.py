"""Neurons that never fire: their potential is their output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .library import LibraryNeuron, Number

_DECODERS = (None, "max-mem", "max-abs-mem", "mean-mem", "last_mem")


class _Silent(LibraryNeuron):
    """A call gives the potential of each step, or what `decode` makes of a sequence of them: "max-mem" the
    largest, "max-abs-mem" the one that is furthest from 0, "mean-mem" their mean, "last_mem" the last. Of a
    sequence without steps there is nothing to make: that is an error, unless decode is None."""

    def __init__(self, options: dict[str, Any], decode: str | None, step_mode: str, backend: str) -> None:
        super().__init__(options, None, step_mode, backend)
        self.decode = decode

    @property
    def decode(self) -> str | None:
        """What becomes of the potentials of a sequence."""
        return self._decode

    @decode.setter
    def decode(self, value: str | None) -> None:
        if not isinstance(value, str | None) or value not in _DECODERS:
            raise ValueError(f"{type(self).__name__}: decode must be one of {_DECODERS}, found {value!r}")
        self._decode = value

    def multi_step_forward(self, x_seq: Tensor) -> Tensor:
        """A sequence [T, ...]."""
        if self._decode is not None and isinstance(x_seq, Tensor) and x_seq.dim() > 0 and len(x_seq) == 0:
            raise ValueError(
                f"{type(self).__name__}: decode={self._decode!r} needs a sequence of at least one step, "
                f"found one of shape {tuple(x_seq.shape)}; with decode=None a call gives an empty sequence"
            )
        return super().multi_step_forward(x_seq)

    def _returned(self, outputs: list[Tensor]) -> Tensor:
        v_seq = outputs[0]
        if self._step_mode == "s" or self._decode is None:
            return v_seq
        if self._decode == "max-mem":
            return torch.max(v_seq, 0).values
        if self._decode == "mean-mem":
            return torch.mean(v_seq, 0)
        if self._decode == "last_mem":
            return v_seq[-1]
        high, low = torch.max(v_seq, 0).values, torch.min(v_seq, 0).values
        return torch.where(high.abs() > low.abs(), high, low)


class NonSpikingIFNode(_Silent):
    """A sum of its input."""

    name = "non_spiking_if"

    def __init__(self, decode: str | None = None, step_mode: str = "m", backend: str = "fused") -> None:
        super().__init__({}, decode, step_mode, backend)


class NonSpikingLIFNode(_Silent):
    """A leaky mean of its input."""

    name = "non_spiking_lif"

    def __init__(
        self, tau: Number = 2.0, decode: str | None = None, step_mode: str = "m", backend: str = "fused"
    ) -> None:
        super().__init__({"tau": tau}, decode, step_mode, backend)


class SynapticLINode(_Silent):
    """A leaky integrator behind an alpha synapse, whose answer to a spike rises and falls.

    c_decay: what is left of the synapse's two states, `r` and `c`, after a step.
    """

    name = "synaptic_li"

    def __init__(
        self,
        c_decay: Number = 0.5,
        tau: Number = 2.0,
        decode: str | None = None,
        step_mode: str = "m",
        backend: str = "fused",
    ) -> None:
        super().__init__({"c_decay": c_decay, "tau": tau}, decode, step_mode, backend)
