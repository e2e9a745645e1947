"""explain, show and check: what they say about cores, modules and kernels."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import flexsn
from flexsn import FlexSN, _library, bench, neurons
from flexsn.__main__ import main
from flexsn._library import ops
from flexsn.fused import Fused
from flexsn.neurons import by_name


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        s = torch.sigmoid(4 * u)
        return grad * 4 * s * (1 - s)


class Lif(nn.Module):
    """A learnable leak through sigmoid, a learnable threshold per channel, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.leak = nn.Parameter(torch.tensor(0.5))
        self.threshold = nn.Parameter(torch.rand(3))
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, current: Tensor, voltage: Tensor) -> tuple[Tensor, Tensor]:
        voltage = voltage + (current * self.scale - voltage) * self.leak.sigmoid()
        spike = Spike.apply(voltage - F.softplus(self.threshold).view(-1, 1))
        return spike, voltage * (1 - spike)


def plain(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    v = v + (x - v) / 2
    s = Spike.apply(v - 1.0)
    return s, v * (1 - s)


def exponential(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What is computed again on a GPU is saved on a CPU."""
    h = v + (x - v) * torch.exp(v)
    s = torch.sigmoid(h)
    return s, h * (1 - s)


# ---- explain


def test_explain_has_the_text_of_the_core_and_what_torch_adds() -> None:
    found = flexsn.explain(plain, T=8, shape=(64, 32), dtype=torch.float64, num_states=1)
    assert str(found) == found.text
    assert "T = 8, N = 2048 of shape [64, 32]" in found.text
    assert "inputs   x (f64)" in found.text and "states   v (f64)" in found.text
    assert "training: 2 launches" in found.text
    assert "without gradients: flexsn::inference_final_state\n" in found.text
    assert "with gradients: flexsn::training_final_state, then flexsn::backward\n" in found.text
    assert "others are copied" in found.text
    assert found.numbers["bytes_read_by_inference_final_state"] >= 8 * 2048 * 8
    assert found.T == 8 and found.shape == (64, 32) and found.parameters == []


def test_explain_says_where_parameters_come_from_and_what_runs_outside() -> None:
    found = flexsn.explain(flexsn.FlexSN(Lif(), num_states=1), T=4, shape=(3, 5))
    by_name = {parameter.name: parameter for parameter in found.parameters}
    assert by_name["scale"].source == "module.scale" and not by_name["scale"].gradient
    assert sorted(parameter.shape for parameter in found.parameters) == [(), (), (3, 1)]
    assert any(line.endswith(" = sigmoid(module.leak)") for line in found.outside)
    assert any("softplus(module.threshold" in line for line in found.outside)
    assert "outside the kernel, once a call, as torch code" in found.text
    assert "inputs   current (f32)" in found.text


def test_explain_counts_the_shapes_of_parameters() -> None:
    tau = torch.full((3, 1), 2.0)
    found = flexsn.explain(lambda x, v: (x * tau, v), T=4, shape=(3, 5), num_states=1)
    assert "param 'tau' of shape [3, 1]: 12 B" in found.text


@pytest.mark.parametrize(
    ("example", "copies"),
    [
        (torch.randn(4, 3, 5), 0),
        (torch.randn(8, 3, 5)[::2], 0),
        (torch.randn(3, 5).expand(4, 3, 5), 0),
        (torch.randn(4, 5, 3).transpose(1, 2), 1),
        (torch.randn(3, 5, 4).permute(2, 0, 1), 1),
    ],
)
def test_explain_says_which_examples_are_copied(example: Tensor, copies: int) -> None:
    found = flexsn.explain(plain, num_states=1, inputs=example)
    assert len(found.copies) == copies
    if copies:
        assert "x: 240 bytes, as one step of it is not contiguous" in found.text
    else:
        assert "no input, state or parameter is copied" in found.text


def test_explain_says_that_a_state_is_converted() -> None:
    leak = torch.rand(3)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x, v * leak + x

    half = torch.randn(2, 3).bfloat16()
    found = flexsn.explain(core, num_states=1, inputs=half, states=[torch.zeros(3).bfloat16()])
    assert "v: converted from torch.bfloat16 to torch.float32" in found.text


def test_explain_says_that_a_parameter_is_copied() -> None:
    w = torch.rand(5, 3).t()
    found = flexsn.explain(lambda x, v: (x * w, v), T=4, shape=(3, 5), num_states=1)
    assert "w: 60 bytes, again before backward, as it is not contiguous (strides (1, 3))" in found.text
    assert len(found.copies) == 1 and "inputs whose steps are contiguous are read where they are" in found.text


class Ran(TorchDispatchMode):
    """Notes which operators of flexsn run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "flexsn":
            self.names.append(f"flexsn::{func._opname}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda sequences: FlexSN(plain, num_states=1, store_state_seqs=sequences),
        lambda sequences: neurons.LIFNode(step_mode="m", store_v_seq=sequences),
        lambda sequences: flexsn.FlexSNKernel(plain, 1, 1, 1) if sequences else FlexSN(plain, num_states=1),
    ],
    ids=["a core", "a neuron of the library", "a kernel"],
)
def test_explain_speaks_of_the_operators_that_run(make: Callable[[bool], Any], sequences: bool) -> None:
    subject = make(sequences)
    found = flexsn.explain(subject, T=64, shape=(8,))
    states = [torch.zeros(8)] if isinstance(subject, flexsn.FlexSNKernel) else []
    for kind, wants_gradients in (("inference", False), ("training", True)):
        with Ran() as ran:
            result = subject(torch.randn(64, 8, requires_grad=wants_gradients), *states)
            if wants_gradients:
                (result[0] if states else result).sum().backward()
        assert tuple(ran.names) == found.operators[kind]
        if not states:
            flexsn.functional.reset_net(subject)
    kernel = "inference" if sequences else "inference_final_state"
    assert found.numbers[f"bytes_written_by_{kernel}"] == (2 * 64 if sequences else 64 + 1) * 8 * 4


@pytest.mark.parametrize(
    ("backend", "does"),
    [
        ("torch", "calls the core step by step;"),
        ("hop", "calls the core step by step, under torch.compile as one operator;"),
        ("triton_export", "runs the kernels of the Triton module that flexsn.export writes;"),
    ],
)
def test_explain_says_what_runs_instead(backend: str, does: str) -> None:
    if backend == "triton_export":
        pytest.importorskip("triton")
    found = flexsn.explain(FlexSN(plain, num_states=1, backend=backend), T=4, shape=(8,))
    assert f'it has backend "{backend}", which {does} "fused" would run' in found.text


@pytest.mark.parametrize("ask", [flexsn.check, functools.partial(bench.bench, seconds=0.0)], ids=["check", "bench"])
def test_a_device_that_is_not_there_is_named(ask: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"there is no cuda:99 that torch can see, of \d+ GPUs; leave out device"):
        ask(plain, num_states=1, device="cuda:99")
    with pytest.raises(ValueError, match='device must be "cpu" or "cuda", found meta'):
        ask(plain, num_states=1, device="meta")


def test_explain_of_a_core_without_gradients_says_so() -> None:
    found = flexsn.explain(lambda x, v: (x > v, v), num_states=1, T=2, shape=(8,), dtype="f32")
    assert isinstance(found.untrainable, str)
    integers = torch.zeros(2, 8, dtype=torch.int32)
    found = flexsn.explain(lambda x, v: (x + v, v), num_states=1, inputs=integers)
    assert "training" not in found.operators and "with gradients: the same, as" in found.text


def test_explain_speaks_of_a_gpu_where_it_is_asked_to():
    found = flexsn.explain(plain, T=8, shape=(64,), num_states=1, device="cuda")
    assert "on a GPU" in found.text and " is the limit where " in found.text
    assert "1 element a thread (there would be few blocks)" in found.text
    for kernel in ("inference_final_state", "forward", "backward"):
        assert found.numbers[f"elements_a_thread_of_{kernel}"] == 1
        share = found.numbers[f"instructions_of_{kernel}"] / found.numbers[f"most_instructions_of_{kernel}"]
        assert 0 < share < 1, "memory is the limit of a plain neuron"
    here = flexsn.explain(plain, T=8, shape=(64,), num_states=1)
    assert "on a GPU" not in here.text and "instructions_of_forward" not in here.numbers
    other = flexsn.explain(plain, T=8, shape=(64,), num_states=1, device="cuda:99")
    assert "on a GPU, device 99\n" in other.text
    with pytest.raises(ValueError, match='device must be "cpu" or "cuda", found mps'):
        flexsn.explain(plain, num_states=1, device="mps")


@pytest.mark.parametrize(
    ("example", "elements"),
    [
        (torch.zeros(8, 1 << 20), 2),
        (torch.zeros(8, (1 << 20) + 2)[:, 2:], 2),
        (torch.zeros(8, (1 << 20) + 2)[:, 1:-1], 1),  # it starts at an odd place
        (torch.zeros(8, (1 << 20) + 1)[:, :-1], 1),  # every other row does
        (torch.zeros(1, (1 << 20) + 1)[:, :-1], 2),
        (torch.zeros(8, 1 << 10, 1 << 11)[:, :, ::2], 2),  # a copy is read
    ],
)
def test_explain_knows_where_a_gpu_cannot_load_several_elements_at_once(example: Tensor, elements: int) -> None:
    found = flexsn.explain(plain, num_states=1, inputs=example, device="cuda")
    assert found.numbers["elements_a_thread_of_inference_final_state"] == elements
    why = "(rows of x start where no 2 can be loaded at once)"
    assert (why in found.text) == (elements == 1)


def test_explain_looks_at_states_and_parameters_that_lie_oddly() -> None:
    def scaled(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * w + v, v * 0.5

    count = 1 << 20
    odd, even = torch.ones(count + 1)[1:], torch.ones(count)
    module = FlexSN(plain, num_states=1)
    module.states = [odd]
    neuron = neurons.LIFNode(step_mode="m")
    neuron.v = odd
    ask = functools.partial(flexsn.explain, T=8, shape=(count,), device="cuda")
    for found, name in (
        (ask(plain, num_states=1, states=[odd]), "v"),
        (ask(module), "v"),
        (ask(neuron), "v"),
        (ask(scaled, num_states=1, params=[odd]), "w"),
    ):
        assert f"(rows of {name} start where no 2 can be loaded at once)" in found.text
    for found in (
        ask(plain, num_states=1, states=[even]),
        ask(scaled, num_states=1, params=[even]),
        ask(scaled, num_states=1, params=[torch.ones(2)[1:]]),
    ):
        assert "can be loaded at once" not in found.text
    put_off = torch._lazy_clone(even.expand(2, count).contiguous())
    flexsn.explain(plain, num_states=1, inputs=put_off, device="cuda")
    assert torch._C._is_cow_tensor(put_off), "what torch put off was made"
    with FakeTensorMode() as mode, warnings.catch_warnings(action="error"):
        flexsn.explain(plain, num_states=1, inputs=mode.from_tensor(put_off), device="cuda")


def test_a_module_that_lies_elsewhere_is_looked_at_there() -> None:
    module = FlexSN(Lif(), num_states=1).to("meta")
    module(torch.zeros(2, 2, 3, 4, device="meta"))
    for ask in (flexsn.explain, flexsn.show, functools.partial(flexsn.export, format="fsn")):
        assert "sigmoid_leak" in str(ask(module, shape=(2, 3, 4)))


def test_show_gives_the_plan_of_a_gpu_where_it_is_asked_to() -> None:
    here, there = (flexsn.show(exponential, "plan", num_states=1, device=device) for device in ("cpu", "cuda"))
    assert "segments of" not in here and "segments of 8 steps" in there
    with pytest.raises(ValueError, match=r'llvm is code for the CPU; for a GPU, flexsn.export\(neuron, "cuda"\)'):
        flexsn.show(plain, "llvm", num_states=1, device="cuda")
    with pytest.raises(ValueError, match="inputs are on a device already; leave device out"):
        flexsn.check(plain, num_states=1, inputs=torch.zeros(2, 3), device="cpu")


def test_explain_tells_what_the_compiler_made_of_kernels_where_there_is_a_gpu():
    # A driver and a compiler that only say what they were asked.
    fake = str(_library._find().with_name("libflexsn_fake_cuda.so"))
    asked = """
import flexsn
found = flexsn.explain(lambda x, v: (x, v + x), num_states=1, T=8, shape=(64,), device="cuda", dtype="f32")
for kernel in ("inference_final_state", "forward", "backward"):
    for entry in ("flexsn_wide", "flexsn_narrow"):
        registers = found.numbers[f"registers_of_{kernel}_in_{entry}"]
        local = found.numbers[f"local_bytes_of_{kernel}_in_{entry}"]
        assert registers == 40
        assert f"; {entry} has 40 registers and {local:.0f} bytes that did not fit" in found.text, found.text
"""
    surroundings = os.environ | {"FLEXSN_CUDA_DRIVER": fake, "FLEXSN_NVRTC": fake, "FLEXSN_CACHE": "0"}
    subprocess.run([sys.executable, "-c", asked], env=surroundings, check=True)


# ---- show


@pytest.mark.parametrize(
    ("what", "word"),
    [
        ("ir", "next v ="),
        ("joint", "grad of x ="),
        ("forward", "output s ="),
        ("backward", "grad_s"),
        ("expanded", "neuron plain expanded"),
        ("plan", "plan backward of plain"),
        ("llvm", "define void @flexsn_step"),
        ("asm", "flexsn_step"),
        ("torch", "ge.Scalar(%"),
    ],
)
def test_show_gives_every_stage(what: str, word: str) -> None:
    assert word in flexsn.show(plain, what, num_states=1)


def test_show_of_the_step_has_no_gradients_and_names_the_arguments() -> None:
    text = flexsn.show(plain, num_states=1)
    assert "grad" not in text and "input x : f32" in text and "state v : f32" in text


def test_show_torch_names_the_line_of_the_core() -> None:
    line = plain.__code__.co_firstlineno + 1
    assert f"test_inspect.py:{line}" in flexsn.show(plain, "torch", num_states=1)


@pytest.mark.parametrize("kind", ["inference", "inference_final_state", "forward", "backward"])
def test_show_takes_the_kind_of_a_kernel(kind: str) -> None:
    assert flexsn.show(plain, "plan", kind=kind, num_states=1).startswith(f"plan {kind} of plain")


def test_show_of_a_plan_without_training_is_that_of_inference() -> None:
    text = flexsn.show(lambda x: (x > 0,), "plan", num_states=0)
    assert text.startswith("plan inference_final_state")


def test_arguments_that_are_called_like_words_of_the_text_are_shown() -> None:
    def core(input: Tensor, state: Tensor, grad_state: Tensor, of: Tensor):
        return input + state * of, state + grad_state, grad_state * input, of + input

    text = flexsn.show(core, "joint", num_states=3)
    assert "input input : f32" in text and "state grad_state : f32" in text and 'state "of" : f32' in text
    assert flexsn.check(core, num_states=3).passed


# ---- check


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_check_passes_for_a_neuron_with_parameters(dtype: str) -> None:
    report = flexsn.check(flexsn.FlexSN(Lif(), num_states=1), shape=(3, 5), dtype=dtype)
    assert report.passed, report.text
    assert str(report) == report.text and "checks: all passed" in report.text
    assert [each.what for each in report.checks[:3]] == [
        "the kernel gives what the eager loop gives",
        "each step agrees from the eager loop's states",
        "gradients agree with the eager loop's",
    ]
    assert any("interpreter's bits" in each.what for each in report.checks)


def wrong_kernel(monkeypatch: pytest.MonkeyPatch, change) -> None:
    """Kernels whose outputs (all states known) are changed by `change(inputs, outputs, states)`."""
    right = Fused.__call__

    def wrong(self, inputs, states=None, static=(), sequences=False):
        outputs, last = right(self, inputs, states, static, sequences)
        return change(inputs, list(outputs), list(last))

    monkeypatch.setattr(Fused, "__call__", wrong)


def test_check_names_the_first_step_and_element_and_the_distance_to_the_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.zeros(5, 2, 3)
    x[3, 1, 2], x[4, 0, 0] = 2.5, 2.5

    def change(inputs, outputs, states):
        return [torch.where(inputs[0] == 2.5, 1 - outputs[0], outputs[0])], states

    wrong_kernel(monkeypatch, change)
    report = flexsn.check(plain, num_states=1, inputs=x, states=[torch.zeros(2, 3)])
    assert not report.passed
    whole, steps = report.checks[0], report.checks[1]
    assert not whole.passed and not steps.passed
    for each in (whole, steps):
        assert "s at step 3, element [1, 2] is 0 in the kernel and 1 in the eager loop" in each.detail
        assert "there x = 2.5, v = 0" in each.detail
        assert "it compares 1.25 >= 1, 0.25 from the threshold" in each.detail
    assert "FAILED" in report.text and "failed" in report.text.splitlines()[-1]


def test_check_leaves_out_what_rounding_decides_at_a_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(4, 3)
    x[2, 1] = 2.0 + 2e-6

    def change(inputs, outputs, states):
        near = (inputs[0] - 2.0).abs() < 1e-5
        return [torch.where(near, 1 - outputs[0], outputs[0])], states

    wrong_kernel(monkeypatch, change)
    report = flexsn.check(plain, num_states=1, inputs=x, states=[torch.zeros(3)])
    assert report.passed, report.text
    detail = report.checks[0].detail
    assert "s at step 2, element [1] is 0 in the kernel and 1 in the eager loop" in detail
    assert "so this is rounding" in detail
    assert "1 values within 1e-05 of a threshold left out" in report.checks[1].detail


def test_check_finds_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a: Tensor) -> Tensor:
            return a.clone()

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            return grad * 1.01

    wrong_kernel(monkeypatch, lambda inputs, outputs, states: ([Wrong.apply(o) for o in outputs], states))
    report = flexsn.check(plain, num_states=1)
    assert [each.passed for each in report.checks[:3]] == [True, True, False]
    assert "the gradient of x at element [" in report.checks[2].detail


def test_check_takes_cores_that_change_their_arguments_and_cores_with_integers() -> None:
    def in_place(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        v.mul_(0.5).add_(x)
        return x.sub_(v), v

    assert flexsn.check(in_place, num_states=1).passed

    def refractory(x: Tensor, v: Tensor, left: Tensor):
        v = torch.where(left > 0, v, v + x)
        s = Spike.apply(v - 1)
        return s, v * (1 - s), torch.where(s > 0, 2, (left - 1).clamp(min=0)).int()

    counters = [torch.zeros(4), torch.zeros(4, dtype=torch.int32)]
    report = flexsn.check(refractory, num_states=2, inputs=torch.randn(6, 4), states=counters)
    assert report.passed, report.text


def test_check_of_a_kernel_object_and_of_no_elements() -> None:
    kernel = flexsn.FlexSNKernel(plain, 1, 1, 1)
    assert flexsn.check(kernel).passed
    report = flexsn.check(plain, num_states=1, T=3, shape=(0,))
    assert report.checks[0].detail == "there are no elements"


# ---- neurons of the library


@pytest.mark.parametrize("name", by_name.names())
def test_neurons_of_the_library_are_shown_explained_and_checked(name: str) -> None:
    neuron = neurons.named(name, step_mode="m")
    assert flexsn.show(neuron).startswith(f"neuron {name} {{\n  input x : f32\n")
    found = flexsn.explain(neuron, shape=(2, 3), dtype="f64")
    assert found.neuron == name and found.operators["training"][1] == "flexsn::backward"
    report = flexsn.check(neuron, shape=(2, 3))
    assert report.passed, report.text
    assert report.checks[0].what == "the kernel gives what the eager loop gives"


def test_a_neuron_of_the_library_is_shown_as_it_is_in_cpp() -> None:
    neuron = neurons.ParametricLIFNode(v_reset=None)
    assert "%h = add %v" in flexsn.show(neuron) and "next v = " in flexsn.show(neuron)
    assert "sigmoid %w : f32  # once a call" in flexsn.show(neuron)
    assert "grad of w = " in flexsn.show(neuron, "joint")
    assert flexsn.show(neuron, "plan", kind="backward").startswith("plan backward of plif")
    with pytest.raises(ValueError, match="plif is a neuron of the library, whose step is not traced from"):
        flexsn.show(neuron, "torch")


def test_parameters_of_a_neuron_of_the_library_are_named_with_their_shapes() -> None:
    tau = nn.Parameter(torch.full((3, 1), 2.0))
    neuron = neurons.LIFNode(tau, step_mode="m", store_v_seq=True, backend="torch")
    found = flexsn.explain(neuron, T=4, shape=(2, 3, 5))
    assert [(p.name, p.shape, p.source, p.gradient) for p in found.parameters] == [
        ("tau", (3, 1), "module.tau", True)
    ]
    assert found.operators["inference"] == ("flexsn::inference",)
    assert 'backend "torch", which calls the core step by step' in found.text
    text = r"no shape was given, so steps of shape \(1048576,\) were tried"
    with pytest.raises(ValueError, match=text):
        flexsn.explain(neurons.GatedLIFNode(4, inplane=3))
    with pytest.raises(ValueError, match=text):
        flexsn.explain(neurons.ActivationAwareIFNode(torch.ones(5)))


def test_explain_takes_the_states_that_a_neuron_of_the_library_holds() -> None:
    neuron = neurons.LIFNode(step_mode="m")
    assert "states start at their initial values" in flexsn.explain(neuron, T=2, shape=(3,)).text
    neuron(torch.ones(2, 3))
    assert "states start at their initial values" not in flexsn.explain(neuron, T=2, shape=(3,)).text


def test_a_parameter_for_each_step_fixes_the_number_of_steps() -> None:
    neuron = neurons.GatedLIFNode(5)
    found = flexsn.explain(neuron, shape=(3,))
    assert found.T == 5 and "param 'conduct' of shape [5]" in found.text
    report = flexsn.check(neuron, inputs=torch.randn(5, 3))
    assert report.passed and "x, conduct, v, spiked, module.alpha" in report.checks[2].detail
    with pytest.raises(ValueError, match="GatedLIFNode: T is 5, found a sequence of 7 steps"):
        flexsn.explain(neuron, T=7)


@pytest.mark.parametrize("name", ["lif", "gated_lif", "alif"])
def test_a_neuron_of_the_library_with_a_surrogate_of_one_s_own_is_traced(name: str) -> None:
    neuron = neurons.named(name, step_mode="m")
    neuron.surrogate_function = Spike.apply
    assert flexsn.check(neuron, shape=(2, 3)).passed
    assert flexsn.check(neuron, inputs=torch.randn(4, 3)).passed
    assert "ge.Scalar(%" in flexsn.show(neuron, "torch")
    assert flexsn.show(neuron).startswith(f"neuron {name} {{")


def test_the_command_line_takes_neurons_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "lif:tau=3,v_reset=none"])
    assert capsys.readouterr().out == flexsn.show(neurons.LIFNode(3.0, v_reset=None))
    main(["explain", "plif", "--T", "4", "--shape", "8"])
    assert "w: float32 [], from module.w, with its gradient" in capsys.readouterr().out
    assert main(["check", "gated_lif:T=3", "--shape", "2"]) == 0
    assert capsys.readouterr().out.startswith("gated_lif, T = 3, steps of shape [2], seed 0\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", "lfi"], "found 'lfi', which is no neuron of the library either (did you mean 'lif'?)"),
        (["show", "lif:taus=3"], "neuron 'lif': there is no option 'taus' (did you mean 'tau'?)"),
        (["check", "lif", "--states", "1"], "lif is a LIFNode, which has its own counts; leave out --states"),
        (["show", "lif", "--stage", "torch"], "lif is a neuron of the library, whose step is not traced"),
    ],
)
def test_wrong_names_of_the_library_have_status_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2 and text in capsys.readouterr().err


