"""Equality of two FSDP2 processes with half a batch each and one process with the whole batch; exact resume."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import semaopt
from semaopt.estimator import COUNTERS
from semaopt.schedules import Follow, Stagewise
from tests.ecosystem.problem import OPTIONS, asa, assert_close, assert_same, batches, networks, train, values
from tests.ecosystem.processes import half, run_on_two


def sharded(seed=0):
    return fully_shard(networks(seed))


def compare_with_one_process(rank, folder):
    data = batches(4)
    for options in OPTIONS:
        results = []
        for model, mine in ((networks(), data), (sharded(), half(rank, data))):
            optimizer = asa(model, **options)
            iterates = semaopt.Iterates(optimizer, keep=("average",), average="polynomial", power=3)
            last = train(model, optimizer, mine, Stagewise(optimizer, every=2, factor=0.5))
            with iterates.use("average"):
                average = values(model)
            results.append((last, average))
        for alone, together in zip(*results, strict=True):
            assert all(isinstance(x, DTensor) for x in together.values())
            assert_close({name: x.full_tensor() for name, x in together.items()}, alone)
        # torch.distributed.checkpoint requires all tensors with a dimension on one device; the counters are on the CPU.
        states = optimizer.state.values()
        assert all(state[key].dim() == 0 for state in states for key in state.keys() & COUNTERS)


def test_two_processes_equal_one(tmp_path):
    assert run_on_two(compare_with_one_process, tmp_path)


def resume_the_average(rank, folder):
    data = half(rank, batches(6))
    options = {"keep": ("average",), "average": "polynomial", "power": 3, "every": 2}
    model = sharded()
    optimizer = asa(model)
    iterates = semaopt.Iterates(optimizer, **options)
    train(model, optimizer, data[:3])
    iterates.remove()
    resumed = semaopt.Iterates(optimizer, **options)
    resumed.load_state_dict(iterates.state_dict())
    train(model, optimizer, data[3:])

    whole = sharded()
    optimizer = asa(whole)
    uninterrupted = semaopt.Iterates(optimizer, **options)
    train(whole, optimizer, data)
    pairs = zip(resumed.average(), uninterrupted.average(), strict=True)
    assert all(torch.equal(left.to_local(), right.to_local()) for left, right in pairs)
    assert resumed.t == 6


def test_the_sharded_average_resumes_to_the_bit(tmp_path):
    assert run_on_two(resume_the_average, tmp_path)


def parts(seed, **options):
    """Return a model with its optimizer and schedule."""
    model = sharded(seed)
    optimizer = asa(model, **options)
    return model, optimizer, Follow(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8))


def through_shards(model, optimizer, schedule, path, options):
    """Let each process write its shards."""
    state = {
        "model": get_model_state_dict(model, options=options),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
        "schedule": schedule.state_dict(),
    }
    dcp.save(state, checkpoint_id=path)

    def load(model, optimizer, schedule):
        state = {
            "model": get_model_state_dict(model, options=options),
            "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
            "schedule": schedule.state_dict(),
        }
        dcp.load(state, checkpoint_id=path)
        set_model_state_dict(model, state["model"], options=options)
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)
        schedule.load_state_dict(state["schedule"])

    return load


def through_one_file(model, optimizer, schedule, path, options):
    """Let rank 0 write the full state with torch.save, so that an unsharded ASA could load it."""
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = {
        "model": get_model_state_dict(model, options=full),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=full),
        "schedule": schedule.state_dict(),
    }
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()

    def load(model, optimizer, schedule):
        from_one = options.broadcast_from_rank0 and dist.get_rank() != 0
        state = torch.load(path, weights_only=True)
        set_model_state_dict(model, {} if from_one else state["model"], options=options)
        set_optimizer_state_dict(model, optimizer, {} if from_one else state["optimizer"], options=options)
        schedule.load_state_dict(state["schedule"])

    return load


WAYS = {
    "shards": (through_shards, StateDictOptions()),
    "flat shards": (through_shards, StateDictOptions(flatten_optimizer_state_dict=True)),
    "one file, read by each": (through_one_file, StateDictOptions(full_state_dict=True)),
    "one file, read by one": (through_one_file, StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)),
}


def save_and_resume(rank, folder):
    data, hyper = half(rank, batches(4)), {**OPTIONS[1], **OPTIONS[2]}
    for way, (save, options) in WAYS.items():
        model, optimizer, schedule = parts(0, **hyper)
        train(model, optimizer, data[:2], schedule)
        load = save(model, optimizer, schedule, folder / way, options)
        last = train(model, optimizer, data[2:], schedule)
        model, optimizer, schedule = parts(1, **hyper)
        load(model, optimizer, schedule)
        again = train(model, optimizer, data[2:], schedule)
        assert_same(*({name: x.to_local() for name, x in result.items()} for result in (again, last)))


def test_resume_is_exact(tmp_path):
    assert run_on_two(save_and_resume, tmp_path)
