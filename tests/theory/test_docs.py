"""Examples of docs/theory.md, which must print the output shown on the page."""

import doctest
import re
from pathlib import Path
from unittest.mock import MagicMock

import semaopt
from semaopt.checks import bilevel, minimization, minmax
from semaopt.checks.averages import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def test_the_examples_of_the_page():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 6
    assert result.failed == 0


def test_the_code_of_every_formula_exists():
    """The right column of the tables names functions of semaopt.theory or attributes of its classes."""
    sources = "".join(path.read_text() for path in (PAGE.parents[1] / "semaopt" / "theory").glob("*.py"))
    known = set(re.findall(r"\b(?:def|class) (\w+)", sources))
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| $", "| the best"))]
    cells = [row.rsplit(" | ", 1)[1] for row in rows]
    names = {name for cell in cells for name in re.findall(r"`(?:\w+\.)?(\w+)`", cell)}
    terms = {"objective", "estimator", "noise", "dual", "dual_noise"}  # terms of a bound
    assert len(names) > 15
    assert names - terms - {"lr", "beta"} <= known | set(vars(semaopt.theory.Constants))


def test_the_page_lists_the_checks_with_a_converse(monkeypatch):
    """Run every check of averages without simulating, and record the arguments of its ``judge``."""
    converse = {}
    for part in (minimization, minmax, bilevel):
        monkeypatch.setattr(part, "simulate", MagicMock())
        monkeypatch.setattr(part, "judge", lambda name, *_, **given: converse.update({name: given.get("unaveraged")}))
    for part in (minimization, minmax, bilevel):
        for name, (_, check) in part.registry(quick=True).items():
            if name != "minmax[kappa]":  # it does not call judge
                check()
    page = PAGE.read_text()
    with_it, _, without = page[page.index("Some checks measure this converse") :].partition(
        "The checks `constant[random"
    )
    without = "`constant[random" + without.partition("\n\n")[0]
    listed = {f"{kind}[{row}]" for kind in ("constant", "minmax") for row in ROWS}
    assert {name for name, runs in converse.items() if runs is not None} == listed | set(
        re.findall(r"`([\w-]+\[[\w ]+\])`", with_it)
    )
    named = set(re.findall(r"`([\w-]+(?:\[[\w ]+\])?)`", without))
    others = {name for name, runs in converse.items() if runs is None}
    assert named == {"pl", "minmax[kappa]"} | {n.partition("[")[0] if n.startswith("decreasing") else n for n in others}