def test_check_finds_what_is_wrong_with_a_neuron_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_kernel(monkeypatch, lambda inputs, outputs, states: ([1 - o for o in outputs], states))
    report = flexsn.check(neurons.GatedLIFNode(3), shape=(2,))
    assert not report.passed
    assert "output0 at step 0, element [0] is" in report.checks[0].detail
    assert "from the threshold" in report.checks[0].detail
    report = flexsn.check(neurons.LIFNode(), shape=(2,))
    assert "s at step 0, element [0] is" in report.checks[0].detail


# ---- errors


@pytest.mark.parametrize("ask", [flexsn.explain, flexsn.show, flexsn.check])
def test_what_cannot_be_looked_at_is_an_error(ask) -> None:
    name = f"flexsn.{ask.__name__}"
    with pytest.raises(TypeError, match=f"{name} takes a core, a FlexSN or a FlexSNKernel, found int"):
        ask(3)
    with pytest.raises(TypeError, match=f"{name}: num_states is required for a core"):
        ask(plain)
    with pytest.raises(ValueError, match="plain shows 2 arguments.* 3 states and 0 params; give num_inputs"):
        ask(plain, num_states=3)
    with pytest.raises(ValueError, match="a FlexSN has its own counts and static inputs; leave out"):
        ask(flexsn.FlexSN(plain, num_states=1), num_states=1)
    with pytest.raises(ValueError, match="a LIFNode has its own counts and static inputs; leave out"):
        ask(neurons.LIFNode(), num_states=1)
    for neuron in (flexsn.FlexSN(plain, num_states=1), neurons.LIFNode()):
        network = nn.Sequential(nn.Linear(2, 2), neuron)
        text = r'Sequential is a network with neurons in it.*get_submodule\("1"\)'
        with pytest.raises(ValueError, match=text):
            ask(network, num_states=1)
    with pytest.raises(ValueError, match=f"{name}: dtype must be one of f16, .*found 'f31'"):
        ask(plain, num_states=1, dtype="f31")
    with pytest.raises(ValueError, match="T and the sizes of shape must be whole numbers"):
        ask(plain, num_states=1, shape=(-1,))


