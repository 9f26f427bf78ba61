"""The algorithms of a spec: which problem each one solves, which hyper-parameters it takes, and how it is built.

An algorithm is a name of this package (``ASA``, ``PDAda``, ``SMB``, ...), a class of :mod:`torch.optim` (``AdamW``) or
a plug-in ``"package.module:name"``.

>>> find("AdamW").problem, find("PDAda").problem, find("SMB").problem
('minimization', 'min-max', 'bilevel')
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import semaopt
from semaopt import baselines, projections, scalings, schedules
from semaopt._validation import is_real, require, validate_integer
from semaopt.experiments import plugins
from semaopt.experiments.training import libauc, rates
from semaopt.hypergradient import Neumann, NeumannSeries, TrackedSystem
from semaopt.iterates import AVERAGES

Problem = Literal["minimization", "min-max", "bilevel", "compositional"]
Values = Mapping[str, Any]
DECAY = frozenset({"every", "factor"})
"""The hyper-parameters of a decay: multiply by ``factor`` every ``every`` epochs."""
_OF_RUN = rates.NAMES | {"iterates"}
"""Hyper-parameters of a whole run: its schedule, and the average of iterates that is measured."""
#: The variables of a problem, as an optimizer's constructor names them; a minimizer takes one list.
_ROLES: dict[Problem, tuple[str, str]] = {"min-max": ("primal", "dual"), "bilevel": ("upper", "lower")}
_RATES = frozenset({"lr", "dual_lr", "lower_lr", "beta", "inner_beta"})
_SCALING = frozenset({"scaling", "g0", "beta2", "c_l", "c_u", "clip_scaling"})
_DUAL = frozenset({"lr", "dual_lr", "dual_bound"})
_MINMAX = _DUAL | {"weight_decay"}
_AVERAGED = frozenset({"lr", "beta", "weight_decay", "decoupled_weight_decay", "bias_correction"})


@dataclass(frozen=True)
class Variables:
    """The trained tensors: one list for each group of runs with its own hyper-parameters.

    Attributes:
        primal: minimized over; the upper level of a bilevel problem.
        dual: maximized over; the lower level of a bilevel problem.
        project: the set of the dual variables; None if they are free.
        blocks: the number of inner functions of a compositional problem.
        offset: what to add to the dual variable of an AUC loss to get LibAUC's alpha.
        samples: the numbers of samples of the two losses of a bilevel problem, if they are finite sums.
    """

    primal: Sequence[Sequence[Tensor]]
    dual: Sequence[Sequence[Tensor]] = ()
    project: projections.Projection | None = None
    blocks: int | None = None
    offset: float = 0.0
    samples: tuple[int, int] | None = None


@dataclass(frozen=True)
class AlgorithmInfo:
    """An entry of the registry.

    Attributes:
        problem: the kind of problem it solves.
        takes: its hyper-parameters.
        make: builds it from the variables, the hyper-parameters of each group, and the number of steps per epoch.
        required: hyper-parameters that a spec must give; None stands for all rates it takes.
        staged: whether it has stages of its own, of ``every`` epochs.
        any_name: whether it takes hyper-parameters that are not in ``takes`` (a plug-in with ``**kwargs``).
        vectorizes: whether several runs can be trained as one.
        shared: hyper-parameters that vectorized runs must have in common.
        needs_closure: whether ``step`` evaluates the loss itself.
        own_loss: whether it comes with a loss of its own, the default of an objective that has several.
        finite_sum: whether it needs losses that are finite sums over numbered samples.
        missing: returns the command that installs a package it needs, or None if nothing is missing.
    """

    problem: Problem
    takes: frozenset[str]
    make: Callable[[Variables, Sequence[Values], int], Optimizer]
    required: frozenset[str] | None = None
    staged: bool = False
    any_name: bool = False
    vectorizes: bool = True
    shared: frozenset[str] = DECAY | _OF_RUN
    needs_closure: bool = False
    own_loss: bool = False
    finite_sum: bool = False
    missing: Callable[[], str | None] = lambda: None

    def needed(self, decays: Sequence[str]) -> frozenset[str]:
        """Return the hyper-parameters without a default: a comparison must state them."""
        rates = self.takes & _RATES if self.required is None else self.required
        return rates | ({"every"} if self.staged else DECAY if decays else frozenset())


def _scaling(values: Values, default: str = "adam") -> scalings.Scaling:
    name = values.get("scaling", default)
    row = type(scalings.resolve(name))
    given = {key: value for key, value in values.items() if key in ("g0", "beta2", "c_l", "c_u")}
    takes = [field.name for field in fields(row)]  # type: ignore[arg-type]  # the rows are dataclasses
    remedy = "leave it out, or move a shared axis to the grids of the methods that take it"
    for key, value in given.items():
        rule = f"scaling {name!r} takes {', '.join(takes) or 'no hyper-parameters'}"
        require(key in takes, key, value, rule, remedy)
    return row(**given)


def _averaged(values: Values) -> dict[str, Any]:
    """Return the options of a group with a moving average."""
    options = {name: values[name] for name in sorted(_AVERAGED) if name in values}
    if "clip_scaling" in values:
        options["clip_scaling"] = tuple(values["clip_scaling"])
    return options


def _adaptive(values: Values) -> dict[str, Any]:
    return {**_averaged(values), "scaling": _scaling(values)}


def _plain(values: Values) -> dict[str, Any]:
    return {name: values[name] for name in ("lr", "weight_decay") if name in values}


def _groups(
    lists: Sequence[Sequence[Tensor]], values: Sequence[Values], options: Callable[[Values], dict[str, Any]]
) -> list[dict[str, Any]]:
    return [{"params": list(own), **options(v)} for own, v in zip(lists, values, strict=True)]


def _dual(variables: Variables, values: Sequence[Values]) -> list[dict[str, Any]]:
    return _groups(variables.dual, values, lambda v: {"lr": v["dual_lr"], "project": _projection(variables, v)})


def _projection(variables: Variables, values: Values) -> projections.Projection | None:
    """Return the set of the dual variables, which the objective or ``dual_bound`` (a box) defines.

    Without either they are free: the AUC objective is strongly concave in them, so they stay bounded.
    """
    bound = values.get("dual_bound")
    if bound is None:
        return variables.project
    rule = f"the objective already projects onto {type(variables.project).__name__}"
    require(variables.project is None, "dual_bound", bound, rule, "leave it out")
    return projections.Box(-bound, bound)


def _asa(variables: Variables, values: Sequence[Values], _: int) -> Optimizer:
    return semaopt.ASA(_groups(variables.primal, values, _adaptive))


def _minmax(algorithm: Callable[..., Optimizer], options: Callable[[Values], dict[str, Any]]) -> Any:
    """Return a builder of a min-max method whose groups have ``options``."""

    def make(variables: Variables, values: Sequence[Values], _: int) -> Optimizer:
        return algorithm(_groups(variables.primal, values, options), _dual(variables, values))

    return make


def _staged(algorithm: Callable[..., Optimizer], shared: Mapping[str, str]) -> Any:
    """Return a builder of a method with stages; ``shared`` maps the options of all groups to their names in a spec."""

    def make(variables: Variables, values: Sequence[Values], steps: int) -> Optimizer:
        first = values[0]
        options = {name: first[key] for name, key in shared.items() if key in first}
        # The paper decays every E epochs: stages of equal length.
        options = {"growth": "constant", **options, "stage_length": _epochs(first["every"]) * steps}
        return algorithm(_groups(variables.primal, values, _plain), _dual(variables, values), **options)

    return make


def _shared_options(algorithm: Callable[..., Optimizer], names: Sequence[str]) -> Any:
    """Return a builder of a min-max method that is not vectorized and has ``names`` as options of its constructor."""

    def make(variables: Variables, values: Sequence[Values], _: int) -> Optimizer:
        (v,) = values
        options = {name: v[name] for name in names if name in v}
        return algorithm(_groups(variables.primal, values, _plain), _dual(variables, values), **options)

    return make


def _pesg(variables: Variables, values: Sequence[Values], steps: int) -> Optimizer:
    (v,) = values
    libauc.validate(v)
    ((dual,),) = variables.dual
    return libauc.pesg(variables.primal[0], dual, v, _epochs(v["every"]) * steps, variables.offset)


def _epochs(every: Any) -> int:
    return validate_integer("every", every, "it counts epochs; the paper takes 20")


_INVERSES = {"tracked": TrackedSystem, "neumann": Neumann, "series": NeumannSeries}
_LOWER = frozenset({"lr", "lower_lr", "lower_weight_decay"})
_INVERSE = frozenset({"inverse", "terms", "bound"})


def _inverse(values: Values, default: str) -> Any:
    name = values.get("inverse", default)
    require(name in _INVERSES, "inverse", name, f"must be one of {', '.join(_INVERSES)}", f"try {default!r}")
    given = {key: values[key] for key in ("terms", "bound") if key in values}
    require(name != "tracked" or not given, "inverse", name, f"it does not take {', '.join(given)}", "leave them out")
    return _INVERSES[name](**given)


def _bilevel(
    algorithm: Callable[..., Optimizer],
    inverse: str | None,
    scaling: str | None = None,
    more: Sequence[str] = (),
    numbered: bool = False,
) -> Any:
    """Return a builder of a bilevel method.

    Args:
        algorithm: the optimizer class.
        inverse, scaling: its defaults, or None if it takes none.
        more: further options.
        numbered: whether its closures take the number of a sample.
    """
    names = ("lr", "lower_lr", "beta", "lower_weight_decay", "lower_steps", "bias_correction", *more)

    def make(variables: Variables, values: Sequence[Values], _: int) -> Optimizer:
        (v,) = values
        options = {name: v[name] for name in names if name in v}
        if inverse is not None:
            options["inverse"] = _inverse(v, inverse)
        if scaling is not None:
            options["scaling"] = _scaling(v, scaling)
        if numbered:
            options["samples"] = variables.samples
        return algorithm(list(variables.primal[0]), list(variables.dual[0]), **options)

    return make


def _scma(variables: Variables, values: Sequence[Values], _: int) -> Optimizer:
    (v,) = values
    more = {name: v[name] for name in ("inner_beta", "fresh") if name in v}
    return semaopt.SCMA(list(variables.primal[0]), **_adaptive(v), **more, blocks=variables.blocks)


_STAGES = {"growth": "growth", "proximal": "proximal", "average": "average"}
_PES = {**_STAGES, "factor": "factor"}
_PES_G0 = {**_PES, "delta": "g0"}


def _stagewise(algorithm: Callable[..., Optimizer], shared: Mapping[str, str]) -> AlgorithmInfo:
    names = frozenset({"every", *shared.values()})
    return AlgorithmInfo("min-max", _MINMAX | names, _staged(algorithm, shared), staged=True, shared=names)


_ACC_MDA = ("k", "m", "c_x", "c_y")
_SGD_MAX = ("tolerance", "max_ascents")
_SBMA = ("lam", "c_fy", "c_gxy")
_AMIGO = ("system_steps",)
_STORM = ("weight",)
_F2SA = ("penalty", "penalty_growth")
_alone = partial(AlgorithmInfo, vectorizes=False)


def _level(make: Any, more: frozenset[str] = frozenset(), *, finite_sum: bool = False) -> AlgorithmInfo:
    """Return the entry of a bilevel baseline with these options apart from its rates."""
    return _alone("bilevel", _LOWER | DECAY | more, make, finite_sum=finite_sum)


ALGORITHMS: dict[str, AlgorithmInfo] = {
    "ASA": AlgorithmInfo("minimization", _AVERAGED | _SCALING | DECAY | _OF_RUN, _asa),
    "PDAda": AlgorithmInfo("min-max", _AVERAGED | _MINMAX | _SCALING | DECAY, _minmax(semaopt.PDAda, _adaptive)),
    "PDSM": AlgorithmInfo("min-max", _AVERAGED | _MINMAX | DECAY, _minmax(semaopt.PDSM, _averaged)),
    "SGDA": AlgorithmInfo("min-max", _MINMAX | DECAY, _minmax(baselines.SGDA, _plain)),
    "EpochSGDA": _stagewise(baselines.EpochSGDA, _STAGES),
    "PESSGDA": _stagewise(baselines.PESSGDA, _PES),
    "PESAdaGrad": _stagewise(baselines.PESAdaGrad, _PES_G0),
    "AccMDA": _alone(
        "min-max", _DUAL | DECAY | {*_ACC_MDA}, _shared_options(baselines.AccMDA, _ACC_MDA), needs_closure=True
    ),
    "SGDMax": _alone(
        "min-max", _MINMAX | DECAY | {*_SGD_MAX}, _shared_options(baselines.SGDMax, _SGD_MAX), needs_closure=True
    ),
    libauc.PESG: _alone("min-max", libauc.TAKES, _pesg, staged=True, own_loss=True, missing=libauc.missing),
    "SMB": _alone(
        "bilevel",
        _LOWER | _INVERSE | {"beta", "bias_correction", "scaling", "g0", "beta2", "c_l", "c_u"} | DECAY,
        _bilevel(semaopt.SMB, "tracked", "shb"),
    ),
    "SBMA": _alone(
        "bilevel",
        _LOWER | _INVERSE | {"beta", "scaling", "g0", "beta2", *_SBMA} | DECAY,
        _bilevel(semaopt.SBMA, "neumann", "shb", _SBMA),
    ),
    "SOBA": _level(_bilevel(baselines.SOBA, None)),
    "SABA": _level(_bilevel(baselines.SABA, None, numbered=True), finite_sum=True),
    "StocBiO": _level(_bilevel(baselines.StocBiO, "series"), _INVERSE | {"lower_steps"}),
    "TTSA": _level(_bilevel(baselines.TTSA, "neumann"), _INVERSE),
    "BSA": _level(_bilevel(baselines.BSA, "neumann"), _INVERSE | {"lower_steps"}),
    "AmIGO": _level(
        _bilevel(baselines.AmIGO, None, more=("system_steps",)), frozenset({"lower_steps", "system_steps"})
    ),
    "SUSTAIN": _level(_bilevel(baselines.SUSTAIN, "neumann", more=_STORM, numbered=True), _INVERSE | {*_STORM}),
    "MRBO": _level(_bilevel(baselines.MRBO, "series", more=_STORM, numbered=True), _INVERSE | {*_STORM}),
    "FSLA": _level(_bilevel(baselines.FSLA, None, more=_STORM, numbered=True), frozenset(_STORM)),
    "F2SA": _level(_bilevel(baselines.F2SA, None, more=_F2SA), frozenset({"lower_steps", *_F2SA})),
    "BOME": _level(_bilevel(baselines.BOME, None, more=("control",)), frozenset({"lower_steps", "control"})),
    "SCMA": _alone("compositional", _AVERAGED | _SCALING | DECAY | {"inner_beta", "fresh"}, _scma),
}
#: The classes of torch.optim; SparseAdam is left out because it takes sparse gradients only.
TORCH = tuple(
    name
    for name, one in sorted(vars(torch.optim).items())
    if isinstance(one, type) and issubclass(one, Optimizer) and one is not Optimizer and name != "SparseAdam"
)
NAMES = (*ALGORITHMS, *TORCH)


def find(name: str) -> AlgorithmInfo:
    """Return the algorithm of this name: one of the package, of torch.optim, or a plug-in."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if name in TORCH:
        return _external(name, getattr(torch.optim, name))
    return _external(name, plugins.resolve(name))


