"""A call that is like the one before it takes the short way to the operator, and gives the same."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import flexsn
from flexsn import fused, surrogate
from flexsn._guards import unchanged
from flexsn._library import calls
from flexsn._reach import Reach

pytestmark = pytest.mark.skipif(calls is None, reason="the short way is not built: no Python.h")


spike = surrogate.ATan()


def lif(x, v):
    h = v + (x - v) / 2
    s = spike(h - 1)
    return s, h * (1 - s)


def two_inputs_three_states(x, y, a, b, c):
    a = a * 0.5 + x
    b = b + a * y
    return b - c, a, b, torch.tanh(c + x)


def no_output(x, v):
    return v * 0.5 + x


class PerChannel(nn.Module):
    """The kernel's parameter is made of the module's outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.linspace(-1, 1, 3))

    def forward(self, x, v):
        h = v + (x - v) * nn.functional.softplus(self.raw).view(-1, 1)
        s = spike(h - 1)
        return s, h - s


CORES = [
    pytest.param(lif, 1, 1, id="lif"),
    pytest.param(two_inputs_three_states, 2, 3, id="two inputs, three states"),
    pytest.param(no_output, 1, 1, id="no output"),
    pytest.param(PerChannel(), 1, 1, id="a parameter per channel"),
]


@contextlib.contextmanager
def the_long_way():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused.Fused, "_call_of", lambda *_: None)
        yield


@contextlib.contextmanager
def only_the_short_way():
    def refused(*_):
        raise AssertionError("the long way was taken")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused.Fused, "ready", refused)
        yield


def results_of(run: fused.Fused, inputs: list[Tensor], states, sequences: bool, learning: list[Tensor]) -> list:
    """Everything that two calls in a row give, the second of which starts where the first one ended."""
    found = []
    for _ in range(2):
        outputs, left = run(tuple(inputs), states, (), sequences)
        found += [*outputs, *left]
        states = [state[-1] if sequences else state for state in left]
    if learning:
        loss = sum((tensor * torch.arange(1, tensor.numel() + 1).view(tensor.shape)).sum() for tensor in found)
        found += torch.autograd.grad(loss, learning)
    return found


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("core", "num_inputs", "num_states"), CORES)
def test_the_short_way_gives_the_bits_of_the_long_way(core, num_inputs, num_states, trained, sequences, steps):
    inputs = [torch.randn(steps, 3, 7).mul(3).requires_grad_(trained) for _ in range(num_inputs)]
    states = [torch.randn(3, 7) for _ in range(num_states)]
    learning = [*inputs, *(core.parameters() if isinstance(core, nn.Module) else ())] if trained else []
    run = fused.Fused(core, num_inputs, num_states, None)
    with the_long_way(), torch.set_grad_enabled(trained):
        expected = results_of(run, inputs, states, sequences, learning)
    run = fused.Fused(core, num_inputs, num_states, None)
    run(tuple(inputs), states)
    partly = trained and core is two_inputs_three_states  # some results depend on some arguments only
    with contextlib.nullcontext() if partly else only_the_short_way(), torch.set_grad_enabled(trained):
        found = results_of(run, inputs, states, sequences, learning)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert torch.equal(one, other) and one.dtype == other.dtype
        assert one.requires_grad == other.requires_grad


def test_a_module_takes_the_short_way_from_its_second_call_on():
    module, x = flexsn.FlexSN(lif, num_states=1), torch.randn(4, 9, requires_grad=True)
    first = module(x)
    module.reset()
    with only_the_short_way():
        assert torch.equal(module(x), first)
    with only_the_short_way(), pytest.raises(AssertionError, match="the long way"):
        module(x)  # with states it is another kind of call


