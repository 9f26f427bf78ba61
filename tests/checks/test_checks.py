"""Theorem checks, which must pass under the conditions of the theorems and fail if the rates violate one."""

import math

import pytest
import torch

from semaopt import checks, scalings
from semaopt.checks import bilevel, counterexample, minimization, minmax, pl
from semaopt.checks.averages import ROWS, Size
from semaopt.checks.result import below, flat, inside, mean_and_half, rate, slope
from semaopt.problems import Additive, Bounded, DualPL, LeastSquares, RandomCoordinate, StronglyConcave


def times(**factors):
    return lambda rates: {name: value * factors.get(name, 1) for name, value in rates.items()}


def to(**values):
    return lambda rates: {**rates, **values}


def failed(result):
    return [line.claim for line in result.lines if not line.passed]


SMALL = Size((300, 1200), seeds=32)
PLAIN = minimization.Setting(Bounded(), Additive(1.0), ROWS["shb"])


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_constant_rates_pass(row):
    setting = minimization.Setting(Bounded(), Additive(1.0), row)
    size = Size((1000, 3000), seeds=32)
    assert failed(minimization.constant("constant", setting, size)) == []


@pytest.mark.parametrize(
    ("perturb", "claim"),
    [
        (times(eta=300), "avg |grad F|^2 ~ T^p"),  # eta <= c_l/(2 L c_u^2)
        (times(gamma=0.01), "avg |v - grad F|^2 <= bound"),  # eta <= gamma sqrt(c_l)/(2 L sqrt(c_u^3))
        (to(gamma=1.0), "avg |v - grad F|^2 ~ T^p"),  # gamma does not shrink
        (to(eta=1e-3), "avg |grad F|^2 <= bound"),  # eta does not follow gamma
    ],
    ids=["eta", "eta/gamma", "gamma", "small eta"],
)
def test_broken_constant_rates_fail(perturb, claim):
    assert claim in failed(minimization.constant("constant", PLAIN, SMALL, perturb))


def test_noise_that_grows_needs_a_small_gamma():
    setting = minimization.Setting(Bounded(d=4), RandomCoordinate(8.0), ROWS["shb"])
    assert "avg |v - grad F|^2 <= bound" in failed(minimization.constant("c", setting, SMALL, to(gamma=1.0)))


def test_wrong_bounds_of_s_are_detected():
    """The bound c_l of the scaling is computed from too small a gradient."""

    class Steep(Bounded):
        steepest = 1e-6

    setting = minimization.Setting(Steep(), Additive(1e-6), scalings.Adam(g0=1e-3))
    assert "c_l <= s <= c_u" in failed(minimization.constant("constant", setting, Size((100, 200), seeds=4)))


@pytest.mark.parametrize(
    ("perturb", "claim"),
    [(times(rho=300), "avg |grad F|^2 ~ ln(T) T^p"), (to(gamma_0=1e6), "avg |v - grad F|^2 ~ ln(T) T^p")],
    ids=["rho", "gamma_0"],
)
def test_decreasing_rates(perturb, claim):
    assert failed(minimization.decreasing("decreasing", PLAIN, SMALL)) == []
    assert claim in failed(minimization.decreasing("decreasing", PLAIN, SMALL, perturb))


@pytest.mark.parametrize(
    "perturb", [times(T=0.01), times(eta=100), times(eta=20, gamma=40)], ids=["T", "eta", "eta and gamma"]
)
def test_stages(perturb):
    setting = minimization.Setting(LeastSquares(mu=0.5), Additive(0.05), ROWS["shb"])
    assert failed(pl.pl("pl", setting, 2.0**-3, 128)) == []
    assert "F - min F <= epsilon_k" in failed(pl.pl("pl", setting, 2.0**-3, 32, perturb))


def test_stages_in_mu():
    assert failed(pl.pl_in_mu("mu", (0.5, 0.25), 3, 128)) == []
    assert "F - min F <= epsilon" in failed(pl.pl_in_mu("mu", (0.5, 0.25), 2, 16, times(T=0.01)))


PROBLEM = StronglyConcave(d=4, lam=2.25, beta=0.25, x0=0.5)
ERROR = "avg |v - grad F|^2 + w |y - y*|^2"


@pytest.mark.parametrize(
    ("perturb", "claim"),
    [
        (to(gamma=1.0), f"{ERROR} ~ T^p"),  # gamma < 1/4
        (to(eta_y=3.0), f"{ERROR} <= bound"),  # eta_y <= lambda/L_f^2
        (times(eta_x=1000), f"{ERROR} ~ T^p"),  # eta_x <= ... eta_y, eta_x <= ... gamma
        (to(eta_x=1e-6), "avg |grad F|^2 <= bound"),
    ],
    ids=["gamma", "eta_y", "eta_x", "small eta_x"],
)
def test_broken_min_max_rates_fail(perturb, claim, monkeypatch):
    monkeypatch.setattr(minmax, "CONVERSE", (50, 100))
    size = Size((1500, 4500), seeds=16)
    assert claim in failed(minmax.minmax("minmax", minmax.MinMaxSetting(PROBLEM, ROWS["shb"]), size, perturb))


@pytest.mark.parametrize("problem", [PROBLEM, DualPL(d=4, lam=2.0, x0=0.5)], ids=["strongly concave", "pl"])
def test_min_max_rates_pass(problem, monkeypatch):
    monkeypatch.setattr(minmax, "CONVERSE", (1000, 2000))
    assert (
        failed(minmax.minmax("minmax", minmax.MinMaxSetting(problem, ROWS["shb"]), Size((1500, 4500), seeds=32))) == []
    )


