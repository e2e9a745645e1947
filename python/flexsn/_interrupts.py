"""Ctrl-C, held back for as long as it would leave torch half-way into one of its modes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """An interrupt takes effect at the end, a second one at once.

    Tracing enters and leaves modes of torch that are no part of Python's state: one that an exception leaves
    in between makes all later calls of the thread fail.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    arrived: list[tuple[int, Any]] = []

    def hold(number: int, frame: Any) -> None:
        if arrived:
            before(number, frame)
        arrived.append((number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if arrived:
            before(*arrived[0])
