"""Objects placed by hand stay where they are under another default device; nothing is moved or drawn elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import semaopt
from semaopt import baselines, hypergradient, losses, projections
from semaopt.kernels.triton_launch import chunks_of


@pytest.fixture(autouse=True)
def _meta():
    """Any tensor that is created without a device has no values, so using it is an error."""
    with torch.device("meta"):
        yield


def on_cpu(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), device="cpu")


def parameter(n):
    return nn.Parameter(on_cpu(n))


MINMAX = {
    semaopt.PDAda: {},
    semaopt.PDSM: {"lr": 0.01},
    baselines.SGDA: {},
    baselines.SGDMax: {"max_ascents": 3},
    baselines.EpochSGDA: {"stage_length": 2},
    baselines.PESSGDA: {"stage_length": 2},
    baselines.PESAdaGrad: {"stage_length": 2},
    baselines.AccMDA: {},
}


@pytest.mark.parametrize("kind", MINMAX, ids=lambda kind: kind.__name__)
def test_minmax_methods(kind):
    x, y = parameter(3), parameter(2)
    optimizer = kind([x], [y], project=projections.Simplex(), **MINMAX[kind])

    def closure():
        optimizer.zero_grad()
        loss = x.square().sum() * y.sum() - y.square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        optimizer.load_state_dict(optimizer.state_dict())
    assert x.isfinite().all()


INVERSES = {type(inverse).__name__: inverse for inverse in (
    hypergradient.Neumann(3), hypergradient.NeumannSeries(3), hypergradient.TrackedSystem(), hypergradient.CG(2),
    hypergradient.Exact(), hypergradient.FirstOrder(),
)}  # fmt: skip
BILEVEL = {
    **{f"SMB {name}": (semaopt.SMB, {"inverse": inverse, "scaling": "adam"}) for name, inverse in INVERSES.items()},
    "SBMA": (semaopt.SBMA, {"lam": 0.5, "c_fy": 1.0, "c_gxy": 1.0}),
    **{name: (getattr(baselines, name), {}) for name in ("BSA", "TTSA", "StocBiO", "SOBA", "AmIGO", "F2SA", "BOME")},
}


@pytest.mark.parametrize("name", BILEVEL)
def test_bilevel_methods(name):
    kind, options = BILEVEL[name]
    x, y = parameter(3), parameter(2)
    optimizer = kind([x], [y], project=projections.Box(-9.0, 9.0), **options)
    for _ in range(3):
        optimizer.step(
            lambda: (y - 1).square().sum() + x.square().sum(),
            lambda: (y - x[:2]).square().sum() + y.square().sum(),
        )
        optimizer.load_state_dict(optimizer.state_dict())
    assert x.isfinite().all()


@pytest.mark.parametrize("index", [[0, 3], torch.tensor([0, 3], device="cpu")], ids=["list", "tensor"])
def test_blocks_of_scma(index):
    x = parameter(2)
    optimizer = semaopt.SCMA([x], blocks=4)
    optimizer.step(lambda: x * on_cpu(2, 2), lambda z: z.square().sum(), index)
    assert optimizer.z.device.type == "cpu"


def test_conversions_of_torchs_optimizers():
    x = parameter(3)
    optimizer = torch.optim.AdamW([x], lr=0.1)
    for convert in (semaopt.from_torch, semaopt.to_torch, semaopt.from_torch):
        x.grad = on_cpu(3)
        optimizer.step()
        optimizer = convert(optimizer)
    assert x.isfinite().all()


@pytest.mark.parametrize("make", [torch.Tensor.tolist, lambda labels: labels], ids=["list", "tensor"])
def test_prior_of_labels(make):
    labels = torch.tensor([1.0, 0.0, 0.0, 0.0], device="cpu")
    auc = losses.AUCMinMax.from_labels(make(labels), device="cpu")
    assert auc.prior.item() == 0.25
    assert auc.projection is None
    assert losses.AUCMinMax(0.25, surrogate="squared_hinge").projection == projections.Box(-1.0, float("inf"))


def test_prior_of_average_precision():
    loss = losses.AveragePrecision(4, prior=0.25, device="cpu")
    scores, labels = on_cpu(4).requires_grad_(), torch.tensor([1, 0, 0, 1], device="cpu")
    loss(scores, labels, torch.arange(4, device="cpu")).backward()
    assert scores.grad.isfinite().all()


def test_projections():
    assert projections.Box(0.0, torch.ones(3, device="cpu"))(on_cpu(3) * 9).max() == 1
    assert projections.Ball(0.5)(on_cpu(3)).norm() <= 0.5 + 1e-6


def test_tables_of_a_step_on_the_gpu():
    """They are copied from pinned memory, which only the CPU has."""
    assert chunks_of([3, 0, 1], 2).tolist() == [[0, 0], [0, 1], [2, 0]]


def test_classifier():
    pytest.importorskip("sklearn", reason="scikit-learn is an extra")
    numpy = pytest.importorskip("numpy")
    from semaopt.integrations.sklearn import AUCClassifier

    X = numpy.random.default_rng(0).normal(size=(60, 3))
    y = (X[:, 0] > 0.5).astype(int)
    classifier = AUCClassifier(max_epochs=2, validation_fraction=0, random_state=0)
    assert numpy.isfinite(classifier.fit(X, y).predict_proba(X)).all()
    assert numpy.isfinite(classifier.partial_fit(X, y).predict_proba(X)).all()
