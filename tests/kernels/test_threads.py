"""Concurrent optimizer steps in several threads equal sequential steps bitwise.

The C step releases the GIL while it computes and keeps a scratch table for the first parameter of each group.
"""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import semaopt
from semaopt.kernels import compiled
from tests.common.registry import METHODS
from tests.common.test_suite import run, values
from tests.kernels.common import SCALINGS, assert_agree, needs_c, normal, trained

THREADS = 8
LARGE = (30_001, 7, 70_000)  # large enough for the C step to release the GIL


@pytest.fixture(autouse=True)
def _frequent_thread_switches():
    """Make the interpreter switch threads a hundred times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


def run_concurrently(work, count=THREADS):
    """Run ``work(i)`` in ``count`` threads that start together, and return the results or raise the first error."""
    start, results, errors = threading.Barrier(count), [None] * count, []

    def enter(i):
        try:
            start.wait()
            results[i] = work(i)
        except BaseException as error:  # raised again in the main thread
            errors.append(error)

    threads = [threading.Thread(target=enter, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def large(seed=0):
    return [torch.nn.Parameter(normal((n,), torch.float32, seed + i)) for i, n in enumerate(LARGE)]


def train_one(i):
    """Train with the scaling and options of thread i."""
    hyper = {"bias_correction": i % 2 == 0, "weight_decay": 0.1 * (i % 3)}
    return trained("auto", torch.float32, SCALINGS[i % len(SCALINGS)], xs=large(i), steps=8, **hyper)


@pytest.mark.parametrize("most", [256, 2, 0])
def test_concurrent_steps_equal_sequential_steps(most, monkeypatch):
    """Small limits evict the tables of some threads while others compute."""
    alone = [train_one(i) for i in range(THREADS)]
    monkeypatch.setattr(compiled, "MOST_TABLES", most)
    for one, other in zip(alone, run_concurrently(train_one), strict=True):
        assert_agree(one, other)


def test_every_method_runs_concurrently():
    def work(i):
        results = []
        for method in METHODS[i::THREADS]:
            optimizer, problem = method.start()
            run(method, optimizer, problem, range(4))
            results.append(values(problem))
        return results

    alone = [work(i) for i in range(THREADS)]
    for mine, others in zip(alone, run_concurrently(work), strict=True):
        for left, right in zip(mine, others, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@needs_c
def test_groups_with_the_same_first_parameter():
    """Threads that share a first parameter race only for its values: all other parameters are unaffected."""

    def work(shared, i):
        sizes = (30_000, 50_000) if i % 2 else (90_000, 11, 25_000)
        own = [torch.nn.Parameter(normal((n,), torch.float32, 10 * i + k)) for k, n in enumerate(sizes)]
        optimizer = semaopt.ASA([shared, *own], lr=0.05, scaling="adam", implementation="c")
        for k in range(25):
            for x in own:
                x.grad = normal(tuple(x.shape), torch.float32, k)
            optimizer.step()
        return own

    alone = []
    for i in range(THREADS):
        x = torch.nn.Parameter(torch.zeros(3))
        x.grad = torch.ones(3)
        alone.append(work(x, i))
    shared = torch.nn.Parameter(torch.zeros(3))
    shared.grad = torch.ones(3)
    for mine, others in zip(alone, run_concurrently(lambda i: work(shared, i)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, others, strict=True))


@needs_c
def test_parameter_that_reuses_the_id_of_a_deleted_one():
    """Tables are keyed by id, which a new tensor may reuse: it inherits only scratch memory."""
    for k in range(20):
        shapes = ((40_000,), (3,)) if k % 2 else ((2,), (50_000,), (5,))
        xs = [torch.nn.Parameter(normal(shape, torch.float32, k)) for shape in shapes]
        twins = [torch.nn.Parameter(x.detach().clone()) for x in xs]
        assert_agree(trained("c", torch.float32, xs=xs), trained("loop", torch.float32, xs=twins), rtol=2e-5, atol=2e-6)
