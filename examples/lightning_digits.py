"""Train handwritten digits with Lightning's Trainer, in about 10 seconds.

    python examples/lightning_digits.py

Lightning accepts the optimizer and the schedule as they are, and its checkpoints contain both.
Needs lightning and scikit-learn (pip install lightning 'semaopt[experiments]').
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

import semaopt


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    def training_step(self, batch):
        a, b = batch
        return cross_entropy(self.network(a), b)

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch + 1} of {self.trainer.max_epochs}", flush=True)

    def test_step(self, batch):
        a, b = batch
        self.log("accuracy", (self.network(a).argmax(1) == b).float().mean())

    def configure_optimizers(self):
        optimizer = semaopt.ASA(self.parameters(), lr=3e-3, beta=0.9, scaling="adam")
        schedule = semaopt.schedules.Stagewise(optimizer, every=100, factor=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    torch.set_num_threads(1)  # the model is small
    lightning.seed_everything(0, verbose=False)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
    train, test = random_split(data, [1500, 297])
    module = Digits()
    trainer = lightning.Trainer(
        max_epochs=6,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,  # True shows Lightning's own bar
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True))
    [result] = trainer.test(module, DataLoader(test, batch_size=297), verbose=False)
    group = trainer.optimizers[0].param_groups[0]
    print(f"accuracy {result['accuracy']:.4f}   lr {group['lr']:.5f}   beta {group['beta']:.4f}")


if __name__ == "__main__":
    main()
