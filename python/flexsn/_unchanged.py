"""What a core can reach is the same after a step as before it, and is put back where it is not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import torch

from ._contents import same_elements, same_items, same_members
from ._differences import NOTHING, changed_by_core
from ._elsewhere import kept_results
from ._reach import Reach, describe
from ._recording import TraceError


def _random_states() -> tuple[Any, bytes]:
    return random.getstate(), numpy.random.get_state()[1].tobytes() + bytes(
        str(numpy.random.get_state()[2:]), "ascii"
    )


def _refill(container: Any, before: Any) -> None:
    """Gives a container back what it held, unless it holds the same."""
    if isinstance(before, dict):
        same = same_items(container, tuple(before), tuple(before.values()))
    else:
        same = (same_members if isinstance(before, set) else same_elements)(container, tuple(before))
    if same:
        return
    container.clear()
    if isinstance(before, (dict, set)):
        container.update(before)
    else:
        container.extend(before)


class Unchanged:
    """What a core can reach, which must be the same after a step that was not asked for: it has no state."""

    _GROUPS = ("_parameters", "_buffers", "_modules", "_memories")

    def __init__(self, core: Callable) -> None:
        self.core = core
        self.reach = Reach(core)
        self.random = _random_states()
        self.objects = [(thing, attributes, dict(attributes)) for thing, _, attributes in self.reach.objects]
        self.objects += [
            (thing, attributes[group], dict(attributes[group]))
            for thing, _, attributes in self.reach.objects
            for group in self._GROUPS
            if isinstance(attributes.get(group), dict)
        ]
        self.containers = [(container, container.copy()) for container in self.reach.containers]

    def restore(self) -> list[str]:
        """Puts back what was assigned or put into containers, and says what it was."""
        words = "" if self.reach.current() else changed_by_core(self.reach, Reach(self.core))
        # What is equal to what was there has no words but that it was assigned.
        changed = self._assigned() if words == NOTHING else []
        self.reach.put_back()
        changed += self._assigned()
        for _, attributes, before in self.objects:
            attributes.update(before)
            for key in attributes.keys() - before.keys():
                del attributes[key]
        for container, before in self.containers:
            _refill(container, before)
        if words and not (changed and words == NOTHING):
            changed.insert(0, words)
        return list(dict.fromkeys(changed))

    def _assigned(self) -> list[str]:
        return [
            f"{type(thing).__name__}.{key} was assigned"
            for thing, attributes, before in self.objects
            for key in attributes.keys() | before.keys()
            if attributes.get(key) is not before.get(key)
        ]

    def check(self, name: str) -> None:
        changed = self.restore()
        for wrapper, path in self.reach.caches:
            for kept in kept_results(wrapper)[:1]:
                if isinstance(kept, torch.Tensor):
                    wrapper.cache_clear()  # one that was made while tracing is of no use to others
                raise TraceError(
                    f"{name} reads what {describe(wrapper)} ({path}, under functools.lru_cache) keeps, a "
                    f"{type(kept).__name__}, which may change without being seen; let it return numbers or "
                    'tuples of them, or make it outside the core, or use backend="torch"'
                )
        if self.random != _random_states():
            raise TraceError(
                f"{name} draws random numbers (random or numpy.random), which would be the same at every "
                'step and in every call; draw them outside the core and pass them in, or use backend="torch"'
            )
        if changed:
            raise TraceError(
                f"{name} changes what it does not return ({'; '.join(changed[:3])}); "
                "a step may change nothing "
                'but its states: take it as an argument and return it as a new state, or use backend="torch"'
            )
