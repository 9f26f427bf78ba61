import copy
import io
import pickle

import pytest
import torch

import semaopt
from semaopt import PDSM, PDAda, projections
from semaopt.baselines import SGDA
from tests.optimizers.saddles import saddle


def pair(dtype=torch.float64, rows=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(rows, 6, generator=generator, dtype=dtype)) for _ in range(2)]


def run(x, y, optimizer, steps, seed=0):
    f = saddle(4.0, sigma=0.5, dtype=x.dtype)
    noise = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        f.sample_(x, y, noise)
        optimizer.step()


def saved(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def written_out(x, y, steps, eta_x, eta_y, beta, scale, project):
    """Run alg:pdadam, written out line by line."""
    f, noise = saddle(4.0, sigma=0.5), torch.Generator().manual_seed(0)
    x, y, v, history = x.detach().clone(), y.detach().clone(), None, []
    for _ in range(steps):
        f.sample_(x, y, noise)
        g_x, g_y = x.grad, y.grad
        v = g_x if v is None else beta * v + (1 - beta) * g_x
        history.append(g_x)
        x, y = x - eta_x * v * scale(history), project(y + eta_y * g_y)  # both from the same (x_t, y_t)
    return x, y


def shb(history):
    return 1.0


def adam(history):
    u = history[0].square()
    for g in history[1:]:
        u = 0.999 * u + 0.001 * g.square()
    return 1 / (u.sqrt() + 1e-7)


def adafom(history):
    return 1 / (sum(g.square() for g in history).div(len(history)).sqrt() + 1e-7)


@pytest.mark.parametrize(("scaling", "scale"), [("shb", shb), ("adam", adam), ("adafom", adafom)])
def test_steps_equal_the_algorithm_box(scaling, scale):
    x, y = pair()
    expected = written_out(x, y, 30, 0.05, 0.2, 0.8, scale, lambda y: y.clamp(-0.6, 0.4))
    box = projections.Box(-0.6, 0.4)
    options = {"lr": 0.05, "dual_lr": 0.2, "beta": 0.8, "scaling": scaling, "project": box, "bias_correction": False}
    run(x, y, PDAda(primal=[x], dual=[y], **options), 30)
    for ours, theirs in zip((x, y), expected, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-11, atol=1e-13)


def test_pdsm_is_pdada_with_shb():
    ends = []
    for make in (PDSM, lambda **kw: PDAda(scaling="shb", **kw)):
        x, y = pair(torch.float32)
        run(x, y, make(primal=[x], dual=[y], lr=0.05, dual_lr=0.2, beta=0.7), 20)
        ends.append((x.detach(), y.detach()))
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pdsm_without_momentum_equals_sgda_bitwise(dtype):
    ends = []
    for make in (lambda **kw: PDSM(beta=0.0, **kw), SGDA):
        x, y = pair(dtype)
        options = {"lr": 0.037, "dual_lr": 0.21, "weight_decay": 0.01, "project": projections.Ball(2.0)}
        run(x, y, make(primal=[x], dual=[y], **options), 50)
        ends.append((x.detach(), y.detach()))
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("project", "inside"),
    [
        (projections.Box(-0.25, 0.5), lambda y: bool(((y >= -0.25) & (y <= 0.5)).all())),
        (projections.Ball(0.5), lambda y: y.norm() <= 0.5 * 1.005),
        (projections.Simplex(), lambda y: bool((y >= 0).all()) and abs(y.sum() - 1) < 0.02),
    ],
    ids=["box", "ball", "simplex"],
)
def test_y_stays_in_its_set_at_every_step(project, inside, dtype):
    x = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64).to(dtype))
    y = torch.nn.Parameter(torch.full((6,), 1 / 6, dtype=dtype))
    optimizer = PDAda(primal=[x], dual=[y], lr=0.05, dual_lr=0.7, project=project)
    for k in range(40):
        generator = torch.Generator().manual_seed(k)
        x.grad, y.grad = (torch.randn(6, generator=generator).to(dtype) for _ in range(2))
        optimizer.step()
        assert inside(y.detach().double())
        assert y.dtype == dtype


