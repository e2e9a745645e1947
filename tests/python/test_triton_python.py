"""flexsn.export and python -m flexsn export: a Python core as a text that others read."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy
import pytest
import torch
from torch import Tensor, nn

import flexsn
from flexsn import FlexSN
from flexsn.__main__ import main
from triton_modules import environment, load, ops, same_bits


@pytest.fixture(autouse=True)
def in_tritons_interpreter() -> Iterator[None]:
    with environment(TRITON_INTERPRET="1"), numpy.errstate(all="ignore"):
        yield


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return grad / (1 + (torch.pi * u) ** 2)


class Core(nn.Module):
    """One weight for each channel, which enters through a function of torch, and a threshold."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, channels).view(channels, 1))
        self.level = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v + (x - v) * torch.sigmoid(self.w)
        s = Spike.apply(h - self.level)
        return s, h * (1 - s)


def lif(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v + (x - v) / 2.0
    s = (h >= 1).to(h)
    return s, h * (1 - s)


def test_a_module_trains_as_the_neuron_does(tmp_path) -> None:
    pytest.importorskip("triton")
    core = Core(3)
    neuron = FlexSN(core, num_states=1)
    code = flexsn.export(neuron, shape=(3, 4))
    module = load(code, tmp_path, "exported_core")
    x = torch.linspace(-2, 3, 60).view(5, 3, 4)

    ours = x.clone().requires_grad_()
    expected = neuron(ours)
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [ours, core.w, core.level], grad)

    theirs = x.clone().requires_grad_()
    params = {"sigmoid_w": torch.sigmoid(core.w), "level": core.level}
    found, last = module.Core(theirs, **params)
    assert same_bits(expected, found) and same_bits(neuron.states[0], last)
    gradients = torch.autograd.grad(found, [theirs, core.w, core.level], grad)
    assert all(map(same_bits, wanted, gradients))


def test_a_trained_parameter_of_a_library_neuron_must_be_given(tmp_path) -> None:
    pytest.importorskip("triton")
    node = flexsn.neurons.ParametricLIFNode(init_tau=2.0, step_mode="m")
    with torch.no_grad():
        node.w.fill_(1.5)
    module = load(flexsn.export(node), tmp_path, "exported_plif")
    x = torch.linspace(0, 2, 24).view(6, 4)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'w'"):
        module.plif(x)
    assert same_bits(module.plif(x, w=node.w.detach())[0], node(x).detach())


def test_names_of_the_module_are_nobody_elses(tmp_path) -> None:
    pytest.importorskip("triton")

    def checked(x, checked_training, checked_forward_kernel):
        h = checked_training * 0.5 + x
        return h, h * 0.25, checked_forward_kernel + 1

    neuron = FlexSN(checked, num_states=2)
    module = load(flexsn.export(neuron), tmp_path, "exported_checked")
    run = next(getattr(module, name) for name in ("checked_", "checked") if hasattr(module, name))
    x = torch.randn(4, 3, requires_grad=True)
    assert same_bits(torch.autograd.grad(run(x)[0].sum(), x)[0], torch.autograd.grad(neuron(x).sum(), x)[0])


def test_the_head_says_where_parameters_come_from() -> None:
    code = flexsn.export(Core(3), num_states=1, shape=(3, 4))
    head = code[: code.index('"""')]
    assert head.startswith("# Parameters, as they were when this was made:\n")
    for words in (
        "sigmoid_w: float32 [3, 1], value0 of the core",
        "level: float32 [], module.level",
        "sigmoid(module.w)",
    ):
        assert words in head
    assert flexsn.export(lif, num_states=1).startswith('"""Neuron lif as Triton kernels')


def test_the_head_names_the_options_of_a_library_neuron() -> None:
    assert flexsn.export(flexsn.neurons.LIFNode(tau=3.0), "fsn").startswith("# LIFNode(tau=3.0, decay_input=")
    learned = flexsn.export(flexsn.neurons.ParametricLIFNode(init_tau=4.0), "cuda")
    first, second = learned.splitlines()[:2]
    assert first.startswith("// ParametricLIFNode(") and second.startswith("// Parameters, as they were")


