"""Reads what things hold, and says whether it is still the same."""

from __future__ import annotations

import array
import contextvars
import operator
import types
from collections.abc import Callable, Collection
from typing import Any

import numpy

def same_elements(now: Collection[Any], before: tuple[Any, ...]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def same_items(now: dict[Any, Any], keys: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    if not now:  # as the hooks and buffers of most modules
        return not keys
    return same_elements(now.keys(), keys) and all(map(operator.is_, now.values(), values))


def same_members(now: Collection[Any], before: tuple[Any, ...]) -> bool:
    return len(now) == len(before) and set(map(id, now)) == set(map(id, before))


def same_array(now: numpy.ndarray, dtype: numpy.dtype, shape: tuple[int, ...], content: bytes) -> bool:
    return now.dtype == dtype and now.shape == shape and now.tobytes() == content


def same_bytes(now: array.array | bytearray, content: bytes) -> bool:
    return bytes(now) == content


def still_reads(read: Callable[[], Any], value: Any) -> bool:
    return read() is value


EMPTY = object()


def cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def context_content(variable: contextvars.ContextVar) -> Any:
    try:
        return variable.get()
    except LookupError:
        return EMPTY


def slot_content(slot: types.MemberDescriptorType, owner: Any) -> Any:
    try:
        return slot.__get__(owner)
    except AttributeError:
        return EMPTY
