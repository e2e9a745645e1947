"""FlexSN on a GPU: kernels against the traffic floor, calls as a user sees them, and the alternatives in one run."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

import flexsn
from flexsn import neurons
from torch_bench import Sigmoid, lif, loop, spikingjelly_call

Call = Callable[[torch.Tensor], torch.Tensor]


def spike(u: torch.Tensor) -> torch.Tensor:
    return Sigmoid.apply(u)


class LearnableTau(torch.nn.Module):
    """A LIF neuron with one learnable decay."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x, v):
        h = v + (x - v) * self.w
        s = spike(h - 1.0)
        return s, h * (1.0 - s)


class ChannelThreshold(torch.nn.Module):
    """A LIF neuron with a learnable threshold for each channel of [batch, channel, height, width]."""

    def __init__(self, channels: int):
        super().__init__()
        self.threshold = torch.nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x, v):
        h = v + (x - v) / 2.0
        s = spike(h - self.threshold)
        return s, h * (1.0 - s)


def izhikevich(x, v, u):
    v = v + 0.5 * (0.04 * v * v + 5.0 * v + 140.0 - u + 20.0 * x)
    u = u + 0.02 * (0.2 * v - u)
    s = spike(v - 30.0)
    return s, v * (1.0 - s) - 65.0 * s, u + 8.0 * s


def adaptive_exponential(x, v, w):
    h = v + 0.1 * (-v + 0.5 * torch.exp((v - 1.0) * 2.0) - w + x)
    w = w + 0.05 * (0.2 * h - w)
    s = spike(h - 2.0)
    return s, h * (1.0 - s), w + 0.1 * s


def hodgkin_huxley(x, v, m, h, n):
    alpha_m = 0.1 * (v + 40.0) / (1.0 - torch.exp(-(v + 40.001) / 10.0))
    beta_m = 4.0 * torch.exp(-(v + 65.0) / 18.0)
    alpha_h = 0.07 * torch.exp(-(v + 65.0) / 20.0)
    beta_h = 1.0 / (1.0 + torch.exp(-(v + 35.0) / 10.0))
    alpha_n = 0.01 * (v + 55.0) / (1.0 - torch.exp(-(v + 55.001) / 10.0))
    beta_n = 0.125 * torch.exp(-(v + 65.0) / 80.0)
    m = m + 0.01 * (alpha_m * (1.0 - m) - beta_m * m)
    h = h + 0.01 * (alpha_h * (1.0 - h) - beta_h * h)
    n = n + 0.01 * (alpha_n * (1.0 - n) - beta_n * n)
    current = 120.0 * m * m * m * h * (v - 50.0) + 36.0 * n * n * n * n * (v + 77.0) + 0.3 * (v + 54.4)
    v = v + 0.01 * (x - current)
    return spike(v), v, m, h, n


def fused(core, states: int = 1) -> Call:
    module = flexsn.FlexSN(core, num_states=states).cuda()

    def call(x):
        module.reset()
        return module(x)

    call.parameters = list(module.parameters()) + (
        list(core.parameters()) if isinstance(core, torch.nn.Module) else []
    )
    return call


# ---- timing ----------------------------------------------------------------------------------------------


def between_events(call: Callable[[], object], repeats: int = 30, warm: int = 3) -> float:
    """Median milliseconds of a call as a user sees it, its own overhead included."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(repeats + warm):
        start.record()  # the first time makes the event, so warm calls use the same ones
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[warm:])


def in_turn(*runs: Callable[[], object] | None, rounds: int = 25) -> list[float]:
    """The same of several calls, which take turns, as the first quartile of the rounds: who else uses the machine
    disturbs all of them alike and only adds time. Turns are long enough for caches and clocks to be as in a loop of
    one of them."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, found in zip(runs, times):
            if run is not None:
                found.append(between_events(run, 20, warm=20))
    return [statistics.quantiles(found, n=4)[0] if found else math.nan for found in times]


def queued(call: Callable[[], object], repeats: int = 30) -> float:
    """The same where calls are queued one behind the other, as in a training, and the device need not wait."""
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats + 3)]
    for start, end in pairs:
        start.record()  # makes the event, which takes longer than to use it
        end.record()
    torch.cuda.synchronize()
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs[3:])


