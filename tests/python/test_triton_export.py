"""A neuron as a Triton module: in Triton's interpreter it has all bits of flexsn's own."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import flexsn
from triton_modules import (
    Comparison,
    Data,
    data_of,
    environment,
    load,
    neuron_of,
    ops,
    random_tensor,
    same_bits,
    texts_of,
    without_flexsn,
)

STEPS = (2, 5, 1, 6)
SHAPES = ((5,), (3, 2), (2, 3, 2), (9,), ())


@pytest.fixture(autouse=True)
def in_interpreters() -> Iterator[None]:
    """Triton's interpreter for modules, flexsn's for what they are compared with."""
    with environment(TRITON_INTERPRET="1", FLEXSN_TARGET="interpreter"), numpy.errstate(all="ignore"):
        yield


def made(text: str, folder: pathlib.Path, name: str = "exported", sequences: bool = False) -> tuple[Any, str]:
    """The module of a neuron, in small blocks of elements and of time, and its function's name."""
    code = ops.export(text, "triton", "", sequences)
    module = load(code, folder, name)
    module.BLOCKS = {kind: (8, 4) for kind in module.BLOCKS}
    module.SUM_SIZE, module.SEGMENT = 4, 2
    return module, neuron_of(code)


def test_no_more_steps_are_rebuilt_than_registers_hold() -> None:
    neuron = flexsn.neurons.LIFNode(step_mode="m")
    assert "segments of 16 steps" in flexsn.show(neuron, "plan", device="cuda")
    assert "\nSEGMENT = 8\n" in flexsn.export(neuron, "triton")


def differences(
    texts: Sequence[tuple[str, str]], folder: pathlib.Path, first: int = 0
) -> dict[str, list[str]]:
    """What modules of these neurons compute otherwise than the interpreter, each in one way of calling it."""
    found = {}
    for n, (name, text) in enumerate(texts, first):
        module, neuron = made(text, folder, f"neuron_{n}")
        generator = torch.Generator().manual_seed(n)
        data = data_of(text, STEPS[n % 4], SHAPES[n % 5], generator, elided=n % 3 == 0)
        wrong = Comparison(text, module, neuron, data).run(n % 2 == 0, generator)
        if wrong:
            found[name] = wrong
    return found


def texts(*words: str) -> list[tuple[str, str]]:
    found = texts_of(*words)
    if not found:
        pytest.skip("FLEXSN_NEURON_TEXTS does not name the program flexsn_neuron_texts")
    return found


def test_built_in_neurons_have_the_bits_of_the_interpreter(tmp_path):
    in_all_types = ("lif", "plif", "alif", "izhikevich")
    chosen = [
        each for each in texts("built_in") if each[0].endswith("f32") or each[0].split()[0] in in_all_types
    ]
    assert differences(chosen, tmp_path) == {}


@pytest.mark.parametrize("part", range(4))
def test_every_row_has_the_bits_of_the_interpreter(part, tmp_path):
    assert differences(texts("rows")[part::4], tmp_path, part) == {}


@pytest.mark.parametrize("part", range(5))
def test_random_graphs_have_the_bits_of_the_interpreter(part, tmp_path):
    assert differences(texts("random", "200")[part::5], tmp_path, part) == {}


def test_a_wrong_module_does_not_go_unnoticed(tmp_path):
    [text] = [text for name, text in texts("built_in") if name == "lif f32"]
    code = ops.export(text, "triton", "", False)
    generator = torch.Generator().manual_seed(0)
    data = data_of(text, 17, (4,), generator, edges=0)
    faults = [("h - 1.0", "h - 1.25"), ("grad_v * ", "-1.0 * grad_v * "), ("segment > 0", "segment > 1")]
    for n, (right, wrong) in enumerate(faults):
        assert right in code
        module = load(code.replace(right, wrong), tmp_path, f"wrong_{n}")
        assert Comparison(text, module, "lif", data).run(False, generator), wrong


# ---- shapes ------------------------------------------------------------------------------------------------

LEAKY = """neuron leaky {
  input x : f32
  state v : f32
  param tau : f32 = 2
  param gate : f32 per_step = 1
  %d = sub %x, %v
  %q = div %d, %tau
  %g = mul %q, %gate
  %h = add %v, %g
  %s = tanh %h
  output s = %s
  next v = %h
}
"""


@pytest.fixture(scope="module")
def leaky(tmp_path_factory) -> Any:
    with environment(TRITON_INTERPRET="1"):
        return made(LEAKY, tmp_path_factory.mktemp("leaky"))[0]


def leaky_data(T: int, step: tuple[int, ...], tau: tuple[int, ...] = (), gate: tuple[int, ...] = ()) -> Data:
    generator = torch.Generator().manual_seed(T)
    return Data(
        [random_tensor((T, *step), torch.float32, generator, 0)],
        [random_tensor(step, torch.float32, generator, 0)],
        [
            random_tensor(tau, torch.float32, generator, 0),
            random_tensor((T, *gate), torch.float32, generator, 0),
        ],
    )


