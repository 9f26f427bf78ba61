"""The notebooks are stripped of outputs, say first what the reader gets, and run without warnings."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
#: Runs the code cells of a notebook in order; plt.show() writes a picture, if it shows something.
EXECUTE = """
import itertools, json, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot
notebook, folder = sys.argv[1:]
number = itertools.count()

def show():
    [figure] = map(pyplot.figure, pyplot.get_fignums())
    assert all(axes.has_data() for axes in figure.axes)
    figure.savefig(f"{folder}/{next(number)}.png", dpi=60)
    pyplot.close("all")

pyplot.show = show
names = {"__name__": "__main__"}
with open(notebook, encoding="utf-8") as file:
    cells = json.load(file)["cells"]
for cell in cells:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
"""


def test_there_are_four():
    assert [path.stem for path in NOTEBOOKS] == ["bilevel", "from_adamw", "imbalanced", "theorem"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stripped_and_opens_with_its_result(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert set(book["metadata"]) == {"kernelspec", "language_info"}
    cells = book["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    opening = "".join(cells[0]["source"])
    assert cells[0]["cell_type"] == "markdown"
    assert re.match(r"# .+\n\nAt the end you have\n\n- ", opening)
    assert re.search(r"about (half )?a minute", opening)
    assert "pip install 'semaopt[experiments]'" in opening
    named = re.findall(r"`(docs/[\w/-]+\.md)`", "".join("".join(cell["source"]) for cell in cells))
    assert named
    assert not [name for name in named if not (path.parent.parent / name).exists()]


def between(low, text, high):
    assert low < float(text) < high, text


def bilevel(said):
    [share] = re.findall(r"right about (\S+)% of the labels", said)
    between(90, share, 100)
    [found] = re.findall(r"(\d+) of these 16 labels are wrong", said)
    assert int(found) >= 14


def from_adamw(said):
    [gap] = re.findall(r"largest difference after 400 steps: (\S+);", said)
    between(-1, gap, 1e-3)
    assert re.search(r"noise scale: \d+ examples", said)


def imbalanced(said):
    for name, auc, precision in re.findall(r"^(.+?) +test AUC (\S+)   test average precision (\S+)$", said, re.M):
        between(0.8, auc, 1)
        between(0.15, precision, 1)
        assert name
    mean, share = map(float, re.findall(r"mean probability (\S+), share of positives (\S+)", said)[0])
    assert mean == pytest.approx(share, rel=0.25)


def theorem(said):
    assert "Bound(" in said
    assert "times too large" in said


CONTENT = {"bilevel": bilevel, "from_adamw": from_adamw, "imbalanced": imbalanced, "theorem": theorem}
PICTURES = {"bilevel": 4, "from_adamw": 4, "imbalanced": 3, "theorem": 4}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    for needed in ("sklearn", "matplotlib"):
        pytest.importorskip(needed, reason="the notebooks need the extra 'experiments'")
    command = [sys.executable, "-c", EXECUTE, path, tmp_path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    CONTENT[path.stem](done.stdout)
    assert len(list(tmp_path.glob("*.png"))) == PICTURES[path.stem]
