"""Backend "triton_export": sequences run by exported Triton modules, in Triton's interpreter, have all bits
of backend "fused"."""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

pytest.importorskip("triton")

import flexsn
from cores import hard, neuron_of, soft, square, two_in_three_states, with_counter, with_params
from flexsn import FlexSN, _triton, functional, neurons
from flexsn_cores import no_states, state_only
from triton_modules import data_of, environment, ops, same_bits, texts_of

BACKEND = "triton_export"


@pytest.fixture(autouse=True)
def in_tritons_interpreter() -> Iterator[None]:
    with environment(TRITON_INTERPRET="1"), numpy.errstate(all="ignore"):
        yield


def as_list(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


class Run:
    """What a module gives in two calls that carry states, and all gradients."""

    def __init__(
        self,
        module: FlexSN,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor] | None = None,
        params: Sequence[Tensor] = (),
        chosen: Callable[[list[Tensor]], list[Tensor]] = lambda results: results,
    ) -> None:
        leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in (*inputs, *(states or ()))]
        inputs, first = leaves[: len(inputs)], leaves[len(inputs) :]
        if states is not None:
            module.states = first
        results = as_list(module(*inputs))
        results += as_list(module(*inputs))
        self.results = results + module.states + (module.state_seqs or [])
        self.flags = [result.requires_grad for result in self.results]
        carrying = [result for result in chosen(self.results) if result.requires_grad]
        generator = torch.Generator().manual_seed(7)
        grads = [torch.randn(r.shape, generator=generator).to(r.dtype) for r in carrying]
        wanted = [t for t in (*leaves, *params) if t.requires_grad]
        self.gradients = (
            torch.autograd.grad(carrying, wanted, grads, allow_unused=True) if carrying and wanted else ()
        )


def assert_same(expected: Run, found: Run) -> None:
    assert found.flags == expected.flags
    for a, b in zip(expected.results, found.results, strict=True):
        assert same_bits(a, b)
    assert [g is None for g in found.gradients] == [g is None for g in expected.gradients]
    for a, b in zip(expected.gradients, found.gradients, strict=True):
        assert a is None or same_bits(a, b)


def both(core: Callable[..., Any], num_inputs: int, num_states: int, **options: Any) -> list[FlexSN]:
    return [
        FlexSN(core, num_inputs, num_states, backend=backend, **options) for backend in ("fused", BACKEND)
    ]


