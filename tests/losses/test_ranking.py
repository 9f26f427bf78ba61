"""Exact values and limits of the ranking losses; test_registry.py has the tests common to all."""

import pytest
import torch
from torch import nn

import semaopt
from semaopt.losses import NDCG, AveragePrecision, MeanAveragePrecision, PartialAUC


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


def problem(n=30, positives=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(n) < positives).long()[torch.randperm(n, generator=generator)]
    return torch.randn(n, generator=generator, dtype=torch.float64), labels


def pairwise(h, b, m=1.0):
    return (m - h[b == 1][:, None] + h[b != 1]).clamp_min(0).square()


#: The gradient in C, in closed form by torch, by autograd.
FORMS = ("C", "torch", "autograd")


def in_form(loss, form):
    loss.compiled, loss.closed_form = form == "C", form != "autograd"
    return loss


# ---- average precision -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [None, 0.1])
@pytest.mark.parametrize("score", ["sigmoid", "linear"])
def test_rows_equal_the_formula(prior, score):
    raw, labels = problem(9, 3)
    ap = AveragePrecision(prior=prior, margin=0.7, score=score)
    found = ap.inner(raw[:, None], labels)
    h = raw.sigmoid() if score == "sigmoid" else raw
    torch.testing.assert_close(found, by_loops(h, labels, prior, 0.7), rtol=1e-6, atol=1e-8)
    expected = 1 - sum(g1 / g2 for g1, g2 in found.tolist()) / 3
    assert ap.outer(found).item() == pytest.approx(expected)


def test_both_label_encodings_and_the_batch_share_as_prior():
    scores, labels = problem(8, 2)
    zero_one = AveragePrecision().inner(scores, labels)
    torch.testing.assert_close(AveragePrecision().inner(scores, 2 * labels - 1), zero_one)
    torch.testing.assert_close(AveragePrecision().inner(scores, labels.bool()), zero_one)
    torch.testing.assert_close(AveragePrecision(prior=0.25).inner(scores, labels), zero_one)


def test_missing_labels_are_ignored():
    scores, labels = problem(10, 3)
    some = labels.double()
    some[4:7] = torch.nan
    keep = ~some.isnan()
    for loss in (AveragePrecision(10), AveragePrecision(10, prior=0.2), PartialAUC(10, method="cvar"), PartialAUC(10)):
        loss.eval()
        torch.testing.assert_close(loss(scores, some), loss(scores[keep], labels[keep]))


def test_a_perfect_ranking_has_loss_zero_and_the_worst_a_large_one():
    labels = torch.tensor([1, 1, 0, 0, 0, 0])
    ap = AveragePrecision(score="linear").eval()
    perfect = ap(torch.tensor([9.0, 9.0, 0.0, 0.0, 0.0, 0.0]), labels)
    worst = ap(torch.tensor([0.0, 0.0, 9.0, 9.0, 9.0, 9.0]), labels)
    assert perfect == 0
    assert worst > 0.9


def test_autocast_does_not_round_the_rows():
    scores, labels = problem(64, 16)
    ap = AveragePrecision()
    expected = ap.inner(scores.float(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ap.inner(scores.float(), labels), expected)


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1]])
@pytest.mark.parametrize("prior", [None, 0.3])
def test_batches_of_one_class_are_accepted(labels, prior):
    scores = nn.Parameter(torch.tensor([0.3, -0.2, 0.1]))
    ap = AveragePrecision(3, prior=prior)
    rows = ap.inner(scores, torch.tensor(labels))
    assert rows.shape == (sum(labels), 2)
    loss = ap(scores, torch.tensor(labels), torch.arange(3))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scores.grad).all()
    optimizer = semaopt.SCMA([scores], blocks=3, fresh=False)
    index = torch.tensor(labels).nonzero().squeeze(1)
    optimizer.step(lambda: ap.inner(scores, torch.tensor(labels)), ap.outer, index=index)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("form", ["C", "torch", "autograd", "columns"])
