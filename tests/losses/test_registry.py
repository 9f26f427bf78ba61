"""Common tests of all compositional losses, one entry in CASES per loss."""

from __future__ import annotations

import copy
import io
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import semaopt
from semaopt.losses import NDCG, AveragePrecision, GlobalContrastive, MeanAveragePrecision, PartialAUC
from tests.ecosystem.processes import run_on_two
from tests.kernels.common import needs_c

N = 12
RELEVANCE = torch.tensor([2.0, 0, 1, 0, 3, 0, 0, 1, 0, 2, 0, 0])
QUERY = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1])
LABELS = torch.tensor([1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0])
MULTI = torch.stack([LABELS, LABELS.roll(2), (torch.arange(N) < 3).long()], 1).double()


def hinge(above, below, m=1.0):
    return torch.clamp(m - above + below, min=0) ** 2


def precision(h, b, prior=None, m=1.0):
    """Return 1 - AP of one column by looping over the pairs; NaN labels are ignored."""
    known = [j for j in range(len(b)) if b[j] == b[j]]
    positive, negative = [j for j in known if b[j] == 1], [j for j in known if b[j] != 1]
    total = 0.0
    for i in positive:
        first = sum(hinge(h[i], h[j], m) for j in positive)
        second = sum(hinge(h[i], h[j], m) for j in negative)
        if prior is None:
            g1, g2 = first / len(known), (first + second) / len(known)
        else:
            g1 = prior * first / len(positive)
            g2 = g1 + (1 - prior) * second / len(negative)
        total = total + 1 - g1 / g2
    return total / len(positive)


def mean_precision(x, b, **options):
    return sum(precision(x[:, c].sigmoid(), b[:, c], **options) for c in range(b.shape[1])) / b.shape[1]


def pairs(h, b, m=1.0):
    return torch.stack([torch.stack([hinge(h[i], h[j], m) for j in range(len(b)) if b[j] != 1])
                        for i in range(len(b)) if b[i] == 1])  # fmt: skip


def worst_share(values, share):
    """Return the mean of the largest ``share`` of the values, the last one weighted by a fraction."""
    ordered, count = values.sort(descending=True).values, share * len(values)
    whole = math.floor(count + 1e-9)
    rest = (count - whole) * ordered[whole] if whole < len(ordered) else 0.0
    return (ordered[:whole].sum() + rest) / count


def gain_loss(x, relevance, query, top_k=None, tau=0.05):
    h, total = x.sigmoid(), 0.0
    for q in query.unique():
        items = (query == q).nonzero().flatten().tolist()
        ideal = sorted((relevance[i].item() for i in items), reverse=True)[:top_k]
        z = sum((2**r - 1) / math.log2(k + 2) for k, r in enumerate(ideal))
        ordered = h[items].sort(descending=True).values
        dcg = 0.0
        for i in items:
            rank = sum(hinge(h[i], h[j]) for j in items)
            gain = (2 ** relevance[i] - 1) / torch.log2(1 + rank)
            if top_k is not None:
                gain = gain * torch.sigmoid((h[i] - (ordered[top_k - 1] + ordered[top_k]) / 2) / tau)
            dcg = dcg + gain / z
        total = total + 1 - dcg
    return total / len(query.unique())


def contrast(x, tau, views):
    a, b = (torch.nn.functional.normalize(z, dim=1) for z in (x[:, :3], x[:, 3:]))
    total, n = 0.0, len(x)
    for first, second in ((a, b), (b, a)):
        for i in range(n):
            s = first[i] @ second[i]
            others = [second[j] for j in range(n) if j != i]
            others += [first[j] for j in range(n) if j != i] if views else []
            g = sum(torch.exp((first[i] @ other - s) / tau) for other in others) / len(others)
            total = total + tau * torch.log(g)
    return total / (2 * n)


