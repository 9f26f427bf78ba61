"""The methods that the paper compares with, one small file per method or family."""

from semaopt.baselines.acc_mda import AccMDA as AccMDA
from semaopt.baselines.amigo import AmIGO as AmIGO
from semaopt.baselines.bsa import BSA as BSA
from semaopt.baselines.bsa import StocBiO as StocBiO
from semaopt.baselines.first_order import BOME as BOME
from semaopt.baselines.first_order import F2SA as F2SA
from semaopt.baselines.fsla import FSLA as FSLA
from semaopt.baselines.mrbo import MRBO as MRBO
from semaopt.baselines.proximal import PESSGDA as PESSGDA
from semaopt.baselines.proximal import EpochSGDA as EpochSGDA
from semaopt.baselines.proximal import PESAdaGrad as PESAdaGrad
from semaopt.baselines.saba import SABA as SABA
from semaopt.baselines.sgda import SGDA as SGDA
from semaopt.baselines.sgdmax import SGDMax as SGDMax
from semaopt.baselines.soba import SOBA as SOBA
from semaopt.baselines.sustain import SUSTAIN as SUSTAIN
from semaopt.baselines.ttsa import TTSA as TTSA
