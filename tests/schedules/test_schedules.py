import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import semaopt
from semaopt.schedules import Follow, InverseSqrt, Polynomial, Stagewise


def make(lr=0.1, beta=0.9, **hyper):
    return semaopt.ASA([torch.nn.Parameter(torch.ones(2))], lr=lr, beta=beta, **hyper)


def walk(optimizer, schedule, steps, *args):
    """(lr, gamma) before each step, as the step sees them."""
    out = []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        out.append((float(group["lr"]), 1 - float(group["beta"])))
        optimizer.step()
        schedule.step(*args)
    return out


def assert_factors(seen, factors, lr=0.1, gamma=0.1):
    assert seen == [(pytest.approx(lr * f), pytest.approx(gamma * f)) for f in factors]


def test_stagewise():
    optimizer = make()
    assert_factors(walk(optimizer, Stagewise(optimizer, every=2, factor=0.2), 6), [1, 1, 0.2, 0.2, 0.04, 0.04])


def test_polynomial():
    optimizer = make()
    assert_factors(walk(optimizer, Polynomial(optimizer, every=2), 6), [1, 1, 1 / 2, 1 / 2, 1 / 3, 1 / 3])
    optimizer = make()
    assert_factors(walk(optimizer, Polynomial(optimizer, every=1, power=0.5), 3), [1, 2**-0.5, 3**-0.5])


def test_inverse_sqrt():
    optimizer = make()
    assert_factors(walk(optimizer, InverseSqrt(optimizer), 4), [(t + 1) ** -0.5 for t in range(4)])


@pytest.mark.parametrize(
    ("on", "moves"),
    [(("lr",), (True, False)), (["gamma"], (False, True)), ("lr", (True, False)), ("gamma", (False, True))],
)
def test_on_one_of_them(on, moves):
    optimizer = make()
    seen = walk(optimizer, Stagewise(optimizer, every=1, factor=0.5, on=on), 3)
    assert [lr for lr, _ in seen] == pytest.approx([0.1, 0.05, 0.025] if moves[0] else [0.1] * 3)
    assert [gamma for _, gamma in seen] == pytest.approx([0.1, 0.05, 0.025] if moves[1] else [0.1] * 3)


def test_each_group_from_its_own_start():
    xs = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = semaopt.ASA([{"params": [xs[0]]}, {"params": [xs[1]], "lr": 1.0, "beta": 0.5}], lr=0.1)
    schedule = Stagewise(optimizer, every=1, factor=0.5)
    optimizer.step()
    schedule.step()
    assert schedule.get_last_lr() == [0.05, 0.5]
    assert schedule.get_last_gamma() == pytest.approx([0.05, 0.25])


def test_tensor_rates_are_filled_in_place():
    lr, beta = torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64)
    optimizer = make(lr=lr, beta=beta)
    schedule = Stagewise(optimizer, every=1, factor=0.5)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] is lr
    assert optimizer.param_groups[0]["beta"] is beta
    assert lr.item() == pytest.approx(0.05)
    assert beta.item() == pytest.approx(0.95)


FOLLOWED = {
    "cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 5, eta_min=1e-4),
    "cosine to zero": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 5),
    "exponential": lambda opt: lr_scheduler.ExponentialLR(opt, 0.7),
    "warm-up": lambda opt: lr_scheduler.LinearLR(opt, 0.1, 1.0, 3),
    "sequence": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.ConstantLR(opt, 0.5, 2), lr_scheduler.ExponentialLR(opt, 0.5)], [2]
    ),
    "chain": lambda opt: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(opt, 0.9)]),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_follow_keeps_the_ratio(name):
    optimizer = make()
    seen = walk(optimizer, Follow(FOLLOWED[name](optimizer)), 6)
    alone = make()
    inner = FOLLOWED[name](alone)
    assert [lr for lr, _ in seen] == [lr for lr, _ in walk(alone, inner, 6)]
    for lr, gamma in seen:
        assert gamma == pytest.approx(max(lr / 0.1 * 0.1, 2**-53))


def test_follow_one_cycle_takes_the_peak_for_reference():
    optimizer = make()
    schedule = Follow(lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=10, cycle_momentum=False))
    seen = walk(optimizer, schedule, 9)
    assert max(gamma for _, gamma in seen) == pytest.approx(0.1, rel=0.05)
    assert all(gamma == pytest.approx(0.1 * lr / 0.5) for lr, gamma in seen)


def test_follow_cyclic_and_a_given_reference():
    optimizer = make()
    cyclic = lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.4, step_size_up=2, cycle_momentum=False)
    seen = walk(optimizer, Follow(cyclic, reference_lr=0.1), 4)
    assert [gamma for _, gamma in seen] == pytest.approx([0.1, 0.25, 0.4, 0.25])


def test_follow_cyclic_takes_the_peak_for_reference():
    optimizer = make()
    cyclic = lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.4, step_size_up=2, cycle_momentum=False)
    seen = walk(optimizer, Follow(cyclic), 4)
    assert [gamma for _, gamma in seen] == pytest.approx([0.025, 0.0625, 0.1, 0.0625])


