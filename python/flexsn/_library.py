"""Finds and loads the C++ library, and says so where it does not fit this torch."""

from __future__ import annotations

import os
import pathlib

import torch

_HERE = pathlib.Path(__file__).parent
_NAME = "libflexsn_torch.so"


def _find() -> pathlib.Path:
    override = os.environ.get("FLEXSN_LIBRARY")
    if override:
        if not os.path.isfile(override):
            raise ImportError(f"flexsn: FLEXSN_LIBRARY must name a built {_NAME}, found no file {override}")
        return pathlib.Path(override)
    # In a package the library lies here; in a checkout it is where CMake builds it.
    for folder in (_HERE, _HERE.parents[1] / "build"):
        if (folder / _NAME).is_file():
            return folder / _NAME
    raise ImportError(
        f"flexsn: there is no compiled library ({_NAME}); install the package with pip install "
        "--no-build-isolation ., build the checkout with make, or set FLEXSN_LIBRARY to a built one"
    )


def _minor(version: str) -> str:
    """ "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split(".")[:2])


def _load(library: pathlib.Path) -> None:
    remedy = (
        "build it for the torch that is installed: pip install --no-build-isolation --force-reinstall "
        "--no-deps . in the source directory of flexsn (make in a checkout that is used in place)"
    )
    # The build writes which torch the library is for; with another one the load itself could crash.
    note = library.with_suffix(".txt")
    built_for = note.read_text().split()[-1] if note.is_file() else torch.__version__
    if _minor(built_for) != _minor(torch.__version__):
        raise ImportError(
            f"flexsn: its library is built for torch {_minor(built_for)} ({built_for}), found torch "
            f"{torch.__version__}; {remedy}"
        )
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(
            f"flexsn: its library does not load with torch {torch.__version__} ({error}); {remedy}"
        ) from error


_load(_find())
ops = torch.ops.flexsn
