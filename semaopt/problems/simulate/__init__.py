"""Simulations of the paper's algorithms: many seeds as one tensor, measured against exact gradients."""

import warnings
from typing import Any

from semaopt.problems.simulate.bilevel import sbma as sbma
from semaopt.problems.simulate.bilevel import smb as smb
from semaopt.problems.simulate.compositional import compositional as compositional
from semaopt.problems.simulate.minimization import minimize as minimize
from semaopt.problems.simulate.minimization import minimize_in_stages as minimize_in_stages
from semaopt.problems.simulate.minmax import minmax as minmax
from semaopt.problems.simulate.runs import Simulation as Simulation


def __getattr__(name: str) -> Any:
    """Return ``Simulation`` under its deprecated name ``Run``, which will be removed in version 0.3."""
    if name != "Run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("problems.simulate.Run is now problems.simulate.Simulation", DeprecationWarning, stacklevel=2)
    return Simulation
