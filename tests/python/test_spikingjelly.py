"""Together with SpikingJelly 2.0.0: each finds the neurons of the other, and its models run with ours."""

from __future__ import annotations

import copy
import importlib
import pathlib
import pickle
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sj = pytest.importorskip("spikingjelly.activation_based", reason="spikingjelly is not installed")

from spikingjelly.activation_based import base as sj_base  # noqa: E402
from spikingjelly.activation_based import functional as sj_functional  # noqa: E402
from spikingjelly.activation_based import layer as sj_layer  # noqa: E402
from spikingjelly.activation_based import neuron as sj_neuron  # noqa: E402
from spikingjelly.activation_based import surrogate as sj_surrogate  # noqa: E402
from spikingjelly.logger import logger as sj_logger  # noqa: E402

from flexsn import base, functional  # noqa: E402
from flexsn.neuron import FlexSN  # noqa: E402

all_backends = pytest.mark.parametrize("backend", ["torch", "fused", "hop"])
reset_nets = pytest.mark.parametrize("reset_net", [functional.reset_net, sj_functional.reset_net])
detach_nets = pytest.mark.parametrize("detach_net", [functional.detach_net, sj_functional.detach_net])
set_step_modes = pytest.mark.parametrize(
    "set_step_mode", [functional.set_step_mode, sj_functional.set_step_mode]
)

fire = sj_surrogate.Sigmoid(alpha=4.0)


def lif(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v + (x - v) / 2.0
    s = fire(h - 1.0)
    return s, (1.0 - s) * h


def ours(backend: str = "torch", **options: Any) -> FlexSN:
    return FlexSN(lif, num_states=1, backend=backend, **options)


def theirs() -> nn.Module:
    return sj_neuron.LIFNode(tau=2.0, surrogate_function=fire, step_mode="m")


def mixed(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), ours(**options), nn.Linear(4, 4), theirs())


@pytest.fixture
def sj_warnings() -> Iterator[list[str]]:
    messages: list[str] = []
    sink = sj_logger.add(lambda message: messages.append(str(message)), level="WARNING")
    yield messages
    sj_logger.remove(sink)


# ---- each finds the neurons of the other -------------------------------------------------------------------


def test_our_modules_count_as_theirs():
    module = ours()
    assert isinstance(module, sj_base.MemoryModule) and isinstance(module, sj_base.StepModule)
    assert isinstance(module, base.MemoryModule)


@all_backends
@reset_nets
def test_reset_net_of_either_resets_both(backend, reset_net, sj_warnings, caplog):
    net = mixed(backend=backend)
    net(torch.randn(3, 2, 4))
    assert net[1].states is not None and isinstance(net[3].v, Tensor)
    reset_net(net)
    assert net[1].states is None and net[3].v == 0.0
    assert sj_warnings == [] and "flexsn" not in {record.name for record in caplog.records}


@all_backends
@detach_nets
def test_detach_net_of_either_detaches_both(backend, detach_net, sj_warnings):
    net = mixed(backend=backend)
    net(torch.randn(3, 2, 4))
    assert net[1].states[0].grad_fn is not None and net[3].v.grad_fn is not None
    detach_net(net)
    assert net[1].states[0].grad_fn is None and net[3].v.grad_fn is None
    assert sj_warnings == []


@set_step_modes
def test_set_step_mode_of_either_sets_both(set_step_mode, sj_warnings):
    net = mixed()
    set_step_mode(net, "s")
    assert net[1].step_mode == "s" and net[3].step_mode == "s"
    x = torch.randn(2, 4)
    assert net(x).shape == x.shape
    assert sj_warnings == []


@set_step_modes
def test_set_step_mode_of_either_leaves_containers_with_own_steps_alone(set_step_mode):
    net = nn.Sequential(sj_layer.MultiStepContainer(ours(step_mode="s")), ours())
    set_step_mode(net, "s")
    set_step_mode(net, "m")
    assert net[0][0].step_mode == "s" and net[1].step_mode == "m"


def test_named_memories_of_either_finds_both():
    net = mixed()
    names = ["1.states", "1.state_seqs", "3.v"]
    assert [name for name, _ in base.named_memories(net)] == names
    assert [name for name, _ in sj_base.named_memories(net)] == names


def test_to_functional_forward_of_either_runs_both():
    net = mixed()
    x = torch.randn(3, 2, 4)
    outputs, states = base.to_functional_forward(net)((x,), tuple(base.extract_memories(net)))
    their_memories = tuple(sj_base.extract_memories(net))
    their_outputs, their_states = sj_base.to_functional_forward(net)((x,), their_memories)
    assert net[1].states is None and net[3].v == 0.0
    torch.testing.assert_close(net(x), outputs[0])
    torch.testing.assert_close(their_outputs[0], outputs[0])
    torch.testing.assert_close(net[1].states, states[0])
    torch.testing.assert_close(their_states[0], states[0])
    torch.testing.assert_close(their_states[2], states[1])


@all_backends
def test_their_functional_forward_runs_ours_alone(backend):
    module = ours(backend)
    x = torch.randn(3, 4)
    outputs, states = sj_base.to_functional_forward(module)((x,), tuple(sj_base.extract_memories(module)))
    torch.testing.assert_close(module(x), outputs[0])
    torch.testing.assert_close(module.states, states[0])