@dataclass
class Case:
    """A loss and its objective by brute force.

    Attributes:
        make: constructs the loss with options.
        objective: the exact value of the whole data as a function of the raw scores or features.
        target: labels of the whole data; None for features only.
        width: columns of the raw scores.
        depth: number of nested averages through which the gradient flows; None if it differs between terms.
    """

    make: Callable[..., Any]
    objective: Callable[[Tensor], Tensor]
    target: Tensor | None
    width: int = 0
    depth: int | None = 1

    def inputs(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        shape = (N, self.width) if self.width else (N,)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)

    def call(self, loss: Any, x: Tensor, index: Tensor | None = None) -> Tensor:
        """Evaluate ``loss`` on the rows ``index`` of the data, or on all of them without averages."""
        rows = torch.arange(N) if index is None else index
        if self.target is None:
            return loss(x[rows, :3], x[rows, 3:], index)
        return loss(x[rows], self.target[rows], rows if isinstance(loss, NDCG) else index)


missing = MULTI.clone()
missing[::4, 0], missing[1, 2] = torch.nan, torch.nan


def kl(x):
    return torch.log(pairs(x.sigmoid(), LABELS).div(0.5).exp().mean(1)).mean() * 0.5


def two_way_kl(x):
    g = pairs(x.sigmoid(), LABELS).div(0.5).exp().mean(1)
    return 0.8 * torch.log((g ** (0.5 / 0.8)).mean())


def cvar(x):
    return torch.stack([worst_share(row, 0.3) for row in pairs(x.sigmoid(), LABELS)]).mean()


def two_way_cvar(x):
    return worst_share(torch.stack([worst_share(row, 0.3) for row in pairs(x.sigmoid(), LABELS)]), 0.4)


CASES = {
    "AP": Case(lambda **o: AveragePrecision(N, **o), lambda x: precision(x.sigmoid(), LABELS), LABELS),
    "AP, prior, margin, linear": Case(
        lambda **o: AveragePrecision(N, prior=0.2, margin=0.7, score="linear", **o),
        lambda x: precision(x, LABELS, 0.2, 0.7),
        2 * LABELS - 1,
    ),
    "mAP": Case(lambda **o: MeanAveragePrecision(N, 3, **o), lambda x: mean_precision(x, MULTI), MULTI.long(), 3),
    "mAP, missing labels, prior": Case(
        lambda **o: MeanAveragePrecision(N, 3, prior=0.25, **o),
        lambda x: mean_precision(x, missing, prior=0.25),
        missing,
        3,
    ),
    "pAUC, KL": Case(lambda **o: PartialAUC(N, temperature=0.5, **o), kl, LABELS),
    "pAUC, KL, two-way": Case(
        lambda **o: PartialAUC(N, min_tpr=0.5, temperature=0.5, positive_temperature=0.8, **o),
        two_way_kl,
        LABELS,
        depth=2,
    ),
    "pAUC, CVaR": Case(lambda **o: PartialAUC(N, 0.3, method="cvar", **o), cvar, LABELS, depth=None),
    "pAUC, CVaR, two-way": Case(
        lambda **o: PartialAUC(N, 0.3, 0.6, method="cvar", **o), two_way_cvar, LABELS, depth=None
    ),
    "NDCG": Case(lambda **o: NDCG(RELEVANCE, QUERY, **o), lambda x: gain_loss(x, RELEVANCE, QUERY), RELEVANCE),
    "NDCG, top K": Case(
        lambda **o: NDCG(RELEVANCE, QUERY, top_k=3, **o),
        lambda x: gain_loss(x, RELEVANCE, QUERY, 3),
        RELEVANCE,
        depth=None,
    ),
    "contrastive, pairs": Case(
        lambda **o: GlobalContrastive(N, 0.4, **o), lambda x: contrast(x, 0.4, False), None, 6
    ),
    "contrastive, views": Case(
        lambda **o: GlobalContrastive(N, 0.4, form="views", **o), lambda x: contrast(x, 0.4, True), None, 6
    ),
}  # fmt: skip
LOGARITHMS = ["pAUC, KL", "pAUC, KL, two-way", "contrastive, pairs", "contrastive, views"]
every_loss = pytest.mark.parametrize("name", CASES)


