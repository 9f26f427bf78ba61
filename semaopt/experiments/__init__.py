"""Experiments of the paper and your own: specs, data, models, resumable sweeps, tables, figures and reports.

>>> from semaopt import experiments
>>> from semaopt.experiments import spec
>>> "figure1-digits" in spec.shipped()
True

``experiments.run("figure1-digits", scale="quick")`` runs an experiment and returns a table, ``tune`` only tunes it, and
``reproduce`` runs all of them. :func:`semaopt.experiments.api.report` writes a report of stored results again.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semaopt.experiments.api import reproduce as reproduce
    from semaopt.experiments.api import run as run
    from semaopt.experiments.api import tune as tune


def __getattr__(name: str) -> Any:
    """Import ``run``, ``tune`` and ``reproduce`` on first use: they need the extra ``[experiments]``."""
    if name in ("run", "tune", "reproduce"):
        from semaopt.experiments import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
