"""The paper's algorithms, one file per box."""

from semaopt.optimizers.asa import ASA as ASA
from semaopt.optimizers.pdada import PDSM as PDSM
from semaopt.optimizers.pdada import PDAda as PDAda
from semaopt.optimizers.sbma import SBMA as SBMA
from semaopt.optimizers.scma import SCMA as SCMA
from semaopt.optimizers.smb import SMB as SMB
