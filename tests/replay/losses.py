"""The losses with random options over several batches, against numpy."""

import warnings

import numpy as np
import torch

from semaopt import losses
from tests.replay.draws import deviation
from tests.replay.plain import losses as plain

SIZE, BATCH, BATCHES = 12, 7, 5


def labels_of(draw, *shape, missing=0.0):
    b = (draw.rng.random(shape) < 0.4).astype(float)
    b[draw.rng.random(shape) < missing] = np.nan
    return b


def auc(draw):
    columns, margin, score = draw.pick([1, 1, 3]), draw.rate(0.5, 2), draw.pick(["sigmoid", "linear"])
    p, s, r, y = draw.rng.uniform(0.05, 0.95, columns), *draw.normal(3, columns)
    loss = losses.AUCMinMax(p, s, r, y, score=score, margin=margin, dtype=torch.float64)
    raw, b = draw.normal(BATCH, columns), labels_of(draw, BATCH, columns, missing=draw.pick([0.0, 0.3]))
    scores = torch.tensor(raw).squeeze(1).requires_grad_() if columns == 1 else torch.tensor(raw, requires_grad=True)
    given = torch.tensor(2 * b - 1 if draw.yes() else b)
    value = loss(scores, given.squeeze(1) if columns == 1 else given)
    value.backward()
    act = plain.sigmoid if score == "sigmoid" else lambda h: h
    expected = [
        plain.auc(act(raw), b, p, s, r, y, margin),
        plain.gradient(lambda h: plain.auc(act(h), b, p, s, r, y, margin), raw),
        plain.gradient(lambda v: plain.auc(act(raw), b, p, v, r, y, margin), s),
        plain.gradient(lambda v: plain.auc(act(raw), b, p, s, v, y, margin), r),
        plain.gradient(lambda v: plain.auc(act(raw), b, p, s, r, v, margin), y),
    ]
    return deviation([value, scores.grad.reshape(raw.shape), loss.s.grad, loss.r.grad, loss.y.grad], expected)


def dro(draw):
    strength, regularizer = draw.rate(0.1, 3), draw.pick(["kl", "chi2"])
    p, pi = draw.rng.dirichlet(np.ones(6)), draw.rng.dirichlet(np.full(6, 3.0))
    loss = losses.DRO(6, strength, regularizer, torch.tensor(pi), dtype=torch.float64)
    loss.weights.data.copy_(torch.tensor(p))
    each, index = draw.normal(BATCH), draw.rng.integers(6, size=BATCH)
    given = torch.tensor(each, requires_grad=True)
    value = loss(given, torch.tensor(index))
    value.backward()
    options = pi, strength, regularizer
    expected = [
        plain.dro(each, index, p, *options),
        plain.gradient(lambda v: plain.dro(v, index, p, *options), each),
        plain.gradient(lambda v: plain.dro(each, index, v, *options), p),
    ]
    return deviation([value, given.grad, loss.weights.grad], expected)


def batches(draw, loss, twin, make, call):
    """Largest deviation of values and gradients over several batches, with averages that carry over between them.

    ``make()`` returns the input, the further arguments of our loss, and the numpy value as a function of the input.
    """
    found, expected = [], []
    for _ in range(BATCHES):
        raw, rest, value = make()
        x = torch.tensor(raw, requires_grad=True)
        ours = call(loss, x, *(torch.tensor(a) for a in rest))
        ours.backward()
        found += [ours, x.grad]
        expected += [*twin.step(value, raw)]
    return deviation(found, expected)


def common(draw):
    score = draw.pick(["sigmoid", "linear"])
    options = {"inner_beta": draw.pick([0.0, 0.5, 0.9]), "score": score, "margin": draw.rate(0.5, 2)}
    return options, plain.sigmoid if score == "sigmoid" else lambda h: h


def index_of(draw):
    return draw.rng.permutation(SIZE)[:BATCH]


def average_precision(columns):
    def case(draw):
        options, act = common(draw)
        prior = draw.pick([None, np.float32(draw.rng.uniform(0.1, 0.9, columns)).astype(float)])
        given = None if prior is None else float(prior[0]) if columns == 1 else prior
        loss = (
            losses.AveragePrecision(SIZE, prior=given, **options)
            if columns == 1
            else losses.MeanAveragePrecision(SIZE, columns, prior=given, **options)
        ).double()
        loss.closed_form = draw.yes()
        twin, missing = plain.AveragePrecision(options["inner_beta"]), draw.pick([0.0, 0.2])

        def make():
            b, index = labels_of(draw, BATCH, columns, missing=missing), index_of(draw)
            value = lambda h: twin.value(act(h), b, index, prior, options["margin"])  # noqa: E731
            return draw.normal(BATCH, columns), (b, index), value

        return batches(draw, loss, twin, make, lambda loss, x, b, index: loss(x, b, index))

    return case


def partial_auc(draw):
    options, act = common(draw)
    own = {"method": draw.pick(["kl", "cvar"]), "max_fpr": draw.rate(0.1, 1), "min_tpr": draw.pick([None, 0.4])}
    lam, outer = draw.rate(0.3, 3), draw.pick([None, draw.rate(0.3, 3)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is ignored by", category=UserWarning)
        loss = losses.PartialAUC(SIZE, temperature=lam, positive_temperature=outer, **own, **options).double()
    loss.closed_form = draw.yes()
    twin = plain.PartialAUC(options["inner_beta"])

    def make():
        b, index = labels_of(draw, BATCH), index_of(draw)
        value = lambda h: twin.value(act(h), b, index, options["margin"], lam=lam, outer=outer or lam, **own)  # noqa: E731
        return draw.normal(BATCH), (b, index), value

    return batches(draw, loss, twin, make, lambda loss, x, b, index: loss(x, b, index))


def ndcg(draw):
    options, act = common(draw)
    relevance, query = draw.rng.integers(4, size=SIZE).astype(float), draw.rng.integers(3, size=SIZE)
    top_k, tau = draw.pick([None, 2, 20]), draw.rate(0.05, 1)
    loss = losses.NDCG(relevance, query, top_k=top_k, gate_temperature=tau, **options).double()
    twin = plain.NDCG(options["inner_beta"])

    def make():
        index = index_of(draw)
        value = lambda h: twin.value(act(h), relevance[index], index, relevance, query, options["margin"], top_k, tau)  # noqa: E731
        return draw.normal(BATCH), (relevance[index], index), value

    return batches(draw, loss, twin, make, lambda loss, x, rel, index: loss(x, rel, index))


def contrastive(draw):
    beta, own = draw.pick([0.0, 0.5, 0.9]), {"form": draw.pick(["pairs", "views"]), "eps": draw.pick([0.0, 1e-14, 0.1])}
    tau = draw.rate(0.1, 2)
    loss = losses.GlobalContrastive(SIZE, tau, inner_beta=beta, **own).double()
    twin = plain.GlobalContrastive(beta)

    def make():
        index = draw.rng.permutation(SIZE)[:4]
        return draw.normal(2, 4, 3), (index,), lambda z: twin.value(z, index, tau, **own)

    return batches(draw, loss, twin, make, lambda loss, x, index: loss(x[0], x[1], index))


CASES = {
    "AUCMinMax": auc,
    "DRO": dro,
    "AveragePrecision": average_precision(1),
    "MeanAveragePrecision": average_precision(3),
    "PartialAUC": partial_auc,
    "NDCG": ndcg,
    "GlobalContrastive": contrastive,
}
