"""ASA and its schedules under Accelerate, without adapters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

import semaopt
from semaopt.schedules import Follow, InverseSqrt, Stagewise
from tests.ecosystem.problem import OPTIONS, asa, assert_close, assert_same, batches, loss_of, networks, train, values

DATA = batches(8)
LOADER = DataLoader(TensorDataset(*map(torch.cat, zip(*DATA, strict=True))), batch_size=8)
SCHEDULES = {
    "stagewise": lambda optimizer: Stagewise(optimizer, every=2, factor=0.5),
    "inverse root": InverseSqrt,
    "cosine": lambda optimizer: Follow(CosineAnnealingLR(optimizer, 20)),
    "one cycle": lambda optimizer: Follow(OneCycleLR(optimizer, 0.02, total_steps=16, cycle_momentum=False)),
    "plateau": lambda optimizer: Follow(ReduceLROnPlateau(optimizer, patience=0, factor=0.9)),
}


@pytest.fixture(autouse=True)
def _reset_accelerate():
    """Reset Accelerate's global state, which keeps the first configuration."""
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def prepared(configure, seed=0, **options):
    accelerator = Accelerator(cpu=True, **options)
    model = networks(seed)
    optimizer = asa(model, **{**OPTIONS[1], **OPTIONS[2]})
    return accelerator, *accelerator.prepare(model, optimizer, LOADER, configure(optimizer))


def epoch(accelerator, model, optimizer, loader, schedule):
    """Train one epoch and return (lr, gamma) after each batch."""
    rates = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, *batch)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step(*[loss.item()] * isinstance(schedule.scheduler, ReduceLROnPlateau))
            optimizer.zero_grad()
        rates.append((float(optimizer.param_groups[0]["lr"]), 1 - float(optimizer.param_groups[0]["beta"])))
    return rates


@pytest.mark.parametrize("configure", SCHEDULES.values(), ids=SCHEDULES)
def test_resume_is_exact(configure, tmp_path):
    accelerator, *parts = prepared(configure)
    epoch(accelerator, *parts)
    accelerator.save_state(tmp_path)
    rates = epoch(accelerator, *parts)
    assert len(set(rates)) > 1
    accelerator, *again = prepared(configure, seed=1)
    accelerator.load_state(tmp_path)
    assert epoch(accelerator, *again) == rates
    assert_same(values(again[0]), values(parts[0]))


def test_equals_the_plain_loop():
    model = networks()
    optimizer = asa(model, **{**OPTIONS[1], **OPTIONS[2]})
    schedule = Stagewise(optimizer, every=2, factor=0.5)
    accelerator, *parts = prepared(SCHEDULES["stagewise"])
    epoch(accelerator, *parts)
    assert_same(values(parts[0]), train(model, optimizer, LOADER, schedule))


def test_schedule_of_a_prepared_optimizer():
    accelerator = Accelerator(cpu=True)
    model = networks()
    model, optimizer, loader = accelerator.prepare(model, asa(model), LOADER)
    schedule = accelerator.prepare(Stagewise(optimizer, every=4, factor=0.5))
    rates = epoch(accelerator, model, optimizer, loader, schedule)
    assert rates[3] == pytest.approx((0.01, 0.05))
    assert rates[7] == pytest.approx((0.005, 0.025))


def test_accumulated_batches_equal_one_batch():
    """With two micro-batches per step, the schedule advances per step, and the step equals that of the full batch."""
    joined = [tuple(torch.cat(pair) for pair in zip(*DATA[k : k + 2], strict=True)) for k in range(0, 8, 2)]
    model = networks()
    optimizer = asa(model, **{**OPTIONS[1], **OPTIONS[2]})
    schedule = Stagewise(optimizer, every=2, factor=0.5)
    accelerator, *parts = prepared(SCHEDULES["stagewise"], gradient_accumulation_steps=2)
    rates = epoch(accelerator, *parts)
    assert_close(values(parts[0]), train(model, optimizer, joined, schedule))
    assert [lr for lr, _ in rates[1::2]] == pytest.approx([0.02, 0.01, 0.01, 0.005])


def test_one_cycle_may_end_before_the_data():
    """Accelerate does not step OneCycleLR past its end, even when Follow wraps it."""

    def configure(optimizer):
        return Follow(OneCycleLR(optimizer, 0.02, total_steps=6, cycle_momentum=False))

    accelerator, *parts = prepared(configure)
    rates = epoch(accelerator, *parts)
    assert len(rates) == 8
    assert rates[5] == rates[7]


@pytest.mark.slow
def test_two_launched_processes_equal_one(tmp_path):
    """``accelerate launch`` with PDAda on both sides of AUCMinMax and with ASA, each with a schedule."""
    script = Path(__file__).with_name("launched.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(semaopt.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    found = []
    for processes in (1, 2):
        path = tmp_path / f"{processes}.pt"
        # Without --multi_gpu several processes on the CPU need mpirun; the script itself chooses the CPU.
        kind = ["--multi_gpu"] if processes > 1 else ["--cpu"]
        options = [*kind, "--num_machines=1", f"--num_processes={processes}", "--mixed_precision=no"]
        command = [sys.executable, "-m", "accelerate.commands.launch", *options, "--dynamo_backend=no", script, path]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(torch.load(path))
    one, two = found
    assert (one.pop("processes"), two.pop("processes")) == (1, 2)
    torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-11)
    assert abs(one["PDAda loss.y"].item()) > 1e-3
