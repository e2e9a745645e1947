"""FlexSN among threads and processes: a neuron is its text everywhere, and nothing hangs."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from cores import soft, with_params
from flexsn import FlexSN, functional

HERE = pathlib.Path(__file__).parent


def run_python(code: str, *arguments: Any, timeout: float = 90.0, **environment: str) -> str:
    """What a new Python prints; a failure or a hang fails the test."""
    import flexsn

    paths = [str(HERE), str(pathlib.Path(flexsn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


# ---- the text is the neuron, in every process --------------------------------------------------------------

COMPILED = """
    import sys
    import torch
    from torch._dynamo.utils import counters
    from flexsn import FlexSN

    # The same places and shapes in both processes, other arithmetic, and another number of saved tensors.
    if sys.argv[1] == "first":
        def core(x, v):
            h = v * 0.5 + x
            return torch.tanh(h) * 2.0, h
    else:
        def core(x, v):
            h = v * 0.25 + x * x
            return torch.sigmoid(h) * torch.sin(x), h * torch.cos(x)

    def run():
        neuron = FlexSN(core, num_inputs=1, num_states=1, num_outputs=1)
        x = torch.linspace(-1.0, 2.0, 12).view(4, 3).requires_grad_()
        compiled = torch.compile(neuron, fullgraph=True)
        [found] = torch.autograd.grad(compiled(x).sum(), [x])
        neuron.reset()
        neuron.backend = "torch"
        [expected] = torch.autograd.grad(neuron(x).sum(), [x])
        torch.testing.assert_close(found, expected)

    run()
    print(counters["aot_autograd"]["autograd_cache_hit"])
    torch.compiler.reset()
    run()
    print(counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_the_compile_cache_on_disk_takes_no_neuron_for_another(tmp_path):
    cached = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
    # The second runs show that there is a cache to be fooled.
    for which in ("first", "second"):
        assert run_python(COMPILED, which, **cached) == "0\n1"


class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leak = nn.Parameter(torch.tensor([0.25, 0.5, 0.75]))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * torch.sigmoid(self.leak) + x
        return torch.tanh(h) * h, h


class Exported(nn.Module):
    """A parameter in a module, one in a closure, two neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.level = nn.Parameter(torch.tensor(0.5))
        self.first = FlexSN(Leaky(), num_states=1)
        self.second = FlexSN(with_params(torch.tensor(0.25), self.level), num_states=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.linear(x)))


def test_exported_programs_run_and_train_in_another_process(tmp_path):
    net, x, longer = Exported(), torch.randn(4, 2, 3), torch.randn(7, 5, 3)
    sizes = {"x": {0: torch.export.Dim("steps", min=2), 1: torch.export.Dim("batch", min=2)}}
    for strict in (False, True):
        for operator in ("training_final_state", "inference_final_state"):
            with torch.set_grad_enabled(operator == "training_final_state"):
                program = torch.export.export(net, (x,), strict=strict, dynamic_shapes=sizes)
            nodes = [str(node.target) for node in program.graph.nodes if "flexsn" in str(node.target)]
            assert nodes == [f"flexsn.{operator}.default"] * 2
            torch.export.save(program, tmp_path / f"{operator}_{strict}.pt2")
            functional.reset_net(net)
    net(x).sum().backward()
    expected = [net.first.core.leak.grad, net.linear.weight.grad]
    for given in (x, longer):
        functional.reset_net(net)
        expected.append(net(given).detach())
    torch.save((x, longer, *expected), tmp_path / "expected.pt")
    printed = run_python(
        """
        import pathlib
        import sys
        import torch
        import flexsn  # for its operators; no core of the first process is there

        folder = pathlib.Path(sys.argv[1])
        x, longer, leak, weight, short_result, long_result = torch.load(folder / "expected.pt")
        for file in sorted(folder.glob("*.pt2")):
            net = torch.export.load(file).module()
            with torch.no_grad():
                assert torch.equal(net(x), short_result)
                assert torch.equal(net(longer), long_result)
            if file.name.startswith("training"):
                assert torch.equal(net(x.clone().requires_grad_()), short_result)
                net(x).sum().backward()
                gradients = {key: value.grad for key, value in net.named_parameters()}
                assert torch.equal(gradients["first.core.leak"], leak)
                assert torch.equal(gradients["linear.weight"], weight)
                for parameter in net.parameters():
                    parameter.requires_grad_(False)
                assert torch.equal(net(x), short_result)
            print(file.stem)
        """,
        tmp_path,
    )
    assert len(printed.splitlines()) == 4


# ---- threads -----------------------------------------------------------------------------------------------


def bent(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = v * 0.5 + torch.sin(x)
    return h * torch.cos(x), h


def trained(core: Any, seed: int, steps: int = 30) -> list[Tensor]:
    """Weights after some steps of training a little network around a neuron."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(5, 5, generator=generator).requires_grad_()
    neuron = FlexSN(core, num_states=1)
    for _ in range(steps):
        x = torch.randn(6, 4, 5, generator=generator)
        neuron.reset()
        loss = (neuron(x @ weight) - 0.5).square().mean()
        [gradient] = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            weight -= 0.1 * gradient
    return [weight.detach(), *neuron.states]


def test_threads_that_train_get_what_they_get_alone():
    jobs = [(soft, 1), (bent, 2), (soft, 3), (lambda x, v: (torch.tanh(x + v), v * 0.5 + x), 4)]
    found: list[Any] = [None] * len(jobs)

    def work(place: int) -> None:
        try:
            found[place] = trained(*jobs[place])
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for (core, seed), results in zip(jobs, found):
        assert not isinstance(results, Exception), results
        assert all(torch.equal(a, b) for a, b in zip(results, trained(core, seed)))


def test_threads_may_share_one_core_from_its_first_call():
    def core(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = v * 0.625 + x
        return torch.sin(h), h

    found: list[Any] = []
    together = threading.Barrier(4)

    def work() -> None:
        together.wait(30)
        found.append(trained(core, 5, steps=3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert all(torch.equal(a, b) for results in found for a, b in zip(results, found[0]))


def test_backward_may_run_on_another_thread():
    x = torch.randn(4, 3, requires_grad=True)
    loss = FlexSN(soft, num_states=1)(x).sum()
    [expected] = torch.autograd.grad(loss, [x], retain_graph=True)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join(60)
    assert torch.equal(x.grad, expected)


# ---- processes ---------------------------------------------------------------------------------------------


class Encoded(Dataset):
    """Samples that go through a neuron where they are loaded."""

    def __init__(self) -> None:
        self.neuron = FlexSN(soft, num_states=1)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        self.neuron.reset()
        with torch.no_grad():
            return self.neuron(torch.full((4, 3), 0.5 * index))


@pytest.mark.parametrize("start, used_before, workers", [("fork", True, 2), ("spawn", False, 1)])
def test_workers_of_a_data_loader_run_neurons(start, used_before, workers):
    printed = run_python(
        """
        import sys
        import torch
        from torch.utils.data import DataLoader
        from test_processes import Encoded

        if __name__ == "__main__":
            data = Encoded()
            if sys.argv[2] == "True":
                torch.randn(64, 4096).exp().sum()
                data.neuron(torch.randn(8, 1 << 16, requires_grad=True)).sum().backward()
            loader = DataLoader(data, batch_size=2, num_workers=int(sys.argv[3]), multiprocessing_context=sys.argv[1])
            found = torch.cat(list(loader))
            expected = torch.stack([data[i] for i in range(len(data))])
            print(torch.equal(found, expected))
        """,
        start,
        used_before,
        workers,
    )
    assert printed == "True"


FORKED = """
    import hashlib
    import os
    import sys
    import torch
    from cores import soft, two_in_three_states
    from flexsn import FlexSN

    # In a child of a process that has used its threads, torch's own parallel functions hang (making a tensor,
    # adding two gradients); so it gets all it needs and calls nothing but neurons.
    torch.set_num_threads(2)
    x = torch.linspace(-1.0, 2.0, 8 << 15).view(8, -1).requires_grad_()
    ones = torch.ones_like(x)

    def digest(tensor):
        return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()[:8]

    def run():
        found = []
        for core, inputs, states in ((soft, [x], 1), (two_in_three_states, [x, ones], 3)):
            output = FlexSN(core, num_states=states).multi_step_forward(*inputs)[0]
            found.append(digest(output))
            try:
                found.append(digest(torch.autograd.grad(output, [x], ones)[0]))
            except RuntimeError as error:
                found.append(str(error).splitlines()[0])
        return found

    if sys.argv[1] == "after use":
        run()
    child = os.fork()
    if child == 0:
        print(*run(), sep="\\n", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(*run(), sep="\\n", flush=True)
"""


@pytest.mark.parametrize("when", ["after import", "after use"])
def test_a_fork_is_right_or_says_what_is_wrong(when):
    lines = run_python(FORKED, when, timeout=60.0).splitlines()
    child, parent = lines[:4], lines[4:]
    assert child[0::2] == parent[0::2]
    for ours, right in zip(child[1::2], parent[1::2]):
        # Where autograd has threads of its own, torch refuses to run it in a child, in these words.
        assert ours == right or "autograd's threading in combination with fork" in ours


# ---- threads of a kernel -----------------------------------------------------------------------------------

RUNNING_THREADS = """
    import os, sys, time, torch, flexsn

    def turns():
        # How often each thread of this process was given a processor.
        tasks = os.listdir("/proc/self/task")
        return {task: int(open(f"/proc/self/task/{task}/schedstat").read().split()[2]) for task in tasks}

    def others(count):
        torch.set_num_threads(count)
        x = torch.ones(4, 1 << 20)
        for _ in range(10):
            flexsn.scan(lambda x, v: (torch.tanh(x + v), v * 0.5 + x), [x], [x[0]])
            time.sleep(0.2)  # until threads that wait for more work are asleep
            before = turns()
            flexsn.scan(lambda x, v: (torch.tanh(x + v), v * 0.5 + x), [x], [x[0]])
            ran = [task for task, turn in turns().items() if turn != before.get(task)]
            found = len(set(ran) - {str(os.getpid())})
            if found:
                break
        return found

    print(others(1), others(2) > 0)
"""


@pytest.mark.skipif(
    not pathlib.Path("/proc/self/schedstat").is_file(), reason="this system does not count turns of threads"
)
def test_a_kernel_runs_on_the_threads_of_torch() -> None:
    assert run_python(RUNNING_THREADS) == "0 True"


# ---- memory of large results -------------------------------------------------------------------------------


def large(fill: float, requires_grad: bool = False) -> Tensor:
    return torch.full((8, 1 << 18), fill).requires_grad_(requires_grad)


def test_memory_of_a_large_result_serves_the_next_one_when_it_is_gone() -> None:
    neuron = FlexSN(soft, num_states=1, step_mode="m")

    def run(fill: float) -> Tensor:
        functional.reset_net(neuron)
        return neuron(large(fill))

    with torch.no_grad():
        first = run(0.1)
        view, kept = first[3:5], first.clone()
        second = run(0.9)
        assert second.data_ptr() != first.data_ptr()
        place = first.data_ptr()
        del first
        assert run(0.5).data_ptr() != place, "a view still lives there"
        assert torch.equal(view, kept[3:5])
        del view, second
        places = {run(0.3).data_ptr() for _ in range(10)}
        assert len(places) < 10
        assert torch.equal(run(0.1), kept)


def test_large_results_are_tensors_like_all_others() -> None:
    neuron = FlexSN(soft, num_states=1, step_mode="m")
    x = large(0.7, requires_grad=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        y = neuron(x)
    allocated = max(event.cpu_memory_usage for event in profile.key_averages())
    assert allocated >= y.nbytes, "the profiler of torch sees it"
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert gradient.shape == x.shape and bool(gradient.isfinite().all())
    y = y.detach()
    before = y.clone()
    y.untyped_storage().resize_(2 * y.nbytes)
    assert torch.equal(y, before)
    y.share_memory_()
    assert y.is_shared() and torch.equal(y, before)


def test_how_much_memory_is_kept_can_be_said() -> None:
    code = """
        import torch, flexsn
        from cores import soft
        neuron = flexsn.FlexSN(soft, num_states=1, step_mode="m")
        try:
            print(tuple(neuron(torch.ones(8, 1 << 18)).shape))
        except ValueError as error:
            print(error)
    """
    assert run_python(code, FLEXSN_KEPT_MEMORY="0") == "(8, 262144)"
    assert (
        run_python(code, FLEXSN_KEPT_MEMORY="lots")
        == "FLEXSN_KEPT_MEMORY must be a whole number of MiB, found 'lots'"
    )
