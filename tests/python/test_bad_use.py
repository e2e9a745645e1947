"""Bad use of the Python API: each case says who is at fault, where and what to do, and harms nothing.

Cores that cannot be fused are in test_bad_cores.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from cores import neuron_of, soft, two_in_three_states, with_counter, with_params

import flexsn
import torch
from flexsn import FlexSN, FlexSNKernel, functional, neurons, scan, surrogate
from torch import Tensor, nn

ops = torch.ops.flexsn

X, V = torch.linspace(-1.0, 2.0, 12).view(4, 3), torch.linspace(0.0, 0.5, 3)
INTEGERS = torch.zeros(3, dtype=torch.int32)
META_X, META_V = X.to("meta"), V.to("meta")
ONE = torch.tensor(1.0, device="cpu")
HERE = "test_bad_use.py:"


def leaky(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v * 0.5 + x
    return h, h


def scaled(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = v * 0.5 + x * w
    return h, h


def made(core: Callable[..., Any] = leaky, **options: Any) -> FlexSN:
    return FlexSN(core, **{"num_states": 1, **options})


class Gained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.gain, v


def run_from(states: Any, x: Tensor = X) -> Any:
    """A call that starts from states of the user's."""
    neuron = made()
    neuron.states = states
    return neuron(x)


def started_by(init_states: Callable[..., Any]) -> Any:
    neuron = made()
    neuron.init_states = init_states
    return neuron(X)


def raising(*_: Any) -> Any:
    raise KeyError("of the user's own")


def run_after(neuron: nn.Module, first: Tensor, then: Tensor) -> Any:
    neuron(first)
    return neuron(then)


def with_outputs(neuron: FlexSN, count: int) -> Any:
    neuron(X)
    neuron.reset()
    neuron.num_outputs = count
    return neuron(X)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.parameter.UninitializedParameter()

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.weight, v


SPARSE = torch.ones(3).to_sparse()


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def with_state(neuron: nn.Module, name: str, value: Any) -> Any:
    setattr(neuron, name, value)
    return neuron(X)


def backward(neuron: nn.Module, calls: int) -> None:
    for _ in range(calls):
        neuron(X.clone().requires_grad_()).sum().backward()


class Row(NamedTuple):
    name: str
    run: Callable[[], Any]
    error: type[Exception]
    parts: tuple[str, ...]  #: of the message: culprit, place, what was found, remedy


def row(name: str, run: Callable[[], Any], error: type[Exception], *parts: str) -> Row:
    return Row(name, run, error, parts)


# ---- making a neuron ---------------------------------------------------------------------------------------

