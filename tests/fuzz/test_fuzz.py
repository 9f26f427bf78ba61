"""A short seeded fuzzing run; benchmarks/fuzz.py runs longer."""

import pytest

from tests.fuzz.commands import COMMANDS
from tests.fuzz.harness import fuzz
from tests.fuzz.targets import FIRED, TARGETS, Target, fire, refused

SEED = 1
#: Inputs per target, for a second or two each.
INPUTS = {"spec bytes": 60, "spec values": 60, "command lines": 60, "libsvm text": 200, "smiles": 150, "stores": 200}


@pytest.mark.parametrize("target", [*TARGETS, COMMANDS], ids=lambda target: target.name)
def test_every_input_is_accepted_or_refused_with_a_message(target):
    found = fuzz(target, range(INPUTS.get(target.name, 400)), SEED)
    assert dict(found.kinds) == {}, found.examples


def test_inputs_are_reproducible():
    from random import Random

    for target in [*TARGETS, COMMANDS]:
        assert target.make(Random("0/7")) == target.make(Random("0/7"))
        assert len({repr(target.make(Random(f"0/{k}"))) for k in range(20)}) > 10


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (lambda given, folder: 1 / 0, "ZeroDivisionError at the harness"),
        (lambda given, folder: bool(fire("x")), "AssertionError at the harness"),
        (lambda given, folder: refused(lambda: int("x" * 20), (KeyError,)), "ValueError at the harness"),
    ],
)
def test_the_harness_detects_findings(run, kind):
    found = fuzz(Target("bad", lambda rng: rng.random(), run, 1), range(3), 0)
    assert (found.inputs, dict(found.kinds)) == (3, {kind: 3})
    assert FIRED == []
