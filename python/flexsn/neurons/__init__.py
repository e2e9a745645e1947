"""The neurons of the library as modules. docs/neurons.md has their equations."""

from __future__ import annotations

from typing import NoReturn

from .absent import absence
from .by_name import named
from .integrating import (
    ActivationAwareIFNode,
    HalfThresholdIFNode,
    IFNode,
    SimpleIFNode,
    STBIFNeuron,
    STBIFNode,
)
from .leaky import (
    AdaptiveLIFNode,
    ComplementaryLIFNode,
    CUBALIFNode,
    GatedLIFNode,
    ILIFNode,
    KLIFNode,
    LIAFNode,
    LIFNode,
    OTTTLIFNode,
    ParametricLIFNode,
    SimpleLIFNode,
    SLTTLIFNode,
)
from .library import LibraryNeuron
from .nonlinear import AdExNode, EIFNode, HodgkinHuxleyNode, IzhikevichNode, QIFNode, RAFNode
from .silent import NonSpikingIFNode, NonSpikingLIFNode, SynapticLINode

__all__ = [
    "ActivationAwareIFNode", "AdExNode", "AdaptiveLIFNode", "CUBALIFNode", "ComplementaryLIFNode",
    "EIFNode", "GatedLIFNode", "HalfThresholdIFNode", "HodgkinHuxleyNode", "IFNode", "ILIFNode",
    "IzhikevichNode", "KLIFNode", "LIAFNode", "LIFNode", "LibraryNeuron", "NonSpikingIFNode",
    "NonSpikingLIFNode", "OTTTLIFNode", "ParametricLIFNode", "QIFNode", "RAFNode", "SLTTLIFNode",
    "STBIFNeuron", "STBIFNode", "SimpleIFNode", "SimpleLIFNode", "SynapticLINode", "named",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(absence(name, __all__))
