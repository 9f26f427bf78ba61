"""``semaopt check``: table, JSON, figures, exit statuses and resume."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

typer = pytest.importorskip("typer")
from typer.testing import CliRunner  # noqa: E402 - after the skip

from semaopt import checks  # noqa: E402
from semaopt.checks.result import CheckResult, Figure, Line, band, reference  # noqa: E402
from semaopt.experiments.cli.check import check  # noqa: E402
from semaopt.experiments.files import locked  # noqa: E402

FAST = "smb[logistic]"


@pytest.fixture
def run():
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(check)
    return lambda *args: CliRunner().invoke(app, [*args, "--workers", "1"])


def test_prints_a_table_and_exits_with_0(run):
    result = run(FAST, "--quick")
    assert result.exit_code == 0, result.output
    assert "smb[logistic]" in result.output
    assert "PASS: 1 check, 3 claims" in result.output


def test_writes_json_and_figures(run, tmp_path):
    result = run(FAST, "--quick", "--json", "--out", str(tmp_path / "new"))
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["passed"] is True
    assert report["quick"] is True
    [only] = report["checks"]
    assert (only["name"], only["theorem"]) == (FAST, "thm:5")
    assert {"claim", "measured", "promised", "margin", "passed", "detail"} == set(only["lines"][0])
    assert json.loads((tmp_path / "new" / "check.json").read_text()) == report
    assert (tmp_path / "new" / "smb-logistic.png").read_bytes().startswith(b"\x89PNG")


def test_failed_checks_are_named(run, monkeypatch):
    line = Line("avg |grad F|^2 <= bound", 2.0, 1.0, "0.5x", False, "worst at T = 5")
    figure = Figure("m", "T", "y", [reference("r", [1.0], [1.0])])
    monkeypatch.setattr(checks, "run", lambda *_: [CheckResult("constant[shb]", "thm:2", [line], figure)])
    result = run("constant[shb]")
    assert result.exit_code == 1
    assert "FAIL: constant[shb]" in result.output
    assert "constant[shb]: avg |grad F|^2 <= bound: worst at T = 5" in result.output


def test_invalid_input_is_refused_before_the_work(run, tmp_path):
    result = run("constnat")
    assert result.exit_code == 2
    assert "Did you mean 'constant'?" in re.sub(r"\s+", " ", result.output)
    (tmp_path / "file").write_text("")
    assert run(FAST, "--out", str(tmp_path / "file")).exit_code == 2


def test_interrupted(run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checks, "run", interrupt)
    result = run(FAST)
    assert result.exit_code == 130
    assert "Nothing was stored; add --out DIR to store finished checks." in result.stderr


def test_finished_checks_are_stored_and_reused(run, tmp_path, monkeypatch):
    names, done, one = (FAST, "counterexample"), [], checks.run_one

    def until_the_second(name, quick):
        done.append(name)
        if len(done) == 2:
            raise KeyboardInterrupt
        return replace(one(FAST, quick), name=name)

    monkeypatch.setattr(checks, "run_one", until_the_second)
    arguments = (*names, "--quick", "--json", "--out", str(tmp_path))
    interrupted = run(*arguments)
    assert interrupted.exit_code == 130
    assert "Finished checks are stored. Resume with: " in interrupted.stderr
    again = run(*arguments)
    assert again.exit_code == 0, again.output
    assert "1 of 2 checks are stored in " in again.stderr
    assert (len(done), done[2]) == (3, done[1])  # the first check was reused
    found = json.loads((tmp_path / "check.json").read_text())
    assert [check["name"] for check in found["checks"]] == list(checks.select(names, quick=True))
    assert found == json.loads(run(*arguments).stdout)
    assert len(done) == 3
    assert {path.name for path in tmp_path.glob("*.png")} == {"smb-logistic.png", "counterexample.png"}


def test_a_folder_in_use_is_refused(run, tmp_path):
    with locked(tmp_path):
        refused = run(FAST, "--quick", "--out", str(tmp_path))
    assert refused.exit_code == 2
    assert "is in use by another process" in re.sub(r"[\s│]+", " ", refused.output)


@pytest.mark.slow
def test_workers_do_not_change_the_numbers():
    code = (
        "from semaopt import checks\n"
        "if __name__ == '__main__':\n"
        "    names = ['smb[logistic]', 'sbma']\n"
        "    one, two = (checks.run(names, quick=True, workers=n) for n in (1, 2))\n"
        "    print([a.lines == b.lines and a.name == b.name for a, b in zip(one, two)])\n"
    )
    # A separate script: spawned workers import the main module.
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[True, True]"


def test_bands():
    import torch

    curve = band("b", [1], [torch.arange(101, dtype=torch.float64)])
    assert (curve.y, curve.low, curve.high) == ([50.0], [5.0], [95.0])