def test_groups_of_every_kind():
    layer = torch.nn.Linear(2, 2)
    y, z = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = PDAda(
        primal=[
            {"params": layer.weight, "lr": 0.5, "scaling": "shb"},
            {"params": (p for p in [layer.bias]), "beta": 0.3},
        ],
        dual=[{"params": [y], "lr": 0.25, "project": projections.Ball(1.0)}, {"params": [z]}],
        project=projections.Box(0.0, 1.0),
    )
    view = [(g["role"], g["lr"], g["beta"], g.get("project")) for g in optimizer.param_groups]
    assert view == [
        ("primal", 0.5, 0.9, None),
        ("primal", 1e-3, 0.3, None),
        ("dual", 0.25, None, projections.Ball(1.0)),
        ("dual", 1e-2, None, projections.Box(0.0, 1.0)),
    ]
    assert set(optimizer.param_groups[2]) == {"params", "role", "lr", "beta", "betas", "project", "weight_decay"}
    assert PDSM(primal=layer.parameters(), dual=iter([y])).param_groups[1]["params"] == [y]


def test_names_of_one_role_name_the_other():
    layer, y = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.zeros(2))
    optimizer = PDSM(primal=layer.named_parameters(), dual=[y])
    assert [group["param_names"] for group in optimizer.param_groups] == [["weight", "bias"], ["dual.0"]]


def test_group_added_later():
    x, y = pair()
    a, b = pair()
    optimizer = PDSM(primal=[x], dual=[y], lr=0.05, dual_lr=0.2, beta=0.0)
    optimizer.add_param_group({"params": [a], "role": "primal", "lr": 0.1})
    optimizer.add_param_group({"params": b, "role": "dual", "project": projections.Box(0.0, 0.0)})
    before = a.detach().clone()
    for z in (x, y, a, b):
        z.grad = torch.ones_like(z)
    optimizer.step()
    torch.testing.assert_close(a.detach(), before - 0.1)
    assert (b == 0).all()
    with pytest.raises(
        ValueError,
        match=r"role=None is invalid: a param group of a min-max optimizer must have one\. Say which side",
    ):
        optimizer.add_param_group({"params": pair()})
    assert len(optimizer.param_groups) == 4


BAD = [
    ({"dual_lr": -1.0}, ValueError, r"dual_lr=-1\.0 is invalid: it must be a finite number >= 0\. Try dual_lr=lr"),
    ({"project": 3}, TypeError, r"project=3 is invalid: it must be a callable that projects a tensor in place\. Pass"),
    ({"project": projections.Box}, TypeError, r"project=<class .*Box'> is invalid: it must be a callable that"),
    (
        {"primal": []},
        ValueError,
        r"primal=\[\] is invalid: it must hold at least one parameter\. A generator is empty after",
    ),
    ({"dual": iter(())}, ValueError, r"dual=\[\] is invalid: it must hold at least one parameter"),
    ({"dual": torch.zeros(2)}, TypeError, r"dual: got one tensor; pass a list, dual=\[tensor\]"),
    ({"primal": 3}, TypeError, r"primal: got int; pass parameters, such as model\.parameters\(\)"),
    (
        {"dual": [{"params": [], "role": "primal"}]},
        ValueError,
        r"role='primal' is invalid: the group is passed as dual=\. Pass it as primal=",
    ),
    (
        {"dual": [{"params": [], "beta": 0.5}]},
        ValueError,
        r"beta=0\.5 is invalid: the dual variables of PDAda are not averaged\. Leave",
    ),
    (
        {"dual": [{"params": [], "weight_decay": 0.1}]},
        ValueError,
        r"weight_decay=0\.1: a dual group has no such option; it",
    ),
    (
        {"dual": [{"params": [], "dual_lr": 0.1}]},
        ValueError,
        r"dual_lr=0\.1: a dual group has no such option; it has beta, lr",
    ),
    ({"primal": [{"params": [], "project": None}]}, ValueError, r"project=None: a primal group has no such option"),
    (
        {"primal": [{"params": [], "maximize": True}]},
        ValueError,
        r"maximize=True: x is minimized and y maximized; pass what",
    ),
    ({"primal": [{"params": [], "beta": None}]}, ValueError, r"beta=None is invalid: it must lie in \[0, 1\)"),
]