def state(loss: Any) -> dict[str, Tensor]:
    return {name: z.clone() for name, z in loss.state_dict().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name].nan_to_num(-7.0), right[name].nan_to_num(-7.0)) for name in left
    )


def batches(count: int, size: int = 6, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(N, generator=generator)[:size] for _ in range(count)]


@every_loss
def test_the_first_full_batch_gives_the_exact_value_and_gradient(name):
    case = CASES[name]
    x = case.inputs().requires_grad_()
    value, exact = case.call(case.make().double(), x, torch.arange(N)), case.objective(x)
    assert value.shape == ()
    torch.testing.assert_close(value, exact, rtol=1e-6, atol=1e-8)
    ours, theirs = (torch.autograd.grad(z, x)[0] for z in (value, exact))
    assert theirs.abs().max() > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


@every_loss
@pytest.mark.parametrize("closed", [True, False])
def test_without_momentum_every_full_batch_gives_the_exact_gradient(name, closed):
    case = CASES[name]
    loss = case.make(inner_beta=0.0).double()
    loss.closed_form = closed
    for seed in (1, 0):
        x = case.inputs(seed).requires_grad_()
        ours = torch.autograd.grad(case.call(loss, x, torch.arange(N)), x)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(case.objective(x), x)[0], rtol=1e-6, atol=1e-8)


@every_loss
def test_derivatives_in_evaluation_mode(name):
    case = CASES[name]
    loss = case.make().double().eval()
    x = case.inputs().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: case.call(loss, x), x)


@every_loss
def test_gradient_is_evaluated_at_the_averages(name):
    """The gradient is J_g^T grad f(z): the derivative of the next value without the weight gamma of the newest g."""
    case = CASES[name]
    if case.depth is None:
        pytest.skip("the value depends on averages of several depths")
    loss = case.make(inner_beta=0.7).double()
    case.call(loss, case.inputs(8).requires_grad_(), torch.arange(N))  # visit every example once
    for seed, index in enumerate(batches(3, 8)):
        case.call(loss, case.inputs(seed).requires_grad_(), index)
    x, index = case.inputs(9).requires_grad_(), batches(1, 10, 9)[0]

    def value(x):
        return case.call(copy.deepcopy(loss), x.requires_grad_(), index).detach()

    (ours,) = torch.autograd.grad(case.call(copy.deepcopy(loss), x, index), x)
    direction = case.inputs(10)
    eps = 1e-5
    slope = (value(x.detach() + eps * direction) - value(x.detach() - eps * direction)) / (2 * eps)
    assert (ours * direction).sum().item() * 0.3**case.depth == pytest.approx(slope.item(), rel=1e-5, abs=1e-9)


BINARY = [name for name in CASES if name.startswith(("AP", "pAUC"))]
CLOSED_FORMS = [
    *(pytest.param(name, True, marks=needs_c, id=f"{name}, C") for name in BINARY),
    *(pytest.param(name, False, id=f"{name}, torch") for name in BINARY if "CVaR" not in name),
]


@pytest.mark.parametrize(("name", "compiled"), CLOSED_FORMS)
@pytest.mark.parametrize("form", ["integers", "missing", "int32", "bool", "no gaps, float32"])
def test_closed_form_gradients_equal_autograd(name, form, compiled):
    """Compare values, gradients and averages over several visits; a batch may hold an example twice."""
    case = CASES[name]
    labels, dtype = case.target.clone(), torch.float32 if "float32" in form else torch.float64
    if form == "missing":
        labels = labels.double()
        labels[[1, 2, 3]] = torch.nan
    labels = (labels == 1).bool() if form == "bool" else labels.int() if form == "int32" else labels
    fast, slow = (case.make(inner_beta=0.6).to(dtype) for _ in range(2))
    fast.compiled, slow.closed_form = compiled, False
    exact = dtype == torch.float64
    twice = torch.tensor([0, 3, 3, 4, 5, 0, 10, 11])
    for seed, index in enumerate([torch.arange(N), *batches(4, 9), twice]):
        results = []
        for loss in (fast, slow):
            x = case.inputs(seed, dtype).requires_grad_()
            value = loss(x[index, None], labels[index], index)
            results += [value.detach(), torch.autograd.grad(value, x)[0]]
            assert (type(value.grad_fn).__name__ == "KnownGradientBackward") == (loss is fast)
        assert results[0].dtype == results[1].dtype == dtype
        torch.testing.assert_close(results[0], results[2], rtol=1e-12 if exact else 1e-5, atol=1e-14 if exact else 1e-6)
        torch.testing.assert_close(results[1], results[3], rtol=1e-10 if exact else 1e-4, atol=1e-13 if exact else 1e-6)
    for one, other in zip(state(fast).values(), state(slow).values(), strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-12 if exact else 1e-5, atol=1e-14 if exact else 1e-6, equal_nan=True
        )


