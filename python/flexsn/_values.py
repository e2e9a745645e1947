"""What identifies plain values, constants and code, so that equal ones are found to be equal."""

from __future__ import annotations

import enum
import functools
import struct
import types
from collections.abc import Hashable
from typing import Any

import numpy
import torch

CODE = "function"


@functools.lru_cache(maxsize=4096)
def code_value(code: types.CodeType) -> Hashable:
    """Gives what identifies the work of a code object, without where it stands in a file."""
    return (
        code.co_code, code.co_exceptiontable, code.co_names, code.co_varnames, code.co_freevars,
        code.co_cellvars, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
        tuple(map(constant_value, code.co_consts)),
    )  # fmt: skip


def constant_value(constant: Any) -> Hashable:
    """Gives what identifies a constant of code, a key of a dict or a member of a set."""
    if isinstance(constant, types.CodeType):
        return CODE, code_value(constant)
    if isinstance(constant, (tuple, frozenset)):
        return type(constant), type(constant)(map(constant_value, constant))
    return plain_value(constant) or Same(constant)


class Same:
    """Equal only where the value is the same object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


_EXACT_TYPES = frozenset({
    bool, int, str, bytes, type(None), type(...), type(NotImplemented), torch.dtype, torch.device,
    torch.layout, torch.memory_format,
})  # fmt: skip


def plain_value(value: Any) -> Hashable | None:
    """Gives what identifies a plain value, its type and the sign of a zero included; None for others."""
    kind = type(value)
    if kind in _EXACT_TYPES:
        return kind, value
    if isinstance(value, enum.Enum):
        return kind, Same(value)
    if isinstance(value, numpy.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, float):
        return kind, struct.pack("d", value)
    if isinstance(value, complex):
        return kind, struct.pack("dd", value.real, value.imag)
    for base in (int, str, bytes):
        if isinstance(value, base):
            return kind, base.__repr__(value)
    if kind is range or kind is slice:
        return kind, tuple(map(constant_value, (value.start, value.stop, value.step)))
    return None