MAKING = [
    row("core None", lambda: FlexSN(None, num_states=1), TypeError,
        "FlexSN: core must be callable", "found NoneType", "give a function or a module"),
    row("core a class", lambda: FlexSN(nn.Linear, num_states=1), TypeError,
        "found the class Linear", "Linear(...)"),
    row("no num_states", lambda: FlexSN(leaky), TypeError, "num_states is required", "num_states=1"),
    row("num_states a float", lambda: made(num_states=1.0), TypeError,
        "num_states must be an int, found float"),
    row("num_states a bool", lambda: made(num_states=True), TypeError,
        "num_states must be an int, found bool"),
    row("num_states negative", lambda: made(num_states=-1), ValueError, "num_states", "negative, found -1"),
    row("num_outputs negative", lambda: made(num_outputs=-2), ValueError,
        "num_outputs", "negative, found -2"),
    row("more states than arguments", lambda: made(num_states=3), ValueError,
        "core leaky", HERE, "3 states", "found 2 arguments", "change num_states or the core"),
    row("all arguments are states", lambda: made(num_states=2), ValueError,
        "needs at least one input", 'step_mode="s" and backend="torch"'),
    row("too many inputs for the core", lambda: made(num_inputs=2), ValueError,
        "core leaky", HERE, "2 inputs, 1 states", "found 2 arguments", "change the counts or the core"),
    row("a static input is missing", lambda: made(scaled, num_inputs=1), ValueError,
        "core scaled", HERE, "0 static inputs", "found 3 arguments"),
    row("other outputs than said", lambda: made(num_outputs=2), ValueError,
        "2 outputs and 1 states", "found 2 values from leaky", HERE, "return (*outputs, *new_states)"),
    row("fewer results than states", lambda: made(lambda x, u, v: u, num_states=2), ValueError,
        "must return 2 states, found 1 values from <lambda>", HERE),
    row("step_mode", lambda: made(step_mode="x"), ValueError,
        "step_mode must be one of ('s', 'm'), found 'x'"),
    row("backend", lambda: made(backend="cuda"), NotImplementedError,
        "FlexSN: backend must be one of ('fused',", "found 'cuda'"),
    row("single steps of a kernel", lambda: made(step_mode="s"), RuntimeError,
        "backend 'fused' runs whole sequences", 'use backend="torch"'),
    row("too few examples", lambda: made(example_inputs=[V]), ValueError,
        "example_inputs", "for each input and state, expected 2, found 1"),
    row("an example is a number", lambda: made(example_inputs=[V, 3.0]), TypeError,
        "example_inputs[1] must be a tensor, found float"),
    row("examples of other sizes", lambda: made(example_inputs=[V, V[:2]]), ValueError,
        "example_inputs", "tensor 0 has 3, tensor 1 has 2"),
    row("examples on two devices", lambda: made(example_inputs=[V, META_V]), ValueError,
        "example_inputs", "tensor 0 is on cpu, tensor 1 on meta"),
    row("examples that the core cannot take", lambda: made(example_inputs=[V, V], core=raising), KeyError,
        "of the user's own"),
    row("an example output is a number", lambda: made(example_outputs=[3]), TypeError,
        "example_outputs[0] must be a tensor, found int"),
    row("an example output of another shape", lambda: made(example_outputs=[X], example_inputs=[V, V]),
        ValueError, "example_outputs[0] must be like output 0", "found torch.float32 of shape (4, 3)"),
    row("too few requires_grad", lambda: made(requires_grad=(True,)), ValueError,
        "requires_grad", "expected 2, found 1", "leave it out"),
    row("a static input is a word", lambda: made(scaled, static_inputs=["a"]), TypeError,
        "static_inputs[0] must be a tensor, a parameter or a number, found str"),
    row("static inputs are no list", lambda: made(scaled, static_inputs=3), TypeError,
        "static_inputs must be a list of tensors and numbers, found int"),
    row("a static input that does not fit", lambda: made(scaled, static_inputs=[torch.ones(5)])(X),
        ValueError, "scaled", HERE, "cannot be traced", 'backend="torch"'),
    row("a name that memories have", lambda: made().register_memory("states", 3), AssertionError,
        "FlexSN: cannot register the memory 'states', an attribute has that name"),
    row("a memory that is not there", lambda: made().get_reset_value("u"), KeyError,
        "FlexSN has no memory 'u'; it has ['states', 'state_seqs']"),
    row("backend changed to none", lambda: setattr(made(), "backend", None), NotImplementedError,
        "backend must be one of", "found None"),
    row("step_mode changed", lambda: setattr(made(), "step_mode", 1), ValueError, "step_mode", "found 1"),
]  # fmt: skip

# ---- calling it --------------------------------------------------------------------------------------------

PAIR = {"core": two_in_three_states, "num_inputs": 2, "num_states": 3}

