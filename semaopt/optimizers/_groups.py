"""The defaults of an optimizer, with an error for schedulers that would cycle a momentum of their own."""

from __future__ import annotations

import sys
from typing import Any

from torch.optim.lr_scheduler import CyclicLR, OneCycleLR


class Defaults(dict[str, Any]):
    """Defaults that have ``beta`` in place of torch's ``momentum``.

    OneCycleLR and CyclicLR look for ``"momentum"`` in the defaults unless ``cycle_momentum=False``, and torch's error
    does not name that remedy. Torch has no hook to change it, so ``in`` looks up its caller in the calling frame.
    """

    def __contains__(self, name: object) -> bool:
        caller = sys._getframe(1).f_locals.get("self") if name == "momentum" else None
        if isinstance(caller, (OneCycleLR, CyclicLR)):
            raise ValueError(
                f"{type(caller).__name__} cannot cycle the momentum of this optimizer, which is group['beta']. Pass "
                "cycle_momentum=False; semaopt.schedules.Follow moves beta in proportion to lr."
            )
        return super().__contains__(name)
