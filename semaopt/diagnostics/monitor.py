"""Measure an optimizer by its step hooks: does it converge, and do the assumptions of the theorems hold?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt._validation import require, to_float, validate_integer
from semaopt.diagnostics import measure
from semaopt.diagnostics.advice import Measurements, advise, describe_best_gamma, describe_noise
from semaopt.diagnostics.gap import duality_gap, groups_by_role
from semaopt.diagnostics.measure import Estimate, Record
from semaopt.diagnostics.shadows import Shadows, validated
from semaopt.estimator import real
from semaopt.iterates import Iterates
from semaopt.schedules.momentum import gamma_of

Rows = list[tuple[dict[str, Any], list[Estimate]]]
"""The averaged groups, each with its parameters and their estimates."""


class _Sampled(Iterates):
    r"""Keep :math:`x_\tau` by the hooks of a monitor, which calls it only in the steps that are due."""

    def _attach(self) -> None:
        self._handles = []

    def before(self, t: int) -> None:
        """Keep x_t if it is drawn, and the start of parameters that have joined."""
        self.t = t
        self._before()

    def after(self) -> float:
        """Keep the estimate that belongs to x_t, and return the next step that is drawn."""
        self._after()
        return self._next


class Monitor:
    r"""Measure every ``every`` steps inside a ``with`` block; other steps only increment a counter.

    Args:
        optimizer: an optimizer of semaopt with averaged groups (ASA, PDSM, PDAda, ...), or torch's Adam, AdamW or SGD
            with momentum, whose ``exp_avg`` or ``momentum_buffer`` is v.
        full_gradient: a closure that returns the loss on all data (autograd takes its gradient and leaves ``.grad``
            alone), or the list of gradients in the order of the optimizer's parameters. For a min-max problem the
            loss is f(x, y), and v is compared with the gradient of f in x at :math:`(x_t, y_t)`, not with the
            gradient of F. For a bilevel problem return F(x), or a list: the hypergradient in x, and None for each
            lower parameter.
        every: measure the steps 0, every, 2 every, ...
        writer: an object with ``add_scalar(tag, value, step)``, such as TensorBoard's SummaryWriter.
        batch_size: number of examples per gradient, the unit of :attr:`noise_scale`.
        gap_steps: for a min-max problem whose ``full_gradient`` returns a loss: the number of steps of
            :func:`semaopt.diagnostics.duality_gap` at each measured step; 0 turns it off.
        seed: seed of x_tau.
        shadow_gammas: gammas for which a moving average is kept next to that of the optimizer, for
            :attr:`best_gamma`; they follow up to 4,096 coordinates. This costs some small operations in every step.

    >>> x = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> optimizer = semaopt.ASA([x], lr=0.1, beta=0.9, scaling="adam")
    >>> with semaopt.diagnostics.Monitor(optimizer, full_gradient=lambda: x.square().sum(), every=1) as m:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         x.square().sum().backward()
    ...         optimizer.step()
    >>> first = m.history[0]
    >>> round(first.c_l, 2), round(first.c_u, 2)    # s = 1/|g| in the first step: 1/4 and 1/2
    (0.25, 0.5)
    >>> m.L, len(m.history)
    (2.0, 3)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        full_gradient: Callable[[], Any] | None = None,
        every: int = 100,
        writer: Any = None,
        *,
        batch_size: int = 1,
        gap_steps: int = 0,
        seed: int = 0,
        shadow_gammas: Sequence[float] = (),
    ) -> None:
        every = validate_integer("every", every, "every=100 costs almost nothing.")
        ok = writer is None or hasattr(writer, "add_scalar")
        remedy = "torch.utils.tensorboard.SummaryWriter has it."
        require(ok, "writer", writer, "must have add_scalar(tag, value, step)", remedy)
        gap_steps = validate_integer("gap_steps", gap_steps, "5 steps are enough to see a trend.", minimum=0)
        ok = gap_steps == 0 or full_gradient is not None
        require(ok, "gap_steps", gap_steps, "it needs full_gradient", "Pass the closure that returns f(x, y).")
        if gap_steps > 0:
            groups_by_role(optimizer)
        if not measure.averaged(optimizer):
            raise TypeError(
                f"{type(optimizer).__name__} has no param group with momentum, so there is no moving average v to "
                "measure. Use an optimizer of semaopt, or torch's Adam, AdamW or SGD with momentum."
            )
        self.optimizer, self.full_gradient, self.every, self.writer = optimizer, full_gradient, every, writer
        self.batch_size = validate_integer("batch_size", batch_size, "It is the number of examples per gradient.")
        self.gap_steps, self.seed = gap_steps, seed
        # SBMA averages the pieces of the hypergradient and leaves the estimate in x.grad: there is no sample.
        self._samples_gradient = getattr(optimizer, "samples_gradient", True)
        self.shadow_gammas = validated(shadow_gammas)
        rule = f"{type(optimizer).__name__} has no sample of the whole gradient to average"
        ok = self._samples_gradient or not self.shadow_gammas
        require(ok, "shadow_gammas", shadow_gammas, rule, "Leave them out.")
        self._shadows: Shadows | None = None
        self.history: list[Record] = []
        self.t = 0
        self._handles: list[Any] = []
        self._iterates: _Sampled | None = None
        self._first, self._due, self._count = 0, 0.0, 0
        self._gradients: dict[int, Tensor] = {}
        self._before_last: tuple[dict[int, Tensor], list[Tensor]] | None = None
        self._points: dict[int, Tensor] = {}
        self._counts: dict[int, float | None] = {}

    def __enter__(self) -> Monitor:
        if self._handles:
            raise RuntimeError("This monitor is already active. Leave its with block first, or create another monitor.")
        self._iterates = _Sampled(self.optimizer, keep=("sampled",), seed=self.seed)
        self._first = self._due = self.t
        self._handles = [
            self.optimizer.register_step_pre_hook(self._before),
            self.optimizer.register_step_post_hook(self._after),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, which keeps the history; an active monitor cannot be copied."""
        if self._handles:
            raise TypeError(
                "An active monitor cannot be copied: it measures the parameters of its own optimizer. Copy it after "
                "its with block, and create another monitor for the copied optimizer."
            )
        return self.__dict__

    # The hooks run in every step. Most steps are not due: they only look for new parameters and increment a counter.
    def _before(self, *_: Any) -> None:
        count = 0
        for group in self.optimizer.param_groups:
            count += len(group["params"])
        if self.t >= self._due or count != self._count:
            self._count = count
            self._prepare()

    def _after(self, *_: Any) -> None:
        if self.t >= self._due:
            self._finish()
        self.t += 1

    def _prepare(self) -> None:
        """Keep what is lost in the step."""
        if self._iterates is not None:
            self._iterates.before(self.t - self._first)
        if self.t % self.every != 0:
            return
        if self.full_gradient is not None:
            self._gradients = measure.gradients(self.optimizer, self.full_gradient)
        groups = measure.averaged(self.optimizer)
        # x_t is needed after the step for the secant, and for a weight decay that is part of the sample.
        self._points = {
            id(x): x.detach().clone()
            for group in groups
            if self.full_gradient is not None or measure.coupled_decay(self.optimizer, group) != 0
            for x in group["params"]
        }
        self._counts = {
            id(x): measure.step_count(self.optimizer.state[x])
            for group in groups
            for x in group["params"]
            if self.optimizer.state.get(x)
        }

    def _finish(self) -> None:
        """Measure the step, and decide which step is due next."""
        drawn = math.inf if self._iterates is None else self._first + self._iterates.after()
        if self.shadow_gammas:
            self._follow()
        if self.t % self.every == 0:
            with torch.no_grad():
                record = self._measure()
            self.history.append(record)
            self._write(record)
        measured = (self.t // self.every + 1) * self.every
        self._due = self.t + 1 if self.shadow_gammas else min(drawn, measured)

    @torch.no_grad()
    def _follow(self) -> None:
        """Update the shadow averages, and measure their errors in a tenth of the steps or with the full gradient."""
        if self._shadows is None:
            xs = [x for group in measure.averaged(self.optimizer) for x in group["params"] if x.grad is not None]
            self._shadows = Shadows(self.shadow_gammas, xs)
        exact = self.full_gradient is not None
        self._shadows.add(predict=not exact and self.t % max(1, self.every // 10) == 0)
        if exact and self.t % self.every == 0:
            self._shadows.compare(lambda x: self._gradients.get(id(x)))

    def _stepped(self, x: Tensor) -> bool:
        """Return whether the parameter took part in the step: its counter advanced or, without one, x has a grad."""
        now = measure.step_count(self.optimizer.state.get(x, {}))
        return x.grad is not None if now is None else now != self._counts.get(id(x))

    def _measure(self) -> Record:
        rows = [(group, measure.estimates(self.optimizer, group)) for group in measure.averaged(self.optimizer)]
        found = [measure.scaling_range(self.optimizer, group, self._stepped, known) for group, known in rows]
        ranges = [bounds for bounds in found if bounds is not None]
        c_l, median, c_u = (
            (min(r[0] for r in ranges), sorted(r[1] for r in ranges)[len(ranges) // 2], max(r[2] for r in ranges))
            if ranges
            else (None, None, None)
        )
        errors = None if self._shadows is None else self._shadows.take_errors()
        return Record(
            self.t,
            c_l,
            median,
            c_u,
            **(self._without_full_gradient(rows) if self.full_gradient is None else self._with_full_gradient(rows)),
            gap=self._gap() if self.gap_steps else None,
            shadow_errors=errors,
            best_gamma=self._best(errors),
        )

    def _with_full_gradient(self, rows: Rows) -> dict[str, float | None]:
        """Compare v and the sample with grad F(x_t)."""
        gradient, errors, noises = [], [], []
        for group, known in rows:
            for x, _, v in known:
                full = self._oracle(group, x, self._gradients.get(id(x), torch.zeros_like(x))).to(v.dtype)
                gradient.append(full)
                errors.append(v - full)
                sample = self._sample(group, x, v)
                if sample is not None:
                    noises.append(sample - full)
        norm2, noise = measure.squared_norm(gradient), measure.squared_norm(noises) if noises else None
        return {
            "gradient_norm": norm2**0.5,
            "tracking_error": measure.squared_norm(errors),
            "noise": noise,
            "signal": norm2,
            "variance": noise,
            "secant": self._secant(gradient),
        }

    def _without_full_gradient(self, rows: Rows) -> dict[str, float | None]:
        r"""Compare the sample O with v, an average of n samples.

        :math:`E|O|^2 = |\nabla F|^2 + \sigma^2` and :math:`E|v|^2 = |\nabla F|^2 + \sigma^2/n` while x moves little
        over n steps. The two equations determine :math:`|\nabla F|^2` and :math:`\sigma^2`. This is the estimator of
        McCandlish et al. (2018), appendix A.1, with v in place of the gradient of a larger batch.
        """
        taken, vs, samples = [], [], []
        for group, known in rows:
            for x, m, v in known:
                sample = self._sample(group, x, v)
                if sample is not None:
                    taken.append((group, x, m))
                    vs.append(v)
                    samples.append(sample)
        apart = [a - b for a, b in zip(samples, vs, strict=True)]
        norms = measure.squared_norms([*samples, *vs, *apart])
        count = len(taken)
        parts = norms[:count], norms[count : 2 * count], norms[2 * count :]
        noise = signal = variance = None
        for (group, x, m), one, many, innovation in zip(taken, *parts, strict=True):
            factor, n = measure.weights(group, m)
            if factor is not None and id(x) in self._counts:
                noise = (noise or 0.0) + factor * factor * innovation
            if n > 1:
                signal = (signal or 0.0) + (n * many - one) / (n - 1)
                variance = (variance or 0.0) + (one - many) * n / (n - 1)
        return {"noise": noise, "signal": signal, "variance": variance}

    def _oracle(self, group: dict[str, Any], x: Tensor, g: Tensor) -> Tensor:
        return real(measure.oracle(self.optimizer, group, self._points.get(id(x), x), g))

    def _sample(self, group: dict[str, Any], x: Tensor, v: Tensor) -> Tensor | None:
        """Return the sample O(x_t) of the gradient in ``x``, or None if the step had none."""
        has_sample = self._samples_gradient and x.grad is not None
        return self._oracle(group, x, x.grad).to(v.dtype) if has_sample and x.grad is not None else None

    def _secant(self, gradient: list[Tensor]) -> float | None:
        now, before = (self._points, gradient), self._before_last
        self._before_last = now
        if before is None or len(before[1]) != len(gradient):
            return None
        moved = measure.squared_norm(real(x - before[0][k]) for k, x in now[0].items() if k in before[0]) ** 0.5
        turned = measure.squared_norm(a - b for a, b in zip(gradient, before[1], strict=True)) ** 0.5
        return turned / moved if moved > 0 else None

    def _gap(self) -> float:
        def loss() -> Tensor:
            value = self.full_gradient() if self.full_gradient is not None else None
            if not isinstance(value, Tensor):
                raise TypeError("gap_steps needs a full_gradient that returns the loss f(x, y), not gradients.")
            return value

        return duality_gap(self.optimizer, loss, self.gap_steps)

    def _write(self, record: Record) -> None:
        if self.writer is None:
            return
        scalars = asdict(record)
        for gamma, error in zip(self.shadow_gammas, scalars.pop("shadow_errors") or (), strict=False):
            scalars[f"shadow_error/gamma={gamma:g}"] = error
        for name, value in scalars.items():
            if value is not None and name != "step":
                self.writer.add_scalar(f"semaopt/{name}", value, record.step)

    def _best(self, errors: Sequence[float] | None) -> float | None:
        """Return the gamma with the smallest error."""
        pairs = [pair for pair in zip(errors or (), self.shadow_gammas, strict=False) if math.isfinite(pair[0])]
        return min(pairs)[1] if pairs else None

    def _known(self, name: str) -> list[float]:
        return [value for record in self.history if (value := getattr(record, name)) is not None]

    def _last(self, name: str) -> float | None:
        known = self._known(name)
        return known[-1] if known else None

    def _mean(self, name: str) -> float | None:
        known = self._known(name)
        return sum(known) / len(known) if known else None

    @property
    def scaling_bounds(self) -> tuple[float, float] | None:
        """(c_l, c_u), the smallest and the largest s over all measured steps; None before the first."""
        low, high = self._known("c_l"), self._known("c_u")
        return (min(low), max(high)) if low and high else None

    @property
    def gradient_norm(self) -> float | None:
        """|grad F(x_t)| at the last measured step; None without a full gradient."""
        return self._last("gradient_norm")

    @property
    def tracking_error(self) -> float | None:
        """|v_{t+1} - grad F(x_t)|^2 at the last measured step; None without a full gradient."""
        return self._last("tracking_error")

    @property
    def average_gradient(self) -> float | None:
        """The average of |grad F(x_t)|^2 over the measured steps, which ``plan.bound(T)`` bounds."""
        known = self._known("gradient_norm")
        return sum(value * value for value in known) / len(known) if known else None  # inf, where ** raises

    @property
    def average_tracking(self) -> float | None:
        """The average of |v_{t+1} - grad F(x_t)|^2 over the measured steps, which ``plan.tracking(T)`` bounds."""
        return self._mean("tracking_error")

    @property
    def L(self) -> float | None:  # noqa: N802 - the letter of the theorems
        """The largest secant of grad F along the path, a lower bound of its Lipschitz constant."""
        known = self._known("secant")
        return max(known) if known else None

    @property
    def sigma2(self) -> float | None:
        """The average of |O - grad F|^2 or, without a full gradient, of |O - v_t|^2.

        The latter includes the tracking error. None for SBMA. Skipped steps are not counted.
        """
        return self._mean("noise")

    @property
    def noise_scale(self) -> float | None:
        r"""The simple noise scale :math:`tr(\Sigma)/|\nabla F|^2` of McCandlish et al. (2018), in examples.

        It estimates the critical batch size: below it larger batches save steps almost in proportion, above it they
        hardly help. Numerator and denominator are averaged over the measured steps before they are divided. They come
        from ``full_gradient``, or else from the sample and its moving average (:attr:`Record.signal`,
        :attr:`Record.variance`). With the default ``batch_size=1`` the unit is the batch. inf if no signal was found.
        """
        signal, variance = self._mean("signal"), self._mean("variance")
        if signal is None or variance is None:
            return None
        return self.batch_size * max(variance, 0.0) / signal if signal > 0 else math.inf

    @property
    def shadow_errors(self) -> dict[float, float]:
        r"""The mean error of each gamma of ``shadow_gammas`` over the measured steps; empty if none was measured.

        It is :math:`|v - \nabla F|^2` on the sampled coordinates. Without ``full_gradient`` it is the error of
        predicting the next gradient, which is larger by :math:`\sigma^2` for every gamma.
        """
        known = [record.shadow_errors for record in self.history if record.shadow_errors is not None]
        each = zip(*known, strict=True)
        return {gamma: sum(errors) / len(known) for gamma, errors in zip(self.shadow_gammas, each, strict=False)}

    @property
    def best_gamma(self) -> float | None:
        """The gamma of ``shadow_gammas`` whose average had the smallest error over the measured steps.

        A diagnostic, not a controller: in small studies a gamma chosen this way did not lower the loss.
        """
        return self._best(tuple(self.shadow_errors.values()))

    @property
    def gap(self) -> float | None:
        """The estimate of the duality gap at the last measured step; None without ``gap_steps``."""
        return self._last("gap")

    def sampled(self) -> list[Tensor]:
        """Return x_tau, tau uniform on the steps of the last ``with`` block, in the order of the parameters."""
        if self._iterates is None:
            raise RuntimeError("The monitor was never active. Take steps inside `with Monitor(...)`.")
        return self._iterates.sampled()

    @property
    def warnings(self) -> list[str]:
        """Problems that the measurements show, one sentence each, with a remedy."""
        groups = measure.averaged(self.optimizer)
        bounds, medians = self.scaling_bounds, self._known("median")
        unread = tuple({_scaling_name(self.optimizer, group) for group in groups if not measure.is_readable(group)})
        return advise(
            Measurements(
                lr=max(to_float(group["lr"]) for group in groups),
                gamma=min(gamma for group in groups if (gamma := gamma_of(group)) is not None),
                c_l=bounds[0] if bounds else None,
                median=medians[-1] if medians else None,
                c_u=bounds[1] if bounds else None,
                L=self.L,
                sigma2=self.sigma2,
                gradient=self.average_gradient,
                tracking=self.average_tracking,
                unread=unread,
                sampled=self._samples_gradient,
            )
        )

    @property
    def verdicts(self) -> list[str]:
        """One line per measured property: stationarity, tracking, noise, best gamma in hindsight and scaling."""
        lines = []
        norms, errors, bounds = self._known("gradient_norm"), self._known("tracking_error"), self.scaling_bounds
        if len(norms) > 1:
            trend = "falls" if norms[-1] < norms[0] else "does not fall"
            lines.append(f"Stationarity: |grad F| {trend}, from {norms[0]:.2g} to {norms[-1]:.2g}.")
        if norms and errors:
            share = errors[-1] / norms[-1] ** 2 if norms[-1] > 0 else math.inf
            state = "follows" if share < 1 else "does not follow"
            lines.append(f"Tracking: v {state} the gradient, |v - grad F|^2 is {share:.2g} of |grad F|^2.")
        noise = describe_noise(self.noise_scale, self.batch_size)
        if noise is not None:
            lines.append(noise)
        gammas = [gamma for group in measure.averaged(self.optimizer) if (gamma := gamma_of(group)) is not None]
        hindsight = describe_best_gamma(self.best_gamma, self.shadow_gammas, min(gammas))
        if hindsight is not None:
            lines.append(hindsight)
        if bounds is not None:
            lines.append(f"Scaling: s lies in [{bounds[0]:.2g}, {bounds[1]:.2g}].")
        return lines


def _scaling_name(optimizer: Optimizer, group: dict[str, Any]) -> str:
    return type(group.get("scaling", optimizer)).__name__
