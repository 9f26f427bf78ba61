"""Test beds whose constants are known in closed form, oracles with a proven variance, and a simulator of many seeds."""

from semaopt.problems import simulate as simulate
from semaopt.problems.bilevel import QuadraticBilevel as QuadraticBilevel
from semaopt.problems.cleaning import HyperCleaning as HyperCleaning
from semaopt.problems.compositional import QuadraticComposition as QuadraticComposition
from semaopt.problems.logistic import LogisticBilevel as LogisticBilevel
from semaopt.problems.minimization import Bounded as Bounded
from semaopt.problems.minimization import LeastSquares as LeastSquares
from semaopt.problems.minimization import Minimization as Minimization
from semaopt.problems.minimization import Sampled as Sampled
from semaopt.problems.minimization import Wavy as Wavy
from semaopt.problems.minmax import DualPL as DualPL
from semaopt.problems.minmax import MinMax as MinMax
from semaopt.problems.minmax import StronglyConcave as StronglyConcave
from semaopt.problems.oracles import Additive as Additive
from semaopt.problems.oracles import Exact as Exact
from semaopt.problems.oracles import Multiplicative as Multiplicative
from semaopt.problems.oracles import Oracle as Oracle
from semaopt.problems.oracles import Quantized as Quantized
from semaopt.problems.oracles import RandomCoordinate as RandomCoordinate
from semaopt.problems.oracles import Sparsified as Sparsified
