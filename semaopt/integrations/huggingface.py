"""ASA, min-max losses and ranking losses in the Trainer of Hugging Face's transformers.

>>> from semaopt.integrations.huggingface import trainer_kwargs
>>> kwargs = trainer_kwargs(semaopt.losses.AUCMinMax.from_labels([0, 0, 0, 1]), lr=1e-4)
>>> sorted(kwargs)
['callbacks', 'compute_loss_func', 'optimizer_cls_and_kwargs']
>>> # transformers.Trainer(model, args, train_dataset=train, **kwargs).train()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from semaopt.diagnostics import Monitor
from semaopt.losses.tracked import Tracked
from semaopt.optimizers._minmax import MinMaxOptimizer
from semaopt.registry import optimizer_class

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    text = (
        f"semaopt.integrations.huggingface needs {error.name!r}. Install the extra: pip install 'semaopt[huggingface]'"
    )
    raise ModuleNotFoundError(text, name=error.name) from error

#: Key of the positions of the examples in a batch.
INDEX = "index"
#: Entry of the optimizer's state dict that holds the state of the loss.
SAVED = "loss"


def trainer_kwargs(
    loss: nn.Module | None = None,
    *,
    optimizer: str | type[Optimizer] | None = None,
    scores: Callable[[Any], Tensor] | None = None,
    monitor: int | None = None,
    callbacks: Iterable[Any] = (),
    **options: Any,
) -> dict[str, Any]:
    """Return the arguments of ``transformers.Trainer`` that make it train with an optimizer and a loss of semaopt.

    ``Trainer(model, args, train_dataset=..., **trainer_kwargs(loss, lr=1e-4))``. The learning rate is the one given
    here, not ``args.learning_rate``; ``args.weight_decay`` and ``args.lr_scheduler_type`` apply as usual. The decay
    is decoupled, as in AdamW, and the variables of the loss are not decayed.

    The variables and averages of the loss are saved in ``optimizer.pt`` of each checkpoint, so
    ``train(resume_from_checkpoint=...)`` continues exactly, and the saved model does not contain them. Processes that
    train together average the gradients of these variables.

    Accumulated batches give the gradient of the joint batch for a loss that is a mean over examples, such as
    :class:`semaopt.losses.AUCMinMax`. A ranking loss compares examples only within one of the small batches.
    ``args.max_grad_norm`` clips the gradient of the model alone. The variables of the loss are neither clipped nor
    counted in the norm: a clipped dual gradient would slow down the ascent whenever the model's gradient is large.

    Args:
        loss: a module of (scores, labels), or of (scores, labels, index) for a ranking loss; None for the model's own.
        optimizer: name or class; by default :class:`semaopt.PDAda` for a loss with dual variables, else
            :class:`semaopt.ASA`.
        scores: function of the model's output that returns the scores for the loss. By default the logits; two logits
            per example become their difference.
        monitor: n, to measure every n steps with :class:`semaopt.diagnostics.Monitor`. The results are added to
            ``trainer.state.log_history``; the Monitor is the attribute ``monitor`` of the first callback.
        callbacks: further callbacks for the Trainer.
        **options: arguments of the optimizer, such as ``lr``, ``dual_lr`` and ``beta``.

    A ranking loss needs each example's position: pass ``train_dataset=WithIndex(train)`` and
    ``TrainingArguments(remove_unused_columns=False)``.
    """
    kind = _optimizer_kind(loss, optimizer)
    if issubclass(kind, MinMaxOptimizer) and not hasattr(loss, "dual_parameters"):
        raise TypeError(
            f"optimizer={kind.__name__} needs a loss with dual variables, got {type(loss).__name__}. Pass a min-max "
            "loss such as semaopt.losses.AUCMinMax, or optimizer='ASA'."
        )
    bridge = LossCallback(loss, scores, monitor)
    arguments: dict[str, Any] = {
        "optimizer_cls_and_kwargs": (_Build, {"kind": kind, "loss": loss, **options}),
        "callbacks": [bridge, *callbacks],
    }
    if loss is not None:
        arguments["compute_loss_func"] = bridge.compute_loss
    return arguments


class WithIndex(Dataset[dict[str, Any]]):
    """A data set whose items also hold their position, under the key ``"index"``.

    Args:
        data: a data set of dicts.

    >>> from semaopt.integrations.huggingface import WithIndex
    >>> WithIndex([{"labels": 0}, {"labels": 1}])[1]
    {'labels': 1, 'index': 1}
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.data)

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Return example i."""
        return {**self.data[i], INDEX: i}


class LossCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]  # untyped without transformers
    """The callback that :func:`trainer_kwargs` adds: it connects the Trainer with the loss and the Monitor.

    Args:
        loss, scores, monitor: as in :func:`trainer_kwargs`.
    """

    def __init__(self, loss: nn.Module | None, scores: Callable[[Any], Tensor] | None, monitor: int | None) -> None:
        self.loss, self.scores, self.every = loss, scores, monitor
        self.monitor: Monitor | None = None
        self._index: Tensor | None = None
        self._logged = 0

    def compute_loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Any = None) -> Tensor:
        """Return the loss of a batch, weighted by its share of all labels of an optimizer step."""
        assert self.loss is not None
        if labels is None:
            raise ValueError("labels are missing from the batch; let the data set return them under the key 'labels'")
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        found = self._default_scores(logits, labels) if self.scores is None else self.scores(outputs)
        value: Tensor
        if isinstance(self.loss, Tracked):
            self.loss.train(torch.is_grad_enabled() and found.requires_grad)
            if self.loss.training and self._index is None:
                raise ValueError(
                    f"index=None: {type(self.loss).__name__} needs the position of each example. Pass "
                    "train_dataset=WithIndex(train) and TrainingArguments(remove_unused_columns=False)."
                )
            value = self.loss(found, labels, self._index if self.loss.training else None)
        else:
            value = self.loss(found, labels)
        if num_items_in_batch is None:
            return value
        # The Trainer adds up what is returned here over the batches of a step (and averages over processes, after
        # multiplying by their number); num_items_in_batch counts the labels of all of them.
        weighted: Tensor = value * (labels.ne(-100).sum() / num_items_in_batch)
        return weighted

    def _default_scores(self, logits: Tensor, labels: Tensor) -> Tensor:
        prior = getattr(self.loss, "prior", None)
        classes = prior.numel() if isinstance(prior, Tensor) else 1
        if logits.dim() == 2 and logits.shape[1] == 2 and labels.numel() == len(logits) and classes != 2:
            return logits[:, 1] - logits[:, 0]
        return logits

    def on_init_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Move the loss to the device of the Trainer."""
        if self.loss is not None:
            self.loss.to(args.device)

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Take the index out of the model's inputs, and start the Monitor."""
        if isinstance(self.loss, Tracked):
            self._hook = parts["model"].register_forward_pre_hook(self._take_index, with_kwargs=True)
        if self.every is not None:
            optimizer = parts["optimizer"]
            size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            self.monitor = Monitor(getattr(optimizer, "optimizer", optimizer), every=self.every, batch_size=size)
            self.monitor.__enter__()
            self._logged = 0

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Remove the hooks."""
        if isinstance(self.loss, Tracked):
            self._hook.remove()
        if self.monitor is not None:
            self.monitor.__exit__(None, None, None)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Average the gradients of the loss's variables over the processes."""
        if self.loss is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            for x in self.loss.parameters():
                if x.grad is not None:
                    torch.distributed.all_reduce(x.grad)
                    x.grad /= torch.distributed.get_world_size()

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Clear the gradients of the loss's variables: the Trainer clears only those of the model."""
        if self.loss is not None:
            self.loss.zero_grad()

    def on_log(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Add the new measurements of the Monitor to the log."""
        if self.monitor is not None:
            for record in self.monitor.history[self._logged :]:
                state.log_history.append({"monitor": asdict(record), "step": state.global_step})
            self._logged = len(self.monitor.history)

    def _take_index(self, model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._index = named.pop(INDEX, None)
        return inputs, named


class _Build(Optimizer):
    """Builds the optimizer from the param groups of the Trainer and from the variables of the loss.

    The Trainer hands its param groups to a subclass of Optimizer only, so this is one whose ``__new__`` returns an
    object of the chosen class.
    """

    def __new__(  # type: ignore[misc]
        cls, groups: list[dict[str, Any]], *, kind: type[Optimizer], loss: nn.Module | None, **options: Any
    ) -> Optimizer:
        minmax = issubclass(kind, MinMaxOptimizer)
        role = {"role": "primal"} if minmax else {}
        groups = [{**group, **role} for group in groups if len(group["params"]) > 0]
        if loss is not None:
            getattr(loss, "primal_parameters", list)()  # declares the roles of the variables
            dual: list[Tensor] = loss.dual_parameters() if minmax else []  # type: ignore[operator]
            own = [x for x in loss.parameters() if all(x is not y for y in dual)]
            groups += [{"params": own, "weight_decay": 0.0, **role}] if own else []
            groups += [{"params": dual, "role": "dual"}] if dual else []
        if kind.__module__.startswith("semaopt."):
            options = {"decoupled_weight_decay": True, **options}
        build: Any = kind
        optimizer: Optimizer = build(groups, **options)
        if loss is not None:
            _save_with(optimizer, loss)
        return optimizer


def _save_with(optimizer: Optimizer, loss: nn.Module) -> None:
    """Add the state dict of the loss to that of the optimizer."""
    loaded: list[Any] = []

    def add(_: Optimizer, state: dict[str, Any]) -> None:
        state[SAVED] = {name: value.detach() for name, value in loss.state_dict().items()}

    def take(_: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        if SAVED not in state:
            raise ValueError(
                f"the checkpoint has no entry {SAVED!r} in its optimizer state, so {type(loss).__name__} cannot "
                "continue. Resume from a checkpoint that was written with the same trainer_kwargs(loss)."
            )
        loaded[:] = [state[SAVED]]
        return {name: value for name, value in state.items() if name != SAVED}

    def put(_: Optimizer) -> None:
        loss.load_state_dict(loaded.pop())

    optimizer.register_state_dict_post_hook(add)
    optimizer.register_load_state_dict_pre_hook(take)
    optimizer.register_load_state_dict_post_hook(put)


def _optimizer_kind(loss: nn.Module | None, optimizer: str | type[Optimizer] | None) -> type[Optimizer]:
    if optimizer is None:
        return optimizer_class("PDAda" if hasattr(loss, "dual_parameters") else "ASA")
    return optimizer_class(optimizer) if isinstance(optimizer, str) else optimizer