@pytest.mark.parametrize("follow", [False, True])
def test_numbers_of_numpy_are_in_no_checkpoint(follow):
    one = np.float64(0.5)
    scaling = semaopt.scalings.Adam(beta2=np.float64(0.99))
    optimizer = semaopt.ASA(
        [torch.nn.Parameter(torch.zeros(1))], lr=one, beta=one, scaling=scaling, clip_scaling=(one, one)
    )
    schedule = Follow(lr_scheduler.StepLR(optimizer, 1, 0.5), one) if follow else Stagewise(optimizer, 2, factor=one)
    saved = io.BytesIO()
    torch.save([optimizer.state_dict(), schedule.state_dict()], saved)
    saved.seek(0)
    mine, its = torch.load(saved, weights_only=True)
    assert (mine["param_groups"][0]["lr"], mine["param_groups"][0]["scaling"]["beta2"]) == (0.5, 0.99)
    assert its["base_lrs"] == [0.5]


def test_follow_never_lets_gamma_exceed_one():
    optimizer = make(beta=0.2)
    schedule = Follow(lr_scheduler.LambdaLR(optimizer, lambda t: 1.0 + t))
    seen = walk(optimizer, schedule, 4)
    assert [gamma for _, gamma in seen] == pytest.approx([0.8, 1.0, 1.0, 1.0])


def test_follow_reduce_on_plateau():
    optimizer = make()
    schedule = Follow(lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=1))
    assert_factors(walk(optimizer, schedule, 5, 1.0), [1, 1, 1, 0.1, 0.1])


def test_follow_reduce_on_plateau_is_one():
    """Trainers look at the class to know that ``step`` needs a metric."""
    schedule = Follow(lr_scheduler.ReduceLROnPlateau(make(), patience=3))
    for one in (schedule, copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert isinstance(one, Follow)
        assert isinstance(one, lr_scheduler.ReduceLROnPlateau)
        assert (one.patience, one.in_cooldown) == (3, False)  # found in the inner scheduler
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = schedule.nothing
    assert not isinstance(Follow(lr_scheduler.ExponentialLR(make(), 0.9)), lr_scheduler.ReduceLROnPlateau)


SCHEDULES = {
    "stagewise": lambda opt: Stagewise(opt, every=3, factor=0.3),
    "polynomial": lambda opt: Polynomial(opt, every=2),
    "inverse": InverseSqrt,
    "follow": lambda opt: Follow(lr_scheduler.CosineAnnealingLR(opt, 20)),
    "one cycle": lambda opt: Follow(lr_scheduler.OneCycleLR(opt, 0.5, total_steps=20, cycle_momentum=False)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_state_dict_resumes_exactly(name):
    optimizer = make()
    schedule = SCHEDULES[name](optimizer)
    walk(optimizer, schedule, 5)
    buffer = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, buffer)
    rest = walk(optimizer, schedule, 8)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = make()
    again = SCHEDULES[name](resumed)
    again.load_state_dict(saved["schedule"])
    resumed.load_state_dict(saved["optimizer"])
    resumed._opt_called = True  # torch requires it of a resumed optimizer, and otherwise warns about the order of calls
    assert walk(resumed, again, 8) == rest


@pytest.mark.parametrize("name", SCHEDULES)
def test_they_are_schedulers_of_torch(name):
    optimizer = make()
    schedule = SCHEDULES[name](optimizer)
    assert isinstance(schedule, lr_scheduler.LRScheduler)
    optimizer.step()
    schedule.step()
    assert schedule.get_last_lr() == [optimizer.param_groups[0]["lr"]]
    assert schedule.get_last_gamma() == [pytest.approx(1 - optimizer.param_groups[0]["beta"])]
    assert schedule.last_epoch == 1
    twin = copy.deepcopy(schedule)
    twin.step()
    assert schedule.last_epoch == 1


def test_in_a_sequence_of_torchs():
    optimizer = make()
    parts = [Stagewise(optimizer, every=1, factor=0.5), InverseSqrt(optimizer)]
    seen = walk(optimizer, lr_scheduler.SequentialLR(optimizer, parts, milestones=[3]), 5)
    assert_factors(seen, [1, 0.5, 0.25, 1, 2**-0.5])


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_follow_and_a_sequence_of_torchs(where):
    optimizer = make()
    parts = [lr_scheduler.LambdaLR(optimizer, lambda t: 0.5**t), lr_scheduler.CosineAnnealingLR(optimizer, 4)]
    if where == "inside":
        parts = [Follow(part) for part in parts]
    schedule = lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])
    seen = walk(optimizer, schedule if where == "inside" else Follow(schedule), 6)
    assert_factors(seen, [1, 0.5, 0.25, 1, (1 + 2**-0.5) / 2, 0.5])


def test_a_group_that_is_not_averaged_moves_only_its_lr():
    x, y = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = semaopt.PDSM([x], [y], lr=0.1, dual_lr=0.2, beta=0.5)
    schedule = Stagewise(optimizer, every=1, factor=0.5)
    schedule.optimizer._opt_called = True
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.1]
    assert optimizer.param_groups[1]["beta"] is None
    assert schedule.get_last_gamma() == [0.25, None]


