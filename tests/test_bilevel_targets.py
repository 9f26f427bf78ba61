"""benchmarks/bilevel_targets.py: when a method reaches a target, and its table."""

import json
import runpy
import sqlite3
from pathlib import Path

import pytest

TARGETS = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "bilevel_targets.py"))


@pytest.mark.parametrize(
    ("values", "epoch"),
    [
        ([0.1, 0.2], 0),
        ([0.1, 0.5, 0.2, 0.1], 2),  # below the target at the start does not count
        ([0.5, 0.2, 0.3], None),  # the target itself is not below it
        ([0.5, 0.2, float("nan")], None),
    ],
)
def test_a_target_is_reached_when_all_later_values_are_below_it(values, epoch):
    assert TARGETS["reached"]({"value": values}, "value", 0.3) == epoch


def test_table(tmp_path, capsys):
    store = tmp_path / "runs.sqlite"
    with sqlite3.connect(store) as connection:
        connection.execute("CREATE TABLE runs (key, method, purpose, seed)")
        connection.execute("CREATE TABLE curves (key, metric, epochs)")
        ends = {"SOBA": (0.1, 0.2, 0.9), "BSA": (0.2, 0.8, None), "tuned only": ()}
        for method, values in ends.items():
            connection.execute("INSERT INTO runs VALUES (?, ?, 'tune', 0)", (f"{method} tune", method))
            for seed, end in enumerate(values):
                key = f"{method} {seed}"
                connection.execute("INSERT INTO runs VALUES (?, ?, 'final', ?)", (key, method, seed))
                curves = {"value": [1, end], "gradient_norm": [3, 2], "seconds": [0, 5 + seed], "calls": [0, 70 + seed]}
                for metric, epochs in curves.items():
                    connection.execute(
                        "INSERT INTO curves VALUES (?, ?, ?)", (key, f"train_{metric}", json.dumps(epochs))
                    )
    connection.close()
    TARGETS["main"]([str(store)])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| SOBA | 3 | 0 | 0.2 | 2 | 6 | 2 | 70.5 | 5.5 |",  # seeds 0 and 1 reach 0.3
        "| BSA | 3 | 1 | 0.8 | 2 | 6 | 1 | - | - |",
    ]
    pytest.importorskip("matplotlib", reason="draws a figure")
    TARGETS["main"]([str(store), "--only", "BSA", "--figure", str(tmp_path / "curves.svg")])
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[2:]] == ["BSA"]
    assert "oracle calls" in (tmp_path / "curves.svg").read_text(encoding="utf-8")


def test_quartiles_count_a_diverged_run_as_the_worst():
    runs = [{"value": [1.0, end]} for end in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, float("nan"))]
    low, middle, high = TARGETS["median_curves"](runs, "value")
    assert (low[1], middle[1], high[1]) == (0.2, 0.4, 0.6)
    assert TARGETS["last"](runs[-1]["value"]) == float("inf")
