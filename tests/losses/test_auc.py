import copy
import io
import itertools
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semaopt
from semaopt.losses import AUCMinMax
from semaopt.losses._auc_objective import objective


def batch(n=40, seed=0, dtype=torch.float64, positive=0.3):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    labels = (torch.rand(n, generator=generator) < positive).long()
    return (scores + labels).to(dtype).requires_grad_(), labels


def formula(h, b, p, s, r, y):
    """sec:app_auc_formulation, example by example."""
    total = 0.0
    for score, label in zip(h, b, strict=True):
        if label == 1:
            total = total + (1 - p) * (score - s) ** 2 - 2 * (1 + y) * (1 - p) * score
        else:
            total = total + p * (score - r) ** 2 + 2 * (1 + y) * p * score
    return total / len(h) - p * (1 - p) * y**2


@pytest.mark.parametrize("start", [(0.0, 0.0, 0.0), (0.5, -0.25, 1.5)])
@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradients_are_the_formula(start, seed):
    h, b = batch(seed=seed)
    auc = AUCMinMax(0.3, *start, dtype=torch.float64)
    ours = auc(h, b)
    grads = torch.autograd.grad(ours, [h, auc.s, auc.r, auc.y])
    variables = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in start]
    theirs = formula(h, b, 0.3, *variables)
    assert ours.shape == ()
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-15)
    for a, c in zip(grads, torch.autograd.grad(theirs, [h, *variables]), strict=True):
        torch.testing.assert_close(a.squeeze(), c, rtol=1e-12, atol=1e-15)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, forward mode
@pytest.mark.parametrize("shape", [(8,), (8, 1)])
def test_first_and_second_derivatives(shape):
    h, b = batch(8)
    auc = AUCMinMax(0.3, 0.1, -0.2, 0.4, dtype=torch.float64)

    def value(h, s, r, y):
        return torch.func.functional_call(auc, {"s": s, "r": r, "y": y}, (h, b)).square()

    inputs = [h.detach().reshape(shape).requires_grad_()]
    inputs += [z.detach().clone().requires_grad_() for z in (auc.s, auc.r, auc.y)]
    assert torch.autograd.gradcheck(value, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(value, inputs)
    for i in range(4):  # with only one that requires a gradient
        alone = [z.detach().requires_grad_(i == k) for k, z in enumerate(inputs)]
        assert torch.autograd.gradcheck(value, alone)
        assert torch.autograd.gradgradcheck(value, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(1, 50),
    prior=st.floats(0.01, 0.99),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_the_closed_form_equals_what_torch_differentiates(dtype, seed, n, prior, scale):
    h, b = batch(n, seed)
    h = (h.detach() * scale).to(dtype).requires_grad_()
    auc = AUCMinMax(prior, 0.3 * scale, -0.2 * scale, 0.7, dtype=dtype)
    variables = [h, auc.s, auc.r, auc.y]
    fast = auc(h, b)
    assert type(fast.grad_fn).__name__ == "ClosedFormBackward"
    slow = objective(h[:, None], b[:, None].to(dtype), auc.prior, s=auc.s, r=auc.r, y=auc.y)
    eps = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    torch.testing.assert_close(fast, slow, rtol=eps, atol=eps * scale**2)
    for a, c in zip(torch.autograd.grad(fast, variables), torch.autograd.grad(slow, variables), strict=True):
        torch.testing.assert_close(a, c, rtol=eps, atol=eps * scale)


def test_transforms_see_the_operations():
    h, b = batch(6)
    auc = AUCMinMax(0.3, 0.1, -0.2, 0.4, dtype=torch.float64)
    (expected,) = torch.autograd.grad(auc(h, b), h)
    torch.testing.assert_close(torch.func.grad(auc)(h.detach(), b), expected)
    quiet = AUCMinMax(0.3, 0.1, -0.2, 0.4, dtype=torch.float64, validate=False)
    each = torch.func.vmap(lambda h, b: quiet(h[None], b[None]))(h.detach(), b)
    torch.testing.assert_close(each.mean(), auc(h, b))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(3, 30))
def test_saddle_value_is_the_pairwise_square_loss(seed, n):
    """With the prior of the batch: saddle value + p(1-p) = p(1-p) mean over pairs of (1 - h + h')^2."""
    h, b = batch(n, seed, positive=0.5)
    b[0], b[1] = 1, 0
    auc = AUCMinMax.from_labels(b, dtype=torch.float64)
    p = b.double().mean().item()
    at = auc.saddle(h, b)
    torch.testing.assert_close(at.s, h[b == 1].mean().reshape(1))
    torch.testing.assert_close(at.r, h[b == 0].mean().reshape(1))
    torch.testing.assert_close(at.y, at.r - at.s)
    with torch.no_grad():
        for z, best in zip((auc.s, auc.r, auc.y), at, strict=True):
            z.copy_(best)
    pairs = torch.stack([(1 - i + j).square() for i, j in itertools.product(h[b == 1], h[b == 0])])
    torch.testing.assert_close(auc(h, b) + p * (1 - p), p * (1 - p) * pairs.mean(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("prior", [0.1, 0.3, 0.8])
def test_the_saddle_is_stationary_and_of_the_right_kind(prior):
    h, b = batch()
    h = h.detach()
    auc = AUCMinMax(prior, dtype=torch.float64)
    best = auc.saddle(h, b)

    def value(s, r, y):
        return AUCMinMax(prior, s, r, y, dtype=torch.float64)(h, b).item()

    at = value(*best)
    for step in (-0.1, 0.1):
        assert value(best.s + step, best.r, best.y) > at
        assert value(best.s, best.r + step, best.y) > at
        assert value(best.s, best.r, best.y + step) < at
    loss = AUCMinMax(prior, *best, dtype=torch.float64)
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
        ([float("nan"), 1.0, 0.0], r"nan"),
        ([1.0, 1.0 + 1e-6, 0.0], r"1\.000000"),
    ],
)
def test_other_labels_are_an_error_that_names_them(labels, values):
    text = (
        rf"labels=\[?.*{values}.*: must be \{{0, 1\}} or \{{-1, 1\}}, 1 the positive class; (map the classes|leave out)"
    )
    with pytest.raises(ValueError, match=text):
        AUCMinMax(0.3)(torch.zeros(3), torch.tensor(labels))
    with pytest.raises(ValueError, match=text):
        AUCMinMax.from_labels(labels)


@pytest.mark.parametrize("label", [1, 0, -1])
def test_a_batch_of_one_class_is_fine(label):
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
            r"scores of shape \(4, 2\) and labels of shape \(4,\): with 1 prior\(s\) the scores must be \(n,\)",
        ),
        ((4,), (5,), r"scores of shape \(4,\) and labels of shape \(5,\)"),
        ((2, 2), (4,), r"scores of shape \(2, 2\)"),
        ((1, 4), (4,), r"scores of shape \(1, 4\)"),
        ((0,), (0,), r"n >= 1"),
        ((), (1,), r"scores of shape \(\)"),
    ],
)
def test_shapes_that_do_not_fit(scores, labels, text):
    with pytest.raises(ValueError, match=text):
        AUCMinMax(0.3)(torch.zeros(scores), torch.zeros(labels))


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1, 1.5, float("nan"), [], [0.5, 0.0]], ids=str)
def test_bad_priors(prior):
    with pytest.raises(
        ValueError, match=r"prior=.* is invalid: it must lie in \(0, 1\)\. It is the share of positive labels"
    ):
        AUCMinMax(prior)


