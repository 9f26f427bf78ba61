"""Every public class with random options against a plain implementation in numpy (float64).

``python -m tests.replay --draws 300`` prints the largest deviation of each class.
"""

import logging

import pytest

from tests.replay.cases import CASES, deviation_of, tolerance


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, "semaopt")  # draws with on_nonfinite="skip" report their first skipped step


@pytest.mark.parametrize("name", CASES)
def test_trajectories_agree(name):
    for seed in range(3):
        assert deviation_of(name, seed) < tolerance(name), seed


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_trajectories_agree(name):
    for seed in range(3, 100):
        assert deviation_of(name, seed) < tolerance(name), seed
