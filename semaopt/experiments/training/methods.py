"""From the names in a spec to optimizers: which algorithm takes which hyper-parameters, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import semaopt
from semaopt import baselines, projections, scalings, schedules
from semaopt._validation import is_real, require, validate_integer
from semaopt.experiments.training import libauc
from semaopt.hypergradient import Neumann, NeumannSeries, TrackedSystem

Values = Mapping[str, Any]
_SCALING = frozenset({"scaling", "g0", "beta2", "c_l", "c_u", "clip_scaling"})
DECAY = frozenset({"every", "factor"})
_MINMAX = frozenset({"lr", "dual_lr", "dual_bound", "weight_decay"})


@dataclass(frozen=True)
class Sides:
    """What is minimized over and what is maximized over, one list for each member that has its own rates.

    Of a bilevel problem: what the upper and what the lower level moves.
    """

    primal: Sequence[Sequence[Tensor]]
    dual: Sequence[Sequence[Tensor]] = ()


@dataclass(frozen=True)
class Kind:
    """An algorithm: for which loss it is, what it takes, and what builds it from values, one for each member."""

    loss: str
    takes: frozenset[str]
    make: Callable[[Sides, Sequence[Values], int], Optimizer]
    staged: bool = False
    """Whether it has stages of its own, so that ``every`` is their length."""


def _scaling(values: Values, default: str = "adam") -> scalings.Scaling:
    name = values.get("scaling", default)
    row = type(scalings.resolve(name))
    given = {key: value for key, value in values.items() if key in ("g0", "beta2", "c_l", "c_u")}
    takes = [field.name for field in fields(row)]  # type: ignore[arg-type]  # the rows are dataclasses
    remedy = "leave it out, or move an axis that all share to the grids of the others"
    for key, value in given.items():
        rule = f"{name!r} has none, it takes {', '.join(takes) or 'nothing of that kind'}"
        require(key in takes, key, value, rule, remedy)
    return row(**given)


def _adaptive(values: Values) -> dict[str, Any]:
    """The options of a group that is averaged and scaled."""
    names = ("lr", "beta", "weight_decay", "decoupled_weight_decay", "bias_correction")
    options = {name: values[name] for name in names if name in values}
    if "clip_scaling" in values:
        options["clip_scaling"] = tuple(values["clip_scaling"])
    return options


def _primal(
    sides: Sides, values: Sequence[Values], options: Callable[[Values], dict[str, Any]]
) -> list[dict[str, Any]]:
    return [{"params": list(xs), **options(v)} for xs, v in zip(sides.primal, values, strict=True)]


def _dual(sides: Sides, values: Sequence[Values]) -> list[dict[str, Any]]:
    return [
        {"params": list(ys), "lr": v["dual_lr"], "project": _box(v)} for ys, v in zip(sides.dual, values, strict=True)
    ]


def _box(values: Values) -> projections.Box | None:
    """Y is free unless a bound is given: the AUC objective is strongly concave in it, so it stays bounded."""
    bound = values.get("dual_bound")
    return None if bound is None else projections.Box(-bound, bound)


def _asa(sides: Sides, values: Sequence[Values], _: int) -> Optimizer:
    return semaopt.ASA(_primal(sides, values, lambda v: {**_adaptive(v), "scaling": _scaling(v)}))


def _pdada(sides: Sides, values: Sequence[Values], _: int) -> Optimizer:
    groups = _primal(sides, values, lambda v: {**_adaptive(v), "scaling": _scaling(v)})
    return semaopt.PDAda(groups, _dual(sides, values))


def _pdsm(sides: Sides, values: Sequence[Values], _: int) -> Optimizer:
    return semaopt.PDSM(_primal(sides, values, _adaptive), _dual(sides, values))


def _plain(values: Values) -> dict[str, Any]:
    return {name: values[name] for name in ("lr", "weight_decay") if name in values}


def _sgda(sides: Sides, values: Sequence[Values], _: int) -> Optimizer:
    return baselines.SGDA(_primal(sides, values, _plain), _dual(sides, values))


def _staged(algorithm: Callable[..., Optimizer], shared: Mapping[str, str]) -> Any:
    """A builder of a method with stages; ``shared`` maps what all its groups share to its names in a spec."""

    def make(sides: Sides, values: Sequence[Values], steps: int) -> Optimizer:
        first = values[0]
        options = {name: first[key] for name, key in shared.items() if key in first}
        for v in values[1:]:
            same = all(v.get(key) == first.get(key) for key in ("every", *shared.values()))
            require(same, "values", v, "members share their stages", "train them one by one")
        # The paper decays every E epochs: stages of equal length.
        options = {"growth": "constant", **options, "stage_length": _epochs(first["every"]) * steps}
        return algorithm(_primal(sides, values, _plain), _dual(sides, values), **options)

    return make


def _pesg(sides: Sides, values: Sequence[Values], steps: int) -> Optimizer:
    require(len(values) == 1, "values", values, "PESG is not vectorised", "train them one by one")
    libauc.check(values[0])
    (dual,) = sides.dual[0]
    return libauc.pesg(sides.primal[0], dual, values[0], _epochs(values[0]["every"]) * steps)


def _epochs(every: Any) -> int:
    return validate_integer("every", every, "it counts epochs; the paper takes 20")


_INVERSES = {"tracked": TrackedSystem, "neumann": Neumann, "series": NeumannSeries}
_LOWER = frozenset({"lr", "lower_lr", "lower_weight_decay"})
_TERMS = frozenset({"inverse", "terms", "bound"})


def _inverse(values: Values, default: str) -> Any:
    name = values.get("inverse", default)
    require(name in _INVERSES, "inverse", name, "is unknown", f"take one of {', '.join(_INVERSES)}")
    given = {key: values[key] for key in ("terms", "bound") if key in values}
    require(name != "tracked" or not given, "inverse", name, f"takes no {', '.join(given)}", "leave them out")
    return _INVERSES[name](**given)


def _bilevel(algorithm: Callable[..., Optimizer], inverse: str | None, scaling: str | None = None) -> Any:
    """A builder of a bilevel method; ``inverse`` and ``scaling`` name its defaults, None if it takes none."""
    names = ("lr", "lower_lr", "beta", "lower_weight_decay", "lower_steps", "bias_correction")

    def make(sides: Sides, values: Sequence[Values], _: int) -> Optimizer:
        require(len(values) == 1, "values", values, "bilevel methods are not vectorised", "train them one by one")
        (v,) = values
        options = {name: v[name] for name in names if name in v}
        if inverse is not None:
            options["inverse"] = _inverse(v, inverse)
        if scaling is not None:
            options["scaling"] = _scaling(v, scaling)
        return algorithm(list(sides.primal[0]), list(sides.dual[0]), **options)

    return make


def _scma(sides: Sides, values: Sequence[Values], _: int) -> Optimizer:
    require(len(values) == 1, "values", values, "SCMA is not vectorised", "train them one by one")
    (v,) = values
    more = {name: v[name] for name in ("inner_beta", "fresh", "blocks") if name in v}
    return semaopt.SCMA(list(sides.primal[0]), **_adaptive(v), scaling=_scaling(v), **more)


_STAGES = {"growth": "growth", "proximal": "proximal"}
_PES = {**_STAGES, "factor": "factor"}
_ADAPTIVE = frozenset({"lr", "beta", "weight_decay", "decoupled_weight_decay", "bias_correction"})

KINDS: dict[str, Kind] = {
    "ASA": Kind("cross_entropy", _ADAPTIVE | _SCALING | DECAY, _asa),
    "PDAda": Kind("auc", _ADAPTIVE | _MINMAX | _SCALING | DECAY, _pdada),
    "PDSM": Kind("auc", _ADAPTIVE | _MINMAX | DECAY, _pdsm),
    "SGDA": Kind("auc", _MINMAX | DECAY, _sgda),
    "EpochSGDA": Kind("auc", _MINMAX | {"every", *_STAGES}, _staged(baselines.EpochSGDA, _STAGES), True),
    "PESSGDA": Kind("auc", _MINMAX | {"every", *_PES}, _staged(baselines.PESSGDA, _PES), True),
    "PESAdaGrad": Kind(
        "auc", _MINMAX | {"every", *_PES, "g0"}, _staged(baselines.PESAdaGrad, {**_PES, "delta": "g0"}), True
    ),
    libauc.PESG: Kind("auc", libauc.TAKES, _pesg, True),
    "SMB": Kind(
        "cleaning",
        _LOWER | _TERMS | {"beta", "bias_correction", "scaling", "g0", "beta2"} | DECAY,
        _bilevel(semaopt.SMB, "tracked", "shb"),
    ),
    "SOBA": Kind("cleaning", _LOWER, _bilevel(baselines.SOBA, None)),
    "StocBiO": Kind("cleaning", _LOWER | _TERMS | {"lower_steps"}, _bilevel(baselines.StocBiO, "series")),
    "TTSA": Kind("cleaning", _LOWER | _TERMS, _bilevel(baselines.TTSA, "neumann")),
    "BSA": Kind("cleaning", _LOWER | _TERMS | {"lower_steps"}, _bilevel(baselines.BSA, "neumann")),
    "SCMA": Kind("average_precision", _ADAPTIVE | _SCALING | DECAY | {"inner_beta", "fresh"}, _scma),
}


def needed(algorithm: str, decays: bool) -> set[str]:
    """Hyper-parameters that have no default here: a comparison must say them."""
    kind = KINDS[algorithm]
    names = {"lr", "dual_lr", "lower_lr", "beta", "inner_beta"} & kind.takes
    return names | ({"every"} if kind.staged or decays else set()) | ({"factor"} if decays else set())


def build(
    algorithm: str, decays: Sequence[str], values: Sequence[Values], sides: Sides, steps: int
) -> tuple[Optimizer, LRScheduler | None]:
    """The optimizer, and the schedule that is to be stepped after each epoch of ``steps`` steps.

    ``values`` has the hyper-parameters of each member of ``sides``; members share ``every`` and ``factor``.
    """
    optimizer = KINDS[algorithm].make(sides, values, steps)
    if not decays:
        return optimizer, None
    rates = {(_epochs(v["every"]), v["factor"]) for v in values}
    require(len(rates) == 1, "values", rates, "members share every and factor", "train them one by one")
    (every, factor) = rates.pop()
    require(is_real(factor), "factor", factor, "must be a number", "the paper takes 0.2")
    return optimizer, schedules.Stagewise(optimizer, every, factor, on=decays)


def try_out(algorithm: str, decays: Sequence[str], values: Values) -> None:
    """Raise the optimizer's own error for values that it does not take."""
    unknown = sorted(values.keys() - KINDS[algorithm].takes)
    require(not unknown, "options", unknown, f"{algorithm} does not take them", "leave them out")
    if algorithm == libauc.PESG and not libauc.installed():  # a spec is read without it; to run one is another matter
        libauc.check(values)
        _epochs(values["every"])
        return
    *xs, y = (nn.Parameter(torch.zeros(1)) for _ in range(4))
    build(algorithm, decays, [values], Sides([xs], [[y]]), 1)


def is_number(value: Any) -> bool:
    """An int or a float, not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def rounded(value: float) -> float:
    """Six digits: products of a grid's values stay the same on every machine."""
    return float(f"{value:.6g}")
