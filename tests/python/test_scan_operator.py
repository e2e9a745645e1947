"""The scan operator, the scans beside it, and the backend "hop"."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from cores import by_loop, soft, square, two_in_three_states
from flexsn import FlexSN, functional
from flexsn._lowering import SCAN_SWITCH, WHILE_LOOP_SWITCH
from flexsn.compat import hop
from flexsn.compat.hop import eager_scan, eager_scan_final_state, flex_sn_scan
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

LOWERED = [hop.lowerable_scan, hop.lowerable_while_loop_scan]
LOWERED_FINAL = [hop.lowerable_scan_final_state, hop.lowerable_while_loop_scan_final_state]
ALL = [flex_sn_scan, eager_scan, *LOWERED]
FINAL = [eager_scan_final_state, *LOWERED_FINAL]
by_name = functools.partial(pytest.mark.parametrize, ids=lambda scan: scan.__name__)


def unlike(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Three outputs of other shapes than the state."""
    h = v * 0.5 + x
    return h.sum(-1), h[..., :1] * 2.0, torch.cat([h, h], -1), h


def state_only(x: Tensor, v: Tensor) -> tuple[Tensor]:
    return (v * 0.5 + x,)


def no_states(x: Tensor) -> Tensor:
    return x * 2.0


def passing(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Results that are arguments, and one of them twice."""
    return x, v, v


def other_order(a: Tensor, b: Tensor, u: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Arguments are used in another order than they come, and one of each kind is not used."""
    v = v * 0.5 - b
    return v * 2.0, torch.tanh(u + v), v * 0.25, torch.cos(u)


#: core, inputs, states, outputs
CORES = {
    "soft": (soft, 1, 1, 1),
    "two": (two_in_three_states, 2, 3, 2),
    "unlike": (unlike, 1, 1, 3),
    "state_only": (state_only, 1, 1, 0),
    "no_states": (no_states, 1, 0, 1),
    "passing": (passing, 1, 1, 2),
    "other_order": (other_order, 2, 3, 1),
}
each_core = pytest.mark.parametrize("name", CORES)


def arguments(
    name: str, length: int = 5, grad: bool = False, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    _, inputs, states, _ = CORES[name]
    shapes = [(length, 2, 3)] * inputs + [(2, 3)] * states
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes]


def by_hand(name: str, args: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    core, inputs, _, _ = CORES[name]

    def as_tuple(*values: Tensor) -> tuple[Tensor, ...]:
        returned = core(*values)
        return (returned,) if isinstance(returned, Tensor) else returned

    return by_loop(as_tuple, args[:inputs], args[inputs:])


class Seen:
    """A backend of torch.compile that notes the functions of Dynamo's graphs and hands them on."""

    def __init__(self, backend: str = "eager") -> None:
        self.targets: list[str] = []
        self.backend = backend

    def __call__(self, graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        self.targets += [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        return torch._dynamo.lookup_backend(self.backend)(graph, examples)


# ---- against a loop by hand --------------------------------------------------------------------------------


@each_core
@pytest.mark.parametrize("scan", [flex_sn_scan, eager_scan], ids=lambda scan: scan.__name__)
@pytest.mark.parametrize("length", [1, 5])
def test_a_scan_is_the_loop(scan, name: str, length: int) -> None:
    args = arguments(name, length)
    outputs, sequences, _ = by_hand(name, args)
    results = scan(*CORES[name], *args)
    assert isinstance(results, tuple)
    torch.testing.assert_close(results, (*outputs, *sequences), rtol=0, atol=0)


@each_core
def test_a_scan_to_the_last_states_is_the_loop(name: str) -> None:
    args = arguments(name)
    outputs, _, last = by_hand(name, args)
    results = eager_scan_final_state(*CORES[name], *args)
    torch.testing.assert_close(results, (*outputs, *last), rtol=0, atol=0)


@each_core
@by_name("scan", [*LOWERED, *LOWERED_FINAL])
def test_a_lowered_scan_is_the_loop(scan, name: str) -> None:
    args = arguments(name, 3)
    outputs, sequences, last = by_hand(name, args)
    with torch.no_grad():
        results = scan(*CORES[name], *args)
    torch.testing.assert_close(results, (*outputs, *(last if scan in LOWERED_FINAL else sequences)))


@by_name("scan", [*ALL, *FINAL])
def test_lifted_tensors_reach_every_step(scan) -> None:
    def core(x: Tensor, v: Tensor, leak: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        h = v * leak + x
        return h - level, h

    x, v, leak, level = torch.randn(3, 4), torch.randn(4), torch.rand(()), torch.rand(4)
    outputs, sequences, last = by_loop(lambda x, v: core(x, v, leak, level), [x], [v])
    with torch.no_grad():
        results = scan(core, 1, 1, 1, x, v, leak, level)
    torch.testing.assert_close(results, (*outputs, *(last if scan in FINAL else sequences)))


@each_core
def test_gradients_are_those_of_the_loop(name: str) -> None:
    args = arguments(name, grad=True)
    outputs, sequences, last = by_hand(name, args)
    pairs = ((flex_sn_scan, [*outputs, *sequences]), (eager_scan_final_state, [*outputs, *last]))
    for scan, expected in pairs:
        results = scan(*CORES[name], *args)
        weights = [torch.randn_like(result) for result in results]
        found = torch.autograd.grad(results, args, weights, allow_unused=True, materialize_grads=True)
        by_loop_grads = torch.autograd.grad(
            expected, args, weights, allow_unused=True, materialize_grads=True, retain_graph=True
        )
        torch.testing.assert_close(found, by_loop_grads)


def test_gradients_flow_where_only_inputs_want_them() -> None:
    x, v = torch.randn(4, 3, requires_grad=True), torch.randn(3)
    expected = torch.autograd.grad(by_loop(square, [x], [v])[0][0].sum(), x)
    results = flex_sn_scan(square, 1, 1, 1, x, v)
    torch.testing.assert_close(torch.autograd.grad(results[0].sum(), x), expected)


def test_gradcheck() -> None:
    args = arguments("two", 3, grad=True, dtype=torch.float64)
    assert torch.autograd.gradcheck(functools.partial(flex_sn_scan, *CORES["two"]), args)


# ---- errors ------------------------------------------------------------------------------------------------


@by_name("scan", [*ALL, *FINAL])
def test_too_few_tensors_are_an_error(scan) -> None:
    with pytest.raises(ValueError, match="at least 2 tensors, 1 input sequences and 1 states, found 1"):
        scan(soft, 1, 1, 1, torch.zeros(3, 2))


@by_name("scan", [*ALL, *FINAL])
def test_more_tensors_than_the_core_takes_are_an_error(scan) -> None:
    with pytest.raises(ValueError, match="soft takes 2, found 3"):
        scan(soft, 1, 1, 1, torch.zeros(3, 2), torch.zeros(2), torch.zeros(2))


def needs_keyword(x: Tensor, v: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    return x * scale, v


def needs_three(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x * w, v


@pytest.mark.parametrize(
    ("core", "message"),
    [(needs_keyword, "found a required keyword scale"), (needs_three, "needs_three takes 3, found 2")],
)
def test_the_core_must_take_the_tensors(core, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eager_scan(core, 1, 1, 1, torch.zeros(3, 2), torch.zeros(2))


def test_a_core_of_unknown_signature_is_called() -> None:
    x, v = torch.ones(3, 2), torch.ones(2)

    class Hidden:
        __signature__ = "unknown"

        def __call__(self, x: Tensor, v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
            return x * scale, v

    outputs, _ = eager_scan(Hidden(), 1, 1, 1, x, v, torch.tensor(3.0))
    assert torch.equal(outputs, x * 3)
    outputs, _ = eager_scan(lambda *a, scale=2.0: (a[0] * scale, a[1]), 1, 1, 1, x, v)
    assert torch.equal(outputs, x * 2)


@by_name("scan", [*ALL, *FINAL])
def test_no_inputs_are_an_error(scan) -> None:
    with pytest.raises(ValueError, match="there must be an input"):
        scan(lambda v: (v,), 0, 1, 0, torch.zeros(2))


@by_name("scan", [*ALL, *FINAL])
def test_inputs_of_other_lengths_are_an_error(scan) -> None:
    args = arguments("two")
    args[1] = args[1][:4]
    with pytest.raises(ValueError, match="input 0 has 5 steps, input 1 has 4"):
        scan(*CORES["two"], *args)


@pytest.mark.parametrize("scan", [flex_sn_scan, eager_scan, eager_scan_final_state])
def test_a_core_that_returns_another_count_is_an_error(scan) -> None:
    with pytest.raises(ValueError, match="must return 2 outputs and 1 states, found 2 values"):
        scan(soft, 1, 1, 2, torch.zeros(3, 2), torch.zeros(2))


# ---- no steps ----------------------------------------------------------------------------------------------


def never(*_: Tensor) -> tuple[Tensor, ...]:
    raise AssertionError("the core must not be called")


@by_name("scan", [*ALL, *FINAL])
def test_no_steps_give_what_templates_say(scan) -> None:
    v = torch.randn(2)
    specs = (((4, 5), torch.int32), ((), torch.float64, torch.device("meta")))
    first, second, state = scan(never, 1, 1, 2, torch.randn(0, 2), v, output_template_specs=specs)
    assert (first.shape, first.dtype, first.device.type) == ((0, 4, 5), torch.int32, "cpu")
    assert (second.shape, second.dtype, second.device.type) == ((0,), torch.float64, "meta")
    if scan in FINAL:
        assert torch.equal(state, v) and state.data_ptr() != v.data_ptr()
    else:
        assert state.shape == (0, 2)


@by_name("scan", [*ALL, *FINAL])
def test_no_steps_without_outputs_need_no_templates(scan) -> None:
    [state] = scan(never, 1, 1, 0, torch.randn(0, 2), torch.randn(2))
    assert state.shape == ((2,) if scan in FINAL else (0, 2))


@by_name("scan", [*ALL, *FINAL])
def test_no_steps_need_templates_for_outputs(scan) -> None:
    with pytest.raises(ValueError, match="T == 0.* needs output_template_specs"):
        scan(never, 1, 1, 1, torch.randn(0, 2), torch.randn(2))
    with pytest.raises(ValueError, match="expected 1 output template specs.*found 2"):
        specs = (((2,), torch.float32),) * 2
        scan(never, 1, 1, 1, torch.randn(0, 2), torch.randn(2), output_template_specs=specs)


def test_no_steps_still_check_the_cores_arity() -> None:
    with pytest.raises(ValueError, match="soft takes 2, found 3"):
        eager_scan(soft, 1, 1, 1, torch.zeros(0, 2), torch.zeros(2), torch.zeros(2))


def test_no_steps_over_a_graph_do_not_check_its_arity() -> None:
    graph = torch.fx.symbolic_trace(soft)
    specs = (((2,), torch.float32),)
    args = [torch.zeros(0, 2), torch.zeros(2), torch.zeros(2)]
    assert eager_scan(graph, 1, 1, 1, *args, output_template_specs=specs)[0].shape == (0, 2)


# ---- tracers -----------------------------------------------------------------------------------------------


def test_make_fx_sees_the_steps_written_out() -> None:
    args = arguments("soft", 4)
    graph = make_fx(lambda *a: flex_sn_scan(*CORES["soft"], *a))(*args)
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert targets.count("aten.sigmoid.default") == 4
    assert not any("scan" in target for target in targets)
    torch.testing.assert_close(graph(*args), flex_sn_scan(*CORES["soft"], *args))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_make_fx_on_fake_tensors_sees_the_steps_too(mode: str) -> None:
    args = arguments("soft", 4)
    graph = make_fx(lambda *a: flex_sn_scan(*CORES["soft"], *a), tracing_mode=mode)(*args)
    torch.testing.assert_close(graph(*args), flex_sn_scan(*CORES["soft"], *args))


@each_core
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_scan_is_one_node(name: str, backend: str) -> None:
    args = arguments(name, grad=True)
    seen = Seen(backend)
    compiled = torch.compile(lambda *a: flex_sn_scan(*CORES[name], *a), fullgraph=True, backend=seen)
    results, expected = compiled(*args), flex_sn_scan(*CORES[name], *args)
    assert seen.targets.count("flex_sn_scan") == 1 and not any("sigmoid" in t for t in seen.targets)
    torch.testing.assert_close(results, expected)
    assert all(result.is_contiguous() for result in results)
    weights = [torch.randn_like(result) for result in results]
    options = {"allow_unused": True, "materialize_grads": True}
    torch.testing.assert_close(
        torch.autograd.grad(results, args, weights, **options),
        torch.autograd.grad(expected, args, weights, **options),
    )


def test_a_compiled_scan_may_get_one_tensor_twice() -> None:
    x, v = torch.randn(4, 3), torch.randn(3)

    def core(a: Tensor, b: Tensor, u: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        return a - 2 * b, u * 0.5 + a, w * 0.25 - b * v * scale

    args = [x, x, v, v, v]
    compiled = torch.compile(lambda *a: flex_sn_scan(core, 2, 2, 1, *a), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), flex_sn_scan(core, 2, 2, 1, *args))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_scan_takes_other_sizes(backend: str) -> None:
    compiled = torch.compile(
        lambda *a: flex_sn_scan(*CORES["two"], *a), fullgraph=True, backend=backend, dynamic=True
    )
    for shape in ((3, 4), (5, 2)):
        args = [torch.randn(2, *shape) for _ in range(2)] + [torch.randn(shape) for _ in range(3)]
        torch.testing.assert_close(compiled(*args), flex_sn_scan(*CORES["two"], *args))
    for length in (2, 3):
        args = arguments("two", length, grad=True)
        results, expected = compiled(*args), flex_sn_scan(*CORES["two"], *args)
        torch.testing.assert_close(results, expected)
        weights = [torch.randn_like(result) for result in results]
        torch.testing.assert_close(
            torch.autograd.grad(results, args, weights), torch.autograd.grad(expected, args, weights)
        )


def test_what_follows_dynamo_sees_the_steps_written_out() -> None:
    from functorch.compile import aot_function, make_boxed_func

    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph)

    args = arguments("soft", 4, grad=True)
    traced = aot_function(lambda *a: flex_sn_scan(*CORES["soft"], *a), keep)
    results = traced(*args)
    torch.testing.assert_close(results, flex_sn_scan(*CORES["soft"], *args))
    found = torch.autograd.grad(results[0].sum(), args)
    expected = torch.autograd.grad(flex_sn_scan(*CORES["soft"], *args)[0].sum(), args)
    torch.testing.assert_close(found, expected)
    forward, backward = [[str(n.target) for n in g.graph.nodes if n.op == "call_function"] for g in graphs]
    assert forward.count("aten.sigmoid.default") == 4
    assert len(backward) > 0 and not any("scan" in target for target in forward + backward)


def test_a_compiled_scan_lifts_what_the_core_captures() -> None:
    leak, module = torch.tensor(0.6, requires_grad=True), nn.Linear(3, 3)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * leak + module(x)
        return torch.tanh(h), h

    x, v = torch.randn(4, 2, 3), torch.randn(2, 3)
    leaves = [leak, *module.parameters()]
    seen = Seen("aot_eager")
    compiled = torch.compile(lambda x, v: flex_sn_scan(core, 1, 1, 1, x, v), fullgraph=True, backend=seen)
    results, expected = compiled(x, v), flex_sn_scan(core, 1, 1, 1, x, v)
    assert seen.targets.count("flex_sn_scan") == 1
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(
        torch.autograd.grad(results[0].sum(), leaves), torch.autograd.grad(expected[0].sum(), leaves)
    )


@by_name("scan", [*ALL, *FINAL])
def test_a_compiled_scan_of_no_steps_takes_templates_from_the_traced_core(scan) -> None:
    args = arguments("unlike", 0)
    compiled = torch.compile(lambda *a: scan(*CORES["unlike"], *a), fullgraph=True, backend="aot_eager")
    state = (0, 2, 3) if scan in ALL else (2, 3)
    assert [r.shape for r in compiled(*args)] == [(0, 2), (0, 2, 1), (0, 2, 6), state]


def test_a_compiled_scan_of_no_steps_prefers_given_templates() -> None:
    specs = (((7,), torch.int32),)

    def run(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return flex_sn_scan(soft, 1, 1, 1, x, v, output_template_specs=specs)

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    first, state = compiled(torch.randn(0, 3), torch.randn(3))
    assert (first.shape, first.dtype, state.shape) == ((0, 7), torch.int32, (0, 3))
    args = torch.ones(2, 3), torch.ones(3)
    torch.testing.assert_close(compiled(*args), run(*args))


def test_the_operator_is_known_to_torch() -> None:
    assert isinstance(torch.ops.higher_order.flex_sn_scan, torch._ops.HigherOrderOperator)
    assert isinstance(flex_sn_scan, hop.FlexSNScan) and flex_sn_scan.__name__ == "flex_sn_scan"
    assert hop.dynamo_hop_available()
    assert hop.lowerable_scan_available() and hop.lowerable_while_loop_available()


def test_a_compiled_scan_is_the_loop_where_dynamo_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flexsn._scan_operator.dynamo_takes_scans", False)
    args, seen = arguments("soft", 3), Seen()
    compiled = torch.compile(lambda *a: flex_sn_scan(*CORES["soft"], *a), fullgraph=True, backend=seen)
    torch.testing.assert_close(compiled(*args), flex_sn_scan(*CORES["soft"], *args))
    assert "flex_sn_scan" not in seen.targets and len(seen.targets) > 3


def test_scans_that_torch_lacks_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flexsn._lowering.torch_scan", None)
    monkeypatch.setattr("flexsn._lowering.torch_while_loop", None)
    assert not hop.lowerable_scan_available() and not hop.lowerable_while_loop_available()
    for scan, name in zip(LOWERED, ("scan", "while_loop")):
        with pytest.raises(RuntimeError, match=f"torch's {name} is not available.*eager_scan"):
            scan(soft, 1, 1, 1, torch.zeros(2, 3), torch.zeros(3))


@by_name("scan", LOWERED)
def test_a_lowered_scan_compiles_to_one_loop(scan) -> None:
    args = arguments("two")
    seen = Seen("aot_eager")
    compiled = torch.compile(lambda *a: scan(*CORES["two"], *a), fullgraph=True, backend=seen)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), flex_sn_scan(*CORES["two"], *args))
    assert len([t for t in seen.targets if t in ("scan", "while_loop_stack_output")]) == 1


@by_name("scan", LOWERED)
def test_a_lowered_scan_compiles_with_inductor(scan) -> None:
    args = arguments("soft")
    with torch.no_grad():
        results = torch.compile(lambda *a: scan(*CORES["soft"], *a), fullgraph=True)(*args)
    torch.testing.assert_close(results, flex_sn_scan(*CORES["soft"], *args))


@pytest.mark.parametrize("captured", [False, True])
def test_the_while_loop_does_not_lose_gradients_in_silence(captured: bool) -> None:
    leak = torch.tensor(0.5, requires_grad=captured)
    x = torch.randn(3, 4, requires_grad=not captured)
    with pytest.raises(RuntimeError, match="while_loop has no gradients; run it under torch.no_grad"):
        hop.lowerable_while_loop_scan(lambda x, v: (x * leak, v + x), 1, 1, 1, x, torch.zeros(4))


def allocated(length: int) -> int:
    """Bytes that a scan by torch's while_loop asks for."""
    x, v = torch.randn(length, 1000), torch.zeros(1000)
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
        hop.lowerable_while_loop_scan(soft, 1, 1, 1, x, v)
    return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())


def test_the_while_loop_copies_in_proportion_to_the_steps() -> None:
    short, long = allocated(8), allocated(64)
    assert 8 * 1000 * 4 < short and long < 8.5 * short


# ---- backend "hop" -----------------------------------------------------------------------------------------


def modules(core, *counts: int, **options: Any) -> tuple[FlexSN, FlexSN]:
    return FlexSN(core, *counts, backend="torch", **options), FlexSN(core, *counts, backend="hop", **options)


def same_memories(found: FlexSN, expected: FlexSN) -> None:
    torch.testing.assert_close(found.states, expected.states)
    torch.testing.assert_close(found.state_seqs, expected.state_seqs)


@each_core
@pytest.mark.parametrize("store", [False, True])
def test_hop_is_the_torch_backend(name: str, store: bool) -> None:
    core, inputs, states, outputs = CORES[name]
    expected, found = modules(core, inputs, states, outputs, store_state_seqs=store)
    for _ in range(2):  # the second call goes on from the states of the first
        args = [torch.randn(4, 2, 3, requires_grad=True) for _ in range(inputs)]
        torch.testing.assert_close(found(*args), expected(*args))
        same_memories(found, expected)
    if outputs:
        leaves = [module(*args) for module in (found, expected)]
        totals = [sum(r.sum() for r in (leaf if isinstance(leaf, list) else [leaf])) for leaf in leaves]
        found, expected = [torch.autograd.grad(total, args, materialize_grads=True) for total in totals]
        torch.testing.assert_close(found, expected)


def test_hop_takes_static_inputs() -> None:
    def core(x: Tensor, v: Tensor, leak: Tensor, level: float) -> tuple[Tensor, Tensor]:
        h = v * leak + x
        return torch.tanh(h - level), h

    x = torch.randn(4, 3)
    static = (nn.Parameter(torch.tensor(0.5)), 0.25)
    found = FlexSN(core, num_states=1, static_inputs=static, backend="hop", store_state_seqs=True)
    expected = by_loop(lambda x, v: core(x, v, *found.static_inputs), [x], [torch.zeros(3)])
    for run in (found, torch.compile(found, fullgraph=True, backend="aot_eager")):
        found.reset()
        found.zero_grad()
        result = run(x)
        torch.testing.assert_close(result, expected[0][0])
        result.sum().backward()
        [parameter] = found.parameters()
        torch.testing.assert_close(
            parameter.grad, torch.autograd.grad(expected[0][0].sum(), parameter, retain_graph=True)[0]
        )


@pytest.mark.parametrize("store", [False, True])
def test_hop_gives_no_steps_like_the_torch_backend(store: bool) -> None:
    examples = [torch.zeros(5, dtype=torch.int32)]
    expected, found = modules(never, 1, 1, 1, example_outputs=examples, store_state_seqs=store)
    x = torch.randn(0, 3)
    first, second = found(x), expected(x)
    assert first.shape == second.shape == (0, 5) and first.dtype is torch.int32
    same_memories(found, expected)
    with pytest.raises(ValueError, match='requires example_outputs with backend .hop.'):
        FlexSN(never, 1, 1, 1, backend="hop")(x)


def test_hop_does_not_call_the_core_when_it_is_made() -> None:
    FlexSN(never, 1, 1, 1, backend="hop", example_inputs=[torch.zeros(1), torch.zeros(1)])


def test_hop_runs_single_steps_by_the_core() -> None:
    x = torch.randn(2, 3)
    found = FlexSN(soft, 1, 1, 1, step_mode="s", backend="hop")
    torch.testing.assert_close(found(x), soft(x, torch.zeros(2, 3))[0])
    assert found.supported_backends == ("torch", "hop")


def test_hop_needs_an_input() -> None:
    with pytest.raises(ValueError, match='backend "hop" needs at least one input'):
        FlexSN(lambda v: (v,), 0, 1, 0, step_mode="s", backend="hop")


def test_hop_is_a_backend_one_can_set() -> None:
    found = FlexSN(soft, 1, 1, 1)
    assert "hop" in found.supported_backends
    functional.set_backend(found, "hop")
    assert found.backend == "hop" and "backend=hop" in repr(found)


@pytest.mark.parametrize("store", [False, True])
def test_compiled_hop_is_the_torch_backend(store: bool) -> None:
    expected, found = modules(soft, 1, 1, 1, store_state_seqs=store)
    x = torch.randn(4, 3, requires_grad=True)
    seen = Seen("aot_eager")
    first, second = torch.compile(found, fullgraph=True, backend=seen)(x), expected(x)
    assert ("flex_sn_scan" in seen.targets) is store
    torch.testing.assert_close(first, second)
    same_memories(found, expected)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x), torch.autograd.grad(second.sum(), x))


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize(
    ("switch", "target"), [(WHILE_LOOP_SWITCH, "while_loop_stack_output"), (SCAN_SWITCH, "scan")]
)
def test_switches_turn_compiled_hop_into_torchs_loops(
    switch: str, target: str, store: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, found = modules(soft, 1, 1, 1, store_state_seqs=store)
    x = torch.randn(4, 3)
    monkeypatch.setenv(switch, "1")
    seen = Seen()
    compiled = torch.compile(found, fullgraph=True, backend=seen)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected(x))
    same_memories(found, expected)
    assert target in seen.targets

    # They are for compiled calls without gradients.
    found.reset(), expected.reset(), torch.compiler.reset()
    seen.targets.clear()
    torch.testing.assert_close(compiled(x), expected(x))
    assert target not in seen.targets
    monkeypatch.delenv(switch)
    found.reset(), expected.reset(), torch.compiler.reset()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected(x))
    assert target not in seen.targets


def test_the_switches_have_the_seeds_names() -> None:
    assert WHILE_LOOP_SWITCH == "SJ_ENABLE_EXPERIMENTAL_LOWERABLE_WHILE_LOOP"
    assert SCAN_SWITCH == "SJ_ENABLE_EXPERIMENTAL_LOWERABLE_SCAN"


@pytest.mark.parametrize("switch", [None, WHILE_LOOP_SWITCH])
def test_hop_compiles_with_linear_layers_around_it(
    switch: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if switch:
        monkeypatch.setenv(switch, "1")
    neuron = FlexSN(soft, 1, 1, 1, backend="hop", store_state_seqs=True)
    net = nn.Sequential(nn.Linear(3, 6), neuron, nn.Linear(6, 2))
    x = torch.randn(4, 5, 3)
    with torch.no_grad():
        expected = net(x)
        neuron.reset()
        torch.testing.assert_close(torch.compile(net, fullgraph=True)(x), expected)
    if switch is None:
        neuron.reset()
        torch.compile(net, fullgraph=True, backend="aot_eager")(x).sum().backward()
        found = [parameter.grad.clone() for parameter in net.parameters()]
        neuron.reset(), net.zero_grad()
        net(x).sum().backward()
        torch.testing.assert_close(found, [parameter.grad for parameter in net.parameters()])


# ---- cores that write to their states ----------------------------------------------------------------------


def counting(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    v += 1
    return x + v, v


@pytest.mark.parametrize(
    "name",
    ["eager_scan", "flex_sn_scan", "lowerable_while_loop_scan", "lowerable_while_loop_scan_final_state"],
)
def test_a_core_that_writes_to_its_state_runs_once_a_step(name: str) -> None:
    if "while_loop" in name and not hop.lowerable_while_loop_available():
        pytest.skip("there is no while_loop that stacks in this torch")
    with torch.no_grad():
        outputs, states = getattr(hop, name)(counting, 1, 1, 1, torch.zeros(3, 1), torch.zeros(1))
    assert outputs.flatten().tolist() == [1, 2, 3]
    assert states.flatten().tolist() == ([3] if name.endswith("final_state") else [1, 2, 3])


@pytest.mark.parametrize("backend", ["fused", "torch", "hop"])
def test_a_core_that_writes_to_its_state_trains_on_every_backend(backend: str) -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        v.mul_(0.5).add_(x)
        return torch.tanh(v * 1.0), v

    def plain(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        v = v * 0.5 + x
        return torch.tanh(v), v

    x = torch.randn(2, 3, requires_grad=True)
    found = []
    for one in (core, plain):
        module = FlexSN(one, 1, 1, 1, backend=backend, store_state_seqs=True)
        outputs = [module(x), module(x)]
        found.append([*outputs, *module.state_seqs, *torch.autograd.grad(outputs[1].sum(), x)])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(
    "name",
    [
        "lowerable_scan",
        "lowerable_scan_final_state",
        "lowerable_while_loop_scan",
        "lowerable_while_loop_scan_final_state",
    ],
)
def test_a_lowered_core_with_another_number_of_results_is_a_value_error(name: str) -> None:
    message = "the core must return 2 outputs and 1 states, found 2"
    with torch.no_grad(), pytest.raises(ValueError, match=message):
        getattr(hop, name)(lambda x, v: (x, v + x), 1, 1, 2, torch.zeros(3, 2), torch.zeros(2))