def test_a_shape_that_parameters_need_is_asked_for() -> None:
    text = r"no shape was given, so steps of shape \(1048576,\) were tried: give the shape of one step"
    with pytest.raises(ValueError, match=text):
        flexsn.explain(Lif(), num_states=1)


def test_words_that_are_not_known_are_errors() -> None:
    with pytest.raises(ValueError, match="what must be one of ir, joint, .*, found 'irr'"):
        flexsn.show(plain, "irr", num_states=1)
    with pytest.raises(ValueError, match="kind must be one of inference, .*, found 'both'"):
        flexsn.show(plain, "plan", kind="both", num_states=1)
    with pytest.raises(ValueError, match="kind chooses a kernel, .*; it means nothing for 'ir'"):
        flexsn.show(plain, "ir", kind="forward", num_states=1)
    with pytest.raises(ValueError, match="inputs have T, shape and dtype in them; leave those out"):
        flexsn.explain(plain, num_states=1, T=3, inputs=torch.ones(2, 3))


def test_a_gradient_of_an_argument_that_is_not_there_is_an_error() -> None:
    text = flexsn.show(plain, "ir", num_states=1)
    for place in (-1, 7):
        with pytest.raises(ValueError, match=f"there is no argument {place} to take a gradient of; there are"):
            ops.explain(text, 3, [4], [], False, False, [place])


