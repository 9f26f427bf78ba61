"""Data are never executed, files stay in the output folder, and the report loads and runs nothing it was given."""

from __future__ import annotations

import ast
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import semaopt
from semaopt.experiments.report import write
from semaopt.experiments.spec import schema
from semaopt.experiments.spec.errors import SpecError
from tests.experiments.tiny import RAW, a_spec, go

SOURCES = sorted(Path(semaopt.__file__).parent.rglob("*.py"))
#: Calls that execute their arguments, or code chosen by a file.
FORBIDDEN = {
    *("eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads"),
    *("yaml.load", "yaml.unsafe_load", "os.system", "os.popen", "shelve.open", "tempfile.mktemp", "input"),
    *("torch.hub.load", "jsonpickle.decode", "dill.loads", "joblib.load"),
}
MODULES = {
    "pickle": {"data/cifar.py", "checkpoint.py"},
    "marshal": set(),
    "shelve": set(),
    "yaml": set(),
    "dill": set(),
}


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def broken_rules(text):
    """Return the forbidden calls in a source."""
    tree = ast.parse(text)
    for name, node in calls(tree):
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if name in FORBIDDEN:
            yield f"{node.lineno}: {name}"
        if name == "torch.load" and given.get("weights_only") != "True":
            yield f"{node.lineno}: torch.load without weights_only=True"
        if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
            yield f"{node.lineno}: {name} without allow_pickle=False"
        if name.startswith("subprocess.") and given.get("shell", "False") != "False":
            yield f"{node.lineno}: {name} with a shell"
        if name.endswith((".extractall", ".extract")):
            yield f"{node.lineno}: {name} lets an archive choose the path"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(SOURCES[0].parent).as_posix())
def test_no_source_executes_data(path):
    text = path.read_text()
    assert list(broken_rules(text)) == []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for name in names:
                users = MODULES.get(name.partition(".")[0])
                assert users is None or any(path.as_posix().endswith(user) for user in users), f"imports {name}"


@pytest.mark.parametrize(
    "text",
    [
        *("eval(x)", "exec('a')", "pickle.loads(data)", "torch.load(path)", "torch.load(path, weights_only=False)"),
        *("np.load(path)", "np.load(path, allow_pickle=True)", "subprocess.run(x, shell=True)", "archive.extractall()"),
        *("os.system('ls')", "def f():\n    return [compile(a, b, c)]"),
    ],
)
def test_forbidden_calls_are_detected(text):
    assert len(list(broken_rules(text))) == 1


NAMES = ["../up", "..", ".", "/etc/passwd", "a/b", "a\\b", "a\0b", "", "-x", "a b", "con\n", "é", "x" * 81, ".hidden"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_spec_must_be_a_file_name(name):
    with pytest.raises(SpecError, match=r"name=.* is invalid: it should match pattern .*\. It is used in file names"):
        a_spec(name=name)
    with pytest.raises(SpecError, match=r"methods\[0\].name=.* is invalid: it should match pattern"):
        schema.build({**RAW, "methods": [{**RAW["methods"][0], "name": name}, *RAW["methods"][1:]]})


def test_the_name_of_a_spec_file_must_be_valid(tmp_path):
    path = tmp_path / "a b.toml"
    path.write_bytes((schema.FIGURES / "figure1-digits.toml").read_bytes())
    with pytest.raises(SpecError, match=r"name='a b' is invalid: it should match pattern"):
        schema.load(path)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&${7*7}{{x}}"


class Page(HTMLParser):
    """Collects what a browser would load or run."""

    def __init__(self):
        super().__init__()
        self.loads, self.handlers, self.scripts, self.inside = [], [], [], None

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            self.handlers += [(tag, name)] if name.startswith("on") else []
            if name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster") and value:
                self.loads.append(value)
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self.inside = None


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of an experiment in which every text is hostile."""
    out = tmp_path_factory.mktemp("hostile")
    method = {"name": "adam", "label": HOSTILE[:80], "algorithm": "ASA", "options": {"lr": 0.01, "beta": 0.9}}
    texts = {"title": HOSTILE, "about": HOSTILE, "claim": {"text": HOSTILE, "metric": "train_loss", "order": []}}
    raw = {**RAW, **texts, "methods": [method], "epochs": 1, "seeds": {"final": [0, 1]}}
    del raw["tuning"]
    results = go(out, schema.build(raw))
    write(results, out)
    return (out / "report.html").read_text(), out


def test_the_report_shows_hostile_texts_and_runs_none(page):
    text, _ = page
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert(1)" not in text
    assert "<img src=x" not in text
    found = Page()
    found.feed(text)
    assert found.handlers == []
    assert not any("alert(" in script for script in found.scripts)


def test_the_report_loads_nothing_from_outside(page):
    text, out = page
    found = Page()
    found.feed(text)
    inside = ("#", "data:image/")
    # Links are allowed; everything that is loaded must be embedded.
    assert [load for load in found.loads if not load.startswith((*inside, "https://"))] == []
    loaded = re.findall(r'<(?:script|img|iframe|link|object|embed|source|image|use)\b[^>]*(?:src|href)="([^"]*)"', text)
    assert [load for load in loaded if not load.startswith(inside)] == []
    assert not re.search(r"@import|url\((?!['\"]?(?:#|data:))", text)
    for name in os.listdir(out):
        if name.endswith(".svg"):
            assert "<script" not in (out / name).read_text()


def test_an_output_folder_may_be_a_link(tmp_path):
    """Files are written to the target of the link, and the link stays."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    small = a_spec(epochs=1, seeds={"tuning": [100], "final": [0, 1]}, tuning={"rounds": 0})
    go(tmp_path / "link", small, only=["adam"])
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]
    assert "runs.sqlite" in os.listdir(tmp_path / "real")


def test_a_link_in_the_output_folder_is_replaced_not_followed(tmp_path):
    """If report.html is a link to another file, that file stays unchanged."""
    from semaopt.experiments.files import write_output

    (tmp_path / "precious").write_text("mine")
    (tmp_path / "report.html").symlink_to(tmp_path / "precious")
    write_output(tmp_path / "report.html", "page")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "report.html").read_text() == "page"
