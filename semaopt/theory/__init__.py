"""Rates and bounds of the paper's theorems, computed from the constants of a problem.

>>> c = semaopt.theory.Constants(L=1.0, sigma2=1.0, delta_f=1.0)
>>> plan = semaopt.theory.constant(c, T=10_000)
>>> [str(bad) for bad in plan.violations(eta=0.01, gamma=0.01)][0][:60]
'eta=0.01 is 2 times too large: eta <= gamma sqrt(c_l)/(2 L s'
>>> semaopt.theory.T_for("constant", c, epsilon=0.1)
1599999
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semaopt.theory.bilevel import BilevelPlan as BilevelPlan
from semaopt.theory.bilevel import SBMAPlan as SBMAPlan
from semaopt.theory.bilevel import bilevel as bilevel
from semaopt.theory.constants import Constants as Constants
from semaopt.theory.decreasing import DecreasingPlan as DecreasingPlan
from semaopt.theory.decreasing import decreasing as decreasing
from semaopt.theory.minimize import ConstantPlan as ConstantPlan
from semaopt.theory.minimize import constant as constant
from semaopt.theory.minmax import MinMaxPlan as MinMaxPlan
from semaopt.theory.minmax import minmax as minmax
from semaopt.theory.pl import PLPlan as PLPlan
from semaopt.theory.pl import pl as pl
from semaopt.theory.plan import Bound as Bound
from semaopt.theory.plan import Condition as Condition
from semaopt.theory.plan import Plan as Plan
from semaopt.theory.plan import Violation as Violation
from semaopt.theory.schedule import Prescribed as Prescribed

#: ``thm:2``, ``thm:SHB_decrease``, ``thm:min_PL``, ``thm:PDAda`` and ``thm:5``.
THEOREMS: dict[str, Callable[..., Any]] = {
    "constant": constant,
    "decreasing": decreasing,
    "pl": pl,
    "minmax": minmax,
    "bilevel": bilevel,
}


def T_for(theorem: str, c: Constants, epsilon: float) -> int:
    """Return the smallest T for which a theorem promises the accuracy ``epsilon``.

    Args:
        theorem: ``"constant"``, ``"decreasing"``, ``"pl"``, ``"minmax"`` or ``"bilevel"``.
        c: the constants that the theorem needs.
        epsilon: the accuracy of the gradient, avg E|grad F|^2 <= epsilon^2: note the square. For ``"pl"`` it is the
            accuracy of F, E[F - F*] <= epsilon.

    >>> c = semaopt.theory.Constants(L=1.0, sigma2=1.0, delta_f=1.0)
    >>> semaopt.theory.T_for("constant", c, 0.5) < semaopt.theory.T_for("constant", c, 0.25)
    True
    """
    if theorem not in THEOREMS:
        raise ValueError(f"theorem={theorem!r} is unknown. Choose from {', '.join(map(repr, THEOREMS))}")
    # The method T_for of a plan does not depend on the T of the plan.
    plan = pl(c, epsilon) if theorem == "pl" else THEOREMS[theorem](c, 1)
    return int(plan.T_for(epsilon))
