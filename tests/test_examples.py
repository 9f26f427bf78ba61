"""Every example runs as its users run it."""

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


def test_the_auc_example_stays_short():
    assert len((EXAMPLES / "auc.py").read_text().splitlines()) <= 40
