"""The fast paths of a step: a compiled one for the CPU, one through ``torch._foreach``, and what decides."""

from semaopt.kernels.ascend import ascend_box_ as ascend_box_
from semaopt.kernels.loader import Availability as Availability
from semaopt.kernels.loader import available as available
