"""Neurons with a membrane that bends, swings or has channels."""

from __future__ import annotations

from ..surrogate import SurrogateLike
from .library import LibraryNeuron, Number


class QIFNode(LibraryNeuron):
    """Quadratic integrate and fire."""

    name = "qif"

    def __init__(
        self,
        tau: Number = 2.0,
        v_c: Number = 0.8,
        a0: Number = 1.0,
        v_threshold: Number = 1.0,
        v_rest: Number = 0.0,
        v_reset: float | None = -0.1,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "tau": tau, "v_c": v_c, "a0": a0, "v_threshold": v_threshold, "v_rest": v_rest,
            "v_reset": v_reset, "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class EIFNode(LibraryNeuron):
    """Exponential integrate and fire."""

    name = "eif"

    def __init__(
        self,
        tau: Number = 2.0,
        delta_T: Number = 1.0,
        theta_rh: Number = 0.8,
        v_threshold: Number = 1.0,
        v_rest: Number = 0.0,
        v_reset: float | None = -0.1,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "tau": tau, "delta_T": delta_T, "theta_rh": theta_rh, "v_threshold": v_threshold,
            "v_rest": v_rest, "v_reset": v_reset, "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class IzhikevichNode(LibraryNeuron):
    """A quadratic membrane with a recovery variable `w`."""

    name = "izhikevich"

    def __init__(
        self,
        tau: Number = 2.0,
        v_c: Number = 0.8,
        a0: Number = 1.0,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        v_rest: Number = -0.1,
        w_rest: float = 0.0,
        tau_w: Number = 2.0,
        a: Number = 0.0,
        b: Number = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "tau": tau, "v_c": v_c, "a0": a0, "v_threshold": v_threshold, "v_reset": v_reset,
            "v_rest": v_rest, "w_rest": w_rest, "tau_w": tau_w, "a": a, "b": b, "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class AdExNode(LibraryNeuron):
    """An exponential membrane with an adaptation `w`."""

    name = "adex"

    def __init__(
        self,
        tau: Number = 2.0,
        delta_T: Number = 0.5,
        theta_rh: Number = 0.8,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        v_rest: Number = 0.0,
        tau_w: Number = 20.0,
        a: Number = 0.1,
        b: Number = 0.2,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "tau": tau, "delta_T": delta_T, "theta_rh": theta_rh, "v_threshold": v_threshold,
            "v_reset": v_reset, "v_rest": v_rest, "tau_w": tau_w, "a": a, "b": b,
            "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class RAFNode(LibraryNeuron):
    """Resonate and fire: a damped oscillation (`u`, `v`) that fires where v reaches the threshold.

    b: how fast it is damped, below 0. omega: how far it turns in a unit of time. dt: the time of a step.
    """

    name = "raf"

    def __init__(
        self,
        b: float = -0.2,
        omega: float = 1.0,
        dt: float = 1.0,
        v_threshold: Number = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: SurrogateLike = "sigmoid",
        detach_reset: bool = False,
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "b": b, "omega": omega, "dt": dt, "v_threshold": v_threshold, "v_reset": v_reset,
            "detach_reset": detach_reset,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)


class HodgkinHuxleyNode(LibraryNeuron):
    """The currents of a squid's axon, in ms, mV, mS and uF: a potential `v` and gates `m`, `h` and `n`.

    It fires where v crosses the threshold upward, and there is no reset. dt: the time of a step.
    """

    name = "hodgkin_huxley"

    def __init__(
        self,
        dt: float = 0.05,
        c_m: Number = 1.0,
        g_na: Number = 120.0,
        g_k: Number = 36.0,
        g_l: Number = 0.3,
        e_na: Number = 50.0,
        e_k: Number = -77.0,
        e_l: Number = -54.387,
        v_threshold: Number = 0.0,
        surrogate_function: SurrogateLike = "sigmoid:alpha=0.25",
        step_mode: str = "s",
        backend: str = "fused",
        store_v_seq: bool = False,
    ) -> None:
        options = {
            "dt": dt, "c_m": c_m, "g_na": g_na, "g_k": g_k, "g_l": g_l, "e_na": e_na, "e_k": e_k, "e_l": e_l,
            "v_threshold": v_threshold,
        }  # fmt: skip
        super().__init__(options, surrogate_function, step_mode, backend, store_v_seq)
