"""Schedules on torch's and third-party optimizers: where the momentum is, and what changes with it."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch.optim import lr_scheduler

from semaopt.schedules import Follow, InverseSqrt, Lambda, Polynomial, Stagewise

SIZE = 5


def parameter(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.Parameter(torch.randn(SIZE, dtype=torch.float64, generator=generator))


def gradient(t, seed=1):
    return torch.randn(SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1000 * seed + t))


class ThirdParty(torch.optim.Optimizer):
    """Lion-like: betas as a list, and a field of its own."""

    def __init__(self, params, lr=0.1, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": list(betas), "own": "x"})

    def step(self, closure=None):
        pass


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.optim.Adam([x], lr=0.1),
        lambda x: torch.optim.AdamW([x], lr=0.1),
        lambda x: torch.optim.NAdam([x], lr=0.1),
        lambda x: torch.optim.RAdam([x], lr=0.1),
        lambda x: torch.optim.Adamax([x], lr=0.1),
        lambda x: ThirdParty([x]),
    ],
    ids=["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "third party"],
)
@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: Stagewise(o, every=1, factor=0.5),
        lambda o: Polynomial(o, every=1),
        lambda o: Follow(lr_scheduler.LambdaLR(o, lambda t: 1 / (t + 1))),
    ],
    ids=["stagewise", "polynomial", "follow"],
)
def test_betas(make, schedule):
    x = parameter()
    optimizer = make(x)
    group = optimizer.param_groups[0]
    beta2, kind = group["betas"][1], type(group["betas"])
    moved = schedule(optimizer)
    x.grad = gradient(0)
    optimizer.step()
    moved.step()
    assert group["lr"] == pytest.approx(0.05)
    assert group["betas"][0] == pytest.approx(0.95)
    assert (group["betas"][1], type(group["betas"]), len(group["betas"])) == (beta2, kind, 2)
    assert moved.get_last_gamma() == [pytest.approx(0.05)]


def test_tensor_betas_change_in_place():
    beta = torch.tensor(0.9, dtype=torch.float64)
    optimizer = torch.optim.Adam([parameter()], lr=0.1, betas=(beta, torch.tensor(0.999, dtype=torch.float64)))
    schedule = Stagewise(optimizer, every=1, factor=0.5)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["betas"][0] is beta
    assert beta.item() == pytest.approx(0.95)


def test_a_third_party_optimizer_with_momentum():
    class WithMomentum(torch.optim.Optimizer):
        """LARS-like: a momentum without dampening."""

        def __init__(self, params):
            super().__init__(params, {"lr": 0.1, "momentum": 0.9, "own": "x"})

        def step(self, closure=None):
            pass

    optimizer = WithMomentum([parameter()])
    schedule = Follow(lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    optimizer.step()
    schedule.step()
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["own"]) == (0.05, pytest.approx(0.95), "x")
    assert "dampening" not in group


def sgd_run(betas, dampening, lr, steps):
    """A float64 loop: the buffer is a fixed multiple of a moving average."""
    x, multiple = parameter().detach().clone(), (1 - dampening) / (1 - betas[0])
    buffer = None
    for t in range(steps):
        g = gradient(t)
        buffer = g.clone() if buffer is None else betas[t] * buffer + multiple * (1 - betas[t]) * g
        x -= lr * buffer
    return x


@pytest.mark.parametrize("dampening", [0.9, 0.0, 0.5])
@pytest.mark.parametrize("factor", [0.3, 2.0])
def test_the_buffer_of_sgd_stays_a_multiple_of_an_average(dampening, factor):
    x = parameter()
    optimizer = torch.optim.SGD([x], lr=0.1, momentum=0.9, dampening=dampening)
    schedule = Stagewise(optimizer, every=2, factor=factor, on=("gamma",))
    betas = []
    for t in range(9):
        betas.append(optimizer.param_groups[0]["momentum"])
        x.grad = gradient(t)
        optimizer.step()
        schedule.step()
    assert betas == pytest.approx([1 - min(1, 0.1 * factor ** (t // 2)) for t in range(9)])
    torch.testing.assert_close(x.detach(), sgd_run(betas, dampening, 0.1, 9), rtol=1e-12, atol=1e-14)
    if dampening == 0.9:
        assert optimizer.param_groups[0]["dampening"] == optimizer.param_groups[0]["momentum"]


def test_gamma_may_grow_up_to_one():
    optimizer = torch.optim.Adam([parameter()], lr=0.1)
    schedule = Stagewise(optimizer, every=1, factor=4.0, on=("gamma",))
    seen = []
    for _ in range(4):
        seen.append(schedule.get_last_gamma()[0])
        optimizer.step()
        schedule.step()
    assert seen == pytest.approx([0.1, 0.4, 1.0, 1.0])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert Stagewise(torch.optim.Adam([parameter()]), every=1, factor=10.0).factor_at(400) == math.inf


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: torch.optim.Adagrad([x]), r"Adagrad: param group 0 has no 'beta', 'betas' or 'momentum'"),
        (lambda x: torch.optim.SGD([x], lr=0.1), r"SGD: param group 0 has momentum=0"),
        (
            lambda x: torch.optim.SGD([x], lr=0.1, momentum=0.9, nesterov=True),
            r"has nesterov=True.*only nesterov=False",
        ),
        (lambda x: torch.optim.RMSprop([x], momentum=0.9), r"RMSprop: .* a sum, not an average"),
    ],
)
def test_optimizers_without_a_gamma_are_refused(make, text):
    optimizer = make(parameter())
    with pytest.raises(ValueError, match=text):
        InverseSqrt(optimizer)
    InverseSqrt(optimizer, on=("lr",))


BETAS = [0.9, 0.9, 0.99, 0.5, 0.5, 0.0, 0.97, 0.97, 0.2, 0.9999, 0.6, 0.6]


def reference(betas, lr, *, decoupled, decay, amsgrad, beta2=0.99, eps=1e-8, skip=()):
    """Adam with the exact weight 1 - prod(beta_i), in a plain float64 loop."""
    x = parameter().detach().clone()
    m, u, largest = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64), 0.0
    product, k = 1.0, 0
    for t, beta in enumerate(betas):
        if t in skip:
            continue
        k += 1
        g = gradient(t)
        if decoupled:
            x = x * (1 - lr * decay)
        else:
            g = g + decay * x
        m, u, product = beta * m + (1 - beta) * g, beta2 * u + (1 - beta2) * g**2, product * beta
        largest = torch.maximum(u, largest) if amsgrad and k > 1 else u
        x = x - lr * (m / (1 - product)) / ((largest / (1 - beta2**k)).sqrt() + eps)
    return x


def run(optimizer, x, betas, start=0, skip=()):
    for t in range(start, len(betas)):
        group = optimizer.param_groups[0]
        group["betas"] = (betas[t], group["betas"][1])
        x.grad = None if t in skip else gradient(t)
        optimizer.step()


OPTIONS = [
    {"foreach": False},
    {"foreach": True},
    {"fused": True},
    {"amsgrad": True, "foreach": False},
    {"weight_decay": 0.1, "foreach": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_bias_is_exact_for_any_sequence_of_betas(kind, options):
    given = {"weight_decay": 0.0, **options}
    x = parameter()
    optimizer = kind([x], lr=0.01, betas=(BETAS[0], 0.99), **given)
    Stagewise(optimizer, every=10**9, on=("gamma",))
    run(optimizer, x, BETAS)
    decoupled = kind is torch.optim.AdamW
    expected = reference(
        BETAS, 0.01, decoupled=decoupled, decay=given["weight_decay"], amsgrad=given.get("amsgrad", False)
    )
    torch.testing.assert_close(x.detach(), expected, rtol=1e-12, atol=1e-13)
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert optimizer.param_groups[0]["weight_decay"] == given["weight_decay"]
    assert optimizer.param_groups[0]["betas"][1] == 0.99


def test_the_jump_of_torchs_correction_and_the_opt_out():
    """After 99 steps at 0.9, a switch to 0.99 makes torch's next step 1.58 times as long."""

    def last_step(compensate):
        x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.Adam([x], lr=1.0, betas=(0.9, 0.999), eps=0.0)
        Stagewise(optimizer, every=99, factor=0.1, on=("gamma",), compensate_bias=compensate)
        for t in range(100):
            optimizer.param_groups[0]["betas"] = (0.9 if t < 99 else 0.99, 0.999)
            before = x.item()
            x.grad = torch.ones(1, dtype=torch.float64)
            optimizer.step()
        return before - x.item()

    assert last_step(compensate=True) == pytest.approx(1.0)
    assert last_step(compensate=False) == pytest.approx(1.58, abs=0.005)


