"""bench: a neuron beside the eager loop, torch.compile and SpikingJelly, which must do the same work."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flexsn
from flexsn import neurons
from flexsn.__main__ import main
from flexsn.bench import BenchReport, bench, side_by_side
from flexsn.fused import Fused


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return grad / (1 + u * u)


def lif(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v + (x - v) / 2
    s = Spike.apply(h - 1.0)
    return s, h * (1 - s)


class Leaky(nn.Module):
    """A learnable leak for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, 1))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v + (x - v) * torch.sigmoid(self.w)
        s = Spike.apply(h - 1.0)
        return s, h * (1 - s)


def two_inputs(x: Tensor, y: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, ...]:
    """Three states, no output."""
    v = v * 0.5 + x - y * a
    s = Spike.apply(v - scale)
    return v * (1 - s), a * 0.9 + s, b + s


def quick(
    neuron: Any, *others: str, T: int = 3, shape: tuple[int, ...] = (5,), **options: Any
) -> BenchReport:
    return bench(neuron, others, T, shape, seconds=0.01, **options)


@pytest.mark.parametrize(
    ("neuron", "options"),
    [
        (lif, {"num_states": 1}),
        (lif, {"num_states": 1, "T": 1, "shape": (1,)}),
        (lif, {"num_states": 1, "dtype": "bf16"}),
        (lif, {"num_states": 1, "dtype": torch.float64}),
        (Leaky(), {"num_states": 1, "shape": (2, 3, 4)}),
        (flexsn.FlexSN(Leaky(), num_states=1, backend="torch"), {"shape": (3, 4)}),
        (flexsn.FlexSNKernel(lif, 1, 1, 1), {}),
        (two_inputs, {"num_states": 3, "params": (0.7,)}),
        (neurons.LIFNode(store_v_seq=True), {}),
        (neurons.GatedLIFNode(3), {}),
        (neurons.OTTTLIFNode().eval(), {}),
        (neurons.LIAFNode(lambda h: h * 2, True), {}),
        (neurons.NonSpikingLIFNode(decode="max-mem"), {}),
        (neurons.LIFNode(surrogate_function=Spike.apply), {}),
    ],
)
def test_kernel_and_eager_loop_are_timed_where_they_do_the_same(neuron: Any, options: dict[str, Any]) -> None:
    report = quick(neuron, "eager", **options)
    assert list(report.milliseconds) == ["inference", "training"] and report.left_out == {}
    for times in report.milliseconds.values():
        assert list(times) == ["flexsn", "eager"] and all(time > 0 for time in times.values())
    assert str(report) == report.text and "times as long as flexsn" in report.text
    assert report.device == "cpu" and f"{report.threads} threads of torch" in report.text


def test_a_module_is_left_as_it_was() -> None:
    neuron = neurons.LIFNode(backend="torch", store_v_seq=True)
    neuron(torch.ones(4))
    quick(neuron, "eager")
    assert neuron.backend == "torch" and neuron.store_v_seq and neuron.step_mode == "s"
    assert neuron.v.shape == (4,)


