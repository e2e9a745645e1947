"""FlexSNKernel: the bare kernel of a core, on tensors of any device."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from flexsn.neuron import FlexSN, FlexSNKernel


def smooth(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v + (x - v) * 0.5
    y = torch.tanh(h)
    return y, h - y


def two_outputs(a: Tensor, b: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    u = u * 0.5 + a - b
    return u, u * u, u


def by_hand(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    outputs, states = [], []
    for t in range(x.shape[0]):
        y, v = smooth(x[t], v)
        outputs.append(y)
        states.append(v)
    return torch.stack(outputs), torch.stack(states)


def test_the_kernel_equals_the_loop_by_hand_forward_and_backward():
    x, v = torch.randn(6, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    kernel = FlexSNKernel(smooth, 1, 1, 1, example_inputs=(torch.zeros(16), torch.zeros(16)))
    outputs, states = kernel(x, v)
    expected_outputs, expected_states = by_hand(x, v)
    torch.testing.assert_close(outputs, expected_outputs)
    torch.testing.assert_close(states, expected_states)
    found = torch.autograd.grad(outputs.sum() + states.sum(), (x, v))
    expected = torch.autograd.grad(expected_outputs.sum() + expected_states.sum(), (x, v))
    torch.testing.assert_close(found, expected)


def test_the_kernel_equals_the_module():
    x, v = torch.randn(6, 16), torch.randn(16)
    module = FlexSN(smooth, 1, 1, 1, store_state_seqs=True)
    module.states = [v]
    outputs, states = FlexSNKernel(smooth, 1, 1, 1)(x, v)
    torch.testing.assert_close(outputs, module(x), rtol=0, atol=0)
    torch.testing.assert_close(states, module.state_seqs[0], rtol=0, atol=0)


def test_the_kernel_always_returns_a_tuple():
    result = FlexSNKernel(lambda x: (x * 2,), 1, 0, 1)(torch.ones(2, 3))
    assert isinstance(result, tuple) and len(result) == 1


def test_counts_are_inferred():
    kernel = FlexSNKernel(two_outputs, num_states=1)
    assert kernel.info == (2, 2, 1)
    assert kernel.info.num_inputs == 2 and kernel.info.num_outputs == 2 and kernel.info.num_states == 1


def test_the_constructor_checks_the_core():
    with pytest.raises(TypeError, match="FlexSNKernel: num_states is required"):
        FlexSNKernel(smooth)
    with pytest.raises(ValueError, match="must return 2 outputs and 1 states, found 2 values"):
        FlexSNKernel(smooth, 1, 1, 2)
    with pytest.raises(ValueError, match="FlexSNKernel: a fused sequence needs at least one input"):
        FlexSNKernel(lambda v: (v, v), 0, 1, 1)
    with pytest.raises(ValueError, match="same number of elements"):
        FlexSNKernel(smooth, 1, 1, 1, example_inputs=(torch.zeros(2), torch.zeros(3)))
    with pytest.raises(ValueError, match="requires_grad must have the same length"):
        FlexSNKernel(smooth, 1, 1, 1, requires_grad=(True, True, True))


def test_arguments_are_checked():
    kernel = FlexSNKernel(smooth, 1, 1, 1)
    with pytest.raises(ValueError, match="1 inputs and 1 states, expected 2 tensors, found 3"):
        kernel(torch.ones(2, 3), torch.ones(3), torch.ones(3))
    with pytest.raises(TypeError, match="argument 0 of the kernel must be a tensor, found list"):
        kernel([1.0], torch.ones(3))
    with pytest.raises(RuntimeError, match="argument 0 is on cpu, argument 1 on meta"):
        kernel(torch.ones(2, 3), torch.ones(3, device="meta"))


def test_inference_forward_and_backward_kernels_can_be_called():
    x, v = torch.randn(4, 3, requires_grad=True), torch.randn(3)
    kernel = FlexSNKernel(smooth, 1, 1, 1)
    outputs, states = kernel.f_inf(x, v)
    assert not outputs.requires_grad
    results = kernel.f_fwd(x, v)
    torch.testing.assert_close(results, (outputs, states))
    (found,) = kernel.f_bwd(results, (x,), (torch.ones(4, 3), None))
    (expected,) = torch.autograd.grad(by_hand(x, v)[0].sum(), x)
    torch.testing.assert_close(found, expected)
    assert kernel.f_bwd(results, (x,), (None, None)) == (None,)
    # One that does not learn gets none.
    v = torch.zeros(3)
    found, none = kernel.f_bwd(kernel.f_fwd(x, v), (x, v), (torch.ones(4, 3), None))
    assert found is not None and none is None
    plain = x.detach()
    assert kernel.f_bwd(kernel.f_fwd(plain, v), (plain, v), (torch.ones(4, 3), None)) == (None, None)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, copy.copy, lambda kernel: pickle.loads(pickle.dumps(kernel))],
    ids=["deepcopy", "copy", "pickle"],
)
def test_a_copy_of_a_kernel_runs(copied):
    kernel = FlexSNKernel(smooth, 1, 1, 1)
    twin = copied(kernel)
    assert twin.core is kernel.core and twin.info == kernel.info
    x, v = torch.randn(4, 3), torch.randn(3)
    torch.testing.assert_close(twin(x, v), kernel(x, v), rtol=0, atol=0)
