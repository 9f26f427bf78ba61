"""Checks of ``thm:2`` and ``thm:SHB_decrease``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from semaopt import theory
from semaopt.checks.averages import ROWS, Check, Checks, Perturb, Size, Unaveraged, judge
from semaopt.checks.result import CheckResult
from semaopt.problems import (
    Additive,
    Bounded,
    LeastSquares,
    Minimization,
    Multiplicative,
    Oracle,
    Quantized,
    RandomCoordinate,
    Sampled,
    Sparsified,
    simulate,
)
from semaopt.scalings import BuiltIn
from semaopt.theory import Constants


@dataclass(frozen=True)
class Setting:
    """A problem, its oracle, and a row of Table 2, clipped to ``clip`` if the gradients are unbounded."""

    problem: Minimization
    oracle: Oracle
    row: BuiltIn
    clip: tuple[float, float] | None = None

    @property
    def constants(self) -> Constants:
        return self.problem.constants(self.oracle, self.row, self.clip)


#: The T of the runs with gamma = 1, whose error does not shrink with T.
CONVERSE = (300, 1_000)


def constant(name: str, setting: Setting, size: Size, perturb: Perturb = dict) -> CheckResult:
    """Check both averages of ``thm:2``, both rates, and the converse with gamma = 1."""
    c = setting.constants
    plans = [theory.constant(c, T, tracking=True) for T in size.Ts]
    run = partial(simulate.minimize, setting.problem, setting.oracle, setting.row, seeds=size.seeds, clip=setting.clip)
    runs = []
    for k, plan in enumerate(plans):
        rates = perturb(plan.rates)
        runs.append(run((rates["eta"], rates["gamma"]), plan.T, seed=k))
    unaveraged = None
    if c.c == 0:  # with c > 0 the noise shrinks with grad F, so the converse does not hold
        etas = [theory.constant(c, T, tracking=True).eta for T in CONVERSE]
        errors = [
            run((eta, 1.0), T, seed=100 + k).tracking for k, (eta, T) in enumerate(zip(etas, CONVERSE, strict=True))
        ]
        unaveraged = Unaveraged(CONVERSE, errors)
    return judge(name, plans, runs, unaveraged=unaveraged)


def decreasing(name: str, setting: Setting, size: Size, perturb: Perturb = dict) -> CheckResult:
    """Check ``thm:SHB_decrease``: eta_t and gamma_t fall like 1/sqrt(t), and the rate has a factor ln T."""
    c = setting.constants
    plans = [theory.decreasing(c, T, gamma_0=2.0, tracking=True) for T in size.Ts]  # one gamma_0 for all T
    runs = []
    for k, plan in enumerate(plans):
        rates = perturb(plan.rates)
        rho, gamma_0 = rates["rho"], rates["gamma_0"]

        def schedule(t: int, rho: float = rho, gamma_0: float = gamma_0) -> tuple[float, float]:
            return rho * min(1.0, gamma_0 / math.sqrt(t + 2)), min(1.0, gamma_0 / math.sqrt(t + 1))

        runs.append(
            simulate.minimize(setting.problem, setting.oracle, setting.row, schedule, plan.T, seeds=size.seeds, seed=k)
        )
    return judge(name, plans, runs, logarithm=True)


def registry(quick: bool) -> Checks:
    """Map names to (theorem, check)."""
    size = Size((1_000, 4_000)) if quick else Size((1_000, 3_000, 10_000, 30_000, 100_000))
    # Noise that grows with |grad F| limits gamma. Up to T = 3,000 this limit determines gamma, and the rate is hidden.
    late = Size((3_000, 10_000), seeds=128) if quick else Size((3_000, 10_000, 30_000))
    noise, problem, shb = Additive(1.0), Bounded(), ROWS["shb"]
    squares = LeastSquares(residual=0.01, mu=0.5, L=0.5)
    others = {
        "random coordinate": Setting(Bounded(d=4), RandomCoordinate(8.0), shb),
        "multiplicative": Setting(problem, Multiplicative(1.0, 1.0), shb),
        "sparsified": Setting(problem, Sparsified(noise, 0.5), shb),
        "quantized": Setting(problem, Quantized(noise, 0.5), shb),
        "sampled": Setting(squares, Sampled(squares), shb),
    }
    found: dict[str, tuple[str, Check]] = {}
    for key, row in ROWS.items():
        setting = Setting(problem, noise, row)
        found[f"constant[{key}]"] = "thm:2", partial(constant, setting=setting, size=size)
        found[f"decreasing[{key}]"] = "thm:SHB_decrease", partial(decreasing, setting=setting, size=size)
    for key, setting in others.items():
        found[f"constant[{key}]"] = "thm:2", partial(constant, setting=setting, size=late)
    return {key: (label, partial(check, key)) for key, (label, check) in found.items()}
