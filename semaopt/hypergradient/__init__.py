"""Hypergradients of bilevel problems: ways to apply the inverse Hessian, and a check against the exact one."""

from semaopt.hypergradient.check import Check as Check
from semaopt.hypergradient.check import check as check
from semaopt.hypergradient.inverses import CG as CG
from semaopt.hypergradient.inverses import Exact as Exact
from semaopt.hypergradient.inverses import Neumann as Neumann
from semaopt.hypergradient.inverses import NeumannSeries as NeumannSeries
from semaopt.hypergradient.inverses import TrackedSystem as TrackedSystem
from semaopt.hypergradient.memory import Inverse as Inverse
