"""The methods that the paper compares with, under the name people import."""

from semaopt.algorithms.baselines import BSA as BSA
from semaopt.algorithms.baselines import PESSGDA as PESSGDA
from semaopt.algorithms.baselines import SGDA as SGDA
from semaopt.algorithms.baselines import SOBA as SOBA
from semaopt.algorithms.baselines import TTSA as TTSA
from semaopt.algorithms.baselines import AccMDA as AccMDA
from semaopt.algorithms.baselines import EpochSGDA as EpochSGDA
from semaopt.algorithms.baselines import PESAdaGrad as PESAdaGrad
from semaopt.algorithms.baselines import SGDMax as SGDMax
from semaopt.algorithms.baselines import StocBiO as StocBiO
