"""Gradients go where an eager loop lets them go: results and arguments that are not connected have none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flexsn import FlexSN

LEVEL = nn.Parameter(torch.tensor(0.5))


def apart(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """The second state knows nothing of the rest."""
    return x * 2 + v, v * 0.5 + x, w * 0.25


def one_way(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """The second state sees the first, which does not see it; the output sees neither."""
    return x * 2, v * 0.5 + x, w * 0.25 + v


def cut(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return v * 2, v * 0.5, w + x.detach()


def flat(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """floor has a derivative, zero; a comparison has none."""
    return torch.floor(x + v), (v > 0).to(v), w * 0.5 + x


def with_level(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """A parameter that the output alone depends on, as with a reset that is detached."""
    return torch.tanh(v + x - LEVEL), v * 0.5 + x, w + v


CORES = [apart, one_way, cut, flat, with_level]
#: which of x, v and w require a gradient
NEEDS = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 1, 1)]


def gradients(
    core: Callable[..., tuple[Tensor, ...]], backend: str, needs: tuple[int, ...], compiled: bool
) -> list[list[Tensor | None] | bool]:
    """For each result whether it requires a gradient, and the gradients it gives by itself."""
    module = FlexSN(core, 1, 2, 1, backend=backend)
    run = torch.compile(module, fullgraph=True, backend="eager") if compiled else module
    x = torch.linspace(-1.0, 2.0, 12).view(4, 3).requires_grad_(bool(needs[0]))
    v, w = torch.full((3,), 0.5), torch.full((3,), 0.25)
    states = [v.requires_grad_(bool(needs[1])), w.requires_grad_(bool(needs[2]))]
    module.states = list(states)
    results = [run(x), *module.states]
    arguments = [tensor for tensor in (x, *states, LEVEL) if tensor.requires_grad]
    found: list[list[Tensor | None] | bool] = []
    for result in results:
        found.append(result.requires_grad)
        if result.requires_grad:
            found.append(
                list(torch.autograd.grad(result.sum(), arguments, retain_graph=True, allow_unused=True))
            )
    return found


@pytest.mark.parametrize("needs", NEEDS, ids=str)
@pytest.mark.parametrize("core", CORES)
def test_gradients_are_there_where_an_eager_loop_has_them(core, needs):
    ours, theirs = (gradients(core, backend, needs, False) for backend in ("fused", "torch"))
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs):
        if isinstance(our, bool):
            assert our == their
        else:
            assert [grad is None for grad in our] == [grad is None for grad in their]
            torch.testing.assert_close(our, their)


@pytest.mark.parametrize("core", CORES)
def test_compiled_results_require_gradients_where_an_eager_loop_says_so(core):
    for needs in NEEDS:
        ours, theirs = gradients(core, "fused", needs, True), gradients(core, "torch", needs, False)
        assert [each for each in ours if isinstance(each, bool)] == [
            each for each in theirs if isinstance(each, bool)
        ]


def test_two_backwards_over_one_graph_are_told_apart():
    module = FlexSN(cut, 1, 2, 1)
    v, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    module.states = [v, w]
    y = module(torch.ones(2, 3))
    state = module.states[1]
    assert torch.autograd.grad(state.sum(), [v, w], retain_graph=True, allow_unused=True)[0] is None
    assert torch.autograd.grad(y.sum(), [v, w], allow_unused=True)[1] is None


def test_a_state_that_is_forgotten_before_the_end_gets_zeros():
    """Where gradients go is known for any number of steps, not for each; a loop of four would give None."""
    module = FlexSN(lambda x, v, w: (x * 1.0, x * 1.0, v * 1.0), 1, 2, 1)
    v, w = torch.ones(3, requires_grad=True), torch.ones(3)
    module.states = [v, w]
    module(torch.ones(4, 3))
    assert torch.autograd.grad(module.states[1].sum(), v)[0].abs().sum() == 0


def test_a_neuron_that_is_connected_throughout_has_nothing_around_its_kernel():
    module = FlexSN(lambda x, v: (torch.tanh(v + x), v * 0.5 + x), 1, 1, 1)
    y = module(torch.ones(2, 3, requires_grad=True))
    assert "flexsn::Trained" in y.grad_fn.name() and y._backward_hooks is None
