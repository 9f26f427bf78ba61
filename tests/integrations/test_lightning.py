"""AUCModule under Lightning's Trainer: equality with the plain loop, exact resume, metrics."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import semaopt

lightning = pytest.importorskip("lightning")
from semaopt.integrations.lightning import AUCModule, ranking_metrics  # noqa: E402  # needs lightning

pytestmark = [
    # Lightning's own calls of what torch and Python deprecate.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
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
