"""Losses: min-max ones, modules that hold their extra primal and dual variables, and one for average precision."""

from semaopt.losses.auc import AUCMinMax as AUCMinMax
from semaopt.losses.average_precision import AveragePrecision as AveragePrecision
from semaopt.losses.dro import DRO as DRO
from semaopt.losses.with_loss import WithLoss as WithLoss
