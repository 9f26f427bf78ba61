"""A Lightning module that trains a network for the AUC or another ranking metric.

>>> from semaopt.integrations.lightning import AUCModule
>>> network = torch.nn.Linear(10, 1)
>>> module = AUCModule(network, semaopt.losses.AUCMinMax.from_labels([0, 0, 0, 1]))
>>> # lightning.Trainer(max_epochs=5).fit(module, train_loader, validation_loader)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from semaopt.optimizers import ASA, PDAda

try:
    import lightning
    from torchmetrics import Metric, MetricCollection
    from torchmetrics.classification import (
        BinaryAUROC,
        BinaryAveragePrecision,
        MultilabelAUROC,
        MultilabelAveragePrecision,
    )
except ModuleNotFoundError as error:
    text = f"semaopt.integrations.lightning needs {error.name!r}. Install the extra: pip install 'semaopt[lightning]'"
    raise ModuleNotFoundError(text, name=error.name) from error

#: Marks a missing label for torchmetrics.
MISSING = -1


def ranking_metrics(num_labels: int = 1) -> MetricCollection:
    """Return AUROC and average precision, the means over the labels if there are several; missing labels are left out.

    Args:
        num_labels: number of scores per example.
    """
    if num_labels == 1:
        return MetricCollection(
            {"auroc": BinaryAUROC(ignore_index=MISSING), "ap": BinaryAveragePrecision(ignore_index=MISSING)}
        )
    return MetricCollection(
        {
            "auroc": MultilabelAUROC(num_labels, ignore_index=MISSING),
            "ap": MultilabelAveragePrecision(num_labels, ignore_index=MISSING),
        }
    )


class AUCModule(lightning.LightningModule):
    """A network, its loss, its optimizer and its metrics, for Lightning's Trainer.

    A batch is (inputs, labels), or (inputs, labels, index) for a loss that keeps averages per example, such as
    :class:`semaopt.losses.AveragePrecision`. The optimizer is :class:`semaopt.PDAda` for a loss with dual variables
    and :class:`semaopt.ASA` otherwise. Checkpoints hold the network, the variables of the loss and the optimizer, so a
    resumed run equals an uninterrupted one.

    Args:
        network: maps inputs to raw scores (n,), (n, 1) or (n, C), without a sigmoid.
        loss: :class:`semaopt.losses.AUCMinMax`, a ranking loss, or any module of (scores, labels).
        lr: learning rate of the network.
        dual_lr: learning rate of the dual variables, for PDAda.
        beta: momentum.
        weight_decay: decoupled weight decay of the network; the variables of the loss are not decayed.
        schedule: a function of the optimizer that returns what Lightning accepts as ``lr_scheduler``; ``"cosine"``
            lowers all rates to 0 over the steps of the Trainer; None keeps them constant.
        metrics: torchmetrics that take (probabilities, labels), missing labels being -1; None for
            :func:`ranking_metrics` of one label. They are logged as ``validation_auroc``, ``test_auroc``, ...

    To change a step, inherit and override it.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: nn.Module,
        *,
        lr: float = 1e-3,
        dual_lr: float = 1e-2,
        beta: float = 0.9,
        weight_decay: float = 0.0,
        schedule: str | Callable[[torch.optim.Optimizer], Any] | None = "cosine",
        metrics: Metric | MetricCollection | None = None,
    ) -> None:
        super().__init__()
        if not (schedule is None or schedule == "cosine" or callable(schedule)):
            raise ValueError(
                f"schedule={schedule!r} is invalid: it must be 'cosine', a function or None. Try 'cosine'."
            )
        self.network, self.loss = network, loss
        self.lr, self.dual_lr, self.beta, self.weight_decay, self.schedule = lr, dual_lr, beta, weight_decay, schedule
        chosen = ranking_metrics() if metrics is None else metrics
        chosen = chosen if isinstance(chosen, MetricCollection) else MetricCollection(chosen)
        self.validation_metrics = chosen.clone(prefix="validation_")
        self.test_metrics = chosen.clone(prefix="test_")

    def forward(self, inputs: Any) -> Tensor:
        """Return the raw scores."""
        scores: Tensor = self.network(inputs)
        return scores

    def training_step(self, batch: Any) -> Tensor:
        """Return the loss of a batch and log it; a min-max loss is logged as its estimate, which is never negative."""
        inputs, *targets = batch
        value: Tensor = self.loss(self(inputs), *targets)
        display = getattr(self.loss, "value_for_display", None)
        self.log("train_loss", value.detach() if display is None else display(value))
        return value

    def validation_step(self, batch: Any) -> None:
        """Add a batch to the validation metrics."""
        self._measure(batch, self.validation_metrics)

    def test_step(self, batch: Any) -> None:
        """Add a batch to the test metrics."""
        self._measure(batch, self.test_metrics)

    def predict_step(self, batch: Any) -> Tensor:
        """Return the raw scores of a batch, with or without labels."""
        scores: Tensor = self(batch[0] if isinstance(batch, (list, tuple)) else batch)
        return scores

    def _measure(self, batch: Any, metrics: MetricCollection) -> None:
        inputs, labels = batch[:2]
        scores = self(inputs).float()
        scores = scores.squeeze(1) if scores.dim() == 2 and scores.shape[1] == 1 else scores
        missing = labels.isnan() if labels.is_floating_point() else torch.zeros_like(labels, dtype=torch.bool)
        target = torch.where(missing, MISSING, (labels == 1).long()).reshape(scores.shape)
        metrics.update(scores.sigmoid(), target)
        self.log_dict(metrics, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """Return PDAda or ASA and the schedule."""
        decay: dict[str, Any] = dict(weight_decay=self.weight_decay, decoupled_weight_decay=True)
        groups: list[dict[str, Any]] = [{"params": [x for x in self.network.parameters() if x.requires_grad], **decay}]
        optimizer: PDAda | ASA
        if hasattr(self.loss, "dual_parameters"):
            primal: list[Tensor] = getattr(self.loss, "primal_parameters", list)()
            groups += [{"params": primal}] if primal else []
            dual: list[Tensor] = self.loss.dual_parameters()  # type: ignore[operator]
            optimizer = PDAda(groups, dual, self.lr, self.dual_lr, self.beta)
        else:
            own = list(self.loss.parameters())
            optimizer = ASA([*groups, *([{"params": own}] if own else [])], lr=self.lr, beta=self.beta)
        if self.schedule is None:
            return optimizer
        if callable(self.schedule):
            return {"optimizer": optimizer, "lr_scheduler": self.schedule(optimizer)}
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = {"scheduler": CosineAnnealingLR(optimizer, steps), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}
