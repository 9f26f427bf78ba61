"""Processes that train one model together, started by ``torchrun``; a single process is a group of one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Group:
    """A process and the others of its run; only the first one reads and writes files."""

    def __init__(self) -> None:
        initialized = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if initialized else 0
        self.world = dist.get_world_size() if initialized else 1

    @property
    def first(self) -> bool:
        """Whether this process reads and writes files."""
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """Return the value of the first process, in all processes."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module with gradients averaged over the processes."""
        return module if self.world == 1 else DistributedDataParallel(module)

    def part(self, index: Tensor) -> tuple[Tensor, float]:
        """Return this process's rows of a batch, and the weight that their mean gets in the mean over all processes.

        The weighted means add up to the mean of the whole batch, even if it cannot be divided evenly. A process without
        rows takes part with weight 0.
        """
        if self.world == 1:
            return index, 1.0
        mine = index[self.rank :: self.world]
        weight = len(mine) * self.world / len(index)
        return (mine, weight) if len(mine) else (index[:1], 0.0)

    def gather(self, mine: Tensor, count: int) -> Tensor:
        """Return all rows in order, given rows ``rank::world`` in each process."""
        if self.world == 1:
            return mine
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine.cpu())
        whole = torch.empty((count, *mine.shape[1:]), dtype=mine.dtype)
        for rank, rows in enumerate(found):
            whole[rank :: self.world] = rows
        return whole.to(mine.device)

    def agree(self, module: nn.Module) -> None:
        """Copy the buffers of the first process to all others: running means are not averaged."""
        if self.world > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, 0)


def leading() -> bool:
    """Whether this process is alone or torchrun's first one, even before the group is initialized."""
    return os.environ.get("RANK", "0") == "0" or "TORCHELASTIC_RUN_ID" not in os.environ


def current() -> Group:
    """Return the group of this process."""
    return Group()


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """Initialize the process group of ``torchrun`` within the block."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Group()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own rendezvous
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Group()
    finally:
        dist.destroy_process_group()
