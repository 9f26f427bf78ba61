"""Theorem checks as part of a sweep: run once, stored, and included in the progress."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from semaopt import checks
from semaopt.checks.result import CheckResult as Check
from semaopt.experiments.files import digest
from semaopt.experiments.fingerprint import code_digest, fingerprint
from semaopt.experiments.results import records
from semaopt.experiments.sweep.engines.local import Failure
from semaopt.experiments.sweep.runner import Runner, RunsError
from semaopt.experiments.sweep.store import Store

_CODE = ("theory", "problems", "checks")  # computes checks, but no runs
_EPOCHS = 20  # that one check counts for in the progress


def stored(store: Store, names: Iterable[str], quick: bool) -> dict[str, Check]:
    """Return the checks that this program has stored, by name."""
    known, found = store.records(records.CHECK), {}
    for name in names:
        with suppress(KeyError, records.UnreadableError):  # missing, or written by another version
            found[name] = records.read_check(known[_key(name, quick)])
    return found


def save(store: Store, check: Check, quick: bool) -> None:
    """Store the result of a check."""
    store.put_record(records.CHECK, check.name, _key(check.name, quick), check.plain())


def _key(name: str, quick: bool) -> str:
    return digest([records.CHECK, name, quick, fingerprint(), code_digest(_CODE)])


class TheoremChecks:
    """The theorem checks of a sweep.

    Args:
        names: the checks to run.
        quick: whether to run their short versions.
        runner: executes them. Only the first process of a group has a store and runs checks.
    """

    def __init__(self, names: Iterable[str], quick: bool, runner: Runner) -> None:
        self.names = tuple(names) if runner.store is not None else ()
        self.quick, self.runner = quick, runner
        self.found: dict[str, Check] = {}

    def announce(self) -> None:
        """Look up the stored checks and add the others to the progress."""
        if not self.names or self.runner.store is None:
            return
        self.found = stored(self.runner.store, self.names, self.quick)
        for _ in range(len(self.names) - len(self.found)):
            self.runner.watch.plan(_EPOCHS)

    def conduct(self) -> tuple[Check, ...]:
        """Run the missing checks and return the results of all, in order."""
        missing = [name for name in self.names if name not in self.found]
        if missing:
            self.runner.watch.say(f"{len(missing)} theorem checks")
        failed = []
        work = partial(checks.run_one, quick=self.quick)
        for name, done in self.runner.engine.run(work, missing, lambda _: None):
            if isinstance(done, Failure):
                failed.append((f"check {name}", done))
                continue
            assert self.runner.store is not None  # otherwise there are no names
            save(self.runner.store, done, self.quick)
            self.found[name] = done
            self.runner.watch.done(_EPOCHS)
        if failed:
            raise RunsError.from_failures(f"{len(missing)} checks", failed)
        return tuple(self.found[name] for name in self.names)