def test_a_constant_beta_steps_as_torch_does_to_the_bit():
    x, y = parameter(), parameter()
    plain, scheduled = torch.optim.AdamW([x], lr=0.01), torch.optim.AdamW([y], lr=0.01)
    Stagewise(scheduled, every=10**9)
    for t in range(20):
        x.grad, y.grad = gradient(t), gradient(t)
        plain.step()
        scheduled.step()
        assert torch.equal(x, y)


def test_parameters_that_miss_steps_have_their_own_weight():
    x, y, z = parameter(), parameter(), parameter()
    optimizer = torch.optim.AdamW([x, y, z], lr=0.01, betas=(BETAS[0], 0.99), weight_decay=0.1)
    Stagewise(optimizer, every=10**9, on=("gamma",))
    missed = (0, 3, 4, 8)
    for t, beta in enumerate(BETAS):
        optimizer.param_groups[0]["betas"] = (beta, 0.99)
        x.grad, y.grad, z.grad = gradient(t), None if t in missed else gradient(t), gradient(t)
        optimizer.step()
    for w, skip in ((x, ()), (y, missed), (z, ())):
        expected = reference(BETAS, 0.01, decoupled=True, decay=0.1, amsgrad=False, skip=skip)
        torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=1e-13)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("cut", [0, 1, 3, 7])
