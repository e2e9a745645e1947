"""Which code and objects are closed to the walk from a core, and what is looked for in the others."""

from __future__ import annotations

import abc
import argparse
import collections
import functools
import sys
import sysconfig
import threading
import types
import typing
import weakref
from typing import Any

import torch

_HEAP_TYPE = 1 << 9  # `Py_TPFLAGS_HEAPTYPE`: not one of the static types of C code.


@functools.lru_cache(maxsize=4096)
def is_closed(module_name: str) -> bool:
    """Says whether a module belongs to torch, numpy, flexsn or the standard library."""
    root = module_name.partition(".")[0]
    if root in ("builtins", "torch", "numpy", "flexsn"):
        return True
    if root not in sys.stdlib_module_names:
        return False
    # A file of the user may have the name of a module of the standard library.
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is None or file.startswith(sysconfig.get_path("stdlib"))


def is_closed_class(kind: type) -> bool:
    module = str(kind.__module__)
    if not is_closed(module):
        return False
    # A class that closed code makes for a user (`make_dataclass`) bears the name of its maker's module, but
    # is not to be found there.
    outermost = kind.__qualname__.partition(".")[0]
    return not kind.__flags__ & _HEAP_TYPE or hasattr(sys.modules.get(module), outermost)


def is_class_of_flexsn(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] == "flexsn"


# Closed bases that read no attribute of a user's object by themselves, and that keep nothing about it outside
# its `__dict__` and its elements.
TRANSPARENT_BASES = frozenset({
    object, torch.nn.Module, torch.autograd.Function, abc.ABC, typing.Generic, typing.Protocol,
    types.SimpleNamespace, argparse.Namespace, threading.local, types.MappingProxyType, dict, list, tuple,
    set, frozenset,
    collections.OrderedDict, collections.defaultdict, collections.Counter, collections.deque,
})  # fmt: skip

# Objects of closed classes that hold what a user puts into them.
FOLLOWED = (
    torch.nn.Module, types.SimpleNamespace, argparse.Namespace, threading.local, collections.ChainMap,
    collections.UserDict, collections.UserList, weakref.WeakValueDictionary, weakref.WeakKeyDictionary,
    weakref.WeakSet,
)  # fmt: skip

# Internals of modules (hooks and the like) and of autograd functions, and the hidden state of stateful
# modules (ours, SpikingJelly's), which changes with each call and which no step may read.
NOT_FOLLOWED = frozenset(torch.nn.Module().__dict__) - {"training"} | {
    "_memories", "_memories_rv", "_backward_cls",
}  # fmt: skip

# Names by which code can read attributes that it does not spell out.
REFLECTIVE = frozenset({
    "getattr", "hasattr", "getattr_static", "vars", "dir", "attrgetter", "methodcaller", "getmembers",
    "__dict__", "__getattribute__", "asdict", "astuple", "parameters", "named_parameters", "buffers",
    "named_buffers", "children", "named_children", "modules", "named_modules", "state_dict", "get_parameter",
    "get_buffer", "get_submodule", "_parameters", "_buffers", "_modules", "__getstate__", "__reduce__",
    "__reduce_ex__", "dumps",
})  # fmt: skip

# Methods that torch calls without the user's code naming them.
CALLED_BY_TORCH = frozenset({"forward", "backward", "setup_context", "jvp", "vmap"})
CONSTRUCTORS = frozenset({"__new__", "__init__", "__post_init__"})
# Special methods that do not run in a step that merely reads an object: they make, change, copy or print one.
NOT_CALLED = CONSTRUCTORS | {
    "__init_subclass__", "__set_name__", "__del__", "__repr__", "__str__", "__format__",
    "__dir__", "__sizeof__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
    "__getnewargs__", "__copy__", "__deepcopy__", "__replace__", "__setattr__", "__delattr__",
}  # fmt: skip


def parts_of_callable(value: Any) -> tuple[str, ...]:
    """Gives the attributes in which a callable or descriptor holds what it wraps; none for other values."""
    if isinstance(value, types.MethodType):
        return "__self__", "__func__"
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return "func", "args", "keywords"
    if isinstance(value, (staticmethod, classmethod)):
        return ("__func__",)
    if isinstance(value, property):
        return ("fget",)
    if isinstance(value, functools.cached_property):
        return ("func",)
    if isinstance(value, functools._lru_cache_wrapper):
        return ("__wrapped__",)
    if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        owner = value.__self__
        return () if owner is None or isinstance(owner, (types.ModuleType, type)) else ("__self__",)
    return ()
