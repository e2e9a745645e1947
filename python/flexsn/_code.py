"""What the code of a function names."""

from __future__ import annotations

import dis
import functools
import re
import types
from typing import NamedTuple

_FIELDS = re.compile(r"\.([^\W\d]\w*)")
_GLOBAL_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTE_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
_TEXT_OF_VALUES = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"})
_OF_A_CALL = frozenset({"PUSH_NULL", "PRECALL", "CALL"})
_FORMATS = frozenset({"format", "format_map", "vformat"})
#: what Python calls where a value is put into a text
_TEXT_METHODS = frozenset({"__repr__", "__str__", "__format__"})
#: methods of paths and of open files that tell what a disk holds
FILE_READS = frozenset({
    "read_text", "read_bytes", "read", "readline", "readlines", "readinto", "getvalue", "open", "stat",
    "lstat", "exists", "is_file", "is_dir", "iterdir", "glob", "rglob",
})  # fmt: skip


class Names(NamedTuple):
    """What a code object and those nested in it name."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[tuple[int, str], ...]
    dotted: tuple[tuple[tuple[str, ...], int], ...]
    """Globals with the attributes that are read of them at once, such as ("time", "time"), and the lines."""
    strings: frozenset[str]
    """Constant strings, which may name what is read by `getattr`."""
    file_reads: tuple[tuple[str, int], ...]
    """Attributes that are read of files and paths, if it is one, and the lines."""
    catches: int
    """The line of the first statement that catches exceptions; 0: there is none."""


def _key_of_globals(instructions: list[dis.Instruction], index: int) -> str | None:
    """The key in `globals()["key"]` or `globals().get("key")`, whose first instruction is given."""
    after = [each for each in instructions[index + 1 :] if each.opname not in _OF_A_CALL][:3]
    by_get = after[0].opname in ("LOAD_ATTR", "LOAD_METHOD") and after[0].argval == "get"
    if len(after) < 3 or after[by_get].opname != "LOAD_CONST" or not isinstance(after[by_get].argval, str):
        return None
    # A string behind it may also be another argument, as in `run(globals(), "key")`.
    is_key = by_get or after[1].opname in ("BINARY_SUBSCR", "BINARY_OP")
    return after[by_get].argval if is_key else None


def _goes_on(instructions: list[dis.Instruction], index: int) -> bool:
    """Does code go on after this end of a handler? Of `finally` it raises again; `with` has one of its own."""
    before, after = instructions[index - 1].opname, instructions[index + 1].opname
    return after != "RERAISE" and not (before == after == "POP_TOP")


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> Names:
    """Reads the names of a code object from its instructions."""
    names: dict[str, None] = {}
    attributes: set[str] = set()
    imports: dict[tuple[int, str], None] = {}
    dotted: dict[tuple[str, ...], int] = {}
    strings: set[str] = set()
    file_reads: dict[str, int] = {}
    catches = 0
    instructions = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    for index, each in enumerate(instructions):
        if each.opname in _GLOBAL_LOADS:
            names[each.argval] = None
            if each.argval == "globals" and (key := _key_of_globals(instructions, index)) is not None:
                names[key] = None
                continue
            parts = [each.argval]
            for after in instructions[index + 1 :]:
                if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                parts.append(after.argval)
            dotted.setdefault(tuple(parts), each.positions.lineno or code.co_firstlineno)
        elif each.opname in _ATTRIBUTE_LOADS:
            attributes.add(each.argval)
            if each.argval in _FORMATS and instructions[index - 1].opname != "LOAD_CONST":
                attributes.add("__dict__")  # which attributes it reads is said elsewhere
            if each.argval in FILE_READS:
                file_reads.setdefault(each.argval, each.positions.lineno or code.co_firstlineno)
        elif each.opname == "POP_EXCEPT" and _goes_on(instructions, index):
            catches = catches or each.positions.lineno or code.co_firstlineno
        elif each.opname in _TEXT_OF_VALUES or (each.opname == "BINARY_OP" and each.argrepr == "%"):
            attributes |= _TEXT_METHODS
        elif each.opname == "MATCH_CLASS":
            attributes |= {"__match_args__", "__dict__"}  # which attributes it reads is said elsewhere
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
            strings |= inner.strings
            file_reads = dict(inner.file_reads) | file_reads
            catches = catches or inner.catches
        elif isinstance(constant, str):
            strings.add(constant)
        elif isinstance(constant, tuple):
            # `case Config(alpha=a)` keeps the names of the attributes that it reads in a tuple.
            attributes.update(each for each in constant if isinstance(each, str))
    if not {"repr", "str", "ascii", *_FORMATS}.isdisjoint(attributes | names.keys()):
        attributes |= _TEXT_METHODS
    if not _FORMATS.isdisjoint(attributes):  # "{0.name}".format(value)
        attributes.update(name for string in strings if "{" in string for name in _FIELDS.findall(string))
    return Names(
        tuple(names),
        frozenset(attributes),
        tuple(imports),
        tuple(dotted.items()),
        frozenset(strings),
        tuple(file_reads.items()),
        catches,
    )