def wall_clock(call: Callable[[], object], number: int = 200) -> float:
    """Milliseconds of one of many calls in a row."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(number):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / number * 1e3


def by_replay(call: Callable[[], object], rounds: int = 3) -> float:
    """Median milliseconds of what a call runs on the device. Each round has memory of its own, on whose place the
    speed depends by some percent."""
    return statistics.median(replayed(call) for _ in range(rounds))


def by_replay_in_turn(ways: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """The same of several ways to do one thing, which take turns in an order of chance, since memory is the first one's
    to choose from."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            torch.cuda.empty_cache()
            found[name].append(replayed(ways[name]))
    return {name: statistics.median(times) for name, times in found.items()}


def replayed(call: Callable[[], object], launches: int = 10) -> float:
    """The same of one CUDA graph of several calls, whose replays are queued one behind the other: how long the host
    takes to start one is not in it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            call()
    keep_busy(graph.replay, 0.05)  # memory that was given back is cleared, which slows others by a tenth
    ms = queued(graph.replay) / launches
    graph.reset()
    return ms


def keep_busy(call: Callable[[], object], seconds: float) -> None:
    """Runs this on the device for so long."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        torch.cuda.synchronize()


def copy_bandwidth(warm_seconds: float = 1.0) -> float:
    """Bytes read and written in a second by a large copy on the device, which was busy for a while before."""
    source = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(source)
    keep_busy(lambda: target.copy_(source), warm_seconds)
    return 2 * source.nbytes / (between_events(lambda: target.copy_(source), 50) / 1e3)


def inference(call: Call, x: torch.Tensor) -> Callable[[], object]:
    def run():
        with torch.no_grad():
            return call(x)

    return run


def training(call: Call, x: torch.Tensor, grad: torch.Tensor) -> Callable[[], object]:
    wanted = [x, *getattr(call, "parameters", [])]
    return lambda: torch.autograd.grad(call(x), wanted, grad)


# ---- the table -------------------------------------------------------------------------------------------


class Table:
    """Rows that are printed as they come, and kept."""

    def __init__(self):
        self.rows: list[dict] = []
        self.failed: list[str] = []  #: work that could not be timed

    def summary(self) -> list[str]:
        missed = [f"missed: {row['work']}" for row in self.rows if row["good"] is False]
        return [*missed, *(f"FAILED: {work}, as was said above" for work in self.failed)]

    def at_least(self, work: str, goal: float | None, found: float, unit: str = "", **more: float) -> None:
        self._add(work, goal, found, unit, None if goal is None else found >= goal, more)

    def at_most(self, work: str, goal: float | None, found: float, unit: str = "", **more: float) -> None:
        self._add(work, goal, found, unit, None if goal is None else found <= goal, more)

    def within(self, work: str, goal: float, most: float, found: float, unit: str = "", **more: float) -> None:
        """An estimate that is far off in either way is wrong."""
        self._add(work, goal, found, unit, goal <= found <= most, {**more, "most": most})

    def _add(
        self, work: str, goal: float | None, found: float, unit: str, good: bool | None, more: dict
    ) -> None:
        word = {None: "", True: "ok", False: "MISSED"}[good]
        wanted = "" if goal is None else f"{goal:g} {unit}"
        detail = "  ".join(f"{name} {value:.4g}" for name, value in more.items())
        print(f"{work:62s} {wanted:>8s} {found:8.3f} {unit:2s} {word:6s} {detail}", flush=True)
        self.rows.append({"work": work, "goal": goal, "found": found, "unit": unit, "good": good, **more})


