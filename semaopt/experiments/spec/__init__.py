"""Experiment specifications: TOML files that are validated before anything runs."""

from semaopt.experiments.extra import require

require("semaopt.experiments.spec", "numpy", "pydantic", "sklearn", "filelock")

from semaopt.experiments.data.settings import Data as Data  # noqa: E402  # after the check of the extra
from semaopt.experiments.models.settings import Model as Model  # noqa: E402
from semaopt.experiments.spec.errors import SpecError as SpecError  # noqa: E402
from semaopt.experiments.spec.schema import Claim as Claim  # noqa: E402
from semaopt.experiments.spec.schema import Method as Method  # noqa: E402
from semaopt.experiments.spec.schema import Seeds as Seeds  # noqa: E402
from semaopt.experiments.spec.schema import Spec as Spec  # noqa: E402
from semaopt.experiments.spec.schema import Tuning as Tuning  # noqa: E402
from semaopt.experiments.spec.schema import build as build  # noqa: E402
from semaopt.experiments.spec.schema import find as find  # noqa: E402
from semaopt.experiments.spec.schema import load as load  # noqa: E402
from semaopt.experiments.spec.schema import merge as merge  # noqa: E402
from semaopt.experiments.spec.schema import shipped as shipped  # noqa: E402
