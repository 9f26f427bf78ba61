r"""The output of an algorithm: the last iterate, an average, or :math:`x_\tau` with tau uniform on 0..T.

The theorems bound the gradient at :math:`x_\tau` (``alg:adam``, line 7). In practice people use the last iterate or an
average. :class:`Iterates` keeps all three in O(1) memory while an optimizer runs, without knowing T.
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

from semaopt._averages import moving_average
from semaopt._validation import is_real, require, to_float, validate_integer
from semaopt.estimator import state_dtype
from semaopt.kernels import averaging

AVERAGES = ("uniform", "polynomial")


class Iterates:
    r"""Keep :math:`x_\tau`, the gradient estimate that belongs to it, and an average of the iterates, by step hooks.

    After steps t = 0..T, ``sampled()`` is :math:`x_\tau` with tau uniform on 0..T. Reservoir sampling replaces the kept
    iterate by :math:`x_t` with probability 1/(t+1); the step of the next replacement is drawn in advance.

    ``average()`` is the mean of :math:`x_0, \dots, x_T`, or with ``average="polynomial"``

    .. math:: \bar x \leftarrow \bar x + \frac{p+1}{t+p+1}(x_t - \bar x), \qquad p = \text{power},

    which gives late iterates more weight and needs no horizon (Shamir and Zhang, 2013). Parameters added by
    ``add_param_group`` count as constant until then. Skipped steps are not counted.

    Evaluate with the average inside ``with iterates.use("average"):``. A model with BatchNorm needs statistics for the
    averaged weights: call ``torch.optim.swa_utils.update_bn(loader, model)`` inside the block, on a copy of the model
    to keep its own statistics.

    Args:
        optimizer: any torch optimizer. ``estimate()`` needs one that averages gradients: semaopt's, torch's Adam,
            AdamW, SGD with momentum ...
        keep: ``"sampled"``, ``"average"`` or both; each costs one copy of the parameters.
        average: ``"uniform"`` or ``"polynomial"``.
        power: p >= 0 of the polynomial average; 0 is the uniform one.
        every: update the average at the steps 0, every, 2 every, ...
        seed: seed of the reservoir. Ranks that train one model together must use the same seed.

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

    def __init__(
        self,
        optimizer: Optimizer,
        keep: Sequence[str] = ("sampled", "average"),
        seed: int = 0,
        *,
        average: str = "uniform",
        power: float = 8.0,
        every: int = 1,
    ) -> None:
        ok = not isinstance(keep, str) and set(keep) <= {"sampled", "average"}
        require(ok, "keep", keep, "must name 'sampled', 'average' or both", "last() costs nothing and always works.")
        known = ", ".join(AVERAGES)
        require(average in AVERAGES, "average", average, f"must be one of {known}", "The mean is average='uniform'.")
        ok = is_real(power) and 0 <= to_float(power) < math.inf
        require(ok, "power", power, "must be a finite number >= 0", "Try power=8.")
        self.optimizer = optimizer
        self.keep = tuple(keep)
        self.kind = average
        self.power = to_float(power) if average == "polynomial" else 0.0
        self.every = validate_integer("every", every, "every=1 averages all iterates.")
        self._averages = "average" in keep
        self.generator = torch.Generator().manual_seed(seed)
        self.reset()
        self._attach()

    def _attach(self) -> None:
        self._handles = [
            self.optimizer.register_step_pre_hook(self._before),
            self.optimizer.register_step_post_hook(self._after),
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes. The hooks are replaced by a flag that says whether they are attached."""
        attached = any(handle.id in self.optimizer._optimizer_step_pre_hooks for handle in self._handles)
        return {**self.__dict__, "_handles": attached}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle, and attach it to the copied optimizer, which torch copies without hooks."""
        self.__dict__.update(state, _handles=[])
        if state["_handles"]:
            self._attach()

    def reset(self) -> None:
        """Discard what was kept: the next step is t = 0."""
        self._complete()
        self.t = 0
        self._begun = -1
        self.tau = -1
        self._next: float = 0 if "sampled" in self.keep else math.inf
        self._kept: dict[str, list[Tensor]] = {}
        self._count = len(self._params())

    def remove(self) -> None:
        """Remove the hooks; what was kept stays readable."""
        self._complete()
        for handle in self._handles:
            handle.remove()

    def _params(self) -> list[Tensor]:
        return [x for group in self.optimizer.param_groups for x in group["params"]]

    # The hooks run in every step. They decide first, and enter no_grad only if there is something to keep.
    def _before(self, *_: Any) -> None:
        count = 0
        for group in self.optimizer.param_groups:
            count += len(group["params"])
        if count != self._count:
            self._join()
        if self.t > self._begun:  # otherwise x_t was kept already, before a step that was skipped or raised an error
            self._begun = self.t
            if self.t >= self._next or (self._averages and self.t % self.every == 0):
                self._keep()

    def _after(self, *_: Any) -> None:
        if averaging.pending:
            self._complete()
        if self.tau == self.t:
            self._keep_estimate()
        self.t += 1

    def _complete(self) -> None:
        """Average the parameters that no step has averaged: those without a gradient, or all after a skipped step."""
        averaging.complete(self._params())

    @torch.no_grad()
    def _keep(self) -> None:
        xs = self._params()
        if "sampled" in self.keep and self.t >= self._next:
            self.tau = self.t
            self._copy("sampled", xs)
            # x_s is the first to replace x_t if none of t+1..s-1 did, which has probability (t+1)/s: s = (t+1)/U.
            chance = torch.rand((), generator=self.generator, dtype=torch.float64, device="cpu").item()
            self._next = int((self.t + 1) / max(chance, 1e-300))
        if self._averages and self.t % self.every == 0:
            if self.t == 0:
                self._kept["average"] = [x.detach().to(state_dtype(x), copy=True) for x in xs]
                return
            weight = (self.power + 1) / (self.t // self.every + self.power + 1)
            if getattr(self.optimizer, "updates_averages", False) and not torch.compiler.is_compiling():
                averaging.leave(xs, self._kept["average"], weight)  # the step passes over x anyway
            else:
                averaging.update_(xs, averaging.Average(self._kept["average"], weight))

    @torch.no_grad()
    def _keep_estimate(self) -> None:
        pairs = [(group, x) for group in self.optimizer.param_groups for x in group["params"]]
        found = [(group, x, moving_average(self.optimizer, group, x)) for group, x in pairs]
        if all(v is None for _, _, v in found):
            self._kept.pop("estimate", None)  # the kept one belongs to another tau
            return
        self._copy("estimate", [_zeros(group, x) if v is None else v for group, x, v in found])

    @torch.no_grad()
    def _join(self) -> None:
        """Include the parameters of groups added since the last step; they were constant until now."""
        pairs = [(group, x) for group in self.optimizer.param_groups for x in group["params"]]
        for group, x in pairs[self._count :]:
            starts = {
                "sampled": x.detach().clone,
                "average": partial(x.detach().to, state_dtype(x), copy=True),
                "estimate": partial(_zeros, group, x),
            }
            for key, kept in self._kept.items():
                kept.append(starts[key]())
        self._count = len(pairs)

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
                raise RuntimeError(f"There is no {key!r} iterate: this object keeps {kept}. Pass keep=({needed!r},).")
            raise RuntimeError(f"There is no {key!r} iterate after {self.t} steps. Take a step first.")
        self._join()
        self._complete()
        return self._kept[key]

    def last(self) -> list[Tensor]:
        """Return the current parameters."""
        return [x.detach() for x in self._params()]

    def sampled(self) -> list[Tensor]:
        r"""Return :math:`x_\tau`, in the order of the optimizer's parameters."""
        return self._get("sampled")

    def estimate(self) -> list[Tensor]:
        r"""Return :math:`v_{\tau+1}`, the moving average that tracks the gradient at :math:`x_\tau`.

        The box returns "v_tau", but the error that the theorems bound is :math:`|v_{\tau+1} - \nabla F(x_\tau)|^2`.
        The estimate is the one that the step used, bias-corrected if the step was. It is zero for parameters without an
        average.
        """
        if "sampled" in self._kept and not self.tracked:
            raise TypeError(
                f"optimizer={type(self.optimizer).__name__}: its state had no moving average after step {self.tau}, "
                "so there is no estimate of the gradient at x_tau. Use an optimizer with momentum, such as semaopt.ASA."
            )
        return self._get("estimate")

    @property
    def tracked(self) -> bool:
        """Whether there is an ``estimate()`` for x_tau."""
        return "estimate" in self._kept

    def average(self) -> list[Tensor]:
        """Return the average of the iterates so far."""
        return self._get("average")

    @torch.no_grad()
    def place(self, which: str) -> None:
        """Overwrite the parameters with ``"sampled"``, ``"average"`` or ``"last"`` (which changes nothing)."""
        require(which in _READ, "which", which, f"must be one of {', '.join(_READ)}", "It names the iterate to use.")
        for x, kept in zip(self._params(), _READ[which](self), strict=True):
            x.copy_(kept)

    @contextmanager
    def use(self, which: str = "average") -> Iterator[None]:
        """Put an iterate into the parameters for the duration of the block, then restore them."""
        saved = [x.detach().clone() for x in self._params()]
        try:
            self.place(which)
            yield
        finally:
            with torch.no_grad():
                for x, last in zip(self._params(), saved, strict=True):
                    x.copy_(last)

    def _options(self) -> dict[str, Any]:
        return {"average": self.kind, "power": self.power, "every": self.every} if self._averages else {}

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept and the state of the random numbers, as plain values and tensors."""
        self._join()
        self._complete()
        kept = {key: [x.clone() for x in tensors] for key, tensors in self._kept.items()}
        numbers = {"t": self.t, "begun": self._begun, "tau": self.tau, "next": self._next}
        return {**numbers, "kept": kept, "generator": self.generator.get_state(), "options": self._options()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the result of :meth:`state_dict`; nothing changes if it does not fit."""
        given = tuple(sorted(state_dict["kept"].keys() - {"estimate"}))
        begun = state_dict["begun"] >= 0
        require(
            not begun or given == tuple(sorted(self.keep)),
            "state_dict",
            given,
            f"must have kept what this object keeps, {tuple(sorted(self.keep))!r}",
            f"Load it into Iterates(optimizer, keep={given!r}).",
        )
        options, own = state_dict.get("options", {}), self._options()
        rule = f"must have the options of this object, {own}"
        require(not begun or options == own, "state_dict", options, rule, "Construct Iterates with the saved options.")
        shapes = [x.shape for x in self._params()]
        for key, tensors in state_dict["kept"].items():
            require(
                [x.shape for x in tensors] == shapes,
                key,
                [tuple(x.shape) for x in tensors],
                "must have the shapes of the optimizer's parameters",
                "Load it into the same model.",
            )
        self.reset()
        if begun:  # otherwise the first step is kept according to the options of this object
            self.t, self.tau, self._next = state_dict["t"], state_dict["tau"], state_dict["next"]
            self._begun = state_dict["begun"]
        self._kept = {
            key: [kept.to(x.device, copy=True) for kept, x in zip(tensors, self._params(), strict=True)]
            for key, tensors in state_dict["kept"].items()
        }
        self.generator.set_state(state_dict["generator"])


def _zeros(group: dict[str, Any], x: Tensor) -> Tensor:
    """Return the estimate of a parameter without an average."""
    return torch.zeros_like(x, dtype=state_dtype(x, group.get("state_dtype")))


_READ: dict[str, Callable[[Iterates], list[Tensor]]] = {
    "sampled": Iterates.sampled,
    "average": Iterates.average,
    "last": Iterates.last,
}
