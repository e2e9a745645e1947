"""Bugs that users of other libraries met, each tried here on every backend that is present."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from cores import Calls, by_loop, soft

import flexsn
import torch
from flexsn import FlexSN, functional, neurons, surrogate
from flexsn.fused import trace_count
from torch import Tensor, nn

NO_GPU = "no NVIDIA GPU that torch can see"


class Where(NamedTuple):
    """What runs a call, and on which device."""

    backend: str
    device: str


_DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
_ALL = [Where(backend, device) for device in _DEVICES for backend in ("fused", "torch")]


@pytest.fixture(params=_ALL, ids=lambda where: f"{where.backend}-{where.device}")
def where(request: pytest.FixtureRequest) -> Where:
    return request.param


class Leaky(nn.Module):
    """A soft neuron with a leak of any shape that broadcasts to a step."""

    def __init__(self, leak: Any) -> None:
        super().__init__()
        self.leak = nn.Parameter(torch.as_tensor(leak))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * torch.sigmoid(self.leak) + x
        y = torch.sigmoid(4.0 * (h - 1.0))
        return y, h * (1.0 - y)


def made(core: Callable[..., Any], where: Where) -> FlexSN:
    return FlexSN(core, num_inputs=1, num_states=1, num_outputs=1, backend=where.backend).to(where.device)


def small_net(where: Where) -> nn.Sequential:
    layers = [nn.Linear(3, 4), made(Leaky(0.3), where), nn.Linear(4, 2), made(Leaky(-0.2), where)]
    return nn.Sequential(*layers).to(where.device)


def gradients(net: nn.Module, y: Tensor) -> list[Tensor]:
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    return list(torch.autograd.grad((y * weights).sum(), list(net.parameters())))


def flexsn_calls(module: nn.Module, x: Tensor) -> list[str]:
    with Calls() as calls:
        module(x)
    return [name for name in calls.names if name.startswith("flexsn.")]


# ---- gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leak", [0.3, [0.1, -0.4, 0.7]], ids=["scalar", "per channel"])
def test_gradient_of_a_parameter_sums_over_more_than_one_block(where: Where, leak: Any) -> None:
    """spikingjelly#151: each thread block summed for itself and one block's sum was taken for all of them."""
    x = torch.randn(3, 33334, 3, dtype=torch.float64)
    expected_core = Leaky(torch.tensor(leak, dtype=torch.float64))
    [y], _, _ = by_loop(expected_core, [x], [torch.zeros(33334, 3, dtype=torch.float64)])
    [expected] = torch.autograd.grad(y.sum(), [expected_core.leak])
    neuron = made(Leaky(leak), where)
    neuron(x.float().to(where.device)).sum().backward()
    torch.testing.assert_close(neuron.core.leak.grad.double().cpu(), expected, rtol=2e-5, atol=0)


@pytest.mark.parametrize("layout", ["transposed", "expanded", "strided"])
def test_gradient_that_arrives_with_gaps_is_read_where_it_lies(where: Where, layout: str) -> None:
    """SpikingJelly before 2.0 read a gradient that is not contiguous as if it were."""
    x = torch.randn(4, 5, 6, device=where.device, requires_grad=True)
    grad = {
        "transposed": torch.randn(6, 5, 4, device=where.device).permute(2, 1, 0),
        "expanded": torch.randn(1, device=where.device).expand(4, 5, 6),
        "strided": torch.randn(4, 5, 12, device=where.device)[..., ::2],
    }[layout]
    assert not grad.is_contiguous()
    neuron = made(Leaky(0.3), where)
    y = neuron(x)
    wanted = [x, neuron.core.leak]
    found = torch.autograd.grad(y, wanted, grad, retain_graph=True)
    for ours, dense in zip(found, torch.autograd.grad(y, wanted, grad.contiguous()), strict=True):
        if where.backend == "fused":
            assert torch.equal(ours, dense)
        else:  # torch sums in the order in which the gradient lies
            torch.testing.assert_close(ours, dense)


