r"""``thm:min_PL``: stages of ASA (``alg:adam_PL``) for an F with :math:`|\nabla F|^2 \ge 2\mu(F - F_*)`.

Stage k starts from :math:`(x_k, v_k)` with :math:`E[F(x_k) - F_*] \le \epsilon_k` and :math:`e_k = E|v_k - \nabla
F(x_k)|^2 \le B\epsilon_k`, and returns :math:`(x_\tau, v_{\tau+1})`. Inside it ``thm:2`` holds with :math:`D_F =
\epsilon_k` and :math:`D_0 = e_k` (its first sample is averaged into :math:`v_k` by the same recursion), so with

.. math::
    \gamma_k \le \frac{\mu c_l\epsilon_k}{24c_u\sigma^2}, \qquad
    T_k \ge \max\Big\{\frac{12Bc_u}{\mu\gamma_kc_l}, \frac{6}{\mu\eta_kc_l}\Big\}

the PL condition and the two bounds of ``thm:2`` give

.. math::
    E[F(x_{k+1}) - F_*] &\le \frac{2\epsilon_k}{\mu\eta_kc_lT_k} + \frac{c_ue_k}{\mu\gamma_kc_lT_k} +
    \frac{2\gamma_k\sigma^2c_u}{\mu c_l}
    \le \frac{\epsilon_k}3 + \frac{\epsilon_k}{12} + \frac{\epsilon_k}{12} = \epsilon_{k+1} \\
    e_{k+1} &\le \frac43\Big[\frac{\mu c_l\epsilon_k}{12c_u} + \frac{\mu c_l\epsilon_k}{12c_u} +
    \frac{3c_l}{4c_u}\mu\epsilon_k\Big] = \frac{11}{9}\frac{\mu c_l}{c_u}\epsilon_k \le B\epsilon_{k+1}
    \quad\text{if}\quad B \ge \frac{22}{9}\frac{\mu c_l}{c_u} .

Deviations from the paper: it has :math:`T_k \ge 1/(6\mu\eta_kc_l)`, with which the first term is
:math:`12\epsilon_k`. It omits the third limit of eta. It assumes :math:`\mu \le 1` "without loss of generality", but
:math:`\mu` has units, and so has :math:`48c_u/(\mu\gamma_kc_l)`. Here :math:`B = \max\{4, \frac{22}{9}\mu c_l/c_u\}`,
which is valid for every :math:`\mu` and gives the paper's 48 = 12 B if :math:`\mu c_l/c_u \le 18/11`. The step sizes
satisfy the conditions for the bound of the tracking error, because the proof needs :math:`e_{k+1}`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from torch.optim import Optimizer

from semaopt._validation import is_real, require
from semaopt.schedules.stages import Stage, Stages
from semaopt.theory.constants import Constants
from semaopt.theory.minimize import eta_conditions, eta_limits, gamma_conditions
from semaopt.theory.plan import Bound, Condition, Violation


@dataclass(frozen=True)
class PLPlan:
    """The plan that :func:`pl` returns: ``stages``, ``T`` (all steps), ``bound(T)``, ``violations(stages)``."""

    constants: Constants
    epsilon: float
    stages: list[Stage]
    label: ClassVar[str] = "thm:min_PL"

    @property
    def epsilon_0(self) -> float:
        """The start max{D_F, D_0}. After stage k, E[F - F*] is at most epsilon_0 / 2^(k+1)."""
        return start(self.constants)

    @property
    def T(self) -> int:
        """The number of steps of all stages."""
        return sum(stage.T + 1 for stage in self.stages)

    def bound(self, T: int | None = None) -> Bound:
        """Return the bound of E[F - F*] at the output of the last stage that is complete after T steps."""
        done = bisect_right(list(accumulate(stage.T + 1 for stage in self.stages)), self.T if T is None else T)
        c = self.constants
        if done == 0:
            return Bound({"objective": c.get("delta_f")})
        stage, epsilon, mu = self.stages[done - 1], self.epsilon_0 / 2 ** (done - 1), c.get("mu")
        return Bound(
            {
                "objective": 2 * epsilon / (mu * stage.eta * c.c_l * (stage.T + 1)),
                "estimator": c.ratio * carried_error(c) * epsilon / (mu * stage.gamma * (stage.T + 1)),
                "noise": 2 * stage.gamma * c.get("sigma2") * c.ratio / mu,
            }
        )

    def violations(self, stages: Sequence[Any] | None = None) -> list[Violation]:
        """Return the conditions that other stages (objects with ``.eta .gamma .T``) violate.

        A stage that is too short violates ``1/T <= 1/T_k``; the violation gives the factor.
        """
        found: list[Violation] = []
        for k, stage in enumerate(self.stages if stages is None else stages):
            gamma, eta, steps = float(stage.gamma), float(stage.eta), int(stage.T)
            close = _rates(self.constants, self.epsilon_0 / 2**k, gamma, eta)
            legal = {f"stages[{k}].{name}": value for name, value in zip(("gamma", "eta", "T"), close, strict=True)}
            given = {"gamma": gamma, "eta": eta, "1/T": 1 / max(steps, 1)}
            for condition in stage_conditions(self.constants, self.epsilon_0 / 2**k, gamma, eta):
                if not condition.holds(given[condition.name]):
                    found.append(Violation(condition, given[condition.name], legal))
        return found

    def schedule(self, optimizer: Optimizer, output: str = "sampled", seed: int = 0) -> Stages:
        """Return the stages as a scheduler of the optimizer. Step the optimizer until ``.done``."""
        return Stages(optimizer, self.stages, output=output, seed=seed)

    def T_for(self, epsilon: float) -> int:
        """Return the number of steps of ``pl(c, epsilon)``, after which E[F - F*] <= epsilon."""
        return pl(self.constants, epsilon).T


def pl(c: Constants, epsilon: float) -> PLPlan:
    r"""Return the stages of ``thm:min_PL`` after which :math:`E[F - F_*] \le` ``epsilon``.

    There are :math:`\lceil\log_2(\epsilon_0/\epsilon)\rceil` stages whose lengths double. The total number of steps
    grows like :math:`1/(\mu^2\epsilon)`.

    Args:
        c: needs ``L``, ``sigma2``, ``delta_f`` and ``mu``.
        epsilon: the accuracy of F, below max{delta_f, delta_0}.

    >>> c = semaopt.theory.Constants(L=1.0, mu=1.0, sigma2=0.5, delta_f=1.0)
    >>> for stage in semaopt.theory.pl(c, epsilon=0.25).stages:
    ...     print(f"eta={stage.eta:.5f} gamma={stage.gamma:.5f} T={stage.T}")
    eta=0.02083 gamma=0.08333 T=576
    eta=0.01042 gamma=0.04167 T=1152
    """
    c.need(PLPlan.label, "L", "sigma2", "delta_f", "mu")
    first = start(c)
    ok = is_real(epsilon) and 0 < epsilon < first
    rule = f"must lie between 0 and max(delta_f, delta_0) = {first:g}"
    require(ok, "epsilon", epsilon, rule, "it is the accuracy of F to reach; larger values need no step")
    count = math.ceil(math.log2(first / epsilon) - 1e-12)
    rates = [_rates(c, first / 2**k, math.inf, math.inf) for k in range(count)]
    return PLPlan(c, float(epsilon), [Stage(eta, gamma, T) for gamma, eta, T in rates])


def start(c: Constants) -> float:
    """Return epsilon_0 = max{D_F, D_0}."""
    return max(c.get("delta_f"), c.delta_0)


def carried_error(c: Constants) -> float:
    """Return B, with E|v_k - grad F(x_k)|^2 <= B epsilon_k at the start of every stage."""
    return max(4.0, 22 / 9 * c.get("mu") / c.ratio)


def _rates(c: Constants, epsilon: float, gamma: float, eta: float) -> tuple[float, float, int]:
    """Return the largest allowed gamma and eta up to the given ones, and the smallest allowed T, of one stage."""
    gamma = min(gamma, *(g.limit for g in stage_gamma_conditions(c, epsilon)))
    ratio, cap = eta_limits(c, tracking=True)
    eta = min(eta, ratio * gamma, cap)
    return gamma, eta, math.ceil(stage_length(c, gamma, eta) * (1 - 1e-12))


def stage_length(c: Constants, gamma: float, eta: float) -> float:
    """Return max{12 B c_u/(mu gamma c_l), 6/(mu eta c_l)}. 12 B = 48 where the paper's constant is correct."""
    mu = c.get("mu")
    return max(12 * carried_error(c) * c.ratio / (mu * gamma), 6 / (mu * eta * c.c_l))


def stage_gamma_conditions(c: Constants, epsilon: float) -> list[Condition]:
    """Return the limits of gamma of a stage that starts at epsilon."""
    found = gamma_conditions(c)
    if c.get("sigma2") > 0:
        limit = c.get("mu") * epsilon / (24 * c.ratio * c.get("sigma2"))
        found.append(
            Condition("gamma", limit, "mu c_l epsilon_k/(24 c_u sigma2)", "noise must stay below epsilon_k/12")
        )
    return found


def stage_conditions(c: Constants, epsilon: float, gamma: float, eta: float) -> list[Condition]:
    """Return the limits of gamma, eta and 1/T of a stage that starts at epsilon."""
    length = Condition(
        "1/T",
        1 / stage_length(c, gamma, eta),
        "min{mu gamma c_l/(48 c_u), mu eta c_l/6}" if carried_error(c) == 4 else "1/T_k",
        "the stage must reduce the error of its start",
    )
    return [*stage_gamma_conditions(c, epsilon), *eta_conditions(c, gamma, tracking=True), length]
