"""Every example runs as a user would run it, and says how long it takes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_auc():
    pytest.importorskip("sklearn", reason="the example needs scikit-learn, of the extra 'experiments'")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "auc.py"], capture_output=True, text=True, check=True, timeout=300
    )
    lines = re.findall(r"^(.+?) +test AUC, mean of 3 seeds: PDAda (\S+)  BCE (\S+)$", done.stdout, re.MULTILINE)
    assert [name for name, *_ in lines] == ["breast_cancer", "digits, 10%"]
    for _, pdada, bce in lines:
        assert float(pdada) > 0.98
        assert float(bce) > 0.98


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_states_its_time(path):
    text = path.read_text()
    docstring = text.split('"""')[1]
    assert re.search(r"in about (\d+ seconds|half a minute|a minute)", docstring)
    assert "python examples/" in docstring or "torchrun" in docstring
    assert "set_num_threads(1)" in text  # two threads on a busy machine slow small models down


def test_the_auc_example_stays_short():
    assert len((EXAMPLES / "auc.py").read_text().splitlines()) <= 40


def run(*command: object) -> str:
    """Run an example as its first lines say and return its output."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--shard"]], ids=["ddp", "fsdp2"])
def test_ddp(options):
    pytest.importorskip("sklearn", reason="the example needs scikit-learn, of the extra 'experiments'")
    text = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, EXAMPLES / "ddp.py", *options)
    found = dict(re.findall(r"process (\d) of 2: test accuracy (\d\.\d{4})", text))
    assert sorted(found) == ["0", "1"]
    assert found["0"] == found["1"]
    assert float(found["0"]) > 0.85


@pytest.mark.slow
def test_lightning():
    for needed in ("sklearn", "lightning"):
        pytest.importorskip(needed, reason="the example needs it")
    [(accuracy, lr, beta)] = re.findall(
        r"accuracy (\S+)   lr (\S+)   beta (\S+)", run(EXAMPLES / "lightning_digits.py")
    )
    assert float(accuracy) > 0.85
    assert float(lr) == pytest.approx(3e-3 * 0.2**2)  # 6 epochs of 47 batches
    assert float(beta) == pytest.approx(1 - 0.1 * 0.2**2)


@pytest.mark.slow
def test_skorch():
    for needed in ("sklearn", "skorch"):
        pytest.importorskip(needed, reason="the example needs it")
    [auc] = re.findall(r"AUC of 5 folds: (\S+) \+-", run(EXAMPLES / "skorch_auc.py"))
    assert float(auc) > 0.98


@pytest.mark.slow
def test_own_scaling():
    pytest.importorskip("sklearn", reason="the example needs scikit-learn, of the extra 'experiments'")
    found = dict(re.findall(r"^(.+?) +test accuracy (\S+)$", run(EXAMPLES / "own_scaling.py"), re.MULTILINE))
    assert list(found) == ["adam", "shb", "one per tensor"]
    assert min(map(float, found.values())) > 0.85


@pytest.mark.slow
def test_ensemble():
    pytest.importorskip("sklearn", reason="the example needs scikit-learn, of the extra 'experiments'")
    text = run(EXAMPLES / "ensemble.py")
    found = {lr: float(mean) for lr, mean in re.findall(r"^lr (\S+) +test accuracy (\S+) \(", text, re.MULTILINE)}
    assert len(found) == 8
    assert 0.85 < found["0.01"] == max(found.values())
    assert "24 models in" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "best"), [("fraud.py", 0.7), ("missing_labels.py", 0.98), ("contrastive.py", 0.85)], ids=lambda v: str(v)
)
def test_imbalanced_and_contrastive(name, best):
    pytest.importorskip("sklearn", reason="the example needs scikit-learn, of the extra 'experiments'")
    found = [float(value) for value in re.findall(r"\d\.\d{4}", run(EXAMPLES / name))]
    assert max(found) > best
    assert len(found) >= 8
