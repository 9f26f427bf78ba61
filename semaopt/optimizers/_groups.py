"""Param groups that show beta to tools that look for torch's ``momentum``.

Lightning's LearningRateMonitor reads ``group.get("momentum", 0)`` if ``"momentum" in optimizer.defaults``. OneCycleLR
and CyclicLR make the same test, and then write a momentum of their own unless ``cycle_momentum=False``. Reading gives
beta; writing is an error that names the remedy. The key is never in a group, so state dicts do not have it.
"""

from __future__ import annotations

from typing import Any

_NAMES = ("momentum", "betas")


class Defaults(dict[str, Any]):
    """The defaults of an optimizer whose ``beta`` is a momentum."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__("beta" if name == "momentum" else name)


class ParamGroup(dict[str, Any]):
    """A param group whose ``get("momentum")`` is its beta."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an option; for ``"momentum"`` that of beta, if the group is averaged."""
        if name == "momentum" and super().get("beta") is not None:
            return self["beta"]
        return super().get(name, default)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in _NAMES:
            raise ValueError(
                f"group[{name!r}] = {value!r} is invalid: the momentum of this optimizer is group['beta']. Pass "
                "cycle_momentum=False to OneCycleLR or CyclicLR; semaopt.schedules.Follow moves beta with their lr."
            )
        super().__setitem__(name, value)
