"""The algorithms: one box of the paper, one file."""

from semaopt.algorithms.asa import ASA as ASA
from semaopt.algorithms.stages import Stage as Stage
from semaopt.algorithms.stages import Stages as Stages
