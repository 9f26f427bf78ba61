"""LibAUC's PESG as a contestant. LibAUC is no dependency: what needs it says so before anything runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from semaopt._validation import is_real, require, validate_rate

PESG = "PESG"
MODES = ("sgd", "adam")
TAKES = frozenset({"lr", "weight_decay", "epoch_decay", "mode", "every", "factor"})
#: Its requirements include torchvision and much else that PESG does not import.
REMEDY = "pip install --no-deps libauc tqdm"
_MARGIN = 1.0


def installed() -> bool:
    """Whether LibAUC and what its PESG imports are here."""
    return all(importlib.util.find_spec(name) is not None for name in ("libauc", "tqdm"))


class MarginLoss(nn.Module):
    """LibAUC's objective for PESG, with its defaults, of the sigmoid of a score as in LibAUC's tutorials.

    The share of positives is counted in each batch.
    """

    def __init__(self) -> None:
        super().__init__()
        from libauc.losses.auc import AUCMLoss

        self.loss = AUCMLoss(margin=_MARGIN, device="cpu")

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean over the batch."""
        value: Tensor = self.loss(torch.sigmoid(scores), labels)
        return value.squeeze()

    def dual_parameters(self) -> list[Parameter]:
        """What is maximized over."""
        return [self.loss.alpha]


def check(values: Mapping[str, Any]) -> None:
    """Raise for the first value that PESG does not take; it has no such checks for some."""
    validate_rate("lr", values["lr"], "try 0.1")
    validate_rate("epoch_decay", values.get("epoch_decay", 0.0), "try 2e-3")
    validate_rate("weight_decay", values.get("weight_decay", 0.0), "0.0 turns it off")
    mode, factor = values.get("mode", MODES[0]), values.get("factor", 0.1)
    require(mode in MODES, "mode", mode, f"must be one of {', '.join(MODES)}", "its default is 'sgd'")
    require(is_real(factor) and 0 < factor <= 1, "factor", factor, "must lie in (0, 1]", "its tutorials take 0.1")


def pesg(parameters: Sequence[Tensor], dual: Tensor, values: Mapping[str, Any], length: int) -> Optimizer:
    """PESG on a model followed by a and b of :class:`MarginLoss`, with stages of ``length`` steps.

    At the end of each its regularizer pulls towards the mean of that stage, and lr is multiplied by ``factor``.
    """
    from libauc.optimizers import pesg as original

    *model, a, b = parameters
    factor, pulled = values.get("factor", 0.1), values.get("epoch_decay", 2e-3) > 0

    class Staged(original.PESG):  # type: ignore[misc]  # LibAUC has no types
        def step(self, closure: Any = None) -> Any:
            loss = super().step(closure)
            if self.steps % length == 0:
                (self.update_regularizer if pulled else self.update_lr)(1 / factor)
            return loss

    options = {name: values[name] for name in ("lr", "weight_decay", "epoch_decay", "mode") if name in values}
    loss = SimpleNamespace(a=a, b=b, alpha=dual, margin=_MARGIN)
    with torch.random.fork_rng(devices=[]):  # its first reference is random: the same for all, and not from our numbers
        torch.manual_seed(0)
        optimizer: Optimizer = Staged(model, loss_fn=loss, verbose=False, device=dual.device, **options)
    return optimizer