@pytest.mark.parametrize(
    ("step", "tau", "gate"),
    [
        ((37,), (), ()),
        ((37,), (37,), (1,)),
        ((2, 3, 5), (3, 1), (5,)),
        ((2, 3, 5), (2, 1, 5), (2, 1, 1)),
        ((2, 3, 5), (2, 3, 5), (2, 1, 5)),
        ((4, 1, 5), (4, 1, 1), (1, 1, 1)),
        ((3, 6), (6,), (3, 1)),
        ((), (), ()),
    ],
)
def test_parameters_of_any_shape_and_their_gradients(leaky, step, tau, gate):
    generator = torch.Generator().manual_seed(1)
    data = leaky_data(5, step, tau, gate)
    assert Comparison(LEAKY, leaky, "leaky", data).run(False, generator) == []


@pytest.mark.parametrize("sequences", [True, False])
@pytest.mark.parametrize(("T", "step"), [(0, (3,)), (4, (0,)), (0, (0,)), (0, ())])
def test_no_steps_and_no_elements(leaky, T, step, sequences):
    generator = torch.Generator().manual_seed(1)
    assert Comparison(LEAKY, leaky, "leaky", leaky_data(T, step)).run(sequences, generator) == []


def test_steps_need_not_be_dense(leaky):
    data = leaky_data(4, (3, 5))
    x = data.inputs[0]
    expected = leaky.inference(x, *data.states, tau=data.params[0], gate=data.params[1])
    apart = torch.zeros(8, 3, 5)[::2].copy_(x)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    for other in (apart, turned):
        assert not other.is_contiguous()
        found = leaky.inference(other, *data.states, tau=data.params[0], gate=data.params[1])
        assert all(map(same_bits, expected, found))


def test_one_step_may_stand_for_all(leaky):
    x = torch.linspace(-1, 1, 6)
    gate = torch.ones(5)
    expected = leaky.inference(x.repeat(5, 1), gate=gate)
    assert all(map(same_bits, expected, leaky.inference(x.expand(5, 6), gate=gate)))


def test_numbers_are_parameters_and_defaults_are_theirs(leaky):
    x, gate = torch.linspace(-1, 1, 12).view(4, 3), torch.ones(4)
    expected = leaky.inference(x, tau=torch.tensor(2.0), gate=gate)
    assert all(map(same_bits, expected, leaky.inference(x, gate=gate)))
    assert all(map(same_bits, expected, leaky.inference(x)))
    assert all(map(same_bits, expected, leaky.inference(x, gate=1)))
    assert all(
        map(
            same_bits,
            leaky.inference(x, tau=3, gate=gate),
            leaky.inference(x, tau=torch.tensor(3.0), gate=gate),
        )
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"x": torch.zeros(4, 3, dtype=torch.float64)},
            r"x must be torch.float32 of shape \[4, 3\], found torch.float64",
        ),
        (
            {"v": torch.zeros(2)},
            r"v must be torch.float32 of shape \[3\], found torch.float32 of shape \[2\]",
        ),
        ({"tau": torch.ones(2)}, r"tau has shape \[2\], which does not broadcast to a step of \[3\]"),
        (
            {"tau": torch.ones((), dtype=torch.float16)},
            "tau must be torch.float32 on cpu, found torch.float16 on cpu",
        ),
        ({"gate": torch.ones(3)}, r"gate changes with time: its shape must start with 4, found \[3\]"),
    ],
)
def test_what_does_not_fit_is_refused(leaky, arguments, message):
    given = {"x": torch.zeros(4, 3), "gate": torch.ones(4), **arguments}
    with pytest.raises(ValueError, match=message):
        leaky.leaky(**given)


# ---- gradients ---------------------------------------------------------------------------------------------


def test_only_gradients_that_are_wanted_are_given(leaky):
    data = leaky_data(4, (3,))
    x, v = data.inputs[0].requires_grad_(), data.states[0]
    tau, gate = data.params
    results = leaky.leaky(x, v, tau=tau, gate=gate)
    assert [result.requires_grad for result in results] == [True, True]
    [alone] = torch.autograd.grad(results[0].sum(), [x])
    every = leaky.leaky(x, v.requires_grad_(), tau=tau.requires_grad_(), gate=gate.requires_grad_())
    assert same_bits(alone, torch.autograd.grad(every[0].sum(), [x])[0])
    with torch.no_grad():
        assert not leaky.leaky(x, v, tau=tau, gate=gate)[0].requires_grad


@pytest.mark.parametrize("sequences", [True, False])
def test_a_gradient_that_does_not_arrive_takes_part_in_no_sum(leaky, sequences):
    data = leaky_data(5, (3,))
    ours, theirs = ([t.clone().requires_grad_() for group in data for t in group] for _ in range(2))
    op = ops.training if sequences else ops.training_final_state
    expected = op(LEAKY, ours[:1], ours[1:2], ours[2:])[:2]
    found = leaky.leaky(*theirs[:2], tau=theirs[2], gate=theirs[3], sequences=sequences)
    arriving = torch.randn_like(expected[1])
    wanted = torch.autograd.grad(expected[1], ours, arriving)
    assert all(map(same_bits, wanted, torch.autograd.grad(found[1], theirs, arriving)))


