"""Exports, registry and documentation agree."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import torch

import semaopt
from tests.common.registry import METHODS

ROOT = Path(__file__).parent.parent
#: Modules of earlier versions that the changelog names, and only the changelog.
REMOVED = {"CHANGELOG.md": {"algorithms"}}
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def optimizers(module):
    found = vars(module).values()
    return {kind for kind in found if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)}


def test_every_exported_optimizer_is_in_the_registry():
    exported = optimizers(semaopt) | (optimizers(semaopt.baselines) if hasattr(semaopt, "baselines") else set())
    assert {type(method.start()[0]) for method in METHODS} == exported


def test_documentation_names_existing_files_and_members():
    for document in DOCUMENTS:
        text = document.read_text()
        for path in re.findall(r"`((?:semaopt|tests|benchmarks|examples|docs)/[\w/.]+\.\w+)", text):
            assert (ROOT / path).exists(), f"{document.name} names {path}"
        for name in re.findall(r"`semaopt\.([A-Za-z_.]+)", text):
            found = semaopt
            parts = name.strip(".").split(".")
            if parts[0] in REMOVED.get(document.name, ()):
                continue
            if parts[0] == "experiments":  # needs an extra, so it is not imported with the package
                module = ".".join(["semaopt", *parts[:2]])
                importlib.import_module(module if importlib.util.find_spec(module) else "semaopt.experiments")
            for part in parts:
                assert hasattr(found, part), f"{document.name} names semaopt.{name}"
                found = getattr(found, part)


def test_the_core_imports_torch_alone():
    code = "import sys, semaopt; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    baseline = subprocess.run(
        [sys.executable, "-c", code.replace("semaopt", "torch, torch.optim, json")],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    extras = {"sklearn", "matplotlib", "rich", "typer", "numpy", "pydantic", "optuna", "ray", "rdkit"}
    assert extras & set(loaded) <= extras & set(baseline)


def test_the_compiler_is_not_imported():  # importing torch._dynamo takes as long as the rest of torch
    code = "import sys, semaopt; print('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
