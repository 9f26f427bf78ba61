"""Agreement of all ranks about nonfinite values, even if only one rank holds the bad shard."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import semaopt
from tests.ecosystem.problem import asa, assert_close, batches, loss_of, networks, train, values
from tests.ecosystem.processes import half, run_on_two


def whole(x):
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def train_wrapped(wrap, rank, policy):
    """Make step 1 of 3 bad on rank 1 only; the other steps equal those of one process without that step."""
    data = batches(3)
    model, alone = networks(), networks()
    inside = wrap(model)
    optimizer = asa(model, on_nonfinite=policy)
    text = ""
    for k, (a, b) in enumerate(half(rank, data)):
        inside.zero_grad()
        bad = wrap is DistributedDataParallel and k == 1 and rank == 1  # before the gradients are averaged
        loss_of(inside, a * math.nan if bad else a, b).backward()
        if wrap is fully_shard and k == 1 and rank == 1:
            next(p for p in model.parameters() if p.grad.to_local().numel()).grad.to_local().view(-1)[0] = math.nan
        try:
            optimizer.step()
        except RuntimeError as error:
            text = str(error)
    train(alone, asa(alone), [data[0], data[2]])
    assert_close({name: whole(x) for name, x in values(model).items()}, values(alone))
    assert optimizer.skipped_steps == (policy == "skip")
    assert bool(text) == (policy == "error")
    if policy == "error" and wrap is fully_shard:
        assert ("on another rank" in text) == (rank == 0), text


def run_all(rank, folder):
    for wrap in (DistributedDataParallel, fully_shard):
        for policy in ("skip", "error"):
            train_wrapped(wrap, rank, policy)
    blocks(rank)


def blocks(rank):
    """Each rank keeps z for its own blocks, so only one rank sees the bad block before they communicate."""
    x = torch.nn.Parameter(torch.ones(2))
    optimizer = semaopt.SCMA([x], blocks=2, on_nonfinite="skip", process_group=dist.group.WORLD)
    bad = 0.0 * torch.tensor([math.nan if rank else 1.0])

    def inner():
        return torch.cat([x, bad]).unsqueeze(0)

    optimizer.step(inner, lambda z: z[:, :2].square().sum(), index=[0])
    assert optimizer.skipped_steps == 1
    assert optimizer.z is None


def test_ranks_agree(tmp_path):
    assert run_on_two(run_all, tmp_path)
