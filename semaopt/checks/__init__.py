"""Measured against promised: every theorem on test beds whose constants are known (``semaopt check``).

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
from semaopt.checks import counterexample, minimization, pairs, stages
from semaopt.checks.averages import Checks
from semaopt.checks.result import Figure as Figure
from semaopt.checks.result import Line as Line
from semaopt.checks.result import Result as Result


def registry(quick: bool = False) -> Checks:
    """Every check by its name, with the label of its theorem; those that take longest come first."""
    parts = (counterexample, pairs, minimization, stages)
    return {name: check for part in parts for name, check in part.registry(quick).items()}


def select(names: Sequence[str] | None, quick: bool = False) -> list[str]:
    """The checks named so: ``"constant[adam]"``, all of ``"constant"``, or all of a label such as ``"thm:2"``."""
    known = registry(quick)
    if not names:
        return list(known)
    chosen: list[str] = []
    for name in names:
        found = [key for key, (label, _) in known.items() if name in (key, key.partition("[")[0], label)]
        if not found:
            groups = sorted({key.partition("[")[0] for key in known})
            close = difflib.get_close_matches(name, [*groups, *known, *(label for label, _ in known.values())], n=1)
            hint = f"did you mean {close[0]!r}? There is: " if close else "there is: "
            labels = dict.fromkeys(label for label, _ in known.values())
            raise ValueError(f"check {name!r} is unknown; {hint}{', '.join([*groups, *labels])}")
        chosen += [key for key in found if key not in chosen]
    return chosen


def run_one(name: str, quick: bool = False) -> Result:
    """One check by its full name."""
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
    done: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run checks, by default all, in ``workers`` processes; ``done`` hears of each that has ended.

    The numbers do not depend on the number of workers: every run has a seed of its own.
    """
    chosen = select(names, quick)
    found: dict[str, Result] = {}
    if workers <= 1 or len(chosen) == 1:
        for name in chosen:
            found[name] = run_one(name, quick)
            done(found[name])
        return list(found.values())
    # Not by fork: a forked child hangs in torch if the parent has used its threads.
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
