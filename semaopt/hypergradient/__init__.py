"""Hypergradients of bilevel problems: approximations of the inverse Hessian, and a comparison with the exact one."""

import warnings
from typing import Any

from semaopt.hypergradient.compare import Comparison as Comparison
from semaopt.hypergradient.compare import compare as compare
from semaopt.hypergradient.counts import Calls as Calls
from semaopt.hypergradient.counts import count_calls as count_calls
from semaopt.hypergradient.inverses import CG as CG
from semaopt.hypergradient.inverses import Exact as Exact
from semaopt.hypergradient.inverses import FirstOrder as FirstOrder
from semaopt.hypergradient.inverses import Inverse as Inverse
from semaopt.hypergradient.inverses import Neumann as Neumann
from semaopt.hypergradient.inverses import NeumannSeries as NeumannSeries
from semaopt.hypergradient.inverses import TrackedSystem as TrackedSystem


def check(*args: Any, **kwargs: Any) -> Comparison:
    """Deprecated alias of :func:`compare`; it will be removed in version 0.3."""
    warnings.warn("hypergradient.check is now hypergradient.compare", DeprecationWarning, stacklevel=2)
    return compare(*args, **kwargs)
