"""From a Python core to a neuron's text: one step is traced with its gradients and handed to C++."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ._connections import Reaches
from ._elsewhere import hashes_watched
from ._library import ops
from ._listing import Listing
from ._parameters import place_of, type_name, value_of
from ._program import Program, program_of, run_program
from ._reach import Reach, describe
from ._recording import Like, NoDerivative, OtherDevice, Recorded, TraceError, record
from ._torch import functions_unseen
from ._unchanged import Unchanged

__all__ = ["Like", "Program", "Trace", "TraceError", "run_program", "trace"]


@dataclass(eq=False)
class Trace:
    """A core as a neuron: its text, and how parameters are made from the tensors that the core captures."""

    text: str
    num_inputs: int
    num_states: int
    num_outputs: int
    state_dtypes: tuple[torch.dtype, ...]
    output_dtypes: tuple[torch.dtype, ...]
    trainable: bool
    #: why the core cannot be trained although it has floats to train; "" where nothing is wrong
    untrainable: str = ""
    #: where the core reads the shape of a tensor, "" where it does not
    reads_size_at: str = ""
    #: which captured tensors `prepare` (or the kernel itself, where it is None) takes
    captured: tuple[int, ...] = ()
    prepare: Program | None = None
    #: where gradients go; None: all that there are go everywhere
    reaches: Reaches | None = None
    #: which parameters are to be cut off from the graph of `prepare`
    detached: tuple[int, ...] = ()
    listing: str = field(default="", repr=False)
    #: shapes at which a core that reads its shape was found to compute the same
    shapes: set[tuple[int, ...]] = field(default_factory=set, repr=False)


def _list(
    recorded: Recorded,
    likes: Sequence[Like],
    num_inputs: int,
    captured: Sequence[torch.Tensor],
    name: str,
    sized: frozenset[int] = frozenset(),
) -> Listing:
    return Listing(recorded, num_inputs, len(likes) - num_inputs, likes[0].shape, captured, name, sized)


def _text(listing: Listing) -> str:
    try:
        text = ops.import_graph("\n".join(listing.lines))
    except ValueError as error:
        raise TraceError(_with_its_line(listing, str(error))) from None
    listing.check_parameters()
    return text


def text_for_compilers(text: str) -> str:
    """The text with what shapes its saved tensors have: torch keeps compiled code on disk by the text, also for
    the next flexsn, whose kernels may save something else."""
    return f"{text} # flexsn {ops.version()} saves {ops.saved(text)}"


def _with_its_line(listing: Listing, text: str) -> str:
    """What C++ says of a step, with the line that makes a result of another shape."""
    if shape := re.search(r"(output|new state) (\d+) has shape", text):
        outputs = listing.recorded.returned - listing.num_states
        number = int(shape[2]) + (outputs if shape[1] == "new state" else 0)
        if place := place_of(listing.recorded.results[number]):
            text = text.replace(f"{listing.name}:", f"{listing.name} ({place}):", 1)
    return text


def _other_shapes(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Shapes to trace at as well: all dimensions changed, or one at a time where that does not fit."""
    changed = [max(dim, 1) + 1 for dim in shape]
    single = [
        tuple(changed[i] if i == at else dim for i, dim in enumerate(shape)) for at in range(len(shape))
    ]
    return [tuple(changed), *(single if len(shape) > 1 else [])]


def _call(node: torch.fx.Node, places: dict[torch.fx.Node, int]) -> list[Any]:
    arguments = torch.fx.map_arg((node.args, node.kwargs), lambda source: places[source])
    return [*arguments[0], *sorted(arguments[1].items())]


def _sized(first: Recorded, second: Recorded) -> tuple[frozenset[int], str]:
    """Which calls have other arguments at another shape, and where a number differs first."""
    nodes, others = list(first.module.graph.nodes), list(second.module.graph.nodes)
    if [str(node.target) for node in nodes] != [str(node.target) for node in others]:
        return frozenset(), ""
    places, other_places = ({node: i for i, node in enumerate(group)} for group in (nodes, others))
    found, line = set(), ""
    for place, (node, other) in enumerate(zip(nodes, others)):
        if node.op != "call_function":
            continue
        pairs = [(repr(a), repr(b)) for a, b in zip(_call(node, places), _call(other, other_places))]
        if any(a != b for a, b in pairs):
            found.add(place)
            if not line and any(a != b and not a.startswith("[") for a, b in pairs):
                line = place_of(node)
    return frozenset(found), line


