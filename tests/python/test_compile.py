"""FlexSN under torch.compile: one node a call, no recompiling, captured tensors and values by every route."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import flexsn
from cores import hard, soft, two_in_three_states
from flexsn import FlexSN, functional, neurons, scan


class Captured:
    """A backend that keeps the graphs it is given and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    def targets(self, place: int = -1) -> list[str]:
        nodes = self.graphs[place].graph.nodes
        return [str(node.target).removesuffix(".default") for node in nodes if node.op == "call_function"]

    def flexsn_nodes(self, place: int = -1) -> list[str]:
        return [target for target in self.targets(place) if target.startswith("flexsn.")]


def same_as_eager(
    net: nn.Module,
    compiled: Callable[..., Any],
    x: Tensor,
    rounding: bool = False,
    time_changes: bool = False,
) -> None:
    """Outputs, gradients of x and of all parameters, from fresh states."""
    found, expected = [], []
    for run, results in ((compiled, found), (net, expected)):
        functional.reset_net(net)
        net.zero_grad()
        given = x.detach().clone().requires_grad_()
        if time_changes:
            torch._dynamo.maybe_mark_dynamic(given, 0)
        output = run(given)
        (output * torch.linspace(0.5, 1.5, output.numel()).view_as(output)).sum().backward()
        results += [output.detach(), given.grad, *(p.grad for p in net.parameters())]
    for ours, theirs in zip(found, expected):
        if rounding:
            torch.testing.assert_close(ours, theirs)
        else:
            assert torch.equal(ours, theirs)


