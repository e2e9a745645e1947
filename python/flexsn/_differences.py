"""What is another thing in one reach of a core than in another, in words."""

from __future__ import annotations

import reprlib
from collections.abc import Collection

from torch import Tensor

from ._reach import DEFAULT_DTYPE, HOOKS, Reach
from ._values import CODE


NOTHING = "nothing changed"


def changed_values(before: Reach, after: Reach) -> str:
    """Says which plain values changed; "" where none did, whatever else is another."""
    both = (before._plain.keys() & after._plain.keys()) - {DEFAULT_DTYPE}
    return _changes(before, after, both)


def difference(before: Reach, after: Reach) -> str:
    """Says what changed between two reaches of a core, for example "self.alpha was 2.0 and is 3.0"."""
    return _changes(before, after, None) or NOTHING


def changed_by_core(before: Reach, after: Reach) -> str:
    """What a core changed, in words; "" where only hooks of its modules did, which may note what they see."""
    if before.key == after.key:
        return difference(before, after)
    paths = {path for path, _ in (*before.key, *after.key) if HOOKS not in path}
    return _changes(before, after, paths)


def _changes(before: Reach, after: Reach, paths: Collection[str] | None) -> str:
    old, new = dict(before.key), dict(after.key)
    changes = []
    for path in old | new:
        if old.get(path) == new.get(path) or (paths is not None and path not in paths):
            continue
        if path not in new:
            changes.append(f"{path} was {_in_words(before, path)} and is gone")
        elif path not in old:
            changes.append(f"{path} is new: {_in_words(after, path)}")
        elif old[path][0] is CODE and new[path][0] is CODE:
            changes.append(f"the code of {path} changed")
        else:
            was, now = _in_words(before, path), _in_words(after, path)
            changes.append(f"{path} is another {now}" if was == now else f"{path} was {was} and is {now}")
    if len(changes) > 3:
        changes[3:] = [f"and {len(changes) - 3} more"]
    return "; ".join(changes)


def _in_words(reach: Reach, path: str) -> str:
    """Describes what a reach holds at a path."""
    if path in reach._plain:
        return reprlib.repr(reach._plain[path])
    what, *facts = dict(reach.key)[path]
    if what is Tensor:
        dtype, shape, requires_grad, device = facts[:4]
        gradient = " that requires grad" if requires_grad else ""
        return f"{str(dtype).removeprefix('torch.')} tensor of shape {list(shape)} on {device}{gradient}"
    if what == "length":
        return str(facts[1])
    return what
