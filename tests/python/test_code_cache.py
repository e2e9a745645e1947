"""Generated code on disk: private, whole, and never run as anything but what was asked for."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import stat
import sys
import tempfile

import pytest

from flexsn.compat import code_cache
from flexsn.compat.graph2triton import compile_triton_code_str

pytest.importorskip("triton")
posix = pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")

CODE = "import triton\n\nanswer = {}\n\n\ndef kernel():\n    return answer\n"


@pytest.fixture(autouse=True)
def places(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> tuple[pathlib.Path, pathlib.Path]:
    """A home and a folder for temporary files of the test's own; the two folders that are tried."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    for name in ("FLEXSN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(code_cache, "_found", {})
    return home / ".cache" / "flexsn" / "triton", temporary / f"flexsn_triton_{os.getuid()}"


def mode(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_code_is_kept_in_a_private_folder(places) -> None:
    kernel = compile_triton_code_str(CODE.format(1), "kernel")
    assert kernel() == 1
    [file] = places[0].iterdir()
    assert (mode(places[0]), mode(file)) == (0o700, 0o600)
    assert mode(places[0].parent) == 0o700  # or the store of kernels would not use it
    assert file.read_text() == CODE.format(1)
    assert kernel.__code__.co_filename == str(file)


def test_the_folder_can_be_chosen(places, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FLEXSN_CACHE_DIR", str(tmp_path / "chosen"))
    assert code_cache.folder() == tmp_path / "chosen" / "triton"
    monkeypatch.delenv("FLEXSN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert code_cache.folder() == tmp_path / "xdg" / "flexsn" / "triton"


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("kernel", "kernel_"),
        ("../../etc/passwd", "passwd_"),
        ("a\\b\\c", "c_"),
        ("<lambda> of x", "lambda__of_x_"),
        ("...", "kernel_"),
        ("größe", "gr__e_"),
        ("k" * 500, "k" * 128 + "_"),
    ],
)
def test_any_name_makes_a_file_name(name: str, stem: str) -> None:
    found = code_cache.file_name(name, "code")
    assert found.startswith(stem) and len(found) == len(stem) + 16 + len(".py")
    assert found != code_cache.file_name(name, "other") and found != code_cache.file_name(name + "x", "code")


# ---- permissions -------------------------------------------------------------------------------------------


@posix
def test_a_folder_that_is_open_to_others_is_closed(places) -> None:
    places[0].mkdir(parents=True)
    places[0].chmod(0o777)
    assert code_cache.folder() == places[0] and mode(places[0]) == 0o700


@posix
def test_a_folder_that_cannot_be_closed_is_not_used(places, monkeypatch) -> None:
    places[0].mkdir(parents=True)
    places[0].chmod(0o777)
    monkeypatch.setattr(os, "chmod", lambda *arguments: None)
    assert code_cache.folder() == places[1]


@posix
def test_a_folder_of_somebody_else_is_not_used(places, monkeypatch) -> None:
    places[0].mkdir(parents=True)
    real = os.stat

    def with_other_owner(path, *arguments, **keywords):
        found = real(path, *arguments, **keywords)
        if pathlib.Path(path) != places[0]:
            return found
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:10]))

    monkeypatch.setattr(os, "stat", with_other_owner)
    assert code_cache.folder() == places[1]


@posix
def test_a_link_of_ones_own_is_followed(places, tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    places[0].parent.mkdir(parents=True)
    places[0].symlink_to(tmp_path / "elsewhere")
    assert compile_triton_code_str(CODE.format(2), "kernel")() == 2
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1 and mode(tmp_path / "elsewhere") == 0o700


@posix
def test_a_link_that_somebody_else_laid_is_not_followed(places, tmp_path, monkeypatch) -> None:
    (tmp_path / "trap").mkdir(mode=0o700)
    places[0].parent.mkdir(parents=True)
    places[0].symlink_to(tmp_path / "trap")
    real = os.lstat

    def with_other_owner(path, *arguments, **keywords):
        found = real(path, *arguments, **keywords)
        if pathlib.Path(path) != places[0]:
            return found
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:10]))

    monkeypatch.setattr(os, "lstat", with_other_owner)
    assert code_cache.folder() == places[1]
    compile_triton_code_str(CODE.format(3), "kernel")
    assert list((tmp_path / "trap").iterdir()) == []


@posix
def test_a_read_only_home_is_passed_over(monkeypatch) -> None:
    base = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))  # where another user gets to as well
    base.chmod(0o755)
    (base / "home").mkdir(mode=0o555)
    (base / "tmp").mkdir()
    (base / "tmp").chmod(0o777)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.getuid() == 0:  # to whom nothing is read-only
                os.setuid(65534)
            os.environ["HOME"], tempfile.tempdir = str(base / "home"), str(base / "tmp")
            expected = base / "tmp" / f"flexsn_triton_{os.getuid()}"
            made = compile_triton_code_str(CODE.format(4), "kernel")() == 4
            status = 0 if made and code_cache.folder() == expected else 2
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shutil.rmtree(base)
    assert status == 0


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_folder_that_may_not_be_made_is_passed_over(places, monkeypatch, code: int) -> None:
    real = pathlib.Path.mkdir

    def refuse(self, *arguments, **keywords):
        if "home" in self.parts:
            raise OSError(code, os.strerror(code), str(self))
        return real(self, *arguments, **keywords)

    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    assert code_cache.folder() == places[1]


def test_other_errors_are_not_passed_over(places, monkeypatch) -> None:
    def full(self, *arguments, **keywords):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(pathlib.Path, "mkdir", full)
    with pytest.raises(OSError, match="No space left"):
        code_cache.folder()


