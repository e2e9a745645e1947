"""Faults around a call: after each there is a clear error or a right result, and the next call works."""

from __future__ import annotations

import itertools
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from cores import by_loop

import torch
from flexsn import FlexSN, neurons
from flexsn._interrupts import interrupts_held
from torch import Tensor, nn

X = torch.linspace(-1.0, 2.0, 24).view(4, 2, 3)
_numbers = itertools.count(1)


def fresh_core() -> Callable[..., Any]:
    """A core that no call has traced before: its constant makes it so."""
    leak = 0.5 + next(_numbers) / 2.0**14

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * leak + x
        for _ in range(8):  # so that tracing and compiling take a while
            h = h * 0.5 + x * h
        return h * x, h

    return core


def is_right(neuron: FlexSN, x: Tensor = X) -> None:
    """A call from the start, outputs and gradient, against the loop."""
    neuron.reset()
    given, law = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = neuron(given)
    [expected], _, _ = by_loop(neuron.core, [law], [torch.zeros_like(x[0])])
    assert torch.equal(y, expected)
    y.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(given.grad, law.grad)


def is_right_in_a_thread(neuron: FlexSN, x: Tensor = X) -> None:
    """The same where a lock that stayed held is noticed and does not hang the tests."""
    done: list[Any] = []

    def work() -> None:
        try:
            done.append(is_right(neuron, x))
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert done == [None], done or "it waits for ever"


# ---- exceptions of the user's code -------------------------------------------------------------------------


class Switched:
    """A core that raises while its fault is switched on."""

    def __init__(self) -> None:
        self.core = fresh_core()
        self.fault: list[str] = []

    def __call__(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.fault:
            raise LookupError(self.fault[0])
        return self.core(x, v)


def test_a_core_that_raises_at_its_first_trace_is_traced_by_the_next_call() -> None:
    core = Switched()
    core.fault.append("at first")
    neuron = FlexSN(core, num_inputs=1, num_states=1, num_outputs=1)
    for _ in range(2):
        with pytest.raises(LookupError, match="at first"):
            neuron(X)
        assert neuron.states is None
    core.fault.clear()
    is_right_in_a_thread(neuron)


def test_a_core_that_raises_at_its_second_trace_keeps_what_the_first_left() -> None:
    core = Switched()
    neuron = FlexSN(core, num_inputs=1, num_states=1, num_outputs=1)
    neuron(X)
    [before] = neuron.states
    core.fault.append("later")
    with pytest.raises(LookupError, match="later"):
        neuron(X)
    with pytest.raises(LookupError, match="later"):
        neuron(X.double())
    assert neuron.states[0] is before
    core.fault.clear()
    is_right_in_a_thread(neuron)
    is_right_in_a_thread(neuron, X.double())


def test_a_surrogate_that_raises_is_traced_by_the_next_call() -> None:
    fault = ["in backward"]

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, u: Tensor) -> Tensor:
            return (u >= 0).to(u)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            if fault:
                raise LookupError(fault[0])
            return grad * 0.5

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * 0.375 + x
        return Spike.apply(h - 1.0), h

    neuron = FlexSN(core, num_states=1)
    with pytest.raises(RuntimeError, match=r"test_faults.py:\d+\).* raises LookupError: in backward"):
        neuron(X.clone().requires_grad_())
    fault.clear()
    is_right_in_a_thread(neuron)


def test_init_states_that_raises_leaves_the_module_as_it_was() -> None:
    fault = ["no states today"]

    class Started(FlexSN):
        @staticmethod
        def init_states(num_states: int, step_mode: str, *inputs: Tensor) -> list[Tensor]:
            if fault:
                raise LookupError(fault[0])
            return [torch.zeros_like(inputs[0][0])]

    neuron = Started(fresh_core(), num_states=1)
    for _ in range(2):
        with pytest.raises(LookupError, match="no states today"):
            neuron(X)
        assert neuron.states is None
    fault.clear()
    is_right_in_a_thread(neuron)


@pytest.mark.parametrize("where", ["output", "input", "parameter"])
def test_a_hook_that_raises_in_backward_harms_no_later_one(where: str) -> None:
    class Core(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leak = nn.Parameter(torch.tensor([0.25, 0.5, 0.75]))

        def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            h = v * self.leak + x
            return h * x, h

    def stop(gradient: Tensor) -> None:
        raise LookupError("from a hook")

    neuron = FlexSN(Core(), num_states=1)
    x = X.clone().requires_grad_()
    y = neuron(x)
    hooked = {"output": y, "input": x, "parameter": neuron.core.leak}[where]
    hook = hooked.register_hook(stop)
    for _ in range(2):
        with pytest.raises(LookupError, match="from a hook"):
            y.sum().backward(retain_graph=True)
    hook.remove()
    x.grad = neuron.core.leak.grad = None
    y.sum().backward()
    found = [x.grad.clone(), neuron.core.leak.grad.clone()]
    law = X.clone().requires_grad_()
    [expected], _, _ = by_loop(neuron.core, [law], [torch.zeros(2, 3)])
    neuron.core.leak.grad = None
    expected.sum().backward()
    torch.testing.assert_close(found, [law.grad, neuron.core.leak.grad])
    is_right_in_a_thread(neuron)


# ---- memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trained", [False, True])
def test_sizes_that_cannot_be_had_are_refused(trained: bool) -> None:
    neuron = FlexSN(fresh_core(), num_states=1)
    huge = torch.ones(1, requires_grad=trained).expand(1 << 20, 1 << 24)  # 64 TiB of results
    with pytest.raises(RuntimeError, match="not enough memory for a result of 70368744177664 bytes; use fewer"):
        neuron(huge)
    assert neuron.states is None
    is_right_in_a_thread(neuron)


# ---- Ctrl-C ------------------------------------------------------------------------------------------------


def interrupted(call: Callable[[], Any], delay: float) -> bool:
    """Whether a SIGINT after this many seconds, sent while `call` runs, arrived as KeyboardInterrupt."""
    finished = threading.Event()

    def send() -> None:
        if not finished.wait(delay):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=send)
    try:
        try:
            thread.start()
            call()
        finally:
            finished.set()
            thread.join()
            time.sleep(0.001)  # a signal that is on its way arrives here
    except KeyboardInterrupt:
        return True
    return False


def seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


needs_its_handler = pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is not signal.default_int_handler,
    reason="SIGINT is not Python's in this process",
)


# Python drops what is raised in a callback of a weak reference, of which torch has many.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@needs_its_handler
def test_an_interrupt_anywhere_in_a_first_call_leaves_nothing_behind() -> None:
    """Tracing, compiling and the first run, cut off at moments all over it."""
    is_right(FlexSN(fresh_core(), num_states=1))  # what only the first call of a process does
    whole = seconds_of(lambda: is_right(FlexSN(fresh_core(), num_states=1)))
    cut_off, moments = 0, 8
    for moment in range(moments):
        neuron = FlexSN(fresh_core(), num_states=1)
        cut_off += interrupted(
            lambda: neuron(X.clone().requires_grad_()).sum().backward(), whole * (moment + 0.5) / moments
        )
        is_right_in_a_thread(neuron)
    assert cut_off > 0


class OutOfTime(Exception):
    pass


def test_an_alarm_anywhere_in_a_first_call_is_raised_at_its_end() -> None:
    """What a handler raises in the middle of a trace would end the process, or be taken for an error of the core."""

    def alarm(number: int, frame: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        whole = seconds_of(lambda: is_right(FlexSN(fresh_core(), num_states=1)))
        cut_off, moments = 0, 12
        for moment in range(moments):
            neuron = FlexSN(fresh_core(), num_states=1)
            try:
                signal.setitimer(signal.ITIMER_REAL, whole * (moment + 0.5) / moments)
                neuron(X.clone().requires_grad_()).sum().backward()
            except OutOfTime:
                cut_off += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            is_right_in_a_thread(neuron)
            assert signal.getsignal(signal.SIGALRM) is alarm
        assert cut_off > 0
    finally:
        signal.signal(signal.SIGALRM, before)


@needs_its_handler
def test_signals_that_are_held_arrive_all_of_them_and_a_second_one_at_once() -> None:
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: arrived.append(number))
        for number in (signal.SIGUSR1, signal.SIGUSR2)
    }
    try:
        with pytest.raises(KeyboardInterrupt), interrupts_held():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGUSR2)
            assert arrived == []
        assert arrived == [signal.SIGUSR1, signal.SIGUSR2]
        with interrupts_held():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
            assert arrived[2:] == [signal.SIGUSR1]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@needs_its_handler
def test_an_interrupt_in_a_core_is_not_taken_for_an_error_of_it() -> None:
    stop: list[int] = []

    class Core:
        def __init__(self) -> None:
            self.core = fresh_core()

        def __call__(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            if stop:
                raise KeyboardInterrupt
            return self.core(x, v)

    neuron = FlexSN(Core(), num_inputs=1, num_states=1, num_outputs=1)
    stop.append(1)
    with pytest.raises(KeyboardInterrupt):
        neuron(X)
    stop.clear()
    is_right_in_a_thread(neuron)


@needs_its_handler
def test_an_interrupt_while_a_kernel_runs_arrives_after_it() -> None:
    neuron = neurons.LIFNode(step_mode="m")
    x = torch.rand(64, 1 << 16)
    with torch.no_grad():
        expected = neuron(x)
        neuron.reset()
        whole = seconds_of(lambda: neuron(x))
        cut_off = 0
        for moment in range(6):
            neuron.reset()
            cut_off += interrupted(lambda: [neuron(x) for _ in range(3)], whole * (moment + 0.5) / 3)
            neuron.reset()
            assert torch.equal(neuron(x), expected)
    assert cut_off > 0


# ---- the long run, in short --------------------------------------------------------------------------------


def test_the_soak_program_runs_in_short() -> None:
    program = pathlib.Path(__file__).with_name("soak.py")
    done = subprocess.run(
        [sys.executable, program, "--calls", "400", "--seconds", "1", "--neurons", "5"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    calls, lanes = done.stdout.splitlines()
    assert re.match(r"400 calls from 4 threads in \d+ s, .* memory \d+ KiB after a fifth", calls)
    assert re.match(r"\d+ and \d+ neurons trained .* by both with equal weights", lanes)
