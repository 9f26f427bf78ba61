"""Every optimizer by its name."""

import pytest
import torch

import semaopt


@pytest.mark.parametrize("name", semaopt.optimizer_names())
def test_every_name_builds_its_class(name):
    x, y = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    kind = getattr(semaopt, name, None) or getattr(semaopt.baselines, name)
    params = [x]
    if kind.roles is not None:
        params = [{"params": [p], "role": role} for p, role in zip((x, y), kind.roles.names, strict=True)]
    needed = {"samples": (1, 1)} if name == "SABA" else {}
    for spelling in (name, name.lower()):
        optimizer = semaopt.create(spelling, params, lr=0.25, **needed)
        assert type(optimizer) is kind
        assert optimizer.param_groups[0]["lr"] == 0.25


def test_all_optimizers_have_a_name():
    exported = {name for name in dir(semaopt.baselines) if name[0].isupper()}
    assert set(semaopt.optimizer_names()) == exported | {"ASA", "PDAda", "PDSM", "SMB", "SBMA", "SCMA"}


def test_an_unknown_name():
    with pytest.raises(ValueError, match=r"name='adam' is invalid: no optimizer has this name\. Use one of ASA, PDSM"):
        semaopt.create("adam", [])
