import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semaopt
from semaopt.losses import DRO

KINDS = ["kl", "chi2"]


def losses(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).square()


def frequencies(n, seed=0):
    pi = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    return pi / pi.sum()


def divergence(kind, p, pi):
    return (p * (p / pi).log()).sum() if kind == "kl" else ((p - pi).square() / pi).sum() / 2


@pytest.mark.parametrize("kind", KINDS)
def test_value_equals_the_formula(kind):
    pi, loss, p = frequencies(5), losses(5), frequencies(5, 9)
    dro = DRO(5, 0.7, kind, pi, dtype=torch.float64)
    with torch.no_grad():
        dro.weights.copy_(p)
    torch.testing.assert_close(dro(loss).detach(), (p * loss).sum() - 0.7 * divergence(kind, p, pi))


@pytest.mark.parametrize("kind", KINDS)
def test_batches_drawn_with_the_frequencies_are_unbiased(kind):
    """The frequency-weighted mean of value and gradients over single draws equals that of all samples."""
    pi, loss, p = frequencies(6), losses(6).requires_grad_(), frequencies(6, 9)
    dro = DRO(6, 0.5, kind, pi, dtype=torch.float64)
    with torch.no_grad():
        dro.weights.copy_(p)
    whole = torch.autograd.grad(dro(loss), [loss, dro.weights])
    single = [torch.autograd.grad(dro(loss[i : i + 1], torch.tensor([i])), [loss, dro.weights]) for i in range(6)]
    for k in range(2):
        torch.testing.assert_close(sum(pi[i] * single[i][k] for i in range(6)), whole[k])
    torch.testing.assert_close(sum(pi[i] * dro(loss[i : i + 1], torch.tensor([i])) for i in range(6)), dro(loss))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 8), strength=st.sampled_from([0.05, 0.5, 5.0]))
def test_the_worst_case_is_the_maximum(kind, seed, n, strength):
    pi, loss = frequencies(n, seed), losses(n, seed)
    dro = DRO(n, strength, kind, pi, dtype=torch.float64)
    p, value = dro.worst_case(loss)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum().item(), 1.0)
    if kind == "kl":
        torch.testing.assert_close(value, strength * torch.logsumexp(loss / strength + pi.log(), 0))
    for k in range(10):
        q = frequencies(n, seed + k + 1)
        for mix in (0.01, 0.5, 1.0):
            other = (1 - mix) * p + mix * q
            assert (other * loss).sum() - strength * divergence(kind, other, pi) <= value + 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_projected_ascent_finds_the_worst_case(kind):
    loss = losses(6)
    dro = DRO(6, {"kl": 2.0, "chi2": 0.5}[kind], kind, dtype=torch.float64)
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = semaopt.PDSM(primal=[x], dual=dro.dual_parameters(), lr=0.0, dual_lr=0.03, project=dro.projection)
    for _ in range(600):
        optimizer.zero_grad()
        dro(loss + 0 * x).backward()
        optimizer.step()
        assert abs(dro.weights.sum().item() - 1) < 1e-12
        assert (dro.weights >= 0).all()
    worst = dro.worst_case(loss)
    torch.testing.assert_close(dro.weights.detach(), worst.weights, rtol=0, atol=1e-6)
    torch.testing.assert_close(dro(loss).detach(), worst.value)


def test_weight_at_zero_has_a_finite_gradient_and_recovers():
    dro = DRO(3, 1.0, "kl")
    with torch.no_grad():
        dro.weights.copy_(torch.tensor([1.0, 0.0, 0.0]))
    value = dro(torch.tensor([0.0, 1.0, 1.0]))
    value.backward()
    assert torch.isfinite(dro.weights.grad).all()
    assert (dro.weights.grad[1:] > dro.weights.grad[0]).all()
    torch.testing.assert_close(value.item(), -torch.log(torch.tensor(3.0)).item())


