"""Profiler records and step hooks, which must work as in torch."""

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import semaopt


def start(kind=semaopt.ASA):
    x = torch.nn.Parameter(torch.ones(3))
    x.grad = torch.ones(3)
    return kind([x])


def test_profiler_records_the_step():
    optimizer = start()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    assert "Optimizer.step#ASA.step" in {event.key for event in profile.key_averages()}


def test_local_and_global_hooks_run_once():
    optimizer, seen = start(), []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("all before")),
        register_optimizer_step_post_hook(lambda *_: seen.append("all after")),
        optimizer.register_step_pre_hook(lambda *_: seen.append("before")),
        optimizer.register_step_post_hook(lambda *_: seen.append("after")),
    ]
    for handle, expected in zip(
        [*handles, None],
        [
            ["all before", "before", "after", "all after"],
            ["before", "after", "all after"],
            ["before", "after"],
            ["after"],
            [],
        ],
        strict=True,
    ):
        seen.clear()
        optimizer.step()
        assert seen == expected
        if handle is not None:
            handle.remove()


def test_hook_may_only_change_the_arguments():
    optimizer, calls = start(), []
    handle = optimizer.register_step_pre_hook(
        lambda self, args, kwargs: ((self,), {"closure": lambda: calls.append(1)})
    )
    optimizer.step()
    assert calls == [1]
    handle.remove()
    optimizer.register_step_pre_hook(lambda *_: "nonsense")
    with pytest.raises(
        RuntimeError, match=r"must return None or a tuple of \(new_args, new_kwargs\), but got nonsense"
    ):
        optimizer.step()


def test_hooks_run_under_a_profiler():
    optimizer, seen = start(), []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    assert "Optimizer.step#ASA.step" in {event.key for event in profile.key_averages()}
    assert seen == ["before", "after"]


def test_subclass_with_its_own_step_has_hooks():
    class Own(semaopt.ASA):
        def step(self, closure=None):
            return super().step(closure)

    optimizer, seen = start(Own), []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    optimizer.step()
    assert seen, "torch wraps the step of a subclass itself"


def test_scheduler_detects_that_a_step_was_taken():
    optimizer = start()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    schedule.step()  # warns if no optimizer step was taken before
    assert optimizer.param_groups[0]["lr"] == 1e-4
