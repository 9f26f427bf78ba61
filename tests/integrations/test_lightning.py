"""AUCModule under Lightning's Trainer: equality with the plain loop, exact resume, metrics."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset

import semaopt

lightning = pytest.importorskip("lightning")
from lightning.pytorch.cli import LightningCLI, OptimizerCallable  # noqa: E402

from semaopt.integrations.lightning import AUCModule, ranking_metrics  # noqa: E402  # needs lightning

pytestmark = [
    # Lightning itself calls functions that torch and Python deprecate.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),  # by LightningCLI
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]
EPOCHS = 4


def dataset(labels=1, n=64):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(n, 5, generator=generator)
    b = (a[:, :labels] + 0.1 * torch.randn(n, labels, generator=generator) > 0.3).float()
    return a, (b[:, 0] if labels == 1 else b), torch.arange(n)


def network(outputs=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Linear(5, outputs)
    with torch.no_grad():
        for x in model.parameters():
            x.uniform_(-0.4, 0.4, generator=generator)
    return model


def loader(*tensors):
    return DataLoader(TensorDataset(*tensors), batch_size=16)


def trainer(folder, epochs=EPOCHS, **options):
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def parts(kind, seed=0, **options):
    """Return a module and its data loader."""
    a, b, index = dataset()
    if kind == "auc":
        loss = semaopt.losses.AUCMinMax.from_labels(b)
        return AUCModule(network(seed=seed), loss, **{"lr": 1e-2, **options}), loader(a, b)
    loss = semaopt.losses.AveragePrecision(len(b), prior=float(b.mean()))
    return AUCModule(network(seed=seed), loss, **{"lr": 1e-2, **options}), loader(a, b, index)


def test_equals_the_plain_loop(tmp_path):
    module, batches = parts("auc", schedule=None)
    model, auc = network(), semaopt.losses.AUCMinMax.from_labels(dataset()[1])
    optimizer = semaopt.PDAda([*model.parameters(), *auc.primal_parameters()], auc.dual_parameters(), lr=1e-2)
    for _ in range(EPOCHS):
        for a, b in batches:
            optimizer.zero_grad()
            auc(model(a), b).backward()
            optimizer.step()
    trainer(tmp_path).fit(module, batches, batches)
    for x, y in zip([*module.parameters()], [*model.parameters(), *auc.parameters()], strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("kind", ["auc", "ap"])
def test_resume_is_exact(kind, tmp_path):
    def constant_steps(optimizer):
        return {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16), "interval": "step"}

    (whole, batches), (first, _) = (parts(kind, schedule=constant_steps) for _ in range(2))
    second, _ = parts(kind, seed=1, schedule=constant_steps)
    trainer(tmp_path).fit(whole, batches, batches)
    half = trainer(tmp_path, epochs=2)
    half.fit(first, batches, batches)
    half.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path).fit(second, batches, batches, ckpt_path=tmp_path / "half.ckpt")
    for name, x in whole.state_dict().items():
        torch.testing.assert_close(x, second.state_dict()[name], rtol=0, atol=0, equal_nan=True, msg=name)
    assert not torch.equal(whole.network.weight, first.network.weight)


@pytest.mark.parametrize("kind", ["auc", "ap"])
def test_metrics_and_prediction(kind, tmp_path):
    module, batches = parts(kind, lr=0.1)
    runner = trainer(tmp_path, epochs=20)
    runner.fit(module, batches, batches)
    assert runner.callback_metrics["validation_auroc"] > 0.95
    assert runner.callback_metrics["train_loss"] >= 0
    assert runner.optimizers[0].param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)  # the cosine has ended
    assert type(runner.optimizers[0]) is (semaopt.PDAda if kind == "auc" else semaopt.ASA)
    [result] = runner.test(module, batches, verbose=False)
    assert result["test_ap"] > 0.9
    scores = torch.cat(runner.predict(module, batches))
    assert scores.shape == (64, 1)


def test_several_labels_with_missing_ones(tmp_path):
    a, b, _ = dataset(labels=3)
    b[torch.rand(b.shape, generator=torch.Generator().manual_seed(1)) < 0.3] = math.nan
    module = AUCModule(
        network(3), semaopt.losses.AUCMinMax.from_labels(b), lr=0.1, weight_decay=1e-3, metrics=ranking_metrics(3)
    )
    runner = trainer(tmp_path, epochs=20, gradient_clip_val=10.0)
    runner.fit(module, loader(a, b), loader(a, b))
    assert runner.callback_metrics["validation_auroc"] > 0.9
    decays = [group.get("weight_decay") for group in runner.optimizers[0].param_groups[:2]]
    assert decays == [1e-3, 0.0]


def test_an_unknown_schedule_is_an_error():
    with pytest.raises(ValueError, match="schedule='linear' is invalid: it must be 'cosine', a function or None"):
        parts("auc", schedule="linear")


# ---- LightningCLI ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch):
    """LightningCLI warns if the program has arguments of its own."""
    monkeypatch.setattr(sys, "argv", ["pytest"])


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return parts("auc")[1]


class Plain(lightning.LightningModule):
    """A module whose optimizer and scheduler come from the command line."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch):
        return torch.nn.functional.binary_cross_entropy_with_logits(self.network(batch[0])[:, 0], batch[1])


