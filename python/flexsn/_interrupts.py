"""Signals, held back for as long as what their handlers raise would leave torch half-way into its modes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """A signal for a handler in Python (Ctrl-C, an alarm) takes effect at the end, a second one at once.

    Tracing enters and leaves modes of torch that are no part of Python's state: one that an exception leaves
    in between makes all later calls of the thread fail, and in some of its code it ends the process.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in that one
        yield
        return
    handlers: dict[int, Callable[[int, Any], Any]] = {
        number: handler for number in signal.valid_signals() if callable(handler := signal.getsignal(number))
    }
    arrived: dict[int, Any] = {}

    def hold(number: int, frame: Any) -> None:
        if number in arrived:
            handlers[number](number, frame)
        arrived[number] = frame

    for number in handlers:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        with contextlib.ExitStack() as all_of_them:  # also where one raises
            for number, frame in reversed(arrived.items()):
                all_of_them.callback(handlers[number], number, frame)
