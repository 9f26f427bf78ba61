"""Equality of two ranks with half of each batch and one process with the whole batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import semaopt
from semaopt.hypergradient import CG, Exact, Neumann, NeumannSeries

pytestmark = pytest.mark.slow  # starts two processes that import torch

METHODS = {
    "SMB[tracked, adam]": lambda x, y, **o: semaopt.SMB(x, y, lr=0.05, lower_lr=0.3, scaling="adam", **o),
    "SMB[neumann]": lambda x, y, **o: semaopt.SMB(x, y, lr=0.5, lower_lr=0.3, inverse=Neumann(5, seed=2), **o),
    "SMB[series]": lambda x, y, **o: semaopt.SMB(x, y, lr=0.5, lower_lr=0.3, inverse=NeumannSeries(4, 2.0), **o),
    "SMB[cg]": lambda x, y, **o: semaopt.SMB(x, y, lr=0.5, lower_lr=0.3, inverse=CG(3), lower_weight_decay=0.1, **o),
    "SMB[exact]": lambda x, y, **o: semaopt.SMB(x, y, lr=0.5, lower_lr=0.3, inverse=Exact(), **o),
    "SBMA": lambda x, y, **o: semaopt.SBMA(x, y, lr=0.5, lower_lr=0.3, lam=0.05, c_fy=1.0, c_gxy=1.0, **o),
    "StocBiO": lambda x, y, **o: semaopt.baselines.StocBiO(x, y, lr=0.5, lower_lr=0.3, lower_steps=2, **o),
}


class WeightedRegression:
    """Regression with learned weights: closure call i uses batch i, and each rank sees every other example."""

    def __init__(self, rank=None):
        generator = torch.Generator().manual_seed(0)
        self.a = torch.randn(200, 8, 3, generator=generator, dtype=torch.float64)
        self.b = torch.randn(200, 8, generator=generator, dtype=torch.float64)
        self.x = nn.Parameter(torch.linspace(-1, 1, 8, dtype=torch.float64))
        self.y = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.z = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.part = slice(None) if rank is None else slice(rank, None, 2)
        self.calls = 0

    def batch(self):
        self.calls += 1
        return self.a[self.calls, self.part], self.b[self.calls, self.part]

    def outer(self):
        a, b = self.batch()
        return torch.nn.functional.softplus(a @ self.y + self.z - b).mean() + 0.01 * self.x.square().sum()

    def inner(self):
        a, b = self.batch()
        error = a @ self.y + self.z - b
        return (self.x.sigmoid()[self.part] * error.square()).mean() + 0.1 * (self.y.square().sum() + self.z.square())

    def composed(self):
        a, b = self.batch()
        return torch.stack([(a @ self.y - b).square().mean(), (a @ self.y).mean()])


def run(bed, name, **options):
    optimizer = METHODS[name]([bed.x], [bed.y, bed.z], **options)
    for _ in range(5):
        loss = optimizer.step(bed.outer, bed.inner)
    return [bed.x.detach(), bed.y.detach(), bed.z.detach(), loss]


def run_scma(bed, **options):
    optimizer = semaopt.SCMA([bed.y], lr=0.1, inner_beta=0.5, **options)
    for _ in range(5):
        loss = optimizer.step(bed.composed, lambda z: z[0].sqrt() + z[1].square())
    return [bed.y.detach(), loss]


def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    group = dist.group.WORLD
    found = {name: run(WeightedRegression(rank), name, process_group=group) for name in METHODS}
    found["SCMA"] = run_scma(WeightedRegression(rank), process_group=group)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", [*METHODS, "SCMA"])
def test_two_ranks_equal_one_process_on_the_whole_batch(ranks, name):
    alone = run_scma(WeightedRegression()) if name == "SCMA" else run(WeightedRegression(), name)
    for found in ranks:
        torch.testing.assert_close(found[name], alone, rtol=1e-9, atol=1e-11)
    assert all(torch.equal(a, b) for a, b in zip(ranks[0][name], ranks[1][name], strict=True)), "ranks drift apart"


@pytest.mark.parametrize("name", ["SMB[tracked, adam]", "SMB[cg]"])
def test_averaging_the_hypergradients_of_the_ranks_gives_another_result(name):
    """Averaging after the product gives a different value, so the test above can fail."""
    joint = WeightedRegression()
    run(joint, name)
    halves = [WeightedRegression(rank) for rank in range(2)]
    for bed in halves:
        run(bed, name)
    mean = sum(bed.x.detach() for bed in halves) / 2
    assert (mean - joint.x.detach()).abs().max() > 1e-4
