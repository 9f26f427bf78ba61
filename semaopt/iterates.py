r"""What an algorithm returns: the last iterate, the average, or x_tau with tau uniform on 0..T.

The theorems bound the gradient at :math:`x_\tau` (``alg:adam``, line 7). People use the last iterate or the average.
:class:`Iterates` keeps all three in O(1) memory while an optimizer runs, without knowing T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt._validation import require
from semaopt.estimator import estimate, real, state_dtype, track_


class Iterates:
    r"""Follows an optimizer by hooks and keeps :math:`x_\tau`, the estimate that belongs to it, and the average.

    After steps t = 0..T, ``sampled()`` is :math:`x_\tau` with tau uniform on 0..T: reservoir sampling replaces the
    kept iterate by :math:`x_t` with probability 1/(t+1), and draws in advance when it does so next. ``average()`` is
    the mean of :math:`x_0, \dots, x_T`. Parameters that join by ``add_param_group`` count as having stood still before.

    Args:
        optimizer: any torch optimizer; one whose state has a moving average v also gives ``estimate()``.
        keep: ``"sampled"``, ``"average"`` or both; each costs one copy of the parameters.
        seed: of the reservoir. Ranks that train one model together must share it.

    >>> x = torch.nn.Parameter(torch.tensor([4.0]))
    >>> optimizer = semaopt.ASA([x], lr=0.5, beta=0.0, scaling="shb")
    >>> iterates = semaopt.Iterates(optimizer)
    >>> for _ in range(2):                      # x: 4 -> 2 -> 1
    ...     x.grad = x.detach().clone()
    ...     optimizer.step()
    >>> iterates.average(), iterates.last()
    ([tensor([3.])], [tensor([1.])])
    >>> with iterates.use("average"):
    ...     print(x.data)
    tensor([3.])
    """

    def __init__(self, optimizer: Optimizer, keep: Sequence[str] = ("sampled", "average"), seed: int = 0) -> None:
        ok = not isinstance(keep, str) and set(keep) <= {"sampled", "average"}
        require(ok, "keep", keep, "must name 'sampled', 'average' or both", "last() costs nothing and is always there")
        self.optimizer = optimizer
        self.keep = tuple(keep)
        self._averages = "average" in keep
        self.generator = torch.Generator().manual_seed(seed)
        self.reset()
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def reset(self) -> None:
        """Forget what was kept: the next step is t = 0."""
        self.t = 0
        self._begun = -1
        self.tau = -1
        self._next: float = 0 if "sampled" in self.keep else math.inf
        self._kept: dict[str, list[Tensor]] = {}
        self._groups = len(self.optimizer.param_groups)

    def remove(self) -> None:
        """Take the hooks off; what was kept stays readable."""
        for handle in self._handles:
            handle.remove()

    def _params(self) -> list[Tensor]:
        return [x for group in self.optimizer.param_groups for x in group["params"]]

    def _v(self, group: dict[str, Any], x: Tensor) -> Tensor | None:
        """The estimate v_{t+1} of the gradient in x as the step used it; None where nothing is averaged."""
        state = self.optimizer.state.get(x, {})
        if "v" not in state:
            return None
        return estimate(state, "v", corrected=group.get("bias_correction", False))

    # The hooks run in every step: they decide first, and enter no_grad only if there is something to keep.
    def _before(self, *_: Any) -> None:
        if len(self.optimizer.param_groups) != self._groups:
            self._join()
        if self.t > self._begun:  # else this x_t is kept already: the step that it began raised an error
            self._begun = self.t
            if self.t >= self._next or self._averages:
                self._keep()

    def _after(self, *_: Any) -> None:
        if self.tau == self.t:
            self._keep_estimate()
        self.t += 1

    @torch.no_grad()
    def _keep(self) -> None:
        xs = self._params()
        if "sampled" in self.keep and self.t >= self._next:
            self.tau = self.t
            self._copy("sampled", xs)
            # x_s replaces x_t first if none of t+1..s-1 did, which has the probability (t+1)/s: s = floor((t+1)/U).
            chance = torch.rand((), generator=self.generator, dtype=torch.float64).item()
            self._next = int((self.t + 1) / max(chance, 1e-300))
        if self._averages:
            if self.t == 0:
                self._kept["average"] = [x.detach().to(state_dtype(x), copy=True) for x in xs]
            for mean, x in zip(self._kept["average"], xs, strict=True):
                track_(real(mean), real(x.to(mean.dtype)), 1 / (self.t + 1))

    @torch.no_grad()
    def _keep_estimate(self) -> None:
        found = [(group, x, self._v(group, x)) for group in self.optimizer.param_groups for x in group["params"]]
        if all(v is None for _, _, v in found):
            self._kept.pop("estimate", None)  # what was kept belongs to another tau
            return
        self._copy("estimate", [_zeros(group, x) if v is None else v for group, x, v in found])

    @torch.no_grad()
    def _join(self) -> None:
        """Go on with the parameters of groups that were added since the last step: until now they stood still."""
        for group in self.optimizer.param_groups[self._groups :]:
            for x in group["params"]:
                starts = {
                    "sampled": x.detach().clone,
                    "average": partial(x.detach().to, state_dtype(x), copy=True),
                    "estimate": partial(_zeros, group, x),
                }
                for key, kept in self._kept.items():
                    kept.append(starts[key]())
        self._groups = len(self.optimizer.param_groups)

    def _copy(self, key: str, tensors: list[Tensor]) -> None:
        if key not in self._kept:
            self._kept[key] = [x.detach().clone() for x in tensors]
        for kept, x in zip(self._kept[key], tensors, strict=True):
            kept.copy_(x)

    def _get(self, key: str) -> list[Tensor]:
        if key not in self._kept:
            needed = "sampled" if key == "estimate" else key
            if needed not in self.keep:
                kept = ", ".join(self.keep) or "nothing"
                raise RuntimeError(f"no {key!r} iterate: this keeps {kept}; pass keep=({needed!r},)")
            raise RuntimeError(f"no {key!r} iterate yet: {self.t} steps were taken; ask after the first")
        self._join()
        return self._kept[key]

    def last(self) -> list[Tensor]:
        """The parameters as they are now."""
        return [x.detach() for x in self._params()]

    def sampled(self) -> list[Tensor]:
        r""":math:`x_\tau`, in the order of the optimizer's parameters."""
        return self._get("sampled")

    def estimate(self) -> list[Tensor]:
        r""":math:`v_{\tau+1}`, the moving average that tracks the gradient at :math:`x_\tau`.

        The box returns "v_tau", but the error that the theorems bound is :math:`|v_{\tau+1} - \nabla F(x_\tau)|^2`.
        It is the estimate that the step used, bias-corrected if that was asked for, and zero for parameters that have
        no average.
        """
        if "sampled" in self._kept and not self.tracked:
            raise TypeError(
                f"optimizer={type(self.optimizer).__name__}: its state had no moving average v after step {self.tau}, "
                "so there is no estimate of the gradient at x_tau; use an optimizer of semaopt (semaopt.ASA covers "
                "Adam and SGD with momentum)"
            )
        return self._get("estimate")

    @property
    def tracked(self) -> bool:
        """Whether there is an ``estimate()`` for x_tau."""
        return "estimate" in self._kept

    def average(self) -> list[Tensor]:
        """The mean of the iterates so far."""
        return self._get("average")

    @torch.no_grad()
    def place(self, which: str) -> None:
        """Overwrite the parameters by ``"sampled"``, ``"average"`` or ``"last"`` (which changes nothing)."""
        require(which in _READ, "which", which, f"must be one of {', '.join(_READ)}", "name the iterate to use")
        for x, kept in zip(self._params(), _READ[which](self), strict=True):
            x.copy_(kept)

    @contextmanager
    def use(self, which: str) -> Iterator[None]:
        """Within the block the parameters hold that iterate; afterwards they are as before."""
        saved = [x.detach().clone() for x in self._params()]
        try:
            self.place(which)
            yield
        finally:
            with torch.no_grad():
                for x, last in zip(self._params(), saved, strict=True):
                    x.copy_(last)

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors: what was kept, and the state of the random numbers."""
        self._join()
        kept = {key: [x.clone() for x in tensors] for key, tensors in self._kept.items()}
        numbers = {"t": self.t, "begun": self._begun, "tau": self.tau, "next": self._next}
        return {**numbers, "kept": kept, "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        given = tuple(sorted(state_dict["kept"].keys() - {"estimate"}))
        require(
            state_dict["begun"] < 0 or given == tuple(sorted(self.keep)),
            "state_dict",
            given,
            f"must have kept what this keeps, {tuple(sorted(self.keep))!r}",
            f"load it into Iterates(optimizer, keep={given!r})",
        )
        shapes = [x.shape for x in self._params()]
        for key, tensors in state_dict["kept"].items():
            require(
                [x.shape for x in tensors] == shapes,
                key,
                [tuple(x.shape) for x in tensors],
                "must have the shapes of the optimizer's parameters",
                "load it into the same model",
            )
        self.reset()
        if state_dict["begun"] >= 0:  # before, the first step is kept or not as this one was built
            self.t, self.tau, self._next = state_dict["t"], state_dict["tau"], state_dict["next"]
            self._begun = state_dict["begun"]
        self._kept = {
            key: [kept.to(x.device, copy=True) for kept, x in zip(tensors, self._params(), strict=True)]
            for key, tensors in state_dict["kept"].items()
        }
        self.generator.set_state(state_dict["generator"])


def _zeros(group: dict[str, Any], x: Tensor) -> Tensor:
    """What stands for the estimate of a parameter that has no average."""
    return torch.zeros_like(x, dtype=state_dtype(x, group.get("state_dtype")))


_READ: dict[str, Callable[[Iterates], list[Tensor]]] = {
    "sampled": Iterates.sampled,
    "average": Iterates.average,
    "last": Iterates.last,
}
