import copy
import io
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semaopt
from semaopt.kernels import auc as kernel
from semaopt.losses import AUCMinMax
from semaopt.losses._auc_objective import objective

SCORES = ["sigmoid", "linear"]


def batch(n=40, seed=0, dtype=torch.float64, positive=0.3):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    labels = (torch.rand(n, generator=generator) < positive).long()
    return (scores + labels).to(dtype).requires_grad_(), labels


def formula(h, b, p, s, r, y, score="sigmoid", m=1.0):
    """Evaluate sec:app_auc_formulation example by example; NaN labels are ignored."""
    total, count = 0.0, 0
    for raw, label in zip(h, b.tolist(), strict=True):
        if label != label:
            continue
        h_i, count = raw.sigmoid() if score == "sigmoid" else raw, count + 1
        if label == 1:
            total = total + (1 - p) * (h_i - s) ** 2 - 2 * (m + y) * (1 - p) * h_i
        else:
            total = total + p * (h_i - r) ** 2 + 2 * (m + y) * p * h_i
    return total / count - p * (1 - p) * y**2


@pytest.mark.parametrize("start", [(0.0, 0.0, 0.0), (0.5, -0.25, 1.5)])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("margin", [1.0, 0.4])
@pytest.mark.parametrize("missing", [False, True])
def test_value_and_gradients_equal_the_formula(start, score, margin, missing):
    h, b = batch()
    b = b.double()
    if missing:
        b[::3] = torch.nan
    auc = AUCMinMax(0.3, *start, score=score, margin=margin, dtype=torch.float64)
    ours = auc(h, b)
    grads = torch.autograd.grad(ours, [h, auc.s, auc.r, auc.y])
    variables = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in start]
    theirs = formula(h, b, 0.3, *variables, score, margin)
    assert ours.shape == ()
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-15)
    for a, c in zip(grads, torch.autograd.grad(theirs, [h, *variables]), strict=True):
        torch.testing.assert_close(a.squeeze(), c, rtol=1e-12, atol=1e-15)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # raised inside torch by forward mode
