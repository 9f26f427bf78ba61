"""Random command lines: known words in any order, with values of all kinds.

A command stops where its work would begin: by then the command line has been accepted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import typer
from typer.testing import CliRunner

from semaopt.experiments.cli import commands
from semaopt.experiments.spec import schema
from tests.fuzz.targets import Target

#: Values for any option and any argument.
VALUES = (
    *(
        "",
        " ",
        "0",
        "1",
        "2",
        "-1",
        "--",
        "-",
        "1e999",
        "nan",
        "inf",
        "-inf",
        "3.5",
        "99999999999999999999",
        "0x10",
        "é",
    ),
    *(
        "quick",
        "small",
        "paper",
        "local",
        "ray",
        "cpu",
        "cuda",
        "cuda:99",
        "meta",
        "cpu:7",
        "float32",
        "float64",
        "int8",
    ),
    *("adam", "both", "step", "constant", "thm:2", "digits", "nobody", "one", "net", "none", "auto", "../up", "~", "."),
    *("there", "file", "file/below", "/proc/nothing", "/dev/null", "a\0b", "a\nb", "x" * 300, "mine.toml", "bad.toml"),
    *("{x}", "%s", "[red]", "\\", "\u202e", "results", "link", "link/below"),
)
_EXTRA = ("--help", "--version", "--frob", "-x", "--out", "--", "--quick=1", "--no-quick")


class Reached(BaseException):
    """The command line was accepted; no ``except`` may catch it."""


def _work(*_: object, **__: object) -> None:
    raise Reached


#: Functions that start work or access the network.
WORK = (
    "semaopt.experiments.sweep.runner.Workspace.open_store",
    "semaopt.checks.run",
    "semaopt.experiments.bench.step.measure",
    "semaopt.experiments.data.catalogue.DataSet.fetch",
)


@functools.cache
def _known() -> dict[tuple[str, ...], list[str]]:
    """Return each command as a tuple of words, with its options."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
        yield words, [name for param in command.params for name in param.opts if name.startswith("-")]
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    found = dict(walk(typer.main.get_command(commands.app), ()))
    found["bench", "step"] = ["--sizes", "--only", "--device", "--threads", "--seconds", "--out"]
    return found


def _line(rng: Random) -> list[str]:
    words, options = rng.choice(list(_known().items()))
    line = [*words]
    if rng.random() < 0.8:  # usually a valid spec, so that the options are read
        good = words[-1:] in (("run",), ("tune",)) and rng.random() < 0.7
        line.append("mine.toml" if good else rng.choice((*schema.shipped()[:6], *VALUES)))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        option = rng.choice(options) if options and rng.random() < 0.9 else rng.choice(_EXTRA)
        value = rng.choice(VALUES)
        line += rng.choice(([option, value], [option, value], [f"{option}={value}"], [option]))
    if rng.random() < 0.1:
        rng.shuffle(line)
    return line


@functools.cache
def _specs() -> tuple[bytes, bytes]:
    good = (schema.FIGURES / "figure1-digits.toml").read_bytes()
    return good, good.replace(b"epochs", b"epoch", 1)


@contextmanager
def _ready(folder: Path) -> Iterator[None]:
    """Prepare a folder with a valid spec, an invalid one, a file and a link out of it; disable work and network."""
    for name, data in (("mine.toml", _specs()[0]), ("bad.toml", _specs()[1]), ("file", b"mine")):
        (folder / name).write_bytes(data)
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to(folder / "nowhere")
    before = Path.cwd()
    environment = {"SEMAOPT_DATA": str(folder / "data"), "COLUMNS": "80"}
    with ExitStack() as stack:
        stack.callback(os.chdir, before)
        os.chdir(folder)
        stack.enter_context(patch.dict(os.environ, environment))
        for name in WORK:
            stack.enter_context(patch(name, _work))
        yield


_GIVEN = {"mine.toml", "bad.toml", "file", "link"}


def _tell(line: list[str], folder: Path) -> bool:
    """Require status 0 or 2, a message and no traceback; a refused command line must write nothing."""
    reached = False
    with _ready(folder):
        try:
            result = CliRunner().invoke(commands.app, line)
        except Reached:
            reached = True
    made = sorted(path for path in folder.iterdir() if path.name not in _GIVEN)
    for path in made:
        _remove(path)
    for name in ("mine.toml", "bad.toml", "file"):
        assert (folder / name).is_file(), f"{name} is gone"
    if reached:
        return True
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 2), f"status {result.exit_code}: {result.output[-300:]}"
    assert "Traceback" not in result.output
    assert len(result.output) > 10, "nothing was said"
    if result.exit_code == 2:
        assert not made, f"left behind by a line that was refused: {made}"
    return result.exit_code == 0


def _remove(path: Path) -> None:
    for inner in sorted(path.rglob("*"), reverse=True):
        inner.unlink() if inner.is_symlink() or not inner.is_dir() else inner.rmdir()
    path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()


COMMANDS = Target("command lines", _line, _tell, 2)
