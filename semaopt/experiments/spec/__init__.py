"""Experiment specifications: TOML files that are validated before anything runs."""

from semaopt.experiments.data.settings import Data as Data
from semaopt.experiments.models.settings import Model as Model
from semaopt.experiments.spec.errors import SpecError as SpecError
from semaopt.experiments.spec.schema import Claim as Claim
from semaopt.experiments.spec.schema import Method as Method
from semaopt.experiments.spec.schema import Seeds as Seeds
from semaopt.experiments.spec.schema import Spec as Spec
from semaopt.experiments.spec.schema import Tuning as Tuning
from semaopt.experiments.spec.schema import build as build
from semaopt.experiments.spec.schema import find as find
from semaopt.experiments.spec.schema import load as load
from semaopt.experiments.spec.schema import merge as merge
from semaopt.experiments.spec.schema import shipped as shipped
