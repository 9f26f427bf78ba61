"""Averages in bfloat16: unbiased rounding, seeds, exact resume, agreement of C and torch."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch

import semaopt
from semaopt.kernels import rounding
from semaopt.kernels.loader import library
from tests.kernels.common import OPTIONS, SCALINGS, assert_agree, isas, needs_c, normal, parameters, trained

BF16 = torch.bfloat16


def averaged(value: float, draws: int = 4096) -> torch.Tensor:
    target = torch.zeros(draws, dtype=BF16)
    rounding.store_(target, torch.full((draws,), value), rounding.random_bits(target, 12345))
    return target


@pytest.mark.parametrize("value", [1.001, -3.1415926, 1e-30, 123456.7, 2.0**-126 * 1.1])
def test_stochastic_rounding_is_unbiased(value):
    exact = torch.tensor(value).item()  # in float32
    stored = averaged(value).double()
    below, above = stored.min().item(), stored.max().item()
    assert below <= exact <= above
    assert len(stored.unique()) == 2, "the two neighbours and nothing else"
    p = (exact - below) / (above - below)
    error = abs(stored.mean().item() - exact) / (above - below)
    assert error < 4 * math.sqrt(p * (1 - p) / len(stored))


def test_bf16_values_are_stored_exactly():
    for value in (0.0, -0.0, 1.5, -(2.0**-130), math.inf, -math.inf, 3.3895313892515355e38):
        assert averaged(value).unique().tolist() == [value]
    assert averaged(math.nan).isnan().all()


def test_random_bits_are_uniform_and_differ_between_steps_and_parameters():
    like = torch.zeros(1 << 16, dtype=BF16)
    keys = [
        rounding.key_of(torch.tensor(rounding.first_key(0, k, i)), t)
        for k in range(2)
        for i in range(2)
        for t in (0, 1)
    ]
    bits = [rounding.random_bits(like, key) for key in keys]
    for h in bits:
        assert 0 <= h.min() <= h.max() < 1 << 16
        mean, deviation = 0.5 * 65535, 65536 / math.sqrt(12)
        assert abs(h.double().mean() - mean) < 4 * deviation / 256
        for byte in (h >> 8, h & 0xFF):
            counts = torch.bincount(byte, minlength=256).double()
            assert ((counts - 256) ** 2 / 256).sum() < 256 + 5 * math.sqrt(512), "chi-square of a byte"
    # Adjacent elements differ too: their rounding errors must not be correlated.
    stacked = torch.stack([h.double() for h in bits] + [h.double().roll(by) for h in bits for by in (1, 2, 3, 64)])
    correlations = torch.corrcoef(stacked) - torch.eye(len(stacked))
    assert correlations.abs().max() < 5 / 256


def test_hash_is_splitmix64():
    assert rounding.splitmix64(0) % 2**64 == 0xE220A8397B1DCDAF  # the first output of splitmix64 from seed 0
    assert rounding.splitmix64(torch.tensor(0)).item() % 2**64 == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("path", [pytest.param("c", marks=needs_c), "foreach"])
def test_paths_round_alike(path, scaling, dtype):
    """All paths use the same random bits, so results differ only where a float32 value differs in its last bit."""
    for options in OPTIONS:
        mine, loop = (trained(p, dtype, scaling, state_dtype=BF16, **options) for p in (path, "loop"))
        for x, y in zip(mine[0], loop[0], strict=True):
            torch.testing.assert_close(x, y, rtol=2e-2, atol=1e-2)
            for name, m in mine[1].state[x].items():
                n = loop[1].state[y][name]
                assert m.dtype == n.dtype
                if m.dtype != BF16:
                    torch.testing.assert_close(m, n)
                elif m.numel():
                    assert (m != n).double().mean() < 0.01, (name, options)


@needs_c
@pytest.mark.parametrize("isa", isas())
def test_instruction_sets_and_thread_counts_round_alike(isa):
    lib, threads = library(), torch.get_num_threads()
    before = lib.isa
    big = ((200_003,), (100, 7))
    try:
        ends = []
        for name, n in ((isa, 1), ("portable", 3)):
            assert lib.use_isa(name)
            torch.set_num_threads(n)
            ends.append(trained("c", BF16, "amsgrad", xs=parameters(BF16, big), state_dtype=BF16))
        assert_agree(*ends)
    finally:
        lib.use_isa(before)
        torch.set_num_threads(threads)


@pytest.mark.parametrize("path", ["auto", "loop"])
def test_resume_is_bit_exact(path):
    def advance(xs, optimizer, steps):
        for k in steps:
            for i, x in enumerate(xs):
                x.grad = normal(tuple(x.shape), x.dtype, 10 * k + i)
            optimizer.step()

    xs = parameters(torch.float32)
    optimizer = semaopt.ASA(xs, implementation=path, state_dtype=BF16, rounding_seed=3)
    advance(xs, optimizer, range(3))
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    twins = [x.detach().clone().requires_grad_() for x in xs]
    resumed = semaopt.ASA(twins, implementation=path, state_dtype=BF16)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    advance(xs, optimizer, range(3, 6))
    advance(twins, resumed, range(3, 6))
    assert_agree((xs, optimizer), (twins, resumed))
    assert all(optimizer.state[x]["v"].dtype == BF16 for x in xs)


def test_seeds_are_distinct_and_reproducible():
    def end(seed):
        return trained("auto", torch.float32, state_dtype=BF16, rounding_seed=seed)

    assert_agree(end(1), end(1))
    x, y = (end(seed)[1].state for seed in (1, 2))
    assert any(not torch.equal(a["v"], b["v"]) for a, b in zip(x.values(), y.values(), strict=True))


def test_loaded_state_takes_the_state_dtype_of_the_optimizer():
    for writer, reader in ((None, BF16), (BF16, None)):
        xs, first = trained("auto", torch.float32, state_dtype=writer)
        second = semaopt.ASA([x.detach().clone().requires_grad_() for x in xs], state_dtype=reader)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for x, y in zip(xs, second.param_groups[0]["params"], strict=True):
            assert second.state[y]["v"].dtype == (reader or torch.float32)
            assert ("rounding" in second.state[y]) == (reader is not None)
            torch.testing.assert_close(second.state[y]["v"].float(), first.state[x]["v"].float(), rtol=2**-8, atol=0)
        for y in second.param_groups[0]["params"]:
            y.grad = torch.ones_like(y)
        second.step()


def test_small_steps_add_up_where_nearest_rounding_stalls():
    """gamma = 1e-3 moves v by less than half a unit per step, but the mean of v still follows."""
    x = torch.nn.Parameter(torch.zeros(4000))
    optimizer = semaopt.ASA([x], lr=0.0, beta=0.999, scaling="shb", state_dtype=BF16, bias_correction=False)
    x.grad = torch.ones(4000)
    optimizer.step()
    x.grad = torch.full((4000,), 0.5)
    for _ in range(400):
        optimizer.step()
    expected = 0.5 + 0.5 * 0.999**400
    nearest = torch.tensor(1.0, dtype=BF16)
    for _ in range(400):
        nearest = nearest.float().lerp(torch.tensor(0.5), 1e-3).to(BF16)
    assert nearest.item() == 1.0
    assert abs(optimizer.state[x]["v"].double().mean().item() - expected) < 2e-3


BAD = [
    (
        {"state_dtype": torch.float16},
        r"state_dtype=torch.float16 is invalid: it must be None or torch.bfloat16\. None stores v and u",
    ),
    ({"state_dtype": "bf16"}, r"state_dtype='bf16' is invalid: it must be None or torch.bfloat16"),
]


@pytest.mark.parametrize(("hyper", "text"), BAD)
def test_other_dtypes_are_refused(hyper, text):
    with pytest.raises(ValueError, match=text):
        semaopt.ASA([torch.nn.Parameter(torch.ones(1))], **hyper)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex64], ids=str)
def test_other_parameters_are_refused(dtype):
    text = rf"is available for plain float32 and bfloat16 tensors, not for {dtype} in a Parameter \(parameter 1, "
    with pytest.raises(ValueError, match=text):
        semaopt.ASA(
            [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2, dtype=dtype))], state_dtype=BF16
        )


def test_seed_must_be_an_integer():
    with pytest.raises(ValueError, match=r"rounding_seed=0\.5 is invalid: it must be a whole number"):
        semaopt.ASA([torch.nn.Parameter(torch.ones(1))], rounding_seed=0.5)


@pytest.mark.parametrize("implementation", [pytest.param("c", marks=needs_c), "foreach", "loop"])
def test_step_counter_exceeds_two_to_the_24(implementation):
    """A float32 counter would stop there: rounding would reuse its bits, and AdaFom's mean would be wrong."""
    x = torch.nn.Parameter(torch.zeros(256))
    optimizer = semaopt.ASA(
        [x], lr=0.0, beta=0.5, scaling="adafom", state_dtype=torch.bfloat16, implementation=implementation
    )
    x.grad = torch.full((256,), 1.003)
    optimizer.step()
    optimizer.state[x]["step"].fill_(2.0**24)
    rounded = []
    for _ in range(3):
        optimizer.step()
        rounded.append(optimizer.state[x]["v"].clone())
    assert optimizer.state[x]["step"].item() == 2**24 + 3
    assert not torch.equal(rounded[1], rounded[2])