CALLING = [
    row("no input", lambda: made()(), ValueError, "needs at least one input", "leading dimension"),
    row("two inputs for one", lambda: made()(X, X), ValueError,
        "flexsn: expected 1 inputs, found 2", "give one"),
    row("one input for two", lambda: made(**PAIR)(X), ValueError, "expected 2 inputs, found 1", "give one"),
    row("a list", lambda: made()([X]), TypeError, "input 0 must be a tensor, found list", "its own"),
    row("an array of NumPy", lambda: made()(X.numpy()), TypeError,
        "input 0", "found ndarray", "torch.as_tensor"),
    row("a number", lambda: made()(1.0), TypeError, "input 0 must be a tensor, found float"),
    row("None", lambda: made()(None), TypeError, "input 0 must be a tensor, found NoneType"),
    row("a keyword", lambda: made()(x_seq=X), TypeError, "FlexSN.forward()", "'x_seq'"),
    row("a scalar", lambda: made()(torch.tensor(1.0)), ValueError,
        "input 0 must have time as its first dimension, found a scalar", "unsqueeze(0)"),
    row("int64", lambda: made()(X.long()), ValueError, "leaky: input 0 is int64", ".int()"),
    row("complex", lambda: made()(X.to(torch.complex64)), ValueError,
        "leaky: input 0 is complex64", "a step works with float32", 'backend="torch"'),
    row("int8", lambda: made()(X.to(torch.int8)), ValueError, "leaky: input 0 is int8", "a step works with"),
    row("float8", lambda: made()(X.to(torch.float8_e4m3fn)), ValueError,
        "leaky: input 0 is float8", "works with"),
    row("sparse", lambda: made()(X.to_sparse()), TypeError,
        "must be dense", "found a sparse_coo", ".to_dense()"),
    row("two lengths", lambda: made(**PAIR)(X, X[:2]), ValueError,
        "same leading dim (time)", "input 0 has 4 steps", "input 1 has 2"),
    row("two shapes", lambda: made(**PAIR)(X, X[:, :2]), ValueError,
        "input 1 must have shape [4, 3] like input 0, found [4, 2]"),
    row("a shape that would broadcast", lambda: made(**PAIR)(X, X[:, :1]), ValueError,
        "input 1 must have shape [4, 3] like input 0, found [4, 1]"),
    row("two devices", lambda: made(**PAIR)(X, META_X), RuntimeError,
        "input 1 is on meta, but input 0 is on cpu", "move"),
    row("a parameter on another device", lambda: made(scaled, static_inputs=[META_V])(X), ValueError,
        "scaled", HERE, "its inputs are on ", "so static input 0 must be there too"),
    row("a captured tensor on another device", lambda: made(lambda x, v: (x * META_V, v))(X), ValueError,
        HERE, "it works with tensors of two devices, ", "its inputs are on ",
        "so global META_V must be there too: module.to(", "device=x.device makes a tensor where x is"),
    row("a number that learns on another device", lambda: made(Gained())(META_X), ValueError,
        "Gained", f"two devices, meta and {X.device}; its inputs are on meta, so module.gain must be there too"),
    row("a number on another device", lambda: made(lambda x, v: (x * ONE, v))(META_X), RuntimeError,
        "global ONE is on cpu, but input 0 is on meta; move it: module.to('meta') moves a module"),
    row("a state of the library's on another device", lambda: run_after(neurons.LIFNode(step_mode="m"), X, META_X), RuntimeError,
        f"LIFNode: the state v is on {X.device}, the input is on meta: move the module there, which takes its states"),
    row("a step for a sequence", lambda: run_after(made(), X, V), ValueError,
        "state 0", "shape [], ", "reset()"),
    row("no steps and no outputs known", lambda: made(backend="torch")(X[:0]), ValueError,
        "an empty sequence (T == 0) requires example_outputs", "'torch'"),
    row("a step with two inputs", lambda: made(step_mode="s", backend="torch")(V, V), ValueError,
        "FlexSN: expected 1 inputs, found 2", "one step of each input"),
    row("a step that is a number", lambda: made(step_mode="s", backend="torch")(3), TypeError,
        "FlexSN: input 0 must be a tensor, found int"),
    row("vmap", lambda: torch.func.vmap(lambda x: scan(leaky, x, V)[0][0])(torch.ones(2, 4, 3)),
        NotImplementedError, "does not run under vmap", "as dimensions of the step"),
    row("vmap over a parameter", lambda: torch.func.vmap(lambda w: made(scaled, static_inputs=[w])(X))(
        torch.ones(2, 3)), NotImplementedError, "vmap over a parameter", "the dimensions of the step"),
    row("jvp", lambda: torch.func.jvp(lambda x: scan(leaky, x, V)[0][0], (X,), (X,)), NotImplementedError,
        "forward mode", "use backward"),
    row("torch.jit.trace", lambda: torch.jit.trace(made(), (X,)), NotImplementedError,
        "torch.jit.trace cannot record leaky", "use torch.export"),
    row("a lazy parameter", lambda: scan(Lazy(), X, V), ValueError,
        "module.weight is a parameter that has no shape yet", "materialize"),
    row("a captured tensor of a sparse layout",
        lambda: scan(lambda x, v: (x * torch.sigmoid(SPARSE), v), X, V), ValueError,
        "<lambda>", HERE, "aten::sigmoid takes a sparse tensor", ".to_dense()"),
    row("a function that changes its argument", lambda: scan(lambda x, v: (Dirty.apply(x * 1), v), X, V),
        ValueError, "<lambda>", "an autograd.Function that says mark_dirty", "make a new tensor"),
    row("other counts after a call", lambda: with_outputs(made(), 2), ValueError,
        "leaky returned 2 values, expected 2 outputs and 1 new states"),
    row("gradients of gradients",
        lambda: torch.autograd.functional.hessian(lambda x: scan(soft, x, V)[0][0].sum(), X),
        NotImplementedError, "gradients of gradients are not there", 'backend="torch"'),
    row("two backwards over a carried state", lambda: backward(made(soft), 2), RuntimeError,
        "carried from batch to batch", "functional.detach_net or functional.reset_net"),
    row("the same on torch", lambda: backward(made(soft, backend="torch"), 2), RuntimeError,
        "carried over from an earlier call", "functional.detach_net or functional.reset_net"),
]  # fmt: skip

# ---- states ------------------------------------------------------------------------------------------------