def test_labels_of_one_class_have_no_prior():
    with pytest.raises(
        ValueError, match=r"labels=1\.0 is invalid: has examples of one class alone, so there is no AUC\. Leave it out"
    ):
        AUCMinMax.from_labels([1, 1])
    with pytest.raises(ValueError, match=r"labels='column \[1\]' is invalid: has examples of one class alone"):
        AUCMinMax.from_labels([[1, 0], [0, 0]])
    with pytest.raises(ValueError, match=r"labels=\(0,\) is invalid: it must not be empty"):
        AUCMinMax.from_labels([])


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


def test_multi_class_is_each_class_against_the_rest():
    h = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    classes = torch.arange(30) % 4
    auc = AUCMinMax.from_labels(classes, num_classes=4, dtype=torch.float64)
    torch.testing.assert_close(auc.prior, torch.tensor([8, 8, 7, 7], dtype=torch.float64) / 30)
    one_hot = torch.nn.functional.one_hot(classes, 4)
    assert torch.equal(auc(h, classes), auc(h, one_hot))
    with pytest.raises(
        ValueError, match=r"labels=\(0, 4\) is invalid: it must lie in 0\.\.3\. Number the classes from 0"
    ):
        auc(h, classes + (classes == 3))
    with pytest.raises(
        ValueError, match=r"labels='torch.float32 of shape \(30,\)' is invalid: 4 classes need whole numbers"
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


def test_large_offsets_cost_no_digits():
    """(h - s)^2 is formed, not h^2 - 2hs + s^2: scores far from 0 keep theirs."""
    h, b = batch(64)
    near = AUCMinMax(0.5, 0.0, 0.0, -1.0)(h.float(), b)
    far = AUCMinMax(0.5, 4096.0, 4096.0, -1.0)(h.float() + 4096, b)
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-4)