def test_positives_without_negatives_are_not_counted_if_the_prior_is_given(form):
    """Their precision would be 1; missing labels are no negatives."""
    loss = MeanAveragePrecision(6, 2, prior=0.3) if form == "columns" else AveragePrecision(6, prior=0.3)
    loss.compiled, loss.closed_form = form == "C", form != "autograd"
    x = torch.randn(6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ones = torch.tensor([1.0, 1.0, torch.nan, 1.0, 1.0, torch.nan])
    some = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    if form == "columns":
        alone = AveragePrecision(6, prior=0.3)(x, some, torch.arange(6))
        value = loss(torch.stack([x, x], 1), torch.stack([ones, some], 1), torch.arange(6))
        torch.testing.assert_close(value, alone)
        assert loss.z[:, 0].isnan().all()
    else:
        value = loss(x, ones, torch.arange(6))
        assert value == 0
        assert (torch.autograd.grad(value, x)[0] == 0).all()
        assert loss.z.isnan().all()


@pytest.mark.parametrize("width", [1, 3])
def test_steps_equal_scma(width):
    """SCMA on closures and SGD on the module give equal parameters and averages for equal batches."""
    generator = torch.Generator().manual_seed(0)
    b = (torch.arange(40) % 5 == 0).long()
    a = torch.randn(40, width, generator=generator, dtype=torch.float64) + b[:, None]
    models, ends = [], []
    for engine in ("scma", "module"):
        loss = AveragePrecision(40, prior=0.2, inner_beta=0.8).double()
        weight = nn.Parameter(torch.zeros(width, dtype=torch.float64))
        if engine == "scma":
            options = {"beta": 0.0, "inner_beta": 0.8, "scaling": "shb", "blocks": 40, "fresh": False}
            optimizer = semaopt.SCMA([weight], lr=5.0, **options)
        else:
            optimizer = torch.optim.SGD([weight], lr=5.0)
        for k in range(12):
            part = torch.randperm(40, generator=torch.Generator().manual_seed(k))[:16]
            if engine == "scma":
                own = part[b[part] == 1]

                def inner(part=part, loss=loss, weight=weight):
                    return loss.inner(a[part] @ weight, b[part])

                optimizer.step(inner, loss.outer, index=own)
            else:
                optimizer.zero_grad()
                loss(a[part] @ weight, b[part], part).backward()
                optimizer.step()
        models.append(weight.detach())
        z = optimizer.z if engine == "scma" else loss.z
        ends.append(z[b == 1])
    torch.testing.assert_close(*models, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)
    assert models[0].abs().max() > 0.1


def test_a_prior_makes_stratified_batches_unbiased():
    """With twice the share of positives in the batch, the prior keeps the mean of the rows unchanged."""
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


@pytest.mark.parametrize("engine", ["scma", "module"])
def test_training_raises_the_average_precision(engine):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is an extra")
    torch.manual_seed(3)
    a = torch.randn(200, 5)
    b = (a[:, 0] + 0.5 * torch.randn(200) > 1.3).float()
    model = nn.Linear(5, 1)
    nn.init.zeros_(model.weight)
    ap = AveragePrecision(200, prior=b.mean().item())
    scma = semaopt.SCMA(model.parameters(), lr=0.02, blocks=200, fresh=False)
    adam = torch.optim.AdamW(model.parameters(), lr=0.02)
    positive, negative = (b > 0).nonzero().squeeze(1), (b == 0).nonzero().squeeze(1)
    for _ in range(150):
        i = positive[torch.randperm(len(positive))[:4]]
        j = torch.cat([i, negative[torch.randperm(len(negative))[:12]]])
        if engine == "scma":
            scma.step(lambda j=j: ap.inner(model(a[j]), b[j]), ap.outer, index=i)
        else:
            adam.zero_grad()
            ap(model(a[j]), b[j], j).backward()
            adam.step()
    with torch.no_grad():
        reached = metrics.average_precision_score(b, model(a).squeeze(1))
    assert reached > 0.6 > 2 * b.mean()


def test_mean_average_precision_is_the_mean_over_the_labels():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(12, 3, generator=generator)
    labels = torch.stack([torch.arange(12) % 2, torch.zeros(12).long(), (torch.arange(12) < 3).long()], 1)
    loss = MeanAveragePrecision(12, 3, prior=[0.4, 0.5, 0.2]).eval()
    parts = [AveragePrecision(prior=p).eval()(scores[:, c], labels[:, c]) for c, p in ((0, 0.4), (2, 0.2))]
    torch.testing.assert_close(loss(scores, labels), torch.stack(parts).mean())


@pytest.mark.parametrize("columns", [1, 2])
def test_averages_of_average_precision_converge_to_the_exact_inner_value_of_a_frozen_model(columns):
    """Use running means over batches with all 6 positives and 8 of 24 negatives; the prior is that of the data."""
    raw, labels = problem()
    scores = torch.stack([raw, raw.roll(7)], 1)[:, :columns]
    loss = MeanAveragePrecision(30, columns, prior=0.2).double()
    positive, negative = (labels == 1).nonzero().flatten(), (labels == 0).nonzero().flatten()
    generator = torch.Generator().manual_seed(0)
    for k in range(1, 1001):
        loss.inner_beta = 1 - 1 / k
        rows = torch.cat([positive, negative[torch.randperm(24, generator=generator)[:8]]])
        loss(scores[rows].requires_grad_(), labels[rows, None].expand(-1, columns), rows)
    for c in range(columns):
        found = loss.z[positive] if columns == 1 else loss.z[positive, c]
        torch.testing.assert_close(found, by_loops(scores[:, c].sigmoid(), labels, 0.2), rtol=0.02, atol=0.0)
    assert loss.z[negative].isnan().all()


def test_gradient_equals_libauc():
    """Compare with LibAUC's average precision at gamma = 1, which equals the first visit here."""
    libauc = pytest.importorskip("libauc.losses.auc", reason="LibAUC is optional")
    scores, labels = problem(20, 5)
    scores = scores.float().requires_grad_()
    theirs = libauc.AveragePrecisionLoss(20, gamma=1.0, margin=0.8, device="cpu")
    expected = torch.autograd.grad(theirs(scores.sigmoid()[:, None], labels[:, None], torch.arange(20)), scores)[0]
    ours = AveragePrecision(20, margin=0.8)(scores, labels, torch.arange(20))
    torch.testing.assert_close(torch.autograd.grad(ours, scores)[0], expected, rtol=1e-4, atol=1e-6)


# ---- partial AUC -----------------------------------------------------------------------------------------------------


def way(min_tpr, temperature=1.0):
    """Return the options of the one-way (None) or two-way KL loss."""
    return {} if min_tpr is None else {"min_tpr": min_tpr, "positive_temperature": temperature}


@pytest.mark.parametrize("min_tpr", [None, 0.6])
def test_a_rate_that_the_kl_loss_ignores_raises_a_warning(min_tpr):
    with pytest.warns(UserWarning, match=r"max_fpr=0\.05 is ignored by method='kl'\. Pass method='cvar'") as found:
        PartialAUC(30, max_fpr=0.05, min_tpr=min_tpr)
    assert found[0].filename == __file__
    PartialAUC(30, 0.05, min_tpr, "cvar", 0.5)  # warnings are errors


def test_defaults_raise_no_warning_and_arguments_may_be_positional():
    kl, cvar = PartialAUC(30, 0.3, None, "kl", 1.0), PartialAUC(30, 0.05, 0.6, "cvar", 1.0)
    assert repr(kl) == (
        "PartialAUC(size=30, inner_beta=0.9, score='sigmoid', margin=1, max_fpr=0.3, min_tpr=None, method='kl', "
        "temperature=1)"
    )
    assert "max_fpr=0.05, min_tpr=0.6, method='cvar', temperature=1)" in repr(cvar)
    assert "num_labels=3" in repr(MeanAveragePrecision(30, 3))


@pytest.mark.parametrize("score", ["sigmoid", "linear"])
def test_all_false_positive_rates_give_the_auc_loss(score):
    raw, labels = problem()
    h = raw.sigmoid() if score == "sigmoid" else raw
    mean = pairwise(h, labels).mean()
    torch.testing.assert_close(PartialAUC(30, 1.0, method="cvar", score=score).eval()(raw, labels), mean)
    warm = PartialAUC(30, temperature=1e6, score=score).eval()(raw, labels)
    torch.testing.assert_close(warm, mean, rtol=1e-4, atol=1e-4)
    both = PartialAUC(30, 1.0, 1e-9, method="cvar", score=score).eval()(raw, labels)
    torch.testing.assert_close(both, mean, rtol=1e-6, atol=1e-6)
    warm = PartialAUC(30, min_tpr=0.5, temperature=1e6, positive_temperature=1e6, score=score).eval()(raw, labels)
    torch.testing.assert_close(warm, mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("score", ["sigmoid", "linear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_temperatures_and_small_rates_give_the_worst_negative(score, dtype):
    raw, labels = problem()
    raw = raw.to(dtype)
    worst = pairwise(raw.sigmoid() if score == "sigmoid" else raw, labels).amax(1)
    for loss in (PartialAUC(30, temperature=1e-4, score=score), PartialAUC(30, 1 / 24, method="cvar", score=score)):
        torch.testing.assert_close(loss.eval()(raw, labels), worst.mean(), rtol=1e-3, atol=1e-3)
    cold = PartialAUC(30, min_tpr=0.5, temperature=1e-4, positive_temperature=1e-4, score=score)
    torch.testing.assert_close(cold.eval()(raw, labels), worst.max(), rtol=1e-3, atol=1e-3)
    both = PartialAUC(30, 1 / 24, 1 - 1 / 6, method="cvar", score=score)
    torch.testing.assert_close(both.eval()(raw, labels), worst.max(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("form", [*FORMS, "eval", "no_grad"])
@pytest.mark.parametrize("min_tpr", [None, 0.5])
@pytest.mark.parametrize("temperature", [1e4, 1e6, 1e9, 1e12])
def test_large_temperatures_give_the_mean_in_float32(temperature, min_tpr, form):
    raw, labels = problem()
    mean = pairwise(raw.float().double().sigmoid(), labels).mean().float()
    loss = in_form(PartialAUC(30, temperature=temperature, **way(min_tpr, temperature)), form)
    loss.train(form != "eval")
    for _ in range(2):
        with torch.set_grad_enabled(form != "no_grad"):
            value = loss(raw.float().requires_grad_(), labels, torch.arange(30))
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, mean, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("min_tpr", [None, 0.5])
@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-6])
def test_float32_scores_have_exact_gradients_at_low_temperatures(temperature, min_tpr, form):
    """The averages of equal batches do not change, so each gradient is that of the first batch."""
    raw, labels = problem()
    x = (1e-3 * raw).float().requires_grad_()  # several negatives per positive have weight
    options = {"temperature": temperature, **way(min_tpr, temperature)}
    loss, exact = in_form(PartialAUC(30, **options), form), PartialAUC(30, **options)
    wide = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(exact(wide, labels, torch.arange(30)), wide)
    for _ in range(3):
        (found,) = torch.autograd.grad(loss(x, labels, torch.arange(30)), x)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("two_way", [None, 0.5])
def test_huge_losses_do_not_overflow(two_way):
    """exp(l/lambda) is stored as a logarithm, so scores in the hundreds are finite."""
    raw, labels = problem()
    scores = (300 * raw).float().requires_grad_()
    loss = PartialAUC(30, temperature=0.1, score="linear", **way(two_way, 0.1))
    for _ in range(3):
        value = loss(scores, labels, torch.arange(30))
        (gradient,) = torch.autograd.grad(value, scores)
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


def test_ties_share_the_weight():
    labels = torch.tensor([1, 0, 0, 0])
    scores = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    for loss in (PartialAUC(4, temperature=0.3, score="linear"), PartialAUC(4, 1.0, method="cvar", score="linear")):
        value = loss(scores, labels, torch.arange(4))
        assert value.item() == pytest.approx(1.0)
        gradient = torch.autograd.grad(value, scores)[0]
        torch.testing.assert_close(gradient, torch.tensor([-2.0, 2 / 3, 2 / 3, 2 / 3], dtype=torch.float64))
    ap = AveragePrecision(4, score="linear")(scores, labels, torch.arange(4))
    assert ap.item() == pytest.approx(0.75), "precision 1/4"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("min_tpr", [None, 0.5])
def test_an_average_that_has_overflowed_starts_again(min_tpr, form):
    labels, index = torch.tensor([1, 0, 0]), torch.arange(3)
    loss, fresh = (in_form(PartialAUC(3, score="linear", **way(min_tpr)), form) for form in (form, "C"))
    loss(torch.tensor([-1e30, 1e30, 0.0], requires_grad=True), labels, index)
    assert not loss.z[0].float().isfinite()
    x = torch.tensor([0.3, 0.1, -0.2], requires_grad=True)
    found, expected = (torch.autograd.grad(one(x, labels, index), x)[0] for one in (loss, fresh))
    torch.testing.assert_close(found, expected)
    assert loss.z[0].isfinite()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [[-1e25, 1e25, 0.0], [0.0, 1e25, 0.0], [torch.nan, 0.0, 0.0]])
@pytest.mark.parametrize(
    "make",
    [
        lambda: AveragePrecision(3, score="linear"),
        lambda: PartialAUC(3, method="cvar", score="linear"),
        lambda: PartialAUC(3, 0.3, 0.5, method="cvar", score="linear"),
        lambda: NDCG(torch.tensor([1.0, 0.0, 0.0]), score="linear"),
    ],
)
def test_the_batch_after_one_that_has_overflowed_is_normal(make, bad, form):
    """With the scores [0, 1e25, 0], only the second average of average precision overflows."""
    labels, index = torch.tensor([1.0, 0.0, 0.0]), torch.arange(3)
    loss, fresh = in_form(make(), form), make()
    loss(torch.tensor(bad, requires_grad=True), labels, index)
    assert not loss.z[0].isfinite().all()
    x = torch.tensor([0.3, 0.1, -0.2], requires_grad=True)
    values = [one(x, labels, index) for one in (loss, fresh)]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value in values))
    assert loss.z[0].isfinite().all()


@pytest.mark.parametrize("compiled", [True, False])
def test_ties_at_the_quantile_share_its_weight(compiled):
    """The weights are 1 above the quantile and equal at it, for negatives (one-way) and for positives (two-way)."""
    labels, x = (torch.arange(12) < 1).long(), torch.zeros(12, dtype=torch.float64)
    x[1] = 1.0  # l = 4 for this negative and 1 for ten tied ones; 0.3 of 11 are 3.3
    one = PartialAUC(12, 0.3, method="cvar", score="linear")
    both = PartialAUC(12, 1.0, 0.7, method="cvar", score="linear")
    one.compiled = both.compiled = compiled
    for _ in range(2):  # at the second visit the averages equal the quantiles
        x.requires_grad_()
        (g,) = torch.autograd.grad(one(x, labels, torch.arange(12)), x)
        expected = torch.full((12,), 2.0 * 2.3 / 10 / 3.3, dtype=torch.float64)
        expected[0], expected[1] = -(4.0 + 2 * 2.3) / 3.3, 4.0 / 3.3
        torch.testing.assert_close(g, expected)
        (g,) = torch.autograd.grad(both(-x, 1 - labels, torch.arange(12)), x)  # one negative, eleven positives
        torch.testing.assert_close(g, expected)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("min_tpr", [None, 0.5])
@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_no_pair_is_pushed_the_wrong_way_while_quantiles_lag(shift, min_tpr, compiled):
    raw, labels = problem()
    loss = PartialAUC(30, 0.3, min_tpr, method="cvar", score="linear", inner_beta=0.9)
    loss.compiled = compiled
    loss((raw + shift * labels).requires_grad_(), labels, torch.arange(30))  # the averages start too low or too high
    x = raw.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(x, labels, torch.arange(30)), x)
    assert (g[labels == 0] >= 0).all()
    assert (g[labels == 1] <= 0).all()
    assert g.abs().max() > 0


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]])
@pytest.mark.parametrize(
    "options",
    [{}, {"method": "cvar"}, {"min_tpr": 0.5, "positive_temperature": 1.0}, {"min_tpr": 0.5, "method": "cvar"}],
)
def test_batches_of_one_class_and_of_one_positive(labels, options):
    scores = nn.Parameter(torch.tensor([0.3, -0.2, 0.1]))
    loss = PartialAUC(3, **options)
    value = loss(scores, torch.tensor(labels), torch.arange(3))
    value.backward()
    assert value.isfinite()
    assert scores.grad.isfinite().all()
    assert (scores.grad.abs().sum() > 0) == (len(set(labels)) == 2)
    assert (~loss.z.isnan()).any() == (len(set(labels)) == 2)


def test_averages_converge_to_the_exact_inner_value_of_a_frozen_model():
    """Use running means (weight 1/k in round k) over batches with 4 of 24 negatives."""
    raw, labels = problem()
    exact = pairwise(raw.sigmoid(), labels).div(0.5).exp().mean(1)
    loss = PartialAUC(30, temperature=0.5).double()
    positive, negative = (labels == 1).nonzero().flatten(), (labels == 0).nonzero().flatten()
    generator = torch.Generator().manual_seed(0)
    for k in range(1, 3001):
        loss.inner_beta = 1 - 1 / k
        rows = torch.cat([positive, negative[torch.randperm(24, generator=generator)[:4]]])
        loss(raw[rows].requires_grad_(), labels[rows], rows)
    torch.testing.assert_close(loss.z[positive, 0].exp(), exact, rtol=0.02, atol=0.0)


def test_quantiles_follow_a_frozen_model():
    """On full batches, s_i of CVaR becomes the (1 - a) quantile of the losses from any start."""
    raw, labels = problem()
    losses = pairwise(raw.sigmoid(), labels)
    loss = PartialAUC(30, 0.25, method="cvar").double()
    loss((raw + 1).sigmoid().requires_grad_(), labels, torch.arange(30))
    for _ in range(200):
        loss(raw.clone().requires_grad_(), labels, torch.arange(30))
    found = loss.z[labels == 1, 0]
    torch.testing.assert_close(found, losses.sort(1, descending=True).values[:, 6])
    assert ((losses > found[:, None] + 1e-9).double().mean(1) <= 0.25).all()


