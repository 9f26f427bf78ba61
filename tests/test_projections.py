import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semaopt
from semaopt import projections
from semaopt.projections import Ball, Box, Simplex, SpectralBall

SETS = [
    Box(-1.0, 0.5),
    Box(0.0, math.inf),
    Box(2.0, 2.0),
    Ball(1.5),
    Ball(0.75, center=-2.0),
    Ball(0.0),
    Simplex(),
    Simplex(total=3.5),
    Simplex(dim=-1),
    Simplex(total=0.1, dim=0),
    SpectralBall(1.25),
]
EPS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
seeds = st.integers(0, 10_000)
shapes = st.sampled_from([(1, 1), (1, 6), (5, 1), (3, 4), (4, 4)])
scales = st.sampled_from([0.1, 1.0, 10.0, 1e4])


def draw(seed, shape, scale=1.0, dtype=torch.float64):
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def violation(project, y):
    """Return the distance by which y violates the constraints."""
    y = y.double()
    match project:
        case Box(lo, hi):
            return max((lo - y).max().item(), (y - hi).max().item())
        case Ball(radius, center):
            return torch.linalg.vector_norm(y - center).item() - radius
        case Simplex(total, dim):
            sums = y.sum() if dim is None else y.sum(dim)
            return max(-y.min().item(), (sums - total).abs().max().item())
        case SpectralBall(radius):
            return torch.linalg.matrix_norm(y, ord=2).item() - radius


@pytest.mark.parametrize("project", SETS, ids=repr)
@pytest.mark.parametrize("dtype", EPS, ids=str)
@settings(max_examples=15, deadline=None)
@given(seed=seeds, shape=shapes, scale=scales)
def test_the_result_is_in_the_set_and_stays(project, dtype, seed, shape, scale):
    y = draw(seed, shape, scale, dtype)
    given_y = y
    assert project(y) is given_y, "in place"
    assert y.dtype == dtype
    size = max(1.0, y.double().abs().max().item()) * math.sqrt(y.numel())
    assert violation(project, y) <= (0 if isinstance(project, Box) else EPS[dtype] * size)
    once = y.clone()
    project(y)
    torch.testing.assert_close(y, once, rtol=EPS[dtype], atol=EPS[dtype])


@pytest.mark.parametrize("project", SETS, ids=repr)
@settings(max_examples=25, deadline=None)
@given(seed=seeds, shape=shapes, scale=scales)
def test_distances_do_not_grow(project, seed, shape, scale):
    a, b = draw(seed, shape, scale), draw(seed + 1, shape, scale)
    before = torch.linalg.vector_norm(a - b)
    assert torch.linalg.vector_norm(project(a) - project(b)) <= before * (1 + 1e-12) + 1e-12


@pytest.mark.parametrize("project", SETS, ids=repr)
@settings(max_examples=25, deadline=None)
@given(seed=seeds, shape=shapes, scale=scales)
def test_it_is_the_nearest_point(project, seed, shape, scale):
    """(y - P y, z - P y) <= 0 for every z of the convex set characterizes the nearest point."""
    y = draw(seed, shape, scale)
    nearest = project(y.clone())
    for k in range(8):
        z = project(draw(seed + 7 + k, shape, 3.0 * (k + 1)))
        obtuse = ((y - nearest) * (z - nearest)).sum().item()
        assert obtuse <= 1e-9 * (1 + scale) * (1 + z.abs().max().item() + nearest.abs().max().item()) * y.numel()


@pytest.mark.parametrize("project", [s for s in SETS if not isinstance(s, Simplex)], ids=repr)
@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_points_inside_stay_to_the_bit(project, dtype):
    inside = {Box(0.0, math.inf): 0.3, Box(2.0, 2.0): 2.0, Ball(0.75, center=-2.0): -2.01, Ball(0.0): 0.0}
    y = torch.full((3, 4), inside.get(project, 0.1), dtype=dtype)
    before = y.clone()
    assert torch.equal(project(y), before)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, n=st.integers(1, 6), total=st.sampled_from([0.5, 1.0, 4.0]))