def delayed(x: Tensor, wait: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v * 0.5 + x
    return torch.where(wait > 0, torch.zeros_like(h), h), h


def test_inputs_may_have_types_of_their_own(tmp_path) -> None:
    x, wait = torch.randn(4, 3), torch.tensor([[0, 1, 2]] * 4, dtype=torch.int32)
    module = FlexSN(delayed, num_states=1, example_inputs=[torch.zeros(1), wait[0, :1], torch.zeros(1)])
    texts = [
        flexsn.export(delayed, num_states=1, dtype=["f32", torch.int32]),
        flexsn.export(delayed, num_states=1, inputs=[x, wait], states=[torch.zeros(3)]),
        flexsn.export(module),
    ]
    assert texts[0] == texts[1] == texts[2] and "wait (int32)" in texts[0]
    found = load(texts[0], tmp_path, "exported_delayed").delayed(x, wait)
    assert same_bits(found[0], FlexSN(delayed, num_states=1)(x, wait))
    for shown in (
        flexsn.show(delayed, num_states=1, dtype=["f32", "i32"]),
        flexsn.show(delayed, num_states=1, inputs=[x, wait]),
    ):
        assert "input wait : i32" in shown
    assert flexsn.check(delayed, num_states=1, dtype=("f32", "i32")).passed
    with pytest.raises(ValueError, match="a list of one for each of 2 inputs, found 3"):
        flexsn.export(delayed, num_states=1, dtype=["f32"] * 3)


def test_the_command_takes_a_type_for_each_input(tmp_path, capsys) -> None:
    (tmp_path / "waiting.py").write_text(
        "import torch\ndef delayed(x, wait, v):\n    h = v * 0.5 + x\n"
        "    return torch.where(wait > 0, torch.zeros_like(h), h), h\n"
    )
    core = f"{tmp_path / 'waiting.py'}:delayed"
    assert main(["export", core, "--format", "fsn", "--states", "1", "--dtype", "f32,i32"]) == 0
    assert "input wait : i32" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["export", core, "--dtype", "f32,int"])
    assert "must be of f16, bf16, f32, f64, i32, u8, bool, found 'int'" in capsys.readouterr().err


def test_the_text_is_also_written(tmp_path) -> None:
    path = tmp_path / "lif.py"
    assert flexsn.export(lif, "triton", path) == path.read_text() == flexsn.export(lif, num_states=1)


def test_fsn_text_is_the_neuron(tmp_path) -> None:
    text = flexsn.export(Core(3), "fsn", num_states=1, shape=(3, 4))
    assert text.startswith("# Parameters, as they were")
    assert ops.signature(text) == (["f32"], ["f32"], ["f32", "f32"], ["f32"])
    assert sorted(ops.differentiable(text)) == [0, 1, 2, 3]
    assert "output s = " in flexsn.export(lif, "fsn", num_states=1)


@pytest.mark.parametrize("kind", [None, "inference", "forward", "backward"])
def test_cuda_text_is_one_kernel(kind) -> None:
    text = flexsn.export(Core(3), "cuda", num_states=1, shape=(3, 4), kind=kind)
    assert text.startswith("// Parameters, as they were") and "__global__" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "ptx"}, "flexsn.export: format must be one of triton, cuda, fsn, found 'ptx'"),
        ({"kind": "forward"}, "flexsn.export: kind is for the format cuda"),
        (
            {"format": "cuda", "kind": "sideways"},
            "flexsn.export: kind must be one of inference, .*found 'sideways'",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flexsn.export(lif, num_states=1, **arguments)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "mine.py"
    path.write_text(
        "def lif(x, v):\n    h = v + (x - v) / 2.0\n    s = (h >= 1).to(h)\n    return s, h * (1 - s)\n"
    )
    return path


def test_the_command_prints_or_writes(file, tmp_path, capsys) -> None:
    assert main(["export", f"{file}:lif", "--states", "1", "--format", "triton"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith('"""Neuron lif as Triton kernels')
    assert main(["export", f"{file}:lif", "--states", "1", "-o", str(tmp_path / "out.py")]) == 0
    assert capsys.readouterr().out == "" and (tmp_path / "out.py").read_text() == printed


def test_the_command_refuses_a_file_that_cannot_be_written(file, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["export", f"{file}:lif", "--states", "1", "--format", "fsn", "-o", str(tmp_path)])
    assert stopped.value.code == 2 and "Is a directory" in capsys.readouterr().err


def test_the_command_takes_the_format_from_the_files_ending(file, tmp_path, capsys) -> None:
    for ending, holds in {"py": "as Triton kernels", "cu": "__global__", "fsn": "neuron lif {"}.items():
        assert main(["export", f"{file}:lif", "-o", str(tmp_path / f"out.{ending}")]) == 0
        assert holds in (tmp_path / f"out.{ending}").read_text()
    with pytest.raises(SystemExit):
        main(["export", f"{file}:lif", "-o", str(tmp_path / "out.txt")])
    error = capsys.readouterr().err
    assert "out.txt should hold cannot be told from its ending; say --format triton, cuda or fsn" in error