# ---- NDCG ------------------------------------------------------------------------------------------------------------


def test_a_perfect_order_has_no_ndcg_loss_and_the_reverse_a_large_one():
    relevance, query = torch.tensor([3.0, 0.0, 0.0, 0.0, 2.0, 0.0]), torch.tensor([7, 7, 7, 9, 9, 9])
    loss = NDCG(relevance, query, score="linear").eval()
    best = torch.tensor([9.0, -9.0, 0.0, -9.0, 9.0, 0.0])
    assert loss(best, relevance, torch.arange(6)).item() == pytest.approx(0.0, abs=1e-6)
    assert loss(-best, relevance, torch.arange(6)) > 0.5


def test_queries_without_relevant_items_do_not_count():
    relevance, query = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])
    loss = NDCG(relevance, query, score="linear").eval()
    assert loss(torch.tensor([5.0, 0.0, 0.0, 5.0]), relevance, torch.arange(4)) == 0
    scores = torch.zeros(2, requires_grad=True)
    value = loss(scores, relevance[2:], torch.tensor([2, 3]))
    value.backward()
    assert value == 0
    assert (scores.grad == 0).all()


@pytest.mark.parametrize("size", [5, 15])
def test_averages_of_ndcg_converge_to_the_exact_inner_value_of_a_frozen_model(size):
    """In batches of k items of a query, the pair of an item with itself has weight 1/k; whole queries are exact."""
    raw, _ = problem()
    query, relevance = torch.arange(30) // 15, torch.arange(30) % 4.0
    loss, h = NDCG(relevance, query).double(), raw.sigmoid()
    generator = torch.Generator().manual_seed(0)
    loss((raw + 1).requires_grad_(), relevance, torch.arange(30))  # the first visit is of another model
    for k in range(1, 2001):
        loss.inner_beta = max(0.0, 1 - 15 / size / k)  # each item is in size of 15 batches
        rows = torch.cat([15 * q + torch.randperm(15, generator=generator)[:size] for q in range(2)])
        loss(raw[rows].requires_grad_(), relevance[rows], rows)
    pair = (1 + h - h[:, None]).clamp_min(0).square() * (query == query[:, None])  # with the own item: 1
    exact = 1 / size + (1 - 1 / size) * (pair.sum(1) - 1) / 14
    torch.testing.assert_close(loss.z, exact, rtol=0.02 if size < 15 else 1e-9, atol=0.0)