def test_simplex_against_every_support(seed, n, total):
    """The nearest of the points that each choice of a support gives."""
    y = draw(seed, (n,), 2.0)
    best = None
    for code in range(1, 2**n):
        support = torch.tensor([bool(code >> i & 1) for i in range(n)])
        z = torch.where(support, y - (y[support].sum() - total) / support.sum(), torch.zeros(()))
        if (z >= 0).all() and (best is None or (z - y).norm() < (best - y).norm()):
            best = z
    torch.testing.assert_close(Simplex(total)(y.clone()), best, rtol=0, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, radius=st.sampled_from([0.1, 1.0, 3.0]))
def test_spectral_ball_of_a_rotated_diagonal(seed, radius):
    u, v = (torch.linalg.qr(draw(seed + k, (4, 4))).Q for k in range(2))
    s = draw(seed + 2, (4,)).abs() * 3
    y = u @ torch.diag(s) @ v.T
    torch.testing.assert_close(SpectralBall(radius)(y), u @ torch.diag(s.clamp_max(radius)) @ v.T)


def test_slices_are_projected_on_their_own():
    y = draw(3, (2, 3, 4))
    rows = torch.stack([Simplex()(row.clone()) for row in y.reshape(-1, 4)]).reshape(y.shape)
    torch.testing.assert_close(Simplex(dim=-1)(y.clone()), rows)
    matrices = torch.stack([SpectralBall(1.0)(matrix.clone()) for matrix in y])
    torch.testing.assert_close(SpectralBall(1.0)(y.clone()), matrices)


def test_large_entries_do_not_overflow():
    y = torch.tensor([3e30, -4e30])
    torch.testing.assert_close(Ball(1.0)(y), torch.tensor([0.6, -0.8]))
    torch.testing.assert_close(Simplex()(torch.tensor([1e30, -1e30, 1e30])), torch.tensor([0.5, 0.0, 0.5]))


def test_many_entries_sum_to_one():
    y = draw(0, (300_000,), 1e-3, torch.float32)
    assert abs(Simplex()(y).double().sum().item() - 1) < 1e-5


def test_empty_tensors_pass():
    for project in (Box(0.0, 1.0), Ball(1.0), Simplex()):
        assert project(torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Box(1.0, 0.0),
            r"\(lo, hi\)=\(1\.0, 0\.0\) is invalid: it must be numbers or tensors with lo <= hi\. Try",
        ),
        (lambda: Box(math.nan, 0.0), r"\(lo, hi\)=\(nan, 0\.0\) is invalid: it must be numbers"),
        (lambda: Ball(-1.0), r"radius=-1\.0 is invalid: it must be a finite number >= 0"),
        (lambda: Ball(math.inf), r"radius=inf is invalid: it must be a finite number"),
        (lambda: Ball(1.0, center=math.nan), r"center=nan is invalid: it must be a finite number"),
        (lambda: Simplex(0.0), r"total=0\.0 is invalid: it must be a finite number > 0"),
        (lambda: Simplex(dim=0.5), r"dim=0\.5 is invalid: it must be a dimension or None"),
        (lambda: SpectralBall("1"), r"radius='1' is invalid: it must be a finite number"),
        (
            lambda: SpectralBall(1.0)(torch.zeros(3)),
            r"shape=\(3,\) is invalid: a spectral norm needs a matrix\. Use Ball",
        ),
    ],
)
def test_bad_sets(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("bad", [3.0, "box", Box], ids=repr)
def test_what_is_no_projection(bad):
    with pytest.raises(
        TypeError, match=r"must be a callable that projects a tensor in place\. Pass semaopt\.projections\.Box"
    ):
        projections.validate(bad)


@pytest.mark.parametrize("project", SETS, ids=repr)
def test_plain_values_and_back(project):
    description = projections.describe(project)
    assert all(isinstance(value, (str, float, int, type(None))) for value in description.values())
    assert projections.restore(description, None) == project
    assert projections.restore(projections.describe(None), project) is None


def own(y):
    return y.clamp(-0.5, 0.5)  # a callable may also return a new tensor


def test_a_callable_of_ones_own():
    y = torch.tensor([2.0])
    projections.apply_(own, y)
    assert y.item() == 0.5
    description = projections.describe(own)
    assert projections.restore(description, own) is own
    with pytest.raises(
        ValueError, match=r"project=None does not match the checkpoint, which was written with project='tests.*own'"
    ):
        projections.restore(description, None)


@pytest.mark.parametrize("shape", [(5, 1, 3), (5, 3, 1), (2, 5, 1, 1)])
def test_spectral_ball_of_rows_and_columns_is_that_of_matrices(shape):
    y = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y.view(-1, *shape[-2:])[0] = 0.0
    padded = torch.nn.functional.pad(y, (0, 2, 0, 2))  # zeros: the same singular value, by the general path
    expected = SpectralBall(0.9)(padded)[..., : shape[-2], : shape[-1]]
    torch.testing.assert_close(SpectralBall(0.9)(y), expected)


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_spectral_ball_has_no_part_of_what_is_not_finite(shape, bad):
    y = torch.ones(2, *shape)
    y[0, 0, 0] = bad
    SpectralBall(1.0)(y)
    assert y[0].isnan().all()
    assert y[1].isfinite().all()


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (2, 2), (4, 1, 3)])
@pytest.mark.parametrize("radius", [0.0, 1.0])
def test_spectral_ball_leaves_zero_alone(shape, radius):
    assert torch.equal(SpectralBall(radius)(torch.zeros(shape)), torch.zeros(shape))
    assert torch.equal(SpectralBall(0.0)(torch.ones(shape)), torch.zeros(shape))


