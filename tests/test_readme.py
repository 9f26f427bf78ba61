"""The README: its Python runs, it stays short, and its links and the project's files agree."""

import re
import sys
from pathlib import Path

import pytest
import torch

import semaopt

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_blocks_run() -> None:
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    assert len(BLOCKS) >= 2
    assert isinstance(names["optimizer"], torch.optim.Optimizer)


def test_it_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_every_link_leads_to_a_file(name: str) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", (ROOT / name).read_text())]
    assert not [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()]


def test_the_citation_has_the_version() -> None:
    assert f"\nversion: {semaopt.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {semaopt.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is part of Python 3.11")
def test_read_the_docs_installs_the_extra_docs() -> None:
    import tomllib

    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    [line] = re.findall(r"- pip install (.*)", (ROOT / ".readthedocs.yaml").read_text())
    installed = {re.split(r"[<>=]", word.strip('"'))[0] for word in line.split()[2:]}
    assert installed == {re.split(r"[<>=]", requirement)[0] for requirement in extra}
