"""Choice of the implementation (C, foreach or loop), and errors when a requested one is unsupported."""

from __future__ import annotations

import copy
import logging
import re

import pytest
import torch

import semaopt
from semaopt.kernels import compiled, dispatch, loader
from semaopt.optimizers._base import rule_of
from tests.kernels.common import needs_c, normal


class CustomScaling:
    g0, buffers = 1.0, ()

    def update_(self, m, seen):
        return seen.g.square()


class MyAdam(semaopt.scalings.Adam):
    """A subclass with its own formula, which must not be treated as Adam."""

    def update_(self, m, seen):
        return 4.0


def path_of(x, g=None, scaling="adam", **hyper):
    optimizer = semaopt.ASA([x], scaling=scaling, **hyper)
    x.grad = torch.ones_like(x) if g is None else g
    optimizer._init_group(optimizer.param_groups[0], [], [])
    return dispatch.choose(rule_of(optimizer.param_groups[0]), x, x.grad, optimizer.state[x])


def parameter(*shape, **options):
    return torch.nn.Parameter(torch.ones(*shape, **options))


class Wrapped(torch.Tensor):
    pass


LOOP = {
    "complex": lambda: path_of(parameter(3, dtype=torch.complex64)),
    "differentiable": lambda: path_of(torch.ones(3), differentiable=True),
    "own scaling": lambda: path_of(parameter(3), scaling=CustomScaling()),
    "subclass of a scaling": lambda: path_of(parameter(3), scaling=MyAdam()),
    "tensor subclass": lambda: path_of(torch.ones(3).as_subclass(Wrapped)),
}
FOREACH = {
    "float16": lambda: path_of(parameter(3, dtype=torch.float16)),
    "gaps": lambda: path_of(torch.nn.Parameter(torch.ones(6)[::2])),
    "meta": lambda: path_of(parameter(3, device="meta")),
}
C = {
    "float32": lambda: path_of(parameter(3)),
    "float64": lambda: path_of(parameter(3, dtype=torch.float64)),
    "bfloat16": lambda: path_of(parameter(3, dtype=torch.bfloat16)),
    "transposed": lambda: path_of(torch.nn.Parameter(torch.ones(3, 4).t())),
    "gradient with gaps": lambda: path_of(parameter(3), g=torch.ones(6)[::2]),
    "bf16 state": lambda: path_of(parameter(3), state_dtype=torch.bfloat16),
    **{name: lambda name=name: path_of(parameter(3), scaling=name) for name in semaopt.scalings.BY_NAME},
}


@pytest.mark.parametrize("case", LOOP)
def test_loop_is_chosen(case):
    assert LOOP[case]() == "loop"


@pytest.mark.parametrize("case", FOREACH)
def test_foreach_is_chosen(case):
    assert FOREACH[case]() == "foreach"


@needs_c
@pytest.mark.parametrize("case", C)
def test_c_step_is_chosen(case):
    assert C[case]() == "c"


def test_mixed_group_uses_every_path(monkeypatch):
    """The result equals that of the loop."""
    taken = set()
    for module, name in ((compiled, "step"), (dispatch, "foreach_group")):
        f = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, f=f, name=name: (taken.add((name, len(args[1]))), f(*args))[1])
    dtypes = (torch.float32, torch.float16, torch.complex64, torch.float64)
    ends = []
    for implementation in ("auto", "loop"):
        xs = [torch.nn.Parameter(normal((4,), dtype, 0)) for dtype in dtypes]
        optimizer = semaopt.ASA(xs, implementation=implementation)
        for k in range(3):
            for x in xs:
                x.grad = normal((4,), x.dtype, k + 1)
            optimizer.step()
        ends.append(xs)
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b)
    expected = (
        {("step", 4), ("step", 2), ("foreach_group", 1)} if semaopt.kernels.available() else {("foreach_group", 3)}
    )
    assert expected <= taken


def test_adam_plus_uses_one_path_for_the_group(monkeypatch):
    """The norm is taken over the group, so one complex parameter moves all parameters to the loop."""
    ends = []
    for implementation in ("auto", "loop"):
        xs = [torch.nn.Parameter(normal((4,), dtype, 0)) for dtype in (torch.float32, torch.complex64)]
        optimizer = semaopt.ASA(xs, scaling="adam+", implementation=implementation)
        for x in xs:
            x.grad = normal((4,), x.dtype, 1)
        optimizer.step()
        ends.append(xs)
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