def test_two_forward_calls_before_one_backward_give_the_whole_gradient(where: Where) -> None:
    """sinabs-exodus#3: what the second call had kept was used for the first as well."""
    x, net = torch.randn(6, 5, 3, device=where.device), small_net(where)
    expected = gradients(net, net(x))
    functional.reset_net(net)
    found = gradients(net, torch.cat([net(x[:2]), net(x[2:])]))
    for ours, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, whole)


@pytest.mark.parametrize("compiled", [False, True])
def test_chained_layers_have_the_gradients_of_the_eager_loop(where: Where, compiled: bool) -> None:
    """pytorch#153679: two scans in a row under a compiler, with right outputs and wrong gradients."""
    x, net = torch.randn(5, 6, 3, device=where.device), small_net(where)
    law = copy.deepcopy(net)
    functional.set_backend(law, "torch", FlexSN)
    run = torch.compile(net, fullgraph=True, backend="aot_eager") if compiled else net
    found, expected = run(x), law(x)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(gradients(net, found), gradients(law, expected), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_inductor_keeps_the_gradients_of_chained_layers() -> None:
    """pytorch#153679 as it was met, with torch's own compiler."""
    where = Where("fused", _DEVICES[-1])
    x, net = torch.randn(5, 6, 3, device=where.device), small_net(where)
    expected = gradients(net, net(x))
    functional.reset_net(net)
    for ours, eager in zip(gradients(net, torch.compile(net, fullgraph=True)(x)), expected, strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("name", list(flexsn._ops.library_surrogates()[0]))
def test_every_surrogate_has_the_gradient_of_its_own_formula(where: Where, name: str) -> None:
    """SpikingJelly PR 660: five surrogates had no gradient in kernels; norse#306: the choice was ignored."""
    fire = surrogate.named(name)
    neuron = FlexSN(lambda x: fire(x), num_inputs=1, num_states=0, num_outputs=1, backend=where.backend)
    x = torch.linspace(-0.4, 0.4, 8, device=where.device).view(2, 4).requires_grad_()
    alone = x.detach().clone().requires_grad_()
    y = neuron(x)
    assert torch.equal(y, fire(alone))
    [found] = torch.autograd.grad(y.sum(), [x])
    [expected] = torch.autograd.grad(fire(alone).sum(), [alone])
    torch.testing.assert_close(found, expected)
    assert found.count_nonzero() > 0


# ---- what is computed --------------------------------------------------------------------------------------


def test_surrogate_that_does_not_spike_gives_its_smooth_function(where: Where) -> None:
    """SpikingJelly PRs 690 and 713: spiking=False was dropped, and kernels spiked all the same."""
    fire = surrogate.Sigmoid(alpha=3.0, spiking=False)
    x = torch.randn(4, 5, device=where.device, requires_grad=True)
    neuron = neurons.IFNode(surrogate_function=fire, step_mode="m", backend=where.backend)
    y = neuron(x)
    assert 0 < y.min() and y.max() < 1

    def step(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v + x
        s = torch.sigmoid(3.0 * (h - 1.0))
        return s, (1.0 - s) * h

    again = x.detach().clone().requires_grad_()
    [expected], _, _ = by_loop(step, [again], [torch.zeros(5, device=where.device)])
    torch.testing.assert_close(y, expected)
    for ours, theirs in zip(
        torch.autograd.grad(y.sum(), [x]), torch.autograd.grad(expected.sum(), [again]), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_parameter_of_each_neuron_is_used_by_that_neuron(where: Where) -> None:
    """snntorch#442: of a decay for each neuron only one was used."""
    leaks = torch.tensor([-2.0, 0.0, 0.5, 3.0])
    x = torch.rand(6, 3, 4).to(where.device)
    together = made(Leaky(leaks), where)
    y = together(x)
    y.sum().backward()
    for channel, leak in enumerate(leaks):
        alone = made(Leaky(leak), where)
        y_alone = alone(x[..., channel])
        y_alone.sum().backward()
        torch.testing.assert_close(y[..., channel], y_alone)
        torch.testing.assert_close(together.core.leak.grad[channel], alone.core.leak.grad)
    assert together.core.leak.grad.unique().numel() == 4


def test_hard_and_soft_reset_are_what_they_are_called(where: Where) -> None:
    """snntorch#341: resetting by subtraction set the potential to zero, and the other way round."""
    x = torch.full((1, 2), 1.75, device=where.device)
    for v_reset, left in ((0.0, 0.0), (-0.5, -0.5), (None, 0.75)):
        neuron = neurons.IFNode(v_threshold=1.0, v_reset=v_reset, step_mode="m", backend=where.backend)
        assert neuron(x).tolist() == [[1.0, 1.0]]
        assert neuron.v.tolist() == [left, left]


def test_float64_stays_float64(where: Where) -> None:
    """snntorch#422: doubles came back as singles, and as spikes that were rounded to singles."""
    x = torch.randn(5, 7, dtype=torch.float64, device=where.device, requires_grad=True)
    core = Leaky(torch.tensor(0.3, dtype=torch.float64))
    neuron = made(core, where)
    y = neuron(x)
    y.sum().backward()
    dtypes = {t.dtype for t in (y, *neuron.states, x.grad, core.leak.grad)}
    assert dtypes == {torch.float64}
    [expected], _, _ = by_loop(core, [x], [torch.zeros(7, dtype=torch.float64, device=where.device)])
    torch.testing.assert_close(y, expected, rtol=1e-14, atol=1e-14)
    near = 1.0 - 2.0**-40  # 1 as a single
    below = torch.full((1, 3), near, dtype=torch.float64, device=where.device)
    assert neurons.IFNode(step_mode="m", backend=where.backend)(below).tolist() == [[0.0] * 3]


def test_the_backend_that_is_named_is_the_one_that_runs(where: Where) -> None:
    """SpikingJelly PRs 690 and 721: "torch" ran kernels, and a benchmark of kernels measured the loop."""
    x = torch.randn(3, 4, device=where.device)
    for module in (made(soft, where), neurons.LIFNode(step_mode="m", backend=where.backend)):
        calls = flexsn_calls(module, x)
        assert calls == ([] if where.backend == "torch" else ["flexsn.inference_final_state"])


# ---- states ------------------------------------------------------------------------------------------------


def test_another_batch_size_in_mid_stream_is_refused_and_changes_nothing(where: Where) -> None:
    """sinabs#84: states were drawn anew at random when the batch changed."""
    neuron = made(soft, where)
    neuron(torch.randn(3, 8, 2, device=where.device))
    before = [state.clone() for state in neuron.states]
    other = torch.randn(3, 5, 2, device=where.device)
    with pytest.raises(ValueError, match=r"reset\(\) before a batch of another shape"):
        neuron(other)
    assert torch.equal(neuron.states[0], before[0])
    neuron.reset()
    assert torch.equal(neuron(other), made(soft, where)(other))


def test_reset_of_one_model_leaves_another_of_its_class_alone(where: Where) -> None:
    """snntorch#438: neurons stood in a list of their class, and all of the list was reset."""
    x, nets = torch.randn(3, 5, 3, device=where.device), [small_net(where) for _ in range(2)]
    for net in nets:
        net(x)
    before = [state.clone() for state in nets[1][1].states]
    functional.reset_net(nets[0])
    assert nets[0][1].states is None
    assert torch.equal(nets[1][1].states[0], before[0])


def test_states_of_inference_keep_no_graph_alive(where: Where) -> None:
    """spikingjelly#218: a loop of inference without reset kept every batch until memory was full."""
    neuron = made(Leaky(0.3), where)
    for _ in range(3):
        with torch.no_grad():
            neuron(torch.randn(2, 4, device=where.device))
        assert neuron.states[0].grad_fn is None and not neuron.states[0].requires_grad


def test_forgotten_reset_says_what_to_do(where: Where) -> None:
    """spikingjelly#420 and a dozen like it: "backward through the graph a second time" named no cause."""
    neuron = made(Leaky(0.3), where)
    x = torch.randn(2, 4, device=where.device)
    neuron(x).sum().backward()
    with pytest.raises(RuntimeError, match="functional.detach_net or functional.reset_net"):
        neuron(x).sum().backward()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))],
                         ids=["deepcopy", "pickle"])  # fmt: skip
