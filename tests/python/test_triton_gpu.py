"""Exported Triton modules, compiled and run on a GPU: all bits are those of flexsn on the CPU."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

from triton_modules import (
    Comparison,
    Data,
    data_of,
    load,
    neuron_of,
    ops,
    random_tensor,
    same_bits,
    texts_of,
)

from cores import square, two_in_three_states, with_params
from flexsn import FlexSN

#: of 200: the whole of them is minutes of compiling
RANDOM_GRAPHS = int(os.environ.get("FLEXSN_GPU_GRAPHS", "40"))


def made(text: str, folder: pathlib.Path, name: str = "exported") -> tuple[Any, str]:
    code = ops.export(text, "triton", "", False)
    return load(code, folder, name, interpret=False), neuron_of(code)


def texts(*words: str) -> list[tuple[str, str]]:
    found = texts_of(*words)
    if not found:
        pytest.skip("FLEXSN_NEURON_TEXTS does not name the program flexsn_neuron_texts")
    return found


def wrong(name: str, text: str, folder: pathlib.Path, n: int, only_inference: bool = False) -> list[str]:
    module, neuron = made(text, folder, f"neuron_{n}")
    generator = torch.Generator().manual_seed(n)
    data = data_of(
        text, (9, 4, 17)[n % 3], ((5, 131), (1031,), (3, 4, 50))[n % 3], generator, elided=n % 2 == 0
    )
    comparison = Comparison(text, module, neuron, data, device="cuda")
    if only_inference:
        comparison.infer(n % 2 == 0)
        return comparison.wrong
    return comparison.run(n % 2 == 0, generator)


@pytest.mark.parametrize("half", ["even", "odd"])  # two processes of `make test-gpu`
def test_built_in_neurons(half: str, tmp_path) -> None:
    some = list(enumerate(texts("built_in")))[half == "odd" :: 2]
    found = {name: wrong(name, text, tmp_path, n) for n, (name, text) in some}
    assert {name: differences for name, differences in found.items() if differences} == {}


def test_every_row(tmp_path) -> None:
    found = {name: wrong(name, text, tmp_path, n, True) for n, (name, text) in enumerate(texts("rows"))}
    assert {name: differences for name, differences in found.items() if differences} == {}


def test_random_graphs(tmp_path) -> None:
    some = texts("random", "200")[:: max(200 // RANDOM_GRAPHS, 1)]
    found = {name: wrong(name, text, tmp_path, n) for n, (name, text) in enumerate(some)}
    assert {name: differences for name, differences in found.items() if differences} == {}


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


@pytest.mark.parametrize(
    ("step", "tau", "gate"),
    [
        ((100003,), (), ()),
        ((100003,), (100003,), (1,)),
        ((32, 16, 129), (16, 1), (129,)),
        ((32, 16, 129), (32, 1, 129), (32, 1, 1)),
        ((64, 2000), (2000,), (64, 1)),
    ],
)
def test_parameters_of_any_shape_and_their_gradients(step, tau, gate, tmp_path) -> None:
    module, _ = made(LEAKY, tmp_path)
    generator = torch.Generator().manual_seed(1)
    shapes = ((5, *step), step, tau, (5, *gate))
    x, v, *params = (random_tensor(shape, torch.float32, generator, 0) for shape in shapes)
    comparison = Comparison(LEAKY, module, "leaky", Data([x], [v], params), device="cuda")
    assert comparison.run(False, generator) == []


def test_a_new_length_of_time_compiles_nothing(tmp_path) -> None:
    module, _ = made(LEAKY, tmp_path)
    kernel = module.leaky_inference_kernel

    def compiled() -> int:
        return sum(len(caches[0]) for caches in kernel.device_caches.values())

    for T in (3, 1, 16, 100):
        module.inference(torch.zeros(T, 64, device="cuda"), gate=torch.ones(T, device="cuda"))
    assert compiled() == 1


def test_the_seeds_kernels_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FLEXSN_CACHE_DIR", str(tmp_path))
    from flexsn.compat import wrapper
    from test_triton_compat import kernels_of, lif

    made_kernels, info, training = kernels_of(lif, 1, 1, 1)
    x, v = torch.randn(6, 1000, device="cuda"), torch.zeros(1000, device="cuda")
    xs, vs = x.clone().requires_grad_(), v.clone().requires_grad_()
    spikes, states, state = [], [], vs
    for step in xs:
        s, state = lif(step, state)
        spikes.append(s)
        states.append(state)
    expected = torch.stack(spikes), torch.stack(states)
    found = wrapper.flexsn_inference(made_kernels["inference"], info, x, v)
    torch.testing.assert_close(found, expected)
    results = wrapper.flexsn_forward(made_kernels["forward"], training, x, v)
    saved = [results[place] for place in training.c2k_return_mapping]
    grads = [torch.randn_like(result) for result in found]
    gradients = wrapper.flexsn_backward(
        made_kernels["backward"], training, *grads, *saved, input_templates=[x], state_templates=[v]
    )
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, [xs, vs], grads))


# ---- backend "triton_export" -------------------------------------------------------------------------------


def results_of(module: FlexSN, device: str, params: list[torch.Tensor], *shape: int) -> list[torch.Tensor]:
    """Outputs, states and all gradients of two calls."""
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(shape, generator=generator) for _ in range(module.num_inputs)]
    inputs = [tensor.to(device).requires_grad_() for tensor in inputs]
    outputs = [module(*inputs), module(*inputs)]
    outputs = [y for each in outputs for y in (each if isinstance(each, list) else [each])]
    results = [*outputs, *module.states, *(module.state_seqs or [])]
    grads = [torch.randn(r.shape, generator=generator).to(device) for r in results]
    return [*results, *torch.autograd.grad(results, [*inputs, *params], grads)]


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("backend", ["fused", "triton_export"])
def test_the_backend_has_the_bits_of_the_cpu(backend, store) -> None:
    options = dict(num_inputs=2, num_states=3, store_state_seqs=store)
    expected = results_of(FlexSN(two_in_three_states, **options), "cpu", [], 19, 1031)
    found = results_of(FlexSN(two_in_three_states, **options, backend=backend), "cuda", [], 19, 1031)
    assert all(map(same_bits, expected, found))


@pytest.mark.parametrize("leak", [(), (16, 1), (3, 1, 50), (3, 16, 50)])
def test_the_backend_gives_gradients_of_parameters(leak) -> None:
    given = [torch.rand(leak), torch.rand(())]
    found = []
    for device, backend in (("cpu", "fused"), ("cuda", "triton_export")):
        params = [tensor.to(device).requires_grad_() for tensor in given]
        module = FlexSN(with_params(*params), 1, 1, backend=backend)
        found.append(results_of(module, device, params, 9, 3, 16, 50))
    assert all(map(same_bits, *found))


def test_the_backend_runs_compiled() -> None:
    module, plain = (FlexSN(square, 1, 1, backend="triton_export") for _ in range(2))
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for T in (5, 9, 30):
        x, y = (torch.linspace(-1, 1, T * 64, device="cuda").view(T, 64).requires_grad_() for _ in range(2))
        found, expected = compiled(x), plain(y)
        assert same_bits(found, expected) and same_bits(module.states[0], plain.states[0])
        found.sum().backward(), expected.sum().backward()
        assert same_bits(x.grad, y.grad)
        module.reset(), plain.reset()


def test_the_backend_refuses_tensors_on_the_cpu(monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="runs on tensors of a GPU .*, found tensors on the CPU"):
        FlexSN(square, 1, 1, backend="triton_export")(torch.zeros(2, 3))


def choices(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    spike = (x > 0.0).float()
    product = torch.where(x > 0.1, 2.0, 0.0) * -0.5
    equal = -torch.where(x == 1.0, x, 0.0)
    return -spike, product, torch.where(x > 0.2, -0.0, 1.0), -torch.sign(x), equal, v + spike


def test_choices_keep_the_sign_of_zero() -> None:
    x = torch.randn(3, 500)
    x[0, :4] = torch.tensor([0.0, -0.0, 1.0, -1.0])
    right = FlexSN(choices, 1, 1, 5)(x)
    found = FlexSN(choices, 1, 1, 5, backend="triton")(x.cuda())
    for a, b in zip(right, found):
        assert same_bits(a, b.cpu())