def _free_of_shape(
    core: Callable,
    likes: Sequence[Like],
    listing: Listing,
    text: str,
    captured: Sequence[torch.Tensor],
    static: Sequence[Any],
    carry: Sequence[bool] | None,
    plain: dict[int, torch.Tensor],
) -> tuple[Listing, str]:
    """The listing and text with nothing in them that depends on the step's shape; an error where there is."""
    recorded, name, num_inputs = listing.recorded, listing.name, listing.num_inputs
    if recorded.reads_size_at is None and not listing.uses_sizes():
        return listing, text
    here, failure = likes[0].shape, None
    untried = set(range(len(here)))
    for shape in _other_shapes(here):
        others = [Like(like.dtype, like.device, shape) for like in likes]
        try:
            again = record(core, others, captured, static, carry, name, plain)
        except Exception as error:  # of the core, at a shape that it may not be made for
            failure = error
            continue
        untried -= {i for i in untried if shape[i] != here[i]}
        sized, line = _sized(recorded, again)
        sized |= listing.sized
        listing = _list(recorded, likes, num_inputs, captured, name, sized)
        text = _text(listing)
        if _text(_list(again, others, num_inputs, captured, name, sized)) != text:
            place = line or recorded.reads_size_at
            raise TraceError(
                f"{name}{f' ({place})' if place else ''} computes something else at shape {list(shape)} than "
                f"at {list(here)}: it reads the shape of a tensor into its arithmetic; pass such a number in "
                'from outside, or use backend="torch"'
            )
        if not untried:
            break
    untried -= _fixed(len(here), listing.params)
    if untried and recorded.reads_size_at is not None:
        raise TraceError(
            f"{name} ({recorded.reads_size_at}) reads the shape of a tensor and fails at other shapes than "
            f"{list(here)}, where flexsn tries what it computes ({failure}); pass what depends on the shape "
            'in from outside, or use backend="torch"'
        ) from failure
    return listing, text


def _fixed(rank: int, params: Sequence[torch.fx.Node]) -> set[int]:
    """Dimensions of the step that parameters fix."""
    shapes = [value_of(node).shape for node in params]
    return {rank - 1 - i for shape in shapes for i, dim in enumerate(reversed(shape)) if dim != 1}


def _reaches(listing: Listing) -> Reaches | None:
    """Where the gradient of each result goes over all steps; None where all that have one go everywhere."""
    recorded, inputs, states = listing.recorded, listing.num_inputs, listing.num_states
    outputs, arguments = recorded.returned - states, inputs + states
    places: dict[int, set[int]] = {}  # of candidates, among the parameters
    for place, param in enumerate(listing.params, arguments):
        for candidate in listing.candidates_of(param):
            number = next(i for i, each in enumerate(recorded.candidates) if each is candidate)
            places.setdefault(arguments + number, set()).add(place)
    reaches = [
        {place for end in step for place in ({end} if end < arguments else places.get(end, ()))}
        for step in recorded.reaches
    ]
    for _ in range(states):  # a state of the step before reaches what its own gradient goes to there
        for reached in reaches:
            for state in [place - inputs for place in reached if inputs <= place < arguments]:
                reached |= reaches[outputs + state]
    carrying = [reaches[number] for number in recorded.tangents]
    partly = set().union(*carrying) - set().union(*carrying[:1]).intersection(*carrying)
    return Reaches(tuple(map(frozenset, reaches)), frozenset(partly)) if partly else None


def _narrower_state(name: str, place: int, dtype: torch.dtype, returned: torch.dtype) -> TypeError:
    was, now = type_name(dtype), type_name(returned)
    return TypeError(
        f"{name} takes state {place} as {was} and returns it as {now}, in which torch would compute the next step; "
        f"return it as it came, by .to({dtype}), or start it as {now} (init_states, .states, or the states given to scan)"
    )


_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of torch's own class; those of others cannot be recorded."""
    with torch.inference_mode(False), functions_unseen():
        return tensor.detach().requires_grad_(tensor.requires_grad)


def _changing(name: str, place: str, what: str) -> TraceError:
    return TraceError(
        f"{name} ({place}) reads {what}, which may be something else at each call, but a step is traced once "
        'for all of them; read it outside the core and pass it in, or use backend="torch"'
    )


def trace(
    core: Callable,
    inputs: Sequence[Like],
    states: Sequence[Like],
    captured: Sequence[torch.Tensor],
    static: Sequence[Any] = (),
    requires_grad: Sequence[bool] | None = None,
) -> Trace:
    """Traces one step. `captured` are the tensors that the core can reach (static ones too).

    requires_grad: for each input and state; an input with False has no gradient. None: all that can have one.
    """
    # torch's settings leave a variable for each patch of theirs in the context, so it is one that goes.
    run = contextvars.copy_context().run
    return run(_traced, core, inputs, states, captured, static, requires_grad)


