"""Torch's wrapper around a step, entered only when somebody listens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as module

F = TypeVar("F", bound=Callable[..., Any])


def quiet(step: F) -> F:
    """Decorate ``step`` so that the profiler's range and the hooks cost nothing while there are none.

    Torch wraps the step of every optimizer class in :meth:`Optimizer.profile_hook_step`, which opens a range for the
    profiler in each call. That takes longer than the whole compiled step of a small model. Here the same wrapper runs
    whenever a profiler is on or a hook is registered.
    """
    heard = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def wrapper(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        listened = (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or module._global_optimizer_pre_hooks
            or module._global_optimizer_post_hooks
            or torch._C._autograd._profiler_enabled()
        )
        return (heard if listened else step)(self, *args, **kwargs)

    wrapper.hooked = True  # type: ignore[attr-defined]  # torch's own mark: it does not wrap this again
    return wrapper  # type: ignore[return-value]
