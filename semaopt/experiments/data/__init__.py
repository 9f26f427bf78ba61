"""The data sets of the experiments, read from their official files.

>>> from semaopt.experiments import data
>>> task = data.load("digits")
>>> task.classes, len(task.train), len(task.valid), len(task.test)
(10, 1078, 359, 360)
>>> task.train.inputs(torch.arange(3)).shape
torch.Size([3, 64])

The files lie in a root folder: the argument ``root``, else the environment's ``SEMAOPT_DATA``, else the user's cache.
"""

from semaopt.experiments.data.errors import DataError as DataError
from semaopt.experiments.data.load import NAMES as NAMES
from semaopt.experiments.data.load import describe as describe
from semaopt.experiments.data.load import fetch as fetch
from semaopt.experiments.data.load import load as load
from semaopt.experiments.data.settings import Data as Data
from semaopt.experiments.data.tables import Table as Table
from semaopt.experiments.data.task import Part as Part
from semaopt.experiments.data.task import Raw as Raw
from semaopt.experiments.data.task import Task as Task
