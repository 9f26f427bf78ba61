"""All cases: a name and a function that replays one draw and returns the deviation."""

from tests.replay import (
    averages,
    bilevel,
    compositional,
    losses,
    minimization,
    minmax,
    plans,
    samplers,
    schedules,
    sets,
)
from tests.replay.draws import Draws

FAMILIES = (minimization, minmax, bilevel, compositional, schedules, averages, sets, losses, samplers, plans)
CASES = {name: case for family in FAMILIES for name, case in family.CASES.items()}


def deviation_of(name, seed):
    """Deviation of draw ``seed``."""
    return CASES[name](Draws(name, seed))


#: The ideal gains of NDCG and the prior of a sampler are float32 numbers.
FLOAT32 = ("NDCG", "ClassBalanced (properties)")


def tolerance(name):
    """A deviation above the rounding errors and below any error of a formula."""
    return 1e-6 if name in FLOAT32 else 1e-9