def entry(path, **options):
    return {"class_path": path, "init_args": options}


def run_cli(folder, kind, model=None, run=True, **sections):
    """Return the LightningCLI of a YAML file with these sections; ``run`` fits."""
    quiet = dict(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=str(folder),
    )  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"trainer": quiet, "seed_everything": False, "model": model or {}, **sections}))
    arguments = [*(["fit"] if run else []), f"--config={path}"]
    return LightningCLI(kind, Data, args=arguments, run=run, save_config_callback=None)


def path_of(name):
    return f"semaopt.{name}" if hasattr(semaopt, name) else f"semaopt.baselines.{name}"


COSINE = entry("torch.optim.lr_scheduler.CosineAnnealingLR", T_max=8)
PLATEAU = entry("lightning.pytorch.cli.ReduceLROnPlateau", monitor="train_loss", patience=0, threshold=10.0)
SCHEDULES = {
    "Stagewise": entry("semaopt.schedules.Stagewise", every=4, factor=0.5),
    "Polynomial": entry("semaopt.schedules.Polynomial", every=4),
    "InverseSqrt": entry("semaopt.schedules.InverseSqrt", on=["lr", "gamma"]),
    "Follow": entry("semaopt.integrations.lightning.FollowOf", scheduler=COSINE),
    "Follow, plateau": entry("semaopt.integrations.lightning.FollowOf", scheduler=PLATEAU),
    "Stages": entry("semaopt.Stages", stages=[{"eta": 0.1, "gamma": 0.5, "T": 3, "dual_eta": 0.1}] * 2),
}
MODEL = {
    "network": entry("torch.nn.Linear", in_features=5, out_features=1),
    "loss": entry("semaopt.losses.AUCMinMax", prior=0.4),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_command_line_builds_every_schedule(name, tmp_path):
    chosen = {"class_path": "semaopt.PDAda", "init_args": {"lr": 0.02, "scaling": entry("semaopt.scalings.AMSGrad")}}
    interval = "epoch" if "plateau" in name else "step"
    model = {**MODEL, "optimizer": chosen, "schedule": SCHEDULES[name], "interval": interval}
    ran = run_cli(tmp_path, AUCModule, model)
    [optimizer] = ran.trainer.optimizers
    assert type(optimizer) is semaopt.PDAda
    assert optimizer.param_groups[0]["scaling"] == semaopt.scalings.AMSGrad()
    gamma = 1 - optimizer.param_groups[0]["beta"]
    if name == "Stages":
        assert ran.model.stages.done
        assert gamma == pytest.approx(0.5)
    else:
        [config] = ran.trainer.lr_scheduler_configs
        assert type(config.scheduler).__name__ == {"Follow, plateau": "_FollowPlateau"}.get(name, name)
        assert gamma / 0.1 == pytest.approx(optimizer.param_groups[0]["lr"] / 0.02)
        assert gamma < 0.1


class Chosen(lightning.LightningModule):
    """A module with a choice of optimizer; param groups depend on its roles."""

    def __init__(self, optimizer: OptimizerCallable) -> None:
        super().__init__()
        self.optimizer, self.x, self.y = optimizer, network(), network()

    def build(self, roles):
        if roles is None:
            return self.optimizer(self.x.parameters())
        both = zip((self.x, self.y), roles.names, strict=True)
        return self.optimizer([{"params": part.parameters(), "role": role} for part, role in both])


@pytest.mark.parametrize("name", semaopt.optimizer_names())
def test_the_command_line_builds_every_optimizer(name, tmp_path):
    kind = getattr(semaopt, name, None) or getattr(semaopt.baselines, name)
    options = {"lr": 0.25, **({"samples": [4, 4]} if name == "SABA" else {})}  # which has no default
    built = run_cli(tmp_path, Chosen, {"optimizer": entry(path_of(name), **options)}, run=False).model.build(kind.roles)
    assert type(built) is kind
    assert built.param_groups[0]["lr"] == 0.25


def test_the_options_of_the_command_line(tmp_path):
    """The command line's own --optimizer and --lr_scheduler, for modules that leave them to it."""
    chosen = entry("semaopt.ASA", lr=0.25, scaling="shb", clip_scaling=[0.1, 10.0])
    trainer = run_cli(tmp_path, Plain, optimizer=chosen, lr_scheduler=SCHEDULES["Stagewise"]).trainer
    assert type(trainer.optimizers[0]) is semaopt.ASA
    assert trainer.optimizers[0].param_groups[0]["scaling"] == semaopt.scalings.SHB()
    assert type(trainer.lr_scheduler_configs[0].scheduler) is semaopt.schedules.Stagewise


def test_the_kind_of_optimizer_must_fit_the_loss(tmp_path):
    module, batches = parts("auc", optimizer=torch.optim.AdamW, schedule=None)
    with pytest.raises(TypeError, match="AUCMinMax needs a min-max optimizer such as PDAda, got optimizer=AdamW"):
        trainer(tmp_path).fit(module, batches)
    assert type(parts("ap", optimizer=torch.optim.AdamW)[0]._build_optimizer()) is torch.optim.AdamW


# ---- stages, sampler, several processes ------------------------------------------------------------------------------


def test_resume_in_the_middle_of_stages(tmp_path):
    def stages(optimizer):
        return semaopt.Stages(optimizer, [semaopt.Stage(0.1, 0.5, 4, 0.1), semaopt.Stage(0.05, 0.2, 10, 0.1)])

    (whole, batches), (first, _) = (parts("auc", schedule=stages) for _ in range(2))
    second, _ = parts("auc", seed=1, schedule=stages)
    trainer(tmp_path).fit(whole, batches)
    half = trainer(tmp_path, epochs=2)
    half.fit(first, batches)
    half.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path).fit(second, batches, ckpt_path=tmp_path / "half.ckpt")
    assert whole.stages.done
    assert second.stages.done
    for name, x in whole.state_dict().items():
        assert torch.equal(x, second.state_dict()[name]), name


