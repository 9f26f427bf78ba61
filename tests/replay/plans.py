"""Plans of semaopt.theory: compare bounds and limits with direct formulas; no other allowed rates are better."""

import math

from semaopt import theory
from tests.replay.plain import plans as plain


def relative(found, expected):
    return abs(float(found) - expected) / expected


def drawn_constants(draw, **more):
    c_l = draw.rate(0.2, 2)
    c = {"sigma2": draw.rate(1e-2, 10), "delta_f": draw.rate(0.1, 10), "c_l": c_l, "c_u": c_l * draw.rate(1, 5)}
    c |= more
    return c, theory.Constants(**c)


def others(draw, limit):
    """Allowed rates near the limit."""
    return [limit * draw.rate(1e-3, 1) for _ in range(5)]


def constant(draw):
    c, ours = drawn_constants(draw, L=draw.rate(0.1, 10), c=draw.pick([0.0, draw.rate(0.1, 3)]))
    T, tracking = int(draw.rate(10, 1e6)), draw.yes()
    plan = theory.constant(ours, T, tracking=tracking)
    largest = min(plain.eta_caps(c, plan.gamma, tracking))
    assert plan.gamma <= plain.gamma_cap(c) * (1 + 1e-12)
    for gamma in others(draw, plain.gamma_cap(c)):
        other = plain.constant(c, T, min(plain.eta_caps(c, gamma, tracking)), gamma)
        assert other >= plan.bound() * (1 - 1e-9)
    found = [relative(plan.bound(), plain.constant(c, T, plan.eta, plan.gamma)), relative(plan.eta, largest)]
    if tracking:
        found.append(relative(plan.tracking(), plain.constant_tracking(c, T, plan.eta, plan.gamma)))
    return max(found)


def decreasing(draw):
    c, ours = drawn_constants(draw, L=draw.rate(0.1, 10), c=draw.pick([0.0, draw.rate(0.1, 3)]))
    T = int(draw.rate(10, 3000))
    plan = theory.decreasing(ours, T)
    steps = [min(1.0, plan.gamma_0 / math.sqrt(t + 1)) for t in range(T + 2)]
    largest = max(abs(plan.gamma(t) - steps[t]) + abs(plan.eta(t) - plan.rho * steps[t + 1]) for t in range(T + 1))
    for t in range(T + 1):  # eta_t obeys the limits with the gamma of the next step
        assert plan.eta(t) <= min(plain.eta_caps(c, steps[t + 1], False)) * (1 + 1e-9)
    return max(largest, relative(plan.bound(), plain.decreasing(c, T, plan.gamma_0, plan.rho)))


def pl(draw):
    L = draw.rate(0.5, 5)
    c, ours = drawn_constants(draw, L=L, c=draw.pick([0.0, draw.rate(0.1, 1)]), mu=L * draw.rate(0.01, 1))
    first = max(c["delta_f"], plain.first_error(c))
    plan, largest = theory.pl(ours, first * draw.rate(0.01, 0.9)), 0.0
    for k, stage in enumerate(plan.stages):
        gamma, eta, T = plain.stage(c, first / 2**k)
        largest = max(largest, relative(stage.gamma, gamma), relative(stage.eta, eta))
        assert T - 1e-6 * T <= stage.T <= T + 1
    assert first / 2 ** len(plan.stages) <= plan.epsilon * (1 + 1e-9) < first / 2 ** (len(plan.stages) - 1) * (1 + 1e-9)
    assert plan.bound() <= plan.epsilon
    return largest


def minmax(draw):
    lam = draw.rate(0.1, 2)
    c, ours = drawn_constants(draw, lam=lam, L_f=lam * draw.rate(1, 20), delta_y=draw.rate(0.01, 5))
    T, dual = int(draw.rate(100, 1e7)), draw.pick(["strongly concave", "pl"])
    p, plan = 1 + (dual == "pl"), theory.minmax(ours, T, dual=dual)
    caps = plain.minmax_caps(c, plan.gamma, plan.eta_y, p)
    assert plan.gamma < 0.25
    assert plan.eta_y <= caps["eta_y"] * (1 + 1e-9)
    assert plan.eta_x <= caps["eta_x"] * (1 + 1e-9)
    for gamma, eta_y in zip(others(draw, 0.2499), others(draw, caps["eta_y"]), strict=True):
        eta_x = plain.minmax_caps(c, gamma, eta_y, p)["eta_x"]
        assert plain.minmax(c, T, eta_x, eta_y, gamma, p) >= plan.bound() * (1 - 1e-6)
    return relative(plan.bound(), plain.minmax(c, T, plan.eta_x, plan.eta_y, plan.gamma, p))


def bilevel(draw):
    lam, names = draw.rate(0.2, 2), ("L_fx", "L_fy", "L_gxy", "L_gyy", "C_fy", "C_gxy")
    more = {name: draw.rate(0.1, 3) for name in names}
    more |= {"lam": lam, "L_gy": lam * draw.rate(1, 5), "C_gyy": lam * draw.rate(1.1, 5), "delta_y": draw.rate(0.01, 2)}
    c, ours = drawn_constants(draw, **more)
    T = int(draw.rate(1000, 1e8))
    plan = theory.bilevel(ours, T)
    assert plan.k == max(1, plain.neumann_terms(c, T))
    return relative(plan.bound(), plain.bilevel(c, T, plan.eta_x, plan.eta_y, plan.gamma, plan.k))


CASES = {f"theory.{case.__name__}": case for case in (constant, decreasing, pl, minmax, bilevel)}
