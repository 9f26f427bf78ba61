"""Hyper-cleaning: find wrong training labels by their effect on the loss of a clean validation set."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from semaopt._validation import require

SIZES = {"train": 1000, "valid": 400, "test": 397}


class HyperCleaning:
    r"""Handwritten digits (scikit-learn's 1,797 images) with a fraction of wrong training labels.

    .. math::
        \min_x \frac1{n'}\sum_i CE(y^*(x); a'_i, b'_i), \qquad
        y^*(x) = \arg\min_y \frac1n\sum_i \sigma(x_i)\, CE(y; a_i, b_i) + \frac\lambda2|y|^2

    x holds the weights of the 1,000 training examples, y is a softmax regression, and the upper loss is the mean over
    400 clean examples. A wrong label is the digit plus 1, modulo 10. Pass the quadratic term to the optimizer as
    ``lower_weight_decay``.

    Args:
        corruption: the fraction of wrong labels.
        batch: the number of examples in a sample of f and of g.
        seed: seed of the split, the wrong labels and the samples.
    """

    def __init__(self, corruption: float = 0.4, batch: int = 64, seed: int = 0) -> None:
        most = min(SIZES["train"], SIZES["valid"])
        require(
            1 <= batch <= most,
            "batch",
            batch,
            f"must lie in 1..{most}",
            "the smaller set has that many examples; try 64",
        )
        require(0 <= corruption < 1, "corruption", corruption, "must lie in [0, 1)", "try 0.4")
        self.generator = torch.Generator().manual_seed(seed)
        images, digits = load_digits()
        order = torch.split(torch.randperm(len(images), generator=self.generator, device="cpu"), list(SIZES.values()))
        self.data = {name: (images[i], digits[i]) for name, i in zip(SIZES, order, strict=True)}
        a, b = self.data["train"]
        self.wrong = torch.zeros(len(b), dtype=torch.bool, device="cpu")
        self.wrong[torch.randperm(len(b), generator=self.generator, device="cpu")[: round(corruption * len(b))]] = True
        self.data["train"] = (a, torch.where(self.wrong, (b + 1) % 10, b))
        self.weights = nn.Parameter(torch.zeros(len(b), device="cpu"))
        self.model = nn.Linear(64, 10, device="cpu")
        nn.init.zeros_(self.model.weight)
        nn.init.zeros_(self.model.bias)
        self._noisy = self._batches(*self.data["train"], torch.arange(len(b), device="cpu"), size=batch)
        self._clean = self._batches(*self.data["valid"], size=batch)

    def _batches(self, *tensors: Tensor, size: int) -> Iterator[list[Tensor]]:
        """Yield the batches of endless shuffled epochs, without incomplete last batches."""
        while True:
            order = torch.randperm(len(tensors[0]), generator=self.generator, device="cpu")
            parts = [torch.split(tensor[order], size) for tensor in tensors]
            for k in range(len(order) // size):
                yield [part[k] for part in parts]

    def outer(self) -> Tensor:
        """Return the loss on a fresh batch of clean validation data."""
        a, b = next(self._clean)
        return functional.cross_entropy(self.model(a), b)

    def inner(self) -> Tensor:
        """Return the weighted loss on a fresh batch of noisy training data."""
        a, b, i = next(self._noisy)
        losses = functional.cross_entropy(self.model(a), b, reduction="none")
        return (self.weights[i].sigmoid() * losses).mean()

    @torch.no_grad()
    def accuracy(self, part: str = "valid") -> float:
        """Return the accuracy on ``"train"``, ``"valid"`` or ``"test"``."""
        a, b = self.data[part]
        return float((self.model(a).argmax(1) == b).double().mean())


def load_digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits, with pixels in [0, 1]."""
    try:
        from sklearn import datasets
    except ImportError as missing:
        raise ImportError("the digits need scikit-learn: pip install 'semaopt[experiments]'") from missing
    images, digits = datasets.load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32, device="cpu"), torch.tensor(digits, device="cpu")
