"""A cheaper version of the wrapper that torch puts around ``step``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.autograd.profiler import record_function
from torch.optim import optimizer as module

if TYPE_CHECKING:
    from semaopt.optimizers._base import SemaOptimizer

F = TypeVar("F", bound=Callable[..., Any])


def _call_with_hooks(step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``step`` between its hooks, by the rules of :meth:`torch.optim.Optimizer.profile_hook_step`.

    A step skipped by ``on_nonfinite="skip"`` runs no post-hooks, like a step that GradScaler leaves out.
    """
    self: SemaOptimizer = args[0]
    for hooks in (module._global_optimizer_pre_hooks, self._optimizer_step_pre_hooks):
        for before in hooks.values() if hooks else ():
            changed = before(self, args, kwargs)
            if changed is None:
                continue
            if not (isinstance(changed, tuple) and len(changed) == 2):
                raise RuntimeError(f"{step} must return None or a tuple of (new_args, new_kwargs), but got {changed}.")
            args, kwargs = changed
    guard = self._nonfinite
    skipped = guard.skipped
    out = step(*args, **kwargs)
    if guard.skipped == skipped:
        for called in (self._optimizer_step_post_hooks, module._global_optimizer_post_hooks):
            for after in called.values() if called else ():
                after(self, args, kwargs)
    return out


def grad_if_differentiable(step: F) -> F:
    """Decorate ``step`` so that it runs with gradients if the option ``differentiable`` is on, else without.

    Torch's own decorator breaks the graph of torch.compile twice. Without a break, a compiled step is one graph.
    """

    @functools.wraps(step)
    def wrapper(self: SemaOptimizer, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return step(self, *args, **kwargs)
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(self.defaults["differentiable"])  # the context manager takes a microsecond longer
        try:
            return step(self, *args, **kwargs)
        finally:
            torch._C._set_grad_enabled(before)

    return wrapper  # type: ignore[return-value]


def lean_hooks(step: F) -> F:
    """Decorate ``step`` so that hooks and the profiler's range cost nothing while there are none.

    Torch wraps the step of every optimizer class in :meth:`torch.optim.Optimizer.profile_hook_step`, which opens a
    profiler range in each call. That takes longer than the whole compiled step of a small model. Here the range is
    opened only while a profiler is running.
    """

    @functools.wraps(step)
    def wrapper(self: SemaOptimizer, *args: Any, **kwargs: Any) -> Any:
        if "closure" in kwargs and self._initializes(kwargs["closure"]):
            return None
        if not torch.compiler.is_compiling() and torch._C._autograd._profiler_enabled():
            with record_function(f"Optimizer.step#{type(self).__name__}.step"):
                out = _call_with_hooks(step, (self, *args), kwargs)
                self._optimizer_step_code()  # where the profiler reads the optimizer
                return out
        hooked = (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or module._global_optimizer_pre_hooks
            or module._global_optimizer_post_hooks
        )
        return _call_with_hooks(step, (self, *args), kwargs) if hooked else step(self, *args, **kwargs)

    wrapper.hooked = True  # type: ignore[attr-defined]  # torch's own mark: it does not wrap this again
    return wrapper  # type: ignore[return-value]
