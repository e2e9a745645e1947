"""Leaky integrate and fire, and neurons that differ from it in one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..surrogate import MultiLevelSpikeCount, Surrogate, SurrogateLike
from .library import LibraryNeuron, Number


class LIFNode(LibraryNeuron):
    """Leaky integrate and fire."""

    name = "lif"

    def __init__(
        self,
        tau: Number = 2.0,
        decay_input: bool = True,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "tau": tau, "decay_input": decay_input, "v_threshold": v_threshold, "v_reset": v_reset,
            "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class SimpleLIFNode(LibraryNeuron):
    """LIF with a hard reset that starts at 0 whatever it resets to."""

    name = "simple_lif"

    def __init__(
        self,
        tau: Number,
        decay_input: bool,
        v_threshold: Number = 1.0,
        v_reset: float = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
    ) -> None:
        options = {
            "tau": tau, "decay_input": decay_input, "v_threshold": v_threshold, "v_reset": v_reset,
            "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend)


class _LearnsTau(LibraryNeuron):
    """A neuron whose parameter `w` is its time constant: 1 / tau = sigmoid(w), so that tau stays above 1."""

    def _add_parameter(self, name: str, value: float, initial: dict[str, Any]) -> None:
        (start,) = initial.values()
        if isinstance(start, Tensor):
            self.register_parameter(name, nn.Parameter(-(start.detach() - 1).log()))
        else:
            super()._add_parameter(name, value, initial)

    @property
    def tau(self) -> Tensor:
        """The time constant as it is now."""
        return 1.0 / torch.sigmoid(self.w.detach())


class ParametricLIFNode(_LearnsTau):
    """LIF with a learnable time constant: 1 / tau = sigmoid(w).

    init_tau: where it starts. A tensor gives `w` its shape, which must broadcast to a step's: for a step
        [batch, channels, height, width] one of [channels, 1, 1] is a time constant for each channel.
    """

    name = "plif"

    def __init__(
        self,
        init_tau: Number = 2.0,
        decay_input: bool = True,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "decay_input": decay_input, "v_threshold": v_threshold, "v_reset": v_reset,
            "detach_reset": detach_reset,
        }  # fmt: skip
        initial = {"init_tau": init_tau}
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq, initial)


class KLIFNode(LibraryNeuron):
    """LIF whose potential goes through relu with a learnable factor `k`, which starts at 1.

    `k` is a scalar; a parameter of any shape that broadcasts to a step's may be assigned.
    scale_reset: the reset works on h / k and v_threshold / k.
    """

    name = "klif"

    def __init__(
        self,
        scale_reset: bool = False,
        tau: Number = 2.0,
        decay_input: bool = True,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "scale_reset": scale_reset, "tau": tau, "decay_input": decay_input, "v_threshold": v_threshold,
            "v_reset": v_reset, "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class LIAFNode(LibraryNeuron):
    """LIF that gives an activation of its potential; its spike only resets.

    act: "relu", "sigmoid", "tanh" or "none", or torch's functions and modules of those names, which are part
        of the kernel, or any function of a tensor that works on elements one by one; it is called once, on
        the whole sequence, and then is the attribute `act_function`, and `act` is "none".
    threshold_related: whether the activation is of h - v_threshold or of h.
    """

    name = "liaf"
    _words = ("act",)

    def __init__(
        self,
        act: str | Callable[[Tensor], Tensor],
        threshold_related: bool,
        tau: Number = 2.0,
        decay_input: bool = True,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        word, function = _word_and_function(act)
        options = {
            "act": word, "threshold_related": threshold_related, "tau": tau, "decay_input": decay_input,
            "v_threshold": v_threshold, "v_reset": v_reset, "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)
        self.act_function = function

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "act" or name not in self._option_names:
            super().__setattr__(name, value)
            return
        word, function = _word_and_function(value)
        super().__setattr__(name, word)
        del self.act_function  # a module gives way to what is none only so
        self.act_function = function

    def _returned(self, outputs: list[Tensor]) -> Tensor:
        return outputs[0] if self.act_function is None else self.act_function(outputs[0])


_ACTIVATIONS = {
    "relu": (torch.relu, nn.functional.relu, nn.ReLU),
    "sigmoid": (torch.sigmoid, nn.functional.sigmoid, nn.Sigmoid),
    "tanh": (torch.tanh, nn.functional.tanh, nn.Tanh),
    "none": (nn.Identity,),
}


def _word_and_function(act: Any) -> tuple[str, Callable[[Tensor], Tensor] | None]:
    """The name of an activation that kernels have; any other is called on what comes out of "none"."""
    if isinstance(act, str):
        return act, None
    if not callable(act) or isinstance(act, type):
        a_class = isinstance(act, type)
        found = f"the class {act.__name__}; give {act.__name__}()" if a_class else type(act).__name__
        raise TypeError(f"LIAFNode: act must be a name or a function of a tensor, found {found}")
    for word, same in _ACTIVATIONS.items():
        if any(act is each or type(act) is each for each in same):
            return word, None
    return "none", act


class ILIFNode(LibraryNeuron):
    """LIF that counts: several spikes a step."""

    name = "ilif"

    def __init__(
        self,
        tau: Number = 4.0 / 3.0,
        v_threshold: Number = 1.0,
        surrogate_function: SurrogateLike = "multi_level_spike_count",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {"tau": tau, "v_threshold": v_threshold, "detach_reset": detach_reset}
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)

    def _as_surrogate(self, function: Any) -> Any:
        found = super()._as_surrogate(function)
        if isinstance(found, Surrogate) and not (isinstance(found, MultiLevelSpikeCount) and found.spiking):
            raise ValueError(
                "ILIFNode: surrogate_function must be a spiking MultiLevelSpikeCount, or a function of "
                f"one's own that counts, found {found}"
            )
        return found


class OTTTLIFNode(LibraryNeuron):
    """LIF for online training: no gradient goes through time.

    In training mode a call gives the list of spikes and of their trace, which decays by 1 - 1 / tau each
    step; else the spikes alone.
    """

    name = "ottt_lif"

    def __init__(
        self,
        tau: float = 2.0,
        decay_input: bool = False,
        v_threshold: Number = 1.0,
        v_reset: float | None = None,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = True,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "tau": tau, "decay_input": decay_input, "v_threshold": v_threshold, "v_reset": v_reset,
            "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)

    def _returned(self, outputs: list[Tensor]) -> Any:
        return list(outputs) if self.training else outputs[0]


class SLTTLIFNode(LibraryNeuron):
    """LIF for online training: no gradient goes through time."""

    name = "sltt_lif"

    def __init__(
        self,
        tau: Number = 2.0,
        decay_input: bool = True,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = True,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "tau": tau, "decay_input": decay_input, "v_threshold": v_threshold, "v_reset": v_reset,
            "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class CUBALIFNode(LibraryNeuron):
    """LIF driven by a current `c` that decays."""

    name = "cuba_lif"

    def __init__(
        self,
        c_decay: Number = 0.5,
        v_decay: Number = 0.75,
        v_threshold: Number = 0.5,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "rectangle",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "c_decay": c_decay, "v_decay": v_decay, "v_threshold": v_threshold, "v_reset": v_reset,
            "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class AdaptiveLIFNode(_LearnsTau):
    """LIF whose threshold rises by `beta` with each spike and falls back by `rho`.

    tau: where the learnable time constant starts, 1 / tau = sigmoid(w). A tensor gives `w` its shape, which
        must broadcast to a step's: for a step [batch, channels, height, width] one of [channels, 1, 1] is a
        time constant for each channel.
    """

    name = "alif"

    def __init__(
        self,
        tau: Number = 2.0,
        beta: Number = 0.2,
        rho: Number = 0.9,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "atan",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "beta": beta, "rho": rho, "v_threshold": v_threshold, "v_reset": v_reset,
            "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq, {"tau": tau})


class ComplementaryLIFNode(LibraryNeuron):
    """LIF with a complementary potential `m`, which makes each reset deeper."""

    name = "clif"

    def __init__(
        self,
        tau: Number = 2.0,
        v_threshold: Number = 1.0,
        surrogate_function: SurrogateLike = "rectangle",
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {"tau": tau, "v_threshold": v_threshold}
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class GatedLIFNode(LibraryNeuron):
    """LIF with learnable gates between two ways to leak, to take input and to reset.

    T: how many steps a sequence has; each has its own parameter `conduct`.
    inplane: channels, in dimension 1 of a step of [batch, channels, ...], with parameters of their own;
        None for one set for all.
    """

    name = "gated_lif"

    def __init__(
        self,
        T: int,
        inplane: int | None = None,
        init_linear_decay: float | None = None,
        init_v_subreset: float | None = None,
        init_tau: float = 0.25,
        init_v_threshold: float = 0.5,
        init_conduct: float = 0.5,
        surrogate_function: SurrogateLike = "sigmoid",
        step_mode: str = "m",
        backend: str = "fused",
    ) -> None:
        whole = isinstance(inplane, int) and not isinstance(inplane, bool)
        if inplane is not None and not (whole and inplane >= 1):
            raise ValueError(
                "GatedLIFNode: inplane must be a number of channels of at least 1, or None, found "
                f"{inplane!r}"
            )
        self.__dict__.update(T=T, inplane=inplane)
        initial = {
            "T": T, "init_linear_decay": init_linear_decay, "init_v_subreset": init_v_subreset,
            "init_tau": init_tau, "init_v_threshold": init_v_threshold, "init_conduct": init_conduct,
        }  # fmt: skip
        super().__init__({}, surrogate_function, step_mode, backend, initial=initial)

    def supported_step_mode(self) -> tuple[str, ...]:
        return ("m",)

    def _add_parameter(self, name: str, value: float, initial: dict[str, Any]) -> None:
        shape = () if self.inplane is None else (self.inplane,)
        start = torch.full((self.T, *shape) if name == "conduct" else shape, value)
        if name in ("alpha", "beta", "gamma"):
            start = 0.2 * (torch.rand(shape) - 0.5)
        self.register_parameter(name, nn.Parameter(start))

    def extra_repr(self) -> str:
        return f"T={self.T}, inplane={self.inplane}, {super().extra_repr()}"

    def _argument(self, name: str, x_seq: Tensor) -> Tensor:
        value = getattr(self, name)
        if name == "conduct" and x_seq.shape[0] != self.T:
            raise ValueError(f"GatedLIFNode: T is {self.T}, found a sequence of {x_seq.shape[0]} steps")
        if self.inplane is None:
            return value
        if x_seq.dim() < 3 or x_seq.shape[2] != self.inplane:
            raise ValueError(
                f"GatedLIFNode: inplane is {self.inplane}, the channels of [T, batch, channels, ...], found "
                f"a sequence of shape {tuple(x_seq.shape)}"
            )
        return value.view(*value.shape, *[1] * (x_seq.dim() - 3))
