"""Checks of ``thm:5`` and ``thm:6``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from semaopt import theory
from semaopt.checks.averages import ROWS, Check, Checks, Perturb, Size, Unaveraged, judge
from semaopt.checks.result import CheckResult
from semaopt.problems import LogisticBilevel, QuadraticBilevel, simulate
from semaopt.scalings import BuiltIn

#: Bounds of the scaling for the adaptive variant of SMB.
CLIP = (0.5, 1.0)
#: The problems of SMB and of SBMA. F is bounded, and its minimum is 0.
SMB_PROBLEM = QuadraticBilevel(2, 2, 1.0, 1.1, 0.1, mu=0.0, rho=1.0, shift=0.0, noise=0.1, sigma2=2.5e-5, x0=5.0)
SBMA_PROBLEM = QuadraticBilevel(1, 1, 1.0, 1.1, 1.0, mu=0.0, rho=1.0, shift=0.0, noise=0.1, sigma2=2.5e-3, x0=0.5)
#: The T of the runs with gamma = 1, whose error does not shrink with T.
CONVERSE = (1_000, 3_000)


def smb(name: str, problem: QuadraticBilevel, row: BuiltIn, size: Size, perturb: Perturb = dict) -> CheckResult:
    """Check ``thm:5`` or, with a scaling other than SHB, its adaptive variant, clipped to :data:`CLIP`."""
    clip = None if row is ROWS["shb"] else CLIP
    c = problem.constants() if clip is None else replace(problem.constants(), c_l=clip[0], c_u=clip[1])
    plans = [theory.bilevel(c, T) for T in size.Ts]
    runs = [
        simulate.smb(problem, row, perturb(plan.rates), plan.k, plan.T, seeds=size.seeds, seed=k, clip=clip)
        for k, plan in enumerate(plans)
    ]
    # The runs with gamma = 1 need more additive noise: the noise of h alone vanishes with the gradient.
    noisy, errors = replace(problem, sigma2=0.1), []
    for k, T in enumerate(CONVERSE):
        plan = theory.bilevel(noisy.constants(), T)
        rates = {**plan.rates, "gamma": 1.0}
        errors.append(simulate.smb(noisy, row, rates, plan.k, T, seeds=size.seeds, seed=100 + k, clip=clip).tracking)
    converse = Unaveraged(CONVERSE, errors)
    return judge(name, plans, runs, weight=c.C_0, rates=len(plans) > 1, unaveraged=converse)


def logistic(name: str, size: Size, perturb: Perturb = dict) -> CheckResult:
    """Check the bounds of ``thm:5`` on logistic losses. Its step sizes are too small to fit a rate."""
    problem = LogisticBilevel()
    plans = [theory.bilevel(problem.constants(), T) for T in size.Ts]
    runs = [
        simulate.smb(problem, "shb", perturb(plan.rates), plan.k, plan.T, seeds=size.seeds, seed=k)
        for k, plan in enumerate(plans)
    ]
    return judge(name, plans, runs, weight=problem.constants().C_0, rates=False)


def sbma(name: str, problem: QuadraticBilevel, size: Size, perturb: Perturb = dict) -> CheckResult:
    """Check ``thm:6``."""
    c = problem.constants()
    plans = [theory.bilevel(c, T, method="sbma") for T in size.Ts]
    runs = [
        simulate.sbma(problem, perturb(plan.rates), plan.k, plan.T, seeds=size.seeds, seed=k)
        for k, plan in enumerate(plans)
    ]
    return judge(name, plans, runs, weight=c.C_0, rates=len(plans) > 1)


def registry(quick: bool) -> Checks:
    """Map names to (theorem, check)."""
    # k = 3 for all these T. Where k jumps, so does the variance of h.
    late = Size((4_000, 12_000)) if quick else Size((4_000, 12_000, 36_000, 72_000))
    # The step sizes of thm:6 are so small that its rate is visible only from T = 30,000 on.
    slow = Size((3_000,), seeds=64) if quick else Size((30_000, 60_000, 120_000))
    found: dict[str, tuple[str, Check]] = {}
    for key in ("shb", "adam"):
        one = Size(late.Ts[:1]) if quick and key != "shb" else late
        found[f"smb[{key}]"] = "thm:5", partial(smb, problem=SMB_PROBLEM, row=ROWS[key], size=one)
    few = Size((100,), seeds=16) if quick else Size((100, 1_000), seeds=32)
    found["smb[logistic]"] = "thm:5", partial(logistic, size=few)
    found["sbma"] = "thm:6", partial(sbma, problem=SBMA_PROBLEM, size=slow)
    return {key: (label, partial(check, key)) for key, (label, check) in found.items()}
