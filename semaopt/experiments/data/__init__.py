"""The data sets of the experiments, read from their official files.

>>> from semaopt.experiments import data
>>> task = data.load("digits")
>>> task.classes, len(task.train), len(task.valid), len(task.test)
(10, 1078, 359, 360)
>>> task.train.inputs(torch.arange(3)).shape
torch.Size([3, 64])

Files are in a root folder: the argument ``root``, the environment variable ``SEMAOPT_DATA``, or the user's cache.
"""

from semaopt.experiments.extra import require

require("semaopt.experiments.data", "numpy", "pydantic", "sklearn", "filelock")

from semaopt.experiments.data.errors import DataError as DataError  # noqa: E402  # after the check of the extra
from semaopt.experiments.data.load import NAMES as NAMES  # noqa: E402
from semaopt.experiments.data.load import describe as describe  # noqa: E402
from semaopt.experiments.data.load import fetch as fetch  # noqa: E402
from semaopt.experiments.data.load import load as load  # noqa: E402
from semaopt.experiments.data.settings import Data as Data  # noqa: E402
from semaopt.experiments.data.tables import Table as Table  # noqa: E402
from semaopt.experiments.data.task import Part as Part  # noqa: E402
from semaopt.experiments.data.task import Raw as Raw  # noqa: E402
from semaopt.experiments.data.task import Task as Task  # noqa: E402