def _external(name: str, function: Any) -> AlgorithmInfo:
    """Return the entry of a class or function; its parameters say which problem it solves and what it takes."""
    if not callable(function):
        raise plugins.PluginError(
            f"{name} has type {type(function).__name__}. Use an optimizer class or a function that returns one."
        )
    parameters = inspect.signature(function).parameters
    problem: Problem = next((one for one in _ROLES if parameters.keys() >= set(_ROLES[one])), "minimization")
    roles = _ROLES.get(problem, ())
    own = [p for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in roles]
    own = own if roles else own[1:]  # the first parameter of a minimizer is the list of tensors
    takes = frozenset(p.name for p in own)

    def make(variables: Variables, values: Sequence[Values], _: int) -> Optimizer:
        (given,) = values
        options = {key: value for key, value in given.items() if key in takes or key not in DECAY | _OF_RUN}
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        lists = [list(variables.primal[0]), *(list(own) for own in variables.dual)]
        made = function(**dict(zip(roles, lists, strict=True)), **options) if roles else function(lists[0], **options)
        if not isinstance(made, Optimizer):
            raise plugins.PluginError(
                f"{name} returned an object of type {type(made).__name__}. Return a torch.optim.Optimizer."
            )
        return made

    return AlgorithmInfo(
        problem,
        takes | DECAY | (_OF_RUN if problem == "minimization" else frozenset()),
        make,
        required=frozenset(p.name for p in own if p.default is p.empty) | (takes & {"lr", "dual_lr", "lower_lr"}),
        any_name=any(p.kind is p.VAR_KEYWORD for p in parameters.values()),
        vectorizes=False,
    )


