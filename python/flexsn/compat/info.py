"""What a kernel takes and returns, by name: the seed's description of a step's forward graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["FlexSNInfo", "extract_info"]


class FlexSNInfo(NamedTuple):
    """A step's forward graph and the kernel around it. Residuals are what the graph returns for backward."""

    num_inputs: int
    num_outputs: int
    num_states: int
    #: names of the graph's arguments
    fwd_core_args: list[str]
    #: names of what the graph returns: outputs, states, residuals
    fwd_core_returns: list[str]
    #: the same as the kernel calls them; "_" for a residual that is returned before
    fwd_core_recipients: list[str]
    #: what the kernel returns, each once: s0.., v0.., res0_f..
    fwd_kernel_returns: list[str]
    num_fwd_kernel_returns: int
    #: for each residual, where it is among the kernel's returns
    c2k_return_mapping: list[int]


def extract_info(
    fwd_graph: torch.fx.Graph, num_inputs: int = 1, num_states: int = 0, num_outputs: int = 1
) -> FlexSNInfo:
    """The description of an FX graph `(*inputs, *states) -> (*outputs, *states, *residuals)`."""
    arguments = [node.name for node in fwd_graph.nodes if node.op == "placeholder"]
    [output] = [node for node in fwd_graph.nodes if node.op == "output"]
    returned = output.args[0]
    nodes = returned if isinstance(returned, (list, tuple)) else (returned,)
    return info_of_names(arguments, [node.name for node in nodes], num_inputs, num_states, num_outputs)


def info_of_names(
    arguments: Sequence[str], returns: Sequence[str], num_inputs: int, num_states: int, num_outputs: int
) -> FlexSNInfo:
    """The description of a graph with these names; equal names are one value."""
    assert len(arguments) == num_inputs + num_states, (
        f"expected a graph with {num_inputs} inputs and {num_states} states, found {len(arguments)} arguments"
    )
    plain = num_outputs + num_states
    assert len(returns) >= plain, (
        f"expected a graph that returns at least {num_outputs} outputs and {num_states} states, found "
        f"{len(returns)} values"
    )
    recipients = [f"s{i}" for i in range(num_outputs)] + [f"v{i}" for i in range(num_states)]
    kernel_returns = list(recipients)
    # Of two results with one value, the later is where a residual of that value is found.
    places = {name: place for place, name in enumerate(returns[:plain])}
    mapping = []
    for name in returns[plain:]:
        if name in places:
            recipients.append("_")
        else:
            places[name] = len(kernel_returns)
            recipients.append(f"res{len(kernel_returns) - plain}_f")
            kernel_returns.append(recipients[-1])
        mapping.append(places[name])
    return FlexSNInfo(
        num_inputs,
        num_outputs,
        num_states,
        list(arguments),
        list(returns),
        recipients,
        kernel_returns,
        len(kernel_returns),
        mapping,
    )