@pytest.mark.parametrize("name", ["AP", *LOGARITHMS])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # read by dynamo
def test_compiled_gradients_equal_autograd(name):
    case = CASES[name]
    compiled, plain = case.make(), case.make()
    plain.closed_form = False
    torch._dynamo.reset()
    graph = torch.compile(lambda x, index: case.call(compiled, x, index), backend="aot_eager")
    for seed, index in enumerate([torch.arange(N), *batches(3, 9)]):
        x = case.inputs(seed, torch.float32).requires_grad_()
        values = graph(x, index), case.call(plain, x, index)
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value in values))
    assert same(state(compiled), state(plain))


@needs_c
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("NDCG", "contrastive"))])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_closed_form_gradients_of_lists_and_features_equal_autograd(name, dtype):
    """As above; in the last batch all items of a query are above the threshold; one feature has length 0."""
    case = CASES[name]
    visible = {"eps": 0.3} if name.startswith("contrastive") else {}  # the default, 1e-14, changes nothing
    fast, slow = (case.make(inner_beta=0.6, **visible).to(dtype) for _ in range(2))
    slow.closed_form = False
    tolerance = {"rtol": 1e-10, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    lists = [torch.arange(N), *batches(4, 9), torch.tensor([0, 2, 5, 6, 7, 8, 9]), torch.tensor([4, 5, 6, 8])]
    for seed, index in enumerate(lists):
        results = []
        for loss in (fast, slow):
            x = case.inputs(seed, dtype)
            if case.width and seed == 2:
                x[index[0], :3] = 0.0
            value = case.call(loss, x.requires_grad_(), index)
            results += [value.detach(), torch.autograd.grad(value, x)[0]]
            assert (type(value.grad_fn).__name__ == "KnownGradientBackward") == (loss is fast)
        assert results[0].dtype == results[1].dtype == dtype
        for k in (0, 1):
            torch.testing.assert_close(results[k], results[2 + k], **tolerance)
    for one, other in zip(state(fast).values(), state(slow).values(), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, **tolerance)


@every_loss
def test_second_derivatives_need_the_slow_form(name):
    case = CASES[name]
    loss, x = case.make(), case.inputs(dtype=torch.float32).requires_grad_()
    value = case.call(loss, x, torch.arange(N))
    if type(value.grad_fn).__name__ == "KnownGradientBackward":
        with pytest.raises(RuntimeError, match=r"no second derivative.*Set loss\.closed_form = False"):
            torch.autograd.grad(value, x, create_graph=True)
    loss.closed_form = False
    (g,) = torch.autograd.grad(case.call(loss, x, torch.arange(N)), x, create_graph=True)
    assert torch.autograd.grad(g.square().sum(), x)[0].abs().max() > 0


@every_loss
def test_resume_is_bit_exact(name):
    case = CASES[name]

    def step(loss, x, index):
        optimizer = torch.optim.SGD([x], lr=0.1)
        case.call(loss, x, index).backward()
        optimizer.step()
        x.grad = None

    loss, x = case.make(), case.inputs(dtype=torch.float32).requires_grad_()
    for index in batches(5):
        step(loss, x, index)
    buffer = io.BytesIO()
    torch.save((loss.state_dict(), x.detach()), buffer)
    buffer.seek(0)
    saved, start = torch.load(buffer, weights_only=True)
    twin, y = case.make(), start.clone().requires_grad_()
    twin.load_state_dict(saved)
    for index in batches(5, seed=1):
        step(loss, x, index)
        step(twin, y, index)
    assert torch.equal(x, y)
    assert same(state(loss), state(twin))


@every_loss
def test_evaluation_neither_reads_nor_changes_the_averages(name):
    case = CASES[name]
    loss, x = case.make(), case.inputs(dtype=torch.float32).requires_grad_()
    fresh = case.call(case.make().eval(), x)
    case.call(loss, case.inputs(1, torch.float32).requires_grad_(), torch.arange(N))
    before = state(loss)
    with torch.no_grad():
        assert torch.equal(case.call(loss, x), fresh.detach())
    assert torch.equal(case.call(loss.eval(), x), fresh)
    assert same(state(loss), before)
    assert any(not z.isnan().all() for z in before.values())


@every_loss
def test_only_the_examples_of_the_batch_are_visited(name):
    case = CASES[name]
    loss = case.make()
    index = torch.tensor([0, 1, 3, 4])
    case.call(loss, case.inputs().requires_grad_(), index)
    visited = (~loss.z.isnan()).reshape(N, -1).any(1).nonzero().flatten().tolist()
    assert visited
    assert set(visited) <= {0, 1, 3, 4}


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_half_precision_inputs_compute_in_float32(name, dtype):
    case = CASES[name]
    x = case.inputs().to(dtype).float()
    plain, mixed, cast = case.make(), case.make(), case.make().to(dtype)
    expected = case.call(plain, x.clone().requires_grad_(), torch.arange(N))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = case.call(mixed, x.clone().requires_grad_(), torch.arange(N))
    low = case.call(cast, x.to(dtype).requires_grad_(), torch.arange(N))
    assert value.dtype == low.dtype == torch.float32
    assert cast.z.dtype == plain.z.dtype
    torch.testing.assert_close(value, expected, rtol=0, atol=0)
    torch.testing.assert_close(low, expected, rtol=2e-2, atol=2e-2)
    assert same(state(plain), state(mixed))


@every_loss
def test_scaled_gradients_of_half_precision_inputs_do_not_underflow(name):
    """As under GradScaler: the gradient is cast to float16 after it is multiplied by the factor."""
    case = CASES[name]
    x = (case.inputs() * (3e3 if case.width == 6 else 6.0)).half()  # long features or saturated scores
    found = []
    for closed in (True, False):
        loss, z = case.make(), x.clone().requires_grad_()
        loss.closed_form = closed
        (case.call(loss, z, torch.arange(N)) * 2.0**16).backward()
        found.append(z.grad)
    torch.testing.assert_close(*found, rtol=2e-3, atol=2e-7)
    assert found[1].abs().max() > 0


@every_loss
def test_memory_and_dtype_of_the_averages(name):
    loss = CASES[name].make()
    dtype = torch.float64 if name in LOGARITHMS else torch.float32
    assert loss.z.dtype == dtype
    persistent = sum(z.numel() for z in loss.state_dict().values())
    assert persistent <= 2 * loss.z.numel()
    assert "z" in loss.state_dict()
    for narrow in (torch.float16, torch.bfloat16, torch.float32):
        assert loss.to(narrow).z.dtype == dtype
    assert {z.dtype for z in loss.state_dict().values()} == {dtype}
    assert loss.double().z.dtype == torch.float64
    assert not list(loss.parameters())


@pytest.mark.parametrize("name", LOGARITHMS)
def test_a_device_without_float64_stores_logarithms_in_float32(name, monkeypatch):
    monkeypatch.setattr(semaopt.losses.tracked, "WITHOUT_FLOAT64", ("meta",))
    assert CASES[name].make().to("meta").z.dtype == torch.float32
    assert CASES[name].make(device="meta").z.dtype == torch.float32


@pytest.mark.parametrize("name", LOGARITHMS)
@pytest.mark.parametrize("assign", [False, True])
def test_averages_saved_in_float32_load(name, assign):
    """Logarithms were stored in float32 once; ``assign`` keeps the dtype of the file."""
    case = CASES[name]
    loss, x = case.make(), case.inputs().requires_grad_()
    case.call(loss, x, torch.arange(N))
    old = {key: z.float() for key, z in loss.state_dict().items()}
    twin = case.make()
    twin.load_state_dict(old, assign=assign)
    assert twin.z.dtype == (torch.float32 if assign else torch.float64)
    torch.testing.assert_close(twin.z, loss.z, check_dtype=False, equal_nan=True)
    torch.testing.assert_close(case.call(twin, x, torch.arange(N)), case.call(loss, x, torch.arange(N)))


@every_loss
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, semaopt.ASA])
def test_any_optimizer_lowers_the_objective(name, kind):
    case = CASES[name]
    loss, x = case.make(), torch.nn.Parameter(case.inputs(dtype=torch.float32))
    start = case.objective(x.detach()).item()
    optimizer = kind([x], lr=3.0 if kind is torch.optim.SGD else 0.05)
    for index in batches(60, 10):
        optimizer.zero_grad()
        case.call(loss, x, index).backward()
        optimizer.step()
    assert case.objective(x.detach()).item() < start - 0.01


