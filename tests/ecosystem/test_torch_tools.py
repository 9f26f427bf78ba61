"""Optimizers with common training tools: weight averaging, accumulation, loss scaling, clipping."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from semaopt.schedules import Follow, Stagewise
from tests.ecosystem.problem import OPTIONS, asa, assert_close, assert_same, batches, loss_of, networks, train, values

DATA = batches(8)


@pytest.fixture(params=OPTIONS, ids=["plain", "corrected", "clipped"])
def started(request):
    model = networks()
    return model, asa(model, **request.param)


def twin(model, optimizer):
    return copy.deepcopy((model, optimizer))


def test_weight_averaging(started):
    model, optimizer = started
    averaged, seen = AveragedModel(model), []
    schedule = Follow(SWALR(optimizer, swa_lr=0.005, anneal_epochs=4, anneal_strategy="linear"))
    for batch in DATA:
        seen.append(train(model, optimizer, [batch], schedule))
        averaged.update_parameters(model)
    mean = {name: torch.stack([x[name] for x in seen]).mean(0) for name in seen[0]}
    assert_close(values(averaged.module), mean)
    for group in optimizer.param_groups:
        assert float(group["lr"]) == pytest.approx(0.005)
        assert 1 - group["beta"] == pytest.approx(0.1 * 0.005 / 0.02)  # gamma decreased with lr


def test_weight_averaging_after_stagewise():
    """After Stagewise, SWALR continues from the current lr and Follow from the current gamma."""
    model = networks()
    optimizer = asa(model)
    schedule = Stagewise(optimizer, every=2, factor=0.5)
    train(model, optimizer, DATA[:4], schedule)
    follow = Follow(SWALR(optimizer, swa_lr=0.001, anneal_epochs=2))
    ratios = []
    for batch in DATA[4:]:
        train(model, optimizer, [batch], follow)
        ratios.append((1 - optimizer.param_groups[0]["beta"]) / optimizer.param_groups[0]["lr"])
    assert ratios == pytest.approx([0.1 / 0.02] * 4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_exponential_averaging(started):
    model, optimizer = started
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    expected = values(model)
    for k, batch in enumerate(DATA):
        now = train(model, optimizer, [batch])
        expected = {name: now[name] if k == 0 else 0.5 * (x + now[name]) for name, x in expected.items()}
        averaged.update_parameters(model)
    assert_close(values(averaged.module), expected)


def test_update_bn():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    averaged = AveragedModel(model)
    optimizer = asa({"adam+": model})
    for batch in DATA:
        train(model, optimizer, [batch])
        averaged.update_parameters(model)
    update_bn([a for a, _ in DATA], averaged)
    hidden = averaged.module[0](torch.cat([a for a, _ in DATA]))
    torch.testing.assert_close(averaged.module[1].running_mean, hidden.mean(0))


def test_accumulated_gradients_equal_one_batch(started):
    model, optimizer = started
    other, reference = twin(model, optimizer)
    for a, b in DATA:
        for k in range(4):
            (loss_of(model, a[k::4], b[k::4]) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_close(values(model), train(other, reference, DATA))


def test_loss_scaling(started):
    """GradScaler divides by its scale and skips a step if a gradient overflows."""
    model, optimizer = started
    other, reference = twin(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    for k, (a, b) in enumerate(DATA):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, a, b)).backward()
        if k == 4:
            model["adam"][0].weight.grad[0, 0] = math.inf
        before = values(model)
        scaler.step(optimizer)
        scaler.update()
        if k == 4:
            assert_same(values(model), before)
        else:
            train(other, reference, [(a, b)])
    assert scaler.get_scale() == 2.0**11  # doubled, halved, doubled
    assert_same(values(model), values(other))  # powers of two are exact


def test_clipped_gradients(started):
    model, optimizer = started
    other, reference = twin(model, optimizer)
    for a, b in DATA:
        for m in (model, other):
            m.zero_grad()
            loss_of(m, a, b).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        assert norm > 0.1
        for x in other.parameters():
            x.grad.mul_(0.1 / (norm + 1e-6))
        optimizer.step()
        reference.step()
    assert_close(values(model), values(other))
