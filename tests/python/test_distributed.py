"""Networks over processes or replicas, and activation checkpointing: gradients are those of one plain run."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import flexsn
from flexsn import FlexSN, checkpoint, functional, neurons

PROCESSES = 2
NO_GLOO = "" if dist.is_available() and dist.is_gloo_available() else "this torch has no gloo"


class Plif(nn.Module):
    """A neuron with a learnable leak for each channel and one learnable level."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.leak = nn.Parameter(torch.linspace(-1.0, 1.0, channels))
        self.level = nn.Parameter(torch.tensor([0.7]))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * torch.sigmoid(self.leak) + x
        y = torch.sigmoid(4.0 * (h - self.level))
        return y, h * (1.0 - y)


def network(backend: str = "fused") -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(4, 8), FlexSN(Plif(8), 1, 1, 1, backend=backend), nn.Linear(8, 6), FlexSN(Plif(6), 1, 1, 1),
        nn.Linear(6, 2),
    )  # fmt: skip


def batch(step: int) -> tuple[Tensor, Tensor]:
    """T x B x channels, and what to come near to."""
    source = torch.Generator().manual_seed(step)
    return torch.randn(5, 8, 4, generator=source), torch.randn(8, 2, generator=source)


def train(net: nn.Module, rank: int = 0, processes: int = 1) -> list[dict[str, Tensor]]:
    """Gradients of two steps, each on this process's part of the batch."""
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    gradients = []
    for step in range(2):
        x, target = batch(step)
        share = slice(rank * 8 // processes, (rank + 1) * 8 // processes)
        functional.reset_net(net)
        optimizer.zero_grad()
        (net(x[:, share]).mean(0) - target[share]).square().mean().backward()
        gradients.append({name: whole(parameter.grad) for name, parameter in net.named_parameters()})
        optimizer.step()
    return gradients


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be spread over processes."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def work(rank: int, folder: str, way: str) -> None:
    """What each process does; the first one writes down what came out."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=PROCESSES,
        timeout=datetime.timedelta(minutes=1),
    )
    net, start = network(), torch.load(f"{folder}/start.pt")
    if way == "ddp":
        net.load_state_dict(start)
        found = train(DistributedDataParallel(net), rank, PROCESSES)
        gradients = [{n.removeprefix("module."): g for n, g in step.items()} for step in found]
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (PROCESSES,))
        for layer in net:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        net.load_state_dict({n: like(start[n], value) for n, value in net.state_dict().items()})
        gradients = train(net, rank, PROCESSES)
    state = {name: whole(value) for name, value in net.state_dict().items()}
    if rank == 0:
        torch.save({"gradients": gradients, "state": state}, f"{folder}/end.pt")
    dist.barrier()
    # Torn down by Python, gloo may lock up (torch 2.13): its thread waits for Python, and Python for it.
    os._exit(0)


def like(value: Tensor, spread: Tensor) -> Tensor:
    """A plain tensor spread as another one is."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, spread.device_mesh, spread.placements)


def over_two_processes(folder: pathlib.Path, way: str) -> tuple[Any, nn.Module, Any]:
    """Gradients and state of two processes; a network that one process trained, and its gradients."""
    alone = network()
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter.mul_(1.1)  # not what a process starts with, so that loading matters
    torch.save(alone.state_dict(), folder / "start.pt")
    expected = train(alone)
    multiprocessing.spawn(work, (str(folder), way), nprocs=PROCESSES)
    return torch.load(folder / "end.pt"), alone, expected


@pytest.fixture(scope="module")
def by_ddp(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if NO_GLOO:
        pytest.skip(NO_GLOO)
    return over_two_processes(tmp_path_factory.mktemp("ddp"), "ddp")


def test_ddp_has_the_gradients_of_one_process(by_ddp) -> None:
    found, _, expected = by_ddp
    assert {"1.core.leak", "1.core.level", "3.core.leak"} <= set(expected[0])
    assert all(gradient.abs().sum() > 0 for gradient in expected[0].values())
    torch.testing.assert_close(found["gradients"], expected, rtol=1e-5, atol=1e-7)


def test_a_state_dict_goes_from_one_process_to_two_and_back(by_ddp) -> None:
    found, alone, _ = by_ddp
    torch.testing.assert_close(found["state"], dict(alone.state_dict()), rtol=1e-5, atol=1e-7)
    again = network()
    again.load_state_dict(found["state"])
    functional.reset_net(alone)
    x, _ = batch(3)
    torch.testing.assert_close(again(x), alone(x), rtol=1e-5, atol=1e-6)


def test_fsdp_trains_as_one_process(tmp_path: pathlib.Path) -> None:
    if NO_GLOO:
        pytest.skip(NO_GLOO)
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("this torch has no FSDP2 (fully_shard)")
    found, alone, expected = over_two_processes(tmp_path, "fsdp")
    torch.testing.assert_close(found["gradients"], expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found["state"], dict(alone.state_dict()), rtol=1e-5, atol=1e-7)


# ---- activation checkpointing ------------------------------------------------------------------------------


def gradients(net: nn.Module, run, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Of a sequence in two parts, the second going on from the states of the first."""
    functional.reset_net(net)
    result = run(x[:2]).square().sum() + run(x[2:]).sin().sum()
    return result, list(torch.autograd.grad(result, [x, *net.parameters()]))


@pytest.mark.parametrize("backend", ["fused", "torch", "hop"])
@pytest.mark.parametrize("store", [False, True])
def test_a_checkpointed_network_has_the_gradients_of_a_plain_one(backend: str, store: bool) -> None:
    net = network(backend)
    net[1].store_state_seqs = store
    x = torch.randn(5, 3, 4, requires_grad=True)
    expected = gradients(net, net, x)
    torch.testing.assert_close(gradients(net, lambda part: checkpoint(net, part), x), expected)


def test_running_again_leaves_the_states_alone() -> None:
    net = network()
    net[1].store_state_seqs = True
    out = checkpoint(net, torch.randn(5, 3, 4, requires_grad=True))
    states, sequences = net[1].states[0], net[1].state_seqs[0]
    out.sum().backward()
    assert net[1].states[0] is states and net[1].state_seqs[0] is sequences


def test_a_checkpointed_call_keeps_its_input_alone() -> None:
    net = network()
    x = torch.randn(5, 3, 4, requires_grad=True)
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.numel() > 0:  # a checkpoint of torch 2.11 keeps an empty one as well
            kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        net(x)
        assert (5, 3, 8) in kept
        functional.reset_net(net)
        kept.clear()
        checkpoint(net, x)
    assert kept == [(5, 3, 4)]


def test_a_kernel_without_states_is_right_under_torchs_checkpoint() -> None:
    core, x, v = Plif(4), torch.randn(5, 3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    leaves = [x, v, *core.parameters()]
    kernel = FlexSN(core, 1, 1, 1).kernel
    expected = torch.autograd.grad(kernel(x, v)[0].sum(), leaves)
    outputs, _ = torch.utils.checkpoint.checkpoint(kernel, x, v, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(outputs.sum(), leaves), expected)


@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_a_network_whose_first_call_is_checkpointed(backend: str) -> None:
    def fresh(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = 0.75 * v + x
        return torch.sigmoid(h), h

    net = nn.Sequential(nn.Linear(4, 4), FlexSN(fresh, 1, 1, 1, backend=backend))
    x = torch.randn(5, 3, 4, requires_grad=True)
    found = gradients(net, lambda part: checkpoint(net, part, use_reentrant=False), x)
    torch.testing.assert_close(found, gradients(net, net, x))


def test_a_scan_whose_first_call_is_under_torchs_checkpoint() -> None:
    def fresh(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = 0.625 * v + x
        return torch.sigmoid(h), h

    def run(x: Tensor, v: Tensor) -> Tensor:
        return flexsn.scan(fresh, [x], [v])[0][0]

    leaves = [torch.randn(5, 3, requires_grad=True), torch.randn(3, requires_grad=True)]
    found = torch.utils.checkpoint.checkpoint(run, *leaves, use_reentrant=False).sum()
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves), torch.autograd.grad(run(*leaves).sum(), leaves)
    )


def test_a_checkpoint_serves_several_backwards() -> None:
    net, entered = network(), []

    @contextlib.contextmanager
    def noted() -> Iterator[None]:
        entered.append(True)
        yield

    x = torch.randn(5, 3, 4, requires_grad=True)
    out = checkpoint(net, x, context_fn=lambda: (noted(), contextlib.nullcontext())).square().sum()
    first = torch.autograd.grad(out, [x], retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(out, [x]), first)
    functional.reset_net(net)
    torch.testing.assert_close(torch.autograd.grad(net(x).square().sum(), [x]), first)
    assert len(entered) == 1


@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_checkpoints_over_carried_states_serve_several_backwards(backend: str) -> None:
    def gradients_of(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        net = network(backend)
        x = torch.linspace(-1, 1, 60).view(5, 3, 4).requires_grad_()
        loss = call(net, x).sum() + net(x * 0.5).sum() + call(net, x * 0.2).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return (x.grad, *(parameter.grad for parameter in net.parameters()))

    torch.testing.assert_close(gradients_of(checkpoint), gradients_of(lambda net, x: net(x)))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_torchs_checkpoint_around_states_is_refused(reentrant: bool, library: bool, backend: str) -> None:
    net = flexsn.neurons.LIFNode(step_mode="m", backend=backend) if library else network(backend)
    x = torch.randn(5, 3, 4, requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=reentrant)
    text = "is part of a backward, as torch.utils.checkpoint makes them, .* use flexsn.checkpoint"
    with pytest.raises(RuntimeError, match=text):
        out.sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_a_reset_before_backward_does_not_hide_that_states_are_others(
    reentrant: bool, library: bool, backend: str
) -> None:
    def run(calls: int) -> Tensor:
        net = flexsn.neurons.LIFNode(step_mode="m", backend=backend) if library else network(backend)
        x = torch.linspace(-2, 2, 60).view(5, 3, 4).requires_grad_()
        for _ in range(calls):
            net(x)
        out = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=reentrant)
        functional.reset_net(net)
        return torch.autograd.grad(out.sum(), [x])[0] if not reentrant else out.sum().backward() or x.grad

    with pytest.raises(RuntimeError, match="starts anew, where the first run may have gone on .* flexsn.checkpoint"):
        run(1)
    assert run(0).abs().sum() > 0  # from the start, as the first run


class Firing(Plif):
    """The same with a surrogate as a part."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.fire = flexsn.surrogate.ATan(3.0)

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * torch.sigmoid(self.leak) + x
        s = self.fire(h - self.level)
        return s, h * (1.0 - s)


@pytest.mark.parametrize("backend", ["fused", "torch"])
@pytest.mark.parametrize(
    "make",
    [
        lambda backend: network(backend),
        lambda backend: nn.Sequential(nn.Linear(4, 6), FlexSN(Firing(6), num_states=1, backend=backend)),
        lambda backend: neurons.ParametricLIFNode(step_mode="m", backend=backend),
        lambda backend: nn.Sequential(
            nn.Linear(4, 6),
            neurons.AdExNode(step_mode="m", backend=backend, surrogate_function=flexsn.surrogate.Sigmoid()),
        ),
    ],
    ids=["smooth", "a surrogate as a part", "learnable", "two states"],
)
def test_replicas_of_data_parallel_train_as_the_whole_does(
    make: Callable[[str], nn.Module], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicate = importlib.import_module("torch.nn.parallel.replicate")

    def copied(tensors: list[Tensor], devices: list[int], detach: bool = False) -> list[list[Tensor]]:
        return [[tensor * 1.0 for tensor in tensors] for _ in devices]

    monkeypatch.setattr(replicate, "_broadcast_coalesced_reshape", copied)  # which copies to GPUs
    net = make(backend)
    x = torch.randn(5, 8, 4)
    parameters = list(net.parameters())
    expected = net(x)
    functional.reset_net(net)
    replicas = replicate.replicate(net, [0, 0])
    found = torch.cat([replica(part) for replica, part in zip(replicas, x.chunk(2, 1))], 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
    )


def test_what_a_checkpoint_does_not_take() -> None:
    with pytest.raises(TypeError, match="flexsn.checkpoint: expected a module, .* found function; make a"):
        checkpoint(lambda x: x, torch.ones(2))
    with pytest.raises(ValueError, match="flexsn.checkpoint: use_reentrant must be False, found True"):
        checkpoint(network(), torch.ones(5, 3, 4), use_reentrant=True)


class Adding(flexsn.base.MemoryModule):
    """A module that writes to its memory in place."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), 0.5))
        self.register_memory("v", torch.zeros(3))

    def single_step_forward(self, x: Tensor) -> Tensor:
        self.v += self.w * x
        return self.v**3


def test_memories_that_are_written_in_place_are_right_under_a_checkpoint() -> None:
    found = []
    for run in (lambda m, x: m(x), checkpoint):
        module = Adding()
        out = run(module, torch.ones(3)).sum()
        out.backward(retain_graph=True)
        out.backward()
        found.append((module.w.grad, module.v.detach()))
    torch.testing.assert_close(found[1], found[0])


def test_compilers_leave_a_checkpoint_as_it_is() -> None:
    net, x = network(), torch.randn(5, 3, 4, requires_grad=True)
    expected = torch.autograd.grad(net(x).sum(), x)
    functional.reset_net(net)
    compiled = torch.compile(lambda x: checkpoint(net, x * 1.0), backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), expected)
    with pytest.raises(Exception, match="flexsn.checkpoint: a compiler cannot look into it"):
        torch.compile(lambda x: checkpoint(net, x), backend="aot_eager", fullgraph=True)(x)
