"""The pages of docs/: their Python runs, the API pages have every public name, and the site builds without warnings."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import semaopt

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
#: Blocks of doctests (theory.md) are run by a test of their own, which also compares their output.
BLOCK = re.compile(r"^```python\n(?!>>> )(.*?)^```", re.DOTALL | re.MULTILINE)
WITH_PYTHON = [page for page in PAGES if BLOCK.search(page.read_text())]


def run(page: Path) -> dict[str, object]:
    """Execute the blocks of a page one after another and return their names."""
    names: dict[str, object] = {}
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), names)
    return names


@pytest.fixture
def _reset_accelerate():
    """Reset the global state of Accelerate after the test."""
    yield
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()


# Lightning itself calls functions that torch deprecates, and gives advice on loaders.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.usefixtures("_reset_accelerate")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_blocks_run(page, tmp_path, monkeypatch):
    for needed in NEEDED.get(page.relative_to(DOCS).as_posix(), ()):
        pytest.importorskip(needed, reason=f"the page uses {needed}")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = run(page)
    assert names, f"{page.name} has no block that was run"
    if (validate := STATEMENTS.get(page.relative_to(DOCS).as_posix())) is not None:
        validate(names)


def tutorial(names):
    """Statements of the tutorial about its table, with tolerance for other versions of torch."""
    accuracy, gradient, error = torch.stack(list(names["found"].values())).T
    constant, falls, together = range(3)
    assert accuracy[falls] > accuracy[constant]
    assert accuracy[together] > accuracy[constant]
    assert gradient[constant] > 3 * gradient[together]
    assert error[falls] > 2 * error[together]
    assert error[falls] > 3 * gradient[falls]


def bilevel(names):
    weights, wrong = names["weights"].sigmoid(), names["wrong"]
    assert weights[~wrong].mean() > weights[wrong].mean() + 0.2
    assert names["found"].cosine > 0.99
    assert names["found"].relative_error < 0.2


def compositional(names):
    assert torch.dist(names["x"], names["target"]) < 0.2


def momentum(names):
    group = names["optimizer"].param_groups[0]
    assert group["lr"] == pytest.approx(1e-5)  # the warm-up starts at a hundredth
    assert group["beta"] == pytest.approx(0.9)


def imbalanced(names):
    assert names["labels"].isnan().any()


def sklearn(names):
    assert names["test_auc"] > 0.98
    assert 0 <= names["probabilities"].min() <= names["probabilities"].max() <= 1


def from_torch(names):
    assert names["gap"] < 1e-6  # ten steps of both optimizers


def from_libauc(names):
    assert names["auc"] > 0.9


def own_min_max(names):
    assert torch.linalg.vector_norm(names["x"]) < 0.05  # the saddle point is (0, 0)


NEEDED = {
    "tutorial.md": ["sklearn"],
    "from/sklearn.md": ["sklearn"],
    "how-to/trainers.md": ["accelerate", "lightning", "transformers"],
}
STATEMENTS = {
    "tutorial.md": tutorial,
    "how-to/auc.md": own_min_max,
    "how-to/bilevel.md": bilevel,
    "how-to/compositional.md": compositional,
    "how-to/momentum.md": momentum,
    "guides/imbalanced.md": imbalanced,
    "from/sklearn.md": sklearn,
    "from/torch.md": from_torch,
    "from/libauc.md": from_libauc,
}


def test_every_page_with_statements_exists():
    assert not [name for name in {*STATEMENTS, *NEEDED} if not (DOCS / name).exists()]


#: Pages that are read from top to bottom; all others answer a question.
TEXTS = ("index.md", "tutorial.md")
ANSWERS = [page for page in PAGES if page.name not in TEXTS or page.parent.name == "results"]


@pytest.mark.parametrize("page", ANSWERS, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_starts_with_its_answer(page):
    title, rest = page.read_text().split("\n", 1)
    assert title.startswith("# ")
    paragraph = rest.strip().split("\n\n")[0]
    if paragraph.startswith("$$"):  # the problem as a formula comes first
        paragraph = rest.strip().split("\n\n")[1]
    assert len(paragraph.splitlines()) <= 4, "the answer has at most three or four lines"
    assert not paragraph.startswith(("|", "#", "```", "!"))


@pytest.mark.parametrize("page", sorted((DOCS / "results").glob("*.md")), ids=lambda page: page.name)
def test_a_result_has_its_table_below_the_answer(page):
    blocks = page.read_text().split("\n\n")
    assert blocks[2].startswith("|"), "title, answer, then one table"
    assert len(blocks[1].splitlines()) == 3


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_verdicts_are_the_four_words(page):
    found = re.findall(
        r"came? out|comes out|the other way|within noise|\d+ of (?:the )?\d+ comparisons", page.read_text()
    )
    assert not found


def test_every_test_that_reliability_names_exists():
    commands = re.findall(r"`((?:pytest|python) [^`]+)`", (DOCS / "reliability.md").read_text())
    named = {path for command in commands for path in re.findall(r"(?:tests|benchmarks)/[\w/.]+", command)}
    assert len(named) > 10
    assert not [path for path in named if not (ROOT / path).exists()]


def test_every_example_is_shown_or_named_and_exists():
    named = {name for page in PAGES for name in re.findall(r"examples/\w+\.py", page.read_text())}
    assert {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")} == named


def test_every_file_that_paper_and_theory_name_exists():
    named = [
        name
        for page in ("paper.md", "theory.md")
        for name in re.findall(r"`(semaopt/[\w/]+\.py)`", (DOCS / page).read_text())
    ]
    assert len(named) > 40
    assert not [name for name in named if not (ROOT / name).exists()]


def load(name):
    """Import a module of docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestDocstrings:
    """The conversion of docstrings to Markdown."""

    @pytest.fixture
    def rst(self):
        pytest.importorskip("griffe", reason="the site is built with the extra 'docs'")
        return load("docstrings")

    def test_blocks(self, rst):
        text = "One line.\n\n.. math::\n    a &= b \\\\\n    c &= d\n\nText.\n\n>>> 1 + 1\n2\n\nMore."
        assert rst.to_markdown(text, lambda _: None).split("\n\n") == [
            "One line.",
            "\n$$\n\\begin{align*}\na &= b \\\\\nc &= d\n\\end{align*}\n$$",
            "\nText.",
            "```pycon\n>>> 1 + 1\n2\n```",
            "More.",
        ]

    def test_a_formula_on_the_line_of_its_directive(self, rst):
        assert "$$\nx^2\n$$" in rst.to_markdown("  .. math:: x^2", lambda _: None).replace("  ", "")

    def test_roles(self, rst):
        text = ":math:`x_\\tau`, :class:`Own` and :func:`torch.add`"
        found = rst.to_markdown(text, lambda name: {"Own": "semaopt.Own"}.get(name))
        link = '<autoref identifier="semaopt.Own" optional><code>Own</code></autoref>'
        assert found == f"$x_\\tau$, {link} and `torch.add`"

    def test_arguments_that_share_a_description(self, rst):
        text = "Args:\n    a, b: both\n        of them.\n    c: alone, d: not.\n\na, b: no argument"
        assert rst.to_markdown(text, lambda _: None) == (
            "Args:\n    a: both\n        of them.\n    b: both\n        of them.\n    c: alone, d: not.\n\n"
            "a, b: no argument"
        )

    def test_names_that_go_on_in_the_next_line(self, rst):
        text = "Args:\n    a, b,\n        c: all three.\n    d: alone."
        shared = "".join(f"    {name}: all three.\n" for name in "abc")
        assert rst.to_markdown(text, lambda _: None) == f"Args:\n{shared}    d: alone."

    def test_tables(self, rst):
        text = "====  ===\nhead  two\n====  ===\na     b c\n====  ===\nend"
        assert rst.to_markdown(text, lambda _: None).splitlines() == [
            "| head | two |",
            "|---|---|",
            "| a | b c |",
            "end",
        ]