def test_the_limits_of_the_strength():
    loss = losses(7)
    for kind in KINDS:
        torch.testing.assert_close(DRO(7, 1e6, kind).worst_case(loss).value, loss.mean(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(DRO(7, 1e-3, kind).worst_case(loss).value, loss.max(), rtol=5e-3, atol=5e-3)


def test_worst_group_improves():
    """With two groups of different optima, one rare, the robust fit has the smaller worst-group loss."""
    generator = torch.Generator().manual_seed(0)
    group = (torch.rand(400, generator=generator) < 0.1).long()
    a = torch.randn(400, generator=generator)
    target = a * (1.0 - 2.0 * group) + 0.1 * torch.randn(400, generator=generator)
    share = torch.bincount(group) / 400

    def worst(robust):
        w = torch.nn.Parameter(torch.zeros(1))
        dro = DRO(2, 0.1, "chi2", share)
        optimizer = semaopt.PDAda(primal=[w], dual=dro.dual_parameters(), lr=0.02, dual_lr=0.05 if robust else 0.0)
        for k in range(600):
            part = torch.randint(400, (64,), generator=torch.Generator().manual_seed(k))
            optimizer.zero_grad()
            dro((w * a[part] - target[part]).square(), group[part]).backward()
            optimizer.step()
        each = (w.detach() * a - target).square()
        return max(each[group == g].mean().item() for g in range(2))

    assert worst(robust=True) < 0.6 * worst(robust=False)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DRO(0), r"size=0.*must be a whole number >= 1"),
        (
            lambda: DRO(2, strength=0.0),
            r"strength=0\.0.*must be a finite number > 0.*[Ii]t makes the objective strongly concave",
        ),
        (lambda: DRO(2, regularizer="l2"), r"regularizer='l2'.*must be one of kl, chi2.*Try 'kl'"),
        (
            lambda: DRO(2, frequencies=[0.5, 0.6]),
            r"frequencies=\[0\.5, 0\.6\].*must be 2 numbers > 0 with sum 1.*Divide the counts",
        ),
        (lambda: DRO(2, frequencies=[1.0]), r"must be 2 numbers > 0 with sum 1"),
        (lambda: DRO(2)(torch.zeros(3)), r"losses=\(3,\).*must be a vector of shape \(2,\).*Pass one loss per sample"),
        (lambda: DRO(2)(torch.zeros(3), torch.zeros(2).long()), r"losses=\(3,\).*must be a vector of shape \(2,\)"),
        (lambda: DRO(2)(torch.zeros(()), torch.zeros(()).long()), r"losses=\(\).*must be a vector"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("index", [2, -1])
def test_index_out_of_range(index):
    with pytest.raises(IndexError, match=rf"index=\[{index}\]: must lie in 0\.\.1; there are 2 weights"):
        DRO(2)(torch.zeros(1), torch.tensor([index]))


@pytest.mark.parametrize("index", [[0], torch.tensor([0.0]), torch.tensor([True])], ids=str)
def test_index_of_another_type(index):
    with pytest.raises(
        ValueError, match=r"must be a tensor of whole numbers.*Pass the index of the weight of each loss"
    ):
        DRO(2)(torch.zeros(1), index)


def test_state_dict_and_repr():
    dro = DRO(3, 0.5, "chi2")
    other = DRO(3, 0.5, "chi2", [0.2, 0.3, 0.5])
    other.load_state_dict(dro.state_dict())
    assert torch.equal(other.weights, dro.weights)
    assert torch.equal(other.frequencies, dro.frequencies)
    assert dro.primal_parameters() == []
    assert repr(dro) == "DRO(size=3, strength=0.5, regularizer='chi2')"


def test_weights_set_their_projection():
    """Without project=, the weights stay on the simplex."""
    dro, x = DRO(3, 0.5, "chi2"), torch.nn.Parameter(torch.tensor([1.0, 2.0, 4.0]))
    optimizer = semaopt.PDSM(primal=[x], dual=dro.dual_parameters(), dual_lr=0.7)
    for _ in range(3):
        optimizer.zero_grad()
        dro(x.square()).backward()
        optimizer.step()
        assert dro.weights.sum().item() == pytest.approx(1.0)
        assert (dro.weights >= 0).all()
    assert dro.weights[2] > 0.9
