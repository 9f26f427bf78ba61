"""LibAUC's PESG and AUC-margin loss.

LibAUC is not a dependency: specs that use it can be read without it, but not run.
"""

from __future__ import annotations

import importlib.util
import warnings
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
VERSIONS = ("v1", "v2")
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
    """LibAUC's AUC-margin loss, the objective of PESG.

    Args:
        score: "sigmoid", as in LibAUC's tutorials, or "linear".
        version: "v1" counts the share of positives in each batch; "v2" averages each class and needs balanced batches.
    """

    def __init__(self, score: str = "sigmoid", version: str = "v1") -> None:
        super().__init__()
        from libauc.losses.auc import AUCMLoss

        self.score = score
        self.loss = AUCMLoss(margin=_MARGIN, version=version, device="cpu")

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over the batch."""
        with warnings.catch_warnings():
            # A uniform batch of rare positives may have none; the first version of the loss is then 0.
            warnings.filterwarnings("ignore", "Input data has no positive sample", UserWarning)
            value: Tensor = self.loss(torch.sigmoid(scores) if self.score == "sigmoid" else scores, labels)
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


def pesg(
    parameters: Sequence[Tensor], dual: Tensor, values: Mapping[str, Any], length: int, offset: float = 0.0
) -> Optimizer:
    """Return PESG for the parameters of a model followed by a and b of :class:`MarginLoss`.

    After each stage of ``length`` steps its regularizer is centred at the mean of that stage, and lr is multiplied by
    ``factor``. LibAUC's dual variable alpha is ``dual + offset``: 0 for LibAUC's loss, the margin for
    :class:`semaopt.losses.AUCMinMax`, whose s and r take the places of a and b.
    """
    from libauc.optimizers import pesg as original

    *model, a, b = parameters
    factor, regularized = values.get("factor", 0.1), values.get("epoch_decay", 2e-3) > 0

    alpha = dual.detach().clone().requires_grad_() if offset else dual

    class Staged(original.PESG):  # type: ignore[misc]  # LibAUC has no types
        def step(self, closure: Any = None) -> Any:
            if offset:
                alpha.data, alpha.grad = dual.data + offset, dual.grad
            loss = super().step(closure)
            if offset:
                dual.data.copy_(alpha.data - offset)
            if self.steps % length == 0:
                (self.update_regularizer if regularized else self.update_lr)(1 / factor)
            return loss

    options = {name: values[name] for name in ("lr", "weight_decay", "epoch_decay", "mode") if name in values}
    loss = SimpleNamespace(a=a, b=b, alpha=alpha, margin=_MARGIN)
    with torch.random.fork_rng(devices=[]):  # its first reference point is random: fix it
        torch.manual_seed(0)
        optimizer: Optimizer = Staged(model, loss_fn=loss, verbose=False, device=dual.device, **options)
    return optimizer
