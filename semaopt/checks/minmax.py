"""Checks of ``thm:PDAda``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from semaopt import theory
from semaopt.checks.averages import ROWS, Check, Checks, Perturb, Size, Unaveraged, judge
from semaopt.checks.result import CheckResult, Figure, band, below, rate, reference
from semaopt.problems import Additive, DualPL, MinMax, StronglyConcave, simulate
from semaopt.scalings import BuiltIn

NOISE = Additive(0.03)
#: The T of the runs with gamma = 1, whose error does not shrink with T.
CONVERSE = (1_000, 3_000)


@dataclass(frozen=True)
class MinMaxSetting:
    """A problem and a row of Table 2, clipped to ``clip`` if the gradients are unbounded."""

    problem: MinMax
    row: BuiltIn
    clip: tuple[float, float] | None = None


def minmax(name: str, setting: MinMaxSetting, size: Size, perturb: Perturb = dict) -> CheckResult:
    """Check both averages of ``thm:PDAda``, both rates, and the converse with gamma = 1."""
    problem, row, clip = setting.problem, setting.row, setting.clip
    c = problem.constants(NOISE, row, clip)
    plans = [theory.minmax(c, T, dual=problem.dual) for T in size.Ts]
    run = partial(simulate.minmax, problem, NOISE, row, seeds=size.seeds, clip=clip)
    runs = [run(perturb(plan.rates), plan.T, seed=k) for k, plan in enumerate(plans)]
    errors = []
    for k, T in enumerate(CONVERSE):
        rates = theory.minmax(c, T, dual=problem.dual).rates
        errors.append(run({**rates, "gamma": 1.0}, T, seed=100 + k).tracking)
    return judge(name, plans, runs, weight=problem.L_f**2, unaveraged=Unaveraged(CONVERSE, errors))


def minmax_in_kappa(name: str, lams: tuple[float, ...], T: int, seeds: int, perturb: Perturb = dict) -> CheckResult:
    """Check that the average of ``thm:PDAda`` grows at most like kappa^(3/2)."""
    problems = [StronglyConcave(d=4, lam=lam, beta=0.25, x0=0.5) for lam in lams]
    plans = [theory.minmax(problem.constants(NOISE), T) for problem in problems]
    runs = [
        simulate.minmax(problem, NOISE, "shb", perturb(plan.rates), T, seeds=seeds, seed=k)
        for k, (problem, plan) in enumerate(zip(problems, plans, strict=True))
    ]
    kappas, gradients = [problem.kappa for problem in problems], [run.gradient for run in runs]
    lines = [
        below("avg |grad F|^2 <= bound", gradients, [p.bound() for p in plans], [f"kappa = {k:.3g}" for k in kappas]),
        rate("avg |grad F|^2 ~ kappa^p", 1.5, kappas, gradients),
    ]
    figure = Figure(
        f"{name}: the average grows at most like kappa^(3/2)",
        "kappa",
        "average of |grad F|^2",
        [band("measured", kappas, gradients), reference("bound (thm:PDAda)", kappas, [p.bound() for p in plans])],
    )
    return CheckResult(name, "thm:PDAda", lines, figure, {"kappa": kappas, "T": T, "seeds": seeds})


def registry(quick: bool) -> Checks:
    """Map names to (theorem, check)."""
    size = Size((3_000, 9_000), seeds=128) if quick else Size((3_000, 9_000, 27_000, 54_000))
    problem, dual = StronglyConcave(d=4, lam=2.25, beta=0.25, x0=0.5), DualPL(d=4, lam=2.0, x0=0.5)
    found: dict[str, tuple[str, Check]] = {}
    for key, row in ROWS.items():
        found[f"minmax[{key}]"] = "thm:PDAda", partial(minmax, setting=MinMaxSetting(problem, row), size=size)
    lams, T = ((2.25, 1.5, 1.0), 5_000) if quick else ((2.25, 1.0, 0.5), 30_000)
    found["minmax[kappa]"] = "thm:PDAda", partial(minmax_in_kappa, lams=lams, T=T, seeds=size.seeds)
    pl = {"shb": MinMaxSetting(dual, ROWS["shb"]), "adam": MinMaxSetting(dual, ROWS["adam"], clip=(0.5, 1.0))}
    for key, setting in pl.items():
        found[f"minmax-pl[{key}]"] = "thm:PDAda", partial(minmax, setting=setting, size=size)
    return {key: (label, partial(check, key)) for key, (label, check) in found.items()}
