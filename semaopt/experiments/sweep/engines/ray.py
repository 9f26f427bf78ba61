"""Ray engine: a cluster on this machine or at an address."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.sweep.engines.local import ATTEMPTS, FATAL, Failure, epochs_done, failure

Job = TypeVar("Job")
Done = TypeVar("Done")


class RayWorkers:
    """Executes jobs as Ray tasks of one core each; a task whose worker dies resumes from its checkpoint.

    Args:
        address: address of a running cluster; None starts one on this machine.
        count: number of parallel tasks on this machine.
    """

    def __init__(self, address: str | None, count: int) -> None:
        import ray

        self.ray: Any = ray
        self.address, self.count = address, count

    def __enter__(self) -> RayWorkers:
        # No usage statistics are sent. Workers import this package from where this process found it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        folders = [*filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()]  # plug-ins may be in the current folder
        variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders)}
        options: dict[str, Any] = {"address": self.address} if self.address else {"num_cpus": self.count}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray warns about its own future defaults
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
                    f"address={self.address!r} is invalid: no Ray cluster answers there "
                    f"({str(error).splitlines()[0]}). Start one with ray start --head, or omit the address."
                ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    def run(
        self, work: Callable[[Job], Done], jobs: Sequence[Job], on_progress: Callable[[int], None]
    ) -> Iterator[tuple[Job, Done | Failure]]:
        """See :class:`semaopt.experiments.sweep.engines.local.Engine`; progress is reported when a job ends."""
        task = self.ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_one_threaded)
        pending = {task.remote(work, job): job for job in jobs}
        total = 0
        while pending:
            ready, _ = self.ray.wait(list(pending), num_returns=1)
            for reference in ready:
                done, epochs = self._result(reference)
                total += epochs
                on_progress(total)
                yield pending.pop(reference), done

    def _result(self, reference: Any) -> tuple[Any, int]:
        """Return the result of a job and the epochs it trained (0 if it failed)."""
        try:
            done: tuple[Any, int] = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, FATAL):
                raise error.cause from error
            return failure(error.cause), 0
        except self.ray.exceptions.RayError as error:
            return Failure(f"Ray gave up: {str(error).splitlines()[0]}"), 0
        return done


def _one_threaded(work: Callable[[Job], Done], job: Job) -> tuple[Done, int]:
    torch.set_num_threads(1)
    before = epochs_done()
    return work(job), epochs_done() - before
