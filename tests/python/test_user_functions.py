"""Parameters that meet a step in a way of its own: in functions of the user, as results, in torch's backward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from both_ways import both_ways, leaf


class Scaled(torch.autograd.Function):
    """The parameter is read as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum_to_size(w.shape)


class Gated(torch.autograd.Function):
    """Something is made of the parameter before it meets the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * torch.sigmoid(w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        gate = torch.sigmoid(w)
        return g * gate, (g * x * gate * (1 - gate)).sum_to_size(w.shape)


class Unread(torch.autograd.Function):
    """Backward alone knows of the parameter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.shape = w.shape
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return g * 3, (g * x).sum_to_size(ctx.shape)


class Nested(torch.autograd.Function):
    """Another function inside of it, with gradients of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.shape = w.shape
        return Gated.apply(x, w.detach().clone())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g * 2, (g * 3).sum_to_size(ctx.shape)


class Itself(torch.autograd.Function):
    """Its result is its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 7


@pytest.mark.parametrize(
    ("function", "shape"), [(Scaled, ()), (Gated, (3,)), (Gated, ()), (Unread, (2, 1)), (Nested, (3,))]
)
@pytest.mark.parametrize(
    "use",
    [
        lambda f, w, u, x, v: (f.apply(x, w), v + x),
        lambda f, w, u, x, v: (f.apply(x, w), f.apply(v, w)),
        lambda f, w, u, x, v: (f.apply(x, w) + w * x, v * w + x),
        lambda f, w, u, x, v: (f.apply(x, w), v * w.exp() + w * x),
        lambda f, w, u, x, v: (f.apply(x, w), f.apply(v, w.exp())),
        lambda f, w, u, x, v: (f.apply(x, w.exp()) * w.exp(), f.apply(v + x, w.exp() * u)),
        lambda f, w, u, x, v: (f.apply(x * u, w) + w * u, v * u + f.apply(x, u)),
        lambda f, w, u, x, v: (Itself.apply(f.apply(x, w)) * w, Itself.apply(v) * u + x),
    ],
)
def test_a_parameter_in_a_function_of_the_user_has_the_gradient_that_it_says(
    use: Callable[..., Any], function: type, shape: tuple[int, ...]
) -> None:
    w, u = leaf(*shape), leaf()
    both_ways(lambda x, v: use(function, w, u, x, v), [w, u])


class PerChannel(torch.autograd.Function):
    """A threshold for each channel, whose gradient is summed by the function itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: Tensor) -> Tensor:
        ctx.save_for_backward(x, threshold)
        return (x >= threshold.view(1, -1, 1)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, threshold = ctx.saved_tensors
        slope = g / (1 + (x - threshold.view(1, -1, 1)).abs()).square()
        return slope, -slope.sum((0, 2))


def test_a_function_of_the_user_may_view_a_parameter_and_sum_its_gradient() -> None:
    w = leaf(3)
    both_ways(lambda x, v: (PerChannel.apply(x + v, w), v * 0.5 + x), [w], shape=(2, 3, 5))
    both_ways(lambda x, v: (PerChannel.apply(x + v, w.exp()) * w.view(3, 1), v * 0.5 + x), [w], shape=(2, 3, 5))


def test_a_function_of_the_user_may_not_change_a_parameter() -> None:
    class Changing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x * w.mul_(2)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return g, g.sum()

    w = leaf()
    before = w.item()
    with pytest.raises(ValueError, match="test_user_functions.py:.*mul_ changes a tensor that is neither an input nor"):
        both_ways(lambda x, v: (Changing.apply(x, w), v), [w])
    assert w.item() == before


def test_other_threads_may_use_functions_of_their_own_while_a_core_is_traced() -> None:
    failed: list[Exception] = []
    done = threading.Event()

    def train() -> None:
        try:
            while not done.is_set():
                w = leaf()
                Gated.apply(torch.ones(3), w).sum().backward()
                assert w.grad is not None
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=train)
    apply = torch.autograd.Function.__dict__["apply"]
    thread.start()
    try:
        for number in range(5):
            w = leaf()
            both_ways(lambda x, v, number=number: (Gated.apply(x, w) * number, v + x), [w])
    finally:
        done.set()
        thread.join()
    assert not failed
    assert torch.autograd.Function.__dict__["apply"] is apply


@pytest.mark.parametrize(
    "use",
    [
        lambda w, x, v: (w, v + x),
        lambda w, x, v: (x * v, w * 1),
        lambda w, x, v: (w * x, w),
        lambda w, x, v: (w, w),
        lambda w, x, v: (w.exp(), v * w),
    ],
)
def test_a_parameter_may_be_a_result(use: Callable[..., Any]) -> None:
    w = leaf(2, 3)
    both_ways(lambda x, v: use(w, x, v), [w])


class OwnParameter(torch.nn.Parameter):
    pass


class OwnTensor(Tensor):
    pass


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", [OwnParameter, OwnTensor])
@pytest.mark.parametrize(
    "use",
    [
        lambda w, x, v: (x * w, v + w),
        lambda w, x, v: (x * torch.sigmoid(w), w + v),
        lambda w, x, v: (Gated.apply(x, w) * w.detach(), w.expand_as(x)),
    ],
)
def test_tensors_of_a_class_that_changes_nothing_are_captured_as_others(
    use: Callable[..., Any], kind: type, static: bool
) -> None:
    w = leaf(3).detach().as_subclass(kind).requires_grad_()
    assert type(w) is kind
    if static:
        both_ways(lambda x, v, w: use(w, x, v), [w], static=[w])
    else:
        both_ways(lambda x, v: use(w, x, v), [w])


@pytest.mark.parametrize("shape", [(), (3,), (2, 1)])
@pytest.mark.parametrize(
    "use",
    [
        lambda w, x, v: torch.lerp(x, v, w),
        lambda w, x, v: torch.lerp(v, x, torch.sigmoid(w)),
        lambda w, x, v: (x * 1).lerp_(v, w),
        lambda w, x, v: torch.addcdiv(v, x, w),
        lambda w, x, v: torch.addcdiv(v, x, w.exp(), value=0.3),
    ],
)
def test_torch_may_fill_tensors_like_a_parameter_in_its_own_backward(
    use: Callable[..., Any], shape: tuple[int, ...]
) -> None:
    w = leaf(*shape)
    both_ways(lambda x, v: (use(w, x, v), v * 0.5 + x), [w])


@pytest.mark.parametrize(
    ("shape", "use"),
    [
        ((), lambda w, x: F.prelu(x, w) + F.prelu(2 * x, w)),
        ((), lambda w, x: F.prelu(x, w) + w),
        ((1,), lambda w, x: F.prelu(x, w) * w),
        ((3,), lambda w, x: F.prelu(x, w) + w * x + torch.rsub(x, w)),
        ((), lambda w, x: F.prelu(x, torch.sigmoid(w)) + torch.sigmoid(w)),
        ((), lambda w, x: (lambda q: F.prelu(x, q) + q)(torch.sigmoid(w))),
    ],
)
def test_a_parameter_that_torch_views_before_it_meets_an_input_is_counted_once(
    shape: tuple[int, ...], use: Callable[..., Any]
) -> None:
    w = leaf(*shape)
    both_ways(lambda x, v: (use(w, x), v + use(w, x)), [w], shape=(2, 3))
