"""CUDA tensors: the same bits as on the CPU, and what only a GPU has: streams, graphs, several devices."""

from __future__ import annotations

import threading

import pytest
from cores import hard, soft, square, two_in_three_states, with_counter

import flexsn
import torch
from flexsn.bench import bench
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can see")


class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        y = torch.sigmoid(4.0 * u)
        return grad * 4.0 * y * (1.0 - y)


def lif(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v + (x - v) / 2.0
    s = Sigmoid.apply(h - 1.0)
    return s, h * (1.0 - s)


class Parameters(nn.Module):
    """A decay and a threshold of these shapes, all learnable."""

    def __init__(self, decay: tuple[int, ...], threshold: tuple[int, ...], dtype=torch.float32) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(decay, dtype=dtype) * 0.5 + 0.25)
        self.threshold = nn.Parameter(torch.rand(threshold, dtype=dtype) + 0.5)

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * self.decay + x
        s = Sigmoid.apply(h - self.threshold)
        return s, h - s * self.threshold


def same(a: Tensor, b: Tensor) -> None:
    """Equal bits; NaNs are equal to each other."""
    a, b = a.detach().cpu(), b.detach().cpu()
    assert a.dtype == b.dtype and a.shape == b.shape
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    if a.dtype.is_floating_point:
        assert bool((torch.signbit(a) == torch.signbit(b))[~a.isnan()].all())


def run(core, inputs, states, device):
    """Outputs, states and all gradients of one call on a device."""
    if isinstance(core, nn.Module):
        core = core.to(device)
        core.zero_grad()
    inputs = [t.detach().to(device).requires_grad_(t.is_floating_point()) for t in inputs]
    given = [t.detach().to(device).requires_grad_(t.is_floating_point()) for t in states]
    outputs, final = flexsn.scan(core, inputs, given)
    results = [*outputs, *final]
    carrying = [r for r in results if r.requires_grad]
    generator = torch.Generator().manual_seed(3)
    arriving = [torch.randn(r.shape, generator=generator).to(r.dtype).to(device) for r in carrying]
    params = list(core.parameters()) if isinstance(core, nn.Module) else []
    wanted = [t for t in (*inputs, *given, *params) if t.requires_grad]
    gradients = torch.autograd.grad(carrying, wanted, arriving, allow_unused=True) if carrying else []
    return [*results, *(g for g in gradients if g is not None)]


def compare(core, inputs, states) -> None:
    for ours, law in zip(run(core, inputs, states, "cuda"), run(core, inputs, states, "cpu"), strict=True):
        same(ours, law)


CORES = {
    "lif": (lif, 1, 1),
    "soft": (soft, 1, 1),
    "hard": (hard, 1, 1),
    "square": (square, 1, 1),
    "two_in_three_states": (two_in_three_states, 2, 3),
}