@pytest.mark.parametrize(
    ("hyper", "kind", "text"), BAD, ids=[f"{i}-{next(iter(hyper))}" for i, (hyper, *_) in enumerate(BAD)]
)
def test_bad_arguments(hyper, kind, text):
    x, y = pair()
    with pytest.raises(kind, match=text):
        PDAda(**{"primal": [x], "dual": [y], **hyper})


def test_variable_with_both_roles_is_refused():
    x, _ = pair()
    with pytest.raises(
        ValueError, match=r"shape \(3, 6\) is given twice, at group 0, position 0 and at group 1, position 0"
    ):
        PDAda(primal=[x], dual=[x])


@pytest.mark.parametrize("forgotten", ["dual", "primal"])
def test_role_without_gradients_is_reported(forgotten):
    x, y = pair()
    optimizer = PDAda(primal=[x], dual=[y])
    here, there = (x, y) if forgotten == "dual" else (y, x)
    here.grad = torch.ones_like(here)
    before = here.detach().clone()
    text = (
        rf"PDAda: the \w+ parameters have gradients and the {forgotten} parameters have none, so they would never move"
    )
    with pytest.raises(RuntimeError, match=text):
        optimizer.step()
    assert torch.equal(here, before)
    there.requires_grad_(False)
    optimizer.step()
    assert not torch.equal(here, before)


def test_no_gradients_means_no_step():
    x, y = pair()
    before = x.clone(), y.clone()
    optimizer = PDAda(primal=[x], dual=[y])
    optimizer.step()
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert not any(optimizer.state.values())


@pytest.mark.parametrize("schedule", ["stagewise", "follow"])
def test_schedules_set_lr_gamma_and_dual_lr(schedule):
    x, y = pair()
    optimizer = PDAda(primal=[x], dual=[y], lr=0.5, dual_lr=0.25, beta=0.5)
    if schedule == "stagewise":
        scheduler = semaopt.schedules.Stagewise(optimizer, every=1, factor=0.5)
    else:
        scheduler = semaopt.schedules.Follow(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    run(x, y, optimizer, 1)
    scheduler.step()
    assert [(g["lr"], g["beta"]) for g in optimizer.param_groups] == [(0.25, 0.75), (0.125, None)]


def test_schedules_add_no_momentum():
    x, y = pair()
    optimizer = SGDA(primal=[x], dual=[y], lr=0.5, dual_lr=0.25)
    scheduler = semaopt.schedules.Stagewise(optimizer, every=1, factor=0.5)
    run(x, y, optimizer, 1)
    scheduler.step()
    assert [(g["lr"], g["beta"]) for g in optimizer.param_groups] == [(0.25, None), (0.125, None)]


def custom_projection(y):
    y.clamp_(-0.1, 0.1)


def test_checkpoint_contains_the_projection():
    x, y = pair()
    optimizer = PDAda(primal=[x], dual=[y], project=projections.Simplex(2.0))
    run(x, y, optimizer, 2)
    state = saved(optimizer.state_dict())
    other = PDAda(primal=[x], dual=[y])
    other.load_state_dict(state)
    assert other.param_groups[1]["project"] == projections.Simplex(2.0)
    assert optimizer.param_groups[1]["project"] == projections.Simplex(2.0), "state_dict() left the optimizer alone"


def test_custom_projection_must_be_passed_again():
    x, y = pair()
    optimizer = PDAda(primal=[x], dual=[y], project=custom_projection)
    run(x, y, optimizer, 2)
    state = saved(optimizer.state_dict())
    again = PDAda(primal=[x], dual=[y], project=custom_projection)
    again.load_state_dict(state)
    assert again.param_groups[1]["project"] is custom_projection
    other = PDAda(primal=[x], dual=[y], project=projections.Box(0.0, 1.0))
    with pytest.raises(
        ValueError, match=r"project='box' does not match the checkpoint, .* project='.*custom_projection'"
    ):
        other.load_state_dict(state)
    for clone in (copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))):
        assert clone(optimizer).param_groups[1]["project"] is custom_projection