def sequences(count: int, *shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [(torch.randn(shape) * 2).to(dtype) for _ in range(count)]


# ---- results and gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize(
    ("core", "inputs", "states", "shape"),
    [
        (hard, 1, 1, (5, 2, 3)),
        (soft, 1, 1, (1, 1)),
        (square, 1, 1, (20, 7)),
        (two_in_three_states, 2, 3, (9, 4)),
        (two_in_three_states, 2, 3, (3,)),
        (state_only, 1, 1, (4, 3)),
        (no_states, 1, 0, (4, 3)),
        (square, 1, 1, (4, 0)),
    ],
)
def test_results_and_gradients_have_the_bits_of_fused(core, inputs, states, shape, store):
    given = sequences(inputs, *shape)
    expected, found = (Run(m, given) for m in both(core, inputs, states, store_state_seqs=store))
    assert_same(expected, found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types(dtype):
    given = sequences(2, 4, 3, dtype=dtype)
    first = sequences(3, 3, dtype=dtype)
    assert_same(*(Run(m, given, first) for m in both(two_in_three_states, 2, 3)))


def test_states_of_integers():
    first = [torch.randn(3), torch.tensor([0, 1, 2], dtype=torch.int32)]
    given = sequences(1, 6, 3)
    assert_same(*(Run(m, given, first) for m in both(with_counter, 1, 2)))


@pytest.mark.parametrize("leak", [(), (3, 1), (2, 1, 4), (4,), (2, 3, 4)])
def test_gradients_of_parameters_of_any_shape(leak):
    params = [torch.rand(leak, requires_grad=True), torch.rand((), requires_grad=True)]
    given, first = sequences(1, 10, 2, 3, 4), sequences(1, 2, 3, 4)
    assert_same(*(Run(m, given, first, params) for m in both(with_params(*params), 1, 1)))


class Weighted(nn.Module):
    """Of its parameters one enters through a function of torch, and one has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 3))
        self.level = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v + (x - v) * torch.sigmoid(self.w)
        s = (h >= self.level).to(h)
        return s, h * (1 - s)


def test_a_module_with_parameters():
    core = Weighted()
    given = sequences(1, 5, 2, 3)
    assert_same(*(Run(m, given, None, [core.w, core.level]) for m in both(core, 1, 1)))


def test_nothing_requires_a_gradient_where_fused_has_none():
    level = torch.tensor(0.5, requires_grad=True)
    cores = both(lambda x, v: ((x >= level).to(x) + v, v * 0.5), 1, 1)
    results = [[module(torch.randn(4, 3)), *module.states] for module in cores]
    assert [[r.requires_grad for r in each] for each in results] == [[False, False]] * 2


def test_static_inputs():
    scale = nn.Parameter(torch.tensor([1.0, 2.0]))
    core = lambda x, v, by: (torch.tanh(v + x * by), v * 0.5 + x)  # noqa: E731
    given = sequences(1, 3, 2)
    assert_same(*(Run(m, given, None, [scale]) for m in both(core, 1, 1, static_inputs=(scale,))))


def test_inputs_need_not_be_dense():
    x = torch.randn(3, 4, 5).transpose(0, 1)
    assert not x[0].is_contiguous() or not x.is_contiguous()
    results = [module(x) for module in both(square, 1, 1)]
    assert same_bits(*results)


# ---- gradients that do not arrive --------------------------------------------------------------------------


def apart(a: Tensor, b: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Two neurons in one: nothing of one depends on the other."""
    u, v = torch.tanh(u * 0.5 + a), v * 0.25 + b * b
    return u * u, v, u, v


@pytest.mark.parametrize("places", [[0], [1], [2], [0, 3], [4], [5], [0, 1, 2, 3]])
def test_a_gradient_is_absent_where_it_is_with_fused(places):
    given, first = sequences(2, 5, 3), sequences(2, 3)
    expected, found = (
        Run(m, given, first, chosen=lambda results: [results[place] for place in places])
        for m in both(apart, 2, 2)
    )
    assert [g is None for g in found.gradients] == [g is None for g in expected.gradients]
    for a, b in zip(expected.gradients, found.gradients, strict=True):
        assert a is None or torch.equal(a, b)


def joined(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Its gradients meet in sums, differences and products, beside infinities where x is 0."""
    root, low = torch.sqrt(x), torch.log(x) * v
    v = v * 0.5 - x
    return root - low, torch.where(x > 1, low, root) * v, low - root * 3, v


def side(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sqrt(x), v + x


@pytest.mark.parametrize(
    ("core", "outputs", "places"),
    [(side, 1, (1,)), *((joined, 3, p) for n in (1, 2, 3) for p in itertools.combinations(range(4), n))],
)
@pytest.mark.parametrize("sequences", [True, False])
def test_a_gradient_that_does_not_arrive_at_an_output_takes_part_in_no_sum(core, outputs, places, sequences):
    # Zero times infinity is no number, and zeros have signs; what takes part in no sum does neither.
    given = [torch.tensor([[0.0, 1.0, 2.0, -0.0], [0.0, 0.5, 3.0, 1.0]])]
    fused, triton = (
        Run(m, given, chosen=lambda results: [results[outputs + place] for place in places]).gradients[0]
        for m in both(core, 1, 1, store_state_seqs=sequences)
    )
    assert same_bits(fused, triton)
    assert core is joined or triton.isfinite().all()


# ---- use ---------------------------------------------------------------------------------------------------


def test_no_steps():
    for module in both(soft, 1, 1, store_state_seqs=True):
        x = torch.zeros(0, 3)
        module.num_outputs = 1
        assert module(x).shape == (0, 3)
        assert module.states[0].tolist() == [0, 0, 0] and module.state_seqs[0].shape == (0, 3)


def test_pieces_of_a_sequence_have_the_bits_of_the_whole():
    whole, pieces = (FlexSN(square, 1, 1, backend=BACKEND) for _ in range(2))
    x = torch.randn(11, 4, requires_grad=True)
    expected = whole(x)
    found = torch.cat([pieces(x[:3]), pieces(x[3:])])
    assert same_bits(expected, found) and same_bits(whole.states[0], pieces.states[0])
    [a], [b] = torch.autograd.grad(expected.sum(), [x]), torch.autograd.grad(found.sum(), [x])
    assert same_bits(a, b)


def test_the_backend_can_be_chosen_and_left():
    module = FlexSN(square, 1, 1)
    x = torch.randn(4, 3)
    expected = module(x)
    assert BACKEND in module.supported_backends
    for backend in (BACKEND, "torch", BACKEND, "fused"):
        functional.set_backend(module, backend)
        module.reset()
        assert module.states is None
        assert module.backend == backend and f"backend={backend}" in repr(module)
        torch.testing.assert_close(module(x), expected)


def test_the_operators_are_those_of_the_backend(monkeypatch):
    used = []

    def noted(*arguments: Any) -> list[Tensor]:
        used.append(arguments[0])
        return ops.inference_final_state(*arguments)

    operators = _triton.TRITON_OPERATORS._replace(inference_final_state=noted)
    monkeypatch.setattr("flexsn.fused.TRITON_OPERATORS", operators)
    module = FlexSN(square, 1, 1)
    module(torch.zeros(2, 3))
    assert not used
    module.backend = BACKEND
    module(torch.zeros(2, 3))
    assert len(used) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_run_the_same(copied):
    module = FlexSN(square, 1, 1, backend=BACKEND)
    x = torch.randn(4, 3)
    module(x)
    twin = copied(module)
    assert twin.backend == BACKEND and same_bits(twin.states[0], module.states[0])
    assert same_bits(module(x), twin(x))


def test_the_kernel_of_a_module():
    x, v = torch.randn(5, 3), torch.randn(3)
    results = [module.kernel(x, v) for module in both(square, 1, 1)]
    assert all(map(same_bits, *results))


def test_modules_of_one_neuron_share_the_exported_one(monkeypatch):
    monkeypatch.setattr(_triton, "_modules", {})
    for _ in range(3):
        FlexSN(square, 1, 1, backend=BACKEND)(torch.zeros(2, 3))
    assert len(_triton._modules) == 1


def test_single_steps_are_refused():
    with pytest.raises(RuntimeError, match='backend \'triton_export\' runs whole sequences, step_mode="m"'):
        FlexSN(soft, 1, 1, step_mode="s", backend=BACKEND)
    module = FlexSN(soft, 1, 1, backend=BACKEND)
    module.step_mode = "s"
    assert module.supported_backends == ("torch", "hop")


def test_checkpointing_runs_it_again():
    module = FlexSN(square, 1, 1, backend=BACKEND)
    x = torch.randn(4, 3, requires_grad=True)
    [expected] = torch.autograd.grad(module(x).sum(), [x])
    module.reset()
    [found] = torch.autograd.grad(flexsn.checkpoint(module, x).sum(), [x])
    assert same_bits(expected, found)


# ---- compilers ---------------------------------------------------------------------------------------------


def test_compiled_calls_are_one_graph_for_all_lengths():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    fused, triton = both(square, 1, 1)
    compiled = torch.compile(triton, fullgraph=True, dynamic=True, backend=counter)
    for steps in (5, 6, 9, 17, 2):
        fused.reset(), triton.reset()
        ours, theirs = (torch.linspace(-1, 2, steps * 3).view(steps, 3).requires_grad_() for _ in range(2))
        expected, found = fused(ours), compiled(theirs)
        assert same_bits(expected, found) and same_bits(fused.states[0], triton.states[0])
        [a] = torch.autograd.grad(expected.sum() + fused.states[0].sum(), [ours])
        [b] = torch.autograd.grad(found.sum() + triton.states[0].sum(), [theirs])
        assert same_bits(a, b)
    assert counter.frame_count == 1


def test_compiled_calls_with_parameters_and_all_states():
    params = [torch.rand(3, 1, requires_grad=True), torch.rand((), requires_grad=True)]
    given = sequences(1, 9, 3, 2)
    fused, triton = both(with_params(*params), 1, 1, store_state_seqs=True)
    expected = Run(fused, given, None, params)
    triton.forward = torch.compile(triton.forward, fullgraph=True, backend="aot_eager")
    assert_same(expected, Run(triton, given, None, params))


def test_an_exported_program_calls_one_operator():
    fused, triton = both(square, 1, 1)
    x = torch.randn(4, 3)
    program = torch.export.export(triton, (x,))
    targets = [str(node.target) for node in program.graph.nodes if "flexsn" in str(node.target)]
    assert targets == ["flexsn.triton_inference.default"]
    assert same_bits(program.module()(x), fused(x))


@pytest.mark.parametrize("all_states", [True, False])
def test_the_operators_keep_the_rules_of_torch(all_states):
    leak, level = torch.rand(3, requires_grad=True), torch.rand((), requires_grad=True)
    x, v = torch.randn(10, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    text, params = neuron_of(with_params(leak, level), [x], [v])
    torch.library.opcheck(ops.triton_training.default, (text, [x], [v], params, all_states))
    plain = [tensor.detach() for tensor in params]
    torch.library.opcheck(
        ops.triton_inference.default, (text, [x.detach()], [v.detach()], plain, all_states)
    )


# ---- neurons of C++ ----------------------------------------------------------------------------------------


def library_runs(make: Callable[[str], nn.Module], *shape: int) -> list[tuple[Tensor, ...]]:
    """Outputs, potentials and gradients of a neuron of the library, fused and by Triton."""
    found = []
    x = torch.randn(shape) * 2
    for backend in ("fused", BACKEND):
        torch.manual_seed(1)
        module, own = make(backend), x.clone().requires_grad_()
        y = as_list(module(own))[0]
        grads = torch.autograd.grad(y, [own, *module.parameters()], torch.randn(y.shape))
        found.append((y, module.v, *grads))
    return found


@pytest.mark.parametrize("step_mode", ["m", "s"])
@pytest.mark.parametrize("surrogate", ["sigmoid", lambda u: torch.sigmoid(4 * u)], ids=["ours", "own"])
def test_neurons_of_the_library(surrogate, step_mode):
    def make(backend: str) -> nn.Module:
        module = neurons.ParametricLIFNode(surrogate_function=surrogate, step_mode=step_mode)
        functional.set_backend(module, backend)
        assert f"backend={backend}" in repr(module)
        return module

    assert all(map(same_bits, *library_runs(make, 6, 2, 3)))


def test_a_neuron_of_the_library_leaves_the_backend_again():
    module = neurons.LIFNode(surrogate_function=torch.sigmoid, step_mode="m", backend=BACKEND)
    x = torch.randn(4, 3)
    expected = module(x)
    module.backend = "fused"
    module.reset()
    with environment(TRITON_INTERPRET="0"):
        assert same_bits(module(x), expected)


def differences(text: str, n: int) -> list[str]:
    """What the operators give otherwise than those of backend "fused"."""
    generator = torch.Generator().manual_seed(n)
    step = ((5,), (3, 2), (1,))[n % 3]
    data = data_of(text, (2, 9, 1)[n % 3], step, generator, edges=0.05, elided=n % 4 == 0)
    all_states = n % 2 == 0
    fused = ops.training if all_states else ops.training_final_state
    sides = [[[t.clone().requires_grad_(t.is_floating_point()) for t in g] for g in data] for _ in range(2)]
    try:
        expected = fused(text, *sides[0])
    except ValueError:
        return []  # it cannot be trained
    found = ops.triton_training(text, *sides[1], all_states)
    count = sum(map(len, ops.signature(text)[1::2]))
    wrong = [f"result {i}" for i in range(count) if not same_bits(expected[i], found[i])]
    flags = [[r.requires_grad for r in results[:count]] for results in (expected, found)]
    if flags[0] != flags[1]:
        return [*wrong, f"gradients go through {flags}"]
    gradients = []
    for results, groups in zip((expected, found), sides):
        carrying = [result for result in results[:count] if result.requires_grad]
        generator = torch.Generator().manual_seed(n)
        grads = [torch.randn(r.shape, generator=generator).to(r.dtype) for r in carrying]
        leaves = [t for group in groups for t in group if t.requires_grad]
        gradients.append(torch.autograd.grad(carrying, leaves, grads, allow_unused=True))
    for place, (a, b) in enumerate(zip(*gradients, strict=True)):
        if (a is None) != (b is None) or (a is not None and not same_bits(a, b)):
            wrong.append(f"gradient {place}")
    return wrong


@pytest.mark.parametrize("words", [("built_in",), ("random", "25")])
def test_neurons_that_nobody_wrote_in_python(words):
    texts = texts_of(*words)
    if not texts:
        pytest.skip("FLEXSN_NEURON_TEXTS does not name the program flexsn_neuron_texts")
    chosen = [each for each in texts if words[0] == "random" or each[0].endswith("f32")]
    found = {name: differences(text, n) for n, (name, text) in enumerate(chosen)}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


# ---- what is not there says so -----------------------------------------------------------------------------


def test_tensors_on_the_cpu_are_refused_where_triton_does_not_interpret():
    module = FlexSN(square, 1, 1, backend=BACKEND)
    with environment(TRITON_INTERPRET="0"), pytest.raises(RuntimeError) as raised:
        module(torch.zeros(2, 3))
    assert str(raised.value) == (
        'flexsn: backend "triton_export" runs on tensors of a GPU that Triton serves, found tensors on the '
        'CPU; move them there, use backend="fused", or set TRITON_INTERPRET=1 in the environment for '
        "Triton's interpreter, which is slow"
    )
    assert module(torch.zeros(2, 3)).shape == (2, 3)


def test_without_triton_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(_triton, "_modules", {})
    text = 'backend "triton_export" needs Triton, .* install the package triton, or use backend="fused"'
    with pytest.raises(ImportError, match=text):
        FlexSN(square, 1, 1, backend=BACKEND)
    module = FlexSN(square, 1, 1)
    with pytest.raises(ImportError, match=text):
        module.backend = BACKEND
    assert module.backend == "fused" and module(torch.zeros(2, 3)).shape == (2, 3)


def test_a_batch_of_another_shape_is_told_to_reset():
    module = FlexSN(square, 1, 1, backend=BACKEND)
    module(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"state 0 must have shape \[4\], .* call reset\(\) before a batch"):
        module(torch.zeros(2, 4))


def test_gradients_of_gradients_are_refused():
    x = torch.randn(4, 3, requires_grad=True)
    y = FlexSN(soft, 1, 1, backend=BACKEND)(x)
    [grad] = torch.autograd.grad(y.sum(), [x], create_graph=True)
    with pytest.raises(NotImplementedError, match=r'gradients of gradients.*backend="torch"'):
        grad.sum().backward()


def test_forward_mode_and_vmap_are_refused():
    module = FlexSN(soft, 1, 1, backend=BACKEND)
    x = torch.randn(4, 3)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode .* are not there"):
        module(forward_ad.make_dual(x, torch.ones_like(x)))
    with pytest.raises(NotImplementedError, match="does not run under vmap"):
        torch.vmap(module)(torch.randn(2, 4, 3))


def test_a_graph_that_was_freed_says_what_to_do():
    module = FlexSN(soft, 1, 1, backend=BACKEND)
    x = torch.randn(4, 3, requires_grad=True)
    module(x).sum().backward()
    with pytest.raises(RuntimeError, match="detach or reset between batches"):
        module(x).sum().backward()


def test_an_in_place_edit_before_backward_is_noticed():
    x = torch.randn(4, 3, requires_grad=True)
    y = FlexSN(square, 1, 1, backend=BACKEND)(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