@every_loss
@pytest.mark.parametrize(
    ("index", "text"),
    [
        (None, r"index=None.*must be a tensor"),
        (torch.arange(N) + 1, rf"index=\(1, {N}\).*must lie in 0\.\.{N - 1}\. Construct the loss with "),
        (torch.arange(N) - 1, rf"index=\(-1, {N - 2}\).*must lie in 0\.\.{N - 1}"),
        (torch.arange(N).float(), rf"index=\({N},\).*must be a tensor of {N} integers"),
        (torch.arange(3), rf"index=\(3,\).*must be a tensor of {N} integers"),
    ],
)
def test_invalid_indices(name, index, text):
    case = CASES[name]
    x = case.inputs().requires_grad_()
    arguments = (x[:, :3], x[:, 3:]) if case.target is None else (x, case.target)
    loss = case.make()
    with pytest.raises(ValueError, match=text) as found:
        loss(*arguments, index)
    assert not (name.startswith("NDCG") and "size=" in str(found.value)), "NDCG has no size"
    assert loss.z.isnan().all()


@every_loss
def test_averages_can_be_reset(name):
    """As after ``to_empty``, which leaves values that happen to be in memory."""
    case = CASES[name]
    loss, fresh, x = case.make(), case.make(), case.inputs().requires_grad_()
    case.call(loss, x, torch.arange(N))
    for key in loss.averages:
        if hasattr(loss, key):
            getattr(loss, key).fill_(5.0)
    loss.reset_parameters()
    assert same(state(loss), state(fresh))
    assert torch.equal(case.call(loss, x, torch.arange(N)), case.call(fresh, x, torch.arange(N)))


