"""trainer_kwargs in transformers' Trainer: equality with a plain loop, exact resume, accumulation and clipping."""

from __future__ import annotations

import math

import pytest
import torch

import semaopt

transformers = pytest.importorskip("transformers")
from semaopt.integrations.huggingface import WithIndex, trainer_kwargs  # noqa: E402  # needs transformers

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found"),
    pytest.mark.filterwarnings("ignore:.*torch_dtype. is deprecated"),
]
SIZE, BATCH = 48, 8


def data():
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(2, 30, (SIZE, 6), generator=generator)
    labels = (words.float().mean(1) > 18).long()
    return [{"input_ids": row, "labels": int(label)} for row, label in zip(words, labels, strict=True)], labels


def network(outputs=1, dropout=0.1):
    config = transformers.DistilBertConfig(
        vocab_size=30, dim=8, hidden_dim=16, n_layers=1, n_heads=2, max_position_embeddings=8, num_labels=outputs,
        dropout=dropout, attention_dropout=dropout, seq_classif_dropout=dropout,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.DistilBertForSequenceClassification(config)


def loss_of(kind):
    labels = data()[1]
    if kind == "minmax":
        return semaopt.losses.AUCMinMax.from_labels(labels)
    return semaopt.losses.AveragePrecision(SIZE, prior=float(labels.float().mean())) if kind == "ranking" else None


def trainer(folder, loss=None, model=None, kwargs=None, **options):
    arguments = transformers.TrainingArguments(
        str(folder),
        **{
            "per_device_train_batch_size": BATCH, "max_steps": 8, "save_steps": 4, "logging_steps": 4,
            "report_to": "none", "use_cpu": True, "disable_tqdm": True, "remove_unused_columns": False,
            "lr_scheduler_type": "cosine", "weight_decay": 0.01, "dataloader_pin_memory": False, **options,
        },
    )  # fmt: skip
    items = data()[0]
    train = WithIndex(items) if isinstance(loss, semaopt.losses.AveragePrecision) else items
    model = network() if model is None else model
    return transformers.Trainer(
        model, arguments, train_dataset=train, **trainer_kwargs(loss, **{"lr": 1e-2, **(kwargs or {})})
    )


def weights(runner, loss=None):
    both = [runner.model, *([loss] if loss is not None else [])]
    return {f"{k} {name}": x.clone() for k, part in enumerate(both) for name, x in part.state_dict().items()}


def assert_equal(found, expected, **tolerance):
    for name, x in expected.items():
        torch.testing.assert_close(
            found[name], x, **{"rtol": 0, "atol": 0, "equal_nan": True, "msg": name, **tolerance}
        )


@pytest.mark.parametrize("kind", [pytest.param("model's own", marks=pytest.mark.slow), "minmax", "ranking"])
def test_resume_is_exact(kind, tmp_path):
    loss = loss_of(kind)
    whole = trainer(tmp_path, loss)
    whole.train()
    expected = weights(whole, loss)
    again = loss_of(kind)
    resumed = trainer(tmp_path, again)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.state.global_step == 8
    assert_equal(weights(resumed, again), expected)
    if loss is not None:
        start, fresh = loss_of(kind).state_dict(), loss.state_dict()
        name = "y" if kind == "minmax" else "z"
        assert not torch.equal(start[name].nan_to_num(), fresh[name].nan_to_num())
    assert type(whole.optimizer.optimizer) is (semaopt.PDAda if kind == "minmax" else semaopt.ASA)


def plain(loss, groups_of_batches, clip):
    """Train by hand with constant rates: each entry is the batches of one optimizer step."""
    model = network(dropout=0.0)
    groups = [{"params": list(model.parameters())}, {"params": loss.primal_parameters()}]
    optimizer = semaopt.PDAda(groups, loss.dual_parameters(), lr=1e-2, dual_lr=0.1)
    for rows in groups_of_batches:
        optimizer.zero_grad()
        words = torch.stack([data()[0][i]["input_ids"] for i in rows])
        loss(model(words).logits, data()[1][rows]).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


@pytest.mark.parametrize("clip", [0.0, 0.01])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_accumulation_and_clipping_equal_the_plain_loop(accumulate, clip, tmp_path):
    """Accumulated batches are one batch; clipping scales the gradient of the model and leaves s, r, y alone."""
    loss, own = loss_of("minmax"), loss_of("minmax")
    runner = trainer(
        tmp_path, loss, network(dropout=0.0), {"dual_lr": 0.1}, gradient_accumulation_steps=accumulate, max_steps=4,
        max_grad_norm=clip, weight_decay=0.0, lr_scheduler_type="constant", save_strategy="no",
    )  # fmt: skip
    seen = []
    runner.data_collator = lambda items, collate=runner.data_collator: seen.append(items) or collate(items)
    runner.train()
    position = {tuple(item["input_ids"].tolist()): i for i, item in enumerate(data()[0])}
    batches = [[position[tuple(item["input_ids"].tolist())] for item in items] for items in seen]
    steps = [[i for batch in batches[k * accumulate : (k + 1) * accumulate] for i in batch] for k in range(4)]
    model = plain(own, steps, clip)
    assert_equal(dict(runner.model.named_parameters()), dict(model.named_parameters()), rtol=1e-4, atol=1e-5)
    assert_equal(loss.state_dict(), own.state_dict(), rtol=1e-4, atol=1e-6)
    assert abs(loss.y.item()) > 1e-5
    free = loss_of("minmax")
    changed = plain(free, steps, None if clip else 0.01)
    assert not torch.allclose(changed.classifier.weight, model.classifier.weight, rtol=1e-3, atol=1e-4)


def test_two_logits_monitor_and_own_callbacks(tmp_path):
    class Counter(transformers.TrainerCallback):
        steps = 0

        def on_step_end(self, *_, **__):
            self.steps += 1

    counter = Counter()
    loss = loss_of("minmax")
    runner = trainer(
        tmp_path, loss, network(outputs=2), {"optimizer": "PDSM", "monitor": 2, "callbacks": [counter]},
        save_strategy="no",
    )  # fmt: skip
    runner.train()
    assert counter.steps == 8
    assert type(runner.optimizer.optimizer) is semaopt.PDSM
    records = [entry["monitor"] for entry in runner.state.log_history if "monitor" in entry]
    assert [record["step"] for record in records] == [0, 2, 4, 6]
    assert records[0]["c_u"] == 1.0  # PDSM does not scale
    assert math.isfinite(runner.evaluate(data()[0])["eval_loss"])


@pytest.mark.slow
def test_torch_optimizer_with_a_ranking_loss(tmp_path):
    loss = loss_of("ranking")
    runner = trainer(tmp_path, loss, kwargs={"optimizer": torch.optim.AdamW}, save_strategy="no")
    runner.train()
    assert int(loss.z.isnan().any(1).logical_not().sum()) > 5
    assert math.isfinite(runner.evaluate(data()[0])["eval_loss"])


@pytest.mark.slow
def test_the_loss_is_learned(tmp_path):
    loss = loss_of("minmax")
    runner = trainer(tmp_path, loss, network(dropout=0.0), {"lr": 2e-2}, max_steps=60, save_strategy="no")
    runner.train()
    found = torch.as_tensor(runner.predict(data()[0]).predictions)[:, 0]
    positive, negative = found[data()[1] == 1], found[data()[1] == 0]
    assert float((positive[:, None] > negative).float().mean()) > 0.95


@pytest.mark.slow
def test_errors(tmp_path):
    with pytest.raises(TypeError, match="optimizer=PDAda needs a loss with dual variables, got AveragePrecision"):
        trainer_kwargs(loss_of("ranking"), optimizer="PDAda")
    loss = loss_of("ranking")
    runner = trainer(tmp_path, loss, save_strategy="no")
    runner.train_dataset = data()[0]
    with pytest.raises(ValueError, match=r"needs the position of each example\. Pass train_dataset=WithIndex"):
        runner.train()
    trainer(tmp_path, max_steps=4).train()
    with pytest.raises(ValueError, match="no entry 'loss' in its optimizer state"):
        trainer(tmp_path, loss_of("minmax")).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
