"""Min-max losses: modules whose parameters are the extra primal variables and the dual variables of the problem."""

from semaopt.losses.auc import AUCMinMax as AUCMinMax
from semaopt.losses.average_precision import AveragePrecision as AveragePrecision
from semaopt.losses.dro import DRO as DRO
from semaopt.losses.joint import WithLoss as WithLoss
