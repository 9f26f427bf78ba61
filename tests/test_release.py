"""The files around the package agree with the Makefile, pyproject.toml and the version."""

import re
import sys
from pathlib import Path

import pytest

import semaopt

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[1].split())

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which comes with the extra 'docs'")


def read_toml():
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        tomllib = pytest.importorskip("tomli")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


PYPROJECT = read_toml()


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"]


def test_every_target_is_described_at_the_top_of_the_makefile():
    described = set(re.findall(r"^# make ([\w-]+)", MAKEFILE, re.MULTILINE))
    assert described == TARGETS - {"clean"}


def expand(command, matrix):
    """Return the command for every value of the matrix."""
    found = [command]
    for key, values in matrix.items():
        found = [text.replace(f"${{{{ matrix.{key} }}}}", value) for text in found for value in values]
    return set(found)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_command_of_a_workflow_is_a_make_target(path):
    for name, job in jobs(path).items():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            assert step.keys() & {"run", "uses"}, name
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w./-]+@(v\d[\d.]*|release/v1)", step["uses"]), step["uses"]
            for command in expand(step["run"], matrix) if "run" in step else ():
                assert command.startswith("make "), command
                assert set(command.split()[1:]) <= TARGETS, command


def test_the_tests_cover_every_system_python_and_torch():
    checks = jobs(ROOT / ".github" / "workflows" / "checks.yml")
    systems = ["ubuntu-latest", "macos-latest", "windows-latest"]
    pythons = [line.rpartition(" ")[2] for line in PYPROJECT["project"]["classifiers"] if ":: 3." in line]
    assert checks["core"]["strategy"]["matrix"] == {"os": systems, "python": pythons, "torch": ["oldest", "newest"]}
    assert {"lint", "tests", "docs", "wheel"} <= checks.keys()


def test_a_tag_publishes_without_a_password():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key "on" as true
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert set(publish["needs"]) == workflow["jobs"].keys() - {"publish"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_the_slow_tests_run_weekly():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "slow.yml").read_text())
    [schedule] = workflow[True]["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", schedule["cron"])


def minimum(name):
    [need] = [need for need in PYPROJECT["project"]["dependencies"] if need.startswith(name)]
    return need.partition(">=")[2]


def test_the_conda_recipe_agrees():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == semaopt.__version__
    needs = recipe["requirements"]
    assert needs["run"] == [f"python {PYPROJECT['project']['requires-python']}", f"pytorch >={minimum('torch')}"]
    [setuptools] = PYPROJECT["build-system"]["requires"]
    assert setuptools.replace(">", " >", 1) in needs["host"]
    assert recipe["about"]["license"] == PYPROJECT["project"]["license"]
    assert recipe["about"]["summary"] == PYPROJECT["project"]["description"]


def test_the_citation_agrees():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == semaopt.__version__
    assert citation["license"] == PYPROJECT["project"]["license"]
    assert citation["preferred-citation"]["url"] == PYPROJECT["project"]["urls"]["Paper"]


def test_read_the_docs_installs_the_extra_docs():
    [install] = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())["build"]["jobs"]["install"]
    installed = {re.match(r"[\w-]+", name)[0] for name in install.replace('"', "").split()[4:]}
    wanted = {re.match(r"[\w-]+", need)[0] for need in PYPROJECT["project"]["optional-dependencies"]["docs"]}
    assert installed == wanted


def test_the_changelog_has_the_version():
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == semaopt.__version__


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_issue_templates(path):
    template = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert set(template) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= template.keys()
    names = [field["id"] for field in template["body"]]
    assert len(set(names)) == len(names)
    assert all(field["type"] in ("textarea", "input", "dropdown", "checkboxes") for field in template["body"])