def test_a_gate_over_all_ranks_changes_little():
    relevance = torch.tensor([3.0, 2.0, 1.0, 0.0, 0.0])
    raw = torch.tensor([0.5, 1.0, -1.0, 0.0, -0.5])
    plain = NDCG(relevance).eval()(raw, relevance, torch.arange(5))
    gated = NDCG(relevance, top_k=5).eval()(raw, relevance, torch.arange(5))
    torch.testing.assert_close(plain, gated, rtol=1e-4, atol=1e-4)
    top = NDCG(relevance, top_k=1, gate_temperature=1e-4).eval()(raw, relevance, torch.arange(5))
    h = raw.sigmoid()
    rank = (1 + h - h[1]).clamp_min(0).square().sum()
    assert top.item() == pytest.approx((1 - 3 / torch.log2(1 + rank) / 7).item(), rel=1e-4)


def test_a_series_is_read_by_position():
    """Its index may be shuffled, as after a train/test split; query names need numbers."""
    pandas = pytest.importorskip("pandas", reason="pandas is optional")
    relevance, query = [2.0, 0.0, 1.0, 0.0], [7, 7, 9, 9]
    frame = pandas.DataFrame({"relevance": relevance, "query": query, "name": list("aabb")}, index=[31, 5, 0, 12])
    found, expected = NDCG(frame["relevance"], frame["query"]), NDCG(relevance, query)
    assert torch.equal(found.ideal, expected.ideal)
    assert torch.equal(found.query, expected.query)
    assert torch.equal(NDCG(frame[["relevance"]], query).ideal, expected.ideal)
    with pytest.raises(ValueError, match=r"query=.* is invalid: it must hold numbers .* Convert classes to numbers"):
        NDCG(frame["relevance"], frame["name"])
    with pytest.raises(TypeError, match=r"labels of type Series: must be a tensor; try torch\.tensor\(numpy\.asarray"):
        expected(torch.zeros(4, requires_grad=True), frame["relevance"], torch.arange(4))


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: AveragePrecision(4, **options),
        lambda **options: MeanAveragePrecision(4, 1, **options),
        lambda **options: PartialAUC(4, **options),
        lambda **options: NDCG(torch.tensor([1.0, 0.0, 0.0, 1.0]), **options),
    ],
)
def test_all_losses_take_the_common_options(make):
    loss = make(inner_beta=0.5, score="linear", margin=0.5, prior=0.3)
    assert (loss.inner_beta, loss.score, loss.margin) == (0.5, "linear", 0.5)
    value = loss(torch.zeros(4, requires_grad=True), torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.arange(4))
    assert value.isfinite()


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AveragePrecision(prior=1.0), r"prior=1\.0.*must lie in \(0, 1\).*share of positives"),
        (lambda: MeanAveragePrecision(4, 3, prior=[0.1, 0.2]), r"prior=\[0\.1, 0\.2\].*must lie in \(0, 1\)"),
        (lambda: AveragePrecision(margin=0), r"margin=0.*must be a finite number > 0"),
        (lambda: AveragePrecision(0), r"size=0.*must be a whole number >= 1.*len\(train\)"),
        (lambda: AveragePrecision(4, score="tanh"), r"score='tanh'.*must be one of"),
        (lambda: PartialAUC(4, 0.0), r"max_fpr=0\.0.*must lie in \(0, 1\]"),
        (lambda: PartialAUC(4, min_tpr=1.0), r"min_tpr=1\.0.*must lie in \(0, 1\)"),
        (lambda: PartialAUC(4, method="l2"), r"method='l2'.*must be 'kl' or 'cvar'"),
        (lambda: PartialAUC(4, temperature=0.0), r"temperature=0\.0.*must be a finite number > 0"),
        (lambda: PartialAUC(4, prior=2.0), r"prior=2\.0.*must lie in \(0, 1\)"),
        (lambda: NDCG([-1.0, 0.0]), r"relevance=\(2,\).*must be numbers >= 0"),
        (lambda: NDCG(30), r"relevance=30 is invalid: it must have one entry per example, and is not a size.*whole"),
        (lambda: NDCG([200.0, 0.0]), r"relevance=200\.0.*2\^relevance overflows\. Pass grades such as 0\.\.4, or log2"),
        (lambda: NDCG([torch.inf, 0.0]), r"relevance=inf.*2\^relevance overflows"),
        (lambda: NDCG([1.0, 0.0], [1]), r"query=1.*must have 2 entries"),
        (lambda: NDCG([1.0, 0.0], prior=2.0), r"prior=2\.0.*must lie in \(0, 1\)"),
        (lambda: NDCG([1.0, 0.0], top_k=0), r"top_k=0.*must be a whole number >= 1"),
        (
            lambda: AveragePrecision(3)(torch.zeros(3), torch.zeros(2), torch.arange(3)),
            r"scores of shape \(3,\) and labels of shape \(2,\): both must be \(n,\).*pass one label per score",
        ),
        (
            lambda: MeanAveragePrecision(4, 3)(torch.zeros(4, 3), torch.zeros(3, 4), torch.arange(4)),
            r"scores of shape \(4, 3\) and labels of shape \(3, 4\): both must be \(n, 3\).*one label per score",
        ),
        (
            lambda: PartialAUC(3)(torch.zeros(3, 2), torch.zeros(3), torch.arange(3)),
            r"pass one score per example, e\.g\. logits\[:, 1\] - logits\[:, 0\]",
        ),
        (
            lambda: AveragePrecision(3)(torch.zeros(3), torch.tensor([0, 1, 2]), torch.arange(3)),
            r"labels=\[0, 1, 2\].*must be \{0, 1\}",
        ),
    ],
)
def test_invalid_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_a_loss_without_averages_cannot_train():
    loss = AveragePrecision()
    with pytest.raises(RuntimeError, match=r"AveragePrecision has no averages; construct it with size=len\(train\)"):
        loss(torch.zeros(3, requires_grad=True), torch.tensor([1, 0, 0]), torch.arange(3))
    with pytest.raises(TypeError, match=r"labels of type list: must be a tensor"):
        loss(torch.zeros(3), [1, 0, 0])
