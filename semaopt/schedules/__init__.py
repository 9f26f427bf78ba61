r"""Schedules that change the step size eta (``lr``) and gamma = 1 - beta, together or alone, on any optimizer.

>>> optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
>>> schedule = semaopt.schedules.Stagewise(optimizer, every=100, factor=0.2)

The tracking error of the moving average falls only if gamma falls, and x may move only as fast as gamma lets v follow:
``thm:2`` requires :math:`\eta \le \gamma \sqrt{c_l}/(2 L \sqrt{c_u^3})`. One object therefore changes both.

The momentum of a param group is ``group["beta"]``, ``group["betas"][0]`` or ``group["momentum"]``; see
:mod:`semaopt.schedules.momentum`. All schedules are :class:`torch.optim.lr_scheduler.LRScheduler`: call ``step()``
after ``optimizer.step()``, save ``state_dict()``, or pass them to Lightning or Accelerate.
"""

from semaopt.schedules.decay import InverseSqrt as InverseSqrt
from semaopt.schedules.decay import Lambda as Lambda
from semaopt.schedules.decay import Polynomial as Polynomial
from semaopt.schedules.decay import Stagewise as Stagewise
from semaopt.schedules.follow import Follow as Follow
from semaopt.schedules.momentum import GammaScheduler as GammaScheduler
from semaopt.schedules.stages import Stage as Stage
from semaopt.schedules.stages import Stages as Stages
