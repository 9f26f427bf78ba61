"""Stochastic optimization with the moving-average gradient estimator (SEMA)."""

from semaopt import baselines as baselines
from semaopt import diagnostics as diagnostics
from semaopt import ensemble as ensemble
from semaopt import estimator as estimator
from semaopt import hypergradient as hypergradient
from semaopt import kernels as kernels
from semaopt import losses as losses
from semaopt import problems as problems
from semaopt import projections as projections
from semaopt import scalings as scalings
from semaopt import schedules as schedules
from semaopt import theory as theory
from semaopt._version import __version__ as __version__
from semaopt.algorithms import ASA as ASA
from semaopt.algorithms import PDSM as PDSM
from semaopt.algorithms import SBMA as SBMA
from semaopt.algorithms import SCMA as SCMA
from semaopt.algorithms import SMB as SMB
from semaopt.algorithms import PDAda as PDAda
from semaopt.algorithms import Stage as Stage
from semaopt.algorithms import Stages as Stages
from semaopt.in_backward import InBackward as InBackward
from semaopt.in_backward import step_in_backward as step_in_backward
from semaopt.iterates import Iterates as Iterates
