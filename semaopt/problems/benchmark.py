r"""The two main problems of benchopt's benchmark_bilevel, on data that is passed in as tensors.

Each problem has an upper parameter, a lower parameter, closures for optimizers, and the value function

.. math:: \Phi(x) = f(x, y^*(x)), \qquad \nabla\Phi(x) = f_x - g_{xy}\,[g_{yy}]^{-1} f_y \quad\text{at } y^*(x)

on all data: y*(x) by L-BFGS, the linear system by conjugate gradients, both in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from semaopt._validation import require
from semaopt.hypergradient.closures import Oracles
from semaopt.hypergradient.inverses import CG, Memory

Data = tuple[Tensor, Tensor]


class FiniteSumBilevel(ABC):
    """A bilevel problem whose two objectives are means over data sets.

    Args:
        lower_data, upper_data: the examples and labels of g and of f.
        upper, lower: the start of x and of y.
        batch: the number of examples in a sample.
        seed: seed of the order of the batches.
    """

    def __init__(
        self, lower_data: Data, upper_data: Data, upper: Tensor, lower: Tensor, *, batch: int = 64, seed: int = 0
    ) -> None:
        smallest = min(len(lower_data[1]), len(upper_data[1]))
        require(1 <= batch <= smallest, "batch", batch, f"must lie in 1..{smallest}", "try 64")
        self.lower_data, self.upper_data = lower_data, upper_data
        self.upper, self.lower = Parameter(upper), Parameter(lower)
        self.batch = batch
        generator = torch.Generator().manual_seed(seed)
        self._lower_batches = batches(len(lower_data[1]), batch, generator)
        self._upper_batches = batches(len(upper_data[1]), batch, generator)

    @abstractmethod
    def f(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return the mean upper loss on examples a with labels b."""

    @abstractmethod
    def g(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor, index: Tensor | None) -> Tensor:
        """Return the regularized mean lower loss on examples a with labels b and positions ``index`` (None: all)."""

    def outer(self) -> Tensor:
        """Return f on a fresh batch."""
        index = next(self._upper_batches)
        a, b = self.upper_data
        return self.f(self.upper, self.lower, a[index], b[index])

    def inner(self) -> Tensor:
        """Return g on a fresh batch."""
        index = next(self._lower_batches)
        a, b = self.lower_data
        return self.g(self.upper, self.lower, a[index], b[index], index)

    def solve_lower(self, tolerance: float = 1e-8) -> Tensor:
        """Return y*(x) at the current x in float64, by L-BFGS from the current y on all data."""
        a, b = _double(self.lower_data)
        x, y = self.upper.detach().double(), Parameter(self.lower.detach().double())
        solver = torch.optim.LBFGS(
            [y], max_iter=1000, tolerance_grad=tolerance, tolerance_change=0.0, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            solver.zero_grad()
            loss = self.g(x, y, a, b, None)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            solver.step(closure)  # type: ignore[no-untyped-call]
        return y.detach()

    def value(self) -> tuple[float, Tensor]:
        """Return Phi(x) and its gradient at the current x."""
        x, y = Parameter(self.upper.detach().double()), Parameter(self.solve_lower())
        lower, upper = _double(self.lower_data), _double(self.upper_data)
        oracles = Oracles(lambda: self.f(x, y, *upper), lambda: self.g(x, y, *lower, None), [x], [y])
        with torch.enable_grad():
            value, (f_x,), f_y = oracles.f()
            _, (implicit,) = CG(steps=1000, tolerance=1e-10)(oracles, f_y, Memory())
        gradient = torch.zeros_like(x) if f_x is None else f_x
        return value.item(), gradient if implicit is None else gradient - implicit


class RegularizationSelection(FiniteSumBilevel):
    r"""Selection of one ridge penalty per feature of a logistic regression (ijcnn1 in the benchmark).

    .. math::
        g(x, y) = \frac1n\sum_i \ln(1 + e^{-b_i a_i^Ty}) + \frac12\sum_j e^{x_j}y_j^2, \qquad
        f(y) = \frac1m\sum_i \ln(1 + e^{-b'_i a_i'^Ty})

    x_0 is the logarithm of uniform numbers on (0, 1), y_0 is normal.

    Args:
        train, test: the examples and labels (-1 or 1) of g and of f.
        batch: the number of examples in a sample.
        seed: seed of the start and of the order of the batches.

    >>> a, b = torch.randn(50, 3), torch.tensor([1.0, -1.0]).repeat(25)
    >>> problem = semaopt.problems.RegularizationSelection((a, b), (a, b), batch=10)
    >>> value, gradient = problem.value()
    >>> gradient.shape
    torch.Size([3])
    """

    def __init__(self, train: Data, test: Data, *, batch: int = 64, seed: int = 0) -> None:
        for name, (_, b) in (("train", train), ("test", test)):
            labels = sorted(set(b.tolist()))
            require(set(labels) <= {-1, 1}, f"labels of {name}", labels[:5], "must be -1 or 1", "pass 2 * b - 1")
        generator, d = torch.Generator().manual_seed(seed), train[0].shape[1]
        y = torch.randn(d, generator=generator, dtype=torch.float64, device="cpu")
        x = torch.rand(d, generator=generator, dtype=torch.float64, device="cpu").log()
        super().__init__(train, test, x.to(train[0]), y.to(train[0]), batch=batch, seed=seed)

    def f(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return functional.softplus(-b.to(a.dtype) * (a @ lower)).mean()

    def g(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor, index: Tensor | None) -> Tensor:
        return functional.softplus(-b.to(a.dtype) * (a @ lower)).mean() + (upper.exp() * lower.square()).sum() / 2


class SoftmaxCleaning(FiniteSumBilevel):
    r"""Hyper-cleaning with a softmax regression (MNIST in the benchmark).

    .. math::
        g(x, y) = \frac1n\sum_i \sigma(x_i)\,CE(y; a_i, b_i) + r|y|^2, \qquad f(y) = \frac1m\sum_i CE(y; a'_i, b'_i)

    x_0 = -2 and y_0 = 0. A fraction of the training labels is replaced by uniformly random labels. The features are
    standardized with the mean and the standard deviation of the training set.

    Args:
        train, valid, test: features and labels 0..K-1 of g, of f, and for :meth:`error`.
        corruption: the fraction of training labels that is replaced.
        ridge: r.
        batch: the number of examples in a sample.
        seed: seed of the replaced labels and of the order of the batches.
    """

    def __init__(
        self,
        train: Data,
        valid: Data,
        test: Data,
        *,
        corruption: float = 0.5,
        ridge: float = 0.2,
        batch: int = 64,
        seed: int = 0,
    ) -> None:
        require(0 <= corruption < 1, "corruption", corruption, "must lie in [0, 1)", "try 0.5")
        generator, (a, b) = torch.Generator().manual_seed(seed), train
        classes = int(b.max()) + 1
        self.corrupted = torch.rand(len(b), generator=generator, device="cpu") < corruption
        random = torch.randint(classes, (len(b),), generator=generator, device="cpu")
        mean, deviation = a.mean(0), a.std(0, correction=0)
        deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        self.ridge, self.test = ridge, ((test[0] - mean) / deviation, test[1])
        noisy = torch.where(self.corrupted.to(b.device), random.to(b), b)
        super().__init__(
            ((a - mean) / deviation, noisy),
            ((valid[0] - mean) / deviation, valid[1]),
            a.new_full((len(b),), -2.0),
            a.new_zeros(a.shape[1], classes),
            batch=batch,
            seed=seed,
        )

    def f(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(a @ lower, b)

    def g(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor, index: Tensor | None) -> Tensor:
        weights = (upper if index is None else upper[index]).sigmoid()
        losses = functional.cross_entropy(a @ lower, b, reduction="none")
        return (weights * losses).mean() + self.ridge * lower.square().sum()

    @torch.no_grad()
    def error(self) -> float:
        """Return the test error of the current y."""
        a, b = self.test
        return float(((a @ self.lower).argmax(1) != b).double().mean())


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the indices of the batches of endless shuffled epochs, without incomplete last batches."""
    while True:
        order = torch.randperm(n, generator=generator, device="cpu")
        yield from torch.split(order[: n - n % size], size)


def _double(data: Data) -> Data:
    """Return the data with examples in float64."""
    return data[0].double(), data[1]