def test_checkpoint_with_other_roles_changes_nothing():
    x, y = pair()
    optimizer = PDAda(primal=[x], dual=[y])
    run(x, y, optimizer, 2)
    state = optimizer.state_dict()
    state["param_groups"].reverse()
    before = str(optimizer.state_dict())
    with pytest.raises(
        ValueError, match=r"role='dual' is invalid: group 0 of this optimizer is primal\. Construct the optimizer with"
    ):
        optimizer.load_state_dict(state)
    assert str(optimizer.state_dict()) == before


def test_checkpoint_of_another_method_changes_nothing():
    x, y = pair()
    optimizer, other = PDAda(primal=[x], dual=[y]), SGDA(primal=[x], dual=[y])
    run(x, y, optimizer, 2)
    before = str(optimizer.state_dict())
    with pytest.raises(
        ValueError,
        match=r"options=\['bias_correction', .*'scaling'\] is invalid: group 0 of the checkpoint lacks options of",
    ):
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"role=None is invalid: group 0 of this optimizer is primal"):
        optimizer.load_state_dict(semaopt.ASA([x]).state_dict())
    assert str(optimizer.state_dict()) == before


def test_complex_variables_are_pairs_of_reals():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 4, 2, generator=generator, dtype=torch.float64)
    x, y = (torch.nn.Parameter(torch.view_as_complex(z.clone())) for z in start)
    a, b = (torch.nn.Parameter(z.clone()) for z in start)
    optimizers = [PDAda(primal=[p], dual=[q], lr=0.1, dual_lr=0.2, beta=0.5) for p, q in ((x, y), (a, b))]
    for _ in range(5):
        gradients = torch.randn(2, 4, 2, generator=generator, dtype=torch.float64)
        x.grad, y.grad = (torch.view_as_complex(g.clone()) for g in gradients)
        a.grad, b.grad = gradients
        for optimizer in optimizers:
            optimizer.step()
    for complex_z, z in ((x, a), (y, b)):
        torch.testing.assert_close(torch.view_as_real(complex_z.detach()), z.detach(), rtol=1e-14, atol=0)


def test_gradients_flow_through_differentiable_steps():
    def end(start, y0):
        x, y = start.clone(), y0.clone()
        optimizer = PDAda(primal=[x], dual=[y], lr=0.1, dual_lr=0.2, beta=0.5, differentiable=True)
        for _ in range(3):
            x.grad, y.grad = x + 2 * y + start * y0, 0.5 * x - y + start.square()
            optimizer.step()
        return x, y

    start = torch.tensor([0.3, -1.2], dtype=torch.float64, requires_grad=True)
    y0 = torch.tensor([0.5, 0.25], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(end, (start, y0))


def test_tensor_step_sizes():
    ends = []
    for wrap in (float, lambda lr: torch.tensor([lr], dtype=torch.float64)):
        x, y = pair()
        run(x, y, PDSM(primal=[x], dual=[y], lr=wrap(0.05), dual_lr=wrap(0.2), beta=0.5), 5)
        ends.append((x.detach(), y.detach()))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=0)
    y = torch.nn.Parameter(torch.tensor(0.0))
    x = torch.nn.Parameter(torch.tensor(0.0))
    optimizer = PDSM(primal=[x], dual=[y], dual_lr=torch.tensor([0.5]))
    x.grad, y.grad = torch.tensor(1.0), torch.tensor(1.0)
    optimizer.step()
    assert y.shape == ()
    assert y.item() == 0.5


def test_iterates_cover_both_roles():
    x, y = pair()
    optimizer = PDSM(primal=[x], dual=[y], lr=0.05, dual_lr=0.2)
    iterates = semaopt.Iterates(optimizer)
    run(x, y, optimizer, 5)
    assert [z.shape for z in iterates.sampled()] == [x.shape, y.shape]
    assert [z.shape for z in iterates.average()] == [x.shape, y.shape]