REQUESTS = [
    (
        "c",
        {"params": [parameter(3)], "scaling": CustomScaling()},
        r"'c': the scaling CustomScaling is not one of Table 2",
    ),
    (
        "foreach",
        {"params": [parameter(3)], "scaling": CustomScaling()},
        r"'foreach': the scaling CustomScaling is not one of Table 2",
    ),
    ("foreach", {"params": [torch.ones(3)], "differentiable": True}, r"differentiable=True needs the graph"),
    (
        "foreach",
        {"params": [parameter(2, dtype=torch.complex64)]},
        r"complex64 is complex, and only the loop supports .*parameter 0",
    ),
    ("foreach", {"params": [torch.ones(3).as_subclass(Wrapped)]}, r"Wrapped is a tensor subclass"),
]
C_REQUESTS = [
    ("c", {"params": [parameter(2, device="meta")]}, r"needs CPU memory, and the parameter is on meta"),
    (
        "c",
        {"params": [parameter(1), parameter(2, dtype=torch.float16)]},
        r"computes in float32, float64 and bfloat16, and the parameter has torch.float16 \(parameter 1, shape \(2,\)\)",
    ),
    ("c", {"params": [torch.nn.Parameter(torch.ones(4)[::2])]}, r"tensors without gaps in memory.*use 'auto'"),
]


@pytest.mark.parametrize(("wish", "group", "text"), REQUESTS)
def test_unsupported_request(wish, group, text):
    with pytest.raises(ValueError, match=text):
        semaopt.ASA([group], implementation=wish)


@needs_c
@pytest.mark.parametrize(("wish", "group", "text"), C_REQUESTS)
def test_request_unsupported_by_the_c_step(wish, group, text):
    with pytest.raises(ValueError, match=text):
        semaopt.ASA([group], implementation=wish)


def test_unknown_implementation():
    with pytest.raises(
        ValueError,
        match=r"implementation='cuda' is invalid: it must be one of 'auto', 'c', 'triton', 'foreach', 'loop'",
    ):
        semaopt.ASA([parameter(1)], implementation="cuda")


@needs_c
def test_request_that_becomes_unsupported_is_refused_before_any_change():
    xs = [parameter(3), parameter(3)]
    optimizer = semaopt.ASA([{"params": xs[:1]}, {"params": xs[1:], "implementation": "c"}])
    for x in xs:
        x.grad = torch.ones(3)
    optimizer.step()
    before = copy.deepcopy([x.detach() for x in xs])
    xs[1].data = torch.ones(6)[::2]
    with pytest.raises(ValueError, match=r"implementation='c': the C step needs tensors without gaps in memory"):
        optimizer.step()
    assert torch.equal(xs[0], before[0])


def test_state_of_another_dtype_uses_the_loop():
    """Casting a model after its first step does not change the dtype of the averages."""
    x = parameter(3)
    optimizer = semaopt.ASA([x])
    x.grad = torch.ones(3)
    optimizer.step()
    x.grad = None
    x.data = x.data.double()
    x.grad = torch.ones(3, dtype=torch.float64)
    assert dispatch.choose(rule_of(optimizer.param_groups[0]), x, x.grad, optimizer.state[x]) == "loop"
    optimizer.step()
    assert x.dtype == torch.float64
    assert optimizer.state[x]["v"].dtype == torch.float32


def test_gradients_of_another_dtype():
    x = parameter(3, dtype=torch.bfloat16)
    optimizer = semaopt.ASA([x], scaling="shb", lr=1.0, beta=0.0)
    x.grad_dtype = None
    x.grad = torch.full((3,), 2**-10)
    assert dispatch.choose(rule_of(optimizer.param_groups[0]), x, x.grad, {}) == "foreach"
    optimizer.step()
    assert torch.equal(optimizer.state[x]["v"], torch.full((3,), 2**-10))


def test_checkpoint_does_not_change_the_implementation():
    first, second = (semaopt.ASA([parameter(3)], implementation=wish) for wish in ("loop", "foreach"))
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["implementation"] == "foreach"


@pytest.fixture
def without_library(monkeypatch):
    """Simulate an installation without a compiler."""
    missing = loader.Availability(False, "the C step is not compiled: no C compiler: 'cc' was not found; install one")
    for module in (loader, dispatch, compiled):
        monkeypatch.setattr(module, "library", lambda: None)
    for module in (loader, dispatch):
        monkeypatch.setattr(module, "available", lambda: missing)
    dispatch._warn_once.cache_clear()
    yield missing
    dispatch._warn_once.cache_clear()


def test_without_the_library_everything_works_and_is_logged_once(without_library, caplog):
    with caplog.at_level(logging.WARNING, logger="semaopt"):
        for _ in range(2):
            x = parameter(3)
            optimizer = semaopt.ASA([x])
            for _ in range(2):
                x.grad = torch.ones(3)
                optimizer.step()
    assert x[0].item() == pytest.approx(1 - 2e-3, abs=1e-6)
    [record] = caplog.records
    assert re.fullmatch(r"semaopt: the C step is not compiled: .* was not found; .*take longer", record.getMessage())


def test_requesting_the_missing_library_gives_the_reason(without_library):
    with pytest.raises(ValueError, match=r"implementation='c': the C step is not compiled: no C compiler: 'cc'"):
        semaopt.ASA([parameter(1)], implementation="c")
