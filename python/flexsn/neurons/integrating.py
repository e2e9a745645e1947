"""Neurons without a leak: what comes in stays until a spike."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor

from ..surrogate import SurrogateLike
from .library import LibraryNeuron, Number


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


class IFNode(LibraryNeuron):
    """Integrate and fire."""

    name = "if"

    def __init__(
        self,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {"v_threshold": v_threshold, "v_reset": v_reset, "detach_reset": detach_reset}
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class SimpleIFNode(LibraryNeuron):
    """Integrate and fire that starts at 0 whatever it resets to."""

    name = "simple_if"

    def __init__(
        self,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
    ) -> None:
        options = {"v_threshold": v_threshold, "v_reset": v_reset, "detach_reset": detach_reset}
        super().__init__(options, surrogate_function, step_mode, backend)


class HalfThresholdIFNode(LibraryNeuron):
    """Integrate and fire with a soft reset that starts at half its threshold."""

    name = "half_threshold_if"

    def __init__(
        self,
        v_threshold: float = 1.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {"v_threshold": v_threshold, "detach_reset": detach_reset}
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class ActivationAwareIFNode(LibraryNeuron):
    """Integrate and fire with an offset of its threshold; both are numbers or have an entry for each channel.

    channel_dim: the dimension of a step that has the channels.
    """

    name = "activation_aware_if"

    def __init__(
        self,
        v_threshold: Number = 1.0,
        v_offset: Number = 0.0,
        channel_dim: int = -1,
        v_reset: float | None = None,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options: dict[str, Any] = {
            name: torch.tensor(float(value)) if _is_number(value) else value
            for name, value in {"v_threshold": v_threshold, "v_offset": v_offset}.items()
        }
        for name, value in options.items():
            if isinstance(value, Tensor) and value.dim() > 1:
                raise ValueError(
                    f"ActivationAwareIFNode: {name} must be a number or have one dimension, that of the "
                    f"channels, found shape {tuple(value.shape)}"
                )
        options |= {"v_reset": v_reset, "detach_reset": detach_reset}
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)
        self.channel_dim = channel_dim

    @property
    def channel_dim(self) -> int:
        """The dimension of a step that has the channels."""
        return self._channel_dim

    @channel_dim.setter
    def channel_dim(self, value: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(
                "ActivationAwareIFNode: channel_dim must be a dimension of a step, a whole number, found "
                f"{value!r}"
            )
        self._channel_dim = value

    def _argument(self, name: str, x_seq: Tensor) -> Tensor:
        value = getattr(self, name)
        if value.dim() == 0:
            return value
        rank = x_seq.dim() - 1
        if not -rank <= self.channel_dim < rank:
            raise ValueError(
                "ActivationAwareIFNode: channel_dim must be a dimension of a step, from "
                f"{-rank} to {rank - 1}, found {self.channel_dim}"
            )
        behind = rank - 1 - self.channel_dim % rank
        channels = x_seq.shape[-1 - behind]
        if value.numel() not in (1, channels):
            raise ValueError(
                f"ActivationAwareIFNode: {name} has {value.numel()} entries, but a step has {channels} "
                f"channels at channel_dim={self.channel_dim}"
            )
        return value.view(-1, *[1] * behind)


class STBIFNeuron(LibraryNeuron):
    """A quantizer that gives signed spikes: their sum is the quantized sum of its input.

    pos_max and neg_min, the limits of that sum, follow from `level` and `sym` where they are None.
    """

    name = "stbif"

    def __init__(
        self,
        q_threshold: Number,
        level: int,
        sym: bool = False,
        pos_max: float | None = None,
        neg_min: float | None = None,
        step_mode: str = "s",
        backend: str = "fused",
    ) -> None:
        options = {
            "q_threshold": q_threshold, "level": level, "sym": sym, "pos_max": pos_max, "neg_min": neg_min
        }  # fmt: skip
        super().__init__(options, None, step_mode, backend)

    @property
    def accumulated(self) -> Tensor:
        """The sum of what came out since the last reset."""
        if not isinstance(self.acc_q, Tensor):
            raise RuntimeError("STBIFNeuron: there is no sum before the first call")
        return self.acc_q * self.q_threshold


STBIFNode = STBIFNeuron