def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: Stagewise(sgd(), every=1), ValueError, r"SGD: param group 0 has momentum=0.*or on=\('lr',\)"),
        (lambda: Follow(lr_scheduler.ExponentialLR(sgd(), 0.9)), ValueError, r"SGD: .*torch's scheduler without"),
        (lambda: Follow(make()), TypeError, r"Follow needs a scheduler.*got ASA\. Write Follow\("),
        (lambda: Follow(lr_scheduler.ExponentialLR(make(lr=0.0), 0.9)), ValueError, r"reference_lr=0\.0 is invalid: it must be"),  # noqa: E501
        (lambda: Follow(lr_scheduler.ExponentialLR(make(), 0.9), reference_lr=math.nan), ValueError, r"_lr=nan"),
        (lambda: Stagewise("adam", every=1), TypeError, r"Stagewise needs a torch optimizer, got str"),
        (lambda: Stagewise(make(), every=True), ValueError, r"every=True is invalid: it must be a whole number >= 1"),
        (lambda: Stagewise(make(), every=0), ValueError, r"every=0 is invalid: it must be a whole number >= 1"),
        (lambda: Stagewise(make(), every=1.5), ValueError, r"every=1\.5 is invalid: it must be a whole number"),
        (lambda: Stagewise(make(), every=1, factor=math.inf), ValueError, r"factor=inf is invalid: it must be"),
        (lambda: Stagewise(make(), every=1, factor=0.0), ValueError, r"factor=0\.0"),
        (lambda: Stagewise(make(), every=1, on="beta"), ValueError, r"on='beta' is invalid: it must name 'lr', 'gamma' or both"),  # noqa: E501
        (lambda: Stagewise(make(), every=1, on=("lr", "beta")), ValueError, r"on=\('lr', 'beta'\) is invalid: it must name"),  # noqa: E501
        (lambda: Polynomial(make(), every=1, power=-1.0), ValueError, r"power=-1\.0 is invalid: it must be a finite number > 0"),  # noqa: E501
    ],
)  # fmt: skip
def test_wrong_use_is_refused(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()


def test_on_lr_alone_serves_any_torch_optimizer():
    optimizer = sgd()
    schedule = Stagewise(optimizer, every=1, factor=0.5, on=("lr",))
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def two_steps(optimizer, schedule):
    for _ in range(2):
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    "make", [lambda o: Stagewise(o, 2, 0.5), lambda o: Follow(lr_scheduler.StepLR(o, 2, 0.5))], ids=["own", "follow"]
)
def test_a_group_that_joins_later_moves_on_from_its_own_rates(make):
    x, late = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = semaopt.ASA([x], lr=1.0, beta=0.5)
    schedule = make(optimizer)
    two_steps(optimizer, schedule)  # x has lr 0.5 and gamma 0.25
    optimizer.add_param_group({"params": [late], "lr": 0.8, "beta": 0.2})
    optimizer.step()
    schedule.step()
    assert [(g["lr"], 1 - g["beta"]) for g in optimizer.param_groups] == [(0.5, 0.25), (0.8, pytest.approx(0.8))]
    two_steps(optimizer, schedule)
    rates = [(g["lr"], 1 - g["beta"]) for g in optimizer.param_groups]
    assert rates == [(0.25, pytest.approx(0.125)), (pytest.approx(0.4), pytest.approx(0.4))]
    fresh = make(optimizer)
    fresh.load_state_dict(copy.deepcopy(schedule.state_dict()))
    assert fresh.get_last_gamma() == schedule.get_last_gamma()


def test_a_gamma_that_no_group_has_is_an_error():
    optimizer = semaopt.baselines.SGDA([torch.nn.Parameter(torch.zeros(1))], [torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(ValueError, match=r"SGDA: no param group is averaged.*, or on=\('lr',\)"):
        Stagewise(optimizer, 2, on=("gamma",))
    with pytest.raises(ValueError, match=r"SGDA: no param group is averaged.*without Follow"):
        Follow(lr_scheduler.StepLR(optimizer, 2))
    Stagewise(optimizer, 2, on=("lr",))


@pytest.mark.parametrize(("make", "name"), [(Stagewise, "factor"), (Polynomial, "power")])
def test_a_factor_that_is_no_number(make, name):
    with pytest.raises(ValueError, match=f"{name}='a' is invalid: it must "):
        make(semaopt.ASA([torch.nn.Parameter(torch.zeros(1))]), 2, **{name: "a"})


def test_counts_may_be_integral_floats_and_numbers_of_numpy():
    optimizer = make(lr=np.float32(0.125), beta=np.float32(0.5))
    assert type(optimizer.param_groups[0]["lr"]) is float
    schedule = Stagewise(optimizer, every=2.0, factor=np.float32(0.5))
    assert (schedule.every, type(schedule.every), schedule.factor) == (2, int, 0.5)
    assert_factors(walk(optimizer, schedule, 3), [1, 1, 0.5], lr=0.125, gamma=0.5)
    assert Polynomial(make(), every=np.int64(3)).every == 3
