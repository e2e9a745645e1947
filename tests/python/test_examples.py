"""The Python examples run at small sizes and show what they say."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
import torch.distributed as dist

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def run(*words: str) -> str:
    """What a Python with these arguments prints."""
    import flexsn

    paths = [str(pathlib.Path(flexsn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    set_here = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **set_here},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(name: str, *words: str) -> str:
    """What an example prints, run in this process, which has torch already."""
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        patched.setattr(sys, "argv", [name, *words])
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            if end.code:
                print("status", end.code)
    return printed.getvalue()


def from_to(printed: str) -> tuple[float, float]:
    """The two numbers of a line "loss 0.5 -> 0.1"."""
    found = re.search(r"^(?:loss|error) (\S+) -> ([0-9.]+)", printed, re.MULTILINE)
    assert found, printed
    return float(found[1]), float(found[2])


def test_thresholds_of_channels_are_learnt() -> None:
    sizes = ("--steps", "60", "--length", "32", "--batch", "8", "--channels", "3", "--cells", "8")
    printed = example("channel_threshold.py", *sizes)
    first, last = from_to(printed)
    assert last < 0.2 * first
    rows = [line.split() for line in printed.splitlines()[-3:]]
    thresholds = [float(row[1]) for row in rows]
    assert thresholds == sorted(thresholds, reverse=True) and len(set(thresholds)) == 3


def test_a_model_of_spikingjelly_fires_the_same_with_our_neurons() -> None:
    pytest.importorskip("spikingjelly.activation_based", reason="spikingjelly is not installed")
    printed = example("from_spikingjelly.py", "--steps", "1", "--length", "8", "--batch", "4", "--width", "8")
    spikes, differing = re.search(r"(\d+) spikes of \d+, (\d+) of them differ", printed).groups()
    assert int(spikes) > 0 and int(differing) == 0
    assert float(re.search(r"at most (\S+) of the largest", printed)[1]) < 1e-4


def test_without_spikingjelly_its_example_says_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spikingjelly").mkdir()
    (tmp_path / "spikingjelly" / "__init__.py").write_text("raise ImportError('none here')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "spikingjelly"]:
        monkeypatch.delitem(sys.modules, name)
    printed = example("from_spikingjelly.py")
    assert printed == "from_spikingjelly: skipped, since spikingjelly cannot be imported (none here)\n"


def test_a_stream_is_learnt_chunk_by_chunk() -> None:
    printed = example("truncated_bptt.py", "--steps", "60", "--batch", "8", "--hidden", "32")
    first, last = from_to(printed)
    without = float(re.search(r"lost after each chunk: (\S+)", printed)[1])
    assert last < 0.5 * first and last < 0.8 * without
    assert "a layer run whole and in chunks: same bits" in printed


SMALL = ("--steps", "40", "--batch", "32", "--hidden", "32")


def test_processes_agree_on_what_they_learnt_and_leave_no_thread(tmp_path: pathlib.Path) -> None:
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    # A thread of gloo that is there when Python ends can abort the process. Linux names them, for a moment
    # still after they are joined. Each process writes a file: what they print may mix within a line.
    script = tmp_path / "run_and_look.py"
    script.write_text(
        f"""
import os, pathlib, runpy, time
runpy.run_path({str(EXAMPLES / "data_parallel.py")!r}, run_name="__main__")

def name(thread):
    try:
        return (thread / "comm").read_text().strip()
    except OSError:  # it has just ended
        return ""

for wait in range(50):
    left = [name(thread) for thread in pathlib.Path("/proc/self/task").iterdir()]
    left = [each for each in left if "gloo" in each]
    if not left:
        break
    time.sleep(0.1)
(pathlib.Path({str(tmp_path)!r}) / ("left." + os.environ["RANK"])).write_text(str(left))
"""
    )
    # The machine's own name, by which processes would meet, need not resolve.
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    printed = run(*torchrun, "--nproc-per-node", "2", str(script), *SMALL)
    first, last = from_to(printed)
    assert last < 0.5 * first
    assert "processes: 2" in printed and "the same bits in every process" in printed
    assert [(tmp_path / f"left.{rank}").read_text() for rank in (0, 1)] == ["[]", "[]"]


def test_data_parallel_runs_in_one_process_too() -> None:
    printed = run(str(EXAMPLES / "data_parallel.py"), *SMALL)
    first, last = from_to(printed)
    assert last < 0.5 * first and "processes: 1" in printed


ALL = ("channel_threshold", "from_spikingjelly", "truncated_bptt", "data_parallel")


@pytest.mark.parametrize("name", ALL)
def test_no_steps_are_refused(name: str) -> None:
    if name == "from_spikingjelly":
        pytest.importorskip("spikingjelly.activation_based", reason="spikingjelly is not installed")
    said = example(f"{name}.py", "--steps", "0")
    assert "sizes and steps must be at least 1" in said and said.endswith("status 2\n")
