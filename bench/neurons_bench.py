"""Each neuron of the library beside the same step written by hand as a core: training, medians in turns."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import flexsn

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "python"))
from neuron_equations import CASES, Case  # noqa: E402  the equations that the tests hold the library against

GOAL = 0.9  #: of the speed of a core, at least


class Core(nn.Module):
    """The equation of a case as a core; parameters of single steps are beside the input."""

    def __init__(self, case: Case, module: nn.Module) -> None:
        super().__init__()
        self.step, self.module = case.step, module

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        outputs, new = self.step(x, states, self.module, 0)
        return *outputs, *new


class Gated(Core):
    """`conduct` has an entry for each step, which comes as a second input."""

    def forward(self, x: Tensor, conduct: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        names = ("alpha", "beta", "gamma", "tau", "v_threshold", "linear_decay", "v_subreset")
        own = {name: getattr(self.module, name) for name in names}
        given = types.SimpleNamespace(**own, conduct=[conduct])
        outputs, new = self.step(x, states, given, 0)
        return *outputs, *new


def library_call(module: nn.Module) -> Callable[[Tensor], Any]:
    def call(x: Tensor) -> Any:
        module.reset()
        return module(x)

    return call


def core_call(case: Case, module: nn.Module) -> Callable[[Tensor], Any]:
    gated = module.name == "gated_lif"
    core = (Gated if gated else Core)(case, module)
    neuron = flexsn.FlexSN(core, 2 if gated else 1, len(case.initial))

    def start(num_states: int, step_mode: str, *inputs: Tensor) -> list[Tensor]:
        return [torch.full_like(inputs[0][0], value) for value in case.initial]

    if any(case.initial):
        neuron.init_states = start

    def call(x: Tensor) -> Any:
        neuron.reset()
        if not gated:
            return neuron(x)
        conduct = module.conduct.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        return neuron(x, conduct)

    return call


def train(call: Callable[[Tensor], Any], x: Tensor, grad: Tensor, parameters: list[Tensor]) -> float:
    """Seconds of one forward and backward."""
    start = time.perf_counter()
    x.grad = None
    for parameter in parameters:
        parameter.grad = None
    found = call(x)
    output = found[0] if isinstance(found, (list, tuple)) else found
    if output.requires_grad:
        output.backward(grad)
    return time.perf_counter() - start


def speeds(name: str, steps: int, shape: tuple[int, ...], seconds: float) -> tuple[float, float]:
    """Medians of the library and of the core, in milliseconds."""
    case = CASES[name]
    module = case.make(step_mode="m") if name != "gated_lif" else flexsn.neurons.GatedLIFNode(steps)
    calls = {"library": library_call(module), "core": core_call(case, module)}
    x = (torch.randn(steps, *shape) * case.scale + case.shift).requires_grad_()
    grad = torch.randn(steps, *shape)
    parameters = list(module.parameters())
    results = [call(x) for call in calls.values()]
    first = [found[0] if isinstance(found, (list, tuple)) else found for found in results]
    unlike = (first[0] - first[1]).abs().gt(1e-3 * first[1].abs().clamp(min=1)).float().mean().item()
    if unlike > 1e-3:
        raise SystemExit(f"{name}: the library and the core differ in {unlike:.2%} of their outputs")
    for call in calls.values():
        train(call, x, grad, parameters)
    times: dict[str, list[float]] = {way: [] for way in calls}
    end = time.perf_counter() + 2 * seconds
    while time.perf_counter() < end or len(times["core"]) < 5:
        for way, call in calls.items():
            times[way].append(train(call, x, grad, parameters))
    return statistics.median(times["library"]) * 1e3, statistics.median(times["core"]) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each of the two")
    parser.add_argument("--T", type=int, default=8, help="steps")
    parser.add_argument("--elements", type=int, default=262144, help="of a step, about")
    parser.add_argument("--only", action="append", help="this case")
    parser.add_argument("--out", metavar="FILE.json", help="write the figures there")
    options = parser.parse_args()
    shape = (max(options.elements // 15, 1), 3, 5)
    print(f"{'neuron':26}{'library ms':>12}{'core ms':>12}{'speed':>9}   T = {options.T}, shape {list(shape)}")
    record, below = {}, []
    for name in options.only or CASES:
        if sys.stderr.isatty():
            print(f"  {name} ...", end="\r", file=sys.stderr, flush=True)
        library, core = speeds(name, options.T, shape, options.seconds)
        record[name] = {"library_ms": library, "core_ms": core}
        verdict = "" if core / library >= GOAL else "   below"
        below += [name] if verdict else []
        print(f"{name:26}{library:12.3f}{core:12.3f}{core / library:7.2f} x{verdict}", flush=True)
    print(f"a neuron of the library must train at {GOAL} x the speed of a core: ", end="")
    print(f"below are {', '.join(below)}" if below else "all do")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
