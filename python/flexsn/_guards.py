"""What must be as it was for a trace to hold, and whether it is."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch

from ._library import calls


class Guards(NamedTuple):
    """Things that a core reaches, as they were. (python_guards.cpp reads it by place.)"""

    held: tuple[tuple[Any, str, Any], ...]  #: holder, name, value
    cells: tuple[tuple[types.CellType, Any], ...]
    functions: tuple[tuple[types.FunctionType, types.CodeType, Any, Any], ...]  #: code, both kinds of defaults
    absent: tuple[tuple[Any, str], ...]
    lengths: tuple[tuple[Collection[Any], int], ...]
    objects: tuple[tuple[Any, type, dict[str, Any]], ...]  #: class and `__dict__`
    tensors: tuple[tuple[Any, ...], ...]  #: dtype, shape, requires_grad, device
    contents: tuple[Callable[[], bool], ...]
    default_dtype: torch.dtype


def unchanged(guards: Guards) -> bool:
    """Whether all of it is still so."""
    try:
        for holder, name, value in guards.held:
            if holder[name] is not value:
                return False
        for cell, value in guards.cells:
            if cell.cell_contents is not value:
                return False
        for function, code, defaults, keyword_defaults in guards.functions:
            if (
                function.__code__ is not code
                or function.__defaults__ is not defaults
                or function.__kwdefaults__ is not keyword_defaults
            ):
                return False
        for holder, name in guards.absent:
            if name in holder:
                return False
        for holder, length in guards.lengths:
            if len(holder) != length:
                return False
        for thing, kind, attributes in guards.objects:
            if thing.__class__ is not kind or thing.__dict__ is not attributes:
                return False
        for tensor, dtype, shape, requires_grad, device in guards.tensors:
            if (
                tensor.dtype is not dtype
                or tensor.requires_grad is not requires_grad
                or tensor.shape != shape
                or tensor.device != device
            ):
                return False
        for still in guards.contents:
            if not still():
                return False
    except (KeyError, ValueError, AttributeError):
        # A name, the value of a cell or a `__dict__` is gone.
        return False
    return torch.get_default_dtype() is guards.default_dtype


#: the same in C++, where it is built
is_unchanged: Callable[[Guards], bool] = unchanged if calls is None else calls.unchanged