def choices(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    spike = (x > 0.0).float()
    product = torch.where(x > 0.1, 2.0, 0.0) * -0.5
    equal = -torch.where(x == 1.0, x, 0.0)
    return -spike, product, torch.where(x > 0.2, -0.0, 1.0), -torch.sign(x), equal, v + spike


def test_choices_keep_the_sign_of_zero():
    x = torch.randn(3, 500)
    x[0, :4] = torch.tensor([0.0, -0.0, 1.0, -1.0])
    here, there = (flexsn.FlexSN(choices, 1, 1, 5)(x.to(device)) for device in ("cpu", "cuda"))
    for right, found in zip(here, there):
        same(right, found)


@pytest.mark.parametrize("steps", [0, 1, 7, 8, 9, 27])
@pytest.mark.parametrize("elements", [1, 255, 1024, 1003])
@pytest.mark.parametrize("name", CORES)
def test_every_result_and_gradient_has_the_bits_of_the_cpu(name, steps, elements):
    core, inputs, states = CORES[name]
    compare(
        core,
        [torch.randn(steps, elements) for _ in range(inputs)],
        [torch.randn(elements) for _ in range(states)],
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("elements", [1000, 1001])
def test_other_types_have_the_bits_of_the_cpu(dtype, elements):
    compare(lif, [torch.randn(19, elements).to(dtype)], [torch.randn(elements).to(dtype)])


def test_a_counter_in_integers_has_the_bits_of_the_cpu():
    compare(with_counter, [torch.randn(20, 999)], [torch.randn(999), torch.zeros(999, dtype=torch.int32)])


@pytest.mark.parametrize(
    "decay, threshold", [((), ()), ((), (5, 1, 1)), ((3, 1, 1, 1), (1, 5, 1, 7)), ((6, 7), (3, 5, 6, 7))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_parameters_of_any_shape_have_the_bits_of_the_cpu(decay, threshold, dtype):
    core = Parameters(decay, threshold, dtype)
    compare(core, [torch.randn(11, 3, 5, 6, 7, dtype=dtype)], [torch.zeros(3, 5, 6, 7, dtype=dtype)])


@pytest.mark.parametrize("shape", [(64, 64, 8, 8), (1000003,), (16, 32, 32, 32)])
def test_sums_over_many_elements_have_the_bits_of_the_cpu(shape):
    threshold = (shape[1], 1, 1) if len(shape) == 4 else ()
    core = Parameters((), threshold)
    compare(core, [torch.randn(3, *shape)], [torch.zeros(shape)])


def test_rows_at_odd_offsets_and_strides_have_the_bits_of_the_cpu():
    whole = torch.randn(9, 2051)
    for first, last in ((1, 2050), (3, 2051), (0, 2048), (2, 2050)):
        compare(lif, [whole[:, first:last]], [torch.zeros(last - first)])
        zeros = torch.zeros(last - first)
        on_gpu = flexsn.scan(lif, [whole.cuda()[:, first:last]], [zeros.cuda()])[0][0]
        same(on_gpu, flexsn.scan(lif, [whole[:, first:last]], [zeros])[0][0])


def test_chunks_equal_the_whole():
    x = torch.randn(40, 777, device="cuda")
    module = flexsn.FlexSN(two_in_three_states, num_states=3)
    whole = module(x, x)
    module.reset()
    parts = [module(x[:13], x[:13]), module(x[13:], x[13:])]
    for one, *chunks in zip(whole, *parts, strict=True):
        same(one, torch.cat(chunks))


def test_state_sequences_have_the_bits_of_the_cpu():
    x = torch.randn(21, 501)
    found = []
    for device in ("cuda", "cpu"):
        module = flexsn.FlexSN(lif, num_states=1, store_state_seqs=True)
        given = x.to(device).requires_grad_()
        y = module(given)
        (y.sum() + (module.state_seqs[0] * 0.5).sum()).backward()
        found.append([y, module.state_seqs[0], given.grad])
    for ours, law in zip(*found, strict=True):
        same(ours, law)


def test_special_values_have_the_bits_of_the_cpu():
    infinity = float("inf")
    values = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 3e38, infinity, -infinity, float("nan"), 2.0]
    )
    compare(lif, [values.repeat(8, 7)], [values.repeat(7)])
    compare(soft, [values.repeat(8, 7)], [values.repeat(7)])


def test_other_streams_are_used():
    x = torch.randn(32, 1 << 20, device="cuda")
    expected = flexsn.FlexSN(lif, num_states=1)(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    module = flexsn.FlexSN(lif, num_states=1)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # what the default stream runs would not wait for
        late = x * 1.0
        found = module(late)
    stream.synchronize()
    same(found, expected)


def test_backward_uses_the_stream_of_its_forward():
    x, grad = torch.randn(2, 32, 1 << 20, device="cuda")

    def train(delay: int):
        core = Parameters((), (64,)).cuda()
        with torch.no_grad():
            core.decay.fill_(0.5)
            core.threshold.fill_(0.75)
        late = x.view(32, -1, 64).clone().requires_grad_()
        y = flexsn.FlexSN(core, num_states=1)(late)
        torch.cuda._sleep(delay)  # what another stream runs would read the gradient before it is there
        arriving = grad.view_as(y) * 1.0
        return torch.autograd.grad(y, [late, *core.parameters()], arriving)

    expected = train(1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = train(50_000_000)
    stream.synchronize()
    for one, right in zip(found, expected, strict=True):
        same(one, right)


def test_a_cuda_graph_replays_training():
    module = flexsn.FlexSN(Parameters((), (64,)).cuda(), num_states=1)
    x = torch.randn(16, 100, 64, device="cuda", requires_grad=True)
    grad = torch.randn(16, 100, 64, device="cuda")

    def step():
        module.reset()
        return torch.autograd.grad(module(x), [x, *module.parameters()], grad)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    for ours, eager in zip(captured, step(), strict=True):
        same(ours, eager)


def passing(x, v):
    return x * 0.625 + v, v * 0.5 + x


def spiking(x, v):
    h = v * 0.6875 + x
    s = flexsn.surrogate.Sigmoid(3.5)(h - 0.8125)
    return s, torch.where(s > 0.5, 0.1875, h)


def with_numbers(x, v):
    h = v * torch.full((), 0.4375, device=x.device).exp() + x
    return torch.maximum(h, torch.zeros_like(h)), h * 0.5625


@pytest.mark.parametrize(
    "make",
    [
        lambda: flexsn.FlexSN(passing, num_states=1),
        lambda: flexsn.FlexSN(spiking, num_states=1),
        lambda: flexsn.FlexSN(with_numbers, num_states=1),
        lambda: flexsn.neurons.LIFNode(tau=2.6875),
        lambda: flexsn.neurons.ParametricLIFNode(init_tau=2.8125).cuda(),
    ],
    ids=["passing", "spiking", "with_numbers", "LIFNode", "ParametricLIFNode"],
)
def test_the_first_call_may_be_captured(make, monkeypatch, tmp_path):
    monkeypatch.setenv("FLEXSN_CACHE_DIR", str(tmp_path))  # nothing is compiled yet
    module, graphs = make(), []

    def step(x, grad):
        module.reset()
        out = module(x)
        return [out, *torch.autograd.grad(out, [x, *module.parameters()], grad)]

    # Of other lengths too, whose code is made in the background meanwhile.
    for elements in (64, 63, 64):
        x = torch.randn(9, elements, device="cuda", requires_grad=True)
        grad = torch.randn(9, elements, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step(x, grad)
        graphs.append((graph, captured, x, grad))
    for graph, captured, x, grad in graphs:
        graph.replay()
        for ours, eager in zip(captured, step(x, grad), strict=True):
            same(ours, eager)


def test_a_core_with_a_table_of_numbers_may_be_captured():
    def core(x, v):
        return x * torch.tensor([0.5, 1.0, 2.0], device=x.device) + v, v * 0.5 + x

    x, module = torch.randn(9, 64, 3, device="cuda"), flexsn.FlexSN(core, num_states=1)
    for _ in range(2):
        module.reset()
        expected = module(x)
    graph = torch.cuda.CUDAGraph()
    module.reset()
    with torch.cuda.graph(graph):
        captured = module(x)
    graph.replay()
    same(captured, expected)


def test_a_number_that_a_core_makes_is_the_same_on_all_devices():
    def one(number):
        def core(x, v):
            made = torch.full((), number, device=x.device)
            return x * made.exp() + made.tanh() + made.sin(), v

        return core

    x = torch.randn(3, 64)
    for k in range(-24, 24):
        here, there = (flexsn.FlexSN(one(k / 16), num_states=1)(x.to(device)) for device in ("cpu", "cuda"))
        same(here, there)


def wide_layers() -> list[nn.Module]:
    return [nn.Linear(16, 32), flexsn.FlexSN(Parameters((), (32,)), num_states=1), nn.Linear(32, 8)]


def small_layers() -> list[nn.Module]:
    """Matrices so small that inductor writes kernels for them, which name the operators beside them."""
    return [nn.Linear(16, 4), flexsn.neurons.LIFNode(), nn.Linear(4, 2), flexsn.neurons.ParametricLIFNode()]


@pytest.mark.parametrize("layers", [wide_layers, small_layers])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_torch_compile_takes_it_whole(mode, layers):
    net = nn.Sequential(*layers()).cuda()
    compiled = torch.compile(net, fullgraph=True, mode=mode)
    for steps in (4, 4, 4, 6):
        x = torch.randn(steps, 10, 16, device="cuda")
        results = []
        for way in (net, compiled):
            flexsn.functional.reset_net(net)
            net.zero_grad()
            if way is compiled:
                torch.compiler.cudagraph_mark_step_begin()
            way(x).square().sum().backward()
            results.append([p.grad.clone() for p in net.parameters()])
        for eager, ours in zip(*results, strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [lambda: flexsn.FlexSN(Parameters((), (32,)), num_states=1), flexsn.neurons.LIFNode])
@pytest.mark.parametrize("training", [False, True])
def test_cuda_graphs_of_torch_compile_carry_states_that_were_copied(make, training):
    net = nn.Sequential(nn.Linear(16, 32), make(), nn.Linear(32, 8)).cuda()
    flexsn.functional.set_step_mode(net, "m")
    compiled = torch.compile(net, fullgraph=True, mode="reduce-overhead")
    parts = torch.randn(6, 4, 10, 16, device="cuda")
    results = []
    for way in (net, compiled):
        flexsn.functional.reset_net(net)
        found = []
        for x in parts:
            net.zero_grad()
            with torch.set_grad_enabled(training):
                y = way(x)
            if training:
                y.square().sum().backward()
                found += [p.grad.clone() for p in net.parameters()]
            found.append(y.detach().clone())
            flexsn.functional.detach_net(net, copy=True)
        results.append(found)
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


def test_a_reset_may_be_compiled():
    neuron = flexsn.neurons.LIFNode(step_mode="m")

    def rates(x):
        flexsn.functional.reset_net(neuron)
        return neuron(x).mean(0)

    x = torch.randn(6, 50, device="cuda")
    compiled = torch.compile(rates, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        same(compiled(x), rates(x))


class Changed(nn.Module):
    """What autocast computes in another type: in a step, and where a parameter is made."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(1, 5)), nn.Parameter(torch.rand(5, 50))

    def forward(self, x, v):
        h = torch.exp(x) + nn.functional.softplus(v)
        return h.square().rsqrt() * (self.a @ self.b).to(h.dtype)[0], h**1.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("core", [soft, Changed()])
def test_autocast_does_not_change_what_a_step_computes(core, dtype):
    x = torch.randn(6, 50).to("cuda", dtype)
    core = core.cuda() if isinstance(core, nn.Module) else core
    plain = flexsn.FlexSN(core, num_states=1)(x)
    with torch.autocast("cuda", dtype=torch.float16):
        again = flexsn.FlexSN(core, num_states=1)(x)
        of_another = flexsn.FlexSN(lambda x, v: core(x, v), num_states=1)(x)  # traced here
    assert plain.dtype == dtype
    same(plain, again)
    same(plain, of_another)


def test_a_module_may_be_called_on_one_device_after_another():
    def core(x, v):
        scale = 0.5 if x.is_cuda else 2.0
        return x * scale * torch.linspace(0, 1, 7, device=x.device) + v, v

    x, module = torch.randn(4, 7), flexsn.FlexSN(core, num_states=1)
    for _ in range(2):
        for device in ("cpu", "cuda"):
            module.reset()
            found = module(x.to(device))
            assert found.device.type == device
            same(found, flexsn.FlexSN(core, num_states=1, backend="torch")(x.to(device)))


def test_tensors_on_several_devices_are_refused():
    x = torch.randn(3, 5, device="cuda")
    with pytest.raises(RuntimeError, match="state 0 is on cpu, but input 0 is on cuda:0; move"):
        flexsn.scan(lif, [x], [torch.zeros(5)])


def test_what_lies_on_the_gpu_is_looked_at_there():
    core = Parameters((), (5,)).cuda()
    own = flexsn.FlexSN(core, num_states=1)
    assert own(torch.zeros(0, 3, 5, device="cuda")).shape == (0, 3, 5)  # the first call has no steps
    for neuron in (own, flexsn.neurons.ParametricLIFNode(step_mode="m").cuda()):
        found = flexsn.explain(neuron, 8, (3, 5))
        assert "on a GPU" in found.text and "registers_of_backward_in_flexsn_wide" in found.numbers
        assert "segments of 8 steps" in flexsn.show(neuron, "plan", shape=(3, 5))
        report = flexsn.check(neuron, 9, (3, 5))
        assert report.passed, report.text
        times = bench(neuron, ("eager",), 4, (3, 5), seconds=0.05)
        assert times.device == "cuda:0" and "on cuda:0" in times.text
    assert "%h = " in flexsn.show(lif, num_states=1, inputs=torch.randn(4, 5, device="cuda"))
    x = torch.randn(3, 1 << 20, device="cuda")
    for rows, elements in ((x, 2), (x[:, 1:-1], 1), (x[:, 2:-2], 2)):
        found = flexsn.explain(lif, num_states=1, inputs=rows)
        assert found.numbers["elements_a_thread_of_inference_final_state"] == elements


def test_a_default_device_changes_nothing():
    def core(x, v):
        return x * torch.full((), 0.4375).exp() + v, v * torch.ones(()) * 0.5

    x = torch.randn(5, 30)
    expected = flexsn.FlexSN(core, num_states=1)(x)
    with torch.device("cuda"):
        module = flexsn.FlexSN(core, num_states=1)
        for _ in range(2):
            module.reset()
            same(module(x.cuda()), expected)
        assert flexsn.check(core, 5, (30,), num_states=1).passed


def test_states_move_with_the_module():
    module = flexsn.FlexSN(lif, num_states=1)
    x = torch.randn(5, 30)
    module(x)
    module.cuda()
    assert module.states[0].is_cuda
    module(x.cuda())


def test_threads_may_call_at_once():
    x = torch.randn(30, 4000, device="cuda")
    expected = flexsn.FlexSN(lif, num_states=1)(x)
    found: list[Tensor] = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found.append(flexsn.FlexSN(lif, num_states=1)(x).clone())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(found) == 80
    for one in found:
        same(one, expected)


def skip_without(free_bytes: int) -> None:
    if torch.cuda.mem_get_info()[0] < free_bytes:
        pytest.skip("not enough memory on the GPU")


def test_more_than_two_to_the_31_elements():
    elements = (1 << 30) + 7
    skip_without(8 * 3 * elements * 2)
    x = torch.randn(3, elements, device="cuda", dtype=torch.float16).requires_grad_()
    grad = torch.randn(3, elements, device="cuda", dtype=torch.float16)
    y = flexsn.FlexSN(square, num_states=1)(x)
    (grad_x,) = torch.autograd.grad(y, x, grad)
    for part in (
        slice(0, 1000),
        slice(elements - 1000, elements),
        slice(elements // 2, elements // 2 + 1000),
    ):
        few = x[:, part].detach().cpu().requires_grad_()
        right = flexsn.FlexSN(square, num_states=1)(few)
        same(y[:, part], right)
        same(grad_x[:, part], torch.autograd.grad(right, few, grad[:, part].cpu())[0])


def test_a_parameter_that_more_than_two_to_the_31_elements_share():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5))
            self.of_channel = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

        def forward(self, x, v):
            return x * self.scale + self.of_channel, v

    elements = 3 * ((1 << 28) + 1)
    skip_without(5 * 3 * elements * 4)
    core = Scaled().cuda()
    x = torch.ones(3, elements // 3, 3, device="cuda")
    found = torch.autograd.grad(flexsn.FlexSN(core, num_states=1)(x), list(core.parameters()), x)
    torch.testing.assert_close(found[0].item(), 3.0 * elements, rtol=1e-6, atol=0)
    torch.testing.assert_close(found[1].tolist(), [1.0 * elements] * 3, rtol=1e-6, atol=0)
