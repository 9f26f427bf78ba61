"""The methods of imbalanced.py. Each trains several networks of one shape, its members, as one stacked network.

Losses and optimizers treat the members separately, so a member ends, up to rounding, where it would have ended alone.
The operations of small networks cost about the same for ten members as for one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import semaopt

BATCH = 32


class Networks(nn.Module):
    """Networks d-64-64-1, one for each seed; parameters have the shape (members, ...)."""

    def __init__(self, inputs: int, seeds: list[int]) -> None:
        super().__init__()
        layers = zip(*(self._layers(inputs, seed) for seed in seeds), strict=True)
        self.stacked = nn.ParameterList(nn.Parameter(torch.stack(one)) for one in layers)

    @staticmethod
    def _layers(inputs: int, seed: int) -> list[Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        return [x.detach() for one in layers for x in (one.weight.T, one.bias[None])]

    def forward(self, a: Tensor, members: slice = slice(None)) -> Tensor:
        """Return the scores (members, n) of inputs (members, n, d)."""
        w1, b1, w2, b2, w3, b3 = (x[members] for x in self.stacked)
        h = torch.baddbmm(b1, a, w1).relu()
        h = torch.baddbmm(b2, h, w2).relu()
        return torch.baddbmm(b3, h, w3).squeeze(-1)


@dataclass
class Setup:
    """A loss ``loss(scores, labels, index)`` of (members, n) tensors, the sum over the members, and its optimizer.

    ``samplers`` has a batch sampler for each member; None draws uniform batches.
    """

    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    samplers: list[Any] | None = None


@dataclass(frozen=True)
class Task:
    """Training labels (members, n) and the seed of each member."""

    b: Tensor
    seeds: list[int]

    def balanced(self, share: float) -> list[Any] | None:
        """Return samplers with that share of positives, or None for 0."""
        if not share:
            return None
        pairs = zip(self.b, self.seeds, strict=True)
        return [semaopt.samplers.ClassBalanced(b, BATCH, positives=share, seed=seed) for b, seed in pairs]


def each(losses: list[Any], h: Tensor, b: Tensor, index: Tensor) -> Tensor:
    """Return the sum of one loss object per member."""
    values = [loss(*one) for loss, *one in zip(losses, h, b, index, strict=True)]
    return torch.stack(values).sum()


#: Other scores with values in (0, 1).
BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid4": lambda h: (4 * h).sigmoid(),
    "sigmoid.25": lambda h: (h / 4).sigmoid(),
    "erf": lambda h: 0.5 + 0.5 * (h / 2**0.5).erf(),
    "arctan": lambda h: 0.5 + h.atan() / math.pi,
    "softsign": lambda h: 0.5 + 0.5 * nn.functional.softsign(h),
    "clamp": lambda h: (h + 0.5).clamp(0, 1),
}


def primal_dual(kind: type, parameters: list[nn.Parameter], task: Task, **options: Any) -> Setup:
    """PDAda or PDSM on AUCMinMax; options of the loss are score, margin, surrogate, start (of s and r) and balanced.

    ``score`` may also be a key of ``BOUNDED``.
    """
    samplers = task.balanced(options.pop("balanced", 0.0))
    chosen = {name: options.pop(name) for name in ("score", "margin", "surrogate") if name in options}
    start = options.pop("start", None)
    bounded = BOUNDED.get(chosen.get("score", ""))
    if bounded:
        chosen["score"], start = "linear", 0.5 if start is None else start
    priors = torch.cat([one.prior for one in samplers]) if samplers else task.b.double().mean(1)
    auc = semaopt.losses.AUCMinMax(priors, s=start, r=start, validate=False, **chosen)  # a member is a column
    primal = [*parameters, *auc.primal_parameters()]
    optimizer = kind(primal=primal, dual=auc.dual_parameters(), **options)
    return Setup(lambda h, b, _: auc(bounded(h.T) if bounded else h.T, b.T) * len(b), optimizer, samplers)


RATES = ("lr", "beta", "weight_decay", "decoupled_weight_decay", "scaling")


def tracked(name: str, parameters: list[nn.Parameter], task: Task, **options: Any) -> Setup:
    """AveragePrecision or PartialAUC with ASA, batches balanced by default."""
    samplers = task.balanced(options.pop("balanced", 0.5))
    rates = {key: options.pop(key) for key in RATES if key in options}
    loss, n = getattr(semaopt.losses, name), task.b.shape[1]
    prior = options.pop("prior", None)  # None: the prior of each batch
    priors = task.b.double().mean(1).tolist() if prior == "data" else [prior] * len(task.b)
    losses = [loss(n, prior=p, validate=False, **options) for p in priors]
    return Setup(functools.partial(each, losses), semaopt.ASA(parameters, **rates), samplers)


def stacked_margin_loss(size: int) -> Any:
    """LibAUC's AUCMLoss, version v1 with the prior of each batch (its defaults), for (members, n) scores."""
    from libauc.losses.auc import AUCMLoss

    class Stacked(AUCMLoss):  # type: ignore[misc]
        def forward(self, h: Tensor, b: Tensor) -> Tensor:
            w = (b == 1).to(h.dtype)
            p = w.mean(1, keepdim=True)

            def mean(x: Tensor) -> Tensor:
                return x.mean(1, keepdim=True)

            value = (
                (1 - p) * mean((h - self.a) ** 2 * w)
                + p * mean((h - self.b) ** 2 * (1 - w))
                + 2 * self.alpha * (p * (1 - p) * self.margin + mean(p * h * (1 - w) - (1 - p) * h * w))
                - p * (1 - p) * self.alpha**2
            )
            return value.sum()

    loss = Stacked(device="cpu")
    for name in ("a", "b", "alpha"):
        setattr(loss, name, nn.Parameter(torch.zeros(size, 1)))
    return loss


