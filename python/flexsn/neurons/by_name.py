"""Neurons of the library by the text that names them on the command line."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch
from torch import nn

from .._library import ops
from . import integrating, leaky, nonlinear, silent
from .described import describe
from .library import LibraryNeuron

_LEARNABLE = "learnable"


def names() -> list[str]:
    """The names that there are."""
    return list(ops.library_neurons()[0])


def named(text: str, **keywords: Any) -> LibraryNeuron:
    """The neuron of a text as on the command line: "lif", "lif:tau=3,v_reset=none,surrogate=atan".

    keywords: what else its class takes, such as step_mode.
    """
    if not isinstance(text, str):
        raise TypeError(
            'flexsn.neurons.named takes the text of a neuron, such as "lif:tau=3", found '
            f"{type(text).__name__}"
        )
    name, _, settings = text.partition(":")
    known, classes, presets = ops.library_neurons()
    if name not in known:
        ops.library_step(name, name, [], "f32")  # says which there are
    place = known.index(name)
    preset = _assignments(presets[place])
    given = _assignments(settings)
    for option in given:
        if option not in preset:
            raise ValueError(f"neuron '{name}': {_unknown(option, list(preset))}")
    kind = _class_named(classes[place])
    taken = inspect.signature(kind).parameters
    are_words = ("surrogate", *kind._words)
    whole = [option for option, parameter in taken.items() if parameter.annotation in (int, "int")]
    values = {
        option: word if option in are_words else _value(name, option, word, preset[option], option in whole)
        for option, word in {**preset, **given}.items()
    }
    if "surrogate" in values:
        values["surrogate_function"] = values.pop("surrogate")
    # What a parameter starts from is not always an argument of the class.
    starts = {option: values[option] for option in given if option not in taken and option in values}
    texts = tuple(f"{option}={given[option]}" for option in starts)
    describe(kind.__name__, name, texts, torch.float32)  # says what they may be
    made = kind(**{option: value for option, value in values.items() if option in taken}, **keywords)
    with torch.no_grad():
        for option, value in starts.items():
            getattr(made, option).fill_(value)
    return made


def _class_named(name: str) -> type[LibraryNeuron]:
    for module in (integrating, leaky, nonlinear, silent):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"the library has no class {name}")


def _assignments(text: str) -> dict[str, str]:
    """ "tau=3,v_reset=none" as a dict."""
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        option, equals, word = part.partition("=")
        if not equals:
            raise ValueError(f"expected OPTION=VALUE between commas, such as tau=3, found {part!r}")
        if option in found:
            raise ValueError(f"option {option} is given twice; give it once")
        found[option] = word
    return found


def _unknown(option: str, known: list[str]) -> str:
    close = difflib.get_close_matches(option, known, 1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"there is no option '{option}'{hint}; the options are {', '.join(known) or 'none'}"


def _value(name: str, option: str, word: str, preset: str, whole: bool) -> Any:
    """A word as the argument of a class: which values it may have is the class's to say."""
    words = {"none": None, "true": True, "false": False}
    if word in words:
        return words[word]
    start, colon, number = word.partition(":")
    try:
        if start == _LEARNABLE:
            return nn.Parameter(torch.tensor(float(number if colon else preset)))
        return int(word) if whole else float(word)
    except ValueError:
        expected = "a whole number" if whole else "a number"
        raise ValueError(f"neuron '{name}': option {option} must be {expected}, found '{word}'") from None
