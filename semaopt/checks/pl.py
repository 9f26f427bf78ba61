"""Checks of ``thm:min_PL``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from semaopt import theory
from semaopt.checks.averages import ROWS, Check, Checks, Perturb, given
from semaopt.checks.minimization import Setting
from semaopt.checks.result import CheckResult, Figure, band, below, inside, rate, reference
from semaopt.problems import Additive, LeastSquares, Wavy, simulate
from semaopt.schedules.stages import Stage


@dataclass(frozen=True)
class SimulatedStage:
    """A stage that is not validated, unlike :class:`semaopt.Stage`, so that its rates may be perturbed."""

    eta: float
    gamma: float
    T: int


def perturbed(stages: list[Stage], perturb: Perturb) -> list[SimulatedStage]:
    """Return the stages with eta, gamma and T changed by ``perturb``."""
    changed = [perturb({"eta": s.eta, "gamma": s.gamma, "T": s.T}) for s in stages]
    return [SimulatedStage(rates["eta"], rates["gamma"], int(rates["T"])) for rates in changed]


def pl(name: str, setting: Setting, epsilon: float, seeds: int, perturb: Perturb = dict) -> CheckResult:
    """Check ``thm:min_PL``: F - min F is below epsilon_0/2^(k+1) after stage k, so it falls like 1/steps."""
    c = setting.constants
    plan = theory.pl(c, epsilon)
    stages = perturbed(plan.stages, perturb)
    runs = simulate.minimize_in_stages(
        setting.problem, setting.oracle, setting.row, stages, seeds=seeds, clip=setting.clip
    )
    steps = [sum(s.T + 1 for s in plan.stages[: k + 1]) for k in range(len(stages))]
    gaps, bounds = [run.gap for run in runs], [plan.bound(n) for n in steps]
    lines = [
        below("F - min F <= epsilon_k", gaps, bounds, [f"stage {k}" for k in range(len(stages))]),
        inside([run.scaling_bounds for run in runs], (c.c_l, c.c_u)),
        rate("F - min F ~ steps^p", -1.0, steps, gaps),
    ]
    figure = Figure(
        f"{name}: every stage halves F - min F, and the error falls at least like 1/steps",
        "steps",
        "F - min F",
        [band("measured", steps, gaps), reference("bound (thm:min_PL)", steps, bounds)],
    )
    return CheckResult(name, plan.label, lines, figure, {**given(c), "steps": steps, "seeds": seeds})


def pl_in_mu(name: str, mus: tuple[float, ...], stages: int, seeds: int, perturb: Perturb = dict) -> CheckResult:
    """Check ``thm:min_PL``: the product of steps and F - min F grows at most like 1/mu^2."""
    products, gaps, bounds = [], [], []
    for mu in mus:
        problem, oracle = LeastSquares(mu=mu), Additive(0.05)
        plan = theory.pl(problem.constants(oracle), 2.0**-stages)
        gap = simulate.minimize_in_stages(problem, oracle, "shb", perturbed(plan.stages, perturb), seeds=seeds)[-1].gap
        gaps.append(gap)
        bounds.append(plan.bound())
        products.append(gap * plan.T)
    inverse = [1 / mu for mu in mus]
    lines = [
        below("F - min F <= epsilon", gaps, bounds, [f"mu = {mu}" for mu in mus]),
        rate("steps (F - min F) ~ (1/mu)^p", 2.0, inverse, products),
    ]
    quadratic = [float(products[0].mean()) * (i / inverse[0]) ** 2 for i in inverse]
    figure = Figure(
        f"{name}: the product of steps and error grows at most like 1/mu^2",
        "1/mu",
        "steps (F - min F)",
        [band("measured", inverse, products), reference("~ 1/mu^2", inverse, quadratic)],
    )
    return CheckResult(name, "thm:min_PL", lines, figure, {"mu": list(mus), "seeds": seeds})


def registry(quick: bool) -> Checks:
    """Map names to (theorem, check)."""
    stages, seeds = (4, 128) if quick else (6, 256)
    squares, noise = LeastSquares(mu=0.5), Additive(0.05)
    settings = {
        "shb": (Setting(squares, noise, ROWS["shb"]), 2.0**-stages),
        "adam": (Setting(squares, noise, ROWS["adam"], clip=(0.5, 1.0)), 2.0**-stages),
        "wavy": (Setting(Wavy(d=2), Additive(0.1), ROWS["shb"]), 2.0 ** (4 - stages)),
    }
    found: dict[str, tuple[str, Check]] = {
        f"pl[{key}]": ("thm:min_PL", partial(pl, setting=setting, epsilon=epsilon, seeds=seeds))
        for key, (setting, epsilon) in settings.items()
    }
    mus = (0.5, 0.25) if quick else (0.5, 0.25, 0.125)
    found["pl[mu]"] = "thm:min_PL", partial(pl_in_mu, mus=mus, stages=stages, seeds=seeds)
    return {key: (label, partial(check, key)) for key, (label, check) in found.items()}