def test_a_diverged_score_is_an_infinite_loss_and_no_crash():
    auc = AUCMinMax(prior=0.5)
    scores = torch.tensor([1e30, -1e30], requires_grad=True)
    loss = auc(scores, torch.tensor([1, 0]))
    assert loss.dtype == torch.float32
    assert loss.isinf()
    loss.backward()
    assert scores.grad.isfinite().all()


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
    assert repr(auc) == "AUCMinMax(prior=0.3)"
    assert repr(AUCMinMax([0.25, 0.5])) == "AUCMinMax(prior=[0.25, 0.5])"


def test_without_validation_any_label_but_one_is_negative():
    h, b = batch()
    auc = AUCMinMax(0.3, dtype=torch.float64, validate=False)
    assert torch.equal(auc(h, b * 2 - 1), auc(h, b))


@pytest.mark.slow
def test_compiled_loss_equals_eager():
    h, b = batch(dtype=torch.float32)
    auc = AUCMinMax(0.3, 0.2, 0.1, 0.5)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(auc, fullgraph=True)(h, 2 * b - 1), auc(h, b))


def train(kind, steps=300, **options):
    """AUC of a linear model on two overlapping clouds, a tenth positive."""
    generator = torch.Generator().manual_seed(0)
    b = (torch.rand(400, generator=generator) < 0.1).long()
    a = torch.randn(400, 5, generator=generator) + b[:, None] * torch.tensor([2.0, -1.0, 0.5, 0.0, 0.0])
    torch.manual_seed(0)
    model, auc = torch.nn.Linear(5, 1), AUCMinMax.from_labels(b)
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
def test_every_method_trains_it(kind, options):
    start, _ = train(kind, steps=0, **options)
    end, gap = train(kind, **options)
    assert start < 0.7
    assert end > 0.9, end
    assert gap < 0.5, gap


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"prior": "a"}, "prior='a': must be a number"),
        ({"prior": 0.5, "s": "a"}, "s='a': must be a number"),
        ({"prior": 0.5, "s": [1.0, 2.0]}, r"s=\(2,\) is invalid: it must be one number or have shape \(1,\)"),
        (
            {"prior": [0.5, 0.2], "y": [1.0, 2.0, 3.0]},
            r"y=\(3,\) is invalid: it must be one number or have shape \(2,\)",
        ),
    ],
)
def test_wrong_starts_are_told(given_, text):
    with pytest.raises(ValueError, match=text):
        AUCMinMax(**given_)


def test_a_cast_does_not_round_the_prior():
    """In bf16 0.999 would be 1, and p(1-p) = 0; in float64 every digit counts."""
    for auc in (AUCMinMax(0.999).bfloat16(), AUCMinMax(0.999, dtype=torch.bfloat16), AUCMinMax(0.999).half()):
        assert auc.s.dtype in (torch.bfloat16, torch.float16)
        assert auc.prior.dtype == torch.float32
        assert auc.prior.item() == torch.tensor(0.999).item()
        assert auc.saddle(torch.tensor([1.0, 0.0]), torch.tensor([1, 0])).y.isfinite().all()
    for auc in (AUCMinMax(0.3), AUCMinMax(0.3).half(), AUCMinMax(torch.tensor(0.3, dtype=torch.float64)).cpu()):
        assert auc.double().prior.item() == 0.3
    assert AUCMinMax.from_labels([1, 0, 0]).double().prior.item() == 1 / 3
    assert repr(AUCMinMax([0.1, 0.2])) == "AUCMinMax(prior=[0.1, 0.2])"


def test_a_prior_that_was_loaded_or_set_is_the_one_that_is_cast():
    auc = AUCMinMax(0.3)
    auc.load_state_dict(AUCMinMax(0.25).state_dict())
    assert auc.double().prior.item() == 0.25
    auc.prior.fill_(0.75)
    assert auc.float().prior.item() == 0.75
    with torch.device("meta"):
        empty = AUCMinMax(0.3)
    assert empty.double().prior.is_meta


