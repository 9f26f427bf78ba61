"""LibAUC's PESG as a baseline. LibAUC is not a dependency: specs that use it are read without it, but not run."""

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
#: Without dependencies: LibAUC requires torchvision and other packages that PESG does not import.
REMEDY = "pip install --no-deps libauc tqdm"
_MARGIN = 1.0


def installed() -> bool:
    """Whether LibAUC and the packages that its PESG imports are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("libauc", "tqdm"))


def missing() -> str | None:
    """Return the command that installs LibAUC, or None if it is installed."""
    return None if installed() else REMEDY


class MarginLoss(nn.Module):
    """LibAUC's objective for PESG with its defaults, applied to the sigmoid of a score as in LibAUC's tutorials.

    The share of positives is counted in each batch.
    """

    def __init__(self) -> None:
        super().__init__()
        from libauc.losses.auc import AUCMLoss

        self.loss = AUCMLoss(margin=_MARGIN, device="cpu")

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over the batch."""
        value: Tensor = self.loss(torch.sigmoid(scores), labels)
        return value.squeeze()

    def dual_parameters(self) -> list[Parameter]:
        """Return the parameter that is maximized over."""
        return [self.loss.alpha]


def validate(values: Mapping[str, Any]) -> None:
    """Raise for the first value that PESG does not take; LibAUC itself does not check all of them."""
    validate_rate("lr", values["lr"], "try 0.1")
    validate_rate("epoch_decay", values.get("epoch_decay", 0.0), "try 2e-3")
    validate_rate("weight_decay", values.get("weight_decay", 0.0), "0.0 turns it off")
    mode, factor = values.get("mode", MODES[0]), values.get("factor", 0.1)
    require(mode in MODES, "mode", mode, f"must be one of {', '.join(MODES)}", "the default is 'sgd'")
    ok = is_real(factor) and 0 < factor <= 1
    require(ok, "factor", factor, "must lie in (0, 1]", "LibAUC's tutorials use 0.1")


def pesg(parameters: Sequence[Tensor], dual: Tensor, values: Mapping[str, Any], length: int) -> Optimizer:
    """Return PESG for the parameters of a model followed by a and b of :class:`MarginLoss`.

    After each stage of ``length`` steps its regularizer is centred at the mean of that stage, and lr is multiplied by
    ``factor``.
    """
    from libauc.optimizers import pesg as original

    *model, a, b = parameters
    factor, regularized = values.get("factor", 0.1), values.get("epoch_decay", 2e-3) > 0

    class Staged(original.PESG):  # type: ignore[misc]  # LibAUC has no types
        def step(self, closure: Any = None) -> Any:
            loss = super().step(closure)
            if self.steps % length == 0:
                (self.update_regularizer if regularized else self.update_lr)(1 / factor)
            return loss

    options = {name: values[name] for name in ("lr", "weight_decay", "epoch_decay", "mode") if name in values}
    loss = SimpleNamespace(a=a, b=b, alpha=dual, margin=_MARGIN)
    with torch.random.fork_rng(devices=[]):  # its first reference point is random: fix it
        torch.manual_seed(0)
        optimizer: Optimizer = Staged(model, loss_fn=loss, verbose=False, device=dual.device, **options)
    return optimizer
