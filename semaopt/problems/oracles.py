r"""Unbiased stochastic gradients with a variance that is known: :math:`E|O - \nabla F|^2 \le \sigma^2(1 + c|\nabla
F|^2)`.

An oracle draws the randomness of many steps at once (``draw``) and turns an exact gradient and the randomness of one
step into a sample (``sample``). ``x`` and gradients have the shape ``[seeds, d]``: every row is a run of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from semaopt._validation import is_real, require

#: What ``draw`` gives: tensors whose first dimension counts steps.
Draw = tuple[Tensor, ...]


class Oracle(Protocol):
    """An unbiased stochastic gradient."""

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        """The randomness of ``steps`` steps at points shaped like ``like``."""

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        """O(x), from the exact gradient at x and the randomness of one step."""

    def variance(self, d: int) -> tuple[float, float]:
        """(sigma2, growth): E|O - grad F|^2 <= sigma2 + growth |grad F|^2, with growth = sigma2 c."""

    def largest(self, G: float, d: int) -> float:
        """A bound of the largest coordinate of a sample, where the gradient's d coordinates are at most G."""


def signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Random signs. 32 bits of every random number are used, which makes this ten times as fast as bernoulli_."""
    n = math.prod(shape)
    words = torch.empty((n + 31) // 32, dtype=torch.int64).random_(generator=generator)
    bits = words.unsqueeze(1).bitwise_right_shift(torch.arange(32)).bitwise_and_(1)
    return bits.view(-1)[:n].to(like.dtype).mul_(2).sub_(1).view(shape)


def blocks(oracle: Oracle, steps: int, like: Tensor, generator: torch.Generator) -> Iterator[Draw]:
    """The randomness of one step after the other, drawn in blocks of about a million numbers."""
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
class Exact:
    """O(x) = grad F(x): no noise at all."""

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
    """O(x) = grad F(x) + noise with E|noise|^2 = sigma2: every coordinate is a random sign times sqrt(sigma2/d).

    ``gaussian=True`` makes it normal, which has the same variance and no bound.
    """

    sigma2: float
    gaussian: bool = False

    def __post_init__(self) -> None:
        _positive("sigma2", self.sigma2, "Exact() has no noise")

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        shape = (steps, *like.shape)
        if self.gaussian:
            noise = torch.empty(shape, dtype=like.dtype).normal_(generator=generator)
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
    """O(x) = (1 + e) grad F(x) + noise, where e has in every coordinate the size ``relative`` and a random sign.

    The variance is sigma2 + relative^2 |grad F|^2: the two parts are independent.
    """

    relative: float
    sigma2: float

    def __post_init__(self) -> None:
        _positive("relative", self.relative, "it is the size of the relative error")
        _positive("sigma2", self.sigma2, "the additive part; it may be as small as you like")

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

    The variance is sigma2 + (d - 1)|grad F|^2, as E|d (grad F)_i e_i|^2 = d |grad F|^2: no finite sigma2 alone bounds
    it.
    """

    sigma2: float

    def __post_init__(self) -> None:
        _positive("sigma2", self.sigma2, "the additive part; it may be as small as you like")

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        d = like.shape[-1]
        chosen = torch.randint(d, (steps, *like.shape[:-1]), generator=generator)
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
    r"""Each coordinate of another oracle's sample is kept with probability ``keep`` and then divided by it.

    With :math:`E|O - g|^2 = (1/q - 1)E|g|^2` on top of the variance V of g, it is at most
    :math:`V/q + (1/q - 1)|\nabla F|^2`.
    """

    oracle: Additive | Multiplicative | Exact
    keep: float

    def __post_init__(self) -> None:
        ok = is_real(self.keep) and 0 < self.keep <= 1
        require(ok, "keep", self.keep, "must lie in (0, 1]", "it is the share of the coordinates that are sent")

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        chance = torch.empty((steps, *like.shape), dtype=like.dtype).uniform_(generator=generator)
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
    """Another oracle's sample rounded to multiples of ``step``, up or down at random so that the mean stays.

    The fraction r is rounded up with probability r, so a coordinate's variance is r(1-r) step^2 <= step^2/4.
    """

    oracle: Additive | Multiplicative | Exact
    step: float

    def __post_init__(self) -> None:
        _positive("step", self.step, "it is the distance of two values that can be sent")

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        chance = torch.empty((steps, *like.shape), dtype=like.dtype).uniform_(generator=generator)
        return chance, *self.oracle.draw(steps, like, generator)

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        return self.oracle.sample(x, gradient, noise[1:]).div_(self.step).add_(noise[0]).floor_().mul_(self.step)

    def variance(self, d: int) -> tuple[float, float]:
        sigma2, growth = self.oracle.variance(d)
        return sigma2 + d * self.step**2 / 4, growth

    def largest(self, G: float, d: int) -> float:
        return self.oracle.largest(G, d) + self.step
