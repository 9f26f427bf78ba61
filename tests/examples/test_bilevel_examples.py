"""The bilevel and ranking examples run and show what their docstrings say."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is an extra")
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    runpy.run_path(str(EXAMPLES / name))["main"]([str(argument) for argument in arguments])


@pytest.mark.parametrize("inverse", ["tracked", "neumann"])
def test_hyper_cleaning(inverse, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    run("hyper_cleaning.py", "--steps", 150, "--inverse", inverse, "--figure", tmp_path / "cleaning.png")
    text = capsys.readouterr().out
    lines = {line.split("   ")[0].strip(): line for line in text.splitlines()}
    reached = {name: float(lines[name].split("accuracy ")[1][:6]) for name in ("all labels, equal weights", "SMB")}
    assert reached["SMB"] > reached["all labels, equal weights"] + 0.05
    assert (tmp_path / "cleaning.png").stat().st_size > 10_000


def test_hyper_regularization(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    run("hyper_regularization.py", "--steps", 60, "--figure", tmp_path / "weights.png")
    text = capsys.readouterr().out
    losses = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0]
    assert "one weight per feature" in text
    assert (tmp_path / "weights.png").stat().st_size > 10_000


def test_hyper_regularization_names_the_missing_data_file(monkeypatch, tmp_path):
    monkeypatch.setenv("SEMAOPT_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"libsvm/ijcnn1 does not exist; put the LIBSVM file ijcnn1 there"):
        run("hyper_regularization.py", "--data", "ijcnn1")
    rows = ["1 1:0.5 2:-1", "-1 1:-0.5 2:1.5"] * 1500
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "ijcnn1").write_text("\n".join(rows))
    run("hyper_regularization.py", "--data", "ijcnn1", "--steps", 3)


def test_average_precision(capsys):
    run("average_precision.py", "--steps", 30, "--seeds", 1)
    text = capsys.readouterr().out
    assert text.count("test average precision") == 2


def values(text, names, before):
    """Return the number after the word ``before`` in the last line that starts with each name."""
    lines = {name: line for line in text.splitlines() for name in names if line.startswith(name)}
    return [float(lines[name].split(before)[1].split()[0]) for name in names]


def test_dataset_distillation(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    run("dataset_distillation.py", "--steps", 120, "--figure", tmp_path / "distilled.png")
    names = ("ten mean images", "SMB: ten distilled images", "all 1,000 digits")
    means, distilled, everything = values(capsys.readouterr().out, names, "test accuracy ")
    assert means + 0.02 < distilled < everything
    assert (tmp_path / "distilled.png").stat().st_size > 10_000


def test_few_shot_heads(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    run("few_shot_heads.py", "--steps", 300, "--figure", tmp_path / "heads.png")
    names = ("ridge regression on the inputs", "heads on the true directions", "SMB: learned features")
    inputs, true, learned = values(capsys.readouterr().out, names, "error on new tasks ")
    assert true < learned < inputs / 4
    assert (tmp_path / "heads.png").stat().st_size > 10_000


def test_weight_decay(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    run("weight_decay.py", "--steps", 400, "--figure", tmp_path / "decay.png")
    names = ("best common decay", "SMB, one decay per layer")
    common, learned = values(capsys.readouterr().out, names, "validation loss ")
    assert learned < common - 0.05
    assert (tmp_path / "decay.png").stat().st_size > 10_000
