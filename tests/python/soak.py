"""A long run: many small calls from several threads, then training processes whose shared cache is attacked.

usage: soak.py [--calls N] [--threads K] [--seconds S] [--neurons M]

Part 1 makes, calls, copies, pickles, moves and drops modules, kernels and handles. Every result has the bits
of the first one of its kind, memory stays level, the registry is empty at the end and no handle is given out
twice.
Part 2 runs two lanes of processes that train the same neurons with one cache directory, while a third process
deletes, cuts and overwrites its files. Both lanes end with the same weights for each neuron, in every bit.
"""

from __future__ import annotations

import argparse
import copy
import gc
import hashlib
import itertools
import os
import pathlib
import pickle
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flexsn import FlexSN, FlexSNKernel, neurons
from flexsn._library import ops
from flexsn.compat import custom_ops, kernel

#: bytes that a process may grow from a fifth of the calls to the end; the allocator's pieces come and go
MOST_GROWTH = 24 << 20


# ---- part 1: calls -----------------------------------------------------------------------------------------


def memory() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Leaky(nn.Module):
    """A core with a parameter, one for all or one for each channel."""

    def __init__(self, leak: Tensor) -> None:
        super().__init__()
        self.leak = nn.Parameter(leak)

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * self.leak + x
        return h * x, h