def pesg(parameters: list[nn.Parameter], task: Task, **options: Any) -> Setup:
    """LibAUC's AUC-margin loss, applied to probabilities as in LibAUC's tutorials."""
    from libauc.optimizers.pesg import PESG

    loss = stacked_margin_loss(len(task.b))
    torch.manual_seed(task.seeds[0])  # of its random reference point
    optimizer = PESG(parameters, loss_fn=loss, verbose=False, device=torch.device("cpu"), **options)
    for m, seed in enumerate(task.seeds if len(task.seeds) > 1 else ()):  # as a member alone would draw it
        torch.manual_seed(seed)
        for reference in optimizer.model_ref or ():
            reference[m] = torch.empty(reference[m].shape).normal_(mean=0, std=0.01)
    return Setup(lambda h, b, _: loss(h.sigmoid(), b), optimizer)


def libauc(loss_name: str, optimizer_name: str, parameters: list[nn.Parameter], task: Task, **options: Any) -> Setup:
    """A LibAUC loss of (scores, labels, index) with its optimizer, and batches as from its DualSampler."""
    from libauc import losses, optimizers

    kind, n = getattr(losses.auc, loss_name), task.b.shape[1]
    chosen = [{"pos_len": int(b.sum())} if "CVaR" in loss_name else {} for b in task.b]
    made = [kind(data_len=n, device="cpu", **given) for given in chosen]
    optimizer = getattr(optimizers, optimizer_name)(
        parameters, loss_fn=made[0], verbose=False, device=torch.device("cpu"), **options
    )
    return Setup(lambda h, b, i: each(made, h.sigmoid()[..., None], b[..., None], i), optimizer, task.balanced(0.5))


def cross_entropy(
    parameters: list[nn.Parameter], task: Task, weighted: float = 0, focal: float = 0, **options: Any
) -> Setup:
    """Binary cross-entropy with Adam; ``weighted`` by the inverse class frequencies, or ``focal`` with its exponent.

    With ``decoupled_weight_decay`` it is AdamW.
    """
    positives = task.b.sum(1, keepdim=True)
    weight = (task.b.shape[1] - positives) / positives if weighted else None
    samplers = task.balanced(options.pop("balanced", 0.0))

    def loss(h: Tensor, b: Tensor, _: Tensor) -> Tensor:
        one = nn.functional.binary_cross_entropy_with_logits(h, b.to(h.dtype), pos_weight=weight, reduction="none")
        if focal:
            one = one * (1 - (-one).exp()) ** focal
        return one.mean(1).sum()

    kind = torch.optim.AdamW if options.pop("decoupled_weight_decay", False) else torch.optim.Adam
    return Setup(loss, kind(parameters, fused=True, **{"lr": 1e-3, **options}), samplers)


NETWORKS: dict[str, Callable[..., Setup]] = {
    "PDAda": functools.partial(primal_dual, semaopt.PDAda),
    "PDSM": functools.partial(primal_dual, semaopt.PDSM),
    "AP": functools.partial(tracked, "AveragePrecision"),
    "pAUC": functools.partial(tracked, "PartialAUC"),
    "LibAUC PESG": pesg,
    "LibAUC SOAP": functools.partial(libauc, "AveragePrecisionLoss", "SOAP"),
    "LibAUC SOPAs": functools.partial(libauc, "pAUC_DRO_Loss", "SOPAs"),
    "LibAUC SOPA": functools.partial(libauc, "pAUC_CVaR_Loss", "SOPA"),
    "LibAUC SOTAs": functools.partial(libauc, "tpAUC_KL_Loss", "SOTAs"),
    "BCE": cross_entropy,
    "weighted BCE": functools.partial(cross_entropy, weighted=1),
    "focal": functools.partial(cross_entropy, focal=2.0),
}
OTHERS = ("logistic regression", "boosted trees")


def parsed(method: str) -> tuple[str, dict[str, Any]]:
    """Split ``"PDAda[lr=3e-3,cosine=1]"`` into a name and its options."""
    name, _, rest = method.partition("[")
    pairs = (pair.partition("=") for pair in rest.rstrip("]").split(",") if pair)
    return name, {key: number(value) for key, _, value in pairs}