def leaky(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Its backward runs forward again from checkpoints."""
    h = v + (x - v) / 2
    return h * h, h * (1 - h * h)


def small_net() -> nn.Sequential:
    first, second = FlexSN(soft, num_states=1), FlexSN(soft, num_states=1)
    return nn.Sequential(nn.Linear(3, 4), first, nn.Linear(4, 2), second)


@pytest.fixture
def recompiling_is_an_error() -> Iterator[None]:
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield


# ---- graphs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_the_graph_holds_one_node_a_call_and_no_zeros(training):
    seen, net = Captured(), small_net()
    compiled = torch.compile(net, fullgraph=True, backend=seen)
    with torch.set_grad_enabled(training):
        compiled(torch.randn(4, 5, 3))
    name = "flexsn.training_final_state" if training else "flexsn.inference_final_state"
    assert len(seen.graphs) == 1 and seen.flexsn_nodes() == [name, name]
    made = [target for target in seen.targets() if any(word in target for word in ("zero", "new_", "full"))]
    assert made == []


@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("core", [soft, hard, leaky])
def test_the_text_says_what_training_saves(core, sequences):
    """torch keeps compiled code on disk by the text; with another planner saved tensors have other shapes."""
    seen, x = Captured(), torch.randn(70, 3, requires_grad=True)
    module = FlexSN(core, num_states=1, store_state_seqs=sequences)
    torch.compile(module, fullgraph=True, backend=seen)(x)
    (text,) = [node.args[0] for node in seen.graphs[0].graph.nodes if str(node.target).startswith("flexsn.")]
    where = r"(.*); with sequences (.*)"
    said = re.search(rf"}} # flexsn [0-9.]+ saves {where}; on a GPU {where}$", text).groups()
    final, every = said[2:] if x.is_cuda else said[:2]
    run = torch.ops.flexsn.training if sequences else torch.ops.flexsn.training_final_state
    _, _, *saved = run(text, [x], [], [])
    often = re.findall(r"f32 each (?:(\d+) steps|step)", every if sequences else final)
    assert [rows.numel() for rows in saved] == [69 // int(n) * 3 + 2 if n else 70 * 3 for n in often]


def test_the_text_of_a_neuron_of_the_library_says_so_too():
    seen, neuron = Captured(), neurons.LIFNode()
    assert torch.compile(neuron, fullgraph=True, backend=seen)(torch.randn(20, 3)).shape == (20, 3)
    (text,) = [node.args[0] for node in seen.graphs[0].graph.nodes if str(node.target).startswith("flexsn.")]
    plain, comment = text.split(" # ")
    assert plain == neuron._described(torch.float32).trace.text
    assert comment == f"flexsn {flexsn.__version__} saves {torch.ops.flexsn.saved(plain)}"


@pytest.mark.parametrize(
    "call",
    [
        FlexSN(soft, num_states=1),
        FlexSN(soft, num_states=1, store_state_seqs=True),
        neurons.ParametricLIFNode(),
        neurons.named("izhikevich"),
        lambda x: scan(soft, [x], [torch.zeros_like(x[0])])[0][0],
    ],
    ids=["core", "sequences", "plif", "by name", "scan"],
)
def test_what_compilers_write_into_comments_is_one_line(call):
    """inductor copies nodes into comments of the kernels it writes for a GPU, newlines of strings as they are."""
    written = []

    def write(graph, examples):
        written.extend(node.format_node() for node in graph.graph.nodes if "flexsn" in str(node.target))
        return make_boxed_func(graph.forward)

    compiled = torch.compile(call, fullgraph=True, backend=aot_autograd(fw_compiler=write))
    result = compiled(torch.randn(4, 3, requires_grad=True))
    result.sum().backward()
    assert ["backward" in line for line in written] == [False, True]
    assert all("neuron" in line and len(line.splitlines()) == 1 for line in written)


def test_an_export_holds_the_neuron_on_one_line():
    program = torch.export.export(FlexSN(soft, num_states=1), (torch.randn(4, 3),), strict=False)
    (node,) = [node for node in program.graph.nodes if "flexsn" in str(node.target)]
    assert "neuron {" in node.format_node() and len(node.format_node().splitlines()) == 1


def test_stored_sequences_take_one_node():
    seen, net = Captured(), FlexSN(soft, num_states=1, store_state_seqs=True)
    compiled, x = torch.compile(net, fullgraph=True, backend=seen), torch.randn(4, 3)
    with torch.no_grad():
        compiled(x)
    assert seen.flexsn_nodes() == ["flexsn.inference"]
    sequences, last = net.state_seqs, net.states
    functional.reset_net(net)
    net(x)
    assert torch.equal(sequences[0], net.state_seqs[0]) and torch.equal(last[0], net.states[0])


def test_two_modules_of_one_core_are_two_nodes_with_one_text():
    seen = Captured()
    net = nn.Sequential(FlexSN(hard, num_states=1), FlexSN(hard, num_states=1))
    compiled, x = torch.compile(net, fullgraph=True, backend=seen), torch.randn(4, 3)
    result = compiled(x)
    nodes = [node for node in seen.graphs[0].graph.nodes if "flexsn" in str(node.target)]
    assert len(nodes) == 2 and nodes[0].args[0] == nodes[1].args[0]
    functional.reset_net(net)
    assert torch.equal(result, net(x))


def test_one_module_called_twice_carries_its_state_in_the_graph():
    seen, neuron = Captured(), FlexSN(soft, num_states=1)
    compiled = torch.compile(lambda x: neuron(x) + neuron(x), fullgraph=True, backend=seen)
    x = torch.randn(4, 3)
    result, last = compiled(x), neuron.states[0]
    neuron.reset()
    assert torch.equal(result, neuron(x) + neuron(x)) and torch.equal(last, neuron.states[0])
    assert len(seen.flexsn_nodes()) == 2


def test_a_core_with_several_of_everything_compiles():
    neuron = FlexSN(two_in_three_states, num_states=3)
    compiled = torch.compile(neuron, fullgraph=True, backend="aot_eager")
    a, b = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    found = compiled(a, b)
    gradients = torch.autograd.grad(found[0].sum() + found[1].sum(), [a, b])
    neuron.reset()
    expected = neuron(a, b)
    assert all(torch.equal(x, y) for x, y in zip(found, expected))
    wanted = torch.autograd.grad(expected[0].sum() + expected[1].sum(), [a, b])
    assert all(torch.equal(x, y) for x, y in zip(gradients, wanted))


# ---- results and lengths -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_training_equals_eager_at_changing_lengths_without_recompiling(backend, recompiling_is_an_error):
    net = small_net()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend=backend)
    for steps in (2, 3, 4, 6, 9, 17):
        same_as_eager(net, compiled, torch.randn(steps, 5, 3))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inference_equals_eager_at_changing_lengths_without_recompiling(backend, recompiling_is_an_error):
    net = small_net()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend=backend)
    with torch.no_grad():
        for steps in (2, 3, 4, 6, 9, 17):
            functional.reset_net(net)
            x = torch.randn(steps, 5, 3)
            found = compiled(x)
            functional.reset_net(net)
            assert torch.equal(found, net(x))


def test_a_length_of_one_is_right():
    net = small_net()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
    same_as_eager(net, compiled, torch.randn(1, 5, 3))
    same_as_eager(net, compiled, torch.randn(3, 5, 3))


def test_batch_sizes_change_without_recompiling(recompiling_is_an_error):
    net = small_net()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 3, 7):
        same_as_eager(net, compiled, torch.randn(4, batch, 3))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.normed = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.neuron, self.linear = FlexSN(soft, num_states=1), nn.Linear(3 * 16, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.normed(self.convolution(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        return self.linear(self.neuron(y).flatten(2))


def test_inductor_with_convolution_and_batch_norm_at_changing_lengths(recompiling_is_an_error):
    net = Convolutional()
    compiled = torch.compile(net, fullgraph=True)
    # torch chooses its convolution by whether there are 16 images or more, so there are always more.
    for steps in (3, 2, 9):
        same_as_eager(net, compiled, torch.randn(steps, 9, 2, 4, 4), rounding=True, time_changes=True)


def test_inductor_inference_equals_eager():
    net = Convolutional().eval()
    compiled = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 2, 2, 4, 4)
    with torch.no_grad():
        found = compiled(x)
        functional.reset_net(net)
        torch.testing.assert_close(found, net(x))


def test_inference_then_training_and_back():
    net, x = small_net(), torch.randn(4, 5, 3)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        first = compiled(x)
    same_as_eager(net, compiled, x)
    functional.reset_net(net)
    with torch.no_grad():
        assert torch.equal(compiled(x), first)


def test_a_first_call_under_a_compiler_and_a_second_one_without():
    def new(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * 0.375 + x
        return torch.tanh(h), h

    neuron, x = FlexSN(new, num_states=1), torch.randn(4, 3)
    compiled = torch.compile(neuron, fullgraph=True, backend="eager")(x)
    neuron.reset()
    assert torch.equal(compiled, neuron(x))


# ---- states ------------------------------------------------------------------------------------------------


def test_states_are_carried_over_compiled_calls_and_reset():
    net, x = FlexSN(hard, num_states=1), torch.randn(6, 5)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    pieces = torch.cat([compiled(x[0:2]), compiled(x[2:4]), compiled(x[4:6])])
    net.reset()
    assert torch.equal(compiled(x[0:2]), pieces[:2])
    net.reset()
    assert torch.equal(pieces, net(x))


def test_carried_states_take_a_second_graph_and_no_third():
    seen, net = Captured(), FlexSN(hard, num_states=1)
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend=seen)
    for steps in (2, 3, 4, 6):
        compiled(torch.randn(steps, 5))
    assert len(seen.graphs) == 2
    net.reset()
    compiled(torch.randn(9, 5))
    assert len(seen.graphs) == 2


def test_gradients_flow_through_states_carried_over_compiled_calls():
    net, x = FlexSN(soft, num_states=1), torch.randn(4, 3, requires_grad=True)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x[:2]).sum() + compiled(x[2:]).sum(), [x])
    net.reset()
    expected = torch.autograd.grad(net(x).sum(), [x])
    torch.testing.assert_close(found, expected)


def test_a_carried_state_of_another_shape_is_an_error():
    net = FlexSN(soft, num_states=1)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    compiled(torch.randn(4, 3))
    with pytest.raises(Exception, match=r"state 0 must have shape \[5\].*reset"):
        compiled(torch.randn(4, 5))


# ---- captured tensors and values ---------------------------------------------------------------------------

_LEVEL = nn.Parameter(torch.tensor([0.5, 1.0, 1.5]))


def reads_a_global(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v * 0.5 + x
    return torch.sigmoid(h - _LEVEL), h


def takes_a_level(level: Tensor, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v * 0.5 + x
    return torch.sigmoid(h - level), h


class Thresholded(nn.Module):
    """A core as a module, with a parameter that is prepared outside the kernel."""

    def __init__(self, level: nn.Parameter) -> None:
        super().__init__()
        self.level = level
        self.slope = 2.0

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * 0.5 + x
        return torch.sigmoid((h - nn.functional.softplus(self.level)) * self.slope), h

    def other(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x, v)


class Plain:
    def __init__(self, level: Tensor) -> None:
        self.inside = SimpleNamespace(level=level)

    def __call__(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return takes_a_level(self.inside.level, x, v)


def in_a_closure(level: Tensor) -> Callable[..., Any]:
    return lambda x, v: takes_a_level(level, x, v)


def in_a_closure_of_a_closure(level: Tensor) -> Callable[..., Any]:
    inner = in_a_closure(level)
    return lambda x, v: inner(x, v)


def in_a_default(given: Tensor) -> Callable[..., Any]:
    def core(x: Tensor, v: Tensor, *, level: Tensor = given) -> tuple[Tensor, Tensor]:
        return takes_a_level(level, x, v)

    return core


ROUTES: dict[str, Callable[[nn.Parameter], FlexSN]] = {
    "global": lambda level: FlexSN(reads_a_global, num_states=1),
    "closure": lambda level: FlexSN(in_a_closure(level), num_states=1),
    "closure of a closure": lambda level: FlexSN(in_a_closure_of_a_closure(level), num_states=1),
    "default": lambda level: FlexSN(in_a_default(level), num_inputs=1, num_states=1),
    "module": lambda level: FlexSN(Thresholded(level), num_states=1),
    "method": lambda level: FlexSN(Thresholded(level).other, num_states=1),
    "callable object": lambda level: FlexSN(Plain(level), num_states=1),
    "partial": lambda level: FlexSN(functools.partial(takes_a_level, level), num_states=1),
    "static input": lambda level: FlexSN(
        lambda x, v, level: takes_a_level(level, x, v), num_states=1, static_inputs=(level,)
    ),
}


@pytest.mark.parametrize("route", ROUTES)
def test_captured_tensors_get_gradients_under_a_compiler(route):
    level = _LEVEL if route == "global" else nn.Parameter(torch.tensor([0.5, 1.0, 1.5]))
    seen, neuron = Captured(), ROUTES[route](level)
    compiled = torch.compile(neuron, fullgraph=True, backend=seen)
    x = torch.randn(4, 3, requires_grad=True)
    found = torch.autograd.grad(compiled(x).sum(), [x, level])
    neuron.reset()
    expected = torch.autograd.grad(neuron(x).sum(), [x, level])
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert seen.flexsn_nodes() == ["flexsn.training_final_state"]
    # An optimiser changes values in place: seen, and nothing is compiled again.
    with torch.no_grad():
        level.add_(0.5)
    neuron.reset()
    changed = compiled(x)
    neuron.reset()
    assert torch.equal(changed, neuron(x)) and len(seen.graphs) == 1


def test_a_tensor_that_is_replaced_is_seen():
    core = Thresholded(nn.Parameter(torch.tensor(1.0)))
    neuron, x = FlexSN(core, num_states=1), torch.randn(4, 3)
    compiled = torch.compile(neuron, fullgraph=True, backend="eager")
    for level in (torch.tensor(1.0), torch.tensor(2.0), torch.rand(3)):
        core.level = nn.Parameter(level)
        neuron.reset()
        found = torch.autograd.grad(compiled(x).sum(), core.level)
        neuron.reset()
        assert torch.equal(found[0], torch.autograd.grad(neuron(x).sum(), core.level)[0])


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_float_that_changes_is_seen(dynamic):
    core = Thresholded(nn.Parameter(torch.tensor(1.0)))
    neuron, x = FlexSN(core, num_states=1), torch.randn(4, 3)
    compiled = torch.compile(neuron, fullgraph=True, dynamic=dynamic, backend="eager")
    for slope in (2.0, 3.0, 5.0, 2.0, 7):
        core.slope = slope
        neuron.reset()
        found = compiled(x)
        neuron.reset()
        assert torch.equal(found, neuron(x))


def test_a_changed_closure_and_a_changed_global_are_seen(monkeypatch):
    scale = 1.0

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * 0.5 + x * scale
        return torch.sigmoid(h - _LEVEL), h

    neuron, x = FlexSN(core, num_states=1), torch.randn(4, 3)
    compiled = torch.compile(neuron, fullgraph=True, backend="eager")
    results = []
    for new_scale, level in ((1.0, 0.0), (2.0, 0.0), (2.0, 1.0)):
        scale = new_scale
        monkeypatch.setitem(globals(), "_LEVEL", torch.full((3,), level))
        neuron.reset()
        results.append(compiled(x))
        neuron.reset()
        assert torch.equal(results[-1], neuron(x))
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])


def test_a_plain_static_input_is_seen():
    neurons = [
        FlexSN(lambda x, v, k: (x * k + v, v * 0.5 + x), num_states=1, static_inputs=(k,)) for k in (2, 3.5)
    ]
    x = torch.randn(4, 3)
    for neuron in neurons:
        compiled = torch.compile(neuron, fullgraph=True, backend="eager")(x)
        neuron.reset()
        assert torch.equal(compiled, neuron(x))


def test_what_an_abandoned_compilation_noted_is_not_taken_for_arguments():
    from flexsn import _compiling

    neuron, x = FlexSN(soft, num_states=1), torch.randn(4, 3)
    _compiling._examples[neuron._fused._number] = [torch.zeros(7, 2, dtype=torch.int32)]
    found = torch.compile(neuron, fullgraph=True, backend="eager")(x)
    neuron.reset()
    assert torch.equal(found, neuron(x))


def test_a_core_that_cannot_be_fused_says_why_under_a_compiler():
    def summed(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x.cumsum(-1), v

    neuron = FlexSN(summed, num_states=1)
    with pytest.raises(Exception, match=r"cumsum"):
        torch.compile(neuron, fullgraph=True, backend="eager")(torch.randn(4, 3))


def test_a_compile_that_failed_leaves_nothing_behind_for_the_next():
    def core(x: Tensor, v: Tensor, k: Any) -> tuple[Tensor, Tensor]:
        return x * k + v, v * 0.5 + x

    neuron, x = FlexSN(core, num_states=1, static_inputs=(2.0,)), torch.randn(4, 3)
    neuron.states = [torch.zeros(5)]
    compiled = torch.compile(neuron, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="state 0 must have shape"):
        compiled(x)
    neuron.reset()
    found = compiled(x)
    neuron.reset()
    assert torch.equal(found, neuron(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_compile(dtype):
    neuron, x = FlexSN(soft, num_states=1), torch.randn(4, 3, dtype=dtype, requires_grad=True)
    compiled = torch.compile(neuron, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x).sum(), x)
    neuron.reset()
    assert torch.equal(found[0], torch.autograd.grad(neuron(x).sum(), x)[0])


# ---- a state whose graph is gone ---------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("backend", "store"), [("fused", False), ("fused", True), ("torch", False), ("hop", True)]
)
def test_a_compiled_state_whose_graph_was_freed_says_what_to_do(compiler, backend, store):
    neuron = FlexSN(soft, 1, 1, 1, backend=backend, store_state_seqs=store)
    net = nn.Sequential(nn.Linear(3, 3), neuron)
    compiled, x = torch.compile(net, fullgraph=True, backend=compiler), torch.randn(4, 3)
    compiled(x).sum().backward()
    with pytest.raises(RuntimeError, match="detach or reset between batches"):
        compiled(x).sum().backward()
    functional.detach_net(net)
    compiled(x).sum().backward()


def test_a_gradient_that_needs_no_freed_graph_is_given():
    neuron, x = FlexSN(soft, 1, 1, 1), torch.randn(4, 3, requires_grad=True)
    compiled = torch.compile(neuron, fullgraph=True, backend="aot_eager")
    compiled(x).sum().backward()
    y = torch.randn(4, 3, requires_grad=True)
    assert torch.autograd.grad(compiled(y).sum(), y)[0].abs().sum() > 0


@pytest.mark.parametrize(
    "make",
    [lambda: FlexSN(soft, num_states=1), lambda: neurons.LIFNode(step_mode="m")],
    ids=["a core", "a neuron of the library"],
)
def test_states_of_inference_mode_are_trained_from_once_they_are_detached(make: Callable[[], nn.Module]) -> None:
    found = []
    for run in (lambda net: net, lambda net: torch.compile(net, fullgraph=True, backend="aot_eager")):
        net = make()
        call = run(net)
        x = torch.linspace(-1.0, 3.0, 20).view(5, 4)
        with torch.inference_mode():
            call(x)
            functional.detach_net(net)
        functional.detach_net(net)
        x.requires_grad_()
        found.append(torch.autograd.grad(call(x).square().sum(), x)[0])
    assert torch.equal(*found) and found[0].abs().sum() > 0
