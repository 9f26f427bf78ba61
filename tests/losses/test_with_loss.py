"""Model and loss as one module: exact resume, and agreement of two processes with one."""

import io
import itertools

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import semaopt
from semaopt import projections
from semaopt.losses import DRO, AUCMinMax, WithLoss
from tests.ecosystem.processes import run_on_two

STEPS = 8
STAGED = ("EpochSGDA", "PESSGDA", "PESAdaGrad")
BASELINES = ("SGDA", "SGDMax", "AccMDA", *STAGED)


class PerSample(torch.nn.Module):
    """Per-sample losses of a linear model under DRO."""

    def __init__(self, dro):
        super().__init__()
        self.dro = dro

    def dual_parameters(self):
        return self.dro.dual_parameters()

    def forward(self, scores, labels, index):
        return self.dro((scores.squeeze(1) - labels).square(), index)


def data(n=16):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return a, (torch.rand(n, generator=generator) < 0.4).long(), torch.arange(n) % 5


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def problem(name):
    """Return the module, its optimizer options, and the targets its loss takes."""
    if name == "dro":
        return WithLoss(network(), PerSample(DRO(5, 0.5, dtype=torch.float64))), {"project": projections.Simplex()}, 2
    project = {"auc, box": projections.Box(-0.2, 0.2), "auc, ball": projections.Ball(0.3), "auc": None}[name]
    return WithLoss(network(), AUCMinMax(0.4, dtype=torch.float64)), {"project": project}, 1


def optimizer_of(both, kind, options):
    rates = {"lr": 0.05, "dual_lr": 0.05, **options}
    rates |= {"stage_length": 3} if kind in STAGED else {"max_ascents": 4} if kind == "SGDMax" else {}
    return getattr(semaopt, kind, getattr(semaopt.baselines, kind, None))(
        primal=both.primal_parameters(), dual=both.dual_parameters(), **rates
    )


def train(both, optimizer, batch, steps):
    def closure():
        optimizer.zero_grad()
        both(*batch).backward()

    for _ in steps:
        optimizer.step(closure)


def whole(both):
    state = both.state_dict()
    return {k: (z.full_tensor() if hasattr(z, "full_tensor") else z).detach().clone() for k, z in state.items()}


PROBLEMS = ["auc", "auc, box", "auc, ball", "dro"]


@pytest.mark.parametrize("name", PROBLEMS)
def test_primal_and_dual_parameters_are_separated(name):
    both, _, _ = problem(name)
    dual = {id(z) for z in both.dual_parameters()}
    primal = {id(z) for z in both.primal_parameters()}
    assert dual
    assert not dual & primal
    assert dual | primal == {id(z) for z in both.parameters()}


def test_loss_without_dual_variables_is_refused():
    with pytest.raises(
        TypeError, match=r"loss of type MSELoss: has no dual_parameters\(\), so it is unknown which parameters"
    ):
        WithLoss(network(), torch.nn.MSELoss())


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("kind", ["PDAda", "PDSM", *BASELINES])
def test_module_and_optimizer_state_suffice_for_exact_resume(name, kind):
    both, options, targets = problem(name)
    batch = data()[: 1 + targets]
    optimizer = optimizer_of(both, kind, options)
    schedule = semaopt.schedules.Stagewise(optimizer, every=3, factor=0.5)
    for _ in range(STEPS):
        train(both, optimizer, batch, range(1))
        schedule.step()
    buffer = io.BytesIO()
    torch.save((both.state_dict(), optimizer.state_dict()), buffer)
    buffer.seek(0)
    module_state, optimizer_state = torch.load(buffer, weights_only=True)
    twin, _, _ = problem(name)
    twin.load_state_dict(module_state)
    resumed = optimizer_of(twin, kind, {})
    resumed.load_state_dict(optimizer_state)
    train(both, optimizer, batch, range(STEPS))
    train(twin, resumed, batch, range(STEPS))
    for key, z in whole(both).items():
        assert torch.equal(z, whole(twin)[key]), key


def wrapped(both, wrapper):
    return torch.nn.parallel.DistributedDataParallel(both) if wrapper == "ddp" else fully_shard(both)


def agree(rank, folder):
    runs = [(name, "PDAda") for name in PROBLEMS] + [("auc", kind) for kind in ("PDSM", *BASELINES)]
    for wrapper, (name, kind) in itertools.product(("ddp", "fsdp2"), runs):
        results = []
        for together in (False, True):
            both, options, targets = problem(name)
            before = whole(both)
            batch = [z[rank::2] if together else z for z in data()[: 1 + targets]]
            module = wrapped(both, wrapper) if together else both
            train(module, optimizer_of(both, kind, options), batch, range(STEPS))
            results.append(whole(both))
        where = f"{wrapper}, {name}, {kind}: "
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12, msg=where.__add__)
        for key in ("loss.y", "loss.dro.weights"):
            assert key not in before or not torch.equal(before[key], results[0][key]), "the dual variable moved"


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    """DDP and FSDP2 on half batches give the primal and dual variables of one process on the whole batch."""
    assert run_on_two(agree, tmp_path)


def save_and_resume(rank, folder):
    for kind, flat in itertools.product(("PDAda", "PESAdaGrad"), (False, True)):
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        batch = [z[rank::2] for z in data()[:2]]
        runs = []
        for _ in range(2):
            both, hyper, _ = problem("auc, ball")
            runs.append((fully_shard(both), optimizer_of(both, kind, hyper)))
        (both, optimizer), (twin, resumed) = runs
        train(both, optimizer, batch, range(STEPS))
        path = folder / f"{kind} {flat}"
        keys = ("model_state_dict", "optim_state_dict")
        dcp.save(dict(zip(keys, get_state_dict(both, optimizer, options=options), strict=True)), checkpoint_id=path)
        states = dict(zip(keys, get_state_dict(twin, resumed, options=options), strict=True))
        dcp.load(states, checkpoint_id=path)
        set_state_dict(twin, resumed, **states, options=options)
        train(both, optimizer, batch, range(STEPS))
        train(twin, resumed, batch, range(STEPS))
        for key, z in whole(both).items():
            assert torch.equal(z, whole(twin)[key]), f"{kind}, {flat}: {key}"


@pytest.mark.slow
def test_sharded_checkpoints_resume_exactly(tmp_path):
    assert run_on_two(save_and_resume, tmp_path)
