"""All cases: a name and a function that replays one draw and returns the deviation."""

from tests.replay import bilevel, compositional, minimization, minmax
from tests.replay.draws import Draws

FAMILIES = (minimization, minmax, bilevel, compositional)
CASES = {name: case for family in FAMILIES for name, case in family.CASES.items()}
#: Larger than the rounding errors of float64, smaller than any error of a formula.
TOLERANCE = 1e-9


def deviation_of(name, seed):
    """Deviation of draw ``seed``."""
    return CASES[name](Draws(name, seed))
