import math

import pytest

from semaopt import scalings
from semaopt.theory import Constants


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, True, "2", None])
def test_a_constant_is_a_finite_number(value):
    with pytest.raises(
        ValueError, match=r"c=.* is invalid: it must be a finite number >= 0\. It is the growth of the variance"
    ):
        Constants(c=value)


@pytest.mark.parametrize("value", [2.5, 0, -1, True])
def test_a_dimension_is_a_whole_number(value):
    assert Constants(dim_y=3).dim_y == 3
    with pytest.raises(ValueError, match=rf"dim_y={value} is invalid: it must be a .*\. It is the dimension of y"):
        Constants(dim_y=value)


def test_zero_only_where_it_means_something():
    with pytest.raises(
        ValueError, match=r"L=0.0 is invalid: it must be positive\. It is the Lipschitz constant of grad F"
    ):
        Constants(L=0.0)
    assert Constants(sigma2=0.0, L_gyy=0).L_gyy == 0.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mu": 2.0, "L": 1.0}, r"mu=2.0 is invalid: it must be at most L=1.0\. .*cannot exceed L"),
        ({"lam": 2.0, "L_f": 1.0}, r"lam=2.0 is invalid: it must be at most L_f=1.0"),
        ({"lam": 2.0, "C_gyy": 1.0}, r"lam=2.0 is invalid: it must be at most C_gyy=1.0"),
        ({"c_l": 2.0, "c_u": 1.0}, r"\(c_l, c_u\)=\(2.0, 1.0\) is invalid: it must be"),
        ({"L_f": 1.0, "C_gxy": 1.0}, r"L_f=1.0 is invalid: it must not be combined with C_gxy: L_f belongs to min-max"),
    ],
)
def test_constants_that_contradict_each_other(given, text):
    with pytest.raises(ValueError, match=text):
        Constants(**given)


def test_a_missing_constant_is_named_with_its_meaning():
    text = r"thm:2 needs L, the Lipschitz constant of grad F .*; delta_f, a bound of F\(x_0\) - min F. Pass Constants"
    with pytest.raises(ValueError, match=text):
        Constants(sigma2=1.0).need("thm:2", "L", "sigma2", "delta_f")
    with pytest.raises(ValueError, match=r"needs lam, lambda: "):
        Constants(L_f=1.0).kappa  # noqa: B018 - the property raises


def test_derived_constants():
    assert Constants(L_f=3.0, lam=0.5).kappa == 6.0
    assert Constants(L_f=3.0, lam=0.5).L_F == 21.0
    assert Constants(L_f=3.0, lam=0.5, L=4.0).L_F == 4.0
    assert Constants(sigma2=3.0, c=0.5, L=2.0, delta_f=5.0).delta_0 == 33.0  # 3 (1 + 0.5 * 2 * 2 * 5)
    assert Constants(sigma2=3.0).delta_0 == 3.0
    assert Constants(sigma2=3.0, estimator_error=1.0).delta_0 == 1.0


def test_derived_constants_of_a_bilevel_problem():
    c = Constants(lam=2.0, L_fx=1.0, L_fy=3.0, L_gxy=0.5, L_gyy=4.0, C_fy=2.0, C_gxy=1.0)
    # 2*1 + 6*4*0.25/4 + 6*4*1*16/16 + 6*9*1/4
    assert pytest.approx(2 + 1.5 + 24 + 13.5) == c.C_0
    assert c.L_y == 0.5
    assert pytest.approx(math.sqrt(41 * 1.25)) == c.L_F


def test_scaled_takes_the_bounds_of_table_2():
    c = Constants(L=1.0).scaled(scalings.AdamPlus(g0=0.5), G=4.0)
    assert (c.c_l, c.c_u) == (0.4, 2.0)
    assert Constants(L=1.0).scaled("shb", G=4.0).ratio == 1.0

    class Own:
        g0, buffers = 1.0, ()

        def update_(self, m, seen):
            return seen.g.abs()

    with pytest.raises(TypeError, match=r"its bounds are not in Table 2\. Pass Constants\(c_l=..., c_u=...\)"):
        Constants(L=1.0).scaled(Own(), G=1.0)
    with pytest.raises(ValueError, match=r"G=0 is invalid: it must be a finite number > 0"):
        Constants(L=1.0).scaled("adam", G=0)