def test_the_sampler_draws_the_batches(tmp_path):
    a, b, _ = dataset()

    def module(seed=0):
        drawn = lambda: semaopt.samplers.ClassBalanced(b, 16, positives=0.25)  # noqa: E731
        loss = semaopt.losses.AUCMinMax.from_sampler(drawn())
        return AUCModule(network(seed=seed), loss, schedule=None, train_data=TensorDataset(a, b), sampler=drawn)

    whole, first, second = module(), module(), module(seed=1)
    shares, inputs = [], []
    whole.loss.register_forward_hook(lambda _, given, __: shares.append(float(given[1].mean())))
    whole.network.register_forward_hook(lambda _, given, __: inputs.append(given[0]))
    trainer(tmp_path).fit(whole)
    assert shares == [0.25] * 16
    assert not torch.equal(inputs[0], inputs[4])  # each epoch draws other batches
    half = trainer(tmp_path, epochs=2)
    half.fit(first)
    half.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path).fit(second, ckpt_path=tmp_path / "half.ckpt")
    for name, x in whole.state_dict().items():
        assert torch.equal(x, second.state_dict()[name]), name
    with pytest.raises(ValueError, match="sampler= needs train_data="):
        AUCModule(network(), whole.loss, sampler=whole.sampler)


def fit_on(processes, kind, folder):
    """Train in float64 on batches of 16 and write the result; with two processes each has half of every batch."""
    module, batches = parts(kind)
    module.double()
    inputs, *targets = batches.dataset.tensors
    rank = int(os.environ.get("LOCAL_RANK", "0"))  # Lightning sets it in the process that it starts
    mine = TensorDataset(*(x[rank::processes] for x in (inputs.double(), *targets)))
    batches = DataLoader(mine, batch_size=16 // processes)
    strategy = "auto" if processes == 1 else lightning.pytorch.strategies.DDPStrategy(process_group_backend="gloo")
    runner = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=processes, strategy=strategy, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        use_distributed_sampler=False,
    )  # fmt: skip
    runner.fit(module, batches, batches)
    if runner.is_global_zero:
        torch.save((module.network.state_dict(), module.loss.state_dict()), Path(folder, f"{processes}.pt"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["auc", "ap"])
def test_two_processes_equal_one(kind, tmp_path):
    for processes in (1, 2):
        code = f"from tests.integrations.test_lightning import fit_on; fit_on({processes}, {kind!r}, {str(tmp_path)!r})"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        script = tmp_path / "script.py"  # Lightning starts the second process by running it again
        script.write_text(f"import sys; sys.path.insert(0, {os.getcwd()!r}); {code}")
        done = subprocess.run(
            [sys.executable, script], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = (torch.load(tmp_path / f"{k}.pt") for k in (1, 2))
    torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-12, equal_nan=True)
    variable = one[1]["y" if kind == "auc" else "z"]
    assert variable.nan_to_num(0.0).abs().max() > 1e-4
