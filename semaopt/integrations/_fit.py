"""Training on arrays: network, loss and optimizer of :class:`semaopt.integrations.sklearn.AUCClassifier`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from semaopt.kernels.auc import Numbers, Result, auc
from semaopt.losses import AUCMinMax, MeanAveragePrecision, PartialAUC
from semaopt.optimizers import ASA, PDAda
from semaopt.samplers import ClassBalanced

Array = Any


class Rows:
    """Standardized rows of a dense or sparse (CSR) matrix as float32 tensors; sparse rows become dense per batch."""

    def __init__(self, x: Array, mean: Array, scale: Array) -> None:
        self.sparse = not isinstance(x, np.ndarray)
        self.x = x.multiply(1 / scale).tocsr() if self.sparse else (x - mean) / scale
        self._table: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.x.shape[0])

    def dense(self, rows: Array) -> Tensor:
        """Return these rows in float64."""
        part = self.x[rows]
        return torch.from_numpy(np.asarray(part.toarray() if self.sparse else part, dtype=np.float64))

    def batches(self, index: Sequence[Tensor], kind: dict[str, Any]) -> Iterator[Tensor]:
        """Yield the rows of each batch."""
        if self.sparse:
            yield from (self.dense(one.numpy()).to(**kind) for one in index)
        else:
            if self._table is None:
                self._table = torch.from_numpy(self.x).to(**kind)
            table = self._table
            yield from (table.index_select(0, one.to(table.device)) for one in index)

    def chunks(self, size: int = 4096) -> Iterator[Tensor]:
        """Yield all rows in order."""
        yield from (self.dense(slice(k, k + size)) for k in range(0, len(self), size))


def moments(x: Array, weight: Array) -> tuple[Array, Array]:
    """Return the weighted means (0 for sparse ``x``) and standard deviations (1 where constant) of the columns."""
    share = weight / weight.sum()
    mean = np.asarray(share @ x).reshape(-1)
    if isinstance(x, np.ndarray):
        variance = share @ (x - mean) ** 2
        center = mean
    else:
        variance = np.asarray(share @ x.multiply(x)).reshape(-1) - mean**2
        center = np.zeros_like(mean)
    constant = variance <= 1e-12 * np.maximum(mean**2, 1e-30)
    return center, np.where(constant, 1.0, np.sqrt(np.maximum(variance, 0)))


def distinct(x: Array, labels: Tensor, weight: Array) -> tuple[Array, Array]:
    """Return one index for each distinct pair of row and labels, and its total weight.

    The order of the result depends on the values only. So repeating an example equals giving it an integer weight, the
    order of the examples is irrelevant, and copies of an example never land in both the training and validation part.
    """
    direction = np.random.default_rng(0).standard_normal(x.shape[1])
    product = x * direction if isinstance(x, np.ndarray) else x.multiply(direction)
    b = labels.nan_to_num(-1).numpy()
    order = np.lexsort([*b.T, np.asarray(product.sum(1)).reshape(-1)])
    x, b = x[order], b[order]
    if isinstance(x, np.ndarray):
        differs = (x[1:] != x[:-1]).any(1)
    else:
        differs = np.asarray(abs(x[1:] - x[:-1]).sum(1)).reshape(-1) > 0
    start = np.append(0, np.flatnonzero(differs | (b[1:] != b[:-1]).any(1)) + 1)
    return order[start], np.add.reduceat(weight[order], start)


def perceptron(features: int, hidden: Iterable[int], outputs: int, generator: torch.Generator | None) -> nn.Module:
    """Return a ReLU network with torch's initialization, drawn from ``generator``; None leaves it uninitialized.

    A linear model starts at 0: in a short training, random initial weights would decide the ranking.
    """
    sizes = [features, *hidden, outputs]
    linear = len(sizes) == 2
    layers: list[nn.Module] = []
    for n, m in itertools.pairwise(sizes):
        layer: nn.Module = nn.utils.skip_init(nn.Linear, n, m)  # type: ignore[no-untyped-call]
        if generator is not None:
            for x in layer.parameters():
                bound = 0.0 if linear else 1 / math.sqrt(n)
                nn.init.uniform_(x, -bound, bound, generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Perceptron:
    """Forward and backward pass of :func:`perceptron` without autograd, which takes longer than small layers compute.

    Args:
        network: what :func:`perceptron` returned.
    """

    def __init__(self, network: nn.Module) -> None:
        self.layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]

    @torch.no_grad()
    def forward(self, a: Tensor) -> Tensor:
        """Return the scores without a graph and keep the inputs of the layers for :meth:`backward`."""
        self.inputs = [a]
        for layer in self.layers[:-1]:
            self.inputs.append(torch.addmm(layer.bias, self.inputs[-1], layer.weight.t()).relu_())
        last = self.layers[-1]
        return torch.addmm(last.bias, self.inputs[-1], last.weight.t())

    @torch.no_grad()
    def backward(self, g: Tensor) -> None:
        """Set the gradients of the parameters, given the gradient of the scores."""
        for k in reversed(range(len(self.layers))):
            layer, h = self.layers[k], self.inputs[k]
            layer.weight.grad, layer.bias.grad = g.t() @ h, g.sum(0)
            if k > 0:
                g = torch.ops.aten.threshold_backward(g @ layer.weight, h, 0)


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of the training."""

    metric: str
    lr: float
    dual_lr: float
    beta: float
    weight_decay: float
    batch_size: int
    max_fpr: float


