"""Many seeds as one tensor: the boxes of the paper on the test beds, measured against exact gradients."""

from semaopt.problems.simulate.pairs import compositional as compositional
from semaopt.problems.simulate.pairs import minmax as minmax
from semaopt.problems.simulate.pairs import sbma as sbma
from semaopt.problems.simulate.pairs import smb as smb
from semaopt.problems.simulate.single import Run as Run
from semaopt.problems.simulate.single import minimize as minimize
from semaopt.problems.simulate.single import minimize_in_stages as minimize_in_stages
