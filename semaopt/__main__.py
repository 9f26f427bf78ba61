"""``semaopt`` on the command line, also as ``python -m semaopt``. Its commands need the extra ``[experiments]``."""

from __future__ import annotations

import sys

from semaopt._version import __version__

#: The modules of the extra. A missing module that is none of these is a bug, and keeps its traceback.
EXTRA = frozenset(
    {
        "filelock",
        "matplotlib",
        "numpy",
        "optuna",
        "pydantic",
        "rich",
        "scipy",
        "sklearn",
        "tensorboard",
        "tomli",
        "typer",
    }
)
NEEDED = "this command needs the extra [experiments]: pip install 'semaopt[experiments]'"


def main() -> int:
    """Run the command in ``sys.argv`` and return its exit status."""
    try:
        from semaopt.experiments.cli.commands import app

        app(standalone_mode=True)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in EXTRA:
            raise
        return _without_extra(sys.argv[1:])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def _without_extra(args: list[str]) -> int:
    if args == ["--version"]:
        print(f"semaopt {__version__}")
    elif args in ([], ["--help"]):
        print(f"semaopt {__version__}\nIts commands need the extra [experiments]: pip install 'semaopt[experiments]'")
    else:
        print(NEEDED, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
