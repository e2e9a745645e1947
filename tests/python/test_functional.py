"""Functions on whole networks: reset, detach, step mode and backend, on modules of any origin."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from flexsn import functional, neurons
from flexsn.base import MemoryModule
from flexsn.neuron import FlexSN


def add_up(x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    return total + x, total + x


def neuron(**options: object) -> FlexSN:
    return FlexSN(add_up, num_states=1, **{"backend": "torch", **options})


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "flexsn"]


class Stopwatch(nn.Module):
    """A module of somebody else's with methods of these names."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def reset(self) -> None:
        self.calls.append("reset")

    def detach(self) -> None:
        self.calls.append("detach")


def test_reset_net_resets_nested_neurons():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(neuron(), neuron()))
    net(torch.ones(3, 2))
    assert net[1][0].states is not None and net[1][1].states is not None
    functional.reset_net(net)
    assert net[1][0].states is None and net[1][1].states is None


def test_reset_net_and_detach_net_call_methods_of_others_with_a_warning(caplog):
    net = nn.Sequential(Stopwatch(), neuron())
    with caplog.at_level(logging.WARNING, logger="flexsn"):
        functional.reset_net(net)
        functional.detach_net(net)
    assert net[0].calls == ["reset", "detach"]
    assert warnings_in(caplog) == [
        "reset_net calls reset() of Stopwatch, which has no memories",
        "detach_net calls detach() of Stopwatch, which has no memories",
    ]


def test_reset_net_of_a_compiled_network_warns_of_nothing(caplog):
    net = torch.compile(neuron(), backend="eager")
    net(torch.ones(3, 2))
    with caplog.at_level(logging.WARNING, logger="flexsn"):
        functional.reset_net(net)
    assert net.states is None
    assert warnings_in(caplog) == []


def test_detach_net_detaches_states_in_lists():
    net = nn.Sequential(nn.Linear(2, 2), neuron())
    net(torch.ones(3, 2))
    assert net[1].states[0].grad_fn is not None
    functional.detach_net(net)
    assert net[1].states[0].grad_fn is None


@pytest.mark.parametrize("copy", [False, True])
def test_detach_net_copies_states_where_it_is_asked_to(copy):
    class OfItsOwn(neurons.LIFNode):
        def detach(self):
            self.v = self.v.detach()

    net = nn.Sequential(neuron(), OfItsOwn(step_mode="m"))
    net(torch.randn(3, 4, requires_grad=True))
    before = [net[0].states[0], net[1].v]
    functional.detach_net(net, copy=copy)
    for old, new in zip(before, [net[0].states[0], net[1].v], strict=True):
        assert old.requires_grad and not new.requires_grad and torch.equal(old, new)
        assert (new.data_ptr() == old.data_ptr()) == (not copy)


def test_detach_net_makes_truncated_backpropagation_possible():
    net = nn.Sequential(nn.Linear(2, 2), neuron())
    for _ in range(3):
        net(torch.ones(3, 2)).sum().backward()
        functional.detach_net(net)


def test_set_step_mode_reaches_every_module_that_has_one():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(neuron()), neuron())
    functional.set_step_mode(net, "s")
    assert net[1][0].step_mode == "s" and net[2].step_mode == "s"


def test_set_step_mode_lets_a_wrong_mode_through_to_the_error():
    with pytest.raises(ValueError, match="step_mode must be one of"):
        functional.set_step_mode(nn.Sequential(neuron()), "x")


def test_set_backend_sets_where_supported():
    net = nn.Sequential(neuron(), neuron())
    functional.set_backend(net, "triton", instance=FlexSN)
    assert [module.backend for module in net] == ["triton", "triton"]


def test_set_backend_warns_and_leaves_alone_where_not_supported(caplog):
    class Plain(MemoryModule):
        pass

    net = nn.Sequential(Plain(), neuron())
    with caplog.at_level(logging.WARNING, logger="flexsn"):
        functional.set_backend(net, "fused")
    assert [module.backend for module in net] == ["torch", "fused"]
    assert warnings_in(caplog) == [
        "set_backend leaves Plain at backend 'torch': it supports ('torch',), not 'fused'"
    ]


def test_set_backend_warns_of_single_step_neurons(caplog):
    net = nn.Sequential(neuron(step_mode="s"))
    with caplog.at_level(logging.WARNING, logger="flexsn"):
        functional.set_backend(net, "fused")
    assert net[0].backend == "torch"
    assert warnings_in(caplog) == [
        "set_backend leaves FlexSN at backend 'torch': it supports ('torch', 'hop'), not 'fused'"
    ]


def test_set_backend_changes_only_the_type_asked_for():
    net = nn.Sequential(neuron(), neuron())
    functional.set_backend(net, "fused", instance=(nn.Linear,))
    assert [module.backend for module in net] == ["torch", "torch"]


def test_memories_of_a_network_are_found_through_functional():
    net = nn.Sequential(neuron())
    net(torch.ones(2, 3))
    assert [name for name, _ in functional.named_memories(net)] == ["0.states", "0.state_seqs"]
    (states,) = functional.extract_memories(net)
    functional.load_memories(net, [None])
    assert net[0].states is None
    outputs, (after,) = functional.to_functional_forward(net)((torch.ones(2, 3),), (states,))
    assert torch.equal(after[0], torch.full((3,), 4.0))
    assert net[0].states is None
