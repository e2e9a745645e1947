"""Ways to read or change something that no function of the step shows: each is seen, or refused in words."""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import glob
import inspect
import operator
import os
import pickle
import random
import secrets
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import flexsn
from flexsn import FlexSN
from flexsn._trace import TraceError

X = torch.tensor([[0.5, -0.5]])
HERE = sys.modules[__name__]
Core = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def fused(core: Core) -> Tensor:
    return FlexSN(core, num_states=1)(X)


def eager(core: Core) -> Tensor:
    return FlexSN(core, num_states=1, backend="torch")(X)


# ---- numbers that tensors hold ------------------------------------------------------------------------------

SLOPE, WHICH, LEAKS = torch.tensor(0.1), torch.tensor(1), torch.tensor([0.1, 0.2])

READ_AS_NUMBERS = {
    "slope": lambda x: F.leaky_relu(x, SLOPE),
    "alpha": lambda x: torch.add(x, x, alpha=SLOPE),
    "value": lambda x: torch.addcmul(x, x, x, value=SLOPE),
    "beta": lambda x: F.softplus(x, SLOPE),
    "limit": lambda x: torch.nan_to_num(x, posinf=SLOPE),
    "filled": lambda x: x * torch.full((), SLOPE),
    "filled like": lambda x: torch.full_like(x, SLOPE),
    "a range": lambda x: x * torch.arange(0, SLOPE * 3, SLOPE)[1],
    "an index": lambda x: x * LEAKS[WHICH],
    "a list": lambda x: x * torch.tensor([SLOPE, SLOPE]),
    "a list by keyword": lambda x: x * torch.tensor(data=[SLOPE, SLOPE]),
    "of another type": lambda x: F.leaky_relu(x, SLOPE.double()),
    "an index of another type": lambda x: x * LEAKS[SLOPE.long()],
}


@pytest.mark.parametrize("way", READ_AS_NUMBERS)
def test_a_captured_tensor_that_is_read_as_a_number_is_refused_at_its_line(way: str) -> None:
    function = READ_AS_NUMBERS[way]
    line = f"{os.path.basename(__file__)}:{function.__code__.co_firstlineno}"
    with pytest.raises(TraceError, match=f"{line}.*reads the number that a tensor holds now"):
        fused(lambda x, v: (function(x), v))


def test_captured_tensors_where_tensors_are_wanted_stay_parameters() -> None:
    slope = torch.tensor(0.1)
    module = FlexSN(lambda x, v: (torch.where(x > 0, x, x * slope).clamp(-slope * 9), v), num_states=1)
    before = module(X)
    slope.fill_(0.5)
    assert not torch.equal(module(X), before)


# ---- refusals that a core catches ---------------------------------------------------------------------------


