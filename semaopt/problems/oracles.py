r"""Unbiased stochastic gradients O with a known variance, :math:`E|O - \nabla F|^2 \le \sigma^2(1 + c|\nabla F|^2)`.

``draw`` draws the noise of many steps at once. ``sample`` turns an exact gradient and the noise of one step into a
stochastic gradient. ``x`` and gradients have the shape ``[seeds, d]``; every row is an independent run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from semaopt._validation import is_real, require

#: The result of ``draw``: tensors whose first dimension is the step.
Draw = tuple[Tensor, ...]


class Oracle(Protocol):
    """Protocol of an unbiased stochastic gradient."""

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        """Return the noise of ``steps`` steps for points shaped like ``like``."""

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        """Return O(x), given the exact gradient at x and the noise of one step."""

    def variance(self, d: int) -> tuple[float, float]:
        """Return (sigma2, growth) with E|O - grad F|^2 <= sigma2 + growth |grad F|^2, where growth = sigma2 c."""

    def largest(self, G: float, d: int) -> float:
        """Return an upper bound of the coordinates of a sample if the d coordinates of the gradient are at most G."""


def signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random signs. Using 32 bits of every random number makes this ten times as fast as ``bernoulli_``."""
    n = math.prod(shape)
    words = torch.empty((n + 31) // 32, dtype=torch.int64, device="cpu").random_(generator=generator)
    bits = words.unsqueeze(1).bitwise_right_shift(torch.arange(32, device="cpu")).bitwise_and_(1)
    return bits.view(-1)[:n].to(like.dtype).mul_(2).sub_(1).view(shape)


def blocks(oracle: Oracle, steps: int, like: Tensor, generator: torch.Generator) -> Iterator[Draw]:
    """Yield the noise of each step, drawn in blocks of about a million numbers."""
    size = max(1, min(steps, 2**20 // max(like.numel(), 1)))
    for start in range(0, steps, size):
        draw = oracle.draw(min(size, steps - start), like, generator)
        if not draw:
            yield from ((),) * min(size, steps - start)
        yield from zip(*(part.unbind(0) for part in draw), strict=True)


def _positive(name: str, value: float, what: str) -> None:
    ok = is_real(value) and 0 < value < math.inf
    require(ok, name, value, "must be a finite number > 0", what)


@dataclass(frozen=True)
class Noiseless:
    """O(x) = grad F(x)."""

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        return ()

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        return gradient

    def variance(self, d: int) -> tuple[float, float]:
        return 0.0, 0.0

    def largest(self, G: float, d: int) -> float:
        return G


@dataclass(frozen=True)
class Additive:
    """O(x) = grad F(x) + noise with E|noise|^2 = sigma2.

    Args:
        sigma2: the variance.
        gaussian: if False, every coordinate of the noise is a random sign times sqrt(sigma2/d). If True, the noise is
            normal, with the same variance but unbounded.
    """

    sigma2: float
    gaussian: bool = False

    def __post_init__(self) -> None:
        _positive("sigma2", self.sigma2, "use Noiseless() for no noise")

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        shape = (steps, *like.shape)
        if self.gaussian:
            noise = torch.empty(shape, dtype=like.dtype, device="cpu").normal_(generator=generator)
        else:
            noise = signs(shape, like, generator)
        return (noise.mul_(math.sqrt(self.sigma2 / like.shape[-1])),)

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        return gradient + noise[0]

    def variance(self, d: int) -> tuple[float, float]:
        return self.sigma2, 0.0

    def largest(self, G: float, d: int) -> float:
        return math.inf if self.gaussian else G + math.sqrt(self.sigma2 / d)


@dataclass(frozen=True)
class Multiplicative:
    """O(x) = (1 + e) grad F(x) + noise, where every coordinate of e is a random sign times ``relative``.

    The two parts are independent, so the variance is sigma2 + relative^2 |grad F|^2.

    Args:
        relative: the size of e.
        sigma2: the variance of the additive noise.
    """

    relative: float
    sigma2: float

    def __post_init__(self) -> None:
        _positive("relative", self.relative, "it is the size of the relative error; try 0.5")
        _positive("sigma2", self.sigma2, "it is the variance of the additive part; a small number will do")

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        shape = (steps, *like.shape)
        return signs(shape, like, generator).mul_(self.relative).add_(1), *Additive(self.sigma2).draw(
            steps, like, generator
        )

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        return torch.addcmul(noise[1], gradient, noise[0])

    def variance(self, d: int) -> tuple[float, float]:
        return self.sigma2, self.relative**2

    def largest(self, G: float, d: int) -> float:
        return (1 + self.relative) * G + math.sqrt(self.sigma2 / d)


@dataclass(frozen=True)
class RandomCoordinate:
    """O(x) = d (grad F(x))_i e_i + noise with i uniform: the oracle of the remark after ``ass:1``.

    E|d (grad F)_i e_i|^2 = d |grad F|^2, so the variance is sigma2 + (d - 1)|grad F|^2. It has no bound that is
    independent of grad F.

    Args:
        sigma2: the variance of the additive noise.
    """

    sigma2: float

    def __post_init__(self) -> None:
        _positive("sigma2", self.sigma2, "it is the variance of the additive part; a small number will do")

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        d = like.shape[-1]
        chosen = torch.randint(d, (steps, *like.shape[:-1]), generator=generator, device="cpu")
        mask = torch.nn.functional.one_hot(chosen, d).to(like.dtype).mul_(d)
        return mask, *Additive(self.sigma2).draw(steps, like, generator)

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        return torch.addcmul(noise[1], gradient, noise[0])

    def variance(self, d: int) -> tuple[float, float]:
        return self.sigma2, d - 1.0

    def largest(self, G: float, d: int) -> float:
        return d * G + math.sqrt(self.sigma2 / d)


@dataclass(frozen=True)
class Sparsified:
    r"""The sample of another oracle, each coordinate kept with probability q = ``keep`` and then divided by it.

    If g is the sample of the other oracle and V its variance, then :math:`E|O - g|^2 = (1/q - 1)E|g|^2`, and the
    variance of O is at most :math:`V/q + (1/q - 1)|\nabla F|^2`.

    Args:
        oracle: the other oracle.
        keep: the probability q.
    """

    oracle: Additive | Multiplicative | Noiseless
    keep: float

    def __post_init__(self) -> None:
        ok = is_real(self.keep) and 0 < self.keep <= 1
        require(ok, "keep", self.keep, "must lie in (0, 1]", "it is the fraction of coordinates that are kept; try 0.5")

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        chance = torch.empty((steps, *like.shape), dtype=like.dtype, device="cpu").uniform_(generator=generator)
        mask = chance.lt(self.keep).to(like.dtype).div_(self.keep)
        return mask, *self.oracle.draw(steps, like, generator)

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        return self.oracle.sample(x, gradient, noise[1:]) * noise[0]

    def variance(self, d: int) -> tuple[float, float]:
        sigma2, growth = self.oracle.variance(d)
        return sigma2 / self.keep, (growth + 1) / self.keep - 1

    def largest(self, G: float, d: int) -> float:
        return self.oracle.largest(G, d) / self.keep


@dataclass(frozen=True)
class Quantized:
    """The sample of another oracle, rounded at random to a multiple of ``step`` without changing its mean.

    A fractional part r is rounded up with probability r. This adds a variance of r(1-r) step^2 <= step^2/4 per
    coordinate.

    Args:
        oracle: the other oracle.
        step: the distance of neighbouring values.
    """

    oracle: Additive | Multiplicative | Noiseless
    step: float

    def __post_init__(self) -> None:
        _positive("step", self.step, "it is the distance of neighbouring values; try 0.1")

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        chance = torch.empty((steps, *like.shape), dtype=like.dtype, device="cpu").uniform_(generator=generator)
        return chance, *self.oracle.draw(steps, like, generator)

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        return self.oracle.sample(x, gradient, noise[1:]).div_(self.step).add_(noise[0]).floor_().mul_(self.step)

    def variance(self, d: int) -> tuple[float, float]:
        sigma2, growth = self.oracle.variance(d)
        return sigma2 + d * self.step**2 / 4, growth

    def largest(self, G: float, d: int) -> float:
        return self.oracle.largest(G, d) + self.step