@pytest.mark.parametrize("make", [lambda o: Stagewise(o, every=2, factor=0.5), lambda o: Follow(lr_scheduler.CosineAnnealingLR(o, 20))], ids=["stagewise", "follow"])  # fmt: skip # noqa: E501
def test_resume_to_the_bit(make, cut):
    def start():
        x = parameter()
        optimizer = torch.optim.AdamW([x], lr=0.01)
        return x, optimizer, make(optimizer)

    def advance(x, optimizer, schedule, times):
        for t in times:
            x.grad = gradient(t)
            optimizer.step()
            schedule.step()

    x, optimizer, schedule = start()
    advance(x, optimizer, schedule, range(cut))
    saved = io.BytesIO()
    torch.save((x.detach(), optimizer.state_dict(), schedule.state_dict()), saved)
    advance(x, optimizer, schedule, range(cut, 12))
    saved.seek(0)
    at, state, its = torch.load(saved, weights_only=True)
    y, resumed, again = start()
    y.data.copy_(at)
    again.load_state_dict(its)
    resumed.load_state_dict(state)
    resumed._opt_called = True
    advance(y, resumed, again, range(cut, 12))
    assert torch.equal(x, y)


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copy", "pickle"]
)
def test_a_copy_keeps_the_compensation(clone):
    x = parameter()
    optimizer = torch.optim.Adam([x], lr=0.01, betas=(BETAS[0], 0.99))
    schedule = Stagewise(optimizer, every=10**9, on=("gamma",))
    run(optimizer, x, BETAS[:5])
    twin, _ = clone((optimizer, schedule))
    (y,) = twin.param_groups[0]["params"]
    run(optimizer, x, BETAS, start=5)
    run(twin, y, BETAS, start=5)
    assert torch.equal(x, y)


def test_a_step_that_raises_leaves_the_rates_alone():
    x = parameter()
    optimizer = torch.optim.AdamW([x], lr=0.01, betas=(0.9, 0.99))
    Stagewise(optimizer, every=10**9, on=("gamma",))
    run(optimizer, x, [0.9, 0.9, 0.5])
    optimizer.param_groups[0]["betas"] = (0.99, 0.99)

    def closure():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(closure)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (0.01, 0.01)
    assert len(optimizer.param_groups) == 1


def test_tensor_lr():
    x = parameter()
    lr = torch.tensor(0.01, dtype=torch.float64)
    optimizer = torch.optim.Adam([x], lr=lr, betas=(BETAS[0], 0.99), foreach=False)
    Stagewise(optimizer, every=10**9, on=("gamma",))
    run(optimizer, x, BETAS)
    assert optimizer.param_groups[0]["lr"] is lr
    expected = reference(BETAS, 0.01, decoupled=False, decay=0.0, amsgrad=False)
    torch.testing.assert_close(x.detach(), expected, rtol=1e-12, atol=1e-13)


def test_lambda_moves_lr_and_gamma_by_two_functions():
    """On Adam with the bias compensation, against a float64 loop; gamma grows and shrinks, beta2 stays."""
    lr, gamma = lambda t: 1 / (t + 1), lambda t: 1 + t if t < 4 else 1 / t
    x = parameter()
    expected, optimizer = x.detach().clone(), torch.optim.Adam([x], lr=0.1, betas=(0.9, 0.99), eps=1e-8)
    schedule = Lambda(optimizer, lr=lr, gamma=gamma)
    m, u, product = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64), 1.0
    for t in range(12):
        g, beta = gradient(t), 1 - 0.1 * gamma(t)
        m, u, product = beta * m + (1 - beta) * g, 0.99 * u + 0.01 * g * g, product * beta
        expected -= 0.1 * lr(t) * (m / (1 - product)) / ((u / (1 - 0.99 ** (t + 1))).sqrt() + 1e-8)
        x.grad = g
        optimizer.step()
        schedule.step()
        assert optimizer.param_groups[0]["betas"][1] == 0.99
    torch.testing.assert_close(x.detach(), expected, rtol=1e-12, atol=0)


def test_lambda_leaves_alone_what_it_is_not_given_and_resumes():
    optimizer = torch.optim.SGD([parameter()], lr=0.5, momentum=0.9, dampening=0.9)
    schedule = Lambda(optimizer, gamma=lambda t: 2**t)
    for _ in range(2):
        optimizer.step()
        schedule.step()
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["dampening"]) == pytest.approx((0.5, 0.6, 0.6))
    other = torch.optim.SGD([parameter()], lr=0.5, momentum=0.9, dampening=0.9)
    resumed = Lambda(other, gamma=lambda t: 2**t)
    assert not {"_lr", "_gamma", "optimizer"} & schedule.state_dict().keys()
    resumed.load_state_dict(schedule.state_dict())
    other.load_state_dict(optimizer.state_dict())
    resumed.step()
    assert other.param_groups[0]["momentum"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "lr or gamma must be a function"),
        ({"lr": 0.5}, "lr=0.5 is invalid: it must be a function of t or None"),
        ({"gamma": lambda t: -1}, r"gamma\(0\)=-1 is invalid: it must be a finite number >= 0"),
    ],
)
def test_lambda_errors(options, text):
    with pytest.raises(ValueError, match=text):
        Lambda(torch.optim.Adam([parameter()]), **options)
