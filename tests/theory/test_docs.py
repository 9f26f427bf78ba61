"""The examples on docs/theory.md run and print what the page says."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def test_the_examples_of_the_page():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 6
    assert result.failed == 0


def test_the_functions_that_the_page_names_exist():
    from semaopt.theory import bilevel, constants, decreasing, minimize, minmax, pl, two_scales

    modules = (bilevel, constants, decreasing, minimize, minmax, pl, two_scales)
    known = {name for module in modules for name in vars(module)} | set(vars(constants.Constants))
    text = PAGE.read_text()
    for name in (
        "gamma_conditions", "eta_conditions", "bound_terms", "tracking_terms", "decreasing_conditions",
        "stage_conditions", "stage_length", "carried_error", "limits", "costs", "errors", "best_rates",
        "neumann_terms", "scaled", "delta_0",
    ):  # fmt: skip
        assert f"`{name}`" in text or f"`{name}:" in text or f".{name}`" in text or f"`{name}" in text, name
        assert name in known, name