class Schedule:
    """The schedule of a run: steps of ``decays`` after each epoch, or of ``schedule`` after each step."""

    def __init__(self, optimizer: Optimizer, decays: Sequence[str], values: Values, steps: int, epochs: int) -> None:
        self.after_step = self.after_epoch = _nothing
        self.of: LRScheduler | None = None
        shaped = sorted(rates.NAMES & values.keys())
        remedy = "remove one of them"
        require(not (decays and shaped), "decays", list(decays), f"{', '.join(shaped)} already schedule rates", remedy)
        if decays:
            every, factor = _epochs(values["every"]), values["factor"]
            require(is_real(factor), "factor", factor, "must be a number", "the paper takes 0.2")
            self.of = schedules.Stagewise(optimizer, every, factor, on=decays)
            self.after_epoch = self.of.step
        elif shaped:
            self.of = rates.schedule(optimizer, values, steps * epochs)
            self.after_step = self.of.step

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state; None without a schedule."""
        return None if self.of is None else self.of.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Resume from a state."""
        if self.of is not None:
            self.of.load_state_dict(state)


def _nothing() -> None:
    """Do nothing."""


def build(
    name: str,
    decays: Sequence[str],
    values: Sequence[Values],
    variables: Variables,
    steps: int,
    *,
    epochs: int = 1,
) -> tuple[Optimizer, Schedule]:
    """Return the optimizer and the schedule of a run of ``epochs`` epochs of ``steps`` steps.

    ``values`` holds the hyper-parameters of each group of ``variables``; all groups share the hyper-parameters of the
    schedule.
    """
    optimizer = find(name).make(variables, values, steps)
    return optimizer, Schedule(optimizer, decays, values[0], steps, epochs)


