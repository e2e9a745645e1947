"""The command line: python -m flexsn bench|check|explain|export|show my_file.py:core, or lif:tau=3."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib.util
import json
import math
import pathlib
import re
import sys
import traceback
import types
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from . import version
from ._subject import argument_names, told_states
from .bench import OTHERS, bench
from .export import FORMATS, export
from .inspect import DTYPES, KINDS, STAGES, check, explain, show, why_not_there
from .neuron import FlexSN, FlexSNKernel
from .neurons import LibraryNeuron, by_name

WRONG_USE = 2


class _WrongUse(Exception):
    """What the caller can mend; the text says how."""


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flexsn", description="Looks at the core of a spiking neuron, written in Python."
    )
    parser.add_argument("--version", action="version", version=version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="bench|check|explain|export|show")
    about = {
        "bench": "time inference and training of it beside the eager loop, torch.compile and SpikingJelly",
        "check": "try its kernels against the eager loop and against the interpreter",
        "explain": "say what a call runs, reads, writes, copies, saves and recomputes",
        "export": "write it as a Triton module that runs without flexsn, as CUDA C++ or as .fsn text",
        "show": "print a stage of its way from torch to machine code",
    }
    for name, text in about.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "core",
            metavar="FILE.py:CORE|NAME",
            help="a function, module or FlexSN of a file, or a neuron of the library, such as lif:tau=3",
        )
        command.add_argument(
            "--states", type=int, metavar="N", help="how many; by default as arguments and results tell"
        )
        command.add_argument("--inputs", type=int, metavar="N", help="how many inputs; by default the others")
        command.add_argument(
            "--param", type=float, action="append", default=[], metavar="NUMBER", help="passed after states"
        )
        if name not in ("export", "show"):
            command.add_argument("--T", type=int, metavar="STEPS", help="steps of a call")
        command.add_argument("--shape", type=_shape, metavar="DIMS", help="of one step, such as 64,32,32")
        command.add_argument(
            "--dtype", type=_dtypes, metavar="TYPES",
            help=f"of inputs: {', '.join(_SHORT)}, or one for each with commas between them",
        )  # fmt: skip
        if name != "export":
            what = "whose kernels are meant" if name in ("explain", "show") else "on which it runs"
            command.add_argument("--device", type=_device, metavar="cpu|cuda", help=what)
        command.add_argument("--json", action="store_true", help="print fields for programs")
        if name == "bench":
            command.add_argument(
                "--vs", type=_others, default=("eager", "compile"), metavar="NAMES",
                help=f"of {', '.join(OTHERS)}; by default eager,compile",
            )  # fmt: skip
            command.add_argument("--seconds", type=_seconds, default=1.0, help="for a figure; by default 1")
            command.add_argument("--out", metavar="FILE.json", help="write the figures there")
            command.add_argument("--plot", metavar="FILE.png", help="draw them there, with matplotlib")
        if name == "export":
            command.add_argument("--format", choices=FORMATS, help="by default the file's, or triton")
            command.add_argument("-o", "--output", metavar="FILE", help="write there instead of printing it")
            command.add_argument("--kind", choices=KINDS, help="of which kernel, for cuda")
        if name == "check":
            command.add_argument("--seed", type=int, default=0, help="of the random data")
        if name == "show":
            command.add_argument("--stage", choices=STAGES, default="ir", help="which text; by default ir")
            command.add_argument("--kind", choices=KINDS, help="of which kernel, for plan, llvm and asm")
    return parser


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        shape = (-1,)
    if any(size < 0 for size in shape):
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between them, found {text!r}")
    return shape


def _device(text: str) -> torch.device:
    if not re.fullmatch("cpu|cuda|cuda:(0|[1-9][0-9]?)", text):
        raise argparse.ArgumentTypeError(f"must be cpu, cuda or such as cuda:1, found {text!r}")
    return torch.device(text)


_SHORT = [name for name in DTYPES if len(name) < 5]


def _dtypes(text: str) -> str | list[str]:
    names = text.split(",")
    for name in names:
        if name not in _SHORT:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(_SHORT)}, found {name!r}")
    return names if len(names) > 1 else text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, found {text!r}")
    return seconds


def _others(text: str) -> tuple[str, ...]:
    names = tuple(part for part in text.split(",") if part)
    for name in names:
        if name not in OTHERS:
            raise argparse.ArgumentTypeError(
                f"must be of {', '.join(OTHERS)} with commas between them, found {name!r}"
            )
    return names


def _load(argument: str) -> Any:
    """The object that FILE.py:CORE names, or the neuron of the library that NAME or NAME:OPTIONS is."""
    start = argument.partition(":")[0]
    if start in by_name.names():
        return by_name.named(argument, step_mode="m")
    file, colon, name = argument.rpartition(":")
    if not colon or not name:
        close = difflib.get_close_matches(start, by_name.names(), 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise _WrongUse(
            f"expected FILE.py:CORE, such as my_file.py:lif, found {argument!r}, which is no neuron of the "
            f"library either{hint}"
        )
    path = pathlib.Path(file)
    if not path.is_file():
        raise _WrongUse(f"there is no file {file!r}")
    module = _run_file(path)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise _WrongUse(f"{file} has no {name!r}{_near(part, found, module)}")
        found = getattr(found, part)
    if isinstance(found, type):
        raise _WrongUse(
            f"{name} of {file} is a class; make an object of it in the file, such as neuron = {name}(), and "
            "name that"
        )
    if not callable(found):
        kind = type(found).__name__
        raise _WrongUse(f"{name} of {file} must be a function or another callable, found {kind}")
    return found


def _run_file(path: pathlib.Path) -> types.ModuleType:
    # As if it were run: its neighbours can be imported. Its name must be nobody else's, least of all ours,
    # since code of flexsn and of the standard library is not looked into.
    sys.path.insert(0, str(path.resolve().parent))
    name = f"file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _WrongUse(f"{str(path)!r} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == spec.origin]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else "?"
        raise _WrongUse(f"{path} (line {line}) raised {type(error).__name__}: {error}") from error
    return module


def _near(name: str, holder: Any, module: types.ModuleType) -> str:
    """Did you mean something that is there?"""
    offered = [
        each for each, value in vars(holder).items()
        if callable(value) and not isinstance(value, type) and not each.startswith("__")
    ]  # fmt: skip
    close = difflib.get_close_matches(name, offered, 1)
    if close:
        return f" (did you mean {close[0]!r}?)"
    own = [each for each in offered if getattr(vars(holder)[each], "__module__", None) == module.__name__]
    return f"; it has {', '.join(own)}" if own else ""


def _options(core: Any, given: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"shape": given.shape, "dtype": given.dtype}
    if given.command != "export":
        options["device"] = given.device
    if isinstance(core, (FlexSN, FlexSNKernel, LibraryNeuron)):
        if given.states is not None or given.inputs is not None or given.param:
            raise _WrongUse(
                f"{given.core} is a {type(core).__name__}, which has its own counts; leave out --states, "
                "--inputs and --param"
            )
        return options
    states = _told_states(core, given) if given.states is None else given.states
    return {**options, "num_states": states, "num_inputs": given.inputs, "params": given.param}


def _told_states(core: Any, given: argparse.Namespace) -> int:
    states, told = told_states(core, given.inputs, given.param, given.shape)
    if states is None:
        shown = argument_names(core)[1] - len(given.param) - (given.inputs or 1)
        raise _WrongUse(
            f"how many states {given.core} has cannot be told from it ({told}); say --states N, such as "
            f"--states {min(max(shown, 0), 1)}"
        )
    return states


def _format(given: argparse.Namespace) -> str:
    """What to write: what is asked for, else what the name of the file says."""
    if given.format is not None or given.output is None:
        return given.format or "triton"
    by_ending = {".py": "triton", ".cu": "cuda", ".fsn": "fsn"}
    found = by_ending.get(pathlib.Path(given.output).suffix)
    if found is None:
        raise _WrongUse(
            f"what {given.output} should hold cannot be told from its ending; say --format triton, cuda or "
            "fsn"
        )
    return found


def _run(given: argparse.Namespace) -> tuple[str, dict[str, Any], int]:
    """The text of a command, its fields, the exit status."""
    core = _load(given.core)
    if given.command in ("bench", "check") and given.device is not None:
        if why := why_not_there(given.device):
            raise _WrongUse(f"{why}; leave out --device")
        core = core.to(given.device) if isinstance(core, torch.nn.Module) else core
    options = _options(core, given)
    if given.command == "show":
        text = show(core, given.stage, kind=given.kind, **options)
        return text, {"core": given.core, "stage": given.stage, "kind": given.kind, "text": text}, 0
    if given.command == "export":
        format = _format(given)
        text = export(core, format, given.output, kind=given.kind, **options)
        fields = {"core": given.core, "format": format, "output": given.output, "text": text}
        return "" if given.output else text, fields, 0
    if given.command == "explain":
        found = explain(core, given.T, **options)
        return found.text, dataclasses.asdict(found), 0
    if given.command == "bench":
        return _bench(core, given, options)
    report = check(core, given.T, seed=given.seed, **options)
    return report.text, dataclasses.asdict(report), 0 if report.passed else 1


def _bench(core: Any, given: argparse.Namespace, options: dict[str, Any]) -> tuple[str, dict[str, Any], int]:
    """Times it; files are tried before anything takes long."""
    for path in (given.out, given.plot):
        if path is not None and not pathlib.Path(path).resolve().parent.is_dir():
            raise _WrongUse(f"there is no folder for {path!r}; make it, or name another file")
    if given.plot is not None:
        from . import plot as _  # noqa: F401  says what to install where matplotlib is not there
    options = {name: value for name, value in options.items() if value is not None}
    if given.T is not None:
        options["T"] = given.T
    report = bench(core, given.vs, seconds=given.seconds, progress=_progress, **options)
    _progress("")
    if given.out is not None:
        report.write(given.out)
    if given.plot is not None:
        report.plot(given.plot)
    return report.text, dataclasses.asdict(report), 0


def _progress(text: str) -> None:
    """One line that is written over where a person looks, else a line each."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def _fail(text: str) -> NoReturn:
    print("flexsn: " + re.sub(r"^flexsn(\.\w+)?: ", "", text), file=sys.stderr)
    sys.exit(WRONG_USE)


def _plain(value: Any) -> str:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments().parse_args(arguments)
    try:
        text, fields, status = _run(given)
    except _WrongUse as error:
        _fail(str(error))
    except OSError as error:
        name = error.filename or getattr(given, "output", None)
        reason = f"{name} cannot be read or written ({error.strerror}); give another path" if name else str(error)
        _fail(reason)
    except (ValueError, TypeError, RuntimeError, ImportError) as error:
        # What flexsn says about a core names the line; a traceback through flexsn would hide it.
        _fail(str(error))
    if given.json:
        text = json.dumps(fields, indent=2, default=_plain) + "\n"
    sys.stdout.write(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