def two_in_three_states(a: Tensor, b: Tensor, u: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    u = u * 0.5 + a
    v = v * 0.25 + b
    w = w * 0.5 + u * v
    return u * w, w - v, u, v, w


def silent(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """A state and no output."""
    return (v * 0.5 + x,)


class Handles:
    """Takes handles and gives them back. A number that was there before is noticed: numbers only grow."""

    def __init__(self) -> None:
        built, info = kernel.build_inference_kernel(two_in_three_states, 2, 3, 2)
        names = ("inference_final_state_kernel", "inference_final_state_info", "forward_kernel")
        nothing = dict.fromkeys((*names, "backward_kernel", "training_info"))
        self.kernels = {**nothing, "inference_kernel": built, "inference_info": info}
        self.largest = 0
        self.taken = 0
        self.lock = threading.Lock()

    def visit(self, arguments: list[Tensor]) -> list[Tensor]:
        """One handle with an owner that goes, and a call by it."""

        class Owner:
            pass

        before = self.largest
        handle = custom_ops.register_flexsn_kernel_handle(**self.kernels)
        assert handle > before, f"handle {handle} was given out when {before} had been"
        with self.lock:
            self.largest, self.taken = max(self.largest, handle), self.taken + 1
        owner = Owner()
        custom_ops.attach_flexsn_handle_finalizer(owner, handle)
        custom_ops.retain_flexsn_kernel_handle(handle)
        found = custom_ops.flexsn_inductor_inference(handle, arguments)
        custom_ops.release_active_flexsn_kernel_handle(handle)
        return list(found)


class Calls:
    """The work of one thread: it goes on with its modules, and drops them at random."""

    def __init__(self, seed: int, handles: Handles, expected: dict[Any, list[Tensor]]) -> None:
        self.random = random.Random(seed)
        self.handles = handles
        self.expected = expected
        self.done = 0

    def check(self, key: Any, found: Sequence[Tensor]) -> None:
        """Results of one kind are the same in every bit, whoever computes them."""
        right = self.expected.setdefault(key, [tensor.detach().clone() for tensor in found])
        if not all(torch.equal(a, b) for a, b in zip(found, right, strict=True)):
            raise AssertionError(f"other bits for {key}")

    def make(self) -> tuple[Any, int]:
        """A module, and which of the kinds it is."""
        kind = self.random.randrange(5)
        if kind == 0:
            return FlexSN(Leaky(torch.linspace(0.25, 0.75, 3)), num_states=1), kind
        if kind == 1:
            return FlexSN(two_in_three_states, num_inputs=2, num_states=3, num_outputs=2), kind
        if kind == 2:
            return FlexSN(silent, num_states=1), kind
        if kind == 3:
            return neurons.LIFNode(step_mode="m"), kind
        return FlexSN(Leaky(torch.tensor(0.5)), num_states=1, store_state_seqs=True), kind

    def call(self, module: Any, kind: int, dtype: torch.dtype) -> None:
        steps, batch, trained = self.random.choice((0, 1, 2, 5)), self.random.choice((1, 4)), False
        x = torch.linspace(-1.0, 2.0, steps * batch * 3, dtype=dtype).view(steps, batch, 3)
        if steps and self.random.random() < 0.3:
            trained = True
            x.requires_grad_()
        module.reset()
        outputs = module(*[x] * (2 if kind == 1 else 1))
        found = [*outputs] if isinstance(outputs, (list, tuple)) else [outputs]
        found = found or list(module.states)
        if trained:
            found += torch.autograd.grad([y.sum() for y in found], [x])
        self.check((kind, dtype, steps, batch, trained), found)

    def run(self, calls: int, watched: Callable[[int], None]) -> None:
        ones = [torch.ones(2, 3)] * 2 + [torch.zeros(3)] * 3
        module, kind, dtype = *self.make(), torch.float32
        while self.done < calls:
            change = self.random.random()
            if change < 0.04:
                module, kind, dtype = *self.make(), torch.float32
            elif change < 0.06:
                module = copy.deepcopy(module)
            elif change < 0.08:
                module.reset()
                module = pickle.loads(pickle.dumps(module))
            elif change < 0.10:
                dtype = torch.float64 if dtype is torch.float32 else torch.float32
                module.to(dtype)
            elif change < 0.13:
                self.check("handle", self.handles.visit(ones))
            elif change < 0.14:
                twin = copy.deepcopy(FlexSNKernel(two_in_three_states, 2, 3, 2))
                self.check("kernel", list(twin(*ones)))
            self.call(module, kind, dtype)
            self.done += 1
            watched(self.done)


def soak_calls(calls: int, threads: int) -> None:
    handles, expected, problems = Handles(), {}, []
    share = calls // threads
    workers = [Calls(seed, handles, expected) for seed in range(threads)]
    levels: list[int] = []
    start = time.monotonic()

    def watch(done: int) -> None:
        if done % max(share // 20, 1) == 0:
            levels.append(memory())

    def work(place: int) -> None:
        try:
            workers[place].run(share, watch if place == 0 else lambda done: None)
        except BaseException as error:  # reported by the thread that waits
            problems.append(error)

    running = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    seconds = time.monotonic() - start
    assert not problems, problems
    gc.collect()
    assert tuple(ops.registry_info()) == (0, 0, 0), ops.registry_info()
    growth = max(levels[len(levels) // 2 :]) - levels[len(levels) // 5]
    print(
        f"{share * threads} calls from {threads} threads in {seconds:.0f} s, {len(expected)} kinds of "
        f"results, {handles.taken} handles; memory {levels[len(levels) // 5] >> 10} KiB after a fifth, "
        f"{levels[-1] >> 10} KiB at the end",
        flush=True,
    )
    assert growth <= MOST_GROWTH, f"memory grew by {growth} bytes: {levels}"


# ---- part 2: processes that share a cache ------------------------------------------------------------------


def trained_weights(number: int) -> str:
    """A digest of what some steps of training give with a neuron that only this number makes."""
    leak = 0.5 + number / 2.0**20

    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * leak + x
        y = torch.sigmoid(h - 1.0)
        return y, h * (1.0 - y)

    generator = torch.Generator().manual_seed(number)
    weight = torch.randn(3, 3, generator=generator).requires_grad_()
    # Tracing takes longer than all else, so most neurons are those of the library.
    traced = number % 20 == 0
    neuron = FlexSN(core, num_states=1) if traced else neurons.LIFNode(tau=1.0 + leak, step_mode="m")
    for _ in range(5):
        x = torch.randn(4, 2, 3, generator=generator)
        neuron.reset()
        [gradient] = torch.autograd.grad((neuron(x @ weight) - 0.5).square().mean(), [weight])
        with torch.no_grad():
            weight -= 0.1 * gradient
    return hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest()[:16]


def in_child(work: Callable[[], None]) -> int:
    """A forked process that ends after this work; its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        sys.stdout.flush()
        status = 0
    except BaseException as error:
        print(f"soak: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(status)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def lane(results: pathlib.Path, deadline: float, neurons_each: int) -> None:
    """Fresh processes, one after another, each of which trains some neurons and notes their weights."""
    for first in itertools.count(0, neurons_each):
        if first > 0 and time.monotonic() >= deadline:
            break

        def work(first: int = first) -> None:
            with open(results, "a") as file:
                for number in range(first, first + neurons_each):
                    file.write(f"{number} {trained_weights(number)}\n")

        code = ended(in_child(work))
        assert code == 0, f"a training process ended with {code}"


def attack(cache: pathlib.Path, counts: pathlib.Path, stop: pathlib.Path) -> None:
    """Deletes, cuts and overwrites entries, and lays one in the place of another, until `stop` is there."""
    dice, done = random.Random(1), [0, 0, 0, 0]
    while not stop.exists():
        time.sleep(0.05)
        entries = sorted(cache.glob("*.cpu"))
        if not entries:
            continue
        entry, other, way = dice.choice(entries), dice.choice(entries), dice.randrange(4)
        try:
            if way == 0:
                entry.unlink()
            elif way == 1:
                os.truncate(entry, dice.randrange(entry.stat().st_size + 1))
            elif way == 2:
                with open(entry, "r+b") as file:
                    file.seek(dice.randrange(entry.stat().st_size + 1))
                    file.write(dice.randbytes(16))
            else:
                entry.write_bytes(other.read_bytes())
        except FileNotFoundError:
            continue
        done[way] += 1
    counts.write_text(" ".join(map(str, done)))


def soak_cache(seconds: float, neurons_each: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        os.environ["FLEXSN_CACHE_DIR"] = str(home / "cache")
        deadline = time.monotonic() + seconds
        lanes = [
            in_child(lambda name=name: lane(home / name, deadline, neurons_each)) for name in ("one", "two")
        ]
        attacker = in_child(lambda: attack(home / "cache", home / "attacks", home / "stop"))
        codes = [ended(child) for child in lanes]
        (home / "stop").touch()
        assert [*codes, ended(attacker)] == [0, 0, 0], codes
        one, two = (
            dict(line.split() for line in (home / name).read_text().splitlines()) for name in ("one", "two")
        )
        common = one.keys() & two.keys()
        assert len(common) >= neurons_each
        different = [number for number in common if one[number] != two[number]]
        assert not different, f"other weights for neurons {different[:5]}"
        deleted, cut, overwritten, swapped = (home / "attacks").read_text().split()
        print(
            f"{len(one)} and {len(two)} neurons trained in {seconds:.0f} s by processes of {neurons_each} "
            f"each, {len(common)} by both with equal weights; cache files deleted {deleted}, cut {cut}, "
            f"overwritten {overwritten}, exchanged {swapped}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--neurons", type=int, default=40, help="that a process of part 2 trains")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # forked processes have no other thread of torch
    # This process forks and runs no kernel itself.
    code = ended(in_child(lambda: soak_calls(chosen.calls, chosen.threads))) if chosen.calls else 0
    assert code == 0, f"the calls ended with {code}"
    if chosen.seconds:
        soak_cache(chosen.seconds, chosen.neurons)


if __name__ == "__main__":
    main()
