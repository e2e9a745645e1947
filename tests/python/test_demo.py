"""`make demo` in its quick setting: what it checks holds, and what does not hold ends it with status 1."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import runpy
import subprocess
import sys
from typing import NamedTuple

import pytest

import flexsn

ROOT = pathlib.Path(__file__).parents[2]
DEMO = ROOT / "examples/python/demo"
PROGRAMS = pathlib.Path(os.environ.get("FLEXSN_LIBRARY") or ROOT / "build/libflexsn_torch.so").parent

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
for name in ("flexsn_demo_neuron", "flexsn_demo_digits"):
    if not (PROGRAMS / name).exists():
        pytest.skip(f"{name} is not built", allow_module_level=True)


class Shown(NamedTuple):
    status: int
    stdout: str
    stderr: str


def demo(out: pathlib.Path, *options: object, programs: pathlib.Path = PROGRAMS) -> Shown:
    """The demo, run in this process, which has torch already."""
    printed, said, status = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(said),
    ):
        patched.setattr(
            sys, "argv", [str(DEMO), "--quick", "--programs", str(programs), "--out", str(out), *map(str, options)]
        )
        try:
            runpy.run_path(str(DEMO), run_name="__main__")
        except SystemExit as end:
            status = end.code or 0
    return Shown(status, printed.getvalue(), said.getvalue())


def test_the_neuron_takes_ten_lines() -> None:
    text = (DEMO / "neuron.py").read_text().split("# demo: begin\n")[1].split("# demo: end")[0]
    assert len(text.strip().splitlines()) <= 10


def test_the_demo_shows_each_step_and_writes_its_pictures(tmp_path: pathlib.Path) -> None:
    done = demo(tmp_path)
    assert done.status == 0, done.stdout + done.stderr
    assert done.stderr == ""
    steps = [line.split(". ")[0] for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert steps == ["1", "2", "3", "4", "5", "6", "7"]
    assert done.stdout.count("forward: the same bits") == 2
    assert "x as fast" in done.stdout
    assert "Python reads the weights that C++ wrote, and finds" in done.stdout
    for name in ("spikes", "states", "phase_plane", "surrogates", "learning", "timings"):
        path = tmp_path / f"{name}.png"
        assert str(path) in done.stdout
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_too_few_digits_end_the_demo_with_status_1(tmp_path: pathlib.Path) -> None:
    done = demo(tmp_path, "--epochs", 1, "--accuracy", 100)
    assert done.status == 1
    assert "FAILED: the network must get 100 % of the held-out digits right, found " in done.stdout


def test_other_bits_in_cpp_end_the_demo_with_status_1(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "flexsn_demo_neuron"
    # The right results, with the last bit of one membrane flipped.
    program.write_text(
        f"""#!{sys.executable}
import subprocess, sys
subprocess.run([{str(PROGRAMS / "flexsn_demo_neuron")!r}, *sys.argv[1:]], check=True)
T, batch, channels = map(int, sys.argv[3:])
with open(sys.argv[2], "r+b") as file:
    file.seek(4 * T * batch * channels)
    byte = file.read(1)[0]
    file.seek(-1, 1)
    file.write(bytes([byte ^ 1]))
"""
    )
    program.chmod(0o755)
    done = demo(tmp_path / "out", programs=tmp_path)
    assert done.status == 1
    assert "FAILED: C++ and Python: v must have the same bits, 1 of 1536 numbers differ" in done.stdout


def test_programs_that_are_not_built_are_named(tmp_path: pathlib.Path) -> None:
    done = demo(tmp_path / "out", programs=tmp_path)
    assert done.status == 1
    assert (
        f"FAILED: {tmp_path}/flexsn_demo_neuron cannot be run (No such file or directory); make demo"
        in done.stdout
    )


def test_the_programs_say_what_they_take(tmp_path: pathlib.Path) -> None:
    def run(name: str, *arguments: object) -> tuple[int, str]:
        command = [PROGRAMS / name, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    assert run("flexsn_demo_neuron") == (2, "usage: demo_neuron FROM TO T BATCH CHANNELS (sizes from 1)\n")
    usage = "usage: demo_digits DIGITS START TRAINED EPOCHS T (both from 1)\n"
    assert run("flexsn_demo_digits", 1, 2, 3, 0, 4) == (2, usage)
    short, out = tmp_path / "short", tmp_path / "out"
    short.write_bytes(b"1234")
    status, text = run("flexsn_demo_neuron", short, out, 2, 1, 1)
    assert (status, text) == (1, "demo_neuron: FROM is too short for x, cost and grad_z of these sizes\n")
    status, text = run("flexsn_demo_neuron", tmp_path / "none", out, 2, 1, 1)
    assert status == 1 and "FROM must be a file, found none called" in text
    status, text = run("flexsn_demo_digits", tmp_path / "none", short, out, 1, 1)
    assert status == 1 and "none" in text


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 5)])
def test_the_cpp_neuron_has_the_bits_of_python_at_any_size(
    sizes: tuple[int, ...], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.syspath_prepend(str(DEMO))
    import neuron
    import programs

    x, grad = torch.randn(sizes) * 2, torch.randn(sizes)
    core = neuron.Tiring(sizes[-1])
    module = flexsn.FlexSN(core, num_states=2)
    spikes = module(x.requires_grad_())
    spikes.backward(grad)
    found = programs.run_neuron(PROGRAMS, tmp_path, x, core.cost, grad)
    for ours, theirs in zip(found[:3], (spikes, *module.states)):
        assert torch.equal(ours, theirs.detach())
    torch.testing.assert_close(found.grad_x, x.grad)
    torch.testing.assert_close(found.grad_cost, core.cost.grad)