class Anchors(HTMLParser):
    """The ids, the loaded addresses, the signatures and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.loaded, self.text = set(), [], []
        self.signatures = [
            unescape(re.sub(r"<[^>]+>", "", found))
            for found in re.findall(r'<div class="[^"]*doc-signature[^"]*">(.*?)</div>', text, re.DOTALL)
        ]
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.add(attrs.get("id"))
        if tag != "a":
            self.loaded += [attrs[key] for key in ("src", "href") if attrs.get(key)]

    def handle_data(self, data):
        self.text.append(data)


def exported(module):
    """Yield a package and, recursively, the modules that it re-exports."""
    yield module
    if hasattr(module, "__path__"):
        text = Path(module.__file__).read_text()
        for name in re.findall(rf"^from {re.escape(module.__name__)} import (\w+) as \1$", text, re.MULTILINE):
            if inspect.ismodule(found := getattr(module, name)):
                yield from exported(found)


def public_names():
    """Yield every class and function that ``semaopt`` and its exported modules define or re-export."""
    for module in exported(semaopt):
        home = "semaopt." if hasattr(module, "__path__") else module.__name__
        for name, value in vars(module).items():
            ours = getattr(value, "__module__", "").startswith(home)
            if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)) and ours:
                yield f"{module.__name__}.{name}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for needed in ("mkdocs", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(needed, reason="the site is built with the extra 'docs'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {page.relative_to(folder).as_posix(): Anchors(page.read_text()) for page in folder.rglob("*.html")}


class TestSite:
    """The site as ``make docs`` builds it."""

    def test_the_reference_has_every_public_name(self, site):
        shown = set().union(*(page.ids for name, page in site.items() if name.startswith("api/")))
        names = list(public_names())
        assert len(names) > 100
        assert {"semaopt.ASA", "semaopt.hypergradient.compare", "semaopt.theory.bilevel"} <= set(names)
        assert not [name for name in names if name not in shown]

    def test_the_reference_has_the_experiments(self, site):
        shown = set().union(*(page.ids for name, page in site.items() if name.startswith("api/")))
        names = [
            "run",
            "tune",
            "results.table.Table",
            "spec.schema.Spec",
            "sweep.load.results",
            "data.load",
            "models.build",
        ]
        assert not [name for name in names if f"semaopt.experiments.{name}" not in shown]
        assert {"semaopt.ensemble.Ensemble", "semaopt.diagnostics.Monitor", "semaopt.checks.run"} <= shown

    def test_nothing_is_loaded_from_other_servers(self, site):
        addresses = {address for page in site.values() for address in page.loaded}
        assert not [address for address in addresses if re.match(r"(?:\w+:)?//", address)]

    def test_signatures_are_wrapped(self, site):
        pytest.importorskip("ruff", reason="signatures are formatted by ruff, of the extra 'docs'")
        signatures = [signature for page in site.values() for signature in page.signatures]
        assert len(signatures) > 100
        lines = [line for signature in signatures for line in signature.splitlines()]
        # Strings stay whole.
        assert not [line for line in lines if len(line) > 90 and not line.lstrip().startswith('"')]

    def test_no_markup_is_left_over(self, site):
        for name, page in site.items():
            text = "".join(page.text)
            for left in (".. math::", ":math:", ":class:", ":func:", "$$", r"\frac", r"\(", "--8", "<autoref"):
                assert left not in text, f"{left} on {name}"

    def test_the_examples_are_shown(self, site):
        text = "".join("".join(page.text) for page in site.values())
        for name in ("auc", "ddp", "ensemble", "lightning_digits", "own_scaling"):
            assert (ROOT / f"examples/{name}.py").read_text().splitlines()[0] in text, name

    def test_every_page_of_docs_is_there(self, site):
        assert {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in PAGES} <= set(site)

    def test_figures_with_our_theme_follow_the_colours_of_the_page(self, site, tmp_path):
        style = '<style class="semaopt-theme">svg { color: #111; --a: #222; } @media (x) { svg { --a: #333; } }</style>'
        (tmp_path / "own.svg").write_text(f'<?xml?><svg>{style}<g id="x"/><use href="#x"/></svg>')
        (tmp_path / "other.svg").write_text("<svg></svg>")
        hooks = load("hooks")

        def shown(name):
            match = hooks.IMAGE.fullmatch(f'<img alt="It." src="{name}" />')
            return hooks.figure(match, tmp_path / "index.md")

        rules = ".semaopt-figure { --a: #222; } [data-md-color-scheme=slate] .semaopt-figure { --a: #333; }"
        assert shown("own.svg") == (
            f'<svg class="semaopt-figure" role="img" aria-label="It."><style>{rules}</style><g id="own-x"/>'
            '<use href="#own-x"/></svg>'
        )
        assert shown("other.svg").startswith("<img")

    def test_a_formula_that_cannot_be_converted_is_an_error(self, site):
        from mkdocs.exceptions import PluginError

        hooks = load("hooks")
        assert "<mfrac>" in hooks.mathml(r"\frac{a}{b}", "inline")
        with pytest.raises(PluginError, match=r"no MathML for .*nonsense"):
            hooks.mathml(r"\nonsense{a}", "inline")

    def test_a_fence_that_would_be_shown_as_text_is_an_error(self, site):
        from types import SimpleNamespace

        from mkdocs.exceptions import PluginError

        page = SimpleNamespace(file=SimpleNamespace(src_uri="api/x.md"))
        with pytest.raises(PluginError, match=r"api/x\.md: shows ``` as text because a doctest is indented"):
            load("hooks").on_page_content("<pre><code>```pycon\n1</code></pre>", page)