def test_another_kind_of_call_goes_the_long_way_and_is_right():
    run = fused.Fused(lif, 1, 1, None)
    x = torch.randn(4, 9) * 3
    run((x,))
    for other in (x.double(), x[:, :, None], x[0], x.half(), x.requires_grad_()):
        outputs, states = run((other,))
        expected, last = fused.Fused(lif, 1, 1, None)((other,))
        assert torch.equal(outputs[0], expected[0]) and torch.equal(states[0], last[0])
        assert outputs[0].dtype == other.dtype and outputs[0].shape == other.shape
    outputs, states = run((x.detach(),), [torch.ones(9)])
    assert torch.equal(outputs[0][0], ((1 + (x[0] - 1) / 2) >= 1).float())


def test_what_a_core_captures_is_looked_at_before_each_call():
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = 2.0
            self.weight = nn.Parameter(torch.tensor(3.0))

        def forward(self, x):
            return x * self.gain * self.weight

    core, x = Gain(), torch.ones(2, 3)
    run = fused.Fused(core, 1, 0, None)
    assert all(run((x,))[0][0].eq(6).all() for _ in range(3))
    core.gain = 5.0
    assert all(run((x,))[0][0].eq(15).all() for _ in range(2))
    with torch.no_grad():
        core.weight.fill_(1)
    assert all(run((x,))[0][0].eq(5).all() for _ in range(2))
    core.weight = nn.Parameter(torch.full((3,), 2.0))
    assert all(run((x,))[0][0].eq(10).all() for _ in range(2))
    core.weight.requires_grad_(False)
    assert not any(run((x,))[0][0].requires_grad for _ in range(2))


ERRORS = [
    pytest.param(lambda x: ((x,), [torch.zeros(4)]), ValueError, id="a state of another shape"),
    pytest.param(lambda x: ((x,), [None]), TypeError, id="a state that is None"),
    pytest.param(lambda x: ((x,), []), ValueError, id="no states"),
    pytest.param(lambda x: ((x, x), [torch.zeros(3)]), ValueError, id="an input too many"),
    pytest.param(lambda x: ((), [torch.zeros(3)]), ValueError, id="no input"),
    pytest.param(lambda x: ((x.to_sparse(),), [torch.zeros(3)]), TypeError, id="a sparse tensor"),
    pytest.param(lambda x: ((x.to("meta"),), [torch.zeros(3)]), RuntimeError, id="two devices"),
]


@pytest.mark.parametrize(("arguments", "kind"), ERRORS)
def test_errors_are_those_of_the_long_way(arguments, kind):
    x = torch.ones(2, 3)
    messages = []
    for way in (the_long_way, contextlib.nullcontext):
        with way():
            run = fused.Fused(lif, 1, 1, None)
            run((x,), [torch.zeros(3)])
            with pytest.raises(Exception) as caught:
                run(*arguments(x))
            messages.append((type(caught.value), str(caught.value)))
            outputs, _ = run((x,), [torch.ones(3)])
            assert outputs[0][0].eq(1).all()  # nothing half-done remains
    assert messages[0] == messages[1]
    assert issubclass(messages[0][0], kind), messages[0]


def test_a_default_device_leaves_the_short_way_open():
    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    run, x = fused.Fused(lif, 1, 1, None), torch.randn(3, 5)
    expected = run((x,))[0][0]
    with torch.device(x.device):
        assert torch.equal(run.again((x,), None)[0][0], expected)
        with Functions():
            assert run.again((x,), None) is None


def test_modes_and_transforms_see_the_operator():
    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    run, x = fused.Fused(lif, 1, 1, None), torch.randn(3, 5, requires_grad=True)
    run((x,))
    for mode in (Functions, Operators):
        seen: list[str] = []
        with mode():
            run((x,))
        assert any("training_final_state" in name for name in seen), seen
    with pytest.raises(NotImplementedError, match="do not run under torch.func.grad"):
        torch.func.grad(lambda x: run((x,))[0][0].sum())(x.detach())
    with pytest.raises(NotImplementedError, match="does not run under vmap"):
        torch.vmap(lambda x: run((x,))[0][0], in_dims=1)(x.detach())