def test_gradients_of_gradients_are_refused(leaky):
    x = torch.zeros(3, 2, requires_grad=True)
    s, _ = leaky.leaky(x, gate=torch.ones(3))
    [grad] = torch.autograd.grad((s * s).sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_every_plan_of_training_gives_the_same_bits(tmp_path):
    generator = torch.Generator().manual_seed(3)
    module, neuron = made(LEAKY, tmp_path, "with_sequences", sequences=True)
    for sequences in (True, False):
        data = leaky_data(6, (4,))
        assert Comparison(LEAKY, module, neuron, data).run(sequences, generator) == []


# ---- the text ----------------------------------------------------------------------------------------------

COUNTING = """neuron counting {
  input x : f32
  state n : i32 = 3
  %t = step_index
  %e = element_index
  %a = add %t, %e
  %b = add %a, %n
  output y = %b
  next n = %b
}
"""


def test_step_numbers_go_on_across_chunks(tmp_path):
    module, _ = made(COUNTING, tmp_path)
    x = torch.zeros(7, 3)
    y, n = module.counting(x)
    first, state = module.counting(x[:3])
    rest, last = module.counting(x[3:], state, first_step=3)
    assert torch.equal(torch.cat([first, rest]), y) and torch.equal(last, n)
    assert all(map(same_bits, ops.inference_final_state(COUNTING, [x], [], []), (y, n)))
    assert not hasattr(module, "backward")


def test_odd_names_become_python_names(tmp_path):
    text = """neuron "for" {
      input "größe" : f32
      input x_first : f32
      state x : f32
      param lambda : f32 = 1
      param T : f32 = 2
      %"a b" = add %"größe", %x_first
      %mask = mul %"a b", %lambda
      %tl = sub %mask, %T
      %place = add %tl, %x
      output x = %place
      output out_x = %tl
      next x = %place
    }
    """
    module, name = made(text, tmp_path)
    assert name == "for_"
    generator = torch.Generator().manual_seed(0)
    assert Comparison(text, module, name, data_of(text, 3, (4,), generator)).run(False, generator) == []


def test_the_header_says_what_it_is(tmp_path):
    code = ops.export(LEAKY, "triton", "", False)
    head = code[: code.index("import ")]
    assert head.startswith(f'"""Neuron leaky as Triton kernels, made by flexsn {ops.version()}.')
    for words in (
        "leaky(x, v=None, *, tau=2.0, gate=1.0, sequences=False)",
        "%h = add %v, %g",
        "gradients of x, v, tau, gate",
    ):
        assert words in head
    compile(code, "leaky.py", "exec")


def test_a_neuron_without_input_is_refused():
    with pytest.raises(ValueError, match="has no input"):
        ops.export("neuron alone {\n  state v : f32\n  next v = %v\n}\n", "triton", "", False)


def test_a_module_runs_where_flexsn_cannot_be_imported(tmp_path):
    path = tmp_path / "leaky_triton.py"
    path.write_text(ops.export(LEAKY, "triton", "", False))
    assert not re.search(r"import flexsn|from flexsn", path.read_text())
    printed = without_flexsn(
        """
import sys; sys.path.insert(0, sys.argv[1])
import torch
from leaky_triton import leaky
try:
    import flexsn
except ImportError:
    print("no flexsn")
x = torch.linspace(-1, 2, 20).view(5, 4).requires_grad_()
tau = torch.tensor(2.0, requires_grad=True)
s, v = leaky(x, tau=tau, gate=torch.ones(5))
s.sum().backward()
print(s.sum().item().hex(), v.sum().item().hex(), x.grad.sum().item().hex(), tau.grad.item().hex())
""",
        tmp_path,
        TRITON_INTERPRET="1",
    )
    x = torch.linspace(-1, 2, 20).view(5, 4).requires_grad_()
    tau = torch.tensor(2.0, requires_grad=True)
    s, v = ops.training_final_state(LEAKY, [x], [], [tau, torch.ones(5)])[:2]
    s.sum().backward()
    numbers = [s.sum(), v.sum(), x.grad.sum(), tau.grad]
    assert printed.split() == ["no", "flexsn", *[number.item().hex() for number in numbers]]


def test_what_arrives_need_not_be_dense(leaky):
    data = leaky_data(4, (3,))
    x = data.inputs[0].requires_grad_()
    s, _ = leaky.leaky(x, *data.states, tau=data.params[0], gate=data.params[1])
    dense: Tensor = torch.linspace(0, 1, 12).view(4, 3)
    spread = dense.t().contiguous().t()
    [expected] = torch.autograd.grad(s, [x], dense, retain_graph=True)
    assert same_bits(expected, torch.autograd.grad(s, [x], spread)[0])
