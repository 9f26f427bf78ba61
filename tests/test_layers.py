"""Imports point down the layers of the package, and no two modules or folders import each other in a circle.

The graph is built from the syntax trees. Imports inside functions count; those under ``TYPE_CHECKING`` do not.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import semaopt

ROOT = Path(semaopt.__file__).parent
#: From the bottom to the top. Parts of one layer may import each other without a circle. Private modules of the package
#: (``_validation``, ``_serialization``, ...) belong to the lowest layer.
PACKAGE = (
    ("estimator", "scalings", "projections"),
    ("kernels",),
    ("schedules", "losses", "samplers", "iterates", "hypergradient"),
    ("optimizers", "baselines", "ensemble", "in_backward", "registry", "theory"),
    ("diagnostics", "problems"),
    ("integrations", "checks"),
    ("experiments",),
    ("__main__",),
)
EXPERIMENTS = (
    ("extra", "files", "plugins", "settings", "fingerprint", "commands"),
    ("data",),
    ("models",),
    ("training",),
    ("spec",),
    ("results",),
    ("sweep",),
    ("report", "bench"),
    ("api",),
    ("cli",),
)
#: Parts of the second layer that must not import these parts of the same layer.
FORBIDDEN = {("theory", "optimizers"), ("theory", "baselines")}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported(tree: ast.AST, module: str, is_package: bool) -> set[str]:
    """Return the full names of what a module imports, function-level imports included."""
    found: set[str] = set()
    todo = [tree]
    while todo:
        node = todo.pop()
        if is_type_checking(node):
            todo += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
        todo += ast.iter_child_nodes(node)
    return {name for name in found if name.split(".")[0] == "semaopt"}


def modules() -> dict[str, Path]:
    """Return the files of the package by module name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def graph() -> dict[str, set[str]]:
    """Return the modules that each module imports; a name of a package counts as an import of that package."""
    known = modules()
    edges: dict[str, set[str]] = {}
    for name, path in known.items():
        targets = set()
        for full in imported(ast.parse(path.read_text()), name, path.name == "__init__.py"):
            target = full
            while target not in known:
                target = target.rpartition(".")[0]
            targets.add(target)
        edges[name] = targets - {name}
    return edges


EDGES = graph()


def part(module: str, depth: int) -> str:
    """Return the component of a module name at this depth, or "" for the package itself."""
    parts = module.split(".")
    return parts[depth] if len(parts) > depth else ""


def level(layers: tuple[tuple[str, ...], ...], name: str) -> int:
    """Return the number of the layer of a part."""
    if is_private(name):
        return 0
    return next(k for k, names in enumerate(layers) if name in names)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def violations(layers: tuple[tuple[str, ...], ...], prefix: str) -> list[str]:
    """Return the imports that point up, among the parts below ``prefix``."""
    depth = prefix.count(".") + 1
    exported = max(level(layers, part(one, depth)) for one in EDGES[prefix] if one.startswith(f"{prefix}."))
    found = []
    for module, targets in EDGES.items():
        source = part(module, depth)
        if not module.startswith(f"{prefix}.") or not source:
            continue
        for target in targets:
            to = part(target, depth)
            everything = target == prefix and exported >= level(layers, source)  # the package imports its parts
            upward = target.startswith(f"{prefix}.") and to != source and level(layers, to) > level(layers, source)
            if everything or upward:
                found.append(f"{module} imports {target}")
    return sorted(found)


def test_every_module_has_a_layer():
    for layers, prefix in ((PACKAGE, "semaopt"), (EXPERIMENTS, "semaopt.experiments")):
        depth = prefix.count(".") + 1
        parts = {part(module, depth) for module in EDGES if module.startswith(f"{prefix}.")}
        assert {name for name in parts if not is_private(name)} <= {name for names in layers for name in names}, prefix


@pytest.mark.parametrize(
    ("layers", "prefix"), [(PACKAGE, "semaopt"), (EXPERIMENTS, "semaopt.experiments")], ids=["package", "experiments"]
)
def test_imports_point_down(layers, prefix):
    assert violations(layers, prefix) == []


def test_theory_imports_no_optimizer():
    found = [
        f"{module} imports {target}"
        for module, targets in EDGES.items()
        for target in targets
        if (part(module, 1), part(target, 1)) in FORBIDDEN
    ]
    assert found == []


def sorted_or_cycle(edges: dict[str, set[str]]) -> list[str]:
    try:
        return list(TopologicalSorter(edges).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("prefix", ["semaopt", "semaopt.experiments"])
def test_folders_do_not_import_each_other_in_a_circle(prefix):
    depth = prefix.count(".") + 1
    edges: dict[str, set[str]] = {}
    for module, targets in EDGES.items():
        source = part(module, depth)
        if module.startswith(f"{prefix}.") and source:
            own = {part(target, depth) for target in targets if target.startswith(f"{prefix}.")}
            edges.setdefault(source, set()).update(own - {source})
    assert sorted_or_cycle(edges)


def test_modules_do_not_import_each_other_in_a_circle():
    """A package imports its modules to export their names; a module may import its package for the names of another
    module."""
    edges = {
        module: {target for target in targets if not module.startswith(f"{target}.")}
        for module, targets in EDGES.items()
    }
    assert sorted_or_cycle(edges)


SOURCE = """
from typing import TYPE_CHECKING
import semaopt.kernels
if TYPE_CHECKING:
    from semaopt.experiments import api
else:
    from semaopt import losses
def f():
    from semaopt.optimizers.asa import ASA
from . import sibling
from .other import name
import torch
"""


def test_the_graph_contains_function_level_imports_and_no_type_checking_ones():
    assert imported(ast.parse(SOURCE), "semaopt.theory.rates", is_package=False) == {
        "semaopt.kernels",
        "semaopt.losses",
        "semaopt.optimizers.asa.ASA",
        "semaopt.theory.sibling",
        "semaopt.theory.other.name",
    }


def test_an_upward_import_is_found(monkeypatch):
    monkeypatch.setitem(EDGES, "semaopt.theory.bad", {"semaopt.experiments.api"})
    assert violations(PACKAGE, "semaopt") == ["semaopt.theory.bad imports semaopt.experiments.api"]
