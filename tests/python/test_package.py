"""The package: its library, its version, and the wheel that pip builds from the checkout."""

from __future__ import annotations

import _ctypes
import ast
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch

import flexsn
from flexsn._library import calls

ROOT = pathlib.Path(__file__).parents[2]


def run_python(
    code: str, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs code in another process, far from the checkout."""
    around = {name: value for name, value in os.environ.items() if name != "FLEXSN_LIBRARY"}
    return subprocess.run(
        [python, "-c", code],
        env={**around, "PYTHONPATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
    )


def checkout() -> str:
    """Makes the package importable for a Python of another working directory."""
    return str(pathlib.Path(flexsn.__file__).parents[1])


def test_the_version_is_that_of_the_c_plus_plus_project() -> None:
    project = re.search(r"project\(flexsn VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert flexsn.__version__ == flexsn.version() == project.group(1)


def test_the_package_is_marked_as_typed() -> None:
    assert (pathlib.Path(flexsn.__file__).parent / "py.typed").is_file()


def test_every_public_name_is_there() -> None:
    assert all(hasattr(flexsn, name) for name in flexsn.__all__)


def test_an_import_loads_no_compiler() -> None:
    done = run_python("import flexsn, sys; print('torch._dynamo' in sys.modules)", PYTHONPATH=checkout())
    assert done.stdout == "False\n"


def test_a_library_that_was_built_for_another_torch_is_named(tmp_path: pathlib.Path) -> None:
    library = tmp_path / "libflexsn_torch.so"
    library.write_bytes(b"")
    library.with_suffix(".txt").write_text("torch 1.9.2+cpu\n")
    done = run_python("import flexsn", FLEXSN_LIBRARY=str(library), PYTHONPATH=checkout())
    assert done.returncode != 0
    expected = f"library is built for torch 1.9 (1.9.2+cpu), found torch {torch.__version__}; build it"
    assert expected in done.stderr and "pip install --no-build-isolation" in done.stderr


def test_a_library_without_the_operators_is_named() -> None:
    path = _ctypes.__file__
    done = run_python("import flexsn", FLEXSN_LIBRARY=path, PYTHONPATH=checkout())
    assert f"flexsn: {path} has no operators of flexsn; FLEXSN_LIBRARY must name a built" in done.stderr


def test_another_patch_of_the_same_torch_is_not_refused(tmp_path: pathlib.Path) -> None:
    library = tmp_path / "libflexsn_torch.so"
    library.write_bytes(b"")
    minor = ".".join(torch.__version__.split(".")[:2])
    library.with_suffix(".txt").write_text(f"torch {minor}.99+other\n")
    done = run_python("import flexsn", FLEXSN_LIBRARY=str(library), PYTHONPATH=checkout())
    assert "is built for torch" not in done.stderr
    assert "its library does not load with torch" in done.stderr  # it is an empty file


def test_a_library_that_is_not_there_is_named() -> None:
    done = run_python("import flexsn", FLEXSN_LIBRARY="/nowhere/lib.so", PYTHONPATH=checkout())
    assert "FLEXSN_LIBRARY must name a built libflexsn_torch.so, found no file /nowhere/lib.so" in done.stderr


# ---- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    if importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    kind, flags = "Debug", "-O0"
    if shutil.which("ccache"):  # has the objects of the build that is tested, if compiled the same way
        dev = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"][0]["cacheVariables"]
        kind, flags = dev["CMAKE_BUILD_TYPE"], dev["CMAKE_CXX_FLAGS_RELWITHDEBINFO"]
    options = [f"cmake.build-type={kind}", f"cmake.define.CMAKE_CXX_FLAGS_{kind.upper()}={flags}"]
    options.append("cmake.define.FLEXSN_WERROR=ON")
    if "CXX" not in os.environ:  # pip's build would take g++, which is another compiler for ccache
        options.append("cmake.define.CMAKE_CXX_COMPILER=c++")
    given = [word for option in options for word in ("-C", option)]
    build = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", *given, "-w", str(folder), str(ROOT)]
    done = subprocess.run([sys.executable, "-m", "pip", *build], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_is_for_every_python_of_this_machine_and_holds_no_programs(wheel: pathlib.Path) -> None:
    assert re.fullmatch(rf"flexsn-{re.escape(flexsn.__version__)}-py3-none-\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read(f"flexsn-{flexsn.__version__}.dist-info/METADATA").decode()
        note = archive.read("flexsn/libflexsn_torch.txt").decode()
    sources = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python/flexsn").rglob("*.py")}
    libraries = {"flexsn/libflexsn_torch.so", "flexsn/libflexsn_llvm.so", "flexsn/libflexsn_torch.txt"}
    if calls is not None:  # for this Python; any other one does without
        libraries.add(f"flexsn/{pathlib.Path(calls.__file__).name}")
    assert files == sources | libraries | {"flexsn/py.typed"}
    assert note == f"torch {torch.__version__}\n"
    assert f"Version: {flexsn.__version__}\n" in metadata and "Requires-Dist: torch" in metadata


@pytest.mark.slow
def test_the_installed_wheel_works_in_a_fresh_environment(
    wheel: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    make = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "fresh")]
    subprocess.run(make, check=True, timeout=120)
    python = str(tmp_path / "fresh/bin/python")
    (site,) = (tmp_path / "fresh/lib").glob("python3*/site-packages")
    # torch itself is taken from where it is; a path that a .pth file names brings no .pth files of its own.
    (site / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]) + "\n")
    install = ["-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True, timeout=300)
    code = """
import flexsn, torch
x = torch.randn(4, 3, requires_grad=True)
outputs, states = flexsn.scan(lambda x, v: (x * v, x + v), x, torch.ones(3))
outputs[0].sum().backward()
passed = flexsn.check(lambda x: x.exp(), num_states=0).passed
print(flexsn.__file__, flexsn.__version__, x.grad is not None, passed)
"""
    done = run_python(code, python, FLEXSN_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(site / "flexsn/__init__.py"), flexsn.__version__, "True", "True"]
    other = "import torch; torch.__version__ = '2.1.0'; import flexsn"
    assert "its library is built for torch" in run_python(other, python).stderr


def private_uses(file: pathlib.Path) -> list[str]:
    """Names of torch with a leading underscore that a file imports or reads."""

    def dotted(node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{dotted(node.value)}.{node.attr}"
        return node.id if isinstance(node, ast.Name) else ""

    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)]
        private = re.compile(r"^torch\b.*\._(?!_)")
        found += [name for name in names if private.match(name)]
    return found


def test_the_private_interface_of_torch_is_used_in_one_file() -> None:
    package = pathlib.Path(flexsn.__file__).parent
    used = {file.name: private_uses(file) for file in package.rglob("*.py")}
    assert used.pop("_torch.py") != []
    assert {name: uses for name, uses in used.items() if uses} == {}
