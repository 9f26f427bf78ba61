r"""Schedules that move the step size eta (``lr``) and gamma = 1 - beta together.

The tracking error of SEMA falls only if gamma shrinks, and x may only move as fast as gamma lets v follow:
``thm:2`` asks for :math:`\eta \le \gamma \sqrt{c_l}/(2 L \sqrt{c_u^3})`. One object therefore moves both.

All of them are :class:`torch.optim.lr_scheduler.LRScheduler`: call ``.step()`` after ``optimizer.step()``, as often
as you count time (``every`` counts calls), save ``state_dict()``, hand them to Lightning or Accelerate.
"""

from semaopt.schedules.decay import InverseSqrt as InverseSqrt
from semaopt.schedules.decay import Polynomial as Polynomial
from semaopt.schedules.decay import Stagewise as Stagewise
from semaopt.schedules.follow import Follow as Follow
from semaopt.schedules.momentum import GammaScheduler as GammaScheduler
from semaopt.schedules.stages import Stage as Stage
from semaopt.schedules.stages import Stages as Stages
