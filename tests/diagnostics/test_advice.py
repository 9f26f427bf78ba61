"""The warnings in words."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import semaopt
from semaopt.diagnostics import Monitor
from semaopt.diagnostics.advice import Measurements, advise, describe_noise

NOTHING = {"median": None, "L": None, "sigma2": None, "gradient": None, "tracking": None}


def measured(**values):
    return Measurements(**{"lr": 1e-3, "gamma": 0.1, "c_l": 1.0, "c_u": 1.0, **NOTHING, **values})


def test_nothing_to_say():
    assert advise(measured()) == []
    assert advise(measured(L=1.0, sigma2=0.1, gradient=1.0, tracking=0.01)) == []


def test_the_step_size_of_thm_2():
    # c_l/(2 L c_u^2) = 1e-3/2e6 is the smallest limit; a factor 10 around the median allows much more.
    [text] = advise(measured(L=1.0, c_l=1e-3, c_u=1e3, median=1.0))
    assert text == (
        "c_u/c_l = 1e+06: thm:2 requires lr <= 5e-10 (L = 1), but lr = 0.001. "
        "clip_scaling=(0.3, 3) would reduce it to 10 and allow lr <= 0.005."
    )
    [text] = advise(measured(L=100.0))
    assert (
        text
        == "c_u/c_l = 1: thm:2 requires lr <= 0.0005 (L = 1e+02), but lr = 0.001. Lower lr, or raise gamma = 1 - beta."
    )


def test_without_l_only_a_wide_range_is_worth_a_word():
    assert advise(measured(c_l=0.1, c_u=1.0)) == []
    [text] = advise(measured(c_l=1.0, c_u=1e7, median=1e3))
    assert text == (
        "c_u/c_l = 1e+07: the bounds of thm:2 grow with it. clip_scaling=(300, 3e+03) would reduce it to 10. "
        "Pass full_gradient to measure L and the largest lr."
    )


def test_s_without_bounds():
    [text] = advise(measured(c_u=float("inf")))
    assert text.startswith("s ranges from 1 to inf: ass:2 does not hold. Bound s with clip_scaling=(c_l, c_u)")


def test_s_that_leaves_what_the_constants_can_be():
    [text] = advise(measured(c_u=1e20, L=1.0))
    assert text == (
        "s ranges from 1 to 1e+20: with these bounds thm:2 guarantees nothing. Use clip_scaling=(c_l, c_u) between "
        "1e-18 and 1e+18, or a larger g0."
    )


def test_where_the_gradient_is_constant_any_lr_will_do():
    assert advise(measured(L=0.0, lr=1e9)) == []


NUMBERS = st.none() | st.sampled_from([0.0, 5e-324, 1e-200, 1e-20, 1.0, 1e20, 1e200, math.inf, math.nan]) | st.floats(0)


@given(
    lr=st.floats(0, 1e300),
    gamma=st.floats(0, 1, exclude_min=True),
    values=st.fixed_dictionaries(dict.fromkeys((*NOTHING, "c_l", "c_u"), NUMBERS)),
)
def test_whatever_was_measured_there_is_advice_or_none(lr, gamma, values):
    for text in advise(Measurements(lr=lr, gamma=gamma, **values)):
        assert text.endswith(".")


def test_monitors_of_extreme_but_legal_runs():
    def watched(loss, x0, **hyper):
        x = torch.nn.Parameter(torch.tensor([x0], dtype=torch.float64))
        optimizer = semaopt.ASA([x], **hyper)
        with Monitor(optimizer, full_gradient=lambda: loss(x), every=1) as m:
            for _ in range(4):
                optimizer.zero_grad()
                loss(x).backward()
                optimizer.step()
        return m.warnings

    assert watched(lambda x: 3 * x.sum(), 1.0) == []
    small = watched(lambda x: 1e-30 * x.square().sum(), 1.0, scaling=semaopt.scalings.Adam(g0=1e-20))
    assert any("a larger g0" in text for text in small)
    for x0 in (1e200, math.nan):
        watched(lambda x: x.square().sum(), x0, scaling="shb", lr=1e3)
        watched(lambda x: x.square().sum(), x0, lr=1e3)


def test_gamma_against_the_noise():
    [text] = advise(measured(sigma2=100.0, gradient=0.01))
    assert text == (
        "Noise: an average with gamma = 0.1 keeps 5.3 of sigma^2 = 1e+02, more than |grad F|^2 = 0.01. "
        "Use gamma <= 0.0002 (beta >= 0.9998)."
    )


def test_v_that_points_elsewhere():
    [text] = advise(measured(gradient=0.1, tracking=2.0))
    assert text.startswith(
        "Tracking: |v - grad F|^2 = 2 on average exceeds |grad F|^2 = 0.1, so v mostly points elsewhere. Lower lr"
    )


def test_a_monitor_warns_of_adam_with_a_tiny_g0():
    x = torch.nn.Parameter(torch.tensor([1.0, 1e-9]))
    optimizer = semaopt.ASA([x], lr=1e-3, scaling="adam")
    with Monitor(optimizer, full_gradient=lambda: x.square().sum(), every=1) as m:
        for _ in range(3):
            optimizer.zero_grad()
            x.square().sum().backward()
            optimizer.step()
    [text] = m.warnings
    assert text.startswith("c_u/c_l = 2e+07: thm:2 requires lr <= ")
    assert "clip_scaling=(" in text


def test_a_scaling_that_cannot_be_read():
    class Own:
        g0, buffers = 1.0, ()

        def update_(self, m, seen):
            return seen.g.square()

    x = torch.nn.Parameter(torch.ones(2))
    optimizer = semaopt.ASA([x], scaling=Own())
    with Monitor(optimizer, every=1) as m:
        x.grad = torch.ones(2)
        optimizer.step()
    assert m.scaling_bounds is None
    [text] = m.warnings
    assert text.startswith("The bounds of s are not known for Own: its u cannot be read")


@pytest.mark.parametrize("gradient", [0.0, None])
def test_nothing_is_said_about_what_is_not_known(gradient):
    assert advise(measured(sigma2=1.0, gradient=gradient, tracking=1.0, c_l=None, c_u=None)) == []


@pytest.mark.parametrize(
    ("scale", "batch", "text"),
    [
        (1000.0, 32, "Noise scale 1e+03 against batch size 32: noise dominates, larger batches save steps almost in"),
        (40.0, 32, "Noise scale 40 against batch size 32: the batch size is close to the critical one."),
        (2.0, 32, "Noise scale 2 against batch size 32: noise is small, smaller batches would need few"),
        (0.0, 1, "Noise scale 0 against batch size 1: noise is small"),
        (math.inf, 1, "Noise scale inf against batch size 1: noise dominates"),
    ],
)
def test_the_noise_scale_in_words(scale, batch, text):
    assert describe_noise(scale, batch).startswith(text)


def test_an_unknown_noise_scale_has_no_words():
    assert describe_noise(None, 1) is None
    assert describe_noise(math.nan, 1) is None