STATES = [
    row("a tensor for a list", lambda: run_from(V), TypeError,
        "FlexSN: states must be a list", "found Tensor"),
    row("None in the list", lambda: run_from([None]), TypeError, "state 0 must be a tensor, found NoneType"),
    row("a number in the list", lambda: run_from([0.0]), TypeError, "state 0 must be a tensor, found float"),
    row("two for one", lambda: run_from([V, V]), ValueError, "FlexSN: expected 1 states, found 2"),
    row("another shape", lambda: run_from([torch.ones(5)]), ValueError,
        "state 0 must have shape [3]", "found [5]", "call reset()"),
    row("a shape that would broadcast", lambda: run_from([torch.ones(1)]), ValueError,
        "state 0 must have shape [3]", "found [1]", 'backend="torch", which takes states of other shapes'),
    row("with time", lambda: run_from([X]), ValueError, "state 0 must have shape [3]", "found [4, 3]"),
    row("on another device", lambda: run_from([META_V]), RuntimeError,
        "state 0 is on meta, but input 0 is on cpu", "move"),
    row("sparse", lambda: run_from([V.to_sparse()]), TypeError, "must be dense", ".to_dense()"),
    row("of another batch", lambda: run_after(made(), torch.ones(4, 8), torch.ones(4, 5)), ValueError,
        "state 0", "shape [5]", "found [8]", "call reset() before a batch of another shape"),
    row("of another batch, on torch",
        lambda: run_after(made(backend="torch"), torch.ones(4, 8), torch.ones(4, 5)), ValueError,
        "steps of shape (8,)", "steps of shape (5,)", "call reset()"),
    row("of another rank", lambda: run_after(made(), torch.ones(4, 6), torch.ones(4, 2, 3)), ValueError,
        "state 0", "shape [2, 3]", "found [6]", "call reset()"),
    row("of another batch, of the library",
        lambda: run_after(neurons.LIFNode(step_mode="m"), torch.ones(4, 8), torch.ones(4, 5)), ValueError,
        "LIFNode: the state v", "(8,)", "(5,)", "call reset()"),
    row("a word, of the library", lambda: with_state(neurons.LIFNode(step_mode="m"), "v", "zero"), TypeError,
        "LIFNode: the state v must be a number or a tensor, found str"),
    row("init_states gives None", lambda: started_by(lambda *_: None), TypeError,
        "init_states must return a list of 1 tensors, found NoneType"),
    row("init_states gives a tensor", lambda: started_by(lambda *_: V), TypeError,
        "init_states must return a list of 1 tensors, found Tensor"),
    row("init_states gives too few", lambda: started_by(lambda *_: []), ValueError,
        "expected 1 states, found 0"),
    row("init_states gives another shape", lambda: started_by(lambda *_: [torch.ones(7)]), ValueError,
        "state 0 must have shape [3]", "found [7]"),
    row("init_states raises", lambda: started_by(raising), KeyError, "of the user's own"),
    row("functional call without states", lambda: made().functional_forward((X,), ()), ValueError,
        "functional_forward takes one state", "found 0 values"),
    row("functional call with bare states", lambda: made().functional_forward((X,), (V,)), TypeError,
        "states must be a list of tensors, found Tensor"),
    row("functional call with a bare input", lambda: made().functional_forward(X, (None,)), TypeError,
        "inputs of functional_forward must be a tuple, found Tensor"),
    row("functional call with keywords", lambda: made().functional_forward((X,), (None,), gain=2), TypeError,
        "the core takes no keywords", "gain"),
    row("too few memories to load", lambda: functional.load_memories(made(), []), ValueError,
        "FlexSN has 1 memories to load, found 0 values"),
]  # fmt: skip

# ---- the kernel and scan -----------------------------------------------------------------------------------

