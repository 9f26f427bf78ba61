"""The double loop of ``alg:adam_PL``: stages of ASA, each started from the output of the previous one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from semaopt._validation import is_real, require, to_float, validate_integer_field, validate_rate
from semaopt.estimator import scalar
from semaopt.iterates import Iterates
from semaopt.schedules.momentum import set_gamma


@dataclass(frozen=True)
class Stage:
    """Step size ``eta``, ``gamma`` = 1 - beta and length ``T``: as in the box, a stage takes the steps t = 0..T.

    ``dual_eta`` is the step size of the dual groups of a min-max optimizer.
    """

    eta: float
    gamma: float
    T: int
    dual_eta: float | None = None

    def __post_init__(self) -> None:
        validate_rate("eta", self.eta, "It is the step size of the stage.")
        if self.dual_eta is not None:
            validate_rate("dual_eta", self.dual_eta, "It is the step size of the dual variables in the stage.")
        ok = is_real(self.gamma) and 0 < to_float(self.gamma) <= 1
        require(ok, "gamma", self.gamma, "must lie in (0, 1]", "It is 1 - beta.")
        validate_integer_field(self, "T", "The stage takes the steps 0..T.", minimum=0)
        for name in ("eta", "gamma", "dual_eta"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, to_float(getattr(self, name)))


class Stages:
    r"""Run an optimizer in stages (``alg:adam_PL``); you write the loop over the data.

    .. math:: x_{k+1}, v_{k+1} = ASA(x_k, v_k, \eta_k, \beta_k, T_k)

    After the last step of a stage the parameters are set to the output of the stage, and the moving average to the
    estimate that belongs to it. u is kept: the theorems leave h_t free, and restarting u from one sample next to a
    tracked v could make :math:`v/\sqrt{u}` arbitrarily large.

    With :class:`semaopt.PDSM` or :class:`semaopt.PDAda` these are the double-loop methods for min-max problems whose
    :math:`F(x) = \max_y f(x, y)` is mu-PL, an extension that the paper calls straightforward and omits. A stage then
    returns :math:`x_\tau, v_{\tau+1}, y_\tau`.

    Other hooks of the optimizer, such as :class:`semaopt.Iterates` and :class:`semaopt.diagnostics.Monitor`, see the
    parameters before a stage replaces them, in whichever order they were attached. Skipped steps are not counted.

    Args:
        optimizer: an optimizer of semaopt. Every group gets the eta and gamma of the stage, a dual group its dual_eta.
        stages: :class:`Stage` objects, or objects with ``.eta``, ``.gamma``, ``.T`` (and ``.dual_eta``).
        output: ``"sampled"`` (as in the box: :math:`x_\tau, v_{\tau+1}`), ``"average"`` or ``"last"``.
        seed: seed of tau.

    >>> x = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = semaopt.ASA([x], scaling="shb")
    >>> stages = semaopt.Stages(optimizer, [semaopt.Stage(0.5, 0.5, T=4), semaopt.Stage(0.25, 0.25, T=9)])
    >>> while not stages.done:
    ...     x.grad = x.detach().clone()
    ...     optimizer.step()
    >>> stages.k, stages.taken
    (2, 15)
    """

    def __init__(
        self, optimizer: Optimizer, stages: Sequence[Stage] | Sequence[Any], output: str = "sampled", seed: int = 0
    ) -> None:
        outputs = ("sampled", "average", "last")
        remedy = "The box returns 'sampled'."
        require(output in outputs, "output", output, f"must be one of {', '.join(outputs)}", remedy)
        require(len(stages) > 0, "stages", stages, "must hold at least one stage", "Pass [semaopt.Stage(...), ...].")
        for k, group in enumerate(optimizer.param_groups):
            if "beta" not in group:
                raise ValueError(
                    f"{type(optimizer).__name__}: param group {k} has no 'beta'. Stages need an optimizer of semaopt; "
                    "semaopt.ASA covers Adam and SGD with momentum."
                )
        self.optimizer, self.output = optimizer, output
        self.stages = [Stage(s.eta, s.gamma, s.T, getattr(s, "dual_eta", None)) for s in stages]
        if any(map(_is_follower, optimizer.param_groups)):
            for k, stage in enumerate(self.stages):
                require(
                    stage.dual_eta is not None,
                    f"stages[{k}].dual_eta",
                    None,
                    "the dual groups need a step size",
                    "Pass Stage(..., dual_eta=0.1).",
                )
        self.k = 0
        self.taken = 0
        self.iterates = Iterates(optimizer, keep=() if output == "last" else (output,), seed=seed)
        self.iterates.remove()
        self._attach()
        self._set_rates()

    def _attach(self) -> None:
        self._before_step = self.optimizer.register_step_pre_hook(self._before)  # first: it may refuse the step
        self.iterates._attach()
        self._after_step = self.optimizer.register_step_post_hook(self._after)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes; instead of the hooks, whether they are attached."""
        attached = self._before_step.id in self.optimizer._optimizer_step_pre_hooks
        return {**self.__dict__, "_before_step": attached, "_after_step": attached}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle, and attach it to the copied optimizer, which torch copies without hooks."""
        self.__dict__.update(state)
        self.iterates.remove()
        self._attach()
        if not state["_before_step"]:
            self.remove()

    @property
    def done(self) -> bool:
        """Whether all stages have ended; the parameters then hold x_{K+1}."""
        return self.k == len(self.stages)

    def _before(self, *_: Any) -> None:
        if self.done:
            raise RuntimeError(
                f"All {len(self.stages)} stages have ended after {self.taken} steps; the parameters hold the result. "
                "Stop when .done is True, or call .remove() to continue without stages."
            )
        # Run after all other hooks, because they measure the iterate and the estimate of this step.
        hooks = self.optimizer._optimizer_step_post_hooks
        hooks[self._after_step.id] = hooks.pop(self._after_step.id)

    def _after(self, *_: Any) -> None:
        self.taken += 1
        if self.iterates.t <= self.stages[self.k].T:
            return
        self.iterates.place(self.output)
        if self.iterates.tracked:
            self._place_estimate()
        self.iterates.reset()
        self.k += 1
        if not self.done:
            self._set_rates()

    @torch.no_grad()
    def _place_estimate(self) -> None:
        pairs = ((group, x) for group in self.optimizer.param_groups for x in group["params"])
        for (group, x), v in zip(pairs, self.iterates.estimate(), strict=True):
            state = self.optimizer.state.get(x, {})
            if "v" not in state:
                continue
            # Under bias correction the estimate is v over the weight of its samples; the weight stays.
            corrected = group.get("bias_correction", False)
            state["v"].copy_(v * scalar(state["v_weight"], v) if corrected else v)

    def _set_rates(self) -> None:
        stage = self.stages[self.k]
        for group in self.optimizer.param_groups:
            eta = stage.eta if stage.dual_eta is None or not _is_follower(group) else stage.dual_eta
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(eta)
            else:
                group["lr"] = eta
            if group["beta"] is not None:
                set_gamma(group, stage.gamma)

    def remove(self) -> None:
        """Remove all hooks from the optimizer."""
        self._before_step.remove()
        self._after_step.remove()
        self.iterates.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return the current position; the rates are part of the optimizer's state dict."""
        return {"k": self.k, "taken": self.taken, "iterates": self.iterates.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the result of :meth:`state_dict`, with the same stages."""
        k = state_dict["k"]
        require(0 <= k <= len(self.stages), "k", k, f"must be at most {len(self.stages)}", "Pass the same stages.")
        self.iterates.load_state_dict(state_dict["iterates"])
        self.k, self.taken = k, state_dict["taken"]
        if not self.done:
            self._set_rates()


def _is_follower(group: dict[str, Any]) -> bool:
    """Return whether the group holds variables y that follow x: a maximizer or a minimizer given x."""
    return group.get("role") in ("dual", "lower")
