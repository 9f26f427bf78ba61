"""A model and its min-max loss as one module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter


class WithLoss(nn.Module):
    """One module that holds a model and its loss and returns ``loss(model(inputs), *targets)``.

    The variables of a min-max loss are parameters like those of the model, so processes that train together must
    average their gradients as well. Wrap this module instead of the model:
    ``DistributedDataParallel(WithLoss(model, auc))`` or ``fully_shard(WithLoss(model, auc))``. With FSDP2, ask for the
    parameters after sharding. The ``state_dict`` holds the model and the variables of the loss.

    Args:
        model: any module.
        loss: a module with ``dual_parameters()``, such as :class:`semaopt.losses.AUCMinMax`.

    >>> both = semaopt.losses.WithLoss(torch.nn.Linear(3, 1), semaopt.losses.AUCMinMax(prior=0.5))
    >>> optimizer = semaopt.PDAda(primal=both.primal_parameters(), dual=both.dual_parameters())
    >>> both(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])).backward()
    >>> optimizer.step()
    """

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        if not hasattr(loss, "dual_parameters"):
            raise TypeError(
                f"loss of type {type(loss).__name__}: has no dual_parameters(), so it is unknown which parameters to "
                "maximize over; pass a min-max loss such as semaopt.losses.AUCMinMax(prior)"
            )
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, inputs: Any, *targets: Any) -> Tensor:
        """Return the loss of the model's output."""
        value: Tensor = self.loss(self.model(inputs), *targets)
        return value

    def dual_parameters(self) -> list[Parameter]:
        """Return the dual variables of the loss."""
        dual: list[Parameter] = self.loss.dual_parameters()  # type: ignore[operator]
        return dual

    def primal_parameters(self) -> list[Parameter]:
        """Return all parameters of model and loss except the dual ones."""
        dual = set(map(id, self.dual_parameters()))
        return [x for x in self.parameters() if id(x) not in dual]
