"""Neurons that people look for here and that cannot be here; docs/scope.md says the same at more length."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_TABLE = "it encodes a value in K steps by a table of K numbers; a core that takes them as sequences does it"
_CONNECTED = "spikes of one step go through a convolution into the next, so elements are not independent"
_RANDOM = "a step draws no random numbers; draw the noise outside and pass it in as a second input of a core"
_RATES = "its gradient is one of rates over the whole sequence, not the derivative of a step"
_NORM = "a batch norm inside the step needs sums over the batch"
_OVER_TIME = "it is a matrix product or a convolution over time, without a state: use torch's own"
_BASE = "there is nothing to derive from; write a neuron of your own as a core, for flexsn.FlexSN"
_TERNARY = "it is ten lines as a core, for flexsn.FlexSN"

_REASONS = {
    "PSN": _OVER_TIME, "MaskedPSN": _OVER_TIME, "SlidingPSN": _OVER_TIME,
    "MPBNBaseNode": _NORM, "MPBNLIFNode": _NORM,
    "DSRIFNode": _RATES, "DSRLIFNode": _RATES,
    "FewSpikeNode": _TABLE, "FewSpikeTable": _TABLE, "HGNode": _TABLE, "OutlierAwareThresholdNode": _TABLE,
    "ILCBaseNode": _CONNECTED, "ILCIFNode": _CONNECTED, "ILCLIFNode": _CONNECTED,
    "ILCCUBALIFNode": _CONNECTED,
    "NoisyBaseNode": _RANDOM, "NoisyCUBALIFNode": _RANDOM, "NoisyILCBaseNode": _RANDOM,
    "NoisyILCCUBALIFNode": _RANDOM, "NoisyNonSpikingBaseNode": _RANDOM, "NoisyNonSpikingIFNode": _RANDOM,
    "BaseNode": _BASE, "SimpleBaseNode": _BASE, "NonSpikingBaseNode": _BASE, "AdaptBaseNode": _BASE,
    "TernaryIFNode": _TERNARY, "TernaryLIFNode": _TERNARY,
}  # fmt: skip

_ELSEWHERE = {"FlexSN": "flexsn.FlexSN"}


def absence(name: str, there_are: Sequence[str]) -> str:
    """Why flexsn.neurons has no such name."""
    if name in _ELSEWHERE:
        return f"flexsn.neurons has no {name}: it is {_ELSEWHERE[name]}"
    if name in _REASONS:
        return f"flexsn.neurons has no {name}: {_REASONS[name]} (docs/scope.md)"
    close = difflib.get_close_matches(name, there_are, 1)
    return f"module 'flexsn.neurons' has no attribute {name!r}" + (
        f" (did you mean {close[0]!r}?)" if close else ""
    )
