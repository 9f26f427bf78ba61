"""The algorithms: one box of the paper, one file."""

from semaopt.algorithms.asa import ASA as ASA
from semaopt.algorithms.compositional import SCMA as SCMA
from semaopt.algorithms.pdada import PDSM as PDSM
from semaopt.algorithms.pdada import PDAda as PDAda
from semaopt.algorithms.sbma import SBMA as SBMA
from semaopt.algorithms.smb import SMB as SMB
from semaopt.algorithms.stages import Stage as Stage
from semaopt.algorithms.stages import Stages as Stages
