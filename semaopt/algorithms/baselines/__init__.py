"""The methods that the paper compares with: the same verbs in other arrangements, one small file each."""

from semaopt.algorithms.baselines.acc_mda import AccMDA as AccMDA
from semaopt.algorithms.baselines.bsa import BSA as BSA
from semaopt.algorithms.baselines.epoch_sgda import EpochSGDA as EpochSGDA
from semaopt.algorithms.baselines.pes_adagrad import PESAdaGrad as PESAdaGrad
from semaopt.algorithms.baselines.pes_sgda import PESSGDA as PESSGDA
from semaopt.algorithms.baselines.sgda import SGDA as SGDA
from semaopt.algorithms.baselines.sgdmax import SGDMax as SGDMax
from semaopt.algorithms.baselines.soba import SOBA as SOBA
from semaopt.algorithms.baselines.stocbio import StocBiO as StocBiO
from semaopt.algorithms.baselines.ttsa import TTSA as TTSA
