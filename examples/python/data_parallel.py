"""Data-parallel training: each process has its part of every batch, and all have the same weights after it.

usage: torchrun --nproc-per-node 2 data_parallel.py [--steps N] [--length T] [--batch B] [--hidden H]
       python data_parallel.py ...    the same in one process
"""

from __future__ import annotations

import argparse
import os

import torch

# Imported while a process group exists, as DistributedDataParallel would, it keeps that group to the
# end of the process, and a thread of gloo that still holds a tensor then aborts it. So it comes first.
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flexsn import functional, neurons

FEATURES, CLASSES = 32, 4


def network(hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, hidden), neurons.ParametricLIFNode(step_mode="m"),
        nn.Linear(hidden, CLASSES), neurons.ParametricLIFNode(step_mode="m"),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in {"steps": 60, "length": 16, "batch": 64, "hidden": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=number, help=f"by default {number}")
    given = parser.parse_args()
    # torchrun sets these; "nccl" in place of "gloo" is for a GPU per process.
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if min(vars(given).values()) < 1 or given.batch % processes:
        parser.error(f"sizes and steps must be at least 1, and the batch a multiple of {processes} processes")
    if processes > 1:
        dist.init_process_group("gloo")

    torch.manual_seed(1)  # the same start and the same batches everywhere
    net = network(given.hidden)
    trained = DistributedDataParallel(net) if processes > 1 else net
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    patterns = 2.0 * torch.rand(CLASSES, FEATURES)
    share = slice(rank * given.batch // processes, (rank + 1) * given.batch // processes)
    losses = []
    for step in range(given.steps):
        labels = torch.randint(CLASSES, (given.batch,))
        x = patterns[labels] + torch.randn(given.length, given.batch, FEATURES)
        functional.reset_net(net)
        rates = trained(x[:, share]).mean(0)
        loss = nn.functional.cross_entropy(10.0 * rates, labels[share])
        optimizer.zero_grad()
        loss.backward()  # gradients of all processes are averaged here
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3}  loss {losses[-1]:.4f}")

    weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    if processes > 1:
        everyones = [torch.empty_like(weights) for _ in range(processes)]
        dist.all_gather(everyones, weights)
        del trained  # it holds the group, whose threads end with the last that does
        dist.destroy_process_group()
    else:
        everyones = [weights]
    if rank == 0:
        alike = all(torch.equal(weights, each) for each in everyones)
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, processes: {processes}")
        print(f"{weights.numel()} weights, {'the same bits' if alike else 'DIFFERENT'} in every process")


if __name__ == "__main__":
    main()
