"""The networks of the experiments.

>>> from semaopt.experiments import data, models
>>> task = data.load("digits")
>>> model = models.build("mlp", task, seed=1, hidden=[32])
>>> model(task.train.inputs(torch.arange(3))).shape
torch.Size([3, 10])

A model gives linear scores: one for each row of a binary task, else one for each class. It is a plain ``nn.Module``:
``.to(device, dtype)`` moves it, the same arguments of ``Part.inputs`` make its inputs follow.
"""

from semaopt.experiments.models.build import NAMES as NAMES
from semaopt.experiments.models.build import build as build
