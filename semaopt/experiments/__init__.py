"""The paper's experiments and your own: specs, data, models, sweeps that survive, tables, figures and a page.

>>> from semaopt import experiments
>>> from semaopt.experiments import spec
>>> "figure1-digits" in spec.shipped()
True

``experiments.run("figure1-digits", scale="quick")`` does one and returns a table; ``tune`` only tunes.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semaopt.experiments.api import run as run
    from semaopt.experiments.api import tune as tune


def __getattr__(name: str) -> Any:
    """``run`` and ``tune`` are imported when they are first asked for: they need the extra ``[experiments]``."""
    if name in ("run", "tune"):
        from semaopt.experiments import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
