"""``OptimizerInfo`` entries for ASA with each scaling, used by test_torch_conformance*.py.

The torch wheel ships ``OptimizerInfo`` (with inputs and error inputs) and the decorator that runs a test for each
entry. It does not ship the tests themselves (``test/test_optim.py`` of the torch repository): those two files
reimplement them.
"""

from __future__ import annotations

import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    _get_optim_inputs_including_global_cliquey_kwargs,
    get_error_inputs_for_all_optims,
    optims,
)

import semaopt
from semaopt.schedules import Follow, InverseSqrt, Stagewise

EXACT = {"rtol": 0, "atol": 0}

# Torch's test utilities disable assignments such as torch.backends.cudnn.benchmark = ..., which Lightning needs.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
assert not torch.backends.flags_frozen()


def inputs(device, dtype=None):
    """Return inputs for every option of ASA except ``differentiable``, which torch adds."""
    options = {
        "default": {},
        "lr and beta": {"lr": 0.01, "beta": 0.5},
        "tensor lr": {"lr": torch.tensor(0.002)},
        "tensor lr of shape (1,)": {"lr": torch.tensor([0.002])},
        "weight decay": {"weight_decay": 0.1},
        "decoupled weight decay": {"weight_decay": 0.1, "decoupled_weight_decay": True},
        "maximize": {"maximize": True},
        "maximize with weight decay": {"maximize": True, "weight_decay": 0.1},
        "bias correction": {"bias_correction": True},
        "clipped scaling": {"clip_scaling": (0.5, 2.0)},
        "clipped, corrected": {"clip_scaling": (0.5, 2.0), "bias_correction": True, "lr": 0.01},
    }
    return [OptimizerInput(params=None, kwargs=kwargs, desc=desc) for desc, kwargs in options.items()]


#: Cases in which ASA has a more detailed message than torch, or raises where torch only warns.
REPLACED_ERRORS = {
    "a param group cannot have duplicate parameters": "given twice, at group 0, position 0 and at group 0, position 1",
    "duplicate parameters should not occur across param groups either": (
        "given twice, at group 0, position 0 and at group 1, position 0"
    ),
    "Tensor lr must be 1-element": r"lr=tensor\(\[.*\]\) is invalid: it must be a finite number >= 0\. Try 1e-3",
}
ADDITIONAL_ERRORS = [
    ({"lr": -1e-2}, ValueError, r"lr=-0\.01 is invalid: it must be a finite number >= 0\. Try 1e-3"),
    ({"lr": float("nan")}, ValueError, r"lr=nan is invalid: it must be a finite number >= 0"),
    (
        {"beta": 1.0},
        ValueError,
        r"beta=1\.0 is invalid: it must lie in \[0, 1\)\. Try beta=0\.9; "
        r"gamma = 1 - beta is the weight of a new sample",
    ),
    (
        {"weight_decay": -1.0},
        ValueError,
        r"weight_decay=-1\.0 is invalid: it must be a finite number >= 0\. 0\.0 turns it off",
    ),
    ({"clip_scaling": (2.0, 1.0)}, ValueError, r"clip_scaling=\(2\.0, 1\.0\) is invalid: it must be \(c_l, c_u\)"),
    ({"maximize": "yes"}, ValueError, r"maximize='yes' is invalid: it must be True or False"),
    ({"differentiable": 1}, ValueError, r"differentiable=1 is invalid: it must be True or False"),
    ({"foreach": True}, TypeError, r"no argument foreach=True; pass implementation='foreach'"),
]


def error_inputs(device, dtype):
    errors = get_error_inputs_for_all_optims(device, dtype)
    known = {error.optimizer_error_input.desc for error in errors}
    assert known >= REPLACED_ERRORS.keys(), "torch renamed a check that REPLACED_ERRORS replaces"
    for error in errors:
        given = error.optimizer_error_input
        if given.desc in REPLACED_ERRORS:
            error.error_type, error.error_regex = ValueError, REPLACED_ERRORS[given.desc]
        given.params = [Parameter(torch.ones(2))] if given.params is None else given.params
    for kwargs, error_type, text in ADDITIONAL_ERRORS:
        given = OptimizerInput([Parameter(torch.ones(2))], kwargs, text)
        errors.append(ErrorOptimizerInput(given, error_type=error_type, error_regex=text))
    sparse = Parameter(torch.ones(2))
    sparse.grad = torch.ones(2).to_sparse()
    errors.append(
        ErrorOptimizerInput(
            OptimizerInput([sparse], {}, "sparse gradient"),
            error_on=OptimizerErrorEnum.STEP_ERROR,
            error_type=RuntimeError,
            error_regex=r"does not support sparse gradients \(group 0, parameter 0, shape \(2,\)\)",
        )
    )
    return errors


def with_scaling(name):
    """Return a subclass of ASA with this default scaling, since torch names tests after the class."""

    def __init__(self, params, **options):  # noqa: N807
        semaopt.ASA.__init__(self, params, scaling=name, **options)

    names = {"__init__": __init__, "__module__": __name__}
    return type(f"ASA{semaopt.scalings.BY_NAME[name].__name__}", (semaopt.ASA,), names)


CLASSES = {name: with_scaling(name) for name in semaopt.scalings.BY_NAME}
globals().update({cls.__name__: cls for cls in CLASSES.values()})  # pickle looks them up here
INFOS = {
    name: OptimizerInfo(
        cls,
        optim_inputs_func=inputs,
        optim_error_inputs_func=error_inputs,
        scheduler_inputs=(
            [lambda opt: lr_scheduler.StepLR(opt, 10, gamma=0.9), lr_scheduler.ReduceLROnPlateau],
            [lambda opt: lr_scheduler.LinearLR(opt, total_iters=4)],
            [lambda opt: Stagewise(opt, every=5, factor=0.5)],
            [InverseSqrt],
            [lambda opt: Follow(lr_scheduler.CosineAnnealingLR(opt, 40))],
            [lambda opt: Follow(lr_scheduler.ReduceLROnPlateau(opt))],
        ),
        supported_impls=("differentiable",),
    )
    for name, cls in CLASSES.items()
}
every_scaling = optims(INFOS.values(), dtypes=[torch.float32])


def every_input(device, dtype, info, *, differentiable=True):
    skip = () if differentiable else ("differentiable",)
    return [given.kwargs for given in _get_optim_inputs_including_global_cliquey_kwargs(device, dtype, info, skip)]


def linear(device, dtype, *, contiguous=True):
    """Return a weight, a bias, and a closure factory for |W a + b|^2."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype)

    weight, bias = (draw(10, 5), draw(10)) if contiguous else (draw(10, 5, 2)[..., 0], draw(10, 2)[..., 0])
    a = draw(5)

    def loss_of(optimizer, w, b):
        def closure():
            optimizer.zero_grad()
            loss = (w.mv(a) + b).square().sum()
            loss.backward()
            return loss

        return closure

    return Parameter(weight), Parameter(bias), loss_of


def twin(*params):
    return [Parameter(x.detach().clone()) for x in params]
