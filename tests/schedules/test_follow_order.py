"""Follow inside torch's composite schedulers: the rates do not depend on the order of construction."""

import copy
import io
import pickle

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

import semaopt
from semaopt.schedules import Follow

LR, GAMMA = 0.1, 0.1


def make(kind="ASA"):
    x = torch.nn.Parameter(torch.ones(2))
    if kind == "ASA":
        return semaopt.ASA([x], lr=LR, beta=1 - GAMMA)
    return torch.optim.AdamW([x], lr=LR, betas=(1 - GAMMA, 0.999))


def rates(optimizer):
    group = optimizer.param_groups[0]
    return float(group["lr"]), 1 - float(group["beta"] if "beta" in group else group["betas"][0])


def walk(optimizer, schedule, steps, metric=()):
    """(lr, gamma) at each step, as the step sees them."""
    seen = []
    handle = optimizer.register_step_pre_hook(lambda *_: seen.append(rates(optimizer)))
    for _ in range(steps):
        optimizer.step()
        schedule.step(*metric)
    handle.remove()
    return seen


WARM_UPS = {
    "linear": lambda opt: LinearLR(opt, 0.01, total_iters=4),
    "constant": lambda opt: ConstantLR(opt, 0.1, total_iters=4),
}
AFTER = {
    "cosine": lambda opt: CosineAnnealingLR(opt, 6),
    "exponential": lambda opt: lr_scheduler.ExponentialLR(opt, 0.5),
    "chain": lambda opt: ChainedScheduler([lr_scheduler.ExponentialLR(opt, 0.9), lr_scheduler.StepLR(opt, 2, 0.5)]),
}


def built(optimizer, parts, order):
    """The schedulers in the order of ``parts``, constructed in the order of the names."""
    found = {name: parts[name](optimizer) for name in order}
    return [found[name] for name in parts]


@pytest.mark.parametrize("kind", ["ASA", "AdamW"])
@pytest.mark.parametrize("after", ["cosine", "exponential"])
@pytest.mark.parametrize("warm_up", WARM_UPS)
def test_gamma_keeps_its_value_in_the_warm_up(warm_up, after, kind):
    """Constructed after the warm-up, Follow used to take the lowered lr and freeze beta at 0.999 until its turn."""
    parts = {"first": WARM_UPS[warm_up], "second": lambda opt: Follow(AFTER[after](opt))}
    seen = []
    for order in (("first", "second"), ("second", "first")):
        optimizer = make(kind)
        seen.append(walk(optimizer, SequentialLR(optimizer, built(optimizer, parts, order), [4]), 9))
    assert seen[0] == seen[1]
    assert [gamma for _, gamma in seen[0][:4]] == pytest.approx([GAMMA] * 4)
    assert [gamma for _, gamma in seen[0][4:]] == pytest.approx([GAMMA * lr / LR for lr, _ in seen[0][4:]])
    plain = make()
    alone = built(plain, {"first": WARM_UPS[warm_up], "second": AFTER[after]}, ("first", "second"))
    assert [lr for lr, _ in seen[0]] == [lr for lr, _ in walk(plain, SequentialLR(plain, alone, [4]), 9)]


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_a_followed_warm_up_moves_gamma_too(order):
    parts = {
        "first": lambda opt: Follow(LinearLR(opt, 0.01, total_iters=4)),
        "second": lambda opt: Follow(AFTER["cosine"](opt)),
    }
    optimizer = make()
    seen = walk(optimizer, SequentialLR(optimizer, built(optimizer, parts, order), [4]), 9)
    assert [gamma for _, gamma in seen] == pytest.approx([GAMMA * lr / LR for lr, _ in seen])
    assert seen[0][1] == pytest.approx(0.01 * GAMMA)


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_in_a_chain(order):
    """In a chain both act on lr from the first step on, and gamma follows their product."""
    parts = {"first": WARM_UPS["linear"], "second": lambda opt: Follow(AFTER["cosine"](opt))}
    optimizer = make()
    seen = walk(optimizer, ChainedScheduler(built(optimizer, parts, order)), 6)
    assert [gamma for _, gamma in seen] == pytest.approx([GAMMA * lr / LR for lr, _ in seen])
    assert seen[0][0] == pytest.approx(0.01 * LR)


# Torch's own warning where one composite scheduler starts another, with or without Follow.
NESTED = pytest.mark.filterwarnings(r"ignore:Detected call of `lr_scheduler\.step\(\)` before:UserWarning")


