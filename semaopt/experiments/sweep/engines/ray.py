"""The same sweep on Ray: a cluster on this machine, or one with an address."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.sweep.engines.local import ATTEMPTS, ENDING, Failure, epochs_done, raised

Job = TypeVar("Job")
Done = TypeVar("Done")


class RayWorkers:
    """Does jobs as Ray tasks of one core each; a task whose worker dies is tried again, from its checkpoint.

    Args:
        address: of a running cluster; None starts one on this machine.
        count: tasks at a time on this machine.
    """

    def __init__(self, address: str | None, count: int) -> None:
        import ray

        self.ray: Any = ray
        self.address, self.count = address, count

    def __enter__(self) -> RayWorkers:
        # Workers get no tracing and no report to anyone, and find this package where this process found it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        folders = [*filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()]  # plug-ins may be in the current folder
        variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders)}
        options: dict[str, Any] = {"address": self.address} if self.address else {"num_cpus": self.count}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray, about its own future defaults
            try:
                self.ray.init(
                    **options,
                    runtime_env={"env_vars": variables},
                    log_to_driver=False,
                    configure_logging=False,
                    include_dashboard=None if self.address else False,
                )
            except (ConnectionError, ValueError, RuntimeError) as error:  # Ray raises all three
                if self.address is None:
                    raise
                raise SpecError(
                    f"address={self.address!r}: no Ray cluster answers there ({str(error).splitlines()[0]}); start one "
                    "with ray start --head, or leave the address out"
                ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    def do(
        self, work: Callable[[Job], Done], jobs: Sequence[Job], tick: Callable[[int], None]
    ) -> Iterator[tuple[Job, Done | Failure]]:
        """See :class:`semaopt.experiments.sweep.engines.local.Engine`; progress is told when a job ends."""
        task = self.ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_one_threaded)
        pending = {task.remote(work, job): job for job in jobs}
        total = 0
        while pending:
            ready, _ = self.ray.wait(list(pending), num_returns=1)
            for reference in ready:
                done, epochs = self._result(reference)
                total += epochs
                tick(total)
                yield pending.pop(reference), done

    def _result(self, reference: Any) -> tuple[Any, int]:
        """What became of a job, and how many epochs it has trained; of one that failed that is not known."""
        try:
            done: tuple[Any, int] = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ENDING):
                raise error.cause from error
            return raised(error.cause), 0
        except self.ray.exceptions.RayError as error:
            return Failure(f"Ray gave it up: {str(error).splitlines()[0]}"), 0
        return done


def _one_threaded(work: Callable[[Job], Done], job: Job) -> tuple[Done, int]:
    torch.set_num_threads(1)
    before = epochs_done()
    return work(job), epochs_done() - before
