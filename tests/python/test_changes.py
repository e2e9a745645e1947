"""What a core reads beside its arguments may change: the next call sees it, compiled or not, or fails."""

from __future__ import annotations

import array
import cProfile
import collections
import configparser
import contextvars
import ctypes
import datetime
import functools
import inspect
import io
import itertools
import multiprocessing
import operator
import os
import pathlib
import queue
import random
import resource
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from flexsn import FlexSN, _compiling

X = torch.ones(1, 1)
HERE = sys.modules[__name__]
compiled_or_not = pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])


class Slope(torch.autograd.Function):
    """A surrogate that reads an attribute of its own class."""

    slope = 2.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * Slope.slope

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * Slope.slope


class Scaled:
    def __call__(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.twice(x) * self.factor(1.0), v

    def twice(self, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def factor(number: float) -> float:
        return number


def helper(x: Tensor) -> Tensor:
    return x * 2.0


SCALE = numpy.float64(2.0)
TABLE = {"a": 2.0}
MEMBERS = {1.0, 2.0}
CHAIN = collections.ChainMap({"a": 2.0}, {"b": 1.0})
CONTEXT = contextvars.ContextVar("CONTEXT", default=2.0)
LOCAL = threading.local()
LOCAL.scale = 2.0
NUMBERS = array.array("d", [2.0])
BYTES = bytearray([2])
VIEW = memoryview(BYTES)
SETTINGS = types.ModuleType("settings")
SETTINGS.scale = 2.0
SETTING = "scale"
BY_NAME = {"scaled": Scaled()}
BY_NAME["scaled"].scale = 2.0
WEAK = weakref.ref(BY_NAME["scaled"])
PROXY = weakref.proxy(BY_NAME["scaled"])
WEAK_TABLE = weakref.WeakValueDictionary(BY_NAME)


TENSOR = torch.ones(1)
TENSOR.scale = 2.0
VALUES = TABLE.values()


class Slow:
    def scale(self) -> float:
        return 2.0


class Fast:
    def scale(self) -> float:
        return 3.0


class Changeable(Slow):
    pass


CHANGEABLE = Changeable()


class Meta(type):
    scale = 2.0


class OfMeta(metaclass=Meta):
    pass


class HidesMeta(metaclass=Meta):
    pass


def by(scale: Callable[[], Any]) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A core that reads its scale from somewhere."""
    return lambda x, v: (x * scale(), v)


#: a core that gives 2, and what makes it give something else
SEEN: dict[str, tuple[Callable[..., Any], Callable[[pytest.MonkeyPatch], Any]]] = {
    "a helper function": (
        lambda x, v: (helper(x), v),
        lambda patch: patch.setattr(HERE, "helper", lambda x: x * 3.0),
    ),
    "a method": (Scaled(), lambda patch: patch.setattr(Scaled, "twice", lambda self, x: x * 3.0)),
    "a static method": (
        Scaled(),
        lambda patch: patch.setattr(Scaled, "factor", staticmethod(lambda number: number * 5.0)),
    ),
    "an attribute of an autograd.Function": (
        lambda x, v: (Slope.apply(x), v),
        lambda patch: patch.setattr(Slope, "slope", 3.0),
    ),
    "a NumPy scalar": (by(lambda: SCALE), lambda patch: patch.setattr(HERE, "SCALE", numpy.float64(3.0))),
    "a new key": (by(lambda: sum(TABLE.values())), lambda patch: patch.setitem(TABLE, "b", 1.0)),
    "a new member": (by(lambda: float(len(MEMBERS))), lambda patch: MEMBERS.add(3.0)),
    "a ChainMap": (by(lambda: CHAIN["a"]), lambda patch: patch.setitem(CHAIN.maps[0], "a", 3.0)),
    "a context variable": (by(lambda: CONTEXT.get()), lambda patch: CONTEXT.set(3.0)),
    "a thread's own value": (by(lambda: LOCAL.scale), lambda patch: patch.setattr(LOCAL, "scale", 3.0)),
    "an array": (by(lambda: NUMBERS[0]), lambda patch: NUMBERS.__setitem__(0, 3.0)),
    "a bytearray": (by(lambda: float(BYTES[0])), lambda patch: BYTES.__setitem__(0, 3)),
    "a view of memory": (by(lambda: float(VIEW[0])), lambda patch: BYTES.__setitem__(0, 3)),
    "globals() by a constant key": (
        by(lambda: globals()["SCALE"]),
        lambda patch: patch.setattr(HERE, "SCALE", numpy.float64(3.0)),
    ),
    "globals().get": (
        by(lambda: globals().get("SCALE", 1.0)),
        lambda patch: patch.setattr(HERE, "SCALE", numpy.float64(3.0)),
    ),
    "a module in sys.modules": (
        by(lambda: getattr(sys.modules[__name__], "SCALE")),  # noqa: B009
        lambda patch: patch.setattr(HERE, "SCALE", numpy.float64(3.0)),
    ),
    "an attribute of a module by a constant name": (
        by(lambda: getattr(SETTINGS, "scale", 1.0)),
        lambda patch: patch.setattr(SETTINGS, "scale", 3.0),
    ),
    "an attribute of a module by a name found elsewhere": (
        by(lambda: getattr(SETTINGS, SETTING)),
        lambda patch: patch.setattr(SETTINGS, "scale", 3.0),
    ),
    "what a weak reference leads to": (
        by(lambda: WEAK().scale),
        lambda patch: patch.setattr(BY_NAME["scaled"], "scale", 3.0),
    ),
    "what a weak proxy leads to": (
        by(lambda: PROXY.scale),
        lambda patch: patch.setattr(BY_NAME["scaled"], "scale", 3.0),
    ),
    "a table of weak references": (
        by(lambda: WEAK_TABLE["scaled"].scale),
        lambda patch: patch.setattr(BY_NAME["scaled"], "scale", 3.0),
    ),
    "an attribute of a metaclass": (
        by(lambda: OfMeta.scale),
        lambda patch: patch.setattr(Meta, "scale", 3.0),
    ),
    "an attribute that hides that of a metaclass": (
        by(lambda: HidesMeta.scale),
        lambda patch: patch.setattr(HidesMeta, "scale", 3.0, raising=False),
    ),
    "an attribute of a tensor": (
        by(lambda: TENSOR * TENSOR.scale),
        lambda patch: patch.setattr(TENSOR, "scale", 3.0),
    ),
    "an attribute that a tensor gets": (
        by(lambda: TENSOR * getattr(TENSOR, "other_scale", 2.0)),
        lambda patch: patch.setattr(TENSOR, "other_scale", 3.0, raising=False),
    ),
    "a view of a dict": (by(lambda: sum(VALUES)), lambda patch: patch.setitem(TABLE, "a", 3.0)),
    "the bases of a class": (
        by(lambda: CHANGEABLE.scale()),
        lambda patch: setattr(Changeable, "__bases__", (Fast,)),
    ),
    "sys.argv": (
        by(lambda: 2.0 + ("more" in sys.argv)),
        lambda patch: patch.setattr(sys, "argv", [*sys.argv, "more"]),
    ),
    "os.environ": (
        by(lambda: float(os.environ.get("FLEXSN_TEST_SCALE", 2))),
        lambda patch: patch.setenv("FLEXSN_TEST_SCALE", "3"),
    ),
    "os.environb": (
        by(lambda: float(os.environb.get(b"FLEXSN_TEST_SCALE", 2))),
        lambda patch: patch.setenv("FLEXSN_TEST_SCALE", "3"),
    ),
    "os.getenv": (
        by(lambda: float(os.getenv("FLEXSN_TEST_SCALE", "2"))),
        lambda patch: patch.setenv("FLEXSN_TEST_SCALE", "3"),
    ),
}


@compiled_or_not
@pytest.mark.parametrize("what", SEEN)
def test_a_change_is_seen_by_the_next_call(
    what: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, change = SEEN[what]
    module = FlexSN(core, 1, 1, 1)
    call = torch.compile(module, fullgraph=True, backend="eager") if compiled else module

    def run() -> list[float]:
        before = call(X).item()
        with monkeypatch.context() as patch:
            change(patch)
            module.reset()
            return [before, call(X).item()]

    before, after = contextvars.copy_context().run(run)
    assert before == 2.0 and after != 2.0
    MEMBERS.discard(3.0)
    NUMBERS[0], BYTES[0] = 2.0, 2
    Changeable.__bases__ = (Slow,)
    module.reset()
    assert call(X).item() == 2.0


def test_a_threads_own_value_is_that_of_the_calling_thread() -> None:
    module, found = FlexSN(by(lambda: LOCAL.scale), 1, 1, 1), []

    def run() -> None:
        LOCAL.scale = 5.0
        found.append(module(X).item())

    assert module(X).item() == 2.0
    module.reset()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [5.0]


def test_compiled_code_is_used_again_while_nothing_changes() -> None:
    graphs = []
    module = FlexSN(Scaled(), 1, 1, 1)

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    call = torch.compile(module, fullgraph=True, backend=backend)
    for _ in range(4):
        module.reset()
        call(X)
    assert len(graphs) == 1


def test_an_equal_value_in_place_of_another_compiles_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FlexSN(by(lambda: SCALE), 1, 1, 1)
    call = torch.compile(module, fullgraph=True, backend="eager")
    call(X)
    module.reset()
    monkeypatch.setattr(HERE, "SCALE", numpy.float64(2.0))
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert call(X).item() == 2.0


@pytest.mark.parametrize("what", ["an attribute of an autograd.Function", "a helper function"])
def test_a_torch_without_our_guards_still_compiles(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiling, "guard", lambda *_: False)
    module = FlexSN(SEEN[what][0], 1, 1, 1)
    assert torch.compile(module, fullgraph=True, backend="eager")(X).item() == 2.0


def test_a_torch_without_our_guards_still_sees_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiling, "guard", lambda *_: False)
    core = Scaled()
    core.factor = 3.0
    module = FlexSN(lambda x, v: (x * core.factor, v), 1, 1, 1)
    call = torch.compile(module, fullgraph=True, backend="eager")
    assert call(X).item() == 3.0
    core.factor = 4.0
    module.reset()
    assert call(X).item() == 4.0


# ---- what is another thing at each call --------------------------------------------------------------------

COUNTER = itertools.count()
GENERATED = (number for number in range(10))
GENERATOR = numpy.random.default_rng(1)
DICE = random.Random(1)


FILE = pathlib.Path(__file__)
TEXT = io.StringIO("2")
INTEGER = ctypes.c_int(2)
SHARED = multiprocessing.Value("d", 2.0)


def imported(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    from time import monotonic

    return x * monotonic(), v


REFUSED = {
    "time.time": by(lambda: time.time()),
    "time.perf_counter": by(lambda: perf_counter()),
    "time.monotonic": imported,
    "datetime.datetime.now": by(lambda: datetime.datetime.now().second),
    "os.urandom": by(lambda: os.urandom(1)[0]),
    r"an iterator \(count\)": by(lambda: next(COUNTER)),
    r"an iterator \(generator\)": by(lambda: next(GENERATED)),
    r"a generator of random numbers \(Generator\)": by(lambda: GENERATOR.random()),
    r"a generator of random numbers \(Random\)": by(lambda: DICE.random()),
    "torch.is_grad_enabled": by(lambda: 2.0 if torch.is_grad_enabled() else 1.0),
    "torch.is_inference_mode_enabled": by(lambda: 2.0 if torch.is_inference_mode_enabled() else 1.0),
    r"open\(\)": by(lambda: len(open(__file__).read())),  # noqa: SIM115
    r"a file \(PosixPath.read_text\)": by(lambda: len(FILE.read_text())),
    r"a file \(Path.read_bytes\)": by(lambda: len(pathlib.Path(__file__).read_bytes())),
    r"a file \(StringIO.read\)": by(lambda: float(TEXT.read() or 0)),
    "os.path.getsize": by(lambda: os.path.getsize(__file__)),
    "os.getcwd": by(lambda: len(os.getcwd())),
    r"eval\(\)": by(lambda: eval("SCALE")),
    r"globals\(\)": by(lambda: globals()[SETTING.upper()]),
    r"globals\(\)(?:)": by(lambda: dict.get(globals(), "SCALE")),
    r"globals\(\)(?:)(?:)": by(lambda: (lambda: globals())()["SCALE"]),
    r"id\(\)": lambda x, v: (x * (id(x) % 97), v),
    r"hash\(\) of a tensor": lambda x, v: (x * (hash(x) % 97), v),
    "sys.getrefcount": lambda x, v: (x * sys.getrefcount(x), v),
    "sys._getframe": by(lambda: sys._getframe(1).f_lineno),
    "inspect.currentframe": by(lambda: inspect.currentframe().f_back.f_lineno),
    "sys.getrecursionlimit": by(lambda: getattr(sys, "getrecursionlimit")()),  # noqa: B009
    r"memory that Python does not watch \(c_int\)": by(lambda: INTEGER.value),
    r"memory that Python does not watch \(Synchronized\)": by(lambda: SHARED.value),
    "os.path.expandvars": by(lambda: float(os.path.expandvars("$FLEXSN_TEST_SCALE") or 2)),
    "resource.getrusage": by(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_utime),
    "torch.is_autocast_enabled": by(lambda: 2.0 if torch.is_autocast_enabled("cpu") else 1.0),
}


@compiled_or_not
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_another_thing_at_each_call_is_refused(what: str, compiled: bool) -> None:
    module = FlexSN(REFUSED[what], 1, 1, 1)
    call = torch.compile(module, fullgraph=True, backend="eager") if compiled else module
    with pytest.raises(
        Exception,
        match=rf"\(.*\) reads {what}, which may be something else at each call, .* backend=\"torch\"",
    ):
        call(X)


def test_the_line_that_reads_the_time_is_named() -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * time.time(), v

    line = core.__code__.co_firstlineno + 1
    with pytest.raises(ValueError, match=rf"test_changes.py:{line}\) reads time.time"):
        FlexSN(core, 1, 1, 1)(X)


def test_a_module_of_which_nothing_changing_is_read_may_be_named() -> None:
    assert FlexSN(lambda x, v: (x * len(time.tzname), v), 1, 1, 1)(X).item() == len(time.tzname)


@functools.lru_cache
def kept_list() -> list[float]:
    return [2.0]


@functools.cache
def kept_tensor(number: float) -> Tensor:
    return torch.tensor(number)


@functools.lru_cache
def kept_numbers(owner: Any, number: float) -> tuple[float, ...]:
    return (number, 1.0)


@pytest.mark.parametrize(
    "core, kind",
    [
        (by(lambda: kept_list()[0]), "kept_list .*, a list,"),
        (by(lambda: kept_tensor(2.0)), "kept_tensor .*, a "),
    ],
    ids=["list", "tensor"],
)
def test_what_a_cached_function_keeps_is_refused_where_it_can_change(
    core: Callable[..., Any], kind: str
) -> None:
    module = FlexSN(core, 1, 1, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"reads what {kind}.*outside the core.*backend=\"torch\""):
            module(X)
    assert type(kept_tensor(2.0)) is Tensor and kept_tensor(2.0).item() == 2.0


def test_a_cached_function_may_keep_numbers() -> None:
    owner = Scaled()
    assert FlexSN(by(lambda: kept_numbers(owner, 2.0)[0]), 1, 1, 1)(X).item() == 2.0


NAMES = {"a": 2.0, 3: 4.0}


def test_hashes_of_constants_and_dicts_of_tensors_are_fine() -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        places = {x: 2.0, v: 3.0}
        key = "a"
        return x * places[x] * NAMES[key] + (hash(key) == hash("a")) + hash(1.0) + hash((1, "b")) * 0, v

    assert FlexSN(core, 1, 1, 1)(X).item() == 6.0


@pytest.mark.parametrize(
    "read",
    [
        lambda x: next(map(hash, [x])),
        lambda x: sum(map(hash, [x])),
        lambda x: x.__hash__(),
        lambda x: torch.Tensor.__hash__(x),
        lambda x: hash(frozenset([x])),
        lambda x: [number for number in map(hash, (x,))][0],
        lambda x: functools.partial(hash)(x),
        lambda x: operator.methodcaller("__hash__")(x),
        lambda x: object.__hash__(x),
    ],
    ids=[
        "next of map", "sum of map", "method", "function", "frozenset", "loop over map", "partial",
        "methodcaller", "object",
    ],
)  # fmt: skip
def test_the_hash_of_a_tensor_is_seen_also_where_hash_is_not_called(read: Callable[[Tensor], int]) -> None:
    with pytest.raises(ValueError, match=r"reads (hash\(\) of a tensor|object.__hash__, where a thing lies)"):
        FlexSN(lambda x, v: (x * (read(x) % 97), v), 1, 1, 1)(X)


@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_containers_that_a_core_fills_are_as_they_were_after_what_nobody_asked_for(backend: str) -> None:
    log, counts, seen = [1.0], {"steps": 0}, {"a"}
    last, words = collections.deque([1, 2], maxlen=2), collections.Counter(a=2)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        log.append(2.0)
        counts["steps"] += 1
        seen.add("b")
        last.append(3)
        words["a"] += 1
        return x * log[0], v

    def is_as_it_was() -> bool:
        return (log, counts, seen, list(last), words) == ([1.0], {"steps": 0}, {"a"}, [1, 2], {"a": 2})

    module = FlexSN(core, 1, 1, 1, backend=backend)
    assert is_as_it_was()
    if backend == "torch":
        module(torch.ones(3, 1))
        assert (log, counts, seen) == ([1.0, 2.0, 2.0, 2.0], {"steps": 3}, {"a", "b"})
        return
    with pytest.raises(ValueError, match="changes what it does not return"):
        module(torch.ones(3, 1))
    assert is_as_it_was()


def adam() -> torch.optim.Optimizer:
    return torch.optim.Adam([torch.zeros(1, requires_grad=True)])


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (adam, lambda held: held.param_groups[0]["lr"]),
        (lambda: torch.optim.lr_scheduler.StepLR(adam(), 1), lambda held: held.get_last_lr()[0]),
        (queue.Queue, lambda held: held.qsize()),
        (queue.SimpleQueue, lambda held: held.qsize()),
        (threading.Event, lambda held: held.is_set()),
        (configparser.ConfigParser, lambda held: len(held.sections())),
    ],
    ids=["optimizer", "scheduler", "queue", "simple queue", "event", "configuration"],
)
def test_objects_that_hold_what_changes_cannot_be_read(make: Callable, read: Callable) -> None:
    held = make()
    with pytest.raises(ValueError, match=r"an object that holds what changes \(") as raised:
        FlexSN(lambda x, v: (x * read(held), v), 1, 1, 1)(X)
    assert "test_changes.py" in str(raised.value) or "closure" in str(raised.value)


def seen_by_cprofile(call: Callable[[], Any]) -> bool:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        call()
        hex(3)
    finally:
        profiler.disable()
    return any("hex" in str(entry.code) for entry in profiler.getstats())


def seen_by_a_function(call: Callable[[], Any]) -> bool:
    seen: list[Any] = []
    sys.setprofile(lambda frame, event, what: seen.append(what))
    try:
        call()
        hex(3)
    finally:
        sys.setprofile(None)
    return hex in seen


@pytest.mark.parametrize("profiled", [seen_by_cprofile, seen_by_a_function])
def test_hashes_are_watched_beside_a_profiler(profiled: Callable[[Callable[[], Any]], bool]) -> None:
    tensors = FlexSN(lambda x, v: (x * (hash(x) % 97), v), 1, 1, 1)
    with pytest.raises(ValueError, match=r"reads hash\(\) of a tensor"):
        profiled(lambda: tensors(X))
    assert profiled(lambda: FlexSN(lambda x, v: (x * hash(2), v), 1, 1, 1)(X)), "the profiler sees no more"


def test_a_profiler_that_cannot_be_put_back_is_left_alone() -> None:
    see = ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    )
    callback, owner = see(lambda *_: 0), types.SimpleNamespace()
    set_profile = ctypes.pythonapi.PyEval_SetProfile
    set_profile.argtypes = [see, ctypes.py_object]
    module = FlexSN(lambda x, v: (x * hash(2), v), 1, 1, 1)
    set_profile(callback, owner)
    try:
        assert module(X).item() == 2.0 and sys.getprofile() is owner
    finally:
        sys.setprofile(None)


def test_a_path_may_be_named_without_being_read() -> None:
    assert FlexSN(by(lambda: len(FILE.suffix)), 1, 1, 1)(X).item() == 3.0


def test_the_line_that_reads_a_file_is_named() -> None:
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * len(FILE.read_text()), v

    line = core.__code__.co_firstlineno + 1
    with pytest.raises(ValueError, match=rf"test_changes.py:{line}\) reads a file"):
        FlexSN(core, 1, 1, 1)(X)


@pytest.mark.parametrize(
    "name",
    ["requires_grad", "is_leaf", "grad_fn", "grad", "_version", "is_contiguous()", "stride(0)", "data_ptr()",
     "storage_offset()", "is_inference()", "is_shared()"],
)  # fmt: skip
def test_how_a_tensor_came_to_be_or_lies_in_memory_cannot_be_read(name: str) -> None:
    core = eval(f"lambda x, v: (x * (2.0 if x.{name} else 1.0), v + x)")
    with pytest.raises(ValueError, match=rf":1\): reads .{name.split('(')[0]} of a tensor, .*choose outside"):
        FlexSN(core, 1, 1, 1)(X)


def test_requires_grad_of_a_captured_tensor_may_be_read() -> None:
    level = torch.ones(1, requires_grad=True)
    module = FlexSN(lambda x, v: (x * level * (2.0 if level.requires_grad else 1.0), v + x), 1, 1, 1)
    assert module(X).item() == 2.0
    level.requires_grad_(False)
    module.reset()
    assert module(X).item() == 1.0


def test_torchs_own_functions_may_read_what_they_like() -> None:
    module = FlexSN(lambda x, v: (torch.nn.functional.gelu(x), v + x), 1, 1, 1)
    assert module(X).shape == X.shape
