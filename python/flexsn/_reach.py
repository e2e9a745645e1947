"""Finds everything a core can reach, so that a trace of it is reused only while all of that is unchanged.

`_Walk` starts at the core and follows what its code names: closure cells, defaults, globals, attributes.
Each thing found leaves a line in the key (its path and what it is) and a guard (what must still be there).
An attribute is followed if some code on the way reads an attribute of that name; code that can read
attributes by other means (`getattr`, `vars`, ...) opens all of them. Code and objects of torch, numpy, flexsn
and the standard library are closed: held by identity, not looked into.
"""

from __future__ import annotations

import array
import builtins
import collections
import contextlib
import contextvars
import enum
import functools
import importlib
import importlib.util
import inspect
import operator
import os
import reprlib
import sys
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin
from torch.nn.utils import parametrize

from ._closed import (
    CALLED_BY_TORCH, CONSTRUCTORS, FOLLOWED, NOT_CALLED, NOT_FOLLOWED, REFLECTIVE, TRANSPARENT_BASES,
    is_class_of_flexsn, is_closed, is_closed_class, parts_of_callable,
)  # fmt: skip
from ._code import Names, names_of
from ._contents import (
    EMPTY, cell_content, context_content, same_array, same_bytes, same_elements, same_items,
    same_members, slot_content, still_reads,
)  # fmt: skip
from ._elsewhere import changing, is_file
from ._guards import Guards, is_unchanged
from ._recording import TraceError
from ._values import CODE, Same, code_value, constant_value, plain_value

__all__ = ["DEFAULT_DTYPE", "HOOKS", "Place", "Reach", "Route", "describe", "device_of", "follow", "source_of"]


#: Steps from a core to a value: ("attr", name), ("item", key), ("cell", index) or ("global", name).
Route = tuple[tuple[str, Any], ...]


def follow(core: Any, route: Route) -> Any:
    """Reads the value at the end of a route. A compiler that traces this sees where the value comes from."""
    value = core
    for kind, name in route:
        if kind == "attr":
            value = getattr(value, name)
        elif kind == "item":
            value = value[name]
        elif kind == "cell":
            value = value.__closure__[name].cell_contents
        else:
            value = value.__globals__[name]
    return value


@dataclass(frozen=True, slots=True)
class Place:
    """Where a core finds a tensor; `get()` reads it anew."""

    path: str
    get: Callable[[], Tensor] = field(repr=False)
    route: Route | None = field(default=None, repr=False)
    """The way from the core to it, where it is made of ordinary reads."""


DEFAULT_DTYPE = "torch default dtype"
#: what is put back by emptying and filling it
_REFILLED = (
    list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict, collections.Counter
)  # fmt: skip
#: in the path of what only a hook of a module reaches, which may note what it sees
HOOKS = "_hooks["
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodWrapperType)
#: hooks that run for any module
_HOOKS_OF_ALL_MODULES = [
    name for name in dir(torch.nn.modules.module) if name.startswith("_global_") and name.endswith("_hooks")
]
_ENVIRONMENTS = (os.environ, os.environb)  # two views of the same
_VIEWS_OF_DICTS = (type({}.keys()), type({}.values()), type({}.items()))
_LONGEST_PATH = 20_000  # in characters; all paths together grow with the square of the depth