FUNCTIONS = [
    row("kernel without its state", lambda: made().kernel(X), ValueError,
        "takes 1 inputs and 1 states", "expected 2 tensors, found 1"),
    row("kernel with a number", lambda: made().kernel(X, 3), TypeError,
        "argument 1 of the kernel", "found int"),
    row("kernel on two devices", lambda: made().kernel(X, META_V), RuntimeError,
        "argument 0 is on cpu, argument 1 on meta"),
    row("kernel with a state of another shape", lambda: made().kernel(X, X), ValueError,
        "states of the shape of one step, [3], found [4, 3] for state 0", "expand it"),
    row("FlexSNKernel of nothing", lambda: FlexSNKernel(None, num_states=1), TypeError,
        "FlexSNKernel: core must be callable"),
    row("FlexSNKernel with one gradient too many",
        lambda: FlexSNKernel(leaky, num_states=1).f_bwd([X], [X], [X, X]), ValueError,
        "f_bwd takes a gradient, or None, for each of 1 results, found 2"),
    row("scan of no core", lambda: scan(3, X, V), TypeError, "flexsn.scan: core must be callable, found int"),
    row("scan of no input", lambda: scan(leaky, [], V), ValueError, "flexsn.scan: there must be an input"),
    row("scan of a dict", lambda: scan(leaky, {"x": X}, V), TypeError, "inputs must be a list", "found dict"),
    row("scan of None", lambda: scan(leaky, None, V), TypeError, "inputs must be a list", "found NoneType"),
    row("scan from a number", lambda: scan(leaky, X, [1.0]), TypeError,
        "flexsn.scan: state 0", "found float"),
    row("scan from another shape", lambda: scan(leaky, X, X), ValueError,
        "flexsn.scan: state 0 must have the shape of one step, [3], found [4, 3]", "expand it"),
    row("scan with a word", lambda: scan(scaled, X, V, ["a"]), TypeError, "params[0]", "found str"),
    row("scan with a parameter too many", lambda: scan(leaky, X, V, [V]), TypeError,
        "leaky is called with 3 arguments", "takes 2", "change the core, or what it is called with"),
    row("scan with a parameter too few", lambda: scan(scaled, X, V), TypeError,
        "scaled is called with 2 arguments", "'w'"),
    row("scan with a parameter that does not fit", lambda: scan(scaled, X, V, [torch.ones(2)]), ValueError,
        "scaled", HERE, "cannot be traced", 'backend="torch"'),
    row("scan with a parameter for each step", lambda: scan(scaled, X, V, [X]), ValueError,
        "scaled: torch.mul", HERE, "gives shape [4, 3], but the step's shape is [3]", "must broadcast"),
    row("a nested tensor", lambda: made()(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])), TypeError,
        "input 0 must be dense, found a nested tensor", "torch.nested.to_padded_tensor"),
    row("export to a format", lambda: flexsn.export(leaky, "onnx", num_states=1), ValueError,
        "flexsn.export: format must be one of triton, cuda, fsn, found 'onnx'"),
    row("export without counts", lambda: flexsn.export(lambda x, v, w: (w, v + x, w)), TypeError,
        "num_states is required", "num_states=1"),
    row("explain a negative length", lambda: flexsn.explain(leaky, num_states=1, T=-1), ValueError,
        "must be whole numbers of at least 0 and less than 2^63 all together, found T=-1"),
    row("explain too many elements", lambda: flexsn.explain(leaky, num_states=1, T=2**62, shape=(2**62,)), ValueError,
        "less than 2^63 all together", f"T={2**62}"),
    row("check negative counts", lambda: flexsn.check(leaky, num_states=-1), ValueError,
        "flexsn.check: num_states must not be negative, found -1"),
    row("no network as a function", lambda: flexsn.functional.to_functional_forward(None), TypeError,
        "to_functional_forward: expected a module, found NoneType"),
    row("no states for a network",
        lambda: flexsn.functional.to_functional_forward(nn.Sequential(made()))((X,), None), TypeError,
        "Sequential has 1 memories to load", "found NoneType", "extract_memories"),
    row("explain a type", lambda: flexsn.explain(leaky, num_states=1, dtype="f31"), ValueError,
        "dtype must be one of", "found 'f31'"),
    row("explain a network", lambda: flexsn.explain(nn.Sequential(made(), made())), ValueError,
        "Sequential is a network", 'get_submodule("0")'),
    row("show a stage", lambda: flexsn.show(leaky, "x", num_states=1), ValueError,
        "what must be one of", "'x'"),
    row("check with other inputs", lambda: flexsn.check(leaky, num_states=1, inputs=[X, X]), ValueError,
        "flexsn.check: expected 1 inputs, found 2"),
]  # fmt: skip

# ---- the library -------------------------------------------------------------------------------------------

LIF = neurons.LIFNode

