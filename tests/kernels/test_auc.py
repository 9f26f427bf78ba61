"""The compiled AUC objective and its slow twin."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semaopt
from semaopt.kernels import auc as module
from semaopt.kernels.auc import LABELS, REALS, Numbers, auc, auc_columns, auc_columns_loop, auc_loop
from semaopt.losses._auc_objective import objective
from tests.kernels.common import needs_c


def batch(n, seed, dtype, label):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=generator) < 0.4).long()
    return torch.randn(n, generator=generator, dtype=torch.float64).to(dtype), labels.to(label)


@needs_c
@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("label", LABELS, ids=str)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(1, 70),
    p=st.floats(0.01, 0.99),
    margin=st.sampled_from([0.3, 1.0]),
    sigmoid=st.booleans(),
    missing=st.integers(0, 70),
)
def test_compiled_auc_equals_its_twin(dtype, label, seed, n, p, margin, sigmoid, missing):
    scores, labels = batch(n, seed, dtype, label)
    numbers = Numbers(p, 0.3, -0.2, 0.7, margin, sigmoid)
    forms = [labels] if label in (torch.bool, torch.uint8) else [labels, 2 * labels - 1]
    present = None
    if label.is_floating_point:
        for form in forms:
            form[:missing] = torch.nan
        present = ~labels.isnan()
    twin = auc_loop(scores, (labels == 1).to(dtype), present, numbers)
    for form in forms:
        found = auc(scores, form, numbers)
        assert not found.wrong
        eps = {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
        torch.testing.assert_close(found.by_scores, twin.by_scores, rtol=10 * eps, atol=10 * eps)
        theirs = (twin.value, twin.by_s, twin.by_r, twin.by_y)
        assert (found.value, found.by_s, found.by_r, found.by_y) == pytest.approx(theirs, rel=10 * eps, abs=10 * eps)


@needs_c
@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("label", LABELS, ids=str)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 5)),
    margin=st.sampled_from([0.3, 1.0]),
    sigmoid=st.booleans(),
    missing=st.integers(0, 40),
    transposed=st.booleans(),
)
def test_compiled_columns_equal_their_twin(dtype, label, seed, shape, margin, sigmoid, missing, transposed):
    n, classes = shape
    scores, labels = (z.view(shape) for z in batch(n * classes, seed, dtype, label))
    present = None
    if label.is_floating_point:
        labels[:missing, 0], labels[: missing // 2, -1] = torch.nan, torch.nan
        present = ~labels.isnan()
    if transposed:
        scores, labels = scores.T.contiguous().T, labels.T.contiguous().T
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(classes, generator=generator, dtype=dtype) * 0.98 + 0.01
    variables = (p, *torch.randn(3, classes, generator=generator, dtype=dtype))
    twin = auc_columns_loop(scores, (labels == 1).to(dtype), present, variables, margin, sigmoid)
    forms = [labels] if label in (torch.bool, torch.uint8) else [labels, 2 * labels - 1]
    for form in forms:
        found = auc_columns(scores, form, variables, margin, sigmoid)
        assert not found.wrong
        tolerance = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
        for ours, theirs in zip(found[:3], twin[:3], strict=True):
            torch.testing.assert_close(ours.to(dtype), theirs, rtol=tolerance, atol=tolerance)
        assert found.labelled is twin.labelled is None or torch.equal(found.labelled, twin.labelled)


@needs_c
def test_invalid_labels_are_detected_in_all_columns():
    variables = tuple(torch.full((2,), z) for z in (0.5, 0.0, 0.0, 0.0))
    for labels, wrong in [
        ([[1, 1], [0, 2]], True),
        ([[-1, 0], [1, 1]], True),
        ([[3, 0], [1, 1]], True),
        ([[0, 1], [1, 0]], False),
    ]:
        assert auc_columns(torch.zeros(2, 2), torch.tensor(labels), variables, 1.0, False).wrong == wrong
    assert auc_columns(torch.zeros(2, 2), torch.zeros(2, 2).short(), variables, 1.0, False) is None


@needs_c
@pytest.mark.parametrize("labels", [[0, 1, 2], [-1, 0, 1], [-1, 0, 0], [3, 3, 3], [0, 255, 1]], ids=str)
@pytest.mark.parametrize("label", [torch.int32, torch.int64, torch.float32, torch.float64, torch.uint8], ids=str)
def test_invalid_labels_are_detected(labels, label):
    if label == torch.uint8:
        labels = [value % 256 for value in labels]
    form = torch.tensor(labels).to(label)
    assert auc(torch.zeros(3), form, Numbers(0.5, 0.0, 0.0, 0.0)).wrong


@needs_c
def test_sigmoid_is_exact_at_both_ends():
    """The sigmoid does not overflow, and the slope of a saturated score is not rounded to 0."""
    scores = torch.tensor([800.0, -800.0, 40.0, -40.0], dtype=torch.float64)
    found = auc(scores, torch.tensor([0, 1, 0, 1]), Numbers(0.5, 0.0, 0.0, 0.0, 1.0, True))
    assert found.value == pytest.approx(0.75)
    assert found.by_scores.tolist() == pytest.approx([0.0, 0.0, 2.1241771276e-18, -1.06208856380e-18], abs=1e-24)


def test_unsupported_tensors():
    numbers = Numbers(0.5, 0.0, 0.0, 0.0)
    for scores, labels in [
        (torch.zeros(4, 2)[:, 0], torch.zeros(4)),
        (torch.zeros(4), torch.zeros(4, 2)[:, 0]),
        (torch.zeros(4), torch.zeros(4, dtype=torch.int16)),
        (torch.zeros(4).half(), torch.zeros(4)),
        (torch._neg_view(torch.zeros(4)), torch.zeros(4)),
    ]:
        assert auc(scores, labels, numbers) is None


@pytest.mark.parametrize("compiled", [True, False])
def test_loss_is_the_same_with_and_without_the_library(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(module, "library", lambda: None)
    scores, labels = batch(40, 0, torch.float64, torch.int64)
    scores.requires_grad_()
    loss = semaopt.losses.AUCMinMax(0.4, 0.3, -0.2, 0.7, margin=0.8, dtype=torch.float64)
    variables = [scores, *loss.parameters()]
    value = loss(scores, 2 * labels - 1)
    w = labels.double()[:, None]
    expected = objective(scores[:, None].sigmoid(), w, None, loss.prior, loss.s, loss.r, loss.y, 0.8)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-15)
    for ours, theirs in zip(*(torch.autograd.grad(z, variables) for z in (value, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)
    with pytest.raises(ValueError, match=r"labels=\[0, 1, 2\]: must be \{0, 1\}"):
        loss(scores[:3], torch.tensor([0, 1, 2]))
