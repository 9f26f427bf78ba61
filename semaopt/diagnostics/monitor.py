"""A monitor on an optimizer's step hooks: is it converging, and do the assumptions of the theorems hold?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt._validation import require, to_float, validate_integer
from semaopt.diagnostics import measure
from semaopt.diagnostics.advice import Seen, advise
from semaopt.diagnostics.gap import check_sides, duality_gap
from semaopt.diagnostics.measure import Record
from semaopt.estimator import real
from semaopt.iterates import Iterates
from semaopt.optimizers.sbma import SBMA


class Monitor:
    r"""Measures every ``every`` steps, by hooks; between them it costs a counter, and outside of ``with`` nothing.

    Args:
        optimizer: one of semaopt with averaged groups (ASA, PDSM, PDAda, ...).
        full_gradient: a closure that returns the loss on all data (its gradient is taken by autograd, ``.grad`` is not
            touched), or the list of gradients in the order of the optimizer's parameters. Of a min-max problem it is
            f(x, y), and its gradient in x at :math:`(x_t, y_t)`, not that of F, is what is measured against. Of a
            bilevel problem it is F(x), or a list: the hypergradient in x, and None for each lower parameter.
        every: measure the steps 0, every, 2 every, ...
        writer: anything with ``add_scalar(tag, value, step)``, such as TensorBoard's SummaryWriter.
        gap_steps: of a min-max problem, with a ``full_gradient`` that returns a loss: so many steps of
            :func:`semaopt.diagnostics.duality_gap` are taken at each measured step; 0 turns it off.
        seed: of x_tau.

    >>> x = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> optimizer = semaopt.ASA([x], lr=0.1, beta=0.9, scaling="adam")
    >>> with semaopt.diagnostics.Monitor(optimizer, full_gradient=lambda: x.square().sum(), every=1) as m:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         x.square().sum().backward()
    ...         optimizer.step()
    >>> [round(s, 2) for s in m.scaling_bounds]    # s = 1/|g| in the first step: 1/4 and 1/2
    [0.25, 0.5]
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
        gap_steps: int = 0,
        seed: int = 0,
    ) -> None:
        every = validate_integer("every", every, "100 costs next to nothing")
        ok = writer is None or hasattr(writer, "add_scalar")
        require(
            ok, "writer", writer, "needs add_scalar(tag, value, step)", "torch.utils.tensorboard.SummaryWriter has it"
        )
        gap_steps = validate_integer("gap_steps", gap_steps, "5 is enough to see a trend", minimum=0)
        ok = gap_steps == 0 or full_gradient is not None
        require(ok, "gap_steps", gap_steps, "needs full_gradient", "pass the closure that returns f(x, y)")
        if gap_steps > 0:
            check_sides(optimizer)
        if not measure.averaged(optimizer):
            raise TypeError(
                f"{type(optimizer).__name__} has no param group with a scaling and a beta: there is no s and no v to "
                "measure; use an optimizer of semaopt with momentum (semaopt.ASA covers Adam and SGD)"
            )
        self.optimizer, self.full_gradient, self.every, self.writer = optimizer, full_gradient, every, writer
        self.gap_steps, self.seed = gap_steps, seed
        # SBMA averages the pieces of the hypergradient: what it leaves in x.grad is no sample but the estimate.
        self._sampled = not isinstance(optimizer, SBMA)
        self.history: list[Record] = []
        self.t = 0
        self._handles: list[Any] = []
        self._iterates: Iterates | None = None
        self._gradients: dict[int, Tensor] = {}
        self._before_last: tuple[dict[int, Tensor], list[Tensor]] | None = None
        self._points: dict[int, Tensor] = {}
        self._skipped = 0

    def __enter__(self) -> Monitor:
        if self._handles:
            raise RuntimeError("this monitor is already on; make another one, or leave the first with block")
        self._iterates = Iterates(self.optimizer, keep=("sampled",), seed=self.seed)
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
        if self._iterates is not None:
            self._iterates.remove()

    def _before(self, *_: Any) -> None:
        if self.t % self.every == 0:
            self._skipped = getattr(self.optimizer, "skipped_steps", 0)
            if self.full_gradient is not None:
                self._gradients = measure.gradients(self.optimizer, self.full_gradient)
            # Where x will have moved, and is needed: for the secant, and for a weight decay that is part of the sample.
            self._points = {
                id(x): x.detach().clone()
                for group in measure.averaged(self.optimizer)
                if self.full_gradient is not None or measure.coupled_decay(group) != 0
                for x in group["params"]
            }

    def _after(self, *_: Any) -> None:
        if self.t % self.every == 0:
            with torch.no_grad():
                record = self._measure()
            self.history.append(record)
            self._write(record)
        self.t += 1

    def _measure(self) -> Record:
        every = [measure.scaling_range(self.optimizer, group) for group in measure.averaged(self.optimizer)]
        ranges = [found for found in every if found is not None]
        c_l, median, c_u = (
            (min(r[0] for r in ranges), sorted(r[1] for r in ranges)[len(ranges) // 2], max(r[2] for r in ranges))
            if ranges
            else (None, None, None)
        )
        exact = self.full_gradient is not None
        gradient, errors, noises = self._vectors(exact)
        return Record(
            self.t,
            c_l,
            median,
            c_u,
            measure.squared_norm(gradient) ** 0.5 if exact else None,
            measure.squared_norm(errors) if exact else None,
            measure.squared_norm(noises) if noises else None,
            self._secant(gradient) if exact else None,
            self._gap() if self.gap_steps else None,
        )

    def _vectors(self, exact: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Grad F(x_t), v_{t+1} - grad F(x_t), and the noise of the sample, parameter by parameter."""
        gradient, errors, noises = [], [], []
        skipped = getattr(self.optimizer, "skipped_steps", 0) > self._skipped  # v has not taken this sample
        for group in measure.averaged(self.optimizer):
            for x, m, v in measure.estimates(self.optimizer, group):
                at = self._points.get(id(x), x)
                sample = None if x.grad is None else real(measure.oracle(group, at, x.grad)).to(v.dtype)
                if exact:
                    given = self._gradients.get(id(x), torch.zeros_like(x))
                    full = real(measure.oracle(group, at, given)).to(v.dtype)
                    gradient.append(full)
                    errors.append(v - full)
                    noise = None if sample is None else sample - full
                else:
                    noise = None if sample is None else measure.innovation(group, m, sample, v)
                if noise is not None and self._sampled and not skipped:
                    noises.append(noise)
        return gradient, errors, noises

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
                raise TypeError("gap_steps needs a full_gradient that returns the loss f(x, y), not gradients")
            return value

        return duality_gap(self.optimizer, loss, self.gap_steps)

    def _write(self, record: Record) -> None:
        if self.writer is None:
            return
        for name, value in asdict(record).items():
            if value is not None and name != "step":
                self.writer.add_scalar(f"semaopt/{name}", value, record.step)

    def _known(self, name: str) -> list[float]:
        return [value for record in self.history if (value := getattr(record, name)) is not None]

    def _last(self, name: str) -> float | None:
        known = self._known(name)
        return known[-1] if known else None

    @property
    def scaling_bounds(self) -> tuple[float, float] | None:
        """(c_l, c_u): the smallest and the largest s in all measured steps; None before the first."""
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
        """The average of |grad F(x_t)|^2 over the measured steps, what ``plan.bound(T)`` bounds."""
        known = self._known("gradient_norm")
        return sum(value * value for value in known) / len(known) if known else None  # inf, where ** raises

    @property
    def average_tracking(self) -> float | None:
        """The average of |v_{t+1} - grad F(x_t)|^2 over the measured steps, what ``plan.tracking(T)`` bounds."""
        known = self._known("tracking_error")
        return sum(known) / len(known) if known else None

    @property
    def L(self) -> float | None:  # noqa: N802 - the theorems' letter
        """The largest secant of grad F along the path: at most its Lipschitz constant."""
        known = self._known("secant")
        return max(known) if known else None

    @property
    def sigma2(self) -> float | None:
        """The average of |O - grad F|^2; without a full gradient of |O - v_t|^2, which adds the tracking error to
        it. None for SBMA; samples that ``on_nonfinite`` left out do not count.
        """
        known = self._known("noise")
        return sum(known) / len(known) if known else None

    @property
    def gap(self) -> float | None:
        """The proxy of the duality gap at the last measured step; None without ``gap_steps``."""
        return self._last("gap")

    def sampled(self) -> list[Tensor]:
        """x_tau with tau uniform on the steps of the last ``with``, in the order of the optimizer's parameters."""
        if self._iterates is None:
            raise RuntimeError("the monitor was never on; take steps within `with Monitor(...)`")
        return self._iterates.sampled()

    @property
    def warnings(self) -> list[str]:
        """What the numbers mean, in words, with what to do about it."""
        groups = measure.averaged(self.optimizer)
        bounds, medians = self.scaling_bounds, self._known("median")
        unread = tuple({type(g["scaling"]).__name__ for g in groups if not hasattr(g["scaling"], "read")})
        return advise(
            Seen(
                lr=max(to_float(group["lr"]) for group in groups),
                gamma=min(1 - to_float(group["beta"]) for group in groups),
                c_l=bounds[0] if bounds else None,
                median=medians[-1] if medians else None,
                c_u=bounds[1] if bounds else None,
                L=self.L,
                sigma2=self.sigma2,
                gradient=self.average_gradient,
                tracking=self.average_tracking,
                unread=unread,
                sampled=self._sampled,
            )
        )
