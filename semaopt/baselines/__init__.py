"""The methods that the paper compares with: the same verbs in other arrangements, one small file each."""

from semaopt.baselines.acc_mda import AccMDA as AccMDA
from semaopt.baselines.bsa import BSA as BSA
from semaopt.baselines.epoch_sgda import EpochSGDA as EpochSGDA
from semaopt.baselines.pes_adagrad import PESAdaGrad as PESAdaGrad
from semaopt.baselines.pes_sgda import PESSGDA as PESSGDA
from semaopt.baselines.sgda import SGDA as SGDA
from semaopt.baselines.sgdmax import SGDMax as SGDMax
from semaopt.baselines.soba import SOBA as SOBA
from semaopt.baselines.stocbio import StocBiO as StocBiO
from semaopt.baselines.ttsa import TTSA as TTSA
