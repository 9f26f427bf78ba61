"""The entry point of ``semaopt`` and ``python -m semaopt``. All commands need the extra ``[experiments]``."""

from __future__ import annotations

import sys

from semaopt._version import __version__

#: Modules of the extra. A missing module that is not among them is a bug and keeps its traceback.
EXTRA = frozenset(
    {
        "filelock",
        "jinja2",
        "markupsafe",
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
REMEDY = "Install it with: pip install 'semaopt[experiments]'"


def main() -> int:
    """Run the command in ``sys.argv`` and return its exit status."""
    try:
        from semaopt.experiments.cli.commands import app

        app(standalone_mode=True)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        return _without_extra(sys.argv[1:], error.name or "")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def _without_extra(args: list[str], missing: str) -> int:
    """Handle arguments that need no extra; for all others print the command that installs it."""
    if args == ["--version"]:
        print(f"semaopt {__version__}")
    elif args in ([], ["--help"]):
        print(f"semaopt {__version__}\nThe command line needs the extra [experiments]. {REMEDY}")
    else:
        text = f"semaopt {args[0]} needs the extra [experiments]: the module {missing!r} is missing. {REMEDY}"
        print(text, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
