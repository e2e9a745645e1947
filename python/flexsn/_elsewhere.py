"""What a step may not read, since a trace would hold what it gave once: clocks, files, memory."""

from __future__ import annotations

import cProfile
import collections.abc
import configparser
import contextlib
import ctypes
import dis
import gc
import io
import mmap
import operator
import pathlib
import queue
import random
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from ._recording import user_frame
from ._values import plain_value

# Random numbers that come from the generators of `random` and NumPy are found by the state that they change.
_CHANGING = {
    "builtins": "open eval exec id globals input",
    "time": "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns "
    "thread_time thread_time_ns localtime gmtime ctime asctime strftime clock_gettime clock_gettime_ns",
    "datetime": "datetime.now datetime.utcnow datetime.today date.today",
    "os": "urandom getrandom getpid getppid times getcwd listdir scandir stat open read popen system getloadavg "
    "walk access path.exists path.lexists path.isfile path.isdir path.getsize path.getmtime path.expandvars "
    "path.expanduser",
    "resource": "getrusage getrlimit",
    "glob": "glob iglob",
    "random": "Random SystemRandom",
    "sys": "_getframe _current_frames getrefcount getsizeof getrecursionlimit getswitchinterval gettrace "
    "getprofile getallocatedblocks",
    "inspect": "currentframe stack trace",
    "traceback": "extract_stack format_stack",
    "gc": "get_count get_stats get_objects get_referrers get_referents get_threshold isenabled",
    "uuid": "uuid1 uuid4",
    "secrets": "token_bytes token_hex token_urlsafe randbelow randbits choice SystemRandom",
    "threading": "get_ident get_native_id current_thread active_count enumerate",
    "subprocess": "run call check_call check_output getoutput",
    "decimal": "getcontext",
    "numpy": "load loadtxt genfromtxt fromfile geterr random.default_rng random.Generator random.RandomState "
    "random.SeedSequence random.MT19937 random.PCG64 random.PCG64DXSM random.Philox random.SFC64",
    "torch": "Generator is_grad_enabled is_inference_mode_enabled is_autocast_enabled is_autocast_cpu_enabled "
    "is_autocast_cache_enabled get_autocast_dtype get_autocast_cpu_dtype get_autocast_gpu_dtype initial_seed seed "
    "get_rng_state get_num_threads get_num_interop_threads load are_deterministic_algorithms_enabled "
    "is_deterministic_algorithms_warn_only_enabled get_deterministic_debug_mode get_float32_matmul_precision "
    "is_anomaly_enabled is_anomaly_check_nan_enabled is_warn_always_enabled get_default_device",
}


_functions: dict[Any, str] = {}
_not_loaded = list(_CHANGING)


def _look_up() -> None:
    """Adds the functions of modules that were loaded since, with their names."""
    for module in [name for name in _not_loaded if name in sys.modules]:
        for name in _CHANGING[module].split():
            try:
                function = operator.attrgetter(name)(sys.modules[module])
            except AttributeError:  # not in this version
                continue
            _functions[function] = f"{name}()" if module == "builtins" else f"{module}.{name}"
        _not_loaded.remove(module)


#: the last are those of NumPy's compiled code
_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType, type, type(numpy.random.default_rng))


def changing(value: Any) -> str | None:
    """Names a function or an object that gives something else at each call; None for others."""
    if isinstance(value, _FUNCTIONS):
        _look_up()
        return _functions.get(value)
    if value is object.__hash__ or value is object.__repr__:
        return f"object.{value.__name__}, where a thing lies"
    if isinstance(value, collections.abc.Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return f"an iterator ({type(value).__name__})"
    if isinstance(value, _GENERATORS):
        own = value is getattr(random.random, "__self__", None) or value is _numpy_generator()
        return None if own else f"a generator of random numbers ({type(value).__name__})"
    if isinstance(value, _HOLDERS):
        return f"an object that holds what changes ({type(value).__name__})"
    if isinstance(value, _MEMORY) or type(value).__module__.partition(".")[0] == "multiprocessing":
        return f"memory that Python does not watch ({type(value).__name__})"
    return None


_GENERATORS = (
    random.Random, numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator,
    numpy.random.SeedSequence, torch.Generator,
)  # fmt: skip

#: objects of torch and of the standard library that are there to hold something else later
_HOLDERS = (
    torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, queue.Queue, queue.SimpleQueue, threading.Event,
    configparser.RawConfigParser,
)  # fmt: skip

#: values of C and mapped files, which others may change
_MEMORY = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union, ctypes._Pointer, mmap.mmap)


def _numpy_generator() -> Any:
    return getattr(numpy.random.rand, "__self__", None)


def is_file(value: Any) -> bool:
    """Is this a path, a class of paths or an open file?"""
    if isinstance(value, type):
        return issubclass(value, pathlib.PurePath)
    return isinstance(value, (pathlib.PurePath, io.IOBase))


def kept_results(wrapper: Any) -> list[Any]:
    """What a function under `functools.lru_cache` keeps and hands out again, as far as it can change."""
    held, info = gc.get_referents(wrapper), wrapper.cache_info()
    own = getattr(wrapper, "__dict__", None)
    table = next((t for t in held if type(t) is dict and t is not own and len(t) == info.currsize), {})
    if info.maxsize is None:
        held = list(table.values())
    else:  # it refers to its keys and results beside the table
        others = {id(table), id(own), *map(id, table)}
        held = [each for each in held if id(each) not in others]
    return [each for each in held if not _cannot_change(each)]


def _cannot_change(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_cannot_change, value))
    code = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
    return plain_value(value) is not None or type(value) is object or isinstance(value, code)


#: instructions that ask for hashes and show none
_OF_CONTAINERS = ("SUBSCR", "CONTAINS_OP", "BUILD_", "MAP_ADD", "SET_ADD", "_UPDATE", "BINARY_OP")


def _shows_hashes(frame: types.FrameType) -> bool:
    """Whether a hash that this frame asks for, without a call of hash() by its own code, may become a number."""
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return not any(name in instruction for name in _OF_CONTAINERS)


@contextlib.contextmanager
def hashes_watched() -> Iterator[list[str]]:
    """Gives the lines at which hash() comes to that of a tensor, which is where the tensor lies.

    A profiler of this thread alone sees it: a dict may ask for the same hash as often as it likes.
    """
    lines: list[str] = []
    asking: list[bool] = []
    of_tensors = torch.Tensor.__hash__.__code__

    def see(frame: types.FrameType, event: str, what: Any) -> None:
        if event == "call":
            if frame.f_code is not of_tensors:
                return
            place = user_frame(frame.f_back)
            by_user = place.startswith(f"{frame.f_back.f_code.co_filename}:")
            if place and (asking or (by_user and _shows_hashes(frame.f_back))):
                lines.append(place)
        elif what is hash:
            asking[:] = [True] if event == "c_call" else []

    before = sys.getprofile()
    of_c_code = before is not None and not callable(before)  # sys.setprofile could not set such a one again
    if of_c_code and not isinstance(before, cProfile.Profile):
        yield lines  # a profiler that nothing here could put back is left alone
        return
    if of_c_code:
        before.disable()
    sys.setprofile(see)
    try:
        yield lines
    finally:
        sys.setprofile(None if of_c_code else before)
        if of_c_code:
            before.enable()
