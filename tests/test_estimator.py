import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import semaopt
from semaopt.estimator import group_norm, real, sema_, state_dtype, track_

gammas = st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=30)


def start(shape=(3,)):
    return {"v": torch.zeros(shape, dtype=torch.float64), "v_weight": torch.zeros(1, dtype=torch.float64)}


@given(gammas=gammas)
def test_estimate_starts_at_the_first_sample(gammas):
    samples = np.random.default_rng(len(gammas)).normal(size=(len(gammas), 3))
    state, expected = start(), samples[0]
    for t, (gamma, sample) in enumerate(zip(gammas, samples, strict=True)):
        expected = (1 - gamma) * expected + gamma * sample  # v_0 = O(x_0), so the first step gives O(x_0)
        v = sema_(state, "v", torch.tensor(sample), gamma, t, corrected=False)
        np.testing.assert_allclose(v.numpy(), expected, rtol=1e-12, atol=1e-13)


@given(gammas=gammas)
def test_correction_divides_by_one_minus_the_product_of_betas(gammas):
    samples = np.random.default_rng(len(gammas)).normal(size=(len(gammas), 3))
    state, raw = start(), np.zeros(3)
    for t, (gamma, sample) in enumerate(zip(gammas, samples, strict=True)):
        raw = (1 - gamma) * raw + gamma * sample
        v = sema_(state, "v", torch.tensor(sample), gamma, t, corrected=True)
        weight = 1 - np.prod([1 - g for g in gammas[: t + 1]])
        np.testing.assert_allclose(v.numpy(), raw / weight, rtol=1e-9, atol=1e-12)


def test_constant_is_estimated_exactly_from_the_first_step():
    for corrected in (False, True):
        state = start()
        for t, gamma in enumerate((0.1, 0.01, 0.5, 1e-4)):
            v = sema_(state, "v", torch.full((3,), 7.0, dtype=torch.float64), gamma, t, corrected=corrected)
            torch.testing.assert_close(v, torch.full((3,), 7.0, dtype=torch.float64), rtol=1e-14, atol=0)


def test_tensor_gamma_and_tensor_t_give_the_same_numbers():
    state, twin = start(), start()
    for t in range(4):
        sample = torch.arange(3, dtype=torch.float64) + t
        a = sema_(state, "v", sample, 0.25, t, corrected=False)
        b = sema_(twin, "v", sample, torch.tensor(0.25), torch.tensor(float(t)), corrected=False)
        assert torch.equal(a, b)


def test_variance_recursion():
    """lem:sema_mengdi in the mean over many runs, for a point that moves with a known step length."""
    generator = torch.Generator().manual_seed(0)
    runs, gamma, sigma, move = 20_000, 0.2, 1.0, 0.05
    x = torch.zeros(runs, dtype=torch.float64)
    v = x + sigma * torch.randn(runs, generator=generator, dtype=torch.float64)  # h(x) = x, so L = 1
    for _ in range(30):
        before = (v - x).square().mean()
        x = x + move
        track_(v, x + sigma * torch.randn(runs, generator=generator, dtype=torch.float64), gamma)
        after = (v - x).square().mean()
        assert after <= (1 - gamma) * before + 2 * gamma**2 * sigma**2 + move**2 / gamma
    assert after > 0.5 * gamma / 2 * sigma**2, "the error cannot vanish while gamma stays"


def test_group_norm_covers_all_tensors():
    tensors = [torch.tensor([[3.0, 0.0]]), torch.tensor(4.0), torch.zeros(0)]
    assert group_norm(tensors) == 5.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_state_dtype_keeps_full_precision(dtype):
    assert state_dtype(torch.zeros(1, dtype=dtype)) == dtype
    assert state_dtype(torch.zeros(1, dtype=torch.bfloat16)) == torch.float32
    assert state_dtype(torch.zeros(1, dtype=torch.float16)) == torch.float32


def test_real_is_a_view():
    x = torch.zeros(2, dtype=torch.complex64)
    real(x)[0, 1] = 2.0
    assert x[0] == 2j


@pytest.mark.parametrize("count", [np.int64(3), np.uint8(3)])
def test_numpy_integers_are_accepted(count):
    x, y = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    optimizer = semaopt.ASA([x])
    found = [
        semaopt.theory.constant(semaopt.theory.Constants(L=1.0, sigma2=1.0, delta_f=1.0), count).T,
        semaopt.schedules.Stagewise(optimizer, count).every,
        semaopt.Stage(0.1, 0.5, count).T,
        semaopt.hypergradient.CG(steps=count).steps,
        semaopt.SCMA([x], blocks=count).param_groups[0]["blocks"],
        semaopt.baselines.EpochSGDA([x], [y], stage_length=count).param_groups[0]["stage_length"],
        semaopt.baselines.SGDMax([x], [y], max_ascents=count).param_groups[0]["max_ascents"],
        len(semaopt.losses.DRO(count).weights),
    ]
    assert [(type(value), value) for value in found] == [(int, 3)] * len(found)