def test_min_max_in_kappa():
    assert failed(minmax.minmax_in_kappa("kappa", (2.25, 1.5), 1000, 16)) == []

    def too_careful(rates):
        """Let eta_x fall with two more powers of kappa, as eta_x/eta_y does by itself."""
        return {**rates, "eta_x": rates["eta_x"] ** 2 / rates["eta_y"] / 0.0117}

    result = minmax.minmax_in_kappa("kappa", (2.25, 1.0), 5000, 8, too_careful)
    assert "avg |grad F|^2 ~ kappa^p" in failed(result)


def test_bilevel():
    problem, size = bilevel.SBMA_PROBLEM, Size((500,), seeds=32)
    assert failed(bilevel.sbma("sbma", problem, size)) == []
    for perturb in (to(eta_y=3.0), times(eta_x=3000)):
        assert f"{ERROR} <= bound" in failed(bilevel.sbma("sbma", problem, size, perturb))
    size = Size((200, 400), seeds=8)
    assert f"{ERROR} <= bound" in failed(bilevel.smb("smb", bilevel.SMB_PROBLEM, ROWS["shb"], size, to(eta_y=3.0)))


def test_the_counter_example():
    result = counterexample.counterexample("counterexample", T=20_000, betas=(0.9, 0.9997), goal=0.3, seeds=16)
    assert [line.claim for line in result.lines][1:] == [
        "beta = 0.9997: mean x_T < 0.3, towards the minimum",
        "beta = 0.9997 ends below beta = 0.9",
    ]
    assert failed(result) == [
        "beta = 0.9: mean x_T > 0.9, away from the minimum"
    ]  # x passes 0.9 only after five times as many steps
    assert result.lines[0].measured > 0.1
    same = counterexample.counterexample("counterexample", T=2000, betas=(0.9, 0.9), goal=-0.5, seeds=4)
    assert len(failed(same)) == 3
    with pytest.raises(ValueError, match="unknown"):
        checks.select(["no such check"])


def power(exponent, x, spread=0.0, seeds=64):
    generator = torch.Generator().manual_seed(0)
    return [t**exponent * (1 + spread * torch.randn(seeds, generator=generator, dtype=torch.float64)) for t in x]


def test_the_fit_of_a_rate():
    x = [100.0, 1000.0, 10_000.0]
    fitted, half = slope(x, power(-0.5, x))
    assert (fitted, half) == pytest.approx((-0.5, 0.0), abs=1e-12)
    fitted, half = slope(x, power(-0.5, x, spread=0.2))
    assert abs(fitted + 0.5) <= half
    # With two points p = (log m2 - log m1)/(log x2 - log x1), and the variances of the logarithms add up.
    samples = power(-0.5, x[:2], spread=0.2)
    relative = [1.96 * float(s.std()) / 8 / float(s.mean()) for s in samples]
    assert slope(x[:2], samples)[1] == pytest.approx(math.hypot(*relative) / math.log(10))
    logs = [math.log(t) for t in x]
    assert slope(x, [s * log for s, log in zip(power(-0.5, x), logs, strict=True)], logs)[0] == pytest.approx(-0.5)


def test_lines():
    x = [100.0, 1000.0]
    assert rate("r", -0.5, x, power(-0.41, x)).passed
    assert not rate("r", -0.5, x, power(-0.39, x)).passed
    assert flat("f", x, power(-0.04, x)).passed
    assert not flat("f", x, power(-0.06, x)).passed
    ones = torch.ones(4, dtype=torch.float64)
    line = below("b", [ones, 3 * ones], [2.0, 4.0], ["T = 1", "T = 2"])
    assert (line.passed, line.measured, line.promised, line.margin) == (True, 3.0, 4.0, "1.33x")
    assert "worst at T = 2" in line.detail
    assert not below("b", [ones * 2.1], [2.0], ["T = 1"]).passed
    for bad in (math.nan, math.inf):
        assert not below("b", [ones * bad], [2.0], ["T = 1"]).passed
        assert not rate("r", -0.5, x, [ones, ones * bad]).passed
    assert inside([(0.5, 1.0)], (0.5, 1.0)).passed
    assert not inside([(0.49, 1.0)], (0.5, 1.0)).passed
    assert not inside([(0.5, 1.1)], (0.5, 1.0)).passed
    # The upper end of the interval, not only the mean, has to be below the bound.
    uncertain = torch.tensor([0.0, 3.8], dtype=torch.float64)
    assert mean_and_half(uncertain)[0] < 2.0
    assert not below("b", [uncertain], [2.0], ["T = 1"]).passed


def test_every_theorem_and_every_scaling_has_a_check():
    for quick in (False, True):
        known = checks.registry(quick)
        assert {label for label, _ in known.values()} == {
            "thm:2", "thm:SHB_decrease", "thm:min_PL", "thm:PDAda", "thm:5", "thm:6", "counter-example",
        }  # fmt: skip
        for theorem in ("constant", "decreasing", "minmax"):
            assert {f"{theorem}[{row}]" for row in scalings.BY_NAME} <= set(known)


def test_select():
    assert checks.select(["constant[adam]", "thm:6"]) == ["constant[adam]", "sbma"]
    assert len(checks.select(["pl"])) == 4
    assert checks.select(None) == list(checks.registry())
    with pytest.raises(ValueError, match=r"unknown check 'minmx'\. Did you mean 'minmax'\? Available: const"):
        checks.select(["minmx"])


@pytest.mark.slow
def test_all_checks_pass_quickly():
    assert [(r.name, failed(r)) for r in checks.run(quick=True, workers=2) if not r.passed] == []