def test_what_is_made_of_parameters_is_made_once_a_call():
    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counted.append(str(func))
            return func(*args, **(kwargs or {}))

    run, x = fused.Fused(PerChannel(), 1, 1, None), torch.randn(4, 3, 7)
    for _ in range(3):
        for mode in (contextlib.nullcontext(), torch.device("cpu")):  # the latter is a mode of torch's functions
            counted: list[str] = []
            with mode, Count():
                run((x,))
            assert len([name for name in counted if "softplus" in name]) == 1, counted


def test_parameters_under_a_gradient_transform_are_refused_at_each_call():
    run, x = fused.Fused(PerChannel(), 1, 1, None), torch.randn(4, 3, 7)
    for _ in range(3):
        with pytest.raises(NotImplementedError, match="do not run under torch.func.grad"):
            torch.func.grad(lambda w: (run((x,))[0][0] * w).sum())(torch.tensor(1.0))
        run((x,))


def test_a_subclass_of_tensor_goes_the_long_way():
    class Named(Tensor):
        pass

    run, x = fused.Fused(lif, 1, 1, None), torch.randn(3, 5)
    expected, _ = run((x,))
    with only_the_short_way(), pytest.raises(AssertionError, match="the long way"):
        run((x.as_subclass(Named),))
    assert torch.equal(run((x.as_subclass(Named),))[0][0].as_subclass(Tensor), expected[0])


def test_other_threads_run_while_an_operator_does():
    run, x = fused.Fused(lif, 1, 1, None), torch.randn(64, 200_000)
    run((x[:1, :3],))
    steps = 0
    done = threading.Event()

    def call():
        for _ in range(3):
            run((x,))
        done.set()

    thread = threading.Thread(target=call)
    thread.start()
    while not done.is_set():
        steps += 1
    thread.join()
    assert steps > 1000