def test_no_folder_at_all_is_an_error_that_says_why(places, monkeypatch) -> None:
    def refuse(self, *arguments, **keywords):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    message = (
        r"no folder for generated code: .*triton cannot be used \(Permission denied\).*set FLEXSN_CACHE_DIR"
    )
    with pytest.raises(RuntimeError, match=message):
        code_cache.folder()


def test_a_folder_that_was_deleted_since_is_made_anew(places) -> None:
    compile_triton_code_str(CODE.format(20), "kernel")
    shutil.rmtree(places[0])
    assert compile_triton_code_str(CODE.format(21), "kernel")() == 21
    assert mode(places[0]) == 0o700 and len(list(places[0].iterdir())) == 1


@posix
def test_a_folder_that_was_opened_to_others_since_is_closed(places) -> None:
    code_cache.folder()
    places[0].chmod(0o777)
    compile_triton_code_str(CODE.format(22), "kernel")
    assert mode(places[0]) == 0o700


@posix
def test_a_folder_that_cannot_be_closed_any_more_is_left(places, monkeypatch) -> None:
    code_cache.folder()
    places[0].chmod(0o777)
    with monkeypatch.context() as without:
        without.setattr(os, "chmod", lambda *arguments: None)
        assert code_cache.folder() == places[1]


def test_a_file_in_the_place_of_the_folder_is_passed_over(places) -> None:
    code_cache.folder()
    places[0].rmdir()
    places[0].write_text("no folder")
    assert code_cache.folder() == places[1] and places[0].read_text() == "no folder"


def test_a_folder_that_was_looked_at_is_not_tried_again(places, monkeypatch) -> None:
    code_cache.folder()
    monkeypatch.setattr(code_cache, "_first_fit", None)
    assert code_cache.folder() == places[0]


# ---- content -----------------------------------------------------------------------------------------------


def test_a_file_that_was_changed_is_not_run_and_is_mended(places) -> None:
    path = code_cache.write("kernel", CODE.format(5))
    path.write_text(CODE.format(666))
    assert compile_triton_code_str(CODE.format(5), "kernel")() == 5
    assert path.read_text() == CODE.format(5)


def test_a_link_in_the_place_of_a_file_is_replaced(places, tmp_path) -> None:
    path = code_cache.write("kernel", CODE.format(6))
    path.unlink()
    (tmp_path / "target.py").write_text(CODE.format(6))
    path.symlink_to(tmp_path / "target.py")
    assert code_cache.write("kernel", CODE.format(6)) == path and not path.is_symlink()


def test_a_folder_in_the_place_of_a_file_is_moved_away(places) -> None:
    path = code_cache.write("kernel", CODE.format(23))
    path.unlink()
    path.mkdir()
    (path / "note").write_text("somebody's")
    assert compile_triton_code_str(CODE.format(23), "kernel")() == 23
    assert path.read_text() == CODE.format(23)
    [kept] = places[0].glob("*.aside/*/note")
    assert kept.read_text() == "somebody's"


def test_source_is_what_ran_whatever_becomes_of_the_file(places) -> None:
    import inspect
    import linecache

    kernel = compile_triton_code_str(CODE.format(7), "kernel")
    pathlib.Path(kernel.__code__.co_filename).write_text("def kernel():\n    return 666\n")
    linecache.checkcache()
    assert inspect.getsource(kernel) == "def kernel():\n    return answer\n"


def test_a_failed_write_leaves_nothing(places, monkeypatch) -> None:
    code_cache.folder()

    def refuse(*arguments):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="broken"):
        code_cache.write("kernel", CODE.format(8))
    assert list(places[0].iterdir()) == []


@posix
def test_two_hundred_processes_at_once(places) -> None:
    code = CODE.format(9) + "# long\n" * 20000
    children = []
    for _ in range(200):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                space: dict = {}
                path = code_cache.run("kernel", code, space)
                status = 0 if space["kernel"]() == 9 and path.read_text() == code else 2
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 200
    assert [path.read_text() == code for path in places[0].iterdir()] == [True]


# ---- symbols -----------------------------------------------------------------------------------------------


def test_equal_code_is_run_once_in_a_process() -> None:
    first = compile_triton_code_str(CODE.format(10), "kernel")
    assert compile_triton_code_str(CODE.format(10), "kernel") is first
    assert compile_triton_code_str(CODE.format(11), "kernel")() == 11


def test_a_namespace_is_read_and_given_what_the_code_defines() -> None:
    space = {"answer": 12, "__name__": "mine", "other": 1}
    kernel = compile_triton_code_str(
        "def kernel():\n    return answer\n\nmade = 13\n", "kernel", name_space=space
    )
    assert kernel() == 12 and space["kernel"] is kernel and space["made"] == 13
    assert space["__name__"] == "mine" and "__builtins__" not in space


def test_a_stale_symbol_is_not_returned() -> None:
    space = {"kernel": "of an earlier call"}
    with pytest.raises(ValueError, match="the code defines no 'kernel'"):
        compile_triton_code_str("other = 1\n", "kernel", name_space=space)
    with pytest.raises(ValueError, match="the code defines no 'kernel'"):
        compile_triton_code_str("other = 1\n", "kernel")


def test_verbose_prints_the_code(capsys) -> None:
    compile_triton_code_str(CODE.format(14), "kernel", verbose=True)
    assert capsys.readouterr().out == CODE.format(14) + "\n"


def test_without_triton_nothing_is_compiled(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match="generated kernels need Triton"):
        compile_triton_code_str(CODE.format(15), "kernel")
