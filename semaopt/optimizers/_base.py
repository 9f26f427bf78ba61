"""The base class of every optimizer: validated param groups, and state that survives a checkpoint."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt import projections, scalings
from semaopt._serialization import plain
from semaopt._validation import invalid, require, validate_beta, validate_bounds, validate_flag, validate_rate
from semaopt.hypergradient import inverses
from semaopt.kernels import StepRule, dispatch
from semaopt.kernels.rounding import first_key, validate_state_dtype
from semaopt.optimizers._groups import Betas, Defaults
from semaopt.optimizers._nonfinite import NonFiniteGuard
from semaopt.optimizers._roles import Roles
from semaopt.optimizers._state import counter, pack, restored, unpack, validate_saved, zero_state


def _validate_decay(value: Any) -> None:
    """Require a number that the host can read: every step compares the weight decay with 0."""
    if isinstance(value, Tensor) and not value.is_cpu:
        rule = f"it is a tensor on {value.device}, and every step would wait for that device to read it"
        raise ValueError(invalid("weight_decay", value, rule, "pass a number, or a tensor on the CPU"))
    validate_rate("weight_decay", value, "0.0 turns it off")


_VALIDATORS: dict[str, Callable[[Any], None]] = {
    "lr": lambda value: validate_rate("lr", value, "try 1e-3"),
    "beta": lambda value: validate_beta("beta", value),
    "weight_decay": _validate_decay,
    "decoupled_weight_decay": lambda value: validate_flag("decoupled_weight_decay", value),
    "maximize": lambda value: validate_flag("maximize", value),
    "bias_correction": lambda value: validate_flag("bias_correction", value),
    "differentiable": lambda value: validate_flag("differentiable", value),
    "device_counters": lambda value: validate_flag("device_counters", value),
    "implementation": dispatch.validate_implementation,
    "rounding_seed": lambda value: require(
        type(value) is int, "rounding_seed", value, "must be a whole number", "it seeds the rounding of bf16 states"
    ),
    "clip_scaling": lambda value: None if value is None else validate_bounds("clip_scaling", value),
}
#: Options whose values are objects, and the module that turns each into plain values and back.
_OBJECTS: dict[str, Any] = {"scaling": scalings, "project": projections, "inverse": inverses}
#: Options that belong to the machine, not to the checkpoint.
_LOCAL = ("implementation", "state_dtype", "device_counters")
#: Options of an averaged group that an optimizer does not offer in its constructor.
FIXED: dict[str, Any] = {
    "maximize": False,
    "differentiable": False,
    "implementation": "auto",
    "state_dtype": None,
    "rounding_seed": 0,
}

#: A group, its parameters that have a gradient, these gradients, and their states.
Ready = tuple[dict[str, Any], list[Tensor], list[Tensor], list[dict[str, Any]]]


#: Keys of a group that are not options: keys of torch, keys of schedules, and the name that loggers show.
_EXTRA = {"params", "param_names", "role", "name", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}


#: Entry of groups without weight decay, such as dual ones; Lightning's LearningRateMonitor reads it in every group.
NO_DECAY = 0.0

#: Equivalents of arguments that torch's optimizers have under another name.
_EQUIVALENTS = {
    "betas": "pass beta=betas[0] and scaling=semaopt.scalings.Adam(beta2=betas[1])",
    "beta2": "pass scaling=semaopt.scalings.Adam(beta2=...)",
    "eps": "pass scaling=semaopt.scalings.Adam(g0=eps)",
    "g0": "pass scaling=semaopt.scalings.Adam(g0=...)",
    "momentum": "pass beta=momentum and scaling='shb'; for torch's dampening=0 divide lr by 1 - momentum",
    "dampening": "pass beta=momentum and scaling='shb', which has dampening = momentum",
    "nesterov": "Nesterov momentum is not available",
    "amsgrad": "pass scaling='amsgrad'",
    "fused": "pass implementation='c'; 'auto' takes it where it is supported",
    "foreach": "pass implementation='foreach'; 'auto' takes it where it is supported",
    "capturable": "pass device_counters=True to ASA, PDSM or PDAda, or compile the step, torch.compile(optimizer.step)",
}


def refuse_unknown(group: Mapping[str, Any], options: Mapping[str, Any], kind: str) -> None:
    """Raise for the first key of a param group that is not one of its options."""
    for name, value in group.items():
        known = name in {*options} or name in _EXTRA or name.startswith("initial_") or isinstance(value, Betas)
        known = known or (name == "weight_decay" and value == NO_DECAY)
        if not known:
            remedy = _EQUIVALENTS.get(name, f"it has {', '.join(sorted(options))}")
            raise ValueError(f"{name}={value!r}: {kind} group has no such option; {remedy}")


def validate_group(group: Mapping[str, Any]) -> None:
    """Raise for the first invalid hyper-parameter of a param group.

    ``beta`` may be None in a group without a scaling, whose variables are not averaged.
    """
    averaged = group.get("scaling") is not None or group.get("beta") is not None
    for name, validate in _VALIDATORS.items():
        if name in group and (averaged or name != "beta"):
            validate(group[name])


def validate_rates(group: Mapping[str, Any]) -> None:
    """Raise if lr or beta, which schedules change, is invalid; cheap, since it runs in every step."""
    lr, beta = group["lr"], group["beta"]
    if type(lr) is type(beta) is float and 0 <= lr < math.inf and 0 <= beta < 1:
        return
    remote = isinstance(beta, Tensor) and not beta.is_cpu
    if remote and group.get("bias_correction") and not group.get("device_counters"):
        rule = f"it is a tensor on {beta.device}, and every step would wait for that device to update the bias weights"
        remedy = "pass device_counters=True where the optimizer has it, a number, or a tensor on the CPU"
        raise ValueError(invalid("beta", beta, rule, remedy))
    averaged = beta is not None or group.get("scaling") is not None
    for value, top in ((lr, math.inf), (beta if averaged else 0.0, 1)):
        # A tensor is not read: that would wait for its device.
        if not (0 <= value < top if type(value) is float else isinstance(value, Tensor)):
            validate_group(group)


def validate_state(group: Mapping[str, Any], state: Mapping[str, Any] | None, number: int) -> None:
    """Raise if the scaling or the bias correction of param group ``number`` has changed since ``state`` was made."""
    if not state:
        return
    corrected = group["bias_correction"]
    if ("v_weight" in state) is not corrected:
        rule = f"group {number} has taken steps with {not corrected}, and its averages do not fit"
        require(False, "bias_correction", corrected, rule, "set it before the first step")
    for name in group["scaling"].buffers:
        if name not in state:
            rule = f"group {number} has taken steps with another scaling, and the average {name!r} does not exist"
            require(False, "scaling", group["scaling"], rule, "set it before the first step")


# ---- from a param group to a step -----------------------------------------------------------------------------------

_VALUES = (
    "lr",
    "beta",
    "scaling",
    "weight_decay",
    "decoupled_weight_decay",
    "clip_scaling",
    "bias_correction",
    "maximize",
    "differentiable",
    "implementation",
    "state_dtype",
)
_values_of = itemgetter(*_VALUES)
#: The last rule of each param group, by its id; a rule is reused only if all values are equal.
_rules: dict[int, tuple[tuple[Any, ...], StepRule]] = {}
_MOST_RULES = 1024


def rule_of(group: dict[str, Any]) -> StepRule:
    """Return the :class:`StepRule` of an averaged param group; it is reused while no value changes."""
    if torch.compiler.is_compiling():  # it cannot trace itemgetter
        return StepRule(group["lr"], 1 - group["beta"], *(group[name] for name in _VALUES[2:]))
    values = _values_of(group)
    if type(values[0]) is not float or type(values[1]) is not float:
        return StepRule(values[0], 1 - values[1], *values[2:])
    last = _rules.get(id(group))
    if last is not None and last[0] == values:
        return last[1]
    rule = StepRule(values[0], 1 - values[1], *values[2:])
    if len(_rules) >= _MOST_RULES:
        _rules.clear()
    _rules[id(group)] = values, rule
    return rule


def require_dense(group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], number: int) -> None:
    """Raise for the first sparse gradient of param group ``number``."""
    for x, g in zip(xs, gs, strict=True):
        if g.is_sparse:
            i = next(i for i, p in enumerate(group["params"]) if p is x)
            raise RuntimeError(
                f"semaopt does not support sparse gradients (group {number}, parameter {i}, shape {tuple(x.shape)}): "
                "its moving averages decay in every coordinate at every step; use nn.Embedding(sparse=False), or "
                "torch.optim.SparseAdam for that parameter"
            )


class SemaOptimizer(Optimizer):
    """A :class:`torch.optim.Optimizer` whose groups have ``lr``, ``beta`` and, if averaged, a ``scaling``.

    State that belongs to the algorithm and not to a parameter (step counts, curvature bounds, averages of other
    shapes) is in :attr:`algorithm_state`.

    Args:
        params: parameters, named parameters or dicts of them.
        defaults: options of the groups.
        on_nonfinite: policy for NaN and Inf; see :class:`semaopt.ASA`.
        process_group: ranks to average over, for the optimizers that average over ranks.
    """

    #: The two roles of groups, or None if all groups are alike.
    roles: ClassVar[Roles | None] = None
    #: Names in ``defaults`` of the options that all groups share, whatever their role.
    shared: ClassVar[tuple[str, ...]] = ()
    #: Names and start values of the algorithm state.
    initial: ClassVar[Mapping[str, Any]] = {}

    def __new__(cls, *args: Any, **options: Any) -> SemaOptimizer:
        """Raise an error that names the equivalent of a torch argument. Python refuses any other unknown argument."""
        for name in _EQUIVALENTS.keys() & options.keys():
            if name not in inspect.signature(cls).parameters:
                raise TypeError(f"{cls.__name__} has no argument {name}={options[name]!r}; {_EQUIVALENTS[name]}")
        return super().__new__(cls)

    def __init__(
        self, params: Any, defaults: dict[str, Any], *, on_nonfinite: str | None = None, process_group: Any = None
    ) -> None:
        if isinstance(params, torch.nn.Module):
            raise TypeError(f"params: got a module ({type(params).__name__}); pass its parameters, model.parameters()")
        self._nonfinite = NonFiniteGuard(on_nonfinite)
        self._process_group = process_group
        super().__init__(params, Defaults(defaults))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that torch pickles, and those that it leaves out."""
        return {**super().__getstate__(), "_nonfinite": self._nonfinite, "_process_group": self._process_group}

    @property
    def on_nonfinite(self) -> str | None:
        """The policy for steps with NaN or Inf: None (take them), "error" or "skip". Not in the state dict."""
        return self._nonfinite.policy

    @property
    def skipped_steps(self) -> int:
        """The number of steps skipped by ``on_nonfinite="skip"``. Not in the state dict."""
        return self._nonfinite.skipped

    def _skips(self) -> bool:
        """Return whether ``on_nonfinite`` skips this step because of its gradients."""
        return self._nonfinite.policy is not None and self._nonfinite.skips(self.param_groups)

    @property
    def algorithm_state(self) -> dict[str, Any]:
        """State of the algorithm that belongs to no single parameter.

        It is the entry ``"algorithm"`` of the first param group: torch.distributed.checkpoint keeps the entries of
        groups and drops other entries of a state dict.
        """
        state: dict[str, Any] = self.param_groups[0]["algorithm"]
        return state

    # ---- param groups -----------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own hyper-parameters; nothing changes if any of it is invalid."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict with 'params', got {type(param_group).__name__}")
        if "on_nonfinite" in param_group:
            given = param_group["on_nonfinite"]
            raise ValueError(f"on_nonfinite={given!r}: a step is skipped as a whole; pass it to the optimizer")
        if self.roles is not None:
            self.roles.validate(param_group)
        group = self._complete(param_group)
        validate_group(group)
        group.update({name: plain(value) for name, value in group.items() if name not in ("params", "param_names")})
        if isinstance(group["params"], Tensor):
            group["params"] = [group["params"]]
        elif not isinstance(group["params"], set):  # torch raises a clear error for a set
            group["params"] = list(group["params"])
        if "scaling" in group:
            group["scaling"] = scalings.resolve(group["scaling"])
        self._refuse_duplicates(group["params"])
        self._validate_parameters(group)
        if self.initial and not self.param_groups:
            group["algorithm"] = dict(self.initial)
        names = {*group, "param_names"}
        super().add_param_group(group)
        for name in self.defaults.keys() - names:  # torch gives every group every default
            del group[name]
        group["betas"] = Betas(group)
        group.setdefault("weight_decay", NO_DECAY)

    def _options(self, role: str | None) -> dict[str, Any]:
        """Return the options that a group of this role starts from."""
        if self.roles is None or role is None:
            return self.defaults
        return self.roles.options(role, self.defaults, self.shared)

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        """Return the group with the options that it does not set itself."""
        role = param_group.get("role")
        options = self._options(role)
        refuse_unknown(param_group, options, "a" if role is None else f"{'an' if role[0] in 'aeiou' else 'a'} {role}")
        if self.roles is None:
            return {**options, **param_group}
        present = self.param_groups[0] if self.param_groups else self.defaults
        shared = {name: present[name] for name in self.shared}
        return self.roles.complete(param_group, options, shared, type(self).__name__)

    def _validate_parameters(self, group: dict[str, Any]) -> None:
        """Raise for options that the group's parameters make impossible."""
        tensors = [p[1] if isinstance(p, tuple) else p for p in group["params"]]
        if not all(isinstance(p, Tensor) for p in tensors):
            return  # torch refuses them
        members = max((getattr(p, "ensemble_members", 1) for p in tensors), default=1)
        if members > 1 and isinstance(group.get("scaling"), scalings.AdamPlus):
            rule = f"its u is the norm over the group, whose tensors hold {members} members of an ensemble"
            raise ValueError(invalid("scaling", "adam+", rule, "Use Ensemble(models) without group_sizes."))
        if "scaling" in group:
            validate_state_dtype(group["state_dtype"], tensors)
            dispatch.validate(rule_of(group), tensors, tensors, [{}] * len(tensors))

    def _refuse_duplicates(self, params: list[Any]) -> None:
        tensors = [p[1] if isinstance(p, tuple) else p for p in params]
        seen = {
            id(p): f"group {k}, position {i}"
            for k, group in enumerate(self.param_groups)
            for i, p in enumerate(group["params"])
        }
        for i, p in enumerate(tensors):
            here = f"group {len(self.param_groups)}, position {i}"
            if id(p) in seen:
                raise ValueError(
                    f"parameter of shape {tuple(p.shape)} is given twice, at {seen[id(p)]} and at {here}: it would "
                    "move twice per step; list each parameter once (shared weights appear once in model.parameters())"
                )
            seen[id(p)] = here

    # ---- a step -----------------------------------------------------------------------------------------------------

    def _validate_step(self) -> list[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        """Return ``(group, xs, gs)`` of each group, after raising if one of them cannot take a step."""
        found = []
        for k, group in enumerate(self.param_groups):
            validate_rates(group)
            xs: list[Tensor] = []
            gs: list[Tensor] = []
            for x in group["params"]:
                g = x.grad
                if g is not None:
                    xs.append(x)
                    gs.append(g)
            if xs and "scaling" in group:
                validate_state(group, self._first_state(xs), k)
            if len(self.param_groups) > 1:  # with one group the step raises before anything has changed
                require_dense(group, xs, gs, k)
            if group.get("implementation", "auto") in ("c", "triton", "foreach"):
                dispatch.validate(rule_of(group), xs, gs, [self.state.get(x, {}) for x in xs])
            found.append((group, xs, gs))
        return found

    def _first_state(self, xs: list[Tensor]) -> dict[str, Any] | None:
        """Return the state of the first of these parameters that has one."""
        return next(filter(None, map(self.state.get, xs)), None)

    def _ready(self) -> Iterator[Ready]:
        """Yield ``(group, xs, gs, states)`` of each group that has gradients, after validating every group."""
        if torch.compiler.is_compiling():  # torch.compile knows _init_group and runs it outside its graph
            for group, xs, gs in self._initialized():
                yield group, xs, gs, [self.state[x] for x in xs]
            return
        for group, xs, gs in self._validate_step():
            states = [self.state[x] for x in xs]
            if not all(states):
                self._init_group(group, [], [])
            if xs:
                yield group, xs, gs, states

    def _initialized(self) -> list[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        """Return ``(group, xs, gs)`` of each group after giving every parameter with a gradient its state."""
        found: list[tuple[dict[str, Any], list[Tensor], list[Tensor]]] = []
        for group in self.param_groups:
            xs: list[Tensor] = []
            gs: list[Tensor] = []
            self._init_group(group, xs, gs)
            found.append((group, xs, gs))
        return found

    def _init_group(self, group: dict[str, Any], xs: list[Tensor], gs: list[Tensor]) -> None:
        """Fill ``xs`` and ``gs`` with the parameters that have a gradient, and give each its zero state.

        torch.compile knows this name and these list arguments: it runs the method outside its graph.
        """
        for x in group["params"]:
            g = x.grad
            if g is None:
                continue
            xs.append(x)
            gs.append(g)
            if "step" not in self.state[x]:
                self._init_states(self._started_with(group))

    def _started_with(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the groups whose parameters get their states at the same time as the parameters of this group.

        torch.compile reads the states after the first call of ``_init_group`` and does not see later ones.
        """
        return self.param_groups

    def _init_states(self, groups: list[dict[str, Any]]) -> None:
        """Give every parameter that has a gradient and no state its zero state."""
        for group in groups:
            for i, x in enumerate(group["params"]):
                if x.grad is not None and "step" not in self.state[x]:
                    self._init_state(group, i, x)

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Return the names of the averages kept for each parameter of the group."""
        if "scaling" in group:
            return ("v", *group["scaling"].buffers)
        # Without averages there is still a counter: torch.distributed.checkpoint wants a state for every parameter.
        return ("v",) if self.roles is None or group["role"] == self.roles.first else ()

    def _counter_device(self, group: Mapping[str, Any], x: Tensor) -> torch.device | str:
        """Return the device of the counters of parameter ``x``; groups without the option follow the constructor."""
        return x.device if group.get("device_counters", self.defaults.get("device_counters")) else "cpu"

    def _init_state(self, group: dict[str, Any], i: int, x: Tensor) -> None:
        """Give ``x``, parameter i of the group, its zero state."""
        buffers, state = self._buffers(group), self.state[x]
        if "scaling" not in group:
            state.update(zero_state(x, buffers, device=self._counter_device(group, x)))
            return
        weights, dtype = group["bias_correction"], group["state_dtype"]
        state.update(zero_state(x, buffers, weights=weights, dtype=dtype, device=self._counter_device(group, x)))
        self._init_rounding(state, group, next(k for k, mine in enumerate(self.param_groups) if mine is group), i)

    @staticmethod
    def _init_rounding(state: dict[str, Any], group: dict[str, Any], k: int, i: int) -> None:
        """Give parameter i of group k its key for stochastic rounding, if it needs one and has none."""
        if group.get("state_dtype") is None:
            state.pop("rounding", None)
        elif "rounding" not in state:
            state["rounding"] = counter("rounding", first_key(group["rounding_seed"], k, i), state["step"].device)

    def _initializes(self, closure: Any) -> bool:
        """Return whether torch.distributed.checkpoint makes this call, and if so create the state without a step.

        To learn the shapes of an optimizer without state, it calls ``step(closure=None)`` with zero gradients and zero
        learning rates. A real step would use up v_0, be counted and advance stages.
        """
        zero = closure is None and not self.state and all(group["lr"] == 0 for group in self.param_groups)
        params = [(group, i, x) for group in self.param_groups for i, x in enumerate(group["params"])] if zero else []
        if not params or any(x.grad is not None and bool((x.grad != 0).any()) for _, _, x in params):
            return False
        for group, i, x in params:
            if x.grad is not None:
                self._init_state(group, i, x)
        return bool(self.state)

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict with objects as plain values, which ``torch.load(weights_only=True)`` reads."""
        packed: dict[str, Any] = super().state_dict()
        packed["param_groups"] = [plain(group) for group in packed["param_groups"]]
        for group in packed["param_groups"]:
            for name in _OBJECTS.keys() & group.keys():
                group[name] = _OBJECTS[name].describe(group[name])
            group["betas"] = tuple(group["betas"])
            if "algorithm" in group:
                group["algorithm"] = {name: pack(value) for name, value in group["algorithm"].items()}
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict to the bit; nothing changes if any of it does not fit.

        Torch casts every state tensor to its parameter's dtype and may share it with ``state_dict``. Here the averages
        keep their own dtype and the memory layout of their parameter, the counters keep theirs, and all are copies.
        ``implementation`` and ``state_dtype`` say how to compute on this machine, so they stay as this optimizer was
        constructed.
        """
        seen: dict[str, Any] = {}

        def before(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            seen.update(given, param_groups=self._restored_groups(given["param_groups"]))
            for k, (packed, group) in enumerate(zip(seen["param_groups"], self.param_groups, strict=False)):
                names = self._buffers(packed)
                for i, (key, x) in enumerate(zip(packed["params"], group["params"], strict=False)):
                    validate_saved(seen["state"].get(key), x, names, f"parameter {i} of group {k}")
            return seen

        def after(_: Optimizer) -> None:
            for k, (given, group) in enumerate(zip(seen["param_groups"], self.param_groups, strict=True)):
                for i, (key, x) in enumerate(zip(given["params"], group["params"], strict=True)):
                    if seen["state"].get(key):
                        device = self._counter_device(group, x)
                        own = restored(seen["state"][key], x, group.get("state_dtype"), device)
                        self.state[x].update(own)
                        self._init_rounding(self.state[x], group, k, i)

        # These hooks run after the user's own pre-hooks and before the user's own post-hooks.
        handles = [
            self.register_load_state_dict_pre_hook(before),
            self.register_load_state_dict_post_hook(after, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def _restored_groups(self, packed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the groups of a state dict, validated, with objects in place of their descriptions."""
        if self.roles is not None:
            self.roles.validate_saved(packed, self.param_groups)
        groups = []
        # A different number of groups is refused by torch.
        for k, (given, live) in enumerate(zip(packed, self.param_groups, strict=False)):
            expected = {*self._options(live.get("role")), *(("algorithm",) if "algorithm" in live else ())}
            missing = sorted((expected & live.keys()) - {*_LOCAL} - given.keys())
            rule = f"group {k} of the checkpoint lacks options of {type(self).__name__}"
            require(not missing, "options", missing, rule, "load it into the kind of optimizer that wrote it")
            validate_group(given)
            group = {**given, **{name: live[name] for name in _LOCAL if name in live}}
            for name in _OBJECTS.keys() & live.keys():
                if isinstance(group[name], dict):
                    group[name] = _OBJECTS[name].restore(group[name], live[name])
            if "algorithm" in live:
                group["algorithm"] = self._restored_algorithm(group["algorithm"])
            group["betas"] = Betas(group)
            group.setdefault("weight_decay", NO_DECAY)
            groups.append(group)
        return groups + packed[len(groups) :]

    def _restored_algorithm(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a saved algorithm state, validated, with its tensors on the device of the first parameter."""
        names = sorted(given) if isinstance(given, Mapping) else given
        rule = f"the checkpoint must have {sorted(self.initial)}"
        require(names == sorted(self.initial), "algorithm", names, rule, "load it into the optimizer that wrote it")
        device = next((x.device for group in self.param_groups for x in group["params"]), None)
        return {name: unpack(value, device) for name, value in given.items()}
