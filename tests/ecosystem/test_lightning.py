"""ASA and its schedules under Lightning's Trainer, without adapters."""

from __future__ import annotations

import copy
import pickle

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers.logger import DummyLogger
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from torch.utils.data import DataLoader

import semaopt
from semaopt.schedules import Follow, Stagewise
from tests.ecosystem.problem import OPTIONS, asa, assert_same, batches, loss_of, networks, train, values

pytestmark = [
    # Lightning itself calls functions deprecated by torch and Python.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]
EPOCHS, DATA = 4, batches(3)


class Module(lightning.LightningModule):
    """The networks; ``configure(optimizer)`` gives Lightning's ``lr_scheduler`` entry."""

    def __init__(self, configure, seed=0):
        super().__init__()
        self.networks, self.configure = networks(seed), configure
        self.rates = []

    def training_step(self, batch):
        loss = loss_of(self.networks, *batch)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, *_):
        group = self.optimizers().param_groups[0]
        self.rates.append((float(group["lr"]), float(group["beta"])))

    def configure_optimizers(self):
        optimizer = asa(self.networks, **OPTIONS[1])
        return {"optimizer": optimizer, "lr_scheduler": self.configure(optimizer)}


def per_step(schedule):
    return {"scheduler": schedule, "interval": "step"}


SCHEDULES = {
    "stagewise, epochs": lambda optimizer: Stagewise(optimizer, every=2, factor=0.5),
    "stagewise, steps": lambda optimizer: per_step(Stagewise(optimizer, every=2, factor=0.5)),
    "cosine": lambda optimizer: per_step(Follow(CosineAnnealingLR(optimizer, 16))),
    "plateau": lambda optimizer: {
        "scheduler": Follow(ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)),
        "monitor": "loss",
    },
}


def fit(module, folder, epochs=EPOCHS, **options):
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, DataLoader(DATA, batch_size=None), **options)
    return trainer


@pytest.mark.parametrize("configure", SCHEDULES.values(), ids=SCHEDULES)
def test_resume_is_exact(configure, tmp_path):
    whole, first, second = Module(configure), Module(configure), Module(configure, seed=1)
    fit(whole, tmp_path)
    fit(first, tmp_path, epochs=2).save_checkpoint(tmp_path / "half.ckpt")
    fit(second, tmp_path, ckpt_path=tmp_path / "half.ckpt")
    assert_same(values(second), values(whole))
    assert first.rates + second.rates == whole.rates
    assert len(set(whole.rates)) > 1
    ratios = [(1 - beta) / lr for lr, beta in whole.rates]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))  # lr and gamma change in proportion


def test_equals_the_plain_loop(tmp_path):
    model, module = networks(), Module(SCHEDULES["stagewise, steps"])
    optimizer = asa(model, **OPTIONS[1])
    train(model, optimizer, DATA * EPOCHS, Stagewise(optimizer, every=2, factor=0.5))
    fit(module, tmp_path)
    assert_same(values(module.networks), values(model))
    assert not list(tmp_path.iterdir())


class Recorder(DummyLogger):
    def __init__(self):
        super().__init__()
        self.metrics = []

    def log_metrics(self, metrics, step=None):
        self.metrics.append(metrics)


def test_the_learning_rate_monitor_logs_beta(tmp_path):
    """Lightning's own class reads ``group["betas"][0]``; the value is the beta of each step, even after a resume."""

    def monitored(module, epochs, **options):
        logger = Recorder()
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", devices=1, logger=logger, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, default_root_dir=tmp_path,
            callbacks=[LearningRateMonitor("step", log_momentum=True)],
        )  # fmt: skip
        trainer.fit(module, DataLoader(DATA, batch_size=None), **options)
        name = f"lr-ASA/pg{len(module.networks)}-momentum"
        return trainer, [entry[name] for entry in logger.metrics if name in entry]

    configure = SCHEDULES["stagewise, steps"]
    module = Module(configure)
    trainer, logged = monitored(module, 2)
    start = asa(networks(), **OPTIONS[1]).param_groups[0]["beta"]
    assert logged == [start] + [beta for _, beta in module.rates[:-1]]
    assert len(set(logged)) == 3
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    again = Module(configure, seed=1)
    assert monitored(again, 4, ckpt_path=tmp_path / "half.ckpt")[1][0] == module.rates[-1][1]


def test_the_learning_rate_monitor_reads_every_group():
    """A dual group has neither momentum nor weight decay, and the values are read from it all the same."""
    x, y = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = semaopt.PDAda([x], [y], beta=0.75, weight_decay=0.1)
    optimizer.load_state_dict(optimizer.state_dict())
    callback = LearningRateMonitor(log_momentum=True, log_weight_decay=True)
    callback.lrs = {"primal": [], "dual": []}
    read = callback._get_optimizer_stats(optimizer, ["primal", "dual"])
    assert {name: read[f"{name}-weight_decay"] for name in callback.lrs} == {"primal": 0.1, "dual": 0.0}
    assert {name: read[f"{name}-momentum"] for name in callback.lrs} == {"primal": 0.75, "dual": 0.0}
    semaopt.PDAda([{**group} for group in optimizer.param_groups])  # groups can be passed on
    z = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=r"weight_decay=0.1: a dual group has no such option"):
        optimizer.add_param_group({"params": [z], "role": "dual", "weight_decay": 0.1})


def test_betas_is_a_view_of_beta():
    x, y = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = semaopt.PDAda([x], [y], beta=torch.tensor(0.75))
    for one in (optimizer, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert [tuple(group["betas"]) for group in one.param_groups] == [(0.75,), (0.0,)]
        one.param_groups[0]["beta"] = 0.5
        assert one.param_groups[0]["betas"][0] == 0.5
    assert optimizer.state_dict()["param_groups"][0]["betas"] == (0.5,)
    semaopt.PDAda([{**group} for group in optimizer.param_groups])  # groups can be passed on
    with pytest.raises(ValueError, match=r"betas=\(0.9, 0.999\): a primal group has no such option; pass beta=betas"):
        optimizer.add_param_group(
            {"params": [torch.nn.Parameter(torch.ones(1))], "role": "primal", "betas": (0.9, 0.999)}
        )