def test_a_loss_on_the_meta_device_can_be_allocated_and_reset():
    loss = PartialAUC(N, device="meta").to_empty(device="cpu")
    loss.reset_parameters()
    assert loss.z.isnan().all()
    assert loss.writer == -1


@every_loss
def test_copies_and_representation(name):
    case = CASES[name]
    loss, x = case.make(inner_beta=0.5), case.inputs(dtype=torch.float32).requires_grad_()
    case.call(loss, x, torch.arange(N))
    twin = copy.deepcopy(loss)
    assert torch.equal(case.call(loss, x, torch.arange(N)), case.call(twin, x, torch.arange(N)))
    assert f"size={N}" in repr(loss)
    with pytest.raises(ValueError, match=r"inner_beta=1\.0.*must lie in \[0, 1\)"):
        case.make(inner_beta=1.0)


@every_loss
def test_the_global_random_state_is_not_used(name):
    case = CASES[name]
    before = torch.get_rng_state()
    case.call(case.make(), case.inputs().requires_grad_(), torch.arange(N)).backward()
    assert torch.equal(torch.get_rng_state(), before)


def train(case: Case, loss: Any, parts: list[Tensor], average: Callable[[Tensor], None] = lambda g: None) -> Tensor:
    """Train a linear model and return its scores or features; ``average`` combines the gradients of the ranks."""
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(N, 4, generator=generator, dtype=torch.float64)
    width = max(case.width, 1)
    weight = torch.nn.Parameter(torch.randn(4, width, generator=generator, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.3)
    for index in parts:
        optimizer.zero_grad()
        x = a @ weight
        case.call(loss, x if case.width else x[:, 0], index).backward()
        average(weight.grad)
        optimizer.step()
    return weight.detach()


def two_ranks(rank, folder):
    def mean(g):
        torch.distributed.all_reduce(g)
        g /= 2

    for name, case in CASES.items():
        parts = batches(8, 8)
        one = case.make().double()
        expected = train(case, one, parts)
        joint = case.make(process_group=torch.distributed.group.WORLD).double()
        found = train(case, joint, [index.chunk(2)[rank] for index in parts], mean)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12, msg=f"{name}: {{}}".format)
        for key, z in joint.state_dict().items():
            torch.testing.assert_close(z, one.state_dict()[key], rtol=1e-10, atol=1e-12, equal_nan=True)
        own = case.make().double()  # without a process group, averages cover only the examples of this rank
        mine = torch.arange(rank, N, 2)
        case.call(own, case.inputs().requires_grad_(), mine)
        local = own.z[mine].clone()
        other = own.z[1 - rank :: 2]
        assert other.isnan().all(), name
        own.synchronize()
        torch.testing.assert_close(own.z[mine], local, rtol=0, atol=0, equal_nan=True)
        assert own.z[1 - rank :: 2].isfinite().any(), name


