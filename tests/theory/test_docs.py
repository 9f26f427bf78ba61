"""The examples on docs/theory.md run and print what the page says."""

import doctest
import re
from pathlib import Path

import semaopt

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def test_the_examples_of_the_page():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 6
    assert result.failed == 0


def test_the_code_of_every_formula_exists():
    """The right column of the tables: functions of the theory, or members of its classes."""
    sources = "".join(path.read_text() for path in (PAGE.parents[1] / "semaopt" / "theory").glob("*.py"))
    known = set(re.findall(r"\b(?:def|class) (\w+)", sources))
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| $", "| the best"))]
    cells = [row.rsplit(" | ", 1)[1] for row in rows]
    names = {name for cell in cells for name in re.findall(r"`(?:\w+\.)?(\w+)`", cell)}
    terms = {"objective", "estimator", "noise", "dual", "dual_noise"}  # of a bound, which its tests name
    assert len(names) > 15
    assert names - terms - {"lr", "beta"} <= known | set(vars(semaopt.theory.Constants))
