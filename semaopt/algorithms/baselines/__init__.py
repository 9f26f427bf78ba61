"""The methods that the paper compares with: the same verbs in other arrangements, one small file each."""

from semaopt.algorithms.baselines.acc_mda import AccMDA as AccMDA
from semaopt.algorithms.baselines.epoch_sgda import EpochSGDA as EpochSGDA
from semaopt.algorithms.baselines.pes_adagrad import PESAdaGrad as PESAdaGrad
from semaopt.algorithms.baselines.pes_sgda import PESSGDA as PESSGDA
from semaopt.algorithms.baselines.sgda import SGDA as SGDA
from semaopt.algorithms.baselines.sgdmax import SGDMax as SGDMax
