"""The seed's scans: one signature, `(core_fn, num_inputs, num_states, num_outputs, *flat_args)`."""

from __future__ import annotations

from .._lowering import (
    by_scan, by_while_loop, lowered, scan_available as lowerable_scan_available,
    while_loop_available as lowerable_while_loop_available,
)  # fmt: skip
from .._scan_operator import (
    FlexSNScan, OutputTemplateSpec, OutputTemplateSpecs, eager_scan, eager_scan_final_state, flex_sn_scan,
)  # fmt: skip
from .._torch import dynamo_takes_scans

__all__ = [
    "FlexSNScan", "OutputTemplateSpec", "OutputTemplateSpecs", "dynamo_hop_available", "eager_scan",
    "eager_scan_final_state", "flex_sn_scan", "lowerable_scan", "lowerable_scan_available",
    "lowerable_scan_final_state", "lowerable_while_loop_available", "lowerable_while_loop_scan",
    "lowerable_while_loop_scan_final_state",
]  # fmt: skip

#: by torch's scan; for use without gradients
lowerable_scan = lowered("lowerable_scan", by_scan, True)
lowerable_scan_final_state = lowered("lowerable_scan_final_state", by_scan, False)
#: by torch's while_loop; for use without gradients
lowerable_while_loop_scan = lowered("lowerable_while_loop_scan", by_while_loop, True)
lowerable_while_loop_scan_final_state = lowered("lowerable_while_loop_scan_final_state", by_while_loop, False)


def dynamo_hop_available() -> bool:
    """Does torch.compile keep a scan as one node?"""
    return dynamo_takes_scans