@pytest.mark.parametrize(("drawn", "invariant"), [(0.25, True), (0.5, False)])
def test_the_prior_is_the_share_among_those_drawn(drawn, invariant):
    """Else the saddle value changes with a constant that is added to all scores."""
    auc, b = AUCMinMax(0.25, dtype=torch.float64), torch.arange(8) < 8 * drawn
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
        (lambda: AUCMinMax(0.3)(torch.zeros(2), torch.tensor([1, torch.nan])), ValueError, r"nan.*without a label"),
        (lambda: AUCMinMax.from_labels(1), ValueError, r"labels=1 is invalid: it must be a vector or a matrix"),
        (lambda: AUCMinMax.from_labels(["a", "b"]), ValueError, r"labels=\['a', 'b'\]: must be a number, a sequence"),
        (lambda: AUCMinMax.from_labels([[0], [1]], num_classes=2), ValueError, r"Try labels\.flatten\(\)\.long\(\)"),
    ],
)
def test_labels_that_are_none(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()


def draw(auc, share, batches, seed=0, size=32, views=1):
    generator = torch.Generator().manual_seed(seed)
    for k in range(batches):
        b = (torch.rand(size // views, generator=generator)[:, None] < torch.tensor(share)).repeat_interleave(views, 0)
        auc(torch.full(b.shape, float(k), requires_grad=True), b).backward()


def told(run, *arguments, **options):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(*arguments, **options)
    return [str(one.message) for one in found]


def test_a_sampler_that_does_not_draw_by_the_prior_is_told_once():
    text = r"of the first 2048 examples 0\.\d+ were positive, but prior=0\.1: .*pass the share"
    with pytest.warns(UserWarning, match=text) as found:
        draw(AUCMinMax(0.1), [0.5], 300)
    assert [warning.filename for warning in found] == [__file__]
    with pytest.warns(UserWarning, match=r"positive in class 1, but prior=0\.3"):
        draw(AUCMinMax([0.5, 0.3]), [0.5, 0.1], 64)
    with pytest.warns(UserWarning, match=r"but prior=0\.001"):
        draw(AUCMinMax(0.001), [0.5], 64)


def test_the_warning_names_the_line_of_the_user_and_comes_once_even_as_an_error():
    both = semaopt.losses.WithLoss(torch.nn.Identity(), AUCMinMax(0.1))
    with pytest.warns(UserWarning, match="prior") as found:
        draw(both, [0.5], 80)
    assert [warning.filename for warning in found] == [__file__]
    auc = AUCMinMax(0.1)
    draw(auc, [0.5], 63)
    with pytest.raises(UserWarning, match="prior"):
        draw(auc, [0.5], 1)
    draw(auc, [0.5], 80)


@pytest.mark.parametrize("views", [1, 8, 32])
@pytest.mark.parametrize("prior", [1e-4, 0.01, 0.1, 0.5, 0.99])
def test_even_draws_are_not_told_of(prior, views):
    for seed in range(20):
        assert told(draw, AUCMinMax(prior), [prior], 64, seed, views=views) == []


def test_many_rare_classes_are_not_told_of():
    assert told(draw, AUCMinMax([1e-4] * 500), [1e-4] * 500, 64) == []


def test_one_batch_that_is_used_again_counts_once():
    auc, b = AUCMinMax(0.1), torch.ones(32)

    def again():
        for _ in range(2000):
            auc(torch.zeros(32, requires_grad=True), b)

    assert told(again) == []


def test_only_training_is_watched_and_only_with_validation():
    auc, b, free, later = AUCMinMax(0.1), torch.ones(32), AUCMinMax(0.1, validate=False), AUCMinMax(0.1)
    later.validate = False
    for k in range(100):
        free(torch.full((32,), float(k), requires_grad=True), b)
        later(torch.full((32,), float(k), requires_grad=True), b)
        with torch.no_grad():
            auc(torch.full((32,), float(k)), b)
    auc.eval()
    draw(auc, [0.5], 100)
    auc.train()
    draw(auc, [0.5], 63)
    with pytest.warns(UserWarning, match=r"of the first 2048 examples"):
        draw(copy.deepcopy(auc), [0.5], 1)


def test_shapes_alone_are_enough():
    auc = AUCMinMax([0.3, 0.4]).to("meta")
    h, b = torch.zeros(4, 2, device="meta"), torch.zeros(4, 2, dtype=torch.bool, device="meta")
    assert auc(h, b).shape == ()
    with torch.device("meta"):
        empty = AUCMinMax(0.3)
    assert empty.to_empty(device="cpu").prior.item() == torch.tensor(0.3).item()


def test_the_variables_are_where_the_prior_is():
    p = torch.tensor([0.3], dtype=torch.float64)
    with torch.device("meta"):
        inside = AUCMinMax(p)
    for auc in (inside, AUCMinMax(p, s=p, device="meta")):
        assert {x.device.type for x in (auc.prior, auc.s, auc.r, auc.y)} == {"meta"}
        assert auc.double().to_empty(device="cpu").prior.item() == 0.3
