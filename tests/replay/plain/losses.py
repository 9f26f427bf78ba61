"""The losses, in numpy. Gradients are complex-step derivatives: f(x + i h e_k).imag / h, exact to rounding."""

import numpy as np

STEP = 1e-30


def gradient(value, x):
    """The gradient of ``value``, a function of a complex array."""
    found = np.zeros(x.shape)
    for k in np.ndindex(x.shape):
        moved = x.astype(complex)
        moved[k] += STEP * 1j
        found[k] = np.imag(value(moved)) / STEP
    return found


def positive_part(x):
    return np.where(np.real(x) > 0, x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def auc(h, labels, p, s, r, y, margin):
    """Mean of the objective over the labelled examples of each column, then over the columns that have a label."""
    columns = []
    for c in range(h.shape[1]):
        known = ~np.isnan(labels[:, c])
        if not known.any():
            continue
        b, a, q = labels[known, c] > 0, h[known, c], p[c]
        squares = np.where(b, (1 - q) * (a - s[c]) ** 2, q * (a - r[c]) ** 2)
        linear = 2 * (margin + y[c]) * np.where(b, -(1 - q) * a, q * a)
        columns.append((squares + linear).mean() - q * (1 - q) * y[c] ** 2)
    return sum(columns) / max(len(columns), 1)


def dro(losses, index, p, pi, strength, regularizer):
    kl = regularizer == "kl"
    divergence = (p * np.log(p / pi)).sum() if kl else ((p - pi) ** 2 / pi).sum() / 2
    return (p[index] / pi[index] * losses).mean() - strength * divergence


class Tracked:
    """Moving averages by key: z <- (1 - gamma) z + gamma g, starting at the first value; the derivative is taken of
    g."""

    def __init__(self, inner_beta):
        self.gamma, self.z, self.new = 1 - inner_beta, {}, {}

    def average(self, key, g):
        old = self.z.get(key, np.real(g))
        self.new[key] = old + self.gamma * (np.real(g) - old)
        return self.new[key] + 1j * np.imag(g)

    def step(self, value, x):
        """Value and gradient of one batch; updates the averages afterwards."""
        found = np.real(value(x.astype(complex))), gradient(value, x)
        self.z |= self.new
        return found


def hinge(above, below, margin):
    return positive_part(margin - above + below) ** 2


class AveragePrecision(Tracked):
    """``prior`` is None or one number per label; scores and labels are (n, C), index (n,)."""

    def value(self, h, labels, index, prior, margin):
        labels_with_rows = []
        for c in range(h.shape[1]):
            known, positive = ~np.isnan(labels[:, c]), labels[:, c] > 0
            negative = known & ~positive
            if not positive.any() or (prior is not None and not negative.any()):
                continue
            p, terms = positive.sum() / known.sum() if prior is None else prior[c], []
            for i in np.flatnonzero(positive):
                loss = hinge(h[i, c], h[:, c], margin)
                first = p * loss[positive].mean()
                second = first + (1 - p) * loss[negative].sum() / max(negative.sum(), 1)
                z = self.average((index[i], c, 0), first), self.average((index[i], c, 1), second)
                terms.append(1 - z[0] / z[1])
            labels_with_rows.append(sum(terms) / len(terms))
        return sum(labels_with_rows) / max(len(labels_with_rows), 1)


def upper_quantile(x, share):
    """The smallest value of x that at most ``share`` of the entries exceed."""
    ordered = x[np.argsort(-np.real(x), kind="stable")]
    return ordered[min(int(np.floor(share * len(x) * (1 + 1e-9))), len(x) - 1)]


class PartialAUC(Tracked):
    def value(self, h, labels, index, margin, method, max_fpr, min_tpr, lam, outer):
        positive, negative = np.flatnonzero(labels > 0), np.flatnonzero(labels <= 0)
        if not len(positive) or not len(negative):
            return 0.0
        losses = {i: hinge(h[i], h[negative], margin) for i in positive}
        if method == "kl":
            z = [self.average(index[i], np.exp(loss / lam).mean()) for i, loss in losses.items()]
            if min_tpr is None:
                return lam * sum(np.log(one) for one in z) / len(z)
            return outer * np.log(self.average("all", sum(one ** (lam / outer) for one in z) / len(z)))
        c = [self.worst_share((index[i], "s"), loss, max_fpr) for i, loss in losses.items()]
        if min_tpr is None:
            return sum(c) / len(c)
        c = np.array([self.average((index[i], "c"), one) for i, one in zip(positive, c, strict=True)])
        return self.worst_share("all", c, 1 - min_tpr)

    def worst_share(self, key, x, share):
        """s + E (x - s)_+ / share, where s is the tracked upper quantile.

        The entries that equal the quantile of the batch share the weight that is left; no derivative is negative.
        """
        real, quantile, count = np.real(x), np.real(upper_quantile(x, share)), share * len(x)
        s = np.real(self.average(key, quantile))
        larger, tied = real > s, real == quantile
        weights = np.maximum(larger + tied * (count - larger.sum()) / tied.sum(), 0) / count
        return s + positive_part(real - s).mean() / share + 1j * (weights * np.imag(x)).sum()


class NDCG(Tracked):
    def value(self, h, relevance, index, every_relevance, query, margin, top_k, tau):
        queries = []
        for q in np.unique(query[index]):
            own, all_own = np.flatnonzero(query[index] == q), every_relevance[query == q]
            best, n = np.sort(all_own)[::-1], len(all_own)
            counted = range(len(best) if top_k is None else min(top_k, len(best)))
            ideal = sum((2 ** best[k] - 1) / np.log2(2 + k) for k in counted)
            gate = np.ones(len(own)) if top_k is None else self.gate(h[own], q, min(top_k / n, 1.0), tau)
            gains = [
                g
                * (2 ** relevance[i] - 1)
                / np.log2(1 + n * self.average(index[i], hinge(h[i], h[own], margin).mean()))
                for i, g in zip(own, gate, strict=True)
            ]
            if ideal > 0:
                queries.append(sum(gains) * n / len(own) / ideal)
        return 1 - sum(queries) / len(queries) if queries else 0.0

    def gate(self, h, q, share, tau):
        """About 1 for the top K scores of the query: a sigmoid around their tracked threshold."""
        ordered = h[np.argsort(-np.real(h), kind="stable")]
        k = min(max(round(share * len(h)), 1), len(h))
        after = ordered[k] if k < len(h) else ordered[-1] - 1
        return sigmoid((h - self.average(("threshold", q), (ordered[k - 1] + after) / 2)) / tau)


class GlobalContrastive(Tracked):
    """``features`` is (2, n, d)."""

    def value(self, features, index, tau, form, eps):
        a, b = (x / np.sqrt((x**2).sum(1, keepdims=True)) for x in features)
        terms = []
        for direction, (x, y) in enumerate(((a, b), (b, a))):
            for i in range(len(x)):
                others = np.arange(len(x)) != i
                negatives = [y[others] @ x[i]] + ([x[others] @ x[i]] if form == "views" else [])
                g = np.exp((np.concatenate(negatives) - x[i] @ y[i]) / tau).mean()
                terms.append(tau * np.log(eps + self.average((index[i], direction), g)))
        return sum(terms) / len(terms)
