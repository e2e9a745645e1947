"""Generated code on disk: a private folder, files named by content, nothing run that was changed there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import linecache
import os
import pathlib
import re
import stat
import tempfile
import threading

#: what may move on to the next folder: not being allowed to use this one
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_LONGEST_NAME = 128

_lock = threading.Lock()
#: the folder that was found, by what it was found from
_found: dict[tuple[str, ...], pathlib.Path] = {}


class _Unfit(Exception):
    """Why a folder is not used."""


def candidates() -> list[pathlib.Path]:
    """Folders in the order in which they are tried: in the cache of flexsn, then among temporary files."""
    own = os.environ.get("FLEXSN_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME")
    base = pathlib.Path(own) if own else (pathlib.Path(cache) if cache else _home() / ".cache") / "flexsn"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return [base / "triton", pathlib.Path(tempfile.gettempdir()) / f"flexsn_triton_{user}"]


def _home() -> pathlib.Path:
    return pathlib.Path(os.path.expanduser("~"))


def folder() -> pathlib.Path:
    """The folder for generated code: of this user, closed to all others, and writable."""
    tried = candidates()
    key = tuple(map(str, tried))
    with _lock:
        # What was found once may be gone by now, or be open to others, or be something else.
        if key not in _found or not _is_private(_found[key]):
            _found[key] = _first_fit(tried)
        return _found[key]


def _is_private(path: pathlib.Path) -> bool:
    """Is this a folder of ours that is closed to others?"""
    try:
        end = os.stat(path)
        if os.name != "posix":
            return stat.S_ISDIR(end.st_mode)
        ours = os.lstat(path).st_uid == end.st_uid == os.getuid()
        return ours and stat.S_ISDIR(end.st_mode) and stat.S_IMODE(end.st_mode) == 0o700
    except OSError:
        return False


def _first_fit(tried: list[pathlib.Path]) -> pathlib.Path:
    reasons: list[str] = []
    last: OSError | None = None
    for path in tried:
        try:
            _make_private(path)
        except _Unfit as error:
            reasons.append(f"{path} {error}")
            continue
        except OSError as error:
            if error.errno not in _NOT_ALLOWED:
                raise
            reasons.append(f"{path} cannot be used ({error.strerror})")
            last = error
            continue
        return path
    raise RuntimeError(
        f"there is no folder for generated code: {'; '.join(reasons)}; set FLEXSN_CACHE_DIR to a folder of "
        "your own that others cannot write to"
    ) from last


def _make_private(path: pathlib.Path) -> None:
    """Makes the folder where it is not there, and tries that it is nobody else's."""
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    for made in (path.parent, path):  # the first is where kernels are kept, too
        with contextlib.suppress(FileExistsError):
            made.mkdir(mode=0o700)
    if os.name == "posix":
        # A link that somebody else laid may point anywhere, so the link must be ours as well as its end.
        for found in (os.lstat(path), os.stat(path)):
            if found.st_uid != os.getuid():
                raise _Unfit("belongs to somebody else")
        found = os.stat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise _Unfit("is no folder")
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.chmod(path, 0o700)
            if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
                raise _Unfit("is open to others")
    handle, name = tempfile.mkstemp(dir=path)
    os.close(handle)
    os.unlink(name)


def file_name(name: str, code: str) -> str:
    """A name that is legal everywhere and differs where the code does."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name.replace("\\", "/").rpartition("/")[2]).strip("._")
    digest = hashlib.sha256(f"{name}\0{code}".encode()).hexdigest()[:16]
    return f"{plain[:_LONGEST_NAME] or 'kernel'}_{digest}.py"


def write(name: str, code: str) -> pathlib.Path:
    """The file that holds the code; it is replaced as a whole where it holds anything else."""
    path = folder() / file_name(name, code)
    content = code.encode()
    with contextlib.suppress(OSError):
        if not path.is_symlink() and path.read_bytes() == content:
            return path
    if path.is_dir() and not path.is_symlink():
        _move_away(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o600)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def _move_away(path: pathlib.Path) -> None:
    """Keeps what cannot be replaced by a file, under a name that nobody asks for."""
    aside = tempfile.mkdtemp(dir=path.parent, prefix=path.stem, suffix=".aside")
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.replace(path, pathlib.Path(aside) / path.name)


def run(name: str, code: str, namespace: dict[str, object]) -> pathlib.Path:
    """Runs the code in a namespace. Its source, which Triton asks for, is what was given, whatever becomes of
    the file, which is there for debuggers."""
    path = write(name, code)
    compiled = compile(code, str(path), "exec")
    linecache.cache[str(path)] = (len(code), None, code.splitlines(keepends=True), str(path))
    exec(compiled, namespace)
    return path
