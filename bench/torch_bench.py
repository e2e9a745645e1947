"""FlexSN from Python beside eager torch, torch.compile and SpikingJelly in one run, and what a call costs."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch

import flexsn

#: reads and writes of a whole sequence that a run cannot do without
PASSES = {"inference": 2, "training": 5}

CASES = [
    ("inference", 8, 4194304),
    ("training", 8, 4194304),
    ("training", 32, 262144),
    ("training", 100, 4096),
    ("training", 8, 32768),
]


class Sigmoid(torch.autograd.Function):
    """A spike whose gradient is that of a sigmoid, as users write it."""

    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        y = torch.sigmoid(4.0 * u)
        return grad * 4.0 * y * (1.0 - y)


def lif(x, v):
    h = v + (x - v) / 2.0
    s = Sigmoid.apply(h - 1.0)
    return s, h * (1.0 - s)


def loop(x):
    v = torch.zeros_like(x[0])
    spikes = []
    for t in range(x.shape[0]):
        s, v = lif(x[t], v)
        spikes.append(s)
    return torch.stack(spikes)


def fused_call() -> Callable:
    module = flexsn.FlexSN(lif, num_states=1)

    def call(x):
        module.reset()
        return module(x)

    return call


def spikingjelly_call() -> Callable | None:
    try:
        from spikingjelly.activation_based import functional
        from spikingjelly.activation_based.neuron import FlexSN
    except ImportError as error:
        print(f"left out: SpikingJelly ({error})")
        return None
    module = FlexSN(lif, num_states=1, step_mode="m")

    def call(x):
        functional.reset_net(module)
        return module(x)

    return call


def copy_call() -> Callable:
    """A copy between tensors that are already there: two passes."""
    targets: dict[torch.Size, torch.Tensor] = {}

    def call(x):
        if x.shape not in targets:
            targets[x.shape] = torch.empty_like(x, requires_grad=False)
        return targets[x.shape].copy_(x.detach())

    return call


def once(kind: str, call: Callable, x: torch.Tensor, grad: torch.Tensor) -> float:
    start = time.perf_counter()
    if kind == "copy":
        call(x)
    elif kind == "inference":
        with torch.no_grad():
            call(x)
    else:
        x.grad = None
        call(x).backward(grad)
    return time.perf_counter() - start


def measure(
    kind: str, steps: int, elements: int, ways: dict[str, Callable], seconds: float
) -> dict[str, float]:
    """Medians of each way and of a copy; they take turns, so that a busy machine slows all of them."""
    ways = {**ways, "copy": copy_call()}
    x = torch.randn(steps, elements).requires_grad_(kind == "training")
    grad = torch.randn(steps, elements)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for name, call in ways.items():
        print(f"  {name} ...", end="\r", file=sys.stderr, flush=True)
        for _ in range(2):
            once("copy" if name == "copy" else kind, call, x, grad)
    end = time.perf_counter() + seconds * len(ways)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 3:
        for name, call in ways.items():
            times[name].append(once("copy" if name == "copy" else kind, call, x, grad))
    return {name: statistics.median(values) for name, values in times.items()}


def row(kind: str, steps: int, elements: int, ways: dict[str, Callable], seconds: float) -> dict:
    """Measures and prints one row of the table."""
    found = measure(kind, steps, elements, ways, seconds)
    ratios = [
        f"{found[n] / found['flexsn']:.1f} x" if n in found else "-" for n in ("eager", "compile", "spikingjelly")
    ]
    memory = found["copy"] * PASSES[kind] / 2 / found["flexsn"]
    print(
        f"{f'{kind} {steps} x {elements}':28}{found['flexsn'] * 1e3:11.3f}"
        f"{ratios[0]:>9}{ratios[1]:>9}{ratios[2]:>14}{f'{memory:.2f} x':>9}",
        flush=True,
    )
    return {"kind": kind, "T": steps, "N": elements, "ms": {n: t * 1e3 for n, t in found.items()}}


def microseconds(call: Callable, number: int = 500, repeat: int = 9) -> float:
    call()
    best = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(number):
            call()
        best.append((time.perf_counter() - start) / number * 1e6)
    return min(best)


def overhead() -> dict[str, float]:
    """What a call of a tiny neuron costs, against torch's own smallest op."""
    x, y, g = torch.ones(1, 1), torch.ones(1, 1, requires_grad=True), torch.ones(1, 1)
    module = flexsn.FlexSN(lif, num_states=1)

    def train():
        module.reset()
        module(y).backward(g)

    with torch.no_grad():
        product = microseconds(lambda: x * 2)
        inference = microseconds(lambda: module(x))
    return {
        "x * 2": product,
        "FlexSN inference": inference,
        "(x * 2).backward(g)": microseconds(lambda: (y * 2).backward(g)),
        "FlexSN training": microseconds(train),
    }


def new_core() -> float:
    """Milliseconds from the definition of the second new core of a process to its first result."""
    for scale in (0.25, 0.75):
        start = time.perf_counter()
        space: dict = {}
        exec(  # a core that no cache has seen
            f"def core(x, v):\n    h = v * {scale + time.time() % 1e-3} + x\n    return (h > 1).to(h), h - h * {scale}",
            space,
        )
        flexsn.FlexSN(space["core"], num_states=1)(torch.randn(4, 10))
        took = (time.perf_counter() - start) * 1e3
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="write the figures as JSON to this file")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each figure")
    parser.add_argument(
        "--no-compile", action="store_true", help="leave out torch.compile, whose first calls are long"
    )
    parser.add_argument("--case", action="append", help="only this one, as training:8:32768")
    options = parser.parse_args()
    cases = (
        CASES
        if not options.case
        else [(k, int(t), int(n)) for k, t, n in (c.split(":") for c in options.case)]
    )

    peer = spikingjelly_call()
    record = {
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cases": [],
    }
    costs = overhead()
    record["call_us"] = costs
    print(
        f"call, inference, T = N = 1: {costs['FlexSN inference']:.1f} us, "
        f"{costs['FlexSN inference'] / costs['x * 2']:.1f} times x * 2"
    )
    print(
        f"call, training, T = N = 1: {costs['FlexSN training']:.1f} us, "
        f"{costs['FlexSN training'] / costs['(x * 2).backward(g)']:.1f} times (x * 2).backward(g)"
    )
    record["new_core_ms"] = new_core()
    print(f"second new core of a process: {record['new_core_ms']:.0f} ms to its first result")
    print(
        f"{'work':28}{'flexsn ms':>11}{'eager':>9}{'compile':>9}{'SpikingJelly':>14}{'memory':>9}"
        "   (times as long; memory: 2 or 5 passes of a copy)"
    )
    for kind, steps, elements in cases:
        ways = {"flexsn": fused_call(), "eager": loop}
        if peer is not None:
            ways["spikingjelly"] = peer
        record["cases"].append(row(kind, steps, elements, ways, options.seconds))
    # Last, as torch.compile leaves a hook behind that every later call of Python code goes through.
    for kind, steps, elements in cases:
        if options.no_compile or steps > 32:
            continue
        torch.compiler.reset()
        ways = {"flexsn": fused_call(), "compile": torch.compile(loop)}
        record["cases"].append(row(kind, steps, elements, ways, options.seconds))

    if options.out:
        with open(options.out, "w") as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
