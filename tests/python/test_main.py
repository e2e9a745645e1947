"""The command line: python -m flexsn check|explain|show my_file.py:core."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import torch

from flexsn.__main__ import main

NEURONS = """
import flexsn
import torch
from flexsn import FlexSN
from beside import HALF

limit = 1.0

def lif(x, v):
    v = v + (x - v) * HALF
    s = (v >= limit).to(v)
    return s, v * (1 - s)

def scaled(x, v, factor):
    return x * factor, v + x

def doubled(x, u, v):
    return x, u, v

def only_state(x, v):
    return v + x

def picky(x, v):
    raise KeyError("no zeros")

def two_inputs(x, y, v):
    return x + v, v + y

def summed(x, v):
    return x - x.sum(), v

class Holder:
    step = staticmethod(lif)

neuron = FlexSN(lif, num_states=1)

def exponential(x, v):
    h = v + (x - v) * torch.exp(v)
    s = torch.sigmoid(h)
    return s, h * (1 - s)
"""


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A file of neurons, called like a module of flexsn, that imports its neighbour."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "beside.py").write_text("HALF = 0.5\n")
    path = tmp_path / "flexsn.py"
    path.write_text(NEURONS)
    return path


def test_check_tries_a_core(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{file}:lif", "--states", "1", "--T", "5", "--shape", "2,3", "--seed", "7"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lif, T = 5, steps of shape [2, 3], seed 7\n") and "all passed" in out


def test_check_that_fails_has_status_1(
    file: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flexsn.fused import Fused

    right = Fused.__call__

    def wrong(self, *arguments):
        outputs, states = right(self, *arguments)
        return [output + 1 for output in outputs], states

    monkeypatch.setattr(Fused, "__call__", wrong)
    assert main(["check", f"{file}:neuron", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is False and report["checks"][0]["passed"] is False
    assert "s at step 0, element [0, 0] is" in report["checks"][0]["detail"]


def test_explain_prints_text_and_fields(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", f"{file}:neuron", "--T", "4", "--shape", "64", "--dtype", "f64"])
    text = capsys.readouterr().out
    assert "T = 4, N = 64;" in text and "x (f64)" in text and "in PyTorch" in text
    main(["explain", f"{file}:neuron", "--T", "4", "--shape", "64", "--dtype", "f64", "--json"])
    fields = json.loads(capsys.readouterr().out)
    assert fields["text"] == text and fields["T"] == 4 and fields["shape"] == [64]


def test_show_prints_a_stage(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", f"{file}:lif", "--states", "1"])
    assert capsys.readouterr().out.startswith("neuron lif {\n  input x : f32\n  state v : f32\n")
    main(["show", f"{file}:lif", "--states", "1", "--stage", "plan", "--kind", "backward"])
    assert capsys.readouterr().out.startswith("plan backward of lif")
    main(["show", f"{file}:Holder.step", "--states", "1", "--stage", "torch", "--json"])
    fields = json.loads(capsys.readouterr().out)
    assert fields["stage"] == "torch" and f"{file}:" in fields["text"]


def test_numbers_are_passed_after_the_states(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", f"{file}:scaled", "--states", "1", "--param", "2.5"])
    assert "mul %x, 2.5" in capsys.readouterr().out


def test_states_are_told_where_there_is_one_choice(
    file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for core, options in (("lif", []), ("two_inputs", []), ("scaled", ["--param", "2.5"])):
        main(["show", f"{file}:{core}", *options])
        told = capsys.readouterr().out
        main(["show", f"{file}:{core}", *options, "--states", "1"])
        assert told == capsys.readouterr().out and "state v : f32" in told
    main(["export", f"{file}:lif", "--format", "fsn"])
    assert "state v : f32" in capsys.readouterr().out
    main(["show", f"{file}:doubled", "--inputs", "1"])
    assert "state u : f32" in capsys.readouterr().out


def test_a_device_is_asked_for(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", f"{file}:lif", "--device", "cuda"])
    assert "on a GPU" in capsys.readouterr().out
    main(["show", f"{file}:exponential", "--stage", "plan", "--device", "cuda:0"])
    assert "segments of 8 steps" in capsys.readouterr().out
    main(["show", f"{file}:exponential", "--stage", "plan", "--device", "cpu"])
    assert "segments of" not in capsys.readouterr().out
    for wrong in ("cuda:", "cpu:0", "cuda:007", "mps", "cuda:99999999999"):
        with pytest.raises(SystemExit):
            main(["explain", f"{file}:lif", "--device", wrong])
        assert f"must be cpu, cuda or such as cuda:1, found '{wrong}'" in capsys.readouterr().err
    assert main(["check", f"{file}:neuron", "--device", "cpu", "--T", "3"]) == 0
    capsys.readouterr()
    main(["bench", f"{file}:neuron", "--device", "cpu", "--T", "2", "--seconds", "0", "--vs", "eager", "--json"])
    assert json.loads(capsys.readouterr().out)["device"] == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            main(["bench", f"{file}:neuron", "--device", "cuda"])
        assert "there is no cuda that torch can see, of 0 GPUs; leave out --device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", "FILE"], "expected FILE.py:CORE, such as my_file.py:lif, found"),
        (["show", "nowhere.py:lif"], "there is no file 'nowhere.py'"),
        (["show", "FILE:lfi", "--states", "1"], "has no 'lfi' (did you mean 'lif'?)"),
        (
            ["show", "FILE:zzz", "--states", "1"],
            "has no 'zzz'; it has lif, scaled, doubled, only_state, picky, two_inputs, summed",
        ),
        (["show", "FILE:Holder", "--states", "1"], "is a class; make an object of it in the file"),
        (["show", "FILE:limit", "--states", "1"], "must be a function or another callable, found float"),
        (
            ["check", "FILE:doubled"],
            ":doubled has cannot be told from it (3 arguments and 3 results); say --states N, such as",
        ),
        (["export", "FILE:only_state"], "cannot be told from it (2 arguments and 1 result); say --states N"),
        (["show", "FILE:picky"], "called on zeros, it raised KeyError: 'no zeros'); say --states"),
        (["bench", "FILE:lif", "--seconds", "-1"], "--seconds: must be a number of at least 0, found '-1'"),
        (["bench", "FILE:lif", "--seconds", "soon"], "must be a number of at least 0, found 'soon'"),
        (["explain", "FILE:neuron", "--states", "1"], "FlexSN, which has its own counts; leave out --states"),
        (["explain", "FILE:summed", "--states", "1"], "sum"),
        (
            ["export", "FILE:lif", "--states", "1", "--format", "fsn", "-o", "/dev/full"],
            "/dev/full cannot be read or written (No space left on device); give another path",
        ),
        (["show", "FILE:lif", "--states", "1", "--kind", "forward"], "kind chooses a kernel"),
        (["check", "FILE:lif", "--states", "1", "--shape", "3,x"], "whole numbers with commas between them"),
        (["check", "FILE:lif", "--states", "1", "--dtype", "f31"], "must be of f16, bf16, f32, f64, i32, u8, bool, found 'f31'"),
    ],
)
def test_wrong_use_has_status_2_and_says_what_to_do(
    arguments: list[str], text: str, file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([argument.replace("FILE", str(file)) for argument in arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert text in error and "Traceback" not in error


def test_a_file_that_raises_is_named_with_its_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"\n1 / 0\n": "(line 2) raised ZeroDivisionError", "x = (": "(line 1) raised SyntaxError"}
    path = tmp_path / "broken.py"
    for content, text in texts.items():
        path.write_text(content)
        with pytest.raises(SystemExit):
            main(["show", f"{path}:lif"])
        assert text in capsys.readouterr().err


def test_it_runs_as_a_module(file: pathlib.Path) -> None:
    command = [sys.executable, "-m", "flexsn", "show", f"{file}:lif", "--states", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.startswith("neuron lif {"), done.stderr
