"""Two DistributedDataParallel processes with half a batch each equal one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import semaopt
from semaopt.schedules import Stagewise
from tests.ecosystem.problem import OPTIONS, asa, assert_close, assert_same, batches, networks, train, values
from tests.ecosystem.processes import half, run_on_two


def compare_with_one_process(rank, folder):
    data = batches(4)
    for options in OPTIONS:
        results = []
        for wrap, mine in ((lambda model: model, data), (DistributedDataParallel, half(rank, data))):
            model = networks()
            optimizer = asa(model, **options)
            iterates = semaopt.Iterates(optimizer, keep=("average",), average="polynomial", power=3)
            last = train(wrap(model), optimizer, mine, Stagewise(optimizer, every=2, factor=0.5))
            with iterates.use("average"):
                average = values(model)
            results.append((last, average))
        for alone, together in zip(*results, strict=True):
            assert_close(together, alone)
            first = {name: x.clone() for name, x in together.items()}
            for x in first.values():
                dist.broadcast(x, src=0)
            assert_same(together, first)


def test_two_processes_equal_one(tmp_path):
    assert run_on_two(compare_with_one_process, tmp_path)


def refuse(rank, folder):
    assert rank == 0, "the second process does not agree"


def test_failure_in_a_process_is_raised(tmp_path):
    """A failed assertion in one process fails the test."""
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="the second process does not agree"):
        run_on_two(refuse, tmp_path)
