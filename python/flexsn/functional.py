"""What is done to all neurons of a network at once: reset, detach, step mode, backend, explicit states."""

from __future__ import annotations

import logging

from torch import Tensor, nn

from .base import (
    MemoryModule,
    extract_memories,
    has_memories,
    load_memories,
    map_tensors,
    memories,
    named_memories,
    to_functional_forward,
)

__all__ = [
    "detach_net",
    "extract_memories",
    "load_memories",
    "memories",
    "named_memories",
    "reset_net",
    "set_backend",
    "set_step_mode",
    "to_functional_forward",
]

_log = logging.getLogger("flexsn")

# SpikingJelly's containers that say themselves how their children step.
_CONTAINERS_WITH_OWN_STEPS = frozenset(
    {
        "StepModeContainer",
        "MultiStepContainer",
        "SeqToANNContainer",
        "TLastMultiStepContainer",
        "TLastSeqToANNContainer",
        "ElementWiseRecurrentContainer",
        "LinearRecurrentContainer",
    }
)


def _checked(asker: str, net: nn.Module) -> nn.Module:
    if not isinstance(net, nn.Module):
        raise TypeError(f"flexsn.functional.{asker}: expected a torch.nn.Module, found {type(net).__name__}")
    return net


def reset_net(net: nn.Module) -> None:
    """Calls `reset()` of every module that has one, whatever library it is from."""
    for module in _checked("reset_net", net).modules():
        if _defines(module, "reset"):
            if not has_memories(module):
                _log.warning("reset_net calls reset() of %s, which has no memories", type(module).__name__)
            module.reset()


def detach_net(net: nn.Module, copy: bool = False) -> None:
    """Cuts the states of all modules from the graphs of earlier calls (truncated backpropagation).

    copy: flexsn's modules get copies of their states. Calls that run as CUDA graphs (torch.compile with
    mode="reduce-overhead") need that between them where states are carried on: each writes where the one before
    left its results.
    """
    for module in _checked("detach_net", net).modules():
        if _defines(module, "detach"):
            if not has_memories(module):
                _log.warning("detach_net calls detach() of %s, which has no memories", type(module).__name__)
            module.detach()
        if copy and isinstance(module, MemoryModule):
            for name, value in module._memories.items():
                module._memories[name] = map_tensors(Tensor.clone, value)


def set_step_mode(net: nn.Module, step_mode: str) -> None:
    """Sets the step mode of every module that has one, but not inside containers that step on their own."""
    if hasattr(_checked("set_step_mode", net), "step_mode"):
        net.step_mode = step_mode
    if not _steps_on_its_own(net):
        for child in net.children():
            set_step_mode(child, step_mode)


def set_backend(net: nn.Module, backend: str, instance: type | tuple[type, ...] = (nn.Module,)) -> None:
    """Sets the backend of every module of a type that supports it; others are named in a warning."""
    for module in _checked("set_backend", net).modules():
        if not isinstance(module, instance) or not hasattr(module, "backend"):
            continue
        supported = getattr(module, "supported_backends", ())
        if backend in supported:
            module.backend = backend
        else:
            _log.warning(
                "set_backend leaves %s at backend %r: it supports %s, not %r",
                type(module).__name__,
                module.backend,
                supported,
                backend,
            )


def _defines(module: nn.Module, method: str) -> bool:
    """Whether a module has a method itself; wrappers such as torch.compile's lend those of the inner one."""
    return callable(getattr(type(module), method, None) or vars(module).get(method))


def _steps_on_its_own(module: nn.Module) -> bool:
    return any(
        cls.__name__ in _CONTAINERS_WITH_OWN_STEPS and cls.__module__.startswith("spikingjelly.")
        for cls in type(module).__mro__
    )
