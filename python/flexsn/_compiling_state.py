"""States that compiled code carries over from an earlier call; imported by traced code only."""

from __future__ import annotations

import torch
from torch import Tensor

from ._torch import nodes_to_come, was_freed
from .eager import GRAPH_IS_GONE

# Compiled code has one node in autograd's graph for all it does, so nothing can stand between a state and the
# call that left it, as `eager.Carried` does. An operator in the compiled backward looks ahead instead.


@torch.library.custom_op("flexsn::carried", mutates_args=())
def carried(state: Tensor) -> Tensor:
    """A copy of a state; backward through it says what to do where the graph of the earlier call is gone."""
    return state.clone()


@carried.register_fake
def _(state: Tensor) -> Tensor:
    return torch.empty_like(state)


@torch.library.custom_op("flexsn::carried_back", mutates_args=())
def carried_back(grad: Tensor) -> Tensor:
    """The gradient of a carried state."""
    if any(was_freed(node, limit=32) for node in nodes_to_come()):
        raise RuntimeError(GRAPH_IS_GONE)
    return grad.clone()


@carried_back.register_fake
def _(grad: Tensor) -> Tensor:
    return torch.empty_like(grad)


carried.register_autograd(lambda context, grad: carried_back(grad))
