"""Neurons of the library by their names, and kernels that layers of one neuron share."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flexsn import neurons, surrogate
from flexsn.neurons import by_name


def test_a_neuron_of_a_text_is_that_of_its_class():
    assert [neurons.named(name).name for name in by_name.names()] == by_name.names()
    neuron = neurons.named("lif:tau=3,v_reset=none,surrogate=s2nn:alpha=3", step_mode="m")
    other = neurons.LIFNode(3.0, v_reset=None, surrogate_function=surrogate.S2NN(3.0), step_mode="m")
    assert repr(neuron) == repr(other)
    assert neurons.named("liaf:act=none").act == "none"
    assert neurons.named("gated_lif:T=7").conduct.shape == (7,)
    for text, name, value in [("lif:tau=learnable:3", "tau", 3.0), ("lif:tau=learnable", "tau", 2.0)]:
        assert dict(neurons.named(text).named_parameters())[name].item() == value
    assert neurons.named("klif:k=2").k.item() == 2.0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("izhikevic", r"there is no built-in neuron 'izhikevic' \(did you mean 'izhikevich'\?\)"),
        ("lif:taus=3", r"neuron 'lif': there is no option 'taus' \(did you mean 'tau'\?\); the options are"),
        ("lif:tau=x", "neuron 'lif': option tau must be a number, found 'x'"),
        ("lif:tau=learnable:x", "neuron 'lif': option tau must be a number, found 'learnable:x'"),
        ("stbif:level=2.5", "neuron 'stbif': option level must be a whole number, found '2.5'"),
        ("lif:tau=1", "LIFNode: tau must be a number above 1, found 1"),
        ("lif:tau", "expected OPTION=VALUE between commas, such as tau=3, found 'tau'"),
        ("lif:tau=3,tau=4", "option tau is given twice; give it once"),
    ],
)
def test_a_text_that_names_no_neuron_is_an_error(text, error):
    with pytest.raises(ValueError, match=error):
        neurons.named(text)


LAYERS = """
import os, pathlib, torch, flexsn
from flexsn import neurons
from flexsn.fused import trace_count

class Core(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.rand(()))
    def forward(self, x, v):
        v = v + (x - v) * torch.sigmoid(self.w)
        return v, v

def kernels():
    return [path for path in pathlib.Path(os.environ["FLEXSN_CACHE_DIR"]).rglob("*") if path.is_file()]

def train(layer):
    layer(torch.ones(3, 5, requires_grad=True)).sum().backward()

kinds = {
    "LIFNode": lambda: neurons.LIFNode(step_mode="m"),
    "ParametricLIFNode": lambda: neurons.ParametricLIFNode(2 + torch.rand(()).item(), step_mode="m"),
    "FlexSN": lambda: flexsn.FlexSN(Core(), num_states=1),
}
for name, make in kinds.items():
    layers = [make() for _ in range(10)]
    traces = trace_count()
    train(layers[0])
    first = len(kernels())
    for path in kernels():
        path.unlink()  # so that a kernel that is compiled once more is seen
    for layer in layers[1:]:
        train(layer)
    print(name, first, len(kernels()), trace_count() - traces)
"""


def test_ten_layers_of_the_same_neuron_compile_one_kernel(tmp_path):
    environment = {**os.environ, "FLEXSN_CACHE_DIR": str(tmp_path), "FLEXSN_CACHE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LAYERS], capture_output=True, text=True, env=environment, timeout=300
    )
    found = {name: tuple(map(int, counts)) for name, *counts in map(str.split, done.stdout.splitlines())}
    assert list(found) == ["LIFNode", "ParametricLIFNode", "FlexSN"], done.stderr
    for name, (of_the_first, of_the_others, traces) in found.items():
        assert of_the_first > 0 and of_the_others == 0, f"{name}: {found[name]}"
        assert traces == (1 if name == "FlexSN" else 0)
