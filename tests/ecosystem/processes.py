"""Two gloo processes on this machine."""

from __future__ import annotations

import datetime
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2


def run_on_two(work: Callable[[int, Path], None], folder: Path) -> bool:
    """``work(rank, folder)`` in two processes that know each other; what one of them raises is raised here.

    True if both came to the end of it: a process may also leave quietly.
    """
    mp.spawn(_enter, (work, folder), WORLD)
    return all(_end(folder, rank).exists() for rank in range(WORLD))


def _end(folder: Path, rank: int) -> Path:
    return folder / f"rank {rank} came to its end"


def _enter(rank: int, work: Callable[[int, Path], None], folder: Path) -> None:
    warnings.simplefilter("error")  # as pytest has it in the process that started this one
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)  # needs no free port
    wait = datetime.timedelta(minutes=5)  # for the other process, on a busy machine
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=wait)
    work(rank, folder)
    _end(folder, rank).touch()
    dist.barrier()
    dist.destroy_process_group()
    # Not by returning: now and then a thread of gloo is still about when the interpreter takes itself down, and aborts.
    os._exit(0)


def half(rank: int, data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This process's examples of every batch."""
    return [(a[rank::WORLD], b[rank::WORLD]) for a, b in data]