def _elsewhere(error: OtherDevice, reach: Reach, static: Sequence[Any], device: torch.device) -> TraceError:
    """The error with the tensors that are to be moved."""
    tensors = [(place.path, place.get()) for place in reach.tensors]
    tensors += [(f"static input {i}", t) for i, t in enumerate(static) if isinstance(t, torch.Tensor)]
    places = [path for path, tensor in tensors if tensor.device != device]
    return TraceError(
        f"{error.said}; its inputs are on {device}, so {' and '.join(places[:3]) or 'what it makes'} must be there "
        f"too: module.to({str(device)!r}) moves a module, device=x.device makes a tensor where x is"
    )


def _traced(
    core: Callable,
    inputs: Sequence[Like],
    states: Sequence[Like],
    captured: Sequence[torch.Tensor],
    static: Sequence[Any],
    requires_grad: Sequence[bool] | None,
) -> Trace:
    name = describe(core)
    states = list(states)
    plain = {id(tensor): _plain(tensor) for tensor in captured if type(tensor) not in _PLAIN_CLASSES}
    captured = [plain.get(id(tensor), tensor) for tensor in captured]
    carry: Sequence[bool] | None = [True] * (len(inputs) + len(states))
    if requires_grad is not None:
        if len(requires_grad) != len(carry):
            raise ValueError(
                f"requires_grad must have an entry for each of {len(inputs)} inputs and {len(states)} "
                f"states, found {len(requires_grad)}"
            )
        # A state carries the gradient of the inputs from step to step, whoever asks for its own.
        carry = [*requires_grad[: len(inputs)], *carry[len(inputs) :]]
    unchanged = Unchanged(core)
    for what, place in unchanged.reach.changing.items():
        raise _changing(name, place, what)
    untrainable = ""
    for _ in range(4):  # a state's type only grows: half, single, double
        likes = [*inputs, *states]
        try:
            try:
                with hashes_watched() if unchanged.reach.hashes else contextlib.nullcontext([]) as hashed:
                    recorded = record(core, likes, captured, static, carry, name, plain)
            except NoDerivative as error:
                untrainable, carry = str(error), None
                try:
                    recorded = record(core, likes, captured, static, carry, name, plain)
                except TraceError:  # of a core that wants gradients, such as one with hooks
                    raise TraceError(f'{untrainable}; mend it, or use backend="torch"') from error
        except OtherDevice as error:
            unchanged.restore()
            raise _elsewhere(error, unchanged.reach, static, inputs[0].device) from error
        except BaseException:  # Ctrl-C too must leave nothing of a trace in the user's objects
            unchanged.restore()
            raise
        unchanged.check(name)
        for place in hashed:
            raise _changing(name, place, "hash() of a tensor")
        if recorded.returned < len(states):
            raise ValueError(
                f"{name} returned {recorded.returned} values, but num_states={len(states)} of them must be "
                "new states"
            )
        grown = [
            Like(torch.promote_types(state.dtype, value_of(node).dtype), state.device, state.shape)
            for state, node in zip(states, recorded.results[recorded.returned - len(states) :])
        ]
        if grown == states:
            break
        states = grown
    for place, (state, node) in enumerate(zip(states, recorded.results[recorded.returned - len(states) :])):
        if value_of(node).dtype != state.dtype:
            raise _narrower_state(name, place, state.dtype, value_of(node).dtype)
    if recorded.reads_size_at is None:
        recorded.reads_size_at = unchanged.reach.catches or None
    listing = _list(recorded, likes, len(inputs), captured, name)
    listing, text = _free_of_shape(core, likes, listing, _text(listing), captured, static, carry, plain)
    captured_places, prepare = program_of(listing)
    outputs = recorded.returned - len(states)
    return Trace(
        text=text,
        num_inputs=len(inputs),
        num_states=len(states),
        num_outputs=outputs,
        state_dtypes=tuple(state.dtype for state in states),
        output_dtypes=tuple(value_of(node).dtype for node in recorded.results[:outputs]),
        trainable=bool(recorded.tangents),
        untrainable=untrainable,
        reads_size_at=recorded.reads_size_at or "",
        reaches=_reaches(listing),
        captured=captured_places,
        prepare=prepare,
        detached=tuple(listing.detached),
        listing="\n".join(listing.lines),
    )
