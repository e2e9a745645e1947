"""What arguments of the library's neurons cannot be: errors have the argument, what is allowed, what came."""

from __future__ import annotations

import pathlib

import pytest
import torch

from flexsn import neurons, surrogate
from flexsn.neurons import absent

SCOPE = pathlib.Path(__file__).parents[2] / "docs" / "scope.md"


class OwnFunction(torch.autograd.Function):
    """A user's surrogate, given without its .apply."""


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: neurons.LIFNode(1.0), ValueError, "LIFNode: tau must be a number above 1, found 1"),
        (
            lambda: neurons.LIFNode(float("nan")),
            ValueError,
            "LIFNode: tau must be a number above 1, found nan",
        ),
        (
            lambda: neurons.LIFNode("2"),
            TypeError,
            "LIFNode: tau must be a number or a tensor of floats, found '2'",
        ),
        (
            lambda: neurons.LIFNode([2.0]),
            TypeError,
            "LIFNode: tau must be a number or a tensor of floats, found list",
        ),
        (
            lambda: neurons.LIFNode(torch.tensor(2)),
            TypeError,
            "tau must be .*, found a tensor of torch.int64",
        ),
        (
            lambda: neurons.LIFNode(torch.tensor([2.0, 0.5])),
            ValueError,
            "LIFNode: tau must be a number above 1, found 0.5",
        ),
        (
            lambda: neurons.LIFNode(decay_input=1),
            ValueError,
            "LIFNode: decay_input must be true or false, found 1",
        ),
        (
            lambda: neurons.LIFNode(v_threshold=-1.0, v_reset=None),
            ValueError,
            "LIFNode: v_threshold must be a number above 0, since the soft reset takes it away, found "
            "-1",
        ),
        (
            lambda: neurons.LIFNode(v_reset=float("inf")),
            ValueError,
            "LIFNode: v_reset must be a finite number, or none, found inf",
        ),
        (
            lambda: neurons.LIFNode(surrogate_function="atn"),
            ValueError,
            "LIFNode: surrogate_function: a surrogate must be sigmoid, .*did you mean 'atan'",
        ),
        (
            lambda: neurons.LIFNode(surrogate_function=3),
            TypeError,
            "LIFNode: surrogate_function must be a surrogate, the name of one or a function of a "
            "tensor, found int",
        ),
        (lambda: neurons.LIFNode(step_mode="x"), ValueError, "step_mode must be one of"),
        (lambda: neurons.LIFNode(backend="gpu"), NotImplementedError, "LIFNode: backend must be one of"),
        (
            lambda: neurons.HalfThresholdIFNode(0.0),
            ValueError,
            "HalfThresholdIFNode: v_threshold must be a number above 0, found 0",
        ),
        (
            lambda: neurons.HalfThresholdIFNode(torch.tensor(1.0)),
            TypeError,
            "HalfThresholdIFNode: v_threshold must be a number, found a tensor of torch.float32",
        ),
        (
            lambda: neurons.LIFNode(decay_input="no"),
            TypeError,
            "LIFNode: decay_input must be True or False, found 'no'",
        ),
        (
            lambda: neurons.LIFNode(v_reset="none"),
            TypeError,
            "LIFNode: v_reset must be a number or None, found 'none'",
        ),
        (
            lambda: neurons.LIFNode(v_reset=torch.tensor(0.0)),
            TypeError,
            "LIFNode: v_reset must be a number or None, found a tensor of torch.float32",
        ),
        (
            lambda: neurons.LIFNode(store_v_seq="y"),
            TypeError,
            "LIFNode: store_v_seq must be True or False, found 'y'",
        ),
        (
            lambda: neurons.LIFNode(surrogate_function=surrogate.Sigmoid),
            TypeError,
            r"LIFNode: surrogate_function must be .*, found the class Sigmoid; give Sigmoid\(\)",
        ),
        (
            lambda: neurons.LIFNode(surrogate_function=OwnFunction),
            TypeError,
            r"LIFNode: surrogate_function must be .*, found the class OwnFunction; give OwnFunction\.apply",
        ),
        (
            lambda: neurons.LIFNode(surrogate_function=None),
            TypeError,
            "LIFNode: surrogate_function must be a surrogate, .*, found NoneType",
        ),
        (
            lambda: neurons.ActivationAwareIFNode(channel_dim="a"),
            TypeError,
            "ActivationAwareIFNode: channel_dim must be a dimension of a step, a whole number, found 'a'",
        ),
        (
            lambda: neurons.ActivationAwareIFNode("high"),
            TypeError,
            "ActivationAwareIFNode: v_threshold must be a number or a tensor of floats, found 'high'",
        ),
        (
            lambda: neurons.STBIFNeuron(1.0, "many"),
            TypeError,
            "STBIFNeuron: level must be a whole number, found 'many'",
        ),
        (
            lambda: neurons.GatedLIFNode(4, init_tau=torch.tensor(0.5)),
            TypeError,
            "GatedLIFNode: init_tau must be a number, found a tensor of torch.float32",
        ),
        (
            lambda: neurons.ParametricLIFNode(torch.tensor([2.0, 0.5])),
            ValueError,
            "ParametricLIFNode: init_tau must be a number above 1, found 0.5",
        ),
        (
            lambda: neurons.ParametricLIFNode(torch.tensor([2])),
            TypeError,
            "ParametricLIFNode: init_tau must be a number or a tensor of floats, found a tensor of "
            "torch.int64",
        ),
        (
            lambda: neurons.ActivationAwareIFNode(-1.0),
            ValueError,
            "ActivationAwareIFNode: v_threshold must be a number above 0, found -1",
        ),
        (
            lambda: neurons.ActivationAwareIFNode(torch.ones(2, 2)),
            ValueError,
            "v_threshold must be a number or have one dimension",
        ),
        (
            lambda: neurons.ParametricLIFNode(1.0),
            ValueError,
            "ParametricLIFNode: init_tau must be a number above 1, found 1",
        ),
        (
            lambda: neurons.CUBALIFNode(1.5),
            ValueError,
            "CUBALIFNode: c_decay must be a number of at least 0 and of at most 1, found 1.5",
        ),
        (lambda: neurons.QIFNode(a0=0.0), ValueError, "QIFNode: a0 must be a number above 0, found 0"),
        (
            lambda: neurons.QIFNode(v_reset=2.0),
            ValueError,
            "QIFNode: v_threshold must be a number above v_reset, which is 2, found 1",
        ),
        (
            lambda: neurons.EIFNode(v_rest=-1.0),
            ValueError,
            "EIFNode: v_rest must be a number of at least v_reset, which is -0.1, found -1",
        ),
        (
            lambda: neurons.EIFNode(delta_T=0.0),
            ValueError,
            "EIFNode: delta_T must be a number above 0, found 0",
        ),
        (
            lambda: neurons.IzhikevichNode(tau_w=0.0),
            ValueError,
            "IzhikevichNode: tau_w must be a number above 0, found 0",
        ),
        (lambda: neurons.AdExNode(tau=0.0), ValueError, "AdExNode: tau must be a number above 0, found 0"),
        (
            lambda: neurons.AdaptiveLIFNode(rho=1.5),
            ValueError,
            "AdaptiveLIFNode: rho must be a number of at least 0 and of at most 1, found 1.5",
        ),
        (
            lambda: neurons.AdaptiveLIFNode(tau=0.5),
            ValueError,
            "AdaptiveLIFNode: tau must be a number above 1, found 0.5",
        ),
        (
            lambda: neurons.AdaptiveLIFNode(tau=torch.tensor([1.0, 2.0])),
            ValueError,
            "AdaptiveLIFNode: tau must be a number above 1, found 1",
        ),
        (
            lambda: neurons.ComplementaryLIFNode(1.0),
            ValueError,
            "ComplementaryLIFNode: tau must be a number above 1, found 1",
        ),
        (lambda: neurons.RAFNode(b=0.1), ValueError, "RAFNode: b must be a number below 0, found 0.1"),
        (lambda: neurons.RAFNode(omega=0.0), ValueError, "RAFNode: omega must be a number above 0, found 0"),
        (
            lambda: neurons.HodgkinHuxleyNode(g_na=-1.0),
            ValueError,
            "HodgkinHuxleyNode: g_na must be a number of at least 0, found -1",
        ),
        (lambda: neurons.KLIFNode(tau=1.0), ValueError, "KLIFNode: tau must be a number above 1, found 1"),
        (
            lambda: neurons.ILIFNode(surrogate_function="atan"),
            ValueError,
            "ILIFNode: surrogate_function must be a spiking MultiLevelSpikeCount",
        ),
        (
            lambda: neurons.LIAFNode("gelu", True),
            ValueError,
            "LIAFNode: act must be relu, sigmoid, tanh or none, found gelu",
        ),
        (
            lambda: neurons.LIAFNode(3, True),
            TypeError,
            "LIAFNode: act must be a name or a function of a tensor, found int",
        ),
        (
            lambda: neurons.GatedLIFNode(0),
            ValueError,
            "GatedLIFNode: T must be a whole number of at least 1, found 0",
        ),
        (lambda: neurons.GatedLIFNode(2.5), ValueError, "GatedLIFNode: T must be a whole number, found 2.5"),
        (
            lambda: neurons.GatedLIFNode(4, 0),
            ValueError,
            "GatedLIFNode: inplane must be a number of channels of at least 1, or None, found 0",
        ),
        (
            lambda: neurons.GatedLIFNode(4, True),
            ValueError,
            "GatedLIFNode: inplane must be a number of channels of at least 1, or None, found True",
        ),
        (
            lambda: neurons.ActivationAwareIFNode(v_threshold=True),
            ValueError,
            "ActivationAwareIFNode: v_threshold must be a number, found true",
        ),
        (
            lambda: neurons.LIAFNode(torch.nn.ReLU, True),
            TypeError,
            r"LIAFNode: act must be a name or a function of a tensor, found the class ReLU; give ReLU\(\)",
        ),
        (
            lambda: setattr(neurons.NonSpikingIFNode(), "decode", "mean"),
            ValueError,
            "NonSpikingIFNode: decode must be one of .*, found 'mean'",
        ),
        (
            lambda: neurons.named(None),
            TypeError,
            'flexsn.neurons.named takes the text of a neuron, such as "lif:tau=3", found NoneType',
        ),
        (
            lambda: neurons.named("klif:k=-2"),
            ValueError,
            "KLIFNode: k must be a number above 0, found -2",
        ),
        (
            lambda: neurons.GatedLIFNode(4, init_tau=1.0),
            ValueError,
            "GatedLIFNode: init_tau must be a number above 0 and below 1, found 1",
        ),
        (
            lambda: neurons.GatedLIFNode(4, step_mode="s"),
            ValueError,
            "GatedLIFNode: step_mode must be one of .'m',., found 's'",
        ),
        (
            lambda: neurons.STBIFNeuron(0.0, 8),
            ValueError,
            "STBIFNeuron: q_threshold must be a number above 0, found 0",
        ),
        (
            lambda: neurons.STBIFNeuron(1.0, 1),
            ValueError,
            "STBIFNeuron: level must be a whole number of at least 2, found 1",
        ),
        (
            lambda: neurons.STBIFNeuron(1.0, 8, neg_min=9.0),
            ValueError,
            "STBIFNeuron: pos_max must be a number of at least neg_min, which is 9, found 7",
        ),
        (
            lambda: neurons.NonSpikingLIFNode(0.5),
            ValueError,
            "NonSpikingLIFNode: tau must be a number above 1, found 0.5",
        ),
        (
            lambda: neurons.NonSpikingIFNode("max"),
            ValueError,
            "NonSpikingIFNode: decode must be one of .*, found 'max'",
        ),
        (
            lambda: neurons.SynapticLINode(-0.1),
            ValueError,
            "SynapticLINode: c_decay must be a number of at least 0",
        ),
        (
            lambda: neurons.LIFNode()(torch.ones(2, dtype=torch.int32)),
            TypeError,
            "LIFNode: the input must be a tensor of float16, .*, found a tensor of torch.int32",
        ),
        (
            lambda: neurons.LIFNode()([1.0]),
            TypeError,
            "LIFNode: the input must be a tensor of .*, found list",
        ),
        (
            lambda: neurons.LIFNode(step_mode="m")(torch.tensor(1.0)),
            ValueError,
            "LIFNode: a sequence must have time as its first dimension, found a scalar",
        ),
    ],
)  # fmt: skip
def test_what_a_neuron_cannot_be(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("name", absent._REASONS)
def test_a_neuron_that_cannot_be_here_says_why(name):
    with pytest.raises(AttributeError, match=rf"flexsn.neurons has no {name}: .* \(docs/scope.md\)"):
        getattr(neurons, name)
    assert f" {name} " in SCOPE.read_text().replace(",", " ")


def test_what_is_in_another_module_says_where():
    with pytest.raises(AttributeError, match="flexsn.neurons has no FlexSN: it is flexsn.FlexSN$"):
        neurons.FlexSN


def test_a_name_that_is_nearly_right_has_a_hint():
    with pytest.raises(AttributeError, match=r"has no attribute 'LIFNod' \(did you mean 'LIFNode'\?\)"):
        neurons.LIFNod
    with pytest.raises(AttributeError, match="has no attribute '__wrapped__'$"):
        neurons.__wrapped__


def test_every_class_of_spikingjelly_is_here_or_says_why():
    theirs = pytest.importorskip("spikingjelly.activation_based.neuron")
    classes = [
        name for name, kind in vars(theirs).items()
        if isinstance(kind, type) and kind.__module__.startswith("spikingjelly")
    ]  # fmt: skip
    assert len(classes) > 40
    explained = {*absent._REASONS, *absent._ELSEWHERE}
    assert [name for name in classes if not hasattr(neurons, name) and name not in explained] == []
