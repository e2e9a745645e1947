"""Spiking neurons as fused kernels: write one time step, flexsn runs and trains the sequence."""

from __future__ import annotations

from typing import Any

from . import base, functional, neurons, surrogate
from ._library import ops as _ops
from .base import MemoryModule, StepModule
from .checkpointing import checkpoint
from .export import export
from .inspect import CheckReport, Explanation, check, explain, show
from .neuron import FlexSN, FlexSNKernel
from .scan import scan

__all__ = [
    "CheckReport", "Explanation", "FlexSN", "FlexSNKernel", "MemoryModule", "StepModule", "base", "check",
    "checkpoint", "explain", "export", "functional", "neurons", "scan", "show", "surrogate", "version",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "plot":  # needs matplotlib, which takes long to load
        from importlib import import_module

        return import_module(".plot", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "plot"})


def version() -> str:
    """The version of flexsn."""
    return _ops.version()


__version__ = version()
