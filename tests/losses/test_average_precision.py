import pytest
import torch
from torch import nn

import semaopt
from semaopt.losses import AveragePrecision


def by_loops(scores, labels, prior=None, margin=1.0):
    rows = []
    above = lambda j, i: max(0.0, margin + scores[j].item() - scores[i].item()) ** 2  # noqa: E731
    positive = [j for j, b in enumerate(labels) if b > 0]
    negative = [j for j, b in enumerate(labels) if b <= 0]
    for i in positive:
        p = [above(j, i) for j in positive]
        n = [above(j, i) for j in negative]
        if prior is None:
            rows.append((sum(p) / len(labels), (sum(p) + sum(n)) / len(labels)))
        else:
            g1 = prior * sum(p) / len(p)
            rows.append((g1, g1 + (1 - prior) * (sum(n) / len(n) if n else 0.0)))
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("prior", [None, 0.1])
def test_rows_are_those_of_the_formula(prior):
    torch.manual_seed(0)
    scores, labels = torch.randn(9, dtype=torch.float64), torch.tensor([1, 0, 0, 1, 0, 0, 0, 1, 0])
    ap = AveragePrecision(prior, margin=0.7)
    found = ap.inner(scores[:, None], labels)
    torch.testing.assert_close(found, by_loops(scores, labels, prior, 0.7))
    expected = 1 - sum(g1 / g2 for g1, g2 in found.tolist()) / 3
    assert ap.outer(found).item() == pytest.approx(expected)


def test_labels_of_both_kinds_and_the_share_of_the_batch_as_prior():
    torch.manual_seed(1)
    scores, labels = torch.randn(8), torch.tensor([1, 0, 1, 0, 0, 0, 0, 0])
    zero_one = AveragePrecision().inner(scores, labels)
    torch.testing.assert_close(AveragePrecision().inner(scores, 2 * labels - 1), zero_one)
    torch.testing.assert_close(AveragePrecision(prior=0.25).inner(scores, labels), zero_one)


def test_a_perfect_ranking_has_loss_zero_and_the_worst_a_large_one():
    labels = torch.tensor([1, 1, 0, 0, 0, 0])
    ap = AveragePrecision()
    perfect = ap.outer(ap.inner(torch.tensor([9.0, 9.0, 0.0, 0.0, 0.0, 0.0]), labels))
    worst = ap.outer(ap.inner(torch.tensor([0.0, 0.0, 9.0, 9.0, 9.0, 9.0]), labels))
    assert perfect == 0
    assert worst > 0.9


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1]])
@pytest.mark.parametrize("prior", [None, 0.3])
def test_one_class_batches_are_fine(labels, prior):
    scores = nn.Parameter(torch.tensor([0.3, -0.2, 0.1]))
    ap = AveragePrecision(prior)
    rows = ap.inner(scores, torch.tensor(labels))
    assert rows.shape == (sum(labels), 2)
    loss = ap.outer(rows)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scores.grad).all()
    optimizer = semaopt.SCMA([scores], blocks=3, fresh=False)
    index = torch.tensor(labels).nonzero().squeeze(1)
    optimizer.step(lambda: ap.inner(scores, torch.tensor(labels)), ap.outer, index=index)
    assert torch.isfinite(scores).all()


def test_a_prior_makes_stratified_batches_unbiased():
    """Twice as many positives in the batch as in the data: with the prior the rows keep their mean."""
    torch.manual_seed(2)
    scores, labels = torch.randn(60, dtype=torch.float64), (torch.arange(60) < 12).long()
    full = AveragePrecision(prior=0.2).inner(scores, labels)[0]
    plain, weighted = [], []
    for _ in range(2000):
        i = torch.cat([torch.tensor([0]), 1 + torch.randperm(11)[:7], 12 + torch.randperm(48)[:8]])
        plain.append(AveragePrecision().inner(scores[i], labels[i])[0])
        weighted.append(AveragePrecision(prior=0.2).inner(scores[i], labels[i])[0])
    off = [(torch.stack(rows).mean(0) - full)[1].abs().item() for rows in (plain, weighted)]
    assert off[1] < 0.25 * off[0]


def test_it_raises_the_average_precision():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is an extra")
    torch.manual_seed(3)
    a = torch.randn(200, 5)
    b = (a[:, 0] + 0.5 * torch.randn(200) > 1.3).float()
    model = nn.Linear(5, 1)
    nn.init.zeros_(model.weight)
    ap = AveragePrecision(prior=b.mean().item())
    optimizer = semaopt.SCMA(model.parameters(), lr=0.02, blocks=200, fresh=False)
    positive, negative = (b > 0).nonzero().squeeze(1), (b == 0).nonzero().squeeze(1)
    for _ in range(150):
        i = positive[torch.randperm(len(positive))[:4]]
        j = torch.cat([i, negative[torch.randperm(len(negative))[:12]]])
        optimizer.step(lambda j=j: ap.inner(model(a[j]), b[j]), ap.outer, index=i)
    with torch.no_grad():
        reached = metrics.average_precision_score(b, model(a).squeeze(1))
    assert reached > 0.6 > 2 * b.mean()


def test_wrong_options():
    with pytest.raises(ValueError, match=r"prior=1\.0 is invalid: it must lie in \(0, 1\)\. The share of positives"):
        AveragePrecision(prior=1.0)
    with pytest.raises(ValueError, match=r"margin=0 is invalid: it must be a finite number > 0"):
        AveragePrecision(margin=0)
    with pytest.raises(
        ValueError, match=r"labels=\(2,\) is invalid: it must match the scores, \(3,\)\. One label a score"
    ):
        AveragePrecision().inner(torch.zeros(3), torch.zeros(2))
    with pytest.raises(
        ValueError, match=r"labels='nan' is invalid: it must be numbers.*Leave out examples without a label"
    ):
        AveragePrecision().inner(torch.zeros(2), torch.tensor([1.0, torch.nan]))
