"""The table and the figure of benchmarks/beta_study.py."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the figure needs the extra 'experiments'")
SCRIPT = Path(__file__).parent.parent / "benchmarks" / "beta_study.py"


def test_the_table_and_the_figure_of_a_stored_study(tmp_path, monkeypatch, capsys):
    from semaopt.experiments import api
    from semaopt.experiments.spec import schema

    spec = schema.load("beta-study-digits", "quick")
    seeds = spec.seeds.model_copy(update={"final": [0]})
    small = spec.model_copy(update={"epochs": 1, "seeds": seeds, "batch": 256})
    api.run(small, out=tmp_path / "store", workers=0, only=["constant", "cosine", "cosine_follow"])
    found = importlib.util.spec_from_file_location("beta_study", SCRIPT)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr("sys.argv", ["beta_study.py", str(tmp_path / "store"), "--out", str(tmp_path), "--png"])
    module.main()
    out = capsys.readouterr().out
    values = [line.split("|")[2].strip() for line in out.splitlines() if line.startswith("| γ ∝ ")]
    assert values[0][0].isdigit()
    assert values[1] == "-"  # a method that was not run
    assert "lr decay alone" in (tmp_path / "beta-study.svg").read_text()
    assert (tmp_path / "beta-study.png").read_bytes().startswith(b"\x89PNG")