@all_backends
def test_our_modules_keep_their_own_behaviour(backend):
    module = ours(backend, store_state_seqs=True)
    x = torch.randn(3, 4)
    module(x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin.states[0], module.states[0])
    module.double()
    assert module.states[0].dtype == torch.float64
    applied = []
    module._apply(lambda tensor: applied.append(tensor) or tensor)
    assert len(applied) == 2
    with pytest.raises(ValueError, match="FlexSN: step_mode must be one of"):
        module.step_mode = "x"
    assert "states" in dir(module)


def run_python(code: str) -> str:
    """What a new process prints; it finds the package where this one does."""
    where = str(pathlib.Path(base.__file__).parents[1])
    program = f"import sys; sys.path.insert(0, {where!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


FOUND = """
class Kept(flexsn.base.MemoryModule):
    def __init__(self):
        super().__init__()
        self.register_memory("kept", [1])
made = Kept()
"""


@pytest.mark.parametrize(
    "order",
    [
        "import flexsn.base, flexsn.functional\n"
        "assert not any('spikingjelly' in module for module in sys.modules)\n"
        "from spikingjelly.activation_based import base, functional\n" + FOUND,
        "from spikingjelly.activation_based import base, functional\nimport flexsn.base\n" + FOUND,
        "import flexsn.base\n" + FOUND + "first = made\n"
        "from spikingjelly.activation_based import base, functional\nKept()",
    ],
    ids=["flexsn first, which does not load it", "spikingjelly first", "a module before spikingjelly"],
)
def test_the_order_of_imports_does_not_matter(order):
    code = f"{order}\nprint(isinstance(made, base.MemoryModule), list(base.named_memories(made)))"
    assert run_python(code) == "True [('kept', [1])]\n"


def test_a_class_that_derives_from_both_can_be_made():
    code = (
        "import flexsn.base\nfrom spikingjelly.activation_based import base\n"
        "class Both(base.MemoryModule, flexsn.base.MemoryModule):\n    pass\n"
        "module = Both()\nmodule.register_memory('kept', 3)\nmodule.reset()\nprint(module.kept)"
    )
    assert run_python(code) == "3\n"


# ---- ours in their model -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spiking_vgg11_bn() -> Callable[..., nn.Module]:
    """Their model builder, from its file alone: the package around it wants torchvision, h5py and more."""
    folder = pathlib.Path(sj.__file__).parent / "model"
    package = types.ModuleType("spikingjelly.activation_based.model")
    package.__path__ = [str(folder)]
    weights = types.ModuleType("torchvision.models.utils")
    weights.load_state_dict_from_url = None
    stand_ins = {
        package.__name__: package,
        "torchvision": types.ModuleType("torchvision"),
        "torchvision.models": types.ModuleType("torchvision.models"),
        weights.__name__: weights,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_ins.items():
            patch.setitem(sys.modules, name, module)
        return importlib.import_module(f"{package.__name__}.spiking_vgg").spiking_vgg11_bn


@pytest.fixture(scope="module")
def network(spiking_vgg11_bn) -> nn.Module:
    """Their VGG with their neuron; without chance, as runs are compared, and with spikes to the end."""
    torch.manual_seed(0)
    net = spiking_vgg11_bn(spiking_neuron=theirs, num_classes=10)
    sj_functional.set_step_mode(net, "m")
    for module in net.modules():
        if isinstance(module, sj_layer.Dropout):
            module.p = 0.0
        elif isinstance(module, sj_layer.BatchNorm2d):
            nn.init.constant_(module.weight, 2.0)
        elif isinstance(module, sj_layer.Linear):
            nn.init.normal_(module.weight, 0, 0.05)
    return net


def with_neurons(net: nn.Module, make: Callable[[], nn.Module]) -> nn.Module:
    """The same network and weights with other neurons."""
    for block in (net.features, net.classifier):
        for place, module in enumerate(block):
            if isinstance(module, (sj_neuron.LIFNode, FlexSN)):
                block[place] = make()
    return net


def one_training_step(net: Callable[[Tensor], Tensor], weights: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Output and gradients of all layers but the two largest, whose gradients are as big as the network."""
    weights.zero_grad(set_to_none=True)
    out = net(x)
    out.square().mean().backward()
    found = {
        name: parameter.grad.clone()
        for name, parameter in weights.named_parameters()
        if parameter.numel() < 1_000_000
    }
    weights.zero_grad(set_to_none=True)
    functional.reset_net(weights)
    return {"out": out.detach(), **found}


@pytest.mark.parametrize(
    ("backend", "compiled"), [("fused", False), ("torch", False), ("hop", False), ("fused", True)]
)
def test_spiking_vgg_with_our_neuron_equals_theirs(network, backend, compiled):
    x = torch.randn(3, 2, 3, 32, 32)
    expected = one_training_step(with_neurons(network, theirs), network, x)
    net = with_neurons(network, lambda: ours(backend))
    run = torch.compile(net, fullgraph=True, backend="eager") if compiled else net
    found = one_training_step(run, net, x)
    assert expected["out"].abs().sum() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_spiking_vgg_can_be_built_with_our_neuron(spiking_vgg11_bn):
    with torch.device("meta"):
        net = spiking_vgg11_bn(spiking_neuron=ours, backend="fused", num_classes=10)
    assert sum(isinstance(module, FlexSN) for module in net.modules()) == 10
