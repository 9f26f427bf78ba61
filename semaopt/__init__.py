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
from semaopt import samplers as samplers
from semaopt import scalings as scalings
from semaopt import schedules as schedules
from semaopt import theory as theory
from semaopt._version import __version__ as __version__
from semaopt.in_backward import InBackward as InBackward
from semaopt.in_backward import step_in_backward as step_in_backward
from semaopt.iterates import Iterates as Iterates
from semaopt.optimizers import ASA as ASA
from semaopt.optimizers import PDSM as PDSM
from semaopt.optimizers import SBMA as SBMA
from semaopt.optimizers import SCMA as SCMA
from semaopt.optimizers import SMB as SMB
from semaopt.optimizers import PDAda as PDAda
from semaopt.schedules import Stage as Stage
from semaopt.schedules import Stages as Stages