def test_without_it_all_goes_the_long_way(tmp_path: pathlib.Path):
    """As where the package serves a Python that it was not built for."""
    library = pathlib.Path(calls.__file__).parent / "libflexsn_torch.so"
    for name in ("libflexsn_torch.so", "libflexsn_torch.txt", "libflexsn_llvm.so"):
        (tmp_path / name).symlink_to(library.with_name(name))
    code = """
import torch, flexsn
from flexsn._library import calls
module, x = flexsn.FlexSN(lambda x, v: (x * v + 1, x + v), num_states=1), torch.ones(3, 2)
found = [module(x)[-1, 0].item() for _ in range(2)]
print(calls, found)
"""
    environment = {"FLEXSN_LIBRARY": str(tmp_path / "libflexsn_torch.so"), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "None [3.0, 6.0]"


class Reader:
    """Reads an attribute of its own, one of a class, a closure's variable, a global and a default."""

    scale = 0.5

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.numbers = [1.0, 2.0]
        cell = 2.0

        def inner(x, factor=3.0, *, shift=4.0):
            return x * cell * factor + shift

        def set_cell(value):
            nonlocal cell
            if value is None:
                del cell
            else:
                cell = value

        self.inner, self.set_cell = inner, set_cell

    def __call__(self, x, v):
        v = v * self.scale + self.inner(x) * self.tensor + self.numbers[0] + a_global
        return v, v


a_global = 1.5


class Other(Reader):
    pass


def _new_global(reader: Reader) -> None:
    globals()["a_global"] = 2.5


def _no_global(reader: Reader) -> None:
    del globals()["a_global"]


CHANGES = {
    "nothing": lambda reader: None,
    "an attribute": lambda reader: setattr(reader, "tensor", torch.ones(2)),
    "an attribute goes": lambda reader: delattr(reader, "tensor"),
    "an attribute hides that of the class": lambda reader: setattr(reader, "scale", 0.25),
    "the class's attribute": lambda reader: setattr(Reader, "scale", 0.25),
    "the class": lambda reader: setattr(reader, "__class__", Other),
    "the dict": lambda reader: setattr(reader, "__dict__", dict(reader.__dict__)),
    "a cell": lambda reader: reader.set_cell(5.0),
    "an empty cell": lambda reader: reader.set_cell(None),
    "code": lambda reader: setattr(reader.inner, "__code__", Reader(torch.ones(2)).inner.__code__.replace(co_name="x")),
    "a default": lambda reader: setattr(reader.inner, "__defaults__", (4.0,)),
    "a default goes": lambda reader: setattr(reader.inner, "__defaults__", None),
    "a default by name": lambda reader: setattr(reader.inner, "__kwdefaults__", {"shift": 1.0}),
    "a default by name in place": lambda reader: reader.inner.__kwdefaults__.update(shift=1.0),
    "an element": lambda reader: reader.numbers.__setitem__(0, 9.0),
    "a length": lambda reader: reader.numbers.append(3.0),
    "a global": _new_global,
    "no global": _no_global,
    "requires_grad": lambda reader: reader.tensor.requires_grad_(),
    "a tensor's type": lambda reader: setattr(reader.tensor, "data", reader.tensor.double()),
    "a tensor's shape": lambda reader: setattr(reader.tensor, "data", torch.ones(1, 2)),
    "a tensor's size": lambda reader: setattr(reader.tensor, "data", torch.ones(1)),
    "the default type": lambda reader: torch.set_default_dtype(torch.float64),
}


@pytest.mark.parametrize("subclass", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_both_ways_to_ask_see_the_same_changes(change, subclass):
    tensor = torch.ones(2)
    if subclass:
        tensor = tensor.as_subclass(type("Named", (Tensor,), {}))
    reader = Reader(tensor)
    guards = Reach(reader).guards
    assert calls.unchanged(guards) is unchanged(guards) is True
    try:
        CHANGES[change](reader)
        assert calls.unchanged(guards) is unchanged(guards) is (change == "nothing")
    finally:
        Reader.scale = 0.5
        globals()["a_global"] = 1.5
        torch.set_default_dtype(torch.float32)


def test_what_a_guard_raises_is_raised_by_both_ways_to_ask():
    guards = Reach(lif).guards
    for error, raised in ((OSError("gone"), True), (AttributeError("gone"), False)):

        def fail(error=error):
            raise error

        failing = guards._replace(contents=(fail,))
        for ask in (calls.unchanged, unchanged):
            if raised:
                with pytest.raises(OSError, match="gone"):
                    ask(failing)
            else:
                assert ask(failing) is False


def of_its_device(x, v):
    scale = 2.0 if x.device.type == "meta" else 0.5
    return x * scale * torch.linspace(0, 1, 7, device=x.device) + v, v


@pytest.mark.parametrize("way", [contextlib.nullcontext, the_long_way])
def test_another_device_is_another_trace(way):
    x = torch.randn(4, 7)
    with way():
        run = fused.Fused(of_its_device, 1, 1, 1)
        here = run([x])[0][0]
        text = run._held.trace.text
        for _ in range(2):
            there = run([x.to("meta")])[0][0]
            assert there.device.type == "meta" and "2 " in run._held.trace.text != text
            assert torch.equal(run([x])[0][0], here) and run._held.trace.text == text


def test_wrong_uses_of_the_module_are_errors():
    with pytest.raises(TypeError, match="6 arguments, found 1"):
        calls.again(None)
    with pytest.raises(ValueError, match="PyCapsule"):
        calls.again(object(), (), (), None, [], False)
    with pytest.raises(TypeError, match="4 arguments, found 0"):
        calls.fits()
    for wrong in ((), [], tuple([()] * 8), None):
        with pytest.raises(TypeError, match="expected the guards of a Reach"):
            calls.unchanged(wrong)
    with pytest.raises(TypeError, match="torch.dtype"):
        calls.like("neuron", True, 1, 1, 2, torch.device("cpu"), (float,), None)
    with pytest.raises(ValueError, match="an input"):
        calls.like("neuron", True, 1, 1, 2, torch.device("cpu"), (), None)
    with pytest.raises(TypeError, match="torch.device"):
        calls.like("neuron", True, 1, 1, 2, "cpu", (torch.float32,), None)