class Reach:
    """Everything a core can reach: code, plain values, tensors by place."""

    __slots__ = (
        "key", "objects", "tensors", "containers", "plain_routes", "changing", "caches", "catches", "hashes", "guards",
        "_plain",
    )  # fmt: skip

    key: Hashable
    """Equal for two cores that trace to the same neuron."""
    tensors: tuple[Place, ...]
    """The captured tensors, each once, where it is found first."""
    objects: tuple[tuple[Any, type, dict[str, Any]], ...]
    """Objects whose attributes were followed, with their classes and their `__dict__`."""
    plain_routes: tuple[tuple[Route, Any], ...]
    """Plain values that ordinary reads from the core come to."""
    changing: dict[str, str]
    """What gives something else at each call, with the place where it is read or found."""
    caches: tuple[tuple[Any, str], ...]
    """Functions under `functools.lru_cache`, and where they are found."""
    catches: str
    """Where code on the way catches exceptions first, from which it may learn of sizes; "" where it does not."""
    hashes: bool
    """Whether code on the way names hash(), of which only that of some values is the same at each call."""
    guards: Guards
    """What must be as it is for this to hold."""

    def __init__(self, core: Callable[..., Any]) -> None:
        walk = _Walk()
        walk.run(core)
        # Numbers that meet integer tensors, and tensors made from numbers, take this type.
        default_dtype = torch.get_default_dtype()
        self.key = ((DEFAULT_DTYPE, (torch.dtype, default_dtype)), *walk.lines)
        self.tensors = tuple(walk.places)
        self.plain_routes = tuple(walk.plain_routes)
        self.changing = walk.changing
        self.caches = tuple(walk.caches)
        self.catches = walk.catches
        self.hashes = walk.hashes
        self._plain = {DEFAULT_DTYPE: default_dtype} | walk.plain
        self.objects = tuple(walk.objects)
        self.containers = tuple(walk.containers)
        self.guards = Guards(
            tuple(walk.held), tuple(walk.cells), tuple(walk.functions), tuple(walk.absent), tuple(walk.lengths),
            self.objects, tuple(walk.tensor_facts), tuple(walk.contents), default_dtype,
        )  # fmt: skip

    def current(self) -> bool:
        """Says whether nothing the core can reach has changed since this object was made.

        A value replaced by an equal one counts as changed; a new `Reach` of the core then has an equal key.
        """
        return is_unchanged(self.guards)

    def put_back(self) -> None:
        """Gives globals, variables of closures and the like the values that they had."""
        for holder, name, value in self.guards.held:
            if isinstance(holder, dict) and holder.get(name) is not value:
                holder[name] = value
        for cell, value in self.guards.cells:
            if cell_content(cell) is not value:
                cell.cell_contents = value


def device_of(core: Callable[..., Any], beside: Iterable[Any] = ()) -> torch.device:
    """Where the tensors are that a core reaches, and those beside it: single numbers may stay on the CPU."""
    tensors = list(beside)
    with contextlib.suppress(Exception):  # a core that cannot be looked at is refused by the first call
        tensors += [place.get() for place in Reach(core).tensors]
    found = [value.device for value in tensors if isinstance(value, Tensor)]
    first = found[0] if found else torch.get_default_device()
    return next((device for device in found if device.type != "cpu"), first)


def describe(core: Callable[..., Any]) -> str:
    """Names a core briefly: `partial(name)`, the name of the function, or the name of its type."""
    if isinstance(core, functools.partial):
        return f"partial({describe(core.func)})"
    return getattr(core, "__name__", None) or type(core).__name__


def source_of(core: Callable[..., Any]) -> tuple[str, int] | None:
    """Finds the file and the first line of a core's code; None where it has no Python code."""
    if isinstance(core, functools.partial):
        return source_of(core.func)
    function = inspect.unwrap(core)
    if not hasattr(function, "__code__"):
        function = core.forward if isinstance(core, torch.nn.Module) else type(core).__call__
        function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def _then(route: Route | None, kind: str, name: Any) -> Route | None:
    return None if route is None else (*route, (kind, name))


def _itself(value: Any) -> Any:
    return value


def _behind(proxy: Any) -> Any:
    """What a weak proxy stands for."""
    try:
        return proxy.__init__.__self__
    except ReferenceError:
        return EMPTY


def _gives_modules(value: Any, parts: tuple[str, ...]) -> bool:
    """Does this name, with the attributes that are read of it, lead to modules by their names?"""
    for name in parts[1:]:
        if not isinstance(value, types.ModuleType):
            break
        value = getattr(value, name, None)
    return value is sys.modules or value is importlib.import_module or value is builtins.__import__


def _slots_of(kind: type) -> list[types.MemberDescriptorType]:
    members = (member for base in kind.__mro__ for member in base.__dict__.values())
    return [member for member in members if type(member) is types.MemberDescriptorType]


def _may_be_called(value: Any) -> bool:
    """Is this, under a special name of a class, something that Python calls by itself?"""
    return isinstance(value, classmethod) or (callable(value) and not isinstance(value, type))


# ---- the walk


