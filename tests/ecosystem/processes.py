"""Run tests in two local gloo processes."""

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
    """Run ``work(rank, folder)`` in two processes of one group; raise the exception of either process.

    Return True if both finished the work: a process may also exit early without an error.
    """
    mp.spawn(_enter, (work, folder), WORLD)
    return all(_end(folder, rank).exists() for rank in range(WORLD))


def _end(folder: Path, rank: int) -> Path:
    return folder / f"rank {rank} finished"


def _enter(rank: int, work: Callable[[int, Path], None], folder: Path) -> None:
    warnings.simplefilter("error")  # as in the parent process under pytest
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)  # does not need a free port
    wait = datetime.timedelta(minutes=5)  # the other process may start late on a busy machine
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=wait)
    work(rank, folder)
    _end(folder, rank).touch()
    dist.barrier()
    dist.destroy_process_group()
    # Exit without interpreter shutdown, during which a gloo thread that is still running sometimes aborts.
    os._exit(0)


def half(rank: int, data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the examples of this rank from every batch."""
    return [(a[rank::WORLD], b[rank::WORLD]) for a, b in data]
