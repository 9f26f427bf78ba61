"""A copy of what the distributions are built from, without anything that was built before."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent


def copy_sources(folder: Path) -> Path:
    skip = shutil.ignore_patterns("*.so", "*.dll", "*.failed", "__pycache__")
    shutil.copytree(ROOT / "semaopt", folder / "semaopt", ignore=skip)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder
