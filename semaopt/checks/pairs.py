"""Checks of ``thm:PDAda``, ``thm:5`` and ``thm:6``: an x that is averaged and a y that follows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from semaopt import theory
from semaopt.checks.averages import ROWS, Check, Checks, Size, Spoil, Unaveraged, judge
from semaopt.checks.result import Figure, Result, band, below, rate, reference
from semaopt.problems import Additive, DualPL, LogisticBilevel, MinMax, QuadraticBilevel, StronglyConcave, simulate
from semaopt.scalings import BuiltIn

NOISE = Additive(0.03)
CLIP = (0.5, 1.0)
#: The beds of SMB and of SBMA: F is bounded, its minimum 0.
LOWER = QuadraticBilevel(2, 2, 1.0, 1.1, 0.1, mu=0.0, rho=1.0, shift=0.0, noise=0.1, sigma2=2.5e-5, x0=5.0)
SINGLE = QuadraticBilevel(1, 1, 1.0, 1.1, 1.0, mu=0.0, rho=1.0, shift=0.0, noise=0.1, sigma2=2.5e-3, x0=0.5)
#: The T of the runs without averaging: what does not shrink need not be followed for long.
CONVERSE = (1_000, 3_000)


@dataclass(frozen=True)
class Setting:
    """A test bed and a row of Table 2, held between ``clip`` where the gradients are not bounded."""

    bed: MinMax
    row: BuiltIn
    clip: tuple[float, float] | None = None


def minmax(name: str, setting: Setting, size: Size, spoil: Spoil = dict) -> Result:
    """``thm:PDAda``: both averages, both rates, and the converse with gamma = 1."""
    bed, row, clip = setting.bed, setting.row, setting.clip
    c = bed.constants(NOISE, row, clip)
    plans = [theory.minmax(c, T, dual=bed.dual) for T in size.Ts]
    run = partial(simulate.minmax, bed, NOISE, row, seeds=size.seeds, clip=clip)
    runs = [run(spoil(plan.rates), plan.T, seed=k) for k, plan in enumerate(plans)]
    errors = []
    for k, T in enumerate(CONVERSE):
        rates = theory.minmax(c, T, dual=bed.dual).rates
        errors.append(run({**rates, "gamma": 1.0}, T, seed=100 + k).tracking)
    return judge(name, plans, runs, weight=bed.L_f**2, unaveraged=Unaveraged(CONVERSE, errors))


def minmax_in_kappa(name: str, lams: tuple[float, ...], T: int, seeds: int, spoil: Spoil = dict) -> Result:
    """``thm:PDAda``: the average grows at most like kappa^(3/2)."""
    beds = [StronglyConcave(d=4, lam=lam, beta=0.25, x0=0.5) for lam in lams]
    plans = [theory.minmax(bed.constants(NOISE), T) for bed in beds]
    runs = [
        simulate.minmax(bed, NOISE, "shb", spoil(plan.rates), T, seeds=seeds, seed=k)
        for k, (bed, plan) in enumerate(zip(beds, plans, strict=True))
    ]
    kappas, gradients = [bed.kappa for bed in beds], [run.gradient for run in runs]
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
    return Result(name, "thm:PDAda", lines, figure, {"kappa": kappas, "T": T, "seeds": seeds})


def smb(name: str, bed: QuadraticBilevel, row: BuiltIn, size: Size, spoil: Spoil = dict) -> Result:
    """``thm:5``, and with another scaling than SHB its adaptive variant, held between :data:`CLIP`."""
    clip = None if row is ROWS["shb"] else CLIP
    c = bed.constants() if clip is None else replace(bed.constants(), c_l=clip[0], c_u=clip[1])
    plans = [theory.bilevel(c, T) for T in size.Ts]
    runs = [
        simulate.smb(bed, row, spoil(plan.rates), plan.k, plan.T, seeds=size.seeds, seed=k, clip=clip)
        for k, plan in enumerate(plans)
    ]
    # More additive noise: what h contributes vanishes with the gradient, and is no converse.
    noisy, errors = replace(bed, sigma2=0.1), []
    for k, T in enumerate(CONVERSE):
        plan = theory.bilevel(noisy.constants(), T)
        rates = {**plan.rates, "gamma": 1.0}
        errors.append(simulate.smb(noisy, row, rates, plan.k, T, seeds=size.seeds, seed=100 + k, clip=clip).tracking)
    converse = Unaveraged(CONVERSE, errors)
    return judge(name, plans, runs, weight=c.C_0, rates=len(plans) > 1, unaveraged=converse)


def logistic(name: str, size: Size, spoil: Spoil = dict) -> Result:
    """``thm:5`` on logistic losses: the bounds alone, since its constants make the step sizes very small."""
    bed = LogisticBilevel()
    plans = [theory.bilevel(bed.constants(), T) for T in size.Ts]
    runs = [
        simulate.smb(bed, "shb", spoil(plan.rates), plan.k, plan.T, seeds=size.seeds, seed=k)
        for k, plan in enumerate(plans)
    ]
    return judge(name, plans, runs, weight=bed.constants().C_0, rates=False)


def sbma(name: str, bed: QuadraticBilevel, size: Size, spoil: Spoil = dict) -> Result:
    """``thm:6``."""
    c = bed.constants()
    plans = [theory.bilevel(c, T, method="sbma") for T in size.Ts]
    runs = [
        simulate.sbma(bed, spoil(plan.rates), plan.k, plan.T, seeds=size.seeds, seed=k) for k, plan in enumerate(plans)
    ]
    return judge(name, plans, runs, weight=c.C_0, rates=len(plans) > 1)


def registry(quick: bool) -> Checks:
    """Name -> (theorem, check)."""
    size = Size((3_000, 9_000), seeds=128) if quick else Size((3_000, 9_000, 27_000, 54_000))
    # The same k = 3 for all T: where it jumps, the variance of h does.
    late = Size((4_000, 12_000)) if quick else Size((4_000, 12_000, 36_000, 72_000))
    # The constants of thm:6 make its step sizes so small that the rate shows from T = 30,000 on.
    slow = Size((3_000,), seeds=64) if quick else Size((30_000, 60_000, 120_000))
    bed, dual = StronglyConcave(d=4, lam=2.25, beta=0.25, x0=0.5), DualPL(d=4, lam=2.0, x0=0.5)
    found: dict[str, tuple[str, Check]] = {}
    for key, row in ROWS.items():
        found[f"minmax[{key}]"] = "thm:PDAda", partial(minmax, setting=Setting(bed, row), size=size)
    lams, T = ((2.25, 1.5, 1.0), 5_000) if quick else ((2.25, 1.0, 0.5), 30_000)
    found["minmax[kappa]"] = "thm:PDAda", partial(minmax_in_kappa, lams=lams, T=T, seeds=size.seeds)
    for key, setting in {"shb": Setting(dual, ROWS["shb"]), "adam": Setting(dual, ROWS["adam"], CLIP)}.items():
        found[f"minmax-pl[{key}]"] = "thm:PDAda", partial(minmax, setting=setting, size=size)
    for key in ("shb", "adam"):
        one = Size(late.Ts[:1]) if quick and key != "shb" else late
        found[f"smb[{key}]"] = "thm:5", partial(smb, bed=LOWER, row=ROWS[key], size=one)
    few = Size((100,), seeds=16) if quick else Size((100, 1_000), seeds=32)
    found["smb[logistic]"] = "thm:5", partial(logistic, size=few)
    found["sbma"] = "thm:6", partial(sbma, bed=SINGLE, size=slow)
    return {key: (label, partial(check, key)) for key, (label, check) in found.items()}