LIBRARY = [
    row("tau too small", lambda: LIF(tau=0.5), ValueError,
        "LIFNode: tau must be a number above 1, found 0.5"),
    row("tau NaN", lambda: LIF(tau=math.nan), ValueError, "LIFNode: tau must be a number above 1, found nan"),
    row("tau infinite", lambda: LIF(tau=math.inf), ValueError, "LIFNode: tau", "found inf"),
    row("tau a word", lambda: LIF(tau="2"), TypeError,
        "LIFNode: tau must be a number or a tensor", "found '2'"),
    row("tau a list", lambda: LIF(tau=[2.0]), TypeError, "LIFNode: tau", "found list"),
    row("tau of integers", lambda: LIF(tau=INTEGERS), TypeError,
        "LIFNode: tau", "found a tensor of torch.int32"),
    row("tau empty", lambda: LIF(tau=V[:0]), TypeError, "LIFNode: tau", "found a tensor without entries"),
    row("one tau of many", lambda: LIF(tau=torch.tensor([2.0, 0.5])), ValueError,
        "LIFNode: tau", "found 0.5"),
    row("one tau NaN", lambda: LIF(tau=torch.tensor([2.0, math.nan])), ValueError,
        "LIFNode: tau", "found nan"),
    row("tau assigned", lambda: setattr(LIF(), "tau", 1.0), ValueError, "LIFNode: tau", "above 1, found 1"),
    row("tau learned out of its range",
        lambda: LIF(tau=nn.Parameter(torch.tensor(2.0)), step_mode="m").requires_grad_(False)
        ._apply(lambda t: t * 0.1)(X),
        ValueError, "neuron 'lif': param 'tau' has the value 0.2", "outside its range", "change the value"),
    row("tau learned out of its range, op by op",
        lambda: LIF(tau=nn.Parameter(torch.tensor(2.0)), step_mode="m", backend="torch")
        .requires_grad_(False)._apply(lambda t: t * 0.1)(X),
        ValueError, "neuron 'lif': param 'tau' has the value 0.2", "outside its range", "change the value"),
    row("tau of another shape, op by op",
        lambda: LIF(tau=torch.tensor([2.0, 3.0]), step_mode="m", backend="torch")(X), ValueError,
        "neuron 'lif': parameter 'tau' has shape [2]", "does not broadcast to the step's shape [3]",
        "each dimension, counted from the right, must be 1 or equal"),
    row("tau of another shape", lambda: LIF(tau=torch.tensor([2.0, 3.0]), step_mode="m")(X), ValueError,
        "neuron 'lif': parameter 'tau' has shape [2]", "does not broadcast to the step's shape [3]",
        "each dimension, counted from the right, must be 1 or equal"),
    row("tau of channels without the dimensions behind them",
        lambda: LIF(tau=torch.full((4,), 2.0), step_mode="m")(torch.zeros(3, 2, 4, 5, 5)), ValueError,
        "neuron 'lif': parameter 'tau' has shape [4]", "the step's shape [2, 4, 5, 5]",
        "dimension 1 of a step", "give it the shape [4, 1, 1]"),
    row("v_threshold NaN", lambda: LIF(v_threshold=math.nan), ValueError,
        "v_threshold", "finite", "found nan"),
    row("v_reset a word", lambda: LIF(v_reset="soft"), TypeError,
        "LIFNode: v_reset must be a number or None", "found 'soft'"),
    row("an option that is not there", lambda: LIF(taau=2.0), TypeError, "LIFNode", "'taau'"),
    row("step_mode", lambda: LIF(step_mode="z"), ValueError, "LIFNode: step_mode", "('s', 'm'), found 'z'"),
    row("backend", lambda: LIF(backend="hop"), NotImplementedError, "LIFNode: backend", "found 'hop'"),
    row("an input of integers", lambda: LIF(step_mode="m")(X.int()), TypeError,
        "LIFNode: the input must be a tensor of float16", "found a tensor of torch.int32"),
    row("no input", lambda: LIF()(None), TypeError, "LIFNode: the input must be a tensor", "found NoneType"),
    row("a scalar", lambda: LIF(step_mode="m")(torch.tensor(1.0)), ValueError,
        "LIFNode: a sequence must have time as its first dimension"),
    row("another length than T", lambda: neurons.GatedLIFNode(T=4, step_mode="m")(torch.ones(5, 3)),
        ValueError, "GatedLIFNode: T is 4, found a sequence of 5 steps"),
    row("T of zero", lambda: neurons.GatedLIFNode(T=0), ValueError, "GatedLIFNode: T", "at least 1, found 0"),
    row("a name", lambda: neurons.named("liff"), ValueError,
        "no built-in neuron 'liff'", "did you mean 'lif'?"),
    row("an option of a name", lambda: neurons.named("lif:taau=3"), ValueError,
        "'taau'", "did you mean 'tau'?"),
    row("a value of a name", lambda: neurons.named("lif:tau=x"), ValueError,
        "tau must be a number, found 'x'"),
    row("an option twice", lambda: neurons.named("lif:tau=2,tau=3"), ValueError,
        "tau is given twice", "once"),
    row("surrogate a number", lambda: LIF(surrogate_function=3), TypeError,
        "LIFNode: surrogate_function must be a surrogate", "found int"),
    row("surrogate a name", lambda: LIF(surrogate_function="attan"), ValueError,
        "LIFNode: surrogate_function", "found 'attan'", "did you mean 'atan'?"),
    row("alpha negative", lambda: surrogate.ATan(alpha=-1), ValueError, "'atan': alpha", "above 0, found -1"),
    row("alpha NaN", lambda: surrogate.Sigmoid(alpha=math.nan), ValueError, "'sigmoid': alpha", "found nan"),
    row("alpha a tensor", lambda: surrogate.Sigmoid(alpha=V), TypeError, "Sigmoid: alpha", "found Tensor"),
    row("spiking a number", lambda: surrogate.Sigmoid(spiking=1), TypeError, "spiking must be True or False"),
    row("a surrogate of integers", lambda: surrogate.ATan()(INTEGERS), TypeError,
        "floats", "int32", ".float()"),
    row("a surrogate of a number", lambda: surrogate.ATan()(1.0), TypeError,
        "ATan: x must be a tensor", "float"),
    row("no smooth function", lambda: surrogate.SuperSpike(spiking=False), ValueError,
        "'super_spike'", "spiking must be true"),
    row("spikes by chance", lambda: surrogate.PoissonPass, AttributeError,
        "PoissonPass", "DeterministicPass"),
]  # fmt: skip