def test_training_of_a_core_without_gradients_is_left_out() -> None:
    def whole(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return (x > 0).int(), (x > 1).float()

    report = quick(whole, "eager", num_states=1)
    assert list(report.milliseconds) == ["inference"]
    assert "left out: training: " in report.text


def test_torch_compile_is_timed_beside() -> None:
    report = quick(lif, "compile", num_states=1)
    if "compile" in report.left_out:
        pytest.skip(report.left_out["compile"])
    assert list(report.milliseconds["training"]) == ["flexsn", "compile"]


def test_spikingjelly_is_timed_where_it_can_do_it() -> None:
    pytest.importorskip("spikingjelly.activation_based", reason="spikingjelly is not installed")
    assert "spikingjelly" in quick(lif, "spikingjelly", num_states=1).milliseconds["training"]
    assert "spikingjelly" in quick(neurons.ParametricLIFNode(3.0), "spikingjelly").milliseconds["training"]
    report = quick(neurons.AdExNode(), "spikingjelly")
    assert report.left_out["spikingjelly"] == "SpikingJelly cannot make it (it has no AdExNode)"
    report = quick(two_inputs, "spikingjelly", num_states=3, params=(1.0,))
    assert "its static_inputs must be tensors" in report.text


def test_spikingjelly_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spikingjelly.activation_based", None)
    report = quick(lif, "eager", "spikingjelly", num_states=1)
    assert "SpikingJelly cannot be imported" in report.left_out["spikingjelly"]
    assert list(report.milliseconds["training"]) == ["flexsn", "eager"]


def wrong(monkeypatch: pytest.MonkeyPatch, change) -> None:
    right = Fused.__call__

    def changed(self, *arguments):
        outputs, states = right(self, *arguments)
        return [change(output) for output in outputs], states

    monkeypatch.setattr(Fused, "__call__", changed)
    monkeypatch.setattr(Fused, "again", lambda *arguments: None)


class Doubled(torch.autograd.Function):
    """A value as it is, with twice its gradient."""

    @staticmethod
    def forward(ctx, a: Tensor) -> Tensor:
        return a.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return 2 * grad


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: 1 - s, r"result 0 of inference at \[0, 0\] is . and ., and differs in 15 of 15 places"),
        (lambda s: s[1:], r"result 0 of inference has shape \[2, 5\] and \[3, 5\]"),
        (Doubled.apply, r"gradient 0 at \[0, 0\] is .*; python -m flexsn check says more"),
    ],
    ids=["values", "shapes", "gradients"],
)
def test_nothing_is_timed_where_results_differ(change, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(monkeypatch, change)
    with pytest.raises(ValueError, match="flexsn and eager do not do the same work: " + text):
        quick(lif, "eager", num_states=1)


def test_wrong_words_are_errors() -> None:
    with pytest.raises(ValueError, match="vs must be of eager, compile, spikingjelly, found 'norse'"):
        quick(lif, "norse", num_states=1)
    with pytest.raises(ValueError, match=r"T and shape must be at least 1, found T=0 and shape=\(5,\)"):
        quick(lif, "eager", num_states=1, T=0)
    with pytest.raises(TypeError, match="flexsn.bench: num_states is required for a core"):
        quick(lif, "eager")
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds must be a finite number of at least 0, found"):
            bench(lif, ("eager",), 2, (3,), num_states=1, seconds=seconds)


def test_a_table_has_ratios_to_the_first_and_holes() -> None:
    rows = {"a": {"flexsn": 2.0, "eager": 3.0}, "b": {"eager": 1.0}}
    lines = side_by_side(rows, ["flexsn", "eager"]).splitlines()
    assert lines[0].split() == ["work", "flexsn", "eager"]
    assert lines[1].split() == ["a", "2.000", "ms", "3.000", "ms", "1.50", "x"]
    assert lines[2].split() == ["b", "-", "1.000", "ms"]


def test_one_table_gathers_what_the_benchmarks_wrote(tmp_path: pathlib.Path) -> None:
    case = {"kind": "training", "T": 8, "N": 64}
    alone, compiled = {"flexsn": 2.0, "eager": 9.0, "copy": 1.0}, {"flexsn": 2.5, "compile": 5.0, "copy": 1.0}
    cases = [{**case, "ms": alone}, {**case, "ms": compiled}]
    seconds = {"triangle": {"median": 1e-3}, "sigmoid": {"median": 5.0}, "plain loops": {"median": 3e-3}}
    medians = {"flexsn": 1e-3, "plain loop": 9e-3, "plain loop, 1 thread": 4e-3}
    sizes = {name: {"median": median} for name, median in medians.items()}
    cpp = [
        {"work": "lif training, 8 x 64, sigmoid, against memcpy", "seconds": seconds},
        {"work": "lif inference, T = 9, N = 2, against the faster plain loop", "seconds": sizes},
        {"work": "lif inference, 8 x 64, against memcpy", "seconds": {"flexsn": {"median": 1.0}}},
    ]
    (tmp_path / "torch.json").write_text(json.dumps({"cases": cases}))
    (tmp_path / "cpp.json").write_text(json.dumps({"rows": cpp}))
    table = pathlib.Path(__file__).parents[2] / "bench" / "table.py"
    command = [sys.executable, str(table), "--torch", "torch.json", "--cpp", "cpp.json", "--out", "all.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "work flexsn eager torch.compile plain C++ loop"
    assert "LIF training, 8 x 64, from Python 2.000 ms 9.000 ms 4.50 x - -" in lines
    assert "LIF training, 8 x 64, from Python, compiled 2.500 ms - 5.000 ms 2.00 x -" in lines
    assert "LIF training, 8 x 64, triangle surrogate, from C++ 1.000 ms - - 3.000 ms 3.00 x" in lines
    assert "LIF inference, 9 x 2, from C++ 1.000 ms - - 4.000 ms 4.00 x" in lines
    assert len(json.loads((tmp_path / "all.json").read_text())["milliseconds"]) == 4
    done = subprocess.run(command[:2], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 1 and "there are no figures; run make bench" in done.stderr


# ---- the command line


CORES = """
import torch

def leak(x, v):
    v = v * 0.5 + x
    return v, v

def doubled(x):
    return 2 * x
"""


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "my_file.py"
    path.write_text(CORES)
    return path


def test_the_command_line_prints_a_table_and_writes_files(
    file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--T", "2", "--shape", "3,4", "--seconds", "0.01", "--vs", "eager"]
    out, picture = file.parent / "x.json", file.parent / "x.png"
    assert main(["bench", f"{file}:leak", "--states", "1", *sizes, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("leak, T = 2, steps of shape [3, 4], float32")
    assert "training: eager, warming up" in captured.err
    record = json.loads(out.read_text())
    assert record["milliseconds"]["training"]["flexsn"] > 0 and record["torch"] == torch.__version__
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert main(["bench", "lif:tau=3", *sizes, "--plot", str(picture), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["neuron"] == "lif"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_core_of_one_argument_is_told_that_it_has_no_states(
    file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--T", "2", "--shape", "3", "--seconds", "0.01", "--vs", "eager"]
    with pytest.raises(SystemExit):
        main(["bench", f"{file}:doubled", *sizes])
    assert "(1 arguments); say --states N, such as --states 0\n" in capsys.readouterr().err
    assert main(["bench", f"{file}:doubled", *sizes, "--states", "0"]) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--vs", "eager,norse"], "must be of eager, compile, spikingjelly with commas between them"),
        (["--out", "no/where.json"], "there is no folder for 'no/where.json'"),
    ],
)
def test_wrong_use_is_said_before_anything_runs(
    arguments: list[str], text: str, file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", f"{file}:leak", "--states", "1", *arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert text in error and "measuring" not in error