@NESTED
@pytest.mark.parametrize("order", [("warm", "follow", "last"), ("follow", "last", "warm"), ("last", "warm", "follow")])
@pytest.mark.parametrize("inner", ["sequence", "chain"])
def test_nested(inner, order):
    """A sequence or chain that holds Follow, as the first part of a sequence."""
    parts = {
        "warm": WARM_UPS["linear"],
        "follow": lambda opt: Follow(AFTER["cosine"](opt)),
        "last": lambda opt: ConstantLR(opt, 0.5, total_iters=100),
    }

    def nest(optimizer, warm, follow, last):
        part = SequentialLR(optimizer, [warm, follow], [4]) if inner == "sequence" else ChainedScheduler([warm, follow])
        return SequentialLR(optimizer, [part, last], [8])

    optimizer, plain = make(), make()
    seen = walk(optimizer, nest(optimizer, *built(optimizer, parts, order)), 10)
    bare = {**parts, "follow": AFTER["cosine"]}
    torchs = walk(plain, nest(plain, *built(plain, bare, ("warm", "follow", "last"))), 10)
    assert [lr for lr, _ in seen] == [lr for lr, _ in torchs]
    followed = seen[4:8] if inner == "sequence" else seen[:8]
    assert [gamma for _, gamma in followed] == pytest.approx([GAMMA * lr / LR for lr, _ in followed])
    if inner == "sequence":
        assert [gamma for _, gamma in seen[:4]] == pytest.approx([GAMMA] * 4)


@NESTED
@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
@pytest.mark.parametrize("part", ["chain", "sequence"])
def test_follow_around_several_schedulers_inside_a_sequence(part, order):
    def several(opt):
        if part == "chain":
            return Follow(AFTER["chain"](opt))
        return Follow(SequentialLR(opt, [lr_scheduler.ExponentialLR(opt, 0.5), AFTER["cosine"](opt)], [2]))

    parts = {"first": several, "second": WARM_UPS["constant"]}
    optimizer = make()
    seen = walk(optimizer, SequentialLR(optimizer, built(optimizer, parts, order), [4]), 6)
    assert [gamma for _, gamma in seen[:4]] == pytest.approx([GAMMA * lr / LR for lr, _ in seen[:4]])


@pytest.mark.parametrize("order", [("warm", "plateau"), ("plateau", "warm")])
def test_plateau_next_to_a_warm_up(order):
    parts = {
        "warm": WARM_UPS["linear"],
        "plateau": lambda opt: Follow(lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)),
    }
    optimizer = make()
    warm, plateau = built(optimizer, parts, order)
    assert plateau.base_lrs == [LR]
    seen = []
    for _ in range(7):
        optimizer.step()
        seen.append(rates(optimizer))
        warm.step()
        plateau.step(1.0)
    assert [gamma for _, gamma in seen] == pytest.approx([GAMMA * lr / LR for lr, _ in seen])


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
@pytest.mark.parametrize("cut", [0, 2, 4, 6])
@pytest.mark.parametrize("outer", ["sequence", "chain"])
def test_after_a_reload(outer, cut, order):
    parts = {"first": WARM_UPS["linear"], "second": lambda opt: Follow(AFTER["cosine"](opt))}

    def start():
        optimizer = make()
        found = built(optimizer, parts, order)
        return optimizer, SequentialLR(optimizer, found, [4]) if outer == "sequence" else ChainedScheduler(found)

    optimizer, schedule = start()
    walk(optimizer, schedule, cut)
    saved = io.BytesIO()
    torch.save((optimizer.state_dict(), schedule.state_dict()), saved)
    rest = walk(optimizer, schedule, 9 - cut)
    saved.seek(0)
    state, its = torch.load(saved, weights_only=True)
    resumed, again = start()
    again.load_state_dict(its)
    resumed.load_state_dict(state)
    resumed._opt_called = True
    assert walk(resumed, again, 9 - cut) == rest


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copy", "pickle"]
)
@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step:UserWarning")  # torch's, for any copied optimizer
def test_copies_continue_alike(clone):
    optimizer = make()
    schedule = Follow(AFTER["cosine"](optimizer))
    LinearLR(optimizer, 0.01, total_iters=4)  # lowers lr after Follow was created
    twin, again = clone((optimizer, schedule))
    assert again.optimizer is twin
    twin._opt_called = True
    seen = walk(optimizer, schedule, 4)
    assert walk(twin, again, 4) == seen
    assert seen[0] == (pytest.approx(0.01 * LR), pytest.approx(0.01 * GAMMA))
    assert not optimizer._optimizer_step_pre_hooks


def test_a_schedule_that_is_dropped_no_longer_acts():
    optimizer = make()
    Follow(AFTER["cosine"](optimizer))
    optimizer.param_groups[0]["beta"] = 0.5
    optimizer.step()
    assert optimizer.param_groups[0]["beta"] == 0.5
