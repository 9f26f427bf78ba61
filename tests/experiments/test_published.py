"""The pages of results contain the numbers of the stored studies."""

import re
from pathlib import Path

import pytest

from semaopt.experiments.report import markdown
from semaopt.experiments.sweep import load

RESULTS = Path(__file__).parents[2] / "docs" / "results"
STUDIES = sorted(path.parent for path in (RESULTS / "studies").glob("*/runs.sqlite"))


def rows(text):
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| claim"))]


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_the_page_has_every_row_of_the_stored_studies(folder):
    results = load.results([folder], "")
    (finding,) = results.findings
    assert finding.name == folder.name
    pages = [path.read_text() for path in RESULTS.glob("*.md")]
    (page,) = (text for text in pages if f"{{#{finding.name}}}" in text)
    section = re.split(r"^##* .*\{#", page, flags=re.MULTILINE)
    (own,) = (text for text in section if text.startswith(f"{finding.name}}}"))
    _, rendered = markdown.render(results).split(f"## {finding.spec.title}\n")
    missing = [row for row in rows(rendered) if row not in own]
    assert not missing, f"{folder.name}: write its section again with semaopt report {folder.name}"


def test_there_are_stored_studies():
    assert STUDIES
