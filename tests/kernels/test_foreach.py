"""Equality of the foreach path and the loop, in eager mode and under torch.compile."""

from __future__ import annotations

import pytest
import torch

import semaopt
from semaopt.kernels import dispatch, foreach
from tests.kernels.common import CLOSE, OPTIONS, SCALINGS, assert_agree, normal, parameters, trained


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_foreach_equals_loop(scaling, options, dtype):
    pair = (trained(path, dtype, scaling, **options) for path in ("foreach", "loop"))
    assert_agree(*pair, **CLOSE[dtype])


def test_group_with_mixed_dtypes_and_strides():
    def start():
        xs = [normal((5, i), dtype, i) for i in range(5) for dtype in CLOSE]
        return [torch.nn.Parameter(x[:, ::2]) for x in xs]

    for scaling in SCALINGS:
        assert_agree(
            *(trained(path, None, scaling, xs=start()) for path in ("foreach", "loop")), **CLOSE[torch.bfloat16]
        )


def test_every_scaling_has_a_foreach_row():
    assert set(foreach.SCALINGS) == set(semaopt.scalings.BY_NAME.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scaling", "hyper"),
    [
        ("adam", {"lr": torch.tensor(0.05), "weight_decay": 0.1}),
        ("adabound", {"bias_correction": True, "clip_scaling": (0.5, 2.0)}),
        ("adam+", {"maximize": True, "weight_decay": 0.1, "decoupled_weight_decay": True}),
        ("amsgrad", {"state_dtype": torch.bfloat16}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_compiled_foreach_equals_loop(scaling, hyper, monkeypatch):
    """All parameters share one graph, and a new tensor learning rate does not cause a recompilation."""
    taken = []
    monkeypatch.setattr(dispatch, "foreach_group", lambda *args: (taken.append(1), foreach.foreach_group(*args)))
    torch._dynamo.reset()
    results = []
    for compiled in (True, False):
        xs = parameters(torch.float32, ((3, 2), (), (700,)))
        optimizer = semaopt.ASA(xs, scaling=scaling, implementation="auto" if compiled else "loop", **hyper)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for k in range(4):
            for i, x in enumerate(xs):
                x.grad = normal(tuple(x.shape), x.dtype, 100 * k + i)
            step()
        results.append((xs, optimizer))
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if "state_dtype" in hyper else CLOSE[torch.float32]
    assert_agree(*results, **tolerance)
    assert taken, "the trace took another path"


def test_bounds_of_s_are_not_rounded_to_float32():
    x = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = semaopt.ASA([x], lr=1.0, beta=0.0, scaling="shb", clip_scaling=(0.3, 0.7), implementation="foreach")
    x.grad = torch.ones_like(x)
    optimizer.step()
    assert x.item() == pytest.approx(0.3, abs=1e-15)


class CustomScaling(semaopt.scalings.AdaFom):
    """A scaling without a foreach row, which uses the loop even when compiled."""


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("scaling", [*SCALINGS, CustomScaling()], ids=str)
def test_rates_traced_in_float64_are_not_rounded_to_float32(scaling, corrected):
    torch._dynamo.reset()
    results = []
    for trace in (lambda step: torch.compile(step, backend="eager"), lambda step: step):
        x = torch.nn.Parameter(normal((5,), torch.float64, 7))
        optimizer = semaopt.ASA([x], lr=0.03, scaling=scaling, bias_correction=corrected)
        step = trace(optimizer.step)
        for k in range(4):
            x.grad = normal((5,), x.dtype, k)
            step()
        results.append(x.detach())
    torch.testing.assert_close(*results, rtol=1e-14, atol=1e-15)


def test_float32_rate_does_not_round_the_decay_of_float64_parameters():
    """1 - eta * decay is traced in float64, the dtype used in eager mode."""
    torch._dynamo.reset()
    results = []
    for trace in (lambda step: torch.compile(step, backend="eager"), lambda step: step):
        x = torch.nn.Parameter(normal((5,), torch.float64, 7))
        options = {"lr": torch.tensor(0.03), "weight_decay": 0.1, "decoupled_weight_decay": True}
        step = trace(semaopt.ASA([x], **options).step)
        for k in range(4):
            x.grad = normal((5,), x.dtype, k)
            step()
        results.append(x.detach())
    torch.testing.assert_close(*results, rtol=1e-14, atol=1e-15)
