"""The seed's code generator: an FX graph of one step as a Triton function, and generated code as kernels."""

from __future__ import annotations

import hashlib
import operator
import re
import sys
import threading
import types
from typing import Any

import torch
from torch import Tensor, fx

from .._library import ops
from .._parameters import type_name
from .._torch import schema_of
from . import code_cache

__all__ = ["compile_triton_code_str", "generate_triton_code_str"]

#: what a module has of its own, which is no part of a namespace
_METADATA = (
    "__builtins__",
    "__cached__",
    "__doc__",
    "__file__",
    "__loader__",
    "__name__",
    "__package__",
    "__spec__",
)
_lock = threading.RLock()


def stem_of(name: str) -> str:
    """A core's name as part of one in Python: lambdas and partial functions have others."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "core"
    return f"core_{plain}" if plain[0].isdigit() else plain


def named_by_content(stem: str, body: str) -> str:
    """A name that ends with a hash of what it names."""
    return f"{stem}_{hashlib.sha256(body.encode()).hexdigest()[:8]}"


def generate_triton_code_str(graph: fx.Graph, fn_name: str, verbose: bool = False) -> tuple[str, str]:
    """The graph as a Triton device function in exact ops: its code, imports included, and its name.

    The functions that it may hold are those of flexsn's op table. Values of half types are computed in
    float32. They are rounded where the graph converts a value to another half type than it has, and where a
    kernel stores it, but not after each function, as torch does; a conversion to float32 rounds nothing.
    """
    text, arguments = _neuron_of(graph, fn_name)
    stem = stem_of(fn_name)
    name = named_by_content(stem, ops.triton_function(text, stem, arguments))
    code = ops.triton_function(text, name, arguments)
    if verbose:
        print(code)
    return code, name


def compile_triton_code_str(
    triton_code: str, kernel_name: str, verbose: bool = False, name_space: dict[str, Any] | None = None
) -> Any:
    """What the code calls `kernel_name`.

    name_space: what the code may use; it is given what the code defines. Without one, equal code is run once
    in a process.
    """
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise ImportError("generated kernels need Triton, which is not installed") from error
    if verbose:
        print(triton_code)
    with _lock:
        if name_space is None:
            return _symbol(_module_of(triton_code, kernel_name).__dict__, kernel_name)
        # A symbol of an earlier call must not pass for what this code lacks.
        space = {k: v for k, v in name_space.items() if k not in _METADATA and k != kernel_name}
        before = dict(space)
        code_cache.run(kernel_name, triton_code, space)
        kernel = _symbol(space, kernel_name)
        name_space.update(
            {k: v for k, v in space.items() if k not in _METADATA and (k not in before or before[k] is not v)}
        )
        return kernel


def _module_of(code: str, kernel_name: str) -> types.ModuleType:
    stem = code_cache.file_name(kernel_name, code).removesuffix(".py")
    name = f"flexsn_generated.{stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "_flexsn_code", None) == code:
        return known
    module = types.ModuleType(name)
    module.__file__ = str(code_cache.run(kernel_name, code, module.__dict__))
    module._flexsn_code = code
    sys.modules[name] = module
    return module


def _symbol(space: dict[str, Any], kernel_name: str) -> Any:
    if kernel_name not in space:
        raise ValueError(f"the code defines no {kernel_name!r}")
    return space[kernel_name]


# ---- graphs ------------------------------------------------------------------------------------------------


def _neuron_of(graph: fx.Graph, name: str) -> tuple[str, list[str]]:
    """The graph as the text of a step whose inputs are its arguments, and their names."""
    listing = _Listing(graph, name)
    try:
        return ops.import_graph("\n".join(listing.lines)), listing.arguments
    except ValueError as error:
        raise NotImplementedError(str(error)) from error


class _Listing:
    """An FX graph in the lines that flexsn imports."""

    def __init__(self, graph: fx.Graph, name: str) -> None:
        self.numbers: dict[fx.Node, int] = {}
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        if not placeholders:
            raise ValueError(f"the graph of {name} has no argument")
        self.arguments = [node.name for node in placeholders]
        self.step = tuple(_value(placeholders[0]).shape)
        self.lines = [f"core\t{name}", "step\t" + ",".join(map(str, self.step))]
        for node in graph.nodes:
            if node.op == "placeholder":
                value = _value(node)
                self._number(node)
                sizes = ",".join(map(str, value.shape))
                self.lines.append(f"value\tinput\t{node.name}\t{type_name(value.dtype)}\t{sizes}")
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                returned = node.args[0]
                for each in returned if isinstance(returned, (list, tuple)) else (returned,):
                    self.lines.append(f"result\toutput\t{self._result(each)}")
            else:
                raise NotImplementedError(
                    f"{node.op} {node.target} in the graph of {name}: a generated kernel has arguments, and "
                    "no captured tensors or modules; pass them in"
                )

    def _number(self, node: fx.Node | None) -> str:
        number = len(self.numbers)
        self.numbers[node if node is not None else object()] = number
        return f"%{number}"

    def _line(
        self, function: str, dtype: torch.dtype, common: torch.dtype, shape: Any, *arguments: str
    ) -> None:
        sizes = ",".join(map(str, shape))
        fields = ["node", function, type_name(dtype), type_name(common), sizes, "", "0", "", *arguments]
        self.lines.append("\t".join(fields))

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem or not hasattr(node.target, "_schema"):
            raise NotImplementedError(f"{node.target} is not among the functions that a step may use")
        schema = schema_of(node.target)
        value = _value(node)
        arguments = [self._argument(each) for each in node.args]
        arguments += [f"{key}={self._argument(each)}" for key, each in node.kwargs.items()]
        function = f"{schema.name.removeprefix('aten::')}.{schema.overload_name or 'default'}"
        self._number(node)
        self._line(function, value.dtype, _common_type(node), value.shape, *arguments)

    def _result(self, given: Any) -> str:
        if isinstance(given, fx.Node):
            return f"%{self.numbers[given]}"
        if given is not None:
            raise NotImplementedError(f"the graph returns {given!r}, which is no tensor")
        # No gradient: zeros.
        self._line("full.default", torch.float32, torch.float32, self.step, "l:", "f:0.0")
        return self._number(None)

    def _argument(self, given: Any) -> str:
        if isinstance(given, fx.Node):
            return f"%{self.numbers[given]}"
        if given is None:
            return "n"
        if isinstance(given, bool):
            return f"b:{int(given)}"
        if isinstance(given, int):
            return f"i:{given}"
        if isinstance(given, float):
            return f"f:{given.hex()}"
        if isinstance(given, torch.dtype):
            return f"t:{type_name(given)}"
        if isinstance(given, (list, tuple)) and all(isinstance(each, int) for each in given):
            return "l:" + ",".join(map(str, given))
        return f"s:{given}"


def _value(node: fx.Node) -> Tensor:
    """What is known of a node's value: its type and shape."""
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    if value is None or not hasattr(value, "dtype"):
        raise ValueError(
            f"{node.name} of the graph has no type; give a graph that torch traced (meta['val'] of its nodes)"
        )
    return value


def _common_type(node: fx.Node) -> torch.dtype:
    """The type in which torch would compare the operands."""
    operands = [_value(each) if isinstance(each, fx.Node) else each for each in node.args]
    operands = [each for each in operands if isinstance(each, (Tensor, int, float, bool))]
    tensors = [each for each in operands if isinstance(each, Tensor)]
    if len(operands) == 1 and tensors:
        return tensors[0].dtype
    if len(operands) < 2 or not any(isinstance(each, Tensor) for each in operands[:2]):
        return _value(node).dtype
    return torch.result_type(operands[0], operands[1])