@pytest.mark.slow
def test_two_ranks_equal_one(tmp_path):
    """With a process group, ranks equal one process; without one, they merge their averages."""
    assert run_on_two(two_ranks, tmp_path)


def merging_ranks(rank, folder):
    nan, inf = torch.nan, torch.inf
    values = ([1.0, 2.0, nan, inf, nan, 1e3], [3.0, nan, nan, 5.0, -inf, 1e3 + 1])[rank]
    for name, middle in [("AP", 2.0), *((name, math.log((math.e + math.e**3) / 2)) for name in LOGARITHMS)]:
        loss = CASES[name].make()
        last = 1e3 + (0.5 if name == "AP" else math.log((1 + math.e) / 2))
        loss.z[:6] = torch.tensor(values)[:, None]
        loss.synchronize()
        expected = torch.tensor([middle, 2.0, nan, 5.0, nan, last])[:, None].expand(loss.z[:6].shape)
        torch.testing.assert_close(loss.z[:6], expected, check_dtype=False, equal_nan=True, msg=f"{name}: {{}}".format)


@pytest.mark.slow
def test_merged_averages_are_means_over_the_ranks_that_visited(tmp_path):
    """Also if the averages are stored as logarithms; averages that are not finite do not count."""
    assert run_on_two(merging_ranks, tmp_path)


class Both(torch.nn.Module):
    """A linear model with its loss, as someone would wrap them together in DDP."""

    def __init__(self, case: Case, **options: Any) -> None:
        super().__init__()
        self.case, self.loss = case, case.make(**options).double()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4 * max(case.width, 1), dtype=torch.float64))

    def forward(self, a: Tensor, index: Tensor) -> Tensor:
        """Return the loss of the rows ``index`` of the inputs."""
        x = a @ self.weight.view(4, -1)
        return self.case.call(self.loss, x if self.case.width else x[:, 0], index)