class Columns(nn.Module):
    """Mean of one partial AUC per label."""

    def __init__(self, size: int, labels: int, **options: Any) -> None:
        super().__init__()
        self.parts = nn.ModuleList(PartialAUC(size, **options) for _ in range(labels))

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """Return the mean over the labels."""
        values = [part(scores[:, k], labels[:, k], index) for k, part in enumerate(self.parts)]
        return torch.stack(values).mean()


class Learner:
    """A network with its loss and its optimizer.

    Args:
        network: maps (n, features) to (n,) or (n, labels).
        settings: hyper-parameters.
        prior: share of positives of each label in the training data.
        device: where the network trains.
        own: whether the network is not one of :func:`perceptron`.
    """

    def __init__(
        self, network: nn.Module, settings: Settings, prior: Tensor, device: Any, *, own: bool = False
    ) -> None:
        self.network, self.settings, self.prior = network.to(device), settings, prior
        self.perceptron = None if own else Perceptron(self.network)
        x = [x for x in network.parameters() if x.requires_grad]
        self.kind: dict[str, Any] = {"device": torch.device(device or "cpu"), "dtype": x[0].dtype}
        s = settings
        decay: dict[str, Any] = dict(weight_decay=s.weight_decay, decoupled_weight_decay=True)
        self.auc: AUCMinMax | None = None
        self.optimizer: PDAda | ASA
        if s.metric == "auroc":
            # The sigmoid of an output of 0 is 0.5: class means that start there do not pull a rare class to 0.
            self.auc = AUCMinMax(prior, s=0.5, r=0.5, validate=False).to(device)
            primal = [*x, *self.auc.primal_parameters()]  # one group is faster than two
            self.optimizer = PDAda(primal, self.auc.dual_parameters(), s.lr, s.dual_lr, s.beta, **decay)
        else:
            self.optimizer = ASA(x, lr=s.lr, beta=s.beta, **decay)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]

    def set_prior(self, prior: Tensor) -> None:
        """Change the share of positives when more data has arrived."""
        self.prior = prior
        if self.auc is not None:
            self.auc.prior.copy_(prior)

    def loss(self, size: int) -> nn.Module:
        """Return the loss for a training set of this size."""
        if self.auc is not None:
            return self.auc
        labels = len(self.prior)
        if self.settings.metric == "ap":
            inner = self.prior.float()
            return MeanAveragePrecision(size, labels, prior=inner, validate=False).to(self.kind["device"])
        options = dict(max_fpr=self.settings.max_fpr, method="cvar", validate=False)
        return Columns(size, labels, **options).to(self.kind["device"])

    def order(self, labels: Tensor, weight: Array | None, generator: torch.Generator) -> list[Tensor]:
        """Return the rows of each batch of an epoch.

        Weights are sampling probabilities: a row of weight w appears N w / sum(w) times, rounded up or down at
        random. N is the sum of the weights, but at least one and at most 100 times the number of rows. The ranking
        losses compare pairs within a batch, so half of each of their batches is positive.
        """
        size = self.settings.batch_size
        rows = torch.arange(len(labels)) if weight is None else resample(weight, generator)
        both = (labels[rows] == 1).any() and (labels[rows] == 0).any()
        if self.auc is None and both and size > 1:
            seed = int(torch.randint(2**31, (), generator=generator))
            sampler = ClassBalanced(labels[rows], size, seed=seed, num_replicas=1, rank=0)
            return [rows[torch.tensor(batch)] for batch in sampler]
        batches = list(torch.split(rows[torch.randperm(len(rows), generator=generator)], size))
        # Batch normalization rejects a batch of one row.
        return batches[:-1] if len(batches) > 1 and len(batches[-1]) == 1 else batches

    def epoch(self, loss: nn.Module, rows: Rows, labels: Tensor, order: list[Tensor], rate: float) -> float:
        """Train on these batches and return the mean loss; ``rate`` multiplies the learning rates."""
        for group, base in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = base * rate
        self.network.train()
        values, device = [], self.kind["device"]
        for a, batch in zip(rows.batches(order, self.kind), order, strict=True):
            index = batch.to(device)
            values.append(self._differentiate(loss, a, labels.index_select(0, batch).to(device), index))
            self.optimizer.step()
        return sum(float(value) for value in values) / len(values)

    def _differentiate(self, loss: nn.Module, a: Tensor, b: Tensor, index: Tensor) -> Tensor | float:
        """Set the gradients of a batch and return its loss."""
        if self.perceptron is not None:
            scores = self.perceptron.forward(a)
            found = self._auc(scores, b)
            if found is not None:
                self.perceptron.backward(found.by_scores)
                return found.value
        self.optimizer.zero_grad()
        scores = self.network(a).reshape(len(a), -1) if self.perceptron is None else scores.requires_grad_()
        if scores.shape[1] != len(self.prior):
            raise ValueError(
                f"module has {scores.shape[1]} outputs per example: it must have {len(self.prior)}, one score per "
                "label; for two classes that is one score, without a sigmoid"
            )
        value: Tensor = loss(scores, b) if self.auc is not None else loss(scores, b, index)
        value.backward()  # type: ignore[no-untyped-call]
        if self.perceptron is not None:
            assert scores.grad is not None
            self.perceptron.backward(scores.grad)
        return value.detach()

    def _auc(self, scores: Tensor, b: Tensor) -> Result | None:
        """Set the gradients of s, r, y and return the :class:`Result`, or None if the kernel does not support it."""
        loss = self.auc
        if loss is None or len(self.prior) > 1 or not scores.is_cpu:
            return None
        numbers = Numbers(loss.prior.item(), loss.s.item(), loss.r.item(), loss.y.item(), loss.margin, sigmoid=True)
        found = auc(scores, b, numbers)
        if found is not None:
            for x, g in ((loss.s, found.by_s), (loss.r, found.by_r), (loss.y, found.by_y)):
                x.grad = torch.full_like(x, g)
        return found


def resample(weight: Array, generator: torch.Generator) -> Tensor:
    """Return rows in proportion to their weights (systematic resampling); whole weights are exact counts.

    >>> import numpy as np
    >>> resample(np.array([2.0, 1.0, 1.0]), torch.Generator().manual_seed(0))
    tensor([0, 0, 1, 2])
    """
    n, total = len(weight), float(weight.sum())
    count = min(max(round(total), n), 100 * n)
    ends = torch.from_numpy(np.cumsum(weight) * (count / total))
    start = torch.rand((), generator=generator, dtype=torch.float64)
    return torch.searchsorted(ends, torch.arange(count) + start, right=True).clamp_max_(n - 1)


def cosine(epoch: int, epochs: int) -> float:
    """Return the factor of the learning rates in an epoch, counted from 0: a cosine from 1 towards 0."""
    return 0.5 * (1 + math.cos(math.pi * epoch / epochs))
