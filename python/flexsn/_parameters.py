"""Finds the parameters of a recorded step: what enters it that is neither an input nor a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _torch
from ._recording import CUT, READS_A_VALUE, Candidate, Recorded, TraceError

TYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool}
#: what torch records where a core makes a tensor from numbers
_LIFTS = {torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default}

_VIEWS = {
    torch.ops.aten.view.default,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.alias.default,
}
_EXPAND = torch.ops.aten.expand.default


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def value_of(node: torch.fx.Node) -> torch.Tensor:
    """A stand-in for what the node gives."""
    value = node.meta["val"]
    return value[0] if isinstance(value, (tuple, list)) else value


def place_of(node: torch.fx.Node) -> str:
    """The line of the user's code, "file:line"; "" for what torch and flexsn do by themselves."""
    place = (node.stack_trace or "").strip()
    return "" if place == CUT else place


class Parameters:
    """Finds where tensors enter a step that are neither inputs nor states, and the gradients there.

    Such a tensor is a literal (a number that the core itself makes) or a parameter: a captured tensor, or
    what is made from captured tensors alone, which runs outside the kernel.
    """

    def __init__(
        self,
        recorded: Recorded,
        step_shape: Sequence[int],
        captured: Sequence[torch.Tensor],
        name: str,
        sized: frozenset[int] = frozenset(),
    ) -> None:
        """`sized`: nodes, by their places in the graph, whose arguments depend on the shape of the step."""
        self.recorded = recorded
        self.module = recorded.module
        self.name = name
        self.step_shape = step_shape
        self.captured = captured
        self.sized = sized
        self.complaints: list[tuple[torch.fx.Node, str]] = []
        self.attribute_nodes: dict[int, torch.fx.Node] = {}
        self.read_graph()
        self.find()

    def fail(self, node: torch.fx.Node, text: str) -> None:
        place = place_of(node)
        raise TraceError(f"{self.name}{f' ({place})' if place else ''}: {text}")

    def complain(self, node: torch.fx.Node, text: str) -> None:
        """What is wrong with a parameter matters once the step itself is found to be in order."""
        self.complaints.append((node, text))

    def check_parameters(self) -> None:
        for node, text in self.complaints:
            self.fail(node, text)
        for node in self.params:
            if value_of(node).dtype not in TYPES:
                self.refuse_type(node)

    def read_graph(self) -> None:
        nodes = list(self.module.graph.nodes)
        self.order = {node: i for i, node in enumerate(nodes)}
        for node in nodes:
            self.same(node)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        tangents = self.recorded.tangents.values()
        self.backward_from = min((self.order[node] for node in tangents), default=len(nodes))
        self.live: set[torch.fx.Node] = set(self.placeholders) | set(tangents)
        for place, node in enumerate(nodes):
            if place in self.sized or any(source in self.live for source in node.all_input_nodes):
                self.live.add(node)
        self.candidates_at: dict[torch.fx.Node, list[Candidate]] = {}
        for candidate in self.recorded.candidates:
            self.candidates_at.setdefault(self.same(candidate[0]), []).append(candidate)
        #: parameters that are expanded to the shape of the step, which a kernel does by itself
        self.expanded: dict[torch.fx.Node, list[torch.fx.Node]] = {}

    def find(self) -> None:
        roots = [*self.recorded.results, *(g for g in self.recorded.primal_grads if g is not None)]
        # Gradients of parameters use more nodes, which may use more parameters: until none is new.
        crossing: list[torch.fx.Node] = []
        while True:
            needed = self.needed(roots)
            for node in needed:
                self.check_tensor(node)
            new = [n for n in needed if n not in self.live and n not in crossing]
            new = new or self.behind(crossing)
            if not new:
                break
            crossing += new
            roots += [grad for node in new for _, grad, _ in self.candidates_of(node) if grad is not None]
        crossing.sort(key=lambda n: self.order[n])
        self.params: list[torch.fx.Node] = []
        self.literals: dict[torch.fx.Node, float | int | bool] = {}
        for node in crossing:
            literal = self.literal(node)
            if literal is None:
                self.params.append(node)
            else:
                self.literals[node] = literal
        self.check_whole_gradients()
        self.param_grads: list[list[torch.fx.Node]] = []
        self.detached: list[int] = []
        given: set[int] = set()
        for k, node in enumerate(self.params):
            # Several views of one parameter share its gradient, which one of them gives.
            candidates = [each for each in self.candidates_of(node) if id(each) not in given]
            given |= set(map(id, candidates))
            if not candidates:  # what it is made of inside a function has the gradient
                self.detached.append(k)
            for _, _, tensor in candidates:
                self.no_user_backward(node, tensor)
            self.param_grads.append([grad for _, grad, _ in candidates if grad is not None])

    def behind(self, crossing: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
        """Tensors that a function takes and makes others of, which enter the step; the gradient is theirs."""
        known = {id(candidate) for node in crossing for candidate in self.candidates_of(node)}
        found = {
            node: None
            for node, candidates in self.candidates_at.items()
            for candidate in candidates
            if node not in self.live and candidate[1] is not None and id(candidate) not in known
        }
        return list(found)

    def candidates_of(self, node: torch.fx.Node) -> list[Candidate]:
        """The ways in which a parameter enters the step."""
        entries = [node, *self.expanded.get(node, [])]
        return [
            candidate
            for entry in entries
            for candidate in self.candidates_at.get(self.before_views(entry), [])
        ]

    def check_whole_gradients(self) -> None:
        """Each gradient that the kernel gives must be of one entry, and none may be left out."""
        known = {
            self.before_views(entry) for node in self.params for entry in (node, *self.expanded.get(node, []))
        }
        for node, candidates in self.candidates_at.items():
            if node in self.live and node not in known and any(grad is not None for _, grad, _ in candidates):
                self.complain(
                    node,
                    "a parameter is given the shape of an input and then changed; let it broadcast "
                    "instead, or change it first",
                )

    def check_tensor(self, node: torch.fx.Node) -> None:
        if isinstance(node.meta["val"], (torch.Tensor, tuple, list)):
            return
        if node.op == "get_attr":
            layout = str(self.attribute(node).layout).removeprefix("torch.")
            self.fail(
                node, f"the core captures a tensor of layout {layout}; make it a plain one with .to_dense()"
            )
        self.fail(node, READS_A_VALUE)

    def before_views(self, node: torch.fx.Node) -> torch.fx.Node:
        """The tensor that a torch function views before it meets an input, as prelu does with its weight."""
        at = node
        while at not in self.candidates_at and at.target in _VIEWS:
            at = self.same(at.args[0])
        return at if at in self.candidates_at else node

    def same(self, node: torch.fx.Node) -> torch.fx.Node:
        """One node for all reads of a captured tensor, and for what only cuts it off."""
        while node.op == "call_function" and node.stack_trace == CUT:
            node = node.args[0]
        if node.op != "get_attr":
            return node
        return self.attribute_nodes.setdefault(id(self.attribute(node)), node)

    def attribute(self, node: torch.fx.Node) -> torch.Tensor:
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return value

    def needed(self, roots: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
        """Live nodes that the roots need, and the others that those meet."""
        found: set[torch.fx.Node] = set()
        open_nodes = [self.same(n) for n in roots]
        while open_nodes:
            node = open_nodes.pop()
            if node in found:
                continue
            found.add(node)
            self.look_through(node)
            if node in self.live and node not in self.recorded.tangents.values():
                open_nodes += [self.same(n) for n in node.all_input_nodes]
        return found

    def look_through(self, node: torch.fx.Node) -> None:
        """A parameter that is expanded to the step is smaller as it is."""
        if node.target is not _EXPAND or self.order[node] > self.backward_from:
            return
        source, shape = self.same(node.args[0]), tuple(value_of(node).shape)
        fits = len(shape) <= len(self.step_shape) and shape == tuple(
            self.step_shape[len(self.step_shape) - len(shape) :]
        )
        if source not in self.live and fits and node not in self.expanded.setdefault(source, []):
            self.live.add(node)
            self.expanded[source].append(node)

    def ancestors(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        found: dict[torch.fx.Node, None] = {}
        open_nodes = [node]
        while open_nodes:
            at = open_nodes.pop()
            if at not in found:
                found[at] = None
                open_nodes += at.all_input_nodes
        return list(found)

    def literal(self, node: torch.fx.Node) -> float | int | bool | None:
        """The number of a constant that the core itself makes: of a scalar, or of a tensor filled with it."""
        value = value_of(node)
        sources = self.ancestors(node)
        if any(source.op == "get_attr" and self.is_captured(source) for source in sources):
            return None
        filled = all(source.op == "call_function" for source in sources)
        if value.dim() != 0 and not filled:
            return None
        for source in sources:
            if source.op == "get_attr":
                self.check_constant(source)
            else:
                self.not_random(source)
        constant = self.evaluate(node, sources)
        if constant.numel() == 0:
            return 0
        first = constant.flatten()[0]
        return first.item() if bool((constant == first).all()) or constant.dim() == 0 else None

    def uses_sizes(self) -> bool:
        """Is a parameter expanded, maybe to the shape of the step (expand_as)?"""
        return any(source.target is _EXPAND for node in self.params for source in self.ancestors(node))

    def is_captured(self, node: torch.fx.Node) -> bool:
        tensor = self.attribute(node)
        return any(tensor is known for known in self.captured)

    def check_constant(self, node: torch.fx.Node) -> None:
        """A tensor that is not captured must be one that the core itself makes from numbers."""
        made_here = all(user.target in _LIFTS for user in node.users)
        if self.attribute(node).requires_grad or not made_here:
            user = next(iter(node.users), node)
            self.fail(
                user,
                "the core reaches a tensor in a way that flexsn cannot follow; capture it as an "
                "attribute, closure or global, or pass it in static_inputs",
            )

    def refuse_type(self, node: torch.fx.Node) -> None:
        dtype = value_of(node).dtype
        reader = next((user for user in node.users if place_of(user)), node)
        advice = (
            "integers of a step are int32: make it one with .int()"
            if dtype == torch.int64
            else "a step works with float32, float64, float16, bfloat16, int32, uint8 and bool"
        )
        self.fail(reader, f"a captured tensor or what is made from it is {type_name(dtype)}; {advice}")

    def evaluate(self, node: torch.fx.Node, sources: Sequence[torch.fx.Node]) -> torch.Tensor:
        """On the CPU, wherever the core makes it: one number for all devices, and a GPU that captures a graph
        cannot be waited for."""
        values: dict[torch.fx.Node, Any] = {}
        for source in sorted(sources, key=self.order.__getitem__):
            if source.op == "get_attr":
                values[source] = self.attribute(source).cpu()
                continue
            arguments, keywords = torch.fx.map_arg((source.args, source.kwargs), values.__getitem__)
            if "device" in keywords:
                keywords = {**keywords, "device": torch.device("cpu")}
            values[source] = source.target(*arguments, **keywords)
        return values[node]

    def not_random(self, node: torch.fx.Node) -> None:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            self.fail(
                node,
                f"torch.{node.target.overloadpacket.__name__} draws random numbers, which a step "
                'cannot; draw them outside the core and pass them in, or use backend="torch"',
            )

    def no_user_backward(self, node: torch.fx.Node, tensor: torch.Tensor) -> None:
        seen, open_nodes = set(), [tensor.grad_fn]
        while open_nodes:
            grad_fn = open_nodes.pop()
            if grad_fn is None or grad_fn in seen:
                continue
            seen.add(grad_fn)
            if _torch.user_backward(grad_fn):
                self.complain(
                    node,
                    f"a parameter goes through {type(grad_fn).__name__}, an autograd.Function, before it "
                    "meets an input or a state; call that function outside the core",
                )
            open_nodes += [source for source, _ in grad_fn.next_functions]
