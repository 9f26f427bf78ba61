"""The compiled AUC objective and its slow twin."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semaopt
from semaopt.kernels import auc as module
from semaopt.kernels.auc import LABELS, REALS, Numbers, auc, auc_loop
from semaopt.losses._auc_objective import objective
from tests.kernels.common import needs_c


def batch(n, seed, dtype, label):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=generator) < 0.4).long()
    return torch.randn(n, generator=generator, dtype=torch.float64).to(dtype), labels.to(label)


@needs_c
@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("label", LABELS, ids=str)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 70), p=st.floats(0.01, 0.99))
def test_twins(dtype, label, seed, n, p):
    scores, labels = batch(n, seed, dtype, label)
    numbers = Numbers(p, 0.3, -0.2, 0.7)
    forms = [labels] if label in (torch.bool, torch.uint8) else [labels, 2 * labels - 1]
    twin = auc_loop(scores, labels.to(dtype), numbers)
    for form in forms:
        found = auc(scores, form, numbers)
        assert not found.wrong
        eps = {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
        torch.testing.assert_close(found.by_scores, twin.by_scores, rtol=10 * eps, atol=10 * eps)
        theirs = (twin.value, twin.by_s, twin.by_r, twin.by_y)
        assert (found.value, found.by_s, found.by_r, found.by_y) == pytest.approx(theirs, rel=10 * eps, abs=10 * eps)


@needs_c
@pytest.mark.parametrize("labels", [[0, 1, 2], [-1, 0, 1], [-1, 0, 0], [3, 3, 3], [0, 255, 1]], ids=str)
@pytest.mark.parametrize("label", [torch.int32, torch.int64, torch.float32, torch.float64, torch.uint8], ids=str)
def test_wrong_labels_are_seen(labels, label):
    if label == torch.uint8:
        labels = [value % 256 for value in labels]
    form = torch.tensor(labels).to(label)
    assert auc(torch.zeros(3), form, Numbers(0.5, 0.0, 0.0, 0.0)).wrong


@needs_c
def test_no_number_is_no_label():
    assert auc(torch.zeros(2), torch.tensor([1.0, float("nan")]), Numbers(0.5, 0.0, 0.0, 0.0)).wrong


def test_what_it_does_not_serve():
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
def test_the_loss_is_the_same_with_and_without(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(module, "library", lambda: None)
    scores, labels = batch(40, 0, torch.float64, torch.int64)
    scores.requires_grad_()
    loss = semaopt.losses.AUCMinMax(0.4, 0.3, -0.2, 0.7, dtype=torch.float64)
    variables = [scores, *loss.parameters()]
    value = loss(scores, 2 * labels - 1)
    w = labels.double()[:, None]
    expected = objective(scores[:, None], w, loss.prior, s=loss.s, r=loss.r, y=loss.y)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-15)
    for ours, theirs in zip(*(torch.autograd.grad(z, variables) for z in (value, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)
    with pytest.raises(ValueError, match=r"labels=\[0, 1, 2\]: must be \{0, 1\}"):
        loss(scores[:3], torch.tensor([0, 1, 2]))