def test_a_copy_keeps_the_fast_path(where: Where, copied: Callable[[Any], Any]) -> None:
    """FlexSN in SpikingJelly, August 2026: a copy lost its kernels and ran the loop without a word."""
    neuron, x = made(Leaky(0.3), where), torch.randn(3, 4, device=where.device)
    expected = neuron(x)
    neuron.reset()
    twin = copied(neuron)
    if where.backend == "fused":
        assert flexsn_calls(twin, x) == ["flexsn.training_final_state"]
        twin.reset()
    assert torch.equal(twin(x), expected)
    assert neuron.states is None


# ---- compiling ---------------------------------------------------------------------------------------------


def test_another_length_compiles_nothing_again(where: Where) -> None:
    """SpikingJelly PR 690 review: the number of steps was a constant of the kernel, so each one compiled."""
    neuron = made(Leaky(0.3), where)
    neuron(torch.randn(2, 4, device=where.device))
    traces = trace_count()
    for steps in (1, 3, 17, 100):
        neuron.reset()
        neuron(torch.randn(steps, 4, device=where.device))
    assert trace_count() == traces
    if where.backend == "fused":
        compiled = torch.compile(neuron, fullgraph=True, backend="aot_eager", dynamic=True)
        neuron.reset()
        compiled(torch.randn(2, 4, device=where.device))
        with torch._dynamo.config.patch(error_on_recompile=True):
            for steps in (3, 17, 100):
                neuron.reset()
                compiled(torch.randn(steps, 4, device=where.device))


@pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)
def test_cuda_graphs_of_reduce_overhead_give_the_same_gradients() -> None:
    """SpikingJelly's documentation warns of results that a later replay of the graph has overwritten."""
    net = small_net(Where("fused", "cuda"))
    compiled = torch.compile(net, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(5, 6, 3, device="cuda")
        functional.reset_net(net)
        expected = gradients(net, net(x))
        functional.reset_net(net)
        torch.compiler.cudagraph_mark_step_begin()
        found = [gradient.clone() for gradient in gradients(net, compiled(x))]
        for ours, eager in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


# ---- machines ----------------------------------------------------------------------------------------------


def in_a_new_process(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_and_a_call_need_no_gpu() -> None:
    """spikingjelly#317: the import itself failed where there is no GPU."""
    script = """
        import flexsn, torch
        for backend in ("fused", "torch"):
            neuron = flexsn.FlexSN(lambda x, v: (v + x, v + x), num_states=1, backend=backend)
            assert neuron(torch.ones(3, 2)).tolist() == [[1, 1], [2, 2], [3, 3]]
        print(torch.cuda.is_available(), torch.cuda.is_initialized())
    """
    assert in_a_new_process(script, CUDA_VISIBLE_DEVICES="") == "False False"


def test_a_call_on_the_cpu_starts_no_gpu_and_trains_under_ddp() -> None:
    """cupy#6569: a library made device 0 the current one in every process of a DDP run."""
    script = """
        import os, torch, flexsn
        import torch.distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        neuron = flexsn.FlexSN(lambda x, v: (v + x, v + x), num_states=1)
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), neuron)
        net = torch.nn.parallel.DistributedDataParallel(net)
        net(torch.ones(3, 2)).sum().backward()
        print(net.module[0].bias.grad.tolist(), torch.cuda.is_initialized(), flush=True)
        os._exit(0)  # torn down by Python, gloo may lock up
    """
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    assert in_a_new_process(script) == "[6.0, 6.0] False"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs that torch can see")
def test_tensors_of_another_device_than_the_current_one_run_there_and_leave_it() -> None:
    """cupy#6569: kernels went to the current device, or made another one current."""
    with torch.cuda.device(0):
        neuron = made(Leaky(0.3), Where("fused", "cuda:1"))
        x = torch.randn(3, 4, device="cuda:1", requires_grad=True)
        y = neuron(x)
        y.sum().backward()
        assert torch.cuda.current_device() == 0
    assert {t.device.index for t in (y, x.grad, neuron.core.leak.grad)} == {1}
    alone = made(Leaky(0.3), Where("fused", "cpu"))
    torch.testing.assert_close(y.cpu(), alone(x.detach().cpu()))
