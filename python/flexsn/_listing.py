"""Writes a recording as the listing that C++ imports."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from ._parameters import TYPES, Parameters, place_of, type_name, value_of
from ._recording import SHAPE_OF_DATA, Recorded
from ._torch import schema_of


def _fits(number: int, dtype: torch.dtype) -> bool:
    limits = torch.iinfo(dtype)
    return limits.min <= number <= limits.max


def _out_of_range(number: int, dtype: torch.dtype) -> str:
    limits, name = torch.iinfo(dtype), type_name(dtype)
    return (
        f"the number {number} meets {name}, which ends at {limits.min} and {limits.max}; write one that fits, "
        'or convert the tensor to float first, or use backend="torch"'
    )


class Listing(Parameters):
    """Writes what C++ imports: torch/import.h describes the lines."""

    def __init__(
        self,
        recorded: Recorded,
        num_inputs: int,
        num_states: int,
        step_shape: Sequence[int],
        captured: Sequence[torch.Tensor],
        name: str,
        sized: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(recorded, step_shape, captured, name, sized)
        self.num_inputs, self.num_states = num_inputs, num_states
        self.numbers: dict[torch.fx.Node, int] = {}
        self.count = 0
        self.lines = [f"core\t{name}", "step\t" + ",".join(map(str, step_shape))]
        self.write()

    def number(self, node: torch.fx.Node) -> None:
        self.numbers[node] = self.count
        self.count += 1

    def value_line(self, node: torch.fx.Node, role: str, name: str) -> None:
        value = value_of(node)
        self.number(node)
        shape = ",".join(map(str, value.shape))
        # Of a parameter `check_parameters` says more once the rest is found to be in order.
        dtype = value.dtype if role != "param" or value.dtype in TYPES else torch.int32
        self.lines.append(f"value\t{role}\t{name}\t{type_name(dtype)}\t{shape}")

    def write(self) -> None:
        recorded = self.recorded
        outputs = recorded.returned - self.num_states
        for i, node in enumerate(self.placeholders):
            role = "input" if i < self.num_inputs else "state"
            self.value_line(node, role, f"{role} {i if i < self.num_inputs else i - self.num_inputs}")
        for k, node in enumerate(self.params):
            self.value_line(node, "param", f"parameter {k}")
        for i, node in recorded.tangents.items():
            if i < outputs:
                self.value_line(node, f"grad_output:{i}", f"gradient of output {i}")
            else:
                self.value_line(node, f"grad_state:{i - outputs}", f"gradient of state {i - outputs}")
        grads = [g for g in recorded.primal_grads if g is not None]
        roots = [*recorded.results, *grads, *(g for parts in self.param_grads for g in parts)]
        for node in sorted(self.needed(roots), key=lambda n: self.order[n]):
            if node not in self.numbers:
                self.node_line(node)
        for i, node in enumerate(recorded.results):
            kind = "output" if i < outputs else f"next:{i - outputs}"
            self.lines.append(f"result\t{kind}\t{self.argument(node)}")
        for i, grad in enumerate(recorded.primal_grads):
            if grad is not None:
                kind = f"grad_input:{i}" if i < self.num_inputs else f"grad_state:{i - self.num_inputs}"
                self.lines.append(f"result\t{kind}\t{self.argument(grad)}")
        for k, (param, parts) in enumerate(zip(self.params, self.param_grads)):
            if parts:
                self.lines.append(f"result\tgrad_param:{k}\t{self.summed(param, parts)}")

    def summed(self, param: torch.fx.Node, parts: list[torch.fx.Node]) -> str:
        """The gradient of a parameter that entered in several ways."""
        total = self.reduced(param, parts[0])
        for part in parts[1:]:
            total = self.line_of_ours(
                "add.Tensor", value_of(part).dtype, param, total, self.reduced(param, part)
            )
        return total

    def reduced(self, param: torch.fx.Node, grad: torch.fx.Node) -> str:
        """A gradient of the step's shape is summed to that of the parameter."""
        shape, whole = value_of(param).shape, value_of(grad).shape
        if [dim for dim in whole if dim != 1] == [dim for dim in shape if dim != 1]:
            return self.argument(grad)
        lead = len(whole) - len(shape)
        dims = [i for i, dim in enumerate(whole) if i < lead or dim != shape[i - lead]]
        sizes = ",".join(map(str, dims))
        return self.line_of_ours(
            "sum.dim_IntList", value_of(grad).dtype, param, self.argument(grad), f"l:{sizes}", "b:1"
        )

    def line_of_ours(self, function: str, dtype: torch.dtype, shaped: torch.fx.Node, *arguments: str) -> str:
        name, shape = type_name(dtype), ",".join(map(str, value_of(shaped).shape))
        self.lines.append("\t".join(["node", function, name, name, shape, "", "0", "", *arguments]))
        self.count += 1
        return f"%{self.count - 1}"

    def node_line(self, node: torch.fx.Node) -> None:
        if node in self.literals:
            value = self.literals[node]
            dtype = type_name(value_of(node).dtype)
            if dtype == "int64":  # a number beside tensors, as torch sees it
                dtype = "int32"
                if not _fits(value, torch.int32):
                    for user in node.users:
                        if user.op == "call_function" and not self.common_type(user).is_floating_point:
                            self.fail(user, _out_of_range(value, torch.int32))
                    dtype, value = "float64", float(value)
            # It broadcasts like a scalar, but it may be a result as well.
            shape = tuple(value_of(node).shape)
            sizes = ",".join(map(str, shape)) if shape == tuple(self.step_shape) else ""
            self.number(node)
            fields = ["node", "full.default", dtype, dtype, sizes, "", "0", node.name, "l:"]
            self.lines.append("\t".join([*fields, self.literal_text(value)]))
            return
        if node.op != "call_function":
            self.fail(node, f"{node.op} {node.target} is nothing that a step may hold")
        call, which = node, ""
        if node.target is operator.getitem:  # one of several results
            call, which = node.args[0], f"#{node.args[1]}"
        elif isinstance(node.meta["val"], (tuple, list)):
            return
        self.not_random(call)
        schema = schema_of(call.target)
        schema_name = schema.name.removeprefix("aten::")
        function = f"{schema_name}.{schema.overload_name or 'default'}{which}"
        if schema.is_mutable:
            self.fail(
                node,
                f"torch.{schema_name} changes a tensor that the core captures; a step may change nothing "
                "but its states: return it as one",
            )
        value = value_of(node)
        if not all(isinstance(size, int) for size in value.shape):
            self.fail(node, f"torch.{schema_name} {SHAPE_OF_DATA}")
        self.check_numbers(call, schema)
        file, _, line = place_of(call).rpartition(":")
        arguments = [self.argument(a) for a in call.args]
        arguments += [f"{key}={self.argument(a)}" for key, a in call.kwargs.items()]
        self.number(node)
        self.lines.append(
            "\t".join(
                [
                    "node",
                    function,
                    type_name(value.dtype),
                    type_name(self.common_type(call)),
                    ",".join(map(str, value.shape)),
                    file,
                    line or "0",
                    node.name,
                    *arguments,
                ]
            )
        )

    def check_numbers(self, call: torch.fx.Node, schema: torch.FunctionSchema) -> None:
        """Refuses numbers that do not fit into the integers they meet; torch takes what is left of their bits."""
        compared = self.common_type(call)
        for place, argument in enumerate(schema.arguments):
            given = call.args[place] if place < len(call.args) else call.kwargs.get(argument.name)
            is_number = type(given) is int and str(argument.type) in ("Tensor", "number", "Optional[number]")
            if is_number and compared in (torch.int32, torch.uint8) and not _fits(given, compared):
                self.fail(call, _out_of_range(given, compared))
            if compared == torch.uint8 and isinstance(given, torch.fx.Node):
                self.check_scalar(call, self.same(given))

    def check_scalar(self, call: torch.fx.Node, given: torch.fx.Node) -> None:
        """A tensor without dimensions takes the type of what it meets, with what is left of its bits."""
        value = value_of(given)
        if not isinstance(value, torch.Tensor) or value.dim() != 0 or value.dtype in (torch.uint8, torch.bool):
            return
        if given in self.literals:
            if not _fits(self.literals[given], torch.uint8):
                self.fail(call, _out_of_range(self.literals[given], torch.uint8))
        elif len(self.step_shape):
            self.fail(
                call,
                f"an {type_name(value.dtype)} tensor without dimensions meets uint8, whose type torch gives it; "
                "make it uint8 outside the core",
            )

    def common_type(self, node: torch.fx.Node) -> torch.dtype:
        """The type in which torch would compare the operands."""
        operands = [
            value_of(a) if isinstance(a, torch.fx.Node) else a
            for a in node.args
            if isinstance(a, (torch.fx.Node, int, float, bool))
        ]
        if len(operands) == 1 and isinstance(operands[0], torch.Tensor):
            return operands[0].dtype
        if len(operands) < 2 or not any(isinstance(o, torch.Tensor) for o in operands[:2]):
            return value_of(node).dtype
        found = torch.result_type(operands[0], operands[1])
        return torch.int32 if found == torch.int64 else found  # of a bool and a number, whose bits are few

    def argument(self, given: Any) -> str:
        if isinstance(given, torch.fx.Node):
            return f"%{self.numbers[self.same(given)]}"
        if given is None:
            return "n"
        if isinstance(given, (bool, int, float, complex)):
            return self.literal_text(given)
        if isinstance(given, torch.dtype):
            return f"t:{type_name(given)}"
        if isinstance(given, (list, tuple)):
            if any(isinstance(item, torch.fx.Node) for item in given):
                return self.argument(given[0]) if len(given) == 1 else "s:tensors"
            return "l:" + ",".join(str(item) for item in given if isinstance(item, int))
        return f"s:{given}"

    @staticmethod
    def literal_text(value: float | int | bool) -> str:
        if isinstance(value, bool):
            return f"b:{int(value)}"
        if isinstance(value, complex):
            return f"s:{value}"
        return f"i:{value}" if isinstance(value, int) else f"f:{float(value).hex()}"
