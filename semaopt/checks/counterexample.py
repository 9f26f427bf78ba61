r"""The example of Reddi, Kale and Kumar (2018) in which Adam does not converge, and its cure by large momentum.

On [-1, 1] the gradient is C with probability (1+d)/(C+1) and -1 otherwise. Its mean is d > 0, so F(x) = dx has its
minimum at -1. Adam divides by :math:`\sqrt u`, which is large exactly when the rare C arrives. With a small beta the
many small steps upwards dominate, and x goes to +1. If gamma = 1 - beta is small enough for the noise, v is close to d
before the division, and x goes to -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from semaopt import scalings
from semaopt.checks.averages import Checks
from semaopt.checks.result import CheckResult, Figure, Line, band, mean_and_half
from semaopt.estimator import track_
from semaopt.problems.simulate.runs import Chain

#: The number of points per curve of the figure.
_POINTS = 60


def walk(
    betas: Sequence[float],
    T: int,
    *,
    eta: float = 3e-4,
    C: float = 101.0,
    d: float = 0.1,
    seeds: int = 32,
    seed: int = 0,
) -> tuple[list[int], list[list[Tensor]]]:
    """Run projected Adam from x_0 = 0 for each beta. Return the recorded steps, and x of every seed for each beta.

    All betas see the same gradients, as rows of one tensor.
    """
    x = torch.zeros(len(betas) * seeds, 1, dtype=torch.float64, device="cpu")
    chain = Chain(x, scalings.Adam(beta2=0.99), clip=None)
    parts = [(chain.state["v"][k * seeds : (k + 1) * seeds], 1 - beta) for k, beta in enumerate(betas)]
    generator = torch.Generator().manual_seed(seed)
    steps, points = [0], [x.clone()]
    size = max(1, T // _POINTS)
    with torch.no_grad():
        for start in range(0, T, size):
            count = min(size, T - start)
            rare = torch.rand(count, seeds, 1, generator=generator, dtype=x.dtype, device="cpu") < (1 + d) / (C + 1)
            for g in torch.where(rare, C, -1.0).to(x.dtype).unbind(0):
                for v, gamma in parts:
                    track_(v, g, gamma if chain.t > 0 else 1.0)
                chain.descend(x, g.repeat(len(betas), 1), chain.state["v"], eta)
                x.clamp_(-1.0, 1.0)
            steps.append(start + count)
            points.append(x.clone())
    return steps, [[point[k * seeds : (k + 1) * seeds, 0] for point in points] for k in range(len(betas))]


def counterexample(
    name: str, T: int, betas: Sequence[float] = (0.9, 0.999, 0.9997), goal: float = -0.5, seeds: int = 32
) -> CheckResult:
    """Check that the smallest beta ends at +1 and that the largest one moves towards the minimum at -1."""
    steps, paths = walk(betas, T, seeds=seeds)
    ends = [mean_and_half(points[-1]) for points in paths]
    (small, small_half), (large, large_half) = ends[0], ends[-1]
    lines = [
        Line(
            f"beta = {betas[0]}: mean x_T > 0.9, away from the minimum",
            small,
            0.9,
            f"{small - small_half - 0.9:+.2f}",
            small - small_half > 0.9,
            f"+-{small_half:.2g}, {seeds} seeds, T = {T}",
        ),
        Line(
            f"beta = {betas[-1]}: mean x_T < {goal}, towards the minimum",
            large,
            goal,
            f"{goal - large - large_half:+.2f}",
            large + large_half < goal,
            f"+-{large_half:.2g}",
        ),
    ]
    for (above, upper), (below, lower) in pairwise(zip(ends, betas, strict=True)):
        gap = above[0] - below[0]
        lines.append(Line(f"beta = {lower} ends below beta = {upper}", below[0], above[0], f"{gap:+.2f}", gap > 0))
    figure = Figure(
        "Adam with a small beta goes to +1, with a large beta towards the minimum at -1",
        "step",
        "x",
        [band(f"beta = {beta}", steps, points) for beta, points in zip(betas, paths, strict=True)],
        logarithmic=False,
    )
    settings = {"C": 101, "d": 0.1, "beta2": 0.99, "eta": 3e-4, "T": T, "seeds": seeds}
    return CheckResult(name, "counter-example", lines, figure, settings)


def registry(quick: bool) -> Checks:
    """Map names to (theorem, check)."""
    size = {"T": 100_000, "betas": (0.9, 0.9997), "goal": 0.0} if quick else {"T": 300_000}
    return {"counterexample": ("counter-example", partial(counterexample, "counterexample", **size))}