# ---- the operators -----------------------------------------------------------------------------------------


def text_of(core: Callable[..., Any], *states: Tensor, inputs: int = 1) -> str:
    return neuron_of(core, [X] * inputs, list(states) or 1)[0]


def call(core: Callable[..., Any], inputs: list, states: list, params: list, *more: Any) -> Any:
    """A training operator, which takes all that the others take."""
    given = (V, INTEGERS) if core is with_counter else ()
    return ops.training(text_of(core, *given), inputs, states, params, *more)


PARAMETERS = with_params(torch.tensor(0.5), torch.ones(3))
HALF, ONES = torch.tensor(0.5), torch.ones(3)


def call_backward(**changed: Any) -> Any:
    text = text_of(soft)
    results = ops.training(text, [X], [V], [], [0, 1], "cpu")
    arguments = {
        "neuron": text, "grads": [torch.ones(4, 3), None], "inputs": [X], "states": [V], "params": [],
        "results": results, "shape": [4, 3], "wanted": [0, 1], "now": [0, 1], "sequences": True,
        "plan": "cpu",
    }  # fmt: skip
    return ops.backward(*{**arguments, **changed}.values())


def text(line: str) -> Callable[[], Any]:
    """A call of a neuron with one line of its own."""
    return lambda: ops.inference(f"neuron n {{\n input x : f32\n {line}\n}}", [X], [], [])


