"""Four interchangeable implementations of one optimizer step, and the code that chooses between them.

An optimizer makes a :class:`~semaopt.kernels.rule.StepRule` from a param group and calls
:func:`semaopt.kernels.dispatch.run`, which hands it to :mod:`~semaopt.kernels.loop` (the readable definition),
:mod:`~semaopt.kernels.foreach`, :mod:`~semaopt.kernels.compiled` (C on the CPU) or
:mod:`~semaopt.kernels.triton_launch` (Triton on CUDA).
"""

from semaopt.kernels.ascend import ascend_box_ as ascend_box_
from semaopt.kernels.loader import Availability as Availability
from semaopt.kernels.loader import available as available
from semaopt.kernels.rule import StepRule as StepRule
