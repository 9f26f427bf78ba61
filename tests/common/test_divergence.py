"""An exploding lower variable is an error of every bilevel method, and x does not move with it."""

import pytest
import torch

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

    with pytest.raises(RuntimeError, match=r"nothing was changed.*smaller (lr or )?lower_lr"):
        run()
    assert all(torch.equal(x, place) for x, place in zip(xs, places[-1], strict=False))
    assert all(x.isfinite().all() for x in xs)
