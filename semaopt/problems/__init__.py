"""Test problems with constants in closed form, oracles with a proven variance, and simulations of many seeds."""

import warnings
from typing import Any

from semaopt.problems import simulate as simulate
from semaopt.problems.benchmark import RegularizationSelection as RegularizationSelection
from semaopt.problems.benchmark import SoftmaxCleaning as SoftmaxCleaning
from semaopt.problems.bilevel import QuadraticBilevel as QuadraticBilevel
from semaopt.problems.cleaning import HyperCleaning as HyperCleaning
from semaopt.problems.compositional import QuadraticComposition as QuadraticComposition
from semaopt.problems.logistic import LogisticBilevel as LogisticBilevel
from semaopt.problems.minimization import Bounded as Bounded
from semaopt.problems.minimization import LeastSquares as LeastSquares
from semaopt.problems.minimization import Minimization as Minimization
from semaopt.problems.minimization import Sampled as Sampled
from semaopt.problems.minimization import Wavy as Wavy
from semaopt.problems.minmax import DualPL as DualPL
from semaopt.problems.minmax import MinMax as MinMax
from semaopt.problems.minmax import StronglyConcave as StronglyConcave
from semaopt.problems.oracles import Additive as Additive
from semaopt.problems.oracles import Multiplicative as Multiplicative
from semaopt.problems.oracles import Noiseless as Noiseless
from semaopt.problems.oracles import Oracle as Oracle
from semaopt.problems.oracles import Quantized as Quantized
from semaopt.problems.oracles import RandomCoordinate as RandomCoordinate
from semaopt.problems.oracles import Sparsified as Sparsified


def __getattr__(name: str) -> Any:
    """Return ``Noiseless`` under its deprecated name ``Exact``, which will be removed in version 0.3."""
    if name != "Exact":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("problems.Exact is now problems.Noiseless", DeprecationWarning, stacklevel=2)
    return Noiseless
