"""An exploding lower variable is an error of every bilevel method, and x does not move with it."""

import pytest
import torch

import semaopt
from semaopt.hypergradient import Exact, Neumann
from tests.common.registry import METHODS, bilevel

BILEVEL = [method for method in METHODS if method.advance is bilevel]


@pytest.mark.filterwarnings("ignore:lower_lr=")
@pytest.mark.parametrize("lower_lr", [1e6, 1e30], ids=["large", "overflow within a step"])
@pytest.mark.parametrize("bounded", [torch.sin, torch.tanh], ids=["nan at inf", "finite at inf"])
@pytest.mark.parametrize("method", BILEVEL, ids=str)
def test_an_exploding_lower_variable_is_an_error_before_x_moves(method, bounded, lower_lr):
    optimizer, problem = method.start(lower_lr=lower_lr, project=None)
    xs, ys, places = problem.xs, problem.others, []

    def outer(i=0):
        return sum(bounded(y).sum() for y in ys) + 0.1 * sum(x.square().sum() for x in xs)

    def inner(i=0):
        return sum((y - sum(x.mean() for x in xs)).square().sum() for y in ys) / 2

    def run():
        for _ in range(4):
            places.append([x.detach().clone() for x in (*xs, *ys)])
            optimizer.step(outer, inner)

    with pytest.raises(RuntimeError, match=r"nothing was changed.*smaller lower_lr"):
        run()
    assert all(torch.equal(x, place) for x, place in zip(xs, places[-1], strict=False))
    assert all(x.isfinite().all() for x in xs)


@pytest.mark.parametrize("kind", [semaopt.baselines.BSA, semaopt.baselines.AmIGO])
def test_a_loss_that_is_nan_because_y_overflows_names_the_lower_variable(kind):
    x, y = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.zeros(1))
    optimizer = kind([x], [y], lower_lr=1e30)
    with pytest.raises(
        RuntimeError, match=r"variable diverges: its norm is (nan|inf), and outer\(\) returned nan; nothing"
    ):
        optimizer.step(lambda: y.sin().sum(), lambda: (y - x).square().sum() / 2)
    assert (x.item(), y.item()) == (1.0, 0.0)


def test_a_loss_that_is_nan_at_a_finite_y_does_not():
    x, y = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(
        RuntimeError, match=r"^outer\(\) returned nan; nothing was changed\. Use a smaller lr or lower_lr"
    ):
        semaopt.SMB([x], [y]).step(lambda: y.sum() / 0 * 0, lambda: (y - x).square().sum() / 2)


@pytest.mark.parametrize(
    ("kind", "inverse"),
    [(semaopt.SMB, Exact()), *((semaopt.SBMA, Neumann(k, C)) for k in (1, 9) for C in (None, 1.0))],
    ids=str,
)
def test_a_dense_hessian_that_is_not_finite_is_no_matter_of_the_bound(kind, inverse):
    x, y = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.tensor([0.0, 1.0]))
    text = r"product of inner\(\) is not finite; nothing was changed\. Either the lower variable has diverged"
    with pytest.raises(RuntimeError, match=text):  # |y|^1.5 has an infinite second derivative at 0
        kind([x], [y], inverse=inverse).step(lambda: y.sum(), lambda: y.abs().pow(1.5).sum() + (y * x).sum())
    assert x.item() == 1.0