class _Walk:
    """One walk from a core: the lines of its key, its tensors, its guards."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Hashable]] = []
        self.plain: dict[str, Any] = {}
        self.plain_routes: list[tuple[Route, Any]] = []
        self.places: list[Place] = []
        self.changing: dict[str, str] = {}
        self.caches: list[tuple[Any, str]] = []
        self.catches = ""
        self.hashes = False
        # Guards, each kind in the form that `Guards` has it in.
        self.held: list[tuple[Any, str, Any]] = []
        self.absent: list[tuple[Any, str]] = []
        self.cells: list[tuple[types.CellType, Any]] = []
        self.functions: list[tuple[types.FunctionType, types.CodeType, Any, Any]] = []
        self.objects: list[tuple[Any, type, dict[str, Any]]] = []
        self.tensor_facts: list[tuple[Any, ...]] = []
        self.lengths: list[tuple[Collection[Any], int]] = []
        self.contents: list[Callable[[], bool]] = []
        self.containers: list[list | dict | set] = []

        self._pending: collections.deque[tuple[Any, str, Callable[[], Any], Route | None]] = (
            collections.deque()
        )
        # Where a value was found first, by its id; kept alive so that no id is given out again.
        self._first: dict[int, str] = {}
        self._kept: list[Any] = []
        self._guarded: set[tuple[int, str]] = set()
        self._class_paths: set[str] = set()
        self._named: set[str] = set()
        # Strings that are found, which may be names for `getattr`; and files with what is read of them where.
        self._strings: set[str] = set()
        self._file_reads: dict[str, str] = {}
        # What has attributes to follow, called with the names that are new and whether all are wanted.
        self._openers: list[Callable[[frozenset[str], bool], None]] = []
        self._opened: frozenset[str] = frozenset()
        self._all_open = False

    def run(self, core: Any) -> None:
        """Walks until neither a new value nor a new name turns up."""
        if isinstance(core, types.MethodType):
            for name, path in (("__self__", "self"), ("__func__", "core")):
                part = getattr(core, name)
                self._add(part, path, functools.partial(_itself, part), (("attr", name),))
        else:
            kinds = {types.FunctionType: "core", functools.partial: "partial", torch.nn.Module: "module"}
            path = next((path for kind, path in kinds.items() if isinstance(core, kind)), "self")
            self._add(core, path, functools.partial(_itself, core), ())
        while True:
            while self._pending:
                self._look_at(*self._pending.popleft())
            if self._all_open:
                self._named |= self._strings
            new = frozenset(self._named) - self._opened
            if not new:
                return
            self._opened |= new
            self._all_open = not REFLECTIVE.isdisjoint(self._opened)
            for opener in tuple(self._openers):
                opener(new, self._all_open)

    def _look_at(self, value: Any, path: str, read: Callable[[], Any], route: Route | None) -> None:
        """Writes down what a value is and adds what it leads to."""
        if len(path) > _LONGEST_PATH:
            raise ValueError(
                f"flexsn: the core reaches values that are nested too deep, from {path[:40]} on; take out "
                'what it needs and give it a name of its own, or use backend="torch"'
            )
        plain = plain_value(value)
        if plain is not None:
            self.lines.append((path, plain))
            self.plain[path] = value
            if type(value) is str:
                self._strings.add(value)
            if route is not None:
                self.plain_routes.append((route, value))
            if isinstance(value, enum.Enum):
                self._hold(value.__dict__, "_value_", f"{path}.value", None)
            if not is_closed_class(type(value)):
                self._class(type(value))
                self._slots(value, path, route)
                if (attributes := getattr(value, "__dict__", None)) is not None:
                    self._follow(functools.partial(self._open_object, value, attributes, path, route))
        elif isinstance(value, type):
            self.lines.append((path, ("class", self._class(value, True, route) or Same(value))))
            self._closed_class(value, path)
        elif type(value) in (tuple, frozenset, torch.Size):
            # Whether two equal tuples are one object is Python's choice, so it is not written down.
            self._container(value, path, route)
        elif id(value) in self._first:
            self.lines.append((path, (f"the same as {self._first[id(value)]}",)))
        else:
            self._first[id(value)] = path
            self._kept.append(value)
            self._look_at_new(value, path, read, route)

    def _look_at_new(self, value: Any, path: str, read: Callable[[], Any], route: Route | None) -> None:
        if (what := changing(value)) is not None:
            self.changing.setdefault(what, path)
        if isinstance(value, torch.jit.ScriptModule):
            where = "the core" if path == "module" else path
            raise TraceError(
                f"flexsn: {where} ({value.original_name}) is compiled by torch.jit, into which flexsn cannot "
                'look; give the Python module that it was made of, or use backend="torch"'
            )
        if value is hash:
            self.hashes = True
        if isinstance(value, _FUNCTIONS) and value.__name__ in REFLECTIVE:
            self._named.add(value.__name__)
        if isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self._named |= {"attrgetter", *map(str, value.__reduce__()[1])}
        if isinstance(value, numpy.ndarray) and value.dtype.hasobject:
            self.changing.setdefault("an array of objects (NumPy)", path)
        if isinstance(value, functools._lru_cache_wrapper):
            self.caches.append((value, path))
        if type(value) in weakref.ProxyTypes:
            self.lines.append((path, ("proxy",)))
            self._watch(f"{path} (proxy)", functools.partial(_behind, value), None)
        elif isinstance(value, weakref.ReferenceType):
            self.lines.append((path, ("weak reference",)))
            self._watch(f"{path}()", value, None)
        elif isinstance(value, Tensor):
            self._tensor(value, path, read, route)
        elif isinstance(value, types.FunctionType):
            self._function(value, path, route)
        elif isinstance(value, types.ModuleType):
            self._module(value, path, route)
        elif parts := parts_of_callable(value):
            self.lines.append((path, (type(value).__name__, getattr(value, "__name__", None))))
            for name in parts:
                read_part = functools.partial(getattr, value, name)
                self._add(read_part(), f"{path}.{name}", read_part, _then(route, "attr", name))
        elif isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            content = value.tobytes()
            self.lines.append((path, ("array", value.dtype.str, value.shape, content)))
            self.contents.append(functools.partial(same_array, value, value.dtype, value.shape, content))
        elif isinstance(value, (array.array, bytearray, memoryview)):
            content = bytes(value)
            self.lines.append((path, ("array", getattr(value, "typecode", "B"), len(value), content)))
            self.contents.append(functools.partial(same_bytes, value, content))
        elif isinstance(value, contextvars.ContextVar):
            self.lines.append((path, ("context variable", value.name)))
            self._watch(f"{path}.get()", functools.partial(context_content, value), None)
        elif any(value is each for each in _ENVIRONMENTS):
            self._environment(path)
        elif isinstance(value, _VIEWS_OF_DICTS):
            self.lines.append((path, ("view of a dict", type(value))))
            self._add(value.mapping, f"dict of {path}", functools.partial(getattr, value, "mapping"), None)
        elif value is sys.modules:
            self.lines.append((path, ("modules",)))
            self._modules_by_name(self._strings, path)
        else:
            self._file(value)
            self._object(value, path, route)

    # Kinds of values.

    def _tensor(self, tensor: Tensor, path: str, read: Callable[[], Any], route: Route | None) -> None:
        if isinstance(tensor, UninitializedTensorMixin):
            raise ValueError(
                f"flexsn: {path} is a parameter that has no shape yet, as lazy modules have them; give it one "
                "(materialize) before the first call"
            )
        dtype, shape, requires_grad, device = tensor.dtype, tensor.shape, tensor.requires_grad, tensor.device
        kind = Tensor if is_closed_class(type(tensor)) else type(tensor)
        self.lines.append((path, (Tensor, dtype, tuple(shape), requires_grad, device.type, kind)))
        self.tensor_facts.append((tensor, dtype, shape, requires_grad, device))
        self.places.append(Place(path, read, route))
        self._follow(functools.partial(self._open_object, tensor, tensor.__dict__, path, route))

    def _function(self, function: types.FunctionType, path: str, route: Route | None) -> None:
        code, scope = function.__code__, function.__globals__
        closed = is_closed(str(scope.get("__name__")))
        if closed and not function.__closure__:
            self.lines.append((path, (CODE, Same(function))))
            return
        # A closed function with a closure is often a decorator around a function of the user.
        self.lines.append((path, (CODE, code_value(code))))
        defaults, keyword_defaults = function.__defaults__, function.__kwdefaults__
        self.functions.append((function, code, defaults, keyword_defaults))
        of_path = "" if path == "core" else f" of {path}"
        for index, (name, cell) in enumerate(zip(code.co_freevars, function.__closure__ or ())):
            self._cell(name, cell, f"closure {name}{of_path}", _then(route, "cell", index))
        if defaults:
            names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
            for index, name in enumerate(names):
                read = functools.partial(operator.getitem, defaults, index)
                way = _then(_then(route, "attr", "__defaults__"), "item", index)
                self._add(read(), f"default {name}{of_path}", read, way)
        if keyword_defaults:
            self._hold_length(keyword_defaults)
            for name in keyword_defaults:
                way = _then(_then(route, "attr", "__kwdefaults__"), "item", name)
                self._hold(keyword_defaults, name, f"default {name}{of_path}", way)
        if not closed:
            self._scope(names_of(code), scope, code.co_filename, of_path, route)
        if function.__dict__ or not closed:
            self._follow(functools.partial(self._open_object, function, function.__dict__, path, route))

    def _scope(
        self, names: Names, scope: dict[str, Any], file: str, of_path: str, route: Route | None
    ) -> None:
        """Follows the globals, the attributes and the import statements of a function."""
        self._named |= names.attributes | REFLECTIVE.intersection(names.globals)
        self.hashes |= "__hash__" in names.attributes | names.strings
        if names.catches and not self.catches:
            self.catches = f"{file}:{names.catches}"
        for name, line in names.file_reads:
            self._file_reads.setdefault(name, f"{file}:{line}")
        reflective = not (REFLECTIVE.isdisjoint(names.globals) and REFLECTIVE.isdisjoint(names.attributes))
        strings = names.strings if reflective else frozenset()
        self._named |= strings
        for name in names.globals:
            if name.startswith("@"):  # put there by a tool that rewrites code, as pytest does for `assert`
                continue
            if name in scope:
                self._hold(scope, name, f"global {name}{of_path}", _then(route, "global", name))
            else:
                self._hold_absence(scope, name)
                self._builtin(name)
        for parts, line in names.dotted:
            value = scope.get(parts[0], getattr(builtins, parts[0], None))
            self._closed_read(value, parts, f"{file}:{line}")
            if isinstance(value, types.ModuleType):
                for string in strings:
                    self._closed_read(value, (parts[0], string), f"{file}:{line}")
            if _gives_modules(value, parts):
                known = names.strings | ({scope.get("__name__")} if "__name__" in names.globals else set())
                for module in self._modules_by_name(known, f"{file}:{line}"):
                    for attribute in names.attributes:
                        self._closed_read(module, (module.__name__, attribute), f"{file}:{line}")
        for level, name in names.imports:
            if level:
                name = importlib.util.resolve_name("." * level + name, scope.get("__package__") or "")
            for module in {name: None, name.partition(".")[0]: None}:
                if module in sys.modules:
                    self._hold(sys.modules, module, f"import {module}{of_path}", None)
                    for attribute in names.attributes:
                        self._closed_read(sys.modules[module], (module, attribute), file)
                else:
                    self._hold_absence(sys.modules, module)

    def _builtin(self, name: str) -> None:
        """Guards what a name that is no global means. Who puts something into `builtins` is followed there."""
        if name not in builtins.__dict__:
            self._hold_absence(builtins.__dict__, name)
        elif getattr(builtins.__dict__[name], "__module__", None) == "builtins":
            self.held.append((builtins.__dict__, name, builtins.__dict__[name]))
        else:
            self._hold(builtins.__dict__, name, f"builtin {name}", None)

    def _closed_read(self, value: Any, parts: tuple[str, ...], place: str) -> None:
        """Looks at what code reads of closed modules and classes, which the walk does not follow."""
        for name in parts[1:]:
            is_module = isinstance(value, types.ModuleType) and is_closed(value.__name__)
            if not is_module and not (isinstance(value, type) and is_closed_class(value)):
                return
            value, owner = getattr(value, name, None), value
            if isinstance(value, (list, set)) and isinstance(owner, types.ModuleType):  # such as sys.argv
                self._hold(owner.__dict__, name, f"{owner.__name__}.{name}", None)
                return
            if any(value is each for each in _ENVIRONMENTS):
                break
        if any(value is each for each in (*_ENVIRONMENTS, os.getenv, os.getenvb)):
            if id(os.environ) not in self._first:
                self._first[id(os.environ)] = "os.environ"
                self._environment("os.environ")
        elif value is hash:
            self.hashes = True
        elif (what := changing(value)) is not None:
            self.changing.setdefault(what, place)
        elif isinstance(value, type):
            self._closed_class(value, place)

    def _closed_class(self, kind: type, place: str) -> None:
        """Notes classes whose objects read files or attributes, or catch exceptions."""
        self._file(kind)
        if kind in (operator.attrgetter, operator.methodcaller):
            self._named.add("attrgetter")
        if kind is contextlib.suppress:
            self.catches = self.catches or place

    def _modules_by_name(self, names: Collection[str], place: str) -> list[types.ModuleType]:
        """Follows modules that code asks for by constant names, and gives them; others cannot be told."""
        found = sorted(name for name in names if name in sys.modules)
        for name in found:
            self._hold(sys.modules, name, f"import {name}", None)
        if not found:
            self.changing.setdefault("modules by name", place)
        return [sys.modules[name] for name in found]

    def _file(self, value: Any) -> None:
        """Notes what is read of a path or an open file."""
        if not is_file(value):
            return
        kind = value if isinstance(value, type) else type(value)

        def open_names(names: frozenset[str], all_open: bool) -> None:
            for name in sorted(self._file_reads.keys() & names):
                self.changing.setdefault(f"a file ({kind.__name__}.{name})", self._file_reads[name])

        self._follow(open_names)

    def _cell(self, name: str, cell: types.CellType, path: str, route: Route | None) -> None:
        if (id(cell), "cell") in self._guarded:
            return
        self._guarded.add((id(cell), "cell"))
        self._kept.append(cell)
        value = cell_content(cell)
        if value is EMPTY:
            self.lines.append((path, ("empty",)))
            read = functools.partial(cell_content, cell)
            self.contents.append(functools.partial(still_reads, read, EMPTY))
            return
        self.cells.append((cell, value))
        if name == "__class__" and isinstance(value, type):
            # The cell behind `super()`: the class is used, but no object is made of it.
            self._class(value)
        else:
            self._add(value, path, functools.partial(getattr, cell, "cell_contents"), route)

    def _module(self, module: types.ModuleType, path: str, route: Route | None) -> None:
        self.lines.append((path, ("module", module.__name__)))
        if is_closed(module.__name__):
            return

        def open_names(names: frozenset[str], all_open: bool) -> None:
            self._hold_length(module.__dict__)
            for name in sorted((names | {"__getattr__"}) & module.__dict__.keys()):
                self._hold(module.__dict__, name, f"{path}.{name}", _then(route, "attr", name))

        self._follow(open_names)

    def _class(self, kind: type, constructed: bool = False, route: Route | None = None) -> str | None:
        """Follows a class and gives the path it is known by; None for a closed one."""
        if is_closed_class(kind):
            return None
        path = self._first.get(id(kind))
        if path is None:
            path = f"class {kind.__qualname__}"
            while path in self._class_paths:
                path += "'"
            self._class_paths.add(path)
            self._first[id(kind)] = path
            self._kept.append(kind)
            bases = tuple(self._class(base) or Same(base) for base in kind.__mro__[1:])
            self.contents.append(functools.partial(still_reads, functools.partial(getattr, kind, "__mro__"), kind.__mro__))
            self.lines.append((path, ("class", bases, self._class(type(kind)) or Same(type(kind)))))
            if issubclass(kind, torch.autograd.Function):
                route = None  # Dynamo reads no attributes of these
            self._follow(functools.partial(self._open_class, kind, path, route))
            if issubclass(kind, enum.Enum):
                for name in kind.__members__:  # which are also found by their values
                    read = functools.partial(operator.getitem, kind.__members__, name)
                    self._add(read(), f"{path}.{name}", read, None)
        if constructed:
            for name in sorted(CONSTRUCTORS & kind.__dict__.keys()):
                self._hold(kind.__dict__, name, f"{path}.{name}", None, kind)
        return path

    def _object(self, value: Any, path: str, route: Route | None) -> None:
        kind = type(value)
        what = f"object of class {kind.__qualname__}"
        has_elements = isinstance(
            value, (dict, types.MappingProxyType, list, collections.deque, tuple, set, frozenset)
        )
        is_followed = isinstance(value, FOLLOWED)
        if is_closed_class(kind) and not (has_elements or is_followed or is_class_of_flexsn(kind)):
            self.lines.append((path, (what, Same(value))))
            return
        attributes = getattr(value, "__dict__", None)
        closed_code_reads_it = any(
            base not in TRANSPARENT_BASES and is_closed_class(base) and not is_class_of_flexsn(base)
            for base in kind.__mro__
        )
        all_in_view = has_elements or is_followed
        if attributes is not None or _slots_of(kind):
            all_in_view = all_in_view or not closed_code_reads_it
        identity = () if all_in_view else (Same(value),)
        self.lines.append((path, (what, self._class(kind) or Same(kind), *identity)))
        if has_elements:
            self._container(value, path, route)
        self._slots(value, path, route)
        if isinstance(value, torch.nn.Module):
            for group in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
                self._hooks(attributes[group], f"{path}.{group}")
            for group in _HOOKS_OF_ALL_MODULES:
                self._hooks(getattr(torch.nn.modules.module, group), f"torch.nn.modules.module.{group}")
        if attributes is not None:
            if HOOKS not in path:
                self.objects.append((value, kind, attributes))
            self._follow(functools.partial(self._open_object, value, attributes, path, route))
            if closed_code_reads_it:
                self._open_object(value, attributes, path, route, frozenset(), True)

    def _slots(self, value: Any, path: str, route: Route | None) -> None:
        for slot in _slots_of(type(value)):
            read = functools.partial(slot_content, slot, value)
            self._watch(f"{path}.{slot.__name__}", read, _then(route, "attr", slot.__name__))

    def _hooks(self, hooks: dict[int, Any], path: str) -> None:
        """Hooks of modules, which run with the step and are the same only where they are the same objects."""
        if (id(hooks), "hooks") in self._guarded:
            return
        self._guarded.add((id(hooks), "hooks"))
        self.lines.append((path, tuple(map(Same, hooks.values()))))
        self.contents.append(functools.partial(same_items, hooks, tuple(hooks), tuple(hooks.values())))
        for index, hook in enumerate(hooks.values()):
            self._add(hook, f"{path.removesuffix('_hooks')}{HOOKS}{index}]", functools.partial(_itself, hook), None)

    def _container(self, value: Any, path: str, route: Route | None) -> None:
        kind = type(value)
        if kind in _REFILLED:
            self.containers.append(value)
        if isinstance(value, (dict, types.MappingProxyType)):
            keys = tuple(value.keys())
            self.lines.append((f"keys of {path}", ("keys", kind, tuple(map(constant_value, keys)))))
            self.contents.append(functools.partial(same_items, value, keys, tuple(value.values())))
            for key in keys:
                read = functools.partial(operator.getitem, value, key)
                self._add(value[key], f"{path}[{reprlib.repr(key)}]", read, _then(route, "item", key))
        elif isinstance(value, (set, frozenset)):
            others = [each for each in value if not isinstance(each, tuple) and plain_value(each) is None]
            # By identity: `in` would compare tensors.
            ids = set(map(id, others))
            plain = frozenset(constant_value(each) for each in value if id(each) not in ids)
            self.lines.append((f"members of {path}", ("members", kind, plain)))
            self.contents.append(functools.partial(same_members, value, tuple(value)))
            for index, each in enumerate(others):
                self._add(each, f"{path}{{{index}}}", functools.partial(_itself, each), None)
        else:
            self.lines.append((f"length of {path}", ("length", kind, len(value))))
            if not isinstance(value, tuple):
                self.contents.append(functools.partial(same_elements, value, tuple(value)))
            for index, each in enumerate(value):
                read = functools.partial(operator.getitem, value, index)
                self._add(each, f"{path}[{index}]", read, _then(route, "item", index))

    def _environment(self, path: str) -> None:
        """Environment variables, as they are when this is checked."""
        content = tuple(sorted(os.environ.items()))
        self.lines.append((path, ("environment", content)))
        self.contents.append(lambda: tuple(sorted(os.environ.items())) == content)

    # Attributes, opened as their names turn up.

    def _follow(self, opener: Callable[[frozenset[str], bool], None]) -> None:
        self._openers.append(opener)
        opener(self._opened, self._all_open)

    def _open_class(
        self, kind: type, path: str, route: Route | None, names: frozenset[str], all_open: bool
    ) -> None:
        self._hold_length(kind.__dict__, kind)
        for name, value in kind.__dict__.items():
            is_storage = isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))
            if is_storage or name in NOT_FOLLOWED:
                continue
            special = name.startswith("__") and name.endswith("__")
            called = name in CALLED_BY_TORCH or (special and _may_be_called(value))
            if (called and name not in NOT_CALLED) or name in names or (all_open and not special):
                self._hold(kind.__dict__, name, f"{path}.{name}", _then(route, "attr", name), kind)
        for base in (*kind.__mro__[1:], *type(kind).__mro__):
            if not is_closed_class(base):
                wanted = base.__dict__.keys() if all_open else names & base.__dict__.keys()
                for name in wanted - kind.__dict__.keys():
                    self._hold_absence(kind.__dict__, name, kind)

    def _open_object(
        self,
        owner: Any,
        attributes: dict[str, Any],
        path: str,
        route: Route | None,
        names: frozenset[str],
        all_open: bool,
    ) -> None:
        groups = [attributes]
        if isinstance(owner, torch.nn.Module):
            groups += [attributes[group] for group in ("_parameters", "_buffers", "_modules")]
            names |= {"forward"}
            if parametrize.is_parametrized(owner):
                names |= {"parametrizations"}  # read by the properties that torch puts in place of parameters
        ours = any(map(is_class_of_flexsn, type(owner).__mro__))
        for group in groups:
            wanted = sorted(names & group.keys())
            self._hold_length(group)
            if all_open:
                # What is private in an object of ours is about running a neuron, not about its step.
                wanted += [name for name in group if not (ours and name.startswith("_"))]
            for name in wanted:
                if name not in NOT_FOLLOWED:
                    self._hold(group, name, f"{path}.{name}", _then(route, "attr", name))
        for base in type(owner).__mro__:
            if not is_closed_class(base):
                for name in sorted((names & base.__dict__.keys()) - attributes.keys()):
                    if (id(attributes), name) in self._guarded:
                        continue
                    self._hold_absence(attributes, name)
                    # Read through the object, so that a compiler sees the one that would hide it as well.
                    way, value = _then(route, "attr", name), base.__dict__[name]
                    if way is not None and plain_value(value) is not None:
                        self.plain_routes.append((way, value))

    # One step of the walk.

    def _watch(self, path: str, read: Callable[[], Any], route: Route | None) -> None:
        """Guards what is read anew each time, and adds it where there is something."""
        value = read()
        self.contents.append(functools.partial(still_reads, read, value))
        if value is not EMPTY:
            self._add(value, path, read, route)

    def _add(self, value: Any, path: str, read: Callable[[], Any], route: Route | None) -> None:
        self._pending.append((value, path, read, route))

    def _hold(self, holder: Any, name: str, path: str, route: Route | None, owner: Any = None) -> None:
        """Guards what a dict holds under a name, and adds it; once for each place.

        The owner stands for a dict that is a new object each time it is asked for.
        """
        place = (id(holder if owner is None else owner), name)
        if place not in self._guarded:
            self._guarded.add(place)
            self.held.append((holder, name, holder[name]))
            self._add(holder[name], path, functools.partial(operator.getitem, holder, name), route)

    def _hold_length(self, holder: Any, owner: Any = None) -> None:
        """Guards that a dict gets no further names, which code may look for; once for each dict."""
        place = (id(holder if owner is None else owner), "")
        if place not in self._guarded:
            self._guarded.add(place)
            self.lengths.append((holder, len(holder)))

    def _hold_absence(self, holder: Any, name: str, owner: Any = None) -> None:
        """Guards that a dict gets nothing under a name, which would hide what is found elsewhere."""
        place = (id(holder if owner is None else owner), name)
        if place not in self._guarded:
            self._guarded.add(place)
            self.absent.append((holder, name))
