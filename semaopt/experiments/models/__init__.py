"""The networks of the experiments.

>>> from semaopt.experiments import data, models
>>> task = data.load("digits")
>>> model = models.build("mlp", task, seed=1, hidden=[32])
>>> model(task.train.inputs(torch.arange(3))).shape
torch.Size([3, 10])

A model returns linear scores: one per row of a binary task, otherwise one per class. It is a plain ``nn.Module``; pass
the same device and dtype to ``model.to`` and to ``Part.inputs``.
"""

from semaopt.experiments.models.build import NAMES as NAMES
from semaopt.experiments.models.build import build as build
