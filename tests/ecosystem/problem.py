"""Small regression problem for the trainer tests, and its single-process reference."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import semaopt

OPTIONS = (
    {},
    {"bias_correction": True, "weight_decay": 0.1},
    {"clip_scaling": (0.5, 20.0), "weight_decay": 0.1, "decoupled_weight_decay": True, "lr": torch.tensor([0.02])},
)


class Networks(nn.ModuleDict):
    """One small network per scaling, so that one run covers all; each has its own output column."""

    def forward(self, a: Tensor) -> Tensor:
        return torch.cat([network(a) for network in self.values()], dim=1)


def networks(seed: int = 0) -> Networks:
    """Return the networks in float64, for tight tolerances. With one output each, one of two shards is empty."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = {name: (nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)) for name in semaopt.scalings.BY_NAME}
        return Networks({name: nn.Sequential(*three) for name, three in layers.items()}).double()


def asa(model: Networks, **options) -> semaopt.ASA:
    """Return ASA with one group per network, whose name is the scaling; the norm of Adam+ covers one network."""
    options = copy.deepcopy({"lr": 0.02, **options})  # a schedule fills a tensor lr in place
    groups = [{"params": network.parameters(), "scaling": name} for name, network in model.items()]
    return semaopt.ASA(groups, **options)


def batches(count: int, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    draws = torch.randn(count, size, 6, generator=generator, dtype=torch.float64)
    return [(draw[:, :5], draw[:, 5:]) for draw in draws]


def loss_of(model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    answers = model(a)
    return mse_loss(answers, b.expand_as(answers))


def train(model, optimizer, data, schedule=None) -> dict[str, Tensor]:
    for a, b in data:
        optimizer.zero_grad()
        loss_of(model, a, b).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return values(model)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("module."): x.detach().clone() for name, x in model.named_parameters()}


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Assert that the values are bitwise equal."""
    assert left.keys() == right.keys()
    unequal = [name for name in left if not torch.equal(left[name], right[name])]
    assert not unequal


def assert_close(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Assert that the values are equal up to rounding."""
    torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-13)