@pytest.mark.parametrize("project", SETS, ids=repr)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 1)])
def test_what_is_empty_stays_so(project, shape):
    assert project(torch.zeros(shape)).shape == shape


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("center", [0.0, 0.5])
def test_ball_of_complex_numbers_is_that_of_pairs_of_reals(dtype, center):
    y = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    middle = torch.tensor([center, 0.0], dtype=torch.float64)
    for radius in (1.0, 100.0):
        expected = torch.view_as_complex(Ball(radius)(y - middle) + middle).to(dtype)
        torch.testing.assert_close(Ball(radius, center)(torch.view_as_complex(y).to(dtype)), expected)


def test_spectral_ball_of_complex_matrices():
    y = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.complex128)
    turned = y * 1j
    torch.testing.assert_close(SpectralBall(0.7)(turned), SpectralBall(0.7)(y.clone()) * 1j)
    assert torch.linalg.matrix_norm(turned, 2).item() == pytest.approx(0.7)
    row = torch.tensor([[3j, 4.0]], dtype=torch.complex64)
    torch.testing.assert_close(SpectralBall(1.0)(row), torch.tensor([[0.6j, 0.8]], dtype=torch.complex64))


@pytest.mark.parametrize("project", [Simplex(), Box(-1.0, 1.0)], ids=repr)
def test_order_means_nothing_to_complex_numbers(project):
    y = torch.tensor([1 + 2j])
    with pytest.raises(
        TypeError, match=r"y has dtype torch\.complex64: .* no meaning for complex numbers\. Pass torch\.view"
    ):
        project(y)
    assert y.item() == 1 + 2j


def test_a_complex_dual_variable_keeps_its_imaginary_part():
    x, y = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.tensor([1 + 2j]))
    optimizer = semaopt.PDAda(primal=[x], dual=[y], project=Ball(10.0), dual_lr=0.0)
    (x.square().sum() - y.abs().square().sum()).backward()
    optimizer.step()
    assert y.item() == 1 + 2j


