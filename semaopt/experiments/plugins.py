"""Plug-ins: the user's own algorithms, data sets, models and losses, named ``"package.module:name"`` in a spec.

>>> resolve("torch.optim:SGD").__name__
'SGD'
>>> resolve("torch.optim:SDG")
Traceback (most recent call last):
semaopt.experiments.plugins.PluginError: torch.optim:SDG: the module torch.optim has no 'SDG'. Did you mean 'SGD'?
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any


class PluginError(ValueError):
    """A plug-in that cannot be imported, does not exist or has the wrong type."""


def is_plugin(name: str) -> bool:
    """Whether a name of a spec has the form ``"package.module:name"``."""
    return ":" in name


def resolve(name: str) -> Any:
    """Import the object that ``"package.module:name"`` names.

    Modules are found on ``sys.path`` and in the current folder, in worker processes too.
    """
    return _load(name)[0]


def source_hash(name: str) -> str:
    """Return the SHA-256 of the file of the named module and of the file that defines the object."""
    return _load(name)[1]


@cache
def _load(name: str) -> tuple[Any, str]:
    module_name, _, attribute = name.partition(":")
    module = _imported(name, module_name)
    if not hasattr(module, attribute):
        near = get_close_matches(attribute, dir(module), n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}?" if near else f"Define it in {getattr(module, '__file__', module_name)}."
        raise PluginError(f"{name}: the module {module_name} has no {attribute!r}. {hint}")
    found = getattr(module, attribute)
    defined_in = sys.modules.get(getattr(found, "__module__", None) or module_name, module)
    code = hashlib.sha256()
    for one in dict.fromkeys((module, defined_in)):
        path = getattr(one, "__file__", None)
        if path is None:
            raise PluginError(
                f"{name}: {one.__name__} has no file, so worker processes cannot import it. Save it as a .py file."
            )
        code.update(Path(path).read_bytes())
    return found, code.hexdigest()


def _imported(name: str, module_name: str) -> Any:
    parts = module_name.split(".")
    if not all(part.isidentifier() for part in parts) or not name.partition(":")[2].isidentifier():
        raise PluginError(
            f"{name!r} is not a plug-in name. Write 'package.module:name', for example 'my_methods:Lion'."
        )
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:  # the console script starts without the current folder
        sys.path.append(folder)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise PluginError(f"{name}: {module_name} needs the module {error.name!r}. Install it first.") from error
        raise PluginError(
            f"{name}: there is no module {error.name!r} in {folder} or on sys.path. Run from the folder of "
            f"{parts[0]}.py, install the package, or add its folder to PYTHONPATH."
        ) from error
    except Exception as error:
        raise PluginError(f"{name}: importing {module_name} raised {type(error).__name__}: {error}. Fix it.") from error
