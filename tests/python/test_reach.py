"""What a core can reach: changes are seen, equal cores have equal keys, tensors are found in their places."""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import enum
import functools
import importlib
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from flexsn._closed import is_closed
from flexsn._differences import difference
from flexsn._reach import Reach, describe, source_of

TAU = 2.0
SHARED_WEIGHT = torch.ones(3)
OPTIONS = {"gain": 1.0, "steps": [1, 2]}


def helper(v: Tensor) -> Tensor:
    return v * 2.0


def paths(core: Callable[..., Any]) -> list[str]:
    return [place.path for place in Reach(core).tensors]


def after(core: Callable[..., Any], change: Callable[[], Any]) -> tuple[bool, bool]:
    """Makes a change and says whether the old reach is still current and whether the key stayed equal."""
    before = Reach(core)
    assert before.current()
    assert Reach(core).key == before.key
    change()
    return before.current(), Reach(core).key == before.key


UNCHANGED, REPLACED_BY_EQUAL, CHANGED = (True, True), (False, True), (False, False)


class Surrogate(torch.autograd.Function):
    slope = 4.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x >= 0).to(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * Surrogate.slope


class Neuron(nn.Module):
    threshold = 1.0

    def __init__(self, alpha: float = 2.0, channels: int = 3) -> None:
        super().__init__()
        self.alpha = alpha
        self.unused = 5.0
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("rest", torch.zeros(()))
        self.lin = nn.PReLU()
        self.conv = nn.Conv2d(channels, channels, 3)

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = self.lin(v * self.alpha + x * self.weight - self.rest)
        return (h > self.threshold).to(h), h

    def step(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            return self.forward(x, v)
        return x, v


class Plain:
    """A callable object without torch."""

    limit = 1.0

    def __init__(self, alpha: Any) -> None:
        self.alpha = alpha

    def __call__(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.scaled(v)

    def scaled(self, v: Tensor) -> Tensor:
        return v * self.alpha + self.limit


# ---- ways of capture


def test_change_of_a_global_float_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def core(x: Tensor, v: Tensor) -> Tensor:
        return v / TAU

    assert after(core, lambda: None) == UNCHANGED
    assert after(core, lambda: monkeypatch.setitem(globals(), "TAU", float("2"))) == REPLACED_BY_EQUAL
    assert after(core, lambda: monkeypatch.setitem(globals(), "TAU", 3.0)) == CHANGED


def test_global_that_hides_a_builtin_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def core(x: Tensor, v: Tensor) -> Tensor:
        return v * abs(-2)

    assert after(core, lambda: monkeypatch.setitem(globals(), "abs", float))[0] is False


def test_global_that_the_code_does_not_name_is_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def core(x: Tensor, v: Plain) -> Any:
        return v.TAU

    assert after(core, lambda: monkeypatch.setitem(globals(), "TAU", 3.0)) == UNCHANGED


def test_name_in_a_nested_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def core(x: Tensor, v: Tensor) -> Any:
        return [(lambda u: u / TAU)(each) for each in (x, v)]

    assert after(core, lambda: monkeypatch.setitem(globals(), "TAU", 3.0)) == CHANGED


def test_global_helper_function_redefined_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def core(x: Tensor, v: Tensor) -> Tensor:
        return helper(v)

    assert after(core, lambda: monkeypatch.setitem(globals(), "helper", lambda v: v * 3.0)) == CHANGED


def test_code_of_a_helper_replaced_in_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def core(x: Tensor, v: Tensor) -> Tensor:
        return helper(v)

    other = (lambda v: v * 3.0).__code__
    assert after(core, lambda: monkeypatch.setattr(helper, "__code__", other)) == CHANGED


def test_change_of_a_closure_is_seen() -> None:
    tau = 2.0

    def core(x: Tensor, v: Tensor) -> Tensor:
        return v / tau

    def change() -> None:
        nonlocal tau
        tau = 3.0

    before = Reach(core)
    assert after(core, change) == CHANGED
    assert difference(before, Reach(core)) == "closure tau was 2.0 and is 3.0"


def test_closure_that_is_empty_at_first_is_seen_when_filled() -> None:
    def core(x: Tensor, v: Tensor) -> Tensor:
        return v / tau

    assert Reach(core).current()
    before = Reach(core)
    tau = 2.0
    assert not before.current()
    assert Reach(core).key != before.key


def test_change_of_a_default_is_seen() -> None:
    def core(x: Tensor, v: Tensor, tau: float = 2.0, *, gain: float = 1.0) -> Tensor:
        return v / tau * gain

    before = Reach(core)
    assert after(core, lambda: setattr(core, "__defaults__", (3.0,))) == CHANGED
    assert after(core, lambda: core.__kwdefaults__.update(gain=4.0)) == CHANGED
    assert after(core, lambda: core.__kwdefaults__.update(x=4.0))[0] is False
    words = difference(before, Reach(core))
    assert "default tau was 2.0 and is 3.0; default gain was 1.0 and is 4.0" in words


def test_function_attribute_is_seen() -> None:
    def core(x: Tensor, v: Tensor) -> Tensor:
        return v / core.tau

    core.tau = 2.0
    assert after(core, lambda: setattr(core, "tau", 3.0)) == CHANGED


def test_partial_arguments_are_reached() -> None:
    weight = torch.ones(3)
    options = {"gain": 1.0}
    core = functools.partial(lambda w, options, x, v: v * w, weight, options)
    assert paths(core) == ["partial.args[0]"]
    assert after(core, lambda: options.update(gain=2.0)) == CHANGED
    assert Reach(functools.partial(helper, k=1.0)).key != Reach(functools.partial(helper, k=2.0)).key
    assert after(core, lambda: core.keywords.update(extra=1)) == CHANGED


def test_bound_method_of_a_module_reaches_what_it_reads() -> None:
    neuron = Neuron()
    assert set(paths(neuron.step)) == {"self.weight", "self.rest", "self.lin.weight"}
    assert after(neuron.step, lambda: setattr(neuron, "alpha", 3.0)) == CHANGED
    assert after(neuron.step, lambda: neuron.eval()) == CHANGED
    assert after(neuron.step, lambda: setattr(neuron, "unused", 6.0)) == UNCHANGED


def test_module_core_reaches_parameters_buffers_and_submodules() -> None:
    neuron = Neuron()
    assert set(paths(neuron)) == {"module.weight", "module.rest", "module.lin.weight"}
    assert after(neuron, lambda: setattr(neuron, "weight", nn.Parameter(torch.ones(3)))) == REPLACED_BY_EQUAL
    assert after(neuron, lambda: setattr(neuron, "weight", nn.Parameter(torch.ones(4)))) == CHANGED
    assert after(neuron, lambda: setattr(neuron, "lin", nn.ReLU())) == CHANGED
    assert after(neuron, lambda: setattr(neuron, "forward", helper)) == CHANGED


def test_training_flag_of_a_submodule_of_torch_is_seen() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor, v: Tensor) -> Tensor:
            return self.drop(v)

    core = Noisy()
    before = Reach(core)
    assert after(core, lambda: core.eval()) == CHANGED
    assert "module.drop.training was True and is False" in difference(before, Reach(core))
    assert after(core, lambda: setattr(core.drop, "p", 0.1)) == CHANGED


def test_submodules_that_the_core_does_not_name_are_not_reached() -> None:
    assert Reach(Neuron(channels=3).step).key == Reach(Neuron(channels=8).step).key


def test_code_with_getattr_reaches_every_attribute() -> None:
    class Dynamic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w0, self.w1 = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
            self.scale = 1.0

        def forward(self, x: Tensor, v: Tensor) -> Tensor:
            return v * sum(getattr(self, f"w{i}") for i in range(2))

    core = Dynamic()
    assert paths(core) == ["module.w0", "module.w1"]
    assert after(core, lambda: setattr(core, "scale", 2.0)) == CHANGED
    assert after(core, lambda: setattr(core, "added", 2.0)) == CHANGED


def test_attributes_that_closed_code_reads_are_reached() -> None:
    class MyLinear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    core = MyLinear(2, 2)
    assert set(paths(core)) == {"module.weight", "module.bias"}


def test_callable_object_reaches_attributes_methods_and_class_attributes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Plain(2.0)
    assert after(core, lambda: setattr(core, "alpha", 3.0)) == CHANGED
    assert after(core, lambda: monkeypatch.setattr(Plain, "limit", 2.0)) == CHANGED
    assert after(core, lambda: setattr(core, "limit", 3.0)) == CHANGED
    assert after(core, lambda: monkeypatch.setattr(Plain, "scaled", helper)) == CHANGED
    assert after(core, lambda: setattr(core, "scaled", helper)) == CHANGED


def test_slots_are_reached() -> None:
    class Slotted:
        __slots__ = ("alpha", "later")

        def __call__(self, x: Tensor, v: Tensor) -> Tensor:
            return v * self.alpha

    core = Slotted()
    core.alpha = torch.ones(2)
    assert paths(core) == ["self.alpha"]
    assert Reach(core).tensors[0].get() is core.alpha
    assert after(core, lambda: setattr(core, "later", 3.0)) == CHANGED
    assert after(core, lambda: delattr(core, "alpha")) == CHANGED


def test_attribute_set_in_a_subclass_hides_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    class Special(Plain):
        pass

    core = Special(2.0)
    assert after(core, lambda: monkeypatch.setattr(Special, "limit", 9.0, raising=False)) == CHANGED


def test_property_is_followed() -> None:
    class Leaky:
        def __init__(self) -> None:
            self.tau = 2.0

        @property
        def decay(self) -> float:
            return 1.0 / self.tau

        def __call__(self, x: Tensor, v: Tensor) -> Tensor:
            return v * self.decay

    core = Leaky()
    assert after(core, lambda: setattr(core, "tau", 3.0)) == CHANGED


def test_change_of_class_or_dict_of_an_object_is_seen() -> None:
    class Other(Plain):
        def scaled(self, v: Tensor) -> Tensor:
            return v

    core = Plain(2.0)
    assert after(core, lambda: setattr(core, "__dict__", {"alpha": 3.0})) == CHANGED
    assert after(core, lambda: setattr(core, "__class__", Other)) == CHANGED


def test_autograd_function_is_followed_into_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    spike = Surrogate.apply

    def by_class(x: Tensor, v: Tensor) -> Tensor:
        return Surrogate.apply(v)

    def by_apply(x: Tensor, v: Tensor) -> Tensor:
        return spike(v)

    for core in (by_class, by_apply):
        with monkeypatch.context() as patch:
            assert after(core, lambda: patch.setattr(Surrogate, "slope", 5.0)) == CHANGED
        with monkeypatch.context() as patch:
            other = staticmethod(lambda ctx, grad: grad)
            assert after(core, lambda: patch.setattr(Surrogate, "backward", other)) == CHANGED


def test_decorators_of_torch_are_looked_through() -> None:
    def make(tau: float) -> Callable[..., Any]:
        return torch.autograd.function.once_differentiable(lambda x, v: v / tau)

    assert Reach(make(2.0)).key == Reach(make(2.0)).key
    assert Reach(make(2.0)).key != Reach(make(3.0)).key
    no_grad = torch.no_grad()
    assert Reach(no_grad(make(2.0))).key == Reach(no_grad(make(2.0))).key
    assert Reach(no_grad(make(2.0))).key != Reach(no_grad(make(3.0))).key


def test_cached_functions_are_looked_through() -> None:
    def make(tau: float) -> Callable[..., Any]:
        return functools.cache(lambda x, v: v / tau)

    assert Reach(make(2.0)).key == Reach(make(2.0)).key
    assert Reach(make(2.0)).key != Reach(make(3.0)).key


def test_method_of_a_tensor_reaches_the_tensor() -> None:
    weight = torch.ones(2)
    scale = weight.mul
    assert paths(lambda x, v: scale(v)) == ["closure scale.__self__"]


def test_modules_are_reached_by_the_attributes_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = types.ModuleType("reach_test_config")
    config.alpha, config.other = 2.0, 1.0
    monkeypatch.setitem(sys.modules, "reach_test_config", config)

    def by_closure(x: Tensor, v: Tensor) -> Tensor:
        return v * config.alpha

    def by_import(x: Tensor, v: Tensor) -> Tensor:
        import reach_test_config

        return v * reach_test_config.alpha

    def by_import_from(x: Tensor, v: Tensor) -> Tensor:
        from reach_test_config import alpha

        return v * alpha

    for alpha, core in enumerate((by_closure, by_import, by_import_from)):
        assert after(core, lambda: setattr(config, "other", alpha)) == UNCHANGED
        assert after(core, lambda: setattr(config, "alpha", alpha)) == CHANGED


def test_relative_import_in_a_function_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    config = types.ModuleType("reach_test_package.config")
    config.alpha = 2.0
    monkeypatch.setitem(sys.modules, "reach_test_package", types.ModuleType("reach_test_package"))
    monkeypatch.setitem(sys.modules, "reach_test_package.config", config)
    scope = {"__name__": "reach_test_package.core", "__package__": "reach_test_package"}
    exec("def core(x, v):\n    from .config import alpha\n    return v * alpha", scope)
    assert after(scope["core"], lambda: setattr(config, "alpha", 3.0)) == CHANGED


def test_import_that_has_not_happened_yet_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def core(x: Tensor, v: Tensor) -> Tensor:
        import reach_test_absent

        return v * reach_test_absent.alpha

    module = types.ModuleType("reach_test_absent")
    assert after(core, lambda: monkeypatch.setitem(sys.modules, "reach_test_absent", module)) == CHANGED


def test_torch_math_numpy_are_not_looked_into() -> None:
    def core(x: Tensor, v: Tensor) -> Tensor:
        return torch.sigmoid(v) * math.pi + float(numpy.sqrt(2.0)) + torch.nn.functional.relu(x)

    assert [path for path, _ in Reach(core).key] == [
        "torch default dtype",
        "core",
        "global torch",
        "global math",
        "global numpy",
    ]


def test_file_of_the_user_named_like_a_standard_module_is_looked_into(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "colorsys.py").write_text("ALPHA = 2.0\ndef core(x, v):\n    return v * ALPHA\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    try:
        user_module = importlib.import_module("colorsys")
        assert after(user_module.core, lambda: setattr(user_module, "ALPHA", 3.0)) == CHANGED
    finally:
        sys.modules.pop("colorsys")
        is_closed.cache_clear()


@pytest.mark.parametrize(
    "make",
    [
        lambda alpha: types.SimpleNamespace(alpha=alpha),
        lambda alpha: argparse.Namespace(alpha=alpha, seed=1),
        lambda alpha: dataclasses.make_dataclass("Config", ["alpha"])(alpha),
        lambda alpha: dataclasses.make_dataclass("Config", ["alpha"], slots=True)(alpha),
        lambda alpha: collections.namedtuple("Config", ["alpha"])(alpha),
        Plain,
    ],
    ids=["SimpleNamespace", "Namespace", "dataclass", "slotted dataclass", "namedtuple", "object"],
)
def test_configuration_objects_are_reached(make: Callable[[Any], Any]) -> None:
    config = make(2.0)

    def core(x: Tensor, v: Tensor) -> Tensor:
        return v * config.alpha

    def replace() -> None:
        nonlocal config
        config = make(3.0)

    if not isinstance(config, tuple):
        assert after(core, lambda: setattr(config, "alpha", 4.0)) == CHANGED
    assert after(core, replace) == CHANGED
    config = make(torch.ones(2))
    assert [place.get() is config.alpha for place in Reach(core).tensors] == [True]


def test_attribute_read_by_a_match_statement_is_reached() -> None:
    config = types.SimpleNamespace(alpha=2.0)

    def core(x: Tensor, v: Tensor) -> Tensor:
        match config:
            case types.SimpleNamespace(alpha=alpha):
                return v * alpha

    assert after(core, lambda: setattr(config, "alpha", 3.0)) == CHANGED


@pytest.mark.parametrize(
    ("container", "change"),
    [
        ([1.0, 2.0], lambda c: c.append(3.0)),
        ([1.0, 2.0], lambda c: c.__setitem__(0, 3.0)),
        ([[1.0]], lambda c: c[0].append(3.0)),
        (([1.0], 2), lambda c: c[0].append(3.0)),
        ({"a": 1.0}, lambda c: c.update(a=2.0)),
        ({"a": 1.0}, lambda c: c.update(b=2.0)),
        ({"a": 1.0, "b": 2.0}, lambda c: c.pop("b")),
        ({"a": {"b": 1.0}}, lambda c: c["a"].update(b=2.0)),
        (collections.OrderedDict(a=1.0), lambda c: c.update(a=2.0)),
        (collections.deque([1.0]), lambda c: c.append(2.0)),
        ({1.0, 2.0}, lambda c: c.add(3.0)),
        ({1}, lambda c: (c.clear(), c.add(True))),
        (numpy.array([1.0, 2.0]), lambda c: c.__setitem__(0, 3.0)),
    ],
)
def test_mutation_of_a_container_is_seen(container: Any, change: Callable[[Any], Any]) -> None:
    core = Plain(copy.deepcopy(container))
    assert after(core, lambda: None) == UNCHANGED
    assert after(core, lambda: setattr(core, "alpha", copy.deepcopy(container))) == REPLACED_BY_EQUAL
    assert after(core, lambda: change(core.alpha)) == CHANGED


def test_tensors_in_containers_have_places() -> None:
    core = Plain([torch.ones(1), {"w": torch.ones(2)}, (torch.ones(3),), {torch.ones(4)}])
    reach = Reach(core)
    assert [place.path for place in reach.tensors] == [
        "self.alpha[0]",
        "self.alpha[1]['w']",
        "self.alpha[2][0]",
        "self.alpha[3]{0}",
    ]
    assert [place.get().shape[0] for place in reach.tensors] == [1, 2, 3, 4]


# ---- plain values


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (0j, complex(0.0, -0.0)),
        ("a", b"a"),
        (None, False),
        (torch.float32, torch.float64),
        (torch.device("cpu"), torch.device("meta")),
        (torch.Size([1, 2]), torch.Size([2, 1])),
        (torch.Size([1, 2]), (1, 2)),
        ((1, 2), [1, 2]),
        (numpy.float32(1), numpy.float64(1)),
        (numpy.float64(1), 1.0),
        (range(2), range(3)),
        (frozenset({1}), frozenset({2})),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_different_plain_values_have_different_keys(one: Any, other: Any) -> None:
    assert Reach(Plain(one)).key != Reach(Plain(other)).key
    assert Reach(Plain(one)).key == Reach(Plain(one)).key
    assert hash(Reach(Plain(one)).key) == hash(Reach(Plain(one)).key)


@pytest.mark.parametrize("constants", [("1", "1.0"), ("1", "True"), ("0.0", "-0.0"), ("(1,)", "(1.0,)")])
def test_different_constants_in_code_have_different_keys(constants: tuple[str, str]) -> None:
    one, other = (eval(f"lambda x, v: (v, {constant})") for constant in constants)
    assert Reach(one).key != Reach(other).key


def test_nan_equals_itself() -> None:
    core = Plain(math.nan)
    assert after(core, lambda: None) == UNCHANGED
    assert after(core, lambda: setattr(core, "alpha", float("nan"))) == REPLACED_BY_EQUAL


def test_enum_members_are_plain() -> None:
    class Mode(enum.Enum):
        HARD = 1
        SOFT = 2

    core = Plain(Mode.HARD)
    assert after(core, lambda: setattr(core, "alpha", Mode.HARD)) == UNCHANGED
    assert after(core, lambda: setattr(core, "alpha", Mode.SOFT)) == CHANGED


def test_other_objects_are_held_by_identity() -> None:
    generator = torch.Generator()
    core = Plain(generator)
    assert after(core, lambda: None) == UNCHANGED
    assert after(core, lambda: setattr(core, "alpha", torch.Generator())) == CHANGED


def test_default_dtype_of_torch_is_seen() -> None:
    try:
        assert after(helper, lambda: torch.set_default_dtype(torch.float64)) == CHANGED
    finally:
        torch.set_default_dtype(torch.float32)


# ---- tensors


@pytest.mark.parametrize(
    "change",
    [
        lambda neuron: neuron.double(),
        lambda neuron: neuron.weight.requires_grad_(False),
        lambda neuron: neuron.to("meta"),
        lambda neuron: setattr(neuron.weight, "data", torch.ones(4)),
        lambda neuron: neuron.rest.resize_(3),
    ],
    ids=["dtype", "requires_grad", "device", "shape of data", "resize"],
)
def test_facts_of_a_tensor_changed_in_place_are_seen(change: Callable[[Neuron], Any]) -> None:
    neuron = Neuron()
    assert after(neuron, lambda: change(neuron)) == CHANGED


def test_values_of_a_tensor_are_not_guarded() -> None:
    neuron = Neuron()
    assert after(neuron, lambda: neuron.weight.data.mul_(2.0)) == UNCHANGED


def test_place_reads_the_tensor_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(1)

    def core(x: Tensor, v: Tensor, gain: Tensor = torch.ones(2)) -> Tensor:
        return v * weight * SHARED_WEIGHT * gain

    places = {place.path: place for place in Reach(core).tensors}
    assert list(places) == ["closure weight", "default gain", "global SHARED_WEIGHT"]
    weight = torch.zeros(1)
    assert places["closure weight"].get() is weight
    monkeypatch.setitem(globals(), "SHARED_WEIGHT", torch.zeros(3))
    assert places["global SHARED_WEIGHT"].get() is SHARED_WEIGHT


def test_tensor_at_two_paths_is_captured_once_and_tied_weights_differ_from_untied() -> None:
    class Pair(nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(2))
            self.b = self.a if tied else nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor, v: Tensor) -> Tensor:
            return v * self.a + self.b

    assert paths(Pair(tied=True)) == ["module.a"]
    assert paths(Pair(tied=False)) == ["module.a", "module.b"]
    assert Reach(Pair(tied=True)).key != Reach(Pair(tied=False)).key


# ---- keys


def test_fifty_layers_with_their_own_parameters_have_one_key() -> None:
    assert len({Reach(Neuron()).key for _ in range(50)}) == 1
    assert len({Reach(Neuron().step).key for _ in range(50)}) == 1
    assert Reach(Neuron(2.0)).key != Reach(Neuron(3.0)).key


def test_functions_of_one_factory_have_one_key() -> None:
    def make(tau: float, weight: Tensor) -> Callable[..., Any]:
        class Spike(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad * tau

        return lambda x, v: Spike.apply(v * weight)

    assert Reach(make(2.0, torch.ones(2))).key == Reach(make(2.0, torch.zeros(2))).key
    assert Reach(make(2.0, torch.ones(2))).key != Reach(make(3.0, torch.ones(2))).key
    assert Reach(make(2.0, torch.ones(2))).key != Reach(make(2.0, torch.ones(3))).key


def test_classes_of_one_factory_have_one_key_where_all_attributes_are_open() -> None:
    def make() -> Callable[..., Any]:
        class Spike(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x

        return lambda x, v: getattr(Spike, "apply")(v)

    assert Reach(make()).key == Reach(make()).key


def test_lambdas_of_a_loop_with_different_values_differ() -> None:
    cores = [lambda x, v, tau=tau: v / tau for tau in (2.0, 3.0, 2.0)]
    keys = [Reach(core).key for core in cores]
    assert keys[0] == keys[2] != keys[1]


def test_two_lambdas_of_one_line_differ() -> None:
    one, other = (lambda x, v: v * 2.0), (lambda x, v: v * 3.0)
    add, subtract = (lambda x, v: v + x), (lambda x, v: v - x)
    sine, cosine = (lambda x, v: torch.sin(v)), (lambda x, v: torch.cos(v))
    first, second = (lambda x, v: x), (lambda x, v: v)
    keys = [Reach(core).key for core in (one, other, add, subtract, sine, cosine, first, second)]
    assert len(set(keys)) == len(keys)


def test_deep_copy_of_a_core_has_an_equal_key() -> None:
    neuron = Neuron()
    assert Reach(copy.deepcopy(neuron)).key == Reach(neuron).key


# ---- cycles and large surroundings


def test_cycles_end() -> None:
    class Node:
        def __init__(self) -> None:
            self.me = self
            self.items: list[Any] = [self]
            self.items.append(self.items)
            self.table = {"me": self, "step": self.step}
            self.alpha = 2.0

        def step(self, x: Tensor, v: Tensor) -> Any:
            return self.me.items[0].table["me"].alpha, recursive(v)

    def recursive(v: Tensor) -> Any:
        return recursive(v)

    node = Node()
    assert after(node.step, lambda: None) == UNCHANGED
    assert Reach(Node().step).key == Reach(Node().step).key
    assert after(node.step, lambda: setattr(node, "alpha", 3.0)) == CHANGED


def test_long_chains_do_not_overflow_the_stack() -> None:
    chain: list[Any] = []
    for _ in range(5000):
        chain = [chain]
    assert Reach(Plain(chain)).current()


def test_hidden_state_of_the_owner_is_not_reached() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._memories = {"states": None}
            self.alpha = 2.0

        def step(self, x: Tensor, v: Tensor) -> Tensor:
            return v * getattr(self, "alpha")

    owner = Stateful()
    assert after(owner.step, lambda: owner._memories.update(states=[torch.ones(1)])) == UNCHANGED


def test_compiled_module_is_reached() -> None:
    neuron = Neuron()
    core = torch.compile(neuron, backend="eager")
    assert any(place.get() is neuron.weight for place in Reach(core).tensors)
    assert after(core, lambda: None) == UNCHANGED


# ---- words


def test_difference_names_what_changed() -> None:
    neuron = Neuron()
    before = Reach(neuron.step)
    assert difference(before, Reach(neuron.step)) == "nothing changed"
    neuron.alpha = 3.0
    assert difference(before, Reach(neuron.step)) == "self.alpha was 2.0 and is 3.0"
    neuron.weight = nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)
    assert difference(before, Reach(neuron.step)).endswith(
        "self.weight was float32 tensor of shape [3] on cpu that requires grad"
        " and is float64 tensor of shape [3] on cpu"
    )


def test_difference_of_code_and_many_values() -> None:
    cores = [lambda x, v: v * 2.0, lambda x, v: v * 3.0]
    assert difference(*map(Reach, cores)) == "the code of core changed"
    words = difference(Reach(Plain([1, 2, 3, 4])), Reach(Plain([5, 6, 7, 8])))
    assert words == (
        "self.alpha[0] was 1 and is 5; self.alpha[1] was 2 and is 6; self.alpha[2] was 3 and is 7; and 1 more"
    )
    words = difference(Reach(Plain([1])), Reach(Plain([1, 2])))
    assert words == "length of self.alpha was 1 and is 2; self.alpha[1] is new: 2"
    words = difference(Reach(Plain(torch.Generator())), Reach(Plain(torch.Generator())))
    assert words == "self.alpha is another object of class Generator"


def test_describe_gives_the_names_of_the_seed() -> None:
    assert describe(helper) == "helper"
    assert describe(lambda x: x) == "<lambda>"
    assert describe(functools.partial(helper, 1)) == "partial(helper)"
    assert describe(Neuron().step) == "step"
    assert describe(Neuron()) == "Neuron"
    assert describe(Plain(1.0)) == "Plain"


def test_source_of_finds_the_code() -> None:
    def line_of(function: Callable[..., Any]) -> tuple[str, int]:
        return function.__code__.co_filename, function.__code__.co_firstlineno

    assert source_of(helper) == line_of(helper)
    assert source_of(functools.partial(helper, 1)) == line_of(helper)
    assert source_of(torch.no_grad()(helper)) == line_of(helper)
    assert source_of(Neuron().step) == line_of(Neuron.step)
    assert source_of(Neuron()) == line_of(Neuron.forward)
    assert source_of(Plain(1.0)) == line_of(Plain.__call__)
    assert source_of(torch.sigmoid) is None