def fit(module: torch.nn.Module, parts: list[Tensor]) -> None:
    a = torch.randn(N, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    optimizer = semaopt.ASA(module.parameters(), lr=0.05)
    for index in parts:
        optimizer.zero_grad()
        module(a, index).backward()
        optimizer.step()


def wrapped_ranks(rank, folder):
    parts, world = batches(6, 8), torch.distributed.group.WORLD
    for name, case in CASES.items():
        one, two = Both(case), Both(case, process_group=world)
        fit(one, parts)
        fit(torch.nn.parallel.DistributedDataParallel(two), [index.chunk(2)[rank] for index in parts])
        for (key, x), y in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
            torch.testing.assert_close(y, x, rtol=1e-10, atol=1e-12, equal_nan=True, msg=f"{name}, {key}: {{}}".format)
        assert not torch.equal(one.weight, Both(case).weight)


@pytest.mark.slow
def test_two_ranks_in_ddp_equal_one(tmp_path):
    assert run_on_two(wrapped_ranks, tmp_path)


def unsynchronized_ranks(rank, folder):
    for name, case in CASES.items():
        parts = [index[rank::2] for index in batches(4, 8)]
        plain = torch.nn.parallel.DistributedDataParallel(Both(case))
        fit(plain, parts[:1])
        a = torch.randn(N, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        if rank == 0:  # its averages are the ones that DDP keeps
            plain(a, parts[1])
        else:
            text = rf"{type(plain.module.loss).__name__}: DDP .* of rank 1 .*process_group=.*forward_sync_buffers=False"
            with pytest.raises(RuntimeError, match=text):
                plain(a, parts[1])
        separate = torch.nn.parallel.DistributedDataParallel(Both(case), forward_sync_buffers=False)
        fit(separate, parts)
        visited = (~separate.module.loss.z.isnan()).reshape(N, -1).any(1).nonzero().flatten().tolist()
        assert set(visited) <= set(torch.cat(parts).tolist()), name
        again = copy.deepcopy(separate.module)
        fit(again, parts)  # a copy belongs to the same rank


@pytest.mark.slow
def test_averages_that_ddp_overwrites_are_an_error(tmp_path):
    assert run_on_two(unsynchronized_ranks, tmp_path)


TRAINING = """
import os, signal, sys, torch, semaopt
from pathlib import Path

checkpoint, result, dies_after = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
labels = (torch.rand(200) < 0.15).long()
inputs = torch.randn(200, 5) + labels[:, None]
model = torch.nn.Linear(5, 1)
loss = semaopt.losses.AveragePrecision(size=200, prior=0.15)
optimizer = semaopt.ASA(model.parameters(), lr=1e-2)
sampler = semaopt.samplers.ClassBalanced(labels, batch_size=16, positives=0.25, seed=0)
parts = {"model": model, "loss": loss, "optimizer": optimizer, "sampler": sampler}
if checkpoint.exists():
    for name, state in torch.load(checkpoint, weights_only=True).items():
        parts[name].load_state_dict(state)
steps = 0
while sampler.epoch < 3:
    for index in sampler:
        index = torch.tensor(index)
        optimizer.zero_grad()
        loss(model(inputs[index]), labels[index], index).backward()
        optimizer.step()
        steps += 1
        if steps % 4 == 0:
            torch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
        if steps == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
torch.save((model.state_dict(), loss.state_dict(), steps), result)
"""


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_bit(tmp_path):
    """Kill a process in the middle of an epoch, between two checkpoints, and start it again."""

    def run(name: str, dies_after: int = 0) -> int:
        files = [str(tmp_path / f"{name}.{kind}") for kind in ("checkpoint", "result")]
        command = [sys.executable, "-c", TRAINING, *files, str(dies_after)]
        return subprocess.run(command, timeout=300, check=False).returncode

    assert run("whole") == 0
    assert run("killed", dies_after=18) == -signal.SIGKILL
    assert not (tmp_path / "killed.result").exists()
    assert run("killed") == 0
    whole, resumed = (torch.load(tmp_path / f"{name}.result") for name in ("whole", "killed"))
    assert (whole[2], resumed[2]) == (39, 39 - 16)
    for one, other in zip(whole[:2], resumed[:2], strict=True):
        assert same(one, other)