OPERATORS = [
    row("no text", lambda: ops.inference("", [X], [], []), ValueError,
        "neuron:1:1", "starts with: neuron NAME {"),
    row("a text with a zero byte", lambda: ops.inference("neuron\0", [X], [], []), ValueError,
        "neuron:1:7", "byte"),
    row("a text that ends", lambda: ops.inference("neuron n {", [X], [], []), ValueError,
        "neuron:1:", "close it"),
    row("an op that is not there", text("%h = foo %x"), ValueError, "neuron:3:7", "'foo'", "flexsn list ops"),
    row("a value that is not there", text("output y = %h"), ValueError, "neuron:3:13", "%h", "above its use"),
    row("a state without its update", text("state v : f32"), ValueError,
        "state 'v'", "neuron:3", "next value"),
    row("a neuron without inputs",
        lambda: ops.inference("neuron n {\n state v : f32\n next v = %v\n}", [], [V], []), ValueError,
        "has no input", "how many steps"),
    row("inputs", lambda: call(soft, [X, X], [], []), ValueError, "expected 1 inputs, found 2"),
    row("states", lambda: call(soft, [X], [V, V], []), ValueError,
        "expected 1 states", "none at all", "found 2"),
    row("parameters", lambda: call(PARAMETERS, [X], [], [HALF]), ValueError,
        "expected 2 parameters, found 1"),
    row("a scalar", lambda: call(soft, [HALF], [], []), ValueError,
        "input 0 must have time", "found a scalar"),
    row("a double", lambda: call(soft, [X.double()], [], []), ValueError,
        "input 0 must be Float, found Double"),
    row("an integer state", lambda: call(soft, [X], [INTEGERS], []), ValueError,
        "state 0 must be Float, found Int"),
    row("int64", lambda: call(with_counter, [X], [V, INTEGERS.long()], []), ValueError,
        "state 1 must be Int, found Long", "use .int()"),
    row("a state of another shape", lambda: call(soft, [X], [X], []), ValueError,
        "state 0 must have shape [3], found [4, 3]", "call reset()"),
    row("a parameter of another type", lambda: call(PARAMETERS, [X], [], [HALF.double(), ONES]), ValueError,
        "parameter 0 must be Float, found Double"),
    row("a parameter of another shape", lambda: call(PARAMETERS, [X], [], [HALF, torch.ones(2, 3)]),
        ValueError, "has shape [2, 3]", "does not broadcast to the step's shape [3]"),
    row("a state on another device", lambda: call(soft, [META_X], [V], []), ValueError,
        "state 0 is on cpu", "on meta; move it"),
    row("meta inputs of another shape",
        lambda: ops.inference(text_of(two_in_three_states, V, V, V, inputs=2), [META_X, META_X[:2]], [], []),
        ValueError, "input 1 must have shape [4, 3], found [2, 3]"),
    row("a plan", lambda: call(soft, [X], [], [], [], "tpu"), ValueError, "plan 'tpu'", "write cpu or gpu"),
    row("a gradient of nothing", lambda: call(soft, [X], [], [], [7]), ValueError,
        "no argument 7", "there are 2"),
    row("a gradient before the first", lambda: call(soft, [X], [], [], [-1]), ValueError, "no argument -1"),
    row("a gradient of integers", lambda: call(with_counter, [X], [V, INTEGERS], [], [2]), ValueError,
        "'state1'", "leave it out"),
    row("backward without a shape", lambda: call_backward(shape=[]), ValueError, "[T, step shape], found []"),
    row("backward over negative steps", lambda: call_backward(shape=[-1, 3]), RuntimeError,
        "negative", "[-1, 3]"),
    row("backward over more steps", lambda: call_backward(shape=[400, 3]), ValueError,
        "result 2 must have shape [400, 3], found [4, 3]"),
    row("backward over too many elements", lambda: call_backward(shape=[2**40, 2**40]), RuntimeError,
        "overflow"),
    row("backward with too few gradients", lambda: call_backward(grads=[None]), ValueError,
        "backward expected 2 gradients, found 1"),
    row("backward with a short gradient", lambda: call_backward(grads=[X[:2], None]), ValueError,
        "gradient of output 0 must have shape [4, 3], found [2, 3]"),
    row("backward with a gradient of doubles", lambda: call_backward(grads=[X.double(), None]), ValueError,
        "gradient of output 0 must be Float, found Double"),
    row("backward without what was saved", lambda: call_backward(results=[None] * 3), ValueError,
        "backward reads result 2, which is missing"),
    row("backward with too few results", lambda: call_backward(results=[X]), ValueError,
        "backward expected 3 results of forward, found 1"),
    row("backward to nothing", lambda: call_backward(now=[5]), ValueError, "no argument 5", "there are 2"),
    row("backward twice to one", lambda: call_backward(now=[0, 0]), ValueError,
        "argument 0 is wanted now twice"),
    row("more elements than memory", lambda: call(soft, [HALF.expand(2**40, 2**20)], [], []), RuntimeError,
        "a result of 4611686018427387904 bytes"),
    row("a handle that is not there", lambda: ops.handle_text(-1), RuntimeError,
        "no kernel handle -1", "released"),
    row("a built-in that is not there", lambda: ops.library_neuron("N", "foo", [], "f32", "f32"), ValueError,
        "no built-in neuron 'foo'", "there are if, "),
]  # fmt: skip

GROUPS = {
    "making": MAKING, "calling": CALLING, "states": STATES, "functions": FUNCTIONS, "library": LIBRARY,
    "operators": OPERATORS,
}  # fmt: skip
TABLE = [pytest.param(case, id=f"{group}: {case.name}") for group, rows in GROUPS.items() for case in rows]


def good_neuron_is_right() -> None:
    y, [last] = flexsn.scan(leaky, torch.ones(3, 2), torch.zeros(2))
    assert y[0].tolist() == [[1.0, 1.0], [1.5, 1.5], [1.75, 1.75]] and last.tolist() == [1.75, 1.75]


def test_the_table_has_a_hundred_cases_of_their_own() -> None:
    assert len(TABLE) >= 100
    assert len({case.id for case in TABLE}) == len(TABLE)


@pytest.mark.parametrize("case", TABLE)
def test_bad_use_is_refused_in_words_and_harms_nothing(case: Row) -> None:
    before = [tensor.clone() for tensor in (X, V, INTEGERS, HALF, ONES)]
    with pytest.raises(case.error) as caught:
        case.run()
    message = str(caught.value)
    assert [part for part in case.parts if part not in message] == [], message
    for tensor, copy in zip((X, V, INTEGERS, HALF, ONES), before, strict=True):
        assert torch.equal(tensor, copy)
    good_neuron_is_right()
