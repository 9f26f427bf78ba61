r"""The two main problems of benchopt's benchmark_bilevel, on data that is passed in as tensors.

Each problem has an upper parameter, a lower parameter, closures for optimizers, and the value function

.. math:: \Phi(x) = f(x, y^*(x)), \qquad \nabla\Phi(x) = f_x - g_{xy}\,[g_{yy}]^{-1} f_y \quad\text{at } y^*(x)

on all data, in float64. For the small problem y*(x) and the linear system are solved by Newton's method, for the
large one by L-BFGS and conjugate gradients. Samples are the batches of a fixed partition, so each has a number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from semaopt._validation import DivergenceError, require
from semaopt.hypergradient.closures import Oracles
from semaopt.hypergradient.inverses import CG, Memory

Data = tuple[Tensor, Tensor]
_ALL = slice(None)
#: The largest number of lower variables whose Hessian is formed.
NEWTON = 500


class FiniteSumBilevel(ABC):
    """A bilevel problem whose two objectives are means over data sets.

    The rows of both sets are shuffled once and split into batches of nearly equal size. The loss of a batch is weighted
    such that the mean over all batches is the objective on all data.

    Args:
        lower_data, upper_data: the examples and labels of g and of f.
        upper, lower: the start of x and of y.
        batch: the largest number of examples in a sample.
        seed: seed of the order of the rows and of the batches.
    """

    def __init__(
        self, lower_data: Data, upper_data: Data, upper: Tensor, lower: Tensor, *, batch: int = 64, seed: int = 0
    ) -> None:
        smallest = min(len(lower_data[1]), len(upper_data[1]))
        require(1 <= batch <= smallest, "batch", batch, f"must lie in 1..{smallest}", "try 64")
        generator = torch.Generator().manual_seed(seed)
        #: The rows of the given data, in the order in which this problem keeps them.
        self.lower_order, self.upper_order = (
            torch.randperm(len(b), generator=generator, device="cpu") for _, b in (lower_data, upper_data)
        )
        self.lower_data = lower_data[0][self.lower_order], lower_data[1][self.lower_order]
        self.upper_data = upper_data[0][self.upper_order], upper_data[1][self.upper_order]
        self.upper, self.lower = Parameter(upper), Parameter(lower)
        self._upper_batches, self._lower_batches = (partition(len(b), batch) for _, b in (upper_data, lower_data))
        self._upper_numbers, self._lower_numbers = (epochs(n, generator) for n in self.samples)

    @property
    def samples(self) -> tuple[int, int]:
        """The numbers of batches of f and of g."""
        return len(self._upper_batches), len(self._lower_batches)

    @abstractmethod
    def f_losses(self, lower: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return the upper loss of each of the examples a with labels b."""

    @abstractmethod
    def g_losses(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor, rows: slice) -> Tensor:
        """Return the lower loss of each of the examples a with labels b, which are these rows of the lower data."""

    @abstractmethod
    def penalty(self, upper: Tensor, lower: Tensor) -> Tensor:
        """Return the regularizer of g."""

    def hessian(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
        """Return g_yy on all data as a matrix; None if it is too large."""
        return None

    def outer(self, i: int | None = None) -> Tensor:
        """Return f on batch i, by default on the next one of a shuffled epoch."""
        rows = self._upper_batches[next(self._upper_numbers) if i is None else i]
        a, b = self.upper_data
        return self.f_losses(self.lower, a[rows], b[rows]).sum() * (self.samples[0] / len(b))

    def inner(self, i: int | None = None) -> Tensor:
        """Return g on batch i, by default on the next one of a shuffled epoch."""
        rows = self._lower_batches[next(self._lower_numbers) if i is None else i]
        a, b = self.lower_data
        losses = self.g_losses(self.upper, self.lower, a[rows], b[rows], rows)
        return losses.sum() * (self.samples[1] / len(b)) + self.penalty(self.upper, self.lower)

    def f(self, upper: Tensor, lower: Tensor) -> Tensor:
        """Return f on all data, in float64."""
        return self.f_losses(lower, *self._double[1]).mean()

    def g(self, upper: Tensor, lower: Tensor) -> Tensor:
        """Return g on all data, in float64."""
        return self.g_losses(upper, lower, *self._double[0], _ALL).mean() + self.penalty(upper, lower)

    @cached_property
    def _double(self) -> tuple[Data, Data]:
        """Both data sets with examples in float64."""
        return (self.lower_data[0].double(), self.lower_data[1]), (self.upper_data[0].double(), self.upper_data[1])

    def solve_lower(self, tolerance: float = 1e-10) -> Tensor:
        """Return y*(x) at the current x in float64, on all data.

        The solver starts at the current y, or at 0 if g is smaller there: from a y that has exploded it would not
        converge.
        """
        x, y = self.upper.detach().double(), Parameter(self.lower.detach().double())
        with torch.no_grad():
            if not self.g(x, y) < self.g(x, torch.zeros_like(y)):
                y.zero_()
        if self.hessian(x, y, *self._double[0]) is not None:
            return self._newton(x, y, tolerance)
        solver = torch.optim.LBFGS(
            [y], max_iter=1000, tolerance_grad=tolerance, tolerance_change=0.0, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            solver.zero_grad()
            loss = self.g(x, y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            solver.step(closure)  # type: ignore[no-untyped-call]
        return y.detach()

    def _newton(self, x: Tensor, y: Tensor, tolerance: float) -> Tensor:
        """Minimize g by Newton steps, halved until g decreases, up to rounding."""
        for _ in range(100):
            with torch.enable_grad():
                value = self.g(x, y)
                (g_y,) = torch.autograd.grad(value, y)
            if g_y.abs().max() <= tolerance:
                break
            with torch.no_grad():
                step = torch.linalg.solve(self.hessian(x, y, *self._double[0]), g_y)
                start, length = y.clone(), 1.0
                while length > 1e-8 and not self.g(x, y.copy_(start - length * step)) <= value * (1 + 1e-12):
                    length /= 2
        else:
            raise DivergenceError("Newton's method did not solve the lower problem in 100 steps: x has diverged")
        return y.detach()

    def value(self, tolerance: float = 1e-10) -> tuple[float, Tensor]:
        """Return Phi(x) and its gradient at the current x.

        Args:
            tolerance: the largest entry of g_y at y*(x), and the relative residual of the linear system.
        """
        x, y = Parameter(self.upper.detach().double()), Parameter(self.solve_lower(tolerance))
        oracles = Oracles(lambda: self.f(x, y), lambda: self.g(x, y), [x], [y])
        with torch.enable_grad():
            value, (f_x,), f_y = oracles.f()
            matrix = self.hessian(x.detach(), y.detach(), *self._double[0])
            if matrix is None:
                _, (implicit,) = CG(steps=1000, tolerance=tolerance)(oracles, f_y, Memory())
            else:
                (implicit,) = oracles.draw(mixed=True).mixed([torch.linalg.solve(matrix, f_y[0])])
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
        batch: the largest number of examples in a sample.
        seed: seed of the start and of the order of the rows.

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

    def f_losses(self, lower: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return functional.softplus(-b.to(a.dtype) * (a @ lower))

    def g_losses(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor, rows: slice) -> Tensor:
        return self.f_losses(lower, a, b)

    def penalty(self, upper: Tensor, lower: Tensor) -> Tensor:
        return (upper.exp() * lower.square()).sum() / 2

    def hessian(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
        if len(lower) > NEWTON:
            return None
        p = torch.sigmoid(a @ lower)
        return a.T @ (a * (p * (1 - p) / len(b))[:, None]) + upper.exp().diag()


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
        batch: the largest number of examples in a sample.
        seed: seed of the replaced labels and of the order of the rows.
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
        corrupted = torch.rand(len(b), generator=generator, device="cpu") < corruption
        random = torch.randint(classes, (len(b),), generator=generator, device="cpu")
        mean, deviation = a.mean(0), a.std(0, correction=0)
        deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        self.ridge, self.test = ridge, ((test[0] - mean) / deviation, test[1])
        noisy = torch.where(corrupted.to(b.device), random.to(b), b)
        super().__init__(
            ((a - mean) / deviation, noisy),
            ((valid[0] - mean) / deviation, valid[1]),
            a.new_full((len(b),), -2.0),
            a.new_zeros(a.shape[1], classes),
            batch=batch,
            seed=seed,
        )
        #: Which rows of ``lower_data`` have a random label.
        self.corrupted = corrupted[self.lower_order]

    def f_losses(self, lower: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(a @ lower, b, reduction="none")

    def g_losses(self, upper: Tensor, lower: Tensor, a: Tensor, b: Tensor, rows: slice) -> Tensor:
        return upper[rows].sigmoid() * self.f_losses(lower, a, b)

    def penalty(self, upper: Tensor, lower: Tensor) -> Tensor:
        return self.ridge * lower.square().sum()

    @torch.no_grad()
    def error(self) -> float:
        """Return the test error of the current y."""
        a, b = self.test
        return float(((a @ self.lower).argmax(1) != b).double().mean())


def partition(n: int, size: int) -> list[slice]:
    """Split n rows into the fewest parts of at most ``size`` rows whose sizes differ by at most 1."""
    count = -(-n // size)
    ends = [n * k // count for k in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def epochs(n: int, generator: torch.Generator) -> Iterator[int]:
    """Yield the numbers 0..n-1 in endless shuffled epochs."""
    while True:
        yield from torch.randperm(n, generator=generator, device="cpu").tolist()