# ---- names


def test_outputs_have_the_names_that_the_core_returns() -> None:
    def clear(x: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        def inner(y: Tensor) -> Tensor:
            return y * 2

        spike = inner(x)
        return spike, v, x + u, u, v

    def twice(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        h = x + v
        if x.dim() > 9:
            return v, h
        return h, v

    def unpacked(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        both = (x, x * 2)
        last = v
        return *both, last

    def outputs(core: object, **given: int) -> list[str]:
        text = flexsn.show(core, "forward", **given)
        return [line.split()[1] for line in text.splitlines() if line.strip().startswith("output ")]

    # v is a state, so that the second output cannot have its name.
    assert outputs(clear, num_states=2)[:3] == ["spike", "output1", "output2"]
    assert outputs(twice, num_states=1)[0] == "output0"
    assert outputs(unpacked, num_states=1)[:2] == ["output0", "output1"]
    assert outputs(lambda x, v: (x + v, v), num_states=1)[0] == "output0"


def test_parameters_that_torch_makes_are_called_after_what_they_are_made_of() -> None:
    w, b = torch.ones(3, requires_grad=True), torch.ones(3)

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = x * torch.sigmoid(w) + v * torch.exp(torch.sigmoid(w)) + (w + b)
        return h, h

    names = [parameter.name for parameter in flexsn.explain(core, 2, (3,), num_states=1).parameters]
    assert names == ["sigmoid_w", "exp_sigmoid_w", "param2"]


# ---- names of the user's own variables ---------------------------------------------------------------------


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.level = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor, current: Tensor, v: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        decay = torch.sigmoid(self.w)
        drive = x * 2 + current
        h = v * decay + drive
        threshold = self.level + a
        fired = h > threshold
        s = fired.to(x.dtype)
        a = a * 0.9 + s * 0.1
        return s, h, torch.where(fired, h - threshold, h), a


def test_values_are_called_as_the_core_calls_them() -> None:
    lines = [line.strip() for line in flexsn.show(Gate(), num_states=2).splitlines()]
    for line in (
        "%drive = add %current, %7 : f32",
        "%h = add %6, %drive : f32",
        "%threshold = add %a, %level : f32",
        "%fired = gt %h, %threshold : bool",
        "%s = to_f32 %fired : f32",
        "output h = %h : f32",
    ):
        assert line in lines
    assert not any(line.startswith(("%decay", "%a ")) for line in lines), "not of the step, and an argument"
    assert "%h = " in flexsn.show(functools.partial(scaled, 0.5), num_states=1)
    assert "float h = " in flexsn.export(Gate(), "cuda", num_states=2)


def scaled(k: float, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v * k + x
    return h, h


def test_no_value_is_called_what_another_one_is() -> None:
    def misleading(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        big = torch.exp(x * x + 1000.0)
        small = v * x * 1e-6
        square = x * x
        more = square + 1e-5
        square = torch.tanh(v)
        h = v * 0.5 + x
        limited = torch.clamp(h, -30.0, 30.0)
        h = v * 3.0
        return torch.where(x > 0, x * 1e-6, v * 1e-6) + small + more + limited, h + square + big * 0

    text = flexsn.show(misleading, num_states=1)
    for wrong in ("%big = add", "%small = mul %v, 1e-06", "%more = mul", "%limited = add", "%square = mul"):
        assert wrong not in text
    assert "%square = tanh %v" in text and "%h = mul %v, 3" in text


def test_examples_of_a_module_say_what_a_step_is_like() -> None:
    class PerChannel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.rand(4))

        def forward(self, x: Tensor, n: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            drive = x * self.w
            return drive + n, v + drive

    examples = [torch.zeros(4), torch.zeros(4, dtype=torch.int32), torch.zeros(4)]
    module = FlexSN(PerChannel(), num_states=1, example_inputs=examples)
    for text in (flexsn.show(module), flexsn.export(module, "fsn")):
        assert "input n : i32" in text and "%drive = mul %x, %w" in text
