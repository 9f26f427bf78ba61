"""The stacked training of benchmarks/imbalanced.py equals the training of each network alone."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import semaopt

pytest.importorskip("numpy", reason="the benchmark needs NumPy, of the extra 'experiments'")
HOME = Path(__file__).parent.parent / "benchmarks"
FOLDS, SEEDS = [0, 0, 1, 1], [3, 5, 3, 5]


@pytest.fixture(scope="module")
def methods():
    spec = importlib.util.spec_from_file_location("imbalanced_methods", HOME / "imbalanced_methods.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["imbalanced_methods"] = module  # dataclasses look up their module in sys.modules
    spec.loader.exec_module(module)
    yield module
    del sys.modules["imbalanced_methods"]


def data():
    generator = torch.Generator().manual_seed(0)
    b = (torch.rand(2, 70, generator=generator) < 0.2).long()
    return torch.randn(2, 70, 4, generator=generator) + b[..., None], b


@pytest.mark.parametrize(
    "method",
    [
        "PDAda",
        "PDAda[cosine=1,surrogate=squared_hinge,weight_decay=1e-3]",
        "PDAda[total_decay=2]",
        "PDSM[centered=1]",
        "PDSM[warm=1]",
        "AP[prior=data]",
        "pAUC[balanced=.25,method=cvar]",
        "BCE[total_decay=1]",
        "weighted BCE",
        "focal",
        "LibAUC PESG[stages=1]",
        "LibAUC SOAP",
        "LibAUC SOPAs",
        "LibAUC SOPA",
        "LibAUC SOTAs",
    ],
)
@pytest.mark.filterwarnings("ignore:Input data has no positive sample")
def test_a_member_ends_where_it_would_end_alone(methods, method):
    if method.startswith("LibAUC"):
        pytest.importorskip("libauc", reason="compares with LibAUC")
    a, b = data()
    together = methods.train(method, a, b, FOLDS, SEEDS, 4)
    start = methods.Networks(4, SEEDS)
    for m in (0, 3):
        alone = methods.train(method, a, b, FOLDS[m : m + 1], SEEDS[m : m + 1], 4)
        for x, y, x0 in zip(together.parameters(), alone.parameters(), start.parameters(), strict=True):
            torch.testing.assert_close(x[m], y[0], rtol=1e-4, atol=2e-6)
            assert x.shape[1:].numel() == 1 or (x[m] - x0[m]).abs().max() > 1e-4


def test_one_member_is_the_plain_training(methods):
    """A loop as in the README gives the same network."""
    a, b = (x[0] for x in data())
    networks = methods.train("PDAda[total_decay=2]", a[None], b[None], [0], [7], 3)
    torch.manual_seed(7)
    layers = torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    model = torch.nn.Sequential(*layers)
    auc = semaopt.losses.AUCMinMax.from_labels(b)
    optimizer = semaopt.PDAda(
        primal=[*model.parameters(), *auc.primal_parameters()],
        dual=auc.dual_parameters(),
        weight_decay=2 / (1e-3 * 9),
        decoupled_weight_decay=True,
    )
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):
        for batch in torch.randperm(70, generator=generator).split(32):
            optimizer.zero_grad()
            auc(model(a[batch]), b[batch]).backward()
            optimizer.step()
    torch.testing.assert_close(networks(a[None])[0], model(a)[:, 0], rtol=1e-4, atol=1e-6)
