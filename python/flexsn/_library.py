"""Finds and loads the C++ library, and says so where it does not fit this torch."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pathlib
import types

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
    if not hasattr(torch.ops.flexsn, "inference"):
        raise ImportError(
            f"flexsn: {library} has no operators of flexsn; FLEXSN_LIBRARY must name a built {_NAME}"
        )


def _load_calls(folder: pathlib.Path) -> types.ModuleType | None:
    """The short way from Python to the operators; it is built for one version of Python, maybe not for this."""
    path = folder / f"flexsn_calls{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    if not path.is_file():
        return None
    loader = importlib.machinery.ExtensionFileLoader("flexsn._calls", str(path))
    spec = importlib.util.spec_from_file_location("flexsn._calls", path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


_library = _find()
_load(_library)
ops = torch.ops.flexsn
calls = _load_calls(_library.parent)
