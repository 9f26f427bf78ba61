"""The Triton kernels under Triton's interpreter, compared with the loop and the C step.

``test_triton.py`` runs this file in a process with TRITON_INTERPRET=1, which Triton reads when it is imported.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semaopt
from semaopt.kernels import StepRule, ascend, triton_launch
from semaopt.kernels.auc import LABELS, REALS, Numbers, auc_loop, auc_on_device
from semaopt.kernels.rounding import first_key
from semaopt.kernels.rows import Counters
from semaopt.losses._auc_objective import objective, objective_on_device
from tests.kernels.common import CLOSE, OPTIONS, SCALINGS, assert_agree, needs_c, normal, parameters, trained

SHAPES = ((3, 2), (), (0, 3), (2048 + 5,))
#: Covers every option once; the slow tests combine all of them with every scaling and dtype.
FEW = [OPTIONS[4], OPTIONS[6], OPTIONS[7]]
STATE_BF16 = {"state_dtype": torch.bfloat16, "rounding_seed": 3}


def pair(paths, dtype, scaling, steps=2, **options):
    return [trained(path, dtype, scaling, steps=steps, xs=parameters(dtype, SHAPES), **options) for path in paths]


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_triton_equals_loop(scaling, dtype):
    options = FEW[(SCALINGS.index(scaling) + list(CLOSE).index(dtype)) % len(FEW)]
    assert_agree(*pair(("triton", "loop"), dtype, scaling, **options), **CLOSE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_triton_equals_loop_for_every_option(scaling, options, dtype):
    assert_agree(*pair(("triton", "loop"), dtype, scaling, steps=4, **options), **CLOSE[dtype])


@needs_c
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scaling", ["shb", "amsgrad", "adafom", "adabound"])
def test_triton_has_the_bits_of_the_c_step(scaling, dtype):
    options = FEW[SCALINGS.index(scaling) % len(FEW)]
    assert_agree(*pair(("triton", "c"), dtype, scaling, **options))


@needs_c
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scaling", ["shb", "amsgrad"])
def test_bf16_state_is_rounded_with_the_bits_of_the_cpu(scaling, dtype):
    results = pair(("triton", "c"), dtype, scaling, bias_correction=True, **STATE_BF16)
    assert_agree(*results)
    assert results[0][1].state[results[0][0][0]]["v"].dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_bf16_state_for_every_option(scaling, options, dtype):
    """Adam+'s norm has another order of summation, which may move an average across a rounding threshold."""
    left, right = pair(("triton", "c"), dtype, scaling, **options, **STATE_BF16)
    assert_agree(left, right, **(CLOSE[torch.bfloat16] if scaling == "adam+" else {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=8, deadline=None)
@given(shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4), offset=st.integers(0, 7))
def test_any_shape_and_alignment(dtype, shapes, offset):
    def start():
        numels = [math.prod(shape) for shape in shapes]
        vectors = [normal((n + offset,), dtype, i)[offset:] for i, n in enumerate(numels)]
        return [torch.nn.Parameter(x.view(shape)) for x, shape in zip(vectors, shapes, strict=True)]

    left, right = (trained(path, dtype, "adam", steps=2, xs=start(), beta=0.7) for path in ("triton", "loop"))
    assert_agree(left, right, **CLOSE[dtype])


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_nan_stays_in_its_element_and_large_squares_are_clipped():
    results = []
    for path in ("triton", "loop"):
        x = torch.nn.Parameter(torch.ones(4))
        optimizer = semaopt.ASA([x], scaling="amsgrad", implementation=path, bias_correction=False)
        for g in ([1.0, math.nan, 1e38, -1e30], [1.0, 1.0, 1.0, 1.0]):
            x.grad = torch.tensor(g)
            optimizer.step()
        assert x.isnan().tolist() == [False, True, False, False]
        results.append(([x.nan_to_num(7.0)], optimizer.state[x]["u_max"].nan_to_num(7.0)))
    torch.testing.assert_close(*results)


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_table_is_uploaded_once_while_tensors_stay_the_same(monkeypatch):
    uploads = []
    upload = triton_launch._upload
    monkeypatch.setattr(triton_launch, "_upload", lambda *args: (uploads.append(1), upload(*args))[1])
    xs = parameters(torch.float32, ((5,), (3, 2)))
    for x in xs:
        x.grad = torch.ones_like(x)
    optimizer = semaopt.ASA(xs, implementation="triton")
    for _ in range(3):
        optimizer.step()
    first = len(uploads)
    assert first == 4  # the addresses and chunks of the aligned tensors, and of the one that starts at an odd address
    xs[0].grad = torch.ones_like(xs[0])
    optimizer.step()
    assert len(uploads) == 2 * first


def test_parameter_that_joins_later_has_its_own_counters():
    results = []
    for path in ("triton", "loop"):
        xs = [torch.nn.Parameter(normal((6,), torch.float32, k)) for k in range(3)]
        optimizer = semaopt.ASA(xs, implementation=path, bias_correction=True)
        for k in range(4):
            for i, x in enumerate(xs):
                x.grad = normal((6,), x.dtype, 10 * k + i) if k >= i else None
            optimizer.step()
        results.append((xs, optimizer))
    assert [results[0][1].state[x]["step"].item() for x in results[0][0]] == [4, 3, 2]
    assert_agree(*results, **CLOSE[torch.float32])


def test_elements_beyond_2_to_the_31(monkeypatch):
    """Addresses are shifted so that chunk 2^21 + 3 of a tensor with 2^32 + 2^13 elements is the only one in memory."""
    from semaopt.kernels import triton_step as kernels

    n, number = 2**32 + 2**13, 2**21 + 3
    start, block = number * kernels.BLOCK, kernels.BLOCK
    assert start > 2**32
    counted = triton_launch.chunks_of([5, n], block)
    assert counted[1 + number].tolist() == [1, number]
    assert len(counted) == 1 + n // block
    state = StepRule(0.1, 0.3, semaopt.scalings.Adam(), state_dtype=torch.bfloat16, bias_correction=True)
    x, g = normal((block,), torch.float32, 0), normal((block,), torch.float32, 1)
    v, u = (normal((block,), torch.float32, k).abs().to(torch.bfloat16) for k in (2, 3))
    before = v.float()
    rows = [t.data_ptr() - start * t.element_size() for t in (x, g, v, u)]
    key = first_key(0, 0, 0)
    tensors = torch.tensor([[*rows, 0, 0, key, n]])
    numbers, _ = triton_launch._numbers(state, Counters(4.0, 0.5, 0.5), 0.0)
    import triton.language as tl

    constants = {"SCALING": 1, "XT": tl.float32, "ST": tl.bfloat16, "AT": tl.float32, "ALIGNED": True}
    constants |= {"AVERAGED": False, "NORMED": False, "BLOCK": block}
    kernels.update[1,](tensors, torch.tensor([[0, number]]), tensors, *numbers, **constants)
    wide = before + torch.tensor(0.3) * (g - before)
    random = c_random_bits(key, 4, start, block)
    bits = (wide.view(torch.int32).to(torch.int64) + random) & 0xFFFF0000
    expected = bits.to(torch.int32).view(torch.float32).to(torch.bfloat16)
    assert torch.equal(v, expected)


def c_random_bits(key, step, start, n):
    """Return the random bits of numbers.h and arithmetic.h for elements start to start + n."""
    mask = 2**64 - 1

    def mix(z):
        z = (z + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    own = mix((mix((mix(key & mask) + step) & mask) + (start >> 32)) & mask)
    values = []
    for i in range(start, start + n):
        h = ((i + own) * 0x9E3779B9 & 0xFFFFFFFF) ^ (own >> 32)
        values.append((((h ^ (h >> 15)) * 0xD35A2D97) & 0xFFFFFFFF) >> 16)
    return torch.tensor(values)


# ---- average of iterates, dual ascent, AUC --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scaling", "dtype"), [("shb", torch.float32), ("adam+", torch.bfloat16), ("amsgrad", torch.float64)], ids=str
)
def test_iterates_are_averaged_in_the_step(scaling, dtype, monkeypatch):
    """The average is taken over x before the step. An x whose gradient has other strides is averaged separately."""
    fused, step = [], triton_launch.step

    def recorded(*args):
        done = step(*args)
        fused.append(done and len(args) == 5 and args[4] is not None)
        return done

    monkeypatch.setattr(triton_launch, "step", recorded)
    results = []
    for path in ("triton", "loop"):
        xs = parameters(dtype, SHAPES[:2])
        optimizer = semaopt.ASA(xs, scaling=scaling, lr=0.05, implementation=path)
        iterates = semaopt.Iterates(optimizer, keep=("average",), average="polynomial", power=3.0)
        for k in range(4):
            for i, x in enumerate(xs):
                g = normal(tuple(x.shape), x.dtype, 100 * k + i)
                x.grad = g if k == 3 else torch.empty_like(x).copy_(g)  # with the strides of x
            optimizer.step()
        results.append((xs, iterates.average()))
    assert fused == [False, True, True, False, False]  # the first step copies x; the last one is tried twice
    torch.testing.assert_close(*results, **CLOSE[dtype])


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("bounds", [(-0.5, 0.7), (-math.inf, math.inf), (0.0, math.inf)], ids=str)
def test_ascent_on_a_box(dtype, bounds):
    ends = []
    for climb in (triton_launch.ascend_box_, ascend.ascend_box_loop_):
        ys = [y.detach() for y in parameters(dtype, SHAPES)]
        gs = [normal(tuple(y.shape), dtype, 50 + i).as_strided(y.shape, y.stride()) for i, y in enumerate(ys)]
        assert climb(ys, gs, 0.3, *bounds) in (True, None)
        ends.append(ys)
    torch.testing.assert_close(*ends, **CLOSE[dtype])


def batch(n, seed, dtype, label):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=generator) < 0.4).long()
    return torch.randn(n, generator=generator, dtype=torch.float64).to(dtype), labels.to(label)


