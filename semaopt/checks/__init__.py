"""Checks of every theorem on test problems with known constants (``semaopt check``).

>>> from semaopt import checks
>>> [result] = checks.run(["smb[logistic]"], quick=True)
>>> result.passed, result.lines[0].claim
(True, 'avg |grad F|^2 <= bound')
"""

from __future__ import annotations

import difflib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from semaopt._threads import one_thread
from semaopt.checks import bilevel, counterexample, minimization, minmax, pl
from semaopt.checks.averages import Checks
from semaopt.checks.result import CheckResult as CheckResult
from semaopt.checks.result import Figure as Figure
from semaopt.checks.result import Line as Line


def registry(quick: bool = False) -> Checks:
    """Map the name of every check to (label of its theorem, check); the checks that take longest come first."""
    parts = (counterexample, minmax, bilevel, minimization, pl)
    return {name: check for part in parts for name, check in part.registry(quick).items()}


def select(names: Sequence[str] | None, quick: bool = False) -> list[str]:
    """Return the full names of the selected checks.

    Args:
        names: full names (``"constant[adam]"``), groups (``"constant"``) or labels (``"thm:2"``); None selects all.
        quick: whether to select from the quick checks.
    """
    known = registry(quick)
    if not names:
        return list(known)
    chosen: list[str] = []
    for name in names:
        found = [key for key, (label, _) in known.items() if name in (key, key.partition("[")[0], label)]
        if not found:
            groups = sorted({key.partition("[")[0] for key in known})
            close = difflib.get_close_matches(name, [*groups, *known, *(label for label, _ in known.values())], n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            labels = dict.fromkeys(label for label, _ in known.values())
            raise ValueError(f"unknown check {name!r}.{hint} Available: {', '.join([*groups, *labels])}.")
        chosen += [key for key in found if key not in chosen]
    return chosen


def run_one(name: str, quick: bool = False) -> CheckResult:
    """Run one check, given its full name."""
    _, check = registry(quick)[name]
    start = time.perf_counter()
    with one_thread():
        result = check()
    result.seconds = time.perf_counter() - start
    return result


def run(
    names: Sequence[str] | None = None,
    quick: bool = False,
    workers: int = 1,
    done: Callable[[CheckResult], None] = lambda result: None,
) -> list[CheckResult]:
    """Run checks in parallel and return their results.

    Args:
        names: as in :func:`select`; None runs all.
        quick: whether to run the quick versions.
        workers: the number of processes. The results do not depend on it, as every run has its own seed.
        done: called with each result as soon as it is available.
    """
    chosen = select(names, quick)
    found: dict[str, CheckResult] = {}
    if workers <= 1 or len(chosen) == 1:
        for name in chosen:
            found[name] = run_one(name, quick)
            done(found[name])
        return list(found.values())
    # Do not fork: a forked child hangs in torch if the parent has used its threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(chosen)), mp_context=context) as pool:
        futures = {pool.submit(run_one, name, quick): name for name in chosen}
        try:
            for future in as_completed(futures):
                found[futures[future]] = future.result()
                done(found[futures[future]])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[name] for name in chosen]
