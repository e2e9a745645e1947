"""What the code of a function names, and which of that gives something else at each call."""

from __future__ import annotations

import collections.abc
import dis
import functools
import operator
import random
import sys
import types
from typing import Any, NamedTuple

import numpy

_GLOBAL_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTE_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})


class Names(NamedTuple):
    """What a code object and those nested in it name."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[tuple[int, str], ...]
    dotted: tuple[tuple[tuple[str, ...], int], ...]
    """Globals with the attributes that are read of them at once, such as ("time", "time"), and the lines."""


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> Names:
    """Reads the names of a code object from its instructions."""
    names: dict[str, None] = {}
    attributes: set[str] = set()
    imports: dict[tuple[int, str], None] = {}
    dotted: dict[tuple[str, ...], int] = {}
    instructions = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    for index, each in enumerate(instructions):
        if each.opname in _GLOBAL_LOADS:
            names[each.argval] = None
            parts = [each.argval]
            for after in instructions[index + 1 :]:
                if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                parts.append(after.argval)
            dotted.setdefault(tuple(parts), each.positions.lineno or code.co_firstlineno)
        elif each.opname in _ATTRIBUTE_LOADS:
            attributes.add(each.argval)
        elif each.opname == "IMPORT_NAME":
            # Two operands stand before it: the level of a relative import, and the names wanted.
            imports[instructions[index - 2].argval, each.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_of(constant)
            names |= dict.fromkeys(inner.globals)
            attributes |= inner.attributes
            imports |= dict.fromkeys(inner.imports)
            dotted = dict(inner.dotted) | dotted
        elif isinstance(constant, tuple):
            # `case Config(alpha=a)` keeps the names of the attributes that it reads in a tuple.
            attributes.update(each for each in constant if isinstance(each, str))
    return Names(tuple(names), frozenset(attributes), tuple(imports), tuple(dotted.items()))


# ---- what is another thing at each call --------------------------------------------------------------------
# A trace would hold what such a function gave once. Random numbers that come from the generators of `random`
# and NumPy are found by the state that they change.

_CHANGING = {
    "time": "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns "
    "thread_time thread_time_ns localtime gmtime ctime asctime",
    "datetime": "datetime.now datetime.utcnow datetime.today date.today",
    "os": "urandom getpid times",
    "uuid": "uuid1 uuid4",
    "secrets": "token_bytes token_hex token_urlsafe randbelow randbits choice",
    "threading": "get_ident get_native_id current_thread",
    "torch": "is_grad_enabled is_inference_mode_enabled is_autocast_enabled is_autocast_cpu_enabled "
    "get_autocast_dtype initial_seed seed get_rng_state get_num_threads",
}


@functools.cache
def _changing_functions(module: str) -> dict[Any, str]:
    """Functions of a module that is loaded, with their names."""
    found = {}
    for name in _CHANGING[module].split():
        try:
            found[operator.attrgetter(name)(sys.modules[module])] = f"{module}.{name}"
        except AttributeError:  # not in this version
            continue
    return found


def changing(value: Any) -> str | None:
    """Names a function or an object that gives something else at each call; None for others."""
    if isinstance(value, (types.BuiltinFunctionType, types.FunctionType)):
        for module in _CHANGING:
            if module in sys.modules and (name := _changing_functions(module).get(value)):
                return name
        return None
    if isinstance(value, collections.abc.Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return f"an iterator ({type(value).__name__})"
    if isinstance(value, (random.Random, numpy.random.Generator, numpy.random.RandomState)):
        own = value is getattr(random.random, "__self__", None) or value is _numpy_generator()
        return None if own else f"a generator of random numbers ({type(value).__name__})"
    return None


def _numpy_generator() -> Any:
    return getattr(numpy.random.rand, "__self__", None)