def number(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


def epoch(setup: Setup, n: int, generators: list[torch.Generator]) -> Iterator[Tensor]:
    """Yield the indices (members, BATCH) of the batches of an epoch."""
    if setup.samplers is None:
        order = torch.stack([torch.randperm(n, generator=one) for one in generators])
        yield from order.split(BATCH, 1)
    else:
        yield from torch.tensor([list(one) for one in setup.samplers]).unbind(1)


def train(  # noqa: PLR0917  # the data, then who trains on it
    method: str, a: Tensor, b: Tensor, which: list[int], seeds: list[int], epochs: int
) -> Networks:
    """Train a network for each member.

    Args:
        method: name and options, as for :func:`fit`.
        a, b: inputs (folds, n, d) and labels (folds, n).
        which, seeds: the fold and the seed of each member.
        epochs: unless the method has its own.
    """
    networks, flat_a, flat_b = Networks(a.shape[-1], seeds), a.flatten(0, 1), b.flatten()
    offset = torch.tensor(which)[:, None] * b.shape[1]
    fit(
        method,
        lambda index: (networks(flat_a[index + offset]), flat_b[index + offset]),
        list(networks.parameters()),
        Task(b[which], seeds),
        epochs,
    )
    return networks


Forward = Callable[[Tensor], tuple[Tensor, Tensor]]


def fit(method: str, forward: Forward, parameters: list[nn.Parameter], task: Task, epochs: int) -> None:
    """Train the parameters.

    Args:
        method: name and options. The options of the training are epochs, ``cosine=1`` for a cosine decay of all rates,
            ``stages=1`` for LibAUC's decay, ``warm``, the number or share of first epochs with cross-entropy,
            ``average``, the power of the polynomial average that replaces the last iterate, ``centered=1``, which
            subtracts the mean score of each batch before the loss, and ``total_decay``, which sets the decoupled weight
            decay to this number, divided by the learning rate (1e-3 unless given) and the number of steps.
        forward: returns the scores and the labels (members, batch) for an index of this shape.
        parameters: of the network, or of the stacked networks.
        task: labels and seeds of the members.
        epochs: unless the method has its own.
    """
    name, options = parsed(method)
    cosine, stages = bool(options.pop("cosine", 0)), bool(options.pop("stages", 0))
    epochs, warm = int(options.pop("epochs", epochs)), options.pop("warm", 0)
    warm, power = int(warm * epochs if warm < 1 else warm), options.pop("average", None)
    centered, total = bool(options.pop("centered", 0)), options.pop("total_decay", 0)
    generators = [torch.Generator().manual_seed(seed) for seed in task.seeds]
    n = task.b.shape[1]
    if warm:
        run(cross_entropy(parameters, task), forward, n, generators, range(warm))
    steps = (epochs - warm) * math.ceil(n / BATCH)
    if total:
        decay = total / steps / options.get("lr", 1e-3)
        options |= {"weight_decay": decay, "decoupled_weight_decay": True}
    setup = NETWORKS[name](parameters, task, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(setup.optimizer, steps) if cosine else None
    iterates = None
    if power is not None:
        iterates = semaopt.Iterates(setup.optimizer, ("average",), average="polynomial", power=power)
    for k in range(epochs - warm):
        if stages and k in ((epochs - warm) // 2, 3 * (epochs - warm) // 4):  # as in LibAUC's tutorials
            setup.optimizer.update_regularizer(decay_factor=10)  # type: ignore[attr-defined]
        run(setup, centering(forward) if centered else forward, n, generators, range(1), schedule)
    if iterates is not None:
        last = [x for group in setup.optimizer.param_groups for x in group["params"]]
        torch._foreach_copy_([x.detach() for x in last], iterates.average())


def centering(forward: Forward) -> Forward:
    """Subtract the mean score of the batch, of each member."""

    def centered(index: Tensor) -> tuple[Tensor, Tensor]:
        scores, labels = forward(index)
        return scores - scores.mean(1, keepdim=True), labels

    return centered


def run(  # noqa: PLR0917  # what is trained, and for how long
    setup: Setup,
    forward: Forward,
    n: int,
    generators: list[torch.Generator],
    epochs: range,
    schedule: Any = None,
) -> None:
    for _ in epochs:
        for index in epoch(setup, n, generators):
            setup.optimizer.zero_grad()
            scores, labels = forward(index)
            setup.loss(scores, labels, index).backward()
            setup.optimizer.step()
            if schedule is not None:
                schedule.step()


def classical(method: str, a: Tensor, b: Tensor, test_a: Tensor) -> np.ndarray:
    """Return the test scores of a method of scikit-learn; both methods are independent of the seed here."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    name, options = parsed(method)
    if name == "boosted trees":
        options = {key: int(value) if key == "max_leaf_nodes" else value for key, value in options.items()}
        fitted = HistGradientBoostingClassifier(random_state=0, **options)
    else:
        fitted = LogisticRegression(class_weight="balanced", max_iter=1000, **options)
    return fitted.fit(a.numpy(), b.numpy()).predict_proba(test_a.numpy())[:, 1]
