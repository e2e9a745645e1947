"""The demo: a neuron of your own, checked, trained on digits, timed and drawn, in Python and in C++.

Run it with `make demo`. Each step says what it shows; what does not hold ends it with status 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys
import time

import torch
from torch import Tensor, nn

import digits
import flexsn
import programs
import timing
from neuron import Eager, Tiring
from programs import Arrays, Failed

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]


class Screen:
    """Numbered steps, lines below them, and a line that is written over while something takes its time."""

    def __init__(self) -> None:
        self.steps = 0
        self.over = sys.stdout.isatty()

    def step(self, text: str) -> None:
        self.steps += 1
        print(f"\n{self.steps}. {text}", flush=True)

    def line(self, text: str) -> None:
        self.passing("")
        print(f"     {text}", flush=True)

    def passing(self, text: str) -> None:
        if self.over:
            print(f"\r\033[K{'     ' + text if text else ''}", end="", flush=True)

    def progress(self, done: float, loss: float, accuracy: float) -> None:
        bar = "#" * int(30 * done)
        held_out = (
            f"  held-out {100 * accuracy:.1f} %" if accuracy else ""
        )  # none before the first epoch ends
        self.passing(f"[{bar:-<30}] {100 * done:3.0f} %  loss {loss:.3f}{held_out}")


def run(layer: nn.Module, x: Tensor, grad: Tensor) -> Arrays:
    """What a layer gives forward and backward."""
    x = x.clone().requires_grad_()
    layer.core.cost.grad = None
    spikes = layer(x)
    spikes.backward(grad)
    v, tired = layer.states
    return Arrays(spikes.detach(), v.detach(), tired.detach(), x.grad, layer.core.cost.grad)


def compare(what: str, found: Arrays, expected: Arrays) -> float:
    """Forward must have the same bits; gives how far gradients are apart, in parts of the largest one."""
    for name in ("spikes", "v", "tired"):
        a, b = getattr(found, name), getattr(expected, name)
        if a.numpy().tobytes() != b.numpy().tobytes():
            count = int((a != b).sum())
            raise Failed(f"{what}: {name} must have the same bits, {count} of {a.numel()} numbers differ")
    apart = 0.0
    for name in ("grad_x", "grad_cost"):
        a, b = getattr(found, name), getattr(expected, name)
        apart = max(apart, float((a - b).abs().max() / b.abs().max()))
    if not apart < 1e-4:
        raise Failed(f"{what}: gradients must agree to rounding, found them {apart:.2g} apart")
    return apart


def check(screen: Screen, options: argparse.Namespace) -> float:
    """Gives the seconds until the kernels were there, which this process has from then on."""
    screen.step("A neuron that is in no library, in ten lines (examples/python/demo/neuron.py):")
    text = (HERE / "neuron.py").read_text().split("# demo: begin\n")[1].split("# demo: end")[0]
    print("\n" + "".join(f"     | {line}\n" for line in text.strip().splitlines()), end="")

    screen.step("flexsn runs it as one kernel. Is that what eager PyTorch computes, step by step?")
    core = Tiring(48)
    x, grad = torch.randn(100, 32, 48) * 1.5, torch.randn(100, 32, 48)
    with torch.no_grad():
        core.cost.uniform_(0.1, 0.6)
    eager = run(Eager(core), x, grad)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        kernel = run(flexsn.FlexSN(core, num_states=2), x, grad)
        times.append(time.perf_counter() - start)
    apart = compare("flexsn and eager PyTorch", kernel, eager)
    fired = 100 * kernel.spikes.mean()
    screen.line(
        f"forward: the same bits, spikes and states; 100 steps of 32 x 48 neurons, {fired:.0f} % fire"
    )
    screen.line(f"backward: gradients of input and cost apart by {apart:.0e} of the largest")

    screen.step("The same ten lines in C++ (examples/demo_neuron.h), on plain arrays, without PyTorch:")
    found = programs.run_neuron(options.programs, options.out, x, core.cost, grad)
    apart = compare("C++ and Python", found, kernel)
    screen.line(f"forward: the same bits; backward: apart by {apart:.0e}")
    return times[0] - times[1]


def learn(screen: Screen, options: argparse.Namespace) -> tuple[nn.Sequential, dict, list]:
    screen.step(
        f"A network learns handwritten digits: 64 pixels, {digits.HIDDEN} and {digits.CLASSES} such neurons, "
        f"{digits.STEPS} steps"
    )
    data = digits.load_digits()
    torch.manual_seed(0)
    net = digits.network()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    began = time.perf_counter()
    curve = digits.train(net, data, options.epochs, screen.progress)
    took = time.perf_counter() - began
    held_out = len(data["test_y"])
    screen.line(f"{100 * curve[-1][1]:.1f} % of {held_out} held-out digits are right, after {took:.1f} s")
    require(curve[-1][1], options.accuracy, "the network")

    screen.step("The same network in C++ with libtorch (examples/demo_digits.cpp), from the same weights:")
    copy = digits.network()
    copy.load_state_dict(start)
    trained = programs.train(options.programs, options.out, data, copy, options.epochs, digits.STEPS)
    expected = curve[0][0]
    found = trained.first_loss
    if abs(found - expected) > 0.01 * expected:  # gradients are rounded differently, so a spike may differ
        raise Failed(f"the loss in the first epoch must be that of Python, {expected:.4f}, found {found:.4f}")
    screen.line(f"loss in the first epoch: {found:.4f} (in Python {expected:.4f})")
    screen.line(
        f"{100 * trained.accuracy:.1f} % of the held-out digits are right, after {trained.seconds:.1f} s"
    )
    require(trained.accuracy, options.accuracy, "the network of C++")
    there = digits.accuracy(copy, data)
    if abs(there - trained.accuracy) > 1e-5:
        raise Failed(
            f"C++ found {100 * trained.accuracy:.2f} % with its weights, Python finds {100 * there:.2f} %"
        )
    screen.line(f"Python reads the weights that C++ wrote, and finds {100 * there:.1f} % as well")
    return net, data, curve


def require(found: float, percent: float, what: str) -> None:
    if 100 * found < percent:
        raise Failed(f"{what} must get {percent:g} % of the held-out digits right, found {100 * found:.1f} %")


def compare_times(screen: Screen, options: argparse.Namespace, ready: float) -> dict[str, list[float]]:
    """The table; `ready` is how long flexsn took to make the kernels, which are there by now."""
    steps = 8
    screen.step(
        f"How long training {timing.ROWS} x {timing.CHANNELS} such neurons takes here, over {steps} steps, "
        "on one thread:"
    )
    timings = timing.measure(steps, not options.quick, 0.5 if options.quick else 3.0, screen.passing)
    screen.line(f"{'':16}{'to get ready':>14}{'forward + backward':>21}{'flexsn is':>18}")
    timings["flexsn"][0] = ready
    ours = timings["flexsn"][1]
    for name, (ready, each) in timings.items():
        ratio = "" if name == "flexsn" else f"{each / ours:.1f} x as fast"
        screen.line(f"{name:16}{ready:12.1f} s{each:18.2f} ms{ratio:>18}".rstrip())
    return timings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few epochs, and no torch.compile")
    parser.add_argument("--epochs", type=int, help="of training (16; quick: 4)")
    parser.add_argument("--accuracy", type=float, help="held-out digits to get right, in %% (95; quick: 80)")
    parser.add_argument(
        "--programs", type=pathlib.Path, default=ROOT / "build", help="folder of the C++ programs"
    )
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/demo", help="folder for pictures")
    options = parser.parse_args()
    if options.epochs is None:
        options.epochs = 4 if options.quick else 16
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, found {options.epochs}")
    options.accuracy = options.accuracy if options.accuracy is not None else (80 if options.quick else 95)
    options.out.mkdir(parents=True, exist_ok=True)

    began = time.perf_counter()
    torch.manual_seed(1)
    torch.set_num_threads(
        1
    )  # on a busy machine threads would wait longer than they work, in eager PyTorch most
    screen = Screen()
    try:
        ready = check(screen, options)
        learnt = learn(screen, options) if there("the digits", "sklearn", "scikit-learn", screen) else None
        timings = compare_times(screen, options, ready)
        if learnt and there("the pictures", "matplotlib", "matplotlib", screen):
            screen.step("Pictures:")
            import pictures

            for path in pictures.draw(*learnt, timings, options.out):
                screen.line(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path))
    except Failed as failure:
        screen.line(f"FAILED: {failure}")
        return 1
    print(f"\nThe demo took {time.perf_counter() - began:.0f} s.", end=" ")
    print("build/flexsn_demo shows what happens to a neuron inside.")
    return 0


def there(part: str, module: str, package: str, screen: Screen) -> bool:
    """Whether a package is there; a word where it is not."""
    found = importlib.util.find_spec(module) is not None
    if not found:
        screen.line(f"left out: {part} ({package} is not installed)")
    return found


if __name__ == "__main__":
    sys.exit(main())
