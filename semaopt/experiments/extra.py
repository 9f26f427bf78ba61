"""The optional packages of the extra ``[experiments]``."""

from __future__ import annotations

import importlib.util


def require(package: str, *modules: str) -> None:
    """Raise a ModuleNotFoundError that names the extra unless all modules are installed.

    >>> require("semaopt.experiments.data", "absent")
    Traceback (most recent call last):
    ModuleNotFoundError: semaopt.experiments.data needs 'absent'. Install the extra: pip install 'semaopt[experiments]'
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            text = f"{package} needs {name!r}. Install the extra: pip install 'semaopt[experiments]'"
            raise ModuleNotFoundError(text, name=name)