def data(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """An input and a gradient that arrives at the output."""
    x, grad = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    return x.requires_grad_(), grad


def against_floor(table: Table, bandwidth: float) -> None:
    for steps, elements, dtype, goal_inference, goal_training in (
        (8, 4194304, torch.float32, 0.92, 0.90),
        (32, 4194304, torch.float32, 0.92, 0.90),
        (128, 262144, torch.float32, None, 0.85),
        (500, 65536, torch.float32, None, 0.70),
        (6, 4194304, torch.float32, None, None),
        (32, 4194304, torch.float16, None, None),
        (32, 4194304, torch.bfloat16, None, None),
    ):
        x, grad = data(steps, elements, dtype=dtype)
        call, pass_ms = fused(lif), x.nbytes / bandwidth * 1e3
        size = f"{steps} x {elements}" + ("" if dtype == torch.float32 else f" {str(dtype).split('.')[1]}")
        ms, passes = by_replay(inference(call, x)), 2 + 1 / steps  # input, spikes, and the state that is left
        table.at_least(f"inference kernel {size}, of the floor", goal_inference, passes * pass_ms / ms, ms=ms)
        ms = by_replay(training(call, x, grad))
        table.at_least(f"training kernels {size}, of the floor", goal_training, 5 * pass_ms / ms, ms=ms)


def between_others(table: Table, bandwidth: float) -> None:
    """What a neuron adds to operations that write what it reads and read what it writes, as layers of a network do:
    what they leave in the L2 cache, and what it leaves there, is in this time."""
    for steps, elements in ((4, 1048576), (8, 1048576), (8, 4194304), (500, 65536)):
        x, grad = data(steps, elements)
        neuron, pass_ms = fused(lif), x.nbytes / bandwidth * 1e3

        def chain(x, neuron=neuron):
            return neuron(x * 1.5) * 0.5

        for what, passes, kind in (
            ("inference", 2 + 1 / steps, lambda call, x=x: inference(call, x)),
            ("training", 5, lambda call, x=x, grad=grad: training(call, x, grad)),
        ):
            ways = {"with_ms": kind(chain), "without_ms": kind(lambda x: (x * 1.5) * 0.5)}
            found = by_replay_in_turn(ways, rounds=3)
            added = found["with_ms"] - found["without_ms"]
            work = f"{what} {steps} x {elements} between other operations, of the floor"
            table.at_least(work, None, passes * pass_ms / added, ms=added, **found)


def calls(table: Table, bandwidth: float) -> None:
    peer = spikingjelly_call()
    for steps, elements, against_peer in ((8, 4194304, 6), (32, 4194304, 3), (8, 32768, 10)):
        torch.cuda.empty_cache()  # what larger and smaller calls left behind is in no one's way
        x, grad = data(steps, elements)
        size = f"{steps} x {elements}"
        call = training(fused(lif), x, grad)
        peer_call = None if peer is None else training(peer, x, grad)
        product = training(lambda x: x * 2, x, grad)
        ours, theirs, alone = in_turn(call, peer_call, product)
        floor = 5 * x.nbytes / bandwidth * 1e3
        goal = 0.78 if (steps, elements) == (8, 4194304) else None
        work = f"training through FlexSN {size}, of the floor"
        table.at_least(work, goal, floor / ours, ms=ours, queued_ms=queued(call))
        if peer_call is not None:
            work = f"training {size} against SpikingJelly"
            table.at_least(work, against_peer, theirs / ours, "x", ms=theirs, queued_ms=queued(peer_call))
        if steps == 8:
            eager = between_events(training(loop, x, grad), 10)
            table.at_least(f"training {size} against eager", None, eager / ours, "x", ms=eager)
        work = f"torch's own (x * 2) with backward {size}, times as long"
        table.at_least(work, None, alone / ours, "x", ms=alone, queued_ms=queued(product))
    x, grad = data(8, 32768)
    call = fused(lif)
    for work, goal, run in (
        ("torch's own (x * 2) with backward, 8 x 32768, for comparison", None, training(lambda x: x * 2, x, grad)),
        ("training call 8 x 32768 from Python", 160, training(call, x, grad)),
        ("inference call 8 x 32768 from Python", 30, inference(call, x)),
    ):
        table.at_most(work, goal, statistics.median(wall_clock(run) for _ in range(5)) * 1e3, "us")


def beside_compile(table: Table, _: float) -> None:
    """Last of what is timed here: torch.compile leaves a hook behind that every later call goes through."""
    for elements, goal in ((4194304, 5), (32768, None)):
        x, grad = data(8, elements)
        call = training(torch.compile(loop), x, grad)
        ours, theirs = in_turn(training(fused(lif), x, grad), call)
        work = f"training 8 x {elements} against torch.compile"
        table.at_least(work, goal, theirs / ours, "x", ms=theirs, queued_ms=queued(call), our_ms=ours)


def exported(core, states: int = 1) -> Call | None:
    """The neuron as a Triton module that needs torch and triton alone; nothing where there is no triton."""
    try:
        import triton  # noqa: F401
    except ImportError:
        print("left out: the exported Triton module (triton is not installed)")
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported_neuron.py"
        flexsn.export(flexsn.FlexSN(core, num_states=states), "triton", path)
        spec = importlib.util.spec_from_file_location("exported_neuron", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    run = getattr(module, core.__name__)
    return lambda x: run(x)[0]


def triton_modules(table: Table, bandwidth: float) -> None:
    call = exported(lif)
    if call is None:
        return
    for steps, elements, goal in ((8, 4194304, 0.85), (32, 4194304, None)):
        x, grad = data(steps, elements)
        size, pass_ms = f"{steps} x {elements}", x.nbytes / bandwidth * 1e3
        for what, passes, ours, theirs in (
            ("inference", 2 + 1 / steps, inference(fused(lif), x), inference(call, x)),
            ("training", 5, training(fused(lif), x, grad), training(call, x, grad)),
        ):
            ms, cuda_ms = by_replay(theirs), by_replay(ours)
            work = f"exported Triton module, {what} {size}, of the floor"
            table.at_least(work, goal, passes * pass_ms / ms, ms=ms, cuda_ms=cuda_ms)


def parameters(table: Table, _: float) -> None:
    for steps in (8, 32):
        x, grad = data(steps, 4194304)
        plain = by_replay(training(fused(lif), x, grad))
        ms = by_replay(training(fused(LearnableTau()), x, grad))
        work = f"learnable scalar tau {steps} x 4194304, times as long"
        table.at_most(work, 1.10, ms / plain, "x", ms=ms, plain_ms=plain)
    x, grad = data(8, 64, 64, 32, 32)
    plain = by_replay(training(fused(lif), x, grad))
    ms = by_replay(training(fused(ChannelThreshold(64)), x, grad))
    work = "threshold per channel 8 x [64, 64, 32, 32], times as long"
    table.at_most(work, 1.15, ms / plain, "x", ms=ms, plain_ms=plain)


def limits(core, states: int, x: torch.Tensor, kernels: tuple[str, ...]) -> tuple[str, float]:
    """What `explain` says that these kernels wait for: memory, or arithmetic where that holds one of them; and the
    bytes that memory would move for each element and step in the time that they need by its figures."""
    told = flexsn.explain(flexsn.FlexSN(core, num_states=states), inputs=x).numbers
    limit, moved = "memory", 0.0
    for kernel in kernels:
        share = told[f"instructions_of_{kernel}"] / told[f"most_instructions_of_{kernel}"]
        limit = "arithmetic" if share > 1 else limit
        moved += told[f"bytes_for_each_step_of_{kernel}"] * max(1.0, share)
    return limit, moved


def other_neurons(table: Table, bandwidth: float) -> None:
    for core, states in ((izhikevich, 2), (adaptive_exponential, 2), (hodgkin_huxley, 4)):
        x, grad = data(16, 1048576)
        call, pass_ms = fused(core, states), x.nbytes / bandwidth * 1e3
        for what, passes, run in (
            ("inference", 2, inference(call, x)),
            ("training", 5, training(call, x, grad)),
        ):
            ms = by_replay(run)
            kernels = ("forward", "backward") if passes == 5 else ("inference_final_state",)
            limit, moved = limits(core, states, x, kernels)
            name = f"{core.__name__} {what} 16 x 1048576"
            work = f"{name}, of {passes} passes; {limit} is the limit"
            table.at_least(work, 0.75 if limit == "memory" else None, passes * pass_ms / ms, ms=ms)
            if limit == "arithmetic":
                explained = x.numel() * moved / bandwidth * 1e3
                work = f"{name}, of its instructions' time by explain"
                table.within(work, 0.75, 1.6, explained / ms, ms=ms)


def soft_reset(x, v):
    h = v + (x - v) * 0.5
    s = torch.sigmoid((h - 1.0) * 4.0)
    return s, h * (1.0 - s)


def ring(x, *states):
    """Five states of which each drives the next: much to keep for few inputs and outputs."""
    products = [one * other for one, other in zip(states, (*states[1:], states[0]))]
    last = torch.tanh(products[-1]) + x
    return last, products[0] + x, *(b - a for a, b in zip(products[:3], products[1:4])), last


def named(subject: torch.nn.Module) -> str:
    return subject.core.__name__ if isinstance(subject, flexsn.FlexSN) else type(subject).__name__


def savings(table: Table, _: float) -> None:
    """What the planner chose to save, against what it could have chosen."""
    steps, elements, half = 32, 2097152, torch.float16
    for subject, dtype in (
        (flexsn.FlexSN(soft_reset, num_states=1), torch.float32),
        (flexsn.FlexSN(ring, num_inputs=1, num_states=5), torch.float32),
        (neurons.AdaptiveLIFNode(step_mode="m").double(), torch.float64),
        (neurons.CUBALIFNode(step_mode="m"), torch.float32),
        (neurons.RAFNode(step_mode="m"), torch.float32),
        (neurons.ComplementaryLIFNode(step_mode="m"), torch.float32),
        (neurons.AdExNode(step_mode="m"), torch.float32),
        (neurons.AdExNode(step_mode="m"), half),
        (neurons.ParametricLIFNode(step_mode="m"), half),
        (neurons.HodgkinHuxleyNode(step_mode="m"), torch.float32),
    ):
        x, grad = data(steps, elements, dtype=dtype)
        text = flexsn.show(subject.cuda(), "joint", inputs=x)
        params, ways = list(subject.parameters()), {}
        for plan in ("saving=automatic", "saving=per_step", *(f"segment={k}" for k in (2, 4, 8, 16))):

            def call(x, plan=f"gpu,{plan}"):
                return torch.ops.flexsn.training_final_state(text, [x], [], params, [0], plan)[0]

            ways[plan.replace("saving=", "").replace("=", "_")] = training(call, x, grad)
        found = by_replay_in_turn(ways, rounds=3)
        name = f"{named(subject)} {steps} x {elements} {str(dtype).split('.')[1]}"
        work = f"{name} training, of the best way to save"
        table.at_least(work, 0.95, min(found.values()) / found["automatic"], **found)


def cuts(table: Table, _: float) -> None:
    """How the rule cut kernels, against elements a thread, steps at once and steps between checkpoints of other ways."""
    vectors = (1, 2, 4)
    whole = [  # not in pieces: all steps between checkpoints are loaded at once
        ("vector=1,unroll=16,resident_threads=1024", ",segment=16"),
        ("vector=1,unroll=16,resident_threads=512,threads=64", ",segment=16"),
        ("vector=2,unroll=16,resident_threads=512", ",segment=16"),
    ]
    for subject, steps, elements in (
        (flexsn.FlexSN(lif, num_states=1), 8, 4194304),
        (flexsn.FlexSN(lif, num_states=1), 8, 16777216),  # do the last blocks of fewer elements cost more?
        (flexsn.FlexSN(lif, num_states=1), 32, 4194304),
        (flexsn.FlexSN(lif, num_states=1), 128, 262144),
        (flexsn.FlexSN(lif, num_states=1), 500, 65536),
        (neurons.ParametricLIFNode(step_mode="m"), 32, 2097152),
        (neurons.CUBALIFNode(step_mode="m"), 32, 2097152),
        (neurons.AdExNode(step_mode="m"), 32, 2097152),
        (flexsn.FlexSN(ring, num_inputs=1, num_states=5), 32, 2097152),
    ):
        x, grad = data(steps, elements)
        text = flexsn.show(subject.cuda(), "joint", inputs=x)
        params = list(subject.parameters())
        for kind, tried in (
            ("inference", [(f"vector={v},unroll={k}", "") for v in vectors for k in (4, 8, 16)]),
            ("training", [*((f"vector={v}", f",segment={k}") for v in vectors for k in (8, 16, 32)), *whole]),
        ):
            ways = {}
            for number, (shape, plan) in enumerate([("", ""), *tried]):
                # A neuron's kernels are cut once, so each way has a neuron of its own name.
                neuron = text.replace("neuron ", f"neuron cut_{number}_", 1)

                def call(x, neuron=neuron, plan=f"gpu{plan}"):
                    if not torch.is_grad_enabled():
                        return torch.ops.flexsn.inference_final_state(neuron, [x], [], params)[0]
                    return torch.ops.flexsn.training_final_state(neuron, [x], [], params, [0], plan)[0]

                run = training(call, x, grad) if kind == "training" else inference(call, x)
                os.environ["FLEXSN_CUDA_SHAPE"] = shape  # stays set: others read the environment meanwhile
                run()
                ways[f"{shape}{plan}" or "automatic"] = run
            os.environ["FLEXSN_CUDA_SHAPE"] = ""
            found = by_replay_in_turn(ways)
            work = f"{named(subject)} {kind} {steps} x {elements}, of the best way to cut"
            table.at_least(work, None, min(found.values()) / found["automatic"], **found)


FIRST_CALL = """
import sys, time
sys.path.insert(0, {folder!r})
import gpu_bench, torch
import flexsn
steps = int(sys.argv[1])
def warm(x, v):
    return x * 0.5, v
x = torch.randn(4, 64, device="cuda").requires_grad_()
gpu_bench.fused(warm)(x).sum().backward()
torch.cuda.synchronize()
call = gpu_bench.fused(gpu_bench.lif)
x = torch.randn(steps, 4096, device="cuda").requires_grad_()
start = time.perf_counter()
call(x).sum().backward()
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


def first_call(steps: int, cache: str) -> float | None:
    """Seconds of the first training call of a process with this disk cache; None, and why, where it failed.

    NVRTC keeps what it compiled in a cache of its own, which would hide most of a first call.
    """
    program = FIRST_CALL.format(folder=str(Path(__file__).parent))
    out = subprocess.run(
        [sys.executable, "-c", program, str(steps)],
        capture_output=True,
        text=True,
        env={**os.environ, "FLEXSN_CACHE_DIR": cache, "CUDA_CACHE_DISABLE": "1"},
    )
    if out.returncode != 0:
        print(out.stderr[-2000:])
        return None
    return float(out.stdout.split()[-1])


def first_calls(table: Table, _: float, processes: int = 3) -> None:
    for steps in (8, 500):
        empty, warm = [], []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(processes):
                for found in (empty, warm):
                    found.append(first_call(steps, f"{folder}/{number}"))
        for name, goal, found in (("empty disk cache", 0.5, empty), ("disk cache warm", 0.1, warm)):
            work = f"first training call, T = {steps}, {name}"
            if None in found:
                table.failed.append(work)
            else:
                table.at_most(work, goal, statistics.median(found), "s", slowest=max(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="write the figures as JSON to this file")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parts = {
        "floor": against_floor,
        "between": between_others,
        "parameters": parameters,
        "neurons": other_neurons,
        "savings": savings,
        "cuts": cuts,
        "triton": triton_modules,
        "calls": calls,
        "first": first_calls,
        "compile": beside_compile,
    }
    parser.add_argument("--only", action="append", choices=parts, help="one part; may be given several times")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench-gpu needs an NVIDIA GPU that torch can see")
    bandwidth = copy_bandwidth()
    machine = torch.cuda.get_device_name()
    print(f"{machine}, torch {torch.__version__}, a copy moves {bandwidth / 1e9:.0f} GB/s", flush=True)
    table = Table()
    usual = [name for name in parts if name != "cuts"]  # which has no goal, so it is run by name
    facts = {
        "machine": machine,
        "torch": torch.__version__,
        "copy_gb_per_s": bandwidth / 1e9,
        "rows": table.rows,
    }
    for name in args.only or usual:
        if name == "compile" and args.no_compile:
            continue
        try:
            parts[name](table, bandwidth)
        except Exception:  # the other parts are worth having
            traceback.print_exc()
            table.failed.append(name)
        if args.out:
            Path(args.out).write_text(json.dumps(facts, indent=1) + "\n")
    for line in table.summary():
        print(line)
    sys.exit(bool(table.failed))


if __name__ == "__main__":
    main()