def test_a_projection_that_returns_another_shape_is_an_error():
    text = r"project=\(\) is invalid: it returned this shape for a tensor of shape \(2,\)\. Return the projected"
    with pytest.raises(ValueError, match=text):
        projections.apply_(lambda y: y.clamp_(-1, 1).norm(), torch.tensor([2.0, 3.0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "project", [Ball(1.0), Simplex(), Simplex(dim=-1), Simplex(dim=0), SpectralBall(1.0)], ids=repr
)
def test_what_is_not_finite_becomes_nan_and_no_crash(project, bad):
    y = torch.tensor([[0.5, bad], [3.0, 0.25]])
    assert project(y).isnan().any()
    assert not y.isinf().any()


def test_one_matrix_that_is_not_finite_leaves_the_others_alone():
    y = torch.stack([torch.eye(2) * 3, torch.eye(2) * math.inf])
    SpectralBall(1.0)(y)
    torch.testing.assert_close(y[0], torch.eye(2))
    assert y[1].isnan().all()


LO, HI = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64), torch.tensor([0.5, math.inf, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_tensor_bounds_act_entry_by_entry(dtype):
    y = draw(0, (4, 3), 3.0, dtype)
    expected = torch.stack(
        [Box(lo.item(), hi.item())(y[:, i].clone()) for i, (lo, hi) in enumerate(zip(LO, HI, strict=True))]
    )
    assert torch.equal(Box(LO, HI)(y.clone()), expected.T)
    mixed = Box(LO, 5.0)(y.clone())
    assert torch.equal(mixed, torch.maximum(y, LO.to(dtype)).clamp_max(5.0))


def test_a_tensor_center_moves_the_ball():
    y = draw(1, (4, 3), 3.0)
    expected = Ball(1.5)(y - LO) + LO
    torch.testing.assert_close(Ball(torch.tensor(1.5), center=LO)(y), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "project",
    [Box(LO, HI), Box(0.0, HI), Ball(2.0, LO), Ball(torch.tensor(2.0), LO)],
    ids=["box", "half", "ball", "radius"],
)
def test_tensors_are_saved_with_the_optimizer(project, tmp_path):
    def make(chosen):
        x, y = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.zeros(3))
        return y, semaopt.PDAda(primal=[x], dual=[y], project=chosen)

    _, saved = make(project)
    torch.save(saved.state_dict(), tmp_path / "state.pt")
    y, loaded = make(Box(-9.0, 9.0))
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    restored = loaded.param_groups[-1]["project"]
    assert (restored, hash(restored)) == (project, hash(project))
    assert torch.equal(restored(y.detach().clone()), project(y.detach().clone()))


def test_a_dual_step_with_tensor_bounds():
    x, y = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.zeros(3))
    hi = torch.tensor([0.5, 1.0, 2.0])
    optimizer = semaopt.PDAda(primal=[x], dual=[y], project=Box(-1.0, hi), dual_lr=1.0)
    hi.zero_()  # the projection has its own copy
    (x.sum() + 10 * y.sum()).backward()
    optimizer.step()
    assert y.tolist() == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Box(LO, torch.zeros(3)), r"must be numbers or tensors with lo <= hi"),
        (lambda: Box(LO, torch.ones(2)), r"must be numbers or tensors with lo <= hi"),
        (lambda: Box(torch.tensor([1j]), 2.0), r"must be numbers or tensors with lo <= hi"),
        (lambda: Box(0.0, torch.tensor([math.nan])), r"must be numbers or tensors with lo <= hi"),
        (lambda: Ball(1.0, center=HI), r"center=.* is invalid: it must be a finite number or tensor"),
        (lambda: Ball(torch.ones(2)), r"radius=.* is invalid: it must be a finite number >= 0"),
        (
            lambda: Box(LO, HI)(torch.zeros(2)),
            r"lo.shape=\(3,\) is invalid: it must broadcast to the shape of y, \(2,\)",
        ),
        (lambda: Box(LO, HI)(torch.zeros(1)), r"lo.shape=\(3,\) is invalid: it must broadcast"),
        (lambda: Ball(1.0, LO)(torch.zeros(3, 2)), r"center.shape=\(3,\) is invalid: it must broadcast"),
    ],
)
def test_bad_tensors(make, text):
    with pytest.raises(ValueError, match=text):
        make()
