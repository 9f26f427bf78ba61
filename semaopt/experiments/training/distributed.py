"""Processes that train one model together, as ``torchrun`` starts them; a process alone is a group of one."""

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
    """A process and the others that do the same run; only the first one reads and writes files."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.world = dist.get_world_size() if together else 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """The first process's value, in all of them."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with its gradients averaged over the processes."""
        return module if self.world == 1 else DistributedDataParallel(module)

    def part(self, index: Tensor) -> tuple[Tensor, float]:
        """The rows of a batch for this process, and the weight of their mean in the mean over the processes.

        The weighted means add up to the mean of the whole batch, also where it cannot be shared out evenly; a process
        that has no row takes part with weight 0.
        """
        if self.world == 1:
            return index, 1.0
        mine = index[self.rank :: self.world]
        weight = len(mine) * self.world / len(index)
        return (mine, weight) if len(mine) else (index[:1], 0.0)

    def gather(self, mine: Tensor, count: int) -> Tensor:
        """Rows ``rank::world`` of each process, put together again."""
        if self.world == 1:
            return mine
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine.cpu())
        whole = torch.empty((count, *mine.shape[1:]), dtype=mine.dtype)
        for rank, rows in enumerate(found):
            whole[rank :: self.world] = rows
        return whole.to(mine.device)

    def agree(self, module: nn.Module) -> None:
        """Give all the first process's buffers: running means are not averaged."""
        if self.world > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, 0)


def leading() -> bool:
    """Whether this process is alone, or the first of those that torchrun started, also before they know each other."""
    return os.environ.get("RANK", "0") == "0" or "TORCHELASTIC_RUN_ID" not in os.environ


def current() -> Group:
    """The group that this process is in."""
    return Group()


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """Within the block the processes that ``torchrun`` started know each other."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Group()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about how the processes met
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Group()
    finally:
        dist.destroy_process_group()