@pytest.mark.parametrize("shape", [(8,), (8, 1)])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("missing", [False, True])
def test_first_and_second_derivatives(shape, score, missing):
    h, b = batch(8)
    if missing:
        b = b.double()
        b[3] = torch.nan
    auc = AUCMinMax(0.3, 0.1, -0.2, 0.4, score=score, margin=0.7, dtype=torch.float64).eval()

    def value(h, s, r, y):
        return torch.func.functional_call(auc, {"s": s, "r": r, "y": y}, (h, b)).square()

    inputs = [h.detach().reshape(shape).requires_grad_()]
    inputs += [z.detach().clone().requires_grad_() for z in (auc.s, auc.r, auc.y)]
    assert torch.autograd.gradcheck(value, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(value, inputs)
    for i in range(4):  # only one input requires a gradient
        alone = [z.detach().requires_grad_(i == k) for k, z in enumerate(inputs)]
        assert torch.autograd.gradcheck(value, alone)
        assert torch.autograd.gradgradcheck(value, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", SCORES)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(1, 50),
    prior=st.floats(0.01, 0.99),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    margin=st.sampled_from([0.3, 1.0]),
    missing=st.booleans(),
)
def test_closed_form_gradients_equal_autograd(dtype, score, seed, n, prior, scale, margin, missing):
    h, b = batch(n, seed)
    b = b.to(dtype)
    if missing:
        b[: n // 2] = torch.nan
    h = (h.detach() * scale).to(dtype).requires_grad_()
    auc = AUCMinMax(prior, 0.3 * scale, -0.2 * scale, 0.7, score=score, margin=margin, dtype=dtype)
    variables = [h, auc.s, auc.r, auc.y]
    fast = auc(h, b)
    assert type(fast.grad_fn).__name__ == "ClosedFormBackward"
    scores = h[:, None].sigmoid() if score == "sigmoid" else h[:, None]
    w, present = (b == 1).to(dtype)[:, None], ~b.isnan()[:, None]
    slow = objective(scores, w, present, auc.prior, auc.s, auc.r, auc.y, margin)
    eps = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    torch.testing.assert_close(fast, slow, rtol=eps, atol=eps * scale**2)
    for a, c in zip(torch.autograd.grad(fast, variables), torch.autograd.grad(slow, variables), strict=True):
        torch.testing.assert_close(a, c, rtol=eps, atol=eps * scale)


@pytest.mark.parametrize("labels", [lambda b: b, lambda b: b.double(), lambda b: 2 * b - 1])
def test_functional_transforms(labels):
    """Validation is on, although vmap cannot run it."""
    h, b = batch(6)
    auc = AUCMinMax(0.3, 0.1, -0.2, 0.4, dtype=torch.float64)
    (expected,) = torch.autograd.grad(auc(h, b), h)
    torch.testing.assert_close(torch.func.grad(auc)(h.detach(), labels(b)), expected)
    each = torch.func.vmap(lambda h, b: auc(h[None], b[None]))(h.detach(), labels(b))
    torch.testing.assert_close(each.mean(), auc(h, b))
    many = AUCMinMax([0.3, 0.3], 0.1, -0.2, 0.4, dtype=torch.float64)
    columns = torch.func.vmap(lambda h, b: many(h.expand(1, 2), b.expand(1, 2)))(h.detach(), labels(b))
    torch.testing.assert_close(columns.mean(), auc(h, b))


@pytest.mark.parametrize("score", SCORES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(3, 30), m=st.sampled_from([0.5, 1.0, 2.0]))
def test_saddle_value_is_the_pairwise_square_loss(score, seed, n, m):
    """For the prior of the batch, saddle value + p(1-p) m^2 = p(1-p) mean over pairs of (m - h + h')^2."""
    raw, b = batch(n, seed, positive=0.5)
    b[0], b[1] = 1, 0
    auc = AUCMinMax.from_labels(b, score=score, margin=m, dtype=torch.float64)
    h = raw.sigmoid() if score == "sigmoid" else raw
    p = b.double().mean().item()
    at = auc.saddle(raw, b)
    torch.testing.assert_close(at.s, h[b == 1].mean().reshape(1))
    torch.testing.assert_close(at.r, h[b == 0].mean().reshape(1))
    torch.testing.assert_close(at.y, at.r - at.s)
    with torch.no_grad():
        for z, best in zip((auc.s, auc.r, auc.y), at, strict=True):
            z.copy_(best)
    pairs = torch.stack([(m - i + j).square() for i, j in itertools.product(h[b == 1], h[b == 0])])
    value = auc(raw, b)
    torch.testing.assert_close(value + p * (1 - p) * m**2, p * (1 - p) * pairs.mean(), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(auc.value_for_display(value), pairs.mean().detach(), rtol=1e-10, atol=1e-12)


def test_the_displayed_value_leaves_columns_without_labels_out():
    """The loss is the mean over the labelled columns, so the estimate is that of these columns alone."""
    h, b = batch()
    missing = torch.full_like(b, torch.nan, dtype=torch.float64)
    one, two = AUCMinMax(0.3), AUCMinMax([0.3, 0.4])
    expected = one.value_for_display(one(h, b))
    found = two(torch.stack([h, h], 1), torch.stack([b.double(), missing], 1))
    torch.testing.assert_close(two.value_for_display(found).to(expected), expected)
    assert expected > 0
    empty = two(torch.stack([h, h], 1), torch.stack([missing, missing], 1))
    assert two.value_for_display(empty).isfinite()
    both = two(torch.stack([h, h], 1), torch.stack([b, b], 1))  # integer labels: none is missing
    torch.testing.assert_close(two.value_for_display(both), (both / ((0.21 + 0.24) / 2) + 1).detach())


def test_the_displayed_value_is_never_negative():
    """This holds even if y is far from its maximizer and the objective far below its saddle value."""
    h, b = batch()
    auc = AUCMinMax(0.3, 0.0, 0.0, 40.0, score="linear", dtype=torch.float64)
    assert auc(h, b) < -100
    assert auc.value_for_display(auc(h, b)) == 0
    assert not auc.value_for_display(auc(h, b)).requires_grad


def test_the_displayed_value_of_a_number():
    auc = AUCMinMax(prior=0.5)
    for number in (-0.125, np.float64(-0.125), np.float32(-0.125)):
        assert torch.equal(auc.value_for_display(number), torch.tensor(0.5))
    with pytest.raises(ValueError, match=r"loss='-0\.125'.*must be a number or a tensor.*or its item\(\)"):
        auc.value_for_display("-0.125")


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("m", [0.5, 1.0])
def test_the_objective_plus_a_constant_is_the_margin_loss_in_alpha(score, m):
    """It is p(1-p) (Var_+ + Var_- + 2 alpha (m + E_- h - E_+ h) - alpha^2) with alpha = m + y and the batch prior."""
    raw, b = batch(60, 4)
    alpha, p = 0.8, b.double().mean().item()
    at = AUCMinMax(p, score=score, dtype=torch.float64).saddle(raw, b)
    auc = AUCMinMax(p, at.s, at.r, alpha - m, score=score, margin=m, dtype=torch.float64)
    h = (raw.sigmoid() if score == "sigmoid" else raw).detach()
    positive, negative = h[b == 1], h[b == 0]
    variances = positive.var(unbiased=False) + negative.var(unbiased=False)
    expected = variances + 2 * alpha * (m + negative.mean() - positive.mean()) - alpha**2
    torch.testing.assert_close((auc(raw, b) + p * (1 - p) * m**2).detach(), p * (1 - p) * expected)


@pytest.mark.parametrize("m", [0.5, 1.0])
def test_equals_the_margin_loss_of_libauc(m):
    """Compare values and gradients with LibAUC's version v1, whose alpha is m + y."""
    libauc = pytest.importorskip("libauc.losses.auc", reason="LibAUC is optional")
    raw, b = batch(60, 4, torch.float32)
    p = b.double().mean().item()
    theirs = libauc.AUCMLoss(margin=m, device="cpu")
    with torch.no_grad():
        theirs.a.fill_(0.3), theirs.b.fill_(0.1), theirs.alpha.fill_(0.8)
    ours = AUCMinMax(p, 0.3, 0.1, 0.8 - m, margin=m, surrogate="squared_hinge")
    value, expected = ours(raw, b), theirs(raw.sigmoid(), b.float()).squeeze()
    torch.testing.assert_close(value + p * (1 - p) * m**2, expected, rtol=1e-5, atol=1e-6)
    mine = torch.autograd.grad(value, [raw, ours.s, ours.r, ours.y])
    for x, y in zip(mine, torch.autograd.grad(expected, [raw, theirs.a, theirs.b, theirs.alpha]), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_squared_hinge_sets_its_constraint():
    """If scores are separated by more than the margin, y of the square follows them; alpha = m + y of the hinge stays
    0."""
    h, b = torch.tensor([8.0, 8.0, -8.0, -8.0]), torch.tensor([1, 1, 0, 0])
    ends = {}
    for surrogate in ("square", "squared_hinge"):
        auc = AUCMinMax(0.5, score="linear", margin=0.5, surrogate=surrogate)
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = semaopt.PDAda(primal=[weight, *auc.primal_parameters()], dual=auc.dual_parameters(), dual_lr=0.5)
        for _ in range(50):
            optimizer.zero_grad()
            auc(weight * h, b).backward()
            optimizer.step()
        ends[surrogate] = auc.y.item()
    assert ends["squared_hinge"] == -0.5
    assert ends["square"] < -5
    auc = AUCMinMax(0.5, score="linear", surrogate="squared_hinge")
    assert auc.saddle(h, b).y.item() == -1.0
    assert AUCMinMax(0.5).projection is None
    group = semaopt.PDSM(primal=[weight], dual=auc.dual_parameters()).state_dict()["param_groups"][1]
    assert group["project"] is not None


def test_an_explicit_projection_has_priority():
    auc, box = AUCMinMax(0.5, surrogate="squared_hinge"), semaopt.projections.Box(-0.25, 0.25)
    primal = auc.primal_parameters()
    assert semaopt.PDAda(primal=primal, dual=auc.dual_parameters(), project=box).param_groups[1]["project"] == box
    groups = [{"params": auc.dual_parameters(), "project": box}]
    assert semaopt.PDAda(primal=primal, dual=groups).param_groups[1]["project"] == box


@pytest.mark.parametrize("prior", [0.1, 0.3, 0.8])
@pytest.mark.parametrize("score", SCORES)
def test_saddle_is_stationary_with_the_right_curvature(prior, score):
    h, b = batch()
    h = h.detach()
    auc = AUCMinMax(prior, score=score, dtype=torch.float64)
    best = auc.saddle(h, b)

    def value(s, r, y):
        return AUCMinMax(prior, s, r, y, score=score, dtype=torch.float64)(h, b).item()

    at = value(*best)
    for step in (-0.1, 0.1):
        assert value(best.s + step, best.r, best.y) > at
        assert value(best.s, best.r + step, best.y) > at
        assert value(best.s, best.r, best.y + step) < at
    loss = AUCMinMax(prior, *best, score=score, dtype=torch.float64)
    for gradient in torch.autograd.grad(loss(h, b), [loss.s, loss.r, loss.y]):
        assert abs(gradient.item()) < 1e-14


FORMS = {
    "long": lambda b: b,
    "int8": lambda b: b.to(torch.int8),
    "uint8": lambda b: b.to(torch.uint8),
    "bool": lambda b: b.bool(),
    "float": lambda b: b.float(),
    "bfloat16": lambda b: b.bfloat16(),
    "minus one": lambda b: 2 * b - 1,
    "minus one, float": lambda b: 2.0 * b - 1,
    "column": lambda b: b[:, None],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("column", [False, True], ids=["(n,)", "(n, 1)"])
def test_every_form_of_labels_and_scores(form, column):
    h, b = batch()
    auc = AUCMinMax(0.3, 0.2, 0.1, 0.5, dtype=torch.float64)
    expected = formula(h.detach(), b, 0.3, 0.2, 0.1, 0.5)
    torch.testing.assert_close(auc(h[:, None] if column else h, FORMS[form](b)).detach(), expected)
    torch.testing.assert_close(AUCMinMax.from_labels(FORMS[form](b)).prior, b.float().mean().reshape(1))


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        ([0, 1, 2], r"\[0, 1, 2\]"),
        ([0.0, 0.5, 1.0], r"\[0\.0, 0\.5, 1\.0\]"),
        ([-1, 0, 1], r"\[-1, 0, 1\]"),
        ([-1, 0, 0], r"\[-1, 0\]"),
        ([1, 2, 2], r"\[1, 2\]"),
        ([float("nan"), 2.0, 0.0], r"\[0\.0, 2\.0\]"),
        ([1.0, 1.0 + 1e-6, 0.0], r"1\.000000"),
    ],
)
def test_other_labels_are_an_error_that_names_them(labels, values):
    text = rf"labels=\[?.*{values}.*: must be \{{0, 1\}} or \{{-1, 1\}}, where 1 is the positive class; map the classes"
    with pytest.raises(ValueError, match=text):
        AUCMinMax(0.3)(torch.zeros(3), torch.tensor(labels))
    with pytest.raises(ValueError, match=text):
        AUCMinMax.from_labels(labels)


class Table:
    """Labels whose keys are not their positions, like a series after a random split."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        raise KeyError(key)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def test_labels_are_read_by_position():
    assert AUCMinMax.from_labels(Table([1, 0, 0, 0])).prior.item() == 0.25
    assert AUCMinMax.from_labels(Table([[1.0, 0.0], [0.0, 1.0], [0.0, np.nan]])).double().prior.tolist() == [1 / 3, 0.5]
    assert AUCMinMax.from_labels(Table([2, 0, 1, 0]), num_classes=3).prior.tolist() == [0.5, 0.25, 0.25]
    assert AUCMinMax(Table([0.25, 0.5])).prior.tolist() == [0.25, 0.5]
    read_only = np.array([1, 0, 0, 0])
    read_only.flags.writeable = False
    assert AUCMinMax.from_labels(read_only[::-1]).prior.item() == 0.25


def test_labels_of_pandas():
    pandas = pytest.importorskip("pandas", reason="pandas is optional")
    series = pandas.Series([1, 0, 0, 0], index=[7, 5, 3, 9])
    assert AUCMinMax.from_labels(series).prior.item() == 0.25
    frame = pandas.DataFrame({"a": series, "b": [0, 1, 0, 1]})
    assert AUCMinMax.from_labels(frame).prior.tolist() == [0.25, 0.5]
    assert AUCMinMax(frame.mean()).prior.tolist() == [0.25, 0.5]


@pytest.mark.parametrize("label", [1, 0, -1])
def test_batch_of_one_class_is_accepted(label):
    h, _ = batch(7)
    b = torch.full((7,), label)
    auc = AUCMinMax(0.3, 0.2, 0.1, 0.5, dtype=torch.float64)
    loss = auc(h, b)
    torch.testing.assert_close(loss, formula(h, b, 0.3, 0.2, 0.1, 0.5), rtol=1e-12, atol=1e-14)
    loss.backward()
    assert all(torch.isfinite(z.grad).all() for z in (h, auc.s, auc.r, auc.y))
    at = auc.saddle(h, b)
    assert (at.r if label == 1 else at.s).item() == pytest.approx(0.1 if label == 1 else 0.2), "the absent class stays"


@pytest.mark.parametrize(
    ("scores", "labels", "text"),
    [
        (
            (4, 2),
            (4,),
            r"scores of shape \(4, 2\) and labels of shape \(4,\): with 1 prior the scores must be \(n,\) or \(n, 1\).*"
            r"pass one score per example, e\.g\. logits\[:, 1\] - logits\[:, 0\]",
        ),
        ((4, 3), (4, 3), r"multi-label problem pass one prior per column: AUCMinMax\.from_labels\(labels\)"),
        ((4,), (5,), r"scores of shape \(4,\) and labels of shape \(5,\)"),
        ((2, 2), (4,), r"scores of shape \(2, 2\)"),
        ((1, 4), (4,), r"scores of shape \(1, 4\)"),
        ((0,), (0,), r"n >= 1"),
        ((), (1,), r"scores of shape \(\)"),
    ],
)
def test_mismatched_shapes(scores, labels, text):
    with pytest.raises(ValueError, match=text):
        AUCMinMax(0.3)(torch.zeros(scores), torch.zeros(labels))


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1, 1.5, float("nan"), [], [0.5, 0.0]], ids=str)
def test_bad_priors(prior):
    with pytest.raises(ValueError, match=r"prior=.*must lie in \(0, 1\).*[Ii]t is the share of positive labels"):
        AUCMinMax(prior)


def test_labels_of_one_class_have_no_prior():
    with pytest.raises(
        ValueError, match=r"there are only positive labels \(2 of them\), so the AUC is not defined; add"
    ):
        AUCMinMax.from_labels([1, 1])
    text = r"column 1 has only negative labels \(2 of them\).*drop the column, set its labels to NaN to skip it"
    with pytest.raises(ValueError, match=text):
        AUCMinMax.from_labels([[1, 0], [0, 0]])
    with pytest.raises(ValueError, match=r"labels=\(0,\).*must not be empty"):
        AUCMinMax.from_labels([])
    with pytest.raises(ValueError, match=r"labels='NaN'.*must not all be missing"):
        AUCMinMax.from_labels([[torch.nan], [torch.nan]])


def test_invalid_labels_of_one_column_are_named():
    labels = torch.tensor([[0.0, 3.0], [1.0, torch.nan]])
    with pytest.raises(ValueError, match=r"labels=\[3\.0\] in column 1: must be \{0, 1\}"):
        AUCMinMax([0.5, 0.5])(torch.zeros(2, 2), labels)


def test_missing_labels_are_ignored_in_the_priors():
    nan = torch.nan
    labels = [[1, nan, 1.0], [0, nan, nan], [0, nan, 0.0], [nan, nan, nan]]
    auc = AUCMinMax.from_labels(labels, dtype=torch.float64)
    torch.testing.assert_close(auc.prior, torch.tensor([1 / 3, 0.5, 0.5], dtype=torch.float64))
    minus = [[1, nan, 1.0], [-1, nan, nan], [-1, nan, -1.0], [nan, nan, nan]]
    assert torch.equal(AUCMinMax.from_labels(minus, dtype=torch.float64).prior, auc.prior)


@pytest.mark.parametrize("score", SCORES)
def test_missing_labels_are_masked_per_column(score):
    """Each column is the binary loss on its labelled rows; columns without labels are not in the mean."""
    h = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    b = (torch.rand(9, 3, generator=torch.Generator().manual_seed(1)) < 0.5).double()
    b[:4, 0], b[:, 1] = torch.nan, torch.nan
    options = {"score": score, "margin": 0.6, "dtype": torch.float64}
    auc = AUCMinMax([0.3, 0.5, 0.6], 0.2, 0.1, -0.4, **options)
    columns = [AUCMinMax(p, 0.2, 0.1, -0.4, **options)(h[4 * (k == 0) :, k], b[4 * (k == 0) :, k])
               for k, p in ((0, 0.3), (2, 0.6))]  # fmt: skip
    value, expected = auc(h, b), torch.stack(columns).mean()
    torch.testing.assert_close(value, expected)
    ours, theirs = (torch.autograd.grad(z, h, retain_graph=True)[0] for z in (value, expected))
    torch.testing.assert_close(ours, theirs)
    variables = torch.autograd.grad(value, [auc.s, auc.r, auc.y])
    assert all(g[1] == 0 and g[0] != 0 and g[2] != 0 for g in variables)
    at = auc.saddle(h, b)
    alone = AUCMinMax(0.3, **options).saddle(h[4:, 0], b[4:, 0])
    for column, one in zip(at, alone, strict=True):
        torch.testing.assert_close(column[:1], one)
    assert [z[1].item() for z in at] == pytest.approx([0.2, 0.1, -0.4]), "a column without labels stays"


def test_batch_without_labels_changes_nothing():
    for auc, shape in ((AUCMinMax(0.3, 0.1, 0.2, 0.3), (4,)), (AUCMinMax([0.3, 0.4], 0.1, 0.2, 0.3), (4, 2))):
        h = torch.randn(shape, requires_grad=True)
        value = auc(h, torch.full(shape, torch.nan))
        assert value == 0
        value.backward()
        assert all((z.grad == 0).all() for z in (h, auc.s, auc.r, auc.y))


def test_multi_label_is_the_mean_of_the_columns():
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(20, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    b = (torch.rand(20, 3, generator=generator) < torch.tensor([0.2, 0.5, 0.8])).long()
    starts = [torch.tensor(z) for z in ([0.1, 0.2, 0.3], [0.0, -0.1, 0.4], [1.0, 0.5, -0.5])]
    auc = AUCMinMax([0.2, 0.5, 0.8], *starts, dtype=torch.float64)
    columns = [
        AUCMinMax(auc.prior[c].item(), *(z[c].item() for z in starts), dtype=torch.float64)(h[:, c], b[:, c])
        for c in range(3)
    ]
    torch.testing.assert_close(auc(h, b), torch.stack(columns).mean(), rtol=1e-6, atol=1e-8)
    for ours, theirs in zip(
        auc.saddle(h, 2 * b - 1),
        zip(
            *(AUCMinMax(auc.prior[c].item(), dtype=torch.float64).saddle(h[:, c], b[:, c]) for c in range(3)),
            strict=True,
        ),
        strict=True,
    ):
        torch.testing.assert_close(ours, torch.cat(theirs))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("compiled", [True, False])
def test_gradients_of_columns_equal_autograd(score, missing, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(kernel, "library", lambda: None)
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(9, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = (torch.rand(9, 3, generator=generator) < 0.4).double()
    if missing:
        labels[::2, 0], labels[:, 2] = torch.nan, torch.nan
    auc = AUCMinMax([0.3, 0.4, 0.2], s=0.7, r=[0.1, 0.2, 0.3], y=-0.4, score=score, margin=0.8, dtype=torch.float64)
    variables = [scores, auc.s, auc.r, auc.y]
    h = scores.sigmoid() if score == "sigmoid" else scores
    present = ~labels.isnan()
    exact = objective(h, (labels == 1).double(), present, auc.prior, auc.s, auc.r, auc.y, 0.8)
    value = auc(scores, labels)
    assert type(value.grad_fn).__name__ == "KnownGradientsBackward"
    torch.testing.assert_close(value, exact, rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(torch.autograd.grad(value, variables), torch.autograd.grad(exact, variables), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)
    assert torch.autograd.gradgradcheck(lambda x: auc(x, labels), scores)


def test_multi_class_is_one_versus_rest():
    h = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    classes = torch.arange(30) % 4
    auc = AUCMinMax.from_labels(classes, num_classes=4, dtype=torch.float64)
    torch.testing.assert_close(auc.prior, torch.tensor([8, 8, 7, 7], dtype=torch.float64) / 30)
    one_hot = torch.nn.functional.one_hot(classes, 4)
    assert torch.equal(auc(h, classes), auc(h, one_hot))
    with pytest.raises(ValueError, match=r"labels=\(0, 4\).*must lie in 0\.\.3.*[Nn]umber the classes from 0"):
        auc(h, classes + (classes == 3))
    with pytest.raises(
        ValueError, match=r"labels='torch.float32 of shape \(30,\)'.*must be integer class numbers.*4 classes"
    ):
        auc(h, classes.float())
    with pytest.raises(ValueError, match=r"scores of shape \(30, 3\).*the scores must be \(n, 4\)"):
        auc(h[:, :3], classes)


def test_autocast_and_half_precision_scores_are_computed_in_float32():
    h, b = batch(200)
    auc = AUCMinMax(0.3, 0.2, 0.1, 0.5)
    for dtype in (torch.bfloat16, torch.float16):
        low = h.detach().to(dtype).requires_grad_()
        expected = auc(low.detach().float(), b)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = auc(low, b)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-7)
        loss.backward()
        assert low.grad.dtype == dtype
    assert auc(h, b).dtype == torch.float64
    whole = AUCMinMax(0.5, 0.2, 0.1, 0.5).bfloat16()
    assert whole(h.detach().bfloat16(), b).dtype == torch.float32


def test_large_offsets_lose_no_precision():
    """The loss computes (h - s)^2, not h^2 - 2hs + s^2, which loses precision for scores far from 0."""
    h, b = batch(64)
    near = AUCMinMax(0.5, 0.0, 0.0, -1.0, score="linear")(h.float(), b)
    far = AUCMinMax(0.5, 4096.0, 4096.0, -1.0, score="linear")(h.float() + 4096, b)
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("classes", [1, 2])
def test_diverged_score_gives_an_infinite_loss_and_a_warning(classes):
    auc = AUCMinMax(prior=[0.5] * classes, score="linear")
    scores = torch.tensor([[1e30], [-1e30]]).repeat(1, classes).requires_grad_()
    labels = torch.tensor([[1], [0]]).repeat(1, classes)
    with pytest.warns(UserWarning, match=r"the AUC objective is inf: the training has diverged; use score='sigmoid'"):
        loss = auc(scores, labels)
    assert loss.dtype == torch.float32
    assert loss.isinf()
    loss.backward()
    assert scores.grad.isfinite().all()
    assert auc(scores, labels).isinf(), "the second time without a warning"
    assert AUCMinMax(prior=[0.5] * classes)(scores, labels).isfinite()
    with pytest.warns(UserWarning, match=r"is nan: .*check the inputs of the model for NaN and use a smaller lr"):
        AUCMinMax(prior=0.5)(torch.tensor([torch.nan, 0.0]), torch.tensor([1, 0]))


def test_pdsm_at_a_large_step_with_a_linear_score_warns():
    torch.manual_seed(0)
    model, a, b = torch.nn.Linear(20, 1), 10 * torch.randn(64, 20), torch.arange(64) % 4 == 0
    auc = AUCMinMax(0.25, score="linear")
    primal = [*model.parameters(), *auc.primal_parameters()]
    optimizer = semaopt.PDSM(primal=primal, dual=auc.dual_parameters(), lr=0.3, dual_lr=0.3)

    def train():
        for _ in range(200):
            optimizer.zero_grad()
            auc(model(a), b).backward()
            optimizer.step()

    with pytest.warns(UserWarning, match="diverged; use score='sigmoid'"):
        train()


def test_the_default_device_is_not_used():
    """The value is on the device of the scores."""
    h, b = batch(8)
    auc = AUCMinMax(0.3, dtype=torch.float64)
    with torch.device("meta"):
        value = auc(h, b)
        value.backward()
    assert {z.device.type for z in (value, h.grad, auc.s.grad, auc.y.grad)} == {"cpu"}
    torch.testing.assert_close(value, auc(h, b))


def test_state_dict_and_copies():
    auc = AUCMinMax(0.3, 0.2, 0.1, 0.5)
    buffer = io.BytesIO()
    torch.save(auc.state_dict(), buffer)
    buffer.seek(0)
    other = AUCMinMax(0.5)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    h, b = batch(dtype=torch.float32)
    assert set(auc.state_dict()) == {"s", "r", "y", "prior"}
    assert torch.equal(auc(h, b), other(h, b))
    assert torch.equal(auc(h, b), copy.deepcopy(auc)(h, b))
    assert [id(z) for z in auc.parameters()] == [id(z) for z in (*auc.primal_parameters(), *auc.dual_parameters())]
    assert repr(auc) == "AUCMinMax(prior=0.3, score='sigmoid', margin=1, surrogate='square')"
    assert repr(AUCMinMax([0.25, 0.5])).startswith("AUCMinMax(prior=[0.25, 0.5], ")


def test_without_validation_every_label_except_one_is_negative():
    h, b = batch()
    auc = AUCMinMax(0.3, dtype=torch.float64, validate=False)
    assert torch.equal(auc(h, b * 2 - 1), auc(h, b))


@pytest.mark.slow
def test_compiled_loss_equals_eager():
    h, b = batch(dtype=torch.float32)
    auc = AUCMinMax(0.3, 0.2, 0.1, 0.5)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(auc, fullgraph=True)(h, 2 * b - 1), auc(h, b))


def train(kind, steps=300, score="linear", **options):
    """Train a linear model on two overlapping clouds, 10% positive, and return its AUC."""
    generator = torch.Generator().manual_seed(0)
    b = (torch.rand(400, generator=generator) < 0.1).long()
    a = torch.randn(400, 5, generator=generator) + b[:, None] * torch.tensor([2.0, -1.0, 0.5, 0.0, 0.0])
    torch.manual_seed(0)
    model, auc = torch.nn.Linear(5, 1), AUCMinMax.from_labels(b, score=score)
    optimizer = kind(primal=[*model.parameters(), *auc.primal_parameters()], dual=auc.dual_parameters(), **options)
    for k in range(steps):
        part = torch.randint(400, (32,), generator=torch.Generator().manual_seed(k))

        def closure(part=part):
            optimizer.zero_grad()
            loss = auc(model(a[part]), b[part])
            loss.backward()
            return loss

        optimizer.step(closure)
    with torch.no_grad():
        scores = model(a)[:, 0]
        gap = (auc.y - auc.saddle(scores, b).y).abs().item()
        return (scores[b == 1][:, None] > scores[b == 0]).float().mean().item(), gap


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (semaopt.PDAda, {"lr": 0.02, "dual_lr": 0.3}),
        (semaopt.PDSM, {"lr": 0.3, "dual_lr": 0.3}),
        (semaopt.baselines.SGDA, {"lr": 0.3, "dual_lr": 0.3}),
        (semaopt.baselines.SGDMax, {"lr": 0.3, "dual_lr": 3.0, "max_ascents": 20}),
        (semaopt.baselines.EpochSGDA, {"lr": 0.5, "dual_lr": 0.5, "stage_length": 60}),
        (semaopt.baselines.PESSGDA, {"lr": 0.5, "dual_lr": 0.5, "stage_length": 60, "factor": 0.7}),
        (semaopt.baselines.PESAdaGrad, {"lr": 0.3, "dual_lr": 0.3, "stage_length": 60, "factor": 0.7}),
        (semaopt.baselines.AccMDA, {"lr": 0.5, "dual_lr": 1.0}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_method_trains_the_loss(kind, options):
    start, _ = train(kind, steps=0, **options)
    end, gap = train(kind, **options)
    assert start < 0.7
    assert end > 0.9, end
    assert gap < 0.5, gap


def test_the_default_rates_of_pdsm_train_the_loss():
    """The defaults were 1e-3 and 1e-2, with which the model learned nothing."""
    start, _ = train(semaopt.PDSM, steps=0, score="sigmoid")
    old, _ = train(semaopt.PDSM, score="sigmoid", lr=1e-3, dual_lr=1e-2)
    end, _ = train(semaopt.PDSM, score="sigmoid")
    assert old < start + 0.1 < 0.8
    assert end > 0.9, end


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"prior": "a"}, "prior='a': must be a number"),
        ({"prior": 0.5, "s": "a"}, "s='a': must be a number"),
        ({"prior": 0.5, "s": [1.0, 2.0]}, r"s=\(2,\).*must be one number or have the shape of the prior, \(1,\)"),
        ({"prior": [0.5, 0.2], "y": [1.0, 2.0, 3.0]}, r"y=\(3,\).*must be one number or have the shape .*\(2,\)"),
        ({"prior": 0.5, "s": torch.nan}, r"s=\[nan\].*must be finite"),
        ({"prior": [0.5, 0.2], "y": [1.0, -torch.inf]}, r"y=\[1\.0, -inf\].*must be finite"),
        ({"prior": 0.5, "score": "tanh"}, r"score='tanh'.*must be one of 'sigmoid', 'linear'"),
        ({"prior": 0.5, "margin": 0.0}, r"margin=0\.0.*must be a finite number > 0"),
        ({"prior": 0.5, "surrogate": "hinge"}, r"surrogate='hinge'.*must be one of 'square', 'squared_hinge'"),
    ],
)
def test_invalid_options_are_refused(given_, text):
    with pytest.raises(ValueError, match=text):
        AUCMinMax(**given_)


def test_cast_does_not_round_the_prior():
    """In bf16, 0.999 would become 1 and p(1-p) would be 0; float64 must keep all digits."""
    for auc in (AUCMinMax(0.999).bfloat16(), AUCMinMax(0.999, dtype=torch.bfloat16), AUCMinMax(0.999).half()):
        assert auc.s.dtype in (torch.bfloat16, torch.float16)
        assert auc.prior.dtype == torch.float32
        assert auc.prior.item() == torch.tensor(0.999).item()
        assert auc.saddle(torch.tensor([1.0, 0.0]), torch.tensor([1, 0])).y.isfinite().all()
    for auc in (AUCMinMax(0.3), AUCMinMax(0.3).half(), AUCMinMax(torch.tensor(0.3, dtype=torch.float64)).cpu()):
        assert auc.double().prior.item() == 0.3
    assert AUCMinMax.from_labels([1, 0, 0]).double().prior.item() == 1 / 3
    assert repr(AUCMinMax([0.1, 0.2])).startswith("AUCMinMax(prior=[0.1, 0.2], ")


@pytest.mark.parametrize("prior", [0.3, [0.3, 0.1]], ids=str)
def test_double_scores_see_all_digits_of_the_prior(prior):
    """The loss need not be cast: the prior was rounded to float32, and the value was off by 1e-8."""
    auc = AUCMinMax(prior, s=0.25, r=0.125, y=0.5)
    h = torch.linspace(-1, 2, 8, dtype=torch.float64)[:, None].expand(8, len(auc.prior))
    b = (torch.arange(8) % 3 == 0)[:, None].expand(8, len(auc.prior))
    assert auc(h, b).item() == pytest.approx(copy.deepcopy(auc).double()(h, b).item(), rel=1e-14)
    assert torch.equal(auc.saddle(h, b).y, copy.deepcopy(auc).double().saddle(h, b).y)
    auc.prior.fill_(0.75)
    assert auc(h, b).item() == pytest.approx(AUCMinMax(0.75, 0.25, 0.125, 0.5)(h[:, 0], b[:, 0]).item(), rel=1e-14)


def test_cast_uses_the_loaded_or_assigned_prior():
    auc = AUCMinMax(0.3)
    auc.load_state_dict(AUCMinMax(0.25).state_dict())
    assert auc.double().prior.item() == 0.25
    auc.prior.fill_(0.75)
    assert auc.float().prior.item() == 0.75
    with torch.device("meta"):
        empty = AUCMinMax(0.3)
    assert empty.double().prior.is_meta


@pytest.mark.parametrize(("share", "invariant"), [(0.25, True), (0.5, False)])
def test_the_prior_is_the_share_in_the_batches(share, invariant):
    """Otherwise, adding a constant to all scores would change the saddle value."""
    auc, b = AUCMinMax(0.25, score="linear", dtype=torch.float64), torch.arange(8) < 8 * share
    h = torch.linspace(-1, 2, 8, dtype=torch.float64)

    def value(scores):
        with torch.no_grad():
            for mine, best in zip((auc.s, auc.r, auc.y), auc.saddle(scores, b), strict=True):
                mine.copy_(best)
            return auc(scores, b).item()

    assert (value(h + 10) == pytest.approx(value(h))) == invariant


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (
            lambda: AUCMinMax(0.3)(torch.zeros(2), [1, 0]),
            TypeError,
            r"labels of type list: must be a tensor; try torch",
        ),
        (lambda: AUCMinMax.from_labels(1), ValueError, r"labels=1.*must be a vector or a matrix"),
        (lambda: AUCMinMax.from_labels(["a", "b"]), ValueError, r"labels=\['a', 'b'\].*must hold numbers or booleans"),
        (
            lambda: AUCMinMax.from_labels(Table(["a", "b"] * 9)),
            ValueError,
            r"labels=\['a', .*'b'\] \(dtype <U1, shape \(18,\)\) is invalid: it must hold numbers .* labels == 'yes'",
        ),
        (lambda: AUCMinMax.from_labels([[0], [1]], num_classes=2), ValueError, r"Try labels\.flatten\(\)\.long\(\)"),
    ],
)
def test_invalid_labels(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()


def test_shapes_alone_are_enough():
    auc = AUCMinMax([0.3, 0.4]).to("meta")
    h, b = torch.zeros(4, 2, device="meta"), torch.zeros(4, 2, dtype=torch.bool, device="meta")
    assert auc(h, b).shape == ()
    with torch.device("meta"):
        empty = AUCMinMax(0.3)
    assert empty.to_empty(device="cpu").prior.item() == torch.tensor(0.3).item()


def test_variables_are_on_the_device_of_the_prior():
    p = torch.tensor([0.3], dtype=torch.float64)
    with torch.device("meta"):
        inside = AUCMinMax(p)
    for auc in (inside, AUCMinMax(p, s=p, device="meta")):
        assert {x.device.type for x in (auc.prior, auc.s, auc.r, auc.y)} == {"meta"}
        assert auc.double().to_empty(device="cpu").prior.item() == 0.3
