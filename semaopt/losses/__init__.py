"""Losses for imbalanced data and robust training.

``AUCMinMax`` and ``DRO`` are min-max losses with extra primal and dual variables, for :class:`semaopt.PDAda`. The
others are compositional: they keep moving averages in buffers and work with any optimizer.
"""

from semaopt.losses.auc import AUCMinMax as AUCMinMax
from semaopt.losses.contrastive import GlobalContrastive as GlobalContrastive
from semaopt.losses.dro import DRO as DRO
from semaopt.losses.ranking import NDCG as NDCG
from semaopt.losses.ranking import AveragePrecision as AveragePrecision
from semaopt.losses.ranking import MeanAveragePrecision as MeanAveragePrecision
from semaopt.losses.ranking import PartialAUC as PartialAUC
from semaopt.losses.tracked import Tracked as Tracked
from semaopt.losses.with_loss import WithLoss as WithLoss