def averaged_iterates(optimizer: Optimizer, values: Values) -> semaopt.Iterates | None:
    """Return the average of iterates that a run is measured at; None for the last iterate."""
    kind = values.get("iterates", "last")
    known = ("last", *AVERAGES)
    require(kind in known, "iterates", kind, f"must be one of {', '.join(known)}", "try 'polynomial'")
    return None if kind == "last" else semaopt.Iterates(optimizer, keep=("average",), average=kind)


def restore(optimizer: Optimizer, schedule: Schedule, state: Mapping[str, Any], branch: int | None) -> None:
    """Load the states of an optimizer and its schedule.

    With ``branch`` the states come from another run that agrees with this one so far: after ``branch`` finished
    epochs, before any decay. The schedule keeps its own decays and takes over only the epoch.
    """
    if branch is None:
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        return
    own = optimizer.state_dict()["param_groups"]  # with the entries that a schedule adds
    saved = state["optimizer"]
    groups = [{**mine, **group} for mine, group in zip(own, saved["param_groups"], strict=True)]
    optimizer.load_state_dict({**saved, "param_groups": groups})
    if schedule.of is not None:
        # At a step count of 1, torch would warn that the schedule steps before this optimizer object has taken a step.
        schedule.load_state_dict({**schedule.of.state_dict(), "last_epoch": branch, "_step_count": branch + 2})


def validate(name: str, decays: Sequence[str], values: Values, project: projections.Projection | None = None) -> None:
    """Build the algorithm on a few numbers, so that it raises its own error for values it does not take."""
    info = find(name)
    unknown = [] if info.any_name else sorted(values.keys() - info.takes)
    require(not unknown, "options", unknown, f"{name} does not take them", "leave them out")
    if info.missing() is not None:  # a spec can be read without the package, but not run
        libauc.validate(values)
        _epochs(values["every"])
        return
    *xs, y = (nn.Parameter(torch.zeros(1)) for _ in range(4))
    levels = [[y]] if info.problem in _ROLES else []
    optimizer, _ = build(name, decays, [values], Variables([xs], levels, project, 1, samples=(1, 1)), 1)
    averaged_iterates(optimizer, values)


def takes_closure(optimizer: Optimizer) -> bool:
    """Whether ``step`` requires a closure that evaluates the loss, as in :class:`torch.optim.LBFGS`."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def rounded(value: float) -> float:
    """Round to six digits, so that products of grid values are the same on every machine."""
    return float(f"{value:.6g}")