def guessed(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    try:
        factor = 2.0 if x.max() > 0 else 1.0
    except Exception:
        factor = 3.0
    return x * factor, v


def counted(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    try:
        factor = len(x.nonzero())
    except Exception:
        factor = 3.0
    return x * factor, v


@pytest.mark.parametrize(
    "core, what", [(guessed, "reads the value of a tensor"), (counted, "torch.nonzero gives a shape that depends on")]
)
def test_a_refusal_that_a_core_catches_is_raised_all_the_same(core: Core, what: str) -> None:
    with pytest.raises(TraceError, match=rf"test_hidden_reads.py:\d+\).* {what}"):
        fused(core)


class Leaning(torch.autograd.Function):
    """A surrogate whose gradient has a slope."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return F.leaky_relu(-grad, SLOPE)


class Guessing(Leaning):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        try:
            return grad * float(SLOPE)
        except Exception:
            return grad


@pytest.mark.parametrize(
    "surrogate, what", [(Leaning, "reads the number that a tensor holds now"), (Guessing, "reads the value of")]
)
def test_gradients_read_no_numbers_of_tensors_either(surrogate: Any, what: str) -> None:
    module = FlexSN(lambda x, v: (surrogate.apply(x), v), num_states=1)
    with pytest.raises((TraceError, RuntimeError), match=what):
        module(X.clone().requires_grad_()).sum().backward()


def ended(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    try:
        with torch.no_grad():
            factor = x * 0.5
    finally:
        pass
    return x + factor, v


def test_a_core_that_catches_nothing_is_traced_once_for_all_shapes() -> None:
    module = FlexSN(ended, num_states=1)
    module(X)
    assert not module._fused._held.trace.reads_size_at


# ---- sizes ---------------------------------------------------------------------------------------------------


def caught(x: Tensor) -> int:
    try:
        x + torch.ones(3)
    except RuntimeError:
        return 5
    return 3


@pytest.mark.parametrize(
    "count",
    [
        lambda x: len(x.unbind(-1)),
        lambda x: sum(1 for _ in x),
        lambda x: len(x.split(2)),
        lambda x: len(x.chunk(5)),
        caught,
    ],
    ids=["unbind", "iterated", "split", "chunk", "caught"],
)
def test_a_size_that_is_read_in_passing_is_seen(count: Callable[[Tensor], int]) -> None:
    module = FlexSN(lambda x, v: (x / count(x), v), num_states=1)
    with pytest.raises(TraceError, match="reads the shape of a tensor"):
        for size in (3, 7):
            module.reset()
            module(torch.ones(2, size))


# ---- tensors that a step must not change ----------------------------------------------------------------------

WEIGHT = nn.Parameter(torch.ones(2))


def assigned(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    WEIGHT.data = WEIGHT.detach() * 0.9
    return x * WEIGHT, v


def graded(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    WEIGHT.grad = torch.ones(2)
    return x * WEIGHT, v


def listed(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    torch._foreach_add_([LEAKS], 1.0)
    return x * LEAKS, v


def initialized(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    nn.init.constant_(WEIGHT, 5.0)
    return x * WEIGHT, v


@pytest.mark.parametrize(
    "core, what",
    [
        (assigned, r"assigns \.data of a tensor"),
        (graded, r"assigns \.grad of a tensor"),
        (listed, "_foreach_add_ changes a tensor"),
        (initialized, "fill_ changes a tensor"),
    ],
)
def test_captured_tensors_stay_what_they_are(core: Core, what: str) -> None:
    with pytest.raises(TraceError, match=rf"test_hidden_reads.py:\d+\): {what}.* backend=\"torch\""):
        fused(core)
    assert type(WEIGHT) is nn.Parameter and WEIGHT.grad is None
    assert torch.equal(WEIGHT, torch.ones(2)) and torch.equal(LEAKS, torch.tensor([0.1, 0.2]))


def test_what_a_refused_core_assigned_is_put_back() -> None:
    calls = 0

    def counting(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        HERE.COUNT = getattr(HERE, "COUNT", 0) + 1
        return x * calls, v

    HERE.COUNT = 7
    with pytest.raises(TraceError, match="closure calls was 0 and is 1"):
        fused(counting)
    assert calls == 0 and HERE.COUNT == 7


# ---- integers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function, dtype, number",
    [
        (lambda x: x ^ 0x80000000, torch.int32, 2**31),
        (lambda x: x * 2654435761, torch.int32, 2654435761),
        (lambda x: x - 2**31, torch.int32, 2**31),
        (lambda x: x + torch.tensor(2**31), torch.int32, 2**31),
        (lambda x: (x < 2**31).int(), torch.int32, 2**31),
        (lambda x: (x > -1).int(), torch.uint8, -1),
        (lambda x: x.clamp(min=-5), torch.uint8, -5),
    ],
)
def test_numbers_that_do_not_fit_into_the_integers_they_meet_are_refused(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, number: int
) -> None:
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(TraceError, match=rf"the number {number} meets {name}, which ends at .*; write one"):
        FlexSN(lambda x, v: (function(x), v), num_states=1)(torch.ones(1, 2, dtype=dtype))


@pytest.mark.parametrize(
    "function, x",
    [
        (lambda x: x * torch.tensor(3_000_000_000), X),
        (lambda x: x + torch.full((), 2**40), X),
        (lambda x: (x < 2**40).float(), X),
        (lambda x: (x > -1).float(), X > 0),
        (lambda x: (x < 300).float(), X > 0),
        (lambda x: (x == 2).float(), X > 0),
        (lambda x: x * 5 - 2147483647, torch.tensor([[7, -7]], dtype=torch.int32)),
    ],
)
def test_numbers_beside_floats_and_truths_are_what_torch_makes_of_them(
    function: Callable[[Tensor], Tensor], x: Tensor
) -> None:
    core = lambda x, v: (function(x), v)  # noqa: E731
    assert torch.equal(FlexSN(core, num_states=1)(x), FlexSN(core, num_states=1, backend="torch")(x))


# ---- static inputs --------------------------------------------------------------------------------------------


def test_static_tensors_may_be_one_in_one_call_and_two_in_the_next() -> None:
    one, other = torch.ones(2), torch.full((2,), 5.0)
    core = lambda x, v, a, b: (x * (a - b), v)  # noqa: E731
    found = [flexsn.scan(core, X, torch.zeros(2), [one, second])[0][0] for second in (one, other, one)]
    assert [each.tolist() for each in found] == [[[0.0, 0.0]], [[-2.0, 2.0]], [[0.0, 0.0]]]
    captured = lambda x, v, a: (x * (a - one), v)  # noqa: E731
    found = [flexsn.scan(captured, X, torch.zeros(2), [each])[0][0] for each in (one, other)]
    assert found[1].tolist() == [[2.0, -2.0]]


def test_the_sign_of_a_static_zero_is_seen() -> None:
    core = lambda x, v, a: (torch.copysign(x, torch.ones_like(x) * a), v)  # noqa: E731
    found = [flexsn.scan(core, X, torch.zeros(2), [zero])[0][0].tolist() for zero in (0.0, -0.0)]
    assert found == [[[0.5, 0.5]], [[-0.5, -0.5]]]


# ---- modes and hooks --------------------------------------------------------------------------------------------


class TanhIsRelu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return torch.relu(*args) if func is torch.tanh else func(*args, **(kwargs or {}))


def test_a_mode_around_the_first_call_is_no_part_of_the_neuron() -> None:
    module = FlexSN(lambda x, v: (torch.tanh(x) * 0.75, v), num_states=1)
    with TanhIsRelu(), torch.device("cpu"):
        first = module(X)
    assert torch.equal(first, module(X)) and torch.allclose(first, torch.tanh(X) * 0.75)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.PReLU(init=0.25)

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x) + 0.5, v + x


def gradient(module: FlexSN) -> list[list[float]]:
    x = X.clone().requires_grad_()
    module.reset()
    module(x).sum().backward()
    return x.grad.tolist()


def test_backward_hooks_of_a_cores_modules_are_their_own() -> None:
    with_hook, without = (FlexSN(Weighted(), num_states=1) for _ in range(2))
    hook = with_hook.core.inner.register_full_backward_hook(lambda m, gi, go: tuple(g * 3 for g in gi))
    assert gradient(with_hook) == [[3.0, 0.75]]
    assert gradient(without) == [[1.0, 0.25]]
    hook.remove()
    assert gradient(with_hook) == [[1.0, 0.25]]
    without.core.inner.register_full_backward_hook(lambda m, gi, go: tuple(g * 2 for g in gi))
    assert gradient(without) == [[2.0, 0.5]]


def test_hooks_may_note_what_they_see() -> None:
    seen: list[int] = []
    module = FlexSN(Weighted(), num_states=1)
    module.core.register_forward_hook(lambda m, i, o: seen.append(1))
    hook = nn.modules.module.register_module_forward_hook(lambda m, i, o: seen.append(2))
    try:
        assert torch.equal(module(X), eager(Weighted()))
    finally:
        hook.remove()


FACTOR = 1.0


@pytest.mark.parametrize("whose", ["its own", "all"])
def test_what_forward_hooks_read_is_followed(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = FlexSN(Weighted(), num_states=1)
    before = module(X)
    register = {
        "its own": module.core.inner.register_forward_hook,
        "all": nn.modules.module.register_module_forward_hook,
    }[whose]
    hook = register(lambda m, i, o: o * HERE.FACTOR if isinstance(m, nn.PReLU) else None)
    try:
        monkeypatch.setattr(HERE, "FACTOR", 3.0)
        module.reset()
        assert torch.equal(module(X), (before - 0.5) * 3 + 0.5)
    finally:
        hook.remove()


# ---- values that are there later, or are read in other ways -----------------------------------------------------


class Config:
    """An object to which attributes are given later."""


class Made:
    scale = 1.0

    def __class_getitem__(cls, item: float) -> float:
        return cls.scale * item


class Static:
    __call__ = staticmethod(lambda: HERE.FACTOR)


class Number(float):
    """A number with attributes."""


@dataclasses.dataclass(eq=False)
class Pair:
    a: float = 1.0


class Choice(enum.Enum):
    LIST = [1.0]


class Weight(enum.Enum):
    HEAVY = 7

    def __init__(self, value: int) -> None:
        self.scale = 1.0


class Slotted(float):
    __slots__ = ("scale",)


class Written:
    scale = 1.0

    def __repr__(self) -> str:
        return str(self.scale)


class Swallowing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *problem: object) -> bool:
        return True


def tried(holder: Any) -> Callable[[], float]:
    def read() -> float:
        try:
            return holder.later
        except AttributeError:
            return 1.0

    return read


def swallowed(holder: Any) -> Callable[[], float]:
    manager = Swallowing()

    def read() -> float:
        found = 1.0
        with manager:
            found = holder.later
        return found

    return read


def matched(pair: Pair) -> float:
    match pair:
        case Pair(a):
            return a
    return 0.0


def by_builtin_name() -> float:
    try:
        return SOMETHING_LATER  # noqa: F821
    except NameError:
        return 1.0


def cases() -> dict[str, tuple[Callable[[], float], Callable[[], Any]]]:
    """What a core reads, and what makes it 5."""
    config, number, pair, module = Config(), Number(1.0), Pair(), types.ModuleType("late_module")
    config.alpha = number.alpha = 1.0
    kind = type("Late", (), {})
    instance, get, static = kind(), getattr, Static()
    partly, getter, bound = functools.partial(getattr, config), operator.attrgetter("alpha"), config.__getattribute__
    module.__getattr__ = lambda name: HERE.FACTOR
    plain = types.ModuleType("plain_module")
    slotted, written, pattern, bare = Slotted(1.0), Written(), "{0.alpha}", lambda: None
    slotted.scale = 1.0
    heavy = functools.partial(setattr, Weight.HEAVY, "scale", 5.0)
    scale = functools.partial(setattr, written, "scale", 5.0)
    alpha = functools.partial(setattr, config, "alpha", 5.0)
    factor = functools.partial(setattr, HERE, "FACTOR", 5.0)
    return {
        "absent in an object": (tried(config), lambda: setattr(config, "later", 5.0)),
        "absent in a class": (tried(kind), lambda: setattr(kind, "later", 5.0)),
        "absent in an instance": (tried(instance), lambda: setattr(kind, "later", 5.0)),
        "absent in a module": (tried(plain), lambda: setattr(plain, "later", 5.0)),
        "getattr of a module": (
            lambda: getattr(plain, "other", 1.0),
            lambda: setattr(plain, "other", 5.0),
        ),
        "a builtin": (by_builtin_name, lambda: setattr(builtins, "SOMETHING_LATER", 5.0)),
        "__class_getitem__": (lambda: Made[1.0], lambda: setattr(Made, "scale", 5.0)),
        "__call__ of a staticmethod": (lambda: static(), factor),
        "__getattr__ of a module": (lambda: module.anything, factor),
        "match": (lambda: matched(pair), lambda: setattr(pair, "a", 5.0)),
        "getattr by another name": (lambda: get(config, "alpha"), alpha),
        "a partial of getattr": (lambda: partly("alpha"), alpha),
        "an attrgetter": (lambda: getter(config), alpha),
        "a bound __getattribute__": (lambda: bound("alpha"), alpha),
        "getattr_static": (lambda: inspect.getattr_static(config, "alpha"), alpha),
        "str.format": (lambda: float("{0.alpha}".format(config)), alpha),
        "a number's attribute": (lambda: number.alpha, lambda: setattr(number, "alpha", 5.0)),
        "a function's attribute": (lambda: getattr(bare, "later", 1.0), lambda: setattr(bare, "later", 5.0)),
        "absent in a function": (tried(bare), lambda: setattr(bare, "later", 5.0)),
        "absent under a swallowing manager": (swallowed(config), lambda: setattr(config, "later", 5.0)),
        "a member by its value": (lambda: Weight(7).scale, heavy),
        "a member by its name": (lambda: Weight["HEAVY"].scale, heavy),
        "all members": (lambda: sum(member.scale for member in Weight), heavy),
        "a number's slot": (lambda: slotted.scale, lambda: setattr(slotted, "scale", 5.0)),
        "repr": (lambda: float(repr(written)), scale),
        "str": (lambda: float(str(written)), scale),
        "an f-string": (lambda: float(f"{written}"), scale),
        "the percent sign": (lambda: float("%s" % written), scale),
        "a format from elsewhere": (lambda: float(pattern.format(config)), alpha),
        "__getstate__": (lambda: config.__getstate__()["alpha"], alpha),
        "pickle": (lambda: pickle.loads(pickle.dumps(config)).__dict__["alpha"], alpha),
        "a member's list": (lambda: Choice.LIST.value[0], lambda: Choice.LIST.value.__setitem__(0, 5.0)),
    }


@pytest.fixture
def undone():
    yield
    HERE.FACTOR, Made.scale = 1.0, 1.0
    Choice.LIST.value[0] = 1.0
    Weight.HEAVY.scale = 1.0
    builtins.__dict__.pop("SOMETHING_LATER", None)


@pytest.mark.parametrize("way", cases())
def test_what_changes_is_seen_however_it_is_read(way: str, undone: None) -> None:
    read, change = cases()[way]
    core = lambda x, v: (x * read(), v)  # noqa: E731
    module = FlexSN(core, num_states=1)
    assert torch.equal(module(X), X)
    change()
    module.reset()
    assert torch.equal(module(X), X * 5) and torch.equal(fused(core), X * 5)


OBJECTS = numpy.array([Config()], dtype=object)
BITS, GENERATOR = numpy.random.PCG64(), torch.Generator()


@pytest.mark.parametrize(
    "read, what",
    [
        (lambda: numpy.random.default_rng().random(), "numpy.random.default_rng"),
        (lambda: random.Random().random(), "random.Random"),
        (lambda: secrets.SystemRandom().random(), "SystemRandom"),
        (lambda: float(time.strftime("%S")), "time.strftime"),
        (lambda: len(glob.glob("*")), "glob.glob"),
        (lambda: len(list(os.walk("."))), "os.walk"),
        (lambda: float(os.access(".", os.R_OK)), "os.access"),
        (lambda: len(torch.get_float32_matmul_precision()), "torch.get_float32_matmul_precision"),
        (lambda: len(numpy.geterr()), "numpy.geterr"),
        (lambda: os.getrandom(1)[0], "os.getrandom"),
        (lambda: numpy.random.PCG64().random_raw() % 7, "numpy.random.PCG64"),
        (lambda: numpy.random.SeedSequence().entropy % 7, "numpy.random.SeedSequence"),
        (lambda: BITS.random_raw() % 7, r"a generator of random numbers \(PCG64\)"),
        (lambda: torch.Generator().seed() % 7, "torch.Generator"),
        (lambda: GENERATOR.initial_seed() % 7, r"a generator of random numbers \(Generator\)"),
        (lambda: __import__("time").time_ns() % 7, "time.time_ns"),
        (lambda: len(OBJECTS[0].__dict__), r"an array of objects \(NumPy\)"),
    ],
)
def test_what_may_be_another_thing_at_each_call_is_refused(read: Callable[[], float], what: str) -> None:
    with pytest.raises(TraceError, match=f"reads .*{what}, which may be something else at each call"):
        fused(lambda x, v: (x * read(), v))
    assert torch.isfinite(eager(lambda x, v: (x * read(), v))).all()


@pytest.mark.parametrize("name", ["_version", "data_ptr()", "stride()", "grad", "is_leaf"])
def test_how_a_captured_tensor_came_to_be_or_lies_in_memory_cannot_be_read(name: str) -> None:
    core = eval(f"lambda x, v: (x * float(LEAKS.{name} is None), v)", {"LEAKS": LEAKS})
    with pytest.raises(TraceError, match=rf"reads \.{name.removesuffix('()')} of a tensor, which is not the same"):
        fused(core)


def test_sizes_are_seen_through_operators_too() -> None:
    with pytest.raises(TraceError, match="it reads the shape of a tensor"):
        fused(lambda x, v: (x * torch.ops.aten.sym_size.int(x, 0), v))
