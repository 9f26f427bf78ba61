"""Derivatives of the closures: which sample they use, and the errors for invalid closures."""

import math

import pytest
import torch
from torch import nn

from semaopt.hypergradient.closures import Oracles, slow_vjp, vjp
from semaopt.hypergradient.linalg import axpy, dot, flat, hessian_matrix, longer, mixed_matrix, scaled, unflat


def network(dtype=torch.float64):
    """Return oracles with a lower model of several tensors and two upper tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).to(dtype)
    weights, shift = nn.Parameter(torch.zeros(8, dtype=dtype)), nn.Parameter(torch.zeros((), dtype=dtype))
    a, b = torch.randn(8, 3, dtype=dtype), torch.randn(8, dtype=dtype)

    def inner():
        error = model(a).squeeze(1) - b - shift
        return (weights.sigmoid() * error.square()).mean() + 0.05 * sum(p.square().sum() for p in model.parameters())

    def outer():
        return (model(a).squeeze(1) - b).abs().mean() + weights.square().sum() + 0.1

    return Oracles(outer, inner, [weights, shift], list(model.parameters()))


def test_fast_products_equal_slow_ones_to_the_bit():
    oracles = network()
    loss = oracles._inner()
    for create in (False, True):
        slow = slow_vjp([loss], oracles.lower, [torch.ones_like(loss)], create, True)
        fast = vjp([loss], oracles.lower, [torch.ones_like(loss)], create, True)
        assert all(torch.equal(a, b) for a, b in zip(slow, fast, strict=True))
        assert [a.requires_grad for a in fast] == [create] * len(fast)
    inputs, vectors = oracles.lower + oracles.upper, [torch.randn_like(y) for y in oracles.lower]
    second = [f(fast, inputs, vectors, False, True) for f in (slow_vjp, vjp)]
    assert all(torch.equal(a, b) for a, b in zip(*second, strict=True))
    unused = torch.zeros(1, requires_grad=True)
    assert vjp([loss], [unused], [torch.ones_like(loss)], False, True) == (None,)


def test_products_equal_the_matrices():
    oracles = network()
    v = [torch.randn_like(y) for y in oracles.lower]
    H = hessian_matrix(oracles.draw(), 100)
    G = mixed_matrix(oracles.draw(mixed=True))
    both = oracles.draw(mixed=True).both(v)
    torch.testing.assert_close(H, H.T)
    assert G.shape == (9, 11)
    torch.testing.assert_close(flat(oracles.draw().hessian(v)), H @ flat(v))
    torch.testing.assert_close(flat(both[0]), H @ flat(v))
    torch.testing.assert_close(flat(oracles.draw(mixed=True).mixed(v)), G @ flat(v))
    torch.testing.assert_close(flat(both[1]), G @ flat(v))


def test_weight_decay_is_the_penalty_in_closed_form():
    plain = network()
    decay = [0.3, 0.0, 0.1, 0.2]
    closed = Oracles(plain._outer, plain._inner, plain.upper, plain.lower, decay=decay)

    def penalized():
        return plain._inner() + sum(lam / 2 * y.square().sum() for lam, y in zip(decay, plain.lower, strict=True))

    open_form = Oracles(plain._outer, penalized, plain.upper, plain.lower)
    v = [torch.randn_like(y) for y in plain.lower]
    for a, b in (
        (closed.draw().g_y, open_form.draw().g_y),
        (closed.lower_gradient(), open_form.lower_gradient()),
        (closed.draw().hessian(v), open_form.draw().hessian(v)),
        (closed.draw(mixed=True).both(v)[0], open_form.draw(mixed=True).both(v)[0]),
        (closed.draw(mixed=True).both(v)[1], open_form.draw(mixed=True).both(v)[1]),
        ([hessian_matrix(closed.draw(), 100)], [hessian_matrix(open_form.draw(), 100)]),
    ):
        torch.testing.assert_close(flat(a), flat(b))


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("decay", [(), (0.5,) * 4, (0.3, 0.0, 0.1, 0.2)], ids=str)
def test_a_contraction_equals_product_and_subtraction(decay, narrow):
    fast = network(dtype=torch.float32 if narrow else torch.float64)
    if narrow:
        inner = fast._inner
        fast._inner = lambda: inner().to(torch.bfloat16)
    slow, fast, watched = (Oracles(fast._outer, fast._inner, fast.upper, fast.lower, decay=decay) for _ in range(3))
    slow.plain, seen = False, []
    watched._watch = seen.append
    v = [torch.randn_like(y) for y in fast.lower]
    for C in (3.0, 7.0):  # the bound may be raised within a step
        expected = axpy(-1 / C, slow.draw().hessian(v), v)
        for oracles in (slow, fast):
            torch.testing.assert_close(oracles.contracted(v, C), expected)
        assert all(map(torch.equal, watched.contracted(v, C), fast.contracted(v, C)))
    assert len(seen) == 2
    assert all(x.requires_grad for x in fast.upper)


def test_a_contraction_keeps_v_where_g_is_linear():
    y, z, w = (nn.Parameter(torch.ones(2)) for _ in range(3))
    x = nn.Parameter(torch.ones(2))
    oracles = Oracles(
        lambda: y.sum(), lambda: (y.square() * x).sum() + z.sum() + (w * w.detach()).sum(), [x], [y, z, w]
    )
    one = torch.ones(2)
    hy, hz, hw = oracles.contracted([one, 2 * one, 3 * one], 4.0)
    assert torch.equal(hy, one / 2)
    assert torch.equal(hz, 2 * one)
    assert torch.equal(hw, 3 * one)
    flat_one = Oracles(lambda: z.sum(), lambda: (z * x).sum(), [x], [z])
    with pytest.raises(RuntimeError, match="linear in the lower parameters"):
        flat_one.contracted([one], 4.0)
    without = Oracles(lambda: y.sum(), lambda: (y.square() * x).sum(), [x], [y, z])
    with pytest.raises(RuntimeError, match="does not depend on lower parameter 1, of shape"):
        without.contracted([one, one], 4.0)


def test_longer_counts_all_tensors_and_treats_nan_as_long():
    x, y = [torch.tensor([3.0]), torch.tensor([4.0, 0.0])], [torch.tensor([0.0]), torch.tensor([0.0, 2.5])]
    assert not longer(x, y, 2)
    assert longer(x, y, 1.99)
    assert longer([torch.tensor([math.nan]), x[1]], y, 1e9)
    assert not longer(scaled(0.0, x), scaled(0.0, y), 2)


def test_an_upper_parameter_that_g_or_f_lacks_is_none():
    x, z, y = (nn.Parameter(torch.ones(2)) for _ in range(3))
    oracles = Oracles(lambda: (z * y).sum(), lambda: ((y - x).square()).sum(), [x, z], [y])
    _, f_x, _ = oracles.f()
    assert f_x[0] is None
    assert torch.equal(f_x[1], torch.ones(2))
    product = oracles.draw(mixed=True).mixed([torch.ones(2)])
    assert torch.equal(product[0], torch.full((2,), -2.0))
    assert product[1] is None


def test_an_entry_of_g_y_without_curvature_counts_as_zero():
    x, y, z = (nn.Parameter(torch.ones(2)) for _ in range(3))
    oracles = Oracles(lambda: y.sum(), lambda: (y.square() * x).sum() + z.sum(), [x], [y, z])
    hy, hz = oracles.draw().hessian([torch.ones(2), torch.ones(2)])
    assert torch.equal(hy, torch.full((2,), 2.0))
    assert torch.equal(hz, torch.zeros(2))


def test_parameters_that_are_frozen_are_left_out():
    x, y, frozen = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    oracles = Oracles(lambda: y.sum(), lambda: (y - x).square().sum(), [x, frozen], [frozen, y], decay=[0.5, 0.1])
    assert oracles.upper == [x]
    assert len(oracles.lower) == 1
    assert torch.equal(oracles.draw().hessian([torch.ones(2)])[0], torch.full((2,), 2.1))


def test_x_requires_grad_again_after_an_error_in_inner():
    x, y = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def broken():
        raise KeyError("no more data")

    oracles = Oracles(lambda: y.sum(), broken, [x], [y])
    with pytest.raises(KeyError, match="no more data"):
        oracles.draw()
    assert x.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_products_are_accumulated_in_float32(dtype):
    x, y = nn.Parameter(torch.ones(2, dtype=dtype)), nn.Parameter(torch.ones(2, dtype=dtype))
    oracles = Oracles(lambda: y.sum(), lambda: ((y - x).square() * 3).sum(), [x], [y])
    _, _, f_y = oracles.f()
    sample = oracles.draw(mixed=True)
    hv, (mixed,) = sample.both([torch.full((2,), 1.5)])
    assert {t.dtype for t in (*f_y, *hv, mixed, *sample.g_y)} == {torch.float32}
    assert torch.equal(hv[0], torch.full((2,), 9.0))


X, Y = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))


def good_outer():
    return (X * Y).sum()


def good_inner():
    return (Y - X).square().sum()


@pytest.mark.parametrize(
    ("outer", "inner", "kind", "text"),
    [
        (lambda: 1.0, good_inner, TypeError, r"outer\(\) returned float: return the loss, a tensor"),
        (
            lambda: X * Y,
            good_inner,
            ValueError,
            r"outer\(\) returned shape \(2,\): it must return one number",
        ),
        (lambda: (X * Y).sum().detach(), good_inner, RuntimeError, r"outer\(\) returned a loss without a graph"),
        (lambda: X.sum(), good_inner, RuntimeError, r"outer\(\) does not depend on any lower parameter"),
        (
            lambda: (Y / 0).sum(),
            good_inner,
            RuntimeError,
            r"outer\(\) returned inf; nothing was changed",
        ),
        (good_outer, lambda: None, TypeError, r"inner\(\) returned NoneType"),
        (good_outer, lambda: Y.square(), ValueError, r"inner\(\) returned shape \(2,\)"),
        (good_outer, lambda: Y.square().sum(), RuntimeError, r"inner\(\) does not depend on any upper parameter"),
        (good_outer, lambda: (X * Y).sum(), RuntimeError, r"inner\(\) is linear in the lower parameters"),
        (good_outer, lambda: X.square().sum(), RuntimeError, r"inner\(\) returned a loss without a graph"),
    ],
)
def test_errors_for_invalid_closures(outer, inner, kind, text):
    oracles = Oracles(outer, inner, [X], [Y])

    def ask():
        v = oracles.f()[2]
        oracles.draw().hessian(v)
        oracles.draw(mixed=True).mixed(v)

    with pytest.raises(kind, match=text):
        ask()
    assert X.requires_grad


def test_a_lower_parameter_that_g_lacks_is_an_error():
    z = nn.Parameter(torch.ones(3))
    oracles = Oracles(good_outer, good_inner, [X], [Y, z])
    with pytest.raises(RuntimeError, match=r"inner\(\) does not depend on lower parameter 1, of shape \(3,\)"):
        oracles.draw()


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 2, sparse=True)
    oracles = Oracles(lambda: (table(torch.tensor([1])) * Y).sum(), good_inner, list(table.parameters()), [Y])
    with pytest.raises(RuntimeError, match=r"gradient in an upper parameter is sparse: use nn\.Embedding"):
        oracles.f()


def test_vectors_of_tensors_are_one_vector():
    x, y = [torch.tensor([[1.0, 2.0]]), torch.tensor(3.0)], [torch.tensor([[4.0, 5.0]]), torch.tensor(6.0)]
    assert dot(x, y) == 32.0
    assert torch.equal(flat(axpy(2.0, x, y)), torch.tensor([6.0, 9.0, 12.0]))
    assert torch.equal(flat(scaled(-1.0, x)), torch.tensor([-1.0, -2.0, -3.0]))
    assert [part.shape for part in unflat(flat(x), x)] == [part.shape for part in x]
