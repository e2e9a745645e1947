"""Takes a neuron away: a core as a Triton module that runs without flexsn, as CUDA C++, or as .fsn text."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ._library import ops
from ._subject import OWN_COUNTS, Traced, subject_of, told_states
from .inspect import KINDS, Types, traced_alone

FORMATS = ("triton", "cuda", "fsn")
_COMMENT = {"triton": "#", "cuda": "//", "fsn": "#"}


def export(
    neuron: Any,
    format: str = "triton",
    path: str | os.PathLike[str] | None = None,
    *,
    kind: str | None = None,
    shape: Sequence[int] | None = None,
    dtype: Types | None = None,
    num_states: int | None = None,
    num_inputs: int | None = None,
    params: Sequence[Any] = (),
    inputs: Sequence[Tensor] | Tensor | None = None,
    states: Sequence[Tensor] | None = None,
) -> str:
    """The neuron as a text in a format, which is also written to `path`.

    "triton": a Python module with kernels, launch functions and an autograd function; it needs torch and
    triton. "cuda": the kernel of a `kind` ("inference_final_state" by default) as CUDA C++. "fsn": the graph,
    which the command-line program reads. What else is given is as for `show`; num_states may be left out
    where a core takes two arguments or returns two results. Tensors that the core captures are parameters of
    the kernel; the head of the text says which.
    """
    asker = "flexsn.export"
    if format not in FORMATS:
        raise ValueError(f"{asker}: format must be one of {', '.join(FORMATS)}, found {format!r}")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"{asker}: kind must be one of {', '.join(KINDS)}, found {kind!r}")
    if kind is not None and format != "cuda":
        raise ValueError(f"{asker}: kind is for the format cuda, which is one kernel; leave it out")
    if num_states is None and callable(neuron) and not isinstance(neuron, OWN_COUNTS):
        num_states, _ = told_states(neuron, num_inputs, params, shape)
    subject = subject_of(neuron, num_inputs, num_states, params, asker)
    traced = traced_alone(subject, shape, dtype, inputs, states, asker)
    sequences = subject.keeps_sequences
    # Parameters may have learned since the neuron was made: no number of then stands for them.
    text = _head(traced, _COMMENT[format]) + ops.export(traced.text, format, kind or "", sequences, False)
    if path is not None:
        pathlib.Path(path).write_text(text, encoding="utf-8")
    return text


def _head(traced: Traced, comment: str) -> str:
    """The options of a library neuron, and where the parameters of the kernel come from, as comments."""
    lines = [traced.subject.options] if traced.subject.options else []
    of_parameters = []
    for p in traced.parameters:
        kind = f"{str(p.dtype).removeprefix('torch.')} {list(p.shape)}"
        of_parameters.append(f"  {p.name}: {kind}, {p.source} of the core")
    if traced.outside:
        of_parameters += ["where, as functions of torch,", *(f"  {line}" for line in traced.outside)]
    if of_parameters:
        lines += ["Parameters, as they were when this was made:", *of_parameters]
    return "".join(f"{comment} {line}\n" for line in lines)
