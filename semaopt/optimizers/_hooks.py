"""Torch's wrapper around a step, entered only when somebody listens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as module

F = TypeVar("F", bound=Callable[..., Any])


def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
    """``step`` between its hooks, in the order and by the rules of :meth:`Optimizer.profile_hook_step`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        self: Optimizer = args[0]
        for before in chain(module._global_optimizer_pre_hooks.values(), self._optimizer_step_pre_hooks.values()):
            changed = before(self, args, kwargs)
            if changed is None:
                continue
            if not (isinstance(changed, tuple) and len(changed) == 2):
                raise RuntimeError(f"{step} must return None or a tuple of (new_args, new_kwargs), but got {changed}.")
            args, kwargs = changed
        out = step(*args, **kwargs)
        self._optimizer_step_code()
        for after in chain(self._optimizer_step_post_hooks.values(), module._global_optimizer_post_hooks.values()):
            after(self, args, kwargs)
        return out

    return wrapper


def quiet(step: F) -> F:
    """Decorate ``step`` so that the profiler's range and the hooks cost nothing while there are none.

    Torch wraps the step of every optimizer class in :meth:`Optimizer.profile_hook_step`, which opens a range for the
    profiler in each call. That takes longer than the whole compiled step of a small model. Here the same wrapper runs
    whenever a profiler is on; hooks alone run without the range, so that a monitor costs its hooks and no more.
    """
    profiled, heard = Optimizer.profile_hook_step(step), hooked(step)

    @functools.wraps(step)
    def wrapper(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if torch._C._autograd._profiler_enabled():
            return profiled(self, *args, **kwargs)
        listened = (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or module._global_optimizer_pre_hooks
            or module._global_optimizer_post_hooks
        )
        return (heard if listened else step)(self, *args, **kwargs)

    wrapper.hooked = True  # type: ignore[attr-defined]  # torch's own mark: it does not wrap this again
    return wrapper  # type: ignore[return-value]
