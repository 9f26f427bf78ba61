"""Train handwritten digits on two processes, with DDP or FSDP2, in about 15 seconds.

    torchrun --nproc-per-node 2 examples/ddp.py
    torchrun --nproc-per-node 2 examples/ddp.py --shard

Each process gets its own part of every batch. The optimizer needs no change.
Needs scikit-learn (pip install 'semaopt[experiments]').
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import semaopt


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard", action="store_true", help="use FSDP2 (fully_shard) instead of DDP")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same model and batches on all processes

    digits = load_digits()
    a, b = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    if options.shard:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model, mesh=dist.init_device_mesh("cpu", (world,)))
    else:
        model = DistributedDataParallel(model)
    optimizer = semaopt.ASA(model.parameters(), lr=3e-3, beta=0.9)  # construct it after sharding
    schedule = semaopt.schedules.Stagewise(optimizer, every=100, factor=0.2)
    for epoch in range(6):
        for batch in torch.randperm(1500).split(32):
            mine = batch[rank::world]
            optimizer.zero_grad()
            cross_entropy(model(a[mine]), b[mine]).backward()  # averages the gradients over the processes
            optimizer.step()
            schedule.step()
        if rank == 0:
            print(f"epoch {epoch + 1} of 6", flush=True)
    accuracy = (model(a[1500:]).argmax(1) == b[1500:]).float().mean().item()
    print(f"process {rank} of {world}: test accuracy {accuracy:.4f}\n", end="", flush=True)  # one write per line
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a gloo thread may outlive the group and abort a normal exit


if __name__ == "__main__":
    main()
