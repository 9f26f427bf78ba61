"""A Lightning module that trains a network for the AUC or another ranking metric.

>>> from semaopt.integrations.lightning import AUCModule
>>> network = torch.nn.Linear(10, 1)
>>> module = AUCModule(network, semaopt.losses.AUCMinMax.from_labels([0, 0, 0, 1]))
>>> # lightning.Trainer(max_epochs=5).fit(module, train_loader, validation_loader)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, Sampler

from semaopt.losses.tracked import Tracked, number_of_ranks
from semaopt.optimizers import ASA, PDAda
from semaopt.optimizers._minmax import MinMaxOptimizer
from semaopt.schedules import Follow, Stages

try:
    import lightning
    from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
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


class FollowOf(Follow):
    """:class:`semaopt.schedules.Follow` of a scheduler that is yet to be built, for the YAML files of LightningCLI.

    Args:
        optimizer: the optimizer; LightningCLI passes it.
        scheduler: function of the optimizer that returns the scheduler to follow.
        reference_lr, compensate_bias: as in :class:`semaopt.schedules.Follow`.

    >>> from semaopt.integrations.lightning import FollowOf
    >>> optimizer = semaopt.ASA([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> type(FollowOf(optimizer, lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))).__name__
    'Follow'
    """

    def __new__(  # type: ignore[misc]
        cls,
        optimizer: Optimizer,
        scheduler: LRSchedulerCallable,
        reference_lr: float | None = None,
        compensate_bias: bool = True,
    ) -> Follow:
        """Return a Follow; its class depends on the scheduler."""
        return Follow(scheduler(optimizer), reference_lr, compensate_bias=compensate_bias)


class AUCModule(lightning.LightningModule):
    """A network, its loss, its optimizer, its sampler and its metrics, for Lightning's Trainer.

    A batch is (inputs, labels), or (inputs, labels, index) for a loss that keeps averages per example, such as
    :class:`semaopt.losses.AveragePrecision`. The optimizer is :class:`semaopt.PDAda` for a loss with dual variables
    and :class:`semaopt.ASA` otherwise. Checkpoints hold the network, the variables of the loss, the optimizer and the
    schedule, so a resumed run equals an uninterrupted one. Several processes compute a ranking loss on their joint
    batch: the loss gets ``process_group=torch.distributed.group.WORLD`` unless it has a process group. Their batches
    must then be equally large.

    Args:
        network: maps inputs to raw scores (n,), (n, 1) or (n, C), without a sigmoid.
        loss: :class:`semaopt.losses.AUCMinMax`, a ranking loss, or any module of (scores, labels).
        lr: learning rate of the network.
        dual_lr: learning rate of the dual variables, for PDAda.
        beta: momentum.
        weight_decay: decoupled weight decay of the network; the variables of the loss are not decayed.
        optimizer: a function of the param groups that returns the optimizer, instead of the four arguments above. A
            loss with dual variables needs a min-max optimizer; its groups have a ``role``.
        schedule: a function of the optimizer that returns a scheduler, :class:`semaopt.Stages`, or what Lightning
            accepts as ``lr_scheduler``; ``"cosine"`` lowers all rates to 0 over the steps of the Trainer; None keeps
            them constant.
        interval: whether a scheduler counts ``"epoch"`` or ``"step"``.
        train_data: training set, needed with ``sampler`` only.
        sampler: a function that returns a batch sampler, such as ``lambda: ClassBalanced(labels, 32)``; it is called
            in each process. ``trainer.fit(module)`` then needs no loader. Several processes need
            ``Trainer(use_distributed_sampler=False)``, because the sampler divides the data itself.
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
        optimizer: OptimizerCallable | None = None,
        schedule: Literal["cosine"] | LRSchedulerCallable | Callable[[Optimizer], Stages] | None = "cosine",
        interval: Literal["epoch", "step"] = "epoch",
        train_data: Dataset[Any] | None = None,
        sampler: Callable[[], Sampler[Any]] | None = None,
        metrics: Metric | MetricCollection | None = None,
    ) -> None:
        super().__init__()
        if sampler is not None and train_data is None:
            raise ValueError("sampler= needs train_data=, the training set whose rows it draws.")
        if not (schedule is None or schedule == "cosine" or callable(schedule)):
            raise ValueError(
                f"schedule={schedule!r} is invalid: it must be 'cosine', a function or None. Try 'cosine'."
            )
        self.network, self.loss = network, loss
        self.lr, self.dual_lr, self.beta, self.weight_decay = lr, dual_lr, beta, weight_decay
        self.optimizer, self.schedule, self.interval = optimizer, schedule, interval
        self.train_data, self.sampler = train_data, sampler
        self.stages: Stages | None = None
        self._loaded_stages: dict[str, Any] | None = None
        self._joined_loss = False
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

    def train_dataloader(self) -> Any:
        """Return the batches of ``sampler``; loaders that are passed to ``fit`` take precedence."""
        if self.sampler is None:
            return super().train_dataloader()
        assert self.train_data is not None
        return DataLoader(self.train_data, batch_sampler=self.sampler())

    def configure_optimizers(self) -> Any:
        """Return the optimizer and the schedule."""
        optimizer = self._build_optimizer()
        if self.schedule is None:
            return optimizer
        if not callable(self.schedule):
            steps = int(self.trainer.estimated_stepping_batches)
            scheduler: Any = {"scheduler": CosineAnnealingLR(optimizer, steps), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": scheduler}
        scheduler = self.schedule(optimizer)
        if isinstance(scheduler, Stages):
            self.stages = scheduler
            return optimizer
        if not isinstance(scheduler, Mapping):
            monitor = getattr(getattr(scheduler, "scheduler", scheduler), "monitor", None)  # of Lightning's plateau
            scheduler = {"scheduler": scheduler, "interval": self.interval}
            scheduler |= {"monitor": monitor} if monitor is not None else {}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _build_optimizer(self) -> Optimizer:
        weights = [x for x in self.network.parameters() if x.requires_grad]
        minmax = hasattr(self.loss, "dual_parameters")
        role = {"role": "primal"} if minmax else {}
        groups: list[dict[str, Any]] = [{"params": weights, **role}]
        primal: list[Tensor] = getattr(self.loss, "primal_parameters", list)() if minmax else [*self.loss.parameters()]
        groups += [{"params": primal, "weight_decay": 0.0, **role}] if primal else []
        if minmax:
            dual: list[Tensor] = self.loss.dual_parameters()  # type: ignore[operator]
            groups += [{"params": dual, "role": "dual"}]
        if self.optimizer is None:
            decay: dict[str, Any] = dict(weight_decay=self.weight_decay, decoupled_weight_decay=True)
            if minmax:
                return PDAda(groups, lr=self.lr, dual_lr=self.dual_lr, beta=self.beta, **decay)
            return ASA(groups, lr=self.lr, beta=self.beta, **decay)
        optimizer = self.optimizer(groups)
        if isinstance(optimizer, MinMaxOptimizer) is not minmax:
            needed = "a min-max optimizer such as PDAda" if minmax else "an optimizer without dual variables"
            raise TypeError(f"{type(self.loss).__name__} needs {needed}, got optimizer={type(optimizer).__name__}")
        return optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the position of the stages."""
        if self.stages is not None:
            checkpoint["stages"] = self.stages.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the position of the stages until the optimizer exists."""
        self._loaded_stages = checkpoint.get("stages")

    def on_fit_start(self) -> None:
        """Compute a ranking loss on the joint batch, because DDP copies the averages of one process to the others."""
        if isinstance(self.loss, Tracked) and self.loss.process_group is None and number_of_ranks() > 1:
            self.loss.process_group = torch.distributed.group.WORLD
            self._joined_loss = True

    def on_fit_end(self) -> None:
        """Take the process group away again: a module that holds one cannot be pickled."""
        if isinstance(self.loss, Tracked) and self._joined_loss:
            self.loss.process_group = None
            self._joined_loss = False

    def on_train_start(self) -> None:
        """Continue the stages of a checkpoint."""
        if self.stages is not None and self._loaded_stages is not None:
            self.stages.load_state_dict(self._loaded_stages)
            self._loaded_stages = None
