"""The neurons of the library beside SpikingJelly 2.0.0's own: the same spikes, states and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sj = pytest.importorskip("spikingjelly.activation_based.neuron", reason="spikingjelly is not installed")

from spikingjelly.activation_based import functional as sj_functional  # noqa: E402
from spikingjelly.activation_based import surrogate as sj_surrogate  # noqa: E402

from flexsn import functional, neurons, surrogate  # noqa: E402

#: arguments that both take; the memories they have in common; a shift of the input that makes them fire
PAIRS: dict[str, tuple[Callable[[Any], nn.Module], tuple[str, ...], float]] = {
    "IFNode": (lambda n: n.IFNode(1.0, -0.25), ("v",), 0.2),
    "IFNode soft": (lambda n: n.IFNode(1.0, None, detach_reset=True), ("v",), 0.2),
    "LIFNode": (lambda n: n.LIFNode(3.0, True, 0.5, 0.1), ("v",), 1.0),
    "LIFNode soft": (lambda n: n.LIFNode(3.0, False, 1.0, None, detach_reset=True), ("v",), 0.3),
    "ParametricLIFNode": (lambda n: n.ParametricLIFNode(2.5, v_threshold=0.5), ("v",), 0.8),
    "QIFNode": (lambda n: n.QIFNode(a0=1.2), ("v",), 0.8),
    "EIFNode": (lambda n: n.EIFNode(delta_T=0.9), ("v",), 0.5),
    "IzhikevichNode": (lambda n: n.IzhikevichNode(a=0.2, b=0.3, tau_w=4.0), ("v", "w"), 1.0),
    "KLIFNode": (lambda n: n.KLIFNode(v_threshold=0.5), ("v",), 0.8),
    "KLIFNode scaled": (lambda n: n.KLIFNode(True, v_threshold=0.5, v_reset=None), ("v",), 0.8),
    "CUBALIFNode": (lambda n: n.CUBALIFNode(0.5, 0.75, 0.5, 0.0), ("v", "c"), 0.0),
    "LIAFNode": (lambda n: n.LIAFNode(torch.tanh, True, 2.0, v_threshold=0.5), ("v",), 0.5),
    "GatedLIFNode": (lambda n: n.GatedLIFNode(8, 3), (), 0.4),
    "ILIFNode": (lambda n: n.ILIFNode(v_threshold=0.8), ("v",), 1.0),
    "HalfThresholdIFNode": (lambda n: n.HalfThresholdIFNode(1.2), ("v",), 0.2),
    "ActivationAwareIFNode": (
        lambda n: n.ActivationAwareIFNode(torch.tensor([0.8, 1.0, 1.2]), 0.1, channel_dim=1), ("v",), 0.2
    ),
    "SimpleIFNode": (lambda n: n.SimpleIFNode(1.0, 0.1), ("v",), 0.2),
    "SimpleLIFNode": (lambda n: n.SimpleLIFNode(2.5, True, 0.5, 0.1), ("v",), 0.8),
    "NonSpikingIFNode": (lambda n: n.NonSpikingIFNode("max-abs-mem"), (), 0.0),
    "NonSpikingLIFNode": (lambda n: n.NonSpikingLIFNode(3.0, "mean-mem"), (), 0.0),
    "OTTTLIFNode": (lambda n: n.OTTTLIFNode(3.0), ("v", "trace"), 0.3),
    "SLTTLIFNode": (lambda n: n.SLTTLIFNode(3.0, v_threshold=0.5), ("v",), 0.8),
    "STBIFNode": (lambda n: n.STBIFNode(0.7, 8, True), ("q", "acc_q"), 0.1),
    "ComplementaryLIFNode": (lambda n: n.ComplementaryLIFNode(), ("v", "m"), 0.5),
    "RAFNode": (lambda n: n.RAFNode(-0.1, 1.5, 0.5), ("v", "u"), 0.3),
}  # fmt: skip
#: they run steps only; their LIAFNode gives spikes of LIF where it runs a sequence
STEP_BY_STEP = ("OTTTLIFNode", "SLTTLIFNode", "LIAFNode")
both_types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


def as_list(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


@pytest.mark.parametrize("name", PAIRS)
@both_types
def test_a_class_of_ours_gives_what_theirs_does(name, dtype):
    make, memories, shift = PAIRS[name]
    if not hasattr(sj, name.split()[0]):
        pytest.skip(f"this SpikingJelly has no {name}")
    ours, theirs = make(neurons), make(sj)
    for module in (ours, theirs):
        module.to(dtype)
    ours.load_state_dict(theirs.state_dict(), strict=name != "STBIFNode")
    if name not in STEP_BY_STEP:
        for module in (ours, theirs):
            if hasattr(module, "step_mode"):
                module.step_mode = "m"
    x = (torch.randn(8, 2, 3, 4, 4, dtype=torch.float64) * 1.2 + shift).to(dtype)
    found = []
    for module in (ours, theirs):
        leaf = x.clone().requires_grad_(name != "STBIFNode")
        if name in STEP_BY_STEP:
            outputs = [torch.stack(each) for each in zip(*[as_list(module(step)) for step in leaf])]
        else:
            outputs = as_list(module(leaf))
        wanted = [leaf, *(p for p in module.parameters() if p.requires_grad)]
        loss = sum((o * torch.linspace(-1, 1, o.numel(), dtype=dtype).view_as(o)).sum() for o in outputs)
        gradients = torch.autograd.grad(loss, wanted) if loss.requires_grad else []
        found.append([*outputs, *(getattr(module, memory) for memory in memories), *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other.view_as(one))


def test_their_surrogates_run_in_our_kernels():
    ours = neurons.LIFNode(surrogate_function=sj_surrogate.ATan(3.0), step_mode="m")
    same = neurons.LIFNode(surrogate_function=surrogate.ATan(3.0), step_mode="m")
    x = torch.randn(6, 5, requires_grad=True)
    gradients = [torch.autograd.grad(module(x).sum(), x)[0] for module in (ours, same)]
    torch.testing.assert_close(*gradients)


def test_their_functions_reach_our_neurons():
    net = nn.Sequential(neurons.LIFNode(), sj.LIFNode())
    sj_functional.set_step_mode(net, "m")
    assert net[0].step_mode == "m"
    net(torch.randn(3, 4))
    sj_functional.reset_net(net)
    assert net[0].v == 0.0
    net(torch.randn(3, 4))
    functional.reset_net(net)
    assert net[1].v == 0.0