@pytest.mark.parametrize("n", [1, 1025])
@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("label", LABELS, ids=str)
def test_auc_equals_its_twin(dtype, label, n):
    scores, labels = batch(n, 3, dtype, label)
    forms = [labels] if label in (torch.bool, torch.uint8) else [labels, 2 * labels - 1]
    present = None
    if label.is_floating_point:
        for form in forms:
            form[: n // 4] = torch.nan
        present = ~labels.isnan()
    for sigmoid in (False, True):
        numbers = Numbers(0.3, 0.3, -0.2, 0.7, 0.8, sigmoid)
        twin = auc_loop(scores, (labels == 1).to(dtype), present, numbers)
        for form in forms:
            variables = torch.tensor(numbers[:4], dtype=torch.float64)
            found = auc_on_device(scores, form, variables, 0.8, sigmoid=sigmoid)
            eps = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
            torch.testing.assert_close(found.by_scores, twin.by_scores, rtol=eps, atol=eps)
            theirs = (twin.value, twin.by_s, twin.by_r, twin.by_y, 0.0)
            assert found.numbers.tolist() == pytest.approx(theirs, rel=eps, abs=eps)


@pytest.mark.parametrize("labels", [[0, 1, 2], [-1, 0, 1], [-1, 0, 0], [3, 3, 3]], ids=str)
@pytest.mark.parametrize("label", [torch.int32, torch.int64, torch.float32], ids=str)
def test_invalid_labels_are_detected(labels, label):
    found = auc_on_device(torch.zeros(3), torch.tensor(labels).to(label), torch.zeros(4).double(), 1.0, sigmoid=False)
    assert found.numbers[-1] == 1.0


@pytest.mark.parametrize("score", ["sigmoid", "linear"])
def test_loss_on_the_device_has_both_derivatives(score):
    scores, labels = batch(40, 0, torch.float64, torch.int64)
    s, r, y = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (0.3, -0.2, 0.7))
    p = torch.tensor([0.4], dtype=torch.float64)
    variables = [scores.requires_grad_(), s, r, y]
    value = objective_on_device(scores, s, r, y, labels, p, 0.8, score, True)
    h = scores[:, None].sigmoid() if score == "sigmoid" else scores[:, None]
    expected = objective(h, labels.double()[:, None], None, p, s, r, y, 0.8)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-15)
    for create_graph in (False, True):
        firsts = [
            torch.autograd.grad(z, variables, retain_graph=True, create_graph=create_graph) for z in (value, expected)
        ]
        torch.testing.assert_close(*firsts, rtol=1e-12, atol=1e-15)
    seconds = [torch.autograd.grad(sum(g.square().sum() for g in first), variables) for first in firsts]
    torch.testing.assert_close(*seconds, rtol=1e-11, atol=1e-14)
    with pytest.raises(ValueError, match=r"labels=\[0, 1, 2\]: must be \{0, 1\}"):
        objective_on_device(scores[:3].detach(), s, r, y, torch.tensor([0, 1, 2]), p, 0.8, score, True)
