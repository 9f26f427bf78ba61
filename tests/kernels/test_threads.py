"""Optimizers that step at once in threads take the steps that each takes alone, to the bit.

The C step lets other threads run while it computes, and keeps scratch tables by the first parameter of a group.
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
LARGE = (30_001, 7, 70_000)  # beyond what the C step computes without letting go of the interpreter


@pytest.fixture(autouse=True)
def _often():
    """Let the interpreter change threads a hundred times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


def at_once(work, count=THREADS):
    """``work(i)`` in so many threads that start together; what they return, or what one of them raises."""
    start, results, errors = threading.Barrier(count), [None] * count, []

    def enter(i):
        try:
            start.wait()
            results[i] = work(i)
        except BaseException as error:  # shown by the test, in whichever thread it was
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


def worked(i):
    """Some steps with a scaling, a path and options of its own."""
    hyper = {"bias_correction": i % 2 == 0, "weight_decay": 0.1 * (i % 3)}
    return trained("auto", torch.float32, SCALINGS[i % len(SCALINGS)], xs=large(i), steps=8, **hyper)


@pytest.mark.parametrize("most", [256, 2, 0])
def test_eight_at_once_are_eight_alone(most, monkeypatch):
    """Also where the tables of some are thrown away while others compute."""
    alone = [worked(i) for i in range(THREADS)]
    monkeypatch.setattr(compiled, "MOST_TABLES", most)
    for one, other in zip(alone, at_once(worked), strict=True):
        assert_agree(one, other)


def test_every_method_at_once():
    def work(i):
        results = []
        for method in METHODS[i::THREADS]:
            optimizer, problem = method.start()
            run(method, optimizer, problem, range(4))
            results.append(values(problem))
        return results

    alone = [work(i) for i in range(THREADS)]
    for mine, others in zip(alone, at_once(work), strict=True):
        for left, right in zip(mine, others, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@needs_c
def test_groups_that_begin_with_one_parameter():
    """Threads that share their first parameter race for its values, and for nothing else: the others are as alone."""

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
    for mine, others in zip(alone, at_once(lambda i: work(shared, i)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, others, strict=True))


@needs_c
def test_a_parameter_in_the_place_of_a_dead_one():
    """Tables are found by identity, and a new tensor may have that of a dead one: it only inherits scratch memory."""
    for k in range(20):
        shapes = ((40_000,), (3,)) if k % 2 else ((2,), (50_000,), (5,))
        xs = [torch.nn.Parameter(normal(shape, torch.float32, k)) for shape in shapes]
        twins = [torch.nn.Parameter(x.detach().clone()) for x in xs]
        assert_agree(trained("c", torch.float32, xs=xs), trained("loop", torch.float32, xs=twins), rtol=2e-5, atol=2e-6)
