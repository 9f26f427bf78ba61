"""Errors for unknown options, which name the equivalent of torch's option names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import semaopt


def parameter():
    return nn.Parameter(torch.ones(2))


EQUIVALENTS = {
    "betas": ((0.9, 0.99), r"beta=betas\[0\] and scaling=semaopt\.scalings\.Adam\(beta2=betas\[1\]\)"),
    "eps": (1e-8, r"scaling=semaopt\.scalings\.Adam\(g0=eps\)"),
    "momentum": (0.9, r"beta=momentum and scaling='shb'"),
    "dampening": (0.9, r"beta=momentum and scaling='shb', which has dampening = momentum"),
    "amsgrad": (True, r"scaling='amsgrad'"),
    "fused": (True, r"implementation='c'"),
    "foreach": (True, r"implementation='foreach'"),
    "capturable": (True, r"torch\.compile\(optimizer\.step\)"),
    "beta2": (0.99, r"scaling=semaopt\.scalings\.Adam\(beta2=\.\.\.\)"),
}
KINDS = {
    "ASA": lambda group, **options: semaopt.ASA([group], **options),
    "SCMA": lambda group, **options: semaopt.SCMA([group], **options),
    "PDAda": lambda group, **options: semaopt.PDAda([group], [parameter()], **options),
    "PDSM": lambda group, **options: semaopt.PDSM([group], [parameter()], **options),
    "SGDA": lambda group, **options: semaopt.baselines.SGDA([group], [parameter()], **options),
    "SMB": lambda group, **options: semaopt.SMB([group], [parameter()], **options),
}


@pytest.mark.parametrize("name", EQUIVALENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_torch_option_names_raise_and_name_the_equivalent(kind, name):
    value, text = EQUIVALENTS[name]
    with pytest.raises(TypeError, match=f"{kind} has no argument {name}=.*{text}"):
        KINDS[kind]({"params": [parameter()]}, **{name: value})
    with pytest.raises(ValueError, match=f"^{name}=.* group has no such option; .*{text}"):
        KINDS[kind]({"params": [parameter()], name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_group_key_raises(kind):
    with pytest.raises(ValueError, match=r"^wieght_decay=0\.1: .* group has no such option; it has .*lr"):
        KINDS[kind]({"params": [parameter()], "wieght_decay": 0.1})


def test_keys_set_by_schedules_and_loggers_are_accepted():
    optimizer = semaopt.ASA([{"params": [parameter()], "name": "head", "initial_lr": 0.1, "max_lr": 0.2}])
    assert optimizer.param_groups[0]["name"] == "head"


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_numpy_numbers_are_accepted(number):
    x, twin = parameter(), parameter()
    pair = semaopt.ASA([x], lr=number(0.125), beta=number(0.5)), semaopt.ASA([twin], lr=0.125, beta=0.5)
    for optimizer, y in zip(pair, (x, twin), strict=True):
        y.grad = torch.ones(2)
        optimizer.step()
    assert type(pair[0].param_groups[0]["lr"]) is type(pair[0].param_groups[0]["beta"]) is float
    assert torch.equal(x, twin)


@pytest.mark.parametrize("kind", ["PDAda", "PDSM"])
def test_primal_dual_methods_take_a_state_dtype_and_an_implementation(kind):
    x = parameter()
    build = KINDS[kind]
    optimizer = build({"params": [x]}, state_dtype=torch.bfloat16, implementation="foreach")
    y = optimizer.param_groups[1]["params"][0]
    (x * y).sum().backward()
    optimizer.step()
    assert optimizer.state[x]["v"].dtype == torch.bfloat16
    assert optimizer.param_groups[0]["implementation"] == "foreach"


PAIRS = {
    "PDAda": semaopt.PDAda,
    "PDSM": semaopt.PDSM,
    "SMB": semaopt.SMB,
    "SBMA": semaopt.SBMA,
    **{name: getattr(semaopt.baselines, name) for name in dir(semaopt.baselines) if name[0].isupper()},
}


@pytest.mark.parametrize("kind", PAIRS)
def test_single_list_of_groups_with_roles(kind):
    roles = PAIRS[kind].roles
    x, y, z = parameter(), parameter(), parameter()
    groups = [
        {"params": [y], "role": roles.second, "lr": 0.25},
        {"params": [x], "role": roles.first, "lr": 0.5},
        {"params": [z], "role": roles.first},
    ]
    required = {"samples": (4, 4)} if kind == "SABA" else {}
    optimizer = PAIRS[kind](groups, lr=0.125, **required)
    assert [(group["role"], group["lr"]) for group in optimizer.param_groups] == [
        (roles.second, 0.25),
        (roles.first, 0.5),
        (roles.first, 0.125),
    ]


def test_single_list_of_groups_needs_both_roles():
    with pytest.raises(TypeError, match=r"dual= is missing: pass primal= and dual=, or one list of param groups"):
        semaopt.PDAda([parameter()])
    with pytest.raises(ValueError, match=r"role='dual' is invalid: no group of the list has this role\. Add a group"):
        semaopt.PDAda([{"params": [parameter()], "role": "primal"}])
    with pytest.raises(ValueError, match=r"role=None is invalid: a param group of a min-max optimizer must have one"):
        semaopt.PDAda(
            [{"params": [parameter()], "role": role} for role in ("primal", "dual")] + [{"params": [parameter()]}]
        )


@pytest.mark.parametrize("model", [nn.Linear(2, 1), nn.Sequential(nn.Linear(2, 1))], ids=["one", "many"])
def test_a_module_in_place_of_its_parameters_raises(model):
    with pytest.raises(TypeError, match=r"params: got a module \(.*\); pass its parameters, model\.parameters\(\)"):
        semaopt.ASA(model)
    with pytest.raises(TypeError, match=r"primal: got .*; pass parameters, such as model\.parameters\(\)"):
        semaopt.PDAda(primal=model, dual=[parameter()])


@pytest.mark.parametrize("kind", ["ASA", "SCMA", "PDAda", "PDSM", "SMB"])
def test_bias_correction_is_the_default(kind):
    """Without it the first gradient keeps the weight beta^t, which costs networks 1 to 10% of validation loss."""
    optimizer = KINDS[kind]({"params": [parameter()]})
    assert optimizer.param_groups[0]["bias_correction"] is True


def test_bias_correction_is_the_default_of_sbma():
    assert semaopt.SBMA([parameter()], [parameter()]).param_groups[0]["bias_correction"] is True


@pytest.mark.parametrize("kind", ["ASA", "PDAda", "PDSM"])
def test_the_first_gradient_is_forgotten_by_default(kind):
    """After gradients 1, 0, 0 the average is beta^2/(1 + beta + beta^2), not the beta^2 of the paper's start."""
    x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = KINDS[kind]({"params": [x], "scaling": "shb", "lr": 1.0, "beta": 0.5})
    for group in optimizer.param_groups[1:]:
        group["params"][0].requires_grad_(False)
    moves = []
    for g in (1.0, 0.0, 0.0):
        before, x.grad = x.item(), torch.full_like(x, g)
        optimizer.step()
        moves.append(before - x.item())
    assert moves == pytest.approx([1, 0.5 / 1.5, 0.25 / 1.75], rel=1e-12)
